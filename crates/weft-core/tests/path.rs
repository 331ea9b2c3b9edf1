//! Ways that come to carry less than was thought.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

mod support;

use weft_core::command::{Command, Operation};
use weft_core::engine::Transmit;
use weft_core::limits::MTU_MIN_BYTES;
use weft_core::memory::Access;

use support::{PEER, Pair, drain, give, pattern};

const KEY: u64 = 77;

fn read(pair: &mut Pair, node: usize, length: usize) -> weft_core::memory::LocalKey {
    let local = pair.buffer(node, vec![0; length]);
    let mut command = Command::new(Operation::Read, pair.nodes[node].endpoint, PEER);
    (command.local, command.length, command.key) = (local, length as u32, KEY);
    pair.nodes[node].engine.post(pair.now, &command).unwrap();
    local
}

#[test]
fn a_read_whose_responses_are_cut_waits_for_nothing() {
    let mut pair = Pair::new();
    let bytes = pattern(100_000, 3);
    pair.nodes[0].engine.delivery_mut().memory_mut().register(KEY, bytes.clone(), Access::REMOTE_READ);
    let to = pair.nodes[1].socket;
    pair.nodes[0].engine.handle_too_big(pair.now, to.into(), 672);
    let local = read(&mut pair, 1, bytes.len());
    pair.settle();
    assert!(pair.sent(1).result.is_ok());
    assert_eq!(pair.bytes(1, local), bytes);
    let statistics = pair.nodes[1].engine.statistics();
    // The first request had no ticket.
    assert_eq!((statistics.timeouts, statistics.retransmissions), (0, 1));
    pair.assert_quiet();
}

/// What a node wants to send now, and whether each may go in fragments.
fn lengths(pair: &mut Pair, from: usize) -> Vec<(Vec<u8>, bool)> {
    let (mut transmit, mut all) = (Transmit::default(), Vec::new());
    while pair.nodes[from].engine.poll_transmit(pair.now, &mut transmit) {
        let may_fragment = transmit.may_fragment;
        all.extend(support::datagrams(pair, from, &transmit).into_iter().map(|datagram| (datagram, may_fragment)));
    }
    all
}

#[test]
fn what_was_cut_for_more_is_withdrawn_and_arrives_once() {
    // Which of the packets that were too long have arrived before they were withdrawn, and which come afterwards.
    for (early, late) in [(0, 0), (0b1010, 0), (0, 0b1111), (0b0110, 0b1001)] {
        let mut pair = Pair::new();
        pair.send(0, b"hello", |_| ()).unwrap();
        pair.receive(1, 8, |_| ());
        pair.settle();
        let (_, _) = (pair.sent(0), pair.received(1));
        let bytes = pattern(4500, 9);
        let local = pair.receive(1, bytes.len(), |_| ());
        pair.send(0, &bytes, |_| ()).unwrap();
        let cut: Vec<_> = drain(&mut pair, 0);
        assert_eq!(cut.len(), 4);
        let some =
            |bits: i32| cut.iter().enumerate().filter(move |(at, _)| bits >> at & 1 == 1).map(|(_, one)| one.clone());
        for datagram in some(early) {
            give(&mut pair, 1, datagram);
        }
        let to = pair.nodes[1].socket;
        pair.nodes[0].engine.handle_too_big(pair.now, to.into(), 600);
        let withdrawals = lengths(&mut pair, 0);
        assert!(withdrawals.iter().all(|(datagram, may_fragment)| datagram.len() <= 600 && !may_fragment));
        for (datagram, _) in withdrawals {
            give(&mut pair, 1, datagram);
        }
        for datagram in some(late) {
            give(&mut pair, 1, datagram);
        }
        for datagram in drain(&mut pair, 1) {
            give(&mut pair, 0, datagram);
        }
        for (datagram, may_fragment) in lengths(&mut pair, 0) {
            assert!(datagram.len() <= 600 && !may_fragment);
            give(&mut pair, 1, datagram);
        }
        pair.settle();
        assert!(pair.sent(0).result.is_ok() && pair.received(1).result.is_ok());
        assert_eq!(pair.bytes(1, local), bytes);
        pair.assert_quiet();
    }
}

#[test]
fn silence_narrows_a_way_and_the_first_answer_widens_it() {
    let mut pair = Pair::new();
    pair.send(0, b"hello", |_| ()).unwrap();
    pair.receive(1, 8, |_| ());
    pair.settle();
    let (_, _) = (pair.sent(0), pair.received(1));
    let bytes = pattern(4500, 1);
    let local = pair.receive(1, bytes.len(), |_| ());
    pair.send(0, &bytes, |_| ()).unwrap();
    drain(&mut pair, 0);
    while pair.nodes[0].engine.statistics().narrowed == 0 {
        pair.now = pair.now.plus_micros(1000);
        pair.nodes[0].engine.handle_timeout(pair.now);
        // What is sent meanwhile is lost.
        if pair.nodes[0].engine.statistics().narrowed == 0 {
            drain(&mut pair, 0);
        }
    }
    for (datagram, _) in lengths(&mut pair, 0) {
        assert!(datagram.len() <= MTU_MIN_BYTES as usize);
        give(&mut pair, 1, datagram);
    }
    pair.settle();
    assert!(pair.sent(0).result.is_ok() && pair.received(1).result.is_ok());
    assert_eq!(pair.bytes(1, local), bytes);
    let statistics = pair.nodes[0].engine.statistics();
    assert!(statistics.widened == 1 && statistics.withdrawn > 0);
    // As before: a packet of full length.
    pair.receive(1, bytes.len(), |_| ());
    pair.send(0, &bytes, |_| ()).unwrap();
    assert!(drain(&mut pair, 0).iter().any(|datagram| datagram.len() == 1232));
}
