//! `weft bench decode`: what a packet costs, by the tables and by the hand-written decoders.
//!
//! Both do the same work on the same packets in the same run. A round is one pass over a stream by each of the two, and
//! which goes first changes from round to round, so that a neighbour on the machine or a change of clock hits both. The
//! figures are medians of rounds.
//!
//! The packets are made by the tables' own encoder. A *mixed* stream has every opcode of its protocol, shuffled, so that
//! branch predictors meet what a busy node shows them; a *single* stream has one opcode, the best case of both.
//!
//! | protocol | the tables do | by hand |
//! |---|---|---|
//! | RoCE, InfiniBand | walk the frame, identify, decode | [`oracle::roce`] |
//! | iWARP | decode an FPDU | [`oracle::iwarp`] |
//! | SRDMA | decode a UDP payload | [`oracle::srdma`] |

use std::hint::black_box;
use std::io::{self, Write};
use std::time::Instant;

use serde_json::{Value, json};
use weft_wire::command::{Command, Flags};
use weft_wire::envelope::Envelope;
use weft_wire::graph::walk;
use weft_wire::header::udp_port;
use weft_wire::oracle::{self, Checksums};
use weft_wire::table::{Decoded, Link, OpcodeInfo, Outer, ProtocolId, Tables};

use super::Options;
use crate::json::decimal;

/// Packets of a stream: more than a branch predictor learns by heart, few enough to stay in the second cache.
const STREAM_PACKETS: usize = 4096;
/// Payloads are up to this long: headers are what is measured.
const PAYLOAD_MAX_BYTES: usize = 64;
pub(super) const ROUNDS_DEFAULT: usize = 201;

/// What was measured.
pub(crate) struct Report {
    rows: Vec<Row>,
}

struct Row {
    protocol: &'static str,
    stream: &'static str,
    packets: usize,
    headers: Figures,
    checksums: Figures,
}

/// Nanoseconds a packet.
#[derive(Clone, Copy)]
struct Figures {
    by_hand: f64,
    tables: f64,
}

impl Figures {
    fn ratio(self) -> f64 {
        self.tables / self.by_hand
    }
}

/// Measures every protocol, then all of them in one stream.
pub(crate) fn decode(options: &Options) -> Result<Report, String> {
    let tables = Tables::builtin().map_err(|error| error.to_string())?;
    let checksums = Checksums::new().ok_or("the CRCs are not known")?;
    let bench = Bench { tables: &tables, checksums: &checksums, rounds: options.rounds };
    let mut rows = Vec::new();
    let mut all = Stream::default();
    for subject in &SUBJECTS {
        let packets = bench.packets(subject)?;
        let single = packets.iter().find(|packet| packet.opcode == subject.single);
        let single = single.ok_or_else(|| format!("{} has no opcode `{}`", subject.title, subject.single))?;
        let single = Stream::repeat(single);
        let mixed = Stream::shuffled(&packets);
        all.add(&packets);
        rows.push(bench.row(subject.title, "mixed", &mixed, subject.unit));
        rows.push(bench.row(subject.title, subject.single, &single, subject.unit));
    }
    all.shuffle();
    rows.push(bench.row("all", "mixed", &all, None));
    Ok(Report { rows })
}

/// A protocol on a link.
struct Subject {
    title: &'static str,
    protocol: &'static str,
    /// The opcode of the single stream.
    single: &'static str,
    unit: Option<Unit>,
    envelope: fn() -> Envelope,
}

/// What a packet of the stream is, and so what is to be done with it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    Frame(Link),
    Fpdu,
    Datagram,
}

const ETHERNET: Option<Unit> = Some(Unit::Frame(Link::Ethernet));

const SUBJECTS: [Subject; 6] = [
    Subject {
        title: "roce-v2 IPv4",
        protocol: "roce-v2",
        single: "RC RDMA WRITE Only",
        unit: ETHERNET,
        envelope: || Envelope::example_udp(0xc000, udp_port::ROCE_V2),
    },
    Subject {
        title: "roce-v2 IPv6",
        protocol: "roce-v2",
        single: "RC RDMA WRITE Only",
        unit: ETHERNET,
        envelope: || Envelope::example_ipv6_udp(0xc000, udp_port::ROCE_V2),
    },
    Subject {
        title: "roce-v1",
        protocol: "roce-v1",
        single: "RC RDMA WRITE Only",
        unit: ETHERNET,
        envelope: Envelope::example_roce_v1,
    },
    Subject {
        title: "infiniband",
        protocol: "infiniband",
        single: "RC RDMA WRITE Only",
        unit: Some(Unit::Frame(Link::InfiniBand)),
        envelope: || Envelope::example_infiniband(false),
    },
    Subject { title: "iwarp", protocol: "iwarp", single: "Write", unit: Some(Unit::Fpdu), envelope: Envelope::default },
    Subject {
        title: "srdma",
        protocol: "srdma",
        single: "WRITE",
        unit: Some(Unit::Datagram),
        envelope: Envelope::default,
    },
];

