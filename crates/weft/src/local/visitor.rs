//! The target's side of a channel: what a peer of the same node asks of this one. Nothing that it says is believed.

mod memory;
mod transfer;

use std::collections::VecDeque;

use weft_core::engine::Engine;
use weft_core::engine::hall::{Arrival, ArrivalId, ArrivalVerdict, Begun, Delivery, MatchedArrival, Payload, Room};
use weft_core::event::Failure;
use weft_core::memory::{Access, Fault, Granted, LocalKey};
use weft_link::shm::{Broken, Channel, PushError, Record};
use weft_mem::attach::Span;
use weft_mem::{HostMemory, Segment};

use super::LocalStatistics;
use super::attachment::Granting;
use super::handle::{Handles, Note, Pull, Pulled, Pulls, Reference};
use super::record::{self, Request, Response, Spans};
use crate::limits::{LOCAL_ATTACH_TO_DEVICE_MAX_BYTES, LOCAL_QUESTIONS_MAX, LOCAL_RECORDS_PER_ROUND};

use memory::write_remote;

/// A channel from an endpoint of this node.
pub(super) struct Visitor {
    pub(super) channel: Channel,
    /// Who comes, and to whom: what all its messages share. The rest is that of the last message.
    pub(super) arrival: Arrival,
    /// Its next request must wait: completions have to be read, or receives posted, first.
    pub(super) blocked: bool,
    /// Its next request must wait for room for its answer.
    starved: bool,
    /// [`Visitor::owes`] may be true: short messages, which leave nothing behind, do not ask for it.
    may_owe: bool,
    incoming: Incoming,
    offers: Vec<Option<Offer>>,
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

    fn keep(&self, into: &mut [u8]) {
        let _same_length = self.0.copy_to(into);
    }
}

