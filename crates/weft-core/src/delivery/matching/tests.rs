//! Both structures against lists that are searched from the front, with so few sources, tags and masks that everything
//! meets everything.

use proptest::collection::vec;
use proptest::prelude::*;
use std::vec::Vec;

use super::*;
use crate::hash::Keyed;
use crate::limits::{MATCH_CLASSES_MAX, MATCH_LOOKS, MATCH_VIEW_IDLE_MIN, MATCH_VIEWS_MAX};

const CAPACITY: usize = 200;
const MASKS: [u64; 4] = [0, 1, 6, u64::MAX];

/// What a test does next. Numbers are taken modulo what there is.
#[derive(Clone, Copy, Debug)]
enum Step {
    Add {
        source: Option<u64>,
        tag: u64,
        ignore: u64,
    },
    /// Finds an entry, and takes it out if so.
    Match {
        source: Option<u64>,
        tag: u64,
        ignore: u64,
        take: bool,
    },
    Remove {
        which: usize,
    },
    Stale {
        which: usize,
    },
}

fn step(masks: impl Strategy<Value = u64> + Clone) -> impl Strategy<Value = Step> {
    let source = || prop_oneof![3 => (0..3_u64).prop_map(Some), 1 => Just(None)];
    let tag = || prop_oneof![0..8_u64, Just(u64::MAX)];
    prop_oneof![
        4 => (source(), tag(), masks.clone()).prop_map(|(source, tag, ignore)| Step::Add { source, tag, ignore }),
        3 => (source(), tag(), masks, any::<bool>())
            .prop_map(|(source, tag, ignore, take)| Step::Match { source, tag, ignore, take }),
        1 => any::<usize>().prop_map(|which| Step::Remove { which }),
        1 => any::<usize>().prop_map(|which| Step::Stale { which }),
    ]
}

fn few_masks() -> impl Strategy<Value = u64> + Clone {
    prop_oneof![3 => Just(0), 2 => proptest::sample::select(&MASKS[..])]
}

/// An entry of the plain list. Messages have no wildcards.
#[derive(Clone, Copy)]
struct Plain<Id> {
    id: Id,
    source: Option<u64>,
    tag: u64,
    ignore: u64,
    item: usize,
}

impl<Id> Plain<Id> {
    fn meets(&self, source: Option<u64>, tag: u64, ignore: u64) -> bool {
        let sources = self.source.is_none() || source.is_none() || self.source == source;
        sources && (self.tag ^ tag) & !self.ignore & !ignore == 0
    }
}

fn run_posted(steps: &[Step]) {
    let mut posted = Posted::new(Keyed::new(1, 2), CAPACITY);
    let mut plain: Vec<Plain<PostedId>> = Vec::new();
    let mut gone = Vec::new();
    for (item, step) in steps.iter().enumerate() {
        match *step {
            Step::Add { source, tag, ignore } => match posted.post(source.map(SourceId), tag, ignore, item) {
                Ok(id) => plain.push(Plain { id, source, tag, ignore, item }),
                Err(Full) => assert_eq!(plain.len(), CAPACITY),
            },
            Step::Match { source, tag, take, .. } => {
                let source = source.unwrap_or(0);
                let at = plain.iter().position(|entry| entry.meets(Some(source), tag, 0));
                assert_eq!(posted.first(SourceId(source), tag), at.map(|at| plain[at].id));
                if let (Some(at), true) = (at, take) {
                    let entry = plain.remove(at);
                    if item % 2 == 0 {
                        assert_eq!(posted.remove(entry.id), Some(entry.item));
                    } else {
                        posted.discard(entry.id);
                        assert_eq!(posted.get(entry.id), None);
                    }
                    gone.push(entry.id);
                }
            }
            Step::Remove { which } if !plain.is_empty() => {
                let entry = plain.remove(which % plain.len());
                assert_eq!(posted.get(entry.id), Some(&entry.item));
                assert_eq!(posted.remove(entry.id), Some(entry.item));
                gone.push(entry.id);
            }
            Step::Stale { which } if !gone.is_empty() => {
                let id = gone[which % gone.len()];
                assert_eq!((posted.get(id), posted.find(|found| *found == item)), (None, None));
                assert_eq!(posted.get_mut(id), None);
                assert_eq!(posted.remove(id), None);
            }
            _ => {}
        }
        if item % 8 == 0 {
            posted.check();
        }
    }
    assert!(posted.iter().map(|(id, item)| (id, *item)).eq(plain.iter().map(|entry| (entry.id, entry.item))));
    for entry in plain {
        assert_eq!(posted.find(|item| *item == entry.item), Some(entry.id));
        assert_eq!(posted.remove(entry.id), Some(entry.item));
    }
    posted.check();
    assert!(posted.is_empty());
}

