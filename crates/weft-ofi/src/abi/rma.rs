//! Remote memory access.

use core::ffi::c_void;

use libc::iovec;

use super::{fi_addr_t, fid_ep};

structs! {
    struct fi_rma_iov {
        addr: u64,
        len: usize,
        key: u64,
    }
    struct fi_rma_ioc {
        addr: u64,
        count: usize,
        key: u64,
    }
    struct fi_msg_rma {
        msg_iov: *const iovec,
        desc: *mut *mut c_void,
        iov_count: usize,
        addr: fi_addr_t,
        rma_iov: *const fi_rma_iov,
        rma_iov_count: usize,
        context: *mut c_void,
        data: u64,
    }
}

operations! {
    struct fi_ops_rma {
        fn read(
            ep: *mut fid_ep, buf: *mut c_void, len: usize, desc: *mut c_void, src_addr: fi_addr_t, addr: u64,
            key: u64, context: *mut c_void,
        ) -> isize;
        fn readv(
            ep: *mut fid_ep, iov: *const iovec, desc: *mut *mut c_void, count: usize, src_addr: fi_addr_t, addr: u64,
            key: u64, context: *mut c_void,
        ) -> isize;
        fn readmsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize;
        fn write(
            ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, dest_addr: fi_addr_t, addr: u64,
            key: u64, context: *mut c_void,
        ) -> isize;
        fn writev(
            ep: *mut fid_ep, iov: *const iovec, desc: *mut *mut c_void, count: usize, dest_addr: fi_addr_t,
            addr: u64, key: u64, context: *mut c_void,
        ) -> isize;
        fn writemsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize;
        fn inject(
            ep: *mut fid_ep, buf: *const c_void, len: usize, dest_addr: fi_addr_t, addr: u64, key: u64,
        ) -> isize;
        fn writedata(
            ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, data: u64, dest_addr: fi_addr_t,
            addr: u64, key: u64, context: *mut c_void,
        ) -> isize;
        fn injectdata(
            ep: *mut fid_ep, buf: *const c_void, len: usize, data: u64, dest_addr: fi_addr_t, addr: u64, key: u64,
        ) -> isize;
    }
}
