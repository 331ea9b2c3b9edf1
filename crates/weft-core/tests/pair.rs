//! Two engines and nothing between them but a queue: every operation once, in detail. Faults are the simulator's business.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod support;

use std::collections::VecDeque;

use support::*;
use weft_core::address::PeerId;
use weft_core::atomic::AtomicCall;
use weft_core::command::{Command, CommandFlags, EndpointId, Level, Operation, PostError, Receive};
use weft_core::delivery::{Bindings, EndpointKind};
use weft_core::engine::Config;
use weft_core::event::{CompletionKind, Failure};
use weft_core::memory::{Access, LocalKey};
use weft_core::time::Time;

#[test]
fn messages_of_every_length_arrive_expected_and_unexpected() {
    for length in [0, 1, 8, 511, 512, 513, 1100, 1168, 1169, 3000, 5000, 5001, 20_000, 100_000] {
        for early in [true, false] {
            let mut pair = Pair::new();
            let message = pattern(length, 3);
            let mut local = LocalKey::NONE;
            if early {
                local = pair.receive(1, length, |receive| receive.context = 9);
            }
            pair.send(0, &message, |command| {
                command.context = 7;
                command.immediate = 0xabc;
                command.flags = CommandFlags::IMMEDIATE;
            })
            .unwrap();
            pair.settle();
            if !early {
                local = pair.receive(1, length, |receive| receive.context = 9);
                pair.settle();
            }
            let done = pair.received(1);
            assert_eq!((done.context, done.kind, done.result), (9, CompletionKind::Receive, Ok(())), "{length}");
            assert_eq!((done.length, done.immediate), (length as u64, Some(0xabc)));
            assert_eq!(done.source, Some(pair.nodes[0].address(pair.nodes[0].endpoint)));
            assert_eq!(done.peer, Some(PEER));
            assert_eq!(pair.bytes(1, local), message, "{length} {early}");
            let done = pair.sent(0);
            assert_eq!((done.context, done.result), (7, Ok(())));
            pair.assert_quiet();
        }
    }
}

#[test]
fn tags_choose_receives_in_order() {
    let mut pair = Pair::new();
    let tagged = |tag: u64, ignore: u64| {
        move |receive: &mut Receive| {
            (receive.tagged, receive.tag, receive.ignore, receive.context) = (true, tag, ignore, tag)
        }
    };
    pair.receive(1, 10, tagged(5, 0));
    pair.receive(1, 10, tagged(0x70, 0xf));
    pair.receive(1, 10, tagged(5, 0));
    for (tag, byte) in [(0x7a, 1u8), (5, 2), (5, 3), (6, 4)] {
        pair.send(0, &[byte], |command| (command.operation, command.address) = (Operation::TaggedSend, tag)).unwrap();
    }
    pair.settle();
    let got: Vec<_> = (0..3).map(|_| pair.received(1)).map(|done| (done.context, done.tag)).collect();
    assert_eq!(got, [(0x70, 0x7a), (5, 5), (5, 5)]);
    let last = pair.receive(1, 10, tagged(6, 0));
    assert_eq!(pair.received(1).tag, 6);
    assert_eq!(pair.bytes(1, last)[0], 4);
    for _ in 0..4 {
        assert_eq!(pair.sent(0).result, Ok(()));
    }
    pair.assert_quiet();
}

#[test]
fn short_messages_share_datagrams_and_acknowledgements_ride_along() {
    let mut pair = Pair::new();
    for _ in 0..40 {
        pair.receive(1, 8, |_| {});
    }
    pair.send(0, &[0; 8], |_| {}).unwrap();
    pair.settle();
    let before = pair.datagrams;
    for at in 0..10 {
        pair.send(0, &[at; 8], |_| {}).unwrap();
    }
    pair.settle();
    assert_eq!(pair.datagrams - before, 2, "ten messages in one datagram, one acknowledgement");
    for _ in 0..11 {
        assert_eq!(pair.received(1).result, Ok(()));
        assert_eq!(pair.sent(0).result, Ok(()));
    }
    pair.assert_quiet();
}

