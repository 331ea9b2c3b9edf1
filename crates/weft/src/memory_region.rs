//! Memory that peers may reach.

use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use weft_core::memory::Access;
use weft_mem::device::Place;
use weft_mem::{Addressing, Buffer, Region};

use crate::counter::Counter;
use crate::domain::Domain;
use crate::error::{Error, Result};

/// Registered memory: peers reach it by its key, this process by copies and atomic loads and stores
/// ([`weft_mem::MemoryRegion`], which this dereferences to).
///
/// When the last clone is dropped the registration ends: after that no peer reads or writes it, whatever it sent before.
/// The memory itself lives on while a [`Buffer`] is a part of it.
///
/// It can be the memory of a device ([`Registrable::on`]): copies go through the device's operations, atomic loads and
/// stores fail with [`Fault::NotSupported`](crate::Fault), and peers reach it like any other. Atomics of peers on it are
/// atomic among accesses through this domain, not to what runs on the device.
///
/// ```
/// use weft::Access;
/// # let domain = weft::Domain::udp("127.0.0.1:0")?;
/// let region = domain.register(4096, Access::REMOTE_READ | Access::REMOTE_WRITE)?;
/// region.write(0, b"for all to read")?;
/// let remote = region.remote(); // send this to a peer
/// assert_eq!(remote.at(8).address, remote.address + 8);
/// # Ok::<(), weft::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct MemoryRegion {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    memory: weft_mem::MemoryRegion,
    region: Region,
    /// What the engine counts with: kept open. Never locked by who holds the NIC.
    counters: Mutex<[Option<Counter>; 2]>,
    domain: Domain,
}

/// What a peer has to know of memory to reach it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteAddress {
    /// Where.
    pub address: u64,
    /// The key of its registration.
    pub key: u64,
}

impl RemoteAddress {
    /// This many bytes further in the same region.
    #[must_use]
    pub fn at(self, offset: u64) -> RemoteAddress {
        RemoteAddress { address: self.address.wrapping_add(offset), key: self.key }
    }
}

/// What can be registered.
#[derive(Debug)]
pub struct Registrable {
    memory: Option<weft_mem::MemoryRegion>,
    addressing: Addressing,
    key: Option<u64>,
}

impl Registrable {
    /// Chooses what peers call the first byte; 0 unless chosen.
    #[must_use]
    pub fn addressed(self, addressing: Addressing) -> Registrable {
        Registrable { addressing, ..self }
    }

    /// Chooses the key, which may be any number; unless chosen it is one that nobody can guess. Refused with
    /// [`RegisterError::KeyInUse`](crate::RegisterError::KeyInUse) while another region of the domain has it. Peers that
    /// were told the key of a region that is gone reach the one that has it now.
    ///
    /// ```
    /// use weft::{Access, Registrable};
    /// # let domain = weft::Domain::udp("127.0.0.1:0")?;
    /// let region = domain.register(Registrable::from(4096).with_key(7), Access::REMOTE)?;
    /// assert_eq!(region.key(), 7);
    /// assert!(domain.register(Registrable::from(64).with_key(7), Access::REMOTE).is_err());
    /// # Ok::<(), weft::Error>(())
    /// ```
    #[must_use]
    pub fn with_key(self, key: u64) -> Registrable {
        Registrable { key: Some(key), ..self }
    }

    /// So many bytes of zero in the memory of a device. Memory that is there already is registered as a
    /// [`raw::Memory`](crate::raw::Memory), which names its place or has it found out.
    ///
    /// ```
    /// use weft::device::{Kind, Place};
    /// use weft::{Access, Registrable};
    /// # let domain = weft::Domain::udp("127.0.0.1:0")?;
    /// let place = Place::new(Kind::Emulated, 0);
    /// let region = domain.register(Registrable::on(place, 4096)?, Access::REMOTE)?;
    /// assert_eq!(region.place(), place);
    /// region.write(0, b"copied to the device")?;
    /// assert!(region.load_u64(0).is_err(), "the processor cannot look there");
    /// # Ok::<(), weft::Error>(())
    /// ```
    pub fn on(place: Place, length: usize) -> Result<Registrable> {
        Ok(weft_mem::MemoryRegion::alloc_device(place, length)?.into())
    }
}

/// So many bytes of zero, of memory that peers on the same machine reach without the help of this process.
impl From<usize> for Registrable {
    fn from(length: usize) -> Registrable {
        let shared = weft_mem::MemoryRegion::alloc_shared(length).ok();
        let memory = shared.or_else(|| weft_mem::MemoryRegion::alloc_zeroed(length));
        Registrable { memory, addressing: Addressing::Offset, key: None }
    }
}

impl From<Vec<u8>> for Registrable {
    fn from(bytes: Vec<u8>) -> Registrable {
        weft_mem::MemoryRegion::from_vec(bytes).into()
    }
}

impl From<weft_mem::MemoryRegion> for Registrable {
    fn from(memory: weft_mem::MemoryRegion) -> Registrable {
        Registrable { memory: Some(memory), addressing: Addressing::Offset, key: None }
    }
}

