//! Domains, address vectors and memory regions.

use core::ffi::{c_char, c_int, c_void};

use libc::iovec;

use super::{
    fi_addr_t, fi_atomic_attr, fi_cntr_attr, fi_cq_attr, fi_info, fi_poll_attr, fi_rx_attr, fi_tx_attr, fid, fid_cntr,
    fid_cq, fid_ep, fid_poll, fid_stx,
};

constants! {
    u64 {
        FI_SYMMETRIC = 1 << 59;
        FI_SYNC_ERR = 1 << 58;
        FI_UNIVERSE = 1 << 57;
        FI_BARRIER_SET = 1 << 40;
        FI_BROADCAST_SET = 1 << 41;
        FI_ALLTOALL_SET = 1 << 42;
        FI_ALLREDUCE_SET = 1 << 43;
        FI_ALLGATHER_SET = 1 << 44;
        FI_REDUCE_SCATTER_SET = 1 << 45;
        FI_REDUCE_SET = 1 << 46;
        FI_SCATTER_SET = 1 << 47;
        FI_GATHER_SET = 1 << 48;
        FI_REG_MR = 1 << 59;
        FI_HMEM_HOST_ALLOC = 1 << 45;
        FI_HMEM_DEVICE_ONLY = 1 << 46;
    }
    #[since(1, 20)] u64 { FI_MR_DMABUF = 1 << 40; }
    #[since(2, 0)] u64 { FI_MR_SINGLE_USE = 1 << 41; }
    u32 {
        FI_HMEM_SYSTEM = 0;
        FI_HMEM_CUDA = 1;
        FI_HMEM_ROCR = 2;
        FI_HMEM_ZE = 3;
        FI_HMEM_NEURON = 4;
        FI_HMEM_SYNAPSEAI = 5;

        FI_BARRIER = 0;
        FI_BROADCAST = 1;
        FI_ALLTOALL = 2;
        FI_ALLREDUCE = 3;
        FI_ALLGATHER = 4;
        FI_REDUCE_SCATTER = 5;
        FI_REDUCE = 6;
        FI_SCATTER = 7;
        FI_GATHER = 8;
    }
}

