//! The common part of every object, the attributes that negotiation exchanges, and the provider's entry table.

use core::ffi::{c_char, c_int, c_void};

use super::{fi_eq_attr, fi_wait_attr, fid_domain, fid_ep, fid_eq, fid_pep, fid_wait};

pub type fi_addr_t = u64;
pub type fid_t = *mut fid;

/// Packs a release as the interface passes it.
#[expect(non_snake_case, reason = "the name of the C macro")]
pub const fn FI_VERSION(major: u32, minor: u32) -> u32 {
    (major << 16) | minor
}

/// The major number of a packed release.
#[expect(non_snake_case, reason = "the name of the C macro")]
pub const fn FI_MAJOR(version: u32) -> u32 {
    version >> 16
}

/// The minor number of a packed release.
#[expect(non_snake_case, reason = "the name of the C macro")]
pub const fn FI_MINOR(version: u32) -> u32 {
    version & 0xffff
}

constants! {
    // Capabilities and flags of operations.
    u64 {
        FI_MSG = 1 << 1;
        FI_RMA = 1 << 2;
        FI_TAGGED = 1 << 3;
        FI_ATOMIC = 1 << 4;
        FI_ATOMICS = FI_ATOMIC;
        FI_MULTICAST = 1 << 5;
        FI_COLLECTIVE = 1 << 6;
        FI_READ = 1 << 8;
        FI_WRITE = 1 << 9;
        FI_RECV = 1 << 10;
        FI_SEND = 1 << 11;
        FI_TRANSMIT = FI_SEND;
        FI_REMOTE_READ = 1 << 12;
        FI_REMOTE_WRITE = 1 << 13;
        FI_MULTI_RECV = 1 << 16;
        FI_REMOTE_CQ_DATA = 1 << 17;
        FI_MORE = 1 << 18;
        FI_PEEK = 1 << 19;
        FI_TRIGGER = 1 << 20;
        FI_FENCE = 1 << 21;
        FI_COMPLETION = 1 << 24;
        FI_EVENT = FI_COMPLETION;
        FI_INJECT = 1 << 25;
        FI_INJECT_COMPLETE = 1 << 26;
        FI_TRANSMIT_COMPLETE = 1 << 27;
        FI_DELIVERY_COMPLETE = 1 << 28;
        FI_AFFINITY = 1 << 29;
        FI_COMMIT_COMPLETE = 1 << 30;
        FI_MATCH_COMPLETE = 1 << 31;
        FI_PEER_TRANSFER = 1 << 36;
        FI_AV_USER_ID = 1 << 41;
        FI_PEER = 1 << 43;
        FI_HMEM = 1 << 47;
        FI_RMA_PMEM = 1 << 49;
        FI_SOURCE_ERR = 1 << 50;
        FI_LOCAL_COMM = 1 << 51;
        FI_REMOTE_COMM = 1 << 52;
        FI_SHARED_AV = 1 << 53;
        FI_PROV_ATTR_ONLY = 1 << 54;
        FI_NUMERICHOST = 1 << 55;
        FI_RMA_EVENT = 1 << 56;
        FI_SOURCE = 1 << 57;
        FI_NAMED_RX_CTX = 1 << 58;
        FI_DIRECTED_RECV = 1 << 59;
        FI_CLAIM = 1 << 59;
        FI_DISCARD = 1 << 58;
        FI_SELECTIVE_COMPLETION = 1 << 59;
    }
    #[until(1, 21)] u64 {
        FI_PRIORITY = 1 << 22;
        FI_XPU_TRIGGER = 1 << 44;
        FI_VARIABLE_MSG = 1 << 48;
    }
    #[since(1, 20)] u64 { FI_AUTH_KEY = 1 << 57; }
    #[since(2, 0)] u64 {
        FI_TAGGED_DIRECTED_RECV = 1 << 45;
        FI_TAGGED_MULTI_RECV = 1 << 46;
        FI_EXACT_DIRECTED_RECV = 1 << 48;
    }
    #[since(2, 2)] u64 {
        FI_RESCAN = 1 << 35;
        FI_FIREWALL_ADDR = 1 << 42;
    }

    // Modes.
    u64 {
        FI_CONTEXT = 1 << 59;
        FI_MSG_PREFIX = 1 << 58;
        FI_ASYNC_IOV = 1 << 57;
        FI_RX_CQ_DATA = 1 << 56;
        FI_LOCAL_MR = 1 << 55;
        FI_CONTEXT2 = 1 << 52;
    }
    #[until(1, 21)] u64 {
        FI_NOTIFY_FLAGS_ONLY = 1 << 54;
        FI_RESTRICTED_COMP = 1 << 53;
    }
    #[until(2, 0)] u64 { FI_BUFFERED_RECV = 1 << 51; }

    // Orders.
    u64 {
        FI_ORDER_NONE = 0;
        FI_ORDER_RAR = 1 << 0;
        FI_ORDER_RAW = 1 << 1;
        FI_ORDER_RAS = 1 << 2;
        FI_ORDER_WAR = 1 << 3;
        FI_ORDER_WAW = 1 << 4;
        FI_ORDER_WAS = 1 << 5;
        FI_ORDER_SAR = 1 << 6;
        FI_ORDER_SAW = 1 << 7;
        FI_ORDER_SAS = 1 << 8;
        FI_ORDER_STRICT = 0x1ff;
        FI_ORDER_DATA = 1 << 16;
        FI_ORDER_RMA_RAR = 1 << 32;
        FI_ORDER_RMA_RAW = 1 << 33;
        FI_ORDER_RMA_WAR = 1 << 34;
        FI_ORDER_RMA_WAW = 1 << 35;
        FI_ORDER_ATOMIC_RAR = 1 << 36;
        FI_ORDER_ATOMIC_RAW = 1 << 37;
        FI_ORDER_ATOMIC_WAR = 1 << 38;
        FI_ORDER_ATOMIC_WAW = 1 << 39;
    }

    // Sentinels.
    u64 {
        FI_ADDR_UNSPEC = u64::MAX;
        FI_ADDR_NOTAVAIL = u64::MAX;
        FI_KEY_NOTAVAIL = u64::MAX;
    }
    usize {
        FI_SHARED_CONTEXT = usize::MAX;
        FI_NAME_MAX = 64;
    }
    #[since(1, 20)] usize { FI_AV_AUTH_KEY = usize::MAX; }
    #[until(2, 0)] usize {
        FI_PATH_MAX = 256;
        FI_VERSION_MAX = 64;
    }
    #[until(1, 21)] u32 { FI_PROV_SPECIFIC = 1 << 31; }

    // Modes of memory registration.
    i32 {
        FI_MR_UNSPEC = 0;
        FI_MR_BASIC = 1 << 0;
        FI_MR_SCALABLE = 1 << 1;
        FI_MR_LOCAL = 1 << 2;
        FI_MR_RAW = 1 << 3;
        FI_MR_VIRT_ADDR = 1 << 4;
        FI_MR_ALLOCATED = 1 << 5;
        FI_MR_PROV_KEY = 1 << 6;
        FI_MR_MMU_NOTIFY = 1 << 7;
        FI_MR_RMA_EVENT = 1 << 8;
        FI_MR_ENDPOINT = 1 << 9;
        FI_MR_HMEM = 1 << 10;
        FI_MR_COLLECTIVE = 1 << 11;
    }

    // Enumerations of the attributes.
    u32 {
        FI_FORMAT_UNSPEC = 0;
        FI_SOCKADDR = 1;
        FI_SOCKADDR_IN = 2;
        FI_SOCKADDR_IN6 = 3;
        FI_SOCKADDR_IB = 4;
        FI_ADDR_PSMX = 5;
        FI_ADDR_GNI = 6;
        FI_ADDR_BGQ = 7;
        FI_ADDR_MLX = 8;
        FI_ADDR_STR = 9;
        FI_ADDR_PSMX2 = 10;
        FI_ADDR_IB_UD = 11;
        FI_ADDR_EFA = 12;
        FI_ADDR_PSMX3 = 13;
        FI_ADDR_OPX = 14;
        FI_ADDR_CXI = 15;

        FI_AV_UNSPEC = 0;
        FI_AV_MAP = 1;
        FI_AV_TABLE = 2;

        FI_PROGRESS_UNSPEC = 0;
        FI_PROGRESS_AUTO = 1;
        FI_PROGRESS_MANUAL = 2;

        FI_THREAD_UNSPEC = 0;
        FI_THREAD_SAFE = 1;
        FI_THREAD_FID = 2;
        FI_THREAD_DOMAIN = 3;
        FI_THREAD_COMPLETION = 4;
        FI_THREAD_ENDPOINT = 5;

        FI_RM_UNSPEC = 0;
        FI_RM_DISABLED = 1;
        FI_RM_ENABLED = 2;

        FI_EP_UNSPEC = 0;
        FI_EP_MSG = 1;
        FI_EP_DGRAM = 2;
        FI_EP_RDM = 3;

        FI_PROTO_UNSPEC = 0;
        FI_PROTO_RDMA_CM_IB_RC = 1;
        FI_PROTO_IWARP = 2;
        FI_PROTO_IB_UD = 3;
        FI_PROTO_PSMX = 4;
        FI_PROTO_UDP = 5;
        FI_PROTO_SOCK_TCP = 6;
        FI_PROTO_MXM = 7;
        FI_PROTO_IWARP_RDM = 8;
        FI_PROTO_IB_RDM = 9;
        FI_PROTO_GNI = 10;
        FI_PROTO_RXM = 11;
        FI_PROTO_RXD = 12;
        FI_PROTO_MLX = 13;
        FI_PROTO_NETWORKDIRECT = 14;
        FI_PROTO_PSMX2 = 15;
        FI_PROTO_SHM = 16;
        FI_PROTO_MRAIL = 17;
        FI_PROTO_RSTREAM = 18;
        FI_PROTO_RDMA_CM_IB_XRC = 19;
        FI_PROTO_EFA = 20;
        FI_PROTO_PSMX3 = 21;
        FI_PROTO_RXM_TCP = 22;
        FI_PROTO_OPX = 23;
        FI_PROTO_CXI = 24;
        FI_PROTO_XNET = 25;

        FI_TC_UNSPEC = 0;
        FI_TC_DSCP = 0x100;
        FI_TC_LABEL = 0x200;
        FI_TC_BEST_EFFORT = 0x200;
        FI_TC_LOW_LATENCY = 0x201;
        FI_TC_DEDICATED_ACCESS = 0x202;
        FI_TC_BULK_DATA = 0x203;
        FI_TC_SCAVENGER = 0x204;
        FI_TC_NETWORK_CTRL = 0x205;

        FI_BUS_UNSPEC = 0;
        FI_BUS_UNKNOWN = 0;
        FI_BUS_PCI = 1;

        FI_LINK_UNKNOWN = 0;
        FI_LINK_DOWN = 1;
        FI_LINK_UP = 2;

        FI_PARAM_STRING = 0;
        FI_PARAM_INT = 1;
        FI_PARAM_BOOL = 2;
        FI_PARAM_SIZE_T = 3;
    }
    #[until(1, 21)] u32 {
        FI_EP_SOCK_STREAM = 4;
        FI_EP_SOCK_DGRAM = 5;
    }
    #[since(1, 18)] u32 {
        FI_ADDR_UCX = 16;
        FI_PROTO_COLL = 26;
        FI_PROTO_UCX = 27;
    }
    #[since(1, 19)] u32 { FI_PROTO_SM2 = 28; }
    #[since(1, 21)] u32 {
        FI_PROGRESS_CONTROL_UNIFIED = 3;
        FI_PROTO_CXI_RNR = 29;
    }
    #[since(2, 0)] u32 {
        FI_PROTO_LPP = 30;
        FI_PROTO_LNX = 31;
    }
    #[since(2, 3)] u32 { FI_SOCKADDR_IP = 17; }

    // Formats of `mem_tag_format`.
    #[since(2, 0)] u64 {
        FI_TAG_BITS = 0;
        FI_TAG_MPI = 1;
        FI_TAG_CCL = 2;
        FI_TAG_MAX_FORMAT = 1 << 16;
    }

    // Classes of objects.
    usize {
        FI_CLASS_UNSPEC = 0;
        FI_CLASS_FABRIC = 1;
        FI_CLASS_DOMAIN = 2;
        FI_CLASS_EP = 3;
        FI_CLASS_SEP = 4;
        FI_CLASS_RX_CTX = 5;
        FI_CLASS_SRX_CTX = 6;
        FI_CLASS_TX_CTX = 7;
        FI_CLASS_STX_CTX = 8;
        FI_CLASS_PEP = 9;
        FI_CLASS_INTERFACE = 10;
        FI_CLASS_AV = 11;
        FI_CLASS_MR = 12;
        FI_CLASS_EQ = 13;
        FI_CLASS_CQ = 14;
        FI_CLASS_CNTR = 15;
        FI_CLASS_WAIT = 16;
        FI_CLASS_POLL = 17;
        FI_CLASS_CONNREQ = 18;
        FI_CLASS_MC = 19;
        FI_CLASS_NIC = 20;
        FI_CLASS_AV_SET = 21;
        FI_CLASS_MR_CACHE = 22;
        FI_CLASS_MEM_MONITOR = 23;
        FI_CLASS_PEER_CQ = 24;
        FI_CLASS_PEER_SRX = 25;
        FI_CLASS_LOG = 26;
        FI_CLASS_PEER_AV = 27;
        FI_CLASS_PEER_AV_SET = 28;
    }
    #[since(1, 19)] usize { FI_CLASS_PEER_CNTR = 29; }
    #[since(1, 20)] usize { FI_CLASS_PROFILE = 30; }

    // Commands of `control`.
    i32 {
        FI_GETFIDFLAG = 0;
        FI_SETFIDFLAG = 1;
        FI_GETOPSFLAG = 2;
        FI_SETOPSFLAG = 3;
        FI_ALIAS = 4;
        FI_GETWAIT = 5;
        FI_ENABLE = 6;
        FI_BACKLOG = 7;
        FI_GET_RAW_MR = 8;
        FI_MAP_RAW_MR = 9;
        FI_UNMAP_KEY = 10;
        FI_QUEUE_WORK = 11;
        FI_CANCEL_WORK = 12;
        FI_FLUSH_WORK = 13;
        FI_REFRESH = 14;
        FI_DUP = 15;
        FI_GETWAITOBJ = 16;
        FI_GET_VAL = 17;
        FI_SET_VAL = 18;
        FI_EXPORT_FID = 19;
    }
    #[since(2, 2)] i32 { FI_GET_FD = 20; }
}

