//! Copying bytes from and to memory that others may write at the same time.
//!
//! On x86-64 the copy is written in assembly, for two reasons. Peers and other threads may write while we read; to the
//! compiler an assembly block is opaque, so that no race can make it assume anything. And glibc's `memcpy` takes
//! `rep movsb` for long copies, which is several times slower than vector moves where source and destination lie at
//! about the same place of their pages. `cargo run --release -p weft-mem --example copy` measures both.

/// Copies `length` bytes.
///
/// # Safety
/// `source` may be read and `destination` written for `length` bytes, and they do not overlap. Others may write either
/// at the same time, but not through, or under, a reference of Rust; the bytes copied are then any mixture.
#[inline]
pub unsafe fn copy(destination: *mut u8, source: *const u8, length: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: as the caller promised.
    unsafe {
        x86::copy(destination, source, length);
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    // SAFETY: as the caller promised.
    unsafe {
        std::ptr::copy_nonoverlapping(source, destination, length);
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86 {
    use std::arch::asm;

    /// # Safety
    /// As [`super::copy`].
    #[inline(always)]
    pub(super) unsafe fn copy(destination: *mut u8, source: *const u8, length: usize) {
        if !matches!(length, 8..=16) {
            // SAFETY: as the caller promised.
            return unsafe { copy_any(destination, source, length) };
        }
        // Most short messages have this length: it is copied where this is called.
        // SAFETY: both halves, which may overlap in the middle, lie in what the caller vouches for; the assembly reads and
        // writes only that, and clobbers what it names.
        unsafe {
            asm!(
                "mov {a}, qword ptr [{s}]",
                "mov {b}, qword ptr [{s} + {n} - 8]",
                "mov qword ptr [{d}], {a}",
                "mov qword ptr [{d} + {n} - 8], {b}",
                s = in(reg) source, d = in(reg) destination, n = in(reg) length,
                a = out(reg) _, b = out(reg) _, options(nostack, preserves_flags)
            );
        }
    }

    /// # Safety
    /// As [`super::copy`]; `length` is not one that [`copy`] does itself.
    #[inline(never)]
    unsafe fn copy_any(destination: *mut u8, source: *const u8, length: usize) {
        // Short copies are two halves that may overlap in the middle, so that no branch depends on the exact length.
        // SAFETY: in each arm the offsets are at least 0 and at most `length`, for which the caller vouches; the
        // assembly reads and writes only that, and clobbers what it names.
        unsafe {
            match length {
                0 => {}
                1 => destination.write_volatile(source.read_volatile()),
                2..4 => asm!(
                    "movzx {a:e}, word ptr [{s}]",
                    "movzx {b:e}, word ptr [{s} + {n} - 2]",
                    "mov word ptr [{d}], {a:x}",
                    "mov word ptr [{d} + {n} - 2], {b:x}",
                    s = in(reg) source, d = in(reg) destination, n = in(reg) length,
                    a = out(reg) _, b = out(reg) _, options(nostack, preserves_flags)
                ),
                4..8 => asm!(
                    "mov {a:e}, dword ptr [{s}]",
                    "mov {b:e}, dword ptr [{s} + {n} - 4]",
                    "mov dword ptr [{d}], {a:e}",
                    "mov dword ptr [{d} + {n} - 4], {b:e}",
                    s = in(reg) source, d = in(reg) destination, n = in(reg) length,
                    a = out(reg) _, b = out(reg) _, options(nostack, preserves_flags)
                ),
                // Was copied before.
                8..=16 => {}
                17..=32 => asm!(
                    "movups {a}, [{s}]",
                    "movups {b}, [{s} + {n} - 16]",
                    "movups [{d}], {a}",
                    "movups [{d} + {n} - 16], {b}",
                    s = in(reg) source, d = in(reg) destination, n = in(reg) length,
                    a = out(xmm_reg) _, b = out(xmm_reg) _, options(nostack, preserves_flags)
                ),
                33..=64 => asm!(
                    "movups {a}, [{s}]",
                    "movups {b}, [{s} + 16]",
                    "movups {c}, [{s} + {n} - 32]",
                    "movups {e}, [{s} + {n} - 16]",
                    "movups [{d}], {a}",
                    "movups [{d} + 16], {b}",
                    "movups [{d} + {n} - 32], {c}",
                    "movups [{d} + {n} - 16], {e}",
                    s = in(reg) source, d = in(reg) destination, n = in(reg) length,
                    a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, e = out(xmm_reg) _,
                    options(nostack, preserves_flags)
                ),
                65..=128 => asm!(
                    "movups {a}, [{s}]",
                    "movups {b}, [{s} + 16]",
                    "movups {c}, [{s} + 32]",
                    "movups {e}, [{s} + 48]",
                    "movups {f}, [{s} + {n} - 64]",
                    "movups {g}, [{s} + {n} - 48]",
                    "movups {h}, [{s} + {n} - 32]",
                    "movups {i}, [{s} + {n} - 16]",
                    "movups [{d}], {a}",
                    "movups [{d} + 16], {b}",
                    "movups [{d} + 32], {c}",
                    "movups [{d} + 48], {e}",
                    "movups [{d} + {n} - 64], {f}",
                    "movups [{d} + {n} - 48], {g}",
                    "movups [{d} + {n} - 32], {h}",
                    "movups [{d} + {n} - 16], {i}",
                    s = in(reg) source, d = in(reg) destination, n = in(reg) length,
                    a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, e = out(xmm_reg) _,
                    f = out(xmm_reg) _, g = out(xmm_reg) _, h = out(xmm_reg) _, i = out(xmm_reg) _,
                    options(nostack, preserves_flags)
                ),
                _ => copy_long(destination, source, length),
            }
        }
    }

    /// # Safety
    /// As [`super::copy`]; `length` is above 128.
    #[inline(never)]
    unsafe fn copy_long(destination: *mut u8, source: *const u8, length: usize) {
        // SAFETY: the processor has what is needed; the rest as the caller promised.
        unsafe {
            if is_x86_feature_detected!("avx2") {
                copy_avx(destination, source, length);
            } else {
                copy_sse(destination, source, length);
            }
        }
    }

    /// Steps of four 32-byte moves, with aligned stores.
    ///
    /// # Safety
    /// As [`super::copy`]; `length` is above 128.
    #[target_feature(enable = "avx")]
    unsafe fn copy_avx(destination: *mut u8, source: *const u8, length: usize) {
        // SAFETY: the first 128 and the last 128 bytes are copied as they lie; in between, full steps are taken from the first aligned place on while more than 128
        // bytes are left. All of it lies within `length`.
        unsafe {
            asm!(
                "vmovdqu ymm0, [{s}]",
                "vmovdqu ymm1, [{s} + 32]",
                "vmovdqu ymm2, [{s} + 64]",
                "vmovdqu ymm3, [{s} + 96]",
                "vmovdqu [{d}], ymm0",
                "vmovdqu [{d} + 32], ymm1",
                "vmovdqu [{d} + 64], ymm2",
                "vmovdqu [{d} + 96], ymm3",
                "cmp {n}, 256",
                "jbe 3f",
                // To the multiple of 32 of the destination that lies in what is copied already.
                "lea {t}, [{d} + 128]",
                "and {t}, -32",
                "sub {t}, {d}",
                "add {s}, {t}",
                "add {d}, {t}",
                "sub {n}, {t}",
                "cmp {n}, 128",
                "jbe 3f",
                ".p2align 5",
                "2:",
                "vmovdqu ymm0, [{s}]",
                "vmovdqu ymm1, [{s} + 32]",
                "vmovdqu ymm2, [{s} + 64]",
                "vmovdqu ymm3, [{s} + 96]",
                "add {s}, 128",
                "vmovdqa [{d}], ymm0",
                "vmovdqa [{d} + 32], ymm1",
                "vmovdqa [{d} + 64], ymm2",
                "vmovdqa [{d} + 96], ymm3",
                "add {d}, 128",
                "sub {n}, 128",
                "cmp {n}, 128",
                "ja 2b",
                "3:",
                "vmovdqu ymm0, [{s} + {n} - 128]",
                "vmovdqu ymm1, [{s} + {n} - 96]",
                "vmovdqu ymm2, [{s} + {n} - 64]",
                "vmovdqu ymm3, [{s} + {n} - 32]",
                "vmovdqu [{d} + {n} - 128], ymm0",
                "vmovdqu [{d} + {n} - 96], ymm1",
                "vmovdqu [{d} + {n} - 64], ymm2",
                "vmovdqu [{d} + {n} - 32], ymm3",
                "vzeroupper",
                s = inout(reg) source => _, d = inout(reg) destination => _, n = inout(reg) length => _,
                t = out(reg) _,
                out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _, out("ymm4") _, out("ymm5") _,
                out("ymm6") _, out("ymm7") _, out("ymm8") _, out("ymm9") _, out("ymm10") _, out("ymm11") _,
                out("ymm12") _, out("ymm13") _, out("ymm14") _, out("ymm15") _,
                options(nostack)
            );
        }
    }

    /// The same with 16-byte moves, for processors without AVX.
    ///
    /// # Safety
    /// As [`super::copy`]; `length` is above 128.
    pub(super) unsafe fn copy_sse(mut destination: *mut u8, mut source: *const u8, mut length: usize) {
        // SAFETY: full steps while more than 64 bytes are left, then the last 64, all within `length`.
        unsafe {
            while length > 64 {
                copy(destination, source, 64);
                (destination, source, length) = (destination.add(64), source.add(64), length - 64);
            }
            copy(destination.offset(length as isize - 64), source.offset(length as isize - 64), 64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Copies within a frame of other bytes, at every small length and around every step, and compares all of it.
    fn check(copy: unsafe fn(*mut u8, *const u8, usize), lengths: impl Iterator<Item = usize>) {
        let source: Vec<u8> = (0..9000u32).map(|i| (i * 31 + (i >> 8)) as u8).collect();
        for length in lengths {
            for (from, to) in [(0, 0), (1, 3), (17, 31), (63, 1)] {
                let mut destination = vec![0xEE; 9000];
                // SAFETY: both vectors are longer than any length plus offset used here.
                unsafe { copy(destination.as_mut_ptr().add(to), source.as_ptr().add(from), length) };
                assert_eq!(destination[to..to + length], source[from..from + length], "{length} from {from} to {to}");
                let around = destination[..to].iter().chain(&destination[to + length..]);
                assert!(around.into_iter().all(|byte| *byte == 0xEE), "{length} from {from} to {to}");
            }
        }
    }

    #[test]
    fn every_length_is_copied_and_nothing_else() {
        check(copy, (0..700).chain(4090..4100).chain([8192, 8900]));
    }

    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[test]
    fn without_avx_too() {
        check(x86::copy_sse, (129..400).chain([8900]));
    }
}
