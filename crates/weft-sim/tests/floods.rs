//! What a flood to a late reader, and contended atomics, cost in virtual time and in datagrams.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

use weft_core::address::{Address, PeerId};
use weft_core::atomic::{AtomicCall, AtomicOperation, Datatype};
use weft_core::command::{Command, EndpointId, Operation, Receive};
use weft_core::delivery::{Bindings, EndpointKind};
use weft_core::engine::{Config, Engine, Piece, Transmit};
use weft_core::event::QueueId;
use weft_core::memory::{Access, Memory};
use weft_core::packet::Codec;
use weft_core::time::Time;
use weft_sim::memory::{Content, SimMemory, Use};
use weft_sim::node::socket_of;

/// On the way from one node to another.
const LATENCY_US: u64 = 10;
/// Between two turns of a program.
const TURN_US: u64 = 5;
const KEY: u64 = 7;

struct Node {
    engine: Engine<SimMemory>,
    endpoint: EndpointId,
    queue: QueueId,
}

struct World {
    nodes: Vec<Node>,
    now: Time,
    under_way: BinaryHeap<Reverse<(u64, u64, usize, usize)>>,
    datagrams: HashMap<u64, Vec<u8>>,
    sent: u64,
}

impl World {
    fn new(count: usize, config: &Config, places: usize) -> World {
        #[expect(clippy::unwrap_used, reason = "tests")]
        let codec = Arc::new(Codec::builtin().unwrap());
        let mut nodes = Vec::new();
        let mut addresses = Vec::new();
        for number in 0..count {
            let mut memory = SimMemory::new(1);
            memory.register(KEY, 0, Access::REMOTE, Content::Cells, &[0; 8]);
            let mut engine = Engine::new(config.clone(), Arc::clone(&codec), [number as u8 + 1; 32], memory);
            let queue = engine.delivery_mut().open_queue(places);
            let bindings = Bindings { transmit_queue: Some(queue), receive_queue: Some(queue), ..Bindings::default() };
            let endpoint = engine.delivery_mut().open_endpoint(EndpointKind::Reliable, bindings);
            addresses.push(Address {
                socket: socket_of(number),
                endpoint: engine.delivery().endpoint_number(endpoint).unwrap_or(0),
            });
            nodes.push(Node { engine, endpoint, queue });
        }
        for node in &mut nodes {
            addresses.iter().for_each(|address| {
                assert!(node.engine.delivery_mut().addresses_mut().insert(*address, 1500).is_some())
            });
        }
        let under_way = BinaryHeap::new();
        World { nodes, now: Time::from_micros(1000), under_way, datagrams: HashMap::new(), sent: 0 }
    }

    /// Lets the network carry, and time pass, until the next turn.
    fn turn(&mut self) {
        let end = self.now.plus_micros(TURN_US);
        loop {
            for from in 0..self.nodes.len() {
                self.collect(from);
            }
            let arrival = self.under_way.peek().map_or(u64::MAX, |Reverse((at, ..))| *at);
            let timer = self.nodes.iter().map(|node| node.engine.poll_timeout().0).min().unwrap_or(u64::MAX);
            let next = arrival.min(timer.max(self.now.0));
            if next >= end.0 {
                break;
            }
            self.now = Time(next);
            while let Some(Reverse((at, number, from, to))) = self.under_way.peek().copied() {
                if at > next {
                    break;
                }
                self.under_way.pop();
                if let (Some(mut bytes), Some(node)) = (self.datagrams.remove(&number), self.nodes.get_mut(to)) {
                    node.engine.handle_datagram(self.now, socket_of(from).into(), &mut bytes, false);
                }
            }
            for node in &mut self.nodes {
                if node.engine.poll_timeout() <= self.now {
                    node.engine.handle_timeout(self.now);
                }
            }
        }
        self.now = end;
    }

    fn collect(&mut self, from: usize) {
        let Some(node) = self.nodes.get_mut(from) else { return };
        let mut transmit = Transmit::default();
        while node.engine.poll_transmit(self.now, &mut transmit) {
            let mut bytes = Vec::new();
            for piece in &transmit.pieces {
                match *piece {
                    Piece::Bytes { start, length } => {
                        let end = start as usize + length as usize;
                        bytes.extend_from_slice(transmit.bytes.get(start as usize..end).unwrap_or_default());
                    }
                    Piece::Memory(granted) => {
                        let at = bytes.len();
                        bytes.resize(at + granted.length as usize, 0);
                        let read =
                            node.engine.delivery().memory().read(granted, bytes.get_mut(at..).unwrap_or_default());
                        assert!(read.is_ok());
                    }
                }
            }
            let to = match transmit.path.remote.ip() {
                std::net::IpAddr::V4(ip) => usize::from(ip.octets()[3]),
                std::net::IpAddr::V6(_) => 0,
            };
            let each = if transmit.segment_bytes == 0 { bytes.len().max(1) } else { transmit.segment_bytes };
            for datagram in bytes.chunks(each) {
                self.sent += 1;
                self.datagrams.insert(self.sent, datagram.to_vec());
                self.under_way.push(Reverse((self.now.plus_micros(LATENCY_US).0, self.sent, from, to)));
            }
        }
    }

    fn not_ready(&self) -> u64 {
        self.nodes.iter().map(|node| node.engine.statistics().not_ready).sum()
    }

    /// Reads completions of a node; how many there were.
    #[expect(clippy::unwrap_used, reason = "tests")]
    fn read(&mut self, node: usize, most: usize) -> usize {
        let node = self.nodes.get_mut(node).unwrap();
        let mut read = 0;
        while read < most
            && let Some(completion) = node.engine.delivery_mut().poll_completion(node.queue)
        {
            assert_eq!(completion.result, Ok(()));
            node.engine.delivery_mut().memory_mut().detach(completion.local).unwrap();
            read += 1;
        }
        read
    }
}

