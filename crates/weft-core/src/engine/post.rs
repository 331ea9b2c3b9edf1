//! The way down, first part: from a command to its place in the queue of its target; and its end.

use alloc::vec::Vec;

use super::{Endpoint, EndpointKind, Engine, Known};
use crate::address::Address;
use crate::atomic::AtomicClass;
use crate::command::{Command, CommandFlags, EndpointId, Level, Operation, PostError};
use crate::event::{
    Completion, CompletionFlags, CompletionKind, CompletionQueue, CounterId, Entry as Ended, Failure, QueueId,
};
use crate::hash::Peer;
use crate::limits::{
    ATOMIC_MAX_BYTES, COMPANY_US, LIFE_PSN_MAX, MESSAGE_LENGTH_MAX_BYTES, MTU_DEFAULT_BYTES, MTU_MAX_BYTES,
    MTU_MIN_BYTES, PROBE_LINGER_US, REST_US, RESTING_MAX, WINDOW_MAX,
};
use crate::memory::{LocalKey, Memory};
use crate::packet::{SESSION_BYTES, TRAILER_BYTES, TRANSPORT_BYTES};
use crate::reliable::congestion::Congestion;
use crate::reliable::entry::{Entry, Phase};
use crate::reliable::lane::Class;
use crate::reliable::path::PathMtu;
use crate::reliable::tracker::{Sent, Tracker};
use crate::time::Time;

use super::transmit::DatagramOut;

impl<M: Memory> Engine<M> {
    /// Takes a command. Its completion comes later, once, whatever happens.
    pub fn post(&mut self, now: Time, command: &Command) -> Result<(), PostError> {
        self.clock = now;
        let datagram = command.operation == Operation::Datagram;
        // Some entries stay free for what the engine sends itself: the target's side must not starve.
        // Fetching a message takes two of them.
        if datagram && self.datagrams.len() >= self.config.commands_max {
            return Err(PostError::QueueFull);
        }
        if !self.entries.has_room(1 + (self.config.commands_max / 8).max(2)) {
            return Err(PostError::QueueFull);
        }
        let mut command = *command;
        let to = self.addresses.address(command.peer).ok_or(PostError::NoSuchPeer)?;
        self.admit(&mut command)?;
        let endpoint = self.endpoint(command.endpoint).ok_or(PostError::NoSuchEndpoint)?;
        let (source, queue) = (endpoint.source, endpoint.bindings.transmit_queue);
        if datagram {
            self.datagrams.push_back(DatagramOut { command, to, source });
            self.urgent = true;
            return Ok(());
        }
        if self.submit(now, command, to, source, u32::MAX).is_none() {
            if !command.has(CommandFlags::PART) {
                self.unreserve(queue);
            }
            return Err(PostError::QueueFull);
        }
        Ok(())
    }

    /// Takes a command that was admitted for another road, and is to go as packets after all. False: there is no room now.
    pub fn post_admitted(&mut self, command: &Command) -> bool {
        let to = self.addresses.address(command.peer);
        let (Some(to), Some(endpoint)) = (to, self.endpoint(command.endpoint)) else {
            self.report(command, Err(Failure::Aborted));
            return true;
        };
        let source = endpoint.source;
        if command.operation == Operation::Datagram {
            self.datagrams.push_back(DatagramOut { command: *command, to, source });
            self.urgent = true;
            return true;
        }
        self.submit(self.clock, *command, to, source, u32::MAX).is_some()
    }

