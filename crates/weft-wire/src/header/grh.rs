//! The global route header of InfiniBand and RoCEv1: the bits of IPv6 with the names of InfiniBand.

use super::HeaderError;
use super::fields::Fields;

// | bytes | field                                           |
// |-------|-------------------------------------------------|
// | 0–3   | IP version 4 · traffic class 8 · flow label 20  |
// | 4–5   | payload length                                  |
// | 6     | next header                                     |
// | 7     | hop limit                                       |
// | 8–23  | source global identifier                        |
// | 24–39 | destination global identifier                   |
const VERSION_CLASS_FLOW: usize = 0;
const PAYLOAD_LENGTH: usize = 4;
const NEXT_HEADER: usize = 6;
const HOP_LIMIT: usize = 7;
const SOURCE_GID: usize = 8;
const DESTINATION_GID: usize = 24;

/// A global route header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grh {
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Bytes after this header to the end of the ICRC.
    pub payload_length: u16,
    /// What follows; [`Grh::TRANSPORT`] for a [`Bth`](super::Bth).
    pub next_header: u8,
    /// Hops left.
    pub hop_limit: u8,
    /// Source global identifier.
    pub source_gid: [u8; 16],
    /// Destination global identifier.
    pub destination_gid: [u8; 16],
}

fixed_header!(Grh, GrhView, 40, {
    traffic_class, flow_label, payload_length, next_header, hop_limit, source_gid, destination_gid,
}, check version);

impl GrhView<'_> {
    #[inline]
    fn version(&self) -> Result<(), HeaderError> {
        match self.bytes[VERSION_CLASS_FLOW] >> 4 {
            Grh::VERSION => Ok(()),
            found => Err(HeaderError::BadVersion { expected: Grh::VERSION, found }),
        }
    }

    /// Traffic class.
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        (self.bytes.u16_at::<VERSION_CLASS_FLOW>() >> 4) as u8
    }

    /// Flow label, 20 bits.
    #[inline]
    pub fn flow_label(&self) -> u32 {
        self.bytes.u32_at::<VERSION_CLASS_FLOW>() & 0x000f_ffff
    }

    /// Bytes after this header to the end of the ICRC.
    #[inline]
    pub fn payload_length(&self) -> u16 {
        self.bytes.u16_at::<PAYLOAD_LENGTH>()
    }

    /// What follows; [`Grh::TRANSPORT`] for a [`Bth`](super::Bth).
    #[inline]
    pub fn next_header(&self) -> u8 {
        self.bytes[NEXT_HEADER]
    }

    /// Hops left.
    #[inline]
    pub fn hop_limit(&self) -> u8 {
        self.bytes[HOP_LIMIT]
    }

    /// Source global identifier.
    #[inline]
    pub fn source_gid(&self) -> [u8; 16] {
        self.bytes.bytes_at::<SOURCE_GID, 16>()
    }

    /// Destination global identifier.
    #[inline]
    pub fn destination_gid(&self) -> [u8; 16] {
        self.bytes.bytes_at::<DESTINATION_GID, 16>()
    }
}

impl Grh {
    /// The value of the version field.
    pub const VERSION: u8 = 6;
    /// Next-header value of InfiniBand transport.
    pub const TRANSPORT: u8 = 0x1b;

    #[inline]
    fn write(&self, out: &mut [u8; Self::LEN]) {
        let class = u32::from(self.traffic_class) << 20;
        out.put_u32::<VERSION_CLASS_FLOW>(u32::from(Self::VERSION) << 28 | class | self.flow_label & 0x000f_ffff);
        out.put_u16::<PAYLOAD_LENGTH>(self.payload_length);
        out[NEXT_HEADER] = self.next_header;
        out[HOP_LIMIT] = self.hop_limit;
        out.put_bytes::<SOURCE_GID, 16>(self.source_gid);
        out.put_bytes::<DESTINATION_GID, 16>(self.destination_gid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::{Ipv6, captured};

    round_trip!(grh, Grh {
        traffic_class: any::<u8>(), flow_label: bits!(u32, 20), payload_length: any::<u16>(), next_header: any::<u8>(),
        hop_limit: any::<u8>(), source_gid: any::<[u8; 16]>(), destination_gid: any::<[u8; 16]>(),
    }, valid |mut bytes: [u8; 40]| { bytes[0] = 0x60 | bytes[0] & 0x0f; bytes });

    #[test]
    fn it_is_laid_out_as_ipv6() {
        let bytes = &captured::IPV6_ACKNOWLEDGE[14..];
        let (grh, ipv6) = (Grh::parse(bytes).unwrap(), Ipv6::parse(bytes).unwrap());
        assert_eq!((grh.source_gid, grh.destination_gid), (ipv6.source, ipv6.destination));
        assert_eq!((grh.payload_length, grh.next_header, grh.hop_limit), (28, 17, 64));
        assert_eq!(Grh::parse(&[0x40; 40]), Err(HeaderError::BadVersion { expected: 6, found: 4 }));
    }
}
