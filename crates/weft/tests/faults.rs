//! Peers that die, peers that come back, and strangers that throw things.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "clippy.toml allows them in tests, but not in the functions that tests call"
)]

mod common;

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use weft::{Access, Completion, CompletionQueue, Config, Domain, Endpoint, Fabric, Failure, PeerId, Progress};

use common::{Raise, own_loopback, patient};

/// Long enough that only a hang reaches it.
const PATIENCE: Duration = Duration::from_secs(60);

struct Node {
    domain: Domain,
    queue: CompletionQueue,
    endpoint: Endpoint,
}

impl Node {
    fn new(fabric: &Fabric) -> Node {
        Node::at(fabric, "127.0.0.1:0".parse().unwrap())
    }

    fn at(fabric: &Fabric, address: SocketAddr) -> Node {
        Node::with(fabric, address, patient)
    }

    fn with(fabric: &Fabric, address: SocketAddr, change: impl FnOnce(&mut Config)) -> Node {
        let builder = fabric.domain().road(weft::Road::Packets).progress(Progress::Automatic);
        let domain = builder.configure(change).udp(address).unwrap();
        let queue = domain.completion_queue(1 << 14);
        let endpoint = domain.endpoint(&queue).unwrap();
        Node { domain, queue, endpoint }
    }

    fn knows(&self, other: &Node) -> PeerId {
        self.domain.addresses().insert(other.endpoint.address()).unwrap()
    }

    fn next(&self) -> Completion {
        self.queue.wait(Some(PATIENCE)).unwrap().expect("hangs")
    }

    /// Ends as if its process were killed.
    fn kill(self) {
        self.domain.abandon();
    }
}

#[test]
fn a_dead_peer_is_noticed_and_nobody_else_is_disturbed() {
    let fabric = Fabric::new("faults").unwrap();
    // Nobody says of the dead one that it is gone, so that the time until it is given up is waited for: as short as a
    // machine that stands still for a while permits.
    let survivor = Node::with(&fabric, "127.0.0.1:0".parse().unwrap(), |config| config.give_up_us = 5_000_000);
    let (other, victim) = (Node::new(&fabric), Node::new(&fabric));
    let (to_other, to_victim) = (survivor.knows(&other), survivor.knows(&victim));
    let queue = survivor.domain.completion_queue(1 << 14);
    let to_the_dead = survivor.domain.endpoint(&queue).unwrap();
    let memory = victim.domain.register(1 << 20, Access::REMOTE).unwrap();
    let remote = memory.remote();
    victim.endpoint.receive(vec![0; 8]).unwrap();
    to_the_dead.send(to_victim, vec![1; 8]).unwrap();
    assert!(queue.wait(Some(PATIENCE)).unwrap().unwrap().result.is_ok());

    // In the middle of long transfers, posted in every way.
    for _ in 0..20 {
        to_the_dead.write(to_victim, remote, vec![1; 1 << 20]).unwrap();
    }
    to_the_dead.read(to_victim, remote, vec![0; 1 << 20]).unwrap();
    to_the_dead.fetch_add(to_victim, remote, 1u64).unwrap();
    // Longer than what is sent at once, and nobody receives it: whatever else ends before the victim does, this waits.
    to_the_dead.send(to_victim, vec![1; 4 << 20]).unwrap();
    to_the_dead.send(to_victim, vec![1; 10]).unwrap();
    drop(memory);
    victim.kill();
    let killed = Instant::now();

    let (mut failed, mut ended, mut exchanged) = (0, 0, 0u32);
    while ended < 24 {
        // Meanwhile the others talk.
        other.endpoint.receive(vec![0; 64]).unwrap();
        survivor.endpoint.send(to_other, exchanged.to_le_bytes().to_vec()).unwrap();
        assert_eq!(other.next().into_bytes().unwrap(), exchanged.to_le_bytes());
        assert!(survivor.next().result.is_ok());
        exchanged += 1;
        while let Some(completion) = queue.read().unwrap() {
            ended += 1;
            assert!(completion.buffer.is_some(), "its buffer comes back");
            failed += u32::from(completion.result == Err(Failure::OutcomeUnknown));
        }
        assert!(killed.elapsed() < PATIENCE, "hangs: {ended} ended");
    }
    assert!(failed > 0 && exchanged > 0);
    eprintln!(
        "{failed} of {ended} failed, the last after {:?}; {exchanged} messages between the living",
        killed.elapsed()
    );
    assert_eq!(survivor.domain.state().commands, 0, "nothing is kept for the dead");
}

