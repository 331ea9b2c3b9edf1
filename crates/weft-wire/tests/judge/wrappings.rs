//! Tags, options and tunnels around RoCE.

use weft_wire::envelope::{Envelope, Outside};
use weft_wire::header::{Ethernet, Gre, Ipv4, Ipv6ExtensionView, Udp, Vlan, Vxlan, ether_type, ip_protocol};

use super::build::{ROCE_V2_PORT, SOURCE_PORT};

fn ethernet(ethertype: u16) -> Outside {
    Outside::Ethernet(Ethernet { destination: [2, 0, 0, 0, 0, 3], source: [2, 0, 0, 0, 0, 4], ethertype })
}

fn vlan(vid: u16, ethertype: u16) -> Outside {
    Outside::Vlan(Vlan { pcp: 5, dei: true, vid, ethertype })
}

fn vxlan() -> [Outside; 2] {
    let udp = Udp { source_port: 50_000, destination_port: 4789, length: 0, checksum: 0 };
    let vxlan = Vxlan { flags: Vxlan::VNI_VALID, reserved24: 0, vni: 0x12_3456, reserved8: 0 };
    [Outside::Udp(udp), Outside::Vxlan(vxlan)]
}

fn gre(protocol: u16, key: Option<u32>, sequence: Option<u32>) -> Outside {
    Outside::Gre(Gre { reserved: 0, protocol, checksum: None, key, sequence })
}

/// The layers of `envelope` behind its Ethernet header.
pub fn network(envelope: Envelope) -> Vec<Outside> {
    envelope.layers.into_iter().skip(1).collect()
}

fn ipv4(protocol: u8) -> Vec<Outside> {
    network(Envelope::example_ipv4(protocol))
}

fn ipv6(next_header: u8) -> Vec<Outside> {
    network(Envelope::example_ipv6(next_header))
}

fn extension(next_header: u8, bytes: [u8; 7]) -> Outside {
    Outside::Ipv6Extension([&[next_header], bytes.as_slice()].concat())
}

