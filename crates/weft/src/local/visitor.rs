//! The target's side of a channel: what a peer of the same node asks of this one. Nothing that it says is believed.
//!
//! Requests come in two rings ([`Lane`]). A message that the user has no room for stays at the head of the one, and all
//! messages behind it wait; whatever can end that wait comes through the other, where nothing waits for the user.

mod memory;
mod transfer;

use std::collections::VecDeque;

use weft_core::delivery::{
    ArrivalId, Decided, Decision, Delivered, Delivery, Destination, Envelope, Payload, SendMode, Start, Transport,
};
use weft_core::event::Failure;
use weft_core::memory::{Access, Fault, Granted, LocalKey};
use weft_core::slab::Slab;
use weft_link::shm::{Broken, PushError, Receiver, Record, TargetChannel};
use weft_mem::attach::Span;
use weft_mem::{HostMemory, Segment};

use super::LocalStatistics;
use super::attachment::Granting;
use super::handle::{Handles, Note, Pull, Pulled, Pulls, Reference};
use super::record::{self, Request, Response, Spans};
use crate::limits::{LOCAL_ATTACH_TO_DEVICE_MAX_BYTES, LOCAL_OFFERS_MAX, LOCAL_RECORDS_PER_ROUND};

use memory::write_remote;

/// A channel from an endpoint of this node.
pub(super) struct Visitor {
    pub(super) channel: TargetChannel,
    /// Who comes, and to whom: what all its messages share. The rest is that of the last message.
    pub(super) arrival: Envelope,
    /// Its next message must wait: completions have to be read, or receives posted, first.
    pub(super) blocked: bool,
    /// Its next request must wait for room for its answer.
    starved: bool,
    /// The peer is gone, and messages that it had sent whole wait for the user: so many records are taken at most.
    pub(super) orphan: Option<u32>,
    /// [`Visitor::owes`] may be true: short messages, which leave nothing behind, do not ask for it.
    may_owe: bool,
    incoming: Incomings,
    offers: Slab<Offer>,
    /// Copies that this node does in the peer's memory.
    transfers: VecDeque<Transfer>,
    reads: VecDeque<Read>,
    /// Answers that found no room. While there are any, no request is taken.
    answers: VecDeque<Record>,
    pub(super) granting: Granting,
    /// Copies from the peer's device memory.
    pub(super) pulls: Pulls,
    pulled: Vec<(Pull, Pulled)>,
}

/// A ring of requests.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lane {
    /// What may have to wait for the user, in order.
    Messages,
    /// What is always taken.
    Transfers,
}

impl Lane {
    #[inline]
    fn receiver(self, channel: &mut TargetChannel) -> &mut Receiver {
        match self {
            Lane::Messages => channel.messages(),
            Lane::Transfers => channel.transfers(),
        }
    }
}

/// What the next More of each lane belongs to.
struct Incomings {
    messages: Incoming,
    transfers: Incoming,
}

impl Incomings {
    fn of(&mut self, lane: Lane) -> &mut Incoming {
        match lane {
            Lane::Messages => &mut self.messages,
            Lane::Transfers => &mut self.transfers,
        }
    }
}

/// What the next More belongs to.
enum Incoming {
    Nothing,
    Message {
        id: ArrivalId,
        length: u32,
        received: u32,
    },
    Write {
        write: Write,
        received: u32,
    },
    /// What was refused, or failed: so many bytes still come.
    Skip {
        left: u32,
    },
}

#[derive(Clone, Copy)]
struct Write {
    token: u32,
    key: u64,
    address: u64,
    length: u32,
    immediate: Option<u64>,
}

/// A message that waits at its sender, or is being brought.
struct Offer {
    /// `None`: it failed here, and what comes of it is thrown away.
    id: Option<ArrivalId>,
    token: u32,
    length: u32,
    received: u32,
    /// It was asked for.
    pulled: bool,
    answer: bool,
    spans: Option<Vec<Span>>,
    /// Where it lies in the peer's device memory.
    reference: Option<Reference>,
}

