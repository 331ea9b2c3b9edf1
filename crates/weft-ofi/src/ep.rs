//! Endpoints: opened, bound, enabled, named, closed. What they send and receive goes through `operation.rs`.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use weft::connection::Connection;
use weft::device;
use weft::raw::ClaimId;
use weft::{Address, EndpointKind, EndpointOptions, PeerId, Side};

use crate::abi::*;
use crate::av::{BoundPeers, Peers};
use crate::cntr::Count;
use crate::context::{Pool, SharedTransmit};
use crate::cq::Queue;
use crate::domain::Domain;
use crate::eq::EventQueue;
use crate::guard::{self, Result};
use crate::handle::{self, Noun};
use crate::info::Attributes;
use crate::limits::{CONNECTION_DATA_MAX_BYTES, DATAGRAMS_KEPT};
use crate::log;
use crate::order::Order;
use crate::sep::Part;
use crate::variable::{self, Variable};

/// What a handle of an endpoint stands for. Aliases are handles of their own, with other flags.
pub(crate) struct Endpoint {
    shared: Arc<Shared>,
    is_alias: bool,
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
    aliases: AtomicUsize,
    /// The least room that is left in a multi-receive buffer before it is given back.
    pub(crate) multi_receive_least: AtomicUsize,
    connection: Mutex<Option<Connection>>,
    /// The name of the passive endpoint that it was made of or accepts for, as with sockets; its packets come from the
    /// domain's NIC.
    name: Option<Address>,
    /// Messages that were claimed, by the context of the call that did.
    claims: Mutex<HashMap<u64, ClaimId>>,
    /// The handle that is no alias.
    face: AtomicPtr<fid_ep>,
    /// Ends after all that is enabled.
    role: Role,
}

/// What an endpoint is, among others.
pub(crate) enum Role {
    /// One by itself.
    Whole,
    /// One side of a context of a scalable endpoint.
    Part(Part),
    /// Receives that other endpoints share.
    Pool(Arc<Pool>),
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

/// What was bound to an endpoint.
#[derive(Default)]
struct Bound {
    transmit_queue: Option<(Arc<Queue>, bool)>,
    receive_queue: Option<(Arc<Queue>, bool)>,
    counters: Vec<(Arc<Count>, u64)>,
    peers: Option<BoundPeers>,
    events: Option<Arc<EventQueue>>,
    /// The endpoint whose receives it shares.
    pool: Option<Arc<Endpoint>>,
    shared_transmit: Option<Arc<SharedTransmit>>,
}

impl Bound {
    /// Where one side of an endpoint reports.
    fn options(&self, transmits: bool, receives: bool) -> EndpointOptions {
        let counter = |wanted: bool, bit| {
            let mut counters = self.counters.iter().filter(|_| wanted);
            counters.find(|(_, flags)| flags & bit != 0).map(|(count, _)| count.counter.clone())
        };
        let queue = |wanted: bool, queue: &Option<(Arc<Queue>, bool)>| {
            queue.as_ref().filter(|_| wanted).map(|(queue, _)| queue.queue.clone())
        };
        EndpointOptions {
            transmit_queue: queue(transmits, &self.transmit_queue),
            receive_queue: queue(receives, &self.receive_queue),
            send_counter: counter(transmits, FI_SEND),
            receive_counter: counter(receives, FI_RECV),
            read_counter: counter(transmits, FI_READ),
            write_counter: counter(transmits, FI_WRITE),
            remote_write_counter: counter(receives, FI_REMOTE_WRITE),
            remote_read_counter: counter(receives, FI_REMOTE_READ),
            quiet_close: true,
            datagrams_kept: DATAGRAMS_KEPT,
            ..EndpointOptions::default()
        }
    }

