//! The tables against the hand-written decoders, and against themselves in both directions, on packets of every opcode
//! of every protocol: as made, cut at every byte, and with bits flipped.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "clippy.toml allows them in tests, but not in the functions that tests call"
)]

use proptest::prelude::*;

use weft_wire::capture;
use weft_wire::envelope::{Envelope, Outside};
use weft_wire::graph::{self, LayerKind, Path};
use weft_wire::header::{Ethernet, Fpdu, Grh, Ipv6, Lrh, Udp, Vlan, ether_type, ip_protocol, link_next_header};
use weft_wire::oracle;
use weft_wire::table::{Decoded, Link, OpcodeId, OpcodeInfo, Outer, ProtocolId, Tables};

const ROOM: usize = 1024;

fn tables() -> Tables {
    Tables::builtin().unwrap_or_else(|error| panic!("{error}"))
}

/// Both outcomes in the same words.
fn opened(decoded: &Decoded) -> oracle::Decoded {
    oracle::Decoded {
        header_length: decoded.header_length,
        trim: decoded.trim,
        payload_length: decoded.payload_length,
        command: decoded.command,
    }
}

/// Decodes `bytes` of a protocol that is cut out already by both, and holds one against the other.
fn agree_on_bytes(tables: &Tables, protocol: ProtocolId, bytes: &[u8]) -> Option<Decoded> {
    let mut by_tables = Decoded::default();
    let mut by_hand = oracle::Decoded::default();
    let one = tables.decode(protocol, bytes, &mut by_tables);
    let two = match tables.protocol(protocol).unwrap().name() {
        "iwarp" => oracle::iwarp(bytes, &mut by_hand),
        "mpa" => oracle::mpa(bytes, &mut by_hand),
        "srdma" => oracle::srdma(bytes, &mut by_hand),
        other => panic!("{other} comes in frames"),
    };
    assert_eq!(one.is_ok(), two.is_ok(), "tables {one:?}, by hand {two:?}: {bytes:02x?}");
    one.ok()?;
    assert_eq!(opened(&by_tables), by_hand, "{bytes:02x?}");
    Some(by_tables)
}

/// Decodes a frame by both. A frame in a tunnel is only for the tables.
fn agree_on_frame(tables: &Tables, link: Link, frame: &[u8]) -> Option<(Path, Decoded)> {
    let mut by_hand = oracle::Decoded::default();
    let two = oracle::roce(link, frame, &mut by_hand);
    let one = graph::walk(link, frame).ok().and_then(|path| {
        let protocol = tables.identify(&path.seen)?;
        let mut decoded = Decoded::default();
        tables.decode(protocol, path.payload(frame), &mut decoded).ok()?;
        Some((path, decoded))
    });
    if let Some((path, _)) = &one
        && path.layers().iter().filter(|l| matches!(l.kind, LayerKind::Ipv4 | LayerKind::Ipv6)).count() > 1
    {
        return None;
    }
    assert_eq!(one.is_some(), two.is_ok(), "tables {one:?}, by hand {two:?}: {link:?} {frame:02x?}");
    let (path, decoded) = one?;
    let found = two.unwrap();
    let name = match found.transport {
        oracle::Transport::RoceV2 => "roce-v2",
        oracle::Transport::RoceV1 => "roce-v1",
        oracle::Transport::InfiniBand => "infiniband",
    };
    assert_eq!(tables.protocol(decoded.protocol).unwrap().name(), name);
    assert_eq!((path.start, path.end), (found.start, found.end));
    assert_eq!(opened(&decoded), by_hand, "{link:?} {frame:02x?}");
    Some((path, decoded))
}

/// A small generator, so that one number of proptest's stands for a whole packet.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

