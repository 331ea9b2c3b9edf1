//! Definition files: the input is TOML, up to a zero byte if there is one; behind that, a packet.
//!
//! A text is loaded, alone or with the built-in protocols, or refused with an error whose place lies in it. For one that
//! is loaded:
//! - a packet that decodes adds up, and its fields make it again;
//! - for every opcode, fields from any bytes make a packet with the same fields, and the opcode's plain command makes
//!   one that decodes to the same opcode unless a check of the definition's own refuses it;
//! - no checksum of what is made is bad.

use weft_wire::table::{
    BUILTIN, DecodeError, Decoded, DefinitionError, EncodeError, OpcodeId, Outer, ProtocolId, Source, Tables,
};

const FILE: &str = "fuzz.toml";
/// Texts whose length is a multiple of this are loaded together with all built-in protocols.
const ALL_LOADED_EVERY_BYTES: usize = 64;
/// Opcodes of one definition that are tried.
const OPCODES_TRIED_MAX: usize = 40;
/// A pad is at most half of what 16 bits count; packets here are shorter.
const PACKET_MAX_BYTES: usize = 1 << 17;

/// One input.
pub fn run(input: &[u8]) {
    let end = input.iter().position(|byte| *byte == 0).unwrap_or(input.len());
    let (text, rest) = input.split_at(end);
    let Ok(text) = std::str::from_utf8(text) else { return };
    let own = Source { file: FILE, text };
    // To load all the others with it takes a hundred times as long: mostly only those that it may extend, or none.
    let loaded = if text.len().is_multiple_of(ALL_LOADED_EVERY_BYTES) {
        Tables::builtin_and(&[own])
    } else {
        let named = |source: &&Source<'_>| text.contains("extends") && text.contains(name_of(source));
        let mut files: Vec<_> = BUILTIN.iter().filter(named).copied().collect();
        files.push(own);
        Tables::load(&files)
    };
    match loaded {
        Err(error) => place_is_in_text(&error, text),
        Ok(tables) => {
            let (id, _) = tables.protocols().last().expect("the one that was loaded");
            packet(&tables, id, rest.get(1..).unwrap_or(&[]));
            opcodes(&tables, id, rest);
        }
    }
}

/// The name of a built-in protocol, from its file's.
fn name_of<'a>(source: &Source<'a>) -> &'a str {
    source.file.trim_end_matches(".toml")
}

fn place_is_in_text(error: &DefinitionError, own: &str) {
    let known = BUILTIN.iter().find(|source| source.file == error.file).map(|source| source.text);
    let text = if error.file == FILE { own } else { known.expect("a file that was loaded") };
    let line = text.split('\n').nth(error.line.checked_sub(1).expect("lines begin at 1"));
    let columns = 1 + line.expect("a line of the file").chars().count();
    assert!((1..=columns).contains(&error.column), "{error}: the line has {columns} columns");
    assert!(!error.what.is_empty() && !error.instead.is_empty(), "{error}");
}

fn has_checksums(tables: &Tables, id: ProtocolId) -> bool {
    tables.protocol(id).is_some_and(|protocol| protocol.checksum_names().next().is_some())
}

fn packet(tables: &Tables, id: ProtocolId, bytes: &[u8]) {
    let outer = Outer::default();
    let mut decoded = Decoded::default();
    if tables.decode(id, bytes, &mut decoded).is_err() {
        return;
    }
    let payload_end = usize::from(decoded.header_length) + decoded.payload_length as usize;
    assert_eq!(payload_end + usize::from(decoded.trim), bytes.len());
    let _ = tables.verify(&decoded, bytes, &outer);
    let _ = tables.commands(&decoded, 3).take(100).count();
    let fields = tables.fields(id, decoded.opcode, bytes).expect("an opcode of the table");
    let payload = decoded.payload(bytes);
    let mut made = vec![0; bytes.len() + 1];
    let length =
        tables.encode_fields(id, decoded.opcode, &fields, payload, &outer, &mut made).expect("it was a packet");
    assert_eq!(length, bytes.len());
    let from = if has_checksums(tables, id) { usize::from(decoded.header_length) } else { 0 };
    assert_eq!(made[from..payload_end], bytes[from..payload_end]);
}

fn opcodes(tables: &Tables, id: ProtocolId, rest: &[u8]) {
    let outer = Outer::default();
    let Some(protocol) = tables.protocol(id) else { return };
    for opcode in protocol.opcodes().take(OPCODES_TRIED_MAX) {
        // Fields of any value.
        let mut bytes = rest.to_vec();
        bytes.resize(opcode.header_length().max(bytes.len()), 0x5a);
        let (_, payload) = bytes.split_at(opcode.header_length());
        let fields = tables.fields(id, opcode.id, &bytes).expect("an opcode of the table");
        let mut made = vec![0; opcode.header_length() + payload.len() + 64];
        let length = match tables.encode_fields(id, opcode.id, &fields, payload, &outer, &mut made) {
            Ok(length) => length,
            Err(EncodeError::NoRoom { needed, .. }) if needed < PACKET_MAX_BYTES => continue,
            Err(EncodeError::TooLong) => continue,
            Err(error) => panic!("{error}"),
        };
        assert!(length >= opcode.header_length() + payload.len());
        intact(tables, id, opcode.id, &made[..length]);
        if !has_checksums(tables, id) {
            assert_eq!(tables.fields(id, opcode.id, &made[..length]), Some(fields));
        }
        // The command with nothing but its kind and flags.
        let command = opcode.command();
        assert_eq!(tables.opcode_for(id, &command), Some(opcode.id));
        let Ok(length) = tables.encode(id, &command, &[], &outer, &mut made) else { continue };
        intact(tables, id, opcode.id, &made[..length]);
        let mut decoded = Decoded::default();
        match tables.decode(id, &made[..length], &mut decoded) {
            Ok(()) => assert_eq!(decoded.opcode, opcode.id),
            Err(DecodeError::Check { opcode: checked, .. }) => assert_eq!(checked, opcode.id),
            Err(error) => panic!("`{}`: {error}", opcode.name()),
        }
    }
}

/// Of a packet that was made, no checksum is bad.
fn intact(tables: &Tables, protocol: ProtocolId, opcode: OpcodeId, made: &[u8]) {
    let packet = Decoded { protocol, opcode, ..Decoded::default() };
    let integrity = tables.verify(&packet, made, &Outer::default());
    assert!(integrity.is_intact(), "{integrity:?}");
}
