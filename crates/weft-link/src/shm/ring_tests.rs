//! The ring alone, in plain memory: random programs against a queue, numbers that wrap around, and a peer that lies.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use proptest::prelude::*;

use super::Record;
use super::layout::{DATA_ALIGN, SLOT_WORDS};
use super::ring::{ASLEEP, Broken, Consumer, Place, Producer, PushError, Room};
use crate::limits::{INLINE_MAX_BYTES, PAYLOAD_MAX_BYTES, RING_DATA_BYTES};

const NEAR: u32 = 4;
const FAR: u32 = 16;

struct Shared {
    words: Vec<AtomicU64>,
    progress: AtomicU64,
    receiver_state: AtomicU32,
    sender_state: AtomicU32,
    wakes: Cell<u32>,
}

/// A small ring in plain memory.
#[derive(Clone)]
struct TestRoom(Rc<Shared>);

impl TestRoom {
    fn new() -> TestRoom {
        TestRoom(Rc::new(Shared {
            words: (0..(NEAR + FAR) as usize * SLOT_WORDS).map(|_| AtomicU64::new(0)).collect(),
            progress: AtomicU64::new(0),
            receiver_state: AtomicU32::new(0),
            sender_state: AtomicU32::new(0),
            wakes: Cell::new(0),
        }))
    }

    fn ring(&self) -> (Producer<TestRoom>, Consumer<TestRoom>) {
        (Producer::new(self.clone()), Consumer::new(self.clone()))
    }
}

impl Room for TestRoom {
    const NEAR_SLOTS: u32 = NEAR;
    const FAR_SLOTS: u32 = FAR;

    fn slot(&self, slot: u32) -> &[AtomicU64; SLOT_WORDS] {
        self.0.words[slot as usize * SLOT_WORDS..].first_chunk().unwrap()
    }

    fn progress(&self) -> &AtomicU64 {
        &self.0.progress
    }

    fn receiver_state(&self) -> &AtomicU32 {
        &self.0.receiver_state
    }

    fn sender_state(&self) -> &AtomicU32 {
        &self.0.sender_state
    }

    fn promise(&self) -> u32 {
        0
    }

    fn light_fence(&self, _: u32) {}

    fn heavy_fence(&self) {}

    fn wake(&self) {
        self.0.wakes.set(self.0.wakes.get() + 1);
    }
}

/// A record in the ring: its number, its length, and from where to where its payload lies in the data ring.
type Inside = (u64, usize, Option<(u32, u32)>);

/// What is in the ring: no payload may lie over another.
#[derive(Default)]
struct Model {
    next: u64,
    inside: VecDeque<Inside>,
}

impl Model {
    fn push(&mut self, producer: &mut Producer<TestRoom>, length: usize) -> Result<(), PushError> {
        let place = producer.reserve(length)?;
        let bytes: Vec<u8> = (0..length.min(INLINE_MAX_BYTES)).map(|index| index as u8 ^ self.next as u8).collect();
        let extent = match place {
            Place::Inline => {
                assert!(length <= INLINE_MAX_BYTES);
                producer.put_inline(&bytes);
                None
            }
            Place::Data(offset, _) => {
                let end = offset + length as u32;
                assert!(length > INLINE_MAX_BYTES && offset % DATA_ALIGN == 0 && end <= RING_DATA_BYTES);
                for (_, _, other) in &self.inside {
                    assert!(other.is_none_or(|other| end <= other.0 || other.1 <= offset), "{offset} {other:?}");
                }
                Some((offset, end))
            }
        };
        let record = Record { kind: self.next as u8, flags: 1, words: [self.next, length as u64, 0, 0] };
        producer.commit(&record, place, length);
        self.inside.push_back((self.next, length, extent));
        self.next += 1;
        Ok(())
    }

