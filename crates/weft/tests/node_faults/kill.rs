//! `kill -9` of a peer at random instants.
//!
//! 2,000 of them: `WEFT_KILLS=2000 cargo test --release -p weft --test node_faults killed -- --nocapture`

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use weft::{Domain, Progress};

use crate::child::{self, Process};
use crate::common::Raise;
use crate::traffic::{
    self, Node, Regions, Traffic, address_from_text, address_to_text, anywhere, random, remotes_from_bytes,
    remotes_to_bytes,
};
use crate::{PATIENCE, number};

/// The tag of the first message of a victim.
const HELLO: u64 = 1 << 40;
/// Kills after which what stays behind is counted.
const BATCH: u64 = 25;

/// Exchanges everything with the survivor until it is killed.
pub(crate) fn victim(arguments: &[String]) {
    let [at, progress, survivor, words @ ..] = arguments else { panic!("{arguments:?}") };
    let over = child::watch_parent();
    let mode = if progress == "manual" { Progress::Manual } else { Progress::Automatic };
    let node = Node::new(at.parse().unwrap(), mode);
    let regions = Regions::new(&node.domain);
    let mut traffic = Traffic::new(node);
    let words: Vec<u64> = words.iter().map(|word| word.parse().unwrap()).collect();
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    traffic.meet(address_from_text(survivor), remotes_from_bytes(&bytes), 0);
    let to = traffic.node.domain.addresses().insert(address_from_text(survivor)).unwrap();
    let hello = traffic.node.endpoint.tagged_send(to, HELLO, remotes_to_bytes(regions.remotes())).unwrap();
    traffic.pending.insert(hello, 0);
    while !over.load(Ordering::Relaxed) {
        traffic.post_receives();
        while traffic.post() {}
        if let Some(completion) = traffic.node.queue.wait(Some(Duration::from_millis(100))).unwrap() {
            assert!(completion.result.is_ok(), "the survivor lives: {completion:?}");
            traffic.take(completion, HELLO);
        }
    }
}

/// Echoes numbered messages, and sees that all of them come, in order and intact.
pub(crate) fn third(arguments: &[String]) {
    let over = child::watch_parent();
    let node = Node::new(anywhere(), Progress::Automatic);
    let to = node.domain.addresses().insert(address_from_text(&arguments[0])).unwrap();
    node.endpoint.tagged_send(to, u64::MAX, vec![0; 8]).unwrap();
    let mut expected = 0u64;
    let mut posted = false;
    while !over.load(Ordering::Relaxed) {
        if !posted {
            node.endpoint.tagged_receive(0, u64::MAX, vec![0; 1 << 20]).unwrap();
            posted = true;
        }
        let Some(completion) = node.queue.wait(Some(Duration::from_millis(100))).unwrap() else { continue };
        if completion.kind == weft::CompletionKind::TaggedReceive {
            posted = false;
            let tag = completion.tag;
            let bytes = completion.into_bytes().unwrap();
            assert_eq!(tag, expected, "in order");
            assert!(bytes == vec![tag as u8; length_of(tag)], "intact");
            expected += 1;
            node.endpoint.tagged_send(to, tag, bytes).unwrap();
        } else {
            assert!(completion.result.is_ok());
        }
    }
}

/// Lengths of all ways.
pub(crate) fn length_of(number: u64) -> usize {
    [8, 80, 1000, 20_000, 64, 100_000][number as usize % 6]
}

