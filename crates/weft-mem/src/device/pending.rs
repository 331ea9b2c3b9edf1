//! Copies that are under way, under numbers that a caller cannot make up.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{DeviceError, Event};
use crate::limits::DEVICE_COPIES_MAX;

/// A lock that a panic of another thread does not take away: what it guards is whole between any two statements.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a kind has to know of each copy under way. An [`Event`] is a place here and how often the place was used, so that
/// one that is forgotten, or was never given, finds nothing.
#[derive(Debug)]
pub(super) struct Pending<T> {
    places: Mutex<Places<T>>,
}

#[derive(Debug)]
struct Places<T> {
    all: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
}

impl<T: Copy> Pending<T> {
    pub(super) const fn new() -> Pending<T> {
        Pending { places: Mutex::new(Places { all: Vec::new(), free: Vec::new() }) }
    }

    /// Whether another one would find room.
    pub(super) fn has_room(&self) -> bool {
        let places = lock(&self.places);
        !places.free.is_empty() || places.all.len() < DEVICE_COPIES_MAX
    }

    /// Keeps what is known of a copy; `Err` gives it back: too many are under way.
    pub(super) fn insert(&self, copy: T) -> Result<Event, T> {
        let mut places = lock(&self.places);
        let index = match places.free.pop() {
            Some(index) => index,
            None if places.all.len() < DEVICE_COPIES_MAX => {
                places.all.push((0, None));
                places.all.len() as u32 - 1
            }
            None => return Err(copy),
        };
        let Some(place) = places.all.get_mut(index as usize) else {
            return Err(copy);
        };
        place.1 = Some(copy);
        Ok(Event(u64::from(place.0) << 32 | u64::from(index)))
    }

    /// What is known of a copy; `None`: it is done and forgotten.
    pub(super) fn find(&self, event: &Event) -> Option<T> {
        let places = lock(&self.places);
        let (uses, copy) = places.all.get(event.0 as u32 as usize)?;
        copy.filter(|_| u64::from(*uses) == event.0 >> 32)
    }

    /// Forgets a copy, and gives what was known of it to the one that asked first.
    pub(super) fn remove(&self, event: &Event) -> Option<T> {
        let mut places = lock(&self.places);
        let index = event.0 as u32;
        let (uses, copy) = places.all.get_mut(index as usize)?;
        if u64::from(*uses) != event.0 >> 32 {
            return None;
        }
        let known = copy.take()?;
        *uses = uses.wrapping_add(1);
        places.free.push(index);
        Some(known)
    }
}

/// The error for [`Pending::insert`] and [`Pending::has_room`].
pub(super) fn too_many() -> DeviceError {
    DeviceError::Failed(format!("{DEVICE_COPIES_MAX} copies are under way: wait for some of them first"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_finds_its_copy_until_it_is_done() {
        let pending = Pending::new();
        let first = pending.insert('a').expect("room");
        let second = pending.insert('b').expect("room");
        assert_eq!((pending.find(&first), pending.find(&second)), (Some('a'), Some('b')));
        assert_eq!(pending.remove(&first), Some('a'));
        assert_eq!((pending.find(&first), pending.remove(&first)), (None, None));
        let third = pending.insert('c').expect("room");
        assert_ne!(third, first, "the place is the same, its use is another");
        assert_eq!((pending.find(&first), pending.find(&third)), (None, Some('c')));
        assert_eq!(pending.find(&Event(u64::MAX)), None);
    }

    #[test]
    fn they_are_bounded() {
        let pending = Pending::new();
        let events: Vec<Event> = (0..DEVICE_COPIES_MAX).map(|copy| pending.insert(copy).expect("room")).collect();
        assert!(!pending.has_room());
        assert_eq!(pending.insert(7), Err(7));
        assert_eq!(pending.remove(&events[3]), Some(3));
        assert!(pending.has_room() && pending.insert(7).is_ok());
    }
}
