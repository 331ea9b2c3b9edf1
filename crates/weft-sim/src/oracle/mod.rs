//! The judge. It knows every program and sees every completion and every change of memory, and says what is wrong the
//! moment it can be known; [`Oracle::finish`] says the rest when everything has come to rest.
//!
//! What it holds the engine to is in `docs/protocol.md`: each request is executed exactly once, or is reported as
//! failed (P-1.1); *outcome unknown* may mean either, but never twice.

mod command;
mod message;
mod order;
mod remote;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

use weft_core::address::Address;
use weft_core::event::{Completion, CompletionKind, Failure};
use weft_core::memory::LocalKey;

use crate::memory::SimMemory;
use crate::node::Given;
use crate::scenario::{Place, Scenario};
use crate::trace::micros;
use crate::workload::{Operation, What};

pub use command::ReadCheck;

/// What the engine did wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which promise was broken, in a few words that stay the same from run to run.
    pub kind: &'static str,
    /// When.
    pub at: u64,
    /// At which node.
    pub node: Option<usize>,
    /// About which operation.
    pub operation: Option<u32>,
    /// The details.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {} µs", self.kind, micros(self.at))?;
        if let Some(node) = self.node {
            write!(f, ", node {node}")?;
        }
        if let Some(operation) = self.operation {
            write!(f, ", operation {operation}")?;
        }
        write!(f, ": {}", self.text)
    }
}

impl std::error::Error for Violation {}

/// A start of a node.
pub type Start = (usize, u32);

/// One arrival of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The receive that it matched.
    pub receive: u32,
    /// Where in a buffer for many it begins.
    pub offset: u64,
    /// When the completion was seen.
    pub at: u64,
    /// It was longer than the receive.
    pub truncated: bool,
}

/// All that is known of an operation.
#[derive(Clone, Debug)]
pub struct Record {
    /// What it is.
    pub operation: Operation,
    /// The start of the node that posted it.
    pub start: Start,
    /// When it was posted.
    pub posted: Option<u64>,
    /// Counts posts of all nodes.
    pub order: u64,
    /// The start of the peer that was meant.
    pub target: Option<Start>,
    /// Its buffers.
    pub given: Given,
    /// The program was told that its buffer is free, before the end is known.
    pub injected: bool,
    /// How and when it ended.
    pub outcome: Option<(u64, Result<(), Failure>)>,
    /// The engine agreed to cancel it.
    pub cancelled: bool,
    /// Its node crashed before it ended.
    pub lost: bool,
    /// Arrivals of the message.
    pub deliveries: Vec<Delivery>,
    /// Messages that the receive took.
    pub taken: u32,
    /// What was in a buffer for many that went back before all of them were told: the queue had no place for its end.
    pub left: Option<Vec<u8>>,
    /// Bytes written, and when the first and last of them.
    pub placed: u64,
    /// See `placed`.
    pub first_at: u64,
    /// See `placed`.
    pub last_at: u64,
    /// Notifications of a write with immediate data.
    pub notified: u32,
    /// Executions of an atomic, and the value before it.
    pub executed: u32,
    /// See `executed`.
    pub before: u64,
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (place, start, target) = (self.operation.place, self.start, self.target);
        write!(f, "{:?} from endpoint {} of {start:?} to {target:?}", self.operation.what, place.endpoint)?;
        write!(f, "; posted {:?}, ended {:?}, cancelled {}", self.posted, self.outcome, self.cancelled)?;
        write!(f, "; arrived {:?}, took {}", self.deliveries, self.taken)?;
        write!(f, "; {} bytes placed, notified {}, executed {}", self.placed, self.notified, self.executed)
    }
}

/// Counts of what was exercised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OracleCounts {
    /// Operations posted.
    pub posted: u64,
    /// Operations that ended well.
    pub succeeded: u64,
    /// Operations that failed.
    pub failed: u64,
    /// Of them with outcome unknown.
    pub unknown: u64,
    /// Messages received.
    pub messages: u64,
    /// Writes, reads and atomics that ended well.
    pub remote: u64,
    /// Operations that were cancelled.
    pub cancelled: u64,
    /// Messages longer than their receive.
    pub truncated: u64,
}

/// The judge.
#[derive(Debug)]
pub struct Oracle {
    /// Everything posted; the index is the number of the operation.
    pub records: Vec<Record>,
    /// What was exercised.
    pub counts: OracleCounts,
    may_give_up: bool,
    restarts: bool,
    duplicates: bool,
    short_receives: bool,
    cancelled_sends: bool,
    posts: u64,
    /// Which endpoint has which address.
    directory: BTreeMap<Address, (Place, u32)>,
    /// What the cells must hold.
    cells: BTreeMap<(Start, u64), u64>,
    /// Endpoints that were closed.
    closed: Vec<(Start, usize)>,
}

/// Not known to anybody.
const NOTHING: Given = Given { local: LocalKey::NONE, lead: 0, results: LocalKey::NONE };

