//! The NIC engine, without IO.
//!
//! The engine takes the time, datagrams and commands, and gives datagrams, timers and completions. It
//! reads no clock, no socket and no random source of its own, so that the simulator runs the very code that the product
//! runs. Read `docs/protocol.md` first: comments cite its clauses (`P-7.6`).
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod address;
pub mod atomic;
pub mod command;
pub mod delivery;
pub mod engine;
pub mod event;
mod flow;
pub mod hash;
pub mod limits;
pub mod memory;
mod node;
pub mod packet;
mod random;
pub mod session;
pub mod slab;
pub mod time;
pub mod trigger;
