//! A row of the control table, specialised when it is loaded, so that most packets take one straight way through it.
//!
//! Most of what reading the lists of a [`Control`] costs is not the reading: every field brings three shifts, every flag
//! is a field, every program is interpreted. A row holds the same with all of that done before:
//!
//! - a field has a window that ends where the field ends, so that one mask is enough;
//! - all flags come from one multiplication and one table ([`FlagHash`]);
//! - comparisons with constants that are near each other are one;
//! - a pad and a check of lengths are brought to one form, `field × factor + payload × factor + constant`.
//!
//! What does not fit is done by [`Control`], entry by entry: a little-endian field, a program that is not of that form.
//! So is everything that is refused, because only it knows why.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::decode::Decoded;
use super::expression::{Instruction, Operand, Operation, Program};
use super::extract::Extract;
use super::{Control, Pad, SlotExtract};
use crate::command::{KIND_BITS, SLOTS, Slot};

/// Comparisons with constants, after those near each other have become one.
const TESTS_MAX: usize = 2;
/// Bytes of pad: enough for any word, and no sum with a trailer leaves 16 bits.
const PAD_MAX_BYTES: u64 = 0x7fff;
/// Flags from fields of one opcode: more are not told apart by 256 entries.
const FLAGS_MAX: u32 = 8;
const WINDOW_BYTES: usize = 8;

/// What flags a number stands for; see [`FlagHash`].
pub(crate) type FlagTables = Vec<Arc<[u32; 256]>>;

/// See the module.
#[derive(Debug)]
pub(crate) struct Row {
    /// Headers and trailers; more than any packet has when the row cannot be used.
    fixed_length: usize,
    head: u64,
    tests: [Test; TESTS_MAX],
    flags: FlagHash,
    fields: Box<[SlotField]>,
    header_length: u8,
    trailer_length: u8,
    has_second_test: bool,
    payload_slot: Option<Slot>,
    again: Option<Again>,
    joined: Option<Joined>,
    lengths: Lengths,
}

/// A field of whole bytes, and where it goes.
#[derive(Clone, Copy, Debug)]
struct SlotField {
    mask: u64,
    /// Its window ends where it ends.
    offset: u8,
    slot: Slot,
}

/// All flags at once: `(window & mask) × multiplier` has in its uppermost byte another number for each combination of
/// them, and a table tells which flags these are.
#[derive(Clone, Debug)]
struct FlagHash {
    mask: u64,
    multiplier: u64,
    table: Arc<[u32; 256]>,
    offset: u8,
}

/// Several comparisons with constants as one: a window as the processor loads it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Test {
    mask: u64,
    value: u64,
    offset: u8,
}

/// A big-endian field: its window, the bits of the window below it, and its width as a mask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Field {
    mask: u64,
    offset: u8,
    below: u8,
}

/// A slot made of others: what names a transaction is mostly a queue, a message or a key that has its own slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Again {
    slot: Slot,
    low: Slot,
    high: Slot,
    up: u8,
}

/// The one field that needs shifts: the upper part of what two fields make, or what ends inside a byte.
#[derive(Clone, Copy, Debug)]
struct Joined {
    field: Field,
    slot: Slot,
    up: u8,
}

/// How the pad follows from the packet, and what else a length says.
#[derive(Clone, Copy, Debug)]
enum Lengths {
    /// There is no pad.
    None,
    /// The field is the pad's length.
    Pad(Field),
    /// From the same field come the pad and what must be 0.
    Forms { field: Field, pad: Form, check: Form },
}

/// `(field × factor + payload × payload_factor + constant) & mask`, all modulo 2^64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Form {
    factor: u64,
    payload_factor: u64,
    constant: u64,
    mask: u64,
}

impl Row {
    /// Specialises an entry of the control table.
    pub(crate) fn new(control: &Control, flag_tables: &mut FlagTables) -> Row {
        let mut row = Row {
            fixed_length: usize::from(control.header_length) + usize::from(control.trailer_length),
            head: control.template.slot(Slot::Head),
            tests: [Test::default(); TESTS_MAX],
            header_length: control.header_length,
            trailer_length: control.trailer_length,
            flags: FlagHash { mask: 0, multiplier: 0, table: Arc::new([0; 256]), offset: 0 },
            fields: Box::default(),
            has_second_test: false,
            payload_slot: None,
            again: None,
            joined: None,
            lengths: Lengths::None,
        };
        if row.fill(control, flag_tables).is_none() {
            row.fixed_length = usize::MAX;
        }
        row
    }

