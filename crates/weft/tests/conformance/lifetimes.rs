//! Memory and handles: nothing is used after its end, whatever the program does.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use weft::{Access, EndpointKind, EndpointOptions, Error, Failure, Options, Progress, ReceiveOptions};

use crate::support::{World, pattern};

pub(crate) fn scopes_send_and_receive(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let memory = b.register(pattern(9, 300_000), Access::REMOTE).unwrap();
    for length in [0usize, 10, 5000, 300_000] {
        let bytes = pattern(1, length);
        let (mut whole, mut read) = (vec![0; length], vec![0; length]);
        let mut parts = [vec![0; length / 3], vec![0; length - length / 3]];
        a.endpoint.scope(|sender| {
            b.endpoint.scope(|receiver| {
                receiver.receive(&mut whole).unwrap();
                receiver.receive_list(parts.iter_mut().map(Vec::as_mut_slice), ReceiveOptions::default()).unwrap();
                sender.send(to_b, &bytes).unwrap();
                let (front, back) = bytes.split_at(length / 2);
                sender.send_list(to_b, &[front, back], Options::default()).unwrap();
                sender.read(to_b, memory.remote(), &mut read, Options::default()).unwrap();
                sender.write(to_b, memory.remote(), &bytes, Options { fence: true, ..Default::default() }).unwrap();
                world.until("all loans", || {
                    let short = Some(Duration::from_micros(10));
                    (sender.wait(short).is_ok() && receiver.wait(short).is_ok()).then_some(())
                });
            });
        });
        assert!(whole == bytes && parts.concat() == bytes);
        assert!(memory.to_vec(0, length).unwrap() == bytes);
        for completion in world.goods(&a, 4).iter().chain(&world.goods(&b, 2)) {
            assert!(completion.buffer.is_none(), "what was borrowed is with its owner");
        }
        memory.write(0, &pattern(9, 300_000)).unwrap();
        assert!(read == pattern(9, length) || length == 0);
    }
}

pub(crate) fn leaving_a_scope_cancels(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let mut buffer = [7; 64];
    let context = b.endpoint.scope(|scope| scope.receive(&mut buffer).unwrap());
    let cancelled = b.queue.read().unwrap().unwrap();
    assert_eq!((cancelled.context, cancelled.result), (context, Err(Failure::Cancelled)));
    buffer.fill(8);
    // By an early return too.
    let early: Result<(), Error> = b.endpoint.scope(|scope| {
        scope.receive(&mut buffer)?;
        Err(Error::TimedOut)
    });
    assert!(early.is_err());
    assert!(b.queue.read().unwrap().is_some());
    // The receive is gone: a message that comes later does not touch the buffer.
    b.endpoint.receive(b.buffer(vec![0; 64])).unwrap();
    a.endpoint.send(to_b, a.buffer(vec![9; 64])).unwrap();
    assert_eq!(world.good(&b).into_bytes().unwrap(), [9; 64]);
    assert_eq!(buffer, [8; 64]);
}

pub(crate) fn a_panic_in_a_scope_is_safe(world: &World) {
    let (_a, b, ..) = world.pair();
    let mut buffer = vec![7; 64];
    let result = catch_unwind(AssertUnwindSafe(|| {
        b.endpoint.scope(|scope| {
            scope.receive(&mut buffer).unwrap();
            panic!("on purpose");
        })
    }));
    assert!(result.is_err());
    assert_eq!(b.queue.read().unwrap().unwrap().result, Err(Failure::Cancelled));
    assert_eq!(b.domain.state().receives, 0);
}

pub(crate) fn scopes_leave_completions_to_be_read(world: &World) {
    let (a, b, to_b, _) = world.pair();
    // Completions of others come out in their order, with their buffers, though a scope took them aside.
    b.endpoint.receive(b.buffer(vec![0; 8])).unwrap();
    a.endpoint.send(to_b, a.buffer(vec![1; 8])).unwrap();
    world.good(&a);
    let mut buffer = [0; 8];
    b.endpoint.scope(|scope| {
        scope.receive(&mut buffer).unwrap();
        a.endpoint.send(to_b, a.buffer(vec![2; 8])).unwrap();
        world.until("both", || scope.wait(Some(Duration::from_micros(10))).ok());
    });
    assert_eq!(buffer, [2; 8]);
    assert_eq!(world.good(&b).into_bytes().unwrap(), [1; 8]);
    assert!(world.good(&b).buffer.is_none());
    assert!(b.queue.read().unwrap().is_none());
}

pub(crate) fn a_quiet_end_tells_nothing(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let counter = a.domain.counter();
    let options = EndpointOptions {
        quiet_close: true,
        send_counter: Some(counter.clone()),
        receive_counter: Some(counter.clone()),
        ..EndpointOptions::with_queue(EndpointKind::Reliable, &a.queue)
    };
    let other = a.domain.open_endpoint(options).unwrap();
    let to_other = b.domain.addresses().insert(other.address()).unwrap();
    // What was done before is told.
    other.receive(a.buffer(vec![0; 8])).unwrap();
    b.endpoint.send(to_other, b.buffer(vec![1; 8])).unwrap();
    world.good(&b);
    world.until("received", || (counter.value() == 1).then_some(()));
    for tag in 0..3 {
        other.receive(a.buffer(vec![0; 8])).unwrap();
        other.tagged_receive(tag, 0, a.buffer(vec![0; 8])).unwrap();
        other.send(to_b, a.buffer(vec![0; 500_000])).unwrap();
    }
    let several = ReceiveOptions { multi: Some(8), ..Default::default() };
    other.receive_with(a.buffer(vec![0; 64]), several).unwrap();
    drop(other);
    assert_eq!(world.good(&a).into_bytes().unwrap(), [1; 8]);
    world.idle(50);
    assert!(a.queue.read().unwrap().is_none());
    assert_eq!((counter.value(), counter.errors()), (1, 0));
    world.until("nothing is left", || (a.domain.state().receives == 0 && a.domain.state().commands == 0).then_some(()));
    // Its places in the queue are free again: another endpoint can use them all.
    for _ in 0..3 {
        b.endpoint.receive(b.buffer(vec![0; 8])).unwrap();
        a.endpoint.send(to_b, a.buffer(vec![2; 8])).unwrap();
        world.good(&a);
    }
}

