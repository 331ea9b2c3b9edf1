//! Floating point of 8 and 16 bits, through binary64.
//!
//! Sums, differences and products of these formats, computed in binary64 and rounded once to nearest even, are the
//! correctly rounded ones: 53 bits of significand are more than twice those of any of them, and no product of theirs
//! is subnormal in binary64.

/// A binary format of at most 16 bits: sign, exponent, significand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Format {
    exponent_bits: u32,
    significand_bits: u32,
    /// Whether the largest exponent means infinity and NaN; if not, only all ones is NaN and there is no infinity.
    infinities: bool,
}

pub(super) const BINARY16: Format = Format { exponent_bits: 5, significand_bits: 10, infinities: true };
pub(super) const BFLOAT16: Format = Format { exponent_bits: 8, significand_bits: 7, infinities: true };
pub(super) const E4M3: Format = Format { exponent_bits: 4, significand_bits: 3, infinities: false };
pub(super) const E5M2: Format = Format { exponent_bits: 5, significand_bits: 2, infinities: true };

const F64_BIAS: i32 = 1023;
const F64_SIGNIFICAND_BITS: u32 = 52;

impl Format {
    const fn bias(self) -> i32 {
        (1 << (self.exponent_bits - 1)) - 1
    }

    const fn sign(self) -> u64 {
        1 << (self.exponent_bits + self.significand_bits)
    }

    /// What is above the greatest number: infinity, or the one NaN.
    const fn overflow(self) -> u64 {
        if self.infinities { self.sign() - (1 << self.significand_bits) } else { self.sign() - 1 }
    }

    /// A quiet NaN.
    const fn nan(self) -> u64 {
        if self.infinities { self.overflow() | 1 << (self.significand_bits - 1) } else { self.overflow() }
    }

    /// The value of these bits, exactly.
    pub(super) fn decode(self, bits: u16) -> f64 {
        let bits = u64::from(bits);
        let magnitude = bits & (self.sign() - 1);
        let exponent = (magnitude >> self.significand_bits) as i32;
        let significand = magnitude & ((1 << self.significand_bits) - 1);
        let value = if magnitude > self.overflow() || (!self.infinities && magnitude == self.overflow()) {
            f64::NAN
        } else if magnitude == self.overflow() {
            f64::INFINITY
        } else {
            let hidden = if exponent == 0 { 0 } else { 1 << self.significand_bits };
            let scale = exponent.max(1) - self.bias() - self.significand_bits as i32;
            (hidden + significand) as f64 * power_of_two(scale)
        };
        if bits & self.sign() == 0 { value } else { -value }
    }

    /// The bits of the nearest value, of two the even one.
    pub(super) fn encode(self, value: f64) -> u16 {
        let bits = value.to_bits();
        let sign = if value.is_sign_negative() { self.sign() } else { 0 };
        if value.is_nan() {
            return (sign | self.nan()) as u16;
        }
        let field = (bits >> F64_SIGNIFICAND_BITS & 0x7ff) as i32;
        let hidden = if field == 0 { 0 } else { 1 << F64_SIGNIFICAND_BITS };
        let significand = bits & ((1 << F64_SIGNIFICAND_BITS) - 1) | hidden;
        // The exponent as this format has it; what is below 1 is subnormal and loses further bits.
        let exponent = field.max(1) - F64_BIAS + self.bias();
        let lost = (F64_SIGNIFICAND_BITS - self.significand_bits).saturating_add_signed((1 - exponent).max(0));
        let rounded = round_to_even(significand, lost);
        // The hidden bit, and a carry out of rounding, count the exponent up by one.
        let magnitude = ((exponent.max(1) as u64 - 1) << self.significand_bits) + rounded;
        (sign | magnitude.min(self.overflow())) as u16
    }
}

/// 2 to the `exponent`, which must be one of a normal binary64.
fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((exponent + F64_BIAS) as u64) << F64_SIGNIFICAND_BITS)
}

/// `value` / 2^`bits`, to nearest, of two the even one.
fn round_to_even(value: u64, bits: u32) -> u64 {
    if bits > 54 {
        return 0; // less than half of the least, as a significand has 53 bits
    }
    let (kept, rest, half) = (value >> bits, value & ((1 << bits) - 1), 1 << (bits - 1));
    kept + u64::from(rest > half || (rest == half && kept & 1 == 1))
}
