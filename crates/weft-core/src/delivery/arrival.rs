//! Messages on their way in: whole, in parts, or waiting at their sender.

use alloc::vec::Vec;

use super::claim::UnexpectedRef;
use super::endpoint::{EndpointKind, lists};
use super::matched::{Matched, RecvTarget, write_local};
use super::receive::{Body, UnexpectedMessage};
use super::{Delivery, Envelope, Freed, Transport};
use crate::address::{AddressVector, PeerId, SourceId};
use crate::command::EndpointId;
use crate::delivery::matching::UnexpectedId;
use crate::event::{CompletionEntry, CompletionFlags, CompletionKind, Failure};
use crate::memory::{Fault, Granted, LocalKey, Memory};

/// The bytes of a message, wherever they are.
pub trait Payload<M> {
    /// Bytes.
    fn length(&self) -> usize;

    /// Copies those that begin at `offset` into the user's memory, as many as the piece has.
    fn place(&self, memory: &mut M, to: Granted, offset: usize) -> Result<(), Fault>;

    /// Copies all of them into a local buffer, if that is simple; false: it is not, and nothing was copied.
    fn place_whole(&self, _memory: &mut M, _local: LocalKey, _offset: u64) -> bool {
        false
    }

    /// As [`Payload::place_whole`], where nothing more comes for the buffer. Gives the key by which it is still to be had;
    /// `None`: nothing was copied.
    fn place_at_last(&self, memory: &mut M, local: LocalKey, offset: u64) -> Option<LocalKey> {
        self.place_whole(memory, local, offset).then_some(local)
    }

    /// Copies those that begin at `offset` into a buffer, as many as it has.
    fn keep(&self, offset: usize, into: &mut [u8]) -> Result<(), Fault>;
}

impl<M: Memory> Payload<M> for &[u8] {
    #[inline]
    fn length(&self) -> usize {
        self.len()
    }

    #[inline]
    fn place(&self, memory: &mut M, to: Granted, offset: usize) -> Result<(), Fault> {
        let part = self.get(offset..).and_then(|rest| rest.get(..to.length as usize));
        memory.write(to, part.ok_or(Fault::OutOfBounds)?)
    }

    #[inline]
    fn place_whole(&self, memory: &mut M, local: LocalKey, offset: u64) -> bool {
        if self.is_empty() {
            return true;
        }
        match memory.local(local, offset, self.len() as u64) {
            Ok(piece) if piece.length == self.len() as u64 => memory.write(piece, self).is_ok(),
            _ => false,
        }
    }

    fn keep(&self, offset: usize, into: &mut [u8]) -> Result<(), Fault> {
        let part = self.get(offset..).and_then(|rest| rest.get(..into.len()));
        into.copy_from_slice(part.ok_or(Fault::OutOfBounds)?);
        Ok(())
    }
}

/// What became of a whole message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivered {
    /// The user has it: it is in the receive that it matched.
    Received,
    /// It waits for its receive.
    Kept,
    /// The receive that it matched was too short, and has been told.
    Truncated,
    /// The receive's memory failed, and its user has been told.
    Failed(Fault),
    /// There is no room now: bring it again when something became free.
    NotReady,
    /// The endpoint is closed, or is not for such messages.
    NoSuchEndpoint,
}

/// How a long message is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendMode {
    /// Its bytes come at once, wanted or not.
    Eager,
    /// It stays at its sender until a receive wants it.
    Rendezvous {
        /// Whom [`Delivery::poll_decided`] tells of it.
        transport: Transport,
        /// What the transport calls it.
        token: u64,
    },
}

/// Names a message that is arriving, until [`Delivery::end`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ArrivalId(u32);

/// How the arrival of a long message begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Bring the bytes.
    Ready(ArrivalId),
    /// No receive wants it yet: [`Delivery::poll_decided`] will tell.
    Deferred(ArrivalId),
    /// The receive that it matched was too short, and has been told.
    Truncated,
    /// There is no room now.
    NotReady,
    /// The endpoint is closed, or is not for such messages.
    NoSuchEndpoint,
}

/// A message that had to wait at its sender, and need not any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decided {
    /// Which.
    pub id: ArrivalId,
    /// What its transport calls it.
    pub token: u64,
    /// What is to be done.
    pub decision: Decision,
}

