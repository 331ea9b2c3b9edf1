//! From definitions to flat tables: everything that can be known at load is done here, nothing of it per packet.

mod names;
mod sums;

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use self::names::special;
use super::definition::{Definition, Opcode, TransactionBy, TransactionRule, header_and_field};
use super::expression::{Expression, Operand, Program};
use super::extract::Extract;
use super::layout::Header;
use super::row::{FlagTables, Row};
use super::source::{DefinitionError, Placed, Sources, suggest};
use super::{Control, FieldTable, HeaderTable, NO_OPCODE, NO_SLOT, Pad, Protocol, Select, SlotExtract, Test};
use crate::command::{Command, Flags, KIND_BITS, Slot};
use crate::limits::{
    FIELDS_PER_OPCODE_MAX, HEADER_LENGTH_MAX_BYTES, HEADERS_PER_OPCODE_MAX, OPCODE_WIDTH_MAX_BITS,
    OPCODES_PER_PROTOCOL_MAX,
};

/// Compiles one definition.
pub(crate) fn protocol(sources: &Sources<'_>, definition: &Definition) -> Result<Protocol, DefinitionError> {
    definition.derivations.check(sources)?;
    Compiler { sources, definition }.protocol()
}

/// Select fields by name, each with how far up its value goes in the opcode.
type SelectFields<'a> = Vec<(&'a Placed<String>, u32)>;

struct Compiler<'a> {
    sources: &'a Sources<'a>,
    definition: &'a Definition,
}

/// An opcode with its family applied: what `[[opcode]]` and `[family]` say together.
struct Expanded<'a> {
    opcode: &'a Opcode,
    code: u64,
    name: String,
    class: u32,
    headers: Vec<&'a Placed<String>>,
}

/// The headers of one opcode, laid out.
struct Laid<'a> {
    /// Name, header, first byte.
    headers: Vec<(&'a str, &'a Header, usize)>,
    length: usize,
}

impl Laid<'_> {
    fn extract(&self, header: &str, field: &str) -> Option<Extract> {
        let (_, found, base) = self.headers.iter().find(|(name, ..)| *name == header)?;
        match found.field(field)?.extracts(*base, self.length).as_slice() {
            [one] => Some(*one),
            _ => None,
        }
    }
}

impl<'a> Compiler<'a> {
    fn protocol(&self) -> Result<Protocol, DefinitionError> {
        let definition = self.definition;
        let sources = self.sources;
        let missing = |what: &str, example: &str| {
            sources.error(definition.name.place, format!("the protocol has no {what}"), format!("write {example}"))
        };
        if definition.recognise.as_ref().is_none_or(Vec::is_empty) {
            return Err(missing("`[[recognise]]`", "for example `[[recognise]]` and `udp_destination = 4791`"));
        }
        let select = definition.select.as_deref().unwrap_or(&[]);
        if select.is_empty() {
            return Err(missing("`[select]`", "`[select]` and `fields = [\"header.field\"]`: where the opcode is"));
        }
        self.names_are_known()?;

        let (bits, select_fields) = self.select_fields(select)?;
        let expanded = self.expand(bits)?;
        if expanded.is_empty() {
            return Err(missing("opcode", "at least one `[[opcode]]`"));
        }
        let mut protocol = Protocol {
            name: definition.name.value.clone(),
            title: definition.title.clone().unwrap_or_else(|| definition.name.value.clone()),
            select_fields: Box::default(),
            select: Select::Fields(Box::default()),
            translation: vec![NO_OPCODE; 1 << bits].into_boxed_slice(),
            controls: Vec::new(),
            rows: Vec::new(),
            checksums: self.checksums()?,
            reverse: Vec::new(),
            variable_flags: self.variable_flags()?,
        };
        let mut select_at: Vec<Option<Extract>> = vec![None; select_fields.len()];
        for opcode in &expanded {
            let laid = self.lay(opcode)?;
            self.select_is_fixed(opcode, &laid, &select_fields, &mut select_at)?;
            let number = protocol.controls.len();
            self.translate(&mut protocol, opcode, number, &expanded)?;
            let control = self.control(&protocol, opcode, &laid)?;
            protocol.controls.push(control);
        }
        let mut parts = Vec::new();
        // The select may lie behind the headers of a short opcode, so its windows are those of a long packet.
        for ((name, up), at) in select_fields.iter().zip(&select_at) {
            let place = name.place;
            let Some(extract) = at else {
                let what = format!("no opcode has the select field `{}`", name.value);
                return Err(sources.error(place, what, "put its header into the opcodes' lists"));
            };
            parts.push((*extract, *up));
        }
        protocol.select = Select::new(&parts, &protocol.translation);
        protocol.select_fields = parts.into();
        self.reverse(&mut protocol, &expanded)?;
        let mut flag_tables = FlagTables::new();
        protocol.rows = protocol.controls.iter().map(|control| Row::new(control, &mut flag_tables)).collect();
        Ok(protocol)
    }

