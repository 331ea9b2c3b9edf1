//! Memory of the process: buffers of operations, and regions that peers may reach.
//!
//! Read [`HostMemory`] first: it is what the engine sees as [`weft_core::memory::Memory`]. A user's operation works on
//! a [`Buffer`], which is attached while the operation is under way and taken back when it is done. Memory that peers
//! can reach is a [`MemoryRegion`], registered under a key.
//!
//! This is an unsafe room. What holds everywhere in it: memory that a peer or another thread can write is never seen
//! through a reference, only through [`copy`](mod@copy), [`crc`] and atomics, which take raw pointers; and every access
//! is checked against the tables of [`HostMemory`] at the time it is made.

mod atomic;
pub mod attach;
pub mod bare;
pub mod borrowed;
mod buffer;
pub mod cache;
pub mod calibrate;
pub mod copy;
pub mod crc;
pub mod device;
pub mod exit;
mod foreign;
pub mod fork;
mod guarded;
mod host;
mod keys;
pub mod known;
pub mod limits;
pub mod lock;
mod mapping;
mod region;
mod segment;
mod shared;
mod staging;
#[cfg(not(loom))]
mod sync;
#[cfg(loom)]
pub mod sync;
#[cfg(test)]
mod tests;

pub use buffer::{Buffer, Lent};
pub use crc::crc32c;
pub use foreign::{Copying, DeviceGrant, Foreign, Inside};
pub use host::{AttachError, HostMemory};
pub use mapping::{MapError, Mapping};
pub use region::{Addressing, MemoryRegion, Region, RegisterError};
pub use segment::{DeviceSegment, Segment, SegmentMut, Sendable};
pub use shared::{Shareable, set_length};
pub use staging::{Pinned, StagingCounters};
