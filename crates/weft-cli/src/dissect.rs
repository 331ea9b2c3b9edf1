//! Frames of a capture to decoded RDMA units: the parse graph, TCP streams, sessions, and the tables.
//!
//! The state is bounded: so many conversations at once, the one that was quiet longest gives way.

use std::collections::HashMap;
use std::num::NonZeroU32;

use weft_wire::bundle;
use weft_wire::capture::{LinkType, Packet};
use weft_wire::command::Kind;
use weft_wire::graph::{self, GraphError, LayerKind, Path, Stop};
use weft_wire::header::{LrhView, TcpView, link_next_header, tcp_flag};
use weft_wire::stream::{MpaConnection, MpaError, MpaStep, Reassembly, Side};
use weft_wire::table::{Checked, DecodeError, Decoded, Integrity, Link, Outer, ProtocolId, Seen, Tables};

/// TCP connections and SRDMA sessions that are followed at once.
const CONVERSATIONS_MAX: usize = 65_536;
/// Bytes of all TCP streams that are held back for something that is missing.
const HELD_MAX_BYTES: usize = 256 << 20;

/// What a frame, or a part of it, turned out to be.
#[derive(Debug)]
pub(crate) enum Found<'a> {
    /// A packet or stream unit of an RDMA protocol.
    Unit(Unit<'a>),
    /// Not RDMA; what it is.
    Other(String),
    /// Something is wrong with it.
    Broken(String),
}

/// A unit of an RDMA protocol.
#[derive(Debug)]
pub(crate) struct Unit<'a> {
    pub(crate) protocol: ProtocolId,
    /// Which entry it is, counted from 1, of the bundle that came before it. Its trailer is the bundle's.
    pub(crate) entry: Option<NonZeroU32>,
    pub(crate) bytes: &'a [u8],
    pub(crate) decoded: Result<Decoded, DecodeError>,
    pub(crate) integrity: Integrity,
}

impl Unit<'_> {
    fn has_kind(&self, kind: Kind) -> bool {
        self.decoded.as_ref().is_ok_and(|decoded| decoded.command.kind() == kind)
    }
}

/// The frame that something was found in.
#[derive(Debug)]
pub(crate) struct Frame<'a> {
    pub(crate) data: &'a [u8],
    pub(crate) path: Option<Path>,
}

/// Addresses and ports of one direction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct End {
    address: [u8; 16],
    port: u16,
}

/// Both ends, the smaller one first, and what keeps networks with the same addresses apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Flow(End, End, u64);

enum Conversation {
    /// A TCP stream that may be iWARP.
    Tcp(Box<Tcp>),
    /// A stream that is not, or that cannot be followed any more.
    Ignored,
    /// UDP ports that belong to an SRDMA session.
    Session,
}

#[derive(Default)]
struct Tcp {
    mpa: MpaConnection,
    streams: [Reassembly; 2],
}

/// Finds RDMA in frames.
pub(crate) struct Dissector<'t> {
    tables: &'t Tables,
    srdma: Option<ProtocolId>,
    session_ports: Vec<u16>,
    conversations: HashMap<Flow, (u64, Conversation)>,
    /// Counts frames, to know which conversation was quiet longest.
    clock: u64,
    /// Bytes that all streams hold.
    held: usize,
    scratch: Vec<u8>,
}

