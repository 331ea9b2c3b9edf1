//! Bytes to generic RDMA commands and back.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod capture;
pub mod checksum;
pub mod command;
pub mod envelope;
pub mod graph;
pub mod header;
pub mod limits;
pub mod oracle;
pub mod table;
