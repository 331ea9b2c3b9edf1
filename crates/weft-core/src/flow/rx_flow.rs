//! The target's side of a flow while requests are under way (P-7.2): which psns were executed, and what is owed to the peer.

use alloc::vec::Vec;

use super::before;
use super::replay::ReplayCache;
use crate::limits::{GIVEN_UP_MAX, RETAIN_US, STREAMS_MAX, WINDOW};
use crate::node::NodeId;
use crate::packet::{Status, UNORDERED};
use crate::session::Path;
use crate::session::verified::Verified;
use crate::time::Time;

const WORDS: usize = (WINDOW / 64) as usize;
const _: () = assert!(WINDOW.is_multiple_of(64) && WINDOW.is_power_of_two());

/// Why a psn that was seen is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// Waits for an earlier message of its stream.
    Held,
    /// Refused for good.
    Refused(Status),
}

/// What a psn is to the life when it arrives (P-7.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// Below the base: the initiator knows the outcome.
    Settled,
    /// The response is in the replay cache.
    Replay,
    /// Executed before.
    Duplicate,
    /// Seen before, and not accepted.
    Marked(Mark),
    /// Beyond the window.
    OutOfWindow,
    /// To be executed.
    New,
}

/// The request that an answer names (P-3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// The way it came, and its answer goes.
    pub(crate) path: Path,
    pub(crate) handle: u16,
    pub(crate) psn: u32,
    pub(crate) ticket: u64,
    pub(crate) epoch: u32,
    /// The initiator's endpoint.
    pub(crate) source: u32,
    /// Ours.
    pub(crate) destination: u32,
    /// The initiator's clock when it was sent.
    pub(crate) timestamp: u32,
    /// When it came.
    pub(crate) arrival: Time,
    /// It was sent before: perhaps its answer did not arrive.
    pub(crate) again: bool,
}

impl Request {
    /// Who sent it.
    #[inline]
    pub(crate) fn node(&self) -> NodeId {
        NodeId::at(self.path)
    }
}

/// An acknowledgement that may wait for company (P-7.8).
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingAck {
    /// The latest request that it answers.
    pub(crate) request: Request,
    pub(crate) packets: u32,
    pub(crate) due: Time,
    /// Before that, where it was asked for and waits for company only.
    pub(crate) soon: Time,
}

/// The order of messages of one source endpoint to one of ours (P-6.4).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    pub(crate) source: u32,
    pub(crate) destination: u32,
    /// The latest message that matched, joined the unexpected ones, or was refused for good.
    pub(crate) last: u32,
    /// A message was refused as not ready, and none has passed since: those behind it are refused too.
    pub(crate) refused: bool,
}

/// A packet that waits for an earlier message.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) psn: u32,
    /// Source and destination: the stream that it is of.
    pub(crate) stream: (u32, u32),
    /// The message that must come before.
    pub(crate) earlier: u32,
    pub(crate) until: Time,
    pub(crate) packet: Verified<Vec<u8>>,
    pub(crate) timestamp: u32,
    pub(crate) arrival: Time,
}

/// A message of several packets that was refused for good: its other packets must not be taken for another message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RefusedMessage {
    pub(crate) source: u32,
    pub(crate) number: u32,
    pub(crate) status: Status,
    /// The packet that was refused.
    psn: u32,
    /// The initiator has not been told, and may go on with the message until then. `None`: it has been.
    untold_until: Option<Time>,
    /// All its packets lie below: when the base has come here, none can follow.
    end: u32,
}

/// One peer with requests under way.
#[derive(Debug)]
pub(crate) struct Life {
    /// Its place in the list of nodes.
    pub(crate) node: u32,
    pub(crate) ticket: u64,
    base: u32,
    floor: u32,
    highest: u32,
    /// Ring of bits, psn modulo WINDOW, for psns from the floor on.
    accepted: [u64; WORDS],
    marks: Vec<(u32, Mark)>,
    pub(crate) replay: ReplayCache,
    pub(crate) streams: Vec<Stream>,
    refused: Vec<RefusedMessage>,
    pub(crate) held: Vec<Held>,
    pub(crate) held_bytes: usize,
    pub(crate) ack: Option<PendingAck>,
    /// When the last packet was processed.
    pub(crate) last: Time,
    /// Messages that are partly here.
    pub(crate) messages: u32,
}

