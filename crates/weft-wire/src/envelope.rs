//! The headers in front of a protocol, as plain structs: taken from a frame and written back, or built for a new one.
//!
//! Not for the fast path: the product's links write their headers from templates, or leave them to the kernel.

use alloc::vec;
use alloc::vec::Vec;

use crate::graph::{LayerKind, Path};
use crate::header::{
    Ethernet, Gre, Grh, HeaderError, Ipv4, Ipv6, Ipv6ExtensionView, Lrh, PseudoHeader, Tcp, Udp, Vlan, Vxlan,
    ether_type, ip_protocol, link_next_header,
};

/// One header, and the options that follow it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the variants are the headers of `header`")]
pub enum Outside {
    Ethernet(Ethernet),
    Vlan(Vlan),
    Ipv4(Ipv4, Vec<u8>),
    Ipv6(Ipv6),
    Ipv6Extension(Vec<u8>),
    Udp(Udp),
    Tcp(Tcp, Vec<u8>),
    Vxlan(Vxlan),
    Gre(Gre),
    Lrh(Lrh),
    Grh(Grh),
}

/// All headers in front of a protocol.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Envelope {
    /// Outermost first.
    pub layers: Vec<Outside>,
}

impl Envelope {
    /// The headers that the parse graph found.
    pub fn take(path: &Path, frame: &[u8]) -> Result<Envelope, HeaderError> {
        let mut layers = Vec::new();
        let mut next_header = 0;
        for layer in path.layers() {
            let bytes = frame.get(layer.offset as usize..).unwrap_or(&[]);
            let options = |from: usize, to: usize| bytes.get(from..to).unwrap_or(&[]).to_vec();
            layers.push(match layer.kind {
                LayerKind::Ethernet => Outside::Ethernet(Ethernet::parse(bytes)?),
                LayerKind::Vlan => Outside::Vlan(Vlan::parse(bytes)?),
                LayerKind::Ipv4 => {
                    let header = Ipv4::parse(bytes)?;
                    Outside::Ipv4(header, options(Ipv4::LEN, header.header_len()))
                }
                LayerKind::Ipv6 => {
                    let header = Ipv6::parse(bytes)?;
                    next_header = header.next_header;
                    Outside::Ipv6(header)
                }
                LayerKind::Ipv6Extension => {
                    let extension = Ipv6ExtensionView::new(next_header, bytes)?;
                    next_header = extension.next_header();
                    Outside::Ipv6Extension(options(0, extension.header_len()))
                }
                LayerKind::Udp => Outside::Udp(Udp::parse(bytes)?),
                LayerKind::Tcp => {
                    let header = Tcp::parse(bytes)?;
                    Outside::Tcp(header, options(Tcp::LEN, header.header_len()))
                }
                LayerKind::Vxlan => Outside::Vxlan(Vxlan::parse(bytes)?),
                LayerKind::Gre => Outside::Gre(Gre::parse(bytes)?),
                LayerKind::Lrh => Outside::Lrh(Lrh::parse(bytes)?),
                LayerKind::Grh => Outside::Grh(Grh::parse(bytes)?),
            });
        }
        Ok(Envelope { layers })
    }

    /// Bytes of all headers.
    #[must_use]
    pub fn length(&self) -> usize {
        self.layers.iter().map(Outside::length).sum()
    }

    /// The headers as they are, and behind them room for `payload_length` bytes.
    pub fn emit(&self, payload_length: usize) -> Result<Vec<u8>, HeaderError> {
        let mut frame = vec![0; self.length() + payload_length];
        let mut rest = frame.as_mut_slice();
        for layer in &self.layers {
            let Some((here, behind)) = rest.split_at_mut_checked(layer.length()) else { break };
            layer.emit(here)?;
            rest = behind;
        }
        Ok(frame)
    }

