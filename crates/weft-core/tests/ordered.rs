//! Ordered writes, reads and atomics over a network that loses, repeats and reorders: every one sees what all before it did.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod support;

use support::*;
use weft_core::atomic::{AtomicCall, AtomicOperation, Datatype};
use weft_core::command::{Command, CommandFlags, Operation, PostError};
use weft_core::engine::{Config, Piece, Transmit};
use weft_core::memory::{Access, LocalKey};

const KEY: u64 = 77;
const REGION_BYTES: usize = 6000;

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// Datagrams under way, each with the node it is for.
#[derive(Default)]
struct Network {
    under_way: Vec<(usize, Vec<u8>)>,
}

impl Network {
    fn collect(&mut self, pair: &mut Pair) {
        let mut transmit = Transmit::default();
        for from in 0..2 {
            while pair.nodes[from].engine.poll_transmit(pair.now, &mut transmit) {
                let mut bytes = Vec::new();
                for piece in &transmit.pieces {
                    match piece {
                        Piece::Bytes { start, length } => {
                            bytes.extend_from_slice(&transmit.bytes[*start as usize..][..*length as usize]);
                        }
                        Piece::Memory(granted) => {
                            bytes.extend_from_slice(pair.nodes[from].engine.delivery().memory().bytes(*granted));
                        }
                    }
                }
                let size = if transmit.segment_bytes == 0 { bytes.len() } else { transmit.segment_bytes };
                self.under_way.extend(bytes.chunks(size).map(|datagram| (1 - from, datagram.to_vec())));
            }
        }
    }

    /// Brings any one of them, or loses it, or brings it and keeps it; time passes.
    fn step(&mut self, pair: &mut Pair, random: &mut Random) {
        self.collect(pair);
        pair.now = pair.now.plus_micros(20);
        if self.under_way.is_empty() {
            pair.now = pair.now.plus_micros(500);
        } else {
            let at = random.below(self.under_way.len() as u64) as usize;
            let fate = random.below(10);
            let (to, mut datagram) =
                if fate == 0 { self.under_way[at].clone() } else { self.under_way.swap_remove(at) };
            if fate != 1 {
                let from = pair.nodes[1 - to].socket;
                pair.nodes[to].engine.handle_datagram(pair.now, from.into(), &mut datagram, false);
            }
        }
        for node in &mut pair.nodes {
            if node.engine.poll_timeout() <= pair.now {
                node.engine.handle_timeout(pair.now);
            }
        }
    }
}

/// What an operation must leave in its buffer.
struct Expected {
    local: LocalKey,
    bytes: Option<Vec<u8>>,
}

