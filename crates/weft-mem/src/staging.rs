//! Between packets and device memory: pinned buffers, through which bytes go in few long copies.
//!
//! **In**: bytes for one place that come one behind the other are gathered, and go to the device when the buffer is full,
//! when bytes for another place come, or when the NIC settles ([`Staging::settle`]): before anybody is told of them.
//! **Out**: bytes that are needed on the host (for a checksum, then for sending) are fetched into a window, and more than
//! was asked for when they are read in order; so each byte is copied once, and most are there before they are wanted.
//!
//! Everything here names device memory by address. [`HostMemory`](crate::HostMemory) checks ranges and rights before,
//! and does not let go of memory ([`Staging::let_go`]) that copies are under way for.

use std::alloc::Layout;
use std::collections::VecDeque;
use std::fmt;
use std::ptr::NonNull;

use weft_core::memory::{Fault, Granted};

use crate::copy;
use crate::device::{self, DeviceError, Direction, Event, Kind, Operations, Place, Transfer};
use crate::limits::{
    PAGE_BYTES, STAGE_ALIGN_BYTES, STAGE_IN_BUFFERS, STAGE_IN_BYTES, STAGE_IN_START_BYTES, STAGE_OUT_AHEAD_BYTES,
    STAGE_OUT_BYTES, STAGE_OUT_ENTRIES_MAX,
};

/// What went through the host on its way from or to device memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StagingCounters {
    /// Pieces that came for device memory.
    pub in_writes: u64,
    /// Their bytes.
    pub in_bytes: u64,
    /// Copies to the device that were made of them.
    pub in_copies: u64,
    /// Copies from the device.
    pub out_copies: u64,
    /// Their bytes; with what was fetched ahead in vain.
    pub out_bytes: u64,
    /// Pieces that were there already when they were asked for.
    pub out_hits: u64,
    /// Atomics on device memory.
    pub atomics: u64,
    /// Staging buffers that could not be registered with the device, so that copies are slower.
    pub unpinned: u64,
    /// Copies that failed.
    pub failures: u64,
}

/// A piece of device memory, by address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Located {
    pub(crate) place: Place,
    pub(crate) address: u64,
    pub(crate) length: usize,
}

impl Located {
    fn overlaps(&self, other: &Located) -> bool {
        let end = |piece: &Located| piece.address.saturating_add(piece.length as u64);
        self.length > 0 && other.length > 0 && self.address < end(other) && other.address < end(self)
    }
}

/// The buffers of one NIC, both ways.
#[derive(Debug, Default)]
pub(crate) struct Staging {
    inbound: Inbound,
    outbound: Outbound,
    pub(crate) counters: StagingCounters,
}

impl Staging {
    /// Takes bytes for a device.
    ///
    /// # Safety
    /// `source` may be read for as many bytes as `to` has; `to` may be written until [`Staging::settle`] or
    /// [`Staging::let_go`] returns.
    pub(crate) unsafe fn write(&mut self, to: Located, source: *const u8) -> Result<(), Fault> {
        self.counters.in_writes += 1;
        self.counters.in_bytes += to.length as u64;
        self.outbound.forget_range(&to);
        // SAFETY: as the caller promised.
        unsafe { self.inbound.write(to, source, &mut self.counters) }.map_err(fault)
    }

    /// Copies to a device without a stop: of many bytes that are there at once that is the shortest way. Done when it
    /// returns.
    ///
    /// # Safety
    /// `to` may be written, and `source` read for as many bytes.
    pub(crate) unsafe fn write_through(&mut self, to: Located, source: *const u8) -> Result<(), Fault> {
        self.step_aside(&to, true)?;
        self.counters.in_writes += 1;
        self.counters.in_bytes += to.length as u64;
        self.counters.in_copies += 1;
        // SAFETY: as the caller promised.
        unsafe { copy_to(to, source) }.map_err(|error| self.failed(&error))
    }

