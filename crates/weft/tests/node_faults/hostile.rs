//! A peer that is a genuine process of this user and then writes anything anywhere in what it can write, says nonsense,
//! and comes again.
//!
//! 10 million words: `WEFT_SCRIBBLES=10000000 cargo test --release -p weft --test node_faults hostile -- --nocapture`

use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use weft::{Access, Address, CompletionKind, Domain, Fabric, Level, Options, Progress, RemoteAddress};
use weft_link::shm::{Channel, Hello, InitiatorChannel, Node as Meeting, NodeEvent, Record, TargetChannel};

use crate::child::{self, Process};
use crate::common::Raise;
use crate::kill::{converse, held};
use crate::traffic::{self, Arena, Node, WINDOW, address_from_text, address_to_text, anywhere, random};
use crate::{PATIENCE, number};

/// Where a channel's control words and slots end, about: what is behind is only payload.
const HOT_BYTES: u64 = 230 << 10;
/// A request of the first kind of each side; there are fewer than this many.
const KINDS: u64 = 13;

/// A side of a channel.
enum Side {
    Initiator(InitiatorChannel),
    Target(TargetChannel),
}

impl Side {
    fn channel(&self) -> &Channel {
        match self {
            Side::Initiator(channel) => channel,
            Side::Target(channel) => channel,
        }
    }

    fn is_initiator(&self) -> bool {
        matches!(self, Side::Initiator(_))
    }

    /// Puts a record into the ring where it belongs, or into the other.
    fn push(&mut self, random: u64, record: &Record, payload: &[u8]) {
        let _ = match self {
            Side::Target(channel) => channel.responses().push(record, payload),
            Side::Initiator(channel) => {
                let is_transfer = matches!(record.kind, 3 | 5 | 7..=11);
                let right = !random.is_multiple_of(16);
                if is_transfer == right {
                    channel.transfers().push(record, payload)
                } else {
                    channel.messages().push(record, payload)
                }
            }
        };
    }

    /// The next record that came.
    fn take(&mut self) -> Option<Record> {
        let receivers = match self {
            Side::Initiator(channel) => return take(channel.responses()),
            Side::Target(channel) => channel,
        };
        take(receivers.messages()).or_else(|| take(receivers.transfers()))
    }
}

fn take(receiver: &mut weft_link::shm::Receiver) -> Option<Record> {
    let record = receiver.peek().ok()??.record();
    receiver.advance();
    Some(record)
}

struct Scribbler {
    seed: u64,
    /// Words that are still to be written.
    left: u64,
    /// Keys and addresses that mean something, which it was told.
    remotes: [RemoteAddress; 2],
}

impl Scribbler {
    fn random(&mut self) -> u64 {
        random(&mut self.seed)
    }

    /// A number that is worth trying.
    fn wild(&mut self) -> u64 {
        let value = self.random();
        match self.random() % 10 {
            0 => 0,
            1 => u64::MAX,
            2 => value % 4,
            3 => value % 1024,
            4 => 1 << (value % 64),
            5 => (1u64 << (value % 64)).wrapping_sub(1),
            6 => self.remotes[0].key,
            7 => self.remotes[1].key,
            // The head of a slot: a sequence number, a kind, flags, a length.
            8 => {
                (value % 600)
                    | (((value >> 20) % KINDS) << 32)
                    | ((value >> 32) % 32) << 40
                    | ((value >> 40) % 90) << 48
            }
            _ => value,
        }
    }

    /// A record that is right in places.
    fn record(&mut self) -> (Record, Vec<u8>) {
        let kind = (self.random() % KINDS) as u8;
        let flags = (self.random() % 33) as u8;
        let length = match self.random() % 8 {
            0 => 0,
            1 => 16,
            2 => 64,
            3 => 8,
            4 => 65_536,
            5 => 16_384,
            _ => self.random() as usize % 4000,
        };
        let length_word = match self.random() % 4 {
            0 => self.wild(),
            1 => length as u64 | (self.random() % 64) << 32,
            2 => (length as u64 + self.random() % 100_000) | (self.random() % 64) << 32,
            _ => self.random() % (1 << 21),
        };
        let remote = self.remotes[self.random() as usize % 2];
        let first = match self.random() % 3 {
            0 => self.wild(),
            1 => self.random() % 16,
            _ => remote.address.wrapping_add(self.wild() % (2 * WINDOW as u64)),
        };
        let key = if self.random().is_multiple_of(4) { self.wild() } else { remote.key };
        let words = [first, self.wild(), length_word, key];
        (Record { kind, flags, words }, vec![flags; length])
    }

