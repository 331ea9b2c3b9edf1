//! The manual pages tell of everything that there is.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test's own helpers: a panic is a failed test")]

use std::path::Path;
use std::process::Command;

/// The text of a page, without the requests that only choose a font.
fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/man").join(name);
    let text = std::fs::read_to_string(path).unwrap();
    [("\\fB", ""), ("\\fI", ""), ("\\fP", ""), ("\\fR", ""), ("\\-", "-"), ("\"", "")]
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

/// `WEFT_BLESS=1 cargo test -p weft-cli --test manual` writes it.
#[test]
fn the_page_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/man/weft.1");
    let real = weft(&["man"]);
    if std::env::var_os("WEFT_BLESS").is_some() {
        std::fs::write(path, real).unwrap();
        return;
    }
    let shown = std::fs::read_to_string(path).unwrap();
    assert!(real.is_ascii(), "troff reads ASCII");
    assert!(shown == real, "docs/man/weft.1 is out of date: WEFT_BLESS=1 cargo test -p weft-cli --test manual");
}

/// The commands that `weft help WORDS` lists, each as all its words.
fn commands(words: &[&str]) -> Vec<String> {
    let help = weft(&[&["help"], words].concat());
    let list = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names = list.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help");
    names.map(|name| [words, &[name]].concat().join(" ")).collect()
}

#[test]
fn every_command_has_help_an_example_and_a_place_in_the_manual() {
    let page = page("weft.1");
    let mut all = commands(&[]);
    for group in ["bench", "protocol", "sim"] {
        all.extend(commands(&[group]));
    }
    assert!(all.len() > 18, "{all:?}: has the help another form?");
    for command in all {
        assert!(page.contains(&format!(".SS weft {command}\n")), "`{command}` is not in weft(1)");
        let words: Vec<&str> = command.split(' ').collect();
        for help in ["--help", "-h"] {
            let text = weft(&[&words[..], &[help]].concat());
            assert!(text.contains(&format!("\nUsage: weft {command}")), "{text}");
            assert!(text.contains("\nExample") && text.lines().all(|line| line.len() < 140), "{text}");
        }
    }
}

#[test]
fn every_shell_has_completions() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = weft(&["completions", shell]);
        assert!(script.contains("protocols") && !script.contains("bench-janitor"), "{shell}");
    }
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
