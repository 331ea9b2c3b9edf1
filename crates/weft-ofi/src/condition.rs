//! Conditions: mutex and condition variable, for programs that sleep on those.
//!
//! Somebody must signal the condition when there is something to read: a thread, which sleeps on the object's descriptor
//! from when `fi_trywait` said that sleep is safe. A program that holds the mutex from `fi_trywait` to
//! `pthread_cond_wait` misses nothing: the thread takes the mutex before it signals.

use std::cell::UnsafeCell;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use weft_link::wait::{Signal, wait_readable};

use crate::abi::*;
use crate::guard::Result;
use crate::limits::CONDITION_LOCK_MS;
use crate::log;

/// A mutex and condition, and the thread that signals it.
pub(crate) struct Condition {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Of the process that has the thread.
    generation: u32,
}

struct Shared {
    mutex: UnsafeCell<libc::pthread_mutex_t>,
    condition: UnsafeCell<libc::pthread_cond_t>,
    /// What is watched: a duplicate, so that it lives as long as the thread.
    watched: OwnedFd,
    /// The thread shall look at the descriptor, or end.
    told: Signal,
    ends: AtomicBool,
}

// SAFETY: mutex and condition are made for threads; the rest is safe anyway.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Condition {
    /// Starts a thread that watches this descriptor.
    pub(crate) fn start(descriptor: RawFd) -> Result<Condition> {
        let number = |error: std::io::Error| -error.raw_os_error().unwrap_or(FI_EMFILE);
        // SAFETY: no memory is involved.
        let duplicate = unsafe { libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, 0) };
        if duplicate < 0 {
            return Err(number(std::io::Error::last_os_error()));
        }
        let shared = Arc::new(Shared {
            mutex: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER),
            condition: UnsafeCell::new(libc::PTHREAD_COND_INITIALIZER),
            // SAFETY: it was just opened, and nobody else has it.
            watched: unsafe { OwnedFd::from_raw_fd(duplicate) },
            told: Signal::new().map_err(number)?,
            ends: AtomicBool::new(false),
        });
        let thread = without_signals(|| {
            let shared = shared.clone();
            std::thread::Builder::new().name("weft-condition".to_owned()).spawn(move || shared.run())
        });
        let thread = thread.map_err(|error| {
            log::warning!(CORE, "cannot start a thread for a condition: {error}");
            number(error)
        })?;
        Ok(Condition { shared, thread: Some(thread), generation: weft_mem::fork::generation() })
    }

    /// What the program sleeps on.
    pub(crate) fn pair(&self) -> fi_mutex_cond {
        fi_mutex_cond { mutex: self.shared.mutex.get(), cond: self.shared.condition.get() }
    }

    /// From now on the condition is signalled, once, when the descriptor is readable.
    pub(crate) fn watch(&self) {
        self.shared.told.set();
    }
}

impl Drop for Condition {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Release);
        self.shared.told.set();
        if let Some(thread) = self.thread.take() {
            if self.generation == weft_mem::fork::generation() {
                // It cannot have panicked: nothing in it does.
                let _ = thread.join();
            } else {
                // It is the parent's.
                std::mem::forget(thread);
            }
        }
    }
}

impl Shared {
    fn ends(&self) -> bool {
        self.ends.load(Ordering::Acquire)
    }

    fn run(&self) {
        while !self.ends() {
            if wait_readable(self.told.as_fd(), None).is_err() {
                return;
            }
            self.told.clear();
            let entry = |descriptor| libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
            let mut polled = [entry(self.watched.as_raw_fd()), entry(self.told.as_fd().as_raw_fd())];
            if self.ends() {
                return;
            }
            // SAFETY: two valid entries.
            unsafe { libc::poll(polled.as_mut_ptr(), 2, -1) };
            if polled.first().is_some_and(|watched| watched.revents != 0) {
                self.signal();
            }
        }
    }

    /// Signals everybody who sleeps; waits for the mutex unless it shall end.
    fn signal(&self) {
        while !self.ends() {
            let until = soon(Duration::from_millis(CONDITION_LOCK_MS));
            // SAFETY: both live as long as `self`, and the mutex is unlocked by who locked it.
            unsafe {
                match libc::pthread_mutex_timedlock(self.mutex.get(), &raw const until) {
                    0 => {
                        libc::pthread_cond_broadcast(self.condition.get());
                        libc::pthread_mutex_unlock(self.mutex.get());
                        return;
                    }
                    libc::ETIMEDOUT => {}
                    _ => return,
                }
            }
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the thread has ended, and the program has closed the object, so nobody uses them any more.
        unsafe {
            libc::pthread_cond_destroy(self.condition.get());
            libc::pthread_mutex_destroy(self.mutex.get());
        }
    }
}

/// A time of the clock that mutexes go by.
fn soon(after: Duration) -> libc::timespec {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid structure that lives through the call.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut time) };
    let nanoseconds = time.tv_nsec + libc::c_long::from(after.subsec_nanos());
    time.tv_sec += after.as_secs() as libc::time_t + nanoseconds / 1_000_000_000;
    time.tv_nsec = nanoseconds % 1_000_000_000;
    time
}

/// Starts a thread that handles no signals of the program: those are for its own threads.
fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    // SAFETY: both sets are valid structures that live through the calls; a mask of all signals can be set by anybody.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let result = start();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        result
    }
}
