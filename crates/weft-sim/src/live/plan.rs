//! What a seed makes of nodes with as little room as can be: who sends to whom, who reads when, and what waits for what.
//!
//! Nothing waits for itself by construction. Endpoint 0 of a node is *prompt*: its receives are posted and its completions
//! read whatever else happens. Other endpoints may be *late*: nobody receives there before the prompt work of the node is
//! done, nor, perhaps, reads completions. Only what goes to late endpoints may wait for anything. Each task has room of its
//! own among commands and completions, one place at least.

use weft_core::command::Level;
use weft_core::engine::Config;

use crate::network::{Faults, MICRO, MILLI, SECOND};
use crate::random::{MILLION, Random};

/// One endpoint of a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct EndpointPlan {
    /// Places of its completion queues.
    pub(super) places: usize,
    /// One queue for both directions.
    pub(super) one_queue: bool,
    /// Completions that its program reads in a turn.
    pub(super) reads: usize,
    /// Between these times it reads none.
    pub(super) pause: (u64, u64),
    /// Those of receives are not read before this task has ended.
    pub(super) reads_after: Option<usize>,
}

/// One node.
#[derive(Clone, Debug)]
pub(super) struct NodePlan {
    pub(super) config: Config,
    pub(super) endpoints: Vec<EndpointPlan>,
    /// Between two turns of its program.
    pub(super) turn: u64,
}

/// An endpoint of a node.
pub(super) type Place = (usize, usize);

/// Reads and writes of remote memory that a task makes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Verb {
    #[default]
    Write,
    Notice,
    Read,
    Fetch,
}

/// What a task does.
#[derive(Clone, Debug)]
pub(super) enum Job {
    /// Sends messages of these lengths.
    Send { to: Place, lengths: Vec<u32>, level: Level, fence: bool },
    /// Receives so many, with so many receives posted at a time.
    Receive { count: usize, together: usize, length: u64 },
    /// Writes, reads and fetches.
    Remote { to: Place, verbs: Vec<Verb>, fence: bool, ordered: bool },
    /// Waits until a task of a peer has changed memory here so often.
    Await { by: usize },
    /// Lends memory under one key again and again: registers it, tells the peer, and closes it when the peer says that it
    /// has read it.
    Lend { to: Place, rounds: usize, length: u32 },
    /// Reads what is lent, in so many pieces, and says so.
    Borrow { from: Place, rounds: usize, length: u32, pieces: u32 },
}

/// Something that a program does beside all else.
#[derive(Clone, Debug)]
pub(super) struct TaskPlan {
    pub(super) place: Place,
    pub(super) job: Job,
    /// Operations under way at a time.
    pub(super) window: usize,
    /// It begins when this task of the same node has ended.
    pub(super) after: Option<usize>,
    /// And not before this time.
    pub(super) from: u64,
}

/// All that a seed decides.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) nodes: Vec<NodePlan>,
    pub(super) tasks: Vec<TaskPlan>,
    pub(super) faults: Faults,
    /// When the trouble ends.
    pub(super) quiet: u64,
}

/// Longest message.
const LONGEST: u32 = 9000;

impl Plan {
    pub(super) fn new(seed: u64) -> Plan {
        let mut random = Random::new(seed, 5);
        let count = random.pick(&[2, 2, 3, 4]);
        let mut nodes: Vec<NodePlan> = (0..count).map(|_| node(&mut random)).collect();
        let (faults, quiet) = trouble(&mut random);
        let mut maker = Maker { random, nodes: &nodes, tasks: Vec::new() };
        maker.make();
        let Maker { mut random, mut tasks, .. } = maker;
        fit(&mut random, &mut nodes, &mut tasks);
        Plan { nodes, tasks, faults, quiet }
    }
}

fn node(random: &mut Random) -> NodePlan {
    let config = Config {
        session: 0x11fe,
        eager_max_bytes: random.pick(&[100, 1500, 4000]),
        // Nobody is given up: the network is not that bad.
        give_up_us: weft_core::limits::GIVE_UP_MAX_US,
        lives_max: 8,
        receives_max: 64,
        unexpected_max: random.pick(&[1, 1, 2, 4, 16]),
        unexpected_max_bytes: random.pick(&[4000, 8000, 64_000]),
        tombstones_max: 16,
        tickets_max: random.pick(&[0, 16]),
        transactions_max: random.pick(&[1, 2, 8]),
        window_max_bytes: random.pick(&[3000, 16_000, 256_000]),
        ..Config::default()
    };
    let endpoint = |random: &mut Random| EndpointPlan {
        places: random.pick(&[1, 1, 2, 3, 6]),
        one_queue: random.once_in(2),
        reads: random.pick(&[1, 1, 3, 100]),
        pause: if random.once_in(3) { (random.below(2 * MILLI), random.below(20 * MILLI)) } else { (0, 0) },
        reads_after: None,
    };
    let endpoints = (0..random.between(2, 3)).map(|_| endpoint(random)).collect();
    NodePlan { config, endpoints, turn: random.pick(&[100 * MICRO, 150 * MICRO, 400 * MICRO]) }
}

