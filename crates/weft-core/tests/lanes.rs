//! What has to wait holds up nobody else (P-6.6).
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod support;

use support::*;
use weft_core::address::PeerId;
use weft_core::atomic::{AtomicCall, AtomicOperation, Datatype};
use weft_core::command::{Command, CommandFlags, EndpointId, Operation};
use weft_core::delivery::{Bindings, EndpointKind};
use weft_core::engine::Config;
use weft_core::limits::{ACK_DELAY_US, ACK_SOON_US, FETCHES_MAX};
use weft_core::memory::Access;
use weft_core::time::Time;

const KEY: u64 = 77;
/// The second endpoint of node 1.
const OTHER: PeerId = PeerId(2);

/// A pair whose node 1 has a region and a second endpoint. Node 0 has a ticket.
fn pair(config: Config) -> (Pair, EndpointId) {
    let mut pair = Pair::with(config, 256);
    let node = &mut pair.nodes[1];
    let queue = node.engine.delivery_mut().open_queue(64);
    let bindings = Bindings { receive_queue: Some(queue), ..Bindings::default() };
    let other = node.engine.delivery_mut().open_endpoint(EndpointKind::Reliable, bindings);
    node.engine.delivery_mut().memory_mut().register(KEY, vec![0; 4000], Access::REMOTE);
    let address = pair.nodes[1].address(other);
    assert_eq!(pair.nodes[0].engine.delivery_mut().addresses_mut().insert(address, 1232), Some(OTHER));
    write(&mut pair, 3999, CommandFlags::NONE, PEER);
    pair.settle();
    assert_eq!(pair.sent(0).context, 3999);
    (pair, other)
}

fn write(pair: &mut Pair, address: u64, flags: CommandFlags, peer: PeerId) {
    let change = |command: &mut Command| {
        (command.operation, command.key, command.address) = (Operation::Write, KEY, address);
        (command.context, command.flags, command.peer) = (address, flags, peer);
    };
    pair.send(0, &[1], change).unwrap();
}

/// What was written.
fn written(pair: &Pair, address: usize) -> bool {
    pair.nodes[1].engine.delivery().memory().region(KEY)[address] == 1
}

/// Contexts of what has ended well.
fn ended(pair: &mut Pair) -> Vec<u64> {
    let node = &mut pair.nodes[0];
    let queue = node.sends;
    let ended = std::iter::from_fn(|| node.engine.delivery_mut().poll_completion(queue));
    let mut ended: Vec<u64> = ended.inspect(|ended| assert_eq!(ended.result, Ok(()))).map(|e| e.context).collect();
    ended.sort_unstable();
    ended
}

#[test]
fn a_refused_message_holds_up_no_other_lane_and_no_write_or_read_behind_it() {
    let (mut pair, other) = pair(Config { unexpected_max: 1, ..Config::default() });
    for context in 1..=4 {
        pair.send(0, b"nobody receives it", |command| command.context = context).unwrap();
    }
    pair.settle();
    assert_eq!(ended(&mut pair), [1], "the others are refused");
    pair.receive(1, 100, |receive| receive.endpoint = other);
    pair.send(0, b"to somebody else", |command| (command.peer, command.context) = (OTHER, 5)).unwrap();
    write(&mut pair, 6, CommandFlags::NONE, PEER);
    let read = |command: &mut Command| {
        (command.operation, command.key, command.context) = (Operation::Read, KEY, 7);
    };
    pair.send(0, &[0; 3000], read).unwrap();
    write(&mut pair, 8, CommandFlags::IMMEDIATE, PEER);
    pair.settle();
    assert_eq!(ended(&mut pair), [5, 6, 7, 8]);
    for context in 1..=4 {
        let bytes = pair.receive(1, 100, |receive| receive.context = context);
        pair.settle();
        assert_eq!(pair.bytes(1, bytes)[..18], *b"nobody receives it");
    }
    assert_eq!(ended(&mut pair), [2, 3, 4]);
}

#[test]
fn a_fence_waits_for_its_own_pair_of_endpoints_and_those_behind_it_wait_for_the_fence() {
    let (mut pair, other) = pair(Config { eager_max_bytes: 100, ..Config::default() });
    pair.send(0, &[3; 200], |command| (command.peer, command.context) = (OTHER, 1)).unwrap();
    pair.settle();
    assert_eq!(ended(&mut pair), [], "it waits to be fetched");
    write(&mut pair, 2, CommandFlags::FENCE, PEER);
    write(&mut pair, 3, CommandFlags::FENCE, OTHER);
    write(&mut pair, 4, CommandFlags::NONE, OTHER);
    write(&mut pair, 5, CommandFlags::NONE, PEER);
    pair.settle();
    assert_eq!(ended(&mut pair), [2, 5]);
    assert!(!written(&pair, 3) && !written(&pair, 4));
    pair.receive(1, 200, |receive| receive.endpoint = other);
    pair.settle();
    assert_eq!(ended(&mut pair), [1, 3, 4]);
}

