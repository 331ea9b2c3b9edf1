//! The engine: one NIC.
//!
//! # Contract
//! The driver calls `handle_*` with what came in and `post*` with what its user wants, then drains [`Engine::poll_transmit`]
//! until it gives nothing, sends what it got, and calls [`Engine::handle_timeout`] when [`Engine::poll_timeout`] has passed.
//! Completions wait in their queues ([`Engine::poll_completion`]). Nothing blocks, nothing fails for reasons of the outside
//! world, and the same calls in the same order give the same results: all randomness comes from the seed.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::SocketAddr;

use crate::address::AddressVector;
use crate::command::{Command, EndpointId, PostError, Receive};
use crate::event::{Completion, Counter, CounterId, QueueId};
use crate::memory::{Granted, Memory};
use crate::packet::Codec;
use crate::time::Time;

/// What an engine is made with. The defaults serve most.
#[derive(Clone, Debug)]
pub struct Config {
    /// Id of the static session (P-8.14). Nodes with different ones do not hear each other.
    pub session: u32,
    /// Longest datagram that this node sends where it knows nothing better.
    pub mtu_bytes: u32,
    /// Messages up to this length go at once; longer ones wait at the sender until they are asked for (P-5.5).
    pub eager_max_bytes: u32,
    /// See [`crate::limits::GIVE_UP_US`].
    pub give_up_us: u64,
    /// Commands that may be under way.
    pub commands_max: usize,
    /// Peers whose requests may be under way at once.
    pub lives_max: usize,
    /// Receives that may be posted to one endpoint.
    pub receives_max: usize,
    /// Messages that may wait for a receive at one endpoint.
    pub unexpected_max: usize,
    /// Bytes of them.
    pub unexpected_max_bytes: usize,
    /// Idle peers that are remembered, 16 bytes each.
    pub tombstones_max: usize,
    /// Peers whose ticket and round trip are remembered after their last acknowledgement.
    pub tickets_max: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            session: 0,
            mtu_bytes: crate::limits::MTU_MIN_BYTES,
            eager_max_bytes: 64 << 10,
            give_up_us: crate::limits::GIVE_UP_US,
            commands_max: 16 << 10,
            lives_max: 4096,
            receives_max: 1 << 20,
            unexpected_max: 1 << 16,
            unexpected_max_bytes: 64 << 20,
            tombstones_max: 1 << 21,
            tickets_max: 4096,
        }
    }
}

/// What an endpoint promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointKind {
    /// Every message arrives once, or its sender is told.
    Reliable,
    /// Messages of one packet that may be lost.
    Datagram,
}

/// Where an endpoint reports.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bindings {
    /// Completions of what is posted with [`Engine::post`].
    pub transmit_queue: Option<QueueId>,
    /// Completions of receives and of peers' writes with immediate data.
    pub receive_queue: Option<QueueId>,
    /// Counts sends.
    pub send_counter: Option<CounterId>,
    /// Counts receives.
    pub receive_counter: Option<CounterId>,
    /// Counts reads and fetching atomics.
    pub read_counter: Option<CounterId>,
    /// Counts writes and atomics.
    pub write_counter: Option<CounterId>,
    /// Counts writes of peers into our memory.
    pub remote_write_counter: Option<CounterId>,
    /// Counts reads of peers from our memory.
    pub remote_read_counter: Option<CounterId>,
}

/// A piece of a datagram to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// A range of [`Transmit::bytes`].
    Bytes {
        /// First byte.
        start: u32,
        /// Bytes.
        length: u32,
    },
    /// The user's memory.
    Memory(Granted),
}

/// Datagrams to be sent to one place. Made once and used over and over.
#[derive(Debug)]
pub struct Transmit {
    /// Where to.
    pub to: SocketAddr,
    /// Headers, short payloads and checksums.
    pub bytes: Vec<u8>,
    /// The pieces in order.
    pub pieces: Vec<Piece>,
    /// 0: the pieces are one datagram. Otherwise they are several, each of this length, the last may be shorter.
    pub segment_bytes: usize,
    /// Message class (P-2.3).
    pub class: u8,
}

/// One NIC.
#[derive(Debug)]
pub struct Engine<M> {
    memory: M,
    addresses: AddressVector,
    codec: Arc<Codec>,
}

