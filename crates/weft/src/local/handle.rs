//! Device memory by handle: a peer of the same node opens the allocation, and the device copies. No byte passes through
//! the host.
//!
//! An initiator whose message lies in device memory offers it with a [`Reference`] to the allocation. The handle that
//! opens the allocation goes over the socket, once for each channel ([`Told`]), before the first offer that needs it; the
//! target opens it and keeps it open ([`Pulls`]). Notes and records are not in order with each other: an offer may come
//! before its handle, and waits for it for a while. Where a handle does not come, makes no sense, or cannot be opened, the
//! target asks for the bytes instead, which then go through the host, and both count it.
//!
//! Writes and reads go the other way: the target hands over a handle of its region (`attachment`), and the initiator copies
//! ([`Reaching`]).
//!
//! A handle opens the whole allocation, for reading and writing: no kind of device knows less. So a process of the same
//! user that was sent something from device memory could reach all of that allocation, if it wanted to.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weft_core::command::{Command, Operation};
use weft_core::delivery::{ArrivalId, Delivery, Destination};
use weft_core::event::Failure;
use weft_core::memory::{Access, Fault, Granted, LocalKey, Memory};
use weft_link::shm::{Channel, ChannelId};
use weft_mem::cache::{Imported, OpenedHandles};
use weft_mem::device::{self, HANDLE_BYTES, Handle, Kind, Place};
use weft_mem::{Buffer, Copying, HostMemory, MemoryRegion};

use super::LocalStatistics;
use crate::limits::{
    LOCAL_BOUNCE_BYTES, LOCAL_COPIES_ASKED, LOCAL_COPIES_MAX, LOCAL_DEVICE_EAGER_MAX_BYTES, LOCAL_DEVICE_SYNC_BYTES,
    LOCAL_HANDLE_AFTER, LOCAL_HANDLE_LOOKS_MAX, LOCAL_HANDLES_MAX, LOCAL_POOLS_MAX, LOCAL_WITHIN_SYNC_BYTES,
};

/// Allocations of peers that are open here, of all channels.
#[derive(Clone, Default)]
pub(super) struct Handles(Arc<Mutex<OpenedHandles>>);

impl Handles {
    fn lock(&self) -> MutexGuard<'_, OpenedHandles> {
        // A thread that panicked while it held the lock left whole entries behind.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens an allocation of the peer of a channel, if it is not open.
    pub(super) fn open(&self, channel: ChannelId, handle: &Handle) -> Option<Arc<Imported>> {
        self.lock().open(channel.0, handle, |handle| open(handle).ok_or(())).ok()
    }

    pub(super) fn forget(&self, channel: ChannelId, place: Place, id: u64) {
        self.lock().forget(channel.0, place, id);
    }

    pub(super) fn close_channel(&self, channel: ChannelId) {
        self.lock().close_channel(channel.0);
    }
}

/// Where a message lies: in which allocation of its sender, and where in that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reference {
    pub(super) place: Place,
    pub(super) id: u64,
    pub(super) offset: u64,
}

impl Reference {
    pub(super) const BYTES: usize = 24;

    pub(super) fn to_bytes(self) -> [u8; Reference::BYTES] {
        let mut bytes = [0; Reference::BYTES];
        put_words(&mut bytes, &[place_word(self.place), self.id, self.offset]);
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Reference> {
        let bytes: &[u8; Reference::BYTES] = bytes.try_into().ok()?;
        let mut words = words_of(bytes);
        let (place, id, offset) = (place_of(words.next()?)?, words.next()?, words.next()?);
        Some(Reference { place, id, offset })
    }
}

fn place_word(place: Place) -> u64 {
    u64::from(place.device) << 8 | u64::from(place.kind as u8)
}

fn place_of(word: u64) -> Option<Place> {
    let kind = Kind::from_number(word as u8).filter(|kind| *kind != Kind::System)?;
    Some(Place::new(kind, u32::try_from(word >> 8).ok()?))
}

fn put_words(bytes: &mut [u8], values: &[u64]) {
    let (words, _) = bytes.as_chunks_mut::<8>();
    words.iter_mut().zip(values).for_each(|(word, value)| *word = value.to_le_bytes());
}

fn words_of(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word))
}

