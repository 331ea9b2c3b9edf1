//! tshark as the judge: runs it on a capture and reads what it found (PDML), and the rows that pair a field of ours
//! with one of tshark's.
//!
//! `roce` and `iwarp` hold the two tables of names and the comparisons; `build` makes frames and `wrappings` what goes
//! around them; `erf` has the capture of ERF records; `bitwise` has CRCs of its own that share nothing with the product.
#![expect(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "helpers of a test may fail loudly")]
#![expect(unreachable_pub, reason = "a test's modules are read by nobody else")]

pub mod bitwise;
pub mod build;
pub mod erf;
pub mod iwarp;
pub mod roce;
pub mod wrappings;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use weft_wire::capture::{LinkType, Reader, Step, write};
use weft_wire::table::{FieldValue, OpcodeId, ProtocolId, Tables};

/// Dissectors that guess at payloads. They call short ones malformed, so they are off.
const GUESSERS: [&str; 17] = [
    "drbd_rdma",
    "eth_over_ib",
    "fc_infiniband",
    "iser_ib_private",
    "iser_infiniband",
    "lnet_ib",
    "lnet_ib_cm_private",
    "mellanox_eoib",
    "nvme_rdma",
    "nvme_rdma_cm_private",
    "rpcrdma_infiniband",
    "rpcrdma_iwarp",
    "sdp_ib_private",
    "sdp_infiniband",
    "smb_direct_infiniband",
    "smb_direct_iwarp",
    "smcr_infiniband",
];

/// Below this severity tshark only chats (a SYN, a FIN).
const SEVERITY_WARNING: u32 = 0x0060_0000;

/// An element of tshark's output: a protocol, a header or a field.
#[derive(Debug, Default)]
pub struct Node {
    pub name: String,
    /// Bytes in hexadecimal; of a field of bits the bits alone, shifted down. Empty for what only groups others.
    pub value: String,
    pub show: String,
    pub showname: String,
    pub size: usize,
    pub children: Vec<Node>,
}

/// One packet as tshark sees it.
#[derive(Debug)]
pub struct Dissected {
    pub frame: u32,
    pub protocols: Vec<Node>,
}

/// What tshark should also check.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Sums {
    /// IP, UDP and TCP checksums too.
    Check,
    /// A capture from a sender that leaves them to its card.
    Ignore,
}

/// Runs tshark on a file.
pub fn dissect(file: &Path, sums: Sums) -> Vec<Dissected> {
    let mut command = Command::new("tshark");
    command.arg("-n").arg("-r").arg(file).args(["-T", "pdml"]);
    for guesser in GUESSERS {
        command.args(["--disable-heuristic", guesser]);
    }
    command.args(["-o", "iwarp_ddp_rdmap.reassemble_iwarp_rdma_send:FALSE"]);
    for protocol in ["ip", "udp", "tcp"] {
        let check = if sums == Sums::Check { "TRUE" } else { "FALSE" };
        command.arg("-o").arg(format!("{protocol}.check_checksum:{check}"));
    }
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => panic!("tshark does not start ({error}); install tshark: cargo xtask test does it"),
    };
    assert!(output.status.success(), "tshark on {file:?}: {}", String::from_utf8_lossy(&output.stderr));
    read_pdml(&String::from_utf8(output.stdout).unwrap())
}

/// PDML as tshark writes it: one tag a line.
fn read_pdml(text: &str) -> Vec<Dissected> {
    let mut packets = Vec::new();
    let mut open: Vec<Node> = Vec::new();
    for line in text.lines().map(str::trim) {
        if line == "<packet>" {
            open.push(Node::default());
        } else if line == "</packet>" {
            let packet = open.pop().unwrap();
            assert!(open.is_empty(), "tags do not match");
            let frame = packet.find("num").first().unwrap().show.parse().unwrap();
            packets.push(Dissected { frame, protocols: packet.children });
        } else if line == "</proto>" || line == "</field>" {
            let node = open.pop().unwrap();
            open.last_mut().unwrap().children.push(node);
        } else if line.starts_with("<proto ") || line.starts_with("<field ") {
            let node = Node {
                name: attribute(line, "name"),
                value: attribute(line, "value").to_lowercase(),
                show: attribute(line, "show"),
                showname: attribute(line, "showname"),
                size: attribute(line, "size").parse().unwrap_or(0),
                children: Vec::new(),
            };
            if line.ends_with("/>") {
                open.last_mut().unwrap().children.push(node);
            } else {
                open.push(node);
            }
        }
    }
    packets
}

