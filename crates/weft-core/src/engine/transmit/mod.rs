//! The way down, second part: from queues to datagrams.
//!
//! Classes are served in order: answers, then in turn requests (what was lost first) and responses with data: neither waits
//! for the other, or two nodes that ask each other for more and more would never be answered. A datagram is either a
//! bundle of short packets, each with its payload inside (PIO), or one packet whose payload stays in the user's memory (DMA);
//! several of the latter with the same length leave together and are cut by the kernel or the NIC.

mod frame;
mod response;

use alloc::collections::VecDeque;
use weft_wire::command::{Command as Generic, Flags, Kind, Slot};

use super::post::life_ends;
use super::{Engine, Piece, Transmit, tracked};
use crate::address::Address;
use crate::command::{Command, CommandFlags, Operation};
use crate::delivery::{Transport, read_local};
use crate::event::Failure;
use crate::flow::lane::{Class, Reissue, order};
use crate::flow::retransmit::{Entries, Entry, Phase};
use crate::flow::rx_flow::{Life, Request};
use crate::flow::tracker::{Sent, SentState, Tracker};
use crate::limits::{
    ACK_EVERY, BUNDLE_MAX_BYTES, MTU_MIN_BYTES, PIO_MAX_BYTES, RESTS_TOGETHER, SEGMENTS_MAX, STARTED_LOOKS,
    TRANSMIT_MAX_BYTES,
};
use crate::memory::{Access, Fault, Granted, LocalKey, Memory};
use crate::node::NodeId;
use crate::packet::{
    ENTRY_LENGTH_BYTES, HEADERS_MAX_BYTES, PARTIAL_COVERED_BYTES, Reliability, SESSION_BYTES, SessionHeader, Status,
    TRAILER_BYTES, UNORDERED, between, whole,
};
use crate::session::{Path, Session};
use crate::time::Time;

use frame::{Bundle, Summing, Tail, append_copy, append_segment, has_segment_room, segments};

/// An answer without data that goes out at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    pub(super) request: Request,
    pub(super) status: Status,
    /// The offered ticket, for *synchronise* and *restarted*.
    pub(super) offer: u64,
    /// What the answer is: acknowledgement, credit or probe reply.
    pub(super) kind: Kind,
    /// Zeros behind it: as many as behind the PROBE, so that its sender knows that the way back carries them too.
    pub(super) padding: u32,
}

/// An answer with data.
#[derive(Debug)]
pub(super) struct Response {
    pub(super) request: Request,
    pub(super) number: u32,
    pub(super) data: ResponseData,
}

/// Where the data of a response comes from.
#[derive(Debug)]
pub(super) enum ResponseData {
    /// A region of ours.
    Region { key: u64, address: u64, offset: u32, length: u32 },
    /// A message of ours that the peer fetches (rendezvous): the command's handle.
    Message { handle: u16, rendezvous: u64, address: u64, offset: u32, length: u32 },
    /// The replay cache of the peer's life.
    Replay,
}

/// A datagram of an unreliable endpoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct DatagramOut {
    pub(super) command: Command,
    pub(super) to: Address,
    pub(super) source: u32,
}

/// The packet to be sent next to a target.
#[derive(Clone, Copy, Debug)]
enum Pick {
    /// This psn, once more.
    Again(u64),
    /// A packet under a new psn: handle, offset and length.
    New(u16, u32, u32),
    /// The same, of the oldest packet of a lane that was refused as not ready.
    Reissue(u32, Class),
    Probe,
}

/// An answer without payload, as an entry of a bundle.
const ANSWER_BYTES: usize = crate::packet::TRANSPORT_BYTES + 24;

/// The classes of P-2.3.
const CLASS_CONTROL: u8 = 0;
const CLASS_EAGER: u8 = 1;
const CLASS_BULK: u8 = 2;
const CLASS_RESPONSE: u8 = 3;

impl<M: Memory> Engine<M> {
    /// Fills `transmit` with what is to be sent next. False: nothing.
    pub fn poll_transmit(&mut self, now: Time, transmit: &mut Transmit) -> bool {
        self.clock = now;
        // Whoever calls goes on until there is nothing.
        self.urgent = false;
        transmit.bytes.clear();
        transmit.pieces.clear();
        transmit.segment_bytes = 0;
        transmit.may_fragment = false;
        if self.delivery.has_freed() {
            self.grant_credits();
        }
        if self.delivery.has_decided(Transport::Packets) || self.delivery.has_told() {
            self.serve_rendezvous(now);
        }
        if self.owes_answers(now) && self.transmit_answers(now, transmit) {
            return true;
        }
        if core::mem::take(&mut self.target.responses_next) && self.transmit_next_response(now, transmit) {
            return true;
        }
        if self.transmit_next_requests(now, transmit) {
            self.target.responses_next = true;
            return true;
        }
        // Nothing has taken them along.
        if !self.target.acks_soon.is_empty() && self.hasten_acks(now) && self.transmit_answers(now, transmit) {
            return true;
        }
        if self.transmit_next_response(now, transmit) {
            return true;
        }
        while let Some(datagram) = self.initiator.datagrams.pop_front() {
            if self.transmit_datagram(now, &datagram, transmit) {
                return true;
            }
        }
        // A response that could not be read has become a refusal.
        if !self.target.answers.is_empty() && self.transmit_answers(now, transmit) {
            return true;
        }
        false
    }

