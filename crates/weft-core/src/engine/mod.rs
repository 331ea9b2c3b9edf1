//! The engine: one NIC.
//!
//! # Contract
//! The driver calls `handle_*` with what came in and `post*` with what its user wants, then drains [`Engine::poll_transmit`]
//! until it gives nothing, sends what it got, and calls [`Engine::handle_timeout`] when [`Engine::poll_timeout`] has passed.
//! Completions wait in their queues ([`Engine::poll_completion`]). Nothing blocks, nothing fails for reasons of the outside
//! world, and the same calls in the same order give the same results: all randomness comes from the seed.

mod answer;
mod count;
mod credit;
mod endpoint;
mod group;
pub mod hall;
mod message;
mod post;
mod request;
mod timer;
mod transmit;

pub use group::GroupId;

use alloc::collections::{BTreeSet, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{Ipv4Addr, SocketAddr};

use hashbrown::HashMap;
use weft_wire::table::Decoded;
use weft_wire::transaction::{TransactionId, TransactionTable};

use crate::address::{Address, AddressVector, PeerId, SourceId};
use crate::command::{Command, EndpointId};
use crate::event::{Completion, CompletionQueue, Counter, CounterId, Entry, QueueId};
use crate::hash::{Keyed, Peer};
use crate::limits::{ABSENT_MAX, ABSENT_US, MTU_MAX_BYTES, MTU_MIN_BYTES, QUOTED_DATAGRAMS_MAX};
use crate::matching::{Posted, Unexpected, UnexpectedId};
use crate::memory::{Granted, Memory};
use crate::packet::{ACKNOWLEDGE_BYTES, Codec, SESSION_BYTES, TRAILER_BYTES, TRANSPORT_BYTES};
use crate::random::Random;
use crate::reliable::entry::Entries;
use crate::reliable::life::Life;
use crate::reliable::path::PathMtu;
use crate::reliable::tombstone::Tombstones;
use crate::reliable::tracker::Tracker;
use crate::slab::Slab;
use crate::time::Time;
use crate::trigger::Triggers;

pub use count::Touched;
pub use endpoint::{OpenError, Opening, Side};
pub use post::{Admitted, ReportPlace};

use message::{Claim, Message, PostedReceive, Pull, Shared, UnexpectedMessage};
pub use message::{ClaimId, Peek, Peeked};
use transmit::{Answer, DatagramOut, Response};

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
            mtu_bytes: crate::limits::MTU_DEFAULT_BYTES,
            eager_max_bytes: 256 << 10,
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
    /// Counts writes of peers into our memory, and their atomics that change it.
    pub remote_write_counter: Option<CounterId>,
    /// Counts reads of peers from our memory, and their atomics that fetch.
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
    /// Where the way does not carry it in one piece, it goes in fragments; otherwise nobody may make any (P-1.2).
    pub may_fragment: bool,
}

impl Default for Transmit {
    fn default() -> Transmit {
        Transmit {
            to: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            bytes: Vec::new(),
            pieces: Vec::new(),
            segment_bytes: 0,
            class: 0,
            may_fragment: false,
        }
    }
}

/// What is remembered of a target when its tracker is freed (P-7.1). Losing it costs one round trip.
#[derive(Clone, Copy, Debug)]
struct Known {
    ticket: u64,
    ticket_psn: u64,
    congestion: crate::reliable::congestion::Congestion,
}

/// An endpoint.
#[derive(Debug)]
struct Endpoint {
    number: u32,
    /// The number that its commands come from.
    source: u32,
    kind: EndpointKind,
    bindings: Bindings,
    /// The endpoint whose receives serve its messages, if not its own: then its own lists are empty.
    receives_at: Option<EndpointId>,
    /// The only one who may reach it.
    only: Option<SourceId>,
    /// Nothing of it is reported any more.
    silenced: bool,
    /// Datagrams that may wait for a receive.
    datagrams_kept: usize,
    posted: Posted<PostedReceive>,
    unexpected: Unexpected<UnexpectedMessage>,
    tagged_posted: Posted<PostedReceive>,
    tagged_unexpected: Unexpected<UnexpectedMessage>,
    /// Who was told that it is not ready, to be told when it is (P-7.10).
    refused: credit::Waiters,
}

