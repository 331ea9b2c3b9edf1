//! The initiator's side of a flow (P-7.1): exists only while something is unsettled.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::SocketAddr;

use super::congestion::Congestion;
use crate::limits::{KEEP_ALIVE_US, REORDER, WINDOW};
use crate::time::Time;

/// How a packet stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SentState {
    InFlight,
    /// To be sent again.
    Lost,
    /// The initiator has its final answer, or does not care any more.
    Settled,
}

/// A psn that was used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) handle: u16,
    pub(crate) state: SentState,
    pub(crate) again: bool,
    pub(crate) offset: u32,
    pub(crate) length: u32,
    /// Of reads: bytes that came, from the beginning.
    pub(crate) received: u32,
    /// Bytes that count as in flight.
    pub(crate) weight: u32,
    /// First sending under the present ticket.
    pub(crate) first_sent: Time,
    pub(crate) last_sent: Time,
    /// Number of the datagram that carried it last, among those to this target.
    pub(crate) order: u64,
}

/// A packet that was refused as not ready: the same bytes go out under a new psn (P-7.10).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reissue {
    pub(crate) handle: u16,
    pub(crate) number: u32,
    pub(crate) offset: u32,
    pub(crate) length: u32,
}

/// Messages of one source to one endpoint that are not settled, in order (P-6.4).
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) source: u32,
    pub(crate) destination: u32,
    pub(crate) unsettled: VecDeque<u32>,
}

/// A target with something in flight.
#[derive(Debug)]
pub(crate) struct Tracker {
    pub(crate) peer: SocketAddr,
    pub(crate) mtu: u32,
    /// 0: none yet.
    pub(crate) ticket: u64,
    /// The counter when the ticket was taken (P-7.13).
    pub(crate) ticket_psn: u64,
    /// Psns from base on.
    pub(crate) sent: VecDeque<Sent>,
    /// Of the first in `sent`.
    pub(crate) base: u64,
    pub(crate) window: u32,
    /// Commands not started.
    pub(crate) queue: VecDeque<u16>,
    /// Commands started, with packets still to be made.
    pub(crate) started: VecDeque<u16>,
    /// Whether a new command comes next, or one that was begun.
    pub(crate) starts_next: bool,
    /// The last read filled the window: the next ones wait until several may go.
    pub(crate) reads_wait: bool,
    pub(crate) reissue: Vec<Reissue>,
    pub(crate) reissue_at: Time,
    pub(crate) not_ready_count: u32,
    pub(crate) streams: Vec<Outgoing>,
    /// Fetching atomics whose results have not come: the target keeps each until it knows that they have.
    pub(crate) fetches: u32,
    /// Commands under way that later ones may have to wait for (`CommandFlags::ORDERED`).
    pub(crate) ordered: Vec<u16>,
    /// Commands that wait for DONE.
    pub(crate) await_done: u32,
    pub(crate) congestion: Congestion,
    /// Datagrams sent to this target.
    pub(crate) order: u64,
    /// The latest of them that is known to have arrived.
    pub(crate) order_arrived: u64,
    pub(crate) lost: u32,
    /// Lost packets that may be sent beyond the window: a probe timeout must be able to ask.
    pub(crate) allowance: u32,
    /// Probe timeouts since the last answer.
    pub(crate) timeouts: u32,
    /// When the probe timeout counts from.
    pub(crate) timeout_from: Time,
    /// t₀ of P-7.9, as far as answered packets go: latest first sending of what was answered under the ticket.
    pub(crate) answered: Time,
    /// When the last answer under the ticket came.
    pub(crate) heard: Time,
    /// When its host first said that nobody is there; 0 when it did not, or something was heard since.
    pub(crate) absent: Time,
    /// First sending of the PROBE that is unanswered, and of the last one.
    pub(crate) probe: Option<(Time, u32)>,
    pub(crate) probe_count: u16,
    pub(crate) probe_wanted: bool,
    pub(crate) next_keep_alive: Time,
    /// One PROBE is owed to the target before the tracker goes, so that it can forget (P-7.3).
    pub(crate) owes_probe: bool,
    pub(crate) probe_at: Time,
    /// In the list of those with something to send.
    pub(crate) ready: bool,
    /// Nothing is left: it goes at `free_at`.
    pub(crate) resting: bool,
    pub(crate) free_at: Time,
    /// In the list of those that rest, or did.
    pub(crate) listed: bool,
    /// Packets since an acknowledgement was asked for.
    pub(crate) unasked: u32,
    /// When a busy or full target is asked again.
    pub(crate) blocked_until: Time,
    /// The last answer was *busy*: only PROBEs show that the target lives (P-7.12).
    pub(crate) busy: bool,
}

