//! Writes the seeds of the corpora, `corpus/TARGET/seed-*`: `cargo xtask seed-corpus`.
//!
//! From the packets in `captures/` come those that differ in layers or opcode, from the encoder one packet for each
//! opcode, from `protocols/` the definitions; tunnels, odd definitions and the rarer capture formats are made here.
//! Every seed is run before it is written. Files whose names do not begin with `seed-` were found by fuzzing, and stay.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use weft_fuzz::{capture, definition, engine, frames, graph, protocol, stream, tables};
use weft_wire::bundle;
use weft_wire::capture::{LinkType, Reader, Step, write};
use weft_wire::command::{Command, Flags, Kind, Slot};
use weft_wire::envelope::{Envelope, Outside};
use weft_wire::graph::{LayerKind, Stop, walk};
use weft_wire::header::{Ipv6, SrdmaSession, TcpView, Vlan, Vxlan};
use weft_wire::stream::{MpaConnection, MpaStep, Reassembly, Side};
use weft_wire::table::{BUILTIN, Decoded, Link, Outer, ProtocolId};

/// Captured packets longer than this add nothing but payload.
const CAPTURED_MAX_BYTES: usize = 400;
const PROTOCOLS: [&str; 6] = ["infiniband", "iwarp", "mpa", "roce-v1", "roce-v2", "srdma"];

fn main() {
    let mut seeds = Seeds::default();
    from_captures(&mut seeds);
    for name in PROTOCOLS {
        every_opcode(&mut seeds, name);
    }
    bundles(&mut seeds);
    tunnels(&mut seeds);
    definitions(&mut seeds);
    capture_files(&mut seeds);
    streams(&mut seeds);
    engines(&mut seeds);
    seeds.write();
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Target and name to bytes.
#[derive(Default)]
struct Seeds(BTreeMap<(String, String), Vec<u8>>);

impl Seeds {
    fn add(&mut self, target: &str, name: &str, bytes: &[u8]) {
        match target {
            "capture" => capture::run(bytes),
            "definition" => definition::run(bytes),
            "engine" => engine::run(bytes),
            "frames" => frames::run(bytes),
            "graph" => graph::run(bytes),
            "stream" => stream::run(bytes),
            name => protocol::run(name, bytes),
        }
        let kept = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
        let name: String = name.chars().map(kept).collect();
        self.0.insert((target.replace('-', "_"), format!("seed-{name}")), bytes.to_vec());
    }

    fn write(&self) {
        let corpus = root().join("corpus");
        for folder in fs::read_dir(&corpus).into_iter().flatten().flatten() {
            for file in fs::read_dir(folder.path()).into_iter().flatten().flatten() {
                if file.file_name().to_string_lossy().starts_with("seed-") {
                    fs::remove_file(file.path()).expect("an old seed can be removed");
                }
            }
        }
        for ((target, name), bytes) in &self.0 {
            let folder = corpus.join(target);
            fs::create_dir_all(&folder).expect("the corpus can be written");
            fs::write(folder.join(name), bytes).expect("the corpus can be written");
        }
        println!("{} seeds in {}", self.0.len(), corpus.display());
    }
}

/// Every capture with its packets, all of them Ethernet. What is in the ERF records was made by our encoder, as seeds are.
fn captures() -> Vec<(String, Vec<Vec<u8>>)> {
    let mut paths: Vec<_> = fs::read_dir(root().join("../captures"))
        .expect("captures/ is there")
        .map(|entry| entry.expect("captures/ can be read").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "pcap"))
        .filter(|path| !path.ends_with("erf_infiniband.pcap"))
        .collect();
    paths.sort();
    paths
        .iter()
        .map(|path| {
            let file = fs::read(path).expect("a capture can be read");
            let mut packets = Vec::new();
            let (mut reader, mut rest) = (Reader::new(), file.as_slice());
            loop {
                let consumed = match reader.next(rest).expect("our captures are well formed") {
                    Step::NeedMore { .. } => break,
                    Step::Skip { consumed } | Step::Bad { consumed, .. } => consumed,
                    Step::Packet { consumed, packet } => {
                        packets.push(packet.data.to_vec());
                        consumed
                    }
                };
                rest = &rest[consumed..];
            }
            (path.file_stem().expect("a file name").to_string_lossy().into_owned(), packets)
        })
        .collect()
}