    /// Room for the first bytes of a piece, to be filled and then committed. What is not committed is not there.
    pub(crate) fn claim(&mut self, to: Located) -> Result<(*mut u8, usize), Fault> {
        self.inbound.claim(to, &mut self.counters).map_err(fault)
    }

    /// So many bytes were put where the last claim said.
    ///
    /// # Safety
    /// `to` is the claim's, with no more bytes than it gave; it may be written as with [`Staging::write`].
    pub(crate) unsafe fn commit(&mut self, to: Located) {
        self.counters.in_writes += 1;
        self.counters.in_bytes += to.length as u64;
        self.outbound.forget_range(&to);
        self.inbound.commit(to.length);
    }

    /// Copies out of a device, what was written before included.
    ///
    /// # Safety
    /// `from` may be read, and `into` written for as many bytes.
    pub(crate) unsafe fn read(&mut self, from: Located, into: *mut u8) -> Result<(), Fault> {
        self.settle_range(&from)?;
        self.counters.out_copies += 1;
        self.counters.out_bytes += from.length as u64;
        // SAFETY: as the caller promised.
        unsafe { copy_from(from, into) }.map_err(|error| self.failed(&error))
    }

    /// The bytes of a piece on the host, where they stay until others push them out; `available` are those that lie
    /// behind its beginning, it included. The piece has at most [`STAGE_OUT_AHEAD_BYTES`].
    ///
    /// # Safety
    /// `available` bytes from the beginning of `from` may be read, until [`Staging::let_go`] returns.
    pub(crate) unsafe fn fetch(
        &mut self,
        name: Granted,
        from: Located,
        available: usize,
        lasting: bool,
    ) -> Result<*const u8, Fault> {
        // As far as it can be fetched ahead.
        let length = available.min(from.length + 2 * STAGE_OUT_AHEAD_BYTES);
        self.settle_range(&Located { length, ..from })?;
        // SAFETY: as the caller promised.
        let fetched = unsafe { self.outbound.fetch(Name::of(name, lasting), from, available, &mut self.counters) };
        fetched.map_err(|error| self.failed(&error))
    }

    /// The bytes of a piece on the host, if they are there.
    pub(crate) fn find(&mut self, name: Granted) -> Option<*const u8> {
        let length = usize::try_from(name.length).ok()?;
        let found = self.outbound.find(&Name::of(name, true), length)?.ok()?;
        self.counters.out_hits += 1;
        Some(found)
    }

    /// Brings all bytes to their device. A failure stays: it may have lost bytes of which nobody was told.
    pub(crate) fn settle(&mut self) -> Result<(), Fault> {
        self.inbound.settle(&mut self.counters).map_err(|error| self.failed(&error))
    }

    /// Brings bytes to their device if they are for a range that is to be read.
    fn settle_range(&mut self, range: &Located) -> Result<(), Fault> {
        if self.inbound.is_busy_with(range) { self.settle() } else { Ok(()) }
    }

    /// Others copy from a range, or into it: what was written before is there by then.
    pub(crate) fn step_aside(&mut self, range: &Located, is_written: bool) -> Result<(), Fault> {
        if is_written {
            self.outbound.forget_range(range);
        }
        self.settle_range(range)
    }

    /// Begins to bring all bytes to their device: they will be there soon, whoever waits for them.
    pub(crate) fn advance(&mut self) {
        self.inbound.advance(&mut self.counters);
    }

    /// Forgets what was fetched from memory that peers and kernels may write: the next who asks sees it as it is then.
    pub(crate) fn forget_passing(&mut self) {
        if std::mem::take(&mut self.outbound.has_passing) {
            self.outbound.forget(|entry| !entry.name.lasting);
        }
    }

    /// Ends all copies that are under way to any memory, and from this one.
    pub(crate) fn let_go(&mut self, slot: u32, generation: u32) {
        // Who settles next is told of a failure.
        let _ = self.inbound.settle(&mut self.counters);
        self.outbound.forget(|entry| (entry.name.slot, entry.name.generation) == (slot, generation));
    }

