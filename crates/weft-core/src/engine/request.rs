//! The way up, at the target: requests, checked in the order of P-7.5 and P-7.6, then executed once.

use alloc::sync::Arc;
use alloc::vec::Vec;

use weft_wire::command::{Command, Flags, Kind, Slot};
use weft_wire::table::Decoded;

use super::transmit::{Answer, Response, ResponseData, status_of};
use super::{DatagramMeta, Engine};
use crate::atomic::{AtomicCall, AtomicClass};
use crate::command::EndpointId;
use crate::delivery::{EndpointKind, Touched};
use crate::flow::replay::Replay;
use crate::flow::rx_flow::{Arrival, Held, Life, Mark, PendingAck, Request};
use crate::flow::tombstone::Tombstone;
use crate::limits::{
    ACK_DELAY_US, ACK_EVERY, ACK_SOON_US, ANSWERS_MAX, ATOMIC_MAX_BYTES, HELD_MAX_BYTES, MESSAGE_LENGTH_MAX_BYTES,
    ORDER_HOLD_BYTES, ORDER_HOLD_MAX_BYTES, ORDER_HOLD_US, RESPONSE_PIECES_MAX, VERIFY_MAX_BYTES, WINDOW_MAX,
};
use crate::memory::{Access, Memory};
use crate::node::NodeId;
use crate::packet::{Reliability, Status};
use crate::session::Path;
use crate::session::verified::Verified;
use crate::time::Time;

/// What became of a request that was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Executed, or certain to be; acknowledged.
    Accepted,
    /// Executed; a response answers it.
    Responded,
    /// Not executed, and this psn never will be.
    Refused(Status),
    /// An earlier message of its stream has not come.
    OutOfOrder,
}

/// Whether an acknowledgement was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Not,
    /// By one whose target may have something to send first: two that talk to each other need no datagrams beside.
    Soon,
    Now,
}

/// A request, decoded.
#[derive(Clone, Copy)]
pub(super) struct RequestIn<'a> {
    pub(super) now: Time,
    pub(super) request: Request,
    pub(super) decoded: &'a Decoded,
    pub(super) reliability: &'a Reliability,
    pub(super) payload: &'a [u8],
    pub(super) life: u32,
}

impl<M: Memory> Engine<M> {
    /// Takes one packet whose trailer was verified.
    pub(super) fn handle_packet(&mut self, arrived: &DatagramMeta, packet: Verified<&[u8]>, decoded: &mut Decoded) {
        self.statistics.packets_received += 1;
        let Some(reliability) = self.codec.decode(packet.bytes(), decoded) else {
            self.refuse_unknown(arrived, packet);
            return;
        };
        let payload = decoded.payload(packet.bytes());
        let command = &decoded.command;
        let response = command.flags().contains(Flags::RESPONSE);
        match command.kind() {
            Kind::Acknowledge | Kind::ReadResponse | Kind::AtomicResponse => {
                self.handle_answer(arrived, decoded, &reliability, payload);
            }
            Kind::Probe if response => self.handle_answer(arrived, decoded, &reliability, payload),
            Kind::Control if command.flags().contains(Flags::REJECT) => {
                self.handle_request(arrived, packet, decoded, &reliability);
            }
            Kind::Control if !response => self.handle_answer(arrived, decoded, &reliability, payload),
            Kind::Probe => self.handle_probe(arrived, decoded, &reliability, payload.len()),
            Kind::Datagram => self.handle_unreliable(arrived, decoded, payload),
            Kind::Send
            | Kind::TaggedSend
            | Kind::ReadyToSend
            | Kind::Invalidate
            | Kind::Write
            | Kind::ReadRequest
            | Kind::Atomic
            | Kind::CompareSwap
            | Kind::Flush
            | Kind::Verify => self.handle_request(arrived, packet, decoded, &reliability),
            // Sessions with a handshake are not set up here yet.
            _ => self.statistics.dropped_malformed += 1,
        }
    }

