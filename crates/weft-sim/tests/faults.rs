//! The engine keeps its promises on some hundred seeds, and a seed gives the same run each time. `weft sim faults` runs
//! as many as one wants.

use std::sync::Arc;

use weft_core::packet::Codec;
use weft_sim::Scenario;
use weft_sim::run::{Report, run};
use weft_sim::shrink::shrink;

#[expect(clippy::unwrap_used, reason = "a helper of tests")]
fn codec() -> Arc<Codec> {
    Arc::new(Codec::builtin().unwrap())
}

#[test]
fn promises_are_kept_and_faults_happen() {
    let codec = codec();
    let mut sum = Report::default();
    for seed in 0..300 {
        match run(&Scenario::from_seed(seed), &codec) {
            Ok(report) => sum.add(&report),
            Err(violation) => {
                let (mask, smaller) = shrink(seed, &violation, &codec, 500);
                panic!("seed {seed}: {violation}\nsmaller: weft sim replay {seed}{mask}\n{smaller}");
            }
        }
    }
    let happened = [
        sum.operations.messages,
        sum.operations.remote,
        sum.operations.unknown,
        sum.operations.cancelled,
        sum.network.lost,
        sum.network.duplicated,
        sum.network.late,
        sum.network.corrupted,
        sum.network.partition_drops,
        sum.network.queue_drops,
        sum.network.narrow_drops,
        sum.network.refused,
        sum.narrowed,
        sum.widened,
        sum.withdrawn,
        sum.restarts,
        sum.retransmissions,
        sum.duplicates,
        sum.not_ready,
        sum.given_up,
        sum.absent,
        sum.damaged,
    ];
    assert!(happened.iter().all(|count| *count > 0), "{sum}");
}

#[test]
fn a_seed_gives_the_same_run() {
    let codec = codec();
    let hash = |seed| run(&Scenario::from_seed(seed), &codec).map(|report| report.hash);
    for seed in 0..20 {
        assert_eq!(hash(seed), hash(seed));
    }
    assert_ne!(hash(1), hash(2));
}
