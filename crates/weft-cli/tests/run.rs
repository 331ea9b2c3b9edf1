//! `weft run`: what a program is given, and what becomes of it.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test's own helpers: a panic is a failed test"
)]

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// A folder with a file that is named as the plug-in, but is none: for all that happens before it is loaded.
struct Dummy(PathBuf);

impl Dummy {
    fn new(name: &str) -> Dummy {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("run-{}-{name}", std::process::id()));
        // What a process of the same number left that was killed.
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("libweft-fi.so"), "no library").unwrap();
        Dummy(folder)
    }

    fn weft(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
        command.args(arguments).env("WEFT_PLUGIN", &self.0).env_remove("FI_PROVIDER_PATH").env_remove("FI_WEFT_ROAD");
        command.stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.weft(arguments).output().unwrap()
    }
}

impl Drop for Dummy {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The lines of `env` that matter to libfabric and MPI.
fn variables(output: &Output) -> Vec<String> {
    assert!(output.status.success(), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    let ours = |line: &&str| line.starts_with("FI_") || line.starts_with("OMPI_MCA_") || line.starts_with("MPIR_CVAR_");
    let mut lines: Vec<String> = shown.lines().filter(ours).map(str::to_string).collect();
    lines.sort();
    lines
}

#[test]
fn a_program_gets_what_it_needs_to_find_weft() {
    let dummy = Dummy::new("variables");
    let folder = dummy.0.to_str().unwrap();
    let plain = variables(&dummy.run(&["run", "--", "env"]));
    let path = format!("FI_PROVIDER_PATH={folder}");
    for line in [
        "FI_PROVIDER=weft",
        &path,
        "OMPI_MCA_pml=cm",
        "OMPI_MCA_mtl=ofi",
        "OMPI_MCA_mtl_ofi_provider_include=weft",
        "MPIR_CVAR_CH4_NETMOD=ofi",
    ] {
        assert!(plain.iter().any(|shown| shown == line), "{line}: {plain:?}");
    }
    assert!(!plain.iter().any(|line| line.starts_with("FI_WEFT_ROAD")), "{plain:?}");

    // What the user has set of the plug-in's parameters stays; other plug-ins can still be found.
    let mut command = dummy.weft(&["run", "env"]);
    let theirs = variables(&command.env("FI_PROVIDER_PATH", "/else").env("FI_WEFT_ROAD", "packets").output().unwrap());
    for line in [&*format!("{path}:/else"), "FI_WEFT_ROAD=packets"] {
        assert!(theirs.iter().any(|shown| shown == line), "{line}: {theirs:?}");
    }
    let road = variables(&dummy.run(&["run", "--road", "packets", "--", "env"]));
    assert!(road.iter().any(|line| line == "FI_WEFT_ROAD=packets"), "{road:?}");

    // A shell that reads what is printed has the same.
    let printed = text(&dummy.run(&["run", "--road", "packets", "--print"]).stdout);
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{printed}env")]).env_remove("FI_PROVIDER_PATH");
    assert_eq!(variables(&shell.output().unwrap()), road);
}

#[test]
fn the_program_takes_its_place() {
    let dummy = Dummy::new("place");
    assert_eq!(dummy.run(&["run", "--", "sh", "-c", "exit 7"]).status.code(), Some(7));
    // The same process, with all its arguments as they are.
    let mut command = dummy.weft(&["run", "sh", "-c", "echo $$ \"$@\"", "sh", "--help", "--road"]);
    let child = command.stdout(Stdio::piped()).spawn().unwrap();
    let id = child.id();
    assert_eq!(text(&child.wait_with_output().unwrap().stdout), format!("{id} --help --road\n"));
    // Also such as are no text.
    let output = dummy.weft(&["run", "printf", "%s"]).arg(OsStr::from_bytes(b"\xff\xfe")).output().unwrap();
    assert_eq!(output.stdout, b"\xff\xfe");
}

#[test]
fn what_is_not_there_is_told() {
    let dummy = Dummy::new("absent");
    let missing = dummy.run(&["run", "--", "/nonexistent/program"]);
    assert_eq!(missing.status.code(), Some(127));
    assert!(text(&missing.stderr).starts_with("weft: /nonexistent/program: No such file"));
    assert_eq!(dummy.run(&["run", "--", "/"]).status.code(), Some(126));

    let absent = dummy.weft(&["run", "--", "true"]).env("WEFT_PLUGIN", "/nonexistent/libweft-fi.so").output().unwrap();
    assert_eq!(absent.status.code(), Some(125));
    assert!(text(&absent.stderr).starts_with("weft: WEFT_PLUGIN is /nonexistent/libweft-fi.so: No such file"));

    // The command alone in its folder says how to come by a plug-in. A link: who writes a program cannot start it while
    // a process that another test forks has the file open.
    let alone = dummy.0.join("bin");
    std::fs::create_dir_all(&alone).unwrap();
    std::fs::hard_link(env!("CARGO_BIN_EXE_weft"), alone.join("weft")).unwrap();
    let absent = Command::new(alone.join("weft")).args(["run", "true"]).env_remove("WEFT_PLUGIN").output().unwrap();
    let told = text(&absent.stderr);
    assert_eq!(absent.status.code(), Some(125), "{told}");
    for word in ["cargo build --release", "cargo xtask install", "WEFT_PLUGIN"] {
        assert!(told.contains(word), "{told}");
    }

    for wrong in [&["run"][..], &["run", "--road", "train", "true"], &["run", "--fast", "true"], &["run", "--"]] {
        let output = dummy.run(wrong);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
        assert!(text(&output.stderr).ends_with("For more information, try '--help'.\n"));
    }
    for help in [&["run", "--help"][..], &["help", "run"]] {
        assert!(text(&dummy.run(help).stdout).starts_with("Run a program that uses libfabric"));
    }
}

#[test]
fn info_tells_that_a_plugin_cannot_be_loaded() {
    let dummy = Dummy::new("info");
    let shown = text(&dummy.run(&["info"]).stdout);
    let provider: Vec<&str> = shown.lines().skip_while(|line| *line != "libfabric provider").take(3).collect();
    assert!(provider[1].ends_with(dummy.0.join("libweft-fi.so").to_str().unwrap()), "{shown}");
    assert!(provider[2].contains("does not offer it: it cannot be loaded: "), "{shown}");
    let json = text(&dummy.run(&["info", "--json"]).stdout);
    assert!(json.contains(r#""libfabric_provider":{"present":true,"loads":false,"#), "{json}");

    let mut command = dummy.weft(&["info"]);
    let shown = text(&command.env("PATH", "/nonexistent").output().unwrap().stdout);
    assert!(shown.contains("unknown: fi_info is not installed: apt-get install libfabric-bin"), "{shown}");
}
