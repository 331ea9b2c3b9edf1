//! The classic format: one file header, then records of a fixed header and the packet. Nothing marks where a record
//! starts but the length of the one before, so a length that lies ends the reading.

use super::byte_order::ByteOrder;
use super::error::CaptureError;
use super::limits::RECORD_LENGTH_MAX_BYTES;
use super::link_type::LinkType;
use super::{NANOSECONDS_PER_SECOND, Packet, Step};

const MAGIC_MICROSECONDS: u32 = 0xa1b2_c3d4;
pub(super) const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;
/// Written by patched libpcaps of old Linux distributions: eight more bytes in each record header.
const MAGIC_MODIFIED: u32 = 0xa1b2_cd34;

pub(super) const VERSION_MAJOR: u16 = 2;
pub(super) const VERSION_MINOR: u16 = 4;

const FILE_HEADER_LENGTH: usize = 24;
const RECORD_HEADER_LENGTH: usize = 16;
const RECORD_HEADER_MODIFIED_LENGTH: usize = 24;

/// The link type proper; the bits above it tell the length of the frame check sequence, or are reserved.
const LINK_TYPE_MASK: u32 = 0x0000_ffff;

/// What the magic number alone tells.
#[derive(Clone, Copy, Debug)]
pub(super) struct Variant {
    order: ByteOrder,
    nanoseconds_per_tick: u32,
    record_header_length: usize,
}

impl Variant {
    pub(super) fn recognise(start: [u8; 4]) -> Option<Self> {
        let (order, magic) = match (u32::from_le_bytes(start), u32::from_be_bytes(start)) {
            (magic @ (MAGIC_MICROSECONDS | MAGIC_NANOSECONDS | MAGIC_MODIFIED), _) => (ByteOrder::Little, magic),
            (_, magic) => (ByteOrder::Big, magic),
        };
        let (nanoseconds_per_tick, record_header_length) = match magic {
            MAGIC_MICROSECONDS => (1_000, RECORD_HEADER_LENGTH),
            MAGIC_NANOSECONDS => (1, RECORD_HEADER_LENGTH),
            MAGIC_MODIFIED => (1_000, RECORD_HEADER_MODIFIED_LENGTH),
            _ => return None,
        };
        Some(Self { order, nanoseconds_per_tick, record_header_length })
    }

    /// Whether a file that ends after `start` may have been the beginning of a pcap file.
    pub(super) fn may_start_with(start: &[u8]) -> bool {
        [MAGIC_MICROSECONDS, MAGIC_NANOSECONDS, MAGIC_MODIFIED]
            .iter()
            .any(|magic| magic.to_le_bytes().starts_with(start) || magic.to_be_bytes().starts_with(start))
    }
}

/// A pcap file whose header has been read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pcap {
    variant: Variant,
    link_type: LinkType,
}

impl Pcap {
    /// Reads the file header; nothing comes back while `buffer` is too short for it.
    pub(super) fn open(variant: Variant, buffer: &[u8]) -> Result<(Step<'static>, Option<Self>), CaptureError> {
        let order = variant.order;
        // Between version and link type: time zone, accuracy and snapshot length. Nobody fills in the first two, and
        // files exist whose packets exceed the third.
        let (Some(major), Some(minor), Some(link_type)) =
            (order.u16_at(buffer, 4), order.u16_at(buffer, 6), order.u32_at(buffer, 20))
        else {
            return Ok((Step::NeedMore { at_least: FILE_HEADER_LENGTH }, None));
        };
        // Before 2.4 the two lengths of a record stood in the other order.
        if major != VERSION_MAJOR || minor < VERSION_MINOR {
            return Err(CaptureError::Version { offset: 0, major, minor });
        }
        let link_type = LinkType::from_number(link_type & LINK_TYPE_MASK);
        Ok((Step::Skip { consumed: FILE_HEADER_LENGTH }, Some(Self { variant, link_type })))
    }

    pub(super) fn next<'a>(&self, buffer: &'a [u8], offset: u64) -> Result<Step<'a>, CaptureError> {
        let Variant { order, nanoseconds_per_tick, record_header_length } = self.variant;
        let Some((header, rest)) = buffer.split_at_checked(record_header_length) else {
            return Ok(Step::NeedMore { at_least: record_header_length });
        };
        let (Some(seconds), Some(ticks), Some(captured_length), Some(original_length)) =
            (order.u32_at(header, 0), order.u32_at(header, 4), order.u32_at(header, 8), order.u32_at(header, 12))
        else {
            return Ok(Step::NeedMore { at_least: record_header_length });
        };
        if captured_length > RECORD_LENGTH_MAX_BYTES {
            return Err(CaptureError::TooLong { offset, claimed: captured_length, limit: RECORD_LENGTH_MAX_BYTES });
        }
        let consumed = record_header_length.saturating_add(captured_length as usize);
        let Some(data) = rest.get(..captured_length as usize) else {
            return Ok(Step::NeedMore { at_least: consumed });
        };
        // Fits whatever the file says: 2^32 seconds and 2^32 microseconds are below 2^63 nanoseconds.
        let timestamp_ns =
            u64::from(seconds) * NANOSECONDS_PER_SECOND + u64::from(ticks) * u64::from(nanoseconds_per_tick);
        let packet = Packet { link_type: self.link_type, timestamp_ns, original_length, data };
        Ok(Step::Packet { consumed, packet })
    }
}
