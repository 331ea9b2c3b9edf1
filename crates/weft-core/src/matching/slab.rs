//! Entries in places that do not move, each with a stamp that no other entry ever has.
//!
//! The stamp is the entry's number in order of arrival, above eight bits for its class. It decides who came first, and
//! an id that carries it cannot be taken for a later entry in the same place. At a hundred million entries a second the
//! numbers last for 22 years.

use alloc::vec::Vec;

use super::Full;
use super::index::{Key, Node};
use crate::limits::MATCH_ENTRIES_MAX;

/// The stamp of a free place.
pub(super) const VACANT: u64 = u64::MAX;
const CLASS_BITS: u32 = 8;
/// No place: the end of the list of free ones.
const NONE: u32 = u32::MAX;

/// Names an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct EntryId {
    pub(super) stamp: u64,
    pub(super) place: u32,
}

#[derive(Debug)]
pub(super) struct Slab<T> {
    pub(super) nodes: Vec<Node<T>>,
    /// Free places, linked by `next`. The last one freed is used first: it is still in the cache.
    free: u32,
    len: usize,
    capacity: usize,
    number: u64,
}

impl<T> Slab<T> {
    pub(super) fn new(capacity: usize) -> Slab<T> {
        let capacity = capacity.min(MATCH_ENTRIES_MAX);
        Slab { nodes: Vec::new(), free: NONE, len: 0, capacity, number: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// How many entries there ever were.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn is_full(&self) -> bool {
        self.len >= self.capacity
    }

    #[inline]
    pub(super) fn insert(&mut self, key: Key, hash: u64, class: u8, item: T) -> Result<EntryId, Full> {
        if self.is_full() {
            return Err(Full);
        }
        let stamp = self.number << CLASS_BITS | u64::from(class);
        self.number += 1;
        self.len += 1;
        let place = if let Some(node) = self.nodes.get_mut(self.free as usize) {
            let place = core::mem::replace(&mut self.free, node.next);
            *node = Node { key, hash, stamp, previous: place, next: place, item: Some(item) };
            place
        } else {
            let place = self.nodes.len() as u32;
            self.nodes.push(Node { key, hash, stamp, previous: place, next: place, item: Some(item) });
            place
        };
        Ok(EntryId { stamp, place })
    }

    /// Takes an entry out that is in no index any more.
    #[inline]
    pub(super) fn remove(&mut self, id: EntryId) -> Option<T> {
        let node = self.nodes.get_mut(id.place as usize).filter(|node| node.stamp == id.stamp)?;
        node.stamp = VACANT;
        node.next = self.free;
        self.free = id.place;
        self.len -= 1;
        node.item.take()
    }

    /// The same where nobody wants the item.
    #[inline]
    pub(super) fn discard(&mut self, id: EntryId) {
        if let Some(node) = self.nodes.get_mut(id.place as usize).filter(|node| node.stamp == id.stamp) {
            node.stamp = VACANT;
            node.next = self.free;
            self.free = id.place;
            self.len -= 1;
            node.item = None;
        }
    }

    pub(super) fn id(&self, place: u32) -> Option<EntryId> {
        self.nodes.get(place as usize).map(|node| EntryId { stamp: node.stamp, place })
    }

    /// The entry's node; `None` once it is gone.
    pub(super) fn node(&self, id: EntryId) -> Option<&Node<T>> {
        self.nodes.get(id.place as usize).filter(|node| node.stamp == id.stamp)
    }

    pub(super) fn get(&self, id: EntryId) -> Option<&T> {
        self.node(id)?.item.as_ref()
    }

    pub(super) fn get_mut(&mut self, id: EntryId) -> Option<&mut T> {
        self.nodes.get_mut(id.place as usize).filter(|node| node.stamp == id.stamp)?.item.as_mut()
    }

    /// The entries by place.
    fn used(&self) -> impl Iterator<Item = (EntryId, &Node<T>)> {
        let places = self.nodes.iter().zip(0..).filter(|(node, _)| node.stamp != VACANT);
        places.map(|(node, place)| (EntryId { stamp: node.stamp, place }, node))
    }

    /// The ids in order of arrival. They are sorted for it: the order costs nothing while nobody asks.
    pub(super) fn in_order(&self) -> Vec<EntryId> {
        let mut ids: Vec<EntryId> = self.used().map(|(id, _)| id).collect();
        ids.sort_unstable();
        ids
    }

    /// The earliest entry that is wanted, by a look at every place.
    pub(super) fn search(&self, mut wanted: impl FnMut(&Node<T>) -> bool) -> Option<EntryId> {
        let mut first: Option<EntryId> = None;
        for (id, node) in self.used() {
            if first.is_none_or(|first| id < first) && wanted(node) {
                first = Some(id);
            }
        }
        first
    }

    /// Checks the list of free places.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let mut free = 0;
        let mut place = self.free;
        while let Some(node) = self.nodes.get(place as usize) {
            assert_eq!(node.stamp, VACANT);
            assert!(node.item.is_none());
            free += 1;
            place = node.next;
        }
        assert_eq!(free + self.len, self.nodes.len());
        assert_eq!(self.used().count(), self.len);
    }
}

/// The class in a stamp.
pub(super) fn class_of(stamp: u64) -> u8 {
    stamp as u8
}