    /// A request that this version does not know is refused by name, all else that cannot be read is dropped (P-3.1).
    #[cold]
    fn refuse_unknown(&mut self, arrived: &DatagramMeta, packet: Verified<&[u8]>) {
        let unknown = self.codec.unknown_request(packet.bytes());
        let Some((command, reliability)) = unknown.filter(|(_, r)| u32::from(r.span) < WINDOW_MAX) else {
            self.statistics.dropped_malformed += 1;
            return;
        };
        let request = Self::request_of(arrived, &command, &reliability);
        let life = match self.life_of_ticket(arrived.now, &request, Some(reliability.span)) {
            Ok(Some(life)) => life,
            Ok(None) => return,
            Err(status) => return self.refuse_ticket(request, status, Kind::Acknowledge),
        };
        let Some(state) = self.target.lives.get_mut(life) else { return };
        state.last = arrived.now;
        match state.arrive(request.psn, reliability.span) {
            Arrival::New => {
                self.mark_and_answer(life, request, Verdict::Refused(Status::NotSupported), Asked::Now);
            }
            Arrival::Marked(Mark::Refused(status)) => self.answer(request, status, 0, Kind::Acknowledge),
            Arrival::OutOfWindow => self.answer(request, Status::OutOfWindow, 0, Kind::Acknowledge),
            // The psn was something else before: the initiator breaks P-3.4, and is not answered.
            _ => self.statistics.duplicates += 1,
        }
        self.target.lives_due = self.target.lives_due.min(arrived.now.plus_micros(ORDER_HOLD_US));
    }

    fn request_of(arrived: &DatagramMeta, command: &Command, reliability: &Reliability) -> Request {
        Request {
            path: arrived.path,
            handle: reliability.handle,
            psn: command.sequence() as u32,
            ticket: reliability.ticket,
            epoch: command.slot(Slot::Argument3) as u32,
            source: command.source() as u32,
            destination: command.queue() as u32,
            timestamp: arrived.timestamp,
            arrival: arrived.now,
            again: command.flags().contains(Flags::RETRANSMIT),
        }
    }

    fn handle_request(
        &mut self,
        arrived: &DatagramMeta,
        packet: Verified<&[u8]>,
        decoded: &Decoded,
        reliability: &Reliability,
    ) {
        let request = Self::request_of(arrived, &decoded.command, reliability);
        if u32::from(reliability.span) >= WINDOW_MAX {
            self.answer(request, Status::ProtocolError, 0, Kind::Acknowledge);
            return;
        }
        let life = match self.life_of_ticket(arrived.now, &request, Some(reliability.span)) {
            Ok(Some(life)) => life,
            Ok(None) => return,
            Err(status) => {
                self.refuse_ticket(request, status, Kind::Acknowledge);
                return;
            }
        };
        let Some(state) = self.target.lives.get_mut(life) else { return };
        state.last = arrived.now;
        if arrived.marked
            && let Some(node) = self.nodes.get_mut(state.node)
        {
            node.session.ecn_marks = node.session.ecn_marks.wrapping_add(1);
        }
        let input = RequestIn {
            now: arrived.now,
            request,
            decoded,
            reliability,
            payload: decoded.payload(packet.bytes()),
            life,
        };
        let arrival = state.arrive(request.psn, reliability.span);
        let is_read = decoded.command.kind() == Kind::ReadRequest;
        match arrival {
            Arrival::Settled => self.statistics.duplicates += 1,
            Arrival::Replay => {
                self.statistics.duplicates += 1;
                self.respond(Response { request, number: 0, data: ResponseData::Replay });
            }
            #[cfg(feature = "plant")]
            Arrival::Duplicate if self.config.plant == Some(super::Plant::SkipDuplicateCheck) => {
                let verdict = self.execute(&input);
                self.conclude(&input, packet, verdict);
            }
            Arrival::Duplicate => {
                self.statistics.duplicates += 1;
                if is_read {
                    // P-5.3: asked again, it is executed again.
                    if let Verdict::Refused(status) = self.execute_read(&input, false) {
                        self.answer(request, status, 0, Kind::Acknowledge);
                    }
                } else {
                    self.answer(request, Status::Accepted, 0, Kind::Acknowledge);
                }
            }
            Arrival::Marked(Mark::Held) => self.statistics.duplicates += 1,
            Arrival::Marked(Mark::Refused(status)) => {
                self.statistics.duplicates += 1;
                self.answer(request, status, 0, Kind::Acknowledge);
            }
            Arrival::OutOfWindow => self.answer(request, Status::OutOfWindow, 0, Kind::Acknowledge),
            #[cfg(feature = "plant")]
            Arrival::New
                if self.config.plant == Some(super::Plant::ForgetWithdrawal)
                    && decoded.command.kind() == Kind::Control =>
            {
                self.answer(request, Status::NotReady, 0, Kind::Acknowledge);
            }
            Arrival::New => {
                let verdict = self.execute(&input);
                self.conclude(&input, packet, verdict);
            }
        }
        self.target.lives_due = self.target.lives_due.min(arrived.now.plus_micros(ORDER_HOLD_US));
    }

