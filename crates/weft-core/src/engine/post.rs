//! The way down, first part: from a command to its place in the queue of its target; and its end.

use alloc::vec::Vec;

use super::transmit::DatagramOut;
use super::{Engine, tracked};
use crate::address::{Address, PeerId};
use crate::command::{Command, CommandFlags, EndpointId, Level, Operation, PostError};
use crate::delivery::{Bindings, Side};
use crate::event::Failure;
use crate::flow::lane::Class;
use crate::flow::retransmit::{Entry, Phase};
use crate::flow::tracker::{Sent, Tracker};
use crate::limits::{
    COMPANY_US, LIFE_PSN_MAX, MTU_MAX_BYTES, MTU_MIN_BYTES, PROBE_LINGER_US, REST_US, RESTING_MAX, WINDOW_MAX,
};
use crate::memory::Memory;
use crate::node::{KnownIncarnation, NodeId};
use crate::session::Session;
use crate::session::congestion::Congestion;
use crate::session::path_mtu::PathMtu;
use crate::time::Time;

impl<M: Memory> Engine<M> {
    /// Takes a command. Its completion comes later, once, whatever happens.
    pub fn post(&mut self, now: Time, command: &Command) -> Result<(), PostError> {
        self.clock = now;
        let datagram = command.operation == Operation::Datagram;
        // Some entries stay free for what the engine sends itself: the target's side must not starve.
        // Fetching a message takes two of them.
        if datagram && self.initiator.datagrams.len() >= self.config.commands_max {
            return Err(PostError::QueueFull);
        }
        if !self.initiator.entries.has_room(1 + (self.config.commands_max / 8).max(2)) {
            return Err(PostError::QueueFull);
        }
        let mut command = *command;
        let to = self.delivery.addresses().address(command.peer).ok_or(PostError::NoSuchPeer)?;
        self.delivery.admit(&mut command)?;
        let source = self.delivery.endpoint_source(command.endpoint).ok_or(PostError::NoSuchEndpoint)?;
        if datagram {
            self.initiator.datagrams.push_back(DatagramOut { command, to, source });
            self.urgent = true;
            return Ok(());
        }
        if self.submit(now, command, to, source, u32::MAX).is_none() {
            self.delivery.unadmit(&command);
            return Err(PostError::QueueFull);
        }
        Ok(())
    }

    /// Takes a command that was admitted for another road, and is to go as packets after all. False: there is no room now.
    pub fn post_admitted(&mut self, command: &Command) -> bool {
        let to = self.delivery.addresses().address(command.peer);
        let (Some(to), Some(source)) = (to, self.delivery.endpoint_source(command.endpoint)) else {
            self.delivery.report(command, Err(Failure::Aborted));
            return true;
        };
        if command.operation == Operation::Datagram {
            self.initiator.datagrams.push_back(DatagramOut { command: *command, to, source });
            self.urgent = true;
            return true;
        }
        self.submit(self.clock, *command, to, source, u32::MAX).is_some()
    }