#[test]
fn an_answer_goes_out_before_the_acknowledgement_that_came_with_the_question_is_taken() {
    let mut pair = Pair::new();
    let message = pattern(8, 1);
    // Tickets are exchanged.
    for at in 0..2 {
        pair.receive(1 - at, 8, |_| {});
        pair.send(at, &message, |_| {}).unwrap();
        pair.settle();
        pair.received(1 - at);
        pair.sent(at);
    }
    pair.datagrams = 0;
    for round in 0..100 {
        let (from, to) = (round % 2, 1 - round % 2);
        let local = pair.receive(to, 8, |_| {});
        pair.send(from, &message, |command| command.context = round as u64).unwrap();
        assert!(pair.nodes[from].engine.is_urgent(), "{round}");
        // One datagram each time: nobody has to ask for an acknowledgement, since it comes with the next message.
        let [mut datagram] = drain(&mut pair, from).try_into().unwrap();
        let socket = pair.nodes[from].socket;
        // The driver's order: what was left is taken when the message is on its way.
        pair.nodes[from].engine.handle_deferred_ack();
        let ended = round.checked_sub(2).map(|_| pair.sent(from).context);
        assert_eq!(ended, round.checked_sub(2).map(|round| round as u64));
        let engine = &mut pair.nodes[to].engine;
        engine.handle_datagram_early(pair.now, socket.into(), &mut datagram, false);
        assert_eq!(engine.has_deferred_ack(), round > 0);
        pair.received(to);
        assert_eq!(pair.bytes(to, local), message);
        let sends = pair.nodes[to].sends;
        assert_eq!(pair.nodes[to].engine.delivery_mut().poll_completion(sends), None, "{round}");
        pair.now = pair.now.plus_micros(5);
    }
    pair.settle();
    assert_eq!((pair.sent(0).context, pair.sent(1).context), (98, 99));
    pair.assert_quiet();
}

#[test]
fn remote_memory_is_written_read_and_guarded() {
    let mut pair = Pair::new();
    let rights = Access::REMOTE_READ | Access::REMOTE_WRITE;
    pair.nodes[1].engine.delivery_mut().memory_mut().register(77, vec![0; 50_000], rights);
    pair.nodes[1].engine.delivery_mut().memory_mut().register(78, vec![0; 64], Access::REMOTE_READ);
    for length in [0, 1, 600, 1152, 1153, 40_000] {
        let data = pattern(length, 9);
        let write =
            |command: &mut Command| (command.operation, command.key, command.address) = (Operation::Write, 77, 100);
        pair.send(0, &data, write).unwrap();
        pair.settle();
        assert_eq!(pair.sent(0).result, Ok(()));
        assert_eq!(&pair.nodes[1].engine.delivery().memory().region(77)[100..100 + length], data);
        let local = pair.buffer(0, vec![0; length]);
        let mut command = Command::new(Operation::Read, pair.nodes[0].endpoint, PEER);
        (command.local, command.length, command.key, command.address) = (local, length as u32, 77, 100);
        pair.nodes[0].engine.post(pair.now, &command).unwrap();
        pair.settle();
        let done = pair.sent(0);
        assert_eq!((done.kind, done.result), (CompletionKind::Read, Ok(())), "{length}");
        assert_eq!(pair.bytes(0, local), data);
    }
    for (key, address, length) in [(79, 0, 8), (77, 49_999, 2), (77, u64::MAX, 2), (78, 0, 8)] {
        let write = |command: &mut Command| {
            (command.operation, command.key, command.address) = (Operation::Write, key, address)
        };
        pair.send(0, &vec![1; length], write).unwrap();
        pair.settle();
        assert_eq!(pair.sent(0).result, Err(Failure::AccessRefused));
    }
    let notify = |command: &mut Command| {
        (command.operation, command.key, command.immediate) = (Operation::Write, 77, 4711);
        command.flags = CommandFlags::IMMEDIATE;
    };
    pair.send(0, &pattern(3000, 1), notify).unwrap();
    pair.settle();
    let done = pair.received(1);
    assert_eq!((done.kind, done.immediate, done.length), (CompletionKind::RemoteWrite, Some(4711), 3000));
    assert_eq!(pair.sent(0).result, Ok(()));
    pair.assert_quiet();
}