    /// Marks the psn as the verdict says, and answers (P-7.7: nothing happens between executing and this).
    fn conclude(&mut self, input: &RequestIn<'_>, packet: Verified<&[u8]>, verdict: Verdict) {
        let request = input.request;
        if verdict != Verdict::OutOfOrder {
            let command = &input.decoded.command;
            let asked = match command.flags().contains(Flags::ACK_REQUEST) {
                false => Asked::Not,
                true if !request.again => Asked::Soon,
                true => Asked::Now,
            };
            self.mark_and_answer(input.life, request, verdict, asked);
            self.release_held(input.now, input.life, Some((request.source, request.destination)));
            return;
        }
        // What one life may hold follows how many there are.
        let budget = (HELD_MAX_BYTES / self.target.lives.len().max(1)).clamp(ORDER_HOLD_BYTES, ORDER_HOLD_MAX_BYTES);
        let Some(life) = self.target.lives.get_mut(input.life) else { return };
        if life.held_bytes + packet.bytes().len() > budget {
            // It stays unseen: the initiator sends it again.
            return;
        }
        self.statistics.held += 1;
        life.mark(request.psn, Mark::Held);
        life.held_bytes += packet.bytes().len();
        life.held.push(Held {
            psn: request.psn,
            stream: (request.source, request.destination),
            earlier: (input.decoded.command.message() as u32).wrapping_sub(u32::from(input.reliability.after)),
            until: input.now.plus_micros(ORDER_HOLD_US),
            packet: packet.to_vec(),
            timestamp: request.timestamp,
            arrival: request.arrival,
        });
    }

    fn mark_and_answer(&mut self, index: u32, request: Request, verdict: Verdict, asked: Asked) {
        let Some(life) = self.target.lives.get_mut(index) else { return };
        match verdict {
            Verdict::Accepted => {
                life.accept(request.psn);
                self.owe_acknowledgement(index, request, asked);
            }
            Verdict::Responded => life.accept(request.psn),
            Verdict::Refused(status) => {
                life.mark(request.psn, Mark::Refused(status));
                self.statistics.not_ready += u64::from(status == Status::NotReady);
                self.answer(request, status, 0, Kind::Acknowledge);
            }
            Verdict::OutOfOrder => {}
        }
    }

