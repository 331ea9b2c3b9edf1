//! Atomic updates of memory that others use at the same time.
//!
//! Elements of up to 8 bytes are updated with atomic instructions: one where the processor has it, a compare-exchange
//! loop around [`weft_core::atomic::apply`] otherwise. They are atomic to everything else that uses atomic instructions
//! on the same memory, other processes included. Elements of 16 bytes are too where the processor has an instruction
//! for them ([`wide_is_lock_free`]). Elsewhere they are updated under one lock of the process: they are atomic to each
//! other, but who reads such an element without an atomic operation may see one half new and the other old. So are complex
//! numbers of which only the parts are aligned.

use std::sync::atomic::{
    AtomicI8, AtomicI16, AtomicI32, AtomicI64, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering,
};
use std::sync::{Mutex, PoisonError};

use weft_core::atomic::{AtomicClass, AtomicOperation, Datatype, Kind, apply};
use weft_core::memory::Fault;

/// Where elements that no instruction updates wait for each other.
static WIDE: Mutex<()> = Mutex::new(());

/// The bytes of a call: packed little-endian elements.
pub(crate) struct Values<'a> {
    pub(crate) operands: &'a [u8],
    pub(crate) compares: &'a [u8],
    /// Filled with the values from before, unless it is empty.
    pub(crate) results: &'a mut [u8],
}

/// Updates `length` bytes of elements at `pointer`.
///
/// # Safety
/// The caller sees to it that `length` bytes at `pointer` may be read and written, and that nobody accesses them
/// through references meanwhile.
pub(crate) unsafe fn update(
    pointer: *mut u8,
    length: usize,
    operation: AtomicOperation,
    datatype: Datatype,
    values: Values<'_>,
) -> Result<(), Fault> {
    let fits = |bytes: &[u8], needed: bool| bytes.len() == length || (!needed && bytes.is_empty());
    if !length.is_multiple_of(datatype.bytes())
        || !fits(values.operands, operation != AtomicOperation::Read)
        || !fits(values.compares, operation.is_of(AtomicClass::Compare))
        || !fits(values.results, false)
    {
        return Err(Fault::OutOfBounds);
    }
    if !operation.is_done_on(datatype) {
        return Err(Fault::NotSupported);
    }
    if !pointer.addr().is_multiple_of(datatype.alignment()) {
        return Err(Fault::Misaligned);
    }
    // SAFETY: the caller vouches for the memory, and alignment and lengths were checked above.
    unsafe {
        if !pointer.addr().is_multiple_of(datatype.bytes()) {
            return match datatype {
                Datatype::Complex32 => each(pointer, length, operation, datatype, values, update_8_in_halves),
                Datatype::Complex64 => each(pointer, length, operation, datatype, values, update_16_in_halves),
                _ => Err(Fault::Misaligned),
            };
        }
        match datatype.bytes() {
            1 => each(pointer, length, operation, datatype, values, update_1),
            2 => each(pointer, length, operation, datatype, values, update_2),
            4 => each(pointer, length, operation, datatype, values, update_4),
            8 => each(pointer, length, operation, datatype, values, update_8),
            16 => each(pointer, length, operation, datatype, values, update_16),
            _ => Err(Fault::NotSupported),
        }
    }
}

/// Updates one element; gives the value from before.
type UpdateOne<const N: usize> =
    unsafe fn(*mut u8, AtomicOperation, Datatype, operand: [u8; N], compare: [u8; N]) -> Result<[u8; N], Fault>;

/// # Safety
/// As [`update`]; `pointer` is aligned for elements of `N` bytes.
unsafe fn each<const N: usize>(
    pointer: *mut u8,
    length: usize,
    operation: AtomicOperation,
    datatype: Datatype,
    values: Values<'_>,
    update_one: UpdateOne<N>,
) -> Result<(), Fault> {
    let (operands, _) = values.operands.as_chunks::<N>();
    let (compares, _) = values.compares.as_chunks::<N>();
    let (results, _) = values.results.as_chunks_mut::<N>();
    for i in 0..length / N {
        let element = |of: &[[u8; N]]| of.get(i).copied().unwrap_or([0; N]);
        // SAFETY: element `i` is within `length` bytes, and aligned as the first one is.
        let old = unsafe {
            let element_pointer = pointer.add(i * N);
            update_one(element_pointer, operation, datatype, element(operands), element(compares))?
        };
        if let Some(result) = results.get_mut(i) {
            *result = old;
        }
    }
    Ok(())
}

