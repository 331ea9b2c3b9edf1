//! A device made of host memory, which proves on any machine that nobody touches device memory by accident.
//!
//! Each allocation is a memfd that is mapped twice: without any right where its users see it, so that a load or store
//! there is a fault of the processor, and once more, hidden, for the operations. Copies that are started are done later
//! by a thread of their own, so that who forgets to wait finds old bytes. There are always [`DEVICES`] of them.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{
    Allocation, Capabilities, DeviceError, Direction, Event, HANDLE_BYTES, Handle, Kind, Operations, Place, Transfer,
};
use crate::copy;
use crate::limits::{EMULATED_DELAY_US, EMULATED_QUEUE_MAX, PAGE_BYTES};

/// Emulated devices.
pub const DEVICES: u32 = 2;

/// Seals without which the memory of another process could vanish under a mapping.
const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// How often something was done, and with how many bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Calls.
    pub calls: u64,
    /// Bytes of all their pieces.
    pub bytes: u64,
}

/// What the emulated devices have done since the process began, for tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Copies from the host.
    pub to_device: Count,
    /// Copies to the host.
    pub from_device: Count,
    /// Copies between allocations.
    pub within: Count,
    /// Of those from and to the host: the ones whose host memory was all registered.
    pub registered: Count,
    /// Those that were started and waited for, not done at once.
    pub started: u64,
    /// Allocations that are not freed.
    pub allocations: u64,
    /// Mappings of other processes' allocations that are not released.
    pub imports: u64,
    /// Pieces of host memory that are registered.
    pub host_registrations: u64,
}

/// What the emulated devices have done.
#[must_use]
pub fn statistics() -> Statistics {
    let table = EMULATED.table();
    let imports = table.allocations.values().filter(|block| block.imported).count() as u64;
    Statistics {
        allocations: table.allocations.len() as u64 - imports,
        imports,
        host_registrations: table.registered.len() as u64,
        ..table.statistics
    }
}

/// Whether all of some host memory is registered with the emulated devices.
#[must_use]
pub fn is_host_registered(pointer: *const u8, length: usize) -> bool {
    EMULATED.table().is_registered(pointer as u64, length)
}

/// The operations.
pub(super) fn operations() -> &'static dyn Operations {
    &*EMULATED
}

static EMULATED: LazyLock<Emulated> = LazyLock::new(Emulated::default);

#[derive(Debug, Default)]
struct Emulated {
    table: Mutex<Table>,
    queue: Mutex<Queue>,
    /// Something was queued, or done.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Table {
    /// By the address that users see.
    allocations: BTreeMap<u64, Block>,
    next_id: u64,
    /// First byte and length.
    registered: BTreeMap<u64, usize>,
    statistics: Statistics,
}

/// One allocation, or the mapping of another process's.
#[derive(Debug)]
struct Block {
    id: u64,
    device: u32,
    /// Bytes that were asked for.
    length: usize,
    imported: bool,
    nonce: u64,
    descriptor: OwnedFd,
    /// Where users see it: no access.
    #[expect(dead_code, reason = "its end is what counts")]
    shown: Pages,
    hidden: Pages,
}

#[derive(Debug, Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// Of events that nobody has asked about since they were done.
    results: HashMap<u64, Option<Result<(), DeviceError>>>,
    next_event: u64,
    has_worker: bool,
}

#[derive(Debug)]
struct Job {
    event: u64,
    device: u32,
    direction: Direction,
    pieces: Vec<Transfer>,
}

impl Emulated {
    /// A thread that panicked while it held the lock left whole entries behind.
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what is queued, for ever.
    fn work(&self) {
        loop {
            let mut queue = self.queue();
            let job = loop {
                match queue.jobs.pop_front() {
                    Some(job) => break job,
                    None => queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner),
                }
            };
            drop(queue);
            std::thread::sleep(Duration::from_micros(EMULATED_DELAY_US));
            // SAFETY: who started it promised that the pieces can be used until the event is done, which it is not yet.
            let result = unsafe { self.table().copy(job.device, job.direction, &job.pieces) };
            self.queue().results.insert(job.event, Some(result));
            self.changed.notify_all();
        }
    }

    fn insert(&self, mut block: Block, base: NonNull<u8>) -> u64 {
        let mut table = self.table();
        table.next_id += 1;
        if !block.imported {
            block.id = table.next_id;
            block.label();
        }
        block.id = table.next_id;
        let address = base.as_ptr() as u64;
        table.allocations.insert(address, block);
        address
    }
}

impl Table {
    /// The allocation that all of a range is in, and where in it the range begins.
    fn find(&self, address: u64, length: usize) -> Option<(&Block, usize)> {
        let (base, block) = self.allocations.range(..=address).next_back()?;
        let offset = usize::try_from(address - base).ok()?;
        (offset.checked_add(length)? <= block.length).then_some((block, offset))
    }

