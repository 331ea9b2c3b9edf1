//! Writes of peers into our memory, and datagrams of unreliable endpoints.

use super::*;

impl<M: Memory> Engine<M> {
    pub(in crate::engine) fn execute_write(&mut self, input: &RequestIn<'_>, endpoint: EndpointId) -> Verdict {
        let command = &input.decoded.command;
        let flags = command.flags();
        let notify = flags.contains(Flags::IMMEDIATE);
        let verify = flags.contains(Flags::VERIFY).then(|| command.slot(Slot::Argument2) as u32);
        let bindings = self.endpoint(endpoint).map(|endpoint| endpoint.bindings).unwrap_or_default();
        let length = input.payload.len() as u64;
        let several = length < command.length();
        let counted = notify || verify.is_some() || self.counts_writes(endpoint, command.key());
        let (key, number) = (self.message_key(input, command.message() as u32), command.message() as u32);
        if several && counted {
            let life = self.lives.get(input.life);
            if life.is_some_and(|life| life.refused_message(input.request.source, number).is_some()) {
                return self.refused_again(input, number);
            }
        }
        if let Err(fault) = self.memory.remote(command.key(), command.address(), length, Access::REMOTE_WRITE) {
            return self.refused_write(input, (several && counted).then_some(key), status_of(fault));
        }
        let source = Address { socket: input.request.from, endpoint: input.request.source };
        let envelope = Envelope {
            endpoint,
            source,
            source_id: self.addresses.source_of(source),
            peer: None,
            tagged: false,
            tag: 0,
            immediate: notify.then(|| command.immediate()),
            length: command.length() as u32,
        };
        let mut message = None;
        if several && counted {
            message = self.transactions.by_key(key);
            if message.is_none() {
                if self.transactions.len() >= self.config.transactions_max {
                    return self.not_ready(input, endpoint);
                }
                if notify && !self.reserve(bindings.receive_queue) {
                    return self.not_ready(input, endpoint);
                }
                let start = command.address().wrapping_sub(command.offset());
                let place = Place::Write { key: command.key(), address: start, notify, verify };
                message = self.begin_write(input, key, envelope, place);
            }
            let same = message.and_then(|id| self.messages.get(&id)).is_some_and(|known| {
                let Place::Write { key, address, notify: notifies, verify: verifies } = known.place else {
                    return false;
                };
                key == command.key()
                    && address == command.address().wrapping_sub(command.offset())
                    && (notifies, verifies) == (notify, verify)
                    && known.envelope.source == envelope.source
                    && known.envelope.length == envelope.length
                    && known.envelope.immediate == envelope.immediate
            });
            if !same {
                return Verdict::Refused(Status::ProtocolError);
            }
        } else if notify && !self.reserve(bindings.receive_queue) {
            return self.not_ready(input, endpoint);
        }
        if let Err(fault) = self.write_remote(command.key(), command.address(), input.payload) {
            if notify && !several {
                self.unreserve(bindings.receive_queue);
            }
            return self.refused_write(input, (several && counted).then_some(key), status_of(fault));
        }
        if several {
            let Some(id) = message else { return Verdict::Accepted };
            let Some(arriving) = self.messages.get_mut(&id) else { return Verdict::Accepted };
            arriving.last = input.now;
            arriving.received = arriving.received.saturating_add(length as u32);
            if arriving.received < arriving.envelope.length {
                return Verdict::Accepted;
            }
            self.message_complete(id);
        }
        let start = command.address().wrapping_sub(command.offset());
        if let Some(wanted) = verify {
            let sum = self.checksum_of(command.key(), start, command.length());
            if sum != Ok(wanted) {
                if notify {
                    self.unreserve(bindings.receive_queue);
                }
                return Verdict::Refused(Status::ChecksumMismatch);
            }
        }
        self.count_remote(endpoint, command.key(), Touched::WRITTEN);
        if notify {
            let peer = self.peer_of(&envelope);
            self.push(
                bindings.receive_queue,
                Completion {
                    context: 0,
                    kind: CompletionKind::RemoteWrite,
                    flags: CompletionFlags::NONE,
                    result: Ok(()),
                    length: u64::from(envelope.length),
                    tag: 0,
                    immediate: envelope.immediate,
                    source: Some(envelope.source),
                    peer,
                    local: LocalKey::NONE,
                    results: LocalKey::NONE,
                    offset: 0,
                },
            );
        }
        Verdict::Accepted
    }

