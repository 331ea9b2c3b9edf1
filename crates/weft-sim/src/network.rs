//! The network between simulated nodes: it delays, reorders, duplicates, drops and damages datagrams, is cut in two, does
//! not carry what is too long, and hands out copies of what it carried minutes ago.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::random::Random;

/// Nanoseconds of a microsecond.
pub const MICRO: u64 = 1_000;
/// Nanoseconds of a millisecond.
pub const MILLI: u64 = 1_000_000;
/// Nanoseconds of a second.
pub const SECOND: u64 = 1_000_000_000;

/// What the network does to datagrams. Chances are of a million.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Time on the way, at least.
    pub latency: u64,
    /// Time that may be added to each datagram by chance.
    pub jitter: u64,
    /// Nanoseconds that each byte takes on a link; 0: no limit.
    pub byte_time: u64,
    /// Bytes that wait for a link at most; what comes then is dropped.
    pub queue_bytes: u64,
    /// Bytes of queue from which on datagrams are marked; 0: never.
    pub mark_bytes: u64,
    /// Lost.
    pub loss: u32,
    /// Comes twice, within a few latencies.
    pub duplicate: u32,
    /// Comes again much later, up to `late_max`.
    pub late: u32,
    /// Comes much later only.
    pub delayed: u32,
    /// The latest that copies come.
    pub late_max: u64,
    /// Held up for several latencies, so that others overtake it.
    pub reorder: u32,
    /// Bits are flipped, or the end is cut off.
    pub corrupt: u32,
}

impl Faults {
    /// Whether a datagram can fail to arrive in time.
    #[must_use]
    pub fn loses(&self) -> bool {
        self.loss > 0 || self.delayed > 0 || self.corrupt > 0 || self.byte_time > 0
    }

    /// What stays when the trouble is over: the delays of a quiet network.
    #[must_use]
    pub fn healed(&self) -> Faults {
        Faults { latency: self.latency, jitter: self.jitter, ..Faults::default() }
    }
}

/// Counts of what the network did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkCounts {
    /// Datagrams given to it.
    pub sent: u64,
    /// Datagrams handed out, copies too.
    pub delivered: u64,
    /// Lost by chance.
    pub lost: u64,
    /// Dropped by a full queue.
    pub queue_drops: u64,
    /// Too long for the way, and dropped without a word.
    pub narrow_drops: u64,
    /// Too long for the way, and not taken.
    pub refused: u64,
    /// Too long for the way, and carried in fragments.
    pub fragmented: u64,
    /// Dropped by a partition.
    pub partition_drops: u64,
    /// Sent to a node that was down.
    pub down_drops: u64,
    /// Copies made.
    pub duplicated: u64,
    /// Copies and originals that came much later.
    pub late: u64,
    /// Damaged.
    pub corrupted: u64,
    /// Marked for congestion.
    pub marked: u64,
}

/// What can happen.
#[derive(Clone, Debug)]
pub enum Event {
    /// A datagram reaches a node.
    Arrive {
        /// The node that sent it.
        from: usize,
        /// The node.
        to: usize,
        /// The datagram.
        bytes: Vec<u8>,
        /// With a congestion mark.
        marked: bool,
    },
    /// A node's engine asked to be called.
    Timer {
        /// The node.
        node: usize,
    },
    /// A node's program reads its completions.
    Poll {
        /// The node.
        node: usize,
    },
    /// The operation of the workload with this number is due.
    Operate {
        /// Its number.
        id: u32,
        /// How often it was refused for lack of room before.
        tries: u32,
    },
    /// A node crashes.
    Crash {
        /// The node.
        node: usize,
    },
    /// A node starts again.
    Restart {
        /// The node.
        node: usize,
    },
    /// A node hears of the present addresses of another.
    Learn {
        /// Who hears.
        node: usize,
        /// Of whom.
        other: usize,
    },
    /// The way from one node to another is cut or joined.
    Cut {
        /// From here.
        from: usize,
        /// To there.
        to: usize,
        /// Cut, or joined.
        cut: bool,
    },
    /// The way from one node to another carries less, or everything again.
    Narrow {
        /// From here.
        from: usize,
        /// To there.
        to: usize,
        /// What it carries.
        carries: Option<Carries>,
    },
}

