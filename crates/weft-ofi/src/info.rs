//! `fi_getinfo`: what a program asks for, and what Weft can offer it.
//!
//! Hints are honoured exactly: every attribute is checked, and the first that cannot be met is told at
//! `FI_LOG_LEVEL=info`. The parts: [`request`] reads hints, [`offer`] answers them, [`place`] finds addresses,
//! [`attributes`] checks what comes back when a program opens something; here the answers become C structures.

use std::ffi::{CString, c_char, c_int, c_void};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use weft::Address;

use crate::abi::*;
use crate::address;
use crate::guard::{self, Result};
use crate::interface;
use crate::limits::LOCAL_PIECES_MAX;
use crate::log;

mod attributes;
mod limits;
mod names;
mod offer;
mod place;
mod request;
#[cfg(test)]
mod tests;

pub(crate) use self::attributes::Attributes;
pub(crate) use self::limits::DATAGRAM_MAX_BYTES;
use self::limits::*;
use self::offer::{KINDS, Mismatch, Offer, negotiate};
use self::place::{Ends, Nowhere, Place};
use self::request::{Request, address_of};

/// The release of Weft, as libfabric writes releases.
pub(crate) const PROVIDER_VERSION: u32 =
    FI_VERSION(number(env!("CARGO_PKG_VERSION_MAJOR")), number(env!("CARGO_PKG_VERSION_MINOR")));

const fn number(text: &str) -> u32 {
    match u32::from_str_radix(text, 10) {
        Ok(number) => number,
        Err(_) => 0,
    }
}

/// The name of every fabric: nodes of different fabrics do not hear each other.
const FABRIC: &str = "weft";

/// The flag by which libfabric's own layers look for providers to put themselves on.
const CORE_PROVIDERS_ONLY: u64 = 1 << 59;

/// Lists the parameters in `fi_info -e`.
pub(crate) fn define_parameters() {
    log::define_parameter(
        c"road",
        c"How peers on this machine are reached: auto (default) uses shared memory, packets forces UDP",
    );
    log::define_parameter(
        c"interface",
        c"The network interface to use: its name or one of its addresses (default: the one that the route says)",
    );
    log::define_parameter(
        c"fabric",
        c"Name of the fabric: only processes with the same name reach each other (default: none)",
    );
    log::define_parameter(
        c"faults",
        c"Faults that the link makes, for tests: a list of loss, duplicate, reorder, corrupt (chances), delay_us, jitter_us, seed, such as loss=0.01,seed=7; all goes as packets then (default: none)",
    );
}

/// The name of the fabric, with what the user added.
pub(crate) fn fabric_name() -> String {
    match log::parameter(c"fabric").filter(|name| !name.is_empty()) {
        Some(name) => format!("{FABRIC}:{name}"),
        None => FABRIC.to_owned(),
    }
}

/// Answers `fi_getinfo`.
///
/// # Safety
/// As libfabric calls it: texts end with 0 or are null, `hints` is null or valid with all that it points to, and `info`
/// can be written.
pub(crate) unsafe extern "C" fn getinfo(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const fi_info,
    info: *mut *mut fi_info,
) -> c_int {
    guard::call(|| {
        // SAFETY: as the caller says.
        unsafe {
            let info = info.as_mut().ok_or(-FI_EINVAL)?;
            *info = std::ptr::null_mut();
            let (node, service) = (interface::text(node)?, interface::text(service)?);
            *info = answer(version, node, service, flags, hints.as_ref())?.into_raw();
            Ok(())
        }
    })
}

