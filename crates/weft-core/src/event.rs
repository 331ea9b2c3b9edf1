//! Completions, the queues that hold them, and counters.
//!
//! A queue never overflows: whoever will need an entry reserves it first (an initiator when it posts, a target before it
//! accepts the first packet of a message), and who cannot reserve is refused.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::fmt;

use crate::address::{Address, AddressVector, PeerId};
use crate::memory::LocalKey;

/// Names a completion queue of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueueId(pub u32);

/// Names a counter of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CounterId(pub u32);

/// What a completion is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CompletionKind {
    /// A message without tag, or a datagram, was sent.
    Send,
    /// A message with tag was sent.
    TaggedSend,
    /// A message without tag arrived.
    Receive,
    /// A message with tag arrived.
    TaggedReceive,
    /// A remote write of ours.
    Write,
    /// A remote read of ours.
    Read,
    /// A remote atomic of ours without result.
    Atomic,
    /// A remote atomic of ours that gave the values from before, comparing or not.
    FetchAtomic,
    /// A peer wrote, with immediate data.
    RemoteWrite,
    /// A message without tag has come for a receive that takes no bytes: the claim's name is in
    /// [`Completion::offset`].
    Announced,
    /// The same with tag.
    TaggedAnnounced,
    /// A multi-receive buffer is given back without another message: the next one did not fit.
    BufferReleased,
}

/// Why an operation failed, sorted by who is to blame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// The caller cancelled it.
    Cancelled,
    /// The caller's receive was shorter than the message; as many bytes as fit were placed, or none.
    Truncated,
    /// The caller's local buffer went away or cannot be read.
    LocalFault,
    /// The caller closed the endpoint.
    Closed,
    /// The peer has no such memory, range or right.
    AccessRefused,
    /// The peer's receive was too short, or lengths do not fit.
    LengthError,
    /// The peer has no such endpoint.
    NoSuchEndpoint,
    /// The peer cannot do that.
    NotSupported,
    /// The peer found our packet wrong.
    ProtocolError,
    /// The bytes in the peer's memory have another checksum.
    ChecksumMismatch,
    /// The peer's user gave up.
    Aborted,
    /// The peer's memory or device failed.
    OperationFailed,
    /// The path, or a restart of the peer: it may or may not have been executed.
    OutcomeUnknown,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Failure::Cancelled => "cancelled",
            Failure::Truncated => "the message was longer than the receive buffer: post a longer one",
            Failure::LocalFault => "the local buffer cannot be reached any more: keep it until the completion",
            Failure::Closed => "the endpoint was closed",
            Failure::AccessRefused => "the peer refused access: check key, address, length and rights of its region",
            Failure::LengthError => "the peer's receive was shorter than the message",
            Failure::NoSuchEndpoint => "the peer has no such endpoint: get its address anew",
            Failure::NotSupported => "the peer does not support the operation",
            Failure::ProtocolError => "the peer found the packet wrong: this is a bug in one of the two",
            Failure::ChecksumMismatch => "the bytes in the peer's memory have another checksum",
            Failure::Aborted => "the peer's program gave the operation up",
            Failure::OperationFailed => "the peer's memory or device failed",
            Failure::OutcomeUnknown => "no answer from the peer, or it restarted: the operation may have been executed",
        })
    }
}

impl core::error::Error for Failure {}

/// Bits that qualify a completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CompletionFlags(pub u8);

impl CompletionFlags {
    /// Nothing special.
    pub const NONE: CompletionFlags = CompletionFlags(0);
    /// The context is that of a multi-receive buffer.
    pub const MULTI: CompletionFlags = CompletionFlags(1);
    /// This completion gives the multi-receive buffer back.
    pub const RELEASED: CompletionFlags = CompletionFlags(2);
    /// It is of a message that was announced: the announcement, or the receive that claimed it.
    pub const ANNOUNCED: CompletionFlags = CompletionFlags(4);
    /// A failure of an operation that had ended when the engine had a copy of its bytes: the context may be in use for
    /// another one by now.
    pub const LATE: CompletionFlags = CompletionFlags(8);
    /// In a queue: the peer sent the message.
    const FROM_PEER: CompletionFlags = CompletionFlags(0x40);
    /// In a queue: who sent the message has no name.
    const FROM_STRANGER: CompletionFlags = CompletionFlags(0x80);
    const FROM: CompletionFlags = CompletionFlags(0xc0);

