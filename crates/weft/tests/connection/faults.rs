//! What goes wrong.

use std::time::Duration;

use weft::connection::{ConnectFailure, Event, Settings};
use weft::{Address, Level, Options, Road};

use crate::support::World;

pub(crate) fn nobody_listens(world: &World) {
    let a = world.node();
    // A NIC where nobody listens, and no NIC at all.
    let empty = world.domain();
    let nobody = Address { socket: empty.local(), endpoint: 0x1234_5678 };
    let _asking = a.manager.connect(&a.endpoint(), nobody, 1, b"").unwrap();
    let failure = ConnectFailure::NobodyListens;
    assert_eq!(world.event(&a), Event::Failed { context: 1, failure });

    // The host of the one that is not there says so, long before the engine's patience ends.
    // A connected socket hears its peer only, which is itself, and keeps the port from other tests.
    let nobody = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let socket = nobody.local_addr().unwrap();
    nobody.connect(socket).unwrap();
    let end = a.endpoint();
    let asking = a.manager.connect(&end, Address { socket, endpoint: 0 }, 2, b"").unwrap();
    assert_eq!(world.event(&a), Event::Failed { context: 2, failure });
    assert_eq!(a.domain.statistics().absent, 1);
    // The endpoint is as good as before.
    drop(asking);
    let (listener, b) = (world.listener(), world.node());
    let _asking = a.manager.connect(&end, listener.address(), 3, b"").unwrap();
    let _accepting = b.manager.accept(world.request(&listener), &b.endpoint(), 4, b"").unwrap();
    assert!(matches!(world.event(&a), Event::Connected { context: 3, .. }));
    assert!(matches!(world.event(&b), Event::Connected { context: 4, .. }));
}

/// Somebody has the port, and does not answer: nobody says anything about it.
pub(crate) fn silence_is_unreachable(world: &World) {
    let settings = Settings { patience: Some(Duration::from_millis(300)) };
    let quick = world.node_with(world.domain_with(|config| config.give_up_us = 110_000), settings);
    let mute = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let socket = mute.local_addr().unwrap();
    let _asking = quick.manager.connect(&quick.endpoint(), Address { socket, endpoint: 0 }, 2, b"").unwrap();
    let failure = ConnectFailure::Unreachable;
    assert_eq!(world.event(&quick), Event::Failed { context: 2, failure });
}

pub(crate) fn a_closed_listener_rejects(world: &World) {
    let (listener, a, b) = (world.listener(), world.node(), world.node());
    let ends: Vec<_> = (0..5).map(|_| a.endpoint()).collect();
    let ask = |context: usize| a.manager.connect(&ends[context], listener.address(), context as u64, b"").unwrap();
    let _asking: Vec<_> = (0..3).map(ask).collect();
    let first = world.request(&listener);
    let taken = first.endpoint();
    let address = listener.address();
    world.until(|| {
        let _ = listener.try_wait().unwrap();
        (listener.statistics().requests == 3).then_some(())
    });
    drop(listener);
    let mut refused = Vec::new();
    while refused.len() < 2 {
        match world.event(&a) {
            Event::Refused { context, .. } | Event::Failed { context, .. } => refused.push(context),
            other => panic!("{other:?}"),
        }
    }
    // Who comes later is not left waiting, though the one that was taken keeps the NIC open.
    let _late = a.manager.connect(&ends[4], address, 4, b"").unwrap();
    let failure = ConnectFailure::NobodyListens;
    assert_eq!(world.event(&a), Event::Failed { context: 4, failure });
    // The one that was taken can still be accepted.
    let end = b.endpoint();
    let _accepting = b.manager.accept(first, &end, 9, b"").unwrap();
    let event = world.event(&a);
    let Event::Connected { context, .. } = event else { panic!("{event:?} after {refused:?}") };
    assert!(!refused.contains(&context));
    assert_eq!(ends[context as usize].address(), taken);
    // Now it is gone.
    let _asking = a.manager.connect(&ends[3], address, 3, b"").unwrap();
    assert!(matches!(world.event(&a), Event::Failed { context: 3, failure: ConnectFailure::NobodyListens }));
}

