//! Messages that were looked at, claimed or thrown away while their packets came.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod support;

use support::*;
use weft_core::command::{PostError, Receive};
use weft_core::delivery::{ClaimId, Peek, Peeked};
use weft_core::event::{CompletionFlags, Failure};
use weft_core::memory::LocalKey;

fn any(pair: &Pair, node: usize) -> Receive {
    Receive {
        endpoint: pair.nodes[node].endpoint,
        local: LocalKey::NONE,
        offset: 0,
        length: 0,
        source: None,
        tagged: false,
        tag: 0,
        ignore: 0,
        multi: None,
        silent: false,
        announce: false,
        context: 0,
        counter: None,
    }
}

fn peek(pair: &mut Pair, how: Peek) -> Option<Peeked> {
    let receive = any(pair, 1);
    pair.nodes[1].engine.delivery_mut().peek(&receive, how).unwrap()
}

fn receive_claimed(pair: &mut Pair, claim: ClaimId, length: usize) -> Result<LocalKey, PostError> {
    let local = pair.buffer(1, vec![0; length]);
    let receive = Receive { local, length: length as u64, context: 44, ..any(pair, 1) };
    pair.nodes[1].engine.delivery_mut().receive_claimed(claim, &receive).map(|()| local)
}

/// A message of four packets of which one has come; the others are given.
fn half_arrived(pair: &mut Pair) -> Vec<Vec<u8>> {
    // A ticket first.
    pair.receive(1, 10, |_| {});
    pair.send(0, b"hello", |_| {}).unwrap();
    pair.settle();
    pair.received(1);
    pair.sent(0);
    pair.send(0, &pattern(4000, 3), |_| {}).unwrap();
    let mut packets = drain(pair, 0);
    assert!(packets.len() >= 3);
    let first = packets.remove(0);
    give(pair, 1, first);
    packets
}

fn bring(pair: &mut Pair, packets: Vec<Vec<u8>>) {
    for packet in packets {
        give(pair, 1, packet);
    }
    pair.settle();
}

#[test]
fn a_message_is_claimed_while_it_arrives() {
    // Received before the rest comes, and after.
    for early in [true, false] {
        let mut pair = Pair::new();
        let rest = half_arrived(&mut pair);
        let claim = peek(&mut pair, Peek::Claim).unwrap().claim.unwrap();
        assert_eq!(peek(&mut pair, Peek::Look), None);
        let before = early.then(|| receive_claimed(&mut pair, claim, 4000).unwrap());
        bring(&mut pair, rest);
        let local = before.unwrap_or_else(|| receive_claimed(&mut pair, claim, 4000).unwrap());
        let done = pair.received(1);
        assert_eq!((done.context, done.result, done.length), (44, Ok(()), 4000));
        assert_eq!(pair.bytes(1, local), pattern(4000, 3));
        assert_eq!(pair.sent(0).result, Ok(()));
        assert_eq!(receive_claimed(&mut pair, claim, 4000), Err(PostError::NoSuchClaim));
        pair.assert_quiet();
    }
}

#[test]
fn a_message_is_thrown_away_while_it_arrives() {
    for claimed in [true, false] {
        let mut pair = Pair::new();
        let rest = half_arrived(&mut pair);
        let found = peek(&mut pair, if claimed { Peek::Claim } else { Peek::Discard }).unwrap();
        if let Some(claim) = found.claim {
            let endpoint = pair.nodes[1].endpoint;
            pair.nodes[1].engine.delivery_mut().discard_claimed(endpoint, claim).unwrap();
        }
        bring(&mut pair, rest);
        assert_eq!(pair.sent(0).result, Ok(()), "its sender does not know");
        assert_eq!(peek(&mut pair, Peek::Look), None);
        pair.assert_quiet();
    }
}

#[test]
fn a_claimed_message_whose_sender_dies_is_lost() {
    let mut pair = Pair::new();
    let _never_sent = half_arrived(&mut pair);
    let claim = peek(&mut pair, Peek::Claim).unwrap().claim.unwrap();
    // Only the target lives on.
    for _ in 0..100 {
        pair.now = pair.now.plus_micros(5_000_000);
        pair.nodes[1].engine.handle_timeout(pair.now);
        drain(&mut pair, 1);
    }
    assert_eq!(pair.nodes[1].engine.state().messages, 0);
    receive_claimed(&mut pair, claim, 4000).unwrap();
    let done = pair.received(1);
    assert_eq!((done.context, done.result), (44, Err(Failure::Aborted)));
    assert_eq!(pair.nodes[1].engine.state().unexpected, 0);
}

