//! CRCs by description: any of up to 32 bits, in the parameter model that catalogues use.
//!
//! The CRCs of RDMA (ICRC: CRC-32; MPA: CRC-32C; VCRC: CRC-16) run over whole packets, so a CRC is compiled into
//! sixteen tables and takes sixteen bytes a step.

use alloc::boxed::Box;

/// Parameters of a CRC: width in bits, polynomial (without its top bit), initial value, final XOR, and whether bits go
/// least significant first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrcParameters {
    /// 8, 16, 24 or 32.
    pub width: u32,
    /// Written most significant bit first, as in the catalogues.
    pub polynomial: u32,
    /// Register before the first byte.
    pub initial: u32,
    /// XORed onto the result.
    pub final_xor: u32,
    /// Least significant bit first, input and output.
    pub reflected: bool,
}

/// CRC-32 of Ethernet, which the ICRC uses.
pub const CRC32: CrcParameters =
    CrcParameters { width: 32, polynomial: 0x04C1_1DB7, initial: !0, final_xor: !0, reflected: true };
/// CRC-32C (Castagnoli), which MPA and SRDMA use.
pub const CRC32C: CrcParameters =
    CrcParameters { width: 32, polynomial: 0x1EDC_6F41, initial: !0, final_xor: !0, reflected: true };
/// CRC-16 of InfiniBand's VCRC.
pub const VCRC: CrcParameters =
    CrcParameters { width: 16, polynomial: 0x100B, initial: 0xFFFF, final_xor: 0xFFFF, reflected: true };

const STEP_BYTES: usize = 16;

/// A CRC compiled to tables.
pub struct Crc {
    parameters: CrcParameters,
    tables: Box<[[u32; 256]; STEP_BYTES]>,
}

#[expect(clippy::indexing_slicing, reason = "tables of 256 entries are indexed by bytes")]
impl Crc {
    /// Compiles the tables; `None` when the width is not 8, 16, 24 or 32.
    #[must_use]
    pub fn new(parameters: CrcParameters) -> Option<Crc> {
        if !matches!(parameters.width, 8 | 16 | 24 | 32) {
            return None;
        }
        let mut tables = Box::new([[0u32; 256]; STEP_BYTES]);
        let up = 32 - parameters.width;
        let mut previous = [0u32; 256];
        for (byte, entry) in (0u32..).zip(previous.iter_mut()) {
            *entry = if parameters.reflected {
                let polynomial = parameters.polynomial.reverse_bits() >> up;
                (0..8).fold(byte, |r, _| if r & 1 == 1 { r >> 1 ^ polynomial } else { r >> 1 })
            } else {
                let polynomial = parameters.polynomial << up;
                (0..8).fold(byte << 24, |r, _| if r >> 31 == 1 { r << 1 ^ polynomial } else { r << 1 })
            };
        }
        let first = previous;
        for table in tables.iter_mut() {
            *table = previous;
            // One more zero byte behind each entry.
            for entry in &mut previous {
                *entry = if parameters.reflected {
                    *entry >> 8 ^ first[usize::from(*entry as u8)]
                } else {
                    *entry << 8 ^ first[usize::from((*entry >> 24) as u8)]
                };
            }
        }
        Some(Crc { parameters, tables })
    }

    /// What it computes.
    #[must_use]
    pub fn parameters(&self) -> CrcParameters {
        self.parameters
    }

    /// A register to start with.
    #[inline]
    #[must_use]
    pub fn start(&self) -> u32 {
        let p = &self.parameters;
        if p.reflected { p.initial.reverse_bits() >> (32 - p.width) } else { p.initial << (32 - p.width) }
    }

    /// Takes `bytes` into the register.
    #[must_use]
    pub fn update(&self, register: u32, bytes: &[u8]) -> u32 {
        if self.parameters.reflected {
            self.update_reflected(register, bytes)
        } else {
            self.update_plain(register, bytes)
        }
    }

