//! Memory of AMD devices, through the HSA runtime (`libhsa-runtime64.so.1`, or what `WEFT_ROCM_LIBRARY` names).
//!
//! **Untested on hardware**: that the library loads, has the functions and says why there is no device is all that is tested.
//! So of several ways to do a thing the plainest is taken: synchronous copies are the runtime's own, which takes any host
//! memory; what is started goes to the copy engines, if the runtime knows the memory, and is otherwise done at once.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::path::Path;
use std::ptr::{null, null_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::library::{Library, Vendor, functions};
use super::pending::{Pending, lock, too_many};
use super::{
    Absent, Allocation, Capabilities, DeviceError, Direction, Event, HANDLE_BYTES, Handle, Kind, Operations, Place,
    Transfer,
};
use crate::limits::{DEVICE_BLOCK_BYTES, DEVICE_IMPORTS_MAX};

/// `hsa_status_t`.
type Code = c_int;

/// `hsa_agent_t`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
struct Agent(u64);

/// `hsa_amd_memory_pool_t`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
struct Pool(u64);

/// `hsa_signal_t`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
struct Signal(u64);

/// `hsa_amd_ipc_memory_t`.
#[derive(Clone, Copy)]
#[repr(C)]
struct IpcHandle([u8; IPC_BYTES], [u32; 0]);

const IPC_BYTES: usize = 32;

/// `hsa_amd_pointer_info_t`, as far as it was at first: it can only grow.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct PointerInfo {
    size: u32,
    kind: c_int,
    device_base: u64,
    host_base: u64,
    length: usize,
    user_data: u64,
    owner: Agent,
}

const _: () = {
    assert!(
        size_of::<PointerInfo>() == 48 && size_of::<IpcHandle>() == 32 && align_of::<IpcHandle>() == 4,
        "hsa_ext_amd.h"
    );
    assert!(IPC_BYTES <= HANDLE_BYTES);
};

const SUCCESS: Code = 0;
const INVALID_ARGUMENT: Code = 0x1001;
const INVALID_ALLOCATION: Code = 0x1003;
const OUT_OF_RESOURCES: Code = 0x1008;
const AGENT_NAME: c_int = 0;
const AGENT_DEVICE: c_int = 17;
const AGENT_PRODUCT_NAME: c_int = 0xa009;
const DEVICE_TYPE_CPU: c_int = 0;
const DEVICE_TYPE_GPU: c_int = 1;
const POOL_SEGMENT: c_int = 0;
const POOL_GLOBAL_FLAGS: c_int = 1;
const POOL_SIZE: c_int = 2;
const POOL_ALLOCATION_ALLOWED: c_int = 5;
const SEGMENT_GLOBAL: u32 = 0;
const POOL_COARSE_GRAINED: u32 = 4;
const POINTER_ALLOCATED: c_int = 1;
const POINTER_LOCKED: c_int = 2;
const POINTER_GRAPHICS: c_int = 3;
const POINTER_IPC: c_int = 4;
const CONDITION_LESS: c_int = 2;
const WAIT_ACTIVE: c_int = 1;

