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

pub(super) fn accepted(node: &mut Node) -> (Channel, Hello) {
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
            assert!(incoming.inline().is_none_or(|inline| inline == bytes));
            let record = incoming.record();
            receiver.advance();
            return (record, bytes);
        }
        std::hint::spin_loop();
    }
}

/// Two nodes of this process and a channel between them.
pub(super) fn joined() -> (Node, Channel, Node, Channel) {
    let ((_a, a), (_b, b)) = (address(), address());
    let (mut first, mut second) = (Node::open(a).unwrap(), Node::open(b).unwrap());
    let hello = hello_from(a);
    let initiator = first.connect(b, &hello).unwrap();
    let (target, heard) = accepted(&mut second);
    assert_eq!(heard, hello);
    assert!(initiator.is_initiator() && !target.is_initiator());
    (first, initiator, second, target)
}

#[test]
fn records_go_both_ways() {
    let (_first, mut initiator, _second, mut target) = joined();
    for length in [0, 1, 7, 8, 9, 79, 80, 81, 4096, 65536] {
        let payload: Vec<u8> = (0..length).map(|index| (index * 7 + length) as u8).collect();
        let record = Record { kind: length as u8, flags: 3, words: [length as u64, 1, u64::MAX, 3] };
        initiator.sender().push(&record, &payload).unwrap();
        assert_eq!(take(target.receiver()), (record, payload.clone()));
        assert!(target.receiver().is_empty());
        let mut claim = target.sender().claim(length).unwrap();
        assert!(claim.segment().copy_from(&payload));
        claim.commit(&record);
        assert_eq!(take(initiator.receiver()), (record, payload));
    }
    assert_eq!(initiator.sender().push(&Record::default(), &[0; 65537]), Err(PushError::TooLong));
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
    initiator.sender().push(&Record::default(), b"last words").unwrap();
    let id = target.id();
    drop(initiator);
    assert!(matches!(next_event(&mut second), NodeEvent::Closed(closed) if closed == id));
    assert_eq!(take(target.receiver()).1, b"last words");
    second.close(id);
    drop(first);
}

/// Runs a test again in another process, which gets `role`.
pub(super) fn another_process(test: &str, role: &str) -> std::process::Child {
    std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("shm::tests::{test}"), "--nocapture", "--test-threads", "1"])
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
    let mut child = another_process("two_processes", &local.to_string());
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
