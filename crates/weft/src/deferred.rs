//! Work that waits for a counter: posted by the NIC when the counter has reached a value, whoever made it do so.
//!
//! It is checked and its buffer is taken when it is deferred, so that only want of room can hold it back later: then it
//! waits in the lane of its endpoint, and is tried again in every round. Everything is held by its number, not by handle:
//! a handle would keep the domain open that holds it.

use std::collections::VecDeque;
use std::sync::Arc;

use weft_core::atomic::AtomicCall;
use weft_core::command::{Command, CommandFlags, EndpointId, Operation, PostError, Receive};
use weft_core::delivery::Side;
use weft_core::event::{CounterId, Failure};
use weft_core::limits::TRIGGERS_MAX;
use weft_core::memory::LocalKey;
use weft_mem::Buffer;

use crate::counter::Counter;
use crate::domain::Domain;
use crate::driver::Core;
use crate::endpoint::Endpoint;
use crate::error::{Error, Refused};
use crate::vector::{RemoteRange, atomic_buffer, checked_ranges};

/// What shall be done when a counter has reached a value.
///
/// ```
/// use std::time::Duration;
/// use weft::EndpointOptions;
/// use weft::raw::{self, Deferred, DeferredWork, Operation};
/// # let domain = weft::Domain::udp("127.0.0.1:0")?;
/// let (received, done) = (domain.counter(), domain.counter());
/// let queue = domain.completion_queue(16);
/// let options = EndpointOptions { receive_counter: Some(received.clone()), ..EndpointOptions::with_queue(weft::EndpointKind::Reliable, &queue) };
/// let endpoint = domain.open_endpoint(options)?;
/// let myself = domain.addresses().insert(endpoint.address())?;
/// endpoint.receive(vec![0; 16])?;
/// endpoint.receive(vec![0; 16])?;
///
/// // The answer goes out when a message has come.
/// let mut command = raw::command(&endpoint, Operation::Send, myself);
/// command.length = 6;
/// let work = DeferredWork::Post { endpoint: endpoint.clone(), command, buffer: Some(b"answer".to_vec().into()) };
/// raw::defer(&domain, &received, 1, Deferred { work, completion_counter: Some(done.clone()) })?;
/// endpoint.inject(myself, b"question")?;
/// done.wait(1, Some(Duration::from_secs(10)))?;
/// received.wait(2, Some(Duration::from_secs(10)))?;
/// # Ok::<(), weft::Error>(())
/// ```
#[derive(Debug)]
pub struct Deferred {
    /// What.
    pub work: DeferredWork,
    /// Counts its end, good or bad, besides the endpoint's own counter.
    pub completion_counter: Option<Counter>,
}

/// Kinds of deferred work.
#[derive(Debug)]
pub enum DeferredWork {
    /// A command of which `offset` and `length` name a part of the buffer, as [`raw::post`](crate::raw::post) takes it.
    Post {
        /// Who posts it.
        endpoint: Endpoint,
        /// What is posted.
        command: Command,
        /// Its bytes.
        buffer: Option<Buffer>,
    },
    /// A write or read of several ranges, as [`raw::post_vector`](crate::raw::post_vector) takes it.
    PostVector {
        /// Who posts it.
        endpoint: Endpoint,
        /// What is posted.
        command: Command,
        /// Its bytes.
        buffer: Buffer,
        /// Where they go, or come from.
        ranges: Vec<RemoteRange>,
    },
    /// An atomic with values in buffers of their own, as [`raw::post_atomic_vector`](crate::raw::post_atomic_vector) takes
    /// it, but read when it is posted. One that fetches needs buffers that can all be written. One that compares has one
    /// range.
    PostAtomic {
        /// Who posts it.
        endpoint: Endpoint,
        /// What is posted.
        command: Command,
        /// None where the operation only reads.
        operands: Option<Buffer>,
        /// Where it compares.
        compares: Option<Buffer>,
        /// Where it fetches.
        results: Option<Buffer>,
        /// Where the elements are.
        ranges: Vec<RemoteRange>,
    },
    /// A receive, as [`raw::post_receive`](crate::raw::post_receive) takes it.
    Receive {
        /// Who posts it.
        endpoint: Endpoint,
        /// What is posted.
        receive: Receive,
        /// Where the message goes.
        buffer: Buffer,
    },
    /// Sets the value of a counter.
    Set {
        /// Which.
        counter: Counter,
        /// To what.
        value: u64,
    },
    /// Adds to the value of a counter.
    Add {
        /// Which.
        counter: Counter,
        /// How much.
        value: u64,
    },
}

