//! A complete RDMA NIC in software: messages, remote memory and atomics between processes, over ordinary UDP, without
//! special hardware, kernel modules or privileges.
//!
//! A [`Domain`] is one NIC. It has [`Endpoint`]s, which send and receive; [`CompletionQueue`]s, in which operations report
//! their end; [`Counter`]s; an [`AddressVector`] of peers; and [`MemoryRegion`]s that peers may reach. Domains of the same
//! [`Fabric`] hear each other. All of them are cheap handles: clone and send them as needed, everything closes when its
//! last handle is dropped, in the right order.
//!
//! ```
//! use std::time::Duration;
//! use weft::{Access, Fabric};
//!
//! let patience = Some(Duration::from_secs(10));
//! let fabric = Fabric::new("example")?;
//!
//! // Two NICs in one process, over UDP. Usually they are in two.
//! let (a, b) = (fabric.udp("127.0.0.1:0")?, fabric.udp("127.0.0.1:0")?);
//! # let (a, b) = {
//! #     use weft::Progress::Automatic; // so that one thread can play both
//! #     drop((a, b));
//! #     let make = || fabric.domain().progress(Automatic).udp("127.0.0.1:0");
//! #     (make()?, make()?)
//! # };
//! let (a_queue, b_queue) = (a.completion_queue(128), b.completion_queue(128));
//! let (a_end, b_end) = (a.endpoint(&a_queue)?, b.endpoint(&b_queue)?);
//!
//! // Addresses and keys are exchanged by the program, here by hand.
//! let to_b = a.addresses().insert(b_end.address())?;
//! let memory = b.register(4096, Access::REMOTE)?;
//! let remote = memory.remote();
//!
//! // A message. Buffers are given to the NIC and come back with the completion: no copy, and nothing to get wrong.
//! b_end.receive(vec![0; 1024])?;
//! a_end.send(to_b, b"hello".to_vec())?;
//! let received = b_queue.wait(patience)?.expect("in time").ok()?;
//! assert_eq!(received.into_bytes()?, b"hello");
//! a_queue.wait(patience)?.expect("in time").ok()?;
//!
//! // A remote write: the program of b takes no part.
//! a_end.write(to_b, remote.at(64), b"straight into memory".to_vec())?;
//! a_queue.wait(patience)?.expect("in time").ok()?;
//! assert_eq!(memory.to_vec(64, 20)?, b"straight into memory");
//!
//! // A remote atomic.
//! memory.store_u64(0, 40)?;
//! a_end.fetch_add(to_b, remote, 2u64)?;
//! let fetched = a_queue.wait(patience)?.expect("in time").ok()?;
//! assert_eq!(fetched.value::<u64>()?, 40);
//! assert_eq!(memory.load_u64(0)?, 42);
//! # Ok::<(), weft::Error>(())
//! ```
//!
//! # Memory
//! Operations take whatever becomes a [`Buffer`]: vectors and boxes of bytes, shared bytes, parts of a region
//! ([`MemoryRegion::buffer`]), and lists of those. The NIC owns it until the completion gives it back, so that forgetting
//! anything at all can leak memory but never corrupt it. [`Endpoint::scope`] does the same with borrowed slices. Short
//! messages can be copied ([`Endpoint::inject`]).
//!
//! All of it works with the memory of devices as well ([`device`], [`Registrable::on`]): a part of a region on a device
//! is a buffer as any other. On its way to a link that knows only the host's memory it is staged, a long piece at a time;
//! [`Domain::transfer_counters`] tells.
//!
//! # Progress
//! With [`Progress::Manual`] the NIC works inside of the calls that post, read and wait; with [`Progress::Automatic`] a
//! thread does it. Either way every handle may be used by every thread.
//!
//! # Order
//! - Messages (tagged or not) of one endpoint to another meet receives in the order in which they were posted, unless
//!   [`Options::unordered`] was set. A completion comes when its message is complete, so a short one may come before that
//!   of a longer message which matched earlier (P-6.4 in `docs/protocol.md`).
//! - Writes, reads and atomics with [`Options::ordered`] take effect after earlier such ones that touch the same bytes.
//! - There is no other order: writes, reads and atomics are executed, and complete, as they come. An operation with
//!   [`Options::fence`] begins when all earlier ones of its endpoint to the same target are settled (P-6.5).
//! - Bytes of one operation are placed in any order; only its completion says that they are there. A write with immediate
//!   data gives the target a completion after all its bytes are in place (P-5.6).
//! - Every operation ends with one completion (none for those that are silent and succeed); every message arrives once,
//!   or its sender is told.
//!
//! # Errors
//! Calls fail with an [`Error`], operations with a [`Failure`] in their [`Completion`]. [`Error::blame`] says who has to act.
#![forbid(unsafe_code)]

mod address_vector;
mod atomic;
mod completion_queue;
pub mod connection;
mod counter;
mod deferred;
mod domain;
mod driver;
mod endpoint;
mod error;
mod exit;
mod fabric;
pub mod limits;
mod local;
mod memory_region;
mod numbers;
mod operation;
mod poll_backoff;
pub mod raw;
mod registrations;
mod scope;
mod vector;

pub use address_vector::AddressVector;
pub use atomic::Element;
pub use completion_queue::{Completion, CompletionQueue};
pub use counter::Counter;
pub use domain::{Domain, DomainBuilder, Road, TransferCounters};
pub use driver::Progress;
pub use endpoint::{Endpoint, EndpointOptions};
pub use error::{Blame, Error, Refused, Result};
pub use fabric::Fabric;
pub use local::LocalStatistics;
pub use memory_region::{MemoryRegion, Registrable, RemoteAddress};
pub use operation::{Options, ReceiveOptions};
pub use scope::Scope;

pub use weft_core::address::{Address, PeerId};
pub use weft_core::atomic::{AtomicOperation, Datatype};
pub use weft_core::command::{Level, PostError};
pub use weft_core::delivery::{EndpointKind, OpenError, Side};
pub use weft_core::engine::{Config, State, Statistics};
pub use weft_core::event::{CompletionKind, Failure};
pub use weft_core::memory::{Access, Fault};
/// Links that a domain can be opened on, and decorators for them.
pub use weft_link as link;
/// Kinds of device memory, which of them are there, and their operations.
pub use weft_mem::device;
pub use weft_mem::{Addressing, Buffer, RegisterError};

/// The README's example, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
