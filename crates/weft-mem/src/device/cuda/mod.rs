//! Memory of NVIDIA devices, through the driver alone (`libcuda.so.1`, or what `WEFT_CUDA_LIBRARY` names).
//!
//! Memory of `cuMemAlloc` goes to other processes by a handle, that of `cuMemCreate` by a descriptor if its maker asked for
//! one; managed memory, that of `cuMemAllocAsync` and what came from another process do not go. The driver refuses to open
//! a handle in the process that made it. It may map a whole block of 2 MiB for a handle, and the peer's device then
//! reaches what lies beside a smaller allocation: ours are whole blocks.
//!
//! A device's context is taken when the device is first used, not before: it costs a tenth of a second and memory of the
//! device. Read [`Cuda`], then `lane.rs` for copies and `driver.rs` for how the driver is called.

use std::collections::HashMap;
use std::ffi::c_void;
use std::fmt;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::{Mutex, OnceLock};

use super::library::{Library, Vendor};
use super::pending::{Pending, lock, too_many};
use super::{
    Absent, Allocation, Capabilities, DeviceError, Direction, Event, HANDLE_BYTES, Handle, Kind, Operations, Place,
    Transfer,
};
use crate::limits::{DEVICE_BLOCK_BYTES, DEVICE_IMPORTS_MAX};

mod driver;
mod lane;

use driver::{Attributes, Driver, EventHandle, call};
use lane::Ready;

/// The kind, when it is first asked for.
pub(super) static CUDA: Vendor<Cuda> = Vendor::new("WEFT_CUDA_LIBRARY", "libcuda.so.1", Cuda::load);

/// The driver and what was made of its devices.
pub(super) struct Cuda {
    driver: Driver,
    devices: Vec<Device>,
    pending: Pending<(u32, EventHandle)>,
    imports: Mutex<HashMap<u64, Import>>,
}

#[derive(Default)]
struct Device {
    ready: OnceLock<Ready>,
    making: Mutex<()>,
}

/// A mapping of another process's allocation.
struct Import {
    device: u32,
    /// How often it was opened: the driver gives the same address each time.
    uses: usize,
    /// Bytes of an allocation that came as a descriptor; `None`: it came as a handle.
    mapped: Option<usize>,
}

impl Cuda {
    fn load(library: &Library) -> Result<Cuda, Absent> {
        let driver = Driver::load(library)?;
        if (0..driver.devices).any(|device| driver.device_attribute(device, driver::DEVICE_UNIFIED_ADDRESSING) == 0) {
            return Err(Absent(
                "a CUDA device has addresses of its own: a 64-bit one of 2011 or later is needed".into(),
            ));
        }
        let devices = (0..driver.devices).map(|_| Device::default()).collect();
        Ok(Cuda { driver, devices, pending: Pending::new(), imports: Mutex::new(HashMap::new()) })
    }

    /// A device with its context and streams, made now if it is used for the first time. A failure is not kept: the
    /// device may have more memory the next time.
    fn ready(&self, device: u32) -> Result<&Ready, DeviceError> {
        let slot = self.devices.get(device as usize).ok_or(DeviceError::BadAddress)?;
        if let Some(ready) = slot.ready.get() {
            return Ok(ready);
        }
        let _making = lock(&slot.making);
        if let Some(ready) = slot.ready.get() {
            return Ok(ready);
        }
        let ready = Ready::new(&self.driver, device)?;
        Ok(slot.ready.get_or_init(|| ready))
    }

