//! Loading: what is wrong is found, and told with its place. Decoding end to end is tested in `tests/`.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::*;
use crate::command::{Command, Flags, Kind};
use crate::transaction::{Find, Segment, Transaction, TransactionTable};

/// A small protocol; tests change lines of it.
const GOOD: &str = r#"name = "t"
[[recognise]]
udp_destination = 1
[select]
fields = ["h.op"]
[header.h]
bytes = 8
[header.h.fields]
op = { bit = 0, width = 8 }
queue = { bit = 8, width = 24 }
sequence = { bit = 32, width = 8 }
size = { bit = 40, width = 24 }
[bind]
queue = "h.queue"
sequence = "h.sequence"
length = "h.size"
[[opcode]]
code = 1
name = "One"
headers = ["h"]
command = "send"
"#;

fn load(text: &str) -> Result<Tables, DefinitionError> {
    Tables::load(&[Source { file: "t.toml", text }])
}

/// The error of `GOOD` with one piece of text replaced.
fn error(from: &str, to: &str) -> String {
    assert!(GOOD.contains(from), "{from}");
    load(&GOOD.replacen(from, to, 1)).map(|_| ()).unwrap_err().to_string()
}

#[test]
fn every_mistake_is_found_with_its_place() {
    load(GOOD).unwrap();
    for (from, to, wanted) in [
        ("name = \"t\"", "name = ", "t.toml:1:"),
        ("name = \"t\"", "nam = \"t\"", "t.toml:1:1: unknown name `nam`; did you mean `name`?"),
        ("name = \"t\"\n", "", "t.toml:1:1: `name` is missing; write for example"),
        ("name = \"t\"", "name = 7", "t.toml:1:8: `name` is a TOML integer; write a string"),
        ("name = \"t\"", "name = \"a b\"", "use letters, digits"),
        ("udp_destination = 1", "", "a rule with no condition"),
        ("udp_destination = 1", "udp_destination = 70000", "t.toml:3:19: `recognise.udp_destination` is 70000"),
        ("udp_destination = 1", "link = \"token-ring\"", "unknown link `token-ring`; known here: ethernet"),
        (
            "fields = [\"h.op\"]",
            "fields = [\"h.opp\"]",
            "t.toml:5:11: the header `h` has no field `opp`; did you mean `op`?",
        ),
        ("fields = [\"h.op\"]", "fields = [\"g.op\"]", "there is no header `g`"),
        ("fields = [\"h.op\"]", "fields = [\"h.queue\"]", "the opcode has 24 bits or more; at most 12"),
        (
            "bytes = 8",
            "bytes = 7",
            "t.toml:12:16: the field `size` ends at bit 64, outside of its header; the header has 56 bits",
        ),
        (
            "[bind]",
            "[payload]\npad = \"-payload & 3\"\n[bind]",
            "t.toml:14:7: the pad `-payload & 3` is not made of fields; use `header.field` and `headers` only",
        ),
        ("length = \"h.size\"", "length = \"transaction.end\"", "`length` is not in the packet: `transaction.end`"),
        (
            "bit = 32, width = 8",
            "bit = 32, width = 8, encode = \"packet\"",
            "the encode `packet` uses what is not known",
        ),
        (
            "bit = 32, width = 8",
            "bit = 32, width = 8, encode = \"h.size\"",
            "the encode `h.size` uses what is not known",
        ),
        (
            "bit = 0, width = 8",
            "bit = 0, width = 8, encode = \"3\"",
            "the select field `h.op` has an encode; leave it out",
        ),
        ("[bind]", "[[checksum]]\nname = \"c\"\nalgorithm = \"xor\"\nfield = \"h.op\"\n[bind]", "is a select field"),
        (
            "[bind]",
            "[[checksum]]\nname = \"c\"\nalgorithm = \"crc32\"\nover = \"headers\"\n\
             first = { bytes = 9, when = \"h.op\" }\n[bind]",
            "`first` of a checksum that is no plain trailer",
        ),
        (
            "[bind]",
            "[[checksum]]\nname = \"c\"\nalgorithm = \"crc32\"\nfirst = { bytes = 9, when = \"h.nothing\" }\n[bind]",
            "the header `h` has no field `nothing`",
        ),
        (
            "[bind]",
            "[[checksum]]\nname = \"c\"\nalgorithm = \"xor\"\nfield = \"h.sequence\"\n\
             [payload]\npad = \"h.sequence & 3\"\n[bind]",
            "t.toml:16:9: `h.sequence` holds a checksum and says how long the pad is",
        ),
        (
            "command = \"send\"",
            "command = \"send\"\ncheck = [\"h.op == 2\"]",
            "a check of `One` never holds: the code is 0x1",
        ),
        ("bytes = 8", "bytes = 0", "it must be 1 to"),
        ("bit = 8, width = 24", "bit = 4, width = 24", "overlap in byte 0"),
        ("bit = 8, width = 24", "bit = 8, width = 0", "`header.h.fields.queue.width` is 0; it must be 1 to"),
        (
            "bit = 8, width = 24",
            "bit = 8, widht = 24",
            "unknown name `header.h.fields.queue.widht`; did you mean `width`?",
        ),
        (
            "bit = 8, width = 24",
            "bit = 8, width = 24, endian = \"pdp\"",
            "unknown endian `pdp`; write \"big\" or \"little\"",
        ),
        ("bit = 8, width = 24", "bit = 8, width = 24, default = 0x1000000", "it must be 0 to 0xffffff"),
        ("queue = \"h.queue\"", "quue = \"h.queue\"", "a command has no `quue`; did you mean `queue`?"),
        ("queue = \"h.queue\"", "queue = \"h.queue +\"", "t.toml:14:9: in the expression `h.queue +`, character 10"),
        (
            "queue = \"h.queue\"",
            "queue = \"connection.colour\"",
            "unknown attribute `connection.colour`; known here: partition",
        ),
        ("queue = \"h.queue\"", "queue = \"command.queue\"", "only known when a packet is made"),
        ("queue = \"h.queue\"", "queue = \"nothing\"", "unknown name `nothing`"),
        ("queue = \"h.queue\"", "queue = \"h.queue << 8\"", "has no way back; give the field `h.queue` an `encode"),
        ("queue = \"h.queue\"", "operand = \"h.queue\"\ntag = \"h.size\"", "share one place in the command"),
        ("code = 1", "code = 300", "the code 0x12c of `One` does not fit the select fields; they have 8 bits"),
        (
            "command = \"send\"",
            "",
            "t.toml:17:1: the opcode `One` has no command; write for example `command = \"send\"`",
        ),
        ("command = \"send\"", "command = \"snd\"", "t.toml:21:11: unknown command `snd`; did you mean `send`?"),
        ("command = \"send\"", "command = \"send\"\nflags = [\"fist\"]", "unknown flag `fist`; did you mean `first`?"),
        ("command = \"send\"", "command = \"send\"\nin = [\"rc\"]", "there is no family `rc`"),
        ("command = \"send\"", "command = \"send\"\nplace = \"there\"", "unknown placement `there`"),
        (
            "command = \"send\"",
            "command = \"send\"\ncheck = [\"h.op == 256\"]",
            "can never hold; the field has values up to 0xff",
        ),
        ("command = \"send\"", "command = \"send\"\nchecksums = [\"x\"]", "there is no checksum `x`"),
        ("headers = [\"h\"]", "headers = [\"h\", \"h\"]", "comes twice"),
        ("headers = [\"h\"]", "headers = [\"x\"]", "t.toml:20:12: there is no header `x`"),
        ("headers = [\"h\"]", "headers = []", "has no headers"),
        ("name = \"t\"", "name = \"t\"\nextends = \"u\"", "there is no protocol `u` to extend"),
        ("name = \"t\"", "name = \"t\"\nextends = \"t\"", "extends itself"),
    ] {
        let text = error(from, to);
        assert!(text.contains(wanted), "`{to}`:\n  {text}\n  should say: {wanted}");
    }
}

