//! iWARP: our names beside tshark's, the comparison of a connection's units, and the cut of TCP streams into them, by
//! the product and once more naively.

use std::collections::BTreeMap;

use weft_wire::graph::{self, LayerKind, Stop};
use weft_wire::header::{Tcp, tcp_flag};
use weft_wire::stream::{MpaConnection, MpaStep, Reassembly, Side};
use weft_wire::table::{Checked, Decoded, Link, Outer, ProtocolId, Tables};

use super::{Dissected, Node, Ours, Row, hexadecimal, normal, row};

/// A start frame or an FPDU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Number of the frame that completes it, from 1.
    pub frame: u32,
    pub protocol: ProtocolId,
    /// Without markers.
    pub bytes: Vec<u8>,
    /// The CRC's outcome where the bytes cannot tell: it covered markers, or there is none.
    pub crc: Option<Checked>,
}

/// Start frames (protocols/mpa.toml).
const START: &[Row] = &[
    row(&["start.key_first", "start.key_e", "start.kind", "start.key_last"], "iwarp_mpa.key.req")
        .when(|o| o.get("start.kind") == 0x71),
    row(&["start.key_first", "start.key_e", "start.kind", "start.key_last"], "iwarp_mpa.key.rep")
        .when(|o| o.get("start.kind") == 0x70),
    row(&["start.markers"], "iwarp_mpa.marker_flag"),
    row(&["start.crc"], "iwarp_mpa.crc_flag"),
    row(&["start.reject"], "iwarp_mpa.rej_flag"),
    // tshark 4.0 knows RFC 5044 alone, where the enhanced bit of RFC 6581 is reserved.
    row(&["start.enhanced", "start.reserved"], "iwarp_mpa.res"),
    row(&["start.revision"], "iwarp_mpa.rev"),
    row(&["start.private_length"], "iwarp_mpa.pdlength"),
];