    /// `None` when something does not fit.
    fn fill(&mut self, control: &Control, flag_tables: &mut FlagTables) -> Option<()> {
        if usize::from(self.header_length) < WINDOW_BYTES || !control.programs.is_empty() {
            return None;
        }
        self.payload_slot = Slot::from_number(control.payload_slot);
        self.take_tests(control)?;
        self.take_lengths(control)?;
        self.take_fields(control, flag_tables)
    }

    /// Comparisons with constants, those near each other in one window.
    fn take_tests(&mut self, control: &Control) -> Option<()> {
        let mut bytes: Vec<(usize, u8, u8)> = Vec::new();
        for test in &control.tests {
            let parts = test.mask.to_be_bytes().into_iter().zip(test.value.to_be_bytes());
            for (place, (mask, value)) in parts.enumerate().filter(|(_, (mask, _))| *mask != 0) {
                bytes.push((usize::from(test.window.offset) + place, mask, value));
            }
        }
        bytes.sort_unstable();
        let last_window = usize::from(self.header_length).checked_sub(WINDOW_BYTES)?;
        let mut tests: Vec<Test> = Vec::new();
        for (at, mask, value) in bytes {
            if tests.last().is_none_or(|test| at >= usize::from(test.offset) + WINDOW_BYTES) {
                tests.push(Test { offset: at.min(last_window) as u8, ..Test::default() });
            }
            let test = tests.last_mut()?;
            let up = 8 * (at - usize::from(test.offset));
            test.mask |= u64::from(mask) << up;
            test.value |= u64::from(value) << up;
        }
        if tests.len() > TESTS_MAX {
            return None;
        }
        self.has_second_test = tests.len() == TESTS_MAX;
        for (to, from) in self.tests.iter_mut().zip(tests) {
            *to = from;
        }
        Some(())
    }

    fn take_lengths(&mut self, control: &Control) -> Option<()> {
        let headers = u64::from(self.header_length);
        let small = |form: &Form| form.payload_factor == 0 && form.mask <= PAD_MAX_BYTES;
        let pad = match &control.pad {
            Pad::None => None,
            Pad::Field(field) => {
                let field = Field::of(*field)?;
                Some((field, Form { factor: 1, mask: field.mask, ..Form::ZERO }))
            }
            Pad::Program(program) => Some(Form::of(program, headers)?),
        };
        let check = match &*control.checks {
            [] => None,
            [(program, _)] => Some(Form::of_equation(program, headers)?),
            _ => return None,
        };
        if pad.is_some_and(|(_, form)| !small(&form)) {
            return None;
        }
        self.lengths = match (pad, check, &control.pad) {
            (None, None, _) => Lengths::None,
            (Some((field, _)), None, Pad::Field(_)) => Lengths::Pad(field),
            (pad, check, _) => {
                let (field, pad) = pad.unwrap_or_default();
                let (other, check) = check.unwrap_or_default();
                let field = Field::either(field, other)?;
                Lengths::Forms { field, pad, check }
            }
        };
        Some(())
    }

    fn take_fields(&mut self, control: &Control, flag_tables: &mut FlagTables) -> Option<()> {
        let mut fields: Vec<SlotField> = Vec::new();
        let mut flags: Vec<(Field, u32)> = Vec::new();
        let mut bound: Vec<SlotExtract> = control.extracts.iter().chain(&control.little).copied().collect();
        self.again = Again::of(Slot::Transaction, &bound);
        if self.again.is_some() {
            bound.retain(|extract| extract.slot != Slot::Transaction as u8);
        }
        for SlotExtract { extract, slot, up } in join_neighbours(bound) {
            let field = Field::of(extract)?;
            let slot = Slot::from_number(slot)?;
            if slot == Slot::Head {
                flags.push((field, 1u32.checked_shl(u32::from(up).checked_sub(KIND_BITS)?)?));
                continue;
            }
            match field.ending() {
                Some(field) if up == 0 && fields.iter().all(|known| known.slot != slot) => {
                    fields.push(SlotField { mask: field.mask, offset: field.offset, slot });
                }
                _ if self.joined.is_none() => self.joined = Some(Joined { field, slot, up }),
                _ => return None,
            }
        }
        self.fields = fields.into();
        let last_window = self.header_length.checked_sub(WINDOW_BYTES as u8)?;
        self.flags = FlagHash::new(&flags, last_window, flag_tables)?;
        Some(())
    }

