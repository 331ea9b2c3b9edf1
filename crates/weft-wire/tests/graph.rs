//! The parse graph on every kind of way, cut anywhere, with lengths that lie and tunnels without end.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test's own helpers: a panic is a failed test"
)]

use weft_wire::envelope::{Envelope, Outside};
use weft_wire::graph::{self, Fault, GraphError, LayerKind, Path, Stop};
use weft_wire::header::{Ethernet, Gre, Ipv6, Tcp, Udp, Vlan, Vxlan, ether_type, ip_protocol, udp_port};
use weft_wire::limits::{LAYERS_MAX, TUNNEL_DEPTH_MAX};
use weft_wire::table::{Link, Tables};

fn ethernet(ethertype: u16) -> Outside {
    Outside::Ethernet(Ethernet { destination: [2; 6], source: [4; 6], ethertype })
}

fn vlan(ethertype: u16) -> Outside {
    Outside::Vlan(Vlan { pcp: 3, dei: false, vid: 100, ethertype })
}

/// An IPv4 layer with `options`.
fn ipv4(protocol: u8, options: &[u8]) -> Outside {
    match Envelope::example_ipv4(protocol).layers.pop() {
        Some(Outside::Ipv4(mut header, _)) => {
            header.ihl += u8::try_from(options.len() / 4).unwrap();
            Outside::Ipv4(header, options.to_vec())
        }
        other => panic!("{other:?}"),
    }
}

fn ipv6(next_header: u8) -> Outside {
    Outside::Ipv6(Ipv6 {
        traffic_class: 0,
        flow_label: 0,
        payload_length: 0,
        next_header,
        hop_limit: 9,
        source: [1; 16],
        destination: [2; 16],
    })
}

fn udp(destination_port: u16) -> Outside {
    Outside::Udp(Udp { source_port: 0xc000, destination_port, length: 0, checksum: 0 })
}

fn vxlan() -> [Outside; 2] {
    [udp(udp_port::VXLAN), Outside::Vxlan(Vxlan { flags: 8, reserved24: 0, vni: 0x123456, reserved8: 0 })]
}

fn gre(protocol: u16, key: Option<u32>) -> Outside {
    Outside::Gre(Gre { reserved: 0, protocol, checksum: None, key, sequence: None })
}

fn frame(layers: &[Outside], payload: &[u8]) -> Vec<u8> {
    let mut envelope = Envelope { layers: layers.to_vec() };
    envelope.fit(payload.len()).unwrap();
    let mut frame = envelope.emit(payload.len()).unwrap();
    let start = frame.len() - payload.len();
    frame[start..].copy_from_slice(payload);
    frame
}