/// One NIC.
#[derive(Debug)]
pub struct Engine<M> {
    config: Config,
    codec: Arc<Codec>,
    memory: M,
    random: Random,
    keyed: Keyed,
    addresses: AddressVector,
    endpoints: Vec<Option<Endpoint>>,
    closed_endpoints: Vec<EndpointId>,
    /// Endpoints that take their receives from another: first that one.
    sharers: BTreeSet<(EndpointId, EndpointId)>,
    endpoint_of: HashMap<u32, EndpointId, Keyed>,
    /// Rows of numbers that are drawn for nobody: the first, and how many.
    rows: Vec<(u32, u32)>,
    queues: Vec<CompletionQueue>,
    counters: Vec<Counter>,
    closed_queues: Vec<QueueId>,
    closed_counters: Vec<CounterId>,
    triggers: Triggers,
    /// Commands whose end is counted besides, by what they have for a context.
    counted: Slab<count::Counted>,
    /// Counters of what peers do to regions, by key.
    region_counters: HashMap<u64, count::RegionCounters, Keyed>,
    /// Counters that receives may name as long as the engine lives.
    kept_counters: BTreeSet<CounterId>,
    statistics: Statistics,
    /// The time of the last call.
    clock: Time,
    /// An acknowledgement that came behind a request.
    late: Option<(Arrived, [u8; ACKNOWLEDGE_BYTES])>,

    // The initiator's side.
    /// Restart epoch (P-3.2).
    epoch: u32,
    entries: Entries,
    groups: Slab<group::Group>,
    trackers: Slab<Tracker>,
    /// Trackers that have nothing left and will be freed.
    resting: VecDeque<u32>,
    tracker_of: HashMap<Peer, u32, Keyed>,
    /// Trackers with something to send.
    ready: VecDeque<u32>,
    known: HashMap<Peer, Known, Keyed>,
    /// Of some target it was said that nobody is there.
    suspects: bool,
    /// Those given up because nobody is there, and not heard of since.
    absent: VecDeque<SocketAddr>,
    /// Ways that turned out to carry less than was thought, or may have.
    narrow: HashMap<Peer, PathMtu, Keyed>,
    /// The counter that psns are drawn from (P-3.4).
    psn: u64,
    /// Of the last message; one counter for all targets.
    number: u32,
    datagrams: VecDeque<DatagramOut>,
    /// Whom the last command went to: the next one mostly does too.
    last_tracker: u32,
    /// No tracker needs anything before this.
    trackers_due: Time,
    urgent: bool,

    // The target's side.
    lives: Slab<Life>,
    life_of: HashMap<Peer, u32, Keyed>,
    /// Whom the last request came from.
    last_life: u32,
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
    pulls: Slab<Pull>,
    /// DONEs for which no handle was free: who waits for one does so for ever.
    dones: VecDeque<(Command, Address, u32)>,
    shared: Slab<Shared>,
    /// Messages that come by another road.
    arrivals: Slab<hall::Arriving>,
    /// Those that waited at their sender, and how their waiting ended.
    matched: VecDeque<(u32, hall::ArrivalVerdict)>,
    /// Messages that were claimed, and a number for the last.
    claims: Slab<Claim>,
    /// Where messages that wait at their senders are listed, by source and key: a sender may withdraw one.
    offers: HashMap<(SourceId, u64), (EndpointId, bool, UnexpectedId), Keyed>,
    claim_stamp: u32,
    unexpected_bytes: usize,
    /// Some endpoint has refused somebody since credits were last granted.
    credits_owed: bool,
    /// Something became free since that all endpoints share: some of them may have room now.
    credits_due: bool,
    /// Buffers of unexpected messages, to be used again.
    spare: Vec<Vec<u8>>,