    /// Decodes. When it gives `false`, whatever the reason, the control table's entry is to be read instead.
    #[inline(always)]
    #[expect(clippy::indexing_slicing, reason = "all tables here are as long as their indices can be")]
    pub(crate) fn decode(&self, bytes: &[u8], out: &mut Decoded) -> bool {
        let Some(room) = bytes.len().checked_sub(self.fixed_length) else { return false };
        if !self.tests[0].holds(bytes) || (self.has_second_test && !self.tests[1].holds(bytes)) {
            return false;
        }
        let (pad, field) = match &self.lengths {
            Lengths::None => (0, 0),
            Lengths::Pad(field) => (field.read(bytes), 0),
            Lengths::Forms { field, pad, .. } => {
                let field = field.read(bytes);
                (pad.value(field, 0), field)
            }
        };
        let Some(payload) = (room as u64).checked_sub(pad) else { return false };
        let Ok(payload_length) = u32::try_from(payload) else { return false };
        if let Lengths::Forms { check, .. } = &self.lengths
            && check.value(field, payload) != 0
        {
            return false;
        }
        out.header_length = u16::from(self.header_length);
        out.payload_length = payload_length;
        out.trim = u16::from(self.trailer_length) + pad as u16;

        let slots = &mut out.command.slots;
        *slots = [0; SLOTS];
        let Some(flags) = self.flags.read(bytes) else { return false };
        slots[Slot::Head as usize] = self.head | u64::from(flags) << KIND_BITS;
        for field in &*self.fields {
            let Some(window) = window(bytes, field.offset) else { return false };
            slots[field.slot as usize] = u64::from_be_bytes(*window) & field.mask;
        }
        if let Some(slot) = self.payload_slot {
            slots[slot as usize] = payload;
        }
        if let Some(Again { slot, low, high, up }) = self.again {
            slots[slot as usize] = slots[low as usize] | slots[high as usize] << (up & 63);
        }
        if let Some(Joined { field, slot, up }) = &self.joined {
            slots[*slot as usize] |= field.read(bytes) << (up & 63);
        }
        true
    }
}

#[inline(always)]
fn window(bytes: &[u8], offset: u8) -> Option<&[u8; WINDOW_BYTES]> {
    let start = usize::from(offset);
    bytes.get(start..start + WINDOW_BYTES)?.first_chunk()
}

impl Test {
    #[inline(always)]
    fn holds(&self, bytes: &[u8]) -> bool {
        window(bytes, self.offset).is_some_and(|window| u64::from_le_bytes(*window) & self.mask == self.value)
    }
}

impl Again {
    /// `None` when a part of the slot is in no other slot by itself, or there are more than two parts.
    fn of(slot: Slot, bound: &[SlotExtract]) -> Option<Again> {
        let parts: Vec<&SlotExtract> = bound.iter().filter(|part| part.slot == slot as u8).collect();
        let elsewhere = |part: &SlotExtract| {
            let same = |other: &&SlotExtract| {
                other.slot != slot as u8
                    && other.slot != Slot::Head as u8
                    && other.up == 0
                    && other.extract == part.extract
            };
            bound.iter().find(same).and_then(|other| Slot::from_number(other.slot))
        };
        match parts.as_slice() {
            [one] if one.up == 0 => {
                let low = elsewhere(one)?;
                Some(Again { slot, low, high: low, up: 0 })
            }
            [high, low] | [low, high] if low.up == 0 && high.up > 0 => {
                Some(Again { slot, low: elsewhere(low)?, high: elsewhere(high)?, up: high.up })
            }
            _ => None,
        }
    }
}

