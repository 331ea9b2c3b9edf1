//! Registrations and opened handles that are used again.
//!
//! A cache of registrations is only as good as its knowledge of when memory was freed and its addresses were used
//! again. Here an entry is good for what was registered, never for its addresses alone:
//!
//! - Device memory is known by the id of its allocation, which [`Operations::classify`] gives at every look-up. It
//!   differs from that of all earlier allocations at the same place.
//! - Host memory is known by its [`MemoryRegion`], whose memory stays as long as a handle of it does: that is so for
//!   regions of Weft's own and, by their contract, for memory of the caller.
//!
//! Bare addresses of host memory are not cached. Nothing that a process may use without privileges tells whether pages
//! were unmapped and others mapped in their place: `mincore` and `/proc/self/maps` show the same before and after,
//! `userfaultfd` makes every `munmap` wait for its reader, and to replace `munmap` and `free` misses those who call the
//! system themselves. Who has such memory makes a region of it, and keeps that as long as the memory; or announces its
//! end ([`RegistrationCache::forget`]).

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use crate::device::{Allocation, DeviceError, HANDLE_BYTES, Handle, Kind, Operations, Place};
use crate::foreign::Foreign;
use crate::limits::{OPENED_HANDLES_MAX, OPENED_HANDLES_OF_A_CHANNEL_MAX, REGISTRATIONS_CACHED_MAX};
use crate::region::{MemoryRegion, WeakRegion};

/// What memory is now, by somebody who knows.
#[derive(Clone, Copy, Debug)]
pub enum Subject<'a> {
    /// Host memory of a region.
    Region(&'a MemoryRegion),
    /// Device memory, as [`Operations::classify`] just found it.
    Device(&'a Allocation),
}

impl Subject<'_> {
    fn place(&self) -> Place {
        match self {
            Subject::Region(_) => Place::HOST,
            Subject::Device(allocation) => allocation.place,
        }
    }
}

/// Registrations of memory, or whatever else is costly to make and good as long as the memory is: the one used longest
/// ago goes first.
///
/// A value that leaves the cache goes to the caller's `removed`, to be undone; it may still be in use by an operation, so
/// values are best counted references. Entries do not overlap: register whole regions and allocations.
pub struct RegistrationCache<T> {
    entries: BTreeMap<Start, Entry<T>>,
    max: usize,
    /// Counts look-ups.
    clock: u64,
}

/// Where an entry begins.
type Start = (Kind, u32, u64);

struct Entry<T> {
    /// First address behind it.
    end: u64,
    identity: Identity,
    used: u64,
    value: T,
}

enum Identity {
    Region(WeakRegion),
    Allocation(u64),
}

impl Identity {
    fn is(&self, subject: Subject<'_>) -> bool {
        match (self, subject) {
            (Identity::Region(region), Subject::Region(now)) => region.names(now),
            (Identity::Allocation(id), Subject::Device(now)) => *id == now.id,
            _ => false,
        }
    }
}

impl<T> Default for RegistrationCache<T> {
    fn default() -> RegistrationCache<T> {
        RegistrationCache::new(REGISTRATIONS_CACHED_MAX)
    }
}

impl<T> RegistrationCache<T> {
    /// Keeps up to `max` values, at least one.
    #[must_use]
    pub fn new(max: usize) -> RegistrationCache<T> {
        RegistrationCache { entries: BTreeMap::new(), max: max.max(1), clock: 0 }
    }

    /// Values that are kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether none is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The value for memory that includes this range and is still what it was. One that was for other memory, at the same
    /// addresses, is removed.
    pub fn find(&mut self, subject: Subject<'_>, address: u64, length: u64, removed: &mut Vec<T>) -> Option<&mut T> {
        let (start, end) = bounds(subject.place(), address, length);
        let (&place, entry) = self.entries.range(first_of(start)..=start).next_back()?;
        if entry.end <= address {
            return None;
        }
        if !entry.identity.is(subject) {
            removed.extend(self.entries.remove(&place).map(|entry| entry.value));
            return None;
        }
        if entry.end < end {
            return None;
        }
        self.clock += 1;
        let entry = self.entries.get_mut(&place)?;
        entry.used = self.clock;
        Some(&mut entry.value)
    }

