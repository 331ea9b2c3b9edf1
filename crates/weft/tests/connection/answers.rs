//! Yes and no, and the end.

use std::time::Duration;

use weft::connection::Event;
use weft::limits::CONNECTION_DATA_MAX_BYTES;
use weft::{Error, PostError, Progress};

use crate::support::{PATIENCE, World};

pub(crate) fn connected_ends_talk_both_ways(world: &World) {
    let (listener, a, b) = (world.listener(), world.node(), world.node());
    let pair = world.pair(&listener, &a, &b, [1, 2]);
    for index in 0..10u8 {
        world.talk(&a, &b, &pair, &[index; 1000]);
    }
    // Long ones too.
    pair.b.0.receive(vec![0; 1 << 20]).unwrap();
    pair.a.0.send(pair.a.2, vec![7; 1 << 20]).unwrap();
    let received = world.until(|| {
        a.domain.progress().unwrap();
        b.queue.read().unwrap()
    });
    assert!(received.ok().unwrap().into_bytes().unwrap() == vec![7; 1 << 20]);
    assert_eq!(a.manager.statistics().ignored + b.manager.statistics().ignored + listener.statistics().ignored, 0);
}

pub(crate) fn data_of_every_length(world: &World) {
    let (listener, a, b) = (world.listener(), world.node(), world.node());
    for length in [0, 1, 7, 80, 255, CONNECTION_DATA_MAX_BYTES] {
        let (question, answer) = (vec![length as u8 ^ 0x5a; length], vec![length as u8; length]);
        let (a_end, b_end) = (a.endpoint(), b.endpoint());
        let _asking = a.manager.connect(&a_end, listener.address(), 7, &question).unwrap();
        let request = world.request(&listener);
        assert_eq!((request.data(), request.endpoint()), (question.as_slice(), a_end.address()));
        let _accepting = b.manager.accept(request, &b_end, 8, &answer).unwrap();
        let Event::Connected { context: 7, address, data, .. } = world.event(&a) else { panic!("not connected") };
        assert_eq!((address, data), (b_end.address(), answer));
        let Event::Connected { context: 8, address, data, .. } = world.event(&b) else { panic!("not connected") };
        assert_eq!((address, data), (a_end.address(), Vec::new()));
    }
}

pub(crate) fn a_rejection_brings_its_data(world: &World) {
    let (listener, a) = (world.listener(), world.node());
    for length in [0, 3, CONNECTION_DATA_MAX_BYTES] {
        let end = a.endpoint();
        let asking = a.manager.connect(&end, listener.address(), 5, b"?").unwrap();
        world.request(&listener).reject(&vec![9; length]).unwrap();
        assert_eq!(world.event(&a), Event::Refused { context: 5, data: vec![9; length] });
        assert!(!asking.is_connected());
        // The endpoint can try again once the handle is gone.
        let again = a.manager.connect(&end, listener.address(), 6, b"");
        assert!(matches!(again, Err(Error::AlreadyConnected)), "{again:?}");
        drop(asking);
        let _again = a.manager.connect(&end, listener.address(), 6, b"").unwrap();
        world.request(&listener).reject(b"").unwrap();
        assert_eq!(world.event(&a), Event::Refused { context: 6, data: Vec::new() });
    }
    world.assert_silence(&[&a]);
}

pub(crate) fn a_dropped_request_is_a_rejection(world: &World) {
    let (listener, a) = (world.listener(), world.node());
    let _asking = a.manager.connect(&a.endpoint(), listener.address(), 5, b"?").unwrap();
    drop(world.request(&listener));
    assert_eq!(world.event(&a), Event::Refused { context: 5, data: Vec::new() });
}

pub(crate) fn shutdown_is_told_once(world: &World) {
    let (listener, a, b) = (world.listener(), world.node(), world.node());
    for by_connector in [false, true] {
        let pair = world.pair(&listener, &a, &b, [1, 2]);
        world.talk(&a, &b, &pair, b"before");
        let (ending, from, to, context) = if by_connector { (&pair.a.1, &a, &b, 2) } else { (&pair.b.1, &b, &a, 1) };
        ending.shutdown();
        ending.shutdown();
        assert_eq!(world.event_beside(to, from), Event::Shutdown { context });
        assert!(!pair.a.1.is_connected() && !pair.b.1.is_connected());
        pair.a.1.shutdown();
        pair.b.1.shutdown();
        pair.a.1.lost();
        world.assert_silence(&[&a, &b]);
    }
}

pub(crate) fn dropping_the_handle_shuts_down(world: &World) {
    let (listener, a, b) = (world.listener(), world.node(), world.node());
    let pair = world.pair(&listener, &a, &b, [1, 2]);
    drop(pair.b);
    assert_eq!(world.event(&a), Event::Shutdown { context: 1 });
    // Both ends let go at the same time.
    let pair = world.pair(&listener, &a, &b, [3, 4]);
    drop(pair);
    world.assert_silence(&[&a, &b]);
    let before = a.domain.addresses().find(b.endpoint().address());
    assert_eq!(before, None);
}

