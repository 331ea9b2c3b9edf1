//! The simulation finds what it is there to find (P-7.14): each bug that can be planted in the engine breaks a promise
//! within some hundred seeds. `cargo test -p weft-sim --features plant`
#![cfg(feature = "plant")]

use std::sync::Arc;

use weft_core::engine::Plant;
use weft_core::packet::Codec;
use weft_sim::run::run;
use weft_sim::{Scenario, Violation};

const SEEDS: u64 = 1000;

/// The first seeds that find the bug, and what each says.
#[expect(clippy::unwrap_used, reason = "a helper of tests")]
fn found(plant: Plant, wanted: usize) -> Vec<(u64, Violation)> {
    let codec = Arc::new(Codec::builtin().unwrap());
    let mut found = Vec::new();
    for seed in 0..SEEDS {
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
    let found = found(plant, 3);
    assert!(!found.is_empty(), "{plant:?} was not found in {SEEDS} seeds");
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
    assert_found(Plant::ForgetWithdrawal);
}
