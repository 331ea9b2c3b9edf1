//! Sockets of both families, and those bound to all addresses of a host.
#![expect(clippy::unwrap_used, reason = "clippy.toml allows them in tests, but not in the functions that tests call")]

mod common;

use std::time::Duration;

use weft::{Access, Fabric, Progress, Road};

use common::patient;

const PATIENCE: Option<Duration> = Some(Duration::from_secs(60));

fn talk(bind: &str, reach: &str) {
    for road in [Road::Packets, Road::Automatic] {
        talk_on(road, bind, reach);
    }
}

fn talk_on(road: Road, bind: &str, reach: &str) {
    let fabric = Fabric::new("addresses").unwrap();
    let make = || fabric.domain().road(road).progress(Progress::Automatic).configure(patient).udp(bind).unwrap();
    let (a, b) = (make(), make());
    let (a_queue, b_queue) = (a.completion_queue(64), b.completion_queue(64));
    let (a_end, b_end) = (a.endpoint(&a_queue).unwrap(), b.endpoint(&b_queue).unwrap());
    let mut address = b_end.address();
    address.socket.set_ip(reach.parse().unwrap());
    // As text and as bytes, the way a program exchanges it.
    let address = address.to_string().parse::<weft::Address>().unwrap();
    let to_b = a.addresses().insert(weft::Address::from_bytes(&address.to_bytes())).unwrap();
    let memory = b.register(100_000, Access::REMOTE).unwrap();
    b_end.receive(vec![0; 100_000]).unwrap();
    a_end.send(to_b, vec![7; 100_000]).unwrap();
    let received = b_queue.wait(PATIENCE).unwrap().unwrap().ok().unwrap();
    let source = received.source.unwrap();
    assert_eq!(source.endpoint, a_end.address().endpoint);
    assert!(received.into_bytes().unwrap() == vec![7; 100_000]);
    a_end.write(to_b, memory.remote(), vec![8; 100_000]).unwrap();
    for _ in 0..2 {
        a_queue.wait(PATIENCE).unwrap().unwrap().ok().unwrap();
    }
    assert!(memory.to_vec(0, 100_000).unwrap() == vec![8; 100_000]);
    // The source of a message is where an answer goes.
    let back = b.addresses().insert(source).unwrap();
    a_end.receive(vec![0; 8]).unwrap();
    b_end.send(back, vec![9; 8]).unwrap();
    assert_eq!(a_queue.wait(PATIENCE).unwrap().unwrap().into_bytes().unwrap(), [9; 8]);
}

#[test]
fn ipv4_bound_to_all() {
    talk("0.0.0.0:0", "127.0.0.1");
}

#[test]
fn ipv6() {
    if std::net::UdpSocket::bind("[::1]:0").is_ok() {
        talk("[::1]:0", "::1");
        talk("[::]:0", "::1");
    }
}