impl Tracker {
    pub(crate) fn new(peer: SocketAddr, mtu: u32, base: u64, congestion: Congestion, now: Time) -> Tracker {
        Tracker {
            peer,
            mtu,
            ticket: 0,
            ticket_psn: base,
            sent: VecDeque::new(),
            base,
            window: WINDOW,
            queue: VecDeque::new(),
            started: VecDeque::new(),
            starts_next: true,
            reads_wait: false,
            reissue: Vec::new(),
            reissue_at: Time::NEVER,
            not_ready_count: 0,
            streams: Vec::new(),
            fetches: 0,
            ordered: Vec::new(),
            await_done: 0,
            congestion,
            order: 0,
            order_arrived: 0,
            lost: 0,
            allowance: 0,
            timeouts: 0,
            timeout_from: now,
            answered: Time(0),
            heard: Time(0),
            absent: Time(0),
            probe: None,
            probe_count: 0,
            probe_wanted: false,
            next_keep_alive: now.plus_micros(KEEP_ALIVE_US),
            owes_probe: false,
            probe_at: Time(0),
            ready: false,
            resting: false,
            free_at: Time(0),
            listed: false,
            unasked: 0,
            blocked_until: Time(0),
            busy: false,
        }
    }

    /// The psn to use next.
    pub(crate) fn next(&self) -> u64 {
        self.base + self.sent.len() as u64
    }

    /// The packet with this psn, as it travels, if it is unsettled.
    pub(crate) fn find(&self, psn: u32) -> Option<u64> {
        let distance = psn.wrapping_sub(self.base as u32);
        let sent = self.sent.get(distance as usize)?;
        (sent.state != SentState::Settled).then_some(self.base + u64::from(distance))
    }

    pub(crate) fn get(&self, psn: u64) -> Option<&Sent> {
        self.sent.get(psn.checked_sub(self.base)? as usize)
    }

    pub(crate) fn get_mut(&mut self, psn: u64) -> Option<&mut Sent> {
        self.sent.get_mut(psn.checked_sub(self.base)? as usize)
    }

    /// Whether everything is settled and nothing waits.
    pub(crate) fn is_done(&self) -> bool {
        self.sent.is_empty()
            && self.queue.is_empty()
            && self.started.is_empty()
            && self.reissue.is_empty()
            && self.await_done == 0
            && !self.owes_probe
            && !self.probe_wanted
    }

    /// Whether there may be something to send.
    pub(crate) fn has_more(&self) -> bool {
        let nothing = self.queue.is_empty() && self.started.is_empty() && self.reissue.is_empty();
        !nothing || self.lost > 0 || self.probe_wanted
    }

    /// Marks a packet as settled and moves the base. Returns what it was.
    pub(crate) fn settle(&mut self, psn: u64) -> Option<Sent> {
        let sent = self.get_mut(psn)?;
        if sent.state == SentState::Settled {
            return None;
        }
        let was = *sent;
        sent.state = SentState::Settled;
        match was.state {
            SentState::InFlight => self.congestion.left(u64::from(was.weight)),
            SentState::Lost => self.lost -= 1,
            SentState::Settled => {}
        }
        while self.sent.front().is_some_and(|sent| sent.state == SentState::Settled) {
            self.sent.pop_front();
            self.base += 1;
        }
        if self.sent.len() <= 1 {
            // The answers came by themselves, if behind the next request: nobody needs to be asked.
            self.unasked = self.sent.len() as u32;
        }
        Some(was)
    }

    /// Marks a packet to be sent again.
    pub(crate) fn lose(&mut self, psn: u64) {
        let Some(sent) = self.get_mut(psn) else { return };
        if sent.state == SentState::InFlight {
            sent.state = SentState::Lost;
            let weight = u64::from(sent.weight);
            self.congestion.left(weight);
            self.lost += 1;
        }
    }

