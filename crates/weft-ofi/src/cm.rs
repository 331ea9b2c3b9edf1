//! Names of endpoints, and their connections.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use weft::connection::{ConnectFailure, Connection, Event, Manager, listener_at};

use crate::abi::*;
use crate::ep::{Endpoint, Shared};
use crate::eq::{EventQueue, Source};
use crate::guard::{self, Result};
use crate::pep::{Asked, private_data};
use crate::{address, handle, log};

pub(crate) static OPERATIONS: fi_ops_cm = fi_ops_cm {
    size: size_of::<fi_ops_cm>(),
    setname: Some(set_name),
    getname: Some(get_name),
    getpeer: Some(get_peer),
    connect: Some(connect),
    listen: Some(crate::no::listen),
    accept: Some(accept),
    reject: Some(crate::no::reject),
    shutdown: Some(shutdown),
    join: Some(crate::no::join),
};

/// The connections of a domain's endpoints. Made when the first of them connects.
pub(crate) struct Connections {
    manager: Manager,
    ends: Mutex<HashMap<u64, End>>,
    next: AtomicU64,
}

/// An endpoint that connects or is connected.
struct End {
    endpoint: Weak<Shared>,
    events: Arc<EventQueue>,
    fid: usize,
    /// Accepted, and not told of yet.
    accepts: bool,
}

impl Connections {
    pub(crate) fn new(nic: &weft::Domain) -> Result<Connections> {
        let manager = Manager::new(nic).map_err(|error| guard::errno(&error))?;
        Ok(Connections { manager, ends: Mutex::default(), next: AtomicU64::new(1) })
    }

    fn ends(&self) -> MutexGuard<'_, HashMap<u64, End>> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a connection of an endpoint.
    fn begin(
        self: &Arc<Self>,
        endpoint: &Endpoint,
        fid: *mut fid,
        accepts: bool,
        begin: impl FnOnce(&Manager, u64) -> Result<Connection>,
    ) -> Result {
        let shared = endpoint.shared();
        let events = shared.events().ok_or_else(|| {
            log::info!(EP_CTRL, "bind an event queue before connecting");
            -FI_ENOEQ
        })?;
        let mut connection = shared.connection();
        if connection.is_some() {
            return Err(-FI_EISCONN);
        }
        events.add_source(self)?;
        let context = self.next.fetch_add(1, Ordering::Relaxed);
        let end = End { endpoint: Arc::downgrade(shared), events, fid: fid as usize, accepts };
        self.ends().insert(context, end);
        match begin(&self.manager, context) {
            Ok(begun) => {
                *connection = Some(begun);
                Ok(())
            }
            Err(error) => {
                self.ends().remove(&context);
                Err(error)
            }
        }
    }

    /// The endpoint is gone, or nothing will happen to its connection any more.
    pub(crate) fn forget(&self, context: u64) {
        self.ends().remove(&context);
    }

    fn tell(&self, event: Event) {
        let context = event.context();
        let mut ends = self.ends();
        let Some(end) = ends.get_mut(&context) else { return };
        end.accepts = false;
        let (fid, events) = (end.fid as *mut fid, end.events.clone());
        let Some(endpoint) = end.endpoint.upgrade() else { return };
        drop(ends);
        let nothing = std::ptr::null_mut();
        match event {
            Event::Connected { peer, data, .. } => {
                endpoint.set_connected(Some(peer));
                events.push_connection(FI_CONNECTED, fid, None, &data);
            }
            Event::Refused { data, .. } => {
                events.push_error_with(fid, nothing, 0, FI_ECONNREFUSED, data);
            }
            Event::Failed { failure, .. } => {
                let error = match failure {
                    ConnectFailure::NobodyListens | ConnectFailure::Withdrawn => FI_ECONNREFUSED,
                    ConnectFailure::Unreachable => FI_EHOSTUNREACH,
                    ConnectFailure::TimedOut => FI_ETIMEDOUT,
                    ConnectFailure::NoResources => FI_ENOMEM,
                    _ => FI_EOTHER,
                };
                log::info!(EP_CTRL, "not connected: {failure}");
                events.push_error(fid, nothing, 0, error);
            }
            Event::Shutdown { .. } if endpoint.set_connected(None) => {
                events.push_connection(FI_SHUTDOWN, fid, None, &[]);
            }
            _ => {}
        }
    }
}

impl Source for Connections {
    fn poll(&self) -> weft::Result<()> {
        while let Some(event) = self.manager.poll()? {
            self.tell(event);
        }
        Ok(())
    }

    fn expects(&self) -> bool {
        self.ends().values().any(|end| end.accepts)
    }

