//! What is due: probe timeouts, packets to be issued again, keep-alives, giving up; and at the target lives that rest, packets
//! held too long, and forgetting.

use super::{Engine, tracked};
use crate::flow::tracker::{Sent, SentState, Tracker};
use crate::limits::{KEEP_ALIVE_US, MESSAGE_IDLE_US, ORDER_HOLD_US, PROBE_LINGER_US, PROBE_PACKETS, RETAIN_US};
use crate::memory::Memory;
use crate::session::Session;
use crate::time::Time;

impl<M: Memory> Engine<M> {
    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Time) {
        self.handle_deferred_ack();
        self.clock = now;
        if now >= self.initiator.trackers_due {
            self.initiator.trackers_due = Time::NEVER;
            let mut from = 0;
            self.initiator.suspects = false;
            while let Some(index) = self.initiator.trackers.next_from(from) {
                from = index + 1;
                self.initiator.suspects |=
                    self.initiator.trackers.get(index).is_some_and(|tracker| tracker.suspected != Time(0));
                self.tracker_timeout(now, index);
                self.schedule(now, index);
                self.free_tracker_if_done(index);
            }
            for _ in 0..self.initiator.resting.len() {
                let Some(index) = self.initiator.resting.pop_front() else { break };
                if self.initiator.trackers.get(index).is_some_and(|tracker| tracker.resting && tracker.free_at > now) {
                    self.initiator.resting.push_back(index);
                } else {
                    self.free_tracker(index);
                }
            }
        }
        if now >= self.target.lives_due {
            self.lives_timeout(now);
        }
        if now >= self.target.tombstones.next_sweep()
            && let Some(greatest) = self.target.tombstones.sweep(now)
        {
            self.target.discarded_ticket = self.target.discarded_ticket.max(greatest);
        }
    }

    /// When [`Engine::handle_timeout`] or [`Engine::poll_transmit`] wants to be called; [`Time::NEVER`] when nothing is under
    /// way.
    pub fn poll_timeout(&self) -> Time {
        let ack = self.target.acks_later.front().map_or(Time::NEVER, |(due, _)| *due);
        self.initiator.trackers_due.min(self.target.lives_due).min(self.target.tombstones.next_sweep()).min(ack)
    }

    /// Notes when a tracker needs to be looked at again.
    pub(super) fn schedule(&mut self, now: Time, index: u32) {
        let Some((tracker, session)) = self.tracker(index) else { return };
        let due = next_due(tracker, session, now, self.config.give_up_us);
        self.initiator.trackers_due = self.initiator.trackers_due.min(due);
    }

    fn tracker_timeout(&mut self, now: Time, index: u32) {
        let give_up_us = self.config.give_up_us;
        let Some((tracker, session)) = tracked(&mut self.initiator.trackers, &mut self.nodes, index) else { return };
        if tracker.silent_since().is_some_and(|since| now >= since.plus_micros(give_up_us)) {
            self.give_up(now, index);
            return;
        }
        let mut ready = false;
        if tracker.blocked_until != Time(0) && now >= tracker.blocked_until {
            tracker.blocked_until = Time(0);
            ready = true;
        }
        ready |= tracker.reissue_due(now);
        if waits(tracker) && now >= tracker.next_keep_alive {
            tracker.next_keep_alive = now.plus_micros(KEEP_ALIVE_US);
            tracker.probe_wanted = true;
            ready = true;
        }
        if tracker.owes_probe && now >= tracker.probe_at {
            // While requests are under way it waits: only a PROBE behind them tells that refused messages are over (P-4.10).
            tracker.owes_probe = !tracker.sent.is_empty();
            tracker.probe_wanted |= tracker.sent.is_empty();
            tracker.probe_at = now.plus_micros(PROBE_LINGER_US);
            ready = true;
        }
        ready |= tracker.detect_losses(session, now);
        let in_flight = tracker.sent.iter().any(|sent| sent.state == SentState::InFlight);
        if in_flight && now >= timeout_at(tracker, session) {
            self.statistics.timeouts += 1;
            tracker.timeouts += 1;
            tracker.timeout_from = now;
            // Where little gets through, a long message would keep those behind it so long that their target forgets them.
            if tracker.started.len() > 1 {
                tracker.started.rotate_left(1);
            }
            // Once, the oldest two ask whether anything arrives. When that stays without an answer too, all count as lost:
            // as long as they count as in flight, a small window would let nothing out at all.
            let mut left = if tracker.timeouts >= 2 { usize::MAX } else { PROBE_PACKETS };
            for at in 0..tracker.sent.len() {
                if left == 0 {
                    break;
                }
                if tracker.sent.get(at).is_some_and(|sent| sent.state == SentState::InFlight) {
                    tracker.lose(session, tracker.base + at as u64);
                    left -= 1;
                }
            }
            tracker.allowance = PROBE_PACKETS as u32;
            if tracker.timeouts >= 2 {
                session.congestion.collapsed(now);
            }
            if session.mtu.time_out(now) {
                self.statistics.narrowed += 1;
            }
            ready = true;
        }
        if ready {
            self.make_ready(index);
        }
    }

    fn lives_timeout(&mut self, now: Time) {
        self.target.lives_due = Time::NEVER;
        let mut from = 0;
        while let Some(index) = self.target.lives.next_from(from) {
            from = index + 1;
            if self.target.lives.get(index).is_some_and(|life| life.held.iter().any(|held| held.until <= now)) {
                self.release_held(now, index, None);
            }
            let Some(life) = self.target.lives.get_mut(index) else { continue };
            life.forget_given_up(now);
            if now >= life.last.plus_micros(RETAIN_US) {
                // P-7.4: whoever it was has forgotten us too.
                let ticket = life.ticket;
                self.end_life(index);
                self.target.discarded_ticket = self.target.discarded_ticket.max(ticket);
            }
        }
        self.shrink_lives(now, false);
        self.abort_idle_messages(now);
        let mut due = Time::NEVER;
        for (_, life) in self.target.lives.iter() {
            let held = life.held.iter().map(|held| held.until).min().unwrap_or(Time::NEVER);
            let rest =
                if life.is_idle() { life.last.plus_micros(ORDER_HOLD_US) } else { life.last.plus_micros(RETAIN_US) };
            let messages = if life.messages > 0 { life.last.plus_micros(MESSAGE_IDLE_US) } else { Time::NEVER };
            due = due.min(held).min(rest).min(messages);
        }
        if !self.target.lives.is_empty() {
            // A life that is full of idle tombstones' room waits for it; never spin on it.
            due = due.max(now.plus_micros(ORDER_HOLD_US / 4));
        }
        self.target.lives_due = due;
    }
}