/// What goes over the socket about device memory.
#[derive(Debug)]
pub(super) enum Note {
    /// An allocation that offers will refer to.
    Handle(Handle),
    /// It is gone, or will not be referred to any more: close it.
    Forget(Place, u64),
    /// The bounce buffers of the initiator; the answer goes to this token.
    Pool(u32, Handle),
    /// A region that the initiator may reach by itself.
    Grant(DeviceNote, Handle),
}

/// What an initiator has to know of a region besides the handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeviceNote {
    pub(super) token: u32,
    /// The word that says that it is granted; the one behind it is the initiator's.
    pub(super) word: u32,
    pub(super) base: u64,
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) access: u8,
}

const NOTE_HANDLE: u64 = 1;
const NOTE_FORGET: u64 = 2;
const NOTE_GRANT: u64 = 3;
const NOTE_POOL: u64 = 4;
const NOTE_WORDS: usize = 9;
const NOTE_BYTES: usize = 8 * NOTE_WORDS + HANDLE_BYTES;

impl Note {
    /// Sends it; false: the socket does not take it now.
    pub(super) fn send(&self, channel: &Channel) -> bool {
        let mut bytes = [0; NOTE_BYTES];
        let (tag, handle) = match self {
            Note::Handle(handle) => (NOTE_HANDLE, Some(handle)),
            Note::Forget(..) => (NOTE_FORGET, None),
            Note::Pool(_, handle) => (NOTE_POOL, Some(handle)),
            Note::Grant(_, handle) => (NOTE_GRANT, Some(handle)),
        };
        let (place, id) = match (self, handle) {
            (Note::Forget(place, id), _) => (*place, *id),
            (_, handle) => handle.map_or((Place::HOST, 0), |handle| (handle.place, handle.id)),
        };
        let rest = match self {
            Note::Handle(_) | Note::Forget(..) => [0; 5],
            Note::Pool(token, _) => [u64::from(*token), 0, 0, 0, 0],
            Note::Grant(grant, _) => {
                let names = u64::from(grant.word) << 32 | u64::from(grant.token);
                [names, grant.base, grant.offset, grant.length, u64::from(grant.access)]
            }
        };
        let [names, base, offset, length, access] = rest;
        let all = handle.map_or(0, |handle| handle.length);
        put_words(&mut bytes, &[tag, place_word(place), id, all, names, base, offset, length, access]);
        if let (Some(handle), Some(room)) = (handle, bytes.last_chunk_mut::<HANDLE_BYTES>()) {
            *room = handle.bytes;
        }
        let descriptor = handle.and_then(|handle| handle.descriptor.as_ref()).map(AsFd::as_fd);
        channel.note(&bytes, descriptor.as_slice()).is_ok()
    }

    /// A note as it came; `None`: it makes no sense.
    pub(super) fn parse(bytes: &[u8], descriptors: Vec<OwnedFd>) -> Option<Note> {
        let bytes: &[u8; NOTE_BYTES] = bytes.try_into().ok()?;
        let mut words = words_of(bytes);
        let (tag, place) = (words.next()?, place_of(words.next()?)?);
        let (id, length) = (words.next()?, words.next()?);
        let descriptor = descriptors.into_iter().next();
        let handle = Handle { place, bytes: *bytes.last_chunk::<HANDLE_BYTES>()?, descriptor, length, id };
        match tag {
            NOTE_HANDLE => Some(Note::Handle(handle)),
            NOTE_FORGET => Some(Note::Forget(place, id)),
            NOTE_POOL => Some(Note::Pool(words.next()? as u32, handle)),
            NOTE_GRANT => {
                let (names, base) = (words.next()?, words.next()?);
                let (offset, length, access) = (words.next()?, words.next()?, words.next()?);
                let (token, word) = (names as u32, (names >> 32) as u32);
                let grant = DeviceNote { token, word, base, offset, length, access: access as u8 };
                Some(Note::Grant(grant, handle))
            }
            _ => None,
        }
    }
}

