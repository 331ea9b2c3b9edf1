//! Registrations that are used again.

use weft_core::memory::Access;
use weft_mem::MemoryRegion as Memory;
use weft_mem::cache::{RegistrationCache, Subject};

use crate::domain::Domain;
use crate::error::Result;
use crate::memory_region::MemoryRegion;

/// Registers memory of the caller, and gives the same registration again as long as the memory is what it was: for
/// programs and faces that meet the same buffers over and over.
///
/// Memory of a device is known by its allocation, asked for at every call: where it was freed and other memory has its
/// address, the old registration ends and a new one is made. Host memory is known by its [`Memory`], which keeps it.
#[derive(Debug)]
pub struct Registrations {
    domain: Domain,
    access: Access,
    cache: RegistrationCache<MemoryRegion>,
    /// Always empty between calls: kept for its room.
    removed: Vec<MemoryRegion>,
}

impl Registrations {
    /// None yet; all will permit `access`, and peers call their first byte as they are called here.
    #[must_use]
    pub fn new(domain: &Domain, access: Access) -> Registrations {
        Registrations { domain: domain.clone(), access, cache: RegistrationCache::default(), removed: Vec::new() }
    }

    /// The registration of this memory, made if there is none.
    pub fn register(&mut self, memory: &Memory) -> Result<MemoryRegion> {
        let (address, length) = (memory.as_ptr() as u64, memory.length() as u64);
        let allocation = memory.allocation();
        let subject = allocation.as_ref().map_or(Subject::Region(memory), Subject::Device);
        let found = self.cache.find(subject, address, length, &mut self.removed).cloned();
        let region = match found {
            // A longer registration of the same memory names other bytes with its first address.
            Some(region) if region.as_ptr() == memory.as_ptr() && region.length() >= memory.length() => region,
            _ => {
                let region = self.domain.register(memory.clone(), self.access)?;
                self.cache.insert(subject, address, length, region.clone(), &mut self.removed);
                region
            }
        };
        // What is not in use elsewhere ends here.
        self.removed.clear();
        Ok(region)
    }

    /// The memory is about to go: what is registered of it ends, unless it is in use elsewhere.
    pub fn forget(&mut self, memory: &Memory) {
        let (address, length) = (memory.as_ptr() as u64, memory.length() as u64);
        self.cache.forget(memory.place(), address, length, &mut self.removed);
        self.removed.clear();
    }

    /// Registrations that are kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.cache.len()
    }

    /// Whether none is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.cache.is_empty()
    }
}
