//! Deterministic simulation of the engine.
#![forbid(unsafe_code)]
