//! The UDP header (RFC 768).

use super::checksum::{PseudoHeader, fill};
use super::fields::Fields;
use super::{HeaderError, first_bytes, ip_protocol};

/// Destination ports that announce a protocol.
pub mod udp_port {
    /// RoCEv2.
    pub const ROCE_V2: u16 = 4791;
    /// VXLAN.
    pub const VXLAN: u16 = 4789;
}

/// Where [`Udp::checksum`] is.
const CHECKSUM: usize = 6;

whole_byte_header! {
    /// A UDP header.
    Udp, UdpView, 8 {
        /// Source port.
        source_port: u16 = 0,
        /// Destination port.
        destination_port: u16 = 2,
        /// Bytes of header and payload.
        length: u16 = 4,
        /// Checksum as on the wire, 0 when there is none; see [`Udp::compute_checksum`].
        checksum: u16 = 6,
    }
}

impl Udp {
    /// The checksum that `datagram`, header and payload, should carry between these addresses. It is never 0, which
    /// would say that there is none.
    pub fn compute_checksum(addresses: &PseudoHeader, datagram: &[u8]) -> Result<u16, HeaderError> {
        first_bytes::<{ Self::LEN }>(datagram)?;
        let sum = addresses.sum(ip_protocol::UDP, datagram.len());
        Ok(match sum.add_around(datagram, CHECKSUM)?.finish() {
            0 => 0xffff,
            checksum => checksum,
        })
    }

    /// Computes the checksum of `datagram` and writes it there.
    pub fn fill_checksum(addresses: &PseudoHeader, datagram: &mut [u8]) -> Result<(), HeaderError> {
        let checksum = Self::compute_checksum(addresses, datagram)?;
        fill(datagram, CHECKSUM, checksum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::captured;

    round_trip!(
        udp,
        Udp { source_port: any::<u16>(), destination_port: any::<u16>(), length: any::<u16>(), checksum: any::<u16>() }
    );

    #[test]
    fn a_captured_header() {
        let header = Udp::parse(&captured::FETCH_ADD[34..]).unwrap();
        assert_eq!(header, Udp { source_port: 49552, destination_port: udp_port::ROCE_V2, length: 52, checksum: 0 });
    }

    #[test]
    fn a_checksum_by_hand() {
        let addresses = PseudoHeader::Ipv4 { source: [1, 2, 3, 4], destination: [5, 6, 7, 8] };
        let mut datagram = [0x10, 0x00, 0x20, 0x00, 0x00, 0x09, 0xff, 0xff, 0xaa];
        // 0102+0304+0506+0708 + 0011 + 0009 + 1000+2000+0009+aa00 = ea37
        Udp::fill_checksum(&addresses, &mut datagram).unwrap();
        assert_eq!(UdpView::new(&datagram).unwrap().checksum(), !0xea37);
    }

    #[test]
    fn a_sum_of_zero_is_sent_as_ones() {
        let addresses = PseudoHeader::Ipv6 { source: [0; 16], destination: [0; 16] };
        // 0011 + 0008 + ffde + 0008 = ffff, of which the complement is 0.
        let datagram = [0xff, 0xde, 0, 0, 0, 8, 0, 0];
        assert_eq!(Udp::compute_checksum(&addresses, &datagram), Ok(0xffff));
        let error = HeaderError::Truncated { needed: 8, have: 7 };
        assert_eq!(Udp::compute_checksum(&addresses, &datagram[..7]), Err(error));
    }
}
