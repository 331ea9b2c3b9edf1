//! What the tests that run C programs share: where the plug-in is, how a program is built and run.
#![allow(dead_code, reason = "each test binary uses a part of it")]
#![expect(clippy::panic, reason = "a test that cannot begin says why, and ends")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::Duration;
use std::{env, fs};

/// What must be installed.
pub(crate) const INSTALL: &str =
    "apt-get install gcc libfabric-dev libfabric-bin openmpi-bin libopenmpi-dev valgrind iproute2";

/// Far beyond what any program here needs, however busy the machine: what hangs ends.
pub(crate) const HANG_GUARD: Duration = Duration::from_secs(900);

/// The sources of the walk.
const WALK: [&str; 15] = [
    "walk",
    "walk_address",
    "walk_bad_input",
    "walk_connection",
    "walk_contexts",
    "walk_errors",
    "walk_info",
    "walk_memory",
    "walk_queues",
    "walk_rdm",
    "walk_rma",
    "walk_tagged",
    "walk_trigger",
    "walk_variable",
    "common",
];

/// The program that walks over every call.
pub(crate) fn compile_walk() -> PathBuf {
    compile("walk", &WALK)
}

/// The program with randomised operations.
pub(crate) fn compile_stress() -> PathBuf {
    compile("stress", &["stress", "common"])
}

/// By which road the bytes go: shared memory where it can be, or packets only.
#[derive(Clone, Copy)]
pub(crate) enum Road {
    Auto,
    Packets,
}

/// libfabric finds the plug-in that cargo built for this test.
pub(crate) fn with_plugin(mut command: Command, road: Road) -> Command {
    command.env("FI_PROVIDER_PATH", plugin_folder()).env("FI_PROVIDER", "weft");
    match road {
        Road::Auto => command.env_remove("FI_WEFT_ROAD"),
        Road::Packets => command.env("FI_WEFT_ROAD", "packets"),
    };
    command
}

/// A folder with nothing but the plug-in under the name that it has when installed.
pub(crate) fn plugin_folder() -> PathBuf {
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

/// One folder for each run of this binary, inside cargo's own. Those of earlier runs are removed: also one whose process
/// had the number that this one has.
pub(crate) fn scratch() -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER
        .get_or_init(|| {
            let parent = Path::new(env!("CARGO_TARGET_TMPDIR"));
            for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
                let name = entry.file_name();
                let process = name.to_str().and_then(|name| name.strip_prefix("programs-"));
                let ours = process == Some(&*std::process::id().to_string());
                if ours || process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
                    let _ = fs::remove_dir_all(entry.path());
                }
            }
            let folder = parent.join(format!("programs-{}", std::process::id()));
            fs::create_dir_all(&folder).unwrap();
            folder
        })
        .clone()
}

pub(crate) fn compile(name: &str, sources: &[&str]) -> PathBuf {
    let mut command = Command::new("cc");
    build(&mut command, name, sources, &["-lfabric", "-lpthread"])
}

/// Tests run at the same time and may want the same program: each builds its own.
pub(crate) fn build(compiler: &mut Command, name: &str, sources: &[&str], libraries: &[&str]) -> PathBuf {
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

/// Open MPI with Weft for messages (`mtl/ofi`) and for one-sided operations (`btl/ofi`); the program follows.
pub(crate) fn mpirun(road: Road, ranks: u32) -> Command {
    let mut command = with_plugin(Command::new("mpirun.openmpi"), road);
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.env("OMPI_MCA_mpi_yield_when_idle", "1");
    command.args(["--oversubscribe", "--mca", "pml", "cm", "--mca", "mtl", "ofi", "--mca", "btl", "self,ofi"]);
    command.args(["--mca", "mtl_ofi_provider_include", "weft", "--mca", "btl_ofi_provider_include", "weft"]);
    // Without `sm`, which would serve windows of one machine past every network.
    command.args(["--mca", "osc", "^ucx,sm", "-n", &ranks.to_string()]);
    command
}

pub(crate) fn run(command: &mut Command) -> Output {
    run_in(&scratch(), command)
}

pub(crate) fn run_in(folder: &Path, command: &mut Command) -> Output {
    command.current_dir(folder).stdin(Stdio::null());
    command.output().unwrap_or_else(|error| panic!("{command:?} does not start: {error} ({INSTALL})"))
}

pub(crate) fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// The end of what a program said: its beginning is of no interest when it failed.
pub(crate) fn tail(lines: &str) -> String {
    let skipped = lines.lines().count().saturating_sub(40);
    lines.lines().skip(skipped).collect::<Vec<_>>().join("\n")
}
