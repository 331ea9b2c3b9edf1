//! The memory of this process, as the engine sees it.

use std::any::Any;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weft_core::atomic::{AtomicCall, AtomicClass, AtomicOperation, Datatype};
use weft_core::memory::{Access, Fault, Granted, LocalKey, Memory};

use crate::atomic::{self, Values};
use crate::buffer::{Buffer, Lent};
use crate::device::{DeviceError, Handle, Place};
use crate::foreign::{Copies, Copying, DeviceGrant, Foreign, Inside, Plan, Way};
use crate::keys::Keys;
use crate::known::Known;
use crate::limits::{
    INJECT_MAX_BYTES, INJECT_POOL_MAX, INJECTED_MAX_BYTES, LOCAL_BUFFERS_MAX, LOCAL_SLOT_BITS, STAGE_OUT_AHEAD_BYTES,
};
use crate::region::{Addressing, MemoryRegion, Region, RegisterError};
use crate::segment::{DeviceSegment, Segment, SegmentMut, Sendable};
use crate::shared::Shareable;
use crate::staging::{Located, Staging, StagingCounters};
use crate::{copy, crc, guarded};

const LOCAL_SLOT_MASK: u32 = (1 << LOCAL_SLOT_BITS) - 1;
const NO_SLOT: u32 = u32::MAX;
mod devices;

/// In [`Granted::slot`]: the slot is one of the regions, not of the attached buffers.
const REGION: u32 = 1 << 31;

/// Buffers of the user's operations, and regions that peers may reach.
///
/// A node has one, and uses it under one lock, together with its engine: every access of a peer happens inside a call of
/// [`Memory`], and a [`Segment`] borrows the whole. So when [`HostMemory::deregister`] or [`HostMemory::take`] returns,
/// no access to that memory is under way, and none can come any more.
///
/// Memory of devices is reached through their operations, staged: what is written is there when [`HostMemory::settle`]
/// has returned, and reading through here sees it before. Their atomics are atomic among accesses through the same
/// `HostMemory` only: they are done on the host, between a copy out and a copy in.
#[derive(Debug)]
pub struct HostMemory {
    /// Bytes on their way from and to devices. Reading needs it too. The first field, since it is dropped first: no copy
    /// may be under way when memory goes.
    staging: Mutex<Staging>,
    copies: Copies,
    locals: Vec<LocalSlot>,
    /// The slot that became free last.
    free: u32,
    keys: Keys,
    /// Vectors for copies to come.
    recycled: Vec<Vec<u8>>,
    /// Bytes of copies that are attached.
    copied_bytes: usize,
    /// Memory of a device was attached or registered.
    uses_devices: bool,
    /// Buffers were attached in pairs.
    has_pairs: bool,
}

/// Where a granted piece is.
#[derive(Clone, Copy)]
struct Resolved {
    /// Good at `place` only.
    pointer: *mut u8,
    /// Bytes that lie there in one piece, those that were granted included.
    available: usize,
    place: Place,
}

impl Resolved {
    fn located(&self, length: usize) -> Located {
        Located { place: self.place, address: self.pointer as u64, length }
    }
}

#[derive(Debug)]
struct LocalSlot {
    generation: u32,
    /// Of a free slot: the one that became free before it. Of another: the key of the buffer that it is one with.
    next: u32,
    buffer: Option<Buffer>,
}

impl Default for HostMemory {
    fn default() -> HostMemory {
        HostMemory::new()
    }
}

impl HostMemory {
    /// No buffers, no regions.
    #[must_use]
    pub fn new() -> HostMemory {
        HostMemory {
            locals: Vec::new(),
            free: NO_SLOT,
            keys: Keys::new(),
            recycled: Vec::new(),
            copied_bytes: 0,
            uses_devices: false,
            has_pairs: false,
            staging: Mutex::default(),
            copies: Copies::default(),
        }
    }