functions! {
    struct Functions {
        fn hsa_init() -> Code;
        fn hsa_status_string(code: Code, text: *mut *const c_char) -> Code;
        fn hsa_iterate_agents(callback: unsafe extern "C" fn(Agent, *mut c_void) -> Code, data: *mut c_void) -> Code;
        fn hsa_agent_get_info(agent: Agent, attribute: c_int, value: *mut c_void) -> Code;
        fn hsa_memory_copy(to: *mut c_void, from: *const c_void, bytes: usize) -> Code;
        fn hsa_signal_create(value: i64, count: u32, consumers: *const Agent, signal: *mut Signal) -> Code;
        fn hsa_signal_load_scacquire(signal: Signal) -> i64;
        fn hsa_signal_store_screlease(signal: Signal, value: i64) -> ();
        fn hsa_signal_subtract_screlease(signal: Signal, value: i64) -> ();
        fn hsa_signal_wait_scacquire(
            signal: Signal, condition: c_int, value: i64, timeout: u64, how: c_int,
        ) -> i64;
        fn hsa_amd_agent_iterate_memory_pools(
            agent: Agent, callback: unsafe extern "C" fn(Pool, *mut c_void) -> Code, data: *mut c_void,
        ) -> Code;
        fn hsa_amd_memory_pool_get_info(pool: Pool, attribute: c_int, value: *mut c_void) -> Code;
        fn hsa_amd_memory_pool_allocate(pool: Pool, bytes: usize, flags: u32, pointer: *mut *mut c_void) -> Code;
        fn hsa_amd_memory_pool_free(pointer: *mut c_void) -> Code;
        fn hsa_amd_memory_fill(pointer: *mut c_void, value: u32, count: usize) -> Code;
        fn hsa_amd_agents_allow_access(
            count: u32, agents: *const Agent, flags: *const u32, pointer: *const c_void,
        ) -> Code;
        fn hsa_amd_memory_async_copy(
            to: *mut c_void, to_agent: Agent, from: *const c_void, from_agent: Agent, bytes: usize,
            count: u32, after: *const Signal, done: Signal,
        ) -> Code;
        fn hsa_amd_pointer_info(
            pointer: *const c_void, info: *mut PointerInfo, allocate: *const c_void, count: *mut u32,
            agents: *mut *mut Agent,
        ) -> Code;
        fn hsa_amd_pointer_info_set_userdata(pointer: *const c_void, data: *mut c_void) -> Code;
        fn hsa_amd_ipc_memory_create(pointer: *mut c_void, bytes: usize, handle: *mut IpcHandle) -> Code;
        fn hsa_amd_ipc_memory_attach(
            handle: *const IpcHandle, bytes: usize, count: u32, agents: *const Agent, pointer: *mut *mut c_void,
        ) -> Code;
        fn hsa_amd_ipc_memory_detach(pointer: *mut c_void) -> Code;
        fn hsa_amd_memory_lock(
            pointer: *mut c_void, bytes: usize, agents: *const Agent, count: c_int, on_device: *mut *mut c_void,
        ) -> Code;
        fn hsa_amd_memory_unlock(pointer: *mut c_void) -> Code;
    }
}

/// The kind, when it is first asked for.
pub(super) static ROCM: Vendor<Rocm> = Vendor::new("WEFT_ROCM_LIBRARY", "libhsa-runtime64.so.1", Rocm::load);

/// The runtime and its devices.
pub(super) struct Rocm {
    functions: Functions,
    host: Agent,
    devices: Vec<Device>,
    pending: Pending<Signal>,
    spares: Mutex<Vec<Signal>>,
    imports: Mutex<HashMap<u64, usize>>,
    next_id: AtomicU64,
}

#[derive(Clone, Copy, Debug)]
struct Device {
    agent: Agent,
    pool: Pool,
}

/// What marks an allocation's user data as an id of ours. The runtime has no ids; its user data goes with the allocation,
/// so that one made later at the same place has none yet.
const ID_MARK: u64 = 0x5745_4654 << 32;

impl Rocm {
    fn load(library: &Library) -> Result<Rocm, Absent> {
        let functions = Functions::load(library)?;
        let mut rocm = Rocm {
            functions,
            host: Agent::default(),
            devices: Vec::new(),
            pending: Pending::new(),
            spares: Mutex::new(Vec::new()),
            imports: Mutex::new(HashMap::new()),
            next_id: AtomicU64::new(1),
        };
        let name = library.name();
        // SAFETY: the first call, as the runtime asks for. It is never shut down.
        match unsafe { (rocm.functions.hsa_init)() } {
            SUCCESS => {}
            _ if !Path::new("/dev/kfd").exists() => {
                return Err(Absent(format!("{name} finds no AMD device: there is no /dev/kfd")));
            }
            code => {
                return Err(Absent(format!("{name} does not start: {}", rocm.text(code))));
            }
        }
        let mut agents: Vec<Agent> = Vec::new();
        // SAFETY: the callback gets the vector, and only while this call lasts.
        let listed = unsafe { (rocm.functions.hsa_iterate_agents)(push, (&raw mut agents).cast()) };
        rocm.check(listed).map_err(|error| Absent(format!("{name} does not list its devices: {error}")))?;
        for agent in agents {
            match rocm.device_type(agent) {
                Some(DEVICE_TYPE_CPU) if rocm.host == Agent::default() => rocm.host = agent,
                Some(DEVICE_TYPE_GPU) => rocm.devices.extend(rocm.pool_of(agent).map(|pool| Device { agent, pool })),
                _ => {}
            }
        }
        if rocm.devices.is_empty() {
            return Err(Absent(format!("{name} finds no AMD device with memory of its own")));
        }
        Ok(rocm)
    }