    fn failed(&mut self, error: &DeviceError) -> Fault {
        self.counters.failures += 1;
        fault(error.clone())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // Nobody is left to tell; but no copy may outlive the buffers.
        let _ = self.inbound.settle(&mut self.counters);
        self.outbound.forget(|_| true);
    }
}

/// What a failure of a device is to the engine.
#[expect(clippy::needless_pass_by_value, reason = "it is what `map_err` gives")]
pub(crate) fn fault(error: DeviceError) -> Fault {
    match error {
        DeviceError::NotSupported => Fault::NotSupported,
        _ => Fault::Failed,
    }
}

/// The operations of a place.
pub(crate) fn operations(place: Place) -> Result<&'static dyn Operations, DeviceError> {
    device::operations(place.kind).map_err(|absent| DeviceError::Failed(absent.0))
}

/// Copies from device memory to the host's.
///
/// # Safety
/// `from` may be read, and `into` written for as many bytes.
pub(crate) unsafe fn copy_from(from: Located, into: *mut u8) -> Result<(), DeviceError> {
    if from.length == 0 {
        return Ok(());
    }
    let piece = Transfer { to: into as u64, from: from.address, length: from.length };
    // SAFETY: as the caller promised.
    unsafe { operations(from.place)?.copy(from.place.device, Direction::FromDevice, &[piece]) }
}

/// Copies from the host's memory to a device's.
///
/// # Safety
/// `to` may be written, and `source` read for as many bytes.
pub(crate) unsafe fn copy_to(to: Located, source: *const u8) -> Result<(), DeviceError> {
    if to.length == 0 {
        return Ok(());
    }
    let piece = Transfer { to: to.address, from: source as u64, length: to.length };
    // SAFETY: as the caller promised.
    unsafe { operations(to.place)?.copy(to.place.device, Direction::ToDevice, &[piece]) }
}

/// The way in.
#[derive(Debug, Default)]
struct Inbound {
    memory: Option<Pinned>,
    /// What is being gathered, in buffer `next`.
    open: Option<Located>,
    /// Being copied, oldest first; each in the buffer behind that of the one before.
    flying: VecDeque<(Located, Event)>,
    next: usize,
    /// The first failure. Operations whose bytes it lost were told that all is well, so it is never forgotten.
    failed: Option<DeviceError>,
}

impl Inbound {
    /// # Safety
    /// As [`Staging::write`].
    unsafe fn write(
        &mut self,
        to: Located,
        source: *const u8,
        counters: &mut StagingCounters,
    ) -> Result<(), DeviceError> {
        let mut done = 0;
        while done < to.length {
            let rest = Located { address: to.address + done as u64, length: to.length - done, ..to };
            let (buffer, length) = self.claim(rest, counters)?;
            // SAFETY: the caller vouches for the source; the buffer has room, and nothing else uses it.
            unsafe { copy::copy(buffer, source.add(done), length) };
            self.commit(length);
            done += length;
        }
        Ok(())
    }

    /// Room for bytes that go to the beginning of a piece: behind those before it, or in the next buffer.
    fn claim(&mut self, to: Located, counters: &mut StagingCounters) -> Result<(*mut u8, usize), DeviceError> {
        let continues = self.open.is_some_and(|open| {
            open.place == to.place && open.address + open.length as u64 == to.address && open.length < STAGE_IN_BYTES
        });
        if !continues {
            self.start_open(counters);
            if self.flying.len() >= STAGE_IN_BUFFERS {
                self.land_one();
            }
            self.open = Some(Located { length: 0, ..to });
        }
        let filled = self.open.map_or(0, |open| open.length);
        let length = (STAGE_IN_BYTES - filled).min(to.length);
        let piece = Located { length, ..to };
        if self.flying.iter().any(|(flying, _)| flying.overlaps(&piece)) {
            self.land_all();
        }
        let next = self.next;
        Ok((self.pinned(to.place, counters)?.at(next * STAGE_IN_BYTES + filled), length))
    }

