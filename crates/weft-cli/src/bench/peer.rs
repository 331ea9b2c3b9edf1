//! The peers: other people's programs that measure other people's libraries on the same path.
//!
//! | program | what it is asked | what its figure means |
//! |---|---|---|
//! | `fi_pingpong` | `-e msg` or `rdm`, `-m msg` or `tagged` | `usec/xfer`: time / (2 × iterations), so half a round trip, the mean, without warm-up. Its `MB/sec` (10^6) is only size / that: never more than one message is under way |
//! | fabtests | `fi_msg_bw`, `fi_rdm_tagged_bw`, `fi_rma_bw` | `usec/xfer`: time / iterations, with a window of 64 messages; `MB/sec` is size / that |
//! | `ucx_perftest` | `ucp_am_*`, `tag_*`, `ucp_put_*`, `ucp_get`, `ucp_fadd` | `overall_mr`: messages a second, of `*_lat` tests the inverse of half a round trip, of all others iterations / time. Its `overall_lat` is too coarse below a microsecond, its `MB/s` are 2^20 |
//!
//! All of them come down to microseconds a message, taken from the column that is rounded least, from which
//! [`Measurement::of`] makes the figure of the test. So different ideas of a megabyte do not matter.

use std::ffi::OsString;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::job::{Job, LinkKind, Measurement, Operation, Test};
use super::net::{Column, ColumnKind, Contender, RUN_MAX};
use super::place::Place;
use crate::plugin::PROVIDER_VARIABLE;
use crate::process::pair::{Event, Pair, Role};
use crate::process::{Fault, on_path};

/// libfabric's own program that measures, and what is to be said of it.
pub(crate) const PING_PONG: &str = "fi_pingpong";
pub(crate) const PING_PONG_ABSENT: &str = "fi_pingpong is not installed: apt-get install libfabric-bin";
pub(crate) const ONE_UNDER_WAY: &str = "fi_pingpong never has more than one message under way";
/// How often to look whether a server listens, and how long to wait for it.
const LISTEN_POLL: Duration = Duration::from_millis(5);
const LISTEN_MAX: Duration = Duration::from_secs(30);
/// How long a server may take to end after its client has.
const LAST_WORDS_MAX: Duration = Duration::from_millis(200);
/// fabtests counts no message unless there are more than its window of 64.
const FABTESTS_ITERATIONS_MIN: u64 = 65;
/// `ucp_get` and `ucp_fadd` measure latency unless told to have more under way; the `*_bw` tests have 32.
const UCX_OUTSTANDING: &str = "32";

/// A provider of libfabric, with the type of endpoint that it is asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Provider {
    pub(crate) name: &'static str,
    pub(crate) endpoint: &'static str,
}

pub(crate) const TCP: Provider = Provider { name: "tcp", endpoint: "msg" };
pub(crate) const RXM: Provider = Provider { name: "tcp;ofi_rxm", endpoint: "rdm" };
pub(crate) const RXD: Provider = Provider { name: "udp;ofi_rxd", endpoint: "rdm" };
pub(crate) const SHM: Provider = Provider { name: "shm", endpoint: "rdm" };

