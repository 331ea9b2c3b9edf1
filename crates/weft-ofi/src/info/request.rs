//! What a program asks for: hints, or the attributes with which it opens an object.
//!
//! Everything is copied out of C's memory once. Structures that have grown since the base version are read field by
//! field, because a caller of an older version has shorter ones.

use std::ffi::c_void;

use weft::Address;

use crate::abi::*;
use crate::address;
use crate::guard::Result;
use crate::interface;

/// Every wish; what is 0 or `None` is left open.
pub(super) struct Request {
    pub(super) caps: u64,
    pub(super) mode: u64,
    pub(super) format: u32,
    /// The pointer, as a number.
    pub(super) handle: usize,
    pub(super) transmit: fi_tx_attr,
    pub(super) receive: fi_rx_attr,
    pub(super) endpoint: EndpointRequest,
    pub(super) domain: DomainRequest,
    pub(super) fabric_name: Option<String>,
    pub(super) provider_name: Option<String>,
    pub(super) api_version: Option<u32>,
}

/// [`fi_ep_attr`], as far as it counts.
#[derive(Default)]
pub(super) struct EndpointRequest {
    pub(super) kind: u32,
    pub(super) protocol: u32,
    pub(super) protocol_version: u32,
    pub(super) max_msg_size: usize,
    pub(super) msg_prefix_size: usize,
    pub(super) max_order_raw_size: usize,
    pub(super) max_order_war_size: usize,
    pub(super) max_order_waw_size: usize,
    pub(super) mem_tag_format: u64,
    pub(super) tx_ctx_cnt: usize,
    pub(super) rx_ctx_cnt: usize,
    pub(super) auth_key_size: usize,
}

/// [`fi_domain_attr`], as far as it counts.
#[derive(Default)]
pub(super) struct DomainRequest {
    pub(super) name: Option<String>,
    pub(super) threading: u32,
    pub(super) control_progress: u32,
    pub(super) data_progress: u32,
    pub(super) resource_mgmt: u32,
    pub(super) av_type: u32,
    pub(super) mr_mode: i32,
    pub(super) mr_key_size: usize,
    pub(super) cq_data_size: usize,
    pub(super) cq_cnt: usize,
    pub(super) ep_cnt: usize,
    pub(super) tx_ctx_cnt: usize,
    pub(super) rx_ctx_cnt: usize,
    pub(super) max_ep_tx_ctx: usize,
    pub(super) max_ep_rx_ctx: usize,
    pub(super) max_ep_stx_ctx: usize,
    pub(super) max_ep_srx_ctx: usize,
    pub(super) cntr_cnt: usize,
    pub(super) mr_iov_limit: usize,
    pub(super) caps: u64,
    pub(super) auth_key_size: usize,
    pub(super) max_err_data: usize,
    pub(super) mr_cnt: usize,
    pub(super) tclass: u32,
}

impl Default for Request {
    fn default() -> Self {
        Self {
            caps: 0,
            mode: 0,
            format: FI_FORMAT_UNSPEC,
            handle: 0,
            transmit: fi_tx_attr {
                caps: 0,
                mode: 0,
                op_flags: 0,
                msg_order: 0,
                comp_order: 0,
                inject_size: 0,
                size: 0,
                iov_limit: 0,
                rma_iov_limit: 0,
                tclass: FI_TC_UNSPEC,
            },
            receive: fi_rx_attr {
                caps: 0,
                mode: 0,
                op_flags: 0,
                msg_order: 0,
                comp_order: 0,
                total_buffered_recv: 0,
                size: 0,
                iov_limit: 0,
            },
            endpoint: EndpointRequest::default(),
            domain: DomainRequest::default(),
            fabric_name: None,
            provider_name: None,
            api_version: None,
        }
    }
}

impl Request {
    /// # Safety
    /// The pointers in `info` are null, or valid and of their types, as libfabric of at least the base version has them.
    pub(super) unsafe fn of(info: &fi_info) -> Result<Self> {
        let mut request = Self {
            caps: info.caps,
            mode: info.mode,
            format: info.addr_format,
            handle: info.handle.expose_provenance(),
            ..Self::default()
        };
        // SAFETY: as the caller says.
        unsafe {
            if let Some(transmit) = info.tx_attr.as_ref() {
                request.transmit = *transmit;
            }
            if let Some(receive) = info.rx_attr.as_ref() {
                request.receive = *receive;
            }
            if let Some(fabric) = info.fabric_attr.as_ref() {
                request.fabric_name = interface::text(fabric.name)?.map(str::to_owned);
                request.provider_name = interface::text(fabric.prov_name)?.map(str::to_owned);
                request.api_version = Some(fabric.api_version).filter(|version| *version != 0);
            }
            request.endpoint = EndpointRequest::of(info.ep_attr);
            request.domain = DomainRequest::of(info.domain_attr)?;
        }
        Ok(request)
    }
}