/// A copy by cross-memory attach, as far as it has come.
struct Transfer {
    done: u64,
    what: Copying,
}

enum Copying {
    /// An offered message.
    Offer(u32, ArrivalId),
    Write(Write, Vec<Span>),
    Read(Read, Vec<Span>),
}

/// A read whose bytes go into the ring.
#[derive(Clone, Copy)]
struct Read {
    token: u32,
    key: u64,
    address: u64,
    length: u32,
    sent: u32,
}

/// Whether a request was taken.
#[derive(PartialEq, Eq)]
enum Outcome {
    Taken,
    /// It stays where it is.
    Blocked,
    /// It stays until there is room for its answer.
    NoRoom,
    /// It stays until the messages before it have arrived.
    Early,
}

/// What a record turned out to be.
enum Shown {
    /// A whole message.
    Done(Outcome),
    /// One whose lengths differ.
    Nonsense,
    /// Another request, or one that has to wait.
    Another(Record),
}

/// A payload in the ring.
struct Bytes<'a>(Segment<'a>);

impl Payload<HostMemory> for Bytes<'_> {
    #[inline]
    fn length(&self) -> usize {
        self.0.len()
    }

    #[inline]
    fn place(&self, memory: &mut HostMemory, to: Granted, offset: usize) -> Result<(), Fault> {
        let part = self.0.part(offset, to.length as usize).ok_or(Fault::OutOfBounds)?;
        memory.copy_in(to, part)
    }

    #[inline(always)]
    fn place_whole(&self, memory: &mut HostMemory, local: LocalKey, offset: u64) -> bool {
        memory.fill(local, offset, self.0)
    }

    #[inline(always)]
    fn place_at_last(&self, memory: &mut HostMemory, local: LocalKey, offset: u64) -> Option<LocalKey> {
        memory.fill_at_last(local, offset, self.0)
    }

    fn keep(&self, offset: usize, into: &mut [u8]) -> Result<(), Fault> {
        let part = self.0.part(offset, into.len()).ok_or(Fault::OutOfBounds)?;
        if part.copy_to(into) { Ok(()) } else { Err(Fault::OutOfBounds) }
    }
}

impl Visitor {
    pub(super) fn new(channel: TargetChannel, arrival: Envelope, handles: Handles) -> Visitor {
        Visitor {
            pulls: Pulls::new(handles, channel.id()),
            pulled: Vec::new(),
            channel,
            arrival,
            blocked: false,
            starved: false,
            orphan: None,
            may_owe: true,
            incoming: Incomings { messages: Incoming::Nothing, transfers: Incoming::Nothing },
            offers: Slab::new(),
            transfers: VecDeque::new(),
            reads: VecDeque::new(),
            answers: VecDeque::new(),
            granting: Granting::default(),
        }
    }

    /// Tells the initiator that it is heard.
    pub(super) fn welcome(&mut self) -> Result<(), Broken> {
        self.respond(Response::Welcome.record(0, 0))
    }

    /// Whether [`Visitor::serve`] has something to do.
    #[inline]
    pub(super) fn has_work(&mut self) -> bool {
        !self.channel.messages().is_empty() || !self.channel.transfers().is_empty() || self.may_owe
    }

    /// The same, but for messages that wait for the user.
    #[inline]
    pub(super) fn can_go_on(&mut self) -> bool {
        !self.blocked && !self.channel.messages().is_empty() || !self.channel.transfers().is_empty() || self.may_owe
    }

    /// Whether something goes on that no request brings further.
    #[inline]
    pub(super) fn owes(&self) -> bool {
        self.may_owe && self.owes_something()
    }

    fn owes_something(&self) -> bool {
        self.wants_room() || self.copies()
    }

    /// Whether copies go on, for which nobody is waited.
    fn copies(&self) -> bool {
        !(self.transfers.is_empty() && self.pulls.is_empty())
    }

    /// Whether answers wait for room.
    fn wants_room(&self) -> bool {
        self.starved || !(self.answers.is_empty() && self.reads.is_empty())
    }

