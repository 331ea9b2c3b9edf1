use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

use super::small_float::{BFLOAT16, BINARY16, E4M3, E5M2, Format};
use super::{AtomicCall, AtomicClass, AtomicOperation as Op, Datatype, apply};
use crate::memory::Fault;

fn run(operation: Op, datatype: Datatype, old: &[u8], operand: &[u8], compare: &[u8]) -> Vec<u8> {
    let mut new = vec![0xEE; datatype.bytes()];
    apply(operation, datatype, old, operand, compare, &mut new).unwrap();
    new
}

#[test]
fn codes_go_both_ways_and_are_those_of_the_protocol() {
    for code in 0..=255 {
        assert!(Op::from_code(code).is_none_or(|operation| operation.code() == code));
        assert!(Datatype::from_code(code).is_none_or(|datatype| datatype.code() == code));
    }
    assert_eq!((Op::ALL.len(), Datatype::ALL.len()), (20, 20));
    assert_eq!((Op::Difference.code(), Op::MaskedSwap.code()), (0x05, 0x16));
    assert_eq!((Datatype::Uint64.code(), Datatype::Complex64.code()), (0x14, 0x31));
    assert_eq!((Datatype::Complex64.name(), Datatype::Complex64.bytes()), ("complex of binary64", 16));
    assert_eq!((Datatype::ComplexExtended.bytes(), Datatype::ComplexExtended.alignment()), (32, 16));
}

#[test]
fn what_goes_together() {
    let check = |operation: Op, datatype, class| AtomicCall::new(operation, datatype, 1).check(class).is_ok();
    assert!(check(Op::Sum, Datatype::Int32, AtomicClass::Plain));
    assert!(check(Op::Sum, Datatype::Int32, AtomicClass::Fetch));
    assert!(!check(Op::Sum, Datatype::Int32, AtomicClass::Compare));
    assert!(!check(Op::Read, Datatype::Int32, AtomicClass::Plain));
    assert!(check(Op::Read, Datatype::Int32, AtomicClass::Fetch));
    assert!(check(Op::SwapIfEqual, Datatype::Complex64, AtomicClass::Compare));
    assert!(!check(Op::SwapIfEqual, Datatype::Uint8, AtomicClass::Fetch));
    assert!(!check(Op::SwapIfLess, Datatype::Complex64, AtomicClass::Compare));
    assert!(!check(Op::MaskedSwap, Datatype::Binary32, AtomicClass::Compare));
    assert!(!check(Op::BitwiseOr, Datatype::Bfloat16, AtomicClass::Plain));
    assert!(!check(Op::Minimum, Datatype::Complex32, AtomicClass::Plain));
    assert!(!check(Op::Write, Datatype::Extended, AtomicClass::Plain));
    let unknown = AtomicCall { operation: 0x0e, datatype: 1, count: 1 };
    assert_eq!(unknown.check(AtomicClass::Plain), Err(Fault::NotSupported));
    assert_eq!(AtomicCall::new(Op::SwapIfLess, Datatype::Int16, 3).payload_bytes(), Some(12));
    assert_eq!(AtomicCall::new(Op::Read, Datatype::Int16, 3).payload_bytes(), Some(0));
    assert_eq!(AtomicCall::new(Op::Read, Datatype::Int16, 3).bytes(), Some(6));
}

#[test]
fn counts_are_what_one_packet_can_carry() {
    use AtomicClass::{Compare, Fetch, Plain};
    assert_eq!(Op::Sum.count_max(Datatype::Uint64, Plain), 128);
    assert_eq!(Op::Read.count_max(Datatype::Uint8, Fetch), 1024);
    assert_eq!(Op::SwapIfEqual.count_max(Datatype::Uint64, Compare), 64);
    assert_eq!(Op::MaskedSwap.count_max(Datatype::Int128, Compare), 32);
    for &operation in Op::ALL {
        for &datatype in Datatype::ALL {
            for class in [Plain, Fetch, Compare] {
                let count = operation.count_max(datatype, class);
                let call = AtomicCall::new(operation, datatype, count.max(1));
                assert_eq!(count > 0, call.check(class).is_ok(), "{operation:?} {datatype:?} {class:?}");
                let limit = crate::limits::ATOMIC_MAX_BYTES as usize;
                assert!(call.bytes().unwrap() <= limit && call.payload_bytes().unwrap() <= limit);
            }
            assert!(datatype.bytes().is_multiple_of(datatype.alignment()));
        }
    }
}

