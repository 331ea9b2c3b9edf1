//! Files are built here in memory, and each is read whole, in pieces and byte by byte: the packets must be the same.

use std::format;
use std::string::ToString;
use std::vec::Vec;

use proptest::prelude::*;

use super::byte_order::ByteOrder::{self, Big, Little};
use super::limits::{BLOCK_LENGTH_MAX_BYTES, BUFFERED_BLOCK_LENGTH_MAX_BYTES, INTERFACES_MAX, RECORD_LENGTH_MAX_BYTES};
use super::*;

const FIXTURE_PCAP: &[u8] = include_bytes!("../../tests/fixtures/capture_rc_atomic.pcap");
const FIXTURE_PCAPNG: &[u8] = include_bytes!("../../tests/fixtures/capture_rc_atomic.pcapng");

/// What reading a file brought to light, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Found {
    Packet { link_type: LinkType, timestamp_ns: u64, original_length: u32, data: Vec<u8> },
    Bad(CaptureError),
}

fn found(link_type: LinkType, timestamp_ns: u64, original_length: u32, data: &[u8]) -> Found {
    Found::Packet { link_type, timestamp_ns, original_length, data: data.to_vec() }
}

struct Reading {
    found: Vec<Found>,
    end: Result<(), CaptureError>,
    /// File offsets after each step; record boundaries, when the file was read whole.
    boundaries: Vec<usize>,
    buffered_most: usize,
}

/// Reads a file as the contract says, with `piece` more bytes in the buffer each time the reader wants more.
fn read(file: &[u8], piece: usize) -> Reading {
    let mut reader = Reader::new();
    let mut reading = Reading { found: Vec::new(), end: Ok(()), boundaries: Vec::new(), buffered_most: 0 };
    let (mut start, mut end) = (0, 0);
    loop {
        let buffer = &file[start..end];
        assert_eq!(reader.offset(), start as u64);
        let consumed = match reader.next(buffer) {
            Ok(Step::NeedMore { at_least }) => {
                assert!(at_least > buffer.len() && at_least <= BUFFERED_BLOCK_LENGTH_MAX_BYTES as usize);
                if end == file.len() {
                    reading.end = reader.finish(buffer);
                    return reading;
                }
                end = end.saturating_add(piece).min(file.len());
                reading.buffered_most = reading.buffered_most.max(end - start);
                continue;
            }
            Ok(Step::Skip { consumed }) => consumed,
            Ok(Step::Packet { consumed, packet: Packet { link_type, timestamp_ns, original_length, data } }) => {
                reading.found.push(found(link_type, timestamp_ns, original_length, data));
                consumed
            }
            Ok(Step::Bad { consumed, error }) => {
                reading.found.push(Found::Bad(error));
                consumed
            }
            Err(error) => {
                assert_eq!(reader.next(buffer), Err(error), "an error is final");
                reading.end = reader.finish(buffer);
                assert_eq!(reading.end, Err(error));
                return reading;
            }
        };
        assert!(consumed >= 1 && consumed <= buffer.len());
        start += consumed;
        reading.boundaries.push(start);
    }
}

/// Reads a file whole and in pieces, and checks that it makes no difference.
fn read_every_way(file: &[u8]) -> Reading {
    let whole = read(file, usize::MAX);
    for piece in [1, 7, 64] {
        let pieces = read(file, piece);
        assert_eq!(pieces.found, whole.found);
        assert_eq!(pieces.end, whole.end);
    }
    whole
}

/// A file in the making, in one byte order.
#[derive(Clone)]
struct File {
    order: ByteOrder,
    bytes: Vec<u8>,
}

impl File {
    fn new(order: ByteOrder) -> Self {
        Self { order, bytes: Vec::new() }
    }

    fn u16(mut self, value: u16) -> Self {
        self.bytes.extend(if self.order == Little { value.to_le_bytes() } else { value.to_be_bytes() });
        self
    }

    fn u32(mut self, value: u32) -> Self {
        self.bytes.extend(if self.order == Little { value.to_le_bytes() } else { value.to_be_bytes() });
        self
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend(bytes);
        self
    }

    fn pad(mut self) -> Self {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        self
    }

    fn pcap(order: ByteOrder, magic: u32, link_type: u32) -> Self {
        Self::new(order).u32(magic).u16(2).u16(4).u32(0).u32(0).u32(65_535).u32(link_type)
    }

