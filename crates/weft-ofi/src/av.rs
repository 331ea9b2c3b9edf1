//! Address vectors: names of peers.
//!
//! A `fi_addr_t` is an index, whether the vector is a map or a table; with receive contexts, the context's index stands
//! in its upper bits. Sends look up the peer's name in the NIC without a lock; everything else goes through one.

use std::collections::{HashMap, VecDeque};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use weft::{Address, PeerId};

use crate::abi::*;
use crate::domain::Domain;
use crate::eq::EventQueue;
use crate::guard::{self, Result};
use crate::handle::{self, Noun};
use crate::limits::{ADDRESS_CHUNK, ADDRESS_CHUNKS, RECEIVE_CONTEXT_BITS_MAX};
use crate::shared_av::SharedVector;
use crate::{address, interface, log};

/// The peers of one vector.
pub(crate) struct Peers {
    domain: Arc<Domain>,
    pub(crate) format: u32,
    /// Bits of a `fi_addr_t` that name a receive context.
    context_bits: u32,
    /// Name in the NIC of each index.
    peer_of: Slots,
    /// Index of each name in the NIC.
    index_of: Slots,
    /// Names of receive contexts other than the first.
    contexts: RwLock<HashMap<(u64, u32), PeerId>>,
    table: Mutex<Table>,
    /// Endpoints that are bound to it.
    users: AtomicUsize,
    /// Where other processes find them, or have put them.
    shared: Option<SharedVector>,
    /// Where insertions report, if they report later.
    events: OnceLock<Arc<EventQueue>>,
    reports: bool,
}

// SAFETY: `fid_av` begins with its `fid`.
unsafe impl Noun for Peers {
    type Face = fid_av;
    const MARK: u64 = u64::from_be_bytes(*b"weft-av ");
}

/// A vector as endpoints have it that are bound to it: while they are, it cannot be closed. Completion queues that only
/// ask it for names do not count.
pub(crate) struct BoundPeers(Arc<Peers>);

impl BoundPeers {
    pub(crate) fn new(peers: &Arc<Peers>) -> BoundPeers {
        peers.users.fetch_add(1, Ordering::Relaxed);
        BoundPeers(peers.clone())
    }
}

impl Clone for BoundPeers {
    fn clone(&self) -> BoundPeers {
        BoundPeers::new(&self.0)
    }
}

impl Deref for BoundPeers {
    type Target = Arc<Peers>;

    fn deref(&self) -> &Arc<Peers> {
        &self.0
    }
}

impl Drop for BoundPeers {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Default)]
struct Table {
    addresses: Vec<Option<Address>>,
    free: VecDeque<u64>,
}

/// Numbers by index that many threads may read while one writes: chunks that never move, each twice as long as the one
/// before.
struct Slots {
    chunks: [OnceLock<Box<[AtomicU64]>>; ADDRESS_CHUNKS],
}

const NOTHING: u64 = u64::MAX;

impl Slots {
    fn new() -> Slots {
        Slots { chunks: [const { OnceLock::new() }; ADDRESS_CHUNKS] }
    }

    /// Which chunk an index is in, and where there.
    #[inline]
    fn place(index: u64) -> Option<(usize, usize)> {
        let shifted = index.checked_add(ADDRESS_CHUNK)?;
        let chunk = (shifted / ADDRESS_CHUNK).ilog2();
        Some((chunk as usize, (shifted - (ADDRESS_CHUNK << chunk)) as usize))
    }

    #[inline(always)]
    fn get(&self, index: u64) -> Option<u64> {
        let [first, ..] = &self.chunks;
        let value = match first.get().and_then(|first| first.get(index as usize)) {
            Some(value) => value,
            None => self.find(index)?,
        };
        let value = value.load(Ordering::Acquire);
        (value != NOTHING).then_some(value)
    }

    #[inline(never)]
    fn find(&self, index: u64) -> Option<&AtomicU64> {
        let (chunk, place) = Slots::place(index)?;
        self.chunks.get(chunk)?.get()?.get(place)
    }

    fn set(&self, index: u64, value: u64) -> Option<()> {
        let (chunk, place) = Slots::place(index)?;
        let length = ADDRESS_CHUNK << chunk;
        let chunk = self.chunks.get(chunk)?.get_or_init(|| (0..length).map(|_| AtomicU64::new(NOTHING)).collect());
        chunk.get(place)?.store(value, Ordering::Release);
        Some(())
    }
}

