//! Ethernet II and the 802.1Q tag.

use super::fields::{Fields, flag};

/// Values of the EtherType field.
pub mod ether_type {
    /// IPv4.
    pub const IPV4: u16 = 0x0800;
    /// ARP.
    pub const ARP: u16 = 0x0806;
    /// Transparent Ethernet bridging: an Ethernet frame inside GRE.
    pub const TEB: u16 = 0x6558;
    /// 802.1Q tag.
    pub const VLAN: u16 = 0x8100;
    /// IPv6.
    pub const IPV6: u16 = 0x86dd;
    /// 802.1ad service tag, outside an 802.1Q tag.
    pub const QINQ: u16 = 0x88a8;
    /// RoCEv1: GRH and InfiniBand transport directly on Ethernet.
    pub const ROCE_V1: u16 = 0x8915;
    /// Service tag of equipment older than 802.1ad.
    pub const QINQ_OLD: u16 = 0x9100;

    /// Whether a [`Vlan`](super::Vlan) tag follows.
    #[inline]
    pub const fn is_vlan(ether_type: u16) -> bool {
        matches!(ether_type, VLAN | QINQ | QINQ_OLD)
    }
}

// | bytes | field       |
// |-------|-------------|
// | 0–5   | destination |
// | 6–11  | source      |
// | 12–13 | EtherType   |
const DESTINATION: usize = 0;
const SOURCE: usize = 6;
const ETHERTYPE: usize = 12;

/// An Ethernet II header. A tag, where there is one, follows as [`Vlan`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ethernet {
    /// Destination address.
    pub destination: [u8; 6],
    /// Source address.
    pub source: [u8; 6],
    /// What follows, one of [`ether_type`]; below 0x0600 it is an 802.3 length.
    pub ethertype: u16,
}

fixed_header!(Ethernet, EthernetView, 14, { destination, source, ethertype });

impl EthernetView<'_> {
    /// Destination address.
    #[inline]
    pub fn destination(&self) -> [u8; 6] {
        self.bytes.bytes_at::<DESTINATION, 6>()
    }

    /// Source address.
    #[inline]
    pub fn source(&self) -> [u8; 6] {
        self.bytes.bytes_at::<SOURCE, 6>()
    }

    /// What follows, one of [`ether_type`].
    #[inline]
    pub fn ethertype(&self) -> u16 {
        self.bytes.u16_at::<ETHERTYPE>()
    }
}

impl Ethernet {
    #[inline]
    fn write(&self, out: &mut [u8; Self::LEN]) {
        out.put_bytes::<DESTINATION, 6>(self.destination);
        out.put_bytes::<SOURCE, 6>(self.source);
        out.put_u16::<ETHERTYPE>(self.ethertype);
    }
}

// | bytes | field                                                     |
// |-------|-----------------------------------------------------------|
// | 0–1   | priority 3 · drop eligible 1 · VLAN identifier 12         |
// | 2–3   | EtherType                                                 |
const VLAN_CONTROL: usize = 0;
const VLAN_ETHERTYPE: usize = 2;

/// What follows an EtherType for which [`ether_type::is_vlan`] holds: the tag's value, then the next EtherType.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vlan {
    /// Priority code point, 3 bits.
    pub pcp: u8,
    /// Drop eligible indicator.
    pub dei: bool,
    /// VLAN identifier, 12 bits.
    pub vid: u16,
    /// What follows the tag, one of [`ether_type`].
    pub ethertype: u16,
}

fixed_header!(Vlan, VlanView, 4, { pcp, dei, vid, ethertype });

impl VlanView<'_> {
    /// Priority code point, 3 bits.
    #[inline]
    pub fn pcp(&self) -> u8 {
        self.bytes[VLAN_CONTROL] >> 5
    }

    /// Drop eligible indicator.
    #[inline]
    pub fn dei(&self) -> bool {
        self.bytes[VLAN_CONTROL] & 0x10 != 0
    }

    /// VLAN identifier, 12 bits.
    #[inline]
    pub fn vid(&self) -> u16 {
        self.bytes.u16_at::<VLAN_CONTROL>() & 0x0fff
    }

    /// What follows the tag, one of [`ether_type`].
    #[inline]
    pub fn ethertype(&self) -> u16 {
        self.bytes.u16_at::<VLAN_ETHERTYPE>()
    }
}

impl Vlan {
    #[inline]
    fn write(&self, out: &mut [u8; Self::LEN]) {
        let [vid_high, vid_low] = self.vid.to_be_bytes();
        *out = [self.pcp << 5 | flag(self.dei, 4) | vid_high & 0x0f, vid_low, 0, 0];
        out.put_u16::<VLAN_ETHERTYPE>(self.ethertype);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::captured;

    round_trip!(
        ethernet,
        Ethernet { destination: any::<[u8; 6]>(), source: any::<[u8; 6]>(), ethertype: any::<u16>() }
    );
    round_trip!(vlan, Vlan { pcp: bits!(u8, 3), dei: any::<bool>(), vid: bits!(u16, 12), ethertype: any::<u16>() });

    #[test]
    fn a_captured_frame() {
        let header = Ethernet::parse(&captured::FETCH_ADD).unwrap();
        assert_eq!(
            header,
            Ethernet {
                destination: [0x52, 0x54, 0, 0, 0, 1],
                source: [0x52, 0x54, 0, 0, 0, 2],
                ethertype: ether_type::IPV4
            }
        );
        assert_eq!(EthernetView::new(&captured::IPV6_ACKNOWLEDGE).unwrap().ethertype(), ether_type::IPV6);
    }

    #[test]
    fn a_tag_by_hand() {
        let tag = Vlan { pcp: 5, dei: true, vid: 0xabc, ethertype: ether_type::ROCE_V1 };
        let mut out = [0; Vlan::LEN];
        tag.emit(&mut out).unwrap();
        assert_eq!(out, [0xba, 0xbc, 0x89, 0x15]);
    }

    #[test]
    fn values_too_wide_do_not_spill() {
        let mut out = [0; Vlan::LEN];
        Vlan { pcp: 0, dei: false, vid: 0xffff, ethertype: 0 }.emit(&mut out).unwrap();
        assert_eq!(out, [0x0f, 0xff, 0, 0]);
        Vlan { pcp: 0xff, dei: false, vid: 0, ethertype: 0 }.emit(&mut out).unwrap();
        assert_eq!(out, [0xe0, 0, 0, 0]);
    }
}
