//! The replay cache of a receive flow: results of atomics that may be asked for again (P-7.2).

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::before;
use crate::limits::REPLAY_RESULTS_MAX;

/// A result that may be asked for again.
#[derive(Debug)]
pub(crate) struct Replay {
    pub(crate) psn: u32,
    pub(crate) number: u32,
    pub(crate) result: Vec<u8>,
}

/// Results from their execution until the initiator's base passes their psn. Their memory is used again, so that fetching
/// atomics do not allocate.
#[derive(Debug, Default)]
pub(crate) struct ReplayCache {
    entries: VecDeque<Replay>,
    spare: Vec<Vec<u8>>,
}

impl ReplayCache {
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.entries.len() >= REPLAY_RESULTS_MAX
    }

    /// Bytes of the results and of the memory that waits for others.
    pub(crate) fn bytes(&self) -> usize {
        let results = self.entries.iter().map(|replay| replay.result.capacity() + size_of::<Replay>());
        let spare = self.spare.iter().map(|spare| spare.capacity() + size_of::<Vec<u8>>());
        results.sum::<usize>() + spare.sum::<usize>()
    }

    pub(crate) fn find(&self, psn: u32) -> Option<&Replay> {
        self.entries.iter().find(|replay| replay.psn == psn)
    }

    /// Room for a result of `bytes`: to be kept, or given back.
    pub(crate) fn room(&mut self, bytes: usize) -> Vec<u8> {
        let mut room = self.spare.pop().unwrap_or_default();
        room.clear();
        room.resize(bytes, 0);
        room
    }

    pub(crate) fn give_back(&mut self, room: Vec<u8>) {
        if room.capacity() > 0 && self.spare.len() < REPLAY_RESULTS_MAX {
            self.spare.push(room);
        }
    }

    pub(crate) fn keep(&mut self, replay: Replay) {
        self.entries.push_back(replay);
    }

    /// Forgets the results of all psns before `base`.
    pub(crate) fn settle(&mut self, base: u32) {
        // Psns of one flow are executed in any order, so the cache is not quite sorted.
        let mut at = 0;
        while let Some(replay) = self.entries.get(at) {
            if !before(replay.psn, base) {
                at += 1;
            } else if let Some(settled) = self.entries.remove(at) {
                self.give_back(settled.result);
            }
        }
    }
}