    // The session (one path for now).
    /// Of the last datagram (P-8.14).
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
        Engine {
            codec,
            memory,
            addresses: AddressVector::new(keyed.clone()),
            endpoints: Vec::new(),
            closed_endpoints: Vec::new(),
            sharers: BTreeSet::new(),
            endpoint_of: HashMap::with_hasher(keyed.clone()),
            rows: Vec::new(),
            queues: Vec::new(),
            counters: Vec::new(),
            closed_queues: Vec::new(),
            closed_counters: Vec::new(),
            triggers: Triggers::default(),
            counted: Slab::new(),
            region_counters: HashMap::with_hasher(keyed.clone()),
            kept_counters: BTreeSet::new(),
            statistics: Statistics::default(),
            clock: Time(0),
            late: None,
            epoch: random.next_u32() | 1,
            entries: Entries::new(config.commands_max),
            groups: Slab::new(),
            trackers: Slab::new(),
            resting: VecDeque::new(),
            tracker_of: HashMap::with_hasher(keyed.clone()),
            ready: VecDeque::new(),
            known: HashMap::with_hasher(keyed.clone()),
            suspects: false,
            absent: VecDeque::new(),
            narrow: HashMap::with_hasher(keyed.clone()),
            psn: random.next_u64() >> 1,
            number: random.next_u32(),
            datagrams: VecDeque::new(),
            last_tracker: 0,
            trackers_due: Time::NEVER,
            urgent: false,
            lives: Slab::new(),
            life_of: HashMap::with_hasher(keyed.clone()),
            last_life: 0,
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
            pulls: Slab::new(),
            dones: VecDeque::new(),
            shared: Slab::new(),
            arrivals: Slab::new(),
            matched: VecDeque::new(),
            claims: Slab::new(),
            offers: HashMap::with_hasher(keyed.clone()),
            claim_stamp: random.next_u32(),
            unexpected_bytes: 0,
            credits_owed: false,
            credits_due: false,
            spare: Vec::new(),
            sequence: random.next_u64() >> 2,
            config,
            random,
            keyed,
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
        self.queues.iter_mut().for_each(|queue| queue.forget(peer, address));
        self.addresses.remove(peer)
    }

    /// Makes a completion queue.
    pub fn open_queue(&mut self, capacity: usize) -> QueueId {
        let queue = CompletionQueue::new(capacity);
        let closed = self.closed_queues.pop();
        if let Some((id, place)) = closed.and_then(|id| Some((id, self.queues.get_mut(id.0 as usize)?))) {
            *place = queue;
            return id;
        }
        self.queues.push(queue);
        QueueId(self.queues.len() as u32 - 1)
    }

    /// Closes a completion queue that no endpoint reports to any more. Its name may be given to another.
    pub fn close_queue(&mut self, queue: QueueId) {
        if let Some(place) = self.queues.get_mut(queue.0 as usize) {
            *place = CompletionQueue::new(0);
            self.closed_queues.push(queue);
        }
    }

    /// Makes a counter.
    pub fn open_counter(&mut self) -> CounterId {
        if let Some(id) = self.closed_counters.pop() {
            self.set_counter(id, Counter::default());
            return id;
        }
        self.counters.push(Counter::default());
        CounterId(self.counters.len() as u32 - 1)
    }

    /// Closes a counter that no endpoint counts with any more; its triggers go with it. Its name may be given to another.
    pub fn close_counter(&mut self, counter: CounterId) {
        if (counter.0 as usize) < self.counters.len() {
            self.triggers.close(counter);
            self.stop_counting(counter);
            if !self.kept_counters.contains(&counter) {
                self.closed_counters.push(counter);
            }
        }
    }

    /// What a counter shows.
    pub fn counter(&self, counter: CounterId) -> Counter {
        self.counters.get(counter.0 as usize).copied().unwrap_or_default()
    }

    /// Sets a counter.
    pub fn set_counter(&mut self, counter: CounterId, value: Counter) {
        if let Some(place) = self.counters.get_mut(counter.0 as usize) {
            *place = value;
            self.check_triggers(counter, value.value);
        }
    }

    /// Takes one datagram. It may be changed: bundles are unpacked in place.
    pub fn handle_datagram(&mut self, now: Time, from: SocketAddr, datagram: &mut [u8], marked: bool) {
        self.handle_datagram_early(now, from, datagram, marked);
        self.handle_late();
        self.hasten_acks(Time::NEVER);
    }