    /// Requests to the target whose turn it is.
    fn transmit_next_requests(&mut self, now: Time, transmit: &mut Transmit) -> bool {
        while let Some(index) = self.initiator.ready.pop_front() {
            let Some(tracker) = self.initiator.trackers.get_mut(index) else { continue };
            tracker.ready = false;
            if tracker.sent.is_empty() && life_ends(tracker) {
                // P-7.13: the numbers of this life are used up.
                tracker.ticket = 0;
                tracker.ticket_psn = tracker.next();
            }
            if self.transmit_requests(now, index, transmit) {
                // If there is more, others come first.
                if self.initiator.trackers.get(index).is_some_and(Tracker::has_more) {
                    self.make_ready(index);
                } else {
                    self.schedule(now, index);
                    // A PROBE that was owed may have been the last thing.
                    self.free_tracker_if_done(index);
                }
                return true;
            }
            self.schedule(now, index);
            self.free_tracker_if_done(index);
        }
        false
    }

    fn transmit_next_response(&mut self, now: Time, transmit: &mut Transmit) -> bool {
        while let Some(response) = self.target.responses.pop_front() {
            if self.transmit_responses(now, response, transmit) {
                return true;
            }
        }
        false
    }

    /// Whether [`Engine::poll_transmit`] has anything to look at. False is certain, and then it need not be called.
    #[inline]
    pub fn has_output(&self, now: Time) -> bool {
        let due = |acks: &VecDeque<(Time, u32)>| acks.front().is_some_and(|(due, _)| *due <= now);
        let due = due(&self.target.acks_later) || due(&self.target.acks_soon) || self.delivery.has_freed();
        let decided = self.delivery.has_decided(Transport::Packets) || self.delivery.has_told();
        due || decided
            || !(self.target.answers.is_empty()
                && self.target.acks_now.is_empty()
                && self.initiator.ready.is_empty()
                && self.target.responses.is_empty()
                && self.initiator.datagrams.is_empty())
    }

    // ------------------------------------------------------------------ answers

    /// Whether [`Engine::transmit_answers`] may have something to do. Acknowledgements that have gone are forgotten.
    #[inline]
    fn owes_answers(&mut self, now: Time) -> bool {
        if !self.target.answers.is_empty() || !self.target.acks_now.is_empty() {
            return true;
        }
        while let Some(&(due, life)) = self.target.acks_later.front() {
            let pending = |life: &Life| life.ack.is_some_and(|ack| ack.due == due);
            if self.target.lives.get(life).is_some_and(pending) {
                return due <= now;
            }
            self.target.acks_later.pop_front();
        }
        false
    }

    /// Answers that cannot wait, and acknowledgements that are due. All for one peer share a datagram, with short requests
    /// to the same peer.
    fn transmit_answers(&mut self, now: Time, transmit: &mut Transmit) -> bool {
        while let Some(answer) = self.target.answers.front().filter(|answer| answer.padding > 0).copied() {
            self.target.answers.pop_front();
            if self.transmit_padded_reply(now, &answer, transmit) {
                return true;
            }
        }
        let mut bundle = Bundle::begin(transmit);
        let first = loop {
            if let Some(answer) = self.target.answers.front() {
                // The life ended since: the peer asks again and is told then.
                if self.is_void(answer) {
                    self.target.answers.pop_front();
                    continue;
                }
                break answer.request;
            }
            if let Some(&life) = self.target.acks_now.front() {
                match self.target.lives.get(life).and_then(|life| life.ack) {
                    Some(ack) => break ack.request,
                    None => {
                        self.target.acks_now.pop_front();
                        continue;
                    }
                }
            }
            let Some(&(due, life)) = self.target.acks_later.front() else { return false };
            let pending = self.target.lives.get(life).and_then(|life| life.ack).filter(|ack| ack.due == due);
            match pending {
                Some(ack) if due <= now => break ack.request,
                Some(_) => return false,
                None => {
                    self.target.acks_later.pop_front();
                }
            }
        };
        let (path, limit) = (first.path, self.answer_limit(&first));
        while let Some(answer) =
            self.target.answers.front().copied().filter(|answer| answer.request.path == path && answer.padding == 0)
        {
            if !self.add_answer(now, &answer, transmit, &mut bundle, limit) {
                break;
            }
            self.target.answers.pop_front();
        }
        self.add_pending_ack(now, path, transmit, &mut bundle, limit);
        if let Some(index) = self.nodes.of(NodeId::at(path)).and_then(|node| node.tracker) {
            self.add_short_requests(now, index, transmit, &mut bundle, limit);
        }
        self.end_bundle(now, path, CLASS_CONTROL, transmit, bundle)
    }

    /// Whether an answer is about a life that ended.
    fn is_void(&self, answer: &Answer) -> bool {
        let without_life = matches!(answer.status, Status::Synchronise | Status::Restarted | Status::Busy);
        let life = self.life_index(answer.request.node()).and_then(|index| self.target.lives.get(index));
        let lives = life.is_some_and(|life| life.ticket == answer.request.ticket);
        !without_life && !lives && answer.kind == Kind::Acknowledge
    }

    /// What datagrams to a peer may have.
    fn path_mtu(&self, node: NodeId) -> usize {
        self.path_bytes(node).unwrap_or(self.config.mtu_bytes) as usize
    }

    fn bundle_limit(&self, node: NodeId) -> usize {
        self.path_mtu(node).min(BUNDLE_MAX_BYTES)
    }

    /// The same of a bundle of answers. If the one before was too long, only who asks again knows: this one is not.
    fn answer_limit(&self, request: &Request) -> usize {
        let limit = self.bundle_limit(request.node());
        if request.again { limit.min(MTU_MIN_BYTES as usize) } else { limit }
    }

