//! Where the workspace is, and how a process is started in it.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What went wrong and, where we know it, what to do next. It is only ever printed.
pub(crate) type Failure = String;

pub(crate) struct Workspace {
    root: PathBuf,
    /// The PATH of every process that we start: the caller's, with the tools that we built in front.
    path: OsString,
}

impl Workspace {
    pub(crate) fn locate() -> Result<Self, Failure> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("xtask lies outside of a workspace")?;
        let path = env::var_os("PATH").ok_or("the environment has no PATH")?;
        Ok(Self { root: root.to_path_buf(), path })
    }

    pub(crate) fn file(&self, relative: &str) -> PathBuf {
        self.root.join(relative)
    }

    pub(crate) fn prepend_to_path(&mut self, folder: PathBuf) -> Result<(), Failure> {
        let folders = std::iter::once(folder).chain(env::split_paths(&self.path));
        self.path = env::join_paths(folders).map_err(in_context("cannot extend the PATH"))?;
        Ok(())
    }

    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.root).env("PATH", &self.path);
        command
    }

    pub(crate) fn cargo(&self, subcommand: &str) -> Command {
        let mut command = self.command("cargo");
        command.arg(subcommand);
        command
    }

    /// `cargo fuzz` needs a nightly compiler: the sanitizers' flags are unstable.
    pub(crate) fn nightly_fuzz(&self, subcommand: &str) -> Command {
        let mut command = self.command("cargo");
        command.args(["+nightly", "fuzz", subcommand]);
        command
    }
}

/// Shows the command, runs it with our own input and output, and fails unless it succeeds.
pub(crate) fn run(command: &mut Command) -> Result<(), Failure> {
    println!("$ {}", shown(command));
    let status = command.status().map_err(in_context(&shown(command)))?;
    if status.success() { Ok(()) } else { Err(format!("`{}` ended with {status}", shown(command))) }
}

/// Runs the command and returns what it wrote on its standard output.
pub(crate) fn output(command: &mut Command) -> Result<String, Failure> {
    let output = command.stderr(Stdio::inherit()).output().map_err(in_context(&shown(command)))?;
    if !output.status.success() {
        return Err(format!("`{}` ended with {}", shown(command), output.status));
    }
    String::from_utf8(output.stdout).map_err(in_context(&shown(command)))
}

pub(crate) fn on_path(executable: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|folder| folder.join(executable).is_file())
}

/// Whether the loader of this machine knows a library.
pub(crate) fn is_library(name: &str) -> bool {
    // Debian has it in /sbin, which is not on every PATH.
    let known = ["ldconfig", "/sbin/ldconfig"].into_iter().find_map(|command| {
        Command::new(command).arg("-p").stderr(Stdio::null()).output().ok().filter(|output| output.status.success())
    });
    known.is_some_and(|known| {
        String::from_utf8_lossy(&known.stdout).lines().any(|line| line.split_whitespace().next() == Some(name))
    })
}

/// For `map_err`: puts what was being done before what the system said.
pub(crate) fn in_context<E: Display>(context: &str) -> impl FnOnce(E) -> Failure {
    move |error| format!("{context}: {error}")
}

fn shown(command: &Command) -> String {
    let words: Vec<_> =
        std::iter::once(command.get_program()).chain(command.get_args()).map(OsStr::to_string_lossy).collect();
    words.join(" ")
}
