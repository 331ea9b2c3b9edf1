//! Messages at the target: matched to a receive or kept until one comes, put together from packets in any order, fetched when
//! they are long (P-5.5, P-6).

mod claim;
mod receive;
mod rendezvous;
mod write;

use alloc::vec::Vec;

use weft_wire::command::{Flags, Kind, Slot};
use weft_wire::table::Decoded;
use weft_wire::transaction::{Find, Segment, Transaction, TransactionId};

use super::hall::Arrival as Envelope;
use super::request::{RequestIn, Verdict};
use super::transmit::status_of;
use super::{Arrived, Endpoint, EndpointKind, Engine, Touched};
use crate::address::{Address, PeerId, SourceId};
use crate::command::{Command, EndpointId, Operation, PostError, Receive};
use crate::event::{Completion, CompletionFlags, CompletionKind, CounterId, Failure};
use crate::limits::{REFUSED_EACH, SPARE_MAX, SPARE_MAX_BYTES};
use crate::matching::{Posted, PostedId, Unexpected, UnexpectedId};
use crate::memory::{Access, Fault, LocalKey, Memory};
use crate::packet::Status;
use crate::time::Time;

pub(super) use claim::{Claim, Kept};
pub use claim::{ClaimId, Peek, Peeked};

/// A receive in the list of its endpoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct PostedReceive {
    receive: Receive,
    /// Of multi-receive: what its messages share.
    shared: Option<u32>,
    /// Nothing about it is special.
    plain: bool,
}

impl PostedReceive {
    #[inline(always)]
    fn new(receive: &Receive, shared: Option<u32>) -> PostedReceive {
        let plain = shared.is_none() && receive.counter.is_none() && !(receive.silent || receive.announce);
        PostedReceive { receive: *receive, shared, plain }
    }

    /// Buffer, offset and context, if a message of this length fits and nothing about the receive is special.
    #[inline]
    pub(super) fn simple(&self, length: u32) -> Option<(LocalKey, u64, u64)> {
        let receive = &self.receive;
        let fits = u64::from(length) <= receive.length;
        (self.plain && fits).then_some((receive.local, receive.offset, receive.context))
    }
}

/// A multi-receive buffer.
#[derive(Debug)]
pub(super) struct Shared {
    receive: Receive,
    used: u64,
    /// Messages on their way into it.
    pending: u32,
    /// Takes no more.
    retired: bool,
    /// Those messages, in the order in which they matched.
    landed: Vec<Landed>,
    /// Messages that have matched.
    turn: u32,
}

/// A message on its way into a multi-receive buffer. Who takes messages one behind the other expects those of one source in
/// order: one that is complete is not reported before an earlier one of its source.
#[derive(Debug)]
struct Landed {
    turn: u32,
    source: SourceId,
    ended: Option<(Envelope, Landing, Result<(), Failure>)>,
}

/// Where a message goes: a receive that it was matched to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Landing {
    pub(super) local: LocalKey,
    pub(super) offset: u64,
    room: u64,
    context: u64,
    silent: bool,
    /// What its completion says besides.
    flags: CompletionFlags,
    shared: Option<u32>,
    /// Which of the messages in a shared buffer.
    turn: u32,
    /// Of a message that waited at its sender: key, and bytes taken, which its sender is told with the user.
    done: Option<(u64, u64)>,
    counter: Option<CounterId>,
}

/// A message that came before its receive.
#[derive(Debug)]
pub(super) struct UnexpectedMessage {
    pub(super) envelope: Envelope,
    pub(super) body: Body,
}

#[derive(Debug)]
pub(super) enum Body {
    Whole(Vec<u8>),
    /// Still arriving.
    Partial(TransactionId),
    /// Comes by another road: still arriving, or waits at its sender.
    Arriving(u32),
    /// Waits at its sender.
    Rendezvous {
        key: u64,
        address: u64,
    },
    /// Was claimed while it arrived, and did not come.
    Lost,
}

/// A message of several packets that is arriving.
#[derive(Debug)]
pub(super) struct Message {
    life: u32,
    number: u32,
    envelope: Envelope,
    received: u32,
    place: Place,
    last: Time,
}

#[derive(Debug)]
enum Place {
    Receive(Landing),
    /// No receive yet; or one that came while it was arriving.
    Unexpected {
        bytes: Vec<u8>,
        id: Kept,
        landing: Option<Landing>,
    },
    /// Nobody wants it any more.
    Discard,
    /// A write that tells its target when it is complete.
    Write {
        key: u64,
        address: u64,
        notify: bool,
        verify: Option<u32>,
    },
}