#[test]
fn every_pair_is_computed_exactly_when_it_is_said_to_be() {
    for &operation in Op::ALL {
        for &datatype in Datatype::ALL {
            let bytes = vec![1; datatype.bytes()];
            let mut new = vec![0xEE; datatype.bytes()];
            let result = apply(operation, datatype, &bytes, &bytes, &bytes, &mut new);
            assert_eq!(result.is_ok(), operation.is_done_on(datatype), "{operation:?} {datatype:?}");
            assert!(result.is_ok() || new.iter().all(|byte| *byte == 0xEE));
            let short = apply(operation, datatype, &bytes[1..], &bytes, &bytes, &mut new);
            assert!(short.is_err(), "{operation:?} {datatype:?}");
        }
    }
}

/// What integer operations must give, written once more and plainly.
macro_rules! integer_properties {
    ($($name:ident $type:ident $datatype:ident;)*) => {proptest! {$(
        #[test]
        fn $name(old: $type, operand: $type, compare: $type, same: bool) {
            let compare = if same { old } else { compare };
            let run = |operation| {
                let new = run(operation, Datatype::$datatype, &old.to_le_bytes(), &operand.to_le_bytes(),
                    &compare.to_le_bytes());
                $type::from_le_bytes(new.try_into().unwrap())
            };
            let swap = |wins: bool| if wins { operand } else { old };
            let logical = |value: bool| $type::from(value);
            prop_assert_eq!(run(Op::Minimum), old.min(operand));
            prop_assert_eq!(run(Op::Maximum), old.max(operand));
            prop_assert_eq!(run(Op::Sum), old.wrapping_add(operand));
            prop_assert_eq!(run(Op::Product), old.wrapping_mul(operand));
            prop_assert_eq!(run(Op::Difference), old.wrapping_sub(operand));
            prop_assert_eq!(run(Op::LogicalOr), logical(old != 0 || operand != 0));
            prop_assert_eq!(run(Op::LogicalAnd), logical(old != 0 && operand != 0));
            prop_assert_eq!(run(Op::LogicalXor), logical((old != 0) ^ (operand != 0)));
            prop_assert_eq!(run(Op::BitwiseOr), old | operand);
            prop_assert_eq!(run(Op::BitwiseAnd), old & operand);
            prop_assert_eq!(run(Op::BitwiseXor), old ^ operand);
            prop_assert_eq!(run(Op::Read), old);
            prop_assert_eq!(run(Op::Write), operand);
            prop_assert_eq!(run(Op::SwapIfEqual), swap(compare == old));
            prop_assert_eq!(run(Op::SwapIfNotEqual), swap(compare != old));
            prop_assert_eq!(run(Op::SwapIfLessOrEqual), swap(compare <= old));
            prop_assert_eq!(run(Op::SwapIfLess), swap(compare < old));
            prop_assert_eq!(run(Op::SwapIfGreaterOrEqual), swap(compare >= old));
            prop_assert_eq!(run(Op::SwapIfGreater), swap(compare > old));
            prop_assert_eq!(run(Op::MaskedSwap), (operand & compare) | (old & !compare));
        }
    )*}};
}
integer_properties! {
    int8 i8 Int8; int16 i16 Int16; int32 i32 Int32; int64 i64 Int64; int128 i128 Int128;
    uint8 u8 Uint8; uint16 u16 Uint16; uint32 u32 Uint32; uint64 u64 Uint64; uint128 u128 Uint128;
}

