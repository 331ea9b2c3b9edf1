//! The loop that joins engine and link, and the rules by which its users sleep and wake.
//!
//! One mutex guards everything of a NIC ([`Core`]). A round of progress takes what the link has received to the engine,
//! does what is due, and takes what the engine wants to send to the link. Whoever wants to sleep *arms* itself under
//! that lock, after it has seen that there is nothing to do: whatever changes that later, under the same lock, signals.
//! So no wake-up can be lost, and nobody makes a system call to wake somebody who is awake.

use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use weft_core::command::EndpointId;
use weft_core::delivery::Transport;
use weft_core::engine::{Engine, Piece, Transmit};
use weft_core::event::{CounterId, QueueId};
use weft_core::time::Time;
use weft_link::staged::{OutgoingAnywhere, Staged};
use weft_link::wait::{WaitSet, ticks};
use weft_link::{Link, Outgoing, SendError};
use weft_mem::lock::{Guard, Lock, OneAtATime};
use weft_mem::{HostMemory, Segment, Sendable, fork};

use crate::completion_queue::Stash;
use crate::deferred::DeferredList;
use crate::error::{Error, Result};
use crate::limits::{
    BATCH_ROUNDS, DRAIN_ROUNDS_MAX, FLUSH_US, LINGER_MAX_US, LINGER_PATIENCES, LINGER_ROUND_US, LINK_POLL_US,
    LINK_RETRY_US, LONG_DATAGRAM_BYTES, LOOKS_PER_ROUND, PIECES_PER_BATCH, RECEIVE_ROUNDS_MAX, SPIN_US, STAND_IN_US,
    TICKS_BETWEEN_LOOKS, TRANSMIT_BATCH_BYTES, TRANSMIT_BATCH_MAX, TRANSMIT_BYTES, TRANSMIT_PIECES,
    UNAWAITED_PER_ROUND,
};
use crate::local::Local;
use crate::poll_backoff::PollBackoff;

/// Who does the work of the NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Progress {
    /// The threads that post, read completions and counters, and wait. Nothing happens while none of them does. Shortest
    /// way, and no thread to share a core with.
    #[default]
    Manual,
    /// A thread of the NIC, besides those who post. Peers are answered whatever the program does.
    Automatic,
}

/// A NIC as its handles and its thread share it.
pub(crate) struct Nic {
    core: Lock<Core>,
    progress: Progress,
    stop: AtomicBool,
    pub(crate) backoff: PollBackoff,
    /// Where it was made ([`fork::generation`]).
    generation: u32,
}

impl Nic {
    pub(crate) fn new(mut core: Core, progress: Progress, promised: Option<OneAtATime>) -> Nic {
        let backoff = PollBackoff::default();
        core.shares_processor = backoff.is_shared();
        let (core, stop) = (Lock::new(core, promised), AtomicBool::new(false));
        Nic { core, progress, stop, backoff, generation: fork::generation() }
    }

    /// Whether this process has it from its parent: its threads are not here, and nothing that is done reaches anybody.
    pub(crate) fn is_inherited(&self) -> bool {
        self.generation != fork::generation()
    }

