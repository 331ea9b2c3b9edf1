//! Counters.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::abi::*;
use crate::domain::Domain;
use crate::guard::{self, Result};
use crate::handle::{self, Noun};
use crate::wait::{self, Sleepable, Waits};

/// A counter.
pub(crate) struct Count {
    /// Leaves its set while the descriptor is still open.
    waits: Waits,
    pub(crate) counter: weft::Counter,
    pub(crate) domain: Arc<Domain>,
    /// What the program knows, so that it can sleep until there is more to know.
    seen: AtomicU64,
    seen_errors: AtomicU64,
}

// SAFETY: `fid_cntr` begins with its `fid`.
unsafe impl Noun for Count {
    type Face = fid_cntr;
    const MARK: u64 = u64::from_be_bytes(*b"weft-cnt");
}

impl Count {
    fn see(&self, (value, errors): (u64, u64)) {
        self.seen.store(value, Ordering::Relaxed);
        self.seen_errors.store(errors, Ordering::Relaxed);
    }

    /// Waits until the value is reached. What counts as an error is one that comes after the call.
    fn wait(&self, threshold: u64, timeout: c_int) -> Result {
        let deadline = wait::deadline(timeout);
        let errors = self.counter.errors();
        loop {
            let left = if self.waits.yields() { Some(Duration::ZERO) } else { wait::left(deadline) };
            match self.counter.wait(threshold, left) {
                Ok(()) => return Ok(()),
                Err(weft::Error::CountedFailure) => return Err(-FI_EAVAIL),
                // Somebody set the counter, which is for who sleeps on the descriptor.
                Err(weft::Error::TimedOut | weft::Error::Interrupted) => {}
                Err(error) => return Err(guard::errno(&error)),
            }
            if self.counter.errors() != errors {
                return Err(-FI_EAVAIL);
            }
            if wait::left(deadline) == Some(Duration::ZERO) {
                return Err(-FI_ETIMEDOUT);
            }
            if self.waits.yields() {
                std::thread::yield_now();
            }
        }
    }
}

impl Sleepable for Count {
    fn waits(&self) -> &Waits {
        &self.waits
    }

    fn try_sleep(&self) -> Result<bool> {
        let seen = (self.seen.load(Ordering::Relaxed), self.seen_errors.load(Ordering::Relaxed));
        let safe = self.counter.try_wait(seen.0.saturating_add(1)).map_err(|error| guard::errno(&error))?;
        // What came before it was made ready wakes nobody.
        let now = self.counter.read();
        self.see(now);
        Ok(safe && now == seen)
    }

    fn descriptor(&self) -> Result<RawFd> {
        self.counter.descriptor().map(|descriptor| descriptor.as_raw_fd()).map_err(|error| guard::errno(&error))
    }
}

static FID_OPERATIONS: fi_ops = crate::no::operations(close, crate::no::bind, control);

static OPERATIONS: fi_ops_cntr = fi_ops_cntr {
    size: size_of::<fi_ops_cntr>(),
    read: Some(read),
    readerr: Some(read_errors),
    add: Some(add),
    set: Some(set),
    wait: Some(wait),
    adderr: Some(add_errors),
    seterr: Some(set_errors),
};

/// `fi_cntr_open`.
pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    attributes: *mut fi_cntr_attr,
    into: *mut *mut fid_cntr,
    context: *mut c_void,
) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of a domain's table.
        let (domain, attributes) = unsafe { (handle::of::<Domain>(domain)?, attributes.as_ref()) };
        if into.is_null() || attributes.is_some_and(|attributes| attributes.flags != 0) {
            return Err(-FI_EINVAL);
        }
        if attributes.is_some_and(|attributes| attributes.events != FI_CNTR_EVENTS_COMP) {
            return Err(-FI_ENOSYS);
        }
        let wait_object = attributes.map_or(FI_WAIT_UNSPEC, |attributes| attributes.wait_obj);
        let wait_set = attributes.map_or(std::ptr::null_mut(), |attributes| attributes.wait_set);
        let count = Arc::new(Count {
            // SAFETY: what the attributes say.
            waits: unsafe { Waits::new(wait_object, wait_set, &domain.fabric)? },
            counter: domain.nic.counter(),
            domain: domain.clone(),
            seen: AtomicU64::new(0),
            seen_errors: AtomicU64::new(0),
        });
        count.waits.start(&count)?;
        let fid = handle::fid_of(FI_CLASS_CNTR, context, &FID_OPERATIONS);
        let face = fid_cntr { fid, ops: handle::table(&OPERATIONS) };
        // SAFETY: `into` was checked.
        unsafe { *into = handle::open(face, count) };
        Ok(())
    })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: what C gives to a function of a counter's table.
    guard::call(|| unsafe { wait::close::<Count>(fid) })
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: what C gives to a function of a counter's table.
    guard::call(|| unsafe { wait::control::<Count>(fid, command, argument) })
}

unsafe extern "C" fn read(cntr: *mut fid_cntr) -> u64 {
    guard::value(0, || {
        // SAFETY: what C gives to a function of a counter's table.
        unsafe { handle::of::<Count>(cntr) }.map_or(0, |count| {
            let value = count.counter.value();
            count.seen.store(value, Ordering::Relaxed);
            value
        })
    })
}

unsafe extern "C" fn read_errors(cntr: *mut fid_cntr) -> u64 {
    guard::value(0, || {
        // SAFETY: what C gives to a function of a counter's table.
        unsafe { handle::of::<Count>(cntr) }.map_or(0, |count| {
            let errors = count.counter.errors();
            count.seen_errors.store(errors, Ordering::Relaxed);
            errors
        })
    })
}

/// Changes a counter.
///
/// # Safety
/// As [`handle::of`].
unsafe fn change(cntr: *mut fid_cntr, change: impl FnOnce(&weft::Counter)) -> c_int {
    guard::call(|| {
        // SAFETY: as the caller says.
        let count = unsafe { handle::of::<Count>(cntr)? };
        change(&count.counter);
        if count.waits.is_native() {
            // A lower value than before would wake nobody.
            count.counter.signal();
        }
        Ok(())
    })
}

unsafe extern "C" fn add(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: what C gives to a function of a counter's table.
    unsafe { change(cntr, |counter| counter.add(value)) }
}

unsafe extern "C" fn set(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: what C gives to a function of a counter's table.
    unsafe { change(cntr, |counter| counter.set(value)) }
}

unsafe extern "C" fn add_errors(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: what C gives to a function of a counter's table.
    unsafe { change(cntr, |counter| counter.add_errors(value)) }
}

unsafe extern "C" fn set_errors(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: what C gives to a function of a counter's table.
    unsafe { change(cntr, |counter| counter.set_errors(value)) }
}

unsafe extern "C" fn wait(cntr: *mut fid_cntr, threshold: u64, timeout: c_int) -> c_int {
    guard::call(|| -> Result {
        // SAFETY: what C gives to a function of a counter's table.
        let count = unsafe { handle::of::<Count>(cntr)? };
        // Without a wait object the call is not for programs, but some make it, and nothing speaks against it.
        if count.waits.is_some() {
            count.waits.check_sleep()?;
        }
        count.wait(threshold, timeout)
    })
}
