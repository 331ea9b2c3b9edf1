//! What an atomic operation does to the value of one element.

use super::small_float::{BFLOAT16, BINARY16, E4M3, E5M2, Format};
use super::{AtomicOperation, Datatype};
use crate::memory::Fault;

/// Computes the new value of one element. All slices hold one little-endian element of the datatype; `operand` may be
/// empty for [`AtomicOperation::Read`], and `compare` for what does not compare.
///
/// Fails, with `new` as it was, when the operation is not done on the datatype ([`Fault::NotSupported`]) or a slice has
/// another length ([`Fault::OutOfBounds`]).
pub fn apply(
    operation: AtomicOperation,
    datatype: Datatype,
    old: &[u8],
    operand: &[u8],
    compare: &[u8],
    new: &mut [u8],
) -> Result<(), Fault> {
    if !operation.is_done_on(datatype) {
        return Err(Fault::NotSupported);
    }
    let call = Call { operation, old, operand, compare, new };
    match datatype {
        Datatype::Int8 => call.integer::<i8, 1>(i8::from_le_bytes, i8::to_le_bytes),
        Datatype::Int16 => call.integer::<i16, 2>(i16::from_le_bytes, i16::to_le_bytes),
        Datatype::Int32 => call.integer::<i32, 4>(i32::from_le_bytes, i32::to_le_bytes),
        Datatype::Int64 => call.integer::<i64, 8>(i64::from_le_bytes, i64::to_le_bytes),
        Datatype::Int128 => call.integer::<i128, 16>(i128::from_le_bytes, i128::to_le_bytes),
        Datatype::Uint8 => call.integer::<u8, 1>(u8::from_le_bytes, u8::to_le_bytes),
        Datatype::Uint16 => call.integer::<u16, 2>(u16::from_le_bytes, u16::to_le_bytes),
        Datatype::Uint32 => call.integer::<u32, 4>(u32::from_le_bytes, u32::to_le_bytes),
        Datatype::Uint64 => call.integer::<u64, 8>(u64::from_le_bytes, u64::to_le_bytes),
        Datatype::Uint128 => call.integer::<u128, 16>(u128::from_le_bytes, u128::to_le_bytes),
        Datatype::Binary32 => call.number::<f32, 4>(f32::from_le_bytes, f32::to_le_bytes),
        Datatype::Binary64 => call.number::<f64, 8>(f64::from_le_bytes, f64::to_le_bytes),
        Datatype::Binary16 => call.small::<2>(BINARY16, u16::from_le_bytes, u16::to_le_bytes),
        Datatype::Bfloat16 => call.small::<2>(BFLOAT16, u16::from_le_bytes, u16::to_le_bytes),
        Datatype::Float8E4M3 => call.small::<1>(E4M3, |[byte]| u16::from(byte), |bits| [bits as u8]),
        Datatype::Float8E5M2 => call.small::<1>(E5M2, |[byte]| u16::from(byte), |bits| [bits as u8]),
        Datatype::Complex32 => call.number::<Complex<f32>, 8>(Complex::<f32>::from_le, Complex::<f32>::to_le),
        Datatype::Complex64 => call.number::<Complex<f64>, 16>(Complex::<f64>::from_le, Complex::<f64>::to_le),
        Datatype::Extended | Datatype::ComplexExtended => Err(Fault::NotSupported),
    }
}

/// The arguments of [`apply`] but for the datatype.
struct Call<'a> {
    operation: AtomicOperation,
    old: &'a [u8],
    operand: &'a [u8],
    compare: &'a [u8],
    new: &'a mut [u8],
}