/// Each response makes room for one request, which is not worth a datagram of its own.
#[test]
fn reads_that_wait_for_the_window_are_asked_for_together() {
    const LENGTH: usize = 400_000;
    let mut pair = Pair::with(Config { window_max_bytes: 40 << 10, ..Config::default() }, 64);
    pair.nodes[1].engine.delivery_mut().memory_mut().register(77, pattern(LENGTH, 3), Access::REMOTE_READ);
    let local = pair.buffer(0, vec![0; LENGTH]);
    let mut command = Command::new(Operation::Read, pair.nodes[0].endpoint, PEER);
    (command.local, command.length, command.key) = (local, LENGTH as u32, 77);
    pair.nodes[0].engine.post(pair.now, &command).unwrap();
    let (mut asked, mut answered) = (0, 0);
    let mut responses = VecDeque::new();
    loop {
        for datagram in drain(&mut pair, 0) {
            asked += 1;
            give(&mut pair, 1, datagram);
        }
        responses.extend(drain(&mut pair, 1));
        pair.now = pair.now.plus_micros(10);
        let Some(response) = responses.pop_front() else { break };
        answered += 1;
        give(&mut pair, 0, response);
    }
    assert_eq!(pair.sent(0).result, Ok(()));
    assert_eq!(pair.bytes(0, local), pattern(LENGTH, 3));
    assert!(answered > LENGTH / 1232, "{answered} responses, one by one");
    assert!(asked < answered / 4, "{asked} datagrams ask for {answered}");
    pair.assert_quiet();
}

/// A message that is a few bytes longer than a datagram does not cost two, when there are more of them.
#[test]
fn short_rests_of_messages_share_datagrams() {
    const MESSAGES: usize = 32;
    let mut pair = Pair::new();
    for seed in 0..MESSAGES {
        pair.receive(1, 1300, |receive| receive.context = seed as u64);
    }
    // The first contact is over.
    pair.send(0, b"hello", |_| {}).unwrap();
    pair.settle();
    assert_eq!((pair.sent(0).result, pair.received(1).result), (Ok(()), Ok(())));
    pair.receive(1, 1300, |receive| receive.context = MESSAGES as u64);
    for seed in 0..MESSAGES {
        pair.send(0, &pattern(1300, seed as u8), |_| {}).unwrap();
    }
    let (mut datagrams, mut lone) = (0, 0);
    loop {
        let sent = drain(&mut pair, 0);
        if sent.is_empty() {
            break;
        }
        for datagram in sent {
            datagrams += 1;
            lone += usize::from(datagram.len() < 250);
            give(&mut pair, 1, datagram);
        }
        for datagram in drain(&mut pair, 1) {
            give(&mut pair, 0, datagram);
        }
    }
    assert!(datagrams < MESSAGES + MESSAGES / 4, "{datagrams} datagrams, {lone} of them with one rest");
    pair.settle();
    let mut contexts = Vec::new();
    for _ in 0..MESSAGES {
        assert_eq!(pair.sent(0).result, Ok(()));
        let received = pair.received(1);
        assert_eq!((received.result, received.length), (Ok(()), 1300));
        contexts.push(received.context);
    }
    contexts.sort_unstable();
    assert_eq!(contexts, (1..=MESSAGES as u64).collect::<Vec<_>>());
    pair.assert_quiet();
}