    /// The hidden bytes of a range of a device.
    fn resolve(&self, device: Option<u32>, address: u64, length: usize) -> Result<*mut u8, DeviceError> {
        match self.find(address, length) {
            Some((block, offset)) if device.is_none_or(|device| device == block.device) => {
                Ok(block.hidden.pointer.as_ptr().wrapping_add(offset))
            }
            _ => Err(DeviceError::BadAddress),
        }
    }

    /// Host memory, which must not be a device's.
    fn host(&self, address: u64, length: usize) -> Result<*mut u8, DeviceError> {
        let end = address.checked_add(length as u64).ok_or(DeviceError::BadAddress)?;
        match self.allocations.range(..end).next_back() {
            Some((base, block)) if base.saturating_add(block.hidden.length as u64) > address && length > 0 => {
                Err(DeviceError::BadAddress)
            }
            _ => Ok(address as *mut u8),
        }
    }

    fn is_registered(&self, address: u64, length: usize) -> bool {
        let found = self.registered.range(..=address).next_back();
        found.is_some_and(|(base, registered)| {
            address.saturating_add(length as u64) <= base.saturating_add(*registered as u64)
        })
    }

    /// Nothing is copied unless all pieces can be.
    ///
    /// # Safety
    /// As [`Operations::copy`].
    unsafe fn copy(&mut self, device: u32, direction: Direction, pieces: &[Transfer]) -> Result<(), DeviceError> {
        for apply in [false, true] {
            for piece in pieces {
                let length = piece.length;
                let (to, from) = match direction {
                    Direction::ToDevice => {
                        (self.resolve(Some(device), piece.to, length)?, self.host(piece.from, length)?)
                    }
                    Direction::FromDevice => {
                        (self.host(piece.to, length)?, self.resolve(Some(device), piece.from, length)?)
                    }
                    Direction::Within => {
                        (self.resolve(None, piece.to, length)?, self.resolve(None, piece.from, length)?)
                    }
                };
                if !apply {
                    continue;
                }
                if to.addr().abs_diff(from.addr()) >= length {
                    // SAFETY: device ranges were resolved above; the caller promised the host's; they do not overlap.
                    unsafe { copy::copy(to, from, length) };
                } else {
                    let mut between = vec![0; length];
                    // SAFETY: as above, and the vector is a place of its own.
                    unsafe {
                        copy::copy(between.as_mut_ptr(), from, length);
                        copy::copy(to, between.as_ptr(), length);
                    }
                }
            }
        }
        self.count(direction, pieces);
        Ok(())
    }

    fn count(&mut self, direction: Direction, pieces: &[Transfer]) {
        let bytes: u64 = pieces.iter().map(|piece| piece.length as u64).sum();
        let registered = match direction {
            Direction::ToDevice => pieces.iter().all(|piece| self.is_registered(piece.from, piece.length)),
            Direction::FromDevice => pieces.iter().all(|piece| self.is_registered(piece.to, piece.length)),
            Direction::Within => false,
        };
        let statistics = &mut self.statistics;
        let count = match direction {
            Direction::ToDevice => &mut statistics.to_device,
            Direction::FromDevice => &mut statistics.from_device,
            Direction::Within => &mut statistics.within,
        };
        count.calls += 1;
        count.bytes += bytes;
        if registered {
            statistics.registered.calls += 1;
            statistics.registered.bytes += bytes;
        }
    }
}

impl Operations for Emulated {
    fn kind(&self) -> Kind {
        Kind::Emulated
    }

    fn devices(&self) -> u32 {
        DEVICES
    }

    fn describe(&self, device: u32) -> String {
        format!("device {device} made of host memory, for tests")
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { handles: true, descriptors: true, register_host: true, asynchronous: true }
    }

    unsafe fn copy(&self, device: u32, direction: Direction, pieces: &[Transfer]) -> Result<(), DeviceError> {
        // SAFETY: as the caller promised.
        unsafe { self.table().copy(device, direction, pieces) }
    }

