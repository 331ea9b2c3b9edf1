//! Passive endpoints: they listen, and tell of those who want to connect.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use weft::connection::{Listener, Request};
use weft::{Address, Progress};

use crate::abi::*;
use crate::eq::{EventQueue, OwnedInfo, Source};
use crate::fabric::Fabric;
use crate::guard::{self, Result};
use crate::handle::{self, Noun};
use crate::info::Attributes;
use crate::limits::CONNECTION_DATA_MAX_BYTES;
use crate::{address, interface, log, parameters};

/// A passive endpoint.
pub(crate) struct Passive {
    fabric: Arc<Fabric>,
    attributes: Attributes,
    /// What it was opened with: the info of a request is a copy.
    info: Mutex<OwnedInfo>,
    state: Mutex<State>,
    events: OnceLock<Arc<EventQueue>>,
    fid: AtomicPtr<fid>,
}

#[derive(Default)]
struct State {
    /// The address that it shall have, if not that of its info.
    name: Option<Address>,
    listener: Option<Listener>,
    listens: bool,
    /// Those that are to be told of.
    requests: Vec<Request>,
}

// SAFETY: `fid_pep` begins with its `fid`.
unsafe impl Noun for Passive {
    type Face = fid_pep;
    const MARK: u64 = u64::from_be_bytes(*b"weft-pep");
}

/// Somebody who wants to connect: the handle in the info of `FI_CONNREQ`, until it is accepted or rejected.
pub(crate) struct Asked {
    request: Mutex<Option<Request>>,
    /// Where it was asked.
    at: Address,
}

// SAFETY: the face is a `fid`.
unsafe impl Noun for Asked {
    type Face = fid;
    const MARK: u64 = u64::from_be_bytes(*b"weft-ask");
}

/// The name that an endpoint has from the handle of its info: that of a passive endpoint, or where a request came in.
///
/// # Safety
/// The handle is null or an open object of the interface.
pub(crate) unsafe fn name_of(handle: fid_t) -> Result<Option<Address>> {
    // SAFETY: as the caller says; the class says what it is.
    unsafe {
        match handle.as_ref().map(|fid| fid.fclass) {
            Some(FI_CLASS_PEP) => handle::of_fid::<Passive>(handle)?.address().map(Some),
            Some(FI_CLASS_CONNREQ) => Ok(Some(handle::of_fid::<Asked>(handle)?.at)),
            _ => Ok(None),
        }
    }
}

impl Asked {
    /// The request behind a handle, which is closed.
    ///
    /// # Safety
    /// The handle is null or that of an info of `FI_CONNREQ`.
    pub(crate) unsafe fn take(handle: fid_t) -> Result<Request> {
        // SAFETY: as the caller says.
        let asked = unsafe { handle::of_fid::<Asked>(handle)? };
        let request = asked.request.lock().unwrap_or_else(PoisonError::into_inner).take();
        // SAFETY: as the caller says.
        unsafe { handle::close::<Asked>(handle)? };
        request.ok_or(-FI_EINVAL)
    }
}

impl Passive {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Binds its address, if that was not done.
    fn bind<'a>(&self, state: &'a mut State) -> Result<&'a Listener> {
        if state.listener.is_none() {
            let ip6 = self.attributes.format == FI_SOCKADDR_IN6;
            let default = || std::net::SocketAddr::new(interface::default_source(ip6), 0);
            let wanted = state.name.or(self.attributes.source).map_or_else(default, |address| address.socket);
            let progress = match self.attributes.control_progress {
                FI_PROGRESS_AUTO => Progress::Automatic,
                _ => Progress::Manual,
            };
            let open = || -> weft::Result<Listener> {
                Listener::new(&parameters::builder(&self.fabric)?.progress(progress).udp(wanted)?)
            };
            let listener = open().map_err(|error| {
                log::warning!(EP_CTRL, "cannot listen at {wanted}: {error}");
                guard::errno(&error)
            })?;
            state.listener = Some(listener);
        }
        state.listener.as_ref().ok_or(-FI_EOTHER)
    }

    /// Its address, bound if that was not done.
    pub(crate) fn address(&self) -> Result<Address> {
        self.bind(&mut self.state()).map(Listener::address)
    }

    /// Tells of a request.
    fn announce(&self, events: &EventQueue, request: Request) {
        let data = request.data().to_vec();
        let from = request.endpoint();
        let info = self.info.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the copy that was made when it was opened.
        let copy = unsafe { log::duplicate_info(info.0) };
        drop(info);
        // SAFETY: it was just made, or is null.
        let Some(info) = (unsafe { copy.as_mut() }) else { return };
        let here = interface::source_for(from.socket);
        let mut at = self.address().unwrap_or(from);
        if let Some(ip) = here.filter(|_| at.socket.ip().is_unspecified()) {
            at.socket.set_ip(ip);
        }
        let asked = Asked { request: Mutex::new(Some(request)), at };
        let face = handle::fid_of(FI_CLASS_CONNREQ, std::ptr::null_mut(), &REQUEST_OPERATIONS);
        info.handle = handle::open(face, Arc::new(asked));
        let here = here.map(|ip| Address { socket: std::net::SocketAddr::new(ip, 0), endpoint: 0 });
        // SAFETY: the addresses of an info are its own, from `malloc`.
        unsafe {
            set_address(&mut info.dest_addr, &mut info.dest_addrlen, info.addr_format, Some(&from));
            set_address(&mut info.src_addr, &mut info.src_addrlen, info.addr_format, here.as_ref());
        }
        events.push_connection(FI_CONNREQ, self.fid.load(Ordering::Relaxed), Some(OwnedInfo(copy)), &data);
    }
}

