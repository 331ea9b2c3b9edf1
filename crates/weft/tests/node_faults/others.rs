//! Other users, stopped peers, sleepers, and what waits behind something else.

use std::collections::HashMap;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use weft::{
    Access, Completion, CompletionKind, Fabric, Failure, Level, Options, PeerId, Progress, RemoteAddress, Road,
};

use crate::child::Process;
use crate::common::Raise;
use crate::hostile::bare_connection;
use crate::kill::{converse, length_of};
use crate::traffic::{FABRIC, Node, address_from_text, address_to_text, anywhere, random};
use crate::{PATIENCE, number};

/// A user that no process of ours has.
const NOBODY: u32 = 65_534;

/// A process of another user: it is reached, but not through shared memory.
pub(crate) fn foreigner(arguments: &[String]) {
    let to = address_from_text(&arguments[0]);
    let node = Node::patient(anywhere(), Progress::Automatic);
    let peer = node.domain.addresses().insert(to).unwrap();
    node.endpoint.tagged_receive(8, 0, vec![0; 64]).unwrap();
    node.endpoint.tagged_send(peer, 7, vec![7; 64]).unwrap();
    for _ in 0..2 {
        let completion = node.queue.wait(Some(PATIENCE)).unwrap().expect("hangs").ok().unwrap();
        if completion.kind == CompletionKind::TaggedReceive {
            assert_eq!(completion.into_bytes().unwrap(), [8; 64]);
        }
    }
    let statistics = node.domain.local_statistics();
    assert_eq!((statistics.routes, statistics.visitors), (0, 0), "as packets");
    // Under its very name: hung up on.
    let Some(socket) = bare_connection(arguments[1].parse().unwrap(), to.socket) else { return };
    let start = Instant::now();
    loop {
        let mut byte = 0u8;
        // SAFETY: room for one byte.
        let received = unsafe { libc::recv(socket.as_raw_fd(), (&raw mut byte).cast(), 1, libc::MSG_DONTWAIT) };
        let refused = received < 0 && std::io::Error::last_os_error().kind() != std::io::ErrorKind::WouldBlock;
        if received == 0 || refused {
            break;
        }
        assert!(start.elapsed() < PATIENCE, "another user is let in");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
#[ignore = "needs root: it starts a process of another user"]
fn another_user_is_reached_by_packets_only() {
    let _alone = crate::alone();
    // SAFETY: no memory is involved, and it cannot fail.
    let user = unsafe { libc::geteuid() };
    assert_eq!(user, 0, "only root can start a process of another user");
    let node = Node::patient(anywhere(), Progress::Automatic);
    node.endpoint.tagged_receive(7, 0, vec![0; 64]).unwrap();
    // A copy that the other user can run, wherever this one lies.
    let copy = std::env::temp_dir().join(format!("weft-node-faults-{}", std::process::id()));
    std::fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o755)).unwrap();
    let arguments = [address_to_text(node.endpoint.address()), user.to_string()];
    let mut process = Process::start_at(&copy, "foreigner", &arguments, |command| {
        command.uid(NOBODY).gid(NOBODY).current_dir("/");
    });
    let received = node.queue.wait(Some(PATIENCE)).unwrap();
    std::fs::remove_file(&copy).unwrap();
    let received = received.expect("hangs").ok().unwrap();
    let peer = node.domain.addresses().insert(received.source.unwrap()).unwrap();
    assert_eq!(received.into_bytes().unwrap(), [7; 64]);
    node.endpoint.tagged_send(peer, 8, vec![8; 64]).unwrap();
    node.queue.wait(Some(PATIENCE)).unwrap().expect("hangs").ok().unwrap();
    let start = Instant::now();
    let status = loop {
        if let Some(status) = process.ended() {
            break status;
        }
        assert!(start.elapsed() < PATIENCE, "hangs");
        std::thread::sleep(Duration::from_millis(1));
    };
    assert!(status.success(), "{status}");
    let statistics = node.domain.local_statistics();
    assert_eq!((statistics.routes, statistics.visitors), (0, 0), "{statistics:?}");
}

/// Starts an echo process ("third") and waits for it.
fn echo(node: &Node) -> (Process, PeerId) {
    let process = Process::start("third", &[address_to_text(node.endpoint.address())], |_| {});
    node.endpoint.tagged_receive(0, u64::MAX, vec![0; 64]).unwrap();
    let hello = node.queue.wait(Some(PATIENCE)).unwrap().expect("comes").ok().unwrap();
    (process, node.domain.addresses().insert(hello.source.unwrap()).unwrap())
}