fn run_unexpected(steps: &[Step]) {
    let mut unexpected = Unexpected::new(Keyed::new(1, 2), CAPACITY);
    let mut plain: Vec<Plain<UnexpectedId>> = Vec::new();
    let mut gone = Vec::new();
    for (item, step) in steps.iter().enumerate() {
        match *step {
            Step::Add { source, tag, .. } => {
                let source = source.unwrap_or(3);
                match unexpected.push(SourceId(source), tag, item) {
                    Ok(id) => plain.push(Plain { id, source: Some(source), tag, ignore: 0, item }),
                    Err(Full) => assert_eq!(plain.len(), CAPACITY),
                }
            }
            Step::Match { source, tag, ignore, take } => {
                let at = plain.iter().position(|entry| entry.meets(source, tag, ignore));
                assert_eq!(unexpected.first(source.map(SourceId), tag, ignore), at.map(|at| plain[at].id));
                if let (Some(at), true) = (at, take) {
                    let entry = plain.remove(at);
                    assert_eq!(unexpected.remove(entry.id), Some(entry.item));
                    gone.push(entry.id);
                }
            }
            Step::Remove { which } if !plain.is_empty() => {
                let entry = plain.remove(which % plain.len());
                assert_eq!(unexpected.get(entry.id), Some(&entry.item));
                assert_eq!(unexpected.remove(entry.id), Some(entry.item));
                gone.push(entry.id);
            }
            Step::Stale { which } if !gone.is_empty() => {
                let id = gone[which % gone.len()];
                assert_eq!((unexpected.get(id), unexpected.find(|found| *found == item)), (None, None));
                assert_eq!(unexpected.get_mut(id), None);
                assert_eq!(unexpected.remove(id), None);
            }
            _ => {}
        }
        if item % 8 == 0 {
            unexpected.check();
        }
    }
    assert!(unexpected.iter().map(|(id, item)| (id, *item)).eq(plain.iter().map(|entry| (entry.id, entry.item))));
    for entry in plain {
        assert_eq!(unexpected.find(|item| *item == entry.item), Some(entry.id));
        assert_eq!(unexpected.remove(entry.id), Some(entry.item));
    }
    unexpected.check();
    assert!(unexpected.is_empty());
}

proptest! {
    #[test]
    fn posted_is_a_list_searched_from_the_front(steps in vec(step(few_masks()), 0..600)) {
        run_posted(&steps);
    }

    #[test]
    fn posted_with_more_kinds_than_tables(steps in vec(step(0..32_u64), 0..600)) {
        run_posted(&steps);
    }

    #[test]
    fn unexpected_is_a_list_searched_from_the_front(steps in vec(step(few_masks()), 0..600)) {
        run_unexpected(&steps);
    }

    #[test]
    fn unexpected_with_more_kinds_than_views(steps in vec(step(0..32_u64), 0..600)) {
        run_unexpected(&steps);
    }
}

/// Many keys: tables grow, lines overflow, and everything is found and given back.
#[test]
fn tables_grow_to_their_capacity() {
    let capacity = 5000;
    let mut posted = Posted::new(Keyed::new(5, 6), capacity);
    let ids: Vec<PostedId> =
        (0..capacity as u64).map(|tag| posted.post(Some(SourceId(tag % 7)), tag, 0, tag).unwrap()).collect();
    assert_eq!((posted.post(None, 0, 0, 0), posted.len(), posted.capacity()), (Err(Full), capacity, capacity));
    posted.check();
    for round in 0..3 {
        for (tag, id) in ids.iter().enumerate().filter(|(tag, _)| tag % 3 == round) {
            let tag = tag as u64;
            assert_eq!(posted.first(SourceId(tag % 7), tag), Some(*id));
            assert_eq!(posted.first(SourceId(tag % 7 + 1), tag), None);
            assert_eq!(posted.remove(*id), Some(tag));
            assert_eq!(posted.first(SourceId(tag % 7), tag), None);
        }
        posted.check();
    }
    assert!(posted.is_empty());
}

#[test]
fn nothing_fits_where_there_is_no_room() {
    assert_eq!(Posted::new(Keyed::new(1, 2), 0).post(None, 0, 0, ()), Err(Full));
    let mut unexpected = Unexpected::new(Keyed::new(1, 2), 0);
    assert_eq!(unexpected.push(SourceId(1), 0, ()), Err(Full));
    assert_eq!(unexpected.first(None, 0, 0), None);
}

#[test]
fn classes_are_used_again_when_they_are_empty() {
    let mut posted = Posted::new(Keyed::new(1, 2), 100);
    for ignore in 1..1000 {
        let id = posted.post(None, 0, ignore, ()).unwrap();
        assert_eq!(posted.first(SourceId(9), ignore), Some(id));
        posted.remove(id).unwrap();
    }
    // One more than there are tables: it is listed, and still the earliest is found.
    for ignore in 1..=MATCH_CLASSES_MAX as u64 + 1 {
        posted.post(None, 0, ignore, ()).unwrap();
    }
    posted.check();
    let last = posted.iter().last().unwrap().0;
    assert_eq!(posted.first(SourceId(9), 16), Some(last));
    let first = posted.iter().next().unwrap().0;
    assert_eq!(posted.first(SourceId(9), 0), Some(first));
}

#[test]
fn views_that_nobody_asks_are_dropped() {
    let mut unexpected = Unexpected::new(Keyed::new(1, 2), 100);
    // So many that none of those below is found by a look at the first few.
    let others: Vec<UnexpectedId> =
        (0..MATCH_LOOKS).map(|item| unexpected.push(SourceId(3), 1 << 32, item).unwrap()).collect();
    let oldest = unexpected.push(SourceId(1), 5, 0).unwrap();
    // More kinds than views: the last one is answered by a search.
    for ignore in 0..=MATCH_VIEWS_MAX as u64 {
        assert_eq!(unexpected.first(None, 5, ignore), Some(oldest));
    }
    unexpected.check();
    for item in 0..2 * MATCH_VIEW_IDLE_MIN as usize {
        let id = unexpected.push(SourceId(2), 5, item).unwrap();
        // This kind goes on asking, and the others do not.
        assert_eq!(unexpected.first(None, 5, 0), Some(oldest));
        assert_eq!(unexpected.remove(id), Some(item));
    }
    unexpected.check();
    for kept in [0, 1, 2] {
        assert_eq!(unexpected.first(None, 5, kept), Some(oldest));
    }
    assert_eq!(unexpected.first(None, 5, u64::MAX), Some(others[0]));
    unexpected.check();
}
