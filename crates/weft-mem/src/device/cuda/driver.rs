//! The driver's functions, as `cuda.h` declares them, and what every call of them needs: errors and a current context.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use super::super::library::{Library, functions};
use super::super::{Absent, DeviceError};

/// `CUresult`.
pub(super) type Code = c_int;
/// `CUdeviceptr`.
pub(super) type Pointer = u64;

/// A handle of the driver's: a pointer that only the driver follows.
macro_rules! handle {
    ($($name:ident $c:literal;)*) => {$(
        #[doc = concat!("`", $c, "`.")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(transparent)]
        pub(super) struct $name(pub(super) *mut c_void);

        // SAFETY: only the driver follows the pointer, and takes calls from every thread.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}
    )*};
}
handle! {
    Context "CUcontext";
    Stream "CUstream";
    EventHandle "CUevent";
}

/// `CUipcMemHandle`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct IpcHandle(pub(super) [u8; 64]);

/// `CUmemLocation`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Location {
    pub(super) kind: c_int,
    pub(super) id: c_int,
}

/// `CUmemAllocationProp`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct AllocationProperties {
    pub(super) kind: c_int,
    pub(super) handle_types: c_int,
    pub(super) location: Location,
    pub(super) windows: *mut c_void,
    pub(super) flags: [u8; 8],
}

/// `CUmemAccessDesc`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct AccessDescription {
    pub(super) location: Location,
    pub(super) flags: c_int,
}

const _: () = {
    assert!(size_of::<IpcHandle>() == super::super::HANDLE_BYTES, "a handle of the driver's is one of ours");
    assert!(size_of::<AllocationProperties>() == 32 && size_of::<AccessDescription>() == 12, "as in cuda.h");
};

pub(super) const SUCCESS: Code = 0;
const INVALID_VALUE: Code = 1;
const OUT_OF_MEMORY: Code = 2;
const NO_DEVICE: Code = 100;
pub(super) const NOT_READY: Code = 600;
const NOT_SUPPORTED: Code = 801;

pub(super) const STREAM_NON_BLOCKING: c_uint = 1;
pub(super) const EVENT_DISABLE_TIMING: c_uint = 2;
pub(super) const HOST_PORTABLE: c_uint = 1;
pub(super) const HOST_DEVICE_MAP: c_uint = 2;
pub(super) const IPC_LAZY_PEER_ACCESS: c_uint = 1;
pub(super) const HANDLE_FILE_DESCRIPTOR: c_int = 1;
pub(super) const LOCATION_DEVICE: c_int = 1;
pub(super) const ACCESS_READ_WRITE: c_int = 3;
pub(super) const GRANULARITY_MINIMUM: c_int = 0;
pub(super) const MEMORY_HOST: u64 = 1;
pub(super) const MEMORY_DEVICE: u64 = 2;
pub(super) const ATTRIBUTE_SYNC_MEMOPS: c_int = 6;
/// `CUdevice_attribute`.
pub(super) const DEVICE_UNIFIED_ADDRESSING: c_int = 41;
pub(super) const DEVICE_COMPUTE_MAJOR: c_int = 75;
pub(super) const DEVICE_COMPUTE_MINOR: c_int = 76;
pub(super) const DEVICE_FILE_DESCRIPTORS: c_int = 103;

/// The oldest driver whose pointer attributes are all we ask for.
const VERSION_MIN: c_int = 11_040;

