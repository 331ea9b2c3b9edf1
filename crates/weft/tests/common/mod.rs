//! What several tests need so that no scheduler can make them fail.
#![allow(dead_code, clippy::unwrap_used, reason = "each test uses some of it, and a panic is a failed test")]

use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

/// A machine that stands still for a second must not look like a dead peer.
pub(crate) fn patient(config: &mut weft::Config) {
    config.give_up_us = weft_core::limits::GIVE_UP_MAX_US;
}

/// Any port of a loopback address that is this process's alone: nobody else gets one that is free for a while, before a
/// process begins, between two, or when it was killed.
pub(crate) fn own_loopback() -> SocketAddr {
    let [_, a, b, c] = std::process::id().to_be_bytes();
    SocketAddr::from(([127, 64 | a & 63, b, c], 0))
}

/// Stops a process; it does nothing more once this returns. The signal alone is not enough: a thread may go on for a while.
pub(crate) fn stop(process: u32) {
    assert!(Command::new("kill").args(["-s", "STOP", &process.to_string()]).status().unwrap().success());
    let threads = || std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let stands = |thread: std::io::Result<std::fs::DirEntry>| {
        let stat = std::fs::read_to_string(thread.unwrap().path().join("stat")).unwrap();
        stat.rsplit_once(") ").unwrap().1.starts_with('T')
    };
    while !threads().all(stands) {
        std::thread::yield_now();
    }
}

/// Ends what another thread does though a check failed.
pub(crate) struct Raise<'a>(pub(crate) &'a AtomicBool);

impl Drop for Raise<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
