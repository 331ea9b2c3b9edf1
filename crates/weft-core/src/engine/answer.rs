//! The way up, at the initiator: what answers to our requests mean.

use alloc::vec::Vec;

use weft_wire::command::{Kind, Slot};
use weft_wire::table::Decoded;
use weft_wire::transaction::{Segment, Transaction};

use super::{DatagramMeta, Engine, tracked};
use crate::command::Operation;
use crate::delivery::write_local;
use crate::event::Failure;
use crate::flow::before;
use crate::flow::lane::{Class, Reissue, wait_us};
use crate::flow::retransmit::Phase;
use crate::flow::tracker::Tracker;
use crate::limits::{KEEP_ALIVE_US, WINDOW_MIN};
use crate::memory::Memory;
use crate::node::NodeId;
use crate::packet::{Reliability, Status};
use crate::session::Path;
use crate::time::Time;

/// An answer, decoded.
struct AnswerIn<'a> {
    now: Time,
    path: Path,
    decoded: &'a Decoded,
    reliability: &'a Reliability,
    payload: &'a [u8],
}

impl<M: Memory> Engine<M> {
    /// Takes an answer. It changes nothing unless it fits a request that is under way (P-3.3).
    pub(super) fn handle_answer(
        &mut self,
        arrived: &DatagramMeta,
        decoded: &Decoded,
        reliability: &Reliability,
        payload: &[u8],
    ) {
        let command = &decoded.command;
        let answer = AnswerIn { now: arrived.now, path: arrived.path, decoded, reliability, payload };
        let Some(index) = self.tracker_of_answer(&answer) else {
            self.statistics.dropped_late += 1;
            return;
        };
        if let Some((tracker, session)) = self.tracker_mut(index) {
            tracker.heard = answer.now;
            tracker.mtu_probe_wanted |= session.mtu.wants_probe(answer.now);
        }
        match command.kind() {
            Kind::Acknowledge => self.on_acknowledge(&answer, index),
            Kind::ReadResponse => self.on_read_response(&answer, index),
            Kind::AtomicResponse => self.on_atomic_response(&answer, index),
            Kind::Probe => self.on_probe_reply(&answer, index),
            Kind::Control => self.on_credit(&answer, index),
            _ => self.statistics.dropped_malformed += 1,
        }
        // Mostly it was all that was waited for, and nothing is to be sent.
        if self.initiator.trackers.get(index).is_some_and(Tracker::has_more) {
            self.make_ready(index);
        }
        self.schedule(answer.now, index);
        self.free_tracker_if_done(index);
    }

    /// The flow that an answer is about: by its handle without search, or, when that command is done, by the peer.
    fn tracker_of_answer(&self, answer: &AnswerIn<'_>) -> Option<u32> {
        let of_handle = self.initiator.entries.get(answer.reliability.handle).map(|entry| entry.tracker);
        let node = self.nodes.find(NodeId::at(answer.path))?;
        let fits = |index: &u32| self.initiator.trackers.get(*index).is_some_and(|tracker| tracker.node == node);
        let index = of_handle.filter(fits).or_else(|| self.nodes.get(node)?.tracker)?;
        let tracker = self.initiator.trackers.get(index)?;
        let epoch = answer.decoded.command.slot(Slot::Argument3) as u32;
        let mine = epoch == self.initiator.epoch && tracker.ticket == answer.reliability.ticket;
        #[cfg(feature = "plant")]
        let mine = match self.config.plant {
            Some(super::Plant::SkipRefusedTicketCheck) => true,
            Some(super::Plant::SkipHandleCheck) => epoch == self.initiator.epoch,
            _ => mine,
        };
        mine.then_some(index)
    }

    /// The unsettled packet that an answer names, if it is of the command that the handle names.
    fn named(&self, answer: &AnswerIn<'_>, index: u32) -> Option<u64> {
        let tracker = self.initiator.trackers.get(index)?;
        #[cfg(feature = "plant")]
        if self.config.plant == Some(super::Plant::SkipHandleCheck) {
            let named = |sent: &crate::flow::tracker::Sent| {
                sent.handle == answer.reliability.handle && sent.state != crate::flow::tracker::SentState::Settled
            };
            return tracker.sent.iter().position(named).map(|at| tracker.base + at as u64);
        }
        let psn = tracker.find(answer.decoded.command.sequence() as u32)?;
        let sent = tracker.get(psn)?;
        let entry = self.initiator.entries.get(sent.handle)?;
        let command = &answer.decoded.command;
        // A packet that waits to be sent under a new ticket has no name that could be answered.
        let sent_once = sent.first_sent != Time::NEVER;
        let ends = command.source() as u32 == entry.to.endpoint && command.queue() as u32 == entry.source;
        (sent.handle == answer.reliability.handle && ends && sent_once).then_some(psn)
    }

