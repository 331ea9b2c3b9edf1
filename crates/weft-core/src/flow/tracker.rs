//! The initiator's side of a flow (P-7.1): exists only while something is unsettled.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::burst::Burst;
use super::lane::{Aside, Class, Lane, Reissue, order};
use super::retransmit::{Entries, Entry};
use crate::limits::{KEEP_ALIVE_US, LANES_KEPT, REORDER, WINDOW};
use crate::session::Session;
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
    /// It was refused before under an earlier psn: packets of later messages may have lower ones.
    pub(crate) reissued: bool,
    pub(crate) offset: u32,
    pub(crate) length: u32,
    /// Of reads: bytes that came, from the beginning, and up to where they were asked for.
    pub(crate) received: u32,
    pub(crate) asked: u32,
    /// Bytes that count as in flight.
    pub(crate) weight: u32,
    /// First sending under the present ticket.
    pub(crate) first_sent: Time,
    pub(crate) last_sent: Time,
    /// Number of the datagram that carried it last, among those to this target.
    pub(crate) order: u64,
}

/// A target with something in flight.
#[derive(Debug)]
pub(crate) struct Tracker {
    /// Its place in the list of nodes.
    pub(crate) node: u32,
    /// A PROBE that asks whether longer datagrams arrive is to be sent.
    pub(crate) mtu_probe_wanted: bool,
    /// 0: none yet.
    pub(crate) ticket: u64,
    /// The counter when the ticket was taken (P-7.13).
    pub(crate) ticket_psn: u64,
    /// Psns from base on.
    pub(crate) sent: VecDeque<Sent>,
    /// Of those that are not settled, the reissued ones.
    pub(crate) reissued: u32,
    /// Of the first in `sent`.
    pub(crate) base: u64,
    pub(crate) window: u32,
    /// Commands that have not ended.
    pub(crate) commands: u32,
    /// Commands that the engine made itself and that have not started: a peer waits for them, so they go first.
    pub(crate) own: VecDeque<u16>,
    /// Commands not started, in the order in which they were posted.
    pub(crate) queue: VecDeque<u16>,
    /// Those of them that are posted together.
    pub(crate) burst: Burst,
    /// Each pair of endpoints that has commands here, or had.
    lanes: Vec<Lane>,
    /// Source and destination of each.
    pairs: Vec<(u32, u32)>,
    /// The lane of the last command.
    last_lane: u32,
    /// Lanes that have put commands aside, and which of them is looked at next.
    waiting: Vec<u32>,
    waiting_next: usize,
    /// Something ended that they may have waited for.
    pub(crate) woken: bool,
    /// Lanes with packets that were refused as not ready.
    pub(crate) refused: Vec<(u32, Class)>,
    /// Commands started, with packets still to be made.
    pub(crate) started: VecDeque<u16>,
    /// Whether a new command comes next, or one that was begun.
    pub(crate) starts_next: bool,
    /// The last read filled the window: the next ones wait until several may go.
    pub(crate) reads_wait: bool,
    /// Fetching atomics whose results have not come: the target keeps each until it knows that they have.
    pub(crate) fetches: u32,
    /// Commands that wait for DONE.
    pub(crate) await_done: u32,
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
    pub(crate) suspected: Time,
    /// First sending of the PROBE that is unanswered, and of the last one.
    pub(crate) probe: Option<(Time, u32)>,
    /// Handle of the last one, and of the last one of either kind (P-3.7).
    pub(crate) probe_handle: u16,
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
    /// How often in a row.
    pub(crate) busy_count: u32,
}

