//! Fabrics: who shares one can talk.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use crate::abi::*;
use crate::guard;
use crate::handle::{self, Noun};
use crate::{interface, log};

/// A fabric.
pub(crate) struct Fabric {
    pub(crate) fabric: weft::Fabric,
    /// The version of the interface that the program was written for.
    pub(crate) api_version: u32,
}

// SAFETY: `fid_fabric` begins with its `fid`.
unsafe impl Noun for Fabric {
    type Face = fid_fabric;
    const MARK: u64 = u64::from_be_bytes(*b"weft-fab");
}

static FID_OPERATIONS: fi_ops = fi_ops {
    size: size_of::<fi_ops>(),
    close: Some(close),
    bind: Some(crate::no::bind),
    control: Some(crate::no::control),
    ops_open: Some(crate::no::ops_open),
    tostr: None,
    ops_set: None,
};

static OPERATIONS: fi_ops_fabric = fi_ops_fabric {
    size: size_of::<fi_ops_fabric>(),
    domain: Some(crate::domain::open),
    passive_ep: Some(crate::pep::open),
    eq_open: Some(crate::eq::open),
    wait_open: Some(crate::wait_set::open),
    trywait: Some(crate::wait::try_wait),
    domain2: Some(crate::domain::open_with_flags),
};

/// `fi_fabric`.
pub(crate) unsafe extern "C" fn open(
    attributes: *mut fi_fabric_attr,
    into: *mut *mut fid_fabric,
    context: *mut c_void,
) -> c_int {
    guard::call(|| {
        // SAFETY: what libfabric gives to a provider.
        let attributes = unsafe { attributes.as_ref() }.ok_or(-FI_EINVAL)?;
        if into.is_null() {
            return Err(-FI_EINVAL);
        }
        // SAFETY: a text of C, or null.
        let asked = unsafe { interface::text(attributes.name)? };
        let known = crate::info::fabric_name();
        if let Some(asked) = asked.filter(|asked| *asked != known) {
            log::info!(FABRIC, "there is no fabric {asked}, only {known}");
            return Err(-FI_ENODATA);
        }
        let name = log::parameter(c"fabric").unwrap_or_default();
        let fabric = weft::Fabric::new(&name).map_err(|error| guard::errno(&error))?;
        let api_version = attributes.api_version;
        let face = fid_fabric {
            fid: handle::fid_of(FI_CLASS_FABRIC, context, &FID_OPERATIONS),
            ops: handle::table(&OPERATIONS),
            api_version,
        };
        // SAFETY: `into` was checked.
        unsafe { *into = handle::open(face, Arc::new(Fabric { fabric, api_version })) };
        Ok(())
    })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: what C gives to a function of a fabric's table.
    guard::call(|| unsafe { handle::close::<Fabric>(fid) })
}