    fn counts(&self, bits: u64) -> bool {
        self.counters.iter().any(|(_, flags)| flags & bits != 0)
    }
}

/// An endpoint that is enabled.
pub(crate) struct Live {
    pub(crate) endpoint: weft::Endpoint,
    peers: Option<BoundPeers>,
    /// The only peer, of a connected endpoint.
    connected: AtomicU32,
    /// Success is told only where the flags ask for it.
    selective_transmit: AtomicBool,
    selective_receive: AtomicBool,
    /// Receives name the source that they want.
    pub(crate) directed: bool,
    pub(crate) order: Order,
    receive_queue: OnceLock<Arc<Queue>>,
    /// Of a shared receive context, what it knows of its users.
    pool: Option<Arc<Pool>>,
    /// Sides that it has.
    sides: Sides,
    /// Sides that take calls. One without a queue does from its first call on: until then a queue can be bound to it.
    sends: AtomicBool,
    receives: AtomicBool,
    /// A call panicked: none is taken any more.
    failed: AtomicBool,
    /// Where the program hears of a message before it receives it; ends after the endpoint.
    pub(crate) variable: Option<Arc<Variable>>,
}

const NOT_CONNECTED: u32 = u32::MAX;

/// Which sides an endpoint has.
#[derive(Clone, Copy)]
struct Sides {
    transmit: bool,
    receive: bool,
}

impl Live {
    /// The NIC's name of the peer whose messages a receive takes.
    #[inline]
    pub(crate) fn source(&self, name: fi_addr_t) -> Result<PeerId> {
        match &self.peers {
            Some(peers) => peers.source(name),
            None => self.peer(name),
        }
    }

    /// The NIC's name of the peer of a call.
    #[inline]
    pub(crate) fn peer(&self, name: fi_addr_t) -> Result<PeerId> {
        match &self.peers {
            Some(peers) => peers.peer(name),
            None => match self.connected.load(Ordering::Acquire) {
                NOT_CONNECTED => self.peer_of_users(name),
                peer => Ok(PeerId(peer)),
            },
        }
    }

    #[cold]
    fn peer_of_users(&self, name: fi_addr_t) -> Result<PeerId> {
        self.pool.as_ref().and_then(|pool| pool.peers()).ok_or(-FI_ENOTCONN)?.peer(name)
    }

    /// The queue with which what is known of receives ends; none where other endpoints' queues tell of them.
    pub(crate) fn own_receive_queue(&self) -> Option<&Arc<Queue>> {
        self.receive_queue.get()
    }

    /// Where receives that are not plain are told.
    pub(crate) fn receive_queue(&self) -> Option<Arc<Queue>> {
        self.receive_queue.get().cloned().or_else(|| self.pool.as_ref()?.queue())
    }

    /// Whether success is not told.
    #[inline]
    pub(crate) fn is_silent(&self, flags: u64) -> bool {
        self.selective_transmit.load(Ordering::Relaxed) && flags & FI_COMPLETION == 0
    }

    #[inline]
    pub(crate) fn is_silent_receive(&self, flags: u64) -> bool {
        self.selective_receive.load(Ordering::Relaxed) && flags & FI_COMPLETION == 0
    }
}

impl Endpoint {
    pub(crate) fn new(domain: &Arc<Domain>, attributes: Attributes, role: Role, name: Option<Address>) -> Endpoint {
        let shared = Shared {
            domain: domain.clone(),
            bound: Mutex::default(),
            live: OnceLock::new(),
            aliases: AtomicUsize::new(0),
            multi_receive_least: AtomicUsize::new(64),
            connection: Mutex::default(),
            name,
            claims: Mutex::default(),
            face: AtomicPtr::default(),
            attributes,
            role,
        };
        Endpoint {
            transmit_flags: AtomicU64::new(shared.attributes.transmit_flags),
            receive_flags: AtomicU64::new(shared.attributes.receive_flags),
            shared: Arc::new(shared),
            is_alias: false,
        }
    }

    /// It is in a state that nobody knows: it takes no more calls.
    #[cold]
    pub(crate) fn fail(&self) {
        if let Some(live) = self.shared.live.get() {
            live.failed.store(true, Ordering::Relaxed);
            live.sends.store(false, Ordering::Relaxed);
            live.receives.store(false, Ordering::Relaxed);
        }
    }

    /// The endpoint, if it is enabled.
    pub(crate) fn live(&self) -> Result<&Live> {
        self.shared.live.get().ok_or(-FI_EOPBADSTATE)
    }

    /// The endpoint, if it can send.
    #[inline]
    pub(crate) fn live_transmit(&self) -> Result<&Live> {
        match self.shared.live.get() {
            Some(live) if live.sends.load(Ordering::Relaxed) => Ok(live),
            Some(live) => self.begin(live, Side::Transmit),
            None => Err(-FI_EOPBADSTATE),
        }
    }

