//! Completion queues: what ended, and how.

use std::collections::VecDeque;
use std::fmt;
use std::ops::ControlFlow;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use weft_core::address::{Address, PeerId};
use weft_core::event::{CompletionEntry, CompletionFlags, CompletionKind, Failure, QueueId};
use weft_core::memory::{LocalKey, Memory as _};
use weft_mem::Buffer;
use weft_mem::lock::Guard;

use crate::atomic::Element;
use crate::domain::Domain;
use crate::driver::{Alarm, Awaited, Core, Progress, Waiter};
use crate::error::{Error, Result};
use crate::raw::Ended;

/// A queue of completions. Clones name the same queue, which closes when the last of them and of the endpoints that
/// report to it is dropped.
///
/// [`read`](CompletionQueue::read) never sleeps, [`wait`](CompletionQueue::wait) does, and
/// [`descriptor`](CompletionQueue::descriptor) is for programs that sleep for more than one thing.
///
/// ```
/// use std::time::Duration;
/// # let domain = weft::Domain::udp("127.0.0.1:0")?;
/// let queue = domain.completion_queue(64);
/// let endpoint = domain.endpoint(&queue)?;
/// let myself = domain.addresses().insert(endpoint.address())?;
/// endpoint.receive(vec![0; 16])?;
/// endpoint.inject(myself, b"note")?;
/// let completion = queue.wait(Some(Duration::from_secs(10)))?.expect("it is for us");
/// assert_eq!(completion.bytes()?, b"note");
/// # Ok::<(), weft::Error>(())
/// ```
#[derive(Clone)]
pub struct CompletionQueue {
    inner: Arc<Inner>,
}

struct Inner {
    id: QueueId,
    waiter: Waiter,
    alarm: Alarm,
    domain: Domain,
}

impl CompletionQueue {
    pub(crate) fn open(domain: &Domain, capacity: usize) -> CompletionQueue {
        let id = domain.nic().lock().engine.delivery_mut().open_queue(capacity);
        let (waiter, alarm) = (Waiter::default(), Alarm::default());
        CompletionQueue { inner: Arc::new(Inner { id, waiter, alarm, domain: domain.clone() }) }
    }

    /// The oldest completion, if there is one.
    pub fn read(&self) -> Result<Option<Completion>> {
        let mut core = self.lock_with_completions();
        if core.engine.delivery().completions(self.inner.id) == 0 && !core.stash.holds(self.inner.id) {
            return self.found_nothing(core).map(|()| None);
        }
        // Filled where the caller will have it.
        let mut found = Ok(Some(Completion::empty()));
        if let Ok(Some(completion)) = &mut found
            && !core.completion(self.inner.id, completion)
        {
            return core.check().map(|()| None);
        }
        core.made_room();
        self.domain().nic().backoff.reset();
        found
    }

    /// There is nothing to read. Who finds that often shares the processor.
    #[inline]
    fn found_nothing(&self, core: Guard<'_, Core>) -> Result<()> {
        let nic = self.domain().nic();
        let busy = core.was_busy && nic.progress_mode() == Progress::Manual;
        let asked_link = core.asked_link;
        core.check()?;
        drop(core);
        if busy {
            nic.backoff.reset();
        } else {
            nic.backoff.found_nothing(nic, Awaited::Completion(self.inner.id), asked_link);
        }
        Ok(())
    }

    /// Appends the oldest completions, `limit` at most; gives how many.
    pub fn read_many(&self, into: &mut Vec<Completion>, limit: usize) -> Result<usize> {
        let mut core = self.lock_with_completions();
        core.check_devices()?;
        let before = into.len();
        while into.len() - before < limit && core.read_into(self.inner.id, into) {}
        match into.len() - before {
            0 => self.found_nothing(core).map(|()| 0),
            count => {
                core.made_room();
                self.domain().nic().backoff.reset();
                Ok(count)
            }
        }
    }

    /// Shows the oldest completions where they are: see [`crate::raw::read_completions`].
    #[inline(always)]
    pub(crate) fn show(&self, limit: usize, take: impl FnMut(&Ended<'_>) -> ControlFlow<()>) -> Result<usize> {
        let mut core = self.lock_with_completions();
        match core.show(self.inner.id, limit, take) {
            0 => self.found_nothing(core).map(|()| 0),
            count => {
                core.made_room();
                self.domain().nic().backoff.reset();
                Ok(count)
            }
        }
    }

    /// The engine, after a round of progress if there would be nothing to read otherwise.
    #[inline]
    fn lock_with_completions(&self) -> Guard<'_, Core> {
        self.lock_with(Awaited::Completion(self.inner.id))
    }