/// The place of a device on its bus; PCI is the only kind that the interface knows.
#[repr(C)]
#[derive(Clone, Copy)]
pub union fi_bus_place {
    pub pci: fi_pci_attr,
}

/// Stands behind the pointer to a context of a processing unit, which no release has yet.
#[repr(C)]
pub struct fid_xpu_ctx {
    _opaque: [u8; 0],
}

structs! {
    struct fid {
        fclass: usize,
        context: *mut c_void,
        ops: *mut fi_ops,
    }
    struct fi_ioc {
        addr: *mut c_void,
        count: usize,
    }
    struct fi_context {
        internal: [*mut c_void; 4],
    }
    struct fi_context2 {
        internal: [*mut c_void; 8],
    }
    struct fi_recv_context {
        ep: *mut fid_ep,
        context: *mut c_void,
    }
    struct fi_tx_attr {
        caps: u64,
        mode: u64,
        op_flags: u64,
        msg_order: u64,
        comp_order: u64,
        inject_size: usize,
        size: usize,
        iov_limit: usize,
        rma_iov_limit: usize,
        tclass: u32,
    }
    struct fi_rx_attr {
        caps: u64,
        mode: u64,
        op_flags: u64,
        msg_order: u64,
        comp_order: u64,
        total_buffered_recv: usize,
        size: usize,
        iov_limit: usize,
    }
    struct fi_ep_attr {
        r#type: u32,
        protocol: u32,
        protocol_version: u32,
        max_msg_size: usize,
        msg_prefix_size: usize,
        max_order_raw_size: usize,
        max_order_war_size: usize,
        max_order_waw_size: usize,
        mem_tag_format: u64,
        tx_ctx_cnt: usize,
        rx_ctx_cnt: usize,
        auth_key_size: usize,
        auth_key: *mut u8,
        // Not released yet; here because a newer libfabric copies its own size of what the provider allocates.
        #[since(2, 7)] xpu_ctx: *mut fid_xpu_ctx,
    }
    struct fi_domain_attr {
        domain: *mut fid_domain,
        name: *mut c_char,
        threading: u32,
        control_progress: u32,
        data_progress: u32,
        resource_mgmt: u32,
        av_type: u32,
        mr_mode: c_int,
        mr_key_size: usize,
        cq_data_size: usize,
        cq_cnt: usize,
        ep_cnt: usize,
        tx_ctx_cnt: usize,
        rx_ctx_cnt: usize,
        max_ep_tx_ctx: usize,
        max_ep_rx_ctx: usize,
        max_ep_stx_ctx: usize,
        max_ep_srx_ctx: usize,
        cntr_cnt: usize,
        mr_iov_limit: usize,
        caps: u64,
        mode: u64,
        auth_key: *mut u8,
        auth_key_size: usize,
        max_err_data: usize,
        mr_cnt: usize,
        tclass: u32,
        #[since(1, 20)] max_ep_auth_key: usize,
        #[since(2, 0)] max_group_id: u32,
        #[since(2, 5)] max_cntr_value: u64,
        #[since(2, 5)] max_err_cntr_value: u64,
        // Not released yet; here for the same reason as `xpu_ctx` above.
        #[since(2, 7)] max_xpu_ctx_cnt: usize,
    }
    struct fi_fabric_attr {
        fabric: *mut fid_fabric,
        name: *mut c_char,
        prov_name: *mut c_char,
        prov_version: u32,
        api_version: u32,
    }
    struct fi_info {
        next: *mut fi_info,
        caps: u64,
        mode: u64,
        addr_format: u32,
        src_addrlen: usize,
        dest_addrlen: usize,
        src_addr: *mut c_void,
        dest_addr: *mut c_void,
        handle: fid_t,
        tx_attr: *mut fi_tx_attr,
        rx_attr: *mut fi_rx_attr,
        ep_attr: *mut fi_ep_attr,
        domain_attr: *mut fi_domain_attr,
        fabric_attr: *mut fi_fabric_attr,
        nic: *mut fid_nic,
    }
    struct fi_device_attr {
        name: *mut c_char,
        device_id: *mut c_char,
        device_version: *mut c_char,
        vendor_id: *mut c_char,
        driver: *mut c_char,
        firmware: *mut c_char,
    }
    struct fi_pci_attr {
        domain_id: u16,
        bus_id: u8,
        device_id: u8,
        function_id: u8,
    }
    struct fi_bus_attr {
        bus_type: u32,
        attr: fi_bus_place,
    }
    struct fi_link_attr {
        address: *mut c_char,
        mtu: usize,
        speed: usize,
        state: u32,
        network_type: *mut c_char,
    }
    struct fid_nic {
        fid: fid,
        device_attr: *mut fi_device_attr,
        bus_attr: *mut fi_bus_attr,
        link_attr: *mut fi_link_attr,
        prov_attr: *mut c_void,
    }
    struct fid_fabric {
        fid: fid,
        ops: *mut fi_ops_fabric,
        api_version: u32,
    }
    struct fi_alias {
        fid: *mut *mut fid,
        flags: u64,
    }
    struct fi_fid_var {
        name: c_int,
        val: *mut c_void,
    }
    struct fi_mr_raw_attr {
        flags: u64,
        base_addr: *mut u64,
        raw_key: *mut u8,
        key_size: *mut usize,
    }
    struct fi_mr_map_raw {
        flags: u64,
        base_addr: u64,
        raw_key: *mut u8,
        key_size: usize,
        key: *mut u64,
    }
    struct fi_param {
        name: *const c_char,
        r#type: u32,
        help_string: *const c_char,
        value: *const c_char,
    }
    struct fi_provider {
        version: u32,
        fi_version: u32,
        context: fi_context,
        name: *const c_char,
        getinfo: Option<
            unsafe extern "C" fn(
                version: u32,
                node: *const c_char,
                service: *const c_char,
                flags: u64,
                hints: *const fi_info,
                info: *mut *mut fi_info,
            ) -> c_int,
        >,
        fabric: Option<
            unsafe extern "C" fn(
                attr: *mut fi_fabric_attr,
                fabric: *mut *mut fid_fabric,
                context: *mut c_void,
            ) -> c_int,
        >,
        cleanup: Option<unsafe extern "C" fn()>,
    }
}

