//! Connections that do not say what a peer says.

use std::io::Write;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};

use super::layout::REGION_BYTES;
use super::node::Hello;
use super::region::Region;
use super::socket::{self, Name, Received};
use super::tests::{accepted, address, another_process, hello_from, role};
use super::{Node, NodeEvent};
use crate::limits::STRANGERS_MAX;

fn name_of(local: std::net::SocketAddr) -> Name {
    // SAFETY: no memory is involved.
    Name::new(unsafe { libc::geteuid() }, local)
}

fn nothing_happens(node: &mut Node) {
    let mut events = Vec::new();
    for _ in 0..8 {
        node.poll(&mut events).unwrap();
    }
    assert!(events.is_empty(), "{events:?}");
}

fn is_hung_up(socket: &impl AsFd) -> bool {
    matches!(socket::receive(socket.as_fd(), &mut [0; 16]), Received::Closed)
}

/// A memory file, sealed in some way.
fn memory(bytes: usize, flags: u32, seals: i32) -> OwnedFd {
    // SAFETY: the name is a string; the descriptor that comes is new; the other calls take no memory.
    unsafe {
        let descriptor = libc::memfd_create(c"test".as_ptr(), flags | libc::MFD_ALLOW_SEALING);
        assert!(descriptor >= 0);
        assert_eq!(libc::ftruncate(descriptor, bytes as libc::off_t), 0);
        assert_eq!(libc::fcntl(descriptor, libc::F_ADD_SEALS, seals), 0);
        OwnedFd::from_raw_fd(descriptor)
    }
}

#[test]
fn only_memory_that_cannot_be_cut_is_mapped() {
    let both = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    assert!(Region::accept(memory(REGION_BYTES, 0, both).as_fd()).is_ok());
    assert!(Region::accept(memory(REGION_BYTES, 0, both | libc::F_SEAL_SEAL).as_fd()).is_ok());
    for (bytes, seals) in [
        (REGION_BYTES - 4096, both),
        (REGION_BYTES + 4096, both),
        (0, both),
        (REGION_BYTES, 0),
        (REGION_BYTES, libc::F_SEAL_GROW),
        (REGION_BYTES, libc::F_SEAL_SHRINK),
        (REGION_BYTES, both | libc::F_SEAL_WRITE),
    ] {
        assert!(Region::accept(memory(bytes, 0, seals).as_fd()).is_err(), "{bytes} {seals}");
    }
    let mut file = std::fs::File::from(memory(0, 0, 0));
    file.write_all(&vec![0; REGION_BYTES]).unwrap();
    assert!(Region::accept(file.as_fd()).is_err());
    assert!(Region::accept(address().0.as_fd()).is_err());
    assert!(Region::accept(std::fs::File::open("/proc/self/exe").unwrap().as_fd()).is_err());
}

#[test]
fn who_says_nonsense_is_hung_up_on() {
    let (_socket, local) = address();
    let mut node = Node::open(local).unwrap();
    let (_, region) = Region::create().unwrap();
    let hello = hello_from(local).emit();
    let short = memory(4096, 0, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW);
    let other_version = {
        let mut hello = hello.clone();
        hello[4] ^= 1;
        hello
    };
    let cases: [(&[u8], &[_]); 8] = [
        (b"x", &[]),
        (&hello, &[]),
        (&hello, &[short.as_fd()]),
        (&hello, &[region.as_fd(), region.as_fd()]),
        (&hello[1..], &[region.as_fd()]),
        (&[hello.as_slice(), b"x"].concat(), &[region.as_fd()]),
        (&other_version, &[region.as_fd()]),
        (&[7; 6000], &[region.as_fd()]),
    ];
    for (bytes, descriptors) in cases {
        let stranger = socket::connect(&name_of(local)).unwrap().unwrap();
        socket::send(stranger.as_fd(), [bytes, b""], descriptors).unwrap();
        nothing_happens(&mut node);
        assert!(is_hung_up(&stranger), "{bytes:?}");
    }
    // The same bytes as they should be.
    let peer = socket::connect(&name_of(local)).unwrap().unwrap();
    socket::send(peer.as_fd(), [&hello, b""], &[region.as_fd()]).unwrap();
    let (channel, _) = accepted(&mut node);
    // After that, a message that is too long or empty ends it; one of an unknown kind does not.
    socket::send(peer.as_fd(), [&[9], b"what?"], &[]).unwrap();
    nothing_happens(&mut node);
    socket::send(peer.as_fd(), [&[7; 6000], b""], &[]).unwrap();
    let mut events = Vec::new();
    node.poll(&mut events).unwrap();
    assert!(matches!(events.as_slice(), [NodeEvent::Closed(id)] if *id == channel.id()), "{events:?}");
    nothing_happens(&mut node);
}

#[test]
fn strangers_are_few_and_peers_get_through() {
    let (_socket, local) = address();
    let mut node = Node::open(local).unwrap();
    let mut strangers = Vec::new();
    for _ in 0..4 {
        strangers.extend((0..STRANGERS_MAX).map(|_| socket::connect(&name_of(local)).unwrap().unwrap()));
        nothing_happens(&mut node);
    }
    let waiting = strangers.iter().filter(|stranger| !is_hung_up(*stranger)).count();
    assert!(waiting <= STRANGERS_MAX);
    let channel = node.connect(local, &hello_from(local)).unwrap();
    let (back, _) = accepted(&mut node);
    assert_ne!(back.id(), channel.id());
    drop(strangers);
    nothing_happens(&mut node);
}

#[test]
fn hello_reads_what_it_writes() {
    let hello = hello_from(address().1);
    let bytes = hello.emit();
    assert_eq!(Hello::parse(&bytes), Some(hello));
    for length in 0..bytes.len() {
        assert_eq!(Hello::parse(&bytes[..length]), None);
    }
}

/// A process that says it is another one.
#[test]
fn an_impostor_is_hung_up_on() {
    let (_socket, local) = address();
    let mut node = Node::open(local).unwrap();
    if let Some(to) = role() {
        // It says that it listens where the parent does.
        let to = to.parse().unwrap();
        let liar = node.connect(to, &hello_from(to)).unwrap();
        assert!(matches!(super::tests::next_event(&mut node), NodeEvent::Closed(id) if id == liar.id()));
        // Or where nobody does.
        let (_nobody, nobody) = address();
        let liar = node.connect(to, &hello_from(nobody)).unwrap();
        assert!(matches!(super::tests::next_event(&mut node), NodeEvent::Closed(id) if id == liar.id()));
        let honest = node.connect(to, &hello_from(local)).unwrap();
        assert!(matches!(super::tests::next_event(&mut node), NodeEvent::Closed(id) if id == honest.id()));
        return;
    }
    let mut child = another_process("stranger_tests::an_impostor_is_hung_up_on", &local.to_string());
    let (channel, hello) = accepted(&mut node);
    assert_ne!(hello, hello_from(local));
    drop(channel);
    assert!(child.wait().unwrap().success());
}