    /// The endpoint, if it can receive.
    #[inline]
    pub(crate) fn live_receive(&self) -> Result<&Live> {
        match self.shared.live.get() {
            Some(live) if live.receives.load(Ordering::Relaxed) => Ok(live),
            Some(live) => self.begin(live, Side::Receive),
            None => self.live_at_last(),
        }
    }

    /// The first call of a side without a queue: what it posts has no place in one, so none can be bound from now on.
    #[cold]
    fn begin<'a>(&self, live: &'a Live, side: Side) -> Result<&'a Live> {
        let _bound = self.bound();
        let (has, takes_calls) = match side {
            Side::Transmit => (live.sides.transmit, &live.sends),
            Side::Receive => (live.sides.receive, &live.receives),
        };
        if live.failed.load(Ordering::Relaxed) {
            return Err(-FI_EOTHER);
        }
        if !has {
            return Err(-FI_EOPNOTSUPP);
        }
        takes_calls.store(true, Ordering::Relaxed);
        Ok(live)
    }

    /// A shared receive context need not be enabled before receives are posted to it.
    #[cold]
    fn live_at_last(&self) -> Result<&Live> {
        if matches!(self.shared.role, Role::Pool(_)) {
            self.enable()?;
        }
        self.live()
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
        let (transmits, receives) = (flags & FI_TRANSMIT != 0, flags & FI_RECV != 0);
        let mut bound = self.bound();
        if transmits && bound.transmit_queue.is_some() || receives && bound.receive_queue.is_some() {
            return Err(-FI_EINVAL);
        }
        let bind = |place: &mut Option<(Arc<Queue>, bool)>, wanted: bool| {
            if wanted {
                *place = Some((queue.clone(), selective));
            }
        };
        if let Some(live) = self.shared.live.get() {
            let posted = transmits && live.sends.load(Ordering::Relaxed)
                || receives && (live.receives.load(Ordering::Relaxed) || bound.pool.is_some());
            if posted {
                return self.too_late("a queue", "before anything is posted");
            }
            let mut more = Bound::default();
            bind(&mut more.transmit_queue, transmits);
            bind(&mut more.receive_queue, receives);
            self.bind_late(live, &more)?;
            if transmits {
                live.selective_transmit.store(selective, Ordering::Relaxed);
            }
            if receives {
                live.selective_receive.store(selective, Ordering::Relaxed);
                self.report_receives(live, queue);
            }
        }
        bind(&mut bound.transmit_queue, transmits);
        bind(&mut bound.receive_queue, receives);
        Ok(())
    }

    fn bind_counter(&self, count: &Arc<Count>, kinds: u64) -> Result {
        let known = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
        if kinds & known == 0 || kinds & !known != 0 {
            return Err(-FI_EINVAL);
        }
        let mut bound = self.bound();
        if bound.counts(kinds) {
            log::info!(EP_CTRL, "a counter is bound for some of this already");
            return Err(-FI_EINVAL);
        }
        if let Some(live) = self.shared.live.get() {
            let more = Bound { counters: vec![(count.clone(), kinds)], ..Bound::default() };
            self.bind_late(live, &more)?;
        }
        bound.counters.push((count.clone(), kinds));
        Ok(())
    }

    /// Binds queues and counters to an endpoint that is enabled.
    fn bind_late(&self, live: &Live, more: &Bound) -> Result {
        if matches!(self.shared.role, Role::Pool(_)) {
            // Endpoints that share its receives have taken over where it reports.
            return self.too_late("queues and counters of a shared receive context", "before it is used");
        }
        let options = more.options(live.sides.transmit, live.sides.receive);
        live.endpoint.bind(options).map_err(|error| guard::errno(&error))
    }

    #[cold]
    fn too_late(&self, what: &str, when: &str) -> Result {
        log::info!(EP_CTRL, "{what} must be bound {when}");
        Err(-FI_EOPBADSTATE)
    }

    /// Receives report to this queue, under the names of the address vector.
    fn report_receives(&self, live: &Live, queue: &Arc<Queue>) {
        let _ = live.receive_queue.set(queue.clone());
        if let Some(peers) = &live.peers {
            queue.names_from(peers);
            if self.shared.attributes.caps & FI_SOURCE_ERR != 0 {
                queue.demand_names();
            }
        }
    }

    pub(crate) fn enable(&self) -> Result {
        if self.shared.live.get().is_some() {
            return Ok(());
        }
        let shared = &self.shared;
        let live = match &shared.role {
            Role::Whole => self.open_whole()?,
            Role::Part(part) => self.open_part(part)?,
            Role::Pool(pool) => self.open_pool(pool)?,
        };
        // Another thread that was first has enabled it as well.
        if shared.live.set(live).is_ok()
            && let Some(variable) = shared.live.get().and_then(|live| live.variable.as_ref())
        {
            let elsewhere = self.bound().pool.is_some();
            variable.start(shared.attributes.receive_caps & FI_MSG != 0 && !elsewhere);
        }
        Ok(())
    }

    /// Whether everything that reports is there. `elsewhere`: what receives report has a place without this endpoint's.
    fn check_bound(&self, bound: &Bound, elsewhere: bool) -> Result {
        let sends = self.shared.attributes.transmit_caps != 0;
        // Who is only written to and read from has no receives that could end.
        let receives = self.shared.attributes.receive_caps & (FI_MSG | FI_TAGGED) != 0;
        if sends && bound.transmit_queue.is_none() && !bound.counts(FI_SEND | FI_WRITE | FI_READ) {
            log::info!(
                EP_CTRL,
                "an endpoint that sends needs a completion queue or counter: bind one with FI_TRANSMIT"
            );
            return Err(-FI_ENOCQ);
        }
        if receives && self.shared.attributes.is_variable() && bound.receive_queue.is_none() && !elsewhere {
            log::info!(EP_CTRL, "FI_VARIABLE_MSG needs a completion queue to tell of messages: bind one with FI_RECV");
            return Err(-FI_ENOCQ);
        }
        if receives && bound.receive_queue.is_none() && !bound.counts(FI_RECV) && !elsewhere {
            log::info!(EP_CTRL, "an endpoint that receives needs a completion queue or counter: bind one with FI_RECV");
            return Err(-FI_ENOCQ);
        }
        Ok(())
    }

    fn open_whole(&self) -> Result<Live> {
        let (shared, bound) = (&self.shared, self.bound());
        if bound.peers.is_none() && shared.attributes.kind != FI_EP_MSG {
            log::info!(EP_CTRL, "an endpoint without connections needs an address vector: bind one");
            return Err(-FI_ENOAV);
        }
        if shared.attributes.receive_contexts == FI_SHARED_CONTEXT && bound.pool.is_none() {
            log::info!(EP_CTRL, "rx_ctx_cnt says that a shared receive context will be bound: bind one");
            return Err(-FI_EINVAL);
        }
        let pool = bound.pool.as_ref().map(|pool| pool.live_receive().map(|live| (pool, live))).transpose()?;
        let elsewhere =
            pool.is_some_and(|(pool, live)| live.receive_queue.get().is_some() || pool.bound().counts(FI_RECV));
        self.check_bound(&bound, elsewhere)?;
        let options = EndpointOptions {
            kind: kind_of(shared.attributes.kind),
            number: shared.domain.number_for(&shared.attributes),
            receives_from: pool.map(|(_, live)| live.endpoint.clone()),
            ..bound.options(true, true)
        };
        let is_main = options.number.is_some();
        let endpoint = shared.domain.nic.open_endpoint(options).map_err(|error| {
            if is_main {
                shared.domain.release_main();
            }
            guard::errno(&error)
        })?;
        if let Some((_, live)) = pool {
            let queue = bound.receive_queue.as_ref().map(|(queue, _)| queue);
            if let Some(pool) = &live.pool {
                pool.link(bound.peers.as_deref(), queue);
            }
            if let (Some(queue), Some(peers)) = (live.receive_queue.get(), &bound.peers) {
                queue.names_from(peers);
                if shared.attributes.caps & FI_SOURCE_ERR != 0 {
                    queue.demand_names();
                }
            }
        }
        Ok(self.lives(endpoint, &bound, bound.peers.clone(), None))
    }

    fn open_part(&self, part: &Part) -> Result<Live> {
        let bound = self.bound();
        let peers = part.scalable.peers().ok_or_else(|| {
            log::info!(EP_CTRL, "bind an address vector to the scalable endpoint before its contexts are enabled");
            -FI_ENOAV
        })?;
        self.check_bound(&bound, false)?;
        let endpoint = part.endpoint()?;
        let transmits = part.side == Side::Transmit;
        endpoint.bind(bound.options(transmits, !transmits)).map_err(|error| guard::errno(&error))?;
        Ok(self.lives(endpoint, &bound, Some(peers), None))
    }

    fn open_pool(&self, pool: &Arc<Pool>) -> Result<Live> {
        let bound = self.bound();
        let kind = pool.kind(self.shared.attributes.kind);
        let options = EndpointOptions { kind: kind_of(kind), ..bound.options(false, true) };
        let endpoint = self.shared.domain.nic.open_endpoint(options).map_err(|error| guard::errno(&error))?;
        Ok(self.lives(endpoint, &bound, bound.peers.clone(), Some(pool.clone())))
    }

    fn lives(
        &self,
        endpoint: weft::Endpoint,
        bound: &Bound,
        peers: Option<BoundPeers>,
        pool: Option<Arc<Pool>>,
    ) -> Live {
        let attributes = &self.shared.attributes;
        let is_selective = |queue: &Option<(Arc<Queue>, bool)>| queue.as_ref().is_some_and(|(_, selective)| *selective);
        let (transmit, receive) = match &self.shared.role {
            Role::Whole => (true, true),
            Role::Part(part) => (part.side == Side::Transmit, part.side == Side::Receive),
            Role::Pool(_) => (false, true),
        };
        let shares_receives = pool.is_some() || bound.pool.is_some();
        let receives = receive && (bound.receive_queue.is_some() || shares_receives);
        let is_variable = receive && attributes.is_variable();
        let variable = is_variable.then(|| {
            let face = self.shared.face.load(Ordering::Acquire);
            Arc::new(Variable::new(&self.shared.domain.announcements, &endpoint, face))
        });
        let live = Live {
            endpoint,
            peers,
            connected: AtomicU32::new(NOT_CONNECTED),
            selective_transmit: AtomicBool::new(is_selective(&bound.transmit_queue)),
            selective_receive: AtomicBool::new(is_selective(&bound.receive_queue)),
            directed: attributes.caps & FI_DIRECTED_RECV != 0,
            order: Order::new(attributes.message_order),
            receive_queue: OnceLock::new(),
            pool,
            sides: Sides { transmit, receive },
            sends: AtomicBool::new(transmit && bound.transmit_queue.is_some()),
            receives: AtomicBool::new(receives),
            failed: AtomicBool::new(false),
            variable,
        };
        if let Some((queue, _)) = &bound.receive_queue {
            self.report_receives(&live, queue);
        }
        live
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

/// The NIC's kind of endpoint for a type of libfabric's.
fn kind_of(kind: u32) -> EndpointKind {
    if kind == FI_EP_DGRAM { EndpointKind::Datagram } else { EndpointKind::Reliable }
}

static FID_OPERATIONS: fi_ops = crate::no::operations(close, bind, control);

static OPERATIONS: fi_ops_ep = fi_ops_ep {
    size: size_of::<fi_ops_ep>(),
    cancel: Some(cancel),
    getopt: Some(get_option),
    setopt: Some(set_option),
    tx_ctx: Some(crate::no::tx_ctx),
    rx_ctx: Some(crate::no::rx_ctx),
    rx_size_left: Some(receives_left),
    tx_size_left: Some(transmits_left),
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
        let endpoint = Endpoint::new(domain, attributes, Role::Whole, name);
        // SAFETY: `into` was checked.
        unsafe { *into = endpoint.face(FI_CLASS_EP, context) };
        Ok(())
    })
}