/// A packet of a stream.
struct Packet {
    unit: Unit,
    protocol: ProtocolId,
    opcode: String,
    bytes: Vec<u8>,
}

/// Packets behind each other in one buffer, as a ring of a link has them.
#[derive(Default)]
struct Stream {
    bytes: Vec<u8>,
    packets: Vec<Placed>,
}

#[derive(Clone, Copy)]
struct Placed {
    unit: Unit,
    protocol: ProtocolId,
    start: usize,
    end: usize,
}

impl Stream {
    fn add<'a>(&mut self, packets: impl IntoIterator<Item = &'a Packet>) {
        for packet in packets {
            let start = self.bytes.len();
            self.bytes.extend_from_slice(&packet.bytes);
            let end = self.bytes.len();
            self.packets.push(Placed { unit: packet.unit, protocol: packet.protocol, start, end });
        }
    }

    fn repeat(packet: &Packet) -> Stream {
        let mut stream = Stream::default();
        stream.add(std::iter::repeat_n(packet, STREAM_PACKETS));
        stream
    }

    fn shuffled(packets: &[Packet]) -> Stream {
        let mut stream = Stream::default();
        stream.add(packets);
        stream.shuffle();
        stream
    }

    /// The same order in every run.
    fn shuffle(&mut self) {
        let mut random = Random(1);
        for last in (1..self.packets.len()).rev() {
            self.packets.swap(last, random.below(last + 1));
        }
    }

    /// Does `work` with every packet; nanoseconds a packet.
    #[inline(always)]
    fn pass(&self, mut work: impl FnMut(&Placed, &[u8])) -> f64 {
        let slice = |packet: &Placed| self.bytes.get(packet.start..packet.end).unwrap_or(&[]);
        let packets: Vec<(&Placed, &[u8])> = self.packets.iter().map(|packet| (packet, slice(packet))).collect();
        let start = Instant::now();
        for (packet, bytes) in &packets {
            work(packet, black_box(bytes));
        }
        start.elapsed().as_nanos() as f64 / packets.len() as f64
    }
}

/// Marsaglia's xorshift: the packets need variety, not quality.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
}

struct Bench<'a> {
    tables: &'a Tables,
    checksums: &'a Checksums,
    rounds: usize,
}

