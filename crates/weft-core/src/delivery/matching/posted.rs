//! Receives that wait for their message.

use alloc::vec::Vec;

use super::index::{Index, Node};
use super::slab::{EntryId, Slab, class_of};
use super::{Full, Kind};
use crate::address::SourceId;
use crate::hash::Keyed;
use crate::limits::{MATCH_CLASSES_MAX, MATCH_LOOKS};

/// Names a posted receive. Once it is removed the id leads nowhere, even where another has taken its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PostedId(EntryId);

/// The class of receives without wildcards; those behind it are places in `Posted::wild`, counted from 1.
const EXACT: u8 = 0;
/// The class of receives whose kind found no table.
const LISTED: u8 = u8::MAX - 1;

const _: () = assert!(MATCH_CLASSES_MAX < LISTED as usize, "a class is one byte");

/// Receives in the order in which they were posted, found by source and tag in a time that does not grow with their
/// number. The [module](super) tells how, with an example.
#[derive(Debug)]
pub struct Posted<T> {
    slab: Slab<T>,
    keyed: Keyed,
    exact: Index,
    /// One table for each kind of receive with wildcards. An empty one is given to another kind when that needs it.
    wild: Vec<Class>,
    /// Receives in `wild` and `listed`. While it is 0, a message looks into one table.
    wild_len: usize,
    /// Receives of further kinds, in order of posting. They are searched one by one, and removed at a cost that grows with
    /// their number: more kinds at a time than tables are for programs that no one has seen.
    listed: Vec<Listed>,
}

#[derive(Debug)]
struct Class {
    kind: Kind,
    index: Index,
    /// Receives of the kind, in the table or not yet.
    len: usize,
}

#[derive(Debug)]
struct Listed {
    id: EntryId,
    kind: Kind,
}

impl<T> Posted<T> {
    /// Room for `capacity` receives. Memory is taken as they come, and kept.
    #[must_use]
    pub fn new(keyed: Keyed, capacity: usize) -> Posted<T> {
        let slab = Slab::new(capacity);
        let exact = Index::new(slab.capacity());
        Posted { slab, keyed, exact, wild: Vec::new(), wild_len: 0, listed: Vec::new() }
    }

    /// Posts a receive behind all others: for messages of `source` (`None`: of anyone) whose tag is `tag` but for the bits
    /// set in `ignore`.
    #[inline(always)]
    pub fn post(&mut self, source: Option<SourceId>, tag: u64, ignore: u64, item: T) -> Result<PostedId, Full> {
        if self.slab.is_full() {
            return Err(Full);
        }
        let kind = Kind::of(source, ignore);
        let key = kind.key(source.unwrap_or(SourceId(0)), tag);
        let class = match self.wild.first() {
            _ if kind == Kind::EXACT => EXACT,
            // Most programs have one kind with wildcards.
            Some(first) if first.kind == kind => 1,
            _ => self.class_for(kind),
        };
        let id = self.slab.insert(key, class, item)?;
        if class != EXACT {
            self.wild_len += 1;
            match self.wild.get_mut(class as usize - 1) {
                Some(class) => class.len += 1,
                None => self.list(id, kind),
            }
        }
        Ok(PostedId(id))
    }

    #[cold]
    fn list(&mut self, id: EntryId, kind: Kind) {
        self.listed.push(Listed { id, kind });
    }

    /// The earliest receive for a message of this source and tag. It may put receives into tables, which changes nothing
    /// that can be seen.
    #[must_use]
    #[inline(always)]
    pub fn first(&mut self, source: SourceId, tag: u64) -> Option<PostedId> {
        // Most programs post in the order in which messages come: the oldest is looked at here, the others elsewhere.
        match self.slab.oldest()? {
            (id, node) if self.meets(node, id, source, tag) => Some(PostedId(id)),
            _ => self.first_behind(source, tag),
        }
    }

    #[inline(never)]
    fn first_behind(&mut self, source: SourceId, tag: u64) -> Option<PostedId> {
        let mut at = self.slab.oldest();
        for _ in 0..MATCH_LOOKS {
            let (id, node) = at?;
            if self.meets(node, id, source, tag) {
                return Some(PostedId(id));
            }
            at = self.slab.behind(node);
        }
        if at.is_some() { self.first_in_tables(source, tag) } else { None }
    }

    /// Whether a receive is for a message of this source and tag.
    #[inline(always)]
    fn meets(&self, node: &Node<T>, id: EntryId, source: SourceId, tag: u64) -> bool {
        let kind = match class_of(id.stamp) {
            EXACT => Kind::EXACT,
            class => match self.wild.get(class as usize - 1) {
                Some(class) => class.kind,
                None => return self.meets_listed(node, id, source, tag),
            },
        };
        kind.key(source, tag) == node.key
    }

    #[cold]
    fn meets_listed(&self, node: &Node<T>, id: EntryId, source: SourceId, tag: u64) -> bool {
        let at = self.listed.binary_search_by_key(&id, |listed| listed.id).ok();
        let kind = at.and_then(|at| self.listed.get(at)).map(|listed| listed.kind);
        kind.is_some_and(|kind| kind.key(source, tag) == node.key)
    }

    #[cold]
    fn first_in_tables(&mut self, source: SourceId, tag: u64) -> Option<PostedId> {
        self.index();
        let nodes = &self.slab.nodes;
        // Programs post either kind, seldom both.
        let exact = if self.slab.len() > self.wild_len {
            self.exact.first(nodes, &self.keyed, Kind::EXACT.key(source, tag))
        } else {
            None
        };
        let first = exact.and_then(|place| self.slab.id(place));
        let first = if self.wild_len == 0 { first } else { self.first_wild(source, tag, first) };
        first.map(PostedId)
    }

