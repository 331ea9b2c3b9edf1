//! `weft encode`: one packet from a protocol's tables, in the headers that its `[[recognise]]` rule wants.

use std::fs::OpenOptions;
use std::io::{Read, Seek, Write};

use clap::Args;
use weft_wire::capture::{LinkType, write as pcap};
use weft_wire::command::Slot;
use weft_wire::envelope::{Envelope, Outside};
use weft_wire::graph;
use weft_wire::header::{Ethernet, ether_type, ip_protocol};
use weft_wire::table::{
    Decoded, EncodeError, FieldValue, Fields, FrameKind, Link, OpcodeInfo, Outer, ProtocolId, Seen, SetError, Tables,
};

use crate::Failure;
use crate::decode::hex;
use crate::protocol::Definitions;

/// Longest packet that is made here.
const PACKET_MAX_BYTES: usize = 65_000;

#[derive(Args)]
#[command(after_help = AFTER)]
pub(crate) struct Arguments {
    /// Name of the protocol, as `weft protocol list` prints it
    #[arg(value_name = "NAME")]
    protocol: String,
    /// Opcode, by name or number
    opcode: String,
    /// Fields as header.field=value; the rest has defaults or is computed
    #[arg(value_name = "FIELD=VALUE")]
    fields: Vec<String>,
    /// Payload (0x... for bytes in hexadecimal)
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true, allow_hyphen_values = true)]
    payload: String,
    /// Append the packet to this pcap file
    #[arg(long = "out", value_name = "FILE", allow_hyphen_values = true)]
    file: Option<String>,
    #[command(flatten)]
    definitions: Definitions,
}

const AFTER: &str = "\
Captures are written as Wireshark reads them: InfiniBand as ERF records, all
others as Ethernet.

Example:
  weft encode roce-v2 \"RC RDMA WRITE Only\" reth.rkey=42 --payload hello";

/// `weft encode`.
pub(crate) fn encode(request: &Arguments, out: &mut dyn Write) -> Result<(), Failure> {
    let tables = &request.definitions.tables(None)?;
    let Some(id) = tables.find(&request.protocol) else {
        return Err(Failure::Told(format!("there is no protocol `{}`; see `weft protocol list`", request.protocol)));
    };
    let opcode = find_opcode(tables, id, &request.opcode)?;
    if request.file.is_some() && in_stream(tables, id) {
        let what = format!("{} lives in a TCP stream, which one packet is not: leave --out away", request.protocol);
        return Err(Failure::Told(what));
    }
    let payload = parse_payload(&request.payload)?;
    let given = given_fields(tables, id, &opcode, &request.fields)?;
    let frame = in_envelope(tables, id, |outer, out| {
        // First as the definition makes it from an empty command, then with the fields that were given.
        let empty = opcode.command().with(Slot::Length, payload.len() as u64);
        let length = tables.encode(id, &empty, &payload, outer, out)?;
        let made = out.get(..length).unwrap_or(&[]);
        let Some(mut all) = tables.fields(id, opcode.id, made) else { return Ok(length) };
        for (name, value) in &given {
            // Every one was tried before: see `given_fields`.
            let _ = tables.set_field(id, opcode.id, &mut all, name, value.as_field());
        }
        tables.encode_fields(id, opcode.id, &all, &payload, outer, out)
    });
    let frame = frame.map_err(|failure| failure.about(&request.protocol))?;
    if let Some(file) = &request.file {
        append(file, frame.link, &frame.bytes).map_err(|failure| failure.about(file))?;
    }
    writeln!(out, "{}", hex(&frame.bytes))?;
    // Who tests a receiver wants wrong packets too, but should know that they are.
    let mut decoded = Decoded::default();
    match tables.decode(id, frame.bytes.get(frame.start..).unwrap_or(&[]), &mut decoded) {
        Ok(()) if decoded.opcode == opcode.id => {}
        Ok(()) => note("decoded again, this is another opcode"),
        Err(error) => note(&format!("not decoded again: {error}")),
    }
    Ok(())
}

/// A word beside the output.
fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "weft: note: {text}");
}

fn find_opcode<'t>(tables: &'t Tables, id: ProtocolId, wanted: &str) -> Result<OpcodeInfo<'t>, Failure> {
    let protocol = tables.protocol(id).ok_or_else(|| Failure::Told("no such protocol".to_string()))?;
    let code = parse_number(wanted).and_then(|code| u16::try_from(code).ok());
    let found = protocol
        .opcodes()
        .find(|opcode| opcode.name().eq_ignore_ascii_case(wanted) || code.is_some_and(|code| opcode.code() == code));
    found.ok_or_else(|| {
        let name = protocol.name();
        Failure::Told(format!("{name} has no opcode `{wanted}`; see `weft protocol show {name}`"))
    })
}