    /// The acknowledgement that a peer is owed, if any: it rides along whenever something goes there.
    fn add_pending_ack(&mut self, now: Time, path: Path, out: &mut Transmit, bundle: &mut Bundle, limit: usize) {
        let Some(index) = self.life_index(NodeId::at(path)) else { return };
        let Some(ack) = self.target.lives.get(index).and_then(|life| life.ack) else { return };
        let answer = acknowledgement(ack.request);
        if self.add_answer(now, &answer, out, bundle, limit)
            && let Some(life) = self.target.lives.get_mut(index)
        {
            life.ack = None;
            if self.target.acks_later.front() == Some(&(ack.due, index)) {
                self.target.acks_later.pop_front();
            }
        }
    }

    fn add_answer(
        &mut self,
        now: Time,
        answer: &Answer,
        out: &mut Transmit,
        bundle: &mut Bundle,
        limit: usize,
    ) -> bool {
        // If its life ended since, the peer asks again and is told then.
        let Some((generic, reliability)) = self.answer_command(now, answer) else { return true };
        if !bundle.has_room(out, ANSWER_BYTES, limit) {
            return false;
        }
        let codec = &self.codec;
        bundle.add(out, 0, |packet| codec.encode(&generic, &reliability, packet));
        self.statistics.packets_sent += 1;
        true
    }

    fn answer_command(&self, now: Time, answer: &Answer) -> Option<(Generic, Reliability)> {
        let request = &answer.request;
        let life = self.life_index(request.node()).and_then(|index| self.target.lives.get(index));
        let life = life.filter(|life| life.ticket == request.ticket);
        let without_life = matches!(answer.status, Status::Synchronise | Status::Restarted | Status::Busy);
        let (span, highest, bitmap) = match life {
            Some(life) if !without_life => (life.span(), life.highest(), life.bitmap()),
            _ => (0, 0, answer.offer),
        };
        if !without_life && life.is_none() && answer.kind == Kind::Acknowledge {
            return None;
        }
        let marks = life.and_then(|life| self.nodes.get(life.node)).map_or(0, |node| node.session.ecn_marks);
        let flags = match answer.kind {
            Kind::Control => Flags(0),
            _ => Flags::RESPONSE,
        };
        let hold = now.micros().saturating_sub(request.arrival.micros());
        let generic =
            between(whole(answer.kind, flags), request.source, request.destination, request.epoch, request.psn)
                .with(Slot::Status, answer.status as u64)
                .with(Slot::Length, 255)
                .with(Slot::Immediate, u64::from(marks))
                .with(Slot::Argument1, u64::from(request.timestamp))
                .with(Slot::Argument2, hold.min(u64::from(u32::MAX)))
                .with(Slot::Offset, u64::from(highest))
                .with(Slot::Argument0, bitmap);
        let reliability =
            Reliability { handle: request.handle, span, ticket: request.ticket, ..Reliability::default() };
        Some((generic, reliability))
    }

    /// The reply to a padded PROBE, in a datagram of its own.
    #[cold]
    fn transmit_padded_reply(&mut self, now: Time, answer: &Answer, transmit: &mut Transmit) -> bool {
        let mut packet = [0; HEADERS_MAX_BYTES];
        let Some((generic, reliability)) = self.answer_command(now, answer) else { return false };
        let Some(headers) = self.codec.encode(&generic, &reliability, &mut packet) else { return false };
        self.statistics.packets_sent += 1;
        // The PROBE had no header behind that of the transport.
        let length = SESSION_BYTES + crate::packet::TRANSPORT_BYTES + answer.padding as usize + TRAILER_BYTES;
        transmit.path = answer.request.path;
        self.pad(now, &mut packet, headers, length, transmit);
        true
    }

    /// Fills a datagram with a packet of headers and zeros.
    fn pad(&mut self, now: Time, packet: &mut [u8], headers: usize, length: usize, transmit: &mut Transmit) {
        transmit.class = CLASS_CONTROL;
        let session = SessionHeader { partial: false, ..self.next_session(now, transmit.path, CLASS_CONTROL, false) };
        self.codec.write_session(packet, &session);
        transmit.bytes.clear();
        transmit.bytes.extend_from_slice(packet.get(..headers).unwrap_or_default());
        transmit.bytes.resize(length.saturating_sub(TRAILER_BYTES).max(headers), 0);
        let crc = self.delivery.memory().crc32c_bytes(0, &transmit.bytes);
        transmit.bytes.extend_from_slice(&crc.to_le_bytes());
        transmit.pieces.push(Piece::Bytes { start: 0, length: transmit.bytes.len() as u32 });
        self.statistics.datagrams_sent += 1;
    }

    // ------------------------------------------------------------------ requests

    /// Builds the next datagrams to one target.
    fn transmit_requests(&mut self, now: Time, index: u32, transmit: &mut Transmit) -> bool {
        let Some((tracker, session)) = self.tracker_mut(index) else { return false };
        let (path, limit) = (session.path, (session.mtu.bytes() as usize).min(BUNDLE_MAX_BYTES));
        if tracker.mtu_probe_wanted {
            return self.transmit_mtu_probe(now, index, transmit);
        }
        let mut bundle = Bundle::begin(transmit);
        if self.add_short_requests(now, index, transmit, &mut bundle, limit) {
            self.add_pending_ack(now, path, transmit, &mut bundle, limit);
            return self.end_bundle(now, path, CLASS_EAGER, transmit, bundle);
        }
        if self.add_long_behind_ack(now, index, path, transmit, &mut bundle) {
            return self.end_bundle(now, path, CLASS_BULK, transmit, bundle);
        }
        bundle.cancel(transmit);
        let mut any = false;
        while transmit.bytes.len() < TRANSMIT_MAX_BYTES {
            let Some(pick) = self.pick(now, index, false) else { break };
            if !self.add_long_request(now, index, pick, transmit) {
                break;
            }
            any = true;
            if transmit.may_fragment {
                break;
            }
        }
        transmit.path = path;
        transmit.class = CLASS_BULK;
        any && !transmit.pieces.is_empty()
    }

