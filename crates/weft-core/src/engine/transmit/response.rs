//! Responses with data, and datagrams of unreliable endpoints.

use super::*;

impl<M: Memory> Engine<M> {
    /// A response, and those behind it that can leave with it.
    pub(super) fn transmit_responses(&mut self, now: Time, first: Response, transmit: &mut Transmit) -> bool {
        let (path, again) = (first.request.path, first.request.again);
        transmit.path = path;
        transmit.class = CLASS_RESPONSE;
        let limit = self.answer_limit(&first.request);
        let fits = |next: &Response| next.request.path == path && next.request.again == again;
        let mut bundle = Bundle::begin(transmit);
        bundle.again = again;
        if !self.add_response(now, &first, transmit, Some(&mut bundle), limit) {
            bundle.cancel(transmit);
            if !self.add_response(now, &first, transmit, None, limit) {
                return false;
            }
            // Reads of a long range come one behind the other.
            while self.target.responses.front().is_some_and(fits) {
                let Some(next) = self.target.responses.pop_front() else { break };
                if !self.add_response(now, &next, transmit, None, limit) {
                    self.target.responses.push_front(next);
                    break;
                }
            }
            return !transmit.pieces.is_empty();
        }
        while self.target.responses.front().is_some_and(fits) {
            let Some(next) = self.target.responses.pop_front() else { break };
            if !self.add_response(now, &next, transmit, Some(&mut bundle), limit) {
                self.target.responses.push_front(next);
                break;
            }
        }
        self.add_pending_ack(now, path, transmit, &mut bundle, limit);
        self.end_bundle(now, path, CLASS_RESPONSE, transmit, bundle)
    }

    /// Adds a response to a bundle, or as a datagram of its own. False: it does not fit there. What cannot be sent at all is
    /// answered with why, and counts as added.
    pub(super) fn add_response(
        &mut self,
        now: Time,
        response: &Response,
        out: &mut Transmit,
        bundle: Option<&mut Bundle>,
        limit: usize,
    ) -> bool {
        let request = response.request;
        let (kind, offset, length) = match response.data {
            ResponseData::Region { offset, length, .. } | ResponseData::Message { offset, length, .. } => {
                (Kind::ReadResponse, offset, length)
            }
            ResponseData::Replay => (Kind::AtomicResponse, 0, 0),
        };
        let generic =
            between(whole(kind, Flags::RESPONSE), request.source, request.destination, request.epoch, request.psn)
                .with(Slot::Offset, u64::from(offset));
        let reliability = Reliability { handle: request.handle, ticket: request.ticket, ..Reliability::default() };
        let codec = alloc::sync::Arc::clone(&self.codec);
        let encode = |number: u32, length: u32, out: &mut [u8]| {
            let generic = generic.with(Slot::Message, u64::from(number));
            let generic = generic.with(Slot::Length, u64::from(offset) + u64::from(length));
            codec.encode(&generic, &reliability, out)
        };
        if let ResponseData::Replay = response.data {
            let life = self.life_index(request.node()).and_then(|index| self.target.lives.get(index));
            let replay = life.and_then(|life| life.replay.find(request.psn));
            let Some(replay) = replay else { return true };
            let Some(bundle) = bundle else { return false };
            let length = replay.result.len();
            let fits = bundle.is_empty() || bundle.has_room(out, HEADERS_MAX_BYTES + length, limit);
            if fits {
                bundle.add(out, length, |packet| {
                    let headers = encode(replay.number, length as u32, packet)?;
                    packet.get_mut(headers..headers + length)?.copy_from_slice(&replay.result);
                    Some(headers)
                });
                self.statistics.packets_sent += 1;
            }
            return fits;
        }
        match bundle {
            Some(bundle) => {
                let room = HEADERS_MAX_BYTES + length as usize;
                if length > PIO_MAX_BYTES || !bundle.is_empty() && !bundle.has_room(out, room, limit) {
                    return false;
                }
                let mut fault = None;
                bundle.add(out, length as usize, |packet| {
                    let headers = encode(response.number, length, packet)?;
                    let place = packet.get_mut(headers..headers + length as usize)?;
                    fault = self.read_source(&response.data, request.node(), place).err();
                    fault.is_none().then_some(headers)
                });
                if let Some(fault) = fault {
                    self.refuse_later(request, status_of(fault));
                    return true;
                }
            }
            None => {
                let mut packet = [0; HEADERS_MAX_BYTES];
                let Some(headers) = encode(response.number, length, &mut packet) else { return true };
                if !has_segment_room(out, headers + length as usize + TRAILER_BYTES) {
                    return false;
                }
                let session = self.next_session(now, request.path, CLASS_RESPONSE, false);
                self.codec.write_session(&mut packet, &session);
                let source = self.source_of(&response.data, request.node());
                let done = source.and_then(|source| {
                    let headers = packet.get(..headers).ok_or(Fault::Failed)?;
                    let sum = Summing::begin(&session);
                    append_segment(self.delivery.memory(), out, sum, headers, length, |memory, at, left| {
                        source.piece(memory, at, left)
                    })
                });
                if let Err(fault) = done {
                    self.refuse_later(request, status_of(fault));
                    return true;
                }
                self.statistics.datagrams_sent += 1;
            }
        }
        self.statistics.packets_sent += 1;
        true
    }

