//! Bytes to generic RDMA commands and back, driven by protocol tables.
//!
//! A frame goes through the parse graph ([`graph::walk`]) to a protocol ([`table::Tables::identify`]), through that
//! protocol's tables to a [`command::Command`] ([`table::Tables::decode`]), and the same tables make packets
//! ([`table::Tables::encode`]). Protocols inside of TCP come through [`stream`]. Read [`table`] first.
//!
//! ```
//! use weft_wire::command::{Command, Flags, Kind, Slot};
//! use weft_wire::table::{Decoded, Outer, Tables};
//!
//! let tables = Tables::builtin()?;
//! let srdma = tables.find("srdma").unwrap();
//! let write = Command::new(Kind::Write, Flags::FIRST | Flags::LAST)
//!     .with(Slot::Key, 0xfeed)
//!     .with(Slot::Address, 0x1000)
//!     .with(Slot::Length, 5);
//! let mut packet = [0; 256];
//! let length = tables.encode(srdma, &write, b"hello", &Outer::default(), &mut packet)?;
//!
//! let mut decoded = Decoded::default();
//! tables.decode(srdma, &packet[..length], &mut decoded)?;
//! assert_eq!(decoded.command.address(), 0x1000);
//! assert_eq!(decoded.payload(&packet[..length]), b"hello");
//! assert!(tables.verify(&decoded, &packet[..length], &Outer::default()).is_intact());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The crate does no IO and holds no unsafe code; being `no_std` is the proof of the first.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod bundle;
pub mod capture;
pub mod checksum;
pub mod command;
pub mod connection;
pub mod envelope;
pub mod graph;
pub mod header;
pub mod limits;
pub mod oracle;
pub mod stream;
pub mod table;
pub mod transaction;