/// Opens the allocation of a peer. A kind that this process does not use is not loaded for a peer's sake.
fn open(handle: &Handle) -> Option<Imported> {
    let operations = device::in_use(handle.place.kind)?;
    Imported::open(operations, handle).ok()
}

/// The allocations that the target of a channel was told of, as its initiator knows it.
#[derive(Default)]
pub(super) struct Told {
    entries: Vec<Entry>,
    clock: u64,
    /// The next one to be looked at, whether it is still there.
    cursor: usize,
}

struct Entry {
    place: Place,
    id: u64,
    base: u64,
    used: u64,
    standing: Standing,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// The target does not know it; so many short messages came from it.
    Used(u32),
    Told,
    /// The target could not open it.
    Refused,
}

/// Whether the bytes of a command lie in device memory.
pub(super) fn is_on_device(memory: &HostMemory, command: &Command) -> bool {
    command.length > 0 && memory.local_place(command.local).is_none_or(|place| !place.is_host())
}

impl Told {
    /// How to refer to the bytes of a command, if they lie in one piece of a device's memory that others can open. The
    /// target is told of the allocation if it was not before.
    pub(super) fn refer(&mut self, channel: &Channel, memory: &HostMemory, command: &Command) -> Option<Reference> {
        let length = u64::from(command.length);
        let piece = memory.local(command.local, command.offset, length).ok()?;
        let inside = memory.inside(piece, Access::REMOTE_READ).ok()??;
        let allocation = inside.allocation;
        if piece.length != length || !allocation.exportable {
            return None;
        }
        let reference = Reference { place: allocation.place, id: allocation.id, offset: inside.offset };
        self.clock += 1;
        let now = self.clock;
        let (place, id) = (reference.place, reference.id);
        if self.find(place, id).is_none() {
            if self.entries.len() >= LOCAL_HANDLES_MAX
                && let Some(oldest) =
                    (0..LOCAL_HANDLES_MAX).min_by_key(|index| self.entries.get(*index).map(|e| e.used))
            {
                self.withdraw(channel, oldest);
            }
            let standing = Standing::Used(0);
            self.entries.push(Entry { place, id, base: allocation.base, used: now, standing });
        }
        let entry = self.find(place, id)?;
        entry.used = now;
        match &mut entry.standing {
            Standing::Told => return Some(reference),
            Standing::Refused => return None,
            Standing::Used(times) => {
                if length <= LOCAL_BOUNCE_BYTES as u64 && *times < LOCAL_HANDLE_AFTER {
                    *times += 1;
                    return None;
                }
            }
        }
        let handle = memory.export(piece, Access::REMOTE_READ).ok()?;
        if handle.id != id || !Note::Handle(handle).send(channel) {
            return None;
        }
        entry.standing = Standing::Told;
        Some(reference)
    }

    fn find(&mut self, place: Place, id: u64) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.id == id && entry.place == place)
    }

    /// Tells the target to close one.
    fn withdraw(&mut self, channel: &Channel, index: usize) {
        let entry = self.entries.swap_remove(index);
        if entry.standing != Standing::Told {
            return;
        }
        // A target that does not hear of it closes it when it has too many, or with the channel.
        let _told = Note::Forget(entry.place, entry.id).send(channel);
    }

    /// The target wants the bytes of a command instead: it could not open the allocation, or does not know it.
    pub(super) fn declined(&mut self, memory: &HostMemory, command: &Command, refused: bool) {
        let piece = memory.local(command.local, command.offset, u64::from(command.length));
        let Ok(Ok(Some(inside))) = piece.map(|piece| memory.inside(piece, Access::REMOTE_READ)) else { return };
        let (place, id) = (inside.allocation.place, inside.allocation.id);
        if refused {
            if let Some(entry) = self.find(place, id) {
                entry.standing = Standing::Refused;
            }
        } else {
            self.entries.retain(|entry| (entry.place, entry.id) != (place, id));
        }
    }

    /// Looks whether one of the allocations was freed, so that the target closes it and the device has its memory back.
    pub(super) fn sweep(&mut self, channel: &Channel) {
        self.cursor += 1;
        if self.cursor >= self.entries.len() {
            self.cursor = 0;
        }
        let Some(entry) = self.entries.get(self.cursor) else { return };
        let found = device::in_use(entry.place.kind).and_then(|operations| operations.classify(entry.base));
        if found.is_none_or(|found| found.id != entry.id) {
            self.withdraw(channel, self.cursor);
        }
    }
}

