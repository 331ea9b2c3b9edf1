//! A ring of records from one process to another: one writes, one reads, nobody waits for the other.
//!
//! A slot belongs to the producer until it stores the slot's head word, which carries the record's sequence number; then
//! it belongs to the consumer until that publishes its progress past it. The consumer polls the head word itself, so a
//! short record costs the transfer of one cache line. The producer reads the progress only when the ring seems full.
//!
//! The slots lie in two banks. A conversation uses the near bank, a few slots over and over: from lines that both
//! processors have in their first caches a record takes a third less time than from many slots in turn. When the near
//! bank is full the far bank holds the rest. Each record says in which bank the next one is.
//!
//! The other side may write anything at any time. Each side keeps its own position to itself, loads every shared word
//! once, checks it and then uses the copy. Where the memory is comes from a [`Room`], so that loom can give another one.
#![cfg_attr(loom, allow(dead_code, reason = "some of it is only for channels"))]

use super::Record;
#[cfg(any(test, loom))]
use super::layout::SLOT_INLINE_WORDS;
use super::layout::{DATA_ALIGN, IN_DATA_RING, NEXT_IS_FAR, SLOT_HEAD_WORDS, SLOT_WORDS};
use super::sync::{AtomicU32, AtomicU64, Ordering};
use crate::limits::{
    INLINE_MAX_BYTES, PAYLOAD_MAX_BYTES, RING_DATA_BYTES, RING_LOOK_BYTES, RING_PUBLISH_BYTES, RING_PUBLISH_SLOTS,
};

/// The owner of a state word sleeps until it is woken.
pub(crate) const ASLEEP: u32 = 1;
/// The owner of a state word runs a barrier in all processes before it looks for the last time: see
/// [`Room::light_fence`].
pub(crate) const HEAVY: u32 = 2;

/// There is no room now. The receiver makes some as it takes records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// The peer wrote nonsense into its control words: close the channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer wrote nonsense into the shared memory of the channel: close it")]
pub struct Broken;

/// Why a record was not put into the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// There is no room now. The receiver makes some as it takes records.
    #[error("the ring is full: try again when the peer has taken something")]
    Full,
    /// The peer wrote nonsense into its control words: close the channel.
    #[error("{}", Broken)]
    Broken,
    /// No ring takes more than [`PAYLOAD_MAX_BYTES`] at once: send it in pieces.
    #[error("a record takes {} bytes at most: send it in pieces", PAYLOAD_MAX_BYTES)]
    TooLong,
}

impl From<Full> for PushError {
    fn from(_: Full) -> PushError {
        PushError::Full
    }
}

impl From<Broken> for PushError {
    fn from(_: Broken) -> PushError {
        PushError::Broken
    }
}

/// Where a ring lies, and how its two sides reach each other.
pub(crate) trait Room {
    /// Slots of the near bank, a power of two.
    const NEAR_SLOTS: u32;
    /// Slots of the far bank, a power of two.
    const FAR_SLOTS: u32;

    /// The words of a slot: the near bank's slots come first. No number leads outside.
    fn slot(&self, slot: u32) -> &[AtomicU64; SLOT_WORDS];
    /// Has the first line of a slot fetched, which will be read soon.
    fn fetch_ahead(&self, _slot: u32) {}
    /// What the consumer has taken: the position in the near bank, and above it that in the far bank.
    fn progress(&self) -> &AtomicU64;
    /// The consumer's state.
    fn receiver_state(&self) -> &AtomicU32;
    /// The producer's state.
    fn sender_state(&self) -> &AtomicU32;
    /// [`HEAVY`] if [`Room::heavy_fence`] reaches other processes.
    fn promise(&self) -> u32;
    /// What was stored before is seen by the other side when it looks after its heavy fence, or we see its state now.
    /// With a promise in `state` that costs nothing, since the other side's barrier comes to us.
    fn light_fence(&self, state: u32);
    /// The other half of it.
    fn heavy_fence(&self);
    /// Wakes the other side.
    fn wake(&self);
}

/// How far ahead a stream's slots are fetched.
const FETCH_AHEAD_SLOTS: u32 = 3;

/// One side's position in both banks: how many records went through each. Wraps around with the numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Position {
    near: u32,
    far: u32,
}

impl Position {
    fn to_word(self) -> u64 {
        u64::from(self.near) | u64::from(self.far) << 32
    }

