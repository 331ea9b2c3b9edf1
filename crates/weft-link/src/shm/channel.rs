//! The two sides of a channel: their senders and receivers, and the socket to the peer.

use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, compiler_fence, fence};

use weft_mem::copy;
use weft_mem::device::Kind;
use weft_mem::fork::LocalFd;
use weft_mem::{Segment, SegmentMut};

use super::Record;
use super::layout::{
    MESSAGES, PROGRESS, RECEIVER_STATE, REGION_BYTES, RESPONSES, RING_ALL_SLOTS, RingLayout, SENDER_STATE, SLOT_BYTES,
    SLOT_INLINE, SLOT_WORDS, TRANSFERS, WORD_STRIDE, WORDS,
};
use super::region::Region;
use super::ring::{self, Broken, Consumer, HEAVY, Place, Producer, PushError, Taken};
use super::socket;
use crate::limits::{CHANNEL_WORDS_MAX, NOTE_MAX_BYTES, RING_DATA_BYTES, RING_NEAR_SLOTS, RING_SLOTS};

/// Name of a channel in its node, a small number. It is used again some time after [`Node::close`](super::Node::close).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChannelId(pub u32);

/// First byte of a message on the socket that only wakes.
pub(crate) const WAKE: u8 = 0;
/// First byte of a note.
pub(crate) const NOTE: u8 = 1;

/// What a sender can take without waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Records.
    pub slots: usize,
    /// Bytes of long payloads. A single one may need more, since none is cut at the end of the ring.
    pub data_bytes: usize,
}

/// What both sides of a channel have beside their rings.
///
/// Dropping a side ends the connection: the peer's node says [`Closed`](super::NodeEvent::Closed).
pub struct Channel {
    id: ChannelId,
    peer_pid: i32,
    region: Arc<Region>,
    socket: Arc<LocalFd>,
    barrier: Barrier,
}

/// The side of a channel that made it: it asks.
pub struct InitiatorChannel {
    channel: Channel,
    messages: Sender,
    transfers: Sender,
    responses: Receiver,
}

/// The side of a channel that it was made to: it answers.
pub struct TargetChannel {
    channel: Channel,
    messages: Receiver,
    transfers: Receiver,
    responses: Sender,
}

impl Deref for InitiatorChannel {
    type Target = Channel;

    fn deref(&self) -> &Channel {
        &self.channel
    }
}

impl Deref for TargetChannel {
    type Target = Channel;

    fn deref(&self) -> &Channel {
        &self.channel
    }
}

impl InitiatorChannel {
    pub(crate) fn new(channel: Channel) -> InitiatorChannel {
        InitiatorChannel {
            messages: channel.sender_of(MESSAGES),
            transfers: channel.sender_of(TRANSFERS),
            responses: channel.receiver_of(RESPONSES),
            channel,
        }
    }

    /// What the target may have to leave in its ring, with all that is behind it.
    #[inline]
    pub fn messages(&mut self) -> &mut Sender {
        &mut self.messages
    }

    /// What the target takes whatever its user does.
    #[inline]
    pub fn transfers(&mut self) -> &mut Sender {
        &mut self.transfers
    }

    /// What the target answers.
    #[inline]
    pub fn responses(&mut self) -> &mut Receiver {
        &mut self.responses
    }

    /// Messages and responses at once.
    pub fn halves(&mut self) -> (&mut Sender, &mut Receiver) {
        (&mut self.messages, &mut self.responses)
    }
}

impl TargetChannel {
    pub(crate) fn new(channel: Channel) -> TargetChannel {
        TargetChannel {
            messages: channel.receiver_of(MESSAGES),
            transfers: channel.receiver_of(TRANSFERS),
            responses: channel.sender_of(RESPONSES),
            channel,
        }
    }

    /// What may have to stay in its ring, with all that is behind it, until the user has made room.
    #[inline]
    pub fn messages(&mut self) -> &mut Receiver {
        &mut self.messages
    }

    /// What must be taken whatever the user does.
    #[inline]
    pub fn transfers(&mut self) -> &mut Receiver {
        &mut self.transfers
    }

    /// What is answered.
    #[inline]
    pub fn responses(&mut self) -> &mut Sender {
        &mut self.responses
    }

