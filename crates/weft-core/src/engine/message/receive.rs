//! Receives: posted, matched, cancelled; multi-receive buffers.

use super::*;

impl<M: Memory> Engine<M> {
    /// Takes a buffer for messages. A message that waits is taken at once.
    #[inline]
    pub fn post_receive(&mut self, now: Time, receive: &Receive) -> Result<(), PostError> {
        let length = self.memory.local_length(receive.local).unwrap_or(0);
        if self.enlist_simply(receive, length) { Ok(()) } else { self.post_receive_anyhow(now, *receive) }
    }

    /// The usual case of [`Engine::post_receive`], step by step in one place: no message waits for it, nor does a sender, so
    /// that it needs no time. `length` is that of the local buffer. False: it is another case, or wrong, and nothing was
    /// changed.
    #[inline(always)]
    pub fn enlist_simply(&mut self, receive: &Receive, length: u64) -> bool {
        let special = receive.multi.is_some() || receive.counter.is_some() || receive.announce;
        let inside = receive.offset.checked_add(receive.length).is_some_and(|end| end <= length);
        if special || self.credits_owed || !inside {
            return false;
        }
        let source = match receive.source {
            None => None,
            Some(peer) => match self.addresses.source(peer) {
                None => return false,
                source => source,
            },
        };
        let Some(Some(endpoint)) = self.endpoints.get_mut(receive.endpoint.0 as usize) else { return false };
        if endpoint.kind != EndpointKind::Reliable || endpoint.receives_at.is_some() {
            return false;
        }
        let (posted, unexpected) = lists(endpoint, receive.tagged);
        let (tag, ignore) = if receive.tagged { (receive.tag, receive.ignore) } else { (0, 0) };
        let item = PostedReceive::new(receive, None);
        unexpected.is_empty() && posted.post(source, tag, ignore, item).is_ok()
    }

    #[inline(never)]
    fn post_receive_anyhow(&mut self, now: Time, receive: Receive) -> Result<(), PostError> {
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
            self.kept_counters.insert(counter);
        }
        let result = match receive.multi {
            _ if receive.announce => self.post_announced(receive, source),
            Some(least) => self.post_multi(now, receive, source, least),
            None => self.post_single(now, receive, source),
        };
        if result.is_ok() {
            self.grant_credits_of(id);
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
        if receive.tagged && datagrams || endpoint.receives_at.is_some() {
            return Err(PostError::NotSupported);
        }
        match receive.source {
            Some(peer) => self.addresses.source(peer).map(Some).ok_or(PostError::NoSuchPeer),
            None => Ok(None),
        }
    }

    /// Reports a receive that could not be posted. False: the queue has no room for that.
    pub fn reject_receive(&mut self, receive: &Receive, failure: Failure) -> bool {
        let queue = self.endpoint(receive.endpoint).and_then(|endpoint| endpoint.bindings.receive_queue);
        let room = self.reserve(queue);
        if room {
            self.cancelled(receive.endpoint, &PostedReceive::new(receive, None), failure);
        }
        room
    }

    pub(super) fn post_single(
        &mut self,
        now: Time,
        receive: &Receive,
        source: Option<SourceId>,
    ) -> Result<(), PostError> {
        let landing = Landing::of(receive);
        if let Some(found) = self.find_unexpected(receive, source) {
            return self.take_unexpected(now, receive, found, landing);
        }
        self.enlist(receive, source, None)
    }

    pub(super) fn post_multi(
        &mut self,
        now: Time,
        receive: &Receive,
        source: Option<SourceId>,
        least: u64,
    ) -> Result<(), PostError> {
        let shared = Shared::new(receive);
        let Some(first) = self.find_unexpected(receive, source) else {
            let index = self.shared.insert(shared);
            return self.enlist(receive, source, Some(index));
        };
        // A place for the return of the buffer, should a message that it must not pass over have to wait.
        let queue = self.queue_of_unexpected(receive, first);
        if !self.reserve(queue) {
            return Err(PostError::CompletionQueueFull);
        }
        let index = self.shared.insert(shared);
        let mut taken = false;
        while let Some(found) = self.find_unexpected(receive, source) {
            let Some((length, from)) = self.unexpected_length(receive, found) else { break };
            let Some(shared) = self.shared.get_mut(index) else { break };
            let used = shared.used;
            let mut refused = (length > receive.length - used && taken).then_some(PostError::QueueFull);
            if refused.is_none() {
                let landing = shared.land(index, from, length, receive.length);
                // The last message that it takes gives it back.
                shared.retired = receive.length - shared.used < least;
                let last = shared.retired;
                refused = self.take_unexpected(now, receive, found, landing).err();
                if refused.is_none() && last {
                    self.unreserve(queue);
                    return Ok(());
                }
                if refused.is_some()
                    && let Some(shared) = self.shared.get_mut(index)
                {
                    shared.unland(used);
                }
            }
            if let Some(error) = refused {
                return self.give_back_shared(index, queue, taken, error);
            }
            taken = true;
        }
        self.unreserve(queue);
        self.enlist(receive, source, Some(index))
    }