    fn from_word(word: u64) -> Position {
        Position { near: word as u32, far: (word >> 32) as u32 }
    }

    #[inline]
    fn in_bank(self, far: bool) -> u32 {
        if far { self.far } else { self.near }
    }

    #[inline]
    fn set(&mut self, far: bool, position: u32) {
        *(if far { &mut self.far } else { &mut self.near }) = position;
    }

    #[inline]
    fn step(&mut self, far: bool) {
        let bank = if far { &mut self.far } else { &mut self.near };
        *bank = bank.wrapping_add(1);
    }
}

/// The slot of a position in a bank.
#[inline]
fn slot_at<R: Room>(far: bool, position: u32) -> u32 {
    if far { R::NEAR_SLOTS + (position & (R::FAR_SLOTS - 1)) } else { position & (R::NEAR_SLOTS - 1) }
}

fn slots<R: Room>(far: bool) -> u32 {
    if far { R::FAR_SLOTS } else { R::NEAR_SLOTS }
}

/// Tells the owner of a state word, if it sleeps, that something has been stored.
#[inline(always)]
fn rouse<R: Room>(room: &R, state: &AtomicU32) {
    room.light_fence(state.load(Ordering::Relaxed));
    if state.load(Ordering::Relaxed) & ASLEEP != 0 {
        wake(room, state);
    }
}

#[cold]
fn wake<R: Room>(room: &R, state: &AtomicU32) {
    // Whoever clears the word wakes: one byte for one sleep.
    if state.fetch_and(!ASLEEP, Ordering::AcqRel) & ASLEEP != 0 {
        room.wake();
    }
}

/// Where the payload of the next record goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Into the slot.
    Inline,
    /// To this offset of the data ring. The second number is the position behind it.
    Data(u32, u32),
}

/// The side that writes.
pub(crate) struct Producer<R: Room> {
    room: R,
    /// Bank of the next record, and its slot.
    far: bool,
    slot: u32,
    /// Records that can be written before the consumer's progress has to be looked at, or another bank chosen.
    left: u32,
    /// What was written.
    head: Position,
    /// What was taken, as far as we know.
    taken: Position,
    /// Position in the data ring, which does not wrap with it.
    data_head: u32,
    /// What was taken of it, as far as we know.
    data_taken: u32,
    /// Position at which the consumer's progress was last looked at.
    data_looked: u32,
    /// For each slot the position behind its payload. Ours alone, so the consumer cannot lie about it.
    ends: Box<[u32]>,
    /// Whether our state says so.
    asleep: bool,
}

impl<R: Room> Producer<R> {
    pub(crate) fn new(room: R) -> Producer<R> {
        room.sender_state().store(room.promise(), Ordering::Relaxed);
        Producer {
            room,
            far: false,
            slot: 0,
            left: R::NEAR_SLOTS,
            head: Position::default(),
            taken: Position::default(),
            data_head: 0,
            data_taken: 0,
            data_looked: 0,
            ends: vec![0; (R::NEAR_SLOTS + R::FAR_SLOTS) as usize].into_boxed_slice(),
            asleep: false,
        }
    }

    /// As if so many records had gone through each bank.
    #[cfg(test)]
    pub(crate) fn start_at(&mut self, position: u32) {
        self.head = Position { near: position, far: position };
        self.taken = self.head;
        self.locate();
    }

    #[inline]
    pub(crate) fn room(&self) -> &R {
        &self.room
    }

    /// The slot of the next record.
    #[inline]
    pub(crate) fn slot(&self) -> u32 {
        self.slot
    }

    /// Finds the slot of the next record, and how many can be written without a look.
    fn locate(&mut self) {
        let position = self.head.in_bank(self.far);
        self.slot = slot_at::<R>(self.far, position);
        self.left = slots::<R>(self.far) - self.used(self.far);
        if self.far {
            // After so many it is asked whether the near bank will do again.
            self.left = self.left.min(R::NEAR_SLOTS - (position & (R::NEAR_SLOTS - 1)));
        }
    }

    /// Records in a bank that were not taken, as far as we know.
    #[inline]
    fn used(&self, far: bool) -> u32 {
        self.head.in_bank(far).wrapping_sub(self.taken.in_bank(far))
    }

