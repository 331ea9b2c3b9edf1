//! Numbers of endpoints, and what completions tell beside the bytes.

use weft::{Access, AtomicOperation, CompletionKind, EndpointKind, EndpointOptions, Error, Failure, OpenError};
use weft::{Address, Options, ReceiveOptions, Side, raw};

use crate::support::{World, pattern};

/// Who knows the socket and the number needs no address.
pub(crate) fn numbers_can_be_chosen(world: &World) {
    let (a, b) = (world.node(), world.node());
    let options = |number| EndpointOptions { number, ..EndpointOptions::with_queue(EndpointKind::Reliable, &b.queue) };
    let taken = |number: u32| match b.domain.open_endpoint(options(Some(number))) {
        Err(Error::Open(OpenError::NumberTaken { number: taken })) => taken == number,
        _ => false,
    };
    let endpoints = [0u32, 7, u32::MAX].map(|number| (number, b.domain.open_endpoint(options(Some(number))).unwrap()));
    for (number, endpoint) in &endpoints {
        assert!(taken(*number), "twice");
        endpoint.receive(b.buffer(vec![0; 8])).unwrap();
        let address = Address { socket: b.domain.local(), endpoint: *number };
        assert_eq!(endpoint.address(), address);
        let peer = a.domain.addresses().insert(address).unwrap();
        a.endpoint.send(peer, a.buffer(number.to_le_bytes().to_vec())).unwrap();
        world.good(&a);
        assert_eq!(world.good(&b).into_bytes().unwrap(), number.to_le_bytes());
    }
    assert!(taken(b.endpoint.address().endpoint), "a drawn one");
    // A number is free again when its endpoint is closed.
    drop(endpoints);
    b.domain.open_endpoint(options(Some(0))).unwrap();

    let numbers = raw::Numbers::keep(&b.domain, None, 100).unwrap();
    assert!(raw::Numbers::keep(&b.domain, Some(numbers.first() + 99), 1).is_err(), "kept already");
    let row: Vec<_> = (0..100).map(|at| b.domain.open_endpoint(options(Some(numbers.first() + at))).unwrap()).collect();
    drop(numbers);
    assert!(raw::Numbers::keep(&b.domain, Some(row[99].address().endpoint), 2).is_err(), "an endpoint has it");
    assert!(raw::Numbers::keep(&b.domain, Some(u32::MAX), 2).is_err(), "behind the last there is none");
    assert!(raw::Numbers::keep(&b.domain, None, 0).is_err());
}

/// An endpoint that only sends at first, and receives later.
pub(crate) fn queues_can_be_bound_later(world: &World) {
    let (a, b) = (world.node(), world.node());
    let options = EndpointOptions { transmit_queue: Some(b.queue.clone()), ..Default::default() };
    let endpoint = b.domain.open_endpoint(options).unwrap();
    let (to_a, to_b) = (b.knows(&a), a.domain.addresses().insert(endpoint.address()).unwrap());
    a.endpoint.receive(a.buffer(vec![0; 8])).unwrap();
    endpoint.send(to_a, b.buffer(vec![1; 8])).unwrap();
    world.good(&b);
    world.good(&a);
    // What comes early waits.
    a.endpoint.send(to_b, a.buffer(vec![2; 8])).unwrap();
    let region = b.register(100_000, Access::REMOTE).unwrap();
    let write = || {
        let options = Options { immediate: Some(9), ..Default::default() };
        a.endpoint.write_with(to_b, region.remote(), a.buffer(vec![7; 100_000]), options).unwrap();
    };
    write();
    let (queue, counter) = (b.domain.completion_queue(16), b.domain.counter());
    let later = EndpointOptions {
        receive_queue: Some(queue.clone()),
        receive_counter: Some(counter.clone()),
        // It has one already.
        transmit_queue: Some(queue.clone()),
        ..Default::default()
    };
    endpoint.bind(later).unwrap();
    endpoint.receive(b.buffer(vec![0; 8])).unwrap();
    let mut done = Vec::new();
    let mut read = |count: usize| {
        world.until("completions", || {
            done.extend(queue.read().unwrap());
            (done.iter().filter(|done: &&weft::Completion| done.kind == CompletionKind::Receive).count() == count)
                .then_some(())
        });
    };
    read(1);
    assert_eq!(counter.value(), 1);
    world.goods(&a, 2);
    // From now on writes are told for certain.
    write();
    let told = world.until("told", || {
        let next = done.pop().or_else(|| queue.read().unwrap());
        next.filter(|next| next.kind == CompletionKind::RemoteWrite)
    });
    assert_eq!(told.immediate, Some(9));
    endpoint.send(to_a, b.buffer(vec![3; 8])).unwrap();
    a.endpoint.receive(a.buffer(vec![0; 8])).unwrap();
    assert_eq!(world.good(&b).kind, CompletionKind::Send);
    let foreign = EndpointOptions { receive_queue: Some(a.queue.clone()), ..Default::default() };
    assert!(matches!(endpoint.bind(foreign), Err(Error::OtherDomain)));
}

