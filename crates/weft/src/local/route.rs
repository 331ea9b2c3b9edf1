//! The initiator's side of a channel: what this node's user asks a peer of the same node for.
//!
//! What the target's user may have no room for (messages, writes with immediate data) goes through one ring, everything else
//! through another ([`Lane`]), so that a target which leaves the first is reached by the second. Only what the user has
//! fenced waits for messages.

mod device;
mod waiting;

use std::collections::VecDeque;

use weft_core::address::Address;
use weft_core::command::{Command, CommandFlags, EndpointId, Level, Operation};
use weft_core::delivery::Delivery;
use weft_core::event::Failure;
use weft_link::limits::PAYLOAD_MAX_BYTES;
use weft_link::shm::{Broken, InitiatorChannel, PushError, Record, Sender};
use weft_mem::attach::Span;
use weft_mem::{HostMemory, Segment};

use super::attachment::Attachments;
use super::bounce::{self, Bounces};
use super::bytes::{Unsent, fragment_bytes, goes_at_once, push_device, push_local, read_local, write_local};
use super::handle::{self, Reaching, Told};
use super::pace::{Methods, Pace};
use super::record::{self, Request, Response, Spans};
use super::{LocalStatistics, WORD_CAN_ATTACH};
use crate::limits::{LOCAL_FRAGMENT_BYTES, LOCAL_OFFERS_MAX, LOCAL_PARTS_IN_TURN, LOCAL_RECORDS_PER_ROUND};

pub(super) use waiting::WAITING_MAX;
use waiting::{NO_TOKEN, State, Waiting, Waitings};

/// A channel to an endpoint of this node.
pub(super) struct Route {
    pub(super) channel: InitiatorChannel,
    pub(super) endpoint: EndpointId,
    pub(super) address: Address,
    /// What the target reads to find out whether it may read here at all.
    #[expect(dead_code, reason = "only the target reads it")]
    canary: Box<u64>,
    /// The target has taken the channel.
    accepted: bool,
    /// Commands that found no room in the ring of messages, in order.
    messages: Queue,
    /// The same for the ring of transfers.
    transfers: Queue,
    /// A command that has to wait for earlier ones, and all behind it; everything until the target has taken the channel,
    /// so that a target which does not want it has taken nothing.
    held: VecDeque<Command>,
    /// Of them, those from before the target took the channel. They go through the ring: their user may want them back
    /// before it is known whether the target goes on, and what the target may be reading it has to give up first.
    early: usize,
    starts_early: bool,
    /// Messages that were put into the ring, and how many of them the target is known to have taken.
    messages_sent: u64,
    messages_taken: u64,
    /// The last fenced command that went behind messages, and how many those were. Until it is answered, others follow it.
    behind_messages: Option<(u32, u64)>,
    waiting: Waitings,
    /// Offered messages that were pulled, and are not all sent.
    pushes: VecDeque<u32>,
    /// Parts of the first of them that were sent in its turn.
    turn: u32,
    /// Arrivals at the target that must end without their message.
    aborts: VecDeque<u64>,
    pub(super) attachments: Attachments,
    /// Allocations of device memory that the target was told of.
    pub(super) told: Told,
    bounces: Bounces,
    /// Writes and reads in the target's device memory that go on.
    reaching: Vec<Reaching>,
    pace: Pace,
}

/// A ring to the target.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lane {
    /// What the target's user may have no room for, in order.
    Messages,
    /// What the target always takes.
    Transfers,
}

impl Lane {
    #[inline]
    fn sender(self, channel: &mut InitiatorChannel) -> &mut Sender {
        match self {
            Lane::Messages => channel.messages(),
            Lane::Transfers => channel.transfers(),
        }
    }
}

/// Commands that wait for room in a ring.
#[derive(Default)]
struct Queue {
    commands: VecDeque<Command>,
    /// How far the first of them has come.
    begun: Option<Started>,
}

#[derive(Clone, Copy)]
struct Started {
    token: u32,
    sent: u32,
}

/// What became of an attempt.
enum Attempt {
    /// It is under way or done.
    Taken,
    /// Some of it; the rest needs room.
    Part(Started),
    /// No room, or a fence holds it back.
    Full,
}

impl Attempt {
    /// It was done straight in the target's memory.
    fn reached(
        delivery: &mut Delivery<HostMemory>,
        command: &Command,
        result: Result<(), Failure>,
        statistics: &mut LocalStatistics,
    ) -> Attempt {
        statistics.direct += 1;
        delivery.report(command, result);
        Attempt::Taken
    }

    fn failed(error: PushError) -> Result<Attempt, Broken> {
        match error {
            PushError::Full => Ok(Attempt::Full),
            PushError::Broken | PushError::TooLong => Err(Broken),
        }
    }
}

impl Route {
    pub(super) fn new(channel: InitiatorChannel, endpoint: EndpointId, address: Address, canary: Box<u64>) -> Route {
        Route {
            channel,
            endpoint,
            address,
            canary,
            accepted: false,
            messages: Queue::default(),
            transfers: Queue::default(),
            held: VecDeque::new(),
            early: 0,
            starts_early: false,
            messages_sent: 0,
            messages_taken: 0,
            behind_messages: None,
            waiting: Waitings::default(),
            pushes: VecDeque::new(),
            turn: 0,
            aborts: VecDeque::new(),
            attachments: Attachments::default(),
            told: Told::default(),
            bounces: Bounces::default(),
            reaching: Vec::new(),
            pace: Pace::default(),
        }
    }

