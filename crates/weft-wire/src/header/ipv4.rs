//! The IPv4 header (RFC 791), without its options.

use super::checksum::{Checksum, fill};
use super::fields::Fields;
use super::{HeaderError, first_bytes};

/// Values of the IPv4 protocol and IPv6 next-header fields.
pub mod ip_protocol {
    /// ICMP.
    pub const ICMP: u8 = 1;
    /// IPv4 inside IP.
    pub const IPV4: u8 = 4;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// IPv6 inside IP.
    pub const IPV6: u8 = 41;
    /// GRE.
    pub const GRE: u8 = 47;
    /// ICMPv6.
    pub const ICMPV6: u8 = 58;
    /// IPv6: nothing follows.
    pub const NONE: u8 = 59;
}

// | bytes | field                                          |
// |-------|------------------------------------------------|
// | 0     | version 4 · header length in 4-byte words 4    |
// | 1     | DSCP 6 · ECN 2                                 |
// | 2–3   | total length                                   |
// | 4–5   | identification                                 |
// | 6–7   | flags 3 · fragment offset in 8-byte units 13   |
// | 8     | time to live                                   |
// | 9     | protocol                                       |
// | 10–11 | header checksum                                |
// | 12–15 | source                                         |
// | 16–19 | destination                                    |
const VERSION_IHL: usize = 0;
const TYPE_OF_SERVICE: usize = 1;
const TOTAL_LENGTH: usize = 2;
const IDENTIFICATION: usize = 4;
const FRAGMENT: usize = 6;
const TTL: usize = 8;
const PROTOCOL: usize = 9;
const CHECKSUM: usize = 10;
const SOURCE: usize = 12;
const DESTINATION: usize = 16;

/// The fixed part of an IPv4 header. Options, where there are any, fill [`Ipv4::header_len`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4 {
    /// Header length in 4-byte words, 4 bits; 5 without options.
    pub ihl: u8,
    /// Differentiated services code point, 6 bits.
    pub dscp: u8,
    /// Congestion notification, 2 bits.
    pub ecn: u8,
    /// Bytes of header and payload.
    pub total_length: u16,
    /// Which datagram a fragment is of.
    pub identification: u16,
    /// [`Ipv4::DONT_FRAGMENT`], [`Ipv4::MORE_FRAGMENTS`] and the reserved bit above them, 3 bits.
    pub flags: u8,
    /// Place of the fragment in units of 8 bytes, 13 bits.
    pub fragment_offset: u16,
    /// Hops left.
    pub ttl: u8,
    /// What follows, one of [`ip_protocol`].
    pub protocol: u8,
    /// Header checksum as on the wire; see [`Ipv4::compute_checksum`].
    pub checksum: u16,
    /// Source address.
    pub source: [u8; 4],
    /// Destination address.
    pub destination: [u8; 4],
}

fixed_header!(Ipv4, Ipv4View, 20, {
    ihl, dscp, ecn, total_length, identification, flags, fragment_offset, ttl, protocol, checksum, source, destination,
}, check version_and_length);

impl Ipv4View<'_> {
    #[inline]
    fn version_and_length(&self) -> Result<(), HeaderError> {
        let version = self.bytes[VERSION_IHL] >> 4;
        if version != Ipv4::VERSION {
            return Err(HeaderError::BadVersion { expected: Ipv4::VERSION, found: version });
        }
        if self.header_len() < Ipv4::LEN {
            return Err(HeaderError::BadLength { minimum: Ipv4::LEN, found: self.header_len() });
        }
        Ok(())
    }

    /// Header length in 4-byte words, 5 to 15.
    #[inline]
    pub fn ihl(&self) -> u8 {
        self.bytes[VERSION_IHL] & 0x0f
    }

    /// Bytes of the header with its options, 20 to 60. That many need not be there: the view covers the fixed part.
    #[inline]
    pub fn header_len(&self) -> usize {
        usize::from(self.ihl()) * 4
    }

    /// Differentiated services code point, 6 bits.
    #[inline]
    pub fn dscp(&self) -> u8 {
        self.bytes[TYPE_OF_SERVICE] >> 2
    }

    /// Congestion notification, 2 bits.
    #[inline]
    pub fn ecn(&self) -> u8 {
        self.bytes[TYPE_OF_SERVICE] & 0x03
    }

    /// Bytes of header and payload.
    #[inline]
    pub fn total_length(&self) -> u16 {
        self.bytes.u16_at::<TOTAL_LENGTH>()
    }

    /// Which datagram a fragment is of.
    #[inline]
    pub fn identification(&self) -> u16 {
        self.bytes.u16_at::<IDENTIFICATION>()
    }

    /// The three flag bits.
    #[inline]
    pub fn flags(&self) -> u8 {
        self.bytes[FRAGMENT] >> 5
    }

    /// Place of the fragment in units of 8 bytes, 13 bits.
    #[inline]
    pub fn fragment_offset(&self) -> u16 {
        self.bytes.u16_at::<FRAGMENT>() & 0x1fff
    }

    /// Whether this is a piece of a datagram, so that what follows may not be a transport header.
    #[inline]
    pub fn is_fragment(&self) -> bool {
        self.flags() & Ipv4::MORE_FRAGMENTS != 0 || self.fragment_offset() != 0
    }

    /// Hops left.
    #[inline]
    pub fn ttl(&self) -> u8 {
        self.bytes[TTL]
    }

    /// What follows, one of [`ip_protocol`].
    #[inline]
    pub fn protocol(&self) -> u8 {
        self.bytes[PROTOCOL]
    }

    /// Header checksum as on the wire.
    #[inline]
    pub fn checksum(&self) -> u16 {
        self.bytes.u16_at::<CHECKSUM>()
    }

    /// Source address.
    #[inline]
    pub fn source(&self) -> [u8; 4] {
        self.bytes.bytes_at::<SOURCE, 4>()
    }

    /// Destination address.
    #[inline]
    pub fn destination(&self) -> [u8; 4] {
        self.bytes.bytes_at::<DESTINATION, 4>()
    }
}