    fn commit(&mut self, length: usize) {
        if let Some(open) = &mut self.open {
            open.length += length;
        }
    }

    fn pinned(&mut self, place: Place, counters: &mut StagingCounters) -> Result<&mut Pinned, DeviceError> {
        let memory = match self.memory.take() {
            Some(memory) => memory,
            None => Pinned::new(STAGE_IN_BUFFERS * STAGE_IN_BYTES)?,
        };
        let memory = self.memory.insert(memory);
        memory.know(place.kind, counters)?;
        Ok(memory)
    }

    /// Starts to copy what was gathered.
    fn start_open(&mut self, counters: &mut StagingCounters) {
        let Some(open) = self.open.take().filter(|open| open.length > 0) else { return };
        counters.in_copies += 1;
        let started = self.pinned(open.place, counters).map(|memory| memory.pointer).and_then(|memory| {
            let from = memory.as_ptr().wrapping_add(self.next * STAGE_IN_BYTES) as u64;
            let piece = Transfer { to: open.address, from, length: open.length };
            // SAFETY: `HostMemory` lets the range be written until it is settled; the buffer is not used before that.
            unsafe { operations(open.place)?.start(open.place.device, Direction::ToDevice, &[piece]) }
        });
        match started {
            Ok(event) => {
                self.flying.push_back((open, event));
                self.next = (self.next + 1) % STAGE_IN_BUFFERS;
            }
            Err(error) => _ = self.failed.get_or_insert(error),
        }
    }

    fn land_one(&mut self) {
        if let Some((to, event)) = self.flying.pop_front()
            && let Err(error) = operations(to.place).and_then(|operations| operations.wait(event))
        {
            self.failed.get_or_insert(error);
        }
    }

    fn land_all(&mut self) {
        while !self.flying.is_empty() {
            self.land_one();
        }
    }

    fn is_busy_with(&self, range: &Located) -> bool {
        self.open.iter().chain(self.flying.iter().map(|(flying, _)| flying)).any(|piece| piece.overlaps(range))
    }

    /// What was gathered leaves the buffer.
    fn advance(&mut self, counters: &mut StagingCounters) {
        self.land_done();
        match self.open {
            // While the device has work, what comes is gathered: fewer copies, each longer.
            Some(open) if open.length >= STAGE_IN_START_BYTES => {
                if self.flying.is_empty() {
                    self.start_open(counters);
                }
            }
            _ => self.copy_open(counters),
        }
    }

    /// Forgets copies that are done.
    fn land_done(&mut self) {
        while let Some((to, event)) = self.flying.front() {
            match operations(to.place).and_then(|operations| operations.is_done(event)) {
                Ok(false) => return,
                Ok(true) => {}
                Err(error) => _ = self.failed.get_or_insert(error),
            }
            self.flying.pop_front();
        }
    }

    fn settle(&mut self, counters: &mut StagingCounters) -> Result<(), DeviceError> {
        self.copy_open(counters);
        self.land_all();
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Copies what was gathered by this thread: for a short one that is the shortest way.
    fn copy_open(&mut self, counters: &mut StagingCounters) {
        if let Some(open) = self.open.take().filter(|open| open.length > 0) {
            counters.in_copies += 1;
            let next = self.next;
            let copied = self.pinned(open.place, counters).and_then(|memory| {
                // SAFETY: `HostMemory` lets the range be written until it is settled; the buffer holds as many bytes.
                unsafe { copy_to(open, memory.at(next * STAGE_IN_BYTES)) }
            });
            if let Err(error) = copied {
                self.failed.get_or_insert(error);
            }
        }
    }
}

/// Which memory, as the engine names it, and where in it.
#[derive(Clone, Copy, Debug)]
struct Name {
    slot: u32,
    generation: u32,
    offset: u64,
    /// It is the buffer of an operation, which nobody changes while that is under way.
    lasting: bool,
}

impl Name {
    fn of(granted: Granted, lasting: bool) -> Name {
        Name { slot: granted.slot, generation: granted.generation, offset: granted.offset, lasting }
    }