    /// Enters some context, for calls that are about all devices: one that is in use before one that is not.
    fn enter_any(&self) -> Result<driver::Entered<'_>, DeviceError> {
        let used = self.devices.iter().find_map(|device| device.ready.get()).map(|ready| ready.context);
        match used.or_else(|| self.driver.current()) {
            Some(context) => self.driver.enter(context),
            None => self.driver.enter(self.ready(0)?.context),
        }
    }

    /// What the driver knows of device memory; `None`: it is not a device's.
    fn device_memory(&self, address: u64) -> Option<Attributes> {
        let known = self.driver.attributes(address);
        (known.memory == driver::MEMORY_DEVICE && known.device < self.driver.devices).then_some(known)
    }

    /// Opens a handle of `cuIpcGetMemHandle`.
    fn open(&self, handle: &Handle) -> Result<u64, DeviceError> {
        // The number of a device can differ between processes (`CUDA_VISIBLE_DEVICES`). Any device that reaches the
        // memory will do; but a peer must not make us take contexts of devices that nobody uses.
        let named = (handle.place.device < self.driver.devices).then_some(handle.place.device);
        let used =
            (0..).zip(&self.devices).filter(|(_, device)| device.ready.get().is_some()).map(|(number, _)| number);
        let mut imports = lock(&self.imports);
        for device in named.into_iter().chain(used.filter(|device| Some(*device) != named)) {
            let _entered = self.driver.enter(self.ready(device)?.context)?;
            let mut base = 0;
            let bytes = driver::IpcHandle(handle.bytes);
            // SAFETY: it writes one address to where it is told. The driver checks what the handle says with the kernel.
            let opened = unsafe {
                call!(&self.driver, cuIpcOpenMemHandle_v2(&raw mut base, bytes, driver::IPC_LAZY_PEER_ACCESS))
            };
            if opened.is_err() {
                continue;
            }
            let (mut start, mut length) = (0, 0);
            // SAFETY: it writes an address and a length to where it is told.
            let range = unsafe { call!(&self.driver, cuMemGetAddressRange_v2(&raw mut start, &raw mut length, base)) };
            let behind = start.saturating_add(length as u64).saturating_sub(base);
            if range.is_err() || behind < handle.length {
                // SAFETY: opened above, and nobody knows it.
                let _ = unsafe { call!(&self.driver, cuIpcCloseMemHandle(base)) };
                return Err(DeviceError::BadHandle);
            }
            imports.entry(base).or_insert(Import { device, uses: 0, mapped: None }).uses += 1;
            return Ok(base);
        }
        Err(DeviceError::BadHandle)
    }

    /// Maps an allocation that came as a descriptor.
    fn map(&self, handle: &Handle, descriptor: &OwnedFd) -> Result<u64, DeviceError> {
        let length = usize::try_from(handle.length).map_err(|_| DeviceError::BadHandle)?;
        let _entered = self.enter_any()?;
        let mut allocation = 0;
        let number = descriptor.as_raw_fd() as usize as *mut c_void;
        let kind = driver::HANDLE_FILE_DESCRIPTOR;
        // SAFETY: it writes one handle to where it is told; the descriptor is open, and what it is of, the driver checks.
        unsafe { call!(&self.driver, cuMemImportFromShareableHandle(&raw mut allocation, number, kind)) }
            .map_err(|_| DeviceError::BadHandle)?;
        let mapped = self.map_allocation(allocation, length);
        // SAFETY: made above. The mapping keeps the memory.
        let _ = unsafe { call!(&self.driver, cuMemRelease(allocation)) };
        let (base, device) = mapped?;
        lock(&self.imports).insert(base, Import { device, uses: 1, mapped: Some(length) });
        Ok(base)
    }

    fn map_allocation(&self, allocation: u64, length: usize) -> Result<(u64, u32), DeviceError> {
        let driver = &self.driver;
        let location = driver::Location::default();
        let mut properties =
            driver::AllocationProperties { kind: 0, handle_types: 0, location, windows: null_mut(), flags: [0; 8] };
        let mut granularity = 0;
        // SAFETY: they write properties and a number to where they are told; the handle is the caller's.
        unsafe {
            call!(driver, cuMemGetAllocationPropertiesFromHandle(&raw mut properties, allocation))?;
            let option = driver::GRANULARITY_MINIMUM;
            call!(driver, cuMemGetAllocationGranularity(&raw mut granularity, &raw const properties, option))?;
        }
        let device = u32::try_from(properties.location.id).map_err(|_| DeviceError::BadHandle)?;
        if properties.location.kind != driver::LOCATION_DEVICE
            || granularity == 0
            || !length.is_multiple_of(granularity)
        {
            return Err(DeviceError::BadHandle);
        }
        let _entered = driver.enter(self.ready(device)?.context)?;
        let mut base = 0;
        let access = driver::AccessDescription { location: properties.location, flags: driver::ACCESS_READ_WRITE };
        // SAFETY: the range is new and nobody knows it; what fails is undone. The driver refuses to map more than the
        // allocation has.
        unsafe {
            call!(driver, cuMemAddressReserve(&raw mut base, length, 0, 0, 0))?;
            if call!(driver, cuMemMap(base, length, 0, allocation, 0)).is_err() {
                let _ = call!(driver, cuMemAddressFree(base, length));
                return Err(DeviceError::BadHandle);
            }
            if let Err(error) = call!(driver, cuMemSetAccess(base, length, &raw const access, 1)) {
                let _ = call!(driver, cuMemUnmap(base, length));
                let _ = call!(driver, cuMemAddressFree(base, length));
                return Err(error);
            }
        }
        Ok((base, device))
    }

    /// The descriptor of an allocation of `cuMemCreate`.
    fn descriptor(&self, base: u64) -> Result<OwnedFd, DeviceError> {
        let mut allocation = 0;
        let mut descriptor = -1;
        let kind = driver::HANDLE_FILE_DESCRIPTOR;
        // SAFETY: they write a handle and a descriptor to where they are told.
        let exported = unsafe {
            call!(&self.driver, cuMemRetainAllocationHandle(&raw mut allocation, base as *mut c_void))?;
            let to = (&raw mut descriptor).cast();
            let exported = call!(&self.driver, cuMemExportToShareableHandle(to, allocation, kind, 0));
            let _ = call!(&self.driver, cuMemRelease(allocation));
            exported
        };
        exported?;
        if descriptor < 0 {
            return Err(DeviceError::Failed("the driver gave no descriptor".to_owned()));
        }
        // SAFETY: the driver just opened it for us.
        let descriptor: OwnedFd = unsafe { OwnedFd::from_raw_fd(descriptor) };
        // SAFETY: it only marks a descriptor that is ours, so that programs we start do not have it.
        unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) };
        Ok(descriptor)
    }
}

