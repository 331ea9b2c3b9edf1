//! A hash table from keys to queues of entries, made for few cache misses.
//!
//! The table is an array of *lines* of half a cache line each. A line has room for six *cells*; a cell is one byte of
//! the hash and the number of an entry, which is the head of its queue. All bytes of a line are compared at once and
//! without a branch, so that a lookup touches one line and then the entry that it wants (1 in 100 touches a wrong one),
//! and an insertion touches the line only. A line that is full sends further cells to the next line, and counts them.
//!
//! Entries of the same key form a ring through `previous` and `next`, and only the head has a cell: a thousand equal
//! receives cost no more to search than one.

use alloc::vec::Vec;
use core::hash::{BuildHasher, Hasher};

use crate::hash::Keyed;

/// Cells of a line.
const CELLS: usize = 6;
/// Cells of a line in use, on average, when the table is as full as it gets. Then 3 lines in 100 overflow.
const CELLS_FILL: usize = 3;
/// Lines of the smallest table.
const LINES_MIN: usize = 2;

const _: () = assert!(CELLS_FILL < CELLS, "there is always a free cell");

/// A bit that neither the line nor the byte of a hash depends on: no hash is 0, which says that an entry is in no table.
const HASHED: u64 = 1 << 8;

/// Source and tag, with what its kind ignores blanked out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) source: u64,
    pub(super) tag: u64,
}

impl Key {
    #[inline]
    pub(super) fn hash(self, keyed: &Keyed) -> u64 {
        let mut hasher = keyed.build_hasher();
        hasher.write_u64(self.source);
        hasher.write_u64(self.tag);
        hasher.finish() | HASHED
    }
}

/// An entry. What a match reads comes first, and the item behind it, so that a small item comes with the same miss.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(super) struct Node<T> {
    pub(super) key: Key,
    /// Of the key, so that taking the entry out does not compute it again; 0 while the entry is in no table.
    pub(super) hash: u64,
    /// When it came, and its class; see [`super::slab`].
    pub(super) stamp: u64,
    /// The neighbours in the queue of its key.
    pub(super) previous: u32,
    pub(super) next: u32,
    /// Who came before it, and after it.
    pub(super) older: u32,
    pub(super) newer: u32,
    pub(super) item: Option<T>,
}

const _: () = assert!(size_of::<Node<u64>>() == 64, "one cache line");

/// Six cells.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
struct Line {
    /// From the low end: a byte for each cell, 0 where it is free; then 16 bits that count the cells which would be
    /// here, or passed by here, if the line had not been full. At the highest count it stays for ever, which
    /// costs time and is not wrong.
    marks: u64,
    entries: [u32; CELLS],
}

const _: () = assert!(size_of::<Line>() == 32, "two to a cache line");

const OVERFLOW_SHIFT: u32 = 8 * CELLS as u32;
const OVERFLOW_ONE: u64 = 1 << OVERFLOW_SHIFT;
const OVERFLOW_MAX: u64 = u64::MAX >> OVERFLOW_SHIFT;
/// A one in each byte of a cell.
const BYTES: u64 = 0x0101_0101_0101_0101 & (OVERFLOW_ONE - 1);

impl Line {
    const EMPTY: Line = Line { marks: 0, entries: [0; CELLS] };

    /// The places whose byte is `mark`. Exact: the entry of a free cell is stale and must not be looked at.
    #[inline]
    fn places(&self, mark: u8) -> Places {
        let different = self.marks ^ (BYTES * u64::from(mark));
        // A byte of zero is the only one of which nothing reaches the highest bit, and no carry leaves a byte.
        Places(!(((different & (BYTES * 0x7f)) + BYTES * 0x7f) | different) & (BYTES * 0x80))
    }

    fn mark(&self, place: usize) -> u8 {
        (self.marks >> (8 * place)) as u8
    }

    /// Changes the byte of a place from or to 0.
    #[inline]
    fn flip(&mut self, place: usize, mark: u8) {
        self.marks ^= u64::from(mark) << (8 * place);
    }

    fn overflow(&self) -> u64 {
        self.marks >> OVERFLOW_SHIFT
    }
}

/// Some places of a line: the highest bit of the byte of each.
struct Places(u64);

impl Iterator for Places {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let place = self.0.trailing_zeros() as usize / 8;
        self.0 &= self.0 - 1;
        Some(place)
    }
}

/// The table.
#[derive(Debug)]
pub(super) struct Index {
    lines: Vec<Line>,
    lines_max: usize,
    cells: usize,
    /// With how many cells it grows.
    cells_grow: usize,
}

/// Where a cell is.
struct Cell {
    line: usize,
    place: usize,
    entry: u32,
}

#[expect(clippy::indexing_slicing, reason = "cells and rings hold numbers of entries in use, and lines wrap around")]
impl Index {
    /// A table for up to `capacity` entries, without memory yet.
    pub(super) fn new(capacity: usize) -> Index {
        Index { lines: Vec::new(), lines_max: capacity.div_ceil(CELLS_FILL).max(LINES_MIN), cells: 0, cells_grow: 0 }
    }

