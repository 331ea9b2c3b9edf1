//! `weft encode`: one packet from a protocol's tables, in the headers that its `[[recognise]]` rule wants.

use std::fs::OpenOptions;
use std::io::{Read, Seek, Write};

use weft_wire::capture::{LinkType, write as pcap};
use weft_wire::command::{Kind, Slot};
use weft_wire::envelope::{Envelope, Outside};
use weft_wire::graph;
use weft_wire::header::{Ethernet, ether_type, ip_protocol};
use weft_wire::table::{EncodeError, FieldValue, FrameKind, Link, OpcodeInfo, Outer, ProtocolId, SetError, Tables};

use crate::Failure;
use crate::decode::hex;

/// Longest packet that is made here.
const PACKET_MAX_BYTES: usize = 65_000;

/// What to make.
pub(crate) struct Request<'a> {
    pub(crate) protocol: &'a str,
    pub(crate) opcode: &'a str,
    pub(crate) fields: &'a [&'a str],
    pub(crate) payload: &'a str,
    pub(crate) file: Option<&'a str>,
}

pub(crate) fn encode(tables: &Tables, request: &Request<'_>, out: &mut dyn Write) -> Result<(), Failure> {
    let Some(id) = tables.find(request.protocol) else {
        return Err(Failure::Told(format!("there is no protocol `{}`; see `weft protocol list`", request.protocol)));
    };
    let opcode = find_opcode(tables, id, request.opcode)?;
    if request.file.is_some() && in_stream(tables, id) {
        let what = format!("{} lives in a TCP stream, which one packet is not: leave --out away", request.protocol);
        return Err(Failure::Told(what));
    }
    let payload = parse_payload(request.payload)?;
    let mut fields = Vec::new();
    for text in request.fields {
        let pair = text.split_once('=').ok_or_else(|| Failure::Usage(format!("`{text}` is not FIELD=VALUE")))?;
        fields.push(pair);
    }
    let frame = in_envelope(tables, id, |outer, out| {
        // First as the definition makes it from an empty command, then with the fields that were given.
        let empty = opcode.command().with(Slot::Length, payload.len() as u64);
        let length = tables.encode(id, &empty, &payload, outer, out)?;
        let made = out.get(..length).unwrap_or(&[]);
        let Some(mut all) = tables.fields(id, opcode.id, made) else { return Ok(length) };
        for (name, value) in &fields {
            if let Ok(parsed) = parse_value(value) {
                // Faults were told before: see `check_fields`.
                let _ = tables.set_field(id, opcode.id, &mut all, name, parsed.as_field());
            }
        }
        tables.encode_fields(id, opcode.id, &all, &payload, outer, out)
    });
    check_fields(tables, id, &opcode, &fields)?;
    let frame = frame.map_err(|failure| failure.about(request.protocol))?;
    writeln!(out, "{}", hex(&frame.bytes))?;
    if let Some(file) = request.file {
        append(file, frame.link, &frame.bytes).map_err(|failure| failure.about(file))?;
    }
    Ok(())
}

fn find_opcode<'t>(tables: &'t Tables, id: ProtocolId, wanted: &str) -> Result<OpcodeInfo<'t>, Failure> {
    let protocol = tables.protocol(id).ok_or_else(|| Failure::Told("no such protocol".to_string()))?;
    let code = match wanted.strip_prefix("0x") {
        Some(hex) => u16::from_str_radix(hex, 16).ok(),
        None => wanted.parse().ok(),
    };
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
    let number = match text.strip_prefix("0x") {
        Some(hex) if hex.len() > 16 => return Ok(Given::Bytes(parse_hex(hex)?)),
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    number.map(Given::Number).map_err(|_| Failure::Usage(format!("`{text}` is no number")))
}

fn check_fields(
    tables: &Tables,
    id: ProtocolId,
    opcode: &OpcodeInfo<'_>,
    fields: &[(&str, &str)],
) -> Result<(), Failure> {
    for (name, value) in fields {
        let parsed = parse_value(value)?;
        let mut scratch = weft_wire::table::Fields::default();
        tables.set_field(id, opcode.id, &mut scratch, name, parsed.as_field()).map_err(|error| {
            let known: Vec<String> = match error {
                SetError::NoSuchField => {
                    let headers: Vec<&str> = opcode.headers().map(|(header, ..)| header).collect();
                    let full = |header: usize, name: &str| format!("{}.{name}", headers.get(header).unwrap_or(&"?"));
                    opcode.fields().map(|field| full(field.header, field.name)).collect()
                }
                _ => Vec::new(),
            };
            let known = if known.is_empty() { String::new() } else { format!("; it has {}", known.join(", ")) };
            Failure::Told(format!("{name}={value}: {error}{known}"))
        })?;
    }
    Ok(())
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
pub(crate) fn in_envelope(
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

/// Outer headers that make the protocol's first rule true. A unit of a TCP stream gets none.
fn envelope(tables: &Tables, id: ProtocolId) -> ((Link, LinkType), Envelope) {
    let wanted = |name: &str| tables.recognised_by(id, name);
    let port = |name: &str, otherwise: u16| wanted(name).and_then(|port| u16::try_from(port).ok()).unwrap_or(otherwise);
    let ethernet = (Link::Ethernet, LinkType::Ethernet);
    let session = tables
        .protocol(id)
        .is_some_and(|protocol| protocol.opcodes().any(|opcode| opcode.command().kind() == Kind::Sealed));
    if in_stream(tables, id) {
        return (ethernet, Envelope::default());
    }
    if wanted("link") == Some(Link::InfiniBand as u64) {
        return ((Link::InfiniBand, LinkType::InfiniBand), Envelope::example_infiniband(false));
    }
    match wanted("ethertype").and_then(|value| u16::try_from(value).ok()) {
        Some(ether_type::ROCE_V1) => return (ethernet, Envelope::example_roce_v1()),
        Some(ethertype) => {
            let header = Ethernet { destination: [2, 0, 0, 0, 0, 1], source: [2, 0, 0, 0, 0, 2], ethertype };
            return (ethernet, Envelope { layers: vec![Outside::Ethernet(header)] });
        }
        None => {}
    }
    let protocol = wanted("ip_protocol").and_then(|value| u8::try_from(value).ok());
    match protocol {
        Some(protocol) if protocol != ip_protocol::UDP => (ethernet, Envelope::example_ipv4(protocol)),
        _ => {
            let destination = port("udp_destination", if session { 0xc002 } else { 0xc003 });
            (ethernet, Envelope::example_udp(port("udp_source", 0xc000), destination))
        }
    }
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
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    // A packet that was never on a wire has no time; the same command makes the same file.
    handle.write_all(&pcap::record_header(0, length))?;
    Ok(handle.write_all(bytes)?)
}
