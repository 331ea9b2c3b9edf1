//! What bare memory does here: the limits that the road through shared memory is compared with. Nothing of ours is in
//! the way.
//!
//! A [`Board`] is memory of two processes. One side makes it, tells the other its [`Board::path`], and both call one
//! function of a pair. Nobody sleeps or pauses: both sides look all the time. [`copy_times`] and [`PlainCopy`] need one
//! process.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::hint::black_box;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::device::{self, DeviceError, Direction, Operations, Place, Transfer};
use crate::{MemoryRegion, copy};

/// What processors pass on as one.
const LINE_BYTES: usize = 64;
/// Words that are written by different sides are this far apart, as processors fetch lines in pairs.
const APART_BYTES: usize = 128;
/// Lines of the ring of [`Board::stream_sender`].
const RING_LINES: usize = 512;
/// The receiver says how far it is after so many lines.
const RECEIPT_LINES: u64 = 64;
const PING: usize = 0;
const PONG: usize = APART_BYTES;
const RECEIPT: usize = 2 * APART_BYTES;
const RING: usize = 4096;
const BOARD_BYTES: usize = RING + RING_LINES * LINE_BYTES;
/// What stands in a word when no more comes.
const END: u64 = u64::MAX;
/// Looks between two questions whether the other side is still there.
const LOOKS_PER_QUESTION: u32 = 1 << 14;
/// Destinations of measured copies lie half a page off their sources: glibc's `memcpy` is several times slower where
/// both lie at the same place of their pages.
const COPY_SHIFT_BYTES: usize = 2048;
/// Copies of up to this share their cost of being timed with others.
const COPY_BATCH_BYTES: usize = 1 << 20;

const _: () = assert!(RECEIPT + LINE_BYTES <= RING && RING_LINES as u64 > 2 * RECEIPT_LINES);

/// Memory of two processes, for one measurement. Both are ours: neither is safe from what the other does to it.
#[derive(Debug)]
pub struct Board {
    base: NonNull<u8>,
    file: File,
}

// SAFETY: the memory is used through atomics only, and is unmapped when the one owner drops it.
unsafe impl Send for Board {}
// SAFETY: as above.
unsafe impl Sync for Board {}

