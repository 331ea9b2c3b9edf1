//! Transactions: the operations that are under way, and where their bytes go.
//!
//! Connections may be millions; what is active at once is hundreds to thousands. So the table of transactions is small
//! and of fixed size, and an id carries a generation: an id from before is refused until its place was used as often as
//! the generation's bits can count, and places are used in turn, the one that was free longest first.
//! A packet names its transaction in one of three ways, as its definition says ([`TransactionBy`]): the id is in a
//! field; fields are the key of a table; or fields are matched, with masks, in order.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

use crate::command::Command;
use crate::limits::{GENERATION_MIN_BITS, SEGMENTS_MAX};
use crate::table::{Attribute, Attributes, Decoded, Placement, Tables, TransactionBy};

/// A piece of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Segment {
    /// First byte.
    pub address: u64,
    /// Bytes.
    pub length: u64,
}

/// One operation under way: the memory it was granted, and how far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Transaction {
    /// The memory, in message order. A plain buffer is a list of one.
    segments: [Segment; SEGMENTS_MAX],
    /// Bytes of all segments.
    length: u64,
    /// Where the next packet's bytes go, for protocols that only know "behind the last".
    next: u64,
    /// Sequence number of the message's first packet.
    pub first_sequence: u64,
    /// Bytes in each packet but the last.
    pub mtu: u64,
    /// The memory key it was granted.
    pub key: u64,
    /// The queue at the other end.
    pub peer: u64,
}

/// Why bytes cannot be placed. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacementError {
    /// They would lie outside of what the transaction was granted.
    OutOfRange {
        /// First byte, from the beginning of the message.
        offset: u64,
        /// Bytes.
        length: u64,
        /// Bytes granted.
        granted: u64,
    },
    /// The opcode's payload has no place of its own.
    NoPlace,
    /// The packet is placed by its transaction, and there is none.
    NoTransaction,
}

impl fmt::Display for PlacementError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlacementError::OutOfRange { offset, length, granted } => {
                write!(f, "{length} bytes at offset {offset} lie outside of the {granted} bytes granted")
            }
            PlacementError::NoPlace => write!(f, "the payload of this opcode is not placed"),
            PlacementError::NoTransaction => write!(f, "the packet belongs to no transaction"),
        }
    }
}

impl core::error::Error for PlacementError {}

impl Transaction {
    /// A transaction over these pieces of memory; `None` when there are more than [`SEGMENTS_MAX`], or their lengths
    /// overflow.
    #[must_use]
    pub fn new(segments: &[Segment]) -> Option<Transaction> {
        let mut transaction = Transaction { mtu: 1, ..Transaction::default() };
        let places = transaction.segments.get_mut(..segments.len())?;
        places.copy_from_slice(segments);
        for segment in segments {
            segment.address.checked_add(segment.length)?;
            transaction.length = transaction.length.checked_add(segment.length)?;
        }
        Some(transaction)
    }

    /// Bytes granted.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// For the checks of a definition.
    #[must_use]
    pub fn attributes(&self) -> Attributes {
        let first = self.segments.first().copied().unwrap_or_default();
        Attribute::collect(&[
            (Attribute::Key, self.key),
            (Attribute::Peer, self.peer),
            (Attribute::Sequence, self.first_sequence),
            (Attribute::Start, first.address),
            (Attribute::End, first.address.wrapping_add(first.length)),
            (Attribute::Remaining, self.length - self.next),
            (Attribute::Mtu, self.mtu),
        ])
    }

    /// The pieces of memory for `length` bytes at `offset` of the message.
    fn pieces(&self, offset: u64, length: u64) -> Result<Pieces, PlacementError> {
        if offset.checked_add(length).is_none_or(|end| end > self.length) {
            return Err(PlacementError::OutOfRange { offset, length, granted: self.length });
        }
        Ok(Pieces { segments: self.segments, index: 0, skip: offset, left: length })
    }
}

/// Where a payload goes: the pieces in order.
#[derive(Clone, Copy, Debug)]
pub struct Pieces {
    segments: [Segment; SEGMENTS_MAX],
    index: usize,
    skip: u64,
    left: u64,
}

impl Iterator for Pieces {
    type Item = Segment;

    fn next(&mut self) -> Option<Segment> {
        while self.left > 0 {
            let segment = *self.segments.get(self.index)?;
            self.index += 1;
            if self.skip >= segment.length {
                self.skip -= segment.length;
                continue;
            }
            let piece = Segment {
                address: segment.address.wrapping_add(self.skip),
                length: (segment.length - self.skip).min(self.left),
            };
            self.skip = 0;
            self.left -= piece.length;
            return Some(piece);
        }
        None
    }
}

