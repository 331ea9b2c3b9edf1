//! What a hostile or unlucky peer, or a user in a hurry, must not be able to do.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod support;

use support::*;
use weft_core::command::{Command, CommandFlags, Operation};
use weft_core::delivery::{Bindings, EndpointKind};
use weft_core::engine::Config;
use weft_core::event::Failure;
use weft_core::memory::{Access, Memory};

/// Puts the right trailer under changed bytes.
fn seal(datagram: &mut [u8]) {
    let end = datagram.len() - 4;
    let sum = TestMemory::default().crc32c_bytes(0, &datagram[..end]);
    datagram[end..].copy_from_slice(&sum.to_le_bytes());
}

/// Packets with anything in any field, behind a right checksum, neither panic nor leave anything behind for ever.
#[test]
fn damaged_fields_with_right_checksums_are_survived() {
    let mut state = 0x1234_5678_9abc_def0_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for _ in 0..40 {
        let config = Config { eager_max_bytes: 5000, unexpected_max: 8, transactions_max: 4, ..Config::default() };
        let mut pair = Pair::with(config, 16);
        for node in 0..2 {
            pair.nodes[node].engine.delivery_mut().memory_mut().register(77, vec![0; 8000], Access(15));
        }
        for _ in 0..60 {
            let node = (random() % 2) as usize;
            if random() % 2 == 0 {
                let multi = (random() % 3 == 0).then_some(64);
                let length = (random() % 9000) as usize;
                pair.receive(node, length, |receive| receive.multi = multi);
            }
            let operations = [Operation::Send, Operation::Write, Operation::Read, Operation::TaggedSend];
            let operation = operations[(random() % 4) as usize];
            let bytes = pattern((random() % 7000) as usize, 1);
            let immediate = random() % 2 == 0;
            let _ = pair.send(node, &bytes, |command| {
                command.operation = operation;
                command.key = 77;
                if immediate {
                    command.flags = CommandFlags::IMMEDIATE;
                }
            });
            for _ in 0..4 {
                for from in 0..2 {
                    for datagram in drain(&mut pair, from) {
                        for _ in 0..random() % 3 {
                            let mut damaged = datagram.clone();
                            for _ in 0..1 + random() % 3 {
                                // Mostly headers; the session id stays.
                                let at = 8 + (random() as usize) % (damaged.len() - 8).min(90);
                                let value = [0, 0xff, 1, 0x80, random() as u8, damaged[at].wrapping_add(1)];
                                damaged[at] = value[(random() % 6) as usize];
                            }
                            seal(&mut damaged);
                            give(&mut pair, 1 - from, damaged);
                        }
                        if random() % 8 != 0 {
                            give(&mut pair, 1 - from, datagram);
                        }
                    }
                }
                pair.now = pair.now.plus_micros(random() % 20_000);
                for at in 0..2 {
                    let node = &mut pair.nodes[at];
                    node.engine.handle_timeout(pair.now);
                    if random() % 3 != 0 {
                        while node.engine.delivery_mut().poll_completion(node.sends).is_some() {}
                        while node.engine.delivery_mut().poll_completion(node.receives).is_some() {}
                    }
                }
            }
        }
        for _ in 0..12 {
            pair.settle();
            for node in &mut pair.nodes {
                while node.engine.delivery_mut().poll_completion(node.sends).is_some() {}
                while node.engine.delivery_mut().poll_completion(node.receives).is_some() {}
            }
            pair.now = pair.now.plus_micros(130_000_000);
        }
        for node in &pair.nodes {
            let left = node.engine.state();
            // Messages whose tag was damaged may wait for a receive, and their senders with them: nothing else may.
            assert_eq!((left.messages, left.held), (0, 0), "{left:?}");
            assert!(left.reserved <= left.commands, "{left:?}");
        }
    }
}

/// P-4.9: who asked for memory that went away meanwhile is told at once, and not sent an empty datagram.
#[test]
fn a_read_of_memory_that_went_away_is_refused_in_the_same_round() {
    for length in [100, 1000] {
        let mut pair = Pair::new();
        pair.nodes[1].engine.delivery_mut().memory_mut().register(77, vec![7; 4000], Access::REMOTE_READ);
        pair.send(0, b"a ticket first", |_| {}).unwrap();
        pair.receive(1, 100, |_| {});
        pair.settle();
        let read = |command: &mut Command| (command.operation, command.key) = (Operation::Read, 77);
        pair.send(0, &vec![0; length], read).unwrap();
        for datagram in drain(&mut pair, 0) {
            give(&mut pair, 1, datagram);
        }
        pair.nodes[1].engine.delivery_mut().memory_mut().regions.clear();
        let answers = drain(&mut pair, 1);
        assert!(!answers.is_empty(), "{length}: the refusal waits for something else to happen");
        for datagram in answers {
            give(&mut pair, 0, datagram);
        }
        assert_eq!(pair.sent(0).result, Ok(()));
        assert_eq!(pair.sent(0).result, Err(Failure::AccessRefused));
    }
}

