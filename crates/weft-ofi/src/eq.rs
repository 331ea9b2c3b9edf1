//! Event queues: what happens to connections, and insertions that end later.
//!
//! Nobody works for a queue while it is not read: reading asks its *sources* (domains with connected endpoints, passive
//! endpoints) for what happened. Who sleeps does so on one epoll set of their descriptors and a signal.

use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::abi::*;
use crate::fabric::Fabric;
use crate::guard::{self, Result};
use crate::handle::{self, Noun};
use crate::limits::REQUEST_KEPT_MS;
use crate::wait::{self, Sleepable, Sleeper, Waits};

/// An event queue.
pub(crate) struct EventQueue {
    /// Leaves its set while the descriptor is still open.
    waits: Waits,
    fabric: Arc<Fabric>,
    events: Mutex<VecDeque<Event>>,
    sources: Mutex<Vec<Weak<dyn Source>>>,
    /// Since when something is kept that is to be told.
    kept_since: Mutex<Option<Instant>>,
    sleeper: Sleeper,
    writable: bool,
    /// The bytes that the last error entry points to.
    error_data: Mutex<Vec<u8>>,
}

// SAFETY: `fid_eq` begins with its `fid`.
unsafe impl Noun for EventQueue {
    type Face = fid_eq;
    const MARK: u64 = u64::from_be_bytes(*b"weft-eq ");
}

/// Something that puts events into queues when it is asked.
pub(crate) trait Source: Send + Sync {
    /// Puts what happened into the queues that it is for, or keeps it until it is asked to tell.
    fn poll(&self) -> weft::Result<()>;
    /// Whether it keeps something.
    fn keeps(&self) -> bool {
        false
    }
    /// Whether news is expected that should be told before what others keep.
    fn expects(&self) -> bool {
        false
    }
    /// Puts what it keeps into the queues.
    fn tell(&self) {}
    /// Makes ready for sleep on the descriptor; false: ask again instead.
    fn try_wait(&self) -> weft::Result<bool>;
    /// What to sleep on.
    fn descriptor(&self) -> RawFd;
}

impl Sleepable for EventQueue {
    fn waits(&self) -> &Waits {
        &self.waits
    }

    fn try_sleep(&self) -> Result<bool> {
        Ok(!self.is_ready())
    }

    fn descriptor(&self) -> Result<RawFd> {
        Ok(self.sleeper.descriptor().as_raw_fd())
    }
}

/// What happened. Pointers are numbers here: nobody follows them.
enum Event {
    /// As the reader gets it.
    Good { kind: u32, bytes: Vec<u8>, info: Option<OwnedInfo> },
    /// Something failed.
    Failed { fid: usize, context: usize, data: u64, error: i32, details: Vec<u8> },
}

/// A `fi_info` that is freed if nobody reads the event that carries it.
pub(crate) struct OwnedInfo(pub(crate) *mut fi_info);

// SAFETY: nobody else has it.
unsafe impl Send for OwnedInfo {}

impl Drop for OwnedInfo {
    fn drop(&mut self) {
        // SAFETY: it was made by `fi_dupinfo`, and belongs to us; its handle is null, or that of a request of which nobody
        // was told.
        unsafe {
            if let Some(info) = self.0.as_ref().filter(|info| !info.handle.is_null()) {
                // Whoever asked is told that nobody will answer.
                let _ = handle::close::<crate::pep::Asked>(info.handle);
            }
            crate::log::free_info(self.0);
        }
    }
}

