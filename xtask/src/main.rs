//! The workspace's own commands; `cargo xtask help` lists them.
//!
//! `test` below is the list of all checks, in the order in which they run, `quick` that of those which are run often. `workspace.rs` starts processes, `provide.rs`
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

use clap::Parser;

use workspace::{Failure, Workspace, run};

/// The crates that must build with `core` and `alloc` alone: that is the proof that they do no IO.
const NO_STD_CRATES: &[&str] = &["weft-wire", "weft-core"];
/// One combination of the conformance suite for each transport. The first is part of `faulty_udp_manual::` too.
const CONFORMANCE_QUICK: [&str; 3] = ["udp_manual::", "loopback_manual::", "shm_manual::"];

/// The Weft workspace's own commands
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", arg_required_else_help = true)]
enum Command {
    /// Run the checks that who works on the code repeats: a verdict in about three minutes
    #[command(after_help = QUICK)]
    Quick,
    /// Install what the checks need, then run them all; stop at the first that fails
    #[command(after_help = TEST)]
    Test {
        /// Also check the dependencies against the RustSec database, which is fetched over the network
        #[arg(long)]
        advisories: bool,
    },
    /// Fuzz one target, or all in turn, and count the executions
    #[command(after_help = FUZZ)]
    Fuzz(fuzz::Request),
    /// Build for release and install the command, the libfabric plug-in and the manual pages
    #[command(after_help = INSTALL)]
    Install(install::Request),
    /// Write the seeds of the fuzz targets anew, from captures/, protocols/ and the encoder
    #[command(after_help = "Inputs that fuzzing found are left as they are.")]
    SeedCorpus,
}

const QUICK: &str = "\
Format, clippy, unit tests, a thousand seeds of the simulation, and the
conformance suite once on each transport (host memory, manual progress). It
installs nothing. CONTRIBUTING.md says when it is enough.";

const TEST: &str = "\
Format, clippy, the no_std proof, tests, loom, 10,000 seeds of the simulation,
planted bugs, the libfabric plug-in as users start it and as it is installed,
documentation, licences, and a short run of every fuzz target.

Debian packages are installed only by root; any other user is told what to
install. Cargo tools that are not on the PATH are built into target/tools. Fuzz
targets need the nightly toolchain.";

const FUZZ: &str = "\
It starts from the committed corpus, which it leaves as it is; what it finds is
kept in target/fuzz/found.

Example:
  cargo xtask fuzz --seconds 600";

const INSTALL: &str = "\
The command goes into bin, the plug-in into lib/libfabric (or libfabric of
--libdir) and the manual pages into share/man of the prefix. Nothing depends on
the prefix: what is installed can be moved as a whole, or packed.

The libfabric of the system finds the plug-in by itself if it is in its own
folder of plug-ins, which `fi_info -e` tells under FI_PROVIDER_PATH; on Debian:
  cargo xtask install --prefix /usr --libdir /usr/lib/x86_64-linux-gnu";