    fn is_same_memory(&self, other: &Name) -> bool {
        (self.slot, self.generation) == (other.slot, other.generation)
    }
}

/// The way out.
#[derive(Debug, Default)]
struct Outbound {
    memory: Option<Pinned>,
    /// Bytes that were ever put into the window, gaps included.
    head: u64,
    /// Oldest first.
    entries: VecDeque<Entry>,
    /// Some are of memory that others may write.
    has_passing: bool,
    /// Who reads in order: the memory, where the next piece begins, and how much was fetched last.
    reader: Option<(Name, usize)>,
}

/// Bytes in the window.
#[derive(Debug)]
struct Entry {
    name: Name,
    from: Located,
    /// Where in the window, counted from the beginning of time.
    at: u64,
    /// Not there yet.
    event: Option<Event>,
}

impl Entry {
    fn end(&self) -> u64 {
        self.name.offset + self.from.length as u64
    }

    /// Waits for its bytes.
    fn land(&mut self) -> Result<(), DeviceError> {
        match self.event.take() {
            Some(event) => operations(self.from.place)?.wait(event),
            None => Ok(()),
        }
    }
}

impl Outbound {
    /// # Safety
    /// As [`Staging::fetch`].
    unsafe fn fetch(
        &mut self,
        name: Name,
        from: Located,
        available: usize,
        counters: &mut StagingCounters,
    ) -> Result<*const u8, DeviceError> {
        let end = Name { offset: name.offset + from.length as u64, ..name };
        let in_order = self.reader.is_some_and(|(next, _)| next.is_same_memory(&name) && next.offset == name.offset);
        let ahead = if in_order { self.reader.map_or(0, |(_, ahead)| ahead) } else { 0 };
        let (pointer, ahead) = match self.find(&name, from.length) {
            Some(found) => {
                counters.out_hits += 1;
                (found?, ahead)
            }
            None => {
                if let Some(bridge) = self.bridge(name, from, counters)? {
                    (bridge, ahead)
                } else {
                    // Twice as much each time it goes on.
                    let length = from.length.max(ahead.saturating_mul(2)).min(STAGE_OUT_AHEAD_BYTES).min(available);
                    let whole = Located { length: length.max(from.length), ..from };
                    // SAFETY: as the caller promised: it is no longer than `available`, or than `from`.
                    (unsafe { self.load(name, whole, false, counters)? }, length)
                }
            }
        };
        self.reader = Some((end, ahead));
        // The next part is on its way while this one is sent. Only of what nobody changes meanwhile.
        if name.lasting && in_order && ahead >= STAGE_OUT_AHEAD_BYTES {
            // SAFETY: as the caller promised.
            unsafe { self.prefetch(name, from, available, counters)? };
        }
        Ok(pointer)
    }

    /// Starts to fetch what is behind the last entry that goes on from `name`.
    ///
    /// # Safety
    /// As [`Staging::fetch`].
    unsafe fn prefetch(
        &mut self,
        name: Name,
        from: Located,
        available: usize,
        counters: &mut StagingCounters,
    ) -> Result<(), DeviceError> {
        let same = self.entries.iter().filter(|entry| entry.name.is_same_memory(&name));
        let Some(next) = same.map(Entry::end).max() else { return Ok(()) };
        let Some(skip) = next.checked_sub(name.offset).and_then(|skip| usize::try_from(skip).ok()) else {
            return Ok(());
        };
        let left = available.saturating_sub(skip);
        // One part ahead is enough.
        if left == 0 || skip > STAGE_OUT_AHEAD_BYTES {
            return Ok(());
        }
        let length = left.min(STAGE_OUT_AHEAD_BYTES);
        let part = Located { address: from.address + skip as u64, length, ..from };
        // SAFETY: `skip` and `length` are within `available`, for which the caller vouches.
        unsafe { self.load(Name { offset: next, ..name }, part, true, counters)? };
        Ok(())
    }