/// The first short packet of each kind: layers, protocol, opcode.
fn from_captures(seeds: &mut Seeds) {
    let mut known = BTreeSet::new();
    for (_, packets) in captures() {
        let mut mpa = BTreeMap::new();
        for packet in packets {
            let path = walk(Link::Ethernet, &packet).expect("our captures are well formed");
            if path.stop == Stop::Tcp {
                tcp(seeds, &mut known, &mut mpa, &packet);
            }
            if packet.len() > CAPTURED_MAX_BYTES {
                continue;
            }
            let layers: String = path.layers().iter().map(|layer| format!("{} ", layer.kind)).collect();
            let mut kind = layers.clone();
            if let Some(id) = tables().identify(&path.seen) {
                let bytes = path.payload(&packet);
                let mut decoded = Decoded::default();
                tables().decode(id, bytes, &mut decoded).expect("our captures are well formed");
                let (protocol, opcode) = names(id, &decoded);
                kind += &opcode;
                if known.insert(format!("{protocol} {opcode}")) {
                    seeds.add(&protocol, &format!("captured {opcode}"), bytes);
                }
            }
            if known.insert(kind.clone()) {
                seeds.add("frames", &kind, &packet);
                if kind == layers || known.insert(layers.clone()) {
                    seeds.add("graph", &layers, &[&[0], packet.as_slice()].concat());
                }
            }
        }
    }
}

fn names(id: ProtocolId, decoded: &Decoded) -> (String, String) {
    let protocol = tables().protocol(id).expect("a known protocol");
    let opcode = protocol.opcode(decoded.opcode).expect("a known opcode");
    (protocol.name().to_string(), opcode.name().to_string())
}

type Connections = BTreeMap<[u16; 2], (MpaConnection, [Reassembly; 2])>;

/// The MPA units that a segment completes.
fn tcp(seeds: &mut Seeds, known: &mut BTreeSet<String>, connections: &mut Connections, packet: &[u8]) {
    let path = walk(Link::Ethernet, packet).expect("walked before");
    let view = path.innermost(LayerKind::Tcp).and_then(|at| TcpView::new(&packet[at..]).ok()).expect("it is TCP");
    let mut ports = [view.source_port(), view.destination_port()];
    ports.sort_unstable();
    let (mpa, directions) = connections.entry(ports).or_default();
    let from = usize::from(view.source_port() != ports[0]);
    let syn = view.flags() & weft_wire::header::tcp_flag::SYN != 0;
    directions[from].push(view.sequence(), syn, path.payload(packet)).expect("our captures have no long gaps");
    let mut scratch = Vec::new();
    for (side, direction) in [Side::A, Side::B].into_iter().zip(directions) {
        while !direction.ready().is_empty() {
            let Ok(MpaStep::Unit { consumed, unit }) = mpa.next(side, direction.ready(), &mut scratch) else { break };
            let id = tables().identify(&path.seen.in_stream(unit.kind)).expect("units are known");
            let mut decoded = Decoded::default();
            tables().decode(id, unit.bytes, &mut decoded).expect("our captures are well formed");
            let (protocol, opcode) = names(id, &decoded);
            if unit.bytes.len() <= CAPTURED_MAX_BYTES && known.insert(format!("{protocol} {opcode}")) {
                seeds.add(&protocol, &format!("captured {opcode}"), unit.bytes);
            }
            direction.consume(consumed);
        }
    }
}

/// One packet for each opcode, made by the encoder; every slot that it has is filled with something.
fn every_opcode(seeds: &mut Seeds, name: &str) {
    let id = tables().find(name).expect("a built-in protocol");
    let protocol = tables().protocol(id).expect("a built-in protocol");
    for opcode in protocol.opcodes() {
        // Some opcodes are for one queue only; the first that its checks let pass.
        let made = (0..4).find_map(|queue| {
            let mut command = opcode.command();
            for slot in Slot::names().filter_map(Slot::from_name).filter(|slot| opcode.fills(*slot)) {
                // Small, since some fields have two bits.
                command = command.with(slot, 1 + slot as u64 % 3);
            }
            if opcode.fills(Slot::Queue) {
                command = command.with(Slot::Queue, queue);
            }
            let mut out = [0; 256];
            let length = tables().encode(id, &command, b"weft!", &Outer::default(), &mut out).ok()?;
            let bytes = out[..length].to_vec();
            tables().decode(id, &bytes, &mut Decoded::default()).ok().map(|()| bytes)
        });
        let made = made.unwrap_or_else(|| panic!("{name} {} can be made", opcode.name()));
        seeds.add(name, opcode.name(), &made);
    }
}