    unsafe fn start(&self, device: u32, direction: Direction, pieces: &[Transfer]) -> Result<Event, DeviceError> {
        let mut queue = self.queue();
        if !queue.has_worker {
            let thread = std::thread::Builder::new().name("weft-emulated".to_owned());
            thread.spawn(|| EMULATED.work()).map_err(failed("start a thread"))?;
            queue.has_worker = true;
        }
        while queue.jobs.len() >= EMULATED_QUEUE_MAX {
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        queue.next_event += 1;
        let event = queue.next_event;
        queue.jobs.push_back(Job { event, device, direction, pieces: pieces.to_vec() });
        queue.results.insert(event, None);
        drop(queue);
        self.changed.notify_all();
        self.table().statistics.started += 1;
        Ok(Event(event))
    }

    fn is_done(&self, event: &Event) -> Result<bool, DeviceError> {
        let mut queue = self.queue();
        match queue.results.get(&event.0) {
            None => Err(DeviceError::BadAddress),
            Some(None) => Ok(false),
            Some(Some(_)) => queue.results.remove(&event.0).flatten().unwrap_or(Ok(())).map(|()| true),
        }
    }

    fn wait(&self, event: Event) -> Result<(), DeviceError> {
        let mut queue = self.queue();
        loop {
            match queue.results.get(&event.0) {
                None => return Err(DeviceError::BadAddress),
                Some(None) => queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner),
                Some(Some(_)) => return queue.results.remove(&event.0).flatten().unwrap_or(Ok(())),
            }
        }
    }

    fn allocate(&self, device: u32, length: usize) -> Result<u64, DeviceError> {
        if device >= DEVICES || length == 0 {
            return Err(DeviceError::BadAddress);
        }
        let size = mapped_bytes(length).ok_or(DeviceError::OutOfMemory)?;
        super::presence::emulated();
        let (descriptor, hidden) = make_memory(size)?;
        let mut nonce = [0; 8];
        getrandom::fill(&mut nonce).map_err(|error| DeviceError::Failed(error.to_string()))?;
        let shown = Pages::reserve(size)?;
        let base = shown.pointer;
        let nonce = u64::from_ne_bytes(nonce);
        let block = Block { id: 0, device, length, imported: false, nonce, descriptor, shown, hidden };
        Ok(self.insert(block, base))
    }

    unsafe fn free(&self, device: u32, address: u64) -> Result<(), DeviceError> {
        let mut table = self.table();
        match table.allocations.get(&address) {
            Some(block) if block.device == device && !block.imported => {
                table.allocations.remove(&address);
                Ok(())
            }
            _ => Err(DeviceError::BadAddress),
        }
    }

    fn classify(&self, address: u64) -> Option<Allocation> {
        let table = self.table();
        let (block, offset) = table.find(address, 1)?;
        Some(Allocation {
            place: Place { kind: Kind::Emulated, device: block.device },
            base: address - offset as u64,
            length: block.length as u64,
            id: block.id,
            exportable: !block.imported,
        })
    }

    fn export(&self, address: u64) -> Result<Handle, DeviceError> {
        let table = self.table();
        let (block, _) = table.find(address, 1).ok_or(DeviceError::BadAddress)?;
        if block.imported {
            return Err(DeviceError::NotSupported);
        }
        Ok(Handle {
            place: Place { kind: Kind::Emulated, device: block.device },
            bytes: block.label_bytes(),
            descriptor: Some(block.descriptor.try_clone().map_err(failed("duplicate a descriptor"))?),
            length: block.length as u64,
            id: block.id,
        })
    }

    fn import(&self, handle: &Handle) -> Result<u64, DeviceError> {
        let device = handle.place.device;
        let descriptor = handle.descriptor.as_ref().ok_or(DeviceError::BadHandle)?;
        let length = usize::try_from(handle.length).map_err(|_| DeviceError::BadHandle)?;
        if handle.place.kind != Kind::Emulated || device >= DEVICES || length == 0 {
            return Err(DeviceError::BadHandle);
        }
        let size = mapped_bytes(length).ok_or(DeviceError::BadHandle)?;
        super::presence::emulated();
        // Who can still shrink it could make every access of ours a fault; only memory files can be sealed at all.
        // SAFETY: plain call on a descriptor of ours.
        let seals = unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 || seals & SEALS != SEALS || file_bytes(descriptor).is_none_or(|bytes| bytes < size as u64) {
            return Err(DeviceError::BadHandle);
        }
        let descriptor = descriptor.try_clone().map_err(failed("duplicate a descriptor"))?;
        let hidden = Pages::of(&descriptor, size).map_err(|_| DeviceError::BadHandle)?;
        let nonce = handle.bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let shown = Pages::reserve(size)?;
        let base = shown.pointer;
        let block = Block { id: handle.id, device, length, imported: true, nonce, descriptor, shown, hidden };
        // What is written there is the other process's to write: it is copied out once, and compared.
        let mut label = [0; HANDLE_BYTES];
        // SAFETY: the label's page is mapped, and the array is a place of its own.
        unsafe { copy::copy(label.as_mut_ptr(), block.label_pointer(), HANDLE_BYTES) };
        if label != handle.bytes || label != block.label_bytes() {
            return Err(DeviceError::BadHandle);
        }
        Ok(self.insert(block, base))
    }

    unsafe fn release(&self, base: u64) -> Result<(), DeviceError> {
        let mut table = self.table();
        match table.allocations.get(&base) {
            Some(block) if block.imported => {
                table.allocations.remove(&base);
                Ok(())
            }
            _ => Err(DeviceError::BadAddress),
        }
    }

