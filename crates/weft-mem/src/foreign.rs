//! Copies between memory of this NIC and device memory that is not registered with it: an allocation of another process
//! that is mapped here, or a bounce buffer of our own. Inside a device, and between devices of one kind, no byte passes
//! through the host.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use weft_core::memory::{Access, Fault, Granted};

use crate::device::{Allocation, DeviceError, Direction, Event, Handle, Operations, Place, Transfer};
use crate::limits::COPIES_MAX;
use crate::region::MemoryRegion;
use crate::staging::{self, Located};

/// Device memory to copy from and to.
///
/// # Safety
/// What [`Foreign::range`] gives is memory of [`Foreign::place`], that may be read and written by the device's operations
/// for as many bytes as were asked for while the value lives.
pub unsafe trait Foreign: Send + Sync {
    /// Which device's.
    fn place(&self) -> Place;

    /// The address of a range, if it is inside.
    fn range(&self, offset: u64, length: u64) -> Option<u64>;
}

// SAFETY: a region knows its place, its memory lives as long as the region, and ranges are checked.
unsafe impl Foreign for MemoryRegion {
    fn place(&self) -> Place {
        MemoryRegion::place(self)
    }

    fn range(&self, offset: u64, length: u64) -> Option<u64> {
        let (offset, length) = (usize::try_from(offset).ok()?, usize::try_from(length).ok()?);
        self.is_writable().then(|| MemoryRegion::range(self, offset, length).ok().map(|pointer| pointer as u64))?
    }
}

impl MemoryRegion {
    /// A handle by which other processes can open the device allocation that the region lies in, and where in that the
    /// region begins.
    pub fn export(&self) -> Result<(Handle, u64), DeviceError> {
        let address = self.as_ptr() as u64;
        let found = self.allocation().ok_or(DeviceError::NotSupported)?;
        Ok((staging::operations(found.place)?.export(address)?, address - found.base))
    }
}

/// A copy that goes on; see [`HostMemory::is_copied`](crate::HostMemory::is_copied).
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the copy may not be done yet"]
pub struct Copying(u64);

/// Which way a copy goes, as the memory that is registered sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Into it.
    In,
    /// Out of it.
    Out,
}

/// Copies that go on, with what they need.
#[derive(Default)]
pub(crate) struct Copies {
    going: Vec<Going>,
    next: u64,
}

struct Going {
    number: u64,
    slot: u32,
    generation: u32,
    operations: &'static dyn Operations,
    event: Option<Event>,
    result: Result<(), DeviceError>,
    #[expect(dead_code, reason = "it keeps the memory")]
    foreign: Arc<dyn Any + Send + Sync>,
}

impl Going {
    fn land(&mut self) {
        if let Some(event) = self.event.take() {
            self.result = self.operations.wait(event);
        }
    }
}

impl Copies {
    /// # Safety
    /// The registered memory of the copy may be used until [`Copies::let_go`] of its slot returned.
    pub(crate) unsafe fn start(
        &mut self,
        of: Granted,
        plan: Plan,
        foreign: Arc<dyn Any + Send + Sync>,
    ) -> Result<Copying, DeviceError> {
        if self.going.len() >= COPIES_MAX {
            return Err(DeviceError::OutOfMemory);
        }
        // SAFETY: the caller vouches for one side, and `foreign`, which is kept, for the other.
        let event = unsafe { plan.operations.start(plan.device, plan.direction, &[plan.piece])? };
        self.next += 1;
        let (slot, generation, number) = (of.slot, of.generation, self.next);
        let operations = plan.operations;
        self.going.push(Going { number, slot, generation, operations, event: Some(event), result: Ok(()), foreign });
        Ok(Copying(number))
    }

    /// Whether a copy is done; a done one is forgotten.
    pub(crate) fn is_done(&mut self, copying: &Copying) -> Result<bool, DeviceError> {
        let Some(index) = self.going.iter().position(|going| going.number == copying.0) else {
            return Err(DeviceError::BadAddress);
        };
        if let Some(going) = self.going.get_mut(index)
            && let Some(event) = &going.event
        {
            match going.operations.is_done(event) {
                Ok(false) => return Ok(false),
                result => going.result = result.map(|_| ()),
            }
            going.event = None;
        }
        self.going.swap_remove(index).result.map(|()| true)
    }

    /// Waits for all of them.
    pub(crate) fn finish(&mut self) {
        self.going.iter_mut().for_each(Going::land);
    }

    /// Waits for the copies of a slot: its memory may go.
    pub(crate) fn let_go(&mut self, slot: u32, generation: u32) {
        let of_slot = |going: &&mut Going| (going.slot, going.generation) == (slot, generation);
        self.going.iter_mut().filter(of_slot).for_each(Going::land);
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        self.going.iter_mut().for_each(Going::land);
    }
}

impl fmt::Debug for Copies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Copies({} going on)", self.going.len())
    }
}