impl Message {
    /// Whether it is a write that holds a place in the queue of an endpoint.
    pub(super) fn is_notice_to(&self, endpoint: EndpointId) -> bool {
        self.envelope.endpoint == endpoint && matches!(self.place, Place::Write { notify: true, .. })
    }
}

/// A long message that is being fetched.
#[derive(Debug)]
pub(super) struct Pull {
    landing: Landing,
    envelope: Envelope,
    key: u64,
}

impl<M: Memory> Engine<M> {
    pub(super) fn execute_send(&mut self, input: &RequestIn<'_>, endpoint: EndpointId) -> Verdict {
        let command = &input.decoded.command;
        let flags = command.flags();
        let rendezvous = command.kind() == Kind::ReadyToSend;
        let tagged = command.kind() == Kind::TaggedSend || rendezvous && flags.contains(Flags::IMMEDIATE);
        let immediate = if rendezvous { input.reliability.data } else { flags.contains(Flags::IMMEDIATE) };
        let source = Address { socket: input.request.from, endpoint: input.request.source };
        let envelope = Envelope {
            endpoint,
            source,
            source_id: self.addresses.source_of(source),
            peer: None,
            tagged,
            tag: if tagged { command.slot(Slot::Argument0) } else { 0 },
            immediate: immediate.then(|| command.immediate()),
            length: command.length() as u32,
        };
        let number = command.message() as u32;
        let several = !rendezvous && (input.payload.len() as u64) < command.length();
        let key = if several { self.message_key(input, number) } else { 0 };
        if several && let Some(transaction) = self.transactions.by_key(key) {
            return self.place_more(input, transaction, &envelope);
        }
        let Some(life) = self.lives.get(input.life) else { return Verdict::Refused(Status::NotReady) };
        if several && life.refused_message(input.request.source, number).is_some() {
            return self.refused_again(input, number);
        }
        if !life.in_order(input.request.source, input.request.destination, number, input.reliability.after) {
            // Behind one that was refused as not ready, all are: they come again behind it.
            return if life.is_refused(input.request.source, input.request.destination) {
                Verdict::Refused(Status::NotReady)
            } else {
                Verdict::OutOfOrder
            };
        }
        // Not before its turn: it would let those behind it pass the ones in front.
        if flags.contains(Flags::INVALIDATE) {
            return self.refused_send(input, Status::NotSupported);
        }
        // P-6.2: what acceptance needs, before anything is changed.
        let no_room = several && self.transactions.len() >= self.config.transactions_max
            || rendezvous && !self.entries.has_room(2);
        if no_room {
            return self.not_ready(input, endpoint);
        }
        let verdict = match self.match_posted(&envelope) {
            Matched::NotReady => return self.not_ready(input, endpoint),
            Matched::Truncated(landing) => {
                self.complete_receive(&envelope, &landing, Err(Failure::Truncated));
                return self.refused_send(input, Status::LengthError);
            }
            Matched::Landing(landing) if rendezvous => {
                self.begin_pull(input.now, envelope, landing, command.key(), command.address());
                Verdict::Accepted
            }
            Matched::Landing(landing) if several => self.begin_message(input, key, envelope, Place::Receive(landing)),
            Matched::Landing(landing) => {
                let piece = Segment { address: landing.offset, length: input.payload.len() as u64 };
                match write_local(&mut self.memory, landing.local, [piece].into_iter(), input.payload) {
                    Ok(()) => {
                        self.complete_receive(&envelope, &landing, Ok(()));
                        Verdict::Accepted
                    }
                    Err(_) => {
                        self.complete_receive(&envelope, &landing, Err(Failure::LocalFault));
                        Verdict::Refused(Status::OperationFailed)
                    }
                }
            }
            Matched::Nothing => match self.keep_unexpected(input, key, envelope, rendezvous, several) {
                Some((verdict, _)) => verdict,
                None => return self.not_ready(input, endpoint),
            },
            Matched::Announce(posted) => {
                let kept = self.keep_unexpected(input, key, envelope, rendezvous, several);
                self.announce(&envelope, posted, kept.map(|(_, id)| id));
                match kept {
                    Some((verdict, _)) => verdict,
                    None => return self.not_ready(input, endpoint),
                }
            }
        };
        if let Some(life) = self.lives.get_mut(input.life) {
            life.passed(input.request.source, input.request.destination, number, input.reliability.after);
        }
        verdict
    }