    /// Holds a buffer while an operation uses it.
    #[inline]
    pub fn attach(&mut self, buffer: Buffer) -> Result<LocalKey, AttachError> {
        self.uses_devices |= !buffer.is_host();
        let index = self.free;
        if let Some(slot) = self.locals.get_mut(index as usize) {
            self.free = slot.next;
            slot.next = NO_SLOT;
            // A free slot has no buffer that would have to be dropped.
            std::mem::forget(slot.buffer.replace(buffer.moved()));
            return Ok(local_key(index, slot.generation));
        }
        self.attach_new(buffer)
    }

    /// As [`HostMemory::attach`], for memory that was lent. `None`: a slot has to be made first, which that does.
    #[inline(always)]
    pub fn attach_lent(&mut self, lent: Lent) -> Option<LocalKey> {
        let index = self.free;
        let slot = self.locals.get_mut(index as usize)?;
        self.free = slot.next;
        slot.next = NO_SLOT;
        // A free slot has no buffer that would have to be dropped.
        std::mem::forget(slot.buffer.replace(Buffer::from(lent)));
        Some(local_key(index, slot.generation))
    }

    #[cold]
    fn attach_new(&mut self, buffer: Buffer) -> Result<LocalKey, AttachError> {
        if self.locals.len() >= LOCAL_BUFFERS_MAX {
            return Err(AttachError::TooMany(buffer));
        }
        self.locals.push(LocalSlot { generation: 0, next: NO_SLOT, buffer: Some(buffer) });
        Ok(local_key(self.locals.len() as u32 - 1, 0))
    }

    /// Attaches a copy of at most [`INJECT_MAX_BYTES`] bytes. The copy's memory is used again after
    /// [`Memory::release`].
    pub fn attach_inline(&mut self, bytes: &[u8]) -> Result<LocalKey, AttachError> {
        self.attach_copy(Segment::from_slice(bytes))
    }

    /// The same for bytes that the caller's program may change meanwhile.
    pub fn attach_copy(&mut self, bytes: Segment<'_>) -> Result<LocalKey, AttachError> {
        if bytes.len() > INJECT_MAX_BYTES {
            return Err(AttachError::TooLong { length: bytes.len() });
        }
        if self.copied_bytes + bytes.len() > INJECTED_MAX_BYTES {
            return Err(AttachError::TooManyCopies);
        }
        let vec = self.recycled.pop().unwrap_or_else(|| Vec::with_capacity(INJECT_MAX_BYTES));
        let key = self.attach(Buffer::inline_from(vec, bytes))?;
        self.copied_bytes += bytes.len();
        Ok(key)
    }

    /// Attaches a copy of at most [`INJECT_MAX_BYTES`] bytes that an operation sends, and the buffer that it writes its
    /// results to: the keys of both. They are one for [`HostMemory::take`] and [`Memory::release`] of the copy's key, which
    /// give the buffer back and keep the copy's memory.
    pub fn attach_pair(&mut self, bytes: &[u8], results: Buffer) -> Result<(LocalKey, LocalKey), AttachError> {
        let results = self.attach(results)?;
        let copy = self.attach_inline(bytes).inspect_err(|_| drop(self.take(results)))?;
        if let Some(slot) = self.locals.get_mut((copy.0 & LOCAL_SLOT_MASK) as usize) {
            slot.next = results.0;
            self.has_pairs = true;
        }
        Ok((copy, results))
    }

    /// The copy of a pair was taken out: keeps its memory, and gives the other buffer.
    #[cold]
    fn take_pair(&mut self, copy: Buffer, results: LocalKey) -> Option<Buffer> {
        self.recycle(copy);
        self.take(results)
    }

    fn recycle(&mut self, buffer: Buffer) {
        if let Some(vec) = buffer.into_recycled()
            && vec.capacity() >= INJECT_MAX_BYTES
            && self.recycled.len() < INJECT_POOL_MAX
        {
            self.recycled.push(vec);
        }
    }