/// The bits of an opcode's headers that may be anything: those that can be flipped alone and leave the packet what it
/// is and its payload as long as it is. What selects the opcode, what a check fixes, and lengths are left out.
fn free_bits(tables: &Tables, protocol: ProtocolId, opcode: &OpcodeInfo<'_>, packet: &[u8]) -> Vec<u8> {
    let mut changed = packet.to_vec();
    let mut free = vec![0u8; opcode.header_length()];
    let mut original = Decoded::default();
    tables.decode(protocol, packet, &mut original).unwrap();
    for bit in 0..free.len() * 8 {
        let (byte, mask) = (bit / 8, 0x80 >> (bit % 8));
        changed[byte] ^= mask;
        let mut decoded = Decoded::default();
        let taken = tables.decode(protocol, &changed, &mut decoded).is_ok();
        if taken && decoded.opcode == opcode.id && decoded.payload_length == original.payload_length {
            free[byte] |= mask;
        }
        changed[byte] ^= mask;
    }
    free
}

/// An opcode, and what packets of it are made from.
struct Mould {
    protocol: ProtocolId,
    opcode: OpcodeId,
    name: String,
    headers: Vec<u8>,
    free: Vec<u8>,
}

fn moulds(tables: &Tables, names: &[&str]) -> Vec<Mould> {
    let mut moulds = Vec::new();
    for (protocol, of) in tables.protocols().filter(|(_, of)| names.contains(&of.name())) {
        for opcode in of.opcodes() {
            let mut packet = [0; ROOM];
            let length = tables.encode(protocol, &opcode.command(), &[0; 8], &Outer::default(), &mut packet).unwrap();
            let free = free_bits(tables, protocol, &opcode, &packet[..length]);
            let headers = packet[..opcode.header_length()].to_vec();
            let name = format!("{} {}", of.name(), opcode.name());
            moulds.push(Mould { protocol, opcode: opcode.id, name, headers, free });
        }
    }
    assert!(!moulds.is_empty());
    moulds
}

impl Mould {
    /// A packet with random headers. The lengths in it are what the payload asks for, as encoding a command finds them.
    fn cast(&self, tables: &Tables, random: &mut Random, payload: &[u8], outer: &Outer<'_>) -> Vec<u8> {
        let mut packet = [0; ROOM];
        let command = tables.protocol(self.protocol).unwrap().opcode(self.opcode).unwrap().command();
        tables.encode(self.protocol, &command, payload, &Outer::default(), &mut packet).unwrap();
        let mut headers = packet[..self.headers.len()].to_vec();
        for (byte, free) in headers.iter_mut().zip(&self.free) {
            *byte ^= random.next() as u8 & free;
        }
        let fields = tables.fields(self.protocol, self.opcode, &headers).unwrap();
        let length = tables.encode_fields(self.protocol, self.opcode, &fields, payload, outer, &mut packet).unwrap();
        assert_eq!(&packet[..headers.len()], headers, "{}: fields there and back", self.name);
        packet[..length].to_vec()
    }

    /// What must hold of every packet that was cast.
    fn check(&self, tables: &Tables, packet: &[u8], payload: &[u8], decoded: &Decoded, outer: &Outer<'_>) {
        assert_eq!((decoded.protocol, decoded.opcode), (self.protocol, self.opcode), "{}", self.name);
        assert_eq!(decoded.payload(packet), payload, "{}", self.name);
        assert_eq!(packet.len(), usize::from(decoded.header_length) + payload.len() + usize::from(decoded.trim));
        assert!(tables.verify(decoded, packet, outer).is_intact(), "{}", self.name);

        let mut again = [0xa5; ROOM];
        let fields = tables.fields(self.protocol, self.opcode, packet).unwrap();
        let length = tables.encode_fields(self.protocol, self.opcode, &fields, payload, outer, &mut again).unwrap();
        assert_eq!(&again[..length], packet, "{}: encode after decode, by fields", self.name);

        assert_eq!(tables.opcode_for(self.protocol, &decoded.command), Some(self.opcode), "{}", self.name);
        let length = tables.encode(self.protocol, &decoded.command, payload, outer, &mut again).unwrap();
        let mut back = Decoded::default();
        tables.decode(self.protocol, &again[..length], &mut back).unwrap();
        assert_eq!(back.command, decoded.command, "{}: decode after encode", self.name);
        assert_eq!(back.opcode, decoded.opcode, "{}", self.name);
        assert_eq!(back.payload(&again[..length]), payload, "{}", self.name);
        assert!(tables.verify(&back, &again[..length], outer).is_intact(), "{}", self.name);
    }
}