/// Names work that was deferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeferredId(u64);

/// Work that was taken back before it was posted.
#[derive(Debug)]
pub struct Withdrawn {
    /// Which it was.
    pub id: DeferredId,
    /// The context of the command or receive; 0 of work on a counter.
    pub context: u64,
    /// Its buffer.
    pub buffer: Option<Buffer>,
}

/// All deferred work of a NIC.
#[derive(Default)]
pub(crate) struct DeferredList {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// What has its time, and waits for room.
    lanes: Vec<Lane>,
    /// Somebody further up is at it.
    firing: bool,
}

#[derive(Default)]
struct Slot {
    uses: u32,
    waiting: Option<Waiting>,
}

#[derive(Clone)]
struct Waiting {
    /// What it waits for.
    counter: CounterId,
    pending: Pending,
    completion_counter: Option<CounterId>,
}

#[derive(Clone)]
enum Pending {
    Command(Command),
    /// One that goes to several ranges.
    Parts(Command, Arc<[RemoteRange]>),
    Receive(Receive),
    Set(CounterId, u64),
    Add(CounterId, u64),
}

/// Work of one endpoint keeps its order, commands and receives each for themselves.
struct Lane {
    key: (EndpointId, bool),
    ids: VecDeque<DeferredId>,
}

impl Pending {
    fn lane(&self) -> Option<(EndpointId, bool)> {
        match self {
            Pending::Command(command) | Pending::Parts(command, _) => Some((command.endpoint, false)),
            Pending::Receive(receive) => Some((receive.endpoint, true)),
            Pending::Set(..) | Pending::Add(..) => None,
        }
    }

    fn local(&self) -> LocalKey {
        match self {
            Pending::Command(command) | Pending::Parts(command, _) => command.local,
            Pending::Receive(receive) => receive.local,
            Pending::Set(..) | Pending::Add(..) => LocalKey::NONE,
        }
    }
}

impl DeferredList {
    /// Nothing is posted while this is held; gives whether it was.
    pub(crate) fn hold(&mut self, held: bool) -> bool {
        std::mem::replace(&mut self.firing, held)
    }

    /// Whether something has its time and waits for room.
    #[inline]
    pub(crate) fn is_waiting(&self) -> bool {
        !self.lanes.is_empty()
    }

    fn insert(&mut self, waiting: Waiting) -> Option<DeferredId> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.slots.len() >= TRIGGERS_MAX => return None,
            None => {
                self.slots.push(Slot::default());
                self.slots.len() as u32 - 1
            }
        };
        let slot = self.slots.get_mut(index as usize)?;
        slot.waiting = Some(waiting);
        Some(DeferredId(u64::from(slot.uses) << 32 | u64::from(index)))
    }

    fn get(&self, id: DeferredId) -> Option<Waiting> {
        let slot = self.slots.get(id.0 as u32 as usize)?;
        slot.waiting.clone().filter(|_| u64::from(slot.uses) == id.0 >> 32)
    }

    fn remove(&mut self, id: DeferredId) -> Option<Waiting> {
        let waiting = self.get(id)?;
        let slot = self.slots.get_mut(id.0 as u32 as usize)?;
        slot.waiting = None;
        slot.uses = slot.uses.wrapping_add(1);
        self.free.push(id.0 as u32);
        for lane in &mut self.lanes {
            if Some(lane.key) == waiting.pending.lane() {
                lane.ids.retain(|other| *other != id);
            }
        }
        self.lanes.retain(|lane| !lane.ids.is_empty());
        Some(waiting)
    }

    fn find(&self, wanted: impl Fn(&Waiting) -> bool) -> Vec<DeferredId> {
        let named = (0u64..).zip(&self.slots).map(|(index, slot)| (u64::from(slot.uses) << 32 | index, slot));
        let found = named.filter(|(_, slot)| slot.waiting.as_ref().is_some_and(&wanted));
        found.map(|(id, _)| DeferredId(id)).collect()
    }
}

