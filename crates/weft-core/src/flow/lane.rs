//! A lane: what one source endpoint has under way to one endpoint of a target. Message order and fences concern one lane
//! only (P-6.4, P-6.5), and so does a refusal (P-7.10). A command that cannot start now is put aside in its lane, behind
//! those that wait for the same thing, and holds up nobody else.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::retransmit::{Entries, Entry};
use crate::command::{CommandFlags, Operation};
use crate::limits::{FETCHES_MAX, ORDERED_MAX, PERMITS_MAX, RNR_WAIT_MAX_US, RNR_WAIT_US};
use crate::packet::UNORDERED;
use crate::time::Time;

/// What a command waits for that was put aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Aside {
    /// A message: an earlier one of the lane, which was refused or is too far away.
    Message,
    /// A write with immediate data: an earlier one, which was refused.
    Notice,
    /// An ordered command: an earlier one that it meets in memory.
    Ordered,
    /// A fetching atomic: results of others.
    Fetch,
    /// A fence: everything before it; and everything behind a fence: its start.
    Fence,
}

/// Commands that are refused for the same reasons (P-7.10), and for others than those of another class: a message may wait
/// for a receive, a write with immediate data only for room in a queue, all else waits for the target's engine alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Message,
    Notice,
    Remote,
}

impl Class {
    pub(crate) fn of(entry: &Entry) -> Class {
        match entry.command.operation {
            Operation::Send | Operation::TaggedSend => Class::Message,
            Operation::Write if entry.command.has(CommandFlags::IMMEDIATE) => Class::Notice,
            _ => Class::Remote,
        }
    }
}

/// A packet that was refused as not ready: the same bytes go out under a new psn (P-7.10).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reissue {
    pub(crate) handle: u16,
    pub(crate) number: u32,
    pub(crate) offset: u32,
    pub(crate) length: u32,
}

/// Packets of one class of a lane that were refused, and how many may be tried again.
#[derive(Debug)]
pub(crate) struct Refusals {
    /// The oldest first.
    pub(crate) packets: VecDeque<Reissue>,
    /// Packets that may go before more is heard; `None`: any number. A target that has room for one may not have it for
    /// all, so each that is accepted lets two more go.
    permits: Option<u32>,
    /// When one is tried without being asked for.
    pub(crate) at: Time,
    /// Refusals in a row, each of something that was sent after the one before.
    rounds: u32,
    /// When the last of them came.
    since: Time,
}

impl Default for Refusals {
    fn default() -> Refusals {
        Refusals { packets: VecDeque::new(), permits: None, at: Time::NEVER, rounds: 0, since: Time(0) }
    }
}

impl Refusals {
    /// A packet is to be sent again.
    pub(crate) fn put(&mut self, packet: Reissue) {
        // Mostly they come in order.
        let earlier =
            |other: &Reissue| order(other.number, packet.number).then(other.offset.cmp(&packet.offset)).is_lt();
        let mut at = self.packets.len();
        while at > 0 && !self.packets.get(at - 1).is_some_and(earlier) {
            at -= 1;
        }
        self.packets.insert(at, packet);
    }

    /// What was last sent at `sent` was refused.
    pub(crate) fn limit(&mut self, sent: Time, now: Time) {
        // What was under way when the first was refused tells nothing new.
        if self.permits.is_none() || sent >= self.since {
            self.permits = Some(0);
            self.rounds += 1;
            self.since = now;
            self.at = now.plus_micros(wait_us(self.rounds));
        }
    }

    /// A packet was accepted.
    pub(crate) fn accepted(&mut self) {
        if let Some(permits) = self.permits {
            self.rounds = 0;
            let permits = permits + 2;
            self.permits = (permits < PERMITS_MAX).then_some(permits);
        }
    }

    /// A command ended: if it was the one that would have told whether there is room, another may.
    pub(crate) fn ended(&mut self) {
        if self.packets.is_empty() {
            self.permits = self.permits.map(|permits| permits.max(1));
        }
    }

    /// The target has room again.
    fn credit(&mut self) {
        self.permits = self.permits.map(|permits| permits.max(2));
    }

    /// Time has passed: one packet asks whether there is room. True: it may go.
    pub(crate) fn timeout(&mut self, now: Time) -> bool {
        let due = !self.packets.is_empty() && now >= self.at;
        if due {
            self.permits = self.permits.map(|permits| permits.max(1));
            // Its answer decides; should there be none, because its command was given up, the next one asks.
            self.at = now.plus_micros(RNR_WAIT_MAX_US);
        }
        due
    }

