//! The way down: a generic command, or the fields of a packet, to bytes. The same tables as for decoding.

use core::fmt;

use super::expression::Inputs;
use super::extract::Extract;
use super::{BitStore, Control, OpcodeId, Outer, Protocol, ProtocolId, SlotExtract, Store, Tables};
use crate::command::{Command, KIND_BITS};
use crate::limits::FIELDS_PER_OPCODE_MAX;

/// Why no packet can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncodeError {
    /// The protocol is not of these tables.
    NoSuchProtocol,
    /// The protocol has no opcode for this command with these flags.
    NoOpcode,
    /// The output is too short.
    NoRoom {
        /// Bytes that the packet takes.
        needed: usize,
        /// Bytes that there are.
        have: usize,
    },
    /// The packet would be longer than its fields can say, or than 4 GiB.
    TooLong,
    /// A value of the command is wider than its field.
    DoesNotFit(crate::command::Slot),
}

impl fmt::Display for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EncodeError::NoSuchProtocol => write!(f, "the protocol is not in these tables"),
            EncodeError::NoOpcode => write!(f, "the protocol has no opcode for this command with these flags"),
            EncodeError::NoRoom { needed, have } => {
                write!(f, "the packet takes {needed} bytes, the buffer has {have}: give a longer one")
            }
            EncodeError::TooLong => write!(f, "the packet is too long: send it in pieces"),
            EncodeError::DoesNotFit(slot) => write!(f, "the value of {slot:?} is wider than its field"),
        }
    }
}

impl core::error::Error for EncodeError {}

/// All field values of one packet, those without a name too, in the order of the tables: with the payload it is the
/// whole packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fields {
    values: [u64; FIELDS_PER_OPCODE_MAX],
}

impl Default for Fields {
    fn default() -> Fields {
        Fields { values: [0; FIELDS_PER_OPCODE_MAX] }
    }
}

impl Tables {
    /// Makes a packet from a command: picks the opcode by kind and flags, fills the fields, copies the payload, pads,
    /// and writes the checksums. Returns its length.
    ///
    /// `outer` are the headers in front of it, for checksums that cover them.
    pub fn encode(
        &self,
        protocol: ProtocolId,
        command: &Command,
        payload: &[u8],
        outer: &Outer<'_>,
        out: &mut [u8],
    ) -> Result<usize, EncodeError> {
        let (opcode, length) = self.encode_open(protocol, command, payload, out)?;
        if let Some(packet) = out.get_mut(..length) {
            self.write_checksums(protocol, opcode, packet, outer);
        }
        Ok(length)
    }

    /// The same with the checksums still zero: for who has more to write into the packet ([`Tables::handle`]) before
    /// [`Tables::write_checksums`]. Returns the opcode too.
    pub fn encode_open(
        &self,
        protocol: ProtocolId,
        command: &Command,
        payload: &[u8],
        out: &mut [u8],
    ) -> Result<(OpcodeId, usize), EncodeError> {
        let tables = self.protocol(protocol).ok_or(EncodeError::NoSuchProtocol)?;
        let opcode = OpcodeId(tables.row_for(command).ok_or(EncodeError::NoOpcode)?);
        let control = tables.control(opcode).ok_or(EncodeError::NoOpcode)?;
        control.fits(command)?;
        let header_length = usize::from(control.header_length);
        let have = out.len();
        let Some(headers) = out.get_mut(..header_length) else {
            return Err(EncodeError::NoRoom { needed: header_length, have });
        };
        headers.copy_from_slice(&control.bytes_template);
        control.insert(command, headers);
        let mut pad = 0;
        if !control.computed.is_empty() || !matches!(control.pad, super::Pad::None) {
            let mut inputs = Inputs {
                bytes: &[],
                payload: payload.len() as u64,
                headers: u64::from(control.header_length),
                packet: 0,
                connection: &[0; super::ATTRIBUTES],
                transaction: &[0; super::ATTRIBUTES],
                command: Some(command),
            };
            // Each sees only the command and the lengths, so their order does not matter.
            for (extract, program) in &*control.computed {
                let value = program.run(&inputs);
                if value > extract.max() {
                    return Err(EncodeError::TooLong);
                }
                extract.write(headers, value);
            }
            inputs.bytes = headers;
            pad = control.pad_bytes(&inputs)?;
        }
        Ok((opcode, control.finish(payload, pad, out)?))
    }

