//! Memory of devices: one table of operations for each kind.
//!
//! Everything that touches memory that is not the host's goes through [`Operations`]. A kind whose library is not there
//! is absent, with the reason ([`operations`]); nothing else changes. Read [`Operations`] first.

use std::fmt;
use std::os::fd::OwnedFd;

mod cuda;
pub mod emulated;
mod level_zero;
mod library;
mod pending;
mod presence;
mod rocm;
mod system;

/// Kinds of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// The host's.
    System = 0,
    /// A device made of host memory that faults when it is touched other than through its operations.
    Emulated = 1,
    /// NVIDIA, through the driver's `libcuda.so.1`.
    Cuda = 2,
    /// AMD, through `libhsa-runtime64.so.1`.
    Rocm = 3,
    /// Intel, through `libze_loader.so.1`.
    LevelZero = 4,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 5] = [Kind::System, Kind::Emulated, Kind::Cuda, Kind::Rocm, Kind::LevelZero];

    /// The kind of a number, as it came from elsewhere.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| *kind as u8 == number)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::System => "system",
            Kind::Emulated => "emulated",
            Kind::Cuda => "cuda",
            Kind::Rocm => "rocm",
            Kind::LevelZero => "level-zero",
        })
    }
}

/// Where memory is: its kind, and which device of that kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Kind of memory.
    pub kind: Kind,
    /// Number of the device.
    pub device: u32,
}

impl Place {
    /// The host's memory.
    pub const HOST: Place = Place { kind: Kind::System, device: 0 };

    /// Memory of the host that need not be mapped: reached through the system only, so never loaded from or stored to.
    pub const GUARDED: Place = Place { kind: Kind::System, device: 1 };

    /// Device `device` of a kind.
    #[must_use]
    pub const fn new(kind: Kind, device: u32) -> Place {
        Place { kind, device }
    }

    /// Whether the host may load and store there.
    #[must_use]
    #[inline]
    pub const fn is_host(self) -> bool {
        matches!(self.kind, Kind::System) && self.device == Place::HOST.device
    }

    /// Whether it is [`Place::GUARDED`].
    #[must_use]
    #[inline]
    pub const fn is_guarded(self) -> bool {
        matches!(self.kind, Kind::System) && self.device == Place::GUARDED.device
    }

    /// Where a pointer points to, as the kinds that are present say; the host's memory if none of them knows it. Cheap
    /// enough to be asked with every operation where no device's library is in the process.
    #[must_use]
    pub fn of<T>(pointer: *const T) -> Place {
        Allocation::of(pointer as u64).map_or(Place::HOST, |allocation| allocation.place)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            place if place.is_host() => f.write_str("host memory"),
            place if place.is_guarded() => f.write_str("host memory that need not be mapped"),
            place => write!(f, "{} device {}", place.kind, place.device),
        }
    }
}

/// One piece of a copy. Which of the addresses are the device's is what [`Direction`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// First byte to write.
    pub to: u64,
    /// First byte to read.
    pub from: u64,
    /// Bytes.
    pub length: usize,
}

/// From where to where a copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the host's memory to the device's.
    ToDevice,
    /// From the device's memory to the host's.
    FromDevice,
    /// Inside the device, or between devices of the same kind.
    Within,
}

/// A copy that was started. Its number means something to the operations that gave it; each is waited for, or asked
/// about until it is done, once.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the copy may not be done yet"]
pub struct Event(pub u64);

/// An allocation, as a pointer into it finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Where the memory is.
    pub place: Place,
    /// Its first byte.
    pub base: u64,
    /// Bytes.
    pub length: u64,
    /// Differs from that of every other allocation of the process, also of earlier ones at the same place.
    pub id: u64,
    /// Other processes can open it.
    pub exportable: bool,
}

impl Allocation {
    /// The device allocation that an address is in, of whatever kind is present; `None`: it is not a device's.
    #[must_use]
    pub fn of(address: u64) -> Option<Allocation> {
        if !presence::may_have_devices() {
            return None;
        }
        Kind::ALL.into_iter().filter_map(in_use).find_map(|kind| kind.classify(address))
    }
}

/// What another process needs to reach an allocation.
#[derive(Debug)]
pub struct Handle {
    /// Where the memory is.
    pub place: Place,
    /// As the kind's library made it; meaningless but to [`Operations::import`] of the same kind.
    pub bytes: [u8; HANDLE_BYTES],
    /// A descriptor that has to travel with it, where the kind needs one.
    pub descriptor: Option<OwnedFd>,
    /// Bytes of the allocation.
    pub length: u64,
    /// [`Allocation::id`] in the process that exported it.
    pub id: u64,
}

/// Bytes of [`Handle::bytes`]: the longest of all kinds.
pub const HANDLE_BYTES: usize = 64;