/// What peers do is counted from when a counter is bound, also to memory that they had mapped before.
pub(crate) fn counters_can_be_bound_later(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let region = b.register(100_000, Access::REMOTE).unwrap();
    let touch = || {
        for length in [8, 5000, 100_000] {
            a.endpoint.write(to_b, region.remote(), a.buffer(vec![1; length])).unwrap();
            a.endpoint.read(to_b, region.remote(), a.buffer(vec![0; length])).unwrap();
            world.goods(&a, 2);
        }
    };
    touch();
    let [writes, reads, written, fetched] = [&a, &a, &b, &b].map(|node| node.domain.counter());
    let (write_counter, read_counter) = (Some(writes.clone()), Some(reads.clone()));
    a.endpoint.bind(EndpointOptions { write_counter, read_counter, ..Default::default() }).unwrap();
    let (remote_write_counter, remote_read_counter) = (Some(written.clone()), Some(fetched.clone()));
    b.endpoint.bind(EndpointOptions { remote_write_counter, remote_read_counter, ..Default::default() }).unwrap();
    touch();
    let all = || [&writes, &reads, &written, &fetched].map(weft::Counter::value);
    world.until("all counted", || (all() == [3; 4]).then_some(()));
}

/// Each side ends without a word, is opened again with other queues, and does not disturb the other.
pub(crate) fn sides_close_one_by_one(world: &World) {
    let (a, b) = (world.node(), world.node());
    let endpoint = b.domain.open_endpoint(EndpointOptions::default()).unwrap();
    let (to_a, to_b) = (b.knows(&a), a.domain.addresses().insert(endpoint.address()).unwrap());
    let sends = || EndpointOptions { transmit_queue: Some(b.queue.clone()), ..Default::default() };
    let receives = || EndpointOptions { receive_queue: Some(b.queue.clone()), ..Default::default() };
    for round in 0..3u8 {
        endpoint.bind(sends()).unwrap();
        endpoint.bind(receives()).unwrap();
        assert!(raw::room(&endpoint, Side::Receive).unwrap() > 1);
        assert!(raw::room(&endpoint, Side::Transmit).unwrap() > 1);
        // Nobody takes this one, nor sends the others.
        endpoint.tagged_send(to_a, 99, b.buffer(vec![0; 500_000])).unwrap();
        endpoint.tagged_receive(98, 0, b.buffer(vec![0; 8])).unwrap();
        endpoint.receive(b.buffer(vec![0; 8])).unwrap();
        endpoint.close_side(Side::Transmit);
        a.endpoint.send(to_b, a.buffer(vec![round; 8])).unwrap();
        world.good(&a);
        assert_eq!(world.good(&b).into_bytes().unwrap(), [round; 8]);
        endpoint.bind(sends()).unwrap();
        endpoint.receive(b.buffer(vec![0; 8])).unwrap();
        endpoint.close_side(Side::Receive);
        assert_eq!(b.domain.state().receives, 0);
        a.endpoint.receive(a.buffer(vec![0; 8])).unwrap();
        endpoint.send(to_a, b.buffer(vec![round; 8])).unwrap();
        assert_eq!(world.good(&b).kind, CompletionKind::Send);
        assert_eq!(world.good(&a).into_bytes().unwrap(), [round; 8]);
        assert!(b.queue.read().unwrap().is_none());
        endpoint.close_side(Side::Transmit);
    }
}

