//! Ways that carry little, ways that come to carry less, and forged news of such. Between network namespaces, so it takes
//! root and `ip`.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "clippy.toml allows them in tests, but not in the functions that tests call"
)]

#[path = "../common/mod.rs"]
mod common;
mod forge;
mod hosts;
mod link;

use std::net::SocketAddr;
use std::time::Duration;

use weft::{
    Access, AtomicOperation, Completion, CompletionQueue, Domain, Endpoint, Fabric, MemoryRegion, PeerId, Progress,
    Road,
};

use common::patient;
use hosts::{Host, join, route};

/// Long enough that only a hang reaches it.
const PATIENCE: Duration = Duration::from_secs(120);
/// What Ethernet carries.
const ETHERNET: u32 = 1500;
/// Lengths of messages: in one packet and in several, sent and fetched.
const LENGTHS: [usize; 9] = [0, 8, 400, 512, 900, 1150, 5000, 70_000, 700_000];
/// Bytes of a message in many packets.
const BYTES: usize = 30_000;
/// Bytes of the memory that peers reach.
const MEMORY_BYTES: usize = 100_000;

struct Node {
    domain: Domain,
    queue: CompletionQueue,
    endpoint: Endpoint,
    memory: MemoryRegion,
}

impl Node {
    fn at(host: &Host, ipv6: bool, net: u8) -> Node {
        let local = SocketAddr::new(host.address(ipv6, net), 0);
        host.run(move || {
            let fabric = Fabric::new("path mtu").unwrap();
            let builder = fabric.domain().road(Road::Packets).progress(Progress::Automatic);
            let domain = builder.configure(patient).udp(local).unwrap();
            let queue = domain.completion_queue(1 << 12);
            let endpoint = domain.endpoint(&queue).unwrap();
            let memory = domain.register(vec![7; MEMORY_BYTES], Access::REMOTE).unwrap();
            Node { domain, queue, endpoint, memory }
        })
    }

    fn knows(&self, other: &Node) -> PeerId {
        self.domain.addresses().insert(other.endpoint.address()).unwrap()
    }

    fn next(&self) -> Completion {
        self.queue.wait(Some(PATIENCE)).unwrap().expect("hangs").ok().unwrap()
    }
}

fn pattern(length: usize, start: usize) -> Vec<u8> {
    (start..start + length).map(|index| (index * 7 + index / 251) as u8).collect()
}

/// Every kind of operation from `a` to `b`, of many lengths.
fn exchange(a: &Node, b: &Node) {
    let to_b = a.knows(b);
    for length in LENGTHS {
        b.endpoint.receive(vec![0; length + 1]).unwrap();
        a.endpoint.send(to_b, pattern(length, length)).unwrap();
        a.next();
        let received = b.next();
        assert_eq!(received.length as usize, length);
        assert_eq!(received.into_bytes().unwrap()[..length], pattern(length, length));
        if length <= MEMORY_BYTES {
            a.endpoint.write(to_b, b.memory.remote(), pattern(length, 1)).unwrap();
            a.next();
            a.endpoint.read(to_b, b.memory.remote(), vec![0; length]).unwrap();
            assert_eq!(a.next().into_bytes().unwrap(), pattern(length, 1));
        }
    }
    // As long as one can be, and not to be cut.
    let operands = vec![3u64; 128];
    a.endpoint.write(to_b, b.memory.remote(), vec![0; 1024]).unwrap();
    a.next();
    a.endpoint.atomic(to_b, b.memory.remote(), AtomicOperation::Sum, &operands).unwrap();
    a.next();
    a.endpoint.fetch_atomic(to_b, b.memory.remote(), AtomicOperation::Sum, &operands).unwrap();
    assert_eq!(a.next().values::<u64>().unwrap(), operands);
}

/// How many datagrams leave `a` for a message of [`BYTES`] to `b`.
fn datagrams_of_a_message(a: &Node, b: &Node) -> usize {
    let to_b = a.knows(b);
    b.endpoint.receive(vec![0; BYTES]).unwrap();
    let before = a.domain.statistics().datagrams_sent;
    a.endpoint.send(to_b, pattern(BYTES, 0)).unwrap();
    a.next();
    let sent = a.domain.statistics().datagrams_sent - before;
    assert_eq!(b.next().into_bytes().unwrap(), pattern(BYTES, 0));
    sent as usize
}

fn exchange_both_ways(a: &Node, b: &Node) {
    exchange(a, b);
    exchange(b, a);
}

/// The families that a link of this MTU has.
fn families(mtu: u32) -> impl Iterator<Item = bool> {
    [false, true].into_iter().filter(move |ipv6| !ipv6 || mtu >= 1280)
}

#[test]
#[ignore = "needs root: it makes network namespaces"]
fn links_that_carry_little_work() {
    // 576 is what every host must take in one piece; 296 is less than we cut for, which the kernel's fragments are for.
    for mtu in [1280, 1000, 600, 576, 296] {
        let (a, b) = (Host::new(1), Host::new(2));
        join(&a, &b, 0, mtu);
        for ipv6 in families(mtu) {
            let nodes = [Node::at(&a, ipv6, 0), Node::at(&b, ipv6, 0)];
            exchange_both_ways(&nodes[0], &nodes[1]);
        }
    }
}

