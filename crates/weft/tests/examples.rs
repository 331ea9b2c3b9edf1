//! The examples, run as their pages say.
#![allow(clippy::unwrap_used, reason = "a test's own helpers: a panic is a failed test")]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Builds an example beside this test, unless it is there as `cargo test` leaves it, and gives its path.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().and_then(Path::parent).unwrap();
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--package", "weft", "--example", name, "--target-dir"]);
    build.arg(folder.parent().unwrap()).args((!cfg!(debug_assertions)).then_some("--release"));
    assert!(build.status().unwrap().success());
    folder.join("examples").join(name)
}

#[test]
fn pingpong_plays_in_two_processes() {
    let pingpong = example("pingpong");
    let mut server = Command::new(&pingpong);
    let mut server = server.args(["serve", "127.0.0.1:0"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut address = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut address).unwrap();
    let client = Command::new(&pingpong).args(["ping", address.trim()]).output().unwrap();
    let shown = String::from_utf8(client.stdout).unwrap();
    assert!(client.status.success(), "{}", String::from_utf8_lossy(&client.stderr));
    assert!(shown.contains("µs a round trip\nread by a peer while its owner sleeps\n"), "{shown}");
    assert!(server.wait().unwrap().success());
}
