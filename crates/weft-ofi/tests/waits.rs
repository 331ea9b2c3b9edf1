//! Every way to sleep, through the stock libfabric: `c/waits.c`, on both roads and in both progress modes.
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of a test: a panic is a failed test")]

use std::path::Path;
use std::process::Command;
use std::{env, fs, process};

const INSTALL: &str = "apt-get install gcc libfabric-dev";

#[test]
fn waits_over_shared_memory() {
    waits("auto", "manual");
}

#[test]
fn waits_over_packets() {
    waits("packets", "manual");
}

#[test]
fn waits_over_shared_memory_with_a_thread() {
    waits("auto", "auto");
}

#[test]
fn waits_over_packets_with_a_thread() {
    waits("packets", "auto");
}

fn waits(road: &str, progress: &str) {
    // Tests run at the same time: each builds its own program.
    let name = format!("waits-{}-{road}-{progress}", process::id());
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let plugin = folder.join("plugin");
    // What a run left that failed, as a process of the same number.
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&plugin).unwrap();
    let binary = env::current_exe().unwrap();
    let dependencies = binary.parent().unwrap();
    let places = [dependencies.join("libweft_fi.so"), dependencies.join("../libweft_fi.so")];
    let built = places.iter().find(|place| place.exists());
    let built = built.unwrap_or_else(|| panic!("cargo built no plug-in: none of {places:?}"));
    std::os::unix::fs::symlink(fs::canonicalize(built).unwrap(), plugin.join("libweft-fi.so")).unwrap();
    let (source, program) = (Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/waits.c"), folder.join("waits"));
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program);
    run(compiler.arg(source).args(["-lfabric", "-lpthread"]));
    for seed in ["1", "2", "3"] {
        let mut command = Command::new(&program);
        command.env("FI_PROVIDER_PATH", &plugin).env("FI_WEFT_ROAD", road);
        run(command.args(["weft", seed, progress]));
    }
    fs::remove_dir_all(folder).unwrap();
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?} does not start: {error} ({INSTALL})"));
    let (said, failed) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?} failed ({INSTALL}):\n{said}{failed}");
}
