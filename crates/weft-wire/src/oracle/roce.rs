//! The InfiniBand transport on its three links: RoCEv2, RoCEv1, InfiniBand.

use super::{Decoded, Fill, Refusal, filled};
use crate::command::{Command, Flags, Kind, Slot};
use crate::header::{
    Aeth, AethView, AtomicAckEth, AtomicAckEthView, AtomicEth, AtomicEthView, Bth, BthView, CnpReserved, Deth,
    DethView, Ethernet, EthernetView, Feth, FethView, Grh, GrhView, Ieth, IethView, ImmDt, ImmDtView, Ipv4View, Ipv6,
    Ipv6ExtensionView, Ipv6View, Lrh, LrhView, Rdeth, RdethView, Reth, RethView, Udp, UdpView, Vlan, VlanView, XrcEth,
    XrcEthView, ether_type, ip_protocol, link_next_header, udp_port,
};
use crate::limits::LAYERS_MAX;
use crate::table::Link;

const ICRC_LENGTH: usize = 4;
const VCRC_LENGTH: usize = 2;

/// The link that carries the transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// UDP.
    RoceV2,
    /// Ethernet.
    RoceV1,
    /// InfiniBand.
    InfiniBand,
}

/// Where in a frame the transport is, and the headers in front that its checksums cover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The link that carries it.
    pub transport: Transport,
    /// First byte of the base transport header.
    pub start: usize,
    /// First byte behind the last trailer.
    pub end: usize,
    /// First byte of the IP header or GRH; equal to `start` when there is none.
    pub network: usize,
}

impl Found {
    /// The bytes of the transport.
    #[inline]
    #[must_use]
    pub fn bytes<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        frame.get(self.start..self.end).unwrap_or(&[])
    }
}

/// Decodes a frame that carries the InfiniBand transport, with any tags and extension headers but in no tunnel.
#[inline]
pub fn roce(link: Link, frame: &[u8], out: &mut Decoded) -> Result<Found, Refusal> {
    let mut walk = Walk { frame, at: 0, end: frame.len(), layers: 0 };
    let found = match link {
        Link::Ethernet => walk.ethernet()?,
        Link::InfiniBand => walk.infiniband()?,
        Link::Ip if frame.first().is_some_and(|byte| byte >> 4 == Ipv6::VERSION) => walk.ipv6()?,
        Link::Ip => walk.ipv4()?,
    };
    let trailers = if found.transport == Transport::InfiniBand { ICRC_LENGTH + VCRC_LENGTH } else { ICRC_LENGTH };
    transport(found.bytes(frame), trailers, out)?;
    Ok(found)
}

/// The part of the frame that is not read yet.
struct Walk<'a> {
    frame: &'a [u8],
    at: usize,
    end: usize,
    layers: usize,
}

