//! Memory of Intel devices, through Level Zero (`libze_loader.so.1`, or what `WEFT_LEVEL_ZERO_LIBRARY` names).
//!
//! **Untested on hardware**: that the library loads, has the functions and says why there is no device is all that is tested.
//! Level Zero cannot be told of host memory: its copies take any, and it looks after that itself.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::fmt;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::{null, null_mut};
use std::sync::Mutex;

use super::library::{Library, Vendor, functions};
use super::pending::{Pending, lock, too_many};
use super::{
    Absent, Allocation, Capabilities, DeviceError, Direction, Event, HANDLE_BYTES, Handle, Kind, Operations, Place,
    Transfer,
};
use crate::limits::{DEVICE_BLOCK_BYTES, DEVICE_IMPORTS_MAX, LEVEL_ZERO_EVENTS};

/// `ze_result_t`.
type Code = c_int;

/// A handle of the library's: a pointer that only it follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
struct Object(*mut c_void);

// SAFETY: only the library follows the pointer. What it forbids to use in several threads at a time (command lists) is
// behind locks here.
unsafe impl Send for Object {}
// SAFETY: as above.
unsafe impl Sync for Object {}

const NONE: Object = Object(null_mut());

/// `ze_ipc_mem_handle_t`.
#[derive(Clone, Copy)]
#[repr(C)]
struct IpcHandle([u8; HANDLE_BYTES]);

/// What every structure of the library begins with.
#[derive(Clone, Copy)]
#[repr(C)]
struct Head {
    structure: c_int,
    next: *const c_void,
}

impl Head {
    const fn new(structure: c_int) -> Head {
        Head { structure, next: null() }
    }
}

/// `ze_context_desc_t`.
#[repr(C)]
struct ContextDescription {
    head: Head,
    flags: u32,
}

/// `ze_command_queue_desc_t`.
#[repr(C)]
struct QueueDescription {
    head: Head,
    ordinal: u32,
    index: u32,
    flags: u32,
    mode: c_int,
    priority: c_int,
}

/// `ze_event_pool_desc_t`.
#[repr(C)]
struct EventPoolDescription {
    head: Head,
    flags: u32,
    count: u32,
}

/// `ze_event_desc_t`.
#[repr(C)]
struct EventDescription {
    head: Head,
    index: u32,
    signal: u32,
    wait: u32,
}

/// `ze_device_mem_alloc_desc_t`.
#[repr(C)]
struct AllocationDescription {
    head: Head,
    flags: u32,
    ordinal: u32,
}

/// `ze_memory_allocation_properties_t`.
#[repr(C)]
struct AllocationProperties {
    head: Head,
    kind: c_int,
    id: u64,
    page_bytes: u64,
}

/// `ze_command_queue_group_properties_t`.
#[derive(Clone, Copy)]
#[repr(C)]
struct QueueGroup {
    head: Head,
    flags: u32,
    fill_pattern_bytes: usize,
    queues: u32,
}

/// `ze_device_properties_t`.
#[repr(C)]
struct DeviceProperties {
    head: Head,
    kind: c_int,
    numbers: [u32; 5],
    allocation_max: u64,
    more_numbers: [u32; 7],
    timer_resolution: u64,
    timestamp_bits: [u32; 2],
    uuid: [u8; 16],
    name: [u8; 256],
}

/// `ze_device_memory_properties_t`.
#[derive(Clone, Copy)]
#[repr(C)]
struct MemoryProperties {
    head: Head,
    numbers: [u32; 3],
    total: u64,
    name: [u8; 256],
}

const _: () = {
    assert!(size_of::<ContextDescription>() == 24 && size_of::<QueueDescription>() == 40, "as in ze_api.h");
    assert!(size_of::<EventPoolDescription>() == 24 && size_of::<EventDescription>() == 32, "as in ze_api.h");
    assert!(size_of::<AllocationDescription>() == 24 && size_of::<AllocationProperties>() == 40, "as in ze_api.h");
    assert!(size_of::<QueueGroup>() == 40 && size_of::<MemoryProperties>() == 296, "as in ze_api.h");
    assert!(size_of::<DeviceProperties>() == 368, "as in ze_api.h");
};