    /// Commands that are not done.
    pub(super) fn under_way(&self) -> usize {
        let queued = self.messages.commands.len() + self.transfers.commands.len() + self.held.len();
        self.waiting.length + queued
    }

    /// Whether something waits for room in a ring.
    pub(super) fn wants_room(&self) -> bool {
        self.wants_room_in(Lane::Messages) || self.wants_room_in(Lane::Transfers)
    }

    fn wants_room_in(&self, lane: Lane) -> bool {
        match lane {
            Lane::Messages => !self.messages.commands.is_empty(),
            Lane::Transfers => {
                !(self.transfers.commands.is_empty() && self.pushes.is_empty() && self.aborts.is_empty())
            }
        }
    }

    /// Says to the peer that this process is about to sleep.
    pub(super) fn announce_sleep(&mut self) {
        self.channel.responses().announce_sleep();
        for lane in [Lane::Messages, Lane::Transfers] {
            if self.wants_room_in(lane) {
                lane.sender(&mut self.channel).announce_sleep();
            }
        }
    }

    /// Whether there is nothing to do before the peer does something.
    pub(super) fn may_sleep(&mut self, wanted_room_bytes: usize) -> bool {
        let mut may = self.channel.responses().is_empty() && !self.is_reaching() && !self.may_release();
        for lane in [Lane::Messages, Lane::Transfers] {
            may &= !self.wants_room_in(lane) || lane.sender(&mut self.channel).is_full(wanted_room_bytes);
        }
        may
    }

    fn queue(&mut self, lane: Lane) -> &mut Queue {
        match lane {
            Lane::Messages => &mut self.messages,
            Lane::Transfers => &mut self.transfers,
        }
    }

    /// Whether a command has to wait until earlier ones have ended.
    #[inline]
    fn is_held_back(&self, command: &Command) -> bool {
        let constrained = command.has(CommandFlags::FENCE) || command.has(CommandFlags::ORDERED);
        !self.accepted || constrained && self.must_wait(command)
    }

    #[cold]
    fn must_wait(&self, command: &Command) -> bool {
        let queued = || self.messages.commands.iter().chain(&self.transfers.commands);
        if command.has(CommandFlags::FENCE) && (self.waiting.operations() > 0 || queued().next().is_some()) {
            return true;
        }
        let earlier = |other: &Command| other.has(CommandFlags::ORDERED) && command.must_follow(other);
        self.waiting.hold_back(command) || command.has(CommandFlags::ORDERED) && queued().any(earlier)
    }

    /// Whether what earlier commands held back need not wait any more.
    #[inline]
    fn may_release(&self) -> bool {
        self.held.front().is_some_and(|command| !self.is_held_back(command))
    }

    /// Whether messages that the target may not have taken stand before a command that the user has fenced.
    #[inline]
    fn follows_messages(&self, command: &Command) -> bool {
        (command.has(CommandFlags::FENCE) || self.behind_messages.is_some()) && self.messages_sent > self.messages_taken
    }

    /// The ring that a command goes through.
    #[inline]
    fn lane_of(&self, command: &Command) -> Lane {
        match command.operation {
            Operation::Send | Operation::TaggedSend | Operation::Datagram => Lane::Messages,
            Operation::Write if command.has(CommandFlags::IMMEDIATE) => Lane::Messages,
            _ if self.follows_messages(command) => Lane::Messages,
            _ => Lane::Transfers,
        }
    }

    /// Takes an admitted command.
    #[inline]
    pub(super) fn submit(
        &mut self,
        delivery: &mut Delivery<HostMemory>,
        command: &Command,
        methods: &Methods,
        statistics: &mut LocalStatistics,
    ) -> Result<(), Broken> {
        if !self.held.is_empty() || self.is_held_back(command) {
            self.early += usize::from(!self.accepted);
            self.held.push_back(*command);
            return self.pump(delivery, methods, statistics).map(|_| ());
        }
        let lane = self.lane_of(command);
        if !self.queue(lane).commands.is_empty() {
            self.queue(lane).commands.push_back(*command);
            return self.pump(delivery, methods, statistics).map(|_| ());
        }
        self.start(delivery, command, lane, methods, statistics)
    }

    /// Tries the first command of a lane.
    #[inline]
    fn start(
        &mut self,
        delivery: &mut Delivery<HostMemory>,
        command: &Command,
        lane: Lane,
        methods: &Methods,
        statistics: &mut LocalStatistics,
    ) -> Result<(), Broken> {
        match self.attempt(delivery, command, lane, None, methods, statistics) {
            Ok(Attempt::Taken) => {}
            Ok(Attempt::Part(started)) => {
                let queue = self.queue(lane);
                queue.begun = Some(started);
                queue.commands.push_back(*command);
            }
            Ok(Attempt::Full) => self.queue(lane).commands.push_back(*command),
            Err(Broken) => {
                // It is nowhere yet where the end of the route would find it.
                delivery.report(command, Err(Failure::ProtocolError));
                return Err(Broken);
            }
        }
        Ok(())
    }