impl Peers {
    /// The NIC's name of a peer.
    #[inline]
    pub(crate) fn peer(&self, name: fi_addr_t) -> Result<PeerId> {
        let (index, context) = self.split(name);
        if context != 0 {
            return self.context_peer(index, context);
        }
        match self.peer_of.get(index) {
            Some(peer) => Ok(PeerId(peer as u32)),
            None => self.fetch(index),
        }
    }

    /// Brings an address that another process has inserted.
    #[cold]
    fn fetch(&self, index: u64) -> Result<PeerId> {
        let address = self.shared.as_ref().and_then(|shared| shared.get(index)).ok_or(-FI_EINVAL)?;
        let mut table = self.table();
        if let Some(peer) = self.peer_of.get(index) {
            return Ok(PeerId(peer as u32));
        }
        let peer = self.domain.name_peer(address)?;
        self.place(&mut table, index, address, peer)?;
        Ok(peer)
    }

    /// The NIC's name of a peer as the source of messages: it is the same whichever context sends.
    pub(crate) fn source(&self, name: fi_addr_t) -> Result<PeerId> {
        self.peer(self.split(name).0)
    }

    #[inline]
    fn split(&self, name: fi_addr_t) -> (u64, u32) {
        match self.context_bits {
            0 => (name, 0),
            bits => (name & (u64::MAX >> bits), (name >> (64 - bits)) as u32),
        }
    }

    #[cold]
    fn context_peer(&self, index: u64, context: u32) -> Result<PeerId> {
        let contexts = self.contexts.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(peer) = contexts.get(&(index, context)) {
            return Ok(*peer);
        }
        drop(contexts);
        let address = self.address(index).ok_or(-FI_EINVAL)?;
        let address = Address { endpoint: address.endpoint.wrapping_add(context), ..address };
        let mut contexts = self.contexts.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(peer) = contexts.get(&(index, context)) {
            return Ok(*peer);
        }
        let peer = self.domain.name_peer(address)?;
        let name = index | u64::from(context) << (64 - self.context_bits);
        self.index_of.set(u64::from(peer.0), name).ok_or(-FI_ENOMEM)?;
        contexts.insert((index, context), peer);
        Ok(peer)
    }

    /// The name that a peer of the NIC has here.
    #[inline]
    pub(crate) fn name(&self, peer: PeerId) -> Option<fi_addr_t> {
        self.index_of.get(u64::from(peer.0))
    }

