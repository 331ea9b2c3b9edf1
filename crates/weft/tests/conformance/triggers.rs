//! Work that counters trigger.

use weft::raw::{self, CommandFlags, Deferred, DeferredId, DeferredWork, Operation, RemoteRange};
use weft::{Access, Counter, EndpointOptions, Error, Failure, PostError};

use crate::support::{Node, World, pattern};

/// A send of these bytes, to be deferred.
fn send(node: &Node, peer: weft::PeerId, context: u64, bytes: Vec<u8>) -> DeferredWork {
    let mut command = raw::command(&node.endpoint, Operation::Send, peer);
    (command.length, command.context) = (bytes.len() as u32, context);
    DeferredWork::Post { endpoint: node.endpoint.clone(), command, buffer: Some(node.buffer(bytes)) }
}

fn defer(node: &Node, counter: &Counter, threshold: u64, work: DeferredWork) -> DeferredId {
    raw::defer(&node.domain, counter, threshold, Deferred { work, completion_counter: None }).unwrap()
}

/// The next message of a node, as text.
fn text(world: &World, node: &Node) -> String {
    String::from_utf8(world.good(node).into_bytes().unwrap()).unwrap()
}

pub(crate) fn deferred_sends_go_in_order_of_threshold(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let counter = a.domain.counter();
    for (threshold, what) in [(3, "d"), (1, "a"), (2, "b"), (3, "e"), (2, "c")] {
        defer(&a, &counter, threshold, send(&a, to_b, threshold, what.as_bytes().to_vec()));
    }
    for _ in 0..7 {
        b.endpoint.receive(b.buffer(vec![0; 8])).unwrap();
    }
    world.idle(20);
    assert!(b.queue.read().unwrap().is_none(), "nothing has its time");
    counter.add_errors(9);
    counter.add(1);
    assert_eq!(text(world, &b), "a");
    world.idle(20);
    assert!(b.queue.read().unwrap().is_none(), "errors do not count");
    counter.set(7);
    let got: Vec<String> = (0..4).map(|_| text(world, &b)).collect();
    assert_eq!(got, ["b", "c", "d", "e"]);
    // One that has its time already goes at once.
    defer(&a, &counter, 7, send(&a, to_b, 7, b"f".to_vec()));
    assert_eq!(text(world, &b), "f");
    let contexts: Vec<u64> = world.goods(&a, 6).iter().map(|completion| completion.context).collect();
    assert_eq!(contexts.len(), 6);
    assert_eq!((raw::deferred(&a.domain), counter.read()), (0, (7, 9)));
}

pub(crate) fn messages_trigger_answers(world: &World) {
    let (a, b) = (world.node(), world.node());
    let (received, done) = (b.domain.counter(), b.domain.counter());
    let options = EndpointOptions {
        receive_counter: Some(received.clone()),
        ..EndpointOptions::with_queue(weft::EndpointKind::Reliable, &b.queue)
    };
    let end = b.domain.open_endpoint(options).unwrap();
    let to_end = a.domain.addresses().insert(end.address()).unwrap();
    let to_a = b.domain.addresses().insert(a.endpoint.address()).unwrap();
    // Long and short: rings, packets, fetched messages; the answer goes without a word of b's program.
    let lengths = [8usize, 3000, 70_000, 300_000];
    for (at, length) in lengths.into_iter().enumerate() {
        let mut command = raw::command(&end, Operation::Send, to_a);
        (command.length, command.context) = (length as u32, 100 + at as u64);
        let work =
            DeferredWork::Post { endpoint: end.clone(), command, buffer: Some(b.buffer(pattern(at as u64, length))) };
        raw::defer(&b.domain, &received, at as u64 + 1, Deferred { work, completion_counter: Some(done.clone()) })
            .unwrap();
        end.receive(b.buffer(vec![0; length])).unwrap();
    }
    for (at, length) in lengths.into_iter().enumerate() {
        a.endpoint.receive(a.buffer(vec![0; length])).unwrap();
        a.endpoint.send(to_end, a.buffer(pattern(77, length))).unwrap();
        let ended = [world.good(&a), world.good(&a)];
        let answer = ended.into_iter().find(|ended| ended.kind == weft::CompletionKind::Receive).unwrap();
        assert!(answer.into_bytes().unwrap() == pattern(at as u64, length), "{length}");
    }
    world.until("counted", || (done.value() == 4).then_some(()));
    let mut contexts: Vec<u64> = world.goods(&b, 8).iter().map(|completion| completion.context).collect();
    contexts.retain(|context| (100..104).contains(context));
    contexts.sort_unstable();
    assert_eq!(contexts, [100, 101, 102, 103], "completions have the contexts of the user");
    assert_eq!(received.read(), (4, 0));
}