/// One program as it is run for one operation.
struct Peer {
    /// A peer, but where the provider is Weft's.
    kind: ColumnKind,
    program: &'static str,
    over: &'static str,
    how: &'static str,
    family: Family,
    /// What its processes have in their environment beside our own.
    variables: Vec<(&'static str, OsString)>,
}

#[derive(Clone, Copy)]
enum Family {
    PingPong(Provider),
    Fabtests(Provider),
    /// With the transports that it may use.
    Ucx(&'static str),
}

/// UCX's transports for two processes of a machine, by name. Which is best depends on the size and on the machine.
const UCX_SHM: [(&str, &str); 3] = [("posix,cma", "posix,cma,self"), ("posix", "posix,self"), ("sysv", "sysv,self")];

/// `fi_pingpong` over a provider, with `variables` in its environment.
pub(crate) fn ping_pong(
    kind: ColumnKind,
    provider: Provider,
    variables: Vec<(&'static str, OsString)>,
) -> Box<dyn Contender> {
    let peer = Peer::new(PING_PONG, provider.name, provider.endpoint, Family::PingPong(provider));
    Box::new(Peer { kind, variables, ..peer })
}

/// The peers that can do `operation` and are installed, and remarks on those and on the others.
pub(crate) fn installed(test: Test, operation: Operation, link: LinkKind) -> (Vec<Box<dyn Contender>>, Vec<String>) {
    let mut notes = Vec::new();
    let mut peers = libfabric(test, operation, link, &mut notes);
    peers.extend(ucx(test, operation, link, &mut notes));
    (peers.into_iter().map(|peer| Box::new(peer) as Box<dyn Contender>).collect(), notes)
}

fn libfabric(test: Test, operation: Operation, link: LinkKind, notes: &mut Vec<String>) -> Vec<Peer> {
    let mut peers = Vec::new();
    let streams = test != Test::Latency;
    let providers: &[Provider] = match link {
        LinkKind::Udp => &[TCP, RXM, RXD],
        LinkKind::Shm => &[SHM],
    };
    for &provider in providers {
        let stream = if streams { stream_program(provider, operation) } else { None };
        if let Some((program, how)) = stream.filter(|(program, _)| on_path(program)) {
            peers.push(Peer::new(program, provider.name, how, Family::Fabtests(provider)));
            continue;
        }
        // Endpoints of type msg know no tags.
        let ping_pong = match operation {
            Operation::Send => Some("ping-pong"),
            Operation::Tagged if provider.endpoint != "msg" => Some("ping-pong"),
            _ => None,
        };
        if let Some(how) = ping_pong.filter(|_| on_path(PING_PONG)) {
            peers.push(Peer::new(PING_PONG, provider.name, how, Family::PingPong(provider)));
        }
    }
    if !on_path(PING_PONG) {
        notes.push(PING_PONG_ABSENT.to_string());
    }
    let name = operation.name();
    if streams {
        if peers.iter().any(|peer| matches!(peer.family, Family::PingPong(_))) {
            notes.push(ONE_UNDER_WAY.to_string());
        }
        if operation == Operation::Atomic {
            notes.push("libfabric's tools do not measure atomics".to_string());
        } else if !peers.iter().any(|peer| matches!(peer.family, Family::Fabtests(_))) {
            notes.push(
                "fabtests (fi_msg_bw, fi_rdm_tagged_bw, fi_rma_bw) is not on the PATH: no stream over libfabric; \
                 build it from libfabric's sources, Debian has no package"
                    .to_string(),
            );
        } else if operation == Operation::Send {
            notes.push("send: fi_rdm_tagged_bw's messages are tagged".to_string());
        }
    } else if !matches!(operation, Operation::Send | Operation::Tagged) {
        notes.push(format!("fi_pingpong does not measure {name}"));
    }
    peers
}

/// The program of fabtests that streams, and what it does.
fn stream_program(provider: Provider, operation: Operation) -> Option<(&'static str, &'static str)> {
    match operation {
        Operation::Send if provider.endpoint == "msg" => Some(("fi_msg_bw", "stream")),
        Operation::Send | Operation::Tagged if provider.endpoint != "msg" => Some(("fi_rdm_tagged_bw", "stream")),
        Operation::Write => Some(("fi_rma_bw", "write")),
        Operation::Read => Some(("fi_rma_bw", "read")),
        _ => None,
    }
}

fn ucx(test: Test, operation: Operation, link: LinkKind, notes: &mut Vec<String>) -> Vec<Peer> {
    if !on_path("ucx_perftest") {
        notes.push("ucx_perftest is not installed: apt-get install ucx-utils".to_string());
        return Vec::new();
    }
    let how = match (operation, test) {
        (Operation::Send, Test::Latency) => "ucp_am_lat",
        (Operation::Send, _) => "ucp_am_bw",
        (Operation::Tagged, Test::Latency) => "tag_lat",
        (Operation::Tagged, _) => "tag_bw",
        (Operation::Write, Test::Latency) => "ucp_put_lat",
        (Operation::Write, _) => "ucp_put_bw",
        (Operation::Read, _) => "ucp_get",
        (Operation::Atomic, _) => "ucp_fadd",
    };
    if operation == Operation::Send {
        notes.push("send: UCX sends active messages".to_string());
    }
    let transports: &[(&str, &str)] = match link {
        LinkKind::Udp => &[("tcp", "tcp")],
        LinkKind::Shm => &UCX_SHM,
    };
    let peer = |&(over, allowed)| Peer::new("ucx_perftest", over, how, Family::Ucx(allowed));
    transports.iter().map(peer).collect()
}

impl Contender for Peer {
    fn column(&self) -> Column {
        Column { kind: self.kind, program: self.program, over: self.over, how: self.how }
    }

    fn lacks(&self, _job: &Job) -> Option<String> {
        None
    }

    fn run(&self, job: &Job, place: &Place) -> Result<Measurement, Fault> {
        let job = match self.family {
            Family::Fabtests(_) => Job { iterations: job.iterations.max(FABTESTS_ITERATIONS_MIN), ..*job },
            Family::PingPong(_) | Family::Ucx(_) => *job,
        };
        // A port that is free now may not be in a moment; a second try tells bad luck from a server that cannot start.
        self.attempt(&job, place).or_else(|fault| match fault {
            Attempt::NeverListened(_) => self.attempt(&job, place).map_err(Attempt::fault),
            Attempt::Failed(fault) => Err(fault),
        })
    }
}

enum Attempt {
    NeverListened(Fault),
    Failed(Fault),
}

impl Attempt {
    fn fault(self) -> Fault {
        match self {
            Attempt::NeverListened(fault) | Attempt::Failed(fault) => fault,
        }
    }
}

impl Peer {
    fn new(program: &'static str, over: &'static str, how: &'static str, family: Family) -> Peer {
        Peer { kind: ColumnKind::Peer, program, over, how, family, variables: Vec::new() }
    }

    fn attempt(&self, job: &Job, place: &Place) -> Result<Measurement, Attempt> {
        let who = format!("{} {}", self.program, self.over);
        let port = free_port().map_err(|error| {
            Attempt::Failed(Fault::Start { program: who.clone(), why: format!("no free port: {error}") })
        })?;
        // Over shared memory fabtests have no port; their server's address is the name of a file. Dropped after the pair.
        let named = match self.family {
            Family::Fabtests(provider) if provider == SHM => Some(SharedName::new(place, port)),
            _ => None,
        };
        let mut pair = Pair::new(&who, RUN_MAX);
        pair.start(Role::Server, self.command(Role::Server, job, place, port)).map_err(Attempt::Failed)?;
        let ready = |process| named.as_ref().map_or_else(|| has_port(process, port), SharedName::is_there);
        wait_for_server(&mut pair, ready, &who).map_err(Attempt::NeverListened)?;
        pair.start(Role::Client, self.command(Role::Client, job, place, port)).map_err(Attempt::Failed)?;
        let mut shown = Vec::new();
        let mut running = Role::BOTH.len();
        while running > 0 {
            match pair.next().map_err(|fault| Attempt::Failed(with_server(fault, &mut pair)))? {
                Event::Line(Role::Client, line) => shown.push(line),
                Event::Line(Role::Server, _) => {}
                Event::Ended(_) => running -= 1,
            }
        }
        let measurement = self.read(job, &shown);
        let unread = || Attempt::Failed(Fault::Unread { who, shown: shown.join(" / ") });
        measurement.ok_or_else(unread)
    }

    fn command(&self, role: Role, job: &Job, place: &Place, port: u16) -> Command {
        let mut command = place.command(role, self.program);
        // Who has chosen a provider for his programs has not chosen it for these.
        command.env_remove(PROVIDER_VARIABLE).envs(self.variables.iter().map(|(name, value)| (name, value)));
        let (bytes, iterations) = (job.bytes.to_string(), job.iterations.to_string());
        let (warm_up, port) = (job.warm_up.max(1).to_string(), port.to_string());
        let server = place.address(Role::Server).to_string();
        match self.family {
            Family::PingPong(provider) => {
                let mode = if job.operation == Operation::Tagged { "tagged" } else { "msg" };
                command.args(["-p", provider.name, "-e", provider.endpoint, "-m", mode, "-S", &bytes, "-I"]);
                command.arg(iterations);
            }
            Family::Fabtests(provider) => {
                command.args(["-p", provider.name, "-S", &bytes, "-I", &iterations, "-w", &warm_up]);
                if matches!(job.operation, Operation::Write | Operation::Read) {
                    command.args(["-e", provider.endpoint, "-o", job.operation.name()]);
                }
                if role == Role::Server {
                    command.args(["-s", &server]);
                }
            }
            Family::Ucx(transports) => {
                command.env("UCX_TLS", transports).env("UCX_NET_DEVICES", place.device());
                command.args([
                    "-t",
                    self.how,
                    "-s",
                    &bytes,
                    "-n",
                    &iterations,
                    "-w",
                    &warm_up,
                    "-p",
                    &port,
                    "-v",
                    "-f",
                ]);
                if job.test != Test::Latency && job.operation.answers() {
                    command.args(["-O", UCX_OUTSTANDING]);
                }
                if role == Role::Client {
                    command.arg(server);
                }
                return command;
            }
        }
        match role {
            Role::Server => command.args(["-B", &port]),
            Role::Client => command.args(["-P", &port, &server]),
        };
        command
    }

    fn read(&self, job: &Job, shown: &[String]) -> Option<Measurement> {
        // Of both directions where both carry the message.
        let (message_us, messages) = match self.family {
            Family::PingPong(_) => (libfabric_us(job, shown)?, 2),
            Family::Fabtests(_) => (libfabric_us(job, shown)?, 1),
            Family::Ucx(_) => {
                let directions = if job.test == Test::Latency && !job.operation.answers() { 2 } else { 1 };
                (1e6 / column(shown, "overall_mr", |letter| letter == ',')?, directions)
            }
        };
        let elapsed_us = message_us * (job.iterations * messages) as f64;
        Some(Measurement::of(job, elapsed_us, messages)).filter(|found| found.figure > 0.0 && found.figure.is_finite())
    }
}

/// Microseconds of a message. Both columns that tell have two decimals, so the larger number is the more exact one.
fn libfabric_us(job: &Job, shown: &[String]) -> Option<f64> {
    let message_us = column(shown, "usec/xfer", char::is_whitespace)?;
    let bandwidth = column(shown, "MB/sec", char::is_whitespace)?;
    Some(if bandwidth > message_us { job.bytes as f64 / bandwidth } else { message_us })
}

/// The number under the heading `name` of the table in `shown`.
fn column(shown: &[String], name: &str, separator: fn(char) -> bool) -> Option<f64> {
    let cells = |line: &str| -> Vec<String> {
        line.split(separator).map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_string).collect()
    };
    let mut lines = shown.iter().map(|line| cells(line));
    let index = lines.find_map(|cells| cells.iter().position(|cell| cell == name))?;
    lines.next()?.get(index)?.parse().ok()
}

fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// The file by which a server over libfabric's shm is found. A server that is killed leaves it behind.
struct SharedName(PathBuf);

impl SharedName {
    fn new(place: &Place, port: u16) -> SharedName {
        SharedName(Path::new("/dev/shm").join(format!("{}:{port}", place.address(Role::Server))))
    }

