//! The hall, as another road sees it: matching, placement and completions for messages that do not come as packets.
//!
//! Inside a node messages come through shared memory, which this engine knows nothing of. Whoever carries them there
//! gives a short message with [`Engine::deliver`]; begins a long one with [`Engine::begin_arrival`], puts its bytes where
//! [`Engine::room`] says, and ends it with [`Engine::end_arrival`]. What its own user posts is checked by
//! [`Engine::admit`] and reported by [`Engine::report`]. Receives match messages of both roads in the order in which
//! they come.

use alloc::vec::Vec;

use weft_wire::transaction::Segment;

use super::message::{Body, Kept, Landing, Matched, UnexpectedMessage, lists, write_local};
use super::{EndpointKind, Engine, Touched};
use crate::address::{Address, AddressVector, PeerId, SourceId};
use crate::command::EndpointId;
use crate::event::{Completion, CompletionFlags, CompletionKind, Entry, Failure};
use crate::limits::SPARE_MAX_BYTES;
use crate::matching::UnexpectedId;
use crate::memory::{Fault, Granted, LocalKey, Memory};

/// A message at the door.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// Whom it is for.
    pub endpoint: EndpointId,
    /// Who sent it.
    pub source: Address,
    /// What matching compares: [`crate::address::AddressVector::source_of`] the source.
    pub source_id: SourceId,
    /// The source's name, as far as the caller knows; looked up when it is wrong.
    pub peer: Option<PeerId>,
    /// With a tag, or without.
    pub tagged: bool,
    /// The tag.
    pub tag: u64,
    /// Immediate data.
    pub immediate: Option<u64>,
    /// Bytes.
    pub length: u32,
}

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

    /// Copies all of them into a buffer that has their length.
    fn keep(&self, into: &mut [u8]);
}

impl<M: Memory> Payload<M> for &[u8] {
    fn length(&self) -> usize {
        self.len()
    }

    fn place(&self, memory: &mut M, to: Granted, offset: usize) -> Result<(), Fault> {
        let part = self.get(offset..).and_then(|rest| rest.get(..to.length as usize));
        memory.write(to, part.ok_or(Fault::OutOfBounds)?)
    }

    fn keep(&self, into: &mut [u8]) {
        into.iter_mut().zip(*self).for_each(|(to, from)| *to = *from);
    }
}

/// What became of a short message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The user has it: it is in the receive that it matched.
    Delivered,
    /// It waits for its receive.
    Kept,
    /// The receive that it matched was too short, and has been told.
    Truncated,
    /// The receive's memory failed, and its user has been told.
    Failed,
    /// There is no room now: bring it again when completions were read.
    NotReady,
    /// The endpoint is closed, or is not for such messages.
    NoSuchEndpoint,
}

/// Names a message that is arriving, until [`Engine::end_arrival`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ArrivalId(u32);

/// How the arrival of a long message begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// Bring the bytes.
    Now(ArrivalId),
    /// No receive wants it yet: [`Engine::poll_matched`] will tell.
    Later(ArrivalId),
    /// The receive that it matched was too short, and has been told.
    Truncated,
    /// There is no room now.
    NotReady,
    /// The endpoint is closed, or is not for such messages.
    NoSuchEndpoint,
}

/// A message that had to wait at its sender, and need not any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatchedArrival {
    /// Which.
    pub id: ArrivalId,
    /// The number that it was begun with.
    pub token: u64,
    /// What is to be done.
    pub verdict: ArrivalVerdict,
}

/// What is to be done with a message that waits at its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArrivalVerdict {
    /// Fetch it.
    Fetch,
    /// Nobody shall have it: tell its sender that it is done, and end it.
    Discard,
    /// Nobody can have it: tell its sender why, and end it.
    Refuse(Failure),
}

