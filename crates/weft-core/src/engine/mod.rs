//! The engine: one NIC.
//!
//! # Contract
//! The driver calls `handle_*` with what came in and `post*` with what its user wants, then drains [`Engine::poll_transmit`]
//! until it gives nothing, sends what it got, and calls [`Engine::handle_timeout`] when [`Engine::poll_timeout`] has passed.
//! Completions wait in their queues ([`Delivery::poll_completion`]). Nothing blocks, nothing fails for reasons of the outside
//! world, and the same calls in the same order give the same results: all randomness comes from the seed.

mod answer;
mod credit;
mod message;
mod post;
mod rendezvous;
mod request;
mod timer;
mod transmit;
mod write;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use hashbrown::HashMap;
use weft_wire::table::Decoded;
use weft_wire::transaction::{TransactionId, TransactionTable};

use crate::address::SourceId;
use crate::command::{Command, EndpointId};
use crate::delivery::{Delivery, DeliveryConfig, Transport};
use crate::flow::retransmit::Entries;
use crate::flow::rx_flow::Life;
use crate::flow::tombstone::Tombstones;
use crate::flow::tracker::Tracker;
use crate::hash::Keyed;
use crate::limits::{ABSENT_US, MTU_MAX_BYTES, MTU_MIN_BYTES, QUOTED_DATAGRAMS_MAX};
use crate::memory::{Granted, Memory};
use crate::node::{NodeId, Nodes};
use crate::packet::{ACKNOWLEDGE_BYTES, Codec};
use crate::random::Random;
use crate::session::path_mtu::PathMtu;
use crate::session::verified::{self, Crc, Rejected, Verified};
use crate::session::{Path, Session};
use crate::slab::Slab;
use crate::time::Time;

use credit::Waiters;
use message::Message;
use rendezvous::Rendezvous;
use transmit::{Answer, DatagramOut, Response};

/// What an engine is made with. The defaults serve most.
#[derive(Clone, Debug)]
pub struct Config {
    /// Id of the static session (P-8.14). Nodes with different ones do not hear each other.
    pub session: u32,
    /// This node's own address, where datagrams that stay in its host are copied by the host's kernel and by nothing else:
    /// of those only the headers have a checksum (P-2.5).
    pub host_address: Option<IpAddr>,
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
    /// Messages of several packets that may be arriving at once: a power of two.
    pub transactions_max: usize,
    /// Bytes that may be in flight to one peer: about what its socket's buffer holds.
    pub window_max_bytes: u64,
    /// A bug to be planted.
    #[cfg(feature = "plant")]
    pub plant: Option<Plant>,
}

/// Bugs that can be planted (P-7.14): each breaks the argument for exactly-once, or for progress, at one place.
#[cfg(feature = "plant")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// The target executes what it executed before (P-7.6, step 3).
    SkipDuplicateCheck,
    /// The initiator believes any answer to its epoch with a handle in use, whatever its psn and ticket (P-3.3).
    SkipHandleCheck,
    /// The initiator frees a tracker while its last packet is unsettled.
    FreeTrackerEarly,
    /// The target forgets a life at once, without a tombstone (P-7.4).
    FreeLifeEarly,
    /// The initiator takes an offer that answers another ticket than its own (P-7.9).
    SkipRefusedTicketCheck,
    /// The target answers a WITHDRAW without marking its psn (P-7.15).
    ForgetWithdrawal,
    /// The initiator looks at the first command of a target's queue alone: one that waits holds up all behind it (P-6.6).
    HeadOfLine,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            session: 0,
            host_address: None,
            mtu_bytes: crate::limits::MTU_DEFAULT_BYTES,
            eager_max_bytes: 1 << 20,
            give_up_us: crate::limits::GIVE_UP_US,
            commands_max: 16 << 10,
            lives_max: 4096,
            receives_max: 1 << 20,
            unexpected_max: 1 << 16,
            unexpected_max_bytes: 64 << 20,
            tombstones_max: 1 << 21,
            tickets_max: 4096,
            transactions_max: 1024,
            window_max_bytes: 256 << 10,
            #[cfg(feature = "plant")]
            plant: None,
        }
    }
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

impl Piece {
    pub(crate) fn length(&self) -> usize {
        match self {
            Piece::Bytes { length, .. } => *length as usize,
            Piece::Memory(granted) => granted.length as usize,
        }
    }
}

