//! The documents' examples, run: every `$ weft …` line of a console block is executed and its output compared with what
//! the document shows. A block ```` ```toml NAME ```` is written to that file first. In a block ```` ```console varying ````
//! every word with a digit in it may differ: times, counts, addresses.
//!
//! `WEFT_BLESS=1 cargo test -p weft-cli --test docs` writes the real output into the documents instead.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test's own helpers: a panic is a failed test"
)]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Splits a command line at spaces, but not inside of double quotes.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (index, part) in line.split('"').enumerate() {
        if index % 2 == 1 {
            words.push(part.to_string());
        } else {
            words.extend(part.split_whitespace().map(str::to_string));
        }
    }
    words
}

fn run(line: &str, folder: &Path) -> String {
    let words = words(line);
    assert_eq!(words.first().map(String::as_str), Some("weft"), "only weft is run: {line}");
    let output = Command::new(env!("CARGO_BIN_EXE_weft")).args(&words[1..]).current_dir(folder).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Runs a document's blocks in `folder`; returns the document with the real output.
fn play(document: &str, folder: &Path) -> String {
    let mut real = String::new();
    let mut lines = document.lines();
    while let Some(line) = lines.next() {
        let _ = writeln!(real, "{line}");
        let Some(info) = line.strip_prefix("```").filter(|info| !info.is_empty()) else { continue };
        let block: Vec<&str> = lines.by_ref().take_while(|line| !line.starts_with("```")).collect();
        if info.split(' ').next() == Some("console") {
            for command in block.iter().filter_map(|line| line.strip_prefix("$ ")) {
                let _ = write!(real, "$ {command}\n{}", run(command, folder));
            }
        } else {
            for line in &block {
                let _ = writeln!(real, "{line}");
            }
            if let Some(name) = info.strip_prefix("toml ") {
                let path = folder.join(name);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, block.join("\n") + "\n").unwrap();
            }
        }
        real.push_str("```\n");
    }
    real
}

/// The words of a line, those with a digit all alike.
fn without_numbers(line: &str) -> Vec<&str> {
    line.split_whitespace().map(|word| if word.contains(|c: char| c.is_ascii_digit()) { "0" } else { word }).collect()
}

fn check(name: &str, folder: &Path) {
    let path = root().join(name);
    let document = std::fs::read_to_string(&path).unwrap();
    let real = play(&document, folder);
    if std::env::var_os("WEFT_BLESS").is_some() {
        std::fs::write(&path, &real).unwrap();
        return;
    }
    let mut varies = false;
    for (number, (shown, real)) in document.lines().zip(real.lines()).enumerate() {
        if shown.starts_with("```") {
            varies = shown == "```console varying";
        }
        let same = if varies { without_numbers(shown) == without_numbers(real) } else { shown == real };
        assert!(same, "{name}, line {}: the document shows\n{shown}\nwhere this is real:\n{real}", number + 1);
    }
    assert_eq!(document.lines().count(), real.lines().count(), "{name}: the output has another length");
}

#[test]
fn a_new_protocol_works_as_its_page_says() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("docs-{}", std::process::id()));
    // What a process of the same number left that failed.
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    check("docs/new-protocol.md", &folder);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn the_readme_shows_what_weft_prints() {
    check("README.md", &root());
}