/// FPDUs (protocols/iwarp.toml); pad and CRC come beside.
const FPDU: &[Row] = &[
    row(&["fpdu.length"], "iwarp_mpa.ulpdulength"),
    row(&["ddp.tagged"], "iwarp_ddp.tagged_flag"),
    row(&["ddp.last"], "iwarp_ddp.last_flag"),
    row(&["ddp.reserved"], "iwarp_ddp.rsvd"),
    row(&["ddp.version"], "iwarp_ddp.dv"),
    row(&["tagged.stag"], "iwarp_ddp.stag"),
    row(&["tagged.offset"], "iwarp_ddp.tagged_offset"),
    // The same bytes twice: what DDP leaves to its user, and what RDMAP makes of them.
    row(&["ddp.rdmap_version", "ddp.rdmap_reserved", "ddp.opcode", "untagged.invalidate_stag"], "iwarp_ddp.rsvdulp"),
    row(&["untagged.queue"], "iwarp_ddp.qn"),
    row(&["untagged.msn"], "iwarp_ddp.msn"),
    row(&["untagged.offset"], "iwarp_ddp.mo"),
    row(&["ddp.rdmap_version"], "iwarp_rdma.version"),
    row(&["ddp.rdmap_reserved"], "iwarp_rdma.rsv"),
    row(&["ddp.opcode"], "iwarp_rdma.opcode"),
    row(&["untagged.invalidate_stag"], "iwarp_rdma.reserved").when(|o| matches!(opcode(o), 1 | 3 | 5 | 7)),
    row(&["untagged.invalidate_stag"], "iwarp_rdma.inval_stag").when(|o| matches!(opcode(o), 4 | 6)),
    row(&["read.sink_stag"], "iwarp_rdma.sinkstag"),
    row(&["read.sink_offset"], "iwarp_rdma.sinkto"),
    row(&["read.size"], "iwarp_rdma.rdmardsz"),
    row(&["read.source_stag"], "iwarp_rdma.srcstag"),
    row(&["read.source_offset"], "iwarp_rdma.srcto"),
    row(&["terminate.layer"], "iwarp_rdma.term_layer"),
    row(&["terminate.error_type"], "iwarp_rdma.term_etype_rdma").when(|o| layer(o) == 0),
    row(&["terminate.error_type"], "iwarp_rdma.term_etype_ddp").when(|o| layer(o) == 1),
    row(&["terminate.error_type"], "iwarp_rdma.term_etype_llp").when(|o| layer(o) == 2),
    row(&["terminate.error_type"], "iwarp_rdma.term_etype").when(|o| layer(o) > 2),
    row(&["terminate.error_code"], "iwarp_rdma.term_errcode_rdma").when(|o| layer(o) == 0 && kind(o) != 0),
    row(&["terminate.error_code"], "iwarp_rdma.term_errcode_ddp_tagged").when(|o| layer(o) == 1 && kind(o) == 1),
    row(&["terminate.error_code"], "iwarp_rdma.term_errcode_ddp_untagged").when(|o| layer(o) == 1 && kind(o) == 2),
    row(&["terminate.error_code"], "iwarp_rdma.term_errcode_llp").when(|o| layer(o) == 2 && kind(o) == 0),
    row(&["terminate.error_code"], "iwarp_rdma.term_errcode")
        .when(|o| !matches!((layer(o), kind(o)), (0, 1..) | (1, 1 | 2) | (2, 0))),
    row(&["terminate.has_segment_length"], "iwarp_rdma.term_hdrct_m"),
    row(&["terminate.has_ddp_header"], "iwarp_rdma.hdrct_d"),
    row(&["terminate.has_rdmap_header"], "iwarp_rdma.hdrct_r"),
    row(&["terminate.reserved"], "iwarp_rdma.term_rsvd"),
    row(&["atomic.reserved"], "iwarp_rdma.atomic.reserved"),
    row(&["atomic.operation"], "iwarp_rdma.atomic.opcode"),
    row(&["atomic.request"], "iwarp_rdma.atomic.request_identifier"),
    row(&["atomic.stag"], "iwarp_rdma.atomic.remote_stag"),
    row(&["atomic.offset"], "iwarp_rdma.atomic.remote_tagged_offset"),
    row(&["atomic.data"], "iwarp_rdma.atomic.add_data").when(|o| o.get("atomic.operation") == 0),
    row(&["atomic.data_mask"], "iwarp_rdma.atomic.add_mask").when(|o| o.get("atomic.operation") == 0),
    row(&["atomic.data"], "iwarp_rdma.atomic.swap_data").when(|o| o.get("atomic.operation") == 2),
    row(&["atomic.data_mask"], "iwarp_rdma.atomic.swap_mask").when(|o| o.get("atomic.operation") == 2),
    row(&["atomic.compare"], "iwarp_rdma.atomic.compare_data"),
    row(&["atomic.compare_mask"], "iwarp_rdma.atomic.compare_mask"),
    row(&["atomic_response.request"], "iwarp_rdma.atomic.original_request_identifier"),
    row(&["atomic_response.original"], "iwarp_rdma.atomic.original_remote_data_value"),
];

/// Fields of ours that tshark 4.0 does not show, and why.
const UNSEEN: &[(&str, &str)] =
    &[("immediate.data", "of RFC 7306's Immediate Data it shows the DDP header and leaves the eight bytes out")];

const CRC_LENGTH: usize = 4;
const START_LENGTH: usize = 20;

fn opcode(ours: &Ours) -> u64 {
    ours.get("ddp.opcode")
}

fn layer(ours: &Ours) -> u64 {
    ours.get("terminate.layer")
}

fn kind(ours: &Ours) -> u64 {
    ours.get("terminate.error_type")
}

/// What was compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compared {
    pub starts: usize,
    pub fpdus: usize,
    pub values: usize,
}

