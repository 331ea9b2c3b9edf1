//! When operations count as done, and what happens when something is full.

use weft::{Access, EndpointOptions, Error, Level, Options, PostError, ReceiveOptions};

use crate::support::{World, pattern};

pub(crate) fn a_full_queue_holds_peers_back(world: &World) {
    let a = world.node();
    let b = world.node_with(4, |_| {});
    let to_b = a.knows(&b);
    for index in 0..40 {
        let options = ReceiveOptions { context: Some(index), ..Default::default() };
        b.endpoint.receive_with(b.buffer(vec![0; 2000]), options).unwrap();
    }
    for index in 0..40u64 {
        a.endpoint.send(to_b, a.buffer(pattern(index, 50 * index as usize))).unwrap();
    }
    // Nobody reads at b: its queue of four is full, and the rest waits at a, unharmed.
    world.idle(200);
    for _ in 0..40 {
        let received = world.good(&b);
        let index = received.context;
        assert_eq!(received.into_bytes().unwrap(), pattern(index, 50 * index as usize), "message {index}");
    }
    world.goods(&a, 40);
}

pub(crate) fn levels(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let memory = b.register(300_000, Access::REMOTE).unwrap();
    for level in [Level::Injected, Level::Transmitted, Level::Delivered] {
        for length in [0usize, 10, 4000, 50_000, 300_000] {
            let options = Options { level, ..Default::default() };
            b.endpoint.receive(b.buffer(vec![0; length])).unwrap();
            a.endpoint.send_with(to_b, a.buffer(pattern(1, length)), options).unwrap();
            if level == Level::Injected {
                assert!(a.queue.read().unwrap().unwrap().result.is_ok(), "done at once");
            } else {
                world.good(&a);
            }
            assert!(world.good(&b).into_bytes().unwrap() == pattern(1, length));
            a.endpoint.write_with(to_b, memory.remote(), a.buffer(pattern(2, length)), options).unwrap();
            world.good(&a);
            if level != Level::Injected {
                assert!(memory.to_vec(0, length).unwrap() == pattern(2, length));
            }
        }
    }
    // Delivered means that a receive has taken it, not only the node.
    let options = Options { level: Level::Delivered, ..Default::default() };
    a.endpoint.send_with(to_b, a.buffer(pattern(3, 100)), options).unwrap();
    world.idle(100);
    assert!(a.queue.read().unwrap().is_none(), "nobody has received it");
    b.endpoint.receive(b.buffer(vec![0; 100])).unwrap();
    world.good(&b);
    world.good(&a);
}

pub(crate) fn silent_operations(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let memory = b.register(64, Access::REMOTE).unwrap();
    let silent = Options { silent: true, ..Default::default() };
    a.endpoint.write_with(to_b, memory.remote(), a.buffer(vec![1; 64]), silent).unwrap();
    a.endpoint.send_with(to_b, a.buffer(vec![1; 64]), silent).unwrap();
    let failed = a.endpoint.write_with(to_b, memory.remote().at(64), a.buffer(vec![1; 64]), silent).unwrap();
    let last = a.endpoint.send(to_b, a.buffer(vec![1; 64])).unwrap();
    // Only the failure and what is not silent are told.
    for _ in 0..2 {
        let completion = world.next(&a);
        assert!(completion.context == failed && completion.result.is_err() || completion.context == last);
    }
    // Nobody is told when the first one is done, and nothing waits for it.
    world.until("the silent write", || (memory.to_vec(0, 64).unwrap() == [1; 64]).then_some(()));
    world.idle(20);
    assert!(a.queue.read().unwrap().is_none());
}

