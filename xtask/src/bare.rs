//! The proof that a crate does without `std`: the compiler is given a sysroot that has none.
//!
//! The sysroot holds the host's `core` and `alloc` only, so a crate that asks for `std`, in its own code or through a
//! feature of a dependency, does not compile. This says as much as a build for a target without an operating system,
//! and needs no other target installed.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::workspace::{Failure, Workspace, in_context, output, run};

/// `alloc` and `core`, and the helper functions that the compiler itself calls.
const LIBRARIES: &[&str] = &["libcore-", "liballoc-", "libcompiler_builtins-"];

pub(crate) fn build(workspace: &Workspace, package: &str) -> Result<(), Failure> {
    let version = output(workspace.command("rustc").arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).ok_or("`rustc -vV` names no host")?;
    let sysroot = bare_sysroot(workspace, host)?;

    let mut build = workspace.cargo("build");
    build.args(["--locked", "--package", package]);
    // With a target named, the flags below do not reach build scripts and procedural macros, which may use `std`.
    build.args(["--target", host, "--target-dir", "target/no-std"]);
    build.env("CARGO_ENCODED_RUSTFLAGS", format!("--sysroot={}", sysroot.display()));
    run(&mut build)
}

fn bare_sysroot(workspace: &Workspace, host: &str) -> Result<PathBuf, Failure> {
    let full = output(workspace.command("rustc").args(["--print", "target-libdir"]))?;
    let sysroot = workspace.file("target/no-std/sysroot");
    link_libraries(Path::new(full.trim()), &sysroot, host).map_err(in_context("cannot lay out the bare sysroot"))?;
    Ok(sysroot)
}

fn link_libraries(full: &Path, sysroot: &Path, host: &str) -> std::io::Result<()> {
    // Made afresh each time: the links of another toolchain must not stay.
    if sysroot.exists() {
        fs::remove_dir_all(sysroot)?;
    }
    let bare = sysroot.join("lib/rustlib").join(host).join("lib");
    fs::create_dir_all(&bare)?;
    for entry in fs::read_dir(full)? {
        let entry = entry?;
        let name = entry.file_name();
        if LIBRARIES.iter().any(|library| name.to_string_lossy().starts_with(library)) {
            symlink(entry.path(), bare.join(&name))?;
        }
    }
    Ok(())
}