/// Datagrams to be sent to one place. Made once and used over and over.
#[derive(Debug)]
pub struct Transmit {
    /// Which way.
    pub path: Path,
    /// Headers, short payloads and checksums.
    pub bytes: Vec<u8>,
    /// The pieces in order.
    pub pieces: Vec<Piece>,
    /// 0: the pieces are one datagram. Otherwise they are several, each of this length, the last may be shorter.
    pub segment_bytes: usize,
    /// Message class (P-2.3).
    pub class: u8,
    /// Where the way does not carry it in one piece, it goes in fragments; otherwise nobody may make any (P-1.2).
    pub may_fragment: bool,
}

impl Default for Transmit {
    fn default() -> Transmit {
        Transmit {
            path: Path::NOWHERE,
            bytes: Vec::new(),
            pieces: Vec::new(),
            segment_bytes: 0,
            class: 0,
            may_fragment: false,
        }
    }
}

impl Transmit {
    /// Bytes of all its datagrams.
    #[must_use]
    pub fn length(&self) -> usize {
        self.pieces.iter().map(Piece::length).sum()
    }
}

/// The initiator's side: commands under way as packets, and what is known of their targets.
#[derive(Debug)]
struct Initiator {
    /// Restart epoch (P-3.2).
    epoch: u32,
    entries: Entries,
    trackers: Slab<Tracker>,
    /// Trackers that have nothing left and will be freed.
    resting: VecDeque<u32>,
    /// Trackers with something to send.
    ready: VecDeque<u32>,
    /// Of some target it was said that nobody is there.
    suspects: bool,
    /// The counter that psns are drawn from (P-3.4).
    psn: u64,
    /// Of the last message; one counter for all targets.
    number: u32,
    datagrams: VecDeque<DatagramOut>,
    /// No tracker needs anything before this.
    trackers_due: Time,
    /// Commands of the engine's own for which no handle was free: peers wait for them, so they go as soon as one is.
    waiting: VecDeque<OwnCommand>,
}

/// A command that the engine makes because a peer waits for it.
#[derive(Clone, Copy, Debug)]
struct OwnCommand {
    command: Command,
    to: crate::address::Address,
    /// Number of the endpoint that it comes from.
    source: u32,
    /// What to go on with when it is done.
    purpose: u32,
}

/// The target's side: requests of peers, and the answers that they are owed.
#[derive(Debug)]
struct Target {
    lives: Slab<Life>,
    tombstones: Tombstones,
    /// S, C and H of P-7.5.
    first_ticket: u64,
    last_ticket: u64,
    discarded_ticket: u64,
    /// Lives whose acknowledgement is due: now, soon, and later.
    acks_now: VecDeque<u32>,
    acks_soon: VecDeque<(Time, u32)>,
    acks_later: VecDeque<(Time, u32)>,
    /// No life needs anything but acknowledgements before this.
    lives_due: Time,
    answers: VecDeque<Answer>,
    responses: VecDeque<Response>,
    /// Requests went out last: if there are responses, it is their turn.
    responses_next: bool,
    /// Messages of several packets, by (peer, source, number).
    transactions: TransactionTable,
    messages: HashMap<TransactionId, Message, Keyed>,
    /// Messages that wait at their senders, or are being fetched.
    rendezvous: Slab<Rendezvous>,
    /// Which of them a source has offered under a key: it may withdraw one.
    offers: HashMap<(SourceId, u64), u32, Keyed>,
    /// Initiators that an endpoint refused as not ready, to be told when it is (P-7.10).
    refused: BTreeMap<EndpointId, Waiters>,
    /// An acknowledgement that came behind a request.
    deferred_ack: Option<(DatagramMeta, Verified<[u8; ACKNOWLEDGE_BYTES]>)>,
}

/// One NIC.
#[derive(Debug)]
pub struct Engine<M> {
    config: Config,
    codec: Arc<Codec>,
    random: Random,
    keyed: Keyed,
    statistics: Statistics,
    /// The time of the last call.
    clock: Time,
    /// Something was posted that should not wait for company.
    urgent: bool,
    /// Of its user ([`Engine::begin_round`]).
    round: u32,
    delivery: Delivery<M>,
    nodes: Nodes,
    initiator: Initiator,
    target: Target,
    /// Of the last datagram to a node that is not listed.
    sequence: u64,
}

