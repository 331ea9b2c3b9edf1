//! The stock programs of libfabric (Debian's `libfabric-bin`) with the plug-in: `fi_info`, and `fi_pingpong` with all
//! sizes and verified data, on one machine and between two network namespaces. What `fi_pingpong` cannot be told, the
//! threading level, `c/threads.c` does.
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of a test: a panic is a failed test")]

mod common;

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;
use std::{fs, process, thread};

use common::{HANG_GUARD, INSTALL, Road, compile, run, tail, text, with_plugin};

const PREFIX: &str = "weft-stock-";

#[test]
fn fi_info_shows_what_is_offered() {
    let said = said(with_plugin(Command::new("fi_info"), Road::Auto).args(["-p", "weft", "-v"]));
    for wanted in
        ["prov_name: weft", "FI_EP_RDM", "FI_EP_DGRAM", "FI_EP_MSG", "FI_TAGGED", "FI_ATOMIC", "FI_SOCKADDR_IN"]
    {
        assert!(said.contains(wanted), "no {wanted} in:\n{said}");
    }
    // Of what it lists, programs choose by hints.
    for kind in ["FI_EP_RDM", "FI_EP_DGRAM", "FI_EP_MSG"] {
        let said = said_by_info(&["-t", kind, "-n", "127.0.0.1"]);
        assert!(said.contains(kind) && said.contains("provider: weft"), "{kind}:\n{said}");
    }
    let output = run(with_plugin(Command::new("fi_info"), Road::Auto).args([
        "-p",
        "weft",
        "-t",
        "FI_EP_RDM",
        "-c",
        "FI_COLLECTIVE",
    ]));
    assert!(!output.status.success(), "what is not offered was offered:\n{}", text(&output));
}

#[test]
fn fi_info_lists_the_parameters() {
    let said = said(with_plugin(Command::new("fi_info"), Road::Auto).arg("-e"));
    for name in ["ROAD", "INTERFACE", "FABRIC", "FAULTS"] {
        assert!(said.contains(&format!("# FI_WEFT_{name}: String")), "no FI_WEFT_{name} in:\n{said}");
        let manual = include_str!("../../../docs/man/fi_weft.7");
        assert!(manual.contains(&format!("\n.B FI_WEFT_{name}\n")), "FI_WEFT_{name} is not in the manual");
    }
}

#[test]
fn a_parameter_that_cannot_be_read_is_told() {
    for (name, value) in [("FI_WEFT_ROAD", "bridge"), ("FI_WEFT_FAULTS", "loss=7"), ("FI_WEFT_FAULTS", "rain=1")] {
        let mut command = with_plugin(Command::new("fi_pingpong"), Road::Auto);
        // The server opens its domain when somebody has connected; the client at once.
        let server = Listening::start(Place::Here, &["-p", "weft", "-e", "rdm"], Road::Packets);
        command.args(["-p", "weft", "-e", "rdm", "-P", &server.port, "127.0.0.1"]);
        command.env(name, value).env("FI_LOG_LEVEL", "warn");
        let output = run(&mut command);
        let said = text(&output);
        assert!(!output.status.success() && said.contains(&format!("{name} is \"{value}\"")), "{said}");
    }
}

#[test]
fn ping_pong_over_shared_memory() {
    every_kind(Place::Here, Road::Auto);
}

#[test]
fn ping_pong_over_packets() {
    every_kind(Place::Here, Road::Packets);
}

#[test]
fn ping_pong_between_namespaces() {
    let namespaces = Namespaces::make();
    every_kind(Place::Apart(&namespaces), Road::Auto);
}

#[test]
fn every_threading_level_over_shared_memory() {
    every_level(Road::Auto);
}

#[test]
fn every_threading_level_over_packets() {
    every_level(Road::Packets);
}

