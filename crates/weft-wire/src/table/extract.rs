//! Where a field lies and how to read and write it: one 8-byte window, two shifts.

/// A field of up to 64 bits at a fixed place, compiled so that reading it is one load and two shifts.
///
/// The window is 8 bytes long and lies inside the opcode's headers whenever these have 8 bytes, so that the usual read
/// needs no more than one bounds check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Extract {
    /// First byte of the window, from the protocol's first byte.
    pub(crate) offset: u8,
    /// Bits of the window above the field (in the field's own byte order).
    pub(crate) left: u8,
    /// 64 less the field's width.
    pub(crate) right: u8,
    /// Least significant byte first.
    pub(crate) little: bool,
}

/// How the bits of a field are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum Endian {
    /// Bit 0 is the most significant bit of byte 0, and the most significant bit of a field comes first.
    #[default]
    Big,
    /// Bit 0 is the least significant bit of byte 0, and the least significant bit of a field comes first.
    Little,
}

const WINDOW_BITS: usize = 64;

impl Extract {
    /// The field of `width` bits at `bit` (counted as `endian` says), in headers of `total` bytes. `None` when it does
    /// not fit one window.
    pub(crate) fn new(bit: usize, width: usize, endian: Endian, total: usize) -> Option<Extract> {
        if width == 0 || width > WINDOW_BITS {
            return None;
        }
        let first = (bit / 8).min(total.saturating_sub(8));
        let before = bit.checked_sub(first * 8)?;
        let after = WINDOW_BITS.checked_sub(before + width)?;
        let left = match endian {
            Endian::Big => before,
            Endian::Little => after,
        };
        Some(Extract {
            offset: u8::try_from(first).ok()?,
            left: u8::try_from(left).ok()?,
            right: u8::try_from(WINDOW_BITS - width).ok()?,
            little: endian == Endian::Little,
        })
    }

    /// The field's bits in a big-endian window.
    fn mask(self) -> u64 {
        let mask = u64::MAX >> self.right << (self.right - self.left);
        if self.little { mask.swap_bytes() } else { mask }
    }

    /// The window as the packet has it, first byte most significant. Bytes behind the end read as zero.
    #[inline]
    pub(crate) fn window(self, bytes: &[u8]) -> u64 {
        match bytes.get(usize::from(self.offset)..).and_then(|rest| rest.first_chunk::<8>()) {
            Some(window) => u64::from_be_bytes(*window),
            None => self.short_window(bytes),
        }
    }

    #[cold]
    fn short_window(self, bytes: &[u8]) -> u64 {
        let mut window = [0u8; 8];
        let rest = bytes.get(usize::from(self.offset)..).unwrap_or(&[]);
        for (to, from) in window.iter_mut().zip(rest) {
            *to = *from;
        }
        u64::from_be_bytes(window)
    }

    /// Reads the field.
    #[inline]
    pub(crate) fn read(self, bytes: &[u8]) -> u64 {
        let window = self.window(bytes);
        let window = if self.little { window.swap_bytes() } else { window };
        window << (self.left & 63) >> (self.right & 63)
    }

    /// Writes the field; bits of `value` above its width are dropped. Bytes behind the end are not written.
    #[inline]
    pub(crate) fn write(self, bytes: &mut [u8], value: u64) {
        // Most fields are whole bytes at whole bytes: nothing around them needs to be kept.
        if (self.left | self.right) & 7 == 0 && !self.little {
            let start = usize::from(self.offset) + usize::from(self.left / 8);
            let place = bytes.get_mut(start..).unwrap_or(&mut []);
            match self.right {
                32 => {
                    if let Some(place) = place.first_chunk_mut::<4>() {
                        *place = (value as u32).to_be_bytes();
                        return;
                    }
                }
                0 => {
                    if let Some(place) = place.first_chunk_mut::<8>() {
                        *place = value.to_be_bytes();
                        return;
                    }
                }
                48 => {
                    if let Some(place) = place.first_chunk_mut::<2>() {
                        *place = (value as u16).to_be_bytes();
                        return;
                    }
                }
                56 => {
                    if let Some(place) = place.first_mut() {
                        *place = value as u8;
                        return;
                    }
                }
                _ => {}
            }
        }
        self.write_bits(bytes, value);
    }

    fn write_bits(self, bytes: &mut [u8], value: u64) {
        let placed = value << (self.right & 63) >> (self.left & 63);
        let placed = if self.little { placed.swap_bytes() } else { placed };
        let window = (self.window(bytes) & !self.mask()) | placed;
        let rest = bytes.get_mut(usize::from(self.offset)..).unwrap_or(&mut []);
        match rest.first_chunk_mut::<8>() {
            Some(out) => *out = window.to_be_bytes(),
            None => {
                for (to, from) in rest.iter_mut().zip(window.to_be_bytes()) {
                    *to = from;
                }
            }
        }
    }

    /// The test `field == value` as a mask and a value for the window; `None` when it can never hold.
    pub(crate) fn as_window_test(self, value: u64) -> Option<(u64, u64)> {
        let mut wanted = [0u8; 8];
        let here = Extract { offset: 0, ..self };
        here.write(&mut wanted, value);
        (here.read(&wanted) == value).then(|| (self.mask(), u64::from_be_bytes(wanted)))
    }

    /// Widest value.
    pub(crate) fn max(self) -> u64 {
        u64::MAX >> (self.right & 63)
    }

    pub(crate) fn width(self) -> u32 {
        64 - u32::from(self.right)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bit by bit, from the definition of the two ways of counting.
    fn slow_read(bytes: &[u8], bit: usize, width: usize, endian: Endian) -> u64 {
        (bit..bit + width).enumerate().fold(0, |value, (index, bit)| {
            let byte = bytes.get(bit / 8).copied().unwrap_or(0);
            match endian {
                Endian::Big => value << 1 | u64::from(byte >> (7 - bit % 8) & 1),
                Endian::Little => value | u64::from(byte >> (bit % 8) & 1) << index,
            }
        })
    }

    proptest! {
        #[test]
        fn read_and_write_agree_with_single_bits(
            bytes in proptest::collection::vec(any::<u8>(), 1..40), bit in 0usize..300, width in 1usize..65,
            little: bool, value: u64,
        ) {
            let endian = if little { Endian::Little } else { Endian::Big };
            let inside = bit + width <= bytes.len() * 8;
            prop_assume!(inside);
            let Some(extract) = Extract::new(bit, width, endian, bytes.len()) else {
                // Only what spans nine bytes does not fit.
                prop_assert!(bit % 8 + width > 64);
                return Ok(());
            };
            prop_assert_eq!(extract.read(&bytes), slow_read(&bytes, bit, width, endian));
            let mut changed = bytes.clone();
            extract.write(&mut changed, value);
            let kept = value & extract.max();
            prop_assert_eq!(slow_read(&changed, bit, width, endian), kept);
            extract.write(&mut changed, extract.read(&bytes));
            prop_assert_eq!(&changed, &bytes, "no other bit was touched");
            let (mask, wanted) = extract.as_window_test(kept).unwrap();
            extract.write(&mut changed, value);
            prop_assert_eq!(extract.window(&changed) & mask, wanted);
        }

        #[test]
        fn short_packets_read_as_zero(bytes in proptest::collection::vec(any::<u8>(), 0..8), bit in 0usize..64) {
            let extract = Extract::new(bit, 1, Endian::Big, 64).unwrap();
            prop_assert_eq!(extract.read(&bytes), slow_read(&bytes, bit, 1, Endian::Big));
        }
    }
}
