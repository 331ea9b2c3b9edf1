//! Buffers over memory that is borrowed for a while, without a copy.
//!
//! The contract, and who upholds it: [`scope`] does not return, nor unwind, while a [`Buffer`] that was lent in it is
//! alive anywhere. A buffer counts itself when it is made and when it is dropped, so a leaked one can only make [`scope`]
//! wait for ever. All of that is in this file; callers can do nothing wrong but wait too long.

use std::fmt;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::buffer::Buffer;

/// Runs `f`, which can lend memory that lives longer than this call; then calls `settle` again and again until every
/// buffer that was lent has been dropped. `settle` has to bring that about, and may sleep a little.
///
/// A panic of `f` goes on after that. A panic of `settle` ends the process, as there is no way to go on safely.
pub fn scope<'env, R>(mut settle: impl FnMut(&Outstanding), f: impl FnOnce(&Loans<'env>) -> R) -> R {
    let loans = Loans { outstanding: Arc::new(Outstanding { count: AtomicUsize::new(0) }), env: PhantomData };
    let result = catch_unwind(AssertUnwindSafe(|| f(&loans)));
    let abort = AbortOnDrop;
    while loans.outstanding.count() > 0 {
        settle(&loans.outstanding);
    }
    std::mem::forget(abort);
    result.unwrap_or_else(|panic| resume_unwind(panic))
}

/// Lends memory that lives for `'env`, inside of a [`scope`].
pub struct Loans<'env> {
    outstanding: Arc<Outstanding>,
    /// `'env` must be neither longer nor shorter than what the caller of `scope` knows to outlive it.
    env: PhantomData<&'env mut &'env ()>,
}

impl<'env> Loans<'env> {
    /// A buffer over bytes that are only read.
    #[must_use]
    pub fn read_only(&self, bytes: &'env [u8]) -> Buffer {
        // SAFETY: the bytes live and are not written for `'env`, which outlives `scope`, which outlives the loan.
        unsafe { Buffer::lent(bytes.as_ptr().cast_mut(), bytes.len(), false, self.loan()) }
    }

    /// A buffer over bytes that are read and written.
    #[must_use]
    pub fn writable(&self, bytes: &'env mut [u8]) -> Buffer {
        // SAFETY: nobody else can touch the bytes for `'env`, which outlives `scope`, which outlives the loan.
        unsafe { Buffer::lent(bytes.as_mut_ptr(), bytes.len(), true, self.loan()) }
    }

    /// How many loans are out.
    #[must_use]
    pub fn outstanding(&self) -> &Outstanding {
        &self.outstanding
    }

    fn loan(&self) -> Loan {
        self.outstanding.count.fetch_add(1, Ordering::Relaxed);
        Loan { outstanding: self.outstanding.clone() }
    }
}

impl fmt::Debug for Loans<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Loans({} outstanding)", self.outstanding.count())
    }
}

/// The buffers of a [`scope`] that are alive.
#[derive(Debug)]
pub struct Outstanding {
    count: AtomicUsize,
}

impl Outstanding {
    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        // With the release of the loan's end: what was done through it is seen by who sees that it ended.
        self.count.load(Ordering::Acquire)
    }
}

/// Part of a lent buffer: the loan ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Loan {
    outstanding: Arc<Outstanding>,
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.outstanding.count.fetch_sub(1, Ordering::Release);
    }
}

struct AbortOnDrop;

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        eprintln!("weft: a panic while borrowed memory is in use cannot be survived");
        std::process::abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaving_waits_for_every_loan() {
        let (from, mut to) = (vec![7; 100], vec![0; 100]);
        let mut kept = Vec::new();
        let mut settled = 0;
        let held = std::sync::Mutex::new(&mut kept);
        scope(
            |outstanding| {
                settled += 1;
                assert_eq!(outstanding.count(), 3 - settled);
                held.lock().unwrap().pop();
            },
            |loans| {
                let mut held = held.lock().unwrap();
                held.push(loans.read_only(&from));
                held.push(loans.writable(&mut to));
                assert!(!held[0].is_writable() && held[1].is_writable());
                assert!(held[0].is_borrowed() && !Buffer::from(vec![1]).is_borrowed());
            },
        );
        assert_eq!(settled, 2);
        assert!(kept.is_empty());
    }

    #[test]
    fn a_list_borrows_when_a_part_does() {
        let bytes = [1, 2, 3];
        scope(
            |_| {},
            |loans| {
                let list = Buffer::from(vec![Buffer::from(vec![0]), loans.read_only(&bytes)]);
                assert!(list.is_borrowed() && !list.is_writable());
                let mut read = [9; 4];
                list.read(0, &mut read).unwrap();
                assert_eq!(read, [0, 1, 2, 3]);
            },
        );
    }

    #[test]
    fn a_panic_waits_too() {
        let bytes = vec![7; 100];
        let held = std::sync::Mutex::new(None);
        let result = catch_unwind(AssertUnwindSafe(|| {
            scope(
                |_| *held.lock().unwrap() = None,
                |loans| {
                    *held.lock().unwrap() = Some(loans.read_only(&bytes));
                    panic!("on purpose");
                },
            );
        }));
        assert!(result.is_err());
        assert!(held.lock().unwrap().is_none());
    }
}
