//! Streams, and the pinned memory through which short copies out of the device go.
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
use crate::limits::{CUDA_IN_ORDER_BYTES, CUDA_LANES_READY, CUDA_STREAMS, STAGING_BYTES, STAGING_UNASKED_MAX_BYTES};

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
}

// SAFETY: the memory is the lane's own, and whoever has the lane has it alone.
unsafe impl Send for Lane {}

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
        let run = Run::new(driver, &lane, direction, pieces);
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
        // Long ones of one direction one behind the other: side by side they would take as long, and all end at the same
        // time, so that the device has nothing to do until the next ones come.
        let bytes: usize = pieces.iter().map(|piece| piece.length).sum();
        let turn = match direction {
            _ if bytes < CUDA_IN_ORDER_BYTES => self.next.fetch_add(1, Ordering::Relaxed) % CUDA_STREAMS,
            Direction::Within => 0,
            Direction::ToDevice => 1,
            Direction::FromDevice => 2,
        };
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
        let mut staging = null_mut();
        // SAFETY: it writes one pointer to where it is told.
        unsafe { call!(driver, cuMemHostAlloc(&raw mut staging, STAGING_BYTES, HOST_PORTABLE))? };
        let staging = NonNull::new(staging.cast()).ok_or(DeviceError::OutOfMemory)?;
        Ok(Lane { stream, staging })
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
    /// Pieces up to this length go through the staging.
    staged_max: usize,
}

impl Run<'_> {
    fn new<'a>(driver: &'a Driver, lane: &'a Lane, direction: Direction, pieces: &[Transfer]) -> Run<'a> {
        // Only out of the device, and not what is long: there the driver's own way was no slower when both were measured,
        // and faster from 4 MiB on. Asked is once, as memory can become pinned meanwhile.
        let staged_max = match (direction, pieces) {
            (Direction::ToDevice | Direction::Within, _) => 0,
            (_, [piece]) if piece.length > STAGING_UNASKED_MAX_BYTES && !is_pinned(driver, piece) => STAGING_BYTES,
            _ => STAGING_UNASKED_MAX_BYTES,
        };
        Run { driver, lane, direction, staged_max }
    }

    /// # Safety
    /// As [`Ready::copy`].
    unsafe fn copy(&self, pieces: &[Transfer]) -> Result<(), DeviceError> {
        // The staged ones from `first` on lie in the staging, one behind the other, and take `used` bytes of it.
        let (mut first, mut used) = (0, 0);
        for (index, piece) in pieces.iter().enumerate().filter(|(_, piece)| piece.length > 0) {
            if piece.length > self.staged_max {
                // SAFETY: as the caller promised.
                unsafe { enqueue(self.driver, self.lane.stream, self.direction, piece)? };
                continue;
            }
            if used + piece.length > STAGING_BYTES {
                // SAFETY: as the caller promised.
                unsafe { self.settle(pieces.get(first..index).unwrap_or_default())? };
                (first, used) = (index, 0);
            }
            // SAFETY: there is room, as was just seen, and the stream copies there before anybody looks.
            let staged = Transfer { to: unsafe { self.lane.staging.add(used) }.as_ptr() as u64, ..*piece };
            // SAFETY: as the caller promised; the staging is the lane's, which is ours.
            unsafe { enqueue(self.driver, self.lane.stream, self.direction, &staged)? };
            used += spaced(piece.length);
        }
        // SAFETY: as the caller promised.
        unsafe { self.settle(pieces.get(first..).unwrap_or_default()) }
    }

    /// Waits for everything on the stream, and brings what is in the staging to where it belongs.
    ///
    /// # Safety
    /// As [`Ready::copy`]; the staged ones among `pieces` lie in the staging from its beginning.
    unsafe fn settle(&self, pieces: &[Transfer]) -> Result<(), DeviceError> {
        self.lane.wait(self.driver)?;
        let mut used = 0;
        for piece in pieces.iter().filter(|piece| piece.length <= self.staged_max) {
            // SAFETY: it was put there, and the stream is done; `to` is as the caller promised.
            unsafe { copy::copy(piece.to as *mut u8, self.lane.staging.add(used).as_ptr(), piece.length) };
            used += spaced(piece.length);
        }
        Ok(())
    }
}

/// What a piece takes of the staging: whole cache lines, so that no two share one.
fn spaced(length: usize) -> usize {
    length.next_multiple_of(64)
}

/// Whether the driver can write to the host's side of a piece without a copy of its own.
fn is_pinned(driver: &Driver, piece: &Transfer) -> bool {
    let known = driver.attributes(piece.to);
    known.memory == MEMORY_HOST
        && piece.to >= known.base
        && piece.length as u64 <= known.length.saturating_sub(piece.to - known.base)
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