    /// As [`Engine::handle_datagram`], for a driver that wants to go on with a request as soon as it can: an
    /// acknowledgement behind it may be left, as if it came later, and one that a write asks for waits for a moment, so that
    /// what the user sends now takes it along. [`Engine::handle_late`] takes the one and [`Engine::hasten_acks`] sends the
    /// other; both have to be called before the driver sleeps.
    pub fn handle_datagram_early(&mut self, now: Time, from: SocketAddr, datagram: &mut [u8], marked: bool) {
        self.handle_late();
        self.clock = now;
        self.statistics.datagrams_received += 1;
        let Some(session) = self.codec.session(datagram).filter(|session| session.id == self.config.session) else {
            self.statistics.dropped_foreign += 1;
            return;
        };
        let end = datagram.len() - TRAILER_BYTES;
        let (body, trailer) = datagram.split_at(end);
        if self.memory.crc32c_bytes(0, body).to_le_bytes() != trailer {
            self.statistics.dropped_damaged += 1;
            return;
        }
        // P-2.4: nothing is looked up before this point.
        if self.suspects {
            self.hear(from);
        }
        let mut decoded = Decoded::default();
        let arrived = Arrived { now, from, timestamp: session.timestamp, marked };
        if !session.bundle {
            self.handle_packet(&arrived, datagram, &mut decoded);
            return;
        }
        // P-2.9: each entry gets the session header in front of it, over what was read before.
        let Some(mut header) = datagram.first_chunk::<SESSION_BYTES>().copied() else { return };
        self.codec.unmark_bundle(&mut header);
        let mut at = SESSION_BYTES;
        while at < end {
            let length = datagram.get(at..).and_then(|bytes| bytes.first_chunk());
            let length = length.map_or(0, |bytes| usize::from(u16::from_be_bytes(*bytes)));
            let start = at + 2;
            if length < TRANSPORT_BYTES || start + length > end {
                self.statistics.dropped_malformed += 1;
                return;
            }
            let Some(packet) = datagram.get_mut(start - SESSION_BYTES..start + length + TRAILER_BYTES) else { return };
            if let Some(place) = packet.first_chunk_mut() {
                *place = header;
            }
            if at > SESSION_BYTES && start + length == end && self.codec.is_acknowledgement(packet) {
                self.late = packet.first_chunk().map(|packet| (arrived, *packet));
                return;
            }
            self.handle_packet(&arrived, packet, &mut decoded);
            at = start + length;
        }
    }

    /// Takes what [`Engine::handle_datagram_early`] has left.
    #[inline]
    pub fn handle_late(&mut self) {
        if let Some((arrived, packet)) = self.late.take() {
            self.handle_packet(&arrived, &packet, &mut Decoded::default());
        }
    }

    /// Lets acknowledgements go that have waited for company until `now`; [`Time::NEVER`]: all. True: there are some.
    pub fn hasten_acks(&mut self, now: Time) -> bool {
        let mut some = false;
        while let Some(&(due, index)) = self.acks_soon.front().filter(|(due, _)| *due <= now) {
            self.acks_soon.pop_front();
            // Others have gone along with something.
            if self.lives.get(index).and_then(|life| life.ack).is_some_and(|ack| ack.soon == due) {
                self.acks_now.push_back(index);
                some = true;
            }
        }
        some
    }

    /// Lets all acknowledgements go that are owed, for a driver that may not come back. True: there are some.
    pub fn flush_acks(&mut self) -> bool {
        let mut some = false;
        for (due, index) in core::mem::take(&mut self.acks_later) {
            if self.lives.get(index).and_then(|life| life.ack).is_some_and(|ack| ack.due == due) {
                self.acks_now.push_back(index);
                some = true;
            }
        }
        some
    }

    /// Whether [`Engine::handle_late`] has something to do.
    #[inline]
    pub fn has_late(&self) -> bool {
        self.late.is_some()
    }

