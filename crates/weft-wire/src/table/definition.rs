//! A definition file as it was written: every part read, typed and placed, nothing resolved yet.

use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::expression::{Derivations, Expression};
use super::extract::Endian;
use super::index::Rule;
use super::layout::Header;
use super::source::{DefinitionError, Place, Placed, Sources, Table, Value, suggest};
use crate::checksum::{CRC32, CRC32C, CrcParameters, VCRC};
use crate::command::{Flags, Kind, Slot};
use crate::limits::{
    ALSO_MAX, CHECKS_PER_OPCODE_MAX, CHECKSUMS_MAX, FAMILIES_MAX, HEADERS_PER_OPCODE_MAX, HEADERS_PER_PROTOCOL_MAX,
    OPCODE_WIDTH_MAX_BITS, OPCODES_PER_PROTOCOL_MAX, RULES_PER_PROTOCOL_MAX,
};

/// A definition. What a file may leave to the one that it extends is an `Option`, or empty.
#[derive(Clone, Debug)]
pub(crate) struct Definition {
    pub(crate) name: Placed<String>,
    pub(crate) title: Option<String>,
    pub(crate) extends: Option<Placed<String>>,
    pub(crate) recognise: Option<Vec<Rule>>,
    pub(crate) headers: BTreeMap<String, Header>,
    pub(crate) select: Option<Vec<Placed<String>>>,
    pub(crate) families: BTreeMap<String, Family>,
    pub(crate) opcodes: Vec<Opcode>,
    pub(crate) bind: Bindings,
    pub(crate) flags: BTreeMap<String, Placed<String>>,
    pub(crate) derivations: Derivations,
    pub(crate) pad: Option<Expression>,
    pub(crate) checksums: Option<Vec<Checksum>>,
    pub(crate) transaction: Option<TransactionRule>,
    pub(crate) checks: Vec<Expression>,
}

/// For each slot the expressions to try, first one whose fields are there wins.
pub(crate) type Bindings = BTreeMap<String, (Slot, Vec<Expression>)>;

/// Opcodes that differ in their high bits and first headers only.
#[derive(Clone, Debug)]
pub(crate) struct Family {
    pub(crate) code: u64,
    pub(crate) title: String,
    pub(crate) request: Vec<Placed<String>>,
    pub(crate) response: Vec<Placed<String>>,
}

#[derive(Clone, Debug)]
pub(crate) struct Opcode {
    pub(crate) code: u64,
    pub(crate) mask: u64,
    pub(crate) families: Vec<Placed<String>>,
    pub(crate) name: String,
    pub(crate) response: bool,
    pub(crate) headers: Vec<Placed<String>>,
    pub(crate) kind: Kind,
    pub(crate) flags: Flags,
    pub(crate) bind: Bindings,
    pub(crate) also: Vec<Also>,
    pub(crate) split: bool,
    pub(crate) placement: Placement,
    pub(crate) checks: Vec<Expression>,
    pub(crate) transaction: Option<TransactionRule>,
    pub(crate) checksums: Option<Vec<Placed<String>>>,
    pub(crate) place: Place,
}

/// A further generic command that the same packet asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Also {
    pub(crate) kind: Kind,
    /// Slots that it takes over, one bit for each.
    pub(crate) keep: u16,
}

/// Where the payload goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Placement {
    /// Nowhere: there is none, or the owner of the queue takes it.
    #[default]
    None,
    /// To the address in the packet.
    Packet,
    /// Behind what came before: the transaction keeps the next address.
    Next,
    /// By the packet's distance in sequence numbers from the transaction's first, times the path MTU: this places
    /// packets as they come for protocols that know no offsets.
    Sequence,
    /// To the transaction's start plus the packet's offset.
    Offset,
    /// By the packet's offset into the transaction's list of buffers.
    List,
}

const PLACEMENT_NAMES: [(&str, Placement); 6] = [
    ("none", Placement::None),
    ("packet", Placement::Packet),
    ("next", Placement::Next),
    ("sequence", Placement::Sequence),
    ("offset", Placement::Offset),
    ("list", Placement::List),
];