/// Datagrams that come before their receive are lost, unless they may wait.
pub(crate) fn datagrams_can_wait(world: &World) {
    let (a, b) = (world.node(), world.node());
    let open = |node: &crate::support::Node, datagrams_kept| {
        let options = EndpointOptions::with_queue(EndpointKind::Datagram, &node.queue);
        node.domain.open_endpoint(EndpointOptions { datagrams_kept, ..options }).unwrap()
    };
    let (from, to) = (open(&a, 0), open(&b, 3));
    let peer = a.domain.addresses().insert(to.address()).unwrap();
    // Others may be lost on the way, too.
    world.until("three wait", || {
        from.send(peer, a.buffer(vec![9; 8])).unwrap();
        world.next(&a);
        (b.domain.state().unexpected == 3).then_some(())
    });
    for _ in 0..10 {
        from.send(peer, a.buffer(vec![9; 8])).unwrap();
        world.next(&a);
    }
    world.idle(50);
    assert_eq!(b.domain.state().unexpected, 3);
    for _ in 0..3 {
        to.receive(b.buffer(vec![0; 8])).unwrap();
        assert_eq!(world.good(&b).into_bytes().unwrap(), [9; 8]);
    }
    // Those that were under way until now found room when these were gone.
    while b.domain.state().unexpected > 0 {
        to.receive(b.buffer(vec![0; 8])).unwrap();
        assert_eq!(world.good(&b).into_bytes().unwrap(), [9; 8]);
    }
}

pub(crate) fn completions_tell_what_ended(world: &World) {
    let (a, b, to_b, to_a) = world.pair();
    b.endpoint.receive(b.buffer(vec![0; 8])).unwrap();
    b.endpoint.tagged_receive(3, 0, b.buffer(vec![0; 8])).unwrap();
    a.endpoint.tagged_send(to_b, 3, a.buffer(vec![1])).unwrap();
    let done = world.good(&a);
    assert_eq!((done.kind, done.tag, done.peer, done.multi), (CompletionKind::TaggedSend, 3, Some(to_b), false));
    a.endpoint.send(to_b, a.buffer(vec![2])).unwrap();
    assert_eq!(world.good(&a).kind, CompletionKind::Send);
    for received in world.goods(&b, 2) {
        assert!(!received.multi && !received.released);
    }
    let region = b.register(8, Access::REMOTE).unwrap();
    a.endpoint.atomic(to_b, region.remote(), AtomicOperation::Sum, &[1u64]).unwrap();
    assert_eq!(world.good(&a).kind, CompletionKind::Atomic);
    a.endpoint.fetch_atomic(to_b, region.remote(), AtomicOperation::Sum, &[1u64]).unwrap();
    assert_eq!(world.good(&a).kind, CompletionKind::FetchAtomic);

    // What is given back without a message tells what it waited for.
    let options = ReceiveOptions { source: Some(to_a), tag: Some(77), ..Default::default() };
    let context = b.endpoint.receive_with(b.buffer(vec![0; 8]), options).unwrap();
    assert!(b.endpoint.cancel(context));
    let cancelled = world.next(&b);
    assert_eq!((cancelled.result, cancelled.tag, cancelled.peer), (Err(Failure::Cancelled), 77, Some(to_a)));
    b.endpoint.tagged_receive(78, 0, b.buffer(vec![0; 8])).unwrap();
    a.endpoint.tagged_send(to_b, 78, a.buffer(pattern(1, 30))).unwrap();
    let cut = world.next(&b);
    assert_eq!((cut.result, cut.tag, cut.peer, cut.length), (Err(Failure::Truncated), 78, Some(to_a), 30));
}

