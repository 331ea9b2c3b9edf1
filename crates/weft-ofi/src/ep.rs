//! Endpoints: opened, bound, enabled, named, closed. What they send and receive goes through `operation.rs`.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use weft::connection::Connection;
use weft::raw::ClaimId;
use weft::{Address, EndpointKind, EndpointOptions, PeerId};

use crate::abi::*;
use crate::av::Peers;
use crate::cntr::Count;
use crate::cq::Queue;
use crate::domain::Domain;
use crate::eq::EventQueue;
use crate::guard::{self, Result};
use crate::handle::{self, Noun};
use crate::info::Attributes;
use crate::limits::CONNECTION_DATA_MAX_BYTES;
use crate::log;
use crate::order::Order;

/// What a handle of an endpoint stands for. Aliases are handles of their own, with other flags.
pub(crate) struct Endpoint {
    shared: Arc<Shared>,
    transmit_flags: AtomicU64,
    receive_flags: AtomicU64,
}

// SAFETY: `fid_ep` begins with its `fid`.
unsafe impl Noun for Endpoint {
    type Face = fid_ep;
    const MARK: u64 = u64::from_be_bytes(*b"weft-ep ");
}

/// What all aliases of an endpoint share.
pub(crate) struct Shared {
    pub(crate) domain: Arc<Domain>,
    pub(crate) attributes: Attributes,
    bound: Mutex<Bound>,
    live: OnceLock<Live>,
    /// The least room that is left in a multi-receive buffer before it is given back.
    pub(crate) multi_receive_least: AtomicUsize,
    connection: Mutex<Option<Connection>>,
    /// The name of the passive endpoint that it was made of or accepts for, as with sockets; its packets come from the
    /// domain's NIC.
    name: Option<Address>,
    /// Messages that were claimed, by the context of the call that did.
    claims: Mutex<HashMap<u64, ClaimId>>,
}

impl Shared {
    /// Its connection, or the attempt at one.
    pub(crate) fn connection(&self) -> MutexGuard<'_, Option<Connection>> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn events(&self) -> Option<Arc<EventQueue>> {
        self.bound.lock().unwrap_or_else(PoisonError::into_inner).events.clone()
    }

    /// The peer that a connected endpoint talks to from now on; whether it talked to one before.
    pub(crate) fn set_connected(&self, peer: Option<PeerId>) -> bool {
        let Some(live) = self.live.get() else { return false };
        let before = live.connected.swap(peer.map_or(NOT_CONNECTED, |peer| peer.0), Ordering::AcqRel);
        before != NOT_CONNECTED
    }

    pub(crate) fn keep_claim(&self, context: u64, claim: ClaimId) {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner).insert(context, claim);
    }

    pub(crate) fn take_claim(&self, context: u64) -> Option<ClaimId> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner).remove(&context)
    }
}

/// What was bound to an endpoint before it was enabled.
#[derive(Default)]
struct Bound {
    transmit_queue: Option<(Arc<Queue>, bool)>,
    receive_queue: Option<(Arc<Queue>, bool)>,
    counters: Vec<(Arc<Count>, u64)>,
    peers: Option<Arc<Peers>>,
    events: Option<Arc<EventQueue>>,
}

/// An endpoint that is enabled.
pub(crate) struct Live {
    pub(crate) endpoint: weft::Endpoint,
    peers: Option<Arc<Peers>>,
    /// The only peer, of a connected endpoint.
    connected: AtomicU32,
    /// Success is told only where the flags ask for it.
    selective_transmit: bool,
    selective_receive: bool,
    /// Receives name the source that they want.
    pub(crate) directed: bool,
    pub(crate) order: Order,
    pub(crate) receive_queue: Option<Arc<Queue>>,
}

const NOT_CONNECTED: u32 = u32::MAX;

impl Live {
    /// The NIC's name of the peer of a call.
    #[inline]
    pub(crate) fn peer(&self, name: fi_addr_t) -> Result<PeerId> {
        match &self.peers {
            Some(peers) => peers.peer(name),
            None => match self.connected.load(Ordering::Acquire) {
                NOT_CONNECTED => Err(-FI_ENOTCONN),
                peer => Ok(PeerId(peer)),
            },
        }
    }