    /// Whether its addresses are IPv6: else texts are resolved to IPv4.
    fn wants_ip6(&self) -> Option<bool> {
        match self.format {
            FI_SOCKADDR_IN => Some(false),
            FI_SOCKADDR_IN6 => Some(true),
            _ => None,
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn address(&self, index: u64) -> Option<Address> {
        let known = self.table().addresses.get(usize::try_from(index).ok()?).copied().flatten();
        known.or_else(|| self.shared.as_ref()?.get(index))
    }

    /// Names a peer.
    pub(crate) fn insert(&self, address: Address) -> Result<fi_addr_t> {
        let peer = self.domain.name_peer(address)?;
        let mut table = self.table();
        let index = match &self.shared {
            Some(shared) => shared.insert(&address),
            None => Ok(table.free.pop_front().unwrap_or(table.addresses.len() as u64)),
        };
        let placed = index.and_then(|index| self.place(&mut table, index, address, peer).map(|()| index));
        drop(table);
        if placed.is_err() {
            self.domain.forget_peer(peer);
        }
        placed
    }

    /// Puts a peer at an index.
    fn place(&self, table: &mut Table, index: u64, address: Address, peer: PeerId) -> Result {
        let told = self.peer_of.set(index, u64::from(peer.0)).and_then(|()| {
            // Of an address that has several names, the first is told.
            let known = self.index_of.get(u64::from(peer.0));
            if known.is_none() { self.index_of.set(u64::from(peer.0), index) } else { Some(()) }
        });
        told.ok_or(-FI_ENOMEM)?;
        let index = index as usize;
        if table.addresses.len() <= index {
            table.addresses.resize(index + 1, None);
        }
        if let Some(slot) = table.addresses.get_mut(index) {
            *slot = Some(address);
        }
        Ok(())
    }

    fn remove(&self, name: fi_addr_t) -> Result {
        let (index, _) = self.split(name);
        if let Some(shared) = &self.shared {
            self.address(index).ok_or(-FI_EINVAL)?;
            shared.remove(index)?;
        }
        match self.forget(index) {
            // Another process has inserted it, and nobody here has used it.
            Err(_) if self.shared.is_some() => Ok(()),
            result => result,
        }
    }

    /// Ends a name in this process.
    fn forget(&self, index: u64) -> Result {
        let mut table = self.table();
        let slot = usize::try_from(index).ok().and_then(|index| table.addresses.get_mut(index));
        slot.and_then(Option::take).ok_or(-FI_EINVAL)?;
        if self.shared.is_none() {
            table.free.push_back(index);
        }
        let Some(peer) = self.peer_of.get(index).map(|peer| PeerId(peer as u32)) else { return Ok(()) };
        self.peer_of.set(index, NOTHING);
        if self.name(peer) == Some(index) {
            let other = (0..).zip(&table.addresses).find_map(|(other, address)| {
                (address.is_some() && self.peer_of.get(other) == Some(u64::from(peer.0))).then_some(other)
            });
            self.index_of.set(u64::from(peer.0), other.unwrap_or(NOTHING));
        }
        let mut contexts = self.contexts.write().unwrap_or_else(PoisonError::into_inner);
        contexts.retain(|(of, _), peer| {
            if *of == index {
                self.index_of.set(u64::from(peer.0), NOTHING);
                self.domain.forget_peer(*peer);
            }
            *of != index
        });
        self.domain.forget_peer(peer);
        Ok(())
    }

    /// Forgets all names.
    fn clear(&self) {
        let count = self.table().addresses.len() as u64;
        for index in 0..count {
            // Those that were removed are gone already.
            let _ = self.forget(index);
        }
    }

    /// The first address that a node and a service name.
    ///
    /// # Safety
    /// Both are null, or texts that end with 0.
    unsafe fn resolve(&self, node: *const c_char, service: *const c_char) -> Result<SocketAddr> {
        // SAFETY: as the caller says.
        let (node, service) = unsafe { (interface::text(node)?, interface::text(service)?) };
        let (Some(node), Some(service)) = (node, service) else { return Err(-FI_EINVAL) };
        let found = interface::resolve(Some(node), Some(service), self.wants_ip6(), false)?;
        found.first().copied().ok_or(-FI_EADDRNOTAVAIL)
    }

    /// Inserts many, tells each one's name or error, and gives how many were inserted.
    ///
    /// # Safety
    /// `names` is null or has room for all; so has `context` where the flags say that errors go there.
    unsafe fn insert_all(
        &self,
        fid: *mut fid,
        addresses: impl Iterator<Item = Result<Address>>,
        names: *mut fi_addr_t,
        flags: u64,
        context: *mut c_void,
    ) -> Result<usize> {
        if self.reports && self.events.get().is_none() {
            log::info!(AV, "bind an event queue first: the vector was opened with FI_EVENT");
            return Err(-FI_ENOEQ);
        }
        let errors = if flags & FI_SYNC_ERR != 0 { context.cast::<c_int>() } else { std::ptr::null_mut() };
        if flags & FI_SYNC_ERR != 0 && errors.is_null() {
            return Err(-FI_EINVAL);
        }
        let mut inserted = 0;
        for (index, address) in addresses.enumerate() {
            let name = address.and_then(|address| self.insert(address));
            inserted += usize::from(name.is_ok());
            if !names.is_null() {
                // SAFETY: as the caller says.
                unsafe { names.add(index).write(name.unwrap_or(FI_ADDR_NOTAVAIL)) };
            }
            if !errors.is_null() {
                // SAFETY: as the caller says.
                unsafe { errors.add(index).write(name.err().map_or(0, |error| -error)) };
            }
            if let (Err(error), Some(events)) = (name, self.events.get()) {
                events.push_error(fid, context, index as u64, -error);
            }
        }
        match self.events.get() {
            None => Ok(inserted),
            Some(events) => {
                events.push_entry(FI_AV_COMPLETE, fid, context, inserted as u64);
                Ok(0)
            }
        }
    }
}

static FID_OPERATIONS: fi_ops = crate::no::operations(close, bind, crate::no::control);

static OPERATIONS: fi_ops_av = fi_ops_av {
    size: size_of::<fi_ops_av>(),
    insert: Some(insert),
    insertsvc: Some(insert_service),
    insertsym: Some(insert_range),
    remove: Some(remove),
    lookup: Some(lookup),
    straddr: Some(to_text),
    av_set: None,
    insert_auth_key: None,
    lookup_auth_key: None,
    set_user_id: None,
};

/// `fi_av_open`.
pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    attributes: *mut fi_av_attr,
    into: *mut *mut fid_av,
    context: *mut c_void,
) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of a domain's table.
        let (domain, attributes) = unsafe { (handle::of::<Domain>(domain)?, attributes.as_mut()) };
        let attributes = attributes.ok_or(-FI_EINVAL)?;
        if into.is_null() {
            return Err(-FI_EINVAL);
        }
        let bits = u32::try_from(attributes.rx_ctx_bits).map_err(|_| -FI_EINVAL)?;
        if bits > RECEIVE_CONTEXT_BITS_MAX {
            log::warning!(AV, "rx_ctx_bits is {bits}: at most {RECEIVE_CONTEXT_BITS_MAX} are supported");
            return Err(-FI_EINVAL);
        }
        match attributes.r#type {
            FI_AV_UNSPEC => attributes.r#type = FI_AV_TABLE,
            FI_AV_MAP | FI_AV_TABLE => {}
            _ => return Err(-FI_EINVAL),
        }
        if attributes.flags & !(FI_EVENT | FI_READ | FI_SYMMETRIC) != 0 {
            return Err(-FI_EINVAL);
        }
        let read_only = attributes.flags & FI_READ != 0;
        let shared = match attributes.name.is_null() {
            true if read_only => {
                log::info!(AV, "only a shared address vector can be opened with FI_READ: name it");
                return Err(-FI_EINVAL);
            }
            true => None,
            false => {
                // SAFETY: a text that ends with 0.
                let name = unsafe { CStr::from_ptr(attributes.name) };
                let shared = SharedVector::open(name, read_only, attributes.map_addr as usize)?;
                attributes.map_addr = shared.names();
                Some(shared)
            }
        };
        let peers = Peers {
            domain: domain.clone(),
            format: domain.format,
            context_bits: bits,
            peer_of: Slots::new(),
            index_of: Slots::new(),
            contexts: RwLock::default(),
            table: Mutex::default(),
            users: AtomicUsize::new(0),
            shared,
            events: OnceLock::new(),
            reports: attributes.flags & FI_EVENT != 0,
        };
        let fid = handle::fid_of(FI_CLASS_AV, context, &FID_OPERATIONS);
        let face = fid_av { fid, ops: handle::table(&OPERATIONS) };
        // SAFETY: `into` was checked.
        unsafe { *into = handle::open(face, Arc::new(peers)) };
        Ok(())
    })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of an address vector's table.
        let peers = unsafe { handle::of_fid::<Peers>(fid)? };
        if peers.users.load(Ordering::Relaxed) > 0 {
            return Err(-FI_EBUSY);
        }
        if let Some(shared) = &peers.shared {
            shared.unlink();
        }
        peers.clear();
        // SAFETY: as above. Queues that told names from it may go on.
        unsafe { handle::close_in_use::<Peers>(fid) }
    })
}

