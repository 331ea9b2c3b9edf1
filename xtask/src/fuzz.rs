//! Runs the targets in `fuzz/`: briefly for `cargo xtask test`, longer for `cargo xtask fuzz`.

use std::fs::{self, File};
use std::path::Path;
use std::time::Instant;

use clap::Args;

use crate::workspace::{Failure, Workspace, in_context, output, run};
use crate::{in_seconds, provide};

pub(crate) const MANIFEST: &str = "fuzz/Cargo.toml";

/// A short run ends at whichever of these two comes first.
const SHORT_RUNS: u64 = 50_000;
const SHORT_RUN_S: u64 = 10;
/// A short run repeats the same inputs each time, so that it fails only because of a change to the code.
const SHORT_RUN_SEED: u64 = 1;
/// One input that takes longer than this is a finding.
const INPUT_TIMEOUT_S: u64 = 10;

/// `weft-wire` forbids unsafe code, so address sanitizer can find nothing in it and would only slow it down.
const NO_SANITIZER: [&str; 2] = ["--sanitizer", "none"];

const EXECUTIONS: &str = "stat::number_of_executed_units:";

#[derive(Args)]
pub(crate) struct Request {
    /// Seconds for each target
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Target [default: all in turn]
    target: Option<String>,
}

pub(crate) fn exists(workspace: &Workspace) -> bool {
    workspace.file(MANIFEST).is_file()
}

pub(crate) fn short(workspace: &Workspace) -> Result<(), Failure> {
    let limits =
        [format!("-runs={SHORT_RUNS}"), format!("-max_total_time={SHORT_RUN_S}"), format!("-seed={SHORT_RUN_SEED}")];
    let found = "target/fuzz/short";
    let earlier = workspace.file(found);
    if earlier.exists() {
        fs::remove_dir_all(&earlier).map_err(in_context("cannot empty target/fuzz/short"))?;
    }
    run_targets(workspace, &targets(workspace)?, &limits, found)
}

pub(crate) fn long(workspace: &mut Workspace, request: &Request) -> Result<(), Failure> {
    if !exists(workspace) {
        return Err("there is no fuzz/ folder".to_owned());
    }
    provide::packages(provide::FOR_FUZZ)?;
    provide::nightly(workspace)?;
    provide::tool(workspace, &provide::CARGO_FUZZ)?;
    let all = targets(workspace)?;
    let chosen = match &request.target {
        None => all,
        Some(name) if all.contains(name) => vec![name.clone()],
        Some(name) => return Err(format!("no fuzz target `{name}`; there are: {}", all.join(", "))),
    };
    run_targets(workspace, &chosen, &[format!("-max_total_time={}", request.seconds)], "target/fuzz/found")
}

/// Writes the seeds of the corpora anew.
pub(crate) fn seed_corpus(workspace: &Workspace) -> Result<(), Failure> {
    run(workspace.cargo("run").args(["--release", "--locked", "--manifest-path", MANIFEST, "--example", "seed"]))
}

fn targets(workspace: &Workspace) -> Result<Vec<String>, Failure> {
    let list = output(&mut workspace.nightly_fuzz("list"))?;
    Ok(list.lines().map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect())
}

/// Builds once, then runs each target alone; `found` is the folder for new inputs, below which each target has its own.
fn run_targets(workspace: &Workspace, targets: &[String], limits: &[String], found: &str) -> Result<(), Failure> {
    run(workspace.nightly_fuzz("build").args(NO_SANITIZER))?;
    let mut total = 0;
    for target in targets {
        let start = Instant::now();
        let executions = run_target(workspace, target, limits, &workspace.file(found).join(target))?;
        println!("{target:<32} {executions:>14} executions  {:>9}", in_seconds(start.elapsed()));
        total += executions;
    }
    println!("{:<32} {total:>14} executions", "all");
    Ok(())
}

fn run_target(workspace: &Workspace, target: &str, limits: &[String], found: &Path) -> Result<u64, Failure> {
    let logs = workspace.file("target/fuzz/logs");
    fs::create_dir_all(found).map_err(in_context("cannot make the folder for new inputs"))?;
    fs::create_dir_all(&logs).map_err(in_context("cannot make the folder for logs"))?;
    let log_path = logs.join(format!("{target}.log"));
    let log = File::create(&log_path).map_err(in_context("cannot make the log"))?;
    let log_too = log.try_clone().map_err(in_context("cannot share the log"))?;

    let mut fuzz = workspace.nightly_fuzz("run");
    // libFuzzer writes new inputs to the first folder only: the committed corpus does not grow.
    fuzz.args(NO_SANITIZER).arg(target).arg(found);
    let corpus = workspace.file("fuzz/corpus").join(target);
    if corpus.is_dir() {
        fuzz.arg(corpus);
    }
    fuzz.arg("--").args(limits).arg(format!("-timeout={INPUT_TIMEOUT_S}")).arg("-print_final_stats=1");
    let dictionary = workspace.file("fuzz/dictionaries").join(format!("{target}.dict"));
    if dictionary.is_file() {
        fuzz.arg(format!("-dict={}", dictionary.display()));
    }
    let status = fuzz.stdout(log).stderr(log_too).status().map_err(in_context("cannot start cargo fuzz"))?;

    let text = fs::read(&log_path).map_err(in_context("cannot read the log"))?;
    let text = String::from_utf8_lossy(&text);
    if !status.success() {
        // Lines that begin with `#` only tell of progress.
        text.lines().filter(|line| !line.starts_with('#')).for_each(|line| eprintln!("{line}"));
        return Err(format!("fuzz target `{target}` ended with {status}; the input is in fuzz/artifacts/{target}"));
    }
    executions(&text).ok_or(format!("{} holds no `{EXECUTIONS}`", log_path.display()))
}

fn executions(log: &str) -> Option<u64> {
    log.lines().find_map(|line| line.strip_prefix(EXECUTIONS))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executions_are_read_from_the_final_statistics() {
        let log = "#5\tDONE cov: 3\nstat::number_of_executed_units: 1234\nstat::average_exec_per_sec:     0\n";
        assert_eq!(executions(log), Some(1234));
        assert_eq!(executions("INFO: Seed: 1\n"), None);
    }
}
