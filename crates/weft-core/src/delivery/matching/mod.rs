//! Which receive a message is for: receives that wait ([`Posted`]) and messages that wait ([`Unexpected`]).
//!
//! A receive names a source, or takes anyone, and a tag of which it ignores some bits. Messages without tag use the same
//! structures with tag 0. Of all that match, the earliest is taken, always (MPI and libfabric promise so); what is hard
//! is to keep this true while no list is searched.
//!
//! Most programs match in about the order in which they post: then the entry that is wanted is one of the oldest, and to
//! look at those one by one costs less than a hash. So entries are put into tables when that has failed, and not before:
//! those that go earlier have never been in one. In the tables entries of the same source and tag stand in a queue, and a hash table (`index.rs`) leads to its head. Wildcards
//! would break a single table, so each *kind* of receive, (source named or not, bits ignored), has a table of its own in
//! which its own wildcards are blanked out. Posted receives are each in the table of their kind, and a message
//! compares the heads that it finds in the kinds there are. Unexpected messages are in one table for each kind that
//! asks for them, built when it first asks and dropped when it no longer does. A program without wildcards thus pays
//! for one table only. The cost of a match grows with the kinds in use, of which programs have a handful, and not with
//! the depth, but for cache misses: a match at random touches two lines of the table and one entry, which are far away
//! when a hundred thousand entries wait (`weft bench match` measures it). Who has several messages at hand can find the
//! receives of all of them before taking the first: the misses overlap, and what was found stays the earliest while its
//! id is good, since others only come behind it.
//!
//! ```
//! use weft_core::address::SourceId;
//! use weft_core::hash::Keyed;
//! use weft_core::delivery::matching::{Posted, Unexpected};
//!
//! let (alice, bob) = (SourceId(1), SourceId(2));
//! let mut posted = Posted::new(Keyed::new(3, 4), 1024);
//! posted.post(Some(bob), 7, 0, "from Bob")?;
//! posted.post(None, 7, 0, "from anyone")?;
//! posted.post(Some(alice), 0, u64::MAX, "any tag of Alice")?;
//!
//! // Two receives match; the one from anyone was posted first.
//! let id = posted.first(alice, 7).expect("a receive");
//! assert_eq!(posted.remove(id), Some("from anyone"));
//! let id = posted.first(alice, 7).expect("a receive");
//! assert_eq!(posted.remove(id), Some("any tag of Alice"));
//!
//! // Now nothing waits for Alice, so that her messages wait themselves.
//! assert_eq!(posted.first(alice, 9), None);
//! let mut unexpected = Unexpected::new(Keyed::new(3, 4), 1024);
//! unexpected.push(alice, 9, "hello")?;
//! unexpected.push(alice, 8, "world")?;
//! let id = unexpected.first(None, 0, u64::MAX).expect("a message");
//! assert_eq!(unexpected.remove(id), Some("hello"));
//! # Ok::<(), weft_core::delivery::matching::Full>(())
//! ```

mod index;
mod posted;
mod slab;
#[cfg(test)]
mod tests;
mod unexpected;

use core::fmt;

use crate::address::SourceId;

pub use posted::{Posted, PostedId};
pub use unexpected::{Unexpected, UnexpectedId};

/// There is no room for another entry. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "too many entries wait to be matched: complete or cancel some, then try again")
    }
}

impl core::error::Error for Full {}

/// Whose tables and lists an entry is in, and what it blanks out: a kind of receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kind {
    anyone: bool,
    ignore: u64,
}

impl Kind {
    const EXACT: Kind = Kind { anyone: false, ignore: 0 };

    #[inline]
    fn of(source: Option<SourceId>, ignore: u64) -> Kind {
        Kind { anyone: source.is_none(), ignore }
    }

    /// What is hashed and compared. The source of anyone is 0, which no other key of the same kind can be mistaken for.
    #[inline]
    fn key(self, source: SourceId, tag: u64) -> index::Key {
        index::Key { source: if self.anyone { 0 } else { source.0 }, tag: tag & !self.ignore }
    }
}