    /// Records that can be written, as far as is known without a look.
    pub(crate) fn free_slots(&self) -> u32 {
        let near = if self.far { 0 } else { R::NEAR_SLOTS - self.used(false) };
        near + R::FAR_SLOTS - self.used(true)
    }

    /// Bytes of the data ring that hold payloads, as far as is known.
    pub(crate) fn data_used(&self) -> u32 {
        self.data_head.wrapping_sub(self.data_taken)
    }

    /// Finds a place for a payload. Nothing is taken before [`Producer::commit`].
    #[inline]
    pub(crate) fn reserve(&mut self, length: usize) -> Result<Place, PushError> {
        if self.left == 0 {
            self.look()?;
            if self.left == 0 {
                return Err(PushError::Full);
            }
        }
        if length <= INLINE_MAX_BYTES { Ok(Place::Inline) } else { self.reserve_data(length) }
    }

    fn reserve_data(&mut self, length: usize) -> Result<Place, PushError> {
        if length > PAYLOAD_MAX_BYTES {
            return Err(PushError::TooLong);
        }
        let length = (length as u32).next_multiple_of(DATA_ALIGN);
        if self.data_head.wrapping_sub(self.data_looked) >= RING_LOOK_BYTES {
            self.look()?;
        }
        if let Some(place) = self.place(length) {
            return Ok(place);
        }
        self.look()?;
        self.place(length).ok_or(PushError::Full)
    }

    /// Finds a place for several payloads of the same length, one behind the other. Gives that of all of them; nothing is
    /// taken before each of them is committed.
    pub(crate) fn reserve_parts(&mut self, length: usize, count: u32) -> Result<Place, PushError> {
        let fits = (INLINE_MAX_BYTES + 1..=PAYLOAD_MAX_BYTES).contains(&length) && count > 0;
        let all = (length as u32).checked_mul(count).filter(|all| *all <= RING_DATA_BYTES);
        let Some(all) = all.filter(|_| fits && length.is_multiple_of(DATA_ALIGN as usize)) else {
            return Err(PushError::TooLong);
        };
        if self.free_slots() < count {
            self.look()?;
            if self.free_slots() < count {
                return Err(PushError::Full);
            }
        }
        if let Some(place) = self.place(all) {
            return Ok(place);
        }
        self.look()?;
        self.place(all).ok_or(PushError::Full)
    }

    fn place(&mut self, length: u32) -> Option<Place> {
        let mut used = self.data_used();
        let mut offset = self.data_head % RING_DATA_BYTES;
        let mut start = self.data_head;
        if used == 0 || offset + length > RING_DATA_BYTES {
            // Skips to the start of the ring: with nothing in it, so that the same pages are used again, or because
            // payloads are not cut.
            let skip = (RING_DATA_BYTES - offset) % RING_DATA_BYTES;
            start = start.wrapping_add(skip);
            offset = 0;
            if used == 0 {
                self.data_head = start;
                self.data_taken = start;
                self.data_looked = start;
            } else {
                used += skip;
            }
        }
        (used + length <= RING_DATA_BYTES).then(|| Place::Data(offset, start.wrapping_add(length)))
    }

    /// Reads how far the consumer is.
    #[cold]
    pub(crate) fn look(&mut self) -> Result<(), Broken> {
        let taken = Position::from_word(self.room.progress().load(Ordering::Acquire));
        for far in [false, true] {
            let step = taken.in_bank(far).wrapping_sub(self.taken.in_bank(far));
            if step > self.used(far) {
                return Err(Broken);
            }
            if step > 0 {
                let last = slot_at::<R>(far, taken.in_bank(far).wrapping_sub(1));
                let end = self.ends.get(last as usize).copied().unwrap_or(self.data_taken);
                // Payloads are taken in order, but the last ones of the two banks are not: the later one counts.
                if end.wrapping_sub(self.data_taken) <= self.data_used() {
                    self.data_taken = end;
                }
            }
        }
        self.taken = taken;
        self.data_looked = self.data_head;
        self.locate();
        Ok(())
    }

    /// Whether a short payload has a place, as far as is known without a look.
    #[inline]
    pub(crate) fn takes_inline(&self, length: usize) -> bool {
        self.left > 0 && length <= INLINE_MAX_BYTES
    }