impl Call<'_> {
    /// The elements as arrays: old, operand, compare. Those that the operation does not look at are zeros.
    fn elements<const N: usize>(&self) -> Result<[[u8; N]; 3], Fault> {
        let element = |bytes: &[u8], needed: bool| match <[u8; N]>::try_from(bytes) {
            Ok(element) => Ok(element),
            Err(_) if !needed && bytes.is_empty() => Ok([0; N]),
            Err(_) => Err(Fault::OutOfBounds),
        };
        if self.new.len() != N {
            return Err(Fault::OutOfBounds);
        }
        Ok([
            element(self.old, true)?,
            element(self.operand, self.operation != AtomicOperation::Read)?,
            element(self.compare, self.operation.is_of(super::AtomicClass::Compare))?,
        ])
    }

    fn integer<T: Integer, const N: usize>(self, from: fn([u8; N]) -> T, to: fn(T) -> [u8; N]) -> Result<(), Fault> {
        let [old, operand, compare] = self.elements::<N>()?.map(from);
        let new = match self.operation {
            AtomicOperation::BitwiseOr => old.or(operand),
            AtomicOperation::BitwiseAnd => old.and(operand),
            AtomicOperation::BitwiseXor => old.or(operand).and(old.and(operand).not()),
            AtomicOperation::MaskedSwap => operand.and(compare).or(old.and(compare.not())),
            operation => compute(operation, old, operand, compare).ok_or(Fault::NotSupported)?,
        };
        self.new.copy_from_slice(&to(new));
        Ok(())
    }

    fn number<T: Number, const N: usize>(self, from: fn([u8; N]) -> T, to: fn(T) -> [u8; N]) -> Result<(), Fault> {
        let [old, operand, compare] = self.elements::<N>()?;
        let new = match choose(self.operation, from(old), from(operand), from(compare)) {
            // What is only chosen keeps every bit, also those of a NaN.
            Some(Choice::Old) => old,
            Some(Choice::Operand) => operand,
            None => to(compute(self.operation, from(old), from(operand), from(compare)).ok_or(Fault::NotSupported)?),
        };
        self.new.copy_from_slice(&new);
        Ok(())
    }

    fn small<const N: usize>(
        self,
        format: Format,
        from: fn([u8; N]) -> u16,
        to: fn(u16) -> [u8; N],
    ) -> Result<(), Fault> {
        let elements = self.elements::<N>()?;
        let [old, operand, compare] = elements.map(|bytes| format.decode(from(bytes)));
        let new = match choose(self.operation, old, operand, compare) {
            Some(Choice::Old) => elements[0],
            Some(Choice::Operand) => elements[1],
            None => to(format.encode(compute(self.operation, old, operand, compare).ok_or(Fault::NotSupported)?)),
        };
        self.new.copy_from_slice(&new);
        Ok(())
    }
}

/// Of two values, one.
enum Choice {
    Old,
    Operand,
}

/// The outcome of operations that compute no new value.
fn choose<T: Number>(operation: AtomicOperation, old: T, operand: T, compare: T) -> Option<Choice> {
    #[expect(clippy::eq_op, reason = "a NaN does not equal itself")]
    let number_for_nan = old != old && operand == operand;
    let operand_wins = match operation {
        AtomicOperation::Minimum => operand < old || number_for_nan,
        AtomicOperation::Maximum => operand > old || number_for_nan,
        AtomicOperation::Read => false,
        AtomicOperation::Write => true,
        AtomicOperation::SwapIfEqual => compare == old,
        AtomicOperation::SwapIfNotEqual => compare != old,
        AtomicOperation::SwapIfLessOrEqual => compare <= old,
        AtomicOperation::SwapIfLess => compare < old,
        AtomicOperation::SwapIfGreaterOrEqual => compare >= old,
        AtomicOperation::SwapIfGreater => compare > old,
        _ => return None,
    };
    Some(if operand_wins { Choice::Operand } else { Choice::Old })
}