    /// Of a multi-receive buffer, given back or not.
    #[must_use]
    pub const fn of_multi(released: bool) -> CompletionFlags {
        CompletionFlags(if released { 3 } else { 1 })
    }

    /// Whether any bit of `other` is set.
    #[must_use]
    pub const fn intersects(self, other: CompletionFlags) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether all bits of `other` are set.
    #[must_use]
    pub const fn contains(self, other: CompletionFlags) -> bool {
        self.0 & other.0 == other.0
    }
}

/// One thing that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The context of the operation.
    pub context: u64,
    /// What it is about.
    pub kind: CompletionKind,
    /// What is special.
    pub flags: CompletionFlags,
    /// How it ended.
    pub result: Result<(), Failure>,
    /// Bytes received or moved. Of a truncated message: its full length.
    pub length: u64,
    /// The message's tag; of a receive that got none, the tag that it waited for.
    pub tag: u64,
    /// Immediate data.
    pub immediate: Option<u64>,
    /// Of messages: who sent it.
    pub source: Option<Address>,
    /// Its name in the address vector, if it has one; of a receive that got none, whom it waited for.
    pub peer: Option<PeerId>,
    /// The buffer that the operation used, [`LocalKey::NONE`] when it stays in use (multi-receive).
    pub local: LocalKey,
    /// Of atomics with results: the buffer that holds them.
    pub results: LocalKey,
    /// Of multi-receive: where in the buffer the message begins. Of an announced message: its
    /// [`ClaimId`](crate::delivery::ClaimId). Of a truncated one: the room that it did not fit into.
    pub offset: u64,
}

/// A completion as it waits in its queue: one cache line. Who sent a message is its peer, or stands beside the queue where
/// that has no name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletionEntry {
    /// The context of the operation.
    pub context: u64,
    /// Bytes received or moved. Of a truncated message: its full length.
    pub length: u64,
    /// The message's tag; of a receive that got none, the tag that it waited for.
    pub tag: u64,
    /// Immediate data.
    pub immediate: Option<u64>,
    /// [`Completion::offset`]; of atomics with results, the buffer that holds them.
    pub place: u64,
    /// The peer's name in the address vector, if it has one; of a receive that got none, whom it waited for.
    pub peer: Option<PeerId>,
    /// The buffer that the operation used, [`LocalKey::NONE`] when it stays in use (multi-receive).
    pub local: LocalKey,
    /// What it is about.
    pub kind: CompletionKind,
    /// What is special.
    pub flags: CompletionFlags,
    /// How it ended.
    pub result: Result<(), Failure>,
}

const _: () = assert!(size_of::<CompletionEntry>() == 64, "a waiting completion is one cache line");

impl CompletionEntry {
    /// A completion as it waits; its source is kept by whoever has the queue.
    #[must_use]
    fn new(completion: &Completion) -> CompletionEntry {
        let source = match (completion.source, completion.peer) {
            (None, _) => CompletionFlags::NONE,
            (Some(_), Some(_)) => CompletionFlags::FROM_PEER,
            (Some(_), None) => CompletionFlags::FROM_STRANGER,
        };
        CompletionEntry {
            context: completion.context,
            length: completion.length,
            tag: completion.tag,
            immediate: completion.immediate,
            place: match completion.kind {
                CompletionKind::FetchAtomic => u64::from(completion.results.0),
                _ => completion.offset,
            },
            peer: completion.peer,
            local: completion.local,
            kind: completion.kind,
            flags: CompletionFlags(completion.flags.0 | source.0),
            result: completion.result,
        }
    }

    /// Where in the buffer of a multi-receive the message begins.
    #[must_use]
    #[inline]
    pub fn offset(&self) -> u64 {
        if self.kind == CompletionKind::FetchAtomic { 0 } else { self.place }
    }