    /// Copies a short payload into the slot.
    #[inline]
    pub(crate) fn put_inline(&self, payload: &[u8]) {
        let places = self.room.slot(self.slot).iter().skip(SLOT_HEAD_WORDS);
        for (place, bytes) in places.zip(payload.chunks(8)) {
            let mut word = [0; 8];
            word.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
            place.store(u64::from_le_bytes(word), Ordering::Relaxed);
        }
    }

    /// Hands the record over, whose payload is in its place already.
    #[inline(always)]
    pub(crate) fn commit(&mut self, record: &Record, place: Place, length: usize) {
        let slot = self.slot;
        debug_assert!(self.left > 0, "commit without reserve");
        // Held here: stores into the ring could change anything as far as the compiler knows.
        let [_, place_word, words @ ..] = self.room.slot(slot);
        let mut in_slot = match place {
            Place::Inline => length as u16,
            Place::Data(offset, end) => {
                self.data_head = end;
                let word = u64::from(length as u32) | u64::from(offset) << 32;
                place_word.store(word, Ordering::Relaxed);
                IN_DATA_RING
            }
        };
        if let Some(end) = self.ends.get_mut(slot as usize) {
            *end = self.data_head;
        }
        for (place, word) in words.iter().zip(&record.words) {
            place.store(*word, Ordering::Relaxed);
        }
        self.head.step(self.far);
        // A number that the slot has not held before: a round ago it was lower by the slots of the bank.
        let sequence = self.head.in_bank(self.far);
        self.left = self.left.wrapping_sub(1);
        if self.left == 0 {
            self.choose_bank();
        } else {
            self.slot = slot_at::<R>(self.far, sequence);
        }
        if self.far {
            in_slot |= NEXT_IS_FAR;
        }
        let head = u64::from(sequence)
            | u64::from(record.kind) << 32
            | u64::from(record.flags) << 40
            | u64::from(in_slot) << 48;
        let [head_word, ..] = self.room.slot(slot);
        head_word.store(head, Ordering::Release);
        rouse(&self.room, self.room.receiver_state());
    }

    /// Chooses the bank of the record after the one that is being handed over.
    #[cold]
    fn choose_bank(&mut self) {
        // A peer that lies is found out when the far bank seems full.
        let _ = self.look();
        // Back to the near bank only when the consumer keeps up: all but this record was taken.
        self.far =
            if self.far { self.used(false) > 0 || self.used(true) > 1 } else { self.used(false) >= R::NEAR_SLOTS };
        self.locate();
    }

    /// Says that we are going to sleep until there is room. The last look must come after a heavy fence.
    pub(crate) fn announce_sleep(&mut self) {
        self.asleep = true;
        self.room.sender_state().swap(self.room.promise() | ASLEEP, Ordering::AcqRel);
    }

    /// Whether a look shows no room for a payload.
    pub(crate) fn is_full(&mut self, length: usize) -> bool {
        self.look().is_ok() && self.reserve(length) == Err(PushError::Full)
    }

    /// Says that we are going to sleep until there is room for a payload; false: there is room already.
    pub(crate) fn prepare_sleep(&mut self, length: usize) -> bool {
        self.announce_sleep();
        self.room.heavy_fence();
        let full = self.is_full(length);
        if !full {
            self.awake();
        }
        full
    }

    /// Takes it back.
    #[inline]
    pub(crate) fn awake(&mut self) {
        if self.asleep {
            self.asleep = false;
            self.room.sender_state().swap(self.room.promise(), Ordering::AcqRel);
        }
    }
}

/// A record that was copied out of the ring and checked.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Taken {
    pub(crate) record: Record,
    /// Bytes of the payload.
    pub(crate) length: u32,
    /// Where it is in the data ring; `None`: it is in the slot.
    pub(crate) offset: Option<u32>,
    /// Bank of the record after it.
    next_far: bool,
}

/// The side that reads.
pub(crate) struct Consumer<R: Room> {
    room: R,
    /// Bank of the next record.
    far: bool,
    /// What was taken of the bank that the next record is not in; of the other, the sequence number tells.
    tail: Position,
    /// The slot of the next record, and the sequence number that it will have.
    slot: u32,
    sequence: u32,
    /// Records taken of which the producer does not know.
    unpublished: u32,
    /// Bytes of their payloads.
    unpublished_bytes: u32,
    /// Whether `current` is the record at `tail`: it is copied once, and does not change between two looks.
    peeked: bool,
    /// Whether our state says so.
    asleep: bool,
    current: Taken,
}