    /// What names a message of several packets: nobody else has this ticket.
    fn message_key(&self, input: &RequestIn<'_>, number: u32) -> u64 {
        use core::hash::BuildHasher;
        self.keyed.hash_one((input.request.ticket, u64::from(input.request.source) << 32 | u64::from(number)))
    }

    fn not_ready(&mut self, input: &RequestIn<'_>, endpoint: EndpointId) -> Verdict {
        let command = &input.decoded.command;
        if matches!(command.kind(), Kind::Send | Kind::TaggedSend | Kind::ReadyToSend)
            && let Some(life) = self.lives.get_mut(input.life)
        {
            let number = command.message() as u32;
            life.not_ready(input.request.source, input.request.destination, number, input.reliability.after);
        }
        let most = self.config.lives_max.saturating_mul(REFUSED_EACH);
        if let Some(endpoint) = self.endpoint_mut(endpoint) {
            endpoint.refused.note(input.request, most);
            self.credits_owed = true;
        }
        Verdict::Refused(Status::NotReady)
    }

    /// The receive for a message, taken out of its list; a place in the completion queue is reserved.
    pub(super) fn match_posted(&mut self, envelope: &Envelope) -> Matched {
        let source = envelope.source_id;
        let length = u64::from(envelope.length);
        loop {
            let slot = self.endpoints.get_mut(envelope.endpoint.0 as usize).and_then(Option::as_mut);
            let Some(mut endpoint) = slot else { return Matched::NotReady };
            let queue = endpoint.bindings.receive_queue;
            if let Some(other) = endpoint.receives_at {
                let slot = self.endpoints.get_mut(other.0 as usize).and_then(Option::as_mut);
                let Some(other) = slot else { return Matched::NotReady };
                endpoint = other;
            }
            let (posted, _) = lists(endpoint, envelope.tagged);
            let Some(id) = posted.first(source, envelope.tag) else { return Matched::Nothing };
            let Some(found) = posted.get(id) else { return Matched::Nothing };
            if found.receive.announce {
                let full = self.claims.len() >= self.config.unexpected_max;
                return if full || !self.reserve(queue) { Matched::NotReady } else { Matched::Announce(id) };
            }
            if found.shared.is_none() {
                // The usual case, without a copy of what is not needed.
                let landing = Landing::of(&found.receive);
                if !queue.and_then(|queue| self.queues.get_mut(queue.0 as usize)).is_none_or(|queue| queue.reserve()) {
                    return Matched::NotReady;
                }
                posted.discard(id);
                return if length > landing.room { Matched::Truncated(landing) } else { Matched::Landing(landing) };
            }
            let found = *found;
            if !self.reserve(queue) {
                return Matched::NotReady;
            }
            let receive = found.receive;
            let mut take = true;
            let landing = match found.shared.and_then(|index| self.shared.get_mut(index).map(|shared| (index, shared)))
            {
                None => Landing::of(&receive),
                Some((index, shared)) => {
                    let room = receive.length - shared.used;
                    if length > room && shared.used > 0 {
                        // It goes into the next buffer, and this one is done.
                        let idle = shared.pending == 0;
                        self.remove_posted(envelope, id);
                        self.retire(index);
                        if idle {
                            self.release_shared(index, queue);
                        } else {
                            self.unreserve(queue);
                        }
                        continue;
                    }
                    let landing = shared.land(index, source, length, receive.length);
                    take = receive.length - shared.used < receive.multi.unwrap_or(0);
                    if take {
                        shared.retired = true;
                    }
                    landing
                }
            };
            if take {
                self.remove_posted(envelope, id);
            }
            return if length > landing.room { Matched::Truncated(landing) } else { Matched::Landing(landing) };
        }
    }

    fn remove_posted(&mut self, envelope: &Envelope, id: PostedId) {
        if let Some((posted, _)) = self.lists_of(envelope.endpoint, envelope.tagged) {
            posted.remove(id);
        }
    }

