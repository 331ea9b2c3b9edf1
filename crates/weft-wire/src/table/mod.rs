//! Protocols as tables: definition files are loaded, compiled to flat tables, and drive both directions.
//!
//! | stage | what it does | where |
//! |---|---|---|
//! | load | TOML to a checked definition, errors with line and column | `source`, `definition`, `layout`, `expression` |
//! | compile | definition to tables | `compile` |
//! | protocol index | what the parse graph saw to a protocol | `index` |
//! | opcode extraction, command translation | packet to a number in the control table | `decode` |
//! | control table, field programs | packet to generic commands | `row`, `decode`, `extract`, `expression` |
//! | encode | command or fields to a packet | `encode` |
//! | checksums | computed and verified | `integrity` |
//!
//! Read [`Tables`] first, then `decode`.

mod compile;
mod decode;
mod definition;
mod encode;
mod expression;
mod extract;
mod index;
mod integrity;
mod layout;
mod row;
mod source;
#[cfg(test)]
mod tests;

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::checksum::Crc;
use crate::command::{Command, Slot};
use crate::limits::PROTOCOLS_MAX;
use definition::{Also, Definition};
use expression::Program;
use extract::{Endian, Extract};
use index::Index;
use row::Row;
use source::{Sources, suggest};

pub use decode::{Commands, DecodeError, Decoded, ValidationError};
pub use definition::{Coverage, Placement, TransactionBy};
pub use encode::{EncodeError, FieldHandle, FieldValue, Fields, SetError};
pub use expression::{ATTRIBUTES, Attribute, Attributes};
pub(crate) use index::Term;
pub use index::{FrameKind, Link, Seen, Tunnel};
pub use integrity::{Checked, Integrity, Outer};
pub use source::{DefinitionError, Source};

/// The definitions that come with this crate.
pub const BUILTIN: [Source<'static>; 6] = [
    Source { file: "infiniband.toml", text: include_str!("../../../../protocols/infiniband.toml") },
    Source { file: "roce-v1.toml", text: include_str!("../../../../protocols/roce-v1.toml") },
    Source { file: "roce-v2.toml", text: include_str!("../../../../protocols/roce-v2.toml") },
    Source { file: "iwarp.toml", text: include_str!("../../../../protocols/iwarp.toml") },
    Source { file: "mpa.toml", text: include_str!("../../../../protocols/mpa.toml") },
    Source { file: "srdma.toml", text: include_str!("../../../../protocols/srdma.toml") },
];

/// A protocol in a set of [`Tables`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProtocolId(pub(crate) u16);

/// An opcode of a protocol: a row of its control table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpcodeId(pub(crate) u16);

/// All protocols, compiled. Nothing changes after loading, so one set serves any number of threads.
#[derive(Debug, Default)]
pub struct Tables {
    protocols: Vec<Protocol>,
    index: Index,
}

