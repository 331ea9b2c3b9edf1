//! One protocol of those that come with Weft: the input is a packet, or a unit of a stream, from its first header to
//! its last trailer.
//!
//! For every input that decodes:
//! - headers, payload and what is trimmed are the whole input;
//! - the fields make the same packet again: headers and payload byte for byte; where the checksums were good and the
//!   pad zero, everything;
//! - the command makes a packet that decodes to the same command, all slots of it, with the same payload;
//! - what was made has good checksums, and is made the same from its own fields;
//! - the pieces of a long transfer cover it without gap or overlap;
//! - payload is only ever placed into memory that was granted, and at the right place of it;
//! - the entries of an SRDMA bundle lie behind each other and inside of it, and all of this holds for each of them.
//!
//! What it decodes to is compared with what the decoders written by hand say (`oracle`).

use weft_wire::bundle;
use weft_wire::command::{Flags, Kind, Slot};
use weft_wire::header::Ipv4;
use weft_wire::table::{
    ATTRIBUTES, Checked, DecodeError, Decoded, EncodeError, Integrity, Outer, Placement, ProtocolId, Tables,
};
use weft_wire::transaction::{PlacementError, Segment, Transaction};

use crate::{oracle, reached, tables};

/// Commands of one packet that are looked at, when it asks for a transfer in very many pieces.
const COMMANDS_MAX: usize = 10_000;

/// LRH, as far as a checksum needs one.
const LRH: [u8; 8] = [0x20, 0x02, 0, 1, 0, 12, 0, 2];

/// One input for the protocol of this name.
pub fn run(name: &str, bytes: &[u8]) {
    let id = tables().find(name).expect("one of the built-in protocols");
    // Outer headers of both kinds, by a bit that mutations reach easily and that tells nothing of the packet itself.
    let wide = bytes.len() & 4 != 0;
    let mut ipv4 = [0u8; Ipv4::LEN];
    ipv4[0] = 0x45;
    let mut ipv6 = [0u8; 40];
    ipv6[0] = 0x60;
    let udp = [0x12, 0xb7, 0x12, 0xb7, 0, 8, 0, 0];
    let outer = match (name, wide) {
        ("infiniband", false) => Outer { link: &LRH, ..Outer::default() },
        ("infiniband", true) => Outer { link: &LRH, network: &ipv6, udp: &[] },
        ("roce-v1", _) => Outer { network: &ipv6, ..Outer::default() },
        ("roce-v2", false) => Outer { network: &ipv4, udp: &udp, link: &[] },
        ("roce-v2", true) => Outer { network: &ipv6, udp: &udp, link: &[] },
        _ => Outer::default(),
    };
    check(id, bytes, &outer);
    oracle::agree_on_transport(name, bytes);
}

/// What holds for every packet of a built-in protocol.
pub fn check(id: ProtocolId, bytes: &[u8], outer: &Outer<'_>) {
    oracle::agree_on_unit(id, bytes);
    let tables = tables();
    let mut decoded = Decoded::default();
    if let Err(error) = tables.decode(id, bytes, &mut decoded) {
        return refused(tables, id, bytes, error);
    }
    let header_length = usize::from(decoded.header_length);
    let payload_end = header_length + decoded.payload_length as usize;
    let trim = usize::from(decoded.trim);
    assert_eq!(payload_end + trim, bytes.len());
    let payload = decoded.payload(bytes);
    assert_eq!(payload, &bytes[header_length..payload_end]);
    let opcode = tables.protocol(id).and_then(|p| p.opcode(decoded.opcode)).expect("an opcode of the table");
    assert_eq!(opcode.header_length(), header_length);
    assert_eq!(opcode.command().kind(), decoded.command.kind());

    let integrity = tables.verify(&decoded, bytes, outer);
    let details = [!payload.is_empty(), bytes.len() & 3 != 0, integrity.is_intact()].map(usize::from);
    reached(usize::from(opcode.code()) << 3 | details[0] << 2 | details[1] << 1 | details[2]);
    let _ = tables.validate(&decoded, bytes, &[u64::MAX; ATTRIBUTES], &[0; ATTRIBUTES]);

    // Fields and back. The longest a packet gets when it is made again is with three bytes of pad.
    let mut made = vec![0u8; bytes.len() + 4];
    let fields = tables.fields(id, decoded.opcode, bytes).expect("an opcode of the table");
    let length = tables.encode_fields(id, decoded.opcode, &fields, payload, outer, &mut made).expect("it was a packet");
    assert_eq!(length, bytes.len());
    assert_eq!(made[..payload_end], bytes[..payload_end]);
    let pad = payload_end..bytes.len() - trailer_length(tables, id, &decoded);
    assert!(made[pad.clone()].iter().all(|byte| *byte == 0));
    if bytes[pad].iter().all(|byte| *byte == 0) && no_checksum_is_bad_or_missing(tables, id, &decoded, &integrity) {
        assert_eq!(&made[..length], bytes);
    }
    made_well(id, &decoded, &made[..length], outer);

    // The command and back. It may be sent with other reserved bits and other pad, but it says the same.
    let length = tables.encode(id, &decoded.command, payload, outer, &mut made).expect("it came from a packet");
    made_well(id, &decoded, &made[..length], outer);
    // One byte less than needed is refused, not overrun.
    if let Some(short) = length.checked_sub(1) {
        let refusal = tables.encode(id, &decoded.command, payload, outer, &mut made[..short]);
        assert!(matches!(refusal, Err(EncodeError::NoRoom { needed, have }) if needed <= length && have == short));
    }

    commands(tables, &decoded);
    place(tables, &decoded);
    if decoded.command.kind() == Kind::Bundle {
        entries(id, bytes, header_length, payload_end);
    }
}

