//! What plain sockets do here: the limit that every figure of a link is compared with. Nothing of ours is in the way.
//!
//! Each function is one side of a measurement, runs in a process or thread of its own, and takes a connected socket
//! from [`socket`]. Nobody sleeps: both sides poll, as a driver does. A side ends when the other one says so.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use libc::{c_void, iovec, mmsghdr};

use crate::limits::{RECEIVE_BUFFER_BYTES, SEGMENTS_MAX, SEND_MAX_BYTES};
use crate::udp::socket;

/// Says that the measurement is over. Two bytes, because measured datagrams have at least eight.
const END: [u8; 2] = *b"ww";
/// Measured datagrams are at least this long.
pub const SIZE_MIN_BYTES: usize = 8;
/// How often the end is said, because it may be lost as anything else.
const END_REPEATS: usize = 50;
/// Between two of them.
const END_PAUSE: Duration = Duration::from_millis(1);
/// Empty polls after which a ping counts as lost and is sent again.
const LOST_POLLS: u32 = 2_000_000;
/// Small datagrams that share a call.
const BATCH: usize = 32;
/// Bytes of the buffers of small datagrams.
const SMALL_BYTES: usize = 2048;

/// What a stream moved.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moved {
    /// Bytes of payload.
    pub bytes: u64,
    /// Datagrams.
    pub datagrams: u64,
    /// Calls that moved them.
    pub calls: u64,
    /// From the first to the last.
    pub elapsed: Duration,
}

impl Moved {
    /// Gigabytes each second.
    #[must_use]
    pub fn gigabytes_per_second(&self) -> f64 {
        self.bytes as f64 / self.elapsed.as_nanos().max(1) as f64
    }

    /// Million datagrams each second.
    #[must_use]
    pub fn million_per_second(&self) -> f64 {
        self.datagrams as f64 * 1e3 / self.elapsed.as_nanos().max(1) as f64
    }
}

/// A socket that does not block, with large buffers, which joins datagrams (`UDP_GRO`) when `join` is set.
pub fn socket(local: SocketAddr, join: bool) -> io::Result<UdpSocket> {
    let socket = socket::open(local)?;
    socket::set_buffers(&socket, 8 << 20, 4 << 20);
    if join {
        socket::set(&socket, libc::SOL_UDP, libc::UDP_GRO, 1)?;
    }
    socket::bind(&socket, local)?;
    Ok(UdpSocket::from(socket))
}

/// Sends back whatever comes, until the end.
pub fn ping_pong_server(socket: &UdpSocket) -> io::Result<()> {
    let mut buffer = vec![0; RECEIVE_BUFFER_BYTES];
    loop {
        match socket.recv(&mut buffer) {
            Ok(length) => {
                let bytes = buffer.get(..length).unwrap_or(&[]);
                if bytes == END {
                    return Ok(());
                }
                socket.send(bytes)?;
            }
            Err(error) if is_soft(&error) => std::hint::spin_loop(),
            Err(error) => return Err(error),
        }
    }
}

/// Sends `rounds` datagrams of `size` bytes, each after the one before came back; gives half the round trip of each in
/// nanoseconds, in order of size.
pub fn ping_pong_client(socket: &UdpSocket, size: usize, rounds: usize) -> io::Result<Vec<u64>> {
    let bytes = vec![7; size.max(SIZE_MIN_BYTES)];
    let mut buffer = vec![0; RECEIVE_BUFFER_BYTES];
    let mut halves = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let start = Instant::now();
        socket.send(&bytes)?;
        let mut polls = 0;
        loop {
            match socket.recv(&mut buffer) {
                Ok(_) => break,
                Err(error) if is_soft(&error) => polls += 1,
                Err(error) => return Err(error),
            }
            if polls == LOST_POLLS {
                polls = 0;
                socket.send(&bytes)?;
            }
        }
        halves.push(start.elapsed().as_nanos() as u64 / 2);
    }
    say_end(socket);
    halves.sort_unstable();
    Ok(halves)
}

