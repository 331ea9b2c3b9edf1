//! Host memory that devices know, so that they copy from and to it without a copy of the driver's.
//!
//! Only memory that consists of whole pages, all of them the owner's, is made known: a driver does so by pages, and
//! refuses copies that begin in memory which it knows and end in other memory. Memory that the caller lends is for the
//! caller to make known.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::device::{self, Kind};
use crate::limits::KNOWN_MIN_BYTES;

/// To which kinds of device some memory was made known. Its owner calls [`Known::forget`] before the memory goes.
#[derive(Debug, Default)]
pub struct Known {
    /// Kinds that were asked, and whether they took it.
    kinds: Mutex<Vec<(Kind, bool)>>,
}

impl Known {
    /// Known to none.
    #[must_use]
    pub const fn new() -> Known {
        Known { kinds: Mutex::new(Vec::new()) }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(Kind, bool)>> {
        // A thread that panicked while it held the lock left whole entries behind.
        self.kinds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a copy is so long that its host memory should be made known. That costs about as much as to copy all of the
    /// memory once.
    #[must_use]
    pub fn pays(length: u64) -> bool {
        length >= KNOWN_MIN_BYTES
    }

    /// Makes memory known to a kind of device, once. False: it cannot be, which is not tried again; copies are slower then.
    ///
    /// # Safety
    /// Always the same memory, whole pages that belong to the caller. It stays mapped until [`Known::forget`] has
    /// returned.
    pub unsafe fn make(&self, kind: Kind, pointer: *mut u8, length: usize) -> bool {
        let mut kinds = self.lock();
        if let Some((_, taken)) = kinds.iter().find(|(known, _)| *known == kind) {
            return *taken;
        }
        let taken = device::operations(kind).is_ok_and(|operations| {
            operations.capabilities().register_host
                // SAFETY: as the caller promised.
                && unsafe { operations.register_host(pointer, length) }.is_ok()
        });
        kinds.push((kind, taken));
        taken
    }

    /// Whether any device knows the memory.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.lock().iter().any(|(_, taken)| *taken)
    }

    /// Makes all devices forget the memory.
    ///
    /// # Safety
    /// It is the memory that was made known, and no copy that this process started uses it.
    pub unsafe fn forget(&self, pointer: *mut u8) {
        // SAFETY: as the caller promised.
        unsafe { self.without(pointer, || ()) }
    }

    /// The same, and does something before any device can know it again.
    ///
    /// # Safety
    /// As [`Known::forget`].
    pub unsafe fn without<T>(&self, pointer: *mut u8, act: impl FnOnce() -> T) -> T {
        let mut kinds = self.lock();
        for (kind, taken) in kinds.drain(..) {
            if taken && let Ok(operations) = device::operations(kind) {
                // A device that fails here keeps the pages, which then are nobody's.
                // SAFETY: it was registered with this pointer; as the caller promised nothing uses it.
                let _ = unsafe { operations.unregister_host(pointer) };
            }
        }
        act()
    }
}