    /// A multi-receive buffer cannot take a message that waits: it is not posted, or goes back with what it has got.
    pub(super) fn give_back_shared(
        &mut self,
        index: u32,
        queue: Option<crate::event::QueueId>,
        taken: bool,
        error: PostError,
    ) -> Result<(), PostError> {
        let idle = self.shared.get(index).is_none_or(|shared| shared.pending == 0);
        if taken && idle {
            self.release_shared(index, queue);
            return Ok(());
        }
        self.unreserve(queue);
        if taken {
            self.retire(index);
            return Ok(());
        }
        self.shared.remove(index);
        Err(error)
    }

    pub(super) fn enlist(
        &mut self,
        receive: &Receive,
        source: Option<SourceId>,
        shared: Option<u32>,
    ) -> Result<(), PostError> {
        let (posted, _) = self.lists_of(receive.endpoint, receive.tagged).ok_or(PostError::NoSuchEndpoint)?;
        let (tag, ignore) = if receive.tagged { (receive.tag, receive.ignore) } else { (0, 0) };
        let posted = posted.post(source, tag, ignore, PostedReceive::new(receive, shared));
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
    pub(super) fn queue_of_unexpected(&mut self, receive: &Receive, id: UnexpectedId) -> Option<crate::event::QueueId> {
        let (_, unexpected) = self.lists_of(receive.endpoint, receive.tagged)?;
        let endpoint = unexpected.get(id)?.envelope.endpoint;
        self.endpoint(endpoint)?.bindings.receive_queue
    }

    /// Gives a waiting message to a receive.
    pub(super) fn take_unexpected(
        &mut self,
        now: Time,
        receive: &Receive,
        id: UnexpectedId,
        landing: Landing,
    ) -> Result<(), PostError> {
        let queue = self.queue_of_unexpected(receive, id);
        if !self.entries.has_room(2) {
            return Err(PostError::QueueFull);
        }
        if !self.reserve(queue) {
            return Err(PostError::CompletionQueueFull);
        }
        match self.lists_of(receive.endpoint, receive.tagged).and_then(|(_, unexpected)| unexpected.remove(id)) {
            Some(message) => self.give(now, message, landing),
            None => self.unreserve(queue),
        }
        Ok(())
    }

    /// Gives a message that waited to a receive. A place in the queue is reserved, and there is room for the commands
    /// that fetching it takes.
    pub(super) fn give(&mut self, now: Time, message: UnexpectedMessage, landing: Landing) {
        let envelope = message.envelope;
        let fits = u64::from(envelope.length) <= landing.room;
        match message.body {
            Body::Whole(bytes) => {
                let result = if fits {
                    let piece = Segment { address: landing.offset, length: bytes.len() as u64 };
                    let written = write_local(&mut self.memory, landing.local, [piece].into_iter(), &bytes);
                    written.map_err(|_| Failure::LocalFault)
                } else {
                    Err(Failure::Truncated)
                };
                self.recycle(bytes);
                self.complete_receive(&envelope, &landing, result);
            }
            Body::Partial(transaction) => {
                let Some(arriving) = self.messages.get_mut(&transaction) else { return };
                if fits {
                    if let Place::Unexpected { landing: waiting, .. } = &mut arriving.place {
                        *waiting = Some(landing);
                    }
                } else {
                    let place = core::mem::replace(&mut arriving.place, Place::Discard);
                    if let Place::Unexpected { bytes, .. } = place {
                        self.recycle(bytes);
                    }
                    self.complete_receive(&envelope, &landing, Err(Failure::Truncated));
                }
            }
            Body::Arriving(index) => self.take_arriving(index, landing, fits),
            Body::Rendezvous { key, address } => self.begin_pull(now, envelope, landing, key, address),
            Body::Lost => self.complete_receive(&envelope, &landing, Err(Failure::Aborted)),
        }
    }

    pub(in crate::engine) fn recycle(&mut self, mut bytes: Vec<u8>) {
        self.credits_due |= self.credits_owed && self.unexpected_bytes >= self.config.unexpected_max_bytes / 2;
        self.unexpected_bytes = self.unexpected_bytes.saturating_sub(bytes.len());
        if self.spare.len() < SPARE_MAX && bytes.capacity() <= SPARE_MAX_BYTES {
            bytes.clear();
            self.spare.push(bytes);
        }
    }

    pub(in crate::engine) fn cancel_receive(&mut self, endpoint: EndpointId, context: u64) -> bool {
        for tagged in [false, true] {
            let Some(state) = self.endpoint_mut(endpoint) else { return false };
            let queue = state.bindings.receive_queue;
            let (posted, _) = lists(state, tagged);
            let Some(id) = posted.find(|posted| posted.receive.context == context) else { continue };
            if !self.reserve(queue) {
                return false;
            }
            let removed = self.endpoint_mut(endpoint).and_then(|state| lists(state, tagged).0.remove(id));
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
        if let Some(index) = posted.shared {
            flags = CompletionFlags::of_multi(true);
            match self.shared.get_mut(index) {
                Some(shared) if shared.pending > 0 => {
                    shared.retired = true;
                    local = LocalKey::NONE;
                    flags = CompletionFlags::MULTI;
                }
                _ => drop(self.shared.remove(index)),
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
            return self.push(queue, completion);
        }
        self.unreserve(queue);
        if local != LocalKey::NONE {
            self.memory.release(local);
        }
    }

    /// Everything of an endpoint that receives ends, and everything of others that is received by its receives.
    pub(in crate::engine) fn close_receives(&mut self, now: Time, id: EndpointId) {
        let sharers: Vec<EndpointId> = self.sharers_of(id).collect();
        self.end_messages(now, id, Failure::Closed, &|envelope| {
            envelope.endpoint == id || sharers.contains(&envelope.endpoint)
        });
        for tagged in [false, true] {
            loop {
                let Some(endpoint) = self.endpoint_mut(id) else { return };
                let queue = endpoint.bindings.receive_queue;
                let (posted, _) = lists(endpoint, tagged);
                let Some(posted) = posted.find(|_| true).and_then(|first| posted.remove(first)) else { break };
                if self.reserve(queue) {
                    self.cancelled(id, &posted, Failure::Closed);
                } else if posted.shared.and_then(|index| self.shared.remove(index)).is_none_or(|s| s.pending == 0) {
                    self.release_local(posted.receive.local);
                }
            }
        }
        // From now on they have receives of their own.
        for sharer in sharers {
            self.sharers.remove(&(id, sharer));
            if let Some(sharer) = self.endpoint_mut(sharer) {
                sharer.receives_at = None;
            }
        }
    }

    /// Messages for an endpoint, or for those that share its receives, end: matched, arriving, waiting and claimed ones.
    pub(in crate::engine) fn end_messages(
        &mut self,
        now: Time,
        endpoint: EndpointId,
        failure: Failure,
        ends: &impl Fn(&Envelope) -> bool,
    ) {
        // Those whose message is being fetched hold places in the queue: they end while it is known which queue that is.
        self.end_pulls(now, failure, ends);
        // Writes need no receive: those to another endpoint go on.
        let is_ending = |message: &Message| {
            let write = matches!(message.place, Place::Write { .. });
            ends(&message.envelope) && (message.envelope.endpoint == endpoint || !write)
        };
        let arriving = self.messages.iter().filter(|(_, message)| is_ending(message));
        let arriving: Vec<TransactionId> = arriving.map(|(id, _)| *id).collect();
        for transaction in arriving {
            self.abort_message(transaction, failure);
        }
        self.end_pulls(now, failure, ends);
        self.close_arrivals(failure, ends);
        for tagged in [false, true] {
            let Some((_, unexpected)) = self.lists_of(endpoint, tagged) else { return };
            let ending = unexpected.iter().filter(|(_, message)| ends(&message.envelope));
            let ending: Vec<UnexpectedId> = ending.map(|(id, _)| id).collect();
            for id in ending {
                let Some((_, unexpected)) = self.lists_of(endpoint, tagged) else { return };
                if let Some(message) = unexpected.remove(id) {
                    self.drop_message(now, message);
                }
            }
        }
        self.close_claims(now, ends);
    }

    fn end_pulls(&mut self, now: Time, failure: Failure, ends: &impl Fn(&Envelope) -> bool) {
        let is_ending = |entry: &crate::reliable::entry::Entry| {
            entry.command.operation == Operation::Pull
                && self.pulls.get(entry.purpose).is_some_and(|pull| ends(&pull.envelope))
        };
        let pulls: Vec<u16> =
            self.entries.handles().filter(|(_, entry)| is_ending(entry)).map(|(handle, _)| handle).collect();
        for handle in pulls {
            self.finish(now, handle, Err(failure));
        }
    }

    pub(super) fn release_local(&mut self, local: LocalKey) {
        if local != LocalKey::NONE {
            self.memory.release(local);
        }
    }
}