const SUCCESS: Code = 0;
const NOT_READY: Code = 1;
const OUT_OF_HOST_MEMORY: Code = 0x7000_0002;
const OUT_OF_DEVICE_MEMORY: Code = 0x7000_0003;
const UNINITIALIZED: Code = 0x7800_0001;
const UNSUPPORTED_FEATURE: Code = 0x7800_0003;
const INVALID_ARGUMENT: Code = 0x7800_0004;
const UNSUPPORTED_SIZE: Code = 0x7800_0009;

const DEVICE_PROPERTIES: c_int = 0x3;
const QUEUE_GROUP_PROPERTIES: c_int = 0x6;
const MEMORY_PROPERTIES: c_int = 0x7;
const CONTEXT_DESCRIPTION: c_int = 0xd;
const QUEUE_DESCRIPTION: c_int = 0xe;
const EVENT_POOL_DESCRIPTION: c_int = 0x10;
const EVENT_DESCRIPTION: c_int = 0x11;
const DEVICE_ALLOCATION_DESCRIPTION: c_int = 0x15;
const ALLOCATION_PROPERTIES: c_int = 0x17;

const DEVICE_TYPE_GPU: c_int = 1;
const QUEUE_GROUP_COPIES: u32 = 2;
const MODE_SYNCHRONOUS: c_int = 1;
const MODE_ASYNCHRONOUS: c_int = 2;
const EVENTS_HOST_VISIBLE: u32 = 1;
const SCOPE_HOST: u32 = 4;
const MEMORY_DEVICE: c_int = 2;
const MEMORY_SHARED: c_int = 3;
/// Drivers, devices and groups of queues that are looked at.
const LISTED_MAX: usize = 64;

functions! {
    struct Functions {
        fn zeInit(flags: u32) -> Code;
        fn zeDriverGet(count: *mut u32, drivers: *mut Object) -> Code;
        fn zeDeviceGet(driver: Object, count: *mut u32, devices: *mut Object) -> Code;
        fn zeDeviceGetProperties(device: Object, properties: *mut DeviceProperties) -> Code;
        fn zeDeviceGetMemoryProperties(device: Object, count: *mut u32, properties: *mut MemoryProperties) -> Code;
        fn zeDeviceGetCommandQueueGroupProperties(device: Object, count: *mut u32, groups: *mut QueueGroup) -> Code;
        fn zeContextCreate(driver: Object, description: *const ContextDescription, context: *mut Object) -> Code;
        fn zeCommandListCreateImmediate(
            context: Object, device: Object, description: *const QueueDescription, list: *mut Object,
        ) -> Code;
        fn zeCommandListAppendMemoryCopy(
            list: Object, to: *mut c_void, from: *const c_void, bytes: usize, signal: Object, count: u32,
            after: *const Object,
        ) -> Code;
        fn zeCommandListAppendMemoryFill(
            list: Object, to: *mut c_void, pattern: *const c_void, pattern_bytes: usize, bytes: usize, signal: Object,
            count: u32, after: *const Object,
        ) -> Code;
        fn zeCommandListAppendBarrier(list: Object, signal: Object, count: u32, after: *const Object) -> Code;
        fn zeEventPoolCreate(
            context: Object, description: *const EventPoolDescription, count: u32, devices: *const Object,
            pool: *mut Object,
        ) -> Code;
        fn zeEventCreate(pool: Object, description: *const EventDescription, event: *mut Object) -> Code;
        fn zeEventQueryStatus(event: Object) -> Code;
        fn zeEventHostSynchronize(event: Object, timeout: u64) -> Code;
        fn zeEventHostReset(event: Object) -> Code;
        fn zeMemAllocDevice(
            context: Object, description: *const AllocationDescription, bytes: usize, alignment: usize, device: Object,
            pointer: *mut *mut c_void,
        ) -> Code;
        fn zeMemFree(context: Object, pointer: *mut c_void) -> Code;
        fn zeMemGetAllocProperties(
            context: Object, pointer: *const c_void, properties: *mut AllocationProperties, device: *mut Object,
        ) -> Code;
        fn zeMemGetAddressRange(
            context: Object, pointer: *const c_void, base: *mut *mut c_void, bytes: *mut usize,
        ) -> Code;
        fn zeMemGetIpcHandle(context: Object, pointer: *const c_void, handle: *mut IpcHandle) -> Code;
        fn zeMemOpenIpcHandle(
            context: Object, device: Object, handle: IpcHandle, flags: u32, pointer: *mut *mut c_void,
        ) -> Code;
        fn zeMemCloseIpcHandle(context: Object, pointer: *const c_void) -> Code;
    }
}

