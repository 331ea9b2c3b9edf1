//! `weft demo`: two NICs in two processes do everything that Weft can do, and check every byte of it.
//!
//! The demo is a list of [`Act`]s. Each has two halves that stand side by side in the source: `here` runs in this process
//! and `there` in the second one, which is this program again ([`partner`]). Both run on a [`Stage`]: a NIC, a way to the
//! other NIC, and a line to the other process over which the two agree when to begin. At last the second process is
//! killed in mid-transfer and started again ([`restart`]).

mod atomics;
mod completion;
mod memory;
mod messages;
mod partner;
mod refusals;
mod restart;
mod stage;

use std::io::Write;
use std::net::UdpSocket;
use std::time::Instant;

use crate::Failure;
use stage::{Outcome, Stage};

pub(crate) use partner::{COMMAND, partner};

/// Something that two NICs do with each other.
struct Act {
    /// What it is called in the table.
    name: &'static str,
    /// How both halves convince themselves that it worked.
    verified: &'static str,
    here: fn(&mut Stage<'_>) -> Outcome<Amount>,
    there: fn(&mut Stage<'_>) -> Outcome<()>,
}

/// How much was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Amount {
    operations: u64,
    bytes: u64,
}

const ACTS: &[Act] = &[
    messages::LENGTHS,
    messages::EARLY,
    messages::TAGGED,
    messages::DIRECTED,
    messages::MULTI,
    messages::INJECT,
    messages::LISTS,
    memory::WRITE,
    memory::IMMEDIATE,
    memory::READ,
    atomics::FETCH_ADD,
    atomics::COMPARE_SWAP,
    atomics::FLOAT,
    atomics::EXTREMES,
    completion::FENCE,
    completion::LEVELS,
    completion::DATAGRAMS,
    completion::DESCRIPTOR,
    completion::CANCEL,
    refusals::WRONG_KEY,
    refusals::OUT_OF_BOUNDS,
    refusals::DEREGISTERED,
    refusals::TOO_LONG,
    refusals::UNKNOWN_PEER,
];

const NEXT: &str = "
next:
  weft bench lat                          latency beside libfabric, UCX and bare UDP sockets
  weft sim faults                         the same engine, on a network that does its worst
  weft decode captures/rxe_rc_write.pcap  what is in the packets of an RDMA capture
";

/// Runs the demo.
pub(crate) fn demo(out: &mut dyn Write) -> Result<(), Failure> {
    let begun = Instant::now();
    let broken = |text: String| Failure::Told(format!("demo: {text}"));
    let bind = loopback().map_err(broken)?;
    let partner = partner::start(bind)?;
    let stage = &mut Stage::open(bind, Box::new(partner)).map_err(broken)?;
    writeln!(out, "weft demo: two NICs in two processes, over UDP on the loopback")?;
    writeln!(out, "  this one   {}, process {}", stage.endpoint.address(), std::process::id())?;
    let process = stage.process();
    writeln!(out, "  the other  {}, process {process}\n", stage.other)?;
    writeln!(out, "{:<30} {:>6} {:>10}  verified", "operation", "count", "bytes")?;
    for (number, act) in ACTS.iter().enumerate() {
        out.flush()?;
        let amount = stage.perform(number, act).map_err(broken)?;
        row(out, act.name, amount, act.verified)?;
    }
    restart::restart(stage, out)?;
    let counted = stage.domain.statistics();
    writeln!(
        out,
        "\nthis NIC: {} datagrams out, {} in; {} packets out, {} in; {} retransmissions",
        counted.datagrams_sent,
        counted.datagrams_received,
        counted.packets_sent,
        counted.packets_received,
        counted.retransmissions
    )?;
    let (checks, compared) = stage.checked();
    let seconds = begun.elapsed().as_secs_f64();
    writeln!(out, "all {checks} checks passed, {} compared, in {seconds:.1} s", in_units(compared))?;
    Ok(out.write_all(NEXT.as_bytes())?)
}

/// Where both NICs are: the first address of the loopback that can be sent to.
fn loopback() -> Result<&'static str, String> {
    let mut reasons = Vec::new();
    for bind in ["127.0.0.1:0", "[::1]:0"] {
        match reaches_itself(bind) {
            Ok(()) => return Ok(bind),
            Err(error) => reasons.push(format!("{}: {error}", bind.trim_end_matches(":0"))),
        }
    }
    let reasons = reasons.join("; ");
    Err(format!("the loopback interface does not work ({reasons}); bring it up: ip link set lo up"))
}

/// Sends a datagram to its own address: what is wrong with an interface is told then, and not when a socket is bound.
fn reaches_itself(bind: &str) -> std::io::Result<()> {
    let socket = UdpSocket::bind(bind)?;
    socket.send_to(&[0], socket.local_addr()?).map(drop)
}

fn row(out: &mut dyn Write, name: &str, amount: Amount, verified: &str) -> Result<(), Failure> {
    Ok(writeln!(out, "{name:<30} {:>6} {:>10}  {verified}", amount.operations, in_units(amount.bytes))?)
}

/// Bytes as people say them.
fn in_units(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..0x10_0000 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MiB", bytes as f64 / 1048576.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_narrow_and_names_differ() {
        for (number, act) in ACTS.iter().enumerate() {
            assert!(act.name.len() <= 30 && act.verified.len() <= 49, "{}", act.name);
            assert!(ACTS.iter().skip(number + 1).all(|other| other.name != act.name), "{}", act.name);
        }
    }

    #[test]
    fn bytes_have_units() {
        assert_eq!([0, 1023, 1536, 16 << 20].map(in_units), ["0 B", "1023 B", "1.5 KiB", "16.0 MiB"]);
    }
}
