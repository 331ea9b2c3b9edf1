//! Ways between nodes.
#![cfg(unix)]