    pub(super) fn read_source(&self, data: &ResponseData, from: NodeId, into: &mut [u8]) -> Result<(), Fault> {
        let source = self.source_of(data, from)?;
        let mut done = 0;
        while done < into.len() {
            let left = (into.len() - done) as u64;
            let piece = source.piece(self.delivery.memory(), done as u64, left)?;
            let end = done + piece.length as usize;
            self.delivery.memory().read(piece, into.get_mut(done..end).ok_or(Fault::OutOfBounds)?)?;
            done = end;
        }
        Ok(())
    }

    /// Where the bytes of a read are; rights are checked now, when they are read.
    pub(super) fn source_of(&self, data: &ResponseData, from: NodeId) -> Result<Source, Fault> {
        match *data {
            ResponseData::Region { key, address, length, .. } => {
                self.delivery.memory().remote(key, address, u64::from(length), Access::REMOTE_READ)?;
                Ok(Source::Region { key, address })
            }
            ResponseData::Message { handle, rendezvous, address, length, .. } => {
                let entry = self.initiator.entries.get(handle).filter(|entry| entry.rendezvous == rendezvous);
                let entry = entry.filter(|entry| NodeId::of(entry.to) == from).ok_or(Fault::UnknownKey)?;
                let end = address.checked_add(u64::from(length)).ok_or(Fault::OutOfBounds)?;
                if end > u64::from(entry.command.length) {
                    return Err(Fault::OutOfBounds);
                }
                Ok(Source::Local { key: entry.command.local, offset: entry.command.offset + address })
            }
            ResponseData::Replay => Err(Fault::Failed),
        }
    }

    pub(super) fn transmit_datagram(&mut self, now: Time, datagram: &DatagramOut, transmit: &mut Transmit) -> bool {
        let command = &datagram.command;
        let length = command.length;
        let immediate = command.has(CommandFlags::IMMEDIATE);
        let mut flags = Flags(0);
        if immediate {
            flags = flags | Flags::IMMEDIATE;
        }
        if command.has(CommandFlags::SOLICITED) {
            flags = flags | Flags::SOLICITED;
        }
        self.initiator.number = self.initiator.number.wrapping_add(1);
        let generic =
            between(whole(Kind::Datagram, flags), datagram.to.endpoint, datagram.source, self.initiator.epoch, 0)
                .with(Slot::Message, u64::from(self.initiator.number))
                .with(Slot::Length, u64::from(length))
                .with(Slot::Immediate, command.immediate);
        let mut packet = [0; HEADERS_MAX_BYTES];
        let node = NodeId::of(datagram.to);
        let path = self.nodes.of(node).map_or(node.path(), |node| node.session.path);
        let sent = self.codec.encode(&generic, &Reliability::default(), &mut packet).and_then(|headers| {
            let session = self.next_session(now, path, CLASS_EAGER, false);
            self.codec.write_session(&mut packet, &session);
            transmit.path = path;
            transmit.class = CLASS_EAGER;
            let (local, base) = (command.local, command.offset);
            let (headers, sum) = (packet.get(..headers)?, Summing::begin(&session));
            let piece_at = |memory: &M, at: u64, left: u64| memory.local(local, base + at, left);
            // Without a completion the buffer is released below, before anybody sends it.
            let appended = match command.has(CommandFlags::SILENT) {
                true => append_copy(self.delivery.memory(), transmit, sum, headers, length, piece_at),
                false => append_segment(self.delivery.memory(), transmit, sum, headers, length, piece_at),
            };
            appended.ok()
        });
        // Its fate is unknown and will stay so: it is done when it is on its way.
        let result = if sent.is_some() { Ok(()) } else { Err(Failure::LocalFault) };
        self.delivery.report(command, result);
        if sent.is_some() {
            let known = self.delivery.addresses().mtu(command.peer).unwrap_or(self.config.mtu_bytes);
            let mtu = self.path_bytes(NodeId::of(datagram.to)).map_or(known, |bytes| bytes.min(known)) as usize;
            transmit.may_fragment = segments(transmit).1 > mtu.max(MTU_MIN_BYTES as usize);
            self.statistics.fragmentable += u64::from(transmit.may_fragment);
            self.statistics.datagrams_sent += 1;
            self.statistics.packets_sent += 1;
        }
        sent.is_some()
    }
}

/// Where bytes of a response come from, with the rights checked.
#[derive(Clone, Copy)]
pub(super) enum Source {
    Region { key: u64, address: u64 },
    Local { key: LocalKey, offset: u64 },
}

impl Source {
    pub(super) fn piece<M: Memory>(self, memory: &M, at: u64, left: u64) -> Result<Granted, Fault> {
        match self {
            Source::Region { key, address } => {
                memory.remote(key, address.checked_add(at).ok_or(Fault::OutOfBounds)?, left, Access::REMOTE_READ)
            }
            Source::Local { key, offset } => memory.local(key, offset + at, left),
        }
    }
}
