//! The InfiniBand transport: our names beside tshark's, and the comparison of one packet.

use weft_wire::command::{Command, Slot};
use weft_wire::envelope::{Envelope, Outside};
use weft_wire::graph::{self, Path};
use weft_wire::header::{Grh, Lrh};
use weft_wire::table::{Checked, Decoded, Link, ProtocolId, Tables};

use super::{Dissected, Node, Ours, Row, hexadecimal, normal, row};

/// A header: our name, tshark's, and its fields in the order in which tshark shows them.
pub struct Header {
    ours: &'static str,
    theirs: &'static str,
    rows: &'static [Row],
}

/// Every header that tshark 4.0 knows. It has no XRCETH, no FETH, and nothing for a CNP.
pub const HEADERS: &[Header] = &[
    Header {
        ours: "bth",
        theirs: "infiniband.bth",
        rows: &[
            row(&["bth.opcode"], "infiniband.bth.opcode"),
            row(&["bth.solicited"], "infiniband.bth.se"),
            row(&["bth.migrate"], "infiniband.bth.m"),
            row(&["bth.pad"], "infiniband.bth.padcnt"),
            row(&["bth.version"], "infiniband.bth.tver"),
            row(&["bth.pkey"], "infiniband.bth.p_key"),
            // tshark 4.0 does not know the congestion bits: to it this byte is reserved.
            row(&["bth.fecn", "bth.becn", "bth.reserved6"], "infiniband.reserved"),
            row(&["bth.dest_qp"], "infiniband.bth.destqp"),
            row(&["bth.ack_request"], "infiniband.bth.a"),
            row(&["bth.reserved7"], "infiniband.bth.reserved7"),
            row(&["bth.psn"], "infiniband.bth.psn"),
        ],
    },
    Header {
        ours: "deth",
        theirs: "infiniband.deth",
        rows: &[
            row(&["deth.qkey"], "infiniband.deth.q_key"),
            row(&["deth.reserved"], "infiniband.reserved"),
            row(&["deth.source_qp"], "infiniband.deth.srcqp"),
        ],
    },
    Header {
        ours: "reth",
        theirs: "infiniband.reth",
        rows: &[
            row(&["reth.va"], "infiniband.reth.va"),
            row(&["reth.rkey"], "infiniband.reth.r_key"),
            row(&["reth.length"], "infiniband.reth.dmalen"),
        ],
    },
    Header {
        ours: "atomiceth",
        theirs: "infiniband.atomiceth",
        rows: &[
            // tshark lends the AtomicETH the names of the RETH.
            row(&["atomiceth.va"], "infiniband.reth.va"),
            row(&["atomiceth.rkey"], "infiniband.reth.r_key"),
            row(&["atomiceth.swap_or_add"], "infiniband.atomiceth.swapdt"),
            row(&["atomiceth.compare"], "infiniband.atomiceth.cmpdt"),
        ],
    },
    Header {
        ours: "aeth",
        theirs: "infiniband.aeth",
        rows: &[
            row(&["aeth.syndrome"], "infiniband.aeth.syndrome"),
            row(&["aeth.syndrome"], "infiniband.aeth.syndrome.reserved").bits(7, 1),
            row(&["aeth.syndrome"], "infiniband.aeth.syndrome.opcode").bits(5, 2),
            row(&["aeth.syndrome"], "infiniband.aeth.syndrome.credit_count").bits(0, 5).when(|o| syndrome(o) == 0),
            row(&["aeth.syndrome"], "infiniband.aeth.syndrome.timer").bits(0, 5).when(|o| syndrome(o) == 1),
            row(&["aeth.syndrome"], "infiniband.aeth.syndrome.reserved_value").bits(0, 5).when(|o| syndrome(o) == 2),
            row(&["aeth.syndrome"], "infiniband.aeth.syndrome.error_code").bits(0, 5).when(|o| syndrome(o) == 3),
            row(&["aeth.msn"], "infiniband.aeth.msn"),
        ],
    },
    Header {
        ours: "atomicacketh",
        theirs: "infiniband.atomicacketh",
        rows: &[row(&["atomicacketh.original"], "infiniband.atomicacketh.origremdt")],
    },
    Header { ours: "immdt", theirs: "infiniband.immdt", rows: &[row(&["immdt.immediate"], "infiniband.immdt")] },
    Header { ours: "ieth", theirs: "infiniband.ieth", rows: &[row(&["ieth.rkey"], "infiniband.ieth")] },
];

