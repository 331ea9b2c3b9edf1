//! Messages of every length, kind of buffer and way of sending.

use std::sync::Arc;

use weft::{Access, Buffer, CompletionKind, Options, ReceiveOptions};

use crate::support::{LENGTHS, World, bytes_of, pattern};

pub(crate) fn every_length_arrives(world: &World) {
    let (a, b, to_b, to_a) = world.pair();
    for (seed, &length) in LENGTHS.iter().enumerate() {
        let bytes = pattern(seed as u64, length);
        let posted = b.endpoint.receive(b.buffer(vec![0xee; length])).unwrap();
        let sent = a.endpoint.send(to_b, a.buffer(bytes.clone())).unwrap();
        let received = world.good(&b);
        assert_eq!(
            (received.context, received.kind, received.length),
            (posted, CompletionKind::Receive, length as u64)
        );
        assert_eq!((received.source, received.peer), (Some(a.endpoint.address()), Some(to_a)));
        assert_eq!(received.immediate, None);
        assert!(received.into_bytes().unwrap() == bytes, "{length} bytes");
        let done = world.good(&a);
        assert_eq!((done.context, done.kind, done.length), (sent, CompletionKind::Send, length as u64));
        assert!(done.buffer.map_or(Vec::new(), |buffer| bytes_of(&buffer)) == bytes, "the buffer comes back");
    }
}

pub(crate) fn every_length_from_a_region(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let from = a.register(pattern(1, 1 << 20), Access::NONE).unwrap();
    let to = b.register(1 << 20, Access::NONE).unwrap();
    for &length in LENGTHS {
        to.write(0, &vec![0; 1 << 20]).unwrap();
        b.endpoint.receive(to.buffer(0, length).unwrap()).unwrap();
        a.endpoint.send(to_b, from.buffer((1 << 20) - length, length).unwrap()).unwrap();
        world.good(&b);
        world.good(&a);
        assert!(to.to_vec(0, length).unwrap() == from.to_vec((1 << 20) - length, length).unwrap(), "{length} bytes");
        assert!(to.to_vec(length, (1 << 20) - length).unwrap().iter().all(|byte| *byte == 0), "nothing behind them");
    }
}

pub(crate) fn injected_messages_arrive_in_order(world: &World) {
    let (a, b, to_b, _) = world.pair();
    for _ in 0..200 {
        b.endpoint.receive(b.buffer(vec![0; 128])).unwrap();
    }
    for index in 0..200u64 {
        a.endpoint.inject(to_b, &pattern(index, index as usize % 100 + 1)).unwrap();
    }
    for index in 0..200u64 {
        assert_eq!(world.good(&b).into_bytes().unwrap(), pattern(index, index as usize % 100 + 1));
    }
    assert!(a.queue.read().unwrap().is_none(), "no completion for what is injected");
}

pub(crate) fn a_message_without_bytes(world: &World) {
    let (a, b, to_b, _) = world.pair();
    b.endpoint.receive(b.buffer(Vec::<u8>::new())).unwrap();
    b.endpoint.receive(b.buffer(vec![7; 4])).unwrap();
    a.endpoint.send(to_b, a.buffer(Vec::<u8>::new())).unwrap();
    a.endpoint.inject(to_b, &[]).unwrap();
    for _ in 0..2 {
        let received = world.good(&b);
        assert_eq!(received.length, 0);
        assert_eq!(received.into_bytes().unwrap(), []);
    }
    world.good(&a);
}

pub(crate) fn lists_are_gathered_and_scattered(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let bytes = pattern(3, 150_000);
    let region = a.register(bytes.clone(), Access::NONE).unwrap();
    for cuts in [vec![0, 1, 1, 5, 1000, 150_000], vec![0, 75_000, 150_000], vec![0, 149_999, 150_000]] {
        let parts = cuts.windows(2).map(|cut| region.buffer(cut[0], cut[1] - cut[0]).unwrap());
        let rooms = [10, 0, 1500, 64_000, 300_000].map(|length| b.buffer(vec![0; length]));
        b.endpoint.receive(Vec::from(rooms)).unwrap();
        a.endpoint.send(to_b, parts.collect::<Vec<Buffer>>()).unwrap();
        let received = world.good(&b);
        assert!(received.bytes().unwrap() == bytes);
        let parts = received.buffer.unwrap().into_list().unwrap();
        assert_eq!(parts.iter().map(Buffer::len).collect::<Vec<_>>(), [10, 0, 1500, 64_000, 300_000]);
        world.good(&a);
    }
}

pub(crate) fn immediate_data_comes_along(world: &World) {
    let (a, b, to_b, _) = world.pair();
    for (length, immediate) in [(0, 0), (10, u64::MAX), (5000, 7), (300_000, 1 << 40)] {
        b.endpoint.receive(b.buffer(vec![0; length])).unwrap();
        let options = Options { immediate: Some(immediate), ..Default::default() };
        a.endpoint.send_with(to_b, a.buffer(pattern(9, length)), options).unwrap();
        let received = world.good(&b);
        assert_eq!(received.immediate, Some(immediate));
        assert!(received.into_bytes().unwrap() == pattern(9, length));
        world.good(&a);
    }
}

