//! Wait sets: sleep until one of several objects has something.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use crate::abi::*;
use crate::condition::Condition;
use crate::fabric::Fabric;
use crate::guard::{self, Result};
use crate::handle::{self, Noun};
use crate::wait::{self, Sleepable, Sleeper};

/// A wait set. Objects that were opened for it are its members until they are closed.
pub(crate) struct WaitSet {
    fabric: Arc<Fabric>,
    object: u32,
    sleeper: Sleeper,
    members: Mutex<Members>,
    condition: OnceLock<Condition>,
}

#[derive(Default)]
struct Members {
    /// Each with its descriptor, which is its name here.
    list: Vec<(RawFd, Weak<dyn Sleepable>)>,
    /// How often the list has changed.
    changes: u64,
}

// SAFETY: `fid_wait` begins with its `fid`.
unsafe impl Noun for WaitSet {
    type Face = fid_wait;
    const MARK: u64 = u64::from_be_bytes(*b"weft-set");
}

impl WaitSet {
    pub(crate) fn fabric(&self) -> &Arc<Fabric> {
        &self.fabric
    }

    fn members(&self) -> MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a member.
    pub(crate) fn join(&self, descriptor: RawFd, member: Weak<dyn Sleepable>) -> Result {
        let mut members = self.members();
        self.sleeper.add(descriptor)?;
        members.list.push((descriptor, member));
        members.changes += 1;
        drop(members);
        // Who sleeps has not made the new one ready for it.
        self.sleeper.signal();
        Ok(())
    }

    /// Takes a member out.
    pub(crate) fn leave(&self, descriptor: RawFd) {
        let mut members = self.members();
        self.sleeper.remove(descriptor);
        members.list.retain(|(known, _)| *known != descriptor);
        members.changes += 1;
    }

    /// Makes all members ready for sleep. False: one of them has something, do not sleep.
    fn all_ready_for_sleep(&self) -> Result<bool> {
        // Members are used under the lock only, so that who closes one waits until nobody does.
        let members = self.members();
        self.sleeper.clear();
        for (_, member) in &members.list {
            if let Some(member) = member.upgrade()
                && !member.try_sleep()?
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Makes ready for the program to sleep on the wait object. False: do not sleep.
    pub(crate) fn try_sleep(&self) -> Result<bool> {
        let safe = self.all_ready_for_sleep()?;
        if safe && let Some(condition) = self.condition.get() {
            condition.watch();
        }
        Ok(safe)
    }

    /// `fi_control`.
    ///
    /// # Safety
    /// The argument is what the command asks for.
    pub(crate) unsafe fn control(&self, command: c_int, argument: *mut c_void) -> Result {
        let one = || Ok(self.sleeper.descriptor().as_raw_fd());
        let all = || {
            let members = self.members();
            Ok((members.changes, members.list.iter().map(|(descriptor, _)| *descriptor).collect()))
        };
        // SAFETY: as the caller says.
        unsafe { wait::answer(self.object, self.condition.get(), one, all, command, argument) }
    }
}

static FID_OPERATIONS: fi_ops = crate::no::operations(close, crate::no::bind, control);

static OPERATIONS: fi_ops_wait = fi_ops_wait { size: size_of::<fi_ops_wait>(), wait: Some(wait) };

/// `fi_wait_open`.
pub(crate) unsafe extern "C" fn open(
    fabric: *mut fid_fabric,
    attributes: *mut fi_wait_attr,
    into: *mut *mut fid_wait,
) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of a fabric's table.
        let (fabric, attributes) = unsafe { (handle::of::<Fabric>(fabric)?, attributes.as_ref()) };
        if into.is_null() || attributes.is_some_and(|attributes| attributes.flags != 0) {
            return Err(-FI_EINVAL);
        }
        let object = attributes.map_or(FI_WAIT_UNSPEC, |attributes| attributes.wait_obj);
        match object {
            FI_WAIT_UNSPEC | FI_WAIT_FD | FI_WAIT_MUTEX_COND | FI_WAIT_YIELD | FI_WAIT_POLLFD => {}
            _ => return Err(-FI_EINVAL),
        }
        let sleeper = Sleeper::new()?;
        let condition = OnceLock::new();
        if object == FI_WAIT_MUTEX_COND {
            let _ = condition.set(Condition::start(sleeper.descriptor().as_raw_fd())?);
        }
        let set = WaitSet { fabric: fabric.clone(), object, sleeper, members: Mutex::default(), condition };
        let fid = handle::fid_of(FI_CLASS_WAIT, std::ptr::null_mut(), &FID_OPERATIONS);
        let face = fid_wait { fid, ops: handle::table(&OPERATIONS) };
        // SAFETY: `into` was checked.
        unsafe { *into = handle::open(face, Arc::new(set)) };
        Ok(())
    })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: what C gives to a function of a set's table. Its members hold it.
    guard::call(|| unsafe { handle::close::<WaitSet>(fid) })
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: what C gives to a function of a set's table.
    guard::call(|| unsafe { handle::of_fid::<WaitSet>(fid)?.control(command, argument) })
}

unsafe extern "C" fn wait(set: *mut fid_wait, timeout: c_int) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of a set's table.
        let set = unsafe { handle::of::<WaitSet>(set)? };
        let deadline = wait::deadline(timeout);
        loop {
            if !set.all_ready_for_sleep()? {
                return Ok(());
            }
            let left = wait::left(deadline);
            if left == Some(Duration::ZERO) {
                return Err(-FI_ETIMEDOUT);
            }
            match set.object {
                FI_WAIT_YIELD => std::thread::yield_now(),
                _ => set.sleeper.wait(left)?,
            }
        }
    })
}