functions! {
    pub(super) struct Functions {
        fn cuInit(flags: c_uint) -> Code;
        fn cuDriverGetVersion(version: *mut c_int) -> Code;
        fn cuGetErrorName(code: Code, text: *mut *const c_char) -> Code;
        fn cuGetErrorString(code: Code, text: *mut *const c_char) -> Code;
        fn cuDeviceGetCount(count: *mut c_int) -> Code;
        fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> Code;
        fn cuDeviceGetName(name: *mut c_char, length: c_int, device: c_int) -> Code;
        fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) -> Code;
        fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) -> Code;
        fn cuDevicePrimaryCtxRetain(context: *mut Context, device: c_int) -> Code;
        fn cuCtxGetCurrent(context: *mut Context) -> Code;
        fn cuCtxSetCurrent(context: Context) -> Code;
        fn cuStreamCreate(stream: *mut Stream, flags: c_uint) -> Code;
        fn cuStreamSynchronize(stream: Stream) -> Code;
        fn cuEventCreate(event: *mut EventHandle, flags: c_uint) -> Code;
        fn cuEventRecord(event: EventHandle, stream: Stream) -> Code;
        fn cuEventQuery(event: EventHandle) -> Code;
        fn cuEventSynchronize(event: EventHandle) -> Code;
        fn cuMemAlloc_v2(pointer: *mut Pointer, bytes: usize) -> Code;
        fn cuMemFree_v2(pointer: Pointer) -> Code;
        fn cuMemsetD8Async(to: Pointer, value: u8, bytes: usize, stream: Stream) -> Code;
        fn cuMemcpyHtoDAsync_v2(to: Pointer, from: *const c_void, bytes: usize, stream: Stream) -> Code;
        fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: Pointer, bytes: usize, stream: Stream) -> Code;
        fn cuMemcpyAsync(to: Pointer, from: Pointer, bytes: usize, stream: Stream) -> Code;
        fn cuMemHostAlloc(pointer: *mut *mut c_void, bytes: usize, flags: c_uint) -> Code;
        fn cuMemHostRegister_v2(pointer: *mut c_void, bytes: usize, flags: c_uint) -> Code;
        fn cuMemHostUnregister(pointer: *mut c_void) -> Code;
        fn cuMemGetAddressRange_v2(base: *mut Pointer, bytes: *mut usize, pointer: Pointer) -> Code;
        fn cuPointerGetAttributes(
            count: c_uint, attributes: *const c_int, values: *const *mut c_void, pointer: Pointer,
        ) -> Code;
        fn cuPointerSetAttribute(value: *const c_void, attribute: c_int, pointer: Pointer) -> Code;
        fn cuIpcGetMemHandle(handle: *mut IpcHandle, pointer: Pointer) -> Code;
        fn cuIpcOpenMemHandle_v2(pointer: *mut Pointer, handle: IpcHandle, flags: c_uint) -> Code;
        fn cuIpcCloseMemHandle(pointer: Pointer) -> Code;
        fn cuMemRetainAllocationHandle(handle: *mut u64, pointer: *mut c_void) -> Code;
        fn cuMemExportToShareableHandle(to: *mut c_void, handle: u64, kind: c_int, flags: u64) -> Code;
        fn cuMemImportFromShareableHandle(handle: *mut u64, from: *mut c_void, kind: c_int) -> Code;
        fn cuMemGetAllocationPropertiesFromHandle(properties: *mut AllocationProperties, handle: u64) -> Code;
        fn cuMemGetAllocationGranularity(
            bytes: *mut usize, properties: *const AllocationProperties, option: c_int,
        ) -> Code;
        fn cuMemAddressReserve(
            pointer: *mut Pointer, bytes: usize, alignment: usize, wish: Pointer, flags: u64,
        ) -> Code;
        fn cuMemAddressFree(pointer: Pointer, bytes: usize) -> Code;
        fn cuMemMap(pointer: Pointer, bytes: usize, offset: usize, handle: u64, flags: u64) -> Code;
        fn cuMemUnmap(pointer: Pointer, bytes: usize) -> Code;
        fn cuMemSetAccess(pointer: Pointer, bytes: usize, access: *const AccessDescription, count: usize) -> Code;
        fn cuMemRelease(handle: u64) -> Code;
    }
}

/// The driver, initialised. Its functions are called by [`call!`].
pub(super) struct Driver {
    functions: Functions,
    /// As the driver says: 1000 times the major version plus 10 times the minor one.
    pub(super) version: c_int,
    pub(super) devices: u32,
}

/// Calls a function of the driver: `call!(driver, cuInit(0))`. An unsafe operation.
macro_rules! call {
    ($driver:expr, $function:ident($($argument:expr),* $(,)?)) => {{
        let driver: &$crate::device::cuda::driver::Driver = $driver;
        driver.check((driver.functions().$function)($($argument),*))
    }};
}
pub(super) use call;

impl Driver {
    /// Loads the driver and starts it.
    pub(super) fn load(library: &Library) -> Result<Driver, Absent> {
        let functions = Functions::load(library)?;
        let mut driver = Driver { functions, version: 0, devices: 0 };
        let name = library.name();
        // SAFETY: the first call, as the driver asks for.
        match unsafe { (driver.functions.cuInit)(0) } {
            SUCCESS => {}
            NO_DEVICE => return Err(Absent(format!("{name} finds no NVIDIA device"))),
            code => return Err(Absent(format!("{name} does not start: {}", driver.text(code)))),
        }
        let (mut version, mut devices) = (0, 0);
        // SAFETY: both write one number to where it is told.
        unsafe {
            call!(&driver, cuDriverGetVersion(&raw mut version))
                .and_then(|()| call!(&driver, cuDeviceGetCount(&raw mut devices)))
        }
        .map_err(|error| Absent(format!("{name}: {error}")))?;
        driver.version = version;
        driver.devices = u32::try_from(devices).unwrap_or(0);
        let (major, minor) = (driver.version / 1000, driver.version % 1000 / 10);
        if driver.version < VERSION_MIN {
            return Err(Absent(format!("{name} is of CUDA {major}.{minor}: install a driver of 11.4 or later")));
        }
        if driver.devices == 0 {
            return Err(Absent(format!("{name} finds no NVIDIA device")));
        }
        Ok(driver)
    }

    pub(super) fn functions(&self) -> &Functions {
        &self.functions
    }

