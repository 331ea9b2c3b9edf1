//! A decorator that treats a link badly: loss, repetition, reordering, damage and delay, the same again for the same
//! seed.
//!
//! Each datagram is treated alone: what the kernel would cut is cut here first, and what it joined is taken apart. It
//! copies every datagram, which a test can afford.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use weft_core::time::Time;

use weft_core::session::Path;

use crate::limits::HELD_MAX;
use crate::link::{Counters, Incoming, Link, Notice, Outgoing, SendError};
use crate::segment::Segment;

/// What happens to the datagrams of one direction. Rates are chances from 0 to 1 for each datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// It vanishes.
    pub loss: f64,
    /// It comes twice.
    pub duplicate: f64,
    /// It is held back until others have overtaken it, or [`Faults::reorder_us`] have passed.
    pub reorder: f64,
    /// How many others at most; 0 is taken as 4.
    pub reorder_by: u32,
    /// How long at most; 0 is taken as 1000.
    pub reorder_us: u64,
    /// One to four of its bits are flipped.
    pub corrupt: f64,
    /// Every one takes this much longer.
    pub delay_us: u64,
    /// And up to this much more, each its own: datagrams overtake each other.
    pub jitter_us: u64,
}

/// How often what was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounters {
    /// Datagrams that came by.
    pub datagrams: u64,
    /// Lost on purpose.
    pub lost: u64,
    /// Lost because more would have been held back than [`HELD_MAX`].
    pub overflowed: u64,
    /// Repeated.
    pub duplicated: u64,
    /// Held back for others to overtake.
    pub reordered: u64,
    /// Damaged.
    pub corrupted: u64,
}

/// A link with faults. Datagrams that are held back move on at the next call of [`send`](Link::send) or
/// [`receive`](Link::receive) after their time: a driver that sleeps on the descriptor has to wake up now and then.
pub struct Faulty<L> {
    inner: L,
    outward: Lane,
    inward: Lane,
    clock: Box<dyn FnMut() -> Time + Send>,
    scratch: Vec<u8>,
}

impl<L: Link> Faulty<L> {
    /// Faults for what is sent and for what is received, all drawn from `seed`. Time is the machine's.
    pub fn new(inner: L, seed: u64, on_send: Faults, on_receive: Faults) -> Faulty<L> {
        let start = Instant::now();
        Faulty::with_clock(inner, seed, on_send, on_receive, move || Time(start.elapsed().as_nanos() as u64))
    }

    /// The same with a clock of the caller's.
    pub fn with_clock(
        inner: L,
        seed: u64,
        on_send: Faults,
        on_receive: Faults,
        clock: impl FnMut() -> Time + Send + 'static,
    ) -> Faulty<L> {
        Faulty {
            inner,
            outward: Lane::new(on_send, seed),
            inward: Lane::new(on_receive, !seed),
            clock: Box::new(clock),
            scratch: Vec::new(),
        }
    }

    /// The link inside.
    pub fn inner(&mut self) -> &mut L {
        &mut self.inner
    }

    /// What was done to datagrams that were sent.
    #[must_use]
    pub fn sent(&self) -> FaultCounters {
        self.outward.counters
    }

    /// What was done to datagrams that were received.
    #[must_use]
    pub fn received(&self) -> FaultCounters {
        self.inward.counters
    }