#[test]
fn opcodes_must_differ() {
    let second = "[[opcode]]\ncode = 1\nname = \"Two\"\nheaders = [\"h\"]\ncommand = \"write\"\n";
    let text = load(&(GOOD.to_string() + second)).map(|_| ()).unwrap_err().to_string();
    assert!(text.contains("t.toml:22:1: the code 0x1 of `Two` is taken by `One`"), "{text}");
    let same = second.replace("code = 1", "code = 2").replace("write", "send");
    let text = load(&(GOOD.to_string() + &same)).map(|_| ()).unwrap_err().to_string();
    assert!(text.contains("become the same command with the same flags"), "{text}");
    let text = Tables::load(&[Source { file: "a", text: GOOD }, Source { file: "b", text: GOOD }]).map(|_| ());
    assert!(text.unwrap_err().to_string().contains("b:1:8: the protocol `t` is defined twice"));
}

#[test]
fn a_definition_replaces_the_builtin_of_its_name() {
    let tables = Tables::builtin_and(&[Source { file: "x", text: &GOOD.replace("\"t\"", "\"srdma\"") }]).unwrap();
    let id = tables.find("srdma").unwrap();
    assert_eq!(tables.protocols().count(), BUILTIN.len());
    assert_eq!(tables.protocol(id).unwrap().opcodes().count(), 1);
}