    /// Whether success is not told.
    #[inline]
    pub(crate) fn is_silent(&self, flags: u64) -> bool {
        self.selective_transmit && flags & FI_COMPLETION == 0
    }

    #[inline]
    pub(crate) fn is_silent_receive(&self, flags: u64) -> bool {
        self.selective_receive && flags & FI_COMPLETION == 0
    }
}

impl Endpoint {
    /// The endpoint, if it can send.
    #[inline]
    pub(crate) fn live_transmit(&self) -> Result<&Live> {
        self.shared.live.get().ok_or(-FI_EOPBADSTATE)
    }

    /// The endpoint, if it can receive.
    #[inline]
    pub(crate) fn live_receive(&self) -> Result<&Live> {
        self.shared.live.get().ok_or(-FI_EOPBADSTATE)
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    #[inline]
    pub(crate) fn is_datagram(&self) -> bool {
        self.shared.attributes.kind == FI_EP_DGRAM
    }

    /// Flags of calls that have none of their own.
    #[inline]
    pub(crate) fn transmit_flags(&self) -> u64 {
        self.transmit_flags.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn receive_flags(&self) -> u64 {
        self.receive_flags.load(Ordering::Relaxed)
    }

    /// Flags of a call that has its own.
    #[inline]
    pub(crate) fn transmit_flags_with(&self, flags: u64) -> Result<u64> {
        crate::operation::check_transmit_flags(flags)?;
        Ok(flags)
    }

    #[inline]
    pub(crate) fn receive_flags_with(&self, flags: u64) -> Result<u64> {
        crate::operation::check_receive_flags(flags)?;
        Ok(flags)
    }

    fn bound(&self) -> MutexGuard<'_, Bound> {
        self.shared.bound.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn bind_queue(&self, queue: &Arc<Queue>, flags: u64) -> Result {
        let selective = flags & FI_SELECTIVE_COMPLETION != 0;
        if flags & (FI_TRANSMIT | FI_RECV) == 0 || flags & !(FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION) != 0 {
            return Err(-FI_EINVAL);
        }
        let mut bound = self.bound();
        if flags & FI_TRANSMIT != 0 {
            if bound.transmit_queue.is_some() {
                return Err(-FI_EINVAL);
            }
            bound.transmit_queue = Some((queue.clone(), selective));
        }
        if flags & FI_RECV != 0 {
            if bound.receive_queue.is_some() {
                return Err(-FI_EINVAL);
            }
            bound.receive_queue = Some((queue.clone(), selective));
        }
        Ok(())
    }

    pub(crate) fn enable(&self) -> Result {
        if self.shared.live.get().is_some() {
            return Ok(());
        }
        let (shared, bound) = (&self.shared, self.bound());
        let connected = shared.attributes.kind == FI_EP_MSG;
        if bound.peers.is_none() && !connected {
            log::info!(EP_CTRL, "an endpoint without connections needs an address vector: bind one");
            return Err(-FI_ENOAV);
        }
        let sends = shared.attributes.transmit_caps != 0;
        let receives = shared.attributes.receive_caps != 0;
        let counts = |bits| bound.counters.iter().any(|(_, flags)| flags & bits != 0);
        if sends && bound.transmit_queue.is_none() && !counts(FI_SEND | FI_WRITE | FI_READ) {
            log::info!(
                EP_CTRL,
                "an endpoint that sends needs a completion queue or counter: bind one with FI_TRANSMIT"
            );
            return Err(-FI_ENOCQ);
        }
        if receives && bound.receive_queue.is_none() && !counts(FI_RECV) {
            log::info!(EP_CTRL, "an endpoint that receives needs a completion queue or counter: bind one with FI_RECV");
            return Err(-FI_ENOCQ);
        }
        let counter =
            |bit| bound.counters.iter().find(|(_, flags)| flags & bit != 0).map(|(count, _)| count.counter.clone());
        let queue = |queue: &Option<(Arc<Queue>, bool)>| queue.as_ref().map(|(queue, _)| queue.queue.clone());
        let options = EndpointOptions {
            kind: if self.is_datagram() { EndpointKind::Datagram } else { EndpointKind::Reliable },
            transmit_queue: queue(&bound.transmit_queue),
            receive_queue: queue(&bound.receive_queue),
            send_counter: counter(FI_SEND),
            receive_counter: counter(FI_RECV),
            read_counter: counter(FI_READ),
            write_counter: counter(FI_WRITE),
            remote_write_counter: counter(FI_REMOTE_WRITE),
            remote_read_counter: counter(FI_REMOTE_READ),
            number: shared.domain.number_for(&shared.attributes),
            ..EndpointOptions::default()
        };
        let endpoint = shared.domain.nic.open_endpoint(options).map_err(|error| guard::errno(&error))?;
        if let (Some((queue, _)), Some(peers)) = (&bound.receive_queue, &bound.peers) {
            queue.names_from(peers);
        }
        let live = Live {
            endpoint,
            peers: bound.peers.clone(),
            connected: AtomicU32::new(NOT_CONNECTED),
            selective_transmit: bound.transmit_queue.as_ref().is_some_and(|(_, selective)| *selective),
            selective_receive: bound.receive_queue.as_ref().is_some_and(|(_, selective)| *selective),
            directed: shared.attributes.caps & FI_DIRECTED_RECV != 0,
            order: Order::new(shared.attributes.message_order),
            receive_queue: bound.receive_queue.as_ref().map(|(queue, _)| queue.clone()),
        };
        // Another thread that was first has enabled it as well.
        let _ = shared.live.set(live);
        Ok(())
    }

    /// The address that peers use.
    pub(crate) fn name(&self) -> Result<Address> {
        match (self.shared.name, self.shared.live.get()) {
            (Some(name), _) => Ok(name),
            (None, Some(live)) => Ok(live.endpoint.address()),
            // Its number is not drawn yet.
            (None, None) => Ok(Address { socket: self.shared.domain.nic.local(), endpoint: 0 }),
        }
    }
}

static FID_OPERATIONS: fi_ops = fi_ops {
    size: size_of::<fi_ops>(),
    close: Some(close),
    bind: Some(bind),
    control: Some(control),
    ops_open: Some(crate::no::ops_open),
    tostr: None,
    ops_set: None,
};

static OPERATIONS: fi_ops_ep = fi_ops_ep {
    size: size_of::<fi_ops_ep>(),
    cancel: Some(cancel),
    getopt: Some(get_option),
    setopt: Some(set_option),
    tx_ctx: Some(crate::no::tx_ctx),
    rx_ctx: Some(crate::no::rx_ctx),
    rx_size_left: Some(crate::no::size_left),
    tx_size_left: Some(crate::no::size_left),
};

/// `fi_endpoint`.
pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    info: *mut fi_info,
    into: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe { open_with_flags(domain, info, into, 0, context) }
}

/// `fi_endpoint2`.
pub(crate) unsafe extern "C" fn open_with_flags(
    domain: *mut fid_domain,
    info: *mut fi_info,
    into: *mut *mut fid_ep,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of a domain's table.
        let (domain, info) = unsafe { (handle::of::<Domain>(domain)?, info.as_ref().ok_or(-FI_EINVAL)?) };
        if into.is_null() || flags != 0 {
            return Err(-FI_EINVAL);
        }
        // SAFETY: an info of libfabric, whose attributes are null or valid.
        let attributes = unsafe { Attributes::of(info)? };
        domain.check_source(&attributes)?;
        // SAFETY: the handle of an info is null or an open object of the interface.
        let name = unsafe { crate::pep::name_of(attributes.handle())? };
        let shared = Shared {
            domain: domain.clone(),
            bound: Mutex::default(),
            live: OnceLock::new(),
            multi_receive_least: AtomicUsize::new(64),
            connection: Mutex::default(),
            name,
            claims: Mutex::default(),
            attributes,
        };
        let endpoint = Endpoint {
            transmit_flags: AtomicU64::new(shared.attributes.transmit_flags),
            receive_flags: AtomicU64::new(shared.attributes.receive_flags),
            shared: Arc::new(shared),
        };
        // SAFETY: `into` was checked.
        unsafe { *into = endpoint.face(FI_CLASS_EP, context) };
        Ok(())
    })
}