    /// Sends what is due.
    fn flush(&mut self, now: Time) -> Result<(), SendError> {
        while let Some(held) = self.outward.take_due(now) {
            let pieces = [Segment::from_slice(&held.bytes)];
            let Held { path, class, may_fragment, .. } = held;
            let outgoing = Outgoing { path, pieces: &pieces, segment_bytes: 0, class, may_fragment };
            match self.inner.send(&[outgoing]) {
                // Its length was checked when it was taken; the way has become narrower since.
                Ok(_) | Err(SendError::TooBig { .. }) => {}
                Err(error) => {
                    self.outward.held.insert(0, held);
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

impl<L: Link> Link for Faulty<L> {
    fn local(&self) -> SocketAddr {
        self.inner.local()
    }

    fn mtu(&mut self, path: Path) -> u32 {
        self.inner.mtu(path)
    }

    fn send(&mut self, batch: &[Outgoing<'_>]) -> Result<usize, SendError> {
        let now = (self.clock)();
        self.flush(now)?;
        for (index, outgoing) in batch.iter().enumerate() {
            self.scratch.clear();
            outgoing.gather(&mut self.scratch);
            let size = if outgoing.segment_bytes == 0 { self.scratch.len() } else { outgoing.segment_bytes };
            if outgoing.longest() > self.inner.mtu(outgoing.path) as usize && !outgoing.may_fragment {
                return if index > 0 { Ok(index) } else { Err(SendError::TooBig { path: outgoing.path }) };
            }
            for datagram in self.scratch.chunks(size.max(1)) {
                let Outgoing { path, class, may_fragment, .. } = *outgoing;
                self.outward.put(now, datagram, Held { class, may_fragment, ..Held::new(path) });
            }
            match self.flush(now) {
                // What is held waits for the next call.
                Ok(()) => {}
                Err(SendError::WouldBlock) => return Ok(index + 1),
                Err(error) => return Err(error),
            }
        }
        Ok(batch.len())
    }

    fn receive(&mut self, sink: &mut dyn FnMut(Incoming<'_>)) -> io::Result<usize> {
        let now = (self.clock)();
        // Whatever stops it now stops the next send too, which tells.
        let _ = self.flush(now);
        let inward = &mut self.inward;
        self.inner.receive(&mut |incoming| {
            let (path, marked) = (incoming.path, incoming.marked);
            for datagram in incoming.datagrams() {
                inward.put(now, datagram, Held { marked, ..Held::new(path) });
            }
        })?;
        let mut delivered = 0;
        while let Some(mut held) = self.inward.take_due(now) {
            sink(Incoming { path: held.path, bytes: &mut held.bytes, segment_bytes: 0, marked: held.marked });
            delivered += 1;
        }
        Ok(delivered)
    }

    fn poll_notice(&mut self) -> Option<Notice> {
        self.inner.poll_notice()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.inner.descriptor()
    }

    fn watch_room(&mut self, wanted: bool) -> bool {
        self.inner.watch_room(wanted)
    }

    fn counters(&self) -> Counters {
        self.inner.counters()
    }

    fn room_bytes(&self) -> u64 {
        self.inner.room_bytes()
    }
}

impl<L: fmt::Debug> fmt::Debug for Faulty<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sent, received) = (self.outward.counters, self.inward.counters);
        f.debug_struct("Faulty").field("inner", &self.inner).field("sent", &sent).field("received", &received).finish()
    }
}

/// One direction.
struct Lane {
    faults: Faults,
    random: Random,
    held: Vec<Held>,
    counters: FaultCounters,
}

struct Held {
    path: Path,
    bytes: Vec<u8>,
    class: u8,
    may_fragment: bool,
    marked: bool,
    /// Goes on from here on…
    due: Time,
    /// …or, when it is held back for others to overtake, once so many datagrams have come by.
    due_count: Option<u64>,
}

impl Held {
    /// Nothing yet, on this way.
    fn new(path: Path) -> Held {
        let (class, may_fragment, marked) = (0, false, false);
        Held { path, bytes: Vec::new(), class, may_fragment, marked, due: Time(0), due_count: None }
    }
}

impl Lane {
    fn new(faults: Faults, seed: u64) -> Lane {
        Lane { faults, random: Random(seed), held: Vec::new(), counters: FaultCounters::default() }
    }

    /// Decides what becomes of a datagram. Each decision draws one number whatever the others say, so that changing one
    /// rate leaves the pattern of the rest as it was.
    fn put(&mut self, now: Time, datagram: &[u8], held: Held) {
        self.counters.datagrams += 1;
        let faults = self.faults;
        let lost = self.random.chance(faults.loss);
        let duplicated = self.random.chance(faults.duplicate);
        let reordered = self.random.chance(faults.reorder);
        let corrupted = self.random.chance(faults.corrupt);
        let flips = self.random.next();
        let jitter = self.random.below(faults.jitter_us.saturating_add(1));
        if lost {
            self.counters.lost += 1;
            return;
        }
        let mut held =
            Held { bytes: datagram.to_vec(), due: now.plus_micros(faults.delay_us.saturating_add(jitter)), ..held };
        if duplicated {
            self.counters.duplicated += 1;
            let copy = Held { bytes: datagram.to_vec(), ..held };
            self.hold(copy);
        }
        if corrupted && !datagram.is_empty() {
            self.counters.corrupted += 1;
            let mut random = Random(flips);
            let mut flipped = Vec::new();
            for _ in 0..=random.below(4) {
                let bit = random.below(datagram.len() as u64 * 8);
                // The same bit twice would be no damage at all.
                if !flipped.contains(&bit)
                    && let Some(byte) = held.bytes.get_mut((bit / 8) as usize)
                {
                    *byte ^= 1 << (bit % 8);
                    flipped.push(bit);
                }
            }
        }
        if reordered {
            self.counters.reordered += 1;
            let by = if faults.reorder_by == 0 { 4 } else { faults.reorder_by };
            let micros = if faults.reorder_us == 0 { 1000 } else { faults.reorder_us };
            held.due_count = Some(self.counters.datagrams + u64::from(by));
            held.due = held.due.plus_micros(micros);
        }
        self.hold(held);
    }

    fn hold(&mut self, held: Held) {
        if self.held.len() >= HELD_MAX {
            self.counters.overflowed += 1;
        } else {
            self.held.push(held);
        }
    }

    /// The one that has been due longest.
    fn take_due(&mut self, now: Time) -> Option<Held> {
        let count = self.counters.datagrams;
        let is_due = |held: &Held| held.due <= now || held.due_count.is_some_and(|due| due <= count);
        let (index, _) =
            self.held.iter().enumerate().filter(|(_, held)| is_due(held)).min_by_key(|(_, held)| held.due)?;
        Some(self.held.remove(index))
    }
}

/// SplitMix64: small, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// From 0 to one less than `bound`.
    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    fn chance(&mut self, rate: f64) -> bool {
        // 53 bits are all that a double holds.
        ((self.next() >> 11) as f64) < rate * (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests;