/// # Safety
/// As [`getinfo`].
unsafe fn answer(
    version: u32,
    node: Option<&str>,
    service: Option<&str>,
    flags: u64,
    hints: Option<&fi_info>,
) -> Result<List> {
    if flags & CORE_PROVIDERS_ONLY != 0 {
        // Every endpoint that a layer could make of ours is here already, and faster. Nothing is logged: the layers ask
        // before every question of a program, which would look for its own answer there.
        return Err(-FI_ENODATA);
    }
    let fabric = fabric_name();
    let mut list = List::default();
    if flags & FI_PROV_ATTR_ONLY != 0 {
        list.push_provider(version, &fabric)?;
        return Ok(list);
    }
    // SAFETY: as the caller says.
    let request = hints.map_or_else(|| Ok(Request::default()), |hints| unsafe { Request::of(hints) })?;
    let request = &request;
    served(request, &fabric).map_err(unmet)?;

    let (mut offers, mut reason) = (Vec::new(), None);
    for kind in KINDS {
        match negotiate(kind, version, request) {
            Ok(offer) => offers.push(offer),
            // The reason of the kind that was asked for, or else of the best, is the one that helps.
            Err(mismatch) if kind == request.endpoint.kind => reason = Some(mismatch),
            Err(mismatch) => reason = reason.or(Some(mismatch)),
        }
    }
    if let (true, Some(mismatch)) = (offers.is_empty(), reason) {
        return Err(unmet(mismatch));
    }

    let mut ends = Ends { node, service, flags, format: request.format, source: None, destination: None };
    if let Some(hints) = hints {
        // Which of them count depends on node, service and flags, as fi_getinfo(3) says; the others are not looked at.
        if flags & FI_SOURCE == 0 {
            // SAFETY: as the caller says.
            ends.source = unsafe { hinted("src_addr", hints.addr_format, hints.src_addr, hints.src_addrlen)? };
        }
        if flags & FI_SOURCE != 0 || (node.is_none() && service.is_none()) {
            // SAFETY: as the caller says.
            ends.destination = unsafe { hinted("dest_addr", hints.addr_format, hints.dest_addr, hints.dest_addrlen)? };
        }
    }
    let interfaces = interface::interfaces();
    let mut names: Vec<_> = interfaces.iter().map(|interface| interface.name.clone()).collect();
    names.sort();
    names.dedup();
    let mut places = ends.places(interfaces).map_err(|nowhere| match nowhere {
        Nowhere::Mismatch(mismatch) => unmet(mismatch),
        Nowhere::Unresolved(error) => {
            let (node, service) = (node.unwrap_or("(none)"), service.unwrap_or("(none)"));
            log::info!(CORE, "node {node} and service {service} cannot be resolved to an address");
            error
        }
    })?;
    // Peers on other machines cannot reach the loopback interface: who leaves the choice open shall not get it by chance.
    let chosen = request.domain.name.is_some() || interface::restriction().is_some() || ends.names_an_address();
    if !chosen && places.iter().any(|place| !place.is_loopback()) {
        places.retain(|place| !place.is_loopback());
    }
    if let Some(asked) = &request.domain.name {
        places.retain(|place| place.domain == *asked);
        if places.is_empty() {
            let (asked, offered) = (asked.clone(), names.join(", "));
            return Err(unmet(Mismatch { attribute: "domain_attr->name", asked, offered }));
        }
    }
    let listen_anywhere = interface::restriction().is_none();
    for offer in &offers {
        for place in &places {
            let mut place = place.clone();
            if offer.kind == FI_EP_MSG && place.anywhere && place.destination.is_none() && listen_anywhere {
                place.source.socket.set_ip(unspecified(place.source.socket.ip()));
            }
            list.push(&Entry { version, fabric: &fabric, request, offer, place: &place })?;
        }
    }
    Ok(list)
}

fn unspecified(like: IpAddr) -> IpAddr {
    if like.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

/// Tells why hints cannot be met.
#[cold]
fn unmet(mismatch: Mismatch) -> i32 {
    log::info!(CORE, "{mismatch}");
    -FI_ENODATA
}

/// # Safety
/// As [`address_of`].
unsafe fn hinted(
    attribute: &'static str,
    format: u32,
    pointer: *const c_void,
    length: usize,
) -> Result<Option<Address>> {
    // SAFETY: as the caller says.
    unsafe { address_of(format, pointer, length) }.map_err(|_| {
        let asked = format!("{length} bytes that are no address of format {format}");
        unmet(Mismatch { attribute, asked, offered: "addresses of IPv4 and IPv6".to_owned() })
    })
}

/// Whether the program means this provider, and this fabric.
fn served(request: &Request, fabric: &str) -> std::result::Result<(), Mismatch> {
    let mismatch = |attribute, asked: &str, offered: &str| {
        Err(Mismatch { attribute, asked: asked.to_owned(), offered: offered.to_owned() })
    };
    if let Some(asked) = &request.provider_name {
        for name in asked.split(';') {
            let meant = match name.strip_prefix('^') {
                Some(excluded) => !excluded.eq_ignore_ascii_case(FABRIC),
                None => name.eq_ignore_ascii_case(FABRIC),
            };
            if !meant {
                return mismatch("fabric_attr->prov_name", asked, FABRIC);
            }
        }
    }
    match &request.fabric_name {
        Some(asked) if asked != fabric => mismatch("fabric_attr->name", asked, fabric),
        _ => Ok(()),
    }
}

/// One answer.
struct Entry<'a> {
    version: u32,
    fabric: &'a str,
    request: &'a Request,
    offer: &'a Offer,
    place: &'a Place,
}