impl<M: Memory> Engine<M> {
    /// An engine. `seed` decides epoch, tickets, first psns and endpoint numbers: it must be secret, and different at every
    /// start.
    #[must_use]
    pub fn new(config: Config, codec: Arc<Codec>, seed: [u8; 32], memory: M) -> Engine<M> {
        let mut random = Random::new(seed);
        let keyed = Keyed::new(random.next_u64(), random.next_u64());
        let first_ticket = 1 + (random.next_u64() >> 1);
        let transactions = config.transactions_max.next_power_of_two().clamp(1, 1 << 20);
        // 32-bit ids leave at least 12 bits for the generation at this capacity.
        let transactions = TransactionTable::new(transactions, 32).or_else(|| TransactionTable::new(64, 32));
        #[expect(clippy::unwrap_used, reason = "64 entries with 32-bit ids are always possible")]
        let transactions = transactions.unwrap();
        let epoch = random.next_u32() | 1;
        let mut seed = [0; 32];
        seed.as_chunks_mut::<8>().0.iter_mut().for_each(|word| *word = random.next_u64().to_le_bytes());
        let delivery = DeliveryConfig {
            receives_max: config.receives_max,
            unexpected_max: config.unexpected_max,
            unexpected_max_bytes: config.unexpected_max_bytes,
            mtu_bytes: config.mtu_bytes,
        };
        Engine {
            codec,
            statistics: Statistics::default(),
            clock: Time(0),
            urgent: false,
            round: 0,
            nodes: Nodes::new(keyed.clone(), config.tickets_max.max(1), config.window_max_bytes),
            delivery: Delivery::new(delivery, Random::new(seed), keyed.clone(), memory),
            initiator: Initiator {
                epoch,
                entries: Entries::new(config.commands_max),
                trackers: Slab::new(),
                resting: VecDeque::new(),
                ready: VecDeque::new(),
                suspects: false,
                psn: random.next_u64() >> 1,
                number: random.next_u32(),
                datagrams: VecDeque::new(),
                trackers_due: Time::NEVER,
                waiting: VecDeque::new(),
            },
            target: Target {
                lives: Slab::new(),
                tombstones: Tombstones::new(keyed.clone(), first_ticket, config.tombstones_max),
                first_ticket,
                last_ticket: first_ticket - 1,
                discarded_ticket: first_ticket - 1,
                acks_now: VecDeque::new(),
                acks_soon: VecDeque::new(),
                acks_later: VecDeque::new(),
                lives_due: Time::NEVER,
                answers: VecDeque::new(),
                responses: VecDeque::new(),
                responses_next: false,
                transactions,
                messages: HashMap::with_hasher(keyed.clone()),
                rendezvous: Slab::new(),
                offers: HashMap::with_hasher(keyed.clone()),
                refused: BTreeMap::new(),
                deferred_ack: None,
            },
            sequence: random.next_u64() >> 2,
            config,
            random,
            keyed,
        }
    }

    /// What arrives, and what is reported.
    #[inline]
    pub fn delivery(&self) -> &Delivery<M> {
        &self.delivery
    }

    /// The same, to change it: endpoints, queues, counters, receives, memory.
    #[inline]
    pub fn delivery_mut(&mut self) -> &mut Delivery<M> {
        &mut self.delivery
    }

    /// Takes one datagram. It may be changed: bundles are unpacked in place.
    pub fn handle_datagram(&mut self, now: Time, path: Path, datagram: &mut [u8], marked: bool) {
        self.handle_datagram_early(now, path, datagram, marked);
        self.handle_deferred_ack();
        self.hasten_acks(Time::NEVER);
    }

    /// As [`Engine::handle_datagram`], for a driver that wants to go on with a request as soon as it can: an
    /// acknowledgement behind it may be left, as if it came later, and one that a write asks for waits for a moment, so that
    /// what the user sends now takes it along. [`Engine::handle_deferred_ack`] takes the one and [`Engine::hasten_acks`] sends the
    /// other; both have to be called before the driver sleeps.
    pub fn handle_datagram_early(&mut self, now: Time, path: Path, datagram: &mut [u8], marked: bool) {
        self.handle_deferred_ack();
        self.clock = now;
        self.statistics.datagrams_received += 1;
        let codec = Arc::clone(&self.codec);
        let protection = Crc(self.delivery.memory());
        let mut datagram = match verified::open(&codec, &protection, self.config.session, datagram) {
            Ok(datagram) => datagram,
            Err(rejected) => return self.count_rejected(rejected),
        };
        if self.initiator.suspects {
            self.hear(NodeId::at(path));
        }
        let mut decoded = Decoded::default();
        let meta = DatagramMeta { now, path, timestamp: datagram.header.timestamp, marked };
        loop {
            match datagram.next_packet() {
                Ok(Some(packet)) if packet.ends_bundle && codec.is_acknowledgement(packet.verified.bytes()) => {
                    self.target.deferred_ack = packet.verified.to_array().map(|packet| (meta, packet));
                }
                Ok(Some(packet)) => self.handle_packet(&meta, packet.verified, &mut decoded),
                Ok(None) => return,
                Err(rejected) => return self.count_rejected(rejected),
            }
        }
    }

