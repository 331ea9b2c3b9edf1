//! Every bound that the capture reader puts on what a file may claim.

/// The longest packet that is read from a capture. It is the largest snapshot length that libpcap writes for the link
/// types known here, so a longer claim is damage or an attack rather than a packet.
pub const RECORD_LENGTH_MAX_BYTES: u32 = 262_144;

/// The longest pcapng block that is read as a whole: a packet block or an interface description, with its options.
/// A longer packet block is reported and skipped.
pub const BUFFERED_BLOCK_LENGTH_MAX_BYTES: u32 = 1_048_576;

/// The longest pcapng block that is believed at all. Blocks between the two limits are passed over without buffering;
/// past this one the length is taken for damage, because where the next block starts is then anyone's guess.
pub const BLOCK_LENGTH_MAX_BYTES: u32 = 16_777_216;

/// How many extension headers one ERF record may have. Cards write a few.
pub const ERF_EXTENSIONS_MAX: usize = 32;

/// How many interfaces one pcapng section may describe; it bounds the only state that grows with the file.
pub const INTERFACES_MAX: usize = 65_536;

// A packet of the greatest length fits in a buffered block with room for several options of the greatest length.
const _: () = assert!(RECORD_LENGTH_MAX_BYTES + 4 * (u16::MAX as u32) < BUFFERED_BLOCK_LENGTH_MAX_BYTES);
const _: () = assert!(BUFFERED_BLOCK_LENGTH_MAX_BYTES < BLOCK_LENGTH_MAX_BYTES);