/// Node 0 sends `count` messages as fast as it can; node 1 receives `each` of them in a turn, after a while.
#[expect(clippy::unwrap_used, reason = "tests")]
fn flood(count: usize, unexpected: usize, each: usize) -> (u64, u64, u64) {
    let config = Config { unexpected_max: unexpected, ..Config::default() };
    let mut world = World::new(2, &config, 256);
    let (mut posted, mut receives, mut received) = (0, 0, 0);
    let started = world.now;
    let mut resumed = started;
    let mut turns = 0;
    while received < count {
        turns += 1;
        assert!(turns < 40 * count / each + 100_000, "{received} of {count} received");
        world.read(0, usize::MAX);
        let now = world.now;
        while posted < count {
            let node = world.nodes.get_mut(0).unwrap();
            let mut command = Command::new(Operation::Send, node.endpoint, PeerId(1));
            command.local = node.engine.delivery_mut().memory_mut().attach(&[1; 1024], Use::Source, 1 << 20);
            command.length = 1024;
            if node.engine.post(now, &command).is_err() {
                node.engine.delivery_mut().memory_mut().detach(command.local).unwrap();
                break;
            }
            posted += 1;
        }
        // The reader sleeps until long after there is no room any more.
        if turns == 20_000 {
            resumed = world.now;
        }
        if turns >= 20_000 {
            received += world.read(1, usize::MAX);
            let node = world.nodes.get_mut(1).unwrap();
            for _ in 0..each.min(count - receives) {
                let local = node.engine.delivery_mut().memory_mut().attach(&[0; 1024], Use::Target, 1 << 20);
                let receive = Receive {
                    endpoint: node.endpoint,
                    local,
                    offset: 0,
                    length: 1024,
                    source: None,
                    tagged: false,
                    tag: 0,
                    ignore: 0,
                    multi: None,
                    silent: false,
                    announce: false,
                    context: 0,
                    counter: None,
                };
                if node.engine.delivery_mut().post_receive(&receive).is_err() {
                    node.engine.delivery_mut().memory_mut().detach(local).unwrap();
                    break;
                }
                receives += 1;
            }
        }
        world.turn();
    }
    ((world.now.0 - resumed.0) / 1000, world.sent, world.not_ready())
}

/// A reader that comes late and takes a few at a time is the bottleneck, not waits of the sender; and refusals are few.
#[test]
fn a_flood_is_as_fast_as_its_reader() {
    for each in [1, 16] {
        let count = if cfg!(debug_assertions) { 4000 } else { 40_000 };
        let (took_us, datagrams, refused) = flood(count, 256, each);
        println!("{count} messages, {each} a turn: {took_us} µs, {datagrams} datagrams, {refused} refused");
        let reader_us = TURN_US * (count / each) as u64;
        assert!(took_us < 2 * reader_us + 20_000, "{took_us} µs, the reader alone takes {reader_us}");
        assert!(refused < count as u64 * 2, "{refused} of {count} messages were refused");
    }
}

/// Four peers add to one word, each one by one and then all they can: the answers take a round trip, nothing else.
#[test]
fn contended_atomics_take_round_trips() {
    for window in [1, 256] {
        let each = if cfg!(debug_assertions) { 500 } else { 2500 };
        let mut world = World::new(5, &Config::default(), 1024);
        let started = world.now;
        let (mut posted, mut ended) = (vec![0; 5], vec![0; 5]);
        let mut turns = 0;
        while ended.iter().sum::<usize>() < 4 * each {
            turns += 1;
            assert!(turns < 1_000_000, "{ended:?}");
            let now = world.now;
            for peer in 1..5 {
                let node = world.nodes.get_mut(peer).unwrap();
                while let Some(completion) = node.engine.delivery_mut().poll_completion(node.queue) {
                    assert_eq!(completion.result, Ok(()));
                    node.engine.delivery_mut().memory_mut().detach(completion.local).unwrap();
                    node.engine.delivery_mut().memory_mut().detach(completion.results).unwrap();
                    ended[peer] += 1;
                }
                while posted[peer] < each && posted[peer] - ended[peer] < window {
                    let mut command = Command::new(Operation::FetchAtomic, node.endpoint, PeerId(0));
                    command.atomic = AtomicCall::new(AtomicOperation::Sum, Datatype::Uint64, 1);
                    command.local =
                        node.engine.delivery_mut().memory_mut().attach(&1u64.to_le_bytes(), Use::Source, 64);
                    let results = node.engine.delivery_mut().memory_mut().attach(&[0; 8], Use::Target, 64);
                    (command.key, command.length, command.immediate) = (KEY, 8, u64::from(results.0));
                    node.engine.post(now, &command).unwrap();
                    posted[peer] += 1;
                }
            }
            world.turn();
        }
        let took_us = (world.now.0 - started.0) / 1000;
        let (datagrams, refused) = (world.sent, world.not_ready());
        println!("{each} fetch-adds of 4, {window} at a time: {took_us} µs, {datagrams} datagrams, {refused} refused");
        let rounds = (each / window.min(weft_core::limits::FETCHES_MAX as usize) + 2) as u64;
        assert!(took_us < rounds * (2 * LATENCY_US + 2 * TURN_US) + 1000, "{took_us} µs for {rounds} round trips");
        assert!(refused < each as u64 / 10, "{refused} refused");
    }
}