impl Placement {
    /// The word for it in definitions.
    #[must_use]
    pub fn name(self) -> &'static str {
        PLACEMENT_NAMES.iter().find(|(_, placement)| *placement == self).map_or("none", |(name, _)| name)
    }
}

/// How a packet names its transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum TransactionBy {
    /// It does not.
    #[default]
    None,
    /// A field holds the id.
    Field,
    /// Fields together are the key of a table.
    Table,
    /// Fields together are matched, with masks, in order.
    Match,
}

#[derive(Clone, Debug)]
pub(crate) struct TransactionRule {
    pub(crate) by: TransactionBy,
    pub(crate) fields: Vec<Placed<String>>,
}

/// What a checksum runs over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coverage {
    /// Every byte of the protocol before the checksum (after it too, when it is a field of a header).
    Packet,
    /// The headers only.
    Headers,
    /// What no router changes: network headers with their variable fields as ones, then the packet (the ICRC).
    Invariant,
    /// Everything from the link header on (the VCRC).
    Link,
}

const COVERAGE_NAMES: [(&str, Coverage); 4] = [
    ("packet", Coverage::Packet),
    ("headers", Coverage::Headers),
    ("invariant", Coverage::Invariant),
    ("link", Coverage::Link),
];

/// How a checksum is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Algorithm {
    Crc(CrcParameters),
    /// RFC 1071.
    Internet,
    /// Sum of the bytes.
    Sum,
    /// XOR of the bytes.
    Xor,
}

#[derive(Clone, Debug)]
pub(crate) struct Checksum {
    pub(crate) name: Placed<String>,
    pub(crate) algorithm: Algorithm,
    pub(crate) endian: Endian,
    pub(crate) over: Coverage,
    /// Fields that count as ones.
    pub(crate) first: Option<First>,
    pub(crate) ones: Vec<Placed<String>>,
    /// The field that holds it; otherwise it is a trailer.
    pub(crate) field: Option<Placed<String>>,
}

impl Algorithm {
    pub(crate) fn bytes(self) -> usize {
        match self {
            Algorithm::Crc(parameters) => parameters.width as usize / 8,
            Algorithm::Internet => 2,
            Algorithm::Sum | Algorithm::Xor => 1,
        }
    }
}