    /// Copies a piece into the window, or starts to.
    ///
    /// # Safety
    /// `from` may be read; until the entry has landed, if it is only started.
    unsafe fn load(
        &mut self,
        name: Name,
        from: Located,
        starts: bool,
        counters: &mut StagingCounters,
    ) -> Result<*const u8, DeviceError> {
        let (at, pointer) = self.room(from, counters)?;
        counters.out_copies += 1;
        counters.out_bytes += from.length as u64;
        let event = if starts {
            let piece = Transfer { to: pointer as u64, from: from.address, length: from.length };
            let operations = operations(from.place)?;
            // SAFETY: the caller vouches for the source; the room is not given to others before the entry has landed.
            Some(unsafe { operations.start(from.place.device, Direction::FromDevice, &[piece])? })
        } else {
            // SAFETY: as above.
            unsafe { copy_from(from, pointer)? };
            None
        };
        self.push(Entry { name, from, at, event });
        Ok(pointer)
    }

    /// A piece that begins in one entry and ends in another, put together.
    fn bridge(
        &mut self,
        name: Name,
        from: Located,
        counters: &mut StagingCounters,
    ) -> Result<Option<*const u8>, DeviceError> {
        let holds = |entry: &Entry, offset: u64| {
            entry.name.is_same_memory(&name) && (entry.name.offset..entry.end()).contains(&offset)
        };
        let Some(end) = self.entries.iter().rev().find(|entry| holds(entry, name.offset)).map(Entry::end) else {
            return Ok(None);
        };
        let head = (end - name.offset) as usize;
        let Some(tail) = from.length.checked_sub(head) else { return Ok(None) };
        let last = name.offset + from.length as u64 - 1;
        if tail == 0 || !self.entries.iter().any(|entry| holds(entry, end) && entry.end() > last) {
            return Ok(None);
        }
        let (at, pointer) = self.room(from, counters)?;
        let parts = [(name, head, 0), (Name { offset: end, ..name }, tail, head)];
        for (name, length, inside) in parts {
            // Making room may have pushed it out.
            let Some(found) = self.find(&name, length) else { return Ok(None) };
            let found = found?;
            // SAFETY: `find` gives as many bytes, and the room was made for both.
            unsafe { copy::copy(pointer.add(inside), found, length) };
        }
        self.push(Entry { name, from, at, event: None });
        Ok(Some(pointer))
    }

    fn push(&mut self, entry: Entry) {
        self.has_passing |= !entry.name.lasting;
        self.entries.push_back(entry);
    }

    /// Bytes that are in the window, all in one entry; waits until they are there.
    fn find(&mut self, name: &Name, length: usize) -> Option<Result<*const u8, DeviceError>> {
        let end = name.offset.checked_add(length as u64)?;
        let covers =
            |entry: &Entry| entry.name.is_same_memory(name) && entry.name.offset <= name.offset && end <= entry.end();
        let index = self.entries.iter().rposition(covers)?;
        let entry = self.entries.get_mut(index)?;
        if let Err(error) = entry.land() {
            self.entries.remove(index);
            return Some(Err(error));
        }
        let inside = (name.offset - entry.name.offset) as usize;
        let start = (entry.at % STAGE_OUT_BYTES as u64) as usize;
        Some(Ok(self.memory.as_ref()?.at(start + inside).cast_const()))
    }

    /// Room in the window, for which the oldest entries make place.
    fn room(&mut self, from: Located, counters: &mut StagingCounters) -> Result<(u64, *mut u8), DeviceError> {
        let window = STAGE_OUT_BYTES as u64;
        let length = from.length.next_multiple_of(STAGE_ALIGN_BYTES) as u64;
        let mut at = self.head;
        if at % window + length > window {
            at = at.next_multiple_of(window);
        }
        let oldest = (at + length).saturating_sub(window);
        while self.entries.front().is_some_and(|entry| entry.at < oldest) || self.entries.len() >= STAGE_OUT_ENTRIES_MAX
        {
            if let Some(mut entry) = self.entries.pop_front() {
                entry.land()?;
            }
        }
        self.head = at + length;
        let memory = match self.memory.take() {
            Some(memory) => memory,
            None => Pinned::new(STAGE_OUT_BYTES)?,
        };
        let memory = self.memory.insert(memory);
        memory.know(from.place.kind, counters)?;
        Ok((at, memory.at((at % window) as usize)))
    }

