//! The lock around everything of a NIC, which a program that keeps its calls apart by itself need not pay for.
//!
//! To take a mutex and give it back costs two atomic operations, about as much as putting a short message into a ring.
//! Programs that use a NIC from one thread, or have a lock of their own around it (libfabric's `FI_THREAD_DOMAIN`),
//! promise so with [`OneAtATime`]; then a word is looked at and set instead, which finds most broken promises, and all of
//! them in debug builds where two calls overlap.
//!
//! A thread of the NIC's own may come in besides ([`Lock::visit`]), rarely: it says so in a second word, has the kernel
//! make all other threads see that (`membarrier`), and waits until the first word is free. So the visitor pays for both.

use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering;

use crate::fork;
use crate::limits::LOCK_SPINS;
use crate::sync::{AtomicU32, barrier, compiler_fence, futex_wait, futex_wake, pause, register_barrier};

/// The promise that never two calls are inside of a [`Lock`] at a time.
#[derive(Debug)]
pub struct OneAtATime(());

impl OneAtATime {
    /// Makes the promise.
    ///
    /// # Safety
    /// Of everything that is made with it, and handles of that, calls of different threads (dropping a handle is one) do
    /// not overlap, and each sees what those before it did; but for calls that say that they may.
    #[must_use]
    pub unsafe fn promise() -> OneAtATime {
        OneAtATime(())
    }
}

/// Something that one call at a time may use.
///
/// The mutex is one of three states and two atomic operations; that of the standard library adds a look for panics at
/// both ends.
pub struct Lock<T> {
    promised: bool,
    /// [`FREE`], [`HELD`] or [`AWAITED`].
    state: AtomicU32,
    /// With a promise: whether a visitor is inside, or waits to be.
    visited: AtomicU32,
    /// How often somebody who is no visitor came in.
    entries: AtomicU32,
    /// Who held it in another process holds it no more ([`fork::generation`]).
    generation: AtomicU32,
    value: UnsafeCell<T>,
}

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and somebody may sleep until it is free.
const AWAITED: u32 = 2;

// SAFETY: a reference to the value is only made by the guard, and there is one guard at a time: the state, or the promise
// of whoever made an `OneAtATime`, sees to it. So the value goes from thread to thread, which needs `Send`.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// Any number of threads; without a promise they wait for each other.
    #[must_use]
    pub fn new(value: T, promised: Option<OneAtATime>) -> Lock<T> {
        // Where the kernel cannot help a visitor, a promise saves nothing.
        let promised = promised.is_some() && register_barrier();
        let (state, visited) = (AtomicU32::new(FREE), AtomicU32::new(0));
        let generation = AtomicU32::new(fork::generation());
        Lock { promised, state, visited, entries: AtomicU32::new(0), generation, value: UnsafeCell::new(value) }
    }

    /// Waits until nobody else is inside. Who panics inside leaves it free.
    #[inline(always)]
    pub fn lock(&self) -> Guard<'_, T> {
        if self.promised {
            self.enter();
        } else if self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.wait();
        }
        // Only who is inside changes it.
        self.entries.store(self.entries.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        Guard { lock: self, visitor: false, value: PhantomData }
    }

    /// As [`Lock::lock`], for a thread that those who made a promise do not know of.
    pub fn visit(&self) -> Guard<'_, T> {
        if !self.promised {
            if self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
                self.wait();
            }
            return Guard { lock: self, visitor: true, value: PhantomData };
        }
        while self.visited.compare_exchange(0, 1, Ordering::SeqCst, Ordering::Relaxed).is_err() {
            self.forget_ancestors();
            pause(LOCK_SPINS);
        }
        // From here on whoever enters sees the visitor, or is seen.
        barrier();
        let mut looks = 0;
        while self.state.load(Ordering::Acquire) != FREE {
            self.forget_ancestors();
            pause(looks);
            looks += 1;
        }
        Guard { lock: self, visitor: true, value: PhantomData }
    }

    /// As [`Lock::visit`], if nobody is inside.
    pub fn try_visit(&self) -> Option<Guard<'_, T>> {
        let word = if self.promised { &self.visited } else { &self.state };
        word.compare_exchange(FREE, HELD, Ordering::SeqCst, Ordering::Relaxed).ok()?;
        if self.promised {
            barrier();
        }
        if self.promised && self.state.load(Ordering::Acquire) != FREE {
            self.visited.store(FREE, Ordering::Release);
            return None;
        }
        Some(Guard { lock: self, visitor: true, value: PhantomData })
    }

    /// Changes when somebody comes in who is no visitor.
    #[must_use]
    pub fn entries(&self) -> u32 {
        self.entries.load(Ordering::Relaxed)
    }

    /// Whether callers have promised to come one at a time.
    #[must_use]
    pub fn is_promised(&self) -> bool {
        self.promised
    }

    #[inline(always)]
    fn enter(&self) {
        loop {
            let state = if cfg!(debug_assertions) {
                self.state.swap(HELD, Ordering::Acquire)
            } else {
                // Not one step: who comes from another thread at the same moment has broken the promise.
                let state = self.state.load(Ordering::Relaxed);
                self.state.store(HELD, Ordering::Relaxed);
                state
            };
            if state != FREE && !self.forget_ancestors() {
                broken();
            }
            // The visitor's barrier makes an order for the processor of what the compiler must not turn around.
            compiler_fence(Ordering::SeqCst);
            if self.visited.load(Ordering::Acquire) == 0 {
                return;
            }
            self.state.store(FREE, Ordering::Release);
            self.wait_for_visitor();
        }
    }

    #[cold]
    fn wait_for_visitor(&self) {
        let mut looks = 0;
        while self.visited.load(Ordering::Acquire) != 0 {
            self.forget_ancestors();
            pause(looks);
            looks += 1;
        }
    }

    /// In a child of `fork`, which has none of the threads that may have been inside: it is free. True: it was so.
    /// A child may let go of what it inherited from one thread, and nothing else.
    #[cold]
    fn forget_ancestors(&self) -> bool {
        let now = fork::generation();
        let inherited = self.generation.swap(now, Ordering::Relaxed) != now;
        if inherited {
            self.visited.store(0, Ordering::Release);
            self.state.store(FREE, Ordering::Release);
        }
        inherited
    }

    #[cold]
    fn wait(&self) {
        self.forget_ancestors();
        for looks in 0..LOCK_SPINS {
            if self.state.load(Ordering::Relaxed) == FREE
                && self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return;
            }
            pause(looks);
        }
        // Who has slept cannot know whether others do: it leaves the state that wakes them.
        while self.state.swap(AWAITED, Ordering::Acquire) != FREE {
            // It returns when it was woken, when the word has changed, or for no reason: the loop looks again.
            futex_wait(&self.state, AWAITED);
        }
    }

    #[inline]
    fn leave(&self, visitor: bool) {
        if self.promised {
            let word = if visitor { &self.visited } else { &self.state };
            word.store(FREE, Ordering::Release);
        } else if self.state.swap(FREE, Ordering::Release) == AWAITED {
            futex_wake(&self.state);
        }
    }
}