/// SRDMA packets in one datagram: a good one, one that is cut, one whose second length lies.
fn bundles(seeds: &mut Seeds) {
    let id = tables().find("srdma").expect("a built-in protocol");
    let make = |kind: Kind, payload: &[u8]| {
        let mut out = [0; 512];
        let command = Command::new(kind, Flags::default());
        let length = tables().encode(id, &command, payload, &Outer::default(), &mut out).expect("there is room");
        out[..length].to_vec()
    };
    let entry = |kind: Kind, payload: &[u8]| {
        let packet = make(kind, payload);
        let bare = &packet[SrdmaSession::LEN..packet.len() - bundle::TRAILER_BYTES];
        [&(bare.len() as u16).to_be_bytes()[..], bare].concat()
    };
    let last = entry(Kind::Send, b"weft!");
    let two = [entry(Kind::Write, b"weft!"), last.clone()].concat();
    seeds.add("srdma", "bundle of two", &make(Kind::Bundle, &two));
    seeds.add("srdma", "bundle cut", &make(Kind::Bundle, &two[..two.len() - 3]));
    let mut lie = two.clone();
    lie[two.len() - last.len()] = 0xff;
    seeds.add("srdma", "bundle lie", &make(Kind::Bundle, &lie));
}

/// Headers that our captures do not have.
fn tunnels(seeds: &mut Seeds) {
    let inner = Envelope::example_udp(50_000, 4791);
    let gre_of = |protocol: u16| [&[0, 0][..], &protocol.to_be_bytes()].concat();
    let vlan =
        |ethertype| Outside::Vlan(Vlan::parse(&[&[0x20, 7][..], &u16::to_be_bytes(ethertype)].concat()).unwrap());
    let ipv6 = |next: u8| {
        let mut bytes = [0; Ipv6::LEN];
        bytes[0] = 0x60;
        bytes[6] = next;
        Outside::Ipv6(Ipv6::parse(&bytes).unwrap())
    };
    let mut kinds: Vec<(&str, u8, Vec<Outside>)> = Vec::new();
    let mut tagged = inner.clone();
    if let Outside::Ethernet(header) = &mut tagged.layers[0] {
        header.ethertype = 0x88a8;
    }
    tagged.layers.splice(1..1, [vlan(0x8100), vlan(0x0800)]);
    kinds.push(("qinq", 0, tagged.layers.clone()));
    let mut vxlan = Envelope::example_udp(1, 4789);
    vxlan.layers.push(Outside::Vxlan(Vxlan::parse(&[8, 0, 0, 0, 0, 0, 9, 0]).unwrap()));
    vxlan.layers.extend(inner.layers.clone());
    kinds.push(("vxlan", 0, vxlan.layers));
    let mut gre = Envelope::example_ipv4(47);
    gre.layers.push(Outside::Gre(weft_wire::header::Gre::parse(&gre_of(0x6558)).unwrap()));
    gre.layers.extend(inner.layers.clone());
    kinds.push(("gre-ethernet", 0, gre.layers));
    let mut gre = Envelope::example_ipv4(47);
    let full = [&[0xb0, 0, 8, 0][..], &[0; 12]].concat();
    gre.layers.push(Outside::Gre(weft_wire::header::Gre::parse(&full).unwrap()));
    gre.layers.extend(inner.layers[1..].to_vec());
    kinds.push(("gre-full", 0, gre.layers));
    let mut nested = Envelope::example_ipv4(4);
    nested.layers.extend(inner.layers[1..].to_vec());
    kinds.push(("ip-in-ip", 0, nested.layers));
    let udp = inner.layers[2].clone();
    let extensions = [vec![60, 0, 0, 0, 0, 0, 0, 0], vec![44, 0, 0, 0, 0, 0, 0, 0], vec![17, 0, 0, 0, 0, 0, 0, 1]];
    let mut six = vec![ipv6(0)];
    six.extend(extensions.map(Outside::Ipv6Extension));
    six.push(udp.clone());
    kinds.push(("ipv6-extensions", 2, six));
    let six_in_four = [Envelope::example_ipv4(41).layers[1..].to_vec(), vec![ipv6(17), udp]].concat();
    kinds.push(("ipv6-in-ipv4", 2, six_in_four));
    let packet = {
        let mut out = [0; 64];
        let id = tables().find("roce-v2").unwrap();
        let send = tables().protocol(id).unwrap().opcodes().find(|opcode| opcode.code() == 4).unwrap();
        let length = tables().encode(id, &send.command(), b"weft", &Outer::default(), &mut out).unwrap();
        out[..length].to_vec()
    };
    for (name, link, layers) in kinds {
        let mut envelope = Envelope { layers };
        envelope.fit(packet.len()).unwrap();
        let mut frame = envelope.emit(packet.len()).unwrap();
        let start = frame.len() - packet.len();
        frame[start..].copy_from_slice(&packet);
        seeds.add("graph", name, &[&[link], frame.as_slice()].concat());
        if link == 0 {
            seeds.add("frames", name, &frame);
        }
    }
    // InfiniBand, with and without a global route header; RoCEv1.
    let grh = |length: u8| [&[0x60, 0, 0, 0, 0, length, 0x1b, 64][..], &[1; 16], &[2; 16]].concat();
    let words = |bytes: usize| (bytes / 4) as u8;
    let local = [&[0, 2, 0, 1, 0, words(8 + packet.len()), 0, 2][..], &packet, &[0, 0]].concat();
    seeds.add("graph", "infiniband-local", &[&[1][..], &local].concat());
    let global = [&[0, 3, 0, 1, 0, words(48 + packet.len()), 0, 2][..], &grh(packet.len() as u8), &packet, &[0, 0]];
    seeds.add("graph", "infiniband-global", &[&[1][..], &global.concat()].concat());
    let ethernet = [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x89, 0x15][..], &grh(packet.len() as u8), &packet].concat();
    seeds.add("graph", "roce-v1", &[&[0][..], &ethernet].concat());
    seeds.add("frames", "roce-v1", &ethernet);
}

