//! Operations that an object does not have: the interface calls tables without looking, so every entry is filled.

use std::ffi::{c_char, c_int, c_void};

use crate::abi::*;

macro_rules! missing {
    ($($name:ident($($kind:ty),*) -> $result:ty;)*) => {$(
        pub(crate) unsafe extern "C" fn $name($(_: $kind),*) -> $result {
            -(FI_ENOSYS as $result)
        }
    )*};
}

missing! {
    bind(*mut fid, *mut fid, u64) -> c_int;
    control(*mut fid, c_int, *mut c_void) -> c_int;
    ops_open(*mut fid, *const c_char, u64, *mut *mut c_void, *mut c_void) -> c_int;
    tx_ctx(*mut fid_ep, c_int, *mut fi_tx_attr, *mut *mut fid_ep, *mut c_void) -> c_int;
    rx_ctx(*mut fid_ep, c_int, *mut fi_rx_attr, *mut *mut fid_ep, *mut c_void) -> c_int;
    cancel(fid_t, *mut c_void) -> isize;
    getopt(fid_t, c_int, c_int, *mut c_void, *mut usize) -> c_int;
    setname(fid_t, *mut c_void, usize) -> c_int;
    setopt(fid_t, c_int, c_int, *const c_void, usize) -> c_int;
    size_left(*mut fid_ep) -> isize;
    getpeer(*mut fid_ep, *mut c_void, *mut usize) -> c_int;
    connect(*mut fid_ep, *const c_void, *const c_void, usize) -> c_int;
    listen(*mut fid_pep) -> c_int;
    accept(*mut fid_ep, *const c_void, usize) -> c_int;
    reject(*mut fid_pep, fid_t, *const c_void, usize) -> c_int;
    shutdown(*mut fid_ep, u64) -> c_int;
    poll_open(*mut fid_domain, *mut fi_poll_attr, *mut *mut fid_poll) -> c_int;
    query_collective(*mut fid_domain, u32, *mut fi_collective_attr, u64) -> c_int;
    wait_open(*mut fid_fabric, *mut fi_wait_attr, *mut *mut fid_wait) -> c_int;
    join(*mut fid_ep, *const c_void, u64, *mut *mut fid_mc, *mut c_void) -> c_int;
}