impl<R: Room> Consumer<R> {
    /// Records of which the producer need not know while there is nothing to do: they leave it most of the near bank.
    const KEEP_SLOTS: u32 = if R::NEAR_SLOTS < 4 { 1 } else { R::NEAR_SLOTS / 4 };
    const PUBLISH_SLOTS: u32 = if R::FAR_SLOTS < RING_PUBLISH_SLOTS { 1 } else { RING_PUBLISH_SLOTS };

    pub(crate) fn new(room: R) -> Consumer<R> {
        room.receiver_state().store(room.promise(), Ordering::Relaxed);
        Consumer {
            room,
            far: false,
            tail: Position::default(),
            slot: 0,
            sequence: 1,
            unpublished: 0,
            unpublished_bytes: 0,
            peeked: false,
            asleep: false,
            current: Taken::default(),
        }
    }

    /// As if so many records had gone through each bank.
    #[cfg(test)]
    pub(crate) fn start_at(&mut self, position: u32) {
        self.tail = Position { near: position, far: position };
        self.locate();
    }

    #[inline]
    pub(crate) fn room(&self) -> &R {
        &self.room
    }

    #[inline]
    fn locate(&mut self) {
        let position = self.tail.in_bank(self.far);
        (self.slot, self.sequence) = (slot_at::<R>(self.far, position), position.wrapping_add(1));
    }