impl<'a> Walk<'a> {
    #[inline(always)]
    fn rest(&self) -> &'a [u8] {
        self.frame.get(self.at..self.end).unwrap_or(&[])
    }

    /// Goes behind a header of `length` bytes.
    #[inline(always)]
    fn pass(&mut self, length: usize) -> Result<(), Refusal> {
        self.layers += 1;
        if self.layers > LAYERS_MAX {
            return Err(Refusal::TooManyLayers);
        }
        self.at += length;
        if self.at > self.end { Err(Refusal::Truncated) } else { Ok(()) }
    }

    /// The header at `from` says where the packet ends.
    #[inline(always)]
    fn shorten(&mut self, from: usize, length: usize) -> Result<(), Refusal> {
        let end = from + length;
        if end > self.end || end < self.at {
            return Err(Refusal::Lies);
        }
        self.end = end;
        Ok(())
    }

    #[inline(always)]
    fn ethernet(&mut self) -> Result<Found, Refusal> {
        let mut ethertype = EthernetView::new(self.rest())?.ethertype();
        self.pass(Ethernet::LEN)?;
        while ether_type::is_vlan(ethertype) {
            ethertype = VlanView::new(self.rest())?.ethertype();
            self.pass(Vlan::LEN)?;
        }
        match ethertype {
            ether_type::IPV4 => self.ipv4(),
            ether_type::IPV6 => self.ipv6(),
            ether_type::ROCE_V1 => {
                let network = self.at;
                let grh = GrhView::new(self.rest())?;
                self.pass(Grh::LEN)?;
                self.shorten(network, Grh::LEN + usize::from(grh.payload_length()))?;
                if grh.next_header() != Grh::TRANSPORT {
                    return Err(Refusal::NotMine);
                }
                Ok(Found { transport: Transport::RoceV1, start: self.at, end: self.end, network })
            }
            _ => Err(Refusal::NotMine),
        }
    }

    #[inline(always)]
    fn ipv4(&mut self) -> Result<Found, Refusal> {
        let network = self.at;
        let ip = Ipv4View::new(self.rest())?;
        self.pass(ip.header_len())?;
        // Captures of offloaded segments have no length.
        if ip.total_length() != 0 {
            self.shorten(network, usize::from(ip.total_length()))?;
        }
        if ip.is_fragment() || ip.protocol() != ip_protocol::UDP {
            return Err(Refusal::NotMine);
        }
        self.udp(network)
    }

    #[inline(always)]
    fn ipv6(&mut self) -> Result<Found, Refusal> {
        let network = self.at;
        let ip = Ipv6View::new(self.rest())?;
        self.pass(Ipv6::LEN)?;
        if ip.payload_length() != 0 {
            self.shorten(network, Ipv6::LEN + usize::from(ip.payload_length()))?;
        }
        let mut next = ip.next_header();
        while Ipv6ExtensionView::is_extension(next) {
            let extension = Ipv6ExtensionView::new(next, self.rest())?;
            self.pass(extension.header_len())?;
            if extension.fragment().is_some_and(|fragment| fragment.more() || fragment.offset() != 0) {
                return Err(Refusal::NotMine);
            }
            next = extension.next_header();
        }
        if next != ip_protocol::UDP {
            return Err(Refusal::NotMine);
        }
        self.udp(network)
    }

    #[inline(always)]
    fn udp(&mut self, network: usize) -> Result<Found, Refusal> {
        let from = self.at;
        let udp = UdpView::new(self.rest())?;
        self.pass(Udp::LEN)?;
        self.shorten(from, usize::from(udp.length()))?;
        if udp.destination_port() != udp_port::ROCE_V2 {
            return Err(Refusal::NotMine);
        }
        Ok(Found { transport: Transport::RoceV2, start: self.at, end: self.end, network })
    }

    #[inline(always)]
    fn infiniband(&mut self) -> Result<Found, Refusal> {
        let lrh = LrhView::new(self.rest())?;
        self.pass(Lrh::LEN)?;
        self.shorten(0, usize::from(lrh.pktlen()) * 4 + VCRC_LENGTH)?;
        let network = self.at;
        match lrh.lnh() {
            link_next_header::LOCAL => {}
            link_next_header::GLOBAL => {
                let grh = GrhView::new(self.rest())?;
                self.pass(Grh::LEN)?;
                if grh.next_header() != Grh::TRANSPORT {
                    return Err(Refusal::NotMine);
                }
            }
            _ => return Err(Refusal::NotMine),
        }
        Ok(Found { transport: Transport::InfiniBand, start: self.at, end: self.end, network })
    }
}

// Numbers of the transport services in a command's flags.
const NONE: u32 = 0;
const RC: u32 = 1;
const UC: u32 = 2;
const RD: u32 = 3;
const UD: u32 = 4;
const XRC: u32 = 5;

const PLAIN: Flags = Flags(0);
const FIRST: Flags = Flags::FIRST;
const LAST: Flags = Flags::LAST;
const ONLY: Flags = Flags(Flags::FIRST.0 | Flags::LAST.0);
const LAST_IMMEDIATE: Flags = Flags(Flags::LAST.0 | Flags::IMMEDIATE.0);
const ONLY_IMMEDIATE: Flags = Flags(ONLY.0 | Flags::IMMEDIATE.0);
const LAST_INVALIDATE: Flags = Flags(Flags::LAST.0 | Flags::INVALIDATE.0);
const ONLY_INVALIDATE: Flags = Flags(ONLY.0 | Flags::INVALIDATE.0);
const RESPONSE: Flags = Flags::RESPONSE;

