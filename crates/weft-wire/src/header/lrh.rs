//! The local route header of native InfiniBand.

use super::fields::Fields;

/// Values of the link-next-header field: what follows the local route header.
pub mod link_next_header {
    /// A raw packet with an EtherType.
    pub const RAW: u8 = 0;
    /// An IPv6 header that is not InfiniBand transport.
    pub const IPV6: u8 = 1;
    /// A [`Bth`](crate::header::Bth): the packet stays in its subnet.
    pub const LOCAL: u8 = 2;
    /// A [`Grh`](crate::header::Grh), then the rest.
    pub const GLOBAL: u8 = 3;
}

// | bytes | field                                                    |
// |-------|----------------------------------------------------------|
// | 0     | virtual lane 4 · link version 4                          |
// | 1     | service level 4 · reserved 2 · link next header 2        |
// | 2–3   | destination local identifier                             |
// | 4–5   | reserved 5 · packet length in 4-byte words 11            |
// | 6–7   | source local identifier                                  |
const LANE_VERSION: usize = 0;
const LEVEL_NEXT: usize = 1;
const DLID: usize = 2;
const LENGTH: usize = 4;
const SLID: usize = 6;

/// A local route header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lrh {
    /// Virtual lane, 4 bits.
    pub vl: u8,
    /// Link version, 4 bits.
    pub lver: u8,
    /// Service level, 4 bits.
    pub sl: u8,
    /// Reserved, 2 bits.
    pub reserved2: u8,
    /// What follows, one of [`link_next_header`], 2 bits.
    pub lnh: u8,
    /// Destination local identifier.
    pub dlid: u16,
    /// Reserved, 5 bits.
    pub reserved5: u8,
    /// Length in 4-byte words from this header to the ICRC, the VCRC not counted, 11 bits.
    pub pktlen: u16,
    /// Source local identifier.
    pub slid: u16,
}

fixed_header!(Lrh, LrhView, 8, { vl, lver, sl, reserved2, lnh, dlid, reserved5, pktlen, slid });

impl LrhView<'_> {
    /// Virtual lane, 4 bits.
    #[inline]
    pub fn vl(&self) -> u8 {
        self.bytes[LANE_VERSION] >> 4
    }

    /// Link version, 4 bits.
    #[inline]
    pub fn lver(&self) -> u8 {
        self.bytes[LANE_VERSION] & 0x0f
    }

    /// Service level, 4 bits.
    #[inline]
    pub fn sl(&self) -> u8 {
        self.bytes[LEVEL_NEXT] >> 4
    }

    /// Reserved, 2 bits.
    #[inline]
    pub fn reserved2(&self) -> u8 {
        self.bytes[LEVEL_NEXT] >> 2 & 0x03
    }

    /// What follows, one of [`link_next_header`], 2 bits.
    #[inline]
    pub fn lnh(&self) -> u8 {
        self.bytes[LEVEL_NEXT] & 0x03
    }

    /// Destination local identifier.
    #[inline]
    pub fn dlid(&self) -> u16 {
        self.bytes.u16_at::<DLID>()
    }

    /// Reserved, 5 bits.
    #[inline]
    pub fn reserved5(&self) -> u8 {
        self.bytes[LENGTH] >> 3
    }

    /// Length in 4-byte words from this header to the ICRC, the VCRC not counted, 11 bits.
    #[inline]
    pub fn pktlen(&self) -> u16 {
        self.bytes.u16_at::<LENGTH>() & 0x07ff
    }

    /// Source local identifier.
    #[inline]
    pub fn slid(&self) -> u16 {
        self.bytes.u16_at::<SLID>()
    }
}

impl Lrh {
    /// Longest packet that `pktlen` can say, in 4-byte words.
    pub const WORDS_MAX: u16 = 0x7ff;

    #[inline]
    fn write(&self, out: &mut [u8; Self::LEN]) {
        out[LANE_VERSION] = self.vl << 4 | self.lver & 0x0f;
        out[LEVEL_NEXT] = self.sl << 4 | (self.reserved2 & 0x03) << 2 | self.lnh & 0x03;
        out.put_u16::<DLID>(self.dlid);
        out.put_u16::<LENGTH>(u16::from(self.reserved5) << 11 | self.pktlen & 0x07ff);
        out.put_u16::<SLID>(self.slid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    round_trip!(
        lrh,
        Lrh {
            vl: bits!(u8, 4),
            lver: bits!(u8, 4),
            sl: bits!(u8, 4),
            reserved2: bits!(u8, 2),
            lnh: bits!(u8, 2),
            dlid: any::<u16>(),
            reserved5: bits!(u8, 5),
            pktlen: bits!(u16, 11),
            slid: any::<u16>(),
        }
    );

    #[test]
    fn a_header_by_hand() {
        let bytes = [0xf0, 0x52, 0x00, 0x04, 0x00, 0x4a, 0x00, 0x01];
        let expected = Lrh {
            vl: 15,
            lver: 0,
            sl: 5,
            reserved2: 0,
            lnh: link_next_header::LOCAL,
            dlid: 4,
            reserved5: 0,
            pktlen: 74,
            slid: 1,
        };
        assert_eq!(Lrh::parse(&bytes), Ok(expected));
    }
}