/// The kind, when it is first asked for.
pub(super) static LEVEL_ZERO: Vendor<LevelZero> =
    Vendor::new("WEFT_LEVEL_ZERO_LIBRARY", "libze_loader.so.1", LevelZero::load);

/// The library and its devices.
pub(super) struct LevelZero {
    functions: Functions,
    devices: Vec<Device>,
    pending: Pending<(u32, Object)>,
    /// Of each address how often it was opened, and by which device.
    imports: Mutex<HashMap<u64, (usize, u32)>>,
}

struct Device {
    device: Object,
    context: Object,
    /// The group of queues for copies.
    ordinal: u32,
    /// Synchronous command lists that no thread has.
    lists: Mutex<Vec<Object>>,
    started: Mutex<Started>,
}

/// What copies are started with: made at the first one.
#[derive(Default)]
struct Started {
    list: Option<Object>,
    pool: Option<Object>,
    made: usize,
    spares: Vec<Object>,
}

impl LevelZero {
    fn load(library: &Library) -> Result<LevelZero, Absent> {
        let functions = Functions::load(library)?;
        let name = library.name();
        // SAFETY: the first call, as the library asks for.
        match unsafe { (functions.zeInit)(0) } {
            SUCCESS => {}
            UNINITIALIZED => return Err(Absent(format!("{name} finds no driver of a Level Zero device"))),
            code => return Err(Absent(format!("{name} does not start, as without a device: {}", text(code)))),
        }
        let mut found =
            LevelZero { functions, devices: Vec::new(), pending: Pending::new(), imports: Mutex::new(HashMap::new()) };
        // SAFETY: it writes as many handles as there is room for.
        for driver in listed(NONE, |count, places| unsafe { (found.functions.zeDriverGet)(count, places) }) {
            found.add(driver);
        }
        if found.devices.is_empty() {
            return Err(Absent(format!("{name} finds no GPU")));
        }
        Ok(found)
    }

    /// Adds the devices of a driver; those that cannot be used are left out.
    fn add(&mut self, driver: Object) {
        let description = ContextDescription { head: Head::new(CONTEXT_DESCRIPTION), flags: 0 };
        let mut context = NONE;
        // SAFETY: it reads the description and writes one handle to where it is told.
        if unsafe { (self.functions.zeContextCreate)(driver, &raw const description, &raw mut context) } != SUCCESS {
            return;
        }
        // SAFETY: it writes as many handles as there is room for.
        for device in listed(NONE, |count, places| unsafe { (self.functions.zeDeviceGet)(driver, count, places) }) {
            if self.properties(device).is_none_or(|properties| properties.kind != DEVICE_TYPE_GPU) {
                continue;
            }
            let head = Head::new(QUEUE_GROUP_PROPERTIES);
            let empty = QueueGroup { head, flags: 0, fill_pattern_bytes: 0, queues: 0 };
            // SAFETY: it writes as many groups as there is room for.
            let groups = listed(empty, |count, places| unsafe {
                (self.functions.zeDeviceGetCommandQueueGroupProperties)(device, count, places)
            });
            let copies = groups.iter().position(|group| group.flags & QUEUE_GROUP_COPIES != 0);
            self.devices.extend(copies.map(|ordinal| Device {
                device,
                context,
                ordinal: ordinal as u32,
                lists: Mutex::default(),
                started: Mutex::default(),
            }));
        }
    }