/// What is to be done with a message that waits at its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Fetch it.
    Fetch,
    /// Nobody shall have it: tell its sender that it is done, and end it.
    Discard,
    /// Nobody can have it: tell its sender why, and end it.
    Refuse(Failure),
}

/// Where bytes of a message go.
#[derive(Debug)]
pub enum Destination<'a, M> {
    /// Into the user's memory; what is behind the piece is asked for again.
    Memory(&'a mut M, Granted),
    /// Into a buffer of the engine.
    Bytes(&'a mut [u8]),
    /// Nobody wants them any more.
    Nowhere,
}

/// A message of which not everything is here.
#[derive(Debug)]
pub(super) struct Arriving {
    pub(super) envelope: Envelope,
    mode: SendMode,
    place: ArrivalPlace,
}

#[derive(Debug)]
enum ArrivalPlace {
    Receive(RecvTarget),
    /// No receive yet; or one that came while it was arriving.
    Unexpected {
        bytes: Vec<u8>,
        id: UnexpectedRef,
        target: Option<RecvTarget>,
    },
    /// Waits at its sender.
    Waiting(UnexpectedRef),
    /// Nobody wants it any more.
    Discard,
}

impl Arriving {
    /// Whether it still waits at its sender for a receive.
    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.place, ArrivalPlace::Waiting(_))
    }
}

/// The name of a source that was not told with its message.
#[cold]
fn find_peer(addresses: &AddressVector, source: SourceId) -> Option<PeerId> {
    addresses.find(source)
}

impl<M: Memory> Delivery<M> {
    /// Whether an endpoint takes messages of this kind.
    fn takes(&self, endpoint: EndpointId, kind: EndpointKind) -> bool {
        self.endpoint(endpoint).is_some_and(|endpoint| endpoint.kind == kind)
    }

    /// Takes a short message whole.
    #[inline]
    pub fn deliver(&mut self, envelope: &Envelope, payload: &impl Payload<M>) -> Delivered {
        if self.deliver_fast(envelope, payload) { Delivered::Received } else { self.deliver_slow(envelope, payload) }
    }

    /// The usual case, step by step in one place: a receive of its own waits, has room, and a queue takes its completion.
    /// False: it is another case, and nothing was changed. Not inlined: together with what brings messages it would have more
    /// values than there are registers.
    #[inline(never)]
    fn deliver_fast(&mut self, envelope: &Envelope, payload: &impl Payload<M>) -> bool {
        let Some(endpoint) = self.endpoints.get_mut(envelope.endpoint) else { return false };
        let (counter, queue) = (endpoint.bindings.receive_counter, endpoint.bindings.receive_queue);
        let Some(queue) = queue.and_then(|queue| self.events.queue_mut(queue)) else { return false };
        if endpoint.kind != EndpointKind::Reliable || endpoint.srx.is_some() || !queue.has_room() {
            return false;
        }
        let (posted, _) = lists(endpoint, envelope.tagged);
        let Some(id) = posted.first(envelope.source_id, envelope.tag) else { return false };
        let Some((local, offset, context)) = posted.get(id).and_then(|found| found.simple(envelope.length)) else {
            return false;
        };
        let Some(local) = payload.place_at_last(&mut self.memory, local, offset) else { return false };
        posted.discard(id);
        let peer = envelope.peer.filter(|peer| self.addresses.source(*peer) == Some(envelope.source_id));
        let entry = CompletionEntry {
            context,
            length: u64::from(envelope.length),
            tag: envelope.tag,
            immediate: envelope.immediate,
            place: 0,
            peer: match peer {
                Some(peer) => Some(peer),
                None => find_peer(&self.addresses, envelope.source_id),
            },
            local,
            kind: if envelope.tagged { CompletionKind::TaggedReceive } else { CompletionKind::Receive },
            flags: CompletionFlags::NONE,
            result: Ok(()),
        };
        queue.push_message(entry, &envelope.source);
        if counter.is_some() {
            self.count(counter, true);
        }
        true
    }

