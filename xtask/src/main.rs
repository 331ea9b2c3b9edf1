//! The workspace's own commands; `cargo xtask help` lists them.
//!
//! `test` below is the list of checks, in the order in which they run. `workspace.rs` starts processes, `provide.rs`
//! installs what the checks need, `bare.rs` proves that a crate does without `std`, `fuzz.rs` drives libFuzzer, `install.rs`
//! puts what users need where the system finds it.
#![forbid(unsafe_code)]

mod bare;
mod fuzz;
mod install;
mod provide;
mod workspace;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use workspace::{Failure, Workspace, run};

/// The crates that must build with `core` and `alloc` alone: that is the proof that they do no IO.
const NO_STD_CRATES: &[&str] = &["weft-wire", "weft-core"];

const HELP: &str = "\
Usage: cargo xtask COMMAND

  test [--advisories]
      Installs what the checks need, then runs them all and stops at the first that fails: format, clippy, the no_std
      proof, tests, loom, 10,000 seeds of the simulation, planted bugs, the libfabric plug-in as users start it and as it
      is installed, documentation, licences, and a short run of every fuzz target.
      Debian packages are installed only by root; any other user is told what to install. Cargo tools that are not on
      the PATH are built into target/tools. Fuzz targets need the nightly toolchain.
      --advisories also checks the dependencies against the RustSec database. It is off by default because the
      database is fetched over the network, which a sealed machine does not have.

  fuzz [--seconds N] [TARGET]
      Fuzzes TARGET, or every target in turn, for N seconds each (60 unless told), and counts the executions.
      Starts from the committed corpus, which it leaves as it is; what it finds is kept in target/fuzz/found.

  install --prefix DIR [--libdir DIR]
      Builds for release, then installs the command into bin, the libfabric plug-in into lib/libfabric (or libfabric of
      --libdir) and the manual pages into share/man of the prefix. Nothing depends on the prefix: what is installed can
      be moved as a whole, or packed.
      The libfabric of the system finds the plug-in by itself if it is in its own folder of plug-ins, which
      `fi_info -e` tells under FI_PROVIDER_PATH; on Debian: --prefix /usr --libdir /usr/lib/x86_64-linux-gnu.

  seed-corpus
      Writes the seeds of the fuzz targets anew, from captures/, protocols/ and the encoder. Inputs that fuzzing found
      are left as they are.

  help
      Prints this text.
";

