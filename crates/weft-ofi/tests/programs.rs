//! C programs against the plug-in, through the stock libfabric: a walk over every call, randomised operations and patterns
//! of traffic between processes, and MPI programs. Their sources are in `c`; each says at its top what it does and how to
//! run it alone.
#![expect(clippy::unwrap_used, reason = "helpers of a test: a panic is a failed test")]

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use std::{fs, thread};

use common::{HANG_GUARD, Road, build, compile, compile_stress, compile_walk, mpirun, run, tail, text, with_plugin};

#[test]
fn every_call_over_shared_memory() {
    walk(Road::Auto);
}

#[test]
fn every_call_over_packets() {
    walk(Road::Packets);
}

#[test]
fn randomised_operations_over_shared_memory() {
    stress(Road::Auto, 1, 10_000, "");
}

#[test]
fn randomised_operations_over_packets() {
    stress(Road::Packets, 2, 10_000, "");
}

#[test]
fn randomised_operations_over_a_bad_network() {
    stress(Road::Auto, 3, 10_000, "loss=0.01,duplicate=0.01,reorder=0.02,corrupt=0.005,seed=3");
}

#[test]
fn many_endpoints() {
    let output = run(with_plugin(Command::new(compile("many", &["many", "common"])), Road::Auto).arg("weft"));
    assert!(output.status.success() && text(&output).contains("ok "), "{}", tail(&text(&output)));
}

#[test]
fn patterns_of_traffic_over_shared_memory() {
    patterns(Road::Auto, 1);
}

#[test]
fn patterns_of_traffic_over_packets() {
    patterns(Road::Packets, 1_000_001);
}

#[test]
fn a_ring_of_ranks() {
    mpi(Road::Auto, 4, "mpi_ring", &["3"], "ok ring");
}

#[test]
fn a_ring_of_ranks_over_packets() {
    mpi(Road::Packets, 2, "mpi_ring", &["3"], "ok ring");
}

#[test]
fn ranks_all_to_all() {
    mpi(Road::Auto, 4, "mpi_alltoall", &["2"], "ok all-to-all");
}

#[test]
fn ranks_all_to_all_over_packets() {
    mpi(Road::Packets, 3, "mpi_alltoall", &["1"], "ok all-to-all");
}

#[test]
fn a_halo_exchange() {
    mpi(Road::Auto, 4, "mpi_halo", &["120", "20"], "ok halo");
}

#[test]
fn a_halo_exchange_over_packets() {
    mpi(Road::Packets, 2, "mpi_halo", &["60", "10"], "ok halo");
}

#[test]
fn windows_of_every_make() {
    mpi(Road::Auto, 3, "mpi_window", &["1"], "ok windows");
}

#[test]
fn windows_of_every_make_over_packets() {
    mpi(Road::Packets, 2, "mpi_window", &["1"], "ok windows");
}

#[test]
fn randomised_operations_of_ranks() {
    mpi(Road::Auto, 3, "mpi_stress", &["1", "3"], "ok stress");
}

#[test]
fn randomised_operations_of_ranks_over_packets() {
    mpi(Road::Packets, 3, "mpi_stress", &["2", "3"], "ok stress");
}

#[test]
fn ranks_that_others_start() {
    mpi(Road::Auto, 2, "mpi_spawn", &["2"], "ok spawn");
}

#[test]
fn ranks_that_others_start_over_packets() {
    mpi(Road::Packets, 2, "mpi_spawn", &["2"], "ok spawn");
}

#[test]
fn neighbours_exchange_windows_of_messages() {
    mpi(Road::Auto, 2, "mpi_exchange", &["64", "1048576"], "ok exchange");
    mpi(Road::Auto, 3, "mpi_exchange", &["64", "1048576"], "ok exchange");
}

#[test]
fn neighbours_exchange_windows_of_messages_over_packets() {
    mpi(Road::Packets, 2, "mpi_exchange", &["64", "1048576"], "ok exchange");
    mpi(Road::Packets, 3, "mpi_exchange", &["64", "1048576"], "ok exchange");
}

#[test]
fn thousands_of_synchronous_sends() {
    mpi(Road::Auto, 2, "mpi_synchronous", &["2000", "5"], "ok synchronous");
}

#[test]
fn thousands_of_synchronous_sends_over_packets() {
    mpi(Road::Packets, 2, "mpi_synchronous", &["2000", "5"], "ok synchronous");
}

/// A rank that is killed ends the job with an error; no process of it is left.
#[test]
fn a_rank_that_dies_ends_the_job() {
    let program = compile_mpi("mpi_kill");
    let mark = program.with_extension("died");
    let output = run(mpirun(Road::Auto, 3).arg(&program).arg(&mark));
    assert!(!output.status.success(), "the job ended well although a rank died:\n{}", text(&output));
    assert!(mark.exists(), "the rank did not come so far:\n{}", text(&output));
    // Those that were killed may not have had their turn to end.
    let begun = Instant::now();
    while !processes_of(&program).is_empty() {
        assert!(begun.elapsed() < HANG_GUARD, "processes are left: {:?}", processes_of(&program));
        thread::sleep(Duration::from_millis(5));
    }
}

fn walk(road: Road) {
    let program = compile_walk();
    let output = run(with_plugin(Command::new(program), road).args(["-e", "weft"]));
    let lines = text(&output);
    let failed: Vec<&str> = lines.lines().filter(|line| line.starts_with("FAIL")).collect();
    assert!(failed.is_empty(), "{} failed:\n{}\n{}", failed.len(), failed.join("\n"), tail(&lines));
    assert!(output.status.success(), "{}", tail(&lines));
}

/// So many operations of each of four processes.
fn stress(road: Road, seed: u64, count: u64, faults: &str) {
    let mut command = with_plugin(Command::new(compile_stress()), road);
    command.env("FI_WEFT_FAULTS", faults).args(["weft", &seed.to_string(), &count.to_string(), "4"]);
    let output = run(&mut command);
    assert!(output.status.success() && text(&output).contains("ok stress"), "{}", tail(&text(&output)));
}

/// A hundred draws, or as many as `WEFT_PATTERNS` says, half of them by each road.
fn patterns(road: Road, seed: u64) {
    let all = std::env::var("WEFT_PATTERNS").map_or(100, |count| count.parse::<u64>().unwrap());
    let program = compile("patterns", &["patterns", "common"]);
    let mut command = with_plugin(Command::new(program), road);
    let output = run(command.args(["weft", &seed.to_string(), &all.div_ceil(2).to_string()]));
    print!("{}", text(&output));
    let failed: Vec<String> =
        text(&output).lines().filter(|line| line.starts_with("FAIL")).map(str::to_owned).collect();
    let good = output.status.success() && text(&output).contains("ok patterns");
    assert!(good, "{}\n{}", failed.join("\n"), tail(&text(&output)));
}

fn mpi(road: Road, ranks: u32, name: &str, arguments: &[&str], good: &str) {
    let program = compile_mpi(name);
    let output = run(mpirun(road, ranks).arg(&program).args(arguments));
    assert!(output.status.success() && text(&output).contains(good), "{}", tail(&text(&output)));
}

fn compile_mpi(name: &str) -> PathBuf {
    build(&mut Command::new("mpicc.openmpi"), name, &[name], &[])
}

fn processes_of(program: &Path) -> Vec<String> {
    let entries = fs::read_dir("/proc").unwrap();
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let of_program = |number: &String| fs::read_link(format!("/proc/{number}/exe")).is_ok_and(|path| path == program);
    numbers.filter(of_program).collect()
}