    /// Writes words into a channel's memory: everywhere, or only where it matters most.
    fn scribble(&mut self, channel: &Channel, where_to: u64, count: u64) {
        let (start, bytes) = channel.data_memory();
        for _ in 0..count.min(self.left) {
            let room = match where_to {
                0 => bytes as u64,
                1 => HOT_BYTES,
                2 => 1024,
                3 => 4096 + 16 * 64,
                _ => bytes as u64 - HOT_BYTES,
            };
            let from = if where_to > 3 { HOT_BYTES } else { 0 };
            let offset = from + self.random() % room / 8 * 8;
            let value = self.wild();
            // SAFETY: the whole mapping may be written while the channel lives; the offset is aligned and inside of it.
            let word = unsafe { AtomicU64::from_ptr(start.add(offset as usize).cast()) };
            word.store(value, Ordering::Relaxed);
        }
        self.left = self.left.saturating_sub(count);
    }

    /// A request that is not nonsense by itself, so that the channel lives: what follows from many of them may be.
    fn plausible(&mut self) -> (Record, Vec<u8>) {
        let (token, small) = ((self.random() % 64) << 32, self.random() % 3000);
        let remote = self.remotes[self.random() as usize % 2];
        let at = remote.address.wrapping_add(self.random() % (WINDOW as u64 + 1000));
        let key = if self.random().is_multiple_of(8) { self.wild() } else { remote.key };
        let flags = self.random() as u8 & 3;
        let (tag, immediate) = (self.random() % 8, self.random());
        let (kind, flags, words, length) = match self.random() % 10 {
            0 | 1 => (1, flags, [tag, immediate, small, 0], small),
            // An offer, whose bytes may never come, or lie where nothing is.
            2 => (4, flags | 16, [tag, immediate, token | (self.random() % (1 << 21)), 0], 0),
            3 => {
                let (length, address) = (self.random() % (9 << 20), self.wild());
                let record = Record { kind: 4, flags: flags | 8, words: [tag, immediate, token | length, 0] };
                return (record, [address, length].iter().flat_map(|word| word.to_le_bytes()).collect());
            }
            4 => (6, 0, [0, 0, token, 0], 0),
            5 => (7, 0, [self.random() % 16, 0, 0, 0], 0),
            6 => (8, flags & 2, [at, immediate, token | small, key], small),
            7 => (9, 0, [at, 0, token | (self.random() % (1 << 20)), key], 0),
            8 => (
                10,
                0,
                [
                    at,
                    (self.random() % 20) | ((self.random() % 12) << 8) | 1 << 16 | (self.random() % 3) << 32,
                    token | 8,
                    key,
                ],
                8,
            ),
            _ => (11, 0, [0, 0, token, key], 0),
        };
        (Record { kind, flags, words }, vec![7; length as usize])
    }

    /// Does as an honest one does, for the most part.
    fn behave(&mut self, side: &mut Side) {
        if side.is_initiator() {
            for _ in 0..self.random() % 6 {
                let (record, payload) = self.plausible();
                // Honest as to the ring, too.
                side.push(1, &record, &payload);
            }
        }
        for _ in 0..self.random() % 16 {
            let Some(question) = side.take() else { return };
            let token = question.words[2] >> 32;
            let (kind, words, length) = match (side.is_initiator(), question.kind) {
                // Pulled: a part of it, or it is given up.
                (true, 2) if self.random().is_multiple_of(2) => {
                    (5, [question.words[1], 0, 0, 0], 1 + self.random() % 9000)
                }
                (true, 2) => (7, [question.words[1], 0, 0, 0], 0),
                (false, 11) => {
                    self.grant(side.channel(), token);
                    continue;
                }
                (false, 4) => (2, [token, self.random() % 2000, 0, 0], 0),
                (false, 9) => (3, [token, 0, 0, 0], 1 + self.random() % 16_000),
                (false, 8 | 10) => (1, [token, self.random() % 12, 0, 0], 0),
                _ => continue,
            };
            side.push(1, &Record { kind, flags: 0, words }, &vec![7; length as usize]);
        }
    }

