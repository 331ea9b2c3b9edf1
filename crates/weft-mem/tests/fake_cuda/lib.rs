//! A library that looks like NVIDIA's driver to those who load it, so that what Weft makes of the driver can be tested
//! where there is none. Built as an example of the crate, as a library of C.
//!
//! It is as unkind as the real one may be: a copy on a stream happens when somebody waits for it, not before; an event is
//! asked for in vain once; a call without a current context fails. `FAKE_CUDA` names what is wrong with it.
#![allow(non_snake_case, reason = "the names are the driver's")]
#![allow(clippy::missing_safety_doc, reason = "the contracts are those of cuda.h")]
#![allow(missing_docs, reason = "cuda.h has it")]
#![allow(unreachable_pub, reason = "exported to C")]
#![allow(clippy::unwrap_used, reason = "a test's own helper: a panic is a failed test")]

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::{Mutex, MutexGuard};

const INVALID_VALUE: c_int = 1;
const OUT_OF_MEMORY: c_int = 2;
const NO_DEVICE: c_int = 100;
const INVALID_CONTEXT: c_int = 201;
const NOT_READY: c_int = 600;
const NOT_SUPPORTED: c_int = 801;
const DEVICES: c_int = 2;
const DEVICE_BYTES: usize = 1 << 30;
const GRANULARITY: usize = 2 << 20;

