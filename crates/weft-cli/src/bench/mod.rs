//! `weft bench`: what things cost, always beside what they are to be compared with.
//!
//! Read [`net`] for the order in which the network benchmarks run, [`job`] for what is measured, [`crate::process`] for
//! how two processes are kept in hand, and [`node`] for where Weft itself and the bare limits do their work.

mod decode;
pub(crate) mod device;
mod job;
mod limit;
mod matching;
mod memory;
mod net;
pub(crate) mod node;
mod ofi;
mod peer;
pub(crate) mod place;
mod table;
mod weft;

use std::io::Write;

use clap::builder::{PossibleValuesParser, RangedU64ValueParser, TypedValueParser};
use clap::{Args, Subcommand, ValueEnum};

use crate::Failure;
use job::Test;

pub(crate) const CHILD_USAGE: &str = "This command is for `weft bench` alone";

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Latency in µs: half a round trip; of read and atomic, a whole one
    #[command(after_help = "Example:\n  weft bench lat --sizes 8,64,4k --rounds 3 --quick")]
    Lat(net::Arguments),
    /// Bandwidth in MB/s (10^6 bytes), many messages under way
    #[command(after_help = "Example:\n  weft bench bw --op write --link shm --sizes 64k,1m")]
    Bw(net::Arguments),
    /// Messages in millions a second, many under way
    #[command(after_help = "Example:\n  weft bench rate --op tagged --sizes 8")]
    Rate(net::Arguments),
    /// Messages from and to memory of devices, beside plain copies by the device
    Device(device::Arguments),
    /// Weft as a provider of libfabric beside shm, tcp, tcp;ofi_rxm and udp;ofi_rxd, all by fi_pingpong
    Ofi(ofi::Arguments),
    /// Cost of decoding a packet, by tables and by hand-written code, in turns
    #[command(after_help = "Example:\n  weft bench decode --rounds 51")]
    Decode {
        /// Rounds, of which the median is shown
        #[arg(long, value_name = "N", default_value_t = decode::ROUNDS_DEFAULT, value_parser = up_to(usize::MAX))]
        rounds: usize,
        /// Print one JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// Cost of matching a message, by how many receives or messages wait
    #[command(after_help = "Example:\n  weft bench match --rounds 11")]
    Match {
        /// Rounds, of which the median is shown
        #[arg(long, value_name = "N", default_value_t = matching::ROUNDS_DEFAULT, value_parser = up_to(usize::MAX))]
        rounds: usize,
        /// Print one JSON object a line
        #[arg(long)]
        json: bool,
    },
}

pub(crate) const AFTER: &str = "\
Two processes, on the loopback, in two namespaces, or over shared memory. A
round is one run of each contender, so that whatever else the machine does hits
all alike: Weft, then the peers that are installed, then the limits. Ratios are
what to look at; times mean little from one machine to the next.

--link udp: fi_pingpong and, where they are on the PATH, fabtests' streaming
tests over libfabric's tcp and udp;ofi_rxd; ucx_perftest over tcp. The limit:
bare UDP sockets.

--link shm: the same programs over libfabric's shm and over UCX's posix with
cma, posix and sysv. The limits: a cache line that goes to and fro (lat), a
stream of cache lines (rate), memcpy of that size (lat, bw). All processes are
pinned to the same two processors. Virtual processors move, so the cache line is
taken before and after each run, and weft / bare line is by the lines around
Weft's own runs.

To have the peers on Debian: apt-get install libfabric-bin ucx-utils iproute2.
fabtests is in no Debian release: build it from libfabric's sources and put it
on the PATH.

Example:
  weft bench lat --sizes 8,64,4k";

/// How a benchmark is run and shown.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Common {
    /// Run short rounds: shows that all works, measures little
    #[arg(long)]
    quick: bool,
    /// Print one JSON object a line, with every round
    #[arg(long)]
    json: bool,
}

/// Takes numbers from 1 to `most`.
fn up_to(most: usize) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=most as u64)
}

/// Takes some of the values of an enumeration.
fn one_of<T: ValueEnum + Send + Sync + 'static>(values: &[T]) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(values.iter().filter_map(ValueEnum::to_possible_value))
        .try_map(|name| T::from_str(&name, false))
}

/// Reads lengths of messages: `8`, `64k`, `1m` or `1g`.
fn size(most: usize) -> impl TypedValueParser<Value = usize> {
    clap::builder::StringValueParser::new().try_map(move |text| parse_size(&text, most))
}

fn parse_size(text: &str, most: usize) -> Result<usize, String> {
    let unit = match text.chars().last().map(|last| last.to_ascii_lowercase()) {
        Some('k') => 1 << 10,
        Some('m') => 1 << 20,
        Some('g') => 1 << 30,
        _ => 1,
    };
    let digits = if unit == 1 { text } else { text.get(..text.len() - 1).unwrap_or_default() };
    let bytes = digits.parse().ok().and_then(|number: usize| number.checked_mul(unit));
    let bytes = bytes.filter(|bytes| (1..=most).contains(bytes));
    bytes.ok_or_else(|| format!("`{text}` is no size from 1 to {most} bytes"))
}

/// What `weft bench decode` and `weft bench match` can be told.
pub(crate) struct Options {
    rounds: usize,
    json: bool,
}

/// `weft bench`.
pub(crate) fn run(command: Command, out: &mut dyn Write) -> Result<(), Failure> {
    match command {
        Command::Lat(arguments) => net::run(Test::Latency, arguments, out),
        Command::Bw(arguments) => net::run(Test::Bandwidth, arguments, out),
        Command::Rate(arguments) => net::run(Test::Rate, arguments, out),
        Command::Device(arguments) => device::run(&arguments, out),
        Command::Ofi(arguments) => ofi::run(&arguments, out),
        Command::Decode { rounds, json } => {
            let options = Options { rounds, json };
            Ok(decode::decode(&options).map_err(Failure::Told)?.write(&options, out)?)
        }
        Command::Match { rounds, json } => {
            let options = Options { rounds, json };
            Ok(matching::measure(&options).map_err(Failure::Told)?.write(&options, out)?)
        }
    }
}

/// Reads a command line of `weft bench`, without these two words; the error as it is shown.
#[cfg(test)]
fn parse<T: Args>(line: &str) -> Result<T, String> {
    let command = T::augment_args(clap::Command::new("bench").args_override_self(true));
    let matches = command.try_get_matches_from(std::iter::once("bench").chain(line.split_whitespace()));
    matches.and_then(|matches| T::from_arg_matches(&matches)).map_err(|error| error.to_string())
}