    #[cold]
    fn count_rejected(&mut self, rejected: Rejected) {
        let statistics = &mut self.statistics;
        *match rejected {
            Rejected::Foreign => &mut statistics.dropped_foreign,
            Rejected::Damaged => &mut statistics.dropped_damaged,
            Rejected::Malformed => &mut statistics.dropped_malformed,
        } += 1;
    }

    /// Takes what [`Engine::handle_datagram_early`] has left.
    #[inline]
    pub fn handle_deferred_ack(&mut self) {
        if let Some((meta, packet)) = self.target.deferred_ack.take() {
            self.handle_packet(&meta, packet.packet(), &mut Decoded::default());
        }
    }

    /// Lets acknowledgements go that have waited for company until `now`; [`Time::NEVER`]: all. True: there are some.
    pub fn hasten_acks(&mut self, now: Time) -> bool {
        let mut some = false;
        while let Some(&(due, index)) = self.target.acks_soon.front().filter(|(due, _)| *due <= now) {
            self.target.acks_soon.pop_front();
            // Others have gone along with something.
            if self.target.lives.get(index).and_then(|life| life.ack).is_some_and(|ack| ack.soon == due) {
                self.target.acks_now.push_back(index);
                some = true;
            }
        }
        some
    }

    /// Lets all acknowledgements go that are owed, for a driver that may not come back. True: there are some.
    pub fn flush_acks(&mut self) -> bool {
        let mut some = false;
        for (due, index) in core::mem::take(&mut self.target.acks_later) {
            if self.target.lives.get(index).and_then(|life| life.ack).is_some_and(|ack| ack.due == due) {
                self.target.acks_now.push_back(index);
                some = true;
            }
        }
        some
    }

    /// Whether [`Engine::handle_deferred_ack`] has something to do.
    #[inline]
    pub fn has_deferred_ack(&self) -> bool {
        self.target.deferred_ack.is_some()
    }

    /// The link did not take a datagram on `path`, which was too long: no more than this leaves the host.
    pub fn handle_too_big(&mut self, now: Time, path: Path, mtu_bytes: u32) {
        self.clock = now;
        let mtu_bytes = mtu_bytes.clamp(MTU_MIN_BYTES, MTU_MAX_BYTES);
        let place = self.nodes.enter(NodeId::at(path), path, &mut self.random);
        let Some(node) = self.nodes.get_mut(place) else { return };
        let session = &mut node.session;
        if !session.mtu_is_known {
            session.mtu = PathMtu::new(MTU_MAX_BYTES);
        }
        let less = session.mtu.limit(now, mtu_bytes);
        let Some(index) = node.tracker else {
            session.mtu_is_known = session.mtu.is_notable();
            self.nodes.rest(place);
            return;
        };
        let Some(tracker) = self.initiator.trackers.get_mut(index) else { return };
        if less {
            session.congestion.set_packet(mtu_bytes);
            // What was cut for more is withdrawn, and cut anew (P-7.15).
            tracker.lose_oversized(session);
        }
        tracker.mtu_probe_wanted |= session.mtu.wants_probe(now);
        if tracker.has_more() {
            self.make_ready(index);
        }
        self.schedule(now, index);
    }

    /// What the way to a node carries; `None`: nobody has asked, nor found out.
    fn path_bytes(&self, node: NodeId) -> Option<u32> {
        self.nodes.of(node)?.session.mtu_bytes()
    }

    /// The host behind `path` says that nobody is there, about a datagram that begins like `quoted` (P-7.12). One such notice
    /// proves nothing: it may be forged by somebody who saw the datagram, and a process may be starting again.
    pub fn handle_absent(&mut self, now: Time, path: Path, quoted: &[u8]) {
        self.clock = now;
        let header = self.codec.session(quoted).filter(|header| header.id == self.config.session);
        let node = self.nodes.of_mut(NodeId::at(path));
        // Numbers of datagrams begin anywhere: who has not seen this one cannot know it.
        let ours = |last: u64, quoted: u64| last.wrapping_sub(quoted) < QUOTED_DATAGRAMS_MAX;
        let Some(node) = node.filter(|node| header.is_some_and(|h| ours(node.session.sequence, h.sequence))) else {
            self.statistics.dropped_foreign += 1;
            return;
        };
        let Some(index) = node.tracker else { return };
        let Some(tracker) = self.initiator.trackers.get_mut(index) else { return };
        if tracker.suspected == Time(0) {
            tracker.suspected = now;
            self.initiator.suspects = true;
        } else if now >= tracker.suspected.plus_micros(ABSENT_US) && tracker.silent_since().is_some() {
            self.statistics.absent += 1;
            node.absent = true;
            self.give_up(now, index);
        }
    }

