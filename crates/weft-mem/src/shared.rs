//! Memory that other processes can map.
//!
//! [`MemoryRegion::alloc_shared`] gives a region that lies in a memory file of its own (a memfd: no name anywhere, gone
//! with its last user). [`MemoryRegion::share`] gives a descriptor of it for a peer, which makes a
//! [`Mapping`](crate::Mapping) of it and then reads, writes and updates the region without this process's doing. Only
//! whole regions are shared: a peer can never reach bytes that are not of the region.
//!
//! What keeps each side safe from the other is the system: the file is sealed, so that nobody can make it shorter under
//! somebody's feet, and what is shared for reading is sealed against every writable mapping but the owner's.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::limits::{HUGE_PAGE_BYTES, PAGE_BYTES};
use crate::region::MemoryRegion;

/// A descriptor of a region, and what a peer has to know to map it.
#[derive(Debug)]
pub struct Shareable {
    /// To be handed to the peer; closed here afterwards.
    pub descriptor: OwnedFd,
    /// Bytes of the region.
    pub length: usize,
    /// Whether the peer can map it for writing.
    pub writable: bool,
    /// The same for every descriptor of this region, and different for all others of this process.
    pub id: u64,
}

impl MemoryRegion {
    /// Zeros that begin at a page and can be shared with other processes. A child of `fork` shares them too.
    pub fn alloc_shared(length: usize) -> io::Result<MemoryRegion> {
        if length == 0 {
            return Ok(MemoryRegion::from_vec(Vec::new()));
        }
        Ok(MemoryRegion::from_shared(SharedMemory::new(length)?, length))
    }

    /// A descriptor with which another process can map the region. The first call decides for ever: what is shared for
    /// reading can never be mapped for writing by anybody, and what is shared for writing cannot be shared for reading
    /// only, since a descriptor can be opened again with other rights.
    ///
    /// `None`: the region is not from [`MemoryRegion::alloc_shared`], was shared the other way before, or was revoked;
    /// or the system has no more descriptors. Peers then reach it with the help of this process.
    #[must_use]
    pub fn share(&self, writable: bool) -> Option<Shareable> {
        let shared = self.shared()?;
        let descriptor = shared.grant(writable).ok()??;
        Some(Shareable { descriptor, length: self.length(), writable, id: shared.id })
    }

    /// Whether [`MemoryRegion::share`] would give a descriptor.
    #[must_use]
    pub fn is_shareable(&self, writable: bool) -> bool {
        self.shared().is_some_and(|shared| shared.state().grants.permit(writable))
    }

    /// Somebody may share the region from now on, until [`MemoryRegion::end_sharing`].
    pub fn begin_sharing(&self) {
        if let Some(shared) = self.shared() {
            shared.state().sharers += 1;
        }
    }

    /// Nobody whom the caller shared it with may reach the region any more. A peer can keep its mapping, whatever it
    /// says: so when the last sharer ends, and anybody else here still holds the region, it is taken back
    /// ([`MemoryRegion::revoke`]). True: it was.
    pub fn end_sharing(&self) -> io::Result<bool> {
        let Some(shared) = self.shared() else { return Ok(false) };
        let mut state = shared.state();
        state.sharers = state.sharers.saturating_sub(1);
        let reachable = matches!(state.grants, Grants::Writable | Grants::ReadOnly);
        let taken = reachable && state.sharers == 0 && !self.is_only_handle();
        drop(state);
        if taken { self.revoke().map(|()| true) } else { Ok(false) }
    }

    /// Takes the region back from all processes that have it mapped: when this returns, nothing that they do to their
    /// mappings is seen here, nor are later writes seen there. The bytes stay, at the same address, and no write of this
    /// process is lost, though it comes meanwhile. The region cannot be shared any more.
    ///
    /// This is the hard way, which costs a copy of the region, for a peer that does not let go. Peers that still have
    /// rights must be told before, as what they write to their mappings is lost. Where a device or the system holds the
    /// pages themselves, it keeps the old ones: devices that Weft has told of them are made to forget them, so no copy by
    /// a device may be under way ([`HostMemory::finish_copies`](crate::HostMemory::finish_copies)). On a region that was
    /// never shared this does nothing.
    pub fn revoke(&self) -> io::Result<()> {
        let Some(shared) = self.shared() else { return Ok(()) };
        // SAFETY: it is this region's memory; that no copy is under way is what the driver looks to as well.
        unsafe { self.known().without(self.as_ptr(), || shared.revoke(SharedMemory::copy_pages)) }
    }
}