    /// Forgets all entries; keeps the memory.
    pub(super) fn clear(&mut self) {
        self.lines.fill(Line::EMPTY);
        self.cells = 0;
    }

    /// The earliest entry of a key.
    #[inline]
    pub(super) fn first<T>(&self, nodes: &[Node<T>], keyed: &Keyed, key: Key) -> Option<u32> {
        if self.cells == 0 {
            return None;
        }
        self.locate(key.hash(keyed), |entry| nodes[entry as usize].key == key).map(|cell| cell.entry)
    }

    /// Puts an entry behind all others of its key. It is a ring of its own before.
    #[inline]
    pub(super) fn append<T>(&mut self, nodes: &mut [Node<T>], key: Key, hash: u64, entry: u32) {
        if self.cells >= self.cells_grow {
            self.grow(nodes);
        }
        let Some(Cell { entry: head, .. }) = self.locate(hash, |entry| nodes[entry as usize].key == key) else {
            return self.insert(hash, entry);
        };
        let last = nodes[head as usize].previous;
        nodes[entry as usize].previous = last;
        nodes[entry as usize].next = head;
        nodes[last as usize].next = entry;
        nodes[head as usize].previous = entry;
    }

    /// Takes an entry out.
    #[inline]
    pub(super) fn remove<T>(&mut self, nodes: &mut [Node<T>], entry: u32) {
        let Node { hash, previous, next, .. } = nodes[entry as usize];
        if let Some(cell) = self.locate(hash, |candidate| candidate == entry) {
            if next == entry {
                return self.erase(hash, &cell);
            }
            self.lines[cell.line].entries[cell.place] = next;
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
            for place in line.places(mark(hash)) {
                let entry = line.entries[place];
                if wanted(entry) {
                    return Some(Cell { line: at, place, entry });
                }
            }
            if line.overflow() == 0 {
                return None;
            }
            at = self.behind(at);
        }
        None
    }

    #[inline]
    fn insert(&mut self, hash: u64, entry: u32) {
        let mut at = self.home(hash);
        loop {
            let line = &mut self.lines[at];
            if let Some(place) = line.places(0).next() {
                line.flip(place, mark(hash));
                line.entries[place] = entry;
                self.cells += 1;
                return;
            }
            if line.overflow() < OVERFLOW_MAX {
                line.marks += OVERFLOW_ONE;
            }
            at = self.behind(at);
        }
    }

    #[inline]
    fn erase(&mut self, hash: u64, cell: &Cell) {
        let mut at = self.home(hash);
        while at != cell.line {
            let line = &mut self.lines[at];
            if line.overflow() < OVERFLOW_MAX {
                line.marks -= OVERFLOW_ONE;
            }
            at = self.behind(at);
        }
        self.lines[at].flip(cell.place, mark(hash));
        self.cells -= 1;
    }

    #[cold]
    fn grow<T>(&mut self, nodes: &[Node<T>]) {
        let count = (self.lines.len() * 2).clamp(LINES_MIN, self.lines_max);
        let before = core::mem::replace(&mut self.lines, alloc::vec![Line::EMPTY; count]);
        self.cells = 0;
        self.cells_grow = if count < self.lines_max { count * CELLS_FILL } else { usize::MAX };
        for line in before {
            for (place, &entry) in line.entries.iter().enumerate() {
                if line.mark(place) != 0 {
                    self.insert(nodes[entry as usize].hash, entry);
                }
            }
        }
    }

    /// Checks that everything fits together, and gives the number of entries.
    #[cfg(test)]
    pub(super) fn check<T>(&self, nodes: &[Node<T>], keyed: &Keyed) -> usize {
        let (mut cells, mut entries, mut passing) = (0, 0, 0);
        for (at, line) in self.lines.iter().enumerate() {
            for (place, &head) in line.entries.iter().enumerate() {
                if line.mark(place) == 0 {
                    continue;
                }
                let key = nodes[head as usize].key;
                let hash = key.hash(keyed);
                assert_eq!(line.mark(place), mark(hash));
                passing += (at + self.lines.len() - self.home(hash)) % self.lines.len();
                cells += 1;
                let mut entry = head;
                loop {
                    let node = &nodes[entry as usize];
                    assert_eq!((node.key, node.hash), (key, hash));
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
        let counted: usize = self.lines.iter().map(|line| line.overflow() as usize).sum();
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
    use std::vec::Vec;

    #[test]
    fn bytes_are_found_where_they_are() {
        let mut line = Line::EMPTY;
        line.marks = 0x0100_ff80_0101_7f81;
        for _ in 0..10_000 {
            for byte in [0, 1, 0x7f, 0x80, 0x81, 0xff, line.mark(4)] {
                let mut places: Vec<usize> = line.places(byte).collect();
                places.sort_unstable();
                assert!((0..CELLS).filter(|place| line.mark(*place) == byte).eq(places), "{line:x?} {byte}");
            }
            line.marks = line.marks.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ line.marks >> 31;
        }
    }
}