fn main() -> ExitCode {
    let arguments: Vec<String> =
        std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned()).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match dispatch(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("\nxtask: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(arguments: &[&str]) -> Result<(), Failure> {
    match arguments {
        ["test"] => test(false),
        ["test", "--advisories"] => test(true),
        ["fuzz", options @ ..] => {
            let request = fuzz::Request::from_arguments(options)?;
            fuzz::long(&mut Workspace::locate()?, &request)
        }
        ["install", options @ ..] => {
            install::install(&Workspace::locate()?, &install::Request::from_arguments(options)?)
        }
        ["seed-corpus"] => fuzz::seed_corpus(&Workspace::locate()?),
        ["help" | "--help" | "-h"] => {
            print!("{HELP}");
            Ok(())
        }
        [] => Err(format!("no command given\n\n{HELP}")),
        unknown => Err(format!("cannot understand `{}`\n\n{HELP}", unknown.join(" "))),
    }
}

fn test(advisories: bool) -> Result<(), Failure> {
    let mut workspace = Workspace::locate()?;
    let mut report = Report::default();
    let outcome = checks(&mut workspace, &mut report, advisories);
    report.print();
    outcome?;
    println!("\nAll {} steps passed in {}.", report.steps.len(), in_seconds(report.total()));
    Ok(())
}

/// Every check, the quick ones first.
fn checks(workspace: &mut Workspace, report: &mut Report, advisories: bool) -> Result<(), Failure> {
    let with_fuzz = fuzz::exists(workspace);
    report.step("what the checks need", || {
        // All packages in one call, so that who must install them by hand is told once.
        let for_fuzz = if with_fuzz { provide::FOR_FUZZ } else { &[] };
        provide::packages(&[provide::FOR_TESTS, for_fuzz].concat())?;
        if with_fuzz {
            provide::nightly(workspace)?;
            provide::tool(workspace, &provide::CARGO_FUZZ)?;
        }
        provide::tool(workspace, &provide::CARGO_DENY)
    })?;
    report.step("format", || {
        run(workspace.cargo("fmt").args(["--all", "--check"]))?;
        if with_fuzz {
            run(workspace.cargo("fmt").args(["--manifest-path", fuzz::MANIFEST, "--check"]))?;
        }
        Ok(())
    })?;
    report.step("clippy", || {
        let mut clippy = workspace.cargo("clippy");
        run(clippy.args(["--workspace", "--all-targets", "--locked", "--", "-D", "warnings"]))
    })?;
    report.step("no_std proof", || NO_STD_CRATES.iter().try_for_each(|name| bare::build(workspace, name)))?;
    report.step("tests", || {
        // `cargo test` does not put the plug-in where programs find it.
        run(workspace.cargo("build").args(["--locked", "-p", "weft-ofi"]))?;
        run(workspace.cargo("test").args(["--workspace", "--locked"]))
    })?;
    report.step("inside a node by attach, and through the ring", || {
        // Which way long messages go is measured, so on one machine the tests above may never take one of them.
        ["attach", "ring"].into_iter().try_for_each(|way| {
            let mut tests = workspace.cargo("test");
            tests.env("WEFT_COPY", way).args(["-p", "weft", "--locked", "--test", "conformance", "--test", "raw"]);
            run(tests.args(["--", "shm", "memory_that_need_not_be_mapped"]))
        })
    })?;
    report.step("every interleaving (loom)", || {
        // A folder of its own: the flag would have everything built anew. Optimised: minutes otherwise.
        let mut loom = workspace.cargo("test");
        loom.args(["--release", "--locked", "-p", "weft-link", "--lib", "--target-dir", "target/loom", "loom_tests"]);
        run(loom.env("RUSTFLAGS", "--cfg loom"))
    })?;
    report.step("simulation, 10,000 seeds", || {
        // Optimised: the same number takes minutes otherwise.
        let mut sim = workspace.cargo("run");
        run(sim.args(["--release", "--locked", "-p", "weft-cli", "--", "sim", "faults", "--seeds", "10000"]))
    })?;
    report.step("planted bugs are found", || {
        let mut plant = workspace.cargo("test");
        run(plant.args(["--release", "--locked", "-p", "weft-sim", "--features", "plant", "--test", "plant"]))
    })?;
    report.step("plug-in, as users start it", || {
        let mut start = workspace.cargo("run");
        run(start.args(["--release", "--locked", "--", "run", "--", "fi_info", "-p", "weft"]))
    })?;
    report.step("installation", || install::check(workspace))?;
    report.step("documentation", || {
        let mut doc = workspace.cargo("doc");
        doc.args(["--workspace", "--no-deps", "--locked"]).env("RUSTDOCFLAGS", "-D warnings");
        run(&mut doc)
    })?;
    report.step("licences and sources", || {
        let mut deny = workspace.cargo("deny");
        deny.args(["--locked", "check", "licenses", "bans", "sources"]);
        if advisories {
            deny.arg("advisories");
        }
        run(&mut deny)
    })?;
    if with_fuzz {
        report.step("fuzz, short", || fuzz::short(workspace))?;
    }
    Ok(())
}

/// The steps that ran, with the wall time of each, for the table at the end.
#[derive(Default)]
struct Report {
    steps: Vec<(&'static str, Duration, bool)>,
}

impl Report {
    fn step(&mut self, name: &'static str, work: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
        println!("\n== {name}");
        let start = Instant::now();
        let outcome = work();
        self.steps.push((name, start.elapsed(), outcome.is_ok()));
        outcome.map_err(|failure| format!("step `{name}` failed: {failure}"))
    }

    fn total(&self) -> Duration {
        self.steps.iter().map(|(_, time, _)| *time).sum()
    }

    fn print(&self) {
        println!("\n== times");
        for (name, time, passed) in &self.steps {
            println!("{name:<24} {:>10}  {}", in_seconds(*time), if *passed { "passed" } else { "FAILED" });
        }
        println!("{:<24} {:>10}", "all", in_seconds(self.total()));
    }
}

fn in_seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}