/// An endpoint that closes takes the messages with it that it is fetching: their receives end, once.
#[test]
fn closing_ends_receives_whose_message_is_being_fetched() {
    for multi in [None, Some(64)] {
        let mut pair = Pair::new();
        let local = pair.receive(1, 30_000, |receive| (receive.multi, receive.context) = (multi, 5));
        pair.send(0, &pattern(20_000, 1), |_| {}).unwrap();
        // Ticket, READY TO SEND, and then the first READ Requests stay under way.
        for _ in 0..2 {
            for from in 0..2 {
                for datagram in drain(&mut pair, from) {
                    give(&mut pair, 1 - from, datagram);
                }
            }
        }
        assert!(pair.nodes[1].engine.state().commands > 0, "it is being fetched");
        let endpoint = pair.nodes[1].endpoint;
        pair.nodes[1].engine.close_endpoint(pair.now, endpoint);
        let done = pair.received(1);
        assert_eq!((done.context, done.result), (5, Err(Failure::Closed)));
        let mut given_back = vec![done.local];
        if multi.is_some() {
            given_back.push(pair.received(1).local);
        }
        assert_eq!(given_back.iter().filter(|key| **key == local).count(), 1, "{given_back:?}");
        // Its place goes to another, which must not hear of it.
        let receives = pair.nodes[1].engine.delivery_mut().open_queue(4);
        let bindings = Bindings { receive_queue: Some(receives), ..Bindings::default() };
        pair.nodes[1].endpoint = pair.nodes[1].engine.delivery_mut().open_endpoint(EndpointKind::Reliable, bindings);
        pair.settle();
        assert_eq!(pair.nodes[1].engine.delivery_mut().poll_completion(receives), None);
        assert_eq!(pair.sent(0).result, Err(Failure::Aborted));
        pair.assert_quiet();
    }
}

/// P-4.10: the packets of a write that was refused do not begin another, which would hold a place in the queue.
#[test]
fn a_write_that_is_refused_leaves_nothing_behind() {
    let mut pair = Pair::new();
    pair.nodes[1].engine.delivery_mut().memory_mut().register(77, vec![0; 3000], Access::REMOTE_WRITE);
    for address in [500, 2900] {
        pair.send(0, &pattern(5000, 1), |command| {
            (command.operation, command.key, command.address) = (Operation::Write, 77, address);
            (command.flags, command.immediate) = (CommandFlags::IMMEDIATE, 3);
        })
        .unwrap();
        pair.settle();
        assert_eq!(pair.sent(0).result, Err(Failure::AccessRefused));
        let left = pair.nodes[1].engine.state();
        assert_eq!((left.reserved, left.messages), (0, 0), "{address}");
    }
    pair.assert_quiet();
}

/// A sender that slept while its message was given up at the target must hear of it: all packets arrived, none lost.
#[test]
fn the_rest_of_a_message_that_was_given_up_is_refused() {
    let mut pair = Pair::with(Config { eager_max_bytes: 100_000, ..Config::default() }, 64);
    pair.receive(1, 8, |_| {});
    pair.send(0, b"a ticket", |_| {}).unwrap();
    pair.settle();
    assert_eq!((pair.received(1).result, pair.sent(0).result), (Ok(()), Ok(())));
    let (first, second) = (|r: &mut _| context(r, 1), |r: &mut _| context(r, 2));
    pair.receive(1, 60_000, first);
    pair.receive(1, 60_000, second);
    pair.send(0, &pattern(60_000, 1), |_| {}).unwrap();
    for datagram in drain(&mut pair, 0) {
        give(&mut pair, 1, datagram);
    }
    let answers = drain(&mut pair, 1);
    for _ in 0..30 {
        pair.now = pair.now.plus_micros(1_000_000);
        pair.nodes[1].engine.handle_timeout(pair.now);
    }
    let done = pair.received(1);
    assert_eq!((done.context, done.result), (1, Err(Failure::Aborted)));
    for datagram in answers {
        give(&mut pair, 0, datagram);
    }
    pair.settle();
    assert_eq!(pair.sent(0).result, Err(Failure::Aborted));
    assert_eq!(pair.nodes[1].engine.state().messages, 0, "the second receive was taken by a rest");
    pair.send(0, b"another", |_| {}).unwrap();
    pair.settle();
    let done = pair.received(1);
    assert_eq!((done.context, done.result, done.length), (2, Ok(()), 7));
    assert_eq!(pair.sent(0).result, Ok(()));
    pair.assert_quiet();
}