    /// Keeps a value for a range of memory. What overlaps it is removed, as is the value used longest ago where there are
    /// too many.
    pub fn insert(&mut self, subject: Subject<'_>, address: u64, length: u64, value: T, removed: &mut Vec<T>) {
        self.forget(subject.place(), address, length, removed);
        if self.entries.len() >= self.max {
            self.sweep(removed);
        }
        if self.entries.len() >= self.max
            && let Some(oldest) = self.entries.iter().min_by_key(|(_, entry)| entry.used).map(|(&place, _)| place)
        {
            removed.extend(self.entries.remove(&oldest).map(|entry| entry.value));
        }
        let identity = match subject {
            Subject::Region(region) => Identity::Region(region.downgrade()),
            Subject::Device(allocation) => Identity::Allocation(allocation.id),
        };
        self.clock += 1;
        let (start, end) = bounds(subject.place(), address, length);
        self.entries.insert(start, Entry { end, identity, used: self.clock, value });
    }

    /// Removes what has bytes of this range: its owner is about to free it.
    pub fn forget(&mut self, place: Place, address: u64, length: u64, removed: &mut Vec<T>) {
        let (start, end) = bounds(place, address, length);
        // Entries do not overlap: from the last one that begins in the range, backwards, until one ends before it.
        while let Some((&place, entry)) = self.entries.range(first_of(start)..(start.0, start.1, end)).next_back() {
            if entry.end <= address {
                break;
            }
            removed.extend(self.entries.remove(&place).map(|entry| entry.value));
        }
    }

    /// Removes what is for regions that are gone.
    pub fn sweep(&mut self, removed: &mut Vec<T>) {
        let gone = |entry: &Entry<T>| matches!(&entry.identity, Identity::Region(region) if !region.is_alive());
        let places: Vec<Start> =
            self.entries.iter().filter(|(_, entry)| gone(entry)).map(|(&place, _)| place).collect();
        removed.extend(places.iter().filter_map(|place| self.entries.remove(place)).map(|entry| entry.value));
    }

    /// Removes everything.
    pub fn clear(&mut self, removed: &mut Vec<T>) {
        removed.extend(std::mem::take(&mut self.entries).into_values().map(|entry| entry.value));
    }
}

impl<T> fmt::Debug for RegistrationCache<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RegistrationCache({} of {})", self.entries.len(), self.max)
    }
}

/// Of a range, which has at least one byte: where its entry begins, and its end.
fn bounds(place: Place, address: u64, length: u64) -> (Start, u64) {
    ((place.kind, place.device, address), address.saturating_add(length.max(1)))
}

/// Before all entries of the same place.
fn first_of(start: Start) -> Start {
    (start.0, start.1, 0)
}

/// An allocation of another process that is mapped here, until this is dropped.
pub struct Imported {
    operations: &'static dyn Operations,
    place: Place,
    base: u64,
    length: u64,
}

impl Imported {
    /// Maps it. [`DeviceError::BadHandle`] where the peer's handle is for nothing.
    pub fn open(operations: &'static dyn Operations, handle: &Handle) -> Result<Imported, DeviceError> {
        if handle.place.kind != operations.kind() || handle.length == 0 {
            return Err(DeviceError::BadHandle);
        }
        let base = operations.import(handle)?;
        // The peer's number of the device need not be ours.
        let place = operations.classify(base).map_or(handle.place, |found| found.place);
        Ok(Imported { operations, place, base, length: handle.length })
    }

    /// Its first byte.
    #[must_use]
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Bytes.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The address of a range, if it is inside.
    #[must_use]
    pub fn range(&self, offset: u64, length: u64) -> Option<u64> {
        let end = offset.checked_add(length)?;
        (end <= self.length).then(|| self.base.checked_add(offset))?
    }
}

// SAFETY: the operations mapped as many bytes at `base` for reading and writing, until `drop`; ranges are checked.
unsafe impl Foreign for Imported {
    fn place(&self) -> Place {
        self.place
    }

    fn range(&self, offset: u64, length: u64) -> Option<u64> {
        Imported::range(self, offset, length)
    }
}

impl Drop for Imported {
    fn drop(&mut self) {
        // SAFETY: `import` gave it to this value, which is the last user: whoever copies holds a reference to it. One
        // that cannot be released stays mapped, which harms nobody.
        let _ = unsafe { self.operations.release(self.base) };
    }
}

