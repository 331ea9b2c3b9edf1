//! The C programs under valgrind: no invalid access, no use of what was never written, nothing lost at the end.
#![expect(clippy::unwrap_used, reason = "helpers of a test: a panic is a failed test")]

mod common;

use std::path::Path;
use std::process::Command;

use common::{INSTALL, Road, compile_stress, compile_walk, run, tail, text, with_plugin};

/// Parts of the walk that are short enough for a program fifty times slower. What the others add, longer waits and more
/// kinds of atomics, goes the same ways.
const PARTS: [&str; 7] = ["av", "cq", "eq", "tagged", "shared", "work", "regions"];

#[test]
fn a_walk_loses_nothing() {
    let words = ["-n", "-e", "weft"].into_iter().chain(PARTS);
    let mut command = valgrind(&compile_walk(), Road::Auto);
    examine(command.args(words), " 0 failed, 0 absent");
}

#[test]
fn a_walk_over_packets_loses_nothing() {
    let mut command = valgrind(&compile_walk(), Road::Packets);
    examine(command.args(["-n", "-e", "weft", "dgram", "counters", "unknown-sources"]), " 0 failed, 0 absent");
}

#[test]
fn randomised_operations_lose_nothing() {
    for road in [Road::Auto, Road::Packets] {
        examine(valgrind(&compile_stress(), road).args(["weft", "5", "100", "2"]), "ok stress");
    }
}

/// A program under valgrind, in which also those that it forks run.
fn valgrind(program: &Path, road: Road) -> Command {
    let mut command = with_plugin(Command::new("valgrind"), road);
    command.args(["-q", "--error-exitcode=9", "--leak-check=full", "--show-leak-kinds=definite"]);
    // Threads that poll must not keep the others from their turn.
    command.args(["--errors-for-leak-kinds=definite", "--num-callers=25", "--fair-sched=yes"]);
    let reasons = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/valgrind.supp");
    command.arg(format!("--suppressions={}", reasons.display())).arg(program);
    command
}

fn examine(command: &mut Command, good: &str) {
    let output = run(command);
    let said = text(&output);
    let found: String =
        said.lines().filter(|line| line.starts_with("==") || line.starts_with("FAIL")).collect::<Vec<_>>().join("\n");
    assert!(output.status.success() && said.contains(good), "{command:?} ({INSTALL}):\n{found}\n{}", tail(&said));
}
