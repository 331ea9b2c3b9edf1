//! CRC-32C, as fast as the processor can.
//!
//! With SSE 4.2 there is an instruction that takes 8 bytes with a latency of three cycles, and can be started every
//! cycle. So three stretches of the input are summed side by side; what the first two amount to at the end of the third
//! is found by carry-less multiplication with a power of x.
//!
//! Where vectors of 512 bits can be multiplied so, long inputs need no such instruction at all: 256 bytes are kept as a
//! remainder, moved on by multiplication, and the next 256 added to it.

use std::sync::OnceLock;

use weft_wire::checksum::{CRC32C, Crc};

/// Continues a CRC-32C over bytes; 0 begins one, and `crc32c(crc32c(0, a), b)` is that of `a` and `b` together.
#[inline]
#[must_use]
pub fn crc32c(crc: u32, bytes: &[u8]) -> u32 {
    // SAFETY: a slice may be read in its length.
    unsafe { crc32c_raw(crc, bytes.as_ptr(), bytes.len()) }
}

/// As [`crc32c`], over memory that others may write at the same time.
///
/// # Safety
/// `length` bytes at `pointer` may be read. If others write them meanwhile, the result is that of some mixture.
#[inline]
#[must_use]
pub unsafe fn crc32c_raw(crc: u32, pointer: *const u8, length: usize) -> u32 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if is_x86_feature_detected!("sse4.2") && is_x86_feature_detected!("pclmulqdq") {
        if length >= x86::WIDE_MIN_BYTES && x86::has_wide() {
            // SAFETY: the processor has what is needed, and the caller vouches for the memory.
            return unsafe { x86::update_wide(!crc, pointer, length) ^ !0 };
        }
        // SAFETY: the processor has what is needed, and the caller vouches for the memory.
        return unsafe { x86::update(!crc, pointer, length) ^ !0 };
    }
    // SAFETY: as the caller promised.
    unsafe { portable(crc, pointer, length) }
}