impl fmt::Debug for Imported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Imported({} bytes of {} at {:#x})", self.length, self.operations.kind(), self.base)
    }
}

/// Allocations of peers that are kept open, since opening one costs more than most copies. The one used longest ago is
/// closed first; of each channel only so many are kept. A closed one stays mapped while an operation holds it.
pub struct OpenedHandles<T = Imported> {
    entries: HashMap<HandleKey, Opened<T>>,
    max: usize,
    max_of_a_channel: usize,
    clock: u64,
}

/// The peer, by the channel to it, and what it calls the allocation. A number of a channel is not used again while this
/// has entries of it: see [`OpenedHandles::close_channel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct HandleKey {
    channel: u32,
    place: Place,
    id: u64,
}

struct Opened<T> {
    bytes: [u8; HANDLE_BYTES],
    length: u64,
    used: u64,
    value: Arc<T>,
}

impl<T> Default for OpenedHandles<T> {
    fn default() -> OpenedHandles<T> {
        OpenedHandles::new(OPENED_HANDLES_MAX, OPENED_HANDLES_OF_A_CHANNEL_MAX)
    }
}

impl<T> OpenedHandles<T> {
    /// Keeps up to `max` open, and up to `max_of_a_channel` of each peer; at least one.
    #[must_use]
    pub fn new(max: usize, max_of_a_channel: usize) -> OpenedHandles<T> {
        let max_of_a_channel = max_of_a_channel.max(1);
        OpenedHandles { entries: HashMap::new(), max: max.max(1), max_of_a_channel, clock: 0 }
    }

    /// Allocations that are kept open.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// An allocation that was opened before; `None`: it has to be opened (again).
    pub fn find(&mut self, channel: u32, place: Place, id: u64) -> Option<Arc<T>> {
        let entry = self.entries.get_mut(&HandleKey { channel, place, id })?;
        self.clock += 1;
        entry.used = self.clock;
        Some(entry.value.clone())
    }

    /// The allocation of a handle, opened now if it was not before. A handle that differs from the one opened under the
    /// same id is opened anew.
    pub fn open<E>(
        &mut self,
        channel: u32,
        handle: &Handle,
        open: impl FnOnce(&Handle) -> Result<T, E>,
    ) -> Result<Arc<T>, E> {
        let key = HandleKey { channel, place: handle.place, id: handle.id };
        match self.entries.get(&key) {
            Some(entry) if entry.bytes == handle.bytes && entry.length == handle.length => {
                let value = entry.value.clone();
                self.find(channel, handle.place, handle.id);
                return Ok(value);
            }
            // Closed before the new one is opened: some libraries map an allocation only once.
            Some(_) => drop(self.entries.remove(&key)),
            None => {}
        }
        let value = Arc::new(open(handle)?);
        if self.entries.keys().filter(|key| key.channel == channel).count() >= self.max_of_a_channel {
            self.close_oldest(|key| key.channel == channel);
        }
        if self.entries.len() >= self.max {
            self.close_oldest(|_| true);
        }
        self.clock += 1;
        let (bytes, length) = (handle.bytes, handle.length);
        self.entries.insert(key, Opened { bytes, length, used: self.clock, value: value.clone() });
        Ok(value)
    }

    /// The peer says that it frees an allocation.
    pub fn forget(&mut self, channel: u32, place: Place, id: u64) {
        self.entries.remove(&HandleKey { channel, place, id });
    }

    /// The channel was closed: its number may come again for another peer.
    pub fn close_channel(&mut self, channel: u32) {
        self.entries.retain(|key, _| key.channel != channel);
    }

    fn close_oldest(&mut self, of: impl Fn(&HandleKey) -> bool) {
        let candidates = self.entries.iter().filter(|(key, _)| of(key));
        if let Some(oldest) = candidates.min_by_key(|(_, entry)| entry.used).map(|(&key, _)| key) {
            self.entries.remove(&oldest);
        }
    }
}

impl<T> fmt::Debug for OpenedHandles<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpenedHandles({} of {})", self.entries.len(), self.max)
    }
}

#[cfg(test)]
mod tests;
