//! Memory of a peer that this node reaches by itself: the peer's program and its NIC take no part.
//!
//! The target hands over a descriptor of the region with the key, and a word of the channel that says whether the region
//! still is registered. Whoever accesses it says so in another word of the channel *before* looking at the first. So the
//! target, when it deregisters, clears the first and waits until the second is clear: an access that begins later finds
//! the region gone. That is for honest peers. As a hostile one keeps what it has mapped, memory that is deregistered and
//! has another use gets new pages (`weft_mem::MemoryRegion::end_sharing`).
//!
//! Memory of a device is handed over by its handle, with two words: the target's, as above, and the initiator's, which
//! says whether it has the region open, and whether copies are under way. A device's pages cannot be taken back: who
//! deregisters such a region waits until the peer's copies are done, which is soon. From a peer that never says so the
//! channel is taken, which is counted; it could go on to reach the memory until that is freed. A peer that is told to
//! close the region does so when it next looks, which is not waited for long: NVIDIA wants memory to be freed only after
//! every process has closed it, but its driver keeps the pages until then.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use weft_core::command::{Command, EndpointId, Operation};
use weft_core::delivery::Delivery;
use weft_core::event::Failure;
use weft_core::limits::ATOMIC_MAX_BYTES;
use weft_core::memory::{Access, Fault, Memory};
use weft_link::limits::CHANNEL_WORDS_MAX;
use weft_link::shm::Channel;
use weft_mem::cache::Imported;
use weft_mem::device::{Handle, Place};
use weft_mem::{HostMemory, Mapping, Segment};

use super::bytes::read_local;
use super::handle::{self, DeviceNote, Handles};
use super::record::failure_of;
use super::{WORD_BUSY, WORD_FIRST_GRANT};
use crate::limits::{LOCAL_CLOSE_US, LOCAL_DEVICE_LET_GO_US, LOCAL_LET_GO_US, LOCAL_REGIONS_MAX};

/// The regions of one target, as its initiator knows them.
#[derive(Default)]
pub(super) struct Attachments {
    entries: Vec<(u64, Attachment)>,
    /// Where the last one was found.
    last: usize,
    /// Some are, or were, of a device's memory.
    pub(super) has_devices: bool,
}

enum Attachment {
    /// The target was asked.
    Asked,
    /// Not to be had: go through the target.
    Refused,
    Granted(Grant),
    /// Memory of a device.
    Device(DeviceGrant),
}

/// A region of a device's memory that may be reached.
struct DeviceGrant {
    imported: Arc<Imported>,
    place: Place,
    id: u64,
    note: DeviceNote,
    /// Copies under way.
    going: u32,
}

/// What an initiator says about a region of a device's memory, in the word behind that of the grant.
const CLOSED: u64 = 0;
const OPEN: u64 = 1;
const BUSY: u64 = 2;

impl DeviceGrant {
    fn word(&self) -> usize {
        self.note.word as usize
    }

    fn is_granted(&self, channel: &Channel) -> bool {
        channel.shared_word(self.word()).load(Ordering::SeqCst) == GRANTED
    }

    fn say(&self, channel: &Channel, what: u64) {
        // An exchange, for its full barrier: the look at the grant must not come before the others can see this.
        channel.shared_word(self.word() + 1).swap(what, Ordering::SeqCst);
    }
}

/// A region that may be reached.
pub(super) struct Grant {
    mapping: Mapping,
    base: u64,
    access: Access,
    word: usize,
}

impl Attachments {
    /// Whether the target should be asked about a key.
    pub(super) fn wants(&self, key: u64) -> bool {
        self.entries.len() < LOCAL_REGIONS_MAX && self.entries.iter().all(|(known, _)| *known != key)
    }

    pub(super) fn asked(&mut self, key: u64) {
        self.entries.push((key, Attachment::Asked));
    }

    pub(super) fn refused(&mut self, key: u64) {
        self.set(key, Attachment::Refused);
    }

