//! Names of endpoints, connections and multicast groups.

use core::ffi::{c_int, c_void};

use super::{fi_addr_t, fid, fid_ep, fid_pep, fid_t};

structs! {
    struct fid_mc {
        fid: fid,
        fi_addr: fi_addr_t,
    }
}

operations! {
    struct fi_ops_cm {
        fn setname(fid: fid_t, addr: *mut c_void, addrlen: usize) -> c_int;
        fn getname(fid: fid_t, addr: *mut c_void, addrlen: *mut usize) -> c_int;
        fn getpeer(ep: *mut fid_ep, addr: *mut c_void, addrlen: *mut usize) -> c_int;
        fn connect(ep: *mut fid_ep, addr: *const c_void, param: *const c_void, paramlen: usize) -> c_int;
        fn listen(pep: *mut fid_pep) -> c_int;
        fn accept(ep: *mut fid_ep, param: *const c_void, paramlen: usize) -> c_int;
        fn reject(pep: *mut fid_pep, handle: fid_t, param: *const c_void, paramlen: usize) -> c_int;
        fn shutdown(ep: *mut fid_ep, flags: u64) -> c_int;
        fn join(
            ep: *mut fid_ep, addr: *const c_void, flags: u64, mc: *mut *mut fid_mc, context: *mut c_void,
        ) -> c_int;
    }
}
