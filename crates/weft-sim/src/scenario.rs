//! What a seed stands for: nodes, limits, faults and a program for each node.

use weft_core::engine::Config;
use weft_core::limits::{GIVE_UP_MAX_US, GIVE_UP_US, MESSAGE_IDLE_US, RETAIN_US};

use crate::network::{Carries, Faults, MICRO, MILLI, SECOND};
use crate::node::socket_of;
use crate::random::{MILLION, Random};
use crate::workload::{self, Operation};

/// Purpose of the numbers that narrowings are drawn from: what a seed stood for before there were any is as it was.
const NARROWINGS: u64 = 0x6d74_7500;

/// Endpoint of one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The node.
    pub node: usize,
    /// Which of its endpoints.
    pub endpoint: usize,
}

/// A crash and what follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crash {
    /// The node.
    pub node: usize,
    /// When it goes down.
    pub at: u64,
    /// For how long.
    pub down: u64,
    /// How long others go on with its old addresses.
    pub unnoticed: u64,
}

/// A way that is cut for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    /// From here.
    pub from: usize,
    /// To there.
    pub to: usize,
    /// When it begins.
    pub at: u64,
    /// For how long.
    pub lasts: u64,
    /// The way back too.
    pub both: bool,
}

/// A way that carries less for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Narrowing {
    /// From here.
    pub from: usize,
    /// To there.
    pub to: usize,
    /// When it begins.
    pub at: u64,
    /// For how long; the end of the trouble ends it too.
    pub lasts: u64,
    /// What is left of it.
    pub carries: Carries,
}

/// Limits and habits of one node.
#[derive(Clone, Debug)]
pub struct NodeSpec {
    /// Endpoints that are reliable; one for datagrams follows.
    pub reliable: usize,
    /// Places in each completion queue.
    pub queue: usize,
    /// The receive and transmit completions share one queue.
    pub one_queue: bool,
    /// Nanoseconds between readings of the queues; 0: at once.
    pub poll_every: u64,
    /// Nanoseconds of its clock in 1024 of the true one.
    pub rate: u64,
    /// What its clock shows at the start.
    pub clock: u64,
    /// Longest contiguous piece of its buffers.
    pub piece: u64,
    /// Its engine.
    pub config: Config,
}

/// All that a seed decides.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The seed.
    pub seed: u64,
    /// Changes the network's chances, for shrinking.
    pub salt: u64,
    /// Nodes.
    pub nodes: Vec<NodeSpec>,
    /// What the network does.
    pub faults: Faults,
    /// Crashes.
    pub crashes: Vec<Crash>,
    /// Cuts.
    pub partitions: Vec<Partition>,
    /// Ways that become narrower.
    pub narrowings: Vec<Narrowing>,
    /// What programs do, in order of time.
    pub operations: Vec<Operation>,
    /// Bytes of UDP payload that the links carry.
    pub mtu: u32,
    /// Some receives are shorter than messages.
    pub short_receives: bool,
    /// When the trouble ends.
    pub end: u64,
}

/// How bad it gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Weather {
    #[default]
    Calm,
    Mild,
    Harsh,
    Brutal,
}