/// A copy as the operations take it.
pub(crate) struct Plan {
    pub(crate) operations: &'static dyn Operations,
    pub(crate) device: u32,
    pub(crate) direction: Direction,
    pub(crate) piece: Transfer,
}

impl Plan {
    /// A copy between registered memory and other memory.
    pub(crate) fn new(own: Located, foreign: &dyn Foreign, offset: u64, way: Way) -> Result<Plan, Fault> {
        let place = foreign.place();
        if place.is_host() || !(own.place.is_host() || own.place.kind == place.kind) {
            return Err(Fault::NotSupported);
        }
        let other = foreign.range(offset, own.length as u64).ok_or(Fault::OutOfBounds)?;
        let (direction, to, from) = match (own.place.is_host(), way) {
            (true, Way::In) => (Direction::FromDevice, own.address, other),
            (true, Way::Out) => (Direction::ToDevice, other, own.address),
            (false, Way::In) => (Direction::Within, own.address, other),
            (false, Way::Out) => (Direction::Within, other, own.address),
        };
        let operations = staging::operations(place).map_err(staging::fault)?;
        Ok(Plan { operations, device: place.device, direction, piece: Transfer { to, from, length: own.length } })
    }
}

impl Way {
    /// The right it takes.
    pub(crate) fn access(self) -> Access {
        match self {
            Way::In => Access::REMOTE_WRITE,
            Way::Out => Access::REMOTE_READ,
        }
    }
}

/// Where in a device's allocation a piece is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inside {
    /// The allocation.
    pub allocation: Allocation,
    /// Where in it the piece begins.
    pub offset: u64,
}

/// A registered region of a device's memory, as a peer of the same machine has to know it to reach it by itself.
#[derive(Debug)]
pub struct DeviceGrant {
    /// Opens the allocation that the region is in: all of that.
    pub handle: Handle,
    /// Where in the allocation the region begins.
    pub offset: u64,
    /// Bytes of the region.
    pub length: u64,
    /// What peers call its first byte.
    pub base: u64,
    /// What peers may do.
    pub access: Access,
}

#[cfg(test)]
mod tests {
    use weft_core::memory::{LocalKey, Memory};

    use super::*;
    use crate::device::{Kind, emulated, operations};
    use crate::{Addressing, Buffer, HostMemory};

    const HERE: Place = Place::new(Kind::Emulated, 0);
    const THERE: Place = Place::new(Kind::Emulated, 1);

    fn on(place: Place, bytes: &[u8]) -> MemoryRegion {
        let region = MemoryRegion::alloc_device(place, bytes.len()).unwrap();
        region.write(0, bytes).unwrap();
        region
    }

    fn attached(memory: &mut HostMemory, region: &MemoryRegion) -> (LocalKey, Granted) {
        let key = memory.attach(Buffer::from_region(region, 0, region.length()).unwrap()).unwrap();
        (key, memory.local(key, 0, region.length() as u64).unwrap())
    }

    #[test]
    fn all_pairs_of_places_and_both_ways() {
        let bytes: Vec<u8> = (0..100_000).map(|i| i as u8).collect();
        for place in [Place::HOST, HERE, THERE] {
            let mut memory = HostMemory::new();
            let other = on(THERE, &bytes);
            let own = MemoryRegion::alloc_device(place, 50_000).unwrap();
            let (key, granted) = attached(&mut memory, &own);
            memory.copy_from_foreign(granted, &other, 1000).unwrap();
            assert!(own.to_vec(0, 50_000).unwrap() == bytes[1000..51_000]);
            let copying = memory.start_to_foreign(granted, Arc::new(other.clone()), 0).unwrap();
            while !memory.is_copied(&copying).unwrap() {
                std::thread::yield_now();
            }
            assert!(memory.is_copied(&copying).is_err(), "a done one is forgotten");
            assert!(other.to_vec(0, 50_000).unwrap() == bytes[1000..51_000]);
            assert_eq!(memory.copy_to_foreign(granted, &other, 50_001), Err(Fault::OutOfBounds));
            // Memory is not given back while a copy uses it.
            let copying = memory.start_from_foreign(granted, Arc::new(on(THERE, &[9; 50_000])), 0).unwrap();
            drop(memory.take(key));
            assert!(own.to_vec(0, 50_000).unwrap() == [9; 50_000]);
            assert!(memory.is_copied(&copying).unwrap());
        }
    }

    #[test]
    fn what_was_gathered_or_fetched_is_not_overtaken() {
        let mut memory = HostMemory::new();
        let own = on(HERE, &[1; 4096]);
        let (_, granted) = attached(&mut memory, &own);
        let other = on(HERE, &[7; 4096]);
        memory.write(granted, &[2; 4096]).unwrap();
        memory.copy_to_foreign(granted, &other, 0).unwrap();
        assert_eq!(other.to_vec(0, 4096).unwrap(), [2; 4096]);
        let before = memory.crc32c(0, granted).unwrap();
        other.write(0, &[3; 4096]).unwrap();
        memory.write(granted, &[4; 4096]).unwrap();
        memory.copy_from_foreign(granted, &other, 0).unwrap();
        memory.settle().unwrap();
        assert_eq!(own.to_vec(0, 4096).unwrap(), [3; 4096]);
        assert_ne!(memory.crc32c(0, granted).unwrap(), before);
    }

