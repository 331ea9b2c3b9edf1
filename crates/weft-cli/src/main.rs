//! The `weft` command. [`Arguments`] is the whole of its command line: help, completions and the manual page are made
//! from it.
#![forbid(unsafe_code)]

mod bench;
mod decode;
mod demo;
mod dissect;
mod encode;
mod info;
mod input;
mod json;
mod manual;
mod plugin;
mod process;
mod progress;
mod protocol;
mod provider;
mod run;
mod sim;

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

/// An RDMA NIC in software
#[derive(Parser)]
#[command(name = "weft", version, args_override_self = true, long_about = ABOUT, after_help = AFTER)]
struct Arguments<C: Subcommand> {
    #[command(subcommand)]
    command: Option<C>,
}

#[derive(Subcommand)]
enum Any {
    #[command(flatten)]
    User(Command),
    #[command(flatten)]
    Child(Child),
}

const ABOUT: &str = "\
An RDMA NIC in software: messages with tag matching, remote reads and writes
and atomics between processes, over UDP and, inside a machine, shared memory.
This command runs programs on it, shows what it finds on a machine, measures
it beside other libraries, and decodes packets of RDMA protocols.";

const AFTER: &str = "\
Without a command, the demo runs.

Exit status: 0 success (bad packets are marked in the output), 1 a file cannot
be read or used or a program failed, 2 the command line is wrong; of run that
of the program.

Example:
  weft decode captures/rxe_rc_write.pcap";

#[derive(Subcommand)]
enum Command {
    /// Run every operation between two NICs in two processes, and check every byte
    #[command(after_help = "Example:\n  weft demo")]
    Demo,
    /// Run a program that uses libfabric (fi_info, fi_pingpong, mpirun, ...) on Weft
    Run(run::Arguments),
    /// Show the RDMA packets of a capture
    Decode(decode::Arguments),
    /// Make a packet of any protocol that is known
    Encode(encode::Arguments),
    /// List, show and check protocol definitions
    #[command(subcommand, after_help = "Example:\n  weft protocol show roce-v2")]
    Protocol(protocol::Command),
    /// Measure Weft beside other libraries and the limits of the machine
    #[command(subcommand, after_help = "Example:\n  weft bench lat --sizes 8,64,4k", after_long_help = bench::AFTER)]
    Bench(bench::Command),
    /// Show device memory, copies between processes, network, libfabric plug-in and limits
    #[command(after_help = info::AFTER)]
    Info {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Test the engine on a simulated network that does its worst
    #[command(subcommand, after_help = "Example:\n  weft sim faults --seeds 2000")]
    Sim(sim::Command),
    /// Print the completions of a shell
    #[command(after_help = "Example:\n  weft completions bash > ~/.local/share/bash-completion/completions/weft")]
    Completions {
        /// Shell that reads them
        shell: Shell,
    },
    /// Print the manual page weft(1)
    #[command(hide = true)]
    Man,
}

/// The processes that the benchmarks and the demo start of this program.
#[derive(Subcommand)]
enum Child {
    #[command(name = bench::node::COMMAND, hide = true, override_usage = bench::CHILD_USAGE)]
    BenchNode(bench::node::Arguments),
    #[command(name = bench::device::COMMAND, hide = true, override_usage = bench::CHILD_USAGE)]
    BenchDeviceNode(bench::device::ChildArguments),
    #[command(name = bench::place::JANITOR, hide = true, override_usage = bench::CHILD_USAGE)]
    BenchJanitor { names: Vec<String> },
    #[command(name = demo::COMMAND, hide = true, override_usage = "This command is for `weft demo` alone")]
    DemoPartner { bind: String },
}

/// Why the command ends early.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command line makes no sense.
    Usage(String),
    /// The input is at fault; the text says how.
    Told(String),
    /// As [`Failure::Told`], with an exit status of its own.
    Status(u8, String),
    /// Nobody reads the output any more.
    Closed,
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        if error.kind() == io::ErrorKind::BrokenPipe { Failure::Closed } else { Failure::Told(error.to_string()) }
    }
}

impl Failure {
    fn about(self, what: &str) -> Failure {
        match self {
            Failure::Told(text) => Failure::Told(format!("{what}: {text}")),
            other => other,
        }
    }
}

fn main() -> ExitCode {
    let mut out = BufWriter::new(io::stdout().lock());
    let outcome = match Arguments::try_parse() {
        Ok(Arguments { command: Some(Any::Child(child)) }) => execute_child(child, &mut out),
        Ok(Arguments { command: Some(Any::User(command)) }) => execute(command, &mut out),
        Ok(Arguments { command: None }) => execute(Command::Demo, &mut out),
        Err(error) if error.use_stderr() => return wrong_arguments(&error),
        // Help and version.
        Err(shown) => write!(out, "{shown}").map_err(Failure::from),
    };
    let outcome = outcome.and_then(|()| Ok(out.flush()?));
    match outcome {
        Ok(()) | Err(Failure::Closed) => ExitCode::SUCCESS,
        Err(Failure::Told(text)) => {
            // Where not even this can be written, the exit status still tells.
            let _ = writeln!(io::stderr(), "weft: {text}");
            ExitCode::from(1)
        }
        Err(Failure::Status(status, text)) => {
            let _ = writeln!(io::stderr(), "weft: {text}");
            ExitCode::from(status)
        }
        Err(Failure::Usage(text)) => {
            let _ = writeln!(io::stderr(), "weft: {text}\nTry `weft help`.");
            ExitCode::from(2)
        }
    }
}

fn wrong_arguments(error: &clap::Error) -> ExitCode {
    let text = error.to_string();
    // The rest is the help of a command whose subcommand is missing.
    let text = text.strip_prefix("error: ").map_or_else(|| text.clone(), |told| format!("weft: {told}"));
    let _ = write!(io::stderr(), "{text}");
    ExitCode::from(2)
}

fn execute(command: Command, out: &mut dyn Write) -> Result<(), Failure> {
    match command {
        Command::Demo => demo::demo(out),
        Command::Run(arguments) => run::run(&arguments, out),
        Command::Decode(arguments) => decode::decode(&arguments, out),
        Command::Encode(arguments) => encode::encode(&arguments, out),
        Command::Protocol(command) => protocol::run(&command, out),
        Command::Bench(command) => bench::run(command, out),
        Command::Info { json } => info::info(json, out),
        Command::Sim(command) => sim::sim(command, out),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Arguments::<Command>::command(), "weft", &mut script);
            Ok(out.write_all(&script)?)
        }
        Command::Man => Ok(out.write_all(manual::page()?.as_bytes())?),
    }
}

fn execute_child(child: Child, out: &mut dyn Write) -> Result<(), Failure> {
    match child {
        Child::BenchNode(arguments) => bench::node::run(arguments, out),
        Child::BenchDeviceNode(arguments) => bench::device::child(&arguments, out),
        Child::BenchJanitor { names } => bench::place::clean_up_when_left(&names),
        Child::DemoPartner { bind } => demo::partner(&bind, out),
    }
}