pub(crate) fn chains_run_by_themselves(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let memory = b.register(64, Access::REMOTE).unwrap();
    let links: Vec<Counter> = (0..20).map(|_| a.domain.counter()).collect();
    // Each write counts for the next.
    for (at, pair) in links.windows(2).enumerate() {
        let mut command = raw::command(&a.endpoint, Operation::Write, to_b);
        (command.address, command.key, command.length) = (memory.address() + at as u64, memory.key(), 1);
        command.flags = CommandFlags::SILENT | CommandFlags::MORE;
        let buffer = Some(a.buffer(vec![at as u8 + 1]));
        let work = DeferredWork::Post { endpoint: a.endpoint.clone(), command, buffer };
        let deferred = Deferred { work, completion_counter: Some(pair[1].clone()) };
        raw::defer(&a.domain, &pair[0], 1, deferred).unwrap();
    }
    // And counters that change counters.
    let (sum, over) = (a.domain.counter(), a.domain.counter());
    let last = links.last().unwrap();
    defer(&a, last, 1, DeferredWork::Add { counter: sum.clone(), value: 40 });
    defer(&a, &sum, 40, DeferredWork::Add { counter: sum.clone(), value: 2 });
    let work = DeferredWork::Set { counter: over.clone(), value: 7 };
    raw::defer(&a.domain, &sum, 42, Deferred { work, completion_counter: Some(over.clone()) }).unwrap();
    links[0].add(1);
    world.until("the end of the chain", || (over.value() == 8).then_some(()));
    assert_eq!((sum.value(), raw::deferred(&a.domain)), (42, 0));
    world.until("all written", || {
        let written = memory.to_vec(0, 19).unwrap();
        (written == (1..=19).collect::<Vec<u8>>()).then_some(())
    });
    assert!(a.queue.read().unwrap().is_none(), "silent ones are not told of");
}

pub(crate) fn receives_and_atomics_are_deferred_too(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let (go, done) = (b.domain.counter(), b.domain.counter());
    let mut receive = raw::receive(&b.endpoint, 100);
    (receive.tagged, receive.tag, receive.context) = (true, 5, 55);
    let work = DeferredWork::Receive { endpoint: b.endpoint.clone(), receive, buffer: b.buffer(vec![0; 100]) };
    raw::defer(&b.domain, &go, 1, Deferred { work, completion_counter: Some(done.clone()) }).unwrap();
    a.endpoint.tagged_send(to_b, 5, a.buffer(pattern(1, 100))).unwrap();
    world.good(&a);
    world.idle(20);
    assert!(b.queue.read().unwrap().is_none(), "the receive is not posted");
    go.add(1);
    let received = world.good(&b);
    assert_eq!((received.context, received.tag), (55, 5));
    assert_eq!(received.into_bytes().unwrap(), pattern(1, 100));
    assert_eq!(done.read(), (1, 0));

    let memory = b.register(64, Access::REMOTE).unwrap();
    let (go, done) = (a.domain.counter(), a.domain.counter());
    let mut command = raw::command(&a.endpoint, Operation::FetchAtomic, to_b);
    command.atomic = raw::AtomicCall::new(weft::AtomicOperation::Sum, weft::Datatype::Uint64, 1);
    (command.offset, command.length, command.context) = (8, 8, 19);
    (command.address, command.key) = (memory.address(), memory.key());
    for add in [40u64, 2] {
        let buffer = Some(a.buffer([0u64.to_le_bytes(), add.to_le_bytes()].concat()));
        let work = DeferredWork::Post { endpoint: a.endpoint.clone(), command, buffer };
        raw::defer(&a.domain, &go, add, Deferred { work, completion_counter: Some(done.clone()) }).unwrap();
    }
    go.set(10);
    assert_eq!(world.good(&a).value::<u64>().unwrap(), 0);
    go.set(40);
    assert_eq!(world.good(&a).value::<u64>().unwrap(), 2);
    assert_eq!(done.read(), (2, 0));
    // An end that is an error is counted as one.
    let (go, done) = (a.domain.counter(), a.domain.counter());
    command.key ^= 1;
    let work = DeferredWork::Post { endpoint: a.endpoint.clone(), command, buffer: Some(a.buffer(vec![0; 16])) };
    raw::defer(&a.domain, &go, 0, Deferred { work, completion_counter: Some(done.clone()) }).unwrap();
    let failed = world.next(&a);
    assert_eq!((failed.context, failed.result), (19, Err(Failure::AccessRefused)));
    assert_eq!(done.read(), (0, 1));
}