impl<'t> Dissector<'t> {
    /// `session_ports` are UDP ports known to carry SRDMA, beside those whose set-up is in the capture.
    pub(crate) fn new(tables: &'t Tables, session_ports: Vec<u16>) -> Dissector<'t> {
        Dissector {
            tables,
            srdma: tables.find("srdma"),
            session_ports,
            conversations: HashMap::new(),
            clock: 0,
            held: 0,
            scratch: Vec::new(),
        }
    }

    /// Dissects one record of a capture; `each` gets everything that was found in it, at least one thing.
    pub(crate) fn packet(&mut self, packet: &Packet<'_>, mut each: impl FnMut(&Frame<'_>, Found<'_>)) {
        self.clock += 1;
        let (data, walked) = match walk(packet) {
            Ok(walked) => walked,
            Err(what) => return each(&Frame { data: packet.data, path: None }, Found::Other(what)),
        };
        let path = match walked {
            Ok(path) => path,
            Err(error) => {
                let text = explain(&error, packet);
                return each(&Frame { data, path: None }, Found::Broken(text));
            }
        };
        let frame = Frame { data, path: Some(path) };
        match path.stop {
            Stop::Tcp => self.tcp(&frame, &path, &mut each),
            Stop::Fragment => each(&frame, Found::Other("IP fragment".to_string())),
            Stop::Udp | Stop::Transport => self.datagram(&frame, &path, &mut each),
            Stop::Other => match self.tables.identify(&path.seen) {
                Some(protocol) => each(&frame, Found::Unit(self.unit(protocol, path.payload(data), &path.outer(data)))),
                None => each(&frame, Found::Other(last_layer(&path, data))),
            },
        }
    }

    fn datagram(&mut self, frame: &Frame<'_>, path: &Path, each: &mut impl FnMut(&Frame<'_>, Found<'_>)) {
        let flow = flow(path, frame.data);
        let seen = if flow.is_some_and(|flow| self.is_session(&flow)) { path.seen.in_session() } else { path.seen };
        let bytes = path.payload(frame.data);
        let outer = path.outer(frame.data);
        if let Some(protocol) = self.tables.identify(&seen) {
            let unit = self.unit(protocol, bytes, &outer);
            let is_bundle = Some(protocol) == self.srdma && unit.has_kind(Kind::Bundle);
            each(frame, Found::Unit(unit));
            if is_bundle {
                self.entries(frame, protocol, bytes, each);
            }
            return;
        }
        // A session's set-up is known by its magic number and checksum, on any port.
        if let (Some(srdma), Some(flow)) = (self.srdma, flow) {
            let unit = self.unit(srdma, bytes, &outer);
            if unit.has_kind(Kind::Connect) && unit.integrity.checked.first() == Some(&Checked::Good) {
                self.remember(flow, Conversation::Session);
                return each(frame, Found::Unit(unit));
            }
        }
        each(frame, Found::Other(last_layer(path, frame.data)));
    }

    /// The packets of a bundle, each as if it had come alone (P-2.9).
    fn entries(
        &mut self,
        frame: &Frame<'_>,
        protocol: ProtocolId,
        datagram: &[u8],
        each: &mut impl FnMut(&Frame<'_>, Found<'_>),
    ) {
        let mut scratch = std::mem::take(&mut self.scratch);
        for (number, entry) in (1u32..).zip(bundle::entries(datagram)) {
            let broken = |what: &dyn std::fmt::Display| Found::Broken(format!("bundle, entry {number}: {what}"));
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    each(frame, broken(&error));
                    break;
                }
            };
            let Some(packet) = bundle::alone(datagram, &entry, &mut scratch) else { break };
            let mut unit = self.unit(protocol, packet, &Outer::default());
            unit.entry = NonZeroU32::new(number);
            unit.integrity = Integrity::default();
            if unit.has_kind(Kind::Connect) {
                each(frame, broken(&"a set-up packet must come alone"));
            } else {
                each(frame, Found::Unit(unit));
            }
        }
        self.scratch = scratch;
    }

    fn is_session(&mut self, flow: &Flow) -> bool {
        let clock = self.clock;
        let known = self.conversations.get_mut(flow).is_some_and(|(quiet_since, conversation)| {
            *quiet_since = clock;
            matches!(conversation, Conversation::Session)
        });
        known || self.session_ports.iter().any(|port| *port == flow.0.port || *port == flow.1.port)
    }

    fn unit<'a>(&self, protocol: ProtocolId, bytes: &'a [u8], outer: &Outer<'_>) -> Unit<'a> {
        let mut decoded = Decoded::default();
        let result = self.tables.decode(protocol, bytes, &mut decoded);
        let integrity = match result {
            Ok(()) => self.tables.verify(&decoded, bytes, outer),
            Err(_) => Integrity::default(),
        };
        Unit { protocol, entry: None, bytes, decoded: result.map(|()| decoded), integrity }
    }

    fn tcp(&mut self, frame: &Frame<'_>, path: &Path, each: &mut impl FnMut(&Frame<'_>, Found<'_>)) {
        let data = path.payload(frame.data);
        // A definition may take single segments by their port.
        if let Some(protocol) = self.tables.identify(&path.seen).filter(|_| !data.is_empty()) {
            return each(frame, Found::Unit(self.unit(protocol, data, &path.outer(frame.data))));
        }
        let header = path.innermost(LayerKind::Tcp).and_then(|at| TcpView::new(frame.data.get(at..)?).ok());
        let (Some(header), Some(flow)) = (header, flow(path, frame.data)) else {
            return each(frame, Found::Other(last_layer(path, frame.data)));
        };
        let syn = header.flags() & tcp_flag::SYN != 0;
        let new = !self.conversations.contains_key(&flow);
        if new || (syn && header.flags() & tcp_flag::ACK == 0) {
            self.remember(flow, Conversation::Tcp(Box::default()));
        }
        let from_a = flow.0 == source(path, frame.data).unwrap_or(flow.0);
        let mut count = 0;
        if let Some((quiet_since, conversation)) = self.conversations.get_mut(&flow) {
            *quiet_since = self.clock;
            if let Conversation::Tcp(tcp) = conversation {
                let mut found = |found: Found<'_>| {
                    count += 1;
                    each(frame, found);
                };
                let held_before = tcp.held();
                let segment = Segment { from_a, sequence: header.sequence(), syn, data };
                let mut outcome = tcp.segment(self.tables, path.seen, &segment, &mut self.scratch, &mut found);
                self.held = self.held + tcp.held() - held_before;
                if self.held > HELD_MAX_BYTES {
                    outcome = Err(Some("too many bytes of TCP streams wait for missing ones".to_string()));
                }
                if let Err(error) = outcome {
                    self.held -= tcp.held();
                    // A stream that is not MPA from its first byte on is somebody else's.
                    if let Some(text) = error {
                        found(Found::Broken(text));
                    }
                    *conversation = Conversation::Ignored;
                }
            }
        }
        if count == 0 {
            each(frame, Found::Other(last_layer(path, frame.data)));
        }
    }

    fn remember(&mut self, flow: Flow, conversation: Conversation) {
        if self.conversations.len() >= CONVERSATIONS_MAX && !self.conversations.contains_key(&flow) {
            let mut ages: Vec<u64> = self.conversations.values().map(|(quiet_since, _)| *quiet_since).collect();
            let middle = ages.len() / 2;
            // Half at once, so that a flood of flows does not pay this for each of them.
            let (_, median, _) = ages.select_nth_unstable(middle);
            let median = *median;
            let held = &mut self.held;
            self.conversations.retain(|_, (quiet_since, conversation)| {
                let keep = *quiet_since > median;
                if !keep {
                    *held -= conversation.held();
                }
                keep
            });
        }
        if let Some((_, old)) = self.conversations.insert(flow, (self.clock, conversation)) {
            self.held -= old.held();
        }
    }
}

