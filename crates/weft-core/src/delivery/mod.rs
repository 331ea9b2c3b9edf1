//! Delivery: what every transport ends in.
//!
//! Packets, shared memory, and whatever else brings messages, writes and the ends of operations share one state machine:
//! a message is matched, or kept until its receive is posted (`arrival.rs`, `receive.rs`, `claim.rs`); its bytes are placed;
//! its completion fills a place that was reserved before (`report.rs`); counters count and triggers fire (`counter.rs`).
//! No transport knows another, and receives match messages of all of them in the order in which they come.
//!
//! # Contract
//! A transport gives a short message with [`Delivery::deliver`]. A long one it begins with [`Delivery::begin`], puts its
//! bytes where [`Delivery::place`] or [`Delivery::destination`] says, and ends with [`Delivery::end`]. One that waits at
//! its sender is begun as [`SendMode::Rendezvous`]; [`Delivery::poll_decided`] tells when it is wanted. What its own user posts
//! is checked by [`Delivery::admit`] and reported by [`Delivery::report`], once.

mod arrival;
mod claim;
mod counter;
mod endpoint;
mod matched;
pub mod matching;
mod receive;
mod remote;
mod report;
mod spare;
mod vector_op;

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::address::{Address, AddressVector, PeerId, SourceId};
use crate::command::EndpointId;
use crate::event::{Completion, CompletionEntry, CompletionQueue, QueueId};
use crate::hash::Keyed;
use crate::limits::MTU_DEFAULT_BYTES;
use crate::memory::Memory;
use crate::random::Random;
use crate::slab::Slab;

pub use arrival::{ArrivalId, Decided, Decision, Delivered, Destination, Payload, SendMode, Start};
pub use claim::{ClaimId, Peek, Peeked};
pub use counter::Touched;
pub use endpoint::{Bindings, EndpointKind, OpenError, Opening, Side};
pub(crate) use matched::{read_local, write_local};
pub use report::{Admitted, ReportPlace};
pub use vector_op::VectorOpId;

use arrival::Arriving;
use claim::Claim;
use counter::Events;
use endpoint::Endpoints;
use receive::MultiReceive;
use spare::SpareBuffers;
use vector_op::VectorOp;

/// What matching and completion need to know of a message.
#[derive(Clone, Copy, Debug)]
pub struct Envelope {
    /// Whom it is for.
    pub endpoint: EndpointId,
    /// Who sent it.
    pub source: Address,
    /// What matching compares: [`AddressVector::source_of`] the source.
    pub source_id: SourceId,
    /// The source's name, as far as the caller knows; looked up when it is wrong.
    pub peer: Option<PeerId>,
    /// With a tag, or without.
    pub tagged: bool,
    /// The tag.
    pub tag: u64,
    /// Immediate data.
    pub immediate: Option<u64>,
    /// Bytes.
    pub length: u32,
}

/// What brings a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Packets, by whatever link.
    Packets,
    /// Shared memory inside the node.
    Shm,
}

impl Transport {
    /// How many there are.
    const COUNT: usize = 2;
}

/// How much may wait here. See [`crate::engine::Config`].
#[derive(Clone, Copy, Debug)]
pub struct DeliveryConfig {
    /// Receives that may be posted to one endpoint.
    pub receives_max: usize,
    /// Messages that may wait for a receive at one endpoint.
    pub unexpected_max: usize,
    /// Bytes of them.
    pub unexpected_max_bytes: usize,
    /// Longest datagram to a peer of which nothing better is known.
    pub mtu_bytes: u32,
}

impl Default for DeliveryConfig {
    fn default() -> DeliveryConfig {
        DeliveryConfig {
            receives_max: 1 << 20,
            unexpected_max: 1 << 16,
            unexpected_max_bytes: 64 << 20,
            mtu_bytes: MTU_DEFAULT_BYTES,
        }
    }
}

/// What became free while a transport had refused somebody for want of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freed {
    /// Completions were read.
    Queue(QueueId),
    /// A receive was posted to this endpoint, or a message that waited there was taken.
    Receives(EndpointId),
    /// Something that all endpoints share.
    Shared,
}

/// Endpoints, queues, counters and memory of a node, and the messages that arrive there.
#[derive(Debug)]
pub struct Delivery<M> {
    config: DeliveryConfig,
    random: Random,
    keyed: Keyed,
    memory: M,
    addresses: AddressVector,
    endpoints: Endpoints,
    events: Events,
    vector_ops: Slab<VectorOp>,
    /// Messages of which not everything is here.
    arrivals: Slab<Arriving>,
    /// Of each transport: those that waited at their sender, and how their waiting ended.
    decided: [VecDeque<(u32, Decision)>; Transport::COUNT],
    /// Messages that waited at senders reached by packets, and of which their user has been told.
    told: VecDeque<u64>,
    multi_receives: Slab<MultiReceive>,
    /// Messages that were claimed, and a number for the last.
    claims: Slab<Claim>,
    claim_stamp: u32,
    unexpected_bytes: usize,
    /// Buffers of unexpected messages, to be used again.
    spare: SpareBuffers,
    /// A transport has refused somebody for want of room, and wants to know of what becomes free.
    watches_room: bool,
    freed: Vec<Freed>,
}