    /// Width of the opcode, and each select field with the place of its value in it (most significant first).
    fn select_fields(&self, select: &'a [Placed<String>]) -> Result<(u32, SelectFields<'a>), DefinitionError> {
        let mut bits = 0;
        let mut widths = Vec::new();
        for name in select {
            let (_, _, field) = header_and_field(self.sources, &self.definition.headers, name)?;
            bits += field.width as u32;
            widths.push((name, field.width as u32));
            if bits > OPCODE_WIDTH_MAX_BITS {
                let what = format!("the opcode has {bits} bits or more");
                return Err(self.sources.error(name.place, what, format!("at most {OPCODE_WIDTH_MAX_BITS}")));
            }
        }
        let mut up = bits;
        for (_, width) in &mut widths {
            up -= *width;
            *width = up;
        }
        Ok((bits, widths))
    }

    /// One entry for every opcode and family.
    fn expand(&self, bits: u32) -> Result<Vec<Expanded<'a>>, DefinitionError> {
        // Counted before they are made: a short file can ask for very many, each with a copy of a long name.
        let count: usize = self.definition.opcodes.iter().map(|opcode| opcode.families.len().max(1)).sum();
        if count > OPCODES_PER_PROTOCOL_MAX {
            let what = format!("{count} opcodes after families are applied");
            let instead = format!("at most {OPCODES_PER_PROTOCOL_MAX}");
            return Err(self.sources.error(self.definition.name.place, what, instead));
        }
        let mut by_code: Vec<_> = self.definition.families.iter().collect();
        by_code.sort_by_key(|(_, family)| family.code);
        let mut expanded = Vec::new();
        for opcode in &self.definition.opcodes {
            let mut add = |code: u64, name: String, class: u32, first: &'a [Placed<String>]| {
                let headers: Vec<_> = first.iter().chain(&opcode.headers).collect();
                expanded.push(Expanded { opcode, code, name, class, headers });
            };
            if opcode.families.is_empty() {
                add(opcode.code, opcode.name.clone(), 0, &[]);
            }
            for wanted in &opcode.families {
                let found = (1u32..).zip(&by_code).find(|(_, (name, _))| **name == wanted.value);
                let Some((class, (_, family))) = found else {
                    let what = format!("there is no family `{}`", wanted.value);
                    let instead = suggest(&wanted.value, self.definition.families.keys().map(String::as_str));
                    return Err(self.sources.error(wanted.place, what, instead));
                };
                if family.code & opcode.code != 0 {
                    let what = format!(
                        "the code {:#x} and the family code {:#x} have bits in common",
                        opcode.code, family.code
                    );
                    return Err(self.sources.error(opcode.place, what, "a family's code is added to the opcode's"));
                }
                let first = if opcode.response { &family.response } else { &family.request };
                add(family.code | opcode.code, format!("{} {}", family.title, opcode.name), class, first);
            }
        }
        for entry in &expanded {
            if entry.code >> bits != 0 {
                let what = format!("the code {:#x} of `{}` does not fit the select fields", entry.code, entry.name);
                return Err(self.sources.error(entry.opcode.place, what, format!("they have {bits} bits together")));
            }
        }
        Ok(expanded)
    }

    fn lay(&self, opcode: &Expanded<'a>) -> Result<Laid<'a>, DefinitionError> {
        let mut laid = Laid { headers: Vec::new(), length: 0 };
        for name in &opcode.headers {
            let Some((key, header)) = self.definition.headers.get_key_value(&name.value) else {
                let what = format!("there is no header `{}`", name.value);
                let instead = suggest(&name.value, self.definition.headers.keys().map(String::as_str));
                return Err(self.sources.error(name.place, what, instead));
            };
            if laid.headers.iter().any(|(known, ..)| known == key) {
                let what = format!("the header `{key}` comes twice in `{}`", opcode.name);
                return Err(self.sources.error(name.place, what, "name each header once"));
            }
            laid.headers.push((key, header, laid.length));
            laid.length += header.bytes;
        }
        let at = opcode.opcode.place;
        if laid.headers.is_empty() {
            let what = format!("the opcode `{}` has no headers", opcode.name);
            return Err(self.sources.error(at, what, "write for example `headers = [\"bth\"]`"));
        }
        if laid.length > HEADER_LENGTH_MAX_BYTES || laid.headers.len() > HEADERS_PER_OPCODE_MAX {
            let what = format!("the headers of `{}` have {} bytes together", opcode.name, laid.length);
            let instead = format!("at most {HEADER_LENGTH_MAX_BYTES} bytes in {HEADERS_PER_OPCODE_MAX} headers");
            return Err(self.sources.error(at, what, instead));
        }
        Ok(laid)
    }

    /// Every opcode must have the select fields in the same place, or not care about them.
    fn select_is_fixed(
        &self,
        opcode: &Expanded<'a>,
        laid: &Laid<'a>,
        fields: &[(&Placed<String>, u32)],
        known: &mut [Option<Extract>],
    ) -> Result<(), DefinitionError> {
        for ((name, up), known) in fields.iter().zip(known) {
            let (header_name, _, field) = header_and_field(self.sources, &self.definition.headers, name)?;
            let at = opcode.opcode.place;
            let Some((_, _, base)) = laid.headers.iter().find(|(header, ..)| *header == header_name) else {
                let cares = opcode.opcode.mask >> up & ((1 << field.width) - 1) != 0;
                if cares {
                    let what = format!("`{}` is selected by `{}` but has no such header", opcode.name, name.value);
                    let instead = format!("add the header `{header_name}` or leave the field out with `mask`");
                    return Err(self.sources.error(at, what, instead));
                }
                continue;
            };
            let extract = Extract::new(base * 8 + field.bit, field.width, field.endian, usize::MAX);
            match (&known, extract) {
                (_, None) => {}
                (None, Some(_)) => *known = extract,
                (Some(first), Some(here)) if *first == here => {}
                _ => {
                    let what = format!("in `{}` the select field `{}` lies elsewhere", opcode.name, name.value);
                    let instead = "the select fields must be at the same place in all opcodes";
                    return Err(self.sources.error(at, what, instead));
                }
            }
        }
        Ok(())
    }

    fn translate(
        &self,
        protocol: &mut Protocol,
        opcode: &Expanded<'_>,
        number: usize,
        all: &[Expanded<'_>],
    ) -> Result<(), DefinitionError> {
        let mask = opcode.opcode.mask;
        for (code, entry) in (0u64..).zip(protocol.translation.iter_mut()) {
            if (code ^ opcode.code) & mask != 0 {
                continue;
            }
            if *entry != NO_OPCODE {
                let other = all.get(usize::from(*entry)).map_or("?", |other| other.name.as_str());
                let what = format!("the code {code:#x} of `{}` is taken by `{other}`", opcode.name);
                return Err(self.sources.error(opcode.opcode.place, what, "give each opcode a code of its own"));
            }
            *entry = number as u16;
        }
        Ok(())
    }

    fn control(&self, protocol: &Protocol, opcode: &Expanded<'a>, laid: &Laid<'a>) -> Result<Control, DefinitionError> {
        let flags = Flags(opcode.opcode.flags.0 | opcode.class << Flags::CLASS_SHIFT);
        if opcode.opcode.flags.0 & protocol.variable_flags != 0 {
            let what = format!("`{}` sets a flag that `[flags]` takes from the packet", opcode.name);
            return Err(self.sources.error(opcode.opcode.place, what, "leave it to one of the two"));
        }
        let checksums = self.checksums_of(opcode)?;
        let trailer_length: usize =
            checksums.iter().filter_map(|n| protocol.checksums.get(*n)).map(|c| c.trailer_bytes).sum();
        let mut control = Control {
            header_length: laid.length as u8,
            trailer_length: trailer_length as u8,
            payload_slot: NO_SLOT,
            pad: self.pad(laid)?,
            template: Command::new(opcode.opcode.kind, flags),
            tests: Box::default(),
            extracts: Box::default(),
            little: Box::default(),
            programs: Box::default(),
            checks: Box::default(),
            context_checks: Box::default(),
            also: opcode.opcode.also.clone().into_boxed_slice(),
            split: opcode.opcode.split,
            placement: opcode.opcode.placement,
            transaction_by: TransactionBy::None,
            sequence_bits: 64,
            code: opcode.code as u16,
            name: opcode.name.clone(),
            headers: laid
                .headers
                .iter()
                .map(|(name, header, base)| HeaderTable {
                    name: (*name).to_string(),
                    title: header.title.clone(),
                    offset: *base,
                    bytes: header.bytes,
                })
                .collect(),
            fields: self.fields(laid, opcode)?,
            bytes_template: Box::default(),
            stores: Box::default(),
            bits: Box::default(),
            inserts: Box::default(),
            room: Box::default(),
            computed: Box::default(),
            sums: self.sums(&protocol.checksums, &checksums, laid),
        };
        self.pad_is_final(&control, laid)?;
        self.bind(&mut control, opcode, laid)?;
        self.transaction(&mut control, opcode, laid)?;
        self.checks(&mut control, opcode, laid)?;
        self.encode(&mut control, opcode, laid)?;
        Ok(control)
    }

    fn fields(&self, laid: &Laid<'_>, opcode: &Expanded<'_>) -> Result<Vec<FieldTable>, DefinitionError> {
        let mut fields = Vec::new();
        let mut windows = 0;
        for (header_number, (header_name, header, base)) in laid.headers.iter().enumerate() {
            for field in &header.fields {
                let extracts = field.extracts(*base, laid.length);
                windows += extracts.len();
                fields.push(FieldTable {
                    header: header_number,
                    name: field.name.clone(),
                    full_name: format!("{header_name}.{}", field.name),
                    bit: field.bit,
                    width: field.width,
                    endian: field.endian,
                    extracts: extracts.into_boxed_slice(),
                    filler: field.filler,
                });
            }
        }
        if windows > FIELDS_PER_OPCODE_MAX {
            let what = format!("the headers of `{}` have {windows} fields", opcode.name);
            let instead = format!("at most {FIELDS_PER_OPCODE_MAX}: join those that nobody reads alone");
            return Err(self.sources.error(opcode.opcode.place, what, instead));
        }
        Ok(fields)
    }

    fn pad(&self, laid: &Laid<'_>) -> Result<Pad, DefinitionError> {
        let Some(expression) = &self.definition.pad else { return Ok(Pad::None) };
        let Some(program) = self.link(expression, laid)? else { return Ok(Pad::None) };
        // The payload's length follows from the pad, so that the pad cannot follow from it.
        if !program.loads().all(|operand| matches!(operand, Operand::Field(_) | Operand::Headers)) {
            let what = format!("the pad `{}` is not made of fields", expression.text);
            return Err(self.sources.error(expression.place, what, "use `header.field` and `headers` only"));
        }
        Ok(match program.as_field() {
            Some(extract) => Pad::Field(extract),
            None => Pad::Program(program),
        })
    }

    /// Slots from fields: the heart of a control entry.
    fn bind(&self, control: &mut Control, opcode: &Expanded<'_>, laid: &Laid<'_>) -> Result<(), DefinitionError> {
        let mut extracts = Vec::new();
        let mut programs = Vec::new();
        let mut taken: BTreeMap<Slot, String> = BTreeMap::new();
        let own = &opcode.opcode.bind;
        let inherited = self.definition.bind.iter().filter(|(name, _)| !own.contains_key(*name));
        for (own, (name, (slot, expressions))) in own.iter().map(|b| (true, b)).chain(inherited.map(|b| (false, b))) {
            let mut program = None;
            for expression in expressions {
                program = self.link(expression, laid)?.map(|program| (program, expression));
                if program.is_some() {
                    break;
                }
            }
            let Some((program, expression)) = program else {
                if let (true, Some(expression)) = (own, expressions.first()) {
                    let what = format!("`{}` has not the headers of `{}`", opcode.name, expression.text);
                    return Err(self.sources.error(expression.place, what, "add the header or change the expression"));
                }
                continue;
            };
            if program.needs_context() {
                let what = format!("`{name}` is not in the packet: `{}`", expression.text);
                let instead = "`connection.…` and `transaction.…` are only known to a `check`";
                return Err(self.sources.error(expression.place, what, instead));
            }
            if let Some(other) = taken.insert(*slot, name.clone()) {
                let what = format!("in `{}`, `{other}` and `{name}` share one place in the command", opcode.name);
                return Err(self.sources.error(expression.place, what, "bind only one of them here"));
            }
            if let Some(extract) = program.as_field() {
                if *slot == Slot::Sequence {
                    control.sequence_bits = extract.width() as u8;
                }
                extracts.push(SlotExtract { extract, slot: *slot as u8, up: 0 });
            } else if program.is_payload() {
                // Two slots with the payload's length are rare: the second one is a program.
                if control.payload_slot == NO_SLOT {
                    control.payload_slot = *slot as u8;
                } else {
                    programs.push((*slot, program));
                }
            } else {
                programs.push((*slot, program));
            }
        }
        for (name, field) in &self.definition.flags {
            let Some((header, field_name)) = field.value.split_once('.') else { continue };
            let Some(extract) = laid.extract(header, field_name) else { continue };
            let bit = Flags::from_name(name).map_or(0, |flag| flag.0.trailing_zeros());
            extracts.push(SlotExtract { extract, slot: Slot::Head as u8, up: (KIND_BITS + bit) as u8 });
        }
        let (little, big): (Vec<_>, Vec<_>) = extracts.into_iter().partition(|e: &SlotExtract| e.extract.little);
        control.extracts = big.into_boxed_slice();
        control.little = little.into_boxed_slice();
        control.programs = programs.into_boxed_slice();
        Ok(())
    }

    /// The bits that name the transaction, side by side in its slot, first field most significant.
    fn transaction(
        &self,
        control: &mut Control,
        opcode: &Expanded<'_>,
        laid: &Laid<'_>,
    ) -> Result<(), DefinitionError> {
        let own = opcode.opcode.transaction.as_ref();
        let Some(TransactionRule { by, fields }) = own.or(self.definition.transaction.as_ref()) else { return Ok(()) };
        let mut parts = Vec::new();
        let mut bits = 0;
        for name in fields {
            let (header, _, field) = header_and_field(self.sources, &self.definition.headers, name)?;
            let Some(extract) = laid.extract(header, &field.name) else {
                if own.is_none() {
                    return Ok(());
                }
                let what = format!("`{}` finds its transaction by `{}`, which it lacks", opcode.name, name.value);
                return Err(self.sources.error(name.place, what, format!("add the header `{header}`")));
            };
            bits += extract.width();
            if bits > 64 {
                let what = format!("the fields that name the transaction have {bits} bits");
                return Err(self.sources.error(name.place, what, "at most 64 together"));
            }
            parts.push(extract);
        }
        control.transaction_by = *by;
        let slot = Slot::Transaction as u8;
        let bound = control.extracts.iter().chain(&control.little).any(|e| e.slot == slot);
        if let (true, Some(first)) = (bound || control.programs.iter().any(|(s, _)| *s as u8 == slot), fields.first()) {
            let what = format!("`{}` has a `transaction` bound already", opcode.name);
            return Err(self.sources.error(first.place, what, "write it in `[bind]` or in `[transaction]`, not both"));
        }
        let mut big = control.extracts.to_vec();
        let mut little = control.little.to_vec();
        for extract in parts {
            bits -= extract.width();
            let list = if extract.little { &mut little } else { &mut big };
            list.push(SlotExtract { extract, slot, up: bits as u8 });
        }
        control.extracts = big.into_boxed_slice();
        control.little = little.into_boxed_slice();
        Ok(())
    }

    /// `field == constant` becomes one masked comparison; those in the same window become one together.
    fn checks(&self, control: &mut Control, opcode: &Expanded<'_>, laid: &Laid<'_>) -> Result<(), DefinitionError> {
        let mut tests: Vec<Test> = Vec::new();
        let mut checks = Vec::new();
        let mut context_checks = Vec::new();
        for expression in self.definition.checks.iter().chain(&opcode.opcode.checks) {
            let Some(program) = self.link(expression, laid)? else { continue };
            let text: Box<str> = expression.text.as_str().into();
            if let Some((extract, value)) = program.as_field_equals() {
                let Some((mask, value)) = extract.as_window_test(value) else {
                    let what = format!("`{}` can never hold", expression.text);
                    let instead = format!("the field has values up to {:#x}", extract.max());
                    return Err(self.sources.error(expression.place, what, instead));
                };
                tests.push(Test { window: extract, mask, value, text });
            } else if program.loads().next().is_none() {
                let what = format!("the check `{}` is about no field", expression.text);
                return Err(self.sources.error(expression.place, what, "compare a field of the packet"));
            } else if program.needs_context() {
                context_checks.push((program, text));
            } else {
                checks.push((program, text));
            }
        }
        control.tests = tests.into_boxed_slice();
        control.checks = checks.into_boxed_slice();
        control.context_checks = context_checks.into_boxed_slice();
        Ok(())
    }

    /// The way back: header bytes with constants and defaults, then slots into fields, then computed fields.
    fn encode(&self, control: &mut Control, opcode: &Expanded<'_>, laid: &Laid<'_>) -> Result<(), DefinitionError> {
        let mut template = vec![0u8; laid.length];
        let mut computed = Vec::new();
        let mut fixed: Vec<Extract> = Vec::new();
        for (_, header, base) in &laid.headers {
            for field in &header.fields {
                let extracts = field.extracts(*base, laid.length);
                if let Some(extract) = extracts.last() {
                    extract.write(&mut template, field.default);
                }
                let (Some(expression), Some(extract)) = (&field.encode, extracts.last()) else { continue };
                let program = self.link(expression, laid)?.filter(|program| {
                    program.loads().all(|o| matches!(o, Operand::Slot(_) | Operand::Payload | Operand::Headers))
                });
                let Some(program) = program else {
                    let what = format!("the encode `{}` uses what is not known yet", expression.text);
                    let instead = "use `command.…`, `payload` and `headers` only";
                    return Err(self.sources.error(expression.place, what, instead));
                };
                computed.push((*extract, program));
                fixed.push(*extract);
            }
        }
        let (bits, select) = self.select_fields(self.definition.select.as_deref().unwrap_or(&[]))?;
        let code = opcode.code & opcode.opcode.mask & ((1 << bits) - 1);
        let mut by_code = Vec::new();
        for (name, up) in select {
            let (header, _, field) = header_and_field(self.sources, &self.definition.headers, name)?;
            if let Some(expression) = &field.encode {
                let what = format!("the select field `{}` has an encode", name.value);
                return Err(self.sources.error(
                    expression.place,
                    what,
                    "leave it out: the opcode's code is written there",
                ));
            }
            if let Some(extract) = laid.extract(header, &field.name) {
                extract.write(&mut template, code >> up);
                fixed.push(extract);
                by_code.push((extract, up));
            }
        }
        // A check against a constant is also what the field must be when a packet is made, whatever a command that was
        // made by hand has in its place.
        for test in &control.tests {
            fixed.push(test.window);
            let window = test.window.window(&template) & !test.mask | test.value;
            let whole = Extract { left: 0, right: 0, little: false, ..test.window };
            whole.write(&mut template, window);
        }
        for test in &control.tests {
            if test.window.window(&template) & test.mask != test.value {
                let what = format!("the check `{}` of `{}` contradicts another", test.text, opcode.name);
                return Err(self.sources.error(opcode.opcode.place, what, "no packet can satisfy both: remove one"));
            }
        }
        let made = by_code.iter().fold(0, |code, (extract, up)| code | extract.read(&template) << up);
        if (made ^ code) & opcode.opcode.mask != 0 {
            let what =
                format!("a check of `{}` never holds: the code is {code:#x}, the check wants {made:#x}", opcode.name);
            return Err(self.sources.error(opcode.opcode.place, what, "change the check or the code"));
        }
        let bound: Vec<SlotExtract> = control.extracts.iter().chain(&control.little).copied().collect();
        let transaction = Slot::Transaction as u8;
        // A field that names the transaction and fills another slot too comes from the other slot: who makes a command
        // sets its queue, and need not repeat it.
        let repeats = |insert: &SlotExtract| {
            insert.slot == transaction
                && bound.iter().any(|other| other.slot != transaction && other.extract == insert.extract)
        };
        let kept = |insert: &&SlotExtract| !fixed.contains(&insert.extract) && !repeats(insert);
        let inserts: Vec<SlotExtract> = bound.iter().filter(kept).copied().collect();
        for (slot, program) in &control.programs {
            // What a program computes must come back by `encode`, or a packet made from the command would differ.
            for instruction in &program.code {
                let super::expression::Instruction::Load(Operand::Field(extract)) = instruction else { continue };
                let has_way_back = fixed.contains(extract) || inserts.iter().any(|insert| insert.extract == *extract);
                if !has_way_back {
                    let field = control.fields.iter().find(|field| field.extracts.contains(extract));
                    let name = field.map_or("?", |field| field.full_name.as_str());
                    let what =
                        format!("in `{}`, `{name}` goes into a computed {slot:?} and has no way back", opcode.name);
                    let instead = format!("give the field `{name}` an `encode = \"…\"` made of `command.…`");
                    return Err(self.sources.error(opcode.opcode.place, what, instead));
                }
            }
        }
        control.bytes_template = template.into_boxed_slice();
        let mut room: BTreeMap<u8, u64> = BTreeMap::new();
        for insert in inserts.iter().filter(|insert| insert.slot != Slot::Head as u8) {
            *room.entry(insert.slot).or_default() |= insert.extract.max() << insert.up;
        }
        let slots = room.into_iter().filter_map(|(number, bits)| Some((Slot::from_number(number)?, bits)));
        control.room = slots.collect();
        // Later fields may share bytes with earlier ones, so only what stands alone leaves the list.
        let (stores, rest): (Vec<_>, Vec<_>) = inserts.into_iter().partition(|insert| insert.as_store().is_some());
        let (bits, rest): (Vec<_>, Vec<_>) = rest.into_iter().partition(|insert| insert.as_bit_store().is_some());
        control.stores = stores.iter().filter_map(SlotExtract::as_store).collect();
        control.bits = bits.iter().filter_map(SlotExtract::as_bit_store).collect();
        control.inserts = rest.into_boxed_slice();
        control.computed = computed.into_boxed_slice();
        Ok(())
    }

    fn reverse(&self, protocol: &mut Protocol, expanded: &[Expanded<'_>]) -> Result<(), DefinitionError> {
        let mut reverse: Vec<(u64, u16)> = Vec::new();
        for (number, control) in (0u16..).zip(&protocol.controls) {
            reverse.push((control.template.slots[0], number));
        }
        reverse.sort_unstable();
        for pair in reverse.windows(2) {
            let [(a, first), (b, second)] = pair else { continue };
            if a == b {
                let name = |n: u16| expanded.get(usize::from(n)).map_or("?", |e| e.name.as_str());
                let what =
                    format!("`{}` and `{}` become the same command with the same flags", name(*first), name(*second));
                let place = expanded.get(usize::from(*second)).map_or(self.definition.name.place, |e| e.opcode.place);
                return Err(self.sources.error(place, what, "give one a flag, so that packets can be made again"));
            }
        }
        protocol.reverse = reverse;
        Ok(())
    }

    fn variable_flags(&self) -> Result<u32, DefinitionError> {
        let mut all = 0;
        for (name, field) in &self.definition.flags {
            let (_, _, found) = header_and_field(self.sources, &self.definition.headers, field)?;
            if found.width != 1 {
                let what = format!("the flag `{name}` comes from a field of {} bits", found.width);
                return Err(self.sources.error(field.place, what, "a flag is one bit"));
            }
            all |= Flags::from_name(name).map_or(0, |flag| flag.0);
        }
        Ok(all)
    }

    fn link(&self, expression: &Expression, laid: &Laid<'_>) -> Result<Option<Program>, DefinitionError> {
        let resolve = |name: &str| {
            special(name).or_else(|| {
                let (header, field) = name.split_once('.')?;
                laid.extract(header, field).map(Operand::Field)
            })
        };
        let linked = expression.link(&self.definition.derivations, &resolve);
        linked.map_err(|error| error.explain(self.sources, expression))
    }
}