    /// Gives an attached buffer back; the key is void from now on. `None`: it was void before.
    #[inline]
    pub fn take(&mut self, key: LocalKey) -> Option<Buffer> {
        let index = key.0 & LOCAL_SLOT_MASK;
        let slot = self.locals.get_mut(index as usize)?;
        if local_key(index, slot.generation) != key {
            return None;
        }
        let buffer = slot.buffer.take()?;
        self.copied_bytes = self.copied_bytes.saturating_sub(buffer.copied_bytes());
        let generation = slot.generation;
        slot.generation = slot.generation.wrapping_add(1);
        let other = slot.next;
        slot.next = self.free;
        self.free = index;
        if self.uses_devices {
            self.let_go(index, generation);
        }
        if self.has_pairs && other != NO_SLOT {
            return self.take_pair(buffer, LocalKey(other));
        }
        Some(buffer)
    }

    /// Whether operations may write into an attached buffer. `None`: there is none of this key.
    #[must_use]
    pub fn is_writable(&self, key: LocalKey) -> Option<bool> {
        Some(self.attached(key)?.1.is_writable())
    }

    /// Lets peers reach memory, under a new key that cannot be guessed. The memory lives at least as long as the
    /// registration, and can be registered more than once.
    pub fn register(
        &mut self,
        memory: &MemoryRegion,
        access: Access,
        addressing: Addressing,
    ) -> Result<Region, RegisterError> {
        self.uses_devices |= !memory.place().is_host();
        self.keys.insert(memory.clone(), access, addressing, None)
    }

    /// As [`HostMemory::register`], under a key that the caller chooses: any that no other registration has. Who can guess
    /// it reaches the memory, and it means whatever was registered under it last.
    pub fn register_as(
        &mut self,
        key: u64,
        memory: &MemoryRegion,
        access: Access,
        addressing: Addressing,
    ) -> Result<Region, RegisterError> {
        self.uses_devices |= !memory.place().is_host();
        self.keys.insert(memory.clone(), access, addressing, Some(key))
    }

    /// Ends this registration as [`HostMemory::deregister`] does, but never another one that has got its key since a peer
    /// made it invalid.
    pub fn end(&mut self, region: &Region) -> Result<(), Fault> {
        self.keys.at(region.slot, region.generation)?;
        self.deregister(region.key)
    }

    /// Ends a registration. No peer reaches the memory by this key once this returns; other registrations of the same
    /// memory are untouched.
    pub fn deregister(&mut self, key: u64) -> Result<(), Fault> {
        let (slot, generation, _) = self.keys.find(key)?;
        if self.uses_devices {
            self.let_go(slot | REGION, generation);
        }
        self.keys.remove(key).map(|_| ())
    }

    /// What a peer of the same machine needs to reach a registered region by itself: a descriptor, the address of the
    /// first byte, and its rights. `None`: the region's memory cannot be shared that way.
    #[must_use]
    pub fn share(&self, key: u64) -> Option<(Shareable, u64, Access)> {
        let (.., entry) = self.keys.find(key).ok()?;
        let writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        // Who may write could not be kept from reading what he has mapped, nor from anything after a third one has
        // invalidated the key.
        if !entry.access.contains(Access::REMOTE_READ) || entry.access.contains(Access::REMOTE_INVALIDATE) {
            return None;
        }
        let shareable = entry.memory.share(entry.access.0 & writes.0 != 0)?;
        Some((shareable, entry.base, entry.access))
    }

    /// What a peer of the same machine needs to reach a registered region of a device by itself. `None`: the region is the
    /// host's, its allocation cannot be opened by others, or the peer may not both read and write, which a handle cannot
    /// keep it from.
    #[must_use]
    pub fn share_device(&self, key: u64) -> Option<DeviceGrant> {
        let (.., entry) = self.keys.find(key).ok()?;
        let (base, access) = (entry.base, entry.access);
        if entry.memory.place().is_host() || !access.contains(Access::REMOTE_READ | Access::REMOTE_WRITE) {
            return None;
        }
        let length = entry.memory.length() as u64;
        let (handle, offset) = entry.memory.export().ok()?;
        let inside = offset.checked_add(length).is_some_and(|end| end <= handle.length);
        inside.then_some(DeviceGrant { handle, offset, length, base, access })
    }

