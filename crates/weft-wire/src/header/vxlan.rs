//! The VXLAN header (RFC 7348); an Ethernet frame follows.

use super::fields::Fields;

whole_byte_header! {
    /// A VXLAN header.
    Vxlan, VxlanView, 8 {
        /// All flag bits; [`Vxlan::VNI_VALID`] is the only one defined.
        flags: u8 = 0,
        /// Reserved, 24 bits.
        reserved24: u24 = 1,
        /// Network identifier, 24 bits.
        vni: u24 = 4,
        /// Reserved, 8 bits.
        reserved8: u8 = 7,
    }
}

impl VxlanView<'_> {
    /// Whether the network identifier counts. A packet without it is not valid VXLAN.
    #[inline]
    pub fn vni_valid(&self) -> bool {
        self.flags() & Vxlan::VNI_VALID != 0
    }
}

impl Vxlan {
    /// In `flags`: the network identifier counts.
    pub const VNI_VALID: u8 = 0x08;
}

#[cfg(test)]
mod tests {
    use super::*;

    round_trip!(
        vxlan,
        Vxlan { flags: any::<u8>(), reserved24: bits!(u32, 24), vni: bits!(u32, 24), reserved8: any::<u8>() }
    );

    #[test]
    fn a_header_by_hand() {
        let view = VxlanView::new(&[0x08, 0, 0, 0, 0x12, 0x34, 0x56, 0]).unwrap();
        assert!(view.vni_valid());
        assert_eq!(view.vni(), 0x12_3456);
    }
}