    /// The engine and its link. A panic of another thread inside of it can leave an operation unfinished, but memory is
    /// checked at every use, so going on is safe.
    #[inline(always)]
    pub(crate) fn lock(&self) -> Guard<'_, Core> {
        self.core.lock()
    }

    /// The same, for a call that may overlap with others even where those were promised to come one at a time.
    pub(crate) fn visit(&self) -> Guard<'_, Core> {
        self.core.visit()
    }

    /// The engine after a round of progress, if progress is the caller's business.
    pub(crate) fn lock_progressed(&self) -> Guard<'_, Core> {
        let mut core = self.lock();
        if self.progress == Progress::Manual {
            core.progress_all();
        }
        core
    }

    #[inline]
    pub(crate) fn progress_mode(&self) -> Progress {
        self.progress
    }

    /// Does the work of a thread of the NIC. A panic there ends the NIC, not only the thread: whoever waits for something
    /// hears of it, and nobody waits for it any more.
    pub(crate) fn employ(&self, set: &Arc<WaitSet>, work: fn(&Nic, &Arc<WaitSet>)) {
        if catch_unwind(AssertUnwindSafe(|| work(self, set))).is_err() {
            self.core.visit().fail();
            // What the panic left half done may panic once more; by now everybody knows.
            let _ = catch_unwind(AssertUnwindSafe(|| self.core.visit().abandon()));
        }
    }

    /// The NIC's own thread, until [`Nic::stop`].
    pub(crate) fn run(&self, set: &Arc<WaitSet>) {
        while !self.stop.load(Ordering::Acquire) {
            let mut core = self.lock();
            // It is awake: no need to wake it.
            core.disarm(set);
            core.progress_all();
            core.arm(Awaited::Timeout, set, true);
            drop(core);
            // Arming forgets earlier signals, that of `stop` too: the flag is looked at once more behind it.
            if !self.stop.load(Ordering::Acquire) && set.wait(None).is_err() {
                std::thread::yield_now();
            }
        }
    }

    /// A thread that stands in for callers who stay away, until [`Nic::stop`]. It has nothing to do while they come, or
    /// sleep until something does: who sleeps wakes by himself.
    pub(crate) fn stand_in(&self, set: &Arc<WaitSet>) {
        let while_away = Duration::from_micros(STAND_IN_US);
        let mut seen = self.core.entries();
        while !self.stop.load(Ordering::Acquire) {
            std::thread::park_timeout(while_away);
            let entries = self.core.entries();
            if std::mem::replace(&mut seen, entries) != entries {
                continue;
            }
            while self.core.entries() == seen && !self.stop.load(Ordering::Acquire) {
                let mut core = self.core.visit();
                if core.somebody_sleeps_but(set) {
                    break;
                }
                core.disarm(set);
                core.progress_all();
                core.arm(Awaited::Timeout, set, true);
                drop(core);
                if !self.stop.load(Ordering::Acquire) && set.wait(Some(while_away)).is_err() {
                    std::thread::yield_now();
                }
            }
            self.core.visit().disarm(set);
        }
    }

    /// An endpoint closes: brings what was injected on its way.
    pub(crate) fn linger(&self, endpoint: EndpointId) {
        self.linger_inside(|| Some(self.lock()), Some(endpoint));
    }

    /// The process ends: brings on its way what is owed to peers. Who ended it may be inside.
    pub(crate) fn settle(&self) {
        self.linger_inside(|| self.core.try_visit(), None);
    }

    /// Works until targets have what was posted, as long as they go on to take some of it, and no longer than
    /// [`LINGER_PATIENCES`] times what it waits for one that takes nothing.
    fn linger_inside<'a>(&self, enter: impl Fn() -> Option<Guard<'a, Core>>, of: Option<EndpointId>) {
        let patience = Duration::from_micros(LINGER_MAX_US);
        let (mut left, mut left_in_all, mut fewest) = (patience, patience * LINGER_PATIENCES, usize::MAX);
        while !left.is_zero() && !left_in_all.is_zero() {
            let start = Instant::now();
            if let Some(mut core) = enter() {
                core.progress_and_acknowledge();
                let local = core.local.as_ref().map_or(0, |local| local.under_way(of));
                let under_way = core.engine.state().commands + local;
                if core.is_abandoned() || under_way == 0 {
                    break;
                }
                if under_way < fewest {
                    (left, fewest) = (patience, under_way);
                }
            }
            std::thread::yield_now();
            // A round that took long was not at work: who is kept from the processor sends nothing again meanwhile.
            let round = start.elapsed().min(Duration::from_micros(LINGER_ROUND_US));
            (left, left_in_all) = (left.saturating_sub(round), left_in_all.saturating_sub(round));
        }
    }

    /// Tells the NIC's thread to end.
    pub(crate) fn stop(&self, set: &WaitSet) {
        self.stop.store(true, Ordering::Release);
        set.signal();
    }
}

/// What somebody sleeps for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaited {
    /// Only for the engine's next timeout.
    Timeout,
    /// For a completion.
    Completion(QueueId),
    /// For that many completions.
    Completions { queue: QueueId, count: usize },
    /// For a completion in one of these queues that nobody has taken aside.
    Fresh([Option<QueueId>; 2]),
    /// For a counter to reach a value, or to count another error than these.
    Count { counter: CounterId, value: u64, errors: u64 },
}

/// Why a NIC cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    Link(std::io::ErrorKind),
    /// Its thread panicked, and may have left anything half done.
    Thread,
}

struct Armed {
    awaited: Awaited,
    set: Arc<WaitSet>,
    /// The sleeper wakes by itself then; [`Time::NEVER`] where timeouts are not its business.
    until: Time,
    watches_time: bool,
}

