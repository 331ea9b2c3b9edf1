//! What programs sleep on: queues, counters and sets of them, by a descriptor or a condition.
//!
//! Everything that can be slept on is [`Sleepable`], and has [`Waits`]: the wait object that the program chose for it.
//! `wait_set.rs` has the sets, `condition.rs` the conditions.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::abi::*;
use crate::cntr::Count;
use crate::condition::Condition;
use crate::cq::Queue;
use crate::eq::EventQueue;
use crate::fabric::Fabric;
use crate::guard::{self, Result};
use crate::handle::{self, Noun};
use crate::wait_set::WaitSet;

/// An epoll set with a signal: what programs sleep on for several things at once.
pub(crate) struct Sleeper {
    set: OwnedFd,
    signal: OwnedFd,
}

impl Sleeper {
    pub(crate) fn new() -> Result<Sleeper> {
        // SAFETY: no memory is involved.
        let set = owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: no memory is involved.
        let signal = owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        let sleeper = Sleeper { set, signal };
        sleeper.add(sleeper.signal.as_raw_fd())?;
        Ok(sleeper)
    }

    /// Adds a descriptor, which leaves by being closed.
    pub(crate) fn add(&self, descriptor: RawFd) -> Result {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        // SAFETY: the event is valid for the time of the call.
        let added = unsafe { libc::epoll_ctl(self.set.as_raw_fd(), libc::EPOLL_CTL_ADD, descriptor, &raw mut event) };
        let exists = || std::io::Error::last_os_error().raw_os_error() == Some(libc::EEXIST);
        if added == 0 || exists() { Ok(()) } else { Err(-FI_EINVAL) }
    }

    /// Takes a descriptor out.
    pub(crate) fn remove(&self, descriptor: RawFd) {
        // SAFETY: no memory is involved. One that is not in the set does no harm.
        unsafe {
            libc::epoll_ctl(self.set.as_raw_fd(), libc::EPOLL_CTL_DEL, descriptor, std::ptr::null_mut());
        }
    }