    #[inline(never)]
    fn deliver_slow(&mut self, envelope: &Envelope, payload: &impl Payload<M>) -> Delivered {
        if !self.takes(envelope.endpoint, EndpointKind::Reliable) {
            return Delivered::NoSuchEndpoint;
        }
        let kept = |kept: bool| if kept { Delivered::Kept } else { Delivered::NotReady };
        match self.match_posted(envelope) {
            Matched::Target(target) => {
                let written = self.fill(&target, payload);
                self.complete_receive(envelope, &target, written.map_err(|_| Failure::LocalFault));
                written.map_or_else(Delivered::Failed, |()| Delivered::Received)
            }
            Matched::Truncated(target) => {
                self.complete_receive(envelope, &target, Err(Failure::Truncated));
                Delivered::Truncated
            }
            Matched::NotReady => Delivered::NotReady,
            Matched::Announce(posted) => {
                let id = self.keep_whole(envelope, payload);
                self.announce(envelope, posted, id);
                kept(id.is_some())
            }
            Matched::Nothing => kept(self.keep_whole(envelope, payload).is_some()),
        }
    }

    /// Keeps a message until its receive is posted; `None`: there is no room.
    fn keep_whole(&mut self, envelope: &Envelope, payload: &impl Payload<M>) -> Option<UnexpectedId> {
        let length = payload.length();
        if self.unexpected_bytes + length > self.config.unexpected_max_bytes || self.unexpected_is_full(envelope) {
            return None;
        }
        let mut bytes = self.spare.take(length);
        payload.keep(0, &mut bytes).ok()?;
        let id = self.push_unexpected(*envelope, Body::Whole(bytes))?;
        self.unexpected_bytes += length;
        Some(id)
    }

    /// Copies a message into the receive that it matched.
    #[inline]
    fn fill(&mut self, target: &RecvTarget, payload: &impl Payload<M>) -> Result<(), Fault> {
        if payload.place_whole(&mut self.memory, target.local, target.offset) {
            return Ok(());
        }
        self.fill_at(target.local, target.offset, payload)
    }

    /// Copies a payload into a local buffer, piece by piece.
    fn fill_at(&mut self, local: LocalKey, offset: u64, payload: &impl Payload<M>) -> Result<(), Fault> {
        let (mut done, length) = (0, payload.length() as u64);
        while done < length {
            let piece = self.memory.local(local, offset + done, length - done)?.first(length - done);
            if piece.length == 0 {
                return Err(Fault::OutOfBounds);
            }
            payload.place(&mut self.memory, piece, done as usize)?;
            done += piece.length;
        }
        Ok(())
    }

    /// Takes a datagram; false: it is lost, since nobody waits for it.
    pub fn deliver_datagram(&mut self, envelope: &Envelope, payload: &impl Payload<M>) -> bool {
        if !self.takes(envelope.endpoint, EndpointKind::Datagram) {
            return false;
        }
        match self.match_posted(envelope) {
            Matched::Target(target) => {
                let written = self.fill(&target, payload);
                self.complete_receive(envelope, &target, written.map_err(|_| Failure::LocalFault));
            }
            Matched::Truncated(target) => self.complete_receive(envelope, &target, Err(Failure::Truncated)),
            Matched::Announce(posted) => {
                let id = self.keep_whole(envelope, payload);
                self.announce(envelope, posted, id);
                return id.is_some();
            }
            Matched::Nothing if self.keeps_datagram(envelope.endpoint) => {
                return self.keep_whole(envelope, payload).is_some();
            }
            Matched::NotReady | Matched::Nothing => return false,
        }
        true
    }

    /// Whether a datagram for which there is no receive may wait for one.
    fn keeps_datagram(&self, endpoint: EndpointId) -> bool {
        let limit = self.endpoint(endpoint).map_or(0, |endpoint| endpoint.datagrams_kept);
        limit > 0 && self.endpoint(self.receiver_of(endpoint)).is_some_and(|at| at.unexpected.len() < limit)
    }

    fn unexpected_is_full(&mut self, envelope: &Envelope) -> bool {
        let lists = self.lists_of(envelope.endpoint, envelope.tagged);
        lists.is_none_or(|(_, unexpected)| unexpected.len() >= unexpected.capacity())
    }