/// Everything of a NIC that the lock guards.
pub(crate) struct Core {
    pub(crate) engine: Engine<HostMemory>,
    pub(crate) link: Staged<Box<dyn Link>>,
    /// The road to peers on this machine, unless everything goes as packets.
    pub(crate) local: Option<Local>,
    /// Whether others want the processor of whoever polls.
    pub(crate) shares_processor: Arc<AtomicBool>,
    /// When everything was last looked at, and rounds of progress.
    looked_at: u64,
    rounds: u32,
    /// Commands since the last round whose poster waits for nothing.
    unawaited: u32,
    /// One of them may not have been sent.
    holds_unawaited: bool,
    /// The last round of progress did something.
    pub(crate) was_busy: bool,
    /// The last round of progress looked at the link, too: that is a system call at least.
    pub(crate) asked_link: bool,
    pub(crate) stash: Stash,
    pub(crate) deferred: DeferredList,
    start: Instant,
    /// Filled by the engine and not yet taken by the link: those from `sent` to `filled`.
    transmits: Vec<Transmit>,
    sent: usize,
    filled: usize,
    /// When the link, which had no room, is asked again.
    retry_at: Time,
    /// It has said so, and its descriptor tells when that has changed.
    awaits_room: bool,
    /// When commands that were posted with more to follow go out, though nothing followed.
    flush_at: Time,
    broken: Option<Broken>,
    /// A device lost bytes of operations that may be thought to be done: nobody is told of any from then on.
    device_failed: bool,
    abandoned: bool,
    armed: Vec<Armed>,
    segments: Vec<Segment<'static>>,
    outgoing: Vec<Outgoing<'static>>,
}

impl Core {
    pub(crate) fn new(engine: Engine<HostMemory>, link: Box<dyn Link>, local: Option<Local>) -> Core {
        // Each is used as soon as that many wait together, which may be late: then nothing shall be allocated any more.
        let transmit = || {
            let (bytes, pieces) = (Vec::with_capacity(TRANSMIT_BYTES), Vec::with_capacity(TRANSMIT_PIECES));
            Transmit { bytes, pieces, ..Transmit::default() }
        };
        Core {
            engine,
            link: Staged::new(link),
            local,
            shares_processor: Arc::default(),
            looked_at: 0,
            rounds: 0,
            unawaited: 0,
            holds_unawaited: false,
            was_busy: false,
            asked_link: false,
            stash: Stash::default(),
            deferred: DeferredList::default(),
            start: Instant::now(),
            transmits: (0..TRANSMIT_BATCH_MAX).map(|_| transmit()).collect(),
            sent: 0,
            filled: 0,
            retry_at: Time::NEVER,
            awaits_room: false,
            flush_at: Time::NEVER,
            broken: None,
            device_failed: false,
            abandoned: false,
            armed: Vec::new(),
            segments: Vec::with_capacity(PIECES_PER_BATCH),
            outgoing: Vec::with_capacity(TRANSMIT_BATCH_MAX),
        }
    }

