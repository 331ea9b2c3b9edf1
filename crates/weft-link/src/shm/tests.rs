//! Channels as their users see them; `ring` has the tests of the ring itself.

use std::net::SocketAddr;
use std::os::fd::AsFd;

use weft_core::address::Address;

use super::*;

pub(super) fn hello_from(socket: SocketAddr) -> Hello {
    let source = Address { socket, endpoint: 7 }.to_bytes();
    Hello { source, target_endpoint: 9, session: 11, words: [1, 2, 3, 4] }
}

/// An address that no other test uses.
pub(super) fn address() -> (std::net::UdpSocket, SocketAddr) {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

pub(super) fn next_event(node: &mut Node) -> NodeEvent {
    let mut events = Vec::new();
    loop {
        node.poll(&mut events).unwrap();
        assert!(events.len() <= 1, "{events:?}");
        if let Some(event) = events.pop() {
            return event;
        }
        crate::wait::wait_readable(node.descriptor(), None).unwrap();
    }
}

pub(super) fn accepted(node: &mut Node) -> (TargetChannel, Hello) {
    match next_event(node) {
        NodeEvent::Accepted(channel, hello) => (channel, hello),
        other => panic!("{other:?}"),
    }
}

pub(super) fn take(receiver: &mut Receiver) -> (Record, Vec<u8>) {
    loop {
        if let Some(incoming) = receiver.peek().unwrap() {
            let mut bytes = vec![0; incoming.length()];
            assert!(incoming.segment().copy_to(&mut bytes));
            let record = incoming.record();
            receiver.advance();
            return (record, bytes);
        }
        std::hint::spin_loop();
    }
}

/// Two nodes of this process and a channel between them.
pub(super) fn joined() -> (Node, InitiatorChannel, Node, TargetChannel) {
    let ((_a, a), (_b, b)) = (address(), address());
    let (mut first, mut second) = (Node::open(a).unwrap(), Node::open(b).unwrap());
    let hello = hello_from(a);
    let initiator = first.connect(b, &hello).unwrap();
    let (target, heard) = accepted(&mut second);
    assert_eq!(heard, hello);
    (first, initiator, second, target)
}

#[test]
fn records_go_both_ways() {
    let (_first, mut initiator, _second, mut target) = joined();
    for length in [0, 1, 7, 8, 9, 79, 80, 81, 4096, 65536] {
        let payload: Vec<u8> = (0..length).map(|index| (index * 7 + length) as u8).collect();
        let record = Record { kind: length as u8, flags: 3, words: [length as u64, 1, u64::MAX, 3] };
        initiator.messages().push(&record, &payload).unwrap();
        assert_eq!(take(target.messages()), (record, payload.clone()));
        assert!(target.messages().is_empty());
        let mut claim = target.responses().claim(length).unwrap();
        assert!(claim.segment().copy_from(&payload));
        claim.commit(&record);
        assert_eq!(take(initiator.responses()), (record, payload));
    }
    assert_eq!(initiator.messages().push(&Record::default(), &[0; 65537]), Err(PushError::TooLong));
}

/// What is left in the ring of messages, and a ring that is full of them, does not hold up transfers.
#[test]
fn transfers_pass_messages() {
    let (_first, mut initiator, _second, mut target) = joined();
    while initiator.messages().push(&Record { kind: 1, ..Record::default() }, &[1; 1000]).is_ok() {}
    assert!(target.messages().peek().unwrap().is_some());
    for number in 0..2000 {
        let record = Record { kind: 2, flags: 0, words: [number; 4] };
        initiator.transfers().push(&record, &[number as u8; 40_000]).unwrap();
        assert_eq!(take(target.transfers()), (record, vec![number as u8; 40_000]));
    }
    assert_eq!(take(target.messages()).0.kind, 1);
}

/// Parts that are claimed together come one by one, in order with all else, wherever the ring ends.
#[test]
fn parts_are_filled_as_one_and_come_one_by_one() {
    let (_first, mut initiator, _second, mut target) = joined();
    let mut sent = std::collections::VecDeque::new();
    let (mut number, mut full) = (0u64, 0);
    for round in 0..2000usize {
        let (length, count) = ([128, 4096, 65536][round % 3], 1 + (round * 5 % 7) as u32);
        let bytes = length * count as usize;
        let payload: Vec<u8> = (0..bytes).map(|index| (index / 64 + round) as u8).collect();
        match initiator.messages().claim_parts(length, count) {
            Ok(mut parts) if round % 11 == 0 => assert_eq!(parts.segment().len(), bytes, "and nothing is taken"),
            Ok(mut parts) => {
                assert!(parts.segment().copy_from(&payload));
                parts.commit(|part| Record { words: [number + u64::from(part), 0, 0, 0], ..Record::default() });
                sent.extend(payload.chunks(length).zip(number..).map(|(chunk, number)| (number, chunk.to_vec())));
                number += u64::from(count);
            }
            Err(error) => {
                assert_eq!(error, PushError::Full);
                full += 1;
            }
        }
        if initiator.messages().push(&Record { words: [number, 0, 0, 0], ..Record::default() }, b"short").is_ok() {
            sent.push_back((number, b"short".to_vec()));
            number += 1;
        }
        let keep = if round % 50 < 25 { 30 } else { 0 };
        while sent.len() > keep {
            let (record, bytes) = take(target.messages());
            assert_eq!(Some((record.words[0], bytes)), sent.pop_front());
        }
    }
    assert!(full > 10 && number > 5000, "{full} {number}");
    for (length, count) in [(80, 1), (100, 2), (65536 + 64, 1), (65536, 17), (4096, 0)] {
        assert!(matches!(initiator.messages().claim_parts(length, count), Err(PushError::TooLong)), "{length} {count}");
    }
}

#[test]
fn notes_carry_descriptors() {
    let (mut first, initiator, mut second, target) = joined();
    let (socket, _) = address();
    initiator.note(b"take these", &[socket.as_fd(), socket.as_fd()]).unwrap();
    match next_event(&mut second) {
        NodeEvent::Note { channel, bytes, descriptors } => {
            assert_eq!((channel, bytes.as_slice(), descriptors.len()), (target.id(), &b"take these"[..], 2));
        }
        other => panic!("{other:?}"),
    }
    target.note(b"", &[]).unwrap();
    assert!(matches!(next_event(&mut first), NodeEvent::Note { bytes, .. } if bytes.is_empty()));
    target.shared_word(5).store(6, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(initiator.shared_word(5).load(std::sync::atomic::Ordering::Relaxed), 6);
}

#[test]
fn who_leaves_is_missed_and_what_it_said_stays() {
    let (first, mut initiator, mut second, mut target) = joined();
    initiator.messages().push(&Record::default(), b"last words").unwrap();
    let id = target.id();
    drop(initiator);
    assert!(matches!(next_event(&mut second), NodeEvent::Closed(closed) if closed == id));
    assert_eq!(take(target.messages()).1, b"last words");
    second.close(id);
    drop(first);
}

/// Runs a test again in another process, which gets `role`.
pub(super) fn another_process(test: &str, role: &str) -> std::process::Child {
    std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("shm::{test}"), "--nocapture", "--test-threads", "1"])
        .env(ROLE, role)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap()
}

