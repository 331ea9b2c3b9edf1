//! Things with short numbers.

use alloc::vec::Vec;

/// A vector with holes; the numbers of removed things are used again.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    slots: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub(crate) const fn new() -> Slab<T> {
        Slab { slots: Vec::new(), free: Vec::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn insert(&mut self, item: T) -> u32 {
        if let Some(index) = self.free.pop()
            && let Some(slot) = self.slots.get_mut(index as usize)
        {
            *slot = Some(item);
            return index;
        }
        self.slots.push(Some(item));
        self.slots.len() as u32 - 1
    }

    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        self.slots.get(index as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.slots.get_mut(index as usize)?.as_mut()
    }

    pub(crate) fn remove(&mut self, index: u32) -> Option<T> {
        let item = self.slots.get_mut(index as usize)?.take()?;
        self.free.push(index);
        if self.free.len() == self.slots.len() && self.slots.len() > 64 {
            // Nothing is left: the memory of a busy time is given back.
            *self = Slab::new();
        }
        Some(item)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..).zip(&self.slots).filter_map(|(index, slot)| slot.as_ref().map(|item| (index, item)))
    }

    /// The numbers in use at or above `from`: for loops that change the slab.
    pub(crate) fn next_from(&self, from: u32) -> Option<u32> {
        (from..self.slots.len() as u32).find(|index| self.get(*index).is_some())
    }
}