    /// Puts a command into the queue of its target. `purpose` names what the engine goes on with. `None`: no handle is free.
    pub(super) fn submit(
        &mut self,
        now: Time,
        command: Command,
        to: Address,
        source: u32,
        purpose: u32,
    ) -> Option<u16> {
        if !self.initiator.entries.has_room(1) {
            return None;
        }
        let tracker = self.tracker_for(now, to, &command);
        self.initiator.number = self.initiator.number.wrapping_add(1);
        let entry = Entry {
            command,
            to,
            source,
            tracker,
            lane: 0,
            aside: None,
            number: self.initiator.number,
            phase: Phase::Queued,
            cut: 0,
            packets: 0,
            accepted: false,
            rendezvous: 0,
            fetched: false,
            ordered: false,
            is_reported: self.delivery.is_reported(&command),
            failure: None,
            purpose,
        };
        let handle = self.initiator.entries.insert(entry)?;
        let eager_max = self.config.eager_max_bytes;
        let (tracker, session) = tracked(&mut self.initiator.trackers, &mut self.nodes, tracker)?;
        let entry = self.initiator.entries.get_mut(handle)?;
        tracker.resting = false;
        entry.lane = tracker.join_lane(source, to.endpoint);
        if entry.is_send() {
            if command.length > eager_max || entry.wants_delivery() {
                entry.rendezvous = self.random.next_u64() << 16 | u64::from(handle);
            }
            entry.ordered = !command.has(CommandFlags::UNORDERED);
            if let Some(lane) = tracker.lane_mut(entry.lane).filter(|_| entry.ordered) {
                lane.unsettled.push_back(entry.number);
            }
        }
        // A lone message goes at once; several wait for each other, but not for long enough to fill a datagram. What was
        // sent long ago is no company, though its acknowledgement may be out.
        let lately = |sent: &Sent| now < sent.last_sent.plus_micros(COMPANY_US);
        let alone = !tracker.sent.back().is_some_and(lately) || self.target.deferred_ack.is_some();
        let is_last = tracker.burst.count(self.round, command.level != Level::Injected);
        if !command.has(CommandFlags::MORE)
            && (alone || is_last || command.length >= session.mtu.bytes() / 2 || tracker.queue.len() >= 64)
        {
            self.urgent = true;
        }
        // What a peer waits for must not stand behind what waits for the peer: two nodes could wait for each other for ever.
        match entry.is_own() {
            true => tracker.own.push_back(handle),
            false => tracker.queue.push_back(handle),
        }
        let index = entry.tracker;
        self.make_ready(index);
        Some(handle)
    }

    /// The tracker of a target, made when there is none.
    fn tracker_for(&mut self, now: Time, to: Address, command: &Command) -> u32 {
        let id = NodeId::of(to);
        let place = self.nodes.enter(id, id.path(), &mut self.random);
        if let Some(index) = self.nodes.get(place).and_then(|node| node.tracker) {
            return index;
        }
        let mtu = self.delivery.addresses().mtu(command.peer).unwrap_or(self.config.mtu_bytes);
        let mtu = mtu.clamp(MTU_MIN_BYTES, MTU_MAX_BYTES);
        let mut tracker = Tracker::new(place, self.initiator.psn, now);
        let Some(node) = self.nodes.get_mut(place) else { return self.initiator.trackers.insert(tracker) };
        let session = &mut node.session;
        session.mtu = if session.mtu_is_known { session.mtu.resume(mtu) } else { PathMtu::new(mtu) };
        session.mtu_is_known = true;
        session.congestion = match node.known {
            Some(_) => session.congestion.resume(),
            None => Congestion::new(session.mtu.bytes(), self.config.window_max_bytes),
        };
        // P-7.13: a ticket is good for half of the number space.
        if let Some(known) = node.known.filter(|known| self.initiator.psn - known.psn < LIFE_ENDS) {
            (tracker.ticket, tracker.ticket_psn) = (known.ticket, known.psn);
        }
        let index = self.initiator.trackers.insert(tracker);
        node.tracker = Some(index);
        index
    }

    pub(super) fn make_ready(&mut self, index: u32) {
        if let Some(tracker) = self.initiator.trackers.get_mut(index)
            && !tracker.ready
        {
            tracker.ready = true;
            self.initiator.ready.push_back(index);
        }
    }

    /// A tracker that has nothing left goes (P-7.1), but rests a moment before: in a ping-pong the next message is near.
    pub(super) fn free_tracker_if_done(&mut self, index: u32) {
        #[cfg(feature = "plant")]
        self.plant_early_end(index);
        let Some(tracker) = self.initiator.trackers.get_mut(index).filter(|tracker| tracker.is_done()) else { return };
        if tracker.resting {
            return;
        }
        tracker.resting = true;
        tracker.free_at = self.clock.plus_micros(REST_US);
        self.initiator.trackers_due = self.initiator.trackers_due.min(tracker.free_at);
        if tracker.listed {
            return;
        }
        tracker.listed = true;
        self.initiator.resting.push_back(index);
        if self.initiator.resting.len() > RESTING_MAX
            && let Some(oldest) = self.initiator.resting.pop_front()
        {
            self.free_tracker(oldest);
        }
    }