/// Replaces an address of an info.
///
/// # Safety
/// `pointer` is null or from `malloc`.
unsafe fn set_address(pointer: &mut *mut c_void, length: &mut usize, format: u32, address: Option<&Address>) {
    // SAFETY: as the caller says; the new one has as many bytes as are copied.
    unsafe {
        libc::free(*pointer);
        (*pointer, *length) = (std::ptr::null_mut(), 0);
        if let Some(address) = address {
            let bytes = address::to_bytes(format, address);
            let copy = libc::malloc(bytes.len());
            if !copy.is_null() {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), copy.cast(), bytes.len());
                (*pointer, *length) = (copy, bytes.len());
            }
        }
    }
}

impl Source for Passive {
    fn poll(&self) -> weft::Result<()> {
        let state = &mut *self.state();
        if let Some(listener) = state.listener.as_ref().filter(|_| state.listens) {
            while let Some(request) = listener.poll()? {
                state.requests.push(request);
            }
        }
        Ok(())
    }

    fn keeps(&self) -> bool {
        !self.state().requests.is_empty()
    }

    fn tell(&self) {
        let requests = std::mem::take(&mut self.state().requests);
        if let Some(events) = self.events.get() {
            requests.into_iter().for_each(|request| self.announce(events, request));
        }
    }

    fn try_wait(&self) -> weft::Result<bool> {
        let state = self.state();
        if !state.requests.is_empty() {
            return Ok(false);
        }
        state.listener.as_ref().map_or(Ok(true), Listener::try_wait)
    }

    fn descriptor(&self) -> RawFd {
        self.state().listener.as_ref().map_or(-1, |listener| listener.descriptor().as_raw_fd())
    }
}

static FID_OPERATIONS: fi_ops = crate::no::operations(close, bind, control);

/// A request that nobody answers is rejected when it is closed.
static REQUEST_OPERATIONS: fi_ops = crate::no::operations(close_request, crate::no::bind, crate::no::control);

static OPERATIONS: fi_ops_ep = fi_ops_ep {
    size: size_of::<fi_ops_ep>(),
    cancel: Some(crate::no::cancel),
    getopt: Some(get_option),
    setopt: Some(crate::no::setopt),
    tx_ctx: Some(crate::no::tx_ctx),
    rx_ctx: Some(crate::no::rx_ctx),
    rx_size_left: Some(crate::no::size_left),
    tx_size_left: Some(crate::no::size_left),
};

static CONNECTION_OPERATIONS: fi_ops_cm = fi_ops_cm {
    size: size_of::<fi_ops_cm>(),
    setname: Some(set_name),
    getname: Some(get_name),
    getpeer: Some(crate::no::getpeer),
    connect: Some(crate::no::connect),
    listen: Some(listen),
    accept: Some(crate::no::accept),
    reject: Some(reject),
    shutdown: Some(crate::no::shutdown),
    join: Some(crate::no::join),
};

/// `fi_passive_ep`.
pub(crate) unsafe extern "C" fn open(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    into: *mut *mut fid_pep,
    context: *mut c_void,
) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of a fabric's table.
        let (fabric, given) = unsafe { (handle::of::<Fabric>(fabric)?, info.as_ref().ok_or(-FI_EINVAL)?) };
        if into.is_null() {
            return Err(-FI_EINVAL);
        }
        // SAFETY: an info of libfabric, whose attributes are null or valid.
        let attributes = unsafe { Attributes::of(given)? };
        if attributes.kind != FI_EP_MSG {
            return Err(-FI_EINVAL);
        }
        // SAFETY: as above.
        let copy = OwnedInfo(unsafe { log::duplicate_info(info) });
        // SAFETY: it was just made, or is null.
        let Some(copied) = (unsafe { copy.0.as_mut() }) else { return Err(-FI_ENOMEM) };
        // Each request has a handle of its own.
        copied.handle = std::ptr::null_mut();
        let passive = Passive {
            fabric: fabric.clone(),
            attributes,
            info: Mutex::new(copy),
            state: Mutex::default(),
            events: OnceLock::new(),
            fid: AtomicPtr::default(),
        };
        let passive = Arc::new(passive);
        let face = fid_pep {
            fid: handle::fid_of(FI_CLASS_PEP, context, &FID_OPERATIONS),
            ops: handle::table(&OPERATIONS),
            cm: handle::table(&CONNECTION_OPERATIONS),
        };
        let opened = handle::open(face, passive.clone());
        passive.fid.store(opened.cast(), Ordering::Relaxed);
        // SAFETY: `into` was checked.
        unsafe { *into = opened };
        Ok(())
    })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of a passive endpoint's table.
        unsafe {
            if let Some(events) = handle::of_fid::<Passive>(fid)?.events.get() {
                events.forget(fid);
            }
            handle::close::<Passive>(fid)
        }
    })
}