    /// Adds short packets as long as they come and fit. True: at least one.
    fn add_short_requests(
        &mut self,
        now: Time,
        index: u32,
        out: &mut Transmit,
        bundle: &mut Bundle,
        limit: usize,
    ) -> bool {
        let mut any = false;
        while self.initiator.trackers.get(index).is_some_and(Tracker::has_more)
            && let Some(pick) = self.pick(now, index, any)
        {
            let Some((handle, offset, length)) = self.measure(index, pick) else { break };
            let payload = match self.initiator.entries.get(handle) {
                Some(entry) if entry.rendezvous != 0 || entry.is_read() || self.withdraws(index, pick) => 0,
                Some(_) => length,
                None => 0,
            };
            let room = HEADERS_MAX_BYTES - SESSION_BYTES + payload as usize;
            if payload > PIO_MAX_BYTES || !bundle.has_room(out, room, limit) && !bundle.is_empty() {
                break;
            }
            let mut fault = None;
            any |= bundle.add(out, payload as usize, |packet| {
                let headers = self.encode_request(now, index, pick, packet)?;
                let place = packet.get_mut(headers..headers + payload as usize)?;
                if payload > 0 {
                    fault = self.read_local(handle, offset, place).err();
                }
                fault.is_none().then_some(headers)
            });
            if let Some(fault) = fault {
                self.local_fault(now, handle, fault);
            }
        }
        any
    }

    /// A long packet takes the acknowledgement along that is owed to its target, where both fit: in an exchange of messages
    /// it would cost a datagram of its own.
    fn add_long_behind_ack(
        &mut self,
        now: Time,
        index: u32,
        path: Path,
        out: &mut Transmit,
        bundle: &mut Bundle,
    ) -> bool {
        let life = self.life_index(NodeId::at(path)).and_then(|life| self.target.lives.get(life));
        if life.is_none_or(|life| life.ack.is_none()) {
            return false;
        }
        let Some(pick) = self.pick(now, index, false) else { return false };
        let Some((handle, offset, length)) = self.measure(index, pick) else { return false };
        let (Some(entry), Some((_, session))) = (self.initiator.entries.get(handle), self.tracker(index)) else {
            return false;
        };
        let room = ANSWER_BYTES + 2 * ENTRY_LENGTH_BYTES + header_bytes(entry) + length as usize + TRAILER_BYTES;
        if !is_long(entry, length) || room > session.mtu.bytes() as usize || self.withdraws(index, pick) {
            return false;
        }
        let (local, offset) = (entry.command.local, entry.command.offset + u64::from(offset));
        self.add_pending_ack(now, path, out, bundle, usize::MAX);
        let tail = Tail { handle, local, offset, length };
        bundle.add_tail(out, tail, |packet| self.encode_request(now, index, pick, packet)) || !bundle.is_empty()
    }

    /// One packet whose payload stays where it is. False: it must wait for another transmit.
    fn add_long_request(&mut self, now: Time, index: u32, pick: Pick, out: &mut Transmit) -> bool {
        let Some((handle, offset, length)) = self.measure(index, pick) else { return false };
        let Some(entry) = self.initiator.entries.get(handle) else { return false };
        let total = header_bytes(entry) + length as usize + TRAILER_BYTES;
        let Some((_, session)) = self.tracker(index) else { return false };
        let (path, may_fragment) = (session.path, total > session.mtu.bytes() as usize);
        if !is_long(entry, length) || !has_segment_room(out, total) || may_fragment && !out.pieces.is_empty() {
            return false;
        }
        let (local, base) = (entry.command.local, entry.command.offset);
        let mut packet = [0; HEADERS_MAX_BYTES];
        let Some(headers) = self.encode_request(now, index, pick, &mut packet) else { return true };
        let session = self.next_session(now, path, CLASS_BULK, false);
        self.codec.write_session(&mut packet, &session);
        let Some(headers) = packet.get(..headers) else { return true };
        let sum = Summing::begin(&session);
        if let Err(fault) = append_segment(self.delivery.memory(), out, sum, headers, length, |memory, at, left| {
            memory.local(local, base + u64::from(offset) + at, left)
        }) {
            self.local_fault(now, handle, fault);
            return true;
        }
        out.may_fragment = may_fragment;
        self.statistics.fragmentable += u64::from(may_fragment);
        self.statistics.datagrams_sent += 1;
        true
    }

    /// What may be sent to a target now. Commands that have to wait are put aside, nothing else is changed. Beside other
    /// short packets (`among_short`), short rests of messages come before anything new.
    fn pick(&mut self, now: Time, index: u32, among_short: bool) -> Option<Pick> {
        if self.initiator.trackers.get(index)?.probe_wanted {
            return Some(Pick::Probe);
        }
        // Among what was put aside just now may be a command that waits for packets whose acknowledgement nobody has
        // asked for.
        self.pick_packet(now, index, among_short)
            .or_else(|| self.initiator.trackers.get(index)?.probe_wanted.then_some(Pick::Probe))
    }