/// Whether the initiator waits for something that only the target can start (P-7.12).
fn waits(tracker: &Tracker) -> bool {
    let idle = tracker.sent.is_empty()
        && (tracker.await_done > 0 || !tracker.refused.is_empty() || !tracker.started.is_empty());
    tracker.ticket != 0 && (tracker.busy || idle)
}

/// When the probe timeout passes.
fn timeout_at(tracker: &Tracker, session: &Session) -> Time {
    tracker.timeout_from.plus_micros(session.congestion.pto_us(tracker.timeouts))
}

fn next_due(tracker: &Tracker, session: &Session, now: Time, give_up_us: u64) -> Time {
    let mut due = Time::NEVER;
    // Mostly it is the first.
    let in_flight = |sent: &Sent| sent.state == SentState::InFlight;
    if tracker.sent.front().is_some_and(in_flight) || tracker.sent.iter().any(in_flight) {
        due = due.min(timeout_at(tracker, session));
    }
    if let Some(since) = tracker.silent_since() {
        due = due.min(since.plus_micros(give_up_us));
    }
    // What is due but does not fit the window waits for an answer or the probe timeout.
    if !tracker.refused.is_empty() {
        due = due.min(tracker.reissue_at());
    }
    if tracker.blocked_until > now {
        due = due.min(tracker.blocked_until);
    }
    if waits(tracker) {
        due = due.min(tracker.next_keep_alive);
    }
    if tracker.owes_probe {
        due = due.min(tracker.probe_at);
    }
    if tracker.resting {
        due = due.min(tracker.free_at);
    }
    due
}
