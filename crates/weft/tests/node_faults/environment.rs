//! Peers in surroundings of their own: other PID namespaces, no descriptors left, a limit of file sizes, children of fork.

use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::time::Instant;

use weft::{Access, CompletionKind, Level, Options, PeerId, Progress, RemoteAddress};

use crate::PATIENCE;
use crate::child::{self, Process};
use crate::traffic::{Node, address_from_text, address_to_text, anywhere};

const LENGTHS: [usize; 5] = [0, 8, 1000, 70_000, 300_000];

/// Says hello, and sends everything back that comes, under the conditions that the second argument names.
pub(crate) fn resident(arguments: &[String]) {
    let over = child::watch_parent();
    if arguments[1] == "short-files" {
        let limit = libc::rlimit { rlim_cur: 4096, rlim_max: 4096 };
        // SAFETY: a valid structure that lives through the call.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) }, 0);
    }
    let node = Node::patient(anywhere(), Progress::Automatic);
    // What it sleeps on is there before.
    node.queue.descriptor().unwrap();
    let _taken = if arguments[1] == "no-descriptors" { take_all_descriptors() } else { Vec::new() };
    echo(&node, &arguments[0], || over.load(std::sync::atomic::Ordering::Relaxed), || {});
}

/// Echoes until it is told to end; `first` is called once when the first message has come.
fn echo(node: &Node, to: &str, over: impl Fn() -> bool, first: impl FnOnce()) {
    let to = node.domain.addresses().insert(address_from_text(to)).unwrap();
    // Memory that nobody else can map: it is reached with this process's help.
    let memory = node.domain.register(vec![0; 300_000], Access::REMOTE).unwrap();
    let words = [memory.remote().address, memory.remote().key];
    node.endpoint.tagged_send(to, 0, words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>()).unwrap();
    node.endpoint.tagged_receive(0, u64::MAX, vec![0; 300_000]).unwrap();
    let mut first = Some(first);
    while !over() {
        let Some(completion) = node.queue.wait(Some(std::time::Duration::from_millis(20))).unwrap() else { continue };
        // What was under way when the other side ended does not matter here.
        let Ok(completion) = completion.ok() else { continue };
        if completion.kind == CompletionKind::TaggedReceive {
            if let Some(first) = first.take() {
                first();
            }
            let bytes = completion.into_bytes().unwrap();
            node.endpoint.tagged_receive(0, u64::MAX, vec![0; 300_000]).unwrap();
            node.endpoint.tagged_send(to, 0, bytes).unwrap();
        }
    }
}

/// Leaves no descriptor to be had.
fn take_all_descriptors() -> Vec<std::fs::File> {
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    let highest = open.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap()).max().unwrap_or(0u64);
    let limit = libc::rlimit { rlim_cur: highest + 4, rlim_max: highest + 4 };
    // SAFETY: a valid structure that lives through the call.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
    std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect()
}

/// Starts itself once more, in a PID namespace of its own.
pub(crate) fn contained(arguments: &[String]) {
    let over = child::watch_parent();
    // SAFETY: no memory is involved.
    assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWPID) }, 0, "only root can make a PID namespace");
    let mut process = Process::start("resident", arguments, |_| {});
    while !over.load(std::sync::atomic::Ordering::Relaxed) && process.ended().is_none() {
        std::thread::yield_now();
    }
    assert!(process.finish().success());
}

/// Waits for the hello of a process that was started.
fn meet(node: &Node) -> PeerId {
    meet_with_memory(node).0
}

/// The same, with the memory that it lets others reach.
fn meet_with_memory(node: &Node) -> (PeerId, RemoteAddress) {
    node.endpoint.tagged_receive(0, u64::MAX, vec![0; 64]).unwrap();
    let hello = node.queue.wait(Some(PATIENCE)).unwrap().expect("comes").ok().unwrap();
    let peer = node.domain.addresses().insert(hello.source.unwrap()).unwrap();
    let bytes = hello.into_bytes().unwrap();
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    (peer, RemoteAddress { address: word(0), key: word(8) })
}

/// Messages of all kinds come back.
fn exchange(node: &Node, peer: PeerId) {
    for (length, level) in LENGTHS.iter().flat_map(|l| [(*l, Level::Transmitted), (*l, Level::Delivered)]) {
        let bytes: Vec<u8> = (0..length).map(|index| (index * 7 + length) as u8).collect();
        node.endpoint.tagged_receive(0, u64::MAX, vec![0; length]).unwrap();
        let options = Options { level, ..Default::default() };
        node.endpoint.tagged_send_with(peer, 5, bytes.clone(), options).unwrap();
        for _ in 0..2 {
            let completion = node.queue.wait(Some(PATIENCE)).unwrap().expect("hangs").ok().unwrap();
            if completion.kind == CompletionKind::TaggedReceive {
                assert!(completion.into_bytes().unwrap() == bytes, "{length} bytes");
            }
        }
    }
}

/// Exchanges messages with a process of a role and kind; true: this side's went as packets.
fn goes_as_packets(role: &str, kind: &str) -> bool {
    let node = Node::patient(anywhere(), Progress::Automatic);
    let arguments = [address_to_text(node.endpoint.address()), kind.to_owned()];
    let mut process = Process::start(role, &arguments, |_| {});
    let peer = meet(&node);
    exchange(&node, peer);
    assert!(process.finish().success());
    let local = node.domain.local_statistics();
    assert!(local.eager > 0 || node.domain.statistics().packets_sent > 0);
    local.eager + local.offered == 0
}

#[test]
fn who_has_no_descriptors_left_is_reached_by_packets() {
    let _alone = crate::alone();
    assert!(!goes_as_packets("resident", "plain"));
    assert!(goes_as_packets("resident", "no-descriptors"));
}