/// Gives a file a length. One that the process's limit of file sizes forbids is an error, not the signal that would end
/// the process.
pub fn set_length(file: BorrowedFd<'_>, bytes: u64) -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid structure that lives through the call.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) } == 0;
    let length = libc::off_t::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
    if known && bytes > limit.rlim_cur {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    // SAFETY: no memory is involved.
    if unsafe { libc::ftruncate(file.as_raw_fd(), length) } != 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Ids of regions that can be shared.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// The memory of a region that can be shared: a file and this process's mapping of it.
pub(crate) struct SharedMemory {
    pointer: NonNull<u8>,
    /// Whole pages.
    mapped: usize,
    id: u64,
    state: Mutex<State>,
}

struct State {
    grants: Grants,
    /// `None` after it was revoked.
    file: Option<OwnedFd>,
    /// Who may share it now.
    sharers: usize,
}

/// How the memory was shared.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Grants {
    NotYet,
    Writable,
    ReadOnly,
    Revoked,
}

impl Grants {
    fn permit(self, writable: bool) -> bool {
        match self {
            Grants::NotYet => true,
            Grants::Writable => writable,
            Grants::ReadOnly => !writable,
            Grants::Revoked => false,
        }
    }
}

// SAFETY: the mapping belongs to this value, and is only touched by raw pointers that tolerate others.
unsafe impl Send for SharedMemory {}
// SAFETY: as above; the rest is behind a mutex.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    fn new(length: usize) -> io::Result<SharedMemory> {
        let mapped = length.checked_next_multiple_of(PAGE_BYTES).ok_or(io::ErrorKind::OutOfMemory)?;
        let file = create_file()?;
        set_length(file.as_fd(), mapped as u64)?;
        // Not sealed against further seals yet: how it is shared first will add one.
        add_seals(file.as_fd(), libc::F_SEAL_SHRINK | libc::F_SEAL_GROW)?;
        let pointer = map(None, mapped, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, file.as_fd())?;
        if mapped >= HUGE_PAGE_BYTES {
            // Advice only: without it pages are small.
            // SAFETY: the mapping was made above.
            unsafe { libc::madvise(pointer.as_ptr().cast(), mapped, libc::MADV_HUGEPAGE) };
        }
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let state = Mutex::new(State { grants: Grants::NotYet, file: Some(file), sharers: 0 });
        Ok(SharedMemory { pointer, mapped, id, state })
    }

    pub(crate) fn pointer(&self) -> NonNull<u8> {
        self.pointer
    }

    /// Bytes of its pages.
    pub(crate) fn mapped(&self) -> usize {
        self.mapped
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn grant(&self, writable: bool) -> io::Result<Option<OwnedFd>> {
        let mut state = self.state();
        if !state.grants.permit(writable) {
            return Ok(None);
        }
        let Some(file) = &state.file else { return Ok(None) };
        if state.grants == Grants::NotYet {
            // The last seal keeps a peer from adding some that would keep others out.
            let read_only = if writable { 0 } else { libc::F_SEAL_FUTURE_WRITE };
            add_seals(file.as_fd(), read_only | libc::F_SEAL_SEAL)?;
        }
        let descriptor = file.try_clone()?;
        state.grants = if writable { Grants::Writable } else { Grants::ReadOnly };
        Ok(Some(descriptor))
    }

    /// The file is mapped anew at the same place, but privately: from then on a page that this process writes is copied
    /// first, by the system, which does not let a write of any thread slip between. Then every page is made to be copied.
    fn revoke(&self, copy_pages: fn(&SharedMemory)) -> io::Result<()> {
        let mut state = self.state();
        if matches!(state.grants, Grants::NotYet | Grants::Revoked) {
            return Ok(());
        }
        let Some(file) = state.file.take() else { return Ok(()) };
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_FIXED;
        if let Err(error) = map(Some(self.pointer), self.mapped, protection, flags, file.as_fd()) {
            state.file = Some(file);
            return Err(error);
        }
        state.grants = Grants::Revoked;
        copy_pages(self);
        // Gives the old pages back, and hides what was in them. Where writing is sealed they stay until all have let go.
        let flags = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: changes a file of ours, of which this process has no page mapped any more.
        unsafe { libc::fallocate(file.as_raw_fd(), flags, 0, self.mapped as libc::off_t) };
        Ok(())
    }

    /// Has the system copy every page of a private mapping.
    fn copy_pages(&self) {
        // SAFETY: the mapping is ours and lives; the advice changes no byte.
        let done = unsafe { libc::madvise(self.pointer.as_ptr().cast(), self.mapped, libc::MADV_POPULATE_WRITE) };
        if done != 0 {
            self.write_each_page();
        }
    }

    /// Writes to each page what is there, so that the system copies it. For systems that cannot be asked to.
    fn write_each_page(&self) {
        for offset in (0..self.mapped).step_by(PAGE_BYTES) {
            // SAFETY: inside the mapping; bytes have no alignment, and all others use raw pointers or atomics too.
            let byte = unsafe { AtomicU8::from_ptr(self.pointer.as_ptr().wrapping_add(offset)) };
            // An exchange, since an update that changes nothing may be compiled to a mere load.
            let mut value = byte.load(Ordering::Relaxed);
            while let Err(current) = byte.compare_exchange_weak(value, value, Ordering::Relaxed, Ordering::Relaxed) {
                value = current;
            }
        }
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and nobody has a pointer into it any more.
        unsafe { libc::munmap(self.pointer.as_ptr().cast(), self.mapped) };
    }
}