    fn check(&self, code: Code) -> Result<(), DeviceError> {
        match code {
            SUCCESS => Ok(()),
            INVALID_ARGUMENT => Err(DeviceError::BadAddress),
            INVALID_ALLOCATION | OUT_OF_RESOURCES => Err(DeviceError::OutOfMemory),
            code => Err(DeviceError::Failed(self.text(code))),
        }
    }

    fn text(&self, code: Code) -> String {
        let mut text = null();
        // SAFETY: it writes a pointer to a text that lives as long as the runtime, or nothing.
        unsafe { (self.functions.hsa_status_string)(code, &raw mut text) };
        if text.is_null() {
            return format!("HSA error {code:#x}");
        }
        // SAFETY: not null, so a text that ends with a zero.
        format!("{} (HSA error {code:#x})", unsafe { CStr::from_ptr(text) }.to_string_lossy())
    }

    fn device_type(&self, agent: Agent) -> Option<c_int> {
        let mut kind: c_int = -1;
        // SAFETY: the attribute is an enumeration of C, written to where it is told.
        let found = unsafe { (self.functions.hsa_agent_get_info)(agent, AGENT_DEVICE, (&raw mut kind).cast()) };
        (found == SUCCESS).then_some(kind)
    }

    /// The pool of an agent from which memory of the device comes.
    fn pool_of(&self, agent: Agent) -> Option<Pool> {
        let mut pools: Vec<Pool> = Vec::new();
        // SAFETY: the callback gets the vector, and only while this call lasts.
        unsafe { (self.functions.hsa_amd_agent_iterate_memory_pools)(agent, push, (&raw mut pools).cast()) };
        pools.into_iter().find(|pool| {
            self.pool_number(*pool, POOL_SEGMENT) == Some(u64::from(SEGMENT_GLOBAL))
                && self
                    .pool_number(*pool, POOL_GLOBAL_FLAGS)
                    .is_some_and(|flags| flags as u32 & POOL_COARSE_GRAINED != 0)
                && self.pool_number(*pool, POOL_ALLOCATION_ALLOWED).is_some_and(|allowed| allowed & 0xff != 0)
        })
    }

    /// A number that the runtime knows of a pool. None is longer than a word.
    fn pool_number(&self, pool: Pool, attribute: c_int) -> Option<u64> {
        let mut value = 0u64;
        // SAFETY: the value is written to where it is told, which is long enough for each of the attributes used here.
        let found = unsafe { (self.functions.hsa_amd_memory_pool_get_info)(pool, attribute, (&raw mut value).cast()) };
        (found == SUCCESS).then_some(value)
    }

    fn device(&self, number: u32) -> Result<Device, DeviceError> {
        self.devices.get(number as usize).copied().ok_or(DeviceError::BadAddress)
    }

    /// What the runtime knows of an address; `None`: nothing.
    fn pointer_info(&self, address: u64) -> Option<PointerInfo> {
        let mut info = PointerInfo {
            size: size_of::<PointerInfo>() as u32,
            kind: 0,
            device_base: 0,
            host_base: 0,
            length: 0,
            user_data: 0,
            owner: Agent::default(),
        };
        // SAFETY: it writes at most as many bytes as `size` says.
        let found = unsafe {
            let pointer = address as *const c_void;
            (self.functions.hsa_amd_pointer_info)(pointer, &raw mut info, null(), null_mut(), null_mut())
        };
        (address != 0 && found == SUCCESS && info.kind != 0).then_some(info)
    }

    /// Where the copy engines find host memory, and all of it; `None`: the runtime does not know it.
    fn on_device(&self, address: u64, length: usize) -> Option<u64> {
        let info = self.pointer_info(address)?;
        let offset = [info.host_base, info.device_base]
            .into_iter()
            .filter_map(|base| address.checked_sub(base))
            .find(|offset| *offset < info.length as u64)?;
        let whole = info.length as u64 - offset >= length as u64;
        (matches!(info.kind, POINTER_ALLOCATED | POINTER_LOCKED) && whole).then_some(info.device_base + offset)
    }