impl Endpoint {
    /// Opens a handle for it.
    fn face(self, class: usize, context: *mut c_void) -> *mut fid_ep {
        use crate::no::tables;
        // Calls for which it was not opened are refused by their tables, at no cost for the others.
        let has = |capability| self.shared.attributes.caps & capability != 0;
        let face = fid_ep {
            fid: handle::fid_of(class, context, &FID_OPERATIONS),
            ops: handle::table(&OPERATIONS),
            cm: handle::table(&crate::cm::OPERATIONS),
            msg: handle::table(if has(FI_MSG) { &crate::msg::OPERATIONS } else { &tables::MSG }),
            rma: handle::table(if has(FI_RMA) { &crate::rma::OPERATIONS } else { &tables::RMA }),
            tagged: handle::table(if has(FI_TAGGED) { &crate::tagged::OPERATIONS } else { &tables::TAGGED }),
            atomic: handle::table(if has(FI_ATOMIC) { &crate::atomic::OPERATIONS } else { &tables::ATOMIC }),
            collective: std::ptr::null_mut(),
        };
        handle::open(face, Arc::new(self))
    }
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: what C gives to a function of an endpoint's table.
    guard::call(|| unsafe { handle::close::<Endpoint>(fid) })
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(peers) = &self.bound.get_mut().unwrap_or_else(PoisonError::into_inner).peers {
            peers.users.fetch_sub(1, Ordering::AcqRel);
        }
        if let Some(connection) = self.connection().take()
            && let Ok(connections) = self.domain.connections()
        {
            connections.forget(connection.context());
        }
        if self.live.get().is_some_and(|live| live.endpoint.address().endpoint == 0) {
            self.domain.release_main();
        }
    }
}