    /// The time, never 0.
    pub(crate) fn now(&self) -> Time {
        Time(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX - 1) + 1)
    }

    /// One round for somebody who looks for what he waits for.
    #[inline]
    pub(crate) fn progress(&mut self) {
        self.engine.begin_round();
        self.advance();
    }

    /// One round for somebody who comes again soon. Rings of peers on this machine are looked at each time. Packets cost a
    /// system call: while the rings keep us busy, or there are rings and no packet is expected, they are looked for now
    /// and then; so are peers that come and go.
    #[inline]
    fn advance(&mut self) {
        (self.was_busy, self.asked_link, self.unawaited) = (false, false, 0);
        let Some(local) = &mut self.local else { return self.progress_packets() };
        let mut busy = local.progress(self.engine.delivery_mut());
        // Who comes back to look again takes several times as long: a message may come just now.
        for _ in 0..LOOKS_PER_ROUND {
            if busy {
                break;
            }
            busy = local.has_work() && local.progress(self.engine.delivery_mut());
        }
        if local.has_displaced() {
            self.send_displaced();
        }
        let Some(local) = &self.local else { return };
        self.rounds = self.rounds.wrapping_add(1);
        self.was_busy = busy;
        let rare = busy || local.has_channels() && self.engine.is_quiet();
        // The clock costs about as much as the look at the rings.
        let due =
            (!rare || self.rounds.is_multiple_of(4)) && ticks().wrapping_sub(self.looked_at) >= TICKS_BETWEEN_LOOKS;
        if due {
            self.progress_all();
        } else if !rare {
            self.progress_packets();
        } else if busy {
            self.notify();
        }
    }

    /// One round: what came, what is due, what is to go. Who sleeps does this before, as nothing may be left to be found.
    pub(crate) fn progress_all(&mut self) {
        if let Some(local) = &mut self.local {
            self.looked_at = ticks();
            local.attend(self.engine.delivery_mut());
            local.progress(self.engine.delivery_mut());
            self.send_displaced();
        }
        self.progress_packets();
        let hastened = self.engine.hasten_acks(Time::NEVER);
        if hastened || self.engine.has_deferred_ack() {
            self.engine.handle_deferred_ack();
            if hastened {
                let now = self.now();
                self.transmit(now);
            }
            // Who sleeps may have waited for just this.
            self.notify();
        }
    }

    /// As [`Core::progress_all`], when it may be the last time: no acknowledgement waits for company.
    pub(crate) fn progress_and_acknowledge(&mut self) {
        self.progress_all();
        if self.engine.flush_acks() {
            let now = self.now();
            self.transmit(now);
        }
    }

    fn progress_packets(&mut self) {
        self.asked_link = true;
        let now = self.now();
        self.engine.handle_deferred_ack();
        self.was_busy |= self.receive(now) > 0;
        if self.engine.poll_timeout() <= now && self.broken != Some(Broken::Thread) {
            // Whoever was asleep finds his answers in the socket: they come before the conclusion that there are none.
            for _ in 0..DRAIN_ROUNDS_MAX {
                if self.receive(now) == 0 {
                    break;
                }
            }
            // Whom nothing is heard of is asked again when it is due: early enough for what the network says of it.
            while let Some(notice) = self.link.poll_notice() {
                self.engine.handle_absent(now, notice.path, notice.quoted());
            }
            self.engine.handle_timeout(now);
        }
        if self.sent != self.filled || self.engine.has_output(now) {
            self.transmit(now);
        } else {
            (self.retry_at, self.flush_at) = (Time::NEVER, Time::NEVER);
        }
        self.notify();
    }

    /// Waits until what came for device memory is there: before anybody reads a completion or a counter, and before
    /// anything goes out that tells a peer of it. False: a device has failed.
    #[inline]
    pub(crate) fn settle(&mut self) -> bool {
        if self.engine.delivery_mut().memory_mut().settle().is_err() {
            self.device_failed = true;
            self.abandoned = true;
        }
        !self.device_failed
    }

    /// Posts what was meant for peers on this machine that take no channel.
    pub(crate) fn send_displaced(&mut self) {
        let Core { local, engine, .. } = self;
        if let Some(local) = local {
            local.send_displaced(|command| engine.post_admitted(command));
        }
    }

    /// After something was posted: sends it at once unless company will come soon.
    pub(crate) fn posted(&mut self, now: Time, more: bool) {
        self.engine.delivery_mut().memory_mut().advance();
        if more {
            self.flush_at = self.flush_at.min(now.plus_micros(FLUSH_US));
        } else if self.engine.is_urgent() {
            self.transmit(now);
        }
        // It has waited for what was posted to go first.
        self.engine.handle_deferred_ack();
        self.notify();
    }

    /// The same, of a command whose poster need not wait for anything. Who posts many of those serves its peers meanwhile.
    #[inline]
    pub(crate) fn posted_unawaited(&mut self, now: Time, more: bool) {
        self.holds_unawaited = true;
        self.posted(now, more);
        self.unawaited += 1;
        if self.unawaited >= UNAWAITED_PER_ROUND {
            self.advance();
        }
    }

    /// After completions were read: peers that were held back for want of room are told at once, and what its poster has
    /// just read to be done is sent.
    #[inline]
    pub(crate) fn made_room(&mut self) {
        self.unblock();
        if self.engine.is_urgent() || self.holds_unawaited {
            let now = self.now();
            self.transmit(now);
            self.notify();
        } else if self.deferred.is_waiting() {
            self.notify();
        }
    }

    /// Requests of peers on this machine that waited for what the user has just done.
    #[inline]
    pub(crate) fn unblock(&mut self) {
        if self
            .local
            .as_ref()
            .is_some_and(|local| local.is_blocked() || self.engine.delivery().has_decided(Transport::Shm))
        {
            self.unblock_some();
        }
    }

    #[cold]
    fn unblock_some(&mut self) {
        if let Some(local) = &mut self.local
            && local.progress(self.engine.delivery_mut())
        {
            // One round, of what may be many: who sleeps, since nothing could be done, goes on with it.
            local.set_changed();
            self.engine.delivery_mut().memory_mut().advance();
            self.notify();
        }
    }

    /// From now on nothing is sent or heard.
    pub(crate) fn abandon(&mut self) {
        self.abandoned = true;
        self.local = None;
        self.notify();
    }

    /// The NIC's thread panicked: nothing is done any more, and everybody is woken to hear of it.
    fn fail(&mut self) {
        (self.broken, self.abandoned) = (Some(Broken::Thread), true);
        self.wake(|_| true);
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned
    }

    /// Whether the link and the NIC's thread still work.
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        self.check_devices()?;
        match self.broken {
            None => Ok(()),
            Some(Broken::Link(kind)) => Err(Error::LinkFailed(kind)),
            Some(Broken::Thread) => Err(Error::NicFailed),
        }
    }

    /// Whether all bytes of completed operations are where they belong.
    pub(crate) fn check_devices(&self) -> Result<()> {
        if self.device_failed { Err(Error::DeviceFailed) } else { Ok(()) }
    }

    /// Takes what came to the engine; gives how many calls brought something.
    fn receive(&mut self, now: Time) -> usize {
        let Core { engine, link, .. } = self;
        let mut calls = 0;
        if self.abandoned {
            return 0;
        }
        let looks_on = self.shares_processor.load(Ordering::Relaxed);
        let mut rounds = 0;
        while rounds < RECEIVE_ROUNDS_MAX {
            let mut bytes = 0;
            let received = link.receive(&mut |incoming| {
                let (path, marked) = (incoming.path, incoming.marked);
                bytes += incoming.bytes.len();
                for datagram in incoming.datagrams() {
                    engine.handle_datagram_early(now, path, datagram, marked);
                }
            });
            match received {
                // A part of something long is mostly not the last, and where processors are shared its program gives its
                // turn away as soon as it comes back with nothing.
                Ok(1) if looks_on && bytes >= LONG_DATAGRAM_BYTES => (calls, rounds) = (calls + 1, rounds + 1),
                // A lone datagram is worth more now than another empty look: what waits for it goes on first.
                Ok(count @ (0 | 1)) => {
                    calls += count;
                    break;
                }
                Ok(count) => (calls, rounds) = (calls + count, rounds + BATCH_ROUNDS),
                Err(error) => {
                    self.broken = Some(Broken::Link(error.kind()));
                    break;
                }
            }
        }
        engine.delivery_mut().memory_mut().advance();
        calls
    }

    /// Gives the link what the engine wants to send, until one of them has enough.
    pub(crate) fn transmit(&mut self, now: Time) {
        self.retry_at = Time::NEVER;
        self.holds_unawaited = false;
        if self.abandoned {
            return;
        }
        loop {
            if self.sent == self.filled {
                (self.sent, self.filled) = (0, 0);
                let mut bytes = 0;
                for transmit in &mut self.transmits {
                    // What is long is summed while it is polled, and its receiver waits for the first of it.
                    let enough = bytes >= TRANSMIT_BATCH_BYTES || !self.engine.has_output(now);
                    if enough || !self.engine.poll_transmit(now, transmit) {
                        break;
                    }
                    bytes += transmit.length();
                    self.filled += 1;
                }
                if self.filled == 0 {
                    self.flush_at = Time::NEVER;
                    return;
                }
            }
            if !self.settle() {
                return;
            }
            match self.send() {
                Ok(taken) => {
                    self.sent += taken;
                    if std::mem::take(&mut self.awaits_room) {
                        self.link.watch_room(false);
                    }
                }
                Err(SendError::WouldBlock) => {
                    self.awaits_room = true;
                    if !self.link.watch_room(true) {
                        self.retry_at = now.plus_micros(LINK_RETRY_US);
                    }
                    return;
                }
                Err(SendError::TooBig { path }) => {
                    // What was too big is lost; the engine withdraws it, and cuts it anew.
                    let mtu = self.link.mtu(path);
                    self.engine.handle_too_big(now, path, mtu);
                    self.sent += 1;
                }
                Err(SendError::Failed(error)) => {
                    self.broken = Some(Broken::Link(error.kind()));
                    (self.sent, self.filled) = (0, 0);
                    return;
                }
            }
        }
    }

    /// Gives the link those from `sent` to `filled`; gives how many are settled.
    fn send(&mut self) -> Result<usize, SendError> {
        let waiting = self.transmits.get(self.sent..self.filled).unwrap_or_default();
        let memory = self.engine.delivery().memory();
        if let [alone] = waiting
            && let [piece] = alone.pieces.as_slice()
            && let Some(Sendable::Host(segment)) = sendable(memory, alone, piece)
        {
            // What latency is about: one datagram, in one piece.
            let Transmit { path, segment_bytes, class, may_fragment, .. } = *alone;
            return self.link.send(&[Outgoing { path, pieces: &[segment], segment_bytes, class, may_fragment }]);
        }
        let mut segments = recycle(std::mem::take(&mut self.segments));
        // The engine may have let go of memory since it filled them: those from the first such on wait for their turn.
        let mut whole = 0;
        for transmit in waiting {
            let before = segments.len();
            match gather(memory, transmit, &mut segments) {
                Gathered::Whole => whole += 1,
                Gathered::OnDevice if whole == 0 => {
                    self.segments = recycle(segments);
                    return send_from_devices(&mut self.link, memory, waiting);
                }
                Gathered::OnDevice | Gathered::Gone => {
                    segments.truncate(before);
                    break;
                }
            }
        }
        let mut outgoing = recycle(std::mem::take(&mut self.outgoing));
        let mut rest = segments.as_slice();
        for transmit in waiting.iter().take(whole) {
            let (pieces, behind) = rest.split_at_checked(transmit.pieces.len()).unwrap_or((rest, &[]));
            rest = behind;
            let Transmit { path, segment_bytes, class, may_fragment, .. } = *transmit;
            outgoing.push(Outgoing { path, pieces, segment_bytes, class, may_fragment });
        }
        let result = if outgoing.is_empty() { Ok(1) } else { self.link.send(&outgoing) };
        self.outgoing = recycle(outgoing);
        self.segments = recycle(segments);
        result
    }

    /// When the next round is due without anything coming in.
    fn next_time(&self) -> Time {
        if self.engine.has_deferred_ack() {
            return Time(0);
        }
        let mut next = self.engine.poll_timeout().min(self.retry_at).min(self.flush_at);
        if self.link.descriptor().is_none() {
            next = next.min(self.now().plus_micros(LINK_POLL_US));
        }
        next
    }

    /// After anything may have changed: does what counters have triggered, then wakes those who have got what they sleep
    /// for, and those who sleep longer than they may.
    #[inline(always)]
    pub(crate) fn notify(&mut self) {
        if self.engine.delivery().has_triggered() || self.deferred.is_waiting() {
            self.fire();
        }
        if !self.armed.is_empty() {
            self.notify_some();
        }
    }

    #[cold]
    fn notify_some(&mut self) {
        let next = self.next_time();
        let changed = self.local.as_mut().is_some_and(Local::take_changed);
        let mut armed = std::mem::take(&mut self.armed);
        armed.retain(|sleeper| {
            let wakes = self.is_ready(sleeper.awaited) || (sleeper.watches_time && (changed || next < sleeper.until));
            if wakes {
                sleeper.set.signal();
            }
            !wakes
        });
        self.armed = armed;
    }

    /// Wakes those who sleep for something of this queue or counter, whether it is there or not.
    pub(crate) fn wake(&mut self, woken: impl Fn(Awaited) -> bool) {
        self.armed.retain(|sleeper| {
            let wakes = woken(sleeper.awaited);
            if wakes {
                sleeper.set.signal();
            }
            !wakes
        });
    }

    #[inline]
    pub(crate) fn is_ready(&self, awaited: Awaited) -> bool {
        match awaited {
            Awaited::Timeout => false,
            Awaited::Completion(queue) => self.engine.delivery().completions(queue) > 0 || self.stash.holds(queue),
            Awaited::Completions { queue, count } => {
                self.stash.count(queue).saturating_add(self.engine.delivery().completions(queue)) >= count
            }
            Awaited::Fresh(queues) => {
                queues.into_iter().flatten().any(|queue| self.engine.delivery().completions(queue) > 0)
            }
            Awaited::Count { counter, value, errors } => {
                let count = self.engine.delivery().counter(counter);
                count.value >= value || count.errors != errors
            }
        }
    }

    /// Makes ready for sleep on `set`: from here on it becomes readable when what is awaited happens, and, if
    /// `watches_time`, when the next round is due.
    pub(crate) fn arm(&mut self, awaited: Awaited, set: &Arc<WaitSet>, watches_time: bool) {
        let until = if watches_time { self.next_time() } else { Time::NEVER };
        let after = (until != Time::NEVER).then(|| Duration::from_nanos(until.since(self.now())));
        set.clear(after);
        if watches_time && self.local.as_mut().is_some_and(|local| !local.prepare_sleep()) {
            set.signal();
        }
        self.disarm(set);
        self.armed.push(Armed { awaited, set: set.clone(), until, watches_time });
    }

    /// Whether somebody sleeps until something comes, other than on this set.
    fn somebody_sleeps_but(&self, set: &Arc<WaitSet>) -> bool {
        self.armed.iter().any(|sleeper| sleeper.watches_time && !Arc::ptr_eq(&sleeper.set, set))
    }

    /// What to sleep on for peers.
    pub(crate) fn descriptors(&self, wanted: bool) -> Vec<BorrowedFd<'_>> {
        let local = self.local.as_ref().map(Local::descriptor);
        self.link.descriptor().into_iter().chain(local).filter(|_| wanted).collect()
    }

    pub(crate) fn disarm(&mut self, set: &Arc<WaitSet>) {
        self.armed.retain(|sleeper| !Arc::ptr_eq(&sleeper.set, set));
    }
}

