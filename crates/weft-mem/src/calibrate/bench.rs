//! The measurement itself: each way, at each length, a few times.
//!
//! What counts is the best time, of those in which nobody else took a core away: a measurement is kept for long, and a
//! busy machine must not decide it.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::Measurement;
use crate::limits::{CALIBRATE_LENGTHS, CALIBRATE_PIECE_BYTES, CALIBRATE_RING_BYTES, CALIBRATE_ROUNDS, PAGE_BYTES};
use crate::{MemoryRegion, copy};

const LONGEST_BYTES: usize = {
    let [.., longest] = CALIBRATE_LENGTHS;
    longest
};
const PIECES_OF_RING: usize = CALIBRATE_RING_BYTES / CALIBRATE_PIECE_BYTES;

/// Measures every length at least once, and up to [`CALIBRATE_ROUNDS`] times while there is time. Also says whether
/// every figure is from a time in which nobody disturbed. Nothing where there is no memory for it. Not `with_ring`: attach
/// alone, which needs one core.
pub(super) fn measure_within(budget: Duration, with_ring: bool) -> (Vec<Measurement>, bool) {
    let start = Instant::now();
    let Some(bench) = Bench::new() else { return (Vec::new(), false) };
    let mut best = CALIBRATE_LENGTHS.map(|_| [Best::default(); 2]);
    for _ in 0..CALIBRATE_ROUNDS {
        // All lengths in each round, so that a disturbance does not hit one of them alone.
        for (&length, [attach, _]) in CALIBRATE_LENGTHS.iter().zip(&mut best) {
            attach.add(bench.attach(length));
        }
        std::thread::scope(|scope| {
            let take_all = || CALIBRATE_LENGTHS.iter().for_each(|&length| bench.take_out(length));
            if with_ring && std::thread::Builder::new().spawn_scoped(scope, take_all).is_ok() {
                for (&length, [_, ring]) in CALIBRATE_LENGTHS.iter().zip(&mut best) {
                    ring.add(Some(bench.put_in(length)));
                }
            }
        });
        if start.elapsed() >= budget {
            break;
        }
    }
    let measurements = CALIBRATE_LENGTHS.iter().zip(&best).map(|(&length, [attach, ring])| Measurement {
        length,
        attach: attach.rate(length),
        ring: ring.rate(length),
    });
    (measurements.collect(), best.as_flattened().iter().all(|best| !best.is_disturbed()))
}

/// A time, and whether nobody disturbed it.
#[derive(Clone, Copy)]
struct Sample {
    time: Duration,
    quiet: bool,
}

/// The best times.
#[derive(Clone, Copy, Default)]
struct Best {
    quiet: Option<Duration>,
    any: Option<Duration>,
}

impl Best {
    fn add(&mut self, sample: Option<Sample>) {
        let Some(Sample { time, quiet }) = sample else { return };
        let lesser = |best: Option<Duration>| Some(best.map_or(time, |best| best.min(time)));
        self.any = lesser(self.any);
        if quiet {
            self.quiet = lesser(self.quiet);
        }
    }

    /// A way that does not work is not disturbed.
    fn is_disturbed(&self) -> bool {
        self.any.is_some() && self.quiet.is_none()
    }

    /// Bytes a second; 0 for a way that does not work.
    fn rate(&self, length: usize) -> u64 {
        let nanoseconds = self.quiet.or(self.any).map_or(0, |time| time.as_nanos());
        (length as u128 * 1_000_000_000).checked_div(nanoseconds).map_or(0, |rate| rate.try_into().unwrap_or(0))
    }
}

/// Memory of the measurement, and where its two threads meet.
struct Bench {
    source: MemoryRegion,
    destination: MemoryRegion,
    ring: MemoryRegion,
    /// Pieces that were put into the ring, and taken out, since the beginning.
    put: Line,
    taken: Line,
    /// Messages that the receiver has begun to wait for, and that were sent.
    awaited: Line,
    sent: Line,
    /// Messages during which the receiver was disturbed; and on which core it was last.
    disturbed: Line,
    core: Line,
    one_core: bool,
}

/// On cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Line(AtomicUsize);

impl Bench {
    fn new() -> Option<Bench> {
        // Pages that are there, as those of messages are; zeros would all be one page.
        let region = |bytes: usize| {
            let region = MemoryRegion::alloc_zeroed(bytes)?;
            (0..bytes).step_by(PAGE_BYTES).try_for_each(|offset| region.store_u8(offset, 1)).ok()?;
            Some(region)
        };
        Some(Bench {
            source: region(LONGEST_BYTES)?,
            destination: region(LONGEST_BYTES)?,
            ring: region(CALIBRATE_RING_BYTES)?,
            put: Line::default(),
            taken: Line::default(),
            awaited: Line::default(),
            sent: Line::default(),
            disturbed: Line::default(),
            core: Line::default(),
            one_core: std::thread::available_parallelism().map_or(1, usize::from) == 1,
        })
    }

    /// One copy by the system, from this process to itself. `None`: it is not permitted.
    fn attach(&self, length: usize) -> Option<Sample> {
        let local = libc::iovec { iov_base: self.destination.as_ptr().cast(), iov_len: length };
        let remote = libc::iovec { iov_base: self.source.as_ptr().cast(), iov_len: length };
        let switches = interruptions();
        let start = Instant::now();
        // SAFETY: both regions have this many bytes, live, and are used by raw pointers only.
        let copied = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
        let sample = Sample { time: start.elapsed(), quiet: switches == interruptions() };
        (usize::try_from(copied) == Ok(length)).then_some(sample)
    }