/// A list of [`fi_info`] in C's memory; freed unless it is handed over.
struct List {
    first: *mut fi_info,
    last: *mut fi_info,
}

impl Default for List {
    fn default() -> Self {
        Self { first: std::ptr::null_mut(), last: std::ptr::null_mut() }
    }
}

impl List {
    fn into_raw(mut self) -> *mut fi_info {
        std::mem::replace(&mut self.first, std::ptr::null_mut())
    }

    /// Adds an entry with all its structures, zeroed.
    fn grow(&mut self) -> Result<Parts<'_>> {
        let info = allocate::<fi_info>()?;
        // SAFETY: the last entry is of this list, and valid.
        match unsafe { self.last.as_mut() } {
            None => self.first = info,
            Some(last) => last.next = info,
        }
        self.last = info;
        // SAFETY: it was just allocated, zeroed, which is a valid value; the list frees whatever hangs on it.
        let info = unsafe { &mut *info };
        info.tx_attr = allocate()?;
        info.rx_attr = allocate()?;
        info.ep_attr = allocate()?;
        info.domain_attr = allocate()?;
        info.fabric_attr = allocate()?;
        // SAFETY: as above; they are separate allocations.
        unsafe {
            Ok(Parts {
                transmit: &mut *info.tx_attr,
                receive: &mut *info.rx_attr,
                endpoint: &mut *info.ep_attr,
                domain: &mut *info.domain_attr,
                fabric: &mut *info.fabric_attr,
                info,
            })
        }
    }

    /// The answer to who asks for nothing but the provider.
    fn push_provider(&mut self, version: u32, fabric: &str) -> Result {
        let parts = self.grow()?;
        parts.fabric.name = duplicate(fabric)?;
        parts.fabric.prov_version = PROVIDER_VERSION;
        parts.fabric.api_version = version;
        Ok(())
    }

    fn push(&mut self, entry: &Entry<'_>) -> Result {
        let Entry { version, fabric, request, offer, place } = *entry;
        let parts = self.grow()?;
        let info = parts.info;
        info.caps = offer.caps;
        info.addr_format = match request.format {
            FI_FORMAT_UNSPEC => address::format_of(&place.source.socket),
            format => format,
        };
        (info.src_addr, info.src_addrlen) = copy(&address::to_bytes(info.addr_format, &place.source))?;
        if let Some(destination) = &place.destination {
            (info.dest_addr, info.dest_addrlen) = copy(&address::to_bytes(info.addr_format, destination))?;
        }
        info.handle = std::ptr::with_exposed_provenance_mut(request.handle);

        let transmit = parts.transmit;
        transmit.caps = offer.transmit_caps;
        transmit.op_flags = offer.transmit_flags;
        transmit.msg_order = offer.message_order;
        transmit.comp_order = FI_ORDER_NONE;
        transmit.inject_size = offer.inject;
        transmit.size = offer.transmit_size;
        transmit.iov_limit = LOCAL_PIECES_MAX;
        transmit.rma_iov_limit = offer.remote_pieces;
        transmit.tclass = offer.tclass;

        let receive = parts.receive;
        receive.caps = offer.receive_caps;
        receive.op_flags = offer.receive_flags;
        receive.msg_order = offer.message_order;
        receive.comp_order = FI_ORDER_NONE;
        receive.total_buffered_recv = offer.buffered;
        receive.size = offer.receive_size;
        receive.iov_limit = LOCAL_PIECES_MAX;

        let endpoint = parts.endpoint;
        endpoint.r#type = offer.kind;
        endpoint.protocol = offer.protocol;
        endpoint.protocol_version = offer.protocol_version;
        endpoint.max_msg_size = offer.max_message;
        endpoint.max_order_raw_size = offer.ordered_read_after_write;
        endpoint.max_order_war_size = offer.ordered_write_after_read;
        endpoint.max_order_waw_size = offer.ordered_write_after_write;
        endpoint.mem_tag_format = offer.tag_format;
        endpoint.tx_ctx_cnt = offer.transmit_contexts;
        endpoint.rx_ctx_cnt = offer.receive_contexts;

        let domain = parts.domain;
        domain.name = duplicate(&place.domain)?;
        domain.threading = offer.threading;
        domain.control_progress = offer.control_progress;
        domain.data_progress = offer.data_progress;
        domain.resource_mgmt = FI_RM_ENABLED;
        domain.av_type = offer.av_type;
        domain.mr_mode = offer.mr_mode;
        domain.mr_key_size = KEY_BYTES;
        domain.cq_data_size = IMMEDIATE_BYTES;
        domain.cq_cnt = OBJECTS_MAX;
        domain.ep_cnt = OBJECTS_MAX;
        domain.tx_ctx_cnt = OBJECTS_MAX;
        domain.rx_ctx_cnt = OBJECTS_MAX;
        domain.max_ep_tx_ctx = offer.contexts_max;
        domain.max_ep_rx_ctx = offer.contexts_max;
        domain.max_ep_stx_ctx = OBJECTS_MAX;
        domain.max_ep_srx_ctx = OBJECTS_MAX;
        domain.cntr_cnt = OBJECTS_MAX;
        domain.mr_iov_limit = REGION_PIECES_MAX;
        domain.caps = offer.domain_caps;
        domain.max_err_data = ERROR_DATA_MAX_BYTES;
        domain.mr_cnt = REGIONS_MAX;
        domain.tclass = offer.tclass;
        domain.max_cntr_value = u64::MAX;
        domain.max_err_cntr_value = u64::MAX;

        parts.fabric.name = duplicate(fabric)?;
        parts.fabric.prov_version = PROVIDER_VERSION;
        parts.fabric.api_version = version;
        Ok(())
    }
}