impl<M: Memory> Delivery<M> {
    /// With nothing in it. `random` decides endpoint numbers, which nobody outside may guess.
    pub(crate) fn new(config: DeliveryConfig, random: Random, keyed: Keyed, memory: M) -> Delivery<M> {
        let mut random = random;
        Delivery {
            addresses: AddressVector::new(keyed.clone()),
            endpoints: Endpoints::new(keyed.clone()),
            events: Events::new(keyed.clone()),
            vector_ops: Slab::new(),
            arrivals: Slab::new(),
            decided: [const { VecDeque::new() }; Transport::COUNT],
            told: VecDeque::new(),
            multi_receives: Slab::new(),
            claims: Slab::new(),
            claim_stamp: random.next_u32(),
            unexpected_bytes: 0,
            spare: SpareBuffers::default(),
            watches_room: false,
            freed: Vec::new(),
            config,
            random,
            keyed,
            memory,
        }
    }

    /// The node's memory.
    #[inline]
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// The node's memory, to attach buffers and register regions.
    #[inline]
    pub fn memory_mut(&mut self) -> &mut M {
        &mut self.memory
    }

    /// The peers that have names.
    #[inline]
    pub fn addresses(&self) -> &AddressVector {
        &self.addresses
    }

    /// The peers that have names, to add some.
    pub fn addresses_mut(&mut self) -> &mut AddressVector {
        &mut self.addresses
    }

    /// Forgets a name, which another endpoint may have later; completions that wait keep the address they came from.
    pub fn remove_address(&mut self, peer: PeerId) -> bool {
        let Some(address) = self.addresses.address(peer) else { return false };
        self.events.queues.iter_mut().for_each(|queue| queue.forget(peer, address));
        self.addresses.remove(peer)
    }

    /// The name of who sent a message.
    pub(crate) fn peer_of(&self, envelope: &Envelope) -> Option<PeerId> {
        let known = envelope.peer.filter(|peer| self.addresses.source(*peer) == Some(envelope.source_id));
        known.or_else(|| self.addresses.find(envelope.source_id))
    }

    // ------------------------------------------------------------------ completions

    /// The oldest completion of a queue.
    pub fn poll_completion(&mut self, queue: QueueId) -> Option<Completion> {
        let completion = self.events.queue_mut(queue)?.pop(&self.addresses)?;
        self.completions_taken(queue);
        Some(completion)
    }

    /// The oldest completion of a queue, left there; [`Delivery::drop_completion`] takes it out.
    #[inline]
    pub fn peek_completion(&self, queue: QueueId) -> Option<&CompletionEntry> {
        self.events.queue(queue)?.front()
    }

    /// Who sent the message that the oldest completion of a queue tells of.
    pub fn completion_source(&self, queue: QueueId) -> Option<Address> {
        self.events.queue(queue)?.source(&self.addresses)
    }

    /// A queue, for who takes several completions out of it: where their sources have names, the queue, and the memory
    /// that has their buffers. [`Delivery::completions_taken`] follows.
    #[inline]
    pub fn completions_of(&mut self, queue: QueueId) -> Option<(&AddressVector, &mut CompletionQueue, &mut M)> {
        Some((&self.addresses, self.events.queue_mut(queue)?, &mut self.memory))
    }

    /// Completions were taken out of a queue: whoever was refused for want of a place may have it now.
    #[inline]
    pub fn completions_taken(&mut self, queue: QueueId) {
        self.note_freed(Freed::Queue(queue));
    }

    /// Takes the oldest completion out of a queue.
    #[inline]
    pub fn drop_completion(&mut self, queue: QueueId) {
        if let Some(queue) = self.events.queue_mut(queue) {
            queue.drop_front();
        }
        self.completions_taken(queue);
    }

    /// Completions of a queue that wait to be read.
    #[inline]
    pub fn completions(&self, queue: QueueId) -> usize {
        self.events.queue(queue).map_or(0, CompletionQueue::len)
    }

    // ------------------------------------------------------------------ room

    /// Notes that something became free, for a transport that has refused somebody.
    #[inline]
    fn note_freed(&mut self, freed: Freed) {
        if self.watches_room {
            self.note_freed_slow(freed);
        }
    }

    #[cold]
    fn note_freed_slow(&mut self, freed: Freed) {
        if !self.freed.contains(&freed) {
            self.freed.push(freed);
        }
    }

    /// A transport has freed something of its own that messages to all endpoints need.
    pub(crate) fn free_shared(&mut self) {
        self.note_freed(Freed::Shared);
    }

    /// A transport says whether it has refused somebody for want of room.
    pub(crate) fn watch_room(&mut self, watches: bool) {
        self.watches_room = watches;
        if !watches {
            self.freed.clear();
        }
    }

    /// Whether something became free since [`Delivery::take_freed`].
    #[inline]
    pub(crate) fn has_freed(&self) -> bool {
        !self.freed.is_empty()
    }

    /// What became free.
    pub(crate) fn take_freed(&mut self) -> Vec<Freed> {
        core::mem::take(&mut self.freed)
    }

    /// Messages that wait or arrive, receives that are posted, and places that are reserved.
    pub fn holdings(&self) -> Holdings {
        let endpoints = || self.endpoints.iter();
        Holdings {
            arrivals: self.arrivals.iter().filter(|(_, arriving)| !arriving.is_waiting()).count(),
            unexpected: endpoints().map(|e| e.unexpected.len() + e.tagged_unexpected.len()).sum::<usize>()
                + self.claims.len(),
            receives: endpoints().map(|e| e.posted.len() + e.tagged_posted.len()).sum(),
            reserved: self.events.queues.iter().map(CompletionQueue::reserved).sum(),
        }
    }
}

/// What waits in a [`Delivery`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// Messages of which not everything is here.
    pub arrivals: usize,
    /// Messages that wait for a receive, here or at their sender, claimed ones too.
    pub unexpected: usize,
    /// Receives posted.
    pub receives: usize,
    /// Places reserved in completion queues.
    pub reserved: usize,
}
