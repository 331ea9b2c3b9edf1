//! Device memory in the library: which way it takes, and what is told when something is wrong. What it does otherwise is
//! what all memory does, as the conformance suite shows.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "clippy.toml allows them in tests, but not in the functions that tests call"
)]

mod common;

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use weft::device::{Direction, Kind, Place, Transfer, operations};
use weft::link::{Counters, Incoming, Link, Notice, Outgoing, SendError};
use weft::{
    Access, Blame, Buffer, Completion, CompletionQueue, Domain, Endpoint, Error, Fabric, Fault, PeerId, Registrable,
    Road, raw,
};

use common::patient;

const PATIENCE: Duration = Duration::from_secs(60);
const HERE: Place = Place::new(Kind::Emulated, 0);
const THERE: Place = Place::new(Kind::Emulated, 1);

struct Node {
    domain: Domain,
    queue: CompletionQueue,
    endpoint: Endpoint,
}

fn node(fabric: &Fabric, wrap: bool, road: Road) -> Node {
    let mut builder = fabric.domain().road(road).configure(patient);
    if wrap {
        builder = builder.decorate(|link| Stubborn { inner: link, calls: 0 });
    }
    let domain = builder.udp("127.0.0.1:0").unwrap();
    let queue = domain.completion_queue(64);
    let endpoint = domain.endpoint(&queue).unwrap();
    Node { domain, queue, endpoint }
}

fn pair(wrap: bool, road: Road) -> (Node, Node, PeerId) {
    let fabric = Fabric::new("device").unwrap();
    let (a, b) = (node(&fabric, wrap, road), node(&fabric, false, road));
    let to_b = a.domain.addresses().insert(b.endpoint.address()).unwrap();
    (a, b, to_b)
}

/// The next completion of the first node.
fn next(node: &Node, other: &Node) -> weft::Result<Completion> {
    let start = Instant::now();
    loop {
        if let Some(completion) = node.queue.read()? {
            return completion.ok();
        }
        other.domain.progress()?;
        assert!(start.elapsed() < PATIENCE, "hangs");
    }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 13 + i / 253) as u8).collect()
}

fn on(place: Place, bytes: &[u8]) -> raw::Memory {
    let memory = raw::Memory::alloc_device(place, bytes.len()).unwrap();
    memory.write(0, bytes).unwrap();
    memory
}

fn whole(memory: &raw::Memory) -> Buffer {
    Buffer::from_region(memory, 0, memory.length()).unwrap()
}

/// A link that has no room every other time.
struct Stubborn {
    inner: Box<dyn Link>,
    calls: usize,
}