impl fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedMemory({} bytes at {:?})", self.mapped, self.pointer)
    }
}

/// A memory file without a name that others could open. Not executable, where the system knows that.
fn create_file() -> io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: a string that ends in zero, and flags.
    let create = |flags| unsafe { libc::memfd_create(c"weft".as_ptr(), flags) };
    let mut descriptor = create(flags | libc::MFD_NOEXEC_SEAL);
    if descriptor < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL) {
        descriptor = create(flags);
    }
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the system just gave it to us.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

fn add_seals(file: BorrowedFd<'_>, seals: i32) -> io::Result<()> {
    // SAFETY: passes numbers to the system.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Maps a file from its beginning; `at` must be a mapping of the caller's, which is replaced.
pub(crate) fn map(
    at: Option<NonNull<u8>>,
    length: usize,
    protection: i32,
    flags: i32,
    file: BorrowedFd<'_>,
) -> io::Result<NonNull<u8>> {
    let address = at.map_or(ptr::null_mut(), |pointer| pointer.as_ptr().cast());
    // SAFETY: without `at` nothing that exists is changed; with it, what is changed is the caller's.
    let pointer = unsafe { libc::mmap(address, length, protection, flags, file.as_raw_fd(), 0) };
    if pointer == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(pointer.cast()).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::SharedMemory;
    use crate::{Mapping, MemoryRegion};

    #[test]
    fn without_help_of_the_system_each_page_is_written() {
        let region = MemoryRegion::alloc_shared(5 * 4096).unwrap();
        let shareable = region.share(true).unwrap();
        let mapping = Mapping::open(shareable.descriptor.as_fd(), shareable.length, true).unwrap();
        mapping.write_bytes(0, &[1; 5 * 4096]).unwrap();
        region.shared().unwrap().revoke(SharedMemory::write_each_page).unwrap();
        mapping.write_bytes(0, &[2; 5 * 4096]).unwrap();
        assert_eq!(region.to_vec(0, 5 * 4096).unwrap(), [1; 5 * 4096]);
    }
}