/// What `fi_mr_attr` describes; `dmabuf` (1.20) is meant where the flag `FI_MR_DMABUF` is set.
#[repr(C)]
#[derive(Clone, Copy)]
pub union fi_mr_memory {
    pub mr_iov: *const iovec,
    pub dmabuf: *const fi_mr_dmabuf,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union fi_mr_device {
    pub reserved: u64,
    pub cuda: c_int,
    pub ze: c_int,
    pub neuron: c_int,
    pub synapseai: c_int,
    pub rocr: c_int,
}

/// What a query about collective operations asks; the provider does not offer them and never reads it.
#[repr(C)]
pub struct fi_collective_attr {
    _opaque: [u8; 0],
}

structs! {
    struct fi_av_attr {
        r#type: u32,
        rx_ctx_bits: c_int,
        count: usize,
        ep_per_node: usize,
        name: *const c_char,
        map_addr: *mut c_void,
        flags: u64,
    }
    struct fi_av_set_attr {
        count: usize,
        start_addr: fi_addr_t,
        end_addr: fi_addr_t,
        stride: u64,
        comm_key_size: usize,
        comm_key: *mut u8,
        flags: u64,
    }
    struct fid_av {
        fid: fid,
        ops: *mut fi_ops_av,
    }
    struct fid_av_set {
        fid: fid,
        ops: *mut fi_ops_av_set,
    }
    struct fid_mr {
        fid: fid,
        mem_desc: *mut c_void,
        key: u64,
    }
    #[since(1, 20)]
    struct fi_mr_dmabuf {
        fd: c_int,
        offset: u64,
        len: usize,
        base_addr: *mut c_void,
    }
    #[since(1, 20)]
    struct fi_mr_auth_key {
        av: *mut fid_av,
        src_addr: fi_addr_t,
    }
    struct fi_mr_attr {
        mr_iov: fi_mr_memory,
        iov_count: usize,
        access: u64,
        offset: u64,
        requested_key: u64,
        context: *mut c_void,
        auth_key_size: usize,
        auth_key: *mut u8,
        iface: u32,
        device: fi_mr_device,
        #[since(1, 19)] hmem_data: *mut c_void,
        #[since(1, 22)] page_size: usize,
        #[since(2, 0)] base_mr: *const fid_mr,
        #[since(2, 0)] sub_mr_cnt: usize,
    }
    struct fi_mr_modify {
        flags: u64,
        #[grown(2, 0)] attr: fi_mr_attr,
    }
    struct fid_domain {
        fid: fid,
        ops: *mut fi_ops_domain,
        mr: *mut fi_ops_mr,
    }
}

operations! {
    struct fi_ops_av {
        fn insert(
            av: *mut fid_av, addr: *const c_void, count: usize, fi_addr: *mut fi_addr_t, flags: u64,
            context: *mut c_void,
        ) -> c_int;
        fn insertsvc(
            av: *mut fid_av, node: *const c_char, service: *const c_char, fi_addr: *mut fi_addr_t, flags: u64,
            context: *mut c_void,
        ) -> c_int;
        fn insertsym(
            av: *mut fid_av, node: *const c_char, nodecnt: usize, service: *const c_char, svccnt: usize,
            fi_addr: *mut fi_addr_t, flags: u64, context: *mut c_void,
        ) -> c_int;
        fn remove(av: *mut fid_av, fi_addr: *mut fi_addr_t, count: usize, flags: u64) -> c_int;
        fn lookup(av: *mut fid_av, fi_addr: fi_addr_t, addr: *mut c_void, addrlen: *mut usize) -> c_int;
        fn straddr(av: *mut fid_av, addr: *const c_void, buf: *mut c_char, len: *mut usize) -> *const c_char;
        fn av_set(
            av: *mut fid_av, attr: *mut fi_av_set_attr, av_set: *mut *mut fid_av_set, context: *mut c_void,
        ) -> c_int;
        #[since(1, 20)]
        fn insert_auth_key(
            av: *mut fid_av, auth_key: *const c_void, auth_key_size: usize, fi_addr: *mut fi_addr_t, flags: u64,
        ) -> c_int;
        #[since(1, 20)]
        fn lookup_auth_key(
            av: *mut fid_av, fi_addr: fi_addr_t, auth_key: *mut c_void, auth_key_size: *mut usize,
        ) -> c_int;
        #[since(1, 20)]
        fn set_user_id(av: *mut fid_av, fi_addr: fi_addr_t, user_id: fi_addr_t, flags: u64) -> c_int;
    }
    struct fi_ops_av_set {
        fn set_union(dst: *mut fid_av_set, src: *const fid_av_set) -> c_int;
        fn intersect(dst: *mut fid_av_set, src: *const fid_av_set) -> c_int;
        fn diff(dst: *mut fid_av_set, src: *const fid_av_set) -> c_int;
        fn insert(set: *mut fid_av_set, addr: fi_addr_t) -> c_int;
        fn remove(set: *mut fid_av_set, addr: fi_addr_t) -> c_int;
        fn addr(set: *mut fid_av_set, coll_addr: *mut fi_addr_t) -> c_int;
    }
    struct fi_hmem_override_ops {
        fn copy_from_hmem_iov(
            dest: *mut c_void, size: usize, iface: u32, device: u64, hmem_iov: *const iovec, hmem_iov_count: usize,
            hmem_iov_offset: u64,
        ) -> isize;
        fn copy_to_hmem_iov(
            iface: u32, device: u64, hmem_iov: *const iovec, hmem_iov_count: usize, hmem_iov_offset: u64,
            src: *const c_void, size: usize,
        ) -> isize;
    }
    struct fi_ops_domain {
        fn av_open(
            domain: *mut fid_domain, attr: *mut fi_av_attr, av: *mut *mut fid_av, context: *mut c_void,
        ) -> c_int;
        fn cq_open(
            domain: *mut fid_domain, attr: *mut fi_cq_attr, cq: *mut *mut fid_cq, context: *mut c_void,
        ) -> c_int;
        fn endpoint(
            domain: *mut fid_domain, info: *mut fi_info, ep: *mut *mut fid_ep, context: *mut c_void,
        ) -> c_int;
        fn scalable_ep(
            domain: *mut fid_domain, info: *mut fi_info, sep: *mut *mut fid_ep, context: *mut c_void,
        ) -> c_int;
        fn cntr_open(
            domain: *mut fid_domain, attr: *mut fi_cntr_attr, cntr: *mut *mut fid_cntr, context: *mut c_void,
        ) -> c_int;
        fn poll_open(domain: *mut fid_domain, attr: *mut fi_poll_attr, pollset: *mut *mut fid_poll) -> c_int;
        fn stx_ctx(
            domain: *mut fid_domain, attr: *mut fi_tx_attr, stx: *mut *mut fid_stx, context: *mut c_void,
        ) -> c_int;
        fn srx_ctx(
            domain: *mut fid_domain, attr: *mut fi_rx_attr, rx_ep: *mut *mut fid_ep, context: *mut c_void,
        ) -> c_int;
        fn query_atomic(
            domain: *mut fid_domain, datatype: u32, op: u32, attr: *mut fi_atomic_attr, flags: u64,
        ) -> c_int;
        fn query_collective(domain: *mut fid_domain, coll: u32, attr: *mut fi_collective_attr, flags: u64) -> c_int;
        fn endpoint2(
            domain: *mut fid_domain, info: *mut fi_info, ep: *mut *mut fid_ep, flags: u64, context: *mut c_void,
        ) -> c_int;
    }
    struct fi_ops_mr {
        fn reg(
            fid: *mut fid, buf: *const c_void, len: usize, access: u64, offset: u64, requested_key: u64, flags: u64,
            mr: *mut *mut fid_mr, context: *mut c_void,
        ) -> c_int;
        fn regv(
            fid: *mut fid, iov: *const iovec, count: usize, access: u64, offset: u64, requested_key: u64,
            flags: u64, mr: *mut *mut fid_mr, context: *mut c_void,
        ) -> c_int;
        fn regattr(fid: *mut fid, attr: *const fi_mr_attr, flags: u64, mr: *mut *mut fid_mr) -> c_int;
    }
}