    /// Responses and messages at once.
    pub fn halves(&mut self) -> (&mut Sender, &mut Receiver) {
        (&mut self.responses, &mut self.messages)
    }
}

impl Channel {
    pub(crate) fn new(id: ChannelId, peer_pid: i32, region: Region, socket: Arc<LocalFd>, barrier: Barrier) -> Channel {
        Channel { id, peer_pid, region: Arc::new(region), socket, barrier }
    }

    fn room(&self, ring: RingLayout) -> ShmRoom {
        ShmRoom::new(ring, self.region.clone(), self.socket.clone(), self.barrier)
    }

    fn sender_of(&self, ring: RingLayout) -> Sender {
        Sender { producer: Producer::new(self.room(ring)) }
    }

    fn receiver_of(&self, ring: RingLayout) -> Receiver {
        Receiver { consumer: Consumer::new(self.room(ring)) }
    }

    /// Its name in the node.
    #[must_use]
    pub fn id(&self) -> ChannelId {
        self.id
    }

    /// The peer's process, as its number is here.
    #[must_use]
    pub fn peer_pid(&self) -> i32 {
        self.peer_pid
    }

    /// Sends something by the slow way, over the socket: up to [`NOTE_MAX_BYTES`] and
    /// [`NOTE_DESCRIPTORS_MAX`](crate::limits::NOTE_DESCRIPTORS_MAX) descriptors. `WouldBlock`: the peer has not taken
    /// earlier ones. Notes keep their order, but not with records.
    pub fn note(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        if bytes.len() > NOTE_MAX_BYTES {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        socket::send(self.socket.as_fd(), [&[NOTE], bytes], descriptors)
    }

    /// A word that both sides may write, on a cache line of its own. There are [`CHANNEL_WORDS_MAX`], and numbers past
    /// them start again at the first. All are zero in a new channel.
    #[must_use]
    #[inline]
    pub fn shared_word(&self, index: usize) -> &AtomicU64 {
        let offset = WORDS + index % CHANNEL_WORDS_MAX * WORD_STRIDE;
        // SAFETY: the word lies in the mapping, which lives as long as the channel, is aligned, and both processes only
        // use it as an atomic.
        unsafe { AtomicU64::from_ptr(self.region.start().add(offset).cast()) }
    }

    /// The whole mapping. The peer may write it at any time.
    #[must_use]
    pub fn data_memory(&self) -> (*mut u8, usize) {
        (self.region.start(), REGION_BYTES)
    }

    /// Makes the channel's memory known to a kind of device, so that it copies faster. Later calls cost little.
    pub fn make_known(&self, kind: Kind) {
        self.region.make_known(kind);
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // The node may hold the socket still.
        socket::hang_up(self.socket.as_fd());
    }
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Channel({}, peer {})", self.id.0, self.peer_pid)
    }
}

impl std::fmt::Debug for InitiatorChannel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Initiator{:?}", self.channel)
    }
}

impl std::fmt::Debug for TargetChannel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Target{:?}", self.channel)
    }
}

/// Puts records into a ring.
pub struct Sender {
    producer: Producer<ShmRoom>,
}

impl Sender {
    /// Puts a record with its payload into the ring: short ones into the slot, longer ones into the data ring.
    #[inline]
    pub fn push(&mut self, record: &Record, payload: &[u8]) -> Result<(), PushError> {
        let place = self.producer.reserve(payload.len())?;
        match place {
            Place::Inline => self.producer.put_inline(payload),
            Place::Data(offset, _) => {
                let to = self.producer.room().data(offset);
                // SAFETY: the ring reserved this part of the mapping for `payload.len()` bytes; nobody has a reference
                // into it.
                unsafe { copy::copy(to, payload.as_ptr(), payload.len()) };
            }
        }
        self.producer.commit(record, place, payload.len());
        Ok(())
    }