/// What [`another_process`] asked of this process.
pub(super) fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

const ROLE: &str = "WEFT_SHM_TEST_ROLE";

#[test]
fn two_processes() {
    const RECORDS: u64 = 20_000;
    let length = |index: u64| (index * 37 % 300) as usize;
    let (_socket, local) = address();
    let mut node = Node::open(local).unwrap();
    if let Some(to) = role() {
        // Sends everything back.
        let mut channel = node.connect(to.parse().unwrap(), &hello_from(local)).unwrap();
        let (sender, receiver) = channel.halves();
        for _ in 0..RECORDS {
            let (record, payload) = take(receiver);
            while sender.push(&record, &payload) == Err(PushError::Full) {
                std::thread::yield_now();
            }
        }
        // Until the other side hangs up.
        assert!(matches!(next_event(&mut node), NodeEvent::Closed(_)));
        return;
    }
    let mut child = another_process("tests::two_processes", &local.to_string());
    let (mut channel, _) = accepted(&mut node);
    assert_eq!(channel.peer_pid(), child.id() as i32);
    let (sender, receiver) = channel.halves();
    let (mut sent, mut received) = (0, 0);
    while received < RECORDS {
        let record = Record { kind: 1, flags: 2, words: [sent, !sent, 0, 1] };
        if sent < RECORDS && sender.push(&record, &vec![sent as u8; length(sent)]).is_ok() {
            sent += 1;
        }
        if !receiver.is_empty() {
            let (record, payload) = take(receiver);
            assert_eq!(record.words, [received, !received, 0, 1]);
            assert_eq!(payload, vec![received as u8; length(received)]);
            received += 1;
        }
    }
    drop(channel);
    assert!(child.wait().unwrap().success());
}