    fn properties(&self, device: Object) -> Option<DeviceProperties> {
        let mut properties = DeviceProperties {
            head: Head::new(DEVICE_PROPERTIES),
            kind: 0,
            numbers: [0; 5],
            allocation_max: 0,
            more_numbers: [0; 7],
            timer_resolution: 0,
            timestamp_bits: [0; 2],
            uuid: [0; 16],
            name: [0; 256],
        };
        // SAFETY: it writes the structure that it is told of.
        let code = unsafe { (self.functions.zeDeviceGetProperties)(device, &raw mut properties) };
        (code == SUCCESS).then_some(properties)
    }

    fn device(&self, number: u32) -> Result<&Device, DeviceError> {
        self.devices.get(number as usize).ok_or(DeviceError::BadAddress)
    }

    fn new_list(&self, device: &Device, mode: c_int) -> Result<Object, DeviceError> {
        let head = Head::new(QUEUE_DESCRIPTION);
        let description = QueueDescription { head, ordinal: device.ordinal, index: 0, flags: 0, mode, priority: 0 };
        let mut list = NONE;
        // SAFETY: it reads the description and writes one handle to where it is told.
        check(unsafe {
            let create = self.functions.zeCommandListCreateImmediate;
            create(device.context, device.device, &raw const description, &raw mut list)
        })?;
        Ok(list)
    }

    /// Runs commands on a synchronous list that no other thread has.
    fn with_list(
        &self,
        device: &Device,
        commands: impl FnOnce(Object) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let list = lock(&device.lists).pop();
        let list = list.map_or_else(|| self.new_list(device, MODE_SYNCHRONOUS), Ok)?;
        let done = commands(list);
        lock(&device.lists).push(list);
        done
    }

    /// Puts copies on a list.
    ///
    /// # Safety
    /// The pieces may be read and written until the list is done with them, and no other thread uses the list.
    unsafe fn append(&self, list: Object, pieces: &[Transfer]) -> Result<(), DeviceError> {
        pieces.iter().filter(|piece| piece.length > 0).try_for_each(|piece| {
            let (to, from) = (piece.to as *mut c_void, piece.from as *const c_void);
            let append = self.functions.zeCommandListAppendMemoryCopy;
            // SAFETY: as the caller promised.
            check(unsafe { append(list, to, from, piece.length, NONE, 0, null()) })
        })
    }

    /// An event that is not set.
    fn event(&self, device: &Device, started: &mut Started) -> Result<Object, DeviceError> {
        if let Some(event) = started.spares.pop() {
            // SAFETY: the event is ours, and no copy is to set it.
            check(unsafe { (self.functions.zeEventHostReset)(event) })?;
            return Ok(event);
        }
        if started.made >= LEVEL_ZERO_EVENTS {
            return Err(too_many());
        }
        let pool = match started.pool {
            Some(pool) => pool,
            None => {
                let head = Head::new(EVENT_POOL_DESCRIPTION);
                let count = LEVEL_ZERO_EVENTS as u32;
                let description = EventPoolDescription { head, flags: EVENTS_HOST_VISIBLE, count };
                let mut pool = NONE;
                // SAFETY: it reads the description and one device, and writes one handle to where it is told.
                check(unsafe {
                    let create = self.functions.zeEventPoolCreate;
                    create(device.context, &raw const description, 1, &raw const device.device, &raw mut pool)
                })?;
                *started.pool.insert(pool)
            }
        };
        let head = Head::new(EVENT_DESCRIPTION);
        let description = EventDescription { head, index: started.made as u32, signal: SCOPE_HOST, wait: SCOPE_HOST };
        let mut event = NONE;
        // SAFETY: it reads the description and writes one handle to where it is told; the index is below the pool's count
        // and in no use.
        check(unsafe { (self.functions.zeEventCreate)(pool, &raw const description, &raw mut event) })?;
        started.made += 1;
        Ok(event)
    }

    /// Events are never destroyed: another thread may still ask for this one.
    fn forget(&self, event: &Event) {
        if let Some((number, object)) = self.pending.remove(event)
            && let Ok(device) = self.device(number)
        {
            lock(&device.started).spares.push(object);
        }
    }