/// Talks with the third process until it is over.
pub(crate) fn converse(node: &Node, over: &AtomicBool, exchanged: &AtomicU64) {
    let mut to: Option<weft::PeerId> = None;
    let mut expected = 0u64;
    node.endpoint.tagged_receive(0, u64::MAX, vec![0; 1 << 20]).unwrap();
    while !over.load(Ordering::Relaxed) {
        let completion = node.queue.wait(Some(PATIENCE)).unwrap().expect("the third process answers");
        if completion.kind != weft::CompletionKind::TaggedReceive {
            assert!(completion.result.is_ok(), "{completion:?}");
            continue;
        }
        if let Some(to) = to {
            assert_eq!(completion.tag, expected, "in order");
            let bytes = completion.into_bytes().unwrap();
            assert!(bytes == vec![expected as u8; length_of(expected)], "intact");
            expected += 1;
            exchanged.store(expected, Ordering::Relaxed);
            node.endpoint.tagged_receive(0, u64::MAX, vec![0; 1 << 20]).unwrap();
            node.endpoint.tagged_send(to, expected, vec![expected as u8; length_of(expected)]).unwrap();
        } else {
            let third = node.domain.addresses().insert(completion.source.unwrap()).unwrap();
            to = Some(third);
            node.endpoint.tagged_receive(0, u64::MAX, vec![0; 1 << 20]).unwrap();
            node.endpoint.tagged_send(third, 0, vec![0; length_of(0)]).unwrap();
        }
    }
}

/// Descriptors of this process, and its mappings of memory that is shared.
pub(crate) fn held() -> (usize, usize) {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    (descriptors, maps.lines().filter(|line| line.contains("memfd:")).count())
}

fn in_shared_memory() -> BTreeSet<String> {
    let Ok(entries) = std::fs::read_dir("/dev/shm") else { return BTreeSet::new() };
    entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
}

/// What the kills of a run came to.
#[derive(Default)]
struct Account {
    /// Kills when something was under way, and how long it then took until all had ended.
    times: Vec<Duration>,
    before_contact: u64,
    succeeded: u64,
    failed: u64,
    received: u64,
    pids: Vec<u32>,
}

fn kill_once(domain: &Domain, regions: &Regions, at: &str, seed: &mut u64, kill: u64, account: &mut Account) {
    let mut traffic = Traffic::new(Node::on(domain));
    traffic.post_receives();
    let progress = if kill.is_multiple_of(2) { "manual" } else { "automatic" };
    let mut arguments = vec![at.to_owned(), progress.to_owned(), address_to_text(traffic.node.endpoint.address())];
    for remote in regions.remotes() {
        arguments.extend([remote.address.to_string(), remote.key.to_string()]);
    }
    let copy = if (kill / 2).is_multiple_of(2) { "ring" } else { "attach" };
    let mut process = Process::start("victim", &arguments, |command| {
        command.env("WEFT_COPY", copy);
    });
    account.pids.push(process.pid());
    // A quarter of them while they start, the others some time after the first message.
    let early = random(seed).is_multiple_of(4);
    let delay = Duration::from_micros(random(seed) % 20_000);
    let start = Instant::now();
    let mut kill_at = early.then(|| start + delay);
    while kill_at.is_none_or(|at| Instant::now() < at) {
        assert!(start.elapsed() < PATIENCE, "the victim does not come");
        assert!(process.ended().is_none(), "the victim has failed");
        if let Some(completion) = traffic.node.queue.wait(Some(Duration::from_micros(200))).unwrap()
            && let Some((victim, bytes)) = traffic.take(completion, HELLO)
        {
            traffic.meet(victim, remotes_from_bytes(&bytes), random(seed) % traffic::KINDS);
            // A first operation at once: some of these die before they are accepted.
            traffic.post();
            kill_at.get_or_insert(Instant::now() + delay * u32::from(!random(seed).is_multiple_of(8)));
        }
        traffic.post_receives();
        while traffic.post() {}
    }
    let killed = Instant::now();
    let status = process.kill();
    assert_eq!(status.signal(), Some(9), "the victim lived until then: {status}");
    let under_way = traffic.pending.len();
    while !traffic.pending.is_empty() {
        let completion = traffic.node.queue.wait(Some(PATIENCE)).unwrap();
        let completion = completion.unwrap_or_else(|| panic!("operations do not end: {:?}", traffic.pending));
        traffic.take(completion, HELLO);
    }
    match under_way {
        0 => account.before_contact += u64::from(!traffic.knows_peer()),
        _ => account.times.push(killed.elapsed()),
    }
    // What was posted ends too, if not with a message then because we say so.
    while traffic.receives() > 0 {
        traffic.cancel_receives();
        let completion = traffic.node.queue.wait(Some(Duration::from_millis(1))).unwrap();
        completion.map(|completion| traffic.take(completion, HELLO));
        assert!(killed.elapsed() < PATIENCE, "receives do not end");
    }
    traffic.assert_canaries();
    regions.assert_canaries();
    account.succeeded += traffic.succeeded;
    account.failed += traffic.failed;
    account.received += traffic.received;
}

