//! Whether the process can have memory of devices at all: asked with every operation, so answered from memory.
//!
//! A process without a device's library has none. The loader counts the objects that it has ever loaded; while that count
//! is what it was when no such library was there, none is there now.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::{Kind, in_use};

/// Objects that had been loaded when no library of a device was among them. 0: never asked.
static WITHOUT: AtomicU64 = AtomicU64::new(0);
/// Memory of an emulated device was made here.
static EMULATED: AtomicBool = AtomicBool::new(false);

/// Emulated memory is about to be made.
pub(super) fn emulated() {
    EMULATED.store(true, Ordering::Release);
}

/// False: no pointer of this process is of a device.
pub(super) fn may_have_devices() -> bool {
    if EMULATED.load(Ordering::Acquire) {
        return true;
    }
    // Before the look, so that what is loaded meanwhile is looked for the next time.
    let loaded = loaded();
    if loaded != 0 && WITHOUT.load(Ordering::Acquire) == loaded {
        return false;
    }
    let found = [Kind::Cuda, Kind::Rocm, Kind::LevelZero].into_iter().any(|kind| in_use(kind).is_some());
    if !found {
        WITHOUT.store(loaded, Ordering::Release);
    }
    found
}

/// How many objects the loader has ever loaded; 0: it does not say.
fn loaded() -> u64 {
    unsafe extern "C" fn first(info: *mut libc::dl_phdr_info, size: usize, count: *mut c_void) -> libc::c_int {
        // Older loaders give a shorter structure, without the count.
        if size >= size_of::<libc::dl_phdr_info>() {
            // SAFETY: the loader gives a structure of that size, and `count` is the number below.
            unsafe { *count.cast::<u64>() = (*info).dlpi_adds };
        }
        1
    }
    let mut count = 0u64;
    // SAFETY: `first` is called before this returns, with a pointer to the number, and ends the walk.
    unsafe { libc::dl_iterate_phdr(Some(first), (&raw mut count).cast()) };
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryRegion;
    use crate::device::Place;

    #[test]
    fn the_loader_counts() {
        assert!(loaded() > 0);
        // Other tests load libraries meanwhile, but not all the time.
        assert!((0..100_000).any(|_| loaded() == loaded()));
    }

    #[test]
    fn places_are_found_wherever_they_are() {
        let host = [0u8; 16];
        assert_eq!(Place::of(host.as_ptr()), Place::HOST);
        let place = Place::new(Kind::Emulated, 1);
        let memory = MemoryRegion::alloc_device(place, 64).unwrap();
        assert_eq!(Place::of(memory.as_ptr()), place);
        assert_eq!(Place::of(host.as_ptr()), Place::HOST);
        assert_eq!(Place::of(std::ptr::null::<u8>()), Place::HOST);
    }
}
