//! Atomic operations, their datatypes and operators.

use core::ffi::{c_int, c_void};

use super::{fi_addr_t, fi_ioc, fi_rma_ioc, fid_ep};

constants! {
    u64 {
        FI_FETCH_ATOMIC = 1 << 58;
        FI_COMPARE_ATOMIC = 1 << 59;
    }
    u32 {
        FI_INT8 = 0;
        FI_UINT8 = 1;
        FI_INT16 = 2;
        FI_UINT16 = 3;
        FI_INT32 = 4;
        FI_UINT32 = 5;
        FI_INT64 = 6;
        FI_UINT64 = 7;
        FI_FLOAT = 8;
        FI_DOUBLE = 9;
        FI_FLOAT_COMPLEX = 10;
        FI_DOUBLE_COMPLEX = 11;
        FI_LONG_DOUBLE = 12;
        FI_LONG_DOUBLE_COMPLEX = 13;
        FI_DATATYPE_LAST = 14;
        FI_INT128 = 14;
        FI_UINT128 = 15;
        FI_VOID = 256;

        FI_MIN = 0;
        FI_MAX = 1;
        FI_SUM = 2;
        FI_PROD = 3;
        FI_LOR = 4;
        FI_LAND = 5;
        FI_BOR = 6;
        FI_BAND = 7;
        FI_LXOR = 8;
        FI_BXOR = 9;
        FI_ATOMIC_READ = 10;
        FI_ATOMIC_WRITE = 11;
        FI_CSWAP = 12;
        FI_CSWAP_NE = 13;
        FI_CSWAP_LE = 14;
        FI_CSWAP_LT = 15;
        FI_CSWAP_GE = 16;
        FI_CSWAP_GT = 17;
        FI_MSWAP = 18;
        FI_ATOMIC_OP_LAST = 19;
        FI_NOOP = 256;
    }
    #[since(2, 0)] u32 {
        FI_FLOAT16 = 16;
        FI_BFLOAT16 = 17;
        FI_FLOAT8_E4M3 = 18;
        FI_FLOAT8_E5M2 = 19;
        FI_DIFF = 19;
    }
}

structs! {
    struct fi_atomic_attr {
        count: usize,
        size: usize,
    }
    struct fi_msg_atomic {
        msg_iov: *const fi_ioc,
        desc: *mut *mut c_void,
        iov_count: usize,
        addr: fi_addr_t,
        rma_iov: *const fi_rma_ioc,
        rma_iov_count: usize,
        datatype: u32,
        op: u32,
        context: *mut c_void,
        data: u64,
    }
    struct fi_msg_fetch {
        msg_iov: *mut fi_ioc,
        desc: *mut *mut c_void,
        iov_count: usize,
    }
    struct fi_msg_compare {
        msg_iov: *const fi_ioc,
        desc: *mut *mut c_void,
        iov_count: usize,
    }
}

operations! {
    struct fi_ops_atomic {
        fn write(
            ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void, dest_addr: fi_addr_t, addr: u64,
            key: u64, datatype: u32, op: u32, context: *mut c_void,
        ) -> isize;
        fn writev(
            ep: *mut fid_ep, iov: *const fi_ioc, desc: *mut *mut c_void, count: usize, dest_addr: fi_addr_t,
            addr: u64, key: u64, datatype: u32, op: u32, context: *mut c_void,
        ) -> isize;
        fn writemsg(ep: *mut fid_ep, msg: *const fi_msg_atomic, flags: u64) -> isize;
        fn inject(
            ep: *mut fid_ep, buf: *const c_void, count: usize, dest_addr: fi_addr_t, addr: u64, key: u64,
            datatype: u32, op: u32,
        ) -> isize;
        fn readwrite(
            ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void, result: *mut c_void,
            result_desc: *mut c_void, dest_addr: fi_addr_t, addr: u64, key: u64, datatype: u32, op: u32,
            context: *mut c_void,
        ) -> isize;
        fn readwritev(
            ep: *mut fid_ep, iov: *const fi_ioc, desc: *mut *mut c_void, count: usize, resultv: *mut fi_ioc,
            result_desc: *mut *mut c_void, result_count: usize, dest_addr: fi_addr_t, addr: u64, key: u64,
            datatype: u32, op: u32, context: *mut c_void,
        ) -> isize;
        fn readwritemsg(
            ep: *mut fid_ep, msg: *const fi_msg_atomic, resultv: *mut fi_ioc, result_desc: *mut *mut c_void,
            result_count: usize, flags: u64,
        ) -> isize;
        fn compwrite(
            ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void, compare: *const c_void,
            compare_desc: *mut c_void, result: *mut c_void, result_desc: *mut c_void, dest_addr: fi_addr_t,
            addr: u64, key: u64, datatype: u32, op: u32, context: *mut c_void,
        ) -> isize;
        fn compwritev(
            ep: *mut fid_ep, iov: *const fi_ioc, desc: *mut *mut c_void, count: usize, comparev: *const fi_ioc,
            compare_desc: *mut *mut c_void, compare_count: usize, resultv: *mut fi_ioc,
            result_desc: *mut *mut c_void, result_count: usize, dest_addr: fi_addr_t, addr: u64, key: u64,
            datatype: u32, op: u32, context: *mut c_void,
        ) -> isize;
        fn compwritemsg(
            ep: *mut fid_ep, msg: *const fi_msg_atomic, comparev: *const fi_ioc, compare_desc: *mut *mut c_void,
            compare_count: usize, resultv: *mut fi_ioc, result_desc: *mut *mut c_void, result_count: usize,
            flags: u64,
        ) -> isize;
        fn writevalid(ep: *mut fid_ep, datatype: u32, op: u32, count: *mut usize) -> c_int;
        fn readwritevalid(ep: *mut fid_ep, datatype: u32, op: u32, count: *mut usize) -> c_int;
        fn compwritevalid(ep: *mut fid_ep, datatype: u32, op: u32, count: *mut usize) -> c_int;
    }
}
