//! Memory that peers may reach.
//!
//! Peers, through the engine, and threads of this process touch it at the same time. So nobody ever has a reference to
//! its bytes: [`MemoryRegion`] copies in and out, and has atomic loads and stores for flags. Who reads while another
//! writes gets some mixture of old and new bytes, nothing worse.

use std::alloc::Layout;
use std::fmt;
use std::mem;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use weft_core::memory::{Access, Fault};

use crate::copy;
use crate::device::{Allocation, DeviceError, Kind, Place};
use crate::guarded;
use crate::known::Known;
use crate::limits::PAGE_BYTES;
use crate::shared::SharedMemory;
use crate::staging::{self, Located};

/// A piece of memory that can be registered, and read and written meanwhile. Clones name the same memory, which lives
/// as long as one of them, or a registration, does.
#[derive(Clone)]
pub struct MemoryRegion {
    inner: Arc<Inner>,
}

struct Inner {
    /// Null only of what has no bytes, or need not be mapped.
    pointer: *mut u8,
    length: usize,
    writable: bool,
    /// Where the memory is; the pointer means something only there.
    place: Place,
    backing: Backing,
    /// Devices that know it, if it is the host's.
    known: Known,
}

/// Whose memory it is.
enum Backing {
    /// Ours, from the allocator.
    Pages(Layout),
    /// Ours, from a vector; the vector is never looked at while the region lives.
    Vec(Vec<u8>),
    /// Ours, of a file that other processes can map.
    Shared(SharedMemory),
    /// Ours, of a device.
    Device,
    /// The caller's, by contract of [`MemoryRegion::from_raw`]; or nobody's, when it has no bytes.
    Raw,
}

// SAFETY: the memory is owned by `Inner`, or lent to it under the contract of `from_raw`, which permits every thread;
// all accesses are by raw pointer, and tolerate others at the same time.
unsafe impl Send for Inner {}
// SAFETY: as above; nothing but `Drop`, which has no other users, changes the fields.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: whoever started a copy held the region until it was done.
        unsafe { self.known.forget(self.pointer) };
        if let Backing::Pages(layout) = self.backing {
            // SAFETY: `alloc_zeroed` allocated `pointer` with this layout; the last handle is gone.
            unsafe { std::alloc::dealloc(self.pointer, layout) }
        }
        if matches!(self.backing, Backing::Device)
            && let Ok(operations) = staging::operations(self.place)
        {
            // SAFETY: `allocate` gave it; the last handle is gone. A device that fails here keeps its memory.
            let _ = unsafe { operations.free(self.place.device, self.pointer as u64) };
        }
    }
}

impl MemoryRegion {
    fn new(pointer: *mut u8, length: usize, writable: bool, backing: Backing) -> MemoryRegion {
        MemoryRegion {
            inner: Arc::new(Inner { pointer, length, writable, place: Place::HOST, backing, known: Known::new() }),
        }
    }