    /// Registrations that hold.
    #[must_use]
    pub fn regions(&self) -> usize {
        self.keys.len()
    }

    /// A piece as the system's calls take it, to be sent from where it is. Memory of a device is not: `NotSupported`.
    #[inline]
    pub fn segment(&self, of: Granted) -> Result<Segment<'_>, Fault> {
        let found = self.resolve(of, Access::REMOTE_READ)?;
        if !found.place.is_host() {
            return Err(Fault::NotSupported);
        }
        Ok(Segment::new(found.pointer, of.length as usize))
    }

    /// A piece to be sent, wherever it is. Bytes of a device that were fetched for their checksum are on the host.
    #[inline]
    pub fn sendable(&self, of: Granted) -> Result<Sendable<'_>, Fault> {
        let found = self.resolve(of, Access::REMOTE_READ)?;
        if found.place.is_host() {
            return Ok(Sendable::Host(Segment::new(found.pointer, of.length as usize)));
        }
        Ok(self.sendable_of_device(of, found))
    }

    #[cold]
    fn sendable_of_device(&self, of: Granted, found: Resolved) -> Sendable<'_> {
        let length = of.length as usize;
        match self.staging().find(of) {
            // What is in the window stays there at least until more is fetched, and is never given back.
            Some(pointer) => Sendable::Host(Segment::new(pointer.cast_mut(), length)),
            // SAFETY: `resolve` checked that this many bytes are there; the borrow keeps them.
            None => Sendable::Device(unsafe { DeviceSegment::from_raw(found.place, found.pointer as u64, length) }),
        }
    }

    /// Where a piece is, if it still is and has the right.
    pub fn place(&self, of: Granted, access: Access) -> Result<Place, Fault> {
        Ok(self.resolve(of, access)?.place)
    }

    /// Where an attached buffer is; `None`: there is none of this key, or it is in several places.
    #[must_use]
    pub fn local_place(&self, key: LocalKey) -> Option<Place> {
        self.attached(key)?.1.place()
    }

    /// As [`HostMemory::fill`], where nothing more comes for the buffer. Gives the key by which it is still to be had:
    /// [`LocalKey::NONE`] if it was made of a [`Lent`] and has ended with that. `None`: nothing was copied.
    #[inline(always)]
    pub fn fill_at_last(&mut self, key: LocalKey, offset: u64, from: Segment<'_>) -> Option<LocalKey> {
        let index = key.0 & LOCAL_SLOT_MASK;
        let slot = self.locals.get_mut(index as usize)?;
        if local_key(index, slot.generation) != key {
            return None;
        }
        let Some((pointer, length)) = slot.buffer.as_ref()?.given() else {
            return self.fill(key, offset, from).then_some(key);
        };
        if offset.checked_add(from.len() as u64).is_none_or(|end| end > length as u64) {
            return None;
        }
        let to = pointer.as_ptr().wrapping_add(offset as usize);
        // SAFETY: the bytes are inside of memory that was lent to be written; who made the segment promised that it can be
        // read.
        unsafe { copy::copy(to, from.as_iovec().iov_base.cast(), from.len()) };
        if self.uses_devices || self.has_pairs {
            return Some(key);
        }
        // Nothing of it has to be dropped.
        std::mem::forget(slot.buffer.take());
        slot.generation = slot.generation.wrapping_add(1);
        slot.next = self.free;
        self.free = index;
        Some(LocalKey::NONE)
    }

    /// Copies into an attached buffer that lies in one piece of host memory; false: it does not, or has no such place, and
    /// nothing was copied.
    #[inline]
    pub fn fill(&mut self, key: LocalKey, offset: u64, from: Segment<'_>) -> bool {
        let Some((_, buffer, _)) = self.attached(key) else { return false };
        let Some(segment) = buffer.segment() else { return false };
        let inside = offset.checked_add(from.len() as u64).is_some_and(|end| end <= segment.len() as u64);
        if !inside || !buffer.is_writable() {
            return false;
        }
        let to = segment.as_iovec().iov_base.cast::<u8>().wrapping_add(offset as usize);
        // SAFETY: the bytes are inside a buffer that is attached and may be written; who made the segment promised that
        // it can be read.
        unsafe { copy::copy(to, from.as_iovec().iov_base.cast(), from.len()) };
        true
    }

    /// Whether another buffer can be attached.
    #[must_use]
    #[inline]
    pub fn has_room(&self) -> bool {
        self.free != NO_SLOT || self.locals.len() < LOCAL_BUFFERS_MAX
    }

    /// Copies a piece out, into memory that is shared with another process.
    #[inline]
    pub fn copy_out(&self, from: Granted, into: SegmentMut<'_>) -> Result<(), Fault> {
        let found = self.resolve(from, Access::REMOTE_READ)?;
        if from.length != into.len() as u64 {
            return Err(Fault::OutOfBounds);
        }
        // SAFETY: `resolve` checked that this many bytes are there; shared memory is never registered or attached.
        unsafe { self.fetch_to(found, into.as_ptr(), into.len()) }
    }

    /// Copies into a piece, from memory that is shared with another process.
    #[inline]
    pub fn copy_in(&mut self, to: Granted, from: Segment<'_>) -> Result<(), Fault> {
        let found = self.resolve(to, Access::REMOTE_WRITE)?;
        if to.length != from.len() as u64 {
            return Err(Fault::OutOfBounds);
        }
        if !found.place.is_host() && !found.place.is_guarded() && Known::pays(to.length) {
            // SAFETY: as below.
            return unsafe {
                self.staging_mut().write_through(found.located(from.len()), from.as_iovec().iov_base.cast())
            };
        }
        // SAFETY: `resolve` checked that this many bytes are there and may be written; shared memory is never registered
        // or attached.
        unsafe { self.store_from(found, from.as_iovec().iov_base.cast(), from.len()) }
    }

    /// Host memory from which the system can read the first bytes of a piece, and how many: where they are, or a copy.
    pub(crate) fn readable(&self, of: Granted) -> Result<(*const u8, usize), Fault> {
        let found = self.resolve(of, Access::REMOTE_READ)?;
        let length = of.length as usize;
        // The system finds out by itself what is not mapped.
        if found.place.is_host() || found.place.is_guarded() {
            return Ok((found.pointer, length));
        }
        let length = length.min(STAGE_OUT_AHEAD_BYTES);
        let lasting = of.slot & REGION == 0;
        let mut staging = self.staging();
        if !lasting {
            // Others may have written it since it was last asked for, and may write what is behind it.
            staging.forget_passing();
        }
        let available = if lasting { found.available } else { length };
        // SAFETY: `resolve` checked that `available` bytes are there; neither `take` nor `deregister` lets go of memory
        // that a copy is under way for.
        let pointer = unsafe { staging.fetch(of.first(length as u64), found.located(length), available, lasting)? };
        Ok((pointer, length))
    }

    /// Host memory into which the system can write the first bytes of a piece, and how many; to be told of with
    /// [`HostMemory::written`].
    pub(crate) fn writable(&mut self, of: Granted) -> Result<(*mut u8, usize), Fault> {
        let found = self.resolve(of, Access::REMOTE_WRITE)?;
        let length = of.length as usize;
        if found.place.is_host() || found.place.is_guarded() {
            return Ok((found.pointer, length));
        }
        self.staging_mut().claim(found.located(length))
    }

    /// So many bytes were written where [`HostMemory::writable`] said.
    pub(crate) fn written(&mut self, of: Granted, length: usize) -> Result<(), Fault> {
        let found = self.resolve(of, Access::REMOTE_WRITE)?;
        if found.place.is_guarded() {
            return self.staging_mut().step_aside(&found.located(of.length as usize), true);
        }
        if !found.place.is_host() {
            let length = length.min(of.length as usize);
            // SAFETY: it is part of the piece that was claimed; neither `take` nor `deregister` lets go of memory before
            // it is settled.
            unsafe { self.staging_mut().commit(found.located(length)) };
        }
        Ok(())
    }

    /// Copies out of a piece.
    ///
    /// # Safety
    /// `length` bytes can be read as `found` says, and written at `into`, which is a place of its own.
    #[inline]
    unsafe fn fetch_to(&self, found: Resolved, into: *mut u8, length: usize) -> Result<(), Fault> {
        if found.place.is_guarded() {
            // SAFETY: as the caller promised.
            return unsafe { guarded::read(found.pointer, into, length) };
        }
        if !found.place.is_host() {
            // SAFETY: as the caller promised.
            return unsafe { self.staging().read(found.located(length), into) };
        }
        // SAFETY: as the caller promised.
        unsafe { copy::copy(into, found.pointer, length) };
        Ok(())
    }

    /// Copies into a piece.
    ///
    /// # Safety
    /// `length` bytes can be written as `found` says, and read at `from`, which is another place.
    #[inline]
    unsafe fn store_from(&mut self, found: Resolved, from: *const u8, length: usize) -> Result<(), Fault> {
        if found.place.is_guarded() {
            self.staging_mut().step_aside(&found.located(length), true)?;
            // SAFETY: as the caller promised.
            return unsafe { guarded::write(found.pointer, from, length) };
        }
        if !found.place.is_host() {
            // SAFETY: as the caller promised; neither `take` nor `deregister` lets go of memory before it is settled.
            return unsafe { self.staging_mut().write(found.located(length), from) };
        }
        // SAFETY: as the caller promised.
        unsafe { copy::copy(found.pointer, from, length) };
        Ok(())
    }

    /// Ends all copies from and to a slot's memory.
    #[cold]
    fn let_go(&mut self, slot: u32, generation: u32) {
        self.staging_mut().let_go(slot, generation);
        self.copies.let_go(slot, generation);
    }

    #[inline]
    fn attached(&self, key: LocalKey) -> Option<(u32, &Buffer, u32)> {
        let index = key.0 & LOCAL_SLOT_MASK;
        let slot = self.locals.get(index as usize)?;
        if local_key(index, slot.generation) != key {
            return None;
        }
        Some((index, slot.buffer.as_ref()?, slot.generation))
    }

    /// Where a granted piece of host memory is, for the calls of the system that copy between processes.
    pub(crate) fn pointer(&self, of: Granted, access: Access) -> Result<*mut u8, Fault> {
        let found = self.resolve(of, access)?;
        if found.place.is_host() { Ok(found.pointer) } else { Err(Fault::NotSupported) }
    }

    /// Where a granted piece is, if it still is, lies in one piece, and has the right. Rights of peers are those of a
    /// region; attached buffers can be read, and written too if they are writable.
    #[inline]
    fn resolve(&self, granted: Granted, access: Access) -> Result<Resolved, Fault> {
        let (Ok(offset), Ok(length)) = (usize::try_from(granted.offset), usize::try_from(granted.length)) else {
            return Err(Fault::OutOfBounds);
        };
        if granted.slot & REGION != 0 {
            let entry = self.keys.at(granted.slot & !REGION, granted.generation)?;
            if !entry.access.contains(access) {
                return Err(Fault::Forbidden);
            }
            let (pointer, place) = (entry.memory.range(offset, length)?, entry.memory.place());
            // What lies behind a piece that need not be mapped is not read ahead.
            let available = if place.is_guarded() { length } else { entry.memory.length() - offset };
            return Ok(Resolved { pointer, available, place });
        }
        let slot = self.locals.get(granted.slot as usize).ok_or(Fault::UnknownKey)?;
        let buffer = match &slot.buffer {
            Some(buffer) if slot.generation == granted.generation => buffer,
            _ => return Err(Fault::UnknownKey),
        };
        if access.0 & !Access::REMOTE_READ.0 != 0 && !buffer.is_writable() {
            return Err(Fault::Forbidden);
        }
        match buffer.piece(offset) {
            Some((pointer, available, place)) if length <= available => Ok(Resolved { pointer, available, place }),
            None if length == 0 && offset == buffer.len() => {
                Ok(Resolved { pointer: std::ptr::dangling_mut(), available: 0, place: Place::HOST })
            }
            _ => Err(Fault::OutOfBounds),
        }
    }
}