    /// Looks again at packets that waited for order: those of a stream that went on, and those that waited too long.
    pub(super) fn release_held(&mut self, now: Time, index: u32, mut stream: Option<(u32, u32)>) {
        if self.target.lives.get(index).is_none_or(|life| life.held.is_empty()) {
            return;
        }
        let codec = Arc::clone(&self.codec);
        let mut decoded = Decoded::default();
        loop {
            let Some(life) = self.target.lives.get_mut(index) else { return };
            let path = self.nodes.get(life.node).map_or(Path::NOWHERE, |node| node.session.path);
            let Some(at) = life.next_held(stream, now) else { return };
            let held = life.held.swap_remove(at);
            stream = Some(held.stream);
            life.held_bytes = life.held_bytes.saturating_sub(held.packet.bytes().len());
            life.unmark(held.psn);
            let Some(reliability) = codec.decode(held.packet.bytes(), &mut decoded) else { continue };
            let arrived = DatagramMeta { now: held.arrival, path, timestamp: held.timestamp, marked: false };
            let mut request = Self::request_of(&arrived, &decoded.command, &reliability);
            request.arrival = held.arrival;
            let input = RequestIn {
                now,
                request,
                decoded: &decoded,
                reliability: &reliability,
                payload: decoded.payload(held.packet.bytes()),
                life: index,
            };
            let verdict = self.execute(&input);
            // P-6.4: what has waited long enough, for a message that was lost, is forgotten and comes again.
            self.mark_and_answer(index, request, verdict, Asked::Now);
        }
    }

    // ------------------------------------------------------------------ tickets and lives (P-7.5)

    /// The life that a ticket names, begun or woken when that is right. `Ok(None)`: nothing is to be done. A PROBE (no span)
    /// begins none.
    fn life_of_ticket(&mut self, now: Time, request: &Request, span: Option<u16>) -> Result<Option<u32>, Status> {
        let (peer, ticket) = (request.node(), request.ticket);
        let current = self.life_index(peer);
        let living = current.and_then(|index| self.target.lives.get(index)).map(|life| life.ticket);
        if living == Some(ticket) {
            return Ok(current);
        }
        let stone = if living.is_none() { self.target.tombstones.get(peer, now) } else { None };
        if let Some(stone) = stone.filter(|stone| stone.ticket == ticket) {
            let Some(span) = span else {
                // P-7.4: the flow is remembered for RETAIN from now.
                self.target.tombstones.remove(peer);
                self.target.tombstones.insert(peer, Tombstone { last: now, ..stone });
                return Ok(None);
            };
            let base = request.psn.wrapping_sub(u32::from(span));
            let floor = if crate::flow::before(stone.floor, base) { base } else { stone.floor };
            let index = self.begin_life(now, request, base, floor)?;
            return Ok(Some(index));
        }
        let known = living.or(stone.map(|stone| stone.ticket));
        if ticket == 0 {
            return if span.is_some() { Err(Status::Synchronise) } else { Ok(None) };
        }
        if ticket < self.target.first_ticket || ticket > self.target.last_ticket {
            return Err(Status::Restarted);
        }
        if ticket <= self.target.discarded_ticket || known.is_some_and(|known| known > ticket) {
            return Err(Status::Synchronise);
        }
        let Some(span) = span else { return Ok(None) };
        let base = request.psn.wrapping_sub(u32::from(span));
        // A greater ticket ends the life before it; if there is no room for it, the life before it stays.
        let index = self.begin_life(now, request, base, base)?;
        Ok(Some(index))
    }

    fn begin_life(&mut self, now: Time, request: &Request, base: u32, floor: u32) -> Result<u32, Status> {
        let peer = request.node();
        if let Some(earlier) = self.life_index(peer) {
            self.end_life(earlier);
        } else {
            // Every life must fit among the tombstones when its peer falls silent.
            // A tombstone that wakes up leaves its own place.
            let own = usize::from(self.target.tombstones.get(peer, now).is_some());
            let total = self.target.lives.len() + self.target.tombstones.len() - own;
            if total >= self.config.tombstones_max {
                return Err(Status::Busy);
            }
            if self.target.lives.len() >= self.config.lives_max {
                self.shrink_lives(now, true);
                if self.target.lives.len() >= self.config.lives_max {
                    return Err(Status::Busy);
                }
            }
        }
        self.target.tombstones.remove(peer);
        let node = self.nodes.enter(peer, request.path, &mut self.random);
        let index = self.target.lives.insert(Life::new(node, request.ticket, base, floor, now));
        if let Some(node) = self.nodes.get_mut(node) {
            node.rx_flow = Some(index);
        }
        Ok(index)
    }