pub(crate) fn what_cannot_be_is_refused(world: &World) {
    let (listener, a, b) = (world.listener(), world.node(), world.node());
    let end = a.endpoint();
    let long = [0; CONNECTION_DATA_MAX_BYTES + 1];
    let refused = a.manager.connect(&end, listener.address(), 1, &long);
    assert!(matches!(refused, Err(Error::Post(PostError::TooLong { length: 257, limit: 256 }))), "{refused:?}");
    let refused = b.manager.connect(&end, listener.address(), 1, b"");
    assert!(matches!(refused, Err(Error::OtherDomain)), "{refused:?}");
    let datagrams = a.domain.datagram_endpoint(&a.queue).unwrap();
    let refused = a.manager.connect(&datagrams, listener.address(), 1, b"");
    assert!(matches!(refused, Err(Error::Post(PostError::NotSupported))), "{refused:?}");

    // A request that could not be accepted like that can still be.
    let asking = a.manager.connect(&end, listener.address(), 1, b"").unwrap();
    let request = world.request(&listener);
    let not = b.manager.accept(request, &b.endpoint(), 2, &long).unwrap_err();
    assert!(matches!(not.error, Error::Post(PostError::TooLong { .. })));
    let not = b.manager.accept(not.request, &a.endpoint(), 2, b"").unwrap_err();
    assert!(matches!(not.error, Error::OtherDomain));
    let not = not.request.reject(&long).unwrap_err();
    let b_end = b.endpoint();
    let _accepting = b.manager.accept(not.request, &b_end, 2, b"").unwrap();
    assert!(matches!(world.event(&a), Event::Connected { context: 1, .. }));
    assert!(matches!(world.event(&b), Event::Connected { context: 2, .. }));
    // One that has a connection cannot have another.
    let refused = a.manager.connect(&end, listener.address(), 3, b"");
    assert!(matches!(refused, Err(Error::AlreadyConnected)), "{refused:?}");
    let other = a.endpoint();
    let _other = a.manager.connect(&other, listener.address(), 4, b"").unwrap();
    let not = b.manager.accept(world.request(&listener), &b_end, 5, b"").unwrap_err();
    assert!(matches!(not.error, Error::AlreadyConnected));
    drop(not);
    assert_eq!(world.event(&a), Event::Refused { context: 4, data: Vec::new() });
    assert!(asking.is_connected());
}

pub(crate) fn accepted_on_the_listeners_own_domain(world: &World) {
    // One NIC for listener, manager and both ends.
    let a = world.node();
    let listener = weft::connection::Listener::new(&a.domain).unwrap();
    let (asking_end, accepting_end) = (a.endpoint(), a.endpoint());
    let _asking = a.manager.connect(&asking_end, listener.address(), 1, b"").unwrap();
    let _accepting = a.manager.accept(world.request(&listener), &accepting_end, 2, b"").unwrap();
    let Event::Connected { context: 1, peer, .. } = world.event(&a) else { panic!("not connected") };
    assert!(matches!(world.event(&a), Event::Connected { context: 2, .. }));
    accepting_end.receive(vec![0; 8]).unwrap();
    asking_end.inject(peer, b"me").unwrap();
    assert_eq!(world.until(|| a.queue.read().unwrap()).into_bytes().unwrap(), b"me");
}

