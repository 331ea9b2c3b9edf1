//! The C interface of libfabric, one module for each of its headers.
//!
//! The base is libfabric 1.17; what came later is marked `since` and stands at the end of its structure, so that a
//! caller of any version sees its own layout as a prefix of ours. Read no further than the caller's version permits.
//! Enumerations are plain integers, because a C caller can pass any value. The lists that define the interface also
//! yield [`RECORDS`] and [`CONSTANTS`], which `tests/layout.rs` compares with the installed headers.
#![expect(non_camel_case_types, reason = "the names of the C interface")]
#![expect(missing_docs, reason = "the manual pages of libfabric describe these fields and values")]

#[macro_use]
mod record;

mod atomic;
mod cm;
mod domain;
mod endpoint;
mod eq;
mod errno;
mod fabric;
mod log;
mod rma;
mod tagged;
mod trigger;

pub use self::atomic::*;
pub use self::cm::*;
pub use self::domain::*;
pub use self::endpoint::*;
pub use self::eq::*;
pub use self::errno::*;
pub use self::fabric::*;
pub use self::log::*;
pub use self::record::{BASE, CONSTANTS, Constants, Field, NEWEST, RECORDS, Record, Version};
pub use self::rma::*;
pub use self::tagged::*;
pub use self::trigger::*;