/// The packets of a bundle. None of them is one, so that this goes no deeper.
fn entries(id: ProtocolId, datagram: &[u8], mut at: usize, end: usize) {
    let mut scratch = Vec::new();
    let mut whole = true;
    for entry in bundle::entries(datagram) {
        assert!(whole, "nothing comes behind what is broken");
        let Ok(entry) = entry else {
            whole = false;
            continue;
        };
        assert_eq!(entry.start, at + bundle::LENGTH_BYTES);
        assert!(entry.end <= end);
        at = entry.end;
        let packet = bundle::alone(datagram, &entry, &mut scratch).expect("an entry of the datagram");
        check(id, packet, &Outer::default());
    }
    assert!(!whole || at == end);
}

fn refused(tables: &Tables, id: ProtocolId, bytes: &[u8], error: DecodeError) {
    match error {
        DecodeError::Truncated { needed, have } => assert!(have == bytes.len() && needed > have),
        DecodeError::Check { opcode, number } => assert!(tables.check_text(id, opcode, number).is_some()),
        DecodeError::UnknownOpcode(_) => {}
        DecodeError::NoSuchProtocol | DecodeError::TooLong => panic!("{error}"),
    }
}

/// A packet that we made from what `before` was decoded from.
fn made_well(id: ProtocolId, before: &Decoded, made: &[u8], outer: &Outer<'_>) {
    let tables = tables();
    let mut again = Decoded::default();
    tables.decode(id, made, &mut again).expect("what we make can be decoded");
    assert_eq!(again.command, before.command);
    assert_eq!(again.opcode, before.opcode);
    assert_eq!((again.header_length, again.payload_length), (before.header_length, before.payload_length));
    let integrity = tables.verify(&again, made, outer);
    assert!(integrity.is_intact(), "{integrity:?}");
    let carried = trailer_length(tables, id, &again) > 0;
    let known = outer != &Outer::default() || !matches!(integrity.checked[0], Checked::None);
    if carried && known {
        assert_eq!(integrity.checked[0], Checked::Good);
    }
}

/// Bytes of checksums behind the packet. Only the two protocols with opcodes that carry none need a closer look.
fn trailer_length(tables: &Tables, id: ProtocolId, decoded: &Decoded) -> usize {
    let protocol = tables.protocol(id).expect("a protocol of the table");
    let sealed = protocol.opcode(decoded.opcode).is_some_and(|opcode| opcode.name() == "Sealed");
    protocol.checksum_names().map(|name| if name == "vcrc" { 2 } else { 4 }).sum::<usize>() * usize::from(!sealed)
}

fn no_checksum_is_bad_or_missing(tables: &Tables, id: ProtocolId, decoded: &Decoded, integrity: &Integrity) -> bool {
    let count = tables.protocol(id).map_or(0, |protocol| protocol.checksum_names().count());
    trailer_length(tables, id, decoded) == 0 || integrity.checked[..count].iter().all(|c| *c == Checked::Good)
}