#[test]
fn hostile_files_are_refused() {
    let long = "#".repeat(crate::limits::DEFINITION_LENGTH_MAX_BYTES + 1);
    assert!(load(&long).is_err());
    assert!(load(&"[".repeat(100_000)).is_err());
    assert!(load(&("a = ".to_string() + &"[".repeat(100_000))).is_err());
    assert!(load(&"\u{0}".repeat(100)).is_err());
    let many: String = (0..2000)
        .map(|i| alloc::format!("[[opcode]]\ncode = {i}\nname = \"{i}\"\nheaders = [\"h\"]\ncommand = \"send\"\n"))
        .collect();
    assert!(load(&(GOOD.to_string() + &many)).is_err());
    // A chain of names, which a careless search for circles would walk for hours.
    let chain: String = (0..20_000).map(|i| alloc::format!("d{i} = \"d{} + 1\"\n", i + 1)).collect();
    let text = error("[bind]", &alloc::format!("[derive]\n{chain}[bind]"));
    assert!(text.contains("20000 derived values; at most 64"), "{text}");
    let rules = "[[recognise]]\nudp_source = 1\n".repeat(1000);
    assert!(error("[[recognise]]", &(rules + "[[recognise]]")).contains("has 1001 entries; at most 16"));
}

#[test]
fn a_long_read_and_an_operation_with_more_to_it_become_several_commands() {
    let tables = Tables::builtin().unwrap();
    let roce = tables.find("roce-v2").unwrap();
    let class = 1 << Flags::CLASS_SHIFT;
    let read = Command::new(Kind::ReadRequest, Flags(class))
        .with(Slot::Address, 0x1000)
        .with(Slot::Key, 7)
        .with(Slot::Length, 2500);
    let commands = |command: &Command, maximum: u64| -> Vec<Command> {
        let mut out = [0u8; 256];
        let length = tables.encode(roce, command, &[], &Outer::default(), &mut out).unwrap();
        let mut decoded = Decoded::default();
        tables.decode(roce, &out[..length], &mut decoded).unwrap();
        tables.commands(&decoded, maximum).collect()
    };
    assert_eq!(commands(&read, 4096).len(), 1);
    let pieces = commands(&read, 1000);
    let ranges: Vec<(u64, u64, u64)> = pieces.iter().map(|c| (c.address(), c.offset(), c.length())).collect();
    assert_eq!(ranges, [(0x1000, 0, 1000), (0x13e8, 1000, 1000), (0x17d0, 2000, 500)]);
    let marks: Vec<(bool, bool)> =
        pieces.iter().map(|c| (c.flags().contains(Flags::FIRST), c.flags().contains(Flags::LAST))).collect();
    assert_eq!(marks, [(true, false), (false, false), (false, true)]);

    let flags = Flags::FIRST | Flags::LAST | Flags::INVALIDATE | Flags(class);
    let send = Command::new(Kind::Send, flags).with(Slot::Key, 0x77).with(Slot::Queue, 3);
    let both = commands(&send, 4096);
    assert_eq!(both.iter().map(Command::kind).collect::<Vec<_>>(), [Kind::Send, Kind::Invalidate]);
    assert_eq!((both[1].key(), both[1].queue(), both[1].length()), (0x77, 3, 0));
}