    /// Ends a life for good: a greater one takes its place, or RETAIN has passed.
    pub(super) fn end_life(&mut self, index: u32) {
        if self.remove_life(index) {
            self.abort_messages(index);
        }
    }

    fn remove_life(&mut self, index: u32) -> bool {
        let Some(life) = self.target.lives.remove(index) else { return false };
        if let Some(node) = self.nodes.get_mut(life.node) {
            node.rx_flow = None;
        }
        self.nodes.rest(life.node);
        true
    }

    /// Turns idle lives into tombstones.
    pub(super) fn shrink_lives(&mut self, now: Time, in_need: bool) {
        let mut from = 0;
        while let Some(index) = self.target.lives.next_from(from) {
            from = index + 1;
            let Some(life) = self.target.lives.get(index) else { continue };
            let rested = in_need || now >= life.last.plus_micros(ORDER_HOLD_US);
            if !rested || !life.is_idle() {
                continue;
            }
            let stone = Tombstone { ticket: life.ticket, floor: life.floor(), last: life.last };
            let Some(peer) = self.nodes.get(life.node).map(|node| node.id) else { continue };
            #[cfg(feature = "plant")]
            if self.config.plant == Some(super::Plant::FreeLifeEarly) {
                self.remove_life(index);
                continue;
            }
            if self.target.tombstones.insert(peer, stone) {
                self.remove_life(index);
            }
        }
    }

    fn refuse_ticket(&mut self, request: Request, status: Status, kind: Kind) {
        let offer = self.offer(status);
        self.answer(request, status, offer, kind);
    }

    /// The ticket that goes with a refusal, if one does.
    fn offer(&mut self, status: Status) -> u64 {
        if !matches!(status, Status::Synchronise | Status::Restarted) {
            return 0;
        }
        self.target.last_ticket += 1;
        self.statistics.tickets_offered += 1;
        self.target.last_ticket
    }

    fn handle_probe(&mut self, arrived: &DatagramMeta, decoded: &Decoded, reliability: &Reliability, padding: usize) {
        let request = Self::request_of(arrived, &decoded.command, reliability);
        let (status, offer) = match self.life_of_ticket(arrived.now, &request, None) {
            Ok(life) => {
                if let Some(life) = life.and_then(|index| self.target.lives.get_mut(index)) {
                    life.probed(request.psn.wrapping_sub(u32::from(reliability.span)), request.psn);
                    life.last = arrived.now;
                }
                self.target.lives_due = self.target.lives_due.min(arrived.now.plus_micros(ORDER_HOLD_US));
                (Status::Accepted, 0)
            }
            Err(status) => (status, self.offer(status)),
        };
        self.push_answer(Answer { request, status, offer, kind: Kind::Probe, padding: padding as u32 });
    }

    // ------------------------------------------------------------------ answers

    pub(super) fn answer(&mut self, request: Request, status: Status, offer: u64, kind: Kind) {
        self.push_answer(Answer { request, status, offer, kind, padding: 0 });
    }

    fn push_answer(&mut self, answer: Answer) {
        // A peer that floods us is not answered; an honest one asks again.
        if self.target.answers.len() < ANSWERS_MAX {
            self.target.answers.push_back(answer);
        }
    }

    pub(super) fn respond(&mut self, response: Response) {
        if self.target.responses.len() < ANSWERS_MAX {
            self.target.responses.push_back(response);
        }
    }