    /// The agent that owns an address.
    fn owner(&self, address: u64, otherwise: Agent) -> Agent {
        let owner = self.pointer_info(address).map_or(otherwise, |info| info.owner);
        if self.devices.iter().any(|device| device.agent == owner) { owner } else { otherwise }
    }

    /// A piece as the copy engines take it: addresses and agents. `None`: they cannot.
    fn for_engines(&self, agent: Agent, direction: Direction, piece: &Transfer) -> Option<(Transfer, Agent, Agent)> {
        Some(match direction {
            Direction::ToDevice => {
                (Transfer { from: self.on_device(piece.from, piece.length)?, ..*piece }, agent, self.host)
            }
            Direction::FromDevice => {
                (Transfer { to: self.on_device(piece.to, piece.length)?, ..*piece }, self.host, agent)
            }
            Direction::Within => (*piece, self.owner(piece.to, agent), self.owner(piece.from, agent)),
        })
    }

    fn signal(&self, value: i64) -> Result<Signal, DeviceError> {
        let spare = lock(&self.spares).pop();
        if let Some(signal) = spare {
            // SAFETY: the signal is ours, and nothing waits for it or changes it.
            unsafe { (self.functions.hsa_signal_store_screlease)(signal, value) };
            return Ok(signal);
        }
        let mut signal = Signal::default();
        // SAFETY: it writes one handle to where it is told.
        self.check(unsafe { (self.functions.hsa_signal_create)(value, 0, null(), &raw mut signal) })?;
        Ok(signal)
    }

    /// Signals are never destroyed: another thread may still ask for the event.
    fn forget(&self, event: &Event) {
        if let Some(signal) = self.pending.remove(event) {
            lock(&self.spares).push(signal);
        }
    }

    /// Waits until all pieces behind a signal are done; negative values are failures.
    fn await_signal(&self, signal: Signal) -> Result<(), DeviceError> {
        loop {
            // SAFETY: the signal is ours. The call may return early.
            let value =
                unsafe { (self.functions.hsa_signal_wait_scacquire)(signal, CONDITION_LESS, 1, u64::MAX, WAIT_ACTIVE) };
            if value < 1 {
                return outcome(value);
            }
        }
    }
}

fn outcome(value: i64) -> Result<(), DeviceError> {
    if value < 0 { Err(DeviceError::Failed("a copy engine failed".to_owned())) } else { Ok(()) }
}

/// A callback that keeps what it is given in the vector behind `data`.
unsafe extern "C" fn push<T>(found: T, data: *mut c_void) -> Code {
    // SAFETY: the callers give a vector of this type, which nothing else uses meanwhile.
    unsafe { &mut *data.cast::<Vec<T>>() }.push(found);
    SUCCESS
}

impl Operations for Rocm {
    fn kind(&self) -> Kind {
        Kind::Rocm
    }

    fn devices(&self) -> u32 {
        self.devices.len() as u32
    }

    fn describe(&self, device: u32) -> String {
        let Ok(device) = self.device(device) else {
            return format!("no ROCm device {device}");
        };
        let text = |attribute| {
            let mut text = [0u8; 65];
            // SAFETY: both names are 64 bytes long, written to where it is told.
            unsafe { (self.functions.hsa_agent_get_info)(device.agent, attribute, text.as_mut_ptr().cast()) };
            let text: Vec<u8> = text.into_iter().take_while(|byte| *byte != 0).collect();
            String::from_utf8_lossy(&text).into_owned()
        };
        let bytes = self.pool_number(device.pool, POOL_SIZE).unwrap_or(0);
        format!("{} ({}), {} MiB", text(AGENT_PRODUCT_NAME), text(AGENT_NAME), bytes >> 20)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { handles: true, descriptors: false, register_host: true, asynchronous: true }
    }

    unsafe fn copy(&self, device: u32, _direction: Direction, pieces: &[Transfer]) -> Result<(), DeviceError> {
        self.device(device)?;
        for piece in pieces.iter().filter(|piece| piece.length > 0) {
            let (to, from) = (piece.to as *mut c_void, piece.from as *const c_void);
            // SAFETY: as the caller promised.
            self.check(unsafe { (self.functions.hsa_memory_copy)(to, from, piece.length) })?;
        }
        Ok(())
    }

