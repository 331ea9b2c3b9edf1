//! What the engine asks of memory. It never sees a pointer: it names memory by keys and logical addresses, has them
//! translated into [`Granted`] pieces, and reads and writes those.
//!
//! `weft-mem` implements [`Memory`] for the process's own memory, `weft-sim` for memory that checks every access.

use core::fmt;

use crate::atomic::AtomicCall;

/// Names a buffer of the node's own user (a list of pieces, addressed from 0) while an operation uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LocalKey(pub u32);

impl LocalKey {
    /// No buffer: an operation without bytes.
    pub const NONE: LocalKey = LocalKey(u32::MAX);
}

/// What an access wants to do. Rights are sets of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Access(pub u8);

impl Access {
    /// Nothing.
    pub const NONE: Access = Access(0);
    /// A peer may read.
    pub const REMOTE_READ: Access = Access(1);
    /// A peer may write.
    pub const REMOTE_WRITE: Access = Access(2);
    /// A peer may do atomics.
    pub const REMOTE_ATOMIC: Access = Access(4);
    /// A peer may make the key invalid.
    pub const REMOTE_INVALIDATE: Access = Access(8);
    /// All that a peer can do to memory; the key stays ours.
    pub const REMOTE: Access = Access(7);

    /// Whether all of `wanted` is in here.
    #[must_use]
    pub const fn contains(self, wanted: Access) -> bool {
        self.0 & wanted.0 == wanted.0
    }
}

impl core::ops::BitOr for Access {
    type Output = Access;
    fn bitor(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }
}

/// A contiguous piece of memory after translation: a slot of the memory's own tables, and where in it.
///
/// Made by [`Memory::local`] and [`Memory::remote`] after their checks, and good until the next call that can register
/// or release memory. An implementation checks it again when it is used, so that a made-up one can reach nothing that
/// is not registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// Which registration.
    pub slot: u32,
    /// Its generation, so that a slot that was used again is noticed.
    pub generation: u32,
    /// First byte, from the beginning of the slot's memory.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

impl Granted {
    /// The first `length` bytes of it.
    #[must_use]
    pub fn first(self, length: u64) -> Granted {
        Granted { length: self.length.min(length), ..self }
    }
}

/// Why memory cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No such key, or it is from before a deregistration.
    UnknownKey,
    /// The range leaves the registered one, or wraps.
    OutOfBounds,
    /// The registration does not give this right.
    Forbidden,
    /// The address is not a multiple of the element's size.
    Misaligned,
    /// The operation is not done for this datatype or memory.
    NotSupported,
    /// Memory or its device failed.
    Failed,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::UnknownKey => "no memory is registered under this key (any more): get the key anew from its owner",
            Fault::OutOfBounds => "the range leaves the registered memory: check address and length",
            Fault::Forbidden => "the memory was registered without this right: register it with the access needed",
            Fault::Misaligned => "atomics need an address that is a multiple of the element's size",
            Fault::NotSupported => "this memory does not support the operation on this datatype",
            Fault::Failed => "the memory or its device failed",
        })
    }
}

impl core::error::Error for Fault {}

/// Memory of a node: the buffers of its user's operations, and the regions that peers may reach.
pub trait Memory {
    /// Bytes of a local buffer.
    fn local_length(&self, key: LocalKey) -> Option<u64>;

    /// Translates a local range: the contiguous piece at its beginning, at most `length` bytes, at least one unless
    /// `length` is 0. Ask again for what is behind it.
    fn local(&self, key: LocalKey, offset: u64, length: u64) -> Result<Granted, Fault>;

    /// Checks that a peer may do `access` to *all* of `length` bytes at `address` of the region `key`, for this local
    /// endpoint; gives the contiguous piece at its beginning.
    fn remote(&self, key: u64, address: u64, length: u64, access: Access) -> Result<Granted, Fault>;

    /// Copies out of memory; `into` is as long as the piece.
    fn read(&self, from: Granted, into: &mut [u8]) -> Result<(), Fault>;

    /// Copies into memory; `bytes` is as long as the piece.
    fn write(&mut self, to: Granted, bytes: &[u8]) -> Result<(), Fault>;

    /// Continues a CRC-32C (0 begins one) over a piece. See [`weft_wire::checksum`].
    fn crc32c(&self, crc: u32, of: Granted) -> Result<u32, Fault>;

    /// Continues a CRC-32C over the first `summed` bytes of a piece that is about to be sent. Memory that has to be fetched
    /// is fetched whole.
    fn crc32c_to_send(&self, crc: u32, of: Granted, summed: u64) -> Result<u32, Fault> {
        if summed == 0 { Ok(crc) } else { self.crc32c(crc, of.first(summed)) }
    }

    /// Continues a CRC-32C over bytes that are not in this memory. Here because the fast ways are unsafe code.
    fn crc32c_bytes(&self, crc: u32, bytes: &[u8]) -> u32;

    /// Updates `call.count` elements, each atomically, from packed little-endian operands. `results` is filled with the
    /// values from before where it is not empty; otherwise nobody wants them.
    fn atomic(
        &mut self,
        to: Granted,
        call: AtomicCall,
        operands: &[u8],
        compares: &[u8],
        results: &mut [u8],
    ) -> Result<(), Fault>;

    /// Makes earlier writes to the range visible to every reader, and durable when asked.
    fn flush(&mut self, range: Granted, durable: bool) -> Result<(), Fault>;

    /// Makes a key unusable at once, if its registration permits peers to.
    fn invalidate(&mut self, key: u64) -> Result<(), Fault>;

    /// The engine is done with a local buffer for which nobody gets a completion.
    fn release(&mut self, key: LocalKey);
}