impl Definition {
    /// Reads the file's top table.
    pub(crate) fn read(sources: &Sources<'_>, top: &Table<'_>) -> Result<Definition, DefinitionError> {
        top.only(&[
            "name",
            "title",
            "extends",
            "recognise",
            "header",
            "select",
            "family",
            "opcode",
            "bind",
            "flags",
            "derive",
            "payload",
            "checksum",
            "transaction",
            "check",
        ])?;
        let name = top.need("name", "\"my-protocol\"")?.string()?;
        if name.value.is_empty() || !name.value.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)) {
            let what = format!("the protocol name `{}`", name.value.escape_default());
            return Err(sources.error(name.place, what, "use letters, digits, - _ and ."));
        }
        let mut headers = BTreeMap::new();
        for (header, value) in entries(top, "header", HEADERS_PER_PROTOCOL_MAX)? {
            headers.insert(header.value, Header::read(sources, &value.table()?)?);
        }
        let mut families = BTreeMap::new();
        for (family, value) in entries(top, "family", FAMILIES_MAX)? {
            families.insert(family.value, Family::read(&value.table()?)?);
        }
        let opcodes = top.tables("opcode")?;
        if opcodes.len() > OPCODES_PER_PROTOCOL_MAX {
            let what = format!("{} opcodes", opcodes.len());
            return Err(sources.error(top.place, what, format!("at most {OPCODES_PER_PROTOCOL_MAX}")));
        }
        let mut derivations = Derivations::default();
        for (derived, value) in entries(top, "derive", usize::MAX)? {
            derivations.0.insert(derived.value, Expression::parse(sources, &value.string()?)?);
        }
        derivations.check(sources)?;
        let mut flags = BTreeMap::new();
        for (flag, value) in entries(top, "flags", Flags::names().count())? {
            one_flag(sources, &flag)?;
            flags.insert(flag.value, value.string()?);
        }
        let payload = top.maybe("payload").map(Value::table).transpose()?;
        if let Some(payload) = &payload {
            payload.only(&["pad"])?;
        }
        let pad = payload.and_then(|payload| payload.maybe("pad"));
        Ok(Definition {
            name,
            title: top.maybe("title").map(|title| title.string().map(|t| t.value)).transpose()?,
            extends: top.maybe("extends").map(|base| base.string()).transpose()?,
            recognise: match top.maybe("recognise") {
                None => None,
                Some(value) => {
                    let rules = top.tables("recognise")?;
                    few(&value, "recognise", rules.len(), RULES_PER_PROTOCOL_MAX)?;
                    Some(rules.iter().map(|rule| Rule::read(sources, rule)).collect::<Result<_, _>>()?)
                }
            },
            headers,
            select: match top.maybe("select").map(Value::table).transpose()? {
                None => None,
                Some(select) => {
                    select.only(&["fields"])?;
                    Some(select.need("fields", "[\"bth.opcode\"]")?.strings()?)
                }
            },
            families,
            opcodes: opcodes.iter().map(|table| Opcode::read(sources, table)).collect::<Result<_, _>>()?,
            bind: bindings(sources, top)?,
            flags,
            derivations,
            pad: pad.map(|text| Expression::parse(sources, &text.string()?)).transpose()?,
            checksums: match top.maybe("checksum") {
                None => None,
                Some(value) => {
                    let tables = top.tables("checksum")?;
                    few(&value, "checksum", tables.len(), CHECKSUMS_MAX)?;
                    Some(tables.iter().map(|table| Checksum::read(sources, table)).collect::<Result<_, _>>()?)
                }
            },
            transaction: top.maybe("transaction").map(|value| TransactionRule::read(sources, value)).transpose()?,
            checks: checks(sources, top)?,
        })
    }

    /// This definition on top of the one that it extends: tables are joined by key, `opcode` entries are added (the
    /// same code replaces), every other list replaces.
    pub(crate) fn on_top_of(self, base: Definition) -> Definition {
        let mut opcodes = base.opcodes;
        let replaced = |old: &Opcode| {
            self.opcodes.iter().any(|new| new.code == old.code && new.families.is_empty() && old.families.is_empty())
        };
        opcodes.retain(|old| !replaced(old));
        opcodes.extend(self.opcodes);
        Definition {
            name: self.name,
            title: self.title,
            extends: None,
            recognise: self.recognise.or(base.recognise),
            headers: joined(base.headers, self.headers),
            select: self.select.or(base.select),
            families: joined(base.families, self.families),
            opcodes,
            bind: joined(base.bind, self.bind),
            flags: joined(base.flags, self.flags),
            derivations: Derivations(joined(base.derivations.0, self.derivations.0)),
            pad: self.pad.or(base.pad),
            checksums: self.checksums.or(base.checksums),
            transaction: self.transaction.or(base.transaction),
            checks: if self.checks.is_empty() { base.checks } else { self.checks },
        }
    }
}

fn joined<V>(mut base: BTreeMap<String, V>, over: BTreeMap<String, V>) -> BTreeMap<String, V> {
    base.extend(over);
    base
}

/// The entries of a table of names, at most `maximum`.
fn entries<'a>(
    table: &Table<'a>,
    key: &str,
    maximum: usize,
) -> Result<Vec<(Placed<String>, Value<'a>)>, DefinitionError> {
    let Some(value) = table.maybe(key) else { return Ok(Vec::new()) };
    let entries: Vec<_> = value.clone().table()?.entries().collect();
    few(&value, key, entries.len(), maximum)?;
    Ok(entries)
}

fn few(value: &Value<'_>, what: &str, count: usize, maximum: usize) -> Result<(), DefinitionError> {
    if count <= maximum {
        return Ok(());
    }
    Err(value.error(format!("`{what}` has {count} entries"), format!("at most {maximum}")))
}