    /// The lists that messages for an endpoint are in, and receives for them.
    pub(super) fn lists_of(&mut self, endpoint: EndpointId, tagged: bool) -> Option<Lists<'_>> {
        let receiver = self.receiver_of(endpoint);
        self.endpoint_mut(receiver).map(|endpoint| lists(endpoint, tagged))
    }

    fn retire(&mut self, index: u32) {
        if let Some(shared) = self.shared.get_mut(index) {
            shared.retired = true;
        }
    }

    /// Gives an idle multi-receive buffer back. A place in the queue is reserved.
    fn release_shared(&mut self, index: u32, queue: Option<crate::event::QueueId>) {
        let Some(shared) = self.shared.remove(index) else { return };
        let completion = Completion {
            context: shared.receive.context,
            kind: CompletionKind::BufferReleased,
            flags: CompletionFlags::of_multi(true),
            result: Ok(()),
            length: 0,
            tag: 0,
            immediate: None,
            source: None,
            peer: None,
            local: shared.receive.local,
            results: LocalKey::NONE,
            offset: 0,
        };
        if queue.is_some() {
            self.push(queue, completion);
        } else {
            self.memory.release(shared.receive.local);
        }
    }

    /// Keeps a message until its receive is posted; `None`: there is no room.
    fn keep_unexpected(
        &mut self,
        input: &RequestIn<'_>,
        key: u64,
        envelope: Envelope,
        rendezvous: bool,
        several: bool,
    ) -> Option<(Verdict, UnexpectedId)> {
        let command = &input.decoded.command;
        let length = if rendezvous { 0 } else { envelope.length as usize };
        if self.unexpected_bytes + length > self.config.unexpected_max_bytes {
            return None;
        }
        let source = envelope.source_id;
        let (_, unexpected) = self.lists_of(envelope.endpoint, envelope.tagged)?;
        if unexpected.len() >= unexpected.capacity() {
            return None;
        }
        if rendezvous {
            let body = Body::Rendezvous { key: command.key(), address: command.address() };
            let id = unexpected.push(source, envelope.tag, UnexpectedMessage { envelope, body }).ok()?;
            self.offers.insert((source, command.key()), (envelope.endpoint, envelope.tagged, id));
            return Some((Verdict::Accepted, id));
        }
        if several {
            // The peer says how long it is. Fresh memory is zero already, so a long one costs nothing until bytes come.
            let bytes = match self.spare.pop() {
                Some(mut bytes) if length <= SPARE_MAX_BYTES => {
                    bytes.resize(length, 0);
                    bytes
                }
                _ => alloc::vec![0; length],
            };
            let body = Body::Whole(Vec::new());
            let (_, unexpected) = self.lists_of(envelope.endpoint, envelope.tagged)?;
            let id = unexpected.push(source, envelope.tag, UnexpectedMessage { envelope, body }).ok()?;
            self.unexpected_bytes += length;
            let place = Place::Unexpected { bytes, id: Kept::Listed(id), landing: None };
            return Some((self.begin_message(input, key, envelope, place), id));
        }
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.extend_from_slice(input.payload);
        let (_, unexpected) = self.lists_of(envelope.endpoint, envelope.tagged)?;
        let message = UnexpectedMessage { envelope, body: Body::Whole(bytes) };
        let id = unexpected.push(source, envelope.tag, message).ok()?;
        self.unexpected_bytes += length;
        Some((Verdict::Accepted, id))
    }

    /// The first packet seen of a message of several.
    fn begin_message(&mut self, input: &RequestIn<'_>, key: u64, envelope: Envelope, place: Place) -> Verdict {
        let base = match &place {
            Place::Receive(landing) => landing.offset,
            _ => 0,
        };
        let segment = Segment { address: base, length: u64::from(envelope.length) };
        let transaction = Transaction::new(&[segment]).and_then(|t| self.transactions.insert(t, Find::Key(key)).ok());
        let Some(transaction) = transaction else {
            // Two messages with one name: the initiator broke P-4.1. What was taken for it is given back.
            self.drop_place(&envelope, place);
            return Verdict::Refused(Status::ProtocolError);
        };
        if let Place::Unexpected { id, .. } = &place
            && let Some(waiting) = self.kept_mut(&envelope, *id)
        {
            waiting.body = Body::Partial(transaction);
        }
        let number = input.decoded.command.message() as u32;
        let message = Message { life: input.life, number, envelope, received: 0, place, last: input.now };
        self.messages.insert(transaction, message);
        if let Some(life) = self.lives.get_mut(input.life) {
            life.messages += 1;
        }
        self.place_more(input, transaction, &envelope)
    }

    fn drop_place(&mut self, envelope: &Envelope, place: Place) {
        match place {
            Place::Receive(landing) => self.complete_receive(envelope, &landing, Err(Failure::ProtocolError)),
            Place::Unexpected { bytes, id, landing } => {
                self.forget_unexpected(envelope, id);
                self.recycle(bytes);
                if let Some(landing) = landing {
                    self.complete_receive(envelope, &landing, Err(Failure::ProtocolError));
                }
            }
            Place::Discard | Place::Write { .. } => {}
        }
    }

    /// A packet of a message that is arriving.
    fn place_more(&mut self, input: &RequestIn<'_>, id: TransactionId, envelope: &Envelope) -> Verdict {
        let Some(message) = self.messages.get_mut(&id) else { return Verdict::Refused(Status::ProtocolError) };
        // P-4.1: all packets of a message say the same.
        let same = message.envelope.endpoint == envelope.endpoint
            && message.envelope.source == envelope.source
            && message.envelope.tagged == envelope.tagged
            && message.envelope.tag == envelope.tag
            && message.envelope.immediate == envelope.immediate
            && message.envelope.length == envelope.length
            && message.number == input.decoded.command.message() as u32;
        if !same {
            return Verdict::Refused(Status::ProtocolError);
        }
        message.last = input.now;
        let Some(transaction) = self.transactions.get_mut(id) else { return Verdict::Refused(Status::ProtocolError) };
        let Ok(mut pieces) = self.codec.tables().place(input.decoded, Some(transaction)) else {
            return Verdict::Refused(Status::LengthError);
        };
        let placed = match &mut message.place {
            Place::Receive(landing) => write_local(&mut self.memory, landing.local, pieces, input.payload),
            Place::Unexpected { bytes, .. } => match pieces.next() {
                Some(piece) => {
                    let end = (piece.address + piece.length) as usize;
                    let place = bytes.get_mut(piece.address as usize..end);
                    place.map(|place| place.copy_from_slice(input.payload)).ok_or(Fault::OutOfBounds)
                }
                None => Ok(()),
            },
            Place::Discard => Ok(()),
            Place::Write { .. } => Err(Fault::Failed),
        };
        if let Err(fault) = placed {
            self.abort_message(id, Failure::LocalFault);
            // It is our own buffer that failed, whatever the fault is called.
            let status =
                if status_of(fault) == Status::NotSupported { Status::NotSupported } else { Status::OperationFailed };
            return self.refused_send(input, status);
        }
        // A peer that sends a part twice under two psns only cheats itself, but must not overflow it.
        message.received = message.received.saturating_add(input.payload.len() as u32);
        if message.received >= message.envelope.length {
            self.message_complete(id);
        }
        Verdict::Accepted
    }

    /// All bytes of a message are here (P-6.3).
    fn message_complete(&mut self, id: TransactionId) {
        self.credits_due |= self.credits_owed && self.transactions.len() >= self.config.transactions_max;
        self.transactions.remove(id);
        let Some(message) = self.messages.remove(&id) else { return };
        if let Some(life) = self.lives.get_mut(message.life) {
            life.messages = life.messages.saturating_sub(1);
        }
        let envelope = message.envelope;
        match message.place {
            Place::Receive(landing) => self.complete_receive(&envelope, &landing, Ok(())),
            Place::Unexpected { bytes, landing: Some(landing), .. } => {
                let piece = Segment { address: landing.offset, length: bytes.len() as u64 };
                let written = write_local(&mut self.memory, landing.local, [piece].into_iter(), &bytes);
                self.recycle(bytes);
                self.complete_receive(&envelope, &landing, written.map_err(|_| Failure::LocalFault));
            }
            Place::Unexpected { bytes, id, landing: None } => {
                if let Some(waiting) = self.kept_mut(&envelope, id) {
                    waiting.body = Body::Whole(bytes);
                }
            }
            Place::Discard | Place::Write { .. } => {}
        }
    }

    /// A message will not become complete.
    fn abort_message(&mut self, id: TransactionId, failure: Failure) {
        self.credits_due |= self.credits_owed && self.transactions.len() >= self.config.transactions_max;
        self.transactions.remove(id);
        let Some(message) = self.messages.remove(&id) else { return };
        if let Some(life) = self.lives.get_mut(message.life) {
            life.messages = life.messages.saturating_sub(1);
        }
        let envelope = message.envelope;
        match message.place {
            Place::Receive(landing) => self.complete_receive(&envelope, &landing, Err(failure)),
            Place::Unexpected { bytes, id, landing } => {
                self.recycle(bytes);
                match landing {
                    Some(landing) => self.complete_receive(&envelope, &landing, Err(failure)),
                    None => self.forget_unexpected(&envelope, id),
                }
            }
            Place::Write { notify, .. } => {
                if notify {
                    let queue = self.endpoint(envelope.endpoint).and_then(|e| e.bindings.receive_queue);
                    self.unreserve(queue);
                }
            }
            Place::Discard => {}
        }
    }

    /// A life ended: so do its incomplete messages (P-7.12).
    pub(super) fn abort_messages(&mut self, _now: Time, life: u32) {
        let mine: Vec<TransactionId> =
            self.messages.iter().filter(|(_, message)| message.life == life).map(|(id, _)| *id).collect();
        for id in mine {
            self.abort_message(id, Failure::Aborted);
        }
    }

    /// Messages of which nothing came for long, their lives notwithstanding.
    pub(super) fn abort_idle_messages(&mut self, now: Time) {
        let idle = |message: &Message| now >= message.last.plus_micros(crate::limits::MESSAGE_IDLE_US);
        let old: Vec<TransactionId> =
            self.messages.iter().filter(|(_, message)| idle(message)).map(|(id, _)| *id).collect();
        for id in old {
            // The initiator was not told, and may only have slept: what it still sends of the message must be refused.
            if let Some(message) = self.messages.get(&id)
                && let Some(life) = self.lives.get_mut(message.life)
            {
                life.give_up_message(message.envelope.source.endpoint, message.number, Status::Aborted, now);
            }
            self.abort_message(id, Failure::Aborted);
        }
    }

    /// Tells the user about a message. The place in the queue was reserved when it was matched.
    pub(super) fn complete_receive(&mut self, envelope: &Envelope, landing: &Landing, result: Result<(), Failure>) {
        let Some(index) = landing.shared else { return self.report_receive(envelope, landing, result) };
        match self.shared.get_mut(index) {
            Some(shared) => shared.end(envelope, landing, result),
            None => return self.report_receive(envelope, landing, result),
        }
        while let Some((envelope, landing, result)) =
            self.shared.get_mut(index).and_then(|shared| shared.next_ended(envelope.source_id))
        {
            self.report_receive(&envelope, &landing, result);
        }
    }

    fn report_receive(&mut self, envelope: &Envelope, landing: &Landing, result: Result<(), Failure>) {
        if let Some((key, taken)) = landing.done {
            self.send_done(self.clock, envelope, key, taken);
        }
        let mut local = landing.local;
        let mut offset = 0;
        let mut flags = landing.flags;
        if let Some(index) = landing.shared {
            local = LocalKey::NONE;
            flags = CompletionFlags::MULTI;
            offset = landing.offset;
            if let Some(shared) = self.shared.get_mut(index) {
                shared.pending -= 1;
                offset -= shared.receive.offset;
                if shared.retired && shared.pending == 0 {
                    local = shared.receive.local;
                    flags = CompletionFlags::of_multi(true);
                    self.shared.remove(index);
                }
            }
        }
        if landing.shared.is_none() && result == Err(Failure::Truncated) {
            offset = landing.room;
        }
        let endpoint = self.endpoint(envelope.endpoint);
        let (bindings, silenced) = endpoint.map(|endpoint| (endpoint.bindings, endpoint.silenced)).unwrap_or_default();
        if !silenced {
            self.count(bindings.receive_counter, result.is_ok());
        }
        self.count(landing.counter, result.is_ok());
        let queue = bindings.receive_queue;
        let unwanted = landing.silent && result.is_ok() && (landing.shared.is_none() || local == LocalKey::NONE);
        if unwanted || silenced || queue.is_none() {
            self.unreserve(queue);
            self.credits_due |= self.credits_owed;
            if local != LocalKey::NONE {
                self.memory.release(local);
            }
            return;
        }
        let peer = self.peer_of(envelope);
        let kind = if envelope.tagged { CompletionKind::TaggedReceive } else { CompletionKind::Receive };
        self.push(
            queue,
            Completion {
                context: landing.context,
                kind,
                flags,
                result,
                length: u64::from(envelope.length),
                tag: envelope.tag,
                immediate: envelope.immediate,
                source: Some(envelope.source),
                peer,
                local,
                results: LocalKey::NONE,
                offset,
            },
        );
    }
}

