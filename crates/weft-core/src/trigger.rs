//! Triggers: what shall happen when a counter reaches a value.
//!
//! The engine keeps only a number for each ([`crate::delivery::Delivery::arm`]) and gives it back when its time has come
//! ([`crate::delivery::Delivery::poll_triggered`]); what it stands for is the driver's business.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use crate::event::CounterId;
use crate::limits::TRIGGERS_MAX;

/// Where in its counter's list a trigger stands: by threshold, then as they were armed.
type Place = (u64, u64);

/// All triggers of an engine.
#[derive(Debug, Default)]
pub(crate) struct Triggers {
    /// By counter.
    lists: Vec<BTreeMap<Place, u64>>,
    /// Where each stands, by its token.
    places: BTreeMap<u64, (CounterId, Place)>,
    /// Those whose time has come, in order.
    fired: VecDeque<u64>,
    /// Of the last that was armed.
    order: u64,
}

impl Triggers {
    /// Whether none waits for its counter.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Adds one. False: there are too many, or its token is in use.
    pub(crate) fn arm(&mut self, counter: CounterId, threshold: u64, token: u64) -> bool {
        let used = self.places.contains_key(&token) || self.fired.contains(&token);
        if used || self.places.len() + self.fired.len() >= TRIGGERS_MAX {
            return false;
        }
        let index = counter.0 as usize;
        if self.lists.len() <= index {
            self.lists.resize_with(index + 1, BTreeMap::new);
        }
        self.order += 1;
        let place = (threshold, self.order);
        if let Some(list) = self.lists.get_mut(index) {
            list.insert(place, token);
            self.places.insert(token, (counter, place));
        }
        true
    }

    /// A counter shows this value: those that waited for it have their time.
    pub(crate) fn reached(&mut self, counter: CounterId, value: u64) {
        let Some(list) = self.lists.get_mut(counter.0 as usize) else { return };
        while let Some(first) = list.first_entry().filter(|first| first.key().0 <= value) {
            let token = first.remove();
            self.places.remove(&token);
            self.fired.push_back(token);
        }
    }

    /// Takes one back, also if its time has come and nobody has asked. False: it is not here (any more).
    pub(crate) fn disarm(&mut self, token: u64) -> bool {
        if let Some((counter, place)) = self.places.remove(&token) {
            return self.lists.get_mut(counter.0 as usize).and_then(|list| list.remove(&place)).is_some();
        }
        let before = self.fired.len();
        self.fired.retain(|fired| *fired != token);
        self.fired.len() < before
    }

    /// A counter is gone, and with it what waited for it.
    pub(crate) fn close(&mut self, counter: CounterId) {
        let Some(list) = self.lists.get_mut(counter.0 as usize) else { return };
        for token in core::mem::take(list).into_values() {
            self.places.remove(&token);
        }
    }

    pub(crate) fn poll(&mut self) -> Option<u64> {
        self.fired.pop_front()
    }

    #[inline]
    pub(crate) fn has_fired(&self) -> bool {
        !self.fired.is_empty()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn polled(triggers: &mut Triggers) -> Vec<u64> {
        core::iter::from_fn(|| triggers.poll()).collect()
    }

    #[test]
    fn they_fire_by_threshold_and_then_as_they_were_armed() {
        let mut triggers = Triggers::default();
        let (one, other) = (CounterId(3), CounterId(0));
        for (threshold, token) in [(5, 50), (2, 20), (5, 51), (2, 21), (9, 90)] {
            assert!(triggers.arm(one, threshold, token));
        }
        assert!(triggers.arm(other, 1, 1));
        triggers.reached(one, 1);
        assert!(!triggers.has_fired());
        triggers.reached(one, 7);
        assert_eq!(polled(&mut triggers), [20, 21, 50, 51]);
        triggers.reached(one, 8);
        assert!(!triggers.has_fired());
        triggers.reached(one, u64::MAX);
        assert_eq!(polled(&mut triggers), [90]);
        assert!(!triggers.is_empty(), "the other counter's waits");
        triggers.reached(other, 1);
        assert_eq!(polled(&mut triggers), [1]);
        assert!(triggers.is_empty());
    }

    #[test]
    fn they_are_taken_back_by_token_and_with_their_counter() {
        let mut triggers = Triggers::default();
        let counter = CounterId(1);
        assert!((1..=4).all(|token| triggers.arm(counter, token, token)));
        assert!(!triggers.arm(counter, 9, 3), "the token is in use");
        triggers.reached(counter, 2);
        assert!(!triggers.arm(counter, 9, 1), "the token waits to be polled");
        assert!(triggers.disarm(1) && !triggers.disarm(1), "fired, but not polled");
        assert!(triggers.disarm(3) && !triggers.disarm(3));
        triggers.close(counter);
        assert!(triggers.is_empty() && !triggers.disarm(4));
        triggers.reached(counter, 9);
        assert_eq!(polled(&mut triggers), [2]);
    }

    #[test]
    fn there_is_an_end_to_them() {
        let mut triggers = Triggers::default();
        assert!((0..TRIGGERS_MAX as u64).all(|token| triggers.arm(CounterId(0), token + 1, token)));
        assert!(!triggers.arm(CounterId(0), 1, u64::MAX));
        triggers.reached(CounterId(0), 1);
        assert!(!triggers.arm(CounterId(0), 1, u64::MAX), "what was not polled counts");
        assert_eq!(triggers.poll(), Some(0));
        assert!(triggers.arm(CounterId(0), 1, u64::MAX));
    }
}
