//! The way up: packet to generic commands. This is the fast path: it reads tables, allocates nothing, and looks at no
//! string.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

use super::definition::{Placement, TransactionBy};
use super::expression::{Attributes, Inputs};
use super::extract::Extract;
use super::{Control, NO_OPCODE, OpcodeId, Pad, Protocol, ProtocolId, Select, SlotExtract, Tables};
use crate::command::{Command, Flags, KIND_BITS, Kind, SLOTS, Slot};

/// A decoded packet: its first generic command, and where its parts lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// The protocol.
    pub protocol: ProtocolId,
    /// The opcode in the protocol's control table.
    pub opcode: OpcodeId,
    /// Bytes of headers: where header and payload are split.
    pub header_length: u16,
    /// Bytes to trim behind the payload: pad and trailers.
    pub trim: u16,
    /// Bytes of payload between them.
    pub payload_length: u32,
    /// What the packet asks for. There may be more of it: see [`Tables::commands`].
    pub command: Command,
}

impl Default for Decoded {
    fn default() -> Decoded {
        Decoded {
            protocol: ProtocolId(u16::MAX),
            opcode: OpcodeId(u16::MAX),
            header_length: 0,
            trim: 0,
            payload_length: 0,
            command: Command::default(),
        }
    }
}

impl Decoded {
    /// The payload, given the same bytes that were decoded.
    #[must_use]
    pub fn payload<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        let start = usize::from(self.header_length);
        bytes.get(start..start + self.payload_length as usize).unwrap_or(&[])
    }
}

/// Why a packet of a known protocol cannot become a command. It goes to the slow path as an exception.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// The id is not of these tables.
    NoSuchProtocol,
    /// The opcode is not in the translation table.
    UnknownOpcode(u16),
    /// The packet ends inside its headers or trailers.
    Truncated {
        /// Bytes that headers, pad and trailers take.
        needed: usize,
        /// Bytes that are there.
        have: usize,
    },
    /// A check of the definition failed; [`Tables::check_text`] tells which.
    Check {
        /// The opcode whose check it is.
        opcode: OpcodeId,
        /// Its number among the opcode's checks.
        number: u16,
    },
    /// More than 4 GiB.
    TooLong,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DecodeError::NoSuchProtocol => write!(f, "the protocol is not in these tables"),
            DecodeError::UnknownOpcode(code) => write!(f, "unknown opcode {code:#04x}"),
            DecodeError::Truncated { needed, have } => {
                write!(f, "cut short: headers and trailers take {needed} bytes, {have} are there")
            }
            DecodeError::Check { .. } => write!(f, "a check of the protocol's definition failed"),
            DecodeError::TooLong => write!(f, "longer than 4 GiB"),
        }
    }
}

impl core::error::Error for DecodeError {}

/// A check against the connection or the transaction failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValidationError<'a> {
    /// The check, as the definition writes it.
    pub check: &'a str,
}

impl fmt::Display for ValidationError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "refused: `{}` does not hold", self.check)
    }
}

const NO_ATTRIBUTES: &Attributes = &[0; super::ATTRIBUTES];

impl Tables {
    /// Decodes one packet (or one unit of a stream) of a known protocol. `bytes` begin with the protocol's first header
    /// and end with its last trailer.
    #[inline(always)]
    pub fn decode(&self, protocol: ProtocolId, bytes: &[u8], out: &mut Decoded) -> Result<(), DecodeError> {
        let Some(tables) = self.protocols.get(usize::from(protocol.0)) else { return Err(DecodeError::NoSuchProtocol) };
        out.protocol = protocol;
        let number = tables.translate(bytes);
        let Some(row) = tables.rows.get(usize::from(number)) else { return Err(tables.unknown(bytes)) };
        out.opcode = OpcodeId(number);
        if row.decode(bytes, out) {
            return Ok(());
        }
        tables.decode_by_entry(number, bytes, out)
    }

