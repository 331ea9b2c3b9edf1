//! `weft decode`: packets of a capture as lines, JSON objects or a summary.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::net::{Ipv4Addr, Ipv6Addr};

use clap::Args;
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer as _};
use serde_json::json;
use serde_json::ser::{CompactFormatter, Compound, Serializer};
use weft_wire::capture::Packet;
use weft_wire::command::Slot;
use weft_wire::graph::LayerKind;
use weft_wire::header::{Ethernet, Grh, Ipv4, Ipv6, Lrh};
use weft_wire::limits::TRANSFER_LENGTH_DEFAULT_BYTES;
use weft_wire::table::{Checked, DecodeError, FieldValue, Tables};

use crate::Failure;
use crate::dissect::{Dissector, Found, Frame, Unit};
use crate::input::{InputError, read_capture};
use crate::json::{entries, seconds};
use crate::protocol::Definitions;

#[derive(Args)]
#[command(after_help = AFTER)]
pub(crate) struct Arguments {
    /// Capture (pcap or pcapng, also gzip); - is standard input
    file: String,
    /// Print one JSON object a line
    #[arg(long, conflicts_with = "summary")]
    json: bool,
    /// Print counts by protocol and opcode
    #[arg(long)]
    summary: bool,
    /// Take this UDP port for SRDMA, if the capture does not have its set-up
    #[arg(long = "session", value_name = "PORT")]
    sessions: Vec<u16>,
    #[command(flatten)]
    definitions: Definitions,
}

const AFTER: &str = "\
Link types: Ethernet, InfiniBand (247, or 197: in ERF records, as ibdump(1)
writes them), bare IP, BSD loopback and Linux \"cooked\" interfaces.

In JSON, numbers are decimal integers of up to 64 bits, written in full. Beyond
2^53 they need a reader with exact integers: Python has them, JavaScript does
not. Fields of more than 64 bits are strings of hexadecimal digits.

Examples:
  weft decode captures/rxe_rc_write.pcap
  weft decode captures/rxe_rc_write.pcap --json";

/// How packets are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Lines,
    Json,
    Summary,
}

/// `weft decode`.
pub(crate) fn decode(arguments: &Arguments, out: &mut dyn Write) -> Result<(), Failure> {
    let format = match (arguments.json, arguments.summary) {
        (true, _) => Format::Json,
        (false, true) => Format::Summary,
        (false, false) => Format::Lines,
    };
    let path = &arguments.file;
    let tables = &arguments.definitions.tables(None)?;
    let mut dissector = Dissector::new(tables, arguments.sessions.clone());
    let mut printer = Printer { tables, format, out, summary: Summary::default(), first_time: None };
    let mut number = 0;
    let outcome = read_capture(path, |record| {
        number += 1;
        let packet = match record {
            Ok(packet) => packet,
            Err(error) => return printer.bad_record(number, &error.to_string()),
        };
        let mut result = Ok(());
        dissector.packet(&packet, |frame, found| {
            if result.is_ok() {
                result = printer.found(number, &packet, frame, &found);
            }
        });
        result
    });
    if format == Format::Summary {
        printer.summary()?;
    }
    printer.out.flush()?;
    outcome.map_err(|failure| failure.about(path))
}

impl From<InputError> for Failure {
    fn from(error: InputError) -> Failure {
        Failure::Told(error.to_string())
    }
}

/// The value of a field in JSON.
#[derive(Serialize)]
#[serde(untagged)]
enum Field {
    Number(u64),
    Bytes(String),
}

impl From<FieldValue<'_>> for Field {
    fn from(value: FieldValue<'_>) -> Field {
        match value {
            FieldValue::Number { value, .. } => Field::Number(value),
            FieldValue::Bytes(bytes) => Field::Bytes(hex(bytes)),
        }
    }
}

/// Slots of a command that every JSON object has, `null` where the packet says nothing of them.
const SLOTS: [(&str, Slot); 11] = [
    ("queue", Slot::Queue),
    ("source", Slot::Source),
    ("transaction", Slot::Transaction),
    ("sequence", Slot::Sequence),
    ("message", Slot::Message),
    ("key", Slot::Key),
    ("address", Slot::Address),
    ("length", Slot::Length),
    ("offset", Slot::Offset),
    ("immediate", Slot::Immediate),
    ("status", Slot::Status),
];