#[cold]
#[expect(
    clippy::panic,
    reason = "to go on would be undefined behaviour, and the caller promised that it cannot happen"
)]
fn broken() -> ! {
    panic!(
        "two calls at a time are inside of a domain that was promised one: give it a lock, or call it from one place"
    );
}

impl<T> fmt::Debug for Lock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lock({})", if self.is_promised() { "promised" } else { "mutex" })
    }
}

/// Inside of a [`Lock`].
pub struct Guard<'a, T> {
    lock: &'a Lock<T>,
    visitor: bool,
    /// It is as good as this, for other threads too.
    value: PhantomData<&'a mut T>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: there is one guard at a time, see `Lock`.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: there is one guard at a time, see `Lock`.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.leave(self.visitor);
    }
}

#[cfg(all(test, loom))]
mod loom_tests;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_mutex_keeps_threads_apart() {
        let lock = Lock::new(0u64, None);
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| (0..1000).for_each(|_| *lock.lock() += 1));
            }
        });
        assert_eq!(*lock.lock(), 4000);
        assert!(!lock.is_promised());
    }

    #[test]
    fn visitors_and_who_promised_are_kept_apart() {
        // SAFETY: one thread calls, the others visit.
        let lock = Lock::new([0u64; 8], Some(unsafe { OneAtATime::promise() }));
        let change = |values: &mut [u64; 8]| {
            assert!(values.iter().all(|value| *value == values[0]), "torn: {values:?}");
            for value in values {
                *value += 1;
                std::hint::black_box(value);
            }
        };
        std::thread::scope(|threads| {
            let visitor = || (0..2000).for_each(|_| change(&mut lock.visit()));
            let visitors = [threads.spawn(visitor), threads.spawn(visitor)];
            let mut calls = 0;
            while visitors.iter().any(|visitor| !visitor.is_finished()) || calls < 1000 {
                change(&mut lock.lock());
                calls += 1;
            }
            assert_eq!((lock.lock()[0], lock.entries()), (4000 + u64::from(calls), calls + 1));
        });
    }

    #[test]
    fn who_only_tries_to_visit_never_waits() {
        // SAFETY: one thread calls.
        for promised in [None, Some(unsafe { OneAtATime::promise() })] {
            let lock = Lock::new(0u64, promised);
            let inside = lock.lock();
            assert!(lock.try_visit().is_none(), "a caller is inside");
            drop(inside);
            let mut visitor = lock.try_visit().unwrap();
            *visitor += 1;
            assert!(lock.try_visit().is_none(), "a visitor is inside");
            drop(visitor);
            assert_eq!(*lock.lock(), 1);
        }
    }

    #[test]
    fn a_broken_promise_is_noticed() {
        // SAFETY: the second call comes from inside of the first, and is refused before it sees the value.
        let lock = Lock::new(1u64, Some(unsafe { OneAtATime::promise() }));
        *lock.lock() += 1;
        let inside = lock.lock();
        let second = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| *lock.lock()));
        assert!(second.is_err());
        drop(inside);
        assert_eq!(*lock.lock(), 2);
    }
}