#[test]
fn a_limit_of_file_sizes_ends_nobody() {
    let _alone = crate::alone();
    // It cannot make memory for a channel, but take one.
    goes_as_packets("resident", "short-files");
}

#[test]
#[ignore = "needs root: it makes a PID namespace"]
fn who_cannot_see_our_process_is_reached_by_packets() {
    let _alone = crate::alone();
    assert!(goes_as_packets("contained", "plain"));
}

/// Sends, writes and reads, then forbids others to look into its memory, and goes on.
pub(crate) fn recluse(arguments: &[String]) {
    let node = Node::patient(anywhere(), Progress::Automatic);
    let resident = [address_to_text(node.endpoint.address()), "plain".to_owned()];
    let program = std::path::PathBuf::from(&arguments[0]);
    let mut process = Process::start_at(&program, "resident", &resident, |_| {});
    let (peer, memory) = meet_with_memory(&node);
    for round in 0..3u8 {
        exchange(&node, peer);
        for length in LENGTHS {
            node.endpoint.write(peer, memory, vec![round + 1; length]).unwrap();
            node.queue.wait(Some(PATIENCE)).unwrap().expect("hangs").ok().unwrap();
            node.endpoint.read(peer, memory, vec![0; length]).unwrap();
            let read = node.queue.wait(Some(PATIENCE)).unwrap().expect("hangs").ok().unwrap();
            assert!(read.into_bytes().unwrap() == vec![round + 1; length], "{length} bytes");
        }
        // SAFETY: no memory is involved.
        assert_eq!(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) }, 0);
    }
    assert_eq!(node.domain.statistics().packets_sent, 0, "through shared memory all the time");
    assert!(process.finish().success());
}

/// As a user that may not look into everybody's memory, as root may.
#[test]
fn attach_that_is_withdrawn_gives_way_to_the_ring() {
    let _alone = crate::alone();
    let copy = std::env::temp_dir().join(format!("weft-recluse-{}", std::process::id()));
    std::fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut process = Process::start_at(&copy, "recluse", &[copy.to_str().unwrap().to_owned()], |command| {
        // SAFETY: no memory is involved, and it cannot fail.
        if unsafe { libc::geteuid() } == 0 {
            command.uid(65_534).gid(65_534);
        }
        command.env("WEFT_COPY", "attach").current_dir("/");
    });
    let start = Instant::now();
    let status = loop {
        if let Some(status) = process.ended() {
            break status;
        }
        assert!(start.elapsed() < 2 * PATIENCE, "hangs");
        std::thread::yield_now();
    };
    std::fs::remove_file(&copy).unwrap();
    assert!(status.success(), "{status}");
}

/// Echoes, and has a child that does nothing and lives on.
pub(crate) fn forker(arguments: &[String]) {
    let node = Node::patient(anywhere(), Progress::Automatic);
    let fork = || {
        // SAFETY: the child makes only calls that are allowed between fork and exec.
        unsafe {
            if libc::fork() == 0 {
                // Until the input of both ends.
                while libc::read(0, [0u8; 1].as_mut_ptr().cast(), 1) > 0 {}
                libc::_exit(0);
            }
        }
    };
    echo(&node, &arguments[0], || false, fork);
}

#[test]
fn a_child_that_lives_on_hides_no_death() {
    let _alone = crate::alone();
    let node = Node::patient(anywhere(), Progress::Automatic);
    let mut process = Process::start("forker", &[address_to_text(node.endpoint.address())], |_| {});
    let peer = meet(&node);
    exchange(&node, peer);
    // The third message in a row finds no receive: the echo has one at a time, and is busy with the first.
    let options = Options { level: Level::Delivered, ..Default::default() };
    process.stop();
    node.endpoint.tagged_send_with(peer, 5, vec![1; 1000], options).unwrap();
    let place = node.domain.addresses().address(peer).unwrap().socket;
    process.kill();
    // A process that starts again has its address.
    drop(std::net::UdpSocket::bind(place).expect("the child does not hold the port"));
    let ended = node.queue.wait(Some(PATIENCE)).unwrap().expect("the death is noticed");
    assert!(ended.result.is_err(), "{ended:?}");
    assert!(node.domain.local_statistics().eager > 0, "shared memory was the way");
}

#[test]
fn a_child_that_closes_what_it_inherited_harms_nobody() {
    let _alone = crate::alone();
    for progress in [Progress::Automatic, Progress::Manual] {
        let node = Node::patient(anywhere(), progress);
        let arguments = [address_to_text(node.endpoint.address()), "plain".to_owned()];
        let mut process = Process::start("resident", &arguments, |_| {});
        let peer = meet(&node);
        exchange(&node, peer);
        // Something sleeps, and is armed, while the child closes everything.
        let descriptor = node.queue.descriptor().unwrap().as_raw_fd();
        assert!(descriptor >= 0);
        // SAFETY: the child drops what it has and ends at once, without what a test does at its end.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let dropped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(node)));
            // SAFETY: ends the process.
            unsafe { libc::_exit(i32::from(dropped.is_err())) };
        }
        assert!(child > 0);
        let (start, mut status) = (Instant::now(), -1);
        // SAFETY: the status has room for one.
        while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == 0 {
            if start.elapsed() > PATIENCE {
                // SAFETY: a child of ours that was not waited for yet.
                unsafe { libc::kill(child, libc::SIGKILL) };
            }
            std::thread::yield_now();
        }
        assert_eq!(status, 0, "the child closes all without a panic, and ends");
        exchange(&node, peer);
        assert_eq!(node.domain.statistics().packets_sent, 0, "by the same way as before");
        assert!(process.finish().success());
    }
}
