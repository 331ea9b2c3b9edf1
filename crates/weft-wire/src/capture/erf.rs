//! Records of the Extensible Record Format of Endace's cards, one in each pcap record or pcapng packet (link type 197).
//! InfiniBand sniffers write it too: ibdump knows no other.
//!
//! A record is a header, extension headers, for some types a header of their own, and the packet. Its lengths may
//! shorten the packet, never reach past what was captured.

use core::fmt;

use super::limits::ERF_EXTENSIONS_MAX;
use super::{LinkType, NANOSECONDS_PER_SECOND, Packet};

// | bytes | field                                                                |
// |-------|----------------------------------------------------------------------|
// | 0–7   | time since 1970 in units of 2^-32 seconds, little-endian             |
// | 8     | an extension header follows 1 · type 7                               |
// | 9     | flags                                                                |
// | 10–11 | length of the record with all headers, and with padding (rlen)       |
// | 12–13 | records lost before this one, for most types                         |
// | 14–15 | length of the packet on the wire (wlen)                              |
const HEADER_LENGTH: usize = 16;
const EXTENSION_FOLLOWS: u8 = 0x80;

/// Its first byte is a type with the same flag as in the header; nothing that is needed here is in the others.
const EXTENSION_LENGTH: usize = 8;

/// The types of Ethernet: plain, and with three other uses of the field for lost records.
const TYPE_ETHERNET: u8 = 2;
const TYPE_ETHERNET_COLOR: u8 = 11;
const TYPE_ETHERNET_DSM_COLOR: u8 = 16;
const TYPE_ETHERNET_COLOR_HASH: u8 = 20;
const TYPE_INFINIBAND: u8 = 21;

/// In flags: the record is as long as the packet needs, instead of a fixed length.
const FLAG_VARYING_LENGTH: u8 = 0x04;

/// What can be wrong with an ERF record. The records behind it can be read all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErfFault {
    /// The capture has fewer bytes of the record than its headers take.
    Cut {
        /// Bytes up to the end of the header that is cut.
        needed: usize,
        /// Bytes that were captured.
        have: usize,
    },
    /// The record claims a length that its own headers exceed.
    Length {
        /// Bytes claimed.
        claimed: u16,
        /// Bytes of its headers.
        headers: usize,
    },
    /// More than [`ERF_EXTENSIONS_MAX`] extension headers.
    Extensions,
    /// The card left the first bytes of the Ethernet frame out, and the addresses and the type with them.
    Offset {
        /// How many.
        bytes: u8,
    },
}

impl fmt::Display for ErfFault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Cut { needed, have } => {
                write!(out, "its headers take at least {needed} bytes, but only {have} were captured")
            }
            Self::Length { claimed, headers } => {
                write!(out, "it claims {claimed} bytes, but its headers alone take {headers}")
            }
            Self::Extensions => write!(out, "it has more than {ERF_EXTENSIONS_MAX} extension headers"),
            Self::Offset { bytes } => {
                write!(out, "it lacks the first {bytes} bytes of its Ethernet frame: capture without an offset")
            }
        }
    }
}

/// The packet in a record, with the time and the length on the wire that the record has for it.
///
/// A frame check sequence at the end of an Ethernet frame stays there: nothing in the record tells whether there is one,
/// and the lengths inside of the frame end before it.
pub(super) fn open<'a>(record: &Packet<'a>) -> Result<Packet<'a>, ErfFault> {
    let data = record.data;
    let cut = |needed: usize| ErfFault::Cut { needed, have: data.len() };
    let &[time @ .., kind, _flags, length_high, length_low, _, _, wire_high, wire_low] =
        data.first_chunk::<HEADER_LENGTH>().ok_or(cut(HEADER_LENGTH))?;
    let mut headers = HEADER_LENGTH;
    let (mut last, mut extensions) = (kind, 0);
    while last & EXTENSION_FOLLOWS != 0 {
        if extensions == ERF_EXTENSIONS_MAX {
            return Err(ErfFault::Extensions);
        }
        let end = headers + EXTENSION_LENGTH;
        last = *data.get(headers..end).and_then(<[u8]>::first).ok_or(cut(end))?;
        headers = end;
        extensions += 1;
    }
    let link_type = match kind & !EXTENSION_FOLLOWS {
        TYPE_INFINIBAND => LinkType::InfiniBand,
        TYPE_ETHERNET | TYPE_ETHERNET_COLOR | TYPE_ETHERNET_DSM_COLOR | TYPE_ETHERNET_COLOR_HASH => {
            // How many bytes were left out, and one of padding, which puts the IP header on a multiple of four.
            let &[offset, _] = data.get(headers..).and_then(<[u8]>::first_chunk).ok_or(cut(headers + 2))?;
            headers += 2;
            if offset != 0 {
                return Err(ErfFault::Offset { bytes: offset });
            }
            LinkType::Ethernet
        }
        other => LinkType::ErfOther(other),
    };
    let claimed = u16::from_be_bytes([length_high, length_low]);
    let room = usize::from(claimed).checked_sub(headers).ok_or(ErfFault::Length { claimed, headers })?;
    let wire_length = u16::from_be_bytes([wire_high, wire_low]);
    // Behind the packet the record may be padded.
    let packet = data.get(headers..).ok_or(cut(headers))?;
    let packet = packet.get(..room.min(usize::from(wire_length))).unwrap_or(packet);
    let timestamp_ns = nanoseconds(u64::from_le_bytes(time));
    Ok(Packet { link_type, timestamp_ns, original_length: u32::from(wire_length), data: packet })
}

