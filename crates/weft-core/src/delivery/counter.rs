//! Completion queues and counters: what they are told, and what waits for them.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use hashbrown::HashMap;

use super::Delivery;
use crate::atomic::{AtomicCall, AtomicOperation};
use crate::command::{Command, CommandFlags, EndpointId, PostError};
use crate::event::{Completion, CompletionQueue, Counter, CounterId, Failure, QueueId};
use crate::hash::Keyed;
use crate::memory::Memory;
use crate::slab::Slab;
use crate::trigger::Triggers;

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

/// Where things are reported.
#[derive(Debug)]
pub(super) struct Events {
    pub(super) queues: Vec<CompletionQueue>,
    closed_queues: Vec<QueueId>,
    counters: Vec<Counter>,
    closed_counters: Vec<CounterId>,
    /// Counters that receives may name as long as the node lives.
    kept_counters: BTreeSet<CounterId>,
    triggers: Triggers,
    /// Commands whose end is counted besides, by what they have for a context.
    counted: Slab<Counted>,
    /// Counters of what peers do to regions, by key.
    region_counters: HashMap<u64, RegionCounters, Keyed>,
}

impl Events {
    pub(super) fn new(keyed: Keyed) -> Events {
        Events {
            queues: Vec::new(),
            closed_queues: Vec::new(),
            counters: Vec::new(),
            closed_counters: Vec::new(),
            kept_counters: BTreeSet::new(),
            triggers: Triggers::default(),
            counted: Slab::new(),
            region_counters: HashMap::with_hasher(keyed),
        }
    }

    #[inline]
    pub(super) fn queue(&self, queue: QueueId) -> Option<&CompletionQueue> {
        self.queues.get(queue.0 as usize)
    }

    #[inline]
    pub(super) fn queue_mut(&mut self, queue: QueueId) -> Option<&mut CompletionQueue> {
        self.queues.get_mut(queue.0 as usize)
    }

    /// Keeps a place in a queue; without a queue there is nothing to keep.
    #[inline]
    pub(super) fn reserve(&mut self, queue: Option<QueueId>) -> bool {
        queue.and_then(|queue| self.queue_mut(queue)).is_none_or(CompletionQueue::reserve)
    }

    pub(super) fn push(&mut self, queue: Option<QueueId>, completion: &Completion) {
        if let Some(queue) = queue.and_then(|queue| self.queue_mut(queue)) {
            queue.push(completion);
        }
    }

    /// A counter that receives may name is never given to anybody else.
    pub(super) fn keep_counter(&mut self, counter: CounterId) {
        self.kept_counters.insert(counter);
    }

    fn region_counters(&self, key: u64) -> RegionCounters {
        if self.region_counters.is_empty() {
            return RegionCounters::default();
        }
        self.region_counters.get(&key).copied().unwrap_or_default()
    }

    #[inline]
    fn check_triggers(&mut self, counter: CounterId, value: u64) {
        if !self.triggers.is_empty() {
            self.triggers.reached(counter, value);
        }
    }

    #[inline]
    fn count(&mut self, id: CounterId, good: bool) {
        let Some(counter) = self.counters.get_mut(id.0 as usize) else { return };
        counter.value = counter.value.wrapping_add(u64::from(good));
        counter.errors = counter.errors.wrapping_add(u64::from(!good));
        let value = counter.value;
        self.check_triggers(id, value);
    }
}

impl<M: Memory> Delivery<M> {
    /// Makes a completion queue.
    pub fn open_queue(&mut self, capacity: usize) -> QueueId {
        let queue = CompletionQueue::new(capacity);
        let events = &mut self.events;
        let closed = events.closed_queues.pop();
        if let Some((id, place)) = closed.and_then(|id| Some((id, events.queues.get_mut(id.0 as usize)?))) {
            *place = queue;
            return id;
        }
        events.queues.push(queue);
        QueueId(events.queues.len() as u32 - 1)
    }

    /// Closes a completion queue that no endpoint reports to any more. Its name may be given to another.
    pub fn close_queue(&mut self, queue: QueueId) {
        if let Some(place) = self.events.queue_mut(queue) {
            *place = CompletionQueue::new(0);
            self.events.closed_queues.push(queue);
        }
    }

    /// Makes a counter.
    pub fn open_counter(&mut self) -> CounterId {
        if let Some(id) = self.events.closed_counters.pop() {
            self.set_counter(id, Counter::default());
            return id;
        }
        self.events.counters.push(Counter::default());
        CounterId(self.events.counters.len() as u32 - 1)
    }

    /// Closes a counter that no endpoint counts with any more; its triggers go with it. Its name may be given to another.
    pub fn close_counter(&mut self, counter: CounterId) {
        if (counter.0 as usize) < self.events.counters.len() {
            self.events.triggers.close(counter);
            self.stop_counting(counter);
            if !self.events.kept_counters.contains(&counter) {
                self.events.closed_counters.push(counter);
            }
        }
    }

    /// What a counter shows.
    pub fn counter(&self, counter: CounterId) -> Counter {
        self.events.counters.get(counter.0 as usize).copied().unwrap_or_default()
    }