    /// The link did not take a datagram to `to`, which was too long: no more than this leaves the host.
    pub fn handle_too_big(&mut self, now: Time, to: SocketAddr, mtu_bytes: u32) {
        self.clock = now;
        let mtu_bytes = mtu_bytes.clamp(MTU_MIN_BYTES, MTU_MAX_BYTES);
        let Some(index) = self.tracker_index(to) else {
            let mut path = self.narrow.get(&Peer(to)).copied().unwrap_or_else(|| PathMtu::new(MTU_MAX_BYTES));
            path.limit(now, mtu_bytes);
            self.remember_path(to, path);
            return;
        };
        let Some(tracker) = self.trackers.get_mut(index) else { return };
        if tracker.path.limit(now, mtu_bytes) {
            tracker.congestion.set_packet(mtu_bytes);
            // What was cut for more is withdrawn, and cut anew (P-7.15).
            tracker.lose_oversized();
        }
        tracker.mtu_probe_wanted |= tracker.path.wants_probe(now);
        if tracker.has_more() {
            self.make_ready(index);
        }
        self.schedule(now, index);
    }

    /// What the way to a peer carries; `None`: nobody has asked, nor found out.
    fn path_bytes(&self, peer: SocketAddr) -> Option<u32> {
        let tracker = self.tracker_index(peer).and_then(|index| self.trackers.get(index));
        let path = tracker.map(|tracker| &tracker.path).or_else(|| self.narrow.get(&Peer(peer)));
        path.map(PathMtu::bytes)
    }

    fn remember_path(&mut self, peer: SocketAddr, path: PathMtu) {
        if !path.is_notable() {
            if self.narrow.get(&Peer(peer)).is_some_and(|known| known.bytes() < path.bytes()) {
                self.narrow.remove(&Peer(peer));
            }
            return;
        }
        if self.narrow.len() >= self.config.tickets_max.max(1) && !self.narrow.contains_key(&Peer(peer)) {
            // Any one may go: it is found out again.
            let victim = self.narrow.keys().next().copied();
            if let Some(victim) = victim {
                self.narrow.remove(&victim);
            }
        }
        self.narrow.insert(Peer(peer), path);
    }

    /// The host of `to` says that nobody is there, about a datagram that begins like `quoted` (P-7.12). One such notice
    /// proves nothing: it may be forged by who saw the datagram, and a process may be starting again.
    pub fn handle_absent(&mut self, now: Time, to: SocketAddr, quoted: &[u8]) {
        self.clock = now;
        let session = self.codec.session(quoted).filter(|session| session.id == self.config.session);
        // Numbers of datagrams begin anywhere: who has not seen this one cannot know it.
        let ours = |sequence: u64| self.sequence.wrapping_sub(sequence) < QUOTED_DATAGRAMS_MAX;
        if !session.is_some_and(|session| ours(session.sequence)) {
            self.statistics.dropped_foreign += 1;
            return;
        }
        let Some(&index) = self.tracker_of.get(&Peer(to)) else { return };
        let Some(tracker) = self.trackers.get_mut(index) else { return };
        if tracker.absent == Time(0) {
            tracker.absent = now;
            self.suspects = true;
        } else if now >= tracker.absent.plus_micros(ABSENT_US) && tracker.silent_since().is_some() {
            self.statistics.absent += 1;
            if self.absent.len() >= ABSENT_MAX {
                self.absent.pop_front();
            }
            self.absent.push_back(to);
            self.give_up(now, index);
        }
    }

    /// Somebody of whom it was said that nobody is there is.
    #[cold]
    fn hear(&mut self, from: SocketAddr) {
        if let Some(tracker) = self.tracker_of.get(&Peer(from)).and_then(|index| self.trackers.get_mut(*index)) {
            tracker.absent = Time(0);
        }
    }

    /// Whether the last that was heard of a peer is that nobody is there.
    pub fn is_absent(&self, peer: SocketAddr) -> bool {
        self.absent.contains(&peer)
    }

    /// The life of a peer.
    #[inline]
    fn life_index(&self, peer: SocketAddr) -> Option<u32> {
        if self.lives.get(self.last_life).is_some_and(|life| life.peer == peer) {
            return Some(self.last_life);
        }
        self.life_of.get(&Peer(peer)).copied()
    }

    /// The tracker of a target.
    #[inline]
    fn tracker_index(&self, peer: SocketAddr) -> Option<u32> {
        if self.trackers.get(self.last_tracker).is_some_and(|tracker| tracker.peer == peer) {
            return Some(self.last_tracker);
        }
        self.tracker_of.get(&Peer(peer)).copied()
    }