    /// Computes all checksums of a packet and writes them, whatever is there.
    pub fn write_checksums(&self, protocol: ProtocolId, opcode: OpcodeId, packet: &mut [u8], outer: &Outer<'_>) {
        if let Some(tables) = self.protocol(protocol)
            && let Some(control) = tables.control(opcode)
        {
            tables.write_checksums(control, packet, outer);
        }
    }

    /// The opcode that a command would be sent as.
    #[must_use]
    pub fn opcode_for(&self, protocol: ProtocolId, command: &Command) -> Option<OpcodeId> {
        let tables = self.protocol(protocol)?;
        tables.row_for(command).map(OpcodeId)
    }

    /// Makes a packet from its fields, exactly; checksums are computed anew.
    pub fn encode_fields(
        &self,
        protocol: ProtocolId,
        opcode: OpcodeId,
        fields: &Fields,
        payload: &[u8],
        outer: &Outer<'_>,
        out: &mut [u8],
    ) -> Result<usize, EncodeError> {
        let tables = self.protocol(protocol).ok_or(EncodeError::NoSuchProtocol)?;
        let control = tables.control(opcode).ok_or(EncodeError::NoOpcode)?;
        let header_length = usize::from(control.header_length);
        let have = out.len();
        let Some(headers) = out.get_mut(..header_length) else {
            return Err(EncodeError::NoRoom { needed: header_length, have });
        };
        headers.fill(0);
        let windows = control.fields.iter().flat_map(|field| &*field.extracts);
        for (extract, value) in windows.zip(fields.values) {
            extract.write(headers, value);
        }
        let (headers, _) = out.split_at(header_length);
        let inputs = Inputs {
            bytes: headers,
            payload: payload.len() as u64,
            headers: u64::from(control.header_length),
            packet: 0,
            connection: &[0; super::ATTRIBUTES],
            transaction: &[0; super::ATTRIBUTES],
            command: None,
        };
        let pad = control.pad_bytes(&inputs)?;
        let length = control.finish(payload, pad, out)?;
        if let Some(packet) = out.get_mut(..length) {
            tables.write_checksums(control, packet, outer);
        }
        Ok(length)
    }

    /// The way to a field that no command carries, by its full name: a session's sequence number, a ticket. `None` when
    /// there is no such field of up to 64 bits, or when it is not at one place in all opcodes that have it.
    #[must_use]
    pub fn handle(&self, protocol: ProtocolId, name: &str) -> Option<FieldHandle> {
        let mut place = None;
        let mut shortest = usize::MAX;
        for control in &self.protocol(protocol)?.controls {
            let Some(field) = control.fields.iter().find(|field| field.full_name == name) else { continue };
            let bit = control.headers.get(field.header)?.offset * 8 + field.bit;
            let here = (bit, field.width, field.endian);
            if *place.get_or_insert(here) != here {
                return None;
            }
            shortest = shortest.min(usize::from(control.header_length));
        }
        let (bit, width, endian) = place?;
        Extract::new(bit, width, endian, shortest).map(|extract| FieldHandle { extract })
    }

    /// All fields of a packet. `None` when the opcode is not of these tables.
    #[must_use]
    pub fn fields(&self, protocol: ProtocolId, opcode: OpcodeId, bytes: &[u8]) -> Option<Fields> {
        let control = self.protocol(protocol)?.control(opcode)?;
        let mut fields = Fields::default();
        let windows = control.fields.iter().flat_map(|field| &*field.extracts);
        for (value, extract) in fields.values.iter_mut().zip(windows) {
            *value = extract.read(bytes);
        }
        Some(fields)
    }

