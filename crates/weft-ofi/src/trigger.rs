//! Triggered and deferred work.

use std::ffi::{c_int, c_void};

use weft::raw::{Buffer, Command};

use crate::abi::*;
use crate::ep::Endpoint;
use crate::guard::Result;

/// A command that waits for a counter.
pub(crate) fn transmit(_: &Endpoint, _: Command, _: Buffer, _: *mut c_void) -> Result<usize> {
    Err(-FI_ENOSYS)
}

/// `fi_control` of a domain.
pub(crate) unsafe extern "C" fn control(_: *mut fid, _: c_int, _: *mut c_void) -> c_int {
    -FI_ENOSYS
}