unsafe extern "C" fn bind(fid: *mut fid, to: *mut fid, _flags: u64) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of an address vector's table; the class of the other is looked at.
        let (peers, events) = unsafe { (handle::of_fid::<Peers>(fid)?, EventQueue::of_any(to)?) };
        if !peers.reports || peers.events.set(events.clone()).is_err() {
            log::info!(AV, "an event queue is bound once, to a vector that was opened with FI_EVENT");
            return Err(-FI_EINVAL);
        }
        Ok(())
    })
}

unsafe extern "C" fn insert(
    av: *mut fid_av,
    pointer: *const c_void,
    count: usize,
    names: *mut fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    result(|| {
        // SAFETY: what C gives to a function of an address vector's table.
        let peers = unsafe { handle::of::<Peers>(av)? };
        let known = FI_MORE | FI_SYNC_ERR;
        if peers.shared.as_ref().is_some_and(|shared| !shared.is_writable()) {
            log::info!(AV, "the vector was opened with FI_READ");
            return Err(-FI_EACCES);
        }
        if flags & !known != 0 {
            return Err(-FI_EINVAL);
        }
        if pointer.is_null() && count > 0 {
            return Err(-FI_EINVAL);
        }
        let format = peers.format;
        let addresses = (0..count).map(|index| {
            if format == FI_ADDR_STR {
                // SAFETY: text comes as a list of pointers.
                return unsafe { address::read(format, pointer.cast::<*const c_void>().add(index).read()) };
            }
            // SAFETY: there are `count` addresses of the format's length, one behind the other.
            unsafe { address::read(format, pointer.byte_add(index * address::length(format))) }
        });
        // SAFETY: as the caller of the interface promises.
        unsafe { peers.insert_all(av.cast(), addresses, names, flags, context) }
    })
}

