//! Installs what the checks need, or says exactly what to install.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::workspace::{Failure, Workspace, is_library, on_path, run};

/// A Debian package, and the file that shows that it is there.
#[derive(Clone, Copy)]
pub(crate) struct Package {
    name: &'static str,
    sign: Sign,
}

#[derive(Clone, Copy)]
enum Sign {
    Executable(&'static str),
    Library(&'static str),
    File(&'static str),
}

impl Package {
    const fn with_executable(name: &'static str, executable: &'static str) -> Package {
        Package { name, sign: Sign::Executable(executable) }
    }

    const fn with_library(name: &'static str, library: &'static str) -> Package {
        Package { name, sign: Sign::Library(library) }
    }

    const fn with_file(name: &'static str, file: &'static str) -> Package {
        Package { name, sign: Sign::File(file) }
    }

    fn is_there(&self) -> bool {
        match self.sign {
            Sign::Executable(executable) => on_path(executable),
            Sign::Library(library) => is_library(library),
            Sign::File(file) => Path::new(file).is_file(),
        }
    }
}

const MPI_HEADER: &str = if cfg!(target_arch = "aarch64") {
    "/usr/lib/aarch64-linux-gnu/openmpi/include/mpi.h"
} else {
    "/usr/lib/x86_64-linux-gnu/openmpi/include/mpi.h"
};

const SCALAPACK_TEST: &str = if cfg!(target_arch = "aarch64") {
    "/usr/lib/aarch64-linux-gnu/scalapack/openmpi-tests/xdlu"
} else {
    "/usr/lib/x86_64-linux-gnu/scalapack/openmpi-tests/xdlu"
};

pub(crate) const FOR_TESTS: &[Package] = &[
    // Tests compare our decoding and encoding with tshark's, field by field.
    Package::with_executable("tshark", "tshark"),
    // `weft bench` runs beside other libraries; that it can is tested, how fast they are is not. (fabtests, which it also
    // uses, is in no Debian release.)
    Package::with_executable("libfabric-bin", "fi_pingpong"),
    Package::with_executable("ucx-utils", "ucx_perftest"),
    Package::with_executable("iproute2", "ip"),
    // The libfabric plug-in: its structures are compared with the headers, programs in C call it, MPI runs on it.
    Package::with_executable("gcc", "cc"),
    Package::with_file("libfabric-dev", "/usr/include/rdma/fabric.h"),
    Package::with_executable("openmpi-bin", "mpirun.openmpi"),
    Package::with_file("libopenmpi-dev", MPI_HEADER),
    // Programs of others that run on the plug-in.
    Package::with_executable("hpcc", "hpcc"),
    Package::with_executable("netpipe-openmpi", "NPopenmpi"),
    Package::with_file("scalapack-mpi-test", SCALAPACK_TEST),
    // Manual pages are checked by the program that shows them.
    Package::with_executable("groff-base", "groff"),
    // That the functions of AMD's and Intel's devices are found is tested; there are no devices.
    Package::with_library("libhsa-runtime64-1", "libhsa-runtime64.so.1"),
    Package::with_library("libze1", "libze_loader.so.1"),
];

pub(crate) const FOR_FUZZ: &[Package] = &[
    // libFuzzer is C++ and is built from source with the fuzz targets.
    Package::with_executable("g++", "c++"),
];

/// A cargo tool from crates.io, with the version that we build where the PATH has none.
pub(crate) struct Tool {
    name: &'static str,
    version: &'static str,
}

/// Checks the licences and sources of the dependencies.
pub(crate) const CARGO_DENY: Tool = Tool { name: "cargo-deny", version: "0.20.2" };
/// Builds and runs the fuzz targets.
pub(crate) const CARGO_FUZZ: Tool = Tool { name: "cargo-fuzz", version: "0.13.2" };

/// Installs those of the packages that are missing, when that is possible.
pub(crate) fn packages(needed: &[Package]) -> Result<(), Failure> {
    let missing: Vec<&str> = needed.iter().filter(|package| !package.is_there()).map(|package| package.name).collect();
    if missing.is_empty() {
        return Ok(());
    }
    if !is_root() || !on_path("apt-get") {
        return Err(format!(
            "packages are missing; install them with\n\n    sudo apt-get install -y {}\n",
            missing.join(" ")
        ));
    }
    run(apt_get().arg("update"))?;
    run(apt_get().args(["install", "-y", "--no-install-recommends"]).args(missing))
}

pub(crate) fn nightly(workspace: &Workspace) -> Result<(), Failure> {
    let mut version = workspace.command("cargo");
    version.args(["+nightly", "--version"]).stdout(Stdio::null()).stderr(Stdio::null());
    match version.status() {
        Ok(status) if status.success() => Ok(()),
        _ => Err("the fuzz targets need a nightly compiler; install it with\n\n    rustup toolchain install nightly\n"
            .to_owned()),
    }
}

/// Makes `cargo deny` and its like available to the commands of `workspace`.
pub(crate) fn tool(workspace: &mut Workspace, tool: &Tool) -> Result<(), Failure> {
    if on_path(tool.name) {
        return Ok(());
    }
    // The version is in the folder's name, so that a new pin is a new installation.
    let root = workspace.file(&format!("target/tools/{}-{}", tool.name, tool.version));
    if !root.join("bin").join(tool.name).is_file() {
        // Unoptimised and without debug information: cargo-deny is then there in a third of the time, and no slower to
        // notice on a graph of our size.
        let mut install = workspace.cargo("install");
        install.args(["--locked", "--debug", "--version", &format!("={}", tool.version), "--root"]);
        install.arg(&root).arg(tool.name).env("CARGO_PROFILE_DEV_DEBUG", "0");
        run(&mut install)?;
    }
    workspace.prepend_to_path(root.join("bin"))
}

fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive");
    command
}

pub(crate) fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}