/// What a way carries in one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carries {
    /// Bytes of a datagram.
    pub bytes: u32,
    /// The sender's link knows, and does not take what is longer. Otherwise that vanishes.
    pub told: bool,
}

#[derive(Debug)]
struct Entry {
    at: u64,
    sequence: u64,
    event: Event,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    /// The heap gives the greatest first: that is the earliest here.
    fn cmp(&self, other: &Entry) -> Ordering {
        (other.at, other.sequence).cmp(&(self.at, self.sequence))
    }
}

/// Everything that is still to come, in order.
#[derive(Debug, Default)]
pub struct Agenda {
    heap: BinaryHeap<Entry>,
    sequence: u64,
}

impl Agenda {
    /// Notes an event.
    pub fn add(&mut self, at: u64, event: Event) {
        self.sequence += 1;
        self.heap.push(Entry { at, sequence: self.sequence, event });
    }

    /// When the next one is.
    #[must_use]
    pub fn next_at(&self) -> Option<u64> {
        self.heap.peek().map(|entry| entry.at)
    }

    /// Takes the next one.
    pub fn take(&mut self) -> Option<(u64, Event)> {
        self.heap.pop().map(|entry| (entry.at, entry.event))
    }

    /// The last arrival of a datagram that is still to come.
    #[must_use]
    pub fn last_arrival(&self) -> Option<u64> {
        self.heap.iter().filter(|entry| matches!(entry.event, Event::Arrive { .. })).map(|entry| entry.at).max()
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Link {
    free_at: u64,
    cut: u32,
    carries: Option<Carries>,
}

/// The links between nodes.
#[derive(Debug)]
pub struct Network {
    faults: Faults,
    links: Vec<Link>,
    nodes: usize,
    random: Random,
    /// What it did.
    pub counts: NetworkCounts,
}

impl Network {
    /// A network between `nodes` nodes.
    #[must_use]
    pub fn new(nodes: usize, faults: Faults, random: Random) -> Network {
        let links = vec![Link::default(); nodes * nodes];
        Network { faults, links, nodes, random, counts: NetworkCounts::default() }
    }

    /// From now on nothing bad happens to what is sent.
    pub fn heal(&mut self) {
        self.faults = self.faults.healed();
        self.links.iter_mut().for_each(|link| (link.cut, link.carries) = (0, None));
    }

    /// Makes a way carry less, or everything again.
    pub fn narrow(&mut self, from: usize, to: usize, carries: Option<Carries>) {
        if let Some(link) = self.links.get_mut(from * self.nodes + to) {
            link.carries = carries;
        }
    }

    /// What leaves `from` towards `to`, if a datagram of so many bytes does not.
    pub fn refuses(&mut self, from: usize, to: usize, length: usize, may_fragment: bool) -> Option<u32> {
        let carries = self.links.get(from * self.nodes + to)?.carries?;
        let refused = carries.told && length > carries.bytes as usize && !may_fragment;
        self.counts.refused += u64::from(refused);
        refused.then_some(carries.bytes)
    }

    /// Cuts or joins a way. Cuts add up.
    pub fn cut(&mut self, from: usize, to: usize, cut: bool) {
        if let Some(link) = self.links.get_mut(from * self.nodes + to) {
            link.cut = if cut { link.cut + 1 } else { link.cut.saturating_sub(1) };
        }
    }

    /// Takes a datagram on its way, in fragments where it must and may.
    pub fn send(
        &mut self,
        agenda: &mut Agenda,
        now: u64,
        (from, to): (usize, usize),
        mut bytes: Vec<u8>,
        may_fragment: bool,
    ) {
        self.counts.sent += 1;
        let Some(link) = self.links.get_mut(from * self.nodes + to) else { return };
        if link.carries.is_some_and(|carries| bytes.len() > carries.bytes as usize) {
            if !may_fragment {
                self.counts.narrow_drops += 1;
                return;
            }
            self.counts.fragmented += 1;
        }
        if link.cut > 0 {
            self.counts.partition_drops += 1;
            return;
        }
        let faults = &self.faults;
        let random = &mut self.random;
        if random.chance(faults.late) {
            self.counts.late += 1;
            let at = now + random.between(faults.late_max / 1000, faults.late_max);
            agenda.add(at, Event::Arrive { from, to, bytes: bytes.clone(), marked: false });
        }
        if random.chance(faults.loss) {
            self.counts.lost += 1;
            return;
        }
        let mut marked = false;
        let mut at = now + faults.latency + random.below(faults.jitter + 1);
        let wait = link.free_at.saturating_sub(now);
        if let Some(queued) = wait.checked_div(faults.byte_time) {
            if queued > faults.queue_bytes {
                self.counts.queue_drops += 1;
                return;
            }
            marked = faults.mark_bytes > 0 && queued > faults.mark_bytes;
            self.counts.marked += u64::from(marked);
            let takes = faults.byte_time * bytes.len() as u64;
            link.free_at = now + wait + takes;
            at += wait + takes;
        }
        if random.chance(faults.reorder) {
            at += random.below(8 * (faults.latency + faults.jitter) + 1);
        }
        if random.chance(faults.delayed) {
            self.counts.late += 1;
            at += random.between(faults.late_max / 1000, faults.late_max);
        }
        if random.chance(faults.duplicate) {
            self.counts.duplicated += 1;
            let again = at + random.below(6 * (faults.latency + faults.jitter) + 1);
            agenda.add(again, Event::Arrive { from, to, bytes: bytes.clone(), marked });
        }
        if random.chance(faults.corrupt) {
            self.counts.corrupted += 1;
            damage(random, &mut bytes);
        }
        agenda.add(at, Event::Arrive { from, to, bytes, marked });
    }
}

/// Flips one to three bits, which CRC-32C always finds, or cuts the end off.
fn damage(random: &mut Random, bytes: &mut Vec<u8>) {
    if random.once_in(4) {
        bytes.truncate(random.below(bytes.len() as u64) as usize);
        return;
    }
    let mut flipped = [u64::MAX; 3];
    for at in 0..=random.below(3) as usize {
        let bit = random.below(bytes.len() as u64 * 8);
        if flipped.contains(&bit) {
            continue;
        }
        if let (Some(byte), Some(slot)) = (bytes.get_mut(bit as usize / 8), flipped.get_mut(at)) {
            *byte ^= 1 << (bit % 8);
            *slot = bit;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_order_of_time_then_of_notice() {
        let mut agenda = Agenda::default();
        for (at, node) in [(5, 0), (3, 1), (5, 2), (1, 3)] {
            agenda.add(at, Event::Timer { node });
        }
        let order: Vec<_> = std::iter::from_fn(|| agenda.take())
            .map(|(at, event)| match event {
                Event::Timer { node } => (at, node),
                _ => (at, 99),
            })
            .collect();
        assert_eq!(order, [(1, 3), (3, 1), (5, 0), (5, 2)]);
    }

    #[test]
    fn a_cut_way_carries_nothing_in_its_direction() {
        let faults = Faults { latency: 10, ..Faults::default() };
        let mut network = Network::new(2, faults, Random::new(1, 1));
        let mut agenda = Agenda::default();
        network.cut(0, 1, true);
        network.send(&mut agenda, 0, (0, 1), vec![1], false);
        network.send(&mut agenda, 0, (1, 0), vec![2], false);
        assert!(matches!(agenda.take(), Some((10, Event::Arrive { to: 0, .. }))));
        assert!(agenda.take().is_none());
        network.heal();
        network.send(&mut agenda, 20, (0, 1), vec![1], false);
        assert_eq!(agenda.next_at(), Some(30));
    }

    #[test]
    fn a_narrow_way_carries_what_is_short_or_in_fragments() {
        let mut network = Network::new(2, Faults::default(), Random::new(1, 1));
        let mut agenda = Agenda::default();
        network.narrow(0, 1, Some(Carries { bytes: 4, told: false }));
        assert_eq!(network.refuses(0, 1, 5, false), None);
        for (length, may_fragment, arrives) in [(5, false, false), (4, false, true), (5, true, true)] {
            network.send(&mut agenda, 0, (0, 1), vec![0; length], may_fragment);
            assert_eq!(agenda.take().is_some(), arrives);
        }
        network.narrow(0, 1, Some(Carries { bytes: 4, told: true }));
        assert_eq!([network.refuses(0, 1, 5, false), network.refuses(0, 1, 5, true)], [Some(4), None]);
        network.heal();
        assert_eq!(network.refuses(0, 1, 5, false), None);
    }
}