/// Nobody says when what follows deferred work comes; the others are the engine's.
const NOT_DEFERRED: CommandFlags = CommandFlags(CommandFlags::MORE.0 | CommandFlags::COUNTED.0 | CommandFlags::PART.0);

/// A command to one range, or several.
fn in_parts(mut command: Command, ranges: Vec<RemoteRange>) -> Pending {
    match ranges.as_slice() {
        [range] => {
            (command.address, command.key) = (range.address, range.key);
            Pending::Command(command)
        }
        _ => Pending::Parts(command, ranges.into()),
    }
}

/// Defers work until `counter` has at least this value; it is done at once if it has. Work for the same endpoint is posted
/// in order of threshold, then as it was deferred. It goes when its endpoint, the counter that it waits for or the one that
/// it changes is closed.
pub fn defer(domain: &Domain, counter: &Counter, threshold: u64, deferred: Deferred) -> Result<DeferredId, Refused> {
    let Deferred { work, completion_counter } = deferred;
    let foreign = |counter: &Counter| !counter.domain().is_same(domain);
    let mut is_foreign = foreign(counter) || completion_counter.as_ref().is_some_and(foreign);
    // Handles are kept until the end: who gives the last one away has it closed, and the work dropped, behind this call.
    let (mut of_endpoint, mut of_counter) = (None, None);
    let (pending, buffer) = match work {
        DeferredWork::Post { endpoint, mut command, buffer } => {
            is_foreign |= !endpoint.domain().is_same(domain);
            command.endpoint = endpoint.id();
            command.local = LocalKey::NONE;
            command.flags = command.flags.without(NOT_DEFERRED);
            endpoint.will_post(&command);
            of_endpoint = Some(endpoint);
            (Pending::Command(command), buffer)
        }
        DeferredWork::PostVector { endpoint, mut command, buffer, ranges } => {
            is_foreign |= !endpoint.domain().is_same(domain);
            (command.endpoint, command.local) = (endpoint.id(), LocalKey::NONE);
            command.flags = command.flags.without(NOT_DEFERRED);
            endpoint.will_post(&command);
            of_endpoint = Some(endpoint);
            let bytes = u64::from(command.length);
            let simple = matches!(command.operation, Operation::Write | Operation::Read);
            let ranges = if simple { checked_ranges(&ranges, bytes) } else { Err(PostError::NotSupported) };
            match ranges {
                Ok(ranges) => (in_parts(command, ranges), Some(buffer)),
                Err(error) => return Err(Refused { error: error.into(), buffer: Some(buffer) }),
            }
        }
        DeferredWork::PostAtomic { endpoint, mut command, operands, compares, results, ranges } => {
            is_foreign |= !endpoint.domain().is_same(domain);
            (command.endpoint, command.local) = (endpoint.id(), LocalKey::NONE);
            command.flags = command.flags.without(NOT_DEFERRED);
            endpoint.will_post(&command);
            of_endpoint = Some(endpoint);
            let ranges = checked_ranges(&ranges, command.atomic.bytes().unwrap_or(0) as u64)?;
            let element = AtomicCall { count: 1, ..command.atomic }.bytes().unwrap_or(1) as u64;
            if !ranges.iter().all(|range| range.length.is_multiple_of(element.max(1))) {
                return Err(PostError::BadBuffer.into());
            }
            let buffer = atomic_buffer(&mut command, operands, compares, results, ranges.len())?;
            (in_parts(command, ranges), buffer)
        }
        DeferredWork::Receive { endpoint, mut receive, buffer } => {
            is_foreign |= !endpoint.domain().is_same(domain);
            receive.endpoint = endpoint.id();
            of_endpoint = Some(endpoint);
            (Pending::Receive(receive), Some(buffer))
        }
        DeferredWork::Set { counter, value } => {
            is_foreign |= foreign(&counter);
            let id = counter.id();
            of_counter = Some(counter);
            (Pending::Set(id, value), None)
        }
        DeferredWork::Add { counter, value } => {
            is_foreign |= foreign(&counter);
            let id = counter.id();
            of_counter = Some(counter);
            (Pending::Add(id, value), None)
        }
    };
    if is_foreign {
        return Err(Refused { error: Error::OtherDomain, buffer });
    }
    let mut core = domain.nic().lock();
    let completion_counter = completion_counter.as_ref().map(Counter::id);
    let waiting = Waiting { counter: counter.id(), pending, completion_counter };
    let id = core.defer(waiting, threshold, buffer)?;
    core.notify();
    drop(core);
    drop((of_endpoint, of_counter));
    Ok(id)
}