    /// Says something to whoever is at the other end.
    fn speak(&mut self, side: &mut Side) {
        for _ in 0..self.random() % 6 {
            let (record, payload) = self.record();
            // What there is no room for, or what our own copy of the ring forbids, is not said.
            side.push(self.random(), &record, &payload);
        }
        if self.random().is_multiple_of(3) {
            return;
        }
        // Answers to questions, right in the name at least.
        let mut questions = Vec::new();
        while questions.len() < 16
            && let Some(record) = side.take()
        {
            questions.push(record);
        }
        for question in questions {
            let token = question.words[2] >> 32;
            // A question for memory is often answered with some.
            if question.kind == 11 && !self.random().is_multiple_of(4) {
                self.grant(side.channel(), token);
                continue;
            }
            let code = if self.random().is_multiple_of(2) { 0 } else { self.wild() };
            let words = [token, code, self.wild(), self.wild()];
            let kind = (1 + self.random() % 5) as u8;
            let length = self.random() as usize % 20_000;
            side.push(self.random(), &Record { kind, flags: 0, words }, &vec![7; length]);
            self.grant(side.channel(), token);
        }
    }

    /// A note that gives memory, or something like it.
    fn grant(&mut self, channel: &Channel, token: u64) {
        let (length, kind) = (self.random() % (1 << 20), self.random() % 6);
        let memory = memory_file(length, kind & 1 == 0);
        let word = match self.random() % 3 {
            0 => self.wild(),
            _ => 3 + self.random() % 300,
        };
        let claimed = if kind < 4 { length } else { self.wild() };
        let base = if kind < 3 { 0 } else { self.wild() };
        channel.shared_word(word as usize).store(u64::from(kind != 2), Ordering::SeqCst);
        let mut bytes: Vec<u8> =
            [word << 32 | token, base, claimed, 7].iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.truncate(self.random() as usize % 256);
        let descriptors: Vec<BorrowedFd<'_>> = (0..1 + self.random() % 8).map(|_| memory.as_fd()).collect();
        let _ = channel.note(&bytes, &descriptors);
    }
}

/// Memory of some length, which may be cut later or not.
fn memory_file(length: u64, sealed: bool) -> OwnedFd {
    let name = CString::new("hostile").unwrap();
    // SAFETY: the name ends with a zero; what is given is a descriptor of our own.
    let file = unsafe { OwnedFd::from_raw_fd(libc::memfd_create(name.as_ptr(), libc::MFD_ALLOW_SEALING)) };
    // SAFETY: changes a file of ours.
    unsafe { libc::ftruncate(file.as_raw_fd(), length as libc::off_t) };
    if sealed {
        // SAFETY: changes a file of ours.
        unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW) };
    }
    file
}

/// A socket to the node of a user at an address, without a word.
pub(crate) fn bare_connection(user: u32, to: SocketAddr) -> Option<OwnedFd> {
    let name = format!("\0weft.{user}.{}.{}", to.ip(), to.port());
    // SAFETY: no memory is involved; what is given is a descriptor of our own.
    let socket =
        unsafe { OwnedFd::from_raw_fd(libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK, 0)) };
    // SAFETY: zeros are a valid address.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    address.sun_path.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from as libc::c_char);
    let length = (std::mem::offset_of!(libc::sockaddr_un, sun_path) + name.len()) as libc::socklen_t;
    // SAFETY: the address has this length.
    let connected = unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), length) };
    (connected == 0).then_some(socket)
}