/// What a command's slots are to tshark: the first name that it shows is the one that holds the slot's value.
const SLOTS: &[(Slot, &[&str])] = &[
    (Slot::Queue, &["infiniband.bth.destqp"]),
    (Slot::Source, &["infiniband.deth.srcqp"]),
    (Slot::Sequence, &["infiniband.bth.psn"]),
    (Slot::Message, &["infiniband.aeth.msn"]),
    (Slot::Key, &["infiniband.reth.r_key", "infiniband.ieth", "infiniband.deth.q_key"]),
    (Slot::Address, &["infiniband.reth.va"]),
    (Slot::Length, &["infiniband.reth.dmalen"]),
    (Slot::Immediate, &["infiniband.immdt"]),
    (Slot::Status, &["infiniband.aeth.syndrome"]),
    (Slot::Argument0, &["infiniband.atomiceth.swapdt", "infiniband.atomicacketh.origremdt"]),
    (Slot::Argument1, &["infiniband.atomiceth.cmpdt"]),
];

/// How much tshark 4.0 understands of an opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knowledge {
    /// All its headers, payload and CRCs.
    Whole,
    /// The BTH; all behind it, CRCs too, is one "vendor specific" lump.
    Lump,
    /// The BTH alone can be compared.
    Mistaken,
}

/// The opcodes that tshark 4.0 does not know, and why. Everything else must agree to the last bit.
const UNKNOWN_OPCODES: &[(core::ops::RangeInclusive<u64>, Knowledge, &str)] = &[
    (0x1c..=0x1d, Knowledge::Lump, "FLUSH and ATOMIC WRITE came to InfiniBand (1.5) after its opcode list"),
    (0x40..=0x5f, Knowledge::Mistaken, "it reads reliable datagrams as Mellanox' DC, with a BTH of 20 bytes"),
    (0x81..=0x81, Knowledge::Lump, "CNP: its opcode list ends with UD"),
    (0xa0..=0xbf, Knowledge::Lump, "XRC: its opcode list ends with UD"),
];

pub fn knowledge(opcode: u64) -> Knowledge {
    UNKNOWN_OPCODES.iter().find(|(codes, ..)| codes.contains(&opcode)).map_or(Knowledge::Whole, |(_, known, _)| *known)
}

fn syndrome(ours: &Ours) -> u64 {
    ours.get("aeth.syndrome") >> 5 & 3
}

/// A frame of ours, taken apart.
pub struct Parsed {
    pub path: Path,
    pub protocol: ProtocolId,
    pub decoded: Decoded,
}

/// Walks, identifies and decodes; `None` when it is no packet of a known protocol.
pub fn parse(tables: &Tables, link: Link, frame: &[u8]) -> Option<Parsed> {
    let path = graph::walk(link, frame).unwrap_or_else(|error| panic!("{error}"));
    let protocol = tables.identify(&path.seen)?;
    let mut decoded = Decoded::default();
    tables.decode(protocol, path.payload(frame), &mut decoded).unwrap_or_else(|error| panic!("{error}"));
    Some(Parsed { path, protocol, decoded })
}