    /// Host memory that is not registered is copied before this returns.
    unsafe fn start(&self, device: u32, direction: Direction, pieces: &[Transfer]) -> Result<Event, DeviceError> {
        let agent = self.device(device)?.agent;
        if !self.pending.has_room() {
            return Err(too_many());
        }
        let pieces: Vec<&Transfer> = pieces.iter().filter(|piece| piece.length > 0).collect();
        // Each piece takes one from the signal when it is done.
        let mut left = pieces.len() as i64;
        let signal = self.signal(left)?;
        let started = pieces.into_iter().try_for_each(|piece| {
            match self.for_engines(agent, direction, piece) {
                Some((part, to_agent, from_agent)) => {
                    let (to, from) = (part.to as *mut c_void, part.from as *const c_void);
                    let copy = self.functions.hsa_amd_memory_async_copy;
                    // SAFETY: as the caller promised.
                    self.check(unsafe { copy(to, to_agent, from, from_agent, part.length, 0, null(), signal) })?;
                }
                None => {
                    // SAFETY: as the caller promised.
                    unsafe { self.copy(device, direction, std::slice::from_ref(piece))? };
                    // SAFETY: the signal is ours.
                    unsafe { (self.functions.hsa_signal_subtract_screlease)(signal, 1) };
                }
            }
            left -= 1;
            Ok(())
        });
        let event = started.and_then(|()| self.pending.insert(signal).map_err(|_| too_many()));
        if event.is_err() {
            // What was started still uses the caller's memory; what was not would never be done.
            // SAFETY: the signal is ours.
            unsafe { (self.functions.hsa_signal_subtract_screlease)(signal, left) };
            let _ = self.await_signal(signal);
            lock(&self.spares).push(signal);
        }
        event
    }

    fn is_done(&self, event: &Event) -> Result<bool, DeviceError> {
        let Some(signal) = self.pending.find(event) else {
            return Ok(true);
        };
        // SAFETY: the signal is ours.
        let value = unsafe { (self.functions.hsa_signal_load_scacquire)(signal) };
        if value >= 1 {
            return Ok(false);
        }
        self.forget(event);
        outcome(value).map(|()| true)
    }

    fn wait(&self, event: Event) -> Result<(), DeviceError> {
        let Some(signal) = self.pending.find(&event) else {
            return Ok(());
        };
        let done = self.await_signal(signal);
        self.forget(&event);
        done
    }

    fn allocate(&self, device: u32, length: usize) -> Result<u64, DeviceError> {
        let device = self.device(device)?;
        let rounded = length.checked_next_multiple_of(DEVICE_BLOCK_BYTES).ok_or(DeviceError::OutOfMemory)?;
        if rounded == 0 {
            return Err(DeviceError::BadAddress);
        }
        let mut pointer = null_mut();
        // SAFETY: it writes one address to where it is told.
        self.check(unsafe {
            (self.functions.hsa_amd_memory_pool_allocate)(device.pool, rounded, 0, &raw mut pointer)
        })?;
        // SAFETY: the memory is new, and as long as was asked for.
        let zeroed =
            self.check(unsafe { (self.functions.hsa_amd_memory_fill)(pointer, 0, rounded / size_of::<u32>()) });
        if let Err(error) = zeroed {
            // SAFETY: allocated above, and nobody knows it.
            unsafe { (self.functions.hsa_amd_memory_pool_free)(pointer) };
            return Err(error);
        }
        let agents: Vec<Agent> = self.devices.iter().map(|device| device.agent).collect();
        // Copies between devices need it. Where the devices do not reach each other they fail then, not this.
        // SAFETY: it reads as many agents as it is told; the memory is new.
        unsafe {
            (self.functions.hsa_amd_agents_allow_access)(agents.len() as u32, agents.as_ptr(), null(), pointer);
        }
        Ok(pointer as u64)
    }

    unsafe fn free(&self, device: u32, address: u64) -> Result<(), DeviceError> {
        self.device(device)?;
        // SAFETY: as the caller promised.
        self.check(unsafe { (self.functions.hsa_amd_memory_pool_free)(address as *mut c_void) })
    }