impl Board {
    /// A board that nobody else has yet. It has no name in any file system, and goes with its last process.
    pub fn new() -> io::Result<Board> {
        // SAFETY: the name is a string that ends with a zero byte.
        let descriptor = unsafe { libc::memfd_create(c"weft-bench".as_ptr(), libc::MFD_CLOEXEC) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made, and nothing else has it.
        let file = unsafe { File::from_raw_fd(descriptor) };
        file.set_len(BOARD_BYTES as u64)?;
        Board::map(file)
    }

    /// The board of another process, by its [`Board::path`].
    pub fn open(path: &str) -> io::Result<Board> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        if file.metadata()?.len() < BOARD_BYTES as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is too short for a board"));
        }
        Board::map(file)
    }

    /// Where another process of the same user can open it, while this one has it.
    #[must_use]
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    fn map(file: File) -> io::Result<Board> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, wherever the kernel likes.
        let base = unsafe {
            let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
            libc::mmap(std::ptr::null_mut(), BOARD_BYTES, protection, flags, file.as_raw_fd(), 0)
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        Ok(Board { base, file })
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset + 8 <= BOARD_BYTES && offset.is_multiple_of(8));
        // SAFETY: all offsets are constants or of the ring, aligned, and inside of the mapping, which lives as long as
        // the board; and all sides use atomics.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    fn slot(index: u64) -> usize {
        RING + (index as usize % RING_LINES) * LINE_BYTES
    }

    /// Gives each ping back, until the end or until `gone` says that the other side is.
    pub fn ping_pong_server(&self, gone: impl Fn() -> bool) {
        let (ping, pong) = (self.word(PING), self.word(PONG));
        let mut expected = 1;
        while let Some(seen) = await_change(ping, expected - 1, &gone) {
            if seen == END {
                return;
            }
            pong.store(seen, Ordering::Release);
            expected = seen + 1;
        }
    }

    /// Passes a line to and fro, `batches` times `rounds` times; gives how long each batch took, and fewer batches when
    /// `gone` says that the other side is.
    pub fn ping_pong_client(&self, batches: usize, rounds: u64, gone: impl Fn() -> bool) -> Vec<Duration> {
        let (ping, pong) = (self.word(PING), self.word(PONG));
        let mut times = Vec::with_capacity(batches);
        let mut count = 0;
        'all: for _ in 0..batches {
            let start = Instant::now();
            for _ in 0..rounds {
                count += 1;
                ping.store(count, Ordering::Release);
                if await_change(pong, count - 1, &gone).is_none() {
                    break 'all;
                }
            }
            times.push(start.elapsed());
        }
        ping.store(END, Ordering::Release);
        times
    }

    /// Sends `count` lines with eight bytes each, as many as fit into the ring under way; gives how long it took until the
    /// last was received, or `None` when `gone` says that the other side is.
    pub fn stream_sender(&self, count: u64, gone: impl Fn() -> bool) -> Option<Duration> {
        let receipt = self.word(RECEIPT);
        let mut received = 0;
        let start = Instant::now();
        for index in 0..count {
            while index - received >= RING_LINES as u64 {
                received = await_change(receipt, received, &gone)?;
            }
            let slot = Board::slot(index);
            self.word(slot + 8).store(index, Ordering::Relaxed);
            self.word(slot).store(index + 1, Ordering::Release);
        }
        // The end is a line too, for which there must be room. The receiver answers it with its last receipt.
        while count - received >= RING_LINES as u64 {
            received = await_change(receipt, received, &gone)?;
        }
        self.word(Board::slot(count)).store(END, Ordering::Release);
        while received < count {
            received = await_change(receipt, received, &gone)?;
        }
        Some(start.elapsed())
    }

    /// Receives what [`Board::stream_sender`] sends, until the end or until `gone`; gives how many lines had the bytes
    /// that they should.
    pub fn stream_receiver(&self, gone: impl Fn() -> bool) -> u64 {
        let receipt = self.word(RECEIPT);
        let (mut index, mut right) = (0, 0);
        loop {
            let slot = Board::slot(index);
            // What an earlier lap left there, or nothing.
            let stale = (index + 1).saturating_sub(RING_LINES as u64);
            let Some(seen) = await_change(self.word(slot), stale, &gone) else { return right };
            if seen == END {
                receipt.store(index, Ordering::Release);
                return right;
            }
            right += u64::from(self.word(slot + 8).load(Ordering::Relaxed) == index);
            index += 1;
            if index.is_multiple_of(RECEIPT_LINES) {
                receipt.store(index, Ordering::Release);
            }
        }
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, of this length, and nothing borrows from a board that is dropped.
        unsafe { libc::munmap(self.base.as_ptr().cast(), BOARD_BYTES) };
    }
}

/// Looks until a word is not `before` any more; `None` when the other side is gone.
#[inline]
fn await_change(word: &AtomicU64, before: u64, gone: &impl Fn() -> bool) -> Option<u64> {
    loop {
        for _ in 0..LOOKS_PER_QUESTION {
            let seen = word.load(Ordering::Acquire);
            if seen != before {
                return Some(seen);
            }
        }
        if gone() {
            return None;
        }
        // It takes far longer than a line takes to come: the other side may be waiting for this very core.
        std::thread::yield_now();
    }
}

/// How long copies take.
#[derive(Clone, Copy, Debug)]
pub struct CopyTimes {
    /// `count` copies by [`copy::copy`].
    pub ours: Duration,
    /// `count` copies by libc's `memcpy`.
    pub memcpy: Duration,
}

