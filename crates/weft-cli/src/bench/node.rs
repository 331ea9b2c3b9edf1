//! The processes of `weft bench` that are Weft's own: both roles of Weft itself, and of the bare limits.
//!
//! A run is two children of this program, `weft bench-node KIND ROLE ADDRESS JOB`. They speak with their parent in lines:
//!
//! | child → parent | parent → child |
//! |---|---|
//! | `hello TEXT`: how it is reached, in one line of its own making | `hello TEXT`: the other's |
//! | `result FIGURES`: one of the two, when the work is done | end of input: the work is over |
//!
//! The parent closes the server's input when the client has ended. A child whose input is closed and that does not end
//! in time ends itself, so that none outlives a parent that was killed.

use std::io::Write;
use std::net::IpAddr;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::job::{Job, Measurement};
use super::limit;
use super::memory;
use super::place::Place;
use super::weft;
use crate::Failure;
use crate::process::Fault;
use crate::process::pair::{Event, Pair, Role};
use crate::process::parent::Parent;

/// The hidden command that a child is.
pub(crate) const COMMAND: &str = "bench-node";

/// How long a child may take to notice that its input is closed.
const GRACE: Duration = Duration::from_secs(2);

#[derive(Args)]
pub(crate) struct Arguments {
    kind: Kind,
    role: Role,
    #[command(flatten)]
    task: Task,
}

/// What a pair of children does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// Weft itself.
    Weft,
    /// One datagram back and forth, spinning.
    BarePingPong,
    /// Datagrams one way, with segmentation offload.
    BareStream,
    /// A cache line back and forth.
    Line,
    /// Cache lines one way.
    LineStream,
    /// Copies.
    Copy,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Weft => "weft",
            Kind::BarePingPong => "bare-ping-pong",
            Kind::BareStream => "bare-stream",
            Kind::Line => "line",
            Kind::LineStream => "line-stream",
            Kind::Copy => "copy",
        }
    }
}

/// What a child is to do.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Task {
    /// The address of this child's network interface.
    pub(crate) local: IpAddr,
    #[command(flatten)]
    pub(crate) job: Job,
}

/// A child's line to its parent, and through it to the other child.
pub(crate) struct Meeting<'a> {
    parent: Parent<'a>,
}

impl<'a> Meeting<'a> {
    pub(crate) fn new(parent: Parent<'a>) -> Meeting<'a> {
        Meeting { parent }
    }

    /// Tells the parent alone.
    pub(crate) fn tell(&mut self, line: &str) -> Result<(), String> {
        self.parent.tell(line)
    }

    /// Tells the other role `mine` and returns what it tells. To be called once by each.
    pub(crate) fn exchange(&mut self, mine: &str) -> Result<String, String> {
        self.parent.tell(&format!("hello {mine}"))?;
        let line = self.parent.hear()?;
        line.strip_prefix("hello ").map(str::to_string).ok_or_else(|| format!("`{line}` is no hello"))
    }

    /// Whether the other side has done its work. One relaxed load: cheap enough for a loop that spins.
    pub(crate) fn over(&self) -> bool {
        self.parent.is_gone()
    }
}

/// A child's whole life.
pub(crate) fn run(arguments: Arguments, out: &mut dyn Write) -> Result<(), Failure> {
    let Arguments { kind, role, task } = arguments;
    let mut meeting = Meeting::new(Parent::new(out, GRACE));
    let body = match (kind, role) {
        (Kind::Weft, Role::Server) => weft::server,
        (Kind::Weft, Role::Client) => weft::client,
        (Kind::BarePingPong, Role::Server) => limit::ping_pong_server,
        (Kind::BarePingPong, Role::Client) => limit::ping_pong_client,
        (Kind::BareStream, Role::Server) => limit::stream_server,
        (Kind::BareStream, Role::Client) => limit::stream_client,
        (Kind::Line, Role::Server) => memory::line_server,
        (Kind::Line, Role::Client) => memory::line_client,
        (Kind::LineStream, Role::Server) => memory::stream_server,
        (Kind::LineStream, Role::Client) => memory::stream_client,
        (Kind::Copy, Role::Server) => memory::copy_server,
        (Kind::Copy, Role::Client) => memory::copy_client,
    };
    let found = body(&task, &mut meeting).map_err(Failure::Told)?;
    if let Some(measurement) = found {
        let line = serde_json::to_string(&measurement).map_err(|error| Failure::Told(error.to_string()))?;
        writeln!(out, "result {line}")?;
        out.flush()?;
    }
    Ok(())
}

/// Runs both children and returns what they found.
pub(crate) fn measure(kind: Kind, job: &Job, place: &Place, limit: Duration) -> Result<Measurement, Fault> {
    let program = std::env::current_exe();
    let program = program.map_err(|error| Fault::Start { program: "weft".to_string(), why: error.to_string() })?;
    let program = program.to_string_lossy();
    let mut pair = Pair::new(kind.name(), limit);
    for role in Role::BOTH {
        let mut command = place.command(role, &program);
        command.args([COMMAND, kind.name(), role.name(), &place.address(role).to_string()]).args(job.words());
        pair.start(role, command)?;
    }
    let mut found = None;
    let mut running = Role::BOTH.len();
    while running > 0 {
        match pair.next()? {
            Event::Line(role, line) => {
                if line.starts_with("hello ") {
                    pair.tell(role.other(), &line);
                } else {
                    let measurement = line.strip_prefix("result ").and_then(|text| serde_json::from_str(text).ok());
                    let unread = || Fault::Unread { who: format!("{}, {role}", kind.name()), shown: line.clone() };
                    found = Some(measurement.ok_or_else(unread)?);
                }
            }
            Event::Ended(role) => {
                running -= 1;
                pair.close(role.other());
            }
        }
    }
    found.ok_or_else(|| Fault::Unread { who: kind.name().to_string(), shown: "nothing".to_string() })
}