/// The structures of an entry.
struct Parts<'a> {
    info: &'a mut fi_info,
    transmit: &'a mut fi_tx_attr,
    receive: &'a mut fi_rx_attr,
    endpoint: &'a mut fi_ep_attr,
    domain: &'a mut fi_domain_attr,
    fabric: &'a mut fi_fabric_attr,
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: every pointer is null or came from C's allocator, and nobody else has it.
        unsafe {
            while let Some(info) = self.first.as_mut() {
                self.first = info.next;
                if let Some(domain) = info.domain_attr.as_ref() {
                    libc::free(domain.name.cast());
                }
                if let Some(fabric) = info.fabric_attr.as_ref() {
                    libc::free(fabric.name.cast());
                }
                for part in [
                    info.src_addr,
                    info.dest_addr,
                    info.tx_attr.cast(),
                    info.rx_attr.cast(),
                    info.ep_attr.cast(),
                    info.domain_attr.cast(),
                    info.fabric_attr.cast(),
                    std::ptr::from_mut(info).cast(),
                ] {
                    libc::free(part);
                }
            }
        }
    }
}

/// Zeroed memory that libfabric will free.
fn allocate<T>() -> Result<*mut T> {
    // SAFETY: any size is permitted.
    let memory = unsafe { libc::calloc(1, size_of::<T>()) };
    if memory.is_null() { Err(-FI_ENOMEM) } else { Ok(memory.cast()) }
}

/// Bytes in memory that libfabric will free, and their number.
fn copy(bytes: &[u8]) -> Result<(*mut c_void, usize)> {
    // SAFETY: any size is permitted.
    let memory = unsafe { libc::calloc(1, bytes.len()) };
    if memory.is_null() {
        return Err(-FI_ENOMEM);
    }
    // SAFETY: it is that long, and new.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), memory.cast(), bytes.len()) };
    Ok((memory, bytes.len()))
}

/// A text in memory that libfabric will free.
fn duplicate(text: &str) -> Result<*mut c_char> {
    let text = CString::new(text).map_err(|_| -FI_EINVAL)?;
    Ok(copy(text.as_bytes_with_nul())?.0.cast())
}
