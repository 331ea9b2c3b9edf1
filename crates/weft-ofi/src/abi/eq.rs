//! Event queues, completion queues, counters, wait sets and poll sets.

use core::ffi::{c_char, c_int, c_void};

use libc::{pollfd, pthread_cond_t, pthread_mutex_t};

use super::{fi_addr_t, fi_info, fid, fid_t};

constants! {
    u32 {
        FI_WAIT_NONE = 0;
        FI_WAIT_UNSPEC = 1;
        FI_WAIT_SET = 2;
        FI_WAIT_FD = 3;
        FI_WAIT_MUTEX_COND = 4;
        FI_WAIT_YIELD = 5;
        FI_WAIT_POLLFD = 6;

        FI_NOTIFY = 0;
        FI_CONNREQ = 1;
        FI_CONNECTED = 2;
        FI_SHUTDOWN = 3;
        FI_MR_COMPLETE = 4;
        FI_AV_COMPLETE = 5;
        FI_JOIN_COMPLETE = 6;

        FI_CQ_FORMAT_UNSPEC = 0;
        FI_CQ_FORMAT_CONTEXT = 1;
        FI_CQ_FORMAT_MSG = 2;
        FI_CQ_FORMAT_DATA = 3;
        FI_CQ_FORMAT_TAGGED = 4;

        FI_CQ_COND_NONE = 0;
        FI_CQ_COND_THRESHOLD = 1;

        FI_CNTR_EVENTS_COMP = 0;
    }
    #[since(1, 21)] u32 { FI_CNTR_EVENTS_BYTES = 1; }
}

structs! {
    struct fi_wait_attr {
        wait_obj: u32,
        flags: u64,
    }
    struct fid_wait {
        fid: fid,
        ops: *mut fi_ops_wait,
    }
    struct fi_mutex_cond {
        mutex: *mut pthread_mutex_t,
        cond: *mut pthread_cond_t,
    }
    struct fi_wait_pollfd {
        change_index: u64,
        nfds: usize,
        fd: *mut pollfd,
    }
    struct fi_poll_attr {
        flags: u64,
    }
    struct fid_poll {
        fid: fid,
        ops: *mut fi_ops_poll,
    }
    struct fi_eq_attr {
        size: usize,
        flags: u64,
        wait_obj: u32,
        signaling_vector: c_int,
        wait_set: *mut fid_wait,
    }
    struct fi_eq_entry {
        fid: fid_t,
        context: *mut c_void,
        data: u64,
    }
    struct fi_eq_err_entry {
        fid: fid_t,
        context: *mut c_void,
        data: u64,
        err: c_int,
        prov_errno: c_int,
        err_data: *mut c_void,
        err_data_size: usize,
    }
    struct fi_eq_cm_entry {
        fid: fid_t,
        info: *mut fi_info,
        data: [u8; 0],
    }
    struct fid_eq {
        fid: fid,
        ops: *mut fi_ops_eq,
    }
    struct fi_cq_entry {
        op_context: *mut c_void,
    }
    struct fi_cq_msg_entry {
        op_context: *mut c_void,
        flags: u64,
        len: usize,
    }
    struct fi_cq_data_entry {
        op_context: *mut c_void,
        flags: u64,
        len: usize,
        buf: *mut c_void,
        data: u64,
    }
    struct fi_cq_tagged_entry {
        op_context: *mut c_void,
        flags: u64,
        len: usize,
        buf: *mut c_void,
        data: u64,
        tag: u64,
    }
    struct fi_cq_err_entry {
        op_context: *mut c_void,
        flags: u64,
        len: usize,
        buf: *mut c_void,
        data: u64,
        tag: u64,
        olen: usize,
        err: c_int,
        prov_errno: c_int,
        err_data: *mut c_void,
        err_data_size: usize,
        #[since(1, 20)] src_addr: fi_addr_t,
    }
    struct fi_cq_attr {
        size: usize,
        flags: u64,
        format: u32,
        wait_obj: u32,
        signaling_vector: c_int,
        wait_cond: u32,
        wait_set: *mut fid_wait,
    }
    struct fid_cq {
        fid: fid,
        ops: *mut fi_ops_cq,
    }
    struct fi_cntr_attr {
        events: u32,
        wait_obj: u32,
        wait_set: *mut fid_wait,
        flags: u64,
    }
    struct fid_cntr {
        fid: fid,
        ops: *mut fi_ops_cntr,
    }
}

operations! {
    struct fi_ops_wait {
        fn wait(waitset: *mut fid_wait, timeout: c_int) -> c_int;
    }
    struct fi_ops_poll {
        fn poll(pollset: *mut fid_poll, context: *mut *mut c_void, count: c_int) -> c_int;
        fn poll_add(pollset: *mut fid_poll, event_fid: *mut fid, flags: u64) -> c_int;
        fn poll_del(pollset: *mut fid_poll, event_fid: *mut fid, flags: u64) -> c_int;
    }
    struct fi_ops_eq {
        fn read(eq: *mut fid_eq, event: *mut u32, buf: *mut c_void, len: usize, flags: u64) -> isize;
        fn readerr(eq: *mut fid_eq, buf: *mut fi_eq_err_entry, flags: u64) -> isize;
        fn write(eq: *mut fid_eq, event: u32, buf: *const c_void, len: usize, flags: u64) -> isize;
        fn sread(
            eq: *mut fid_eq, event: *mut u32, buf: *mut c_void, len: usize, timeout: c_int, flags: u64,
        ) -> isize;
        fn strerror(
            eq: *mut fid_eq, prov_errno: c_int, err_data: *const c_void, buf: *mut c_char, len: usize,
        ) -> *const c_char;
    }
    struct fi_ops_cq {
        fn read(cq: *mut fid_cq, buf: *mut c_void, count: usize) -> isize;
        fn readfrom(cq: *mut fid_cq, buf: *mut c_void, count: usize, src_addr: *mut fi_addr_t) -> isize;
        fn readerr(cq: *mut fid_cq, buf: *mut fi_cq_err_entry, flags: u64) -> isize;
        fn sread(cq: *mut fid_cq, buf: *mut c_void, count: usize, cond: *const c_void, timeout: c_int) -> isize;
        fn sreadfrom(
            cq: *mut fid_cq, buf: *mut c_void, count: usize, src_addr: *mut fi_addr_t, cond: *const c_void,
            timeout: c_int,
        ) -> isize;
        fn signal(cq: *mut fid_cq) -> c_int;
        fn strerror(
            cq: *mut fid_cq, prov_errno: c_int, err_data: *const c_void, buf: *mut c_char, len: usize,
        ) -> *const c_char;
    }
    struct fi_ops_cntr {
        fn read(cntr: *mut fid_cntr) -> u64;
        fn readerr(cntr: *mut fid_cntr) -> u64;
        fn add(cntr: *mut fid_cntr, value: u64) -> c_int;
        fn set(cntr: *mut fid_cntr, value: u64) -> c_int;
        fn wait(cntr: *mut fid_cntr, threshold: u64, timeout: c_int) -> c_int;
        fn adderr(cntr: *mut fid_cntr, value: u64) -> c_int;
        fn seterr(cntr: *mut fid_cntr, value: u64) -> c_int;
    }
}