fn every_level(road: Road) {
    let program = compile("threads", &["threads", "common"]);
    // Level, and threads that post on the same endpoint.
    for (level, threads) in
        [("domain", "1"), ("completion", "1"), ("endpoint", "1"), ("fid", "1"), ("safe", "2"), ("safe", "4")]
    {
        for progress in ["manual", "auto"] {
            let said = said(with_plugin(Command::new(&program), road).args(["weft", level, threads, "10", progress]));
            assert!(said.contains("ok threads"), "{level} {threads} {progress}:\n{}", tail(&said));
        }
    }
}

fn every_kind(place: Place<'_>, road: Road) {
    for (kind, mode) in [("rdm", "msg"), ("rdm", "tagged"), ("dgram", "msg"), ("msg", "msg")] {
        ping_pong(place, road, kind, mode);
    }
}

/// All sizes, few rounds of each, every byte checked.
fn ping_pong(place: Place<'_>, road: Road, kind: &str, mode: &str) {
    let words = ["-p", "weft", "-e", kind, "-m", mode, "-c", "-S", "all", "-I", "3"];
    let server = Listening::start(place, &words, road);
    let mut client = place.command(1, road);
    client.args(words).args(["-P", &server.port, place.server()]);
    let client = run(&mut client);
    let server = server.end();
    let (client_said, server_said) = (text(&client), text(&server));
    let good = client.status.success() && server.status.success();
    // One line for each size, with the count of rounds in it.
    let sizes = client_said.lines().filter(|line| line.contains(" =3 ")).count();
    let fewest = if kind == "dgram" { 15 } else { 40 };
    assert!(
        good && sizes >= fewest,
        "{kind} {mode}: {sizes} sizes\nclient:\n{}\nserver:\n{}",
        tail(&client_said),
        tail(&server_said)
    );
}

/// Where the two programs run.
#[derive(Clone, Copy)]
enum Place<'a> {
    /// Both in the namespace of this process.
    Here,
    /// Each in a network namespace of its own.
    Apart(&'a Namespaces),
}

impl Place<'_> {
    fn server(self) -> &'static str {
        match self {
            Place::Here => "127.0.0.1",
            Place::Apart(_) => "10.178.0.1",
        }
    }

    /// `fi_pingpong` at this end.
    fn command(self, end: usize, road: Road) -> Command {
        let mut command = Command::new("timeout");
        command.args(["-s", "KILL", &HANG_GUARD.as_secs().to_string()]);
        if let Place::Apart(namespaces) = self {
            let name = namespaces.names.get(end).unwrap();
            command.args(["ip", "netns", "exec", name]);
        }
        command.arg("fi_pingpong");
        with_plugin(command, road)
    }
}

/// A server of `fi_pingpong` that listens.
struct Listening {
    child: Option<Child>,
    port: String,
}

impl Listening {
    fn start(place: Place<'_>, words: &[&str], road: Road) -> Listening {
        // A port that is free now; whoever takes it in between makes the server fail, and another one is drawn.
        loop {
            let port = TcpListener::bind("0.0.0.0:0").unwrap().local_addr().unwrap().port().to_string();
            let mut command = place.command(0, road);
            command.args(words).args(["-B", &port]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error} ({INSTALL})"));
            loop {
                if listens(child.id(), &port) {
                    return Listening { child: Some(child), port };
                }
                if child.try_wait().unwrap().is_some() {
                    let said = text(&child.wait_with_output().unwrap());
                    assert!(said.contains("Address already in use"), "the server ended ({INSTALL}):\n{said}");
                    break;
                }
                thread::sleep(Duration::from_millis(5));
            }
        }
    }

    /// What it said, when it has ended by itself.
    fn end(mut self) -> Output {
        self.child.take().unwrap().wait_with_output().unwrap()
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // The program itself, which `timeout` follows. It must not hear of it: libfabric loads libinfinipath, which calls
            // `exit` when the program is told to end, and stays there if that was inside of `free`.
            for program in children(child.id()) {
                let _ = Command::new("kill").args(["-KILL", &program]).status();
            }
            let _ = child.wait();
        }
    }
}