impl Operations for Cuda {
    fn kind(&self) -> Kind {
        Kind::Cuda
    }

    fn devices(&self) -> u32 {
        self.driver.devices
    }

    fn describe(&self, device: u32) -> String {
        let mut name = [0u8; 128];
        let mut bytes = 0;
        let number = device as i32;
        // SAFETY: they write at most as many bytes as they are told, and a number. The name ends with a zero.
        let found = unsafe {
            call!(&self.driver, cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as i32 - 1, number))
                .and_then(|()| call!(&self.driver, cuDeviceTotalMem_v2(&raw mut bytes, number)))
        };
        if found.is_err() {
            return format!("no CUDA device {device}");
        }
        let name: Vec<u8> = name.into_iter().take_while(|byte| *byte != 0).collect();
        let major = self.driver.device_attribute(device, driver::DEVICE_COMPUTE_MAJOR);
        let minor = self.driver.device_attribute(device, driver::DEVICE_COMPUTE_MINOR);
        let version = self.driver.version;
        format!(
            "{}, {} MiB, compute capability {major}.{minor}, driver of CUDA {}.{}",
            String::from_utf8_lossy(&name),
            bytes >> 20,
            version / 1000,
            version % 1000 / 10,
        )
    }

    fn capabilities(&self) -> Capabilities {
        let descriptors = (0..self.driver.devices)
            .any(|device| self.driver.device_attribute(device, driver::DEVICE_FILE_DESCRIPTORS) != 0);
        Capabilities { handles: true, descriptors, register_host: true, asynchronous: true }
    }

    unsafe fn copy(&self, device: u32, direction: Direction, pieces: &[Transfer]) -> Result<(), DeviceError> {
        let ready = self.ready(device)?;
        let _entered = self.driver.enter(ready.context)?;
        // SAFETY: as the caller promised; the context is entered.
        unsafe { ready.copy(&self.driver, direction, pieces) }
    }

    /// Pageable host memory is copied right, but the driver waits meanwhile: register it, or use [`Operations::copy`].
    unsafe fn start(&self, device: u32, direction: Direction, pieces: &[Transfer]) -> Result<Event, DeviceError> {
        let ready = self.ready(device)?;
        if !self.pending.has_room() {
            return Err(too_many());
        }
        let _entered = self.driver.enter(ready.context)?;
        // SAFETY: as the caller promised; the context is entered.
        let event = unsafe { ready.start(&self.driver, direction, pieces)? };
        self.pending.insert((device, event)).map_err(|(_, event)| {
            // Other threads took the last places. The copy is under way, so the error has to wait for it.
            // SAFETY: the event is ours and was recorded.
            let _ = unsafe { call!(&self.driver, cuEventSynchronize(event)) };
            ready.give_back(event);
            too_many()
        })
    }

    fn is_done(&self, event: &Event) -> Result<bool, DeviceError> {
        let Some((_, handle)) = self.pending.find(event) else {
            return Ok(true);
        };
        // SAFETY: events are never destroyed. If another thread forgets this one meanwhile, the answer is about another
        // copy: "done" is then true of both, and "not yet" only makes the caller ask again.
        let code = unsafe { (self.driver.functions().cuEventQuery)(handle) };
        if code == driver::NOT_READY {
            return Ok(false);
        }
        self.forget(event);
        self.driver.check(code).map(|()| true)
    }

    fn wait(&self, event: Event) -> Result<(), DeviceError> {
        let Some((_, handle)) = self.pending.find(&event) else {
            return Ok(());
        };
        // SAFETY: events are never destroyed.
        let done = unsafe { call!(&self.driver, cuEventSynchronize(handle)) };
        self.forget(&event);
        done
    }

    fn allocate(&self, device: u32, length: usize) -> Result<u64, DeviceError> {
        let ready = self.ready(device)?;
        let rounded = length.checked_next_multiple_of(DEVICE_BLOCK_BYTES).ok_or(DeviceError::OutOfMemory)?;
        let _entered = self.driver.enter(ready.context)?;
        let mut address = 0;
        // SAFETY: it writes one address to where it is told.
        unsafe { call!(&self.driver, cuMemAlloc_v2(&raw mut address, rounded))? };
        // SAFETY: the memory is new.
        if let Err(error) = unsafe { ready.zero(&self.driver, address, rounded) } {
            // SAFETY: allocated above, and nobody knows it.
            let _ = unsafe { call!(&self.driver, cuMemFree_v2(address)) };
            return Err(error);
        }
        Ok(address)
    }

    unsafe fn free(&self, device: u32, address: u64) -> Result<(), DeviceError> {
        let _entered = self.driver.enter(self.ready(device)?.context)?;
        // SAFETY: as the caller promised.
        unsafe { call!(&self.driver, cuMemFree_v2(address)) }
    }

    fn classify(&self, address: u64) -> Option<Allocation> {
        let known = self.device_memory(address)?;
        if !known.synchronous {
            // The user's own synchronous copies inside the device return early. Ours are on other streams and would
            // overtake them. Memory that cannot be set so (of `cuMemCreate`, say) is used as it is.
            let on: u32 = 1;
            // SAFETY: the attribute is a number of this size.
            let _ = unsafe {
                call!(
                    &self.driver,
                    cuPointerSetAttribute((&raw const on).cast(), driver::ATTRIBUTE_SYNC_MEMOPS, address)
                )
            };
        }
        let imported = lock(&self.imports).contains_key(&known.base);
        let exportable = (known.legacy_handles || known.descriptors) && !known.managed && !imported;
        let place = Place { kind: Kind::Cuda, device: known.device };
        Some(Allocation { place, base: known.base, length: known.length, id: known.id, exportable })
    }

    fn export(&self, address: u64) -> Result<Handle, DeviceError> {
        let allocation = self.classify(address).ok_or(DeviceError::BadAddress)?;
        if !allocation.exportable {
            return Err(DeviceError::NotSupported);
        }
        let Allocation { place, base, length, id, .. } = allocation;
        let _entered = self.driver.enter(self.ready(place.device)?.context)?;
        if !self.driver.attributes(address).legacy_handles {
            let descriptor = Some(self.descriptor(base)?);
            return Ok(Handle { place, bytes: [0; HANDLE_BYTES], descriptor, length, id });
        }
        let mut handle = driver::IpcHandle([0; HANDLE_BYTES]);
        // SAFETY: it writes one handle to where it is told.
        unsafe { call!(&self.driver, cuIpcGetMemHandle(&raw mut handle, base))? };
        Ok(Handle { place, bytes: handle.0, descriptor: None, length, id })
    }

    fn import(&self, handle: &Handle) -> Result<u64, DeviceError> {
        if handle.place.kind != Kind::Cuda || handle.length == 0 {
            return Err(DeviceError::BadHandle);
        }
        if lock(&self.imports).len() >= DEVICE_IMPORTS_MAX {
            return Err(DeviceError::OutOfMemory);
        }
        match &handle.descriptor {
            Some(descriptor) => self.map(handle, descriptor),
            None => self.open(handle),
        }
    }

    unsafe fn release(&self, base: u64) -> Result<(), DeviceError> {
        let mut imports = lock(&self.imports);
        let import = imports.get_mut(&base).ok_or(DeviceError::BadAddress)?;
        let _entered = self.driver.enter(self.ready(import.device)?.context)?;
        import.uses -= 1;
        let (mapped, last) = (import.mapped, import.uses == 0);
        if last {
            imports.remove(&base);
        }
        // SAFETY: we mapped it, and as the caller promised nothing uses it.
        unsafe {
            match mapped {
                Some(length) => call!(&self.driver, cuMemUnmap(base, length))
                    .and_then(|()| call!(&self.driver, cuMemAddressFree(base, length))),
                None => call!(&self.driver, cuIpcCloseMemHandle(base)),
            }
        }
    }

    unsafe fn register_host(&self, pointer: *mut u8, length: usize) -> Result<(), DeviceError> {
        let _entered = self.enter_any()?;
        let flags = driver::HOST_PORTABLE | driver::HOST_DEVICE_MAP;
        // SAFETY: as the caller promised.
        unsafe { call!(&self.driver, cuMemHostRegister_v2(pointer.cast(), length, flags)) }
    }

    unsafe fn unregister_host(&self, pointer: *mut u8) -> Result<(), DeviceError> {
        let _entered = self.enter_any()?;
        // SAFETY: as the caller promised.
        unsafe { call!(&self.driver, cuMemHostUnregister(pointer.cast())) }
    }
}

impl Cuda {
    fn forget(&self, event: &Event) {
        if let Some((device, handle)) = self.pending.remove(event)
            && let Some(ready) = self.devices.get(device as usize).and_then(|device| device.ready.get())
        {
            ready.give_back(handle);
        }
    }
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cuda({} devices)", self.driver.devices)
    }
}
