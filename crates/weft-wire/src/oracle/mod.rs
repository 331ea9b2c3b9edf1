//! Decoders written by hand with the views of [`header`](crate::header), for the protocols that come with Weft.
//!
//! They give the same commands as the tables. Tests hold the two against each other, and the benchmark uses these as the
//! yardstick for speed, so they are written as a person writes a fast decoder of one protocol: one `match` on the
//! opcode, every length checked once. The product does not call them.
//!
//! | function | takes | read |
//! |---|---|---|
//! | [`roce`] | a whole frame: RoCEv2, RoCEv1, InfiniBand | `roce.rs` |
//! | [`iwarp`] | one FPDU, markers taken out | `iwarp.rs` |
//! | [`mpa`] | one MPA start frame with its private data | `iwarp.rs` |
//! | [`srdma`] | one UDP payload | `srdma.rs` |
//! | [`Checksums`] | what the first, second and fourth take | `checksums.rs` |

mod checksums;
mod iwarp;
mod roce;
mod srdma;

use core::fmt;

use crate::command::{Command, Flags, KIND_BITS, Slot};
use crate::header::HeaderError;

pub use checksums::Checksums;
pub use iwarp::{iwarp, mpa};
pub use roce::{Found, Transport, roce};
pub use srdma::srdma;

/// A decoded packet: what [`table::Decoded`](crate::table::Decoded) says, less the numbers of its tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decoded {
    /// Bytes of headers.
    pub header_length: u16,
    /// Bytes to trim behind the payload: pad and trailers.
    pub trim: u16,
    /// Bytes of payload between them.
    pub payload_length: u32,
    /// What the packet asks for.
    pub command: Command,
}

/// Why bytes are no packet of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A header is cut short or not what it should be.
    Header(HeaderError),
    /// Another protocol, or a part of a packet.
    NotMine,
    /// A length claims more bytes than there are, or fewer than its own header has.
    Lies,
    /// More headers than [`LAYERS_MAX`](crate::limits::LAYERS_MAX).
    TooManyLayers,
    /// No such opcode.
    UnknownOpcode(u8),
    /// The packet ends inside its headers or trailers.
    Truncated,
    /// A field has a value that the protocol forbids: a version, a queue, a length, a magic number.
    Forbidden,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Header(error) => error.fmt(f),
            Refusal::NotMine => f.write_str("not a packet of this protocol"),
            Refusal::Lies => f.write_str("a length does not fit the bytes that are there"),
            Refusal::TooManyLayers => f.write_str("too many headers in front"),
            Refusal::UnknownOpcode(opcode) => write!(f, "unknown opcode {opcode:#04x}"),
            Refusal::Truncated => f.write_str("cut short in its headers or trailers"),
            Refusal::Forbidden => f.write_str("a field has a value that the protocol forbids"),
        }
    }
}

impl core::error::Error for Refusal {}

impl From<HeaderError> for Refusal {
    #[inline]
    fn from(error: HeaderError) -> Refusal {
        Refusal::Header(error)
    }
}

impl Decoded {
    /// The payload, given the bytes from the protocol's first header to its last trailer.
    #[must_use]
    pub fn payload<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        let start = usize::from(self.header_length);
        bytes.get(start..start + self.payload_length as usize).unwrap_or(&[])
    }

    /// Starts on a packet of `length` bytes with that many of headers, pad and trailers: notes the lengths, and takes
    /// the payload's as that of the operation until a header says otherwise.
    #[inline(always)]
    fn lay_out(
        &mut self,
        length: usize,
        headers: usize,
        pad: usize,
        trailers: usize,
        command: Command,
    ) -> Result<(), Refusal> {
        let payload = length.checked_sub(headers + pad + trailers).ok_or(Refusal::Truncated)?;
        self.header_length = headers as u16;
        self.trim = (pad + trailers) as u16;
        self.payload_length = u32::try_from(payload).map_err(|_| Refusal::Lies)?;
        self.command = command;
        self.set(Slot::Length, payload as u64);
        Ok(())
    }

    #[inline(always)]
    #[expect(clippy::indexing_slicing, reason = "a command has all slots")]
    fn add_flags(&mut self, flags: Flags) {
        self.command.slots[Slot::Head as usize] |= u64::from(flags.0) << KIND_BITS;
    }

    #[inline(always)]
    #[expect(clippy::indexing_slicing, reason = "a command has all slots")]
    fn set(&mut self, slot: Slot, value: impl Into<u64>) {
        self.command.slots[slot as usize] = value.into();
    }
}

/// What the fields of a header mean in a command.
trait Fill {
    /// Fills a command from the header at the front of `bytes`.
    fn fill(bytes: &[u8], out: &mut Decoded) -> Result<(), Refusal>;
}

/// Fills from the header at the front of `bytes` and gives what follows it.
#[inline(always)]
fn filled<'a, H: Fill>(bytes: &'a [u8], out: &mut Decoded, length: usize) -> Result<&'a [u8], Refusal> {
    H::fill(bytes, out)?;
    bytes.get(length..).ok_or(Refusal::Truncated)
}
