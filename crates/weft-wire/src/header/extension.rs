//! The extended transport headers that may follow a [`Bth`](super::Bth); its opcode says which.

use super::fields::Fields;

whole_byte_header! {
    /// RDMA extended transport header: the remote memory of a WRITE or READ.
    Reth, RethView, 16 {
        /// Remote virtual address.
        va: u64 = 0,
        /// Remote key.
        rkey: u32 = 8,
        /// Bytes of the whole message.
        length: u32 = 12,
    }
}

whole_byte_header! {
    /// Atomic extended transport header.
    AtomicEth, AtomicEthView, 28 {
        /// Remote virtual address.
        va: u64 = 0,
        /// Remote key.
        rkey: u32 = 8,
        /// What to swap in (compare-and-swap) or to add (fetch-and-add).
        swap_or_add: u64 = 12,
        /// What compare-and-swap compares with.
        compare: u64 = 20,
    }
}

whole_byte_header! {
    /// Atomic acknowledge extended transport header; follows an [`Aeth`].
    AtomicAckEth, AtomicAckEthView, 8 {
        /// The value before the operation.
        original: u64 = 0,
    }
}

whole_byte_header! {
    /// Acknowledge extended transport header.
    Aeth, AethView, 4 {
        /// Kind in bits 6 and 5 (0 ACK, 1 receiver not ready, 3 NAK); credits, timer or NAK code in bits 4 to 0.
        syndrome: u8 = 0,
        /// Message sequence number, 24 bits.
        msn: u24 = 1,
    }
}

whole_byte_header! {
    /// Datagram extended transport header.
    Deth, DethView, 8 {
        /// Queue key.
        qkey: u32 = 0,
        /// Reserved, 8 bits.
        reserved8: u8 = 4,
        /// Source queue pair, 24 bits.
        source_qp: u24 = 5,
    }
}

whole_byte_header! {
    /// Immediate data.
    ImmDt, ImmDtView, 4 {
        /// The immediate, as a number in network byte order.
        immediate: u32 = 0,
    }
}

whole_byte_header! {
    /// Invalidate extended transport header.
    Ieth, IethView, 4 {
        /// The remote key to invalidate.
        rkey: u32 = 0,
    }
}

whole_byte_header! {
    /// Reliable datagram extended transport header; a [`Deth`] follows in requests.
    Rdeth, RdethView, 4 {
        /// Reserved, 8 bits.
        reserved8: u8 = 0,
        /// End-to-end context, 24 bits.
        ee_context: u24 = 1,
    }
}

whole_byte_header! {
    /// Extended reliable connection extended transport header.
    XrcEth, XrcEthView, 4 {
        /// Reserved, 8 bits.
        reserved8: u8 = 0,
        /// Shared receive queue, 24 bits.
        srq: u24 = 1,
    }
}

// One 32-bit word: reserved 26 · selectivity 2 · placement type 4.
const FETH_WORD: usize = 0;

/// Flush extended transport header; a [`Reth`] follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feth {
    /// Reserved, 26 bits.
    pub reserved26: u32,
    /// What is flushed, 2 bits: 0 the range, 1 the whole memory region.
    pub selectivity: u8,
    /// How far it is flushed, 4 bits: [`Feth::GLOBAL_VISIBILITY`], [`Feth::PERSISTENCE`].
    pub placement: u8,
}

fixed_header!(Feth, FethView, 4, { reserved26, selectivity, placement });

impl FethView<'_> {
    /// Reserved, 26 bits.
    #[inline]
    pub fn reserved26(&self) -> u32 {
        self.bytes.u32_at::<FETH_WORD>() >> 6
    }

    /// What is flushed, 2 bits: 0 the range, 1 the whole memory region.
    #[inline]
    pub fn selectivity(&self) -> u8 {
        self.bytes[3] >> 4 & 0x03
    }

    /// How far it is flushed, 4 bits.
    #[inline]
    pub fn placement(&self) -> u8 {
        self.bytes[3] & 0x0f
    }
}

impl Feth {
    /// In `placement`: visible to every reader.
    pub const GLOBAL_VISIBILITY: u8 = 0b0001;
    /// In `placement`: survives a loss of power.
    pub const PERSISTENCE: u8 = 0b0010;

