//! Atomics.

use std::ffi::c_int;

use crate::abi::*;

pub(crate) static OPERATIONS: fi_ops_atomic = fi_ops_atomic {
    size: size_of::<fi_ops_atomic>(),
    write: None,
    writev: None,
    writemsg: None,
    inject: None,
    readwrite: None,
    readwritev: None,
    readwritemsg: None,
    compwrite: None,
    compwritev: None,
    compwritemsg: None,
    writevalid: None,
    readwritevalid: None,
    compwritevalid: None,
};

pub(crate) unsafe extern "C" fn query(_: *mut fid_domain, _: u32, _: u32, _: *mut fi_atomic_attr, _: u64) -> c_int {
    -FI_ENOSYS
}
