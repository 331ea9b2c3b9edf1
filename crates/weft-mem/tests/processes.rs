//! Shared memory and copies between two processes. The second one is this program again, in a role.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use weft_core::atomic::{AtomicCall, AtomicOperation as Op, Datatype};
use weft_core::memory::{Access, Memory};
use weft_mem::attach::{self, Span, TransferError};
use weft_mem::{Addressing, HostMemory, Mapping, MemoryRegion};

const ROLE: &str = "WEFT_TEST_ROLE";
/// Descriptors of the second process: a socket to the first, and memory.
const SOCKET: i32 = 100;
const MEMORY: i32 = 101;
const LENGTH: usize = 1 << 20;
const ROUNDS: u64 = 20_000;

/// The second process, and the socket to it.
struct Other {
    child: Child,
    socket: UnixStream,
}

impl Other {
    fn start(role: &str, memory: Option<&OwnedFd>) -> Other {
        let (socket, theirs) = UnixStream::pair().unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "the_other_process", "--ignored", "--nocapture", "--test-threads=1"]);
        command.env(ROLE, role).stdin(Stdio::null()).stdout(Stdio::null());
        let descriptors = [(theirs.as_raw_fd(), SOCKET), (memory.map_or(-1, AsRawFd::as_raw_fd), MEMORY)];
        // SAFETY: between fork and exec only `dup2` is called, which is safe there.
        unsafe {
            command.pre_exec(move || {
                for (from, to) in descriptors {
                    if from >= 0 && libc::dup2(from, to) < 0 {
                        return Err(std::io::Error::last_os_error());
                    }
                }
                Ok(())
            });
        }
        Other { child: command.spawn().unwrap(), socket }
    }

    fn finish(mut self) {
        assert!(self.child.wait().unwrap().success(), "the other process says why above");
    }
}

fn tell(socket: &mut UnixStream, words: &[u64]) {
    words.iter().for_each(|word| socket.write_all(&word.to_ne_bytes()).unwrap());
}

fn hear<const N: usize>(socket: &mut UnixStream) -> [u64; N] {
    [(); N].map(|()| {
        let mut word = [0; 8];
        socket.read_exact(&mut word).unwrap();
        u64::from_ne_bytes(word)
    })
}

#[test]
#[ignore = "the other process of these tests: they start it"]
fn the_other_process() {
    let role = std::env::var(ROLE).expect("this is not a test: others start it in a role");
    // SAFETY: the first process put a socket there, for this function.
    let mut socket = unsafe { UnixStream::from_raw_fd(SOCKET) };
    match role.as_str() {
        "mapping" => map_and_write(&mut socket),
        "scribbler" => map_and_scribble(&mut socket),
        "spans" => name_spans(&mut socket),
        "stranger" => attach_as_a_stranger(&mut socket),
        "descriptors" => use_and_count_descriptors(&mut socket),
        other => panic!("no role {other}"),
    }
}

/// Writes, counts with the owner, and goes on writing after the memory was revoked.
#[test]
fn a_peer_writes_and_counts_in_our_memory() {
    let region = MemoryRegion::alloc_shared(LENGTH).unwrap();
    let shareable = region.share(true).unwrap();
    let mut other = Other::start("mapping", Some(&shareable.descriptor));
    drop(shareable);
    let [1] = hear(&mut other.socket) else { panic!() };
    assert_eq!(region.to_vec(4096, 10_000).unwrap(), vec![0xAB; 10_000]);
    tell(&mut other.socket, &[1]);
    let mut memory = HostMemory::new();
    let grant = memory.register(&region, Access::REMOTE, Addressing::Offset).unwrap();
    for _ in 0..ROUNDS {
        for (address, datatype, one) in COUNTERS {
            let piece = memory.remote(grant.key, address, one.len() as u64, Access::REMOTE_ATOMIC).unwrap();
            memory.atomic(piece, AtomicCall::new(Op::Sum, datatype, 1), one, &[], &mut []).unwrap();
        }
    }
    let [2] = hear(&mut other.socket) else { panic!() };
    assert_eq!(region.load_u64(0), Ok(2 * ROUNDS));
    let wide = region.to_vec(16, 16).unwrap();
    assert_eq!(u128::from_le_bytes(wide.try_into().unwrap()), u128::from(2 * ROUNDS) * u128::from(u64::MAX));
    let float = region.to_vec(32, 8).unwrap();
    assert_eq!(f64::from_le_bytes(float.try_into().unwrap()), (2 * ROUNDS) as f64);
    region.revoke().unwrap();
    let before = region.to_vec(0, LENGTH).unwrap();
    tell(&mut other.socket, &[2]);
    let [3] = hear(&mut other.socket) else { panic!() };
    assert_eq!(region.to_vec(0, LENGTH).unwrap(), before, "what a peer does to its mapping is not seen any more");
    other.finish();
}