/// Takes deferred work back; `None`: it was posted, or went with what it was for.
pub fn cancel_deferred(domain: &Domain, id: DeferredId) -> Option<Withdrawn> {
    domain.nic().lock().withdraw(id)
}

/// Takes all deferred work of a domain back that was not posted.
pub fn flush_deferred(domain: &Domain) -> Vec<Withdrawn> {
    let mut core = domain.nic().lock();
    let all = core.deferred.find(|_| true);
    all.into_iter().filter_map(|id| core.withdraw(id)).collect()
}

/// Deferred work of a domain that was not posted.
#[must_use]
pub fn deferred(domain: &Domain) -> usize {
    let core = domain.nic().lock();
    core.deferred.slots.len() - core.deferred.free.len()
}

impl Core {
    fn defer(&mut self, mut waiting: Waiting, threshold: u64, buffer: Option<Buffer>) -> Result<DeferredId, Refused> {
        if let Some(buffer) = buffer {
            let must_write = match &waiting.pending {
                Pending::Command(command) | Pending::Parts(command, _) => {
                    matches!(command.operation, Operation::Read | Operation::FetchAtomic | Operation::CompareAtomic)
                }
                _ => true,
            };
            if must_write && !buffer.is_writable() && !buffer.is_empty() {
                return Err(Refused { error: PostError::BadBuffer.into(), buffer: Some(buffer) });
            }
            let local = self.attach(buffer)?;
            match &mut waiting.pending {
                Pending::Command(command) | Pending::Parts(command, _) => command.local = local,
                Pending::Receive(receive) => receive.local = local,
                Pending::Set(..) | Pending::Add(..) => {}
            }
        }
        let checked = match &mut waiting.pending {
            Pending::Command(command) | Pending::Parts(command, _) => {
                if matches!(command.operation, Operation::FetchAtomic | Operation::CompareAtomic) {
                    command.immediate = u64::from(command.local.0);
                }
                let known =
                    self.engine.delivery().addresses().address(command.peer).map(|_| ()).ok_or(PostError::NoSuchPeer);
                known.and_then(|()| self.engine.delivery().check(command))
            }
            Pending::Receive(receive) => {
                receive.counter = waiting.completion_counter;
                self.engine.delivery().check_receive(receive)
            }
            Pending::Set(..) | Pending::Add(..) => Ok(()),
        };
        let (local, counter) = (waiting.pending.local(), waiting.counter);
        let armed = checked.and_then(|()| {
            let id = self.deferred.insert(waiting).ok_or(PostError::QueueFull)?;
            self.engine.delivery_mut().arm(counter, threshold, id.0).inspect_err(|_| {
                self.deferred.remove(id);
            })?;
            Ok(id)
        });
        armed.map_err(|error| Refused { error: error.into(), buffer: self.take_back(local) })
    }

