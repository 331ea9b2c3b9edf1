//! `weft demo`: decodes the captures that come with Weft, then makes packets of every protocol from one command.

use std::io::Write;

use weft_wire::capture::{Reader, Step};
use weft_wire::command::{Command, Flags, Kind, Slot};
use weft_wire::table::{Decoded, Outer, Tables};

use crate::Failure;
use crate::decode::hex;
use crate::dissect::{Dissector, Found};
use crate::encode::in_envelope;

macro_rules! captures {
    ($($name:literal),*) => {
        [$(($name, include_bytes!(concat!("../../../captures/", $name, ".pcap")).as_slice())),*]
    };
}

/// The captures, in the binary itself: the demo needs no files.
const CAPTURES: [(&str, &[u8]); 17] = captures![
    "rxe_rc_send",
    "rxe_rc_write",
    "rxe_rc_read",
    "rxe_rc_atomic",
    "rxe_rc_rnr",
    "rxe_rc_badkey",
    "rxe_uc",
    "rxe_ud",
    "rxe_ipv6_rc_all",
    "rxe_rdmacm_rping",
    "host_udp_socket_seqnak",
    "host_udp_socket_gso",
    "host_udp_socket_ipv6",
    "siw_crc_p2p_rping200",
    "siw_crc_p2p_rping3500",
    "siw_nocrc_rping200",
    "siw_nocrc_rping3500"
];

pub(crate) fn demo(out: &mut dyn Write) -> Result<(), Failure> {
    let tables = Tables::builtin().map_err(|error| Failure::Told(error.to_string()))?;
    writeln!(
        out,
        "1. Packets of real RDMA stacks, decoded by the tables in protocols/*.toml and made again from the\n   decoded fields. CRC: ICRC of RoCE, CRC32C of iWARP. Exact: every byte of the packet came out the same.\n"
    )?;
    writeln!(
        out,
        "   {:<24} {:>7} {:>7} {:>9} {:>8} {:>8}  protocols",
        "capture", "frames", "RDMA", "CRC good", "bad", "exact"
    )?;
    let mut total = Tally::default();
    for (name, bytes) in CAPTURES {
        let tally = decode_and_make_again(&tables, bytes)?;
        writeln!(
            out,
            "   {name:<24} {:>7} {:>7} {:>9} {:>8} {:>8}  {}",
            tally.frames,
            tally.units,
            tally.good,
            tally.bad,
            tally.exact,
            tally.protocols.join(", ")
        )?;
        total.add(&tally);
    }
    let Tally { frames, units, good, bad, exact, .. } = total;
    writeln!(out, "   {:<24} {frames:>7} {units:>7} {good:>9} {bad:>8} {exact:>8}\n", "all")?;

    writeln!(out, "2. One generic command, as five protocols send it:\n")?;
    let command = Command::new(Kind::Write, Flags::FIRST | Flags::LAST)
        .with(Slot::Queue, 0x11)
        .with(Slot::Sequence, 7)
        .with(Slot::Key, 0x1234)
        .with(Slot::Address, 0x7f00_dead_beef)
        .with(Slot::Length, 12);
    writeln!(out, "   {command:?}, payload \"hello, world\"\n")?;
    for name in ["roce-v2", "roce-v1", "infiniband", "iwarp", "srdma"] {
        let made = make(&tables, name, &command)?;
        writeln!(out, "   {name}: {} bytes\n   {}", made.frame.len(), marked(&made))?;
        writeln!(out, "   decoded again: {:?}\n", made.decoded.command)?;
    }
    if exact != units || bad != 0 {
        return Err(Failure::Told(format!("{exact} of {units} packets came out the same, {bad} checksums are bad")));
    }
    writeln!(out, "{units} packets decoded, all checksums good, all made again byte for byte.\n")?;
    writeln!(out, "Next: `weft decode captures/rxe_rc_write.pcap`, `weft protocol show srdma`, docs/new-protocol.md.")?;
    Ok(())
}

#[derive(Default)]
struct Tally {
    frames: u64,
    units: u64,
    good: u64,
    bad: u64,
    exact: u64,
    protocols: Vec<String>,
}

impl Tally {
    fn add(&mut self, other: &Tally) {
        self.frames += other.frames;
        self.units += other.units;
        self.good += other.good;
        self.bad += other.bad;
        self.exact += other.exact;
    }
}