const COUNTERS: [(u64, Datatype, &[u8]); 3] = [
    (0, Datatype::Uint64, &[1, 0, 0, 0, 0, 0, 0, 0]),
    (16, Datatype::Uint128, &[255, 255, 255, 255, 255, 255, 255, 255, 0, 0, 0, 0, 0, 0, 0, 0]),
    (32, Datatype::Binary64, &[0, 0, 0, 0, 0, 0, 0xF0, 0x3F]),
];

fn map_and_write(socket: &mut UnixStream) {
    // SAFETY: the first process put memory there, for this function.
    let descriptor = unsafe { OwnedFd::from_raw_fd(MEMORY) };
    let mapping = Mapping::open(descriptor.as_fd(), LENGTH, true).unwrap();
    drop(descriptor);
    mapping.write_bytes(4096, &[0xAB; 10_000]).unwrap();
    tell(socket, &[1]);
    let [1] = hear(socket) else { panic!() };
    for _ in 0..ROUNDS {
        for (address, datatype, one) in COUNTERS {
            mapping.atomic(address, AtomicCall::new(Op::Sum, datatype, 1), one, &[], &mut []).unwrap();
        }
    }
    tell(socket, &[2]);
    let [2] = hear(socket) else { panic!() };
    let mut bytes = vec![1; LENGTH];
    mapping.read_bytes(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|&byte| byte == 0), "nor are old bytes seen");
    mapping.write_bytes(0, &vec![0xCD; LENGTH]).unwrap();
    tell(socket, &[3]);
}

/// A peer that is killed while it writes leaves its bytes, and nothing else.
#[test]
fn a_peer_is_killed_while_it_writes() {
    for _ in 0..20 {
        let region = MemoryRegion::alloc_shared(LENGTH).unwrap();
        let shareable = region.share(true).unwrap();
        let mut other = Other::start("scribbler", Some(&shareable.descriptor));
        drop(shareable);
        let [1] = hear(&mut other.socket) else { panic!() };
        region.write(0, &[7; 4096]).unwrap();
        other.child.kill().unwrap();
        other.child.wait().unwrap();
        assert_eq!(region.to_vec(0, 4096).unwrap(), [7; 4096]);
        let bytes = region.to_vec(4096, LENGTH - 4096).unwrap();
        assert!(bytes.iter().all(|&byte| byte == 0xAA || byte == 0xBB), "whole bytes of one write or the other");
        region.write(0, &vec![1; LENGTH]).unwrap();
        region.revoke().unwrap();
        assert_eq!(region.to_vec(0, LENGTH).unwrap(), vec![1; LENGTH]);
    }
}

fn map_and_scribble(socket: &mut UnixStream) {
    // SAFETY: the first process put memory there, for this function.
    let descriptor = unsafe { OwnedFd::from_raw_fd(MEMORY) };
    let mapping = Mapping::open(descriptor.as_fd(), LENGTH, true).unwrap();
    let patterns = [vec![0xAA; LENGTH - 4096], vec![0xBB; LENGTH - 4096]];
    mapping.write_bytes(4096, &patterns[0]).unwrap();
    tell(socket, &[1]);
    loop {
        patterns.iter().for_each(|pattern| mapping.write_bytes(4096, pattern).unwrap());
        // Ends with the first process, should that not kill it.
        socket.set_nonblocking(true).unwrap();
        if matches!(socket.read(&mut [0]), Ok(0)) {
            return;
        }
    }
}

/// Copies from and to the other process, and what is seen when it has ended.
#[test]
fn bytes_move_between_processes() {
    let mut other = Other::start("spans", None);
    let pid = other.child.id() as i32;
    let [first, second, word] = hear(&mut other.socket);
    let spans = [Span { address: first, length: 100_000 }, Span { address: second, length: 200_000 }];
    assert!(attach::can_attach(pid, word, 0xFEED));
    let mut memory = HostMemory::new();
    let key = memory.attach(vec![0; 300_000].into()).unwrap();
    let piece = memory.local(key, 0, 300_000).unwrap();
    assert_eq!(attach::fetch(pid, &spans, 0, &mut memory, &[piece]).unwrap(), 300_000);
    let bytes = memory.take(key).unwrap().into_vec().unwrap();
    assert_eq!(bytes, [vec![1; 100_000], vec![2; 200_000]].concat());
    let key = memory.attach(vec![3; 100_000].into()).unwrap();
    let piece = memory.local(key, 0, 100_000).unwrap();
    assert_eq!(attach::store(pid, &spans, 50_000, &memory, &[piece]).unwrap(), 100_000);
    tell(&mut other.socket, &[1]);
    other.finish();
    assert!(!attach::can_attach(pid, word, 0xFEED));
    let result = attach::store(pid, &spans, 0, &memory, &[piece]);
    assert!(matches!(result, Err(TransferError::Gone)), "{result:?}");
}