fn flip(random: &mut Random, bytes: &mut [u8]) {
    for _ in 0..=random.below(3) {
        let bit = random.below(bytes.len() * 8);
        bytes[bit / 8] ^= 0x80 >> (bit % 8);
    }
}

/// All headers that can stand in front of a protocol, chosen and filled at random.
fn envelope(protocol: &str, random: &mut Random) -> (Link, Envelope) {
    let mut bytes = || -> [u8; 16] {
        let (a, b) = (random.next().to_be_bytes(), random.next().to_be_bytes());
        [a, b].concat().try_into().unwrap()
    };
    let grh = |random: [u8; 16]| Grh {
        traffic_class: random[0],
        flow_label: 0x5_4321,
        payload_length: 0,
        next_header: Grh::TRANSPORT,
        hop_limit: random[1],
        source_gid: random,
        destination_gid: random.map(|byte| !byte),
    };
    let (a, b, c) = (bytes(), bytes(), bytes());
    let ethernet = |ethertype| Outside::Ethernet(Ethernet { destination: [2; 6], source: [4; 6], ethertype });
    let vlan = |ethertype| Outside::Vlan(Vlan { pcp: 3, dei: true, vid: 0x123, ethertype });
    let mut layers = Vec::new();
    let tags = [ether_type::QINQ, ether_type::VLAN];
    let tags = &tags[random.below(3)..];
    if protocol == "infiniband" {
        let global = random.below(2) == 1;
        let lnh = if global { link_next_header::GLOBAL } else { link_next_header::LOCAL };
        layers.push(Outside::Lrh(Lrh {
            vl: a[0] >> 4,
            lver: 0,
            sl: a[1] >> 4,
            reserved2: 0,
            lnh,
            dlid: 7,
            reserved5: 0,
            pktlen: 0,
            slid: 9,
        }));
        if global {
            layers.push(Outside::Grh(grh(b)));
        }
        return (Link::InfiniBand, Envelope { layers });
    }
    let without_link = protocol == "roce-v2" && random.below(4) == 0;
    let version_6 = random.below(2) == 1;
    let ethertype = match (protocol, version_6) {
        ("roce-v1", _) => ether_type::ROCE_V1,
        (_, true) => ether_type::IPV6,
        (_, false) => ether_type::IPV4,
    };
    if !without_link {
        let mut types: Vec<u16> = tags.to_vec();
        types.push(ethertype);
        layers.push(ethernet(types[0]));
        layers.extend(types[1..].iter().map(|next| vlan(*next)));
    }
    if protocol == "roce-v1" {
        layers.push(Outside::Grh(grh(b)));
        return (Link::Ethernet, Envelope { layers });
    }
    if version_6 {
        let extension = random.below(2) == 1;
        let next_header = if extension { 60 } else { ip_protocol::UDP };
        let (traffic_class, flow_label) = (a[0], 0x1_2345);
        let ip = Ipv6 {
            traffic_class,
            flow_label,
            payload_length: 0,
            next_header,
            hop_limit: a[1],
            source: b,
            destination: c,
        };
        layers.push(Outside::Ipv6(ip));
        if extension {
            layers.push(Outside::Ipv6Extension(vec![ip_protocol::UDP, 0, 1, 4, 0, 0, 0, 0]));
        }
    } else {
        let Some(Outside::Ipv4(mut ip, mut options)) = Envelope::example_ipv4(ip_protocol::UDP).layers.pop() else {
            panic!("an IPv4 header comes last");
        };
        if random.below(3) == 0 {
            ip.ihl = 7;
            options = vec![1; 8];
        }
        ip.identification = u16::from(a[0]);
        layers.push(Outside::Ipv4(ip, options));
    }
    layers.push(Outside::Udp(Udp {
        source_port: 0xc000 | u16::from(a[2]),
        destination_port: 4791,
        length: 0,
        checksum: 0,
    }));
    (if without_link { Link::Ip } else { Link::Ethernet }, Envelope { layers })
}

