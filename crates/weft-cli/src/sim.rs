//! `weft sim`: the engine under simulated faults, with very many peers, and one seed step by step.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use clap::Subcommand;
use indicatif::ProgressBar;
use weft_core::packet::Codec;
use weft_sim::run::{Report, run, run_traced};
use weft_sim::scale::scale;
use weft_sim::shrink::{Mask, shrink};
use weft_sim::trace::Trace;
use weft_sim::{Scenario, Violation};

use crate::{Failure, progress};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Run the engine on a network that loses, repeats, delays and damages, and judge it
    #[command(after_help = "Example:\n  weft sim faults --seeds 2000")]
    Faults {
        /// Number of seeds
        #[arg(long, value_name = "N", default_value_t = 10_000)]
        seeds: u64,
        /// First seed
        #[arg(long, value_name = "S", default_value_t = 0)]
        from: u64,
        /// Threads [default: the number of processors]
        #[arg(long, value_name = "T", value_parser = clap::value_parser!(u64).range(0..=THREADS_MAX))]
        threads: Option<u64>,
        /// Go on after a seed fails, and report one of each kind
        #[arg(long)]
        all: bool,
    },
    /// Have one node meet very many peers, and show what it keeps for them
    #[command(after_help = "Example:\n  weft sim scale --peers 100000")]
    Scale {
        /// Number of peers
        #[arg(long, value_name = "N", default_value_t = 1_000_000)]
        peers: u64,
    },
    /// Show one seed step by step
    #[command(after_help = "Example:\n  weft sim replay 42 --without loss,jitter")]
    Replay {
        /// Seed, with the options that `weft sim faults` prints when one fails
        seed: u64,
        /// Operations to leave out, a bit each, in hexadecimal
        #[arg(long, value_name = "BITS", value_parser = Mask::parse_skipped, default_value = "", hide_default_value = true)]
        skip: Skipped,
        /// Parts of the trouble to leave out, such as loss or crashes
        #[arg(long, value_name = "PART,...", value_delimiter = ',', value_parser = Mask::parse_trouble)]
        without: Vec<&'static str>,
        /// Other chances of the network
        #[arg(long, value_name = "N", default_value_t = 0)]
        salt: u64,
    },
}

/// One value of the command line, which a `Vec` would not be.
type Skipped = Vec<bool>;

/// Runs a seed may take to be made smaller.
const SHRINK_RUNS_MAX: u32 = 3000;
const THREADS_MAX: u64 = 1024;

/// `weft sim`.
pub(crate) fn sim(command: Command, out: &mut dyn Write) -> Result<(), Failure> {
    let codec = Codec::builtin().map_err(|error| Failure::Told(error.to_string()))?;
    let codec = Arc::new(codec);
    // What panics is told with its seed, once, and not again for every attempt to make it smaller.
    std::panic::set_hook(Box::new(|_| {}));
    match command {
        Command::Faults { seeds, from, threads, all } => {
            let processors = || std::thread::available_parallelism().map_or(1, |threads| threads.get() as u64);
            faults(seeds, from, threads.unwrap_or_else(processors).max(1), all, &codec, out)
        }
        Command::Scale { peers } => {
            let begun = Instant::now();
            let progress = progress::count(peers, "peers");
            let report = scale(peers, &codec, |done| progress.set_position(done)).map_err(Failure::Told)?;
            progress.finish_and_clear();
            writeln!(out, "{report}")?;
            Ok(writeln!(out, "took {:.1} s", begun.elapsed().as_secs_f64())?)
        }
        Command::Replay { seed, skip, without, salt } => {
            let mask = Mask { skipped: skip, without, salt };
            let (outcome, trace) = run_traced(&mask.scenario(seed), &codec, Trace::new(true));
            for line in trace.into_lines() {
                writeln!(out, "{line}")?;
            }
            match outcome {
                Ok(report) => Ok(writeln!(out, "{report}")?),
                Err(violation) => Err(Failure::Told(violation.to_string())),
            }
        }
    }
}

struct Shared {
    next: AtomicU64,
    end: u64,
    stop: AtomicBool,
    /// Goes on when a seed fails.
    all: bool,
    sum: Mutex<Sum>,
    progress: ProgressBar,
}