    /// Sets every length for a payload of this many bytes, and the IPv4 header checksums.
    pub fn fit(&mut self, payload_length: usize) -> Result<(), HeaderError> {
        let mut behind = payload_length;
        for layer in self.layers.iter_mut().rev() {
            let whole = behind + layer.length();
            let too_long = |_| HeaderError::BadLength { minimum: 0, found: whole };
            match layer {
                Outside::Ipv4(header, _) => header.total_length = u16::try_from(whole).map_err(too_long)?,
                Outside::Ipv6(header) => header.payload_length = u16::try_from(behind).map_err(too_long)?,
                Outside::Udp(header) => header.length = u16::try_from(whole).map_err(too_long)?,
                Outside::Grh(header) => header.payload_length = u16::try_from(behind).map_err(too_long)?,
                // Words up to the VCRC, which the payload includes.
                Outside::Lrh(header) => {
                    let words = u16::try_from(whole.saturating_sub(2) / 4).map_err(too_long)?;
                    if words > Lrh::WORDS_MAX {
                        return Err(HeaderError::BadLength { minimum: 0, found: whole });
                    }
                    header.pktlen = words;
                }
                _ => {}
            }
            if let Outside::Ipv4(..) = layer {
                let mut bytes = vec![0; layer.length()];
                layer.emit(&mut bytes)?;
                Ipv4::fill_checksum(&mut bytes)?;
                if let Outside::Ipv4(header, _) = layer {
                    header.checksum = Ipv4::parse(&bytes)?.checksum;
                }
            }
            behind = whole;
        }
        // InfiniBand's GRH counts the ICRC but not the VCRC.
        if let [Outside::Lrh(_), Outside::Grh(header), ..] = self.layers.as_mut_slice() {
            header.payload_length = header.payload_length.saturating_sub(2);
        }
        Ok(())
    }

    /// The addresses that the checksum of a UDP or TCP payload covers.
    #[must_use]
    pub fn pseudo_header(&self) -> Option<PseudoHeader> {
        self.layers.iter().rev().find_map(|layer| match layer {
            Outside::Ipv4(header, _) => {
                Some(PseudoHeader::Ipv4 { source: header.source, destination: header.destination })
            }
            Outside::Ipv6(header) => {
                Some(PseudoHeader::Ipv6 { source: header.source, destination: header.destination })
            }
            _ => None,
        })
    }

    /// Ethernet and IPv4 between two documentation addresses, for packets that are shown and tested. Locally
    /// administered MAC addresses, TTL 64, DF.
    #[must_use]
    pub fn example_ipv4(protocol: u8) -> Envelope {
        let ethernet = Ethernet { destination: [2, 0, 0, 0, 0, 1], source: [2, 0, 0, 0, 0, 2], ethertype: 0x0800 };
        let ip = Ipv4 {
            ihl: 5,
            dscp: 0,
            ecn: 0,
            total_length: 0,
            identification: 0,
            flags: Ipv4::DONT_FRAGMENT,
            fragment_offset: 0,
            ttl: 64,
            protocol,
            checksum: 0,
            source: [192, 0, 2, 2],
            destination: [192, 0, 2, 1],
        };
        Envelope { layers: vec![Outside::Ethernet(ethernet), Outside::Ipv4(ip, Vec::new())] }
    }

    /// The same with UDP.
    #[must_use]
    pub fn example_udp(source_port: u16, destination_port: u16) -> Envelope {
        let mut envelope = Envelope::example_ipv4(ip_protocol::UDP);
        envelope.layers.push(Outside::Udp(Udp { source_port, destination_port, length: 0, checksum: 0 }));
        envelope
    }
}

impl Envelope {
    /// Ethernet and IPv6 between two documentation addresses, likewise.
    #[must_use]
    pub fn example_ipv6(next_header: u8) -> Envelope {
        let ethernet = Ethernet { destination: [2, 0, 0, 0, 0, 1], source: [2, 0, 0, 0, 0, 2], ethertype: 0x86dd };
        let ip = Ipv6 {
            traffic_class: 0,
            flow_label: 0,
            payload_length: 0,
            next_header,
            hop_limit: 64,
            source: documentation_address(2),
            destination: documentation_address(1),
        };
        Envelope { layers: vec![Outside::Ethernet(ethernet), Outside::Ipv6(ip)] }
    }