pub(crate) fn requests_wait_until_they_are_answered(world: &World) {
    let (listener, a, b) = (world.listener(), world.node(), world.node());
    let ends: Vec<_> = (0..20).map(|_| a.endpoint()).collect();
    let ask = |context: usize| a.manager.connect(&ends[context], listener.address(), context as u64, &[context as u8]);
    let asking: Vec<_> = (0..20).map(|context| ask(context).unwrap()).collect();
    let mut requests: Vec<_> = (0..20).map(|_| world.request(&listener)).collect();
    world.assert_silence(&[&a]);
    // Answered in another order, every second one with yes; by another thread, as handles that were put aside are.
    requests.sort_by_key(|request| std::cmp::Reverse(request.data()[0]));
    let b_ends: Vec<_> = (0..20).map(|_| b.endpoint()).collect();
    let accepted: Vec<_> = std::thread::scope(|threads| {
        let answering = threads.spawn(|| {
            let mut accepted = Vec::new();
            for request in requests {
                let index = request.data()[0];
                if index % 2 == 0 {
                    accepted.push(b.manager.accept(request, &b_ends[index as usize], index.into(), &[index]).unwrap());
                } else {
                    request.reject(&[index]).unwrap();
                }
            }
            accepted
        });
        answering.join().unwrap()
    });
    let mut seen = [false; 20];
    for _ in 0..20 {
        let (context, answer) = match world.event(&a) {
            Event::Connected { context, data, address, .. } => {
                assert_eq!(address, b_ends[context as usize].address());
                assert_eq!(context % 2, 0);
                (context, data)
            }
            Event::Refused { context, data } => {
                assert_eq!(context % 2, 1);
                (context, data)
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(answer, [context as u8]);
        assert!(!std::mem::replace(&mut seen[context as usize], true));
    }
    for _ in 0..10 {
        assert!(matches!(world.event(&b), Event::Connected { .. }));
    }
    assert!(accepted.iter().all(|connection| connection.is_connected()));
    assert_eq!(asking.iter().filter(|connection| connection.is_connected()).count(), 10);
}

pub(crate) fn handles_know_their_peer(world: &World) {
    let (listener, a, b) = (world.listener(), world.node(), world.node());
    let end = a.endpoint();
    let asking = a.manager.connect(&end, listener.address(), 77, b"").unwrap();
    assert_eq!((asking.context(), asking.peer(), asking.address(), asking.is_connected()), (77, None, None, false));
    drop((asking, world.request(&listener)));
    let pair = world.pair(&listener, &a, &b, [1, 2]);
    assert_eq!((pair.a.1.peer(), pair.b.1.peer()), (Some(pair.a.2), Some(pair.b.2)));
    assert_eq!(pair.a.1.address(), Some(pair.b.0.address()));
    assert_eq!(pair.b.1.address(), Some(pair.a.0.address()));
}

pub(crate) fn events_of_dropped_handles_are_gone(world: &World) {
    let (listener, a) = (world.listener(), world.node());
    let first = a.manager.connect(&a.endpoint(), listener.address(), 1, b"").unwrap();
    world.request(&listener).reject(b"").unwrap();
    let _second = a.manager.connect(&a.endpoint(), listener.address(), 2, b"").unwrap();
    world.request(&listener).reject(b"").unwrap();
    // Both answers are there when the first handle goes.
    for _ in 0..200 {
        world.work();
    }
    drop(first);
    assert_eq!(world.event(&a), Event::Refused { context: 2, data: Vec::new() });
    world.assert_silence(&[&a]);
}

pub(crate) fn strangers_are_not_heard(world: &World) {
    let (listener, a, b, stranger) = (world.listener(), world.node(), world.node(), world.node());
    let pair = world.pair(&listener, &a, &b, [1, 2]);
    let end = stranger.endpoint();
    for (target, node) in [(&pair.a.0, &a), (&pair.b.0, &b)] {
        let to = stranger.domain.addresses().insert(target.address()).unwrap();
        let options = weft::Options { level: weft::Level::Delivered, ..Default::default() };
        end.send_with(to, b"let me in".to_vec(), options).unwrap();
        let completion = world.until(|| {
            assert!(node.queue.read().unwrap().is_none());
            stranger.queue.read().unwrap()
        });
        assert_eq!(completion.result, Err(weft::Failure::NoSuchEndpoint));
    }
    world.talk(&a, &b, &pair, b"among us");
}

/// One thread for each side, asleep until something comes.
pub(crate) fn sleepers_are_woken(world: &World) {
    let (listener, a, b) = (world.listener(), world.node(), world.node());
    let patience = Some(PATIENCE);
    let rounds = 20;
    // Who has no thread of its own that works for it is served by those who sleep.
    let progress = world.progress;
    std::thread::scope(|threads| {
        let (listener, b) = (&listener, &b);
        let server = threads.spawn(move || {
            for round in 0..rounds {
                let request = listener.wait(patience).unwrap().expect("a request");
                let end = b.endpoint();
                let accepting = b.manager.accept(request, &end, round, b"yes").unwrap();
                settle(progress, listener);
                assert!(matches!(b.manager.wait(patience).unwrap(), Some(Event::Connected { .. })));
                assert_eq!(b.manager.wait(patience).unwrap(), Some(Event::Shutdown { context: round }));
                drop(accepting);
            }
        });
        for round in 0..rounds {
            let end = a.endpoint();
            let asking = a.manager.connect(&end, listener.address(), round, b"").unwrap();
            let event = a.manager.wait(patience).unwrap().expect("an answer");
            assert!(matches!(event, Event::Connected { .. }), "{event:?}");
            drop(asking);
            assert_eq!(a.manager.wait(Some(Duration::from_millis(1))).unwrap(), None);
        }
        // With manual progress what was said last goes out while somebody works.
        while progress == Progress::Manual && !server.is_finished() {
            a.manager.wait(Some(Duration::from_millis(1))).unwrap();
        }
        server.join().unwrap();
    });
}

fn settle(progress: Progress, listener: &weft::connection::Listener) {
    if progress == Progress::Manual {
        listener.domain().progress().unwrap();
    }
}
