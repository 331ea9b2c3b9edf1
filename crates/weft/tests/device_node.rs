//! Device memory between two processes of one node: bytes, the ways they take, peers that die and peers that lie. The
//! second process is this program again, in a role.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "clippy.toml allows them in tests, but not in the functions that tests call"
)]

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use weft::device::{Handle, Kind, Place, emulated, operations};
use weft::link::shm::{Hello, InitiatorChannel, Node as LinkNode, NodeEvent, Record};
use weft::{
    Access, Address, Buffer, Completion, CompletionQueue, Domain, Endpoint, Fabric, Failure, LocalStatistics,
    MemoryRegion, PeerId, Progress, RemoteAddress, raw,
};

/// Long enough that only a hang reaches it.
const PATIENCE: Duration = Duration::from_secs(60);
const PORT: &str = "WEFT_TEST_PORT";
const HERE: Place = Place::new(Kind::Emulated, 0);
const THERE: Place = Place::new(Kind::Emulated, 1);
const SIZES: [usize; 9] = [0, 1, 8, 4095, 5000, 20_000, 64 << 10, (1 << 20) + 1, 16 << 20];

const RECEIVE: u64 = 1;
const CHECK: u64 = 2;
const REGISTER: u64 = 3;
const VERIFY: u64 = 4;
const DEREGISTER: u64 = 5;
const STATISTICS: u64 = 6;
const SEND: u64 = 7;
const HOLD: u64 = 8;
const EXIT: u64 = 9;

struct Node {
    domain: Domain,
    queue: CompletionQueue,
    endpoint: Endpoint,
}

impl Node {
    fn new() -> Node {
        let fabric = Fabric::new("device-node").unwrap();
        let domain = fabric.domain().progress(Progress::Automatic).udp("127.0.0.1:0").unwrap();
        let queue = domain.completion_queue(4096);
        let endpoint = domain.endpoint(&queue).unwrap();
        Node { domain, queue, endpoint }
    }

    fn next(&self) -> Completion {
        self.queue.wait(Some(PATIENCE)).unwrap().expect("hangs")
    }

    fn statistics(&self) -> LocalStatistics {
        self.domain.local_statistics()
    }
}

/// Bytes that tell where they are, and of which message.
fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let block: Vec<u8> = (0..65_521).map(|i: u64| (i * 13 + i / 253 + seed * 7) as u8).collect();
    let mut bytes = Vec::with_capacity(length + block.len());
    for index in 0..length.div_ceil(block.len()) {
        let start = bytes.len();
        bytes.extend_from_slice(&block);
        bytes[start] ^= index as u8;
    }
    bytes.truncate(length);
    bytes
}

/// One test at a time: some count what the whole process has open.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn place(code: u64) -> Place {
    [Place::HOST, HERE, THERE][code as usize]
}

fn on(place: Place, bytes: &[u8]) -> raw::Memory {
    let memory = raw::Memory::alloc_device(place, bytes.len().max(1)).unwrap();
    memory.write(0, bytes).unwrap();
    memory
}

fn part(memory: &raw::Memory, length: usize) -> Buffer {
    Buffer::from_region(memory, 0, length).unwrap()
}

fn tell(socket: &mut TcpStream, words: &[u64]) {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    socket.write_all(&bytes).unwrap();
}

fn hear<const N: usize>(socket: &mut TcpStream) -> [u64; N] {
    [(); N].map(|()| {
        let mut word = [0; 8];
        socket.read_exact(&mut word).unwrap();
        u64::from_le_bytes(word)
    })
}

/// The second process.
struct Other {
    child: Child,
    socket: TcpStream,
}

