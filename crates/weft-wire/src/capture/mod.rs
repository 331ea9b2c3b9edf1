//! Capture files as bytes: pcap and pcapng are read, ERF records in them opened, and pcap is written.
//!
//! Nothing here touches a file. [`Reader`] is handed whatever bytes the caller has and says how many it is done with;
//! [`mod@write`] gives the headers that go before the packets. Read [`Reader`] first, then `pcap.rs` and `pcapng.rs`,
//! which hold one format each, and `erf.rs`.

mod byte_order;
mod erf;
mod error;
mod interface;
pub mod limits;
mod link_type;
mod pcap;
mod pcapng;
#[cfg(test)]
mod tests;
pub mod write;

pub use erf::ErfFault;
pub use error::CaptureError;
pub use link_type::LinkType;

use pcap::{Pcap, Variant};
use pcapng::Pcapng;

const NANOSECONDS_PER_SECOND: u64 = 1_000_000_000;
const MAGIC_LENGTH: usize = 4;
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// An incremental reader of a capture file in any of the known formats, which it recognises by itself.
///
/// The driving contract: the caller keeps a buffer with the bytes that come next in the file, and calls
/// [`next`](Self::next) with all of it. Before the following call it
/// - lets the buffer grow to `at_least` bytes after [`Step::NeedMore`], or calls [`finish`](Self::finish) with what is
///   left in it when the file has no more;
/// - drops exactly `consumed` bytes from the front of the buffer after any other step, which is always at least one
///   and never more than the buffer holds.
///
/// No step asks for more than [`limits::BUFFERED_BLOCK_LENGTH_MAX_BYTES`], whatever the file claims. An error of `next`
/// is final, and later calls repeat it; a fault that leaves the rest of the file readable comes as [`Step::Bad`].
///
/// ```
/// use weft_wire::capture::{CaptureError, Reader, Step};
///
/// fn count_packets(file: &[u8]) -> Result<usize, CaptureError> {
///     let (mut reader, mut buffer, mut packets) = (Reader::new(), file, 0);
///     loop {
///         let consumed = match reader.next(buffer)? {
///             Step::NeedMore { .. } => return reader.finish(buffer).map(|()| packets),
///             Step::Skip { consumed } => consumed,
///             Step::Bad { consumed, .. } => consumed,
///             Step::Packet { consumed, .. } => {
///                 packets += 1;
///                 consumed
///             }
///         };
///         buffer = &buffer[consumed..];
///     }
/// }
/// # assert_eq!(count_packets(&[]), Err(CaptureError::Empty));
/// ```
#[derive(Clone, Debug)]
pub struct Reader {
    state: State,
    /// File offset of the next byte that the caller hands over.
    offset: u64,
    /// File offset of the record that was looked at last, which errors name.
    record_offset: u64,
    /// Bytes of that record still to be passed over. A block without a packet may be far longer than any buffer.
    skip_remaining: usize,
}

/// One step through a capture file; see [`Reader`] for what the caller does after each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// Nothing can be said before the buffer holds at least this many bytes.
    NeedMore {
        /// The length that the buffer must reach; always more than it has.
        at_least: usize,
    },
    /// A header or block, or a part of one, with no packet in it.
    Skip {
        /// Bytes to drop from the front of the buffer.
        consumed: usize,
    },
    /// One packet.
    Packet {
        /// Bytes to drop from the front of the buffer, once `packet` is done with.
        consumed: usize,
        /// The packet, which borrows from the buffer.
        packet: Packet<'a>,
    },
    /// A malformed block or ERF record. What follows it can still be read.
    Bad {
        /// Bytes to drop from the front of the buffer.
        consumed: usize,
        /// What is wrong with the block.
        error: CaptureError,
    },
}

/// A captured packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// What the first byte of `data` belongs to.
    pub link_type: LinkType,
    /// Nanoseconds since 1970-01-01 00:00 UTC; zero for a pcapng simple packet, which has no time. An ERF record's own
    /// time counts.
    pub timestamp_ns: u64,
    /// Length on the wire, as the file or the ERF record claims it: more than `data` has when the capture cut the packet short.
    pub original_length: u32,
    /// The bytes that were captured.
    pub data: &'a [u8],
}

#[derive(Clone, Debug)]
enum State {
    /// Before the magic number, or before the whole pcap file header.
    Start,
    Pcap(Pcap),
    Pcapng(Pcapng),
    Failed(CaptureError),
}

impl Default for Reader {
    fn default() -> Self {
        Self::new()
    }
}

impl Reader {
    /// A reader at the start of a file.
    pub const fn new() -> Self {
        Self { state: State::Start, offset: 0, record_offset: 0, skip_remaining: 0 }
    }

