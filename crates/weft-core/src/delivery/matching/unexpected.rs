//! Messages that wait for their receive.

use alloc::vec::Vec;

use super::index::{Index, Key, Node};
use super::slab::{EntryId, Slab, VACANT};
use super::{Full, Kind};
use crate::address::SourceId;
use crate::hash::Keyed;
use crate::limits::{MATCH_LOOKS, MATCH_VIEW_IDLE_MIN, MATCH_VIEWS_MAX};

/// Names an unexpected message. Once it is removed the id leads nowhere, even where another has taken its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UnexpectedId(EntryId);

/// Messages in the order in which they arrived, found by receives in a time that does not grow with their number. The
/// [module](super) tells how, with an example.
///
/// A kind of receive with wildcards pays once, when it first asks while messages wait, for a view of them that suits it.
/// From then on each message is put into that view as well, until receives of the kind stay away for long.
#[derive(Debug)]
pub struct Unexpected<T> {
    slab: Slab<T>,
    keyed: Keyed,
    exact: Index,
    views: Vec<View>,
    /// Views in use. While it is 0, a message is in one table only.
    views_len: usize,
}

/// A table of all messages by what one kind of receive compares.
#[derive(Debug)]
struct View {
    kind: Kind,
    in_use: bool,
    index: Index,
    /// One for each place of the slab; those of free places are stale.
    nodes: Vec<Node<()>>,
    /// Messages that had arrived when it was last asked.
    asked: u64,
}

const STALE: Node<()> = Node {
    key: Key { source: 0, tag: 0 },
    hash: 0,
    stamp: VACANT,
    previous: 0,
    next: 0,
    older: 0,
    newer: 0,
    item: None,
};

impl View {
    fn append(&mut self, keyed: &Keyed, id: EntryId, key: Key) {
        let place = id.place as usize;
        if self.nodes.len() <= place {
            self.nodes.resize(place + 1, STALE);
        }
        let key = self.kind.key(SourceId(key.source), key.tag);
        let hash = key.hash(keyed);
        if let Some(node) = self.nodes.get_mut(place) {
            *node = Node { key, hash, stamp: id.stamp, previous: id.place, next: id.place, ..STALE };
        }
        self.index.append(&mut self.nodes, key, hash, id.place);
    }
}

impl<T> Unexpected<T> {
    /// Room for `capacity` messages. Memory is taken as they come, and kept.
    #[must_use]
    pub fn new(keyed: Keyed, capacity: usize) -> Unexpected<T> {
        let slab = Slab::new(capacity);
        let exact = Index::new(slab.capacity());
        Unexpected { slab, keyed, exact, views: Vec::new(), views_len: 0 }
    }

    /// Puts a message behind all others.
    pub fn push(&mut self, source: SourceId, tag: u64, item: T) -> Result<UnexpectedId, Full> {
        let key = Kind::EXACT.key(source, tag);
        let id = self.slab.insert(key, 0, item)?;
        if self.views_len > 0 {
            self.push_to_views(id, key);
        }
        Ok(UnexpectedId(id))
    }

    /// The earliest message for a receive from `source` (`None`: from anyone) of this tag but for the bits set in
    /// `ignore`. It may build or note something for its kind of receive, and never changes the messages.
    #[must_use]
    #[inline]
    pub fn first(&mut self, source: Option<SourceId>, tag: u64, ignore: u64) -> Option<UnexpectedId> {
        if self.is_empty() { None } else { self.first_of_some(source, tag, ignore) }
    }

    fn first_of_some(&mut self, source: Option<SourceId>, tag: u64, ignore: u64) -> Option<UnexpectedId> {
        let kind = Kind::of(source, ignore);
        let key = kind.key(source.unwrap_or(SourceId(0)), tag);
        let meets = |node: &Node<T>| kind.key(SourceId(node.key.source), node.key.tag) == key;
        let mut at = self.slab.oldest();
        for _ in 0..MATCH_LOOKS {
            let (id, node) = at?;
            if meets(node) {
                return Some(UnexpectedId(id));
            }
            at = self.slab.behind(node);
        }
        at?;
        let place = if kind == Kind::EXACT {
            self.index();
            self.exact.first(&self.slab.nodes, &self.keyed, key)
        } else if let Some(view) = self.view(kind) {
            let view = self.views.get(view)?;
            view.index.first(&view.nodes, &self.keyed, key)
        } else {
            return self.slab.search(meets).map(UnexpectedId);
        };
        place.and_then(|place| self.slab.id(place)).map(UnexpectedId)
    }