fn checks(sources: &Sources<'_>, table: &Table<'_>) -> Result<Vec<Expression>, DefinitionError> {
    let Some(value) = table.maybe("check") else { return Ok(Vec::new()) };
    let texts = value.strings()?;
    few(&value, "check", texts.len(), CHECKS_PER_OPCODE_MAX / 2)?;
    texts.iter().map(|text| Expression::parse(sources, text)).collect()
}

fn bindings(sources: &Sources<'_>, table: &Table<'_>) -> Result<Bindings, DefinitionError> {
    let mut bindings = Bindings::new();
    for (name, value) in entries(table, "bind", Slot::names().count())? {
        let slot = one_slot(sources, &name)?;
        let texts = value.one_or_more()?;
        few(&value, &name.value, texts.len(), HEADERS_PER_PROTOCOL_MAX)?;
        let parsed = texts.iter().map(|text| Expression::parse(sources, text)).collect::<Result<_, _>>()?;
        bindings.insert(name.value, (slot, parsed));
    }
    Ok(bindings)
}

fn one_slot(sources: &Sources<'_>, name: &Placed<String>) -> Result<Slot, DefinitionError> {
    Slot::from_name(&name.value).ok_or_else(|| {
        let known: Vec<&str> = Slot::names().collect();
        let what = format!("a command has no `{}`", name.value);
        sources.error(name.place, what, suggest(&name.value, known.iter().copied()))
    })
}

fn one_flag(sources: &Sources<'_>, name: &Placed<String>) -> Result<Flags, DefinitionError> {
    Flags::from_name(&name.value).ok_or_else(|| {
        let known: Vec<&str> = Flags::names().collect();
        let what = format!("unknown flag `{}`", name.value);
        sources.error(name.place, what, suggest(&name.value, known.iter().copied()))
    })
}

fn one_kind(sources: &Sources<'_>, name: &Placed<String>) -> Result<Kind, DefinitionError> {
    Kind::from_name(&name.value).ok_or_else(|| {
        let known: Vec<&str> = Kind::ALL.iter().map(|kind| kind.name()).collect();
        let what = format!("unknown command `{}`", name.value);
        sources.error(name.place, what, suggest(&name.value, known.iter().copied()))
    })
}

/// A word out of a fixed list.
fn one_of<T: Copy>(value: &Value<'_>, what: &str, known: &[(&str, T)]) -> Result<T, DefinitionError> {
    let text = value.string()?.value;
    known.iter().find(|(name, _)| *name == text).map(|(_, meaning)| *meaning).ok_or_else(|| {
        value.error(format!("unknown {what} `{text}`"), suggest(&text, known.iter().map(|(name, _)| *name)))
    })
}

impl Family {
    fn read(table: &Table<'_>) -> Result<Family, DefinitionError> {
        table.only(&["code", "title", "request", "response"])?;
        let request = table.need("request", "[\"bth\"]")?.strings()?;
        Ok(Family {
            code: table.need("code", "0x20")?.integer(0..=(1 << OPCODE_WIDTH_MAX_BITS) - 1)?,
            title: table.need("title", "\"RC\"")?.string()?.value,
            response: table.maybe("response").map_or_else(|| Ok(request.clone()), |list| list.strings())?,
            request,
        })
    }
}