    /// Frees a tracker that rests (P-3.4).
    pub(super) fn free_tracker(&mut self, index: u32) {
        let Some(tracker) = self.initiator.trackers.get_mut(index) else { return };
        tracker.listed = false;
        if !tracker.resting || !tracker.is_done() {
            return;
        }
        let Some(tracker) = self.initiator.trackers.remove(index) else { return };
        self.initiator.psn = self.initiator.psn.max(tracker.next());
        if tracker.ready {
            self.initiator.ready.retain(|ready| *ready != index);
        }
        if let Some(node) = self.nodes.get_mut(tracker.node) {
            node.tracker = None;
            node.session.mtu_is_known = node.session.mtu.is_notable();
            if tracker.ticket != 0 {
                node.known = Some(KnownIncarnation { ticket: tracker.ticket, psn: tracker.ticket_psn });
            }
        }
        self.nodes.rest(tracker.node);
    }

    /// Ends a command: its packets are settled, its tracker is left, its user is told.
    pub(super) fn finish(&mut self, now: Time, handle: u16, result: Result<(), Failure>) {
        let Some(entry) = self.initiator.entries.remove(handle) else { return };
        if let Some((tracker, session)) = tracked(&mut self.initiator.trackers, &mut self.nodes, entry.tracker) {
            leave(tracker, session, handle, &entry);
            if result.is_err() || entry.wants_response() {
                // P-7.3: so that the target can forget what it keeps for us.
                if tracker.ticket != 0 && !entry.is_read() {
                    tracker.owes_probe = true;
                    tracker.probe_at = now.plus_micros(PROBE_LINGER_US);
                    self.initiator.trackers_due = self.initiator.trackers_due.min(tracker.probe_at);
                }
            }
        }
        let index = entry.tracker;
        match entry.command.operation {
            Operation::Pull => self.pull_ended(now, entry.purpose, result),
            // Who waits for it keeps his life here with PROBEs (P-7.12): as long as he may, he must hear of it.
            Operation::Done if result == Err(Failure::OutcomeUnknown) && self.remembers(now, NodeId::of(entry.to)) => {
                self.submit(now, entry.command, entry.to, entry.source, entry.purpose);
            }
            Operation::Done => {}
            _ => self.delivery.report(&entry.command, result),
        }
        if entry.phase == Phase::AwaitDone && result == Err(Failure::Cancelled) {
            self.withdraw(now, &entry);
        }
        if !self.initiator.waiting.is_empty() {
            self.submit_waiting(now);
        }
        if self.initiator.trackers.get(index).is_some_and(Tracker::has_more) {
            self.make_ready(index);
        }
        self.free_tracker_if_done(index);
    }

    /// Whether a peer has a life here, or had one not long ago.
    fn remembers(&self, now: Time, node: NodeId) -> bool {
        let lives = self.nodes.of(node).is_some_and(|node| node.rx_flow.is_some());
        lives || self.target.tombstones.get(node, now).is_some()
    }

    /// How many commands more can be posted as packets.
    pub fn room_for_commands(&self) -> usize {
        // Some entries stay free for what the engine sends itself: the target's side must not starve.
        self.initiator.entries.room().saturating_sub((self.config.commands_max / 8).max(2))
    }

    /// Closes an endpoint: its receives are cancelled, its commands end with [`Failure::Closed`]. Completions of receives
    /// that the queue has no room for are not made; their buffers are released.
    pub fn close_endpoint(&mut self, now: Time, endpoint: EndpointId) {
        self.end_commands(now, endpoint);
        self.close_receives(now, endpoint);
        self.target.refused.remove(&endpoint);
        self.delivery.remove_endpoint(endpoint);
    }