    /// Whether a packet may go, be it a new one or one that was refused.
    pub(crate) fn permits(&self) -> bool {
        self.permits != Some(0)
    }

    /// Whether something was refused and it is not known yet that there is room for more.
    pub(crate) fn is_limited(&self) -> bool {
        self.permits.is_some()
    }

    /// One goes.
    pub(crate) fn spend(&mut self) {
        self.permits = self.permits.map(|permits| permits.saturating_sub(1));
    }
}

/// See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    /// Commands that have not ended; what the engine sends itself too.
    pub(crate) commands: u32,
    /// The user's commands that have begun and have not ended.
    pub(crate) begun: u32,
    /// Commands that were put aside.
    pub(crate) waiting: u32,
    /// Messages that are not settled, in order (P-6.4).
    pub(crate) unsettled: VecDeque<u32>,
    /// Ordered commands that have begun: later ones may have to wait for them.
    pub(crate) ordered: Vec<u16>,
    aside: [VecDeque<u16>; 5],
    refusals: [Refusals; 3],
}

impl Lane {
    pub(crate) fn aside(&self, reason: Aside) -> &VecDeque<u16> {
        let [message, notice, ordered, fetch, fence] = &self.aside;
        match reason {
            Aside::Message => message,
            Aside::Notice => notice,
            Aside::Ordered => ordered,
            Aside::Fetch => fetch,
            Aside::Fence => fence,
        }
    }

    pub(crate) fn aside_mut(&mut self, reason: Aside) -> &mut VecDeque<u16> {
        let [message, notice, ordered, fetch, fence] = &mut self.aside;
        match reason {
            Aside::Message => message,
            Aside::Notice => notice,
            Aside::Ordered => ordered,
            Aside::Fetch => fetch,
            Aside::Fence => fence,
        }
    }

    pub(crate) fn refusals(&self, class: Class) -> &Refusals {
        let [message, notice, remote] = &self.refusals;
        match class {
            Class::Message => message,
            Class::Notice => notice,
            Class::Remote => remote,
        }
    }

    pub(crate) fn refusals_mut(&mut self, class: Class) -> &mut Refusals {
        let [message, notice, remote] = &mut self.refusals;
        match class {
            Class::Message => message,
            Class::Notice => notice,
            Class::Remote => remote,
        }
    }

    /// The target's endpoint can take messages again.
    pub(crate) fn credit(&mut self) {
        self.refusals.iter_mut().for_each(Refusals::credit);
    }

    /// Serves another pair of endpoints: what is allocated stays.
    pub(crate) fn begin_anew(&mut self) {
        for refusals in &mut self.refusals {
            refusals.packets.clear();
            *refusals = Refusals { packets: core::mem::take(&mut refusals.packets), ..Refusals::default() };
        }
    }

    /// Whether everything before a fence has ended.
    fn is_idle(&self) -> bool {
        self.begun == 0 && self.waiting as usize == self.aside(Aside::Fence).len()
    }

    /// What a command of the user has to wait for, if anything; `fetches` are under way to the target.
    #[inline]
    pub(crate) fn obstacle(&self, entries: &Entries, entry: &Entry, fetches: u32) -> Option<Aside> {
        let fence = entry.command.has(CommandFlags::FENCE);
        if !self.aside(Aside::Fence).is_empty() || fence && !self.is_idle() {
            return Some(Aside::Fence);
        }
        self.obstacle_without_fence(entries, entry, fetches)
    }

    #[inline]
    fn obstacle_without_fence(&self, entries: &Entries, entry: &Entry, fetches: u32) -> Option<Aside> {
        let reason = match Class::of(entry) {
            Class::Message => Aside::Message,
            _ if entry.command.has(CommandFlags::ORDERED) => Aside::Ordered,
            Class::Notice => Aside::Notice,
            Class::Remote if entry.is_fetch() => Aside::Fetch,
            Class::Remote => return None,
        };
        (!self.aside(reason).is_empty() || !self.may_start(entries, entry, fetches)).then_some(reason)
    }

    /// Whether a command may start, if it is the first of its kind.
    fn may_start(&self, entries: &Entries, entry: &Entry, fetches: u32) -> bool {
        let class = Class::of(entry);
        let ordered = entry.command.has(CommandFlags::ORDERED);
        match class {
            Class::Message => self.in_reach(entry) && self.refusals(class).permits(),
            Class::Notice if !self.refusals(class).permits() => false,
            _ if entry.is_fetch() && fetches >= FETCHES_MAX => false,
            _ => !(ordered && self.is_held_back(entries, entry)),
        }
    }