    /// How many bytes of the file have been consumed.
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// Takes the next step; `buffer` holds the file from [`offset`](Self::offset) on.
    pub fn next<'a>(&mut self, buffer: &'a [u8]) -> Result<Step<'a>, CaptureError> {
        if self.skip_remaining > 0 {
            let consumed = self.skip_remaining.min(buffer.len());
            if consumed == 0 {
                return Ok(Step::NeedMore { at_least: 1 });
            }
            self.skip_remaining = self.skip_remaining.saturating_sub(consumed);
            self.offset = self.offset.saturating_add(consumed as u64);
            return Ok(Step::Skip { consumed });
        }
        self.record_offset = self.offset;
        let step = match &mut self.state {
            State::Start => self.start(buffer),
            State::Pcap(pcap) => pcap.next(buffer, self.offset),
            State::Pcapng(pcapng) => pcapng.next(buffer, self.offset),
            State::Failed(error) => Err(*error),
        };
        match step {
            Ok(step) => Ok(self.advance(open_erf(step, self.record_offset), buffer.len())),
            Err(error) => {
                self.state = State::Failed(error);
                Err(error)
            }
        }
    }

    /// Ends the file, with `rest` the bytes that `next` wanted more of. An error tells that the file ended where no
    /// capture ends; the packets that came before are good all the same.
    pub fn finish(mut self, rest: &[u8]) -> Result<(), CaptureError> {
        if self.skip_remaining > 0 && rest.is_empty() {
            let missing = self.skip_remaining as u64;
            return Err(CaptureError::Truncated { offset: self.record_offset, missing });
        }
        let Step::NeedMore { at_least } = self.next(rest)? else {
            return Err(CaptureError::Undrained { offset: self.record_offset });
        };
        match self.state {
            State::Start if rest.is_empty() => Err(CaptureError::Empty),
            // Shorter than a magic number, so that `next` could not judge it.
            State::Start if !may_start_capture(rest) => Err(foreign(rest)),
            State::Pcap(_) | State::Pcapng(_) if rest.is_empty() => Ok(()),
            _ => {
                let missing = at_least.saturating_sub(rest.len()) as u64;
                Err(CaptureError::Truncated { offset: self.record_offset, missing })
            }
        }
    }

    fn start<'a>(&mut self, buffer: &'a [u8]) -> Result<Step<'a>, CaptureError> {
        let Some(&magic) = buffer.first_chunk::<MAGIC_LENGTH>() else {
            return Ok(Step::NeedMore { at_least: MAGIC_LENGTH });
        };
        if magic == pcapng::MAGIC {
            let mut pcapng = Pcapng::new();
            let step = pcapng.next(buffer, self.offset);
            self.state = State::Pcapng(pcapng);
            return step;
        }
        let variant = Variant::recognise(magic).ok_or_else(|| foreign(buffer))?;
        let (step, pcap) = Pcap::open(variant, buffer)?;
        if let Some(pcap) = pcap {
            self.state = State::Pcap(pcap);
        }
        Ok(step)
    }

    /// Accounts for a step. What it consumes beyond the buffer becomes steps of its own, so that a caller never has to
    /// drop bytes that it does not have.
    fn advance<'a>(&mut self, mut step: Step<'a>, available: usize) -> Step<'a> {
        match &mut step {
            Step::NeedMore { .. } => {}
            Step::Skip { consumed } | Step::Packet { consumed, .. } | Step::Bad { consumed, .. } => {
                self.skip_remaining = consumed.saturating_sub(available);
                *consumed = (*consumed).min(available);
                self.offset = self.offset.saturating_add(*consumed as u64);
            }
        }
        step
    }
}

/// A packet out of its ERF record, where it is in one.
fn open_erf(step: Step<'_>, offset: u64) -> Step<'_> {
    match step {
        Step::Packet { consumed, packet } if packet.link_type == LinkType::Erf => match erf::open(&packet) {
            Ok(packet) => Step::Packet { consumed, packet },
            Err(fault) => Step::Bad { consumed, error: CaptureError::Erf { offset, fault } },
        },
        step => step,
    }
}

/// Whether `start` is the start of a magic number, or begins with one.
fn may_start_capture(start: &[u8]) -> bool {
    let start = start.get(..MAGIC_LENGTH).unwrap_or(start);
    pcapng::MAGIC.starts_with(start) || Variant::may_start_with(start)
}

/// The error for a file that does not start like a capture.
fn foreign(file: &[u8]) -> CaptureError {
    if file.starts_with(&GZIP_MAGIC) {
        return CaptureError::Gzip;
    }
    let mut start = [0; MAGIC_LENGTH];
    let length = start.iter_mut().zip(file).map(|(to, from)| *to = *from).count();
    CaptureError::NotACapture { start, length }
}