    pub(super) fn granted(&mut self, key: u64, grant: Grant) {
        self.set(key, Attachment::Granted(grant));
    }

    fn set(&mut self, key: u64, attachment: Attachment) {
        if let Some((_, place)) = self.entries.iter_mut().find(|(known, _)| *known == key) {
            *place = attachment;
        }
    }

    /// Where the bytes of a command are, if this node may reach them. Everything else is for the target to refuse.
    #[inline]
    fn find(&mut self, command: &Command, bytes: u64, access: Access) -> Option<(&Grant, u64)> {
        if self.entries.get(self.last).is_none_or(|(key, _)| *key != command.key) {
            self.last = self.entries.iter().position(|(key, _)| *key == command.key)?;
        }
        let (_, Attachment::Granted(grant)) = self.entries.get(self.last)? else { return None };
        let offset = command.address.checked_sub(grant.base)?;
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= grant.mapping.length() as u64);
        (inside && grant.access.contains(access)).then_some((grant, offset))
    }

    /// Does something to a region; `None`: go through the target.
    #[inline]
    fn reach<T>(
        &mut self,
        channel: &Channel,
        command: &Command,
        bytes: u64,
        access: Access,
        act: impl FnOnce(&Mapping, u64) -> T,
    ) -> Option<T> {
        let (grant, offset) = self.find(command, bytes, access)?;
        let busy = channel.shared_word(WORD_BUSY);
        // An exchange, for its full barrier: the look at the grant must not come before the others can see this.
        busy.swap(1, Ordering::SeqCst);
        let valid = channel.shared_word(grant.word).load(Ordering::SeqCst) == GRANTED;
        let result = valid.then(|| act(&grant.mapping, offset));
        busy.store(0, Ordering::Release);
        if !valid {
            self.entries.retain(|(key, _)| *key != command.key);
        }
        result
    }

    /// The target has handed over a region of a device's memory. False: it is not to be had.
    pub(super) fn granted_device(
        &mut self,
        channel: &Channel,
        handles: &Handles,
        key: u64,
        note: DeviceNote,
        handle: &Handle,
    ) -> bool {
        let word = note.word as usize;
        let inside = note.offset.checked_add(note.length).is_some_and(|end| end <= handle.length);
        let opened = if inside && (WORD_FIRST_GRANT..CHANNEL_WORDS_MAX - 1).contains(&word) {
            handles.open(channel.id(), handle)
        } else {
            None
        };
        let Some(imported) = opened else {
            self.refused(key);
            return false;
        };
        let grant = DeviceGrant { imported, place: handle.place, id: handle.id, note, going: 0 };
        grant.say(channel, OPEN);
        self.has_devices = true;
        self.set(key, Attachment::Device(grant));
        true
    }

    /// Memory of a device that a command is for, if this node may reach it: what it is in, and where in that. The target
    /// knows that it is in use until [`Attachments::leave`].
    pub(super) fn enter(
        &mut self,
        channel: &Channel,
        command: &Command,
        access: Access,
    ) -> Option<(Arc<Imported>, u64)> {
        let (_, attachment) = self.entries.iter_mut().find(|(key, _)| *key == command.key)?;
        let Attachment::Device(grant) = attachment else { return None };
        let offset = command.address.checked_sub(grant.note.base)?;
        let end = offset.checked_add(u64::from(command.length))?;
        if end > grant.note.length || !Access(grant.note.access).contains(access) {
            return None;
        }
        grant.say(channel, BUSY);
        if !grant.is_granted(channel) {
            grant.say(channel, if grant.going > 0 { BUSY } else { OPEN });
            return None;
        }
        grant.going += 1;
        Some((grant.imported.clone(), grant.note.offset + offset))
    }

    /// A command is out of a device's memory.
    pub(super) fn leave(&mut self, channel: &Channel, key: u64) {
        let entry = self.entries.iter_mut().find(|(known, _)| *known == key);
        if let Some((_, Attachment::Device(grant))) = entry {
            grant.going = grant.going.saturating_sub(1);
            if grant.going == 0 {
                grant.say(channel, OPEN);
            }
        }
    }

    /// Closes regions of devices that are not granted any more.
    pub(super) fn sweep(&mut self, channel: &Channel, handles: &Handles) {
        let gone = |attachment: &Attachment| match attachment {
            Attachment::Device(grant) => grant.going == 0 && !grant.is_granted(channel),
            _ => false,
        };
        while let Some(index) = self.entries.iter().position(|(_, attachment)| gone(attachment)) {
            if let (_, Attachment::Device(grant)) = self.entries.swap_remove(index) {
                let same = |other: &Attachment| match other {
                    Attachment::Device(other) => (other.place, other.id) == (grant.place, grant.id),
                    _ => false,
                };
                if !self.entries.iter().any(|(_, other)| same(other)) {
                    handles.forget(channel.id(), grant.place, grant.id);
                }
                let word = grant.word();
                drop(grant);
                channel.shared_word(word + 1).store(CLOSED, Ordering::SeqCst);
            }
        }
    }

    #[inline]
    pub(super) fn write(
        &mut self,
        channel: &Channel,
        delivery: &Delivery<HostMemory>,
        command: &Command,
    ) -> Option<Result<(), Failure>> {
        let length = u64::from(command.length);
        self.reach(channel, command, length, Access::REMOTE_WRITE, |mapping, at| {
            let memory = delivery.memory();
            let mut done = 0;
            while done < length {
                let piece = memory.local(command.local, command.offset + done, length - done).map_err(ours)?;
                mapping.copy_from(at + done, memory, piece).map_err(ours)?;
                done += piece.length.max(1);
            }
            Ok(())
        })
    }

    /// The same with bytes of the caller; false: go another way.
    #[inline]
    pub(super) fn write_whole(&mut self, channel: &Channel, command: &Command, bytes: Segment<'_>) -> bool {
        let written = self.reach(channel, command, bytes.len() as u64, Access::REMOTE_WRITE, |mapping, at| {
            mapping.write(at, bytes).is_ok()
        });
        written == Some(true)
    }

    pub(super) fn read(
        &mut self,
        channel: &Channel,
        delivery: &mut Delivery<HostMemory>,
        command: &Command,
    ) -> Option<Result<(), Failure>> {
        let length = u64::from(command.length);
        self.reach(channel, command, length, Access::REMOTE_READ, |mapping, at| {
            let memory = delivery.memory_mut();
            let mut done = 0;
            while done < length {
                let piece = memory.local(command.local, command.offset + done, length - done).map_err(ours)?;
                mapping.copy_to(at + done, memory, piece).map_err(ours)?;
                done += piece.length.max(1);
            }
            Ok(())
        })
    }

    pub(super) fn atomic(
        &mut self,
        channel: &Channel,
        delivery: &mut Delivery<HostMemory>,
        command: &Command,
    ) -> Option<Result<(), Failure>> {
        let call = command.atomic;
        let bytes = call.bytes().filter(|bytes| *bytes <= ATOMIC_MAX_BYTES as usize)?;
        let reached = self.reach(channel, command, bytes as u64, Access::REMOTE_ATOMIC, |mapping, at| {
            let mut payload = [0; ATOMIC_MAX_BYTES as usize];
            let payload = payload.get_mut(..command.length as usize).ok_or(Failure::LengthError)?;
            read_local(delivery.memory(), command.local, command.offset, payload).map_err(ours)?;
            let (compares, operands) = match command.operation {
                Operation::CompareAtomic => payload.split_at(payload.len() / 2),
                _ => (&[] as &[u8], &*payload),
            };
            let fetches = command.operation != Operation::Atomic;
            let mut results = [0; ATOMIC_MAX_BYTES as usize];
            let results = results.get_mut(..if fetches { bytes } else { 0 }).ok_or(Failure::LengthError)?;
            mapping.atomic(at, call, operands, compares, results).map_err(failure_of)?;
            let memory = delivery.memory_mut();
            let mut done = 0;
            while done < results.len() {
                let (at, left) = (command.results_offset() + done as u64, (results.len() - done) as u64);
                let piece = memory.local(command.results(), at, left).map_err(ours)?;
                let end = done + piece.length as usize;
                memory
                    .write(piece, results.get(done..end).filter(|part| !part.is_empty()).ok_or(Failure::LocalFault)?)
                    .map_err(ours)?;
                done = end;
            }
            Ok(())
        });
        // What cannot be done from here at once is for the target, which may be able to, and else refuses it too.
        reached.filter(|result| *result != Err(Failure::NotSupported))
    }
}

