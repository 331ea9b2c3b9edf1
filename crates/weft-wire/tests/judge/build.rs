//! Frames of our own: commands with a different value in every slot, packets from them, and the headers around.

use weft_wire::command::{Command, Flags, Slot};
use weft_wire::envelope::{Envelope, Outside};
use weft_wire::graph;
use weft_wire::header::{Ipv6, Tcp, Udp, ip_protocol, tcp_flag};
use weft_wire::table::{EncodeError, Link, OpcodeInfo, Outer, Placement, ProtocolId, Tables};

/// The source port of packets that we make.
pub const SOURCE_PORT: u16 = 49_152;
pub const ROCE_V2_PORT: u16 = 4791;
/// Longer than any packet here.
pub const PACKET_MAX_BYTES: usize = 2048;

/// A command of this opcode in which every slot has a value of its own, as wide as the protocol's field for it.
pub fn distinctive(tables: &Tables, protocol: ProtocolId, info: &OpcodeInfo<'_>, payload: &[u8]) -> Command {
    const WIDTHS: [u32; 9] = [64, 32, 24, 16, 8, 5, 4, 2, 1];
    let mut command = info.command();
    let mut widths = [0usize; 16];
    loop {
        for slot in Slot::names().filter_map(Slot::from_name) {
            let number = slot as u32;
            let width = WIDTHS[widths[slot as usize]];
            // The highest and the lowest bit set, so that neither is lost unseen.
            let noise = 0xc3a5_1e87_69d2_4bf1u64.rotate_left(number * 7) ^ (u64::from(number) * 0x0101_0101_0101_0101);
            let value = noise >> (64 - width) | 1 << (width - 1) | 1;
            command = command.with(slot, value);
        }
        match tables.encode(protocol, &command, payload, &Outer::default(), &mut [0; PACKET_MAX_BYTES]) {
            Ok(_) => return command,
            Err(EncodeError::DoesNotFit(slot)) => widths[slot as usize] += 1,
            Err(error) => panic!("{}: {error}", info.name()),
        }
    }
}

/// The command with all these flags as well.
pub fn with_flags(command: Command, flags: Flags) -> Command {
    let flags = u64::from((command.flags() | flags).0) << 8;
    command.with(Slot::Head, command.slot(Slot::Head) | flags)
}

/// A payload for an opcode that carries one, of a length that changes from packet to packet so that every pad occurs.
pub fn payload_for(info: &OpcodeInfo<'_>, number: usize) -> Vec<u8> {
    let length = match info.placement() {
        Placement::None => 0,
        _ if info.name().ends_with("ATOMIC WRITE") => 8,
        _ => 1 + number * 3 % 61,
    };
    (0..length).map(|at| (at * 7 + number * 13 + 5) as u8).collect()
}

/// One packet in its headers, every length and checksum right.
pub fn frame(
    tables: &Tables,
    link: Link,
    envelope: &Envelope,
    protocol: ProtocolId,
    command: &Command,
    payload: &[u8],
) -> Vec<u8> {
    wrap(link, envelope, |outer, packet| tables.encode(protocol, command, payload, outer, packet).unwrap())
}

