//! A message and the receive that it matches: found, and told to the user when the message is complete.

use super::endpoint::lists;
use super::receive::MultiReceive;
use super::{Delivery, Envelope, Freed};
use crate::command::Receive;
use crate::delivery::matching::PostedId;
use crate::event::{Completion, CompletionFlags, CompletionKind, CounterId, Failure, QueueId};
use crate::memory::{Fault, LocalKey, Memory};

/// Where a message goes: a receive that it was matched to.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecvTarget {
    pub(super) local: LocalKey,
    pub(super) offset: u64,
    /// Bytes that fit.
    pub(super) room: u64,
    pub(super) context: u64,
    pub(super) silent: bool,
    /// What its completion says besides.
    pub(super) flags: CompletionFlags,
    /// The multi-receive buffer that it is in.
    pub(super) multi: Option<u32>,
    /// Which of the messages in that buffer.
    pub(super) turn: u32,
    /// The sender waits until the user is told: what its transport calls the message.
    pub(super) tell: Option<u64>,
    pub(super) counter: Option<CounterId>,
}

impl RecvTarget {
    /// All of a receive.
    #[inline]
    pub(super) fn of(receive: &Receive) -> RecvTarget {
        RecvTarget {
            local: receive.local,
            offset: receive.offset,
            room: receive.length,
            context: receive.context,
            silent: receive.silent,
            flags: CompletionFlags::NONE,
            multi: None,
            turn: 0,
            tell: None,
            counter: receive.counter,
        }
    }
}

/// What the posted receives say to a message.
pub(super) enum Matched {
    Target(RecvTarget),
    Truncated(RecvTarget),
    /// It is to be kept, and then announced with [`Delivery::announce`]: for this a place in the queue is reserved.
    Announce(PostedId),
    /// None fits.
    Nothing,
    /// The completion queue has no room.
    NotReady,
}

impl Matched {
    fn target(target: RecvTarget, length: u64) -> Matched {
        if length > target.room { Matched::Truncated(target) } else { Matched::Target(target) }
    }
}

impl<M: Memory> Delivery<M> {
    /// The receive for a message, taken out of its list; a place in the completion queue is reserved.
    pub(super) fn match_posted(&mut self, envelope: &Envelope) -> Matched {
        let source = envelope.source_id;
        let length = u64::from(envelope.length);
        loop {
            let Some(mut endpoint) = self.endpoints.get_mut(envelope.endpoint) else { return Matched::NotReady };
            let queue = endpoint.bindings.receive_queue;
            if let Some(other) = endpoint.srx {
                let Some(other) = self.endpoints.get_mut(other) else { return Matched::NotReady };
                endpoint = other;
            }
            let (posted, _) = lists(endpoint, envelope.tagged);
            let Some(id) = posted.first(source, envelope.tag) else { return Matched::Nothing };
            let Some(found) = posted.get(id) else { return Matched::Nothing };
            if found.receive.announce {
                let full = self.claims.len() >= self.config.unexpected_max;
                return if full || !self.events.reserve(queue) { Matched::NotReady } else { Matched::Announce(id) };
            }
            if found.multi.is_none() {
                // The usual case, without a copy of what is not needed.
                let target = RecvTarget::of(&found.receive);
                if !self.events.reserve(queue) {
                    return Matched::NotReady;
                }
                posted.discard(id);
                return Matched::target(target, length);
            }
            let found = *found;
            if !self.events.reserve(queue) {
                return Matched::NotReady;
            }
            let receive = found.receive;
            let mut take = true;
            let buffer = found.multi.and_then(|index| Some((index, self.multi_receives.get_mut(index)?)));
            let target = match buffer {
                None => RecvTarget::of(&receive),
                Some((index, buffer)) => {
                    let room = receive.length - buffer.used;
                    if length > room && buffer.used > 0 {
                        // It goes into the next buffer, and this one is done.
                        let idle = buffer.pending == 0;
                        buffer.retired = true;
                        self.remove_posted(envelope, id);
                        if idle {
                            self.release_multi(index, queue);
                        } else {
                            self.unreserve(queue);
                        }
                        continue;
                    }
                    let target = buffer.add(index, source, length, receive.length);
                    take = receive.length - buffer.used < receive.multi.unwrap_or(0);
                    buffer.retired |= take;
                    target
                }
            };
            if take {
                self.remove_posted(envelope, id);
            }
            return Matched::target(target, length);
        }
    }

    fn remove_posted(&mut self, envelope: &Envelope, id: PostedId) {
        if let Some((posted, _)) = self.lists_of(envelope.endpoint, envelope.tagged) {
            posted.remove(id);
        }
    }