macro_rules! float_properties {
    ($($name:ident $type:ident $datatype:ident $complex:ident;)*) => {proptest! {$(
        #[test]
        fn $name(
            old in prop::num::$type::ANY, operand in prop::num::$type::ANY, compare in prop::num::$type::ANY, same: bool
        ) {
            let compare = if same { old } else { compare };
            let run = |operation| {
                let new = run(operation, Datatype::$datatype, &old.to_le_bytes(), &operand.to_le_bytes(),
                    &compare.to_le_bytes());
                $type::from_le_bytes(new.try_into().unwrap())
            };
            let equal = |a: $type, b: $type| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
            let swap = |wins: bool| if wins { operand } else { old };
            prop_assert!(equal(run(Op::Minimum), swap(operand < old || (old.is_nan() && !operand.is_nan()))));
            prop_assert!(equal(run(Op::Maximum), swap(operand > old || (old.is_nan() && !operand.is_nan()))));
            prop_assert!(equal(run(Op::Sum), old + operand));
            prop_assert!(equal(run(Op::Product), old * operand));
            prop_assert!(equal(run(Op::Difference), old - operand));
            prop_assert_eq!(run(Op::LogicalOr) == 1.0, old != 0.0 || operand != 0.0);
            prop_assert_eq!(run(Op::LogicalAnd) == 1.0, old != 0.0 && operand != 0.0);
            prop_assert_eq!(run(Op::LogicalXor) == 1.0, (old != 0.0) ^ (operand != 0.0));
            prop_assert_eq!(run(Op::Read).to_bits(), old.to_bits());
            prop_assert_eq!(run(Op::Write).to_bits(), operand.to_bits());
            prop_assert_eq!(run(Op::SwapIfEqual).to_bits(), swap(compare == old).to_bits());
            prop_assert_eq!(run(Op::SwapIfNotEqual).to_bits(), swap(compare != old).to_bits());
            prop_assert_eq!(run(Op::SwapIfLessOrEqual).to_bits(), swap(compare <= old).to_bits());
            prop_assert_eq!(run(Op::SwapIfGreater).to_bits(), swap(compare > old).to_bits());

            let complex = |operation| {
                let pair = |a: $type, b: $type| [a.to_le_bytes(), b.to_le_bytes()].concat();
                let new = super::tests::run(operation, Datatype::$complex, &pair(old, operand), &pair(compare, old), &[
                    0; 2 * size_of::<$type>()
                ][..]);
                let (real, imaginary) = new.split_at(size_of::<$type>());
                ($type::from_le_bytes(real.try_into().unwrap()), $type::from_le_bytes(imaginary.try_into().unwrap()))
            };
            let (real, imaginary) = complex(Op::Sum);
            prop_assert!(equal(real, old + compare) && equal(imaginary, operand + old));
            let (real, imaginary) = complex(Op::Product);
            prop_assert!(equal(real, old * compare - operand * old) && equal(imaginary, old * old + operand * compare));
        }
    )*}};
}
float_properties! { binary32 f32 Binary32 Complex32; binary64 f64 Binary64 Complex64; }

/// The value of bits, computed from the definition of the format and nothing else.
fn value(bits: u16, exponent_bits: u32, significand_bits: u32, infinities: bool) -> f64 {
    let width = exponent_bits + significand_bits;
    let sign = if bits >> width & 1 == 1 { -1.0 } else { 1.0 };
    let exponent = i32::from(bits >> significand_bits & ((1 << exponent_bits) - 1));
    let fraction = f64::from(bits & ((1 << significand_bits) - 1)) / f64::from(1u32 << significand_bits);
    let bias = (1 << (exponent_bits - 1)) - 1;
    let largest = exponent == (1 << exponent_bits) - 1;
    match (largest, infinities, fraction) {
        (true, true, 0.0) => sign * f64::INFINITY,
        (true, true, _) => f64::NAN,
        (true, false, f) if f == 1.0 - 1.0 / f64::from(1u32 << significand_bits) => f64::NAN,
        _ if exponent == 0 => sign * fraction * 2f64.powi(1 - bias),
        _ => sign * (1.0 + fraction) * 2f64.powi(exponent - bias),
    }
}

const FORMATS: [(Format, u32, u32, bool); 4] =
    [(BINARY16, 5, 10, true), (BFLOAT16, 8, 7, true), (E4M3, 4, 3, false), (E5M2, 5, 2, true)];