unsafe extern "C" fn insert_service(
    av: *mut fid_av,
    node: *const c_char,
    service: *const c_char,
    names: *mut fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    result(|| {
        // SAFETY: what C gives to a function of an address vector's table.
        let peers = unsafe { handle::of::<Peers>(av)? };
        // SAFETY: texts end with 0.
        let socket = unsafe { peers.resolve(node, service)? };
        let one = std::iter::once(Ok(Address { socket, endpoint: 0 }));
        // SAFETY: as the caller of the interface promises.
        unsafe { peers.insert_all(av.cast(), one, names, flags, context) }
    })
}

/// Addresses in a row: `nodes` of them, each with `services` ports, all ports of a node first.
unsafe extern "C" fn insert_range(
    av: *mut fid_av,
    node: *const c_char,
    nodes: usize,
    service: *const c_char,
    services: usize,
    names: *mut fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    result(|| {
        // SAFETY: what C gives to a function of an address vector's table.
        let peers = unsafe { handle::of::<Peers>(av)? };
        // SAFETY: texts end with 0.
        let first = unsafe { peers.resolve(node, service)? };
        let count = nodes.checked_mul(services).filter(|count| *count <= i32::MAX as usize).ok_or(-FI_EINVAL)?;
        let addresses = (0..count).map(|index| {
            let (node, service) = (index / services, index % services);
            let port = u16::try_from(usize::from(first.port()) + service).map_err(|_| -FI_EINVAL)?;
            let ip = match first.ip() {
                IpAddr::V4(ip) => IpAddr::V4(u32::from(ip).checked_add(node as u32).ok_or(-FI_EINVAL)?.into()),
                IpAddr::V6(ip) => IpAddr::V6(u128::from(ip).checked_add(node as u128).ok_or(-FI_EINVAL)?.into()),
            };
            Ok(Address { socket: SocketAddr::new(ip, port), endpoint: 0 })
        });
        // SAFETY: as the caller of the interface promises.
        unsafe { peers.insert_all(av.cast(), addresses, names, flags, context) }
    })
}

unsafe extern "C" fn remove(av: *mut fid_av, names: *mut fi_addr_t, count: usize, flags: u64) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of an address vector's table.
        let peers = unsafe { handle::of::<Peers>(av)? };
        if flags != 0 || (names.is_null() && count > 0) {
            return Err(-FI_EINVAL);
        }
        let mut result = Ok(());
        for index in 0..count {
            // SAFETY: there are `count` of them.
            let name = unsafe { names.add(index).read() };
            result = result.and(peers.remove(name));
        }
        result
    })
}

unsafe extern "C" fn lookup(av: *mut fid_av, name: fi_addr_t, into: *mut c_void, length: *mut usize) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of an address vector's table.
        let peers = unsafe { handle::of::<Peers>(av)? };
        let (index, context) = peers.split(name);
        let address = peers.address(index).ok_or(-FI_EINVAL)?;
        let address = Address { endpoint: address.endpoint.wrapping_add(context), ..address };
        // SAFETY: as the caller of the interface promises. An address that is cut is no error here: the length tells.
        match unsafe { address::write(peers.format, &address, into, length) } {
            Err(error) if error != -FI_ETOOSMALL => Err(error),
            _ => Ok(()),
        }
    })
}

unsafe extern "C" fn to_text(
    av: *mut fid_av,
    pointer: *const c_void,
    into: *mut c_char,
    length: *mut usize,
) -> *const c_char {
    guard::value(std::ptr::null(), || {
        // SAFETY: what C gives to a function of an address vector's table.
        let Ok(peers) = (unsafe { handle::of::<Peers>(av) }) else { return std::ptr::null() };
        // SAFETY: an address of the vector's format.
        let Ok(address) = (unsafe { address::read(peers.format, pointer) }) else { return std::ptr::null() };
        // SAFETY: as the caller of the interface promises.
        let Some(length) = (unsafe { length.as_mut() }) else { return std::ptr::null() };
        // SAFETY: `into` has that many bytes.
        *length = unsafe { interface::write_text(&address::to_text(&address), into, *length) };
        into
    })
}

/// Calls that give how many were inserted.
fn result(body: impl FnOnce() -> Result<usize>) -> c_int {
    c_int::try_from(guard::count(body)).unwrap_or(c_int::MAX)
}
