//! What a host's word that nobody is there does (P-7.12).
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod support;

use support::*;
use weft_core::engine::Config;
use weft_core::event::Failure;
use weft_core::limits::{ABSENT_US, GIVE_UP_MAX_US, GIVE_UP_US};

/// Nodes with all the patience there is.
fn patient() -> Pair {
    Pair::with(Config { eager_max_bytes: 5000, give_up_us: GIVE_UP_MAX_US, ..Config::default() }, 64)
}

/// Lets time pass; everything that node 0 sends meanwhile reaches a host whose answer is `answer`.
fn pass(pair: &mut Pair, micros: u64, mut answer: impl FnMut(&mut Pair, &[u8])) {
    let end = pair.now.plus_micros(micros);
    while pair.now < end {
        for datagram in drain(pair, 0) {
            answer(pair, &datagram);
        }
        pair.now = pair.now.plus_micros(1000);
        pair.nodes[0].engine.handle_timeout(pair.now);
    }
}

/// The host of node 1 says that nobody is there.
fn tell(pair: &mut Pair, datagram: &[u8]) {
    let to = pair.nodes[1].socket;
    pair.nodes[0].engine.handle_absent(pair.now, to.into(), &datagram[..datagram.len().min(64)]);
}

#[test]
fn a_peer_that_nobody_is_in_place_of_is_given_up_early() {
    for known in [false, true] {
        let mut pair = patient();
        if known {
            pair.receive(1, 100, |_| {});
            pair.send(0, b"a ticket first", |_| {}).unwrap();
            pair.settle();
            assert_eq!(pair.sent(0).result, Ok(()));
        }
        pair.send(0, b"anybody?", |_| {}).unwrap();
        pass(&mut pair, ABSENT_US, tell);
        assert_eq!(pair.nodes[0].engine.state().commands, 1, "one that starts again gets its chance");
        let peer = pair.nodes[1].socket;
        assert!(!pair.nodes[0].engine.is_absent(peer));
        pass(&mut pair, ABSENT_US, tell);
        assert_eq!(pair.sent(0).result, Err(Failure::OutcomeUnknown));
        assert!(pair.nodes[0].engine.is_absent(peer));
        let statistics = *pair.nodes[0].engine.statistics();
        assert_eq!((statistics.absent, statistics.given_up), (1, 1));
        // Whoever is there later is heard.
        pair.receive(1, 100, |_| {});
        pair.send(0, b"and now?", |_| {}).unwrap();
        pair.settle();
        assert_eq!(pair.sent(0).result, Ok(()));
        assert!(!pair.nodes[0].engine.is_absent(peer));
    }
}

/// It waits for a receive that is never posted: only keep-alives go to the peer, which dies.
#[test]
fn who_only_waits_hears_of_it_too() {
    let mut pair = patient();
    pair.send(0, &pattern(20_000, 1), |_| {}).unwrap();
    pair.settle();
    pass(&mut pair, 2 * ABSENT_US, tell);
    assert_eq!(pair.sent(0).result, Err(Failure::OutcomeUnknown));
}

#[test]
fn a_peer_that_is_heard_is_not_given_up_whatever_is_said() {
    let mut pair = patient();
    // An offer that nobody takes, so that something is under way all the time.
    pair.send(0, &pattern(20_000, 1), |_| {}).unwrap();
    pass(&mut pair, 3 * GIVE_UP_MAX_US, |pair, datagram| {
        tell(pair, datagram);
        give(pair, 1, datagram.to_vec());
        for answer in drain(pair, 1) {
            give(pair, 0, answer);
        }
        tell(pair, datagram);
    });
    let (state, statistics) = (pair.nodes[0].engine.state(), *pair.nodes[0].engine.statistics());
    assert_eq!((state.commands, statistics.given_up), (1, 0));
}

/// One that asks for things is there, though its answers do not come through.
#[test]
fn a_peer_that_asks_is_not_given_up() {
    let mut pair = patient();
    pair.send(1, &pattern(20_000, 1), |_| {}).unwrap();
    pair.settle();
    pair.send(0, b"anybody?", |_| {}).unwrap();
    pass(&mut pair, 4 * ABSENT_US, |pair, datagram| {
        tell(pair, datagram);
        pair.nodes[1].engine.handle_timeout(pair.now);
        let to_1 = drain(pair, 1);
        to_1.into_iter().for_each(|keep_alive| give(pair, 0, keep_alive));
    });
    assert_eq!(pair.nodes[0].engine.statistics().given_up, 0);
    assert_eq!(pair.nodes[0].engine.state().commands, 1);
}

#[test]
fn who_has_not_seen_a_datagram_cannot_say_so() {
    let mut pair = patient();
    pair.send(0, b"anybody?", |_| {}).unwrap();
    let mut guess = 0u64;
    pass(&mut pair, GIVE_UP_US, |pair, datagram| {
        for length in 0..datagram.len().min(24) {
            tell(pair, &datagram[..length]);
        }
        // All is right but the number of the datagram, which is at 8.
        for _ in 0..1000 {
            guess = guess.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut forged = datagram.to_vec();
            forged[8..16].copy_from_slice(&guess.to_be_bytes());
            tell(pair, &forged);
        }
    });
    assert_eq!(pair.nodes[0].engine.statistics().absent, 0);
    assert_eq!(pair.nodes[0].engine.state().commands, 1);
}