    /// A request that was accepted cannot be answered with data after all.
    pub(super) fn refuse_later(&mut self, request: Request, status: Status) {
        self.answer(request, status, 0, Kind::Acknowledge);
    }

    fn owe_acknowledgement(&mut self, index: u32, request: Request, asked: Asked) {
        let Some(life) = self.target.lives.get_mut(index) else { return };
        let due = request.arrival.plus_micros(ACK_DELAY_US);
        let mut ack = life.ack.unwrap_or(PendingAck { request, packets: 0, due, soon: Time::NEVER });
        if ack.packets == 0 {
            self.target.acks_later.push_back((due, index));
        }
        (ack.request, ack.packets) = (request, ack.packets + 1);
        if asked == Asked::Now || ack.packets == ACK_EVERY {
            self.target.acks_now.push_back(index);
        } else if asked == Asked::Soon && ack.soon == Time::NEVER {
            ack.soon = request.arrival.plus_micros(ACK_SOON_US);
            self.target.acks_soon.push_back((ack.soon, index));
        }
        life.ack = Some(ack);
    }

    // ------------------------------------------------------------------ execution

    /// Executes a request that was not seen before. P-6.2: everything that acceptance needs is there before a byte is placed.
    pub(super) fn execute(&mut self, input: &RequestIn<'_>) -> Verdict {
        let command = &input.decoded.command;
        match command.kind() {
            Kind::Invalidate => return self.execute_done(input),
            // P-7.15: who withdraws it sends the same bytes otherwise.
            Kind::Control => return Verdict::Refused(Status::NotReady),
            _ => {}
        }
        let source = input.request.node().endpoint(input.request.source);
        let Some(endpoint) = self.delivery.endpoint_for(input.request.destination, EndpointKind::Reliable, source)
        else {
            // What it has sent to somebody it must let him fetch, whoever else it is there for.
            if command.kind() == Kind::ReadRequest && self.offered(command.key(), input.request.node()).is_some() {
                return self.execute_read(input, true);
            }
            return self.refused_send(input, Status::NoSuchEndpoint);
        };
        if command.length() > MESSAGE_LENGTH_MAX_BYTES {
            return self.refused_send(input, Status::LengthError);
        }
        if carries_data(command.kind()) {
            let end = command.offset() + input.payload.len() as u64;
            if end > command.length() {
                return self.refused_send(input, Status::LengthError);
            }
            let first = command.flags().contains(Flags::FIRST);
            let last = command.flags().contains(Flags::LAST);
            if first != (command.offset() == 0) || last != (end == command.length()) {
                return self.refused_send(input, Status::ProtocolError);
            }
            if input.payload.is_empty() && command.length() > 0 {
                return self.refused_send(input, Status::ProtocolError);
            }
        }
        match command.kind() {
            Kind::Send | Kind::TaggedSend | Kind::ReadyToSend => self.execute_send(input, endpoint),
            Kind::Write => self.execute_write(input, endpoint),
            Kind::ReadRequest => self.execute_read(input, true),
            Kind::Atomic | Kind::CompareSwap => self.execute_atomic(input, endpoint),
            Kind::Flush => self.execute_flush(input),
            Kind::Verify => self.execute_verify(input),
            _ => Verdict::Refused(Status::NotSupported),
        }
    }

    /// A message that is refused for good: it does not hold up those behind it (P-6.4), and its other packets share its fate.
    pub(super) fn refused_send(&mut self, input: &RequestIn<'_>, status: Status) -> Verdict {
        let command = &input.decoded.command;
        let request = &input.request;
        if matches!(command.kind(), Kind::Send | Kind::TaggedSend | Kind::ReadyToSend)
            && let Some(life) = self.target.lives.get_mut(input.life)
        {
            let number = command.message() as u32;
            life.passed(request.source, request.destination, number, input.reliability.after);
            if command.kind() != Kind::ReadyToSend && (input.payload.len() as u64) < command.length() {
                life.refuse_message(request.source, number, status, request.psn);
            }
        }
        Verdict::Refused(status)
    }