fn name_spans(socket: &mut UnixStream) {
    let (first, second) = (MemoryRegion::alloc_shared(100_000).unwrap(), MemoryRegion::from_vec(vec![2; 200_000]));
    first.write(0, &[1; 100_000]).unwrap();
    let word = Box::new(0xFEEDu64);
    let address = |pointer: *const u8| pointer.addr() as u64;
    tell(socket, &[address(first.as_ptr()), address(second.as_ptr()), address((&raw const *word).cast())]);
    let [1] = hear(socket) else { panic!() };
    assert_eq!(first.to_vec(0, 100_000).unwrap(), [vec![1; 50_000], vec![3; 50_000]].concat());
    assert_eq!(second.to_vec(0, 200_000).unwrap(), [vec![3; 50_000], vec![2; 150_000]].concat());
}

/// A process that the system keeps apart is told from one that has ended. For the superuser, who may touch all, the
/// other process becomes another user and tries; otherwise it makes itself untouchable.
#[test]
fn a_process_of_another_user_is_not_touched() {
    let mut other = Other::start("stranger", None);
    let word = Box::new(7u64);
    tell(&mut other.socket, &[std::process::id().into(), (&raw const *word).addr() as u64]);
    let [address] = hear(&mut other.socket);
    // SAFETY: asks for a number.
    if unsafe { libc::geteuid() } != 0 {
        expect_not_permitted(other.child.id() as i32, address);
    }
    tell(&mut other.socket, &[1]);
    other.finish();
}

fn attach_as_a_stranger(socket: &mut UnixStream) {
    let [pid, address] = hear(socket);
    let word = Box::new(7u64);
    // SAFETY: changes this process's user, or what others may do to it.
    unsafe {
        if libc::geteuid() == 0 {
            assert_eq!(libc::setresuid(65534, 65534, 65534), 0);
            expect_not_permitted(pid as i32, address);
        } else {
            assert_eq!(libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0), 0);
        }
    }
    tell(socket, &[(&raw const *word).addr() as u64]);
    let [1] = hear(socket) else { panic!() };
}

fn expect_not_permitted(pid: i32, address: u64) {
    let mut memory = HostMemory::new();
    let key = memory.attach(vec![0; 8].into()).unwrap();
    let piece = memory.local(key, 0, 8).unwrap();
    let span = Span { address, length: 8 };
    assert!(matches!(attach::fetch(pid, &[span], 0, &mut memory, &[piece]), Err(TransferError::NotPermitted)));
    assert!(matches!(attach::store(pid, &[span], 0, &memory, &[piece]), Err(TransferError::NotPermitted)));
    assert!(!attach::can_attach(pid, address, 7));
}

/// In a process of its own, since other tests open descriptors as well.
#[test]
fn no_descriptor_and_no_mapping_stays() {
    let mut other = Other::start("descriptors", None);
    let [1] = hear(&mut other.socket) else { panic!() };
    other.finish();
}

fn use_and_count_descriptors(socket: &mut UnixStream) {
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let mappings = || std::fs::read_to_string("/proc/self/maps").unwrap().matches("/memfd:weft").count();
    let round = || {
        for revoke in [false, true] {
            for writable in [false, true] {
                let region = MemoryRegion::alloc_shared(10_000).unwrap();
                let shareable = region.share(writable).unwrap();
                let mapping = Mapping::open(shareable.descriptor.as_fd(), 10_000, writable).unwrap();
                assert!(region.share(!writable).is_none());
                assert!(Mapping::open(shareable.descriptor.as_fd(), 20_000, writable).is_err());
                if revoke {
                    region.revoke().unwrap();
                }
                assert_eq!(mapping.length(), 10_000);
            }
        }
    };
    round();
    let before = descriptors();
    (0..50).for_each(|_| round());
    assert_eq!((descriptors(), mappings()), (before, 0));
    tell(socket, &[1]);
}