    fn take_back(&mut self, local: LocalKey) -> Option<Buffer> {
        if local == LocalKey::NONE { None } else { self.engine.delivery_mut().memory_mut().take(local) }
    }

    fn withdraw(&mut self, id: DeferredId) -> Option<Withdrawn> {
        let waiting = self.deferred.remove(id)?;
        self.engine.delivery_mut().disarm(id.0);
        let context = match &waiting.pending {
            Pending::Command(command) | Pending::Parts(command, _) => command.context,
            Pending::Receive(receive) => receive.context,
            Pending::Set(..) | Pending::Add(..) => 0,
        };
        Some(Withdrawn { id, context, buffer: self.take_back(waiting.pending.local()) })
    }

    /// An endpoint, or a side of it, closes: what was deferred for it is dropped.
    pub(crate) fn drop_deferred_of(&mut self, endpoint: EndpointId, side: Option<Side>) {
        let is_meant = |receives: bool| side.is_none_or(|side| (side == Side::Receive) == receives);
        let is_its = |waiting: &Waiting| {
            waiting.pending.lane().is_some_and(|(of, receives)| of == endpoint && is_meant(receives))
        };
        for id in self.deferred.find(is_its) {
            drop(self.withdraw(id));
        }
    }

    /// A counter closes: what waits for it, or would change it, is dropped; what it would have counted is not counted.
    pub(crate) fn close_counter(&mut self, counter: CounterId) {
        let has_fired = |core: &Core, id| core.deferred.lanes.iter().any(|lane| lane.ids.contains(&id));
        for id in self.deferred.find(|waiting| waiting.counter == counter) {
            if !has_fired(self, id) {
                drop(self.withdraw(id));
            }
        }
        let changes =
            |waiting: &Waiting| matches!(waiting.pending, Pending::Set(of, _) | Pending::Add(of, _) if of == counter);
        for id in self.deferred.find(changes) {
            drop(self.withdraw(id));
        }
        for waiting in self.deferred.slots.iter_mut().filter_map(|slot| slot.waiting.as_mut()) {
            if waiting.completion_counter == Some(counter) {
                waiting.completion_counter = None;
                if let Pending::Receive(receive) = &mut waiting.pending {
                    receive.counter = None;
                }
            }
        }
        self.engine.delivery_mut().close_counter(counter);
    }

    /// Does what counters have triggered, and what waited for room, as far as there is any.
    #[cold]
    pub(crate) fn fire(&mut self) {
        if self.deferred.firing || self.is_abandoned() || !self.settle() {
            return;
        }
        self.deferred.firing = true;
        loop {
            let mut moved = self.retry_deferred();
            while let Some(token) = self.engine.delivery_mut().poll_triggered() {
                let id = DeferredId(token);
                let Some(waiting) = self.deferred.get(id) else { continue };
                let lane = waiting.pending.lane();
                if self.deferred.lanes.iter().any(|other| Some(other.key) == lane) || !self.attempt_deferred(id) {
                    self.enqueue_deferred(id, lane);
                } else {
                    moved = true;
                }
            }
            if moved {
                self.engine.delivery_mut().memory_mut().advance();
                self.unblock();
                if self.engine.is_urgent() {
                    let now = self.now();
                    self.transmit(now);
                }
            }
            if !self.engine.delivery().has_triggered() {
                break;
            }
        }
        self.deferred.firing = false;
    }

    fn enqueue_deferred(&mut self, id: DeferredId, lane: Option<(EndpointId, bool)>) {
        let Some(key) = lane else { return };
        match self.deferred.lanes.iter_mut().find(|lane| lane.key == key) {
            Some(lane) => lane.ids.push_back(id),
            None => self.deferred.lanes.push(Lane { key, ids: VecDeque::from([id]) }),
        }
    }