fn kills(progress: Progress, kills: u64, mut seed: u64, account: &mut Account) {
    let domain = Node::new(anywhere(), progress).domain;
    let regions = Regions::new(&domain);
    let friend = Node::on(&domain);
    let third_arguments = [address_to_text(friend.endpoint.address())];
    let mut third = Process::start("third", &third_arguments, |_| {});
    // The victims' address: always the same one.
    let place = crate::place().to_string();
    let (over, exchanged) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let _whatever_happens = Raise(&over);
            converse(&friend, &over, &exchanged);
        });
        let _whatever_happens = Raise(&over);
        let mut first_held = None;
        for kill in 0..kills {
            let before = exchanged.load(Ordering::Relaxed);
            kill_once(&domain, &regions, &place, &mut seed, kill, account);
            let start = Instant::now();
            while exchanged.load(Ordering::Relaxed) == before {
                assert!(start.elapsed() < PATIENCE && third.ended().is_none(), "the third process goes on");
                std::thread::yield_now();
            }
            if kill % BATCH == BATCH - 1 {
                let limit = *first_held.get_or_insert_with(held);
                let start = Instant::now();
                // One that died before it had taken its channel was sent packets, for which there is a socket from then on.
                while held().0 > limit.0 + 1 || held().1 > limit.1 {
                    assert!(start.elapsed() < PATIENCE, "descriptors and mappings stay: {:?}, not {limit:?}", held());
                    domain.progress().unwrap();
                }
            }
        }
        over.store(true, Ordering::Relaxed);
    });
    assert_eq!(domain.local_statistics().broken, 0, "{:?}", domain.local_statistics());
    println!(
        "{progress:?}: {} messages with the third process; {:?}",
        exchanged.into_inner(),
        domain.local_statistics()
    );
    assert!(third.finish().success(), "the third process has seen everything in order and intact");
}

#[test]
fn a_killed_peer_harms_nobody() {
    let _alone = crate::alone();
    let count = number("WEFT_KILLS", 100);
    let seed = number("WEFT_SEED", u64::from(std::process::id())) | 1;
    println!("WEFT_SEED={seed}");
    let before = in_shared_memory();
    let mut account = Account::default();
    kills(Progress::Automatic, count / 2, seed, &mut account);
    kills(Progress::Manual, count - count / 2, seed ^ 0x5555, &mut account);
    let ours = |name: &&String| name.contains("weft") || account.pids.iter().any(|pid| name.contains(&pid.to_string()));
    let left = || -> Vec<String> { in_shared_memory().difference(&before).filter(ours).cloned().collect() };
    // What others have there goes by itself.
    let start = Instant::now();
    while !left().is_empty() {
        assert!(start.elapsed() < PATIENCE, "in /dev/shm: {:?}", left());
        std::thread::sleep(Duration::from_millis(10));
    }
    account.times.sort();
    let at = |share: usize| account.times.get(account.times.len().saturating_sub(1) * share / 100).copied();
    println!(
        "{count} kills, {} before contact, {} with operations under way, which then all ended after {:?} (half of the \
         kills), {:?} (99 of 100), {:?} (the longest); {} operations succeeded, {} failed, {} messages received",
        account.before_contact,
        account.times.len(),
        at(50),
        at(99),
        at(100),
        account.succeeded,
        account.failed,
        account.received,
    );
    assert!(account.times.last().is_none_or(|longest| *longest < PATIENCE / 2), "errors come soon");
}