    /// Forgets what was fetched of a range, as it changes.
    fn forget_range(&mut self, range: &Located) {
        if !self.entries.is_empty() {
            self.forget(|entry| entry.from.overlaps(range));
        }
    }

    /// Forgets entries; no copy is under way for any of them after that.
    fn forget(&mut self, which: impl Fn(&Entry) -> bool) {
        self.entries.retain_mut(|entry| {
            let goes = which(entry);
            if goes {
                // Its bytes are not wanted any more, so neither is the reason why they did not come.
                let _ = entry.land();
            }
            !goes
        });
    }
}

/// Pages of the host that the devices know, where they can.
pub struct Pinned {
    pointer: NonNull<u8>,
    layout: Layout,
    /// Kinds that were asked, and whether they took it.
    kinds: Vec<(Kind, bool)>,
}

// SAFETY: the pages are owned, and accessed by raw pointer only.
unsafe impl Send for Pinned {}

impl Pinned {
    /// Zeroed pages, known to no device yet.
    pub fn new(length: usize) -> Result<Pinned, DeviceError> {
        let layout = Layout::from_size_align(length.max(1), PAGE_BYTES).map_err(|_| DeviceError::OutOfMemory)?;
        // SAFETY: the layout has bytes.
        let pointer = unsafe { std::alloc::alloc_zeroed(layout) };
        let pointer = NonNull::new(pointer).ok_or(DeviceError::OutOfMemory)?;
        Ok(Pinned { pointer, layout, kinds: Vec::new() })
    }

    /// Makes it known to a kind of device. Where that does not work copies are slower, which is counted.
    fn know(&mut self, kind: Kind, counters: &mut StagingCounters) -> Result<(), DeviceError> {
        if self.kinds.iter().any(|(known, _)| *known == kind) {
            return Ok(());
        }
        if !self.register(kind)? {
            counters.unpinned += 1;
        }
        Ok(())
    }

    /// Makes it known to a kind of device; false: it does not take it, and copies are slower.
    pub fn register(&mut self, kind: Kind) -> Result<bool, DeviceError> {
        if let Some((_, taken)) = self.kinds.iter().find(|(known, _)| *known == kind) {
            return Ok(*taken);
        }
        let operations = operations(Place::new(kind, 0))?;
        let taken = operations.capabilities().register_host
            // SAFETY: the pages live until `drop`, which takes it back first.
            && unsafe { operations.register_host(self.pointer.as_ptr(), self.layout.size()) }.is_ok();
        self.kinds.push((kind, taken));
        Ok(taken)
    }

    /// Bytes.
    #[must_use]
    pub fn length(&self) -> usize {
        self.layout.size()
    }

    /// Where a byte is; outside of it, at its end.
    #[must_use]
    pub fn at(&self, offset: usize) -> *mut u8 {
        self.pointer.as_ptr().wrapping_add(offset.min(self.layout.size()))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        for (kind, taken) in &self.kinds {
            if *taken && let Ok(operations) = operations(Place::new(*kind, 0)) {
                // SAFETY: it was registered with this pointer; its owner waited for the copies that used it.
                let _ = unsafe { operations.unregister_host(self.pointer.as_ptr()) };
            }
        }
        // SAFETY: `alloc_zeroed` gave it with this layout.
        unsafe { std::alloc::dealloc(self.pointer.as_ptr(), self.layout) }
    }
}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pinned({} bytes, {:?})", self.layout.size(), self.kinds)
    }
}

#[cfg(test)]
mod tests;
