//! How threads that poll, and find nothing, share the processor with those that they wait for.
//!
//! A program of manual progress polls. Alone on its processor it should go on, since nothing is sooner than a look. Where
//! more threads than processors want to run, each look that finds nothing keeps others from running, and with them what
//! is waited for: a blocking send of an MPI library that never yields takes a slice of the scheduler, some milliseconds,
//! for each turn of its peer. So who has found nothing for a while gives the processor away, and notices how long it was
//! gone:
//!
//! | the processor came back | others that run here | next time |
//! |---|---|---|
//! | at once | none | looks go on for [`SPIN_TICKS`] before it is given away again |
//! | soon | some that give it away as well, as the other ranks of a program do | it is given away after a few looks, until [`SHARED_YIELDS`] in a row were for nobody |
//! | late, [`LATE_YIELDS`] times in a row | some that do not | sleep, as long as nothing happens but [`SLEEP_MAX_US`] at most: who sleeps is woken by what it waits for, and comes before those that run all the time |
//!
//! A thread that polls several NICs may wait for one that it would keep from progress: it only yields.
//!
//! Several threads that poll one NIC take turns by a lock of their program's, and each poll is made inside of it (MPICH).
//! To give the processor away there keeps all others from running, and such programs give it away by themselves, without
//! the lock. So those polls yield rarely: see [`THREADS_SPIN_TICKS`].

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use weft_link::wait::ticks;

use crate::driver::{Awaited, Nic, Waiter};
use crate::limits::{
    POLL_LATE_TICKS, POLL_LATE_YIELDS as LATE_YIELDS, POLL_LINK_LOOKS, POLL_LOOKS, POLL_REMEMBER_TICKS,
    POLL_SHARED_TICKS, POLL_SHARED_YIELDS as SHARED_YIELDS, POLL_SLEEP_MAX_US as SLEEP_MAX_US,
    POLL_SPIN_TICKS as SPIN_TICKS, POLL_THREADS_SPIN_TICKS as THREADS_SPIN_TICKS,
};

/// What the polls of one NIC have found lately. Threads that poll at once may mix up their counts, which only changes when
/// they yield.
#[derive(Default)]
pub(crate) struct PollBackoff {
    /// Looks in a row that found nothing, those at the link [`POLL_LINK_LOOKS`] times.
    empty: AtomicU32,
    /// When the first of them was looked at.
    since: AtomicU64,
    /// Yields in a row that took long.
    late: AtomicU32,
    /// For how many more yields others are expected that yield too. It is no time: an interrupt in one of a thread that is
    /// alone would have it yield for that long, and meet the next interrupt in one of those.
    shared: AtomicU32,
    /// Until when others are expected that do not.
    crowded_until: AtomicU64,
    /// The thread that last polled in vain for a while, and until when others are expected to poll as well.
    thread: AtomicUsize,
    threads_until: AtomicU64,
    /// Whether the processor was shared with others when it was last given away.
    is_shared: Arc<AtomicBool>,
    /// A thread sleeps here.
    taken: AtomicBool,
    waiter: Waiter,
}

thread_local! {
    /// The NIC that this thread last polled in vain for long.
    static LAST: Cell<usize> = const { Cell::new(0) };
}

/// What to do about a poll that found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Look,
    Yield,
    Sleep,
}

impl PollBackoff {
    /// Makes what a thread sleeps on, before descriptors can run out. Without it polls only yield.
    pub(crate) fn prepare(&self, nic: &Nic) {
        let _ = self.waiter.set(nic);
    }

    /// Says whether others want this processor too.
    pub(crate) fn is_shared(&self) -> Arc<AtomicBool> {
        self.is_shared.clone()
    }

    /// A poll has found something, or something was done for a peer.
    #[inline]
    pub(crate) fn reset(&self) {
        self.empty.store(0, Ordering::Relaxed);
    }

    /// A poll has found nothing; `awaited` is what it would have found. `asked_link`: it has cost a system call. No lock may
    /// be held.
    #[inline]
    pub(crate) fn found_nothing(&self, nic: &Nic, awaited: Awaited, asked_link: bool) {
        let before = self.empty.load(Ordering::Relaxed);
        let empty = before.wrapping_add(if asked_link { POLL_LINK_LOOKS } else { 1 });
        self.empty.store(empty, Ordering::Relaxed);
        if before / POLL_LOOKS != empty / POLL_LOOKS {
            self.found_nothing_often(nic, awaited, empty / POLL_LOOKS);
        }
    }

    #[cold]
    fn found_nothing_often(&self, nic: &Nic, awaited: Awaited, times: u32) {
        let now = ticks();
        let this = std::ptr::from_ref(nic).addr();
        let alone = LAST.replace(this) == this;
        self.polled_by(LAST.with(|last| std::ptr::from_ref(last).addr()), now);
        match self.step(now, times, alone) {
            Step::Look => {}
            Step::Yield => {
                std::thread::yield_now();
                self.was_away(now, ticks());
            }
            Step::Sleep => {
                if self.taken.swap(true, Ordering::Acquire) {
                    return std::thread::yield_now();
                }
                self.waiter.doze(nic, awaited, Duration::from_micros(SLEEP_MAX_US));
                self.taken.store(false, Ordering::Release);
            }
        }
    }

