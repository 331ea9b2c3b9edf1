//! Things with short numbers.

use alloc::vec::Vec;

/// A vector with holes; the numbers of removed things are used again.
#[derive(Debug)]
pub struct Slab<T> {
    slots: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab::new()
    }
}

impl<T> Slab<T> {
    /// Without anything.
    #[must_use]
    pub const fn new() -> Slab<T> {
        Slab { slots: Vec::new(), free: Vec::new() }
    }

    /// Things in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Puts a thing in, and gives its number.
    pub fn insert(&mut self, item: T) -> u32 {
        if let Some(index) = self.free.pop()
            && let Some(slot) = self.slots.get_mut(index as usize)
        {
            *slot = Some(item);
            return index;
        }
        self.slots.push(Some(item));
        self.slots.len() as u32 - 1
    }

    /// The thing with a number.
    #[must_use]
    pub fn get(&self, index: u32) -> Option<&T> {
        self.slots.get(index as usize)?.as_ref()
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.slots.get_mut(index as usize)?.as_mut()
    }

    /// Takes a thing out; its number may be given to another.
    pub fn remove(&mut self, index: u32) -> Option<T> {
        let item = self.slots.get_mut(index as usize)?.take()?;
        self.free.push(index);
        if self.free.len() == self.slots.len() && self.slots.len() > 64 {
            // Nothing is left: the memory of a busy time is given back.
            *self = Slab::new();
        }
        Some(item)
    }

    /// All things with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..).zip(&self.slots).filter_map(|(index, slot)| slot.as_ref().map(|item| (index, item)))
    }

    /// The first number in use at or above `from`: for loops that change the slab.
    #[must_use]
    pub fn next_from(&self, from: u32) -> Option<u32> {
        (from..self.slots.len() as u32).find(|index| self.get(*index).is_some())
    }
}
