//! Retransmit entries: the commands under way, found by the 16-bit handle that travels with their packets (P-3.3).

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::lane::Aside;
use crate::address::Address;
use crate::command::{Command, Level, Operation};
use crate::event::Failure;

/// How far a command is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// In its tracker's queue; no packet was made.
    Queued,
    /// Some packets were made.
    Started,
    /// READY TO SEND was accepted; the target fetches the bytes and says DONE (P-5.5).
    AwaitDone,
}

/// A command under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) command: Command,
    /// Where it goes: resolved when it was posted.
    pub(crate) to: Address,
    /// Number of the endpoint that sends it.
    pub(crate) source: u32,
    pub(crate) tracker: u32,
    /// Its lane in the tracker.
    pub(crate) lane: u32,
    /// Where it waits in its lane; `None`: not there.
    pub(crate) aside: Option<Aside>,
    /// Message number.
    pub(crate) number: u32,
    pub(crate) phase: Phase,
    /// Bytes of the message that were cut into packets.
    pub(crate) cut: u32,
    /// Packets that are unsettled or wait to be issued again.
    pub(crate) packets: u32,
    /// Whether any packet was accepted under the tracker's ticket.
    pub(crate) accepted: bool,
    /// The key under which the target may read the message; 0: no rendezvous.
    pub(crate) rendezvous: u64,
    /// Whether it has begun to.
    pub(crate) fetched: bool,
    /// Member of a stream (P-6.4).
    pub(crate) ordered: bool,
    /// Its end makes a completion or is counted, so that its user may wait for it.
    pub(crate) is_reported: bool,
    pub(crate) failure: Option<Failure>,
    /// Of what the engine sends itself: what to go on with when it is done.
    pub(crate) purpose: u32,
}

impl Entry {
    /// Whether every packet was made.
    pub(crate) fn is_cut(&self) -> bool {
        self.phase != Phase::Queued && (self.cut >= self.wire_length() || self.failure.is_some())
    }

    /// Bytes that go through packets of this command: none of a rendezvous.
    pub(crate) fn wire_length(&self) -> u32 {
        if self.rendezvous != 0 { 0 } else { self.command.length }
    }

    /// Whether its messages are matched at the target.
    pub(crate) fn is_send(&self) -> bool {
        matches!(self.command.operation, Operation::Send | Operation::TaggedSend)
    }

    /// Whether the engine made it, because a peer waits for it.
    pub(crate) fn is_own(&self) -> bool {
        matches!(self.command.operation, Operation::Pull | Operation::Done)
    }

    /// Whether packets are answered by data.
    pub(crate) fn wants_response(&self) -> bool {
        use Operation::{CompareAtomic, FetchAtomic, Pull, Read};
        matches!(self.command.operation, Read | Pull | FetchAtomic | CompareAtomic)
    }

    /// Whether it is one packet that cannot be cut.
    pub(crate) fn is_atomic(&self) -> bool {
        matches!(self.command.operation, Operation::Atomic | Operation::FetchAtomic | Operation::CompareAtomic)
    }

    /// Whether the target keeps its result until it was received.
    pub(crate) fn is_fetch(&self) -> bool {
        self.wants_response() && !self.is_read()
    }

    /// Whether each packet asks for a piece of remote memory.
    pub(crate) fn is_read(&self) -> bool {
        matches!(self.command.operation, Operation::Read | Operation::Pull)
    }

    /// Whether the message must be in the user's memory before it is done.
    pub(crate) fn wants_delivery(&self) -> bool {
        self.is_send() && self.command.level == Level::Delivered
    }
}

/// All commands under way.
#[derive(Debug)]
pub(crate) struct Entries {
    slots: Vec<Option<Entry>>,
    /// Handles to use next, the one that was free longest first: late answers find nobody.
    free: VecDeque<u16>,
    capacity: usize,
    used: usize,
}

impl Entries {
    pub(crate) fn new(capacity: usize) -> Entries {
        let capacity = capacity.min(crate::limits::HANDLES_MAX);
        Entries { slots: Vec::new(), free: VecDeque::new(), capacity, used: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.used
    }

    pub(crate) fn has_room(&self, count: usize) -> bool {
        self.used + count <= self.capacity
    }

    pub(crate) fn room(&self) -> usize {
        self.capacity.saturating_sub(self.used)
    }

    /// Takes a command in; `None` when there are too many.
    pub(crate) fn insert(&mut self, entry: Entry) -> Option<u16> {
        if self.used >= self.capacity {
            return None;
        }
        // New handles before old ones, up to a point: a table that grows without need is cold.
        let grow = self.slots.len() < self.capacity && (self.free.is_empty() || self.slots.len() < 64);
        let handle = if grow {
            self.slots.push(None);
            self.slots.len() as u16
        } else {
            self.free.pop_front()?
        };
        *self.slots.get_mut(usize::from(handle) - 1)? = Some(entry);
        self.used += 1;
        Some(handle)
    }

    pub(crate) fn get(&self, handle: u16) -> Option<&Entry> {
        self.slots.get(usize::from(handle).checked_sub(1)?)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, handle: u16) -> Option<&mut Entry> {
        self.slots.get_mut(usize::from(handle).checked_sub(1)?)?.as_mut()
    }

    pub(crate) fn remove(&mut self, handle: u16) -> Option<Entry> {
        let entry = self.slots.get_mut(usize::from(handle).checked_sub(1)?)?.take()?;
        self.free.push_back(handle);
        self.used -= 1;
        Some(entry)
    }

    /// The handles in use.
    pub(crate) fn handles(&self) -> impl Iterator<Item = (u16, &Entry)> {
        (1..=u16::MAX).zip(&self.slots).filter_map(|(handle, slot)| slot.as_ref().map(|entry| (handle, entry)))
    }
}