    /// All commands that the packet asks for: its own (in pieces of at most `transfer_max` bytes, where the opcode is
    /// split), then those that go with it.
    #[must_use]
    pub fn commands(&self, decoded: &Decoded, transfer_max: u64) -> Commands<'_> {
        let control = self.protocol(decoded.protocol).and_then(|protocol| protocol.control(decoded.opcode));
        let split = control.is_some_and(|control| control.split);
        Commands {
            command: decoded.command,
            also: control.map_or(&[], |control| &control.also),
            piece_max: if split { transfer_max.max(1) } else { u64::MAX },
            done: 0,
            first: true,
        }
    }

    /// Compares with the connection and the transaction as the definition says. `bytes` are those that were decoded.
    pub fn validate(
        &self,
        decoded: &Decoded,
        bytes: &[u8],
        connection: &Attributes,
        transaction: &Attributes,
    ) -> Result<(), ValidationError<'_>> {
        let Some(control) = self.protocol(decoded.protocol).and_then(|protocol| protocol.control(decoded.opcode))
        else {
            return Err(ValidationError { check: "the opcode is in these tables" });
        };
        let inputs = Inputs {
            bytes,
            payload: u64::from(decoded.payload_length),
            headers: u64::from(decoded.header_length),
            packet: bytes.len() as u64,
            connection,
            transaction,
            command: None,
        };
        let failed = control.context_checks.iter().find(|(program, _)| program.run(&inputs) == 0);
        failed.map_or(Ok(()), |(_, text)| Err(ValidationError { check: text }))
    }

    /// How the packet's transaction is found; the bits to find it by are in [`Slot::Transaction`].
    #[must_use]
    pub fn transaction_by(&self, decoded: &Decoded) -> TransactionBy {
        let control = self.protocol(decoded.protocol).and_then(|protocol| protocol.control(decoded.opcode));
        control.map_or(TransactionBy::None, |control| control.transaction_by)
    }

    /// Where the payload goes, and how many bits the sequence number has.
    #[must_use]
    pub fn placement(&self, decoded: &Decoded) -> (Placement, u32) {
        let control = self.protocol(decoded.protocol).and_then(|protocol| protocol.control(decoded.opcode));
        control.map_or((Placement::None, 64), |control| (control.placement, u32::from(control.sequence_bits)))
    }

    /// The text of a failed check.
    #[must_use]
    pub fn check_text(&self, protocol: ProtocolId, opcode: OpcodeId, number: u16) -> Option<&str> {
        let control = self.protocol(protocol)?.control(opcode)?;
        let tests = control.tests.iter().map(|test| &*test.text);
        tests.chain(control.checks.iter().map(|(_, text)| &**text)).nth(usize::from(number))
    }
}

impl Select {
    /// Specialises for fields that lie in one byte or two, as opcodes mostly do.
    pub(super) fn new(parts: &[(Extract, u32)], translation: &[u16]) -> Select {
        let mut bytes: Vec<(u8, [u16; 256])> = Vec::new();
        for (field, up) in parts {
            let last = usize::from(field.left) + field.width() as usize - 1;
            if field.little || usize::from(field.left) / 8 != last / 8 {
                return Select::Fields(parts.into());
            }
            let offset = field.offset + field.left / 8;
            if !bytes.iter().any(|(known, _)| *known == offset) {
                bytes.push((offset, [0; 256]));
            }
            for (_, codes) in bytes.iter_mut().filter(|(known, _)| *known == offset) {
                for (value, code) in (0u8..=255).zip(codes) {
                    *code |= (u64::from(value >> (7 - last % 8)) & field.max()).wrapping_shl(*up) as u16;
                }
            }
        }
        let row = |code: u16| translation.get(usize::from(code)).copied().unwrap_or(NO_OPCODE);
        match bytes.as_slice() {
            [(offset, codes)] => Select::Byte { offset: *offset, rows: Box::new(codes.map(row)) },
            [(first, codes), (second, more)] => {
                let mut different = codes.to_vec();
                different.sort_unstable();
                different.dedup();
                let number = |code: u16| different.iter().position(|known| *known == code).unwrap_or(0) as u8;
                let rows = different.iter().map(|code| more.map(|other| row(code | other)));
                let (choice, rows) = (Box::new(codes.map(number)), rows.collect());
                Select::Bytes { offsets: [*first, *second], choice, rows }
            }
            _ => Select::Fields(parts.into()),
        }
    }
}