impl EventQueue {
    fn events(&self) -> MutexGuard<'_, VecDeque<Event>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, event: Event) {
        self.events().push_back(event);
        self.sleeper.signal();
    }

    /// Tells that something ended well.
    pub(crate) fn push_entry(&self, kind: u32, fid: *mut fid, context: *mut c_void, data: u64) {
        let entry = fi_eq_entry { fid, context, data };
        // SAFETY: the entry has no padding.
        let bytes = unsafe { std::slice::from_raw_parts((&raw const entry).cast::<u8>(), size_of::<fi_eq_entry>()) };
        self.push(Event::Good { kind, bytes: bytes.to_vec(), info: None });
    }

    /// Tells what happened to a connection.
    pub(crate) fn push_connection(&self, kind: u32, fid: *mut fid, info: Option<OwnedInfo>, data: &[u8]) {
        let pointer = info.as_ref().map_or(std::ptr::null_mut(), |info| info.0);
        let mut bytes = Vec::with_capacity(size_of::<fi_eq_cm_entry>() + data.len());
        bytes.extend((fid as usize).to_ne_bytes());
        bytes.extend((pointer as usize).to_ne_bytes());
        bytes.extend(data);
        self.push(Event::Good { kind, bytes, info });
    }

    /// Tells that something failed.
    pub(crate) fn push_error(&self, fid: *mut fid, context: *mut c_void, data: u64, error: i32) {
        self.push_error_with(fid, context, data, error, Vec::new());
    }

    /// The same, with bytes that tell more.
    pub(crate) fn push_error_with(&self, fid: *mut fid, context: *mut c_void, data: u64, error: i32, details: Vec<u8>) {
        self.push(Event::Failed { fid: fid as usize, context: context as usize, data, error, details });
    }

    /// Something is gone: nobody shall be told of it any more.
    pub(crate) fn forget(&self, gone: *mut fid) {
        self.events().retain(|event| match event {
            Event::Good { kind, bytes, .. } if matches!(*kind, FI_CONNREQ | FI_CONNECTED | FI_SHUTDOWN) => {
                !bytes.starts_with(&(gone as usize).to_ne_bytes())
            }
            Event::Good { .. } => true,
            Event::Failed { fid, .. } => *fid != gone as usize,
        });
    }

    /// From now on this source is asked when the queue is read.
    pub(crate) fn add_source(&self, source: &Arc<impl Source + 'static>) -> Result {
        let source: Arc<dyn Source> = source.clone();
        let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        sources.retain(|source| source.strong_count() > 0);
        if sources.iter().any(|known| known.upgrade().is_some_and(|known| Arc::ptr_eq(&known, &source))) {
            return Ok(());
        }
        self.sleeper.add(source.descriptor())?;
        sources.push(Arc::downgrade(&source));
        drop(sources);
        self.sleeper.signal();
        Ok(())
    }

    fn sources(&self) -> Vec<Arc<dyn Source>> {
        let sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        sources.iter().filter_map(Weak::upgrade).collect()
    }

    /// Asks the sources if there is nothing to read.
    fn poll(&self) {
        if !self.events().is_empty() {
            return;
        }
        let sources = self.sources();
        let poll = || {
            for source in &sources {
                if let Err(error) = source.poll() {
                    crate::log::warning!(EQ, "{error}");
                }
            }
        };
        poll();
        let mut kept_since = self.kept_since.lock().unwrap_or_else(PoisonError::into_inner);
        if !sources.iter().any(|source| source.keeps()) {
            *kept_since = None;
            return;
        }
        // Who asks for another connection has heard of the one before: so shall this side, though the news comes another
        // way, and is told a moment later.
        poll();
        let since = *kept_since.get_or_insert_with(Instant::now);
        let expected = sources.iter().any(|source| source.expects());
        if !expected || since.elapsed() >= Duration::from_millis(REQUEST_KEPT_MS) {
            *kept_since = None;
            sources.iter().for_each(|source| source.tell());
        }
    }

    /// Whether there is something to read now.
    pub(crate) fn has_events(&self) -> bool {
        self.poll();
        !self.events().is_empty()
    }

    /// Whether there is something to read now. If not, the descriptor becomes readable when there is.
    fn is_ready(&self) -> bool {
        self.poll();
        let events = self.events();
        if !events.is_empty() {
            return true;
        }
        // Only where there is nothing: another thread that sleeps may not have seen the signal of what there is.
        self.sleeper.clear();
        drop(events);
        let awake = self.sources().iter().any(|source| !matches!(source.try_wait(), Ok(true)));
        // Getting the sources ready may have been when it happened.
        awake || !self.events().is_empty()
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

    /// The oldest event, if it is a good one.
    ///
    /// # Safety
    /// There is room for `length` bytes.
    unsafe fn read(&self, event: *mut u32, into: *mut c_void, length: usize, flags: u64) -> Result<usize> {
        let mut events = self.events();
        let Event::Good { kind, bytes, .. } = events.front().ok_or(-FI_EAGAIN)? else { return Err(-FI_EAVAIL) };
        // Of an event on a connection, the data may be cut.
        let connection = matches!(*kind, FI_CONNREQ | FI_CONNECTED | FI_SHUTDOWN);
        let least = if connection { size_of::<fi_eq_cm_entry>() } else { bytes.len() };
        if length < least {
            return Err(-FI_ETOOSMALL);
        }
        let read = bytes.len().min(length);
        // SAFETY: there is room.
        unsafe {
            *event = *kind;
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), into.cast(), read);
        }
        if flags & FI_PEEK == 0
            && let Some(Event::Good { info: Some(info), .. }) = events.pop_front()
        {
            // It is the reader's from here on.
            std::mem::forget(info);
        }
        Ok(read)
    }
}

