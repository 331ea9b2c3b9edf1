//! Traffic that nobody planned: everybody sends and receives at once, with queues that are too short for all of it, readers
//! that pause, receives that come late. It must end.

use std::collections::VecDeque;
use std::time::Instant;

use weft::{Access, Buffer, Completion, CompletionKind, Level, MemoryRegion, Options, PeerId, Progress, RemoteAddress};

use crate::support::{Node, PATIENCE, World, pattern};

/// What every node does.
#[derive(Clone)]
struct Plan {
    nodes: usize,
    /// Whom a node sends to.
    whom: fn(usize, usize) -> Vec<usize>,
    lengths: &'static [usize],
    /// Messages from each node to each of those.
    count: usize,
    /// Sends, and receives, of a node that are under way.
    window: usize,
    /// Places of a completion queue.
    capacity: usize,
    level: Level,
    /// Receives are posted when all sends are, or none is taken any more.
    late: bool,
    /// The last node does nothing for so many turns of the others, again and again.
    pause: usize,
}

const PLAN: Plan = Plan {
    nodes: 2,
    whom: others,
    lengths: &[8],
    count: 64,
    window: 64,
    capacity: 64,
    level: Level::Transmitted,
    late: false,
    pause: 0,
};

fn others(node: usize, nodes: usize) -> Vec<usize> {
    (0..nodes).filter(|other| *other != node).collect()
}

fn next(node: usize, nodes: usize) -> Vec<usize> {
    vec![(node + 1) % nodes]
}

/// A node, and how far it has come.
struct Actor {
    node: Node,
    peers: Vec<PeerId>,
    /// Whom it sends to, and the next message.
    to_send: VecDeque<(usize, usize)>,
    /// Whom it receives from.
    to_receive: VecDeque<(usize, usize)>,
    sending: usize,
    receiving: usize,
}

fn tag(from: usize, index: usize) -> u64 {
    (from as u64) << 32 | index as u64
}

fn seed(from: usize, to: usize, index: usize) -> u64 {
    (from * 1_000_003 + to * 1009 + index) as u64
}

impl Actor {
    fn is_done(&self) -> bool {
        self.to_send.is_empty() && self.to_receive.is_empty() && self.sending + self.receiving == 0
    }

    /// Posts and reads what it can. True: something changed.
    fn act(&mut self, me: usize, plan: &Plan) -> bool {
        let length = |index: usize| plan.lengths[index % plan.lengths.len()];
        let (sends, receives) = (self.to_send.len(), self.to_receive.len());
        let options = Options { level: plan.level, ..Default::default() };
        let mut refused = false;
        while self.sending < plan.window && !refused {
            let Some((to, index)) = self.to_send.front().copied() else { break };
            let buffer = self.node.buffer(pattern(seed(me, to, index), length(index)));
            match self.node.endpoint.tagged_send_with(self.peers[to], tag(me, index), buffer, options) {
                Ok(_) => {
                    self.to_send.pop_front();
                    self.sending += 1;
                }
                Err(full) if full.error.is_full() => refused = true,
                Err(other) => panic!("{other}"),
            }
        }
        let late = plan.late && !refused && !self.to_send.is_empty() && self.sending < plan.window;
        while self.receiving < plan.window && !late {
            let Some((from, index)) = self.to_receive.front().copied() else { break };
            let buffer = self.node.buffer(vec![0; length(index)]);
            match self.node.endpoint.tagged_receive(tag(from, index), 0, buffer) {
                Ok(_) => {
                    self.to_receive.pop_front();
                    self.receiving += 1;
                }
                // Its message waits here, and its completion has no place.
                Err(full) if full.error.is_full() => break,
                Err(other) => panic!("{other}"),
            }
        }
        let mut read = 0;
        while let Some(completion) = self.node.queue.read().unwrap() {
            let state = || (me, self.sending, self.receiving, self.node.domain.state(), self.node.domain.statistics());
            let completion = completion.ok().unwrap_or_else(|error| panic!("{error}: {:?}", state()));
            self.ended(me, completion);
            read += 1;
        }
        read > 0 || sends != self.to_send.len() || receives != self.to_receive.len()
    }

    fn ended(&mut self, me: usize, completion: Completion) {
        if completion.kind != CompletionKind::TaggedReceive {
            self.sending -= 1;
            return;
        }
        self.receiving -= 1;
        let (from, index) = ((completion.tag >> 32) as usize, completion.tag as u32 as usize);
        let length = completion.length as usize;
        let bytes = completion.into_bytes().unwrap();
        assert!(bytes == pattern(seed(from, me, index), length), "message {index} from {from} to {me}");
    }
}

