//! Protocols inside of TCP: segments to a stream of bytes, the stream to units that the tables decode.
//!
//! [`Reassembly`] puts the segments of one direction in order; [`MpaConnection`] cuts both directions into MPA start
//! frames and FPDUs.

mod mpa;
mod reassembly;

pub use mpa::{MpaConnection, MpaError, MpaStep, MpaUnit, Side, mark};
pub use reassembly::{Reassembly, StreamError};