    fn on_acknowledge(&mut self, answer: &AnswerIn<'_>, index: u32) {
        let command = &answer.decoded.command;
        let status = Status::from_code(command.status());
        let named = self.named(answer, index);
        match status {
            Status::Synchronise | Status::Restarted => {
                if named.is_some() {
                    self.on_new_ticket(answer.now, index, status, command.slot(Slot::Argument0));
                } else {
                    self.statistics.dropped_late += 1;
                }
                return;
            }
            Status::Busy => {
                if let (Some(psn), Some((tracker, session))) = (named, self.tracker_mut(index)) {
                    heard(tracker, psn, answer.now);
                    tracker.lose(session, psn);
                    if !tracker.busy {
                        tracker.busy = true;
                        tracker.next_keep_alive = answer.now.plus_micros(KEEP_ALIVE_US);
                    }
                    tracker.busy_count += 1;
                    tracker.blocked_until = answer.now.plus_micros(wait_us(tracker.busy_count));
                }
                return;
            }
            _ => {}
        }
        if let Some(tracker) = self.initiator.trackers.get_mut(index) {
            (tracker.busy, tracker.busy_count) = (false, 0);
        }
        if !self.apply_accepted(answer, index) {
            self.statistics.dropped_malformed += 1;
            return;
        }
        // The bits may have settled it, and with it the tracker.
        let Some(psn) = named.filter(|_| self.named(answer, index) == named) else { return };
        let Some((tracker, session)) = self.tracker_mut(index) else { return };
        heard(tracker, psn, answer.now);
        match status {
            Status::Accepted => self.settle_accepted(answer.now, index, psn),
            Status::NotReady => self.on_not_ready(answer.now, index, psn),
            Status::OutOfWindow => tracker.window = (tracker.window / 2).max(WINDOW_MIN),
            Status::InProgress => {}
            Status::Synchronise | Status::Restarted | Status::Busy => {}
            refused => {
                let failure = failure_of(refused);
                let handle = tracker.settle(session, psn).map_or(0, |sent| sent.handle);
                if let Some(entry) = self.initiator.entries.get_mut(handle) {
                    entry.packets = entry.packets.saturating_sub(1);
                }
                self.finish(answer.now, handle, Err(failure));
            }
        }
    }

    /// Takes floor and bitmap of an answer (P-4.9). False: they cannot be.
    fn apply_accepted(&mut self, answer: &AnswerIn<'_>, index: u32) -> bool {
        let command = &answer.decoded.command;
        let highest = command.offset() as u32;
        let span = u32::from(answer.reliability.span);
        let bitmap = command.slot(Slot::Argument0);
        let Some(tracker) = self.initiator.trackers.get_mut(index) else { return true };
        let (base, next) = (tracker.base as u32, tracker.next() as u32);
        if !before(highest, next) {
            return false;
        }
        self.sample(answer, index);
        let floor = highest.wrapping_add(1).wrapping_sub(span);
        // Everything from the base to the highest that is accepted.
        let mut psn = base;
        while psn == highest || before(psn, highest) {
            let below = highest.wrapping_sub(psn);
            let accepted = before(psn, floor)
                || below == 0 && span != 0
                || (1..=64).contains(&below) && bitmap >> (below - 1) & 1 == 1;
            if accepted && let Some(found) = self.initiator.trackers.get(index).and_then(|tracker| tracker.find(psn)) {
                self.settle_accepted(answer.now, index, found);
            }
            psn = psn.wrapping_add(1);
        }
        if let Some((tracker, session)) = self.tracker_mut(index) {
            tracker.detect_losses(session, answer.now);
        }
        true
    }

    /// A packet was executed, or will be for certain.
    fn settle_accepted(&mut self, now: Time, index: u32, psn: u64) {
        let Some((tracker, session)) = tracked(&mut self.initiator.trackers, &mut self.nodes, index) else { return };
        let Some(sent) = tracker.get(psn).copied() else { return };
        if sent.first_sent == Time::NEVER {
            return;
        }
        if !sent.again {
            tracker.order_arrived = tracker.order_arrived.max(sent.order);
        }
        tracker.answered = tracker.answered.max(sent.first_sent);
        let Some(entry) = self.initiator.entries.get_mut(sent.handle) else { return };
        if entry.wants_response() {
            // Only the response settles it; the request has arrived.
            entry.accepted |= !entry.is_read();
            return;
        }
        tracker.settle(session, psn);
        session.congestion.delivered(u64::from(sent.weight));
        entry.accepted = true;
        let (lane, class) = (entry.lane, Class::of(entry));
        accepted(tracker, lane, class);
        self.packet_done(now, sent.handle);
    }