    fn block(self, block_type: u32, body: impl FnOnce(Self) -> Self) -> Self {
        let body = body(Self::new(self.order)).pad().bytes;
        let length = body.len() as u32 + 12;
        self.u32(block_type).u32(length).bytes(&body).u32(length)
    }

    fn section(self) -> Self {
        self.block(0x0a0d_0d0a, |body| body.u32(0x1a2b_3c4d).u16(1).u16(0).u32(!0).u32(!0))
    }

    fn interface(self, link_type: u16, snapshot_length: u32, options: &[(u16, &[u8])]) -> Self {
        self.block(1, |body| {
            let body = body.u16(link_type).u16(0).u32(snapshot_length);
            options.iter().fold(body, |body, (code, value)| body.u16(*code).u16(value.len() as u16).bytes(value).pad())
        })
    }

    fn enhanced(self, interface: u32, ticks: u64, original_length: u32, data: &[u8]) -> Self {
        self.block(6, |body| {
            let body = body.u32(interface).u32((ticks >> 32) as u32).u32(ticks as u32);
            // Options after the packet, which are no part of it.
            body.u32(data.len() as u32).u32(original_length).bytes(data).pad().u16(2).u16(4).u32(1).u32(0)
        })
    }
}

fn sample_pcap(order: ByteOrder, magic: u32) -> Vec<u8> {
    let more = if magic == 0xa1b2_cd34 { &[9; 8][..] } else { &[] };
    // The link type carries a frame check sequence of four bytes in the bits above it.
    let file = File::pcap(order, magic, 0x4400_0000 | 113);
    let file = file.u32(7).u32(8).u32(3).u32(3).bytes(more).bytes(b"abc");
    let file = file.u32(u32::MAX).u32(999_999).u32(0).u32(60).bytes(more);
    file.u32(9).u32(0).u32(2).u32(9_000).bytes(more).bytes(b"de").bytes
}

fn sample_pcapng(order: ByteOrder, other_order: ByteOrder) -> Vec<u8> {
    let offset = if order == Little { 100_i64.to_le_bytes() } else { 100_i64.to_be_bytes() };
    let first = File::new(order)
        .section()
        .block(0x0bad, |body| body.u32(6).u32(6))
        .interface(1, 4, &[(2, b"eth0"), (0, &[])])
        .enhanced(0, 1_700_000_000_123_456, 5, b"abcde")
        .interface(247, 0, &[(9, &[9]), (14, &offset), (0, &[])])
        .enhanced(1, 5, 1_500, b"f")
        .block(3, |body| body.u32(9).bytes(b"ghij"))
        .block(2, |body| body.u16(1).u16(77).u32(0).u32(6).u32(2).u32(2).bytes(b"kl"))
        .enhanced(0, 0, 0, b"");
    let second = File { order: other_order, ..first }.section().interface(101, 0, &[(9, &[0x81])]);
    second.enhanced(0, 3, 3, b"mno").block(3, |body| body.u32(3).bytes(b"pqr")).bytes
}

#[test]
fn every_pcap_variant_is_read() {
    for (magic, nanoseconds) in [(0xa1b2_c3d4, 1_000), (0xa1b2_3c4d, 1), (0xa1b2_cd34, 1_000)] {
        for order in [Little, Big] {
            let reading = read_every_way(&sample_pcap(order, magic));
            let expected = [
                found(LinkType::LinuxSll, 7_000_000_000 + 8 * nanoseconds, 3, b"abc"),
                found(LinkType::LinuxSll, 4_294_967_295_000_000_000 + 999_999 * nanoseconds, 60, b""),
                found(LinkType::LinuxSll, 9_000_000_000, 9_000, b"de"),
            ];
            assert_eq!((&reading.found[..], reading.end), (&expected[..], Ok(())));
        }
    }
}

#[test]
fn every_pcapng_packet_block_is_read_across_interfaces_and_sections() {
    for (order, other_order) in [(Little, Big), (Big, Little), (Big, Big)] {
        let reading = read_every_way(&sample_pcapng(order, other_order));
        let expected = [
            found(LinkType::Ethernet, 1_700_000_000_123_456_000, 5, b"abcde"),
            found(LinkType::InfiniBand, 100_000_000_005, 1_500, b"f"),
            found(LinkType::Ethernet, 0, 9, b"ghij"),
            found(LinkType::InfiniBand, 100_000_000_006, 2, b"kl"),
            found(LinkType::Ethernet, 0, 0, b""),
            found(LinkType::RawIp, 1_500_000_000, 3, b"mno"),
            found(LinkType::RawIp, 0, 3, b"pqr"),
        ];
        assert_eq!((&reading.found[..], reading.end), (&expected[..], Ok(())));
    }
}