/// Odd field widths, both byte orders, a split opcode, derived values, a header checksum and a trailer.
const ODD: &str = r#"name = "odd"
check = ["a.version == 2", "a.length <= packet"]
[[recognise]]
udp_destination = 7
ip_version = 4
priority = 3
[select]
fields = ["a.high", "a.low"]
[header.a]
bytes = 9
[header.a.fields]
high = { bit = 0, width = 3 }
version = { bit = 3, width = 5, default = 2 }
low = { bit = 8, width = 2 }
pad = { bit = 10, width = 6, encode = "-payload & 7" }
length = { bit = 16, width = 13, endian = "little", encode = "headers + payload" }
flag = { bit = 32, width = 1 }
queue = { bit = 40, width = 11 }
sum = { bit = 56, width = 16 }
[header.b]
bytes = 16
[header.b.fields]
wide = { bit = 0, width = 128 }
[derive]
whole = "min(a.length, 100) * 2 + (a.low << 3 | 1) - ~0"
[bind]
queue = "a.queue"
length = ["payload"]
[flags]
ack_request = "a.flag"
[payload]
pad = "a.pad"
[transaction]
by = "match"
fields = ["a.queue", "a.version"]
[[checksum]]
name = "head"
algorithm = "internet"
over = "headers"
field = "a.sum"
[[checksum]]
name = "tail"
algorithm = { width = 24, polynomial = 0x864cfb, initial = 0xb704ce, reflected = false }
ones = ["a.version"]
[family.x]
code = 0x10
title = "X"
request = ["a"]
response = ["a", "b"]
[[opcode]]
code = 1
in = ["x"]
name = "go"
command = "write"
place = "next"
also = ["notify", { command = "verify", keep = ["queue"] }]
[[opcode]]
code = 2
in = ["x"]
response = true
name = "come"
command = "read_request"
split = true
check = ["transaction.end >= whole"]
transaction = { by = "none" }
checksums = ["tail"]
"#;

const SMALL: &str = r#"name = "s"
[[recognise]]
link = "ip"
[select]
fields = ["h.o"]
[header.h]
bytes = 1
[header.h.fields]
o = { bit = 0, width = 4 }
[[opcode]]
code = 1
name = "n"
headers = ["h"]
command = "send"
"#;

const EXTENDS: &str = r#"name = "e"
extends = "mpa"
[[recognise]]
session = true
[[opcode]]
code = 0x72
name = "n"
headers = ["start"]
command = "probe"
"#;