#[test]
fn a_stopped_peer_stops_nobody_else() {
    let _alone = crate::alone();
    let node = Node::new(anywhere(), Progress::Automatic);
    let friend = Node::on(&node.domain);
    let mut third = Process::start("third", &[address_to_text(friend.endpoint.address())], |_| {});
    let (over, exchanged) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let _whatever_happens = Raise(&over);
            converse(&friend, &over, &exchanged);
        });
        let _whatever_happens = Raise(&over);
        let (mut stopped, to) = echo(&node);
        stopped.stop();
        let messages = 60u64;
        for number in 0..messages {
            node.endpoint.tagged_receive(0, u64::MAX, vec![0; 1 << 20]).unwrap();
            node.endpoint.tagged_send(to, number, vec![number as u8; length_of(number)]).unwrap();
        }
        // Things that must not wait for it: closing an endpoint, taking memory back.
        let other = Node::on(&node.domain);
        other.endpoint.tagged_send(to, 1 << 50, vec![0; 1 << 20]).unwrap();
        let region = node.domain.register(1 << 20, Access::REMOTE).unwrap();
        drop((other, region));
        let (mut sent, mut echoed) = (0, HashMap::new());
        let mut take = |completion: Completion| {
            let completion = completion.ok().unwrap();
            if completion.kind == CompletionKind::TaggedSend {
                sent += 1;
            } else {
                let tag = completion.tag;
                assert!(completion.into_bytes().unwrap() == vec![tag as u8; length_of(tag)], "intact");
                assert!(echoed.insert(tag, ()).is_none(), "once");
            }
            sent == messages && echoed.len() as u64 == messages
        };
        let (before, start) = (exchanged.load(Ordering::Relaxed), Instant::now());
        while exchanged.load(Ordering::Relaxed) < before + 100 {
            assert!(start.elapsed() < PATIENCE, "others wait for the one that is stopped");
            node.queue.wait(Some(Duration::from_millis(1))).unwrap().map(&mut take);
        }
        stopped.signal("CONT");
        while !take(node.queue.wait(Some(PATIENCE)).unwrap().expect("it goes on")) {}
        assert!(stopped.finish().success());
        over.store(true, Ordering::Relaxed);
    });
    assert!(third.finish().success());
}

/// Nanoseconds on a core, and voluntary switches away from it, of all threads of a process.
fn work_of(pid: u32) -> (u64, u64) {
    let (mut time, mut switches) = (0, 0);
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let task = task.unwrap().path();
        let read = |name: &str| std::fs::read_to_string(task.join(name)).unwrap_or_default();
        time += read("schedstat").split(' ').next().and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
        let status = read("status");
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        switches += line.and_then(|line| line.trim().parse::<u64>().ok()).unwrap_or(0);
    }
    (time, switches)
}

#[test]
fn who_is_idle_sleeps_and_wakes() {
    let _alone = crate::alone();
    let rounds = number("WEFT_WAKES", 2000);
    for progress in [Progress::Automatic, Progress::Manual] {
        let node = Node::new(anywhere(), progress);
        let (mut process, to) = echo(&node);
        let mut seed = u64::from(process.pid()) | 1;
        let mut times = Vec::new();
        for round in 0..rounds {
            // Often long enough that the other side has gone to sleep, or is about to.
            let pause = Duration::from_micros(random(&mut seed) % 300);
            let start = Instant::now();
            if round.is_multiple_of(2) {
                std::thread::sleep(pause);
            }
            while start.elapsed() < pause {
                std::hint::spin_loop();
            }
            let start = Instant::now();
            node.endpoint.tagged_receive(0, u64::MAX, vec![0; 1 << 17]).unwrap();
            node.endpoint.tagged_send(to, round, vec![round as u8; length_of(round)]).unwrap();
            for _ in 0..2 {
                node.queue.wait(Some(PATIENCE)).unwrap().expect("a wake-up was lost").ok().unwrap();
            }
            times.push(start.elapsed());
        }
        times.sort();
        let (before, start) = (work_of(process.pid()), Instant::now());
        std::thread::sleep(Duration::from_secs(2));
        let (after, idle) = (work_of(process.pid()), start.elapsed());
        let used = Duration::from_nanos(after.0 - before.0);
        println!(
            "{progress:?}: {rounds} wake-ups, half of them within {:?}, all within {:?}; idle for {idle:?} it used {used:?} of a core",
            times[times.len() / 2],
            times[times.len() - 1],
        );
        // It wakes ten times a second to see whether its parent lives.
        assert!(used < idle / 10, "an idle process uses a core for {used:?} in {idle:?}");
        assert!(process.finish().success());
    }
}