    /// Sets a counter.
    pub fn set_counter(&mut self, counter: CounterId, value: Counter) {
        if let Some(place) = self.events.counters.get_mut(counter.0 as usize) {
            *place = value;
            self.events.check_triggers(counter, value.value);
        }
    }

    /// Gives a reserved place in a queue back.
    pub(crate) fn unreserve(&mut self, queue: Option<QueueId>) {
        if let Some(queue) = queue.and_then(|queue| self.events.queue_mut(queue)) {
            queue.unreserve();
        }
    }

    /// Counts what peers do to the region with this key from now on: writes and atomics that change it, reads and atomics
    /// that fetch. Nobody may be let into such a region behind the engine's back ([`Delivery::counts_remote_access`]). Two
    /// times `None` ends it, which also has to be done before the key or a counter is given to another.
    pub fn count_region(&mut self, key: u64, writes: Option<CounterId>, reads: Option<CounterId>) {
        if writes.is_none() && reads.is_none() {
            self.events.region_counters.remove(&key);
        } else {
            self.events.region_counters.insert(key, RegionCounters { writes, reads });
        }
    }

    /// Whether somebody counts what peers do to this memory: then they must not do it behind our back.
    pub fn counts_remote_access(&self, endpoint: EndpointId, key: u64) -> bool {
        let bindings = self.endpoint(endpoint).map(|endpoint| endpoint.bindings).unwrap_or_default();
        let of_region = self.events.region_counters(key);
        let counters = [bindings.remote_write_counter, bindings.remote_read_counter, of_region.writes, of_region.reads];
        counters.iter().any(Option::is_some)
    }

    /// Whether somebody counts writes of peers to this memory.
    pub(crate) fn counts_writes(&self, endpoint: EndpointId, key: u64) -> bool {
        let counter = self.endpoint(endpoint).and_then(|endpoint| endpoint.bindings.remote_write_counter);
        counter.or(self.events.region_counters(key).writes).is_some()
    }

    /// A peer has done something to memory of ours, all of it: endpoint and region count it.
    pub fn count_remote(&mut self, endpoint: EndpointId, key: u64, touched: Touched) {
        let bindings = self.endpoint(endpoint).map(|endpoint| endpoint.bindings).unwrap_or_default();
        let of_region = self.events.region_counters(key);
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
        if let Some(counter) = counter {
            self.events.count(counter, good);
        }
    }

    /// Has `token` given by [`Delivery::poll_triggered`] when the counter's value is at least `threshold`; at once if it is.
    /// Errors do not count. Of several, those with the lower threshold come first, then those that were armed first. Refused
    /// if there are too many, or the token is in use.
    pub fn arm(&mut self, counter: CounterId, threshold: u64, token: u64) -> Result<(), PostError> {
        let Some(value) = self.events.counters.get(counter.0 as usize).map(|counter| counter.value) else {
            return Err(PostError::NotSupported);
        };
        if !self.events.triggers.arm(counter, threshold, token) {
            return Err(PostError::QueueFull);
        }
        self.events.triggers.reached(counter, value);
        Ok(())
    }

    /// Takes a trigger back. False: it was polled already, or went with its counter.
    pub fn disarm(&mut self, token: u64) -> bool {
        self.events.triggers.disarm(token)
    }

    /// The next trigger whose counter has reached its threshold.
    pub fn poll_triggered(&mut self) -> Option<u64> {
        self.events.triggers.poll()
    }

    /// Whether [`Delivery::poll_triggered`] has something.
    #[inline]
    pub fn has_triggered(&self) -> bool {
        self.events.triggers.has_fired()
    }

    /// Lets a counter count this command's end, besides the endpoint's own. Call it just before the command is posted, and
    /// [`Delivery::uncount_end`] if it was refused.
    pub fn count_end(&mut self, command: &mut Command, counter: CounterId) {
        let counted = Counted { context: command.context, counter: Some(counter) };
        command.context = u64::from(self.events.counted.insert(counted));
        command.flags = command.flags | CommandFlags::COUNTED;
    }

    /// Takes back what [`Delivery::count_end`] did.
    pub fn uncount_end(&mut self, command: &mut Command) {
        if command.has(CommandFlags::COUNTED) {
            let plain = self.plain(command);
            self.events.counted.remove(command.context as u32);
            *command = plain;
        }
    }

    /// A command as its user posted it.
    pub(crate) fn plain(&self, command: &Command) -> Command {
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
        self.events.counted.get(command.context as u32).map_or(command.context, |counted| counted.context)
    }

    /// A command whose end is counted besides has ended; gives it as its user posted it.
    #[cold]
    pub(super) fn end_counted(&mut self, command: &Command, good: bool) -> Command {
        let plain = self.plain(command);
        if let Some(counted) = self.events.counted.remove(command.context as u32) {
            self.count(counted.counter, good);
        }
        plain
    }

    /// A counter is about to be closed: commands under way have it no more.
    fn stop_counting(&mut self, counter: CounterId) {
        let mut from = 0;
        while let Some(index) = self.events.counted.next_from(from) {
            from = index + 1;
            if let Some(counted) = self.events.counted.get_mut(index)
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
        let state = queue.and_then(|queue| self.events.queue_mut(queue));
        let room = state.is_none_or(|queue| queue.reserve_for_post(1));
        if room {
            self.report(command, Err(failure));
        }
        room
    }
}