/// From the base transport header to the last trailer.
#[inline]
fn transport(bytes: &[u8], trailers: usize, out: &mut Decoded) -> Result<(), Refusal> {
    let bth = BthView::new(bytes)?;
    if bth.version() != 0 {
        return Err(Refusal::Forbidden);
    }
    // One arm: service, command, flags, and the extended headers in their order. The length is checked once for all.
    macro_rules! take {
        ($service:ident $kind:ident $flags:ident $($header:ident)*) => {{
            const HEADERS: usize = Bth::LEN $(+ $header::LEN)*;
            let command = Command::new(Kind::$kind, Flags($flags.0 | $service << Flags::CLASS_SHIFT));
            out.lay_out(bytes.len(), HEADERS, usize::from(bth.pad()), trailers, command)?;
            let _rest = bytes.get(Bth::LEN..HEADERS).unwrap_or(&[]);
            $(let _rest = filled::<$header>(_rest, out, $header::LEN)?;)*
        }};
    }
    match bth.opcode() {
        0x00 => take!(RC Send FIRST),
        0x01 => take!(RC Send PLAIN),
        0x02 => take!(RC Send LAST),
        0x03 => take!(RC Send LAST_IMMEDIATE ImmDt),
        0x04 => take!(RC Send ONLY),
        0x05 => take!(RC Send ONLY_IMMEDIATE ImmDt),
        0x06 => take!(RC Write FIRST Reth),
        0x07 => take!(RC Write PLAIN),
        0x08 => take!(RC Write LAST),
        0x09 => take!(RC Write LAST_IMMEDIATE ImmDt),
        0x0a => take!(RC Write ONLY Reth),
        0x0b => take!(RC Write ONLY_IMMEDIATE Reth ImmDt),
        0x0c => take!(RC ReadRequest PLAIN Reth),
        0x0d => take!(RC ReadResponse FIRST Aeth),
        0x0e => take!(RC ReadResponse PLAIN),
        0x0f => take!(RC ReadResponse LAST Aeth),
        0x10 => take!(RC ReadResponse ONLY Aeth),
        0x11 => take!(RC Acknowledge PLAIN Aeth),
        0x12 => take!(RC AtomicResponse PLAIN Aeth AtomicAckEth),
        0x13 => take!(RC CompareSwap PLAIN AtomicEth),
        0x14 => take!(RC FetchAdd PLAIN AtomicEth),
        0x16 => take!(RC Send LAST_INVALIDATE Ieth),
        0x17 => take!(RC Send ONLY_INVALIDATE Ieth),
        0x1c => take!(RC Flush PLAIN Feth Reth),
        0x1d => take!(RC AtomicWrite PLAIN Reth),

        0x20 => take!(UC Send FIRST),
        0x21 => take!(UC Send PLAIN),
        0x22 => take!(UC Send LAST),
        0x23 => take!(UC Send LAST_IMMEDIATE ImmDt),
        0x24 => take!(UC Send ONLY),
        0x25 => take!(UC Send ONLY_IMMEDIATE ImmDt),
        0x26 => take!(UC Write FIRST Reth),
        0x27 => take!(UC Write PLAIN),
        0x28 => take!(UC Write LAST),
        0x29 => take!(UC Write LAST_IMMEDIATE ImmDt),
        0x2a => take!(UC Write ONLY Reth),
        0x2b => take!(UC Write ONLY_IMMEDIATE Reth ImmDt),

        0x40 => take!(RD Send FIRST Rdeth Deth),
        0x41 => take!(RD Send PLAIN Rdeth Deth),
        0x42 => take!(RD Send LAST Rdeth Deth),
        0x43 => take!(RD Send LAST_IMMEDIATE Rdeth Deth ImmDt),
        0x44 => take!(RD Send ONLY Rdeth Deth),
        0x45 => take!(RD Send ONLY_IMMEDIATE Rdeth Deth ImmDt),
        0x46 => take!(RD Write FIRST Rdeth Deth Reth),
        0x47 => take!(RD Write PLAIN Rdeth Deth),
        0x48 => take!(RD Write LAST Rdeth Deth),
        0x49 => take!(RD Write LAST_IMMEDIATE Rdeth Deth ImmDt),
        0x4a => take!(RD Write ONLY Rdeth Deth Reth),
        0x4b => take!(RD Write ONLY_IMMEDIATE Rdeth Deth Reth ImmDt),
        0x4c => take!(RD ReadRequest PLAIN Rdeth Deth Reth),
        0x4d => take!(RD ReadResponse FIRST Rdeth Aeth),
        0x4e => take!(RD ReadResponse PLAIN Rdeth),
        0x4f => take!(RD ReadResponse LAST Rdeth Aeth),
        0x50 => take!(RD ReadResponse ONLY Rdeth Aeth),
        0x51 => take!(RD Acknowledge PLAIN Rdeth Aeth),
        0x52 => take!(RD AtomicResponse PLAIN Rdeth Aeth AtomicAckEth),
        0x53 => take!(RD CompareSwap PLAIN Rdeth Deth AtomicEth),
        0x54 => take!(RD FetchAdd PLAIN Rdeth Deth AtomicEth),
        0x55 => take!(RD Control PLAIN Rdeth Deth),
        0x5c => take!(RD Flush PLAIN Rdeth Deth Feth Reth),
        0x5d => take!(RD AtomicWrite PLAIN Rdeth Deth Reth),

        0x64 => take!(UD Send ONLY Deth),
        0x65 => take!(UD Send ONLY_IMMEDIATE Deth ImmDt),

        0x81 => take!(NONE Congestion RESPONSE CnpReserved),

        0xa0 => take!(XRC Send FIRST XrcEth),
        0xa1 => take!(XRC Send PLAIN XrcEth),
        0xa2 => take!(XRC Send LAST XrcEth),
        0xa3 => take!(XRC Send LAST_IMMEDIATE XrcEth ImmDt),
        0xa4 => take!(XRC Send ONLY XrcEth),
        0xa5 => take!(XRC Send ONLY_IMMEDIATE XrcEth ImmDt),
        0xa6 => take!(XRC Write FIRST XrcEth Reth),
        0xa7 => take!(XRC Write PLAIN XrcEth),
        0xa8 => take!(XRC Write LAST XrcEth),
        0xa9 => take!(XRC Write LAST_IMMEDIATE XrcEth ImmDt),
        0xaa => take!(XRC Write ONLY XrcEth Reth),
        0xab => take!(XRC Write ONLY_IMMEDIATE XrcEth Reth ImmDt),
        0xac => take!(XRC ReadRequest PLAIN XrcEth Reth),
        0xad => take!(XRC ReadResponse FIRST Aeth),
        0xae => take!(XRC ReadResponse PLAIN),
        0xaf => take!(XRC ReadResponse LAST Aeth),
        0xb0 => take!(XRC ReadResponse ONLY Aeth),
        0xb1 => take!(XRC Acknowledge PLAIN Aeth),
        0xb2 => take!(XRC AtomicResponse PLAIN Aeth AtomicAckEth),
        0xb3 => take!(XRC CompareSwap PLAIN XrcEth AtomicEth),
        0xb4 => take!(XRC FetchAdd PLAIN XrcEth AtomicEth),
        0xb6 => take!(XRC Send LAST_INVALIDATE XrcEth Ieth),
        0xb7 => take!(XRC Send ONLY_INVALIDATE XrcEth Ieth),
        0xbc => take!(XRC Flush PLAIN XrcEth Feth Reth),
        0xbd => take!(XRC AtomicWrite PLAIN XrcEth Reth),

        opcode => return Err(Refusal::UnknownOpcode(opcode)),
    }
    let mut flags = 0;
    for (set, flag) in [
        (bth.solicited(), Flags::SOLICITED),
        (bth.ack_request(), Flags::ACK_REQUEST),
        (bth.fecn(), Flags::CONGESTION_FORWARD),
        (bth.becn(), Flags::CONGESTION_BACKWARD),
    ] {
        flags |= u32::from(set) * flag.0;
    }
    out.add_flags(Flags(flags));
    out.set(Slot::Queue, bth.dest_qp());
    out.set(Slot::Transaction, bth.dest_qp());
    out.set(Slot::Sequence, bth.psn());
    Ok(())
}

