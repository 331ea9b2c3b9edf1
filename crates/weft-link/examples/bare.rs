//! What this machine's UDP can do over loopback, bare and through a [`Link`]: half round trip, bandwidth, message rate.
//!
//! `cargo run --release -p weft-link --example bare [SECONDS]`. Bare and link runs alternate, and the best run of each
//! counts, so that what else the machine does disturbs neither; the ratio is what matters. A ping-pong's figure is the
//! median of its rounds.
#![expect(clippy::unwrap_used, reason = "a measurement that cannot run should say where")]

use std::net::{SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use weft_link::bare::{self, Moved};
use weft_link::udp::{Config, UdpLink};
use weft_link::{Link, Outgoing, Segment};

const REPEATS: usize = 15;
/// Few, so that some run falls between what else the machine does.
const ROUNDS: usize = 3000;
/// Ends a measurement; see `bare`.
const END: &[u8] = b"ww";

fn main() {
    let seconds: f64 = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(0.4);
    let duration = Duration::from_secs_f64(seconds);
    println!("{:36} {:>9} {:>9} {:>7}", "", "bare", "link", "ratio");
    for (index, call) in ["send", "receive", "receive of nothing"].into_iter().enumerate() {
        let name = format!("one {call}, 8 B, ns");
        let pick = move |calls: [f64; 3]| calls.get(index).copied().unwrap_or(f64::NAN);
        compare(&name, f64::min, || pick(bare_calls()), || pick(link_calls()));
    }
    for size in [8, 64, 4096] {
        let name = format!("half round trip, {size} B, ns");
        compare(&name, f64::min, || bare_ping_pong(size), || link_ping_pong(size));
    }
    for segment in [1400, 8192, 16 << 10, 32 << 10, 65_507] {
        let name = format!("stream of {segment} B, GB/s received");
        compare(
            &name,
            f64::max,
            || bare_stream(segment, duration).gigabytes_per_second(),
            || link_stream(segment, duration, 1).gigabytes_per_second(),
        );
    }
    compare(
        "messages of 8 B, million/s received",
        f64::max,
        || bare_messages(duration).million_per_second(),
        || link_stream(8, duration, 32).million_per_second(),
    );
}

/// Runs both in turn, and prints the best of each and their ratio.
fn compare(name: &str, better: fn(f64, f64) -> f64, mut bare: impl FnMut() -> f64, mut link: impl FnMut() -> f64) {
    let (mut of_bare, mut of_link) = (f64::NAN, f64::NAN);
    for _ in 0..REPEATS {
        of_bare = better(of_bare, bare());
        of_link = better(of_link, link());
    }
    println!("{name:36} {of_bare:9.3} {of_link:9.3} {:7.3}", of_link / of_bare);
}

fn local() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// Two bare sockets that are connected to each other.
fn sockets(join: bool) -> (UdpSocket, UdpSocket) {
    let (a, b) = (bare::socket(local(), join).unwrap(), bare::socket(local(), join).unwrap());
    a.connect(b.local_addr().unwrap()).unwrap();
    b.connect(a.local_addr().unwrap()).unwrap();
    (a, b)
}

fn links() -> (UdpLink, UdpLink) {
    (UdpLink::open(local(), &Config::default()).unwrap(), UdpLink::open(local(), &Config::default()).unwrap())
}

/// Keeps the calling thread on one core: two spinning threads must not share one.
fn pin(core: usize) {
    // SAFETY: the set is plain bits, written before it is read, and only this thread's own mask changes.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set);
    }
}

/// One side on each core; gives what the first gives.
fn both<A: Send, B: Send>(a: impl FnOnce() -> A + Send, b: impl FnOnce() -> B + Send) -> (A, B) {
    thread::scope(|scope| {
        let b = scope.spawn(|| {
            pin(1);
            b()
        });
        let a = scope.spawn(|| {
            pin(0);
            a()
        });
        (a.join().unwrap(), b.join().unwrap())
    })
}

/// Median times of one call each, on one core: send, receive, receive when nothing is there.
fn bare_calls() -> [f64; 3] {
    let (a, b) = sockets(false);
    let mut buffer = [0; 65_536];
    calls(|step| match step {
        0 => drop(a.send(&[7; 8]).unwrap()),
        1 => drop(b.recv(&mut buffer).unwrap()),
        _ => drop(b.recv(&mut buffer).unwrap_err()),
    })
}