    /// The message that a peer was offered to fetch under this key.
    fn offered(&mut self, key: u64, from: NodeId) -> Option<&mut crate::flow::retransmit::Entry> {
        let entry = self.initiator.entries.get_mut(key as u16)?;
        (key != 0 && entry.rendezvous == key && NodeId::of(entry.to) == from).then_some(entry)
    }

    fn execute_read(&mut self, input: &RequestIn<'_>, first_time: bool) -> Verdict {
        let command = &input.decoded.command;
        let (key, address) = (command.key(), command.address());
        let (offset, length) = (command.offset() as u32, command.length() as u32);
        if self.target.responses.len() >= ANSWERS_MAX {
            return Verdict::Refused(Status::NotReady);
        }
        if u64::from(offset) + u64::from(length) > MESSAGE_LENGTH_MAX_BYTES {
            return Verdict::Refused(Status::LengthError);
        }
        let handle = key as u16;
        let from = input.request.node();
        let data = if let Some(entry) = self.offered(key, from) {
            entry.fetched = true;
            ResponseData::Message { handle, rendezvous: key, address, offset, length }
        } else {
            if let Err(fault) = self.delivery.memory().remote(key, address, u64::from(length), Access::REMOTE_READ) {
                return Verdict::Refused(status_of(fault));
            }
            ResponseData::Region { key, address, offset, length }
        };
        // One packet asks for the first piece of a read; which is the last nobody here knows.
        if first_time
            && matches!(data, ResponseData::Region { .. })
            && offset == 0
            && let Some(endpoint) = self.delivery.endpoint_by_number(input.request.destination)
        {
            self.delivery.count_remote(endpoint, key, Touched::READ);
        }
        self.respond_in_pieces(input.request, command.message() as u32, data);
        Verdict::Responded
    }

    /// A read may ask for more than fits into a datagram of ours (P-5.3).
    fn respond_in_pieces(&mut self, request: Request, number: u32, data: ResponseData) {
        // A peer asks for what fits on the way as it knows it; the way back is the same unless we know better.
        let mtu = self.path_bytes(request.node()).unwrap_or(crate::limits::MTU_MAX_BYTES);
        let room = mtu.saturating_sub(RESPONSE_HEADERS_BYTES).max(1);
        let split = |at: u32, length: u32| -> ResponseData {
            match data {
                ResponseData::Region { key, address, offset, .. } => ResponseData::Region {
                    key,
                    address: address.wrapping_add(u64::from(at)),
                    offset: offset + at,
                    length,
                },
                ResponseData::Message { handle, rendezvous, address, offset, .. } => ResponseData::Message {
                    handle,
                    rendezvous,
                    address: address.wrapping_add(u64::from(at)),
                    offset: offset + at,
                    length,
                },
                ResponseData::Replay => ResponseData::Replay,
            }
        };
        let length = match data {
            ResponseData::Region { length, .. } | ResponseData::Message { length, .. } => length,
            ResponseData::Replay => 0,
        };
        let mut at = 0;
        // A peer that asks for more gets the beginning, and asks for the rest when that has come.
        for _ in 0..RESPONSE_PIECES_MAX {
            let piece = (length - at).min(room);
            self.respond(Response { request, number, data: split(at, piece) });
            at += piece;
            if at >= length {
                return;
            }
        }
    }