impl Tracker {
    pub(crate) fn new(node: u32, base: u64, now: Time) -> Tracker {
        Tracker {
            node,
            mtu_probe_wanted: false,
            ticket: 0,
            ticket_psn: base,
            sent: VecDeque::new(),
            reissued: 0,
            base,
            window: WINDOW,
            commands: 0,
            own: VecDeque::new(),
            queue: VecDeque::new(),
            burst: Burst::default(),
            lanes: Vec::new(),
            pairs: Vec::new(),
            last_lane: 0,
            waiting: Vec::new(),
            waiting_next: 0,
            woken: false,
            refused: Vec::new(),
            started: VecDeque::new(),
            starts_next: true,
            reads_wait: false,
            fetches: 0,
            await_done: 0,
            order: 0,
            order_arrived: 0,
            lost: 0,
            allowance: 0,
            timeouts: 0,
            timeout_from: now,
            answered: Time(0),
            heard: Time(0),
            suspected: Time(0),
            probe: None,
            probe_handle: 0,
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
            busy_count: 0,
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
        self.commands == 0 && self.sent.is_empty() && !self.owes_probe && !self.probe_wanted
    }

    /// Whether there may be something to send.
    pub(crate) fn has_more(&self) -> bool {
        let asks = self.probe_wanted || self.mtu_probe_wanted;
        self.has_new() || !self.started.is_empty() || !self.refused.is_empty() || self.lost > 0 || asks
    }

    /// Whether there may be a command to start.
    pub(crate) fn has_new(&self) -> bool {
        !self.queue.is_empty() || !self.own.is_empty() || self.woken
    }

    /// Marks a packet as settled and moves the base. Returns what it was.
    pub(crate) fn settle(&mut self, session: &mut Session, psn: u64) -> Option<Sent> {
        let sent = self.get_mut(psn)?;
        if sent.state == SentState::Settled {
            return None;
        }
        let was = *sent;
        sent.state = SentState::Settled;
        match was.state {
            SentState::InFlight => session.congestion.left(u64::from(was.weight)),
            SentState::Lost => self.lost -= 1,
            SentState::Settled => {}
        }
        self.reissued -= u32::from(was.reissued);
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
    pub(crate) fn lose(&mut self, session: &mut Session, psn: u64) {
        let Some(sent) = self.get_mut(psn) else { return };
        if sent.state == SentState::InFlight {
            sent.state = SentState::Lost;
            session.congestion.left(u64::from(sent.weight));
            self.lost += 1;
        }
    }

    /// Marks what is longer than the way now carries to be sent again.
    pub(crate) fn lose_oversized(&mut self, session: &mut Session) {
        let mtu = session.mtu.bytes();
        for at in 0..self.sent.len() as u64 {
            if self.get(self.base + at).is_some_and(|sent| sent.weight > mtu) {
                self.lose(session, self.base + at);
            }
        }
    }

    /// Looks for packets that later ones have overtaken (P-7.11). True: some are lost.
    pub(crate) fn detect_losses(&mut self, session: &mut Session, now: Time) -> bool {
        let Some(front) = self.sent.front() else { return false };
        if front.order >= self.order_arrived && front.state == SentState::InFlight {
            return false;
        }
        let patience = session.congestion.reorder_us() * 1000;
        let arrived = self.order_arrived;
        let mut found = 0;
        for sent in &mut self.sent {
            if sent.state != SentState::InFlight || sent.order >= arrived {
                continue;
            }
            if sent.order + REORDER < arrived || now.since(sent.last_sent) > patience {
                sent.state = SentState::Lost;
                session.congestion.left(u64::from(sent.weight));
                found += 1;
            }
        }
        self.lost += found;
        if found > 0 {
            session.congestion.lost(now);
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

    pub(crate) fn lane(&self, lane: u32) -> Option<&Lane> {
        self.lanes.get(lane as usize)
    }

    pub(crate) fn lane_mut(&mut self, lane: u32) -> Option<&mut Lane> {
        self.lanes.get_mut(lane as usize)
    }

    /// A command comes: the lane that it takes.
    pub(crate) fn join_lane(&mut self, source: u32, destination: u32) -> u32 {
        self.commands += 1;
        let pair = (source, destination);
        if self.pairs.get(self.last_lane as usize) != Some(&pair) {
            self.last_lane = self.find_lane(pair).unwrap_or_else(|| self.make_lane(pair));
        }
        if let Some(lane) = self.lanes.get_mut(self.last_lane as usize) {
            lane.commands += 1;
        }
        self.last_lane
    }

    /// The lane of a pair of endpoints.
    pub(crate) fn find_lane(&self, pair: (u32, u32)) -> Option<u32> {
        self.pairs.iter().position(|other| *other == pair).map(|at| at as u32)
    }

    #[cold]
    fn make_lane(&mut self, pair: (u32, u32)) -> u32 {
        let unused = |lane: &Lane| lane.commands == 0;
        let unused = if self.lanes.len() < LANES_KEPT { None } else { self.lanes.iter().position(unused) };
        if let Some(at) = unused
            && let (Some(lane), Some(place)) = (self.lanes.get_mut(at), self.pairs.get_mut(at))
        {
            lane.begin_anew();
            *place = pair;
            return at as u32;
        }
        self.lanes.push(Lane::default());
        self.pairs.push(pair);
        self.lanes.len() as u32 - 1
    }

    /// The command to be started next. Those that have to wait are put aside.
    #[inline]
    pub(crate) fn next_command(&mut self, entries: &mut Entries) -> Option<u16> {
        if let Some(own) = self.own.front() {
            return Some(*own);
        }
        if self.woken
            && let Some(handle) = self.next_aside(entries)
        {
            return Some(handle);
        }
        loop {
            let handle = *self.queue.front()?;
            let entry = entries.get(handle)?;
            let lane = self.lanes.get(entry.lane as usize)?;
            let Some(reason) = lane.obstacle(entries, entry, self.fetches) else { return Some(handle) };
            self.queue.pop_front();
            let entry = entries.get_mut(handle)?;
            entry.aside = Some(reason);
            let index = entry.lane;
            let lane = self.lanes.get_mut(index as usize)?;
            lane.aside_mut(reason).push_back(handle);
            lane.waiting += 1;
            if lane.waiting == 1 {
                self.waiting.push(index);
            }
            // It waits for earlier commands, whose users perhaps do not: then nobody has asked for their acknowledgement.
            if matches!(reason, Aside::Fence | Aside::Ordered) && self.unasked > 0 && !self.sent.is_empty() {
                (self.probe_wanted, self.unasked) = (true, 0);
            }
        }
    }

    /// The bug of looking at the first command alone: whether it has to wait.
    #[cfg(feature = "plant")]
    pub(crate) fn front_waits(&self, entries: &Entries) -> bool {
        let entry = self.queue.front().and_then(|handle| entries.get(*handle)).filter(|_| self.own.is_empty());
        let lane = |entry: &Entry| self.lanes.get(entry.lane as usize);
        entry.is_some_and(|entry| lane(entry).is_some_and(|lane| lane.obstacle(entries, entry, self.fetches).is_some()))
    }

    /// A command that was put aside and may start now. Lanes take turns.
    #[cold]
    fn next_aside(&mut self, entries: &mut Entries) -> Option<u16> {
        for step in 0..self.waiting.len() {
            let at = (self.waiting_next + step) % self.waiting.len();
            let lane = self.waiting.get(at).and_then(|lane| self.lanes.get_mut(*lane as usize));
            if let Some(handle) = lane.and_then(|lane| lane.startable(entries, self.fetches)) {
                self.waiting_next = at;
                return Some(handle);
            }
        }
        self.woken = false;
        None
    }

    /// Something ended that commands put aside may have waited for.
    pub(crate) fn wake(&mut self) {
        self.woken = !self.waiting.is_empty();
    }

    /// A command starts, or ends before it did: it leaves the place where it waited.
    pub(crate) fn unqueue(&mut self, handle: u16, entry: &Entry) {
        let Some(reason) = entry.aside else {
            // Mostly it is the first.
            let queue = if entry.is_own() { &mut self.own } else { &mut self.queue };
            if queue.front() == Some(&handle) {
                queue.pop_front();
            } else {
                queue.retain(|other| *other != handle);
            }
            return;
        };
        let Some(lane) = self.lanes.get_mut(entry.lane as usize) else { return };
        let aside = lane.aside_mut(reason);
        if aside.front() == Some(&handle) {
            aside.pop_front();
        } else {
            aside.retain(|other| *other != handle);
        }
        lane.waiting -= 1;
        if lane.waiting == 0 {
            self.waiting.retain(|other| *other != entry.lane);
        } else {
            // The others come first.
            self.waiting_next += 1;
        }
    }

    /// A packet was refused as not ready.
    pub(crate) fn refuse(&mut self, entry: &Entry, packet: Reissue, sent: Time, now: Time) {
        self.withdraw(entry, packet);
        if let Some(lane) = self.lane_mut(entry.lane) {
            lane.refusals_mut(Class::of(entry)).limit(sent, now);
        }
    }

    /// A packet was not executed, and goes out under another psn.
    pub(crate) fn withdraw(&mut self, entry: &Entry, packet: Reissue) {
        let (class, index) = (Class::of(entry), entry.lane);
        let Some(lane) = self.lanes.get_mut(index as usize) else { return };
        let refusals = lane.refusals_mut(class);
        if refusals.packets.is_empty() {
            self.refused.push((index, class));
        }
        refusals.put(packet);
    }

    /// The oldest packet that was refused and may be sent again.
    pub(crate) fn next_refused(&self) -> Option<(u32, Class)> {
        let mut oldest: Option<((u32, Class), u32)> = None;
        for &(index, class) in &self.refused {
            let refusals = self.lane(index).map(|lane| lane.refusals(class)).filter(|refusals| refusals.permits());
            let Some(front) = refusals.and_then(|refusals| refusals.packets.front()) else { continue };
            if oldest.is_none_or(|(_, number)| order(front.number, number).is_lt()) {
                oldest = Some(((index, class), front.number));
            }
        }
        oldest.map(|(place, _)| place)
    }

    /// So many bytes of the first packet of those that were refused are sent again. True: a rest of it stays.
    pub(crate) fn take_refused(&mut self, index: u32, class: Class, length: u32) -> bool {
        let Some(lane) = self.lanes.get_mut(index as usize) else { return false };
        let refusals = lane.refusals_mut(class);
        refusals.spend();
        if let Some(rest) = refusals.packets.front_mut().filter(|packet| length < packet.length) {
            (rest.offset, rest.length) = (rest.offset + length, rest.length - length);
            return true;
        }
        refusals.packets.pop_front();
        if refusals.packets.is_empty() {
            self.refused.retain(|place| *place != (index, class));
            self.wake();
        }
        false
    }

    /// Forgets refused packets of a command that ends.
    pub(crate) fn forget_refused(&mut self, handle: u16, entry: &Entry) {
        let class = Class::of(entry);
        let Some(lane) = self.lanes.get_mut(entry.lane as usize) else { return };
        let refusals = lane.refusals_mut(class);
        if refusals.packets.is_empty() {
            return;
        }
        refusals.packets.retain(|packet| packet.handle != handle);
        if refusals.packets.is_empty() {
            self.refused.retain(|place| *place != (entry.lane, class));
        }
    }

    /// When something that was refused is tried again without being asked for.
    pub(crate) fn reissue_at(&self) -> Time {
        let at = |(index, class): &(u32, Class)| self.lane(*index).map_or(Time::NEVER, |lane| lane.refusals(*class).at);
        self.refused.iter().map(at).min().unwrap_or(Time::NEVER)
    }

    /// Lets one packet of each lane go that was refused long enough ago. True: there is one.
    pub(crate) fn reissue_due(&mut self, now: Time) -> bool {
        let mut due = false;
        for &(index, class) in &self.refused {
            let lane = self.lanes.get_mut(index as usize);
            due |= lane.is_some_and(|lane| lane.refusals_mut(class).timeout(now));
        }
        due
    }

    /// Bytes of sequence state.
    pub(crate) fn bytes(&self) -> usize {
        let lanes = self.lanes.iter().map(|lane| lane.bytes() + size_of::<(u32, u32)>()).sum::<usize>();
        size_of::<Tracker>()
            + self.sent.capacity() * size_of::<Sent>()
            + (self.queue.capacity() + self.own.capacity() + self.started.capacity()) * 2
            + self.refused.capacity() * size_of::<(u32, Class)>()
            + self.waiting.capacity() * size_of::<u32>()
            + lanes
    }
}