    /// `thread` is a number that no other living thread has.
    fn polled_by(&self, thread: usize, now: u64) {
        let last = self.thread.swap(thread, Ordering::Relaxed);
        if last != thread && last != 0 {
            self.threads_until.store(now + POLL_REMEMBER_TICKS, Ordering::Relaxed);
        }
    }

    /// `times`: that nothing was found often.
    fn step(&self, now: u64, times: u32, alone: bool) -> Step {
        let is_before = |until: &AtomicU64| now < until.load(Ordering::Relaxed);
        if is_before(&self.threads_until) {
            let since = self.since.load(Ordering::Relaxed);
            if times > 1 && now.wrapping_sub(since) < THREADS_SPIN_TICKS {
                return Step::Look;
            }
            self.since.store(now, Ordering::Relaxed);
            return if times > 1 { Step::Yield } else { Step::Look };
        }
        if is_before(&self.crowded_until) {
            return if alone { Step::Sleep } else { Step::Yield };
        }
        if self.shared.load(Ordering::Relaxed) > 0 {
            return Step::Yield;
        }
        if times == 1 {
            self.since.store(now, Ordering::Relaxed);
        }
        if now.wrapping_sub(self.since.load(Ordering::Relaxed)) >= SPIN_TICKS { Step::Yield } else { Step::Look }
    }

    /// The processor was given away and is back.
    fn was_away(&self, from: u64, to: u64) {
        let away = to.wrapping_sub(from);
        // Among others that yield, one of them may have nothing to do just now.
        let shared = if away >= POLL_SHARED_TICKS {
            SHARED_YIELDS
        } else {
            self.shared.load(Ordering::Relaxed).saturating_sub(1)
        };
        self.shared.store(shared, Ordering::Relaxed);
        self.is_shared.store(shared > 0, Ordering::Relaxed);
        let late = if away >= POLL_LATE_TICKS { self.late.load(Ordering::Relaxed).saturating_add(1) } else { 0 };
        self.late.store(late, Ordering::Relaxed);
        if late >= LATE_YIELDS {
            self.crowded_until.store(to + POLL_REMEMBER_TICKS, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_then_yields_then_sleeps_among_others_that_run() {
        let backoff = PollBackoff::default();
        let mut now = 1_000_000;
        assert_eq!(backoff.step(now, 1, true), Step::Look);
        now += SPIN_TICKS / 2;
        assert_eq!(backoff.step(now, 2, true), Step::Look);
        now += SPIN_TICKS / 2;
        assert_eq!(backoff.step(now, 3, true), Step::Yield);
        // Nobody else wants to run: the next wait begins with looks.
        backoff.was_away(now, now + POLL_SHARED_TICKS - 1);
        assert_eq!(backoff.step(now, 1, true), Step::Look);
        // Others that yield: so does this one, at once, until they are gone.
        backoff.was_away(now, now + POLL_SHARED_TICKS);
        for _ in 0..SHARED_YIELDS {
            assert_eq!(backoff.step(now, 1, true), Step::Yield);
            backoff.was_away(now, now + POLL_SHARED_TICKS - 1);
        }
        assert_eq!(backoff.step(now, 1, true), Step::Look);
        backoff.was_away(now, now + POLL_SHARED_TICKS);
        assert_eq!(backoff.step(now, 1, true), Step::Yield);
        // One that was at work for long is none that does not yield.
        for _ in 1..LATE_YIELDS {
            backoff.was_away(now, now + POLL_LATE_TICKS);
        }
        backoff.was_away(now, now + POLL_LATE_TICKS - 1);
        for _ in 0..LATE_YIELDS {
            assert_eq!(backoff.step(now, 1, true), Step::Yield);
            backoff.was_away(now, now + POLL_LATE_TICKS);
        }
        // Others that do not: it sleeps, but not where another NIC may be what it waits for.
        assert_eq!(backoff.step(now, 1, true), Step::Sleep);
        assert_eq!(backoff.step(now, 1, false), Step::Yield);
        // That is forgotten after a while, but not that they were there.
        now += POLL_LATE_TICKS + POLL_REMEMBER_TICKS;
        assert_eq!(backoff.step(now, 1, true), Step::Yield);
        backoff.was_away(now, now + POLL_LATE_TICKS);
        assert_eq!(backoff.step(now, 1, true), Step::Sleep);
    }

    #[test]
    fn threads_that_take_turns_yield_rarely() {
        let backoff = PollBackoff::default();
        let mut now = 1_000_000;
        // Others run here, and a single thread would yield at once.
        backoff.polled_by(1, now);
        backoff.was_away(now, now + POLL_SHARED_TICKS);
        assert_eq!(backoff.step(now, 1, true), Step::Yield);
        backoff.polled_by(2, now);
        assert_eq!(backoff.step(now, 1, true), Step::Look);
        assert_eq!(backoff.step(now + THREADS_SPIN_TICKS - 1, 2, true), Step::Look);
        now += THREADS_SPIN_TICKS;
        assert_eq!(backoff.step(now, 3, true), Step::Yield);
        assert_eq!(backoff.step(now + 1, 4, true), Step::Look);
        // A thread that has polled alone for a while is alone.
        now += POLL_REMEMBER_TICKS;
        backoff.polled_by(2, now);
        backoff.was_away(now, now + POLL_SHARED_TICKS);
        assert_eq!(backoff.step(now, 1, true), Step::Yield);
    }
}
