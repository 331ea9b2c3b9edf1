//! The GRE header (RFC 2784, with the key and sequence number of RFC 2890).
//!
//! It is the one header here whose length depends on its flags, so its view holds the optional words apart.

use super::HeaderError;
use super::checksum::Checksum;

// | bytes | field                                                                            |
// |-------|----------------------------------------------------------------------------------|
// | 0–1   | checksum 1 · routing 1 · key 1 · sequence 1 · reserved 9 · version 3             |
// | 2–3   | protocol                                                                         |
// | +4    | where the checksum bit is set: checksum 16 · reserved 16                         |
// | +4    | where the key bit is set: key                                                    |
// | +4    | where the sequence bit is set: sequence number                                   |
const CHECKSUM_BIT: u16 = 0x8000;
const ROUTING_BIT: u16 = 0x4000;
const KEY_BIT: u16 = 0x2000;
const SEQUENCE_BIT: u16 = 0x1000;
const RESERVED_SHIFT: u32 = 3;
const RESERVED_MASK: u16 = 0x01ff;
const VERSION_MASK: u16 = 0x0007;

/// Every optional word, and the packet's checksum field when there is one, is at this offset.
const FIRST_OPTIONAL: usize = 4;

/// A GRE header of version 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gre {
    /// Reserved bits between the flags and the version, 9 bits.
    pub reserved: u16,
    /// What follows, one of [`ether_type`](super::ether_type).
    pub protocol: u16,
    /// Checksum word, where there is one.
    pub checksum: Option<GreChecksum>,
    /// Key, where there is one; NVGRE keeps its network identifier in the upper 24 bits.
    pub key: Option<u32>,
    /// Sequence number, where there is one.
    pub sequence: Option<u32>,
}

/// The checksum word of a GRE header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GreChecksum {
    /// Checksum of header and payload as on the wire; see [`Gre::compute_checksum`].
    pub value: u16,
    /// Reserved, 16 bits.
    pub reserved: u16,
}

/// A checked view of a [`Gre`] header with its optional words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GreView<'a> {
    base: &'a [u8; 4],
    checksum: Option<&'a [u8; 4]>,
    key: Option<&'a [u8; 4]>,
    sequence: Option<&'a [u8; 4]>,
}

impl<'a> GreView<'a> {
    /// Checks that `bytes` begins with a whole header of version 0, without the source routes of RFC 1701, whose
    /// length only the routes themselves would tell.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<Self, HeaderError> {
        let truncated = |needed| HeaderError::Truncated { needed, have: bytes.len() };
        let (base, mut rest) = bytes.split_first_chunk::<4>().ok_or(truncated(Gre::LEN))?;
        let flags = u16::from_be_bytes([base[0], base[1]]);
        if flags & VERSION_MASK != 0 {
            return Err(HeaderError::BadVersion { expected: 0, found: (flags & VERSION_MASK) as u8 });
        }
        if flags & ROUTING_BIT != 0 {
            return Err(HeaderError::UnsupportedFlags { flags: flags & ROUTING_BIT });
        }
        let mut optional = |bit| {
            if flags & bit == 0 {
                return Ok(None);
            }
            let (word, after) = rest.split_first_chunk::<4>().ok_or(truncated(header_len(flags)))?;
            rest = after;
            Ok(Some(word))
        };
        let (checksum, key, sequence) = (optional(CHECKSUM_BIT)?, optional(KEY_BIT)?, optional(SEQUENCE_BIT)?);
        Ok(Self { base, checksum, key, sequence })
    }

    #[inline]
    fn flags(&self) -> u16 {
        u16::from_be_bytes([self.base[0], self.base[1]])
    }

    /// Bytes of the header with its optional words, 4 to 16.
    #[inline]
    pub fn header_len(&self) -> usize {
        header_len(self.flags())
    }

    /// Reserved bits between the flags and the version, 9 bits.
    #[inline]
    pub fn reserved(&self) -> u16 {
        self.flags() >> RESERVED_SHIFT & RESERVED_MASK
    }

    /// Version; any but 0 was refused.
    #[inline]
    pub fn version(&self) -> u8 {
        (self.flags() & VERSION_MASK) as u8
    }

    /// What follows, one of [`ether_type`](super::ether_type).
    #[inline]
    pub fn protocol(&self) -> u16 {
        u16::from_be_bytes([self.base[2], self.base[3]])
    }

    /// Checksum word, where there is one.
    #[inline]
    pub fn checksum(&self) -> Option<GreChecksum> {
        let [value_high, value_low, reserved_high, reserved_low] = *self.checksum?;
        Some(GreChecksum {
            value: u16::from_be_bytes([value_high, value_low]),
            reserved: u16::from_be_bytes([reserved_high, reserved_low]),
        })
    }

    /// Key, where there is one.
    #[inline]
    pub fn key(&self) -> Option<u32> {
        Some(u32::from_be_bytes(*self.key?))
    }

    /// Sequence number, where there is one.
    #[inline]
    pub fn sequence(&self) -> Option<u32> {
        Some(u32::from_be_bytes(*self.sequence?))
    }

    /// All fields at once.
    #[inline]
    pub fn header(&self) -> Gre {
        Gre {
            reserved: self.reserved(),
            protocol: self.protocol(),
            checksum: self.checksum(),
            key: self.key(),
            sequence: self.sequence(),
        }
    }
}