macro_rules! widths {
    ($($name:ident $bytes:literal $unsigned:ident $signed:ident $atomic:ident $atomic_signed:ident;)*) => {$(
        /// # Safety
        /// `pointer` is aligned, and its bytes may be read and written, but not through references meanwhile.
        unsafe fn $name(
            pointer: *mut u8,
            operation: AtomicOperation,
            datatype: Datatype,
            operand_bytes: [u8; $bytes],
            compare_bytes: [u8; $bytes],
        ) -> Result<[u8; $bytes], Fault> {
            const ORDER: Ordering = Ordering::AcqRel;
            // SAFETY: the caller vouches for alignment and access.
            let (element, signed) = unsafe {
                ($atomic::from_ptr(pointer.cast()), $atomic_signed::from_ptr(pointer.cast()))
            };
            let operand = $unsigned::from_le_bytes(operand_bytes);
            let old = match (operation, datatype.kind()) {
                (AtomicOperation::Read, _) => element.load(Ordering::Acquire),
                (AtomicOperation::Write, _) => element.swap(operand, ORDER),
                (AtomicOperation::Sum, Kind::Signed | Kind::Unsigned) => element.fetch_add(operand, ORDER),
                (AtomicOperation::Difference, Kind::Signed | Kind::Unsigned) => element.fetch_sub(operand, ORDER),
                (AtomicOperation::BitwiseOr, _) => element.fetch_or(operand, ORDER),
                (AtomicOperation::BitwiseAnd, _) => element.fetch_and(operand, ORDER),
                (AtomicOperation::BitwiseXor, _) => element.fetch_xor(operand, ORDER),
                (AtomicOperation::Minimum, Kind::Unsigned) => element.fetch_min(operand, ORDER),
                (AtomicOperation::Maximum, Kind::Unsigned) => element.fetch_max(operand, ORDER),
                (AtomicOperation::Minimum, Kind::Signed) => {
                    signed.fetch_min(operand.cast_signed(), ORDER).cast_unsigned()
                }
                (AtomicOperation::Maximum, Kind::Signed) => {
                    signed.fetch_max(operand.cast_signed(), ORDER).cast_unsigned()
                }
                (AtomicOperation::SwapIfEqual, Kind::Signed | Kind::Unsigned) => {
                    let compare = $unsigned::from_le_bytes(compare_bytes);
                    match element.compare_exchange(compare, operand, ORDER, Ordering::Acquire) {
                        Ok(old) | Err(old) => old,
                    }
                }
                _ => {
                    let mut old = element.load(Ordering::Acquire);
                    loop {
                        let mut new = [0; $bytes];
                        let old_bytes = old.to_le_bytes();
                        apply(operation, datatype, &old_bytes, &operand_bytes, &compare_bytes, &mut new)?;
                        let new = $unsigned::from_le_bytes(new);
                        match element.compare_exchange_weak(old, new, ORDER, Ordering::Acquire) {
                            Ok(old) => break old,
                            Err(current) => old = current,
                        }
                    }
                }
            };
            Ok(old.to_le_bytes())
        }
    )*};
}
widths! {
    update_1 1 u8 i8 AtomicU8 AtomicI8;
    update_2 2 u16 i16 AtomicU16 AtomicI16;
    update_4 4 u32 i32 AtomicU32 AtomicI32;
    update_8 8 u64 i64 AtomicU64 AtomicI64;
}

/// # Safety
/// `pointer` is aligned to 16 bytes, which may be read and written, but not through references meanwhile.
unsafe fn update_16(
    pointer: *mut u8,
    operation: AtomicOperation,
    datatype: Datatype,
    operand: [u8; 16],
    compare: [u8; 16],
) -> Result<[u8; 16], Fault> {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if wide_is_lock_free() {
        // SAFETY: the processor has the instruction; the caller vouches for alignment and access.
        return unsafe { update_16_at_once(pointer, operation, datatype, operand, compare) };
    }
    // SAFETY: as the caller promised; the halves have half the alignment.
    unsafe { update_16_in_halves(pointer, operation, datatype, operand, compare) }
}

