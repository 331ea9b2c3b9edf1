//! What is left of a life when its peer is idle (P-7.3): 16 bytes for an IPv4 peer, and it expires.
//!
//! The peer is kept exactly, not as a fingerprint: if two peers could share an entry, a life of one could end that of the
//! other while it still waits for an acknowledgement, and its request would be executed again.

use core::hash::BuildHasher;

use hashbrown::{HashMap, HashTable};

use crate::hash::Keyed;
use crate::limits::RETAIN_US;
use crate::node::NodeId;
use crate::time::Time;

/// An idle life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tombstone {
    pub(crate) ticket: u64,
    pub(crate) floor: u32,
    /// When the last packet of the life was processed.
    pub(crate) last: Time,
}

/// Address 32, port 16, ticket 40 (relative to the first), floor 32, age 8 bits.
#[derive(Clone, Copy, Debug)]
struct Packed(u128);

const _: () = assert!(size_of::<Packed>() == 16);

/// Bits of a ticket in a packed entry.
const TICKET_BITS: u32 = 40;

/// One unit of age. Eight bits of them must reach far beyond RETAIN, or an old entry would look young again.
const AGE_UNIT_US: u64 = 2_000_000;
const _: () = assert!(RETAIN_US / AGE_UNIT_US < 100);

/// All idle lives.
#[derive(Debug)]
pub(crate) struct Tombstones {
    v4: HashTable<Packed>,
    /// Peers that do not fit there, and tickets that do not.
    v6: HashMap<NodeId, Tombstone, Keyed>,
    keyed: Keyed,
    first_ticket: u64,
    capacity: usize,
    next_sweep: Time,
}

fn age_units(at: Time) -> u8 {
    (at.micros() / AGE_UNIT_US) as u8
}

impl Packed {
    fn peer(self) -> u64 {
        (self.0 >> 80) as u64
    }

    /// Age is rounded such that an entry never looks older than it is.
    fn unpack(self, first_ticket: u64, now: Time) -> Tombstone {
        let units = age_units(now).wrapping_sub(self.0 as u8);
        let start = now.micros() / AGE_UNIT_US;
        let last = Time::from_micros((start.saturating_sub(u64::from(units)) + 1) * AGE_UNIT_US).min(now);
        Tombstone {
            ticket: first_ticket + ((self.0 >> 40) as u64 & ((1 << TICKET_BITS) - 1)),
            floor: (self.0 >> 8) as u32,
            last,
        }
    }
}

