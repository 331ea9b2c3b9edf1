//! Every interleaving of two threads on a ring of one near slot and one or two far ones, and every value that a load may give in the memory model.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p weft-link --lib shm` runs it: with fences on both sides, as where the
//! kernel has no barrier over all processes, and with a model of that barrier. A wake that gets lost shows as a deadlock.

use loom::sync::Notify;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::Arc;

use super::Record;
use super::layout::SLOT_WORDS;
use super::ring::{Consumer, HEAVY, Place, Producer, PushError, Room};
use weft_mem::sync::model::{Thread, barrier, interrupt};

/// Preemptions that loom tries in one run; more find nothing that these do not, and take for ever.
const PREEMPTIONS: usize = 3;
/// The model of the barrier adds so many places that a third one takes four minutes.
const PREEMPTIONS_WITH_BARRIER: usize = 2;

struct Shared {
    words: Vec<AtomicU64>,
    progress: AtomicU64,
    receiver_state: AtomicU32,
    sender_state: AtomicU32,
    wakes_receiver: Notify,
    wakes_sender: Notify,
}

/// What orders a store before the look at the other side's state.
const NOTHING: u8 = 0;
const FENCES: u8 = 1;
/// Fences only of the side that goes to sleep, which brings one to the other side.
const BARRIER: u8 = 2;

/// A ring in loom's memory. With `NOTHING` for an order it is broken, to show that this is noticed.
struct LoomRoom<const FAR: u32, const ORDER: u8> {
    shared: Arc<Shared>,
    /// Who is woken: the other side.
    to_receiver: bool,
}

impl<const FAR: u32, const ORDER: u8> Room for LoomRoom<FAR, ORDER> {
    const NEAR_SLOTS: u32 = 1;
    const FAR_SLOTS: u32 = FAR;

    fn slot(&self, slot: u32) -> &[AtomicU64; SLOT_WORDS] {
        interrupt();
        let words = &self.shared.words[slot as usize * SLOT_WORDS..];
        words.first_chunk().unwrap()
    }

    fn progress(&self) -> &AtomicU64 {
        interrupt();
        &self.shared.progress
    }

    fn receiver_state(&self) -> &AtomicU32 {
        interrupt();
        &self.shared.receiver_state
    }

    fn sender_state(&self) -> &AtomicU32 {
        interrupt();
        &self.shared.sender_state
    }

    fn promise(&self) -> u32 {
        if ORDER == BARRIER { HEAVY } else { 0 }
    }

    fn light_fence(&self, state: u32) {
        if ORDER == FENCES || ORDER == BARRIER && state & HEAVY == 0 {
            fence(Ordering::SeqCst);
        }
    }

    fn heavy_fence(&self) {
        match ORDER {
            FENCES => fence(Ordering::SeqCst),
            BARRIER => barrier(),
            _ => {}
        }
    }

    fn wake(&self) {
        if self.to_receiver { self.shared.wakes_receiver.notify() } else { self.shared.wakes_sender.notify() }
    }
}

fn ring<const FAR: u32, const ORDER: u8>()
-> (Arc<Shared>, Producer<LoomRoom<FAR, ORDER>>, Consumer<LoomRoom<FAR, ORDER>>) {
    let shared = Arc::new(Shared {
        words: (0..3 * SLOT_WORDS).map(|_| AtomicU64::new(0)).collect(),
        progress: AtomicU64::new(0),
        receiver_state: AtomicU32::new(0),
        sender_state: AtomicU32::new(0),
        wakes_receiver: Notify::new(),
        wakes_sender: Notify::new(),
    });
    let producer = Producer::new(LoomRoom { shared: shared.clone(), to_receiver: true });
    let consumer = Consumer::new(LoomRoom { shared: shared.clone(), to_receiver: false });
    (shared, producer, consumer)
}

fn check(preemptions: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(test);
}

fn record(number: u64) -> Record {
    Record { kind: number as u8, flags: 1, words: [number, !number, 0, 0] }
}

fn push<R: Room>(producer: &mut Producer<R>, number: u64) -> Result<(), PushError> {
    assert_eq!(producer.reserve(8)?, Place::Inline);
    producer.put_inline(&number.to_le_bytes());
    producer.commit(&record(number), Place::Inline, 8);
    Ok(())
}

fn take<R: Room>(consumer: &mut Consumer<R>, number: u64) -> bool {
    let there = consumer.peek().unwrap();
    if there {
        let (taken, inline) = (consumer.current(), consumer.inline());
        assert_eq!((taken.record, taken.length, inline[0]), (record(number), 8, number));
        consumer.advance();
    }
    there
}

/// Both sides poll: what is taken is whole and in order, and a slot is not written before it was taken.
#[test]
fn records_are_whole_and_in_order() {
    const RECORDS: u64 = 4;
    check(PREEMPTIONS, || {
        let (_, mut producer, mut consumer) = ring::<2, FENCES>();
        let writer = loom::thread::spawn(move || {
            for number in 0..RECORDS {
                while push(&mut producer, number) == Err(PushError::Full) {
                    loom::thread::yield_now();
                }
            }
        });
        for number in 0..RECORDS {
            while !take(&mut consumer, number) {
                loom::thread::yield_now();
            }
        }
        writer.join().unwrap();
    });
}

fn sleeping_receiver<const ORDER: u8>() {
    const RECORDS: u64 = 2;
    check(PREEMPTIONS, || {
        let (shared, mut producer, mut consumer) = ring::<2, ORDER>();
        let writer = loom::thread::spawn(move || {
            let _takes_part = Thread::begin(1);
            for number in 0..RECORDS {
                push(&mut producer, number).unwrap();
            }
        });
        let thread = Thread::begin(0);
        for number in 0..RECORDS {
            while !take(&mut consumer, number) {
                if consumer.prepare_sleep() {
                    thread.sleep(|| shared.wakes_receiver.wait());
                    consumer.awake();
                }
            }
        }
        thread.sleep(|| writer.join().unwrap());
    });
}

#[test]
fn a_receiver_that_sleeps_is_woken() {
    sleeping_receiver::<FENCES>();
}

#[test]
fn a_receiver_that_sleeps_is_woken_with_a_barrier() {
    sleeping_receiver::<BARRIER>();
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_lost_wake_would_be_noticed() {
    sleeping_receiver::<NOTHING>();
}

/// Both sides sleep whenever they can.
fn both_sleep<const ORDER: u8>() {
    const RECORDS: u64 = 3;
    check(if ORDER == BARRIER { PREEMPTIONS_WITH_BARRIER } else { PREEMPTIONS }, || {
        let (shared, mut producer, mut consumer) = ring::<1, ORDER>();
        let for_writer = shared.clone();
        let writer = loom::thread::spawn(move || {
            let thread = Thread::begin(1);
            for number in 0..RECORDS {
                while push(&mut producer, number) == Err(PushError::Full) {
                    if producer.prepare_sleep(8) {
                        thread.sleep(|| for_writer.wakes_sender.wait());
                        producer.awake();
                    }
                }
            }
        });
        let thread = Thread::begin(0);
        for number in 0..RECORDS {
            while !take(&mut consumer, number) {
                if consumer.prepare_sleep() {
                    thread.sleep(|| shared.wakes_receiver.wait());
                    consumer.awake();
                }
            }
        }
        thread.sleep(|| writer.join().unwrap());
    });
}

#[test]
fn a_sender_that_waits_for_room_is_woken() {
    both_sleep::<FENCES>();
}

#[test]
fn a_sender_that_waits_for_room_is_woken_with_a_barrier() {
    both_sleep::<BARRIER>();
}
