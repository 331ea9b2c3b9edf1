//! `weft protocol`: what the tables say.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Write};

use clap::{Args, Subcommand};
use weft_wire::command::Kind;
use weft_wire::limits::DEFINITION_LENGTH_MAX_BYTES;
use weft_wire::table::{OpcodeInfo, Source, Tables, TransactionBy};

use crate::Failure;

#[derive(Subcommand)]
pub(crate) enum Command {
    /// List the protocols
    #[command(after_help = "Example:\n  weft protocol list")]
    List {
        #[command(flatten)]
        definitions: Definitions,
    },
    /// Show the headers, fields and opcodes of a protocol
    #[command(after_help = "Example:\n  weft protocol show roce-v2")]
    Show {
        /// Name of the protocol, as `weft protocol list` prints it
        name: String,
        #[command(flatten)]
        definitions: Definitions,
    },
    /// Check a definition; report errors with file, line and column
    #[command(after_help = "Example:\n  weft protocol check protocols/mine.toml")]
    Check {
        /// Definition (TOML)
        file: String,
        #[command(flatten)]
        definitions: Definitions,
    },
}

/// Definitions beside Weft's own.
#[derive(Args)]
pub(crate) struct Definitions {
    /// Add the definitions (*.toml) in DIR; one of the same name replaces Weft's
    #[arg(long, value_name = "DIR", allow_hyphen_values = true)]
    protocols: Vec<String>,
}

/// `weft protocol`.
pub(crate) fn run(command: &Command, out: &mut dyn Write) -> Result<(), Failure> {
    match command {
        Command::List { definitions } => list(&definitions.tables(None)?, out),
        Command::Show { name, definitions } => show(&definitions.tables(None)?, name, out),
        Command::Check { file, definitions } => {
            let before = definitions.tables(None)?.protocols().count();
            let tables = definitions.tables(Some(file))?;
            let (_, checked) = tables.protocols().last().ok_or_else(|| Failure::Told("no protocol".to_string()))?;
            let replaces = if tables.protocols().count() == before { " (replaces the one of that name)" } else { "" };
            Ok(writeln!(out, "{file}: good: `{}`, {} opcodes{replaces}", checked.name(), checked.opcodes().count())?)
        }
    }
}

impl Definitions {
    /// Weft's protocols, those of `--protocols`, and one more file.
    pub(crate) fn tables(&self, more: Option<&String>) -> Result<Tables, Failure> {
        let mut files: Vec<(String, String)> = Vec::new();
        for directory in &self.protocols {
            let entries = std::fs::read_dir(directory).map_err(|error| Failure::from(error).about(directory))?;
            let mut paths = Vec::new();
            for entry in entries {
                let path = entry?.path();
                if path.extension().is_some_and(|extension| extension == "toml") {
                    paths.push(path);
                }
            }
            paths.sort();
            if paths.is_empty() {
                return Err(Failure::Told(format!("{directory}: there is no definition (*.toml) in it")));
            }
            for path in paths {
                files.push(read_definition(&path.to_string_lossy())?);
            }
        }
        if let Some(path) = more {
            files.push(read_definition(path)?);
        }
        let sources: Vec<Source<'_>> = files.iter().map(|(file, text)| Source { file, text }).collect();
        Tables::builtin_and(&sources).map_err(|error| Failure::Told(error.to_string()))
    }
}

fn read_definition(path: &str) -> Result<(String, String), Failure> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| {
        // One byte more than allowed, so that a file that is too long is seen to be.
        file.take(DEFINITION_LENGTH_MAX_BYTES as u64 + 1).read_to_string(&mut text)
    });
    read.map_err(|error| Failure::from(error).about(path))?;
    Ok((path.to_string(), text))
}

/// `weft protocol list`.
fn list(tables: &Tables, out: &mut dyn Write) -> Result<(), Failure> {
    writeln!(out, "{:<12} {:>7}  {:<12} recognised by", "name", "opcodes", "title")?;
    for (id, protocol) in tables.protocols() {
        let rules: Vec<String> = tables.rules(id).collect();
        let opcodes = protocol.opcodes().count();
        writeln!(out, "{:<12} {opcodes:>7}  {:<12} {}", protocol.name(), protocol.title(), rules.join("; or "))?;
    }
    Ok(())
}

/// `weft protocol show NAME`.
fn show(tables: &Tables, name: &str, out: &mut dyn Write) -> Result<(), Failure> {
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