#[test]
fn requests_behind_a_full_queue_are_not_forgotten() {
    let _alone = crate::alone();
    let node = Node::new(anywhere(), Progress::Automatic);
    let sender = Node::new(anywhere(), Progress::Automatic);
    let queue = node.domain.completion_queue(200);
    let endpoint = node.domain.endpoint(&queue).unwrap();
    let to = sender.domain.addresses().insert(endpoint.address()).unwrap();
    for round in 0..20 {
        let messages = 400u64;
        for _ in 0..messages {
            endpoint.receive(vec![0; 8]).unwrap();
        }
        for number in 0..messages {
            sender.endpoint.send(to, number.to_le_bytes().to_vec()).unwrap();
        }
        for _ in 0..messages {
            sender.queue.wait(Some(PATIENCE)).unwrap().expect("sent").ok().unwrap();
        }
        // The queue is full, and the rest waits in the ring.
        let start = Instant::now();
        while node.domain.state().receives > messages as usize - 200 {
            assert!(start.elapsed() < PATIENCE, "round {round}: {:?}", node.domain.state());
            std::thread::yield_now();
        }
        let (mut expected, mut found) = (0, Vec::new());
        while expected < messages {
            // All that is there at once: what then finds room is more than one round takes.
            if queue.read_many(&mut found, 1000).unwrap() == 0 {
                found.push(queue.wait(Some(PATIENCE)).unwrap().expect("more are in the ring"));
            }
            for completion in found.drain(..) {
                assert_eq!(completion.into_bytes().unwrap(), expected.to_le_bytes());
                expected += 1;
            }
        }
    }
}

#[test]
fn a_refused_write_does_not_end_the_conversation() {
    let _alone = crate::alone();
    let (target, initiator) = (Node::new(anywhere(), Progress::Automatic), Node::new(anywhere(), Progress::Manual));
    let to = initiator.domain.addresses().insert(target.endpoint.address()).unwrap();
    let region = target.domain.register(vec![0; 1 << 22], Access::REMOTE).unwrap();
    let nowhere = RemoteAddress { address: 0, key: region.key() ^ 1 << 40 };
    for round in 0..30u8 {
        // Longer than the ring: it is refused while parts of it wait.
        let refused = initiator.endpoint.write(to, nowhere, vec![1; 4 << 20]).unwrap();
        let written = initiator.endpoint.write(to, region.remote(), vec![round; 3 << 20]).unwrap();
        for _ in 0..2 {
            let completion = initiator.queue.wait(Some(PATIENCE)).unwrap().expect("ends");
            let wanted = if completion.context == refused { Err(Failure::AccessRefused) } else { Ok(()) };
            assert_eq!(completion.result, wanted);
            assert!([refused, written].contains(&completion.context));
        }
        assert!(region.to_vec(0, 3 << 20).unwrap() == vec![round; 3 << 20]);
    }
    assert_eq!(initiator.domain.local_statistics().broken, 0);
}

#[test]
fn what_was_withdrawn_does_not_come_as_something_else() {
    let _alone = crate::alone();
    let (sender, receiver) = (Node::new(anywhere(), Progress::Automatic), Node::new(anywhere(), Progress::Automatic));
    let to = sender.domain.addresses().insert(receiver.endpoint.address()).unwrap();
    let over = AtomicBool::new(false);
    let rounds = number("WEFT_WITHDRAWALS", 1500);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let mut posted = 0;
            while !over.load(Ordering::Relaxed) {
                if posted < 2 {
                    receiver.endpoint.tagged_receive(0, u64::MAX, vec![0; 200_000]).unwrap();
                    posted += 1;
                }
                let Some(completion) = receiver.queue.wait(Some(Duration::from_millis(10))).unwrap() else { continue };
                posted -= 1;
                match completion.result {
                    Ok(()) => {
                        let (tag, bytes) = (completion.tag, completion.into_bytes().unwrap());
                        assert_eq!(bytes.len() as u64, 70_000 + tag * 64, "message {tag}");
                        assert!(bytes == vec![tag as u8; bytes.len()], "message {tag}");
                    }
                    Err(failure) => assert_eq!(failure, Failure::Aborted),
                }
            }
        });
        let _whatever_happens = Raise(&over);
        let mut seed = 77;
        let mut pending: HashMap<u64, ()> = HashMap::new();
        let (mut cancelled, mut succeeded) = (0, 0);
        let mut round = 0;
        // Whether a message is taken or withdrawn first is a matter of luck: until there were some of both.
        while round < rounds || succeeded == 0 || cancelled == 0 {
            assert!(round < 100 * rounds, "{succeeded} sent, {cancelled} withdrawn");
            round += 1;
            let tag = round % 1000;
            let bytes = vec![tag as u8; 70_000 + tag as usize * 64];
            pending.insert(sender.endpoint.tagged_send(to, tag, bytes).unwrap(), ());
            if random(&mut seed).is_multiple_of(2) {
                let oldest = pending.keys().min().copied().unwrap_or(0);
                sender.endpoint.cancel(oldest);
            }
            while pending.len() > 4 {
                let completion = sender.queue.wait(Some(PATIENCE)).unwrap().expect("ends");
                assert!(pending.remove(&completion.context).is_some(), "ends once: {completion:?}");
                match completion.result {
                    Ok(()) => succeeded += 1,
                    Err(failure) => {
                        assert_eq!(failure, Failure::Cancelled);
                        cancelled += 1;
                    }
                }
            }
        }
        println!("{succeeded} sent, {cancelled} withdrawn");
    });
    for node in [&sender, &receiver] {
        assert_eq!(node.domain.local_statistics().broken, 0, "{:?}", node.domain.local_statistics());
    }
}