    fn is_there(&self) -> bool {
        self.0.exists()
    }
}

impl Drop for SharedName {
    fn drop(&mut self) {
        // A server that ended by itself has removed it.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Waits until the server is ready; none of these programs tells, and none of their clients tries again.
fn wait_for_server(pair: &mut Pair, ready: impl Fn(u32) -> bool, who: &str) -> Result<(), Fault> {
    let latest = pair.deadline().min(Instant::now() + LISTEN_MAX);
    while Instant::now() < latest {
        pair.still_runs(Role::Server)?;
        if pair.id(Role::Server).is_some_and(&ready) {
            return Ok(());
        }
        std::thread::sleep(LISTEN_POLL);
    }
    Err(Fault::Slow { who: format!("{who}, server: it does not listen;"), seconds: LISTEN_MAX.as_secs() })
}

/// A client that lost its server only says so; the server knows why it ended.
fn with_server(fault: Fault, pair: &mut Pair) -> Fault {
    let Fault::Ended { who, why } = fault else { return fault };
    if who.ends_with(Role::Client.name()) {
        let latest = Instant::now() + LAST_WORDS_MAX;
        while Instant::now() < latest {
            match pair.still_runs(Role::Server) {
                Ok(()) => std::thread::sleep(LISTEN_POLL),
                Err(server) => return Fault::Ended { who, why: format!("{why}; {server}") },
            }
        }
    }
    Fault::Ended { who, why }
}

/// Whether the namespace of `process` has a TCP socket that listens on the port, or a UDP socket bound to it.
fn has_port(process: u32, port: u16) -> bool {
    [("tcp", TCP_LISTEN), ("tcp6", TCP_LISTEN), ("udp", UDP_BOUND), ("udp6", UDP_BOUND)].iter().any(|(name, state)| {
        let table = Path::new("/proc").join(process.to_string()).join("net").join(name);
        names_port(&std::fs::read_to_string(table).unwrap_or_default(), port, state)
    })
}

/// States of sockets, as the kernel's tables call them.
const TCP_LISTEN: &str = "0A";
const UDP_BOUND: &str = "07";

/// Whether a table of the kernel has a socket with this port in this state.
fn names_port(table: &str, port: u16, state: &str) -> bool {
    let ending = format!(":{port:04X}");
    table.lines().skip(1).any(|line| {
        let mut cells = line.split_whitespace().skip(1);
        let local = cells.next().is_some_and(|local| local.ends_with(&ending));
        local && cells.nth(1) == Some(state)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_string).collect()
    }

    fn job(test: Test) -> Job {
        Job {
            test,
            operation: Operation::Send,
            link: LinkKind::Udp,
            bytes: 65_536,
            iterations: 100,
            warm_up: 1,
            span_us: 1,
        }
    }

    #[test]
    fn fi_pingpong_is_read() {
        let shown = lines(
            "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
             64k     100     =100     12m         0.01s   2584.23      25.36       0.04\n",
        );
        let peer = Peer::new("fi_pingpong", "tcp", "ping-pong", Family::PingPong(TCP));
        let latency = peer.read(&job(Test::Latency), &shown).unwrap();
        assert!((latency.figure - 25.36).abs() < 0.005 && (latency.elapsed_us - 5072.0).abs() < 1.0);
        let bandwidth = peer.read(&job(Test::Bandwidth), &shown).unwrap().figure;
        assert!((bandwidth - 2584.23).abs() < 1.0, "its own MB/sec, {bandwidth}");
        assert!(peer.read(&job(Test::Latency), &lines("fi_getinfo(): -61 (No data available)")).is_none());
        assert!(peer.read(&job(Test::Latency), &shown[..1]).is_none());
    }

    #[test]
    fn fabtests_is_read() {
        let shown = lines(
            "bytes   iters   total       time     MB/sec    usec/xfer   Mxfers/sec\n\
             64k     1k      62m         0.03s   1939.57      33.79       0.03\n",
        );
        let peer = Peer::new("fi_msg_bw", "tcp", "stream", Family::Fabtests(TCP));
        let found = peer.read(&job(Test::Bandwidth), &shown).unwrap();
        assert!((found.figure - 1939.57).abs() < 1.0 && (found.elapsed_us - 3379.0).abs() < 0.5);
    }

    #[test]
    fn ucx_perftest_is_read() {
        let shown = lines(
            "[1.0] parser.c:1 UCX WARN something of no matter\n\
             iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n\
             100,4.814,4.994,5.001,1.53,1.53,200251,200000\n",
        );
        let peer = Peer::new("ucx_perftest", "tcp", "ucp_am_lat", Family::Ucx("tcp"));
        let latency = peer.read(&job(Test::Latency), &shown).unwrap();
        assert_eq!((latency.figure, latency.elapsed_us), (5.0, 1000.0));
        let rate = peer.read(&job(Test::Rate), &shown).unwrap();
        assert_eq!((rate.figure, rate.elapsed_us), (0.2, 500.0));
        let read = Job { operation: Operation::Read, ..job(Test::Latency) };
        assert_eq!(peer.read(&read, &shown).unwrap().elapsed_us, 500.0);
    }

    #[test]
    fn only_the_port_and_the_state_that_are_asked_for_are_found() {
        // Not in the tables of this machine, where anybody may take any port at any time.
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
             \x20  0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 7174 1\n\
             \x20  1: 0100007F:1F91 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 7175 1\n";
        assert!(names_port(table, 8080, TCP_LISTEN));
        for (port, state) in [(8080, UDP_BOUND), (8081, TCP_LISTEN), (8082, TCP_LISTEN), (0, TCP_LISTEN)] {
            assert!(!names_port(table, port, state), "{port} {state}");
        }
    }

    #[test]
    fn a_port_that_listens_is_seen() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(has_port(std::process::id(), port));
        let socket = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        assert!(has_port(std::process::id(), socket.local_addr().unwrap().port()));
    }
}