/// Compares all units of one connection with what tshark found in its frames, in both directions: every unit of ours
/// is one of tshark's, in the same frame and order, and the other way round.
pub fn compare_iwarp(tables: &Tables, seen: &[Dissected], units: &[Unit]) -> Compared {
    let mut theirs = Vec::new();
    for packet in seen {
        theirs.extend(units_of(packet));
    }
    let their_frames: Vec<u32> = theirs.iter().map(|unit| unit.frame).collect();
    let our_frames: Vec<u32> = units.iter().map(|unit| unit.frame).collect();
    assert_eq!(our_frames, their_frames, "frames that complete a unit");

    // As tshark has it: one end that asks for CRCs is enough.
    let mut crc = false;
    let mut compared = Compared::default();
    for (Unit { frame, protocol, bytes, crc: judged }, theirs) in units.iter().zip(&theirs) {
        let mut decoded = Decoded::default();
        tables.decode(*protocol, bytes, &mut decoded).unwrap_or_else(|error| panic!("frame {frame}: {error}"));
        let ours = Ours::of(tables, *protocol, decoded.opcode, bytes);
        let payload = decoded.payload(bytes);
        let mut expected;
        let mut carried = String::new();
        if ours.has("start.kind") {
            crc |= ours.get("start.crc") == 1;
            expected = ours.expect(START);
            if !payload.is_empty() {
                expected.push(("iwarp_mpa.privatedata".into(), normal(&hexadecimal(payload))));
            }
            assert!(ours.unmentioned(START.iter(), UNSEEN).is_empty());
            compared.starts += 1;
        } else {
            expected = ours.expect(FPDU);
            let forgotten = ours.unmentioned(FPDU.iter(), UNSEEN);
            assert!(forgotten.is_empty(), "frame {frame}: no row of the table speaks of {forgotten:?}");
            let end = usize::from(decoded.header_length) + payload.len();
            let (pad, sum) = bytes[end..].split_at(bytes.len() - end - CRC_LENGTH);
            if !pad.is_empty() {
                expected.push(("iwarp_mpa.pad".into(), normal(&hexadecimal(pad))));
            }
            let name = if crc { "iwarp_mpa.crc_check" } else { "iwarp_mpa.crc" };
            expected.push((name.into(), normal(&hexadecimal(sum))));
            if ours.has("terminate.layer") {
                expected.extend(terminated(&ours, payload));
            } else if !ours.has("immediate.data") {
                carried = hexadecimal(payload);
            }
            compared.fpdus += 1;
            let checked = judged.unwrap_or(tables.verify(&decoded, bytes, &Outer::default()).checked[0]);
            let verdict = theirs.crc_verdict();
            if crc {
                assert_eq!(checked, Checked::Good, "frame {frame}");
                assert!(verdict.contains("Good CRC32"), "frame {frame}: tshark says {verdict}");
            } else {
                assert_eq!(checked, Checked::None, "frame {frame}");
            }
        }
        let mut actual = theirs.values();
        actual.sort();
        expected.sort();
        assert_eq!(actual, expected, "frame {frame}");
        assert_eq!(theirs.data, carried, "frame {frame}: payload");
        compared.values += expected.len() + usize::from(!carried.is_empty());
    }
    compared
}

/// The parts of what a Terminate message gives back, as tshark cuts it: by the D and R bits alone.
fn terminated(ours: &Ours, payload: &[u8]) -> Vec<(String, String)> {
    const SEGMENT_LENGTH: usize = 2;
    const TAGGED: usize = 14;
    const UNTAGGED: usize = 18;
    let mut parts = Vec::new();
    let mut rest = payload;
    let mut take = |name: &str, length: usize| {
        let (part, behind) = rest.split_at(length);
        parts.push((name.to_string(), normal(&hexadecimal(part))));
        rest = behind;
    };
    if ours.get("terminate.has_ddp_header") == 1 {
        take("iwarp_rdma.term_ddp_seg_len", SEGMENT_LENGTH);
        take("iwarp_rdma.term_ddp_h", if kind(ours) == 1 { TAGGED } else { UNTAGGED });
    }
    if ours.get("terminate.has_rdmap_header") == 1 {
        take("iwarp_rdma.term_rdma_h", 28);
    }
    assert!(rest.is_empty(), "tshark would not show {} bytes behind a Terminate", rest.len());
    parts
}

/// One unit as tshark shows it.
struct Shown<'a> {
    frame: u32,
    protocols: Vec<&'a Node>,
    /// Payload in hexadecimal.
    data: String,
}

impl Shown<'_> {
    /// Markers left out: they belong to the stream, not to the unit.
    fn values(&self) -> Vec<(String, String)> {
        let values = self.protocols.iter().flat_map(|node| node.values());
        values.filter(|(name, _)| !name.starts_with("iwarp_mpa.marker_") || name == "iwarp_mpa.marker_flag").collect()
    }

    fn crc_verdict(&self) -> String {
        let checks = self.protocols.iter().flat_map(|node| node.find("iwarp_mpa.crc_check"));
        checks.map(|node| node.showname.as_str()).collect()
    }
}