#[test]
fn every_small_float_decodes_to_its_definition_and_back() {
    for (format, exponent_bits, significand_bits, infinities) in FORMATS {
        let width = 1 + exponent_bits + significand_bits;
        for bits in 0..=u16::MAX >> (16 - width) {
            let expected = value(bits, exponent_bits, significand_bits, infinities);
            let decoded = format.decode(bits);
            if expected.is_nan() {
                assert!(decoded.is_nan() && format.decode(format.encode(decoded)).is_nan(), "{format:?} {bits:#x}");
            } else {
                assert_eq!(decoded.to_bits(), expected.to_bits(), "{format:?} {bits:#x}");
                assert_eq!(format.encode(decoded), bits, "{format:?} {bits:#x}");
            }
        }
    }
}

#[test]
fn between_neighbours_the_nearest_is_taken_and_of_two_the_even_one() {
    for (format, exponent_bits, significand_bits, _) in FORMATS {
        let sign = 1u16 << (exponent_bits + significand_bits);
        for low in 0..sign - 1 {
            let (a, b) = (format.decode(low), format.decode(low + 1));
            if !b.is_finite() || !a.is_finite() {
                continue;
            }
            let middle = a + (b - a) / 2.0;
            let even = if low & 1 == 0 { low } else { low + 1 };
            for negative in [0, sign] {
                let flip = |x: f64| if negative == 0 { x } else { -x };
                assert_eq!(format.encode(flip(middle)), even | negative, "{format:?} {low:#x}");
                assert_eq!(format.encode(flip(middle.next_down())), low | negative, "{format:?} {low:#x}");
                assert_eq!(format.encode(flip(middle.next_up())), (low + 1) | negative, "{format:?} {low:#x}");
            }
        }
    }
}

#[test]
fn too_large_becomes_infinity_or_nan() {
    assert_eq!(BINARY16.encode(65_519.9), 0x7bff);
    assert_eq!(BINARY16.encode(65_520.0), 0x7c00);
    assert_eq!(BINARY16.encode(-1e300), 0xfc00);
    assert_eq!(BINARY16.encode(f64::INFINITY), 0x7c00);
    assert_eq!(BFLOAT16.encode(f64::from(f32::MAX)), 0x7f80);
    assert_eq!(E5M2.encode(61_439.0), 0x7b);
    assert_eq!(E5M2.encode(61_440.0), 0x7c);
    assert_eq!(E4M3.encode(464.0), 0x7e);
    assert_eq!(E4M3.encode(464.1), 0x7f);
    assert_eq!(E4M3.encode(f64::NEG_INFINITY), 0xff);
    for (format, ..) in FORMATS {
        assert_eq!(format.encode(0.0), 0);
        assert_eq!(format.decode(format.encode(-0.0)).to_bits(), (-0.0f64).to_bits());
        assert_eq!(format.encode(1e-300), 0);
        assert_eq!(format.encode(f64::MIN_POSITIVE / 4.0), 0);
        assert!(format.decode(format.encode(f64::NAN)).is_nan());
    }
}

#[test]
fn every_sum_and_product_of_eight_bit_floats_is_rounded_once() {
    for (datatype, format) in [(Datatype::Float8E4M3, E4M3), (Datatype::Float8E5M2, E5M2)] {
        for old in 0..=255u8 {
            for operand in 0..=255u8 {
                // Exact in binary64: the exponents of these formats lie close together.
                let (a, b) = (format.decode(u16::from(old)), format.decode(u16::from(operand)));
                for (operation, exact) in [(Op::Sum, a + b), (Op::Product, a * b), (Op::Difference, a - b)] {
                    let new = run(operation, datatype, &[old], &[operand], &[]);
                    assert_eq!(u16::from(new[0]) & 0x7f, format.encode(exact) & 0x7f, "{operation:?} {a} {b}");
                    assert!(exact.is_nan() || u16::from(new[0]) == format.encode(exact));
                }
                let least = run(Op::Minimum, datatype, &[old], &[operand], &[])[0];
                assert_eq!(least, if b < a || (a.is_nan() && !b.is_nan()) { operand } else { old });
            }
        }
    }
}