    fn pick_packet(&mut self, now: Time, index: u32, among_short: bool) -> Option<Pick> {
        let (tracker, session) = tracked(&mut self.initiator.trackers, &mut self.nodes, index)?;
        if tracker.blocked_until > now {
            return None;
        }
        if tracker.lost > 0 {
            return self.pick_lost(index);
        }
        let no_ticket = tracker.ticket == 0 && !tracker.sent.is_empty();
        if is_full(tracker) || no_ticket || !session.congestion.admits(0) && tracker.allowance == 0 {
            return None;
        }
        if !tracker.refused.is_empty() || !tracker.started.is_empty() {
            return self.pick_among(index, among_short);
        }
        // The usual case: nothing was lost or refused, and nothing is begun.
        #[cfg(feature = "plant")]
        if self.config.plant == Some(super::Plant::HeadOfLine) && tracker.front_waits(&self.initiator.entries) {
            return None;
        }
        let handle = tracker.next_command(&mut self.initiator.entries)?;
        let entry = self.initiator.entries.get(handle)?;
        let length = packet_length(entry, session.mtu.bytes(), 0);
        let admitted = session.congestion.admits(u64::from(weight(entry, length)));
        admitted.then_some(Pick::New(handle, 0, length))
    }

    /// The oldest message of which a packet was lost, unless one before it was refused: then that one has to come first.
    fn pick_lost(&self, index: u32) -> Option<Pick> {
        let (tracker, session) = self.tracker(index)?;
        let may_go = |weight: u32| tracker.allowance > 0 || session.congestion.admits(u64::from(weight));
        let lost = self.oldest_lost(tracker)?;
        let sent = tracker.sent.get(lost)?;
        if let Some(entry) = self.initiator.entries.get(sent.handle)
            && let Some(refusals) = tracker.lane(entry.lane).map(|lane| lane.refusals(Class::Message))
            && let Some(refused) = refusals.packets.front().filter(|_| refusals.permits() && !is_full(tracker))
            && order(refused.number, entry.number).is_lt()
            && reissued(&self.initiator.entries, session, refused)
                .is_some_and(|(entry, length)| may_go(weight(entry, length)))
        {
            return Some(Pick::Reissue(entry.lane, Class::Message));
        }
        // P-7.9: while there is no ticket, one packet tells as much as many.
        let alone = tracker.ticket != 0 || session.congestion.in_flight() == 0;
        (alone && may_go(sent.weight)).then_some(Pick::Again(tracker.base + lost as u64))
    }

    /// The place of the lost packet with the oldest message. Mostly that has the lowest psn. A message that was refused and
    /// issued again has a higher one than those behind it, which its target holds back until it comes: with a small window
    /// they would be sent over and over, and it never.
    fn oldest_lost(&self, tracker: &Tracker) -> Option<usize> {
        let is_lost = |sent: &Sent| sent.state == SentState::Lost;
        let first = tracker.sent.iter().position(is_lost)?;
        if tracker.reissued == 0 {
            return Some(first);
        }
        let number =
            |at: usize| tracker.sent.get(at).and_then(|sent| self.initiator.entries.get(sent.handle)).map(|e| e.number);
        let reissued = (0..).zip(&tracker.sent).filter(|(_, sent)| sent.reissued && is_lost(sent)).map(|(at, _)| at);
        let is_older = |a: usize, b: usize| number(a).zip(number(b)).is_some_and(|(a, b)| order(a, b).is_lt());
        Some(reissued.fold(first, |oldest, at| if is_older(at, oldest) { at } else { oldest }))
    }

    /// Commands that are begun, packets that were refused, and new commands: they take turns, so that a long message does
    /// not hold back short ones. Among the new, what the peer waits for comes first, then what was refused.
    fn pick_among(&mut self, index: u32, among_short: bool) -> Option<Pick> {
        let (tracker, session) = tracked(&mut self.initiator.trackers, &mut self.nodes, index)?;
        // A message of which nothing was accepted does not go on while it is not known that there is room.
        let goes_on = |entry: &Entry| {
            let lane = tracker.lane(entry.lane);
            entry.accepted || !lane.is_some_and(|lane| lane.refusals(Class::of(entry)).is_limited())
        };
        let begun = tracker.started.iter().filter_map(|&handle| Some((handle, self.initiator.entries.get(handle)?)));
        let begun = begun.take(STARTED_LOOKS).find(|(_, e)| Class::of(e) == Class::Remote || goes_on(e));
        let begun = begun.map(|(handle, _)| handle);
        if let Some((lane, class)) = tracker.next_refused().filter(|_| tracker.own.is_empty()) {
            if begun.is_none() || tracker.starts_next {
                let refused = tracker.lane(lane)?.refusals(class).packets.front()?;
                let (entry, length) = reissued(&self.initiator.entries, session, refused)?;
                let weight = weight(entry, length);
                let goes = tracker.allowance > 0 || session.congestion.admits(u64::from(weight));
                return goes.then_some(Pick::Reissue(lane, class));
            }
            return self.pick_begun(index, begun?);
        }
        #[cfg(feature = "plant")]
        if self.config.plant == Some(super::Plant::HeadOfLine) && tracker.front_waits(&self.initiator.entries) {
            return begun.and_then(|handle| self.pick_begun(index, handle));
        }
        let next = tracker.next_command(&mut self.initiator.entries);
        let (Some(new), Some(handle)) = (next, begun) else {
            return match (next, begun) {
                (Some(new), None) => {
                    let length = packet_length(self.initiator.entries.get(new)?, session.mtu.bytes(), 0);
                    self.admitted(index, new, length).then_some(Pick::New(new, 0, length))
                }
                (_, Some(handle)) => self.pick_begun(index, handle),
                _ => None,
            };
        };
        // One that needs a last packet gets it first.
        let (fresh, entry) = (self.initiator.entries.get(new)?, self.initiator.entries.get(handle)?);
        let rest = entry.wire_length() - entry.cut;
        let ends = packet_length(entry, session.mtu.bytes(), entry.cut) == rest;
        let begins = packet_length(fresh, session.mtu.bytes(), 0);
        let (starts_next, few) = (tracker.starts_next, tracker.started.len() < RESTS_TOGETHER);
        let waits = !among_short
            && (is_long(fresh, begins) && !is_long(entry, rest))
            && few
            && self.admitted(index, new, begins);
        if !waits && (ends || !starts_next) {
            return self.pick_begun(index, handle);
        }
        self.admitted(index, new, begins).then_some(Pick::New(new, 0, begins))
    }

