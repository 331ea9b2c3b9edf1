//! The table of registered regions, and how their keys are made.
//!
//! A key is `random (40 bits) | generation (6) | slot (18)`, all of it XORed with a secret of the table, so that
//! neither the slots nor how often they were used can be read from it. It is found by its slot and compared as a whole.
//! A slot that was freed waits behind all other free ones before it is used again; the generation makes its next 63
//! keys differ from the old one for certain, and any later one does but for a chance of 2⁻⁴⁰.
//!
//! A key that the user chose says nothing about its slot: a hash map does, which is asked only when the slot that the key
//! would name as a drawn one holds another. So drawn keys cost what they cost without it.

use std::collections::HashMap;

use weft_core::hash::Keyed;
use weft_core::memory::{Access, Fault};

use crate::limits::{KEY_DRAWS_MAX, RANDOM_WORDS, REGION_GENERATION_BITS, REGION_SLOT_BITS, REGIONS_MAX};
use crate::region::{Addressing, MemoryRegion, Region, RegisterError};

const SLOT_MASK: u64 = (1 << REGION_SLOT_BITS) - 1;
const COUNT_BITS: u32 = REGION_SLOT_BITS + REGION_GENERATION_BITS;
const NO_SLOT: u32 = u32::MAX;

/// A registration.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) key: u64,
    /// Address of the first byte.
    pub(crate) base: u64,
    pub(crate) access: Access,
    pub(crate) memory: MemoryRegion,
}

#[derive(Debug)]
struct Slot {
    entry: Option<Entry>,
    generation: u32,
    /// Of a free slot: the one that became free after it.
    next: u32,
}

/// All registrations.
#[derive(Debug)]
pub(crate) struct Keys {
    slots: Vec<Slot>,
    /// The longest free, and the last one that became free.
    first_free: u32,
    last_free: u32,
    used: usize,
    /// Slots of the keys that were chosen; made with the first of them.
    chosen: Option<HashMap<u64, u32, Keyed>>,
    /// Hides what a key is made of; drawn with the first key.
    secret: Option<u64>,
    random: Random,
}