    /// Where the allocation that an address is in begins, and its bytes.
    fn range(&self, context: Object, address: u64) -> Option<(u64, u64)> {
        let (mut base, mut length) = (null_mut(), 0);
        // SAFETY: it writes an address and a length to where it is told.
        let code = unsafe {
            let pointer = address as *const c_void;
            (self.functions.zeMemGetAddressRange)(context, pointer, &raw mut base, &raw mut length)
        };
        (code == SUCCESS && !base.is_null()).then_some((base as u64, length as u64))
    }
}

/// What a call that fills an array lists: it is asked for the count, then for that many.
fn listed<T: Copy>(empty: T, call: impl Fn(*mut u32, *mut T) -> Code) -> Vec<T> {
    let mut count = 0;
    if call(&raw mut count, null_mut()) != SUCCESS {
        return Vec::new();
    }
    let room = LISTED_MAX.min(count as usize);
    let mut found = vec![empty; room];
    count = room as u32;
    if room == 0 || call(&raw mut count, found.as_mut_ptr()) != SUCCESS {
        return Vec::new();
    }
    found.truncate(count as usize);
    found
}

fn check(code: Code) -> Result<(), DeviceError> {
    match code {
        SUCCESS => Ok(()),
        OUT_OF_HOST_MEMORY | OUT_OF_DEVICE_MEMORY | UNSUPPORTED_SIZE => Err(DeviceError::OutOfMemory),
        UNSUPPORTED_FEATURE => Err(DeviceError::NotSupported),
        INVALID_ARGUMENT => Err(DeviceError::BadAddress),
        code => Err(DeviceError::Failed(text(code))),
    }
}

fn text(code: Code) -> String {
    format!("Level Zero error {code:#x}")
}

impl Operations for LevelZero {
    fn kind(&self) -> Kind {
        Kind::LevelZero
    }

    fn devices(&self) -> u32 {
        self.devices.len() as u32
    }

    fn describe(&self, device: u32) -> String {
        let object = self.device(device).map(|device| device.device);
        let Some((object, properties)) = object.ok().and_then(|object| Some((object, self.properties(object)?))) else {
            return format!("no Level Zero device {device}");
        };
        let head = Head::new(MEMORY_PROPERTIES);
        let empty = MemoryProperties { head, numbers: [0; 3], total: 0, name: [0; 256] };
        // SAFETY: it writes as many properties as there is room for.
        let memories = listed(empty, |count, places| unsafe {
            (self.functions.zeDeviceGetMemoryProperties)(object, count, places)
        });
        let bytes: u64 = memories.iter().map(|memory| memory.total).fold(0, u64::saturating_add);
        let name: Vec<u8> = properties.name.into_iter().take_while(|byte| *byte != 0).collect();
        format!("{}, {} MiB", String::from_utf8_lossy(&name), bytes >> 20)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { handles: true, descriptors: true, register_host: false, asynchronous: true }
    }

    unsafe fn copy(&self, device: u32, _direction: Direction, pieces: &[Transfer]) -> Result<(), DeviceError> {
        // SAFETY: as the caller promised; the list is this thread's, and synchronous.
        self.with_list(self.device(device)?, |list| unsafe { self.append(list, pieces) })
    }

    unsafe fn start(&self, device: u32, _direction: Direction, pieces: &[Transfer]) -> Result<Event, DeviceError> {
        let found = self.device(device)?;
        if !self.pending.has_room() {
            return Err(too_many());
        }
        let mut started = lock(&found.started);
        let list = match started.list {
            Some(list) => list,
            None => *started.list.insert(self.new_list(found, MODE_ASYNCHRONOUS)?),
        };
        let event = self.event(found, &mut started)?;
        // Copies on one list may overtake each other; the barrier waits for all of them.
        // SAFETY: as the caller promised; the lock keeps other threads off the list.
        let appended = unsafe { self.append(list, pieces) };
        // SAFETY: the list and the event are ours.
        let barrier = check(unsafe { (self.functions.zeCommandListAppendBarrier)(list, event, 0, null()) });
        let will_be_set = barrier.is_ok();
        let known = appended.and(barrier).and_then(|()| self.pending.insert((device, event)).map_err(|_| too_many()));
        if known.is_err() {
            // What was started still uses the caller's memory. An event that cannot be set is not used again.
            // SAFETY: the event is ours.
            if will_be_set && unsafe { (self.functions.zeEventHostSynchronize)(event, u64::MAX) } == SUCCESS {
                started.spares.push(event);
            }
        }
        known
    }