/// A message that is wanted, and copied from its sender's device memory.
#[derive(Clone, Copy)]
pub(super) struct Pull {
    /// Which offer.
    pub(super) index: u32,
    pub(super) id: ArrivalId,
    pub(super) token: u32,
    pub(super) length: u32,
    pub(super) reference: Reference,
}

impl Pull {
    /// Whether it would go through the ring whole, if it were the host's: such messages arrive in order.
    fn is_short(&self) -> bool {
        self.length as usize <= LOCAL_DEVICE_EAGER_MAX_BYTES
    }
}

/// What became of one.
pub(super) enum Pulled {
    /// Its bytes are there.
    Done,
    /// Its bytes have to come another way: the allocation cannot be opened or copied from.
    Refused,
    /// The same, as it is not known.
    Unknown,
}

struct Going {
    pull: Pull,
    copies: Vec<Copying>,
    /// It goes here first, and then to where it belongs: nobody wants it yet, or it is for another kind of device.
    kept: Option<(LocalKey, MemoryRegion)>,
    result: Pulled,
}

/// Copies from the device memory of the initiator of a channel.
pub(super) struct Pulls {
    handles: Handles,
    channel: ChannelId,
    /// Bounce buffers of the initiator. They stay open as long as the channel.
    pools: Vec<(Place, u64, Arc<Imported>)>,
    /// What could not be opened, newest last.
    refused: VecDeque<(Place, u64)>,
    /// Not begun, and how often their handle was looked for.
    waiting: VecDeque<(Pull, u32)>,
    going: Vec<Going>,
    /// Something came that they may wait for.
    look: bool,
}

impl Pulls {
    pub(super) fn new(handles: Handles, channel: ChannelId) -> Pulls {
        let (refused, waiting) = (VecDeque::new(), VecDeque::new());
        Pulls { handles, channel, pools: Vec::new(), refused, waiting, going: Vec::new(), look: false }
    }

    /// Whether something lies in a bounce buffer.
    pub(super) fn is_bounced(&self, reference: &Reference) -> bool {
        self.pools.iter().any(|(place, id, _)| (*place, *id) == (reference.place, reference.id))
    }

    fn find(&self, reference: &Reference) -> Option<Arc<Imported>> {
        let Reference { place, id, .. } = *reference;
        let pool = self.pools.iter().find(|pool| (pool.0, pool.1) == (place, id));
        pool.map(|pool| pool.2.clone()).or_else(|| self.handles.lock().find(self.channel.0, place, id))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.going.is_empty()
    }

    /// Whether short messages are on their way, which no later one may overtake.
    pub(super) fn has_short(&self) -> bool {
        let waiting = self.waiting.iter().map(|(pull, _)| pull);
        !self.is_empty() && waiting.chain(self.going.iter().map(|going| &going.pull)).any(Pull::is_short)
    }

    /// Whether a handle is waited for, so that the socket has to be looked at.
    pub(super) fn wants_notes(&self) -> bool {
        !self.waiting.is_empty() && !self.look && self.going.len() < LOCAL_COPIES_MAX
    }

    /// The socket was looked at.
    pub(super) fn looked(&mut self) {
        self.look |= !self.waiting.is_empty();
        self.waiting.iter_mut().for_each(|(_, looks)| *looks += 1);
    }