operations! {
    struct fi_ops {
        fn close(fid: *mut fid) -> c_int;
        fn bind(fid: *mut fid, bfid: *mut fid, flags: u64) -> c_int;
        fn control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int;
        fn ops_open(
            fid: *mut fid, name: *const c_char, flags: u64, ops: *mut *mut c_void, context: *mut c_void,
        ) -> c_int;
        fn tostr(fid: *const fid, buf: *mut c_char, len: usize) -> c_int;
        fn ops_set(
            fid: *mut fid, name: *const c_char, flags: u64, ops: *mut c_void, context: *mut c_void,
        ) -> c_int;
    }
    struct fi_ops_fabric {
        fn domain(
            fabric: *mut fid_fabric, info: *mut fi_info, dom: *mut *mut fid_domain, context: *mut c_void,
        ) -> c_int;
        fn passive_ep(
            fabric: *mut fid_fabric, info: *mut fi_info, pep: *mut *mut fid_pep, context: *mut c_void,
        ) -> c_int;
        fn eq_open(
            fabric: *mut fid_fabric, attr: *mut fi_eq_attr, eq: *mut *mut fid_eq, context: *mut c_void,
        ) -> c_int;
        fn wait_open(fabric: *mut fid_fabric, attr: *mut fi_wait_attr, waitset: *mut *mut fid_wait) -> c_int;
        fn trywait(fabric: *mut fid_fabric, fids: *mut *mut fid, count: c_int) -> c_int;
        fn domain2(
            fabric: *mut fid_fabric, info: *mut fi_info, dom: *mut *mut fid_domain, flags: u64,
            context: *mut c_void,
        ) -> c_int;
    }
}