/// Sends as fast as it can for so long: datagrams of `segment_bytes`, as many in a call as the kernel cuts.
pub fn stream_sender(socket: &UdpSocket, segment_bytes: usize, duration: Duration) -> io::Result<Moved> {
    let segment = segment_bytes.clamp(SIZE_MIN_BYTES, SEND_MAX_BYTES);
    let segments = (SEND_MAX_BYTES / segment).clamp(1, SEGMENTS_MAX);
    let cut = if segments > 1 { segment } else { 0 };
    socket::set(&OwnedFd::from(socket.try_clone()?), libc::SOL_UDP, libc::UDP_SEGMENT, cut as i32)?;
    let bytes = vec![7; segments * segment];
    let start = Instant::now();
    let mut moved = Moved::default();
    while moved.elapsed < duration {
        match socket.send(&bytes) {
            Ok(length) => {
                moved.bytes += length as u64;
                moved.datagrams += segments as u64;
                moved.calls += 1;
            }
            Err(error) if is_soft(&error) => std::hint::spin_loop(),
            Err(error) => return Err(error),
        }
        moved.elapsed = start.elapsed();
    }
    say_end(socket);
    Ok(moved)
}

/// Counts what a [`stream_sender`] with the same size sends. What is missing was lost.
pub fn stream_receiver(socket: &UdpSocket, segment_bytes: usize) -> io::Result<Moved> {
    let segment = segment_bytes.clamp(SIZE_MIN_BYTES, SEND_MAX_BYTES);
    let mut buffer = vec![0; RECEIVE_BUFFER_BYTES];
    let mut moved = Moved::default();
    let mut start = None;
    let mut last = Instant::now();
    loop {
        match socket.recv(&mut buffer) {
            Ok(length) if length == END.len() => break,
            Ok(length) => {
                last = Instant::now();
                start.get_or_insert(last);
                moved.bytes += length as u64;
                moved.datagrams += length.div_ceil(segment) as u64;
                moved.calls += 1;
            }
            Err(error) if is_soft(&error) => std::hint::spin_loop(),
            Err(error) => return Err(error),
        }
    }
    moved.elapsed = last - start.unwrap_or(last);
    Ok(moved)
}

/// Sends datagrams of `size` bytes as fast as it can for so long, many in a call.
pub fn message_sender(socket: &UdpSocket, size: usize, duration: Duration) -> io::Result<Moved> {
    let bytes = vec![7; size.clamp(SIZE_MIN_BYTES, SMALL_BYTES)];
    let mut batch = Batch::new(bytes);
    let start = Instant::now();
    let mut moved = Moved::default();
    while moved.elapsed < duration {
        // SAFETY: every header points to a piece, and each of those to bytes, all of which the batch owns.
        let sent = unsafe { libc::sendmmsg(socket.as_raw_fd(), batch.headers.as_mut_ptr(), BATCH as u32, 0) };
        moved.add(sent, &batch)?;
        moved.elapsed = start.elapsed();
    }
    say_end(socket);
    Ok(moved)
}

/// Counts what a [`message_sender`] sends.
pub fn message_receiver(socket: &UdpSocket) -> io::Result<Moved> {
    let mut batch = Batch::new(vec![0; BATCH * SMALL_BYTES]);
    for (piece, bytes) in batch.pieces.iter_mut().zip(batch.bytes.chunks_exact_mut(SMALL_BYTES)) {
        *piece = iovec { iov_base: bytes.as_mut_ptr().cast::<c_void>(), iov_len: bytes.len() };
    }
    let mut moved = Moved::default();
    let mut start = None;
    let last = loop {
        let none = std::ptr::null_mut();
        // SAFETY: every header points to a piece, and each of those to bytes of its own, all of which the batch owns.
        let got = unsafe { libc::recvmmsg(socket.as_raw_fd(), batch.headers.as_mut_ptr(), BATCH as u32, 0, none) };
        if moved.add(got, &batch)? == 0 {
            continue;
        }
        let last = Instant::now();
        start.get_or_insert(last);
        if batch.headers.iter().take(got as usize).any(|header| header.msg_len as usize == END.len()) {
            break last;
        }
    };
    moved.elapsed = last - start.unwrap_or(last);
    Ok(moved)
}