/// Where bytes of a message go.
#[derive(Debug)]
pub enum Room<'a, M> {
    /// Into the user's memory; what is behind the piece is asked for again.
    Memory(&'a mut M, Granted),
    /// Into a buffer of the engine.
    Bytes(&'a mut [u8]),
    /// Nobody wants them any more.
    Nowhere,
}

/// A message that is arriving by another road.
#[derive(Debug)]
pub(super) struct Arriving {
    envelope: Arrival,
    token: u64,
    place: Place,
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
    /// Waits at its sender.
    Waiting(Kept),
    /// Nobody wants it any more.
    Discard,
}

/// The name of a source that was not told with its message.
#[cold]
fn find_peer(addresses: &AddressVector, source: SourceId) -> Option<PeerId> {
    addresses.find(source)
}

impl<M: Memory> Engine<M> {
    /// Whether an endpoint takes messages of this kind.
    fn takes(&self, endpoint: EndpointId, kind: EndpointKind) -> bool {
        self.endpoint(endpoint).is_some_and(|endpoint| endpoint.kind == kind)
    }

    /// The endpoint that peers call by a number.
    pub fn endpoint_by_number(&self, number: u32) -> Option<EndpointId> {
        self.endpoint_of.get(&number).copied()
    }

    /// Takes a short message whole.
    #[inline]
    pub fn deliver(&mut self, arrival: &Arrival, payload: &impl Payload<M>) -> Delivery {
        if self.deliver_simply(arrival, payload) { Delivery::Delivered } else { self.deliver_anyhow(arrival, payload) }
    }

    /// The usual case, step by step in one place: a receive of its own waits, has room, and a queue takes its completion.
    /// False: it is another case, and nothing was changed. Not inlined: together with what brings messages it would have more
    /// values than there are registers.
    #[inline(never)]
    fn deliver_simply(&mut self, arrival: &Arrival, payload: &impl Payload<M>) -> bool {
        let Some(Some(endpoint)) = self.endpoints.get_mut(arrival.endpoint.0 as usize) else { return false };
        let (counter, queue) = (endpoint.bindings.receive_counter, endpoint.bindings.receive_queue);
        let Some(queue) = queue.and_then(|queue| self.queues.get_mut(queue.0 as usize)) else { return false };
        if endpoint.kind != EndpointKind::Reliable || endpoint.receives_at.is_some() || !queue.has_room() {
            return false;
        }
        let (posted, _) = lists(endpoint, arrival.tagged);
        let Some(id) = posted.first(arrival.source_id, arrival.tag) else { return false };
        let Some((local, offset, context)) = posted.get(id).and_then(|found| found.simple(arrival.length)) else {
            return false;
        };
        let Some(local) = payload.place_at_last(&mut self.memory, local, offset) else { return false };
        posted.discard(id);
        let peer = arrival.peer.filter(|peer| self.addresses.source(*peer) == Some(arrival.source_id));
        let entry = Entry {
            context,
            length: u64::from(arrival.length),
            tag: arrival.tag,
            immediate: arrival.immediate,
            place: 0,
            peer: match peer {
                Some(peer) => Some(peer),
                None => find_peer(&self.addresses, arrival.source_id),
            },
            local,
            kind: if arrival.tagged { CompletionKind::TaggedReceive } else { CompletionKind::Receive },
            flags: CompletionFlags::NONE,
            result: Ok(()),
        };
        queue.push_message(entry, &arrival.source);
        if counter.is_some() {
            self.count(counter, true);
        }
        true
    }

    #[inline(never)]
    fn deliver_anyhow(&mut self, arrival: &Arrival, payload: &impl Payload<M>) -> Delivery {
        if !self.takes(arrival.endpoint, EndpointKind::Reliable) {
            return Delivery::NoSuchEndpoint;
        }
        match self.match_posted(arrival) {
            Matched::Landing(landing) => {
                let written = self.land(&landing, payload);
                self.complete_receive(arrival, &landing, written.map_err(|_| Failure::LocalFault));
                if written.is_ok() { Delivery::Delivered } else { Delivery::Failed }
            }
            Matched::Truncated(landing) => {
                self.complete_receive(arrival, &landing, Err(Failure::Truncated));
                Delivery::Truncated
            }
            Matched::NotReady => Delivery::NotReady,
            Matched::Announce(posted) => {
                let kept = self.keep_whole(arrival, payload);
                self.announce(arrival, posted, kept);
                if kept.is_some() { Delivery::Kept } else { Delivery::NotReady }
            }
            Matched::Nothing => {
                if self.keep_whole(arrival, payload).is_some() {
                    Delivery::Kept
                } else {
                    Delivery::NotReady
                }
            }
        }
    }

    /// Keeps a message until its receive is posted; `None`: there is no room.
    pub(super) fn keep_whole(&mut self, arrival: &Arrival, payload: &impl Payload<M>) -> Option<UnexpectedId> {
        let length = payload.length();
        if self.unexpected_bytes + length > self.config.unexpected_max_bytes {
            return None;
        }
        let mut kept = self.spare.pop().unwrap_or_default();
        kept.resize(length, 0);
        payload.keep(&mut kept);
        let id = self.push_unexpected(*arrival, Body::Whole(kept))?;
        self.unexpected_bytes += length;
        Some(id)
    }

    /// Copies a message into the receive that it matched.
    #[inline]
    fn land(&mut self, landing: &Landing, payload: &impl Payload<M>) -> Result<(), Fault> {
        if payload.place_whole(&mut self.memory, landing.local, landing.offset) {
            return Ok(());
        }
        let (mut done, length) = (0, payload.length() as u64);
        while done < length {
            let piece = self.memory.local(landing.local, landing.offset + done, length - done)?;
            if piece.length == 0 {
                return Err(Fault::OutOfBounds);
            }
            payload.place(&mut self.memory, piece, done as usize)?;
            done += piece.length;
        }
        Ok(())
    }

    /// Takes a datagram: it is lost where nobody waits for it.
    pub fn deliver_datagram(&mut self, arrival: &Arrival, bytes: &[u8]) {
        let matched = if self.takes(arrival.endpoint, EndpointKind::Datagram) {
            self.match_posted(arrival)
        } else {
            Matched::Nothing
        };
        self.land_datagram(arrival, matched, bytes);
    }

    fn push_unexpected(&mut self, envelope: Arrival, body: Body) -> Option<UnexpectedId> {
        let (_, unexpected) = self.lists_of(envelope.endpoint, envelope.tagged)?;
        let message = UnexpectedMessage { envelope, body };
        unexpected.push(envelope.source_id, envelope.tag, message).ok()
    }

    /// Begins a long message. `waits`: it stays at its sender until a receive wants it, and `token` says which it is;
    /// otherwise its bytes come at once, wanted or not.
    pub fn begin_arrival(&mut self, arrival: &Arrival, waits: bool, token: u64) -> Begun {
        if !self.takes(arrival.endpoint, EndpointKind::Reliable) {
            return Begun::NoSuchEndpoint;
        }
        match self.match_posted(arrival) {
            Matched::Landing(landing) => {
                let arriving = Arriving { envelope: *arrival, token, place: Place::Receive(landing) };
                Begun::Now(ArrivalId(self.arrivals.insert(arriving)))
            }
            Matched::Truncated(landing) => {
                self.complete_receive(arrival, &landing, Err(Failure::Truncated));
                Begun::Truncated
            }
            Matched::NotReady => Begun::NotReady,
            Matched::Announce(posted) => {
                let kept = self.keep_arriving(arrival, waits, token);
                self.announce(arrival, posted, kept.map(|(_, id)| id));
                kept.map_or(Begun::NotReady, |(begun, _)| begun)
            }
            Matched::Nothing => self.keep_arriving(arrival, waits, token).map_or(Begun::NotReady, |(begun, _)| begun),
        }
    }

    /// Keeps a place for a message until its receive is posted; `None`: there is no room.
    fn keep_arriving(&mut self, arrival: &Arrival, waits: bool, token: u64) -> Option<(Begun, UnexpectedId)> {
        let length = if waits { 0 } else { arrival.length as usize };
        if self.unexpected_bytes + length > self.config.unexpected_max_bytes {
            return None;
        }
        let index = self.arrivals.insert(Arriving { envelope: *arrival, token, place: Place::Discard });
        let Some(id) = self.push_unexpected(*arrival, Body::Arriving(index)) else {
            self.arrivals.remove(index);
            return None;
        };
        self.unexpected_bytes += length;
        let place = if waits {
            Place::Waiting(Kept::Listed(id))
        } else {
            let mut bytes = self.spare.pop().filter(|_| length <= SPARE_MAX_BYTES).unwrap_or_default();
            bytes.resize(length, 0);
            Place::Unexpected { bytes, id: Kept::Listed(id), landing: None }
        };
        if let Some(arriving) = self.arrivals.get_mut(index) {
            arriving.place = place;
        }
        Some((if waits { Begun::Later(ArrivalId(index)) } else { Begun::Now(ArrivalId(index)) }, id))
    }

    /// Where the bytes of a message go that begin at `offset`: as many of `length` as lie in one piece.
    pub fn room(&mut self, id: ArrivalId, offset: u64, length: u64) -> Result<Room<'_, M>, Fault> {
        let Some(arriving) = self.arrivals.get_mut(id.0) else { return Ok(Room::Nowhere) };
        let end = offset.checked_add(length).ok_or(Fault::OutOfBounds)?;
        if end > u64::from(arriving.envelope.length) {
            return Err(Fault::OutOfBounds);
        }
        match &mut arriving.place {
            Place::Receive(landing) => {
                let piece = self.memory.local(landing.local, landing.offset + offset, length)?;
                Ok(Room::Memory(&mut self.memory, piece))
            }
            Place::Unexpected { bytes, .. } => {
                let room = bytes.get_mut(offset as usize..end as usize);
                room.map(Room::Bytes).ok_or(Fault::OutOfBounds)
            }
            Place::Waiting(_) | Place::Discard => Ok(Room::Nowhere),
        }
    }

    /// The buffer that a message goes into, and where in it; `None` while it has none.
    pub fn landing(&self, id: ArrivalId) -> Option<(LocalKey, u64)> {
        match self.arrivals.get(id.0)?.place {
            Place::Receive(landing) => Some((landing.local, landing.offset)),
            _ => None,
        }
    }

    /// All bytes of a message are there, or no more will come.
    pub fn end_arrival(&mut self, id: ArrivalId, result: Result<(), Failure>) {
        let Some(arriving) = self.arrivals.remove(id.0) else { return };
        if !self.matched.is_empty() {
            // The number will be another message's.
            self.matched.retain(|(index, _)| *index != id.0);
        }
        let envelope = arriving.envelope;
        match arriving.place {
            Place::Receive(landing) => self.complete_receive(&envelope, &landing, result),
            Place::Unexpected { bytes, landing: Some(landing), .. } => {
                let piece = Segment { address: landing.offset, length: bytes.len() as u64 };
                let result = result.and_then(|()| {
                    let written = write_local(&mut self.memory, landing.local, [piece].into_iter(), &bytes);
                    written.map_err(|_| Failure::LocalFault)
                });
                self.recycle(bytes);
                self.complete_receive(&envelope, &landing, result);
            }
            Place::Unexpected { bytes, id, landing: None } => match self.kept_mut(&envelope, id) {
                Some(waiting) if result.is_ok() => waiting.body = Body::Whole(bytes),
                _ => {
                    self.forget_unexpected(&envelope, id);
                    self.recycle(bytes);
                }
            },
            Place::Waiting(id) => self.forget_unexpected(&envelope, id),
            Place::Discard => {}
        }
    }

    /// A receive takes a message that is arriving, or waits at its sender. A place in the queue is reserved.
    pub(super) fn take_arriving(&mut self, index: u32, landing: Landing, fits: bool) {
        let Some(arriving) = self.arrivals.get_mut(index) else { return };
        let envelope = arriving.envelope;
        let waits = matches!(arriving.place, Place::Waiting(_));
        match &mut arriving.place {
            place if fits && waits => *place = Place::Receive(landing),
            Place::Unexpected { landing: waiting, .. } if fits => *waiting = Some(landing),
            place => {
                if let Place::Unexpected { bytes, .. } = core::mem::replace(place, Place::Discard) {
                    self.recycle(bytes);
                }
                self.complete_receive(&envelope, &landing, Err(Failure::Truncated));
            }
        }
        if waits {
            let verdict = if fits { ArrivalVerdict::Fetch } else { ArrivalVerdict::Refuse(Failure::LengthError) };
            self.matched.push_back((index, verdict));
        }
    }

    /// A message that is arriving, or waits at its sender, is in another list now.
    pub(super) fn arriving_was_claimed(&mut self, index: u32, claim: u32) {
        if let Some(arriving) = self.arrivals.get_mut(index)
            && let Place::Unexpected { id, .. } | Place::Waiting(id) = &mut arriving.place
        {
            *id = Kept::Claimed(claim);
        }
    }

    /// Nobody shall have a message that is arriving, or waits at its sender.
    pub(super) fn discard_arriving(&mut self, index: u32) {
        let Some(arriving) = self.arrivals.get_mut(index) else { return };
        match core::mem::replace(&mut arriving.place, Place::Discard) {
            Place::Unexpected { bytes, .. } => self.recycle(bytes),
            Place::Waiting(_) => self.matched.push_back((index, ArrivalVerdict::Discard)),
            Place::Receive(_) | Place::Discard => {}
        }
    }

    /// The next message that had to wait at its sender and need not any more.
    pub fn poll_matched(&mut self) -> Option<MatchedArrival> {
        while let Some((index, verdict)) = self.matched.pop_front() {
            if let Some(arriving) = self.arrivals.get(index) {
                return Some(MatchedArrival { id: ArrivalId(index), token: arriving.token, verdict });
            }
        }
        None
    }

    /// Whether [`Engine::poll_matched`] has something.
    pub fn has_matched(&self) -> bool {
        !self.matched.is_empty()
    }

    /// What is arriving has nowhere to go.
    pub(super) fn close_arrivals(&mut self, failure: Failure, ends: &impl Fn(&Arrival) -> bool) {
        let mut from = 0;
        while let Some(index) = self.arrivals.next_from(from) {
            from = index + 1;
            let Some(arriving) = self.arrivals.get_mut(index) else { continue };
            if !ends(&arriving.envelope) {
                continue;
            }
            let envelope = arriving.envelope;
            match core::mem::replace(&mut arriving.place, Place::Discard) {
                Place::Receive(landing) => self.complete_receive(&envelope, &landing, Err(failure)),
                Place::Unexpected { bytes, id, landing } => {
                    self.recycle(bytes);
                    match landing {
                        Some(landing) => self.complete_receive(&envelope, &landing, Err(failure)),
                        None => self.forget_unexpected(&envelope, id),
                    }
                }
                Place::Waiting(id) => {
                    self.forget_unexpected(&envelope, id);
                    self.matched.push_back((index, ArrivalVerdict::Refuse(Failure::Aborted)));
                }
                Place::Discard => {}
            }
        }
    }

    /// Keeps a place for the completion of a peer's write with immediate data. False: bring it again later.
    pub fn reserve_remote_write(&mut self, endpoint: EndpointId) -> bool {
        let queue = self.endpoint(endpoint).and_then(|endpoint| endpoint.bindings.receive_queue);
        self.reserve(queue)
    }

    /// Gives the place back.
    pub fn unreserve_remote_write(&mut self, endpoint: EndpointId) {
        let queue = self.endpoint(endpoint).and_then(|endpoint| endpoint.bindings.receive_queue);
        self.unreserve(queue);
    }

    /// A peer has written into our memory with this key. With immediate data the user is told, for which a place was
    /// reserved.
    pub fn remote_write(&mut self, arrival: &Arrival, key: u64) {
        let bindings = self.endpoint(arrival.endpoint).map(|endpoint| endpoint.bindings).unwrap_or_default();
        self.count_remote(arrival.endpoint, key, Touched::WRITTEN);
        if arrival.immediate.is_none() {
            return;
        }
        let peer = self.peer_of(arrival);
        self.push(
            bindings.receive_queue,
            Completion {
                context: 0,
                kind: CompletionKind::RemoteWrite,
                flags: CompletionFlags::NONE,
                result: Ok(()),
                length: u64::from(arrival.length),
                tag: 0,
                immediate: arrival.immediate,
                source: Some(arrival.source),
                peer,
                local: LocalKey::NONE,
                results: LocalKey::NONE,
                offset: 0,
            },
        );
    }
}
