//! The limits: what bare UDP sockets do on the same path, with nothing of a protocol on top.
//!
//! Latency is one datagram back and forth between two processes that spin. Bandwidth and rate are one way, with
//! segmentation offload, and count what arrives: nothing is acknowledged and nothing is sent again.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use weft_link::bare;

use super::job::{Job, Measurement, Test, Times};
use super::net::{Column, ColumnKind, Contender, RUN_MAX};
use super::node::{self, Kind, Meeting, Task};
use super::place::Place;
use crate::process::Fault;

/// The longest payload of a UDP datagram over IPv4.
const DATAGRAM_MAX_BYTES: usize = 65_507;
/// The longest payload of a UDP datagram over IPv4 and an MTU of 1500.
const SEGMENT_MAX_BYTES: usize = 1472;
/// A ping that is not answered for so long is lost.
const LOST_AFTER: Duration = Duration::from_secs(20);
/// Spins between two looks at the clock or at the parent.
const SPINS_PER_LOOK: u32 = 4096;

/// Bare UDP as a column.
pub(crate) struct BareUdp {
    pub(crate) test: Test,
}

impl Contender for BareUdp {
    fn column(&self) -> Column {
        let how = if self.test == Test::Latency { "ping-pong" } else { "stream" };
        Column { kind: ColumnKind::Limit, program: "bare", over: "UDP", how }
    }

    fn lacks(&self, job: &Job) -> Option<String> {
        if self.test == Test::Latency {
            let long = job.bytes > DATAGRAM_MAX_BYTES;
            return long.then(|| format!("latency only up to {DATAGRAM_MAX_BYTES} bytes, one datagram"));
        }
        let short = job.bytes < bare::SIZE_MIN_BYTES;
        short.then(|| format!("streams only from {} bytes", bare::SIZE_MIN_BYTES))
    }

    fn run(&self, job: &Job, place: &Place) -> Result<Measurement, Fault> {
        let kind = if self.test == Test::Latency { Kind::BarePingPong } else { Kind::BareStream };
        node::measure(kind, job, place, RUN_MAX)
    }
}

/// Binds, meets the other side and connects to it.
fn connected(
    task: &Task,
    meeting: &mut Meeting<'_>,
    bind: impl Fn(SocketAddr) -> io::Result<UdpSocket>,
) -> Result<UdpSocket, String> {
    let connect = |meeting: &mut Meeting<'_>| {
        let socket = bind(SocketAddr::new(task.local, 0)).map_err(told)?;
        let other = meeting.exchange(&socket.local_addr().map_err(told)?.to_string())?;
        let other: SocketAddr = other.parse().map_err(|_| format!("`{other}` is no address"))?;
        socket.connect(other).map_err(told)?;
        socket.set_nonblocking(true).map_err(told)?;
        Ok(socket)
    };
    connect(meeting).map_err(|error: String| format!("bare UDP: {error}"))
}

fn told(error: io::Error) -> String {
    error.to_string()
}

/// Answers every datagram until the other side is done.
pub(crate) fn ping_pong_server(task: &Task, meeting: &mut Meeting<'_>) -> Result<Option<Measurement>, String> {
    let socket = connected(task, meeting, UdpSocket::bind)?;
    let mut buffer = vec![0; task.job.bytes.max(1)];
    while let Some(length) = receive(&socket, &mut buffer, |_| meeting.over())? {
        socket.send(buffer.get(..length).unwrap_or(&[])).map_err(told)?;
    }
    Ok(None)
}

/// Sends a datagram, waits for it to come back, and so on.
pub(crate) fn ping_pong_client(task: &Task, meeting: &mut Meeting<'_>) -> Result<Option<Measurement>, String> {
    let Job { bytes, iterations, warm_up, operation, .. } = task.job;
    let socket = connected(task, meeting, UdpSocket::bind)?;
    let mut buffer = vec![0; bytes.max(1)];
    let message = vec![0x5a; bytes];
    let mut once = || {
        socket.send(&message).map_err(told)?;
        let back = receive(&socket, &mut buffer, |since| since.elapsed() > LOST_AFTER)?;
        back.ok_or_else(|| "bare UDP: a datagram was lost".to_string())
    };
    for _ in 0..warm_up {
        once()?;
    }
    let mut times = Times::new()?;
    let start = Instant::now();
    let mut before = start;
    for _ in 0..iterations {
        once()?;
        let now = Instant::now();
        times.record(now - before);
        before = now;
    }
    let elapsed_us = (before - start).as_nanos() as f64 / 1000.0;
    let legs = if operation.answers() { 1 } else { 2 };
    let measurement = Measurement::of(&task.job, elapsed_us, legs);
    Ok(Some(Measurement { spread: times.spread(legs as f64), ..measurement }))
}

/// Spins for the next datagram; `None` when `enough`, which is given the time since which it spins, says so.
fn receive(socket: &UdpSocket, buffer: &mut [u8], enough: impl Fn(&Instant) -> bool) -> Result<Option<usize>, String> {
    let mut since = None;
    loop {
        for _ in 0..SPINS_PER_LOOK {
            match socket.recv(buffer) {
                Ok(length) => return Ok(Some(length)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // The other side is not there yet or any more; `enough` says when to stop waiting.
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
                Err(error) => return Err(told(error)),
            }
        }
        if enough(since.get_or_insert_with(Instant::now)) {
            return Ok(None);
        }
    }
}

/// Counts what arrives of the stream, and measures.
pub(crate) fn stream_server(task: &Task, meeting: &mut Meeting<'_>) -> Result<Option<Measurement>, String> {
    let Job { bytes, test, .. } = task.job;
    let socket = connected(task, meeting, |local| bare::socket(local, true))?;
    let moved = bare::stream_receiver(&socket, segment_bytes(bytes)).map_err(told)?;
    let messages = moved.bytes / bytes.max(1) as u64;
    let elapsed_us = moved.elapsed.as_nanos() as f64 / 1000.0;
    if messages == 0 || elapsed_us <= 0.0 {
        return Err("bare UDP: nothing of the stream arrived".to_string());
    }
    let figure = test.figure(bytes, elapsed_us / messages as f64);
    Ok(Some(Measurement { figure, iterations: messages, elapsed_us, spread: None }))
}

/// Sends the stream.
pub(crate) fn stream_client(task: &Task, meeting: &mut Meeting<'_>) -> Result<Option<Measurement>, String> {
    let socket = connected(task, meeting, |local| bare::socket(local, false))?;
    let span = Duration::from_micros(task.job.span_us);
    bare::stream_sender(&socket, segment_bytes(task.job.bytes), span).map_err(told)?;
    Ok(None)
}

/// A message is cut into datagrams that fit an Ethernet, as a protocol would; a short one is a datagram.
fn segment_bytes(message_bytes: usize) -> usize {
    message_bytes.min(SEGMENT_MAX_BYTES)
}