fn main() -> ExitCode {
    match execute(&Command::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("\nxtask: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn execute(command: &Command) -> Result<(), Failure> {
    let mut workspace = Workspace::locate()?;
    match command {
        Command::Quick => reported(|report| quick(&workspace, report)),
        Command::Test { advisories } => reported(|report| test(&mut workspace, report, *advisories)),
        Command::Fuzz(request) => fuzz::long(&mut workspace, request),
        Command::Install(request) => install::install(&workspace, request),
        Command::SeedCorpus => fuzz::seed_corpus(&workspace),
    }
}

/// Runs checks, and shows how long each took.
fn reported(checks: impl FnOnce(&mut Report) -> Result<(), Failure>) -> Result<(), Failure> {
    let mut report = Report::default();
    let outcome = checks(&mut report);
    report.print();
    outcome?;
    println!("\nAll {} steps passed in {}.", report.steps.len(), in_seconds(report.total()));
    Ok(())
}

fn format_step(workspace: &Workspace, report: &mut Report) -> Result<(), Failure> {
    report.step("format", || {
        run(workspace.cargo("fmt").args(["--all", "--check"]))?;
        if fuzz::exists(workspace) {
            run(workspace.cargo("fmt").args(["--manifest-path", fuzz::MANIFEST, "--check"]))?;
        }
        Ok(())
    })
}

fn clippy_step(workspace: &Workspace, report: &mut Report) -> Result<(), Failure> {
    report.step("clippy", || {
        let mut clippy = workspace.cargo("clippy");
        run(clippy.args(["--workspace", "--all-targets", "--locked", "--", "-D", "warnings"]))
    })
}

fn simulation(workspace: &Workspace, profile: &str, seeds: &str) -> Result<(), Failure> {
    let mut sim = workspace.cargo("run");
    sim.args(["--profile", profile, "--locked", "-p", "weft-cli", "--", "sim", "faults", "--seeds", seeds]);
    run(&mut sim)
}

/// Verdicts for who works on the code.
fn quick(workspace: &Workspace, report: &mut Report) -> Result<(), Failure> {
    format_step(workspace, report)?;
    clippy_step(workspace, report)?;
    report.step("unit tests", || run(workspace.cargo("test").args(["--workspace", "--lib", "--bins", "--locked"])))?;
    // Not optimised: to build that anew after each change would take longer than the seeds.
    report.step("simulation, 1,000 seeds", || simulation(workspace, "dev", "1000"))?;
    report.step("conformance, once on each transport", || {
        let mut tests = workspace.cargo("test");
        tests.args(["--locked", "-p", "weft", "--test", "conformance", "--"]).args(CONFORMANCE_QUICK);
        run(&mut tests)
    })
}

/// Every check, the quick ones first.
fn test(workspace: &mut Workspace, report: &mut Report, advisories: bool) -> Result<(), Failure> {
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
    format_step(workspace, report)?;
    clippy_step(workspace, report)?;
    report.step("no_std proof", || NO_STD_CRATES.iter().try_for_each(|name| bare::build(workspace, name)))?;
    report.step("tests", || {
        // `cargo test` does not put the plug-in where programs find it.
        run(workspace.cargo("build").args(["--locked", "-p", "weft-ofi"]))?;
        run(workspace.cargo("test").args(["--workspace", "--locked"]))
    })?;
    as_root(workspace, report)?;
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
        loom.args(["--release", "--locked", "-p", "weft-mem", "-p", "weft-link", "--lib"]);
        loom.args(["--target-dir", "target/loom", "loom_tests"]);
        run(loom.env("RUSTFLAGS", "--cfg loom"))
    })?;
    // Optimised: the same number takes minutes otherwise.
    report.step("simulation, 10,000 seeds", || simulation(workspace, "release", "10000"))?;
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

/// Tests that only root can run are marked `ignore`, and run here; without root the table at the end says so.
fn as_root(workspace: &Workspace, report: &mut Report) -> Result<(), Failure> {
    if !provide::is_root() {
        report.skip("tests that need root");
        return Ok(());
    }
    report.step("tests that need root", || {
        let mut tests = workspace.cargo("test");
        tests.args(["--locked", "-p", "weft", "--test", "node_faults", "--test", "path_mtu", "--", "--ignored"]);
        run(&mut tests)
    })
}

/// The steps that ran, with the wall time of each, for the table at the end.
#[derive(Default)]
struct Report {
    steps: Vec<(&'static str, Duration, &'static str)>,
}

impl Report {
    fn step(&mut self, name: &'static str, work: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
        println!("\n== {name}");
        let start = Instant::now();
        let outcome = work();
        self.steps.push((name, start.elapsed(), if outcome.is_ok() { "passed" } else { "FAILED" }));
        outcome.map_err(|failure| format!("step `{name}` failed: {failure}"))
    }

    fn skip(&mut self, name: &'static str) {
        self.steps.push((name, Duration::ZERO, "NOT RUN"));
    }

    fn total(&self) -> Duration {
        self.steps.iter().map(|(_, time, _)| *time).sum()
    }

    fn print(&self) {
        println!("\n== times");
        for (name, time, outcome) in &self.steps {
            println!("{name:<46} {:>10}  {outcome}", in_seconds(*time));
        }
        println!("{:<46} {:>10}", "all", in_seconds(self.total()));
    }
}

fn in_seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_are_read() {
        let parse = |line: &str| Command::try_parse_from(std::iter::once("xtask").chain(line.split(' ')));
        for right in ["quick", "test", "test --advisories", "fuzz", "fuzz --seconds 5 parse", "seed-corpus"] {
            assert!(parse(right).is_ok(), "{right}");
        }
        for wrong in ["tset", "test now", "fuzz --seconds", "fuzz --seconds 0", "fuzz a b", "fuzz --fork"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        for wrong in
            ["install", "install --prefix", "install --libdir /x", "install /usr", "install --prefix /x --fast"]
        {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        for (line, folder) in [
            ("install --prefix /usr/local", "/usr/local/lib/libfabric"),
            ("install --libdir /usr/lib/here --prefix /usr", "/usr/lib/here/libfabric"),
        ] {
            let Ok(Command::Install(request)) = parse(line) else { panic!("{line}") };
            assert_eq!(request.plugins(), std::path::Path::new(folder));
        }
        let Ok(Command::Install(request)) = parse("install --prefix here") else { panic!() };
        assert!(request.plugins().is_absolute());
    }
}