/// Does many operations at once; gives whether all of them saw, and left, what they would have one after the other.
fn is_sequential(seed: u64, flags: CommandFlags) -> bool {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let config = Config { give_up_us: weft_core::limits::GIVE_UP_MAX_US, ..Config::default() };
    let mut pair = Pair::with(config, 512);
    pair.nodes[1].engine.delivery_mut().memory_mut().register(KEY, vec![0; REGION_BYTES], Access::REMOTE);
    let mut model = vec![0u8; REGION_BYTES];
    let mut expected = Vec::new();
    let mut network = Network::default();
    let mut ended = 0;
    for context in 0..150u64 {
        let long = random.below(8) == 0;
        let length = if long { 8 * (1 + random.below(500)) } else { 8 } as usize;
        // A few places that are hit again and again, and some that are hit now and then.
        let address = if random.below(2) == 0 {
            8 * random.below(3)
        } else {
            8 * random.below((REGION_BYTES - length) as u64 / 8)
        } as usize;
        let mut command = Command::new(Operation::Write, pair.nodes[0].endpoint, PEER);
        (command.address, command.key, command.context) = (address as u64, KEY, context);
        (command.length, command.flags) = (length as u32, flags);
        let place = &mut model[address..address + length];
        let (local, bytes) = match random.below(3) {
            0 => {
                let bytes = pattern(length, context as u8);
                place.copy_from_slice(&bytes);
                (pair.buffer(0, bytes), None)
            }
            1 => {
                command.operation = Operation::Read;
                (pair.buffer(0, vec![0xee; length]), Some(place.to_vec()))
            }
            _ => {
                let place = &mut place[..8];
                command.operation = Operation::FetchAtomic;
                command.atomic = AtomicCall::new(AtomicOperation::Sum, Datatype::Uint64, 1);
                (command.length, command.offset) = (8, 8);
                let old = u64::from_le_bytes(place.try_into().unwrap());
                let bytes = [old.to_le_bytes(), (context + 1).to_le_bytes()].concat();
                let local = pair.buffer(0, [[0; 8], (context + 1).to_le_bytes()].concat());
                command.immediate = u64::from(local.0);
                place.copy_from_slice(&old.wrapping_add(context + 1).to_le_bytes());
                (local, Some(bytes))
            }
        };
        command.local = local;
        expected.push(Expected { local, bytes });
        while let Err(error) = pair.nodes[0].engine.post(pair.now, &command) {
            assert!(matches!(error, PostError::QueueFull | PostError::CompletionQueueFull));
            network.step(&mut pair, &mut random);
        }
        if random.below(3) == 0 {
            network.step(&mut pair, &mut random);
        }
    }
    let mut good = true;
    while ended < expected.len() {
        network.step(&mut pair, &mut random);
        let queue = pair.nodes[0].sends;
        while let Some(completion) = pair.nodes[0].engine.delivery_mut().poll_completion(queue) {
            assert_eq!(completion.result, Ok(()));
            let expected = &expected[completion.context as usize];
            let seen = expected.bytes.as_ref().is_none_or(|bytes| pair.bytes(0, expected.local) == bytes);
            good &= seen;
            ended += 1;
        }
    }
    good && pair.nodes[1].engine.delivery().memory().region(KEY) == model
}

#[test]
fn ordered_operations_see_all_that_were_before_them() {
    for seed in 1..=200 {
        assert!(is_sequential(seed, CommandFlags::ORDERED), "seed {seed}");
    }
}

#[test]
fn the_same_without_order_goes_wrong() {
    assert!((1..=5).any(|seed| !is_sequential(seed, CommandFlags::NONE)), "the test proves something");
}

#[test]
fn what_is_apart_goes_side_by_side() {
    let mut pair = Pair::new();
    pair.nodes[1].engine.delivery_mut().memory_mut().register(KEY, vec![0; 200], Access::REMOTE);
    let post = |pair: &mut Pair, address: u64, key: u64| {
        let mut command = Command::new(Operation::Write, pair.nodes[0].endpoint, PEER);
        command.local = pair.buffer(0, vec![1; 8]);
        (command.length, command.address, command.key) = (8, address, key);
        command.flags = CommandFlags::ORDERED;
        pair.nodes[0].engine.post(pair.now, &command).unwrap();
    };
    // The first message to a target is alone, whatever it is.
    post(&mut pair, 0, KEY);
    pair.settle();
    pair.nodes[1].engine.delivery_mut().memory_mut().register(KEY + 1, vec![0; 200], Access::REMOTE);
    let before = pair.datagrams;
    for address in 0..10 {
        post(&mut pair, 8 * address, KEY);
    }
    post(&mut pair, 0, KEY + 1);
    pair.settle();
    assert_eq!(pair.datagrams - before, 2, "eleven writes in one datagram, one acknowledgement");
    let before = pair.datagrams;
    (0..3).for_each(|_| post(&mut pair, 40, KEY));
    pair.settle();
    assert_eq!(pair.datagrams - before, 6, "each waits for the one before it");
    (0..15).for_each(|_| assert_eq!(pair.sent(0).result, Ok(())));
    pair.assert_quiet();
}