    /// The engine, after a round of progress if this would not be there otherwise.
    #[inline]
    fn lock_with(&self, awaited: Awaited) -> Guard<'_, Core> {
        let nic = self.domain().nic();
        let mut core = nic.lock();
        if nic.progress_mode() == Progress::Manual && !core.is_ready(awaited) {
            core.progress();
        } else {
            core.engine.begin_round();
        }
        core
    }

    /// The oldest completion; sleeps until there is one, for `timeout` at most (`None`: for ever). Nothing: the time has
    /// passed, or [`signal`](CompletionQueue::signal) ended it.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Option<Completion>> {
        let awaited = Awaited::Completion(self.inner.id);
        self.inner.waiter.wait(self.domain().nic(), awaited, Some(&self.inner.alarm), timeout, || self.read())
    }

    /// Sleeps until there is a completion to read, for `timeout` at most (`None`: for ever). False: the time has passed, or
    /// [`signal`](CompletionQueue::signal) ended it.
    pub fn wait_ready(&self, timeout: Option<Duration>) -> Result<bool> {
        self.wait_for(1, timeout)
    }

    /// Sleeps until there are that many completions to read, which must not be more than the queue holds. Else as
    /// [`wait_ready`](CompletionQueue::wait_ready).
    pub fn wait_for(&self, count: usize, timeout: Option<Duration>) -> Result<bool> {
        let (nic, awaited) = (self.domain().nic(), Awaited::Completions { queue: self.inner.id, count });
        let poll = || {
            let core = self.lock_with(awaited);
            if core.is_ready(awaited) { Ok(Some(())) } else { core.check().map(|()| None) }
        };
        if count <= 1 {
            return self
                .inner
                .waiter
                .wait(nic, awaited, Some(&self.inner.alarm), timeout, poll)
                .map(|ready| ready.is_some());
        }
        // Who waits for fewer must not be made to wait for as many, so this one has a waiter of its own.
        let waiter = Waiter::default();
        let ready = waiter.wait(nic, awaited, Some(&self.inner.alarm), timeout, poll);
        waiter.close(&mut nic.lock());
        ready.map(|ready| ready.is_some())
    }

    /// A descriptor for `poll`, `epoll` and event loops: readable when [`try_wait`](CompletionQueue::try_wait) was true
    /// and there may be something to read. Never read from it.
    ///
    /// The rule: read completions until there are none, call `try_wait`, and sleep on the descriptor only if that was
    /// true. It may wake for nothing.
    pub fn descriptor(&self) -> Result<BorrowedFd<'_>> {
        self.inner.waiter.descriptor(self.domain().nic())
    }

    /// Makes ready for sleep on the descriptor. False: there are completions or was a signal, do not sleep.
    pub fn try_wait(&self) -> Result<bool> {
        self.inner.waiter.try_wait(self.domain().nic(), Awaited::Completion(self.inner.id), &self.inner.alarm)
    }

    /// Ends a [`wait`](CompletionQueue::wait) of another thread early, and makes the descriptor of who sleeps on it
    /// readable once. If nobody waits, the next wait that finds no completion ends at once, or the next `try_wait` says
    /// not to sleep. Several calls count as one. It is for other threads, also where calls were promised to come
    /// [one at a time](crate::DomainBuilder::single_threaded).
    pub fn signal(&self) {
        let (id, mut core) = (self.inner.id, self.domain().nic().visit());
        self.inner.alarm.ring(&mut core, |awaited| match awaited {
            Awaited::Completion(queue) | Awaited::Completions { queue, .. } => queue == id,
            _ => false,
        });
    }

    /// The domain it belongs to.
    #[must_use]
    pub fn domain(&self) -> &Domain {
        &self.inner.domain
    }

    pub(crate) fn id(&self) -> QueueId {
        self.inner.id
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CompletionQueue({} of {:?})", self.inner.id.0, self.inner.domain)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let mut core = self.domain.nic().lock();
        self.waiter.close(&mut core);
        let mut completion = Completion::empty();
        while core.completion(self.id, &mut completion) {}
        core.engine.delivery_mut().close_queue(self.id);
    }
}