/// Sleeps until the node hears something.
fn sleep(node: &mut Node) {
    crate::wait::wait_readable(node.descriptor(), None).unwrap();
    node.poll(&mut Vec::new()).unwrap();
}

#[test]
fn both_sides_sleep_and_wake_each_other() {
    const RECORDS: u64 = 20_000;
    let (mut first, mut initiator, mut second, mut target) = joined();
    let writer = std::thread::spawn(move || {
        let sender = initiator.messages();
        for number in 0..RECORDS {
            let record = Record { words: [number, 0, 0, 0], ..Record::default() };
            // Some pauses, so that the reader sleeps now and then.
            if number % 1000 == 0 {
                std::thread::yield_now();
            }
            while sender.push(&record, &[7; 2000]) == Err(PushError::Full) {
                if sender.prepare_sleep(2000) {
                    sleep(&mut first);
                }
                sender.awake();
            }
        }
        (first, initiator)
    });
    let receiver = target.messages();
    for number in 0..RECORDS {
        while receiver.is_empty() {
            if number % 2 == 0 {
                if receiver.prepare_sleep() {
                    sleep(&mut second);
                }
            } else {
                receiver.announce_sleep();
                second.sleep_barrier();
                if receiver.is_empty() {
                    sleep(&mut second);
                }
            }
            receiver.awake();
        }
        assert_eq!(take(receiver).0.words[0], number);
    }
    writer.join().unwrap();
}

/// A peer that writes random words all over the memory while both sides use it. What comes out is anything, but it is a
/// record of ours or an error, and nothing outside of the memory is touched: the copies have guards.
#[test]
fn a_peer_that_scribbles_harms_nobody() {
    const WRITES: u64 = 300_000;
    let (_first, initiator, _second, mut target) = joined();
    let (start, length) = initiator.data_memory();
    let memory = start as usize;
    let done = std::sync::atomic::AtomicBool::new(false);
    let (mut taken, mut broken) = (0u64, 0u64);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = 0x9e37_79b9_7f4a_7c15u64;
            for round in 0..WRITES {
                random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                // Half of the writes go where it hurts: control words and the slots that are used now.
                let reach = if round % 2 == 0 { length } else { 48 << 10 };
                let at = (random >> 20) as usize % (reach / 8);
                let value = if round % 3 == 0 { random } else { random >> 44 };
                // SAFETY: the word is in the mapping, which `initiator` keeps, and it is only used as an atomic.
                let word = unsafe {
                    std::sync::atomic::AtomicU64::from_ptr(std::ptr::with_exposed_provenance_mut(memory + at * 8))
                };
                word.store(value, std::sync::atomic::Ordering::Relaxed);
            }
            done.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        let mut guarded = vec![0xa5u8; 65536 + 128];
        let (mut number, mut afterwards) = (0, 0);
        // Some rounds in what it left behind, too: it may have ended before the first round began.
        while afterwards < 1000 {
            afterwards += u64::from(done.load(std::sync::atomic::Ordering::Relaxed));
            let (sender, receiver) = target.halves();
            number += 1;
            let record = Record { words: [number; 4], ..Record::default() };
            if sender.push(&record, &guarded[..number as usize * 977 % 65537]) == Err(PushError::Broken) {
                broken += 1;
            }
            let _ = sender.prepare_sleep(100);
            sender.awake();
            match receiver.peek() {
                Ok(Some(incoming)) => {
                    let length = incoming.length();
                    assert!(length <= 65536);
                    assert!(incoming.segment().copy_to(&mut guarded[64..64 + length]));
                    assert!(guarded[..64].iter().all(|byte| *byte == 0xa5));
                    taken += 1;
                    receiver.advance();
                }
                Ok(None) => {}
                Err(Broken) => broken += 1,
            }
        }
    });
    assert!(broken > 0, "the peer was not noticed: {taken} records taken");
}

