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
/// Times that a key is drawn again because it is in use already. Even if all keys were chosen ones, the second draw would
/// fail with a chance of 2⁻²² only.
pub const KEY_DRAWS_MAX: usize = 16;
/// Bytes that can be sent from a copy. MPI's blocking sends up to this length do not wait for their acknowledgement, which
/// takes a turn of the receiver on a processor where ranks share one.
pub const INJECT_MAX_BYTES: usize = 32 << 10;
/// Bytes of all copies that are under way.
pub const INJECTED_MAX_BYTES: usize = 64 << 20;
/// Buffers for copies that are kept for the next one.
pub const INJECT_POOL_MAX: usize = 1024;
/// What allocated regions are aligned to.
pub const PAGE_BYTES: usize = 4096;
/// Pieces on either side of one transfer between processes; longer lists take several calls. Below what the system takes
/// (1024), so that the lists fit a stack.
pub const ATTACH_SPANS_MAX: usize = 64;
/// Registrations that a cache keeps, unless it is told otherwise.
pub const REGISTRATIONS_CACHED_MAX: usize = 1024;
/// Allocations of peers that are kept open.
pub const OPENED_HANDLES_MAX: usize = 1024;
/// Allocations of the peer of one channel that are kept open, so that no peer can push out those of the others.
pub const OPENED_HANDLES_OF_A_CHANNEL_MAX: usize = 64;
/// Lengths at which the ways to copy between processes are measured, shortest first.
pub const CALIBRATE_LENGTHS: [usize; 4] = [64 << 10, 256 << 10, 1 << 20, 4 << 20];
/// Times that each length is measured, if there is time.
pub const CALIBRATE_ROUNDS: usize = 7;
/// Time for all measurements, in microseconds; on a slow machine one round of them takes longer.
pub const CALIBRATE_BUDGET_US: u64 = 20_000;
/// Seconds after which a measurement is made again, to keep the better one.
pub const CALIBRATE_FRESH_S: u64 = 600;
/// Bytes of shared memory through which the measurement copies, and of the pieces, about as long messages are.
pub const CALIBRATE_RING_BYTES: usize = 1 << 20;
/// See [`CALIBRATE_RING_BYTES`].
pub const CALIBRATE_PIECE_BYTES: usize = 32 << 10;
/// Bytes that are read of the file in which measurements are kept.
pub const CALIBRATE_FILE_MAX_BYTES: u64 = 4096;
/// From how many bytes on huge pages are asked for.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Random words that are drawn at a time.
pub const RANDOM_WORDS: usize = 64;
/// Copies that can wait for the emulated devices; who starts more waits.
pub const EMULATED_QUEUE_MAX: usize = 256;
/// How long a copy that was started on an emulated device is at least not done.
pub const EMULATED_DELAY_US: u64 = 20;
/// Bytes for one place in device memory that are gathered before they are copied there.
pub const STAGE_IN_BYTES: usize = 512 << 10;
/// Buffers of that size: one is filled while the others are copied.
pub const STAGE_IN_BUFFERS: usize = 4;
/// From so many bytes on a copy to the device goes on while others come; a shorter one is done at once.
pub const STAGE_IN_START_BYTES: usize = 16 << 10;
/// Bytes that came from device memory and wait to be sent.
pub const STAGE_OUT_BYTES: usize = 4 << 20;
/// Bytes that are fetched at a time when device memory is read in order.
pub const STAGE_OUT_AHEAD_BYTES: usize = 256 << 10;
/// Pieces of device memory that wait to be sent.
pub const STAGE_OUT_ENTRIES_MAX: usize = 256;
/// Host memory that a device copies so many bytes from or to at a time is made known to the device. To make 1 GiB known
/// takes an H200 about 50 ms, a copy of it 20 ms if it is known and 80 to 150 ms if it is not.
pub const KNOWN_MIN_BYTES: u64 = 256 << 10;
/// Copies between registered and other device memory that go on at a time.
pub const COPIES_MAX: usize = 4096;
/// What staged pieces are aligned to.
pub const STAGE_ALIGN_BYTES: usize = 64;
/// Copies between host and device that can be under way at a time, of each kind.
pub const DEVICE_COPIES_MAX: usize = 1 << 16;
/// Allocations of other processes that can be mapped at a time, of each kind.
pub const DEVICE_IMPORTS_MAX: usize = 4096;
/// What allocations on devices are rounded up to. Drivers may map whole blocks of this size for a process that opens a
/// handle, and smaller allocations would then show their neighbours.
pub const DEVICE_BLOCK_BYTES: usize = 2 << 20;
/// Streams of each CUDA device on which copies are started.
pub const CUDA_STREAMS: usize = 4;
/// Copies that are started with this many bytes and more go in order, those of one direction on one stream.
pub const CUDA_IN_ORDER_BYTES: usize = 1 << 20;
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
    assert!(STAGE_OUT_BYTES >= 4 * STAGE_OUT_AHEAD_BYTES, "a part, the next one, and a piece across both");
    assert!(STAGE_OUT_BYTES.is_multiple_of(STAGE_ALIGN_BYTES));
    assert!(STAGE_OUT_AHEAD_BYTES >= weft_core::limits::MTU_MAX_BYTES as usize, "any packet's payload");
    assert!(REGIONS_MAX > 2 * weft_core::limits::HANDLES_MAX, "each command may register its buffer");
    assert!(REGION_SLOT_BITS + REGION_GENERATION_BITS <= 24, "at least 40 bits of a key are random");
    assert!(STAGING_UNASKED_MAX_BYTES <= STAGING_BYTES);
    assert!(LOCAL_BUFFERS_MAX > 2 * weft_core::limits::HANDLES_MAX);
};

/// Looks at a lock that another thread holds, before it is slept for: about as long as a short call holds it.
#[cfg(not(loom))]
pub const LOCK_SPINS: u32 = 100;
/// Every further look would double the interleavings to try.
#[cfg(loom)]
pub const LOCK_SPINS: u32 = 1;