    /// Puts the messages into the table of those without wildcards that are not there yet.
    fn index(&mut self) {
        while let Some(id) = self.slab.next_unindexed() {
            if let Some(node) = self.slab.nodes.get_mut(id.place as usize) {
                let key = node.key;
                let hash = key.hash(&self.keyed);
                node.hash = hash;
                self.exact.append(&mut self.slab.nodes, key, hash, id.place);
            }
        }
    }

    /// What is behind an id.
    #[must_use]
    pub fn get(&self, id: UnexpectedId) -> Option<&T> {
        self.slab.get(id.0)
    }

    /// What is behind an id, to be changed.
    pub fn get_mut(&mut self, id: UnexpectedId) -> Option<&mut T> {
        self.slab.get_mut(id.0)
    }

    /// Takes a message out; `None` when it is gone already.
    pub fn remove(&mut self, id: UnexpectedId) -> Option<T> {
        if self.slab.node(id.0)?.hash != 0 {
            self.exact.remove(&mut self.slab.nodes, id.0.place);
        }
        if self.views_len > 0 {
            for view in self.views.iter_mut().filter(|view| view.in_use) {
                view.index.remove(&mut view.nodes, id.0.place);
            }
        }
        self.slab.remove(id.0)
    }

    /// The earliest message that is wanted. Looks at all of them.
    pub fn find(&self, mut wanted: impl FnMut(&T) -> bool) -> Option<UnexpectedId> {
        self.slab.search(|node| node.item.as_ref().is_some_and(&mut wanted)).map(UnexpectedId)
    }

    /// The messages in order of arrival. The order is made for the purpose, with memory of its own: this is for closing
    /// and the like.
    pub fn iter(&self) -> impl Iterator<Item = (UnexpectedId, &T)> {
        self.slab.in_order().into_iter().filter_map(|id| Some((UnexpectedId(id), self.slab.get(id)?)))
    }

    /// Messages that wait.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.slab.len()
    }

    /// Whether no message waits.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Messages that there is room for, in all.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.slab.capacity()
    }

    /// Puts a message into the views, and drops those that nobody asks. A view may idle for as many messages as make the
    /// cost of building it again small beside theirs.
    fn push_to_views(&mut self, id: EntryId, key: Key) {
        let idle_max = MATCH_VIEW_IDLE_MIN.max(4 * self.slab.nodes.len() as u64);
        for view in self.views.iter_mut().filter(|view| view.in_use) {
            if self.slab.number() - view.asked <= idle_max {
                view.append(&self.keyed, id, key);
            } else {
                view.in_use = false;
                self.views_len -= 1;
            }
        }
    }

    /// The view of a kind, built if need be. `None`: all are taken by other kinds.
    fn view(&mut self, kind: Kind) -> Option<usize> {
        if let Some(at) = self.views.iter().position(|view| view.in_use && view.kind == kind) {
            self.views.get_mut(at)?.asked = self.slab.number();
            return Some(at);
        }
        let at = match self.views.iter().position(|view| !view.in_use) {
            Some(at) => at,
            None if self.views.len() < MATCH_VIEWS_MAX => {
                let index = Index::new(self.slab.capacity());
                self.views.push(View { kind, in_use: false, index, nodes: Vec::new(), asked: 0 });
                self.views.len() - 1
            }
            None => return None,
        };
        let view = self.views.get_mut(at)?;
        view.kind = kind;
        view.asked = self.slab.number();
        view.in_use = true;
        view.index.clear();
        self.views_len += 1;
        for id in self.slab.in_order() {
            if let Some(node) = self.slab.node(id) {
                view.append(&self.keyed, id, node.key);
            }
        }
        Some(at)
    }

    /// Checks that everything fits together.
    #[cfg(test)]
    pub(super) fn check(&self) {
        self.slab.check();
        let indexed = self.slab.nodes.iter().filter(|node| node.stamp != VACANT && node.hash != 0).count();
        assert_eq!(self.exact.check(&self.slab.nodes, &self.keyed), indexed);
        for view in self.views.iter().filter(|view| view.in_use) {
            assert_eq!(view.index.check(&view.nodes, &self.keyed), self.len());
        }
        assert_eq!(self.views.iter().filter(|view| view.in_use).count(), self.views_len);
    }
}