impl MemoryRegion {
    pub(crate) fn register(domain: &Domain, memory: Registrable, access: Access) -> Result<MemoryRegion> {
        let out_of_memory = || Error::system("allocate the region")(std::io::ErrorKind::OutOfMemory.into());
        let bytes = memory.memory.ok_or_else(out_of_memory)?;
        let mut core = domain.nic().lock();
        let tables = core.engine.delivery_mut().memory_mut();
        let region = match memory.key {
            Some(key) => tables.register_as(key, &bytes, access, memory.addressing)?,
            None => tables.register(&bytes, access, memory.addressing)?,
        };
        drop(core);
        bytes.begin_sharing();
        Ok(MemoryRegion {
            inner: Arc::new(Inner { memory: bytes, region, counters: Mutex::default(), domain: domain.clone() }),
        })
    }

    /// The key that peers must name.
    #[must_use]
    pub fn key(&self) -> u64 {
        self.inner.region.key
    }

    /// What peers call its first byte.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.inner.region.address
    }

    /// What peers may do.
    #[must_use]
    pub fn access(&self) -> Access {
        self.inner.region.access
    }

    /// What a peer has to know to reach it.
    #[must_use]
    pub fn remote(&self) -> RemoteAddress {
        RemoteAddress { address: self.address(), key: self.key() }
    }

    /// A part of it as the buffer of an operation. It stays readable and writable meanwhile.
    pub fn buffer(&self, offset: usize, length: usize) -> Result<Buffer> {
        Ok(Buffer::from_region(&self.inner.memory, offset, length)?)
    }

    /// Counts what peers do to it from now on: `writes` each write, and each atomic that changes it; `reads` each read, and
    /// each atomic that fetches. Two times `None` ends it. Peers of the same machine then reach it through this NIC only.
    ///
    /// A write or atomic is counted when all its bytes are there; a read over the network when it is first asked for. What
    /// is under way meanwhile may be counted or not.
    ///
    /// ```
    /// use std::time::Duration;
    /// use weft::Access;
    /// # let domain = weft::Domain::udp("127.0.0.1:0")?;
    /// # let queue = domain.completion_queue(16);
    /// # let endpoint = domain.endpoint(&queue)?;
    /// # let myself = domain.addresses().insert(endpoint.address())?;
    /// let region = domain.register(4096, Access::REMOTE)?;
    /// let written = domain.counter();
    /// region.count(Some(written.clone()), None)?;
    /// endpoint.write(myself, region.remote(), b"whoever it was".to_vec())?;
    /// written.wait(1, Some(Duration::from_secs(10)))?;
    /// assert_eq!(region.to_vec(0, 14)?, b"whoever it was");
    /// # Ok::<(), weft::Error>(())
    /// ```
    pub fn count(&self, writes: Option<Counter>, reads: Option<Counter>) -> Result<()> {
        let foreign = |counter: &Counter| !counter.domain().is_same(&self.inner.domain);
        if writes.iter().chain(&reads).any(foreign) {
            return Err(Error::OtherDomain);
        }
        let mut counters = self.inner.counters.lock().unwrap_or_else(PoisonError::into_inner);
        let mut guard = self.inner.domain.nic().lock();
        let core = &mut *guard;
        let (key, id) = (self.key(), |counter: &Option<Counter>| counter.as_ref().map(Counter::id));
        core.engine.delivery_mut().count_region(key, id(&writes), id(&reads));
        if (writes.is_some() || reads.is_some())
            && let Some(local) = &mut core.local
        {
            // Who has it mapped asks anew, and is refused.
            local.revoke(core.engine.delivery_mut(), key);
        }
        drop(guard);
        let before = std::mem::replace(&mut *counters, [writes, reads]);
        drop(counters);
        // Closing a counter takes the lock that was held.
        drop(before);
        Ok(())
    }

    /// The domain it is registered with.
    #[must_use]
    pub fn domain(&self) -> &Domain {
        &self.inner.domain
    }
}

impl Deref for MemoryRegion {
    type Target = weft_mem::MemoryRegion;
    fn deref(&self) -> &weft_mem::MemoryRegion {
        &self.inner.memory
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Every access of a peer is made under this lock, and looks the key up anew: when it is ours and the key is gone,
        // there are no more. A key that a peer has invalidated is gone already.
        let mut guard = self.domain.nic().lock();
        let core = &mut *guard;
        let counters = self.counters.get_mut().unwrap_or_else(PoisonError::into_inner);
        if counters.iter().any(Option::is_some) {
            core.engine.delivery_mut().count_region(self.region.key, None, None);
        }
        let _ = core.engine.delivery_mut().memory_mut().end(&self.region);
        // Peers on this machine may have it mapped. Honest ones let go; whatever the others do, they are left with a copy
        // if the memory has another use.
        if let Some(local) = &mut core.local {
            local.revoke(core.engine.delivery_mut(), self.region.key);
        }
        core.engine.delivery_mut().memory_mut().finish_copies(&self.memory);
        match self.memory.end_sharing() {
            Ok(taken) => core.local.iter_mut().for_each(|local| local.count_revoked(taken)),
            // The system has no memory for the copy, and the promise that nobody reaches the region cannot be kept:
            // this ends as any allocation that fails.
            Err(_) => std::process::abort(),
        }
    }
}
