//! MPA (RFC 5044, enhanced by RFC 6581): how iWARP is laid into a TCP stream.
//!
//! A connection begins with a start frame each way. After that come FPDUs: a length, that many bytes of DDP, padding
//! to a multiple of four and a CRC32c; with markers among them where the start frames agreed on that.

use super::fields::{Fields, flag};

// | bytes | field                                                          |
// |-------|----------------------------------------------------------------|
// | 0–15  | key                                                            |
// | 16    | markers 1 · CRC 1 · reject 1 · enhanced 1 · reserved 4         |
// | 17    | revision                                                       |
// | 18–19 | private data length                                            |
const KEY: usize = 0;
const FLAGS: usize = 16;
const REVISION: usize = 17;
const PRIVATE_DATA_LENGTH: usize = 18;

/// A start frame, request or reply, without its private data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MpaStart {
    /// [`MpaStart::KEY_REQUEST`] or [`MpaStart::KEY_REPLY`].
    pub key: [u8; 16],
    /// Whether the sender wants markers in what it receives.
    pub markers: bool,
    /// Whether the sender wants CRCs; one side is enough.
    pub crc: bool,
    /// In a reply: the connection is refused.
    pub reject: bool,
    /// Whether the private data begins with [`MpaEnhanced`].
    pub enhanced: bool,
    /// Reserved, 4 bits.
    pub reserved4: u8,
    /// Revision: 1, or 2 with enhanced connection setup.
    pub revision: u8,
    /// Bytes of private data after this header.
    pub private_data_length: u16,
}

fixed_header!(MpaStart, MpaStartView, 20, {
    key, markers, crc, reject, enhanced, reserved4, revision, private_data_length,
});

impl MpaStartView<'_> {
    /// [`MpaStart::KEY_REQUEST`] or [`MpaStart::KEY_REPLY`].
    #[inline]
    pub fn key(&self) -> [u8; 16] {
        self.bytes.bytes_at::<KEY, 16>()
    }

    /// Whether the sender wants markers in what it receives.
    #[inline]
    pub fn markers(&self) -> bool {
        self.bytes[FLAGS] & 0x80 != 0
    }

    /// Whether the sender wants CRCs; one side is enough.
    #[inline]
    pub fn crc(&self) -> bool {
        self.bytes[FLAGS] & 0x40 != 0
    }

    /// In a reply: the connection is refused.
    #[inline]
    pub fn reject(&self) -> bool {
        self.bytes[FLAGS] & 0x20 != 0
    }

    /// Whether the private data begins with [`MpaEnhanced`].
    #[inline]
    pub fn enhanced(&self) -> bool {
        self.bytes[FLAGS] & 0x10 != 0
    }

    /// Reserved, 4 bits.
    #[inline]
    pub fn reserved4(&self) -> u8 {
        self.bytes[FLAGS] & 0x0f
    }

    /// Revision: 1, or 2 with enhanced connection setup.
    #[inline]
    pub fn revision(&self) -> u8 {
        self.bytes[REVISION]
    }

    /// Bytes of private data after this header.
    #[inline]
    pub fn private_data_length(&self) -> u16 {
        self.bytes.u16_at::<PRIVATE_DATA_LENGTH>()
    }
}

impl MpaStart {
    /// The key of a request, from the side that opened the connection.
    pub const KEY_REQUEST: [u8; 16] = *b"MPA ID Req Frame";
    /// The key of a reply.
    pub const KEY_REPLY: [u8; 16] = *b"MPA ID Rep Frame";

    #[inline]
    fn write(&self, out: &mut [u8; Self::LEN]) {
        out.put_bytes::<KEY, 16>(self.key);
        out[FLAGS] = flag(self.markers, 7)
            | flag(self.crc, 6)
            | flag(self.reject, 5)
            | flag(self.enhanced, 4)
            | self.reserved4 & 0x0f;
        out[REVISION] = self.revision;
        out.put_u16::<PRIVATE_DATA_LENGTH>(self.private_data_length);
    }
}

// | bytes | field                                                          |
// |-------|----------------------------------------------------------------|
// | 0–1   | peer to peer 1 · zero-length FPDU 1 · IRD 14                   |
// | 2–3   | RDMA WRITE 1 · RDMA READ 1 · ORD 14                            |
const IRD: usize = 0;
const ORD: usize = 2;
const DEPTH_MASK: u16 = 0x3fff;

/// The front of a start frame's private data with enhanced connection setup (RFC 6581).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MpaEnhanced {
    /// Whether a ready-to-receive message is exchanged, so that either side may send first.
    pub peer_to_peer: bool,
    /// A zero-length FPDU may be that message.
    pub empty_fpdu: bool,
    /// READ requests that the sender takes at a time, 14 bits.
    pub ird: u16,
    /// A zero-length RDMA WRITE may be that message.
    pub write: bool,
    /// A zero-length RDMA READ may be that message.
    pub read: bool,
    /// READ requests that the sender will have outstanding, 14 bits.
    pub ord: u16,
}

fixed_header!(MpaEnhanced, MpaEnhancedView, 4, { peer_to_peer, empty_fpdu, ird, write, read, ord });