/// Nobody else does anything: a wake-up that is lost is not made good by chance.
#[test]
fn a_conversation_goes_on_by_itself() {
    let _alone = crate::alone();
    let rounds = number("WEFT_EXCHANGES", 3000);
    for progress in [Progress::Automatic, Progress::Manual] {
        let node = Node::new(anywhere(), progress);
        let mut third = Process::start("third", &[address_to_text(node.endpoint.address())], |_| {});
        let (over, exchanged) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|threads| {
            threads.spawn(|| {
                let _whatever_happens = Raise(&over);
                converse(&node, &over, &exchanged);
            });
            while exchanged.load(Ordering::Relaxed) < rounds && !over.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(5));
            }
            over.store(true, Ordering::Relaxed);
        });
        assert!(third.finish().success());
    }
}

/// One thread sleeps; another takes what woke it, and does not come again.
#[test]
fn a_wake_up_that_another_thread_took_is_not_lost() {
    let _alone = crate::alone();
    for progress in [Progress::Manual, Progress::Automatic] {
        let (node, peer) = (Node::new(anywhere(), progress), Node::new(anywhere(), Progress::Automatic));
        let to = peer.domain.addresses().insert(node.endpoint.address()).unwrap();
        let region = node.domain.register(vec![0; 64], Access::REMOTE).unwrap();
        let rounds = number("WEFT_TAKEN", 500);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                for round in 0..rounds {
                    node.endpoint.receive(vec![0; 8]).unwrap();
                    let received = node.queue.wait(Some(PATIENCE)).unwrap().expect("a wake-up was lost");
                    assert_eq!(received.into_bytes().unwrap(), round.to_le_bytes());
                }
            });
            for round in 0..rounds {
                // Tells nobody here anything, but wakes.
                peer.endpoint.write(to, region.remote(), vec![1; 64]).unwrap();
                let start = Instant::now();
                loop {
                    node.domain.progress().unwrap();
                    if let Some(completion) = peer.queue.read().unwrap() {
                        completion.ok().unwrap();
                        break;
                    }
                    assert!(start.elapsed() < PATIENCE, "the write is not done");
                }
                peer.endpoint.send(to, round.to_le_bytes().to_vec()).unwrap();
                peer.queue.wait(Some(PATIENCE)).unwrap().expect("sent").ok().unwrap();
            }
        });
    }
}

const LEFT_MESSAGES: u64 = 128;
const LEFT_BYTES: usize = 32 << 10;

/// Sends more than any window holds, never looks for answers, and ends at once.
pub(crate) fn leaver(arguments: &[String]) {
    let road = if arguments[1] == "packets" { Road::Packets } else { Road::Automatic };
    let domain = Fabric::new(FABRIC).unwrap().domain().road(road).udp(anywhere()).unwrap();
    let queue = domain.completion_queue(1 << 12);
    let endpoint = domain.endpoint(&queue).unwrap();
    let to = domain.addresses().insert(address_from_text(&arguments[0])).unwrap();
    let options = Options { level: Level::Injected, ..Options::default() };
    for number in 0..LEFT_MESSAGES {
        endpoint.send_with(to, vec![number as u8; LEFT_BYTES], options).unwrap();
    }
    std::process::exit(0);
}

#[test]
fn who_ends_without_closing_loses_nothing() {
    let _alone = crate::alone();
    for road in ["packets", "automatic"] {
        let node = Node::patient(anywhere(), Progress::Automatic);
        let mut leaver = Process::start("leaver", &[address_to_text(node.endpoint.address()), road.to_owned()], |_| {});
        for number in 0..LEFT_MESSAGES {
            node.endpoint.receive(vec![0; LEFT_BYTES]).unwrap();
            let received = node.queue.wait(Some(PATIENCE)).unwrap().expect("comes").ok().unwrap();
            assert!(received.into_bytes().unwrap() == vec![number as u8; LEFT_BYTES], "{road}: message {number}");
        }
        assert!(leaver.finish().success());
    }
}
