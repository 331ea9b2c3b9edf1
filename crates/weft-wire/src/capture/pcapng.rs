//! The newer format: sections of typed blocks, each with its length at both ends. A block that is malformed inside its
//! length can be passed over; only a length that makes no sense ends the reading.

use alloc::vec::Vec;

use super::byte_order::ByteOrder;
use super::error::CaptureError;
use super::interface::{self, Interface};
use super::limits::{BLOCK_LENGTH_MAX_BYTES, BUFFERED_BLOCK_LENGTH_MAX_BYTES, INTERFACES_MAX, RECORD_LENGTH_MAX_BYTES};
use super::{Packet, Step};

/// The type of a section header; it reads the same in both byte orders.
pub(super) const MAGIC: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

const BYTE_ORDER_LITTLE: [u8; 4] = [0x4d, 0x3c, 0x2b, 0x1a];
const BYTE_ORDER_BIG: [u8; 4] = [0x1a, 0x2b, 0x3c, 0x4d];
const VERSION_MAJOR: u16 = 1;

const BLOCK_INTERFACE_DESCRIPTION: u32 = 1;
/// Obsolete; differs from the enhanced packet only in a narrower interface number.
const BLOCK_PACKET: u32 = 2;
const BLOCK_SIMPLE_PACKET: u32 = 3;
const BLOCK_ENHANCED_PACKET: u32 = 6;

/// Type and leading length.
const BLOCK_HEADER_LENGTH: usize = 8;
/// The trailing length.
const BLOCK_TRAILER_LENGTH: usize = 4;
const BLOCK_LENGTH_MIN: usize = BLOCK_HEADER_LENGTH + BLOCK_TRAILER_LENGTH;
const SECTION_HEADER_LENGTH_MIN: usize = 28;

/// Interface, time (two words), captured length, original length.
const ENHANCED_PACKET_FIXED_LENGTH: usize = 20;
/// Original length.
const SIMPLE_PACKET_FIXED_LENGTH: usize = 4;

/// The section that is being read.
#[derive(Clone, Debug)]
pub(super) struct Pcapng {
    order: ByteOrder,
    /// In order of description. A malformed one keeps its place, so that the numbers of those after it stay right.
    interfaces: Vec<Option<Interface>>,
}

impl Pcapng {
    /// Before the first section header, which is the first block of every file and sets the byte order.
    pub(super) const fn new() -> Self {
        Self { order: ByteOrder::Little, interfaces: Vec::new() }
    }