fn decode_and_make_again(tables: &Tables, mut rest: &[u8]) -> Result<Tally, Failure> {
    let mut tally = Tally::default();
    let mut reader = Reader::new();
    let mut dissector = Dissector::new(tables, Vec::new());
    while let Step::Skip { consumed } | Step::Packet { consumed, .. } | Step::Bad { consumed, .. } =
        step(&mut reader, rest, &mut dissector, tables, &mut tally)?
    {
        rest = rest.get(consumed..).unwrap_or(&[]);
    }
    Ok(tally)
}

fn step<'a>(
    reader: &mut Reader,
    rest: &'a [u8],
    dissector: &mut Dissector<'_>,
    tables: &Tables,
    tally: &mut Tally,
) -> Result<Step<'a>, Failure> {
    let step = reader.next(rest).map_err(|error| Failure::Told(error.to_string()))?;
    if let Step::Packet { packet, .. } = &step {
        tally.frames += 1;
        dissector.packet(packet, |frame, found| {
            let Found::Unit(unit) = found else { return };
            tally.units += 1;
            let Ok(decoded) = unit.decoded else { return };
            match unit.integrity.checked.first().map(|checked| checked.name()) {
                Some("good") => tally.good += 1,
                Some("bad") => tally.bad += 1,
                _ => {}
            }
            let outer = frame.path.map(|path| path.outer(frame.data)).unwrap_or_default();
            tally.exact += u64::from(made_again(tables, &decoded, unit.bytes, &outer));
            let title = tables.protocol(unit.protocol).map_or("?", |protocol| protocol.title());
            if !tally.protocols.iter().any(|known| known == title) {
                tally.protocols.push(title.to_string());
            }
        });
    }
    Ok(step)
}

/// Fields out, packet in: the same bytes? A CRC that the peers agreed to leave out is zero on the wire.
fn made_again(tables: &Tables, decoded: &Decoded, bytes: &[u8], outer: &Outer<'_>) -> bool {
    let Some(fields) = tables.fields(decoded.protocol, decoded.opcode, bytes) else { return false };
    let mut made = vec![0u8; bytes.len()];
    let payload = decoded.payload(bytes);
    let length = tables.encode_fields(decoded.protocol, decoded.opcode, &fields, payload, outer, &mut made);
    if length != Ok(bytes.len()) {
        return false;
    }
    let without_crc = bytes.len() - usize::from(decoded.trim).min(4);
    made == bytes || (bytes.ends_with(&[0; 4]) && made.get(..without_crc) == bytes.get(..without_crc))
}

struct Made {
    frame: Vec<u8>,
    /// First byte of the protocol.
    start: usize,
    decoded: Decoded,
}

/// The command as a packet of `name`, in the envelope that the protocol needs, decoded again.
fn make(tables: &Tables, name: &str, command: &Command) -> Result<Made, Failure> {
    let told = |what: &dyn std::fmt::Display| Failure::Told(format!("{name}: {what}"));
    let protocol = tables.find(name).ok_or_else(|| told(&"not there"))?;
    // The same flags in the protocol's own terms: the reliable connected class of the InfiniBand transport; FPDUs know
    // no first segment, only the last.
    let flags = match name {
        "srdma" => command.flags(),
        "iwarp" => Flags::LAST,
        _ => Flags(command.flags().0 | 1 << Flags::CLASS_SHIFT),
    };
    let mut own = *command;
    own.slots[0] = Command::new(command.kind(), flags).slots[0];
    let frame = in_envelope(tables, protocol, |outer, out| tables.encode(protocol, &own, b"hello, world", outer, out))
        .map_err(|failure| failure.about(name))?;
    let mut decoded = Decoded::default();
    let body = frame.bytes.get(frame.start..).unwrap_or(&[]);
    tables.decode(protocol, body, &mut decoded).map_err(|error| told(&error))?;
    Ok(Made { frame: frame.bytes, start: frame.start, decoded })
}

/// The packet in hex, its parts set apart: outer headers | headers | payload | pad and checksums.
fn marked(made: &Made) -> String {
    let decoded = &made.decoded;
    let headers = made.start + usize::from(decoded.header_length);
    let payload = headers + decoded.payload_length as usize;
    let cut = |from: usize, to: usize| made.frame.get(from..to).map(hex).unwrap_or_default();
    let parts = [cut(0, made.start), cut(made.start, headers), cut(headers, payload), cut(payload, made.frame.len())];
    parts.iter().filter(|part| !part.is_empty()).cloned().collect::<Vec<_>>().join(" | ")
}
