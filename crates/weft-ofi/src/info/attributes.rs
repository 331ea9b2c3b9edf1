//! The attributes with which a program opens a domain or an endpoint.

use weft::Address;

use super::offer::{BASIC_MODES, negotiate};
use super::request::{Request, address_of, native_format};
use crate::abi::*;
use crate::guard::Result;
use crate::log;

/// A [`fi_info`] that was checked: the program may have changed what `getinfo` gave it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attributes {
    /// The type of endpoint.
    pub(crate) kind: u32,
    pub(crate) caps: u64,
    /// The format of addresses: never open, and `FI_SOCKADDR` for either IP family.
    pub(crate) format: u32,
    pub(crate) source: Option<Address>,
    pub(crate) destination: Option<Address>,
    pub(crate) transmit_caps: u64,
    pub(crate) receive_caps: u64,
    pub(crate) transmit_flags: u64,
    pub(crate) receive_flags: u64,
    pub(crate) message_order: u64,
    /// At least 1, or `FI_SHARED_CONTEXT`.
    pub(crate) transmit_contexts: usize,
    /// At least 1, or `FI_SHARED_CONTEXT`.
    pub(crate) receive_contexts: usize,
    pub(crate) threading: u32,
    pub(crate) data_progress: u32,
    pub(crate) control_progress: u32,
    /// The bits; the old modes are spelled out as such.
    pub(crate) mr_mode: i32,
    pub(crate) api_version: u32,
    /// The name of the interface.
    pub(crate) domain_name: Option<String>,
    /// The pointer, as a number: it is only handed on.
    handle: usize,
}

impl Attributes {
    /// # Safety
    /// The pointers in `info` are null, or valid and of their types.
    pub(crate) unsafe fn of(info: &fi_info) -> Result<Self> {
        // SAFETY: as the caller says.
        let request = unsafe { Request::of(info)? };
        let api_version = request.api_version.unwrap_or(FI_VERSION(BASE.0, BASE.1));
        let kind = match request.endpoint.kind {
            FI_EP_UNSPEC => FI_EP_RDM,
            kind @ (FI_EP_RDM | FI_EP_DGRAM | FI_EP_MSG) => kind,
            _ => return Err(-FI_EINVAL),
        };
        let offer = negotiate(kind, api_version, &request).map_err(|mismatch| {
            log::info!(CORE, "{mismatch}");
            -FI_EINVAL
        })?;
        // SAFETY: as the caller says.
        let (source, destination) = unsafe {
            (
                address_of(info.addr_format, info.src_addr, info.src_addrlen)?,
                address_of(info.addr_format, info.dest_addr, info.dest_addrlen)?,
            )
        };
        let format = match native_format(request.format) {
            FI_FORMAT_UNSPEC => {
                source.or(destination).map_or(FI_SOCKADDR_IN, |address| crate::address::format_of(&address.socket))
            }
            format => format,
        };
        Ok(Self {
            kind,
            caps: offer.caps,
            format,
            source,
            destination,
            transmit_caps: offer.transmit_caps,
            receive_caps: offer.receive_caps,
            transmit_flags: offer.transmit_flags,
            receive_flags: offer.receive_flags,
            message_order: offer.message_order,
            transmit_contexts: offer.transmit_contexts,
            receive_contexts: offer.receive_contexts,
            threading: offer.threading,
            data_progress: offer.data_progress,
            control_progress: offer.control_progress,
            mr_mode: match offer.mr_mode {
                FI_MR_BASIC => BASIC_MODES,
                FI_MR_SCALABLE => 0,
                bits => bits,
            },
            api_version,
            domain_name: request.domain.name,
            handle: request.handle,
        })
    }

    /// Whether the program hears of a message before it receives it. The bit means something else since 2.0.
    pub(crate) fn is_variable(&self) -> bool {
        self.api_version < FI_VERSION(2, 0) && self.receive_caps & FI_VARIABLE_MSG != 0
    }

    /// The handle that the program put in: a passive endpoint, or a connection request.
    pub(crate) fn handle(&self) -> fid_t {
        std::ptr::with_exposed_provenance_mut(self.handle)
    }
}