pub(crate) fn a_closed_listener_can_still_reject(world: &World) {
    let (listener, a) = (world.listener(), world.node());
    let ends = [a.endpoint(), a.endpoint()];
    let ask = |context: usize| a.manager.connect(&ends[context], listener.address(), context as u64, b"").unwrap();
    let _asking: Vec<_> = (0..2).map(ask).collect();
    // One is held, which keeps the NIC open until the other has heard.
    let (held, request) = (world.request(&listener), world.request(&listener));
    let context = ends.iter().position(|end| end.address() == request.endpoint()).unwrap() as u64;
    drop(listener);
    request.reject(b"sorry").unwrap();
    assert_eq!(world.event(&a), Event::Refused { context, data: b"sorry".to_vec() });
    drop(held);
}

pub(crate) fn time_passes(world: &World) {
    let settings = Settings { patience: Some(Duration::from_millis(30)) };
    let (listener, b) = (world.listener(), world.node());
    let a = world.node_with(world.domain(), settings);
    let end = a.endpoint();
    let asking = a.manager.connect(&end, listener.address(), 1, b"").unwrap();
    let request = world.request(&listener);
    // It also wakes who sleeps.
    let event = a.manager.wait(Some(crate::support::PATIENCE)).unwrap().unwrap();
    // If it is late enough, the news that the listener has the request come later.
    let failures = [ConnectFailure::TimedOut, ConnectFailure::Unreachable];
    assert!(failures.iter().any(|&failure| event == Event::Failed { context: 1, failure }), "{event:?}");
    // Who says yes too late hears that.
    let accepting = b.manager.accept(request, &b.endpoint(), 2, b"").unwrap();
    assert_eq!(world.event_beside(&b, &a), Event::Failed { context: 2, failure: ConnectFailure::Withdrawn });
    assert!(!asking.is_connected() && !accepting.is_connected());
}

pub(crate) fn closed_while_connecting(world: &World) {
    let (listener, a, b) = (world.listener(), world.node(), world.node());
    // Before anybody has heard of it, and after.
    for wait in [false, true] {
        let asking = a.manager.connect(&a.endpoint(), listener.address(), 1, b"").unwrap();
        let mut request = None;
        if wait {
            request = Some(world.request(&listener));
        }
        drop(asking);
        let request = request.unwrap_or_else(|| world.request(&listener));
        let accepting = b.manager.accept(request, &b.endpoint(), 2, b"").unwrap();
        assert_eq!(world.event_beside(&b, &a), Event::Failed { context: 2, failure: ConnectFailure::Withdrawn });
        drop(accepting);
    }
    // A rejection that nobody waits for is no matter.
    let asking = a.manager.connect(&a.endpoint(), listener.address(), 1, b"").unwrap();
    let request = world.request(&listener);
    asking.shutdown();
    request.reject(b"no").unwrap();
    world.assert_silence(&[&a, &b]);
}

pub(crate) fn shut_down_before_the_confirmation(world: &World) {
    let (listener, a, b) = (world.listener(), world.node(), world.node());
    let asking = a.manager.connect(&a.endpoint(), listener.address(), 1, b"").unwrap();
    let accepting = b.manager.accept(world.request(&listener), &b.endpoint(), 2, b"").unwrap();
    accepting.shutdown();
    // The shutdown may overtake the acceptance.
    let mut event = world.event_beside(&a, &b);
    if matches!(event, Event::Connected { context: 1, .. }) {
        event = world.event_beside(&a, &b);
        assert_eq!(event, Event::Shutdown { context: 1 });
    } else {
        assert_eq!(event, Event::Failed { context: 1, failure: ConnectFailure::Withdrawn });
    }
    drop((asking, accepting));
    world.assert_silence(&[&a, &b]);
}