    #[test]
    fn host_memory_is_known_from_the_first_long_copy_until_its_pages_go() {
        let length = crate::limits::KNOWN_MIN_BYTES as usize;
        let mut memory = HostMemory::new();
        let other = on(HERE, &vec![7; length]);
        let own = MemoryRegion::alloc_shared(length).unwrap();
        let pointer = own.as_ptr();
        let is_known = |pointer: *mut u8| emulated::is_host_registered(pointer, length);
        // Another test may have got the place, and made it known, as soon as it was free.
        let is_forgotten = |pointer: *mut u8| {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
            // SAFETY: new memory where nothing is, of which nobody else knows.
            let place = unsafe { libc::mmap(pointer.cast(), length, libc::PROT_NONE, flags, -1, 0) };
            let forgotten = place != pointer.cast() || !is_known(pointer);
            if place != libc::MAP_FAILED {
                // SAFETY: as above.
                unsafe { libc::munmap(place, length) };
            }
            forgotten
        };
        let (key, all) = attached(&mut memory, &own);
        let short = memory.local(key, 0, length as u64 - 1).unwrap();
        memory.copy_from_foreign(short, &other, 0).unwrap();
        assert!(!is_known(pointer), "that does not pay");
        memory.copy_from_foreign(all, &other, 0).unwrap();
        assert!(is_known(pointer));
        // Its pages are replaced: the device must not go on with the old ones.
        let shareable = own.share(true).unwrap();
        let mapping = crate::Mapping::open(std::os::fd::AsFd::as_fd(&shareable.descriptor), length, true).unwrap();
        memory.finish_copies(&own);
        own.revoke().unwrap();
        assert!(!is_known(pointer));
        memory.copy_to_foreign(all, &other, 0).unwrap();
        assert!(is_known(pointer), "the new ones");
        // A peer's memory, both ways.
        let (_, device) = attached(&mut memory, &other);
        let theirs = mapping.as_ptr();
        mapping.write_bytes(0, &vec![3; length]).unwrap();
        mapping.copy_to(0, &mut memory, device).unwrap();
        assert!(is_known(theirs) && other.to_vec(0, length).unwrap() == vec![3; length]);
        other.write(0, &vec![4; length]).unwrap();
        mapping.copy_from(0, &memory, device).unwrap();
        let mut found = vec![0; length];
        mapping.read_bytes(0, &mut found).unwrap();
        assert!(found == vec![4; length] && own.to_vec(0, length).unwrap() == vec![7; length]);
        drop(mapping);
        assert!(is_forgotten(theirs));
        drop(memory.take(key));
        drop(own);
        assert!(is_forgotten(pointer));
    }

    #[test]
    fn rights_and_kinds_are_checked() {
        let mut memory = HostMemory::new();
        let other = on(HERE, &[7; 64]);
        let own = MemoryRegion::alloc_zeroed(64).unwrap();
        let key = memory.register(&own, Access::REMOTE_READ, Addressing::Offset).unwrap().key;
        let granted = memory.remote(key, 0, 64, Access::REMOTE_READ).unwrap();
        assert_eq!(memory.copy_from_foreign(granted, &other, 0), Err(Fault::Forbidden));
        assert_eq!(memory.copy_to_foreign(granted, &own, 0), Err(Fault::NotSupported), "it is the host's");
        assert_eq!(memory.inside(granted, Access::REMOTE_READ), Ok(None));
        assert!(own.export().is_err());
    }

    #[test]
    fn exported_memory_is_the_same_memory() {
        let mut memory = HostMemory::new();
        let own = on(HERE, &[5; 10_000]);
        let key = memory.register(&own, Access::REMOTE, Addressing::Offset).unwrap().key;
        let granted = memory.remote(key, 500, 100, Access::REMOTE_READ).unwrap();
        let inside = memory.inside(granted, Access::REMOTE_READ).unwrap().unwrap();
        assert_eq!((inside.allocation.base, inside.offset), (own.as_ptr() as u64, 500));
        let handle = memory.export(granted, Access::REMOTE_READ).unwrap();
        assert_eq!(handle.id, inside.allocation.id);
        let imports = emulated::statistics().imports;
        let base = operations(Kind::Emulated).unwrap().import(&handle).unwrap();
        assert!(emulated::statistics().imports >= 1, "{imports}");
        // SAFETY: it is released below.
        let seen = unsafe { MemoryRegion::from_device_raw(HERE, base as *mut u8, 10_000, true).unwrap() };
        seen.write(500, &[6; 100]).unwrap();
        assert_eq!(own.to_vec(499, 3).unwrap(), [5, 6, 6]);
        drop(seen);
        // SAFETY: nobody uses it.
        unsafe { operations(Kind::Emulated).unwrap().release(base).unwrap() };
    }
}
