//! Headers of a pcap file to be written: nanosecond times, little-endian, which every current reader understands.
//!
//! A capture is one [`file_header`], then for each packet a [`record_header`] and the packet's bytes. InfiniBand packets
//! are best written as ERF, with an [`erf_header`] before each: Wireshark knows no other link type for them.

use super::NANOSECONDS_PER_SECOND;
use super::erf;
use super::limits::RECORD_LENGTH_MAX_BYTES;
use super::link_type::LinkType;
use super::pcap::{MAGIC_NANOSECONDS, VERSION_MAJOR, VERSION_MINOR};

/// The header that starts the file; all its packets are of `link_type`.
pub fn file_header(link_type: LinkType) -> [u8; 24] {
    let [major_0, major_1] = VERSION_MAJOR.to_le_bytes();
    let [minor_0, minor_1] = VERSION_MINOR.to_le_bytes();
    join([
        MAGIC_NANOSECONDS.to_le_bytes(),
        [major_0, major_1, minor_0, minor_1],
        // Time zone and accuracy: always zero in practice, and readers ignore them.
        [0; 4],
        [0; 4],
        RECORD_LENGTH_MAX_BYTES.to_le_bytes(),
        link_type.number().to_le_bytes(),
    ])
}

/// The header of one packet, which was captured whole at `timestamp_ns` since 1970 and is `length` bytes long.
///
/// Readers refuse a length over [`RECORD_LENGTH_MAX_BYTES`]. The format counts seconds in 32 bits, so a time after the
/// year 2106 is written as the last second it can express.
pub fn record_header(timestamp_ns: u64, length: u32) -> [u8; 16] {
    let seconds = u32::try_from(timestamp_ns / NANOSECONDS_PER_SECOND).unwrap_or(u32::MAX);
    // A remainder of 10^9 always fits.
    let nanoseconds = u32::try_from(timestamp_ns % NANOSECONDS_PER_SECOND).unwrap_or(0);
    join([seconds.to_le_bytes(), nanoseconds.to_le_bytes(), length.to_le_bytes(), length.to_le_bytes()])
}

/// The ERF header of one InfiniBand packet, which was captured whole at `timestamp_ns` and is `length` bytes long. The
/// [`record_header`] before it counts these 16 bytes too.
///
/// InfiniBand packets are shorter than 2^13 bytes. The format counts up to 2^16 with its header, so that readers would
/// shorten one that is longer.
pub fn erf_header(timestamp_ns: u64, length: u16) -> [u8; 16] {
    erf::infiniband_header(timestamp_ns, length)
}

fn join<const WORDS: usize, const BYTES: usize>(words: [[u8; 4]; WORDS]) -> [u8; BYTES] {
    const { assert!(BYTES == 4 * WORDS) };
    let mut bytes = [0; BYTES];
    bytes.copy_from_slice(words.as_flattened());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_have_the_layout_of_the_format() {
        assert_eq!(
            file_header(LinkType::LinuxSll2),
            [
                0x4d, 0x3c, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, //
                0, 0, 4, 0, 0x14, 1, 0, 0
            ]
        );
        assert_eq!(record_header(3_000_000_002, 0x0102), [3, 0, 0, 0, 2, 0, 0, 0, 2, 1, 0, 0, 2, 1, 0, 0]);
    }

    #[test]
    fn an_erf_header_is_as_wireshark_reads_it() {
        // Seven and a half seconds; type 21, a record of varying length, 46 bytes with this header, 30 on the wire.
        let expected = [0, 0, 0, 0x80, 7, 0, 0, 0, 21, 4, 0, 46, 0, 0, 0, 30];
        assert_eq!(erf_header(7_500_000_000, 30), expected);
        assert_eq!(erf_header(u64::MAX, u16::MAX)[4..8], [0xff; 4]);
    }

    #[test]
    fn a_time_past_the_format_is_the_last_second() {
        assert_eq!(record_header(u64::MAX, 0)[..4], [0xff; 4]);
    }
}