    /// Like the reader's, except that the bytes consumed may be more than there are in `buffer`.
    pub(super) fn next<'a>(&mut self, buffer: &'a [u8], offset: u64) -> Result<Step<'a>, CaptureError> {
        if buffer.starts_with(&MAGIC) {
            return self.section_header(buffer, offset);
        }
        let (Some(block_type), Some(length)) = (self.order.u32_at(buffer, 0), self.order.u32_at(buffer, 4)) else {
            return Ok(Step::NeedMore { at_least: BLOCK_HEADER_LENGTH });
        };
        let consumed = block_length(length, BLOCK_LENGTH_MIN, offset)?;
        if !matches!(
            block_type,
            BLOCK_INTERFACE_DESCRIPTION | BLOCK_PACKET | BLOCK_SIMPLE_PACKET | BLOCK_ENHANCED_PACKET
        ) {
            return Ok(Step::Skip { consumed });
        }
        let body = if length > BUFFERED_BLOCK_LENGTH_MAX_BYTES {
            Err(CaptureError::TooLong { offset, claimed: length, limit: BUFFERED_BLOCK_LENGTH_MAX_BYTES })
        } else if let Some(block) = buffer.get(..consumed) {
            self.body(block, length, offset)
        } else {
            return Ok(Step::NeedMore { at_least: consumed });
        };
        let step = if block_type == BLOCK_INTERFACE_DESCRIPTION {
            self.interface_description(body, offset).map(|()| Step::Skip { consumed })
        } else {
            body.and_then(|body| self.packet(block_type, body, offset)).map(|packet| Step::Packet { consumed, packet })
        };
        Ok(step.unwrap_or_else(|error| Step::Bad { consumed, error }))
    }

    /// Starts a section. Its options, and its length (which many writers leave open), are of no use here, so that only
    /// the fixed part has to be in the buffer.
    fn section_header(&mut self, buffer: &[u8], offset: u64) -> Result<Step<'static>, CaptureError> {
        // All of it before any of it is judged: what is asked for is what is needed, so that a file that ends earlier is
        // cut short, whatever it says so far.
        if buffer.len() < SECTION_HEADER_LENGTH_MIN {
            return Ok(Step::NeedMore { at_least: SECTION_HEADER_LENGTH_MIN });
        }
        let Some(&found) = buffer.get(BLOCK_HEADER_LENGTH..).and_then(<[u8]>::first_chunk) else {
            return Ok(Step::NeedMore { at_least: SECTION_HEADER_LENGTH_MIN });
        };
        let order = match found {
            BYTE_ORDER_LITTLE => ByteOrder::Little,
            BYTE_ORDER_BIG => ByteOrder::Big,
            _ => return Err(CaptureError::ByteOrderMagic { offset, found }),
        };
        let (Some(length), Some(major), Some(minor)) =
            (order.u32_at(buffer, 4), order.u16_at(buffer, 12), order.u16_at(buffer, 14))
        else {
            return Ok(Step::NeedMore { at_least: SECTION_HEADER_LENGTH_MIN });
        };
        let consumed = block_length(length, SECTION_HEADER_LENGTH_MIN, offset)?;
        if major != VERSION_MAJOR {
            return Err(CaptureError::Version { offset, major, minor });
        }
        self.order = order;
        self.interfaces.clear();
        Ok(Step::Skip { consumed })
    }

    /// What stands between the lengths of a whole block.
    fn body<'a>(&self, block: &'a [u8], leading: u32, offset: u64) -> Result<&'a [u8], CaptureError> {
        let end = block.len().saturating_sub(BLOCK_TRAILER_LENGTH);
        let trailing = self.order.u32_at(block, end).unwrap_or_default();
        if trailing != leading {
            return Err(CaptureError::LengthsDiffer { offset, leading, trailing });
        }
        Ok(block.get(BLOCK_HEADER_LENGTH..end).unwrap_or_default())
    }

    fn interface_description(&mut self, body: Result<&[u8], CaptureError>, offset: u64) -> Result<(), CaptureError> {
        if self.interfaces.len() >= INTERFACES_MAX {
            return Err(CaptureError::TooManyInterfaces { offset, limit: INTERFACES_MAX });
        }
        let interface = body.and_then(|body| {
            require_body(body, interface::FIXED_LENGTH, offset)?;
            Interface::parse(self.order, body, offset)
        });
        self.interfaces.push(interface.ok());
        interface.map(|_| ())
    }

    fn packet<'a>(&self, block_type: u32, body: &'a [u8], offset: u64) -> Result<Packet<'a>, CaptureError> {
        if block_type == BLOCK_SIMPLE_PACKET {
            return self.simple_packet(body, offset);
        }
        let (fixed, data) = require_body(body, ENHANCED_PACKET_FIXED_LENGTH, offset)?;
        let word = |at| self.order.u32_at(fixed, at).unwrap_or_default();
        let interface_number = match block_type {
            BLOCK_PACKET => self.order.u16_at(fixed, 0).unwrap_or_default().into(),
            _ => word(0),
        };
        let interface = self.interface(interface_number, offset)?;
        let ticks = (u64::from(word(4)) << 32) | u64::from(word(8));
        Ok(Packet {
            link_type: interface.link_type,
            data: packet_data(data, word(12), offset)?,
            original_length: word(16),
            timestamp_ns: interface.timestamp_ns(ticks).ok_or(CaptureError::Timestamp { offset, ticks })?,
        })
    }

    /// A packet of the first interface, without a time, whose captured length follows from the snapshot length.
    fn simple_packet<'a>(&self, body: &'a [u8], offset: u64) -> Result<Packet<'a>, CaptureError> {
        let (fixed, data) = require_body(body, SIMPLE_PACKET_FIXED_LENGTH, offset)?;
        let interface = self.interface(0, offset)?;
        let original_length = self.order.u32_at(fixed, 0).unwrap_or_default();
        let captured_length = match interface.snapshot_length {
            0 => original_length,
            snapshot_length => original_length.min(snapshot_length),
        };
        let data = packet_data(data, captured_length, offset)?;
        Ok(Packet { link_type: interface.link_type, timestamp_ns: 0, original_length, data })
    }

    fn interface(&self, number: u32, offset: u64) -> Result<&Interface, CaptureError> {
        let described = self.interfaces.len();
        usize::try_from(number)
            .ok()
            .and_then(|index| self.interfaces.get(index))
            .ok_or(CaptureError::UnknownInterface { offset, interface: number, described })?
            .as_ref()
            .ok_or(CaptureError::UnreadableInterface { offset, interface: number })
    }
}

/// Checks a block's length as far as the way to the next block depends on it.
fn block_length(claimed: u32, minimum: usize, offset: u64) -> Result<usize, CaptureError> {
    if claimed > BLOCK_LENGTH_MAX_BYTES {
        return Err(CaptureError::TooLong { offset, claimed, limit: BLOCK_LENGTH_MAX_BYTES });
    }
    let length = claimed as usize;
    if length < minimum {
        return Err(CaptureError::TooShort { offset, claimed, minimum: minimum as u32 });
    }
    if !length.is_multiple_of(4) {
        return Err(CaptureError::Unaligned { offset, claimed });
    }
    Ok(length)
}

/// Splits a body into its fixed part and what follows.
fn require_body(body: &[u8], fixed_length: usize, offset: u64) -> Result<(&[u8], &[u8]), CaptureError> {
    body.split_at_checked(fixed_length).ok_or(CaptureError::TooShort {
        offset,
        claimed: (body.len() + BLOCK_LENGTH_MIN) as u32,
        minimum: (fixed_length + BLOCK_LENGTH_MIN) as u32,
    })
}

/// The packet at the start of `room`, which also holds its padding and options.
fn packet_data(room: &[u8], claimed: u32, offset: u64) -> Result<&[u8], CaptureError> {
    if claimed > RECORD_LENGTH_MAX_BYTES {
        return Err(CaptureError::TooLong { offset, claimed, limit: RECORD_LENGTH_MAX_BYTES });
    }
    room.get(..claimed as usize).ok_or(CaptureError::PacketOverrun { offset, claimed, room: room.len() })
}