impl Scenario {
    /// The scenario of a seed.
    #[must_use]
    pub fn from_seed(seed: u64) -> Scenario {
        let mut random = Random::new(seed, 1);
        let weather = random.pick(&[
            Weather::Calm,
            Weather::Mild,
            Weather::Mild,
            Weather::Mild,
            Weather::Mild,
            Weather::Harsh,
            Weather::Harsh,
            Weather::Brutal,
        ]);
        let count = random.pick(&[2, 2, 2, 3, 3, 4]);
        let mtu = random.pick(&[1232, 1232, 1500]);
        let bulk = random.once_in(15);
        let eager = random.pick(&[100, 600, 1500, 4000]);
        let eager = if bulk && random.once_in(2) { 64 << 10 } else { eager };
        let give_up = random.pick(&[GIVE_UP_US, GIVE_UP_US, GIVE_UP_US, GIVE_UP_US, 3_000_000, GIVE_UP_MAX_US]);
        let crowded = random.once_in(25);
        let mut nodes = (0..count).map(|_| node(&mut random, eager)).collect::<Vec<_>>();
        for node in &mut nodes {
            node.config.give_up_us = give_up;
            if bulk {
                node.config.unexpected_max_bytes = 256 << 10;
            }
            // A node with room for fewer peers than it has must have room for everything else, or it may wait for itself.
            if crowded {
                node.config.lives_max = 1;
                node.config.unexpected_max = 1 << 10;
                node.config.unexpected_max_bytes = 16 << 20;
                node.config.commands_max = 256;
                node.queue = 512;
            }
        }
        let faults = faults(&mut random, weather);
        let short_receives = random.once_in(8);
        let shape = workload::Shape {
            endpoints: nodes.iter().map(|node| node.reliable).collect(),
            mtu,
            eager,
            short_receives,
            bulk,
            closes: weather != Weather::Calm && random.once_in(8),
            operations: random.between(8, 60) as usize,
            starts: starts(&mut random),
            span: random.pick(&[100 * MICRO, MILLI, 5 * MILLI, 40 * MILLI]),
        };
        let operations = workload::operations(&mut random, &shape);
        let last = operations.last().map_or(0, |operation| operation.at);
        let (mut crashes, mut partitions) = (Vec::new(), Vec::new());
        if weather != Weather::Calm {
            let (starts, span) = (&shape.starts, shape.span);
            let when = |random: &mut Random| random.pick(starts) + random.below(span * 3 / 2);
            if random.once_in(if weather == Weather::Mild { 5 } else { 2 }) {
                for _ in 0..random.between(1, 3) {
                    let node = random.below(count) as usize;
                    let down = random.pick(&[0, 50 * MICRO, 5 * MILLI, SECOND, 3 * SECOND]);
                    let unnoticed = random.pick(&[0, 0, 100 * MICRO, 20 * MILLI]);
                    crashes.push(Crash { node, at: when(&mut random), down, unnoticed });
                }
            }
            if random.once_in(if weather == Weather::Mild { 5 } else { 2 }) {
                for _ in 0..random.between(1, 3) {
                    let from = random.below(count) as usize;
                    let to = (from + 1 + random.below(count - 1) as usize) % count as usize;
                    let lasts = random.pick(&[MILLI, 30 * MILLI, 300 * MILLI, 900 * MILLI, 2 * SECOND]);
                    let both = random.once_in(2);
                    partitions.push(Partition { from, to, at: when(&mut random), lasts, both });
                }
            }
        }
        // A second crash of a node that is down would mean nothing.
        crashes.sort_by_key(|crash| crash.at);
        let mut up_at = vec![0; nodes.len()];
        crashes.retain(|crash| match up_at.get_mut(crash.node) {
            Some(at) if *at <= crash.at => {
                *at = crash.at + crash.down + 1;
                true
            }
            _ => false,
        });
        let crashed = crashes.iter().map(|crash| crash.at + crash.down + crash.unnoticed).max().unwrap_or(0);
        let cut = partitions.iter().map(|cut| cut.at + cut.lasts).max().unwrap_or(0);
        let end = last.max(crashed).max(cut) + MILLI;
        let narrowings = narrowings(&mut Random::new(seed, NARROWINGS), count, &shape);
        if faults.corrupt == 0 {
            // Nothing is damaged, as between programs of one host: to the first node headers alone are summed (P-2.5).
            nodes.iter_mut().for_each(|node| node.config.host_address = Some(socket_of(0).ip()));
        }
        let mtu = mtu as u32;
        Scenario { seed, salt: 0, nodes, faults, crashes, partitions, narrowings, operations, mtu, short_receives, end }
    }

    /// Whether a request may rightly go without any answer for so long that it is given up. That a way becomes narrower is
    /// no reason.
    #[must_use]
    pub fn may_give_up(&self) -> bool {
        self.faults.loses() || !self.crashes.is_empty() || !self.partitions.is_empty()
    }

    /// How long everything may take to finish when the trouble is over.
    #[must_use]
    pub fn finish_within(&self) -> u64 {
        let slow = self.nodes.iter().map(|node| node.rate).min().unwrap_or(1024);
        let give_up = self.nodes.iter().map(|node| node.config.give_up_us).max().unwrap_or(GIVE_UP_US);
        let crowded = if self.crowds() { self.forget_within() + self.faults.late_max } else { 0 };
        // A message whose sender is gone holds its place in a small queue until it counts as abandoned.
        let abandoned = if self.may_give_up() { MESSAGE_IDLE_US } else { 0 };
        ((give_up + abandoned) * MICRO * 1024) / slow + crowded + 1500 * MILLI
    }

    /// How long it takes until nothing is remembered any more.
    #[must_use]
    pub fn forget_within(&self) -> u64 {
        let lives = if self.crowds() { self.nodes.len() as u64 } else { 0 };
        (2 + lives) * RETAIN_US * MICRO
    }

    /// Where there is room for few lives, one whose peer is gone keeps others out until it is forgotten.
    fn crowds(&self) -> bool {
        self.nodes.iter().any(|node| node.config.lives_max < self.nodes.len())
    }
}

