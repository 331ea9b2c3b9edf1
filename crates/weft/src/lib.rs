//! A complete RDMA NIC in software.
#![forbid(unsafe_code)]