fn attribute(line: &str, name: &str) -> String {
    let start = line.find(&format!(" {name}=\"")).map(|at| at + name.len() + 3);
    start.and_then(|start| line[start..].split('"').next()).unwrap_or("").to_string()
}

impl Node {
    /// This element and all below it with a name, in order.
    pub fn find<'a>(&'a self, name: &str) -> Vec<&'a Node> {
        let mut found = Vec::new();
        self.visit(&mut |node| {
            if node.name == name {
                found.push(node);
            }
        });
        found
    }

    fn visit<'a>(&'a self, see: &mut impl FnMut(&'a Node)) {
        see(self);
        for child in &self.children {
            child.visit(see);
        }
    }

    /// Everything below that has a value, in order; tshark's own remarks left out.
    pub fn values(&self) -> Vec<(String, String)> {
        let mut values = Vec::new();
        for child in self.children.iter().filter(|child| !child.name.starts_with("_ws.")) {
            child.visit(&mut |node| {
                if !node.value.is_empty() && !node.name.starts_with("_ws.") {
                    values.push((node.name.clone(), normal(&node.value)));
                }
            });
        }
        values
    }
}

impl Dissected {
    /// The layers of a protocol, outermost first.
    pub fn layers<'a>(&'a self, protocol: &'a str) -> impl Iterator<Item = &'a Node> {
        self.protocols.iter().filter(move |node| node.name == protocol)
    }

    /// Whatever tshark finds wrong: malformed packets, warnings and errors.
    pub fn complaints(&self) -> Vec<String> {
        let mut complaints = Vec::new();
        for protocol in &self.protocols {
            protocol.visit(&mut |node| {
                let severity = || node.find("_ws.expert.severity").first().map_or(0, |s| s.show.parse().unwrap());
                if node.name == "_ws.malformed" || node.name == "_ws.expert" && severity() >= SEVERITY_WARNING {
                    complaints.push(format!("{}: {}", protocol.name, node.showname));
                }
            });
        }
        complaints
    }
}

/// A number in hexadecimal without leading zeros, so that widths do not matter.
pub fn normal(hexadecimal: &str) -> String {
    let digits = hexadecimal.trim_start_matches('0');
    if digits.is_empty() { "0".into() } else { digits.into() }
}

pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The named fields of one packet, ours.
pub struct Ours(BTreeMap<String, (u128, u32)>);

impl Ours {
    pub fn of(tables: &Tables, protocol: ProtocolId, opcode: OpcodeId, bytes: &[u8]) -> Ours {
        let fields = tables.named_fields(protocol, opcode, bytes);
        Ours(
            fields
                .map(|(name, value)| {
                    let number = match value {
                        FieldValue::Number { value, width } => (u128::from(value), width as u32),
                        FieldValue::Bytes(bytes) => {
                            let value = bytes.iter().fold(0u128, |value, byte| value << 8 | u128::from(*byte));
                            (value, bytes.len() as u32 * 8)
                        }
                    };
                    (name.to_string(), number)
                })
                .collect(),
        )
    }

    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// The value of a field, which must be there.
    pub fn get(&self, name: &str) -> u64 {
        self.0.get(name).unwrap_or_else(|| panic!("we have no field {name}")).0 as u64
    }

    /// What tshark must show by these rows.
    pub fn expect(&self, rows: &[Row]) -> Vec<(String, String)> {
        let present = rows.iter().filter(|row| row.ours.iter().all(|name| self.has(name)) && (row.when)(self));
        present.map(|row| (row.theirs.to_string(), format!("{:x}", self.joined(row)))).collect()
    }