    /// Zeros that begin at a page. `None` when there is not as much memory.
    #[must_use]
    pub fn alloc_zeroed(length: usize) -> Option<MemoryRegion> {
        if length == 0 {
            return Some(MemoryRegion::new(std::ptr::dangling_mut(), 0, true, Backing::Raw));
        }
        // Whole pages, so that devices can be told of them.
        let layout = Layout::from_size_align(length.checked_next_multiple_of(PAGE_BYTES)?, PAGE_BYTES).ok()?;
        // SAFETY: the layout has bytes, as was checked above.
        let pointer = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })?;
        Some(MemoryRegion::new(pointer.as_ptr(), length, true, Backing::Pages(layout)))
    }

    /// The bytes of a vector, in place. They need not be aligned for atomics.
    #[must_use]
    pub fn from_vec(mut bytes: Vec<u8>) -> MemoryRegion {
        MemoryRegion::new(bytes.as_mut_ptr(), bytes.len(), true, Backing::Vec(bytes))
    }

    /// Memory of which `length` bytes are the region's.
    pub(crate) fn from_shared(memory: SharedMemory, length: usize) -> MemoryRegion {
        MemoryRegion::new(memory.pointer().as_ptr(), length, true, Backing::Shared(memory))
    }

    /// What it is made of, if it can be shared.
    pub(crate) fn shared(&self) -> Option<&SharedMemory> {
        match &self.inner.backing {
            Backing::Shared(memory) => Some(memory),
            _ => None,
        }
    }

    /// Whether nobody else holds the region: then nobody else can begin to.
    pub(crate) fn is_only_handle(&self) -> bool {
        Arc::strong_count(&self.inner) == 1
    }

    /// Memory of the caller.
    ///
    /// # Safety
    /// Until the last clone and registration of the region is gone, the `length` bytes at `pointer` must be mapped for
    /// reading and writing, and no reference of Rust to them may be in use while a peer or a handle writes.
    #[must_use]
    pub unsafe fn from_raw(pointer: *mut u8, length: usize) -> MemoryRegion {
        MemoryRegion::new(pointer, length, true, Backing::Raw)
    }

    /// Memory of the caller that is only ever read: it cannot be registered for writing.
    ///
    /// # Safety
    /// As [`MemoryRegion::from_raw`], but the memory need not be writable.
    #[must_use]
    pub unsafe fn from_raw_read_only(pointer: *const u8, length: usize) -> MemoryRegion {
        MemoryRegion::new(pointer.cast_mut(), length, false, Backing::Raw)
    }

    /// Memory of the caller that need not be mapped, now or later; it can be the whole address space. If all of it is mapped
    /// now it is memory like that of [`MemoryRegion::from_raw`]. Otherwise peers' accesses go through the system, page by
    /// page ([`Place::GUARDED`]): those to what is not mapped, or not for writing, are refused as those outside of a region
    /// are. That takes a system call for each packet, and atomics have to be told apart from it: pages that are unmapped, or
    /// made read only, *while* an atomic is done on them end the process.
    ///
    /// # Safety
    /// As [`MemoryRegion::from_raw`], but only if all of it is mapped now. Otherwise no reference of Rust to what is mapped
    /// of it may be in use while a peer or a handle writes there, nor may anything be that peers can break by writing.
    #[must_use]
    pub unsafe fn from_raw_unmapped(pointer: *mut u8, length: usize, writable: bool) -> MemoryRegion {
        let place = if guarded::is_mapped(pointer, length) { Place::HOST } else { Place::GUARDED };
        let inner = Inner { pointer, length, writable, place, backing: Backing::Raw, known: Known::new() };
        MemoryRegion { inner: Arc::new(inner) }
    }

    /// Zeroed memory of a device; of the host if that is the place.
    pub fn alloc_device(place: Place, length: usize) -> Result<MemoryRegion, DeviceError> {
        if place.is_host() {
            return MemoryRegion::alloc_zeroed(length).ok_or(DeviceError::OutOfMemory);
        }
        let operations = staging::operations(place)?;
        if place.device >= operations.devices() {
            return Err(DeviceError::BadAddress);
        }
        let (pointer, backing, known) = (std::ptr::dangling_mut(), Backing::Raw, Known::new());
        let mut inner = Inner { pointer, length, writable: true, place, backing, known };
        if length > 0 {
            let address = operations.allocate(place.device, length)?;
            inner.pointer = NonNull::new(address as *mut u8).ok_or(DeviceError::OutOfMemory)?.as_ptr();
            inner.backing = Backing::Device;
        }
        Ok(MemoryRegion { inner: Arc::new(inner) })
    }

    /// Memory of the caller at a place, the host's or a device's. It has to lie in one allocation, where the device can
    /// tell.
    ///
    /// # Safety
    /// As [`MemoryRegion::from_raw`], but of a device's memory: allocated there until the last clone and registration is
    /// gone.
    pub unsafe fn from_device_raw(
        place: Place,
        pointer: *mut u8,
        length: usize,
        writable: bool,
    ) -> Result<MemoryRegion, DeviceError> {
        let address = pointer as u64;
        if !place.is_host() {
            let found = staging::operations(place)?.classify(address).filter(|found| found.place == place);
            let end = address.checked_add(length as u64).ok_or(DeviceError::BadAddress)?;
            if length > 0 && found.is_none_or(|found| end > found.base.saturating_add(found.length)) {
                return Err(DeviceError::BadAddress);
            }
        }
        let inner = Inner { pointer, length, writable, place, backing: Backing::Raw, known: Known::new() };
        Ok(MemoryRegion { inner: Arc::new(inner) })
    }

    /// Memory of the caller wherever it is: all kinds of device that are present are asked
    /// ([`Place::of`](crate::device::Place::of)).
    ///
    /// # Safety
    /// As [`MemoryRegion::from_device_raw`].
    pub unsafe fn from_raw_anywhere(
        pointer: *mut u8,
        length: usize,
        writable: bool,
    ) -> Result<MemoryRegion, DeviceError> {
        // SAFETY: as the caller promised.
        unsafe { MemoryRegion::from_device_raw(Place::of(pointer), pointer, length, writable) }
    }

    /// Where the memory is.
    #[must_use]
    #[inline]
    pub fn place(&self) -> Place {
        self.inner.place
    }

    /// The device's allocation it lies in; `None`: it is the host's, or has no bytes.
    #[must_use]
    pub fn allocation(&self) -> Option<Allocation> {
        if self.inner.place.is_host() || self.inner.length == 0 {
            return None;
        }
        staging::operations(self.inner.place).ok()?.classify(self.inner.pointer as u64)
    }

    /// Bytes.
    #[must_use]
    pub fn length(&self) -> usize {
        self.inner.length
    }

    /// Whether it may be written.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.inner.writable
    }

    /// Where it begins. Reading or writing there is for those who know what else does. Memory of a device has an address
    /// that means something to the device only.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.inner.pointer
    }

    /// The vector it was made of, when this is the last handle and no registration is left; otherwise the handle back.
    pub fn into_vec(self) -> Result<Vec<u8>, MemoryRegion> {
        if !matches!(self.inner.backing, Backing::Vec(_)) {
            return Err(self);
        }
        let mut inner = Arc::try_unwrap(self.inner).map_err(|inner| MemoryRegion { inner })?;
        match mem::replace(&mut inner.backing, Backing::Raw) {
            Backing::Vec(bytes) => Ok(bytes),
            _ => Ok(Vec::new()),
        }
    }

    /// Copies out, of a device's memory through its operations.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), Fault> {
        let from = self.range(offset, into.len())?;
        if !self.inner.place.is_host() {
            let from = Located { place: self.inner.place, address: from as u64, length: into.len() };
            // SAFETY: `range` checked that the bytes are inside the region, and `into` is a place of its own.
            return unsafe { staging::copy_from(from, into.as_mut_ptr()) }.map_err(staging::fault);
        }
        // SAFETY: `range` checked that the bytes are inside the region, and `into` is a place of its own.
        unsafe { copy::copy(into.as_mut_ptr(), from, into.len()) };
        Ok(())
    }

    /// Copies in, to a device's memory through its operations.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Fault> {
        let to = self.range_mut(offset, bytes.len())?;
        if !self.inner.place.is_host() {
            let to = Located { place: self.inner.place, address: to as u64, length: bytes.len() };
            // SAFETY: `range_mut` checked that the bytes are inside the region, which is writable.
            return unsafe { staging::copy_to(to, bytes.as_ptr()) }.map_err(staging::fault);
        }
        // SAFETY: `range_mut` checked that the bytes are inside the region, which is writable.
        unsafe { copy::copy(to, bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// A copy of some of its bytes.
    pub fn to_vec(&self, offset: usize, length: usize) -> Result<Vec<u8>, Fault> {
        self.range(offset, length)?;
        let mut bytes = vec![0; length];
        self.read(offset, &mut bytes)?;
        Ok(bytes)
    }

    /// Makes host memory of our own known to a kind of device, so that long copies are faster.
    pub(crate) fn make_known(&self, kind: Kind) {
        let pages = match &self.inner.backing {
            Backing::Pages(layout) => layout.size(),
            Backing::Shared(memory) => memory.mapped(),
            Backing::Vec(_) | Backing::Device | Backing::Raw => return,
        };
        // SAFETY: all of these pages are the region's, and stay until its end, where they are forgotten first; where they
        // are replaced, that is done without devices that know them.
        unsafe { self.inner.known.make(kind, self.inner.pointer, pages) };
    }

    /// Which devices know it.
    pub(crate) fn known(&self) -> &Known {
        &self.inner.known
    }

    /// Names the region without keeping it alive.
    pub(crate) fn downgrade(&self) -> WeakRegion {
        WeakRegion(Arc::downgrade(&self.inner))
    }

    /// The bytes at `offset`, if they are inside. The pointer is good at [`MemoryRegion::place`] only.
    pub(crate) fn range(&self, offset: usize, length: usize) -> Result<*mut u8, Fault> {
        let end = offset.checked_add(length).ok_or(Fault::OutOfBounds)?;
        if end > self.inner.length {
            return Err(Fault::OutOfBounds);
        }
        Ok(self.inner.pointer.wrapping_add(offset))
    }

    fn range_mut(&self, offset: usize, length: usize) -> Result<*mut u8, Fault> {
        if self.inner.writable { self.range(offset, length) } else { Err(Fault::Forbidden) }
    }
}

impl MemoryRegion {
    /// That the processor can load and store here.
    fn check_host(&self) -> Result<(), Fault> {
        if self.inner.place.is_host() { Ok(()) } else { Err(Fault::NotSupported) }
    }
}

macro_rules! loads_and_stores {
    ($($type:ident $atomic:ident $load:ident $store:ident;)*) => {
        impl MemoryRegion {$(
            /// Loads a value at an aligned place of the host's memory. What was written before the value was stored is
            /// seen after.
            pub fn $load(&self, offset: usize) -> Result<$type, Fault> {
                self.check_host()?;
                let pointer = self.range(offset, size_of::<$type>())?.cast::<$type>();
                if !pointer.is_aligned() {
                    return Err(Fault::Misaligned);
                }
                // SAFETY: inside the region, as `range` checked, and aligned; the region lives as long as `self`.
                Ok(unsafe { $atomic::from_ptr(pointer) }.load(Ordering::Acquire))
            }

            /// Stores a value at an aligned place of the host's memory, after everything that this thread wrote before.
            pub fn $store(&self, offset: usize, value: $type) -> Result<(), Fault> {
                self.check_host()?;
                let pointer = self.range_mut(offset, size_of::<$type>())?.cast::<$type>();
                if !pointer.is_aligned() {
                    return Err(Fault::Misaligned);
                }
                // SAFETY: inside the region, as `range_mut` checked, writable and aligned; it lives as long as `self`.
                unsafe { $atomic::from_ptr(pointer) }.store(value, Ordering::Release);
                Ok(())
            }
        )*}
    };
}
loads_and_stores! {
    u8 AtomicU8 load_u8 store_u8;
    u16 AtomicU16 load_u16 store_u16;
    u32 AtomicU32 load_u32 store_u32;
    u64 AtomicU64 load_u64 store_u64;
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryRegion({} bytes at {:?}", self.inner.length, self.inner.pointer)?;
        if self.inner.place.is_host() { f.write_str(")") } else { write!(f, " of {})", self.inner.place) }
    }
}

/// A region's name, which no other region ever has while this value lives.
#[derive(Clone)]
pub(crate) struct WeakRegion(Weak<Inner>);

impl WeakRegion {
    /// Whether it is this region's.
    pub(crate) fn names(&self, region: &MemoryRegion) -> bool {
        Weak::as_ptr(&self.0) == Arc::as_ptr(&region.inner)
    }

    /// Whether the region has handles or registrations left.
    pub(crate) fn is_alive(&self) -> bool {
        self.0.strong_count() > 0
    }
}

/// What peers call the first byte of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addressing {
    /// Its address in this process, as with verbs: 0 of memory without bytes that was given as a null pointer.
    Virtual,
    /// 0.
    Offset,
    /// An address that the caller chooses.
    At(u64),
}

/// A registration, as peers have to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// The key that peers must name.
    pub key: u64,
    /// The address of the first byte.
    pub address: u64,
    /// Bytes.
    pub length: u64,
    /// What peers may do.
    pub access: Access,
    /// Which of all registrations it is: a chosen key can be chosen again.
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// Why memory was not registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// The caller: its addresses would go past the end of the address space.
    #[error("the region would wrap around the address space: choose a lower address")]
    Wraps,
    /// The caller: peers cannot be let write memory that is read only.
    #[error("the memory is read only: register it for remote reading only")]
    ReadOnly,
    /// The caller: the key that was chosen names another registration.
    #[error("the key is in use: choose another, or end its registration first")]
    KeyInUse,
    /// A local resource: all keys are in use.
    #[error("too many regions are registered: deregister some")]
    TooMany,
    /// A local resource: the system gave no random numbers, and a key must not be guessed.
    #[error("the system has no random numbers to make a key from: try again later")]
    NoRandomness,
}