impl Other {
    fn start(node: &Node) -> (Other, PeerId) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "the_other_process", "--ignored", "--nocapture", "--test-threads=1"]);
        command.env(PORT, listener.local_addr().unwrap().port().to_string());
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        let (mut socket, _) = listener.accept().unwrap();
        let mut bytes = [0; Address::BYTES];
        socket.read_exact(&mut bytes).unwrap();
        socket.write_all(&node.endpoint.address().to_bytes()).unwrap();
        let peer = node.domain.addresses().insert(Address::from_bytes(&bytes)).unwrap();
        (Other { child, socket }, peer)
    }

    fn ask<const N: usize>(&mut self, words: [u64; 4]) -> [u64; N] {
        tell(&mut self.socket, &words);
        hear(&mut self.socket)
    }

    /// By handle, bounced, staged, opened, refused, imports.
    fn statistics(&mut self) -> [u64; 6] {
        self.ask([STATISTICS, 0, 0, 0])
    }

    fn register(&mut self, place: u64, length: usize, seed: u64) -> RemoteAddress {
        let [address, key] = self.ask([REGISTER, place, length as u64, seed]);
        RemoteAddress { address, key }
    }

    fn finish(mut self) {
        tell(&mut self.socket, &[EXIT, 0, 0, 0]);
        assert!(self.child.wait().unwrap().success(), "the other process says why above");
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "the other process of these tests: they start it"]
fn the_other_process() {
    let port = std::env::var(PORT).expect("this is not a test: others start it");
    let mut socket = TcpStream::connect(("127.0.0.1", port.parse().unwrap())).unwrap();
    let node = Node::new();
    socket.write_all(&node.endpoint.address().to_bytes()).unwrap();
    let mut bytes = [0; Address::BYTES];
    socket.read_exact(&mut bytes).unwrap();
    let peer = node.domain.addresses().insert(Address::from_bytes(&bytes)).unwrap();
    let mut received: Option<raw::Memory> = None;
    let mut region: Option<MemoryRegion> = None;
    loop {
        let [what, first, length, seed] = hear(&mut socket);
        let length = length as usize;
        match what {
            RECEIVE => {
                let memory = on(place(first), &vec![0xEE; length]);
                node.endpoint.receive(part(&memory, length)).unwrap();
                received = Some(memory);
                tell(&mut socket, &[1]);
            }
            CHECK => {
                let mut completion = node.next().ok().unwrap();
                while completion.kind != weft::CompletionKind::Receive {
                    completion = node.next().ok().unwrap();
                }
                assert_eq!(completion.length, length as u64);
                let right = received.take().unwrap().to_vec(0, length).unwrap() == pattern(seed, length);
                tell(&mut socket, &[u64::from(right)]);
            }
            REGISTER => {
                let memory = on(place(first), &pattern(seed, length));
                let registered = node.domain.register(memory, Access::REMOTE).unwrap();
                tell(&mut socket, &[registered.address(), registered.key()]);
                region = Some(registered);
            }
            VERIFY => {
                let right = region.as_ref().unwrap().to_vec(0, length).unwrap() == pattern(seed, length);
                tell(&mut socket, &[u64::from(right)]);
            }
            DEREGISTER => {
                // Nobody writes there behind it, whatever was under way.
                let memory = raw::Memory::clone(region.as_ref().unwrap());
                drop(region.take());
                let then = memory.to_vec(0, memory.length()).unwrap();
                std::thread::sleep(Duration::from_millis(20));
                let same = memory.to_vec(0, memory.length()).unwrap() == then;
                tell(&mut socket, &[u64::from(same)]);
            }
            STATISTICS => {
                let s = node.statistics();
                let imports = emulated::statistics().imports;
                tell(&mut socket, &[s.by_handle, s.bounced, s.staged, s.handles_opened, s.handles_refused, imports]);
            }
            SEND => {
                let memory = on(place(first), &pattern(seed, length));
                node.endpoint.send(peer, part(&memory, length)).unwrap();
                tell(&mut socket, &[1]);
            }
            HOLD => {
                // Takes the region of a key, says that it is busy there, and never lets go.
                let mut liar = Liar::new(Address::from_bytes(&bytes));
                let record = Record { kind: ATTACH, flags: 0, words: [0, 0, 7 << 32, seed] };
                liar.channel.messages().push(&record, &[]).unwrap();
                let word = liar.granted();
                liar.channel.shared_word(word + 1).store(2, Ordering::SeqCst);
                tell(&mut socket, &[1]);
                let [_] = hear(&mut socket);
            }
            _ => break,
        }
    }
}

