//! What programs sleep on: descriptors of queues, and asking whether sleep is safe.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::abi::*;
use crate::cntr::Count;
use crate::cq::Queue;
use crate::eq::EventQueue;
use crate::fabric::Fabric;
use crate::guard::{self, Result};
use crate::handle;

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