pub(crate) fn deferred_work_waits_for_room(world: &World) {
    // A queue of eight, and no more than that under way.
    let a = world.node_with(8, |config| config.commands_max = 16);
    let b = world.node();
    let to_b = a.knows(&b);
    let (go, done) = (a.domain.counter(), a.domain.counter());
    for index in 0..60u64 {
        let work = send(&a, to_b, index, pattern(index, 40 * index as usize));
        raw::defer(&a.domain, &go, 1, Deferred { work, completion_counter: Some(done.clone()) }).unwrap();
        b.endpoint.receive(b.buffer(vec![0; 3000])).unwrap();
    }
    go.add(1);
    world.idle(50);
    assert!(raw::deferred(&a.domain) > 0, "some must wait");
    let mut contexts: Vec<u64> = world.goods(&a, 60).iter().map(|completion| completion.context).collect();
    contexts.sort_unstable();
    assert!(contexts.into_iter().eq(0..60));
    // They are matched in order; what a bad way cut in several packets may be complete later.
    let mut received = world.goods(&b, 60);
    received.sort_by_key(|received| received.context);
    for (index, received) in (0..60u64).zip(received) {
        assert_eq!(received.into_bytes().unwrap(), pattern(index, 40 * index as usize), "in order: {index}");
    }
    assert_eq!((raw::deferred(&a.domain), done.read()), (0, (60, 0)));
}

pub(crate) fn deferred_work_is_taken_back(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let counter = a.domain.counter();
    let ids = [1, 2, 3].map(|context| defer(&a, &counter, 1, send(&a, to_b, context, vec![context as u8; 4])));
    let withdrawn = raw::cancel_deferred(&a.domain, ids[1]).unwrap();
    assert_eq!((withdrawn.id, withdrawn.context, withdrawn.buffer.unwrap().len()), (ids[1], 2, 4));
    assert!(raw::cancel_deferred(&a.domain, ids[1]).is_none());
    b.endpoint.receive(b.buffer(vec![0; 4])).unwrap();
    b.endpoint.receive(b.buffer(vec![0; 4])).unwrap();
    counter.add(1);
    assert_eq!(world.good(&b).into_bytes().unwrap(), [1; 4]);
    assert_eq!(world.good(&b).into_bytes().unwrap(), [3; 4]);
    world.goods(&a, 2);
    assert!(raw::cancel_deferred(&a.domain, ids[0]).is_none(), "it was posted");

    // All of it.
    defer(&a, &counter, 9, send(&a, to_b, 4, vec![4]));
    defer(&a, &counter, 8, DeferredWork::Add { counter: counter.clone(), value: 1 });
    let mut contexts: Vec<u64> = raw::flush_deferred(&a.domain).iter().map(|withdrawn| withdrawn.context).collect();
    contexts.sort_unstable();
    assert_eq!((contexts, raw::deferred(&a.domain)), (vec![0, 4], 0));

    // With the counter that it waits for, the one that it changes, or its endpoint.
    let other = a.domain.counter();
    defer(&a, &other, 1, send(&a, to_b, 5, vec![5]));
    defer(&a, &counter, 20, DeferredWork::Set { counter: other.clone(), value: 1 });
    let work = send(&a, to_b, 6, vec![6]);
    raw::defer(&a.domain, &counter, 20, Deferred { work, completion_counter: Some(other.clone()) }).unwrap();
    drop(other);
    assert_eq!(raw::deferred(&a.domain), 1, "what it would have counted stays");
    let end = a.domain.endpoint(&a.queue).unwrap();
    let mut command = raw::command(&end, Operation::Send, to_b);
    command.length = 1;
    let work = DeferredWork::Post { endpoint: end.clone(), command, buffer: Some(a.buffer(vec![7])) };
    defer(&a, &counter, 20, work);
    drop(end);
    assert_eq!(raw::deferred(&a.domain), 1);
    b.endpoint.receive(b.buffer(vec![0; 4])).unwrap();
    counter.set(20);
    assert_eq!(world.good(&b).into_bytes().unwrap(), [6]);
    world.good(&a);
    let fresh = a.domain.counter();
    assert_eq!(fresh.read(), (0, 0), "a closed counter's number counts for nobody else");
}

