//! The command with the real plug-in and the libfabric of this machine.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test's own helpers: a panic is a failed test")]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Once;

/// `weft`, with the plug-in beside it. `cargo test` builds no plug-in for the tests of another package.
fn weft(arguments: &[&str]) -> Output {
    static BUILT: Once = Once::new();
    BUILT.call_once(|| {
        let folder = Path::new(env!("CARGO_BIN_EXE_weft")).parent().unwrap();
        let profile = match folder.file_name().unwrap().to_str().unwrap() {
            "debug" => "dev",
            other => other,
        };
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--locked", "-p", "weft-ofi", "--profile", profile, "--target-dir"]);
        cargo.arg(folder.parent().unwrap()).current_dir(env!("CARGO_MANIFEST_DIR"));
        assert!(cargo.status().unwrap().success(), "the plug-in cannot be built");
    });
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    command.args(arguments).env_remove("WEFT_PLUGIN").env_remove("FI_PROVIDER_PATH").output().unwrap()
}

fn shown(output: &Output) -> String {
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {told}", output.status);
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn libfabric_offers_weft_and_nothing_else() {
    let listed = shown(&weft(&["run", "--", "fi_info"]));
    let providers: BTreeSet<&str> = listed.lines().filter_map(|line| line.strip_prefix("provider: ")).collect();
    assert_eq!(providers.into_iter().collect::<Vec<_>>(), ["weft"], "{listed}");
    for kind in ["FI_EP_RDM", "FI_EP_DGRAM", "FI_EP_MSG"] {
        assert!(listed.contains(&format!("type: {kind}")), "{kind}: {listed}");
    }
}

#[test]
fn info_tells_what_it_offers() {
    let plain = shown(&weft(&["info"]));
    assert!(plain.contains(", loads it as weft "), "{plain}");
    let section = plain.lines().skip_while(|line| *line != "libfabric provider").take_while(|line| !line.is_empty());
    let names: BTreeSet<&str> = section.filter_map(|line| line.split_whitespace().next()).collect();
    for name in ["rdm", "dgram", "msg", "domains", "addresses", "parameters"] {
        assert!(names.contains(name), "{name}: {plain}");
    }
    let json = shown(&weft(&["info", "--json"]));
    assert!(json.contains(r#""libfabric_provider":{"present":true,"loads":true,"#), "{json}");
}

/// Words that begin so, of capital letters and underscores.
fn words(text: &str, beginning: &str) -> BTreeSet<String> {
    let inside = |letter: char| letter.is_ascii_uppercase() || letter == '_';
    let words = text.split(|letter: char| !inside(letter)).filter(|word| word.starts_with(beginning));
    words.map(str::to_string).collect()
}

#[test]
fn the_manual_has_the_parameters_of_the_plugin() {
    let defined = words(&shown(&weft(&["run", "--", "fi_info", "-e"])), "FI_WEFT_");
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/man/fi_weft.7");
    let told = words(&std::fs::read_to_string(page).unwrap(), "FI_WEFT_");
    assert_eq!(defined, told, "the plug-in's parameters, and those of fi_weft(7)");
}