/// A value of the command line.
enum Given {
    Number(u64),
    Bytes(Vec<u8>),
}

impl Given {
    fn as_field(&self) -> FieldValue<'_> {
        match self {
            Given::Number(value) => FieldValue::Number { value: *value, width: 64 },
            Given::Bytes(bytes) => FieldValue::Bytes(bytes),
        }
    }
}

fn parse_value(text: &str) -> Result<Given, Failure> {
    if let Some(hex) = text.strip_prefix("0x").filter(|hex| hex.len() > 16) {
        return Ok(Given::Bytes(parse_hex(hex)?));
    }
    parse_number(text).map(Given::Number).ok_or_else(|| Failure::Usage(format!("`{text}` is no number")))
}

/// Decimal, or hex behind `0x`; no sign.
fn parse_number(text: &str) -> Option<u64> {
    let (digits, radix) = text.strip_prefix("0x").map_or((text, 10), |hex| (hex, 16));
    let plain = !digits.is_empty() && digits.chars().all(|digit| digit.is_digit(radix));
    plain.then(|| u64::from_str_radix(digits, radix).ok()).flatten()
}

/// The fields of the command line, each tried on the opcode.
fn given_fields<'a>(
    tables: &Tables,
    id: ProtocolId,
    opcode: &OpcodeInfo<'_>,
    words: &'a [String],
) -> Result<Vec<(&'a str, Given)>, Failure> {
    let mut given = Vec::new();
    for word in words {
        let pair = word.split_once('=').ok_or_else(|| Failure::Usage(format!("`{word}` is not FIELD=VALUE")))?;
        let value = parse_value(pair.1)?;
        let mut scratch = Fields::default();
        tables.set_field(id, opcode.id, &mut scratch, pair.0, value.as_field()).map_err(|error| {
            let known = if error == SetError::NoSuchField { known_fields(opcode) } else { String::new() };
            Failure::Told(format!("{word}: {error}{known}"))
        })?;
        given.push((pair.0, value));
    }
    Ok(given)
}

fn known_fields(opcode: &OpcodeInfo<'_>) -> String {
    let headers: Vec<&str> = opcode.headers().map(|(header, ..)| header).collect();
    let full = |header: usize, name: &str| format!("{}.{name}", headers.get(header).unwrap_or(&"?"));
    let fields: Vec<String> = opcode.fields().map(|field| full(field.header, field.name)).collect();
    format!("; it has {}", fields.join(", "))
}

fn parse_payload(text: &str) -> Result<Vec<u8>, Failure> {
    text.strip_prefix("0x").map_or_else(|| Ok(text.as_bytes().to_vec()), parse_hex)
}

fn parse_hex(digits: &str) -> Result<Vec<u8>, Failure> {
    let bad = || Failure::Usage(format!("`{digits}` is not hex with two digits a byte"));
    let pairs = digits.as_bytes().chunks(2);
    let byte = |pair: &[u8]| {
        let text = std::str::from_utf8(pair).ok().filter(|text| text.len() == 2)?;
        u8::from_str_radix(text, 16).ok()
    };
    pairs.map(|pair| byte(pair).ok_or_else(bad)).collect()
}

/// A packet with its outer headers.
pub(crate) struct Framed {
    pub(crate) bytes: Vec<u8>,
    /// First byte of the protocol.
    pub(crate) start: usize,
    pub(crate) link: LinkType,
}