    /// Says to the peer that this process is about to sleep. What is blocked wakes when the user makes room, not when the
    /// peer does something.
    pub(super) fn announce_sleep(&mut self) {
        self.channel.transfers().announce_sleep();
        if !self.blocked {
            self.channel.messages().announce_sleep();
        }
        if self.wants_room() {
            self.channel.responses().announce_sleep();
        }
    }

    /// Whether there is nothing to do before the peer does something.
    pub(super) fn may_sleep(&mut self, wanted_room_bytes: usize) -> bool {
        let no_request = self.channel.transfers().is_empty() && (self.blocked || self.channel.messages().is_empty());
        no_request && !self.copies() && (!self.wants_room() || self.channel.responses().is_full(wanted_room_bytes))
    }

    /// Takes requests, and goes on with those that take longer. True: something happened.
    #[inline]
    pub(super) fn serve(
        &mut self,
        delivery: &mut Delivery<HostMemory>,
        statistics: &mut LocalStatistics,
    ) -> Result<bool, Broken> {
        let mut busy = self.may_owe && self.flush()?;
        (self.blocked, self.starved) = (false, false);
        if !self.channel.transfers().is_empty() {
            busy |= self.serve_transfers(delivery, statistics)?;
        }
        for _ in 0..LOCAL_RECORDS_PER_ROUND {
            if self.may_owe && !self.answers.is_empty() {
                break;
            }
            match self.message(delivery, statistics)? {
                Some(Outcome::Taken) => {
                    busy = true;
                    if !self.may_take_another() {
                        break;
                    }
                }
                Some(outcome) => {
                    self.blocked = outcome == Outcome::Blocked;
                    self.starved |= outcome == Outcome::NoRoom;
                    break;
                }
                None => break,
            }
        }
        if self.may_owe {
            busy |= self.serve_owed(delivery, statistics)?;
        }
        Ok(busy)
    }

    /// Takes requests that do not wait for the user. True: some were there.
    #[inline(never)]
    fn serve_transfers(
        &mut self,
        delivery: &mut Delivery<HostMemory>,
        statistics: &mut LocalStatistics,
    ) -> Result<bool, Broken> {
        let mut busy = false;
        for _ in 0..LOCAL_RECORDS_PER_ROUND {
            if self.may_owe && !self.answers.is_empty() {
                break;
            }
            let Some(record) = self.channel.transfers().peek()?.map(|incoming| incoming.record()) else { break };
            match self.request(delivery, statistics, Lane::Transfers, &record)? {
                Outcome::Taken => busy = true,
                outcome => {
                    // An initiator that puts a message here that has to wait does not keep to the rules.
                    if matches!(outcome, Outcome::Blocked | Outcome::Early) {
                        return Err(Broken);
                    }
                    self.starved = true;
                    break;
                }
            }
        }
        Ok(busy)
    }

    /// Counts the records of a peer that is gone: what it may still write there has an end.
    #[inline]
    fn may_take_another(&mut self) -> bool {
        match &mut self.orphan {
            None => true,
            Some(left) => {
                *left = left.saturating_sub(1);
                *left > 0
            }
        }
    }

    /// The peer is gone. What it had sent whole stays until the user has room for it; true: there is such a thing.
    pub(super) fn orphan(&mut self, delivery: &mut Delivery<HostMemory>, records: u32) -> bool {
        if !self.blocked {
            return false;
        }
        if self.orphan.is_none() {
            self.orphan = Some(records);
            self.fail(delivery);
        }
        self.orphan != Some(0)
    }

    /// Goes on with what takes longer than one request.
    fn serve_owed(
        &mut self,
        delivery: &mut Delivery<HostMemory>,
        statistics: &mut LocalStatistics,
    ) -> Result<bool, Broken> {
        let mut busy = false;
        if !self.reads.is_empty() {
            busy |= self.send_reads(delivery, statistics)?;
        }
        if !self.transfers.is_empty() {
            self.transfer(delivery, statistics)?;
            busy = true;
        }
        if !self.pulls.is_empty() {
            busy |= self.serve_pulls(delivery, statistics)?;
        }
        self.may_owe = self.owes_something();
        Ok(busy)
    }