#[test]
fn messages_between_all_places() {
    let _alone = alone();
    for (from, to) in [(1, 2), (1, 1), (1, 0), (0, 1)] {
        let node = Node::new();
        let (mut other, peer) = Other::start(&node);
        for (round, length) in [SIZES, SIZES, SIZES].concat().into_iter().enumerate() {
            let seed = round as u64 + 1;
            let memory = on(place(from), &pattern(seed, length));
            // Wanted before it comes, and after.
            let early = round % 2 == 0;
            if early {
                let [1] = other.ask([RECEIVE, to, length as u64, 0]) else { panic!() };
            }
            node.endpoint.send(peer, part(&memory, length)).unwrap();
            // From a device somewhat longer ones go at once.
            let waits = !early && length > if from == 0 { 32 << 10 } else { 64 << 10 };
            if waits {
                let [1] = other.ask([RECEIVE, to, length as u64, 0]) else { panic!() };
            }
            node.next().ok().unwrap();
            // What is sent may be used again.
            memory.write(0, &vec![0xDD; length]).unwrap();
            if !early && !waits {
                let [1] = other.ask([RECEIVE, to, length as u64, 0]) else { panic!() };
            }
            let [right] = other.ask([CHECK, 0, length as u64, seed]);
            assert_eq!(right, 1, "{length} bytes from {} to {}", place(from), place(to));
        }
        let ([by_handle, bounced, _, opened, refused, _], here) = (other.statistics(), node.statistics());
        if from == 0 {
            assert_eq!((by_handle, bounced, opened, refused), (0, 0, 0, 0));
        } else {
            // Six long ones; those of middle length from when on the slots were opened.
            assert_eq!(by_handle, 6, "{here:?}");
            assert!(bounced >= 1 && bounced == here.bounced, "{bounced} {here:?}");
            assert_eq!(refused, 0);
            assert!(here.staged >= 9, "the short ones went through the host: {here:?}");
        }
        other.finish();
    }
}

#[test]
fn an_allocation_in_use_is_opened_once() {
    let _alone = alone();
    let node = Node::new();
    let (mut other, peer) = Other::start(&node);
    let memory = on(HERE, &pattern(3, 20_000));
    for _ in 0..40 {
        let [1] = other.ask([RECEIVE, 2, 20_000, 0]) else { panic!() };
        node.endpoint.send(peer, part(&memory, 20_000)).unwrap();
        assert_eq!(other.ask([CHECK, 0, 20_000, 3]), [1]);
        node.next().ok().unwrap();
    }
    let [by_handle, bounced, _, opened, refused, _] = other.statistics();
    assert!(by_handle >= 30 && bounced >= 1, "{by_handle} {bounced}");
    assert_eq!((opened, refused), (2, 0), "the allocation and the slots");
    other.finish();
}

#[test]
fn writes_and_reads_between_all_places() {
    let _alone = alone();
    for (from, to) in [(1, 2), (1, 1), (1, 0), (0, 1)] {
        let node = Node::new();
        let (mut other, peer) = Other::start(&node);
        let length = 16 << 20;
        let remote = other.register(to, length, 1);
        let memory = on(place(from), &vec![0; length]);
        for (round, length) in [SIZES, SIZES].concat().into_iter().enumerate() {
            let seed = 10 + round as u64;
            memory.write(0, &pattern(seed, length)).unwrap();
            node.endpoint.write(peer, remote, part(&memory, length)).unwrap();
            node.next().ok().unwrap();
            assert_eq!(other.ask([VERIFY, 0, length as u64, seed]), [1], "{length} bytes written");
            memory.write(0, &vec![0; length]).unwrap();
            node.endpoint.read(peer, remote, part(&memory, length)).unwrap();
            node.next().ok().unwrap();
            assert!(memory.to_vec(0, length).unwrap() == pattern(seed, length), "{length} bytes read");
        }
        let here = node.statistics();
        if to == 0 {
            assert_eq!((here.by_handle, here.handles_opened), (0, 0), "{here:?}");
        } else {
            assert!(here.by_handle >= 30, "{here:?}");
            assert_eq!((here.handles_opened, here.handles_refused), (1, 0), "{here:?}");
        }
        // Many at once, and a fence behind them.
        for index in 0..32u64 {
            let buffer = Buffer::from_region(&memory, (index as usize) << 18, 1 << 18).unwrap();
            node.endpoint.write(peer, remote.at(index << 18), buffer).unwrap();
        }
        (0..32).for_each(|_| drop(node.next().ok().unwrap()));
        // Counting on device memory is the target's business.
        if to != 0 {
            node.endpoint.fetch_add(peer, remote, 1u64).unwrap();
            node.next().ok().unwrap();
        }
        other.finish();
    }
}