impl Tables {
    /// Where the payload of a decoded packet goes, by the placement rule of its opcode. Packets may come in any order,
    /// but for [`Placement::Next`], which keeps the next address in the transaction.
    pub fn place(&self, decoded: &Decoded, transaction: Option<&mut Transaction>) -> Result<Pieces, PlacementError> {
        let (placement, sequence_bits) = self.placement(decoded);
        let command = &decoded.command;
        let length = u64::from(decoded.payload_length);
        if placement == Placement::Packet {
            let address = command.address();
            if address.checked_add(length).is_none() {
                return Err(PlacementError::OutOfRange { offset: address, length, granted: u64::MAX });
            }
            let mut segments = [Segment::default(); SEGMENTS_MAX];
            segments[0] = Segment { address, length };
            return Ok(Pieces { segments, index: 0, skip: 0, left: length });
        }
        if placement == Placement::None {
            return Err(PlacementError::NoPlace);
        }
        let Some(transaction) = transaction else { return Err(PlacementError::NoTransaction) };
        let offset = match placement {
            Placement::Next => transaction.next,
            Placement::Sequence => sequence_offset(command, transaction, sequence_bits),
            _ => command.offset(),
        };
        let pieces = transaction.pieces(offset, length)?;
        if placement == Placement::Next {
            transaction.next = offset + length;
        }
        Ok(pieces)
    }

    /// The transaction of a decoded packet.
    #[must_use]
    pub fn transaction(&self, decoded: &Decoded, table: &TransactionTable) -> Option<TransactionId> {
        let key = decoded.command.transaction();
        match self.transaction_by(decoded) {
            TransactionBy::None => None,
            TransactionBy::Field => table.by_field(key),
            TransactionBy::Table => table.by_key(key),
            TransactionBy::Match => table.by_match(key),
        }
    }
}

/// Packets since the first one, times the MTU. Sequence numbers wrap at their width.
fn sequence_offset(command: &Command, transaction: &Transaction, bits: u32) -> u64 {
    let mask = u64::MAX >> (64 - bits.clamp(1, 64));
    let distance = command.sequence().wrapping_sub(transaction.first_sequence) & mask;
    distance.saturating_mul(transaction.mtu)
}

/// Names a transaction for as long as it lives. On the wire it is [`TransactionId::to_bits`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TransactionId(u32);

impl TransactionId {
    /// What travels in a packet.
    #[must_use]
    pub fn to_bits(self) -> u32 {
        self.0
    }
}

/// How a transaction can be found, beside by its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Find {
    /// By id only.
    Id,
    /// By this key.
    Key(u64),
    /// By a key that equals `value` where `mask` has ones. Earlier entries win.
    Match {
        /// Wanted bits.
        value: u64,
        /// Bits that count.
        mask: u64,
    },
}

/// Why a transaction was not taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionError {
    /// The table is full: wait until one is done.
    Full,
    /// There is one with this key already.
    KeyTaken,
}

impl fmt::Display for TransactionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TransactionError::Full => write!(f, "the transaction table is full: wait until one is done"),
            TransactionError::KeyTaken => write!(f, "a transaction with this key is under way"),
        }
    }
}

impl core::error::Error for TransactionError {}

const NONE: u32 = u32::MAX;

#[derive(Clone, Debug)]
struct Entry {
    transaction: Transaction,
    find: Find,
    generation: u32,
    live: bool,
    /// Next free entry, or next in its key's chain.
    next: u32,
}

/// The active transactions: allocated once, never more than its capacity.
#[derive(Debug)]
pub struct TransactionTable {
    entries: Box<[Entry]>,
    /// First and last of the free places: used in turn, so that an id comes back as late as possible.
    free: u32,
    free_last: u32,
    /// Heads of the chains of keys, twice as many as entries.
    chains: Box<[u32]>,
    matches: Vec<(u64, u64, u32)>,
    index_bits: u32,
    id_bits: u32,
    live: usize,
}

impl TransactionTable {
    /// A table for `capacity` transactions (a power of two) whose ids have `id_bits` bits on the wire. What the index
    /// leaves of them is the generation, at least [`GENERATION_MIN_BITS`]. `None` when that cannot be.
    #[must_use]
    pub fn new(capacity: usize, id_bits: u32) -> Option<TransactionTable> {
        let index_bits = capacity.checked_ilog2()?;
        if !capacity.is_power_of_two() || id_bits > 32 || index_bits + GENERATION_MIN_BITS > id_bits {
            return None;
        }
        let entry = |index: usize| Entry {
            transaction: Transaction::default(),
            find: Find::Id,
            generation: 0,
            live: false,
            next: if index + 1 < capacity { index as u32 + 1 } else { NONE },
        };
        Some(TransactionTable {
            entries: (0..capacity).map(entry).collect(),
            free: 0,
            free_last: capacity as u32 - 1,
            chains: alloc::vec![NONE; capacity * 2].into_boxed_slice(),
            matches: Vec::with_capacity(capacity),
            index_bits,
            id_bits,
            live: 0,
        })
    }

