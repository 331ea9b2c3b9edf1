//! `weft decode`: packets of a capture as lines, JSON objects or a summary.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::net::{Ipv4Addr, Ipv6Addr};

use weft_wire::capture::Packet;
use weft_wire::command::Slot;
use weft_wire::graph::LayerKind;
use weft_wire::header::{Ethernet, Grh, Ipv4, Ipv6, Lrh};
use weft_wire::limits::TRANSFER_LENGTH_DEFAULT_BYTES;
use weft_wire::table::{Checked, DecodeError, Decoded, FieldValue, Tables};

use crate::Failure;
use crate::dissect::{Dissector, Found, Frame, Unit};
use crate::input::{InputError, read_capture};
use crate::json::Object;

/// How packets are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Lines,
    Json,
    Summary,
}

/// Decodes `path` to `out`.
pub(crate) fn decode(
    tables: &Tables,
    path: &str,
    format: Format,
    session_ports: Vec<u16>,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let mut dissector = Dissector::new(tables, session_ports);
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

/// What a JSON object says of a packet that was not decoded: the same keys as of any, and why.
fn nothing_known(object: &mut Object, protocol: &str, (key, why): (&str, &str)) {
    object.string("protocol", protocol);
    object.maybe("opcode", None);
    object.maybe("command", None);
    for (name, _) in SLOTS {
        object.maybe(name, None);
    }
    object.string("icrc", Checked::None.name());
    object.object("fields", Object::default());
    object.string(key, why);
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
                let mut object = Object::default();
                object.number("frame", number);
                nothing_known(&mut object, "none", ("error", text));
                writeln!(self.out, "{}", object.finish())?;
            }
            Format::Summary => {}
        }
        Ok(())
    }

    fn found(&mut self, number: u64, packet: &Packet<'_>, frame: &Frame<'_>, found: &Found<'_>) -> Result<(), Failure> {
        match self.format {
            Format::Lines => self.line(number, packet, frame, found)?,
            Format::Json => self.json(number, packet, frame, found)?,
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

    fn json(&mut self, number: u64, packet: &Packet<'_>, frame: &Frame<'_>, found: &Found<'_>) -> io::Result<()> {
        let mut object = Object::default();
        object.number("frame", number);
        object.seconds("time", packet.timestamp_ns);
        object.number("frame_length", u64::from(packet.original_length));
        let (source, destination) = addresses(frame);
        object.string("from", &source);
        object.string("to", &destination);
        if let Some(path) = &frame.path {
            let layers: Vec<String> = path.layers().iter().map(|layer| layer.kind.to_string()).collect();
            object.strings("layers", layers.iter().map(String::as_str));
        }
        match found {
            Found::Unit(unit) => {
                if let Some(entry) = unit.entry {
                    object.number("entry", u64::from(entry.get()));
                }
                self.json_unit(&mut object, unit);
            }
            Found::Other(what) => nothing_known(&mut object, "none", ("what", what)),
            Found::Broken(text) => nothing_known(&mut object, "none", ("error", text)),
        }
        writeln!(self.out, "{}", object.finish())
    }

    fn json_unit(&self, object: &mut Object, unit: &Unit<'_>) {
        let Some(protocol) = self.tables.protocol(unit.protocol) else { return };
        let decoded = match &unit.decoded {
            Ok(decoded) => decoded,
            Err(error) => return nothing_known(object, protocol.name(), ("error", &self.explain(unit, error))),
        };
        object.string("protocol", protocol.name());
        let Some(opcode) = protocol.opcode(decoded.opcode) else { return };
        object.string("opcode", opcode.name());
        object.number("opcode_code", u64::from(opcode.code()));
        object.string("command", decoded.command.kind().name());
        let commands = self.tables.commands(decoded, TRANSFER_LENGTH_DEFAULT_BYTES);
        object.strings("commands", commands.kinds().map(|kind| kind.name()));
        object.number("pieces", commands.pieces());
        object.strings("flags", decoded.command.flags().set_names());
        for (name, slot) in SLOTS {
            object.maybe(name, opcode.fills(slot).then(|| decoded.command.slot(slot)));
        }
        object.string("icrc", unit.integrity.worst().name());
        let mut checksums = Object::default();
        for (name, checked) in protocol.checksum_names().zip(unit.integrity.checked) {
            checksums.string(name, checked.name());
        }
        object.object("checksums", checksums);
        object.number("header_length", u64::from(decoded.header_length));
        object.number("payload_length", u64::from(decoded.payload_length));
        object.number("trim", u64::from(decoded.trim));
        object.object("fields", self.fields(unit, decoded));
    }

    fn fields(&self, unit: &Unit<'_>, decoded: &Decoded) -> Object {
        let mut fields = Object::default();
        for (name, value) in self.tables.named_fields(unit.protocol, decoded.opcode, unit.bytes) {
            match value {
                FieldValue::Number { value, .. } => fields.number(name, value),
                FieldValue::Bytes(bytes) => fields.string(name, &hex(bytes)),
            }
        }
        fields
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