    /// One packet of a command is settled well.
    fn packet_done(&mut self, now: Time, handle: u16) {
        let Some(entry) = self.initiator.entries.get_mut(handle) else { return };
        entry.packets = entry.packets.saturating_sub(1);
        if entry.packets > 0 || !entry.is_cut() {
            return;
        }
        if entry.rendezvous == 0 {
            self.finish(now, handle, Ok(()));
            return;
        }
        entry.phase = Phase::AwaitDone;
        let (ordered, lane, number) = (entry.ordered, entry.lane, entry.number);
        entry.ordered = false;
        let index = entry.tracker;
        if let Some(tracker) = self.initiator.trackers.get_mut(index) {
            tracker.await_done += 1;
            tracker.next_keep_alive = now.plus_micros(KEEP_ALIVE_US);
            if let Some(lane) = tracker.lane_mut(lane).filter(|_| ordered) {
                lane.leave_stream(number);
                tracker.wake();
            }
        }
    }

    fn on_not_ready(&mut self, now: Time, index: u32, psn: u64) {
        let Some((tracker, session)) = tracked(&mut self.initiator.trackers, &mut self.nodes, index) else { return };
        let Some(sent) = tracker.settle(session, psn) else { return };
        let Some(entry) = self.initiator.entries.get(sent.handle) else { return };
        let (handle, number, offset, length) = (sent.handle, entry.number, sent.offset, sent.length);
        let packet = Reissue { handle, number, offset, length };
        if sent.weight > session.mtu.bytes() {
            // It was withdrawn (P-7.15): nobody lacked room.
            tracker.withdraw(entry, packet);
        } else {
            tracker.refuse(entry, packet, sent.last_sent, now);
        }
        tracker.detect_losses(session, now);
        tracker.owes_probe = true;
        tracker.probe_at = now.plus_micros(KEEP_ALIVE_US);
    }

    /// The target's endpoint can take messages again.
    fn on_credit(&mut self, answer: &AnswerIn<'_>, index: u32) {
        let Some(tracker) = self.initiator.trackers.get_mut(index) else { return };
        tracker.blocked_until = answer.now;
        let command = &answer.decoded.command;
        let pair = (command.queue() as u32, command.source() as u32);
        if let Some(lane) = tracker.find_lane(pair).and_then(|lane| tracker.lane_mut(lane)) {
            lane.credit();
            tracker.wake();
        }
    }

    fn on_read_response(&mut self, answer: &AnswerIn<'_>, index: u32) {
        let command = &answer.decoded.command;
        let Some(psn) = self.named(answer, index) else {
            self.statistics.dropped_late += 1;
            return;
        };
        let Some(sent) = self.initiator.trackers.get(index).and_then(|tracker| tracker.get(psn)).copied() else {
            return;
        };
        let Some(entry) = self.initiator.entries.get(sent.handle).copied() else { return };
        let wanted = u64::from(sent.offset + sent.received);
        let left = sent.length - sent.received;
        let length = answer.payload.len() as u64;
        let fits = entry.is_read() && command.message() as u32 == entry.number && command.offset() == wanted;
        if !fits || length > u64::from(left) || length == 0 && left > 0 {
            self.statistics.dropped_late += 1;
            return;
        }
        // The command's own buffer, and nothing else, is where bytes may go.
        let segment = Segment { address: entry.command.offset, length: u64::from(entry.command.length) };
        let placed = Transaction::new(&[segment]).and_then(|mut transaction| {
            let mut rest = answer.payload;
            for piece in self.codec.tables().place(answer.decoded, Some(&mut transaction)).ok()? {
                let (part, behind) = rest.split_at_checked(piece.length as usize)?;
                write_local(self.delivery.memory_mut(), entry.command.local, piece.address, part).ok()?;
                rest = behind;
            }
            Some(())
        });
        if placed.is_none() {
            self.finish(answer.now, sent.handle, Err(Failure::LocalFault));
            return;
        }
        let Some((tracker, session)) = self.tracker_mut(index) else { return };
        heard(tracker, psn, answer.now);
        if !sent.again {
            tracker.order_arrived = tracker.order_arrived.max(sent.order);
        }
        if length < u64::from(left) {
            if let Some(sent) = tracker.get_mut(psn) {
                sent.received += length as u32;
                // It was asked for in parts: the next one.
                if sent.received >= sent.asked {
                    tracker.lose(session, psn);
                }
            }
            return;
        }
        tracker.settle(session, psn);
        session.congestion.delivered(u64::from(sent.weight));
        tracker.detect_losses(session, answer.now);
        accepted(tracker, entry.lane, Class::Remote);
        self.packet_done(answer.now, sent.handle);
    }