#[test]
fn a_real_capture_reads_the_same_in_both_formats() {
    // tshark -r capture_rc_atomic.pcap -T fields -e frame.len -e frame.time_epoch
    let expected = [
        (86, 1_794_705_189_208_659_000),
        (70, 1_794_705_189_209_515_000),
        (86, 1_794_705_189_211_238_000),
        (70, 1_794_705_189_211_607_000),
        (86, 1_794_705_189_216_704_000),
        (70, 1_794_705_189_217_176_000),
    ];
    let (pcap, pcapng) = (read_every_way(FIXTURE_PCAP), read_every_way(FIXTURE_PCAPNG));
    assert_eq!((pcap.end, pcapng.end), (Ok(()), Ok(())));
    assert_eq!(pcap.found, pcapng.found);
    assert_eq!(pcap.found.len(), expected.len());
    for (found, (length, time)) in pcap.found.iter().zip(expected) {
        let Found::Packet { link_type: LinkType::Ethernet, timestamp_ns, original_length, data } = found else {
            panic!("{found:?}");
        };
        assert_eq!((*original_length, data.len(), *timestamp_ns), (length, length as usize, time));
    }
}

#[test]
fn what_is_written_is_read() {
    let mut file = write::file_header(LinkType::InfiniBand).to_vec();
    file.extend(write::record_header(1_700_000_000_123_456_789, 4));
    file.extend(b"abcd");
    let reading = read_every_way(&file);
    assert_eq!(reading.found, [found(LinkType::InfiniBand, 1_700_000_000_123_456_789, 4, b"abcd")]);
    assert_eq!(reading.end, Ok(()));
}

/// An ERF record with a packet of two bytes. A `length` below 16 is a lie.
fn erf(kind: u8, length: u16) -> Vec<u8> {
    let mut record = write::erf_header(1_500_000_000, 2).to_vec();
    record[8] = kind;
    record[10..12].copy_from_slice(&length.to_be_bytes());
    record.extend(b"ib");
    record
}

#[test]
fn erf_records_are_opened_in_both_formats_and_byte_orders() {
    let records = [erf(21, 18), erf(21, 24), erf(25, 18), erf(21, 15), erf(21, 18)];
    let infiniband = || found(LinkType::InfiniBand, 1_500_000_000, 2, b"ib");
    let bad = |offset: usize| {
        let fault = ErfFault::Length { claimed: 15, headers: 16 };
        Found::Bad(CaptureError::Erf { offset: offset as u64, fault })
    };
    let other = found(LinkType::ErfOther(25), 1_500_000_000, 2, b"ib");
    for order in [Little, Big] {
        let mut pcap = File::pcap(order, 0xa1b2_c3d4, 197);
        let mut pcapng = File::new(order).section().interface(197, 0, &[]);
        let (mut pcap_offsets, mut pcapng_offsets) = (Vec::new(), Vec::new());
        for record in &records {
            pcap_offsets.push(pcap.bytes.len());
            pcapng_offsets.push(pcapng.bytes.len());
            pcap = pcap.u32(9).u32(9).u32(18).u32(18).bytes(record);
            pcapng = pcapng.enhanced(0, 9, 18, record);
        }
        for (file, offsets) in [(pcap, pcap_offsets), (pcapng, pcapng_offsets)] {
            let reading = read_every_way(&file.bytes);
            let expected = [infiniband(), infiniband(), other.clone(), bad(offsets[3]), infiniband()];
            assert_eq!((&reading.found[..], reading.end), (&expected[..], Ok(())));
        }
    }
    let fault = ErfFault::Cut { needed: 16, have: 3 };
    let text = CaptureError::Erf { offset: 24, fault }.to_string();
    let expected = "the ERF record at offset 24 cannot be read: its headers take at least 16 bytes, but only 3 were";
    assert!(text.starts_with(expected), "{text}");
}