/// Sends bytes, with a descriptor if there is one.
fn say(socket: &OwnedFd, bytes: &[u8], descriptor: Option<&OwnedFd>) {
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut control = [0u64; 4];
    // SAFETY: zeros are a valid header.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&raw mut part, 1);
    if let Some(descriptor) = descriptor {
        header.msg_control = control.as_mut_ptr().cast();
        // SAFETY: it only computes.
        header.msg_controllen = unsafe { libc::CMSG_SPACE(4) } as usize;
        // SAFETY: there is room for one control message with one descriptor.
        unsafe {
            let first = libc::CMSG_FIRSTHDR(&raw const header);
            (*first).cmsg_level = libc::SOL_SOCKET;
            (*first).cmsg_type = libc::SCM_RIGHTS;
            (*first).cmsg_len = libc::CMSG_LEN(4) as usize;
            libc::CMSG_DATA(first).cast::<i32>().write_unaligned(descriptor.as_raw_fd());
        }
    }
    // SAFETY: the header names memory that lives through the call.
    unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const header, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
}

/// The process that means ill. It does not stop before it was noticed: it could be done before the other side has run at
/// all.
pub(crate) fn hostile(arguments: &[String]) {
    let (noticed, over) = child::hear_parent();
    let victim = address_from_text(&arguments[0]);
    let own: SocketAddr = arguments[1].parse().unwrap();
    let numbers: Vec<u64> = arguments[2..].iter().map(|word| word.parse().unwrap()).collect();
    let remote = |at: usize| RemoteAddress { address: numbers[at], key: numbers[at + 1] };
    let mut scribbler = Scribbler { seed: numbers[1], left: numbers[0], remotes: [remote(2), remote(4)] };
    let session = Fabric::new(traffic::FABRIC).unwrap().session_id();
    let _taken = UdpSocket::bind(own).unwrap();
    let mut meeting = Meeting::open(own).unwrap();
    let mut strangers: Vec<OwnedFd> = Vec::new();
    // Channels, and where words go into each; from 5 on it is talked to for a while.
    let mut channels: Vec<(Side, u64)> = Vec::new();
    let mut events = Vec::new();
    let mut rounds = 0u64;
    while (scribbler.left > 0 || !noticed.load(Ordering::Relaxed)) && !over.load(Ordering::Relaxed) {
        rounds += 1;
        let _ = meeting.poll(&mut events);
        for event in events.drain(..) {
            match event {
                NodeEvent::Accepted(channel, _) => {
                    let mut side = Side::Target(channel);
                    if !scribbler.random().is_multiple_of(4) {
                        side.push(1, &Record { kind: 5, flags: 0, words: [0; 4] }, &[]);
                    }
                    channels.push((side, scribbler.random() % 10));
                }
                NodeEvent::Closed(id) => {
                    meeting.close(id);
                    channels.retain(|(side, _)| side.channel().id() != id);
                }
                NodeEvent::Note { .. } => {}
            }
        }
        if channels.iter().filter(|(side, _)| side.is_initiator()).count() < 4 {
            let mut source = Address { socket: own, endpoint: 1 };
            let mut target_endpoint = victim.endpoint;
            let mut session = session;
            match scribbler.random() % 16 {
                0 => source.socket = victim.socket,
                1 => target_endpoint = scribbler.wild() as u32,
                2 => session = scribbler.wild() as u32,
                _ => {}
            }
            let words = [scribbler.wild(), scribbler.wild(), 0, 0];
            let hello = Hello { source: source.to_bytes(), target_endpoint, session, words };
            if let Ok(channel) = meeting.connect(victim.socket, &hello) {
                channels.push((Side::Initiator(channel), scribbler.random() % 10));
            }
        }
        if channels.len() > 12 {
            let (side, _) = channels.swap_remove(scribbler.random() as usize % 12);
            meeting.close(side.channel().id());
        }
        for (side, where_to) in &mut channels {
            if *where_to < 5 {
                scribbler.speak(side);
                scribbler.scribble(side.channel(), *where_to, 64);
            } else {
                scribbler.behave(side);
            }
            if scribbler.random().is_multiple_of(256) {
                *where_to = scribbler.random() % 7;
            }
            let note: Vec<u8> = (0..scribbler.random() % 40).map(|_| scribbler.random() as u8).collect();
            if scribbler.random().is_multiple_of(8) {
                let _ = side.channel().note(&note, &[]);
            }
        }
        if rounds.is_multiple_of(4) {
            if strangers.len() > 200 {
                strangers.clear();
            }
            // SAFETY: no memory is involved, and it cannot fail.
            let user = unsafe { libc::geteuid() };
            if let Some(socket) = bare_connection(user, victim.socket) {
                let mut hello = b"weft\x01\0\0\0".to_vec();
                hello.extend(Address { socket: own, endpoint: 1 }.to_bytes());
                hello.extend(victim.endpoint.to_le_bytes());
                hello.extend(session.to_le_bytes());
                hello.extend([0; 32]);
                match scribbler.random() % 5 {
                    0 => {}
                    1 => say(&socket, &hello, None),
                    2 => say(&socket, &hello, Some(&memory_file(scribbler.random() % (4 << 20), true))),
                    3 => say(&socket, &hello, Some(&memory_file(4 << 20, false))),
                    _ => say(&socket, &vec![1; scribbler.random() as usize % 8000], None),
                }
                strangers.push(socket);
            }
        }
    }
    println!("{rounds} rounds");
}