/// Gives what node 0 sends to node 1, and keeps what node 1 answers.
fn one_way(pair: &mut Pair) -> Vec<Vec<u8>> {
    for datagram in drain(pair, 0) {
        give(pair, 1, datagram);
    }
    drain(pair, 1)
}

#[test]
fn fetches_that_wait_for_results_hold_up_no_writes() {
    let (mut pair, _) = pair(Config::default());
    let many = u64::from(FETCHES_MAX) + 10;
    for context in 0..many {
        let results = pair.buffer(0, vec![0; 8]);
        let fetch = |command: &mut Command| {
            command.operation = Operation::FetchAtomic;
            command.atomic = AtomicCall::new(AtomicOperation::Sum, Datatype::Uint64, 1);
            (command.key, command.immediate, command.context) = (KEY, u64::from(results.0), context);
        };
        pair.send(0, &1u64.to_le_bytes(), fetch).unwrap();
    }
    write(&mut pair, 100, CommandFlags::NONE, PEER);
    let answers = one_way(&mut pair);
    assert!(written(&pair, 100));
    assert_eq!(pair.nodes[1].engine.delivery().memory().region(KEY)[0], FETCHES_MAX as u8);
    answers.into_iter().for_each(|answer| give(&mut pair, 0, answer));
    pair.settle();
    assert_eq!(ended(&mut pair).len() as u64, many + 1);
}

#[test]
fn an_ordered_write_that_waits_holds_up_no_other() {
    let (mut pair, _) = pair(Config::default());
    for address in [1, 1, 2] {
        write(&mut pair, address, CommandFlags::ORDERED, PEER);
    }
    write(&mut pair, 3, CommandFlags::NONE, PEER);
    let answers = one_way(&mut pair);
    assert!(written(&pair, 1) && !written(&pair, 2) && written(&pair, 3));
    answers.into_iter().for_each(|answer| give(&mut pair, 0, answer));
    pair.settle();
    assert_eq!(ended(&mut pair), [1, 1, 2, 3]);
}

/// One write, and nothing to carry its acknowledgement back: it is asked for, not waited for. Many are answered together.
#[test]
fn a_lone_write_is_acknowledged_at_once() {
    let (mut pair, _) = pair(Config::default());
    write(&mut pair, 1, CommandFlags::NONE, PEER);
    one_way(&mut pair).into_iter().for_each(|answer| give(&mut pair, 0, answer));
    assert_eq!(ended(&mut pair), [1]);
    for address in 2..12 {
        write(&mut pair, address, CommandFlags::NONE, PEER);
    }
    let [answer] = one_way(&mut pair).try_into().unwrap();
    give(&mut pair, 0, answer);
    assert_eq!(ended(&mut pair).len(), 10, "of those that go together the last one asks");
    for address in 12..22 {
        write(&mut pair, address, CommandFlags::NONE, PEER);
        let (now, socket) = (pair.now, pair.nodes[0].socket);
        for mut datagram in drain(&mut pair, 0) {
            pair.nodes[1].engine.handle_datagram_early(now, socket.into(), &mut datagram, false);
        }
        assert!(drain(&mut pair, 1).is_empty(), "those that come one by one wait for each other");
    }
    pair.now = pair.now.plus_micros(ACK_SOON_US);
    let [answer] = drain(&mut pair, 1).try_into().unwrap();
    give(&mut pair, 0, answer);
    assert_eq!(ended(&mut pair).len(), 10);
}

/// Nobody hears of the end of a silent command: its acknowledgement waits for company. Where a counter counts it, or a fence
/// waits for it, it is asked for.
#[test]
fn a_command_whose_end_nobody_hears_of_asks_for_no_acknowledgement() {
    let (mut pair, _) = pair(Config::default());
    write(&mut pair, 1, CommandFlags::SILENT, PEER);
    assert!(one_way(&mut pair).is_empty());
    assert!(written(&pair, 1));
    let soon = pair.now.plus_micros(ACK_DELAY_US - 1);
    assert!(!pair.nodes[1].engine.has_output(soon) && pair.nodes[1].engine.has_output(soon.plus_micros(1)));

    // Before its driver ends it goes.
    assert!(pair.nodes[1].engine.flush_acks());
    let [answer] = drain(&mut pair, 1).try_into().unwrap();
    give(&mut pair, 0, answer);
    assert_eq!(pair.nodes[0].engine.state().commands, 0);
    assert!(!pair.nodes[1].engine.flush_acks());

    write(&mut pair, 1, CommandFlags::SILENT, PEER);
    assert!(one_way(&mut pair).is_empty());
    write(&mut pair, 2, CommandFlags::FENCE, PEER);
    for _ in 0..2 {
        assert!(!written(&pair, 2));
        let [answer] = one_way(&mut pair).try_into().unwrap();
        give(&mut pair, 0, answer);
    }
    assert!(written(&pair, 2));
    assert_eq!(ended(&mut pair), [2], "what a fence had put aside asks as well");

    let counter = pair.nodes[0].engine.delivery_mut().open_counter();
    let endpoint = pair.nodes[0].endpoint;
    let bindings = Bindings { write_counter: Some(counter), ..Bindings::default() };
    pair.nodes[0].engine.bind_endpoint(endpoint, &bindings, 0).unwrap();
    write(&mut pair, 3, CommandFlags::SILENT, PEER);
    let [answer] = one_way(&mut pair).try_into().unwrap();
    give(&mut pair, 0, answer);
    assert_eq!(pair.nodes[0].engine.delivery().counter(counter).value, 1);
}