/// Ways to wrap RoCE, each with its name.
pub fn wrappings() -> Vec<(&'static str, &'static str, Vec<Outside>)> {
    let roce = || network(Envelope::example_udp(SOURCE_PORT, ROCE_V2_PORT));
    let roce6 = || network(Envelope::example_ipv6_udp(SOURCE_PORT, ROCE_V2_PORT));
    let udp = || roce()[1..].to_vec();
    let v4 = || vec![ethernet(ether_type::IPV4)];
    let v6 = || vec![ethernet(ether_type::IPV6)];
    let grh = || network(Envelope::example_roce_v1());
    let with_options = |options: &[u8]| {
        let mut layers = roce();
        if let Some(Outside::Ipv4(header, room)) = layers.first_mut() {
            *header = Ipv4 { ihl: 5 + options.len() as u8 / 4, ..*header };
            *room = options.to_vec();
        }
        layers
    };
    let record_route: Vec<u8> = [[7, 39, 4].as_slice(), &[0; 37]].concat();
    let pad = [0, 1, 4, 0, 0, 0, 0];
    let (hop, routing, destination, fragment) = (
        Ipv6ExtensionView::HOP_BY_HOP,
        Ipv6ExtensionView::ROUTING,
        Ipv6ExtensionView::DESTINATION,
        Ipv6ExtensionView::FRAGMENT,
    );
    let join = |parts: &[Vec<Outside>]| parts.concat();
    vec![
        ("VLAN", "roce-v2", join(&[vec![ethernet(0x8100), vlan(100, 0x0800)], roce()])),
        ("VLAN, IPv6", "roce-v2", join(&[vec![ethernet(0x8100), vlan(100, 0x86dd)], roce6()])),
        ("priority tag", "roce-v2", join(&[vec![ethernet(0x8100), vlan(0, 0x0800)], roce()])),
        ("QinQ", "roce-v2", join(&[vec![ethernet(0x88a8), vlan(7, 0x8100), vlan(100, 0x0800)], roce()])),
        ("QinQ of old", "roce-v2", join(&[vec![ethernet(0x9100), vlan(7, 0x8100), vlan(100, 0x0800)], roce()])),
        ("RoCEv1 in VLAN", "roce-v1", join(&[vec![ethernet(0x8100), vlan(100, ether_type::ROCE_V1)], grh()])),
        ("VXLAN", "roce-v2", join(&[v4(), ipv4(17), vxlan().to_vec(), v4(), roce()])),
        ("VXLAN over IPv6", "roce-v2", join(&[v6(), ipv6(17), vxlan().to_vec(), v4(), roce()])),
        (
            "VLAN in VXLAN in VLAN",
            "roce-v2",
            join(&[
                vec![ethernet(0x8100), vlan(9, 0x0800)],
                ipv4(17),
                vxlan().to_vec(),
                vec![ethernet(0x8100), vlan(100, 0x86dd)],
                roce6(),
            ]),
        ),
        (
            "VXLAN in VXLAN",
            "roce-v2",
            join(&[v4(), ipv4(17), vxlan().to_vec(), v4(), ipv4(17), vxlan().to_vec(), v4(), roce()]),
        ),
        (
            "RoCEv1 in VXLAN",
            "roce-v1",
            join(&[v4(), ipv4(17), vxlan().to_vec(), vec![ethernet(ether_type::ROCE_V1)], grh()]),
        ),
        ("GRE", "roce-v2", join(&[v4(), ipv4(47), vec![gre(ether_type::IPV4, None, None)], roce()])),
        ("GRE, IPv6", "roce-v2", join(&[v4(), ipv4(47), vec![gre(ether_type::IPV6, None, None)], roce6()])),
        (
            "GRE with key and sequence",
            "roce-v2",
            join(&[v4(), ipv4(47), vec![gre(ether_type::IPV4, Some(0xfeed_0001), Some(77))], roce()]),
        ),
        (
            "Ethernet in GRE (NVGRE)",
            "roce-v2",
            join(&[v4(), ipv4(47), vec![gre(ether_type::TEB, Some(0x1234_5600), None)], v4(), roce()]),
        ),
        ("IP in IP", "roce-v2", join(&[v4(), ipv4(ip_protocol::IPV4), roce()])),
        ("IPv6 in IPv4", "roce-v2", join(&[v4(), ipv4(ip_protocol::IPV6), roce6()])),
        ("IPv4 in IPv6", "roce-v2", join(&[v6(), ipv6(ip_protocol::IPV4), roce()])),
        ("IPv6 in IPv6", "roce-v2", join(&[v6(), ipv6(ip_protocol::IPV6), roce6()])),
        ("IPv4 options", "roce-v2", join(&[v4(), with_options(&[0x94, 4, 0, 0])])),
        ("forty bytes of IPv4 options", "roce-v2", join(&[v4(), with_options(&record_route)])),
        ("IPv6 hop-by-hop", "roce-v2", join(&[v6(), ipv6(hop), vec![extension(17, pad)], udp()])),
        (
            "IPv6 hop-by-hop and destination options",
            "roce-v2",
            join(&[v6(), ipv6(hop), vec![extension(destination, pad), extension(17, pad)], udp()]),
        ),
        (
            "IPv6 routing",
            "roce-v2",
            // Type 2 (mobility): the address is the home of the same node, as the checksum has it.
            join(&[
                v6(),
                ipv6(routing),
                vec![Outside::Ipv6Extension([&[17, 2, 2, 1, 0, 0, 0, 0], IPV6_ADDRESS.as_slice()].concat())],
                udp(),
            ]),
        ),
        (
            "IPv6 atomic fragment",
            "roce-v2",
            join(&[v6(), ipv6(fragment), vec![extension(17, [0, 0, 0, 1, 2, 3, 4])], udp()]),
        ),
    ]
}

/// 2001:db8::1.
const IPV6_ADDRESS: [u8; 16] = [0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