/// Operations of all kinds with a peer that does with them as it pleases; receives for whatever it sends.
struct Exposed {
    node: Node,
    arena: Arena,
    /// Kinds of the operations under way, by their context.
    pending: HashMap<u64, u64>,
    receives: HashSet<u64>,
    step: u64,
    ended: u64,
    received: u64,
}

impl Exposed {
    fn new(domain: &Domain) -> Exposed {
        let (pending, receives) = (HashMap::new(), HashSet::new());
        Exposed { node: Node::on(domain), arena: Arena::new(12), pending, receives, step: 0, ended: 0, received: 0 }
    }

    fn post(&mut self, hostile: Address) {
        let endpoint = &self.node.endpoint;
        while self.receives.len() < 6 {
            let tagged = self.receives.len().is_multiple_of(2);
            let posted = self.arena.lend(WINDOW, |buffer| match tagged {
                true => endpoint.tagged_receive(0, u64::MAX, buffer),
                false => endpoint.receive(buffer),
            });
            let Ok(Some(context)) = posted else { break };
            self.receives.insert(context);
        }
        let peer = self.node.domain.addresses().insert(hostile).unwrap();
        let remote = RemoteAddress { address: 0, key: self.step % 40 };
        for _ in 0..8 {
            if self.pending.len() >= 200 {
                return;
            }
            self.step += 1;
            let delivered = Options { level: Level::Delivered, ..Default::default() };
            let posted = match self.step % 9 {
                0 => endpoint.tagged_send(peer, self.step, vec![1; 8]),
                1 => endpoint.send(peer, vec![1; 50_000]),
                2 => endpoint.tagged_send(peer, self.step, vec![1; 200_000]),
                3 => endpoint.tagged_send_with(peer, self.step, vec![1; 100], delivered),
                4 => endpoint.write(peer, remote, vec![1; 100]),
                5 => endpoint.write(peer, remote, vec![1; 100_000]),
                6 => endpoint.fetch_add(peer, remote, 1u64),
                7 => endpoint.compare_swap(peer, remote, 1u64, 2u64),
                _ => match self.arena.lend(50_000, |buffer| endpoint.read(peer, remote, buffer)) {
                    Ok(Some(context)) => Ok(context),
                    Ok(None) => continue,
                    Err(refused) => Err(refused),
                },
            };
            match posted {
                Ok(context) => assert!(self.pending.insert(context, self.step % 9).is_none()),
                Err(_) => return,
            }
        }
    }

    fn take(&mut self, wait: Duration) -> bool {
        let Some(completion) = self.node.queue.wait(Some(wait)).unwrap() else { return false };
        let context = completion.context;
        match completion.kind {
            CompletionKind::RemoteWrite => {}
            CompletionKind::Receive | CompletionKind::TaggedReceive => {
                assert!(self.receives.remove(&context), "a receive ends once");
                self.received += 1;
            }
            _ => {
                assert!(self.pending.remove(&context).is_some(), "an operation ends once: {completion:?}");
                self.ended += 1;
            }
        }
        drop(completion);
        self.arena.returned(context);
        true
    }
}

