//! Bounce buffers: device memory of a channel's initiator that its target has opened once, for messages that are too short
//! to pay for the opening of their own allocation, or whose allocation cannot be opened by others.
//!
//! The initiator copies a message into a slot, on the device, and offers it from there. The target copies it out, and its
//! answer gives the slot back; only then the message counts as sent, since the slot ends with its process. Each channel has its own slots, so that no peer can harm the
//! messages to another one; they are made at the first use, and used from the moment on when the target says that it has
//! opened them. Until then, and when all slots are taken, messages go through the host.

use weft_core::command::Command;
use weft_core::memory::{Fault, Memory};
use weft_link::shm::Channel;
use weft_mem::device::Place;
use weft_mem::{HostMemory, MemoryRegion};

use super::handle::{Note, Reference};
use crate::limits::{LOCAL_BOUNCE_BYTES, LOCAL_BOUNCE_KINDS, LOCAL_BOUNCE_SLOTS, LOCAL_POOLS_MAX};

/// A token with this bit is not that of a command: it asks whether the target has opened the slots on a device.
const QUESTION: u32 = 1 << 31;

/// Whether a token is that of such a question.
pub(super) fn is_question(token: u32) -> bool {
    token & QUESTION != 0
}

/// The slots of one channel, of all devices.
#[derive(Default)]
pub(super) struct Bounces {
    pools: Vec<Pool>,
}

struct Pool {
    place: Place,
    /// `None`: there is no memory for it, the target does not open it, or a device failed.
    memory: Option<(MemoryRegion, u64)>,
    opened: bool,
    free: Vec<u32>,
}

/// A message in a slot.
pub(super) struct Bounced {
    pub(super) reference: Reference,
    /// Which one, of all devices.
    pub(super) slot: u32,
}

impl Bounces {
    /// Copies the bytes of a command into a slot on the device that they are on. `None`: it has to go another way.
    pub(super) fn take(&mut self, channel: &Channel, memory: &mut HostMemory, command: &Command) -> Option<Bounced> {
        let place = memory.local_place(command.local).filter(|place| LOCAL_BOUNCE_KINDS.contains(&place.kind))?;
        let index = match self.pools.iter().position(|pool| pool.place == place) {
            Some(index) => index,
            None => return self.make(channel, place),
        };
        let pool = self.pools.get_mut(index).filter(|pool| pool.opened)?;
        let (region, id) = pool.memory.as_ref()?;
        let slot = pool.free.pop()?;
        let offset = u64::from(slot) * LOCAL_BOUNCE_BYTES as u64;
        if copy(memory, command, region, offset).is_err() {
            // It fails again on the way through the host, and is told of there.
            pool.free.push(slot);
            return None;
        }
        let slot = index as u32 * LOCAL_BOUNCE_SLOTS as u32 + slot;
        Some(Bounced { reference: Reference { place, id: *id, offset }, slot })
    }

    /// Makes slots on a device, and asks the target to open them.
    #[cold]
    fn make(&mut self, channel: &Channel, place: Place) -> Option<Bounced> {
        if self.pools.len() < LOCAL_POOLS_MAX {
            let question = QUESTION | self.pools.len() as u32;
            let make = || {
                let region = MemoryRegion::alloc_device(place, LOCAL_BOUNCE_SLOTS * LOCAL_BOUNCE_BYTES).ok()?;
                let (handle, offset) = region.export().ok()?;
                let id = handle.id;
                // Slots are counted from the beginning of the allocation.
                (offset == 0 && Note::Pool(question, handle).send(channel)).then_some((region, id))
            };
            let memory = make();
            let free = (0..LOCAL_BOUNCE_SLOTS as u32).rev().collect();
            self.pools.push(Pool { place, memory, opened: false, free });
        }
        None
    }

    /// The target is done with a slot, or was never told of it.
    pub(super) fn give_back(&mut self, slot: u32) {
        if let Some(pool) = self.pool_of(slot) {
            pool.free.push(slot % LOCAL_BOUNCE_SLOTS as u32);
        }
    }

    /// The target could not copy from a slot: it is not tried again.
    pub(super) fn refused(&mut self, slot: u32) {
        if let Some(pool) = self.pool_of(slot) {
            pool.opened = false;
        }
    }

    fn pool_of(&mut self, slot: u32) -> Option<&mut Pool> {
        self.pools.get_mut(slot as usize / LOCAL_BOUNCE_SLOTS)
    }

    /// The target says whether it has opened the slots on a device.
    pub(super) fn answered(&mut self, token: u32, opened: bool) {
        if let Some(pool) = self.pools.get_mut((token & !QUESTION) as usize) {
            pool.opened = opened && pool.memory.is_some();
            if !opened {
                pool.memory = None;
            }
        }
    }
}

fn copy(memory: &mut HostMemory, command: &Command, to: &MemoryRegion, offset: u64) -> Result<(), Fault> {
    let (mut done, length) = (0, u64::from(command.length));
    while done < length {
        let piece = memory.local(command.local, command.offset + done, length - done)?;
        if piece.length == 0 {
            return Err(Fault::OutOfBounds);
        }
        memory.copy_to_foreign(piece, to, offset + done)?;
        done += piece.length;
    }
    Ok(())
}