    /// Everything of an endpoint that receives ends, and everything of others that is received by its receives.
    fn close_receives(&mut self, now: Time, endpoint: EndpointId) {
        let delivery = &self.delivery;
        let sharers: Vec<EndpointId> = delivery.sharers_of(endpoint).collect();
        self.end_messages(now, endpoint, Failure::Closed, &|envelope| {
            envelope.endpoint == endpoint || sharers.contains(&envelope.endpoint)
        });
        self.delivery.close_receives(endpoint);
    }

    /// From now on an endpoint exists for one peer only: requests and messages of anybody else are refused as if it did
    /// not. Those of others that have come already end: what waits is dropped, and receives that they matched fail with
    /// [`Failure::Aborted`].
    pub fn restrict_endpoint(&mut self, now: Time, endpoint: EndpointId, peer: PeerId) -> Result<(), PostError> {
        let source = self.delivery.allow_only(endpoint, peer)?;
        self.end_messages(now, endpoint, Failure::Aborted, &|envelope| {
            envelope.endpoint == endpoint && envelope.source_id != source
        });
        Ok(())
    }

    /// Everything of one side of an endpoint ends without being reported, and its bindings are as if there had never been
    /// any; the other side goes on. `notices`: as for [`Engine::bind_endpoint`].
    pub fn close_side(&mut self, now: Time, endpoint: EndpointId, side: Side, notices: usize) {
        let was_silenced = self.delivery.silence_endpoint(endpoint, true);
        match side {
            Side::Transmit => self.end_commands(now, endpoint),
            Side::Receive => {
                self.close_receives(now, endpoint);
                (0..notices).for_each(|_| self.delivery.unreserve_remote_write(endpoint));
            }
        }
        self.delivery.silence_endpoint(endpoint, was_silenced);
        self.delivery.unbind_side(endpoint, side);
    }

    /// Sets those bindings of an endpoint that it has not got yet; the others stay as they are. What its user has posted
    /// has no place in the new queues: so it is called before anything is posted to the side that they are for. `notices`:
    /// writes of peers with immediate data that are under way by another transport
    /// ([`Delivery::reserve_remote_write`](crate::delivery::Delivery::reserve_remote_write)).
    pub fn bind_endpoint(&mut self, endpoint: EndpointId, more: &Bindings, notices: usize) -> Result<(), PostError> {
        let notices = notices + self.notices_under_way(endpoint);
        self.delivery.bind_endpoint(endpoint, more, notices)
    }

    /// All commands of an endpoint end with [`Failure::Closed`].
    pub(super) fn end_commands(&mut self, now: Time, endpoint: EndpointId) {
        let mine: Vec<u16> = self
            .initiator
            .entries
            .handles()
            .filter(|(_, entry)| entry.command.endpoint == endpoint && entry.purpose == u32::MAX)
            .map(|(handle, _)| handle)
            .collect();
        for handle in mine {
            self.finish(now, handle, Err(Failure::Closed));
        }
        let (queued, kept) =
            core::mem::take(&mut self.initiator.datagrams).into_iter().partition(|d| d.command.endpoint == endpoint);
        self.initiator.datagrams = kept;
        let queued: alloc::collections::VecDeque<DatagramOut> = queued;
        for datagram in queued {
            self.delivery.report(&datagram.command, Err(Failure::Closed));
        }
    }