impl Tables {
    /// Loads definitions. A file may extend any other of the same call; files of one name are an error.
    pub fn load(files: &[Source<'_>]) -> Result<Tables, DefinitionError> {
        Tables::load_over(files, 0)
    }

    /// The protocols that come with Weft.
    pub fn builtin() -> Result<Tables, DefinitionError> {
        Tables::load(&BUILTIN)
    }

    /// The protocols that come with Weft, and these. One of the same name replaces Weft's.
    pub fn builtin_and(files: &[Source<'_>]) -> Result<Tables, DefinitionError> {
        let mut all = BUILTIN.to_vec();
        all.extend_from_slice(files);
        Tables::load_over(&all, BUILTIN.len())
    }

    /// Loads; any of the first `replaceable` files gives way to a later one of the same name.
    fn load_over(files: &[Source<'_>], replaceable: usize) -> Result<Tables, DefinitionError> {
        let sources = Sources(files);
        let mut definitions: Vec<Definition> = Vec::new();
        for number in 0..files.len() {
            let definition = sources.parse(number, |top| Definition::read(&sources, &top))?;
            let same = |known: &Definition| known.name.value == definition.name.value;
            if number >= replaceable {
                definitions.retain(|known| !(same(known) && known.name.place.file < replaceable));
            }
            let taken = definitions.iter().any(same);
            if taken || definitions.len() == PROTOCOLS_MAX {
                let (what, instead) = if taken {
                    (format!("the protocol `{}` is defined twice", definition.name.value), "choose another name".into())
                } else {
                    (format!("more than {PROTOCOLS_MAX} protocols"), String::from("load fewer at once"))
                };
                return Err(sources.error(definition.name.place, what, instead));
            }
            definitions.push(definition);
        }
        let mut tables = Tables::default();
        for (number, definition) in (0u16..).zip(&definitions) {
            let whole = whole(&sources, &definitions, definition)?;
            tables.index.add(whole.recognise.as_deref().unwrap_or(&[]), number);
            tables.protocols.push(compile::protocol(&sources, &whole)?);
        }
        Ok(tables)
    }

    /// All protocols in order of loading.
    pub fn protocols(&self) -> impl Iterator<Item = (ProtocolId, &Protocol)> {
        (0u16..).map(ProtocolId).zip(&self.protocols)
    }

    /// The protocol of this name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<ProtocolId> {
        self.protocols().find(|(_, protocol)| protocol.name == name).map(|(id, _)| id)
    }

    /// The tables of one protocol. `None` for an id from another set of tables.
    #[must_use]
    pub fn protocol(&self, id: ProtocolId) -> Option<&Protocol> {
        self.protocols.get(usize::from(id.0))
    }

    /// How a protocol is recognised, one text for each rule.
    pub fn rules(&self, id: ProtocolId) -> impl Iterator<Item = String> {
        self.index.rules(id.0)
    }

    /// What a rule of the protocol wants to see, by the name that definitions use (`udp_destination`, `ethertype`, …).
    #[must_use]
    pub fn recognised_by(&self, id: ProtocolId, name: &str) -> Option<u64> {
        self.index.wanted(id.0, name)
    }

    /// The protocol of a packet of which this was seen.
    #[inline]
    #[must_use]
    pub fn identify(&self, seen: &Seen) -> Option<ProtocolId> {
        self.index.find(seen).map(ProtocolId)
    }
}

/// A definition joined with all that it extends.
fn whole(sources: &Sources<'_>, all: &[Definition], definition: &Definition) -> Result<Definition, DefinitionError> {
    let mut whole = definition.clone();
    let mut steps = 0;
    while let Some(base_name) = whole.extends.clone() {
        let Some(base) = all.iter().find(|known| known.name.value == base_name.value) else {
            let what = format!("there is no protocol `{}` to extend", base_name.value);
            let known = suggest(&base_name.value, all.iter().map(|known| known.name.value.as_str()));
            return Err(sources.error(base_name.place, what, known));
        };
        steps += 1;
        if steps > all.len() {
            let what = format!("`{}` extends itself", definition.name.value);
            return Err(sources.error(base_name.place, what, "extend a protocol that stands on its own"));
        }
        let next = base.extends.clone();
        whole = whole.on_top_of(base.clone());
        whole.extends = next;
    }
    Ok(whole)
}

/// One protocol's tables.
#[derive(Debug)]
pub struct Protocol {
    name: String,
    title: String,
    /// The fields that make the opcode, each with its place in it.
    select_fields: Box<[(Extract, u32)]>,
    select: Select,
    /// Opcode to row of the control table.
    translation: Box<[u16]>,
    controls: Vec<Control>,
    /// The control table again, specialised for speed: as many rows.
    rows: Vec<Row>,
    checksums: Vec<ChecksumTable>,
    /// Head slot of a command (without variable flags) to row of the control table, sorted.
    reverse: Vec<(u64, u16)>,
    /// Flags that come from fields, so that they do not choose the opcode.
    variable_flags: u32,
}

const NO_OPCODE: u16 = u16::MAX;
const NO_SLOT: u8 = u8::MAX;

/// How the opcode is taken from a packet.
#[derive(Debug)]
enum Select {
    /// All in one byte, whose values stand for rows of the control table.
    Byte { offset: u8, rows: Box<[u16; 256]> },
    /// In two bytes: the values of the one choose among tables for the other.
    Bytes { offsets: [u8; 2], choice: Box<[u8; 256]>, rows: Box<[[u16; 256]]> },
    /// Anywhere.
    Fields(Box<[(Extract, u32)]>),
}

/// A field into a slot, or out of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SlotExtract {
    extract: Extract,
    slot: u8,
    up: u8,
}

/// A slot into a field of 1, 2, 4 or 8 whole bytes, most significant first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Store {
    offset: u8,
    bytes: u8,
    slot: u8,
}

