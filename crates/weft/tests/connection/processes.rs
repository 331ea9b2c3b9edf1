//! Real processes that are killed.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use weft::connection::{ConnectFailure, Event, Listener, Manager, Settings, listener_at};
use weft::limits::{CONNECTION_REQUEST_ATTEMPTS, CONNECTION_SILENCE_US};
use weft::{Address, Fabric, Progress, Road};

use crate::common::{own_loopback, patient};
use crate::support::World;

/// Says which part a process plays; without it the test `role` has nothing to do.
const ROLE: &str = "WEFT_CONNECTION_ROLE";

/// A process that ends with its parent, however that ends: its input does.
struct Process {
    child: Child,
    /// Where it listens.
    listener: Address,
}

impl Process {
    /// Starts this binary again, to listen over a road; it answers if it shall.
    fn start(road: Road, answers: bool) -> Process {
        let role = format!("{} {}", if road == Road::Packets { "packets" } else { "shm" }, answers);
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "role", "--nocapture", "--test-threads=1", "-q"]).env(ROLE, role);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let said = lines.map(|line| line.unwrap()).find_map(|line| Some(line.strip_prefix("at ")?.parse().unwrap()));
        Process { child, listener: listener_at(said.unwrap()) }
    }

    fn stop(&self) {
        crate::common::stop(self.child.id());
    }

    fn resume(&self) {
        let number = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", "CONT", &number]).status().unwrap().success());
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Accepts everybody until its input ends or it is killed.
pub(crate) fn play() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let road = if role.starts_with("packets") { Road::Packets } else { Road::Automatic };
    let fabric = Fabric::new("connection").unwrap();
    let builder = || fabric.domain().road(road).progress(Progress::Automatic).configure(patient);
    let make = || builder().udp(own_loopback()).unwrap();
    let (listening, serving) = (make(), make());
    let (listener, manager) = (Listener::new(&listening).unwrap(), Manager::new(&serving).unwrap());
    let queue = serving.completion_queue(64);
    println!("\nat {}", listening.local());
    std::io::stdout().flush().unwrap();
    std::thread::spawn(|| {
        let _ = std::io::stdin().lines().count();
        std::process::exit(0);
    });
    let mut kept = Vec::new();
    loop {
        let millisecond = Some(std::time::Duration::from_millis(1));
        if let Some(request) = listener.wait(millisecond).unwrap()
            && role.ends_with("true")
        {
            let end = serving.endpoint(&queue).unwrap();
            let connection = manager.accept(request, &end, 0, b"from a process").unwrap();
            kept.push((end, connection));
        } else {
            manager.wait(millisecond).unwrap();
        }
    }
}

fn a_killed_process_is_a_shutdown(road: Road, progress: Progress) {
    let world = World::new(road, progress);
    let node = world.node();
    let mut process = Process::start(road, true);
    let ends: Vec<_> = (0..5).map(|_| node.endpoint()).collect();
    let ask = |context: usize| node.manager.connect(&ends[context], process.listener, context as u64, b"").unwrap();
    let connections: Vec<_> = (0..5).map(ask).collect();
    for _ in 0..5 {
        let event = world.event(&node);
        let Event::Connected { data, .. } = event else { panic!("{event:?}") };
        assert_eq!(data, b"from a process");
    }
    assert!(connections.iter().all(|connection| connection.is_connected()));
    process.kill();
    let mut ended = [false; 5];
    for _ in 0..5 {
        let event = world.event(&node);
        let Event::Shutdown { context } = event else { panic!("{event:?}") };
        assert!(!std::mem::replace(&mut ended[context as usize], true));
    }
    world.assert_silence(&[&node]);
    // As packets it was not the engine's patience that ended, which is longer: the host said so.
    assert!(road != Road::Packets || node.domain.statistics().absent > 0);
}

#[test]
fn a_killed_process_is_a_shutdown_through_shared_memory() {
    a_killed_process_is_a_shutdown(Road::Automatic, Progress::Manual);
    a_killed_process_is_a_shutdown(Road::Automatic, Progress::Automatic);
}

#[test]
fn a_killed_process_is_a_shutdown_by_packets() {
    a_killed_process_is_a_shutdown(Road::Packets, Progress::Manual);
    a_killed_process_is_a_shutdown(Road::Packets, Progress::Automatic);
}

/// A listener whose process is stopped is waited for, however often the engine finds it silent.
fn a_stopped_listener_is_waited_for(road: Road) {
    let world = World::new(road, Progress::Manual);
    let silence_us = CONNECTION_SILENCE_US + 10_000;
    let domain = world.domain_with(|config| config.give_up_us = silence_us);
    let node = world.node_with(domain, Settings { patience: None });
    let process = Process::start(road, true);
    process.stop();
    let _asking = node.manager.connect(&node.endpoint(), process.listener, 1, b"").unwrap();
    if road == Road::Packets {
        let more = u64::from(CONNECTION_REQUEST_ATTEMPTS) + 2;
        world.until(|| {
            assert_eq!(node.manager.poll().unwrap(), None);
            (node.domain.statistics().given_up >= more).then_some(())
        });
    } else {
        world.assert_silence(&[&node]);
    }
    process.resume();
    let event = world.event(&node);
    assert!(matches!(event, Event::Connected { context: 1, .. }), "{event:?}");
}

#[test]
fn a_stopped_listener_is_waited_for_by_packets() {
    a_stopped_listener_is_waited_for(Road::Packets);
}

#[test]
fn a_stopped_listener_is_waited_for_through_shared_memory() {
    a_stopped_listener_is_waited_for(Road::Automatic);
}

/// Its process is there, and does nothing any more.
#[test]
fn a_killed_listener_is_a_failure() {
    let world = World::new(Road::Automatic, Progress::Manual);
    let node = world.node();
    let mut process = Process::start(Road::Automatic, false);
    // The first one is rejected, since that process drops it: so it is there.
    let _first = node.manager.connect(&node.endpoint(), process.listener, 1, b"").unwrap();
    assert_eq!(world.event(&node), Event::Refused { context: 1, data: Vec::new() });
    process.stop();
    let _second = node.manager.connect(&node.endpoint(), process.listener, 2, b"").unwrap();
    world.assert_silence(&[&node]);
    process.kill();
    let failure = ConnectFailure::NobodyListens;
    assert_eq!(world.event(&node), Event::Failed { context: 2, failure });
}