impl Keys {
    pub(crate) fn new() -> Keys {
        Keys {
            slots: Vec::new(),
            first_free: NO_SLOT,
            last_free: NO_SLOT,
            used: 0,
            chosen: None,
            secret: None,
            random: Random::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.used
    }

    /// Registers under the key that was chosen, or under a drawn one.
    pub(crate) fn insert(
        &mut self,
        memory: MemoryRegion,
        access: Access,
        addressing: Addressing,
        chosen: Option<u64>,
    ) -> Result<Region, RegisterError> {
        let length = memory.length() as u64;
        let base = match addressing {
            Addressing::Virtual => memory.as_ptr() as u64,
            Addressing::Offset => 0,
            Addressing::At(address) => address,
        };
        // The last byte has an address; what is behind it need not have one.
        base.checked_add(length.saturating_sub(1)).ok_or(RegisterError::Wraps)?;
        let writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        if access.0 & writes.0 != 0 && !memory.is_writable() {
            return Err(RegisterError::ReadOnly);
        }
        let secret = match self.secret {
            Some(secret) => secret,
            None => *self.secret.insert(self.random.word()?),
        };
        let key = match chosen {
            Some(key) if self.find(key).is_ok() => return Err(RegisterError::KeyInUse),
            Some(key) => key,
            None => self.draw(secret)?,
        };
        if chosen.is_some() && self.chosen.is_none() {
            self.chosen = Some(HashMap::with_hasher(Keyed::new(self.random.word()?, self.random.word()?)));
        }
        let index = self.free_slot()?;
        let slot = self.slots.get_mut(index as usize).ok_or(RegisterError::TooMany)?;
        let generation = slot.generation;
        slot.entry = Some(Entry { key, base, access, memory });
        self.used += 1;
        if let Some(slots) = self.chosen.as_mut().filter(|_| chosen.is_some()) {
            slots.insert(key, index);
        }
        Ok(Region { key, address: base, length, access, slot: index, generation })
    }

    /// A key for the slot that will be used next.
    fn draw(&mut self, secret: u64) -> Result<u64, RegisterError> {
        let free = self.slots.get(self.first_free as usize);
        let index = if free.is_some() { u64::from(self.first_free) } else { self.slots.len() as u64 };
        let generation = u64::from(free.map_or(0, |slot| slot.generation)) & ((1 << REGION_GENERATION_BITS) - 1);
        for _ in 0..KEY_DRAWS_MAX {
            let random = self.random.word()?;
            let key = (random << COUNT_BITS | generation << REGION_SLOT_BITS | index) ^ secret;
            // Nobody gets the key 0, which programs like to take for none, nor one that was chosen for another region.
            if key != 0 && self.chosen_slot(key).is_none() {
                return Ok(key);
            }
        }
        Err(RegisterError::NoRandomness)
    }

    #[inline]
    fn chosen_slot(&self, key: u64) -> Option<u32> {
        self.chosen.as_ref()?.get(&key).copied()
    }

    /// The registration of a key, and its slot and generation.
    #[inline]
    pub(crate) fn find(&self, key: u64) -> Result<(u32, u32, &Entry), Fault> {
        let index = ((key ^ self.secret.unwrap_or(0)) & SLOT_MASK) as u32;
        match self.slots.get(index as usize) {
            Some(Slot { entry: Some(entry), generation, .. }) if entry.key == key => Ok((index, *generation, entry)),
            _ => self.find_chosen(key),
        }
    }

    fn find_chosen(&self, key: u64) -> Result<(u32, u32, &Entry), Fault> {
        let index = self.chosen_slot(key).ok_or(Fault::UnknownKey)?;
        match self.slots.get(index as usize) {
            Some(Slot { entry: Some(entry), generation, .. }) if entry.key == key => Ok((index, *generation, entry)),
            _ => Err(Fault::UnknownKey),
        }
    }

    /// The registration in a slot, if it still is of that generation.
    #[inline]
    pub(crate) fn at(&self, index: u32, generation: u32) -> Result<&Entry, Fault> {
        match self.slots.get(index as usize) {
            Some(Slot { entry: Some(entry), generation: current, .. }) if *current == generation => Ok(entry),
            _ => Err(Fault::UnknownKey),
        }
    }

    /// Ends a registration: from now on neither its key nor its slot and generation find anything.
    pub(crate) fn remove(&mut self, key: u64) -> Result<MemoryRegion, Fault> {
        let (index, ..) = self.find(key)?;
        let slot = self.slots.get_mut(index as usize).ok_or(Fault::UnknownKey)?;
        let entry = slot.entry.take().ok_or(Fault::UnknownKey)?;
        slot.generation = slot.generation.wrapping_add(1);
        slot.next = NO_SLOT;
        if let Some(chosen) = &mut self.chosen {
            chosen.remove(&key);
        }
        match self.slots.get_mut(self.last_free as usize) {
            Some(last) => last.next = index,
            None => self.first_free = index,
        }
        self.last_free = index;
        self.used -= 1;
        Ok(entry.memory)
    }

    fn free_slot(&mut self) -> Result<u32, RegisterError> {
        if let Some(slot) = self.slots.get(self.first_free as usize) {
            let index = self.first_free;
            self.first_free = slot.next;
            if self.first_free == NO_SLOT {
                self.last_free = NO_SLOT;
            }
            return Ok(index);
        }
        let index = self.slots.len();
        if index >= REGIONS_MAX {
            return Err(RegisterError::TooMany);
        }
        self.slots.push(Slot { entry: None, generation: 0, next: NO_SLOT });
        Ok(index as u32)
    }
}

/// Random words of the system, drawn many at a time because each draw is a system call.
struct Random {
    words: [u64; RANDOM_WORDS],
    left: usize,
}

impl Random {
    fn new() -> Random {
        Random { words: [0; RANDOM_WORDS], left: 0 }
    }

    fn word(&mut self) -> Result<u64, RegisterError> {
        if self.left == 0 {
            let mut bytes = [0; 8 * RANDOM_WORDS];
            getrandom::fill(&mut bytes).map_err(|_| RegisterError::NoRandomness)?;
            let (words, _) = bytes.as_chunks::<8>();
            for (word, bytes) in self.words.iter_mut().zip(words) {
                *word = u64::from_ne_bytes(*bytes);
            }
            self.left = RANDOM_WORDS;
        }
        self.left -= 1;
        // Taken out, so that no key to come or gone can be read from here.
        self.words.get_mut(self.left).map(std::mem::take).ok_or(RegisterError::NoRandomness)
    }
}

impl std::fmt::Debug for Random {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Random({} left)", self.left)
    }
}