/// Copies `bytes` from one place to another, always the same, `count` times by each function, in turns. `None`: there is
/// not so much memory.
#[must_use]
pub fn copy_times(bytes: usize, count: u64) -> Option<CopyTimes> {
    let half = bytes.checked_next_multiple_of(crate::limits::PAGE_BYTES)?;
    let memory = Pages::new(half.checked_mul(2)?.checked_add(COPY_SHIFT_BYTES)?)?;
    let source = memory.base.as_ptr();
    // SAFETY: `half + COPY_SHIFT_BYTES + bytes` is not more than was mapped.
    let destination = unsafe { source.add(half + COPY_SHIFT_BYTES) };
    let mut times = CopyTimes { ours: Duration::ZERO, memcpy: Duration::ZERO };
    let batch = (COPY_BATCH_BYTES / bytes.max(1)).clamp(1, 1 << 14) as u64;
    let mut left = count;
    while left > 0 {
        let now = batch.min(left);
        left -= now;
        let start = Instant::now();
        for _ in 0..now {
            // SAFETY: both ranges are ours alone, are mapped, and do not overlap.
            unsafe { copy::copy(black_box(destination), black_box(source), black_box(bytes)) };
        }
        let middle = Instant::now();
        for _ in 0..now {
            // SAFETY: as above.
            unsafe { libc::memcpy(black_box(destination).cast(), black_box(source).cast(), black_box(bytes)) };
        }
        times.ours += middle - start;
        times.memcpy += middle.elapsed();
    }
    Some(times)
}

/// Memory of a device, and the copies that its operations make there without any of Weft around them.
#[derive(Debug)]
pub struct PlainCopy {
    operations: &'static dyn Operations,
    device: u32,
    direction: Direction,
    from: MemoryRegion,
    to: MemoryRegion,
    /// What the device knows of the host's memory.
    registered: Option<*mut u8>,
}

impl PlainCopy {
    /// Copies of up to `bytes` from memory at one place to memory at another, both of their own. Where one is the host's,
    /// it is registered with the device, if that can be.
    pub fn new(from: Place, to: Place, bytes: usize) -> Result<PlainCopy, DeviceError> {
        let (place, direction) = match (from.is_host(), to.is_host()) {
            (_, true) => (from, Direction::FromDevice),
            (true, false) => (to, Direction::ToDevice),
            (false, false) => (from, Direction::Within),
        };
        let operations = device::operations(place.kind).map_err(|absent| DeviceError::Failed(absent.0))?;
        let region = |place| MemoryRegion::alloc_device(place, bytes);
        let mut copy = PlainCopy {
            operations,
            device: place.device,
            direction,
            from: region(from)?,
            to: region(to)?,
            registered: None,
        };
        let host = [&copy.from, &copy.to].into_iter().find(|region| region.place().is_host());
        if let Some(host) = host.filter(|_| operations.capabilities().register_host) {
            let pointer = host.as_ptr();
            // SAFETY: the region lives until this is dropped, which ends the registration first.
            unsafe { operations.register_host(pointer, bytes)? };
            copy.registered = Some(pointer);
        }
        Ok(copy)
    }

    fn piece(&self, bytes: usize) -> [Transfer; 1] {
        let length = bytes.min(self.from.length());
        [Transfer { to: self.to.as_ptr() as u64, from: self.from.as_ptr() as u64, length }]
    }

    /// How long `count` copies take, each when the one before is done.
    pub fn one_by_one(&self, bytes: usize, count: u64) -> Result<Duration, DeviceError> {
        let piece = self.piece(bytes);
        let start = Instant::now();
        for _ in 0..count {
            // SAFETY: both regions are ours, are at the places that the direction names, and are at least that long.
            unsafe { self.operations.copy(self.device, self.direction, &piece)? };
        }
        Ok(start.elapsed())
    }

    /// How long `count` copies take, up to `window` of them under way.
    pub fn many_at_once(&self, bytes: usize, count: u64, window: usize) -> Result<Duration, DeviceError> {
        let piece = self.piece(bytes);
        let mut events = VecDeque::with_capacity(window);
        let start = Instant::now();
        let mut outcome = Ok(());
        for _ in 0..count {
            if events.len() >= window.max(1)
                && let Some(event) = events.pop_front()
            {
                outcome = outcome.and(self.operations.wait(event));
            }
            // SAFETY: as above; and all events are waited for before this returns, while the regions live.
            match unsafe { self.operations.start(self.device, self.direction, &piece) } {
                Ok(event) => events.push_back(event),
                Err(error) => outcome = Err(error),
            }
            if outcome.is_err() {
                break;
            }
        }
        for event in events {
            outcome = outcome.and(self.operations.wait(event));
        }
        outcome.map(|()| start.elapsed())
    }
}