    fn take(&mut self, consumer: &mut Consumer<TestRoom>, advance: bool) {
        assert_eq!(consumer.is_empty(), self.inside.is_empty());
        assert_eq!(consumer.peek(), Ok(!self.inside.is_empty()));
        let Some((number, length, extent)) = self.inside.front().copied() else { return };
        let (taken, inline) = (consumer.current(), consumer.inline());
        assert_eq!(taken.record.words, [number, length as u64, 0, 0]);
        assert_eq!((taken.length as usize, taken.offset), (length, extent.map(|extent| extent.0)));
        if extent.is_none() {
            let bytes: Vec<u8> = inline.iter().flat_map(|word| word.to_ne_bytes()).take(length).collect();
            assert!(bytes.iter().enumerate().all(|(index, byte)| *byte == index as u8 ^ number as u8));
        }
        if advance {
            consumer.advance();
            self.inside.pop_front();
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Push(usize),
    Claim(usize),
    Peek,
    Take(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let length = prop_oneof![0..=INLINE_MAX_BYTES, 81..4096usize, 4096..=PAYLOAD_MAX_BYTES];
    prop_oneof![
        4 => length.clone().prop_map(Step::Push),
        1 => length.prop_map(Step::Claim),
        1 => Just(Step::Peek),
        3 => (1..8usize).prop_map(Step::Take),
    ]
}

proptest! {
    #[test]
    fn a_ring_is_a_queue(steps in prop::collection::vec(step(), 1..200), near in any::<bool>()) {
        let (mut producer, mut consumer) = TestRoom::new().ring();
        let mut model = Model::default();
        for step in steps {
            match step {
                Step::Push(length) => match model.push(&mut producer, length) {
                    Ok(()) => {}
                    Err(error) => {
                        prop_assert_eq!(error, PushError::Full);
                        prop_assert!(!model.inside.is_empty(), "an empty ring takes anything");
                    }
                },
                // Taking nothing is all that a claim does which is not committed.
                Step::Claim(length) => { let _ = producer.reserve(length); }
                Step::Peek => model.take(&mut consumer, false),
                Step::Take(count) => (0..count).for_each(|_| model.take(&mut consumer, true)),
            }
            if near {
                // A conversation: all is taken before the next record.
                while !model.inside.is_empty() {
                    model.take(&mut consumer, true);
                }
            }
        }
        while !model.inside.is_empty() {
            model.take(&mut consumer, true);
        }
        model.take(&mut consumer, true);
        prop_assert!(model.push(&mut producer, PAYLOAD_MAX_BYTES).is_ok());
    }

    #[test]
    fn any_head_word_is_a_record_or_broken(words in prop::collection::vec(any::<u64>(), 16), sequence in any::<bool>()) {
        let room = TestRoom::new();
        let (_, mut consumer) = room.ring();
        for (index, word) in words.iter().enumerate() {
            room.slot(0)[index].store(*word, Ordering::Relaxed);
        }
        if sequence {
            room.slot(0)[0].store(words[0] & !0xffff_ffff | 1, Ordering::Relaxed);
        }
        if consumer.peek() == Ok(true) {
            let taken = consumer.current();
            prop_assert!(taken.length as usize <= PAYLOAD_MAX_BYTES);
            prop_assert!(taken.offset.is_some() || taken.length as usize <= INLINE_MAX_BYTES);
            prop_assert!(taken.offset.unwrap_or(0) + taken.length <= RING_DATA_BYTES);
        }
    }

    #[test]
    fn any_progress_is_possible_or_broken(near in any::<u32>(), far in any::<u32>(), pushed in 0..20u32) {
        let room = TestRoom::new();
        let (mut producer, _) = room.ring();
        let mut model = Model::default();
        for _ in 0..pushed {
            model.push(&mut producer, 100).unwrap();
        }
        let in_near = pushed.min(NEAR);
        for (near, far) in [(near, far), (near % 8, far % 32)] {
            room.progress().store(u64::from(near) | u64::from(far) << 32, Ordering::Relaxed);
            let possible = near <= in_near && far <= pushed - in_near;
            let looked = producer.look();
            prop_assert_eq!(looked, if possible { Ok(()) } else { Err(Broken) });
            if possible {
                break;
            }
        }
        prop_assert!(producer.data_used() <= RING_DATA_BYTES);
    }
}

#[test]
fn a_full_ring_holds_all_its_slots() {
    let (mut producer, mut consumer) = TestRoom::new().ring();
    let mut model = Model::default();
    for _ in 0..3 {
        while model.push(&mut producer, 8).is_ok() {}
        assert!(model.inside.len() >= FAR as usize, "{}", model.inside.len());
        assert_eq!(model.push(&mut producer, 8), Err(PushError::Full));
        while !model.inside.is_empty() {
            model.take(&mut consumer, true);
        }
        model.take(&mut consumer, true);
    }
}

#[test]
fn numbers_wrap_around() {
    let room = TestRoom::new();
    let (mut producer, mut consumer) = room.ring();
    // As if that many records had gone through: what is in the slots then is not zero.
    let start = u32::MAX - 37;
    for slot in 0..NEAR + FAR {
        let (first, slots) = if slot < NEAR { (0, NEAR) } else { (NEAR, FAR) };
        let position = (0..slots).map(|back| start - 1 - back).find(|at| at % slots == slot - first).unwrap();
        room.slot(slot)[0].store(u64::from(position + 1), Ordering::Relaxed);
    }
    producer.start_at(start);
    consumer.start_at(start);
    room.progress().store(u64::from(start) | u64::from(start) << 32, Ordering::Relaxed);
    let mut model = Model::default();
    for round in 0..200 {
        for _ in 0..round % 17 {
            model.push(&mut producer, round % 300).unwrap();
        }
        while !model.inside.is_empty() {
            model.take(&mut consumer, true);
        }
        model.take(&mut consumer, true);
    }
}

#[test]
fn who_sleeps_is_woken_once() {
    let room = TestRoom::new();
    let (mut producer, mut consumer) = room.ring();
    let mut model = Model::default();
    assert!(consumer.prepare_sleep());
    assert_eq!(room.0.receiver_state.load(Ordering::Relaxed) & ASLEEP, ASLEEP);
    model.push(&mut producer, 8).unwrap();
    model.push(&mut producer, 8).unwrap();
    assert_eq!(room.0.wakes.get(), 1);
    assert!(!consumer.prepare_sleep(), "there is a record");
    consumer.awake();
    assert!(!producer.prepare_sleep(8), "there is room");
    while model.push(&mut producer, 8).is_ok() {}
    assert!(producer.prepare_sleep(8));
    model.take(&mut consumer, true);
    assert_eq!(room.0.wakes.get(), 2);
    producer.awake();
    while !model.inside.is_empty() {
        model.take(&mut consumer, true);
    }
    assert_eq!(room.0.wakes.get(), 2);
}

#[test]
fn nonsense_in_a_slot_is_noticed() {
    let room = TestRoom::new();
    let (_, mut consumer) = room.ring();
    for nonsense in [2u64, 77, u64::from(u32::MAX), 1 | 81 << 48, 1 | 0x7ffe << 48] {
        room.slot(0)[0].store(nonsense, Ordering::Relaxed);
        assert_eq!(consumer.peek(), Err(Broken), "{nonsense:x}");
    }
    for (length, offset) in [(65537, 0), (100, 1), (64, RING_DATA_BYTES), (128, RING_DATA_BYTES - 64), (u32::MAX, 64)] {
        room.slot(0)[0].store(1 | 0x7fff << 48, Ordering::Relaxed);
        room.slot(0)[1].store(u64::from(length) | u64::from(offset) << 32, Ordering::Relaxed);
        assert_eq!(consumer.peek(), Err(Broken), "{length} {offset}");
    }
}