    /// What the driver says, as one of our errors.
    pub(super) fn check(&self, code: Code) -> Result<(), DeviceError> {
        match code {
            SUCCESS => Ok(()),
            INVALID_VALUE => Err(DeviceError::BadAddress),
            OUT_OF_MEMORY => Err(DeviceError::OutOfMemory),
            NOT_SUPPORTED => Err(DeviceError::NotSupported),
            code => Err(DeviceError::Failed(self.text(code))),
        }
    }

    fn text(&self, code: Code) -> String {
        let (mut name, mut text) = (std::ptr::null(), std::ptr::null());
        // SAFETY: both write a pointer to a text that lives as long as the driver, or null.
        unsafe {
            (self.functions.cuGetErrorName)(code, &raw mut name);
            (self.functions.cuGetErrorString)(code, &raw mut text);
        }
        if name.is_null() || text.is_null() {
            return format!("CUDA error {code}");
        }
        // SAFETY: not null, so a text of the driver's, which ends with a zero.
        unsafe { format!("{} ({})", CStr::from_ptr(text).to_string_lossy(), CStr::from_ptr(name).to_string_lossy()) }
    }

    /// Makes a context the thread's until the guard is dropped; then it has again what it had. The thread may be the
    /// user's, whose choice of a device must not change behind its back.
    pub(super) fn enter(&self, context: Context) -> Result<Entered<'_>, DeviceError> {
        let mut before = Context(std::ptr::null_mut());
        // SAFETY: it writes one handle to where it is told.
        unsafe { call!(self, cuCtxGetCurrent(&raw mut before))? };
        if before == context {
            return Ok(Entered { driver: self, before: None });
        }
        // SAFETY: the context is one that we retained, for ever.
        unsafe { call!(self, cuCtxSetCurrent(context))? };
        Ok(Entered { driver: self, before: Some(before) })
    }

    /// The context of this thread, if it has one.
    pub(super) fn current(&self) -> Option<Context> {
        let mut context = Context(std::ptr::null_mut());
        // SAFETY: it writes one handle to where it is told.
        let found = unsafe { call!(self, cuCtxGetCurrent(&raw mut context)) };
        found.ok().map(|()| context).filter(|context| !context.0.is_null())
    }

    pub(super) fn device_attribute(&self, device: u32, attribute: c_int) -> c_int {
        let mut value = 0;
        // SAFETY: it writes one number to where it is told.
        let found = unsafe { call!(self, cuDeviceGetAttribute(&raw mut value, attribute, device as c_int)) };
        if found.is_ok() { value } else { 0 }
    }

    /// What the driver knows of the memory at an address; all zeros when it is not the driver's. Needs no context.
    pub(super) fn attributes(&self, address: u64) -> Attributes {
        // In the order of `Attributes`. Some are shorter than a word, so all words begin as zeros.
        const ASKED: [c_int; 10] = [2, ATTRIBUTE_SYNC_MEMOPS, 7, 8, 9, 10, 11, 12, 14, 17];
        const { assert!(cfg!(target_endian = "little"), "a short value is at the beginning of its word") };
        let mut values = [0u64; ASKED.len()];
        let places = values.each_mut().map(|value| std::ptr::from_mut(value).cast::<c_void>());
        // SAFETY: as many places as attributes, each long enough for the longest of them.
        let found = unsafe {
            call!(self, cuPointerGetAttributes(ASKED.len() as c_uint, ASKED.as_ptr(), places.as_ptr(), address))
        };
        if found.is_err() {
            return Attributes::default();
        }
        let [memory, synchronous, id, managed, ordinal, legacy, base, length, handle_types, pool] = values;
        Attributes {
            memory: memory & 0xffff_ffff,
            synchronous: synchronous & 0xff != 0,
            id,
            managed: managed & 0xff != 0,
            device: ordinal as u32,
            legacy_handles: legacy & 0xff != 0,
            base,
            length,
            descriptors: handle_types & HANDLE_FILE_DESCRIPTOR as u64 != 0 && pool == 0,
        }
    }
}

/// What the driver knows of the memory at an address.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Attributes {
    /// [`MEMORY_HOST`], [`MEMORY_DEVICE`], or 0: not of this driver.
    pub(super) memory: u64,
    /// The driver's synchronous copies from and to it are synchronous indeed.
    pub(super) synchronous: bool,
    pub(super) id: u64,
    /// It moves between host and device when it is touched.
    pub(super) managed: bool,
    pub(super) device: u32,
    /// `cuIpcGetMemHandle` takes it.
    pub(super) legacy_handles: bool,
    pub(super) base: u64,
    pub(super) length: u64,
    /// Its allocation can be exported as a file descriptor.
    pub(super) descriptors: bool,
}

/// While it lives, the thread has the context of [`Driver::enter`].
pub(super) struct Entered<'a> {
    driver: &'a Driver,
    before: Option<Context>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // SAFETY: it was the thread's context before, or none. The driver can only fail here when it is broken, which
            // the next call will say.
            let _ = unsafe { call!(self.driver, cuCtxSetCurrent(before)) };
        }
    }
}