impl Ipv4 {
    /// The value of the version field.
    pub const VERSION: u8 = 4;
    /// In `flags`: routers must drop rather than fragment.
    pub const DONT_FRAGMENT: u8 = 0b010;
    /// In `flags`: not the last fragment.
    pub const MORE_FRAGMENTS: u8 = 0b001;

    /// Bytes of the header with its options.
    #[inline]
    pub fn header_len(&self) -> usize {
        usize::from(self.ihl & 0x0f) * 4
    }

    /// The checksum that `header`, options included, should carry.
    pub fn compute_checksum(header: &[u8]) -> Result<u16, HeaderError> {
        first_bytes::<{ Self::LEN }>(header)?;
        Ok(Checksum::new().add_around(header, CHECKSUM)?.finish())
    }

    /// Computes the checksum of `header`, options included, and writes it there.
    pub fn fill_checksum(header: &mut [u8]) -> Result<(), HeaderError> {
        let checksum = Self::compute_checksum(header)?;
        fill(header, CHECKSUM, checksum)
    }

    #[inline]
    fn write(&self, out: &mut [u8; Self::LEN]) {
        out[VERSION_IHL] = Self::VERSION << 4 | self.ihl & 0x0f;
        out[TYPE_OF_SERVICE] = self.dscp << 2 | self.ecn & 0x03;
        out.put_u16::<TOTAL_LENGTH>(self.total_length);
        out.put_u16::<IDENTIFICATION>(self.identification);
        out.put_u16::<FRAGMENT>(u16::from(self.flags) << 13 | self.fragment_offset & 0x1fff);
        out[TTL] = self.ttl;
        out[PROTOCOL] = self.protocol;
        out.put_u16::<CHECKSUM>(self.checksum);
        out.put_bytes::<SOURCE, 4>(self.source);
        out.put_bytes::<DESTINATION, 4>(self.destination);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::captured;

    round_trip!(ipv4, Ipv4 {
        ihl: 5u8..=15, dscp: bits!(u8, 6), ecn: bits!(u8, 2), total_length: any::<u16>(), identification: any::<u16>(),
        flags: bits!(u8, 3), fragment_offset: bits!(u16, 13), ttl: any::<u8>(), protocol: any::<u8>(),
        checksum: any::<u16>(), source: any::<[u8; 4]>(), destination: any::<[u8; 4]>(),
    }, valid |mut bytes: [u8; 20]| { bytes[0] = 0x40 | (bytes[0] % 11 + 5); bytes });

    #[test]
    fn a_captured_header() {
        let mut bytes: [u8; 20] = captured::FETCH_ADD[14..34].try_into().unwrap();
        let header = Ipv4::parse(&bytes).unwrap();
        let expected = Ipv4 {
            ihl: 5,
            dscp: 0,
            ecn: 0,
            total_length: 72,
            identification: 0xb600,
            flags: Ipv4::DONT_FRAGMENT,
            fragment_offset: 0,
            ttl: 64,
            protocol: ip_protocol::UDP,
            checksum: 0x7090,
            source: [10, 9, 0, 2],
            destination: [10, 9, 0, 1],
        };
        assert_eq!(header, expected);
        assert_eq!(header.header_len(), 20);
        assert_eq!(Ipv4::compute_checksum(&bytes), Ok(header.checksum));

        let sent = bytes;
        bytes[CHECKSUM] = 0;
        Ipv4::fill_checksum(&mut bytes).unwrap();
        assert_eq!(bytes, sent);
        assert!(!Ipv4View::new(&bytes).unwrap().is_fragment());
    }

    #[test]
    fn another_version_or_a_short_length_is_refused() {
        let mut bytes = [0; 20];
        bytes[0] = 0x65;
        assert_eq!(Ipv4::parse(&bytes), Err(HeaderError::BadVersion { expected: 4, found: 6 }));
        bytes[0] = 0x44;
        assert_eq!(Ipv4::parse(&bytes), Err(HeaderError::BadLength { minimum: 20, found: 16 }));
    }

    #[test]
    fn a_checksum_needs_a_whole_header() {
        let error = HeaderError::Truncated { needed: 20, have: 19 };
        assert_eq!(Ipv4::compute_checksum(&[0; 19]), Err(error));
        assert_eq!(Ipv4::fill_checksum(&mut [0; 19]), Err(error));
    }
}