    /// Does a command with the caller's own bytes, if nothing is in the way.
    #[inline(always)]
    pub(super) fn do_at_once(
        &mut self,
        command: &Command,
        bytes: Segment<'_>,
        statistics: &mut LocalStatistics,
    ) -> bool {
        if !self.held.is_empty() || !self.accepted {
            return false;
        }
        match command.operation {
            Operation::Send | Operation::TaggedSend
                if bytes.len() <= LOCAL_FRAGMENT_BYTES && self.messages.commands.is_empty() =>
            {
                let record = send_record(command, bytes.len() as u32);
                let done = self.channel.messages().push_segment(&record, bytes).is_ok();
                self.messages_sent += u64::from(done);
                statistics.eager += u64::from(done);
                done
            }
            Operation::Write if !command.has(CommandFlags::IMMEDIATE) => {
                // The length is filled in when it is done.
                if command.has(CommandFlags::ORDERED)
                    && self.must_wait(&Command { length: bytes.len() as u32, ..*command })
                    || self.follows_messages(command)
                {
                    return false;
                }
                let done = self.attachments.write_whole(&self.channel, command, bytes);
                statistics.direct += u64::from(done);
                done
            }
            _ => false,
        }
    }

    /// Answers in, and what has found room out. True: something happened.
    pub(super) fn serve(
        &mut self,
        delivery: &mut Delivery<HostMemory>,
        methods: &Methods,
        statistics: &mut LocalStatistics,
    ) -> Result<bool, Broken> {
        let mut busy = false;
        for _ in 0..LOCAL_RECORDS_PER_ROUND {
            if !self.answer(delivery, methods, statistics)? {
                break;
            }
            busy = true;
        }
        if !self.reaching.is_empty() {
            busy |= self.serve_reaching(delivery);
        }
        if self.wants_room() || self.may_release() {
            busy |= self.pump(delivery, methods, statistics)?;
        }
        Ok(busy)
    }

    /// Whether [`Route::serve`] has something to look at.
    #[inline]
    pub(super) fn has_work(&mut self) -> bool {
        !self.channel.responses().is_empty() || self.wants_room() || self.may_release() || !self.reaching.is_empty()
    }

    /// A message that is in the ring counts as done: the target has the ring.
    #[inline]
    fn sent(&mut self, delivery: &mut Delivery<HostMemory>, command: &Command) {
        self.messages_sent += 1;
        delivery.report(command, Ok(()));
    }

    /// Room for what waits for it, in turn.
    fn pump(
        &mut self,
        delivery: &mut Delivery<HostMemory>,
        methods: &Methods,
        statistics: &mut LocalStatistics,
    ) -> Result<bool, Broken> {
        let mut moved = self.push_aborts()?;
        // One part of a pulled message, then one command of each lane: none can starve the others.
        let mut more = true;
        while std::mem::take(&mut more) {
            if let Some(token) = self.pushes.front().copied() {
                let (again, sent) = self.push_part(delivery, token, methods, statistics)?;
                self.turn += u32::from(sent);
                if !again {
                    self.pushes.pop_front();
                    self.turn = 0;
                } else if self.turn >= LOCAL_PARTS_IN_TURN {
                    self.pushes.rotate_left(1);
                    self.turn = 0;
                }
                more |= sent;
            }
            more |= self.pump_queue(delivery, Lane::Transfers, methods, statistics)?;
            more |= self.pump_queue(delivery, Lane::Messages, methods, statistics)?;
            if self.may_release()
                && let Some(command) = self.held.pop_front()
            {
                let lane = self.lane_of(&command);
                self.starts_early = self.early > 0;
                self.early = self.early.saturating_sub(1);
                if self.queue(lane).commands.is_empty() {
                    let started = self.start(delivery, &command, lane, methods, statistics);
                    self.starts_early = false;
                    started?;
                } else {
                    self.starts_early = false;
                    self.queue(lane).commands.push_back(command);
                }
                more = true;
            }
            moved |= more;
        }
        Ok(moved)
    }

    /// Tells the target of messages that do not come.
    fn push_aborts(&mut self) -> Result<bool, Broken> {
        let mut moved = false;
        while let Some(arrival) = self.aborts.front().copied() {
            match self.channel.transfers().push(&Request::Abort.record(0, [arrival, 0, 0, 0]), &[]) {
                Ok(()) => drop(self.aborts.pop_front()),
                Err(PushError::Full) => break,
                Err(PushError::Broken | PushError::TooLong) => return Err(Broken),
            }
            moved = true;
        }
        Ok(moved)
    }