fn trouble(random: &mut Random) -> (Faults, u64) {
    let mut faults = Faults {
        latency: random.pick(&[MICRO, 10 * MICRO, 100 * MICRO]),
        jitter: random.pick(&[0, 5 * MICRO, 50 * MICRO]),
        ..Faults::default()
    };
    if random.once_in(3) {
        return (faults, 0);
    }
    let mut chance = |percent: u64| random.below(percent * u64::from(MILLION / 100)) as u32;
    (faults.loss, faults.duplicate, faults.late, faults.reorder) = (chance(10), chance(20), chance(20), chance(30));
    faults.late_max = random.pick(&[MILLI, 20 * MILLI, SECOND]);
    (faults, random.pick(&[5 * MILLI, 50 * MILLI]))
}

struct Maker<'a> {
    random: Random,
    nodes: &'a [NodePlan],
    tasks: Vec<TaskPlan>,
}

impl Maker<'_> {
    fn make(&mut self) {
        // What the programs are about; who receives, and what waits for what, follows from it.
        for _ in 0..self.random.between(2, 6) {
            let from = self.somewhere();
            let other = self.other_than(from.0);
            let to = self.endpoint_of(other);
            if self.random.once_in(3) {
                self.remote(from, to);
            } else {
                self.send(from, to);
            }
        }
        if self.random.once_in(3) {
            self.lend();
        }
        for node in 0..self.nodes.len() {
            self.receives(node);
        }
    }

    fn other_than(&mut self, node: usize) -> usize {
        (node + 1 + self.random.below(self.nodes.len() as u64 - 1) as usize) % self.nodes.len()
    }

    fn endpoint_of(&mut self, node: usize) -> Place {
        let endpoints = self.nodes.get(node).map_or(1, |node| node.endpoints.len());
        (node, self.random.below(endpoints as u64) as usize)
    }

    fn somewhere(&mut self) -> Place {
        let node = self.random.below(self.nodes.len() as u64) as usize;
        self.endpoint_of(node)
    }

    fn task(&mut self, place: Place, job: Job) -> usize {
        let window = self.random.pick(&[1, 2, 4, 8]);
        let from = if self.random.once_in(2) { self.random.below(2 * MILLI) } else { 0 };
        self.tasks.push(TaskPlan { place, job, window, after: None, from });
        self.tasks.len() - 1
    }

    fn send(&mut self, from: Place, to: Place) {
        let lengths = (0..self.random.between(1, 12)).map(|_| {
            let long = self.random.below(u64::from(LONGEST)) as u32;
            self.random.pick(&[8, 8, 200, 1100, 2500, long])
        });
        let lengths = lengths.collect();
        let level = if self.random.once_in(4) { Level::Delivered } else { Level::Transmitted };
        let fence = self.random.once_in(6);
        self.task(from, Job::Send { to, lengths, level, fence });
    }

    fn remote(&mut self, from: Place, to: Place) {
        // A notice waits for who reads completions: it has no business among what others wait for.
        let notices = to.1 > 0 && self.random.once_in(2);
        let verbs = (0..self.random.between(1, 12)).map(|_| match self.random.below(4) {
            0 if notices => Verb::Notice,
            0 | 1 => Verb::Write,
            2 => Verb::Read,
            _ => Verb::Fetch,
        });
        let verbs = verbs.collect();
        let fence = notices && self.random.once_in(4);
        let ordered = self.random.once_in(4);
        self.task(from, Job::Remote { to, verbs, fence, ordered });
    }

    /// Memory is lent between endpoints that nobody else uses.
    fn lend(&mut self) {
        let owner = self.random.below(self.nodes.len() as u64) as usize;
        let reader = self.other_than(owner);
        let own = |node: usize| (node, self.nodes.get(node).map_or(0, |node| node.endpoints.len()));
        let (from, to) = (own(owner), own(reader));
        let rounds = self.random.between(2, 12) as usize;
        let length = self.random.pick(&[64, 1000, 3000, 9000]);
        let pieces = self.random.pick(&[1, 1, 3]);
        self.task(from, Job::Lend { to, rounds, length });
        self.task(to, Job::Borrow { from, rounds, length, pieces });
    }

    /// Who receives at a node what the others send to it, and when.
    fn receives(&mut self, node: usize) {
        let endpoints = self.nodes.get(node).map_or(0, |node| node.endpoints.len());
        let mut prompt = None;
        for endpoint in 0..endpoints {
            let count: usize = self.tasks.iter().map(|task| task.messages_to((node, endpoint))).sum();
            if count == 0 {
                continue;
            }
            let together = self.random.pick(&[1, 2, 8]);
            let receive = self.task((node, endpoint), Job::Receive { count, together, length: u64::from(LONGEST) });
            if endpoint == 0 {
                prompt = Some(receive);
                continue;
            }
            let after = if self.random.once_in(4) { None } else { self.gate(node, (node, endpoint), prompt) };
            if let Some(task) = self.tasks.get_mut(receive) {
                task.after = after;
            }
        }
    }

    /// A task that a late receive waits for: messages for endpoint 0, or what somebody does to the memory of the node.
    fn gate(&mut self, node: usize, late: Place, prompt: Option<usize>) -> Option<usize> {
        if self.random.once_in(2) && prompt.is_some() {
            return prompt;
        }
        // Mostly from one who sends to it, so that both have one way.
        let senders = self.tasks.iter().filter(|task| task.messages_to(late) > 0).map(|task| task.place);
        let senders: Vec<Place> = senders.collect();
        let from = self.random.pick(&senders);
        let verbs = vec![self.random.pick(&[Verb::Write, Verb::Fetch])];
        let to = (node, self.random.pick(&[late.1, 0]));
        let fence = to.1 == 0 && self.random.once_in(3);
        // Behind a fence it would wait for what waits for it.
        for task in self.tasks.iter_mut().filter(|task| task.place == from && task.target() == Some(to) && to.1 > 0) {
            if let Job::Send { fence, .. } | Job::Remote { fence, .. } = &mut task.job {
                *fence = false;
            }
        }
        let by = self.task(from, Job::Remote { to, verbs, fence, ordered: false });
        Some(self.task((node, late.1), Job::Await { by }))
    }
}