/// A bit of a slot into a bit of a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BitStore {
    slot: u8,
    up: u8,
    offset: u8,
    mask: u8,
}

/// `field == constant`, as a masked comparison.
#[derive(Clone, Debug)]
struct Test {
    window: Extract,
    mask: u64,
    value: u64,
    text: Box<str>,
}

/// How many bytes behind the payload only fill up.
#[derive(Clone, Debug)]
enum Pad {
    None,
    Field(Extract),
    Program(Program),
}

/// A row of the control table: all that is to be done with packets of one opcode. What the fast path reads comes first.
#[derive(Debug)]
struct Control {
    header_length: u8,
    trailer_length: u8,
    /// The slot that takes the payload's length.
    payload_slot: u8,
    pad: Pad,
    template: Command,
    tests: Box<[Test]>,
    extracts: Box<[SlotExtract]>,
    little: Box<[SlotExtract]>,
    programs: Box<[(Slot, Program)]>,
    checks: Box<[(Program, Box<str>)]>,
    context_checks: Box<[(Program, Box<str>)]>,
    also: Box<[Also]>,
    split: bool,
    placement: Placement,
    transaction_by: TransactionBy,
    sequence_bits: u8,

    // What encoding reads.
    bytes_template: Box<[u8]>,
    /// Slots that fill whole bytes, those that set one bit, and all others.
    stores: Box<[Store]>,
    bits: Box<[BitStore]>,
    inserts: Box<[SlotExtract]>,
    /// For each slot that is inserted, the bits that its fields can hold.
    room: Box<[(Slot, u64)]>,
    computed: Box<[(Extract, Program)]>,

    // What people and tests read.
    code: u16,
    name: String,
    headers: Vec<HeaderTable>,
    fields: Vec<FieldTable>,
    /// The checksums that this opcode carries, in the order of writing: a later one may cover an earlier one.
    sums: Box<[SumRow]>,
}

#[derive(Debug)]
struct HeaderTable {
    name: String,
    title: String,
    offset: usize,
    bytes: usize,
}

#[derive(Debug)]
struct FieldTable {
    header: usize,
    name: String,
    full_name: String,
    /// In its header, counted as `endian` says.
    bit: usize,
    width: usize,
    endian: Endian,
    extracts: Box<[Extract]>,
    filler: bool,
}

/// A checksum of one opcode.
#[derive(Debug)]
struct SumRow {
    /// Which of the protocol's checksums.
    number: usize,
    place: SumPlace,
    /// It covers no more than so many bytes where this field is not zero.
    first: Option<(Extract, usize)>,
    /// Bytes of the headers that are changed before they are summed: what counts as ones, and the checksum itself.
    masks: Box<[ByteMask]>,
}

/// Where a checksum is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SumPlace {
    /// In a field of a header.
    Field(Extract),
    /// A trailer that begins so many bytes before the packet's end.
    Trailer(usize),
}

/// A change to one byte of the headers: these bits are kept, those are set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ByteMask {
    offset: u8,
    keep: u8,
    set: u8,
}

#[derive(Debug)]
enum Sum {
    Crc(Crc),
    Internet,
    Bytes,
    Xor,
}