    /// Goes on with the first command that waits for room in a ring. True: some of it has found room.
    fn pump_queue(
        &mut self,
        delivery: &mut Delivery<HostMemory>,
        lane: Lane,
        methods: &Methods,
        statistics: &mut LocalStatistics,
    ) -> Result<bool, Broken> {
        let queue = self.queue(lane);
        let Some(command) = queue.commands.front().copied() else { return Ok(false) };
        let begun = queue.begun.take();
        let attempt = self.attempt(delivery, &command, lane, begun, methods, statistics);
        let queue = self.queue(lane);
        Ok(match attempt.inspect_err(|_| queue.begun = begun)? {
            Attempt::Taken => {
                queue.commands.pop_front();
                true
            }
            Attempt::Part(started) => {
                queue.begun = Some(started);
                begun.is_none_or(|begun| started.sent > begun.sent)
            }
            Attempt::Full => false,
        })
    }

    /// One part of a message that the target pulls. Whether there is more, and whether this one found room.
    fn push_part(
        &mut self,
        delivery: &mut Delivery<HostMemory>,
        token: u32,
        methods: &Methods,
        statistics: &mut LocalStatistics,
    ) -> Result<(bool, bool), Broken> {
        let Some(waiting) = self.waiting.get_mut(token) else { return Ok((false, false)) };
        let State::Pulled { arrival, sent } = waiting.state else { return Ok((false, false)) };
        let command = waiting.command;
        let left = command.length - sent;
        let from = command.offset + u64::from(sent);
        let memory = delivery.memory();
        let record = |sent: u32| Request::Data.record(0, [arrival, u64::from(sent), 0, 0]);
        let pushed = if handle::is_on_device(memory, &command) {
            if let Some(place) = memory.local_place(command.local) {
                self.channel.make_known(place.kind);
            }
            push_device(self.channel.transfers(), memory, &command, from, left, |after| record(sent + after))
        } else {
            let part = left.min(LOCAL_FRAGMENT_BYTES as u32);
            let begun = self.pace.begin(methods, part as usize);
            push_local(self.channel.transfers(), &record(sent), memory, command.local, from, part as usize).map(|()| {
                self.pace.end(methods, begun, statistics);
                part
            })
        };
        let part = match pushed {
            Ok(part) => part,
            Err(Unsent::Full) => return Ok((true, false)),
            Err(Unsent::Broken) => return Err(Broken),
            Err(Unsent::Fault) => {
                self.waiting.remove(token);
                delivery.report(&command, Err(Failure::LocalFault));
                self.aborts.push_back(arrival);
                return Ok((false, true));
            }
        };
        statistics.fragments += 1;
        let sent = sent + part;
        waiting.state = State::Pulled { arrival, sent };
        if sent < command.length {
            return Ok((true, true));
        }
        if command.level == Level::Delivered {
            waiting.state = State::Answer;
        } else {
            self.waiting.remove(token);
            delivery.report(&command, Ok(()));
        }
        Ok((false, true))
    }

    #[inline]
    fn attempt(
        &mut self,
        delivery: &mut Delivery<HostMemory>,
        command: &Command,
        lane: Lane,
        begun: Option<Started>,
        methods: &Methods,
        statistics: &mut LocalStatistics,
    ) -> Result<Attempt, Broken> {
        if (delivery.memory().uses_devices() || self.attachments.has_devices) && begun.is_none() {
            return self.attempt_anywhere(delivery, command, lane, methods, statistics);
        }
        self.attempt_plain(delivery, command, lane, begun, methods, statistics)
    }

    #[inline]
    fn attempt_plain(
        &mut self,
        delivery: &mut Delivery<HostMemory>,
        command: &Command,
        lane: Lane,
        begun: Option<Started>,
        methods: &Methods,
        statistics: &mut LocalStatistics,
    ) -> Result<Attempt, Broken> {
        match command.operation {
            Operation::Send | Operation::TaggedSend | Operation::Datagram => {
                self.attempt_send(delivery, command, begun, methods, statistics)
            }
            Operation::Write => self.attempt_write(delivery, command, lane, begun, methods, statistics),
            Operation::Read => self.attempt_read(delivery, command, lane, methods, statistics),
            Operation::Atomic | Operation::FetchAtomic | Operation::CompareAtomic => {
                self.attempt_atomic(delivery, command, lane, statistics)
            }
            // The delivery's own, for packets.
            Operation::Done | Operation::Pull => Ok(Attempt::Taken),
        }
    }

    #[inline]
    fn attempt_send(
        &mut self,
        delivery: &mut Delivery<HostMemory>,
        command: &Command,
        begun: Option<Started>,
        methods: &Methods,
        statistics: &mut LocalStatistics,
    ) -> Result<Attempt, Broken> {
        let length = command.length as usize;
        let words = [command.address, command.immediate, u64::from(command.length), 0];
        let mut flags = flags_of(command);
        if command.operation == Operation::TaggedSend {
            flags |= record::TAGGED;
        }
        if command.operation == Operation::Datagram {
            flags |= record::DATAGRAM;
        } else if command.level == Level::Delivered || !goes_at_once(delivery.memory(), command) {
            return self.offer(delivery, command, flags, methods, statistics);
        }
        if length > fragment_bytes(delivery.memory(), command) as usize {
            let first = Request::Long.record(flags, words);
            return self.attempt_parts(delivery, command, Lane::Messages, begun, &first, methods, statistics);
        }
        let record = Request::Send.record(flags, words);
        match push_local(self.channel.messages(), &record, delivery.memory(), command.local, command.offset, length) {
            Ok(()) => {
                statistics.eager += 1;
                self.sent(delivery, command);
                Ok(Attempt::Taken)
            }
            // A datagram without room is lost, as it may be.
            Err(Unsent::Full) if command.operation == Operation::Datagram => {
                self.sent(delivery, command);
                Ok(Attempt::Taken)
            }
            Err(error) => Self::unsent(delivery, command, error),
        }
    }