/// What became of gathering the pieces of a transmit.
enum Gathered {
    Whole,
    /// Some of its memory is gone; what was appended is of no use.
    Gone,
    /// Some of it is in the memory of a device; what was appended is of no use.
    OnDevice,
}

/// Appends the pieces of a transmit.
fn gather<'a>(memory: &'a HostMemory, transmit: &'a Transmit, segments: &mut Vec<Segment<'a>>) -> Gathered {
    for piece in &transmit.pieces {
        match sendable(memory, transmit, piece) {
            Some(Sendable::Host(segment)) => segments.push(segment),
            Some(Sendable::Device(_)) => return Gathered::OnDevice,
            None => return Gathered::Gone,
        }
    }
    Gathered::Whole
}

/// One piece of a transmit; `None`: its memory is gone.
#[inline]
fn sendable<'a>(memory: &'a HostMemory, transmit: &'a Transmit, piece: &Piece) -> Option<Sendable<'a>> {
    match *piece {
        Piece::Bytes { start, length } => {
            let range = start as usize..start as usize + length as usize;
            transmit.bytes.get(range).map(|bytes| Sendable::Host(Segment::from_slice(bytes)))
        }
        Piece::Memory(granted) => memory.sendable(granted).ok(),
    }
}

/// Sends transmits whose bytes were fetched from a device for their checksums, but are not there any more: the link had
/// no room for them, or too many others came between.
#[cold]
fn send_from_devices(
    link: &mut Staged<Box<dyn Link>>,
    memory: &HostMemory,
    waiting: &[Transmit],
) -> Result<usize, SendError> {
    let whole = |transmit| -> Option<Vec<Sendable<'_>>> {
        let transmit: &Transmit = transmit;
        transmit.pieces.iter().map(|piece| sendable(memory, transmit, piece)).collect()
    };
    let pieces: Vec<Vec<Sendable<'_>>> = waiting.iter().map_while(whole).collect();
    let outgoing = waiting.iter().zip(&pieces).map(|(transmit, pieces)| OutgoingAnywhere {
        path: transmit.path,
        pieces,
        segment_bytes: transmit.segment_bytes,
        class: transmit.class,
        may_fragment: transmit.may_fragment,
    });
    let outgoing: Vec<OutgoingAnywhere<'_>> = outgoing.collect();
    // The first one's memory is gone: it is settled.
    if outgoing.is_empty() { Ok(1) } else { link.send_from_anywhere(&outgoing) }
}