macro_rules! in_halves {
    ($($name:ident $bytes:literal $half_bytes:literal $half:ident $atomic:ident;)*) => {$(
        /// Under the lock of the process.
        ///
        /// # Safety
        /// As [`update_16`], but only the halves of the element need be aligned.
        unsafe fn $name(
            pointer: *mut u8,
            operation: AtomicOperation,
            datatype: Datatype,
            operand: [u8; $bytes],
            compare: [u8; $bytes],
        ) -> Result<[u8; $bytes], Fault> {
            // SAFETY: the caller vouches for alignment and access to both halves.
            let halves = unsafe {
                [$atomic::from_ptr(pointer.cast()), $atomic::from_ptr(pointer.add($half_bytes).cast())]
            };
            let _guard = WIDE.lock().unwrap_or_else(PoisonError::into_inner);
            let mut old = [0; $bytes];
            for (bytes, half) in old.chunks_exact_mut($half_bytes).zip(halves) {
                bytes.copy_from_slice(&half.load(Ordering::Acquire).to_ne_bytes());
            }
            if cfg!(target_endian = "big") {
                to_memory_order(&mut old, datatype);
            }
            let mut new = [0; $bytes];
            apply(operation, datatype, &old, &operand, &compare, &mut new)?;
            if cfg!(target_endian = "big") {
                to_memory_order(&mut new, datatype);
            }
            let (words, _) = new.as_chunks::<$half_bytes>();
            for (bytes, half) in words.iter().zip(halves) {
                half.store($half::from_ne_bytes(*bytes), Ordering::Release);
            }
            Ok(old)
        }
    )*};
}
in_halves! {
    update_8_in_halves 8 4 u32 AtomicU32;
    update_16_in_halves 16 8 u64 AtomicU64;
}

/// Whether such elements at such an address are updated by one instruction each, and so atomically to other processes.
pub(crate) fn is_lock_free(pointer: *const u8, datatype: Datatype) -> bool {
    pointer.addr().is_multiple_of(datatype.bytes()) && (datatype.bytes() <= 8 || wide_is_lock_free())
}

/// Whether elements of 16 bytes are updated by one instruction, and so atomically to other processes too.
fn wide_is_lock_free() -> bool {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        is_x86_feature_detected!("cmpxchg16b")
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    {
        false
    }
}

/// # Safety
/// As [`update_16`]; the processor has `cmpxchg16b`.
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn update_16_at_once(
    pointer: *mut u8,
    operation: AtomicOperation,
    datatype: Datatype,
    operand: [u8; 16],
    compare: [u8; 16],
) -> Result<[u8; 16], Fault> {
    // The first guess may be wrong; the exchange then gives what is there.
    let mut old = 0u128;
    loop {
        let mut new = [0; 16];
        apply(operation, datatype, &old.to_le_bytes(), &operand, &compare, &mut new)?;
        // SAFETY: as the caller promised.
        let current = unsafe { compare_exchange_16(pointer, old, u128::from_le_bytes(new)) };
        if current == old {
            return Ok(old.to_le_bytes());
        }
        old = current;
    }
}

/// Gives what was there: `new` was stored if it is `old`. In assembly, as the standard library's function for it needs a
/// library of the C compiler in builds that are not optimised.
///
/// # Safety
/// As [`update_16_at_once`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn compare_exchange_16(pointer: *mut u8, old: u128, new: u128) -> u128 {
    let (low, high): (u64, u64);
    // SAFETY: the caller vouches for 16 aligned bytes. The register that the compiler keeps for itself is put back.
    unsafe {
        std::arch::asm!(
            "xchg rsi, rbx",
            "lock cmpxchg16b [rdi]",
            "mov rbx, rsi",
            in("rdi") pointer,
            inout("rsi") new as u64 => _,
            in("rcx") (new >> 64) as u64,
            inout("rax") old as u64 => low,
            inout("rdx") (old >> 64) as u64 => high,
            options(nostack)
        );
    }
    u128::from(high) << 64 | u128::from(low)
}

/// Between little-endian elements and a big-endian memory: reverses each number.
fn to_memory_order(element: &mut [u8], datatype: Datatype) {
    let number = if datatype.kind() == Kind::Complex { element.len() / 2 } else { element.len() };
    element.chunks_exact_mut(number).for_each(<[u8]>::reverse);
}
