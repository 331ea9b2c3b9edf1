//! A peer's region, mapped into this process.
//!
//! The peer made the file, and may be hostile: before it is mapped it is checked to be memory that can neither become
//! shorter nor end in a fault, and its bytes are only ever copied or updated by atomic instructions.

use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};

use weft_core::atomic::{AtomicCall, AtomicClass};
use weft_core::memory::{Access, Fault, Granted};

use crate::atomic::{self, Values};
use crate::device::Place;
use crate::known::Known;
use crate::limits::PAGE_BYTES;
use crate::segment::{Segment, SegmentMut};
use crate::shared::map;
use crate::{HostMemory, copy};

/// A region of another process ([`MemoryRegion::share`](crate::MemoryRegion::share)), mapped here. Reading, writing and
/// atomics need nothing of the other process, not even that it still runs.
///
/// Whether its owner still permits them is not seen here: the caller asks for that before each access, and the owner
/// can take the memory back ([`MemoryRegion::revoke`](crate::MemoryRegion::revoke)).
pub struct Mapping {
    pointer: NonNull<u8>,
    length: usize,
    /// Whole pages.
    mapped: usize,
    writable: bool,
    /// Devices that know it.
    known: Known,
}

// SAFETY: the mapping belongs to this value; all accesses are by raw pointer, and tolerate others at the same time.
unsafe impl Send for Mapping {}
// SAFETY: as above; nothing but `Drop` changes the fields.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a region of a peer from what it sent: a descriptor, which is not needed any more when this returns, the
    /// region's length, and whether it may be written.
    pub fn open(descriptor: BorrowedFd<'_>, length: usize, writable: bool) -> Result<Mapping, MapError> {
        let mapped = length.checked_next_multiple_of(PAGE_BYTES).ok_or(MapError::TooShort)?;
        if length == 0 {
            return Err(MapError::TooShort);
        }
        check(descriptor, mapped)?;
        let protection = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        let pointer = map(None, mapped, protection, libc::MAP_SHARED, descriptor).map_err(|error| {
            match error.raw_os_error() {
                Some(libc::EACCES | libc::EPERM) if writable => MapError::ReadOnly,
                _ => MapError::System(error),
            }
        })?;
        Ok(Mapping { pointer, length, mapped, writable, known: Known::new() })
    }

    /// Bytes.
    #[must_use]
    pub fn length(&self) -> usize {
        self.length
    }

    /// Whether it may be written.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Has the system set up the pages of a range now, so that later accesses take no faults. Only makes things faster:
    /// that it failed need not be known. Memory that its owner has not touched yet is allocated by this.
    pub fn populate(&self, offset: usize, length: usize) {
        let Some(end) = offset.checked_add(length) else { return };
        let first = offset - offset % PAGE_BYTES;
        let end = end.min(self.mapped);
        if first >= end {
            return;
        }
        let advice = if self.writable { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
        // SAFETY: a range of our mapping that begins at a page; the advice changes no byte.
        unsafe { libc::madvise(self.pointer.as_ptr().wrapping_add(first).cast(), end - first, advice) };
    }

    /// Copies in.
    #[inline]
    pub fn write(&self, offset: u64, from: Segment<'_>) -> Result<(), Fault> {
        let to = self.range_mut(offset, from.len())?;
        // SAFETY: `range_mut` checked that the bytes are inside the mapping, which is writable; who made the segment
        // promised that it can be read.
        unsafe { copy::copy(to, from.as_iovec().iov_base.cast(), from.len()) };
        Ok(())
    }

    /// Copies bytes of this program in.
    #[inline]
    pub fn write_bytes(&self, offset: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.write(offset, Segment::from_slice(bytes))
    }

    /// Copies out, into memory that others may use at the same time.
    #[inline]
    pub fn read(&self, offset: u64, into: SegmentMut<'_>) -> Result<(), Fault> {
        let from = self.range(offset, into.len())?;
        // SAFETY: `range` checked that the bytes are inside the mapping; who made the segment promised that it can be
        // written.
        unsafe { copy::copy(into.as_ptr(), from, into.len()) };
        Ok(())
    }

    /// Copies out.
    #[inline]
    pub fn read_bytes(&self, offset: u64, into: &mut [u8]) -> Result<(), Fault> {
        let from = self.range(offset, into.len())?;
        // SAFETY: `range` checked that the bytes are inside the mapping, and `into` is a place of its own.
        unsafe { copy::copy(into.as_mut_ptr(), from, into.len()) };
        Ok(())
    }

    /// Copies a piece of this node's memory in.
    #[inline]
    pub fn copy_from(&self, offset: u64, memory: &HostMemory, from: Granted) -> Result<(), Fault> {
        let length = usize::try_from(from.length).map_err(|_| Fault::OutOfBounds)?;
        let to = self.range_mut(offset, length)?;
        if Known::pays(from.length) {
            self.make_known(memory.place(from, Access::REMOTE_READ)?);
        }
        // SAFETY: `range_mut` checked that the bytes are inside the mapping, which is writable and never seen through
        // references; it lives as long as `self`.
        memory.copy_out(from, unsafe { SegmentMut::from_raw(to, length) })
    }

    /// Copies out, into a piece of this node's memory.
    #[inline]
    pub fn copy_to(&self, offset: u64, memory: &mut HostMemory, to: Granted) -> Result<(), Fault> {
        let length = usize::try_from(to.length).map_err(|_| Fault::OutOfBounds)?;
        let from = self.range(offset, length)?;
        if Known::pays(to.length) {
            self.make_known(memory.place(to, Access::REMOTE_WRITE)?);
        }
        // SAFETY: `range` checked that the bytes are inside the mapping, which is never seen through references and
        // lives as long as `self`.
        memory.copy_in(to, unsafe { Segment::from_raw(from, length) })
    }

    /// Makes it known to the device that copies from or to it.
    fn make_known(&self, place: Place) {
        if !place.is_host() {
            // SAFETY: these are pages of our mapping, which stays until `drop`, where they are forgotten first.
            unsafe { self.known.make(place.kind, self.pointer.as_ptr(), self.mapped) };
        }
    }

    /// Updates elements as [`Memory::atomic`](weft_core::memory::Memory::atomic) does, atomically to the owner of the
    /// region and to all who have it mapped. [`Fault::NotSupported`] where the processor has no instruction for that,
    /// or not at this address: then the owner has to do it.
    pub fn atomic(
        &self,
        offset: u64,
        call: AtomicCall,
        operands: &[u8],
        compares: &[u8],
        results: &mut [u8],
    ) -> Result<(), Fault> {
        let (operation, datatype) = call.check(AtomicClass::Fetch).or_else(|_| call.check(AtomicClass::Compare))?;
        let bytes = datatype.bytes() * usize::from(call.count);
        let pointer = self.range_mut(offset, bytes)?;
        if bytes == 0 {
            return Err(Fault::OutOfBounds);
        }
        let aligned = pointer.addr().is_multiple_of(datatype.alignment());
        if aligned && !atomic::is_lock_free(pointer, datatype) {
            return Err(Fault::NotSupported);
        }
        // SAFETY: `range_mut` checked that the bytes are inside the mapping, which is writable and never seen through
        // references.
        unsafe { atomic::update(pointer, bytes, operation, datatype, Values { operands, compares, results }) }
    }

    /// Makes earlier writes of this thread visible to every other before what it does next.
    pub fn flush(&self) {
        fence(Ordering::SeqCst);
    }

    /// The whole mapping, which a device library may pin. Reading or writing there is for those who know what else does.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.pointer.as_ptr()
    }

    #[inline]
    fn range(&self, offset: u64, length: usize) -> Result<*mut u8, Fault> {
        let offset = usize::try_from(offset).map_err(|_| Fault::OutOfBounds)?;
        let end = offset.checked_add(length).ok_or(Fault::OutOfBounds)?;
        if end > self.length {
            return Err(Fault::OutOfBounds);
        }
        Ok(self.pointer.as_ptr().wrapping_add(offset))
    }

    #[inline]
    fn range_mut(&self, offset: u64, length: usize) -> Result<*mut u8, Fault> {
        if self.writable { self.range(offset, length) } else { Err(Fault::Forbidden) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: every copy borrowed the mapping until it was done.
        unsafe { self.known.forget(self.pointer.as_ptr()) };
        // SAFETY: the mapping is this value's, and nobody has a pointer into it any more.
        unsafe { libc::munmap(self.pointer.as_ptr().cast(), self.mapped) };
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let access = if self.writable { "" } else { ", read only" };
        write!(f, "Mapping({} bytes at {:?}{access})", self.length, self.pointer)
    }
}