impl<M: Memory> Engine<M> {
    /// An engine. `seed` decides epoch, tickets, first psns and endpoint numbers: it must be secret, and different at every
    /// start.
    #[must_use]
    pub fn new(config: Config, codec: Arc<Codec>, seed: [u8; 32], memory: M) -> Engine<M> {
        todo!()
    }
    /// The node's memory.
    pub fn memory(&self) -> &M {
        &self.memory
    }
    /// The node's memory, to attach buffers and register regions.
    pub fn memory_mut(&mut self) -> &mut M {
        &mut self.memory
    }
    /// The peers that have names.
    pub fn addresses(&self) -> &AddressVector {
        &self.addresses
    }
    /// The peers that have names, to add some.
    pub fn addresses_mut(&mut self) -> &mut AddressVector {
        &mut self.addresses
    }
    /// Makes a completion queue.
    pub fn open_queue(&mut self, capacity: usize) -> QueueId {
        todo!()
    }
    /// Makes a counter.
    pub fn open_counter(&mut self) -> CounterId {
        todo!()
    }
    /// What a counter shows.
    pub fn counter(&self, counter: CounterId) -> Counter {
        todo!()
    }
    /// Makes an endpoint.
    pub fn open_endpoint(&mut self, kind: EndpointKind, bindings: Bindings) -> EndpointId {
        todo!()
    }
    /// The number by which peers address an endpoint ([`crate::address::Address::endpoint`]).
    pub fn endpoint_number(&self, endpoint: EndpointId) -> Option<u32> {
        todo!()
    }
    /// Closes an endpoint: its receives are cancelled, its commands end with [`crate::event::Failure::Closed`].
    pub fn close_endpoint(&mut self, now: Time, endpoint: EndpointId) {
        todo!()
    }
    /// Takes a command.
    pub fn post(&mut self, now: Time, command: &Command) -> Result<(), PostError> {
        todo!()
    }
    /// Takes a buffer for messages.
    pub fn post_receive(&mut self, now: Time, receive: &Receive) -> Result<(), PostError> {
        todo!()
    }
    /// Cancels the oldest receive, or command that waits to be issued again, with this context. Its completion says
    /// [`crate::event::Failure::Cancelled`]. False: there is none that can be.
    pub fn cancel(&mut self, now: Time, endpoint: EndpointId, context: u64) -> bool {
        todo!()
    }
    /// Takes one datagram. It may be changed: bundles are unpacked in place.
    pub fn handle_datagram(&mut self, now: Time, from: SocketAddr, datagram: &mut [u8], marked: bool) {
        todo!()
    }
    /// The path to `to` carries no more than this.
    pub fn handle_too_big(&mut self, now: Time, to: SocketAddr, mtu_bytes: u32) {
        todo!()
    }
    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Time) {
        todo!()
    }
    /// When [`Engine::handle_timeout`] wants to be called; [`Time::NEVER`] when nothing is under way.
    pub fn poll_timeout(&self) -> Time {
        todo!()
    }
    /// Fills `transmit` with what is to be sent next. False: nothing.
    pub fn poll_transmit(&mut self, now: Time, transmit: &mut Transmit) -> bool {
        todo!()
    }
    /// Whether something posted should not wait for company: nothing is in flight to its target that would bring the
    /// driver back soon. A driver may leave everything else until its next round, so that short messages share datagrams.
    pub fn is_urgent(&self) -> bool {
        todo!()
    }
    /// The oldest completion of a queue.
    pub fn poll_completion(&mut self, queue: QueueId) -> Option<Completion> {
        todo!()
    }
    /// Bytes and entries of state, by purpose.
    pub fn state(&self) -> State {
        todo!()
    }
    /// Counts of what happened.
    pub fn statistics(&self) -> &Statistics {
        todo!()
    }
}

/// How much an engine keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Targets with something in flight.
    pub trackers: usize,
    /// Bytes of their sequence state.
    pub tracker_bytes: usize,
    /// Commands under way.
    pub commands: usize,
    /// Peers with requests under way here.
    pub lives: usize,
    /// Bytes of their state.
    pub life_bytes: usize,
    /// Idle peers remembered.
    pub tombstones: usize,
    /// Bytes of their state.
    pub tombstone_bytes: usize,
    /// Messages partly received.
    pub messages: usize,
    /// Messages that wait for a receive, all endpoints.
    pub unexpected: usize,
    /// Receives posted, all endpoints.
    pub receives: usize,
    /// Places reserved in completion queues.
    pub reserved: usize,
    /// Packets held back for order.
    pub held: usize,
    /// Results of atomics kept.
    pub replay_results: usize,
}

/// Counts of what happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Datagrams received.
    pub datagrams_received: u64,
    /// Datagrams sent.
    pub datagrams_sent: u64,
    /// Packets received, bundles unpacked.
    pub packets_received: u64,
    /// Packets sent, each for itself.
    pub packets_sent: u64,
    /// Requests sent again.
    pub retransmissions: u64,
    /// Probe timeouts.
    pub timeouts: u64,
    /// Requests seen before.
    pub duplicates: u64,
    /// Dropped: not an SRDMA packet of this session.
    pub dropped_foreign: u64,
    /// Dropped: wrong checksum.
    pub dropped_damaged: u64,
    /// Dropped: malformed, or makes no sense here.
    pub dropped_malformed: u64,
    /// Dropped: answers to nothing that is under way.
    pub dropped_late: u64,
    /// Datagrams that found no receive.
    pub dropped_datagrams: u64,
    /// Requests refused because something was not ready.
    pub not_ready: u64,
    /// Requests held back for order.
    pub held: u64,
    /// Tickets given.
    pub tickets_offered: u64,
    /// Targets given up.
    pub given_up: u64,
}
