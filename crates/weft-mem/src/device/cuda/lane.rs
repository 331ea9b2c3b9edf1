//! Streams, and the pinned memory through which pageable memory goes.
//!
//! A synchronous copy takes a [`Lane`] for itself: nobody else's copies are on its stream, so that waiting for the stream
//! is waiting for the copy. Streams are never the legacy default one, which waits for every other stream of the device: a
//! kernel that waits for a message would then wait for ever.

use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::super::pending::lock;
use super::super::{DeviceError, Direction, Transfer};
use super::driver::{
    Context, Driver, EVENT_DISABLE_TIMING, EventHandle, HOST_PORTABLE, MEMORY_HOST, STREAM_NON_BLOCKING, Stream, call,
};
use crate::copy;
use crate::limits::{CUDA_LANES_READY, CUDA_STREAMS, STAGING_PIECE_BYTES, STAGING_PIECES, STAGING_UNASKED_MAX_BYTES};

/// What was made of a device when it was first used. It stays until the process ends, as its context does.
pub(super) struct Ready {
    pub(super) context: Context,
    lanes: Mutex<Vec<Lane>>,
    streams: [Stream; CUDA_STREAMS],
    next: AtomicUsize,
    events: Mutex<Vec<EventHandle>>,
}

/// A stream and pinned memory, for one copy at a time.
struct Lane {
    stream: Stream,
    staging: NonNull<u8>,
    /// For each piece of the staging: the copy from or to it is done.
    done: [EventHandle; STAGING_PIECES],
}

// SAFETY: the memory is the lane's own, and whoever has the lane has it alone.
unsafe impl Send for Lane {}

const STAGING_BYTES: usize = STAGING_PIECES * STAGING_PIECE_BYTES;

impl Ready {
    /// Takes the device's primary context, which is also the one of the CUDA runtime in this process, and makes what
    /// copies need. Later, a kernel that runs for long could be waited for by what allocates.
    pub(super) fn new(driver: &Driver, device: u32) -> Result<Ready, DeviceError> {
        let mut context = Context(null_mut());
        let ordinal = i32::try_from(device).map_err(|_| DeviceError::BadAddress)?;
        let mut number = 0;
        // SAFETY: each writes one value to where it is told. The context is never released.
        unsafe {
            call!(driver, cuDeviceGet(&raw mut number, ordinal))?;
            call!(driver, cuDevicePrimaryCtxRetain(&raw mut context, number))?;
        }
        let _entered = driver.enter(context)?;
        let mut streams = [Stream(null_mut()); CUDA_STREAMS];
        for stream in &mut streams {
            *stream = new_stream(driver)?;
        }
        let lanes = (0..CUDA_LANES_READY).map(|_| Lane::new(driver)).collect::<Result<Vec<_>, _>>()?;
        Ok(Ready {
            context,
            lanes: Mutex::new(lanes),
            streams,
            next: AtomicUsize::new(0),
            events: Mutex::new(Vec::new()),
        })
    }

    /// Copies, and returns when it is done. The context is entered.
    ///
    /// # Safety
    /// As [`super::super::Operations::copy`].
    pub(super) unsafe fn copy(
        &self,
        driver: &Driver,
        direction: Direction,
        pieces: &[Transfer],
    ) -> Result<(), DeviceError> {
        let lane = self.take_lane(driver)?;
        let run = Run { driver, lane: &lane, direction };
        // SAFETY: as the caller promised; the lane is ours.
        let copied = unsafe { run.copy(pieces) };
        if copied.is_err() {
            let _ = lane.wait(driver); // what was started before the failure still uses the caller's memory
        }
        lock(&self.lanes).push(lane);
        copied
    }

    /// Fills memory with zeros. The context is entered.
    ///
    /// # Safety
    /// The memory is the device's and nobody else's.
    pub(super) unsafe fn zero(&self, driver: &Driver, address: u64, length: usize) -> Result<(), DeviceError> {
        let lane = self.take_lane(driver)?;
        // SAFETY: as the caller promised.
        let zeroed = unsafe { call!(driver, cuMemsetD8Async(address, 0, length, lane.stream)) };
        let zeroed = zeroed.and(lane.wait(driver));
        lock(&self.lanes).push(lane);
        zeroed
    }

    fn take_lane(&self, driver: &Driver) -> Result<Lane, DeviceError> {
        let lane = lock(&self.lanes).pop();
        lane.map_or_else(|| Lane::new(driver), Ok)
    }