fn definitions(seeds: &mut Seeds) {
    let packet = [0x22, 0x42, 0, 25, 0x80, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10];
    for (name, text) in [("odd", ODD), ("small", SMALL), ("extends", EXTENDS)] {
        seeds.add("definition", name, &[text.as_bytes(), &[0], &packet].concat());
    }
    // The long ones, and those that extend them, would slow the target down.
    for source in BUILTIN.iter().filter(|source| ["iwarp.toml", "mpa.toml"].contains(&source.file)) {
        seeds.add("definition", source.file, source.text.as_bytes());
    }
}

fn capture_files(seeds: &mut Seeds) {
    // A pcap as we write it, and all the other magic numbers on the same records.
    let records = [&write::record_header(5, 4)[..], b"weft", &write::record_header(6, 0)].concat();
    let ours = [&write::file_header(LinkType::Ethernet)[..], &records].concat();
    seeds.add("capture", "nanoseconds", &[&[0][..], &ours].concat());
    for (name, magic) in [("microseconds", 0xa1b2_c3d4_u32), ("modified", 0xa1b2_cd34)] {
        seeds.add("capture", name, &[&[1][..], &magic.to_le_bytes(), &ours[4..]].concat());
    }
    let big: Vec<u8> = ours.as_chunks::<4>().0.iter().flat_map(|word| word.iter().rev().copied()).collect();
    seeds.add("capture", "big-endian", &[&[2][..], &big].concat());
    // Every block of pcapng.
    let block = |kind: u32, body: &[u8]| {
        let length = (12 + body.len() as u32).to_le_bytes();
        [&kind.to_le_bytes()[..], &length, body, &length].concat()
    };
    let section = block(0x0a0d_0d0a, &[&[0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0][..], &[0xff; 8]].concat());
    let options = [&[9, 0, 1, 0, 9, 0, 0, 0][..], &[14, 0, 8, 0, 1, 0, 0, 0, 0, 0, 0, 0], &[0; 4]].concat();
    let interface = block(1, &[&[1, 0, 0, 0, 0, 0, 4, 0][..], &options].concat());
    let enhanced =
        block(6, &[&[0; 4][..], &[0; 4], &[7, 0, 0, 0], &[5, 0, 0, 0], &[5, 0, 0, 0], b"hello\0\0\0"].concat());
    let simple = block(3, b"\x04\0\0\0weft");
    let old = block(2, &[&[0; 4][..], &[0; 8], &[4, 0, 0, 0], &[4, 0, 0, 0], b"weft"].concat());
    let all = [section.clone(), interface, enhanced, simple, old, block(5, &[0; 8])].concat();
    seeds.add("capture", "pcapng", &[&[3][..], &all].concat());
    seeds.add("capture", "pcapng-two-sections", &[&[4][..], &all, &section, &all[..all.len() - 5]].concat());
    seeds.add("capture", "pcapng-no-interface", &[&[5][..], &section, &block(3, b"\x04\0\0\0weft")].concat());
    erf_records(seeds);
    for (name, packets) in captures() {
        let mut file = write::file_header(LinkType::Ethernet).to_vec();
        for packet in packets.iter().filter(|packet| packet.len() < 100).take(2) {
            file.extend(write::record_header(1, packet.len() as u32));
            file.extend(packet);
        }
        if ["rxe_rc_send", "siw_crc_p2p_rping200"].contains(&name.as_str()) {
            seeds.add("capture", &name, &[&[6][..], &file].concat());
        }
    }
}