impl Visitor {
    pub(super) fn new(channel: Channel, arrival: Arrival, handles: Handles) -> Visitor {
        Visitor {
            pulls: Pulls::new(handles, channel.id()),
            pulled: Vec::new(),
            channel,
            arrival,
            blocked: false,
            starved: false,
            may_owe: true,
            incoming: Incoming::Nothing,
            offers: Vec::new(),
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
        !self.channel.receiver().is_empty() || self.may_owe
    }

    /// Whether something goes on that no request brings further.
    #[inline]
    pub(super) fn owes(&self) -> bool {
        self.may_owe && self.owes_something()
    }

    fn owes_something(&self) -> bool {
        self.wants_room() || !(self.transfers.is_empty() && self.pulls.is_empty())
    }

    /// Whether answers wait for room.
    pub(super) fn wants_room(&self) -> bool {
        self.starved || !(self.answers.is_empty() && self.reads.is_empty())
    }

    /// Takes requests, and goes on with those that take longer. True: something happened.
    #[inline]
    pub(super) fn serve(
        &mut self,
        engine: &mut Engine<HostMemory>,
        statistics: &mut LocalStatistics,
    ) -> Result<bool, Broken> {
        let mut busy = self.may_owe && self.flush()?;
        for _ in 0..LOCAL_RECORDS_PER_ROUND {
            if self.may_owe && !self.answers.is_empty() {
                break;
            }
            match self.request(engine, statistics)? {
                Some(Outcome::Taken) => {
                    (self.blocked, self.starved) = (false, false);
                    busy = true;
                }
                Some(outcome) => {
                    self.blocked = outcome == Outcome::Blocked;
                    self.starved = outcome == Outcome::NoRoom;
                    break;
                }
                None => {
                    self.blocked = false;
                    break;
                }
            }
        }
        if self.may_owe {
            busy |= self.serve_owed(engine, statistics)?;
        }
        Ok(busy)
    }

    /// Goes on with what takes longer than one request.
    fn serve_owed(
        &mut self,
        engine: &mut Engine<HostMemory>,
        statistics: &mut LocalStatistics,
    ) -> Result<bool, Broken> {
        let mut busy = false;
        if !self.reads.is_empty() {
            busy |= self.send_reads(engine, statistics)?;
        }
        if !self.transfers.is_empty() {
            self.transfer(engine, statistics)?;
            busy = true;
        }
        if !self.pulls.is_empty() {
            busy |= self.serve_pulls(engine, statistics)?;
        }
        self.may_owe = self.owes_something();
        Ok(busy)
    }

    fn flush(&mut self) -> Result<bool, Broken> {
        let mut moved = false;
        while let Some(record) = self.answers.front() {
            match self.channel.sender().push(record, &[]) {
                Ok(()) => drop(self.answers.pop_front()),
                Err(PushError::Full) => break,
                Err(PushError::Broken | PushError::TooLong) => return Err(Broken),
            }
            moved = true;
        }
        Ok(moved)
    }

    fn respond(&mut self, record: Record) -> Result<(), Broken> {
        if self.answers.is_empty() {
            match self.channel.sender().push(&record, &[]) {
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

    /// Takes one request; `None`: there is none.
    #[inline]
    fn request(
        &mut self,
        engine: &mut Engine<HostMemory>,
        statistics: &mut LocalStatistics,
    ) -> Result<Option<Outcome>, Broken> {
        let may_wait = self.may_owe && self.pulls.has_short();
        let (arrival, receiver) = (&mut self.arrival, self.channel.receiver());
        let shown = receiver.show(|incoming| {
            let record = incoming.record();
            if record.kind != Request::Send as u8 || record.flags & record::DATAGRAM != 0 || may_wait {
                return (false, Shown::Another(record));
            }
            if record::length_of(&record) as usize != incoming.length() {
                return (false, Shown::Nonsense);
            }
            fill(arrival, &record);
            let not_ready = engine.deliver(arrival, &Bytes(incoming.segment())) == Delivery::NotReady;
            if not_ready { (false, Shown::Done(Outcome::Blocked)) } else { (true, Shown::Done(Outcome::Taken)) }
        })?;
        match shown {
            None => Ok(None),
            Some(Shown::Done(outcome)) => Ok(Some(outcome)),
            Some(Shown::Nonsense) => Err(Broken),
            Some(Shown::Another(record)) => self.request_more(engine, statistics, &record).map(Some),
        }
    }

    /// Any request but a whole message that can be taken at once.
    #[inline(never)]
    fn request_more(
        &mut self,
        engine: &mut Engine<HostMemory>,
        statistics: &mut LocalStatistics,
        record: &Record,
    ) -> Result<Outcome, Broken> {
        let request = Request::of(record).ok_or(Broken)?;
        if self.may_owe && matches!(request, Request::Send | Request::Long) && self.pulls.has_short() {
            return Ok(Outcome::Early);
        }
        self.may_owe |= request != Request::Send;
        let outcome = match request {
            // A datagram: no other is left to this.
            Request::Send => self.datagram(engine, record)?,
            Request::Long => self.begin_long(engine, record)?,
            Request::More => self.more(engine)?,
            Request::Offer => self.offered(engine, record)?,
            Request::Data => self.data(engine, record)?,
            Request::Withdraw => self.withdraw(engine, record::token_of(record))?,
            Request::Abort => self.abort(engine, record.words[0]),
            Request::Write => self.write(engine, record)?,
            Request::Read => self.read(engine, record)?,
            Request::Atomic => self.atomic(engine, record)?,
            Request::Attach => {
                let (token, key) = (record::token_of(record), record.words[3]);
                if !self.granting.grant(&self.channel, engine, self.arrival.endpoint, token, key) {
                    self.answer(token, Err(Failure::NotSupported))?;
                }
                Outcome::Taken
            }
        };
        if outcome == Outcome::Taken {
            self.channel.receiver().advance();
            statistics.served += u64::from(matches!(request, Request::Write | Request::Read | Request::Atomic));
        }
        Ok(outcome)
    }

    /// A message that is lost where nobody waits for it.
    fn datagram(&mut self, engine: &mut Engine<HostMemory>, record: &Record) -> Result<Outcome, Broken> {
        let payload = self.payload()?;
        if record::length_of(record) as usize != payload.len() {
            return Err(Broken);
        }
        let mut bytes = vec![0; payload.len()];
        if payload.copy_to(&mut bytes) {
            engine.deliver_datagram(&message(&self.arrival, record), &bytes);
        }
        Ok(Outcome::Taken)
    }

    // ------------------------------------------------------------------ messages in parts

    fn begin_long(&mut self, engine: &mut Engine<HostMemory>, record: &Record) -> Result<Outcome, Broken> {
        let length = record::length_of(record);
        let part = self.payload()?.len() as u32;
        if !matches!(self.incoming, Incoming::Nothing) || part == 0 || part >= length {
            return Err(Broken);
        }
        let arrival = message(&self.arrival, record);
        self.incoming = match engine.begin_arrival(&arrival, false, 0) {
            Begun::Now(id) => Incoming::Message { id, length, received: 0 },
            Begun::NotReady => return Ok(Outcome::Blocked),
            Begun::Later(_) | Begun::Truncated | Begun::NoSuchEndpoint => Incoming::Skip { left: length },
        };
        self.more(engine)
    }

    /// A part of what is coming.
    fn more(&mut self, engine: &mut Engine<HostMemory>) -> Result<Outcome, Broken> {
        let from = match self.channel.receiver().peek()? {
            Some(incoming) => incoming.segment(),
            None => return Err(Broken),
        };
        let part = from.len() as u32;
        if part == 0 {
            return Err(Broken);
        }
        match &mut self.incoming {
            Incoming::Nothing => return Err(Broken),
            Incoming::Message { id, length, received } => {
                let (id, at, left) = (*id, *received, *length - *received);
                if part > left {
                    return Err(Broken);
                }
                *received += part;
                if let Err(fault) = place(engine, id, u64::from(at), from) {
                    engine.end_arrival(id, Err(local(fault)));
                    self.incoming = Incoming::Skip { left: left - part };
                } else if part == left {
                    engine.end_arrival(id, Ok(()));
                    self.incoming = Incoming::Nothing;
                }
            }
            Incoming::Write { write, received } => {
                let (write, at) = (*write, *received);
                if part > write.length - at {
                    return Err(Broken);
                }
                *received += part;
                let result = write_remote(engine.memory_mut(), write.key, write.address, u64::from(at), from);
                let left = write.length - at - part;
                if result.is_err() || left == 0 {
                    self.incoming = if left == 0 { Incoming::Nothing } else { Incoming::Skip { left } };
                    self.written(engine, &write, result)?;
                }
            }
            Incoming::Skip { left } => {
                *left = left.checked_sub(part).ok_or(Broken)?;
                if *left == 0 {
                    self.incoming = Incoming::Nothing;
                }
            }
        }
        Ok(Outcome::Taken)
    }

    fn payload(&mut self) -> Result<Segment<'_>, Broken> {
        self.channel.receiver().peek()?.map(|incoming| incoming.segment()).ok_or(Broken)
    }

    // ------------------------------------------------------------------ messages that wait at their sender

    fn offered(&mut self, engine: &mut Engine<HostMemory>, record: &Record) -> Result<Outcome, Broken> {
        let (length, token) = (record::length_of(record), record::token_of(record));
        let (mut spans, mut reference) = (None, None);
        if record.flags & record::SPANS != 0 {
            spans = Some(self.spans(length)?);
        } else if record.flags & record::HANDLE != 0 {
            reference = Some(self.reference()?);
        }
        let free = self.offers.iter().position(Option::is_none).unwrap_or(self.offers.len());
        if free >= LOCAL_QUESTIONS_MAX {
            return Ok(Outcome::Blocked);
        }
        let arrival = message(&self.arrival, record);
        let name = u64::from(self.channel.id().0) << 32 | free as u64;
        let waits = reference.is_none() || record.flags & record::TAKEN_OVER == 0;
        let (id, now) = match engine.begin_arrival(&arrival, waits, name) {
            Begun::Now(id) => (id, true),
            Begun::Later(id) => (id, false),
            Begun::NotReady => return Ok(Outcome::Blocked),
            // What is taken over is sent, whatever becomes of it.
            Begun::Truncated if !waits => return self.answer(token, Ok(())).map(|()| Outcome::Taken),
            Begun::Truncated => return self.answer(token, Err(Failure::LengthError)).map(|()| Outcome::Taken),
            Begun::NoSuchEndpoint => return self.answer(token, Err(Failure::NoSuchEndpoint)).map(|()| Outcome::Taken),
        };
        let answer = record.flags & record::ANSWER != 0;
        let offer = Offer { id: Some(id), token, length, received: 0, pulled: false, answer, spans, reference };
        match self.offers.get_mut(free) {
            Some(slot) => *slot = Some(offer),
            None => self.offers.push(Some(offer)),
        }
        if now {
            self.pull(engine, free as u32)?;
        }
        Ok(Outcome::Taken)
    }

    /// The spans that a payload names.
    fn spans(&mut self, length: u32) -> Result<Vec<Span>, Broken> {
        let mut bytes = [0; 16 * Spans::MAX];
        let payload = self.payload()?;
        let into = bytes.get_mut(..payload.len()).ok_or(Broken)?;
        let _same_length = payload.copy_to(into);
        Spans::from_bytes(into, length).ok_or(Broken)
    }

    /// The place in the peer's device memory that a payload names.
    fn reference(&mut self) -> Result<Reference, Broken> {
        let mut bytes = [0; Reference::BYTES];
        let payload = self.payload()?;
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
        engine: &mut Engine<HostMemory>,
        statistics: &mut LocalStatistics,
    ) -> Result<bool, Broken> {
        let mut pulled = std::mem::take(&mut self.pulled);
        let busy = self.pulls.serve(engine, &mut pulled);
        for (pull, outcome) in pulled.drain(..) {
            let Some(Some(offer)) = self.offers.get_mut(pull.index as usize) else { continue };
            if offer.id != Some(pull.id) || offer.reference != Some(pull.reference) {
                continue;
            }
            let bounced = self.pulls.is_bounced(&pull.reference);
            let why = match outcome {
                Pulled::Done => {
                    statistics.by_handle += u64::from(!bounced);
                    statistics.bounced += u64::from(bounced);
                    self.forget(pull.index);
                    engine.end_arrival(pull.id, Ok(()));
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
    fn pull(&mut self, engine: &mut Engine<HostMemory>, index: u32) -> Result<(), Broken> {
        let Some(Some(offer)) = self.offers.get_mut(index as usize) else { return Ok(()) };
        offer.pulled = true;
        if offer.length == 0 {
            let (id, token) = (offer.id.take(), offer.token);
            self.forget(index);
            if let Some(id) = id {
                engine.end_arrival(id, Ok(()));
            }
            return self.answer(token, Ok(()));
        }
        if let (Some(id), true) = (offer.id, offer.spans.is_some())
            && offer.length >= LOCAL_ATTACH_TO_DEVICE_MAX_BYTES
            && is_for_device(engine, id, offer.length)
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

    fn forget(&mut self, index: u32) {
        if let Some(slot) = self.offers.get_mut(index as usize) {
            *slot = None;
        }
        while matches!(self.offers.last(), Some(None)) {
            self.offers.pop();
        }
    }

    /// A message that waited is wanted now, or never will be.
    pub(super) fn matched(&mut self, engine: &mut Engine<HostMemory>, matched: &MatchedArrival) -> Result<(), Broken> {
        let index = matched.token as u32;
        let Some(Some(offer)) = self.offers.get(index as usize).filter(|_| true) else {
            engine.end_arrival(matched.id, Err(Failure::Aborted));
            return Ok(());
        };
        if offer.id != Some(matched.id) {
            engine.end_arrival(matched.id, Err(Failure::Aborted));
            return Ok(());
        }
        let result = match matched.verdict {
            ArrivalVerdict::Fetch => return self.pull(engine, index),
            ArrivalVerdict::Discard => Ok(()),
            ArrivalVerdict::Refuse(failure) => Err(failure),
        };
        let token = offer.token;
        self.forget(index);
        engine.end_arrival(matched.id, result);
        self.answer(token, result)
    }

    /// A part of a message that was pulled.
    fn data(&mut self, engine: &mut Engine<HostMemory>, record: &Record) -> Result<Outcome, Broken> {
        let index = u32::try_from(record.words[0]).map_err(|_| Broken)?;
        let from = match self.channel.receiver().peek()? {
            Some(incoming) => incoming.segment(),
            None => return Err(Broken),
        };
        let Some(Some(offer)) = self.offers.get_mut(index as usize) else { return Err(Broken) };
        let part = from.len() as u32;
        let left = offer.length - offer.received;
        let fetched = offer.spans.is_some() || offer.reference.is_some();
        if !offer.pulled || fetched || record.words[1] != u64::from(offer.received) || part > left {
            return Err(Broken);
        }
        if let Some(id) = offer.id
            && let Err(fault) = place(engine, id, u64::from(offer.received), from)
        {
            offer.id = None;
            engine.end_arrival(id, Err(local(fault)));
        }
        offer.received += part;
        if part < left {
            return Ok(Outcome::Taken);
        }
        let (id, token, answer) = (offer.id, offer.token, offer.answer);
        self.forget(index);
        if let Some(id) = id {
            engine.end_arrival(id, Ok(()));
        }
        if answer {
            let settled = id.is_some() && engine.memory_mut().settle().is_ok();
            self.answer(token, if settled { Ok(()) } else { Err(Failure::OperationFailed) })?;
        }
        Ok(Outcome::Taken)
    }

    /// The peer takes an offer back that was not pulled yet. One that could be read it gives up only when it is told so.
    fn withdraw(&mut self, engine: &mut Engine<HostMemory>, token: u32) -> Result<Outcome, Broken> {
        let withdrawn = |offer: &Option<Offer>| offer.as_ref().is_some_and(|o| o.token == token && !o.pulled);
        if let Some(index) = self.offers.iter().position(withdrawn) {
            let readable = |offer: &Offer| offer.spans.is_some() || offer.reference.is_some();
            let waits = self.offers.get(index).and_then(Option::as_ref).is_some_and(readable);
            self.abort(engine, index as u64);
            if waits {
                self.answer(token, Err(Failure::Cancelled))?;
            }
        }
        Ok(Outcome::Taken)
    }

    /// A message does not come after all.
    fn abort(&mut self, engine: &mut Engine<HostMemory>, index: u64) -> Outcome {
        let offer = usize::try_from(index).ok().and_then(|index| self.offers.get_mut(index)).and_then(Option::take);
        let Some(offer) = offer else { return Outcome::Taken };
        if offer.spans.is_some() {
            // The next offer in this place must not be taken for it.
            self.transfers.retain(|transfer| !matches!(transfer.what, Copying::Offer(of, _) if u64::from(of) == index));
        }
        if let Some(id) = offer.id {
            engine.end_arrival(id, Err(Failure::Aborted));
        }
        Outcome::Taken
    }

    /// Writes with immediate data that are under way: each holds a place in the queue of its endpoint.
    pub(super) fn notices_under_way(&self) -> usize {
        let is_notice = |write: &Write| write.immediate.is_some();
        let incoming = matches!(&self.incoming, Incoming::Write { write, .. } if is_notice(write));
        let copied = |transfer: &&Transfer| matches!(&transfer.what, Copying::Write(write, _) if is_notice(write));
        usize::from(incoming) + self.transfers.iter().filter(copied).count()
    }

    /// The peer is gone: what it began does not end well.
    pub(super) fn fail(&mut self, engine: &mut Engine<HostMemory>) {
        self.pulls.close(engine);
        match std::mem::replace(&mut self.incoming, Incoming::Nothing) {
            Incoming::Message { id, .. } => engine.end_arrival(id, Err(Failure::Aborted)),
            Incoming::Write { write, .. } if write.immediate.is_some() => {
                engine.unreserve_remote_write(self.arrival.endpoint);
            }
            Incoming::Nothing | Incoming::Skip { .. } | Incoming::Write { .. } => {}
        }
        for transfer in self.transfers.drain(..) {
            if let Copying::Write(Write { immediate: Some(_), .. }, _) = transfer.what {
                engine.unreserve_remote_write(self.arrival.endpoint);
            }
        }
        for offer in self.offers.drain(..).flatten() {
            if let Some(id) = offer.id {
                engine.end_arrival(id, Err(Failure::Aborted));
            }
        }
        self.reads.clear();
        self.answers.clear();
    }
}

/// The message that a record begins.
fn message(visitor: &Arrival, record: &Record) -> Arrival {
    let mut arrival = *visitor;
    fill(&mut arrival, record);
    arrival
}

/// The same in place: what all messages of a visitor share is long, and stays.
#[inline]
fn fill(arrival: &mut Arrival, record: &Record) {
    arrival.tagged = record.flags & record::TAGGED != 0;
    arrival.tag = if arrival.tagged { record.words[0] } else { 0 };
    arrival.immediate = record::immediate_of(record);
    arrival.length = record::length_of(record);
}

/// Whether a message goes to a device's memory.
fn is_for_device(engine: &mut Engine<HostMemory>, id: ArrivalId, length: u32) -> bool {
    let uses_devices = engine.memory().uses_devices();
    match engine.room(id, 0, u64::from(length)) {
        Ok(Room::Memory(memory, piece)) if uses_devices => {
            memory.place(piece, Access::REMOTE_WRITE).is_ok_and(|place| !place.is_host())
        }
        _ => false,
    }
}

/// Puts a part of a message where it belongs.
fn place(engine: &mut Engine<HostMemory>, id: ArrivalId, offset: u64, from: Segment<'_>) -> Result<(), Fault> {
    let mut done = 0;
    while done < from.len() {
        let left = from.len() - done;
        let placed = match engine.room(id, offset + done as u64, left as u64)? {
            Room::Memory(memory, piece) => {
                let length = piece.length as usize;
                let part = from.part(done, length).ok_or(Fault::OutOfBounds)?;
                memory.copy_in(piece, part)?;
                length
            }
            Room::Bytes(bytes) => {
                let part = from.part(done, bytes.len()).ok_or(Fault::OutOfBounds)?;
                let _same_length = part.copy_to(bytes);
                bytes.len()
            }
            Room::Nowhere => return Ok(()),
        };
        if placed == 0 {
            return Err(Fault::OutOfBounds);
        }
        done += placed;
    }
    Ok(())
}

/// What the user is told when the memory of a receive fails.
fn local(_fault: Fault) -> Failure {
    Failure::LocalFault
}