fn place(psn: u32) -> (usize, u64) {
    let at = psn % WINDOW;
    ((at / 64) as usize, 1 << (at % 64))
}

impl Life {
    /// A life that begins at `base`.
    pub(crate) fn new(node: u32, ticket: u64, base: u32, floor: u32, now: Time) -> Life {
        Life {
            node,
            ticket,
            base,
            floor,
            highest: floor.wrapping_sub(1),
            accepted: [0; WORDS],
            marks: Vec::new(),
            replay: ReplayCache::default(),
            streams: Vec::new(),
            refused: Vec::new(),
            held: Vec::new(),
            held_bytes: 0,
            ack: None,
            last: now,
            messages: 0,
        }
    }

    pub(crate) fn floor(&self) -> u32 {
        self.floor
    }

    pub(crate) fn highest(&self) -> u32 {
        self.highest
    }

    /// Accepted psns above the floor, as answers tell them.
    pub(crate) fn span(&self) -> u16 {
        self.highest.wrapping_add(1).wrapping_sub(self.floor) as u16
    }

    /// Bit i: psn `highest` − 1 − i is accepted.
    pub(crate) fn bitmap(&self) -> u64 {
        let start = self.highest.wrapping_sub(64) % WINDOW;
        let (word, shift) = ((start / 64) as usize, start % 64);
        let low = self.accepted.get(word).copied().unwrap_or(0) >> shift;
        let high = self.accepted.get((word + 1) % WORDS).copied().unwrap_or(0);
        let high = if shift == 0 { 0 } else { high << (64 - shift) };
        (low | high).reverse_bits()
    }

    /// Takes the initiator's base (P-3.5), then says what the psn is (P-7.6).
    pub(crate) fn arrive(&mut self, psn: u32, span: u16) -> Arrival {
        self.raise_base(psn.wrapping_sub(u32::from(span)));
        if before(psn, self.base) {
            return Arrival::Settled;
        }
        if self.replay.find(psn).is_some() {
            return Arrival::Replay;
        }
        let distance = psn.wrapping_sub(self.floor);
        let in_window = distance < WINDOW;
        let (word, bit) = place(psn);
        if before(psn, self.floor) || in_window && self.accepted.get(word).is_some_and(|word| word & bit != 0) {
            return Arrival::Duplicate;
        }
        if let Some((_, mark)) = self.marks.iter().find(|(marked, _)| *marked == psn) {
            return Arrival::Marked(*mark);
        }
        if in_window { Arrival::New } else { Arrival::OutOfWindow }
    }

    /// Raises base, and floor with it.
    pub(crate) fn raise_base(&mut self, base: u32) {
        if !before(self.base, base) {
            return;
        }
        self.base = base;
        if before(self.floor, base) {
            if base.wrapping_sub(self.floor) >= WINDOW {
                self.accepted = [0; WORDS];
                self.floor = base;
            }
            while self.floor != base {
                let (word, bit) = place(self.floor);
                if let Some(word) = self.accepted.get_mut(word) {
                    *word &= !bit;
                }
                self.floor = self.floor.wrapping_add(1);
            }
            self.advance();
        }
        self.marks.retain(|(psn, _)| !before(*psn, base));
        self.refused.retain(|refused| refused.untold_until.is_some() || before(base, refused.end));
        self.replay.settle(base);
        let held_bytes = &mut self.held_bytes;
        self.held.retain(|held| {
            let keep = !before(held.psn, base);
            if !keep {
                *held_bytes = held_bytes.saturating_sub(held.packet.bytes().len());
            }
            keep
        });
    }

    /// Marks a psn as accepted.
    pub(crate) fn accept(&mut self, psn: u32) {
        if before(self.highest, psn) {
            self.highest = psn;
        }
        let (word, bit) = place(psn);
        if let Some(word) = self.accepted.get_mut(word) {
            *word |= bit;
        }
        if psn == self.floor {
            self.advance();
        }
    }

    /// Marks a psn as refused or held.
    pub(crate) fn mark(&mut self, psn: u32, mark: Mark) {
        self.unmark(psn);
        self.marks.push((psn, mark));
    }

    /// Takes a mark off: the psn is looked at again.
    pub(crate) fn unmark(&mut self, psn: u32) {
        self.marks.retain(|(marked, _)| *marked != psn);
    }

