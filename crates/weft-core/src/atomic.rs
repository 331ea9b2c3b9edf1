//! Atomic operations (P-4.7): codes, datatypes, which goes with which, and what one does to one element.
//!
//! The arithmetic here is on values ([`apply`]); making an update of shared memory atomic is the memory's business
//! ([`Memory::atomic`](crate::memory::Memory::atomic)).

mod arithmetic;
mod small_float;
#[cfg(test)]
mod tests;

pub use arithmetic::apply;

use crate::limits::ATOMIC_MAX_BYTES;
use crate::memory::Fault;

/// Bytes of the longest element that we update: what [`apply`] writes is never longer.
pub const ELEMENT_MAX_BYTES: usize = 16;

/// An atomic operation as it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicCall {
    /// Code of the operation (P-4.7).
    pub operation: u8,
    /// Code of the datatype.
    pub datatype: u8,
    /// Elements.
    pub count: u16,
}

impl AtomicCall {
    /// A call of these, on `count` elements.
    #[must_use]
    pub fn new(operation: AtomicOperation, datatype: Datatype, count: u16) -> AtomicCall {
        AtomicCall { operation: operation.code(), datatype: datatype.code(), count }
    }

    /// Whether both codes are known, go together and with the class of the opcode, and are done by this node:
    /// otherwise [`Fault::NotSupported`], which the target answers with *not supported*. Says nothing about lengths.
    pub fn check(self, class: AtomicClass) -> Result<(AtomicOperation, Datatype), Fault> {
        match (AtomicOperation::from_code(self.operation), Datatype::from_code(self.datatype)) {
            (Some(operation), Some(datatype)) if operation.is_of(class) && operation.is_done_on(datatype) => {
                Ok((operation, datatype))
            }
            _ => Err(Fault::NotSupported),
        }
    }

    /// Bytes of all elements: what the call reaches in memory, and what its results need. `None` for a datatype that
    /// does not exist.
    #[must_use]
    pub fn bytes(self) -> Option<usize> {
        Some(Datatype::from_code(self.datatype)?.bytes() * usize::from(self.count))
    }

    /// Bytes that the payload of a request must have: compare values and operands (P-4.7). `None` for codes that do
    /// not exist.
    #[must_use]
    pub fn payload_bytes(self) -> Option<usize> {
        let bytes = self.bytes()?;
        Some(match AtomicOperation::from_code(self.operation)? {
            AtomicOperation::Read => 0,
            operation if operation.is_of(AtomicClass::Compare) => 2 * bytes,
            _ => bytes,
        })
    }
}

/// The kinds of opcodes that carry atomics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AtomicClass {
    /// Without result (0x20).
    Plain,
    /// The values from before are the result (0x21).
    Fetch,
    /// As fetch, with compare values (0x22).
    Compare,
}

/// Writes an enum with codes, names and the way back from a code.
macro_rules! coded {
    ($(#[$about:meta])* $type:ident { $($(#[$doc:meta])* $variant:ident = $code:literal, $name:literal;)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum $type { $($(#[$doc])* $variant = $code,)* }

        impl $type {
            /// All of them, by code.
            pub const ALL: &[$type] = &[$($type::$variant,)*];

            /// What a code on the wire means.
            #[must_use]
            pub const fn from_code(code: u8) -> Option<$type> {
                match code { $($code => Some($type::$variant),)* _ => None }
            }

            /// Its code on the wire.
            #[must_use]
            pub const fn code(self) -> u8 {
                self as u8
            }

            /// Its name for people.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $($type::$variant => $name,)* }
            }
        }
    };
}

coded! {
    /// What is done to an element. Logical operations take 0 for false and give 1 for true, in the element's own
    /// datatype.
    AtomicOperation {
        /// The lesser of old and operand. Of floats: a number wins over a NaN, and of equals (zeros of either sign,
        /// two NaNs) the old one stays.
        Minimum = 0x01, "minimum";
        /// The greater of old and operand; floats as with the minimum.
        Maximum = 0x02, "maximum";
        /// Old + operand.
        Sum = 0x03, "sum";
        /// Old × operand.
        Product = 0x04, "product";
        /// Old − operand.
        Difference = 0x05, "difference";
        /// Either is not 0.
        LogicalOr = 0x06, "logical or";
        /// Neither is 0.
        LogicalAnd = 0x07, "logical and";
        /// One of them is 0, the other is not.
        LogicalXor = 0x08, "logical xor";
        /// Old | operand.
        BitwiseOr = 0x09, "bitwise or";
        /// Old & operand.
        BitwiseAnd = 0x0a, "bitwise and";
        /// Old ^ operand.
        BitwiseXor = 0x0b, "bitwise xor";
        /// Nothing: only the result counts.
        Read = 0x0c, "read";
        /// The operand.
        Write = 0x0d, "write";
        /// The operand if compare = old.
        SwapIfEqual = 0x10, "swap if equal";
        /// The operand if compare ≠ old.
        SwapIfNotEqual = 0x11, "swap if not equal";
        /// The operand if compare ≤ old.
        SwapIfLessOrEqual = 0x12, "swap if less or equal";
        /// The operand if compare < old.
        SwapIfLess = 0x13, "swap if less";
        /// The operand if compare ≥ old.
        SwapIfGreaterOrEqual = 0x14, "swap if greater or equal";
        /// The operand if compare > old.
        SwapIfGreater = 0x15, "swap if greater";
        /// (operand & compare) | (old & ~compare).
        MaskedSwap = 0x16, "masked swap";
    }
}