impl Opcode {
    fn read(sources: &Sources<'_>, table: &Table<'_>) -> Result<Opcode, DefinitionError> {
        table.only(&[
            "code",
            "mask",
            "in",
            "name",
            "response",
            "headers",
            "command",
            "flags",
            "bind",
            "also",
            "split",
            "place",
            "check",
            "transaction",
            "checksums",
        ])?;
        let code = table.need("code", "0x04")?.integer(0..=(1 << OPCODE_WIDTH_MAX_BITS) - 1)?;
        let name = table.need("name", "\"SEND Only\"")?.string()?.value;
        let Some(command) = table.maybe("command") else {
            let what = format!("the opcode `{name}` has no command");
            return Err(sources.error(table.place, what, "write for example `command = \"send\"`"));
        };
        let mut flags = Flags::default();
        for flag in table.maybe("flags").map_or(Ok(Vec::new()), |list| list.strings())? {
            flags = flags | one_flag(sources, &flag)?;
        }
        let mut also = Vec::new();
        for entry in table.maybe("also").map_or(Ok(Vec::new()), |list| list.array())? {
            also.push(Also::read(sources, &entry)?);
        }
        if also.len() > ALSO_MAX {
            return Err(sources.error(table.place, "too many further commands", format!("at most {ALSO_MAX}")));
        }
        let mut families = Vec::new();
        if let Some(value) = table.maybe("in") {
            families = value.strings()?;
            few(&value, "in", families.len(), FAMILIES_MAX)?;
        }
        let headers = table.maybe("headers").map_or(Ok(Vec::new()), |list| list.strings())?;
        if headers.len() > HEADERS_PER_OPCODE_MAX {
            return Err(sources.error(table.place, "too many headers", format!("at most {HEADERS_PER_OPCODE_MAX}")));
        }
        Ok(Opcode {
            code,
            mask: table.maybe("mask").map_or(Ok(u64::MAX), |mask| mask.integer(0..=u64::from(u32::MAX)))?,
            families,
            name,
            response: table.maybe("response").map_or(Ok(false), |value| value.flag())?,
            headers,
            kind: one_kind(sources, &command.string()?)?,
            flags,
            bind: bindings(sources, table)?,
            also,
            split: table.maybe("split").map_or(Ok(false), |value| value.flag())?,
            placement: table
                .maybe("place")
                .map_or(Ok(Placement::None), |value| one_of(&value, "placement", &PLACEMENT_NAMES))?,
            checks: checks(sources, table)?,
            transaction: table.maybe("transaction").map(|value| TransactionRule::read(sources, value)).transpose()?,
            checksums: table.maybe("checksums").map(|list| list.strings()).transpose()?,
            place: table.place,
        })
    }
}

impl Also {
    /// `"notify"`, or `{ command = "notify", keep = ["queue", "immediate"] }`.
    fn read(sources: &Sources<'_>, value: &Value<'_>) -> Result<Also, DefinitionError> {
        if value.is_string() {
            return Ok(Also { kind: one_kind(sources, &value.string()?)?, keep: u16::MAX });
        }
        let table = value.clone().table()?;
        table.only(&["command", "keep"])?;
        let kind = one_kind(sources, &table.need("command", "\"notify\"")?.string()?)?;
        let mut keep = 0;
        for name in table.need("keep", "[\"queue\", \"immediate\"]")?.strings()? {
            keep |= 1 << one_slot(sources, &name)? as u8;
        }
        Ok(Also { kind, keep })
    }
}

impl TransactionRule {
    fn read(sources: &Sources<'_>, value: Value<'_>) -> Result<TransactionRule, DefinitionError> {
        let table = value.table()?;
        table.only(&["by", "fields"])?;
        let known = [
            ("none", TransactionBy::None),
            ("field", TransactionBy::Field),
            ("table", TransactionBy::Table),
            ("match", TransactionBy::Match),
        ];
        let by = one_of(&table.need("by", "\"table\"")?, "way to find a transaction", &known)?;
        let fields = table.maybe("fields").map_or(Ok(Vec::new()), |list| list.strings())?;
        if fields.is_empty() != (by == TransactionBy::None) {
            let instead = "write `fields = [\"header.field\"]`, or `by = \"none\"` without fields";
            return Err(sources.error(table.place, "a transaction is found by fields", instead));
        }
        Ok(TransactionRule { by, fields })
    }
}

