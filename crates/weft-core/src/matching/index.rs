//! A hash table from keys to queues of entries, made for few cache misses.
//!
//! The table is an array of *lines*, one cache line each. A line has room for twelve *cells*; a cell is one byte of the
//! hash and the number of an entry, which is the head of its queue. All bytes of a line are compared at once and without
//! a branch, so that a lookup touches one line and then the entry that it wants (2 in 100 touch a wrong one), and an
//! insertion touches the line only. A line that is full sends further cells to the next line, and counts them.
//!
//! Entries of the same key form a ring through `previous` and `next`, and only the head has a cell: a thousand equal
//! receives cost no more to search than one.

use alloc::vec::Vec;
use core::hash::{BuildHasher, Hasher};

use crate::hash::Keyed;

/// Cells of a line.
const CELLS: usize = 12;
/// Cells of a line in use, on average, when the table is as full as it gets. Then 3 lines in 100 are full.
const CELLS_FILL: usize = 7;
/// Lines of the smallest table.
const LINES_MIN: usize = 2;

const _: () = assert!(CELLS_FILL < CELLS, "there is always a free cell");

/// Source and tag, with what its kind ignores blanked out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) source: u64,
    pub(super) tag: u64,
}

impl Key {
    fn hash(self, keyed: &Keyed) -> u64 {
        let mut hasher = keyed.build_hasher();
        hasher.write_u64(self.source);
        hasher.write_u64(self.tag);
        hasher.finish()
    }
}

/// What matching needs of an entry; what the user put there is kept apart.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
pub(super) struct Node {
    pub(super) key: Key,
    /// When it came, and its class; see [`super::slab`].
    pub(super) stamp: u64,
    pub(super) previous: u32,
    pub(super) next: u32,
}

const _: () = assert!(size_of::<Node>() == 32, "two to a cache line, and none in two lines");

/// Twelve cells.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Line {
    /// From the low end: a byte for each cell, 0 where it is free; then 32 bits that count the cells which would be
    /// here, or passed by here, if the line had not been full.
    marks: [u64; 2],
    entries: [u32; CELLS],
}

const _: () = assert!(size_of::<Line>() == 64, "one cache line");

const OVERFLOW_SHIFT: u32 = 8 * (CELLS as u32 - 8);
const OVERFLOW_ONE: u64 = 1 << OVERFLOW_SHIFT;
/// A bit for each cell.
const PLACES: u32 = (1 << CELLS) - 1;

impl Line {
    const EMPTY: Line = Line { marks: [0; 2], entries: [0; CELLS] };

    /// The places whose byte is `mark`, a bit for each. Exact: the entry of a free cell is stale and must not be looked at.
    #[inline]
    fn places(&self, mark: u8) -> u32 {
        equal_bytes(self.marks, mark) & PLACES
    }

    fn overflowed(&self) -> bool {
        self.marks[1] >= OVERFLOW_ONE
    }

    /// Changes the byte of a place from or to 0.
    #[inline]
    fn flip(&mut self, place: u32, mark: u8) {
        if let Some(word) = self.marks.get_mut(place as usize / 8) {
            *word ^= u64::from(mark) << (place % 8 * 8);
        }
    }
}

/// Which of sixteen bytes are equal to `byte`, a bit for each.
#[cfg(target_arch = "x86_64")]
#[inline]
fn equal_bytes(words: [u64; 2], byte: u8) -> u32 {
    use core::arch::x86_64::{_mm_cmpeq_epi8, _mm_movemask_epi8, _mm_set_epi64x, _mm_set1_epi8};
    let bytes = _mm_set_epi64x(words[1] as i64, words[0] as i64);
    _mm_movemask_epi8(_mm_cmpeq_epi8(bytes, _mm_set1_epi8(byte as i8))) as u32
}

#[cfg(not(target_arch = "x86_64"))]
use equal_bytes_anywhere as equal_bytes;