impl Drop for PlainCopy {
    fn drop(&mut self) {
        if let Some(pointer) = self.registered {
            // SAFETY: it was registered with this pointer, and every copy has been waited for. A device that fails here
            // has failed before.
            let _ = unsafe { self.operations.unregister_host(pointer) };
        }
    }
}

/// Private memory with huge pages where the kernel gives some, every page of it touched.
struct Pages {
    base: NonNull<u8>,
    length: usize,
}

impl Pages {
    fn new(length: usize) -> Option<Pages> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, wherever the kernel likes.
        let base = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0)
        };
        if base == libc::MAP_FAILED {
            return None;
        }
        let base: NonNull<u8> = NonNull::new(base.cast())?;
        // SAFETY: the range was just mapped, is ours alone, and may be written. Advice that is not taken is no error.
        unsafe {
            libc::madvise(base.as_ptr().cast(), length, libc::MADV_HUGEPAGE);
            base.as_ptr().write_bytes(0x5a, length);
        }
        Some(Pages { base, length })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, of this length, and nothing uses it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.length) };
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::thread;

    use super::*;
    use crate::device::Kind;

    #[test]
    fn a_board_is_the_same_for_who_opens_it() {
        let board = Board::new().unwrap();
        let other = Board::open(&board.path()).unwrap();
        board.word(PING).store(7, Ordering::Relaxed);
        assert_eq!(other.word(PING).load(Ordering::Relaxed), 7);
        assert!(Board::open("/dev/null").is_err());
    }

    #[test]
    fn every_measurement_ends_and_counts() {
        let board = Board::new().unwrap();
        let other = Board::open(&board.path()).unwrap();
        let server = thread::spawn(move || other.ping_pong_server(|| false));
        assert_eq!(board.ping_pong_client(3, 50, || false).len(), 3);
        server.join().unwrap();
        for count in [1, RECEIPT_LINES, RING_LINES as u64, 10 * RING_LINES as u64 + 1] {
            let board = Board::new().unwrap();
            let other = Board::open(&board.path()).unwrap();
            let receiver = thread::spawn(move || other.stream_receiver(|| false));
            assert!(board.stream_sender(count, || false).is_some());
            assert_eq!(receiver.join().unwrap(), count);
        }
        assert!(copy_times(8, 100).is_some() && copy_times(70_000, 3).is_some());
        assert!(copy_times(usize::MAX / 2, 1).is_none());
    }

    #[test]
    fn plain_copies_copy() {
        let (one, other) = (Place::new(Kind::Emulated, 0), Place::new(Kind::Emulated, 1));
        for (from, to) in [(one, other), (one, one), (one, Place::HOST), (Place::HOST, one), (Place::HOST, Place::HOST)]
        {
            let plain = PlainCopy::new(from, to, 4096).unwrap();
            plain.from.write(0, b"one").unwrap();
            plain.one_by_one(3, 2).unwrap();
            assert_eq!(plain.to.to_vec(0, 4).unwrap(), b"one\0");
            plain.from.write(0, b"more").unwrap();
            plain.many_at_once(4096, 9, 4).unwrap();
            assert_eq!(plain.to.to_vec(0, 4).unwrap(), b"more");
        }
        let nowhere = Place::new(Kind::Emulated, 99);
        assert!(PlainCopy::new(nowhere, nowhere, 64).is_err());
    }

    #[test]
    fn who_is_alone_ends() {
        let board = Board::new().unwrap();
        board.ping_pong_server(|| true);
        assert!(board.ping_pong_client(2, 1, || true).is_empty());
        let board = Board::new().unwrap();
        assert_eq!(board.stream_receiver(|| true), 0);
        assert!(board.stream_sender(1 + RING_LINES as u64, || true).is_none());
    }
}