    /// A note of the initiator; what it has to be answered, if it has.
    pub(super) fn noted(&mut self, note: Option<Note>, statistics: &mut LocalStatistics) -> Option<(u32, bool)> {
        let mut answer = None;
        match note {
            Some(Note::Pool(token, handle)) => {
                let opened = if self.pools.len() < LOCAL_POOLS_MAX { open(&handle) } else { None };
                answer = Some((token, opened.is_some()));
                match opened {
                    Some(imported) => {
                        statistics.handles_opened += 1;
                        self.pools.push((handle.place, handle.id, Arc::new(imported)));
                    }
                    None => statistics.handles_refused += 1,
                }
            }
            Some(Note::Handle(handle)) => {
                let name = (handle.place, handle.id);
                self.refused.retain(|refused| *refused != name);
                if self.handles.open(self.channel, &handle).is_some() {
                    statistics.handles_opened += 1;
                } else {
                    statistics.handles_refused += 1;
                    self.refused.push_back(name);
                    if self.refused.len() > LOCAL_HANDLES_MAX {
                        self.refused.pop_front();
                    }
                }
            }
            Some(Note::Forget(place, id)) => self.handles.forget(self.channel, place, id),
            Some(Note::Grant(..)) | None => statistics.handles_refused += 1,
        }
        self.look = true;
        answer
    }

    pub(super) fn push(&mut self, pull: Pull) {
        self.waiting.push_back((pull, 0));
        self.look = true;
    }

    /// Goes on with all of them. Those that ended are pushed to `ended`. True: something happened.
    pub(super) fn serve(&mut self, delivery: &mut Delivery<HostMemory>, ended: &mut Vec<(Pull, Pulled)>) -> bool {
        let before = ended.len();
        if std::mem::take(&mut self.look) {
            let waiting = std::mem::take(&mut self.waiting);
            let alone = waiting.len() == 1;
            let mut held = false;
            for (pull, looks) in waiting {
                // Short ones begin in order.
                if self.going.len() >= LOCAL_COPIES_MAX || held && pull.is_short() {
                    held |= pull.is_short();
                    self.waiting.push_back((pull, looks));
                    continue;
                }
                let Reference { place, id, .. } = pull.reference;
                match self.find(&pull.reference) {
                    Some(imported) => {
                        let alone = alone && self.going.is_empty();
                        self.going.push(start(delivery, pull, &imported, alone));
                    }
                    None if self.refused.contains(&(place, id)) => ended.push((pull, Pulled::Refused)),
                    None if looks >= LOCAL_HANDLE_LOOKS_MAX => ended.push((pull, Pulled::Unknown)),
                    None => {
                        held |= pull.is_short();
                        self.waiting.push_back((pull, looks));
                    }
                }
            }
        }
        let (mut unfinished, mut held) = (0, false);
        self.going.retain_mut(|going| {
            // Copies end in about the order in which they began, and each question costs the driver's time.
            if unfinished >= LOCAL_COPIES_ASKED {
                held |= going.pull.is_short();
                return true;
            }
            // A copy that failed is not told apart from one that cannot be: the bytes come another way.
            going.copies.retain(|copy| match delivery.memory_mut().is_copied(copy) {
                Ok(done) => !done,
                Err(_) => {
                    going.result = Pulled::Refused;
                    false
                }
            });
            // Short messages end in order, as those do that come through the ring.
            let done = going.copies.is_empty() && !(held && going.pull.is_short());
            if done {
                going.unload(delivery);
                ended.push((going.pull, std::mem::replace(&mut going.result, Pulled::Done)));
            }
            unfinished += usize::from(!going.copies.is_empty());
            held |= !done && going.pull.is_short();
            !done
        });
        let busy = ended.len() > before;
        // There is room for those that waited for it.
        self.look |= busy && !self.waiting.is_empty();
        busy
    }

    /// The channel is about to end: waits for the copies. Its initiator may free the memory when it hears of it.
    pub(super) fn close(&mut self, delivery: &mut Delivery<HostMemory>) {
        self.waiting.clear();
        for going in self.going.drain(..) {
            finish(delivery.memory_mut(), &going.copies);
            going.kept.map(|(key, _)| delivery.memory_mut().take(key));
        }
        self.pools.clear();
        self.handles.close_channel(self.channel);
    }
}