/// The same memory for a vector of another lifetime: the standard library collects in place where the layouts are equal,
/// so nothing is allocated (`tests/allocation.rs`).
fn recycle<A, B>(mut from: Vec<A>) -> Vec<B> {
    from.clear();
    from.into_iter().filter_map(|_| None).collect()
}

/// Calls to end waits early, and those of them that a wait has heard. Counted under the NIC's lock.
#[derive(Default)]
pub(crate) struct Alarm {
    rung: AtomicU64,
    heard: AtomicU64,
}

impl Alarm {
    /// Ends waits that are under way, or else the next.
    pub(crate) fn ring(&self, core: &mut Core, woken: impl Fn(Awaited) -> bool) {
        self.rung.fetch_add(1, Ordering::AcqRel);
        core.wake(woken);
    }

    /// What a wait compares with: every call after this one is for it.
    fn begin(&self) -> u64 {
        self.heard.load(Ordering::Acquire)
    }

    fn has_rung_since(&self, begun: u64) -> bool {
        self.rung.load(Ordering::Acquire) != begun
    }

    /// Whether a wait that began there ends. Waits that begin later have nothing to do with the call.
    fn hear(&self, begun: u64) -> bool {
        let rung = self.rung.load(Ordering::Acquire);
        if rung != begun {
            self.heard.fetch_max(rung, Ordering::AcqRel);
        }
        rung != begun
    }
}

