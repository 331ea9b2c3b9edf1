//! Atomic operations (P-4.7): codes, datatypes, which goes with which, and what one does to one element.
//!
//! The arithmetic here is on values; making an update of shared memory atomic is the memory's business
//! ([`Memory::atomic`](crate::memory::Memory::atomic)).

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
