//! `weft bench`: what things cost, always beside what they are to be compared with.
//!
//! Read [`net`] for the order in which the network benchmarks run, [`job`] for what is measured, [`crate::process`] for
//! how two processes are kept in hand, and [`node`] for where Weft itself and the bare limits do their work.

mod decode;
mod device;
mod job;
mod limit;
mod matching;
mod memory;
mod net;
mod node;
mod ofi;
mod peer;
mod place;
mod table;
mod weft;

use std::io::Write;

use crate::Failure;

pub(crate) const HELP: &str = "\
weft bench: what things cost, beside their rivals and their limits

  weft bench decode [--rounds N] [--json]
                                  cost of a packet, by tables and by hand-written code, in turns
  weft bench match [--rounds N] [--json]
                                  cost of matching a message, by how many receives or messages wait
  weft bench lat [options]        latency in µs: half a round trip; of read and atomic, a whole one
  weft bench bw [options]         bandwidth in MB/s (10^6 bytes), many messages under way
  weft bench rate [options]       messages in millions a second, many under way
      --op OP                     send (default), tagged, write, read or atomic
      --link LINK                 udp (default), or shm: shared memory
      --sizes N,N,...             message lengths in bytes, also 64k, 1m or 1g (default: those of the goals)
      --rounds N                  rounds, of which the median is shown (default 5)
      --quick                     short rounds: shows that all works, measures little
      --peers-only                without Weft
      --netns                     between two network namespaces joined by a veth pair of MTU 1500 (as root)
      --json                      one JSON object a line, with every round
  weft bench device [options]     messages from and to memory of devices, beside plain copies by the device
      --kind KIND                 cuda, rocm, level-zero or emulated (default: the first that is here)
      --op OP                     send, write or read (default: each)
      --memory PAIR               device-device, device-host or host-device: the client's and the server's (default: each)
      --link LINK                 shm or udp (default: each)
      --sizes N,N,...             message lengths in bytes (default: powers of two from 8 to 1 GiB, over udp to 64 MiB,
                                  of emulated devices to 4 MiB)
      --rounds N, --quick, --json as above
  weft bench ofi [options]        Weft as a provider of libfabric beside shm, tcp, tcp;ofi_rxm and udp;ofi_rxd, all by
                                  fi_pingpong: latency up to 4 KiB, bandwidth from 4 KiB on
      --op OP                     send or tagged (default: each)
      --link LINK                 shm or udp (default: each)
      --sizes N,N,...             message lengths in bytes (default: 1, 64, and 4 KiB to 4 MiB in fourfold steps)
      --netns                     as above, of --link udp only
      --rounds N, --quick, --peers-only, --json as above

Two processes, on the loopback, in two namespaces, or over shared memory. A round is one run of each contender, so that
whatever else the machine does hits all alike: Weft, then the peers that are installed, then the limits. Ratios are what
to look at; times mean little from one machine to the next.

  --link udp: fi_pingpong and, where they are on the PATH, fabtests' streaming tests over libfabric's tcp and
  udp;ofi_rxd; ucx_perftest over tcp. The limit: bare UDP sockets.
  --link shm: the same programs over libfabric's shm and over UCX's posix with cma, posix and sysv. The limits: a cache
  line that goes to and fro (lat), a stream of cache lines (rate), memcpy of that size (lat, bw). All processes are
  pinned to the same two processors. Virtual processors move, so the cache line is taken before and after each run, and
  weft / bare line is by the lines around Weft's own runs.

  device: at each size all bytes are verified before and after. One at a time, a send is over when the receiver has said
  so in a short message, a write or read with its completion. Beside it, copies of the same bytes from and to the same
  kinds of memory inside of the client, by the operations of the device.

  ofi: the same program for everybody, so what is compared is what a program of libfabric sees. It has one message under
  way: its bandwidth is that of a ping-pong, and it has no message rate. Nothing is pinned. Weft is found as weft run
  finds it, and is kept to packets for --link udp. Who cannot run is named below the tables, with the reason.

To have the peers on Debian: apt-get install libfabric-bin ucx-utils iproute2. fabtests is in no Debian release: build
it from libfabric's sources and put it on the PATH.
";

/// What `weft bench decode` and `weft bench match` can be told.
pub(crate) struct Options {
    rounds: usize,
    json: bool,
}

impl Options {
    /// Reads `[--rounds N] [--json]`.
    fn parse(arguments: &[&str], rounds: usize) -> Result<Options, String> {
        let mut options = Options { rounds, json: false };
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            match *argument {
                "--json" => options.json = true,
                "--rounds" => {
                    let number = rest.next().and_then(|text| text.parse().ok()).filter(|rounds| *rounds > 0);
                    options.rounds = number.ok_or("`--rounds` takes a number above 0")?;
                }
                other => return Err(format!("unknown option `{other}`: there are --rounds N and --json")),
            }
        }
        Ok(options)
    }
}

/// `weft bench WORDS`.
pub(crate) fn run(words: &[&str], out: &mut dyn Write) -> Result<(), Failure> {
    match words {
        ["match", rest @ ..] => {
            let options = Options::parse(rest, matching::ROUNDS_DEFAULT).map_err(Failure::Usage)?;
            let report = matching::measure(&options).map_err(Failure::Told)?;
            Ok(report.write(&options, out)?)
        }
        ["decode", rest @ ..] => {
            let options = Options::parse(rest, decode::ROUNDS_DEFAULT).map_err(Failure::Usage)?;
            let report = decode::decode(&options).map_err(Failure::Told)?;
            Ok(report.write(&options, out)?)
        }
        ["device", rest @ ..] => device::run(rest, out),
        ["ofi", rest @ ..] => ofi::run(rest, out),
        [test, rest @ ..] if job::Test::from_name(test).is_some() => net::run(test, rest, out),
        _ => Err(Failure::Usage(
            "bench decode, match, lat, bw, rate, device or ofi; `weft bench --help` says more".to_string(),
        )),
    }
}

/// The processes that a benchmark starts of this program; `None` when `words` are for nobody here.
pub(crate) fn child(words: &[&str], out: &mut dyn Write) -> Option<Result<(), Failure>> {
    match words {
        [node::COMMAND, rest @ ..] => Some(node::run(rest, out)),
        [device::COMMAND, rest @ ..] => Some(device::child(rest, out)),
        [place::JANITOR, names @ ..] => Some(place::clean_up_when_left(names)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read() {
        let options = Options::parse(&["--rounds", "5", "--json"], 9).unwrap();
        assert_eq!((options.rounds, options.json), (5, true));
        assert_eq!(Options::parse(&[], 9).unwrap().rounds, 9);
        for wrong in [&["--rounds"][..], &["--rounds", "0"], &["--fast"]] {
            assert!(Options::parse(wrong, 9).is_err());
        }
    }
}