    fn flush(&mut self) -> Result<bool, Broken> {
        let mut moved = false;
        while let Some(record) = self.answers.front() {
            match self.channel.responses().push(record, &[]) {
                Ok(()) => drop(self.answers.pop_front()),
                Err(PushError::Full) => break,
                Err(PushError::Broken | PushError::TooLong) => return Err(Broken),
            }
            moved = true;
        }
        Ok(moved)
    }

    fn respond(&mut self, record: Record) -> Result<(), Broken> {
        if self.orphan.is_some() {
            return Ok(());
        }
        if self.answers.is_empty() {
            match self.channel.responses().push(&record, &[]) {
                Ok(()) => return Ok(()),
                Err(PushError::Full) => {}
                Err(PushError::Broken | PushError::TooLong) => return Err(Broken),
            }
        }
        self.may_owe = true;
        self.answers.push_back(record);
        Ok(())
    }

    fn answer(&mut self, token: u32, result: Result<(), Failure>) -> Result<(), Broken> {
        self.respond(Response::answer(token, result))
    }

    /// Takes one message; `None`: there is none.
    #[inline]
    fn message(
        &mut self,
        delivery: &mut Delivery<HostMemory>,
        statistics: &mut LocalStatistics,
    ) -> Result<Option<Outcome>, Broken> {
        let may_wait = self.may_owe && self.pulls.has_short();
        let (arrival, receiver) = (&mut self.arrival, self.channel.messages());
        let shown = receiver.show(|incoming| {
            let record = incoming.record();
            if record.kind != Request::Send as u8 || record.flags & record::DATAGRAM != 0 || may_wait {
                return (false, Shown::Another(record));
            }
            if record::length_of(&record) as usize != incoming.length() {
                return (false, Shown::Nonsense);
            }
            fill(arrival, &record);
            let not_ready = delivery.deliver(arrival, &Bytes(incoming.segment())) == Delivered::NotReady;
            if not_ready { (false, Shown::Done(Outcome::Blocked)) } else { (true, Shown::Done(Outcome::Taken)) }
        })?;
        match shown {
            None => Ok(None),
            Some(Shown::Done(outcome)) => Ok(Some(outcome)),
            Some(Shown::Nonsense) => Err(Broken),
            Some(Shown::Another(record)) => self.request(delivery, statistics, Lane::Messages, &record).map(Some),
        }
    }

    /// Any request but a whole message that can be taken at once.
    #[inline(never)]
    fn request(
        &mut self,
        delivery: &mut Delivery<HostMemory>,
        statistics: &mut LocalStatistics,
        lane: Lane,
        record: &Record,
    ) -> Result<Outcome, Broken> {
        let request = Request::of(record).ok_or(Broken)?;
        if self.may_owe && matches!(request, Request::Send | Request::Long) && self.pulls.has_short() {
            return Ok(Outcome::Early);
        }
        self.may_owe |= request != Request::Send;
        let outcome = match request {
            // A datagram: no other is left to this.
            Request::Send => self.datagram(delivery, lane, record)?,
            Request::Long => self.begin_long(delivery, lane, record)?,
            Request::More => self.more(delivery, lane)?,
            Request::Offer => self.offered(delivery, lane, record)?,
            Request::Data => self.data(delivery, lane, record)?,
            Request::Withdraw => self.withdraw(delivery, record::token_of(record))?,
            Request::Abort => self.abort(delivery, record.words[0]),
            Request::Write => self.write(delivery, lane, record)?,
            Request::Read => self.read(delivery, lane, record)?,
            Request::Atomic => self.atomic(delivery, lane, record)?,
            Request::Attach => {
                let (token, key) = (record::token_of(record), record.words[3]);
                if !self.granting.grant(&self.channel, delivery, self.arrival.endpoint, token, key) {
                    self.answer(token, Err(Failure::NotSupported))?;
                }
                Outcome::Taken
            }
        };
        if outcome == Outcome::Taken {
            lane.receiver(&mut self.channel).advance();
            statistics.served += u64::from(matches!(request, Request::Write | Request::Read | Request::Atomic));
        }
        Ok(outcome)
    }