    /// Whether the distance to the message before it can be told.
    #[inline]
    fn in_reach(&self, entry: &Entry) -> bool {
        let near = |first: &u32| entry.number.wrapping_sub(*first) < u32::from(UNORDERED);
        !entry.ordered || self.unsettled.front().is_none_or(near) || self.after(entry.number).is_some()
    }

    /// Whether an ordered command has to wait for an earlier one. Those that touch other bytes go side by side.
    fn is_held_back(&self, entries: &Entries, entry: &Entry) -> bool {
        let earlier =
            |handle: &u16| entries.get(*handle).is_some_and(|other| entry.command.must_follow(&other.command));
        self.ordered.len() >= ORDERED_MAX || self.ordered.iter().any(earlier)
    }

    /// The first command put aside that may start now. What stood behind a fence that has started is put where it belongs.
    pub(crate) fn startable(&mut self, entries: &mut Entries, fetches: u32) -> Option<u16> {
        while let Some(&front) = self.aside(Aside::Fence).front() {
            let entry = entries.get(front)?;
            if entry.command.has(CommandFlags::FENCE) {
                if self.is_idle() && self.may_start(entries, entry, fetches) {
                    return Some(front);
                }
                break;
            }
            let Some(reason) = self.obstacle_without_fence(entries, entry, fetches) else { return Some(front) };
            self.aside_mut(Aside::Fence).pop_front();
            self.aside_mut(reason).push_back(front);
            if let Some(entry) = entries.get_mut(front) {
                entry.aside = Some(reason);
            }
        }
        [Aside::Message, Aside::Notice, Aside::Ordered, Aside::Fetch].into_iter().find_map(|reason| {
            let front = *self.aside(reason).front()?;
            let entry = entries.get(front)?;
            self.may_start(entries, entry, fetches).then_some(front)
        })
    }

    /// A command starts.
    #[inline]
    pub(crate) fn begin(&mut self, handle: u16, entry: &Entry) {
        if entry.is_own() {
            return;
        }
        self.begun += 1;
        let class = Class::of(entry);
        if class != Class::Remote {
            self.refusals_mut(class).spend();
        }
        if entry.command.has(CommandFlags::ORDERED) {
            self.ordered.push(handle);
        }
    }

    /// A message is settled.
    pub(crate) fn leave_stream(&mut self, number: u32) {
        if self.unsettled.front() == Some(&number) {
            self.unsettled.pop_front();
        } else if let Ok(found) = self.unsettled.binary_search_by(|other| order(*other, number)) {
            self.unsettled.remove(found);
        }
    }

    /// The distance to the latest earlier message that is unsettled (P-6.4); 0: none. `None`: too far to be told.
    #[inline]
    pub(crate) fn after(&self, number: u32) -> Option<u16> {
        // Most are sent in order, so the last two settle it.
        let mut latest = self.unsettled.iter().rev();
        if latest.next() == Some(&number) {
            let Some(earlier) = latest.next() else { return Some(0) };
            return distance(number, *earlier);
        }
        if self.unsettled.front() == Some(&number) {
            return Some(0);
        }
        let at = self.unsettled.partition_point(|other| order(*other, number).is_lt());
        let Some(earlier) = at.checked_sub(1).and_then(|at| self.unsettled.get(at)) else { return Some(0) };
        distance(number, *earlier)
    }

    /// Bytes of its state.
    pub(crate) fn bytes(&self) -> usize {
        let aside: usize = self.aside.iter().map(VecDeque::capacity).sum();
        let refused: usize = self.refusals.iter().map(|refusals| refusals.packets.capacity()).sum();
        size_of::<Lane>()
            + self.unsettled.capacity() * 4
            + (aside + self.ordered.capacity()) * 2
            + refused * size_of::<Reissue>()
    }
}

/// How long to wait after so many refusals (P-7.10).
pub(crate) fn wait_us(count: u32) -> u64 {
    (RNR_WAIT_US << count.saturating_sub(1).min(16)).min(RNR_WAIT_MAX_US)
}

/// The distance as it travels, if it can.
fn distance(number: u32, earlier: u32) -> Option<u16> {
    u16::try_from(number.wrapping_sub(earlier)).ok().filter(|distance| *distance != UNORDERED)
}

/// Order of message numbers that wrap.
pub(crate) fn order(a: u32, b: u32) -> core::cmp::Ordering {
    (a.wrapping_sub(b) as i32).cmp(&0)
}