    /// The first of each lane, and those behind it, until one has to wait on. True: some were done.
    fn retry_deferred(&mut self) -> bool {
        let mut moved = false;
        let keys: Vec<(EndpointId, bool)> = self.deferred.lanes.iter().map(|lane| lane.key).collect();
        for key in keys {
            loop {
                let lane = self.deferred.lanes.iter().find(|lane| lane.key == key);
                let Some(id) = lane.and_then(|lane| lane.ids.front().copied()) else { break };
                if !self.attempt_deferred(id) {
                    break;
                }
                moved = true;
            }
        }
        moved
    }

    /// Does one; false: there is no room now.
    fn attempt_deferred(&mut self, id: DeferredId) -> bool {
        let Some(waiting) = self.deferred.get(id) else { return true };
        let done = match waiting.pending {
            Pending::Command(command) => self.attempt_command(&command, None, waiting.completion_counter),
            Pending::Parts(command, ranges) => {
                self.attempt_command(&command, Some(&*ranges), waiting.completion_counter)
            }
            Pending::Receive(receive) => match self.engine.delivery_mut().post_receive(&receive) {
                Ok(()) => true,
                Err(PostError::QueueFull | PostError::CompletionQueueFull) => false,
                Err(error) => self.engine.delivery_mut().reject_receive(&receive, failure_of(error)),
            },
            Pending::Set(counter, value) => {
                let count = self.engine.delivery().counter(counter);
                self.change_counter(counter, weft_core::event::Counter { value, ..count }, waiting.completion_counter)
            }
            Pending::Add(counter, value) => {
                let count = self.engine.delivery().counter(counter);
                let value = count.value.wrapping_add(value);
                self.change_counter(counter, weft_core::event::Counter { value, ..count }, waiting.completion_counter)
            }
        };
        if done {
            self.deferred.remove(id);
        }
        done
    }

    fn change_counter(
        &mut self,
        counter: CounterId,
        to: weft_core::event::Counter,
        completion_counter: Option<CounterId>,
    ) -> bool {
        self.engine.delivery_mut().set_counter(counter, to);
        if let Some(counter) = completion_counter {
            self.engine.delivery_mut().count_done(counter);
        }
        true
    }

    fn attempt_command(
        &mut self,
        command: &Command,
        ranges: Option<&[RemoteRange]>,
        completion_counter: Option<CounterId>,
    ) -> bool {
        let mut command = *command;
        if let Some(counter) = completion_counter {
            self.engine.delivery_mut().count_end(&mut command, counter);
        }
        let posted = match ranges {
            Some(ranges) => self.post_parts(&command, ranges),
            None => match self.post_local(&mut command) {
                Some(posted) => posted,
                None => {
                    let now = self.now();
                    self.engine.post(now, &command)
                }
            },
        };
        match posted {
            Ok(()) => true,
            Err(PostError::QueueFull | PostError::CompletionQueueFull) => {
                self.engine.delivery_mut().uncount_end(&mut command);
                false
            }
            Err(error) => {
                let told = self.engine.delivery_mut().reject(&command, failure_of(error));
                if !told {
                    self.engine.delivery_mut().uncount_end(&mut command);
                }
                told
            }
        }
    }
}

/// What the completion says of work that could be done when it was deferred, and cannot any more.
fn failure_of(error: PostError) -> Failure {
    match error {
        PostError::NoSuchPeer => Failure::NoSuchEndpoint,
        PostError::NoSuchEndpoint => Failure::Closed,
        PostError::TooLong { .. } => Failure::LengthError,
        PostError::NotSupported => Failure::NotSupported,
        PostError::NoSuchClaim => Failure::Aborted,
        PostError::BadBuffer | PostError::QueueFull | PostError::CompletionQueueFull => Failure::LocalFault,
    }
}