#[test]
fn a_deregistered_region_is_closed_and_refused() {
    let _alone = alone();
    let node = Node::new();
    let (mut other, peer) = Other::start(&node);
    let (memory, another) = (on(HERE, &pattern(5, 1 << 20)), on(HERE, &pattern(6, 1 << 20)));
    for round in 0..5 {
        let remote = other.register(2, 1 << 20, 0);
        for _ in 0..20 {
            node.endpoint.write(peer, remote, part(&memory, 1 << 20)).unwrap();
            node.next().ok().unwrap();
        }
        assert_eq!(other.ask([VERIFY, 0, 1 << 20, 5]), [1]);
        // While some are under way: each ends well or is refused.
        for index in 0..40 {
            let source = if index % 2 == 0 { &memory } else { &another };
            node.endpoint.write(peer, remote, part(source, 1 << 20)).unwrap();
        }
        assert_eq!(other.ask([DEREGISTER, 0, 0, 0]), [1], "somebody wrote behind the deregistration");
        let late = node.endpoint.write(peer, remote, part(&memory, 1 << 20)).unwrap();
        for _ in 0..41 {
            let Completion { result, context, .. } = node.next();
            assert!(result.is_ok() && context != late || result == Err(Failure::AccessRefused), "{result:?}");
        }
        let start = Instant::now();
        while emulated_imports() > 0 {
            assert!(start.elapsed() < PATIENCE, "round {round}: the region stays open");
            node.domain.progress().unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    assert!(node.statistics().by_handle >= 50, "{:?}", node.statistics());
    other.finish();
}

/// Mappings that this process has of others' memory.
fn emulated_imports() -> u64 {
    emulated::statistics().imports
}

#[test]
fn what_nobody_fetches_can_be_cancelled() {
    let _alone = alone();
    let node = Node::new();
    let (mut other, peer) = Other::start(&node);
    let memory = on(HERE, &pattern(6, 1 << 20));
    for _ in 0..10 {
        let context = node.endpoint.send(peer, part(&memory, 1 << 20)).unwrap();
        node.endpoint.cancel(context);
        let ended = node.next();
        assert_eq!((ended.context, ended.result), (context, Err(Failure::Cancelled)));
    }
    let [1] = other.ask([RECEIVE, 1, 1 << 20, 0]) else { panic!() };
    node.endpoint.send(peer, part(&memory, 1 << 20)).unwrap();
    assert_eq!(other.ask([CHECK, 0, 1 << 20, 6]), [1]);
    node.next().ok().unwrap();
    other.finish();
}

#[test]
fn a_peer_that_does_not_let_go_loses_its_channel() {
    let _alone = alone();
    let node = Node::new();
    let (mut other, _) = Other::start(&node);
    let region = node.domain.register(on(HERE, &[1; 4096]), Access::REMOTE).unwrap();
    assert_eq!(other.ask([HOLD, 0, 0, region.key()]), [1]);
    // It ends, though the peer says that it is at it.
    drop(region);
    assert_eq!(node.statistics().held, 1);
    tell(&mut other.socket, &[0]);
    other.finish();
}

#[test]
fn what_cannot_be_opened_by_others_goes_through_slots_or_the_host() {
    let _alone = alone();
    let node = Node::new();
    let (mut other, peer) = Other::start(&node);
    let (source, device) = (on(HERE, &pattern(4, 1 << 20)), operations(Kind::Emulated).unwrap());
    let base = device.import(&exported(&source)).unwrap();
    // SAFETY: it is released below, behind its last use.
    let memory = unsafe { raw::Memory::from_device_raw(HERE, base as *mut u8, 1 << 20, true).unwrap() };
    for (round, length) in [20_000, 20_000, 20_000, 1 << 20, 64 << 10].into_iter().enumerate() {
        let [1] = other.ask([RECEIVE, 2, length as u64, 0]) else { panic!() };
        node.endpoint.send(peer, part(&memory, length)).unwrap();
        assert_eq!(other.ask([CHECK, 0, length as u64, 4]), [1], "round {round}");
        drop(node.next().ok().unwrap());
    }
    let here = node.statistics();
    let [by_handle, bounced, ..] = other.statistics();
    assert_eq!((by_handle, bounced), (0, here.bounced));
    assert!(here.bounced >= 2 && here.staged >= 1 && here.bounced + here.staged == 5, "{here:?}");
    other.finish();
    drop((memory, node));
    // SAFETY: nobody uses it any more.
    unsafe { device.release(base).unwrap() };
}

#[test]
fn a_peer_that_is_killed_harms_nobody() {
    let _alone = alone();
    let node = Node::new();
    let (mut friend, to_friend) = Other::start(&node);
    for round in 0..6 {
        let (mut victim, to_victim) = Other::start(&node);
        let remote = victim.register(2, 16 << 20, 1);
        let source = on(HERE, &pattern(2, 16 << 20));
        // So that it is reached by handle.
        for _ in 0..3 {
            node.endpoint.write(to_victim, remote, part(&source, 16 << 20)).unwrap();
            node.next().ok().unwrap();
        }
        let place = if round % 2 == 0 { HERE } else { Place::HOST };
        let received: Vec<raw::Memory> = (0..8).map(|_| on(place, &vec![0; 16 << 20])).collect();
        for memory in &received {
            node.endpoint.receive(part(memory, 16 << 20)).unwrap();
        }
        for seed in 0..4 {
            let [1] = victim.ask([SEND, 1, 16 << 20, seed]) else { panic!() };
        }
        for _ in 0..4 {
            node.endpoint.write(to_victim, remote, part(&source, 16 << 20)).unwrap();
            node.endpoint.read(to_victim, remote, part(&source, 16 << 20)).unwrap();
            node.endpoint.send(to_victim, part(&source, 1 << 20)).unwrap();
        }
        std::thread::sleep(Duration::from_millis(round));
        victim.kill();
        // All that were for it end; so do the receives that had met a message of it.
        let (mut ended, mut receives, start) = (0, 0, Instant::now());
        while ended < 12 {
            assert!(start.elapsed() < PATIENCE, "hangs: {ended}");
            let completion = node.next();
            match completion.kind {
                weft::CompletionKind::Receive => receives += 1,
                _ => ended += 1,
            }
        }
        // The other one is served as ever; what was posted for anybody meets its messages.
        for seed in 0..(8 - receives) {
            let [1] = friend.ask([SEND, 2, 16 << 20, seed]) else { panic!() };
        }
        while receives < 8 {
            let completion = node.next();
            assert_eq!(completion.kind, weft::CompletionKind::Receive);
            receives += 1;
        }
        let [1] = friend.ask([RECEIVE, 2, 1 << 20, 0]) else { panic!() };
        source.write(0, &pattern(9, 1 << 20)).unwrap();
        node.endpoint.send(to_friend, part(&source, 1 << 20)).unwrap();
        assert_eq!(friend.ask([CHECK, 0, 1 << 20, 9]), [1]);
        node.next().ok().unwrap();
    }
    friend.finish();
}

#[test]
fn memory_that_is_freed_and_used_again_is_noticed() {
    let _alone = alone();
    let node = Node::new();
    let (mut other, peer) = Other::start(&node);
    let (mut addresses, mut again) = (Vec::new(), 0);
    for seed in 0..100u64 {
        let memory = on(HERE, &pattern(seed, 100_000));
        again += u64::from(addresses.contains(&memory.as_ptr()));
        addresses.push(memory.as_ptr());
        let [1] = other.ask([RECEIVE, 2, 100_000, 0]) else { panic!() };
        node.endpoint.send(peer, part(&memory, 100_000)).unwrap();
        assert_eq!(other.ask([CHECK, 0, 100_000, seed]), [1], "bytes of now, not of what was there before");
        node.next().ok().unwrap();
    }
    assert!(again > 0, "no address was used again");
    // What is gone is closed there, without another message.
    let start = Instant::now();
    loop {
        let [by_handle, .., imports] = other.statistics();
        assert_eq!(by_handle, 100);
        if imports == 0 {
            break;
        }
        assert!(start.elapsed() < PATIENCE, "{imports} stay open");
        node.domain.progress().unwrap();
    }
    other.finish();
}

// What the library does not show: the notes and records of the road, as a peer that lies writes them.

const OFFER: u8 = 4;
const DATA: u8 = 5;
const ATTACH: u8 = 11;
const BY_HANDLE: u8 = 32;
const PULL: u8 = 2;
const ANSWER: u8 = 1;

/// A note about a handle.
fn note(handle: &Handle) -> Vec<u8> {
    let place = u64::from(handle.place.device) << 8 | u64::from(handle.place.kind as u8);
    let words = [1, place, handle.id, handle.length, 0, 0, 0, 0, 0];
    let mut bytes: Vec<u8> = words.iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
    bytes.extend(handle.bytes);
    bytes
}

fn exported(memory: &raw::Memory) -> Handle {
    operations(Kind::Emulated).unwrap().export(memory.as_ptr() as u64).unwrap()
}

struct Liar {
    /// Keeps the port, and with it the name, from others.
    _own: std::net::UdpSocket,
    link: LinkNode,
    channel: InitiatorChannel,
}

impl Liar {
    fn new(to: Address) -> Liar {
        let kept = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let own = kept.local_addr().unwrap();
        let mut link = LinkNode::open(own).unwrap();
        let session = Fabric::new("device-node").unwrap().session_id();
        let source = Address { socket: own, endpoint: 1 }.to_bytes();
        let hello = Hello { source, target_endpoint: to.endpoint, session, words: [0; 4] };
        let channel = link.connect(to.socket, &hello).unwrap();
        Liar { _own: kept, link, channel }
    }

    fn offer(&mut self, place: Place, id: u64, offset: u64, length: u64) {
        let words = [u64::from(place.device) << 8 | u64::from(place.kind as u8), id, offset];
        let payload: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let record = Record { kind: OFFER, flags: BY_HANDLE, words: [0, 0, length, 0] };
        self.channel.messages().push(&record, &payload).unwrap();
    }

    /// The word of the region that it is given.
    fn granted(&mut self) -> usize {
        let start = Instant::now();
        loop {
            let mut events = Vec::new();
            let _ = self.link.poll(&mut events);
            for event in events {
                if let NodeEvent::Note { bytes, .. } = event {
                    return u32::from_le_bytes(bytes[36..40].try_into().unwrap()) as usize;
                }
            }
            assert!(start.elapsed() < PATIENCE, "hangs");
        }
    }

    /// The next answer that is not a welcome.
    fn next(&mut self) -> Record {
        let start = Instant::now();
        loop {
            let _ = self.link.poll(&mut Vec::new());
            if let Some(incoming) = self.channel.responses().peek().unwrap() {
                let record = incoming.record();
                self.channel.responses().advance();
                if record.kind == PULL || record.kind == ANSWER {
                    return record;
                }
            }
            assert!(start.elapsed() < PATIENCE, "hangs");
        }
    }
}

#[test]
fn lying_handles_are_refused() {
    let _alone = alone();
    let node = Node::new();
    let good = on(HERE, &pattern(1, 100_000));
    let file = || OwnedFd::from(File::open("/dev/zero").unwrap());
    let lies: Vec<(&str, Vec<u8>, Option<OwnedFd>)> = vec![
        ("nothing", vec![], None),
        ("garbage", vec![0xA5; 136], None),
        ("half a note", note(&exported(&good))[..68].to_vec(), exported(&good).descriptor),
        ("no descriptor", note(&exported(&good)), None),
        ("another file", note(&exported(&good)), Some(file())),
        ("longer than it is", note(&Handle { length: 1 << 30, ..exported(&good) }), exported(&good).descriptor),
        ("no bytes", note(&Handle { length: 0, ..exported(&good) }), exported(&good).descriptor),
        ("made up", note(&Handle { bytes: [7; 64], ..exported(&good) }), exported(&good).descriptor),
        (
            "another's",
            note(&Handle { bytes: exported(&on(HERE, &[0; 8])).bytes, ..exported(&good) }),
            exported(&good).descriptor,
        ),
        (
            "no such device",
            note(&Handle { place: Place::new(Kind::Emulated, 77), ..exported(&good) }),
            exported(&good).descriptor,
        ),
        (
            "no such kind here",
            note(&Handle { place: Place::new(Kind::Rocm, 0), ..exported(&good) }),
            exported(&good).descriptor,
        ),
    ];
    let id = exported(&good).id;
    let imports = emulated_imports();
    for (lie, bytes, descriptor) in lies {
        let mut liar = Liar::new(node.endpoint.address());
        let before = node.statistics();
        let memory = on(THERE, &[0xEE; 20_000]);
        node.endpoint.receive(part(&memory, 20_000)).unwrap();
        let descriptors: Vec<_> = descriptor.iter().map(AsFd::as_fd).collect();
        liar.channel.note(&bytes, &descriptors).unwrap();
        let place = if lie == "no such device" { Place::new(Kind::Emulated, 77) } else { HERE };
        liar.offer(place, id, 0, 20_000);
        // It is asked for the bytes instead.
        let pull = liar.next();
        assert_eq!((pull.kind, pull.words[2] > 0), (PULL, true), "{lie}");
        for (index, part) in pattern(8, 20_000).chunks(10_000).enumerate() {
            let record = Record { kind: DATA, flags: 0, words: [pull.words[1], index as u64 * 10_000, 0, 0] };
            liar.channel.messages().push(&record, part).unwrap();
        }
        node.next().ok().unwrap();
        assert!(memory.to_vec(0, 20_000).unwrap() == pattern(8, 20_000), "{lie}");
        let after = node.statistics();
        assert_eq!((after.handles_opened, after.by_handle, after.broken), (0, 0, 0), "{lie}: {after:?}");
        assert!(after.handles_refused > before.handles_refused, "{lie}");
    }
    assert_eq!(emulated_imports(), imports);
    // An honest one, before and behind its handle; and references to what is not inside.
    let mut liar = Liar::new(node.endpoint.address());
    let memory = on(THERE, &[0xEE; 20_000]);
    for late in [true, false] {
        node.endpoint.receive(part(&memory, 20_000)).unwrap();
        let handle = exported(&good);
        if late {
            liar.offer(HERE, id, 500, 20_000);
        }
        liar.channel.note(&note(&handle), &[handle.descriptor.as_ref().unwrap().as_fd()]).unwrap();
        if !late {
            liar.offer(HERE, id, 500, 20_000);
        }
        let answer = liar.next();
        if answer.kind == PULL {
            // It came too late.
            assert!(late);
            for (index, part) in pattern(1, 100_000)[500..20_500].chunks(10_000).enumerate() {
                let record = Record { kind: DATA, flags: 0, words: [answer.words[1], index as u64 * 10_000, 0, 0] };
                liar.channel.messages().push(&record, part).unwrap();
            }
        }
        node.next().ok().unwrap();
        assert!(memory.to_vec(0, 20_000).unwrap() == pattern(1, 100_000)[500..20_500]);
    }
    for offset in [80_001, 100_000, u64::MAX, u64::MAX - 19_999] {
        node.endpoint.receive(part(&memory, 20_000)).unwrap();
        liar.offer(HERE, id, offset, 20_000);
        let pull = liar.next();
        assert_eq!((pull.kind, pull.words[2] > 0), (PULL, true), "{offset}");
    }
    drop(liar);
    (0..4).for_each(|_| assert!(node.next().result.is_err()));
    assert!(node.statistics().by_handle > 0);
}