/// A write whose packets come in the wrong order is placed right, though RoCE's middle packets have no address.
#[test]
fn packets_out_of_order_are_placed_by_sequence() {
    let tables = Tables::builtin().unwrap();
    let roce = tables.find("roce-v2").unwrap();
    let class = Flags(1 << Flags::CLASS_SHIFT);
    let packet = |flags: Flags, sequence: u64, payload: &[u8]| {
        let command = Command::new(Kind::Write, flags | class).with(Slot::Queue, 5).with(Slot::Sequence, sequence);
        let mut out = [0u8; 512];
        let length = tables.encode(roce, &command, payload, &Outer::default(), &mut out).unwrap();
        let mut decoded = Decoded::default();
        tables.decode(roce, &out[..length], &mut decoded).unwrap();
        decoded
    };
    // 700 bytes at 0x8000 in packets of 256, sequence numbers wrapping at 24 bits.
    let mut transaction = Transaction::new(&[Segment { address: 0x8000, length: 700 }]).unwrap();
    transaction.first_sequence = 0xff_ffff;
    transaction.mtu = 256;
    let mut table = TransactionTable::new(4, 16).unwrap();
    let id = table.insert(transaction, Find::Key(5)).unwrap();
    let last = packet(Flags::LAST, 1, &[0; 188]);
    assert_eq!(tables.transaction(&last, &table), Some(id));
    let place = |decoded: &Decoded, table: &mut TransactionTable| {
        tables.place(decoded, table.get_mut(id)).map(|pieces| pieces.collect::<Vec<_>>())
    };
    assert_eq!(place(&last, &mut table).unwrap(), [Segment { address: 0x8200, length: 188 }]);
    let middle = packet(Flags::default(), 0, &[0; 256]);
    assert_eq!(place(&middle, &mut table).unwrap(), [Segment { address: 0x8100, length: 256 }]);
    assert!(place(&packet(Flags::LAST, 2, &[0; 1]), &mut table).is_err(), "outside of what was granted");
    assert!(place(&packet(Flags::LAST, 0x12_3456, &[0; 1]), &mut table).is_err());
    assert!(tables.place(&last, None).is_err());
    // A first packet that comes again goes where it went before.
    let first = packet(Flags::FIRST, 0xff_ffff, &[0; 256]);
    let send = Command::new(Kind::Send, Flags::FIRST | class).with(Slot::Queue, 5).with(Slot::Sequence, 0xff_ffff);
    let mut out = [0u8; 512];
    let length = tables.encode(roce, &send, &[0; 256], &Outer::default(), &mut out).unwrap();
    let mut again = Decoded::default();
    tables.decode(roce, &out[..length], &mut again).unwrap();
    assert_eq!(first.payload_length, again.payload_length);
    for _ in 0..2 {
        assert_eq!(place(&again, &mut table).unwrap(), [Segment { address: 0x8000, length: 256 }]);
    }
}

/// "Behind the last one": the transaction keeps the next address, and what does not fit changes nothing.
#[test]
fn the_next_address_is_kept() {
    let tables = load(&(GOOD.to_string() + "place = \"next\"\n")).unwrap();
    let id = tables.find("t").unwrap();
    let mut transaction = Transaction::new(&[Segment { address: 100, length: 10 }]).unwrap();
    let mut place = |payload: usize| {
        let mut decoded = Decoded::default();
        tables.decode(id, &[&[1, 0, 0, 9, 0, 0, 0, 50][..], &std::vec![0; payload]].concat(), &mut decoded).unwrap();
        tables
            .place(&decoded, Some(&mut transaction))
            .map(|pieces| pieces.map(|piece| piece.address).collect::<Vec<_>>())
    };
    assert_eq!(place(4), Ok(alloc::vec![100]));
    assert!(place(7).is_err());
    assert_eq!(place(6), Ok(alloc::vec![104]));
    assert!(place(1).is_err());
}