impl Memory for HostMemory {
    #[inline]
    fn local_length(&self, key: LocalKey) -> Option<u64> {
        if key == LocalKey::NONE {
            return None;
        }
        Some(self.attached(key)?.1.len() as u64)
    }

    fn local(&self, key: LocalKey, offset: u64, length: u64) -> Result<Granted, Fault> {
        let (slot, buffer, generation) = self.attached(key).ok_or(Fault::UnknownKey)?;
        let end = offset.checked_add(length).ok_or(Fault::OutOfBounds)?;
        if end > buffer.len() as u64 {
            return Err(Fault::OutOfBounds);
        }
        // Inside the buffer, so it fits a usize.
        let available = buffer.piece(offset as usize).map_or(0, |(_, available, _)| available as u64);
        Ok(Granted { slot, generation, offset, length: length.min(available) })
    }

    fn remote(&self, key: u64, address: u64, length: u64, access: Access) -> Result<Granted, Fault> {
        let (slot, generation, entry) = self.keys.find(key)?;
        if !entry.access.contains(access) {
            return Err(Fault::Forbidden);
        }
        // P-4.2: an address before the region, or a range past its end or around the address space, is refused.
        let offset = address.checked_sub(entry.base).ok_or(Fault::OutOfBounds)?;
        let end = offset.checked_add(length).ok_or(Fault::OutOfBounds)?;
        if end > entry.memory.length() as u64 {
            return Err(Fault::OutOfBounds);
        }
        Ok(Granted { slot: slot | REGION, generation, offset, length })
    }

