//! `weft protocol`: what the tables say.

use std::collections::BTreeSet;
use std::io::Write;

use weft_wire::command::Kind;
use weft_wire::table::{OpcodeInfo, Tables, TransactionBy};

use crate::Failure;

/// `weft protocol list`.
pub(crate) fn list(tables: &Tables, out: &mut dyn Write) -> Result<(), Failure> {
    writeln!(out, "{:<12} {:>7}  {:<12} recognised by", "name", "opcodes", "title")?;
    for (id, protocol) in tables.protocols() {
        let rules: Vec<String> = tables.rules(id).collect();
        let opcodes = protocol.opcodes().count();
        writeln!(out, "{:<12} {opcodes:>7}  {:<12} {}", protocol.name(), protocol.title(), rules.join("; or "))?;
    }
    Ok(())
}

/// `weft protocol show NAME`.
pub(crate) fn show(tables: &Tables, name: &str, out: &mut dyn Write) -> Result<(), Failure> {
    let Some(id) = tables.find(name) else {
        let known: Vec<&str> = tables.protocols().map(|(_, protocol)| protocol.name()).collect();
        return Err(Failure::Told(format!("there is no protocol `{name}`; known: {}", known.join(", "))));
    };
    let Some(protocol) = tables.protocol(id) else { return Ok(()) };
    let rules: Vec<String> = tables.rules(id).collect();
    writeln!(out, "{} ({})\nrecognised by {}", protocol.title(), protocol.name(), rules.join("; or "))?;
    let checksums: Vec<&str> = protocol.checksum_names().collect();
    if !checksums.is_empty() {
        writeln!(out, "checksums: {}", checksums.join(", "))?;
    }

    writeln!(out, "\nheaders")?;
    let mut shown = BTreeSet::new();
    for opcode in protocol.opcodes() {
        for (number, (header, title, _, bytes)) in opcode.headers().enumerate() {
            if !shown.insert(header) {
                continue;
            }
            writeln!(out, "  {header:<14} {bytes:>3} bytes  {title}")?;
            for field in opcode.fields().filter(|field| field.header == number) {
                let endian = if field.little_endian { "  little-endian" } else { "" };
                writeln!(out, "      bit {:>4}  {:>4} bits  {}{endian}", field.bit, field.width, field.name)?;
            }
        }
    }

    writeln!(out, "\nopcodes\n  {:<6} {:<32} {:<28} headers, placement, transaction", "code", "name", "command")?;
    for opcode in protocol.opcodes() {
        writeln!(
            out,
            "  {:<6} {:<32} {:<28} {}",
            format!("{:#04x}", opcode.code()),
            opcode.name(),
            commands(&opcode),
            rest(&opcode)
        )?;
    }
    Ok(())
}

fn commands(opcode: &OpcodeInfo<'_>) -> String {
    let kinds: Vec<&str> = std::iter::once(opcode.command().kind()).chain(opcode.also()).map(Kind::name).collect();
    kinds.join(" + ")
}

fn rest(opcode: &OpcodeInfo<'_>) -> String {
    let headers: Vec<&str> = opcode.headers().map(|(name, ..)| name).collect();
    let mut text = headers.join(" ");
    let placement = opcode.placement().name();
    if placement != "none" {
        text.push_str(", place by ");
        text.push_str(placement);
    }
    text.push_str(match opcode.transaction_by() {
        TransactionBy::None => "",
        TransactionBy::Field => ", transaction by field",
        TransactionBy::Table => ", transaction by table",
        TransactionBy::Match => ", transaction by match",
    });
    text
}