    /// Gives an idle multi-receive buffer back. A place in the queue is reserved.
    pub(super) fn release_multi(&mut self, index: u32, queue: Option<QueueId>) {
        let Some(MultiReceive { receive, .. }) = self.multi_receives.remove(index) else { return };
        if queue.is_none() {
            self.memory.release(receive.local);
            return;
        }
        self.events.push(
            queue,
            &Completion {
                context: receive.context,
                kind: CompletionKind::BufferReleased,
                flags: CompletionFlags::of_multi(true),
                result: Ok(()),
                length: 0,
                tag: 0,
                immediate: None,
                source: None,
                peer: None,
                local: receive.local,
                results: LocalKey::NONE,
                offset: 0,
            },
        );
    }

    /// Tells the user about a message. The place in the queue was reserved when it was matched.
    pub(super) fn complete_receive(&mut self, envelope: &Envelope, target: &RecvTarget, result: Result<(), Failure>) {
        let Some(index) = target.multi else { return self.report_receive(envelope, target, result) };
        match self.multi_receives.get_mut(index) {
            Some(buffer) => buffer.end(envelope, target, result),
            None => return self.report_receive(envelope, target, result),
        }
        while let Some((envelope, target, result)) =
            self.multi_receives.get_mut(index).and_then(|buffer| buffer.next_ended(envelope.source_id))
        {
            self.report_receive(&envelope, &target, result);
        }
    }

    fn report_receive(&mut self, envelope: &Envelope, target: &RecvTarget, result: Result<(), Failure>) {
        self.told.extend(target.tell);
        let mut local = target.local;
        let mut offset = 0;
        let mut flags = target.flags;
        if let Some(index) = target.multi {
            local = LocalKey::NONE;
            flags = CompletionFlags::MULTI;
            offset = target.offset;
            if let Some(buffer) = self.multi_receives.get_mut(index) {
                buffer.pending -= 1;
                offset -= buffer.receive.offset;
                if buffer.retired && buffer.pending == 0 {
                    local = buffer.receive.local;
                    flags = CompletionFlags::of_multi(true);
                    self.multi_receives.remove(index);
                }
            }
        }
        if target.multi.is_none() && result == Err(Failure::Truncated) {
            offset = target.room;
        }
        let endpoint = self.endpoint(envelope.endpoint);
        let (bindings, silenced) = endpoint.map(|endpoint| (endpoint.bindings, endpoint.silenced)).unwrap_or_default();
        if !silenced {
            self.count(bindings.receive_counter, result.is_ok());
        }
        self.count(target.counter, result.is_ok());
        let queue = bindings.receive_queue;
        let unwanted = target.silent && result.is_ok() && (target.multi.is_none() || local == LocalKey::NONE);
        if unwanted || silenced || queue.is_none() {
            self.unreserve(queue);
            self.note_freed(Freed::Shared);
            self.release_local(local);
            return;
        }
        let peer = self.peer_of(envelope);
        let kind = if envelope.tagged { CompletionKind::TaggedReceive } else { CompletionKind::Receive };
        self.events.push(
            queue,
            &Completion {
                context: target.context,
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

    pub(super) fn release_local(&mut self, local: LocalKey) {
        if local != LocalKey::NONE {
            self.memory.release(local);
        }
    }
}

/// Copies bytes into a local buffer, piece by piece.
pub(crate) fn write_local<M: Memory>(memory: &mut M, key: LocalKey, offset: u64, bytes: &[u8]) -> Result<(), Fault> {
    let mut done = 0;
    while done < bytes.len() {
        let left = (bytes.len() - done) as u64;
        let at = offset.checked_add(done as u64).ok_or(Fault::OutOfBounds)?;
        let piece = memory.local(key, at, left)?.first(left);
        if piece.length == 0 {
            return Err(Fault::OutOfBounds);
        }
        let end = done + piece.length as usize;
        memory.write(piece, bytes.get(done..end).ok_or(Fault::OutOfBounds)?)?;
        done = end;
    }
    Ok(())
}

/// Copies out of a local buffer, piece by piece.
pub(crate) fn read_local<M: Memory>(memory: &M, key: LocalKey, offset: u64, into: &mut [u8]) -> Result<(), Fault> {
    let mut done = 0;
    while done < into.len() {
        let left = (into.len() - done) as u64;
        let piece = memory.local(key, offset + done as u64, left)?.first(left);
        if piece.length == 0 {
            return Err(Fault::OutOfBounds);
        }
        let end = done + piece.length as usize;
        memory.read(piece, into.get_mut(done..end).ok_or(Fault::OutOfBounds)?)?;
        done = end;
    }
    Ok(())
}