    fn unsent(delivery: &mut Delivery<HostMemory>, command: &Command, error: Unsent) -> Result<Attempt, Broken> {
        match error {
            Unsent::Full => Ok(Attempt::Full),
            Unsent::Broken => Err(Broken),
            Unsent::Fault => {
                delivery.report(command, Err(Failure::LocalFault));
                Ok(Attempt::Taken)
            }
        }
    }

    /// A message or write in parts, one behind the other.
    #[expect(clippy::too_many_arguments, reason = "what one attempt knows")]
    fn attempt_parts(
        &mut self,
        delivery: &mut Delivery<HostMemory>,
        command: &Command,
        lane: Lane,
        begun: Option<Started>,
        first: &Record,
        methods: &Methods,
        statistics: &mut LocalStatistics,
    ) -> Result<Attempt, Broken> {
        let mut started = begun.unwrap_or(Started { token: NO_TOKEN, sent: 0 });
        let is_write = command.operation == Operation::Write;
        let mut first = *first;
        let fragment = fragment_bytes(delivery.memory(), command);
        while started.sent < command.length {
            let part = (command.length - started.sent).min(fragment);
            if started.sent == 0 && is_write && started.token == NO_TOKEN {
                // The token is taken before the record is made, and given back if there is no room for it.
                started.token = self.waiting.insert(*command, State::Answer);
                first.words[2] = record::length_and_token(command.length, started.token);
            }
            let record = if started.sent == 0 { first } else { Request::More.record(0, [0; 4]) };
            let from = command.offset + u64::from(started.sent);
            let pushed = if is_write && self.waiting.get_mut(started.token).is_none() {
                // It was refused, and its buffer is the user's again: the target counts the rest, and looks at none.
                static NOTHING: [u8; PAYLOAD_MAX_BYTES] = [0; PAYLOAD_MAX_BYTES];
                let rest = NOTHING.get(..part as usize).unwrap_or_default();
                lane.sender(&mut self.channel).push(&record, rest).map_err(Unsent::from)
            } else {
                let begun = self.pace.begin(methods, part as usize);
                let sender = lane.sender(&mut self.channel);
                let pushed = push_local(sender, &record, delivery.memory(), command.local, from, part as usize);
                if pushed.is_ok() {
                    self.pace.end(methods, begun, statistics);
                }
                pushed
            };
            match pushed {
                Ok(()) => statistics.fragments += 1,
                Err(Unsent::Full) if started.sent == 0 => {
                    self.waiting.remove(started.token);
                    return Ok(Attempt::Full);
                }
                Err(Unsent::Full) => return Ok(Attempt::Part(started)),
                // The target waits for a part that cannot be read: only the end of the channel tells it so.
                Err(Unsent::Broken | Unsent::Fault) => {
                    if begun.is_none() {
                        self.waiting.remove(started.token);
                    }
                    return Err(Broken);
                }
            }
            started.sent += part;
        }
        if is_write {
            self.went(command, lane, started.token);
        } else {
            self.sent(delivery, command);
        }
        Ok(Attempt::Taken)
    }

    /// A long message, or one whose delivery shall be told of: it waits here until it is wanted.
    fn offer(
        &mut self,
        delivery: &mut Delivery<HostMemory>,
        command: &Command,
        mut flags: u8,
        methods: &Methods,
        statistics: &mut LocalStatistics,
    ) -> Result<Attempt, Broken> {
        let mut bytes = [0; 16 * Spans::MAX];
        let told = self.spans(delivery, command, methods, &mut bytes);
        if told.is_some() {
            flags |= record::SPANS;
        }
        if command.level == Level::Delivered {
            flags |= record::ANSWER;
        }
        let token = self.waiting.insert(*command, State::Offered { readable: told.is_some() });
        let words = [command.address, command.immediate, record::length_and_token(command.length, token), 0];
        let payload = bytes.get(..told.unwrap_or(0)).unwrap_or_default();
        match self.channel.messages().push(&Request::Offer.record(flags, words), payload) {
            Ok(()) => {
                self.messages_sent += 1;
                statistics.offered += 1;
                Ok(Attempt::Taken)
            }
            Err(error) => {
                self.waiting.remove(token);
                Attempt::failed(error)
            }
        }
    }

