//! What programs sleep on: descriptors of queues, and asking whether sleep is safe.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use crate::abi::*;
use crate::cntr::Count;
use crate::cq::Queue;
use crate::eq::EventQueue;
use crate::fabric::Fabric;
use crate::guard::{self, Result};
use crate::handle;

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

/// `fi_control` of an object that can be slept on.
///
/// # Safety
/// The argument is what the command asks for.
pub(crate) unsafe fn control<'a>(
    wait_object: u32,
    descriptor: impl FnOnce() -> weft::Result<BorrowedFd<'a>>,
    command: c_int,
    argument: *mut c_void,
) -> Result {
    if argument.is_null() {
        return Err(-FI_EINVAL);
    }
    match (command, wait_object) {
        (FI_GETWAIT, FI_WAIT_FD | FI_WAIT_UNSPEC) => {
            let descriptor = descriptor().map_err(|error| guard::errno(&error))?;
            // SAFETY: as the caller says.
            unsafe { *argument.cast::<c_int>() = descriptor.as_raw_fd() };
            Ok(())
        }
        (FI_GETWAITOBJ, _) => {
            // SAFETY: as the caller says.
            unsafe { *argument.cast::<u32>() = wait_object };
            Ok(())
        }
        (FI_GETWAIT, _) => Err(-FI_ENODATA),
        _ => Err(-FI_ENOSYS),
    }
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
            let ready = unsafe {
                match class {
                    FI_CLASS_CQ => handle::of_fid::<Queue>(fid)?.is_ready(),
                    FI_CLASS_CNTR => handle::of_fid::<Count>(fid)?.is_ready(),
                    FI_CLASS_EQ => handle::of_fid::<EventQueue>(fid)?.is_ready(),
                    _ => return Err(-FI_ENOSYS),
                }
            };
            if ready {
                return Err(-FI_EAGAIN);
            }
        }
        Ok(())
    })
}