/// All the ways to a RoCEv2 payload.
fn ways() -> Vec<Vec<Outside>> {
    let inner = || [ethernet(ether_type::IPV4), ipv4(ip_protocol::UDP, &[]), udp(4791)];
    let outer = |protocol: u8| vec![ethernet(ether_type::IPV4), ipv4(protocol, &[])];
    let with = |mut layers: Vec<Outside>, more: &[Outside]| {
        layers.extend_from_slice(more);
        layers
    };
    vec![
        inner().to_vec(),
        vec![ethernet(ether_type::VLAN), vlan(ether_type::IPV4), ipv4(ip_protocol::UDP, &[]), udp(4791)],
        vec![
            ethernet(ether_type::QINQ),
            vlan(ether_type::VLAN),
            vlan(ether_type::IPV6),
            ipv6(ip_protocol::UDP),
            udp(4791),
        ],
        vec![ethernet(ether_type::IPV4), ipv4(ip_protocol::UDP, &[1; 40]), udp(4791)],
        // Hop-by-hop options, then destination options, of 8 and 16 bytes.
        vec![
            ethernet(ether_type::IPV6),
            ipv6(0),
            Outside::Ipv6Extension(vec![60, 0, 1, 4, 0, 0, 0, 0]),
            Outside::Ipv6Extension(vec![17, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            udp(4791),
        ],
        with(with(outer(ip_protocol::UDP), &vxlan()), &inner()),
        with(with(outer(ip_protocol::GRE), &[gre(ether_type::TEB, Some(7))]), &inner()),
        with(outer(ip_protocol::GRE), &[gre(ether_type::IPV6, None), ipv6(ip_protocol::UDP), udp(4791)]),
        with(outer(ip_protocol::IPV4), &inner()[1..]),
        with(outer(ip_protocol::IPV6), &[ipv6(ip_protocol::UDP), udp(4791)]),
    ]
}

fn walk(frame: &[u8]) -> Result<Path, GraphError> {
    graph::walk(Link::Ethernet, frame)
}

#[test]
fn every_way_leads_to_the_payload() {
    let tables = Tables::builtin().unwrap();
    for way in ways() {
        let mut bytes = frame(&way, b"payload!");
        // Ethernet pads short frames: what is behind the innermost length is not the packet's.
        bytes.extend_from_slice(&[0xee; 9]);
        let path = walk(&bytes).unwrap();
        assert_eq!((path.stop, path.payload(&bytes)), (Stop::Udp, &b"payload!"[..]), "{way:?}");
        assert_eq!(path.layers().len(), way.len());
        assert_eq!(tables.identify(&path.seen), tables.find("roce-v2"));
        let envelope = Envelope::take(&path, &bytes).unwrap();
        assert_eq!(envelope.emit(0).unwrap(), &bytes[..path.start], "headers come out as they went in");
    }
}

#[test]
fn cut_anywhere_it_is_an_error_and_never_a_wrong_answer() {
    for way in ways() {
        let bytes = frame(&way, b"payload!");
        for length in 0..bytes.len() {
            assert!(walk(&bytes[..length]).is_err(), "{length} of {way:?}");
        }
    }
}

#[test]
fn lengths_that_lie_are_told() {
    let bytes = frame(&ways()[0], b"payload!");
    for (at, name) in [(16, LayerKind::Ipv4), (38, LayerKind::Udp)] {
        let real = u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        for lie in 1..=u16::MAX {
            let mut bytes = bytes.clone();
            bytes[at..at + 2].copy_from_slice(&lie.to_be_bytes());
            match walk(&bytes) {
                Ok(path) => {
                    assert!(lie <= real, "{name} {lie}");
                    assert!(path.end <= bytes.len() && path.start <= path.end);
                }
                Err(error) => assert!(lie > real || error.offset <= 42, "{error}"),
            }
            if lie > real {
                assert_eq!(walk(&bytes).unwrap_err().layer, name);
            }
        }
    }
    // Header lengths: too short, or past the end.
    for ihl in 0..16u8 {
        let mut bytes = bytes.clone();
        bytes[14] = 0x40 | ihl;
        let _ = walk(&bytes).map(|path| assert!(path.start <= bytes.len()));
        assert_eq!(walk(&bytes).is_ok(), ihl == 5, "ihl {ihl}");
    }
}

#[test]
fn tunnels_end_at_the_limit() {
    let nested = |depth: usize| {
        let mut layers = vec![ethernet(ether_type::IPV4)];
        layers.extend(std::iter::repeat_n(ipv4(ip_protocol::IPV4, &[]), depth));
        layers.extend([ipv4(ip_protocol::UDP, &[]), udp(4791)]);
        frame(&layers, b"x")
    };
    let deepest = usize::from(TUNNEL_DEPTH_MAX);
    assert_eq!(walk(&nested(deepest)).unwrap().stop, Stop::Udp);
    assert_eq!(walk(&nested(deepest + 1)).unwrap_err().fault, Fault::TooDeep);
    let mut tags = vec![ethernet(ether_type::VLAN)];
    tags.extend(std::iter::repeat_n(vlan(ether_type::VLAN), LAYERS_MAX));
    assert_eq!(walk(&frame(&tags, b"")).unwrap_err().fault, Fault::TooManyLayers);
    // VXLAN in VXLAN in …, as long as a frame can be.
    let mut endless = Vec::new();
    for _ in 0..1200 {
        endless.extend_from_slice(&frame(
            &[ethernet(ether_type::IPV4), ipv4(ip_protocol::UDP, &[]), vxlan()[0].clone(), vxlan()[1].clone()],
            b"",
        ));
    }
    assert!(walk(&endless).is_err());
}

#[test]
fn fragments_and_strangers_are_named() {
    let mut bytes = frame(&ways()[0], b"payload!");
    bytes[20] |= 0x20; // more fragments
    assert_eq!(walk(&bytes).unwrap().stop, Stop::Fragment);
    let fragment = Outside::Ipv6Extension(vec![17, 0, 0, 8, 0, 0, 0, 1]);
    let bytes = frame(&[ethernet(ether_type::IPV6), ipv6(44), fragment, udp(4791)], b"");
    assert_eq!(walk(&bytes).unwrap().stop, Stop::Fragment);
    assert_eq!(walk(&frame(&[ethernet(ether_type::ARP)], &[0; 28])).unwrap().stop, Stop::Other);
    let tcp = Outside::Tcp(
        Tcp {
            source_port: 1,
            destination_port: 2,
            sequence: 3,
            acknowledgement: 4,
            data_offset: 6,
            reserved: 0,
            flags: 0x18,
            window: 5,
            checksum: 0,
            urgent: 0,
        },
        vec![1, 1, 1, 0],
    );
    let bytes = frame(&[ethernet(ether_type::IPV4), ipv4(ip_protocol::TCP, &[]), tcp], b"stream");
    let path = walk(&bytes).unwrap();
    assert_eq!((path.stop, path.payload(&bytes)), (Stop::Tcp, &b"stream"[..]));
}

#[test]
fn a_walk_may_begin_at_an_ethertype() {
    let tables = Tables::builtin().unwrap();
    let frame = Envelope::example_roce_v1().emit(0).unwrap();
    let path = graph::walk_from(ether_type::ROCE_V1, &frame[Ethernet::LEN..]).unwrap();
    assert_eq!((path.stop, tables.identify(&path.seen)), (Stop::Transport, tables.find("roce-v1")));
    let tagged = [&[0, 1][..], &ether_type::ROCE_V1.to_be_bytes(), &frame[Ethernet::LEN..]].concat();
    assert_eq!(graph::walk_from(ether_type::VLAN, &tagged).unwrap().stop, Stop::Transport);
}

#[test]
fn a_packet_longer_than_its_header_can_say_is_refused() {
    assert!(Envelope::example_infiniband(false).fit(8000).is_ok());
    assert!(Envelope::example_infiniband(false).fit(9000).is_err());
    assert!(Envelope::example_udp(1, 2).fit(70_000).is_err());
}

#[test]
fn infiniband_needs_its_lengths_too() {
    // LRH with LNH 2 and 5 words: 8 + 12 bytes, then the VCRC.
    let mut bytes = vec![0x00, 0x02, 0, 1, 0, 5, 0, 2];
    bytes.extend_from_slice(&[0; 14]);
    let path = graph::walk(Link::InfiniBand, &bytes).unwrap();
    assert_eq!((path.stop, path.payload(&bytes).len()), (Stop::Transport, 14));
    for length in 0..bytes.len() {
        assert!(graph::walk(Link::InfiniBand, &bytes[..length]).is_err());
    }
    bytes[1] = 0x00; // raw
    assert_eq!(graph::walk(Link::InfiniBand, &bytes).unwrap().stop, Stop::Other);
}
