//! Threads that sleep on the same thing.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::{Duration, Instant};

use weft::{Domain, EndpointOptions, Fabric, Progress};

/// Each of two threads is woken at its own value, whoever lay down last.
#[test]
fn threads_wait_for_different_values_of_a_counter() {
    let domain: Domain = Fabric::new("").unwrap().domain().progress(Progress::Automatic).udp("127.0.0.1:0").unwrap();
    let received = domain.counter();
    let options = EndpointOptions { receive_counter: Some(received.clone()), ..Default::default() };
    let endpoint = domain.open_endpoint(options).unwrap();
    let myself = domain.addresses().insert(endpoint.address()).unwrap();
    let long = Some(Duration::from_secs(20));
    let start = Instant::now();
    std::thread::scope(|scope| {
        let low = received.clone();
        let low = scope.spawn(move || low.wait(1, long));
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
    assert!(start.elapsed() < Duration::from_secs(10), "somebody slept through it");
}