static FID_OPERATIONS: fi_ops = crate::no::operations(close, crate::no::bind, control);

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
        let (fabric, attributes) = unsafe { (handle::of::<Fabric>(fabric)?, attributes.as_ref()) };
        if into.is_null() {
            return Err(-FI_EINVAL);
        }
        let wait_object = attributes.map_or(FI_WAIT_UNSPEC, |attributes| attributes.wait_obj);
        let flags = attributes.map_or(0, |attributes| attributes.flags);
        if flags & !(FI_WRITE | FI_AFFINITY) != 0 {
            return Err(-FI_EINVAL);
        }
        let wait_set = attributes.map_or(std::ptr::null_mut(), |attributes| attributes.wait_set);
        let queue = EventQueue {
            // SAFETY: what the attributes say.
            waits: unsafe { Waits::new(wait_object, wait_set, fabric)? },
            fabric: fabric.clone(),
            events: Mutex::default(),
            sources: Mutex::default(),
            kept_since: Mutex::default(),
            sleeper: Sleeper::new()?,
            writable: flags & FI_WRITE != 0,
            error_data: Mutex::default(),
        };
        let queue = Arc::new(queue);
        queue.waits.start(&queue)?;
        let fid = handle::fid_of(FI_CLASS_EQ, context, &FID_OPERATIONS);
        let face = fid_eq { fid, ops: handle::table(&OPERATIONS) };
        // SAFETY: `into` was checked.
        unsafe { *into = handle::open(face, queue) };
        Ok(())
    })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: what C gives to a function of a queue's table.
    guard::call(|| unsafe { wait::close::<EventQueue>(fid) })
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: what C gives to a function of a queue's table.
    guard::call(|| unsafe { wait::control::<EventQueue>(fid, command, argument) })
}

unsafe extern "C" fn read(eq: *mut fid_eq, event: *mut u32, into: *mut c_void, length: usize, flags: u64) -> isize {
    guard::count(|| {
        // SAFETY: what C gives to a function of a queue's table.
        let queue = unsafe { handle::of::<EventQueue>(eq)? };
        if event.is_null() || (into.is_null() && length > 0) || flags & !FI_PEEK != 0 {
            return Err(-FI_EINVAL);
        }
        queue.poll();
        // SAFETY: as the caller of the interface promises.
        unsafe { queue.read(event, into, length, flags) }
    })
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
        queue.waits.check_sleep()?;
        let deadline = wait::deadline(timeout);
        loop {
            let ready = queue.is_ready();
            // SAFETY: as the caller of the interface promises.
            match unsafe { queue.read(event, into, length, flags) } {
                Err(error) if error == -FI_EAGAIN => {}
                result => return result,
            }
            let left = wait::left(deadline);
            if left == Some(Duration::ZERO) {
                return Err(-FI_EAGAIN);
            }
            if queue.waits.yields() {
                std::thread::yield_now();
            } else if !ready {
                queue.sleeper.wait(left)?;
            }
        }
    })
}

unsafe extern "C" fn read_error(eq: *mut fid_eq, into: *mut fi_eq_err_entry, flags: u64) -> isize {
    guard::count(|| {
        // SAFETY: what C gives to a function of a queue's table.
        let queue = unsafe { handle::of::<EventQueue>(eq)? };
        // SAFETY: an entry of C, or null.
        let into = unsafe { into.as_mut() }.ok_or(-FI_EINVAL)?;
        if flags & !FI_PEEK != 0 {
            return Err(-FI_EINVAL);
        }
        let mut events = queue.events();
        let Some(Event::Failed { fid, context, data, error, details }) = events.front() else {
            return Err(-FI_EAGAIN);
        };
        into.fid = *fid as fid_t;
        into.context = *context as *mut c_void;
        into.data = *data;
        into.err = *error;
        into.prov_errno = *error;
        // Older programs leave there what was there.
        let has_room = queue.fabric.api_version >= FI_VERSION(1, 5) && !into.err_data.is_null();
        if has_room && into.err_data_size > 0 {
            into.err_data_size = details.len().min(into.err_data_size);
            // SAFETY: the caller gives that much room.
            unsafe { std::ptr::copy_nonoverlapping(details.as_ptr(), into.err_data.cast(), into.err_data_size) };
        } else {
            let mut kept = queue.error_data.lock().unwrap_or_else(PoisonError::into_inner);
            kept.clone_from(details);
            into.err_data = if kept.is_empty() { std::ptr::null_mut() } else { kept.as_mut_ptr().cast() };
            into.err_data_size = kept.len();
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
        if !queue.writable {
            return Err(-FI_EINVAL);
        }
        let mut bytes = vec![0; length];
        // SAFETY: the caller of the interface gives that many bytes.
        unsafe { std::ptr::copy_nonoverlapping(from.cast(), bytes.as_mut_ptr(), length) };
        queue.push(Event::Good { kind: event, bytes, info: None });
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

impl Drop for EventQueue {
    fn drop(&mut self) {
        // Those in it may hold what is freed with them.
        self.events().clear();
    }
}