impl Conversation {
    fn held(&self) -> usize {
        if let Conversation::Tcp(tcp) = self { tcp.held() } else { 0 }
    }
}

/// One TCP segment.
struct Segment<'a> {
    from_a: bool,
    sequence: u32,
    syn: bool,
    data: &'a [u8],
}

impl Tcp {
    fn held(&self) -> usize {
        self.streams.iter().map(Reassembly::held).sum()
    }

    /// Takes a segment in and reports every unit that is complete with it. `Err(None)`: not MPA.
    fn segment(
        &mut self,
        tables: &Tables,
        seen: Seen,
        segment: &Segment<'_>,
        scratch: &mut Vec<u8>,
        each: &mut impl FnMut(Found<'_>),
    ) -> Result<(), Option<String>> {
        let [a, b] = &mut self.streams;
        let from = if segment.from_a { &mut *a } else { &mut *b };
        let pushed = from.push(segment.sequence, segment.syn, segment.data);
        pushed.map_err(|error| Some(error.to_string()))?;
        // A reply may free what the other side had sent already: the first side is asked again.
        for side in [Side::A, Side::B, Side::A] {
            let stream = if side == Side::A { &mut *a } else { &mut *b };
            loop {
                if stream.ready().is_empty() {
                    break;
                }
                let consumed = match self.mpa.next(side, stream.ready(), scratch) {
                    Ok(MpaStep::NeedMore) => break,
                    Ok(MpaStep::Unit { consumed, unit }) => {
                        let Some(protocol) = tables.identify(&seen.in_stream(unit.kind)) else { return Err(None) };
                        let mut decoded = Decoded::default();
                        let result = tables.decode(protocol, unit.bytes, &mut decoded);
                        let mut integrity = Integrity::default();
                        if result.is_ok() {
                            integrity = tables.verify(&decoded, unit.bytes, &Outer::default());
                            if let (Some(crc), Some(first)) = (unit.crc, integrity.checked.first_mut()) {
                                *first = crc;
                            }
                        }
                        let decoded = result.map(|()| decoded);
                        each(Found::Unit(Unit { protocol, entry: None, bytes: unit.bytes, decoded, integrity }));
                        consumed
                    }
                    Err(MpaError::NotMpa) => return Err(None),
                    Err(error) => return Err(Some(error.to_string())),
                };
                stream.consume(consumed);
            }
        }
        Ok(())
    }
}

/// Walks a record, whatever link it was captured on. The bytes are those that the path counts in.
fn walk<'a>(packet: &Packet<'a>) -> Result<(&'a [u8], Result<Path, GraphError>), String> {
    let data = packet.data;
    let behind = |skip: usize| data.get(skip..).ok_or_else(|| "cut short".to_string());
    // Cooked captures have a header of their own, with the EtherType of what follows.
    let cooked = |ethertype_at: usize, header: usize| {
        let rest = behind(header)?;
        let ethertype = data.get(ethertype_at..).and_then(|bytes| bytes.first_chunk::<2>());
        Ok((rest, graph::walk_from(u16::from_be_bytes(*ethertype.ok_or("cut short")?), rest)))
    };
    match packet.link_type {
        LinkType::Ethernet => Ok((data, graph::walk(Link::Ethernet, data))),
        LinkType::InfiniBand => Ok((data, graph::walk(Link::InfiniBand, data))),
        LinkType::RawIp => Ok((data, graph::walk(Link::Ip, data))),
        LinkType::Null => behind(4).map(|rest| (rest, graph::walk(Link::Ip, rest))),
        LinkType::LinuxSll => cooked(14, 16),
        LinkType::LinuxSll2 => cooked(0, 20),
        LinkType::ErfOther(kind) => Err(format!("ERF type {kind}")),
        // The reader opens these records.
        LinkType::Erf => Err("ERF".to_string()),
        LinkType::Other(number) => Err(format!("link type {number}")),
    }
}