pub(crate) fn multi_receives_say_when_they_end(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let options = || ReceiveOptions { multi: Some(10), ..Default::default() };
    let first = b.endpoint.receive_with(b.buffer(vec![0; 100]), options()).unwrap();
    for (length, released) in [(40, false), (55, true)] {
        a.endpoint.send(to_b, a.buffer(pattern(1, length))).unwrap();
        let received = world.good(&b);
        assert_eq!((received.context, received.multi, received.released), (first, true, released));
    }
    // The next message does not fit behind the first: the buffer comes back without one.
    let second = b.endpoint.receive_with(b.buffer(vec![0; 100]), options()).unwrap();
    a.endpoint.send(to_b, a.buffer(pattern(1, 50))).unwrap();
    assert_eq!((world.good(&b).released, b.queue.read().unwrap().is_none()), (false, true));
    a.endpoint.send(to_b, a.buffer(pattern(1, 60))).unwrap();
    let released = world.good(&b);
    assert_eq!((released.context, released.kind), (second, CompletionKind::BufferReleased));
    assert!(released.multi && released.released);
    let third = b.endpoint.receive_with(b.buffer(vec![0; 100]), options()).unwrap();
    assert_eq!(world.good(&b).context, third);
    assert!(b.endpoint.cancel(third));
    let cancelled = world.next(&b);
    assert_eq!((cancelled.result, cancelled.multi, cancelled.released), (Err(Failure::Cancelled), true, true));
    world.goods(&a, 4);
}

/// An endpoint of a connection is there for its peer only.
pub(crate) fn restricted_endpoints_have_one_peer(world: &World) {
    let (a, b, to_b, to_a) = world.pair();
    let stranger = world.node();
    let stranger_to_b = stranger.knows(&b);
    let region = b.register(64, Access::REMOTE).unwrap();
    let lengths = [10, 3000, 60_000, 400_000];
    // Both have been heard before, and messages of both wait.
    for (node, peer) in [(&stranger, stranger_to_b), (&a, to_b)] {
        for length in lengths {
            node.endpoint.send(peer, node.buffer(pattern(length as u64, length))).unwrap();
        }
    }
    world.until("all wait", || (b.domain.state().unexpected == 8).then_some(()));
    b.endpoint.restrict_to(to_a).unwrap();
    assert_eq!(b.domain.state().unexpected, 4, "the stranger's are gone");
    for _ in lengths {
        let done = world.next(&stranger);
        assert!(done.result.is_err() || done.length < 400_000, "what was not fetched is not delivered: {done:?}");
    }
    // Nothing of the stranger's comes through any more.
    let refused = |_context: u64| {
        let done = world.next(&stranger);
        assert_eq!(done.result, Err(Failure::NoSuchEndpoint), "{done:?}");
    };
    for length in lengths {
        refused(stranger.endpoint.send(stranger_to_b, stranger.buffer(pattern(1, length))).unwrap());
    }
    refused(stranger.endpoint.write(stranger_to_b, region.remote(), stranger.buffer(vec![9; 8])).unwrap());
    refused(stranger.endpoint.read(stranger_to_b, region.remote(), stranger.buffer(vec![9; 8])).unwrap());
    refused(stranger.endpoint.fetch_add(stranger_to_b, region.remote(), 1u64).unwrap());
    assert_eq!(region.to_vec(0, 64).unwrap(), [0; 64]);
    // Another endpoint of the peer is a stranger too.
    let other = a.domain.endpoint(&a.queue).unwrap();
    for length in lengths {
        b.endpoint.receive(b.buffer(vec![0; length])).unwrap();
        assert!(world.good(&b).into_bytes().unwrap() == pattern(length as u64, length));
        world.good(&a);
    }
    other.send(to_b, a.buffer(vec![1; 8])).unwrap();
    assert_eq!(world.next(&a).result, Err(Failure::NoSuchEndpoint));
    // The peer goes on, both ways.
    a.endpoint.write(to_b, region.remote(), a.buffer(vec![9; 8])).unwrap();
    world.good(&a);
    assert_eq!(region.to_vec(0, 8).unwrap(), [9; 8]);
    a.endpoint.receive(a.buffer(vec![0; 8])).unwrap();
    b.endpoint.send(to_a, b.buffer(vec![2; 8])).unwrap();
    world.good(&b);
    assert_eq!(world.good(&a).into_bytes().unwrap(), [2; 8]);
    assert!(b.endpoint.restrict_to(weft::PeerId(99)).is_err());
}