    /// The same with UDP.
    #[must_use]
    pub fn example_ipv6_udp(source_port: u16, destination_port: u16) -> Envelope {
        let mut envelope = Envelope::example_ipv6(ip_protocol::UDP);
        envelope.layers.push(Outside::Udp(Udp { source_port, destination_port, length: 0, checksum: 0 }));
        envelope
    }

    /// Ethernet and a GRH, as RoCEv1 has them.
    #[must_use]
    pub fn example_roce_v1() -> Envelope {
        let ethernet =
            Ethernet { destination: [2, 0, 0, 0, 0, 1], source: [2, 0, 0, 0, 0, 2], ethertype: ether_type::ROCE_V1 };
        Envelope { layers: vec![Outside::Ethernet(ethernet), Outside::Grh(example_grh())] }
    }

    /// The headers of an InfiniBand link between local identifiers 2 and 1; with a GRH when the packet is `global`.
    #[must_use]
    pub fn example_infiniband(global: bool) -> Envelope {
        let lnh = if global { link_next_header::GLOBAL } else { link_next_header::LOCAL };
        let lrh = Lrh { vl: 0, lver: 0, sl: 0, reserved2: 0, lnh, dlid: 1, reserved5: 0, pktlen: 0, slid: 2 };
        let mut layers = vec![Outside::Lrh(lrh)];
        if global {
            layers.push(Outside::Grh(example_grh()));
        }
        Envelope { layers }
    }
}

/// An address of 2001:db8::/32, which is set aside for documents (RFC 3849).
fn documentation_address(host: u8) -> [u8; 16] {
    [0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, host]
}

fn example_grh() -> Grh {
    Grh {
        traffic_class: 0,
        flow_label: 0,
        payload_length: 0,
        next_header: Grh::TRANSPORT,
        hop_limit: 64,
        source_gid: documentation_address(2),
        destination_gid: documentation_address(1),
    }
}

impl Outside {
    /// Bytes of the header with its options.
    #[must_use]
    pub fn length(&self) -> usize {
        match self {
            Outside::Ethernet(_) => Ethernet::LEN,
            Outside::Vlan(_) => Vlan::LEN,
            Outside::Ipv4(_, options) => Ipv4::LEN + options.len(),
            Outside::Ipv6(_) => Ipv6::LEN,
            Outside::Ipv6Extension(bytes) => bytes.len(),
            Outside::Udp(_) => Udp::LEN,
            Outside::Tcp(_, options) => Tcp::LEN + options.len(),
            Outside::Vxlan(_) => Vxlan::LEN,
            Outside::Gre(header) => header.header_len(),
            Outside::Lrh(_) => Lrh::LEN,
            Outside::Grh(_) => Grh::LEN,
        }
    }

    fn emit(&self, out: &mut [u8]) -> Result<(), HeaderError> {
        let (result, options, length): (_, &[u8], _) = match self {
            Outside::Ethernet(header) => (header.emit(out), &[], Ethernet::LEN),
            Outside::Vlan(header) => (header.emit(out), &[], Vlan::LEN),
            Outside::Ipv4(header, options) => (header.emit(out), options, Ipv4::LEN),
            Outside::Ipv6(header) => (header.emit(out), &[], Ipv6::LEN),
            Outside::Ipv6Extension(bytes) => (Ok(()), bytes, 0),
            Outside::Udp(header) => (header.emit(out), &[], Udp::LEN),
            Outside::Tcp(header, options) => (header.emit(out), options, Tcp::LEN),
            Outside::Vxlan(header) => (header.emit(out), &[], Vxlan::LEN),
            Outside::Gre(header) => (header.emit(out), &[], header.header_len()),
            Outside::Lrh(header) => (header.emit(out), &[], Lrh::LEN),
            Outside::Grh(header) => (header.emit(out), &[], Grh::LEN),
        };
        result?;
        if let Some(to) = out.get_mut(length..length + options.len()) {
            to.copy_from_slice(options);
        }
        Ok(())
    }
}