    /// Remembers a message that was refused with this psn. While the psn was unsettled, the initiator sent nothing beyond
    /// its window.
    pub(crate) fn refuse_message(&mut self, source: u32, number: u32, status: Status, psn: u32) {
        if self.refuse_again(source, number, psn).is_none() {
            let end = psn.wrapping_add(crate::limits::WINDOW_MAX);
            self.refused.push(RefusedMessage { source, number, status, psn, untold_until: None, end });
        }
    }

    /// Another packet of a message that was refused: from here on its initiator knows for certain. Gives the status.
    pub(crate) fn refuse_again(&mut self, source: u32, number: u32, psn: u32) -> Option<Status> {
        let same = |refused: &&mut RefusedMessage| refused.source == source && refused.number == number;
        let refused = self.refused.iter_mut().find(same)?;
        if refused.untold_until.take().is_some() {
            refused.psn = psn;
            refused.end = psn.wrapping_add(crate::limits::WINDOW_MAX);
        }
        Some(refused.status)
    }

    /// Remembers a message that this side has given up without telling the initiator.
    pub(crate) fn give_up_message(&mut self, source: u32, number: u32, status: Status, now: Time) {
        self.forget_given_up(now);
        if self.refused.iter().filter(|refused| refused.untold_until.is_some()).count() < GIVEN_UP_MAX {
            let (psn, until) = (self.highest, now.plus_micros(RETAIN_US));
            self.refused.push(RefusedMessage { source, number, status, psn, untold_until: Some(until), end: psn });
        }
    }

    /// Forgets messages that were given up so long ago that their initiator must have noticed.
    pub(crate) fn forget_given_up(&mut self, now: Time) {
        self.refused.retain(|refused| refused.untold_until.is_none_or(|until| now < until));
    }

    /// The status with which a message was refused before.
    pub(crate) fn refused_message(&self, source: u32, number: u32) -> Option<Status> {
        let found = self.refused.iter().find(|refused| refused.source == source && refused.number == number);
        found.map(|refused| refused.status)
    }

    /// A PROBE tells the initiator's next psn: messages that it has given up have no packets from there on.
    pub(crate) fn probed(&mut self, base: u32, next: u32) {
        for refused in &mut self.refused {
            if refused.untold_until.is_none() && before(refused.psn, base) && before(next, refused.end) {
                refused.end = next;
            }
        }
        self.raise_base(base);
        self.refused.retain(|refused| refused.untold_until.is_some() || before(self.base, refused.end));
    }

    /// Moves the floor over what is accepted.
    fn advance(&mut self) {
        loop {
            let (index, bit) = place(self.floor);
            let Some(word) = self.accepted.get_mut(index) else { return };
            if *word & bit == 0 {
                break;
            }
            // The run of ones from here on, at once.
            let shift = bit.trailing_zeros();
            let run = (!(*word >> shift)).trailing_zeros().min(64 - shift);
            let mask = if run == 64 { u64::MAX } else { ((1u64 << run) - 1) << shift };
            *word &= !mask;
            self.floor = self.floor.wrapping_add(run);
        }
        if before(self.highest, self.floor.wrapping_sub(1)) {
            self.highest = self.floor.wrapping_sub(1);
        }
    }

    /// Whether nothing but ticket and floor must be remembered (P-7.3).
    pub(crate) fn is_idle(&self) -> bool {
        self.span() == 0
            && self.marks.is_empty()
            && self.refused.is_empty()
            && self.replay.is_empty()
            && self.held.is_empty()
            && self.ack.is_none()
            && self.messages == 0
    }

    /// Whether a message of a stream may be matched now (P-6.4).
    pub(crate) fn in_order(&self, source: u32, destination: u32, number: u32, after: u16) -> bool {
        if after == 0 || after == UNORDERED {
            return true;
        }
        let earlier = number.wrapping_sub(u32::from(after));
        let stream = self.streams.iter().find(|s| s.source == source && s.destination == destination);
        stream.is_some_and(|stream| !before(stream.last, earlier))
    }

    /// A packet that waited and whose turn has come: one of this stream, or any that has waited too long. Looks at each
    /// once, since a peer decides how many wait.
    pub(crate) fn next_held(&self, stream: Option<(u32, u32)>, now: Time) -> Option<usize> {
        let known = self.streams.iter().find(|s| Some((s.source, s.destination)) == stream);
        // Behind one that was refused as not ready, all of its stream are refused.
        let in_order = |held: &Held| {
            Some(held.stream) == stream && known.is_some_and(|known| known.refused || !before(known.last, held.earlier))
        };
        let next = self.held.iter().position(in_order);
        next.or_else(|| self.held.iter().position(|held| held.until <= now))
    }