/// Compares one packet with what tshark found in it, in both directions, and verifies its CRCs. Returns how many
/// values were equal.
pub fn compare(tables: &Tables, frame: &[u8], parsed: &Parsed, seen: &Dissected) -> usize {
    let Parsed { path, protocol, decoded } = parsed;
    let bytes = path.payload(frame);
    let info = tables.protocol(*protocol).unwrap().opcode(decoded.opcode).unwrap();
    let ours = Ours::of(tables, *protocol, decoded.opcode, bytes);
    let layers: Vec<&Node> = seen.layers("infiniband").collect();
    let [layer] = layers.as_slice() else { panic!("tshark sees {} InfiniBand layers", layers.len()) };
    let shown: Vec<&Node> = layer.children.iter().filter(|child| !child.name.starts_with("_ws.")).collect();
    let mut expected = route_headers(path, frame);
    let known = knowledge(ours.get("bth.opcode"));

    if known == Knowledge::Mistaken {
        let bth = shown.iter().find(|node| node.name == "infiniband.bth").unwrap();
        let values = ours.expect(HEADERS[0].rows);
        assert_eq!(bth.values(), values, "BTH of a reliable datagram");
        assert_eq!(bth.size, 20, "tshark has learnt reliable datagrams: compare them wholly");
        return values.len();
    }

    let rest = &bytes[usize::from(decoded.header_length)..];
    let checksums = tables.protocol(*protocol).unwrap().checksum_names().count();
    let trailer = 4 + 2 * usize::from(checksums == 2);
    let (payload, crcs) = rest.split_at(rest.len() - trailer);
    let management = is_management(&ours) && !payload.is_empty();
    match known {
        Knowledge::Lump => {
            expected.push(("infiniband.bth".into(), ours.expect(HEADERS[0].rows)));
            let lump = ("infiniband.vendor".to_string(), normal(&hexadecimal(&bytes[12..])));
            expected.push(("infiniband.vendor".into(), vec![lump]));
        }
        _ => {
            let mut rows_used = Vec::new();
            for (name, ..) in info.headers() {
                let header = HEADERS.iter().find(|header| header.ours == name);
                let header = header.unwrap_or_else(|| panic!("tshark has no header {name}: list the opcode"));
                expected.push((header.theirs.into(), ours.expect(header.rows)));
                rows_used.extend(header.rows);
            }
            let forgotten = ours.unmentioned(rows_used.iter().copied(), &[]);
            assert!(forgotten.is_empty(), "no row of the table speaks of {forgotten:?}");
            expected.push(leaf("infiniband.invariant.crc", &crcs[..4]));
            if crcs.len() > 4 {
                expected.push(leaf("infiniband.variant.crc", &crcs[4..]));
            }
        }
    }
    // tshark takes the datagrams of queue pairs 0 and 1 apart; we leave that to their owner and compare the whole.
    let is_header = |node: &&&Node| expected.iter().any(|(name, _)| *name == node.name);
    let actual: Vec<_> = shown.iter().filter(|node| !management || is_header(node)).map(|node| section(node)).collect();
    assert_eq!(actual, expected);

    let carried: Vec<&Node> = if management {
        layer.find("infiniband.mad")
    } else {
        seen.protocols.iter().flat_map(|node| node.find("data.data")).collect()
    };
    let carried: String = carried.iter().map(|node| node.value.as_str()).collect();
    let lumped = known == Knowledge::Lump;
    assert_eq!(carried, if lumped { String::new() } else { hexadecimal(payload) }, "payload and pad");

    let integrity = tables.verify(decoded, bytes, &path.outer(frame));
    assert!(integrity.checked[..checksums].iter().all(|checked| *checked == Checked::Good), "{integrity:?}");
    expected.iter().map(|(_, values)| values.len()).sum::<usize>() + usize::from(!payload.is_empty())
}

/// Compares what tshark shows with the command that the packet was made from. Returns how many slots it shows.
pub fn compare_command(command: &Command, seen: &Dissected) -> usize {
    let layer = seen.layers("infiniband").next().unwrap();
    let mut shown = 0;
    for (slot, names) in SLOTS {
        let found = names.iter().find_map(|name| layer.find(name).pop());
        if let Some(node) = found {
            assert_eq!(normal(&node.value), format!("{:x}", command.slot(*slot)), "{slot:?} as {}", node.name);
            shown += 1;
        }
    }
    shown
}