fn context(receive: &mut weft_core::command::Receive, context: u64) {
    receive.context = context;
}

/// What ends a row of commands goes at once, though those before it were posted with more to follow.
#[test]
fn the_last_of_several_is_urgent() {
    let mut pair = Pair::new();
    pair.send(0, b"first", |command| command.flags = CommandFlags::MORE).unwrap();
    assert!(!pair.nodes[0].engine.is_urgent());
    pair.send(0, b"last", |_| {}).unwrap();
    assert!(pair.nodes[0].engine.is_urgent());
}

/// The smallest queue can be used for sends, though receives report there too.
#[test]
fn a_queue_of_one_takes_a_send() {
    let mut pair = Pair::new();
    let queue = pair.nodes[0].engine.delivery_mut().open_queue(1);
    let bindings = Bindings { transmit_queue: Some(queue), receive_queue: Some(queue), ..Bindings::default() };
    let endpoint = pair.nodes[0].engine.delivery_mut().open_endpoint(EndpointKind::Reliable, bindings);
    assert_eq!(pair.send(0, b"x", |command| command.endpoint = endpoint), Ok(()));
}

/// Whoever waits to be fetched hears that the endpoint closed, however few handles are free there.
#[test]
fn every_waiting_sender_hears_that_the_endpoint_closed() {
    let config = Config { eager_max_bytes: 10, commands_max: 8, ..Config::default() };
    let mut pair = Pair::with(config, 64);
    let (sends, receives) = (pair.nodes[1].sends, pair.nodes[1].receives);
    let bindings = Bindings { transmit_queue: Some(sends), receive_queue: Some(receives), ..Bindings::default() };
    let other = pair.nodes[1].engine.delivery_mut().open_endpoint(EndpointKind::Reliable, bindings);
    for _ in 0..6 {
        pair.send(0, &[7; 100], |_| {}).unwrap();
        pair.send(1, &[7; 100], |command| command.endpoint = other).unwrap();
    }
    pair.settle();
    let closing = pair.nodes[1].endpoint;
    pair.nodes[1].engine.close_endpoint(pair.now, closing);
    pair.settle();
    for _ in 0..6 {
        assert_eq!(pair.sent(0).result, Err(Failure::Aborted));
    }
}

/// P-3.1: a request of a later version is refused, and the psn with it; what is no request gets no answer.
#[test]
fn opcodes_that_are_not_known_are_refused_by_name() {
    for (opcode, result) in [(0x2a, Some(Failure::NotSupported)), (0x70, None)] {
        let mut pair = Pair::new();
        pair.receive(1, 100, |_| {});
        pair.send(0, b"a ticket first", |_| {}).unwrap();
        pair.settle();
        assert_eq!(pair.sent(0).result, Ok(()));
        pair.send(0, b"what is this", |_| {}).unwrap();
        for mut datagram in drain(&mut pair, 0) {
            datagram[20] = opcode;
            seal(&mut datagram);
            give(&mut pair, 1, datagram);
        }
        for datagram in drain(&mut pair, 1) {
            give(&mut pair, 0, datagram);
        }
        let sends = pair.nodes[0].sends;
        let done = pair.nodes[0].engine.delivery_mut().poll_completion(sends);
        assert_eq!(done.map(|done| done.result), result.map(Err), "{opcode:#x}");
    }
}