    /// Whether there is nothing to take.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        let [head, ..] = self.room.slot(self.slot);
        head.load(Ordering::Acquire) as u32 != self.sequence
    }

    /// Copies the oldest record out; false: there is none.
    #[cfg(any(test, loom))]
    pub(crate) fn peek(&mut self) -> Result<bool, Broken> {
        Ok(self.record()?.is_some())
    }

    /// Copies the oldest record out; `None`: there is none. What is kept of it for later looks is not read again here: who
    /// loads what has just been stored in smaller pieces waits for it.
    #[inline]
    pub(crate) fn record(&mut self) -> Result<Option<Taken>, Broken> {
        if self.peeked {
            self.peeked_again();
            return Ok(Some(self.current));
        }
        let Some(taken) = self.copy_out()? else { return Ok(None) };
        self.keep(taken);
        Ok(Some(taken))
    }

    /// Shows the oldest record to `take`, which says whether it is done with it, and what to give. Otherwise the record
    /// stays as it was shown. `None`: there is none.
    #[inline(always)]
    pub(crate) fn show<T>(&mut self, take: impl FnOnce(&Self, Taken) -> (bool, T)) -> Result<Option<T>, Broken> {
        let taken = if self.peeked {
            self.peeked_again();
            self.current
        } else {
            let Some(taken) = self.copy_out()? else { return Ok(None) };
            taken
        };
        let (done, given) = take(self, taken);
        if done {
            self.step(&taken)
        } else {
            self.keep(taken)
        }
        Ok(Some(given))
    }

    #[inline]
    fn keep(&mut self, taken: Taken) {
        self.current = taken;
        self.peeked = true;
    }

    /// Copies the next record out, and checks it.
    #[inline(always)]
    fn copy_out(&mut self) -> Result<Option<Taken>, Broken> {
        let sequence = self.sequence;
        let [head, place, others @ ..] = self.room.slot(self.slot);
        let head = head.load(Ordering::Acquire);
        if head as u32 != sequence {
            return self.nothing(head as u32, sequence).map(|()| None);
        }
        let mut words = [0; 4];
        for (word, place) in words.iter_mut().zip(others) {
            *word = place.load(Ordering::Relaxed);
        }
        let record = Record { kind: (head >> 32) as u8, flags: (head >> 40) as u8, words };
        let in_slot = (head >> 48) as u16;
        let next_far = in_slot & NEXT_IS_FAR != 0;
        let in_slot = in_slot & !NEXT_IS_FAR;
        let taken = if usize::from(in_slot) <= INLINE_MAX_BYTES {
            Taken { record, length: u32::from(in_slot), offset: None, next_far }
        } else {
            if in_slot != IN_DATA_RING {
                return Err(Broken);
            }
            let place = place.load(Ordering::Relaxed);
            let (length, offset) = (place as u32, (place >> 32) as u32);
            if length as usize > PAYLOAD_MAX_BYTES
                || offset > RING_DATA_BYTES - length
                || !offset.is_multiple_of(DATA_ALIGN)
            {
                return Err(Broken);
            }
            Taken { record, length, offset: Some(offset), next_far }
        };
        Ok(Some(taken))
    }

    /// Whoever looks twice is not getting on: the producer must not wait for what it keeps to itself.
    #[cold]
    fn peeked_again(&mut self) {
        if self.unpublished > 0 {
            self.publish();
        }
    }

    #[inline]
    fn nothing(&mut self, found: u32, expected: u32) -> Result<(), Broken> {
        // In a conversation the next thing that we store is our answer, which would wait behind this: a few records can be
        // told of later, but payloads at once, so that their room is used again.
        if self.unpublished_bytes > 0 || self.unpublished >= Self::KEEP_SLOTS {
            self.publish();
        }
        // What the slot held a round ago, or nothing in the first round.
        let stale = found == expected.wrapping_sub(slots::<R>(self.far)) || found == 0;
        if stale { Ok(()) } else { Err(Broken) }
    }

    /// What [`Consumer::record`] copied last.
    #[cfg(any(test, loom))]
    pub(crate) fn current(&self) -> &Taken {
        &self.current
    }

    /// The slot of what was peeked at: a short payload is there until [`Consumer::advance`], and the producer may change it.
    #[inline]
    pub(crate) fn slot(&self) -> u32 {
        self.slot
    }

    /// A copy of a short payload.
    #[cfg(any(test, loom))]
    pub(crate) fn inline(&self) -> [u64; SLOT_INLINE_WORDS] {
        let used = (self.current.length as usize).div_ceil(8);
        let mut inline = [0; SLOT_INLINE_WORDS];
        let places = self.room.slot(self.slot).iter().skip(SLOT_HEAD_WORDS);
        for (word, place) in inline.iter_mut().take(used).zip(places) {
            *word = place.load(Ordering::Relaxed).to_le();
        }
        inline
    }

    /// Done with the record that was peeked; without one nothing happens.
    #[inline]
    pub(crate) fn advance(&mut self) {
        if self.peeked {
            let taken = self.current;
            self.step(&taken);
        }
    }

    #[inline(always)]
    fn step(&mut self, taken: &Taken) {
        self.peeked = false;
        let position = self.sequence;
        if taken.next_far == self.far {
            (self.slot, self.sequence) = (slot_at::<R>(self.far, position), position.wrapping_add(1));
        } else {
            self.tail.set(self.far, position);
            self.far = taken.next_far;
            self.locate();
        }
        if self.far {
            // In a stream the next ones are there: each would be a cache miss of its own.
            self.room.fetch_ahead(slot_at::<R>(true, position.wrapping_add(FETCH_AHEAD_SLOTS)));
        }
        self.unpublished += 1;
        if taken.offset.is_some() {
            self.unpublished_bytes += taken.length;
        }
        if self.unpublished >= Self::PUBLISH_SLOTS || self.unpublished_bytes >= RING_PUBLISH_BYTES {
            self.publish();
        }
    }

    /// Tells the producer how far we are.
    pub(crate) fn publish(&mut self) {
        self.unpublished = 0;
        self.unpublished_bytes = 0;
        self.tail.set(self.far, self.sequence.wrapping_sub(1));
        self.room.progress().store(self.tail.to_word(), Ordering::Release);
        rouse(&self.room, self.room.sender_state());
    }

    /// Says that we are going to sleep. The last look must come after a heavy fence.
    pub(crate) fn announce_sleep(&mut self) {
        if self.unpublished > 0 {
            self.publish();
        }
        self.asleep = true;
        // Not a store: who wakes changes the word too, and each change must be to the one before.
        self.room.receiver_state().swap(self.room.promise() | ASLEEP, Ordering::AcqRel);
    }

    /// Says that we are going to sleep; false: there is a record.
    pub(crate) fn prepare_sleep(&mut self) -> bool {
        self.announce_sleep();
        self.room.heavy_fence();
        let empty = self.is_empty();
        if !empty {
            self.awake();
        }
        empty
    }

    /// Takes it back.
    #[inline]
    pub(crate) fn awake(&mut self) {
        if self.asleep {
            self.asleep = false;
            self.room.receiver_state().swap(self.room.promise(), Ordering::AcqRel);
        }
    }
}
