//! Threads that sleep on the same thing.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::time::{Duration, Instant};

use weft::{Domain, EndpointOptions, Fabric, Progress};

use common::patient;

/// Long enough that only a hang reaches it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Each of two threads is woken at its own value, whoever lay down last.
#[test]
fn threads_wait_for_different_values_of_a_counter() {
    let builder = Fabric::new("").unwrap().domain().progress(Progress::Automatic).configure(patient);
    let domain: Domain = builder.udp("127.0.0.1:0").unwrap();
    let received = domain.counter();
    let options = EndpointOptions { receive_counter: Some(received.clone()), ..Default::default() };
    let endpoint = domain.open_endpoint(options).unwrap();
    let myself = domain.addresses().insert(endpoint.address()).unwrap();
    let long = Some(2 * PATIENCE);
    let start = Instant::now();
    std::thread::scope(|scope| {
        let low = received.clone();
        let low = scope.spawn(move || low.wait(1, long));
        // Most often both are asleep when the messages come, the second one last. Either order is right.
        std::thread::sleep(Duration::from_millis(30));
        let high = received.clone();
        let high = scope.spawn(move || high.wait(2, long));
        std::thread::sleep(Duration::from_millis(30));
        endpoint.receive(vec![0; 8]).unwrap();
        endpoint.inject(myself, b"one").unwrap();
        low.join().unwrap().expect("the first value wakes who waits for it");
        endpoint.receive(vec![0; 8]).unwrap();
        endpoint.inject(myself, b"two").unwrap();
        high.join().unwrap().expect("the second too");
    });
    assert!(start.elapsed() < PATIENCE, "somebody slept through it");
}

/// A program that computes for a while, and calls nothing, is not dead to its peers.
#[test]
fn a_thread_stands_in_for_who_stays_away() {
    use weft::{Access, Fabric, Road};
    for road in [Road::Automatic, Road::Packets] {
        for promised in [false, true] {
            let fabric = Fabric::new("away").unwrap();
            let mut builder = fabric.domain().road(road).stand_in().configure(patient);
            if promised {
                // SAFETY: this thread alone calls it.
                builder = builder.single_threaded(unsafe { weft::raw::OneAtATime::promise() });
            }
            let away = builder.udp("127.0.0.1:0").unwrap();
            let queue = away.completion_queue(16);
            let endpoint = away.endpoint(&queue).unwrap();
            let region = away.register(vec![0; 64], Access::REMOTE).unwrap();
            endpoint.receive(vec![0; 8]).unwrap();

            // From here on only the peer does anything.
            let here = fabric.domain().road(road).configure(patient).udp("127.0.0.1:0").unwrap();
            let here_queue = here.completion_queue(16);
            let sender = here.endpoint(&here_queue).unwrap();
            let to = here.addresses().insert(endpoint.address()).unwrap();
            for round in 0..20u8 {
                sender.write(to, region.remote(), vec![round; 64]).unwrap();
                here_queue.wait(None).unwrap().unwrap().ok().unwrap();
            }
            sender.send(to, b"and this".to_vec()).unwrap();
            here_queue.wait(None).unwrap().unwrap().ok().unwrap();
            assert_eq!(region.to_vec(0, 64).unwrap(), [19; 64]);
            assert_eq!(queue.wait(None).unwrap().unwrap().into_bytes().unwrap(), b"and this");
        }
    }
}