    /// Puts the receives into their tables that are not there yet.
    fn index(&mut self) {
        while let Some(id) = self.slab.next_unindexed() {
            if let Some(index) = table(&mut self.exact, &mut self.wild, class_of(id.stamp))
                && let Some(node) = self.slab.nodes.get_mut(id.place as usize)
            {
                let key = node.key;
                let hash = key.hash(&self.keyed);
                node.hash = hash;
                index.append(&mut self.slab.nodes, key, hash, id.place);
            }
        }
    }

    /// What is behind an id.
    #[must_use]
    #[inline]
    pub fn get(&self, id: PostedId) -> Option<&T> {
        self.slab.get(id.0)
    }

    /// What is behind an id, to be changed.
    pub fn get_mut(&mut self, id: PostedId) -> Option<&mut T> {
        self.slab.get_mut(id.0)
    }

    /// Takes a receive out that nobody needs any more.
    #[inline(always)]
    pub fn discard(&mut self, id: PostedId) {
        let class = class_of(id.0.stamp);
        let plain = self.slab.node(id.0).is_some_and(|node| node.hash == 0) && class != LISTED;
        if plain {
            if let Some(class) = self.wild.get_mut((class as usize).wrapping_sub(1)) {
                class.len -= 1;
                self.wild_len -= 1;
            }
            self.slab.drop_at(id.0.place);
        } else if self.unlink(id).is_some() {
            self.slab.discard(id.0);
        }
    }

    /// Takes a receive out; `None` when it is gone already.
    pub fn remove(&mut self, id: PostedId) -> Option<T> {
        self.unlink(id)?;
        self.slab.remove(id.0)
    }

    #[inline(never)]
    fn unlink(&mut self, id: PostedId) -> Option<()> {
        let indexed = self.slab.node(id.0)?.hash != 0;
        let class = class_of(id.0.stamp);
        if indexed && let Some(index) = table(&mut self.exact, &mut self.wild, class) {
            index.remove(&mut self.slab.nodes, id.0.place);
        }
        if class != EXACT {
            self.wild_len -= 1;
            match self.wild.get_mut(class as usize - 1) {
                Some(class) => class.len -= 1,
                None => {
                    if let Ok(at) = self.listed.binary_search_by_key(&id.0, |listed| listed.id) {
                        self.listed.remove(at);
                    }
                }
            }
        }
        Some(())
    }

    /// The earliest receive that is wanted. Looks at all of them.
    pub fn find(&self, mut wanted: impl FnMut(&T) -> bool) -> Option<PostedId> {
        self.slab.search(|node| node.item.as_ref().is_some_and(&mut wanted)).map(PostedId)
    }

    /// The receives in order of posting. The order is made for the purpose, with memory of its own: this is for
    /// closing and the like.
    pub fn iter(&self) -> impl Iterator<Item = (PostedId, &T)> {
        self.slab.in_order().into_iter().filter_map(|id| Some((PostedId(id), self.slab.get(id)?)))
    }

    /// Receives that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slab.len()
    }

    /// Whether no receive waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Receives that there is room for, in all.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.slab.capacity()
    }

    /// The class of a kind with wildcards.
    fn class_for(&mut self, kind: Kind) -> u8 {
        if let Some(at) = self.wild.iter().position(|class| class.kind == kind) {
            return at as u8 + 1;
        }
        if let Some(at) = self.wild.iter().position(|class| class.len == 0) {
            if let Some(class) = self.wild.get_mut(at) {
                class.kind = kind;
            }
            return at as u8 + 1;
        }
        if self.wild.len() < MATCH_CLASSES_MAX {
            self.wild.push(Class { kind, index: Index::new(self.slab.capacity()), len: 0 });
            return self.wild.len() as u8;
        }
        LISTED
    }

    /// The earliest of `first` and the receives with wildcards.
    fn first_wild(&self, source: SourceId, tag: u64, mut first: Option<EntryId>) -> Option<EntryId> {
        for class in &self.wild {
            let place = class.index.first(&self.slab.nodes, &self.keyed, class.kind.key(source, tag));
            let Some(id) = place.and_then(|place| self.slab.id(place)) else { continue };
            if first.is_none_or(|first| id < first) {
                first = Some(id);
            }
        }
        for Listed { id, kind } in &self.listed {
            if first.is_some_and(|first| first < *id) {
                break;
            }
            if self.slab.node(*id).is_some_and(|node| node.key == kind.key(source, tag)) {
                return Some(*id);
            }
        }
        first
    }

    /// Checks that everything fits together.
    #[cfg(test)]
    pub(super) fn check(&self) {
        self.slab.check();
        let indexed = |class| {
            let of_class = |node: &&Node<T>| node.stamp != super::slab::VACANT && class_of(node.stamp) == class;
            self.slab.nodes.iter().filter(of_class).filter(|node| node.hash != 0).count()
        };
        assert_eq!(self.exact.check(&self.slab.nodes, &self.keyed), indexed(EXACT));
        for (class, at) in self.wild.iter().zip(1..) {
            assert_eq!(class.index.check(&self.slab.nodes, &self.keyed), indexed(at));
        }
        let wild: usize = self.wild.iter().map(|class| class.len).sum();
        assert_eq!(wild + self.listed.len(), self.wild_len);
        assert!(self.listed.is_sorted_by_key(|listed| listed.id));
    }
}

/// The table of a class, if it has one.
fn table<'a>(exact: &'a mut Index, wild: &'a mut [Class], class: u8) -> Option<&'a mut Index> {
    match class {
        EXACT => Some(exact),
        class => wild.get_mut(class as usize - 1).map(|class| &mut class.index),
    }
}