fn commands(tables: &Tables, decoded: &Decoded) {
    let whole = decoded.command;
    let opcode = tables.protocol(decoded.protocol).and_then(|p| p.opcode(decoded.opcode)).expect("a known opcode");
    let also = opcode.also().count();
    // Few pieces, so that all are seen; then pieces so small that there may be billions.
    for transfer_max in [whole.length() / 5 + 1, 1 + whole.length() % 7] {
        let mut covered = 0;
        let mut others = 0;
        let all = tables.commands(decoded, transfer_max);
        for (number, command) in all.take(COMMANDS_MAX.min(64)).enumerate() {
            if covered < whole.length() || number == 0 {
                assert_eq!(command.kind(), whole.kind());
                if command == whole {
                    covered = whole.length();
                    continue;
                }
                // A piece: the next bytes of the same range.
                assert!(command.length() > 0 && command.length() <= transfer_max);
                assert_eq!(command.address(), whole.address().wrapping_add(covered));
                assert_eq!(command.offset(), whole.offset().wrapping_add(covered));
                assert_eq!(command.flags().contains(Flags::FIRST), covered == 0);
                covered += command.length();
                assert!(covered <= whole.length());
                assert_eq!(command.flags().contains(Flags::LAST), covered == whole.length());
                for slot in [Slot::Queue, Slot::Source, Slot::Transaction, Slot::Sequence, Slot::Key, Slot::Immediate] {
                    assert_eq!(command.slot(slot), whole.slot(slot));
                }
            } else {
                others += 1;
            }
        }
        if transfer_max > 7 || whole.length() < 40 {
            assert_eq!((covered, others), (whole.length(), also));
        }
    }
}

fn place(tables: &Tables, decoded: &Decoded) {
    const MTU: u64 = 5;
    let granted = [
        Segment { address: 0x1000, length: 7 },
        Segment { address: 0x9000, length: 0 },
        Segment { address: 0x2000, length: 40 },
        Segment { address: u64::MAX - 3, length: 3 },
    ];
    let total: u64 = granted.iter().map(|segment| segment.length).sum();
    let mut transaction = Transaction::new(&granted).expect("a few segments");
    transaction.mtu = MTU;
    transaction.first_sequence = 0xff_fffe;
    let length = u64::from(decoded.payload_length);
    let (placement, sequence_bits) = tables.placement(decoded);
    // Twice: the second one of `Next` goes behind the first.
    for turn in 0..2 {
        let offset = match placement {
            Placement::None => {
                let refused = tables.place(decoded, Some(&mut transaction)).map(|_| ());
                assert_eq!(refused, Err(PlacementError::NoPlace));
                return;
            }
            Placement::Packet => {
                let placed = tables.place(decoded, None).map(|pieces| pieces.collect::<Vec<_>>());
                let address = decoded.command.address();
                match placed {
                    Ok(pieces) if length == 0 => assert!(pieces.is_empty()),
                    Ok(pieces) => assert_eq!(pieces, [Segment { address, length }]),
                    Err(error) => {
                        assert!(address.checked_add(length).is_none());
                        assert!(matches!(error, PlacementError::OutOfRange { .. }));
                    }
                }
                return;
            }
            Placement::Next => turn * length,
            Placement::Sequence => {
                let mask = if sequence_bits == 64 { u64::MAX } else { (1 << sequence_bits) - 1 };
                (decoded.command.sequence().wrapping_sub(transaction.first_sequence) & mask).saturating_mul(MTU)
            }
            Placement::Offset | Placement::List => decoded.command.offset(),
        };
        let refused = tables.place(decoded, None).map(|_| ());
        assert_eq!(refused, Err(PlacementError::NoTransaction));
        let inside = offset.checked_add(length).is_some_and(|end| end <= total);
        let Ok(pieces) = tables.place(decoded, Some(&mut transaction)) else {
            assert!(!inside);
            return;
        };
        assert!(inside);
        // Byte by byte: where the message's bytes lie, and where they are put.
        let lies = granted.iter().flat_map(|s| s.address..s.address + s.length);
        let put = pieces.flat_map(|s| s.address..s.address + s.length);
        assert!(put.eq(lies.skip(offset as usize).take(length as usize)));
    }
}