fn run(world: &World, plan: &Plan) {
    let nodes: Vec<Node> = (0..plan.nodes).map(|_| world.node_with(plan.capacity, |_| {})).collect();
    let messages = |to: usize, from: usize| (plan.whom)(from, plan.nodes).contains(&to);
    let named = |node: &Node| nodes.iter().map(|other| node.knows(other)).collect::<Vec<_>>();
    let names: Vec<Vec<PeerId>> = nodes.iter().map(named).collect();
    let mut actors = Vec::new();
    for (me, (node, peers)) in nodes.into_iter().zip(names).enumerate() {
        let all = |wanted: &dyn Fn(usize) -> bool| -> VecDeque<(usize, usize)> {
            (0..plan.count).flat_map(|i| (0..plan.nodes).filter(|n| wanted(*n)).map(move |n| (n, i))).collect()
        };
        let (to_send, to_receive) = (all(&|other| messages(other, me)), all(&|other| messages(me, other)));
        actors.push(Actor { node, peers, to_send, to_receive, sending: 0, receiving: 0 });
    }
    let (mut turn, mut moved) = (0usize, Instant::now());
    while actors.iter().any(|actor| !actor.is_done()) {
        let mut changed = false;
        turn += 1;
        for (me, actor) in actors.iter_mut().enumerate() {
            let pauses = plan.pause > 0 && me + 1 == plan.nodes && (turn / plan.pause).is_multiple_of(2);
            changed |= !pauses && actor.act(me, plan);
        }
        // Whatever changes makes for more patience: only where nothing does it hangs.
        if changed {
            moved = Instant::now();
        } else if plan.pause == 0 {
            // While one pauses it makes no progress either, as a program does that computes.
            world.turn();
        }
        let left = || actors.iter().map(|a| (a.sending, a.receiving, a.node.domain.state())).collect::<Vec<_>>();
        assert!(moved.elapsed() < PATIENCE, "nobody gets on: {:?}", left());
    }
    if world.progress() == Progress::Manual {
        world.turn();
    }
}

/// Both sides send and receive at once, as many as they may, with queues from the shortest on.
pub(crate) fn both_ways_with_short_queues(world: &World) {
    let long: &[usize] = if world.is_faulty() { &[0, 9000, 70_000] } else { &[0, 70_000, 300_000, 4096, 131_072] };
    for (capacity, window) in [(2, 1), (2, 64), (4, 64), (16, 256), (64, 64), (64, 1024)] {
        run(world, &Plan { capacity, window, lengths: long, count: 40, ..PLAN });
        run(world, &Plan { capacity, window, lengths: &[0, 1, 80, 81, 4000], count: 300, ..PLAN });
    }
}

/// The same where a send ends only when a receive has taken it.
pub(crate) fn synchronous_both_ways(world: &World) {
    for (capacity, window) in [(2, 16), (64, 1024)] {
        run(world, &Plan { capacity, window, level: Level::Delivered, count: 300, ..PLAN });
        run(world, &Plan { capacity, window, level: Level::Delivered, lengths: &[70_000, 0], count: 20, ..PLAN });
    }
}

/// Messages come before their receives, as many as the window has.
pub(crate) fn receives_come_late(world: &World) {
    for (capacity, window) in [(4, 16), (64, 256)] {
        run(world, &Plan { capacity, window, late: true, lengths: &[8, 30_000, 70_000, 0], count: 40, ..PLAN });
    }
}

/// Who reads now and then holds up others only while it does not.
pub(crate) fn a_reader_pauses(world: &World) {
    for nodes in [2, 3] {
        run(world, &Plan { nodes, whom: next, pause: 50, lengths: &[70_000, 8], count: 40, capacity: 16, ..PLAN });
        run(world, &Plan { nodes, pause: 50, lengths: &[8, 0, 4000], count: 200, ..PLAN });
    }
}

/// Each sends to the next one.
pub(crate) fn rings_of_nodes(world: &World) {
    for (nodes, count) in [(3, 30), (8, 10)] {
        run(world, &Plan { nodes, whom: next, lengths: &[70_000, 0, 8, 33_000], count, capacity: 4, ..PLAN });
    }
}

/// Each sends to all others.
pub(crate) fn everybody_to_everybody(world: &World) {
    for (nodes, count) in [(3, 20), (8, 4)] {
        run(world, &Plan { nodes, lengths: &[70_000, 8, 0, 5000], count, capacity: 16, window: 32, ..PLAN });
    }
}