    /// A message of a stream matched, or was refused for good.
    pub(crate) fn passed(&mut self, source: u32, destination: u32, number: u32, after: u16) {
        if after == UNORDERED {
            return;
        }
        match self.streams.iter_mut().find(|s| s.source == source && s.destination == destination) {
            Some(stream) => {
                stream.refused = false;
                if before(stream.last, number) {
                    stream.last = number;
                }
            }
            None => {
                if self.streams.len() >= STREAMS_MAX {
                    self.streams.swap_remove(0);
                }
                self.streams.push(Stream { source, destination, last: number, refused: false });
            }
        }
    }

    /// A message of a stream that was in order was refused as not ready.
    pub(crate) fn not_ready(&mut self, source: u32, destination: u32, number: u32, after: u16) {
        if after == UNORDERED {
            return;
        }
        // What it waited for has passed, so remembering that much is right.
        self.passed(source, destination, number.wrapping_sub(u32::from(after.max(1))), 0);
        if let Some(stream) = self.streams.iter_mut().find(|s| s.source == source && s.destination == destination) {
            stream.refused = true;
        }
    }

    /// Whether messages behind one that was refused as not ready must wait for its return.
    pub(crate) fn is_refused(&self, source: u32, destination: u32) -> bool {
        let stream = self.streams.iter().find(|s| s.source == source && s.destination == destination);
        stream.is_some_and(|stream| stream.refused)
    }

    /// Bytes that this life takes.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Life>()
            + self.marks.capacity() * size_of::<(u32, Mark)>()
            + self.streams.capacity() * size_of::<Stream>()
            + self.refused.capacity() * size_of::<RefusedMessage>()
            + self.replay.bytes()
            + self.held.iter().map(|held| held.packet.bytes().len() + size_of::<Held>()).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn life(base: u32) -> Life {
        Life::new(0, 7, base, base, Time(0))
    }

    #[test]
    fn refused_psns_hold_the_floor_until_the_base_passes() {
        let mut life = life(10);
        life.mark(10, Mark::Refused(Status::NotReady));
        life.accept(11);
        assert_eq!((life.floor(), life.highest(), life.span()), (10, 11, 2));
        assert_eq!(life.arrive(10, 0), Arrival::Marked(Mark::Refused(Status::NotReady)));
        assert_eq!(life.arrive(12, 1), Arrival::New);
        assert_eq!((life.floor(), life.span()), (12, 0));
        assert_eq!(life.arrive(10, 0), Arrival::Settled);
        assert!(life.is_idle());
    }

    proptest! {
        #[test]
        fn marks_are_a_set(start in any::<u32>(), steps in prop::collection::vec((0u32..1200, any::<bool>()), 1..400)) {
            let mut life = life(start);
            let mut accepted = BTreeSet::new();
            for (step, accept) in steps {
                let psn = start.wrapping_add(step);
                let seen = life.arrive(psn, step.min(u32::from(u16::MAX)) as u16);
                let known = accepted.contains(&step);
                match seen {
                    Arrival::Duplicate => prop_assert!(known),
                    Arrival::New => {
                        prop_assert!(!known);
                        if accept {
                            life.accept(psn);
                            accepted.insert(step);
                        }
                    }
                    Arrival::OutOfWindow => prop_assert!(psn.wrapping_sub(life.floor()) >= WINDOW),
                    other => prop_assert!(false, "{other:?}"),
                }
                let floor = (0..).find(|step| !accepted.contains(step)).unwrap();
                prop_assert_eq!(life.floor(), start.wrapping_add(floor));
                if let Some(highest) = accepted.last() {
                    prop_assert_eq!(life.highest(), start.wrapping_add(*highest));
                    for bit in 0..64 {
                        let below = i64::from(*highest) - 1 - bit;
                        if below >= i64::from(floor) {
                            let told = life.bitmap() >> bit & 1 == 1;
                            prop_assert_eq!(told, accepted.contains(&(below as u32)));
                        }
                    }
                }
            }
        }
    }
}