fn ours(_fault: Fault) -> Failure {
    Failure::LocalFault
}

/// A grant's word while the region is registered.
const GRANTED: u64 = 1;

/// What a note about a region says: everything a peer needs to reach it but the descriptor.
struct Note {
    token: u32,
    word: u32,
    base: u64,
    length: u64,
    access: u8,
}

impl Note {
    const BYTES: usize = 32;

    fn emit(&self) -> [u8; Note::BYTES] {
        let mut bytes = [0; Note::BYTES];
        let (words, _) = bytes.as_chunks_mut::<8>();
        let values =
            [u64::from(self.word) << 32 | u64::from(self.token), self.base, self.length, u64::from(self.access)];
        words.iter_mut().zip(values).for_each(|(word, value)| *word = value.to_le_bytes());
        bytes
    }

    fn parse(bytes: &[u8]) -> Option<Note> {
        let bytes: &[u8; Note::BYTES] = bytes.try_into().ok()?;
        let (words, _) = bytes.as_chunks::<8>();
        let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
        let (names, base, length, access) = (words.next()?, words.next()?, words.next()?, words.next()?);
        Some(Note { token: names as u32, word: (names >> 32) as u32, base, length, access: access as u8 })
    }
}

/// A note of a target about one of its regions; `None`: it makes no sense, or the region cannot be mapped.
pub(super) fn parse_grant(bytes: &[u8], descriptors: &[OwnedFd]) -> Option<(u32, Option<Grant>)> {
    let note = Note::parse(bytes)?;
    let word = note.word as usize;
    if !(WORD_FIRST_GRANT..CHANNEL_WORDS_MAX).contains(&word) {
        return None;
    }
    let access = Access(note.access);
    let writable = access.0 & (Access::REMOTE_WRITE | Access::REMOTE_ATOMIC).0 != 0;
    let length = usize::try_from(note.length).ok()?;
    let mapping = descriptors.first().and_then(|descriptor| Mapping::open(descriptor.as_fd(), length, writable).ok());
    Some((note.token, mapping.map(|mapping| Grant { mapping, base: note.base, access, word })))
}