unsafe extern "C" fn bind(fid: *mut fid, to: *mut fid, flags: u64) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of an endpoint's table.
        let (endpoint, other) = unsafe { (handle::of_fid::<Endpoint>(fid)?, to.as_ref().ok_or(-FI_EINVAL)?) };
        if endpoint.shared.live.get().is_some() {
            log::info!(EP_CTRL, "bind before the endpoint is enabled");
            return Err(-FI_EOPBADSTATE);
        }
        match other.fclass {
            FI_CLASS_CQ => {
                // SAFETY: the class says what it is.
                let queue = unsafe { handle::of_fid::<Queue>(to)? };
                if !Arc::ptr_eq(&queue.domain, &endpoint.shared.domain) {
                    return Err(-FI_EINVAL);
                }
                endpoint.bind_queue(queue, flags)
            }
            FI_CLASS_CNTR => {
                // SAFETY: the class says what it is.
                let count = unsafe { handle::of_fid::<Count>(to)? };
                let known = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
                if flags & known == 0 || flags & !known != 0 {
                    return Err(-FI_EINVAL);
                }
                endpoint.bound().counters.push((count.clone(), flags));
                Ok(())
            }
            FI_CLASS_AV => {
                // SAFETY: the class says what it is.
                let peers = unsafe { handle::of_fid::<Peers>(to)? };
                let mut bound = endpoint.bound();
                if bound.peers.is_some() || endpoint.shared.attributes.kind == FI_EP_MSG {
                    return Err(-FI_EINVAL);
                }
                peers.users.fetch_add(1, Ordering::AcqRel);
                bound.peers = Some(peers.clone());
                Ok(())
            }
            FI_CLASS_EQ => {
                // SAFETY: the class says what it is.
                let events = unsafe { handle::of_fid::<EventQueue>(to)? };
                endpoint.bound().events = Some(events.clone());
                Ok(())
            }
            _ => Err(-FI_EINVAL),
        }
    })
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, argument: *mut c_void) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of an endpoint's table.
        let endpoint = unsafe { handle::of_fid::<Endpoint>(fid)? };
        match command {
            FI_ENABLE => endpoint.enable(),
            FI_GETOPSFLAG | FI_SETOPSFLAG => {
                // SAFETY: the argument of these commands.
                let flags = unsafe { argument.cast::<u64>().as_mut() }.ok_or(-FI_EINVAL)?;
                let which = *flags & (FI_TRANSMIT | FI_RECV);
                let of = match which {
                    FI_TRANSMIT => &endpoint.transmit_flags,
                    FI_RECV => &endpoint.receive_flags,
                    _ => return Err(-FI_EINVAL),
                };
                if command == FI_GETOPSFLAG {
                    *flags = of.load(Ordering::Relaxed);
                } else {
                    of.store(*flags & !which, Ordering::Relaxed);
                }
                Ok(())
            }
            FI_ALIAS => {
                // SAFETY: the argument of this command.
                let alias = unsafe { argument.cast::<fi_alias>().as_mut() }.ok_or(-FI_EINVAL)?;
                if alias.fid.is_null() {
                    return Err(-FI_EINVAL);
                }
                let (mut transmit, mut receive) = (endpoint.transmit_flags(), endpoint.receive_flags());
                match alias.flags & (FI_TRANSMIT | FI_RECV) {
                    FI_TRANSMIT => transmit = alias.flags & !FI_TRANSMIT,
                    FI_RECV => receive = alias.flags & !FI_RECV,
                    0 => {}
                    _ => return Err(-FI_EINVAL),
                }
                let copy = Endpoint {
                    shared: endpoint.shared.clone(),
                    transmit_flags: AtomicU64::new(transmit),
                    receive_flags: AtomicU64::new(receive),
                };
                // SAFETY: `fid` is open; the pointer in the argument was checked.
                unsafe { *alias.fid = copy.face((*fid).fclass, (*fid).context).cast() };
                Ok(())
            }
            _ => Err(-FI_ENOSYS),
        }
    })
}

