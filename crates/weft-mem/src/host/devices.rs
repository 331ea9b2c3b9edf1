//! Memory of devices among that of a node: staged, copied between processes, and settled before anybody is told.

use super::*;

impl HostMemory {
    /// Where in a device's allocation a piece is; `None`: it is the host's.
    pub fn inside(&self, of: Granted, access: Access) -> Result<Option<Inside>, Fault> {
        let found = self.resolve(of, access)?;
        if found.place.is_host() {
            return Ok(None);
        }
        let address = found.pointer as u64;
        let operations = crate::staging::operations(found.place).map_err(crate::staging::fault)?;
        let allocation = operations.classify(address).ok_or(Fault::Failed)?;
        Ok(Some(Inside { allocation, offset: address - allocation.base }))
    }

    /// A handle by which another process can open the device allocation that a piece is in. It opens all of that.
    pub fn export(&self, of: Granted, access: Access) -> Result<Handle, DeviceError> {
        let found = self.resolve(of, access).map_err(|_| DeviceError::BadAddress)?;
        crate::staging::operations(found.place)?.export(found.pointer as u64)
    }

    /// Copies into a piece from other device memory, `offset` bytes into that. Done when it returns.
    pub fn copy_from_foreign(&mut self, to: Granted, from: &dyn Foreign, offset: u64) -> Result<(), Fault> {
        self.copy_foreign(to, from, offset, Way::In)
    }

    /// Copies a piece into other device memory, `offset` bytes into that. Done when it returns.
    pub fn copy_to_foreign(&mut self, from: Granted, to: &dyn Foreign, offset: u64) -> Result<(), Fault> {
        self.copy_foreign(from, to, offset, Way::Out)
    }

    pub(super) fn copy_foreign(
        &mut self,
        of: Granted,
        foreign: &dyn Foreign,
        offset: u64,
        way: Way,
    ) -> Result<(), Fault> {
        let plan = self.plan(of, foreign, offset, way)?;
        if plan.piece.length == 0 {
            return Ok(());
        }
        // SAFETY: `plan` resolved our side; the other lives and can be used as long as it is borrowed.
        let copied = unsafe { plan.operations.copy(plan.device, plan.direction, &[plan.piece]) };
        copied.map_err(crate::staging::fault)
    }