    /// The sender's part; the time is until the receiver has everything.
    fn put_in(&self, length: usize) -> Sample {
        let first = self.put.0.load(Ordering::Relaxed);
        // The receiver is awake, as that of a long message is.
        wait_for(&self.awaited, self.sent.0.fetch_add(1, Ordering::Relaxed) + 1);
        let before = (self.disturbed.0.load(Ordering::Relaxed), interruptions());
        let start = Instant::now();
        let end = first + length.div_ceil(CALIBRATE_PIECE_BYTES);
        for piece in first..end {
            wait_for(&self.taken, (piece + 1).saturating_sub(PIECES_OF_RING));
            let offset = (piece - first) * CALIBRATE_PIECE_BYTES;
            copy_piece((&self.ring, ring_offset(piece)), (&self.source, offset), length - offset);
            self.put.0.store(piece + 1, Ordering::Release);
        }
        wait_for(&self.taken, end);
        let time = start.elapsed();
        // On one core the two always disturb each other, and that is what messages would meet.
        let undisturbed = before == (self.disturbed.0.load(Ordering::Relaxed), interruptions());
        let apart = self.core.0.load(Ordering::Relaxed) != core();
        Sample { time, quiet: self.one_core || undisturbed && apart }
    }

    /// The receiver's part.
    fn take_out(&self, length: usize) {
        let first = self.taken.0.load(Ordering::Relaxed);
        let before = interruptions();
        self.awaited.0.fetch_add(1, Ordering::Release);
        let end = first + length.div_ceil(CALIBRATE_PIECE_BYTES);
        for piece in first..end {
            wait_for(&self.put, piece + 1);
            let offset = (piece - first) * CALIBRATE_PIECE_BYTES;
            copy_piece((&self.destination, offset), (&self.ring, ring_offset(piece)), length - offset);
            if piece + 1 == end {
                self.core.0.store(core(), Ordering::Relaxed);
                self.disturbed.0.fetch_add(usize::from(before != interruptions()), Ordering::Relaxed);
            }
            self.taken.0.store(piece + 1, Ordering::Release);
        }
    }
}

/// Waits for the other thread, which always gets there; lets it run where there is one core.
fn wait_for(line: &Line, value: usize) {
    let mut tries = 0u32;
    while line.0.load(Ordering::Acquire) < value {
        tries = tries.wrapping_add(1);
        if tries.is_multiple_of(1024) {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
}

/// How often this thread had to leave its core to another.
fn interruptions() -> i64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: room for the answer; it is all numbers, for which zeros are valid too.
    unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init().ru_nivcsw
    }
}

/// The core that this thread is on.
fn core() -> usize {
    // SAFETY: asks for a number.
    usize::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(0)
}

fn ring_offset(piece: usize) -> usize {
    piece % PIECES_OF_RING * CALIBRATE_PIECE_BYTES
}

/// A piece, or what is left.
fn copy_piece(to: (&MemoryRegion, usize), from: (&MemoryRegion, usize), left: usize) {
    let length = left.min(CALIBRATE_PIECE_BYTES);
    if let (Ok(to), Ok(from)) = (to.0.range(to.1, length), from.0.range(from.1, length)) {
        // SAFETY: both are inside of regions of ours, which are writable and used by raw pointers only.
        unsafe { copy::copy(to, from, length) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_are_measured() {
        let (measurements, _) = measure_within(Duration::from_millis(20), true);
        assert_eq!(measurements.iter().map(|measurement| measurement.length).collect::<Vec<_>>(), CALIBRATE_LENGTHS);
        assert!(measurements.iter().all(|measurement| measurement.ring > 0), "{measurements:?}");
        // Attach may be forbidden; it is then so for every length.
        let works = measurements.iter().filter(|measurement| measurement.attach > 0).count();
        assert!(works == 0 || works == 4, "{measurements:?}");
    }

    #[test]
    fn without_time_each_length_is_measured_once() {
        assert!(measure_within(Duration::ZERO, true).0.iter().all(|measurement| measurement.ring > 0));
        assert!(measure_within(Duration::ZERO, false).0.iter().all(|measurement| measurement.ring == 0));
    }

    #[test]
    fn every_byte_goes_through_the_ring() {
        let bench = Bench::new().unwrap();
        let bytes: Vec<u8> = (0..LONGEST_BYTES).map(|index| (index / 7) as u8).collect();
        bench.source.write(0, &bytes).unwrap();
        for length in [1, CALIBRATE_PIECE_BYTES + 1, LONGEST_BYTES] {
            std::thread::scope(|scope| {
                scope.spawn(|| bench.take_out(length));
                bench.put_in(length);
            });
            assert_eq!(bench.destination.to_vec(0, length).unwrap(), bytes[..length]);
        }
    }

    #[test]
    fn a_quiet_time_counts_before_a_shorter_one() {
        let (short, long) = (Duration::from_nanos(10), Duration::from_nanos(20));
        let mut best = Best::default();
        assert!(!best.is_disturbed() && best.rate(1) == 0, "it does not work at all");
        best.add(None);
        best.add(Some(Sample { time: short, quiet: false }));
        assert!(best.is_disturbed() && best.rate(20) == 2_000_000_000);
        best.add(Some(Sample { time: long, quiet: true }));
        best.add(Some(Sample { time: 2 * long, quiet: true }));
        assert!(!best.is_disturbed() && best.rate(20) == 1_000_000_000);
    }
}