unsafe extern "C" fn cancel(fid: fid_t, context: *mut c_void) -> isize {
    guard::count(|| {
        // SAFETY: what C gives to a function of an endpoint's table.
        let endpoint = unsafe { handle::of_fid::<Endpoint>(fid)? };
        let live = endpoint.live_receive()?;
        let multi = live.receive_queue.as_ref().and_then(|queue| queue.find_multi_receive(context as u64));
        let cancelled = live.endpoint.cancel(context as u64) || multi.is_some_and(|multi| live.endpoint.cancel(multi));
        if cancelled { Ok(0) } else { Err(-FI_ENOENT) }
    })
}

unsafe extern "C" fn get_option(
    fid: fid_t,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    length: *mut usize,
) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of an endpoint's table.
        let (endpoint, length) = unsafe { (handle::of_fid::<Endpoint>(fid)?, length.as_mut().ok_or(-FI_EINVAL)?) };
        if level != FI_OPT_ENDPOINT || value.is_null() {
            return Err(-FI_ENOPROTOOPT);
        }
        let found = match option {
            FI_OPT_MIN_MULTI_RECV => endpoint.shared.multi_receive_least.load(Ordering::Relaxed),
            FI_OPT_CM_DATA_SIZE => CONNECTION_DATA_MAX_BYTES,
            _ => return Err(-FI_ENOPROTOOPT),
        };
        if std::mem::replace(length, size_of::<usize>()) < size_of::<usize>() {
            return Err(-FI_ETOOSMALL);
        }
        // SAFETY: there is room.
        unsafe { value.cast::<usize>().write_unaligned(found) };
        Ok(())
    })
}

unsafe extern "C" fn set_option(fid: fid_t, level: c_int, option: c_int, value: *const c_void, length: usize) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of an endpoint's table.
        let endpoint = unsafe { handle::of_fid::<Endpoint>(fid)? };
        if level != FI_OPT_ENDPOINT || option != FI_OPT_MIN_MULTI_RECV {
            return Err(-FI_ENOPROTOOPT);
        }
        if value.is_null() || length != size_of::<usize>() {
            return Err(-FI_EINVAL);
        }
        // SAFETY: it has that many bytes.
        let least = unsafe { value.cast::<usize>().read_unaligned() };
        endpoint.shared.multi_receive_least.store(least, Ordering::Relaxed);
        Ok(())
    })
}