/// Two that write to each other need no datagrams beside: what asks for an acknowledgement is answered by the next write.
#[test]
fn a_write_takes_the_acknowledgement_along_that_another_has_asked_for() {
    let (mut pair, _) = pair(Config::default());
    let write = |pair: &mut Pair, from: usize| {
        let written =
            |command: &mut Command| (command.operation, command.key, command.address) = (Operation::Write, KEY, 0);
        pair.send(from, &[1; 8], written).unwrap();
    };
    pair.nodes[0].engine.delivery_mut().memory_mut().register(KEY, vec![0; 64], Access::REMOTE_WRITE);
    for from in [0, 1] {
        write(&mut pair, from);
        pair.settle();
        pair.sent(from);
    }
    for round in 0..50 {
        let (from, to) = (round % 2, 1 - round % 2);
        write(&mut pair, from);
        let [mut datagram] = drain(&mut pair, from).try_into().unwrap();
        let (now, socket) = (pair.now, pair.nodes[from].socket);
        pair.nodes[from].engine.handle_deferred_ack();
        pair.nodes[to].engine.handle_datagram_early(now, socket.into(), &mut datagram, false);
        assert!(drain(&mut pair, to).is_empty(), "it waits for a moment");
        assert!(pair.nodes[to].engine.has_output(now.plus_micros(ACK_SOON_US)), "and for no longer");
        pair.now = now.plus_micros(1);
    }
    assert!(pair.nodes[0].engine.hasten_acks(Time::NEVER) && pair.nodes[0].engine.has_output(pair.now));
    pair.settle();
    for _ in 0..25 {
        assert_eq!((pair.sent(0).result, pair.sent(1).result), (Ok(()), Ok(())));
    }
}

/// Requests and responses take turns, however many requests there are.
#[test]
fn responses_do_not_wait_for_requests() {
    let (mut pair, _) = pair(Config::default());
    pair.send(1, b"a ticket for the other way", |_| {}).unwrap();
    pair.receive(0, 100, |_| {});
    pair.settle();
    let read = |command: &mut Command| (command.operation, command.key) = (Operation::Read, KEY);
    pair.send(0, &[0; 1000], read).unwrap();
    for datagram in drain(&mut pair, 0) {
        give(&mut pair, 1, datagram);
    }
    // Of different lengths, so that they cannot leave in one call.
    for length in 600..612 {
        pair.send(1, &vec![1; length], |_| {}).unwrap();
    }
    let answers = drain(&mut pair, 1);
    let response = answers.iter().position(|datagram| datagram.windows(1000).any(|bytes| bytes == [0; 1000]));
    assert!(response.is_some_and(|at| at < 4), "{response:?} of {}", answers.len());
}

/// Who was refused hears of it when there is room, however many they are and whatever there was no room in.
#[test]
fn everybody_who_was_refused_hears_of_room_without_a_timer() {
    let (mut pair, _) = pair(Config { unexpected_max: 1, ..Config::default() });
    let sources: Vec<EndpointId> = (0..100)
        .map(|_| {
            let node = &mut pair.nodes[0];
            let bindings = Bindings { transmit_queue: Some(node.sends), ..Bindings::default() };
            node.engine.delivery_mut().open_endpoint(EndpointKind::Reliable, bindings)
        })
        .collect();
    for source in &sources {
        pair.send(0, b"one of many", |command| command.endpoint = *source).unwrap();
    }
    pair.settle();
    assert_eq!(ended(&mut pair).len(), 1);
    let before = pair.now;
    for _ in &sources {
        pair.receive(1, 100, |_| {});
        // No time passes.
        for _ in 0..4 {
            let answers = one_way(&mut pair);
            answers.into_iter().for_each(|answer| give(&mut pair, 0, answer));
        }
        while pair.nodes[1].engine.delivery_mut().poll_completion(pair.nodes[1].receives).is_some() {}
    }
    assert_eq!(pair.now, before);
    assert!(ended(&mut pair).len() >= 90);
    pair.settle();
    while pair.nodes[1].engine.delivery_mut().poll_completion(pair.nodes[1].receives).is_some() {}
    assert_eq!(pair.nodes[0].engine.state().commands, 0);
}