/// A lie about lengths is the capture's doing when it kept only the front of the packet.
fn explain(error: &GraphError, packet: &Packet<'_>) -> String {
    let kept = packet.data.len();
    if (packet.original_length as usize) > kept {
        format!("{error}; the capture kept {kept} of {} bytes (snap length)", packet.original_length)
    } else {
        error.to_string()
    }
}

/// What a frame without RDMA is: its last layer, or what an InfiniBand packet has instead of a transport.
fn last_layer(path: &Path, frame: &[u8]) -> String {
    let Some(layer) = path.layers().last() else { return "nothing".to_string() };
    let next = (layer.kind == LayerKind::Lrh).then(|| LrhView::new(frame.get(layer.offset as usize..)?).ok()).flatten();
    match next.map(|lrh| lrh.lnh()) {
        Some(link_next_header::IPV6) => "raw IPv6".to_string(),
        // A raw header: two reserved bytes, then an EtherType.
        Some(link_next_header::RAW) => match path.payload(frame) {
            [_, _, high, low, ..] => format!("raw {:#06x}", u16::from_be_bytes([*high, *low])),
            _ => "raw".to_string(),
        },
        _ => layer.kind.to_string(),
    }
}

/// Source and destination ends, for UDP and TCP in IP.
fn ends(path: &Path, frame: &[u8]) -> Option<(End, End)> {
    let transport = path.innermost(LayerKind::Tcp).or_else(|| path.innermost(LayerKind::Udp))?;
    let ports = frame.get(transport..transport + 4)?;
    let [a, b, c, d] = *ports.first_chunk::<4>()?;
    let end = |address: &[u8], port: u16| {
        let mut full = [0u8; 16];
        full.iter_mut().zip(address).for_each(|(to, from)| *to = *from);
        End { address: full, port }
    };
    let ip = path.layers().iter().rev().find(|layer| matches!(layer.kind, LayerKind::Ipv4 | LayerKind::Ipv6))?;
    let at = ip.offset as usize;
    let (source, destination) = match ip.kind {
        LayerKind::Ipv4 => (frame.get(at + 12..at + 16)?, frame.get(at + 16..at + 20)?),
        _ => (frame.get(at + 8..at + 24)?, frame.get(at + 24..at + 40)?),
    };
    Some((end(source, u16::from_be_bytes([a, b])), end(destination, u16::from_be_bytes([c, d]))))
}

fn source(path: &Path, frame: &[u8]) -> Option<End> {
    ends(path, frame).map(|(source, _)| source)
}

fn flow(path: &Path, frame: &[u8]) -> Option<Flow> {
    let (source, destination) = ends(path, frame)?;
    let lane = path.seen.lane();
    Some(if source <= destination { Flow(source, destination, lane) } else { Flow(destination, source, lane) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waited_for_the_reply_is_found_with_it() {
        let tables = Tables::builtin().unwrap();
        let path = graph::walk(Link::Ip, &weft_wire::envelope::Envelope::example_udp(1, 2).emit(0).unwrap()[14..]);
        let seen = path.map(|path| path.seen).unwrap_or_default();
        let start = |letter| [&b"MPA ID Re"[..], &[letter], b" Frame", &[0x40, 1, 0, 0]].concat();
        let fpdu = [0, 4, 0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0];
        let mut tcp = Tcp::default();
        for (from_a, data, wanted) in [(true, [&start(b'q')[..], &fpdu].concat(), 1), (false, start(b'p'), 2)] {
            let mut found = 0;
            let segment = Segment { from_a, sequence: 7, syn: false, data: &data };
            tcp.segment(&tables, seen, &segment, &mut Vec::new(), &mut |_| found += 1).unwrap();
            assert_eq!(found, wanted, "start frame; then the reply, and what waited for it");
        }
    }
}