/// ERF records whose types, extension headers and lengths are right or wrong in every way.
fn erf_records(seeds: &mut Seeds) {
    let record = |kind: u8, extensions: &[u8], behind: &[u8]| {
        let extensions: Vec<u8> = extensions.iter().flat_map(|first| [*first, 1, 2, 3, 4, 5, 6, 7]).collect();
        let mut bytes = [&write::erf_header(1_500_000_001, 4)[..], &extensions, behind].concat();
        bytes[8] = kind;
        let length = bytes.len() as u16;
        bytes[10..12].copy_from_slice(&length.to_be_bytes());
        bytes
    };
    let with = |mut record: Vec<u8>, at: usize, value: u16| {
        record[at..at + 2].copy_from_slice(&value.to_be_bytes());
        record
    };
    let infiniband = record(21, &[], b"weft");
    let good = [
        infiniband.clone(),
        record(0x80 | 21, &[0x83, 0x85, 3], b"weft\0\0\0\0"),
        record(2, &[], b"\0\0weft"),
        record(0x80 | 16, &[3], b"\0\0weft"),
        record(25, &[], b"weft"),
    ];
    let bad = [
        with(infiniband.clone(), 10, 15),
        with(infiniband.clone(), 10, 0xffff),
        with(infiniband.clone(), 14, 0xffff),
        with(infiniband.clone(), 14, 0),
        infiniband[..11].to_vec(),
        record(2, &[], b"\0"),
        record(2, &[], b"\x0e\0weft"),
        record(0x80 | 21, &[0x83], b"weft"),
        record(0x80 | 21, &[0x83; 40], b"weft"),
    ];
    let pcap = |records: &[Vec<u8>]| {
        let with_header = |record: &Vec<u8>| [&write::record_header(7, record.len() as u32)[..], record].concat();
        [&[7][..], &write::file_header(LinkType::Erf), &records.iter().flat_map(with_header).collect::<Vec<u8>>()]
            .concat()
    };
    seeds.add("capture", "erf", &pcap(&good));
    seeds.add("capture", "erf-wrong", &pcap(&bad));
}

fn streams(seeds: &mut Seeds) {
    // Kind, fill; then for each side: private data, FPDUs, their lengths; then where sequence numbers begin.
    let connection = |kind: u8| [kind, 0x77, 3, 3, 0, 20, 2, 100, 0, 0, 0, 2, 4, 200, 0, 7, 20];
    let segments = [[0, 0, 9, 0, 90], [1, 0, 0, 0, 30], [0, 1, 0, 2, 0], [0, 0, 0, 0, 20], [1, 0, 5, 2, 0]].concat();
    for kind in 0..16 {
        let input = [&connection(kind)[..], &segments].concat();
        seeds.add("stream", &format!("connection-{kind}"), &input);
    }
    let start = |letter: u8| [&b"MPA ID Re"[..], &[letter], b" Frame", &[0x40, 1, 0, 0]].concat();
    let raw = |a: &[u8], b: &[u8]| {
        let parts = [&[0x80][..], &(a.len() as u16).to_be_bytes(), a, &(b.len() as u16).to_be_bytes(), b];
        [&parts.concat()[..], &[1], &segments].concat()
    };
    let fpdu = [&[0, 4, 1, 2, 3, 4, 0, 0][..], &[9; 4]].concat();
    let a = [start(b'q'), fpdu.clone(), fpdu].concat();
    seeds.add("stream", "raw", &raw(&a, &start(b'p')));
    let mut rejected = start(b'p');
    rejected[16] |= 0x20;
    seeds.add("stream", "raw-rejected", &raw(&a, &[rejected, vec![1]].concat()));
    seeds.add("stream", "raw-foreign", &raw(b"GET / HTTP/1.1", b"HTTP/1.1 200 OK"));
    let flood: Vec<u8> = (0..30).flat_map(|i| [i & 2, 1, i, 0xff, 0xff]).collect();
    seeds.add("stream", "flood", &[&[0xff][..], &flood].concat());
}

/// For each SRDMA opcode: asked for a ticket, then sent twice with one, then as an answer to what the engine sent.
fn engines(seeds: &mut Seeds) {
    let (Some(srdma), Some(protocol)) =
        (tables().find("srdma"), tables().find("srdma").and_then(|id| tables().protocol(id)))
    else {
        return;
    };
    for opcode in protocol.opcodes() {
        let mut packet = [0; 300];
        let command = opcode.command().with(Slot::Length, 8).with(Slot::Message, 1);
        let command = Command { slots: command.slots.map(|slot| slot) };
        let Ok(length) = tables().encode(srdma, &command, &[5; 8], &Outer::default(), &mut packet) else { continue };
        // Without session header and trailer.
        let Some(body) = packet.get(20..length.saturating_sub(4)) else { continue };
        let mut input = Vec::new();
        let first = engine::ENDPOINT | engine::KEY;
        let second = first | engine::TICKET | engine::PSN;
        for flags in [first, second, second, second | engine::LATER, engine::ANSWER, engine::ANSWER | engine::LATER] {
            input.extend_from_slice(&[flags, body.len() as u8]);
            input.extend_from_slice(body);
        }
        seeds.add("engine", opcode.name(), &input);
    }
}