    fn on_atomic_response(&mut self, answer: &AnswerIn<'_>, index: u32) {
        let Some(psn) = self.named(answer, index) else {
            self.statistics.dropped_late += 1;
            return;
        };
        let Some(handle) =
            self.initiator.trackers.get(index).and_then(|tracker| tracker.get(psn)).map(|sent| sent.handle)
        else {
            return;
        };
        let Some(entry) = self.initiator.entries.get(handle).copied() else { return };
        let length = entry.command.atomic.bytes().unwrap_or(0);
        let fits = entry.wants_response() && !entry.is_read() && answer.payload.len() == length;
        if !fits || answer.decoded.command.message() as u32 != entry.number {
            self.statistics.dropped_malformed += 1;
            return;
        }
        let (results, at) = (entry.command.results(), entry.command.results_offset());
        let written = write_local(self.delivery.memory_mut(), results, at, answer.payload);
        if let Some((tracker, session)) = self.tracker_mut(index) {
            heard(tracker, psn, answer.now);
            if let Some(sent) = tracker.settle(session, psn) {
                session.congestion.delivered(u64::from(sent.weight));
            }
            accepted(tracker, entry.lane, Class::Remote);
        }
        match written {
            Ok(()) => self.packet_done(answer.now, handle),
            Err(_) => self.finish(answer.now, handle, Err(Failure::LocalFault)),
        }
    }

    fn on_probe_reply(&mut self, answer: &AnswerIn<'_>, index: u32) {
        let command = &answer.decoded.command;
        let Some((tracker, session)) = tracked(&mut self.initiator.trackers, &mut self.nodes, index) else { return };
        let (echo, handle) = (command.slot(Slot::Argument1) as u32, answer.reliability.handle);
        if let Some(more) = session.mtu.answered(handle, echo) {
            session.congestion.set_packet(session.mtu.bytes());
            self.statistics.widened += u64::from(more);
            return;
        }
        let fits = tracker.probe.is_some_and(|(_, sent)| sent == echo) && tracker.probe_handle == handle;
        if !fits {
            self.statistics.dropped_late += 1;
            return;
        }
        let status = Status::from_code(command.status());
        if let Status::Synchronise | Status::Restarted = status {
            self.on_new_ticket(answer.now, index, status, command.slot(Slot::Argument0));
            return;
        }
        if let Some((first, _)) = tracker.probe.take() {
            tracker.answered = tracker.answered.max(first);
            tracker.timeouts = 0;
            tracker.timeout_from = answer.now;
            tracker.next_keep_alive = answer.now.plus_micros(KEEP_ALIVE_US);
        }
        self.sample(answer, index);
    }

    /// The target does not know our ticket, and gives another (P-7.9).
    fn on_new_ticket(&mut self, now: Time, index: u32, status: Status, offer: u64) {
        let give_up_us = self.config.give_up_us;
        let Some((tracker, session)) = tracked(&mut self.initiator.trackers, &mut self.nodes, index) else { return };
        let since = tracker.uncertain_since().unwrap_or(now);
        let in_time = tracker.ticket == 0 || now < since.plus_micros(give_up_us);
        if offer == 0 || status == Status::Synchronise && !in_time {
            self.give_up(now, index);
            return;
        }
        let had_ticket = tracker.ticket != 0;
        tracker.ticket = offer;
        tracker.ticket_psn = tracker.base;
        tracker.answered = Time(0);
        tracker.heard = now;
        tracker.timeouts = 0;
        tracker.timeout_from = now;
        tracker.probe = None;
        tracker.owes_probe = false;
        for at in 0..tracker.sent.len() as u64 {
            tracker.lose(session, tracker.base + at);
        }
        for sent in &mut tracker.sent {
            sent.first_sent = Time::NEVER;
            sent.received = 0;
        }
        // Who was given up was left without a ticket.
        let node = tracker.node;
        if let Some(node) = self.nodes.get_mut(node) {
            node.absent = false;
        }
        if !had_ticket {
            return;
        }
        let doomed: Vec<u16> = self
            .initiator
            .entries
            .handles()
            .filter(|(_, entry)| entry.tracker == index)
            .filter(|(_, entry)| match status {
                // Begun messages would be put together from two lives.
                Status::Synchronise => entry.accepted || entry.phase == Phase::AwaitDone,
                // Memory and marks of the target are gone: nobody knows what was done.
                // Fetching has no effect there, nor has the end of it if it comes twice; the key tells whether the
                // message is of this start.
                _ => {
                    let repeatable = matches!(entry.command.operation, Operation::Pull | Operation::Done);
                    entry.phase != Phase::Queued && !repeatable
                }
            })
            .map(|(handle, _)| handle)
            .collect();
        for handle in doomed {
            self.finish(now, handle, Err(Failure::OutcomeUnknown));
        }
    }