    #[inline]
    fn write(&self, out: &mut [u8; Self::LEN]) {
        out.put_u32::<FETH_WORD>(self.reserved26 << 6);
        out[3] |= (self.selectivity & 0x03) << 4 | self.placement & 0x0f;
    }
}

/// What follows the [`Bth`](super::Bth) of a RoCEv2 congestion notification packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CnpReserved {
    /// Reserved, 16 bytes.
    pub reserved: [u8; 16],
}

fixed_header!(CnpReserved, CnpReservedView, 16, { reserved });

impl CnpReservedView<'_> {
    /// Reserved, 16 bytes.
    #[inline]
    pub fn reserved(&self) -> [u8; 16] {
        *self.bytes
    }
}

impl CnpReserved {
    #[inline]
    fn write(&self, out: &mut [u8; Self::LEN]) {
        *out = self.reserved;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::captured;

    round_trip!(reth, Reth { va: any::<u64>(), rkey: any::<u32>(), length: any::<u32>() });
    round_trip!(
        atomic_eth,
        AtomicEth { va: any::<u64>(), rkey: any::<u32>(), swap_or_add: any::<u64>(), compare: any::<u64>() }
    );
    round_trip!(atomic_ack_eth, AtomicAckEth { original: any::<u64>() });
    round_trip!(aeth, Aeth { syndrome: any::<u8>(), msn: bits!(u32, 24) });
    round_trip!(deth, Deth { qkey: any::<u32>(), reserved8: any::<u8>(), source_qp: bits!(u32, 24) });
    round_trip!(imm_dt, ImmDt { immediate: any::<u32>() });
    round_trip!(ieth, Ieth { rkey: any::<u32>() });
    round_trip!(rdeth, Rdeth { reserved8: any::<u8>(), ee_context: bits!(u32, 24) });
    round_trip!(xrc_eth, XrcEth { reserved8: any::<u8>(), srq: bits!(u32, 24) });
    round_trip!(feth, Feth { reserved26: bits!(u32, 26), selectivity: bits!(u8, 2), placement: bits!(u8, 4) });
    round_trip!(cnp_reserved, CnpReserved { reserved: any::<[u8; 16]>() });

    #[test]
    fn captured_headers() {
        let atomic = AtomicEth { va: 0x7f5d_5112_0000, rkey: 0x528, swap_or_add: 4096, compare: 0 };
        assert_eq!(AtomicEth::parse(&captured::FETCH_ADD[54..]), Ok(atomic));
        let answer = &captured::ATOMIC_ACKNOWLEDGE[54..];
        assert_eq!(Aeth::parse(answer), Ok(Aeth { syndrome: 31, msn: 1 }));
        assert_eq!(AtomicAckEth::parse(&answer[4..]), Ok(AtomicAckEth { original: 578_437_695_752_307_201 }));
        let reth = Reth { va: 0x7fc7_52b3_3000, rkey: 0x4df, length: 256 };
        assert_eq!(Reth::parse(&captured::READ_REQUEST[54..]), Ok(reth));
        assert_eq!(Aeth::parse(&captured::REMOTE_ACCESS_ERROR[54..]), Ok(Aeth { syndrome: 0x62, msn: 0 }));
        let deth = Deth { qkey: 0x1111_1111, reserved8: 0, source_qp: 0x18 };
        assert_eq!(Deth::parse(&captured::DATAGRAM_ONE_BYTE[54..]), Ok(deth));
        assert_eq!(Aeth::parse(&captured::IPV6_ACKNOWLEDGE[74..]), Ok(Aeth { syndrome: 31, msn: 1 }));
    }

    #[test]
    fn feth_by_hand() {
        let bytes = [0, 0, 0, 0x12];
        let feth = Feth { reserved26: 0, selectivity: 1, placement: Feth::PERSISTENCE };
        assert_eq!(Feth::parse(&bytes), Ok(feth));
        let mut out = [0; 4];
        Feth { reserved26: 0, selectivity: 0xff, placement: 0xf0 }.emit(&mut out).unwrap();
        assert_eq!(out, [0, 0, 0, 0x30]);
    }
}