impl MpaEnhancedView<'_> {
    /// Whether a ready-to-receive message is exchanged, so that either side may send first.
    #[inline]
    pub fn peer_to_peer(&self) -> bool {
        self.bytes[IRD] & 0x80 != 0
    }

    /// A zero-length FPDU may be that message.
    #[inline]
    pub fn empty_fpdu(&self) -> bool {
        self.bytes[IRD] & 0x40 != 0
    }

    /// READ requests that the sender takes at a time, 14 bits.
    #[inline]
    pub fn ird(&self) -> u16 {
        self.bytes.u16_at::<IRD>() & DEPTH_MASK
    }

    /// A zero-length RDMA WRITE may be that message.
    #[inline]
    pub fn write(&self) -> bool {
        self.bytes[ORD] & 0x80 != 0
    }

    /// A zero-length RDMA READ may be that message.
    #[inline]
    pub fn read(&self) -> bool {
        self.bytes[ORD] & 0x40 != 0
    }

    /// READ requests that the sender will have outstanding, 14 bits.
    #[inline]
    pub fn ord(&self) -> u16 {
        self.bytes.u16_at::<ORD>() & DEPTH_MASK
    }
}

impl MpaEnhanced {
    #[inline]
    fn write(&self, out: &mut [u8; Self::LEN]) {
        out.put_u16::<IRD>(self.ird & DEPTH_MASK);
        out[IRD] |= flag(self.peer_to_peer, 7) | flag(self.empty_fpdu, 6);
        out.put_u16::<ORD>(self.ord & DEPTH_MASK);
        out[ORD] |= flag(self.write, 7) | flag(self.read, 6);
    }
}

whole_byte_header! {
    /// The front of an FPDU. DDP follows, then padding and CRC.
    Fpdu, FpduView, 2 {
        /// Bytes of DDP, from its control field to the end of its payload.
        length: u16 = 0,
    }
}

impl Fpdu {
    /// Bytes of the CRC at the end, which is there, as zero, even when CRCs are off.
    pub const CRC_LEN: usize = 4;

    /// Bytes of padding between DDP and CRC, 0 to 3.
    #[inline]
    pub const fn pad(&self) -> usize {
        (Self::LEN + self.length as usize).wrapping_neg() % 4
    }

    /// Bytes of the whole FPDU, length, padding and CRC included, markers not.
    #[inline]
    pub const fn frame_len(&self) -> usize {
        Self::LEN + self.length as usize + self.pad() + Self::CRC_LEN
    }
}

whole_byte_header! {
    /// A marker, which says where the FPDU it stands in began.
    MpaMarker, MpaMarkerView, 4 {
        /// Reserved, 16 bits.
        reserved: u16 = 0,
        /// Bytes of the stream from the FPDU's first byte to this marker.
        fpdu_pointer: u16 = 2,
    }
}

impl MpaMarker {
    /// Bytes of the stream from one marker's start to the next one's.
    pub const SPACING: usize = 512;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::captured;

    round_trip!(
        start,
        MpaStart {
            key: any::<[u8; 16]>(),
            markers: any::<bool>(),
            crc: any::<bool>(),
            reject: any::<bool>(),
            enhanced: any::<bool>(),
            reserved4: bits!(u8, 4),
            revision: any::<u8>(),
            private_data_length: any::<u16>(),
        }
    );
    round_trip!(
        enhanced,
        MpaEnhanced {
            peer_to_peer: any::<bool>(),
            empty_fpdu: any::<bool>(),
            ird: bits!(u16, 14),
            write: any::<bool>(),
            read: any::<bool>(),
            ord: bits!(u16, 14),
        }
    );
    round_trip!(fpdu, Fpdu { length: any::<u16>() });
    round_trip!(marker, MpaMarker { reserved: any::<u16>(), fpdu_pointer: any::<u16>() });

    #[test]
    fn a_captured_start_frame() {
        let payload = &captured::MPA_REQUEST[66..];
        let expected = MpaStart {
            key: MpaStart::KEY_REQUEST,
            markers: false,
            crc: true,
            reject: false,
            enhanced: true,
            reserved4: 0,
            revision: 2,
            private_data_length: 4,
        };
        assert_eq!(MpaStart::parse(payload), Ok(expected));
        let expected = MpaEnhanced { peer_to_peer: true, empty_fpdu: false, ird: 1, write: true, read: true, ord: 1 };
        assert_eq!(MpaEnhanced::parse(&payload[MpaStart::LEN..]), Ok(expected));
    }

    #[test]
    fn captured_frames_are_as_long_as_they_say() {
        for frame in [&captured::IWARP_WRITE[66..], &captured::IWARP_READ_REQUEST[66..]] {
            assert_eq!(Fpdu::parse(frame).unwrap().frame_len(), frame.len());
        }
    }

    #[test]
    fn padding_fills_up_to_four() {
        for (length, pad) in [(0, 2), (1, 1), (2, 0), (3, 3), (u16::MAX, 3)] {
            assert_eq!(Fpdu { length }.pad(), pad, "{length}");
        }
    }
}