/// Waits for copies, whose results are not wanted any more.
fn finish(memory: &mut HostMemory, copies: &[Copying]) {
    for copy in copies {
        while memory.is_copied(copy) == Ok(false) {
            std::thread::yield_now();
        }
    }
}

/// Starts to copy a message to where it is wanted, or else to the host. One that is short and alone is copied when this
/// returns: to begin and to ask takes longer than to wait.
fn start(delivery: &mut Delivery<HostMemory>, pull: Pull, imported: &Arc<Imported>, alone: bool) -> Going {
    let mut going = Going { pull, copies: Vec::new(), kept: None, result: Pulled::Done };
    let length = u64::from(pull.length);
    let Some(end) = pull.reference.offset.checked_add(length).filter(|end| *end <= imported.length()) else {
        going.result = Pulled::Refused;
        return going;
    };
    let mut done = 0;
    while done < length {
        let started = match delivery.destination(pull.id, done, length - done) {
            Ok(Destination::Memory(memory, piece)) if piece.length > 0 => {
                let from = end - length + done;
                done += piece.length;
                if alone && piece.length <= at_once_max(memory, piece) {
                    memory.copy_from_foreign(piece, &**imported, from).map(|()| None)
                } else {
                    memory.start_from_foreign(piece, imported.clone(), from).map(Some)
                }
            }
            // Nobody wants it any more.
            Ok(Destination::Nowhere) => return going,
            Ok(Destination::Memory(..)) => Err(Fault::OutOfBounds),
            Ok(Destination::Bytes(_)) => Err(Fault::NotSupported),
            Err(fault) => Err(fault),
        };
        match started {
            Ok(copying) => going.copies.extend(copying),
            Err(Fault::NotSupported) if going.copies.is_empty() => {
                going.keep(delivery, imported);
                return going;
            }
            // The way through the host meets the same, and tells of it.
            Err(_) => {
                going.result = Pulled::Refused;
                return going;
            }
        }
    }
    going
}

/// The longest piece that is waited for, rather than asked about.
fn at_once_max(memory: &HostMemory, piece: Granted) -> u64 {
    match memory.place(piece, Access::REMOTE_WRITE) {
        Ok(place) if !place.is_host() => LOCAL_WITHIN_SYNC_BYTES,
        _ => u64::from(LOCAL_DEVICE_SYNC_BYTES),
    }
}

impl Going {
    /// Copies the message to memory of the host.
    fn keep(&mut self, delivery: &mut Delivery<HostMemory>, imported: &Arc<Imported>) {
        self.result = Pulled::Refused;
        let Some(region) = MemoryRegion::alloc_zeroed(self.pull.length as usize) else { return };
        let memory = delivery.memory_mut();
        let Ok(buffer) = Buffer::from_region(&region, 0, region.length()) else { return };
        let Ok(key) = memory.attach(buffer) else { return };
        let started = memory
            .local(key, 0, u64::from(self.pull.length))
            .and_then(|all| memory.start_from_foreign(all, imported.clone(), self.pull.reference.offset));
        match started {
            Ok(copying) => {
                self.copies.push(copying);
                self.kept = Some((key, region));
                self.result = Pulled::Done;
            }
            Err(_) => drop(memory.take(key)),
        }
    }

    /// Brings a message that was kept to where it belongs.
    fn unload(&mut self, delivery: &mut Delivery<HostMemory>) {
        let Some((key, region)) = self.kept.take() else { return };
        drop(delivery.memory_mut().take(key));
        let length = u64::from(self.pull.length);
        let mut done = 0;
        while matches!(self.result, Pulled::Done) && done < length {
            let from = done as usize;
            let placed = match delivery.destination(self.pull.id, done, length - done) {
                Ok(Destination::Bytes(bytes)) => region.read(from, bytes).map(|()| bytes.len() as u64),
                Ok(Destination::Memory(memory, piece)) => region
                    .to_vec(from, piece.length as usize)
                    .and_then(|bytes| memory.write(piece, &bytes))
                    .map(|()| piece.length),
                Ok(Destination::Nowhere) => return,
                Err(fault) => Err(fault),
            };
            match placed {
                Ok(length) if length > 0 => done += length,
                _ => self.result = Pulled::Refused,
            }
        }
    }
}