    /// Changes one field, by its full name `header.field`. A field of more than 64 bits takes its bytes.
    pub fn set_field(
        &self,
        protocol: ProtocolId,
        opcode: OpcodeId,
        fields: &mut Fields,
        name: &str,
        value: FieldValue<'_>,
    ) -> Result<(), SetError> {
        let control = self.protocol(protocol).and_then(|tables| tables.control(opcode)).ok_or(SetError::NoSuchField)?;
        let mut first = 0;
        for field in &control.fields {
            let places = fields.values.get_mut(first..first + field.extracts.len()).unwrap_or(&mut []);
            first += field.extracts.len();
            if field.full_name != name {
                continue;
            }
            return match (&*field.extracts, value) {
                ([one], FieldValue::Number { value, .. }) if value <= one.max() => {
                    places.fill(value);
                    Ok(())
                }
                ([_], _) => Err(SetError::TooWide { bits: field.width }),
                (parts, FieldValue::Bytes(bytes)) if bytes.len() * 8 == field.width => {
                    for ((place, extract), chunk) in places.iter_mut().zip(parts).zip(bytes.chunks(8)) {
                        let here = Extract { offset: 0, left: 0, ..*extract };
                        *place = here.read(chunk);
                    }
                    Ok(())
                }
                _ => Err(SetError::NeedsBytes { bytes: field.width / 8 }),
            };
        }
        Err(SetError::NoSuchField)
    }

    /// Names and values of the fields that the definition names, in wire order, as `header.field`. A field of more than
    /// 64 bits comes as its bytes.
    pub fn named_fields<'a>(
        &'a self,
        protocol: ProtocolId,
        opcode: OpcodeId,
        bytes: &'a [u8],
    ) -> impl Iterator<Item = (&'a str, FieldValue<'a>)> {
        let control = self.protocol(protocol).and_then(|tables| tables.control(opcode));
        control.into_iter().flat_map(move |control| {
            control.fields.iter().filter(|field| !field.filler).map(move |field| {
                let value = match &*field.extracts {
                    [one] => FieldValue::Number { value: one.read(bytes), width: field.width },
                    [first, ..] => {
                        let start = usize::from(first.offset) + usize::from(first.left) / 8;
                        FieldValue::Bytes(bytes.get(start..start + field.width / 8).unwrap_or(&[]))
                    }
                    [] => FieldValue::Bytes(&[]),
                };
                (field.full_name.as_str(), value)
            })
        })
    }
}

/// A field at one place in all packets of a protocol that have it. See [`Tables::handle`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldHandle {
    extract: Extract,
}

impl FieldHandle {
    /// The value, given the packet from the protocol's first byte. Bytes behind its end count as zero.
    #[inline]
    #[must_use]
    pub fn read(self, bytes: &[u8]) -> u64 {
        self.extract.read(bytes)
    }

    /// Changes the value; bits above the field's width are dropped. Checksums are not touched.
    #[inline]
    pub fn write(self, bytes: &mut [u8], value: u64) {
        self.extract.write(bytes, value);
    }
}

/// Why a field was not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetError {
    /// The opcode has no such field.
    NoSuchField,
    /// The value has more bits than the field.
    TooWide {
        /// Bits of the field.
        bits: usize,
    },
    /// The field has more than 64 bits: give its bytes.
    NeedsBytes {
        /// How many.
        bytes: usize,
    },
}

impl fmt::Display for SetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SetError::NoSuchField => write!(f, "the opcode has no such field"),
            SetError::TooWide { bits } => write!(f, "the field has {bits} bits"),
            SetError::NeedsBytes { bytes } => write!(f, "the field takes {bytes} bytes, in hex"),
        }
    }
}

impl core::error::Error for SetError {}

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldValue<'a> {
    /// Up to 64 bits.
    Number {
        /// The value.
        value: u64,
        /// Bits of the field.
        width: usize,
    },
    /// More than 64 bits, as on the wire.
    Bytes(&'a [u8]),
}

impl Protocol {
    fn row_for(&self, command: &Command) -> Option<u16> {
        let head = command.slots[0] & !(u64::from(self.variable_flags) << KIND_BITS);
        let found = self.reverse.binary_search_by_key(&head, |(known, _)| *known).ok()?;
        self.reverse.get(found).map(|(_, number)| *number)
    }
}