    /// Starts to copy; gives what tells when it is done. The context is entered.
    ///
    /// # Safety
    /// As [`super::super::Operations::start`].
    pub(super) unsafe fn start(
        &self,
        driver: &Driver,
        direction: Direction,
        pieces: &[Transfer],
    ) -> Result<EventHandle, DeviceError> {
        let event = lock(&self.events).pop();
        let event = event.map_or_else(|| new_event(driver), Ok)?;
        let turn = self.next.fetch_add(1, Ordering::Relaxed) % CUDA_STREAMS;
        let Some(stream) = self.streams.get(turn).copied() else {
            return Err(DeviceError::NotSupported);
        };
        let started = pieces
            .iter()
            .filter(|piece| piece.length > 0)
            // SAFETY: as the caller promised. Of pageable memory the driver makes a copy first, or waits.
            .try_for_each(|piece| unsafe { enqueue(driver, stream, direction, piece) })
            // SAFETY: the event and the stream are ours, of this context.
            .and_then(|()| unsafe { call!(driver, cuEventRecord(event, stream)) });
        if let Err(error) = started {
            // SAFETY: the stream is ours.
            let _ = unsafe { call!(driver, cuStreamSynchronize(stream)) }; // as in `copy`
            self.give_back(event);
            return Err(error);
        }
        Ok(event)
    }

    /// An event that nobody waits for any more.
    pub(super) fn give_back(&self, event: EventHandle) {
        lock(&self.events).push(event);
    }
}

impl Lane {
    fn new(driver: &Driver) -> Result<Lane, DeviceError> {
        let stream = new_stream(driver)?;
        let mut done = [EventHandle(null_mut()); STAGING_PIECES];
        for event in &mut done {
            *event = new_event(driver)?;
        }
        let mut staging = null_mut();
        // SAFETY: it writes one pointer to where it is told.
        unsafe { call!(driver, cuMemHostAlloc(&raw mut staging, STAGING_BYTES, HOST_PORTABLE))? };
        let staging = NonNull::new(staging.cast()).ok_or(DeviceError::OutOfMemory)?;
        Ok(Lane { stream, staging, done })
    }

    fn wait(&self, driver: &Driver) -> Result<(), DeviceError> {
        // SAFETY: the stream is ours.
        unsafe { call!(driver, cuStreamSynchronize(self.stream)) }
    }
}

/// One synchronous copy on its lane.
struct Run<'a> {
    driver: &'a Driver,
    lane: &'a Lane,
    direction: Direction,
}