impl<M: Memory> Engine<M> {
    /// The name of who sent a message.
    pub(super) fn peer_of(&self, envelope: &Envelope) -> Option<PeerId> {
        let known = envelope.peer.filter(|peer| self.addresses.source(*peer) == Some(envelope.source_id));
        known.or_else(|| self.addresses.find(envelope.source_id))
    }
}

impl Landing {
    /// All of a receive.
    #[inline]
    fn of(receive: &Receive) -> Landing {
        Landing {
            local: receive.local,
            offset: receive.offset,
            room: receive.length,
            context: receive.context,
            silent: receive.silent,
            flags: CompletionFlags::NONE,
            shared: None,
            turn: 0,
            done: None,
            counter: receive.counter,
        }
    }
}

impl Shared {
    fn new(receive: &Receive) -> Shared {
        Shared { receive: *receive, used: 0, pending: 0, retired: false, landed: Vec::new(), turn: 0 }
    }

    /// The place for a message of this length, which is taken.
    fn land(&mut self, index: u32, source: SourceId, length: u64, room: u64) -> Landing {
        self.turn = self.turn.wrapping_add(1);
        self.landed.push(Landed { turn: self.turn, source, ended: None });
        let landing = Landing {
            local: self.receive.local,
            offset: self.receive.offset + self.used,
            room: room - self.used,
            context: self.receive.context,
            silent: self.receive.silent,
            flags: CompletionFlags::NONE,
            shared: Some(index),
            turn: self.turn,
            done: None,
            counter: self.receive.counter,
        };
        self.used = (self.used + length).min(room);
        self.pending += 1;
        landing
    }