/// A byte behind the end reads as zero.
#[inline(always)]
fn byte_at(bytes: &[u8], offset: u8) -> usize {
    usize::from(bytes.get(usize::from(offset)).copied().unwrap_or(0))
}

impl Protocol {
    /// Opcode extraction and command translation.
    #[inline(always)]
    #[expect(clippy::indexing_slicing, reason = "a byte is below 256")]
    fn translate(&self, bytes: &[u8]) -> u16 {
        match &self.select {
            Select::Byte { offset, rows } => rows[byte_at(bytes, *offset)],
            Select::Bytes { offsets: [first, second], choice, rows } => {
                let choice = usize::from(choice[byte_at(bytes, *first)]);
                rows.get(choice).map_or(NO_OPCODE, |rows| rows[byte_at(bytes, *second)])
            }
            Select::Fields(parts) => {
                self.translation.get(usize::from(code(parts, bytes))).copied().unwrap_or(NO_OPCODE)
            }
        }
    }

    #[cold]
    fn unknown(&self, bytes: &[u8]) -> DecodeError {
        DecodeError::UnknownOpcode(code(&self.select_fields, bytes))
    }
}

/// The opcode, field by field.
fn code(parts: &[(Extract, u32)], bytes: &[u8]) -> u16 {
    parts.iter().fold(0, |code, (field, up)| code | field.read(bytes) << up) as u16
}

impl Protocol {
    /// What the specialised row could not do, and why it could not.
    #[cold]
    #[inline(never)]
    fn decode_by_entry(&self, number: u16, bytes: &[u8], out: &mut Decoded) -> Result<(), DecodeError> {
        match self.controls.get(usize::from(number)) {
            Some(control) => control.decode(number, bytes, out),
            None => Err(DecodeError::NoSuchProtocol),
        }
    }
}

impl Control {
    /// Checks, fields, lengths: everything that the entry says.
    fn decode(&self, number: u16, bytes: &[u8], out: &mut Decoded) -> Result<(), DecodeError> {
        let header_length = usize::from(self.header_length);
        let fixed = header_length + usize::from(self.trailer_length);
        if bytes.len() < fixed {
            return Err(DecodeError::Truncated { needed: fixed, have: bytes.len() });
        }
        for (index, test) in (0u16..).zip(&*self.tests) {
            if test.window.window(bytes) & test.mask != test.value {
                return Err(DecodeError::Check { opcode: OpcodeId(number), number: index });
            }
        }
        let pad = match &self.pad {
            Pad::None => 0,
            Pad::Field(extract) => extract.read(bytes),
            Pad::Program(program) => program.run(&self.inputs(bytes, 0)),
        };
        let room = (bytes.len() - fixed) as u64;
        if pad > room {
            let needed = fixed.saturating_add(usize::try_from(pad).unwrap_or(usize::MAX));
            return Err(DecodeError::Truncated { needed, have: bytes.len() });
        }
        let payload = room - pad;
        let Ok(payload_length) = u32::try_from(payload) else { return Err(DecodeError::TooLong) };
        let Ok(trim) = u16::try_from(pad + u64::from(self.trailer_length)) else { return Err(DecodeError::TooLong) };
        out.header_length = u16::from(self.header_length);
        out.payload_length = payload_length;
        out.trim = trim;

        let slots = &mut out.command.slots;
        *slots = self.template.slots;
        extract_all(&self.extracts, bytes, slots, u64::from_be_bytes);
        extract_all(&self.little, bytes, slots, u64::from_le_bytes);
        if let Some(slot) = slots.get_mut(usize::from(self.payload_slot)) {
            *slot = payload;
        }
        if self.programs.is_empty() && self.checks.is_empty() {
            return Ok(());
        }
        self.run_programs(number, bytes, payload, slots)
    }

