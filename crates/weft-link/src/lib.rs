//! Ways between nodes: what moves datagrams for the engine.
//!
//! Everything here is a [`Link`]. [`udp::UdpLink`] is the one that leaves the machine, [`loopback`] joins nodes inside
//! of one process, and the decorators wrap any link: [`fault::Faulty`] loses, repeats, reorders, damages and delays,
//! [`capture::Capture`] writes what passes to a pcap file, [`staged::Staged`] sends from the memory of devices. [`bare`]
//! measures what plain sockets can do, which is the limit that a link is compared with. Read [`link`] first.
//!
//! [`shm`] is no link: it moves records, not datagrams, between processes of one machine.
#![cfg(target_os = "linux")]

pub mod bare;
pub mod capture;
pub mod fault;
pub mod limits;
pub mod link;
pub mod loopback;
mod segment;
pub mod shm;
pub mod staged;
pub mod udp;
pub mod wait;

pub use link::{Counters, Incoming, Link, Notice, Outgoing, SendError};
pub use segment::Segment;