    /// Measures the round trip from the echoed timestamp (P-4.9).
    fn sample(&mut self, answer: &AnswerIn<'_>, index: u32) {
        let command = &answer.decoded.command;
        let Some((_, session)) = self.tracker_mut(index) else { return };
        let since = (answer.now.micros() as u32).wrapping_sub(command.slot(Slot::Argument1) as u32);
        let hold = command.slot(Slot::Argument2) as u32;
        if since < RTT_PLAUSIBLE_US && hold <= since {
            let sent = Time::from_micros(answer.now.micros().saturating_sub(u64::from(since)));
            session.congestion.sample(since - hold, sent, command.immediate() as u16, answer.now);
        }
    }

    /// A target is not answering (P-7.12): all that was sent to it fails, and the ticket is dropped.
    pub(super) fn give_up(&mut self, now: Time, index: u32) {
        self.statistics.given_up += 1;
        let Some(tracker) = self.initiator.trackers.get_mut(index) else { return };
        tracker.ticket = 0;
        tracker.ticket_psn = tracker.next();
        tracker.probe = None;
        (tracker.answered, tracker.suspected) = (Time(0), Time(0));
        tracker.timeouts = 0;
        tracker.timeout_from = now;
        let node = tracker.node;
        if let Some(node) = self.nodes.get_mut(node) {
            node.known = None;
        }
        // What waits behind it would wait for the same silence: it fails too, as not executed or unknown alike.
        let all: Vec<u16> = self
            .initiator
            .entries
            .handles()
            .filter(|(_, entry)| entry.tracker == index)
            .map(|(handle, _)| handle)
            .collect();
        for handle in all {
            self.finish(now, handle, Err(Failure::OutcomeUnknown));
        }
        if let Some(tracker) = self.initiator.trackers.get_mut(index) {
            tracker.owes_probe = false;
            tracker.probe_wanted = false;
        }
        self.free_tracker_if_done(index);
    }
}

/// Samples above this are from before a wrap of the clock, or lies.
const RTT_PLAUSIBLE_US: u32 = 60_000_000;

/// The target answered under this ticket.
fn heard(tracker: &mut Tracker, psn: u64, now: Time) {
    tracker.timeouts = 0;
    tracker.timeout_from = now;
    if let Some(sent) = tracker.get(psn).filter(|sent| sent.first_sent != Time::NEVER) {
        let (order, first_sent) = (if sent.again { 0 } else { sent.order }, sent.first_sent);
        tracker.answered = tracker.answered.max(first_sent);
        // A packet that was refused has arrived as well: what was sent before it and was not is lost.
        tracker.order_arrived = tracker.order_arrived.max(order);
    }
}

/// The target took a packet of a lane: it may take more.
#[inline]
fn accepted(tracker: &mut Tracker, lane: u32, class: Class) {
    let Some(refusals) = tracker.lane_mut(lane).map(|lane| lane.refusals_mut(class)) else { return };
    if refusals.is_limited() {
        refusals.accepted();
        tracker.wake();
    }
}

fn failure_of(status: Status) -> Failure {
    match status {
        Status::AccessRefused => Failure::AccessRefused,
        Status::LengthError => Failure::LengthError,
        Status::NoSuchEndpoint => Failure::NoSuchEndpoint,
        Status::NotSupported => Failure::NotSupported,
        Status::ChecksumMismatch => Failure::ChecksumMismatch,
        Status::Aborted => Failure::Aborted,
        Status::OperationFailed => Failure::OperationFailed,
        _ => Failure::ProtocolError,
    }
}