    /// All of it, with who sent it.
    fn to_completion(self, source: Option<Address>) -> Completion {
        let fetches = self.kind == CompletionKind::FetchAtomic;
        Completion {
            context: self.context,
            kind: self.kind,
            flags: CompletionFlags(self.flags.0 & !CompletionFlags::FROM.0),
            result: self.result,
            length: self.length,
            tag: self.tag,
            immediate: self.immediate,
            source,
            peer: self.peer,
            local: self.local,
            results: if fetches { LocalKey(self.place as u32) } else { LocalKey::NONE },
            offset: self.offset(),
        }
    }
}

/// A completion queue.
#[derive(Debug)]
pub struct CompletionQueue {
    /// A ring, which is filled up to its capacity when it goes round for the first time.
    entries: Vec<CompletionEntry>,
    /// Place of the oldest.
    head: usize,
    len: usize,
    /// Who sent the messages whose sender has no name, in order of their entries.
    strangers: VecDeque<Address>,
    capacity: usize,
    reserved: usize,
    /// Places that what is posted must leave to messages that arrive: otherwise two nodes that only send could wait for
    /// each other for ever.
    share_of_receives: usize,
}

impl CompletionQueue {
    /// A queue for `capacity` completions; the memory is taken now.
    #[must_use]
    pub fn new(capacity: usize) -> CompletionQueue {
        let (entries, strangers) = (Vec::with_capacity(capacity), VecDeque::new());
        CompletionQueue { entries, head: 0, len: 0, strangers, capacity, reserved: 0, share_of_receives: 0 }
    }

    /// Keeps a place free for a later [`CompletionQueue::push`]. False: there is none.
    #[must_use]
    #[inline]
    pub fn reserve(&mut self) -> bool {
        let free = self.len + self.reserved < self.capacity;
        self.reserved += usize::from(free);
        free
    }

    /// Keeps several places free, all of them or none.
    #[must_use]
    pub fn reserve_many(&mut self, places: usize) -> bool {
        let free = self.free() >= places;
        self.reserved += if free { places } else { 0 };
        free
    }

    /// The same for commands that are posted: leaves the share of receives free.
    #[must_use]
    pub fn reserve_for_post(&mut self, places: usize) -> bool {
        let free = self.free() >= places + self.share_of_receives;
        self.reserved += if free { places } else { 0 };
        free
    }

    /// Receives report here too, from now on. Where the one place there is would be for either what is posted or what comes,
    /// two nodes could wait for each other for ever: there are two then.
    pub fn serve_receives(&mut self) {
        self.capacity = self.capacity.max(2);
        self.share_of_receives = (self.capacity / 4).max(1);
    }

    /// Gives a reserved place back.
    #[inline]
    pub fn unreserve(&mut self) {
        debug_assert!(self.reserved > 0, "unreserve without reserve");
        self.reserved = self.reserved.saturating_sub(1);
    }

    /// Fills a reserved place.
    pub fn push(&mut self, completion: &Completion) {
        self.unreserve();
        debug_assert!(self.len < self.capacity, "push without reserve");
        let entry = CompletionEntry::new(completion);
        if entry.flags.contains(CompletionFlags::FROM_STRANGER) {
            self.strangers.extend(completion.source);
        }
        self.append(entry);
    }

    #[cold]
    fn push_stranger(&mut self, source: &Address) {
        self.strangers.push_back(*source);
    }

    /// Always inlined: an entry that is put together elsewhere and then copied costs three times as much.
    #[inline(always)]
    fn append(&mut self, entry: CompletionEntry) {
        let place = self.place(self.len);
        match self.entries.get_mut(place) {
            Some(free) => *free = entry,
            None => self.entries.push(entry),
        }
        self.len += 1;
    }

    /// Where the entry is that has so many before it.
    #[inline]
    fn place(&self, before: usize) -> usize {
        let place = self.head + before;
        if place >= self.capacity { place - self.capacity } else { place }
    }

    /// Whether a place is free for a message.
    #[must_use]
    #[inline]
    pub fn has_room(&self) -> bool {
        self.len + self.reserved < self.capacity
    }

