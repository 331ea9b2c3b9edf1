//! Event queues: connections, and insertions that end later.

use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::abi::*;
use crate::fabric::Fabric;
use crate::guard::{self, Result};
use crate::handle::{self, Noun};

/// An event queue.
pub(crate) struct EventQueue {
    _fabric: Arc<Fabric>,
    events: Mutex<VecDeque<Event>>,
    changed: Condvar,
}

// SAFETY: `fid_eq` begins with its `fid`.
unsafe impl Noun for EventQueue {
    type Face = fid_eq;
    const MARK: u64 = u64::from_be_bytes(*b"weft-eq ");
}

/// What happened.
enum Event {
    /// As the reader gets it.
    Good { kind: u32, bytes: Vec<u8> },
    /// Something failed. Pointers are numbers here: nobody follows them.
    Failed { fid: usize, context: usize, data: u64, error: i32 },
}

impl EventQueue {
    fn events(&self) -> MutexGuard<'_, VecDeque<Event>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, event: Event) {
        self.events().push_back(event);
        self.changed.notify_all();
    }

    /// Tells that something ended well.
    pub(crate) fn push_entry(&self, kind: u32, fid: *mut fid, context: *mut c_void, data: u64) {
        let entry = fi_eq_entry { fid, context, data };
        // SAFETY: the entry has no padding.
        let bytes = unsafe { std::slice::from_raw_parts((&raw const entry).cast::<u8>(), size_of::<fi_eq_entry>()) };
        self.push(Event::Good { kind, bytes: bytes.to_vec() });
    }

    /// Tells that something failed.
    pub(crate) fn push_error(&self, fid: *mut fid, context: *mut c_void, data: u64, error: i32) {
        self.push(Event::Failed { fid: fid as usize, context: context as usize, data, error });
    }

    /// The event queue behind any `fid`.
    ///
    /// # Safety
    /// `fid` is null or an open object of the interface.
    pub(crate) unsafe fn of_any<'a>(fid: *mut fid) -> Result<&'a Arc<EventQueue>> {
        // SAFETY: as the caller says.
        unsafe {
            match fid.as_ref().ok_or(-FI_EINVAL)?.fclass {
                FI_CLASS_EQ => handle::of_fid::<EventQueue>(fid),
                _ => Err(-FI_EINVAL),
            }
        }
    }

    /// Whether there is something to read now.
    pub(crate) fn is_ready(&self) -> bool {
        !self.events().is_empty()
    }
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

static OPERATIONS: fi_ops_eq = fi_ops_eq {
    size: size_of::<fi_ops_eq>(),
    read: Some(read),
    readerr: Some(read_error),
    write: Some(write),
    sread: Some(read_or_sleep),
    strerror: Some(error_text),
};

/// `fi_eq_open`.
pub(crate) unsafe extern "C" fn open(
    fabric: *mut fid_fabric,
    attributes: *mut fi_eq_attr,
    into: *mut *mut fid_eq,
    context: *mut c_void,
) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of a fabric's table.
        let fabric = unsafe { handle::of::<Fabric>(fabric)? };
        if into.is_null() || attributes.is_null() {
            return Err(-FI_EINVAL);
        }
        let queue = EventQueue { _fabric: fabric.clone(), events: Mutex::default(), changed: Condvar::new() };
        let fid = handle::fid_of(FI_CLASS_EQ, context, &FID_OPERATIONS);
        let face = fid_eq { fid, ops: handle::table(&OPERATIONS) };
        // SAFETY: `into` was checked.
        unsafe { *into = handle::open(face, Arc::new(queue)) };
        Ok(())
    })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: what C gives to a function of a queue's table.
    guard::call(|| unsafe { handle::close::<EventQueue>(fid) })
}

unsafe extern "C" fn read(eq: *mut fid_eq, event: *mut u32, into: *mut c_void, length: usize, flags: u64) -> isize {
    // SAFETY: as the caller says.
    unsafe { read_or_sleep(eq, event, into, length, 0, flags) }
}

unsafe extern "C" fn read_or_sleep(
    eq: *mut fid_eq,
    event: *mut u32,
    into: *mut c_void,
    length: usize,
    timeout: c_int,
    flags: u64,
) -> isize {
    guard::count(|| {
        // SAFETY: what C gives to a function of a queue's table.
        let queue = unsafe { handle::of::<EventQueue>(eq)? };
        if event.is_null() || (into.is_null() && length > 0) || flags & !FI_PEEK != 0 {
            return Err(-FI_EINVAL);
        }
        let end = u64::try_from(timeout).ok().map(|timeout| Instant::now() + Duration::from_millis(timeout));
        let mut events = queue.events();
        while events.is_empty() {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Err(-FI_EAGAIN);
            }
            let left = left.unwrap_or(Duration::from_secs(1));
            events = queue.changed.wait_timeout(events, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let Some(Event::Good { kind, bytes }) = events.front() else { return Err(-FI_EAVAIL) };
        if length < bytes.len() {
            return Err(-FI_ETOOSMALL);
        }
        // SAFETY: there is room.
        unsafe {
            *event = *kind;
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), into.cast(), bytes.len());
        }
        let read = bytes.len();
        if flags & FI_PEEK == 0 {
            events.pop_front();
        }
        Ok(read)
    })
}

unsafe extern "C" fn read_error(eq: *mut fid_eq, into: *mut fi_eq_err_entry, flags: u64) -> isize {
    guard::count(|| {
        // SAFETY: what C gives to a function of a queue's table.
        let queue = unsafe { handle::of::<EventQueue>(eq)? };
        if into.is_null() || flags & !FI_PEEK != 0 {
            return Err(-FI_EINVAL);
        }
        let mut events = queue.events();
        let Some(Event::Failed { fid, context, data, error }) = events.front() else { return Err(-FI_EAGAIN) };
        // SAFETY: an entry of C.
        unsafe {
            (*into).fid = *fid as fid_t;
            (*into).context = *context as *mut c_void;
            (*into).data = *data;
            (*into).err = *error;
            (*into).prov_errno = *error;
            (*into).err_data = std::ptr::null_mut();
            (*into).err_data_size = 0;
        }
        if flags & FI_PEEK == 0 {
            events.pop_front();
        }
        Ok(size_of::<fi_eq_err_entry>())
    })
}

unsafe extern "C" fn write(eq: *mut fid_eq, event: u32, from: *const c_void, length: usize, flags: u64) -> isize {
    guard::count(|| {
        // SAFETY: what C gives to a function of a queue's table.
        let queue = unsafe { handle::of::<EventQueue>(eq)? };
        if (from.is_null() && length > 0) || flags != 0 {
            return Err(-FI_EINVAL);
        }
        let mut bytes = vec![0; length];
        // SAFETY: the caller of the interface gives that many bytes.
        unsafe { std::ptr::copy_nonoverlapping(from.cast(), bytes.as_mut_ptr(), length) };
        queue.push(Event::Good { kind: event, bytes });
        Ok(length)
    })
}

unsafe extern "C" fn error_text(
    _eq: *mut fid_eq,
    error: c_int,
    _data: *const c_void,
    into: *mut c_char,
    length: usize,
) -> *const c_char {
    guard::value(std::ptr::null(), || {
        let text = std::io::Error::from_raw_os_error(error).to_string();
        crate::interface::lasting_text(&text, into, length)
    })
}