    /// A message that is lost where nobody waits for it.
    fn datagram(
        &mut self,
        delivery: &mut Delivery<HostMemory>,
        lane: Lane,
        record: &Record,
    ) -> Result<Outcome, Broken> {
        if record.flags & record::DATAGRAM == 0 {
            return Err(Broken);
        }
        let payload = self.payload(lane)?;
        if record::length_of(record) as usize != payload.len() {
            return Err(Broken);
        }
        let envelope = message(&self.arrival, record);
        let payload = self.payload(lane)?;
        delivery.deliver_datagram(&envelope, &Bytes(payload));
        Ok(Outcome::Taken)
    }

    // ------------------------------------------------------------------ messages in parts

    fn begin_long(
        &mut self,
        delivery: &mut Delivery<HostMemory>,
        lane: Lane,
        record: &Record,
    ) -> Result<Outcome, Broken> {
        let length = record::length_of(record);
        let part = self.payload(lane)?.len() as u32;
        if !matches!(self.incoming.of(lane), Incoming::Nothing) || part == 0 || part >= length {
            return Err(Broken);
        }
        let arrival = message(&self.arrival, record);
        *self.incoming.of(lane) = match delivery.begin(&arrival, SendMode::Eager) {
            Start::Ready(id) => Incoming::Message { id, length, received: 0 },
            Start::NotReady => return Ok(Outcome::Blocked),
            Start::Deferred(_) | Start::Truncated | Start::NoSuchEndpoint => Incoming::Skip { left: length },
        };
        self.more(delivery, lane)
    }

    /// A part of what is coming.
    fn more(&mut self, delivery: &mut Delivery<HostMemory>, lane: Lane) -> Result<Outcome, Broken> {
        let from = match lane.receiver(&mut self.channel).peek()? {
            Some(incoming) => incoming.segment(),
            None => return Err(Broken),
        };
        let part = from.len() as u32;
        if part == 0 {
            return Err(Broken);
        }
        let incoming = self.incoming.of(lane);
        match incoming {
            Incoming::Nothing => return Err(Broken),
            Incoming::Message { id, length, received } => {
                let (id, at, left) = (*id, *received, *length - *received);
                if part > left {
                    return Err(Broken);
                }
                *received += part;
                if let Err(fault) = delivery.place(id, u64::from(at), &Bytes(from)) {
                    delivery.end(id, Err(local(fault)));
                    *incoming = Incoming::Skip { left: left - part };
                } else if part == left {
                    delivery.end(id, Ok(()));
                    *incoming = Incoming::Nothing;
                }
            }
            Incoming::Write { write, received } => {
                let (write, at) = (*write, *received);
                if part > write.length - at {
                    return Err(Broken);
                }
                *received += part;
                let result = write_remote(delivery.memory_mut(), write.key, write.address, u64::from(at), from);
                let left = write.length - at - part;
                if result.is_err() || left == 0 {
                    *incoming = if left == 0 { Incoming::Nothing } else { Incoming::Skip { left } };
                    self.written(delivery, &write, result)?;
                }
            }
            Incoming::Skip { left } => {
                *left = left.checked_sub(part).ok_or(Broken)?;
                if *left == 0 {
                    *incoming = Incoming::Nothing;
                }
            }
        }
        Ok(Outcome::Taken)
    }