    /// Whether something posted should not wait for company: nothing is in flight to its target that would bring the
    /// driver back soon. A driver may leave everything else until its next round, so that short messages share datagrams.
    #[inline]
    pub fn is_urgent(&self) -> bool {
        self.urgent
    }

    /// The time of the last call that brought one.
    #[inline]
    pub fn clock(&self) -> Time {
        self.clock
    }

    /// Whether messages wait for a receive at an endpoint.
    #[inline]
    pub fn has_unexpected(&self, endpoint: EndpointId) -> bool {
        self.endpoint(endpoint).is_some_and(|e| !(e.unexpected.is_empty() && e.tagged_unexpected.is_empty()))
    }

    /// Whether no packet is expected, nor one to be sent: a driver with other things to do may look for them less often.
    #[inline]
    pub fn is_quiet(&self) -> bool {
        self.trackers.is_empty() && self.lives.is_empty() && self.datagrams.is_empty() && self.answers.is_empty()
    }

    /// The oldest completion of a queue.
    pub fn poll_completion(&mut self, queue: QueueId) -> Option<Completion> {
        let completion = self.queues.get_mut(queue.0 as usize)?.pop(&self.addresses)?;
        if self.credits_owed {
            self.grant_credits(queue);
        }
        Some(completion)
    }

    /// The oldest completion of a queue, left there; [`Engine::drop_completion`] takes it out.
    #[inline]
    pub fn peek_completion(&self, queue: QueueId) -> Option<&Entry> {
        self.queues.get(queue.0 as usize)?.front()
    }

    /// Who sent the message that the oldest completion of a queue tells of.
    pub fn completion_source(&self, queue: QueueId) -> Option<Address> {
        self.queues.get(queue.0 as usize)?.source(&self.addresses)
    }

    /// A queue, for who takes several completions out of it: where their sources have names, the queue, and the memory that
    /// has their buffers. [`Engine::completions_taken`] follows.
    #[inline]
    pub fn completions_of(&mut self, queue: QueueId) -> Option<(&AddressVector, &mut CompletionQueue, &mut M)> {
        Some((&self.addresses, self.queues.get_mut(queue.0 as usize)?, &mut self.memory))
    }

    /// Completions were taken out of a queue: who was held back for want of room may be told.
    #[inline]
    pub fn completions_taken(&mut self, queue: QueueId) {
        if self.credits_owed {
            self.grant_credits(queue);
        }
    }

    /// Takes the oldest completion out of a queue.
    #[inline]
    pub fn drop_completion(&mut self, queue: QueueId) {
        if let Some(queue) = self.queues.get_mut(queue.0 as usize) {
            queue.drop_front();
        }
        if self.credits_owed {
            self.grant_credits(queue);
        }
    }

    /// Completions of a queue that wait to be read.
    #[inline]
    pub fn completions(&self, queue: QueueId) -> usize {
        self.queues.get(queue.0 as usize).map_or(0, CompletionQueue::len)
    }

    /// Bytes and entries of state, by purpose.
    pub fn state(&self) -> State {
        let endpoints = || self.endpoints.iter().flatten();
        State {
            trackers: self.trackers.len(),
            tracker_bytes: self.trackers.iter().map(|(_, tracker)| tracker.bytes()).sum(),
            commands: self.entries.len(),
            lives: self.lives.len(),
            life_bytes: self.lives.iter().map(|(_, life)| life.bytes()).sum(),
            tombstones: self.tombstones.len(),
            tombstone_bytes: self.tombstones.bytes(),
            messages: self.messages.len() + self.arrivals.len(),
            unexpected: endpoints().map(|e| e.unexpected.len() + e.tagged_unexpected.len()).sum::<usize>()
                + self.claims.len(),
            receives: endpoints().map(|e| e.posted.len() + e.tagged_posted.len()).sum(),
            reserved: self.queues.iter().map(CompletionQueue::reserved).sum(),
            held: self.lives.iter().map(|(_, life)| life.held.len()).sum(),
            replay_results: self.lives.iter().map(|(_, life)| life.replay.len()).sum(),
        }
    }

    /// Counts of what happened.
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }
}

/// What is known of a packet before it is decoded.
#[derive(Clone, Copy, Debug)]
struct Arrived {
    now: Time,
    from: SocketAddr,
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