    /// The last message to land does not, after all.
    fn unland(&mut self, used: u64) {
        self.landed.pop();
        (self.pending, self.used, self.retired) = (self.pending - 1, used, false);
    }

    /// A message is complete, or will not be.
    fn end(&mut self, envelope: &Envelope, landing: &Landing, result: Result<(), Failure>) {
        if let Some(landed) = self.landed.iter_mut().find(|landed| landed.turn == landing.turn) {
            landed.ended = Some((*envelope, *landing, result));
        }
    }

    /// The next message of a source that can be reported.
    fn next_ended(&mut self, source: SourceId) -> Option<(Envelope, Landing, Result<(), Failure>)> {
        let at = self.landed.iter().position(|landed| landed.source == source)?;
        self.landed.get(at)?.ended.as_ref()?;
        self.landed.remove(at).ended
    }
}

/// What the posted receives say to a message.
pub(super) enum Matched {
    Landing(Landing),
    Truncated(Landing),
    /// It is to be kept, and then announced with [`Engine::announce`]: for this a place in the queue is reserved.
    Announce(PostedId),
    /// None fits.
    Nothing,
    /// The completion queue has no room.
    NotReady,
}

/// What DONE tells instead of the bytes taken when the message is given up: a message of no bytes can be taken too.
const NOT_TAKEN: u64 = u32::MAX as u64;