/// The same around any encoder: it is called once for the length and once with the headers in front.
pub fn wrap(link: Link, envelope: &Envelope, encode: impl Fn(&Outer<'_>, &mut [u8]) -> usize) -> Vec<u8> {
    let mut packet = [0; PACKET_MAX_BYTES];
    let length = encode(&Outer::default(), &mut packet);
    let mut frame = empty_frame(envelope, length);
    let path = graph::walk(link, &frame).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((path.start, path.end), (envelope.length(), frame.len()));
    assert_eq!(encode(&path.outer(&frame), &mut packet), length);
    frame[path.start..].copy_from_slice(&packet[..length]);
    fill_transport_checksums(envelope, &mut frame);
    frame
}

/// The headers with room for a payload behind.
pub fn empty_frame(envelope: &Envelope, length: usize) -> Vec<u8> {
    let mut envelope = envelope.clone();
    envelope.fit(length).unwrap();
    envelope.emit(length).unwrap()
}

/// TCP's checksum, and UDP's over IPv6, where it may not be left out (tshark says so). Innermost first: an outer one
/// covers it.
pub fn fill_transport_checksums(envelope: &Envelope, frame: &mut [u8]) {
    for number in (0..envelope.layers.len()).rev() {
        let (before, _) = envelope.layers.split_at(number);
        let outside = Envelope { layers: before.to_vec() };
        let Some(addresses) = outside.pseudo_header() else { continue };
        let over_ipv6 = before.iter().rev().find_map(|layer| match layer {
            Outside::Ipv4(..) => Some(false),
            Outside::Ipv6(_) => Some(true),
            _ => None,
        });
        let rest = &mut frame[outside.length()..];
        match envelope.layers[number] {
            Outside::Udp(_) if over_ipv6 == Some(true) => Udp::fill_checksum(&addresses, rest).unwrap(),
            Outside::Tcp(..) => Tcp::fill_checksum(&addresses, rest).unwrap(),
            _ => {}
        }
    }
}

/// Bytes that look random and are the same in every run (SplitMix64).
pub struct Noise(pub u64);

impl Noise {
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }

    pub fn below(&mut self, limit: usize) -> usize {
        self.next() as usize % limit
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}

/// A TCP connection under construction.
pub struct Connection {
    /// Client, server: next sequence number.
    next: [u32; 2],
    pub frames: Vec<Vec<u8>>,
}

pub const CLIENT: usize = 0;
pub const SERVER: usize = 1;
const PORTS: [u16; 2] = [49_152, 7174];

impl Connection {
    /// A connection after its three-way handshake.
    pub fn open() -> Connection {
        let mut connection = Connection { next: [0x1234_5678, 0x9abc_def0], frames: Vec::new() };
        connection.segment(CLIENT, tcp_flag::SYN, &[]);
        connection.segment(SERVER, tcp_flag::SYN | tcp_flag::ACK, &[]);
        connection.segment(CLIENT, tcp_flag::ACK, &[]);
        connection
    }

    /// Sends bytes in one segment.
    pub fn send(&mut self, from: usize, bytes: &[u8]) {
        self.segment(from, tcp_flag::PSH | tcp_flag::ACK, bytes);
    }

    fn segment(&mut self, from: usize, flags: u16, bytes: &[u8]) {
        let mut envelope = Envelope::example_ipv4(ip_protocol::TCP);
        if from == SERVER {
            swap_ends(&mut envelope);
        }
        let acknowledgement = if flags & tcp_flag::ACK == 0 { 0 } else { self.next[1 - from] };
        let tcp = Tcp {
            source_port: PORTS[from],
            destination_port: PORTS[1 - from],
            sequence: self.next[from],
            acknowledgement,
            data_offset: 5,
            reserved: 0,
            flags,
            window: 0xffff,
            checksum: 0,
            urgent: 0,
        };
        envelope.layers.push(Outside::Tcp(tcp, Vec::new()));
        let mut frame = empty_frame(&envelope, bytes.len());
        let start = frame.len() - bytes.len();
        frame[start..].copy_from_slice(bytes);
        fill_transport_checksums(&envelope, &mut frame);
        self.frames.push(frame);
        let synchronise = u32::from(flags & tcp_flag::SYN != 0);
        self.next[from] = self.next[from].wrapping_add(bytes.len() as u32 + synchronise);
    }
}

fn swap_ends(envelope: &mut Envelope) {
    for layer in &mut envelope.layers {
        match layer {
            Outside::Ethernet(header) => std::mem::swap(&mut header.source, &mut header.destination),
            Outside::Ipv4(header, _) => std::mem::swap(&mut header.source, &mut header.destination),
            Outside::Ipv6(Ipv6 { source, destination, .. }) => std::mem::swap(source, destination),
            _ => {}
        }
    }
}