    /// As [`Sender::push`], with a payload that others may write meanwhile. Short ones are put where this is called.
    #[inline(always)]
    pub fn push_segment(&mut self, record: &Record, payload: Segment<'_>) -> Result<(), PushError> {
        if !self.producer.takes_inline(payload.len()) {
            return self.push_anyhow(*record, payload);
        }
        let to = self.producer.room().slot_bytes(self.producer.slot()).wrapping_add(SLOT_INLINE);
        // SAFETY: the slot has room for as many bytes and is ours alone until it is committed; who made the segment
        // promised that it can be read.
        unsafe { copy::copy(to, payload.as_iovec().iov_base.cast(), payload.len()) };
        self.producer.commit(record, Place::Inline, payload.len());
        Ok(())
    }

    #[inline(never)]
    fn push_anyhow(&mut self, record: Record, payload: Segment<'_>) -> Result<(), PushError> {
        let record = &record;
        let place = self.producer.reserve(payload.len())?;
        let to = match place {
            Place::Inline => self.producer.room().slot_bytes(self.producer.slot()).wrapping_add(SLOT_INLINE),
            Place::Data(offset, _) => self.producer.room().data(offset),
        };
        // SAFETY: the ring reserved this part of the mapping for as many bytes, and nobody has a reference into it; who
        // made the segment promised that it can be read.
        unsafe { copy::copy(to, payload.as_iovec().iov_base.cast(), payload.len()) };
        self.producer.commit(record, place, payload.len());
        Ok(())
    }

    /// Room for a payload of exactly `length` bytes, to be filled from anywhere and then committed. Dropping the claim
    /// takes nothing.
    #[inline]
    pub fn claim(&mut self, length: usize) -> Result<Claim<'_>, PushError> {
        let place = self.producer.reserve(length)?;
        Ok(Claim { producer: &mut self.producer, place, length })
    }

    /// Room for several payloads of exactly `length` bytes, one behind the other, to be filled as one and then committed in
    /// order. Dropping it takes nothing. The length is a multiple of 64, and more than fits a slot.
    pub fn claim_parts(&mut self, length: usize, count: u32) -> Result<Parts<'_>, PushError> {
        match self.producer.reserve_parts(length, count)? {
            Place::Data(offset, end) => Ok(Parts { producer: &mut self.producer, offset, end, length, count }),
            Place::Inline => Err(PushError::TooLong),
        }
    }

    /// Whether a record with so many bytes could be pushed now.
    #[inline]
    pub fn has_room(&mut self, payload: usize) -> bool {
        self.producer.reserve(payload).is_ok()
    }

    /// What is free, after a look at the receiver's progress.
    pub fn room(&mut self) -> Result<Room, Broken> {
        self.producer.look()?;
        Ok(Room {
            slots: self.producer.free_slots() as usize,
            data_bytes: (RING_DATA_BYTES - self.producer.data_used()) as usize,
        })
    }

    /// Says that we are going to sleep until there is room for such a payload; false: there is room already, or there
    /// never will be. The receiver wakes the node when it has taken something, not for a certain length: try again then.
    #[must_use]
    pub fn prepare_sleep(&mut self, payload: usize) -> bool {
        self.producer.prepare_sleep(payload)
    }

    /// The first half of [`Sender::prepare_sleep`], for many channels:
    /// [`Node::sleep_barrier`](super::Node::sleep_barrier) and [`Sender::is_full`] are the second.
    pub fn announce_sleep(&mut self) {
        self.producer.announce_sleep();
    }

    /// Whether there is no room for such a payload, after a look at the receiver's progress.
    pub fn is_full(&mut self, payload: usize) -> bool {
        self.producer.is_full(payload)
    }

    /// Takes [`Sender::prepare_sleep`] back.
    pub fn awake(&mut self) {
        self.producer.awake();
    }
}

/// Room in a ring that is not handed over yet.
pub struct Claim<'a> {
    producer: &'a mut Producer<ShmRoom>,
    place: Place,
    length: usize,
}

impl Claim<'_> {
    /// Where the payload goes.
    #[inline]
    pub fn segment(&mut self) -> SegmentMut<'_> {
        let room = self.producer.room();
        let pointer = match self.place {
            Place::Inline => room.slot_bytes(self.producer.slot()).wrapping_add(SLOT_INLINE),
            Place::Data(offset, _) => room.data(offset),
        };
        // SAFETY: the ring reserved this part of the mapping, which lives as long as the producer; nobody has a
        // reference into it.
        unsafe { SegmentMut::from_raw(pointer, self.length) }
    }

    /// Hands the record over.
    #[inline]
    pub fn commit(self, record: &Record) {
        self.producer.commit(record, self.place, self.length);
    }
}