#[test]
fn a_restarted_peer_is_another_one() {
    let fabric = Fabric::new("faults").unwrap();
    let survivor = Node::new(&fabric);
    let mut place = own_loopback();
    let mut old: Vec<(PeerId, weft::RemoteAddress)> = Vec::new();
    for life in 0..4u8 {
        let peer = Node::at(&fabric, place);
        place = peer.domain.local();
        let memory = peer.domain.register(4096, Access::REMOTE).unwrap();
        let to_peer = survivor.knows(&peer);
        // What was meant for an earlier life reaches nothing of this one.
        for (old_peer, old_remote) in &old {
            survivor.endpoint.send(*old_peer, vec![0xdd; 8]).unwrap();
            survivor.endpoint.write(*old_peer, *old_remote, vec![0xdd; 8]).unwrap();
            for _ in 0..2 {
                let failed = survivor.next().result.unwrap_err();
                let honest = [Failure::NoSuchEndpoint, Failure::AccessRefused, Failure::OutcomeUnknown];
                assert!(honest.contains(&failed), "{failed:?}");
            }
        }
        for index in 0..20 {
            peer.endpoint.receive(vec![0; 64]).unwrap();
            survivor.endpoint.send(to_peer, vec![life * 20 + index; 64]).unwrap();
            let mut completion = survivor.next();
            if completion.result == Err(Failure::OutcomeUnknown) {
                // The first contact after a restart may fail in doubt; then it is tried again.
                assert_eq!(index, 0, "only the first");
                survivor.endpoint.send(to_peer, vec![life * 20 + index; 64]).unwrap();
                completion = survivor.next();
            }
            completion.ok().unwrap();
            assert_eq!(peer.next().into_bytes().unwrap(), [life * 20 + index; 64]);
        }
        survivor.endpoint.write(to_peer, memory.remote(), vec![life + 1; 64]).unwrap();
        survivor.next().ok().unwrap();
        assert_eq!(memory.to_vec(0, 65).unwrap(), [[life + 1; 64].as_slice(), &[0]].concat());
        // Something is under way when it dies.
        survivor.endpoint.send(to_peer, vec![0xee; 300_000]).unwrap();
        survivor.endpoint.send(to_peer, vec![0xee; 8]).unwrap();
        old.push((to_peer, memory.remote()));
        drop(memory);
        peer.kill();
        let mut ended = 0;
        while ended < 2 {
            survivor.next();
            ended += 1;
        }
    }
}

#[test]
fn garbage_has_no_effect() {
    let fabric = Fabric::new("faults").unwrap();
    let (a, b) = (Node::new(&fabric), Node::new(&fabric));
    // All traffic goes through here, so that what is thrown in comes from where the peers expect each other.
    let middle = UdpSocket::bind("127.0.0.1:0").unwrap();
    middle.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    let via = middle.local_addr().unwrap();
    let through = weft::Address { socket: via, ..b.endpoint.address() };
    let to_b = a.domain.addresses().insert(through).unwrap();
    let memory = b.domain.register(1 << 16, Access::REMOTE).unwrap();
    let done = AtomicBool::new(false);
    let (at_a, at_b) = (a.domain.local(), b.domain.local());
    let messages = 400u64;
    std::thread::scope(|threads| {
        let _whatever_happens = Raise(&done);
        threads.spawn(|| disturb(&middle, at_a, at_b, &done));
        let receiver = threads.spawn(|| {
            for index in 0..messages {
                b.endpoint.receive(vec![0; 6000]).unwrap();
                let received = b.next().ok().unwrap();
                let bytes = received.into_bytes().unwrap();
                assert_eq!(bytes.len() as u64, index * 13, "message {index}");
                assert!(bytes.iter().all(|byte| *byte == index as u8), "message {index}");
            }
        });
        for index in 0..messages {
            a.endpoint.send(to_b, vec![index as u8; index as usize * 13]).unwrap();
            a.endpoint.write(to_b, memory.remote().at((index % 8) * 1000), vec![index as u8; 1000]).unwrap();
            a.endpoint.fetch_add(to_b, memory.remote().at(60_000), 1u64).unwrap();
            for _ in 0..3 {
                a.next().ok().unwrap();
            }
        }
        receiver.join().unwrap();
    });
    assert_eq!(memory.load_u64(60_000).unwrap(), 400, "each addition once");
    for place in 0..8 {
        assert_eq!(memory.to_vec(place * 1000, 1000).unwrap(), vec![(392 + place) as u8; 1000]);
    }
    assert!(memory.to_vec(8000, 52_000).unwrap().iter().all(|byte| *byte == 0), "nothing beside them");
    let statistics = b.domain.statistics();
    assert!(statistics.dropped_damaged + statistics.dropped_foreign > 0, "{statistics:?}");
}

