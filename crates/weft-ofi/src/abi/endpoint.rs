//! Endpoints and untagged messages.

use core::ffi::{c_int, c_void};

use libc::iovec;

use super::{fi_addr_t, fi_ops_atomic, fi_ops_cm, fi_ops_rma, fi_ops_tagged, fi_rx_attr, fi_tx_attr, fid, fid_t};

constants! {
    i32 {
        FI_OPT_ENDPOINT = 0;

        FI_OPT_MIN_MULTI_RECV = 0;
        FI_OPT_CM_DATA_SIZE = 1;
        FI_OPT_BUFFERED_MIN = 2;
        FI_OPT_BUFFERED_LIMIT = 3;
        FI_OPT_SEND_BUF_SIZE = 4;
        FI_OPT_RECV_BUF_SIZE = 5;
        FI_OPT_TX_SIZE = 6;
        FI_OPT_RX_SIZE = 7;
        FI_OPT_FI_HMEM_P2P = 8;
        FI_OPT_XPU_TRIGGER = 9;

        FI_HMEM_P2P_ENABLED = 0;
        FI_HMEM_P2P_REQUIRED = 1;
        FI_HMEM_P2P_PREFERRED = 2;
        FI_HMEM_P2P_DISABLED = 3;
    }
    #[since(1, 18)] i32 { FI_OPT_CUDA_API_PERMITTED = 10; }
    #[since(1, 21)] i32 { FI_OPT_SHARED_MEMORY_PERMITTED = 11; }
    #[since(1, 22)] i32 {
        FI_OPT_MAX_MSG_SIZE = 12;
        FI_OPT_MAX_TAGGED_SIZE = 13;
        FI_OPT_MAX_RMA_SIZE = 14;
        FI_OPT_MAX_ATOMIC_SIZE = 15;
        FI_OPT_INJECT_MSG_SIZE = 16;
        FI_OPT_INJECT_TAGGED_SIZE = 17;
        FI_OPT_INJECT_RMA_SIZE = 18;
        FI_OPT_INJECT_ATOMIC_SIZE = 19;
    }
    #[since(2, 2)] i32 { FI_OPT_FIREWALL_ADDR = 20; }
}

/// Collective operations, which the provider does not offer: the table exists only as a null pointer.
#[repr(C)]
pub struct fi_ops_collective {
    _opaque: [u8; 0],
}

structs! {
    struct fi_msg {
        msg_iov: *const iovec,
        desc: *mut *mut c_void,
        iov_count: usize,
        addr: fi_addr_t,
        context: *mut c_void,
        data: u64,
    }
    struct fid_ep {
        fid: fid,
        ops: *mut fi_ops_ep,
        cm: *mut fi_ops_cm,
        msg: *mut fi_ops_msg,
        rma: *mut fi_ops_rma,
        tagged: *mut fi_ops_tagged,
        atomic: *mut fi_ops_atomic,
        collective: *mut fi_ops_collective,
    }
    struct fid_pep {
        fid: fid,
        ops: *mut fi_ops_ep,
        cm: *mut fi_ops_cm,
    }
    struct fid_stx {
        fid: fid,
        ops: *mut fi_ops_ep,
    }
}

operations! {
    struct fi_ops_ep {
        fn cancel(fid: fid_t, context: *mut c_void) -> isize;
        fn getopt(fid: fid_t, level: c_int, optname: c_int, optval: *mut c_void, optlen: *mut usize) -> c_int;
        fn setopt(fid: fid_t, level: c_int, optname: c_int, optval: *const c_void, optlen: usize) -> c_int;
        fn tx_ctx(
            sep: *mut fid_ep, index: c_int, attr: *mut fi_tx_attr, tx_ep: *mut *mut fid_ep, context: *mut c_void,
        ) -> c_int;
        fn rx_ctx(
            sep: *mut fid_ep, index: c_int, attr: *mut fi_rx_attr, rx_ep: *mut *mut fid_ep, context: *mut c_void,
        ) -> c_int;
        fn rx_size_left(ep: *mut fid_ep) -> isize;
        fn tx_size_left(ep: *mut fid_ep) -> isize;
    }
    struct fi_ops_msg {
        fn recv(
            ep: *mut fid_ep, buf: *mut c_void, len: usize, desc: *mut c_void, src_addr: fi_addr_t,
            context: *mut c_void,
        ) -> isize;
        fn recvv(
            ep: *mut fid_ep, iov: *const iovec, desc: *mut *mut c_void, count: usize, src_addr: fi_addr_t,
            context: *mut c_void,
        ) -> isize;
        fn recvmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize;
        fn send(
            ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, dest_addr: fi_addr_t,
            context: *mut c_void,
        ) -> isize;
        fn sendv(
            ep: *mut fid_ep, iov: *const iovec, desc: *mut *mut c_void, count: usize, dest_addr: fi_addr_t,
            context: *mut c_void,
        ) -> isize;
        fn sendmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize;
        fn inject(ep: *mut fid_ep, buf: *const c_void, len: usize, dest_addr: fi_addr_t) -> isize;
        fn senddata(
            ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, data: u64, dest_addr: fi_addr_t,
            context: *mut c_void,
        ) -> isize;
        fn injectdata(ep: *mut fid_ep, buf: *const c_void, len: usize, data: u64, dest_addr: fi_addr_t) -> isize;
    }
}