/// A JSON object that is being written.
type Object<'a> = Compound<'a, &'a mut Vec<u8>, CompactFormatter>;

/// What a JSON object says of a packet that was not decoded: the same keys as of any, and why.
fn nothing_known(object: &mut Object<'_>, protocol: &str, (key, why): (&str, &str)) -> serde_json::Result<()> {
    object.serialize_entry("protocol", protocol)?;
    for name in ["opcode", "command"].into_iter().chain(SLOTS.map(|(name, _)| name)) {
        object.serialize_entry(name, &())?;
    }
    object.serialize_entry("icrc", Checked::None.name())?;
    object.serialize_entry("fields", &json!({}))?;
    object.serialize_entry(key, why)
}

#[derive(Default)]
struct Summary {
    packets: u64,
    bytes: u64,
    /// By protocol and opcode: units, payload bytes, bad checksums.
    opcodes: BTreeMap<(String, String), (u64, u64, u64)>,
    other: BTreeMap<String, u64>,
    broken: u64,
}

struct Printer<'a> {
    tables: &'a Tables,
    format: Format,
    out: &'a mut dyn Write,
    summary: Summary,
    first_time: Option<u64>,
}

impl Printer<'_> {
    fn bad_record(&mut self, number: u64, text: &str) -> Result<(), Failure> {
        self.summary.packets += 1;
        self.summary.broken += 1;
        match self.format {
            Format::Lines => writeln!(self.out, "{number:>5} [broken: {text}]")?,
            Format::Json => {
                self.object(number, |_, object| nothing_known(object, "none", ("error", text)))?;
            }
            Format::Summary => {}
        }
        Ok(())
    }

    fn found(&mut self, number: u64, packet: &Packet<'_>, frame: &Frame<'_>, found: &Found<'_>) -> Result<(), Failure> {
        match self.format {
            Format::Lines => self.line(number, packet, frame, found)?,
            Format::Json => self.object(number, |printer, object| printer.json(object, packet, frame, found))?,
            Format::Summary => self.count(number, packet, found),
        }
        Ok(())
    }

    // ------------------------------------------------------------ lines

    fn line(&mut self, number: u64, packet: &Packet<'_>, frame: &Frame<'_>, found: &Found<'_>) -> io::Result<()> {
        let first = *self.first_time.get_or_insert(packet.timestamp_ns);
        // Captures from several interfaces may go back in time.
        let later = packet.timestamp_ns >= first;
        let since = packet.timestamp_ns.abs_diff(first) / 1000;
        let sign = if later { "" } else { "-" };
        let time = format!("{sign}{}.{:06}", since / 1_000_000, since % 1_000_000);
        let (source, destination) = addresses(frame);
        let length = packet.original_length;
        let (protocol, text) = match found {
            Found::Unit(unit) => {
                let title = self.tables.protocol(unit.protocol).map_or("?", |protocol| protocol.title());
                let entry = unit.entry.map(|number| format!("  {number}: ")).unwrap_or_default();
                (title, entry + &self.unit_text(unit))
            }
            Found::Other(what) => (what.as_str(), "(no RDMA)".to_string()),
            Found::Broken(text) => ("-", format!("[broken: {text}]")),
        };
        writeln!(self.out, "{number:>5} {time:>11} {source:>15} → {destination:<15} {protocol:<10} {length:>5} {text}")
    }

    fn unit_text(&self, unit: &Unit<'_>) -> String {
        let decoded = match &unit.decoded {
            Ok(decoded) => decoded,
            Err(error) => return format!("[not decoded: {}]", self.explain(unit, error)),
        };
        let opcode = self.tables.protocol(unit.protocol).and_then(|protocol| protocol.opcode(decoded.opcode));
        let Some(opcode) = opcode else { return String::new() };
        let mut text = opcode.name().to_string();
        for (name, slot, hex) in [
            ("queue", Slot::Queue, true),
            ("seq", Slot::Sequence, false),
            ("key", Slot::Key, true),
            ("addr", Slot::Address, true),
            ("status", Slot::Status, true),
            ("imm", Slot::Immediate, true),
        ] {
            if opcode.fills(slot) {
                let value = decoded.command.slot(slot);
                let _ = if hex { write!(text, " {name}={value:#x}") } else { write!(text, " {name}={value}") };
            }
        }
        let _ = write!(text, " len={}", decoded.command.length());
        let commands = self.tables.commands(decoded, TRANSFER_LENGTH_DEFAULT_BYTES);
        if commands.pieces() > 1 {
            let _ = write!(text, " (in {} pieces)", commands.pieces());
        }
        let mut kinds = commands.kinds().skip(1).peekable();
        if kinds.peek().is_some() {
            text.push_str(" (then");
            for kind in kinds {
                let _ = write!(text, " {}", kind.name());
            }
            text.push(')');
        }
        if let Some(protocol) = self.tables.protocol(unit.protocol) {
            for (name, checked) in protocol.checksum_names().zip(unit.integrity.checked) {
                if let Checked::Bad { found, computed } = checked {
                    let _ = write!(text, " [{name} bad: {found:#x}, should be {computed:#x}]");
                }
            }
        }
        text
    }

    fn explain(&self, unit: &Unit<'_>, error: &DecodeError) -> String {
        match error {
            DecodeError::Check { opcode, number } => {
                let check = self.tables.check_text(unit.protocol, *opcode, *number).unwrap_or("?");
                let opcode = self.tables.protocol(unit.protocol).and_then(|protocol| protocol.opcode(*opcode));
                format!("{}: `{check}` does not hold", opcode.map_or("?", |opcode| opcode.name()))
            }
            other => other.to_string(),
        }
    }

    // ------------------------------------------------------------ JSON

    /// Writes an object on a line.
    fn object(
        &mut self,
        number: u64,
        fill: impl FnOnce(&Self, &mut Object<'_>) -> serde_json::Result<()>,
    ) -> io::Result<()> {
        let mut line = Vec::new();
        let mut serializer = Serializer::new(&mut line);
        let mut object = serializer.serialize_map(None)?;
        object.serialize_entry("frame", &number)?;
        fill(self, &mut object)?;
        object.end()?;
        line.push(b'\n');
        self.out.write_all(&line)
    }

    fn json(
        &self,
        object: &mut Object<'_>,
        packet: &Packet<'_>,
        frame: &Frame<'_>,
        found: &Found<'_>,
    ) -> serde_json::Result<()> {
        let (source, destination) = addresses(frame);
        object.serialize_entry("time", &seconds(packet.timestamp_ns))?;
        object.serialize_entry("frame_length", &packet.original_length)?;
        object.serialize_entry("from", &source)?;
        object.serialize_entry("to", &destination)?;
        if let Some(path) = &frame.path {
            let layers: Vec<String> = path.layers().iter().map(|layer| layer.kind.to_string()).collect();
            object.serialize_entry("layers", &layers)?;
        }
        match found {
            Found::Unit(unit) => self.json_unit(object, unit),
            Found::Other(what) => nothing_known(object, "none", ("what", what)),
            Found::Broken(text) => nothing_known(object, "none", ("error", text)),
        }
    }

    fn json_unit(&self, object: &mut Object<'_>, unit: &Unit<'_>) -> serde_json::Result<()> {
        if let Some(entry) = unit.entry {
            object.serialize_entry("entry", &entry)?;
        }
        let Some(protocol) = self.tables.protocol(unit.protocol) else { return Ok(()) };
        let decoded = match &unit.decoded {
            Ok(decoded) => decoded,
            Err(error) => return nothing_known(object, protocol.name(), ("error", &self.explain(unit, error))),
        };
        object.serialize_entry("protocol", protocol.name())?;
        let Some(opcode) = protocol.opcode(decoded.opcode) else { return Ok(()) };
        object.serialize_entry("opcode", opcode.name())?;
        object.serialize_entry("opcode_code", &opcode.code())?;
        object.serialize_entry("command", decoded.command.kind().name())?;
        let commands = self.tables.commands(decoded, TRANSFER_LENGTH_DEFAULT_BYTES);
        object.serialize_entry("commands", &commands.kinds().map(|kind| kind.name()).collect::<Vec<_>>())?;
        object.serialize_entry("pieces", &commands.pieces())?;
        object.serialize_entry("flags", &decoded.command.flags().set_names().collect::<Vec<_>>())?;
        for (name, slot) in SLOTS {
            object.serialize_entry(name, &opcode.fills(slot).then(|| decoded.command.slot(slot)))?;
        }
        object.serialize_entry("icrc", unit.integrity.worst().name())?;
        let checksums = protocol.checksum_names().zip(unit.integrity.checked.map(|checked| checked.name()));
        object.serialize_entry("checksums", &entries(checksums))?;
        object.serialize_entry("header_length", &decoded.header_length)?;
        object.serialize_entry("payload_length", &decoded.payload_length)?;
        object.serialize_entry("trim", &decoded.trim)?;
        let fields = self.tables.named_fields(unit.protocol, decoded.opcode, unit.bytes);
        object.serialize_entry("fields", &entries(fields.map(|(name, value)| (name, Field::from(value)))))
    }

    // ------------------------------------------------------------ summary

    fn count(&mut self, number: u64, packet: &Packet<'_>, found: &Found<'_>) {
        if number > self.summary.packets {
            self.summary.packets = number;
            self.summary.bytes += u64::from(packet.original_length);
        }
        match found {
            Found::Unit(unit) => {
                let protocol = self.tables.protocol(unit.protocol);
                let opcode = match &unit.decoded {
                    Ok(decoded) => {
                        protocol.and_then(|protocol| protocol.opcode(decoded.opcode)).map_or("?", |o| o.name())
                    }
                    Err(_) => "(not decoded)",
                };
                let key = (protocol.map_or("?", |protocol| protocol.title()).to_string(), opcode.to_string());
                let (units, bytes, bad) = self.summary.opcodes.entry(key).or_default();
                *units += 1;
                *bytes += unit.decoded.as_ref().map_or(0, |decoded| u64::from(decoded.payload_length));
                *bad += u64::from(!unit.integrity.is_intact());
            }
            Found::Other(what) => *self.summary.other.entry(what.clone()).or_default() += 1,
            Found::Broken(_) => self.summary.broken += 1,
        }
    }

    fn summary(&mut self) -> io::Result<()> {
        let Summary { packets, bytes, opcodes, other, broken } = &self.summary;
        writeln!(self.out, "{:<10} {:<32} {:>8} {:>12} {:>8}", "protocol", "opcode", "packets", "payload", "bad CRC")?;
        for ((protocol, opcode), (units, payload, bad)) in opcodes {
            writeln!(self.out, "{protocol:<10} {opcode:<32} {units:>8} {payload:>12} {bad:>8}")?;
        }
        for (what, count) in other {
            writeln!(self.out, "{what:<10} {:<32} {count:>8}", "(no RDMA)")?;
        }
        if *broken > 0 {
            writeln!(self.out, "{:<10} {:<32} {broken:>8}", "-", "(broken)")?;
        }
        writeln!(self.out, "{packets} frames, {bytes} bytes")
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Source and destination of the innermost layer that has any.
fn addresses(frame: &Frame<'_>) -> (String, String) {
    let none = || ("-".to_string(), "-".to_string());
    let Some(path) = &frame.path else { return none() };
    for layer in path.layers().iter().rev() {
        let Some(bytes) = frame.data.get(layer.offset as usize..) else { continue };
        let found = match layer.kind {
            LayerKind::Ipv4 => Ipv4::parse(bytes).ok().map(|header| {
                (Ipv4Addr::from(header.source).to_string(), Ipv4Addr::from(header.destination).to_string())
            }),
            LayerKind::Ipv6 => Ipv6::parse(bytes).ok().map(|header| {
                (Ipv6Addr::from(header.source).to_string(), Ipv6Addr::from(header.destination).to_string())
            }),
            LayerKind::Grh => Grh::parse(bytes).ok().map(|header| {
                (Ipv6Addr::from(header.source_gid).to_string(), Ipv6Addr::from(header.destination_gid).to_string())
            }),
            LayerKind::Lrh => {
                Lrh::parse(bytes).ok().map(|header| (format!("LID {}", header.slid), format!("LID {}", header.dlid)))
            }
            LayerKind::Ethernet => {
                Ethernet::parse(bytes).ok().map(|header| (mac(header.source), mac(header.destination)))
            }
            _ => None,
        };
        if let Some(found) = found {
            return found;
        }
    }
    none()
}

fn mac(bytes: [u8; 6]) -> String {
    bytes.map(|byte| format!("{byte:02x}")).join(":")
}
