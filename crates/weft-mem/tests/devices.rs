//! Devices that are not there, each for its reason; and CUDA with a driver that only looks like one.
//!
//! The example `device` does the work: it is what runs on real hardware too. The libraries of ROCm and Level Zero are
//! Debian's, which `cargo xtask test` installs.
#![allow(clippy::unwrap_used, reason = "a test's own helpers: a panic is a failed test")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds an example beside this test, unless it is there as `cargo test` leaves it, and gives its path.
fn example(name: &str, file: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().and_then(Path::parent).unwrap();
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--package", "weft-mem", "--example", name, "--target-dir"]);
    build.arg(folder.parent().unwrap()).args((!cfg!(debug_assertions)).then_some("--release"));
    assert!(build.status().unwrap().success());
    folder.join("examples").join(file)
}

/// What the example says with these in its environment, besides no other library of a device.
fn says(environment: &[(&str, &str)]) -> String {
    let mut command = Command::new(example("device", "device"));
    command.arg("small");
    for variable in ["WEFT_CUDA_LIBRARY", "WEFT_ROCM_LIBRARY", "WEFT_LEVEL_ZERO_LIBRARY"] {
        command.env(variable, "/nowhere/libweft.so");
    }
    let output = command.envs(environment.iter().copied()).output().unwrap();
    let (shown, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{environment:?}: {shown}{error}");
    assert_eq!(error, "", "{environment:?}");
    shown.into_owned()
}

fn fake_cuda() -> String {
    example("fake_cuda", "libfake_cuda.so").to_str().unwrap().to_owned()
}

#[test]
fn an_absent_library_is_an_absent_kind() {
    let shown = says(&[]);
    for kind in ["cuda", "rocm", "level-zero"] {
        let line = format!("{kind}: absent: /nowhere/libweft.so cannot be loaded: cannot open shared object file");
        assert!(shown.contains(&line), "{shown}");
    }
    assert!(shown.contains("system: 1 device"), "{shown}");
}

#[test]
fn another_library_under_the_name_is_an_absent_kind() {
    for (variable, line) in [
        ("WEFT_CUDA_LIBRARY", "cuda: absent: libc.so.6 has no cuInit: it is too old, or not what its name says"),
        ("WEFT_ROCM_LIBRARY", "rocm: absent: libc.so.6 has no hsa_init"),
        ("WEFT_LEVEL_ZERO_LIBRARY", "level-zero: absent: libc.so.6 has no zeInit"),
    ] {
        let shown = says(&[(variable, "libc.so.6")]);
        assert!(shown.contains(line), "{shown}");
    }
}

#[test]
fn a_driver_that_cannot_be_used_says_why() {
    let library = fake_cuda();
    for (wrong, line) in [
        ("none", "finds no NVIDIA device"),
        ("empty", "finds no NVIDIA device"),
        ("old", "is of CUDA 10.2: install a driver of 11.4 or later"),
        ("separate", "a CUDA device has addresses of its own"),
    ] {
        let shown = says(&[("WEFT_CUDA_LIBRARY", &library), ("FAKE_CUDA", wrong)]);
        let found = shown.lines().find(|line| line.starts_with("cuda: absent: ")).unwrap_or_default();
        assert!(found.contains(line), "{wrong}: {shown}");
    }
}

#[test]
fn all_of_cuda_works_with_a_driver_that_does_nothing_early() {
    let shown = says(&[("WEFT_CUDA_LIBRARY", &fake_cuda())]);
    assert!(shown.contains("cuda: 2 device(s)"), "{shown}");
    for (line, times) in
        [("verified: ", 2), ("what it wrote arrived", 4), ("with a descriptor", 2), ("handles that lie are refused", 2)]
    {
        let found = shown.lines().filter(|shown| shown.contains(line)).count();
        assert!(found >= times, "{line}: {shown}");
    }
}

/// Debian's libraries have every function. With a device they work, without one they say so.
#[test]
fn libraries_of_other_vendors_load() {
    for (kind, variable, library, package) in [
        ("rocm", "WEFT_ROCM_LIBRARY", "libhsa-runtime64.so.1", "libhsa-runtime64-1"),
        ("level-zero", "WEFT_LEVEL_ZERO_LIBRARY", "libze_loader.so.1", "libze1"),
    ] {
        let shown = says(&[(variable, library)]);
        let line = shown.lines().find(|line| line.starts_with(&format!("{kind}: "))).unwrap_or_default();
        assert!(!line.contains("cannot be loaded"), "{line}: install the Debian package {package}");
        assert!(!line.contains("has no"), "{line}");
        assert!(line.contains("device(s)") || line.contains("finds no") || line.contains("does not start"), "{line}");
    }
}