#[test]
fn a_file_cut_anywhere_gives_what_came_before_and_says_where_it_ends() {
    let pcap = sample_pcap(Little, 0xa1b2_c3d4);
    for file in [pcap, sample_pcapng(Big, Little), FIXTURE_PCAPNG.to_vec()] {
        let whole = read(&file, usize::MAX);
        for cut in 0..file.len() {
            for piece in [1, usize::MAX] {
                let reading = read(&file[..cut], piece);
                assert!(whole.found.starts_with(&reading.found));
                let last = whole.boundaries.iter().rposition(|boundary| *boundary <= cut);
                match last.map(|index| (whole.boundaries[index], whole.boundaries[index + 1])) {
                    _ if cut == 0 => assert_eq!(reading.end, Err(CaptureError::Empty)),
                    Some((start, _)) if start == cut => assert_eq!(reading.end, Ok(())),
                    known => {
                        let (start, end) = known.unwrap_or((0, whole.boundaries[0]));
                        let Err(CaptureError::Truncated { offset, missing }) = reading.end else {
                            panic!("cut at {cut}: {:?}", reading.end);
                        };
                        assert_eq!(offset, start as u64);
                        assert!(missing >= 1 && missing <= (end - cut) as u64);
                    }
                }
            }
        }
    }
}

#[test]
fn files_that_are_no_captures_are_refused_with_advice() {
    let text = |file: &[u8]| read_every_way(file).end.unwrap_err().to_string();
    assert!(text(b"").starts_with("the file is empty"));
    assert!(text(b"\x7fELF....").starts_with("not a pcap or pcapng file: it starts with 7f 45 4c 46; expected d4 c3"));
    assert!(text(b"hi").starts_with("not a pcap or pcapng file: it starts with 68 69; expected"));
    assert_eq!(read_every_way(b"\x1f\x8b\x08\x00rest").end, Err(CaptureError::Gzip));
    assert_eq!(read_every_way(b"\x1f\x8b").end, Err(CaptureError::Gzip));
    assert_eq!(read_every_way(b"\xd4\xc3").end, Err(CaptureError::Truncated { offset: 0, missing: 2 }));

    let old = File::new(Big).u32(0xa1b2_c3d4).u16(2).u16(2).bytes(&[0; 16]).bytes;
    assert_eq!(read_every_way(&old).end, Err(CaptureError::Version { offset: 0, major: 2, minor: 2 }));
    let mut future = File::new(Big).section().bytes;
    future[13] = 2;
    assert_eq!(read_every_way(&future).end, Err(CaptureError::Version { offset: 0, major: 2, minor: 0 }));
    future[8] = 0;
    let found = [0, 0x2b, 0x3c, 0x4d];
    assert_eq!(read_every_way(&future).end, Err(CaptureError::ByteOrderMagic { offset: 0, found }));
}

#[test]
fn lengths_that_cannot_be_believed_end_the_reading() {
    let good = sample_pcap(Little, 0xa1b2_c3d4);
    let offset = good.len() as u64;
    for claimed in [RECORD_LENGTH_MAX_BYTES + 1, u32::MAX] {
        let file = File { order: Little, bytes: good.clone() }.u32(0).u32(0).u32(claimed).u32(1).bytes(&[0; 64]);
        let reading = read_every_way(&file.bytes);
        assert_eq!(reading.found.len(), 3);
        let error = CaptureError::TooLong { offset, claimed, limit: RECORD_LENGTH_MAX_BYTES };
        assert_eq!(reading.end, Err(error));
        let text = format!("the record at offset {offset} claims {claimed} bytes, over the limit of 262144");
        assert!(error.to_string().starts_with(&text), "{error}");
    }

    let good = File::new(Big).section().interface(1, 0, &[]).enhanced(0, 0, 3, b"abc");
    let offset = good.bytes.len() as u64;
    let limit = BLOCK_LENGTH_MAX_BYTES;
    for (claimed, error) in [
        (u32::MAX, CaptureError::TooLong { offset, claimed: u32::MAX, limit }),
        (limit + 4, CaptureError::TooLong { offset, claimed: limit + 4, limit }),
        (30, CaptureError::Unaligned { offset, claimed: 30 }),
        (8, CaptureError::TooShort { offset, claimed: 8, minimum: 12 }),
        (0, CaptureError::TooShort { offset, claimed: 0, minimum: 12 }),
    ] {
        for block_type in [1, 2, 3, 6, 0x0bad] {
            let reading = read_every_way(&good.clone().u32(block_type).u32(claimed).bytes(&[0; 64]).bytes);
            assert_eq!((reading.found.len(), reading.end), (1, Err(error)));
        }
    }
}