/// Room in a ring for several records that are not handed over yet.
pub struct Parts<'a> {
    producer: &'a mut Producer<ShmRoom>,
    offset: u32,
    end: u32,
    length: usize,
    count: u32,
}

impl Parts<'_> {
    /// Where the payloads go.
    pub fn segment(&mut self) -> SegmentMut<'_> {
        let pointer = self.producer.room().data(self.offset);
        // SAFETY: the ring reserved this part of the mapping, which lives as long as the producer; nobody has a
        // reference into it.
        unsafe { SegmentMut::from_raw(pointer, self.length * self.count as usize) }
    }

    /// Hands all of them over.
    pub fn commit(self, record: impl Fn(u32) -> Record) {
        let length = self.length as u32;
        for part in 0..self.count {
            let place =
                Place::Data(self.offset + part * length, self.end.wrapping_sub((self.count - 1 - part) * length));
            self.producer.commit(&record(part), place, self.length);
        }
    }
}

/// Takes records out of a ring.
pub struct Receiver {
    consumer: Consumer<ShmRoom>,
}

impl Receiver {
    /// The oldest record, not taken yet. What the peer wrote was copied and its lengths checked; it does not change
    /// until [`Receiver::advance`], but for the bytes of the payload.
    #[inline]
    pub fn peek(&mut self) -> Result<Option<Incoming<'_>>, Broken> {
        Ok(self.consumer.record()?.map(|taken| Incoming { taken, consumer: &self.consumer }))
    }

    /// Shows the oldest record to `take`, which says whether it is done with it, and what to give. Otherwise it stays, as if
    /// it had been peeked at. `None`: there is none.
    #[inline(always)]
    pub fn show<T>(&mut self, take: impl FnOnce(&Incoming<'_>) -> (bool, T)) -> Result<Option<T>, Broken> {
        self.consumer.show(|consumer, taken| take(&Incoming { taken, consumer }))
    }

    /// Done with the record that was peeked; without one nothing happens.
    #[inline]
    pub fn advance(&mut self) {
        self.consumer.advance();
    }

    /// Whether there is nothing to peek at: one load.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.consumer.is_empty()
    }

    /// Tells the sender now what was taken, which happens by itself after some records and when the ring gets empty.
    pub fn publish(&mut self) {
        self.consumer.publish();
    }

    /// Says that we are going to sleep; false: there is a record, so do not. From now on whatever the peer pushes makes
    /// [`Node::descriptor`](super::Node::descriptor) readable.
    #[must_use]
    pub fn prepare_sleep(&mut self) -> bool {
        self.consumer.prepare_sleep()
    }

    /// The first half of [`Receiver::prepare_sleep`], for many channels:
    /// [`Node::sleep_barrier`](super::Node::sleep_barrier) and [`Receiver::is_empty`] are the second.
    pub fn announce_sleep(&mut self) {
        self.consumer.announce_sleep();
    }

    /// Takes it back.
    pub fn awake(&mut self) {
        self.consumer.awake();
    }
}

/// A record that came.
#[derive(Clone, Copy)]
pub struct Incoming<'a> {
    taken: Taken,
    consumer: &'a Consumer<ShmRoom>,
}

impl<'a> Incoming<'a> {
    /// The record.
    #[must_use]
    #[inline]
    pub fn record(&self) -> Record {
        self.taken.record
    }

    /// Bytes of the payload.
    #[must_use]
    #[inline]
    pub fn length(&self) -> usize {
        self.taken.length as usize
    }

    /// The payload, wherever it is. The peer may change it: copy it once, then look at the copy.
    #[must_use]
    #[inline]
    pub fn segment(&self) -> Segment<'a> {
        let (taken, room) = (&self.taken, self.consumer.room());
        let pointer = match taken.offset {
            Some(offset) => room.data(offset),
            None => room.slot_bytes(self.consumer.slot()).wrapping_add(SLOT_INLINE),
        };
        // SAFETY: the ring checked that the bytes lie in the data ring, or in the slot; the mapping lives as long as the
        // consumer, which stays borrowed, and nobody has a reference into it.
        unsafe { Segment::from_raw(pointer, taken.length as usize) }
    }
}