/// What one object (a queue, a counter) sleeps on; made when somebody first wants to sleep.
#[derive(Default)]
pub(crate) struct Waiter {
    set: OnceLock<Arc<WaitSet>>,
}

impl Waiter {
    /// Its descriptor's set. In automatic mode the link and the timeouts are the NIC thread's business.
    pub(crate) fn set(&self, nic: &Nic) -> Result<&Arc<WaitSet>> {
        if self.set.get().is_none() {
            let core = nic.lock();
            let manual = nic.progress == Progress::Manual;
            let set = WaitSet::new(&core.descriptors(manual)).map_err(Error::system("make a descriptor to wait on"))?;
            // Another thread may have been first; then its set is the one.
            let _ = self.set.set(Arc::new(set));
        }
        self.set.get().ok_or(Error::TimedOut)
    }

    /// Arms the descriptor unless what is awaited is there, or the alarm has rung. False: do not sleep.
    pub(crate) fn try_wait(&self, nic: &Nic, awaited: Awaited, alarm: &Alarm) -> Result<bool> {
        let begun = alarm.begin();
        let armed = self.try_arm(nic, awaited, Some((alarm, begun)))?;
        // A call is heard only by who found nothing else.
        if !armed && !nic.lock().is_ready(awaited) {
            alarm.hear(begun);
        }
        Ok(armed)
    }