    fn is_done(&self, event: &Event) -> Result<bool, DeviceError> {
        let Some((_, object)) = self.pending.find(event) else {
            return Ok(true);
        };
        // SAFETY: events are never destroyed.
        let code = unsafe { (self.functions.zeEventQueryStatus)(object) };
        if code == NOT_READY {
            return Ok(false);
        }
        self.forget(event);
        check(code).map(|()| true)
    }

    fn wait(&self, event: Event) -> Result<(), DeviceError> {
        let Some((_, object)) = self.pending.find(&event) else {
            return Ok(());
        };
        // SAFETY: events are never destroyed.
        let done = check(unsafe { (self.functions.zeEventHostSynchronize)(object, u64::MAX) });
        self.forget(&event);
        done
    }

    fn allocate(&self, device: u32, length: usize) -> Result<u64, DeviceError> {
        let device = self.device(device)?;
        let rounded = length.checked_next_multiple_of(DEVICE_BLOCK_BYTES).ok_or(DeviceError::OutOfMemory)?;
        if rounded == 0 {
            return Err(DeviceError::BadAddress);
        }
        let head = Head::new(DEVICE_ALLOCATION_DESCRIPTION);
        let description = AllocationDescription { head, flags: 0, ordinal: 0 };
        let mut pointer = null_mut();
        // SAFETY: it reads the description and writes one address to where it is told.
        check(unsafe {
            let allocate = self.functions.zeMemAllocDevice;
            allocate(device.context, &raw const description, rounded, 0, device.device, &raw mut pointer)
        })?;
        let zero = 0u8;
        let zeroed = self.with_list(device, |list| {
            let fill = self.functions.zeCommandListAppendMemoryFill;
            // SAFETY: the memory is new and as long as was asked for; the list is this thread's, and synchronous.
            check(unsafe { fill(list, pointer, (&raw const zero).cast(), 1, rounded, NONE, 0, null()) })
        });
        if let Err(error) = zeroed {
            // SAFETY: allocated above, and nobody knows it.
            unsafe { (self.functions.zeMemFree)(device.context, pointer) };
            return Err(error);
        }
        Ok(pointer as u64)
    }

    unsafe fn free(&self, device: u32, address: u64) -> Result<(), DeviceError> {
        let context = self.device(device)?.context;
        // SAFETY: as the caller promised.
        check(unsafe { (self.functions.zeMemFree)(context, address as *mut c_void) })
    }

    fn classify(&self, address: u64) -> Option<Allocation> {
        let head = Head::new(ALLOCATION_PROPERTIES);
        for (number, device) in (0..).zip(&self.devices) {
            let mut properties = AllocationProperties { head, kind: 0, id: 0, page_bytes: 0 };
            let mut owner = NONE;
            // SAFETY: it writes the structure and one handle to where it is told.
            let code = unsafe {
                let pointer = address as *const c_void;
                (self.functions.zeMemGetAllocProperties)(device.context, pointer, &raw mut properties, &raw mut owner)
            };
            // Each device asks its own context, and knows only its own memory.
            let ours = code == SUCCESS && matches!(properties.kind, MEMORY_DEVICE | MEMORY_SHARED);
            if !ours || owner != device.device {
                continue;
            }
            let (base, length) = self.range(device.context, address)?;
            let imported = lock(&self.imports).contains_key(&base);
            let exportable = properties.kind == MEMORY_DEVICE && !imported;
            let place = Place { kind: Kind::LevelZero, device: number };
            return Some(Allocation { place, base, length, id: properties.id, exportable });
        }
        None
    }