#[test]
fn a_peer_killed_between_claim_and_commit_is_noticed() {
    let (_socket, local) = address();
    let mut node = Node::open(local).unwrap();
    if let Some(to) = role() {
        let mut channel = node.connect(to.parse().unwrap(), &hello_from(local)).unwrap();
        channel.messages().push(&Record::default(), b"whole").unwrap();
        let mut claim = channel.messages().claim(1000).unwrap();
        assert!(claim.segment().copy_from(&[1; 1000]));
        // Who dies before it is let in was never there.
        while channel.responses().is_empty() {
            std::thread::yield_now();
        }
        // SAFETY: no memory is involved.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        unreachable!();
    }
    let mut child = another_process("tests::a_peer_killed_between_claim_and_commit_is_noticed", &local.to_string());
    let (mut channel, _) = accepted(&mut node);
    channel.responses().push(&Record::default(), b"welcome").unwrap();
    assert!(matches!(next_event(&mut node), NodeEvent::Closed(id) if id == channel.id()));
    assert!(!child.wait().unwrap().success());
    assert_eq!(take(channel.messages()).1, b"whole");
    assert!(channel.messages().peek().unwrap().is_none(), "what was not committed was never there");
    // Sending to nobody does no harm.
    while channel.responses().push(&Record::default(), &[0; 1000]).is_ok() {}
    assert!(channel.note(b"hello?", &[]).is_err());
}

#[test]
fn names_are_free_at_once() {
    let (_socket, local) = address();
    let (_other, other) = address();
    let mut peer = Node::open(other).unwrap();
    for _ in 0..100 {
        assert!(matches!(peer.connect(local, &hello_from(other)), Err(ConnectError::Nobody)));
        let node = Node::open(local).unwrap();
        let taken = Node::open(local).map(|_| ()).map_err(|error| error.kind());
        assert_eq!(taken, Err(std::io::ErrorKind::AddrInUse));
        let channel = peer.connect(local, &hello_from(other)).unwrap();
        drop(node);
        assert!(matches!(next_event(&mut peer), NodeEvent::Closed(id) if id == channel.id()));
        peer.close(channel.id());
    }
}

#[test]
fn a_node_of_all_addresses_is_found_under_each() {
    let (_socket, local) = address();
    let mut everywhere = Node::open(SocketAddr::from(([0, 0, 0, 0], local.port()))).unwrap();
    let (_other, other) = address();
    let mut peer = Node::open(other).unwrap();
    let channel = peer.connect(local, &hello_from(other)).unwrap();
    let (accepted, _) = accepted(&mut everywhere);
    assert_eq!(accepted.peer_pid(), channel.peer_pid());
    // The same port elsewhere is somebody else (an address for documentation is nobody's).
    let elsewhere = SocketAddr::from(([192, 0, 2, 77], local.port()));
    assert!(matches!(peer.connect(elsewhere, &hello_from(other)), Err(ConnectError::Nobody)));
}

/// Numbers are small, not used twice at a time, and come back.
#[test]
fn channels_that_are_dropped_give_their_numbers_back() {
    let ((_a, a), (_b, b)) = (address(), address());
    let (mut first, mut second) = (Node::open(a).unwrap(), Node::open(b).unwrap());
    for _ in 0..50 {
        let one = first.connect(b, &hello_from(a)).unwrap();
        let two = first.connect(b, &hello_from(a)).unwrap();
        assert_ne!(one.id(), two.id());
        let mut events = Vec::new();
        while events.len() < 2 {
            second.poll(&mut events).unwrap();
        }
        assert!(one.id().0 < 8 && two.id().0 < 8, "{one:?} {two:?}");
        // One is dropped here, the other there; nobody calls `close`.
        drop(one);
        drop(events);
        for _ in 0..4 {
            first.poll(&mut Vec::new()).unwrap();
            second.poll(&mut Vec::new()).unwrap();
        }
    }
}