    /// Cancels the oldest receive, or command that no packet of is under way, with this context. Its completion says
    /// [`Failure::Cancelled`]. False: there is none that can be, or the queue has no room.
    pub fn cancel(&mut self, now: Time, endpoint: EndpointId, context: u64) -> bool {
        if self.delivery.cancel_receive(endpoint, context) {
            return true;
        }
        let mine = self.initiator.entries.handles().filter(|(_, entry)| {
            entry.command.endpoint == endpoint
                && self.delivery.context_of(&entry.command) == context
                && entry.purpose == u32::MAX
                && !entry.command.has(CommandFlags::PART)
        });
        let cancellable = mine.filter(|(handle, entry)| {
            let waits = |tracker: &Tracker| {
                let lane = tracker.lane(entry.lane).map(|lane| lane.refusals(Class::of(entry)));
                lane.is_some_and(|refusals| refusals.packets.iter().any(|packet| packet.handle == *handle))
            };
            match entry.phase {
                Phase::Queued => true,
                // P-7.10: a sent packet can be cancelled only while it waits to be issued again.
                Phase::Started => {
                    entry.packets == 1
                        && !entry.accepted
                        && self.initiator.trackers.get(entry.tracker).is_some_and(waits)
                }
                // Nothing of it has left; an empty one may have been taken without asking.
                Phase::AwaitDone => !entry.fetched && entry.command.length > 0,
            }
        });
        let Some(handle) =
            cancellable.min_by_key(|(_, entry)| self.initiator.number.wrapping_sub(entry.number)).map(|(h, _)| h)
        else {
            return false;
        };
        self.finish(now, handle, Err(Failure::Cancelled));
        true
    }
}

/// Psns of one life, less room for what is in flight.
const LIFE_ENDS: u64 = LIFE_PSN_MAX as u64 - 4 * WINDOW_MAX as u64;
/// A command leaves its tracker and its lane, wherever in them it is.
fn leave(tracker: &mut Tracker, session: &mut Session, handle: u16, entry: &Entry) {
    tracker.commands -= 1;
    if entry.is_fetch() && entry.phase != Phase::Queued {
        tracker.fetches = tracker.fetches.saturating_sub(1);
    }
    if entry.phase == Phase::AwaitDone {
        tracker.await_done = tracker.await_done.saturating_sub(1);
    }
    if entry.packets > 0 || !entry.is_cut() {
        abandon(tracker, session, handle, entry);
    }
    let Some(lane) = tracker.lane_mut(entry.lane) else { return };
    lane.commands -= 1;
    if entry.phase != Phase::Queued && !entry.is_own() {
        lane.begun -= 1;
    }
    if entry.ordered {
        lane.leave_stream(entry.number);
    }
    if entry.command.has(CommandFlags::ORDERED) {
        lane.ordered.retain(|other| *other != handle);
    }
    lane.refusals_mut(Class::of(entry)).ended();
    tracker.wake();
}

/// Takes all packets of a command out of a tracker: whoever answers them now is late.
fn abandon(tracker: &mut Tracker, session: &mut Session, handle: u16, entry: &Entry) {
    if entry.phase == Phase::Queued {
        tracker.unqueue(handle, entry);
        return;
    }
    tracker.started.retain(|other| *other != handle);
    tracker.forget_refused(handle, entry);
    let mut psn = tracker.base;
    while psn < tracker.next() {
        if tracker.get(psn).is_some_and(|sent| sent.handle == handle) {
            tracker.settle(session, psn);
        }
        psn = (psn + 1).max(tracker.base);
    }
}

#[cfg(feature = "plant")]
impl<M: Memory> Engine<M> {
    /// The bug of freeing a tracker before its last packet is settled: that packet's command counts as done.
    fn plant_early_end(&mut self, index: u32) {
        if self.config.plant != Some(super::Plant::FreeTrackerEarly) {
            return;
        }
        let Some((tracker, session)) = tracked(&mut self.initiator.trackers, &mut self.nodes, index) else { return };
        let last = tracker.sent.len() == 1 && tracker.commands == 1;
        let Some(sent) = tracker.sent.front().copied().filter(|_| last && tracker.ticket != 0) else { return };
        tracker.settle(session, tracker.base);
        let ended =
            self.initiator.entries.get_mut(sent.handle).filter(|entry| entry.rendezvous == 0 && entry.packets == 1);
        if let Some(entry) = ended {
            entry.packets = 0;
            let entry = *entry;
            leave(tracker, session, sent.handle, &entry);
            self.initiator.entries.remove(sent.handle);
            self.delivery.report(&entry.command, Ok(()));
        }
    }
}

/// Whether a life's numbers are nearly used up (P-7.13).
pub(super) fn life_ends(tracker: &Tracker) -> bool {
    tracker.next() - tracker.ticket_psn >= LIFE_ENDS
}
