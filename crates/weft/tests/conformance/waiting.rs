//! Sleeping and waking.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use weft::EndpointOptions;
use weft::link::wait::wait_readable;

use crate::support::{PATIENCE, World, pattern};

/// Each side sleeps until the other has answered.
pub(crate) fn sleep_until_a_message_comes(world: &World) {
    let (a, b, to_b, to_a) = world.pair();
    std::thread::scope(|threads| {
        let other = threads.spawn(|| {
            for index in 0..50 {
                b.endpoint.receive(b.buffer(vec![0; 64])).unwrap();
                b.endpoint.inject(to_a, &[index; 10]).unwrap();
                let received = b.queue.wait(Some(PATIENCE)).unwrap().expect("no hang");
                assert_eq!(received.into_bytes().unwrap(), [index; 20]);
            }
            // The last answer's acknowledgement may be lost on the way.
            while a.queue.read().unwrap().is_none_or(|last| last.context != 99) {
                b.domain.progress().unwrap();
            }
        });
        for index in 0..50 {
            a.endpoint.receive(a.buffer(vec![0; 64])).unwrap();
            let received = a.queue.wait(Some(PATIENCE)).unwrap().expect("no hang");
            assert_eq!(received.into_bytes().unwrap(), [index; 10]);
            // Not at once: the other shall be asleep.
            std::thread::sleep(Duration::from_micros(300));
            a.endpoint.inject(to_b, &[index; 20]).unwrap();
        }
        let last = weft::Options { context: Some(99), ..Default::default() };
        a.endpoint.send_with(to_b, a.buffer(vec![0; 1]), last).unwrap();
        // The last answer itself may be lost too, and who sent it has to send it again.
        while !other.is_finished() {
            a.domain.progress().unwrap();
            std::thread::yield_now();
        }
    });
}

/// A loop as a program with other things to watch has it.
pub(crate) fn descriptors_lose_no_wake_up(world: &World) {
    let (a, b, to_b, to_a) = world.pair();
    let rounds = 200u64;
    let play = |node: &crate::support::Node, peer, first: bool| {
        let descriptor = node.queue.descriptor().unwrap();
        if first {
            node.endpoint.inject(peer, &pattern(0, 8)).unwrap();
        }
        let mut received = 0;
        node.endpoint.receive(node.buffer(vec![0; 8])).unwrap();
        while received < rounds {
            while let Some(completion) = node.queue.read().unwrap() {
                assert_eq!(completion.into_bytes().unwrap(), pattern(received, 8));
                received += 1;
                node.endpoint.receive(node.buffer(vec![0; 8])).unwrap();
                let answer = if first { received } else { received - 1 };
                node.endpoint.inject(peer, &pattern(answer, 8)).unwrap();
            }
            if received < rounds && node.queue.try_wait().unwrap() {
                assert!(wait_readable(descriptor.as_fd(), Some(PATIENCE)).unwrap(), "a wake-up was lost");
            }
        }
    };
    let end = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|threads| {
        for (node, peer, first) in [(&a, to_b, true), (&b, to_a, false)] {
            let (play, end) = (&play, &end);
            threads.spawn(move || {
                play(node, peer, first);
                // Acknowledge until the other has all, too.
                end.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                while end.load(std::sync::atomic::Ordering::SeqCst) < 2 {
                    node.domain.progress().unwrap();
                }
            });
        }
    });
}

pub(crate) fn time_passes(world: &World) {
    let node = world.node();
    let start = Instant::now();
    assert!(node.queue.wait(Some(Duration::from_millis(5))).unwrap().is_none());
    assert!(start.elapsed() >= Duration::from_millis(5));
    assert!(node.queue.wait(Some(Duration::ZERO)).unwrap().is_none());
}

pub(crate) fn counters_wake(world: &World) {
    let (a, b) = (world.domain(), world.node());
    let received = a.counter();
    let options = EndpointOptions { receive_counter: Some(received.clone()), ..Default::default() };
    let endpoint = a.open_endpoint(options).unwrap();
    let to_a = b.domain.addresses().insert(endpoint.address()).unwrap();
    for _ in 0..10 {
        endpoint.receive(vec![0; 8]).unwrap();
    }
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            received.wait(10, Some(PATIENCE)).unwrap();
            done.store(true, std::sync::atomic::Ordering::Release);
        });
        for _ in 0..10 {
            b.endpoint.inject(to_a, &[1; 8]).unwrap();
            std::thread::sleep(Duration::from_micros(200));
        }
        while !done.load(std::sync::atomic::Ordering::Acquire) {
            b.domain.progress().unwrap();
        }
    });
    assert_eq!((received.value(), received.errors()), (10, 0));
    assert!(matches!(received.wait(11, Some(Duration::from_millis(1))), Err(weft::Error::TimedOut)));
}