#[test]
fn a_malformed_block_is_reported_and_the_rest_still_read() {
    let good = File::new(Little).section().interface(1, 0, &[]);
    let offset = good.bytes.len() as u64;
    let packet = |captured: u32, interface: u32| {
        good.clone().block(6, |body| body.u32(interface).u32(0).u32(0).u32(captured).u32(captured).bytes(&[0; 8]))
    };
    let mut lengths_differ = packet(8, 0);
    *lengths_differ.bytes.last_mut().unwrap() = 1;
    let limit = RECORD_LENGTH_MAX_BYTES;
    for (file, error) in [
        (packet(9, 0), CaptureError::PacketOverrun { offset, claimed: 9, room: 8 }),
        (packet(!0, 0), CaptureError::TooLong { offset, claimed: !0, limit }),
        (packet(8, 1), CaptureError::UnknownInterface { offset, interface: 1, described: 1 }),
        (lengths_differ, CaptureError::LengthsDiffer { offset, leading: 40, trailing: 0x0100_0028 }),
        (good.clone().block(6, |body| body.u32(0)), CaptureError::TooShort { offset, claimed: 16, minimum: 32 }),
        (good.clone().block(3, |body| body), CaptureError::TooShort { offset, claimed: 12, minimum: 16 }),
        (good.clone().block(3, |body| body.u32(5).u32(0)), CaptureError::PacketOverrun { offset, claimed: 5, room: 4 }),
        (good.clone().enhanced(0, !0, 0, b""), CaptureError::Timestamp { offset, ticks: !0 }),
    ] {
        let reading = read_every_way(&file.enhanced(0, 1, 3, b"abc").bytes);
        assert_eq!(reading.found, [Found::Bad(error), found(LinkType::Ethernet, 1_000, 3, b"abc")]);
        assert_eq!(reading.end, Ok(()));
    }
}

#[test]
fn a_malformed_interface_keeps_its_number() {
    let good = File::new(Big).section();
    let offset = good.bytes.len() as u64;
    let malformed = |code, length| CaptureError::InterfaceOption { offset, code, length };
    let overrun = |body: File| body.u32(1).u32(0).u16(2).u16(400).u32(0);
    for (file, error) in [
        (good.clone().interface(1, 0, &[(9, &[])]), malformed(9, 0)),
        (good.clone().interface(1, 0, &[(14, &[0; 4])]), malformed(14, 4)),
        (good.clone().block(1, overrun), malformed(2, 400)),
        (good.clone().block(1, |body| body.u32(1)), CaptureError::TooShort { offset, claimed: 16, minimum: 20 }),
    ] {
        let file = file.interface(101, 0, &[]);
        let packet_offset = file.bytes.len() as u64;
        let reading = read_every_way(&file.enhanced(0, 1, 1, b"a").enhanced(1, 2, 1, b"b").bytes);
        let unreadable = CaptureError::UnreadableInterface { offset: packet_offset, interface: 0 };
        let expected = [Found::Bad(error), Found::Bad(unreadable), found(LinkType::RawIp, 2_000, 1, b"b")];
        assert_eq!((&reading.found[..], reading.end), (&expected[..], Ok(())));
    }
}

#[test]
fn interfaces_are_kept_up_to_the_limit() {
    let mut file = File::new(Little).section();
    for _ in 0..INTERFACES_MAX {
        file = file.interface(1, 0, &[]);
    }
    let offset = file.bytes.len() as u64;
    let reading = read(&file.interface(1, 0, &[]).enhanced(65_535, 1, 1, b"a").bytes, usize::MAX);
    let error = CaptureError::TooManyInterfaces { offset, limit: INTERFACES_MAX };
    assert_eq!(reading.found, [Found::Bad(error), found(LinkType::Ethernet, 1_000, 1, b"a")]);
}

