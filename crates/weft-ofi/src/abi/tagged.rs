//! Tagged messages.

use core::ffi::c_void;

use libc::iovec;

use super::{fi_addr_t, fid_ep};

constants! {
    #[since(2, 0)] u64 {
        FI_MPI_IGNORE_TAG = u32::MAX as u64;
        FI_MPI_IGNORE_PAYLOAD = (u8::MAX as u64) << 32;
    }
}

structs! {
    struct fi_msg_tagged {
        msg_iov: *const iovec,
        desc: *mut *mut c_void,
        iov_count: usize,
        addr: fi_addr_t,
        tag: u64,
        ignore: u64,
        context: *mut c_void,
        data: u64,
    }
}

operations! {
    struct fi_ops_tagged {
        fn recv(
            ep: *mut fid_ep, buf: *mut c_void, len: usize, desc: *mut c_void, src_addr: fi_addr_t, tag: u64,
            ignore: u64, context: *mut c_void,
        ) -> isize;
        fn recvv(
            ep: *mut fid_ep, iov: *const iovec, desc: *mut *mut c_void, count: usize, src_addr: fi_addr_t, tag: u64,
            ignore: u64, context: *mut c_void,
        ) -> isize;
        fn recvmsg(ep: *mut fid_ep, msg: *const fi_msg_tagged, flags: u64) -> isize;
        fn send(
            ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, dest_addr: fi_addr_t, tag: u64,
            context: *mut c_void,
        ) -> isize;
        fn sendv(
            ep: *mut fid_ep, iov: *const iovec, desc: *mut *mut c_void, count: usize, dest_addr: fi_addr_t, tag: u64,
            context: *mut c_void,
        ) -> isize;
        fn sendmsg(ep: *mut fid_ep, msg: *const fi_msg_tagged, flags: u64) -> isize;
        fn inject(ep: *mut fid_ep, buf: *const c_void, len: usize, dest_addr: fi_addr_t, tag: u64) -> isize;
        fn senddata(
            ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, data: u64, dest_addr: fi_addr_t,
            tag: u64, context: *mut c_void,
        ) -> isize;
        fn injectdata(
            ep: *mut fid_ep, buf: *const c_void, len: usize, data: u64, dest_addr: fi_addr_t, tag: u64,
        ) -> isize;
    }
}