#[test]
fn atomics_fetch_compare_and_add() {
    let mut pair = Pair::new();
    pair.nodes[1].engine.delivery_mut().memory_mut().register(5, 10u64.to_le_bytes().to_vec(), Access::REMOTE_ATOMIC);
    let mut atomic = |operation, code, operands: &[u64], results: bool| {
        let bytes: Vec<u8> = operands.iter().flat_map(|operand| operand.to_le_bytes()).collect();
        let result = pair.buffer(0, vec![0; 8]);
        pair.send(0, &bytes, |command| {
            (command.operation, command.key) = (operation, 5);
            command.atomic = AtomicCall { operation: code, datatype: 0x14, count: 1 };
            command.immediate = u64::from(result.0);
        })
        .unwrap();
        pair.settle();
        assert_eq!(pair.sent(0).result, Ok(()));
        let result = if results { u64::from_le_bytes(pair.bytes(0, result).try_into().unwrap()) } else { 0 };
        (result, u64::from_le_bytes(pair.nodes[1].engine.delivery().memory().region(5).try_into().unwrap()))
    };
    assert_eq!(atomic(Operation::Atomic, 0x03, &[5], false), (0, 15));
    assert_eq!(atomic(Operation::FetchAtomic, 0x03, &[5], true), (15, 20));
    assert_eq!(atomic(Operation::CompareAtomic, 0x10, &[20, 99], true), (20, 99));
    assert_eq!(atomic(Operation::CompareAtomic, 0x10, &[20, 1], true), (99, 99));
    assert_eq!(atomic(Operation::FetchAtomic, 0x0c, &[], true), (99, 99));
    pair.assert_quiet();
}

#[test]
fn delivered_means_in_the_users_buffer() {
    let mut pair = Pair::new();
    pair.send(0, b"careful", |command| command.level = Level::Delivered).unwrap();
    pair.settle();
    let queue = pair.nodes[0].sends;
    assert_eq!(pair.nodes[0].engine.delivery_mut().poll_completion(queue), None);
    let local = pair.receive(1, 7, |_| {});
    pair.settle();
    assert_eq!(pair.sent(0).result, Ok(()));
    assert_eq!(pair.bytes(1, local), b"careful");
    assert_eq!(pair.received(1).result, Ok(()));
    pair.assert_quiet();
}

#[test]
fn a_full_completion_queue_refuses_and_resumes() {
    let mut pair = Pair::with(Config::default(), 4);
    for _ in 0..20 {
        pair.receive(1, 8, |_| {});
    }
    let mut posted = 0;
    let mut done = 0;
    let mut seen = 0;
    while seen < 20 {
        while posted < 20 && pair.send(0, &[posted as u8; 8], |_| {}).is_ok() {
            posted += 1;
        }
        pair.settle();
        let (sends, receives) = (pair.nodes[0].sends, pair.nodes[1].receives);
        while let Some(completion) = pair.nodes[0].engine.delivery_mut().poll_completion(sends) {
            assert_eq!(completion.result, Ok(()));
            done += 1;
        }
        // One at a time: the queue is full most of the time.
        if let Some(completion) = pair.nodes[1].engine.delivery_mut().poll_completion(receives) {
            assert_eq!(completion.result, Ok(()));
            assert_eq!(pair.bytes(1, completion.local)[0], seen as u8, "order is kept");
            seen += 1;
        }
    }
    pair.settle();
    while done < 20 {
        assert_eq!(pair.sent(0).result, Ok(()));
        done += 1;
    }
    assert!(pair.nodes[1].engine.statistics().not_ready > 0);
    pair.assert_quiet();
}

#[test]
fn multi_receive_buffers_fill_up_and_come_back() {
    let mut pair = Pair::new();
    let multi = |receive: &mut Receive| receive.multi = Some(20);
    let first = pair.receive(1, 100, multi);
    let second = pair.receive(1, 100, multi);
    for at in 0..5u8 {
        pair.send(0, &[at; 30], |_| {}).unwrap();
    }
    pair.settle();
    let mut got = Vec::new();
    for _ in 0..5 {
        let done = pair.received(1);
        got.push((done.kind, done.offset, done.local));
    }
    let message = |offset, local| (CompletionKind::Receive, offset, local);
    let none = LocalKey::NONE;
    // After three messages 10 bytes are left, less than 20: the buffer is done with its third message.
    assert_eq!(got, [message(0, none), message(30, none), message(60, first), message(0, none), message(30, none)]);
    assert_eq!(&pair.bytes(1, first)[60..90], [2; 30]);
    assert_eq!(&pair.bytes(1, second)[..30], [3; 30]);
    for _ in 0..5 {
        pair.sent(0);
    }
    assert!({
        let (engine, endpoint) = (&mut pair.nodes[1].engine, pair.nodes[1].endpoint);
        engine.cancel(Time(0), endpoint, 0)
    });
    assert_eq!(pair.received(1).result, Err(Failure::Cancelled));
    pair.assert_quiet();
}

