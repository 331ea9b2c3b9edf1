//! What a channel costs: half a round trip of eight bytes, beside that of a bare cache line, and records each second.
//!
//! `cargo run --release -p weft-link --example ring` runs both sides as threads, pinned to the first two processors.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a measurement, not a product")]

use std::net::{SocketAddr, UdpSocket};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use weft_core::address::Address;
use weft_link::shm::{Hello, InitiatorChannel, Node, NodeEvent, PushError, Receiver, Record, Sender, TargetChannel};

const ROUNDS: u64 = 20_000;
const RECORDS: u64 = 200_000;
const BYTES: usize = 64 << 20;
/// How often each figure is taken. The best counts: others may use the processors meanwhile.
const REPEATS: usize = 25;

fn main() {
    let best = |measure: &dyn Fn() -> f64| (0..REPEATS).map(|_| measure()).fold(f64::INFINITY, f64::min);
    let line = best(&|| both(line_side));
    println!("cache line            {line:8.1} ns");
    let alone = best(&alone);
    println!("push, peek and advance of 8 bytes by one thread {alone:8.1} ns");
    let sleep = best(&sleep);
    println!("prepare_sleep         {sleep:8.1} ns");
    for length in [0, 8, 16, 80, 256, 1024, 4096] {
        let half = best(&|| with_channel(|out, back, first| ping(out, back, first, length)));
        println!("{length:5} bytes, half trip {half:8.1} ns, {:.2} of a line", half / line);
    }
    for length in [8, 64, 256, 4096, 16 << 10, 32 << 10, 64 << 10] {
        let each = best(&|| with_channel(|out, back, first| stream(out, back, first, length)));
        println!("{length:5} bytes, stream    {each:8.1} ns, {:.1} M/s, {:.2} GB/s", 1e3 / each, length as f64 / each);
    }
}

fn pin(processor: usize) {
    // SAFETY: zeros are an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set lives through both calls; a processor that is not there leaves us where we are.
    unsafe {
        libc::CPU_SET(processor, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
    }
}

/// Runs both sides; what the first says.
fn both(side: impl Fn(bool) -> f64 + Sync) -> f64 {
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            pin(1);
            side(false)
        });
        pin(0);
        let result = side(true);
        other.join().unwrap();
        result
    })
}

/// A word on a line of its own.
#[repr(align(128))]
struct Line(AtomicU64);
static LINES: [Line; 2] = [const { Line(AtomicU64::new(0)) }; 2];
static START: Barrier = Barrier::new(2);

fn line_side(first: bool) -> f64 {
    LINES[usize::from(!first)].0.store(0, Ordering::Relaxed);
    START.wait();
    let start = Instant::now();
    for round in 1..=ROUNDS {
        if first {
            LINES[0].0.store(round, Ordering::Release);
        }
        while LINES[usize::from(first)].0.load(Ordering::Acquire) != round {
            std::hint::spin_loop();
        }
        if !first {
            LINES[1].0.store(round, Ordering::Release);
        }
    }
    start.elapsed().as_nanos() as f64 / (2 * ROUNDS) as f64
}

/// Two nodes with a channel between them: the initiator's side first.
fn joined() -> (Node, InitiatorChannel, Node, TargetChannel) {
    let [a, b]: [UdpSocket; 2] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
    let [a, b]: [SocketAddr; 2] = [a.local_addr().unwrap(), b.local_addr().unwrap()];
    let (mut first, mut second) = (Node::open(a).unwrap(), Node::open(b).unwrap());
    let source = Address { socket: a, endpoint: 1 }.to_bytes();
    let hello = Hello { source, target_endpoint: 2, session: 3, words: [0; 4] };
    let initiator = first.connect(b, &hello).unwrap();
    let mut events = Vec::new();
    let target = loop {
        second.poll(&mut events).unwrap();
        if let Some(NodeEvent::Accepted(channel, _)) = events.pop() {
            break channel;
        }
    };
    (first, initiator, second, target)
}

fn with_channel(side: impl Fn(&mut Sender, &mut Receiver, bool) -> f64 + Sync) -> f64 {
    let (_first, mut initiator, _second, mut target) = joined();
    let halves = [std::sync::Mutex::new(target.halves()), std::sync::Mutex::new(initiator.halves())];
    both(|is_first| {
        let mut halves = halves[usize::from(is_first)].lock().unwrap();
        START.wait();
        let (sender, receiver) = &mut *halves;
        side(sender, receiver, is_first)
    })
}

/// Both sides by one thread: no cache line has to travel.
fn alone() -> f64 {
    let (_first, mut initiator, _second, mut target) = joined();
    let mut payload = [0; 8];
    let start = Instant::now();
    for number in 0..RECORDS {
        push(initiator.messages(), number, &payload);
        take(target.messages(), number, &mut payload);
    }
    start.elapsed().as_nanos() as f64 / RECORDS as f64
}

/// What going to sleep costs before it comes to sleeping.
fn sleep() -> f64 {
    let (_first, _initiator, _second, mut target) = joined();
    let start = Instant::now();
    for _ in 0..1000 {
        assert!(target.messages().prepare_sleep());
        target.messages().awake();
    }
    start.elapsed().as_nanos() as f64 / 1000.0
}

fn push(sender: &mut Sender, number: u64, payload: &[u8]) {
    let record = Record { kind: 1, flags: 0, words: [number, 2, 3, 4] };
    loop {
        match sender.push(&record, payload) {
            Ok(()) => return,
            Err(PushError::Full) => std::hint::spin_loop(),
            Err(error) => panic!("{error}"),
        }
    }
}

fn take(receiver: &mut Receiver, number: u64, into: &mut [u8]) {
    loop {
        if let Some(incoming) = receiver.peek().unwrap() {
            assert_eq!(incoming.record().words[0], number);
            assert!(incoming.segment().copy_to(into));
            break;
        }
        std::hint::spin_loop();
    }
    receiver.advance();
}

fn ping(sender: &mut Sender, receiver: &mut Receiver, first: bool, length: usize) -> f64 {
    let mut payload = vec![0; length];
    let start = Instant::now();
    for round in 0..ROUNDS {
        if first {
            push(sender, round, &payload);
        }
        take(receiver, round, &mut payload);
        if !first {
            push(sender, round, &payload);
        }
    }
    start.elapsed().as_nanos() as f64 / (2 * ROUNDS) as f64
}

/// Nanoseconds a record.
fn stream(sender: &mut Sender, receiver: &mut Receiver, first: bool, length: usize) -> f64 {
    let mut payload = vec![0; length];
    let records = RECORDS.min((BYTES / length) as u64);
    let start = Instant::now();
    for number in 0..records {
        if first {
            push(sender, number, &payload);
        } else {
            take(receiver, number, &mut payload);
        }
    }
    // The last one has arrived.
    if first {
        take(receiver, 0, &mut payload);
    } else {
        push(sender, 0, &payload);
    }
    start.elapsed().as_nanos() as f64 / records as f64
}