    /// Checks a command and keeps a place for its completion, whatever road it takes: after this, [`Engine::report`] it
    /// once. Nothing was changed if it is refused.
    pub fn admit(&mut self, command: &mut Command) -> Result<(), PostError> {
        self.check(command)?;
        if command.has(CommandFlags::PART) {
            // The place is that of the whole.
            return if self.has_group(command) { Ok(()) } else { Err(PostError::NotSupported) };
        }
        let endpoint = self.endpoint(command.endpoint).ok_or(PostError::NoSuchEndpoint)?;
        let queue = endpoint.bindings.transmit_queue;
        let wishes = command.level == Level::Injected && !command.has(CommandFlags::SILENT);
        let mut queue_state = queue.and_then(|queue| self.queues.get_mut(queue.0 as usize));
        let mut reserve = |places| queue_state.as_mut().is_none_or(|queue| queue.reserve_for_post(places));
        // The second place is for a failure that may come. Without it the command ends once, when it is transmitted.
        let injected = wishes && reserve(2);
        if !injected && !reserve(1) {
            return Err(PostError::CompletionQueueFull);
        }
        if wishes && !injected {
            command.level = Level::Transmitted;
        }
        if injected {
            // The caller made a copy.
            let plain = self.plain(command);
            self.push(queue, completion_of(&plain, LocalKey::NONE, Ok(())));
            command.flags = command.flags | CommandFlags::SILENT;
        }
        Ok(())
    }

    /// Checks a command as far as that does not depend on room: nothing but that can refuse it later, as long as endpoint
    /// and peer stay. Nothing is changed.
    #[inline]
    pub fn check(&self, command: &Command) -> Result<(), PostError> {
        let endpoint = self.endpoint(command.endpoint).ok_or(PostError::NoSuchEndpoint)?;
        let datagram = command.operation == Operation::Datagram;
        if datagram != (endpoint.kind == EndpointKind::Datagram) {
            return Err(PostError::NotSupported);
        }
        let length = u64::from(command.length);
        if length > MESSAGE_LENGTH_MAX_BYTES {
            return Err(PostError::TooLong { length, limit: MESSAGE_LENGTH_MAX_BYTES });
        }
        self.check_operation(command)?;
        self.check_local(command.local, command.offset, u64::from(command.length))
    }

    /// Checks a command that will be done when it is posted, and that its completion has a place. Nothing is kept: the
    /// next call is [`Engine::report_done`], or none.
    #[inline(always)]
    pub fn admit_done(&self, command: &Command) -> Result<Admitted, PostError> {
        let endpoint = self.endpoint(command.endpoint).ok_or(PostError::NoSuchEndpoint)?;
        if endpoint.kind != EndpointKind::Reliable {
            return Err(PostError::NotSupported);
        }
        let counter = counter_of(endpoint, command.operation);
        let queue = endpoint.bindings.transmit_queue.filter(|_| !command.has(CommandFlags::SILENT));
        let Some(queue) = queue else { return Ok(Admitted { queue: None, counter }) };
        match self.queues.get(queue.0 as usize) {
            Some(state) if !state.has_room_for_post() => Err(PostError::CompletionQueueFull),
            _ => Ok(Admitted { queue: Some(queue), counter }),
        }
    }

    /// A command that was done at once. `local` is the buffer that its completion gives back.
    pub fn report_done(&mut self, command: &Command, admitted: Admitted, local: LocalKey) {
        if admitted.counter.is_some() {
            self.count(admitted.counter, true);
        }
        if let Some(queue) = admitted.queue.and_then(|queue| self.queues.get_mut(queue.0 as usize)) {
            queue.push_at_once(done(command, local));
        } else if local != LocalKey::NONE {
            self.memory.release(local);
        }
    }