    /// Adds the completion of a message without a reserved place, after [`CompletionQueue::has_room`].
    #[inline(always)]
    pub fn push_message(&mut self, mut entry: CompletionEntry, source: &Address) {
        debug_assert!(self.has_room(), "there is room");
        if entry.peer.is_some() {
            entry.flags.0 |= CompletionFlags::FROM_PEER.0;
        } else {
            entry.flags.0 |= CompletionFlags::FROM_STRANGER.0;
            self.push_stranger(source);
        }
        self.append(entry);
    }

    /// How many completions of what is posted there is room for.
    #[must_use]
    pub fn room_for_posts(&self) -> usize {
        self.free().saturating_sub(self.share_of_receives)
    }

    /// Whether what is posted now could complete now.
    #[must_use]
    #[inline]
    pub fn has_room_for_post(&self) -> bool {
        self.free() > self.share_of_receives
    }

    /// Adds a completion without a reserved place, after [`CompletionQueue::has_room_for_post`].
    #[inline(always)]
    pub fn push_at_once(&mut self, entry: CompletionEntry) {
        debug_assert!(self.has_room(), "there is room");
        self.append(entry);
    }

    /// The oldest completion.
    pub fn pop(&mut self, peers: &AddressVector) -> Option<Completion> {
        let source = self.source(peers);
        let entry = *self.front()?;
        self.drop_front();
        Some(entry.to_completion(source))
    }

    /// The oldest completion, left where it is.
    #[must_use]
    #[inline(always)]
    pub fn front(&self) -> Option<&CompletionEntry> {
        if self.len == 0 { None } else { self.entries.get(self.head) }
    }

    /// Who sent the message that the oldest completion tells of.
    #[must_use]
    pub fn source(&self, peers: &AddressVector) -> Option<Address> {
        let entry = self.front()?;
        if entry.flags.contains(CompletionFlags::FROM_STRANGER) {
            return self.strangers.front().copied();
        }
        entry.peer.filter(|_| entry.flags.contains(CompletionFlags::FROM_PEER)).and_then(|peer| peers.address(peer))
    }

    /// Takes the oldest completion out.
    #[inline(always)]
    pub fn drop_front(&mut self) {
        let Some(entry) = self.front() else { return };
        let flags = entry.flags;
        self.drop_shown(flags);
    }

    /// The same, of an entry that [`CompletionQueue::front`] has just given, with these flags.
    #[inline(always)]
    pub fn drop_shown(&mut self, flags: CompletionFlags) {
        debug_assert!(self.len > 0, "there is an entry");
        let stranger = flags.contains(CompletionFlags::FROM_STRANGER);
        self.len -= 1;
        // An empty queue begins anew: a long one that never holds much uses few cache lines.
        self.head = if self.len == 0 { 0 } else { self.place(1) };
        if stranger {
            self.drop_stranger();
        }
    }

    #[cold]
    fn drop_stranger(&mut self) {
        self.strangers.pop_front();
    }

    /// A name is about to go: what waits here and came from it keeps its address.
    pub(crate) fn forget(&mut self, peer: PeerId, address: Address) {
        let came =
            |entry: &CompletionEntry| entry.peer == Some(peer) && entry.flags.contains(CompletionFlags::FROM_PEER);
        let mut before = core::mem::take(&mut self.strangers);
        for index in 0..self.len {
            let place = self.place(index);
            let Some(entry) = self.entries.get_mut(place) else { break };
            if came(entry) {
                entry.flags.0 ^= CompletionFlags::FROM.0;
                self.strangers.push_back(address);
            } else if entry.flags.contains(CompletionFlags::FROM_STRANGER) {
                self.strangers.extend(before.pop_front());
            }
        }
    }

    /// Completions that wait to be read.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is nothing to read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Places that neither hold a completion nor wait for one.
    #[must_use]
    #[inline]
    pub fn free(&self) -> usize {
        self.capacity.saturating_sub(self.len + self.reserved)
    }

    /// Places kept for completions to come.
    #[must_use]
    pub fn reserved(&self) -> usize {
        self.reserved
    }
}

/// Counts what ended, without telling what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counter {
    /// Operations that succeeded.
    pub value: u64,
    /// Operations that failed.
    pub errors: u64,
}