impl Run<'_> {
    /// # Safety
    /// As [`Ready::copy`].
    unsafe fn copy(&self, pieces: &[Transfer]) -> Result<(), DeviceError> {
        // Pieces from `first` on that are short have their bytes in the staging, one behind the other, `used` in all.
        let (mut first, mut used) = (0, 0);
        for (index, piece) in pieces.iter().enumerate() {
            if piece.length == 0 {
                continue;
            }
            if self.is_short(piece) {
                if used + piece.length > STAGING_BYTES {
                    // SAFETY: as the caller promised.
                    unsafe { self.settle(pieces.get(first..index).unwrap_or_default())? };
                    (first, used) = (index, 0);
                }
                // SAFETY: there is room, as was just seen; otherwise as the caller promised.
                unsafe { self.enqueue_short(piece, used)? };
                used += spaced(piece.length);
            } else if self.direction == Direction::Within || self.is_pinned(piece) {
                // SAFETY: as the caller promised.
                unsafe { enqueue(self.driver, self.lane.stream, self.direction, piece)? };
            } else {
                // SAFETY: as the caller promised; after it, nothing uses the staging.
                unsafe {
                    self.settle(pieces.get(first..index).unwrap_or_default())?;
                    self.through_staging(piece)?;
                }
                (first, used) = (index + 1, 0);
            }
        }
        // SAFETY: as the caller promised.
        unsafe { self.settle(pieces.get(first..).unwrap_or_default()) }
    }

    fn is_short(&self, piece: &Transfer) -> bool {
        self.direction != Direction::Within && piece.length <= STAGING_UNASKED_MAX_BYTES
    }

    /// Whether the driver can copy from or to the host's side of a piece without a copy of its own.
    fn is_pinned(&self, piece: &Transfer) -> bool {
        let address = if self.direction == Direction::ToDevice { piece.from } else { piece.to };
        let known = self.driver.attributes(address);
        known.memory == MEMORY_HOST
            && address >= known.base
            && piece.length as u64 <= known.length.saturating_sub(address - known.base)
    }

    /// # Safety
    /// As [`Ready::copy`]; the staging has room at `used`, and nothing else uses that.
    unsafe fn enqueue_short(&self, piece: &Transfer, used: usize) -> Result<(), DeviceError> {
        // SAFETY: inside the staging, as the caller promised.
        let staging = unsafe { self.lane.staging.add(used) }.as_ptr();
        let staged = self.staged(piece, staging);
        if self.direction == Direction::ToDevice {
            // SAFETY: as the caller promised.
            unsafe { copy::copy(staging, piece.from as *const u8, piece.length) };
        }
        // SAFETY: as the caller promised; the staging is pinned memory.
        unsafe { enqueue(self.driver, self.lane.stream, self.direction, &staged) }
    }

    /// Waits for everything on the stream, and brings the short pieces to where they belong.
    ///
    /// # Safety
    /// As [`Ready::copy`]; the short ones among `pieces` are in the staging from its beginning.
    unsafe fn settle(&self, pieces: &[Transfer]) -> Result<(), DeviceError> {
        self.lane.wait(self.driver)?;
        if self.direction != Direction::FromDevice {
            return Ok(());
        }
        let mut used = 0;
        for piece in pieces.iter().filter(|piece| self.is_short(piece)) {
            // SAFETY: it was put there, and the stream is done; `to` is as the caller promised.
            unsafe { copy::copy(piece.to as *mut u8, self.lane.staging.add(used).as_ptr(), piece.length) };
            used += spaced(piece.length);
        }
        Ok(())
    }

    /// Copies a long piece of pageable memory: while the device copies some pieces of the staging, this thread copies
    /// another. All of it is done when this returns.
    ///
    /// # Safety
    /// As [`Ready::copy`]; nothing uses the staging.
    unsafe fn through_staging(&self, piece: &Transfer) -> Result<(), DeviceError> {
        let count = piece.length.div_ceil(STAGING_PIECE_BYTES);
        // Out of the device, what is taken out of the staging follows what is asked for by as much as the staging holds.
        let behind = if self.direction == Direction::FromDevice { STAGING_PIECES } else { 0 };
        for turn in 0..count + behind {
            let place = turn % STAGING_PIECES;
            // SAFETY: `place` is one of the pieces of the staging.
            let staging = unsafe { self.lane.staging.add(place * STAGING_PIECE_BYTES) }.as_ptr();
            let Some(done) = self.lane.done.get(place).copied() else {
                return Err(DeviceError::NotSupported);
            };
            if turn >= STAGING_PIECES && turn - STAGING_PIECES < count {
                // SAFETY: the event is the lane's, and was recorded STAGING_PIECES turns ago.
                unsafe { call!(self.driver, cuEventSynchronize(done))? };
                if self.direction == Direction::FromDevice {
                    let part = part(piece, turn - STAGING_PIECES);
                    // SAFETY: the device is done with it; `to` is as the caller promised.
                    unsafe { copy::copy(part.to as *mut u8, staging, part.length) };
                }
            }
            if turn < count {
                let part = part(piece, turn);
                if self.direction == Direction::ToDevice {
                    // SAFETY: the device is done with the staging; `from` is as the caller promised.
                    unsafe { copy::copy(staging, part.from as *const u8, part.length) };
                }
                // SAFETY: as the caller promised; the event and the stream are the lane's.
                unsafe {
                    enqueue(self.driver, self.lane.stream, self.direction, &self.staged(&part, staging))?;
                    call!(self.driver, cuEventRecord(done, self.lane.stream))?;
                }
            }
        }
        self.lane.wait(self.driver)
    }

    /// The piece, with its host's side in the staging.
    fn staged(&self, piece: &Transfer, staging: *mut u8) -> Transfer {
        match self.direction {
            Direction::ToDevice => Transfer { from: staging as u64, ..*piece },
            Direction::FromDevice => Transfer { to: staging as u64, ..*piece },
            Direction::Within => *piece,
        }
    }
}

/// What a short piece takes of the staging: whole cache lines, so that no two share one.
fn spaced(length: usize) -> usize {
    length.next_multiple_of(64)
}

/// The part of a piece that goes through the staging at a turn.
fn part(piece: &Transfer, turn: usize) -> Transfer {
    let offset = turn * STAGING_PIECE_BYTES;
    let length = (piece.length - offset.min(piece.length)).min(STAGING_PIECE_BYTES);
    Transfer { to: piece.to + offset as u64, from: piece.from + offset as u64, length }
}

/// Puts one copy on a stream.
///
/// # Safety
/// The piece may be read and written until the stream is done with it; the context is entered.
unsafe fn enqueue(driver: &Driver, stream: Stream, direction: Direction, piece: &Transfer) -> Result<(), DeviceError> {
    let Transfer { to, from, length } = *piece;
    // SAFETY: as the caller promised.
    unsafe {
        match direction {
            Direction::ToDevice => call!(driver, cuMemcpyHtoDAsync_v2(to, from as *const c_void, length, stream)),
            Direction::FromDevice => call!(driver, cuMemcpyDtoHAsync_v2(to as *mut c_void, from, length, stream)),
            Direction::Within => call!(driver, cuMemcpyAsync(to, from, length, stream)),
        }
    }
}

fn new_stream(driver: &Driver) -> Result<Stream, DeviceError> {
    let mut stream = Stream(null_mut());
    // SAFETY: it writes one handle to where it is told.
    unsafe { call!(driver, cuStreamCreate(&raw mut stream, STREAM_NON_BLOCKING))? };
    Ok(stream)
}

fn new_event(driver: &Driver) -> Result<EventHandle, DeviceError> {
    let mut event = EventHandle(null_mut());
    // SAFETY: it writes one handle to where it is told.
    unsafe { call!(driver, cuEventCreate(&raw mut event, EVENT_DISABLE_TIMING))? };
    Ok(event)
}
