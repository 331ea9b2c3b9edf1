//! Domains: each is one NIC.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use weft::raw::{DeferredId, OneAtATime};
use weft::{Address, PeerId, Progress};

use crate::abi::*;
use crate::cm::Connections;
use crate::cq::MultiReceives;
use crate::fabric::Fabric;
use crate::guard::{self, Result};
use crate::handle::{self, Noun};
use crate::info::Attributes;
use crate::variable::Announcements;
use crate::{address, interface, log, parameters};

/// A domain.
pub(crate) struct Domain {
    pub(crate) nic: weft::Domain,
    pub(crate) fabric: Arc<Fabric>,
    /// The format of addresses.
    pub(crate) format: u32,
    /// The version of the interface that the program was written for.
    pub(crate) api_version: u32,
    pub(crate) mr_mode: c_int,
    pub(crate) caps: u64,
    /// All that it was opened with, for what is opened without an info of its own.
    pub(crate) attributes: Attributes,
    /// Whether the endpoint that peers reach by node and service alone is open.
    main_taken: AtomicBool,
    /// Connections of its endpoints.
    connections: OnceLock<Arc<Connections>>,
    /// Deferred work that was queued, by where its description is.
    work: Mutex<HashMap<usize, DeferredId>>,
    /// How often each peer has a name in an address vector.
    peers: Mutex<HashMap<u32, usize>>,
    /// Messages of any length that its endpoints told of.
    pub(crate) announcements: Arc<Announcements>,
    pub(crate) multi_receives: MultiReceives,
}

// SAFETY: `fid_domain` begins with its `fid`.
unsafe impl Noun for Domain {
    type Face = fid_domain;
    const MARK: u64 = u64::from_be_bytes(*b"weft-dom");
}

impl Domain {
    fn new(fabric: &Arc<Fabric>, attributes: &Attributes) -> Result<Domain> {
        let wanted = attributes.source.map(|source| source.socket);
        let wanted = wanted.unwrap_or_else(|| {
            let ip6 = attributes.format == FI_SOCKADDR_IN6;
            let way = attributes.destination.and_then(|to| interface::source_for(to.socket));
            SocketAddr::new(way.unwrap_or_else(|| interface::default_source(ip6)), 0)
        });
        // Peers must be told one address, and shared memory is found by it.
        let ip = if wanted.ip().is_unspecified() { interface::default_source(wanted.is_ipv6()) } else { wanted.ip() };
        // The name of a connected endpoint is nobody's concern; the port is for a passive endpoint of the same program, which
        // may be opened later than the domain.
        let port = if attributes.kind == FI_EP_MSG { 0 } else { wanted.port() };
        let wanted = SocketAddr::new(ip, port);
        let open = |socket: SocketAddr| {
            let progress = match attributes.data_progress {
                FI_PROGRESS_AUTO => Progress::Automatic,
                _ => Progress::Manual,
            };
            let mut builder = parameters::builder(fabric)?.progress(progress);
            if Self::is_promised(attributes) {
                // SAFETY: what the program promised with this level, for all objects of the domain.
                builder = builder.single_threaded(unsafe { OneAtATime::promise() });
            }
            builder.udp(socket)
        };
        // Who has the port may be a passive endpoint of this very program, or another domain: then an endpoint that must
        // have it is refused, and all others need not care.
        let nic = open(wanted).or_else(|error| match &error {
            weft::Error::System { source, .. }
                if source.kind() == std::io::ErrorKind::AddrInUse && wanted.port() != 0 =>
            {
                open(SocketAddr::new(ip, 0))
            }
            _ => Err(error),
        });
        let nic = nic.map_err(|error| {
            log::warning!(DOMAIN, "cannot open a NIC at {wanted}: {error}");
            guard::errno(&error)
        })?;
        log::info!(DOMAIN, "opened a NIC at {}", nic.local());
        Ok(Domain {
            format: match attributes.format {
                // Of addresses in a row, the length must be known.
                FI_SOCKADDR => address::format_of(&nic.local()),
                format => format,
            },
            nic,
            fabric: fabric.clone(),
            api_version: attributes.api_version,
            mr_mode: attributes.mr_mode,
            caps: attributes.caps,
            attributes: attributes.clone(),
            main_taken: AtomicBool::new(false),
            connections: OnceLock::new(),
            work: Mutex::default(),
            peers: Mutex::default(),
            announcements: Arc::default(),
            multi_receives: MultiReceives::default(),
        })
    }

    /// Whether calls come one at a time. Event queues are the fabric's, so the promise does not count for them; reading one
    /// looks after connections.
    fn is_promised(attributes: &Attributes) -> bool {
        let manual = attributes.data_progress != FI_PROGRESS_AUTO;
        attributes.threading == FI_THREAD_DOMAIN && manual && attributes.kind != FI_EP_MSG
    }