#[test]
fn datagrams_arrive_or_do_not() {
    let mut pair = Pair::new();
    let endpoint = pair.nodes[1].datagrams;
    let local = pair.receive(1, 64, |receive| receive.endpoint = endpoint);
    let from = pair.nodes[0].datagrams;
    for byte in [1u8, 2] {
        pair.send(0, &[byte; 9], |command| {
            (command.operation, command.endpoint, command.peer) = (Operation::Datagram, from, DATAGRAM_PEER);
        })
        .unwrap();
    }
    pair.settle();
    assert_eq!(pair.received(1).length, 9);
    assert_eq!(pair.bytes(1, local)[..9], [1; 9]);
    assert_eq!(pair.nodes[1].engine.statistics().dropped_datagrams, 1);
    assert_eq!((pair.sent(0).result, pair.sent(0).result), (Ok(()), Ok(())));
    pair.assert_quiet();
}

#[test]
fn errors_are_precise() {
    let mut pair = Pair::new();
    let endpoint = pair.nodes[0].endpoint;
    assert_eq!(pair.send(0, b"x", |command| command.peer = PeerId(9)), Err(PostError::NoSuchPeer));
    assert_eq!(pair.send(0, b"x", |command| command.endpoint = EndpointId(9)), Err(PostError::NoSuchEndpoint));
    assert_eq!(pair.send(0, b"x", |command| command.length = 2), Err(PostError::BadBuffer));
    assert_eq!(pair.send(0, b"x", |command| command.operation = Operation::Datagram), Err(PostError::NotSupported));
    // A receive that is too short: both are told.
    pair.receive(1, 4, |_| {});
    pair.send(0, b"too long", |_| {}).unwrap();
    pair.settle();
    let done = pair.received(1);
    assert_eq!((done.result, done.length), (Err(Failure::Truncated), 8));
    assert_eq!(pair.sent(0).result, Err(Failure::LengthError));
    // An endpoint that is gone.
    let gone = pair.nodes[1].endpoint;
    let now = pair.now;
    pair.nodes[1].engine.close_endpoint(now, gone);
    pair.send(0, b"anyone?", |_| {}).unwrap();
    pair.settle();
    assert_eq!(pair.sent(0).result, Err(Failure::NoSuchEndpoint));
    let _ = endpoint;
    pair.assert_quiet();
}

/// A multi-receive buffer tells of messages of one source in the order in which they lie in it, also where a long one is
/// fetched and a short one behind it is there at once. Those of another source do not wait for it.
#[test]
fn messages_of_one_source_in_one_buffer_are_told_in_order() {
    let mut pair = Pair::new();
    pair.receive(1, 100, |_| {});
    pair.send(0, b"a ticket first", |_| {}).unwrap();
    pair.settle();
    pair.received(1);
    let other = pair.nodes[0].engine.delivery_mut().open_endpoint(EndpointKind::Reliable, Bindings::default());
    pair.receive(1, 40_000, |receive| receive.multi = Some(64));
    pair.send(0, &pattern(20_000, 1), |_| {}).unwrap();
    pair.send(0, &pattern(10, 2), |_| {}).unwrap();
    pair.send(0, &pattern(11, 3), |command| command.endpoint = other).unwrap();
    for datagram in drain(&mut pair, 0) {
        give(&mut pair, 1, datagram);
    }
    assert_eq!(pair.received(1).length, 11);
    let queue = pair.nodes[1].receives;
    assert_eq!(pair.nodes[1].engine.delivery_mut().poll_completion(queue), None);
    pair.settle();
    assert_eq!([pair.received(1).length, pair.received(1).length], [20_000, 10]);
}