    unsafe fn register_host(&self, pointer: *mut u8, length: usize) -> Result<(), DeviceError> {
        let mut table = self.table();
        if length == 0 || table.registered.contains_key(&(pointer as u64)) {
            return Err(DeviceError::BadAddress);
        }
        table.host(pointer as u64, length)?;
        table.registered.insert(pointer as u64, length);
        Ok(())
    }

    unsafe fn unregister_host(&self, pointer: *mut u8) -> Result<(), DeviceError> {
        match self.table().registered.remove(&(pointer as u64)) {
            Some(_) => Ok(()),
            None => Err(DeviceError::BadAddress),
        }
    }
}

impl Block {
    /// What tells this allocation from all others: behind its bytes, and in its handles.
    fn label_bytes(&self) -> [u8; HANDLE_BYTES] {
        let mut label = [0; HANDLE_BYTES];
        let words = [self.nonce, self.id, self.length as u64, u64::from(self.device)];
        for (place, word) in label.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        label
    }

    /// On the last page, which no range reaches.
    fn label_pointer(&self) -> *mut u8 {
        self.hidden.pointer.as_ptr().wrapping_add(self.hidden.length.saturating_sub(PAGE_BYTES))
    }

    fn label(&self) {
        let label = self.label_bytes();
        // SAFETY: the last page is mapped for writing, and longer than a label.
        unsafe { copy::copy(self.label_pointer(), label.as_ptr(), HANDLE_BYTES) };
    }
}

const _: () = assert!(HANDLE_BYTES <= PAGE_BYTES && HANDLE_BYTES >= 32, "a label fits");

/// A mapping, until it is dropped.
struct Pages {
    pointer: NonNull<u8>,
    length: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread; bytes are only accessed by raw pointer.
unsafe impl Send for Pages {}

impl Pages {
    /// Addresses at which every access faults.
    fn reserve(length: usize) -> Result<Pages, DeviceError> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        Pages::map(length, libc::PROT_NONE, flags, -1)
    }

    fn of(descriptor: &OwnedFd, length: usize) -> Result<Pages, DeviceError> {
        Pages::map(length, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, descriptor.as_raw_fd())
    }

    fn map(length: usize, protection: i32, flags: i32, descriptor: i32) -> Result<Pages, DeviceError> {
        // SAFETY: the system chooses a place where nothing is.
        let pointer = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, descriptor, 0) };
        match NonNull::new(pointer.cast::<u8>()) {
            Some(pointer) if pointer.as_ptr().cast() != libc::MAP_FAILED => Ok(Pages { pointer, length }),
            _ => Err(DeviceError::OutOfMemory),
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: `mmap` gave it with this length; its block was taken out of the table, so no operation finds it.
        unsafe { libc::munmap(self.pointer.as_ptr().cast(), self.length) };
    }
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pages({} bytes at {:?})", self.length, self.pointer)
    }
}

/// Whole pages, and one more for the label.
fn mapped_bytes(length: usize) -> Option<usize> {
    length.checked_next_multiple_of(PAGE_BYTES)?.checked_add(PAGE_BYTES)
}

/// A memory file of this many bytes that can neither shrink nor grow, and its mapping.
fn make_memory(size: usize) -> Result<(OwnedFd, Pages), DeviceError> {
    // SAFETY: the name is a C string, and the call gives a new descriptor or -1.
    let raw = unsafe { libc::memfd_create(c"weft-emulated".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if raw < 0 {
        return Err(failed("make a memory file")(io::Error::last_os_error()));
    }
    // SAFETY: it is new, and ours alone.
    let descriptor = unsafe { OwnedFd::from_raw_fd(raw) };
    let sized = crate::set_length(descriptor.as_fd(), size as u64).is_ok();
    // SAFETY: a plain call on a descriptor of ours.
    if !sized || unsafe { libc::fcntl(raw, libc::F_ADD_SEALS, SEALS) } != 0 {
        return Err(DeviceError::OutOfMemory);
    }
    let hidden = Pages::of(&descriptor, size)?;
    Ok((descriptor, hidden))
}

fn file_bytes(descriptor: &OwnedFd) -> Option<u64> {
    // SAFETY: zeros are a valid `stat`, and the call fills it.
    let (result, stat) = unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        (libc::fstat(descriptor.as_raw_fd(), &raw mut stat), stat)
    };
    if result == 0 { u64::try_from(stat.st_size).ok() } else { None }
}

fn failed(doing: &'static str) -> impl Fn(io::Error) -> DeviceError {
    move |error| DeviceError::Failed(format!("cannot {doing}: {error}"))
}

#[cfg(test)]
mod tests;