/// Writes with notices, reads and writes of both at once, with queues that have room for few.
pub(crate) fn remote_memory_both_ways(world: &World) {
    const LENGTH: usize = 40_000;
    const COUNT: usize = 30;
    let nodes: Vec<Node> = (0..2).map(|_| world.node_with(4, |_| {})).collect();
    let regions: Vec<MemoryRegion> = nodes.iter().map(|n| n.register(3 * LENGTH, Access::REMOTE).unwrap()).collect();
    let remotes: Vec<RemoteAddress> = regions.iter().map(MemoryRegion::remote).collect();
    let (mut posted, mut ended, mut notices) = ([0; 2], [0; 2], [0; 2]);
    while ended != [3 * COUNT; 2] || notices != [COUNT; 2] {
        world.until("reads and writes get on", || {
            let mut changed = false;
            for me in 0..2 {
                let (node, there) = (&nodes[me], remotes[1 - me]);
                let peer = node.knows(&nodes[1 - me]);
                let bytes = |number: usize| -> Buffer { node.buffer(pattern((number + me) as u64, LENGTH)) };
                while posted[me] < 3 * COUNT {
                    let number = posted[me];
                    // Writes have no order: what is looked at in the end is written when all before it has ended.
                    if number == 3 * COUNT - 2 && ended[me] < number {
                        break;
                    }
                    let post = match number % 3 {
                        0 => {
                            let options = Options { immediate: Some(number as u64), ..Default::default() };
                            node.endpoint.write_with(peer, there, bytes(number), options)
                        }
                        1 => node.endpoint.write(peer, there.at(LENGTH as u64), bytes(number)),
                        _ => node.endpoint.read(peer, there.at(2 * LENGTH as u64), node.buffer(vec![1; LENGTH])),
                    };
                    match post {
                        Ok(_) => posted[me] += 1,
                        Err(full) if full.error.is_full() => break,
                        Err(other) => panic!("{other}"),
                    }
                    changed = true;
                }
                while let Some(completion) = node.queue.read().unwrap() {
                    let completion = completion.ok().unwrap();
                    match completion.kind {
                        CompletionKind::RemoteWrite => notices[me] += 1,
                        CompletionKind::Read => {
                            ended[me] += 1;
                            assert!(completion.into_bytes().unwrap().iter().all(|byte| *byte == 0));
                        }
                        _ => ended[me] += 1,
                    }
                    changed = true;
                }
            }
            changed.then_some(())
        });
    }
    for (me, region) in regions.iter().enumerate() {
        let last = |number: usize| pattern((number + 1 - me) as u64, LENGTH);
        assert!(region.to_vec(LENGTH, LENGTH).unwrap() == last(3 * COUNT - 2));
    }
}

/// Messages that nobody takes do not hold up what needs nobody, which may be what its target waits for.
pub(crate) fn waiting_messages_hold_up_no_remote_memory(world: &World) {
    let a = world.node();
    let b = world.node_with(64, |config| (config.unexpected_max, config.unexpected_max_bytes) = (4, 4 << 10));
    let to_b = a.knows(&b);
    let memory = b.register(100_000, Access::REMOTE).unwrap();
    let sends = 3000;
    for index in 0..sends {
        a.endpoint.send(to_b, a.buffer(pattern(index, 1000))).unwrap();
    }
    for index in 0..4u64 {
        a.endpoint.write(to_b, memory.remote(), a.buffer(pattern(index, 100_000))).unwrap();
        a.endpoint.read(to_b, memory.remote(), a.buffer(vec![0; 100_000])).unwrap();
        a.endpoint.fetch_add(to_b, memory.remote().at(8 * index), 1u64).unwrap();
    }
    let mut sent = 0;
    for _ in 0..12 {
        let completion = world.until("remote memory", || {
            let completion = a.queue.read().unwrap()?.ok().unwrap();
            let is_send = completion.kind == CompletionKind::Send;
            sent += u64::from(is_send);
            (!is_send).then_some(completion)
        });
        assert!(matches!(completion.kind, CompletionKind::Write | CompletionKind::Read | CompletionKind::FetchAtomic));
    }
    assert!(sent < sends, "more messages were taken than there was room for");
    for index in 0..sends {
        b.endpoint.receive(b.buffer(vec![0; 1000])).unwrap();
        let received = world.until("message", || {
            while a.queue.read().unwrap().is_some() {
                sent += 1;
            }
            b.queue.read().unwrap()
        });
        assert!(received.ok().unwrap().into_bytes().unwrap() == pattern(index, 1000), "message {index}");
    }
    world.until("all sends", || {
        while a.queue.read().unwrap().is_some() {
            sent += 1;
        }
        (sent == sends).then_some(())
    });
}
