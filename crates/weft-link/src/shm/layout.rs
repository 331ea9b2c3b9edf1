//! Where things lie in the memory of a channel. Both processes are the same program as far as this file goes: the hello
//! carries [`VERSION`], and another one is refused.
//!
//! Whatever one side polls while the other writes has a line of its own; lines lie 128 bytes apart, because processors
//! fetch them in pairs.
#![cfg_attr(loom, allow(dead_code, reason = "loom has a memory of its own"))]

use crate::limits::{
    CHANNEL_WORDS_MAX, INLINE_MAX_BYTES, PAYLOAD_MAX_BYTES, RING_DATA_BYTES, RING_NEAR_SLOTS, RING_SLOTS,
};

/// Changes with anything in this file, and with the format of the hello.
pub(crate) const VERSION: u32 = 2;

/// Bytes of a slot: two cache lines, of which a short record uses one.
pub(crate) const SLOT_BYTES: usize = 128;
/// The same in words.
pub(crate) const SLOT_WORDS: usize = SLOT_BYTES / 8;
/// Words of a slot before its inline bytes.
pub(crate) const SLOT_HEAD_WORDS: usize = 6;
/// Where the inline bytes of a slot are.
pub(crate) const SLOT_INLINE: usize = SLOT_HEAD_WORDS * 8;
/// Words of inline bytes.
#[cfg(any(test, loom))]
pub(crate) const SLOT_INLINE_WORDS: usize = INLINE_MAX_BYTES / 8;
/// Payloads outside of slots begin at multiples of it.
pub(crate) const DATA_ALIGN: u32 = 64;
/// What the head of a slot says instead of the inline length when the payload is in the data ring.
pub(crate) const IN_DATA_RING: u16 = NEXT_IS_FAR - 1;
/// Beside the inline length: the next record is in the far bank.
pub(crate) const NEXT_IS_FAR: u16 = 1 << 15;

/// Slots of both banks of a ring.
pub(crate) const RING_ALL_SLOTS: u32 = RING_NEAR_SLOTS + RING_SLOTS;

/// Lines that two processors do not share.
const LINE: usize = 128;

/// Control words of a ring, each on a line of its own.
pub(crate) const PROGRESS: usize = 0;
/// The receiver's word about its sleep.
pub(crate) const RECEIVER_STATE: usize = LINE;
/// The sender's word about its wait for room.
pub(crate) const SENDER_STATE: usize = 2 * LINE;
const CONTROL_BYTES: usize = 512;

/// A word that both sides may write has 64 bytes for itself.
pub(crate) const WORD_STRIDE: usize = 64;

const PAGE: usize = 4096;
/// Rings of a channel.
const RINGS: usize = 3;
const CONTROL: usize = 0;
/// Where the words of both sides are.
pub(crate) const WORDS: usize = PAGE;
const SLOTS: usize = WORDS + CHANNEL_WORDS_MAX * WORD_STRIDE;
const SLOTS_BYTES: usize = RING_ALL_SLOTS as usize * SLOT_BYTES;
const DATA: usize = SLOTS + RINGS * SLOTS_BYTES;
/// Bytes of a channel's memory.
pub(crate) const REGION_BYTES: usize = DATA + RINGS * RING_DATA_BYTES as usize;
/// Bytes from the start that every channel uses soon, so that it pays to have their pages at once.
pub(crate) const REGION_HOT_BYTES: usize = DATA;

/// One of the rings: offsets from the start of the region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingLayout {
    /// Control words.
    pub(crate) control: usize,
    /// Slots.
    pub(crate) slots: usize,
    /// Payloads.
    pub(crate) data: usize,
}

impl RingLayout {
    const fn at(index: usize) -> RingLayout {
        RingLayout {
            control: CONTROL + index * CONTROL_BYTES,
            slots: SLOTS + index * SLOTS_BYTES,
            data: DATA + index * RING_DATA_BYTES as usize,
        }
    }
}

/// What the initiator writes and the target may have to leave for a while.
pub(crate) const MESSAGES: RingLayout = RingLayout::at(0);
/// What the target writes.
pub(crate) const RESPONSES: RingLayout = RingLayout::at(1);
/// What the initiator writes and the target always takes.
pub(crate) const TRANSFERS: RingLayout = RingLayout::at(2);

const _: () = {
    assert!(SLOT_INLINE + INLINE_MAX_BYTES == SLOT_BYTES && INLINE_MAX_BYTES.is_multiple_of(8));
    assert!(SLOT_INLINE + 8 <= 64, "a record with eight bytes is one cache line");
    assert!(SENDER_STATE + LINE <= CONTROL_BYTES && CONTROL + RINGS * CONTROL_BYTES <= WORDS);
    assert!(SLOTS.is_multiple_of(PAGE) && DATA.is_multiple_of(PAGE) && REGION_BYTES.is_multiple_of(PAGE));
    assert!(TRANSFERS.data + RING_DATA_BYTES as usize == REGION_BYTES);
    assert!(PAYLOAD_MAX_BYTES <= RING_DATA_BYTES as usize && (INLINE_MAX_BYTES as u16) < IN_DATA_RING);
};