thread_local! {
    /// The context of the thread: the number of its device plus one.
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

#[derive(Default)]
struct State {
    allocations: BTreeMap<u64, Allocation>,
    pinned: BTreeMap<u64, usize>,
    streams: HashMap<usize, Vec<Work>>,
    events: HashMap<usize, Recorded>,
    next: usize,
}

struct Allocation {
    length: usize,
    device: c_int,
    id: u64,
    synchronous: bool,
    /// The descriptor of its memory.
    memory: c_int,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    /// Of `cuMemCreate`; whether it can be exported.
    Created(bool),
    Imported,
}

enum Work {
    Copy { to: u64, from: Source, length: usize },
    Fill { to: u64, value: u8, length: usize },
}

enum Source {
    Address(u64),
    Bytes(Vec<u8>),
}

#[derive(Default)]
struct Recorded {
    stream: usize,
    /// How often it was asked for since.
    asked: usize,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

struct Locked(MutexGuard<'static, Option<State>>);

impl std::ops::Deref for Locked {
    type Target = State;
    fn deref(&self) -> &State {
        self.0.as_ref().unwrap()
    }
}

impl std::ops::DerefMut for Locked {
    fn deref_mut(&mut self) -> &mut State {
        self.0.as_mut().unwrap()
    }
}

fn state() -> Locked {
    let mut guard = STATE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    guard.get_or_insert_default();
    Locked(guard)
}

fn wrong(what: &str) -> bool {
    std::env::var("FAKE_CUDA").is_ok_and(|value| value == what)
}

/// Whether the thread has a context.
fn entered() -> Result<c_int, c_int> {
    CURRENT.get().checked_sub(1).map(|device| device as c_int).ok_or(INVALID_CONTEXT)
}

fn code(outcome: Result<(), c_int>) -> c_int {
    outcome.err().unwrap_or(0)
}

impl State {
    fn number(&mut self) -> usize {
        self.next += 1;
        self.next
    }

    fn find(&self, address: u64) -> Option<(u64, &Allocation)> {
        let (base, found) = self.allocations.range(..=address).next_back()?;
        (address - base < found.length as u64).then_some((*base, found))
    }

    fn is_device(&self, address: u64, length: usize) -> bool {
        self.find(address).is_some_and(|(base, found)| address - base + length as u64 <= found.length as u64)
    }

    fn is_pinned(&self, address: u64, length: usize) -> bool {
        let range = self.pinned.range(..=address).next_back();
        range.is_some_and(|(base, pinned)| address - base + length as u64 <= *pinned as u64)
    }

    /// Maps memory; gives its address.
    fn map(&mut self, memory: c_int, length: usize, device: c_int, kind: Kind, at: u64) -> Result<u64, c_int> {
        let (protection, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        let flags = if at == 0 { shared } else { shared | libc::MAP_FIXED };
        // SAFETY: at an address of the system's choice, or one that `cuMemAddressReserve` took.
        let base = unsafe { libc::mmap(at as *mut c_void, length, protection, flags, memory, 0) };
        if base == libc::MAP_FAILED {
            return Err(INVALID_VALUE);
        }
        let id = self.number() as u64;
        self.allocations.insert(base as u64, Allocation { length, device, id, synchronous: false, memory, kind });
        Ok(base as u64)
    }

    fn unmap(&mut self, base: u64) -> Result<(), c_int> {
        let found = self.allocations.remove(&base).ok_or(INVALID_VALUE)?;
        // SAFETY: `map` made both.
        unsafe {
            libc::munmap(base as *mut c_void, found.length);
            libc::close(found.memory);
        }
        Ok(())
    }

    /// Does everything that is on a stream.
    fn run(&mut self, stream: usize) {
        for work in std::mem::take(self.streams.get_mut(&stream).unwrap()) {
            // SAFETY: whoever put it there promised that the memory stays until it is done.
            unsafe {
                match work {
                    Work::Fill { to, value, length } => (to as *mut u8).write_bytes(value, length),
                    Work::Copy { to, from: Source::Address(from), length } => {
                        std::ptr::copy(from as *const u8, to as *mut u8, length);
                    }
                    Work::Copy { to, from: Source::Bytes(bytes), length } => {
                        std::ptr::copy(bytes.as_ptr(), to as *mut u8, length);
                    }
                }
            }
        }
    }

    fn push(&mut self, stream: *mut c_void, work: Work) -> Result<(), c_int> {
        entered()?;
        // The legacy default stream is not one that anybody should use.
        self.streams.get_mut(&(stream as usize)).ok_or(INVALID_VALUE)?.push(work);
        Ok(())
    }
}

fn new_memory(length: usize) -> Result<c_int, c_int> {
    // SAFETY: the name ends with a zero; the descriptor is new.
    unsafe {
        let memory = libc::memfd_create(c"fake".as_ptr(), libc::MFD_CLOEXEC);
        if memory < 0 || libc::ftruncate(memory, length as i64) != 0 { Err(OUT_OF_MEMORY) } else { Ok(memory) }
    }
}

fn length_of(memory: c_int) -> Option<usize> {
    // SAFETY: the structure is written, or an error told.
    unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        (libc::fstat(memory, &raw mut status) == 0).then_some(status.st_size as usize)
    }
}

/// Whether a descriptor is of memory of this library, in whatever process.
fn is_ours(memory: c_int) -> bool {
    std::fs::read_link(format!("/proc/self/fd/{memory}"))
        .is_ok_and(|name| name.to_string_lossy().contains("memfd:fake"))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(_flags: c_uint) -> c_int {
    if wrong("none") { NO_DEVICE } else { 0 }
}

/// Writes a value to where the caller wants it.
macro_rules! give {
    ($place:expr, $value:expr) => {{
        let value = $value;
        // SAFETY: by the contract of cuda.h the caller gives a place for it.
        unsafe { $place.write(value) };
        0
    }};
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> c_int {
    give!(version, if wrong("old") { 10_020 } else { 13_000 })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(code: c_int, text: *mut *const c_char) -> c_int {
    let known: &CStr = if code == INVALID_CONTEXT { c"CUDA_ERROR_INVALID_CONTEXT" } else { c"CUDA_ERROR_OTHER" };
    give!(text, known.as_ptr())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(_code: c_int, text: *mut *const c_char) -> c_int {
    give!(text, c"fake".as_ptr())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> c_int {
    give!(count, if wrong("empty") { 0 } else { DEVICES })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> c_int {
    give!(device, ordinal)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, length: c_int, device: c_int) -> c_int {
    if !(0..DEVICES).contains(&device) {
        return INVALID_VALUE;
    }
    let text = c"Fake".to_bytes_with_nul();
    // SAFETY: the caller gives room for `length` bytes.
    unsafe { name.copy_from(text.as_ptr().cast(), text.len().min(length as usize)) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, _device: c_int) -> c_int {
    give!(bytes, DEVICE_BYTES)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, _device: c_int) -> c_int {
    give!(value, if attribute == 41 && wrong("separate") { 0 } else { 1 })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut usize, device: c_int) -> c_int {
    if !(0..DEVICES).contains(&device) { INVALID_VALUE } else { give!(context, device as usize + 1) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetCurrent(context: *mut usize) -> c_int {
    give!(context, CURRENT.get())
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(context: usize) -> c_int {
    CURRENT.set(context);
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(stream: *mut usize, flags: c_uint) -> c_int {
    code(entered().map(|_| {
        assert_eq!(flags, 1, "a stream that does not wait for the default one");
        let mut state = state();
        let number = state.number();
        state.streams.insert(number, Vec::new());
        give!(stream, number);
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(stream: usize) -> c_int {
    state().run(stream);
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(event: *mut usize, _flags: c_uint) -> c_int {
    code(entered().map(|_| {
        let mut state = state();
        let number = state.number();
        state.events.insert(number, Recorded::default());
        give!(event, number);
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecord(event: usize, stream: usize) -> c_int {
    state().events.insert(event, Recorded { stream, asked: 0 });
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventQuery(event: usize) -> c_int {
    let mut state = state();
    let recorded = state.events.get_mut(&event).unwrap();
    recorded.asked += 1;
    if recorded.asked < 2 {
        return NOT_READY;
    }
    let stream = recorded.stream;
    state.run(stream);
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventSynchronize(event: usize) -> c_int {
    let mut state = state();
    let stream = state.events.get(&event).unwrap().stream;
    state.run(stream);
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(pointer: *mut u64, bytes: usize) -> c_int {
    code(entered().and_then(|device| {
        if bytes == 0 || bytes > DEVICE_BYTES {
            return Err(if bytes == 0 { INVALID_VALUE } else { OUT_OF_MEMORY });
        }
        let base = state().map(new_memory(bytes)?, bytes, device, Kind::Plain, 0)?;
        // What was there before is anything but zeros.
        // SAFETY: just mapped.
        unsafe { (base as *mut u8).write_bytes(0xdb, bytes) };
        give!(pointer, base);
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(pointer: u64) -> c_int {
    code(entered().and_then(|_| state().unmap(pointer)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD8Async(to: u64, value: u8, length: usize, stream: *mut c_void) -> c_int {
    let mut state = state();
    if !state.is_device(to, length) {
        return INVALID_VALUE;
    }
    code(state.push(stream, Work::Fill { to, value, length }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(to: u64, from: u64, length: usize, stream: *mut c_void) -> c_int {
    let mut state = state();
    if !state.is_device(to, length) {
        return INVALID_VALUE;
    }
    let source = if state.is_pinned(from, length) {
        Source::Address(from)
    } else {
        // SAFETY: the caller's memory, as long as it says.
        Source::Bytes(unsafe { std::slice::from_raw_parts(from as *const u8, length) }.to_vec())
    };
    code(state.push(stream, Work::Copy { to, from: source, length }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(to: u64, from: u64, length: usize, stream: *mut c_void) -> c_int {
    let mut state = state();
    if !state.is_device(from, length) {
        return INVALID_VALUE;
    }
    let pinned = state.is_pinned(to, length);
    let pushed = state.push(stream, Work::Copy { to, from: Source::Address(from), length });
    if pushed.is_ok() && !pinned {
        state.run(stream as usize);
    }
    code(pushed)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyAsync(to: u64, from: u64, length: usize, stream: *mut c_void) -> c_int {
    let mut state = state();
    if !state.is_device(from, length) || !state.is_device(to, length) {
        return INVALID_VALUE;
    }
    code(state.push(stream, Work::Copy { to, from: Source::Address(from), length }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostAlloc(pointer: *mut u64, bytes: usize, _flags: c_uint) -> c_int {
    code(entered().map(|_| {
        let address = Box::leak(vec![0u8; bytes].into_boxed_slice()).as_mut_ptr() as u64;
        state().pinned.insert(address, bytes);
        give!(pointer, address);
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostRegister_v2(pointer: u64, bytes: usize, _flags: c_uint) -> c_int {
    code(entered().and_then(|_| if state().pinned.insert(pointer, bytes).is_none() { Ok(()) } else { Err(712) }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostUnregister(pointer: u64) -> c_int {
    code(entered().and_then(|_| state().pinned.remove(&pointer).map(|_| ()).ok_or(713)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAddressRange_v2(base: *mut u64, bytes: *mut usize, pointer: u64) -> c_int {
    let state = state();
    let Some((start, found)) = state.find(pointer) else {
        return INVALID_VALUE;
    };
    give!(base, start);
    give!(bytes, found.length)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuPointerGetAttributes(
    count: c_uint,
    attributes: *const c_int,
    values: *const *mut c_void,
    pointer: u64,
) -> c_int {
    let state = state();
    let found = state.find(pointer);
    let pinned = state.pinned.range(..=pointer).next_back().filter(|(base, length)| pointer - *base < **length as u64);
    for index in 0..count as usize {
        // SAFETY: the caller gives as many attributes and places as it says.
        let (attribute, place) = unsafe { (*attributes.add(index), *values.add(index)) };
        let value = match (attribute, found, pinned) {
            (2, Some(_), _) => 2,
            (2, None, Some(_)) => 1,
            (6, Some((_, found)), _) => u64::from(found.synchronous),
            (7, Some((_, found)), _) => found.id,
            (9, Some((_, found)), _) => found.device as u64,
            (10, Some((_, found)), _) => u64::from(found.kind == Kind::Plain),
            (11, Some((base, _)), _) => base,
            (11, None, Some((base, _))) => *base,
            (12, Some((_, found)), _) => found.length as u64,
            (12, None, Some((_, length))) => *length as u64,
            (14, Some((_, found)), _) => u64::from(found.kind == Kind::Created(true)),
            _ => 0,
        };
        // Some are words, the others shorter.
        // SAFETY: the places are as long as the attribute needs.
        unsafe {
            match attribute {
                7 | 11 | 12 | 14 | 17 => place.cast::<u64>().write_unaligned(value),
                2 | 9 => place.cast::<u32>().write_unaligned(value as u32),
                _ => place.cast::<u8>().write(value as u8),
            }
        }
    }
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn cuPointerSetAttribute(_value: *const c_void, attribute: c_int, pointer: u64) -> c_int {
    let mut state = state();
    let Some(base) = state.find(pointer).map(|(base, _)| base) else {
        return INVALID_VALUE;
    };
    match state.allocations.get_mut(&base) {
        Some(found) if attribute == 6 && found.kind == Kind::Plain => found.synchronous = true,
        _ => return NOT_SUPPORTED,
    }
    0
}

/// `CUipcMemHandle`: a mark, a process, and one of its descriptors.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct IpcHandle([u64; 8]);

const MARK: u64 = 0x6661_6b65;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuIpcGetMemHandle(handle: *mut IpcHandle, pointer: u64) -> c_int {
    code(entered().and_then(|_| {
        let state = state();
        let found = state.allocations.get(&pointer).filter(|found| found.kind == Kind::Plain).ok_or(INVALID_VALUE)?;
        let words = [MARK, u64::from(std::process::id()), found.memory as u64, 0, 0, 0, 0, 0];
        // SAFETY: the caller gives a place for it, which need not be aligned.
        unsafe { handle.write_unaligned(IpcHandle(words)) };
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuIpcOpenMemHandle_v2(pointer: *mut u64, handle: IpcHandle, _flags: c_uint) -> c_int {
    code(entered().and_then(|device| {
        let [mark, process, number, ..] = handle.0;
        // As the real one, it does not open what its own process exported.
        if mark != MARK || process == u64::from(std::process::id()) {
            return Err(INVALID_VALUE);
        }
        let name = std::ffi::CString::new(format!("/proc/{process}/fd/{number}")).unwrap();
        // SAFETY: the name ends with a zero.
        let memory = unsafe { libc::open(name.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
        let length = length_of(memory).ok_or(INVALID_VALUE)?;
        give!(pointer, state().map(memory, length, device, Kind::Imported, 0)?);
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuIpcCloseMemHandle(pointer: u64) -> c_int {
    code(entered().and_then(|_| state().unmap(pointer)))
}

/// `CUmemAllocationProp`.
#[repr(C)]
pub struct Properties {
    kind: c_int,
    handle_types: c_int,
    location: [c_int; 2],
    rest: [u64; 2],
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemCreate(
    handle: *mut u64,
    length: usize,
    properties: *const Properties,
    _flags: u64,
) -> c_int {
    // SAFETY: the caller gives the properties.
    let exportable = unsafe { (*properties).handle_types } == 1;
    match new_memory(length) {
        Ok(memory) => give!(handle, memory as u64 | u64::from(exportable) << 32),
        Err(code) => code,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAddressReserve(
    pointer: *mut u64,
    length: usize,
    _alignment: usize,
    _wish: u64,
    _flags: u64,
) -> c_int {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: at an address of the system's choice.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), length, libc::PROT_NONE, flags, -1, 0) };
    if base == libc::MAP_FAILED { OUT_OF_MEMORY } else { give!(pointer, base as u64) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAddressFree(_pointer: u64, _length: usize) -> c_int {
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemMap(pointer: u64, length: usize, _offset: usize, handle: u64, _flags: u64) -> c_int {
    let memory = handle as u32 as c_int;
    if length_of(memory).is_none_or(|most| length > most) {
        return INVALID_VALUE;
    }
    // SAFETY: it only makes a copy of a descriptor.
    let memory = unsafe { libc::fcntl(memory, libc::F_DUPFD_CLOEXEC, 3) };
    let kind = if handle >> 33 & 1 == 1 { Kind::Imported } else { Kind::Created(handle >> 32 & 1 == 1) };
    code(state().map(memory, length, 0, kind, pointer).map(|_| ()))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemUnmap(pointer: u64, _length: usize) -> c_int {
    code(state().unmap(pointer))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemSetAccess(_pointer: u64, _length: usize, _access: *const c_void, _count: usize) -> c_int {
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemRelease(handle: u64) -> c_int {
    // SAFETY: a descriptor that `cuMemCreate`, `cuMemRetainAllocationHandle` or an import made.
    unsafe { libc::close(handle as u32 as c_int) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemRetainAllocationHandle(handle: *mut u64, pointer: u64) -> c_int {
    let state = state();
    match state.allocations.get(&pointer) {
        Some(found) if matches!(found.kind, Kind::Created(_)) => {
            // SAFETY: it only makes a copy of a descriptor.
            let memory = unsafe { libc::fcntl(found.memory, libc::F_DUPFD_CLOEXEC, 3) };
            give!(handle, memory as u64 | u64::from(found.kind == Kind::Created(true)) << 32)
        }
        _ => INVALID_VALUE,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemExportToShareableHandle(to: *mut c_int, handle: u64, kind: c_int, _flags: u64) -> c_int {
    if kind != 1 || handle >> 32 & 1 == 0 {
        return INVALID_VALUE;
    }
    // SAFETY: it only makes a copy of a descriptor; it goes along with `exec`, as the real one may.
    give!(to, unsafe { libc::fcntl(handle as u32 as c_int, libc::F_DUPFD, 3) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemImportFromShareableHandle(handle: *mut u64, from: usize, kind: c_int) -> c_int {
    if kind != 1 || !is_ours(from as c_int) {
        return INVALID_VALUE;
    }
    // SAFETY: it only makes a copy of a descriptor.
    let memory = unsafe { libc::fcntl(from as c_int, libc::F_DUPFD_CLOEXEC, 3) };
    give!(handle, memory as u64 | 2 << 32)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAllocationPropertiesFromHandle(properties: *mut Properties, _handle: u64) -> c_int {
    give!(properties, Properties { kind: 1, handle_types: 1, location: [1, 0], rest: [0; 2] })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAllocationGranularity(
    bytes: *mut usize,
    _properties: *const Properties,
    _option: c_int,
) -> c_int {
    give!(bytes, GRANULARITY)
}