    /// Transactions under way.
    #[must_use]
    pub fn len(&self) -> usize {
        self.live
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Takes a transaction in.
    pub fn insert(&mut self, transaction: Transaction, find: Find) -> Result<TransactionId, TransactionError> {
        if let Find::Key(key) = find
            && self.by_key(key).is_some()
        {
            return Err(TransactionError::KeyTaken);
        }
        let index = self.free;
        let id_bits = self.id_bits;
        let index_bits = self.index_bits;
        let Some(entry) = self.entries.get_mut(index as usize) else { return Err(TransactionError::Full) };
        self.free = entry.next;
        entry.transaction = transaction;
        entry.find = find;
        entry.live = true;
        entry.next = NONE;
        let id = TransactionId(id_of(index, entry.generation, index_bits, id_bits));
        match find {
            Find::Id => {}
            Find::Key(key) => {
                let chain = self.chain(key);
                if let (Some(head), Some(entry)) = (self.chains.get_mut(chain), self.entries.get_mut(index as usize)) {
                    entry.next = core::mem::replace(head, index);
                }
            }
            Find::Match { value, mask } => self.matches.push((value & mask, mask, index)),
        }
        self.live += 1;
        Ok(id)
    }

    /// The transaction of this id, while it lives.
    #[must_use]
    pub fn get(&self, id: TransactionId) -> Option<&Transaction> {
        self.entries.get(self.index(id)?).map(|entry| &entry.transaction)
    }

    /// The same, to change it.
    pub fn get_mut(&mut self, id: TransactionId) -> Option<&mut Transaction> {
        let index = self.index(id)?;
        self.entries.get_mut(index).map(|entry| &mut entry.transaction)
    }

    /// Ends a transaction. Its id, and whatever else found it, finds nothing from now on.
    pub fn remove(&mut self, id: TransactionId) -> Option<Transaction> {
        let index = self.index(id)?;
        let (find, transaction, next) =
            self.entries.get(index).map(|entry| (entry.find, entry.transaction, entry.next))?;
        let index = index as u32;
        match find {
            Find::Id => {}
            Find::Key(key) => self.unchain(key, index, next),
            Find::Match { .. } => self.matches.retain(|(_, _, known)| *known != index),
        }
        if let Some(entry) = self.entries.get_mut(index as usize) {
            entry.live = false;
            entry.generation = entry.generation.wrapping_add(1);
            entry.next = NONE;
        }
        match self.entries.get_mut(self.free_last as usize).filter(|_| self.free != NONE) {
            Some(last) => last.next = index,
            None => self.free = index,
        }
        self.free_last = index;
        self.live -= 1;
        Some(transaction)
    }

    /// By the id in a field of a packet.
    #[must_use]
    pub fn by_field(&self, bits: u64) -> Option<TransactionId> {
        let id = TransactionId(u32::try_from(bits).ok()?);
        self.index(id).map(|_| id)
    }

    /// By the key that fields of a packet make.
    #[must_use]
    pub fn by_key(&self, key: u64) -> Option<TransactionId> {
        let mut index = *self.chains.get(self.chain(key))?;
        while let Some(entry) = self.entries.get(index as usize) {
            if entry.find == Find::Key(key) {
                return Some(self.id(index));
            }
            index = entry.next;
        }
        None
    }

    /// By the first match of what fields of a packet make.
    #[must_use]
    pub fn by_match(&self, key: u64) -> Option<TransactionId> {
        let hit = self.matches.iter().find(|(value, mask, _)| key & mask == *value);
        hit.map(|(_, _, index)| self.id(*index))
    }

    fn id(&self, index: u32) -> TransactionId {
        let generation = self.entries.get(index as usize).map_or(0, |entry| entry.generation);
        TransactionId(id_of(index, generation, self.index_bits, self.id_bits))
    }

    fn index(&self, id: TransactionId) -> Option<usize> {
        let index = id.0 as usize & ((1 << self.index_bits) - 1);
        let entry = self.entries.get(index)?;
        (entry.live && self.id(index as u32) == id).then_some(index)
    }

    fn chain(&self, key: u64) -> usize {
        // Keys are chosen by our side or checked before: mixing them is enough.
        let mixed = key.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (mixed >> 32) as usize & (self.chains.len() - 1)
    }

    fn unchain(&mut self, key: u64, index: u32, next: u32) {
        let chain = self.chain(key);
        let Some(head) = self.chains.get_mut(chain) else { return };
        if *head == index {
            *head = next;
            return;
        }
        let mut at = *head;
        while let Some(entry) = self.entries.get_mut(at as usize) {
            if entry.next == index {
                entry.next = next;
                return;
            }
            at = entry.next;
        }
    }
}

fn id_of(index: u32, generation: u32, index_bits: u32, id_bits: u32) -> u32 {
    let id = u64::from(generation) << index_bits | u64::from(index);
    (id & (u64::MAX >> (64 - id_bits))) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::vec::Vec;

    fn buffer(address: u64, length: u64) -> Transaction {
        Transaction::new(&[Segment { address, length }]).unwrap()
    }

    #[test]
    fn a_dead_id_finds_nothing_even_when_its_place_is_taken_again() {
        let mut table = TransactionTable::new(1, 16).unwrap();
        let first = table.insert(buffer(0, 8), Find::Key(5)).unwrap();
        assert_eq!(table.insert(buffer(0, 8), Find::Key(6)), Err(TransactionError::Full));
        assert_eq!(table.insert(buffer(0, 8), Find::Key(5)), Err(TransactionError::KeyTaken));
        assert!(table.remove(first).is_some() && table.remove(first).is_none());
        let second = table.insert(buffer(9, 8), Find::Match { value: 0xab00, mask: 0xff00 }).unwrap();
        assert!(table.get(first).is_none() && table.by_field(u64::from(first.to_bits())).is_none());
        assert_eq!(table.by_match(0xabcd), Some(second));
        assert_eq!((table.by_key(5), table.by_match(0xcd)), (None, None));
        assert!(TransactionTable::new(3, 16).is_none() && TransactionTable::new(1 << 13, 16).is_none());
    }

    #[test]
    fn an_id_comes_back_only_when_all_generations_were_used() {
        let mut table = TransactionTable::new(4, 8).unwrap();
        let first = table.insert(buffer(0, 8), Find::Id).unwrap();
        table.remove(first);
        // Four places in turn, 2^6 generations each.
        let again = (1..).find(|_| {
            let id = table.insert(buffer(0, 8), Find::Id).unwrap();
            table.remove(id);
            id == first
        });
        assert_eq!(again, Some(4 * 64));
    }

    #[test]
    fn pieces_follow_the_list() {
        let list = [Segment { address: 100, length: 10 }, Segment { address: 500, length: 5 }];
        let transaction = Transaction::new(&list).unwrap();
        let at = |offset, length| transaction.pieces(offset, length).map(|pieces| pieces.collect::<Vec<_>>());
        assert_eq!(at(8, 4).unwrap(), [Segment { address: 108, length: 2 }, Segment { address: 500, length: 2 }]);
        assert_eq!(at(10, 5).unwrap(), [Segment { address: 500, length: 5 }]);
        assert_eq!(at(15, 0).unwrap(), []);
        assert!(at(15, 1).is_err() && at(u64::MAX, 2).is_err());
        assert!(Transaction::new(&[Segment { address: u64::MAX, length: 2 }]).is_none());
        assert!(Transaction::new(&[Segment::default(); SEGMENTS_MAX + 1]).is_none());
    }

    proptest! {
        #[test]
        fn the_table_is_a_map(steps in proptest::collection::vec((any::<bool>(), 0u64..24), 0..300)) {
            let mut table = TransactionTable::new(16, 16).unwrap();
            let mut model: BTreeMap<u64, TransactionId> = BTreeMap::new();
            let mut dead: Vec<TransactionId> = Vec::new();
            for (insert, key) in steps {
                if insert {
                    match table.insert(buffer(key, 1), Find::Key(key)) {
                        Ok(id) => { prop_assert!(model.insert(key, id).is_none()); dead.retain(|old| *old != id); }
                        Err(TransactionError::Full) => prop_assert_eq!(model.len(), 16),
                        Err(TransactionError::KeyTaken) => prop_assert!(model.contains_key(&key)),
                    }
                } else if let Some(id) = model.remove(&key) {
                    prop_assert!(table.remove(id).is_some());
                    dead.push(id);
                }
                prop_assert_eq!(table.len(), model.len());
                for key in 0..24 {
                    prop_assert_eq!(table.by_key(key), model.get(&key).copied());
                }
                prop_assert!(dead.iter().all(|id| table.get(*id).is_none()));
            }
        }
    }
}