    #[inline]
    fn read(&self, from: Granted, into: &mut [u8]) -> Result<(), Fault> {
        let found = self.resolve(from, Access::REMOTE_READ)?;
        if from.length != into.len() as u64 {
            return Err(Fault::OutOfBounds);
        }
        // SAFETY: `resolve` checked that this many bytes are there; `into` is a place of its own, as registered memory
        // is never seen through references.
        unsafe { self.fetch_to(found, into.as_mut_ptr(), into.len()) }
    }

    #[inline]
    fn write(&mut self, to: Granted, bytes: &[u8]) -> Result<(), Fault> {
        let found = self.resolve(to, Access::REMOTE_WRITE)?;
        if to.length != bytes.len() as u64 {
            return Err(Fault::OutOfBounds);
        }
        // SAFETY: `resolve` checked that this many bytes are there and may be written; `bytes` is another place.
        unsafe { self.store_from(found, bytes.as_ptr(), bytes.len()) }
    }

    fn crc32c(&self, crc: u32, of: Granted) -> Result<u32, Fault> {
        self.crc32c_to_send(crc, of, of.length)
    }

    fn crc32c_to_send(&self, crc: u32, of: Granted, summed: u64) -> Result<u32, Fault> {
        // The checksum of what a peer wrote tells it nothing new, so it needs no right to read (P-4.6).
        let found = self.resolve(of, Access::NONE)?;
        let summed = of.length.min(summed) as usize;
        if !found.place.is_host() {
            return self.crc32c_of_device(crc, of, found, summed);
        }
        // SAFETY: `resolve` checked that this many bytes are there.
        Ok(unsafe { crc::crc32c_raw(crc, found.pointer, summed) })
    }

