//! Counters.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::time::Duration;

use crate::abi::*;
use crate::domain::Domain;
use crate::guard::{self, Result};
use crate::handle::{self, Noun};

/// A counter.
pub(crate) struct Count {
    pub(crate) counter: weft::Counter,
    pub(crate) domain: Arc<Domain>,
    wait_object: u32,
}

// SAFETY: `fid_cntr` begins with its `fid`.
unsafe impl Noun for Count {
    type Face = fid_cntr;
    const MARK: u64 = u64::from_be_bytes(*b"weft-cnt");
}

impl Count {
    /// Whether it may have changed since it was read: a counter cannot know what its reader has seen.
    pub(crate) fn is_ready(&self) -> bool {
        false
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
        let count = Count { counter: domain.nic.counter(), domain: domain.clone(), wait_object };
        let fid = handle::fid_of(FI_CLASS_CNTR, context, &FID_OPERATIONS);
        let face = fid_cntr { fid, ops: handle::table(&OPERATIONS) };
        // SAFETY: `into` was checked.
        unsafe { *into = handle::open(face, Arc::new(count)) };
        Ok(())
    })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: what C gives to a function of a counter's table.
    guard::call(|| unsafe { handle::close::<Count>(fid) })
}

unsafe extern "C" fn read(cntr: *mut fid_cntr) -> u64 {
    // SAFETY: what C gives to a function of a counter's table.
    guard::value(0, || unsafe { handle::of::<Count>(cntr) }.map_or(0, |count| count.counter.value()))
}

unsafe extern "C" fn read_errors(cntr: *mut fid_cntr) -> u64 {
    // SAFETY: what C gives to a function of a counter's table.
    guard::value(0, || unsafe { handle::of::<Count>(cntr) }.map_or(0, |count| count.counter.errors()))
}

/// Changes a counter.
///
/// # Safety
/// As [`handle::of`].
unsafe fn change(cntr: *mut fid_cntr, change: impl FnOnce(&weft::Counter)) -> c_int {
    guard::call(|| {
        // SAFETY: as the caller says.
        change(&unsafe { handle::of::<Count>(cntr)? }.counter);
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
    unsafe { change(cntr, |counter| counter.set_errors(counter.errors().wrapping_add(value))) }
}

unsafe extern "C" fn set_errors(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: what C gives to a function of a counter's table.
    unsafe { change(cntr, |counter| counter.set_errors(value)) }
}

unsafe extern "C" fn wait(cntr: *mut fid_cntr, threshold: u64, timeout: c_int) -> c_int {
    guard::call(|| -> Result {
        // SAFETY: what C gives to a function of a counter's table.
        let count = unsafe { handle::of::<Count>(cntr)? };
        if count.wait_object == FI_WAIT_NONE {
            return Err(-FI_ENOSYS);
        }
        let timeout = u64::try_from(timeout).ok().map(Duration::from_millis);
        match count.counter.wait(threshold, timeout) {
            Err(weft::Error::CountedFailure) => Err(-FI_EAVAIL),
            result => result.map_err(|error| guard::errno(&error)),
        }
    })
}
