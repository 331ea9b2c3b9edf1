//! Contexts that several endpoints share. Receives of a shared receive context serve all endpoints that are bound to it.
//! A shared transmit context has nothing that endpoints of a NIC would have to share: it is only kept open by them.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use crate::abi::*;
use crate::av::Peers;
use crate::cq::Queue;
use crate::domain::Domain;
use crate::ep::{Endpoint, Role};
use crate::guard::{self, Result};
use crate::handle::{self, Noun};
use crate::log;

/// What a shared receive context knows of the endpoints that are bound to it.
#[derive(Default)]
pub(crate) struct Pool {
    /// The type of endpoint that it serves: that of the first.
    kind: OnceLock<u32>,
    links: Mutex<Links>,
}

/// Where names come from and multi-receives are told, unless the context has its own. Endpoints keep them open.
#[derive(Default)]
struct Links {
    peers: Weak<Peers>,
    queue: Weak<Queue>,
}

impl Pool {
    /// An endpoint wants to be bound to it.
    pub(crate) fn serve(&self, kind: u32) -> Result {
        if *self.kind.get_or_init(|| kind) == kind {
            return Ok(());
        }
        log::info!(EP_CTRL, "a shared receive context serves endpoints of one type only");
        Err(-FI_EINVAL)
    }

    /// The type of endpoint that it serves from now on.
    pub(crate) fn kind(&self, otherwise: u32) -> u32 {
        *self.kind.get_or_init(|| otherwise)
    }

    /// An endpoint that is bound to it is enabled.
    pub(crate) fn link(&self, peers: Option<&Arc<Peers>>, queue: Option<&Arc<Queue>>) {
        let mut links = self.links();
        if let Some(peers) = peers.filter(|_| links.peers.strong_count() == 0) {
            links.peers = Arc::downgrade(peers);
        }
        if let Some(queue) = queue.filter(|_| links.queue.strong_count() == 0) {
            links.queue = Arc::downgrade(queue);
        }
    }

    pub(crate) fn peers(&self) -> Option<Arc<Peers>> {
        self.links().peers.upgrade()
    }

    pub(crate) fn queue(&self) -> Option<Arc<Queue>> {
        self.links().queue.upgrade()
    }

    fn links(&self) -> MutexGuard<'_, Links> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `fi_srx_context`.
pub(crate) unsafe extern "C" fn open_shared_receive(
    domain: *mut fid_domain,
    wanted: *mut fi_rx_attr,
    into: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of a domain's table.
        let (domain, wanted) = unsafe { (handle::of::<Domain>(domain)?, wanted.as_ref()) };
        if into.is_null() {
            return Err(-FI_EINVAL);
        }
        let mut attributes = domain.attributes.clone();
        attributes.transmit_caps = 0;
        if let Some(wanted) = wanted {
            attributes.receive_flags = wanted.op_flags;
        }
        let role = Role::Pool(Arc::default());
        // SAFETY: `into` was checked.
        unsafe { *into = Endpoint::new(domain, attributes, role, None).face(FI_CLASS_SRX_CTX, context) };
        Ok(())
    })
}

/// A shared transmit context.
pub(crate) struct SharedTransmit {
    pub(crate) domain: Arc<Domain>,
}

// SAFETY: `fid_stx` begins with its `fid`.
unsafe impl Noun for SharedTransmit {
    type Face = fid_stx;
    const MARK: u64 = u64::from_be_bytes(*b"weft-stx");
}

static FID_OPERATIONS: fi_ops = crate::no::operations(close, crate::no::bind, crate::no::control);

static OPERATIONS: fi_ops_ep = fi_ops_ep {
    size: size_of::<fi_ops_ep>(),
    cancel: Some(crate::no::cancel),
    getopt: Some(crate::no::getopt),
    setopt: Some(crate::no::setopt),
    tx_ctx: Some(crate::no::tx_ctx),
    rx_ctx: Some(crate::no::rx_ctx),
    rx_size_left: Some(crate::no::size_left),
    tx_size_left: Some(crate::no::size_left),
};

/// `fi_stx_context`.
pub(crate) unsafe extern "C" fn open_shared_transmit(
    domain: *mut fid_domain,
    _wanted: *mut fi_tx_attr,
    into: *mut *mut fid_stx,
    context: *mut c_void,
) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of a domain's table.
        let domain = unsafe { handle::of::<Domain>(domain)? };
        if into.is_null() {
            return Err(-FI_EINVAL);
        }
        let fid = handle::fid_of(FI_CLASS_STX_CTX, context, &FID_OPERATIONS);
        let face = fid_stx { fid, ops: handle::table(&OPERATIONS) };
        // SAFETY: `into` was checked.
        unsafe { *into = handle::open(face, Arc::new(SharedTransmit { domain: domain.clone() })) };
        Ok(())
    })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // Endpoints may go on with it: Sandia OpenSHMEM closes it before the last of them, which libfabric's sockets allow.
    // SAFETY: what C gives to a function of a shared transmit context's table.
    guard::call(|| unsafe { handle::close_in_use::<SharedTransmit>(fid) })
}