    fn try_wait(&self) -> weft::Result<bool> {
        self.manager.try_wait()
    }

    fn descriptor(&self) -> RawFd {
        self.manager.descriptor().as_raw_fd()
    }
}

/// Endpoints have the address of their NIC: only that can be set.
unsafe extern "C" fn set_name(fid: fid_t, from: *mut c_void, length: usize) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of an endpoint's table.
        let endpoint = unsafe { handle::of_fid::<Endpoint>(fid)? };
        let domain = &endpoint.shared().domain;
        if domain.format != FI_ADDR_STR && length < size_of::<libc::sockaddr_in>() {
            return Err(-FI_EINVAL);
        }
        // SAFETY: an address of the domain's format.
        let name = unsafe { address::read(domain.format, from)? };
        let here = domain.nic.local();
        let same = name.socket == here || (name.socket.port() == 0 && name.socket.ip() == here.ip());
        if same { Ok(()) } else { Err(-FI_EADDRNOTAVAIL) }
    })
}

unsafe extern "C" fn get_name(fid: fid_t, into: *mut c_void, length: *mut usize) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of an endpoint's table.
        let endpoint = unsafe { handle::of_fid::<Endpoint>(fid)? };
        // SAFETY: as the caller of the interface promises.
        unsafe { address::write(endpoint.shared().domain.format, &endpoint.name()?, into, length) }
    })
}

unsafe extern "C" fn get_peer(ep: *mut fid_ep, into: *mut c_void, length: *mut usize) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of an endpoint's table.
        let shared = unsafe { handle::of::<Endpoint>(ep)? }.shared();
        let peer = shared.connection().as_ref().and_then(Connection::address).ok_or(-FI_ENOTCONN)?;
        // SAFETY: as the caller of the interface promises.
        unsafe { address::write(shared.domain.format, &peer, into, length) }
    })
}

unsafe extern "C" fn connect(ep: *mut fid_ep, to: *const c_void, data: *const c_void, length: usize) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of an endpoint's table.
        let endpoint = unsafe { handle::of::<Endpoint>(ep)? };
        let shared = endpoint.shared();
        if shared.attributes.kind != FI_EP_MSG {
            return Err(-FI_EOPNOTSUPP);
        }
        let to = match to.is_null() {
            true => shared.attributes.destination.ok_or(-FI_EINVAL)?,
            // SAFETY: an address of the domain's format.
            false => unsafe { address::read(shared.domain.format, to)? },
        };
        // SAFETY: as the caller of the interface promises.
        let data = unsafe { private_data(data, length)? };
        endpoint.enable()?;
        let live = endpoint.live_transmit()?;
        let connections = shared.domain.connections()?;
        connections.begin(endpoint, ep.cast(), false, |manager, context| {
            let listener = listener_at(to.socket);
            manager.connect(&live.endpoint, listener, context, data).map_err(|error| guard::errno(&error))
        })
    })
}

unsafe extern "C" fn accept(ep: *mut fid_ep, data: *const c_void, length: usize) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of an endpoint's table.
        let endpoint = unsafe { handle::of::<Endpoint>(ep)? };
        let shared = endpoint.shared();
        // SAFETY: as the caller of the interface promises.
        let data = unsafe { private_data(data, length)? };
        endpoint.enable()?;
        let live = endpoint.live_transmit()?;
        let connections = shared.domain.connections()?;
        let asked = shared.attributes.handle();
        if asked.is_null() {
            log::info!(EP_CTRL, "only an endpoint that was opened with the info of FI_CONNREQ can accept");
            return Err(-FI_EINVAL);
        }
        connections.begin(endpoint, ep.cast(), true, |manager, context| {
            // SAFETY: the handle came with the info that the endpoint was opened with.
            let request = unsafe { Asked::take(asked)? };
            manager.accept(request, &live.endpoint, context, data).map_err(|not| guard::errno(&not.error))
        })
    })
}

unsafe extern "C" fn shutdown(ep: *mut fid_ep, flags: u64) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of an endpoint's table.
        let shared = unsafe { handle::of::<Endpoint>(ep)? }.shared();
        if shared.attributes.kind != FI_EP_MSG {
            return Err(-FI_EOPNOTSUPP);
        }
        if flags != 0 {
            return Err(-FI_EINVAL);
        }
        let connection = shared.connection();
        let connection = connection.as_ref().ok_or(-FI_ENOTCONN)?;
        connection.shutdown();
        // Who ends a connection is told of its end as the other one is, and once.
        if shared.set_connected(None)
            && let Some(events) = shared.events()
        {
            events.push_connection(FI_SHUTDOWN, ep.cast(), None, &[]);
        }
        Ok(())
    })
}