    #[expect(clippy::indexing_slicing, reason = "a command has all slots")]
    fn run_programs(
        &self,
        number: u16,
        bytes: &[u8],
        payload: u64,
        slots: &mut [u64; SLOTS],
    ) -> Result<(), DecodeError> {
        let inputs = self.inputs(bytes, payload);
        for (index, (program, _)) in (0u16..).zip(&*self.checks) {
            if program.run(&inputs) == 0 {
                let before = self.tests.len() as u16;
                return Err(DecodeError::Check { opcode: OpcodeId(number), number: before + index });
            }
        }
        for (slot, program) in &*self.programs {
            slots[*slot as usize] = program.run(&inputs);
        }
        Ok(())
    }

    fn inputs<'a>(&self, bytes: &'a [u8], payload: u64) -> Inputs<'a> {
        Inputs {
            bytes,
            payload,
            headers: u64::from(self.header_length),
            packet: bytes.len() as u64,
            connection: NO_ATTRIBUTES,
            transaction: NO_ATTRIBUTES,
            command: None,
        }
    }
}

/// Fields into slots. Slots hold the opcode's constants before, so that fields are added with OR.
#[inline]
#[expect(clippy::indexing_slicing, reason = "a command has all slots")]
fn extract_all(list: &[SlotExtract], bytes: &[u8], slots: &mut [u64; SLOTS], load: fn([u8; 8]) -> u64) {
    for SlotExtract { extract, slot, up } in list {
        let window = match bytes.get(usize::from(extract.offset)..).and_then(|rest| rest.first_chunk::<8>()) {
            Some(window) => load(*window),
            None => load(extract.window(bytes).to_be_bytes()),
        };
        let value = window << (extract.left & 63) >> (extract.right & 63);
        slots[usize::from(slot & (SLOTS as u8 - 1))] |= value << (up & 63);
    }
}

/// The commands of one packet. See [`Tables::commands`].
#[derive(Clone, Debug)]
pub struct Commands<'a> {
    command: Command,
    also: &'a [super::definition::Also],
    piece_max: u64,
    done: u64,
    first: bool,
}

impl Iterator for Commands<'_> {
    type Item = Command;

    #[expect(clippy::indexing_slicing, reason = "a command has all slots")]
    fn next(&mut self) -> Option<Command> {
        let length = self.command.length();
        if self.first && length <= self.piece_max {
            self.first = false;
            self.done = length;
            return Some(self.command);
        }
        if self.done < length {
            // A piece of a long transfer: the next bytes of the same range, first and last marked.
            let piece = (length - self.done).min(self.piece_max);
            let head = u64::from((Flags::FIRST | Flags::LAST).0) << KIND_BITS;
            let mut flags = 0;
            if self.first {
                flags |= u64::from(Flags::FIRST.0) << KIND_BITS;
            }
            if self.done + piece == length {
                flags |= u64::from(Flags::LAST.0) << KIND_BITS;
            }
            let mut command = self.command;
            command.slots[Slot::Head as usize] = command.slots[Slot::Head as usize] & !head | flags;
            command.slots[Slot::Address as usize] = command.address().wrapping_add(self.done);
            command.slots[Slot::Offset as usize] = command.offset().wrapping_add(self.done);
            command.slots[Slot::Length as usize] = piece;
            self.first = false;
            self.done += piece;
            return Some(command);
        }
        let (also, rest) = self.also.split_first()?;
        self.also = rest;
        let mut command = Command::new(also.kind, self.command.flags());
        for (slot, value) in self.command.slots.iter().enumerate().skip(1) {
            if also.keep >> slot & 1 == 1 {
                command.slots[slot & (SLOTS - 1)] = *value;
            }
        }
        Some(command)
    }
}

impl Commands<'_> {
    /// How many commands the packet's own one becomes: more than one when it is longer than one transfer.
    #[must_use]
    pub fn pieces(&self) -> u64 {
        self.command.length().div_ceil(self.piece_max).max(1)
    }

    /// The kinds of all commands, a split transfer counted once.
    pub fn kinds(&self) -> impl Iterator<Item = Kind> + '_ {
        core::iter::once(self.command.kind()).chain(self.also.iter().map(|also| also.kind))
    }
}