    /// As [`Engine::admit_done`], for a command without a buffer to give back, and with the queue at hand:
    /// [`ReportPlace::report`] follows, or nothing.
    #[inline(always)]
    pub fn place_for_report(&mut self, command: &Command) -> Result<ReportPlace<'_>, PostError> {
        let Admitted { queue, counter } = self.admit_done(command)?;
        Ok(ReportPlace { queue: queue.and_then(|queue| self.queues.get_mut(queue.0 as usize)), counter })
    }

    fn check_operation(&self, command: &Command) -> Result<(), PostError> {
        let class = match command.operation {
            Operation::Done | Operation::Pull => return Err(PostError::NotSupported),
            Operation::Datagram => {
                // One that the way does not carry goes in fragments, as far as every way can be thought to do it.
                let mtu = self.addresses.mtu(command.peer).unwrap_or(self.config.mtu_bytes).max(MTU_DEFAULT_BYTES);
                let limit = u64::from(mtu).saturating_sub(DATAGRAM_HEADERS_BYTES);
                let length = u64::from(command.length);
                return if length > limit { Err(PostError::TooLong { length, limit }) } else { Ok(()) };
            }
            Operation::Atomic => AtomicClass::Plain,
            Operation::FetchAtomic => AtomicClass::Fetch,
            Operation::CompareAtomic => AtomicClass::Compare,
            _ => return Ok(()),
        };
        command.atomic.check(class).map_err(|_| PostError::NotSupported)?;
        // What is read has as many bytes as elements, though it sends none.
        let length = u64::from(command.length).max(command.atomic.bytes().unwrap_or(0) as u64);
        if length > u64::from(ATOMIC_MAX_BYTES) {
            return Err(PostError::TooLong { length, limit: u64::from(ATOMIC_MAX_BYTES) });
        }
        if command.atomic.count == 0 || command.atomic.payload_bytes() != Some(command.length as usize) {
            return Err(PostError::BadBuffer);
        }
        if class != AtomicClass::Plain {
            let bytes = command.atomic.bytes().unwrap_or(0) as u64;
            self.check_local(command.results(), command.results_offset(), bytes)?;
        }
        Ok(())
    }

    #[inline]
    pub(super) fn check_local(&self, local: LocalKey, offset: u64, length: u64) -> Result<(), PostError> {
        if length == 0 {
            return Ok(());
        }
        let have = self.memory.local_length(local).ok_or(PostError::BadBuffer)?;
        match offset.checked_add(length) {
            Some(end) if end <= have => Ok(()),
            _ => Err(PostError::BadBuffer),
        }
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
        if !self.entries.has_room(1) {
            return None;
        }
        let tracker = self.tracker_for(now, to, &command);
        self.number = self.number.wrapping_add(1);
        let entry = Entry {
            command,
            to,
            source,
            tracker,
            lane: 0,
            aside: None,
            number: self.number,
            phase: Phase::Queued,
            cut: 0,
            packets: 0,
            accepted: false,
            rendezvous: 0,
            fetched: false,
            ordered: false,
            is_reported: self.is_reported(&command),
            failure: None,
            purpose,
        };
        let handle = self.entries.insert(entry)?;
        let eager_max = self.config.eager_max_bytes;
        let (entry, tracker) = (self.entries.get_mut(handle)?, self.trackers.get_mut(tracker)?);
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
        let alone = !tracker.sent.back().is_some_and(lately) || self.late.is_some();
        if !command.has(CommandFlags::MORE)
            && (alone || command.length >= tracker.mtu() / 2 || tracker.queue.len() >= 64)
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

    /// Whether the end of a command makes a completion or is counted.
    fn is_reported(&self, command: &Command) -> bool {
        let counter = || self.endpoint(command.endpoint).and_then(|endpoint| counter_of(endpoint, command.operation));
        let by_others = command.has(CommandFlags::PART) || command.has(CommandFlags::COUNTED);
        !command.has(CommandFlags::SILENT) || by_others || counter().is_some()
    }

    /// The tracker of a target, made when there is none.
    fn tracker_for(&mut self, now: Time, to: Address, command: &Command) -> u32 {
        if let Some(index) = self.tracker_index(to.socket) {
            self.last_tracker = index;
            return index;
        }
        let mtu = self.addresses.mtu(command.peer).unwrap_or(self.config.mtu_bytes);
        let mtu = mtu.clamp(MTU_MIN_BYTES, MTU_MAX_BYTES);
        let path = self.narrow.get(&Peer(to.socket)).map_or_else(|| PathMtu::new(mtu), |path| path.resume(mtu));
        let mtu = path.bytes();
        let known = self.known.get(&Peer(to.socket)).copied();
        let congestion =
            known.map_or_else(|| Congestion::new(mtu, self.config.window_max_bytes), |k| k.congestion.resume());
        let mut tracker = Tracker::new(to.socket, path, self.psn, congestion, now);
        // P-7.13: a ticket is good for half of the number space.
        if let Some(known) = known.filter(|known| self.psn - known.ticket_psn < LIFE_ENDS) {
            tracker.ticket = known.ticket;
            tracker.ticket_psn = known.ticket_psn;
        }
        let index = self.trackers.insert(tracker);
        self.tracker_of.insert(Peer(to.socket), index);
        index
    }

    pub(super) fn make_ready(&mut self, index: u32) {
        if let Some(tracker) = self.trackers.get_mut(index)
            && !tracker.ready
        {
            tracker.ready = true;
            self.ready.push_back(index);
        }
    }

    /// A tracker that has nothing left goes (P-7.1), but rests a moment before: in a ping-pong the next message is near.
    pub(super) fn free_tracker_if_done(&mut self, index: u32) {
        #[cfg(feature = "plant")]
        self.plant_early_end(index);
        let Some(tracker) = self.trackers.get_mut(index).filter(|tracker| tracker.is_done()) else { return };
        if tracker.resting {
            return;
        }
        tracker.resting = true;
        tracker.free_at = self.clock.plus_micros(REST_US);
        self.trackers_due = self.trackers_due.min(tracker.free_at);
        if tracker.listed {
            return;
        }
        tracker.listed = true;
        self.resting.push_back(index);
        if self.resting.len() > RESTING_MAX
            && let Some(oldest) = self.resting.pop_front()
        {
            self.free_tracker(oldest);
        }
    }

    /// Frees a tracker that rests (P-3.4).
    pub(super) fn free_tracker(&mut self, index: u32) {
        let Some(tracker) = self.trackers.get_mut(index) else { return };
        tracker.listed = false;
        if !tracker.resting || !tracker.is_done() {
            return;
        }
        let Some(tracker) = self.trackers.remove(index) else { return };
        self.tracker_of.remove(&Peer(tracker.peer));
        self.psn = self.psn.max(tracker.next());
        self.remember_path(tracker.peer, tracker.path);
        if tracker.ready {
            self.ready.retain(|ready| *ready != index);
        }
        if tracker.ticket != 0 {
            let known =
                Known { ticket: tracker.ticket, ticket_psn: tracker.ticket_psn, congestion: tracker.congestion };
            self.remember(tracker.peer, known);
        }
    }

    fn remember(&mut self, peer: core::net::SocketAddr, known: Known) {
        if self.known.len() >= self.config.tickets_max && !self.known.contains_key(&Peer(peer)) {
            // Any one may go: it costs that peer's next message a round trip.
            let victim = self.known.keys().next().copied();
            if let Some(victim) = victim {
                self.known.remove(&victim);
            }
        }
        if self.config.tickets_max > 0 {
            self.known.insert(Peer(peer), known);
        }
    }

    /// Ends a command: its packets are settled, its tracker is left, its user is told.
    pub(super) fn finish(&mut self, now: Time, handle: u16, result: Result<(), Failure>) {
        // Who offered a long message may have been refused for want of commands to fetch it with.
        self.credits_due |= self.credits_owed && !self.entries.has_room(2);
        let Some(entry) = self.entries.remove(handle) else { return };
        if let Some(tracker) = self.trackers.get_mut(entry.tracker) {
            leave(tracker, handle, &entry);
            if result.is_err() || entry.wants_response() {
                // P-7.3: so that the target can forget what it keeps for us.
                if tracker.ticket != 0 && !entry.is_read() {
                    tracker.owes_probe = true;
                    tracker.probe_at = now.plus_micros(PROBE_LINGER_US);
                    self.trackers_due = self.trackers_due.min(tracker.probe_at);
                }
            }
        }
        let index = entry.tracker;
        match entry.command.operation {
            Operation::Pull => self.pull_ended(now, entry.purpose, result),
            // Who waits for it keeps his life here with PROBEs (P-7.12): as long as he may, he must hear of it.
            Operation::Done if result == Err(Failure::OutcomeUnknown) && self.remembers(now, entry.to.socket) => {
                self.submit(now, entry.command, entry.to, entry.source, entry.purpose);
            }
            Operation::Done => {}
            _ => self.report(&entry.command, result),
        }
        if entry.phase == Phase::AwaitDone && result == Err(Failure::Cancelled) {
            self.withdraw(now, &entry);
        }
        if !self.dones.is_empty() {
            self.send_waiting_done(now);
        }
        if self.trackers.get(index).is_some_and(Tracker::has_more) {
            self.make_ready(index);
        }
        self.free_tracker_if_done(index);
    }

    /// Whether a peer has a life here, or had one not long ago.
    fn remembers(&self, now: Time, peer: core::net::SocketAddr) -> bool {
        self.life_of.contains_key(&Peer(peer)) || self.tombstones.get(peer, now).is_some()
    }

    /// Tells the user that a command ended. Its place in the queue was reserved when it was posted.
    pub fn report(&mut self, command: &Command, result: Result<(), Failure>) {
        if command.has(CommandFlags::PART) {
            return self.part_ended(command, result);
        }
        let plain;
        let command = if command.has(CommandFlags::COUNTED) {
            plain = self.end_counted(command, result.is_ok());
            &plain
        } else {
            command
        };
        let Some(endpoint) = self.endpoint(command.endpoint) else {
            self.release_buffers(command);
            return;
        };
        // Who did not wait for the target's answer is not told what a receive made of the message: its receiver is.
        let sends = matches!(command.operation, Operation::Send | Operation::TaggedSend);
        let cut = sends && result == Err(Failure::LengthError) && has_ended(command);
        let result = if cut { Ok(()) } else { result };
        let (queue, silenced) = (endpoint.bindings.transmit_queue, endpoint.silenced);
        let counter = counter_of(endpoint, command.operation).filter(|_| !silenced);
        self.count(counter, result.is_ok());
        let silent = silenced || result.is_ok() && command.has(CommandFlags::SILENT);
        if silent || queue.is_none() {
            self.unreserve(queue);
            self.release_buffers(command);
        } else {
            self.push(queue, completion_of(command, command.local, result));
        }
    }

    fn release_buffers(&mut self, command: &Command) {
        if command.local != LocalKey::NONE {
            self.memory.release(command.local);
        }
        let fetches = matches!(command.operation, Operation::FetchAtomic | Operation::CompareAtomic);
        if fetches && command.results() != command.local {
            self.memory.release(command.results());
        }
    }

    /// Keeps a place in a queue; without a queue there is nothing to keep.
    pub(super) fn reserve(&mut self, queue: Option<QueueId>) -> bool {
        queue.and_then(|queue| self.queues.get_mut(queue.0 as usize)).is_none_or(|queue| queue.reserve())
    }

    pub(super) fn unreserve(&mut self, queue: Option<QueueId>) {
        if let Some(queue) = queue.and_then(|queue| self.queues.get_mut(queue.0 as usize)) {
            queue.unreserve();
        }
    }

    pub(super) fn push(&mut self, queue: Option<QueueId>, completion: Completion) {
        if let Some(queue) = queue.and_then(|queue| self.queues.get_mut(queue.0 as usize)) {
            queue.push(&completion);
        }
    }

    /// Closes an endpoint: its receives are cancelled, its commands end with [`Failure::Closed`]. Completions of receives
    /// that the queue has no room for are not made; their buffers are released.
    pub fn close_endpoint(&mut self, now: Time, endpoint: EndpointId) {
        self.end_commands(now, endpoint);
        self.close_receives(now, endpoint);
        if let Some(closed) = self.endpoints.get_mut(endpoint.0 as usize).and_then(Option::take) {
            self.endpoint_of.remove(&closed.number);
            self.closed_endpoints.push(endpoint);
            if let Some(from) = closed.receives_at {
                self.sharers.remove(&(from, endpoint));
            }
        }
    }

    /// All commands of an endpoint end with [`Failure::Closed`].
    pub(super) fn end_commands(&mut self, now: Time, endpoint: EndpointId) {
        let mine: Vec<u16> = self
            .entries
            .handles()
            .filter(|(_, entry)| entry.command.endpoint == endpoint && entry.purpose == u32::MAX)
            .map(|(handle, _)| handle)
            .collect();
        for handle in mine {
            self.finish(now, handle, Err(Failure::Closed));
        }
        let (queued, kept) =
            core::mem::take(&mut self.datagrams).into_iter().partition(|d| d.command.endpoint == endpoint);
        self.datagrams = kept;
        let queued: alloc::collections::VecDeque<DatagramOut> = queued;
        for datagram in queued {
            self.report(&datagram.command, Err(Failure::Closed));
        }
    }

    /// Cancels the oldest receive, or command that no packet of is under way, with this context. Its completion says
    /// [`Failure::Cancelled`]. False: there is none that can be, or the queue has no room.
    pub fn cancel(&mut self, now: Time, endpoint: EndpointId, context: u64) -> bool {
        if self.cancel_receive(endpoint, context) {
            return true;
        }
        let mine = self.entries.handles().filter(|(_, entry)| {
            entry.command.endpoint == endpoint
                && self.context_of(&entry.command) == context
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
                    entry.packets == 1 && !entry.accepted && self.trackers.get(entry.tracker).is_some_and(waits)
                }
                // Nothing of it has left; an empty one may have been taken without asking.
                Phase::AwaitDone => !entry.fetched && entry.command.length > 0,
            }
        });
        let Some(handle) = cancellable.min_by_key(|(_, entry)| self.number.wrapping_sub(entry.number)).map(|(h, _)| h)
        else {
            return false;
        };
        self.finish(now, handle, Err(Failure::Cancelled));
        true
    }
}

