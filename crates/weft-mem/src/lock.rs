//! The lock around everything of a NIC, which a program that keeps its calls apart by itself need not pay for.
//!
//! To take a mutex and give it back costs two atomic operations, about as much as putting a short message into a ring.
//! Programs that use a NIC from one thread, or have a lock of their own around it (libfabric's `FI_THREAD_DOMAIN`),
//! promise so with [`OneAtATime`]; then a word is looked at and set instead, which finds most broken promises, and all of
//! them in debug builds where two calls overlap.

use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::limits::LOCK_SPINS;

/// The promise that never two calls are inside of a [`Lock`] at a time.
#[derive(Debug)]
pub struct OneAtATime(());

impl OneAtATime {
    /// Makes the promise.
    ///
    /// # Safety
    /// Of everything that is made with it, and handles of that, calls of different threads (dropping a handle is one) do
    /// not overlap, and each sees what those before it did.
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
        Lock { promised: promised.is_some(), state: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }

    /// Waits until nobody else is inside. Who panics inside leaves it free.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        if self.promised {
            self.enter();
        } else if self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.wait();
        }
        Guard { lock: self, value: PhantomData }
    }

    /// Whether callers have promised to come one at a time.
    #[must_use]
    pub fn is_promised(&self) -> bool {
        self.promised
    }

    #[inline]
    fn enter(&self) {
        let state = if cfg!(debug_assertions) {
            self.state.swap(HELD, Ordering::Acquire)
        } else {
            // Not one step: who comes from another thread at the same moment has broken the promise.
            let state = self.state.load(Ordering::Relaxed);
            self.state.store(HELD, Ordering::Relaxed);
            state
        };
        if state != FREE {
            broken();
        }
    }

    #[cold]
    fn wait(&self) {
        for _ in 0..LOCK_SPINS {
            if self.state.load(Ordering::Relaxed) == FREE
                && self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return;
            }
            std::hint::spin_loop();
        }
        // Who has slept cannot know whether others do: it leaves the state that wakes them.
        while self.state.swap(AWAITED, Ordering::Acquire) != FREE {
            // SAFETY: the word lives as long as this borrow. The call returns when it was woken, when the word is not
            // `AWAITED` any more, or for no reason: the loop looks again.
            unsafe {
                libc::syscall(
                    libc::SYS_futex,
                    self.state.as_ptr(),
                    libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
                    AWAITED,
                    std::ptr::null::<libc::timespec>(),
                );
            }
        }
    }

    #[inline]
    fn leave(&self) {
        if self.promised {
            self.state.store(FREE, Ordering::Release);
        } else if self.state.swap(FREE, Ordering::Release) == AWAITED {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        // SAFETY: only the address is used; who sleeps there is one of `wait`.
        unsafe {
            libc::syscall(libc::SYS_futex, self.state.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1);
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
        self.lock.leave();
    }
}

#[cfg(test)]
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
