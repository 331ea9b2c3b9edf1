//! Receives: posted, matched, cancelled; multi-receive buffers.

use alloc::vec::Vec;

use super::endpoint::{EndpointKind, lists};
use super::matched::{RecvTarget, write_local};
use super::{Delivery, Envelope, Freed};
use crate::address::SourceId;
use crate::command::{EndpointId, PostError, Receive};
use crate::delivery::matching::UnexpectedId;
use crate::event::{Completion, CompletionFlags, CompletionKind, Failure, QueueId};
use crate::memory::{LocalKey, Memory};

/// A receive in the list of its endpoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct PostedReceive {
    pub(super) receive: Receive,
    /// Of multi-receive: what its messages share.
    pub(super) multi: Option<u32>,
    /// Nothing about it is special.
    plain: bool,
}

impl PostedReceive {
    #[inline(always)]
    fn new(receive: &Receive, multi: Option<u32>) -> PostedReceive {
        let plain = multi.is_none() && receive.counter.is_none() && !(receive.silent || receive.announce);
        PostedReceive { receive: *receive, multi, plain }
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
pub(super) struct MultiReceive {
    pub(super) receive: Receive,
    pub(super) used: u64,
    /// Messages on their way into it.
    pub(super) pending: u32,
    /// Takes no more.
    pub(super) retired: bool,
    /// Those messages, in the order in which they matched.
    messages: Vec<BufferedMessage>,
    /// Messages that have matched.
    turn: u32,
}

/// A message on its way into a multi-receive buffer. Programs that take messages one behind the other expect those of one
/// source in order: one that is complete is not reported before an earlier one of its source.
#[derive(Debug)]
struct BufferedMessage {
    turn: u32,
    source: SourceId,
    ended: Option<(Envelope, RecvTarget, Result<(), Failure>)>,
}

impl MultiReceive {
    fn new(receive: &Receive) -> MultiReceive {
        MultiReceive { receive: *receive, used: 0, pending: 0, retired: false, messages: Vec::new(), turn: 0 }
    }

    /// The place for a message of this length, which is taken.
    pub(super) fn add(&mut self, index: u32, source: SourceId, length: u64, room: u64) -> RecvTarget {
        self.turn = self.turn.wrapping_add(1);
        self.messages.push(BufferedMessage { turn: self.turn, source, ended: None });
        let target = RecvTarget {
            offset: self.receive.offset + self.used,
            room: room - self.used,
            multi: Some(index),
            turn: self.turn,
            ..RecvTarget::of(&self.receive)
        };
        self.used = (self.used + length).min(room);
        self.pending += 1;
        target
    }

    /// The last message that was added is not, after all.
    fn remove_last(&mut self, used: u64) {
        self.messages.pop();
        (self.pending, self.used, self.retired) = (self.pending - 1, used, false);
    }

    /// A message is complete, or will not be.
    pub(super) fn end(&mut self, envelope: &Envelope, target: &RecvTarget, result: Result<(), Failure>) {
        if let Some(message) = self.messages.iter_mut().find(|message| message.turn == target.turn) {
            message.ended = Some((*envelope, *target, result));
        }
    }

    /// The next message of a source that can be reported.
    pub(super) fn next_ended(&mut self, source: SourceId) -> Option<(Envelope, RecvTarget, Result<(), Failure>)> {
        let at = self.messages.iter().position(|message| message.source == source)?;
        self.messages.get(at)?.ended.as_ref()?;
        self.messages.remove(at).ended
    }
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
    /// Still arriving, or waits at its sender.
    Arriving(u32),
    /// Was claimed while it arrived, and did not come.
    Lost,
}

impl<M: Memory> Delivery<M> {
    /// Takes a buffer for messages. A message that waits is taken at once.
    #[inline]
    pub fn post_receive(&mut self, receive: &Receive) -> Result<(), PostError> {
        let length = self.memory.local_length(receive.local).unwrap_or(0);
        if self.post_receive_fast(receive, length) { Ok(()) } else { self.post_receive_slow(*receive) }
    }

    /// The usual case of [`Delivery::post_receive`], step by step in one place: no message waits for it, nor does a sender, so
    /// that it needs no time. `length` is that of the local buffer. False: it is another case, or wrong, and nothing was
    /// changed.
    #[inline(always)]
    pub fn post_receive_fast(&mut self, receive: &Receive, length: u64) -> bool {
        let special = receive.multi.is_some() || receive.counter.is_some() || receive.announce;
        let inside = receive.offset.checked_add(receive.length).is_some_and(|end| end <= length);
        if special || self.watches_room || !inside {
            return false;
        }
        let source = match receive.source {
            None => None,
            Some(peer) => match self.addresses.source(peer) {
                None => return false,
                source => source,
            },
        };
        let Some(endpoint) = self.endpoints.get_mut(receive.endpoint) else { return false };
        if endpoint.kind != EndpointKind::Reliable || endpoint.srx.is_some() {
            return false;
        }
        let (posted, unexpected) = lists(endpoint, receive.tagged);
        let (tag, ignore) = if receive.tagged { (receive.tag, receive.ignore) } else { (0, 0) };
        let item = PostedReceive::new(receive, None);
        unexpected.is_empty() && posted.post(source, tag, ignore, item).is_ok()
    }

    #[inline(never)]
    fn post_receive_slow(&mut self, receive: Receive) -> Result<(), PostError> {
        let receive = &receive;
        let id = receive.endpoint;
        let endpoint = self.endpoint(id).ok_or(PostError::NoSuchEndpoint)?;
        let posted = if receive.tagged { &endpoint.tagged_posted } else { &endpoint.posted };
        if posted.len() >= posted.capacity() {
            return Err(PostError::QueueFull);
        }
        self.check_local(receive.local, receive.offset, receive.length)?;
        let source = self.source_wanted(receive)?;
        if let Some(counter) = receive.counter {
            self.events.keep_counter(counter);
        }
        let result = match receive.multi {
            _ if receive.announce => self.post_announced(receive, source),
            Some(least) => self.post_multi(receive, source, least),
            None => self.post_single(receive, source),
        };
        if result.is_ok() {
            self.note_freed(Freed::Receives(id));
        }
        result
    }

    /// Checks a receive as far as that does not depend on room.
    pub fn check_receive(&self, receive: &Receive) -> Result<(), PostError> {
        self.check_local(receive.local, receive.offset, receive.length)?;
        self.source_wanted(receive).map(|_| ())
    }

    /// Whether messages can be received like that; whose they have to be, if that matters.
    #[inline]
    pub(super) fn source_wanted(&self, receive: &Receive) -> Result<Option<SourceId>, PostError> {
        let endpoint = self.endpoint(receive.endpoint).ok_or(PostError::NoSuchEndpoint)?;
        let datagrams = endpoint.kind == EndpointKind::Datagram;
        if receive.tagged && datagrams || endpoint.srx.is_some() {
            return Err(PostError::NotSupported);
        }
        match receive.source {
            Some(peer) => self.addresses.source(peer).map(Some).ok_or(PostError::NoSuchPeer),
            None => Ok(None),
        }
    }

    /// Reports a receive that could not be posted. False: the queue has no room for that.
    pub fn reject_receive(&mut self, receive: &Receive, failure: Failure) -> bool {
        let queue = self.receive_queue_of(receive.endpoint);
        let room = self.events.reserve(queue);
        if room {
            self.cancelled(receive.endpoint, &PostedReceive::new(receive, None), failure);
        }
        room
    }

    pub(super) fn post_single(&mut self, receive: &Receive, source: Option<SourceId>) -> Result<(), PostError> {
        let target = RecvTarget::of(receive);
        if let Some(found) = self.find_unexpected(receive, source) {
            return self.take_unexpected(receive, found, target);
        }
        self.list_receive(receive, source, None)
    }

    pub(super) fn post_multi(
        &mut self,
        receive: &Receive,
        source: Option<SourceId>,
        least: u64,
    ) -> Result<(), PostError> {
        let buffer = MultiReceive::new(receive);
        let Some(first) = self.find_unexpected(receive, source) else {
            let index = self.multi_receives.insert(buffer);
            return self.list_receive(receive, source, Some(index));
        };
        // A place for the return of the buffer, should a message that it must not pass over have to wait.
        let queue = self.queue_of_unexpected(receive, first);
        if !self.events.reserve(queue) {
            return Err(PostError::CompletionQueueFull);
        }
        let index = self.multi_receives.insert(buffer);
        let mut taken = false;
        while let Some(found) = self.find_unexpected(receive, source) {
            let Some((length, from)) = self.unexpected_length(receive, found) else { break };
            let Some(buffer) = self.multi_receives.get_mut(index) else { break };
            let used = buffer.used;
            let mut refused = (length > receive.length - used && taken).then_some(PostError::QueueFull);
            if refused.is_none() {
                let target = buffer.add(index, from, length, receive.length);
                // The last message that it takes gives it back.
                buffer.retired = receive.length - buffer.used < least;
                let last = buffer.retired;
                refused = self.take_unexpected(receive, found, target).err();
                if refused.is_none() && last {
                    self.unreserve(queue);
                    return Ok(());
                }
                if refused.is_some()
                    && let Some(buffer) = self.multi_receives.get_mut(index)
                {
                    buffer.remove_last(used);
                }
            }
            if let Some(error) = refused {
                return self.give_back_multi(index, queue, taken, error);
            }
            taken = true;
        }
        self.unreserve(queue);
        self.list_receive(receive, source, Some(index))
    }

    /// A multi-receive buffer cannot take a message that waits: it is not posted, or goes back with what it has got.
    pub(super) fn give_back_multi(
        &mut self,
        index: u32,
        queue: Option<QueueId>,
        taken: bool,
        error: PostError,
    ) -> Result<(), PostError> {
        let idle = self.multi_receives.get(index).is_none_or(|buffer| buffer.pending == 0);
        if taken && idle {
            self.release_multi(index, queue);
            return Ok(());
        }
        self.unreserve(queue);
        if taken {
            if let Some(buffer) = self.multi_receives.get_mut(index) {
                buffer.retired = true;
            }
            return Ok(());
        }
        self.multi_receives.remove(index);
        Err(error)
    }

    pub(super) fn list_receive(
        &mut self,
        receive: &Receive,
        source: Option<SourceId>,
        multi: Option<u32>,
    ) -> Result<(), PostError> {
        let (posted, _) = self.lists_of(receive.endpoint, receive.tagged).ok_or(PostError::NoSuchEndpoint)?;
        let (tag, ignore) = if receive.tagged { (receive.tag, receive.ignore) } else { (0, 0) };
        let posted = posted.post(source, tag, ignore, PostedReceive::new(receive, multi));
        posted.map(|_| ()).map_err(|_| PostError::QueueFull)
    }

    pub(super) fn find_unexpected(&mut self, receive: &Receive, source: Option<SourceId>) -> Option<UnexpectedId> {
        let (_, unexpected) = self.lists_of(receive.endpoint, receive.tagged)?;
        let (tag, ignore) = if receive.tagged { (receive.tag, receive.ignore) } else { (0, 0) };
        unexpected.first(source, tag, ignore)
    }

    /// The length of a waiting message, and whose it is.
    pub(super) fn unexpected_length(&mut self, receive: &Receive, id: UnexpectedId) -> Option<(u64, SourceId)> {
        let (_, unexpected) = self.lists_of(receive.endpoint, receive.tagged)?;
        unexpected.get(id).map(|message| (u64::from(message.envelope.length), message.envelope.source_id))
    }

    /// Where a waiting message is reported.
    pub(super) fn queue_of_unexpected(&mut self, receive: &Receive, id: UnexpectedId) -> Option<QueueId> {
        let (_, unexpected) = self.lists_of(receive.endpoint, receive.tagged)?;
        let endpoint = unexpected.get(id)?.envelope.endpoint;
        self.endpoint(endpoint)?.bindings.receive_queue
    }

    /// Gives a waiting message to a receive.
    pub(super) fn take_unexpected(
        &mut self,
        receive: &Receive,
        id: UnexpectedId,
        target: RecvTarget,
    ) -> Result<(), PostError> {
        let queue = self.queue_of_unexpected(receive, id);
        if !self.events.reserve(queue) {
            return Err(PostError::CompletionQueueFull);
        }
        match self.lists_of(receive.endpoint, receive.tagged).and_then(|(_, unexpected)| unexpected.remove(id)) {
            Some(message) => self.give(message, target),
            None => self.unreserve(queue),
        }
        Ok(())
    }

    /// Gives a message that waited to a receive. A place in the queue is reserved.
    pub(super) fn give(&mut self, message: UnexpectedMessage, target: RecvTarget) {
        let envelope = message.envelope;
        let fits = u64::from(envelope.length) <= target.room;
        let result = match message.body {
            Body::Whole(bytes) => {
                let result = if fits {
                    let written = write_local(&mut self.memory, target.local, target.offset, &bytes);
                    written.map_err(|_| Failure::LocalFault)
                } else {
                    Err(Failure::Truncated)
                };
                self.recycle(bytes);
                result
            }
            Body::Arriving(index) => return self.take_arriving(index, target, fits),
            Body::Lost => Err(Failure::Aborted),
        };
        self.complete_receive(&envelope, &target, result);
    }

    pub(crate) fn cancel_receive(&mut self, endpoint: EndpointId, context: u64) -> bool {
        for tagged in [false, true] {
            let Some(state) = self.endpoints.get_mut(endpoint) else { return false };
            let queue = state.bindings.receive_queue;
            let (posted, _) = lists(state, tagged);
            let Some(id) = posted.find(|posted| posted.receive.context == context) else { continue };
            if !self.events.reserve(queue) {
                return false;
            }
            let removed = self.endpoints.get_mut(endpoint).and_then(|state| lists(state, tagged).0.remove(id));
            if let Some(posted) = removed {
                self.cancelled(endpoint, &posted, Failure::Cancelled);
            }
            return true;
        }
        false
    }

    /// Reports a receive that got nothing. A place in the queue is reserved.
    pub(super) fn cancelled(&mut self, endpoint: EndpointId, posted: &PostedReceive, failure: Failure) {
        let bindings = self.endpoint(endpoint).map(|endpoint| endpoint.bindings).unwrap_or_default();
        let queue = bindings.receive_queue;
        let silenced = self.endpoint(endpoint).is_some_and(|endpoint| endpoint.silenced);
        if failure != Failure::Closed && !silenced {
            self.count(bindings.receive_counter, false);
        }
        self.count(posted.receive.counter, false);
        let mut local = posted.receive.local;
        let mut flags = CompletionFlags::NONE;
        if let Some(index) = posted.multi {
            flags = CompletionFlags::of_multi(true);
            match self.multi_receives.get_mut(index) {
                Some(buffer) if buffer.pending > 0 => {
                    buffer.retired = true;
                    local = LocalKey::NONE;
                    flags = CompletionFlags::MULTI;
                }
                _ => drop(self.multi_receives.remove(index)),
            }
        }
        let kind = if posted.receive.tagged { CompletionKind::TaggedReceive } else { CompletionKind::Receive };
        let completion = Completion {
            context: posted.receive.context,
            kind,
            flags,
            result: Err(failure),
            length: 0,
            tag: if posted.receive.tagged { posted.receive.tag } else { 0 },
            immediate: None,
            source: None,
            peer: posted.receive.source,
            local,
            results: LocalKey::NONE,
            offset: 0,
        };
        if queue.is_some() && !silenced {
            return self.events.push(queue, &completion);
        }
        self.unreserve(queue);
        self.release_local(local);
    }

    /// The receives of an endpoint end. Messages for it, or for endpoints that share them, have ended.
    pub(crate) fn close_receives(&mut self, id: EndpointId) {
        let sharers: Vec<EndpointId> = self.sharers_of(id).collect();
        for tagged in [false, true] {
            loop {
                let Some(endpoint) = self.endpoints.get_mut(id) else { return };
                let queue = endpoint.bindings.receive_queue;
                let (posted, _) = lists(endpoint, tagged);
                let Some(posted) = posted.find(|_| true).and_then(|first| posted.remove(first)) else { break };
                if self.events.reserve(queue) {
                    self.cancelled(id, &posted, Failure::Closed);
                } else if posted
                    .multi
                    .and_then(|index| self.multi_receives.remove(index))
                    .is_none_or(|s| s.pending == 0)
                {
                    self.release_local(posted.receive.local);
                }
            }
        }
        // From now on they have receives of their own.
        for sharer in sharers {
            self.endpoints.stop_sharing(id, sharer);
        }
    }
}