/// Psns of one life, less room for what is in flight.
const LIFE_ENDS: u64 = LIFE_PSN_MAX as u64 - 4 * WINDOW_MAX as u64;
/// Headers of a datagram with immediate data.
const DATAGRAM_HEADERS_BYTES: u64 = (SESSION_BYTES + TRANSPORT_BYTES + 12 + 8 + TRAILER_BYTES) as u64;

/// A command leaves its tracker and its lane, wherever in them it is.
fn leave(tracker: &mut Tracker, handle: u16, entry: &Entry) {
    tracker.commands -= 1;
    if entry.is_fetch() && entry.phase != Phase::Queued {
        tracker.fetches = tracker.fetches.saturating_sub(1);
    }
    if entry.phase == Phase::AwaitDone {
        tracker.await_done = tracker.await_done.saturating_sub(1);
    }
    if entry.packets > 0 || !entry.is_cut() {
        abandon(tracker, handle, entry);
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
fn abandon(tracker: &mut Tracker, handle: u16, entry: &Entry) {
    if entry.phase == Phase::Queued {
        tracker.unqueue(handle, entry);
        return;
    }
    tracker.started.retain(|other| *other != handle);
    tracker.forget_refused(handle, entry);
    let mut psn = tracker.base;
    while psn < tracker.next() {
        if tracker.get(psn).is_some_and(|sent| sent.handle == handle) {
            tracker.settle(psn);
        }
        psn = (psn + 1).max(tracker.base);
    }
}

/// Where a command that is done at once will be reported, as long as nothing else happens.
#[derive(Debug)]
pub struct ReportPlace<'a> {
    queue: Option<&'a mut CompletionQueue>,
    counter: Option<CounterId>,
}

impl ReportPlace<'_> {
    /// The command was done. What counts it is for [`Engine::count_done`].
    #[inline(always)]
    #[must_use]
    pub fn report(self, command: &Command) -> Option<CounterId> {
        if let Some(queue) = self.queue {
            queue.push_at_once(done(command, LocalKey::NONE));
        }
        self.counter
    }
}

