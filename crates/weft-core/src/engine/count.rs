//! Counters: what they are told, and what waits for them.

use super::Engine;
use crate::atomic::{AtomicCall, AtomicOperation};
use crate::command::{Command, CommandFlags, EndpointId, PostError};
use crate::event::{CounterId, Failure};
use crate::memory::Memory;

/// A command whose end is counted besides.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counted {
    /// The user's.
    context: u64,
    /// `None`: it was closed.
    counter: Option<CounterId>,
}

/// Counters of one region.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RegionCounters {
    writes: Option<CounterId>,
    reads: Option<CounterId>,
}

/// What a peer has done to memory of ours, for those who count it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touched {
    /// It was changed.
    pub written: bool,
    /// It, or what it was before, was given to the peer.
    pub read: bool,
}

impl Touched {
    /// A write.
    pub const WRITTEN: Touched = Touched { written: true, read: false };
    /// A read.
    pub const READ: Touched = Touched { written: false, read: true };

    /// An atomic: one that only reads changes nothing.
    #[must_use]
    pub fn by_atomic(call: AtomicCall, fetches: bool) -> Touched {
        Touched { written: call.operation != AtomicOperation::Read as u8, read: fetches }
    }
}

impl<M: Memory> Engine<M> {
    /// Counts what peers do to the region with this key from now on: writes and atomics that change it, reads and atomics
    /// that fetch. Nobody may be let into such a region behind the engine's back ([`Engine::counts_remote_access`]). Two
    /// times `None` ends it, which also has to be done before the key or a counter is given to another.
    pub fn count_region(&mut self, key: u64, writes: Option<CounterId>, reads: Option<CounterId>) {
        if writes.is_none() && reads.is_none() {
            self.region_counters.remove(&key);
        } else {
            self.region_counters.insert(key, RegionCounters { writes, reads });
        }
    }

    fn region_counters(&self, key: u64) -> RegionCounters {
        if self.region_counters.is_empty() {
            return RegionCounters::default();
        }
        self.region_counters.get(&key).copied().unwrap_or_default()
    }

    /// Whether somebody counts what peers do to this memory: then they must not do it behind our back.
    pub fn counts_remote_access(&self, endpoint: EndpointId, key: u64) -> bool {
        let bindings = self.endpoint(endpoint).map(|endpoint| endpoint.bindings).unwrap_or_default();
        let of_region = self.region_counters(key);
        let counters = [bindings.remote_write_counter, bindings.remote_read_counter, of_region.writes, of_region.reads];
        counters.iter().any(Option::is_some)
    }

    /// Whether somebody counts writes of peers to this memory.
    pub(super) fn counts_writes(&self, endpoint: EndpointId, key: u64) -> bool {
        let counter = self.endpoint(endpoint).and_then(|endpoint| endpoint.bindings.remote_write_counter);
        counter.or(self.region_counters(key).writes).is_some()
    }

    /// A peer has done something to memory of ours, all of it: endpoint and region count it.
    pub fn count_remote(&mut self, endpoint: EndpointId, key: u64, touched: Touched) {
        let bindings = self.endpoint(endpoint).map(|endpoint| endpoint.bindings).unwrap_or_default();
        let of_region = self.region_counters(key);
        if touched.written {
            self.count(bindings.remote_write_counter, true);
            self.count(of_region.writes, true);
        }
        if touched.read {
            self.count(bindings.remote_read_counter, true);
            self.count(of_region.reads, true);
        }
    }

    #[inline]
    pub(super) fn count(&mut self, counter: Option<CounterId>, good: bool) {
        let Some(id) = counter else { return };
        let Some(counter) = self.counters.get_mut(id.0 as usize) else { return };
        counter.value = counter.value.wrapping_add(u64::from(good));
        counter.errors = counter.errors.wrapping_add(u64::from(!good));
        let value = counter.value;
        self.check_triggers(id, value);
    }