/// By tables, after copying: the tables' code takes slices, which memory of others must not be seen through.
///
/// # Safety
/// As [`crc32c_raw`].
unsafe fn portable(crc: u32, pointer: *const u8, length: usize) -> u32 {
    const STRETCH_BYTES: usize = 1024;
    static TABLES: OnceLock<Option<Crc>> = OnceLock::new();
    let Some(tables) = TABLES.get_or_init(|| Crc::new(CRC32C)) else {
        return 0; // never: the parameters are valid
    };
    let mut register = !crc;
    let mut stretch = [0; STRETCH_BYTES];
    let mut done = 0;
    while done < length {
        let (copy, _) = stretch.split_at_mut((length - done).min(STRETCH_BYTES));
        // SAFETY: `done` plus the length of the copy is at most `length`.
        unsafe { crate::copy::copy(copy.as_mut_ptr(), pointer.add(done), copy.len()) };
        register = tables.update(register, copy);
        done += copy.len();
    }
    !register
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86 {
    use std::arch::x86_64::{
        __m512i, _mm_clmulepi64_si128, _mm_crc32_u8, _mm_crc32_u64, _mm_cvtsi32_si128, _mm_cvtsi128_si64,
        _mm_xor_si128, _mm512_clmulepi64_epi128, _mm512_set_epi64, _mm512_ternarylogic_epi64, _mm512_xor_si512,
        _mm512_zextsi128_si512,
    };

    /// Lengths of a stretch, long ones first: for long inputs combining must not count, short ones must not miss it.
    const LONG_BYTES: usize = 2048;
    const SHORT_BYTES: usize = 128;

    /// Inputs from this length on are worth [`update_wide`]: its remainder is summed like any other 256 bytes.
    pub(super) const WIDE_MIN_BYTES: usize = 2048;
    /// Vectors whose bytes are one remainder: as many as hide how long a multiplication takes.
    const WIDE_VECTORS: usize = 4;
    const WIDE_BYTES: usize = WIDE_VECTORS * size_of::<__m512i>();

    /// Whether the processor has what [`update_wide`] needs besides what [`update`] does.
    #[inline]
    pub(super) fn has_wide() -> bool {
        is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("vpclmulqdq")
    }

    /// As [`update`], with vectors.
    ///
    /// # Safety
    /// As [`super::crc32c_raw`].
    #[target_feature(enable = "sse4.2,pclmulqdq,avx512f,vpclmulqdq")]
    pub(super) unsafe fn update_wide(mut register: u32, mut pointer: *const u8, mut length: usize) -> u32 {
        let before = pointer.align_offset(align_of::<__m512i>()).min(length);
        // SAFETY: `before` is at most `length`.
        register = unsafe { update(register, pointer, before) };
        // SAFETY: as above.
        pointer = unsafe { pointer.add(before) };
        length -= before;
        if length < WIDE_BYTES {
            // SAFETY: what is left can be read.
            return unsafe { update(register, pointer, length) };
        }
        // Both halves of each 128 bits, the first of which stands 64 bits higher, are moved on by `WIDE_BYTES`. As
        // below, a product stands 33 bits low.
        let (high, low) = const { (power(8 * WIDE_BYTES + 64 - 33) as i64, power(8 * WIDE_BYTES - 33) as i64) };
        let move_on = _mm512_set_epi64(low, high, low, high, low, high, low, high);
        // SAFETY: every read lies within `length` bytes from `pointer`, which both move together; reads are aligned, and
        // volatile because others may write.
        unsafe {
            let mut vectors = pointer.cast::<__m512i>();
            let mut remainder: [__m512i; WIDE_VECTORS] = [vectors.read_volatile(); WIDE_VECTORS];
            for (i, part) in remainder.iter_mut().enumerate().skip(1) {
                *part = vectors.add(i).read_volatile();
            }
            let [first, ..] = &mut remainder;
            // What came before counts as added to the first bytes.
            *first = _mm512_xor_si512(*first, _mm512_zextsi128_si512(_mm_cvtsi32_si128(register as i32)));
            length -= WIDE_BYTES;
            while length >= WIDE_BYTES {
                vectors = vectors.add(WIDE_VECTORS);
                for (i, part) in remainder.iter_mut().enumerate() {
                    let firsts = _mm512_clmulepi64_epi128(*part, move_on, 0x00);
                    let seconds = _mm512_clmulepi64_epi128(*part, move_on, 0x11);
                    // All three added.
                    *part = _mm512_ternarylogic_epi64(firsts, seconds, vectors.add(i).read_volatile(), 0x96);
                }
                length -= WIDE_BYTES;
            }
            // The remainder stands for all bytes so far, the register included.
            register = update(0, remainder.as_ptr().cast(), WIDE_BYTES);
            update(register, vectors.add(WIDE_VECTORS).cast(), length)
        }
    }

    /// Takes `length` bytes into the register.
    ///
    /// # Safety
    /// As [`super::crc32c_raw`].
    #[target_feature(enable = "sse4.2,pclmulqdq")]
    pub(super) unsafe fn update(mut register: u32, mut pointer: *const u8, mut length: usize) -> u32 {
        // SAFETY: every read lies within `length` bytes from `pointer`, which both move together; 8-byte reads are
        // aligned. Reads are volatile because others may write.
        unsafe {
            while length > 0 && !pointer.addr().is_multiple_of(8) {
                register = _mm_crc32_u8(register, pointer.read_volatile());
                (pointer, length) = (pointer.add(1), length - 1);
            }
            while length >= 3 * LONG_BYTES {
                register = three::<LONG_BYTES>(register, pointer.cast());
                (pointer, length) = (pointer.add(3 * LONG_BYTES), length - 3 * LONG_BYTES);
            }
            while length >= 3 * SHORT_BYTES {
                register = three::<SHORT_BYTES>(register, pointer.cast());
                (pointer, length) = (pointer.add(3 * SHORT_BYTES), length - 3 * SHORT_BYTES);
            }
            let mut wide = u64::from(register);
            while length >= 8 {
                wide = _mm_crc32_u64(wide, pointer.cast::<u64>().read_volatile());
                (pointer, length) = (pointer.add(8), length - 8);
            }
            register = wide as u32;
            while length > 0 {
                register = _mm_crc32_u8(register, pointer.read_volatile());
                (pointer, length) = (pointer.add(1), length - 1);
            }
        }
        register
    }

    /// Takes three stretches of `BYTES` each, side by side.
    ///
    /// # Safety
    /// `3 * BYTES` bytes at `words`, which is aligned, may be read.
    #[inline]
    #[target_feature(enable = "sse4.2,pclmulqdq")]
    unsafe fn three<const BYTES: usize>(register: u32, words: *const u64) -> u32 {
        let step = BYTES / 8;
        let (mut a, mut b, mut c) = (u64::from(register), 0, 0);
        // SAFETY: word `i` of each stretch, and the last word of the third one, lie within `3 * BYTES` bytes.
        unsafe {
            for i in 0..step - 1 {
                a = _mm_crc32_u64(a, words.add(i).read_volatile());
                b = _mm_crc32_u64(b, words.add(step + i).read_volatile());
                c = _mm_crc32_u64(c, words.add(2 * step + i).read_volatile());
            }
            a = _mm_crc32_u64(a, words.add(step - 1).read_volatile());
            b = _mm_crc32_u64(b, words.add(2 * step - 1).read_volatile());
            // The last word of the third stretch takes the other two in: they are moved to where it stands. The product
            // of two 32-bit values has 63 bits and stands one bit low in the word, and the instruction itself moves
            // it on by 32: hence 33 fewer.
            let moved = _mm_xor_si128(
                _mm_clmulepi64_si128(
                    _mm_cvtsi32_si128(a as i32),
                    _mm_cvtsi32_si128(const { power(16 * BYTES - 33) } as i32),
                    0,
                ),
                _mm_clmulepi64_si128(
                    _mm_cvtsi32_si128(b as i32),
                    _mm_cvtsi32_si128(const { power(8 * BYTES - 33) } as i32),
                    0,
                ),
            );
            let last = words.add(3 * step - 1).read_volatile();
            _mm_crc32_u64(c, last ^ _mm_cvtsi128_si64(moved) as u64) as u32
        }
    }

    /// x to the `bits`, modulo the polynomial; least significant bit first, as the register is.
    const fn power(bits: usize) -> u32 {
        let mut value = 1u32 << 31;
        let mut i = 0;
        while i < bits {
            value = value >> 1 ^ if value & 1 == 1 { 0x82F6_3B78 } else { 0 };
            i += 1;
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(length: usize) -> Vec<u8> {
        (0..length as u64).map(|i| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
    }

    #[test]
    fn every_length_and_alignment_sums_as_by_tables() {
        let tables = Crc::new(CRC32C).unwrap();
        assert_eq!(crc32c(0, b"123456789"), 0xE306_9283);
        assert_eq!(crc32c(0, b""), 0);
        let bytes = bytes(20_100);
        for length in (0..1300).chain([6143, 6144, 6145, 6527, 6528, 6600, 12_288, 20_000]) {
            for start in [0, 1, 3, 7, 8, 20] {
                let part = &bytes[start..start + length];
                assert_eq!(crc32c(0, part), tables.of(part), "{length} from {start}");
                // SAFETY: the length is that of a slice.
                assert_eq!(unsafe { portable(0, part.as_ptr(), length) }, tables.of(part), "{length} from {start}");
            }
        }
    }

    /// Both ways of this processor, since the length decides between them.
    #[test]
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    fn long_inputs_sum_as_by_tables_at_every_alignment() {
        let tables = Crc::new(CRC32C).unwrap();
        let bytes = bytes(70_000);
        let least = x86::WIDE_MIN_BYTES;
        for length in [least - 1, least, least + 1, least + 63, least + 255, least + 256, 4096, 65_439, 65_536] {
            for start in (0..130).chain([1000, 4095]) {
                let part = &bytes[start..start + length];
                assert_eq!(crc32c(0, part), tables.of(part), "{length} from {start}");
            }
            let register = crc32c(0, b"what came before");
            let (head, tail) = (&bytes[..length / 3], &bytes[length / 3..length]);
            let together = [b"what came before", head, tail].concat();
            assert_eq!(crc32c(crc32c(register, head), tail), tables.of(&together), "{length}");
        }
    }

    proptest! {
        #[test]
        fn parts_chain(length in 0usize..20_000, first in 0usize..20_000, second in 0usize..20_000) {
            let bytes = bytes(length);
            let (a, rest) = bytes.split_at(first.min(length));
            let (b, c) = rest.split_at(second.min(rest.len()));
            prop_assert_eq!(crc32c(crc32c(crc32c(0, a), b), c), crc32c(0, &bytes));
        }
    }
}