impl EndpointRequest {
    /// # Safety
    /// As [`Request::of`].
    unsafe fn of(from: *const fi_ep_attr) -> Self {
        if from.is_null() {
            return Self::default();
        }
        // SAFETY: as the caller says; no field is newer than the base version.
        unsafe {
            Self {
                kind: (*from).r#type,
                protocol: (*from).protocol,
                protocol_version: (*from).protocol_version,
                max_msg_size: (*from).max_msg_size,
                msg_prefix_size: (*from).msg_prefix_size,
                max_order_raw_size: (*from).max_order_raw_size,
                max_order_war_size: (*from).max_order_war_size,
                max_order_waw_size: (*from).max_order_waw_size,
                mem_tag_format: (*from).mem_tag_format,
                tx_ctx_cnt: (*from).tx_ctx_cnt,
                rx_ctx_cnt: (*from).rx_ctx_cnt,
                auth_key_size: (*from).auth_key_size,
            }
        }
    }
}

impl DomainRequest {
    /// # Safety
    /// As [`Request::of`].
    unsafe fn of(from: *const fi_domain_attr) -> Result<Self> {
        if from.is_null() {
            return Ok(Self::default());
        }
        // SAFETY: as the caller says; no field is newer than the base version.
        unsafe {
            Ok(Self {
                name: interface::text((*from).name)?.map(str::to_owned),
                threading: (*from).threading,
                control_progress: (*from).control_progress,
                data_progress: (*from).data_progress,
                resource_mgmt: (*from).resource_mgmt,
                av_type: (*from).av_type,
                mr_mode: (*from).mr_mode,
                mr_key_size: (*from).mr_key_size,
                cq_data_size: (*from).cq_data_size,
                cq_cnt: (*from).cq_cnt,
                ep_cnt: (*from).ep_cnt,
                tx_ctx_cnt: (*from).tx_ctx_cnt,
                rx_ctx_cnt: (*from).rx_ctx_cnt,
                max_ep_tx_ctx: (*from).max_ep_tx_ctx,
                max_ep_rx_ctx: (*from).max_ep_rx_ctx,
                max_ep_stx_ctx: (*from).max_ep_stx_ctx,
                max_ep_srx_ctx: (*from).max_ep_srx_ctx,
                cntr_cnt: (*from).cntr_cnt,
                mr_iov_limit: (*from).mr_iov_limit,
                caps: (*from).caps,
                auth_key_size: (*from).auth_key_size,
                max_err_data: (*from).max_err_data,
                mr_cnt: (*from).mr_cnt,
                tclass: (*from).tclass,
            })
        }
    }
}

/// An address beside its length, as a [`fi_info`] has them; `None` where there is none.
///
/// # Safety
/// `pointer` is null or points to `length` bytes, or to a text that ends with 0 where the format is text.
pub(super) unsafe fn address_of(format: u32, pointer: *const c_void, length: usize) -> Result<Option<Address>> {
    if pointer.is_null() {
        return Ok(None);
    }
    if format != FI_ADDR_STR {
        if length < size_of::<libc::sockaddr_in>() {
            return Err(-FI_EINVAL);
        }
        // SAFETY: there are that many bytes, and every address begins with its family.
        let family = i32::from(unsafe { pointer.cast::<u16>().read_unaligned() });
        if family == libc::AF_INET6 && length < size_of::<libc::sockaddr_in6>() {
            return Err(-FI_EINVAL);
        }
    }
    // SAFETY: the bytes of the family are there.
    unsafe { address::read(native_format(format), pointer) }.map(Some)
}

/// The format that says the same to [`address`]: either IP family, whatever the newer name of that is.
pub(super) fn native_format(format: u32) -> u32 {
    if format == FI_SOCKADDR_IP { FI_SOCKADDR } else { format }
}
