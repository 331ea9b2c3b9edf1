//! TCP segments of one direction, in any order, to the bytes in their order.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::fmt;

use crate::limits::STREAM_WINDOW_MAX_BYTES;

/// What a segment that came early costs beside its bytes, about: its place in the tree and the allocation. Without it
/// segments of one byte would hold a hundred times what the limit says.
const SEGMENT_COST_BYTES: usize = 96;

/// One direction of a TCP connection. Where segments overlap, the byte that came first is kept.
#[derive(Clone, Debug, Default)]
pub struct Reassembly {
    /// Sequence number of the first byte that has not come yet.
    next: Option<u32>,
    ready: Vec<u8>,
    /// Bytes of `ready` that were consumed; they are dropped when they outweigh the rest.
    consumed: usize,
    /// Segments that came early, by their distance from the stream's first byte.
    early: BTreeMap<u64, Vec<u8>>,
    /// Memory that they take, with [`SEGMENT_COST_BYTES`] for each.
    early_bytes: usize,
    /// Bytes of the stream before `next`.
    position: u64,
}

/// Bytes of the stream are missing, and what is held back for them is at its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamError;

impl fmt::Display for StreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "more than {STREAM_WINDOW_MAX_BYTES} bytes of a TCP stream wait for one that is missing")
    }
}

impl core::error::Error for StreamError {}

impl Reassembly {
    /// Takes a segment. The first one, or one with `syn`, sets where the stream begins.
    pub fn push(&mut self, sequence: u32, syn: bool, data: &[u8]) -> Result<(), StreamError> {
        let sequence = if syn { sequence.wrapping_add(1) } else { sequence };
        let next = match self.next {
            Some(next) if !syn || self.position > 0 => next,
            _ => {
                // What came early was counted from another beginning.
                if self.next.replace(sequence) != Some(sequence) {
                    self.early.clear();
                    self.early_bytes = 0;
                }
                sequence
            }
        };
        let ahead = sequence.wrapping_sub(next);
        if ahead >= 1 << 31 {
            // Older than what is next: sent again, perhaps with more behind it.
            let old = next.wrapping_sub(sequence) as usize;
            if let Some(new) = data.get(old..) {
                self.append(new);
            }
        } else if ahead == 0 {
            self.append(data);
        } else {
            self.hold(self.position + u64::from(ahead), data)?;
        }
        self.take_early();
        if self.ready().len() > STREAM_WINDOW_MAX_BYTES { Err(StreamError) } else { Ok(()) }
    }

    /// The bytes that are in order and not yet consumed.
    #[must_use]
    pub fn ready(&self) -> &[u8] {
        self.ready.get(self.consumed..).unwrap_or(&[])
    }

    /// Bytes of memory held for bytes of the stream.
    #[must_use]
    pub fn held(&self) -> usize {
        self.ready.capacity() + self.early_bytes
    }

    /// Marks the first `count` ready bytes as done.
    pub fn consume(&mut self, count: usize) {
        self.consumed = self.consumed.saturating_add(count).min(self.ready.len());
        if self.consumed == self.ready.len() {
            // Not only its bytes: a stream that once held much must not keep the room for it.
            self.ready = Vec::new();
            self.consumed = 0;
        } else if self.consumed * 2 >= self.ready.len() {
            self.ready.drain(..self.consumed);
            self.consumed = 0;
        }
    }

    fn append(&mut self, data: &[u8]) {
        self.ready.extend_from_slice(data);
        self.position += data.len() as u64;
        self.next = self.next.map(|next| next.wrapping_add(data.len() as u32));
    }

    /// Keeps what of a segment is not held yet, so that held segments never overlap.
    fn hold(&mut self, mut at: u64, mut data: &[u8]) -> Result<(), StreamError> {
        while !data.is_empty() {
            let before = self.early.range(..=at).next_back();
            let known = before.map_or(0, |(from, held)| (from + held.len() as u64).saturating_sub(at));
            let known = usize::try_from(known).unwrap_or(usize::MAX).min(data.len());
            let behind = self.early.range(at + known as u64..).next().map(|(next, _)| next - at);
            let until = behind.and_then(|next| usize::try_from(next).ok()).unwrap_or(usize::MAX).min(data.len());
            let new = data.get(known..until).unwrap_or(&[]);
            if !new.is_empty() {
                let cost = new.len() + SEGMENT_COST_BYTES;
                if self.early_bytes.saturating_add(cost) > STREAM_WINDOW_MAX_BYTES {
                    return Err(StreamError);
                }
                self.early.insert(at + known as u64, new.to_vec());
                self.early_bytes += cost;
            }
            data = data.get(until..).unwrap_or(&[]);
            at += until as u64;
        }
        Ok(())
    }