/// Message headers and all that they point to.
struct Batch {
    bytes: Vec<u8>,
    pieces: Box<[iovec]>,
    headers: Box<[mmsghdr]>,
}

impl Batch {
    /// All messages point to all bytes.
    fn new(mut bytes: Vec<u8>) -> Batch {
        let piece = iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let mut pieces = vec![piece; BATCH].into_boxed_slice();
        // SAFETY: a header of zeros has no addresses and no lengths, and is valid.
        let header: mmsghdr = unsafe { std::mem::zeroed() };
        let mut headers = vec![header; BATCH].into_boxed_slice();
        for (header, piece) in headers.iter_mut().zip(pieces.iter_mut()) {
            header.msg_hdr.msg_iov = piece;
            header.msg_hdr.msg_iovlen = 1;
        }
        Batch { bytes, pieces, headers }
    }
}

impl Moved {
    /// Adds what a call moved, or its error; gives how many that were.
    fn add(&mut self, result: libc::c_int, batch: &Batch) -> io::Result<usize> {
        let Ok(count) = usize::try_from(result) else {
            let error = io::Error::last_os_error();
            return if is_soft(&error) { Ok(0) } else { Err(error) };
        };
        self.bytes += batch.headers.iter().take(count).map(|header| u64::from(header.msg_len)).sum::<u64>();
        self.datagrams += count as u64;
        self.calls += 1;
        Ok(count)
    }
}

fn say_end(socket: &UdpSocket) {
    for _ in 0..END_REPEATS {
        // The other side may be gone already, which is what this is for.
        if socket.send(&END).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
            break;
        }
        std::thread::sleep(END_PAUSE);
    }
}

/// Nothing is there, or the network says that the other side was not there yet.
fn is_soft(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionRefused | io::ErrorKind::Interrupted)
        || error.raw_os_error() == Some(libc::ENOBUFS)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::thread;

    use super::*;

    fn pair(join: bool) -> (UdpSocket, UdpSocket) {
        let local = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
        let (a, b) = (socket(local, join).unwrap(), socket(local, join).unwrap());
        a.connect(b.local_addr().unwrap()).unwrap();
        b.connect(a.local_addr().unwrap()).unwrap();
        (a, b)
    }

    /// Says the end until it is heard: a receiver that did not run meanwhile has a full buffer, and loses it.
    fn end_heard<T>(socket: &UdpSocket, receiver: &thread::JoinHandle<T>) {
        while !receiver.is_finished() {
            say_end(socket);
        }
    }

    #[test]
    fn every_measurement_ends_and_counts() {
        let (a, b) = pair(false);
        let server = thread::spawn(move || ping_pong_server(&b));
        assert_eq!(ping_pong_client(&a, 8, 20).unwrap().len(), 20);
        server.join().unwrap().unwrap();

        for segment in [1400, 65_507] {
            let (a, b) = pair(true);
            let receiver = thread::spawn(move || stream_receiver(&b, segment));
            let sent = stream_sender(&a, segment, Duration::from_millis(1)).unwrap();
            end_heard(&a, &receiver);
            let received = receiver.join().unwrap().unwrap();
            assert!(sent.bytes > 0 && received.bytes <= sent.bytes && received.datagrams <= sent.datagrams);
        }

        let (a, b) = pair(false);
        let receiver = thread::spawn(move || message_receiver(&b));
        let sent = message_sender(&a, 8, Duration::from_millis(1)).unwrap();
        end_heard(&a, &receiver);
        let received = receiver.join().unwrap().unwrap();
        assert!(
            sent.datagrams > 0 && received.datagrams <= sent.datagrams + END_REPEATS as u64,
            "ends are counted too"
        );
    }
}
