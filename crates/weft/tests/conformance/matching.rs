//! Which message meets which receive.

use weft::{Access, Failure, Options, ReceiveOptions};

use crate::support::{World, pattern};

pub(crate) fn unexpected_messages_wait(world: &World) {
    let (a, b, to_b, _) = world.pair();
    for index in 0..50u64 {
        a.endpoint.send(to_b, a.buffer(pattern(index, 10 + index as usize * 60))).unwrap();
        a.endpoint.tagged_send(to_b, index, a.buffer(pattern(index, 20))).unwrap();
    }
    world.goods(&a, 100);
    assert!(b.queue.read().unwrap().is_none());
    // Tagged ones are found by tag, from the last to the first; the others in the order in which they were sent.
    for index in (0..50u64).rev() {
        b.endpoint.tagged_receive(index, 0, b.buffer(vec![0; 20])).unwrap();
        let received = world.good(&b);
        assert_eq!((received.tag, received.kind), (index, weft::CompletionKind::TaggedReceive));
        assert_eq!(received.into_bytes().unwrap(), pattern(index, 20));
    }
    for index in 0..50u64 {
        b.endpoint.receive(b.buffer(vec![0; 4000])).unwrap();
        assert_eq!(world.good(&b).into_bytes().unwrap(), pattern(index, 10 + index as usize * 60));
    }
}

pub(crate) fn unexpected_long_message(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let sent = a.endpoint.send(to_b, a.buffer(pattern(1, 1 << 20))).unwrap();
    a.endpoint.send(to_b, a.buffer(pattern(2, 30_000))).unwrap();
    // The short one is taken over by the target; the long one waits at its sender.
    let done = world.good(&a);
    assert_ne!(done.context, sent);
    world.idle(20);
    let first = b.endpoint.receive(b.buffer(vec![0; 1 << 20])).unwrap();
    b.endpoint.receive(b.buffer(vec![0; 1 << 20])).unwrap();
    for received in world.goods(&b, 2) {
        // The one that was sent first meets the first receive, though it takes longer.
        let (seed, length) = if received.context == first { (1, 1 << 20) } else { (2, 30_000) };
        assert!(received.into_bytes().unwrap() == pattern(seed, length));
    }
    assert_eq!(world.good(&a).context, sent);
}

pub(crate) fn tags_and_ignored_bits(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let exact = b.endpoint.tagged_receive(0x1234, 0, b.buffer(vec![0; 8])).unwrap();
    let low = b.endpoint.tagged_receive(0x5600, 0xff, b.buffer(vec![0; 8])).unwrap();
    let any = b.endpoint.tagged_receive(0, u64::MAX, b.buffer(vec![0; 8])).unwrap();
    let untagged = b.endpoint.receive(b.buffer(vec![0; 8])).unwrap();
    for tag in [0x5678, 0x1234, 0x9999] {
        a.endpoint.tagged_send(to_b, tag, a.buffer(tag.to_le_bytes().to_vec())).unwrap();
    }
    a.endpoint.send(to_b, a.buffer(vec![5; 3])).unwrap();
    for (context, tag) in [(low, 0x5678u64), (exact, 0x1234), (any, 0x9999)] {
        let received = world.good(&b);
        assert_eq!((received.context, received.tag), (context, tag));
        assert_eq!(received.into_bytes().unwrap(), tag.to_le_bytes());
    }
    assert_eq!(world.good(&b).context, untagged);
    world.goods(&a, 4);
}

pub(crate) fn directed_receives(world: &World) {
    let (a, b) = (world.node(), world.node());
    let c = world.node();
    let (a_to_c, b_to_c) = (a.knows(&c), b.knows(&c));
    let (c_to_a, c_to_b) = (c.knows(&a), c.knows(&b));
    let from = |peer| ReceiveOptions { source: Some(peer), ..Default::default() };
    let of_b = c.endpoint.receive_with(c.buffer(vec![0; 8]), from(c_to_b)).unwrap();
    let of_a = c.endpoint.receive_with(c.buffer(vec![0; 8]), from(c_to_a)).unwrap();
    a.endpoint.send(a_to_c, a.buffer(b"a".to_vec())).unwrap();
    let first = world.good(&c);
    assert_eq!((first.context, first.peer), (of_a, Some(c_to_a)));
    b.endpoint.send(b_to_c, b.buffer(b"b".to_vec())).unwrap();
    let second = world.good(&c);
    assert_eq!((second.context, second.peer), (of_b, Some(c_to_b)));
    // The same for messages that came before.
    a.endpoint.tagged_send(a_to_c, 1, a.buffer(b"early a".to_vec())).unwrap();
    b.endpoint.tagged_send(b_to_c, 1, b.buffer(b"early b".to_vec())).unwrap();
    world.goods(&a, 2);
    world.goods(&b, 2);
    for (peer, bytes) in [(c_to_b, b"early b"), (c_to_a, b"early a")] {
        let options = ReceiveOptions { source: Some(peer), tag: Some(1), ..Default::default() };
        c.endpoint.receive_with(c.buffer(vec![0; 8]), options).unwrap();
        assert_eq!(world.good(&c).into_bytes().unwrap(), bytes);
    }
}