    fn push_unexpected(&mut self, envelope: Envelope, body: Body) -> Option<UnexpectedId> {
        let (_, unexpected) = self.lists_of(envelope.endpoint, envelope.tagged)?;
        let message = UnexpectedMessage { envelope, body };
        unexpected.push(envelope.source_id, envelope.tag, message).ok()
    }

    /// Begins a long message.
    pub fn begin(&mut self, envelope: &Envelope, mode: SendMode) -> Start {
        if !self.takes(envelope.endpoint, EndpointKind::Reliable) {
            return Start::NoSuchEndpoint;
        }
        match self.match_posted(envelope) {
            Matched::Target(target) => {
                let arriving = Arriving { envelope: *envelope, mode, place: ArrivalPlace::Receive(target) };
                Start::Ready(ArrivalId(self.arrivals.insert(arriving)))
            }
            Matched::Truncated(target) => {
                self.complete_receive(envelope, &target, Err(Failure::Truncated));
                Start::Truncated
            }
            Matched::NotReady => Start::NotReady,
            Matched::Announce(posted) => {
                let kept = self.keep_arriving(envelope, mode);
                self.announce(envelope, posted, kept.map(|(_, id)| id));
                kept.map_or(Start::NotReady, |(start, _)| start)
            }
            Matched::Nothing => self.keep_arriving(envelope, mode).map_or(Start::NotReady, |(start, _)| start),
        }
    }

    /// Keeps a place for a message until its receive is posted; `None`: there is no room.
    fn keep_arriving(&mut self, envelope: &Envelope, mode: SendMode) -> Option<(Start, UnexpectedId)> {
        let waits = mode != SendMode::Eager;
        let length = if waits { 0 } else { envelope.length as usize };
        if self.unexpected_bytes + length > self.config.unexpected_max_bytes || self.unexpected_is_full(envelope) {
            return None;
        }
        let index = self.arrivals.insert(Arriving { envelope: *envelope, mode, place: ArrivalPlace::Discard });
        let Some(id) = self.push_unexpected(*envelope, Body::Arriving(index)) else {
            self.arrivals.remove(index);
            return None;
        };
        self.unexpected_bytes += length;
        let place = if waits {
            ArrivalPlace::Waiting(UnexpectedRef::Listed(id))
        } else {
            let bytes = self.spare.take(length);
            ArrivalPlace::Unexpected { bytes, id: UnexpectedRef::Listed(id), target: None }
        };
        if let Some(arriving) = self.arrivals.get_mut(index) {
            arriving.place = place;
        }
        let id_of = ArrivalId(index);
        Some((if waits { Start::Deferred(id_of) } else { Start::Ready(id_of) }, id))
    }