fn units_of(packet: &Dissected) -> Vec<Shown<'_>> {
    let mut units: Vec<Shown<'_>> = Vec::new();
    for node in &packet.protocols {
        if node.name == "iwarp_mpa" {
            units.push(Shown { frame: packet.frame, protocols: vec![node], data: String::new() });
        } else if let Some(unit) = units.last_mut() {
            if node.name == "iwarp_ddp_rdmap" {
                unit.protocols.push(node);
            }
            unit.data.extend(node.find("data.data").iter().map(|data| data.value.as_str()));
        }
    }
    units
}

/// Every TCP segment of a capture: frame number, header, payload.
fn segments(frames: &[Vec<u8>]) -> impl Iterator<Item = (u32, Tcp, graph::Path, &[u8])> {
    (1u32..).zip(frames).filter_map(|(number, frame)| {
        let path = graph::walk(Link::Ethernet, frame).unwrap();
        let tcp = Tcp::parse(&frame[path.innermost(LayerKind::Tcp)?..]).unwrap();
        (path.stop == Stop::Tcp).then(|| (number, tcp, path, path.payload(frame)))
    })
}

/// Cuts the one connection of a capture into units.
pub fn cut_streams(tables: &Tables, frames: &[Vec<u8>]) -> Vec<Unit> {
    let mut connection = MpaConnection::new();
    let mut streams = [Reassembly::default(), Reassembly::default()];
    let mut scratch = Vec::new();
    let mut units = Vec::new();
    let mut first_port = None;
    for (frame, tcp, path, segment) in segments(frames) {
        let from = usize::from(*first_port.get_or_insert(tcp.source_port) != tcp.source_port);
        streams[from].push(tcp.sequence, tcp.flags & tcp_flag::SYN != 0, segment).unwrap();
        for (side, stream) in [Side::A, Side::B].into_iter().zip(&mut streams) {
            while !stream.ready().is_empty() {
                let step = connection.next(side, stream.ready(), &mut scratch);
                let MpaStep::Unit { consumed, unit } = step.unwrap_or_else(|error| panic!("frame {frame}: {error}"))
                else {
                    break;
                };
                let protocol = tables.identify(&path.seen.in_stream(unit.kind)).unwrap();
                units.push(Unit { frame, protocol, bytes: unit.bytes.to_vec(), crc: unit.crc });
                stream.consume(consumed);
            }
        }
    }
    assert!(streams.iter().all(|stream| stream.held() == 0), "a unit is not complete");
    units
}

/// The same, naively: segments in order, no loss, no markers. A second opinion on the product's streams.
pub fn cut_naively(tables: &Tables, frames: &[Vec<u8>]) -> Vec<(u32, ProtocolId, Vec<u8>)> {
    let start = tables.find("mpa").unwrap();
    let fpdu = tables.find("iwarp").unwrap();
    let mut streams: BTreeMap<u16, (u32, Vec<u8>)> = BTreeMap::new();
    let mut units = Vec::new();
    for (frame, tcp, _, segment) in segments(frames).filter(|(.., segment)| !segment.is_empty()) {
        let (next, stream) = streams.entry(tcp.source_port).or_insert((tcp.sequence, Vec::new()));
        assert_eq!(tcp.sequence, *next, "frame {frame}: this helper wants segments in order");
        *next = next.wrapping_add(segment.len() as u32);
        stream.extend_from_slice(segment);
        while let Some((protocol, length)) = first_unit(stream, start, fpdu) {
            let rest = stream.split_off(length);
            units.push((frame, protocol, std::mem::replace(stream, rest)));
        }
    }
    assert!(streams.values().all(|(_, rest)| rest.is_empty()), "a unit is not complete");
    units
}

fn first_unit(stream: &[u8], start: ProtocolId, fpdu: ProtocolId) -> Option<(ProtocolId, usize)> {
    let number = |at: usize| Some(usize::from(u16::from_be_bytes([*stream.get(at)?, *stream.get(at + 1)?])));
    let (protocol, length) = if stream.starts_with(b"MPA ID Re") {
        (start, START_LENGTH + number(START_LENGTH - 2)?)
    } else {
        (fpdu, (2 + number(0)?).next_multiple_of(4) + CRC_LENGTH)
    };
    (stream.len() >= length).then_some((protocol, length))
}