/// Something that ended.
#[derive(Debug)]
pub struct Completion {
    /// The operation's context: what the call that began it gave.
    pub context: u64,
    /// What it is about.
    pub kind: CompletionKind,
    /// How it ended.
    pub result: Result<(), Failure>,
    /// Bytes received or moved. Of a truncated message: its full length.
    pub length: u64,
    /// The message's tag; of a receive that got none, the tag that it waited for.
    pub tag: u64,
    /// Immediate data.
    pub immediate: Option<u64>,
    /// Of messages: who sent it.
    pub source: Option<Address>,
    /// Its name in the address vector, if it has one; of a receive that got none, whom it waited for.
    pub peer: Option<PeerId>,
    /// The buffer that the operation was given. `None` while a multi-receive goes on with it, and for borrowed memory.
    pub buffer: Option<Buffer>,
    /// Of multi-receive: where in the buffer the message begins. Of an announced message: its
    /// [`ClaimId`](crate::raw::ClaimId).
    pub offset: u64,
    /// The context is that of a multi-receive.
    pub multi: bool,
    /// The multi-receive ends with this completion: its buffer is the caller's again.
    pub released: bool,
    /// The message was announced: this is the announcement, or the receive that claimed it.
    pub announced: bool,
}

impl Completion {
    /// One that says nothing, to be filled in.
    #[inline]
    fn empty() -> Completion {
        Completion {
            context: 0,
            kind: CompletionKind::Send,
            result: Ok(()),
            length: 0,
            tag: 0,
            immediate: None,
            source: None,
            peer: None,
            buffer: None,
            offset: 0,
            multi: false,
            released: false,
            announced: false,
        }
    }

    /// As the engine keeps it, without its buffer.
    fn to_entry(&self) -> CompletionEntry {
        let flags = match (self.multi, self.announced) {
            (true, _) => CompletionFlags::of_multi(self.released),
            (false, true) => CompletionFlags::ANNOUNCED,
            (false, false) => CompletionFlags::NONE,
        };
        CompletionEntry {
            context: self.context,
            length: self.length,
            tag: self.tag,
            immediate: self.immediate,
            place: self.offset,
            peer: self.peer,
            local: LocalKey::NONE,
            kind: self.kind,
            flags,
            result: self.result,
        }
    }

    /// The completion if it succeeded, otherwise why not.
    pub fn ok(self) -> Result<Completion> {
        match self.result {
            Ok(()) => Ok(self),
            Err(failure) => Err(Error::Operation(failure)),
        }
    }

    /// A copy of the bytes that were received or read.
    pub fn bytes(&self) -> Result<Vec<u8>> {
        self.result?;
        let Some(buffer) = &self.buffer else { return Ok(Vec::new()) };
        let (offset, length) = (self.offset as usize, self.length as usize);
        let mut bytes = vec![0; length.min(buffer.len().saturating_sub(offset))];
        buffer.read(offset, &mut bytes)?;
        Ok(bytes)
    }

    /// The bytes that were received or read, without a copy where the buffer was a vector or box.
    pub fn into_bytes(self) -> Result<Vec<u8>> {
        self.result?;
        let (offset, length) = (self.offset as usize, self.length as usize);
        let Some(buffer) = self.buffer else { return Ok(Vec::new()) };
        match buffer.into_vec() {
            Ok(mut bytes) => {
                bytes.truncate(offset.saturating_add(length));
                bytes.drain(..offset.min(bytes.len()));
                Ok(bytes)
            }
            Err(buffer) => {
                let mut bytes = vec![0; length.min(buffer.len().saturating_sub(offset))];
                buffer.read(offset, &mut bytes)?;
                Ok(bytes)
            }
        }
    }

    /// Of a fetching or comparing atomic: the values from before.
    pub fn values<T: Element>(&self) -> Result<Vec<T>> {
        self.result?;
        let Some(buffer) = &self.buffer else { return Ok(Vec::new()) };
        // Results come first, then the `length` bytes that were sent.
        let mut bytes = vec![0; buffer.len().saturating_sub(self.length as usize)];
        buffer.read(0, &mut bytes)?;
        Ok(bytes.chunks_exact(T::BYTES).map(T::from_little_endian).collect())
    }

    /// Of a fetching or comparing atomic on one element: the value from before.
    pub fn value<T: Element>(&self) -> Result<T> {
        self.values()?.first().copied().ok_or(Error::Operation(Failure::LengthError))
    }
}

/// Completions that were taken from the engine before their user asked, because a scope had to have its memory back.
#[derive(Debug, Default)]
pub(crate) struct Stash {
    queues: Vec<(QueueId, VecDeque<Completion>)>,
}

impl Stash {
    pub(crate) fn holds(&self, queue: QueueId) -> bool {
        self.queues.iter().any(|(id, _)| *id == queue)
    }

    pub(crate) fn count(&self, queue: QueueId) -> usize {
        self.queues.iter().find(|(id, _)| *id == queue).map_or(0, |(_, completions)| completions.len())
    }

    fn push(&mut self, queue: QueueId, completion: Completion) {
        match self.queues.iter_mut().find(|(id, _)| *id == queue) {
            Some((_, completions)) => completions.push_back(completion),
            None => self.queues.push((queue, VecDeque::from([completion]))),
        }
    }