    /// The checksum that a register stands for.
    #[inline]
    #[must_use]
    pub fn finish(&self, register: u32) -> u32 {
        let p = &self.parameters;
        (if p.reflected { register } else { register >> (32 - p.width) }) ^ p.final_xor
    }

    /// Start, update and finish.
    #[must_use]
    pub fn of(&self, bytes: &[u8]) -> u32 {
        self.finish(self.update(self.start(), bytes))
    }

    fn update_reflected(&self, mut register: u32, bytes: &[u8]) -> u32 {
        let t = &*self.tables;
        let (steps, rest) = bytes.as_chunks::<STEP_BYTES>();
        for step in steps {
            let words = u128::from_le_bytes(*step) ^ u128::from(register);
            let b = words.to_le_bytes();
            // Two independent halves let the loads overlap.
            let low = t[15][b[0] as usize]
                ^ t[14][b[1] as usize]
                ^ t[13][b[2] as usize]
                ^ t[12][b[3] as usize]
                ^ t[11][b[4] as usize]
                ^ t[10][b[5] as usize]
                ^ t[9][b[6] as usize]
                ^ t[8][b[7] as usize];
            let high = t[7][b[8] as usize]
                ^ t[6][b[9] as usize]
                ^ t[5][b[10] as usize]
                ^ t[4][b[11] as usize]
                ^ t[3][b[12] as usize]
                ^ t[2][b[13] as usize]
                ^ t[1][b[14] as usize]
                ^ t[0][b[15] as usize];
            register = low ^ high;
        }
        let (steps, rest) = rest.as_chunks::<4>();
        for step in steps {
            let b = (u32::from_le_bytes(*step) ^ register).to_le_bytes();
            register = t[3][b[0] as usize] ^ t[2][b[1] as usize] ^ t[1][b[2] as usize] ^ t[0][b[3] as usize];
        }
        for byte in rest {
            register = register >> 8 ^ t[0][(register as u8 ^ byte) as usize];
        }
        register
    }

    fn update_plain(&self, mut register: u32, bytes: &[u8]) -> u32 {
        for byte in bytes {
            register = register << 8 ^ self.tables[0][((register >> 24) as u8 ^ byte) as usize];
        }
        register
    }
}

impl core::fmt::Debug for Crc {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.parameters.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_values_of_the_catalogues() {
        let check = |p| Crc::new(p).unwrap().of(b"123456789");
        assert_eq!(check(CRC32), 0xCBF4_3926);
        assert_eq!(check(CRC32C), 0xE306_9283);
        let p = |width, polynomial, initial, final_xor, reflected| CrcParameters {
            width,
            polynomial,
            initial,
            final_xor,
            reflected,
        };
        assert_eq!(check(p(16, 0x1021, 0xFFFF, 0, false)), 0x29B1, "CRC-16/IBM-3740");
        assert_eq!(check(p(16, 0x1021, 0, 0, true)), 0x2189, "CRC-16/KERMIT");
        assert_eq!(check(p(8, 0x07, 0, 0, false)), 0xF4, "CRC-8/SMBUS");
        assert_eq!(check(p(24, 0x86_4CFB, 0xB7_04CE, 0, false)), 0x21_CF02, "CRC-24/OPENPGP");
        assert_eq!(check(p(32, 0x04C1_1DB7, !0, !0, false)), 0xFC89_1918, "CRC-32/BZIP2");
        assert!(Crc::new(p(12, 1, 0, 0, false)).is_none());
    }

    #[test]
    fn long_steps_equal_single_bytes() {
        let bytes: std::vec::Vec<u8> = (0..200u32).map(|i| (i * 7 + (i >> 3)) as u8).collect();
        for parameters in [CRC32, CRC32C, VCRC] {
            let crc = Crc::new(parameters).unwrap();
            for length in 0..bytes.len() {
                let single = bytes[..length].iter().fold(crc.start(), |r, b| crc.update(r, &[*b]));
                assert_eq!(crc.of(&bytes[..length]), crc.finish(single), "length {length}");
            }
        }
    }
}