pub(crate) fn datagrams_arrive_or_not(world: &World) {
    let (a, b) = (world.node(), world.node());
    let (queue, other_queue) = (a.domain.completion_queue(4096), b.domain.completion_queue(4096));
    let sender = a.domain.datagram_endpoint(&queue).unwrap();
    let receiver = b.domain.datagram_endpoint(&other_queue).unwrap();
    let peer = a.domain.addresses().insert(receiver.address()).unwrap();
    for _ in 0..100 {
        receiver.receive(b.buffer(vec![0; 1024])).unwrap();
    }
    let mut sent = 0u64;
    let mut seen = std::collections::HashSet::new();
    world.until("some datagrams", || {
        if sent < 90 {
            sender.send(peer, a.buffer(pattern(sent, 500))).unwrap();
            sent += 1;
        } else {
            sender.inject(peer, &pattern(sent, 500)).ok();
        }
        while queue.read().unwrap().map(|completion| completion.ok().unwrap()).is_some() {}
        while let Some(received) = other_queue.read().unwrap() {
            let bytes = received.ok().unwrap().into_bytes().unwrap();
            let which = (0..100).find(|seed| pattern(*seed, 500) == bytes).expect("whole or not at all");
            let is_new = seen.insert(which);
            // The last one is sent over and over.
            assert!(is_new || which == 90 || world.is_faulty(), "once");
            receiver.receive(b.buffer(vec![0; 1024])).unwrap();
        }
        // One that was injected has no buffer to be sent from later, and arrives all the same.
        (seen.len() >= 50 && seen.contains(&90)).then_some(())
    });
}

pub(crate) fn datagrams_have_a_limit(world: &World) {
    let domain = world.domain();
    let queue = domain.completion_queue(64);
    let sender = domain.datagram_endpoint(&queue).unwrap();
    let peer = domain.addresses().insert(sender.address()).unwrap();
    let refused = sender.send(peer, vec![0; 70_000]).unwrap_err();
    assert!(matches!(refused.error, weft::Error::Post(weft::PostError::TooLong { length: 70_000, .. })), "{refused}");
    assert_eq!(refused.buffer.unwrap().len(), 70_000);
}

pub(crate) fn messages_to_myself(world: &World) {
    let node = world.node();
    let myself = node.knows(&node);
    for length in [0, 5, 5000, 300_000] {
        let received = node.endpoint.receive(node.buffer(vec![0; length])).unwrap();
        node.endpoint.send(myself, node.buffer(pattern(2, length))).unwrap();
        for completion in world.goods(&node, 2) {
            if completion.context == received {
                assert!(completion.into_bytes().unwrap() == pattern(2, length));
            }
        }
    }
}

pub(crate) fn more_to_follow(world: &World) {
    let (a, b, to_b, _) = world.pair();
    for _ in 0..32 {
        b.endpoint.receive(b.buffer(vec![0; 64])).unwrap();
    }
    let more = Options { more: true, ..Default::default() };
    for index in 0..31u8 {
        a.endpoint.send_with(to_b, a.buffer(vec![index; 64]), more).unwrap();
    }
    a.endpoint.send(to_b, a.buffer(vec![31; 64])).unwrap();
    for index in 0..32 {
        assert_eq!(world.good(&b).into_bytes().unwrap(), [index; 64]);
    }
    world.goods(&a, 32);
    // Nothing follows, and it goes all the same.
    b.endpoint.receive(b.buffer(vec![0; 64])).unwrap();
    a.endpoint.send_with(to_b, a.buffer(vec![7; 64]), more).unwrap();
    assert_eq!(world.good(&b).into_bytes().unwrap(), [7; 64]);
}

pub(crate) fn shared_and_static_bytes(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let shared: Arc<[u8]> = pattern(4, 3000).into();
    for _ in 0..3 {
        b.endpoint.receive(vec![0; 3000].into_boxed_slice()).unwrap();
        a.endpoint.send(to_b, shared.clone()).unwrap();
    }
    b.endpoint.receive(b.buffer(vec![0; 3000])).unwrap();
    a.endpoint.send(to_b, &b"forever"[..]).unwrap();
    for _ in 0..3 {
        let received = world.good(&b);
        assert_eq!(*received.buffer.unwrap().into_boxed_slice().unwrap(), *shared);
    }
    assert_eq!(world.good(&b).into_bytes().unwrap(), b"forever");
    world.goods(&a, 4);
    assert_eq!(Arc::strong_count(&shared), 1, "the NIC keeps nothing");
}

/// Messages meet receives in the order in which both were posted, whichever is complete first.
pub(crate) fn long_and_short_mixed_keep_order(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let lengths = [300_000, 1, 70_000, 0, 2000, 64, 300_000, 8, 1500, 65_536];
    for round in 0..3 {
        for index in 0..lengths.len() {
            let options = ReceiveOptions { context: Some(index as u64), ..Default::default() };
            b.endpoint.receive_with(b.buffer(vec![0; 300_000]), options).unwrap();
        }
        for (index, length) in lengths.into_iter().enumerate() {
            a.endpoint.send(to_b, a.buffer(pattern(index as u64 + round, length))).unwrap();
        }
        let mut seen = [false; 10];
        for received in world.goods(&b, lengths.len()) {
            let index = received.context as usize;
            assert_eq!(received.length, lengths[index] as u64, "message {index}");
            assert!(received.into_bytes().unwrap() == pattern(index as u64 + round, lengths[index]));
            assert!(!std::mem::replace(&mut seen[index], true));
        }
        world.goods(&a, lengths.len());
    }
}