pub(crate) fn deferred_work_is_checked(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let counter = a.domain.counter();
    let refused = |counter: &Counter, work| {
        raw::defer(&a.domain, counter, 1, Deferred { work, completion_counter: None }).unwrap_err()
    };
    let mut command = raw::command(&a.endpoint, Operation::Send, to_b);
    command.length = 9;
    let too_long = DeferredWork::Post { endpoint: a.endpoint.clone(), command, buffer: Some(a.buffer(vec![0; 8])) };
    let error = refused(&counter, too_long);
    assert!(matches!(error.error, Error::Post(PostError::BadBuffer)));
    assert_eq!(error.buffer.unwrap().len(), 8, "the buffer comes back");
    command.peer = weft::PeerId(9999);
    let nobody = DeferredWork::Post { endpoint: a.endpoint.clone(), command, buffer: Some(a.buffer(vec![0; 9])) };
    assert!(matches!(refused(&counter, nobody).error, Error::Post(PostError::NoSuchPeer)));
    let foreign = refused(&b.domain.counter(), send(&a, to_b, 0, vec![1]));
    assert!(matches!(foreign.error, Error::OtherDomain));
    let read_only: &'static [u8] = b"fixed";
    let receive = raw::receive(&a.endpoint, 5);
    let work = DeferredWork::Receive { endpoint: a.endpoint.clone(), receive, buffer: read_only.into() };
    assert!(matches!(refused(&counter, work).error, Error::Post(PostError::BadBuffer)));
    assert_eq!(raw::deferred(&a.domain), 0);

    // A peer that is gone when its time comes.
    let to_nobody = a.domain.addresses().insert(b.domain.endpoint(&b.queue).unwrap().address()).unwrap();
    let done = a.domain.counter();
    let work = send(&a, to_nobody, 31, vec![1; 4]);
    raw::defer(&a.domain, &counter, 1, Deferred { work, completion_counter: Some(done.clone()) }).unwrap();
    assert!(a.domain.addresses().remove(to_nobody));
    counter.add(1);
    let failed = world.next(&a);
    assert_eq!((failed.context, failed.result), (31, Err(Failure::NoSuchEndpoint)));
    assert_eq!(done.read(), (0, 1));
}