impl FlagHash {
    /// `None` when the flags are not in one window, or too many.
    fn new(flags: &[(Field, u32)], last_window: u8, tables: &mut FlagTables) -> Option<FlagHash> {
        let first_byte = |field: &Field| field.offset + 7 - field.below / 8;
        let offset = flags.iter().map(|(field, _)| first_byte(field)).min().unwrap_or(0).min(last_window);
        let mut places = Vec::new();
        for (field, flag) in flags {
            let byte = first_byte(field) - offset;
            if field.mask != 1 || usize::from(byte) >= WINDOW_BYTES {
                return None;
            }
            // As the processor loads it: the first byte is the lowest.
            places.push((1u64 << (byte * 8 + field.below % 8), *flag));
        }
        let mask = places.iter().fold(0, |mask, (place, _)| mask | place);
        if mask.count_ones() > FLAGS_MAX || mask.count_ones() as usize != places.len() {
            return None;
        }
        // Almost any odd number will do, so the search is short; it is the same at every start.
        let mut multiplier = 0x9e37_79b9_7f4a_7c15u64;
        let table = (0..10_000).find_map(|_| {
            multiplier = multiplier.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(2);
            FlagHash::table(&places, multiplier)
        })?;
        // Opcodes share their tables, so that they stay in the cache.
        let shared = match tables.iter().find(|known| ***known == table) {
            Some(known) => Arc::clone(known),
            None => Arc::new(table),
        };
        tables.push(Arc::clone(&shared));
        Some(FlagHash { mask, multiplier, offset, table: shared })
    }

    /// The table, when no two combinations meet.
    fn table(places: &[(u64, u32)], multiplier: u64) -> Option<[u32; 256]> {
        let mut table = [None; 256];
        for combination in 0..1u32 << places.len() {
            let set = places.iter().enumerate().filter(|(number, _)| combination >> number & 1 == 1);
            let (window, flags) =
                set.fold((0, 0), |(window, flags), (_, (place, flag))| (window | place, flags | flag));
            let entry = table.get_mut((window.wrapping_mul(multiplier) >> 56) as usize)?;
            if entry.replace(flags).is_some() {
                return None;
            }
        }
        Some(table.map(Option::unwrap_or_default))
    }

    #[inline(always)]
    fn read(&self, bytes: &[u8]) -> Option<u32> {
        let window = u64::from_le_bytes(*window(bytes, self.offset)?);
        let number = (window & self.mask).wrapping_mul(self.multiplier) >> 56;
        self.table.get(number as usize).copied()
    }
}

impl Field {
    /// `None` for a little-endian field.
    fn of(extract: Extract) -> Option<Field> {
        let below = extract.right.checked_sub(extract.left)?;
        (!extract.little).then_some(Field { mask: extract.max(), offset: extract.offset, below })
    }

    /// The same with a window that ends where the field ends; `None` when it ends inside a byte, or before there is a
    /// window.
    fn ending(self) -> Option<Field> {
        let back = self.below / 8;
        let offset = self.offset.checked_sub(back)?;
        self.below.is_multiple_of(8).then_some(Field { mask: self.mask, offset, below: 0 })
    }

    /// The one that there is; `None` when there are two.
    fn either(one: Field, other: Field) -> Option<Field> {
        if one == Field::default() || one == other {
            return Some(other);
        }
        (other == Field::default()).then_some(one)
    }

    /// Bytes behind the end read as zero.
    #[inline(always)]
    fn read(&self, bytes: &[u8]) -> u64 {
        let window = window(bytes, self.offset).map_or(0, |window| u64::from_be_bytes(*window));
        window >> (self.below & 63) & self.mask
    }
}