/// The header of a record with an InfiniBand packet of `length` bytes, all of which were captured.
pub(super) fn infiniband_header(timestamp_ns: u64, length: u16) -> [u8; HEADER_LENGTH] {
    let mut header = [0; HEADER_LENGTH];
    let [record_high, record_low] = length.saturating_add(HEADER_LENGTH as u16).to_be_bytes();
    let [wire_high, wire_low] = length.to_be_bytes();
    let behind_time = [TYPE_INFINIBAND, FLAG_VARYING_LENGTH, record_high, record_low, 0, 0, wire_high, wire_low];
    let fields = units(timestamp_ns).to_le_bytes().into_iter().chain(behind_time);
    header.iter_mut().zip(fields).for_each(|(to, from)| *to = from);
    header
}

/// Rounded, as libpcap and Wireshark do. Fits whatever the record says: 2^32 seconds are below 2^62 nanoseconds.
fn nanoseconds(units: u64) -> u64 {
    let fraction = (units & u64::from(u32::MAX)) * NANOSECONDS_PER_SECOND;
    (units >> 32) * NANOSECONDS_PER_SECOND + ((fraction + (1 << 31)) >> 32)
}

/// A unit is shorter than half a nanosecond, so that rounding gives the same nanosecond again. A time that the format
/// cannot express is its last second, as in a pcap record.
fn units(timestamp_ns: u64) -> u64 {
    let seconds = (timestamp_ns / NANOSECONDS_PER_SECOND).min(u64::from(u32::MAX));
    let fraction = ((timestamp_ns % NANOSECONDS_PER_SECOND) << 32) / NANOSECONDS_PER_SECOND;
    seconds << 32 | fraction
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    /// A record: type, extension headers by their first bytes, length that it claims, length on the wire, the rest.
    fn record(kind: u8, extensions: &[u8], claimed: u16, wire: u16, rest: &[u8]) -> Vec<u8> {
        let mut bytes = [[0, 0, 0, 0x80], 7u32.to_le_bytes()].concat();
        bytes.extend([kind, 4]);
        bytes.extend(claimed.to_be_bytes());
        bytes.extend([0, 0]);
        bytes.extend(wire.to_be_bytes());
        for first in extensions {
            bytes.extend([*first, 1, 2, 3, 4, 5, 6, 7]);
        }
        bytes.extend(rest);
        bytes
    }

    fn opened(data: &[u8]) -> Result<(LinkType, u32, &[u8]), ErfFault> {
        let packet = open(&Packet { link_type: LinkType::Erf, timestamp_ns: 1, original_length: 2, data })?;
        assert_eq!(packet.timestamp_ns, 7_500_000_000);
        Ok((packet.link_type, packet.original_length, packet.data))
    }

    #[test]
    fn the_packet_and_its_lengths_come_from_the_record() {
        assert_eq!(opened(&record(21, &[], 20, 4, b"abcd")), Ok((LinkType::InfiniBand, 4, &b"abcd"[..])));
        for kind in [2, 11, 16, 20] {
            let data = record(kind, &[], 22, 4, b"\0\x55abcd");
            assert_eq!(opened(&data), Ok((LinkType::Ethernet, 4, &b"abcd"[..])), "type {kind}");
        }
        let known = [2, 11, 16, 20, 21];
        for kind in (0..128).filter(|kind| !known.contains(kind)) {
            assert_eq!(opened(&record(kind, &[], 20, 4, b"abcd")), Ok((LinkType::ErfOther(kind), 4, &b"abcd"[..])));
        }
    }

    #[test]
    fn extension_headers_are_passed_over() {
        let infiniband = record(0x80 | 21, &[0x85, 0x83, 3], 44, 4, b"abcd");
        assert_eq!(opened(&infiniband), Ok((LinkType::InfiniBand, 4, &b"abcd"[..])));
        let ethernet = record(0x80 | 16, &[16], 30, 4, b"\0\0abcd");
        assert_eq!(opened(&ethernet), Ok((LinkType::Ethernet, 4, &b"abcd"[..])));
        // The flag in the header alone tells whether one follows.
        assert_eq!(opened(&record(21, &[0x83], 28, 8, b"")).map(|found| found.2.len()), Ok(8));
    }

    #[test]
    fn lengths_shorten_the_packet_and_never_reach_past_it() {
        let packet = |claimed, wire| opened(&record(21, &[], claimed, wire, b"abcdefgh")).map(|found| found.2.to_vec());
        assert_eq!(packet(24, 5).unwrap(), b"abcde", "padded to a multiple of eight");
        assert_eq!(packet(20, 300).unwrap(), b"abcd", "snapped");
        assert_eq!(packet(u16::MAX, u16::MAX).unwrap(), b"abcdefgh", "both lie");
        assert_eq!(packet(24, 0).unwrap(), b"");
        assert_eq!(packet(16, 8).unwrap(), b"");
        assert_eq!(packet(15, 8), Err(ErfFault::Length { claimed: 15, headers: 16 }));
        assert_eq!(packet(0, 8), Err(ErfFault::Length { claimed: 0, headers: 16 }));
        let extended = record(0x80 | 2, &[3], 25, 4, b"\0\0abcd");
        assert_eq!(opened(&extended), Err(ErfFault::Length { claimed: 25, headers: 26 }));
    }

    #[test]
    fn a_record_cut_inside_its_headers_says_how_much_they_take() {
        let whole = record(0x80 | 2, &[0x83, 3], 38, 4, b"\0\0abcd");
        for have in 0..whole.len() {
            let ends = [16, 24, 32, 34];
            let expected = ends.into_iter().find(|end| *end > have).map(|needed| ErfFault::Cut { needed, have });
            assert_eq!(opened(&whole[..have]).err(), expected, "{have} bytes");
        }
    }

    #[test]
    fn a_chain_of_extension_headers_ends_at_the_limit() {
        let chain = |count: usize| {
            let mut extensions = std::vec![0x83; count];
            extensions[count - 1] = 3;
            record(0x80 | 21, &extensions, u16::MAX, 4, b"abcd")
        };
        assert_eq!(opened(&chain(ERF_EXTENSIONS_MAX)).map(|found| found.2), Ok(&b"abcd"[..]));
        assert_eq!(opened(&chain(ERF_EXTENSIONS_MAX + 1)), Err(ErfFault::Extensions));
        let endless = record(0x80 | 21, &[0x83; 32_000], u16::MAX, 4, b"");
        assert_eq!(opened(&endless), Err(ErfFault::Extensions));
    }

    #[test]
    fn a_frame_without_its_start_is_not_taken_for_one() {
        assert_eq!(opened(&record(2, &[], 22, 4, b"\x0e\0abcd")), Err(ErfFault::Offset { bytes: 14 }));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(timestamp_ns in any::<u64>(), length in 0..=u16::MAX - 16) {
            let timestamp_ns = timestamp_ns % (1 << 62);
            let mut data = infiniband_header(timestamp_ns, length).to_vec();
            data.resize(HEADER_LENGTH + usize::from(length) + 1, 0xa5);
            let record = Packet { link_type: LinkType::Erf, timestamp_ns: 0, original_length: 0, data: &data };
            let packet = open(&record).unwrap();
            let expected = &data[HEADER_LENGTH..HEADER_LENGTH + usize::from(length)];
            let seconds = timestamp_ns / NANOSECONDS_PER_SECOND;
            prop_assert!(packet.timestamp_ns == timestamp_ns || seconds > u64::from(u32::MAX));
            prop_assert_eq!((packet.link_type, packet.original_length), (LinkType::InfiniBand, u32::from(length)));
            prop_assert_eq!(packet.data, expected);
        }

        #[test]
        fn any_bytes_are_read_or_refused(data in proptest::collection::vec(any::<u8>(), 0..400)) {
            let record = Packet { link_type: LinkType::Erf, timestamp_ns: 0, original_length: 0, data: &data };
            if let Ok(packet) = open(&record) {
                prop_assert!(packet.data.len() + HEADER_LENGTH <= data.len());
                prop_assert!(packet.data.len() <= packet.original_length as usize);
            }
        }
    }
}