pub(crate) fn wildcards_take_in_order(world: &World) {
    let (a, b, to_b, to_a) = world.pair();
    let options = |source, ignore| ReceiveOptions { source, tag: Some(7), ignore, ..Default::default() };
    let posted = [
        b.endpoint.receive_with(b.buffer(vec![0; 8]), options(None, 0)).unwrap(),
        b.endpoint.receive_with(b.buffer(vec![0; 8]), options(Some(to_a), u64::MAX)).unwrap(),
        b.endpoint.receive_with(b.buffer(vec![0; 8]), options(Some(to_a), 0)).unwrap(),
        b.endpoint.receive_with(b.buffer(vec![0; 8]), options(None, u64::MAX)).unwrap(),
    ];
    for index in 0..4u8 {
        a.endpoint.tagged_send(to_b, 7, a.buffer(vec![index])).unwrap();
    }
    for (index, context) in posted.into_iter().enumerate() {
        let received = world.good(&b);
        assert_eq!(received.context, context, "the oldest that matches, wildcard or not");
        assert_eq!(received.into_bytes().unwrap(), [index as u8]);
    }
}

pub(crate) fn multi_receive_fills_its_buffer(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let region = b.register(10_000, Access::NONE).unwrap();
    let options = ReceiveOptions { multi: Some(1000), ..Default::default() };
    let posted = b.endpoint.receive_with(region.buffer(0, 10_000).unwrap(), options).unwrap();
    let lengths = [2500usize, 0, 1, 3000, 900, 2000, 700];
    for (index, length) in lengths.into_iter().enumerate() {
        a.endpoint.send(to_b, a.buffer(pattern(index as u64, length))).unwrap();
    }
    let mut end = 0;
    for (index, length) in lengths.into_iter().enumerate() {
        let received = world.good(&b);
        assert_eq!((received.context, received.length), (posted, length as u64));
        assert!(received.offset as usize >= end, "one behind the other");
        let bytes = region.to_vec(received.offset as usize, length).unwrap();
        assert!(bytes == pattern(index as u64, length), "message {index}");
        end = received.offset as usize + length;
        assert_eq!(received.buffer.is_some(), index == lengths.len() - 1, "given back with the last: {index}");
    }
    world.goods(&a, lengths.len());
    // The buffer is used up: the next message waits for another.
    a.endpoint.send(to_b, a.buffer(pattern(9, 100))).unwrap();
    world.idle(20);
    assert!(b.queue.read().unwrap().is_none());
    b.endpoint.receive(b.buffer(vec![0; 100])).unwrap();
    assert_eq!(world.good(&b).into_bytes().unwrap(), pattern(9, 100));
}

pub(crate) fn truncation_is_told_to_both(world: &World) {
    let (a, b, to_b, _) = world.pair();
    for (room, length) in [(10, 20), (0, 1), (1000, 5000), (1000, 300_000)] {
        b.endpoint.receive(b.buffer(vec![0xee; room])).unwrap();
        let sent = a.endpoint.send(to_b, a.buffer(pattern(1, length))).unwrap();
        let received = world.next(&b);
        assert_eq!(received.result, Err(Failure::Truncated), "{length} into {room}");
        assert_eq!(received.length, length as u64);
        let done = world.next(&a);
        assert_eq!(done.context, sent);
        assert!(done.result.is_ok() || done.result == Err(Failure::LengthError), "{:?}", done.result);
        // What comes next is not disturbed.
        b.endpoint.receive(b.buffer(vec![0; 10])).unwrap();
        a.endpoint.send(to_b, a.buffer(b"next".to_vec())).unwrap();
        assert_eq!(world.good(&b).into_bytes().unwrap(), b"next");
        world.good(&a);
    }
}

pub(crate) fn cancelled_receives_take_nothing(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let first = b.endpoint.receive(b.buffer(vec![1; 8])).unwrap();
    let second = b.endpoint.receive(b.buffer(vec![2; 8])).unwrap();
    let tagged = b.endpoint.tagged_receive(1, 0, b.buffer(vec![3; 8])).unwrap();
    assert!(b.endpoint.cancel(first) && b.endpoint.cancel(tagged));
    assert!(!b.endpoint.cancel(first) && !b.endpoint.cancel(12_345), "there is none");
    for context in [first, tagged] {
        let cancelled = world.next(&b);
        assert_eq!((cancelled.context, cancelled.result), (context, Err(Failure::Cancelled)));
        assert_eq!(cancelled.buffer.unwrap().len(), 8);
    }
    a.endpoint.send_with(to_b, a.buffer(vec![7; 4]), Options::default()).unwrap();
    let received = world.good(&b);
    assert_eq!(received.context, second);
    assert!(!b.endpoint.cancel(second), "it is done");
}