impl Fill for Rdeth {
    #[inline(always)]
    fn fill(bytes: &[u8], out: &mut Decoded) -> Result<(), Refusal> {
        let header = RdethView::new(bytes)?;
        out.set(Slot::Argument2, header.ee_context());
        Ok(())
    }
}

/// A memory key that follows takes the place of the queue key.
impl Fill for Deth {
    #[inline(always)]
    fn fill(bytes: &[u8], out: &mut Decoded) -> Result<(), Refusal> {
        let header = DethView::new(bytes)?;
        out.set(Slot::Key, header.qkey());
        out.set(Slot::Source, header.source_qp());
        Ok(())
    }
}

impl Fill for XrcEth {
    #[inline(always)]
    fn fill(bytes: &[u8], out: &mut Decoded) -> Result<(), Refusal> {
        let header = XrcEthView::new(bytes)?;
        out.set(Slot::Argument3, header.srq());
        Ok(())
    }
}

impl Fill for Reth {
    #[inline(always)]
    fn fill(bytes: &[u8], out: &mut Decoded) -> Result<(), Refusal> {
        let header = RethView::new(bytes)?;
        out.set(Slot::Address, header.va());
        out.set(Slot::Key, header.rkey());
        out.set(Slot::Length, header.length());
        Ok(())
    }
}