/// Makes the frame again, from its headers and fields and then from its headers and command. Both must give the same
/// bytes.
pub fn rebuild(tables: &Tables, frame: &[u8], parsed: &Parsed) {
    let Parsed { path, protocol, decoded } = parsed;
    let bytes = path.payload(frame);
    let outer = path.outer(frame);
    let headers = Envelope::take(path, frame).unwrap().emit(0).unwrap();
    assert_eq!(headers.len(), path.start);
    let mut packet = vec![0xaa; bytes.len()];
    let fields = tables.fields(*protocol, decoded.opcode, bytes).unwrap();
    let whole = |packet: &[u8]| [&headers, packet, &frame[path.end..]].concat();

    let length = tables.encode_fields(*protocol, decoded.opcode, &fields, decoded.payload(bytes), &outer, &mut packet);
    assert_eq!(length, Ok(bytes.len()));
    assert_eq!(hexadecimal(&whole(&packet)), hexadecimal(frame), "from fields");

    packet.fill(0xaa);
    let length = tables.encode(*protocol, &decoded.command, decoded.payload(bytes), &outer, &mut packet);
    assert_eq!(length, Ok(bytes.len()));
    assert_eq!(hexadecimal(&whole(&packet)), hexadecimal(frame), "from the command {:?}", decoded.command);
}

/// A header with its values, or a field alone.
type Section = (String, Vec<(String, String)>);

fn section(node: &Node) -> Section {
    if node.children.is_empty() {
        return (node.name.clone(), vec![(node.name.clone(), normal(&node.value))]);
    }
    (node.name.clone(), node.values())
}

fn leaf(name: &str, bytes: &[u8]) -> Section {
    (name.into(), vec![(name.into(), normal(&hexadecimal(bytes)))])
}

fn is_management(ours: &Ours) -> bool {
    let queues = [ours.get("bth.dest_qp"), if ours.has("deth.source_qp") { ours.get("deth.source_qp") } else { 2 }];
    queues.iter().any(|queue| *queue < 2)
}

/// LRH and GRH, where there are any, in the hand-written structs' words.
fn route_headers(path: &Path, frame: &[u8]) -> Vec<Section> {
    let envelope = Envelope::take(path, frame).unwrap();
    let mut sections = Vec::new();
    for layer in &envelope.layers {
        match layer {
            Outside::Lrh(lrh) => sections.push(("infiniband.lrh".into(), lrh_values(lrh))),
            Outside::Grh(grh) => sections.push(("infiniband.grh".into(), grh_values(grh))),
            _ => {}
        }
    }
    sections
}

fn named(values: &[(&str, u64)]) -> Vec<(String, String)> {
    values.iter().map(|(name, value)| ((*name).to_string(), format!("{value:x}"))).collect()
}

fn lrh_values(lrh: &Lrh) -> Vec<(String, String)> {
    named(&[
        ("infiniband.lrh.vl", lrh.vl.into()),
        ("infiniband.lrh.lver", lrh.lver.into()),
        ("infiniband.lrh.sl", lrh.sl.into()),
        ("infiniband.lrh.reserved2", lrh.reserved2.into()),
        ("infiniband.lrh.lnh", lrh.lnh.into()),
        ("infiniband.lrh.dlid", lrh.dlid.into()),
        ("infiniband.lrh.reserved5", lrh.reserved5.into()),
        ("infiniband.lrh.pktlen", lrh.pktlen.into()),
        ("infiniband.lrh.slid", lrh.slid.into()),
    ])
}

fn grh_values(grh: &Grh) -> Vec<(String, String)> {
    let mut values = named(&[
        ("infiniband.grh.ipver", Grh::VERSION.into()),
        ("infiniband.grh.tclass", grh.traffic_class.into()),
        ("infiniband.grh.flowlabel", grh.flow_label.into()),
        ("infiniband.grh.paylen", grh.payload_length.into()),
        ("infiniband.grh.nxthdr", grh.next_header.into()),
        ("infiniband.grh.hoplmt", grh.hop_limit.into()),
    ]);
    values.push(("infiniband.grh.sgid".into(), normal(&hexadecimal(&grh.source_gid))));
    values.push(("infiniband.grh.dgid".into(), normal(&hexadecimal(&grh.destination_gid))));
    values
}