fn endure(progress: Progress, scribbles: u64, seed: u64) {
    let domain = Node::new(anywhere(), progress).domain;
    // Canaries on both sides of what the hostile peer has the key of.
    let around = weft_mem::MemoryRegion::from_vec(vec![0xc5; WINDOW + 2 * 4096]);
    // SAFETY: the memory lives as long as `around`, which is dropped behind the registration.
    let inner = unsafe { weft_mem::MemoryRegion::from_raw(around.as_ptr().add(4096), WINDOW) };
    let regions = [
        domain.register(WINDOW - 100, Access::REMOTE).unwrap(),
        domain.register(weft::Registrable::from(inner), Access::REMOTE).unwrap(),
    ];
    let friend = Node::on(&domain);
    let mut third = Process::start("third", &[address_to_text(friend.endpoint.address())], |_| {});
    let own = crate::place();
    let (over, exchanged) = (AtomicBool::new(false), AtomicU64::new(0));
    let (mut ended, mut received) = (0, 0);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let _whatever_happens = Raise(&over);
            converse(&friend, &over, &exchanged);
        });
        let _whatever_happens = Raise(&over);
        while exchanged.load(Ordering::Relaxed) == 0 && !over.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        let before = held();
        let mut exposed = Exposed::new(&domain);
        let mut arguments = vec![address_to_text(exposed.node.endpoint.address()), own.to_string()];
        arguments.extend([scribbles.to_string(), seed.to_string()]);
        for region in &regions {
            arguments.extend([region.address().to_string(), region.key().to_string()]);
        }
        let mut process = Process::start("hostile", &arguments, |_| {});
        let hostile = Address { socket: own, endpoint: 1 };
        let (mut last, mut moved) = (0, Instant::now());
        let (mut is_noticed, start) = (false, Instant::now());
        let status = loop {
            if let Some(status) = process.ended() {
                break status;
            }
            if !is_noticed && domain.local_statistics().broken > 0 {
                is_noticed = true;
                process.enough();
            }
            assert!(is_noticed || start.elapsed() < PATIENCE, "nonsense is not noticed");
            // Only when it is there: what is meant for nobody goes as packets, and takes long to fail.
            if domain.local_statistics().visitors > 1 {
                exposed.post(hostile);
            }
            for _ in 0..64 {
                if !exposed.take(Duration::from_micros(50)) {
                    break;
                }
            }
            let now = exchanged.load(Ordering::Relaxed);
            if now > last {
                (last, moved) = (now, Instant::now());
            }
            assert!(moved.elapsed() < PATIENCE && third.ended().is_none(), "the third process goes on");
        };
        assert!(status.success(), "the hostile process came to its end: {status}");
        let start = Instant::now();
        while !exposed.pending.is_empty() {
            exposed.take(Duration::from_millis(10));
            let state = domain.state();
            assert!(start.elapsed() < 2 * PATIENCE, "operations do not end: {:?}; {state:?}", exposed.pending);
        }
        exposed.arena.assert_canaries();
        (ended, received) = (exposed.ended, exposed.received);
        drop((exposed, process));
        let start = Instant::now();
        while held().0 > before.0 || held().1 > before.1 {
            assert!(start.elapsed() < PATIENCE, "descriptors and mappings stay: {:?}, not {before:?}", held());
            domain.progress().unwrap();
        }
        over.store(true, Ordering::Relaxed);
    });
    for at in [0, 4096 + WINDOW] {
        assert!(around.to_vec(at, 4096).unwrap() == [0xc5; 4096], "a canary of the region at {at}");
    }
    let statistics = domain.local_statistics();
    println!(
        "{progress:?}: {ended} operations ended, {received} messages received, {exchanged:?} exchanged with the third process; {statistics:?}"
    );
    assert!(statistics.broken > 0, "nonsense was noticed");
    assert!(third.finish().success(), "the third process has seen everything in order and intact");
    drop(regions);
}

#[test]
fn a_hostile_peer_harms_only_itself() {
    let _alone = crate::alone();
    let scribbles = number("WEFT_SCRIBBLES", 1_000_000);
    let seed = number("WEFT_SEED", u64::from(std::process::id())) | 1;
    println!("WEFT_SEED={seed}");
    endure(Progress::Automatic, scribbles / 2, seed);
    endure(Progress::Manual, scribbles / 2, seed ^ 0x5555);
}
