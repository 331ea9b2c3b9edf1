//! Peers on this machine that die, lie, or stop: real processes, reached through shared memory.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "clippy.toml allows them in tests, but not in the functions that tests call"
)]

#[path = "../common/mod.rs"]
mod common;

mod child;
mod environment;
mod hostile;
mod kill;
mod others;
mod traffic;

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Long enough that only a hang reaches it.
const PATIENCE: Duration = Duration::from_secs(60);

/// One test at a time: some count what the whole process has open, or how its processes are scheduled, and a program that
/// one has just written cannot be run while another one starts a process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A port for processes that are started.
fn place() -> SocketAddr {
    std::net::UdpSocket::bind(common::own_loopback()).unwrap().local_addr().unwrap()
}

/// What a process does that one of the tests has started. Alone it has nothing to do.
#[test]
fn role() {
    let Some((role, arguments)) = child::role() else { return };
    match role.as_str() {
        "victim" => kill::victim(&arguments),
        "third" => kill::third(&arguments),
        "foreigner" => others::foreigner(&arguments),
        "hostile" => hostile::hostile(&arguments),
        "resident" => environment::resident(&arguments),
        "contained" => environment::contained(&arguments),
        "recluse" => environment::recluse(&arguments),
        "leaver" => others::leaver(&arguments),
        "forker" => environment::forker(&arguments),
        other => panic!("no role {other}"),
    }
}

/// A number from the environment, for runs that are longer than usual.
fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}