fn link_calls() -> [f64; 3] {
    let (mut a, mut b) = links();
    let to = b.local();
    // The other way, too, so that both find their favourite.
    for _ in 0..100 {
        send(&mut b, a.local(), b"favourite", 0);
    }
    calls(|step| match step {
        0 => send(&mut a, to, &[7; 8], 0),
        // Not each call looks everywhere.
        1 => while b.receive(&mut |_| ()).unwrap() == 0 {},
        _ => assert_eq!(b.receive(&mut |_| ()).unwrap(), 0),
    })
}

fn calls(mut step: impl FnMut(usize)) -> [f64; 3] {
    pin(0);
    let mut times = [const { Vec::new() }; 3];
    for _ in 0..ROUNDS {
        for (index, times) in times.iter_mut().enumerate() {
            let start = Instant::now();
            step(index);
            times.push(start.elapsed().as_nanos() as u64);
        }
    }
    times.map(|mut times| {
        times.sort_unstable();
        times.get(times.len() / 2).copied().unwrap_or(0) as f64
    })
}

fn bare_ping_pong(size: usize) -> f64 {
    let (a, b) = sockets(false);
    let (halves, ()) =
        both(|| bare::ping_pong_client(&a, size, ROUNDS).unwrap(), || bare::ping_pong_server(&b).unwrap());
    halves.get(halves.len() / 2).copied().unwrap_or(0) as f64
}

fn bare_stream(segment: usize, duration: Duration) -> Moved {
    let (a, b) = sockets(true);
    both(|| bare::stream_receiver(&a, segment).unwrap(), || bare::stream_sender(&b, segment, duration).unwrap()).0
}

fn bare_messages(duration: Duration) -> Moved {
    let (a, b) = sockets(false);
    both(|| bare::message_receiver(&a).unwrap(), || bare::message_sender(&b, 8, duration).unwrap()).0
}

fn link_ping_pong(size: usize) -> f64 {
    let (mut a, mut b) = links();
    let (to_a, to_b) = (a.local(), b.local());
    let client = move || {
        let bytes = vec![7; size];
        let mut halves = Vec::with_capacity(ROUNDS);
        for _ in 0..ROUNDS {
            let start = Instant::now();
            send(&mut a, to_b, &bytes, 0);
            while a.receive(&mut |_| ()).unwrap() == 0 {}
            halves.push(start.elapsed().as_nanos() as u64 / 2);
        }
        send(&mut a, to_b, END, 0);
        halves.sort_unstable();
        halves
    };
    let server = move || {
        let mut buffer = Vec::new();
        loop {
            buffer.clear();
            while b.receive(&mut |incoming| buffer.extend_from_slice(incoming.bytes)).unwrap() == 0 {}
            if buffer == END {
                return;
            }
            send(&mut b, to_a, &buffer, 0);
        }
    };
    let (halves, ()) = both(client, server);
    halves.get(halves.len() / 2).copied().unwrap_or(0) as f64
}

fn send(link: &mut UdpLink, to: SocketAddr, bytes: &[u8], segment_bytes: usize) {
    let pieces = [Segment::from_slice(bytes)];
    while link
        .send(&[Outgoing { path: to.into(), pieces: &pieces, segment_bytes, class: 0, may_fragment: false }])
        .is_err()
    {}
}

/// Sends as fast as it can, `batch` sends in a call; gives what arrived.
fn link_stream(segment: usize, duration: Duration, batch: usize) -> Moved {
    let (mut a, mut b) = links();
    let to_a = a.local();
    let receiver = move || {
        let mut moved = Moved::default();
        let mut start = None;
        let mut last = Instant::now();
        let mut ended = false;
        while !ended {
            let got = a.receive(&mut |incoming| {
                ended |= incoming.bytes == END;
                moved.bytes += incoming.bytes.len() as u64;
                moved.datagrams += incoming.datagrams().len() as u64;
            });
            if got.unwrap() > 0 && !ended {
                last = Instant::now();
                start.get_or_insert(last);
            }
        }
        moved.elapsed = last - start.unwrap_or(last);
        moved
    };
    let sender = move || {
        let segments = if batch > 1 { 1 } else { (65_507 / segment).clamp(1, 64) };
        let bytes = vec![7; segments * segment];
        // Two pieces, as a header and a payload are.
        let (head, tail) = bytes.split_at(segment.min(100) / 2);
        let pieces = [Segment::from_slice(head), Segment::from_slice(tail)];
        let outgoing =
            Outgoing { path: to_a.into(), pieces: &pieces, segment_bytes: segment, class: 0, may_fragment: false };
        let batch = vec![outgoing; batch];
        let start = Instant::now();
        while start.elapsed() < duration {
            let _ = b.send(&batch);
        }
        for _ in 0..20 {
            send(&mut b, to_a, END, 0);
            thread::sleep(Duration::from_millis(1));
        }
    };
    both(receiver, sender).0
}