/// Receives that wait, and messages that do.
pub(super) type Lists<'a> = (&'a mut Posted<PostedReceive>, &'a mut Unexpected<UnexpectedMessage>);

#[inline]
pub(super) fn lists(endpoint: &mut Endpoint, tagged: bool) -> Lists<'_> {
    if tagged {
        (&mut endpoint.tagged_posted, &mut endpoint.tagged_unexpected)
    } else {
        (&mut endpoint.posted, &mut endpoint.unexpected)
    }
}

/// Copies a payload into pieces of a local buffer.
pub(super) fn write_local<M: Memory>(
    memory: &mut M,
    key: LocalKey,
    pieces: impl Iterator<Item = Segment>,
    payload: &[u8],
) -> Result<(), Fault> {
    let mut done = 0;
    for piece in pieces {
        let mut at = 0;
        while at < piece.length {
            let left = piece.length - at;
            let granted = memory.local(key, piece.address + at, left)?.first(left);
            if granted.length == 0 {
                return Err(Fault::OutOfBounds);
            }
            let end = done + granted.length as usize;
            memory.write(granted, payload.get(done..end).ok_or(Fault::OutOfBounds)?)?;
            done = end;
            at += granted.length;
        }
    }
    if done == payload.len() { Ok(()) } else { Err(Fault::OutOfBounds) }
}
