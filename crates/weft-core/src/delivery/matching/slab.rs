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
    /// The entries in order of arrival, linked by `older` and `newer`.
    oldest: u32,
    newest: u32,
    /// The oldest entry that the tables do not know; all behind it they do not know either.
    unindexed: u32,
}

#[expect(clippy::indexing_slicing, reason = "links hold numbers of places in use")]
impl<T> Slab<T> {
    pub(super) fn new(capacity: usize) -> Slab<T> {
        let capacity = capacity.min(MATCH_ENTRIES_MAX);
        let nodes = Vec::new();
        Slab { nodes, free: NONE, len: 0, capacity, number: 0, oldest: NONE, newest: NONE, unindexed: NONE }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// How many entries there ever were.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.len >= self.capacity
    }

    /// Puts an entry behind all others; it is in no table yet.
    #[inline(always)]
    pub(super) fn insert(&mut self, key: Key, class: u8, item: T) -> Result<EntryId, Full> {
        if self.is_full() {
            return Err(Full);
        }
        if self.free == NONE {
            self.grow();
        }
        let place = self.free;
        let stamp = self.number << CLASS_BITS | u64::from(class);
        let older = self.newest;
        let node = &mut self.nodes[place as usize];
        self.free = node.next;
        node.key = key;
        node.hash = 0;
        node.stamp = stamp;
        (node.previous, node.next) = (place, place);
        (node.older, node.newer) = (older, NONE);
        node.item = Some(item);
        self.number += 1;
        self.len += 1;
        self.newest = place;
        if older == NONE {
            self.oldest = place;
        } else {
            self.nodes[older as usize].newer = place;
        }
        if self.unindexed == NONE {
            self.unindexed = place;
        }
        Ok(EntryId { stamp, place })
    }

    #[cold]
    fn grow(&mut self) {
        self.free = self.nodes.len() as u32;
        let key = Key { source: 0, tag: 0 };
        let (previous, next, older, newer) = (NONE, NONE, NONE, NONE);
        self.nodes.push(Node { key, hash: 0, stamp: VACANT, previous, next, older, newer, item: None });
    }

    /// Takes an entry out that is in no index any more.
    #[inline]
    pub(super) fn remove(&mut self, id: EntryId) -> Option<T> {
        if !self.has(id) {
            return None;
        }
        self.leave(id.place);
        self.nodes[id.place as usize].item.take()
    }

    /// The same where nobody wants the item.
    pub(super) fn discard(&mut self, id: EntryId) {
        if self.has(id) {
            self.drop_at(id.place);
        }
    }

    /// The same of an entry that was just found.
    #[inline(always)]
    pub(super) fn drop_at(&mut self, place: u32) {
        let node = &mut self.nodes[place as usize];
        node.item = None;
        self.leave(place);
    }

    /// Takes a place out of the order, and makes it a free one.
    #[inline(always)]
    fn leave(&mut self, place: u32) {
        let node = &mut self.nodes[place as usize];
        let (older, newer) = (node.older, node.newer);
        node.stamp = VACANT;
        node.next = self.free;
        self.free = place;
        self.len -= 1;
        if self.unindexed == place {
            self.unindexed = newer;
        }
        match older {
            NONE => self.oldest = newer,
            older => self.nodes[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.nodes[newer as usize].older = older,
        }
    }

    /// The oldest entry; [`Slab::behind`] leads to the others.
    #[inline]
    pub(super) fn oldest(&self) -> Option<(EntryId, &Node<T>)> {
        self.at(self.oldest)
    }

    /// The entry that came after one.
    #[inline]
    pub(super) fn behind(&self, node: &Node<T>) -> Option<(EntryId, &Node<T>)> {
        self.at(node.newer)
    }

    #[inline]
    fn at(&self, place: u32) -> Option<(EntryId, &Node<T>)> {
        self.nodes.get(place as usize).map(|node| (EntryId { stamp: node.stamp, place }, node))
    }

    /// The oldest entry that the tables do not know. From now on they do.
    pub(super) fn next_unindexed(&mut self) -> Option<EntryId> {
        let (id, node) = self.at(self.unindexed)?;
        self.unindexed = node.newer;
        Some(id)
    }

    /// Whether an entry is still there.
    #[inline]
    pub(super) fn has(&self, id: EntryId) -> bool {
        self.nodes.get(id.place as usize).is_some_and(|node| node.stamp == id.stamp)
    }

    pub(super) fn id(&self, place: u32) -> Option<EntryId> {
        self.nodes.get(place as usize).map(|node| EntryId { stamp: node.stamp, place })
    }

    /// The entry's node; `None` once it is gone.
    #[inline]
    pub(super) fn node(&self, id: EntryId) -> Option<&Node<T>> {
        self.nodes.get(id.place as usize).filter(|node| node.stamp == id.stamp)
    }

    #[inline]
    pub(super) fn get(&self, id: EntryId) -> Option<&T> {
        self.node(id)?.item.as_ref()
    }

    pub(super) fn get_mut(&mut self, id: EntryId) -> Option<&mut T> {
        self.nodes.get_mut(id.place as usize).filter(|node| node.stamp == id.stamp)?.item.as_mut()
    }

    /// The entries by place.
    #[cfg(test)]
    fn used(&self) -> impl Iterator<Item = (EntryId, &Node<T>)> {
        let places = self.nodes.iter().zip(0..).filter(|(node, _)| node.stamp != VACANT);
        places.map(|(node, place)| (EntryId { stamp: node.stamp, place }, node))
    }

    /// The ids in order of arrival.
    pub(super) fn in_order(&self) -> Vec<EntryId> {
        let following = core::iter::successors(self.oldest(), |(_, node)| self.behind(node));
        following.map(|(id, _)| id).collect()
    }

    /// The earliest entry that is wanted, by a look at each of them.
    pub(super) fn search(&self, mut wanted: impl FnMut(&Node<T>) -> bool) -> Option<EntryId> {
        let mut at = self.oldest();
        while let Some((id, node)) = at {
            if wanted(node) {
                return Some(id);
            }
            at = self.behind(node);
        }
        None
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
        let order = self.in_order();
        assert!(order.is_sorted() && order.len() == self.len);
        assert_eq!(self.newest, order.last().map_or(NONE, |id| id.place));
        let indexed = order.iter().take_while(|id| id.place != self.unindexed).count();
        assert!(order.iter().skip(indexed).all(|id| self.nodes[id.place as usize].hash == 0));
    }
}

/// The class in a stamp.
#[inline]
pub(super) fn class_of(stamp: u64) -> u8 {
    stamp as u8
}