impl SlotExtract {
    /// The same as whole bytes, if it is.
    pub(super) fn as_store(&self) -> Option<Store> {
        let Extract { offset, left, right, little } = self.extract;
        let whole = (left | right) & 7 == 0 && !little && self.up == 0;
        let bytes = (64 - right) / 8;
        (whole && bytes.is_power_of_two()).then_some(Store { offset: offset + left / 8, bytes, slot: self.slot })
    }

    /// The same as one bit, if it is.
    pub(super) fn as_bit_store(&self) -> Option<BitStore> {
        let Extract { offset, left, right, little } = self.extract;
        let mask = 0x80 >> (left % 8);
        (right == 63 && !little).then_some(BitStore { slot: self.slot, up: self.up, offset: offset + left / 8, mask })
    }
}

impl Control {
    /// Slots into the headers' template, which has zeros where they go. Whole bytes are written without being read: reading
    /// back what was just written in other pieces would stall the processor at every field.
    #[inline]
    fn insert(&self, command: &Command, headers: &mut [u8]) {
        let slot = |number: u8| command.slots.get(usize::from(number)).copied().unwrap_or(0);
        for store in &*self.stores {
            let value = slot(store.slot);
            let place = headers.get_mut(usize::from(store.offset)..).unwrap_or(&mut []);
            match store.bytes {
                1 => {
                    if let Some(place) = place.first_mut() {
                        *place = value as u8;
                    }
                }
                2 => {
                    if let Some(place) = place.first_chunk_mut() {
                        *place = (value as u16).to_be_bytes();
                    }
                }
                4 => {
                    if let Some(place) = place.first_chunk_mut() {
                        *place = (value as u32).to_be_bytes();
                    }
                }
                _ => {
                    if let Some(place) = place.first_chunk_mut() {
                        *place = value.to_be_bytes();
                    }
                }
            }
        }
        for bit in &*self.bits {
            if slot(bit.slot) >> (bit.up & 63) & 1 != 0
                && let Some(place) = headers.get_mut(usize::from(bit.offset))
            {
                *place |= bit.mask;
            }
        }
        for insert in &*self.inserts {
            let value = slot(insert.slot) >> (insert.up & 63);
            // What is zero is there already.
            if value & insert.extract.max() != 0 {
                insert.extract.write(headers, value);
            }
        }
    }

    /// Payload, pad and empty trailers behind the headers. Returns the packet's length.
    fn finish(&self, payload: &[u8], pad: usize, out: &mut [u8]) -> Result<usize, EncodeError> {
        let start = usize::from(self.header_length);
        let payload_end = start.checked_add(payload.len()).ok_or(EncodeError::TooLong)?;
        let end = payload_end + pad + usize::from(self.trailer_length);
        let have = out.len();
        let Some(packet) = out.get_mut(..end) else { return Err(EncodeError::NoRoom { needed: end, have }) };
        if let Some(to) = packet.get_mut(start..payload_end) {
            to.copy_from_slice(payload);
        }
        if let Some(rest) = packet.get_mut(payload_end..) {
            rest.fill(0);
        }
        Ok(end)
    }

    /// A value that its field would cut must not be sent as another one.
    fn fits(&self, command: &Command) -> Result<(), EncodeError> {
        match self.room.iter().find(|(slot, bits)| command.slot(*slot) & !bits != 0) {
            None => Ok(()),
            Some((slot, _)) => Err(EncodeError::DoesNotFit(*slot)),
        }
    }

    fn pad_bytes(&self, inputs: &Inputs<'_>) -> Result<usize, EncodeError> {
        let pad = match &self.pad {
            super::Pad::None => 0,
            super::Pad::Field(extract) => extract.read(inputs.bytes),
            super::Pad::Program(program) => program.run(inputs),
        };
        // As long as decoding lets what is trimmed be, so that what was decoded can be made again.
        let longest = u64::from(u16::MAX) - u64::from(self.trailer_length);
        usize::try_from(pad).ok().filter(|_| pad <= longest).ok_or(EncodeError::TooLong)
    }
}
