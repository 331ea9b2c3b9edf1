//! What Weft offers for a request: every attribute as it will be, or the first one that cannot be met.

use std::fmt;

use super::limits::*;
use super::names::{Bits, CAPS, FLAGS, ORDERS, value_name};
use super::request::Request;
use crate::abi::*;
use crate::limits::*;

/// Capabilities that reliable endpoints have, connected or not.
const RELIABLE_CAPS: u64 = FI_MSG
    | FI_TAGGED
    | FI_RMA
    | FI_ATOMIC
    | FI_READ
    | FI_WRITE
    | FI_RECV
    | FI_SEND
    | FI_REMOTE_READ
    | FI_REMOTE_WRITE
    | FI_MULTI_RECV
    | FI_RMA_EVENT
    | FI_DIRECTED_RECV
    | FI_SOURCE
    | FI_TRIGGER
    | FI_FENCE
    | DOMAIN_CAPS
    | FI_HMEM;
const DATAGRAM_CAPS: u64 =
    FI_MSG | FI_RECV | FI_SEND | FI_MULTI_RECV | FI_DIRECTED_RECV | FI_SOURCE | FI_TRIGGER | DOMAIN_CAPS;
/// Capabilities of the domain, whatever the endpoint.
const DOMAIN_CAPS: u64 = FI_LOCAL_COMM | FI_REMOTE_COMM | FI_SHARED_AV;
/// Messages whose length the receiver hears first: a capability of callers older than 2.0, for whom the bit means this.
const OLD_CAPS: u64 = FI_VARIABLE_MSG;
/// Capabilities that came with 2.0, one of them in the bit above. Directed receives of Weft are exact always.
const NEW_CAPS: u64 = FI_TAGGED_DIRECTED_RECV | FI_TAGGED_MULTI_RECV | FI_EXACT_DIRECTED_RECV;

const MESSAGE_DIRECTIONS: u64 = FI_SEND | FI_RECV;
const MEMORY_DIRECTIONS: u64 = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
/// Secondary capabilities that cost nothing while they are not used, so everybody gets them.
const FREE_CAPS: u64 = FI_MULTI_RECV | FI_SOURCE | FI_TRIGGER | FI_FENCE | DOMAIN_CAPS;
/// Capabilities that a program has to ask for even if it asks for no others: they change what it has to do. Programs take
/// all that is offered without hints, and with `FI_SOURCE_ERR` every message of a peer without a name would be an error.
const ASKED_CAPS: u64 = FI_HMEM | FI_SOURCE_ERR;

/// Capabilities that are the transmitting side's, as fi_endpoint(3) lists them.
const TRANSMIT_CAPS: u64 = FI_MSG
    | FI_RMA
    | FI_TAGGED
    | FI_ATOMIC
    | FI_READ
    | FI_WRITE
    | FI_SEND
    | FI_HMEM
    | FI_TRIGGER
    | FI_FENCE
    | FI_NAMED_RX_CTX;
/// Capabilities that are the receiving side's, as fi_endpoint(3) lists them.
const RECEIVE_CAPS: u64 = FI_MSG
    | FI_RMA
    | FI_TAGGED
    | FI_ATOMIC
    | FI_REMOTE_READ
    | FI_REMOTE_WRITE
    | FI_RECV
    | FI_HMEM
    | FI_TRIGGER
    | FI_DIRECTED_RECV
    | FI_MULTI_RECV
    | FI_SOURCE
    | FI_RMA_EVENT
    | FI_SOURCE_ERR
    | NEW_CAPS
    | OLD_CAPS;

const RELIABLE_TRANSMIT_FLAGS: u64 = DATAGRAM_TRANSMIT_FLAGS | FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE | FI_FENCE;
const DATAGRAM_TRANSMIT_FLAGS: u64 =
    FI_COMPLETION | FI_INJECT | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_MORE | FI_REMOTE_CQ_DATA | FI_TRIGGER;
const RECEIVE_FLAGS: u64 = FI_COMPLETION | FI_MULTI_RECV | FI_MORE | FI_TRIGGER;

/// Orders that can be had. Only the order of sends costs nothing; the others are for who asks.
const RELIABLE_ORDERS: u64 = FI_ORDER_STRICT
    | FI_ORDER_RMA_RAR
    | FI_ORDER_RMA_RAW
    | FI_ORDER_RMA_WAR
    | FI_ORDER_RMA_WAW
    | FI_ORDER_ATOMIC_RAR
    | FI_ORDER_ATOMIC_RAW
    | FI_ORDER_ATOMIC_WAR
    | FI_ORDER_ATOMIC_WAW;