/// Two fields next to each other that go next to each other into one slot are one field.
fn join_neighbours(bound: Vec<SlotExtract>) -> Vec<SlotExtract> {
    let mut joined: Vec<SlotExtract> = Vec::new();
    for low in bound {
        let width = low.extract.width() as u8;
        let neighbour = joined.iter_mut().find(|high| {
            let first = |e: Extract| usize::from(e.offset) * 8 + usize::from(e.left);
            let behind = first(high.extract) + high.extract.width() as usize;
            let room = 64 - u32::from(high.extract.left) - high.extract.width();
            !high.extract.little
                && !low.extract.little
                && high.slot == low.slot
                && high.up == low.up + width
                && behind == first(low.extract)
                && room >= u32::from(width)
        });
        match neighbour {
            Some(high) => {
                high.extract.right -= width;
                high.up = low.up;
            }
            None => joined.push(low),
        }
    }
    joined
}

impl Default for Form {
    fn default() -> Form {
        Form::ZERO
    }
}

impl Form {
    const ZERO: Form = Form { factor: 0, payload_factor: 0, constant: 0, mask: u64::MAX };

    #[inline(always)]
    fn value(&self, field: u64, payload: u64) -> u64 {
        let field = field.wrapping_mul(self.factor);
        let payload = payload.wrapping_mul(self.payload_factor);
        field.wrapping_add(payload).wrapping_add(self.constant) & self.mask
    }

    /// The form of a program, and its field. `None` when the program computes something else.
    fn of(program: &Program, headers: u64) -> Option<(Field, Form)> {
        match program.code.as_slice() {
            [sum @ .., Instruction::Constant(mask), Instruction::Apply(Operation::And)] => {
                let (field, form) = Form::of_sum(sum, headers)?;
                Some((field, Form { mask: *mask, ..form }))
            }
            sum => Form::of_sum(sum, headers),
        }
    }

    /// The difference of the two sides of `==`.
    fn of_equation(program: &Program, headers: u64) -> Option<(Field, Form)> {
        let mut difference = program.code.clone();
        if difference.pop() != Some(Instruction::Apply(Operation::Equal)) {
            return None;
        }
        difference.push(Instruction::Apply(Operation::Subtract));
        Form::of_sum(&difference, headers)
    }

    fn of_sum(code: &[Instruction], headers: u64) -> Option<(Field, Form)> {
        let mut the_field = Field::default();
        let mut stack: Vec<Form> = Vec::new();
        for instruction in code {
            let form = match instruction {
                Instruction::Constant(constant) => Form { constant: *constant, ..Form::ZERO },
                Instruction::Load(Operand::Headers) => Form { constant: headers, ..Form::ZERO },
                Instruction::Load(Operand::Payload) => Form { payload_factor: 1, ..Form::ZERO },
                Instruction::Load(Operand::Field(field)) => {
                    the_field = Field::either(the_field, Field::of(*field)?)?;
                    Form { factor: 1, ..Form::ZERO }
                }
                Instruction::Apply(Operation::Add) => {
                    let (b, a) = (stack.pop()?, stack.pop()?);
                    a.plus(b)
                }
                Instruction::Apply(Operation::Subtract) => {
                    let (b, a) = (stack.pop()?, stack.pop()?);
                    a.plus(b.negated())
                }
                Instruction::Load(_) | Instruction::Apply(_) | Instruction::Swap => return None,
            };
            stack.push(form);
        }
        match stack.as_slice() {
            [form] => Some((the_field, *form)),
            _ => None,
        }
    }

    fn negated(self) -> Form {
        Form {
            factor: self.factor.wrapping_neg(),
            payload_factor: self.payload_factor.wrapping_neg(),
            constant: self.constant.wrapping_neg(),
            ..self
        }
    }

    fn plus(self, other: Form) -> Form {
        Form {
            factor: self.factor.wrapping_add(other.factor),
            payload_factor: self.payload_factor.wrapping_add(other.payload_factor),
            constant: self.constant.wrapping_add(other.constant),
            mask: u64::MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::table::Tables;

    #[test]
    fn every_opcode_of_the_built_in_protocols_has_a_row() {
        let tables = Tables::builtin().unwrap();
        for (_, protocol) in tables.protocols() {
            for (row, control) in protocol.rows.iter().zip(&protocol.controls) {
                assert_ne!(row.fixed_length, usize::MAX, "{} {}", protocol.name, control.name);
            }
        }
    }
}