    fn execute_atomic(&mut self, input: &RequestIn<'_>, endpoint: EndpointId) -> Verdict {
        let command = &input.decoded.command;
        let fetch = command.flags().contains(Flags::FETCH);
        let class = match (command.kind(), fetch) {
            (Kind::CompareSwap, _) => AtomicClass::Compare,
            (_, true) => AtomicClass::Fetch,
            _ => AtomicClass::Plain,
        };
        let call = AtomicCall {
            operation: command.slot(Slot::Argument2) as u8,
            datatype: command.slot(Slot::Status) as u8,
            count: command.slot(Slot::Argument0) as u16,
        };
        if let Err(fault) = call.check(class) {
            return Verdict::Refused(status_of(fault));
        }
        let (Some(bytes), Some(payload)) = (call.bytes(), call.payload_bytes()) else {
            return Verdict::Refused(Status::NotSupported);
        };
        let too_long = payload as u64 > u64::from(ATOMIC_MAX_BYTES) || bytes as u64 > u64::from(ATOMIC_MAX_BYTES);
        if call.count == 0 || input.payload.len() != payload || command.length() != payload as u64 || too_long {
            return Verdict::Refused(Status::LengthError);
        }
        let target =
            self.delivery.memory().remote(command.key(), command.address(), bytes as u64, Access::REMOTE_ATOMIC);
        let target = match target {
            Ok(target) if target.length == bytes as u64 => target,
            Ok(_) => return Verdict::Refused(Status::OperationFailed),
            Err(fault) => return Verdict::Refused(status_of(fault)),
        };
        let Some(life) = self.target.lives.get_mut(input.life) else { return Verdict::Refused(Status::NotReady) };
        // The response must be kept before the atomic is executed (P-7.2).
        if fetch && life.replay.is_full() {
            return Verdict::Refused(Status::NotReady);
        }
        let (compares, operands) = match class {
            AtomicClass::Compare => input.payload.split_at(payload / 2),
            _ => (&[] as &[u8], input.payload),
        };
        let mut result = if fetch { life.replay.room(bytes) } else { Vec::new() };
        if let Err(fault) = self.delivery.memory_mut().atomic(target, call, operands, compares, &mut result) {
            life.replay.give_back(result);
            return Verdict::Refused(status_of(fault));
        }
        self.delivery.count_remote(endpoint, command.key(), Touched::by_atomic(call, fetch));
        if !fetch {
            return Verdict::Accepted;
        }
        let number = command.message() as u32;
        life.replay.keep(Replay { psn: input.request.psn, number, result });
        self.respond(Response { request: input.request, number, data: ResponseData::Replay });
        Verdict::Responded
    }

    fn execute_flush(&mut self, input: &RequestIn<'_>) -> Verdict {
        let command = &input.decoded.command;
        let (kind, scope) = (command.slot(Slot::Argument0), command.slot(Slot::Argument1));
        if kind == 0 || kind > 3 || scope > 1 {
            return Verdict::Refused(Status::NotSupported);
        }
        let range =
            self.delivery.memory().remote(command.key(), command.address(), command.length(), Access::REMOTE_WRITE);
        match range.and_then(|range| self.delivery.memory_mut().flush(range, kind & 2 != 0)) {
            Ok(()) => Verdict::Accepted,
            Err(fault) => Verdict::Refused(status_of(fault)),
        }
    }

    fn execute_verify(&mut self, input: &RequestIn<'_>) -> Verdict {
        let command = &input.decoded.command;
        if command.length() > VERIFY_MAX_BYTES {
            return Verdict::Refused(Status::LengthError);
        }
        match self.delivery.checksum_of(command.key(), command.address(), command.length()) {
            Ok(crc) if u64::from(crc) == command.slot(Slot::Argument2) => Verdict::Accepted,
            Ok(_) => Verdict::Refused(Status::ChecksumMismatch),
            Err(fault) => Verdict::Refused(status_of(fault)),
        }
    }
}

/// Headers and trailer of a READ Response.
const RESPONSE_HEADERS_BYTES: u32 =
    (crate::packet::SESSION_BYTES + crate::packet::TRANSPORT_BYTES + 12 + crate::packet::TRAILER_BYTES) as u32;

/// Whether `offset` and payload are checked against `length` (P-4.1).
fn carries_data(kind: Kind) -> bool {
    matches!(kind, Kind::Send | Kind::TaggedSend | Kind::Write)
}