/// P-5.5: a message that its sender takes back matches nothing any more; the next one does.
#[test]
fn a_cancelled_offer_is_withdrawn() {
    for tagged in [false, true] {
        let mut pair = Pair::new();
        let send = |pair: &mut Pair, seed: u8, context: u64| {
            pair.send(0, &pattern(20_000, seed), |command| {
                command.context = context;
                if tagged {
                    (command.operation, command.address) = (Operation::TaggedSend, 5);
                }
            })
            .unwrap();
        };
        // Several wait, and one in the middle goes.
        (1..=3).for_each(|number| send(&mut pair, number, u64::from(number)));
        pair.settle();
        assert_eq!(pair.nodes[1].engine.state().unexpected, 3);
        let (now, endpoint) = (pair.now, pair.nodes[0].endpoint);
        assert!(pair.nodes[0].engine.cancel(now, endpoint, 2));
        let ended = pair.sent(0);
        assert_eq!((ended.context, ended.result), (2, Err(Failure::Cancelled)));
        pair.settle();
        assert_eq!(pair.nodes[1].engine.state().unexpected, 2);
        for seed in [1, 3] {
            let buffer = pair.receive(1, 20_000, |receive| (receive.tagged, receive.tag) = (tagged, 5));
            pair.settle();
            assert_eq!(pair.received(1).result, Ok(()));
            assert_eq!(pair.bytes(1, buffer), pattern(20_000, seed));
            assert_eq!(pair.sent(0).result, Ok(()));
        }
        // One that matched while the news of its end was on its way is refused, and its receive hears of it.
        send(&mut pair, 4, 4);
        pair.settle();
        let buffer = pair.receive(1, 20_000, |receive| (receive.tagged, receive.tag) = (tagged, 5));
        let now = pair.now;
        assert!(pair.nodes[0].engine.cancel(now, endpoint, 4));
        pair.settle();
        assert_eq!(pair.sent(0).result, Err(Failure::Cancelled));
        assert_eq!(pair.received(1).result, Err(Failure::Aborted));
        assert_eq!(pair.bytes(1, buffer), vec![0xee; 20_000]);
        pair.assert_quiet();
    }
}

/// Only its sender can take a message back.
#[test]
fn nobody_withdraws_the_message_of_another() {
    let mut pair = Pair::new();
    pair.send(0, &pattern(20_000, 1), |command| command.context = 1).unwrap();
    pair.settle();
    let (now, endpoint) = (pair.now, pair.nodes[0].endpoint);
    assert!(pair.nodes[0].engine.cancel(now, endpoint, 1));
    // The withdrawal comes from somewhere else.
    let stranger = std::net::SocketAddr::from(([10, 0, 0, 9], 4000));
    for datagram in drain(&mut pair, 0) {
        pair.nodes[1].engine.handle_datagram(now, stranger.into(), &mut datagram.clone(), false);
    }
    assert_eq!(pair.nodes[1].engine.state().unexpected, 1);
    drain(&mut pair, 1);
    // It was lost then, and is repeated by whom it is from.
    pair.settle();
    pair.now = pair.now.plus_micros(100_000);
    for node in &mut pair.nodes {
        node.engine.handle_timeout(pair.now);
    }
    pair.settle();
    assert_eq!(pair.nodes[1].engine.state().unexpected, 0);
}

/// P-2.5: to the second node nothing leaves the host, as the first one knows, and back it does.
#[test]
fn within_a_host_headers_alone_are_summed() {
    /// The message after one byte of one datagram of it was changed on its way, and the datagrams that were damaged.
    fn arrives(from: usize, at: usize) -> (Vec<u8>, u64) {
        let host_address = Some("10.0.0.2".parse().unwrap());
        let mut pair = Pair::with(Config { host_address, ..Config::default() }, 64);
        // The first packet of all is only answered by a ticket.
        pair.receive(1 - from, 1, |_| ());
        pair.send(from, &[7], |_| ()).unwrap();
        pair.settle();
        pair.received(1 - from);
        let mut left = 1;
        pair.damage = Box::new(move |datagram| {
            if datagram.len() > 1000 && left > 0 {
                left -= 1;
                datagram[at] ^= 0x40;
            }
        });
        let local = pair.receive(1 - from, 3000, |_| ());
        pair.send(from, &[7; 3000], |_| ()).unwrap();
        for _ in 0..10 {
            pair.settle();
        }
        assert_eq!(pair.received(1 - from).result, Ok(()));
        (pair.bytes(1 - from, local).to_vec(), pair.nodes[1 - from].engine.statistics().dropped_damaged)
    }
    for header in [3, 30, 60] {
        for from in 0..2 {
            assert_eq!(arrives(from, header), (vec![7; 3000], 1), "node {from}, byte {header}");
        }
    }
    assert_eq!(arrives(1, 600), (vec![7; 3000], 1));
    let (bytes, damaged) = arrives(0, 600);
    assert_eq!((bytes.iter().filter(|byte| **byte != 7).count(), damaged), (1, 0));
}
