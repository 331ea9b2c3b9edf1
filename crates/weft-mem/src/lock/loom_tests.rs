//! Every interleaving of two threads at a lock, and every value that a load may give in the memory model.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p weft-mem --lib loom_tests` runs it. Loom reports two threads that are
//! inside at the same time, as accesses to one cell that overlap or have no order.

use std::sync::Arc;

use loom::cell::UnsafeCell;

use super::{Lock, OneAtATime};
use crate::sync::model::Thread;

/// Preemptions that loom tries in one run; more find nothing that these do not, and take for ever.
const PREEMPTIONS: usize = 3;

fn check(test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(test);
}

/// Something that only one thread may use at a time.
type Cell = UnsafeCell<u32>;

fn add(cell: &Cell) {
    // SAFETY: loom says so if another thread is at it.
    cell.with_mut(|value| unsafe { *value += 1 });
}

fn value(cell: &Cell) -> u32 {
    // SAFETY: as above.
    cell.with(|value| unsafe { *value })
}

fn locked(promised: bool) -> Arc<Lock<Cell>> {
    // SAFETY: in each test one thread calls, the other visits.
    let promise = promised.then(|| unsafe { OneAtATime::promise() });
    Arc::new(Lock::new(UnsafeCell::new(0), promise))
}

/// Two threads; the second one visits if there is a promise.
fn two_threads(promised: bool, rounds: u32) {
    check(move || {
        let lock = locked(promised);
        let other = lock.clone();
        let thread = loom::thread::spawn(move || {
            let _takes_part = Thread::begin(1);
            for _ in 0..rounds {
                let inside = if promised { other.visit() } else { other.lock() };
                add(&inside);
            }
        });
        {
            let _takes_part = Thread::begin(0);
            for _ in 0..rounds {
                add(&lock.lock());
            }
        }
        thread.join().unwrap();
        assert_eq!(value(&lock.lock()), 2 * rounds);
    });
}

#[test]
fn a_mutex_lets_one_in_and_wakes_the_next() {
    two_threads(false, 2);
}

#[test]
fn a_visitor_and_who_promised_are_never_both_inside() {
    two_threads(true, 2);
}

#[test]
fn who_only_tries_to_visit_gets_in_alone_or_not_at_all() {
    check(|| {
        let lock = locked(true);
        let other = lock.clone();
        let thread = loom::thread::spawn(move || {
            let _takes_part = Thread::begin(1);
            let visitor = other.try_visit();
            visitor.map_or(0, |cell| {
                add(&cell);
                1
            })
        });
        {
            let _takes_part = Thread::begin(0);
            add(&lock.lock());
        }
        let visits = thread.join().unwrap();
        assert_eq!(value(&lock.lock()), 1 + visits);
    });
}

/// The same without the barrier that the kernel makes: the model must notice.
#[test]
#[should_panic(expected = "Causality violation")]
fn a_visitor_without_a_barrier_would_be_noticed() {
    check(|| {
        let lock = locked(true);
        let other = lock.clone();
        let thread = loom::thread::spawn(move || {
            // Barriers do not wait for a thread that takes no part.
            add(&other.visit());
        });
        add(&lock.lock());
        thread.join().unwrap();
    });
}
