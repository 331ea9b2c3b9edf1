//! The TCP header (RFC 9293), without its options.

use super::checksum::{PseudoHeader, fill};
use super::fields::Fields;
use super::{HeaderError, first_bytes, ip_protocol};

/// Bits of the flags field.
pub mod tcp_flag {
    /// No more data.
    pub const FIN: u16 = 0x001;
    /// Synchronise sequence numbers.
    pub const SYN: u16 = 0x002;
    /// Reset.
    pub const RST: u16 = 0x004;
    /// Push.
    pub const PSH: u16 = 0x008;
    /// The acknowledgement number counts.
    pub const ACK: u16 = 0x010;
    /// The urgent pointer counts.
    pub const URG: u16 = 0x020;
    /// Congestion echo.
    pub const ECE: u16 = 0x040;
    /// Congestion window reduced.
    pub const CWR: u16 = 0x080;
    /// Accurate ECN; once the nonce sum.
    pub const AE: u16 = 0x100;
}

// | bytes | field                                                   |
// |-------|---------------------------------------------------------|
// | 0–1   | source port                                             |
// | 2–3   | destination port                                        |
// | 4–7   | sequence number                                         |
// | 8–11  | acknowledgement number                                  |
// | 12–13 | data offset in 4-byte words 4 · reserved 3 · flags 9    |
// | 14–15 | window                                                  |
// | 16–17 | checksum                                                |
// | 18–19 | urgent pointer                                          |
const SOURCE_PORT: usize = 0;
const DESTINATION_PORT: usize = 2;
const SEQUENCE: usize = 4;
const ACKNOWLEDGEMENT: usize = 8;
const OFFSET_FLAGS: usize = 12;
const WINDOW: usize = 14;
const CHECKSUM: usize = 16;
const URGENT: usize = 18;

/// The fixed part of a TCP header. Options, where there are any, fill [`Tcp::header_len`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tcp {
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// Sequence number.
    pub sequence: u32,
    /// Acknowledgement number.
    pub acknowledgement: u32,
    /// Header length in 4-byte words, 4 bits; 5 without options.
    pub data_offset: u8,
    /// Reserved, 3 bits.
    pub reserved: u8,
    /// Bits of [`tcp_flag`], 9 bits.
    pub flags: u16,
    /// Window, not scaled.
    pub window: u16,
    /// Checksum as on the wire; see [`Tcp::compute_checksum`].
    pub checksum: u16,
    /// Urgent pointer.
    pub urgent: u16,
}

fixed_header!(Tcp, TcpView, 20, {
    source_port, destination_port, sequence, acknowledgement, data_offset, reserved, flags, window, checksum, urgent,
}, check length);

impl TcpView<'_> {
    #[inline]
    fn length(&self) -> Result<(), HeaderError> {
        match self.header_len() {
            found if found < Tcp::LEN => Err(HeaderError::BadLength { minimum: Tcp::LEN, found }),
            _ => Ok(()),
        }
    }

    /// Source port.
    #[inline]
    pub fn source_port(&self) -> u16 {
        self.bytes.u16_at::<SOURCE_PORT>()
    }

    /// Destination port.
    #[inline]
    pub fn destination_port(&self) -> u16 {
        self.bytes.u16_at::<DESTINATION_PORT>()
    }

    /// Sequence number.
    #[inline]
    pub fn sequence(&self) -> u32 {
        self.bytes.u32_at::<SEQUENCE>()
    }

    /// Acknowledgement number.
    #[inline]
    pub fn acknowledgement(&self) -> u32 {
        self.bytes.u32_at::<ACKNOWLEDGEMENT>()
    }

    /// Header length in 4-byte words, 5 to 15.
    #[inline]
    pub fn data_offset(&self) -> u8 {
        self.bytes[OFFSET_FLAGS] >> 4
    }

    /// Bytes of the header with its options, 20 to 60. That many need not be there: the view covers the fixed part.
    #[inline]
    pub fn header_len(&self) -> usize {
        usize::from(self.data_offset()) * 4
    }

    /// Reserved, 3 bits.
    #[inline]
    pub fn reserved(&self) -> u8 {
        self.bytes[OFFSET_FLAGS] >> 1 & 0x07
    }

    /// Bits of [`tcp_flag`], 9 bits.
    #[inline]
    pub fn flags(&self) -> u16 {
        self.bytes.u16_at::<OFFSET_FLAGS>() & 0x01ff
    }

    /// Window, not scaled.
    #[inline]
    pub fn window(&self) -> u16 {
        self.bytes.u16_at::<WINDOW>()
    }

    /// Checksum as on the wire.
    #[inline]
    pub fn checksum(&self) -> u16 {
        self.bytes.u16_at::<CHECKSUM>()
    }

    /// Urgent pointer.
    #[inline]
    pub fn urgent(&self) -> u16 {
        self.bytes.u16_at::<URGENT>()
    }
}