pub(crate) fn counters_count(world: &World) {
    let (domain, b) = (world.domain(), world.node());
    let count = || Some(domain.counter());
    let options = EndpointOptions {
        send_counter: count(),
        receive_counter: count(),
        read_counter: count(),
        write_counter: count(),
        ..Default::default()
    };
    let a = domain.open_endpoint(options.clone()).unwrap();
    let remote_counters = EndpointOptions {
        remote_write_counter: Some(b.domain.counter()),
        remote_read_counter: Some(b.domain.counter()),
        ..Default::default()
    };
    let target = b.domain.open_endpoint(remote_counters.clone()).unwrap();
    let to_target = domain.addresses().insert(target.address()).unwrap();
    let to_b = domain.addresses().insert(b.endpoint.address()).unwrap();
    let to_a = b.domain.addresses().insert(a.address()).unwrap();
    let memory = b.register(64, Access::REMOTE).unwrap();
    for _ in 0..3 {
        b.endpoint.receive(b.buffer(vec![0; 8])).unwrap();
        a.send(to_b, vec![1; 8]).unwrap();
        a.receive(vec![0; 8]).unwrap();
        b.endpoint.send(to_a, b.buffer(vec![1; 8])).unwrap();
        a.write(to_target, memory.remote(), vec![1; 8]).unwrap();
        a.read(to_target, memory.remote(), vec![1; 8]).unwrap();
        a.fetch_add(to_target, memory.remote(), 1u64).unwrap();
    }
    a.write(to_target, memory.remote().at(64), vec![1; 8]).unwrap();
    let value = |counter: &Option<weft::Counter>| counter.as_ref().map(|counter| counter.value()).unwrap();
    world.until("all counted", || {
        let counted = [&options.send_counter, &options.receive_counter, &options.read_counter, &options.write_counter];
        (counted.map(value) == [3, 3, 6, 3]).then_some(())
    });
    world.until("the error", || (options.write_counter.as_ref().unwrap().errors() == 1).then_some(()));
    world.until("the target", || {
        (value(&remote_counters.remote_write_counter) >= 3 && value(&remote_counters.remote_read_counter) >= 3)
            .then_some(())
    });
    assert_eq!(options.send_counter.unwrap().errors(), 0);
}

pub(crate) fn refused_buffers_come_back(world: &World) {
    let (domain, b) = (world.domain(), world.node());
    let queue = domain.completion_queue(2);
    let options = EndpointOptions { transmit_queue: Some(queue.clone()), ..Default::default() };
    let endpoint = domain.open_endpoint(options).unwrap();
    let to_b = domain.addresses().insert(b.endpoint.address()).unwrap();
    endpoint.send(to_b, vec![1; 10]).unwrap();
    endpoint.send(to_b, vec![2; 10]).unwrap();
    let refused = endpoint.send(to_b, vec![3; 10]).unwrap_err();
    assert!(matches!(refused.error, Error::Post(PostError::CompletionQueueFull)), "{refused}");
    assert!(refused.error.is_full());
    world.until("room", || queue.read().unwrap());
    endpoint.send(to_b, refused.buffer.unwrap()).unwrap();
    for _ in 0..3 {
        b.endpoint.receive(b.buffer(vec![0; 10])).unwrap();
    }
    for index in 1..=3 {
        assert_eq!(world.good(&b).into_bytes().unwrap(), [index; 10]);
    }
}

pub(crate) fn thousands_of_messages(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let count = if world.is_faulty() { 2000 } else { 10_000 };
    let (mut sent, mut done, mut received, mut posted) = (0u64, 0, 0u64, 0);
    let mut buffers = Vec::new();
    // Patience is for each step, not for all of them.
    let mut step = || {
        let before = (done, received);
        while posted - received < 200 && posted < count {
            b.endpoint.receive(buffers.pop().unwrap_or_else(|| b.buffer(vec![0; 64]))).unwrap();
            posted += 1;
        }
        while sent - done < 300 && sent < count {
            a.endpoint.send(to_b, a.buffer(pattern(sent, (sent % 65) as usize))).unwrap();
            sent += 1;
        }
        while let Some(completion) = a.queue.read().unwrap() {
            completion.ok().unwrap();
            done += 1;
        }
        while let Some(completion) = b.queue.read().unwrap() {
            let completion = completion.ok().unwrap();
            assert_eq!(completion.bytes().unwrap(), pattern(received, (received % 65) as usize));
            buffers.extend(completion.buffer);
            received += 1;
        }
        ((done, received) != before).then_some((done, received))
    };
    while world.until("all messages", &mut step) != (count, count) {}
}
