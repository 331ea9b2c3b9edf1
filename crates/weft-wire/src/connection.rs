//! The connection table: millions of connections, 32 to 64 bytes each (28, in an
//! array of a power of two that is at most seven eighths full), found by protocol and queue.
//!
//! It holds what the checks of a definition compare with, and nothing that changes with the traffic but the expected
//! sequence number. Everything else lives in the transaction, and only while there is one.

use alloc::boxed::Box;
use alloc::vec;

use crate::table::{Attribute, Attributes, ProtocolId};

/// One connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Connection {
    /// The peer's queue.
    pub peer: u32,
    /// Queue key.
    pub key: u32,
    /// Next expected sequence number.
    pub sequence: u32,
    /// Where the peer is: a handle of the address vector's.
    pub address: u32,
    /// Partition.
    pub partition: u16,
    /// Base-two logarithm of the path MTU.
    pub mtu_log2: u8,
}

impl Connection {
    /// For the checks of a definition.
    #[must_use]
    pub fn attributes(&self) -> Attributes {
        Attribute::collect(&[
            (Attribute::Partition, u64::from(self.partition)),
            (Attribute::Key, u64::from(self.key)),
            (Attribute::Peer, u64::from(self.peer)),
            (Attribute::Sequence, u64::from(self.sequence)),
            (Attribute::Mtu, 1u64.checked_shl(u32::from(self.mtu_log2)).unwrap_or(0)),
        ])
    }
}

/// A place of the table. `protocol_plus_one` 0 means empty.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    connection: Connection,
    queue: u32,
    protocol_plus_one: u8,
}

const _: () = assert!(size_of::<Place>() <= 28, "millions of these are held");

/// Connections by protocol and queue. Open addressing: one array, no pointers.
#[derive(Debug)]
pub struct ConnectionTable {
    places: Box<[Place]>,
    live: usize,
    seed: u64,
}

impl ConnectionTable {
    /// A table for `capacity` connections. `seed` should be unpredictable where peers choose queue numbers, so that
    /// they cannot choose ones that collide.
    #[must_use]
    pub fn new(capacity: usize, seed: u64) -> ConnectionTable {
        // At most seven of eight places are used: longer runs would cost more than the memory saves.
        let places = capacity.saturating_mul(8).div_ceil(7).max(8).next_power_of_two();
        ConnectionTable { places: vec![Place::default(); places].into_boxed_slice(), live: 0, seed }
    }

    /// Connections in the table.
    #[must_use]
    pub fn len(&self) -> usize {
        self.live
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Bytes of the table.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        size_of_val(&*self.places)
    }

    /// Adds a connection, or replaces the one of that queue. `false`: the table is full.
    #[must_use]
    pub fn insert(&mut self, protocol: ProtocolId, queue: u32, connection: Connection) -> bool {
        let Ok(protocol) = u8::try_from(protocol.0 + 1) else { return false };
        let full = self.live >= self.places.len() / 8 * 7;
        let index = self.find(protocol, queue);
        let Some(place) = self.places.get_mut(index) else { return false };
        if place.protocol_plus_one == 0 {
            if full {
                return false;
            }
            self.live += 1;
        }
        *place = Place { connection, queue, protocol_plus_one: protocol };
        true
    }

    /// The connection of a queue.
    #[must_use]
    pub fn get(&self, protocol: ProtocolId, queue: u32) -> Option<&Connection> {
        let index = self.find(u8::try_from(protocol.0 + 1).ok()?, queue);
        self.places.get(index).filter(|place| place.protocol_plus_one != 0).map(|place| &place.connection)
    }

    /// The same, to change it.
    pub fn get_mut(&mut self, protocol: ProtocolId, queue: u32) -> Option<&mut Connection> {
        let index = self.find(u8::try_from(protocol.0 + 1).ok()?, queue);
        self.places.get_mut(index).filter(|place| place.protocol_plus_one != 0).map(|place| &mut place.connection)
    }

    /// Takes a connection out.
    pub fn remove(&mut self, protocol: ProtocolId, queue: u32) -> Option<Connection> {
        let mut hole = self.find(u8::try_from(protocol.0 + 1).ok()?, queue);
        let removed = self.places.get(hole).filter(|place| place.protocol_plus_one != 0)?.connection;
        self.live -= 1;
        // Close the gap: move back what would not be found across it.
        let mut at = hole;
        loop {
            at = (at + 1) & (self.places.len() - 1);
            let Some(place) = self.places.get(at).copied().filter(|place| place.protocol_plus_one != 0) else { break };
            let home = self.home(place.protocol_plus_one, place.queue);
            let distance = |from: usize| at.wrapping_sub(from) & (self.places.len() - 1);
            if distance(home) >= distance(hole) {
                if let Some(free) = self.places.get_mut(hole) {
                    *free = place;
                }
                hole = at;
            }
        }
        if let Some(place) = self.places.get_mut(hole) {
            *place = Place::default();
        }
        Some(removed)
    }

    fn home(&self, protocol: u8, queue: u32) -> usize {
        let key = (u64::from(protocol) << 32 | u64::from(queue)) ^ self.seed;
        let mixed = (key ^ key >> 31).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (mixed ^ mixed >> 29) as usize & (self.places.len() - 1)
    }

    /// The place of a queue, or the empty one where it would go.
    fn find(&self, protocol: u8, queue: u32) -> usize {
        let mut at = self.home(protocol, queue);
        // One place of eight is always empty, so this ends.
        while let Some(place) = self.places.get(at) {
            if place.protocol_plus_one == 0 || (place.queue == queue && place.protocol_plus_one == protocol) {
                break;
            }
            at = (at + 1) & (self.places.len() - 1);
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn connection(peer: u32) -> Connection {
        Connection { peer, mtu_log2: 10, ..Connection::default() }
    }

    #[test]
    fn two_million_connections_at_32_bytes_each() {
        const COUNT: u32 = 1_835_008; // seven eighths of 2^21
        let mut table = ConnectionTable::new(COUNT as usize, 0x1234);
        assert!((0..COUNT).all(|queue| table.insert(ProtocolId(1), queue, connection(!queue))));
        assert!(!table.insert(ProtocolId(2), 0, connection(0)), "full");
        assert!((0..COUNT).all(|queue| table.get(ProtocolId(1), queue).is_some_and(|c| c.peer == !queue)));
        assert!(table.get(ProtocolId(2), 7).is_none());
        assert!(table.memory_bytes() / COUNT as usize <= 32, "{} bytes", table.memory_bytes());
    }

    proptest! {
        #[test]
        fn the_table_is_a_map(steps in proptest::collection::vec((0u8..3, 0u32..40), 0..400), seed: u64) {
            let mut table = ConnectionTable::new(24, seed);
            let mut model = BTreeMap::new();
            for (step, queue) in steps {
                if step < 2 {
                    if table.insert(ProtocolId(0), queue, connection(queue)) {
                        model.insert(queue, connection(queue));
                    }
                } else {
                    prop_assert_eq!(table.remove(ProtocolId(0), queue), model.remove(&queue));
                }
                prop_assert_eq!(table.len(), model.len());
                for queue in 0..40 {
                    prop_assert_eq!(table.get(ProtocolId(0), queue), model.get(&queue));
                }
            }
        }
    }
}