impl Checksum {
    fn read(sources: &Sources<'_>, table: &Table<'_>) -> Result<Checksum, DefinitionError> {
        table.only(&["name", "algorithm", "endian", "over", "first", "ones", "field"])?;
        let algorithm = table.need("algorithm", "\"crc32\"")?;
        let known = [
            ("crc32", Algorithm::Crc(CRC32)),
            ("crc32c", Algorithm::Crc(CRC32C)),
            ("vcrc", Algorithm::Crc(VCRC)),
            ("internet", Algorithm::Internet),
            ("sum", Algorithm::Sum),
            ("xor", Algorithm::Xor),
        ];
        let algorithm = if algorithm.is_string() {
            one_of(&algorithm, "checksum algorithm", &known)?
        } else {
            Algorithm::Crc(crc(&algorithm.table()?)?)
        };
        let endian = table.maybe("endian").map_or(Ok(Endian::Big), |value| {
            one_of(&value, "endian", &[("big", Endian::Big), ("little", Endian::Little)])
        })?;
        let name = table.need("name", "\"icrc\"")?.string()?;
        if name.value.is_empty() {
            return Err(sources.error(name.place, "the checksum has an empty name", "write for example \"icrc\""));
        }
        let over =
            table.maybe("over").map_or(Ok(Coverage::Packet), |value| one_of(&value, "coverage", &COVERAGE_NAMES))?;
        let ones = table.maybe("ones").map_or(Ok(Vec::new()), |list| list.strings())?;
        let field = table.maybe("field").map(|field| field.string()).transpose()?;
        let first = table.maybe("first");
        if let Some(first) = first.as_ref().filter(|_| over != Coverage::Packet || !ones.is_empty() || field.is_some())
        {
            let instead = "leave it out, or `over`, `ones` and `field`: it is for a trailer over the packet as it is";
            return Err(first.error("`first` of a checksum that is no plain trailer", instead));
        }
        let first = first.map(|value| First::read(&value.table()?)).transpose()?;
        Ok(Checksum { name, algorithm, endian, over, first, ones, field })
    }
}

/// That only the first bytes are covered, where a field is not zero.
#[derive(Clone, Debug)]
pub(crate) struct First {
    pub(crate) bytes: usize,
    pub(crate) when: Placed<String>,
}

impl First {
    fn read(table: &Table<'_>) -> Result<First, DefinitionError> {
        table.only(&["bytes", "when"])?;
        let bytes = table.need("bytes", "256")?.integer(1..=u64::from(u16::MAX))? as usize;
        Ok(First { bytes, when: table.need("when", "\"header.field\"")?.string()? })
    }
}

/// `{ width = 16, polynomial = 0x1021, initial = 0xffff, final_xor = 0, reflected = false }`.
fn crc(table: &Table<'_>) -> Result<CrcParameters, DefinitionError> {
    table.only(&["width", "polynomial", "initial", "final_xor", "reflected"])?;
    let width_value = table.need("width", "16")?;
    let width = width_value.integer(8..=32)? as u32;
    if !width.is_multiple_of(8) {
        return Err(width_value.error(format!("a CRC of {width} bits"), "it must have 8, 16, 24 or 32"));
    }
    let number = |key: &str| table.maybe(key).map_or(Ok(0), |value| value.integer(0..=u64::MAX >> (64 - width)));
    Ok(CrcParameters {
        width,
        polynomial: table.need("polynomial", "0x1021")?.integer(0..=u64::MAX >> (64 - width))? as u32,
        initial: number("initial")? as u32,
        final_xor: number("final_xor")? as u32,
        reflected: table.maybe("reflected").map_or(Ok(false), |value| value.flag())?,
    })
}

/// Splits `header.field`.
pub(crate) fn header_and_field<'a>(
    sources: &Sources<'_>,
    headers: &'a BTreeMap<String, Header>,
    name: &Placed<String>,
) -> Result<(&'a str, &'a Header, &'a super::layout::Field), DefinitionError> {
    let (header_name, field_name) = name.value.split_once('.').unwrap_or((&name.value, ""));
    let Some((key, header)) = headers.get_key_value(header_name) else {
        let what = format!("there is no header `{header_name}`");
        let instead = suggest(header_name, headers.keys().map(String::as_str));
        return Err(sources.error(name.place, what, instead));
    };
    let field = header.field(field_name).ok_or_else(|| {
        let what = format!("the header `{header_name}` has no field `{field_name}`");
        let known: Vec<String> = header.fields.iter().filter(|f| !f.filler).map(|f| f.name.to_owned()).collect();
        sources.error(name.place, what, suggest(field_name, known.iter().map(String::as_str)))
    })?;
    Ok((key, header, field))
}
