//! The libfabric face of Weft.
//!
//! Read [`abi`] first: it is the C interface that the provider and its callers share.

pub mod abi;
