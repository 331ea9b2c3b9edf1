//! Many connections.

use weft::connection::Event;

use crate::support::World;

pub(crate) fn many_connections_at_once(world: &World) {
    let count: usize = 1000;
    let (listener, a, b) = (world.listener(), world.node(), world.node());
    let ends: Vec<_> = (0..count).map(|_| a.endpoint()).collect();
    let mut asking = Vec::new();
    for (context, end) in ends.iter().enumerate() {
        let data = (context as u32).to_be_bytes();
        asking.push(a.manager.connect(end, listener.address(), context as u64, &data).unwrap());
    }
    let (mut accepted, mut to_b) = (Vec::new(), vec![None; count]);
    let (mut at_a, mut at_b) = (0, 0);
    // Patience is for each step, not for all of them.
    let mut step = || {
        let before = (accepted.len(), at_a, at_b);
        if let Some(request) = listener.poll().unwrap() {
            let context = u64::from(u32::from_be_bytes(request.data().try_into().unwrap()));
            let end = b.endpoint();
            accepted.push((b.manager.accept(request, &end, context, b"").unwrap(), end));
        }
        if let Some(event) = a.manager.poll().unwrap() {
            let Event::Connected { context, peer, .. } = event else { panic!("{event:?}") };
            assert_eq!(to_b[context as usize].replace(peer), None);
            at_a += 1;
        }
        if let Some(event) = b.manager.poll().unwrap() {
            assert!(matches!(event, Event::Connected { .. }), "{event:?}");
            at_b += 1;
        }
        ((accepted.len(), at_a, at_b) != before).then_some((at_a, at_b))
    };
    while world.until(&mut step) != (count, count) {}
    assert_eq!(accepted.len(), count);
    // Each one talks to its own.
    for (connection, end) in accepted.iter().step_by(50) {
        end.receive(vec![0; 8]).unwrap();
        let context = connection.context();
        ends[context as usize].inject(to_b[context as usize].unwrap(), &context.to_be_bytes()).unwrap();
        let received = world.until(|| b.queue.read().unwrap()).ok().unwrap();
        assert_eq!(received.source, Some(ends[context as usize].address()));
        assert_eq!(received.into_bytes().unwrap(), context.to_be_bytes());
    }
    drop(accepted);
    let mut ended = vec![false; count];
    for _ in 0..count {
        let event = world.until(|| {
            assert_eq!(b.manager.poll().unwrap(), None);
            a.manager.poll().unwrap()
        });
        let Event::Shutdown { context } = event else { panic!("{event:?}") };
        assert!(!std::mem::replace(&mut ended[context as usize], true));
    }
}

pub(crate) fn many_connections_one_after_the_other(world: &World) {
    let (listener, a, b) = (world.listener(), world.node(), world.node());
    let before = (a.domain.state(), b.domain.state());
    for round in 0..100 {
        let pair = world.pair(&listener, &a, &b, [round, round]);
        if round % 10 == 0 {
            world.talk(&a, &b, &pair, b"round");
        }
        drop(pair.a);
        assert_eq!(world.event(&b), Event::Shutdown { context: round });
    }
    // Nothing is left of them.
    world.until(|| {
        assert_eq!((a.manager.poll().unwrap(), b.manager.poll().unwrap()), (None, None));
        let now = (a.domain.state(), b.domain.state());
        let kept = |state: &weft::State| (state.commands, state.unexpected, state.messages);
        (kept(&now.0) == kept(&before.0) && kept(&now.1) == kept(&before.1)).then_some(())
    });
}

/// Threads share one manager, each with connections of its own, while another one takes the events.
pub(crate) fn many_threads(world: &World) {
    let (listener, a, b) = (world.listener(), world.node(), world.node());
    let to = listener.address();
    let (threads, each) = (4u64, 25u64);
    let accepted = std::thread::scope(|scope| {
        let ask = |thread: u64| {
            let a = &a;
            move || -> Vec<_> {
                let ask = |index| {
                    let end = a.endpoint();
                    (a.manager.connect(&end, to, thread * each + index, b"").unwrap(), end)
                };
                (0..each).map(ask).collect()
            }
        };
        let asking: Vec<_> = (0..threads).map(|thread| scope.spawn(ask(thread))).collect();
        let (mut accepted, mut at_a, mut at_b) = (Vec::new(), 0, 0);
        let mut step = || {
            let before = (accepted.len(), at_a, at_b);
            if let Some(request) = listener.poll().unwrap() {
                let end = b.endpoint();
                accepted.push((b.manager.accept(request, &end, 0, b"").unwrap(), end));
            }
            at_a += u64::from(matches!(a.manager.poll().unwrap(), Some(Event::Connected { .. })));
            at_b += u64::from(matches!(b.manager.poll().unwrap(), Some(Event::Connected { .. })));
            ((accepted.len(), at_a, at_b) != before).then_some((at_a, at_b))
        };
        while world.until(&mut step) != (threads * each, threads * each) {}
        let asking: Vec<_> = asking.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        assert!(asking.iter().all(|(connection, _)| connection.is_connected()));
        // All let go at once.
        let mut parts = asking.into_iter();
        for _ in 0..threads {
            let part: Vec<_> = parts.by_ref().take(each as usize).collect();
            scope.spawn(move || drop(part));
        }
        for _ in 0..threads * each {
            assert!(matches!(world.event_beside(&b, &a), Event::Shutdown { .. }));
        }
        accepted
    });
    drop(accepted);
}
