//! Poll sets: which of several queues and counters have something.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::abi::*;
use crate::cntr::Count;
use crate::cq::Queue;
use crate::domain::Domain;
use crate::eq::EventQueue;
use crate::guard::{self, Result};
use crate::handle::{self, Noun};

/// A poll set. It holds its members, so they cannot be closed before they are taken out.
pub(crate) struct PollSet {
    _domain: Arc<Domain>,
    members: Mutex<Vec<Member>>,
}

struct Member {
    /// The program's handle, by which it names the member, and where its context is.
    fid: usize,
    object: Object,
}

enum Object {
    Queue(Arc<Queue>),
    Events(Arc<EventQueue>),
    /// With its value and errors as they were told last.
    Count(Arc<Count>, (u64, u64)),
}

// SAFETY: `fid_poll` begins with its `fid`.
unsafe impl Noun for PollSet {
    type Face = fid_poll;
    const MARK: u64 = u64::from_be_bytes(*b"weft-pol");
}

impl PollSet {
    fn members(&self) -> MutexGuard<'_, Vec<Member>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Object {
    /// The object behind a handle.
    ///
    /// # Safety
    /// `fid` is null or an open object of the interface.
    unsafe fn of(fid: *mut fid) -> Result<Object> {
        // SAFETY: as the caller says; the class says what it is.
        unsafe {
            match fid.as_ref().ok_or(-FI_EINVAL)?.fclass {
                FI_CLASS_CQ => Ok(Object::Queue(handle::of_fid::<Queue>(fid)?.clone())),
                FI_CLASS_EQ => Ok(Object::Events(handle::of_fid::<EventQueue>(fid)?.clone())),
                // A counter that moved before it came here has moved.
                FI_CLASS_CNTR => Ok(Object::Count(handle::of_fid::<Count>(fid)?.clone(), (0, 0))),
                _ => Err(-FI_EINVAL),
            }
        }
    }

    /// Whether there is something to read now, after a round of progress.
    fn is_ready(&mut self) -> Result<bool> {
        match self {
            Object::Queue(queue) => queue.has_entries(),
            Object::Events(queue) => Ok(queue.has_events()),
            Object::Count(count, told) => {
                let now = count.counter.read();
                Ok(std::mem::replace(told, now) != now)
            }
        }
    }
}

static FID_OPERATIONS: fi_ops = crate::no::operations(close, crate::no::bind, crate::no::control);

static OPERATIONS: fi_ops_poll =
    fi_ops_poll { size: size_of::<fi_ops_poll>(), poll: Some(poll), poll_add: Some(add), poll_del: Some(remove) };

/// `fi_poll_open`.
pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    attributes: *mut fi_poll_attr,
    into: *mut *mut fid_poll,
) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of a domain's table.
        let (domain, attributes) = unsafe { (handle::of::<Domain>(domain)?, attributes.as_ref()) };
        if into.is_null() || attributes.is_some_and(|attributes| attributes.flags != 0) {
            return Err(-FI_EINVAL);
        }
        let set = PollSet { _domain: domain.clone(), members: Mutex::default() };
        let fid = handle::fid_of(FI_CLASS_POLL, std::ptr::null_mut(), &FID_OPERATIONS);
        let face = fid_poll { fid, ops: handle::table(&OPERATIONS) };
        // SAFETY: `into` was checked.
        unsafe { *into = handle::open(face, Arc::new(set)) };
        Ok(())
    })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of a set's table.
        if !unsafe { handle::of_fid::<PollSet>(fid)? }.members().is_empty() {
            return Err(-FI_EBUSY);
        }
        // SAFETY: as above.
        unsafe { handle::close::<PollSet>(fid) }
    })
}

unsafe extern "C" fn add(set: *mut fid_poll, fid: *mut fid, flags: u64) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of a set's table.
        let (set, object) = unsafe { (handle::of::<PollSet>(set)?, Object::of(fid)?) };
        let mut members = set.members();
        if flags != 0 || members.iter().any(|member| member.fid == fid as usize) {
            return Err(-FI_EINVAL);
        }
        members.push(Member { fid: fid as usize, object });
        Ok(())
    })
}

unsafe extern "C" fn remove(set: *mut fid_poll, fid: *mut fid, flags: u64) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of a set's table.
        let set = unsafe { handle::of::<PollSet>(set)? };
        let mut members = set.members();
        let index = members.iter().position(|member| member.fid == fid as usize).ok_or(-FI_EINVAL)?;
        if flags != 0 {
            return Err(-FI_EINVAL);
        }
        members.remove(index);
        Ok(())
    })
}

unsafe extern "C" fn poll(set: *mut fid_poll, contexts: *mut *mut c_void, count: c_int) -> c_int {
    guard::count(|| {
        // SAFETY: what C gives to a function of a set's table.
        let set = unsafe { handle::of::<PollSet>(set)? };
        let count = usize::try_from(count).map_err(|_| -FI_EINVAL)?;
        if contexts.is_null() && count > 0 {
            return Err(-FI_EINVAL);
        }
        let mut found = 0;
        for member in set.members().iter_mut() {
            if found == count {
                break;
            }
            if member.object.is_ready()? {
                // SAFETY: the handle is open as long as we hold its object, and there is room.
                unsafe { *contexts.add(found) = (*(member.fid as *const fid)).context };
                found += 1;
            }
        }
        Ok(found)
    }) as c_int
}