#[test]
fn long_blocks_are_passed_over_without_being_buffered() {
    const PIECE: usize = 4_096;
    let long = |block_type| {
        let good = File::new(Little).section().interface(1, 0, &[]);
        good.u32(block_type).u32(BLOCK_LENGTH_MAX_BYTES).bytes(&std::vec![0; BLOCK_LENGTH_MAX_BYTES as usize - 8])
    };
    let skipped = read(&long(0x0bad).enhanced(0, 1, 3, b"abc").bytes, PIECE);
    assert_eq!((skipped.found.len(), skipped.end), (1, Ok(())));
    assert!(skipped.buffered_most < 2 * PIECE);

    let file = long(6).enhanced(0, 1, 3, b"abc").bytes;
    let bad = read(&file, PIECE);
    let error =
        CaptureError::TooLong { offset: 48, claimed: BLOCK_LENGTH_MAX_BYTES, limit: BUFFERED_BLOCK_LENGTH_MAX_BYTES };
    assert_eq!(bad.found, [Found::Bad(error), found(LinkType::Ethernet, 1_000, 3, b"abc")]);
    assert!(bad.buffered_most < 2 * PIECE);

    let missing = u64::from(BLOCK_LENGTH_MAX_BYTES) - 10_000;
    assert_eq!(read(&file[..10_048], PIECE).end, Err(CaptureError::Truncated { offset: 48, missing }));
}

#[test]
fn a_file_that_ends_before_what_was_asked_for_is_cut_short() {
    let section = File::new(Little).section().bytes;
    let long = File::new(Little).section().u32(6).u32(1 << 22).bytes(&[0; 4]).bytes;
    for file in [&section[..20], &long[..]] {
        // Byte by byte until a step wants more than the file has: then `finish` gets all that is left, as documented.
        let (mut reader, mut start, mut end) = (Reader::new(), 0, 0);
        let last = loop {
            match reader.next(&file[start..end]).unwrap() {
                Step::NeedMore { at_least } if start + at_least > file.len() => break reader.finish(&file[start..]),
                Step::NeedMore { at_least } => end = start + at_least,
                Step::Skip { consumed } | Step::Packet { consumed, .. } | Step::Bad { consumed, .. } => {
                    start += consumed
                }
            }
        };
        assert!(matches!(last, Err(CaptureError::Truncated { .. })), "{last:?}");
    }
}

#[test]
fn ending_a_file_with_records_unread_is_the_callers_mistake() {
    assert_eq!(Reader::new().finish(FIXTURE_PCAP), Err(CaptureError::Undrained { offset: 0 }));
}

#[test]
fn link_types_keep_their_numbers() {
    for number in 0..300 {
        let link_type = LinkType::from_number(number);
        assert_eq!(LinkType::from_number(link_type.number()), link_type);
        assert!(link_type == LinkType::RawIp || link_type.number() == number);
    }
}

/// A block that is right more often than not: small words make lengths and interface numbers that sometimes fit.
fn block() -> impl Strategy<Value = Vec<u8>> {
    let block_type = prop_oneof![Just(1), Just(2), Just(3), Just(6), Just(0x0a0d_0d0a), any::<u32>()];
    let word = prop_oneof![6 => 0_u32..20, 1 => Just(0x1a2b_3c4d), 1 => any::<u32>()];
    (block_type, proptest::collection::vec(word, 0..16), prop_oneof![9 => Just(None), 1 => any::<u32>().prop_map(Some)])
        .prop_map(|(block_type, words, lie)| {
            let mut bytes = File::new(Little)
                .block(block_type, |body| words.into_iter().fold(body, |body, word| body.u32(word)))
                .bytes;
            if let Some(lie) = lie {
                bytes[4..8].copy_from_slice(&lie.to_le_bytes());
            }
            bytes
        })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(128) })]

    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
        read_every_way(&bytes);
        let erf = write::file_header(LinkType::Erf);
        for start in [&sample_pcap(Little, 0xa1b2_c3d4)[..24], &erf, &sample_pcapng(Big, Big)[..28]] {
            read_every_way(&[start, &bytes].concat());
        }
    }

    #[test]
    fn any_blocks_are_read_or_refused(blocks in proptest::collection::vec(block(), 0..12)) {
        let start = File::new(Little).section().interface(1, 6, &[]).bytes;
        read_every_way(&[start, blocks.concat()].concat());
    }

    #[test]
    fn damaged_captures_are_read_or_refused(at in any::<prop::sample::Index>(), value in any::<u8>()) {
        for file in [FIXTURE_PCAP, FIXTURE_PCAPNG] {
            let mut file = file.to_vec();
            let at = at.index(file.len());
            file[at] = value;
            read_every_way(&file);
        }
    }
}
