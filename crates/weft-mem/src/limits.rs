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
/// Copies that can wait for the emulated devices; who starts more waits.
pub const EMULATED_QUEUE_MAX: usize = 256;
/// How long a copy that was started on an emulated device is at least not done.
pub const EMULATED_DELAY_US: u64 = 20;
/// Bytes for one place in device memory that are gathered before they are copied there.
pub const STAGE_IN_BYTES: usize = 256 << 10;
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
/// Copies between registered and other device memory that go on at a time.
pub const COPIES_MAX: usize = 4096;
/// What staged pieces are aligned to.
pub const STAGE_ALIGN_BYTES: usize = 64;

const _: () = {
    assert!(STAGE_OUT_BYTES >= 4 * STAGE_OUT_AHEAD_BYTES, "a part, the next one, and a piece across both");
    assert!(STAGE_OUT_BYTES.is_multiple_of(STAGE_ALIGN_BYTES));
    assert!(STAGE_OUT_AHEAD_BYTES >= weft_core::limits::MTU_MAX_BYTES as usize, "any packet's payload");
    assert!(REGIONS_MAX > 2 * weft_core::limits::HANDLES_MAX, "each command may register its buffer");
    assert!(REGION_SLOT_BITS + REGION_GENERATION_BITS <= 24, "at least 40 bits of a key are random");
    assert!(LOCAL_BUFFERS_MAX > 2 * weft_core::limits::HANDLES_MAX);
};