impl Oracle {
    /// A judge of a scenario.
    #[must_use]
    pub fn new(scenario: &Scenario) -> Oracle {
        let mut oracle = Oracle {
            records: Vec::new(),
            counts: OracleCounts::default(),
            may_give_up: scenario.may_give_up(),
            restarts: !scenario.crashes.is_empty(),
            duplicates: scenario.faults.duplicate > 0 || scenario.faults.late > 0,
            short_receives: scenario.short_receives,
            cancelled_sends: false,
            posts: 0,
            directory: BTreeMap::new(),
            cells: BTreeMap::new(),
            closed: Vec::new(),
        };
        for operation in &scenario.operations {
            oracle.add(operation.clone());
        }
        oracle
    }

    /// Adds an operation that is not in the scenario; its number must be the next.
    pub fn add(&mut self, operation: Operation) {
        let start = (operation.place.node, 0);
        self.records.push(Record {
            operation,
            start,
            posted: None,
            order: 0,
            target: None,
            given: NOTHING,
            injected: false,
            outcome: None,
            cancelled: false,
            lost: false,
            deliveries: Vec::new(),
            taken: 0,
            left: None,
            placed: 0,
            first_at: 0,
            last_at: 0,
            notified: 0,
            executed: 0,
            before: 0,
        });
    }

    /// Learns who has an address.
    pub fn learn(&mut self, address: Address, place: Place, incarnation: u32) {
        self.directory.insert(address, (place, incarnation));
    }

    /// An operation is about to be posted. Said before the call, since its effects may come within it.
    pub fn begin(&mut self, now: u64, id: u32, start: Start, target: Option<Start>) {
        self.posts += 1;
        let order = self.posts;
        if let Some(record) = self.records.get_mut(id as usize) {
            (record.posted, record.start, record.target, record.order) = (Some(now), start, target, order);
        }
    }

    /// It was taken by the engine, or refused.
    pub fn begun(&mut self, id: u32, given: Option<Given>) {
        let Some(record) = self.records.get_mut(id as usize) else { return };
        match given {
            Some(given) => {
                record.given = given;
                self.counts.posted += 1;
            }
            None => record.posted = None,
        }
    }

    /// The engine agreed to cancel an operation.
    pub fn cancelled(&mut self, id: u32) {
        if let Some(record) = self.records.get_mut(id as usize) {
            record.cancelled = true;
            self.cancelled_sends |= matches!(record.operation.what, What::Send { .. });
        }
    }

    /// An endpoint is about to be closed.
    pub fn closes(&mut self, start: Start, place: Place) {
        self.closed.push((start, place.endpoint));
    }

    /// Whether an endpoint of a start of its node was closed.
    #[must_use]
    pub fn is_closed(&self, start: Option<Start>, place: Place) -> bool {
        start.is_some_and(|start| self.closed.contains(&(start, place.endpoint)))
    }

    /// Whether the endpoint of a record, or of its peer, was closed.
    fn touches_closed(&self, record: &Record) -> bool {
        let peer = record.operation.peer().is_some_and(|peer| self.is_closed(record.target, peer));
        peer || self.is_closed(Some(record.start), record.operation.place)
    }

    /// A node crashed: nobody will hear of what it had under way.
    pub fn crashed(&mut self, start: Start) {
        for record in &mut self.records {
            record.lost |= record.start == start && record.posted.is_some() && record.outcome.is_none();
        }
    }

    /// Whether an operation may still end.
    #[must_use]
    pub fn is_pending(&self, record: &Record) -> bool {
        record.posted.is_some() && record.outcome.is_none() && !record.lost
    }

    /// A completion was seen.
    pub fn completed(
        &mut self,
        now: u64,
        start: Start,
        completion: &Completion,
        memory: &mut SimMemory,
    ) -> Result<Option<ReadCheck>, Violation> {
        let judge = Judge { at: now, node: start.0, operation: completion.context as u32 };
        match completion.kind {
            CompletionKind::RemoteWrite => self.notified(&judge, start, completion).map(|()| None),
            CompletionKind::Receive | CompletionKind::TaggedReceive | CompletionKind::BufferReleased => {
                self.received(&judge, start, completion, memory).map(|()| None)
            }
            CompletionKind::Announced | CompletionKind::TaggedAnnounced => {
                Err(judge.says("completion of another kind", completion))
            }
            CompletionKind::Send
            | CompletionKind::TaggedSend
            | CompletionKind::Write
            | CompletionKind::Read
            | CompletionKind::Atomic
            | CompletionKind::FetchAtomic => self.ended(&judge, start, completion, memory),
        }
    }

    /// What the cells of a node must hold.
    #[must_use]
    pub fn cell(&self, start: Start, cell: u64) -> u64 {
        self.cells.get(&(start, cell)).copied().unwrap_or(0)
    }
}

/// Says what is wrong, where and when.
#[derive(Debug)]
pub(crate) struct Judge {
    pub(crate) at: u64,
    pub(crate) node: usize,
    pub(crate) operation: u32,
}

impl Judge {
    pub(crate) fn says(&self, kind: &'static str, text: impl fmt::Debug) -> Violation {
        let operation = (self.operation != u32::MAX).then_some(self.operation);
        Violation { kind, at: self.at, node: Some(self.node), operation, text: format!("{text:?}") }
    }
}