    fn export(&self, address: u64) -> Result<Handle, DeviceError> {
        let Allocation { place, base, length, id, exportable } =
            self.classify(address).ok_or(DeviceError::BadAddress)?;
        if !exportable {
            return Err(DeviceError::NotSupported);
        }
        let context = self.device(place.device)?.context;
        let mut handle = IpcHandle([0; HANDLE_BYTES]);
        // SAFETY: it writes one handle to where it is told.
        check(unsafe { (self.functions.zeMemGetIpcHandle)(context, base as *const c_void, &raw mut handle) })?;
        let mut bytes = handle.0;
        // The driver puts the number of a descriptor of this process at the beginning of the handle. It closes that itself;
        // a copy of it travels.
        let number = descriptor_number(&mut bytes);
        // SAFETY: it only makes a copy of a descriptor, if the number is one.
        let copy = unsafe { libc::fcntl(i32::from_ne_bytes(*number), libc::F_DUPFD_CLOEXEC, 3) };
        if copy < 0 {
            return Err(DeviceError::NotSupported);
        }
        *number = [0; 4];
        // SAFETY: it was just made, for us.
        let descriptor = unsafe { OwnedFd::from_raw_fd(copy) };
        Ok(Handle { place, bytes, descriptor: Some(descriptor), length, id })
    }

    fn import(&self, handle: &Handle) -> Result<u64, DeviceError> {
        if handle.place.kind != Kind::LevelZero || handle.length == 0 {
            return Err(DeviceError::BadHandle);
        }
        let number = handle.place.device;
        let device = self.device(number).map_err(|_| DeviceError::BadHandle)?;
        let mut imports = lock(&self.imports);
        if imports.len() >= DEVICE_IMPORTS_MAX {
            return Err(DeviceError::OutOfMemory);
        }
        // Without one, the number in the handle would be the peer's choice among the descriptors of this process.
        let descriptor = handle.descriptor.as_ref().ok_or(DeviceError::BadHandle)?;
        let mut bytes = handle.bytes;
        *descriptor_number(&mut bytes) = descriptor.as_raw_fd().to_ne_bytes();
        let mut pointer = null_mut();
        // SAFETY: it writes one address to where it is told; the descriptor is open, and what it is of, the kernel checks.
        let opened = unsafe {
            (self.functions.zeMemOpenIpcHandle)(device.context, device.device, IpcHandle(bytes), 0, &raw mut pointer)
        };
        if opened != SUCCESS || pointer.is_null() {
            return Err(DeviceError::BadHandle);
        }
        let base = pointer as u64;
        let behind =
            self.range(device.context, base).map_or(0, |(start, length)| (start + length).saturating_sub(base));
        if behind < handle.length {
            // SAFETY: opened above, and nobody knows it.
            unsafe { (self.functions.zeMemCloseIpcHandle)(device.context, pointer) };
            return Err(DeviceError::BadHandle);
        }
        imports.entry(base).or_insert((0, number)).0 += 1;
        Ok(base)
    }

    unsafe fn release(&self, base: u64) -> Result<(), DeviceError> {
        let mut imports = lock(&self.imports);
        let (uses, number) = imports.get_mut(&base).ok_or(DeviceError::BadAddress)?;
        let context = self.device(*number)?.context;
        *uses -= 1;
        if *uses == 0 {
            imports.remove(&base);
        }
        // SAFETY: we opened it, and as the caller promised nothing uses it.
        check(unsafe { (self.functions.zeMemCloseIpcHandle)(context, base as *const c_void) })
    }

    unsafe fn register_host(&self, _pointer: *mut u8, _length: usize) -> Result<(), DeviceError> {
        Err(DeviceError::NotSupported)
    }

    unsafe fn unregister_host(&self, _pointer: *mut u8) -> Result<(), DeviceError> {
        Err(DeviceError::NotSupported)
    }
}

/// Where a handle has the number of its descriptor.
fn descriptor_number(bytes: &mut [u8; HANDLE_BYTES]) -> &mut [u8; 4] {
    #[expect(clippy::expect_used, reason = "a handle has more than four bytes")]
    bytes.first_chunk_mut().expect("at least four bytes")
}

impl fmt::Debug for LevelZero {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LevelZero({} devices)", self.devices.len())
    }
}