pub(crate) fn waits_in_many_threads(world: &World) {
    let (a, b, to_b, _) = world.pair();
    for _ in 0..40 {
        b.endpoint.receive(b.buffer(vec![0; 8])).unwrap();
    }
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                for _ in 0..10 {
                    b.queue.wait(Some(PATIENCE)).unwrap().expect("no hang").ok().unwrap();
                }
            });
        }
        for _ in 0..40 {
            a.endpoint.send(to_b, a.buffer(vec![1; 8])).unwrap();
            // The sleepers may be gone when the last acknowledgement is due.
            world.good(&a);
        }
    });
}

/// Who can use only several completions is not woken for one.
pub(crate) fn waits_for_several(world: &World) {
    let node = world.node();
    let myself = node.knows(&node);
    assert!(!node.queue.wait_for(2, Some(Duration::from_millis(5))).unwrap());
    for _ in 0..3 {
        node.endpoint.receive(node.buffer(vec![0; 8])).unwrap();
    }
    node.endpoint.inject(myself, b"one").unwrap();
    assert!(node.queue.wait_ready(Some(PATIENCE)).unwrap());
    assert!(!node.queue.wait_for(2, Some(Duration::from_millis(5))).unwrap());
    std::thread::scope(|scope| {
        let several = scope.spawn(|| node.queue.wait_for(3, Some(PATIENCE)).unwrap());
        node.endpoint.inject(myself, b"two").unwrap();
        node.endpoint.inject(myself, b"three").unwrap();
        assert!(several.join().unwrap());
    });
    for _ in 0..3 {
        world.good(&node);
    }
    node.queue.signal();
    assert!(!node.queue.wait_for(3, Some(PATIENCE)).unwrap());
}

/// Whoever sleeps can be woken without an event, once for each call, and no call is lost.
pub(crate) fn signals_end_waits(world: &World) {
    let node = world.node();
    let counter = node.domain.counter();
    // Before the wait, and only once.
    node.queue.signal();
    node.queue.signal();
    assert!(node.queue.wait(Some(PATIENCE)).unwrap().is_none());
    assert!(node.queue.wait(Some(Duration::from_millis(5))).unwrap().is_none());
    counter.signal();
    assert!(matches!(counter.wait(1, Some(PATIENCE)).unwrap_err(), weft::Error::Interrupted));
    assert!(matches!(counter.wait(1, Some(Duration::from_millis(5))).unwrap_err(), weft::Error::TimedOut));
    // For those who sleep on the descriptor: before they would, and while they do.
    node.queue.signal();
    assert!(!node.queue.try_wait().unwrap() && node.queue.try_wait().unwrap());
    node.queue.signal();
    assert!(wait_readable(node.queue.descriptor().unwrap(), Some(PATIENCE)).unwrap());
    assert!(!node.queue.try_wait().unwrap() && node.queue.try_wait().unwrap());
    // While they wait, however the two fall together.
    for round in 0..50u64 {
        std::thread::scope(|scope| {
            let queue = scope.spawn(|| node.queue.wait(Some(PATIENCE)).unwrap().is_none());
            let counter_wait = scope.spawn(|| matches!(counter.wait(1, Some(PATIENCE)), Err(weft::Error::Interrupted)));
            std::thread::sleep(Duration::from_micros(round * 20));
            node.queue.signal();
            counter.signal();
            assert!(queue.join().unwrap() && counter_wait.join().unwrap());
        });
    }
    // What has come is given first.
    let myself = node.knows(&node);
    node.endpoint.inject(myself, b"note").unwrap();
    node.endpoint.receive(node.buffer(vec![0; 8])).unwrap();
    world.until("completion", || (!node.queue.try_wait().unwrap()).then_some(()));
    node.queue.signal();
    assert_eq!(node.queue.wait(Some(PATIENCE)).unwrap().unwrap().into_bytes().unwrap(), b"note");
    assert!(node.queue.wait(Some(PATIENCE)).unwrap().is_none());
}

/// A receive that finds its message waiting completes at once, and wakes who sleeps for that.
pub(crate) fn receives_that_find_their_message_wake(world: &World) {
    let (a, b, to_b, _) = world.pair();
    for index in 0..20u8 {
        a.endpoint.inject(to_b, &[index; 10]).unwrap();
        world.until("it waits", || (b.domain.state().unexpected == 1).then_some(()));
        std::thread::scope(|threads| {
            let waits = threads.spawn(|| b.queue.wait(Some(PATIENCE)).unwrap().expect("no hang"));
            std::thread::sleep(Duration::from_micros(u64::from(index) * 100));
            b.endpoint.receive(b.buffer(vec![0; 10])).unwrap();
            assert_eq!(waits.join().unwrap().into_bytes().unwrap(), [index; 10]);
        });
    }
}