    /// The next packet of a command that is begun.
    fn pick_begun(&self, index: u32, handle: u16) -> Option<Pick> {
        let entry = self.initiator.entries.get(handle)?;
        let length = packet_length(entry, self.tracker(index)?.1.mtu.bytes(), entry.cut);
        self.admitted(index, handle, length).then_some(Pick::New(handle, entry.cut, length))
    }

    fn admitted(&self, index: u32, handle: u16, length: u32) -> bool {
        let Some((tracker, session)) = self.tracker(index) else { return false };
        self.initiator.entries.get(handle).is_some_and(|entry| {
            let weight = u64::from(weight(entry, length));
            match entry.is_read() && tracker.reads_wait {
                true => session.congestion.admits_several(weight),
                false => session.congestion.admits(weight),
            }
        })
    }

    /// Handle, offset and length of what was picked. A probe has no handle.
    fn measure(&self, index: u32, pick: Pick) -> Option<(u16, u32, u32)> {
        let (tracker, session) = self.tracker(index)?;
        Some(match pick {
            Pick::Again(psn) => {
                let sent = tracker.get(psn)?;
                (sent.handle, sent.offset, sent.length)
            }
            Pick::New(handle, offset, length) => (handle, offset, length),
            Pick::Reissue(lane, class) => {
                let refused = tracker.lane(lane)?.refusals(class).packets.front()?;
                (refused.handle, refused.offset, reissued(&self.initiator.entries, session, refused)?.1)
            }
            Pick::Probe => (0, 0, 0),
        })
    }

    /// Whether a packet was cut for more than the way now carries: it is withdrawn, to be cut anew (P-7.15). A read is asked
    /// for in parts, and an atomic cannot be cut.
    fn withdraws(&self, index: u32, pick: Pick) -> bool {
        let Pick::Again(psn) = pick else { return false };
        let Some((tracker, session)) = self.tracker(index) else { return false };
        let Some(sent) = tracker.get(psn).filter(|sent| sent.weight > session.mtu.bytes()) else { return false };
        self.initiator.entries.get(sent.handle).is_some_and(|entry| !entry.is_read() && !entry.is_atomic())
    }

    /// Gives the packet its psn, notes that it is sent, and writes its headers. Returns their length.
    fn encode_request(&mut self, now: Time, index: u32, pick: Pick, out: &mut [u8]) -> Option<usize> {
        if let Pick::Probe = pick {
            return self.encode_probe(now, index, out);
        }
        let (handle, offset, length) = self.measure(index, pick)?;
        let withdraws = self.withdraws(index, pick);
        let epoch = self.initiator.epoch;
        let (tracker, session) = tracked(&mut self.initiator.trackers, &mut self.nodes, index)?;
        let entry = self.initiator.entries.get_mut(handle)?;
        let weight = weight(entry, length);
        tracker.order += 1;
        if session.congestion.in_flight() == 0 {
            tracker.timeout_from = now;
        }
        let psn = match pick {
            Pick::Again(psn) => {
                let (order, sent) = (tracker.order, tracker.get_mut(psn)?);
                // The ticket changed since it was first sent: a new name, a new first time (P-7.9).
                if sent.first_sent == Time::NEVER {
                    sent.first_sent = now;
                }
                sent.state = SentState::InFlight;
                sent.again = true;
                sent.last_sent = now;
                sent.order = order;
                tracker.lost -= 1;
                tracker.allowance = tracker.allowance.saturating_sub(1);
                self.statistics.retransmissions += 1;
                psn
            }
            _ => {
                let psn = tracker.next();
                let reissued = matches!(pick, Pick::Reissue(..));
                tracker.reissued += u32::from(reissued);
                tracker.sent.push_back(Sent {
                    handle,
                    state: SentState::InFlight,
                    again: false,
                    reissued,
                    offset,
                    length,
                    received: 0,
                    asked: 0,
                    weight,
                    first_sent: now,
                    last_sent: now,
                    order: tracker.order,
                });
                psn
            }
        };
        session.congestion.sent(u64::from(weight));
        match pick {
            Pick::New(..) => {
                let begun = entry.phase == Phase::Queued;
                entry.phase = Phase::Started;
                entry.cut = offset + length;
                entry.packets += 1;
                tracker.starts_next = !begun;
                tracker.fetches += u32::from(entry.is_fetch());
                if begun {
                    tracker.unqueue(handle, entry);
                    entry.aside = None;
                    if let Some(lane) = tracker.lane_mut(entry.lane) {
                        lane.begin(handle, entry);
                    }
                    if !entry.is_cut() {
                        tracker.started.push_back(handle);
                    }
                } else if entry.is_cut() {
                    tracker.started.retain(|other| *other != handle);
                }
            }
            Pick::Reissue(lane, class) => {
                tracker.allowance = tracker.allowance.saturating_sub(1);
                tracker.starts_next = false;
                entry.packets += u32::from(tracker.take_refused(lane, class, length));
            }
            _ => {}
        }
        let room = packet_room(entry, session.mtu.bytes());
        let sent = tracker.get_mut(psn)?;
        sent.asked = sent.received + (sent.length - sent.received).min(room);
        let sent = *sent;
        tracker.unasked += 1;
        // One that was put aside and goes now may be the last as well.
        let tail = tracker.queue.is_empty() && tracker.own.is_empty() && tracker.started.is_empty();
        let ends_long = entry.is_cut() && entry.command.length > session.mtu.bytes();
        let fills = !session.congestion.admits(u64::from(weight));
        if entry.is_read() {
            tracker.reads_wait = fills;
        }
        // Somebody waits for the end of the last command, and perhaps nothing comes back that takes its acknowledgement
        // along.
        let awaited = tail && entry.is_cut() && awaits_answer(entry);
        let ask =
            sent.again || tracker.ticket == 0 || tracker.unasked >= ACK_EVERY || ends_long && tail || fills || awaited;
        if ask {
            tracker.unasked = 0;
        }
        let after = match entry.ordered {
            _ if withdraws => 0,
            true => tracker.lane(entry.lane).and_then(|lane| lane.after(entry.number)).unwrap_or(0),
            false if entry.is_send() => UNORDERED,
            false => 0,
        };
        let reliability = Reliability {
            handle,
            span: (psn - tracker.base) as u16,
            after,
            ticket: tracker.ticket,
            data: entry.command.has(CommandFlags::IMMEDIATE),
        };
        let generic = match withdraws {
            true => whole(Kind::Control, Flags::REJECT | Flags::RETRANSMIT | Flags::ACK_REQUEST),
            false => request_command(entry, &sent, ask),
        };
        let generic = between(generic, entry.to.endpoint, entry.source, epoch, psn as u32);
        self.statistics.packets_sent += 1;
        self.statistics.withdrawn += u64::from(withdraws);
        self.codec.encode(&generic, &reliability, out)
    }