impl Link for Stubborn {
    fn local(&self) -> SocketAddr {
        self.inner.local()
    }
    fn mtu(&mut self, path: weft_core::session::Path) -> u32 {
        self.inner.mtu(path).min(9000)
    }
    fn send(&mut self, batch: &[Outgoing<'_>]) -> Result<usize, SendError> {
        self.calls += 1;
        if self.calls.is_multiple_of(2) { self.inner.send(batch) } else { Err(SendError::WouldBlock) }
    }
    fn receive(&mut self, sink: &mut dyn FnMut(Incoming<'_>)) -> std::io::Result<usize> {
        self.inner.receive(sink)
    }
    fn poll_notice(&mut self) -> Option<Notice> {
        self.inner.poll_notice()
    }
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.inner.descriptor()
    }
    fn counters(&self) -> Counters {
        self.inner.counters()
    }
    fn room_bytes(&self) -> u64 {
        self.inner.room_bytes()
    }
}

#[test]
fn bytes_go_through_few_pinned_copies() {
    [Road::Packets, Road::Automatic].into_iter().for_each(bytes_go_through_few_pinned_copies_on);
}

fn bytes_go_through_few_pinned_copies_on(road: Road) {
    let (a, b, to_b) = pair(false, road);
    let bytes = pattern(4 << 20);
    let (from, to) = (on(HERE, &bytes), raw::Memory::alloc_device(THERE, 4 << 20).unwrap());
    let region = b.domain.register(to.clone(), Access::REMOTE).unwrap();
    a.endpoint.write(to_b, region.remote(), whole(&from)).unwrap();
    next(&a, &b).unwrap();
    assert!(to.to_vec(0, 4 << 20).unwrap() == bytes);
    let (sent, came) = (a.domain.transfer_counters().staging, b.domain.transfer_counters().staging);
    assert!(sent.out_bytes >= 4 << 20 && sent.out_bytes < 6 << 20, "{sent:?}");
    assert_eq!(came.in_bytes, 4 << 20, "{came:?}");
    assert!(came.in_copies <= came.in_writes, "{came:?}");
    for counters in [sent, came] {
        assert_eq!((counters.unpinned, counters.failures), (0, 0));
    }
    assert_eq!(a.domain.transfer_counters().staged, Default::default(), "each byte was copied once");
    // The other way round.
    let back = raw::Memory::alloc_device(HERE, 4 << 20).unwrap();
    a.endpoint.read(to_b, region.remote(), whole(&back)).unwrap();
    next(&a, &b).unwrap();
    assert!(back.to_vec(0, 4 << 20).unwrap() == bytes);
    assert_eq!(a.domain.transfer_counters().staging.in_bytes, 4 << 20);
    // A domain that has nothing to do with devices counts nothing.
    let (host, _other, _) = pair(false, road);
    assert_eq!(host.domain.transfer_counters(), Default::default());
}

#[test]
fn a_link_without_room_makes_it_copy_again_and_says_so() {
    let (a, b, to_b) = pair(true, Road::Packets);
    // More than the window keeps, so that what waits for the link is pushed out of it: regions are read anew besides.
    let bytes = pattern(1 << 20);
    let region = a.domain.register(on(HERE, &bytes), Access::REMOTE).unwrap();
    let to_a = b.domain.addresses().insert(a.endpoint.address()).unwrap();
    let mut rounds = 0;
    while a.domain.transfer_counters().staged.bytes == 0 {
        b.endpoint.read(to_a, region.remote(), vec![0; 1 << 20]).unwrap();
        assert!(next(&b, &a).unwrap().into_bytes().unwrap() == bytes);
        b.endpoint.receive(vec![0; 1 << 20]).unwrap();
        a.endpoint.send(to_b, region.buffer(0, 1 << 20).unwrap()).unwrap();
        assert!(next(&b, &a).unwrap().into_bytes().unwrap() == bytes);
        next(&a, &b).unwrap();
        rounds += 1;
        assert!(rounds < 100, "{:?}", a.domain.transfer_counters());
    }
    assert_eq!(a.domain.transfer_counters().staged.failures, 0);
}

#[test]
fn memory_is_named_or_found() {
    let domain = Domain::udp("127.0.0.1:0").unwrap();
    let device = operations(Kind::Emulated).unwrap();
    let address = device.allocate(1, 10_000).unwrap();
    let pointer = address as *mut u8;
    // SAFETY: it is freed below, after the last use.
    let (named, found, host) = unsafe {
        let mut bytes = [0u8; 16];
        (
            raw::Memory::from_device_raw(THERE, pointer, 10_000, true).unwrap(),
            raw::Memory::from_raw_anywhere(pointer.wrapping_add(100), 50, true).unwrap(),
            raw::Memory::from_raw_anywhere(bytes.as_mut_ptr(), 16, true).unwrap(),
        )
    };
    assert_eq!((named.place(), found.place(), host.place()), (THERE, THERE, Place::HOST));
    // SAFETY: wrong names are refused, and nothing is kept.
    let errors = unsafe {
        [
            raw::Memory::from_device_raw(HERE, pointer, 10_000, true).unwrap_err(),
            raw::Memory::from_device_raw(THERE, pointer, 10_001, true).unwrap_err(),
        ]
    };
    for error in errors {
        let error = Error::from(error);
        assert_eq!(error.blame(), Blame::Caller);
        assert!(error.to_string().contains("check address"), "{error}");
    }
    let region = domain.register(found, Access::REMOTE).unwrap();
    region.write(0, b"by the way").unwrap();
    assert_eq!(named.to_vec(100, 10).unwrap(), b"by the way");
    assert_eq!(region.load_u64(0), Err(Fault::NotSupported));
    drop((region, named));
    // SAFETY: nobody uses it any more.
    unsafe { device.free(1, address).unwrap() };
    let absent = Registrable::on(Place::new(Kind::Emulated, 77), 64).unwrap_err();
    assert!(matches!(absent, Error::Device(_)), "{absent}");
}

#[test]
fn a_device_that_fails_ends_the_domain_loudly() {
    [Road::Packets, Road::Automatic].into_iter().for_each(a_device_that_fails_ends_the_domain_loudly_on);
}

fn a_device_that_fails_ends_the_domain_loudly_on(road: Road) {
    let (a, b, to_b) = pair(false, road);
    let device = operations(Kind::Emulated).unwrap();
    let address = device.allocate(0, 4096).unwrap();
    // SAFETY: broken on purpose: the emulated device notices.
    let memory = unsafe { raw::Memory::from_device_raw(HERE, address as *mut u8, 4096, true).unwrap() };
    b.endpoint.receive(whole(&memory)).unwrap();
    // SAFETY: as above.
    unsafe { device.free(0, address).unwrap() };
    a.endpoint.send(to_b, vec![1; 1000]).unwrap();
    let start = Instant::now();
    let error = loop {
        a.domain.progress().unwrap();
        match b.queue.read() {
            Ok(None) => assert!(start.elapsed() < PATIENCE, "hangs"),
            Ok(Some(completion)) => panic!("its bytes are lost: {completion:?}"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::DeviceFailed), "{error}");
    assert_eq!(error.blame(), Blame::Resource);
    assert!(b.domain.transfer_counters().staging.failures > 0);
    a.domain.abandon();
}

#[test]
fn what_a_kernel_writes_is_what_peers_read() {
    [Road::Packets, Road::Automatic].into_iter().for_each(what_a_kernel_writes_is_what_peers_read_on);
}

fn what_a_kernel_writes_is_what_peers_read_on(road: Road) {
    let (a, b, to_b) = pair(false, road);
    let region = b.domain.register(Registrable::on(THERE, 8192).unwrap(), Access::REMOTE_READ).unwrap();
    for round in 1..50u8 {
        // As a kernel does: past the library, on the device.
        let source = on(THERE, &[round; 8192]);
        let piece = Transfer { to: region.as_ptr() as u64, from: source.as_ptr() as u64, length: 8192 };
        // SAFETY: both regions live, and the device checks their ranges.
        unsafe { operations(Kind::Emulated).unwrap().copy(1, Direction::Within, &[piece]).unwrap() };
        a.endpoint.read(to_b, region.remote(), vec![0; 8192]).unwrap();
        assert!(next(&a, &b).unwrap().into_bytes().unwrap().iter().all(|byte| *byte == round), "round {round}");
    }
}

#[test]
fn registrations_are_used_again_until_the_memory_is_other_memory() {
    let (a, ..) = pair(false, Road::Packets);
    let mut registrations = raw::Registrations::new(&a.domain, Access::REMOTE);
    let host = raw::Memory::alloc_zeroed(4096).unwrap();
    let device = raw::Memory::alloc_device(HERE, 1 << 16).unwrap();
    let keys = [&host, &device].map(|memory| registrations.register(memory).unwrap().key());
    assert_eq!([&host, &device].map(|memory| registrations.register(memory).unwrap().key()), keys);
    assert_eq!(registrations.len(), 2);

    // Other memory at the same address: the emulated device gives freed addresses out again at once, sooner or later.
    let address = device.as_ptr();
    registrations.forget(&device);
    drop(device);
    let mut kept = Vec::new();
    let again = loop {
        let memory = raw::Memory::alloc_device(HERE, 1 << 16).unwrap();
        if memory.as_ptr() == address || kept.len() > 100 {
            break memory;
        }
        kept.push(memory);
    };
    assert_ne!(registrations.register(&again).unwrap().key(), keys[1]);
    registrations.forget(&host);
    assert_ne!(registrations.register(&host).unwrap().key(), keys[0]);
}