pub(crate) fn vectors_and_scattered_atomics_are_deferred(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let memory = b.register(4096, Access::REMOTE).unwrap();
    let range =
        |offset: u64, length: u64| RemoteRange { address: memory.address() + offset, key: memory.key(), length };
    let (go, done) = (a.domain.counter(), a.domain.counter());
    let endpoint = || a.endpoint.clone();
    let start = |threshold: u64, work| {
        let deferred = Deferred { work, completion_counter: Some(done.clone()) };
        raw::defer(&a.domain, &go, threshold, deferred).unwrap();
    };
    let mut command = raw::command(&a.endpoint, Operation::Write, to_b);
    (command.length, command.context) = (48, 1);
    let (buffer, ranges) = (a.buffer(pattern(1, 48)), vec![range(8, 16), range(100, 0), range(1000, 32)]);
    start(1, DeferredWork::PostVector { endpoint: endpoint(), command, buffer, ranges });
    (command.operation, command.context) = (Operation::Read, 2);
    let (buffer, ranges) = (a.buffer(vec![0; 48]), vec![range(1000, 32), range(8, 16)]);
    start(2, DeferredWork::PostVector { endpoint: endpoint(), command, buffer, ranges });
    go.add(1);
    assert_eq!(world.good(&a).context, 1);
    let written = [memory.to_vec(8, 16).unwrap(), memory.to_vec(1000, 32).unwrap()].concat();
    assert_eq!(written, pattern(1, 48));
    go.add(1);
    let read = world.good(&a);
    assert_eq!((read.context, done.read()), (2, (2, 0)));
    assert_eq!(read.into_bytes().unwrap(), [&pattern(1, 48)[16..], &pattern(1, 48)[..16]].concat());

    // Atomics whose values lie apart: what is in the buffers when their time comes counts.
    memory.write(0, &[5u64.to_le_bytes(), 6u64.to_le_bytes(), 7u64.to_le_bytes()].concat()).unwrap();
    let numbers = |numbers: &[u64]| Some(a.buffer(numbers.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>()));
    let mut command = raw::command(&a.endpoint, Operation::FetchAtomic, to_b);
    command.atomic = raw::AtomicCall::new(weft::AtomicOperation::Sum, weft::Datatype::Uint64, 2);
    command.context = 3;
    let (operands, results) = (numbers(&[10, 20]), numbers(&[0, 0]));
    let ranges = vec![range(0, 8), range(16, 8)];
    start(3, DeferredWork::PostAtomic { endpoint: endpoint(), command, operands, compares: None, results, ranges });
    (command.operation, command.context) = (Operation::CompareAtomic, 4);
    command.atomic = raw::AtomicCall::new(weft::AtomicOperation::SwapIfEqual, weft::Datatype::Uint64, 2);
    let (operands, compares, results) = (numbers(&[100, 200]), numbers(&[6, 0]), numbers(&[0, 0]));
    let ranges = vec![range(8, 16)];
    start(4, DeferredWork::PostAtomic { endpoint: endpoint(), command, operands, compares, results, ranges });
    for (step, before, after) in [(3, [5u64, 7], [15u64, 6, 27]), (4, [6, 27], [15, 100, 27])] {
        go.add(1);
        let fetched = world.good(&a);
        let mut values = fetched.values::<u64>().unwrap();
        values.truncate(2);
        assert_eq!((fetched.context, values.as_slice()), (step, before.as_slice()));
        assert_eq!(memory.to_vec(0, 24).unwrap(), after.map(u64::to_le_bytes).concat());
    }
    assert_eq!(done.read(), (4, 0));
    // What does not fit together is refused.
    let (operands, results) = (numbers(&[1]), numbers(&[0, 0]));
    command.operation = Operation::FetchAtomic;
    command.atomic = raw::AtomicCall::new(weft::AtomicOperation::Sum, weft::Datatype::Uint64, 2);
    let ranges = vec![range(8, 16)];
    let work = DeferredWork::PostAtomic { endpoint: endpoint(), command, operands, compares: None, results, ranges };
    let refused = raw::defer(&a.domain, &go, 1, Deferred { work, completion_counter: None }).unwrap_err();
    assert!(matches!(refused.error, Error::Post(PostError::BadBuffer)));
}

pub(crate) fn writes_of_peers_trigger_work(world: &World) {
    let (a, b, to_b, to_a) = world.pair();
    let memory = b.register(200_000, Access::REMOTE).unwrap();
    let written = b.domain.counter();
    memory.count(Some(written.clone()), None).unwrap();
    // When all three are there, what they wrote goes on, straight from the memory they wrote to.
    let mut command = raw::command(&b.endpoint, Operation::Send, to_a);
    command.length = 200_000;
    let buffer = Some(memory.buffer(0, 200_000).unwrap());
    defer(&b, &written, 3, DeferredWork::Post { endpoint: b.endpoint.clone(), command, buffer });
    a.endpoint.receive(a.buffer(vec![0; 200_000])).unwrap();
    for (offset, length) in [(0u64, 100_000), (100_000, 99_000), (199_000, 1000)] {
        a.endpoint.write(to_b, memory.remote().at(offset), a.buffer(pattern(offset, length))).unwrap();
    }
    let ended = world.goods(&a, 4);
    let received = ended.into_iter().find(|ended| ended.kind == weft::CompletionKind::Receive).unwrap();
    let expected = [pattern(0, 100_000), pattern(100_000, 99_000), pattern(199_000, 1000)].concat();
    assert!(received.into_bytes().unwrap() == expected);
    world.good(&b);
}