impl std::fmt::Debug for Incoming<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Incoming({:?}, {} bytes)", self.record(), self.length())
    }
}

/// Whether this process takes part in barriers over all processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Barrier {
    registered: bool,
}

impl Barrier {
    /// Registers the process, once or many times.
    pub(crate) fn register() -> Barrier {
        // SAFETY: no memory is involved.
        let result =
            unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) };
        Barrier { registered: result == 0 }
    }

    /// Everything that any registered process stored before is seen after it.
    pub(crate) fn run(self) {
        fence(Ordering::SeqCst);
        if self.registered {
            // SAFETY: no memory is involved. It cannot fail where registering worked.
            unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0) };
        }
    }
}

/// A ring in a channel's memory.
pub(crate) struct ShmRoom {
    control: *mut u8,
    slots: *mut u8,
    data: *mut u8,
    barrier: Barrier,
    socket: Arc<LocalFd>,
    /// Keeps what the pointers point into.
    _region: Arc<Region>,
}

// SAFETY: the pointers go into the region, which any thread may use, and everything behind them is used as atomics or
// copied.
unsafe impl Send for ShmRoom {}

impl ShmRoom {
    fn new(ring: RingLayout, region: Arc<Region>, socket: Arc<LocalFd>, barrier: Barrier) -> ShmRoom {
        let start = region.start();
        ShmRoom {
            control: start.wrapping_add(ring.control),
            slots: start.wrapping_add(ring.slots),
            data: start.wrapping_add(ring.data),
            barrier,
            socket,
            _region: region,
        }
    }

    #[inline(always)]
    fn slot_bytes(&self, slot: u32) -> *mut u8 {
        // No number leads outside, and a comparison costs less than a division.
        self.slots.wrapping_add(slot.min(RING_ALL_SLOTS - 1) as usize * SLOT_BYTES)
    }

    #[inline]
    fn data(&self, offset: u32) -> *mut u8 {
        self.data.wrapping_add((offset % RING_DATA_BYTES) as usize)
    }

    #[inline]
    fn state(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: the offsets of state words lie in the control part of the ring, are aligned, and both processes only
        // use them as atomics. The region lives as long as we do.
        unsafe { AtomicU32::from_ptr(self.control.add(offset).cast()) }
    }
}

impl ring::Room for ShmRoom {
    const NEAR_SLOTS: u32 = RING_NEAR_SLOTS;
    const FAR_SLOTS: u32 = RING_SLOTS;

    #[inline(always)]
    fn slot(&self, slot: u32) -> &[AtomicU64; SLOT_WORDS] {
        // SAFETY: the number is bounded, so the slot is one in the mapping, which lives as long as we do; it is aligned, and
        // both processes use its words as atomics, or copy to them while they are theirs alone.
        unsafe { &*self.slot_bytes(slot).cast() }
    }

    #[inline]
    fn fetch_ahead(&self, slot: u32) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a hint, which touches nothing; the address is in the mapping anyway.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(self.slot_bytes(slot).cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = slot;
    }

    #[inline]
    fn progress(&self) -> &AtomicU64 {
        // SAFETY: as for the state words.
        unsafe { AtomicU64::from_ptr(self.control.add(PROGRESS).cast()) }
    }

    #[inline]
    fn receiver_state(&self) -> &AtomicU32 {
        self.state(RECEIVER_STATE)
    }

    #[inline]
    fn sender_state(&self) -> &AtomicU32 {
        self.state(SENDER_STATE)
    }

    fn promise(&self) -> u32 {
        if self.barrier.registered { HEAVY } else { 0 }
    }

    #[inline]
    fn light_fence(&self, state: u32) {
        if state & HEAVY != 0 && self.barrier.registered {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
    }

    fn heavy_fence(&self) {
        self.barrier.run();
    }

    fn wake(&self) {
        // A socket that takes no more has messages that the peer will read when it wakes, and it wakes for them.
        let _ = socket::send(self.socket.as_fd(), [&[WAKE], &[]], &[]);
    }
}