impl Bench<'_> {
    /// A stream's worth of packets: every opcode in turn, with random fields and payloads.
    fn packets(&self, subject: &Subject) -> Result<Vec<Packet>, String> {
        let unit = subject.unit.unwrap_or(Unit::Datagram);
        let protocol = self.tables.find(subject.protocol).ok_or("a built-in protocol is missing")?;
        let opcodes = self.tables.protocol(protocol).into_iter().flat_map(|protocol| protocol.opcodes());
        let opcodes: Vec<OpcodeInfo<'_>> = opcodes.collect();
        let mut random = Random(0x5eed);
        let mut packets = Vec::new();
        for opcode in opcodes.iter().cycle().take(STREAM_PACKETS) {
            let bytes = self.packet(subject, unit, protocol, opcode, &mut random)?;
            packets.push(Packet { unit, protocol, opcode: opcode.name().to_string(), bytes });
        }
        Ok(packets)
    }

    fn packet(
        &self,
        subject: &Subject,
        unit: Unit,
        protocol: ProtocolId,
        opcode: &OpcodeInfo<'_>,
        random: &mut Random,
    ) -> Result<Vec<u8>, String> {
        let payload: Vec<u8> = (0..random.below(PAYLOAD_MAX_BYTES)).map(|_| random.next() as u8).collect();
        let mut command = opcode.command();
        for name in Flags::names() {
            // A flag with which the opcode stays the same is one that its packets carry in a field.
            let flag = Flags::from_name(name).unwrap_or_default();
            let with = Command::new(command.kind(), command.flags() | flag);
            if random.below(2) == 1 && self.tables.opcode_for(protocol, &with) == Some(opcode.id) {
                command = with;
            }
        }
        for slot in command.slots.iter_mut().skip(1) {
            // Narrow enough for the narrowest field.
            *slot = random.next() & 3;
        }
        let mut room = [0; 512];
        let encode = |room: &mut [u8], outer: &Outer<'_>| {
            let length = self.tables.encode(protocol, &command, &payload, outer, room);
            length.map_err(|error| format!("{} {}: {error}", subject.title, opcode.name()))
        };
        let length = encode(&mut room, &Outer::default())?;
        let Unit::Frame(link) = unit else { return Ok(room.get(..length).unwrap_or(&[]).to_vec()) };
        let mut envelope = (subject.envelope)();
        envelope.fit(length).map_err(|error| error.to_string())?;
        let mut frame = envelope.emit(length).map_err(|error| error.to_string())?;
        let path = walk(link, &frame).map_err(|error| error.to_string())?;
        encode(&mut room, &path.outer(&frame))?;
        if let (Some(to), Some(from)) = (frame.get_mut(path.start..), room.get(..length)) {
            to.copy_from_slice(from);
        }
        Ok(frame)
    }

    /// `unit`: what all packets of the stream are, when they are one kind; then no pass looks.
    fn row(&self, protocol: &'static str, stream: &'static str, packets: &Stream, unit: Option<Unit>) -> Row {
        let (headers, checksums) = match unit {
            Some(Unit::Frame(Link::InfiniBand)) => self.figures(packets, |_| Unit::Frame(Link::InfiniBand)),
            Some(Unit::Frame(_)) => self.figures(packets, |_| Unit::Frame(Link::Ethernet)),
            Some(Unit::Fpdu) => self.figures(packets, |_| Unit::Fpdu),
            Some(Unit::Datagram) => self.figures(packets, |_| Unit::Datagram),
            None => self.figures(packets, |packet| packet.unit),
        };
        Row { protocol, stream, packets: packets.packets.len(), headers, checksums }
    }

    fn figures(&self, stream: &Stream, unit: impl Fn(&Placed) -> Unit + Copy) -> (Figures, Figures) {
        (self.compare::<false>(stream, unit), self.compare::<true>(stream, unit))
    }

    fn compare<const VERIFY: bool>(&self, stream: &Stream, unit: impl Fn(&Placed) -> Unit + Copy) -> Figures {
        let mut by_hand = Vec::with_capacity(self.rounds);
        let mut tables = Vec::with_capacity(self.rounds);
        for round in 0..self.rounds {
            if round % 2 == 0 {
                by_hand.push(self.by_hand::<VERIFY>(stream, unit));
                tables.push(self.by_tables::<VERIFY>(stream, unit));
            } else {
                tables.push(self.by_tables::<VERIFY>(stream, unit));
                by_hand.push(self.by_hand::<VERIFY>(stream, unit));
            }
        }
        Figures { by_hand: median(by_hand), tables: median(tables) }
    }

    #[inline(never)]
    fn by_hand<const VERIFY: bool>(&self, stream: &Stream, unit: impl Fn(&Placed) -> Unit) -> f64 {
        let mut out = oracle::Decoded::default();
        stream.pass(|packet, bytes| {
            match unit(packet) {
                Unit::Frame(link) => {
                    let found = oracle::roce(link, bytes, &mut out);
                    if let (true, Ok(found)) = (VERIFY, &found) {
                        black_box(self.checksums.roce(bytes, found));
                    }
                    black_box(found.is_ok());
                }
                Unit::Fpdu => {
                    black_box(oracle::iwarp(bytes, &mut out).is_ok());
                    if VERIFY {
                        black_box(self.checksums.iwarp(bytes));
                    }
                }
                Unit::Datagram => {
                    black_box(oracle::srdma(bytes, &mut out).is_ok());
                    if VERIFY {
                        black_box(self.checksums.srdma(bytes));
                    }
                }
            }
            black_box(&mut out);
        })
    }

    #[inline(never)]
    fn by_tables<const VERIFY: bool>(&self, stream: &Stream, unit: impl Fn(&Placed) -> Unit) -> f64 {
        let mut out = Decoded::default();
        let tables = self.tables;
        stream.pass(|packet, bytes| {
            match unit(packet) {
                Unit::Frame(link) => {
                    let Ok(path) = walk(link, bytes) else { return };
                    let Some(protocol) = tables.identify(&path.seen) else { return };
                    let payload = path.payload(bytes);
                    black_box(tables.decode(protocol, payload, &mut out).is_ok());
                    if VERIFY {
                        black_box(tables.verify(&out, payload, &path.outer(bytes)));
                    }
                }
                Unit::Fpdu | Unit::Datagram => {
                    black_box(tables.decode(packet.protocol, bytes, &mut out).is_ok());
                    if VERIFY {
                        black_box(tables.verify(&out, bytes, &Outer::default()));
                    }
                }
            }
            black_box(&mut out);
        })
    }
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