/// The regions that a peer may reach by itself, as their owner knows them.
#[derive(Default)]
pub(super) struct Granting {
    /// Key and word; a word is used once for each channel's life, so that a late look cannot find another region's.
    granted: Vec<(u64, usize)>,
    /// The same of memory of devices, with its place and the id of its allocation.
    devices: Vec<(u64, usize, Place, u64)>,
    words: usize,
}

impl Granting {
    /// Hands a region over; false: it cannot be.
    pub(super) fn grant(
        &mut self,
        channel: &Channel,
        delivery: &Delivery<HostMemory>,
        endpoint: EndpointId,
        token: u32,
        key: u64,
    ) -> bool {
        let word = WORD_FIRST_GRANT + self.words;
        if word >= CHANNEL_WORDS_MAX || delivery.counts_remote_access(endpoint, key) {
            return false;
        }
        if self.grant_device(channel, delivery, word, token, key) {
            return true;
        }
        let Some((shareable, base, access)) = delivery.memory().share(key) else { return false };
        self.words += 1;
        channel.shared_word(word).store(GRANTED, Ordering::SeqCst);
        let note = Note { token, word: word as u32, base, length: shareable.length as u64, access: access.0 };
        if channel.note(&note.emit(), &[shareable.descriptor.as_fd()]).is_err() {
            channel.shared_word(word).store(0, Ordering::SeqCst);
            return false;
        }
        self.granted.push((key, word));
        true
    }

