//! The capture `captures/erf_infiniband.pcap`: ERF records in all the shapes that cards and sniffers give them.

use weft_wire::capture::{LinkType, write};
use weft_wire::envelope::Envelope;
use weft_wire::header::{Lrh, link_next_header};
use weft_wire::table::{Link, Tables};

use super::build::{self, ROCE_V2_PORT, SOURCE_PORT};
use super::{bitwise, captures};

const HEADER_LENGTH: usize = 16;
const EXTENSION_FOLLOWS: u8 = 0x80;

/// What there is to find in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// A whole packet of the InfiniBand transport, and on what link.
    Transport(Link),
    /// One with a wrong checksum, which tshark does not verify.
    Wrong,
    /// Anything else.
    Other,
}

/// An ERF record, and its length on the wire.
pub struct Record {
    pub content: Content,
    pub wire_length: u16,
    pub bytes: Vec<u8>,
}

impl Record {
    /// The packet and nothing more, as ibdump writes it.
    fn new(content: Content, kind: u8, packet: &[u8]) -> Record {
        let wire_length = packet.len() as u16;
        let mut bytes = [&write::erf_header(0, wire_length)[..], packet].concat();
        bytes[8] = kind;
        Record { content, wire_length, bytes }
    }

    /// An Ethernet frame, behind two bytes that put its IP header on a multiple of four.
    fn ethernet(kind: u8, frame: &[u8]) -> Record {
        let mut record = Record::new(Content::Transport(Link::Ethernet), kind, &[&[0, 0][..], frame].concat());
        record.wire_length -= 2;
        record
    }

    /// With extension headers, by their types.
    fn extended(mut self, types: &[u8]) -> Record {
        self.bytes[8] |= EXTENSION_FOLLOWS;
        let mut at = HEADER_LENGTH;
        for (number, kind) in (1..).zip(types) {
            let follows = if number < types.len() { EXTENSION_FOLLOWS } else { 0 };
            self.bytes.splice(at..at, [kind | follows, 0, 0, 0, 0, 0, 0, number as u8]);
            at += 8;
        }
        self
    }

    /// Padded to a multiple of eight bytes, as by a card.
    fn padded(mut self) -> Record {
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        self
    }

    /// Only the first bytes of it.
    fn snapped(mut self, length: usize) -> Record {
        self.bytes.truncate(length);
        self
    }

    /// Its type.
    pub fn kind(&self) -> u8 {
        self.bytes[8] & !EXTENSION_FOLLOWS
    }

    /// With its time and lengths.
    fn finish(mut self, timestamp_ns: u64) -> Record {
        self.bytes[..8].copy_from_slice(&write::erf_header(timestamp_ns, 0)[..8]);
        let length = self.bytes.len() as u16;
        self.bytes[10..12].copy_from_slice(&length.to_be_bytes());
        self.bytes[14..16].copy_from_slice(&self.wire_length.to_be_bytes());
        self
    }
}

/// The time of a record, counted from 0; single nanoseconds, so that none is lost unseen.
pub fn time_ns(number: usize) -> u64 {
    1_700_000_000_995_999_990 + number as u64 * 1_000_007
}

/// All records.
pub fn records(tables: &Tables) -> Vec<Record> {
    const INFINIBAND: u8 = 21;
    let local = Envelope::example_infiniband(false);
    let global = Envelope::example_infiniband(true);
    let packet = |protocol: &str, link: Link, envelope: &Envelope, opcode: &str, number: usize| {
        let protocol = tables.find(protocol).unwrap();
        let info = tables.protocol(protocol).unwrap().opcodes().find(|info| info.name() == opcode).unwrap();
        let payload = build::payload_for(&info, number);
        let command = build::distinctive(tables, protocol, &info, &payload);
        build::frame(tables, link, envelope, protocol, &command, &payload)
    };
    let infiniband = |envelope: &Envelope, opcode: &str, number: usize| {
        let packet = packet("infiniband", Link::InfiniBand, envelope, opcode, number);
        Record::new(Content::Transport(Link::InfiniBand), INFINIBAND, &packet)
    };
    let roce = |envelope: Envelope, opcode: &str| packet("roce-v2", Link::Ethernet, &envelope, opcode, 3);
    let wrong = |from_end: usize| {
        let mut record = infiniband(&local, "RC SEND Only", 5);
        let at = record.bytes.len() - from_end;
        record.bytes[at] ^= 1;
        record.content = Content::Wrong;
        record
    };
    // The EtherType is one for experiments; the IPv6 packet has no next header.
    let raw = |lnh: u8, words: &[u8]| {
        let pktlen = ((Lrh::LEN + words.len()) / 4) as u16;
        let lrh = Lrh { vl: 0, lver: 0, sl: 0, reserved2: 0, lnh, dlid: 1, reserved5: 0, pktlen, slid: 2 };
        let mut packet = vec![0; Lrh::LEN];
        lrh.emit(&mut packet).unwrap();
        packet.extend(words);
        packet.extend(bitwise::vcrc(&packet));
        Record::new(Content::Other, INFINIBAND, &packet)
    };
    let mut ethernet = roce(Envelope::example_udp(SOURCE_PORT, ROCE_V2_PORT), "RC RDMA READ Request");
    ethernet.extend(bitwise::on_the_wire(&ethernet));
    let more = roce(Envelope::example_ipv6_udp(SOURCE_PORT, ROCE_V2_PORT), "RC Acknowledge");
    let mut snapped = infiniband(&local, "RC SEND Only", 7).snapped(HEADER_LENGTH + 20);
    snapped.content = Content::Other;
    let records = vec![
        infiniband(&local, "RC SEND Only", 1),
        infiniband(&global, "RC RDMA WRITE Only with Immediate", 2),
        infiniband(&local, "RC Acknowledge", 3).extended(&[3]),
        infiniband(&global, "UD SEND Only", 4).extended(&[5, 3, 16]).padded(),
        infiniband(&local, "RC FetchAdd", 5).padded(),
        wrong(1),
        wrong(8),
        raw(link_next_header::RAW, &[0, 0, 0x88, 0xb5, 1, 2, 3, 4]),
        raw(link_next_header::IPV6, &[&[0x60, 0, 0, 0, 0, 0, 59, 1][..], &[0; 32]].concat()),
        Record::ethernet(2, &ethernet).padded(),
        Record::ethernet(16, &more).extended(&[4]),
        Record::new(Content::Other, 25, &[0, 0, 0, 0, 0x12, 0x34]),
        snapped,
    ];
    records.into_iter().enumerate().map(|(number, record)| record.finish(time_ns(number))).collect()
}

/// The capture with these records in it.
pub fn file(records: &[Record]) -> Vec<u8> {
    let mut file = write::file_header(LinkType::Erf).to_vec();
    for (number, record) in records.iter().enumerate() {
        file.extend(write::record_header(time_ns(number), record.bytes.len() as u32));
        file.extend(&record.bytes);
    }
    file
}

/// Where it is.
pub fn path() -> std::path::PathBuf {
    captures(&[""])[0].with_file_name("erf_infiniband.pcap")
}