    fn try_arm(&self, nic: &Nic, awaited: Awaited, alarm: Option<(&Alarm, u64)>) -> Result<bool> {
        let set = self.set(nic)?;
        let mut core = nic.lock_progressed();
        core.check()?;
        if core.is_ready(awaited) || alarm.is_some_and(|(alarm, begun)| alarm.has_rung_since(begun)) {
            return Ok(false);
        }
        core.arm(awaited, set, nic.progress == Progress::Manual);
        Ok(true)
    }

    /// Sleeps until `poll` gives something, or `timeout` has passed (`None`: for ever), or the alarm rings. Spins a little
    /// first: an answer of a peer that spins too comes sooner than a sleeper can be woken.
    pub(crate) fn wait<T>(
        &self,
        nic: &Nic,
        awaited: Awaited,
        alarm: Option<&Alarm>,
        timeout: Option<Duration>,
        mut poll: impl FnMut() -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let start = Instant::now();
        let alarm = alarm.map(|alarm| (alarm, alarm.begin()));
        let spin = if nic.progress == Progress::Manual { Duration::from_micros(SPIN_US) } else { Duration::ZERO };
        loop {
            if let Some(found) = poll()? {
                return Ok(Some(found));
            }
            if alarm.is_some_and(|(alarm, begun)| alarm.hear(begun)) {
                return Ok(None);
            }
            let passed = start.elapsed();
            let left = timeout.map(|timeout| timeout.saturating_sub(passed));
            if left == Some(Duration::ZERO) {
                return Ok(None);
            }
            if passed < spin {
                std::hint::spin_loop();
            } else if self.try_arm(nic, awaited, alarm)? {
                let set = self.set(nic)?;
                set.wait(left).map_err(Error::system("sleep"))?;
            }
        }
    }

    /// Sleeps until something happens that the caller would have to look at, for `timeout` at most.
    pub(crate) fn doze(&self, nic: &Nic, awaited: Awaited, timeout: Duration) {
        // Whatever fails here fails again, and is told, in the call that polls next.
        if let (Ok(true), Some(set)) = (self.try_arm(nic, awaited, None), self.set.get()) {
            let _ = set.wait(Some(timeout));
            nic.lock().disarm(set);
        }
    }

    /// The object is closed: nobody sleeps on it any more.
    pub(crate) fn close(&self, core: &mut Core) {
        if let Some(set) = self.set.get() {
            core.disarm(set);
        }
    }

    pub(crate) fn descriptor(&self, nic: &Nic) -> Result<BorrowedFd<'_>> {
        Ok(self.set(nic)?.as_fd())
    }
}
