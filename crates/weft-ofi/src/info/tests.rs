use std::net::SocketAddr;

use super::*;
use crate::abi::FI_VERSION;
use crate::interface::Interface;

const VERSION: u32 = FI_VERSION(1, 17);
const NEW: u32 = FI_VERSION(2, 0);
const SECONDARY: u64 =
    FI_MULTI_RECV | FI_SOURCE | FI_TRIGGER | FI_FENCE | FI_LOCAL_COMM | FI_REMOTE_COMM | FI_SHARED_AV;

fn request(change: impl FnOnce(&mut Request)) -> Request {
    let mut request = Request::default();
    change(&mut request);
    request
}

fn offered(kind: u32, change: impl FnOnce(&mut Request)) -> Offer {
    negotiate(kind, VERSION, &request(change)).unwrap()
}

type Change = fn(&mut Request);
type Case = (&'static str, Change);

/// What no reliable endpoint that is not connected can do.
const UNMET: &[Case] = &[
    ("caps", |r| r.caps = FI_MSG | FI_MULTICAST),
    ("caps", |r| r.caps = FI_COLLECTIVE),
    ("caps", |r| r.caps = FI_XPU_TRIGGER | FI_TRIGGER),
    ("caps", |r| r.caps = FI_RMA | FI_RMA_PMEM),
    ("caps", |r| r.caps = FI_MSG | FI_TAGGED_DIRECTED_RECV),
    ("addr_format", |r| r.format = FI_ADDR_GNI),
    ("ep_attr->type", |r| r.endpoint.kind = FI_EP_SOCK_STREAM),
    ("ep_attr->type", |r| r.endpoint.kind = FI_EP_MSG),
    ("ep_attr->protocol", |r| r.endpoint.protocol = FI_PROTO_UDP),
    ("ep_attr->protocol_version", |r| r.endpoint.protocol_version = 9),
    ("ep_attr->max_msg_size", |r| r.endpoint.max_msg_size = usize::MAX),
    ("ep_attr->msg_prefix_size", |r| r.endpoint.msg_prefix_size = 8),
    ("ep_attr->max_order_raw_size", |r| r.endpoint.max_order_raw_size = usize::MAX),
    ("ep_attr->max_order_war_size", |r| r.endpoint.max_order_war_size = usize::MAX),
    ("ep_attr->max_order_waw_size", |r| r.endpoint.max_order_waw_size = usize::MAX),
    ("ep_attr->tx_ctx_cnt", |r| r.endpoint.tx_ctx_cnt = 257),
    ("ep_attr->rx_ctx_cnt", |r| r.endpoint.rx_ctx_cnt = 257),
    ("ep_attr->auth_key_size", |r| r.endpoint.auth_key_size = 4),
    ("tx_attr->caps", |r| (r.caps, r.transmit.caps) = (FI_MSG, FI_TAGGED)),
    ("rx_attr->caps", |r| (r.caps, r.receive.caps) = (FI_MSG | FI_SEND, FI_RECV)),
    ("tx_attr->op_flags", |r| r.transmit.op_flags = FI_COMMIT_COMPLETE),
    ("rx_attr->op_flags", |r| r.receive.op_flags = FI_PEEK),
    ("tx_attr->msg_order", |r| r.transmit.msg_order = FI_ORDER_DATA),
    ("rx_attr->msg_order", |r| r.receive.msg_order = 1 << 60),
    ("tx_attr->comp_order", |r| r.transmit.comp_order = FI_ORDER_STRICT),
    ("rx_attr->comp_order", |r| r.receive.comp_order = FI_ORDER_DATA),
    ("tx_attr->inject_size", |r| r.transmit.inject_size = 32_769),
    ("tx_attr->size", |r| r.transmit.size = 1 << 20),
    ("rx_attr->size", |r| r.receive.size = 1 << 20),
    ("tx_attr->iov_limit", |r| r.transmit.iov_limit = 9),
    ("rx_attr->iov_limit", |r| r.receive.iov_limit = 9),
    ("tx_attr->rma_iov_limit", |r| r.transmit.rma_iov_limit = 5),
    ("tx_attr->tclass", |r| r.transmit.tclass = FI_TC_DSCP | 46),
    ("rx_attr->total_buffered_recv", |r| r.receive.total_buffered_recv = usize::MAX),
    ("domain_attr->threading", |r| r.domain.threading = 99),
    ("domain_attr->control_progress", |r| r.domain.control_progress = 99),
    ("domain_attr->data_progress", |r| r.domain.data_progress = FI_PROGRESS_CONTROL_UNIFIED),
    ("domain_attr->resource_mgmt", |r| r.domain.resource_mgmt = 3),
    ("domain_attr->av_type", |r| r.domain.av_type = 3),
    ("domain_attr->mr_mode", |r| r.domain.mr_mode = FI_MR_BASIC | FI_MR_SCALABLE),
    ("domain_attr->mr_mode", |r| r.domain.mr_mode = FI_MR_BASIC | FI_MR_LOCAL),
    ("domain_attr->mr_key_size", |r| r.domain.mr_key_size = 16),
    ("domain_attr->cq_data_size", |r| r.domain.cq_data_size = 9),
    ("domain_attr->cq_cnt", |r| r.domain.cq_cnt = usize::MAX),
    ("domain_attr->ep_cnt", |r| r.domain.ep_cnt = usize::MAX),
    ("domain_attr->tx_ctx_cnt", |r| r.domain.tx_ctx_cnt = usize::MAX),
    ("domain_attr->rx_ctx_cnt", |r| r.domain.rx_ctx_cnt = usize::MAX),
    ("domain_attr->max_ep_tx_ctx", |r| r.domain.max_ep_tx_ctx = 257),
    ("domain_attr->max_ep_rx_ctx", |r| r.domain.max_ep_rx_ctx = 257),
    ("domain_attr->max_ep_stx_ctx", |r| r.domain.max_ep_stx_ctx = usize::MAX),
    ("domain_attr->max_ep_srx_ctx", |r| r.domain.max_ep_srx_ctx = usize::MAX),
    ("domain_attr->cntr_cnt", |r| r.domain.cntr_cnt = usize::MAX),
    ("domain_attr->mr_iov_limit", |r| r.domain.mr_iov_limit = 2),
    ("domain_attr->mr_cnt", |r| r.domain.mr_cnt = usize::MAX),
    ("domain_attr->caps", |r| r.domain.caps = FI_AV_USER_ID),
    ("domain_attr->auth_key_size", |r| r.domain.auth_key_size = 1),
    ("domain_attr->max_err_data", |r| r.domain.max_err_data = 1024),
    ("domain_attr->tclass", |r| r.domain.tclass = FI_TC_DSCP | 8),
];

#[test]
fn what_cannot_be_met_is_named() {
    for (attribute, change) in UNMET {
        let result = negotiate(FI_EP_RDM, VERSION, &request(change));
        assert_eq!(result.map_err(|mismatch| mismatch.attribute), Err(*attribute));
    }
}

#[test]
fn datagrams_and_connections_offer_less() {
    let cases: &[(u32, &str, Change)] = &[
        (FI_EP_DGRAM, "caps", |r| r.caps = FI_TAGGED),
        (FI_EP_DGRAM, "caps", |r| r.caps = FI_MSG | FI_FENCE),
        (FI_EP_DGRAM, "ep_attr->max_msg_size", |r| r.endpoint.max_msg_size = 1153),
        (FI_EP_DGRAM, "tx_attr->msg_order", |r| r.transmit.msg_order = FI_ORDER_SAS),
        (FI_EP_DGRAM, "tx_attr->op_flags", |r| r.transmit.op_flags = FI_DELIVERY_COMPLETE),
        (FI_EP_DGRAM, "tx_attr->inject_size", |r| r.transmit.inject_size = 1153),
        (FI_EP_DGRAM, "tx_attr->rma_iov_limit", |r| r.transmit.rma_iov_limit = 1),
        (FI_EP_MSG, "caps", |r| r.caps = FI_MSG | FI_NAMED_RX_CTX),
        (FI_EP_MSG, "caps", |r| r.caps = FI_MSG | FI_SOURCE | FI_SOURCE_ERR),
        (FI_EP_MSG, "ep_attr->tx_ctx_cnt", |r| r.endpoint.tx_ctx_cnt = 2),
    ];
    for (kind, attribute, change) in cases {
        let result = negotiate(*kind, VERSION, &request(change));
        assert_eq!(result.map_err(|mismatch| mismatch.attribute), Err(*attribute), "{kind}");
    }
}

#[test]
fn a_reason_is_one_line_that_says_asked_and_offered() {
    let asked = request(|r| r.caps = FI_MSG | FI_COLLECTIVE | 1 << 63);
    let reason = negotiate(FI_EP_DGRAM, VERSION, &asked).unwrap_err().to_string();
    let start = "caps cannot be met: asked FI_MSG|FI_COLLECTIVE|0x8000000000000000 (lacking: \
                 FI_COLLECTIVE|0x8000000000000000), offered FI_MSG|FI_RECV|";
    assert!(reason.starts_with(start) && !reason.contains('\n'), "{reason}");
    let asked = request(|r| r.transmit.inject_size = 50_000);
    let reason = negotiate(FI_EP_RDM, VERSION, &asked).unwrap_err().to_string();
    assert_eq!(reason, "tx_attr->inject_size cannot be met: asked 50000, offered 16384");
}

#[test]
fn primary_capabilities_are_those_asked_for() {
    let memory = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
    let cases = [
        (FI_MSG, FI_MSG | FI_SEND | FI_RECV),
        (FI_TAGGED | FI_SEND, FI_TAGGED | FI_SEND),
        (FI_RMA, FI_RMA | memory),
        (FI_RMA | FI_ATOMIC | FI_WRITE, FI_RMA | FI_ATOMIC | FI_WRITE),
        (FI_MSG | FI_RMA | FI_SEND, FI_MSG | FI_RMA | FI_SEND | memory),
        (FI_MSG | FI_HMEM | FI_DIRECTED_RECV, FI_MSG | FI_SEND | FI_RECV | FI_HMEM | FI_DIRECTED_RECV),
        (FI_RMA | FI_RMA_EVENT, FI_RMA | memory | FI_RMA_EVENT),
        (FI_MSG | FI_SOURCE | FI_SOURCE_ERR, FI_MSG | FI_SEND | FI_RECV | FI_SOURCE_ERR),
    ];
    for (asked, expected) in cases {
        assert_eq!(offered(FI_EP_RDM, |r| r.caps = asked).caps, expected | SECONDARY, "{asked:#x}");
    }
}

/// Who hears of a message before it receives it has no use for buffers that take many.
#[test]
fn messages_of_any_length_exclude_multi_receives() {
    let caps = offered(FI_EP_RDM, |r| r.caps = FI_MSG | FI_VARIABLE_MSG).caps;
    assert_eq!(caps, (FI_MSG | FI_SEND | FI_RECV | FI_VARIABLE_MSG | SECONDARY) & !FI_MULTI_RECV);
    let both = request(|r| r.caps = FI_MSG | FI_VARIABLE_MSG | FI_MULTI_RECV);
    let reason = negotiate(FI_EP_RDM, VERSION, &both).unwrap_err().to_string();
    assert!(reason.contains("lacking: FI_MULTI_RECV"), "{reason}");
}

#[test]
fn without_a_wish_all_is_offered_but_what_obliges_the_program() {
    let old = offered(FI_EP_RDM, |_| ()).caps;
    let all = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_NAMED_RX_CTX | FI_DIRECTED_RECV | FI_RMA_EVENT;
    assert_eq!(old & all, all);
    assert_eq!(old & (FI_HMEM | FI_SOURCE_ERR | FI_VARIABLE_MSG | FI_XPU_TRIGGER | FI_TAGGED_DIRECTED_RECV), 0);
    let new = negotiate(FI_EP_RDM, NEW, &Request::default()).unwrap().caps;
    assert_eq!(new, old | FI_EXACT_DIRECTED_RECV | FI_TAGGED_DIRECTED_RECV | FI_TAGGED_MULTI_RECV);
    let datagram = offered(FI_EP_DGRAM, |_| ());
    assert_eq!((datagram.max_message, datagram.inject, datagram.message_order), (1152, 1152, 0));
}

#[test]
fn sides_have_what_applies_to_them() {
    let offer = offered(FI_EP_RDM, |r| r.caps = FI_MSG | FI_RMA | FI_DIRECTED_RECV);
    assert_eq!(offer.transmit_caps, FI_MSG | FI_RMA | FI_SEND | FI_READ | FI_WRITE | FI_TRIGGER | FI_FENCE);
    let receive = FI_MSG | FI_RMA | FI_RECV | FI_REMOTE_READ | FI_REMOTE_WRITE | FI_DIRECTED_RECV;
    assert_eq!(offer.receive_caps, receive | FI_MULTI_RECV | FI_SOURCE | FI_TRIGGER);
    let offer = offered(FI_EP_RDM, |r| (r.caps, r.transmit.caps) = (FI_MSG | FI_RMA, FI_RMA | FI_WRITE));
    assert_eq!(offer.transmit_caps, FI_RMA | FI_WRITE | FI_TRIGGER | FI_FENCE);
}

#[test]
fn orders_cost_so_only_those_asked_for_are_given() {
    let plain = offered(FI_EP_RDM, |_| ());
    assert_eq!((plain.message_order, plain.ordered_read_after_write), (FI_ORDER_SAS, 0));
    let asked = FI_ORDER_RMA_WAW | FI_ORDER_ATOMIC_RAW | FI_ORDER_RAS;
    let offer = offered(FI_EP_MSG, |r| r.transmit.msg_order = asked);
    assert_eq!(offer.message_order, asked | FI_ORDER_SAS);
    let sizes = (offer.ordered_read_after_write, offer.ordered_write_after_read, offer.ordered_write_after_write);
    assert_eq!(sizes, (offer.max_message, 0, offer.max_message));
    // A size alone asks for no order.
    let offer = offered(FI_EP_RDM, |r| r.endpoint.max_order_war_size = 64);
    assert_eq!((offer.message_order, offer.ordered_write_after_read), (FI_ORDER_SAS, 0));
}

#[test]
fn registration_modes_follow_the_manual() {
    let all = FI_MR_LOCAL | FI_MR_RAW | BASIC | FI_MR_MMU_NOTIFY | FI_MR_RMA_EVENT | FI_MR_ENDPOINT | FI_MR_HMEM;
    const BASIC: i32 = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    const OLD: u32 = FI_VERSION(1, 4);
    let cases = [
        (OLD, FI_MR_UNSPEC, FI_MSG, Some(FI_MR_SCALABLE)),
        (OLD, FI_MR_BASIC, FI_MSG, Some(FI_MR_BASIC)),
        (OLD, FI_MR_SCALABLE, FI_MSG, Some(FI_MR_SCALABLE)),
        (OLD, FI_MR_LOCAL, FI_MSG, None),
        (VERSION, FI_MR_UNSPEC, FI_MSG, Some(0)),
        (VERSION, FI_MR_BASIC, FI_MSG, Some(FI_MR_BASIC)),
        (VERSION, FI_MR_SCALABLE, FI_MSG, Some(FI_MR_SCALABLE)),
        (VERSION, all, FI_MSG, Some(FI_MR_ALLOCATED)),
        (VERSION, all, FI_MSG | FI_HMEM, Some(FI_MR_ALLOCATED | FI_MR_HMEM)),
        (VERSION, FI_MR_ENDPOINT, FI_MSG | FI_HMEM, Some(0)),
        (VERSION, FI_MR_PROV_KEY, FI_MSG, Some(0)),
    ];
    for (version, asked, caps, expected) in cases {
        let request = request(|r| (r.caps, r.domain.mr_mode) = (caps, asked));
        let mode = negotiate(FI_EP_RDM, version, &request).ok().map(|offer| offer.mr_mode);
        assert_eq!(mode, expected, "{version:#x} {asked:#x}");
    }
}

#[test]
fn wishes_that_cost_nothing_are_echoed() {
    for threading in [FI_THREAD_SAFE, FI_THREAD_FID, FI_THREAD_DOMAIN, FI_THREAD_COMPLETION, FI_THREAD_ENDPOINT] {
        assert_eq!(offered(FI_EP_RDM, |r| r.domain.threading = threading).threading, threading);
    }
    for progress in [FI_PROGRESS_AUTO, FI_PROGRESS_MANUAL] {
        let offer = offered(FI_EP_RDM, |r| r.domain.data_progress = progress);
        assert_eq!((offer.data_progress, offer.control_progress), (progress, progress));
    }
    for av_type in [FI_AV_UNSPEC, FI_AV_MAP, FI_AV_TABLE] {
        assert_eq!(offered(FI_EP_RDM, |r| r.domain.av_type = av_type).av_type, av_type);
    }
    let offer = offered(FI_EP_RDM, |r| {
        r.endpoint.mem_tag_format = 0x30ff;
        r.transmit.op_flags = FI_DELIVERY_COMPLETE | FI_COMPLETION;
        r.receive.op_flags = FI_MULTI_RECV;
        (r.transmit.size, r.receive.size) = (7, 16_384);
        (r.endpoint.tx_ctx_cnt, r.endpoint.rx_ctx_cnt) = (4, FI_SHARED_CONTEXT);
        r.endpoint.msg_prefix_size = 64;
        r.mode = FI_MSG_PREFIX;
    });
    assert_eq!(offer.tag_format, 0x30ff);
    assert_eq!(offered(FI_EP_MSG, |r| r.transmit.tclass = FI_TC_BULK_DATA).tclass, FI_TC_BULK_DATA);
    assert_eq!((offer.transmit_flags, offer.receive_flags), (FI_DELIVERY_COMPLETE | FI_COMPLETION, FI_MULTI_RECV));
    assert_eq!((offer.transmit_size, offer.receive_size), (7, 16_384));
    assert_eq!((offer.transmit_contexts, offer.receive_contexts), (4, FI_SHARED_CONTEXT));
}

#[test]
fn only_programs_that_mean_this_provider_are_served() {
    for (name, meant) in [
        ("weft", true),
        ("WEFT", true),
        ("weft;^ofi_rxm", true),
        ("^ofi_rxm;^shm", true),
        ("^weft", false),
        ("weft;ofi_rxm", false),
        ("ofi_rxm;weft", false),
        ("tcp", false),
        ("weft2", false),
    ] {
        let request = request(|r| r.provider_name = Some(name.to_owned()));
        assert_eq!(served(&request, "weft").is_ok(), meant, "{name}");
    }
    let request = request(|r| r.fabric_name = Some("weft:job".to_owned()));
    assert!(served(&request, "weft:job").is_ok());
    assert_eq!(served(&request, "weft").unwrap_err().attribute, "fabric_attr->name");
}

fn interfaces() -> Vec<Interface> {
    let one = |name: &str, address: &str, prefix, loopback| Interface {
        name: name.to_owned(),
        address: address.parse().unwrap(),
        prefix,
        loopback,
    };
    vec![
        one("net", "192.0.2.7", 24, false),
        one("lo", "127.0.0.1", 8, true),
        one("net", "2001:db8::7", 64, false),
        one("lo", "::1", 128, true),
    ]
}

fn places(change: impl FnOnce(&mut Ends<'_>)) -> std::result::Result<Vec<String>, Nowhere> {
    let mut ends =
        Ends { node: None, service: None, flags: 0, format: FI_FORMAT_UNSPEC, source: None, destination: None };
    change(&mut ends);
    let text = |place: &Place| match &place.destination {
        None => format!("{} {}{}", place.domain, place.source.socket, if place.anywhere { " *" } else { "" }),
        Some(to) => format!("{} {} -> {}", place.domain, place.source.socket, to.socket),
    };
    Ok(ends.places(interfaces())?.iter().map(text).collect())
}

fn address(text: &str) -> Option<Address> {
    Some(Address { socket: text.parse::<SocketAddr>().unwrap(), endpoint: 0 })
}

#[test]
fn places_follow_node_service_and_flags() {
    type Change = fn(&mut Ends<'_>);
    let cases: &[(Change, &[&str])] = &[
        (|_| (), &["net 192.0.2.7:0", "lo 127.0.0.1:0", "net [2001:db8::7]:0", "lo [::1]:0"]),
        (|e| e.format = FI_SOCKADDR_IN, &["net 192.0.2.7:0", "lo 127.0.0.1:0"]),
        (
            |e| (e.service, e.flags, e.format) = (Some("7"), FI_SOURCE, FI_SOCKADDR_IN),
            &["net 192.0.2.7:7 *", "lo 127.0.0.1:7 *"],
        ),
        (
            |e| (e.node, e.service, e.flags) = (Some("127.0.0.3"), Some("7"), FI_SOURCE | FI_NUMERICHOST),
            &["lo 127.0.0.3:7"],
        ),
        (|e| (e.node, e.service) = (Some("127.0.0.1"), Some("7")), &["lo 127.0.0.1:0 -> 127.0.0.1:7"]),
        (
            |e| (e.service, e.format) = (Some("7"), FI_SOCKADDR_IN),
            &["net 192.0.2.7:0 -> 192.0.2.7:7", "lo 127.0.0.1:0 -> 127.0.0.1:7"],
        ),
        (|e| e.source = address("192.0.2.7:9"), &["net 192.0.2.7:9"]),
        (
            |e| (e.source, e.destination) = (address("127.0.0.1:9"), address("127.0.0.1:8")),
            &["lo 127.0.0.1:9 -> 127.0.0.1:8"],
        ),
        // The hint's destination does not count beside a node, nor its source where the node is the source.
        (|e| (e.node, e.destination) = (Some("127.0.0.1"), address("192.0.2.9:8")), &["lo 127.0.0.1:0 -> 127.0.0.1:0"]),
        (
            |e| (e.node, e.format) = (Some("fi_sockaddr_in://127.0.0.1:5#00000009"), FI_SOCKADDR),
            &["lo 127.0.0.1:0 -> 127.0.0.1:5"],
        ),
    ];
    for (change, expected) in cases {
        assert_eq!(places(change).unwrap(), *expected);
    }
    for change in [(|e: &mut Ends<'_>| e.source = address("198.51.100.1:0")) as Change, |e| {
        (e.node, e.flags) = (Some("198.51.100.1"), FI_SOURCE)
    }] {
        let Err(Nowhere::Mismatch(mismatch)) = places(change) else { panic!("found") };
        assert_eq!(mismatch.attribute, "src_addr");
    }
    assert_eq!(places(|e| e.service = Some("no such service")), Err(Nowhere::Unresolved(-FI_ENODATA)));
}

/// Hints that differ in what a program can leave open, of which some can be met by some kinds of endpoint only.
const WISHES: &[Change] = &[
    |_| (),
    |r| r.caps = FI_MSG,
    |r| r.caps = FI_MSG | FI_RECV,
    |r| r.caps = FI_TAGGED | FI_SEND | FI_RMA,
    |r| r.caps = FI_RMA | FI_REMOTE_WRITE,
    |r| r.caps = FI_ATOMIC | FI_READ | FI_HMEM,
    |r| r.caps = FI_MSG | FI_SOURCE | FI_SOURCE_ERR | FI_DIRECTED_RECV,
    |r| r.caps = FI_MSG | FI_VARIABLE_MSG,
    |r| r.caps = FI_SOURCE,
    |r| (r.caps, r.transmit.caps) = (FI_MSG | FI_RMA, FI_RMA | FI_WRITE),
    |r| (r.caps, r.receive.caps) = (FI_MSG | FI_TAGGED, FI_TAGGED | FI_RECV),
    |r| r.transmit.msg_order = FI_ORDER_ATOMIC_WAW | FI_ORDER_ATOMIC_RAW | FI_ORDER_ATOMIC_WAR | FI_ORDER_ATOMIC_RAR,
    |r| r.receive.msg_order = FI_ORDER_RAW | FI_ORDER_SAW,
    |r| r.transmit.msg_order = FI_ORDER_RMA_WAW,
    |r| r.transmit.op_flags = FI_TRANSMIT_COMPLETE | FI_COMPLETION,
    |r| r.endpoint.max_order_waw_size = 8,
    |r| (r.endpoint.max_msg_size, r.transmit.inject_size, r.receive.total_buffered_recv) = (64, 16, 4096),
    |r| (r.transmit.size, r.receive.size, r.transmit.iov_limit) = (16, 100, 1),
    |r| (r.endpoint.tx_ctx_cnt, r.endpoint.rx_ctx_cnt) = (FI_SHARED_CONTEXT, 1),
    |r| (r.endpoint.tx_ctx_cnt, r.endpoint.rx_ctx_cnt) = (4, 8),
    |r| (r.endpoint.msg_prefix_size, r.mode) = (64, FI_MSG_PREFIX),
    |r| r.domain.mr_mode = FI_MR_BASIC,
    |r| r.domain.mr_mode = FI_MR_SCALABLE,
    |r| (r.caps, r.domain.mr_mode) = (FI_MSG | FI_HMEM, FI_MR_ALLOCATED | FI_MR_HMEM | FI_MR_PROV_KEY | FI_MR_ENDPOINT),
    |r| r.domain.data_progress = FI_PROGRESS_AUTO,
    |r| (r.domain.control_progress, r.domain.av_type) = (FI_PROGRESS_AUTO, FI_AV_TABLE),
    |r| (r.domain.threading, r.domain.resource_mgmt) = (FI_THREAD_DOMAIN, FI_RM_DISABLED),
    |r| (r.domain.tclass, r.transmit.tclass) = (FI_TC_BULK_DATA, FI_TC_LOW_LATENCY),
    |r| r.domain.tclass = FI_TC_BULK_DATA,
];

/// What `fi_getinfo` gave, handed back as hints or to open an endpoint, is met by the same: no attribute of an answer is a
/// wish for more than the question had.
#[test]
fn an_answer_handed_back_as_hints_changes_nothing() {
    let source = address("127.0.0.1:0").unwrap();
    let place = Place { domain: "lo".to_owned(), source, destination: None, anywhere: false };
    let mut met = 0;
    for (number, wish) in WISHES.iter().enumerate() {
        for version in [FI_VERSION(1, 4), VERSION, NEW] {
            for kind in KINDS {
                let asked = request(wish);
                let Ok(first) = negotiate(kind, version, &asked) else { continue };
                let mut list = List::default();
                list.push(&Entry { version, fabric: FABRIC, request: &asked, offer: &first, place: &place }).unwrap();
                // SAFETY: the list has one entry, which is whole.
                let (again, attributes) =
                    unsafe { (Request::of(&*list.first).unwrap(), Attributes::of(&*list.first).unwrap()) };
                assert_eq!(negotiate(kind, version, &again).as_ref(), Ok(&first), "wish {number}, {version:#x}");
                assert_eq!(attributes.message_order, first.message_order, "wish {number}, {version:#x}");
                met += 1;
            }
        }
    }
    assert!(met > WISHES.len(), "few of the wishes are met: {met}");
}

/// The same through the call, with the addresses and names of this machine.
#[test]
fn every_entry_is_found_again_by_itself() {
    for version in [VERSION, NEW] {
        for (node, flags) in
            [(None, 0), (Some(c"127.0.0.1"), 0), (Some(c"127.0.0.1"), FI_SOURCE), (Some(c"0.0.0.0"), FI_SOURCE)]
        {
            let result = ask(version, node, flags, None, |first| {
                let entries = std::cell::Cell::new(0);
                let result = ask(version, None, 0, Some(first), |second| {
                    entries.set(entries.get() + 1);
                    assert_eq!(entry(first), entry(second));
                });
                assert_eq!((result, entries.get()), (0, 1), "{:?}", entry(first));
            });
            assert_eq!(result, 0);
        }
    }
}

/// What an entry says, as far as it can be compared.
fn entry(info: &fi_info) -> impl PartialEq + std::fmt::Debug {
    // SAFETY: it is whole.
    let (request, attributes) = unsafe { (Request::of(info).unwrap(), Attributes::of(info).unwrap()) };
    let orders = (request.endpoint.max_order_raw_size, request.endpoint.max_order_war_size);
    let sizes =
        (request.endpoint.max_msg_size, request.transmit.inject_size, request.transmit.size, request.receive.size);
    (info.caps, info.mode, request.domain.mr_mode, request.transmit.msg_order, orders, sizes, attributes)
}

/// Calls as libfabric does, and gives the entries to the test; frees them as libfabric would.
fn ask(
    version: u32,
    node: Option<&std::ffi::CStr>,
    flags: u64,
    hints: Option<&fi_info>,
    test: impl Fn(&fi_info),
) -> i32 {
    let mut first: *mut fi_info = std::ptr::null_mut();
    let node = node.map_or(std::ptr::null(), |node| node.as_ptr());
    let hints = hints.map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the texts end with 0, and the structures are valid.
    let result = unsafe { getinfo(version, node, std::ptr::null(), flags, hints, &raw mut first) };
    assert_eq!(result == 0, !first.is_null());
    let list = List { first, last: std::ptr::null_mut() };
    let mut next = list.first;
    // SAFETY: the list ends with null.
    while let Some(info) = unsafe { next.as_ref() } {
        test(info);
        next = info.next;
    }
    result
}

fn hints() -> fi_info {
    // SAFETY: null pointers and zeros are valid values of every field.
    unsafe { std::mem::zeroed() }
}

#[test]
fn entries_come_back_as_attributes() {
    let count = std::cell::Cell::new(0);
    let result = ask(VERSION, Some(c"127.0.0.1"), 0, None, |info| {
        // SAFETY: it is whole.
        let attributes = unsafe { Attributes::of(info) }.unwrap();
        let kind = [FI_EP_RDM, FI_EP_DGRAM, FI_EP_MSG][count.get()];
        count.set(count.get() + 1);
        assert_eq!((attributes.kind, attributes.caps, attributes.format), (kind, info.caps, FI_SOCKADDR_IN));
        assert_eq!(attributes.source.unwrap().socket, "127.0.0.1:0".parse().unwrap());
        assert_eq!(attributes.destination.unwrap().socket, "127.0.0.1:0".parse().unwrap());
        assert_eq!((attributes.mr_mode, attributes.api_version, attributes.transmit_contexts), (0, VERSION, 1));
        assert!(attributes.handle().is_null());
        // SAFETY: they are there.
        let (fabric, transmit) = unsafe { (&*info.fabric_attr, &*info.tx_attr) };
        assert!(fabric.prov_name.is_null() && info.nic.is_null());
        assert_eq!(attributes.transmit_caps, transmit.caps);
    });
    assert_eq!((result, count.get()), (0, 3));
}

#[test]
fn hints_of_c_are_read() {
    let mut domain: fi_domain_attr = {
        // SAFETY: null pointers and zeros are valid values of every field.
        unsafe { std::mem::zeroed() }
    };
    (domain.name, domain.mr_mode) = (c"lo".as_ptr().cast_mut(), FI_MR_BASIC);
    let mut marker = 0u64;
    let mut hints = hints();
    (hints.caps, hints.addr_format, hints.domain_attr) = (FI_RMA, FI_ADDR_STR, &raw mut domain);
    hints.handle = (&raw mut marker).cast();
    let result = ask(VERSION, None, 0, Some(&hints), |info| {
        // SAFETY: it is whole.
        let attributes = unsafe { Attributes::of(info) }.unwrap();
        assert_eq!(attributes.mr_mode, FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY);
        assert_eq!((attributes.format, attributes.domain_name.as_deref()), (FI_ADDR_STR, Some("lo")));
        assert_eq!((attributes.handle(), info.handle), (hints.handle, hints.handle));
        assert_ne!(attributes.kind, FI_EP_DGRAM);
    });
    assert_eq!(result, 0);
    domain.name = c"no such interface".as_ptr().cast_mut();
    hints.domain_attr = &raw mut domain;
    assert_eq!(ask(VERSION, None, 0, Some(&hints), |_| ()), -FI_ENODATA);
}

#[test]
fn listeners_listen_everywhere() {
    let mut endpoint: fi_ep_attr = {
        // SAFETY: null pointers and zeros are valid values of every field.
        unsafe { std::mem::zeroed() }
    };
    for (kind, everywhere) in [(FI_EP_MSG, true), (FI_EP_RDM, false)] {
        endpoint.r#type = kind;
        let mut hints = hints();
        hints.ep_attr = &raw mut endpoint;
        let result = ask(VERSION, Some(c"0.0.0.0"), FI_SOURCE, Some(&hints), |info| {
            // SAFETY: it is whole.
            let source = unsafe { Attributes::of(info) }.unwrap().source.unwrap();
            assert_eq!(source.socket.ip().is_unspecified(), everywhere);
        });
        assert_eq!(result, 0);
    }
}

#[test]
fn calls_without_an_answer() {
    // SAFETY: null is permitted.
    let result =
        unsafe { getinfo(VERSION, std::ptr::null(), std::ptr::null(), 0, std::ptr::null(), std::ptr::null_mut()) };
    assert_eq!(result, -FI_EINVAL);
    assert_eq!(ask(VERSION, None, CORE_PROVIDERS_ONLY, None, |_| ()), -FI_ENODATA);
    assert_eq!(ask(VERSION, Some(c"\xff"), 0, None, |_| ()), -FI_EINVAL);
    assert_eq!(ask(VERSION, Some(c"198.51.100.1"), FI_SOURCE, None, |_| ()), -FI_ENODATA);
    let short = [libc::AF_INET as u8, 0, 0, 0];
    let mut hints = hints();
    (hints.src_addr, hints.src_addrlen) = (short.as_ptr().cast_mut().cast(), short.len());
    assert_eq!(ask(VERSION, None, 0, Some(&hints), |_| ()), -FI_ENODATA);
    let entries = std::cell::Cell::new(0);
    assert_eq!(ask(VERSION, None, FI_PROV_ATTR_ONLY, Some(&hints), |_| entries.set(entries.get() + 1)), 0);
    assert_eq!(entries.get(), 1);
}

#[test]
fn attributes_that_a_program_broke_are_refused() {
    ask(VERSION, Some(c"127.0.0.1"), 0, None, |info| {
        // SAFETY: they are there.
        let mut endpoint = unsafe { *info.ep_attr };
        endpoint.r#type = 77;
        let broken = fi_info { ep_attr: &raw mut endpoint, ..*info };
        // SAFETY: it is whole.
        assert_eq!(unsafe { Attributes::of(&broken) }, Err(-FI_EINVAL));
        let broken = fi_info { caps: FI_MULTICAST, ..*info };
        // SAFETY: it is whole.
        assert_eq!(unsafe { Attributes::of(&broken) }, Err(-FI_EINVAL));
        let broken = fi_info { src_addrlen: 3, ..*info };
        // SAFETY: it is whole.
        assert_eq!(unsafe { Attributes::of(&broken) }, Err(-FI_EINVAL));
    });
}
