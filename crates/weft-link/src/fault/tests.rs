use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::loopback::{self, LoopbackLink};

const COUNT: u32 = 20_000;

/// Sends numbers through a link with these faults; gives what arrives, and the link.
fn run(seed: u64, faults: Faults, on_receive: bool) -> (Vec<Vec<u8>>, FaultCounters) {
    let (a, b) = loopback::pair(1500);
    let (sends, receives) = if on_receive { (Faults::default(), faults) } else { (faults, Faults::default()) };
    let time = Arc::new(AtomicU64::new(0));
    let clock = || {
        let time = Arc::clone(&time);
        move || Time(time.load(Ordering::Relaxed))
    };
    let mut a = Faulty::with_clock(a, seed, sends, Faults::default(), clock());
    let mut b = Faulty::with_clock(b, seed, Faults::default(), receives, clock());
    let to = b.local();
    let mut arrived = Vec::new();
    for first in (0..COUNT).step_by(10) {
        // Ten in one send that is to be cut.
        let bytes: Vec<u8> = (first..first + 10).flat_map(|number| [number.to_be_bytes(); 2].concat()).collect();
        let pieces = [Segment::from_slice(&bytes)];
        assert_eq!(
            a.send(&[Outgoing { path: to.into(), pieces: &pieces, segment_bytes: 8, class: 0, may_fragment: false }])
                .unwrap(),
            1
        );
        while b.receive(&mut |incoming| arrived.push(incoming.bytes.to_vec())).unwrap() > 0 {}
    }
    time.store(u64::MAX, Ordering::Relaxed);
    a.send(&[]).unwrap();
    while b.receive(&mut |incoming| arrived.push(incoming.bytes.to_vec())).unwrap() > 0 {}
    let counters = if on_receive { b.received() } else { a.sent() };
    (arrived, counters)
}

fn expected() -> Vec<Vec<u8>> {
    (0..COUNT).map(|number| [number.to_be_bytes(); 2].concat()).collect()
}

/// Within a tenth of the rate: far more than chance moves it over so many datagrams, and the seed is fixed anyway.
fn about(count: u64, rate: f64) {
    let wanted = f64::from(COUNT) * rate;
    assert!((count as f64 - wanted).abs() < wanted * 0.1, "{count} of {wanted}");
}

#[test]
fn without_faults_nothing_changes() {
    for on_receive in [false, true] {
        let (arrived, counters) = run(1, Faults::default(), on_receive);
        assert_eq!(arrived, expected());
        assert_eq!(counters, FaultCounters { datagrams: u64::from(COUNT), ..FaultCounters::default() });
    }
}

#[test]
fn loss_has_its_rate_and_its_seed() {
    for on_receive in [false, true] {
        let faults = Faults { loss: 0.1, ..Faults::default() };
        let (arrived, counters) = run(7, faults, on_receive);
        about(counters.lost, 0.1);
        assert_eq!(arrived.len() as u64, u64::from(COUNT) - counters.lost);
        assert!(arrived.is_sorted());
        assert_eq!(run(7, faults, on_receive).0, arrived);
        assert_ne!(run(8, faults, on_receive).0, arrived);
    }
    let (arrived, _) = run(7, Faults { loss: 1.0, ..Faults::default() }, false);
    assert!(arrived.is_empty());
}

#[test]
fn duplicates_come_twice() {
    let (mut arrived, counters) = run(2, Faults { duplicate: 0.2, ..Faults::default() }, false);
    about(counters.duplicated, 0.2);
    assert_eq!(arrived.len() as u64, u64::from(COUNT) + counters.duplicated);
    arrived.dedup();
    assert_eq!(arrived, expected());
}

#[test]
fn reordered_ones_are_overtaken_by_as_many_as_told() {
    let faults = Faults { reorder: 0.1, reorder_by: 7, ..Faults::default() };
    let (mut arrived, counters) = run(3, faults, false);
    about(counters.reordered, 0.1);
    assert!(!arrived.is_sorted());
    for (place, datagram) in arrived.iter().enumerate() {
        let number = u32::from_be_bytes(*datagram.first_chunk().unwrap());
        // A send is cut into ten, and what is held is looked at after each send.
        assert!(place.abs_diff(number as usize) <= 7 + 10, "{number} came at {place}");
    }
    arrived.sort();
    assert_eq!(arrived, expected());
}

#[test]
fn corruption_changes_a_few_bits() {
    let (arrived, counters) = run(4, Faults { corrupt: 0.3, ..Faults::default() }, true);
    about(counters.corrupted, 0.3);
    let flips = |(a, b): (&Vec<u8>, &Vec<u8>)| a.iter().zip(b).map(|(a, b)| (a ^ b).count_ones()).sum::<u32>();
    let damage: Vec<_> = arrived.iter().zip(&expected()).map(flips).collect();
    assert!(damage.iter().all(|flips| *flips <= 4));
    assert_eq!(damage.iter().filter(|flips| **flips > 0).count() as u64, counters.corrupted);
}

#[test]
fn delay_waits_for_the_clock() {
    let (a, mut b) = loopback::pair(1500);
    let time = Arc::new(AtomicU64::new(0));
    let clock = Arc::clone(&time);
    let faults = Faults { delay_us: 100, ..Faults::default() };
    let mut a: Faulty<LoopbackLink> =
        Faulty::with_clock(a, 5, faults, Faults::default(), move || Time(clock.load(Ordering::Relaxed)));
    let pieces = [Segment::from_slice(b"late")];
    a.send(&[Outgoing { path: (b.local()).into(), pieces: &pieces, segment_bytes: 0, class: 0, may_fragment: false }])
        .unwrap();
    for (micros, arrives) in [(0, 0), (99, 0), (100, 1), (101, 0)] {
        time.store(micros * 1000, Ordering::Relaxed);
        // Receiving moves what is sent, too.
        a.receive(&mut |_| panic!("nothing was sent here")).unwrap();
        assert_eq!(b.receive(&mut |incoming| assert_eq!(incoming.bytes, b"late")).unwrap(), arrives);
    }
}

#[test]
fn too_big_is_told_as_the_link_inside_would() {
    let (a, b) = loopback::pair(1500);
    let mut a = Faulty::new(a, 6, Faults::default(), Faults::default());
    let bytes = [0; 1501];
    let pieces = [Segment::from_slice(&bytes)];
    let to = b.local();
    let sent =
        a.send(&[Outgoing { path: to.into(), pieces: &pieces, segment_bytes: 0, class: 0, may_fragment: false }]);
    assert!(matches!(sent, Err(SendError::TooBig { path: told }) if told == to.into()));
    assert_eq!(a.sent().datagrams, 0);
}