    /// A node of which it was said that nobody is there was heard of.
    #[cold]
    fn hear(&mut self, from: NodeId) {
        let tracker = self.nodes.of(from).and_then(|node| node.tracker);
        if let Some(tracker) = tracker.and_then(|index| self.initiator.trackers.get_mut(index)) {
            tracker.suspected = Time(0);
        }
    }

    /// Whether the last that was heard of a node is that nobody is there.
    pub fn is_absent(&self, peer: SocketAddr) -> bool {
        self.nodes.of(NodeId::at(peer.into())).is_some_and(|node| node.absent)
    }

    /// The life of a node.
    #[inline]
    fn life_index(&self, node: NodeId) -> Option<u32> {
        self.nodes.of(node)?.rx_flow
    }

    /// A tracker, and the session that its packets take.
    #[inline]
    fn tracker(&self, index: u32) -> Option<(&Tracker, &Session)> {
        let tracker = self.initiator.trackers.get(index)?;
        Some((tracker, &self.nodes.get(tracker.node)?.session))
    }

    /// The same, to change them.
    #[inline]
    fn tracker_mut(&mut self, index: u32) -> Option<(&mut Tracker, &mut Session)> {
        tracked(&mut self.initiator.trackers, &mut self.nodes, index)
    }

    /// The driver's user has come to look for what it waits for: what it posts until it comes again are bursts of their own.
    #[inline]
    pub fn begin_round(&mut self) {
        self.round = self.round.wrapping_add(1);
    }

    /// Whether something posted should not wait for company: nothing was sent to its target lately, or its burst is as long
    /// as the one before. A driver may leave everything else until its next round, so that short messages share datagrams.
    #[inline]
    pub fn is_urgent(&self) -> bool {
        self.urgent || self.delivery.has_decided(Transport::Packets) || self.delivery.has_freed()
    }

    /// The time of the last call that brought one.
    #[inline]
    pub fn clock(&self) -> Time {
        self.clock
    }

    /// Whether no packet is expected, nor one to be sent: a driver with other things to do may look for them less often.
    #[inline]
    pub fn is_quiet(&self) -> bool {
        self.initiator.trackers.is_empty()
            && self.target.lives.is_empty()
            && self.initiator.datagrams.is_empty()
            && self.target.answers.is_empty()
    }

    /// Bytes and entries of state, by purpose.
    pub fn state(&self) -> State {
        let holdings = self.delivery.holdings();
        State {
            trackers: self.initiator.trackers.len(),
            tracker_bytes: self.initiator.trackers.iter().map(|(_, tracker)| tracker.bytes()).sum(),
            commands: self.initiator.entries.len(),
            lives: self.target.lives.len(),
            life_bytes: self.target.lives.iter().map(|(_, life)| life.bytes()).sum(),
            tombstones: self.target.tombstones.len(),
            tombstone_bytes: self.target.tombstones.bytes(),
            messages: self.target.messages.len() + holdings.arrivals,
            unexpected: holdings.unexpected,
            receives: holdings.receives,
            reserved: holdings.reserved,
            held: self.target.lives.iter().map(|(_, life)| life.held.len()).sum(),
            replay_results: self.target.lives.iter().map(|(_, life)| life.replay.len()).sum(),
        }
    }

    /// Counts of what happened.
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }
}

/// A tracker, and the session that its packets take.
#[inline]
fn tracked<'a>(
    trackers: &'a mut Slab<Tracker>,
    nodes: &'a mut Nodes,
    index: u32,
) -> Option<(&'a mut Tracker, &'a mut Session)> {
    let tracker = trackers.get_mut(index)?;
    let session = &mut nodes.get_mut(tracker.node)?.session;
    Some((tracker, session))
}

/// What is known of a packet before it is decoded.
#[derive(Clone, Copy, Debug)]
struct DatagramMeta {
    now: Time,
    path: Path,
    timestamp: u32,
    marked: bool,
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
    /// Messages that wait for a receive, claimed ones too, all endpoints.
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
    /// Those of them whose host said that nobody is there.
    pub absent: u64,
    /// Times that a way was thought to have lost what was long.
    pub narrowed: u64,
    /// Times that a longer datagram turned out to arrive.
    pub widened: u64,
    /// Packets withdrawn, to be cut anew.
    pub withdrawn: u64,
    /// Datagrams that might go in fragments.
    pub fragmentable: u64,
}