    /// Wakes whoever sleeps.
    pub(crate) fn signal(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: eight bytes are read. It fails only where it is signalled already.
        let _ = unsafe { libc::write(self.signal.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Forgets earlier signals.
    pub(crate) fn clear(&self) {
        let mut count = [0u8; 8];
        // SAFETY: eight bytes are written. It fails only where there is no signal.
        let _ = unsafe { libc::read(self.signal.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }

    /// Sleeps until something is readable, or the time has passed.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> Result {
        let mut poll = libc::pollfd { fd: self.set.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // Rounded up: who has waited that long need not come again for the rest.
        let milliseconds =
            timeout.map_or(-1, |timeout| c_int::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(c_int::MAX));
        // SAFETY: one valid entry.
        if unsafe { libc::poll(&raw mut poll, 1, milliseconds) } < 0 {
            let error = std::io::Error::last_os_error();
            // Programs want to hear of signals, as with any call that sleeps.
            return Err(-error.raw_os_error().unwrap_or(FI_EIO));
        }
        Ok(())
    }
}

fn owned(descriptor: c_int) -> Result<OwnedFd> {
    if descriptor < 0 {
        return Err(-std::io::Error::last_os_error().raw_os_error().unwrap_or(FI_EMFILE));
    }
    // SAFETY: it was just opened, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// What can be slept on.
pub(crate) trait Sleepable: Send + Sync {
    /// The wait object that the program chose.
    fn waits(&self) -> &Waits;
    /// Makes ready for sleep on the descriptor. False: there may be something to read, do not sleep.
    fn try_sleep(&self) -> Result<bool>;
    /// Readable when there may be something to read, from when [`Sleepable::try_sleep`] was true.
    fn descriptor(&self) -> Result<RawFd>;
}

/// How one object is slept on.
pub(crate) struct Waits {
    object: u32,
    /// The set that it joins, and the descriptor by which the set knows it.
    set: Option<Arc<WaitSet>>,
    joined: Mutex<Option<RawFd>>,
    condition: OnceLock<Condition>,
}

impl Waits {
    /// The wait object that attributes ask for.
    ///
    /// # Safety
    /// `wait_set` is a wait set if the wait object says that there is one.
    pub(crate) unsafe fn new(object: u32, wait_set: *mut fid_wait, fabric: &Arc<Fabric>) -> Result<Waits> {
        let set = match object {
            FI_WAIT_NONE | FI_WAIT_UNSPEC | FI_WAIT_FD | FI_WAIT_MUTEX_COND | FI_WAIT_YIELD | FI_WAIT_POLLFD => None,
            FI_WAIT_SET => {
                // SAFETY: as the caller says.
                let set = unsafe { handle::of::<WaitSet>(wait_set)? };
                if !Arc::ptr_eq(set.fabric(), fabric) {
                    return Err(-FI_EINVAL);
                }
                Some(set.clone())
            }
            _ => return Err(-FI_ENOSYS),
        };
        Ok(Waits { object, set, joined: Mutex::default(), condition: OnceLock::new() })
    }

    /// The object is open: its set, or the thread for its condition, begins to watch it.
    pub(crate) fn start<T: Sleepable + 'static>(&self, object: &Arc<T>) -> Result {
        if self.object == FI_WAIT_MUTEX_COND && self.condition.get().is_none() {
            // Nobody else can have set it: the object is not the program's yet.
            let _ = self.condition.set(Condition::start(object.descriptor()?)?);
        }
        if let Some(set) = &self.set {
            let descriptor = object.descriptor()?;
            let member: Arc<dyn Sleepable> = object.clone();
            set.join(descriptor, Arc::downgrade(&member))?;
            *self.joined.lock().unwrap_or_else(PoisonError::into_inner) = Some(descriptor);
        }
        Ok(())
    }

    fn leave(&self) {
        let joined = self.joined.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let (Some(set), Some(descriptor)) = (&self.set, joined) {
            set.leave(descriptor);
        }
    }

    /// Whether the calls of the object that sleep may be used.
    pub(crate) fn check_sleep(&self) -> Result {
        match self.object {
            FI_WAIT_NONE => Err(-FI_ENOSYS),
            FI_WAIT_SET => Err(-FI_EINVAL),
            _ => Ok(()),
        }
    }

    /// Whether there is a wait object at all.
    pub(crate) fn is_some(&self) -> bool {
        self.object != FI_WAIT_NONE
    }

    /// Whether programs sleep on it by themselves, or with a set.
    pub(crate) fn is_native(&self) -> bool {
        !matches!(self.object, FI_WAIT_NONE | FI_WAIT_YIELD)
    }

    /// Whether to give the processor away instead of sleeping.
    pub(crate) fn yields(&self) -> bool {
        self.object == FI_WAIT_YIELD
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Closes an object that can be slept on.
///
/// # Safety
/// As [`handle::close`].
pub(crate) unsafe fn close<T: Noun + Sleepable + 'static>(fid: *mut fid) -> Result {
    // SAFETY: as the caller says.
    let object = unsafe { handle::of_fid::<T>(fid)? };
    // A thread that waits on the set uses its members for a moment, which must not look as if the object were in use.
    object.waits().leave();
    // SAFETY: as the caller says. If it fails, the object is as it was.
    unsafe { handle::close::<T>(fid) }.inspect_err(|_| {
        let _ = object.waits().start(object);
    })
}

/// `fi_control` of an object that can be slept on.
///
/// # Safety
/// The argument is what the command asks for.
pub(crate) unsafe fn control<T: Noun + Sleepable>(fid: *mut fid, command: c_int, argument: *mut c_void) -> Result {
    // SAFETY: as the caller says.
    let object = unsafe { handle::of_fid::<T>(fid)? };
    let waits = object.waits();
    match &waits.set {
        // SAFETY: as the caller says.
        Some(set) => unsafe { set.control(command, argument) },
        // SAFETY: as the caller says.
        None => unsafe {
            let objects = || Ok((1, vec![object.descriptor()?]));
            answer(waits.object, waits.condition.get(), || object.descriptor(), objects, command, argument)
        },
    }
}

/// Answers `fi_control` by what the wait object is.
///
/// # Safety
/// The argument is what the command asks for.
pub(crate) unsafe fn answer(
    object: u32,
    condition: Option<&Condition>,
    one: impl FnOnce() -> Result<RawFd>,
    all: impl FnOnce() -> Result<(u64, Vec<RawFd>)>,
    command: c_int,
    argument: *mut c_void,
) -> Result {
    if argument.is_null() {
        return Err(-FI_EINVAL);
    }
    // SAFETY: as the caller says.
    unsafe {
        match (command, object) {
            (FI_GETWAIT, FI_WAIT_FD | FI_WAIT_UNSPEC) => *argument.cast::<c_int>() = one()?,
            (FI_GETWAIT, FI_WAIT_MUTEX_COND) => {
                *argument.cast::<fi_mutex_cond>() = condition.ok_or(-FI_ENODATA)?.pair();
            }
            (FI_GETWAIT, FI_WAIT_POLLFD) => {
                let (change, descriptors) = all()?;
                write_descriptors(argument.cast(), change, &descriptors)?;
            }
            (FI_GETWAIT, _) => return Err(-FI_ENODATA),
            // What was left to us is a descriptor.
            (FI_GETWAITOBJ, FI_WAIT_UNSPEC) => *argument.cast::<u32>() = FI_WAIT_FD,
            (FI_GETWAITOBJ, object) => *argument.cast::<u32>() = object,
            _ => return Err(-FI_ENOSYS),
        }
    }
    Ok(())
}

/// Tells a program what to give to `poll`.
///
/// # Safety
/// There is as much room as it says.
unsafe fn write_descriptors(into: *mut fi_wait_pollfd, change: u64, descriptors: &[RawFd]) -> Result {
    // SAFETY: as the caller says.
    unsafe {
        let (room, entries) = ((*into).nfds, (*into).fd);
        (*into).change_index = change;
        (*into).nfds = descriptors.len();
        if room < descriptors.len() {
            return Err(-FI_ETOOSMALL);
        }
        if entries.is_null() && !descriptors.is_empty() {
            return Err(-FI_EINVAL);
        }
        for (index, descriptor) in descriptors.iter().enumerate() {
            entries.add(index).write(libc::pollfd { fd: *descriptor, events: libc::POLLIN, revents: 0 });
        }
    }
    Ok(())
}

/// When a time given in milliseconds has passed; a negative one never does.
pub(crate) fn deadline(timeout: c_int) -> Option<Instant> {
    u64::try_from(timeout).ok().and_then(|timeout| Instant::now().checked_add(Duration::from_millis(timeout)))
}

/// How long it is until then.
pub(crate) fn left(deadline: Option<Instant>) -> Option<Duration> {
    deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
}

/// `fi_trywait`.
pub(crate) unsafe extern "C" fn try_wait(fabric: *mut fid_fabric, fids: *mut *mut fid, count: c_int) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of a fabric's table.
        unsafe { handle::of::<Fabric>(fabric)? };
        let count = usize::try_from(count).map_err(|_| -FI_EINVAL)?;
        if fids.is_null() && count > 0 {
            return Err(-FI_EINVAL);
        }
        for index in 0..count {
            // SAFETY: there are that many.
            let fid = unsafe { *fids.add(index) };
            // SAFETY: an object of the interface, or null.
            let class = unsafe { fid.as_ref() }.ok_or(-FI_EINVAL)?.fclass;
            // SAFETY: the class says what it is.
            let safe = unsafe {
                match class {
                    FI_CLASS_CQ => try_sleep(&**handle::of_fid::<Queue>(fid)?)?,
                    FI_CLASS_CNTR => try_sleep(&**handle::of_fid::<Count>(fid)?)?,
                    FI_CLASS_EQ => try_sleep(&**handle::of_fid::<EventQueue>(fid)?)?,
                    FI_CLASS_WAIT => handle::of_fid::<WaitSet>(fid)?.try_sleep()?,
                    _ => return Err(-FI_EINVAL),
                }
            };
            if !safe {
                return Err(-FI_EAGAIN);
            }
        }
        Ok(())
    })
}

/// Makes one object ready for the program to sleep on it.
fn try_sleep(object: &impl Sleepable) -> Result<bool> {
    let waits = object.waits();
    if !waits.is_some() {
        return Err(-FI_EINVAL);
    }
    let safe = object.try_sleep()?;
    if safe && let Some(condition) = waits.condition.get() {
        condition.watch();
    }
    Ok(safe)
}