    #[cold]
    fn front_entry(&self, queue: QueueId) -> Option<(CompletionEntry, Option<Address>)> {
        let completion = self.queues.iter().find(|(id, _)| *id == queue)?.1.front()?;
        Some((completion.to_entry(), completion.source))
    }

    fn pop(&mut self, queue: QueueId) -> Option<Completion> {
        let index = self.queues.iter().position(|(id, _)| *id == queue)?;
        let (_, completions) = self.queues.get_mut(index)?;
        let completion = completions.pop_front();
        if completions.is_empty() {
            self.queues.swap_remove(index);
        }
        completion
    }
}

impl Core {
    /// Fills in the oldest completion of a queue, with its buffer; false: there is none.
    #[inline]
    fn completion(&mut self, queue: QueueId, into: &mut Completion) -> bool {
        if !self.stash.queues.is_empty()
            && let Some(completion) = self.stash.pop(queue)
        {
            *into = completion;
            return true;
        }
        self.fill_completion(queue, into)
    }

    /// Appends the oldest completion of a queue; false: there is none.
    #[inline]
    fn read_into(&mut self, queue: QueueId, into: &mut Vec<Completion>) -> bool {
        if self.engine.delivery().completions(queue) == 0 && !self.stash.holds(queue) {
            return false;
        }
        into.push(Completion::empty());
        if into.last_mut().is_some_and(|last| self.completion(queue, last)) {
            return true;
        }
        into.pop();
        false
    }

    /// Puts the oldest completion where it shall be: it is long, and every move of it can be felt. False: there is none.
    #[inline]
    fn fill_completion(&mut self, queue: QueueId, into: &mut Completion) -> bool {
        // Before it is taken out, so that none is lost should a device fail.
        if self.engine.delivery().completions(queue) == 0 || !self.settle() {
            return false;
        }
        let Some(completion) = self.engine.delivery().peek_completion(queue) else { return false };
        into.context = completion.context;
        into.kind = completion.kind;
        into.result = completion.result;
        into.length = completion.length;
        into.tag = completion.tag;
        into.immediate = completion.immediate;
        into.source = self.engine.delivery().completion_source(queue);
        into.peer = completion.peer;
        into.offset = completion.offset();
        into.multi = completion.flags.contains(CompletionFlags::MULTI);
        into.released = completion.flags.contains(CompletionFlags::RELEASED);
        into.announced = completion.flags.contains(CompletionFlags::ANNOUNCED);
        let local = completion.local;
        if local != LocalKey::NONE {
            // What was borrowed goes back to its lender by being dropped.
            into.buffer = self.engine.delivery_mut().memory_mut().take(local).filter(|buffer| !buffer.is_borrowed());
        }
        self.engine.delivery_mut().drop_completion(queue);
        true
    }

    /// Shows the oldest completions of a queue and drops them with their buffers; gives how many. `take` is called in one
    /// place, so that the compiler puts it there.
    #[inline(always)]
    fn show(&mut self, queue: QueueId, limit: usize, mut take: impl FnMut(&Ended<'_>) -> ControlFlow<()>) -> usize {
        // Before any is shown: what it tells of has to be there.
        let limit = if self.settle() { limit } else { limit.min(self.stash.count(queue)) };
        let mut aside = if self.stash.queues.is_empty() { None } else { self.stash.front_entry(queue) };
        let mut count = 0;
        let Some((addresses, shown, memory)) = self.engine.delivery_mut().completions_of(queue) else { return 0 };
        while count < limit {
            let (ended, local, flags) = match (&aside, shown.front()) {
                (Some((entry, source)), _) => (Ended::from(entry, *source), LocalKey::NONE, entry.flags),
                (None, Some(entry)) => (Ended::new(addresses, shown, entry), entry.local, entry.flags),
                (None, None) => break,
            };
            if take(&ended).is_break() {
                break;
            }
            count += 1;
            if aside.is_some() {
                self.stash.pop(queue);
                aside = self.stash.front_entry(queue);
                continue;
            }
            shown.drop_shown(flags);
            if local != LocalKey::NONE {
                memory.release(local);
            }
        }
        self.engine.delivery_mut().completions_taken(queue);
        count
    }

    /// Takes all completions that wait, so that the memory their operations borrowed is given back.
    pub(crate) fn stash(&mut self, queue: QueueId) {
        let mut completion = Completion::empty();
        while self.fill_completion(queue, &mut completion) {
            self.stash.push(queue, std::mem::replace(&mut completion, Completion::empty()));
        }
    }
}