#[test]
#[ignore = "needs root: it makes network namespaces"]
fn a_router_in_between_may_carry_less_than_both_ends() {
    for mtu in [1280, 1000, 600] {
        let (a, router, b) = (Host::new(1), Host::new(2), Host::new(3));
        join(&a, &router, 0, ETHERNET);
        join(&router, &b, 1, mtu);
        for ipv6 in families(mtu) {
            route(&a, &router, &b, ipv6);
            let nodes = [Node::at(&a, ipv6, 0), Node::at(&b, ipv6, 1)];
            exchange_both_ways(&nodes[0], &nodes[1]);
            assert!(nodes[0].domain.statistics().narrowed > 0, "IPv6: {ipv6}, MTU {mtu}");
        }
    }
}

#[test]
#[ignore = "needs root: it makes network namespaces"]
fn one_forged_message_silences_nobody() {
    let (a, b) = (Host::new(1), Host::new(2));
    join(&a, &b, 0, ETHERNET);
    for (ipv6, claimed) in [(false, 600), (true, 1280)] {
        let nodes = [Node::at(&a, ipv6, 0), Node::at(&b, ipv6, 0)];
        exchange_both_ways(&nodes[0], &nodes[1]);
        let (victim, to) = (nodes[0].domain.local(), nodes[1].domain.local());
        b.run(move || forge::too_big(victim, to, claimed));
        while !a.route(to.ip()).contains(&format!("mtu {claimed}")) {
            std::thread::yield_now();
        }
        exchange_both_ways(&nodes[0], &nodes[1]);
        // A program that starts later, too.
        let later = Node::at(&a, ipv6, 0);
        exchange_both_ways(&later, &nodes[1]);
    }
}

/// Where a way becomes narrower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    /// At the sender, whose kernel knows.
    Here,
    /// At the router, which says so and is not believed.
    AtRouter,
    /// Where nobody notices: one end of a link does not take what the other sends.
    Behind,
}

/// What is under way when a way becomes narrower arrives.
fn shrink(ipv6: bool, mtu: u32, place: Where) {
    const MESSAGES: usize = 24;
    let (a, router, b) = (Host::new(1), Host::new(2), Host::new(3));
    join(&a, &router, 0, ETHERNET);
    join(&router, &b, 1, ETHERNET);
    route(&a, &router, &b, ipv6);
    let (sender, target) = (Node::at(&a, ipv6, 0), Node::at(&b, ipv6, 1));
    exchange_both_ways(&sender, &target);
    let to_target = sender.knows(&target);
    let receives: Vec<u64> = (0..MESSAGES).map(|_| target.endpoint.receive(vec![0; BYTES]).unwrap()).collect();
    // No answer comes back, so that everything that is sent now is sent again.
    b.cut(sender.domain.local().ip(), true);
    let before = sender.domain.statistics();
    for number in 0..MESSAGES {
        sender.endpoint.send(to_target, pattern(BYTES, number)).unwrap();
    }
    sender.endpoint.read(to_target, target.memory.remote(), vec![0; 50_000]).unwrap();
    while sender.domain.statistics().datagrams_sent == before.datagrams_sent {
        std::thread::yield_now();
    }
    match place {
        Where::Here => [&router, &a].iter().for_each(|host| host.set_mtu(0, mtu)),
        Where::AtRouter => [&router, &b].iter().for_each(|host| host.set_mtu(1, mtu)),
        Where::Behind => b.set_mtu(1, mtu),
    }
    while sender.domain.statistics().withdrawn == before.withdrawn {
        std::thread::yield_now();
    }
    b.cut(sender.domain.local().ip(), false);
    for _ in 0..=MESSAGES {
        sender.next();
    }
    for _ in 0..MESSAGES {
        // They match in order, and end as their last packet comes.
        let received = target.next();
        let number = receives.iter().position(|context| *context == received.context).unwrap();
        assert_eq!(received.into_bytes().unwrap(), pattern(BYTES, number));
    }
    exchange_both_ways(&sender, &target);
    // That it carries as much as before again is found out by a PROBE, or known from the interface when the target is named
    // anew. Either way a message leaves in fewer datagrams.
    [&router, &a].iter().for_each(|host| host.set_mtu(0, ETHERNET));
    [&router, &b].iter().for_each(|host| host.set_mtu(1, ETHERNET));
    while datagrams_of_a_message(&sender, &target) > 2 * BYTES / ETHERNET as usize {
        exchange(&sender, &target);
    }
}

#[test]
#[ignore = "needs root: it makes network namespaces"]
fn a_way_that_becomes_narrower_at_its_beginning_fails_nothing() {
    shrink(false, 700, Where::Here);
    shrink(true, 1280, Where::Here);
}

#[test]
#[ignore = "needs root: it makes network namespaces"]
fn a_way_that_becomes_narrower_at_a_router_fails_nothing() {
    shrink(false, 700, Where::AtRouter);
    shrink(true, 1280, Where::AtRouter);
}

#[test]
#[ignore = "needs root: it makes network namespaces"]
fn a_way_that_becomes_narrower_without_a_word_fails_nothing() {
    // As little as atomics fit in: nobody would make fragments of them here.
    shrink(false, 1280, Where::Behind);
    shrink(true, 1280, Where::Behind);
}