    fn classify(&self, address: u64) -> Option<Allocation> {
        let info = self.pointer_info(address)?;
        let device = self.devices.iter().position(|device| device.agent == info.owner)? as u32;
        if !matches!(info.kind, POINTER_ALLOCATED | POINTER_GRAPHICS | POINTER_IPC) {
            return None;
        }
        let id = if info.user_data & 0xffff_ffff << 32 == ID_MARK {
            info.user_data
        } else {
            let id = ID_MARK | self.next_id.fetch_add(1, Ordering::Relaxed) & 0xffff_ffff;
            if info.user_data == 0 {
                // If that fails, or the data is another's, the next look gives another id: no cache finds it, none is wrong.
                // SAFETY: the data is only ever read as a number.
                unsafe {
                    let base = info.device_base as *const c_void;
                    (self.functions.hsa_amd_pointer_info_set_userdata)(base, id as *mut c_void);
                }
            }
            id
        };
        let imported = info.kind != POINTER_ALLOCATED || lock(&self.imports).contains_key(&info.device_base);
        let place = Place { kind: Kind::Rocm, device };
        let length = info.length as u64;
        Some(Allocation { place, base: info.device_base, length, id, exportable: !imported })
    }

    fn export(&self, address: u64) -> Result<Handle, DeviceError> {
        let Allocation { place, base, length, id, exportable } =
            self.classify(address).ok_or(DeviceError::BadAddress)?;
        if !exportable {
            return Err(DeviceError::NotSupported);
        }
        let mut handle = IpcHandle([0; IPC_BYTES], []);
        let pointer = base as *mut c_void;
        // SAFETY: it writes one handle to where it is told.
        self.check(unsafe { (self.functions.hsa_amd_ipc_memory_create)(pointer, length as usize, &raw mut handle) })?;
        let mut bytes = [0; HANDLE_BYTES];
        bytes.iter_mut().zip(handle.0).for_each(|(byte, value)| *byte = value);
        Ok(Handle { place, bytes, descriptor: None, length, id })
    }

    fn import(&self, handle: &Handle) -> Result<u64, DeviceError> {
        let length = usize::try_from(handle.length).map_err(|_| DeviceError::BadHandle)?;
        if handle.place.kind != Kind::Rocm || length == 0 {
            return Err(DeviceError::BadHandle);
        }
        let mut imports = lock(&self.imports);
        if imports.len() >= DEVICE_IMPORTS_MAX {
            return Err(DeviceError::OutOfMemory);
        }
        let mut bytes = IpcHandle([0; IPC_BYTES], []);
        bytes.0.iter_mut().zip(handle.bytes).for_each(|(byte, value)| *byte = value);
        let mut pointer = null_mut();
        // SAFETY: it reads the handle, which the kernel checks, and writes one address to where it is told.
        let attached = unsafe {
            (self.functions.hsa_amd_ipc_memory_attach)(&raw const bytes, length, 0, null(), &raw mut pointer)
        };
        if attached != SUCCESS {
            return Err(DeviceError::BadHandle);
        }
        let base = pointer as u64;
        let behind = |info: PointerInfo| (info.device_base + info.length as u64).saturating_sub(base);
        if self.pointer_info(base).map_or(0, behind) < handle.length {
            // SAFETY: attached above, and nobody knows it.
            unsafe { (self.functions.hsa_amd_ipc_memory_detach)(pointer) };
            return Err(DeviceError::BadHandle);
        }
        *imports.entry(base).or_insert(0) += 1;
        Ok(base)
    }

    unsafe fn release(&self, base: u64) -> Result<(), DeviceError> {
        let mut imports = lock(&self.imports);
        let uses = imports.get_mut(&base).ok_or(DeviceError::BadAddress)?;
        *uses -= 1;
        if *uses == 0 {
            imports.remove(&base);
        }
        // SAFETY: we attached it, and as the caller promised nothing uses it.
        self.check(unsafe { (self.functions.hsa_amd_ipc_memory_detach)(base as *mut c_void) })
    }

    unsafe fn register_host(&self, pointer: *mut u8, length: usize) -> Result<(), DeviceError> {
        let mut on_device = null_mut();
        // SAFETY: as the caller promised; it writes one address to where it is told. No agents are all agents.
        self.check(unsafe {
            (self.functions.hsa_amd_memory_lock)(pointer.cast(), length, null(), 0, &raw mut on_device)
        })
    }

    unsafe fn unregister_host(&self, pointer: *mut u8) -> Result<(), DeviceError> {
        // SAFETY: as the caller promised.
        self.check(unsafe { (self.functions.hsa_amd_memory_unlock)(pointer.cast()) })
    }
}

impl fmt::Debug for Rocm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rocm({} devices)", self.devices.len())
    }
}