/// The completion of a command that was done at once.
#[inline(always)]
fn done(command: &Command, local: LocalKey) -> Ended {
    Ended {
        context: command.context,
        length: u64::from(command.length),
        tag: if command.operation == Operation::TaggedSend { command.address } else { 0 },
        immediate: None,
        place: 0,
        peer: Some(command.peer),
        local,
        kind: kind_of(command.operation),
        flags: CompletionFlags::NONE,
        result: Ok(()),
    }
}

#[inline(always)]
fn counter_of(endpoint: &Endpoint, operation: Operation) -> Option<CounterId> {
    let bindings = &endpoint.bindings;
    match operation {
        Operation::Send | Operation::TaggedSend | Operation::Datagram => bindings.send_counter,
        Operation::Read | Operation::FetchAtomic | Operation::CompareAtomic => bindings.read_counter,
        Operation::Write | Operation::Atomic => bindings.write_counter,
        Operation::Done | Operation::Pull => None,
    }
}

/// Where a command that is done at once will be reported.
#[derive(Clone, Copy, Debug)]
pub struct Admitted {
    queue: Option<QueueId>,
    counter: Option<CounterId>,
}

#[inline(always)]
fn kind_of(operation: Operation) -> CompletionKind {
    match operation {
        Operation::Read | Operation::Pull => CompletionKind::Read,
        Operation::Write => CompletionKind::Write,
        Operation::Atomic => CompletionKind::Atomic,
        Operation::FetchAtomic | Operation::CompareAtomic => CompletionKind::FetchAtomic,
        Operation::TaggedSend => CompletionKind::TaggedSend,
        _ => CompletionKind::Send,
    }
}