    /// Where the bytes of a command lie, if it pays that the target reaches them by itself, and it can.
    fn spans(
        &mut self,
        delivery: &Delivery<HostMemory>,
        command: &Command,
        methods: &Methods,
        into: &mut [u8; 16 * Spans::MAX],
    ) -> Option<usize> {
        use std::sync::atomic::Ordering;
        if self.starts_early
            || self.channel.shared_word(WORD_CAN_ATTACH).load(Ordering::Relaxed) != 1
            || !self.pace.prefers_attach(methods, command.length)
        {
            return None;
        }
        let mut spans: Vec<Span> = Vec::with_capacity(Spans::MAX);
        let length = u64::from(command.length);
        let covered = delivery.memory().local_spans(command.local, command.offset, length, Spans::MAX, &mut spans);
        (covered == Ok(length)).then(|| Spans::to_bytes(&spans, into))
    }

    fn attempt_write(
        &mut self,
        delivery: &mut Delivery<HostMemory>,
        command: &Command,
        lane: Lane,
        begun: Option<Started>,
        methods: &Methods,
        statistics: &mut LocalStatistics,
    ) -> Result<Attempt, Broken> {
        let flags = flags_of(command);
        if begun.is_none() && lane == Lane::Transfers {
            if let Some(result) = self.attachments.write(&self.channel, delivery, command) {
                return Ok(Attempt::reached(delivery, command, result, statistics));
            }
            self.ask_for(command.key, command.peer);
        }
        let words = [command.address, command.immediate, u64::from(command.length), command.key];
        if command.length > fragment_bytes(delivery.memory(), command) {
            let mut bytes = [0; 16 * Spans::MAX];
            if begun.is_none()
                && let Some(told) = self.spans(delivery, command, methods, &mut bytes)
            {
                let payload = bytes.get(..told).unwrap_or_default();
                return self.ask(command, lane, State::Answer, Request::Write, flags | record::SPANS, words, payload);
            }
            let first = Request::Write.record(flags, words);
            return self.attempt_parts(delivery, command, lane, begun, &first, methods, statistics);
        }
        let token = self.waiting.insert(*command, State::Answer);
        let mut record = Request::Write.record(flags, words);
        record.words[2] = record::length_and_token(command.length, token);
        let length = command.length as usize;
        let sender = lane.sender(&mut self.channel);
        match push_local(sender, &record, delivery.memory(), command.local, command.offset, length) {
            Ok(()) => {
                self.went(command, lane, token);
                statistics.through_target += 1;
                Ok(Attempt::Taken)
            }
            Err(error) => {
                self.waiting.remove(token);
                Self::unsent(delivery, command, error)
            }
        }
    }

    fn attempt_read(
        &mut self,
        delivery: &mut Delivery<HostMemory>,
        command: &Command,
        lane: Lane,
        methods: &Methods,
        statistics: &mut LocalStatistics,
    ) -> Result<Attempt, Broken> {
        if lane == Lane::Transfers {
            if let Some(result) = self.attachments.read(&self.channel, delivery, command) {
                return Ok(Attempt::reached(delivery, command, result, statistics));
            }
            self.ask_for(command.key, command.peer);
        }
        let words = [command.address, 0, u64::from(command.length), command.key];
        let mut bytes = [0; 16 * Spans::MAX];
        let told = self.spans(delivery, command, methods, &mut bytes);
        let flags = if told.is_some() { record::SPANS } else { 0 };
        let payload = bytes.get(..told.unwrap_or(0)).unwrap_or_default();
        let state = if told.is_some() || command.length == 0 { State::Answer } else { State::Reading { received: 0 } };
        let attempt = self.ask(command, lane, state, Request::Read, flags, words, payload)?;
        statistics.through_target += u64::from(matches!(attempt, Attempt::Taken));
        Ok(attempt)
    }

    fn attempt_atomic(
        &mut self,
        delivery: &mut Delivery<HostMemory>,
        command: &Command,
        lane: Lane,
        statistics: &mut LocalStatistics,
    ) -> Result<Attempt, Broken> {
        if lane == Lane::Transfers {
            if let Some(result) = self.attachments.atomic(&self.channel, delivery, command) {
                return Ok(Attempt::reached(delivery, command, result, statistics));
            }
            self.ask_for(command.key, command.peer);
        }
        let class = match command.operation {
            Operation::Atomic => 0,
            Operation::FetchAtomic => 1,
            _ => 2,
        };
        let mut bytes = [0; weft_core::limits::ATOMIC_MAX_BYTES as usize];
        let Some(operands) = bytes.get_mut(..command.length as usize) else { return Ok(Attempt::Full) };
        if read_local(delivery.memory(), command.local, command.offset, operands).is_err() {
            delivery.report(command, Err(Failure::LocalFault));
            return Ok(Attempt::Taken);
        }
        let words =
            [command.address, record::pack_atomic(command.atomic, class), u64::from(command.length), command.key];
        let attempt = self.ask(command, lane, State::Answer, Request::Atomic, 0, words, operands)?;
        statistics.through_target += u64::from(matches!(attempt, Attempt::Taken));
        Ok(attempt)
    }

    /// A request that is answered.
    #[expect(clippy::too_many_arguments, reason = "a record and where it goes")]
    fn ask(
        &mut self,
        command: &Command,
        lane: Lane,
        state: State,
        request: Request,
        flags: u8,
        mut words: [u64; 4],
        payload: &[u8],
    ) -> Result<Attempt, Broken> {
        let token = self.waiting.insert(*command, state);
        words[2] = record::length_and_token(command.length, token);
        match lane.sender(&mut self.channel).push(&request.record(flags, words), payload) {
            Ok(()) => {
                self.went(command, lane, token);
                Ok(Attempt::Taken)
            }
            Err(error) => {
                self.waiting.remove(token);
                Attempt::failed(error)
            }
        }
    }