/// What a kind can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Allocations can be opened by other processes.
    pub handles: bool,
    /// Some allocations need a descriptor to be opened ([`Handle::descriptor`]).
    pub descriptors: bool,
    /// Host memory can be made known to the device, so that copies need no copy of the driver's.
    pub register_host: bool,
    /// [`Operations::start`] returns before the copy is done.
    pub asynchronous: bool,
}

/// The operations on one kind of memory.
///
/// Addresses are numbers: what they mean is the kind's business. All calls may come from any thread.
pub trait Operations: Send + Sync + fmt::Debug {
    /// Which kind.
    fn kind(&self) -> Kind;

    /// Devices of this kind.
    fn devices(&self) -> u32;

    /// What a device is, for people.
    fn describe(&self, device: u32) -> String;

    /// What the kind can do.
    fn capabilities(&self) -> Capabilities;

    /// Copies pieces, and returns when all of them are done.
    ///
    /// # Safety
    /// Every piece may be read and written as `direction` says, until this returns.
    unsafe fn copy(&self, device: u32, direction: Direction, pieces: &[Transfer]) -> Result<(), DeviceError>;

    /// Starts to copy pieces; the event tells when they are done.
    ///
    /// # Safety
    /// Every piece may be read and written as `direction` says, until the event is done.
    unsafe fn start(&self, device: u32, direction: Direction, pieces: &[Transfer]) -> Result<Event, DeviceError>;

    /// Whether a copy is done; a done one is forgotten.
    fn is_done(&self, event: &Event) -> Result<bool, DeviceError>;

    /// Waits until a copy is done.
    fn wait(&self, event: Event) -> Result<(), DeviceError>;

    /// Allocates zeroed memory.
    fn allocate(&self, device: u32, length: usize) -> Result<u64, DeviceError>;

    /// Frees memory.
    ///
    /// # Safety
    /// [`Operations::allocate`] gave it, nothing uses it, and it was not freed.
    unsafe fn free(&self, device: u32, address: u64) -> Result<(), DeviceError>;

    /// The allocation that an address is in; `None`: it is not of this kind.
    fn classify(&self, address: u64) -> Option<Allocation>;

    /// A handle for the allocation that an address is in.
    fn export(&self, address: u64) -> Result<Handle, DeviceError>;

    /// Maps the allocation of another process; gives its first byte. The handle may come from a process that lies: what
    /// is mapped is at least `handle.length` bytes, or this fails.
    fn import(&self, handle: &Handle) -> Result<u64, DeviceError>;

    /// Ends a mapping.
    ///
    /// # Safety
    /// [`Operations::import`] gave it, nothing uses it, and it was not released.
    unsafe fn release(&self, base: u64) -> Result<(), DeviceError>;

    /// Makes host memory known to the devices, where [`Capabilities::register_host`].
    ///
    /// # Safety
    /// The memory stays mapped until [`Operations::unregister_host`].
    unsafe fn register_host(&self, pointer: *mut u8, length: usize) -> Result<(), DeviceError>;

    /// Ends [`Operations::register_host`].
    ///
    /// # Safety
    /// It was registered with this pointer, and no copy uses it.
    unsafe fn unregister_host(&self, pointer: *mut u8) -> Result<(), DeviceError>;
}

/// Why a device did not do what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// The caller: the kind cannot do that.
    #[error("this kind of memory cannot do that: `weft info` shows what it can")]
    NotSupported,
    /// The caller: the address, length or device is wrong.
    #[error("not memory of this device: check address, length and device")]
    BadAddress,
    /// The peer: its handle cannot be opened, or is not for what it says.
    #[error("the peer's handle of device memory cannot be opened")]
    BadHandle,
    /// A local resource: the device has no more memory.
    #[error("the device has no more memory: free some, or ask for less")]
    OutOfMemory,
    /// A local resource: the device or its library failed; the text is the library's.
    #[error("the device failed: {0}")]
    Failed(String),
}

/// Why a kind is absent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absent(pub String);

/// The operations of a kind, initialised when they are first asked for; or why they are absent.
pub fn operations(kind: Kind) -> Result<&'static dyn Operations, Absent> {
    match kind {
        Kind::System => Ok(&system::System),
        Kind::Emulated => Ok(emulated::operations()),
        Kind::Cuda => cuda::CUDA.operations(),
        Kind::Rocm => rocm::ROCM.operations(),
        Kind::LevelZero => level_zero::LEVEL_ZERO.operations(),
    }
}

/// The operations of a kind whose memory this process can have: to ask whether a pointer is of that kind. It loads no
/// library, which can take a fifth of a second: where nobody else has either, nobody has such memory.
#[must_use]
pub fn in_use(kind: Kind) -> Option<&'static dyn Operations> {
    match kind {
        Kind::Cuda => cuda::CUDA.in_use(),
        Kind::Rocm => rocm::ROCM.in_use(),
        Kind::LevelZero => level_zero::LEVEL_ZERO.in_use(),
        kind => operations(kind).ok(),
    }
}
