//! The property tests that every header passes, written once.

/// For `$header`: a struct survives the wire, bytes survive the struct, and a header cut short anywhere is
/// `Truncated`.
///
/// The strategies give values that fit their fields. `valid` repairs random bytes where the layout has bits that are
/// not free, such as an IP version.
macro_rules! round_trip {
    ($test:ident, $header:ident { $($field:ident : $strategy:expr),+ $(,)? } $(, valid $repair:expr)?) => {
        mod $test {
            use super::*;
            use proptest::prelude::*;

            proptest! {
                #![proptest_config(ProptestConfig::with_cases(256))]

                #[test]
                fn a_struct_survives_the_wire($($field in $strategy),+) {
                    let header = $header { $($field),+ };
                    // Noise in the buffer shows a bit that `emit` forgets, room behind it one that it invents.
                    let mut out = [0xa5; $header::LEN + 3];
                    header.emit(&mut out).unwrap();
                    prop_assert_eq!(&out[$header::LEN..], &[0xa5; 3]);
                    prop_assert_eq!($header::parse(&out), Ok(header));
                }

                #[test]
                fn bytes_survive_the_struct(bytes in any::<[u8; $header::LEN]>()) {
                    $(let bytes = $repair(bytes);)?
                    let mut out = [0xa5; $header::LEN];
                    $header::parse(&bytes).unwrap().emit(&mut out).unwrap();
                    prop_assert_eq!(out, bytes);
                }

                #[test]
                fn cut_short_is_truncated(bytes in any::<[u8; $header::LEN]>()) {
                    $(let bytes = $repair(bytes);)?
                    let header = $header::parse(&bytes).unwrap();
                    for have in 0..$header::LEN {
                        let error = Err($crate::header::HeaderError::Truncated { needed: $header::LEN, have });
                        prop_assert_eq!($header::parse(&bytes[..have]), error);
                        prop_assert_eq!(header.emit(&mut [0; $header::LEN][..have]).map(|()| header), error);
                    }
                }
            }
        }
    };
}

/// Values of `$type` that fit in `$bits` bits.
macro_rules! bits {
    ($type:ty, $bits:literal) => {
        0..=(<$type>::MAX >> (<$type>::BITS - $bits))
    };
}