#[test]
fn a_flood_of_well_formed_nonsense_has_no_effect() {
    let fabric = Fabric::new("faults").unwrap();
    let (a, b) = (Node::new(&fabric), Node::new(&fabric));
    let to_b = a.domain.addresses().insert(b.endpoint.address()).unwrap();
    let target = (b.domain.local(), b.endpoint.address().endpoint);
    // How many messages there are in all, when that is known.
    let total = AtomicU64::new(u64::MAX);
    let failed = AtomicBool::new(false);
    let (mut messages, mut sent) = (0u64, 0);
    let took = std::thread::scope(|threads| {
        let start = Instant::now();
        let _whatever_happens = Raise(&failed);
        let flood = threads.spawn(|| {
            // What is sent while the receiver does not run is lost for the most part: it goes on until much has arrived.
            let arrived = || b.domain.statistics().datagrams_received;
            let enough = || arrived() >= FLOOD / 10 || failed.load(Ordering::Relaxed);
            flood(fabric.session_id(), target, enough)
        });
        let receiver = threads.spawn(|| {
            let mut expected = 0u64;
            while expected < total.load(Ordering::Relaxed) {
                b.endpoint.receive(vec![0; 8]).unwrap();
                assert_eq!(b.next().ok().unwrap().into_bytes().unwrap(), expected.to_le_bytes());
                expected += 1;
            }
        });
        // Until there was enough of both.
        while !flood.is_finished() || messages < 1000 {
            a.endpoint.send(to_b, messages.to_le_bytes().to_vec()).unwrap();
            a.next().ok().unwrap();
            messages += 1;
        }
        let took = start.elapsed();
        sent = flood.join().unwrap();
        // The receiver may be waiting for one more already.
        total.store(messages + 1, Ordering::Relaxed);
        a.endpoint.send(to_b, messages.to_le_bytes().to_vec()).unwrap();
        a.next().ok().unwrap();
        receiver.join().unwrap();
        took
    });
    let (state, statistics) = (b.domain.state(), b.domain.statistics());
    println!("{sent} datagrams and {messages} messages in {took:?}: {statistics:?}");
    assert!(statistics.datagrams_received >= FLOOD / 10, "the flood arrived: {statistics:?}");
    assert!(state.lives <= 2 && state.tombstones <= 2, "strangers leave nothing behind: {state:?}");
    assert_eq!((state.messages, state.held, state.unexpected), (0, 0, 0), "{state:?}");
}

/// Datagrams of a flood, at the least.
const FLOOD: u64 = 300_000;

/// Packets of every opcode with the right session and checksum, and nothing else right, as fast as they go.
fn flood(session: u32, (to, endpoint): (SocketAddr, u32), enough: impl Fn() -> bool) -> u64 {
    let crc = weft_wire::checksum::Crc::new(weft_wire::checksum::CRC32C).unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut state = 0x9876_5432_1fed_cba9u64;
    let mut sent = 0;
    while sent < FLOOD || !sent.is_multiple_of(1000) || !enough() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let length = 52 + (state >> 33) as usize % 200;
        let mut datagram: Vec<u8> =
            (0..length).map(|at| (state.rotate_left(at as u32 % 61) >> 7) as u8 ^ at as u8).collect();
        // Version 1, unsealed, every fourth a bundle.
        datagram[0] = if state >> 60 & 3 == 0 { 0x14 } else { 0x10 };
        datagram[4..8].copy_from_slice(&session.to_be_bytes());
        datagram[20] = (state >> 20) as u8 & 0x3f;
        datagram[24..28].copy_from_slice(&endpoint.to_be_bytes());
        if state >> 57 & 1 == 0 {
            datagram[44..52].fill(0);
        }
        let sum = crc.of(&datagram).to_le_bytes();
        datagram.extend_from_slice(&sum);
        // A full buffer on the way is no matter.
        let _ = socket.send_to(&datagram, to);
        sent += 1;
    }
    sent
}

/// Passes datagrams on between two sockets, and throws in random ones, and damaged, cut and repeated copies.
fn disturb(middle: &UdpSocket, at_a: SocketAddr, at_b: SocketAddr, done: &AtomicBool) {
    let mut state = 0x1234_5678_9abc_def1u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut buffer = vec![0; 65_536];
    let mut seen: Vec<Vec<u8>> = Vec::new();
    while !done.load(Ordering::Relaxed) {
        if let Ok((length, from)) = middle.recv_from(&mut buffer) {
            let to = if from == at_a { at_b } else { at_a };
            let _ = middle.send_to(&buffer[..length], to);
            if seen.len() < 500 {
                seen.push(buffer[..length].to_vec());
            } else {
                let place = random() as usize % seen.len();
                seen[place] = buffer[..length].to_vec();
            }
        }
        for to in [at_a, at_b] {
            let thrown: Vec<u8> = match random() % 4 {
                0 => (0..random() % 1500).map(|_| random() as u8).collect(),
                _ if seen.is_empty() => continue,
                kind => {
                    let mut copy = seen[random() as usize % seen.len()].clone();
                    match kind {
                        1 => copy.truncate(random() as usize % (copy.len() + 1)),
                        2 => {
                            for _ in 0..=random() % 4 {
                                let place = random() as usize % copy.len();
                                copy[place] ^= 1 << (random() % 8);
                            }
                        }
                        _ => {} // the very same, once more
                    }
                    copy
                }
            };
            let _ = middle.send_to(&thrown, to);
        }
    }
}