/// When the parts of the workload begin: at once, and perhaps after idle times, some of them longer than a target
/// remembers its peers.
fn starts(random: &mut Random) -> Vec<u64> {
    let mut starts = vec![0];
    if random.once_in(3) {
        for _ in 0..random.between(1, 2) {
            let gap =
                random.pick(&[2 * MILLI, 20 * MILLI, SECOND, 30 * SECOND, 59 * SECOND, 61 * SECOND, 130 * SECOND]);
            let last = starts.last().copied().unwrap_or(0);
            starts.push(last + gap);
        }
    }
    starts
}

/// Some ways become narrower, in any weather: nothing may fail because of it.
fn narrowings(random: &mut Random, nodes: u64, shape: &workload::Shape) -> Vec<Narrowing> {
    let mut narrowings = Vec::new();
    if !random.once_in(4) {
        return narrowings;
    }
    for _ in 0..random.between(1, 3) {
        let from = random.below(nodes) as usize;
        let to = (from + 1 + random.below(nodes - 1) as usize) % nodes as usize;
        let at = if random.once_in(4) { 0 } else { random.pick(&shape.starts) + random.below(shape.span) };
        let lasts = random.pick(&[MILLI, 30 * MILLI, SECOND, u64::MAX >> 1]);
        let carries = Carries { bytes: random.pick(&[512, 572, 1000, 1231, 1232, 1400]), told: random.once_in(2) };
        for (from, to) in [(from, to), (to, from)].into_iter().take(random.between(1, 2) as usize) {
            narrowings.push(Narrowing { from, to, at, lasts, carries });
        }
    }
    narrowings
}

fn node(random: &mut Random, eager: u64) -> NodeSpec {
    let rate = if random.once_in(3) { random.between(720, 1330) } else { 1024 };
    let config = Config {
        session: 0x5eed,
        mtu_bytes: weft_core::limits::MTU_DEFAULT_BYTES,
        eager_max_bytes: eager as u32,
        commands_max: random.pick(&[8, 64, 256]),
        lives_max: random.pick(&[4, 8, 16]),
        receives_max: 256,
        unexpected_max: random.pick(&[1, 4, 64]),
        unexpected_max_bytes: random.pick(&[6 << 10, 16 << 10, 64 << 10]),
        tombstones_max: 16,
        tickets_max: random.pick(&[0, 1, 16]),
        ..Config::default()
    };
    let queue = random.pick(&[3, 6, 16, 64, 64]);
    NodeSpec {
        reliable: random.between(1, 2) as usize,
        queue,
        one_queue: random.once_in(2),
        poll_every: random.pick(&[0, 0, 20 * MICRO, 300 * MICRO, 4 * MILLI]),
        rate,
        clock: random.below(1 << 50),
        piece: random.pick(&[64, 128, 1 << 20, 1 << 20]),
        config,
    }
}

fn faults(random: &mut Random, weather: Weather) -> Faults {
    let mut chance = |once_in: u64, most: u32| {
        if random.once_in(once_in) { random.below(u64::from(most)) as u32 } else { 0 }
    };
    let percent = MILLION / 100;
    let (loss, duplicate, late, delayed, reorder, corrupt) = match weather {
        Weather::Calm => (0, 0, 0, 0, chance(2, 20 * percent), 0),
        Weather::Mild => (
            chance(2, 3 * percent),
            chance(2, 5 * percent),
            chance(3, 5 * percent),
            chance(6, percent),
            chance(2, 20 * percent),
            chance(4, 2 * percent),
        ),
        Weather::Harsh => (
            chance(1, 20 * percent),
            chance(2, 30 * percent),
            chance(2, 30 * percent),
            chance(3, 5 * percent),
            chance(2, 50 * percent),
            chance(3, 10 * percent),
        ),
        Weather::Brutal => (
            chance(1, 50 * percent),
            chance(1, 70 * percent),
            chance(1, 70 * percent),
            chance(2, 20 * percent),
            chance(1, 80 * percent),
            chance(2, 25 * percent),
        ),
    };
    let congested = weather != Weather::Calm && random.once_in(5);
    Faults {
        latency: random.pick(&[MICRO, 10 * MICRO, 100 * MICRO, MILLI]),
        jitter: random.pick(&[0, 0, 5 * MICRO, 100 * MICRO, 2 * MILLI]),
        byte_time: if congested { random.pick(&[1, 8, 80]) } else { 0 },
        queue_bytes: random.pick(&[1500, 6000, 40_000]),
        mark_bytes: random.pick(&[0, 1000, 3000]),
        loss,
        duplicate,
        late,
        delayed,
        late_max: random.pick(&[20 * MILLI, 900 * MILLI, 5 * SECOND, 70 * SECOND, 200 * SECOND]),
        reorder,
        corrupt,
    }
}