/// Whether a command has ended for its user: see [`Engine::admit`].
fn has_ended(command: &Command) -> bool {
    command.level == Level::Injected && command.has(CommandFlags::SILENT)
}

pub(super) fn completion_of(command: &Command, local: LocalKey, result: Result<(), Failure>) -> Completion {
    Completion {
        context: command.context,
        kind: kind_of(command.operation),
        flags: if result.is_err() && has_ended(command) { CompletionFlags::LATE } else { CompletionFlags::NONE },
        result,
        length: u64::from(command.length),
        tag: if command.operation == Operation::TaggedSend { command.address } else { 0 },
        immediate: None,
        source: None,
        peer: Some(command.peer),
        local,
        results: match command.operation {
            Operation::FetchAtomic | Operation::CompareAtomic if local != LocalKey::NONE => command.results(),
            _ => LocalKey::NONE,
        },
        offset: 0,
    }
}

#[cfg(feature = "plant")]
impl<M: Memory> Engine<M> {
    /// The bug of freeing a tracker before its last packet is settled: that packet's command counts as done.
    fn plant_early_end(&mut self, index: u32) {
        if self.config.plant != Some(super::Plant::FreeTrackerEarly) {
            return;
        }
        let Some(tracker) = self.trackers.get_mut(index) else { return };
        let last = tracker.sent.len() == 1 && tracker.commands == 1;
        let Some(sent) = tracker.sent.front().copied().filter(|_| last && tracker.ticket != 0) else { return };
        tracker.settle(tracker.base);
        let ended = self.entries.get_mut(sent.handle).filter(|entry| entry.rendezvous == 0 && entry.packets == 1);
        if let Some(entry) = ended {
            entry.packets = 0;
            let entry = *entry;
            leave(tracker, sent.handle, &entry);
            self.entries.remove(sent.handle);
            self.report(&entry.command, Ok(()));
        }
    }
}

/// Whether a life's numbers are nearly used up (P-7.13).
pub(super) fn life_ends(tracker: &Tracker) -> bool {
    tracker.next() - tracker.ticket_psn >= LIFE_ENDS
}