    fn crc32c_bytes(&self, crc: u32, bytes: &[u8]) -> u32 {
        crc::crc32c(crc, bytes)
    }

    fn atomic(
        &mut self,
        to: Granted,
        call: AtomicCall,
        operands: &[u8],
        compares: &[u8],
        results: &mut [u8],
    ) -> Result<(), Fault> {
        let (operation, datatype) = call.check(AtomicClass::Fetch).or_else(|_| call.check(AtomicClass::Compare))?;
        let found = self.resolve(to, Access::REMOTE_ATOMIC)?;
        let bytes = datatype.bytes() * usize::from(call.count);
        if call.count == 0 || to.length != bytes as u64 {
            return Err(Fault::OutOfBounds);
        }
        let values = Values { operands, compares, results };
        if found.place.is_guarded() {
            self.staging_mut().step_aside(&found.located(bytes), true)?;
            guarded::make_writable(found.pointer, bytes)?;
        } else if !found.place.is_host() {
            return self.atomic_of_device(found, bytes, operation, datatype, values);
        }
        // SAFETY: `resolve` checked that this many bytes are there and may be written; registered and attached memory
        // is never seen through references.
        unsafe { atomic::update(found.pointer, bytes, operation, datatype, values) }
    }

    fn flush(&mut self, range: Granted, durable: bool) -> Result<(), Fault> {
        self.resolve(range, Access::NONE)?;
        if durable {
            return Err(Fault::NotSupported); // P-4.8: memory of a process ends with it
        }
        self.settle()?;
        fence(Ordering::SeqCst);
        Ok(())
    }

