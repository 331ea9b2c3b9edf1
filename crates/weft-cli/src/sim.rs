//! `weft sim`: the engine under simulated faults, with very many peers, and one seed step by step.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use weft_core::packet::Codec;
use weft_sim::run::{Report, run, run_traced};
use weft_sim::scale::scale;
use weft_sim::shrink::{Mask, shrink};
use weft_sim::trace::Trace;
use weft_sim::{Scenario, Violation};

use crate::Failure;

/// Lines for `weft help`.
pub(crate) const HELP: &str = "  weft sim faults [--seeds N] [--from S] [--threads T] [--all]
                                  run the engine on a simulated network that does its worst, and judge it
                                  (--all, at the end: go on after a seed fails, and tell one of each kind)
  weft sim scale [--peers N]      one node meets N peers: what it keeps for them
  weft sim replay SEED [options]  one seed, step by step (options as `sim faults` prints them for a seed that fails)
";

/// Runs a seed may take to be made smaller.
const SHRINK_RUNS_MAX: u32 = 3000;
const THREADS_MAX: u64 = 1024;
const PROGRESS_EVERY: Duration = Duration::from_millis(500);

/// Runs the subcommand.
pub(crate) fn sim(words: &[&str], out: &mut dyn Write) -> Result<(), Failure> {
    let codec = Codec::builtin().map_err(|error| Failure::Told(error.to_string()))?;
    let codec = Arc::new(codec);
    // What panics is told with its seed, once, and not again for every attempt to make it smaller.
    std::panic::set_hook(Box::new(|_| {}));
    match words {
        ["faults", rest @ ..] => faults(rest, &codec, out),
        ["scale", rest @ ..] => {
            let mut peers = 1_000_000;
            for (option, value) in pairs(rest)? {
                match option {
                    "--peers" => peers = number(value)?,
                    other => return Err(unknown(other, "--peers")),
                }
            }
            let begun = Instant::now();
            let report = scale(peers, &codec, |done| eprint!("\r{done} of {peers} peers")).map_err(Failure::Told)?;
            eprintln!();
            writeln!(out, "{report}")?;
            Ok(writeln!(out, "took {:.1} s", begun.elapsed().as_secs_f64())?)
        }
        ["replay", seed, rest @ ..] => {
            let seed = number(seed)?;
            let mask: Mask = rest.join(" ").parse().map_err(Failure::Usage)?;
            let (outcome, trace) = run_traced(&mask.scenario(seed), &codec, Trace::new(true));
            for line in trace.into_lines() {
                writeln!(out, "{line}")?;
            }
            match outcome {
                Ok(report) => Ok(writeln!(out, "{report}")?),
                Err(violation) => Err(Failure::Told(violation.to_string())),
            }
        }
        _ => Err(Failure::Usage("sim faults, scale or replay SEED".to_string())),
    }
}

struct Shared {
    next: AtomicU64,
    end: u64,
    stop: AtomicBool,
    /// Goes on when a seed fails.
    all: bool,
    sum: Mutex<Sum>,
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

fn faults(words: &[&str], codec: &Arc<Codec>, out: &mut dyn Write) -> Result<(), Failure> {
    let (mut seeds, mut from) = (10_000, 0);
    let mut threads = std::thread::available_parallelism().map_or(1, |threads| threads.get() as u64);
    let all = words.last() == Some(&"--all");
    for (option, value) in pairs(words.strip_suffix(&["--all"]).unwrap_or(words))? {
        match option {
            "--seeds" => seeds = number(value)?,
            "--from" => from = number(value)?,
            "--threads" => threads = number(value)?.max(1),
            other => return Err(unknown(other, "--seeds, --from, --threads")),
        }
    }
    if threads > THREADS_MAX {
        return Err(Failure::Usage(format!("--threads {threads}: at most {THREADS_MAX}")));
    }
    let begun = Instant::now();
    let shared = Shared {
        next: AtomicU64::new(from),
        end: from.saturating_add(seeds),
        stop: AtomicBool::new(false),
        all,
        sum: Mutex::default(),
    };
    let workers = std::thread::scope(|scope| {
        let mut workers = Vec::new();
        for _ in 0..threads.min(seeds.max(1)) {
            match std::thread::Builder::new().spawn_scoped(scope, || shared.work(codec)) {
                Ok(worker) => workers.push(worker),
                Err(error) if workers.is_empty() => {
                    return Err(Failure::Told(format!("no thread can be started: {error}; see `ulimit -u`")));
                }
                Err(error) => {
                    eprintln!("weft: only {} threads can be started: {error}", workers.len());
                    break;
                }
            }
        }
        let mut told = Instant::now();
        while workers.iter().any(|worker| !worker.is_finished()) {
            std::thread::sleep(Duration::from_millis(20));
            if told.elapsed() > PROGRESS_EVERY {
                told = Instant::now();
                let done = shared.next.load(Ordering::Relaxed).min(shared.end) - from;
                eprint!("\r{done} of {seeds} seeds, {:.0} a second ", done as f64 / begun.elapsed().as_secs_f64());
            }
        }
        Ok(workers.len())
    })?;
    eprintln!();
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

fn pairs<'a>(words: &[&'a str]) -> Result<Vec<(&'a str, &'a str)>, Failure> {
    let pair = |pair: &[&'a str]| match pair {
        [option, value] => Ok((*option, *value)),
        _ => Err(Failure::Usage(format!("{} takes a value", pair.join(" ")))),
    };
    words.chunks(2).map(pair).collect()
}

fn number(text: &str) -> Result<u64, Failure> {
    text.parse().map_err(|_| Failure::Usage(format!("`{text}` is no number")))
}

fn unknown(option: &str, known: &str) -> Failure {
    Failure::Usage(format!("unknown option `{option}`; known here: {known}"))
}