/// The ICRC covers network headers of any length: extension headers count, what routers change does not.
#[test]
fn an_icrc_behind_long_extension_headers_is_verified() {
    let tables = Tables::builtin().unwrap();
    let roce = tables.find("roce-v2").unwrap();
    let command = Command::new(Kind::Send, Flags::FIRST | Flags::LAST | Flags(1 << Flags::CLASS_SHIFT));
    for extensions in [0usize, 8, 64, 520, 2048, 20_000] {
        let mut network = std::vec![0u8; 40 + extensions];
        network[0] = 0x60;
        let udp = [0xc0, 0, 0x12, 0xb7, 0, 40, 0, 0];
        let mut out = [0u8; 256];
        let outer = |network: &[u8], bytes: &[u8]| {
            let mut decoded = Decoded::default();
            tables.decode(roce, bytes, &mut decoded).unwrap();
            tables.verify(&decoded, bytes, &Outer { link: &[], network, udp: &udp }).checked[0]
        };
        let length = tables
            .encode(roce, &command, b"data", &Outer { link: &[], network: &network, udp: &udp }, &mut out)
            .unwrap();
        assert_eq!(outer(&network, &out[..length]), Checked::Good, "{extensions}");
        network[7] = 9; // hop limit
        assert_eq!(outer(&network, &out[..length]), Checked::Good);
        let last = network.len() - 1;
        network[last] ^= 1;
        assert!(matches!(outer(&network, &out[..length]), Checked::Bad { .. }), "{extensions}");
    }
}

#[test]
fn checks_that_no_packet_satisfies_are_refused() {
    let with = |check: &str| load(&(GOOD.to_string() + check)).map(|_| ()).unwrap_err().to_string();
    assert!(with("check = [\"h.size == 1\", \"h.size == 2\"]\n").contains("contradicts another"));
    assert!(with("check = [\"0 == 1\"]\n").contains("is about no field"));
    assert!(error("name = \"t\"", "name = \"t\"\ntitle = \"\\u001b[31m\"").contains("control characters"));
}

#[test]
fn checks_against_connection_and_transaction() {
    let text = GOOD.to_string()
        + "check = [\"h.queue == connection.peer\", \"h.size <= transaction.remaining\", \"h.size > 0\"]\n";
    let tables = load(&text).unwrap();
    let id = tables.find("t").unwrap();
    let bytes = [1, 0, 0, 9, 0, 0, 0, 50];
    let mut decoded = Decoded::default();
    tables.decode(id, &bytes, &mut decoded).unwrap();
    let mut connection = Attributes::default();
    let mut transaction = Attributes::default();
    connection[Attribute::Peer as usize] = 9;
    transaction[Attribute::Remaining as usize] = 50;
    assert_eq!(tables.validate(&decoded, &bytes, &connection, &transaction), Ok(()));
    transaction[Attribute::Remaining as usize] = 49;
    let refused = tables.validate(&decoded, &bytes, &connection, &transaction).unwrap_err();
    assert_eq!(refused.check, "h.size <= transaction.remaining");
    connection[Attribute::Peer as usize] = 8;
    assert!(tables.validate(&decoded, &bytes, &connection, &transaction).is_err());
    // The check on the packet alone is made when it is decoded.
    let refused = tables.decode(id, &[1, 0, 0, 9, 0, 0, 0, 0], &mut decoded).unwrap_err();
    let DecodeError::Check { opcode, number } = refused else { panic!("{refused}") };
    assert_eq!(tables.check_text(id, opcode, number), Some("h.size > 0"));
}