impl Report {
    /// Writes a table, or with `--json` one object a line.
    pub(crate) fn write(&self, options: &Options, out: &mut dyn Write) -> io::Result<()> {
        if options.json {
            return self.rows.iter().try_for_each(|row| writeln!(out, "{}", row.json()));
        }
        writeln!(out, "ns a packet, medians of {} rounds", options.rounds)?;
        writeln!(out, "{:29} {:^25}   {:^25}", "", "headers only", "with checksums")?;
        writeln!(
            out,
            "{:13} {:18} {:>7} {:>8} {:>6}   {:>8} {:>8} {:>6}",
            "protocol", "stream", "by hand", "tables", "ratio", "by hand", "tables", "ratio"
        )?;
        for row in &self.rows {
            write!(out, "{:13} {:18}", row.protocol, row.stream)?;
            for figures in [row.headers, row.checksums] {
                write!(out, " {:7.1} {:8.1} {:6.2}  ", figures.by_hand, figures.tables, figures.ratio())?;
            }
            writeln!(out)?;
        }
        let Some(all) = self.rows.last() else { return Ok(()) };
        let rate = |ns: f64| 1000.0 / ns;
        writeln!(
            out,
            "all protocols mixed: {:.1} million packets/s by tables, {:.1} by hand; with checksums {:.1} and {:.1}",
            rate(all.headers.tables),
            rate(all.headers.by_hand),
            rate(all.checksums.tables),
            rate(all.checksums.by_hand)
        )
    }
}

impl Row {
    fn json(&self) -> Value {
        let Row { protocol, stream, packets, .. } = self;
        let [headers, checksums] = [self.headers, self.checksums].map(|figures| {
            json!({
                "by_hand_ns": decimal(figures.by_hand, 2),
                "tables_ns": decimal(figures.tables, 2),
                "ratio": decimal(figures.ratio(), 3),
            })
        });
        json!({
            "protocol": protocol, "stream": stream, "packets": packets, "headers": headers, "checksums": checksums,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_packet_of_every_stream_is_taken_by_both() {
        let tables = Tables::builtin().unwrap();
        let checksums = Checksums::new().unwrap();
        let bench = Bench { tables: &tables, checksums: &checksums, rounds: 1 };
        for subject in &SUBJECTS {
            for packet in bench.packets(subject).unwrap() {
                let mut by_hand = oracle::Decoded::default();
                let mut by_tables = Decoded::default();
                match packet.unit {
                    Unit::Frame(link) => {
                        oracle::roce(link, &packet.bytes, &mut by_hand).unwrap();
                        let path = walk(link, &packet.bytes).unwrap();
                        assert_eq!(tables.identify(&path.seen), Some(packet.protocol));
                        let payload = path.payload(&packet.bytes);
                        tables.decode(packet.protocol, payload, &mut by_tables).unwrap();
                    }
                    Unit::Fpdu => {
                        oracle::iwarp(&packet.bytes, &mut by_hand).unwrap();
                        tables.decode(packet.protocol, &packet.bytes, &mut by_tables).unwrap();
                    }
                    Unit::Datagram => {
                        oracle::srdma(&packet.bytes, &mut by_hand).unwrap();
                        tables.decode(packet.protocol, &packet.bytes, &mut by_tables).unwrap();
                    }
                }
                assert_eq!(by_hand.command, by_tables.command, "{} {}", subject.title, packet.opcode);
            }
        }
    }

    #[test]
    fn a_report_has_every_row() {
        let options = Options { rounds: 1, json: true };
        let report = decode(&options).unwrap();
        let mut text = Vec::new();
        report.write(&options, &mut text).unwrap();
        assert_eq!(String::from_utf8(text).unwrap().lines().count(), 2 * SUBJECTS.len() + 1);
    }
}
