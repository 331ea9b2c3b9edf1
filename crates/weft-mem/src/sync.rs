//! Atomics, process-wide barriers and futexes of the lock. `RUSTFLAGS="--cfg loom"` puts models in their place.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, compiler_fence};

#[cfg(loom)]
pub(crate) use model::{AtomicU32, barrier, compiler_fence, futex_wait, futex_wake, pause, register_barrier};
#[cfg(not(loom))]
pub(crate) use system::{barrier, futex_wait, futex_wake, pause, register_barrier};

/// What the kernel does.
#[cfg(not(loom))]
mod system {
    use super::AtomicU32;
    use crate::limits::LOCK_SPINS;

    /// Makes [`barrier`] possible in this process; false: it is not.
    pub(crate) fn register_barrier() -> bool {
        // SAFETY: the call takes no pointers.
        unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0 }
    }

    /// A full barrier in all threads of this process that run.
    pub(crate) fn barrier() {
        // SAFETY: the call takes no pointers. It cannot fail where it was registered, which is when a promise counts.
        unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) };
    }

    /// Between two looks at a word: another processor may change it soon, or another thread needs this one.
    pub(crate) fn pause(looks: u32) {
        if looks < LOCK_SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
    }

    /// Sleeps until the word is woken, unless it has another value. It may return for no reason.
    pub(crate) fn futex_wait(word: &AtomicU32, value: u32) {
        // SAFETY: the word lives as long as this borrow, and the call only reads it.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                word.as_ptr(),
                libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
                value,
                std::ptr::null::<libc::timespec>(),
            );
        }
    }

    /// Wakes one of those that sleep on the word.
    pub(crate) fn futex_wake(word: &AtomicU32) {
        // SAFETY: only the address is used.
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1) };
    }
}

/// What the kernel does, for loom, which knows neither interrupts nor futexes.
///
/// `membarrier` interrupts every thread that runs, wherever it is, and has it execute a fence; it returns when all have.
/// Here a thread that takes part ([`Thread`](model::Thread)) is interrupted before any of its accesses: it looks whether
/// somebody asked, executes the fence, and says so. Whoever runs a barrier waits for that. A thread that sleeps or has ended is
/// not waited for, and executes a fence when it goes on, as a change of threads does.
#[cfg(loom)]
pub mod model {
    use std::cell::Cell;

    use loom::sync::atomic::{self, Ordering, fence};
    use loom::sync::{Condvar, Mutex};

    const THREADS: usize = 2;

    struct Interrupts {
        asked: [atomic::AtomicU32; THREADS],
        answered: [atomic::AtomicU32; THREADS],
        runs: [atomic::AtomicBool; THREADS],
    }

    loom::lazy_static! {
        static ref INTERRUPTS: Interrupts = Interrupts {
            asked: [atomic::AtomicU32::new(0), atomic::AtomicU32::new(0)],
            answered: [atomic::AtomicU32::new(0), atomic::AtomicU32::new(0)],
            runs: [atomic::AtomicBool::new(false), atomic::AtomicBool::new(false)],
        };
        /// Of all words: a thread that is woken for another one's sake looks again.
        static ref SLEEPERS: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());
    }

    loom::thread_local! {
        static SELF: Cell<Option<usize>> = Cell::new(None);
    }

    /// While it lives, barriers of others reach this thread.
    #[derive(Debug)]
    pub struct Thread(usize);

    impl Thread {
        /// Each thread has another number, below 2.
        #[must_use]
        pub fn begin(number: usize) -> Thread {
            SELF.with(|this| this.set(Some(number)));
            run(number);
            Thread(number)
        }

        /// Sleeps by `sleep`.
        pub fn sleep(&self, sleep: impl FnOnce()) {
            stop(self.0);
            sleep();
            run(self.0);
        }
    }

    impl Drop for Thread {
        fn drop(&mut self) {
            stop(self.0);
            SELF.with(|this| this.set(None));
        }
    }

    fn run(number: usize) {
        INTERRUPTS.runs[number].store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    fn stop(number: usize) {
        fence(Ordering::SeqCst);
        INTERRUPTS.runs[number].store(false, Ordering::SeqCst);
    }

    /// A place where a barrier of another thread may come in.
    pub fn interrupt() {
        let Some(this) = SELF.with(Cell::get) else { return };
        let asked = INTERRUPTS.asked[this].load(Ordering::SeqCst);
        if asked != INTERRUPTS.answered[this].load(Ordering::Relaxed) {
            fence(Ordering::SeqCst);
            INTERRUPTS.answered[this].store(asked, Ordering::SeqCst);
        }
    }

    pub(crate) fn register_barrier() -> bool {
        true
    }

    /// A full barrier in all threads that run.
    pub fn barrier() {
        let this = SELF.with(Cell::get);
        fence(Ordering::SeqCst);
        for other in (0..THREADS).filter(|other| Some(*other) != this) {
            let number = INTERRUPTS.asked[other].fetch_add(1, Ordering::SeqCst) + 1;
            while INTERRUPTS.runs[other].load(Ordering::SeqCst)
                && INTERRUPTS.answered[other].load(Ordering::SeqCst) < number
            {
                interrupt();
                loom::thread::yield_now();
            }
        }
        fence(Ordering::SeqCst);
    }

    /// A fence for the compiler is none for the processor.
    pub(crate) fn compiler_fence(_: Ordering) {}

    #[derive(Debug)]
    pub(crate) struct AtomicU32(atomic::AtomicU32);

    impl AtomicU32 {
        pub(crate) fn new(value: u32) -> AtomicU32 {
            AtomicU32(atomic::AtomicU32::new(value))
        }

        pub(crate) fn load(&self, order: Ordering) -> u32 {
            interrupt();
            self.0.load(order)
        }

        pub(crate) fn store(&self, value: u32, order: Ordering) {
            interrupt();
            self.0.store(value, order);
        }

        pub(crate) fn swap(&self, value: u32, order: Ordering) -> u32 {
            interrupt();
            self.0.swap(value, order)
        }

        pub(crate) fn compare_exchange(&self, from: u32, to: u32, yes: Ordering, no: Ordering) -> Result<u32, u32> {
            interrupt();
            self.0.compare_exchange(from, to, yes, no)
        }
    }

    pub(crate) fn pause(_: u32) {
        interrupt();
        loom::thread::yield_now();
    }

    pub(crate) fn futex_wait(word: &AtomicU32, value: u32) {
        let this = SELF.with(Cell::get);
        let guard = SLEEPERS.0.lock().unwrap();
        if word.0.load(Ordering::SeqCst) == value {
            this.into_iter().for_each(stop);
            drop(SLEEPERS.1.wait(guard).unwrap());
            this.into_iter().for_each(run);
        }
    }

    pub(crate) fn futex_wake(_: &AtomicU32) {
        let _guard = SLEEPERS.0.lock().unwrap();
        SLEEPERS.1.notify_one();
    }
}