#[test]
fn what_does_not_fit_is_not_sent() {
    let tables = load(GOOD).unwrap();
    let id = tables.find("t").unwrap();
    let mut out = [0u8; 64];
    let send = Command::new(Kind::Send, Flags::default());
    let encode = |command: &Command, out: &mut [u8]| tables.encode(id, command, b"pay", &Outer::default(), out);
    assert_eq!(encode(&send.with(Slot::Queue, 0xff_ffff), &mut out), Ok(11));
    assert_eq!(encode(&send.with(Slot::Queue, 0x100_0000), &mut out), Err(EncodeError::DoesNotFit(Slot::Queue)));
    assert_eq!(encode(&Command::new(Kind::Write, Flags::default()), &mut out), Err(EncodeError::NoOpcode));
    for length in 0..11 {
        assert!(matches!(encode(&send, &mut out[..length]), Err(EncodeError::NoRoom { .. })));
    }
}

/// Packets of SRDMA name their transaction in all three ways, and a datagram is placed into a list.
#[test]
fn three_ways_to_a_transaction() {
    let tables = Tables::builtin().unwrap();
    let srdma = tables.find("srdma").unwrap();
    let decode = |command: Command| {
        let mut out = [0u8; 256];
        let length = tables.encode(srdma, &command, &[7; 20], &Outer::default(), &mut out).unwrap();
        let mut decoded = Decoded::default();
        tables.decode(srdma, &out[..length], &mut decoded).unwrap();
        decoded
    };
    let mut table = TransactionTable::new(8, 16).unwrap();
    let buffer = |address: u64| Transaction::new(&[Segment { address, length: 30 }]).unwrap();
    let read = table.insert(buffer(0x1000), Find::Id).unwrap();
    let send = table.insert(buffer(0x2000), Find::Key(0x55 << 32 | 9)).unwrap();
    let list = [Segment { address: 0x3000, length: 8 }, Segment { address: 0x4000, length: 100 }];
    let datagram = table.insert(Transaction::new(&list).unwrap(), Find::Key(0x55 << 32 | 10)).unwrap();
    let tagged = table.insert(buffer(0x5000), Find::Match { value: 0xab00, mask: 0xff00 }).unwrap();

    let response = Command::new(Kind::ReadResponse, Flags::RESPONSE)
        .with(Slot::Transaction, u64::from(read.to_bits()))
        .with(Slot::Offset, 10);
    let from = |kind: Kind, message: u64| {
        Command::new(kind, Flags::default()).with(Slot::Source, 0x55).with(Slot::Message, message)
    };
    let any_tag = Command::new(Kind::TaggedSend, Flags::default()).with(Slot::Argument0, 0xabcd);
    for (command, id, pieces) in [
        (response, read, &[(0x100a, 20)][..]),
        (from(Kind::Send, 9), send, &[(0x2000, 20)]),
        (from(Kind::Datagram, 10), datagram, &[(0x3000, 8), (0x4000, 12)]),
        (any_tag, tagged, &[(0x5000, 20)]),
    ] {
        let decoded = decode(command);
        assert_eq!(tables.transaction(&decoded, &table), Some(id), "{command:?}");
        let placed = tables.place(&decoded, table.get_mut(id)).unwrap();
        assert_eq!(placed.map(|piece| (piece.address, piece.length)).collect::<Vec<_>>(), pieces);
    }
    assert_eq!(tables.transaction(&decode(from(Kind::Send, 11)), &table), None);
    // What was granted is 30 bytes: 20 at offset 11 would end outside.
    assert!(tables.place(&decode(response.with(Slot::Offset, 11)), table.get_mut(read)).is_err());
    table.remove(read);
    assert_eq!(tables.transaction(&decode(response), &table), None);
}

