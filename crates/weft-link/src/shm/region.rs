//! The memory of a channel, as the two processes map it.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

use weft_mem::device::Kind;
use weft_mem::fork::LocalMapping;
use weft_mem::known::Known;

use super::layout::{REGION_BYTES, REGION_HOT_BYTES};
use super::socket::check;

/// Nobody can make it shorter, so that touching it never faults, nor longer.
const SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;

/// A mapping of [`REGION_BYTES`] bytes that another process maps too. Everything in it may change at any time.
#[derive(Debug)]
pub(crate) struct Region {
    // Dropped before the mapping goes.
    local: ManuallyDrop<LocalMapping>,
    start: NonNull<u8>,
    /// Devices that know it.
    known: Known,
}

// SAFETY: the mapping is plain memory that belongs to the process, not to a thread.
unsafe impl Send for Region {}
// SAFETY: it gives out nothing but a pointer, and who uses that answers for it.
unsafe impl Sync for Region {}

impl Region {
    /// New memory, all zero, and the descriptor to hand over.
    pub(crate) fn create() -> io::Result<(Region, OwnedFd)> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name is a string that ends with a zero.
        let descriptor = check(unsafe { libc::memfd_create(c"weft".as_ptr(), flags) })?;
        // SAFETY: the kernel has just given us this descriptor, and nobody else has it.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        weft_mem::set_length(descriptor.as_fd(), REGION_BYTES as u64)?;
        // SAFETY: no memory is involved.
        check(unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_ADD_SEALS, SEALS | libc::F_SEAL_SEAL) })?;
        let region = Region::map(descriptor.as_raw_fd())?;
        // Best effort: where the kernel does not know it, the pages come one by one.
        // SAFETY: the range is part of the mapping, and its pages are wanted anyway.
        unsafe { libc::madvise(region.start.as_ptr().cast(), REGION_HOT_BYTES, libc::MADV_POPULATE_WRITE) };
        Ok((region, descriptor))
    }

    /// Maps what a peer handed over, if it is what a peer has to hand over: memory (a file could block us for ever), of
    /// the right size, which nobody can cut (touching what was cut off would kill us).
    pub(crate) fn accept(descriptor: BorrowedFd<'_>) -> io::Result<Region> {
        let descriptor = descriptor.as_raw_fd();
        // SAFETY: zeros are a valid `statfs`.
        let mut system: libc::statfs = unsafe { std::mem::zeroed() };
        // SAFETY: `system` lives through the call, which fills it.
        check(unsafe { libc::fstatfs(descriptor, &raw mut system) })?;
        // SAFETY: zeros are a valid `stat`.
        let mut status: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: `status` lives through the call, which fills it.
        check(unsafe { libc::fstat(descriptor, &raw mut status) })?;
        // SAFETY: no memory is involved.
        let seals = check(unsafe { libc::fcntl(descriptor, libc::F_GET_SEALS) })?;
        // Not huge pages either: their pool can run dry, and then touching them kills too.
        let right = system.f_type == libc::TMPFS_MAGIC
            && status.st_size == REGION_BYTES as libc::off_t
            && seals & SEALS == SEALS;
        if !right {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        let region = Region::map(descriptor)?;
        // SAFETY: as in `create`.
        unsafe { libc::madvise(region.start.as_ptr().cast(), REGION_HOT_BYTES, libc::MADV_POPULATE_WRITE) };
        Ok(region)
    }

    fn map(descriptor: i32) -> io::Result<Region> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the kernel chooses a place that nobody uses.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), REGION_BYTES, protection, libc::MAP_SHARED, descriptor, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: the mapping was made above, and goes in `drop`, behind this.
        let local = unsafe { LocalMapping::new(start.as_ptr(), REGION_BYTES) };
        Ok(Region { local: ManuallyDrop::new(local), start, known: Known::new() })
    }

    /// Makes it known to a kind of device.
    pub(crate) fn make_known(&self, kind: Kind) {
        // SAFETY: it is our mapping, which stays until `drop`, where it is forgotten first.
        unsafe { self.known.make(kind, self.start.as_ptr(), REGION_BYTES) };
    }

    /// Its first byte; all [`REGION_BYTES`] can be read and written while the region lives.
    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: copies from and to it are done when the call that makes them returns.
        unsafe { self.known.forget(self.start.as_ptr()) };
        // SAFETY: it is not used again.
        unsafe { ManuallyDrop::drop(&mut self.local) };
        // SAFETY: it is our mapping, and whoever points into it holds the region.
        unsafe { libc::munmap(self.start.as_ptr().cast(), REGION_BYTES) };
    }
}