impl Tcp {
    /// Bytes of the header with its options.
    #[inline]
    pub fn header_len(&self) -> usize {
        usize::from(self.data_offset & 0x0f) * 4
    }

    /// The checksum that `segment`, header, options and payload, should carry between these addresses.
    pub fn compute_checksum(addresses: &PseudoHeader, segment: &[u8]) -> Result<u16, HeaderError> {
        first_bytes::<{ Self::LEN }>(segment)?;
        Ok(addresses.sum(ip_protocol::TCP, segment.len()).add_around(segment, CHECKSUM)?.finish())
    }

    /// Computes the checksum of `segment` and writes it there.
    pub fn fill_checksum(addresses: &PseudoHeader, segment: &mut [u8]) -> Result<(), HeaderError> {
        let checksum = Self::compute_checksum(addresses, segment)?;
        fill(segment, CHECKSUM, checksum)
    }

    #[inline]
    fn write(&self, out: &mut [u8; Self::LEN]) {
        out.put_u16::<SOURCE_PORT>(self.source_port);
        out.put_u16::<DESTINATION_PORT>(self.destination_port);
        out.put_u32::<SEQUENCE>(self.sequence);
        out.put_u32::<ACKNOWLEDGEMENT>(self.acknowledgement);
        let reserved = u16::from(self.reserved & 0x07) << 9;
        out.put_u16::<OFFSET_FLAGS>(u16::from(self.data_offset) << 12 | reserved | self.flags & 0x01ff);
        out.put_u16::<WINDOW>(self.window);
        out.put_u16::<CHECKSUM>(self.checksum);
        out.put_u16::<URGENT>(self.urgent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::captured;

    round_trip!(tcp, Tcp {
        source_port: any::<u16>(), destination_port: any::<u16>(), sequence: any::<u32>(),
        acknowledgement: any::<u32>(), data_offset: 5u8..=15, reserved: bits!(u8, 3), flags: bits!(u16, 9),
        window: any::<u16>(), checksum: any::<u16>(), urgent: any::<u16>(),
    }, valid |mut bytes: [u8; 20]| { bytes[12] = (bytes[12] % 11 + 5) << 4 | bytes[12] & 0x0f; bytes });

    #[test]
    fn a_captured_header() {
        let header = Tcp::parse(&captured::MPA_REQUEST[34..]).unwrap();
        let expected = Tcp {
            source_port: 59625,
            destination_port: 7174,
            sequence: 1_761_019_501,
            acknowledgement: 2_424_212_433,
            data_offset: 8,
            reserved: 0,
            flags: tcp_flag::PSH | tcp_flag::ACK,
            window: 1004,
            checksum: 0x1453,
            urgent: 0,
        };
        assert_eq!(header, expected);
        assert_eq!(header.header_len(), 32);
    }

    #[test]
    fn a_short_data_offset_is_refused() {
        assert_eq!(Tcp::parse(&[0x40; 20]), Err(HeaderError::BadLength { minimum: 20, found: 16 }));
    }

    #[test]
    fn the_pseudo_header_of_a_captured_segment() {
        // The sender left the checksum to its hardware: what the field holds is the sum of the pseudo-header alone.
        let segment = &captured::MPA_REQUEST[34..];
        let addresses = PseudoHeader::Ipv4 { source: [10, 9, 0, 2], destination: [10, 9, 0, 1] };
        assert_eq!(!addresses.sum(ip_protocol::TCP, segment.len()).finish(), 0x1453);
    }

    #[test]
    fn a_checksum_by_hand() {
        let addresses = PseudoHeader::Ipv4 { source: [0; 4], destination: [0; 4] };
        let mut segment = [0; 21];
        segment[20] = 0x12;
        // 0006 + 0015 + 1200 = 121b
        Tcp::fill_checksum(&addresses, &mut segment).unwrap();
        assert_eq!(segment[16..18], (!0x121bu16).to_be_bytes());
    }
}