    /// Whether an endpoint can have the address that it asks for: the NIC's.
    pub(crate) fn check_source(&self, attributes: &Attributes) -> Result {
        let Some(source) = attributes.source else { return Ok(()) };
        let port = source.socket.port();
        if port == 0 || port == self.nic.local().port() || attributes.kind == FI_EP_MSG {
            return Ok(());
        }
        log::warning!(
            EP_CTRL,
            "port {port} is not this domain's ({}): open the domain with the same fi_info, while nobody has the port",
            self.nic.local()
        );
        Err(-FI_EADDRINUSE)
    }

    /// The number that a new endpoint shall have; the first one without connections is found by node and service alone.
    pub(crate) fn number_for(&self, attributes: &Attributes) -> Option<u32> {
        let main = attributes.kind != FI_EP_MSG && !self.main_taken.swap(true, Ordering::Relaxed);
        main.then_some(0)
    }

    /// That endpoint is closed.
    pub(crate) fn release_main(&self) {
        self.main_taken.store(false, Ordering::Relaxed);
    }

    /// The connections of its endpoints.
    pub(crate) fn connections(&self) -> Result<&Arc<Connections>> {
        if Self::is_promised(&self.attributes) {
            log::info!(DOMAIN, "opened for endpoints without connections: open it with an info of type FI_EP_MSG");
            return Err(-FI_EINVAL);
        }
        if self.connections.get().is_none() {
            // Another thread may have been first; then its manager is the one.
            let _ = self.connections.set(Arc::new(Connections::new(&self.nic)?));
        }
        self.connections.get().ok_or(-FI_EOTHER)
    }

    pub(crate) fn work(&self) -> MutexGuard<'_, HashMap<usize, DeferredId>> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn peers(&self) -> MutexGuard<'_, HashMap<u32, usize>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The NIC's name of an address, until [`Domain::forget_peer`] was called as often.
    pub(crate) fn name_peer(&self, address: Address) -> Result<PeerId> {
        let mut peers = self.peers();
        let peer = self.nic.addresses().insert(address).map_err(|error| guard::errno(&error))?;
        *peers.entry(peer.0).or_default() += 1;
        Ok(peer)
    }

    pub(crate) fn forget_peer(&self, peer: PeerId) {
        let mut peers = self.peers();
        if let Some(uses) = peers.get_mut(&peer.0) {
            *uses -= 1;
            if *uses == 0 {
                peers.remove(&peer.0);
                self.nic.addresses().remove(peer);
            }
        }
    }
}

static FID_OPERATIONS: fi_ops = crate::no::operations(close, bind, crate::trigger::control);

static OPERATIONS: fi_ops_domain = fi_ops_domain {
    size: size_of::<fi_ops_domain>(),
    av_open: Some(crate::av::open),
    cq_open: Some(crate::cq::open),
    endpoint: Some(crate::ep::open),
    scalable_ep: Some(crate::sep::open),
    cntr_open: Some(crate::cntr::open),
    poll_open: Some(crate::poll::open),
    stx_ctx: Some(crate::context::open_shared_transmit),
    srx_ctx: Some(crate::context::open_shared_receive),
    query_atomic: Some(crate::atomic::query),
    query_collective: Some(crate::no::query_collective),
    endpoint2: Some(crate::ep::open_with_flags),
};

/// `fi_domain`.
pub(crate) unsafe extern "C" fn open(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    into: *mut *mut fid_domain,
    context: *mut c_void,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe { open_with_flags(fabric, info, into, 0, context) }
}

/// `fi_domain2`.
pub(crate) unsafe extern "C" fn open_with_flags(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    into: *mut *mut fid_domain,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of a fabric's table.
        let (fabric, info) = unsafe { (handle::of::<Fabric>(fabric)?, info.as_ref().ok_or(-FI_EINVAL)?) };
        if into.is_null() || flags != 0 {
            return Err(-FI_EINVAL);
        }
        // SAFETY: an info of libfabric, whose attributes are null or valid.
        let attributes = unsafe { Attributes::of(info)? };
        if let Some(name) = &attributes.domain_name
            && !interface::interfaces().iter().any(|interface| interface.name == *name)
        {
            log::info!(DOMAIN, "there is no interface {name}, or it is not up");
            return Err(-FI_EINVAL);
        }
        let domain = Domain::new(fabric, &attributes)?;
        let face = fid_domain {
            fid: handle::fid_of(FI_CLASS_DOMAIN, context, &FID_OPERATIONS),
            ops: handle::table(&OPERATIONS),
            mr: handle::table(&crate::mr::OPERATIONS),
        };
        // SAFETY: `into` was checked.
        unsafe { *into = handle::open(face, Arc::new(domain)) };
        Ok(())
    })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: what C gives to a function of a domain's table.
    guard::call(|| unsafe { handle::close::<Domain>(fid) })
}

/// An event queue bound to a domain would be told of registrations that end later; ours end at once.
unsafe extern "C" fn bind(fid: *mut fid, to: *mut fid, flags: u64) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of a domain's table.
        let (_, other) = unsafe { (handle::of_fid::<Domain>(fid)?, to.as_ref().ok_or(-FI_EINVAL)?) };
        if other.fclass != FI_CLASS_EQ || flags & !FI_REG_MR != 0 {
            return Err(-FI_EINVAL);
        }
        Ok(())
    })
}