impl AtomicOperation {
    /// Whether opcodes of this class may ask for it (P-4.7).
    #[must_use]
    pub const fn is_of(self, class: AtomicClass) -> bool {
        match class {
            AtomicClass::Plain => self.code() < 0x10 && !matches!(self, AtomicOperation::Read),
            AtomicClass::Fetch => self.code() < 0x10,
            AtomicClass::Compare => self.code() >= 0x10,
        }
    }

    /// How many elements one call can have at most; 0: this node does not do it on the datatype, or it is not of the class.
    #[must_use]
    pub const fn count_max(self, datatype: Datatype, class: AtomicClass) -> u16 {
        if !self.is_of(class) || !self.is_done_on(datatype) {
            return 0;
        }
        let bytes = match class {
            AtomicClass::Compare => 2 * datatype.bytes(),
            AtomicClass::Plain | AtomicClass::Fetch => datatype.bytes(),
        };
        (ATOMIC_MAX_BYTES as usize / bytes) as u16
    }

    /// Whether it exists for the datatype (P-4.7), and this node does it: nothing is done on x87 numbers.
    #[must_use]
    pub const fn is_done_on(self, datatype: Datatype) -> bool {
        use AtomicOperation as Op;
        match datatype.kind() {
            Kind::Extended => false,
            Kind::Signed | Kind::Unsigned => true,
            Kind::Float => !matches!(self, Op::BitwiseOr | Op::BitwiseAnd | Op::BitwiseXor | Op::MaskedSwap),
            Kind::Complex => matches!(
                self,
                Op::Sum
                    | Op::Product
                    | Op::Difference
                    | Op::LogicalOr
                    | Op::LogicalAnd
                    | Op::LogicalXor
                    | Op::Read
                    | Op::Write
                    | Op::SwapIfEqual
                    | Op::SwapIfNotEqual
            ),
        }
    }
}

/// What sort of number a datatype holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Two's complement.
    Signed,
    /// Without sign.
    Unsigned,
    /// Floating point that we compute.
    Float,
    /// Real part, then imaginary part.
    Complex,
    /// x87 extended, also complex, which we do not compute.
    Extended,
}

coded! {
    /// What an element is.
    Datatype {
        /// Signed, 1 byte.
        Int8 = 0x01, "int8";
        /// Signed, 2 bytes.
        Int16 = 0x02, "int16";
        /// Signed, 4 bytes.
        Int32 = 0x03, "int32";
        /// Signed, 8 bytes.
        Int64 = 0x04, "int64";
        /// Signed, 16 bytes.
        Int128 = 0x05, "int128";
        /// Unsigned, 1 byte.
        Uint8 = 0x11, "uint8";
        /// Unsigned, 2 bytes.
        Uint16 = 0x12, "uint16";
        /// Unsigned, 4 bytes.
        Uint32 = 0x13, "uint32";
        /// Unsigned, 8 bytes.
        Uint64 = 0x14, "uint64";
        /// Unsigned, 16 bytes.
        Uint128 = 0x15, "uint128";
        /// IEEE 754 single.
        Binary32 = 0x20, "binary32";
        /// IEEE 754 double.
        Binary64 = 0x21, "binary64";
        /// IEEE 754 half.
        Binary16 = 0x22, "binary16";
        /// The upper half of a binary32.
        Bfloat16 = 0x23, "bfloat16";
        /// 4 bits of exponent, 3 of significand, no infinities: what is too large becomes NaN.
        Float8E4M3 = 0x24, "float8 E4M3";
        /// 5 bits of exponent, 2 of significand.
        Float8E5M2 = 0x25, "float8 E5M2";
        /// x87 extended in 16 bytes.
        Extended = 0x28, "x87 extended";
        /// Two binary32.
        Complex32 = 0x30, "complex of binary32";
        /// Two binary64.
        Complex64 = 0x31, "complex of binary64";
        /// Two x87 extended.
        ComplexExtended = 0x38, "complex of x87 extended";
    }
}

impl Datatype {
    /// Bytes of an element.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Datatype::Int8 | Datatype::Uint8 | Datatype::Float8E4M3 | Datatype::Float8E5M2 => 1,
            Datatype::Int16 | Datatype::Uint16 | Datatype::Binary16 | Datatype::Bfloat16 => 2,
            Datatype::Int32 | Datatype::Uint32 | Datatype::Binary32 => 4,
            Datatype::Int64 | Datatype::Uint64 | Datatype::Binary64 | Datatype::Complex32 => 8,
            Datatype::Int128 | Datatype::Uint128 | Datatype::Extended | Datatype::Complex64 => 16,
            Datatype::ComplexExtended => 32,
        }
    }

    /// What an element's address must be a multiple of. Of complex numbers it is what their parts need, as compilers place
    /// them.
    #[must_use]
    pub const fn alignment(self) -> usize {
        match self {
            Datatype::Complex32 => 4,
            Datatype::Complex64 => 8,
            Datatype::ComplexExtended => 16,
            _ => self.bytes(),
        }
    }

    /// What sort of number it is.
    #[must_use]
    pub const fn kind(self) -> Kind {
        match self {
            Datatype::Int8 | Datatype::Int16 | Datatype::Int32 | Datatype::Int64 | Datatype::Int128 => Kind::Signed,
            Datatype::Uint8 | Datatype::Uint16 | Datatype::Uint32 | Datatype::Uint64 | Datatype::Uint128 => {
                Kind::Unsigned
            }
            Datatype::Binary32
            | Datatype::Binary64
            | Datatype::Binary16
            | Datatype::Bfloat16
            | Datatype::Float8E4M3
            | Datatype::Float8E5M2 => Kind::Float,
            Datatype::Complex32 | Datatype::Complex64 => Kind::Complex,
            Datatype::Extended | Datatype::ComplexExtended => Kind::Extended,
        }
    }
}
