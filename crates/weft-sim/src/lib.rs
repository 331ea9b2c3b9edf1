//! Deterministic simulation: the engine that the product runs, under a virtual clock, on a network that does its worst.
//!
//! A seed decides everything: nodes, limits, programs, faults ([`Scenario`]). A run of it gives a [`Report`] or a
//! [`Violation`], and the same one each time. Read [`scenario`] and [`workload`] for what is tried, [`oracle`] for
//! what is promised.
#![forbid(unsafe_code)]

pub mod cells;
mod ending;
pub mod live;
pub mod memory;
pub mod network;
pub mod node;
pub mod oracle;
pub mod random;
pub mod run;
pub mod scale;
pub mod scenario;
pub mod shrink;
pub mod trace;
pub mod workload;
pub mod world;

pub use oracle::Violation;
pub use run::{Report, run};
pub use scenario::Scenario;