    fn payload(&mut self, lane: Lane) -> Result<Segment<'_>, Broken> {
        lane.receiver(&mut self.channel).peek()?.map(|incoming| incoming.segment()).ok_or(Broken)
    }

    // ------------------------------------------------------------------ messages that wait at their sender

    fn offered(&mut self, delivery: &mut Delivery<HostMemory>, lane: Lane, record: &Record) -> Result<Outcome, Broken> {
        if self.orphan.is_some() {
            // Nobody can bring it any more, nor was its sender told that it arrived.
            return Ok(Outcome::Taken);
        }
        let (length, token) = (record::length_of(record), record::token_of(record));
        let (mut spans, mut reference) = (None, None);
        if record.flags & record::SPANS != 0 {
            spans = Some(self.spans(lane, length)?);
        } else if record.flags & record::HANDLE != 0 {
            reference = Some(self.reference(lane)?);
        }
        if self.offers.len() >= LOCAL_OFFERS_MAX {
            return Ok(Outcome::Blocked);
        }
        let arrival = message(&self.arrival, record);
        let waits = reference.is_none() || record.flags & record::TAKEN_OVER == 0;
        let answer = record.flags & record::ANSWER != 0;
        let index =
            self.offers.insert(Offer { id: None, token, length, received: 0, pulled: false, answer, spans, reference });
        let name = u64::from(self.channel.id().0) << 32 | u64::from(index);
        let mode = match waits {
            true => SendMode::Rendezvous { transport: Transport::Shm, token: name },
            false => SendMode::Eager,
        };
        let (id, now) = match delivery.begin(&arrival, mode) {
            Start::Ready(id) => (id, true),
            Start::Deferred(id) => (id, false),
            over => {
                self.offers.remove(index);
                let result = match over {
                    // What is taken over is sent, whatever becomes of it.
                    Start::Truncated if !waits => Ok(()),
                    Start::Truncated => Err(Failure::LengthError),
                    Start::NoSuchEndpoint => Err(Failure::NoSuchEndpoint),
                    _ => return Ok(Outcome::Blocked),
                };
                return self.answer(token, result).map(|()| Outcome::Taken);
            }
        };
        if let Some(offer) = self.offers.get_mut(index) {
            offer.id = Some(id);
        }
        if now {
            self.pull(delivery, index)?;
        }
        Ok(Outcome::Taken)
    }

    /// The spans that a payload names.
    fn spans(&mut self, lane: Lane, length: u32) -> Result<Vec<Span>, Broken> {
        let mut bytes = [0; 16 * Spans::MAX];
        let payload = self.payload(lane)?;
        let into = bytes.get_mut(..payload.len()).ok_or(Broken)?;
        let _same_length = payload.copy_to(into);
        Spans::from_bytes(into, length).ok_or(Broken)
    }

    /// The place in the peer's device memory that a payload names.
    fn reference(&mut self, lane: Lane) -> Result<Reference, Broken> {
        let mut bytes = [0; Reference::BYTES];
        let payload = self.payload(lane)?;
        let same_length = payload.copy_to(&mut bytes);
        same_length.then(|| Reference::from_bytes(&bytes)).flatten().ok_or(Broken)
    }

    /// A note of the peer.
    pub(super) fn noted(&mut self, note: Option<Note>, statistics: &mut LocalStatistics) -> Result<(), Broken> {
        match self.pulls.noted(note, statistics) {
            Some((token, opened)) => self.answer(token, if opened { Ok(()) } else { Err(Failure::NotSupported) }),
            None => Ok(()),
        }
    }

    /// Goes on with copies from the peer's device memory.
    fn serve_pulls(
        &mut self,
        delivery: &mut Delivery<HostMemory>,
        statistics: &mut LocalStatistics,
    ) -> Result<bool, Broken> {
        let mut pulled = std::mem::take(&mut self.pulled);
        let busy = self.pulls.serve(delivery, &mut pulled);
        for (pull, outcome) in pulled.drain(..) {
            let Some(offer) = self.offers.get_mut(pull.index) else { continue };
            if offer.id != Some(pull.id) || offer.reference != Some(pull.reference) {
                continue;
            }
            let bounced = self.pulls.is_bounced(&pull.reference);
            let why = match outcome {
                Pulled::Done => {
                    statistics.by_handle += u64::from(!bounced);
                    statistics.bounced += u64::from(bounced);
                    self.offers.remove(pull.index);
                    delivery.end(pull.id, Ok(()));
                    self.answer(pull.token, Ok(()))?;
                    continue;
                }
                Pulled::Refused => record::REFUSED,
                Pulled::Unknown => record::UNKNOWN,
            };
            offer.reference = None;
            let mut record = Response::Pull.record(u64::from(pull.token), u64::from(pull.index));
            record.words[2] = why;
            self.respond(record)?;
        }
        self.pulled = pulled;
        Ok(busy)
    }

    /// Gets a message that is wanted.
    fn pull(&mut self, delivery: &mut Delivery<HostMemory>, index: u32) -> Result<(), Broken> {
        let Some(offer) = self.offers.get_mut(index) else { return Ok(()) };
        offer.pulled = true;
        if offer.length == 0 {
            let (id, token) = (offer.id.take(), offer.token);
            self.offers.remove(index);
            if let Some(id) = id {
                delivery.end(id, Ok(()));
            }
            return self.answer(token, Ok(()));
        }
        if let (Some(id), true) = (offer.id, offer.spans.is_some())
            && offer.length >= LOCAL_ATTACH_TO_DEVICE_MAX_BYTES
            && is_for_device(delivery, id, offer.length)
        {
            // Through the ring its sender takes part in the work.
            offer.spans = None;
        }
        if let (Some(id), true) = (offer.id, offer.spans.is_some()) {
            self.may_owe = true;
            self.transfers.push_back(Transfer { done: 0, what: Copying::Offer(index, id) });
            return Ok(());
        }
        if let (Some(id), Some(reference)) = (offer.id, offer.reference) {
            let (token, length) = (offer.token, offer.length);
            self.may_owe = true;
            self.pulls.push(Pull { index, id, token, length, reference });
            return Ok(());
        }
        let token = offer.token;
        self.respond(Response::Pull.record(u64::from(token), u64::from(index)))
    }

    /// A message that waited is wanted now, or never will be.
    pub(super) fn matched(&mut self, delivery: &mut Delivery<HostMemory>, matched: &Decided) -> Result<(), Broken> {
        let index = matched.token as u32;
        let Some(offer) = self.offers.get(index) else {
            delivery.end(matched.id, Err(Failure::Aborted));
            return Ok(());
        };
        if offer.id != Some(matched.id) {
            delivery.end(matched.id, Err(Failure::Aborted));
            return Ok(());
        }
        let result = match matched.decision {
            Decision::Fetch => return self.pull(delivery, index),
            Decision::Discard => Ok(()),
            Decision::Refuse(failure) => Err(failure),
        };
        let token = offer.token;
        self.offers.remove(index);
        delivery.end(matched.id, result);
        self.answer(token, result)
    }

    /// A part of a message that was pulled.
    fn data(&mut self, delivery: &mut Delivery<HostMemory>, lane: Lane, record: &Record) -> Result<Outcome, Broken> {
        let index = u32::try_from(record.words[0]).map_err(|_| Broken)?;
        let from = match lane.receiver(&mut self.channel).peek()? {
            Some(incoming) => incoming.segment(),
            None => return Err(Broken),
        };
        let Some(offer) = self.offers.get_mut(index) else { return Err(Broken) };
        let part = from.len() as u32;
        let left = offer.length - offer.received;
        let fetched = offer.spans.is_some() || offer.reference.is_some();
        if !offer.pulled || fetched || record.words[1] != u64::from(offer.received) || part > left {
            return Err(Broken);
        }
        if let Some(id) = offer.id
            && let Err(fault) = delivery.place(id, u64::from(offer.received), &Bytes(from))
        {
            offer.id = None;
            delivery.end(id, Err(local(fault)));
        }
        offer.received += part;
        if part < left {
            return Ok(Outcome::Taken);
        }
        let (id, token, answer) = (offer.id, offer.token, offer.answer);
        self.offers.remove(index);
        if let Some(id) = id {
            delivery.end(id, Ok(()));
        }
        if answer {
            let settled = id.is_some() && delivery.memory_mut().settle().is_ok();
            self.answer(token, if settled { Ok(()) } else { Err(Failure::OperationFailed) })?;
        }
        Ok(Outcome::Taken)
    }

    /// The peer takes an offer back that was not pulled yet. One that could be read it gives up only when it is told so.
    fn withdraw(&mut self, delivery: &mut Delivery<HostMemory>, token: u32) -> Result<Outcome, Broken> {
        let withdrawn = self.offers.iter().find(|(_, offer)| offer.token == token && !offer.pulled);
        if let Some((index, offer)) = withdrawn {
            let waits = offer.spans.is_some() || offer.reference.is_some();
            self.abort(delivery, u64::from(index));
            if waits {
                self.answer(token, Err(Failure::Cancelled))?;
            }
        }
        Ok(Outcome::Taken)
    }

    /// A message does not come after all.
    fn abort(&mut self, delivery: &mut Delivery<HostMemory>, index: u64) -> Outcome {
        let offer = u32::try_from(index).ok().and_then(|index| self.offers.remove(index));
        let Some(offer) = offer else { return Outcome::Taken };
        if offer.spans.is_some() {
            // The next offer in this place must not be taken for it.
            self.transfers.retain(|transfer| !matches!(transfer.what, Copying::Offer(of, _) if u64::from(of) == index));
        }
        if let Some(id) = offer.id {
            delivery.end(id, Err(Failure::Aborted));
        }
        Outcome::Taken
    }

    /// Writes with immediate data that are under way: each holds a place in the queue of its endpoint.
    pub(super) fn notices_under_way(&self) -> usize {
        let is_notice = |write: &Write| write.immediate.is_some();
        let incoming = |incoming: &Incoming| matches!(incoming, Incoming::Write { write, .. } if is_notice(write));
        let copied = |transfer: &&Transfer| matches!(&transfer.what, Copying::Write(write, _) if is_notice(write));
        let incoming = [&self.incoming.messages, &self.incoming.transfers].into_iter().filter(|i| incoming(i)).count();
        incoming + self.transfers.iter().filter(copied).count()
    }

    /// The peer is gone: what it began does not end well.
    pub(super) fn fail(&mut self, delivery: &mut Delivery<HostMemory>) {
        self.pulls.close(delivery);
        for lane in [Lane::Messages, Lane::Transfers] {
            match std::mem::replace(self.incoming.of(lane), Incoming::Nothing) {
                Incoming::Message { id, .. } => drop(delivery.end(id, Err(Failure::Aborted))),
                Incoming::Write { write, .. } if write.immediate.is_some() => {
                    delivery.unreserve_remote_write(self.arrival.endpoint);
                }
                Incoming::Nothing | Incoming::Skip { .. } | Incoming::Write { .. } => {}
            }
        }
        for transfer in self.transfers.drain(..) {
            if let Copying::Write(Write { immediate: Some(_), .. }, _) = transfer.what {
                delivery.unreserve_remote_write(self.arrival.endpoint);
            }
        }
        for (_, offer) in std::mem::take(&mut self.offers).iter() {
            if let Some(id) = offer.id {
                delivery.end(id, Err(Failure::Aborted));
            }
        }
        self.reads.clear();
        self.answers.clear();
    }
}

/// The message that a record begins.
fn message(visitor: &Envelope, record: &Record) -> Envelope {
    let mut arrival = *visitor;
    fill(&mut arrival, record);
    arrival
}

/// The same in place: what all messages of a visitor share is long, and stays.
#[inline]
fn fill(arrival: &mut Envelope, record: &Record) {
    arrival.tagged = record.flags & record::TAGGED != 0;
    arrival.tag = if arrival.tagged { record.words[0] } else { 0 };
    arrival.immediate = record::immediate_of(record);
    arrival.length = record::length_of(record);
}

/// Whether a message goes to a device's memory.
fn is_for_device(delivery: &mut Delivery<HostMemory>, id: ArrivalId, length: u32) -> bool {
    let uses_devices = delivery.memory().uses_devices();
    match delivery.destination(id, 0, u64::from(length)) {
        Ok(Destination::Memory(memory, piece)) if uses_devices => {
            memory.place(piece, Access::REMOTE_WRITE).is_ok_and(|place| !place.is_host())
        }
        _ => false,
    }
}

/// What the user is told when the memory of a receive fails.
fn local(_fault: Fault) -> Failure {
    Failure::LocalFault
}