    /// As [`HostMemory::copy_from_foreign`], but goes on after it returned, until [`HostMemory::is_copied`].
    pub fn start_from_foreign<F: Foreign + 'static>(
        &mut self,
        to: Granted,
        from: Arc<F>,
        offset: u64,
    ) -> Result<Copying, Fault> {
        let plan = self.plan(to, &*from, offset, Way::In)?;
        self.start(to, plan, from)
    }

    /// As [`HostMemory::copy_to_foreign`], but goes on after it returned, until [`HostMemory::is_copied`].
    pub fn start_to_foreign<F: Foreign + 'static>(
        &mut self,
        from: Granted,
        to: Arc<F>,
        offset: u64,
    ) -> Result<Copying, Fault> {
        let plan = self.plan(from, &*to, offset, Way::Out)?;
        self.start(from, plan, to)
    }

    /// Whether a copy is done; a done one is forgotten. Each that was started has to be asked about until it is.
    pub fn is_copied(&mut self, copying: &Copying) -> Result<bool, Fault> {
        self.copies.is_done(copying).map_err(crate::staging::fault)
    }

    pub(super) fn start(
        &mut self,
        of: Granted,
        plan: Plan,
        foreign: Arc<dyn Any + Send + Sync>,
    ) -> Result<Copying, Fault> {
        self.uses_devices = true;
        // SAFETY: `plan` resolved our side, and neither `take` nor `deregister` lets go of it before the copy is done.
        unsafe { self.copies.start(of, plan, foreign) }.map_err(crate::staging::fault)
    }

    pub(super) fn plan(&mut self, of: Granted, foreign: &dyn Foreign, offset: u64, way: Way) -> Result<Plan, Fault> {
        let found = self.resolve(of, way.access())?;
        let own = found.located(of.length as usize);
        let plan = Plan::new(own, foreign, offset, way)?;
        if !found.place.is_host() {
            self.staging_mut().step_aside(&own, way == Way::In)?;
        } else if Known::pays(of.length)
            && let Some(region) = self.region_of(of)
        {
            region.make_known(plan.operations.kind());
        }
        Ok(plan)
    }

    /// The region that a granted piece is of, if it is of one.
    pub(super) fn region_of(&self, of: Granted) -> Option<&MemoryRegion> {
        if of.slot & REGION != 0 {
            return self.keys.at(of.slot & !REGION, of.generation).ok().map(|entry| &entry.memory);
        }
        self.locals.get(of.slot as usize)?.buffer.as_ref()?.region()
    }

    /// Waits for the copies that devices do from and to host memory, if some know this one: its pages may be replaced.
    pub fn finish_copies(&mut self, of: &MemoryRegion) {
        if self.uses_devices && of.known().is_known() {
            self.copies.finish();
        }
    }

    /// After something came: begins to bring what was written to where it belongs, and makes those who read device
    /// memory from now on see it anew.
    #[inline]
    pub fn advance(&mut self) {
        if self.uses_devices {
            let staging = self.staging_mut();
            staging.forget_passing();
            staging.advance();
        }
    }

    /// Before anybody is told, here or at a peer: waits until everything that was written is where it belongs. An error
    /// is that of a device, and stays: bytes may be lost of operations that were thought to be done.
    #[inline]
    pub fn settle(&mut self) -> Result<(), Fault> {
        if self.uses_devices { self.staging_mut().settle() } else { Ok(()) }
    }

    /// Whether memory of a device was ever attached or registered.
    #[must_use]
    #[inline]
    pub fn uses_devices(&self) -> bool {
        self.uses_devices
    }

    /// What went through the host on its way from or to devices.
    #[must_use]
    pub fn staging_counters(&self) -> StagingCounters {
        self.staging().counters
    }

    /// A thread that panicked while it held the lock left whole entries behind.
    pub(super) fn staging(&self) -> MutexGuard<'_, Staging> {
        self.staging.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn staging_mut(&mut self) -> &mut Staging {
        self.staging.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// The checksum of device memory, from the window.
    #[cold]
    pub(super) fn crc32c_of_device(
        &self,
        mut crc: u32,
        of: Granted,
        found: Resolved,
        summed: usize,
    ) -> Result<u32, Fault> {
        let length = of.length as usize;
        let lasting = of.slot & REGION == 0;
        let mut done = 0;
        while done < length {
            let part = (length - done).min(STAGE_OUT_AHEAD_BYTES);
            let name = Granted { offset: of.offset + done as u64, length: part as u64, ..of };
            let from = Located { address: found.pointer as u64 + done as u64, ..found.located(part) };
            let mut staging = self.staging();
            // SAFETY: `resolve` checked that `available` bytes are there; neither `take` nor `deregister` lets go of
            // memory that a copy is under way for.
            let fetched = unsafe { staging.fetch(name, from, found.available - done, lasting) };
            // What is not mapped is the peer's mistake, and no device's.
            let pointer = fetched.map_err(|fault| if found.place.is_guarded() { Fault::OutOfBounds } else { fault })?;
            // SAFETY: `fetch` gives as many bytes, which stay while the lock is held.
            crc = unsafe { crc::crc32c_raw(crc, pointer, part.min(summed.saturating_sub(done))) };
            done += part;
        }
        Ok(crc)
    }

    /// An atomic on device memory, done on the host.
    #[cold]
    pub(super) fn atomic_of_device(
        &mut self,
        found: Resolved,
        bytes: usize,
        operation: AtomicOperation,
        datatype: Datatype,
        values: Values<'_>,
    ) -> Result<(), Fault> {
        if !found.pointer.addr().is_multiple_of(datatype.alignment()) {
            return Err(Fault::Misaligned);
        }
        let staging = self.staging_mut();
        staging.counters.atomics += 1;
        let mut elements = vec![0u128; bytes.div_ceil(size_of::<u128>())];
        let pointer = elements.as_mut_ptr().cast::<u8>();
        // SAFETY: `resolve` checked that this many bytes are there and may be written; the vector has room for them, is
        // aligned for every element, and nobody else sees it.
        unsafe {
            staging.read(found.located(bytes), pointer)?;
            atomic::update(pointer, bytes, operation, datatype, values)?;
            staging.write(found.located(bytes), pointer)?;
        }
        staging.settle()
    }
}