/// A write or read that this node does in a peer's device memory.
pub(super) struct Reaching {
    pub(super) token: u32,
    pub(super) key: u64,
    copies: Vec<Copying>,
    result: Result<(), Failure>,
}

impl Reaching {
    /// Whether it is done, and how it ended.
    pub(super) fn poll(&mut self, memory: &mut HostMemory) -> Option<Result<(), Failure>> {
        self.copies.retain(|copy| match memory.is_copied(copy) {
            Ok(done) => !done,
            Err(_) => {
                self.result = Err(Failure::OperationFailed);
                false
            }
        });
        self.copies.is_empty().then_some(self.result)
    }

    /// The channel is about to end: waits. The target may deregister the memory when it hears of it.
    pub(super) fn finish(&self, memory: &mut HostMemory) {
        finish(memory, &self.copies);
    }
}

/// What became of a command that is to be done in a peer's device memory.
pub(super) enum Reached {
    Done(Result<(), Failure>),
    /// It goes on. The caller gives it a token.
    Going(Reaching),
    /// It cannot be done this way.
    Not,
}

/// Copies the bytes of a command into a peer's device memory, or out of it.
pub(super) fn reach(memory: &mut HostMemory, command: &Command, imported: &Arc<Imported>, at: u64) -> Reached {
    let length = u64::from(command.length);
    let writes = command.operation == Operation::Write;
    let mut going = Reaching { token: 0, key: command.key, copies: Vec::new(), result: Ok(()) };
    let mut done = 0;
    while done < length {
        let piece = match memory.local(command.local, command.offset + done, length - done) {
            Ok(piece) if piece.length > 0 => piece,
            _ => {
                going.result = Err(Failure::LocalFault);
                break;
            }
        };
        let from = at + done;
        let copied = match (piece.length <= u64::from(LOCAL_DEVICE_SYNC_BYTES), writes) {
            (true, true) => memory.copy_to_foreign(piece, &**imported, from).map(|()| None),
            (true, false) => memory.copy_from_foreign(piece, &**imported, from).map(|()| None),
            (false, true) => memory.start_to_foreign(piece, imported.clone(), from).map(Some),
            (false, false) => memory.start_from_foreign(piece, imported.clone(), from).map(Some),
        };
        match copied {
            Ok(copying) => going.copies.extend(copying),
            // Another kind of device, for one. The target may fare better.
            Err(_) if done == 0 => return Reached::Not,
            Err(_) => {
                going.result = Err(Failure::OperationFailed);
                break;
            }
        }
        done += piece.length;
    }
    if going.copies.is_empty() { Reached::Done(going.result) } else { Reached::Going(going) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn references_come_back() {
        let reference = Reference { place: Place::new(Kind::Cuda, 7), id: u64::MAX, offset: 1 << 40 };
        assert_eq!(Reference::from_bytes(&reference.to_bytes()), Some(reference));
        assert_eq!(Reference::from_bytes(&reference.to_bytes()[1..]), None);
        let host = Reference { place: Place::HOST, ..reference };
        assert_eq!(Reference::from_bytes(&host.to_bytes()), None, "the host's memory has no handles");
    }

    proptest! {
        #[test]
        fn notes_are_read_whatever_they_are(bytes in proptest::collection::vec(any::<u8>(), NOTE_BYTES), tag in 0u8..6) {
            let mut bytes = bytes;
            bytes[..8].copy_from_slice(&u64::from(tag).to_le_bytes());
            bytes[8..16].copy_from_slice(&place_word(Place::new(Kind::Emulated, 1)).to_le_bytes());
            let note = Note::parse(&bytes, Vec::new());
            prop_assert_eq!(note.is_some(), (1..=4).contains(&tag));
            if let Some(Note::Handle(handle)) = note {
                prop_assert!(open(&handle).is_none(), "nothing is behind it");
            }
            prop_assert!(Note::parse(&bytes[1..], Vec::new()).is_none());
        }
    }
}