impl Endpoint {
    /// Opens a handle for it.
    pub(crate) fn face(self, class: usize, context: *mut c_void) -> *mut fid_ep {
        use crate::no::tables;
        // Calls for which it was not opened are refused by their tables, at no cost for the others.
        let has = |capability| self.shared.attributes.caps & capability != 0;
        let is_variable = self.shared.attributes.is_variable();
        let face = fid_ep {
            fid: handle::fid_of(class, context, &FID_OPERATIONS),
            ops: handle::table(&OPERATIONS),
            cm: handle::table(&crate::cm::OPERATIONS),
            msg: handle::table(match (has(FI_MSG), is_variable) {
                (true, false) => &crate::msg::OPERATIONS,
                (true, true) => &variable::MESSAGES,
                (false, _) => &tables::MSG,
            }),
            rma: handle::table(if has(FI_RMA) { &crate::rma::OPERATIONS } else { &tables::RMA }),
            tagged: handle::table(match (has(FI_TAGGED), is_variable) {
                (true, false) => &crate::tagged::OPERATIONS,
                (true, true) => &variable::TAGGED,
                (false, _) => &tables::TAGGED,
            }),
            atomic: handle::table(if has(FI_ATOMIC) { &crate::atomic::OPERATIONS } else { &tables::ATOMIC }),
            collective: std::ptr::null_mut(),
        };
        let (shared, is_alias) = (self.shared.clone(), self.is_alias);
        let face = handle::open(face, Arc::new(self));
        if !is_alias {
            shared.face.store(face, Ordering::Release);
        }
        face
    }
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of an endpoint's table.
        let endpoint = unsafe { handle::of_fid::<Endpoint>(fid)? };
        if !endpoint.is_alias && endpoint.shared.aliases.load(Ordering::Relaxed) > 0 {
            return Err(-FI_EBUSY);
        }
        // SAFETY: as above.
        unsafe { handle::close::<Endpoint>(fid) }
    })
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if self.is_alias {
            self.shared.aliases.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(connection) = self.connection().take()
            && let Ok(connections) = self.domain.connections()
        {
            connections.forget(connection.context());
        }
        let is_whole = matches!(self.role, Role::Whole);
        if is_whole && self.live.get().is_some_and(|live| live.endpoint.address().endpoint == 0) {
            self.domain.release_main();
        }
    }
}