/// Whether a descriptor from a peer can be mapped without harm: a touch of any page gives memory, now and later.
fn check(descriptor: BorrowedFd<'_>, mapped: usize) -> Result<(), MapError> {
    // SAFETY: asks for a number.
    let seals = unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_GET_SEALS) };
    // Files that are not memory have no seals, and those of a mounted file system cannot have this one.
    if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
        return Err(MapError::NotSealed);
    }
    // Huge pages that are reserved beforehand may run out when they are touched.
    let mut system = MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: room for the answer; it is all numbers, for which zeros are valid too.
    let system = unsafe {
        if libc::fstatfs(descriptor.as_raw_fd(), system.as_mut_ptr()) != 0 {
            return Err(MapError::System(io::Error::last_os_error()));
        }
        system.assume_init()
    };
    if system.f_type != libc::TMPFS_MAGIC {
        return Err(MapError::NotSealed);
    }
    let mut file = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: as above.
    let file = unsafe {
        if libc::fstat(descriptor.as_raw_fd(), file.as_mut_ptr()) != 0 {
            return Err(MapError::System(io::Error::last_os_error()));
        }
        file.assume_init()
    };
    match usize::try_from(file.st_size) {
        Ok(size) if size >= mapped => Ok(()),
        _ => Err(MapError::TooShort),
    }
}

/// Why a peer's region was not mapped.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// The peer: not a memory file that is sealed against becoming shorter.
    #[error("the peer's memory could become shorter under us: it is not mapped")]
    NotSealed,
    /// The peer: the file has less bytes than it says, or none.
    #[error("the peer's memory is shorter than it says: it is not mapped")]
    TooShort,
    /// The caller: it is shared for reading only.
    #[error("the peer's memory is shared for reading only: map it so")]
    ReadOnly,
    /// A local resource.
    #[error("the peer's memory cannot be mapped: {0}")]
    System(io::Error),
}