#[derive(Debug)]
struct ChecksumTable {
    name: String,
    sum: Sum,
    endian: Endian,
    over: Coverage,
    trailer_bytes: usize,
    bytes: usize,
}

/// What a definition says of one opcode, for people.
#[derive(Clone, Copy, Debug)]
pub struct OpcodeInfo<'a> {
    control: &'a Control,
    /// Its number in the tables.
    pub id: OpcodeId,
}

/// What a definition says of one field, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldInfo<'a> {
    /// Number of its header in [`OpcodeInfo::headers`].
    pub header: usize,
    /// Its name in the header.
    pub name: &'a str,
    /// First bit in the header.
    pub bit: usize,
    /// Bits.
    pub width: usize,
    /// Whether bits are counted from the least significant one.
    pub little_endian: bool,
}

impl Protocol {
    /// The name, as in `extends` and on the command line.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name for people.
    #[must_use]
    pub fn title(&self) -> &str {
        &self.title
    }

    /// All opcodes.
    pub fn opcodes(&self) -> impl Iterator<Item = OpcodeInfo<'_>> {
        (0u16..).zip(&self.controls).map(|(number, control)| OpcodeInfo { control, id: OpcodeId(number) })
    }

    /// One opcode.
    #[must_use]
    pub fn opcode(&self, id: OpcodeId) -> Option<OpcodeInfo<'_>> {
        self.control(id).map(|control| OpcodeInfo { control, id })
    }

    /// Names of the checksums, in the order of [`Integrity`].
    pub fn checksum_names(&self) -> impl Iterator<Item = &str> {
        self.checksums.iter().map(|checksum| checksum.name.as_str())
    }

    fn control(&self, id: OpcodeId) -> Option<&Control> {
        self.controls.get(usize::from(id.0))
    }
}

impl<'a> OpcodeInfo<'a> {
    /// The name for people.
    #[must_use]
    pub fn name(&self) -> &'a str {
        &self.control.name
    }

    /// The number on the wire.
    #[must_use]
    pub fn code(&self) -> u16 {
        self.control.code
    }

    /// The command it becomes, with the flags that the opcode itself says.
    #[must_use]
    pub fn command(&self) -> Command {
        self.control.template
    }

    /// Whether packets of it say anything about this slot.
    #[must_use]
    pub fn fills(&self, slot: Slot) -> bool {
        let control = self.control;
        let number = slot as u8;
        control.payload_slot == number
            || control.extracts.iter().chain(&control.little).any(|extract| extract.slot == number)
            || control.programs.iter().any(|(bound, _)| *bound == slot)
    }

    /// Bytes of its headers.
    #[must_use]
    pub fn header_length(&self) -> usize {
        usize::from(self.control.header_length)
    }

    /// Where its payload goes.
    #[must_use]
    pub fn placement(&self) -> Placement {
        self.control.placement
    }

    /// How its transaction is found.
    #[must_use]
    pub fn transaction_by(&self) -> TransactionBy {
        self.control.transaction_by
    }

    /// The further commands it asks for.
    pub fn also(&self) -> impl Iterator<Item = crate::command::Kind> + 'a {
        self.control.also.iter().map(|also| also.kind)
    }

    /// Its headers: name, title, first byte, bytes.
    pub fn headers(&self) -> impl Iterator<Item = (&'a str, &'a str, usize, usize)> {
        self.control.headers.iter().map(|h| (h.name.as_str(), h.title.as_str(), h.offset, h.bytes))
    }

    /// Its fields in wire order. Bits that the definition does not name are left out.
    pub fn fields(&self) -> impl Iterator<Item = FieldInfo<'a>> {
        self.control.fields.iter().filter(|field| !field.filler).map(|field| FieldInfo {
            header: field.header,
            name: &field.name,
            bit: field.bit,
            width: field.width,
            little_endian: field.endian == Endian::Little,
        })
    }
}
