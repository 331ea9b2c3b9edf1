//! One run of a scenario, and what it exercised.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use weft_core::packet::Codec;

use crate::live;
use crate::network::NetworkCounts;
use crate::oracle::{OracleCounts, Violation};
use crate::scenario::Scenario;
use crate::trace::Trace;
use crate::world::World;

/// What a run, or many, exercised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Hash of everything that happened; of many runs, of all their hashes.
    pub hash: u64,
    /// Runs.
    pub runs: u64,
    /// Events.
    pub events: u64,
    /// Crashes, each with a restart.
    pub restarts: u64,
    /// What the programs did.
    pub operations: OracleCounts,
    /// What the network did.
    pub network: NetworkCounts,
    /// Requests sent again.
    pub retransmissions: u64,
    /// Requests seen before.
    pub duplicates: u64,
    /// Requests refused because something was not ready.
    pub not_ready: u64,
    /// Requests held back for order.
    pub held: u64,
    /// Tickets given.
    pub tickets: u64,
    /// Targets given up.
    pub given_up: u64,
    /// Those of them whose host said that nobody is there.
    pub absent: u64,
    /// Times that a way was thought to have lost what was long.
    pub narrowed: u64,
    /// Times that a longer datagram turned out to arrive.
    pub widened: u64,
    /// Packets withdrawn, to be cut anew.
    pub withdrawn: u64,
    /// Answers that came too late.
    pub late_answers: u64,
    /// Packets with a wrong checksum.
    pub damaged: u64,
}

impl Report {
    /// Adds another run. The order does not matter, so that threads may share the work.
    pub fn add(&mut self, other: &Report) {
        self.hash = self.hash.wrapping_add(other.hash);
        let fields: [(&mut u64, u64); 35] = [
            (&mut self.runs, other.runs),
            (&mut self.events, other.events),
            (&mut self.restarts, other.restarts),
            (&mut self.operations.posted, other.operations.posted),
            (&mut self.operations.succeeded, other.operations.succeeded),
            (&mut self.operations.failed, other.operations.failed),
            (&mut self.operations.unknown, other.operations.unknown),
            (&mut self.operations.messages, other.operations.messages),
            (&mut self.operations.remote, other.operations.remote),
            (&mut self.operations.cancelled, other.operations.cancelled),
            (&mut self.operations.truncated, other.operations.truncated),
            (&mut self.network.sent, other.network.sent),
            (&mut self.network.delivered, other.network.delivered),
            (&mut self.network.lost, other.network.lost),
            (&mut self.network.queue_drops, other.network.queue_drops),
            (&mut self.network.partition_drops, other.network.partition_drops),
            (&mut self.network.down_drops, other.network.down_drops),
            (&mut self.network.duplicated, other.network.duplicated),
            (&mut self.network.late, other.network.late),
            (&mut self.network.corrupted, other.network.corrupted),
            (&mut self.network.marked, other.network.marked),
            (&mut self.retransmissions, other.retransmissions),
            (&mut self.duplicates, other.duplicates),
            (&mut self.not_ready, other.not_ready),
            (&mut self.held, other.held),
            (&mut self.tickets, other.tickets),
            (&mut self.given_up, other.given_up),
            (&mut self.absent, other.absent),
            (&mut self.late_answers, other.late_answers),
            (&mut self.narrowed, other.narrowed),
            (&mut self.widened, other.widened),
            (&mut self.withdrawn, other.withdrawn),
            (&mut self.network.narrow_drops, other.network.narrow_drops),
            (&mut self.network.refused, other.network.refused),
            (&mut self.network.fragmented, other.network.fragmented),
        ];
        for (sum, more) in fields {
            *sum += more;
        }
        self.damaged += other.damaged;
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (operations, network) = (&self.operations, &self.network);
        writeln!(f, "runs        {:>12}   hash {:016x}, {} events", self.runs, self.hash, self.events)?;
        writeln!(
            f,
            "operations  {:>12}   {} succeeded, {} failed ({} outcome unknown), {} cancelled",
            operations.posted, operations.succeeded, operations.failed, operations.unknown, operations.cancelled
        )?;
        writeln!(
            f,
            "delivered   {:>12}   messages ({} too long for their receive), {} writes, reads and atomics",
            operations.messages, operations.truncated, operations.remote
        )?;
        writeln!(
            f,
            "datagrams   {:>12}   {} lost, {} duplicated, {} minutes or seconds late, {} damaged, {} marked",
            network.sent, network.lost, network.duplicated, network.late, network.corrupted, network.marked
        )?;
        writeln!(
            f,
            "dropped     {:>12}   by full queues, {} by partitions, {} at nodes that were down; {} restarts",
            network.queue_drops, network.partition_drops, network.down_drops, self.restarts
        )?;
        writeln!(
            f,
            "too long    {:>12}   dropped, {} refused, {} in fragments; {} withdrawn, {} ways narrowed by silence, {} widened",
            network.narrow_drops, network.refused, network.fragmented, self.withdrawn, self.narrowed, self.widened
        )?;
        writeln!(
            f,
            "requests    {:>12}   sent again, {} seen again, {} not ready, {} held for order",
            self.retransmissions, self.duplicates, self.not_ready, self.held
        )?;
        write!(
            f,
            "flows       {:>12}   tickets given, {} given up, {} late answers, {} wrong checksums",
            self.tickets, self.given_up, self.late_answers, self.damaged
        )
    }
}

/// Runs a scenario.
pub fn run(scenario: &Scenario, codec: &Arc<Codec>) -> Result<Report, Violation> {
    run_traced(scenario, codec, Trace::new(false)).0
}

/// Runs what the seed makes of little room and programs that wait for each other.
fn progress(scenario: &Scenario, codec: &Arc<Codec>, trace: &mut Trace) -> Result<(), Violation> {
    #[cfg(feature = "plant")]
    let plant = scenario.nodes.first().and_then(|node| node.config.plant);
    let counts = live::run(scenario.seed, codec, trace, |_config| {
        #[cfg(feature = "plant")]
        {
            _config.plant = plant;
        }
    })?;
    trace.note(&[counts.operations, counts.not_ready, counts.turns]);
    Ok(())
}

/// Runs a scenario and gives the record of it.
pub fn run_traced(scenario: &Scenario, codec: &Arc<Codec>, trace: Trace) -> (Result<Report, Violation>, Trace) {
    let mut world = World::new(scenario, codec, trace);
    // A panic of the engine is a broken promise as well, and is made smaller like any other.
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        world.run()?;
        progress(scenario, codec, &mut world.trace)
    }));
    let outcome = outcome.unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<&str>().map(ToString::to_string);
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default();
        Err(Violation { kind: "panicked", at: world.now(), node: None, operation: None, text })
    });
    let statistics = world.statistics;
    let report = Report {
        hash: world.trace.hash(),
        runs: 1,
        events: world.events,
        restarts: world.restarts,
        operations: world.oracle.counts,
        network: world.network.counts,
        retransmissions: statistics.retransmissions,
        duplicates: statistics.duplicates,
        not_ready: statistics.not_ready,
        held: statistics.held,
        tickets: statistics.tickets_offered,
        given_up: statistics.given_up,
        absent: statistics.absent,
        narrowed: statistics.narrowed,
        widened: statistics.widened,
        withdrawn: statistics.withdrawn,
        late_answers: statistics.dropped_late,
        damaged: statistics.dropped_damaged,
    };
    (outcome.map(|()| report), world.trace)
}