unsafe extern "C" fn bind(fid: *mut fid, to: *mut fid, flags: u64) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of an endpoint's table.
        let (endpoint, other) = unsafe { (handle::of_fid::<Endpoint>(fid)?, to.as_ref().ok_or(-FI_EINVAL)?) };
        let is_enabled = endpoint.shared.live.get().is_some();
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
                endpoint.bind_counter(count, flags)
            }
            // What they decide about an endpoint is decided when it is enabled.
            FI_CLASS_AV | FI_CLASS_SRX_CTX if is_enabled => {
                endpoint.too_late("address vectors and shared receive contexts", "before the endpoint is enabled")
            }
            FI_CLASS_AV => {
                // SAFETY: the class says what it is.
                let peers = unsafe { handle::of_fid::<Peers>(to)? };
                let mut bound = endpoint.bound();
                let is_part = matches!(endpoint.shared.role, Role::Part(_));
                if bound.peers.is_some() || is_part || endpoint.shared.attributes.kind == FI_EP_MSG {
                    return Err(-FI_EINVAL);
                }
                bound.peers = Some(BoundPeers::new(peers));
                Ok(())
            }
            FI_CLASS_SRX_CTX => {
                // SAFETY: the class says what it is.
                let pool = unsafe { handle::of_fid::<Endpoint>(to)? };
                let (Role::Whole, Role::Pool(links)) = (&endpoint.shared.role, &pool.shared.role) else {
                    return Err(-FI_EINVAL);
                };
                let mut bound = endpoint.bound();
                if bound.pool.is_some() || !Arc::ptr_eq(&pool.shared.domain, &endpoint.shared.domain) {
                    return Err(-FI_EINVAL);
                }
                links.serve(endpoint.shared.attributes.kind)?;
                bound.pool = Some(pool.clone());
                Ok(())
            }
            FI_CLASS_STX_CTX => {
                // SAFETY: the class says what it is.
                let context = unsafe { handle::of_fid::<SharedTransmit>(to)? };
                let mut bound = endpoint.bound();
                let is_whole = matches!(endpoint.shared.role, Role::Whole);
                if bound.shared_transmit.is_some()
                    || !is_whole
                    || !Arc::ptr_eq(&context.domain, &endpoint.shared.domain)
                {
                    return Err(-FI_EINVAL);
                }
                bound.shared_transmit = Some(context.clone());
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
                endpoint.shared.aliases.fetch_add(1, Ordering::Relaxed);
                let copy = Endpoint {
                    shared: endpoint.shared.clone(),
                    is_alias: true,
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
        let live = endpoint.live()?;
        if let Some(variable) = &live.variable {
            // The NIC has contexts of ours for receives.
            let cancelled = variable.cancel(context);
            return if cancelled { Ok(0) } else { Err(-FI_ENOENT) };
        }
        let cancelled = live.endpoint.cancel(context as u64) || {
            // The NIC has another context for a multi-receive.
            let numbers = endpoint.shared.domain.multi_receives.find(context as u64);
            numbers.into_iter().any(|number| live.endpoint.cancel(number))
        };
        if cancelled { Ok(0) } else { Err(-FI_ENOENT) }
    })
}

