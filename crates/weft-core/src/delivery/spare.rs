//! Buffers of messages that waited for a receive, kept for the next ones.
//!
//! An allocator gives long ones back to the system, and has each page of the next one made anew at its first touch: for a
//! message of 256 KiB that takes longer than its copy.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

use crate::limits::{SPARE_LONG_MAX, SPARE_LONG_MAX_BYTES, SPARE_SHORT_MAX, SPARE_SHORT_MAX_BYTES};

/// Short ones are all of use for any short message; of the long ones, those that are long enough.
#[derive(Debug, Default)]
pub(super) struct SpareBuffers {
    short: Vec<Vec<u8>>,
    /// The oldest first: those of a length that is no longer sent make room for those that are.
    long: VecDeque<Vec<u8>>,
    /// Of the long ones.
    long_bytes: usize,
}

impl SpareBuffers {
    /// A buffer of so many zeros: what was in it before is nobody's business.
    pub(super) fn take(&mut self, length: usize) -> Vec<u8> {
        if length <= SPARE_SHORT_MAX_BYTES {
            let mut bytes = self.short.pop().unwrap_or_default();
            bytes.resize(length, 0);
            return bytes;
        }
        let Some(at) = self.long.iter().rposition(|bytes| bytes.capacity() >= length) else {
            // The peer says how long it is. Fresh memory is zero already, so it costs nothing until bytes come.
            return vec![0; length];
        };
        let mut bytes = self.long.remove(at).unwrap_or_default();
        self.long_bytes -= bytes.capacity();
        bytes.resize(length, 0);
        bytes
    }

    /// Keeps one that is free, unless it is too long.
    pub(super) fn give(&mut self, mut bytes: Vec<u8>) {
        let capacity = bytes.capacity();
        bytes.clear();
        if capacity <= SPARE_SHORT_MAX_BYTES {
            if self.short.len() < SPARE_SHORT_MAX {
                self.short.push(bytes);
            }
        } else if capacity <= SPARE_LONG_MAX_BYTES {
            while self.long.len() >= SPARE_LONG_MAX || self.long_bytes + capacity > SPARE_LONG_MAX_BYTES {
                let Some(oldest) = self.long.pop_front() else { break };
                self.long_bytes -= oldest.capacity();
            }
            self.long_bytes += capacity;
            self.long.push_back(bytes);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_serves_again_and_is_zero() {
        let mut spare = SpareBuffers::default();
        for length in [100, SPARE_SHORT_MAX_BYTES + 1, 256 << 10] {
            let mut bytes = spare.take(length);
            bytes.fill(7);
            let place = bytes.as_ptr();
            spare.give(bytes);
            let again = spare.take(length);
            assert_eq!((again.as_ptr(), again.as_slice()), (place, vec![0; length].as_slice()));
            spare.give(again);
        }
        // One that is too short stays for another.
        assert_eq!(spare.take(300 << 10).len(), 300 << 10);
        assert_eq!(spare.long.len(), 2);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut spare = SpareBuffers::default();
        for _ in 0..2 * SPARE_SHORT_MAX {
            spare.give(vec![0; 64]);
            spare.give(vec![0; SPARE_SHORT_MAX_BYTES + 1]);
        }
        assert_eq!((spare.short.len(), spare.long.len()), (SPARE_SHORT_MAX, SPARE_LONG_MAX));
        let mut spare = SpareBuffers::default();
        for _ in 0..SPARE_LONG_MAX {
            spare.give(vec![0; SPARE_LONG_MAX_BYTES / 4]);
        }
        assert_eq!(spare.long.len(), 4);
        assert_eq!(spare.long_bytes, SPARE_LONG_MAX_BYTES);
        let _ = spare.take(SPARE_LONG_MAX_BYTES / 4);
        assert_eq!(spare.long_bytes, 3 * (SPARE_LONG_MAX_BYTES / 4));
        spare.give(vec![0; SPARE_LONG_MAX_BYTES + 1]);
        assert_eq!(spare.long.len(), 3);
    }

    #[test]
    fn buffers_of_another_length_make_room() {
        let (short, long) = (SPARE_SHORT_MAX_BYTES + 1, 2 * SPARE_SHORT_MAX_BYTES);
        let mut spare = SpareBuffers::default();
        for length in [short, long] {
            for _ in 0..SPARE_LONG_MAX {
                spare.give(vec![0; length]);
            }
        }
        assert_eq!((spare.long.len(), spare.long_bytes), (SPARE_LONG_MAX, SPARE_LONG_MAX * long));
        let place = spare.long[SPARE_LONG_MAX - 1].as_ptr();
        let last = spare.take(long);
        assert_eq!(last.as_ptr(), place);
    }
}