    /// A packet of a write cannot be placed: if the message has several, it ends, and its others share its fate (P-4.10).
    pub(super) fn refused_write(&mut self, input: &RequestIn<'_>, message: Option<u64>, status: Status) -> Verdict {
        let Some(key) = message else { return Verdict::Refused(status) };
        if let Some(id) = self.transactions.by_key(key) {
            self.abort_message(id, Failure::Aborted);
        }
        if let Some(life) = self.lives.get_mut(input.life) {
            let number = input.decoded.command.message() as u32;
            life.refuse_message(input.request.source, number, status, input.request.psn);
        }
        Verdict::Refused(status)
    }

    /// Another packet of a message that was refused.
    pub(super) fn refused_again(&mut self, input: &RequestIn<'_>, number: u32) -> Verdict {
        let life = self.lives.get_mut(input.life);
        let status = life.and_then(|life| life.refuse_again(input.request.source, number, input.request.psn));
        Verdict::Refused(status.unwrap_or(Status::ProtocolError))
    }

    pub(super) fn begin_write(
        &mut self,
        input: &RequestIn<'_>,
        key: u64,
        envelope: Envelope,
        place: Place,
    ) -> Option<TransactionId> {
        let segment = Segment { address: 0, length: u64::from(envelope.length) };
        let id = self.transactions.insert(Transaction::new(&[segment])?, Find::Key(key)).ok()?;
        let number = input.decoded.command.message() as u32;
        let message = Message { life: input.life, number, envelope, received: 0, place, last: input.now };
        self.messages.insert(id, message);
        if let Some(life) = self.lives.get_mut(input.life) {
            life.messages += 1;
        }
        Some(id)
    }

    pub(super) fn write_remote(&mut self, key: u64, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        let mut done = 0;
        while done < bytes.len() {
            let left = (bytes.len() - done) as u64;
            let at = address.checked_add(done as u64).ok_or(Fault::OutOfBounds)?;
            let piece = self.memory.remote(key, at, left, Access::REMOTE_WRITE)?.first(left);
            if piece.length == 0 {
                return Err(Fault::OutOfBounds);
            }
            let end = done + piece.length as usize;
            self.memory.write(piece, bytes.get(done..end).ok_or(Fault::OutOfBounds)?)?;
            done = end;
        }
        Ok(())
    }

    /// A datagram of an unreliable endpoint: delivered to a posted receive, or dropped (P-5.4).
    pub(in crate::engine) fn handle_unreliable(&mut self, arrived: &Arrived, decoded: &Decoded, payload: &[u8]) {
        let command = &decoded.command;
        let source = Address { socket: arrived.from, endpoint: command.source() as u32 };
        let endpoint = self.endpoint_for(command.queue() as u32, EndpointKind::Datagram, source);
        let whole = command.length() == payload.len() as u64 && command.offset() == 0;
        let Some(endpoint) = endpoint.filter(|_| whole) else {
            self.statistics.dropped_datagrams += 1;
            return;
        };
        let envelope = Envelope {
            endpoint,
            source,
            source_id: self.addresses.source_of(source),
            peer: None,
            tagged: false,
            tag: 0,
            immediate: command.flags().contains(Flags::IMMEDIATE).then(|| command.immediate()),
            length: payload.len() as u32,
        };
        let matched = self.match_posted(&envelope);
        self.land_datagram(&envelope, matched, payload);
    }

    /// Whether a datagram for which there is no receive may wait for one.
    fn keeps_datagram(&self, endpoint: EndpointId) -> bool {
        let kind = EndpointKind::Datagram;
        let limit = self.endpoint(endpoint).filter(|endpoint| endpoint.kind == kind).map_or(0, |e| e.datagrams_kept);
        limit > 0 && self.endpoint(self.receiver_of(endpoint)).is_some_and(|at| at.unexpected.len() < limit)
    }

    /// A datagram and what the posted receives said to it.
    pub(in crate::engine) fn land_datagram(&mut self, envelope: &Envelope, matched: Matched, payload: &[u8]) {
        match matched {
            Matched::Landing(landing) => {
                let piece = Segment { address: landing.offset, length: payload.len() as u64 };
                let written = write_local(&mut self.memory, landing.local, [piece].into_iter(), payload);
                self.complete_receive(envelope, &landing, written.map_err(|_| Failure::LocalFault));
            }
            Matched::Truncated(landing) => self.complete_receive(envelope, &landing, Err(Failure::Truncated)),
            Matched::Announce(posted) => {
                let kept = self.keep_whole(envelope, &payload);
                self.statistics.dropped_datagrams += u64::from(kept.is_none());
                self.announce(envelope, posted, kept);
            }
            Matched::Nothing if self.keeps_datagram(envelope.endpoint) => {
                let kept = self.keep_whole(envelope, &payload);
                self.statistics.dropped_datagrams += u64::from(kept.is_none());
            }
            Matched::NotReady | Matched::Nothing => self.statistics.dropped_datagrams += 1,
        }
    }
}
