//! Operations that wait for a counter.

use core::ffi::{c_int, c_void};

use super::{
    fi_context2, fi_msg, fi_msg_atomic, fi_msg_compare, fi_msg_fetch, fi_msg_rma, fi_msg_tagged, fid_cntr, fid_ep,
};

constants! {
    u32 {
        FI_TRIGGER_THRESHOLD = 0;
        FI_TRIGGER_XPU = 1;

        FI_OP_RECV = 0;
        FI_OP_SEND = 1;
        FI_OP_TRECV = 2;
        FI_OP_TSEND = 3;
        FI_OP_READ = 4;
        FI_OP_WRITE = 5;
        FI_OP_ATOMIC = 6;
        FI_OP_FETCH_ATOMIC = 7;
        FI_OP_COMPARE_ATOMIC = 8;
        FI_OP_CNTR_SET = 9;
        FI_OP_CNTR_ADD = 10;
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union fi_trigger_value {
    pub val8: u8,
    pub val16: u16,
    pub val32: u32,
    pub val64: u64,
    pub data: *mut u8,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union fi_trigger_device {
    pub reserved: u64,
    pub cuda: c_int,
    pub ze: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union fi_trigger {
    pub threshold: fi_trigger_threshold,
    pub xpu: fi_trigger_xpu,
    pub internal: [*mut c_void; 3],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union fi_trigger2 {
    pub threshold: fi_trigger_threshold,
    pub xpu: fi_trigger_xpu,
    pub internal: [*mut c_void; 7],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union fi_deferred_op {
    pub msg: *mut fi_op_msg,
    pub tagged: *mut fi_op_tagged,
    pub rma: *mut fi_op_rma,
    pub atomic: *mut fi_op_atomic,
    pub fetch_atomic: *mut fi_op_fetch_atomic,
    pub compare_atomic: *mut fi_op_compare_atomic,
    pub cntr: *mut fi_op_cntr,
}

structs! {
    struct fi_trigger_threshold {
        cntr: *mut fid_cntr,
        threshold: usize,
    }
    struct fi_trigger_var {
        datatype: u32,
        count: c_int,
        addr: *mut c_void,
        value: fi_trigger_value,
    }
    struct fi_trigger_xpu {
        count: c_int,
        iface: u32,
        device: fi_trigger_device,
        var: *mut fi_trigger_var,
    }
    struct fi_op_msg {
        ep: *mut fid_ep,
        msg: fi_msg,
        flags: u64,
    }
    struct fi_op_tagged {
        ep: *mut fid_ep,
        msg: fi_msg_tagged,
        flags: u64,
    }
    struct fi_op_rma {
        ep: *mut fid_ep,
        msg: fi_msg_rma,
        flags: u64,
    }
    struct fi_op_atomic {
        ep: *mut fid_ep,
        msg: fi_msg_atomic,
        flags: u64,
    }
    struct fi_op_fetch_atomic {
        ep: *mut fid_ep,
        msg: fi_msg_atomic,
        fetch: fi_msg_fetch,
        flags: u64,
    }
    struct fi_op_compare_atomic {
        ep: *mut fid_ep,
        msg: fi_msg_atomic,
        fetch: fi_msg_fetch,
        compare: fi_msg_compare,
        flags: u64,
    }
    struct fi_op_cntr {
        cntr: *mut fid_cntr,
        value: u64,
    }
    struct fi_triggered_context {
        event_type: u32,
        trigger: fi_trigger,
    }
    struct fi_triggered_context2 {
        event_type: u32,
        trigger: fi_trigger2,
    }
    struct fi_deferred_work {
        context: fi_context2,
        threshold: u64,
        triggering_cntr: *mut fid_cntr,
        completion_cntr: *mut fid_cntr,
        op_type: u32,
        op: fi_deferred_op,
    }
}
