//! `docs/protocol.md` against the tables: the example packet is real, and no table of the text has drifted from
//! `protocols/srdma.toml`.
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail by panicking")]

use std::collections::BTreeSet;

use weft_wire::table::{Checked, Decoded, FieldValue, OpcodeInfo, Outer, ProtocolId, Tables, TransactionBy};

const DOCUMENT: &str = include_str!("../../../docs/protocol.md");

fn srdma() -> (Tables, ProtocolId) {
    let tables = Tables::builtin().unwrap_or_else(|error| panic!("{error}"));
    let id = tables.find("srdma").unwrap();
    (tables, id)
}

/// The rows below the first table head after `from` that begins with `head`, as trimmed cells.
fn rows<'a>(from: &'a str, head: &str) -> Vec<Vec<&'a str>> {
    let mut lines = from.lines().skip_while(|line| !line.starts_with(head)).skip(1);
    assert!(lines.next().is_some_and(|line| line.starts_with("|---")), "no table `{head}`");
    let table = lines.take_while(|line| line.starts_with('|'));
    table.map(|line| line.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

fn number(text: &str) -> u64 {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.unwrap_or_else(|error| panic!("`{text}`: {error}"))
}

fn plain(text: &str) -> &str {
    text.trim_matches('`')
}

fn example() -> Vec<u8> {
    let (_, rest) = DOCUMENT.split_once("```hex\n").unwrap();
    let (dump, _) = rest.split_once("```").unwrap();
    let mut bytes = Vec::new();
    for line in dump.lines() {
        let (offset, digits) = line.split_once("  ").unwrap();
        assert_eq!(number(&format!("0x{offset}")), bytes.len() as u64);
        bytes.extend(digits.split(' ').map(|byte| u8::from_str_radix(byte, 16).unwrap()));
    }
    bytes
}

#[test]
fn the_example_packet_is_what_the_text_says() {
    let (tables, id) = srdma();
    let packet = example();
    let mut decoded = Decoded::default();
    tables.decode(id, &packet, &mut decoded).unwrap();
    assert_eq!(tables.protocol(id).unwrap().opcode(decoded.opcode).unwrap().name(), "WRITE");
    assert_eq!(decoded.payload(&packet), b"Hello from Weft!");
    assert_eq!(tables.verify(&decoded, &packet, &Outer::default()).checked[0], Checked::Good);

    let said: Vec<_> = rows(DOCUMENT, "| at | field |").iter().map(|row| (plain(row[1]), number(row[2]))).collect();
    let found: Vec<_> = tables
        .named_fields(id, decoded.opcode, &packet)
        .map(|(name, value)| match value {
            FieldValue::Number { value, .. } => (name, value),
            FieldValue::Bytes(_) => panic!("{name} has more than 64 bits"),
        })
        .collect();
    assert_eq!(said, found);

    let (_, crc) = packet.split_last_chunk::<4>().map(|(rest, last)| (rest, u32::from_le_bytes(*last))).unwrap();
    assert!(DOCUMENT.contains(&format!("is {crc:#010x}, at 0x60 ")));
}

#[test]
fn the_example_packet_is_encoded_again() {
    let (tables, id) = srdma();
    let packet = example();
    let mut decoded = Decoded::default();
    tables.decode(id, &packet, &mut decoded).unwrap();
    let fields = tables.fields(id, decoded.opcode, &packet).unwrap();
    let payload = decoded.payload(&packet);
    let mut again = [0; 256];
    let length = tables.encode_fields(id, decoded.opcode, &fields, payload, &Outer::default(), &mut again).unwrap();
    assert_eq!(&again[..length], packet);

    // A command carries what the engine's commands mean; the rest (session header, handle, span, ticket) is filled in by
    // the layers that own it.
    let length = tables.encode(id, &decoded.command, payload, &Outer::default(), &mut again).unwrap();
    assert_eq!(length, packet.len());
    let differ = tables.named_fields(id, decoded.opcode, &packet).zip(tables.named_fields(id, decoded.opcode, &again));
    let differ: Vec<_> = differ.filter(|(one, other)| one != other).map(|(one, _)| one.0).collect();
    let filled_in = ["class", "id", "sequence", "timestamp"].map(|field| format!("session.{field}"));
    let filled_in: Vec<_> =
        filled_in.into_iter().chain(["handle", "span", "ticket"].map(|field| format!("transport.{field}"))).collect();
    assert_eq!(differ, filled_in);
}

/// The opcode's row as the document writes it, without the last cell.
fn row_of(opcode: &OpcodeInfo<'_>) -> Vec<String> {
    let session_only = matches!(opcode.name(), "Bundle" | "Sealed");
    let first: &[&str] = if session_only { &["session"] } else { &["session", "transport"] };
    let headers: Vec<&str> = opcode.headers().map(|(name, ..)| name).collect();
    let (before, headers) = headers.split_at(first.len());
    assert_eq!(before, first, "{}", opcode.name());
    let flags: Vec<&str> = opcode.command().flags().set_names().collect();
    let mut command = format!("`{}`", opcode.command().kind().name());
    if !flags.is_empty() {
        command += &format!(" ({})", flags.join(", "));
    }
    for also in opcode.also() {
        command += &format!(", `{}`", also.name());
    }
    let transaction = match opcode.transaction_by() {
        TransactionBy::None => "none",
        TransactionBy::Field => "field",
        TransactionBy::Table => "table",
        TransactionBy::Match => "match",
    };
    let code = format!("{:#04x}", opcode.code());
    let placement = opcode.placement().name();
    [&code, opcode.name(), &headers.join(", "), &command, placement, transaction].map(String::from).to_vec()
}

#[test]
fn the_opcode_table_is_the_loaded_one() {
    let (tables, id) = srdma();
    let loaded: Vec<_> = tables.protocol(id).unwrap().opcodes().map(|opcode| row_of(&opcode)).collect();
    let said = rows(DOCUMENT, "| code | name | headers |");
    for row in &said {
        assert_eq!(row.len(), 7, "{row:?}");
    }
    let said: Vec<_> =
        said.iter().map(|row| row[..6].iter().map(|cell| (*cell).to_string()).collect::<Vec<_>>()).collect();
    assert_eq!(said, loaded);
}

#[test]
fn the_header_tables_are_the_loaded_ones() {
    let (tables, id) = srdma();
    let protocol = tables.protocol(id).unwrap();
    let zeros = [0; 256];
    let mut seen = BTreeSet::new();
    for opcode in protocol.opcodes() {
        for (header, _, _, bytes) in opcode.headers() {
            if !seen.insert(header) {
                continue;
            }
            let head = format!("Header `{header}`, {bytes} bytes.");
            let (_, after) = DOCUMENT.split_once(&head).unwrap_or_else(|| panic!("the text has no `{head}`"));
            let table = rows(after, "| field | bits |");
            for row in &table {
                assert_eq!(row.len(), 5, "{row:?}");
            }
            let said: Vec<_> = table.iter().map(|row| (plain(row[0]), number(row[1]))).collect();
            let fields = tables.named_fields(id, opcode.id, &zeros).filter_map(|(name, value)| {
                let field = name.strip_prefix(header)?.strip_prefix('.')?;
                let bits = match value {
                    FieldValue::Number { width, .. } => width,
                    FieldValue::Bytes(bytes) => bytes.len() * 8,
                };
                Some((field, bits as u64))
            });
            let loaded: Vec<_> = fields.collect();
            assert_eq!(said, loaded, "header {header}");
            assert_eq!(said.iter().map(|(_, bits)| bits).sum::<u64>(), bytes as u64 * 8, "header {header}");
        }
    }
    let described = DOCUMENT.lines().filter(|line| line.starts_with("Header `")).count();
    assert_eq!(described, seen.len(), "the text describes a header that no opcode has");
}

#[test]
fn clauses_are_numbered_once_and_references_lead_somewhere() {
    let mut defined = BTreeSet::new();
    for line in DOCUMENT.lines() {
        if let Some((clause, _)) = line.strip_prefix("**P-").and_then(|rest| rest.split_once("**")) {
            assert!(defined.insert(clause), "P-{clause} is there twice");
        }
    }
    let definition = include_str!("../../../protocols/srdma.toml");
    for text in [DOCUMENT, definition] {
        for reference in text.split("P-").skip(1) {
            let clause =
                reference.split(|c: char| !c.is_ascii_digit() && c != '.').next().unwrap().trim_end_matches('.');
            // `P-n.n` and words such as `P-value` name no clause.
            if !clause.is_empty() {
                assert!(defined.contains(clause), "P-{clause} is cited but not there");
            }
        }
    }
}