/// The new value, for everything but bitwise operations.
fn compute<T: Number>(operation: AtomicOperation, old: T, operand: T, compare: T) -> Option<T> {
    let truth = |value: T| value != T::FALSE;
    let logical = |value: bool| if value { T::TRUE } else { T::FALSE };
    Some(match operation {
        AtomicOperation::Sum => old.sum(operand),
        AtomicOperation::Product => old.product(operand),
        AtomicOperation::Difference => old.difference(operand),
        AtomicOperation::LogicalOr => logical(truth(old) || truth(operand)),
        AtomicOperation::LogicalAnd => logical(truth(old) && truth(operand)),
        AtomicOperation::LogicalXor => logical(truth(old) != truth(operand)),
        _ => match choose(operation, old, operand, compare)? {
            Choice::Old => old,
            Choice::Operand => operand,
        },
    })
}

/// Arithmetic that all elements have.
trait Number: Copy + PartialOrd {
    const FALSE: Self;
    const TRUE: Self;
    fn sum(self, other: Self) -> Self;
    fn difference(self, other: Self) -> Self;
    fn product(self, other: Self) -> Self;
}

/// What integers have besides.
trait Integer: Number {
    fn or(self, other: Self) -> Self;
    fn and(self, other: Self) -> Self;
    fn not(self) -> Self;
}

macro_rules! integers {
    ($($type:ident)*) => {$(
        impl Number for $type {
            const FALSE: $type = 0;
            const TRUE: $type = 1;
            fn sum(self, other: $type) -> $type { self.wrapping_add(other) }
            fn difference(self, other: $type) -> $type { self.wrapping_sub(other) }
            fn product(self, other: $type) -> $type { self.wrapping_mul(other) }
        }
        impl Integer for $type {
            fn or(self, other: $type) -> $type { self | other }
            fn and(self, other: $type) -> $type { self & other }
            fn not(self) -> $type { !self }
        }
    )*};
}
integers!(i8 i16 i32 i64 i128 u8 u16 u32 u64 u128);

/// A complex number; never ordered.
#[derive(Clone, Copy, PartialEq)]
struct Complex<T> {
    real: T,
    imaginary: T,
}

impl<T: PartialEq> PartialOrd for Complex<T> {
    fn partial_cmp(&self, _: &Complex<T>) -> Option<core::cmp::Ordering> {
        None
    }
}

macro_rules! floats {
    ($($type:ident, $bytes:literal;)*) => {$(
        impl Number for $type {
            const FALSE: $type = 0.0;
            const TRUE: $type = 1.0;
            fn sum(self, other: $type) -> $type { self + other }
            fn difference(self, other: $type) -> $type { self - other }
            fn product(self, other: $type) -> $type { self * other }
        }
        impl Number for Complex<$type> {
            const FALSE: Self = Complex { real: 0.0, imaginary: 0.0 };
            const TRUE: Self = Complex { real: 1.0, imaginary: 0.0 };
            fn sum(self, other: Self) -> Self {
                Complex { real: self.real + other.real, imaginary: self.imaginary + other.imaginary }
            }
            fn difference(self, other: Self) -> Self {
                Complex { real: self.real - other.real, imaginary: self.imaginary - other.imaginary }
            }
            fn product(self, other: Self) -> Self {
                Complex {
                    real: self.real * other.real - self.imaginary * other.imaginary,
                    imaginary: self.real * other.imaginary + self.imaginary * other.real,
                }
            }
        }
        impl Complex<$type> {
            fn from_le(bytes: [u8; 2 * $bytes]) -> Self {
                let (parts, _) = bytes.as_chunks::<$bytes>();
                let part = |i: usize| $type::from_le_bytes(parts.get(i).copied().unwrap_or_default());
                Complex { real: part(0), imaginary: part(1) }
            }
            fn to_le(self) -> [u8; 2 * $bytes] {
                let mut bytes = [0; 2 * $bytes];
                let (real, imaginary) = bytes.split_at_mut($bytes);
                real.copy_from_slice(&self.real.to_le_bytes());
                imaginary.copy_from_slice(&self.imaginary.to_le_bytes());
                bytes
            }
        }
    )*};
}
floats!(f32, 4; f64, 8;);