/// The frame around `length` bytes, and the way through it.
fn framed(link: Link, envelope: &Envelope, length: usize) -> Option<(Vec<u8>, Path)> {
    let mut envelope = envelope.clone();
    envelope.fit(length).unwrap();
    let frame = envelope.emit(length).unwrap();
    let path = graph::walk(link, &frame).ok()?;
    Some((frame, path))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn transports_in_frames(seed: u64, payload in proptest::collection::vec(any::<u8>(), 0..300)) {
        let tables = tables();
        let mut random = Random(seed);
        for mould in moulds(&tables, &["roce-v2", "roce-v1", "infiniband"]) {
            let name = tables.protocol(mould.protocol).unwrap().name();
            let (link, envelope) = envelope(name, &mut random);
            let length = mould.cast(&tables, &mut random, &payload, &Outer::default()).len();
            let (mut frame, path) = framed(link, &envelope, length).unwrap();
            let packet = mould.cast(&tables, &mut random, &payload, &path.outer(&frame));
            frame[path.start..].copy_from_slice(&packet);
            let (path, decoded) = agree_on_frame(&tables, link, &frame).unwrap();
            let outer = path.outer(&frame);
            mould.check(&tables, &packet, &payload, &decoded, &outer);
            let sums = oracle::Checksums::new().unwrap();
            let found = oracle::roce(link, &frame, &mut oracle::Decoded::default()).unwrap();
            prop_assert_eq!(&sums.roce(&frame, &found)[..], &tables.verify(&decoded, &packet, &outer).checked[..2]);
        }
    }

    #[test]
    fn units_and_datagrams(seed: u64, payload in proptest::collection::vec(any::<u8>(), 0..300)) {
        let tables = tables();
        let mut random = Random(seed);
        let sums = oracle::Checksums::new().unwrap();
        for mould in moulds(&tables, &["iwarp", "mpa", "srdma"]) {
            let outer = Outer::default();
            let packet = mould.cast(&tables, &mut random, &payload, &outer);
            let decoded = agree_on_bytes(&tables, mould.protocol, &packet).unwrap();
            mould.check(&tables, &packet, &payload, &decoded, &outer);
            let checked = tables.verify(&decoded, &packet, &outer).checked[0];
            match tables.protocol(mould.protocol).unwrap().name() {
                "iwarp" => prop_assert_eq!(sums.iwarp(&packet), checked),
                "srdma" => prop_assert_eq!(sums.srdma(&packet), checked),
                _ => {}
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn spoiled_frames(seed: u64, payload in proptest::collection::vec(any::<u8>(), 0..40)) {
        let tables = tables();
        let mut random = Random(seed);
        for mould in moulds(&tables, &["roce-v2", "roce-v1", "infiniband"]) {
            let (link, envelope) = envelope(tables.protocol(mould.protocol).unwrap().name(), &mut random);
            let packet = mould.cast(&tables, &mut random, &payload, &Outer::default());
            // The transport cut, the headers in front as they should be for it; then the frame cut.
            for length in 0..=packet.len() {
                let Some((mut frame, path)) = framed(link, &envelope, length) else { continue };
                frame[path.start..].copy_from_slice(&packet[..length]);
                agree_on_frame(&tables, link, &frame);
            }
            let (mut frame, path) = framed(link, &envelope, packet.len()).unwrap();
            frame[path.start..].copy_from_slice(&packet);
            for length in 0..frame.len() {
                agree_on_frame(&tables, link, &frame[..length]);
            }
            for _ in 0..60 {
                let mut spoiled = frame.clone();
                flip(&mut random, &mut spoiled);
                agree_on_frame(&tables, link, &spoiled);
            }
        }
    }

    #[test]
    fn spoiled_units_and_datagrams(seed: u64, payload in proptest::collection::vec(any::<u8>(), 0..40)) {
        let tables = tables();
        let mut random = Random(seed);
        for mould in moulds(&tables, &["iwarp", "mpa", "srdma"]) {
            let packet = mould.cast(&tables, &mut random, &payload, &Outer::default());
            for length in 0..packet.len() {
                agree_on_bytes(&tables, mould.protocol, &packet[..length]);
            }
            for _ in 0..100 {
                let mut spoiled = packet.clone();
                flip(&mut random, &mut spoiled);
                agree_on_bytes(&tables, mould.protocol, &spoiled);
            }
        }
    }

    #[test]
    fn noise(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let tables = tables();
        for name in ["iwarp", "mpa", "srdma"] {
            agree_on_bytes(&tables, tables.find(name).unwrap(), &bytes);
        }
        for link in [Link::Ethernet, Link::InfiniBand, Link::Ip] {
            agree_on_frame(&tables, link, &bytes);
        }
    }
}

fn frames(file: &std::path::Path) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(file).unwrap();
    let mut reader = capture::Reader::new();
    let mut rest = &bytes[..];
    let mut frames = Vec::new();
    loop {
        match reader.next(rest).unwrap() {
            capture::Step::NeedMore { .. } => return frames,
            capture::Step::Skip { consumed } => rest = &rest[consumed..],
            capture::Step::Packet { consumed, packet } => {
                frames.push(packet.data.to_vec());
                rest = &rest[consumed..];
            }
            capture::Step::Bad { error, .. } => panic!("{error}"),
        }
    }
}

/// What other implementations sent: RoCE packets, and the iWARP units of segments that begin with one.
#[test]
fn captured_packets() {
    let tables = tables();
    let (iwarp, mpa) = (tables.find("iwarp").unwrap(), tables.find("mpa").unwrap());
    let sums = oracle::Checksums::new().unwrap();
    let (mut roce, mut units, mut starts) = (0, 0, 0);
    for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../captures")).unwrap() {
        let file = file.unwrap().path();
        // The ERF records are of our own making.
        if file.extension().is_none_or(|extension| extension != "pcap") || file.ends_with("erf_infiniband.pcap") {
            continue;
        }
        for frame in frames(&file) {
            let path = graph::walk(Link::Ethernet, &frame).unwrap();
            if let Some((path, decoded)) = agree_on_frame(&tables, Link::Ethernet, &frame) {
                let found = oracle::roce(Link::Ethernet, &frame, &mut oracle::Decoded::default()).unwrap();
                let integrity = tables.verify(&decoded, path.payload(&frame), &path.outer(&frame));
                assert!(integrity.is_intact());
                assert_eq!(sums.roce(&frame, &found)[..], integrity.checked[..2]);
                roce += 1;
            } else if path.stop == graph::Stop::Tcp {
                let mut rest = path.payload(&frame);
                if rest.starts_with(b"MPA ID") {
                    agree_on_bytes(&tables, mpa, rest).unwrap();
                    starts += 1;
                    continue;
                }
                while let Ok(length) = Fpdu::parse(rest).map(|fpdu| fpdu.frame_len()) {
                    let Some((unit, behind)) = rest.split_at_checked(length) else { break };
                    let Some(decoded) = agree_on_bytes(&tables, iwarp, unit) else { break };
                    let checked = tables.verify(&decoded, unit, &Outer::default()).checked[0];
                    assert_eq!(sums.iwarp(unit), checked);
                    units += 1;
                    rest = behind;
                }
            }
        }
    }
    assert!(roce > 300 && units > 50 && starts >= 8, "{roce} packets, {units} units, {starts} start frames");
}