    #[inline]
    pub(super) fn check_triggers(&mut self, counter: CounterId, value: u64) {
        if !self.triggers.is_empty() {
            self.triggers.reached(counter, value);
        }
    }

    /// Has `token` given by [`Engine::poll_triggered`] when the counter's value is at least `threshold`; at once if it is.
    /// Errors do not count. Of several, those with the lower threshold come first, then those that were armed first. Refused
    /// if there are too many, or the token is in use.
    pub fn arm(&mut self, counter: CounterId, threshold: u64, token: u64) -> Result<(), PostError> {
        let Some(value) = self.counters.get(counter.0 as usize).map(|counter| counter.value) else {
            return Err(PostError::NotSupported);
        };
        if !self.triggers.arm(counter, threshold, token) {
            return Err(PostError::QueueFull);
        }
        self.triggers.reached(counter, value);
        Ok(())
    }

    /// Takes a trigger back. False: it was polled already, or went with its counter.
    pub fn disarm(&mut self, token: u64) -> bool {
        self.triggers.disarm(token)
    }

    /// The next trigger whose counter has reached its threshold.
    pub fn poll_triggered(&mut self) -> Option<u64> {
        self.triggers.poll()
    }

    /// Whether [`Engine::poll_triggered`] has something.
    #[inline]
    pub fn has_triggered(&self) -> bool {
        self.triggers.has_fired()
    }

    /// Lets a counter count this command's end, besides the endpoint's own. Call it just before the command is posted, and
    /// [`Engine::uncount_end`] if it was refused.
    pub fn count_end(&mut self, command: &mut Command, counter: CounterId) {
        let counted = Counted { context: command.context, counter: Some(counter) };
        command.context = u64::from(self.counted.insert(counted));
        command.flags = command.flags | CommandFlags::COUNTED;
    }

    /// Takes back what [`Engine::count_end`] did.
    pub fn uncount_end(&mut self, command: &mut Command) {
        if command.has(CommandFlags::COUNTED) {
            let plain = self.plain(command);
            self.counted.remove(command.context as u32);
            *command = plain;
        }
    }

    /// A command as its user posted it.
    pub(super) fn plain(&self, command: &Command) -> Command {
        let mut plain = *command;
        plain.context = self.context_of(command);
        plain.flags = plain.flags.without(CommandFlags::COUNTED);
        plain
    }

    /// The user's own name for a command.
    #[inline]
    pub fn context_of(&self, command: &Command) -> u64 {
        if !command.has(CommandFlags::COUNTED) {
            return command.context;
        }
        self.counted.get(command.context as u32).map_or(command.context, |counted| counted.context)
    }

    /// A command whose end is counted besides has ended; gives it as its user posted it.
    #[cold]
    pub(super) fn end_counted(&mut self, command: &Command, good: bool) -> Command {
        let plain = self.plain(command);
        if let Some(counted) = self.counted.remove(command.context as u32) {
            self.count(counted.counter, good);
        }
        plain
    }

    /// A counter is about to be closed: commands under way have it no more.
    pub(super) fn stop_counting(&mut self, counter: CounterId) {
        let mut from = 0;
        while let Some(index) = self.counted.next_from(from) {
            from = index + 1;
            if let Some(counted) = self.counted.get_mut(index)
                && counted.counter == Some(counter)
            {
                counted.counter = None;
            }
        }
    }

    /// Counts something that the driver did itself.
    pub fn count_done(&mut self, counter: CounterId) {
        self.count(Some(counter), true);
    }

    /// Reports a command that could not be posted. False: the queue has no room for that.
    pub fn reject(&mut self, command: &Command, failure: Failure) -> bool {
        let queue = self.endpoint(command.endpoint).and_then(|endpoint| endpoint.bindings.transmit_queue);
        let state = queue.and_then(|queue| self.queues.get_mut(queue.0 as usize));
        let room = state.is_none_or(|queue| queue.reserve_for_post(1));
        if room {
            self.report(command, Err(failure));
        }
        room
    }
}