pub(crate) fn garbage_is_ignored(world: &World) {
    let (listener, a, b) = (world.listener(), world.node(), world.node());
    let pair = world.pair(&listener, &a, &b, [1, 2]);
    let stranger = world.node();
    let end = stranger.endpoint();
    let to_listener = stranger.domain.addresses().insert(listener.address()).unwrap();
    let mut sent = 0;
    let mut random = 0x1234_5678_9abc_def1u64;
    let mut throw = |bytes: Vec<u8>| {
        let options = Options { level: Level::Delivered, ..Options::default() };
        end.send_with(to_listener, bytes, options).unwrap();
        // As long as it takes; a receive that was too short is the sender's business.
        world.until(|| {
            assert!(listener.poll().unwrap().is_none());
            stranger.queue.read().unwrap()
        });
        sent += 1;
    };
    for length in [0, 1, 31, 32, 33, 288, 289, 5000, 300_000] {
        throw(vec![0x57; length]);
    }
    for kind in 0..=7u8 {
        for length in [0u8, 4, 255] {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let mut bytes = b"WFCM\x01".to_vec();
            bytes.extend([kind, 0, 0]);
            // No request: those have no token of the receiver.
            bytes.extend(random.to_be_bytes());
            bytes.extend(random.rotate_left(32).to_be_bytes());
            bytes.extend([0, 0, 0, 0, 0, length, 0, 0]);
            bytes.extend(std::iter::repeat_n(kind, length.into()));
            throw(bytes);
        }
    }
    let ignored = world.until(|| {
        assert!(listener.poll().unwrap().is_none());
        let ignored = listener.statistics().ignored;
        // Accepts of what nobody asked for are answered.
        (ignored >= sent - 3).then_some(ignored)
    });
    assert!(ignored <= sent);
    world.talk(&a, &b, &pair, b"undisturbed");
    let _again = world.pair(&listener, &a, &b, [3, 4]);
}

pub(crate) fn a_reported_loss_is_a_shutdown(world: &World) {
    let (listener, a, b) = (world.listener(), world.node(), world.node());
    let pair = world.pair(&listener, &a, &b, [1, 2]);
    pair.a.1.lost();
    pair.a.1.lost();
    assert_eq!(world.event_beside(&a, &b), Event::Shutdown { context: 1 });
    world.assert_silence(&[&a]);
}

pub(crate) fn a_manager_that_closes_says_so(world: &World) {
    let (listener, a, b) = (world.listener(), world.node(), world.node());
    let pairs: Vec<_> = (0..5).map(|context| world.pair(&listener, &a, &b, [context, context])).collect();
    let mut keep = Vec::new();
    for pair in pairs {
        keep.push(pair.a);
    }
    world.forget(&b.domain);
    let closing = std::thread::spawn(move || drop(b));
    for _ in 0..5 {
        assert!(matches!(world.event(&a), Event::Shutdown { .. }));
    }
    closing.join().unwrap();
}

/// The road matters here, and progress: see the documentation of the module.
fn death_is_noticed(road: Road, progress: weft::Progress) {
    let world = World::new(road, progress);
    let quick = || world.quick_node(5);
    let (listener, a, b, c) = (world.listener(), quick(), quick(), quick());
    let dying: Vec<_> = (0..5).map(|context| world.pair(&listener, &a, &b, [context, context])).collect();
    let living = world.pair(&listener, &a, &c, [100, 100]);
    world.forget(&b.domain);
    b.domain.abandon();
    for _ in 0..5 {
        let event = world.event(&a);
        assert!(matches!(event, Event::Shutdown { context: 0..5 }), "{event:?}");
    }
    world.talk(&a, &c, &living, b"undisturbed");
    world.assert_silence(&[&a, &c]);
    drop(dying);
}

#[test]
fn death_is_noticed_on_the_same_machine() {
    death_is_noticed(Road::Automatic, weft::Progress::Manual);
    death_is_noticed(Road::Automatic, weft::Progress::Automatic);
}

#[test]
fn death_is_noticed_by_packets() {
    death_is_noticed(Road::Packets, weft::Progress::Automatic);
}

/// A listener that dies while its user thinks.
#[test]
fn a_dead_listener_is_noticed() {
    let world = World::new(Road::Automatic, weft::Progress::Automatic);
    let (listener, a) = (world.listener(), world.node());
    let _asking = a.manager.connect(&a.endpoint(), listener.address(), 1, b"").unwrap();
    let request = world.request(&listener);
    listener.domain().abandon();
    assert_eq!(world.event(&a), Event::Failed { context: 1, failure: ConnectFailure::Unreachable });
    drop(request);
}