impl Tombstones {
    pub(crate) fn new(keyed: Keyed, first_ticket: u64, capacity: usize) -> Tombstones {
        Tombstones {
            v4: HashTable::new(),
            v6: HashMap::with_hasher(keyed.clone()),
            keyed,
            first_ticket,
            capacity,
            next_sweep: Time::NEVER,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.v4.len() + self.v6.len()
    }

    /// Bytes of the entries; tables are at least half full once they have grown.
    pub(crate) fn bytes(&self) -> usize {
        self.v4.len() * size_of::<Packed>() + self.v6.len() * size_of::<(NodeId, Tombstone)>()
    }

    /// Whether another can be kept.
    pub(crate) fn has_room(&self) -> bool {
        self.len() < self.capacity
    }

    /// Keeps a life; the peer has none here. False: there is no room.
    pub(crate) fn insert(&mut self, peer: NodeId, tombstone: Tombstone) -> bool {
        if !self.has_room() {
            return false;
        }
        self.next_sweep = self.next_sweep.min(tombstone.last.plus_micros(RETAIN_US));
        // Tickets that do not fit any more are kept whole: a ticket cut short would be taken for an older one.
        let fits = tombstone.ticket.wrapping_sub(self.first_ticket) < 1 << TICKET_BITS;
        let Some(key) = peer.packed().filter(|_| fits) else {
            self.v6.insert(peer, tombstone);
            return true;
        };
        let ticket = u128::from(tombstone.ticket.wrapping_sub(self.first_ticket) & ((1 << TICKET_BITS) - 1));
        let age = u128::from(age_units(tombstone.last));
        let packed = Packed(u128::from(key) << 80 | ticket << 40 | u128::from(tombstone.floor) << 8 | age);
        let keyed = &self.keyed;
        self.v4.insert_unique(keyed.hash_one(key), packed, |entry| keyed.hash_one(entry.peer()));
        true
    }

    /// The idle life of a peer.
    pub(crate) fn get(&self, peer: NodeId, now: Time) -> Option<Tombstone> {
        if self.len() == 0 {
            return None;
        }
        let packed = peer.packed().and_then(|key| self.v4.find(self.keyed.hash_one(key), |entry| entry.peer() == key));
        match packed {
            Some(packed) => Some(packed.unpack(self.first_ticket, now)),
            None if self.v6.is_empty() => None,
            None => self.v6.get(&peer).copied(),
        }
    }

    /// Takes the idle life of a peer out: it ends, or wakes up.
    pub(crate) fn remove(&mut self, peer: NodeId) {
        if !self.v6.is_empty() {
            self.v6.remove(&peer);
        }
        let Some(key) = peer.packed() else { return };
        if let Ok(entry) = self.v4.find_entry(self.keyed.hash_one(key), |entry| entry.peer() == key) {
            entry.remove();
        }
    }

    /// When something may have expired.
    pub(crate) fn next_sweep(&self) -> Time {
        self.next_sweep
    }

    /// Drops what is older than RETAIN (P-7.4). Returns the greatest ticket dropped.
    pub(crate) fn sweep(&mut self, now: Time) -> Option<u64> {
        if now < self.next_sweep {
            return None;
        }
        let first_ticket = self.first_ticket;
        let mut greatest = None;
        let mut keep = |tombstone: Tombstone| {
            let keep = now < tombstone.last.plus_micros(RETAIN_US);
            if !keep {
                greatest = greatest.max(Some(tombstone.ticket));
            }
            keep
        };
        self.v4.retain(|packed| keep(packed.unpack(first_ticket, now)));
        self.v6.retain(|_, tombstone| keep(*tombstone));
        if self.len() == 0 {
            self.v4 = HashTable::new();
            self.v6 = HashMap::with_hasher(self.keyed.clone());
            self.next_sweep = Time::NEVER;
        } else {
            self.next_sweep = now.plus_micros(2 * AGE_UNIT_US);
        }
        greatest
    }
}

#[cfg(test)]
mod tests {
    use core::net::SocketAddr;

    use super::*;

    fn node(address: &str) -> NodeId {
        NodeId::at(address.parse::<SocketAddr>().unwrap().into())
    }

    #[test]
    fn entries_come_back_exactly_and_expire() {
        let mut stones = Tombstones::new(Keyed::new(3, 4), 1000, 3);
        let peer = node("10.0.0.1:9");
        let six = node("[::1]:9");
        let at = Time::from_micros(500_000_000);
        let stone = Tombstone { ticket: 1234, floor: 0xffff_fff0, last: at };
        assert!(stones.insert(peer, stone) && stones.insert(six, stone));
        let found = stones.get(peer, at).unwrap();
        assert_eq!((found.ticket, found.floor), (1234, 0xffff_fff0));
        assert!(found.last >= at, "an entry is never older than it is");
        assert_eq!(stones.get(node("10.0.0.1:8"), at), None);
        assert!(stones.insert(node("10.0.0.2:1"), stone) && !stones.insert(peer, stone));
        assert_eq!(stones.bytes(), 32 + size_of::<(NodeId, Tombstone)>());
        assert_eq!(stones.sweep(at.plus_micros(RETAIN_US - 1)), None);
        assert_eq!(stones.len(), 3);
        stones.sweep(at.plus_micros(RETAIN_US));
        assert_eq!(stones.sweep(at.plus_micros(RETAIN_US + 3 * AGE_UNIT_US)), Some(1234));
        assert_eq!(stones.len(), 0);
    }

    #[test]
    fn tickets_are_never_cut_short() {
        let mut stones = Tombstones::new(Keyed::new(3, 4), 1000, 2);
        let peer = node("10.0.0.1:9");
        let at = Time::from_micros(500_000_000);
        for ticket in [1000 + (1 << TICKET_BITS) - 1, 1000 + (1 << TICKET_BITS), 1007 + (1 << 50)] {
            assert!(stones.insert(peer, Tombstone { ticket, floor: 3, last: at }));
            assert_eq!(stones.get(peer, at).map(|stone| stone.ticket), Some(ticket));
            stones.remove(peer);
            assert_eq!((stones.get(peer, at), stones.len()), (None, 0));
        }
    }
}
