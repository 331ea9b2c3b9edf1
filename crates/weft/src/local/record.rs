//! What the records of a channel mean. Everything that is read here came from another process.
//!
//! The initiator of a channel writes [`Request`]s, its target answers with [`Response`]s. A record has four words:
//!
//! | request | word 0 | word 1 | word 2 | word 3 | payload |
//! |---|---|---|---|---|---|
//! | Send | tag | immediate | length | | the message |
//! | Long | tag | immediate | length | | its first part; More bring the others |
//! | Offer | tag | immediate | length, token | | where it lies, if it may be fetched: [`Spans`], or a [`Reference`](super::handle::Reference) |
//! | Data | arrival | offset | | | a part of an offered message that was pulled |
//! | Withdraw | | | token | | |
//! | Abort | arrival | | | | |
//! | Write | address | immediate | length, token | key | the first part, or where the bytes lie |
//! | Read | address | | length, token | key | where the bytes shall go, if they may be put there |
//! | Atomic | address | what to do | length, token | key | operands |
//! | Attach | | | token | key | |
//!
//! | response | word 0 | word 1 | payload |
//! |---|---|---|---|
//! | Answer | token | code | |
//! | Pull | token | arrival; word 2: why it was not fetched | |
//! | Data | token | offset | a part of what is read |
//! | Result | token | | values from before an atomic |
//! | Welcome | | | |
//! | Again | token | | |

use weft_core::atomic::AtomicCall;
use weft_core::event::Failure;
use weft_link::shm::Record;
use weft_mem::attach::Span;

/// What an initiator asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Request {
    /// A whole message.
    Send = 1,
    /// The beginning of a message whose other parts follow at once.
    Long = 2,
    /// A further part of the last Long or Write.
    More = 3,
    /// A message that waits here until it is wanted.
    Offer = 4,
    /// A part of an offered message.
    Data = 5,
    /// An offer is void.
    Withdraw = 6,
    /// An offer that was pulled does not come.
    Abort = 7,
    /// Bytes for the target's memory.
    Write = 8,
    /// Bytes of the target's memory are wanted.
    Read = 9,
    /// An atomic on the target's memory.
    Atomic = 10,
    /// The initiator would like to reach a region by itself.
    Attach = 11,
}

impl Request {
    #[inline]
    pub(super) fn of(record: &Record) -> Option<Request> {
        use Request::*;
        const ALL: [Request; 11] = [Send, Long, More, Offer, Data, Withdraw, Abort, Write, Read, Atomic, Attach];
        ALL.get(usize::from(record.kind).wrapping_sub(1)).copied()
    }

    #[inline]
    pub(super) fn record(self, flags: u8, words: [u64; 4]) -> Record {
        Record { kind: self as u8, flags, words }
    }
}

/// What a target answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Response {
    /// It is done, or refused.
    Answer = 1,
    /// An offered message is wanted.
    Pull = 2,
    /// A part of what is read.
    Data = 3,
    /// The values from before an atomic.
    Result = 4,
    /// The channel is taken: what is in the ring will be.
    Welcome = 5,
    /// The target may not reach the initiator's memory any more: ask again, with the bytes, or for the bytes.
    Again = 6,
}

impl Response {
    pub(super) fn of(record: &Record) -> Option<Response> {
        use Response::*;
        const ALL: [Response; 6] = [Answer, Pull, Data, Result, Welcome, Again];
        ALL.get(usize::from(record.kind).wrapping_sub(1)).copied()
    }

    pub(super) fn record(self, word0: u64, word1: u64) -> Record {
        Record { kind: self as u8, flags: 0, words: [word0, word1, 0, 0] }
    }

    pub(super) fn answer(token: u32, result: Result<(), Failure>) -> Record {
        Response::Answer.record(u64::from(token), u64::from(code_of(result)))
    }
}

/// Bits of [`Record::flags`].
pub(super) const TAGGED: u8 = 1;
pub(super) const IMMEDIATE: u8 = 2;
/// A message that is lost where nobody waits for it.
pub(super) const DATAGRAM: u8 = 4;
/// The payload says where the bytes lie in the initiator's memory.
pub(super) const SPANS: u8 = 8;
/// Whoever sent it wants to hear that it was delivered.
pub(super) const ANSWER: u8 = 16;
/// The payload says where the bytes lie in the initiator's device memory.
pub(super) const HANDLE: u8 = 32;

/// Of an offer by handle: the target takes the message over, wanted or not.
pub(super) const TAKEN_OVER: u8 = 64;

/// In word 2 of a Pull: the target could not open the allocation that the offer referred to.
pub(super) const REFUSED: u64 = 1;
/// The same: it does not know it.
pub(super) const UNKNOWN: u64 = 2;