/// What no command carries is written through handles, then the checksums are made.
#[test]
fn handles_reach_the_session_header() {
    let tables = Tables::builtin().unwrap();
    let srdma = tables.find("srdma").unwrap();
    let id = tables.handle(srdma, "session.id").unwrap();
    let ticket = tables.handle(srdma, "transport.ticket").unwrap();
    assert_eq!(tables.handle(srdma, "session.colour"), None);
    assert_eq!(tables.handle(srdma, "cookie.cookie"), None, "128 bits");
    assert_eq!(tables.handle(srdma, "immediate.data"), None, "behind the tag in some opcodes");
    let mut out = [0u8; 256];
    let write = Command::new(Kind::Write, Flags::default());
    let (opcode, length) = tables.encode_open(srdma, &write, b"abc", &mut out).unwrap();
    id.write(&mut out[..length], 0xfeed_beef);
    ticket.write(&mut out[..length], u64::MAX);
    tables.write_checksums(srdma, opcode, &mut out[..length], &Outer::default());
    let mut decoded = Decoded::default();
    tables.decode(srdma, &out[..length], &mut decoded).unwrap();
    assert_eq!((id.read(&out), ticket.read(&out), decoded.payload(&out)), (0xfeed_beef, u64::MAX, &b"abc"[..]));
    assert_eq!(tables.verify(&decoded, &out[..length], &Outer::default()).checked[0], Checked::Good);
}

#[test]
fn opcodes_are_counted_before_they_are_made() {
    // 200 KB that would become 25,000 opcodes, each with a name of 100 KB.
    let families = "\"f\",".repeat(25_000);
    let text = GOOD.replace("name = \"One\"", &format!("name = \"{}\"\nin = [{families}]", "n".repeat(100_000)));
    let text = text + "[family.f]\ncode = 0x10\ntitle = \"F\"\nrequest = []\n";
    let error = load(&text).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("`in` has 25000 entries; at most 32"), "{error}");
}

#[test]
fn a_checksum_must_not_cover_one_that_is_written_later() {
    let text = GOOD.replace("bit = 40, width = 24 }", "bit = 40, width = 8 }\nsum = { bit = 48, width = 8 }");
    let sums = |ones: &str| {
        let first = format!("[[checksum]]\nname = \"c\"\nalgorithm = \"xor\"\nfield = \"h.sequence\"\n{ones}");
        let second = "[[checksum]]\nname = \"d\"\nalgorithm = \"sum\"\nfield = \"h.sum\"\n";
        load(&text.replace("[bind]", &format!("{first}{second}[bind]")))
    };
    let error = sums("").map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("the checksum `c` covers `h.sum`, which `d` writes later"), "{error}");
    let tables = sums("ones = [\"h.sum\"]\n").unwrap();
    let id = tables.find("t").unwrap();
    let mut out = [0; 64];
    let command = Command::new(Kind::Send, Flags::default()).with(Slot::Queue, 0x1234);
    let length = tables.encode(id, &command, b"abc", &Outer::default(), &mut out).unwrap();
    let mut decoded = Decoded::default();
    tables.decode(id, &out[..length], &mut decoded).unwrap();
    assert_eq!(tables.verify(&decoded, &out[..length], &Outer::default()).checked[..2], [Checked::Good; 2]);
}

#[test]
fn a_checksum_covers_the_first_bytes_where_a_field_says_so() {
    let tables = Tables::builtin().unwrap();
    let srdma = tables.find("srdma").unwrap();
    let partial = tables.handle(srdma, "session.partial").unwrap();
    let command = Command::new(Kind::Send, Flags::default()).with(Slot::Length, 400);
    let mut out = [0; 512];
    let length = tables.encode(srdma, &command, &[5; 400], &Outer::default(), &mut out).unwrap();
    let packet = &mut out[..length];
    let opcode = tables.opcode_for(srdma, &command).unwrap();
    for (is_partial, at, good) in [(0, 255, false), (0, 256, false), (1, 255, false), (1, 256, true)] {
        partial.write(packet, is_partial);
        tables.write_checksums(srdma, opcode, packet, &Outer::default());
        let check = |packet: &[u8]| {
            let mut decoded = Decoded::default();
            tables.decode(srdma, packet, &mut decoded).unwrap();
            tables.verify(&decoded, packet, &Outer::default()).checked[0] == Checked::Good
        };
        assert!(check(packet));
        packet[at] ^= 1;
        assert_eq!(check(packet), good, "partial {is_partial}, byte {at}");
        packet[at] ^= 1;
    }
}