/// Makes a packet by `make`, which gets the outer headers for the checksums that cover them, and puts these in front.
fn in_envelope(
    tables: &Tables,
    id: ProtocolId,
    mut make: impl FnMut(&Outer<'_>, &mut [u8]) -> Result<usize, EncodeError>,
) -> Result<Framed, Failure> {
    let told = |error: &dyn std::fmt::Display| Failure::Told(error.to_string());
    let (link, mut envelope) = envelope(tables, id);
    let mut body = vec![0u8; PACKET_MAX_BYTES];
    // Once for the length, then with outer headers that say it.
    let length = make(&Outer::default(), &mut body).map_err(|error| told(&error))?;
    envelope.fit(length).map_err(|error| told(&error))?;
    let mut bytes = envelope.emit(length).map_err(|error| told(&error))?;
    let start = bytes.len() - length;
    let (graph_link, link_type) = link;
    let path = graph::walk(graph_link, &bytes).ok().filter(|path| path.start == start);
    let is_found = |seen: &Seen| tables.identify(seen) == Some(id) || tables.identify(&seen.in_session()) == Some(id);
    if !path.is_some_and(|path| is_found(&path.seen)) && !in_stream(tables, id) {
        let rules: Vec<String> = tables.rules(id).collect();
        let what = format!("weft cannot build the headers that its rule wants ({})", rules.join("; or "));
        return Err(Failure::Told(what));
    }
    let outer = path.map(|path| path.outer(&bytes)).unwrap_or_default();
    make(&outer, &mut body).map_err(|error| told(&error))?;
    if let (Some(to), Some(from)) = (bytes.get_mut(start..), body.get(..length)) {
        to.copy_from_slice(from);
    }
    Ok(Framed { bytes, start, link: link_type })
}

/// Whether the protocol's units are cut out of a stream.
fn in_stream(tables: &Tables, id: ProtocolId) -> bool {
    tables.recognised_by(id, "frame").is_some_and(|frame| frame != FrameKind::Packet as u64)
}

/// Outer headers as the protocol's rules want them, as far as examples go. A unit of a TCP stream gets none.
fn envelope(tables: &Tables, id: ProtocolId) -> ((Link, LinkType), Envelope) {
    let wanted = |name: &str| tables.recognised_by(id, name);
    let port = |name: &str, otherwise: u16| wanted(name).and_then(|port| u16::try_from(port).ok()).unwrap_or(otherwise);
    let ethernet = (Link::Ethernet, LinkType::Ethernet);
    if in_stream(tables, id) {
        return (ethernet, Envelope::default());
    }
    if wanted("link") == Some(Link::InfiniBand as u64) {
        // Link type 247 would say it without a record around, but Wireshark does not read that.
        return ((Link::InfiniBand, LinkType::Erf), Envelope::example_infiniband(false));
    }
    let ipv6 = wanted("ip_version") == Some(6) || wanted("ethertype") == Some(u64::from(ether_type::IPV6));
    match wanted("ethertype").and_then(|value| u16::try_from(value).ok()) {
        Some(ether_type::ROCE_V1) => return (ethernet, Envelope::example_roce_v1()),
        None | Some(ether_type::IPV4 | ether_type::IPV6) => {}
        Some(ethertype) => {
            let header = Ethernet { destination: [2, 0, 0, 0, 0, 1], source: [2, 0, 0, 0, 0, 2], ethertype };
            return (ethernet, Envelope { layers: vec![Outside::Ethernet(header)] });
        }
    }
    let protocol = wanted("ip_protocol").and_then(|value| u8::try_from(value).ok()).unwrap_or(ip_protocol::UDP);
    let (from, to) = (port("udp_source", 0xc000), port("udp_destination", 0xc002));
    let envelope = match (ipv6, protocol == ip_protocol::UDP) {
        (false, false) => Envelope::example_ipv4(protocol),
        (false, true) => Envelope::example_udp(from, to),
        (true, false) => Envelope::example_ipv6(protocol),
        (true, true) => Envelope::example_ipv6_udp(from, to),
    };
    (ethernet, envelope)
}

/// Appends a packet to a pcap file, or begins one.
fn append(file: &str, link: LinkType, bytes: &[u8]) -> Result<(), Failure> {
    let mut handle = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(file)?;
    let header = pcap::file_header(link);
    let mut start = Vec::new();
    (&mut handle).take(header.len() as u64).read_to_end(&mut start)?;
    if start.is_empty() {
        handle.write_all(&header)?;
    } else if start != header {
        return Err(Failure::Told("it is no pcap file of weft's with this link type: choose another".to_string()));
    }
    handle.seek(std::io::SeekFrom::End(0))?;
    // A packet that was never on a wire has no time; the same command makes the same file.
    let erf = (link == LinkType::Erf).then(|| pcap::erf_header(0, u16::try_from(bytes.len()).unwrap_or(u16::MAX)));
    let record = [erf.as_ref().map_or(&[][..], |header| header), bytes].concat();
    let length = u32::try_from(record.len()).unwrap_or(u32::MAX);
    handle.write_all(&pcap::record_header(0, length))?;
    Ok(handle.write_all(&record)?)
}