    /// Where the bytes of a message go that begin at `offset`: as many of `length` as lie in one piece.
    pub fn destination(&mut self, id: ArrivalId, offset: u64, length: u64) -> Result<Destination<'_, M>, Fault> {
        let Some(arriving) = self.arrivals.get_mut(id.0) else { return Ok(Destination::Nowhere) };
        let end = offset.checked_add(length).ok_or(Fault::OutOfBounds)?;
        if end > u64::from(arriving.envelope.length) {
            return Err(Fault::OutOfBounds);
        }
        match &mut arriving.place {
            ArrivalPlace::Receive(target) => {
                let piece = self.memory.local(target.local, target.offset + offset, length)?.first(length);
                Ok(Destination::Memory(&mut self.memory, piece))
            }
            ArrivalPlace::Unexpected { bytes, .. } => {
                let room = bytes.get_mut(offset as usize..end as usize);
                room.map(Destination::Bytes).ok_or(Fault::OutOfBounds)
            }
            ArrivalPlace::Waiting(_) | ArrivalPlace::Discard => Ok(Destination::Nowhere),
        }
    }

    /// Puts a part of a message where it belongs.
    pub fn place(&mut self, id: ArrivalId, offset: u64, payload: &impl Payload<M>) -> Result<(), Fault> {
        let (mut done, length) = (0, payload.length());
        while done < length {
            let placed = match self.destination(id, offset + done as u64, (length - done) as u64)? {
                Destination::Memory(memory, piece) => {
                    payload.place(memory, piece, done)?;
                    piece.length as usize
                }
                Destination::Bytes(bytes) => {
                    payload.keep(done, bytes)?;
                    bytes.len()
                }
                Destination::Nowhere => return Ok(()),
            };
            if placed == 0 {
                return Err(Fault::OutOfBounds);
            }
            done += placed;
        }
        Ok(())
    }

    /// The buffer that a message goes into, and where in it; `None` while it has none.
    pub fn target_of(&self, id: ArrivalId) -> Option<(LocalKey, u64)> {
        match self.arrivals.get(id.0)?.place {
            ArrivalPlace::Receive(target) => Some((target.local, target.offset)),
            _ => None,
        }
    }

    /// Whether a message still waits at its sender for a receive.
    pub(crate) fn is_waiting(&self, id: ArrivalId) -> bool {
        self.arrivals.get(id.0).is_some_and(Arriving::is_waiting)
    }

    /// All bytes of a message are there, or no more will come. True: a receive has it, whose user is told now, or after the
    /// messages before it.
    pub fn end(&mut self, id: ArrivalId, result: Result<(), Failure>) -> bool {
        let Some(arriving) = self.arrivals.remove(id.0) else { return false };
        let envelope = arriving.envelope;
        let mut tell = None;
        if let SendMode::Rendezvous { transport, token } = arriving.mode {
            // The number will be another message's.
            self.decided_of(transport).retain(|(index, _)| *index != id.0);
            tell = (transport == Transport::Packets).then_some(token);
        }
        match arriving.place {
            ArrivalPlace::Receive(target) => {
                self.complete_receive(&envelope, &RecvTarget { tell, ..target }, result);
                return true;
            }
            ArrivalPlace::Unexpected { bytes, target: Some(target), .. } => {
                let result = result.and_then(|()| {
                    write_local(&mut self.memory, target.local, target.offset, &bytes).map_err(|_| Failure::LocalFault)
                });
                self.recycle(bytes);
                self.complete_receive(&envelope, &target, result);
                return true;
            }
            ArrivalPlace::Unexpected { bytes, id, target: None } => match self.unexpected_mut(&envelope, id) {
                Some(waiting) if result.is_ok() => waiting.body = Body::Whole(bytes),
                _ => {
                    self.forget_unexpected(&envelope, id);
                    self.recycle(bytes);
                }
            },
            ArrivalPlace::Waiting(id) => self.forget_unexpected(&envelope, id),
            ArrivalPlace::Discard => {}
        }
        false
    }

    /// A receive takes a message that is arriving, or waits at its sender. A place in the queue is reserved.
    pub(super) fn take_arriving(&mut self, index: u32, target: RecvTarget, fits: bool) {
        let Some(arriving) = self.arrivals.get_mut(index) else { return };
        let (envelope, mode) = (arriving.envelope, arriving.mode);
        let waits = arriving.is_waiting();
        match &mut arriving.place {
            place if fits && waits => *place = ArrivalPlace::Receive(target),
            ArrivalPlace::Unexpected { target: waiting, .. } if fits => *waiting = Some(target),
            place => {
                if let ArrivalPlace::Unexpected { bytes, .. } = core::mem::replace(place, ArrivalPlace::Discard) {
                    self.recycle(bytes);
                }
                self.complete_receive(&envelope, &target, Err(Failure::Truncated));
            }
        }
        if waits {
            self.decide(index, mode, if fits { Decision::Fetch } else { Decision::Refuse(Failure::LengthError) });
        }
    }

    /// A message that is arriving, or waits at its sender, is in another list now.
    pub(super) fn arriving_was_claimed(&mut self, index: u32, claim: u32) {
        if let Some(arriving) = self.arrivals.get_mut(index)
            && let ArrivalPlace::Unexpected { id, .. } | ArrivalPlace::Waiting(id) = &mut arriving.place
        {
            *id = UnexpectedRef::Claimed(claim);
        }
    }

    /// Nobody shall have a message that is arriving, or waits at its sender.
    pub(super) fn discard_arriving(&mut self, index: u32) {
        let Some(arriving) = self.arrivals.get_mut(index) else { return };
        let mode = arriving.mode;
        match core::mem::replace(&mut arriving.place, ArrivalPlace::Discard) {
            ArrivalPlace::Unexpected { bytes, .. } => self.recycle(bytes),
            ArrivalPlace::Waiting(_) => self.decide(index, mode, Decision::Discard),
            ArrivalPlace::Receive(_) | ArrivalPlace::Discard => {}
        }
    }

    fn decide(&mut self, index: u32, mode: SendMode, decision: Decision) {
        if let SendMode::Rendezvous { transport, .. } = mode {
            self.decided_of(transport).push_back((index, decision));
        }
    }

    fn decided_of(&mut self, transport: Transport) -> &mut alloc::collections::VecDeque<(u32, Decision)> {
        let [packets, shm] = &mut self.decided;
        match transport {
            Transport::Packets => packets,
            Transport::Shm => shm,
        }
    }

    /// The next message of a transport that had to wait at its sender and need not any more.
    pub fn poll_decided(&mut self, transport: Transport) -> Option<Decided> {
        while let Some((index, decision)) = self.decided_of(transport).pop_front() {
            if let Some(Arriving { mode: SendMode::Rendezvous { token, .. }, .. }) = self.arrivals.get(index) {
                return Some(Decided { id: ArrivalId(index), token: *token, decision });
            }
        }
        None
    }

    /// Whether [`Delivery::poll_decided`] has something.
    #[inline]
    pub fn has_decided(&self, transport: Transport) -> bool {
        let [packets, shm] = &self.decided;
        !match transport {
            Transport::Packets => packets.is_empty(),
            Transport::Shm => shm.is_empty(),
        }
    }

    /// The next message that had waited at a sender reached by packets, and of which its user has been told.
    pub(crate) fn poll_told(&mut self) -> Option<u64> {
        self.told.pop_front()
    }

    /// Whether [`Delivery::poll_told`] has something.
    #[inline]
    pub(crate) fn has_told(&self) -> bool {
        !self.told.is_empty()
    }

    /// What is arriving has nowhere to go.
    fn close_arrivals(&mut self, failure: Failure, ends: &impl Fn(&Envelope) -> bool) {
        let mut from = 0;
        while let Some(index) = self.arrivals.next_from(from) {
            from = index + 1;
            let Some(arriving) = self.arrivals.get_mut(index) else { continue };
            if !ends(&arriving.envelope) {
                continue;
            }
            let (envelope, mode) = (arriving.envelope, arriving.mode);
            match core::mem::replace(&mut arriving.place, ArrivalPlace::Discard) {
                ArrivalPlace::Receive(target) => self.complete_receive(&envelope, &target, Err(failure)),
                ArrivalPlace::Unexpected { bytes, id, target } => {
                    self.recycle(bytes);
                    match target {
                        Some(target) => self.complete_receive(&envelope, &target, Err(failure)),
                        None => self.forget_unexpected(&envelope, id),
                    }
                }
                ArrivalPlace::Waiting(id) => {
                    self.forget_unexpected(&envelope, id);
                    self.decide(index, mode, Decision::Refuse(Failure::Aborted));
                }
                ArrivalPlace::Discard => {}
            }
        }
    }

    /// Messages for an endpoint, or for those that share its receives, end: matched, arriving, waiting and claimed ones.
    pub(crate) fn end_messages(&mut self, endpoint: EndpointId, failure: Failure, ends: &impl Fn(&Envelope) -> bool) {
        self.close_arrivals(failure, ends);
        for tagged in [false, true] {
            let Some((_, unexpected)) = self.lists_of(endpoint, tagged) else { return };
            let ending = unexpected.iter().filter(|(_, message)| ends(&message.envelope));
            let ending: Vec<UnexpectedId> = ending.map(|(id, _)| id).collect();
            for id in ending {
                let Some((_, unexpected)) = self.lists_of(endpoint, tagged) else { return };
                if let Some(message) = unexpected.remove(id) {
                    self.drop_message(message);
                }
            }
        }
        self.close_claims(ends);
    }

    /// A buffer of a message that waited is free.
    pub(super) fn recycle(&mut self, bytes: Vec<u8>) {
        if self.unexpected_bytes >= self.config.unexpected_max_bytes / 2 {
            self.note_freed(Freed::Shared);
        }
        self.unexpected_bytes = self.unexpected_bytes.saturating_sub(bytes.len());
        self.spare.give(bytes);
    }
}