#[test]
fn a_process_of_another_user_is_refused() {
    let (_socket, local) = address();
    if let Some(role) = role() {
        let (to, file) = role.split_once(' ').unwrap();
        // SAFETY: no memory is involved; the process becomes another user for good.
        assert_eq!(unsafe { libc::setuid(65534) }, 0);
        let mut node = Node::open(local).unwrap();
        // Under its own name nobody is found. Under the other user's name somebody is, who hangs up.
        let to: SocketAddr = to.parse().unwrap();
        assert!(matches!(node.connect(to, &hello_from(local)), Err(ConnectError::Nobody)));
        let name = socket::Name::new(0, to);
        let stranger = socket::connect(&name).unwrap().unwrap();
        crate::wait::wait_readable(stranger.as_fd(), None).unwrap();
        assert!(matches!(socket::receive(stranger.as_fd(), &mut [0; 16]), socket::Received::Closed));
        // Whoever takes the name of another user is not trusted.
        let (_squatted, squatted) = address();
        let _listener = socket::listen(&socket::Name::new(0, squatted)).unwrap();
        std::fs::write(file, squatted.to_string()).unwrap();
        std::thread::park();
        unreachable!();
    }
    // SAFETY: no memory is involved.
    if unsafe { libc::geteuid() } != 0 {
        // Only root can become another user. `another_user_is_refused_without_root` tests the same checks.
        return;
    }
    let mut node = Node::open(local).unwrap();
    let file = std::env::temp_dir().join(format!("weft-shm-{}", std::process::id()));
    std::fs::write(&file, "").unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    let role = format!("{local} {}", file.display());
    let mut child = another_process("tests::a_process_of_another_user_is_refused", &role);
    let squatted: SocketAddr = loop {
        let mut events = Vec::new();
        node.poll(&mut events).unwrap();
        assert!(events.is_empty(), "{events:?}");
        if let Ok(squatted) = std::fs::read_to_string(&file).unwrap().parse() {
            break squatted;
        }
        assert!(child.try_wait().unwrap().is_none(), "the child failed");
        std::thread::yield_now();
    };
    assert!(matches!(node.connect(squatted, &hello_from(local)), Err(ConnectError::OtherUser)));
    child.kill().unwrap();
    child.wait().unwrap();
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn another_user_is_refused_without_root() {
    let ((_a, a), (_b, b)) = (address(), address());
    // SAFETY: no memory is involved.
    let user = unsafe { libc::geteuid() };
    let mut node = Node::open(a).unwrap();
    // It goes by the names of this user, but takes itself for another one.
    let mut other = Node::open(b).unwrap();
    other.pretend(user + 1);
    let channel = node.connect(b, &hello_from(a)).unwrap();
    other.poll(&mut Vec::new()).unwrap();
    assert!(matches!(next_event(&mut node), NodeEvent::Closed(id) if id == channel.id()));
    assert!(matches!(other.connect(a, &hello_from(b)), Err(ConnectError::Nobody)));
    let _listener = socket::listen(&socket::Name::new(user + 1, a)).unwrap();
    assert!(matches!(other.connect(a, &hello_from(b)), Err(ConnectError::OtherUser)));
}

/// A conversation of two processes that sleep whenever they wait: the barrier reaches the other process.
#[test]
fn two_processes_sleep_and_wake_each_other() {
    const ROUNDS: u64 = 3000;
    fn take_asleep(node: &mut Node, receiver: &mut Receiver) -> u64 {
        while receiver.is_empty() {
            if receiver.prepare_sleep() {
                crate::wait::wait_readable(node.descriptor(), None).unwrap();
                node.poll(&mut Vec::new()).unwrap();
            }
            receiver.awake();
        }
        take(receiver).0.words[0]
    }
    fn push(sender: &mut Sender, number: u64) {
        let record = Record { words: [number, 0, 0, 0], ..Record::default() };
        sender.push(&record, &[]).unwrap();
    }
    let (_socket, local) = address();
    let mut node = Node::open(local).unwrap();
    if let Some(to) = role() {
        let mut channel = node.connect(to.parse().unwrap(), &hello_from(local)).unwrap();
        for _ in 0..ROUNDS {
            let number = take_asleep(&mut node, channel.responses());
            push(channel.messages(), number);
        }
        assert!(matches!(next_event(&mut node), NodeEvent::Closed(_)));
        return;
    }
    let mut child = another_process("tests::two_processes_sleep_and_wake_each_other", &local.to_string());
    let (mut channel, _) = accepted(&mut node);
    for round in 0..ROUNDS {
        push(channel.responses(), round);
        assert_eq!(take_asleep(&mut node, channel.messages()), round);
    }
    drop(channel);
    assert!(child.wait().unwrap().success());
}