impl TaskPlan {
    pub(super) fn target(&self) -> Option<Place> {
        match self.job {
            Job::Send { to, .. } | Job::Remote { to, .. } | Job::Lend { to, .. } => Some(to),
            Job::Borrow { from, .. } => Some(from),
            Job::Receive { .. } | Job::Await { .. } => None,
        }
    }

    fn messages_to(&self, place: Place) -> usize {
        match &self.job {
            Job::Send { to, lengths, .. } if *to == place => lengths.len(),
            _ => 0,
        }
    }
}

/// Places of a queue that are for what is posted.
fn places_for_posts(endpoint: &EndpointPlan) -> usize {
    // A queue for both has two at least.
    let both = endpoint.places.max(2);
    if endpoint.one_queue { both - (both / 4).max(1) } else { endpoint.places }
}

/// Gives each task room of its own.
fn fit(random: &mut Random, nodes: &mut [NodePlan], tasks: &mut [TaskPlan]) {
    for (number, node) in nodes.iter_mut().enumerate() {
        // Endpoints for what is lent.
        let last = tasks.iter().filter(|task| task.place.0 == number).map(|task| task.place.1).max().unwrap_or(0);
        while node.endpoints.len() <= last {
            let endpoint = EndpointPlan { places: 2, one_queue: false, reads: 1, pause: (0, 0), reads_after: None };
            node.endpoints.push(endpoint);
        }
        let mut under_way = 0;
        for (at, endpoint) in node.endpoints.iter_mut().enumerate() {
            let mine = || tasks.iter().filter(|task| task.place == (number, at) && task.target().is_some());
            let count = mine().count().max(1);
            while places_for_posts(endpoint) < count {
                endpoint.places += 1;
            }
            let each = places_for_posts(endpoint) / count;
            // What is late may be read late too, where nothing else is read.
            let late = tasks.iter().find(|task| task.place == (number, at) && task.after.is_some());
            if !endpoint.one_queue && random.once_in(3) {
                endpoint.reads_after = late.and_then(|task| task.after);
            }
            for task in tasks.iter_mut().filter(|task| task.place == (number, at)) {
                if task.target().is_some() {
                    task.window = task.window.min(each);
                    under_way += task.window;
                }
            }
        }
        let mut commands = 8;
        while commands - (commands / 8).max(2) < under_way + 1 {
            commands += 1;
        }
        node.config.commands_max = commands + random.pick(&[0, 0, 8]);
    }
}