pub(crate) fn closing_an_endpoint_ends_its_operations(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let other = a.domain.endpoint(&a.queue).unwrap();
    let received = other.receive(a.buffer(vec![0; 8])).unwrap();
    let sent = other.send(to_b, a.buffer(vec![0; 500_000])).unwrap();
    drop(other);
    let mut ended = [world.next(&a), world.next(&a)].map(|completion| {
        assert!(completion.buffer.is_some());
        (completion.context, completion.result)
    });
    ended.sort_unstable_by_key(|(context, _)| *context);
    assert!(matches!(ended[0], (context, Err(Failure::Cancelled | Failure::Closed)) if context == received));
    assert_eq!(ended[1], (sent, Err(Failure::Closed)));
    // The other endpoints of both nodes go on.
    b.endpoint.receive(b.buffer(vec![0; 8])).unwrap();
    a.endpoint.send(to_b, a.buffer(vec![1; 8])).unwrap();
    world.good(&a);
    let mut next = world.next(&b);
    if next.result.is_err() {
        // It was matched with the message whose sender is gone.
        b.endpoint.receive(b.buffer(vec![0; 8])).unwrap();
        next = world.next(&b);
    }
    assert_eq!(next.into_bytes().unwrap(), [1; 8]);
}

pub(crate) fn dropped_buffers_live_until_they_are_done(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let shared: std::sync::Arc<[u8]> = pattern(1, 300_000).into();
    a.endpoint.send_with(to_b, shared.clone(), Options { silent: true, ..Default::default() }).unwrap();
    assert_eq!(std::sync::Arc::strong_count(&shared), 2);
    b.endpoint.receive(b.buffer(vec![0; 300_000])).unwrap();
    assert!(world.good(&b).into_bytes().unwrap() == *shared);
    world.until("given back", || (std::sync::Arc::strong_count(&shared) == 1).then_some(()));
}

pub(crate) fn handles_keep_things_open(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let crate::support::Node { domain, queue, endpoint, .. } = a;
    drop(domain);
    let clone = endpoint.clone();
    drop(endpoint);
    b.endpoint.receive(b.buffer(vec![0; 8])).unwrap();
    clone.send(to_b, vec![1; 8]).unwrap();
    world.good(&b);
    let done = world.until("completion", || queue.read().unwrap());
    assert!(done.result.is_ok());
    drop(queue);
    clone.inject(to_b, &[2; 8]).unwrap();
    drop(clone);
    // Closed after what was injected is on its way.
    b.endpoint.receive(b.buffer(vec![0; 8])).unwrap();
    if world.progress() == Progress::Automatic {
        assert_eq!(world.good(&b).into_bytes().unwrap(), [2; 8]);
    }
}

pub(crate) fn forgotten_scope_results(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let bytes = pattern(1, 64);
    // Completions that nobody reads keep nobody from leaving.
    a.endpoint.scope(|scope| {
        for _ in 0..10 {
            scope.send(to_b, &bytes).unwrap();
        }
        world.until("all", || scope.wait(Some(Duration::from_micros(10))).ok());
    });
    std::mem::forget(world.good(&a));
    drop(a);
    drop(b);
}

pub(crate) fn long_sends_that_nobody_fetches_can_be_left(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let bytes = pattern(1, 1 << 20);
    let context = a.endpoint.scope(|scope| {
        let context = scope.send(to_b, &bytes).unwrap();
        // Its announcement arrives, and nobody is there to receive it.
        world.until("announced", || (b.domain.state().unexpected == 1).then_some(()));
        context
    });
    let ended = world.next(&a);
    assert_eq!((ended.context, ended.result), (context, Err(Failure::Cancelled)));
    // Who receives it too late is told, unless it was taken back before, and goes on.
    b.endpoint.receive(b.buffer(vec![0; 1 << 20])).unwrap();
    a.endpoint.send(to_b, a.buffer(vec![1; 8])).unwrap();
    let mut received = world.next(&b);
    if received.result.is_err() {
        b.endpoint.receive(b.buffer(vec![0; 8])).unwrap();
        received = world.good(&b);
    }
    assert_eq!(received.into_bytes().unwrap(), [1; 8]);
}

pub(crate) fn leaving_after_the_last_message(world: &World) {
    let (a, b, to_b, _) = world.pair();
    if world.is_faulty() {
        return; // a lost acknowledgement cannot be sent again by who is gone
    }
    b.endpoint.receive(b.buffer(vec![0; 8])).unwrap();
    a.endpoint.send(to_b, a.buffer(vec![1; 8])).unwrap();
    let received = world.until("message", || b.queue.read().unwrap());
    assert_eq!(received.into_bytes().unwrap(), [1; 8]);
    world.forget(&b.domain);
    drop(b);
    assert!(world.next(&a).result.is_ok(), "the acknowledgement came before the end");
}