impl Fill for AtomicEth {
    #[inline(always)]
    fn fill(bytes: &[u8], out: &mut Decoded) -> Result<(), Refusal> {
        let header = AtomicEthView::new(bytes)?;
        out.set(Slot::Address, header.va());
        out.set(Slot::Key, header.rkey());
        out.set(Slot::Argument0, header.swap_or_add());
        out.set(Slot::Argument1, header.compare());
        Ok(())
    }
}

impl Fill for Aeth {
    #[inline(always)]
    fn fill(bytes: &[u8], out: &mut Decoded) -> Result<(), Refusal> {
        let header = AethView::new(bytes)?;
        out.set(Slot::Status, header.syndrome());
        out.set(Slot::Message, header.msn());
        Ok(())
    }
}

impl Fill for AtomicAckEth {
    #[inline(always)]
    fn fill(bytes: &[u8], out: &mut Decoded) -> Result<(), Refusal> {
        let header = AtomicAckEthView::new(bytes)?;
        out.set(Slot::Argument0, header.original());
        Ok(())
    }
}

impl Fill for ImmDt {
    #[inline(always)]
    fn fill(bytes: &[u8], out: &mut Decoded) -> Result<(), Refusal> {
        let header = ImmDtView::new(bytes)?;
        out.set(Slot::Immediate, header.immediate());
        Ok(())
    }
}

impl Fill for Ieth {
    #[inline(always)]
    fn fill(bytes: &[u8], out: &mut Decoded) -> Result<(), Refusal> {
        let header = IethView::new(bytes)?;
        out.set(Slot::Key, header.rkey());
        Ok(())
    }
}

impl Fill for Feth {
    #[inline(always)]
    fn fill(bytes: &[u8], out: &mut Decoded) -> Result<(), Refusal> {
        let header = FethView::new(bytes)?;
        out.set(Slot::Argument0, header.placement());
        out.set(Slot::Argument1, header.selectivity());
        Ok(())
    }
}

impl Fill for CnpReserved {
    #[inline(always)]
    fn fill(_: &[u8], _: &mut Decoded) -> Result<(), Refusal> {
        Ok(())
    }
}