fn children(process: u32) -> Vec<String> {
    let children = fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap_or_default();
    children.split_whitespace().map(str::to_owned).collect()
}

/// Whether a process or its child listens on a TCP port. Somebody else may have drawn the same port.
fn listens(process: u32, port: &str) -> bool {
    let port = format!(":{:04X}", port.parse::<u16>().unwrap());
    let processes = children(process).into_iter().chain([process.to_string()]);
    processes.flat_map(|process| ["tcp", "tcp6"].map(|table| (process.clone(), table))).any(|(process, table)| {
        let lines = fs::read_to_string(format!("/proc/{process}/net/{table}")).unwrap_or_default();
        lines.lines().any(|line| {
            // The local address, the state (0A is LISTEN) and the number of the socket.
            let word = |at| line.split_whitespace().nth(at).unwrap_or_default();
            word(1).ends_with(&port) && word(3) == "0A" && holds(&process, &format!("socket:[{}]", word(9)))
        })
    })
}

/// Whether one of a process's descriptors is this.
fn holds(process: &str, what: &str) -> bool {
    let descriptors = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    descriptors.filter_map(|entry| fs::read_link(entry.path()).ok()).any(|link| link == Path::new(what))
}

/// Two network namespaces with a pair of virtual interfaces between them.
struct Namespaces {
    names: [String; 2],
}

impl Namespaces {
    fn make() -> Namespaces {
        // What an earlier run left because it was killed: also one whose process had the number that this one has.
        for entry in fs::read_dir("/run/netns").into_iter().flatten().flatten() {
            let name = entry.file_name().into_string().unwrap_or_default();
            let maker = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
            let ours = maker == Some(&*process::id().to_string());
            if ours || maker.is_some_and(|maker| !Path::new("/proc").join(maker).exists()) {
                // A run beside this one may do the same.
                let _ = run(Command::new("ip").args(["netns", "delete", &name]));
            }
        }
        let made = Namespaces { names: ["server", "client"].map(|end| format!("{PREFIX}{}-{end}", process::id())) };
        let [server, client] = &made.names;
        ip(&["netns", "add", server]);
        ip(&["netns", "add", client]);
        ip(&["link", "add", "veth0", "netns", server, "type", "veth", "peer", "name", "veth0", "netns", client]);
        for (name, address) in [(server, "10.178.0.1/24"), (client, "10.178.0.2/24")] {
            ip(&["-n", name, "address", "add", address, "dev", "veth0"]);
            ip(&["-n", name, "link", "set", "lo", "up"]);
            ip(&["-n", name, "link", "set", "veth0", "up"]);
        }
        // The kernel says a little later that the carrier is there; until then the interface is not offered.
        for name in &made.names {
            let state = || text(&run(Command::new("ip").args(["-n", name, "link", "show", "dev", "veth0"])));
            while !state().contains("state UP") {
                thread::sleep(Duration::from_millis(5));
            }
        }
        made
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in self.names.iter().filter(|name| Path::new("/run/netns").join(name).exists()) {
            let _ = Command::new("ip").args(["netns", "delete", name]).status();
        }
    }
}

fn ip(words: &[&str]) {
    let output = run(Command::new("ip").args(words));
    let told = text(&output);
    assert!(
        output.status.success(),
        "ip {}: {told}\nThis test makes network namespaces: it takes root.",
        words.join(" ")
    );
}

fn said_by_info(words: &[&str]) -> String {
    said(with_plugin(Command::new("fi_info"), Road::Auto).args(["-p", "weft"]).args(words))
}

fn said(command: &mut Command) -> String {
    let output = run(command);
    assert!(output.status.success(), "{command:?} failed ({INSTALL}):\n{}", tail(&text(&output)));
    text(&output)
}
