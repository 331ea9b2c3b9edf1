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

const _: () = {
    assert!(REGIONS_MAX > 2 * weft_core::limits::HANDLES_MAX, "each command may register its buffer");
    assert!(REGION_SLOT_BITS + REGION_GENERATION_BITS <= 24, "at least 40 bits of a key are random");
    assert!(LOCAL_BUFFERS_MAX > 2 * weft_core::limits::HANDLES_MAX);
};
