//! Many peers, endpoints and threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use weft::{Access, Fabric, Failure, Progress};

use crate::support::{Node, PATIENCE, World, pattern};

pub(crate) fn two_peers_do_not_mix(world: &World) {
    let (a, b) = (world.node(), world.node());
    let c = world.node();
    let (a_to_c, b_to_c) = (a.knows(&c), b.knows(&c));
    for _ in 0..100 {
        c.endpoint.receive(c.buffer(vec![0; 3000])).unwrap();
    }
    for index in 0..50u64 {
        a.endpoint.send(a_to_c, a.buffer(pattern(index, 2500))).unwrap();
        b.endpoint.send(b_to_c, b.buffer(pattern(1000 + index, 100))).unwrap();
    }
    let (mut of_a, mut of_b) = (0, 1000);
    // They are matched in order; what a bad way cut in several packets may be complete later.
    let mut all = world.goods(&c, 100);
    all.sort_by_key(|received| received.context);
    for received in all {
        let (next, length) =
            if received.source == Some(a.endpoint.address()) { (&mut of_a, 2500) } else { (&mut of_b, 100) };
        assert!(received.into_bytes().unwrap() == pattern(*next, length));
        *next += 1;
    }
    assert_eq!((of_a, of_b), (50, 1050));
}

pub(crate) fn many_endpoints(world: &World) {
    let (a, b, ..) = world.pair();
    let endpoints: Vec<_> = (0..100).map(|_| b.domain.endpoint(&b.queue).unwrap()).collect();
    let peers: Vec<_> =
        endpoints.iter().map(|endpoint| a.domain.addresses().insert(endpoint.address()).unwrap()).collect();
    for (index, endpoint) in endpoints.iter().enumerate() {
        let options = weft::ReceiveOptions { context: Some(index as u64), ..Default::default() };
        endpoint.receive_with(b.buffer(vec![0; 8]), options).unwrap();
    }
    for (index, peer) in peers.iter().enumerate() {
        a.endpoint.inject(*peer, &(index as u64).to_le_bytes()).unwrap();
    }
    for _ in 0..100 {
        let received = world.good(&b);
        let context = received.context;
        assert_eq!(received.into_bytes().unwrap(), context.to_le_bytes(), "each its own");
    }
}

pub(crate) fn all_to_all(world: &World) {
    let nodes: Vec<Node> = (0..6).map(|_| world.node()).collect();
    for (from, node) in nodes.iter().enumerate() {
        for (to, other) in nodes.iter().enumerate() {
            let peer = node.knows(other);
            other.endpoint.tagged_receive(from as u64, 0, other.buffer(vec![0; 20_000])).unwrap();
            node.endpoint
                .tagged_send(peer, from as u64, node.buffer(pattern((from * 10 + to) as u64, 20_000)))
                .unwrap();
        }
    }
    for (to, node) in nodes.iter().enumerate() {
        for completion in world.goods(node, 12) {
            if completion.kind == weft::CompletionKind::TaggedReceive {
                let from = completion.tag as usize;
                assert!(completion.into_bytes().unwrap() == pattern((from * 10 + to) as u64, 20_000));
            }
        }
    }
}

pub(crate) fn both_ways_at_once(world: &World) {
    let (a, b, to_b, to_a) = world.pair();
    let memory = [&a, &b].map(|node| node.register(1 << 20, Access::REMOTE).unwrap());
    for round in 0..3 {
        a.endpoint.write(to_b, memory[1].remote(), a.buffer(pattern(round, 1 << 20))).unwrap();
        b.endpoint.write(to_a, memory[0].remote(), b.buffer(pattern(round + 10, 1 << 20))).unwrap();
        a.endpoint.receive(a.buffer(vec![0; 1 << 20])).unwrap();
        b.endpoint.receive(b.buffer(vec![0; 1 << 20])).unwrap();
        a.endpoint.send(to_b, a.buffer(pattern(round + 20, 1 << 20))).unwrap();
        b.endpoint.send(to_a, b.buffer(pattern(round + 30, 1 << 20))).unwrap();
        world.goods(&a, 3);
        world.goods(&b, 3);
        assert!(memory[1].to_vec(0, 1 << 20).unwrap() == pattern(round, 1 << 20));
        assert!(memory[0].to_vec(0, 1 << 20).unwrap() == pattern(round + 10, 1 << 20));
    }
}

pub(crate) fn fabrics_do_not_hear_each_other(world: &World) {
    let node = world.node();
    let stranger = world.domain_of(&Fabric::new("another").unwrap(), |_| {});
    let queue = stranger.completion_queue(64);
    let endpoint = stranger.endpoint(&queue).unwrap();
    let peer = stranger.addresses().insert(node.endpoint.address()).unwrap();
    node.endpoint.receive(node.buffer(vec![0; 8])).unwrap();
    endpoint.send(peer, vec![1; 8]).unwrap();
    // Packets of other fabrics are dropped without an answer; a channel of another fabric is refused.
    world.until("the other fabric is turned away", || {
        let refused = queue.read().unwrap().map(|completion| completion.result.unwrap_err());
        assert!(refused.is_none() || refused == Some(Failure::NoSuchEndpoint), "{refused:?}");
        (refused.is_some() || node.domain.statistics().dropped_foreign > 0).then_some(())
    });
    world.idle(50);
    assert!(node.queue.read().unwrap().is_none());
    // Nobody acknowledges what it sent, so closing it would wait in vain.
    world.forget(&stranger);
    stranger.abandon();
}

pub(crate) fn many_threads(world: &World) {
    let (a, b, to_b, to_a) = world.pair();
    let (a, b) = (&a, &b);
    let count = if world.is_faulty() { 50 } else { 300 };
    let readers = AtomicUsize::new(4);
    // Four threads on each side post, and two read, on the same handles.
    std::thread::scope(|threads| {
        for thread in 0..4u64 {
            for (node, peer) in [(a, to_b), (b, to_a)] {
                threads.spawn(move || {
                    for index in 0..count {
                        let tag = thread << 32 | index;
                        node.endpoint.tagged_receive(tag, 0, node.buffer(vec![0; 200])).unwrap();
                        node.endpoint.tagged_inject(peer, tag, &pattern(tag, 150)).unwrap();
                    }
                });
            }
        }
        for node in [a, b] {
            for _ in 0..2 {
                let readers = &readers;
                threads.spawn(move || {
                    for _ in 0..2 * count {
                        let received = node.queue.wait(Some(PATIENCE)).unwrap().expect("no hang").ok().unwrap();
                        let tag = received.tag;
                        assert_eq!(received.into_bytes().unwrap(), pattern(tag, 150));
                    }
                    // The other side may still need what was lost, or its acknowledgement.
                    readers.fetch_sub(1, Ordering::SeqCst);
                    while readers.load(Ordering::SeqCst) > 0 && !std::thread::panicking() {
                        node.domain.progress().unwrap();
                        std::thread::yield_now();
                    }
                });
            }
        }
    });
    if world.progress() == Progress::Automatic {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(a.queue.read().unwrap().is_none() && b.queue.read().unwrap().is_none());
}