/// Length and token in one word.
pub(super) fn length_and_token(length: u32, token: u32) -> u64 {
    u64::from(token) << 32 | u64::from(length)
}

#[inline]
pub(super) fn length_of(record: &Record) -> u32 {
    record.words[2] as u32
}

pub(super) fn token_of(record: &Record) -> u32 {
    (record.words[2] >> 32) as u32
}

#[inline]
pub(super) fn immediate_of(record: &Record) -> Option<u64> {
    (record.flags & IMMEDIATE != 0).then_some(record.words[1])
}

/// What an atomic is, in one word: its class last, for which there is no code.
pub(super) fn pack_atomic(call: AtomicCall, class: u8) -> u64 {
    u64::from(call.operation) | u64::from(call.datatype) << 8 | u64::from(call.count) << 16 | u64::from(class) << 32
}

pub(super) fn unpack_atomic(word: u64) -> (AtomicCall, u8) {
    let call = AtomicCall { operation: word as u8, datatype: (word >> 8) as u8, count: (word >> 16) as u16 };
    (call, (word >> 32) as u8)
}

/// Where bytes lie in a process: pairs of address and length, as a payload.
pub(super) struct Spans;

impl Spans {
    /// Spans that fit into the slot of a record.
    pub(super) const MAX: usize = 4;

    pub(super) fn to_bytes(spans: &[Span], into: &mut [u8; 16 * Spans::MAX]) -> usize {
        let (pairs, _) = into.as_chunks_mut::<16>();
        let mut count = 0;
        for (pair, span) in pairs.iter_mut().zip(spans) {
            *pair = (u128::from(span.address) | u128::from(span.length) << 64).to_le_bytes();
            count += 1;
        }
        16 * count
    }

    /// The spans of a payload, if together they have `length` bytes.
    pub(super) fn from_bytes(bytes: &[u8], length: u32) -> Option<Vec<Span>> {
        let (pairs, rest) = bytes.as_chunks::<16>();
        if !rest.is_empty() || pairs.len() > Spans::MAX {
            return None;
        }
        let span = |pair: &[u8; 16]| {
            let both = u128::from_le_bytes(*pair);
            Span { address: both as u64, length: (both >> 64) as u64 }
        };
        let spans: Vec<Span> = pairs.iter().map(span).collect();
        let total = spans.iter().try_fold(0u64, |sum, span| sum.checked_add(span.length))?;
        (total == u64::from(length)).then_some(spans)
    }
}

/// Failures that a target can name, by their code; the code of success is 0.
const FAILURES: [Failure; 9] = [
    Failure::AccessRefused,
    Failure::LengthError,
    Failure::NoSuchEndpoint,
    Failure::NotSupported,
    Failure::ProtocolError,
    Failure::Aborted,
    Failure::OperationFailed,
    Failure::Cancelled,
    Failure::OutcomeUnknown,
];

fn code_of(result: Result<(), Failure>) -> u8 {
    let Err(failure) = result else { return 0 };
    let place = FAILURES.iter().position(|other| *other == failure).unwrap_or(FAILURES.len() - 1);
    place as u8 + 1
}

pub(super) fn result_of(code: u64) -> Result<(), Failure> {
    match code {
        0 => Ok(()),
        code => Err(FAILURES.get(code as usize - 1).copied().unwrap_or(Failure::ProtocolError)),
    }
}

/// What a peer is told when our memory refuses.
pub(super) fn failure_of(fault: weft_core::memory::Fault) -> Failure {
    use weft_core::memory::Fault;
    match fault {
        Fault::UnknownKey | Fault::OutOfBounds | Fault::Forbidden | Fault::Misaligned => Failure::AccessRefused,
        Fault::NotSupported => Failure::NotSupported,
        Fault::Failed => Failure::OperationFailed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_comes_back() {
        let call = AtomicCall { operation: 200, datatype: 7, count: 65_535 };
        assert_eq!(unpack_atomic(pack_atomic(call, 2)), (call, 2));
        let spans = [Span { address: u64::MAX, length: 3 }, Span { address: 1, length: 4 }];
        let mut bytes = [0; 64];
        let length = Spans::to_bytes(&spans, &mut bytes);
        assert_eq!(Spans::from_bytes(&bytes[..length], 7).unwrap(), spans);
        assert!(Spans::from_bytes(&bytes[..length], 8).is_none());
        assert!(Spans::from_bytes(&bytes[..15], 0).is_none());
        for failure in FAILURES {
            assert_eq!(result_of(u64::from(code_of(Err(failure)))), Err(failure));
        }
        assert_eq!(result_of(u64::MAX), Err(Failure::ProtocolError));
    }
}