    /// Hands memory of a device over; false: it is not such memory, or cannot be.
    fn grant_device(
        &mut self,
        channel: &Channel,
        delivery: &Delivery<HostMemory>,
        word: usize,
        token: u32,
        key: u64,
    ) -> bool {
        // Some kinds do not let a process open its own handles; and who waits for itself waits for ever.
        let same_process = u32::try_from(channel.peer_pid()) == Ok(std::process::id());
        if same_process || word + 1 >= CHANNEL_WORDS_MAX || !delivery.memory().uses_devices() {
            return false;
        }
        let Some(grant) = delivery.memory().share_device(key) else { return false };
        let (base, offset, length, access) = (grant.base, grant.offset, grant.length, grant.access.0);
        let note = DeviceNote { token, word: word as u32, base, offset, length, access };
        let (place, id) = (grant.handle.place, grant.handle.id);
        self.words += 2;
        channel.shared_word(word).store(GRANTED, Ordering::SeqCst);
        if !handle::Note::Grant(note, grant.handle).send(channel) {
            channel.shared_word(word).store(0, Ordering::SeqCst);
            return false;
        }
        self.devices.push((key, word, place, id));
        true
    }

    /// The keys of regions that were handed over.
    pub(super) fn keys(&self) -> impl Iterator<Item = u64> {
        self.granted.iter().map(|(key, _)| *key).chain(self.devices.iter().map(|(key, ..)| *key))
    }

    /// Takes a region back, and waits until the peer has let go of it, but not for ever. False: it is memory of a device,
    /// and the peer says that it is still at it.
    pub(super) fn revoke(&mut self, channel: &Channel, key: u64, until: &Deadlines) -> bool {
        let before = self.granted.len();
        // A peer may have asked more than once.
        self.granted.retain(|(granted, word)| {
            if *granted == key {
                channel.shared_word(*word).store(0, Ordering::SeqCst);
            }
            *granted != key
        });
        if self.granted.len() < before {
            let busy = channel.shared_word(WORD_BUSY);
            let _left = wait(until.leave, || busy.load(Ordering::SeqCst) == 0);
        }
        let mut left = true;
        while let Some(place) = self.devices.iter().position(|(granted, ..)| *granted == key) {
            left &= self.revoke_device(channel, place, until);
        }
        left
    }

    fn revoke_device(&mut self, channel: &Channel, place: usize, until: &Deadlines) -> bool {
        let (_, word, place, id) = self.devices.swap_remove(place);
        channel.shared_word(word).store(0, Ordering::SeqCst);
        let theirs = channel.shared_word(word + 1);
        if theirs.load(Ordering::SeqCst) == CLOSED {
            return true;
        }
        // Wakes a peer that sleeps.
        let _told = handle::Note::Forget(place, id).send(channel);
        if !wait(until.leave_device, || matches!(theirs.load(Ordering::SeqCst), CLOSED | OPEN)) {
            return false;
        }
        let _closed = wait(until.close, || theirs.load(Ordering::SeqCst) == CLOSED);
        true
    }
}

/// Until when a deregistration waits for its peers. One time for all: many channels of one peer that does not let go must
/// not add up.
pub(super) struct Deadlines {
    leave: Instant,
    leave_device: Instant,
    close: Instant,
}

impl Deadlines {
    pub(super) fn from_now() -> Deadlines {
        let now = Instant::now();
        let after = |micros| now + Duration::from_micros(micros);
        Deadlines {
            leave: after(LOCAL_LET_GO_US),
            leave_device: after(LOCAL_DEVICE_LET_GO_US),
            close: after(LOCAL_CLOSE_US),
        }
    }
}

/// Waits for a peer; false: in vain.
fn wait(deadline: Instant, mut until: impl FnMut() -> bool) -> bool {
    while !until() {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::yield_now();
    }
    true
}