    fn invalidate(&mut self, key: u64) -> Result<(), Fault> {
        let (.., entry) = self.keys.find(key)?;
        if !entry.access.contains(Access::REMOTE_INVALIDATE) {
            return Err(Fault::Forbidden); // P-4.5
        }
        self.deregister(key)
    }

    #[inline]
    fn release(&mut self, key: LocalKey) {
        let index = key.0 & LOCAL_SLOT_MASK;
        if let Some(slot) = self.locals.get_mut(index as usize)
            && local_key(index, slot.generation) == key
            && slot.buffer.as_ref().is_some_and(Buffer::is_lent)
            && !(self.uses_devices || self.has_pairs)
        {
            // Nothing of it has to be dropped.
            std::mem::forget(slot.buffer.take());
            slot.generation = slot.generation.wrapping_add(1);
            slot.next = self.free;
            self.free = index;
            return;
        }
        self.release_owned(key);
    }
}

impl HostMemory {
    /// Gives an attached buffer back, and keeps the memory of a copy for the next one.
    fn release_owned(&mut self, key: LocalKey) {
        if let Some(buffer) = self.take(key) {
            self.recycle(buffer);
        }
    }
}

/// A slot and the lower bits of its generation. Never [`LocalKey::NONE`], as no slot has all bits set.
#[inline]
fn local_key(slot: u32, generation: u32) -> LocalKey {
    LocalKey(generation << LOCAL_SLOT_BITS | slot)
}

/// Why a buffer was not attached.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// A local resource: too many are attached. The buffer comes back.
    #[error("{} buffers are in use: read completions and take them back first", LOCAL_BUFFERS_MAX)]
    TooMany(Buffer),
    /// A local resource: copies of [`INJECTED_MAX_BYTES`] bytes are under way.
    #[error("copies of {} bytes are under way: wait until some have arrived", INJECTED_MAX_BYTES)]
    TooManyCopies,
    /// The caller: too long to be copied.
    #[error("{length} bytes are too long for a copy ({}): give a buffer instead", INJECT_MAX_BYTES)]
    TooLong {
        /// Bytes asked for.
        length: usize,
    },
}
