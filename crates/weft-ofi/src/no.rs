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
    query_collective(*mut fid_domain, u32, *mut fi_collective_attr, u64) -> c_int;
    join(*mut fid_ep, *const c_void, u64, *mut *mut fid_mc, *mut c_void) -> c_int;
}

type Close = unsafe extern "C" fn(*mut fid) -> c_int;
type Bind = unsafe extern "C" fn(*mut fid, *mut fid, u64) -> c_int;
type Control = unsafe extern "C" fn(*mut fid, c_int, *mut c_void) -> c_int;

/// The operations that all objects have.
pub(crate) const fn operations(close: Close, bind: Bind, control: Control) -> fi_ops {
    fi_ops {
        size: size_of::<fi_ops>(),
        close: Some(close),
        bind: Some(bind),
        control: Some(control),
        ops_open: Some(ops_open),
        tostr: None,
        ops_set: None,
    }
}

/// Tables of operations that an endpoint was not opened for.
pub(crate) mod tables {
    use std::ffi::{c_int, c_void};

    use libc::iovec;

    use crate::abi::*;

    macro_rules! unsupported {
        ($table:ident: $type:ident { $($name:ident($($kind:ty),*) -> $result:ty;)* }) => {
            pub(crate) static $table: $type = {
                $(
                    unsafe extern "C" fn $name($(_: $kind),*) -> $result {
                        -(FI_EOPNOTSUPP as $result)
                    }
                )*
                $type { size: size_of::<$type>(), $($name: Some($name)),* }
            };
        };
    }

    unsupported! { MSG: fi_ops_msg {
        recv(*mut fid_ep, *mut c_void, usize, *mut c_void, fi_addr_t, *mut c_void) -> isize;
        recvv(*mut fid_ep, *const iovec, *mut *mut c_void, usize, fi_addr_t, *mut c_void) -> isize;
        recvmsg(*mut fid_ep, *const fi_msg, u64) -> isize;
        send(*mut fid_ep, *const c_void, usize, *mut c_void, fi_addr_t, *mut c_void) -> isize;
        sendv(*mut fid_ep, *const iovec, *mut *mut c_void, usize, fi_addr_t, *mut c_void) -> isize;
        sendmsg(*mut fid_ep, *const fi_msg, u64) -> isize;
        inject(*mut fid_ep, *const c_void, usize, fi_addr_t) -> isize;
        senddata(*mut fid_ep, *const c_void, usize, *mut c_void, u64, fi_addr_t, *mut c_void) -> isize;
        injectdata(*mut fid_ep, *const c_void, usize, u64, fi_addr_t) -> isize;
    } }

    unsupported! { TAGGED: fi_ops_tagged {
        recv(*mut fid_ep, *mut c_void, usize, *mut c_void, fi_addr_t, u64, u64, *mut c_void) -> isize;
        recvv(*mut fid_ep, *const iovec, *mut *mut c_void, usize, fi_addr_t, u64, u64, *mut c_void) -> isize;
        recvmsg(*mut fid_ep, *const fi_msg_tagged, u64) -> isize;
        send(*mut fid_ep, *const c_void, usize, *mut c_void, fi_addr_t, u64, *mut c_void) -> isize;
        sendv(*mut fid_ep, *const iovec, *mut *mut c_void, usize, fi_addr_t, u64, *mut c_void) -> isize;
        sendmsg(*mut fid_ep, *const fi_msg_tagged, u64) -> isize;
        inject(*mut fid_ep, *const c_void, usize, fi_addr_t, u64) -> isize;
        senddata(*mut fid_ep, *const c_void, usize, *mut c_void, u64, fi_addr_t, u64, *mut c_void) -> isize;
        injectdata(*mut fid_ep, *const c_void, usize, u64, fi_addr_t, u64) -> isize;
    } }

    unsupported! { RMA: fi_ops_rma {
        read(*mut fid_ep, *mut c_void, usize, *mut c_void, fi_addr_t, u64, u64, *mut c_void) -> isize;
        readv(*mut fid_ep, *const iovec, *mut *mut c_void, usize, fi_addr_t, u64, u64, *mut c_void) -> isize;
        readmsg(*mut fid_ep, *const fi_msg_rma, u64) -> isize;
        write(*mut fid_ep, *const c_void, usize, *mut c_void, fi_addr_t, u64, u64, *mut c_void) -> isize;
        writev(*mut fid_ep, *const iovec, *mut *mut c_void, usize, fi_addr_t, u64, u64, *mut c_void) -> isize;
        writemsg(*mut fid_ep, *const fi_msg_rma, u64) -> isize;
        inject(*mut fid_ep, *const c_void, usize, fi_addr_t, u64, u64) -> isize;
        writedata(*mut fid_ep, *const c_void, usize, *mut c_void, u64, fi_addr_t, u64, u64, *mut c_void) -> isize;
        injectdata(*mut fid_ep, *const c_void, usize, u64, fi_addr_t, u64, u64) -> isize;
    } }

    unsupported! { ATOMIC: fi_ops_atomic {
        write(*mut fid_ep, *const c_void, usize, *mut c_void, fi_addr_t, u64, u64, u32, u32, *mut c_void) -> isize;
        writev(
            *mut fid_ep, *const fi_ioc, *mut *mut c_void, usize, fi_addr_t, u64, u64, u32, u32, *mut c_void
        ) -> isize;
        writemsg(*mut fid_ep, *const fi_msg_atomic, u64) -> isize;
        inject(*mut fid_ep, *const c_void, usize, fi_addr_t, u64, u64, u32, u32) -> isize;
        readwrite(
            *mut fid_ep, *const c_void, usize, *mut c_void, *mut c_void, *mut c_void, fi_addr_t, u64, u64, u32, u32,
            *mut c_void
        ) -> isize;
        readwritev(
            *mut fid_ep, *const fi_ioc, *mut *mut c_void, usize, *mut fi_ioc, *mut *mut c_void, usize, fi_addr_t, u64,
            u64, u32, u32, *mut c_void
        ) -> isize;
        readwritemsg(*mut fid_ep, *const fi_msg_atomic, *mut fi_ioc, *mut *mut c_void, usize, u64) -> isize;
        compwrite(
            *mut fid_ep, *const c_void, usize, *mut c_void, *const c_void, *mut c_void, *mut c_void, *mut c_void,
            fi_addr_t, u64, u64, u32, u32, *mut c_void
        ) -> isize;
        compwritev(
            *mut fid_ep, *const fi_ioc, *mut *mut c_void, usize, *const fi_ioc, *mut *mut c_void, usize, *mut fi_ioc,
            *mut *mut c_void, usize, fi_addr_t, u64, u64, u32, u32, *mut c_void
        ) -> isize;
        compwritemsg(
            *mut fid_ep, *const fi_msg_atomic, *const fi_ioc, *mut *mut c_void, usize, *mut fi_ioc,
            *mut *mut c_void, usize, u64
        ) -> isize;
        writevalid(*mut fid_ep, u32, u32, *mut usize) -> c_int;
        readwritevalid(*mut fid_ep, u32, u32, *mut usize) -> c_int;
        compwritevalid(*mut fid_ep, u32, u32, *mut usize) -> c_int;
    } }
}