    /// Our fields that no row speaks of, and of which it is not known that tshark keeps them to itself.
    pub fn unmentioned<'r>(&self, rows: impl Iterator<Item = &'r Row> + Clone, unseen: &[(&str, &str)]) -> Vec<&str> {
        let in_rows = |name: &str| rows.clone().any(|row| row.ours.contains(&name) && (row.when)(self));
        let known = |name: &str| in_rows(name) || unseen.iter().any(|(field, _)| *field == name);
        self.0.keys().map(String::as_str).filter(|name| !known(name)).collect()
    }

    fn joined(&self, row: &Row) -> u128 {
        let fields = row.ours.iter().map(|name| self.0[*name]);
        let whole = fields.fold(0u128, |whole, (value, width)| whole << width | value);
        whole >> row.shift & row.mask
    }
}

/// One field of tshark's and where it is in ours.
pub struct Row {
    /// tshark's name.
    pub theirs: &'static str,
    /// Our names; several side by side are one field to tshark.
    pub ours: &'static [&'static str],
    shift: u32,
    mask: u128,
    /// Whether tshark shows it in a packet with these fields.
    when: fn(&Ours) -> bool,
}

/// tshark shows exactly these fields of ours.
pub const fn row(ours: &'static [&'static str], theirs: &'static str) -> Row {
    Row { theirs, ours, shift: 0, mask: u128::MAX, when: |_| true }
}

impl Row {
    /// tshark shows only some bits of it.
    pub const fn bits(mut self, shift: u32, width: u32) -> Row {
        self.shift = shift;
        self.mask = (1 << width) - 1;
        self
    }

    /// tshark shows it only then.
    pub const fn when(mut self, when: fn(&Ours) -> bool) -> Row {
        self.when = when;
        self
    }
}

/// A packet of a capture file.
pub struct Frame {
    pub link: LinkType,
    pub timestamp_ns: u64,
    pub original_length: u32,
    pub bytes: Vec<u8>,
}

/// All packets of a capture file.
pub fn frames(file: &Path) -> Vec<Frame> {
    let bytes = std::fs::read(file).unwrap_or_else(|error| panic!("{file:?}: {error}"));
    let mut reader = Reader::new();
    let mut rest = bytes.as_slice();
    let mut frames = Vec::new();
    loop {
        let consumed = match reader.next(rest).unwrap() {
            Step::NeedMore { .. } => break,
            Step::Skip { consumed } => consumed,
            Step::Packet { consumed, packet } => {
                frames.push(Frame {
                    link: packet.link_type,
                    timestamp_ns: packet.timestamp_ns,
                    original_length: packet.original_length,
                    bytes: packet.data.to_vec(),
                });
                consumed
            }
            Step::Bad { error, .. } => panic!("{file:?}: {error}"),
        };
        rest = &rest[consumed..];
    }
    reader.finish(rest).unwrap();
    frames
}

/// The captures that the tests ship with.
pub fn captures(begin: &[&str]) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../captures");
    let mut files: Vec<PathBuf> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| {
        let name = file.file_name().unwrap().to_str().unwrap();
        name.ends_with(".pcap") && begin.iter().any(|begin| name.starts_with(begin))
    });
    files.sort();
    files
}

/// Writes frames as a capture and has tshark read it. tshark 4.0 does not read link type 247 (InfiniBand), although it
/// knows the protocol, so that such frames are written as ERF.
pub fn judge(name: &str, link: LinkType, frames: &[Vec<u8>]) -> Vec<Dissected> {
    const MILLISECOND_NS: u64 = 1_000_000;
    let erf = link == LinkType::InfiniBand;
    let mut file = write::file_header(if erf { LinkType::Erf } else { link }).to_vec();
    for (number, frame) in (1u64..).zip(frames) {
        let time_ns = number * MILLISECOND_NS;
        let header = write::erf_header(time_ns, frame.len() as u16);
        let record = if erf { [&header[..], frame].concat() } else { frame.clone() };
        file.extend(write::record_header(time_ns, record.len() as u32));
        file.extend(record);
    }
    let path = std::env::temp_dir().join(format!("weft-tshark-{}-{name}.pcap", std::process::id()));
    std::fs::write(&path, file).unwrap();
    let dissected = dissect(&path, Sums::Check);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(dissected.len(), frames.len(), "{name}: tshark counts other packets");
    dissected
}