    /// What will be answered is in a ring.
    #[inline]
    fn went(&mut self, command: &Command, lane: Lane, token: u32) {
        if lane == Lane::Transfers {
            return;
        }
        if matches!(command.operation, Operation::Send | Operation::TaggedSend) {
            self.messages_sent += 1;
        } else if command.has(CommandFlags::FENCE) {
            self.behind_messages = Some((token, self.messages_sent));
        }
    }

    /// Asks once whether this node may reach a region by itself. Without room it is asked with the next operation.
    fn ask_for(&mut self, key: u64, peer: weft_core::address::PeerId) {
        if !self.attachments.wants(key) {
            return;
        }
        let mut command = Command::new(Operation::Read, self.endpoint, peer);
        command.key = key;
        if let Ok(Attempt::Taken) =
            self.ask(&command, Lane::Transfers, State::Attach, Request::Attach, 0, [0, 0, 0, key], &[])
        {
            self.attachments.asked(key);
        }
    }

    /// The target has sent what is needed to reach a region.
    pub(super) fn attached(&mut self, token: u32, grant: Option<super::attachment::Grant>) {
        if self.waiting.get_mut(token).is_some_and(|waiting| waiting.state == State::Attach)
            && let Some(waiting) = self.waiting.remove(token)
        {
            match grant {
                Some(grant) => self.attachments.granted(waiting.command.key, grant),
                None => self.attachments.refused(waiting.command.key),
            }
        }
    }

    /// Takes one answer; false: there is none.
    fn answer(
        &mut self,
        delivery: &mut Delivery<HostMemory>,
        methods: &Methods,
        statistics: &mut LocalStatistics,
    ) -> Result<bool, Broken> {
        let Some(incoming) = self.channel.responses().peek()? else { return Ok(false) };
        let record = incoming.record();
        let token = record.words[0] as u32;
        if let Some((fenced, messages)) = self.behind_messages
            && fenced == token
        {
            // The target takes messages in order: those before it are taken.
            (self.messages_taken, self.behind_messages) = (messages, None);
        }
        if bounce::is_question(token) {
            if Response::of(&record) != Some(Response::Answer) {
                return Err(Broken);
            }
            self.bounces.answered(token, record.words[1] == 0);
            self.channel.responses().advance();
            return Ok(true);
        }
        let known = self.waiting.get_mut(token);
        match (Response::of(&record).ok_or(Broken)?, known) {
            (Response::Answer, Some(waiting)) => {
                let (command, state) = (waiting.command, waiting.state);
                self.waiting.remove(token);
                match state {
                    State::Attach => self.attachments.refused(command.key),
                    State::Bounced { slot } => {
                        self.bounces.give_back(slot);
                        delivery.report(&command, record::result_of(record.words[1]));
                    }
                    // Data that was promised and did not come is no success, whatever the target says.
                    State::Reading { received } if received < command.length => {
                        let result = record::result_of(record.words[1]).and(Err(Failure::ProtocolError));
                        delivery.report(&command, result);
                    }
                    _ => delivery.report(&command, record::result_of(record.words[1])),
                }
            }
            (Response::Pull, Some(waiting))
                if matches!(waiting.state, State::Offered { .. } | State::Withdrawn | State::Bounced { .. }) =>
            {
                if let State::Bounced { slot } = waiting.state {
                    self.bounces.refused(slot);
                    statistics.staged += 1;
                } else if record.words[2] != 0 {
                    let refused = record.words[2] == record::REFUSED;
                    self.told.declined(delivery.memory(), &waiting.command, refused);
                    statistics.staged += 1;
                }
                waiting.state = State::Pulled { arrival: record.words[1], sent: 0 };
                self.pushes.push_back(token);
            }
            (Response::Pull, _) => {
                // No target has more under way: one that pulls more does not mean it.
                if self.aborts.len() >= LOCAL_OFFERS_MAX {
                    return Err(Broken);
                }
                self.aborts.push_back(record.words[1]);
            }
            (Response::Data, Some(waiting)) => {
                let State::Reading { received } = waiting.state else { return Err(Broken) };
                let (command, length) = (waiting.command, incoming.length() as u64);
                let offset = record.words[1];
                // Parts come in order: one that does not would be counted for bytes that never came.
                if offset != u64::from(received) || offset + length > u64::from(command.length) || length == 0 {
                    return Err(Broken);
                }
                let begun = self.pace.begin(methods, length as usize);
                let placed =
                    write_local(delivery.memory_mut(), command.local, command.offset + offset, incoming.segment());
                self.pace.end(methods, begun, statistics);
                let received = received + length as u32;
                waiting.state = State::Reading { received };
                if placed.is_err() || received == command.length {
                    self.waiting.remove(token);
                    delivery.report(&command, placed.map_err(|_| Failure::LocalFault));
                }
            }
            (Response::Result, Some(waiting)) => {
                let command = waiting.command;
                let fetches = matches!(command.operation, Operation::FetchAtomic | Operation::CompareAtomic);
                if !fetches || Some(incoming.length()) != command.atomic.bytes() {
                    return Err(Broken);
                }
                let placed =
                    write_local(delivery.memory_mut(), command.results(), command.results_offset(), incoming.segment());
                self.waiting.remove(token);
                delivery.report(&command, placed.map_err(|_| Failure::LocalFault));
            }
            (Response::Welcome, _) => self.accepted = true,
            (Response::Again, Some(waiting)) => {
                let (command, state) = (waiting.command, waiting.state);
                if state != State::Answer || !matches!(command.operation, Operation::Write | Operation::Read) {
                    return Err(Broken);
                }
                self.waiting.remove(token);
                let lane = self.lane_of(&command);
                let queue = self.queue(lane);
                // Before all others, but for one that is in the ring in part.
                queue.commands.insert(usize::from(queue.begun.is_some()), command);
            }
            // What was given up is answered late.
            (Response::Answer | Response::Data | Response::Result | Response::Again, None) => {}
        }
        self.channel.responses().advance();
        Ok(true)
    }