    fn encode_probe(&mut self, now: Time, index: u32, out: &mut [u8]) -> Option<usize> {
        let tracker = self.initiator.trackers.get_mut(index)?;
        tracker.probe_wanted = false;
        tracker.probe_count = tracker.probe_count.wrapping_add(1).max(1);
        tracker.probe_handle = tracker.probe_count;
        tracker.owes_probe = false;
        let idle = tracker.is_done();
        let timestamp = now.micros() as u32;
        if !idle {
            let first = tracker.probe.map_or(now, |(first, _)| first);
            tracker.probe = Some((first, timestamp));
        }
        self.encode_last_probe(index, out)
    }

    /// Sends a PROBE that is as long as datagrams might be (P-8.9). Nothing waits for its answer.
    #[cold]
    fn transmit_mtu_probe(&mut self, now: Time, index: u32, transmit: &mut Transmit) -> bool {
        let Some((tracker, session)) = self.tracker_mut(index) else { return false };
        tracker.mtu_probe_wanted = false;
        tracker.probe_count = tracker.probe_count.wrapping_add(1).max(1);
        let length = session.mtu.send_probe(now, tracker.probe_count, now.micros() as u32) as usize;
        transmit.path = session.path;
        let mut packet = [0; HEADERS_MAX_BYTES];
        let Some(headers) = self.encode_last_probe(index, &mut packet) else { return false };
        self.pad(now, &mut packet, headers, length, transmit);
        true
    }

    fn encode_last_probe(&mut self, index: u32, out: &mut [u8]) -> Option<usize> {
        let epoch = self.initiator.epoch;
        let tracker = self.initiator.trackers.get(index)?;
        let reliability = Reliability {
            handle: tracker.probe_count,
            span: (tracker.next() - tracker.base) as u16,
            after: 0,
            ticket: tracker.ticket,
            data: false,
        };
        let generic = between(whole(Kind::Probe, Flags::ACK_REQUEST), 0, 0, epoch, tracker.next() as u32);
        self.statistics.packets_sent += 1;
        self.codec.encode(&generic, &reliability, out)
    }

    fn read_local(&self, handle: u16, offset: u32, into: &mut [u8]) -> Result<(), Fault> {
        let Some(entry) = self.initiator.entries.get(handle) else { return Err(Fault::UnknownKey) };
        read_local(self.delivery.memory(), entry.command.local, entry.command.offset + u64::from(offset), into)
    }

    /// A local buffer cannot be read any more: its command fails.
    fn local_fault(&mut self, now: Time, handle: u16, _: Fault) {
        self.finish(now, handle, Err(Failure::LocalFault));
    }
}

/// The command of a packet that is issued again, and as many bytes of it as the way now carries (P-7.15).
fn reissued<'a>(entries: &'a Entries, session: &Session, packet: &Reissue) -> Option<(&'a Entry, u32)> {
    let entry = entries.get(packet.handle)?;
    Some((entry, packet.length.min(packet_room(entry, session.mtu.bytes()))))
}

/// What says that all is well so far.
fn acknowledgement(request: Request) -> Answer {
    Answer { request, status: Status::Accepted, offer: 0, kind: Kind::Acknowledge, padding: 0 }
}

/// Whether a target's psns are used up for now.
fn is_full(tracker: &Tracker) -> bool {
    tracker.sent.len() >= tracker.window as usize || life_ends(tracker)
}

/// Headers in front of the payload of a command's packets, session header included.
fn header_bytes(entry: &Entry) -> usize {
    let immediate = if entry.command.has(CommandFlags::IMMEDIATE) { 8 } else { 0 };
    let base = SESSION_BYTES + crate::packet::TRANSPORT_BYTES + 12;
    match entry.command.operation {
        Operation::Send | Operation::Datagram => base + immediate,
        Operation::TaggedSend => base + 8 + immediate,
        Operation::Write => base + 16 + immediate,
        Operation::Atomic | Operation::FetchAtomic | Operation::CompareAtomic => base + 20,
        Operation::Read | Operation::Pull => base,
        Operation::Done => base + 8,
    }
}