const FREE_ORDERS: u64 = FI_ORDER_SAS;

/// Registration modes that callers older than 1.5 know as one.
pub(super) const BASIC_MODES: i32 = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;

/// The number of Weft's protocol, in the range that is left to providers.
const PROTOCOL: u32 = FI_PROV_SPECIFIC | 0x7765_6674;
const PROTOCOL_VERSION: u32 = 1;
/// A tag without fields: all 64 bits can be matched and ignored one by one.
const TAG_GENERIC: u64 = 0xAAAA_AAAA_AAAA_AAAA;

/// The attributes of an endpoint and its domain, but not its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) kind: u32,
    pub(super) caps: u64,
    pub(super) protocol: u32,
    pub(super) protocol_version: u32,
    pub(super) transmit_caps: u64,
    pub(super) receive_caps: u64,
    pub(super) transmit_flags: u64,
    pub(super) receive_flags: u64,
    pub(super) message_order: u64,
    pub(super) max_message: usize,
    pub(super) ordered_read_after_write: usize,
    pub(super) ordered_write_after_read: usize,
    pub(super) ordered_write_after_write: usize,
    pub(super) tag_format: u64,
    pub(super) inject: usize,
    pub(super) transmit_size: usize,
    pub(super) receive_size: usize,
    pub(super) buffered: usize,
    pub(super) remote_pieces: usize,
    pub(super) transmit_contexts: usize,
    pub(super) receive_contexts: usize,
    pub(super) contexts_max: usize,
    pub(super) threading: u32,
    pub(super) control_progress: u32,
    pub(super) data_progress: u32,
    pub(super) av_type: u32,
    pub(super) mr_mode: i32,
    pub(super) domain_caps: u64,
    pub(super) tclass: u32,
}

/// An attribute that cannot be met.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mismatch {
    pub(super) attribute: &'static str,
    pub(super) asked: String,
    pub(super) offered: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cannot be met: asked {}, offered {}", self.attribute, self.asked, self.offered)
    }
}

type Checked<T = ()> = Result<T, Mismatch>;

fn mismatch<T>(attribute: &'static str, asked: impl fmt::Display, offered: impl fmt::Display) -> Checked<T> {
    Err(Mismatch { attribute, asked: asked.to_string(), offered: offered.to_string() })
}

/// A number that may not be more than there is; 0 leaves it open.
fn at_most(attribute: &'static str, asked: usize, offered: usize) -> Checked {
    if asked > offered { mismatch(attribute, asked, offered) } else { Ok(()) }
}