    /// Looks for packets that later ones have overtaken (P-7.11). True: some are lost.
    pub(crate) fn detect_losses(&mut self, now: Time) -> bool {
        let Some(front) = self.sent.front() else { return false };
        if front.order >= self.order_arrived && front.state == SentState::InFlight {
            return false;
        }
        let patience = self.congestion.reorder_us() * 1000;
        let arrived = self.order_arrived;
        let mut found = 0;
        for sent in &mut self.sent {
            if sent.state != SentState::InFlight || sent.order >= arrived {
                continue;
            }
            if sent.order + REORDER < arrived || now.since(sent.last_sent) > patience {
                sent.state = SentState::Lost;
                self.congestion.left(u64::from(sent.weight));
                found += 1;
            }
        }
        self.lost += found;
        if found > 0 {
            self.congestion.lost(now);
        }
        found > 0
    }

    /// t₀ of P-7.9: before it, nothing that is unsettled under this ticket was sent, or it was answered.
    pub(crate) fn uncertain_since(&self) -> Option<Time> {
        self.earliest().map(|earliest| earliest.max(self.answered))
    }

    /// Since when nothing was heard of the target, though something was asked (P-7.12).
    pub(crate) fn silent_since(&self) -> Option<Time> {
        self.earliest().map(|earliest| earliest.max(self.heard))
    }

    /// The first sending of what is unanswered.
    fn earliest(&self) -> Option<Time> {
        // What is settled does not stay in front.
        let unsettled = self.sent.front().map(|sent| sent.first_sent);
        match (unsettled, self.probe.map(|(at, _)| at)) {
            (Some(sent), Some(probed)) => Some(sent.min(probed)),
            (one, other) => one.or(other),
        }
    }

    /// Adds a message to its stream.
    pub(crate) fn join_stream(&mut self, source: u32, destination: u32, number: u32) {
        let same = |stream: &Outgoing| stream.source == source && stream.destination == destination;
        let at = self.streams.iter().position(same);
        // An empty one may serve another stream: its list is allocated already.
        let at = at.or_else(|| self.streams.iter().position(|stream| stream.unsettled.is_empty()));
        match at.and_then(|at| self.streams.get_mut(at)) {
            Some(stream) => {
                (stream.source, stream.destination) = (source, destination);
                stream.unsettled.push_back(number);
            }
            None => {
                let unsettled = VecDeque::from([number]);
                self.streams.push(Outgoing { source, destination, unsettled });
            }
        }
    }

    /// A message of a stream is settled.
    pub(crate) fn leave_stream(&mut self, source: u32, destination: u32, number: u32) {
        let Some(at) = self.streams.iter().position(|s| s.source == source && s.destination == destination) else {
            return;
        };
        let Some(stream) = self.streams.get_mut(at) else { return };
        if stream.unsettled.front() == Some(&number) {
            stream.unsettled.pop_front();
        } else if let Ok(found) = stream.unsettled.binary_search_by(|other| order(*other, number)) {
            stream.unsettled.remove(found);
        }
    }

    /// The distance to the latest earlier message of the stream that is unsettled (P-6.4); 0: none. `None`: too far to be
    /// told.
    pub(crate) fn after(&self, source: u32, destination: u32, number: u32) -> Option<u16> {
        let stream = self.streams.iter().find(|s| s.source == source && s.destination == destination);
        let Some(stream) = stream else { return Some(0) };
        // Most are sent in order, so the last two settle it.
        let mut latest = stream.unsettled.iter().rev();
        if latest.next() == Some(&number) {
            let Some(earlier) = latest.next() else { return Some(0) };
            return distance(number, *earlier);
        }
        if stream.unsettled.front() == Some(&number) {
            return Some(0);
        }
        let at = stream.unsettled.partition_point(|other| order(*other, number).is_lt());
        let Some(earlier) = at.checked_sub(1).and_then(|at| stream.unsettled.get(at)) else { return Some(0) };
        distance(number, *earlier)
    }

    /// Bytes of sequence state.
    pub(crate) fn bytes(&self) -> usize {
        let streams = self.streams.iter().map(|s| s.unsettled.capacity() * 4 + size_of::<Outgoing>()).sum::<usize>();
        size_of::<Tracker>()
            + self.sent.capacity() * size_of::<Sent>()
            + (self.queue.capacity() + self.started.capacity()) * 2
            + self.reissue.capacity() * size_of::<Reissue>()
            + streams
    }
}

/// The distance as it travels, if it can.
fn distance(number: u32, earlier: u32) -> Option<u16> {
    u16::try_from(number.wrapping_sub(earlier)).ok().filter(|distance| *distance != crate::packet::UNORDERED)
}

/// Order of message numbers that wrap.
fn order(a: u32, b: u32) -> core::cmp::Ordering {
    (a.wrapping_sub(b) as i32).cmp(&0)
}
