//! CRCs one bit at a time, and the ICRC's coverage written out byte by byte: slow, obvious, and independent of the
//! product's tables and masks.

/// A CRC that takes the least significant bit of each byte first, starts with ones and ends inverted. `polynomial` is
/// written as in the catalogues, highest power first.
pub fn crc(width: u32, polynomial: u64, bytes: &[u8]) -> u64 {
    // Shifting to the left with the register's top bit as x^(width-1), then turned round at the end.
    let top = 1u64 << (width - 1);
    let mut register = (top - 1) << 1 | 1;
    for byte in bytes {
        for bit in 0..8 {
            let incoming = u64::from(byte >> bit & 1);
            let feedback = u64::from(register & top != 0) ^ incoming;
            register = (register & (top - 1)) << 1;
            if feedback == 1 {
                register ^= polynomial;
            }
        }
    }
    let inverted = register ^ ((top - 1) << 1 | 1);
    (0..width).fold(0, |turned, bit| turned << 1 | (inverted >> bit & 1))
}

/// CRC-32 as ICRC bytes on the wire: the lowest byte first. Ethernet's frame check sequence is the same.
pub fn on_the_wire(covered: &[u8]) -> [u8; 4] {
    (crc(32, 0x04c1_1db7, covered) as u32).to_le_bytes()
}

/// Where the BTH begins, and which header is in front of it.
pub enum Before {
    /// IPv4 and UDP of RoCEv2, at this offset of the frame.
    Ipv4(usize),
    /// IPv6 and UDP of RoCEv2.
    Ipv6(usize),
    /// The GRH of RoCEv1.
    Grh(usize),
    /// LRH alone.
    Lrh,
    /// LRH and GRH.
    LrhGrh,
}

const LRH: usize = 8;
const IPV6: usize = 40;
const UDP: usize = 8;
const FECN_BECN: usize = 4;

/// The ICRC of a frame without trailers: InfiniBand 1.2.1 section 7.8.1 and annex A17.
pub fn icrc(before: &Before, frame: &[u8]) -> [u8; 4] {
    let mut covered = vec![0xff; LRH];
    let mut mask = |from: usize, ones: &[usize], half: Option<usize>, bth: usize| {
        let at = covered.len();
        covered.extend_from_slice(&frame[from..]);
        for one in ones.iter().chain(&[bth - from + FECN_BECN]) {
            covered[at + one] = 0xff;
        }
        if let Some(half) = half {
            covered[at + half] |= 0x0f;
        }
    };
    match *before {
        Before::Ipv4(at) => {
            let header = usize::from(frame[at] & 0xf) * 4;
            mask(at, &[1, 8, 10, 11, header + 6, header + 7], None, at + header + UDP);
        }
        Before::Ipv6(at) => mask(at, &[1, 2, 3, 7, IPV6 + 6, IPV6 + 7], Some(0), at + IPV6 + UDP),
        Before::Grh(at) => mask(at, &[1, 2, 3, 7], Some(0), at + IPV6),
        Before::LrhGrh => mask(LRH, &[1, 2, 3, 7], Some(0), LRH + IPV6),
        Before::Lrh => {
            covered.clear();
            covered.extend_from_slice(frame);
            covered[0] |= 0xf0;
            covered[LRH + FECN_BECN] = 0xff;
        }
    }
    on_the_wire(&covered)
}

/// The VCRC of everything in front of it.
pub fn vcrc(frame: &[u8]) -> [u8; 2] {
    (crc(16, 0x100b, frame) as u16).to_le_bytes()
}
