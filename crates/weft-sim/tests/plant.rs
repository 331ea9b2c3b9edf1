//! The simulation finds what it is there to find (P-7.14): each bug that can be planted in the engine breaks a promise
//! within some hundred seeds. `cargo test -p weft-sim --features plant`
#![cfg(feature = "plant")]

use std::sync::Arc;

use weft_core::engine::Plant;
use weft_core::packet::Codec;
use weft_sim::run::run;
use weft_sim::{Scenario, Violation};

const SEEDS: u64 = 1000;
/// What it takes to have a packet arrive that was withdrawn: it has to be late, and its way thought to be narrow.
const SEEDS_OF_WITHDRAWALS: u64 = 50_000;

/// The first seeds that find the bug, and what each says.
#[expect(clippy::unwrap_used, reason = "a helper of tests")]
fn found(plant: Plant, seeds: u64, wanted: usize) -> Vec<(u64, Violation)> {
    let codec = Arc::new(Codec::builtin().unwrap());
    let mut found = Vec::new();
    for seed in 0..seeds {
        let mut scenario = Scenario::from_seed(seed);
        scenario.nodes.iter_mut().for_each(|node| node.config.plant = Some(plant));
        if let Err(violation) = run(&scenario, &codec) {
            found.push((seed, violation));
            if found.len() == wanted {
                break;
            }
        }
    }
    found
}

fn assert_found(plant: Plant) {
    assert_found_within(plant, SEEDS);
}

fn assert_found_within(plant: Plant, seeds: u64) {
    let found = found(plant, seeds, 1);
    assert!(!found.is_empty(), "{plant:?} was not found in {seeds} seeds");
    for (seed, violation) in found {
        println!("{plant:?}: seed {seed}: {violation}");
    }
}

#[test]
fn skipped_duplicate_check() {
    assert_found(Plant::SkipDuplicateCheck);
}

#[test]
fn skipped_handle_check() {
    assert_found(Plant::SkipHandleCheck);
}

#[test]
fn tracker_freed_early() {
    assert_found(Plant::FreeTrackerEarly);
}

#[test]
fn life_freed_early() {
    assert_found(Plant::FreeLifeEarly);
}

#[test]
fn head_of_line() {
    assert_found(Plant::HeadOfLine);
}

#[test]
fn skipped_check_of_the_refused_ticket() {
    assert_found(Plant::SkipRefusedTicketCheck);
}

#[test]
fn forgotten_withdrawal() {
    assert_found_within(Plant::ForgetWithdrawal, SEEDS_OF_WITHDRAWALS);
}