impl Gre {
    /// Length on the wire without optional words, in bytes.
    pub const LEN: usize = 4;

    /// Reads the header at the front of `bytes`.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, HeaderError> {
        Ok(GreView::new(bytes)?.header())
    }

    /// Bytes of the header with its optional words, 4 to 16.
    #[inline]
    pub fn header_len(&self) -> usize {
        header_len(self.flags())
    }

    /// Writes the header to the front of `out`, and nothing else.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> Result<(), HeaderError> {
        let (needed, have) = (self.header_len(), out.len());
        if have < needed {
            return Err(HeaderError::Truncated { needed, have });
        }
        let base = u32::from(self.flags()) << 16 | u32::from(self.protocol);
        let checksum = self.checksum.map(|word| u32::from(word.value) << 16 | u32::from(word.reserved));
        let words = [Some(base), checksum, self.key, self.sequence].into_iter().flatten();
        for (room, word) in out.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *room = word.to_be_bytes();
        }
        Ok(())
    }

    /// The checksum that `packet`, header and payload, should carry in its checksum word.
    pub fn compute_checksum(packet: &[u8]) -> Result<u16, HeaderError> {
        Ok(Checksum::new().add_around(packet, FIRST_OPTIONAL)?.finish())
    }

    #[inline]
    fn flags(&self) -> u16 {
        let bit = |present, bit| if present { bit } else { 0 };
        bit(self.checksum.is_some(), CHECKSUM_BIT)
            | bit(self.key.is_some(), KEY_BIT)
            | bit(self.sequence.is_some(), SEQUENCE_BIT)
            | (self.reserved & RESERVED_MASK) << RESERVED_SHIFT
    }
}

#[inline]
const fn header_len(flags: u16) -> usize {
    Gre::LEN + 4 * (flags & (CHECKSUM_BIT | KEY_BIT | SEQUENCE_BIT)).count_ones() as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::ether_type;
    use proptest::prelude::*;

    const LONGEST: usize = 16;

    prop_compose! {
        fn gre()(
            reserved in bits!(u16, 9),
            protocol in any::<u16>(),
            checksum in proptest::option::of((any::<u16>(), any::<u16>())),
            key in any::<Option<u32>>(),
            sequence in any::<Option<u32>>(),
        ) -> Gre {
            let checksum = checksum.map(|(value, reserved)| GreChecksum { value, reserved });
            Gre { reserved, protocol, checksum, key, sequence }
        }
    }

    proptest! {
        #[test]
        fn a_struct_survives_the_wire(header in gre()) {
            let mut out = [0xa5; LONGEST + 3];
            header.emit(&mut out).unwrap();
            prop_assert!(out[header.header_len()..].iter().all(|byte| *byte == 0xa5));
            prop_assert_eq!(Gre::parse(&out), Ok(header));
            prop_assert_eq!(GreView::new(&out).unwrap().header_len(), header.header_len());
        }

        #[test]
        fn bytes_survive_the_struct(mut bytes in any::<[u8; LONGEST]>()) {
            bytes[0] &= !0x40;
            bytes[1] &= !0x07;
            let header = Gre::parse(&bytes).unwrap();
            let mut out = [0xa5; LONGEST];
            header.emit(&mut out).unwrap();
            prop_assert_eq!(&out[..header.header_len()], &bytes[..header.header_len()]);
        }

        #[test]
        fn cut_short_is_truncated(header in gre()) {
            let mut bytes = [0; LONGEST];
            header.emit(&mut bytes).unwrap();
            for have in 0..header.header_len() {
                // The flags must be there before the whole length is known.
                let needed = if have < Gre::LEN { Gre::LEN } else { header.header_len() };
                prop_assert_eq!(Gre::parse(&bytes[..have]), Err(HeaderError::Truncated { needed, have }));
                let needed = header.header_len();
                prop_assert_eq!(header.emit(&mut [0; LONGEST][..have]), Err(HeaderError::Truncated { needed, have }));
            }
        }
    }

    #[test]
    fn a_header_by_hand() {
        let bytes = [0x20, 0x00, 0x65, 0x58, 0x12, 0x34, 0x56, 0x78];
        let expected =
            Gre { reserved: 0, protocol: ether_type::TEB, checksum: None, key: Some(0x1234_5678), sequence: None };
        assert_eq!(Gre::parse(&bytes), Ok(expected));
    }

    #[test]
    fn other_layouts_are_refused() {
        assert_eq!(Gre::parse(&[0, 1, 0, 0]), Err(HeaderError::BadVersion { expected: 0, found: 1 }));
        assert_eq!(Gre::parse(&[0x40, 0, 0, 0]), Err(HeaderError::UnsupportedFlags { flags: 0x4000 }));
    }

    #[test]
    fn the_checksum_covers_header_and_payload() {
        let packet = [0x80, 0x00, 0x08, 0x00, 0xff, 0xff, 0x00, 0x00, 0x01];
        // 8000 + 0800 + 0100 = 8900
        assert_eq!(Gre::compute_checksum(&packet), Ok(!0x8900));
        assert!(Gre::compute_checksum(&packet[..5]).is_err());
    }
}
