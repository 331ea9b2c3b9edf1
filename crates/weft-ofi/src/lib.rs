//! The libfabric face of Weft: a provider that the stock libfabric loads as a plug-in.
//!
//! One file for each noun of the interface, and no protocol: calls are translated to those of `weft` and `weft::raw`.
//! Read [`abi`] (the C interface), `handle.rs` (what a C pointer points to) and `guard.rs` (how a call begins and ends)
//! first, then `info.rs`, `domain.rs`, `ep.rs` and `operation.rs`, which is the way of every transfer.

pub mod abi;

mod address;
mod atomic;
mod av;
mod cm;
mod cntr;
mod condition;
mod context;
mod cq;
mod domain;
mod ep;
mod eq;
mod fabric;
mod guard;
mod handle;
mod info;
mod interface;
mod limits;
mod log;
mod mr;
mod msg;
mod no;
mod operation;
mod order;
mod parameters;
mod pep;
mod poll;
mod receive;
mod rma;
mod sep;
mod shared_av;
mod tagged;
mod trigger;
mod variable;
mod wait;
mod wait_set;

use std::ptr::NonNull;
use std::sync::OnceLock;

use abi::{FI_VERSION, fi_context, fi_provider};

/// The provider's entry in libfabric's list. libfabric writes its own context there.
struct Provider(NonNull<fi_provider>);
// SAFETY: we never touch it after it was made; libfabric has its own locks.
unsafe impl Send for Provider {}
// SAFETY: as above.
unsafe impl Sync for Provider {}

pub(crate) fn provider() -> *const fi_provider {
    static PROVIDER: OnceLock<Provider> = OnceLock::new();
    let provider = PROVIDER.get_or_init(|| {
        let provider = fi_provider {
            version: info::PROVIDER_VERSION,
            // As high as any program asks for: the interface only grew since the version that we know.
            fi_version: FI_VERSION(2, 99),
            context: fi_context { internal: [std::ptr::null_mut(); 4] },
            name: c"weft".as_ptr(),
            getinfo: Some(info::getinfo),
            fabric: Some(fabric::open),
            cleanup: Some(cleanup),
        };
        Provider(NonNull::from(Box::leak(Box::new(provider))))
    });
    provider.0.as_ptr()
}

/// What libfabric calls first.
#[unsafe(no_mangle)]
pub extern "C" fn fi_prov_ini() -> *mut fi_provider {
    guard::value(std::ptr::null_mut(), || {
        info::define_parameters();
        provider().cast_mut()
    })
}

/// What libfabric calls last.
unsafe extern "C" fn cleanup() {
    guard::value((), handle::forget_closed);
}
