//! The base transport header: the front of every packet of InfiniBand transport, RoCEv1 and RoCEv2.

use super::fields::{Fields, flag};

// | bytes | field                                                     |
// |-------|-----------------------------------------------------------|
// | 0     | opcode                                                    |
// | 1     | solicited 1 · migrate 1 · pad 2 · version 4               |
// | 2–3   | partition key                                             |
// | 4     | FECN 1 · BECN 1 · reserved 6                              |
// | 5–7   | destination queue pair                                    |
// | 8     | acknowledge request 1 · reserved 7                        |
// | 9–11  | packet sequence number                                    |
const OPCODE: usize = 0;
const FLAGS: usize = 1;
const PKEY: usize = 2;
const CONGESTION: usize = 4;
const DEST_QP: usize = 5;
const ACK_REQUEST: usize = 8;
const PSN: usize = 9;
const MASK_24: u32 = 0x00ff_ffff;

/// A base transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// Transport service in the top three bits, operation in the others.
    pub opcode: u8,
    /// Whether the receiver is to raise an event.
    pub solicited: bool,
    /// Migration state.
    pub migrate: bool,
    /// Bytes of padding after the payload, 2 bits.
    pub pad: u8,
    /// Transport version, 4 bits.
    pub version: u8,
    /// Partition key.
    pub pkey: u16,
    /// Forward congestion notification.
    pub fecn: bool,
    /// Backward congestion notification.
    pub becn: bool,
    /// Reserved, 6 bits. With the two bits before them, not covered by the ICRC.
    pub reserved6: u8,
    /// Destination queue pair, 24 bits.
    pub dest_qp: u32,
    /// Whether the sender asks for an acknowledgement.
    pub ack_request: bool,
    /// Reserved, 7 bits.
    pub reserved7: u8,
    /// Packet sequence number, 24 bits.
    pub psn: u32,
}

fixed_header!(Bth, BthView, 12, {
    opcode, solicited, migrate, pad, version, pkey, fecn, becn, reserved6, dest_qp, ack_request, reserved7, psn,
});

impl BthView<'_> {
    /// Transport service in the top three bits, operation in the others.
    #[inline]
    pub fn opcode(&self) -> u8 {
        self.bytes[OPCODE]
    }

    /// Whether the receiver is to raise an event.
    #[inline]
    pub fn solicited(&self) -> bool {
        self.bytes[FLAGS] & 0x80 != 0
    }

    /// Migration state.
    #[inline]
    pub fn migrate(&self) -> bool {
        self.bytes[FLAGS] & 0x40 != 0
    }

    /// Bytes of padding after the payload, 2 bits.
    #[inline]
    pub fn pad(&self) -> u8 {
        self.bytes[FLAGS] >> 4 & 0x03
    }

    /// Transport version, 4 bits.
    #[inline]
    pub fn version(&self) -> u8 {
        self.bytes[FLAGS] & 0x0f
    }

    /// Partition key.
    #[inline]
    pub fn pkey(&self) -> u16 {
        self.bytes.u16_at::<PKEY>()
    }

    /// Forward congestion notification.
    #[inline]
    pub fn fecn(&self) -> bool {
        self.bytes[CONGESTION] & 0x80 != 0
    }

    /// Backward congestion notification.
    #[inline]
    pub fn becn(&self) -> bool {
        self.bytes[CONGESTION] & 0x40 != 0
    }

    /// Reserved, 6 bits.
    #[inline]
    pub fn reserved6(&self) -> u8 {
        self.bytes[CONGESTION] & 0x3f
    }

    /// Destination queue pair, 24 bits.
    #[inline]
    pub fn dest_qp(&self) -> u32 {
        // The whole word and a mask: for two fields of three bytes the compiler makes vector code many times as long.
        self.bytes.u32_at::<CONGESTION>() & MASK_24
    }

    /// Whether the sender asks for an acknowledgement.
    #[inline]
    pub fn ack_request(&self) -> bool {
        self.bytes[ACK_REQUEST] & 0x80 != 0
    }

    /// Reserved, 7 bits.
    #[inline]
    pub fn reserved7(&self) -> u8 {
        self.bytes[ACK_REQUEST] & 0x7f
    }

    /// Packet sequence number, 24 bits.
    #[inline]
    pub fn psn(&self) -> u32 {
        self.bytes.u32_at::<ACK_REQUEST>() & MASK_24
    }
}

impl Bth {
    #[inline]
    fn write(&self, out: &mut [u8; Self::LEN]) {
        out[OPCODE] = self.opcode;
        out[FLAGS] = flag(self.solicited, 7) | flag(self.migrate, 6) | (self.pad & 0x03) << 4 | self.version & 0x0f;
        out.put_u16::<PKEY>(self.pkey);
        out[CONGESTION] = flag(self.fecn, 7) | flag(self.becn, 6) | self.reserved6 & 0x3f;
        out.put_u24::<DEST_QP>(self.dest_qp);
        out[ACK_REQUEST] = flag(self.ack_request, 7) | self.reserved7 & 0x7f;
        out.put_u24::<PSN>(self.psn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::captured;

    round_trip!(
        bth,
        Bth {
            opcode: any::<u8>(),
            solicited: any::<bool>(),
            migrate: any::<bool>(),
            pad: bits!(u8, 2),
            version: bits!(u8, 4),
            pkey: any::<u16>(),
            fecn: any::<bool>(),
            becn: any::<bool>(),
            reserved6: bits!(u8, 6),
            dest_qp: bits!(u32, 24),
            ack_request: any::<bool>(),
            reserved7: bits!(u8, 7),
            psn: bits!(u32, 24),
        }
    );

    #[test]
    fn captured_headers() {
        let expected = Bth {
            opcode: 0x14,
            solicited: false,
            migrate: false,
            pad: 0,
            version: 0,
            pkey: 0xffff,
            fecn: false,
            becn: false,
            reserved6: 0,
            dest_qp: 0x14,
            ack_request: true,
            reserved7: 0,
            psn: 1_193_040,
        };
        assert_eq!(Bth::parse(&captured::FETCH_ADD[42..]), Ok(expected));
        let answer = Bth { opcode: 0x12, ack_request: false, ..expected };
        assert_eq!(Bth::parse(&captured::ATOMIC_ACKNOWLEDGE[42..]), Ok(answer));
        let padded = Bth { opcode: 0x64, pad: 3, dest_qp: 0x18, ack_request: false, psn: 1_193_041, ..expected };
        assert_eq!(Bth::parse(&captured::DATAGRAM_ONE_BYTE[42..]), Ok(padded));
    }

    #[test]
    fn values_too_wide_do_not_spill() {
        let none = Bth {
            opcode: 0,
            solicited: false,
            migrate: false,
            pad: 0xff,
            version: 0,
            pkey: 0,
            fecn: false,
            becn: false,
            reserved6: 0xff,
            dest_qp: u32::MAX,
            ack_request: false,
            reserved7: 0xff,
            psn: 0,
        };
        let mut out = [0; Bth::LEN];
        none.emit(&mut out).unwrap();
        assert_eq!(out, [0, 0x30, 0, 0, 0x3f, 0xff, 0xff, 0xff, 0x7f, 0, 0, 0]);
    }
}