    /// Cancels a command that the target has not seen, or not wanted yet.
    pub(super) fn cancel(&mut self, delivery: &mut Delivery<HostMemory>, context: u64) -> bool {
        let wanted = |command: &Command| delivery.context_of(command) == context && !command.has(CommandFlags::PART);
        let queues = [&mut self.messages, &mut self.transfers];
        // The first one of a queue may be in its ring in part.
        let parts = queues.map(|queue| (usize::from(queue.begun.is_some()), &mut queue.commands));
        for (skip, commands) in parts.into_iter().chain([(0, &mut self.held)]) {
            if let Some(place) = commands.iter().skip(skip).position(wanted)
                && let Some(command) = commands.remove(place + skip)
            {
                delivery.report(&command, Err(Failure::Cancelled));
                return true;
            }
        }
        let offered = |waiting: &Waiting| {
            delivery.context_of(&waiting.command) == context && waiting.state == State::Offered { readable: false }
        };
        let Some(token) = self.waiting.find(offered) else {
            self.ask_back(delivery, context);
            return false;
        };
        let words = [0, 0, record::length_and_token(0, token), 0];
        if self.channel.messages().push(&Request::Withdraw.record(0, words), &[]).is_err() {
            return false;
        }
        if let Some(waiting) = self.waiting.remove(token) {
            delivery.report(&waiting.command, Err(Failure::Cancelled));
        }
        true
    }

    /// Asks the target to forget a message that it may be reading already: then its answer is that it was cancelled.
    fn ask_back(&mut self, delivery: &Delivery<HostMemory>, context: u64) {
        let readable = |waiting: &Waiting| {
            delivery.context_of(&waiting.command) == context && waiting.state == State::Offered { readable: true }
        };
        let Some(token) = self.waiting.find(readable) else { return };
        let words = [0, 0, record::length_and_token(0, token), 0];
        if self.channel.messages().push(&Request::Withdraw.record(0, words), &[]).is_ok()
            && let Some(waiting) = self.waiting.get_mut(token)
        {
            waiting.state = State::Withdrawn;
        }
    }

    /// The target has not taken the channel, and nothing that was to go through it: all of that, in order.
    pub(super) fn refused(&mut self) -> Option<VecDeque<Command>> {
        (!self.accepted).then(|| std::mem::take(&mut self.held))
    }

    /// The channel ends: so does everything that was to go, or went, through it.
    pub(super) fn fail(&mut self, delivery: &mut Delivery<HostMemory>, failure: Failure) {
        self.reaching.drain(..).for_each(|reaching| reaching.finish(delivery.memory_mut()));
        for lane in [Lane::Messages, Lane::Transfers] {
            // A write whose parts are on their way stands in the queue and waits for its answer: it is told of once.
            if let Some(begun) = self.queue(lane).begun.take()
                && begun.token != NO_TOKEN
                && self.waiting.remove(begun.token).is_none()
            {
                self.queue(lane).commands.pop_front();
            }
        }
        let queued = self.messages.commands.drain(..).chain(self.transfers.commands.drain(..));
        for command in queued.chain(self.held.drain(..)) {
            delivery.report(&command, Err(failure));
        }
        while let Some(token) = self.waiting.find(|_| true) {
            let Some(waiting) = self.waiting.remove(token) else { break };
            if waiting.state != State::Attach {
                delivery.report(&waiting.command, Err(failure));
            }
        }
        self.pushes.clear();
        self.aborts.clear();
    }
}

/// The record of a whole message.
#[inline]
fn send_record(command: &Command, length: u32) -> Record {
    let tagged = if command.operation == Operation::TaggedSend { record::TAGGED } else { 0 };
    Request::Send.record(flags_of(command) | tagged, [command.address, command.immediate, u64::from(length), 0])
}

#[inline]
fn flags_of(command: &Command) -> u8 {
    if command.has(CommandFlags::IMMEDIATE) { record::IMMEDIATE } else { 0 }
}