    fn take_early(&mut self) {
        while let Some(first) = self.early.first_entry() {
            let Some(old) = self.position.checked_sub(*first.key()) else { break };
            let data = first.remove();
            self.early_bytes -= data.len() + SEGMENT_COST_BYTES;
            if let Some(new) = usize::try_from(old).ok().and_then(|old| data.get(old..)) {
                self.append(new);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn syn_counts_as_one() {
        let mut stream = Reassembly::default();
        stream.push(99, true, b"").unwrap();
        stream.push(100, false, b"ab").unwrap();
        stream.push(100, false, b"abcd").unwrap();
        assert_eq!(stream.ready(), b"abcd");
        stream.consume(3);
        assert_eq!(stream.ready(), b"d");
    }

    #[test]
    fn a_new_beginning_forgets_what_came_before_it() {
        let mut stream = Reassembly::default();
        stream.push(100, false, b"").unwrap();
        stream.push(103, false, b"old").unwrap();
        stream.push(4999, true, b"").unwrap();
        stream.push(5003, false, b"new").unwrap();
        stream.push(4999, true, b"").unwrap();
        stream.push(5000, false, b"abc").unwrap();
        assert_eq!(stream.ready(), b"abcnew");
    }

    #[test]
    fn of_early_segments_the_first_byte_is_kept_and_none_is_lost() {
        let mut stream = Reassembly::default();
        stream.push(0, false, b"0").unwrap();
        for (sequence, data) in [(4, "ab"), (4, "ABcd"), (2, "xyAB!!"), (10, "j"), (3, "????????"), (9, "iJk")] {
            stream.push(sequence, false, data.as_bytes()).unwrap();
        }
        assert_eq!(stream.early_bytes, 10 + stream.early.len() * SEGMENT_COST_BYTES);
        stream.push(1, false, b"w").unwrap();
        assert_eq!(stream.ready(), b"0wxyabcd??jk");
        assert_eq!(stream.early_bytes, 0);
    }

    #[test]
    fn what_is_consumed_is_given_back() {
        let mut stream = Reassembly::default();
        stream.push(0, false, &[7; 60_000]).unwrap();
        assert!(stream.held() >= 60_000);
        stream.consume(60_000);
        assert_eq!(stream.held(), 0, "the room too");
    }

    #[test]
    fn a_gap_cannot_hold_back_without_limit() {
        let mut stream = Reassembly::default();
        stream.push(0, false, b"x").unwrap();
        let block = std::vec![0u8; 60_000];
        let refused = (0..100u32).map(|i| stream.push(1000 + i * 60_000, false, &block)).find(Result::is_err);
        assert_eq!(refused, Some(Err(StreamError)));
        assert_eq!(stream.ready(), b"x");
        // Every other byte of a stream: the limit is on memory, not on bytes.
        let mut stream = Reassembly::default();
        stream.push(0, false, b"x").unwrap();
        let held = (1..).map(|i| stream.push(2 * i, false, b"y")).take_while(Result::is_ok).count();
        assert_eq!(held, STREAM_WINDOW_MAX_BYTES / (1 + SEGMENT_COST_BYTES));
    }

    proptest! {
        #[test]
        fn any_order_with_overlaps_gives_the_stream(
            start: u32, length in 1usize..400, cuts in proptest::collection::vec((any::<usize>(), 1usize..60), 0..80),
        ) {
            let bytes: Vec<u8> = (0..length).map(|i| (i * 31 + i / 7) as u8).collect();
            let mut stream = Reassembly::default();
            stream.push(start.wrapping_sub(1), true, b"").unwrap();
            let all = (0..length).step_by(13).map(|at| (at, 13));
            for (at, size) in cuts.into_iter().map(|(at, size)| (at % length, size)).chain(all) {
                let part = &bytes[at..(at + size).min(length)];
                stream.push(start.wrapping_add(at as u32), false, part).unwrap();
            }
            prop_assert_eq!(stream.ready(), &bytes[..]);
            prop_assert_eq!((stream.early.len(), stream.early_bytes), (0, 0));
        }
    }
}