/// Bits that must all be there.
fn subset(attribute: &'static str, asked: u64, offered: u64, names: &'static [(&'static str, u64)]) -> Checked {
    let lacking = asked & !offered;
    if lacking == 0 {
        return Ok(());
    }
    let asked = format_args!("{} (lacking: {})", Bits(asked, names), Bits(lacking, names)).to_string();
    mismatch(attribute, asked, Bits(offered, names))
}

/// A value out of a list; 0 leaves it open and gives the default.
fn one_of(attribute: &'static str, asked: u32, offered: &[u32], default: u32) -> Checked<u32> {
    match asked {
        0 => Ok(default),
        _ if offered.contains(&asked) => Ok(asked),
        _ => {
            let offered: Vec<_> = offered.iter().map(|value| value_name(attribute, *value)).collect();
            mismatch(attribute, value_name(attribute, asked), offered.join(" or "))
        }
    }
}

/// Endpoints that are offered, best first.
pub(super) const KINDS: [u32; 3] = [FI_EP_RDM, FI_EP_DGRAM, FI_EP_MSG];

/// The name of a kind, for log lines.
pub(super) fn kind_name(kind: u32) -> &'static str {
    match kind {
        FI_EP_RDM => "FI_EP_RDM",
        FI_EP_DGRAM => "FI_EP_DGRAM",
        FI_EP_MSG => "FI_EP_MSG",
        _ => "an endpoint of unknown type",
    }
}

/// Everything that a kind of endpoint can for callers of a version.
fn all_caps(kind: u32, version: u32) -> u64 {
    let of_version = if version < FI_VERSION(2, 0) { OLD_CAPS } else { NEW_CAPS };
    match kind {
        FI_EP_DGRAM if version < FI_VERSION(2, 0) => DATAGRAM_CAPS,
        FI_EP_DGRAM => DATAGRAM_CAPS | FI_EXACT_DIRECTED_RECV,
        FI_EP_MSG => RELIABLE_CAPS | of_version,
        _ => RELIABLE_CAPS | FI_NAMED_RX_CTX | FI_SOURCE_ERR | of_version,
    }
}

/// The bit that callers older than 2.0 mean for something else.
fn old_bit(version: u32) -> u64 {
    if version < FI_VERSION(2, 0) { OLD_CAPS } else { 0 }
}

/// Directions are those asked for; all of them where a service is asked for without any.
fn with_directions(caps: u64, offered: u64) -> u64 {
    let mut caps = caps;
    if caps & (FI_MSG | FI_TAGGED) != 0 && caps & MESSAGE_DIRECTIONS == 0 {
        caps |= MESSAGE_DIRECTIONS & offered;
    }
    if caps & (FI_RMA | FI_ATOMIC) != 0 && caps & MEMORY_DIRECTIONS == 0 {
        caps |= MEMORY_DIRECTIONS & offered;
    }
    caps
}

/// The capabilities of one side: those asked for, or what applies to it of the endpoint's.
fn side_caps(attribute: &'static str, asked: u64, caps: u64, side: u64) -> Checked<u64> {
    let offered = caps & side;
    if asked == 0 {
        return Ok(offered);
    }
    // Programs copy the endpoint's capabilities here, those of the other side too.
    subset(attribute, asked, caps, CAPS)?;
    Ok((with_directions(asked, caps) | (offered & FREE_CAPS)) & side)
}

/// The registration mode that is returned; fi_mr(3), fi_domain(3).
fn mr_mode(asked: i32, version: u32, hmem: bool) -> Checked<i32> {
    const COMPATIBLE: i32 = FI_MR_BASIC | FI_MR_SCALABLE;
    match asked {
        FI_MR_BASIC | FI_MR_SCALABLE => Ok(asked),
        // Old callers have an enumeration, in which unspecified is no answer.
        FI_MR_UNSPEC if version < FI_VERSION(1, 5) => Ok(FI_MR_SCALABLE),
        _ if version < FI_VERSION(1, 5) || asked & COMPATIBLE != 0 => {
            mismatch("domain_attr->mr_mode", format_args!("{asked:#x}"), "FI_MR_BASIC or FI_MR_SCALABLE alone")
        }
        // Weft needs none of the bits: programs choose keys and offsets themselves. That memory is mapped saves a look.
        _ => Ok(asked & (FI_MR_ALLOCATED | if hmem { FI_MR_HMEM } else { 0 })),
    }
}

/// Resolves a request for one kind of endpoint.
pub(super) fn negotiate(kind: u32, version: u32, request: &Request) -> Checked<Offer> {
    let datagram = kind == FI_EP_DGRAM;
    let mut all = all_caps(kind, version);
    // Who hears of a message before it receives it posts no buffers for many.
    if request.caps & old_bit(version) != 0 {
        all &= !FI_MULTI_RECV;
    }
    let (transmit, receive) = (&request.transmit, &request.receive);
    let (endpoint, domain) = (&request.endpoint, &request.domain);

    if endpoint.kind != FI_EP_UNSPEC && endpoint.kind != kind {
        return mismatch("ep_attr->type", kind_name(endpoint.kind), KINDS.map(kind_name).join(" or "));
    }
    one_of("ep_attr->protocol", endpoint.protocol, &[PROTOCOL], PROTOCOL)?;
    one_of("ep_attr->protocol_version", endpoint.protocol_version, &[PROTOCOL_VERSION], PROTOCOL_VERSION)?;

    subset("caps", request.caps, all, CAPS)?;
    let caps = match request.caps {
        0 => all & !(ASKED_CAPS | old_bit(version)),
        asked => with_directions(asked, all) | (all & FREE_CAPS),
    };
    let transmit_caps = side_caps("tx_attr->caps", transmit.caps, caps, TRANSMIT_CAPS)?;
    let receive_caps = side_caps("rx_attr->caps", receive.caps, caps, RECEIVE_CAPS)?;

    let flags = if datagram { DATAGRAM_TRANSMIT_FLAGS } else { RELIABLE_TRANSMIT_FLAGS };
    subset("tx_attr->op_flags", transmit.op_flags, flags, FLAGS)?;
    subset("rx_attr->op_flags", receive.op_flags, RECEIVE_FLAGS, FLAGS)?;

    let orders = if datagram { 0 } else { RELIABLE_ORDERS };
    subset("tx_attr->msg_order", transmit.msg_order, orders, ORDERS)?;
    subset("rx_attr->msg_order", receive.msg_order, orders, ORDERS)?;
    // Completions come when their operations end, which no order ties to that of their start.
    subset("tx_attr->comp_order", transmit.comp_order, FI_ORDER_NONE, ORDERS)?;
    subset("rx_attr->comp_order", receive.comp_order, FI_ORDER_NONE, ORDERS)?;
    let max_message = if datagram { DATAGRAM_MAX_BYTES } else { MESSAGE_MAX_BYTES as usize };
    at_most("ep_attr->max_msg_size", endpoint.max_msg_size, max_message)?;
    let message_order = transmit.msg_order | receive.msg_order | (FREE_ORDERS & orders);
    // The sizes say how far the orders among `msg_order` reach, and ask for none: without an order there is nothing for a
    // size to say (fi_endpoint(3), Max RMA Ordered Size), and programs hand back those that they were given.
    let ordered = |attribute, asked: usize, of: u64| {
        let offered = if datagram { 0 } else { max_message };
        at_most(attribute, asked, offered)?;
        Ok(if message_order & of != 0 { offered } else { 0 })
    };
    let ordered_read_after_write = ordered(
        "ep_attr->max_order_raw_size",
        endpoint.max_order_raw_size,
        FI_ORDER_RAW | FI_ORDER_RMA_RAW | FI_ORDER_ATOMIC_RAW,
    )?;
    let ordered_write_after_read = ordered(
        "ep_attr->max_order_war_size",
        endpoint.max_order_war_size,
        FI_ORDER_WAR | FI_ORDER_RMA_WAR | FI_ORDER_ATOMIC_WAR,
    )?;
    let ordered_write_after_write = ordered(
        "ep_attr->max_order_waw_size",
        endpoint.max_order_waw_size,
        FI_ORDER_WAW | FI_ORDER_RMA_WAW | FI_ORDER_ATOMIC_WAW,
    )?;

    if endpoint.msg_prefix_size > 0 && request.mode & FI_MSG_PREFIX == 0 {
        return mismatch("ep_attr->msg_prefix_size", endpoint.msg_prefix_size, 0);
    }
    at_most("ep_attr->auth_key_size", endpoint.auth_key_size, 0)?;
    // A connection has one context on each side.
    let contexts_max = if kind == FI_EP_MSG { 1 } else { CONTEXTS_MAX };
    let contexts = |attribute, asked: usize| match asked {
        FI_SHARED_CONTEXT => Ok(FI_SHARED_CONTEXT),
        _ => at_most(attribute, asked, contexts_max).map(|()| asked.max(1)),
    };
    let transmit_contexts = contexts("ep_attr->tx_ctx_cnt", endpoint.tx_ctx_cnt)?;
    let receive_contexts = contexts("ep_attr->rx_ctx_cnt", endpoint.rx_ctx_cnt)?;

    let inject = INJECT_MAX_BYTES.min(max_message);
    let remote_pieces = if datagram { 0 } else { REMOTE_PIECES_MAX };
    let size = |asked: usize| if asked == 0 { OPERATIONS_DEFAULT } else { asked };
    for (attribute, asked, offered) in [
        ("tx_attr->inject_size", transmit.inject_size, inject),
        ("tx_attr->size", transmit.size, OPERATIONS_MAX),
        ("tx_attr->iov_limit", transmit.iov_limit, LOCAL_PIECES_MAX),
        ("tx_attr->rma_iov_limit", transmit.rma_iov_limit, remote_pieces),
        ("rx_attr->size", receive.size, OPERATIONS_MAX),
        ("rx_attr->iov_limit", receive.iov_limit, LOCAL_PIECES_MAX),
        ("rx_attr->total_buffered_recv", receive.total_buffered_recv, BUFFERED_MAX_BYTES),
        ("domain_attr->mr_key_size", domain.mr_key_size, KEY_BYTES),
        ("domain_attr->cq_data_size", domain.cq_data_size, IMMEDIATE_BYTES),
        ("domain_attr->cq_cnt", domain.cq_cnt, OBJECTS_MAX),
        ("domain_attr->ep_cnt", domain.ep_cnt, OBJECTS_MAX),
        ("domain_attr->tx_ctx_cnt", domain.tx_ctx_cnt, OBJECTS_MAX),
        ("domain_attr->rx_ctx_cnt", domain.rx_ctx_cnt, OBJECTS_MAX),
        ("domain_attr->max_ep_tx_ctx", domain.max_ep_tx_ctx, contexts_max),
        ("domain_attr->max_ep_rx_ctx", domain.max_ep_rx_ctx, contexts_max),
        ("domain_attr->max_ep_stx_ctx", domain.max_ep_stx_ctx, OBJECTS_MAX),
        ("domain_attr->max_ep_srx_ctx", domain.max_ep_srx_ctx, OBJECTS_MAX),
        ("domain_attr->cntr_cnt", domain.cntr_cnt, OBJECTS_MAX),
        ("domain_attr->mr_iov_limit", domain.mr_iov_limit, REGION_PIECES_MAX),
        ("domain_attr->mr_cnt", domain.mr_cnt, REGIONS_MAX),
        ("domain_attr->auth_key_size", domain.auth_key_size, 0),
        ("domain_attr->max_err_data", domain.max_err_data, ERROR_DATA_MAX_BYTES),
    ] {
        at_most(attribute, asked, offered)?;
    }

    let threadings = [FI_THREAD_SAFE, FI_THREAD_FID, FI_THREAD_DOMAIN, FI_THREAD_COMPLETION, FI_THREAD_ENDPOINT];
    let threading = one_of("domain_attr->threading", domain.threading, &threadings, FI_THREAD_SAFE)?;
    let progress = [FI_PROGRESS_AUTO, FI_PROGRESS_MANUAL];
    // Progress in the caller's calls is much the faster one, so it is what open wishes get.
    let data_progress = one_of("domain_attr->data_progress", domain.data_progress, &progress, FI_PROGRESS_MANUAL)?;
    let progress = [FI_PROGRESS_AUTO, FI_PROGRESS_MANUAL, FI_PROGRESS_CONTROL_UNIFIED];
    let control_progress = one_of("domain_attr->control_progress", domain.control_progress, &progress, data_progress)?;
    one_of("domain_attr->resource_mgmt", domain.resource_mgmt, &[FI_RM_DISABLED, FI_RM_ENABLED], FI_RM_ENABLED)?;
    // Left open it stays so, which says that both are there.
    let av_type = one_of("domain_attr->av_type", domain.av_type, &[FI_AV_MAP, FI_AV_TABLE], FI_AV_UNSPEC)?;
    subset("domain_attr->caps", domain.caps, DOMAIN_CAPS, CAPS)?;
    // The labels are preferences, and all traffic is served alike. Code points would have to be in the packets.
    let classes = [
        FI_TC_BEST_EFFORT,
        FI_TC_LOW_LATENCY,
        FI_TC_DEDICATED_ACCESS,
        FI_TC_BULK_DATA,
        FI_TC_SCAVENGER,
        FI_TC_NETWORK_CTRL,
    ];
    one_of("domain_attr->tclass", domain.tclass, &classes, FI_TC_UNSPEC)?;
    let tclass = one_of("tx_attr->tclass", transmit.tclass, &classes, domain.tclass)?;
    let mr_mode = mr_mode(domain.mr_mode, version, caps & FI_HMEM != 0)?;

    let formats = [FI_SOCKADDR, FI_SOCKADDR_IN, FI_SOCKADDR_IN6, FI_ADDR_STR, FI_SOCKADDR_IP];
    one_of("addr_format", request.format, &formats, FI_FORMAT_UNSPEC)?;

    Ok(Offer {
        kind,
        caps,
        protocol: PROTOCOL,
        protocol_version: PROTOCOL_VERSION,
        transmit_caps,
        receive_caps,
        transmit_flags: transmit.op_flags,
        receive_flags: receive.op_flags,
        message_order,
        max_message,
        ordered_read_after_write,
        ordered_write_after_read,
        ordered_write_after_write,
        tag_format: if endpoint.mem_tag_format == 0 { TAG_GENERIC } else { endpoint.mem_tag_format },
        inject,
        transmit_size: size(transmit.size),
        receive_size: size(receive.size),
        buffered: receive.total_buffered_recv,
        remote_pieces,
        transmit_contexts,
        receive_contexts,
        contexts_max,
        threading,
        control_progress,
        data_progress,
        av_type,
        mr_mode,
        domain_caps: DOMAIN_CAPS,
        tclass,
    })
}
