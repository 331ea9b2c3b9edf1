//! Every bound of this crate, in one place.

/// Bits of a local key that name its slot; the others are its generation.
pub const LOCAL_SLOT_BITS: u32 = 20;
/// Buffers that can be attached at a time. One less than the bits can name, so that no key is
/// [`LocalKey::NONE`](weft_core::memory::LocalKey::NONE).
pub const LOCAL_BUFFERS_MAX: usize = (1 << LOCAL_SLOT_BITS) - 1;
/// Bits of a region's key that name its slot.
pub const REGION_SLOT_BITS: u32 = 18;
/// Regions that can be registered at a time: those of the user, and one for each command that is under way.
pub const REGIONS_MAX: usize = 1 << REGION_SLOT_BITS;
/// Bits of a region's key that count how often its slot was used.
pub const REGION_GENERATION_BITS: u32 = 6;
/// Bytes that can be sent from a copy.
pub const INJECT_MAX_BYTES: usize = 4096;
/// Buffers for copies that are kept for the next one.
pub const INJECT_POOL_MAX: usize = 1024;
/// What allocated regions are aligned to.
pub const PAGE_BYTES: usize = 4096;
/// Random words that are drawn at a time.
pub const RANDOM_WORDS: usize = 64;
/// Copies between host and device that can be under way at a time, of each kind.
pub const DEVICE_COPIES_MAX: usize = 1 << 16;
/// Allocations of other processes that can be mapped at a time, of each kind.
pub const DEVICE_IMPORTS_MAX: usize = 4096;
/// What allocations on devices are rounded up to. Drivers may map whole blocks of this size for a process that opens a
/// handle, and smaller allocations would then show their neighbours.
pub const DEVICE_BLOCK_BYTES: usize = 2 << 20;
/// Streams of each CUDA device on which copies are started.
pub const CUDA_STREAMS: usize = 4;
/// Lanes (a stream and its pinned memory) of each CUDA device that are made with its context; more are made when more
/// threads copy at a time.
pub const CUDA_LANES_READY: usize = 2;
/// Copies that can be started at a time on each Level Zero device.
pub const LEVEL_ZERO_EVENTS: usize = 1024;
/// Pinned memory of a lane: the longest copy from a device into pageable memory that goes through it. Measured on an H200:
/// at 256 KiB this is faster than the driver's own way, at 4 MiB it was slower.
pub const STAGING_BYTES: usize = 512 << 10;
/// Pieces up to this length go through the pinned memory without asking whether theirs is pinned: to copy so much takes
/// as long as what asking may save.
pub const STAGING_UNASKED_MAX_BYTES: usize = 8 << 10;

const _: () = {
    assert!(REGIONS_MAX > 2 * weft_core::limits::HANDLES_MAX, "each command may register its buffer");
    assert!(REGION_SLOT_BITS + REGION_GENERATION_BITS <= 24, "at least 40 bits of a key are random");
    assert!(STAGING_UNASKED_MAX_BYTES <= STAGING_BYTES);
    assert!(LOCAL_BUFFERS_MAX > 2 * weft_core::limits::HANDLES_MAX);
};