/// What came of the seeds so far.
#[derive(Default)]
struct Sum {
    report: Report,
    /// For each promise that was broken: how often, and the lowest seed, so that two threads tell the same.
    broken: BTreeMap<&'static str, (u64, u64, Violation)>,
}

impl Shared {
    /// Takes seeds until there are no more, or one fails.
    fn work(&self, codec: &Arc<Codec>) {
        const BATCH: u64 = 16;
        while !self.stop.load(Ordering::Relaxed) {
            let from = self.next.fetch_add(BATCH, Ordering::Relaxed);
            if from >= self.end {
                return;
            }
            let mut report = Report::default();
            let mut failed = Vec::new();
            for seed in from..self.end.min(from + BATCH) {
                match run(&Scenario::from_seed(seed), codec) {
                    Ok(more) => report.add(&more),
                    Err(violation) => {
                        failed.push((seed, violation));
                        self.stop.store(!self.all, Ordering::Relaxed);
                        if !self.all {
                            break;
                        }
                    }
                }
            }
            self.progress.inc(self.end.min(from + BATCH) - from);
            let mut sum = self.sum.lock().unwrap_or_else(PoisonError::into_inner);
            sum.report.add(&report);
            for (seed, violation) in failed {
                let known = sum.broken.entry(violation.kind).or_insert_with(|| (0, seed, violation.clone()));
                known.0 += 1;
                if seed < known.1 {
                    (known.1, known.2) = (seed, violation);
                }
            }
        }
    }
}

fn faults(
    seeds: u64,
    from: u64,
    threads: u64,
    all: bool,
    codec: &Arc<Codec>,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let begun = Instant::now();
    let shared = Shared {
        next: AtomicU64::new(from),
        end: from.saturating_add(seeds),
        stop: AtomicBool::new(false),
        all,
        sum: Mutex::default(),
        progress: progress::count(seeds, "seeds"),
    };
    let workers = std::thread::scope(|scope| {
        let mut workers = 0;
        for _ in 0..threads.min(seeds.max(1)) {
            match std::thread::Builder::new().spawn_scoped(scope, || shared.work(codec)) {
                Ok(_) => workers += 1,
                Err(error) if workers == 0 => {
                    return Err(Failure::Told(format!("no thread can be started: {error}; see `ulimit -u`")));
                }
                Err(error) => {
                    eprintln!("weft: only {workers} threads can be started: {error}");
                    break;
                }
            }
        }
        Ok(workers)
    })?;
    shared.progress.finish_and_clear();
    let Sum { report, broken } = shared.sum.into_inner().unwrap_or_else(PoisonError::into_inner);
    writeln!(out, "{report}")?;
    writeln!(out, "took {:.1} s on {workers} threads", begun.elapsed().as_secs_f64())?;
    if broken.is_empty() {
        return Ok(writeln!(out, "every promise was kept")?);
    }
    let mut replay = String::new();
    for (times, seed, violation) in broken.values() {
        writeln!(out, "\n{times} times, seed {seed}: {violation}\nmaking it smaller …")?;
        out.flush()?;
        let (mask, smaller) = shrink(*seed, violation, codec, SHRINK_RUNS_MAX);
        writeln!(out, "{smaller}\nweft sim replay {seed}{mask}")?;
        replay = format!("weft sim replay {seed}{mask}");
    }
    Err(Failure::Told(format!("a promise was broken; see it with `{replay}`")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::FromArgMatches;

    #[test]
    fn what_is_printed_for_a_seed_can_be_replayed() {
        let mask = Mask { skipped: vec![true, false, false, true], without: vec!["loss", "late"], salt: 7 };
        let line = format!("replay 5{mask}");
        let sim = Command::augment_subcommands(clap::Command::new("sim").no_binary_name(true));
        let matches = sim.try_get_matches_from(line.split(' ')).unwrap();
        match Command::from_arg_matches(&matches).unwrap() {
            Command::Replay { seed, skip, without, salt } => {
                assert_eq!((seed, Mask { skipped: skip, without, salt }), (5, mask));
            }
            _ => panic!("{line}"),
        }
    }
}
