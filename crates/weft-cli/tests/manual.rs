//! The manual pages tell of everything that there is.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test's own helpers: a panic is a failed test")]

use std::path::Path;
use std::process::Command;

/// The text of a page, without the requests that only choose a font.
fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/man").join(name);
    let text = std::fs::read_to_string(path).unwrap();
    [("\\fB", ""), ("\\fI", ""), ("\\fP", ""), ("\\-", "-"), ("\"", "")]
        .into_iter()
        .fold(text, |text, (from, to)| text.replace(from, to))
}

fn weft(arguments: &[&str]) -> String {
    // Any file of that name will do: it is not loaded.
    let plugin = Path::new(env!("CARGO_TARGET_TMPDIR")).join("manual-fi.so");
    std::fs::write(&plugin, "").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    let output = command.args(arguments).env("WEFT_PLUGIN", &plugin).output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_command_is_in_the_manual() {
    let page = page("weft.1");
    let mut seen = 0;
    for line in weft(&["help"]).lines().filter_map(|line| line.strip_prefix("  weft ")) {
        // Words in small letters are the command; `lat|bw` are two. What it does comes after several spaces.
        let plain = |letter: char| letter.is_ascii_lowercase() || letter == '|';
        let command = |word: &&str| !word.is_empty() && word.chars().all(plain);
        let words: Vec<&str> = line.split(' ').take_while(command).collect();
        let Some((last, before)) = words.split_last() else { continue };
        for name in last.split('|') {
            let name = [before, &[name]].concat().join(" ");
            assert!(page.contains(&name), "`{name}` is not in weft(1)");
            seen += 1;
        }
    }
    assert!(seen > 10, "{seen} commands only: has the help another form?");
}

#[test]
fn every_variable_that_run_sets_is_in_the_manual() {
    let page = page("weft.1");
    for line in weft(&["run", "--road", "packets", "--print"]).lines() {
        let (name, value) = line.strip_prefix("export ").unwrap().split_once('=').unwrap();
        // Two have values that are told in words.
        let shown = match name {
            "FI_PROVIDER_PATH" | "FI_WEFT_ROAD" => name.to_string(),
            _ => format!("{name}={}", value.trim_matches('\'')),
        };
        assert!(page.contains(&shown), "`{shown}` is not in weft(1)");
    }
    let status = weft(&["run", "--help"]);
    for number in ["125", "126", "127"] {
        assert!(status.contains(number) && page.contains(number), "{number}");
    }
}