/// The same without vectors.
#[cfg(any(test, not(target_arch = "x86_64")))]
fn equal_bytes_anywhere(words: [u64; 2], byte: u8) -> u32 {
    const BYTES: u64 = 0x0101_0101_0101_0101;
    let [low, high] = words.map(|word| {
        let different = word ^ (BYTES * u64::from(byte));
        // A byte of zero is the only one of which nothing reaches the highest bit, and no carry leaves a byte.
        let zero = !(((different & BYTES * 0x7f) + BYTES * 0x7f) | different) & (BYTES * 0x80);
        // Each product of two single bits lands in a place of its own; the eight of interest land in the highest byte.
        ((zero >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56) as u32
    });
    low | high << 8
}

/// The table.
#[derive(Debug)]
pub(super) struct Index {
    lines: Vec<Line>,
    lines_max: usize,
    cells: usize,
}

/// Where a cell is.
struct Cell {
    line: usize,
    place: u32,
    entry: u32,
}

#[expect(clippy::indexing_slicing, reason = "cells and rings hold numbers of entries in use, and lines wrap around")]
impl Index {
    /// A table for up to `capacity` entries, without memory yet.
    pub(super) fn new(capacity: usize) -> Index {
        Index { lines: Vec::new(), lines_max: capacity.div_ceil(CELLS_FILL).max(LINES_MIN), cells: 0 }
    }

    /// Whether no entry is in it.
    pub(super) fn is_empty(&self) -> bool {
        self.cells == 0
    }

    /// Forgets all entries; keeps the memory.
    pub(super) fn clear(&mut self) {
        self.lines.fill(Line::EMPTY);
        self.cells = 0;
    }

    /// The earliest entry of a key.
    #[inline]
    pub(super) fn first(&self, nodes: &[Node], keyed: &Keyed, key: Key) -> Option<u32> {
        if self.cells == 0 {
            return None;
        }
        self.locate(key.hash(keyed), |entry| nodes[entry as usize].key == key).map(|cell| cell.entry)
    }

    /// Puts an entry behind all others of its key.
    #[inline]
    pub(super) fn append(&mut self, nodes: &mut [Node], keyed: &Keyed, entry: u32) {
        if self.cells >= self.lines.len() * CELLS_FILL && self.lines.len() < self.lines_max {
            self.grow(nodes, keyed);
        }
        let key = nodes[entry as usize].key;
        let hash = key.hash(keyed);
        let (previous, next) = match self.locate(hash, |entry| nodes[entry as usize].key == key) {
            Some(Cell { entry: head, .. }) => (nodes[head as usize].previous, head),
            None => {
                self.insert(hash, entry);
                (entry, entry)
            }
        };
        nodes[entry as usize].previous = previous;
        nodes[entry as usize].next = next;
        if previous != entry {
            nodes[previous as usize].next = entry;
            nodes[next as usize].previous = entry;
        }
    }

    /// Takes an entry out.
    #[inline]
    pub(super) fn remove(&mut self, nodes: &mut [Node], keyed: &Keyed, entry: u32) {
        let Node { key, previous, next, .. } = nodes[entry as usize];
        let hash = key.hash(keyed);
        if let Some(cell) = self.locate(hash, |candidate| candidate == entry) {
            if next == entry {
                self.erase(hash, &cell);
                return;
            }
            self.lines[cell.line].entries[cell.place as usize] = next;
        }
        nodes[previous as usize].next = next;
        nodes[next as usize].previous = previous;
    }

    #[inline]
    fn home(&self, hash: u64) -> usize {
        // The high half of the hash as a fraction of the number of lines; the mark comes from the low half.
        (((hash >> 32) * self.lines.len() as u64) >> 32) as usize
    }

    fn behind(&self, line: usize) -> usize {
        if line + 1 == self.lines.len() { 0 } else { line + 1 }
    }

    #[inline]
    fn locate(&self, hash: u64, wanted: impl Fn(u32) -> bool) -> Option<Cell> {
        let mut at = self.home(hash);
        for _ in 0..self.lines.len() {
            let line = &self.lines[at];
            let mut places = line.places(mark(hash));
            while places != 0 {
                let place = places.trailing_zeros();
                let entry = line.entries[place as usize];
                if wanted(entry) {
                    return Some(Cell { line: at, place, entry });
                }
                places &= places - 1;
            }
            if !line.overflowed() {
                return None;
            }
            at = self.behind(at);
        }
        None
    }

    fn insert(&mut self, hash: u64, entry: u32) {
        let mut at = self.home(hash);
        loop {
            let free = self.lines[at].places(0);
            if free != 0 {
                let place = free.trailing_zeros();
                self.lines[at].flip(place, mark(hash));
                self.lines[at].entries[place as usize] = entry;
                self.cells += 1;
                return;
            }
            self.lines[at].marks[1] += OVERFLOW_ONE;
            at = self.behind(at);
        }
    }

    fn erase(&mut self, hash: u64, cell: &Cell) {
        let mut at = self.home(hash);
        while at != cell.line {
            self.lines[at].marks[1] -= OVERFLOW_ONE;
            at = self.behind(at);
        }
        self.lines[at].flip(cell.place, mark(hash));
        self.cells -= 1;
    }

    #[cold]
    fn grow(&mut self, nodes: &[Node], keyed: &Keyed) {
        let count = (self.lines.len() * 2).clamp(LINES_MIN, self.lines_max);
        let before = core::mem::replace(&mut self.lines, alloc::vec![Line::EMPTY; count]);
        self.cells = 0;
        for line in before {
            let mut places = !line.places(0) & PLACES;
            while places != 0 {
                let entry = line.entries[places.trailing_zeros() as usize];
                self.insert(nodes[entry as usize].key.hash(keyed), entry);
                places &= places - 1;
            }
        }
    }

    /// Checks that everything fits together, and gives the number of entries.
    #[cfg(test)]
    pub(super) fn check(&self, nodes: &[Node], keyed: &Keyed) -> usize {
        let (mut cells, mut entries, mut passing) = (0, 0, 0);
        for (at, line) in self.lines.iter().enumerate() {
            for (place, &head) in line.entries.iter().enumerate() {
                let byte = (line.marks[place / 8] >> (place % 8 * 8)) as u8;
                if byte == 0 {
                    continue;
                }
                let key = nodes[head as usize].key;
                let hash = key.hash(keyed);
                assert_eq!(byte, mark(hash));
                passing += (at + self.lines.len() - self.home(hash)) % self.lines.len();
                cells += 1;
                let mut entry = head;
                loop {
                    let node = nodes[entry as usize];
                    assert_eq!(node.key, key);
                    assert_ne!(node.stamp, super::slab::VACANT);
                    assert_eq!(nodes[node.next as usize].previous, entry);
                    entries += 1;
                    if node.next == head {
                        break;
                    }
                    assert!(nodes[node.next as usize].stamp > node.stamp, "queues are in order");
                    entry = node.next;
                }
            }
        }
        let counted: usize = self.lines.iter().map(|line| (line.marks[1] >> OVERFLOW_SHIFT) as usize).sum();
        assert_eq!((cells, passing), (self.cells, counted));
        entries
    }
}

/// The byte of a hash that stands in its cell; never 0.
fn mark(hash: u64) -> u8 {
    (hash as u8).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_compared_alike_everywhere() {
        let mut words = [0x0100_ff80_0101_7f81_u64, 0x8000_0000_0001_00fe];
        for _ in 0..10_000 {
            for byte in [0, 1, 0x7f, 0x80, 0x81, 0xff, words[0] as u8] {
                assert_eq!(equal_bytes(words, byte), equal_bytes_anywhere(words, byte), "{words:x?} {byte}");
            }
            words = words.map(|word| word.wrapping_mul(0x9e37_79b9_7f4a_7c15) & word.rotate_left(29) ^ word >> 31);
        }
    }
}