#[test]
fn what_is_claimed_counts_as_waiting() {
    let mut pair = Pair::with(weft_core::engine::Config { unexpected_max: 2, ..Default::default() }, 64);
    for _ in 0..4 {
        pair.send(0, b"one of four", |_| {}).unwrap();
    }
    pair.settle();
    let first = peek(&mut pair, Peek::Claim).unwrap().claim.unwrap();
    assert!(peek(&mut pair, Peek::Claim).unwrap().claim.is_some());
    pair.settle();
    let receive = any(&pair, 1);
    assert_eq!(pair.nodes[1].engine.delivery_mut().peek(&receive, Peek::Claim), Err(PostError::QueueFull));
    let local = receive_claimed(&mut pair, first, 20).unwrap();
    assert_eq!(pair.received(1).local, local);
    assert!(peek(&mut pair, Peek::Claim).is_some());
    // The endpoint closes over claims: nothing is left.
    let endpoint = pair.nodes[1].endpoint;
    pair.nodes[1].engine.close_endpoint(pair.now, endpoint);
    assert_eq!(pair.nodes[1].engine.state().unexpected, 0);
}

/// Datagrams are lost where nobody waits for them; who is told of one can have it later.
#[test]
fn datagrams_are_announced_too() {
    let mut pair = Pair::new();
    let endpoint = pair.nodes[1].datagrams;
    let announced = Receive { endpoint, announce: true, context: 9, ..any(&pair, 1) };
    pair.nodes[1].engine.delivery_mut().post_receive(&announced).unwrap();
    let (from, datagram) = (pair.nodes[0].datagrams, weft_core::command::Operation::Datagram);
    for bytes in [b"first", b"other"] {
        pair.send(0, bytes, |command| {
            (command.operation, command.endpoint, command.peer) = (datagram, from, DATAGRAM_PEER);
        })
        .unwrap();
        pair.settle();
        pair.sent(0);
    }
    let told = pair.received(1);
    assert_eq!((told.context, told.kind, told.length), (9, weft_core::event::CompletionKind::Announced, 5));
    assert_eq!(told.flags, CompletionFlags::ANNOUNCED);
    let local = pair.buffer(1, vec![0; 5]);
    let receive = Receive { endpoint, local, length: 5, ..any(&pair, 1) };
    pair.nodes[1].engine.delivery_mut().receive_claimed(ClaimId(told.offset), &receive).unwrap();
    let received = pair.received(1);
    assert_eq!((received.result, received.flags), (Ok(()), CompletionFlags::ANNOUNCED));
    assert_eq!(pair.bytes(1, local), b"first");
    assert_eq!(pair.nodes[1].engine.statistics().dropped_datagrams, 1);
    pair.assert_quiet();
}

/// A receive that is told of its message stays posted while there is no room to keep it.
#[test]
fn an_announced_message_needs_room() {
    let config = weft_core::engine::Config { unexpected_max: 1, ..Default::default() };
    let mut pair = Pair::with(config, 64);
    for _ in 0..3 {
        let announced = Receive { announce: true, ..any(&pair, 1) };
        pair.nodes[1].engine.delivery_mut().post_receive(&announced).unwrap();
    }
    for _ in 0..3 {
        pair.send(0, b"one of three", |_| {}).unwrap();
    }
    for left in [2, 1, 0] {
        pair.settle();
        let told = pair.received(1);
        assert_eq!(pair.nodes[1].engine.state().receives, left, "one claim at a time");
        let endpoint = pair.nodes[1].endpoint;
        pair.nodes[1].engine.delivery_mut().discard_claimed(endpoint, ClaimId(told.offset)).unwrap();
    }
    pair.settle();
    for _ in 0..3 {
        assert_eq!(pair.sent(0).result, Ok(()));
    }
    pair.assert_quiet();
}
