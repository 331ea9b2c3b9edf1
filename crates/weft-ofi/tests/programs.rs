//! C programs against the plug-in, through the stock libfabric: a walk over every call, randomised operations between
//! processes, and MPI programs. Their sources are in `c`; each says at its top what it does and how to run it alone.
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of a test: a panic is a failed test")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::{env, fs};

const INSTALL: &str = "apt-get install gcc libfabric-dev libfabric-bin openmpi-bin libopenmpi-dev";

/// By which road the bytes go: shared memory where it can be, or packets only.
#[derive(Clone, Copy)]
enum Road {
    Auto,
    Packets,
}

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
    stress(Road::Auto, 1, 20_000);
}

#[test]
fn randomised_operations_over_packets() {
    stress(Road::Packets, 2, 5_000);
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

/// A rank that is killed ends the job with an error; no process of it is left.
#[test]
fn a_rank_that_dies_ends_the_job() {
    let program = compile_mpi("mpi_kill");
    let output = mpirun(Road::Auto, 3, &program, &[]);
    assert!(!output.status.success(), "the job ended well although a rank died:\n{}", text(&output));
    assert!(text(&output).contains("rank 2 dies"), "the rank did not come so far:\n{}", text(&output));
    let left = processes_of(&program);
    assert!(left.is_empty(), "processes are left: {left:?}");
}

fn walk(road: Road) {
    let parts = ["walk", "walk_address", "walk_connection", "walk_contexts", "walk_errors", "walk_info", "walk_memory"];
    let more = ["walk_queues", "walk_rdm", "walk_rma", "walk_tagged", "walk_trigger", "walk_variable", "common"];
    let program = compile("walk", &[&parts[..], &more[..]].concat());
    let output = run(with_plugin(Command::new(program), road).args(["-e", "weft"]));
    let lines = text(&output);
    let failed: Vec<&str> = lines.lines().filter(|line| line.starts_with("FAIL")).collect();
    assert!(failed.is_empty(), "{} failed:\n{}\n{}", failed.len(), failed.join("\n"), tail(&lines));
    assert!(output.status.success(), "{}", tail(&lines));
}

fn stress(road: Road, seed: u64, count: u64) {
    let program = compile("stress", &["stress", "common"]);
    let output =
        run(with_plugin(Command::new(program), road).args(["weft", &seed.to_string(), &count.to_string(), "4"]));
    assert!(output.status.success() && text(&output).contains("ok stress"), "{}", tail(&text(&output)));
}

fn mpi(road: Road, ranks: u32, name: &str, arguments: &[&str], good: &str) {
    let program = compile_mpi(name);
    let output = mpirun(road, ranks, &program, arguments);
    assert!(output.status.success() && text(&output).contains(good), "{}", tail(&text(&output)));
}

/// Open MPI with Weft for messages (`mtl/ofi`) and for one-sided operations (`btl/ofi`).
fn mpirun(road: Road, ranks: u32, program: &Path, arguments: &[&str]) -> Output {
    let mut command = with_plugin(Command::new("mpirun.openmpi"), road);
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.env("OMPI_MCA_mpi_yield_when_idle", "1");
    command.args(["--oversubscribe", "--mca", "pml", "cm", "--mca", "mtl", "ofi", "--mca", "btl", "self,ofi"]);
    command.args(["--mca", "mtl_ofi_provider_include", "weft", "--mca", "btl_ofi_provider_include", "weft"]);
    command.args(["--mca", "osc", "^ucx", "-n", &ranks.to_string()]);
    run(command.arg(program).args(arguments))
}

/// libfabric finds the plug-in that cargo built for this test.
fn with_plugin(mut command: Command, road: Road) -> Command {
    command.env("FI_PROVIDER_PATH", plugin_folder()).env("FI_PROVIDER", "weft");
    match road {
        Road::Auto => command.env_remove("FI_WEFT_ROAD"),
        Road::Packets => command.env("FI_WEFT_ROAD", "packets"),
    };
    command
}

/// A folder with nothing but the plug-in under the name that it has when installed.
fn plugin_folder() -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER
        .get_or_init(|| {
            let binary = env::current_exe().unwrap();
            let dependencies = binary.parent().unwrap();
            let places = [dependencies.join("libweft_fi.so"), dependencies.join("../libweft_fi.so")];
            let built = places.iter().find(|place| place.exists());
            let built = built.unwrap_or_else(|| panic!("cargo built no plug-in: none of {places:?}"));
            let folder = scratch().join("plugin");
            fs::create_dir_all(&folder).unwrap();
            std::os::unix::fs::symlink(fs::canonicalize(built).unwrap(), folder.join("libweft-fi.so")).unwrap();
            folder
        })
        .clone()
}

/// One folder for each run of this binary, inside cargo's own. Those of earlier runs are removed.
fn scratch() -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER
        .get_or_init(|| {
            let parent = Path::new(env!("CARGO_TARGET_TMPDIR"));
            for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
                let name = entry.file_name();
                let process = name.to_str().and_then(|name| name.strip_prefix("programs-"));
                if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
                    let _ = fs::remove_dir_all(entry.path());
                }
            }
            let folder = parent.join(format!("programs-{}", std::process::id()));
            fs::create_dir_all(&folder).unwrap();
            folder
        })
        .clone()
}

fn compile(name: &str, sources: &[&str]) -> PathBuf {
    let mut command = Command::new("cc");
    build(&mut command, name, sources, &["-lfabric", "-lpthread"])
}

fn compile_mpi(name: &str) -> PathBuf {
    build(&mut Command::new("mpicc.openmpi"), name, &[name], &[])
}

/// Tests run at the same time and may want the same program: each builds its own.
fn build(compiler: &mut Command, name: &str, sources: &[&str], libraries: &[&str]) -> PathBuf {
    static BUILT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = BUILT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c");
    let program = scratch().join(format!("{name}-{number}"));
    compiler.args(["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program);
    compiler.args(sources.iter().map(|source| folder.join(format!("{source}.c")))).args(libraries);
    let output = run(compiler);
    assert!(output.status.success(), "{name} does not compile ({INSTALL}):\n{}", text(&output));
    program
}

fn run(command: &mut Command) -> Output {
    command.current_dir(scratch()).stdin(Stdio::null());
    command.output().unwrap_or_else(|error| panic!("{command:?} does not start: {error} ({INSTALL})"))
}

fn processes_of(program: &Path) -> Vec<String> {
    let entries = fs::read_dir("/proc").unwrap();
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let of_program = |number: &String| fs::read_link(format!("/proc/{number}/exe")).is_ok_and(|path| path == program);
    numbers.filter(of_program).collect()
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// The end of what a program said: its beginning is of no interest when it failed.
fn tail(lines: &str) -> String {
    let skipped = lines.lines().count().saturating_sub(40);
    lines.lines().skip(skipped).collect::<Vec<_>>().join("\n")
}