unsafe extern "C" fn receives_left(ep: *mut fid_ep) -> isize {
    guard::count(|| {
        // SAFETY: what C gives to a function of an endpoint's table.
        let live = unsafe { handle::of::<Endpoint>(ep)? }.live_receive()?;
        weft::raw::room(&live.endpoint, Side::Receive).map_err(|error| guard::errno(&error))
    })
}

unsafe extern "C" fn transmits_left(ep: *mut fid_ep) -> isize {
    guard::count(|| {
        // SAFETY: what C gives to a function of an endpoint's table.
        let live = unsafe { handle::of::<Endpoint>(ep)? }.live_transmit()?;
        weft::raw::room(&live.endpoint, Side::Transmit).map_err(|error| guard::errno(&error))
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
            // News of a message come without any of its bytes.
            FI_OPT_BUFFERED_MIN | FI_OPT_BUFFERED_LIMIT if endpoint.shared.attributes.is_variable() => 0,
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

/// `FI_OPT_CUDA_API_PERMITTED`. Memory of CUDA is copied by calls of its library: an endpoint that takes such memory cannot
/// do without, and one that does not makes none.
///
/// # Safety
/// `value` is null or points to `length` bytes.
unsafe fn permit_cuda(endpoint: &Endpoint, value: *const c_void, length: usize) -> Result {
    if value.is_null() || length != size_of::<bool>() {
        return Err(-FI_EINVAL);
    }
    // SAFETY: as the caller says; any byte is valid.
    let permitted = unsafe { value.cast::<u8>().read() } != 0;
    let present = device::operations(device::Kind::Cuda).is_ok_and(|cuda| cuda.devices() > 0);
    match (present, permitted || endpoint.shared.attributes.caps & FI_HMEM == 0) {
        (false, _) => Err(-FI_EINVAL),
        (true, false) => Err(-FI_EOPNOTSUPP),
        (true, true) => Ok(()),
    }
}

unsafe extern "C" fn set_option(fid: fid_t, level: c_int, option: c_int, value: *const c_void, length: usize) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of an endpoint's table.
        let endpoint = unsafe { handle::of_fid::<Endpoint>(fid)? };
        if (level, option) == (FI_OPT_ENDPOINT, FI_OPT_CUDA_API_PERMITTED) {
            // SAFETY: as the caller says.
            return unsafe { permit_cuda(endpoint, value, length) };
        }
        let is_known = match option {
            FI_OPT_MIN_MULTI_RECV => true,
            FI_OPT_BUFFERED_MIN | FI_OPT_BUFFERED_LIMIT => endpoint.shared.attributes.is_variable(),
            _ => false,
        };
        if level != FI_OPT_ENDPOINT || !is_known {
            return Err(-FI_ENOPROTOOPT);
        }
        if value.is_null() || length != size_of::<usize>() {
            return Err(-FI_EINVAL);
        }
        // SAFETY: it has that many bytes.
        let least = unsafe { value.cast::<usize>().read_unaligned() };
        match option {
            FI_OPT_MIN_MULTI_RECV => {}
            // The most that there can be is nothing.
            FI_OPT_BUFFERED_LIMIT if least == 0 || least == usize::MAX => return Ok(()),
            FI_OPT_BUFFERED_MIN if least == 0 => return Ok(()),
            _ => return Err(-FI_EMSGSIZE),
        }
        endpoint.shared.multi_receive_least.store(least, Ordering::Relaxed);
        Ok(())
    })
}
