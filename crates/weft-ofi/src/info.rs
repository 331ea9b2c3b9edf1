//! stub
use crate::abi::*;
use crate::guard::Result;
use std::ffi::{c_char, c_int};
pub(crate) struct Attributes {
    pub(crate) kind: u32,
    pub(crate) caps: u64,
    pub(crate) format: u32,
    pub(crate) source: Option<weft::Address>,
    pub(crate) destination: Option<weft::Address>,
    pub(crate) transmit_caps: u64,
    pub(crate) receive_caps: u64,
    pub(crate) transmit_flags: u64,
    pub(crate) receive_flags: u64,
    pub(crate) data_progress: u32,
    pub(crate) mr_mode: i32,
    pub(crate) api_version: u32,
}
impl Attributes {
    pub(crate) unsafe fn of(_: &fi_info) -> Result<Attributes> {
        Err(-FI_ENOSYS)
    }
}
pub(crate) unsafe extern "C" fn getinfo(
    _: u32,
    _: *const c_char,
    _: *const c_char,
    _: u64,
    _: *const fi_info,
    _: *mut *mut fi_info,
) -> c_int {
    -FI_ENODATA
}
pub(crate) fn define_parameters() {}