/// Bytes of a command's next packet; of a read, of its response.
fn packet_length(entry: &Entry, mtu: u32, offset: u32) -> u32 {
    entry.wire_length().saturating_sub(offset).min(packet_room(entry, mtu))
}

/// Bytes of a command that a packet can take.
fn packet_room(entry: &Entry, mtu: u32) -> u32 {
    // P-4.7: an atomic is one packet, however long.
    if entry.is_atomic() {
        return u32::MAX;
    }
    mtu.saturating_sub((header_bytes(entry) + TRAILER_BYTES) as u32).max(1)
}

/// Whether the payload of a packet of so many bytes stays in memory (DMA), so that it cannot share a datagram.
fn is_long(entry: &Entry, length: u32) -> bool {
    length > PIO_MAX_BYTES && !entry.is_read() && entry.rendezvous == 0
}

/// Bytes that a packet counts in the congestion window: of a read, those of its response.
fn weight(entry: &Entry, length: u32) -> u32 {
    (header_bytes(entry) + TRAILER_BYTES) as u32 + length
}

/// Whether only an acknowledgement ends a command, and its user hears of that.
fn awaits_answer(entry: &Entry) -> bool {
    match entry.command.operation {
        Operation::Write | Operation::Atomic => entry.is_reported,
        Operation::Send | Operation::TaggedSend => entry.is_reported && entry.rendezvous == 0,
        _ => false,
    }
}

/// The generic command of a request's packet, without its ends.
fn request_command(entry: &Entry, sent: &Sent, ask: bool) -> Generic {
    let command = &entry.command;
    let (offset, length) = (u64::from(sent.offset), u64::from(command.length));
    let immediate = command.has(CommandFlags::IMMEDIATE);
    let mut flags = Flags(0);
    for (set, flag) in [
        (ask, Flags::ACK_REQUEST),
        (sent.again, Flags::RETRANSMIT),
        (command.has(CommandFlags::FENCE), Flags::FENCE),
        (command.has(CommandFlags::SOLICITED), Flags::SOLICITED),
    ] {
        if set {
            flags = flags | flag;
        }
    }
    if sent.offset == 0 || entry.is_read() {
        flags = flags | Flags::FIRST;
    }
    if sent.offset + sent.length >= entry.wire_length() || entry.is_read() {
        flags = flags | Flags::LAST;
    }
    let with_immediate = if immediate { flags | Flags::IMMEDIATE } else { flags };
    let message = |kind, flags| {
        Generic::new(kind, flags)
            .with(Slot::Message, u64::from(entry.number))
            .with(Slot::Offset, offset)
            .with(Slot::Length, length)
    };
    if entry.rendezvous != 0 {
        let tagged = command.operation == Operation::TaggedSend;
        let flags = if tagged { flags | Flags::IMMEDIATE } else { flags };
        let generic = message(Kind::ReadyToSend, flags).with(Slot::Key, entry.rendezvous).with(Slot::Address, 0);
        let generic = generic.with(Slot::Immediate, if immediate { command.immediate } else { 0 });
        return if tagged { generic.with(Slot::Argument0, command.address) } else { generic };
    }
    let remote = |generic: Generic| {
        generic.with(Slot::Key, command.key).with(Slot::Address, command.address.wrapping_add(offset))
    };
    match command.operation {
        Operation::Send => message(Kind::Send, with_immediate).with(Slot::Immediate, command.immediate),
        Operation::TaggedSend => message(Kind::TaggedSend, with_immediate)
            .with(Slot::Immediate, command.immediate)
            .with(Slot::Argument0, command.address),
        Operation::Datagram => message(Kind::Datagram, with_immediate).with(Slot::Immediate, command.immediate),
        Operation::Write => remote(message(Kind::Write, with_immediate)).with(Slot::Immediate, command.immediate),
        Operation::Read | Operation::Pull => {
            // P-5.3: what is still missing of this piece, as far as the way carries it.
            let (at, left) = (sent.offset + sent.received, sent.asked - sent.received);
            Generic::new(Kind::ReadRequest, flags)
                .with(Slot::Message, u64::from(entry.number))
                .with(Slot::Offset, u64::from(at))
                .with(Slot::Length, u64::from(left))
                .with(Slot::Key, command.key)
                .with(Slot::Address, command.address.wrapping_add(u64::from(at)))
        }
        Operation::Atomic | Operation::FetchAtomic | Operation::CompareAtomic => {
            let (kind, flags) = match command.operation {
                Operation::Atomic => (Kind::Atomic, flags),
                Operation::FetchAtomic => (Kind::Atomic, flags | Flags::FETCH),
                _ => (Kind::CompareSwap, flags | Flags::FETCH),
            };
            remote(message(kind, flags))
                .with(Slot::Argument2, u64::from(command.atomic.operation))
                .with(Slot::Status, u64::from(command.atomic.datatype))
                .with(Slot::Argument0, u64::from(command.atomic.count))
        }
        Operation::Done => {
            message(Kind::Invalidate, flags).with(Slot::Key, command.key).with(Slot::Length, command.immediate)
        }
    }
}

/// The status that tells a peer about a fault of our memory.
pub(super) fn status_of(fault: Fault) -> Status {
    match fault {
        Fault::UnknownKey | Fault::OutOfBounds | Fault::Forbidden | Fault::Misaligned => Status::AccessRefused,
        Fault::NotSupported => Status::NotSupported,
        Fault::Failed => Status::OperationFailed,
    }
}