unsafe extern "C" fn close_request(fid: *mut fid) -> c_int {
    // SAFETY: what C gives to a function of a request's table.
    guard::call(|| unsafe { handle::close::<Asked>(fid) })
}

unsafe extern "C" fn bind(fid: *mut fid, to: *mut fid, flags: u64) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of a passive endpoint's table.
        let (passive, events) = unsafe { (handle::of_fid::<Passive>(fid)?, EventQueue::of_any(to)?) };
        if flags != 0 || passive.events.set(events.clone()).is_err() {
            return Err(-FI_EINVAL);
        }
        Ok(())
    })
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, argument: *mut c_void) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of a passive endpoint's table.
        unsafe { handle::of_fid::<Passive>(fid)? };
        match command {
            // The engine's own limits hold: none is refused for the length of a queue.
            FI_BACKLOG if !argument.is_null() => Ok(()),
            FI_BACKLOG => Err(-FI_EINVAL),
            _ => Err(-FI_ENOSYS),
        }
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
        // SAFETY: what C gives to a function of a passive endpoint's table.
        let (_, length) = unsafe { (handle::of_fid::<Passive>(fid)?, length.as_mut().ok_or(-FI_EINVAL)?) };
        if level != FI_OPT_ENDPOINT || option != FI_OPT_CM_DATA_SIZE {
            return Err(-FI_ENOPROTOOPT);
        }
        if std::mem::replace(length, size_of::<usize>()) < size_of::<usize>() || value.is_null() {
            return Err(-FI_ETOOSMALL);
        }
        // SAFETY: there is room.
        unsafe { value.cast::<usize>().write_unaligned(CONNECTION_DATA_MAX_BYTES) };
        Ok(())
    })
}

unsafe extern "C" fn set_name(fid: fid_t, from: *mut c_void, length: usize) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of a passive endpoint's table.
        let passive = unsafe { handle::of_fid::<Passive>(fid)? };
        let format = passive.attributes.format;
        if format != FI_ADDR_STR && length < size_of::<libc::sockaddr_in>() {
            return Err(-FI_EINVAL);
        }
        // SAFETY: an address of the passive endpoint's format.
        let name = unsafe { address::read(format, from)? };
        let mut state = passive.state();
        if state.listens {
            return Err(-FI_EOPBADSTATE);
        }
        state.listener = None;
        state.name = Some(name);
        Ok(())
    })
}

unsafe extern "C" fn get_name(fid: fid_t, into: *mut c_void, length: *mut usize) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of a passive endpoint's table.
        let passive = unsafe { handle::of_fid::<Passive>(fid)? };
        let address = passive.address()?;
        // SAFETY: as the caller of the interface promises.
        unsafe { address::write(passive.attributes.format, &address, into, length) }
    })
}

unsafe extern "C" fn listen(pep: *mut fid_pep) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of a passive endpoint's table.
        let passive = unsafe { handle::of::<Passive>(pep)? };
        let events = passive.events.get().ok_or_else(|| {
            log::info!(EP_CTRL, "bind an event queue before listening");
            -FI_ENOEQ
        })?;
        let mut state = passive.state();
        passive.bind(&mut state)?;
        state.listens = true;
        drop(state);
        events.add_source(passive)
    })
}

unsafe extern "C" fn reject(pep: *mut fid_pep, handle: fid_t, data: *const c_void, length: usize) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of a passive endpoint's table.
        unsafe { handle::of::<Passive>(pep)? };
        // SAFETY: as the caller of the interface promises.
        let data = unsafe { private_data(data, length)? };
        // SAFETY: the handle of a request's info.
        let request = unsafe { Asked::take(handle)? };
        request.reject(data).map_err(|not| guard::errno(&not.error))
    })
}

/// The data that goes with a request or an answer.
///
/// # Safety
/// `pointer` is null or has that many bytes, for the time of the call.
pub(crate) unsafe fn private_data<'a>(pointer: *const c_void, length: usize) -> Result<&'a [u8]> {
    if length > CONNECTION_DATA_MAX_BYTES || (pointer.is_null() && length > 0) {
        return Err(-FI_EINVAL);
    }
    // SAFETY: as the caller says.
    Ok(if length == 0 { &[] } else { unsafe { std::slice::from_raw_parts(pointer.cast(), length) } })
}
