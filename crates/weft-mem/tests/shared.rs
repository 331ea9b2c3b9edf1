//! Regions that can be shared, and what a mapping of one can and cannot do, seen from one process. What takes two is in
//! `processes.rs`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;
use weft_core::atomic::{AtomicCall, AtomicOperation as Op, Datatype};
use weft_core::memory::{Access, Fault, Memory};
use weft_mem::{Addressing, Buffer, HostMemory, MapError, Mapping, MemoryRegion, Segment, SegmentMut};

fn shared(length: usize) -> MemoryRegion {
    MemoryRegion::alloc_shared(length).unwrap()
}

fn mapping(region: &MemoryRegion, writable: bool) -> Mapping {
    let shareable = region.share(writable).unwrap();
    Mapping::open(shareable.descriptor.as_fd(), shareable.length, writable).unwrap()
}

fn memory_file(flags: libc::c_uint, length: i64, seals: i32) -> OwnedFd {
    // SAFETY: makes a file and changes it.
    unsafe {
        let descriptor = libc::memfd_create(c"test".as_ptr(), flags | libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        assert!(descriptor >= 0);
        assert_eq!(libc::ftruncate(descriptor, length), 0);
        assert_eq!(libc::fcntl(descriptor, libc::F_ADD_SEALS, seals), 0);
        OwnedFd::from_raw_fd(descriptor)
    }
}

#[test]
fn it_is_a_region_like_others() {
    let region = shared(10_000);
    assert_eq!((region.length(), region.is_writable()), (10_000, true));
    assert!(region.as_ptr().addr().is_multiple_of(4096));
    assert_eq!(region.to_vec(0, 10_000).unwrap(), vec![0; 10_000]);
    assert_eq!(region.write(9_999, &[1, 2]), Err(Fault::OutOfBounds));
    let mut memory = HostMemory::new();
    let grant = memory.register(&region, Access::REMOTE, Addressing::Offset).unwrap();
    let piece = memory.remote(grant.key, 8, 8, Access::REMOTE_ATOMIC).unwrap();
    memory.atomic(piece, AtomicCall::new(Op::Sum, Datatype::Uint64, 1), &[7; 8], &[], &mut []).unwrap();
    let key = memory.attach(Buffer::from_region(&region, 8, 8).unwrap()).unwrap();
    let piece = memory.local(key, 0, 8).unwrap();
    let mut bytes = [0; 8];
    memory.read(piece, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 8]);
    assert!(region.into_vec().is_err());
    let large = shared(5 << 20);
    large.store_u64((5 << 20) - 8, 3).unwrap();
    assert_eq!(large.load_u64((5 << 20) - 8), Ok(3));
}

#[test]
fn what_cannot_be_shared() {
    assert!(shared(0).share(true).is_none());
    assert!(MemoryRegion::alloc_zeroed(4096).unwrap().share(true).is_none());
    assert!(MemoryRegion::from_vec(vec![1; 4096]).share(false).is_none());
    assert!(MemoryRegion::from_vec(vec![1]).revoke().is_ok());
    assert!(MemoryRegion::alloc_shared(usize::MAX).is_err());
    assert!(MemoryRegion::alloc_shared(usize::MAX / 2).is_err());
}

#[test]
fn the_first_share_decides() {
    let (written, read) = (shared(1), shared(1));
    assert!(written.is_shareable(true) && written.is_shareable(false));
    let first = written.share(true).unwrap();
    assert!(written.is_shareable(true) && !written.is_shareable(false));
    assert!(written.share(false).is_none());
    let second = written.share(true).unwrap();
    assert_eq!((first.id, first.length, first.writable), (second.id, second.length, second.writable));
    let first = read.share(false).unwrap();
    assert!(read.share(true).is_none() && read.share(false).is_some());
    assert_ne!(first.id, second.id);
}

#[test]
fn both_sides_see_what_the_other_writes() {
    let region = shared(10_000);
    let mapping = mapping(&region, true);
    assert_eq!((mapping.length(), mapping.is_writable()), (10_000, true));
    mapping.populate(5000, 100_000);
    mapping.populate(usize::MAX, 2);
    mapping.write_bytes(9_990, &[1; 10]).unwrap();
    assert_eq!(region.to_vec(9_989, 11).unwrap(), [0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
    region.write(0, &[5; 3]).unwrap();
    let mut bytes = [0; 4];
    mapping.read_bytes(0, &mut bytes).unwrap();
    assert_eq!(bytes, [5, 5, 5, 0]);
    mapping.write(1, Segment::from_slice(&[8, 9])).unwrap();
    let area = MemoryRegion::alloc_zeroed(4).unwrap();
    // SAFETY: the region outlives the segment, and has this many bytes.
    mapping.read(0, unsafe { SegmentMut::from_raw(area.as_ptr(), 4) }).unwrap();
    assert_eq!(area.to_vec(0, 4).unwrap(), [5, 8, 9, 0]);
    mapping.flush();
    drop(region);
    mapping.read_bytes(0, &mut bytes).unwrap();
    assert_eq!(bytes, [5, 8, 9, 0], "it lives as long as one of them");
}

#[test]
fn pieces_of_a_node_are_copied_in_and_out() {
    let mapping = mapping(&shared(100), true);
    let mut memory = HostMemory::new();
    let from = memory.attach(vec![3; 40].into()).unwrap();
    let to = memory.attach(vec![0; 40].into()).unwrap();
    let fixed = memory.attach(Buffer::from(&[0u8; 40][..])).unwrap();
    let from = memory.local(from, 0, 40).unwrap();
    let piece = memory.local(to, 10, 30).unwrap();
    let fixed = memory.local(fixed, 0, 40).unwrap();
    mapping.copy_from(60, &memory, from).unwrap();
    mapping.copy_to(59, &mut memory, piece).unwrap();
    assert_eq!(mapping.copy_from(61, &memory, from), Err(Fault::OutOfBounds));
    assert_eq!(mapping.copy_to(71, &mut memory, piece), Err(Fault::OutOfBounds));
    assert_eq!(mapping.copy_to(0, &mut memory, fixed), Err(Fault::Forbidden));
    let received = memory.take(to).unwrap().into_vec().unwrap();
    assert_eq!(received, [&[0; 11][..], &[3; 29]].concat());
    assert_eq!(mapping.copy_to(0, &mut memory, piece), Err(Fault::UnknownKey));
}

#[test]
fn atomics_check_what_they_are_given() {
    let region = shared(100);
    let mapping = mapping(&region, true);
    let sum = |count| AtomicCall::new(Op::Sum, Datatype::Uint64, count);
    let mut results = [0; 8];
    mapping.atomic(8, sum(1), &[1; 8], &[], &mut results).unwrap();
    mapping.atomic(8, sum(1), &[1; 8], &[], &mut results).unwrap();
    assert_eq!((results, region.load_u64(8)), ([1; 8], Ok(u64::from_ne_bytes([2; 8]))));
    assert_eq!(mapping.atomic(4, sum(1), &[1; 8], &[], &mut []), Err(Fault::Misaligned));
    assert_eq!(mapping.atomic(96, sum(1), &[1; 8], &[], &mut []), Err(Fault::OutOfBounds));
    assert_eq!(mapping.atomic(u64::MAX, sum(1), &[1; 8], &[], &mut []), Err(Fault::OutOfBounds));
    assert_eq!(mapping.atomic(0, sum(0), &[], &[], &mut []), Err(Fault::OutOfBounds));
    assert_eq!(mapping.atomic(0, sum(1), &[1; 7], &[], &mut []), Err(Fault::OutOfBounds));
    let unknown = AtomicCall { operation: 0x99, datatype: 3, count: 1 };
    assert_eq!(mapping.atomic(0, unknown, &[0; 8], &[], &mut []), Err(Fault::NotSupported));
}

/// Every way to write what was shared for reading that the system offers to who holds the descriptor.
#[test]
fn what_is_shared_for_reading_cannot_be_written() {
    let region = shared(8192);
    region.write(0, &[1; 8192]).unwrap();
    let descriptor = region.share(false).unwrap().descriptor;
    assert!(matches!(Mapping::open(descriptor.as_fd(), 8192, true), Err(MapError::ReadOnly)));
    let mapping = mapping(&region, false);
    let sum = AtomicCall::new(Op::Sum, Datatype::Uint64, 1);
    assert_eq!(mapping.write_bytes(0, &[2]), Err(Fault::Forbidden));
    assert_eq!(mapping.atomic(0, sum, &[1; 8], &[], &mut []), Err(Fault::Forbidden));
    let again = OpenOptions::new().read(true).write(true).open(format!("/proc/self/fd/{}", descriptor.as_raw_fd()));
    let mut descriptors = vec![File::from(descriptor)];
    descriptors.extend(again);
    for file in &descriptors {
        let raw = file.as_raw_fd();
        let errno = || std::io::Error::last_os_error().raw_os_error();
        // SAFETY: new mappings are not used, or unmapped; the other calls are about a file.
        unsafe {
            let both = libc::PROT_READ | libc::PROT_WRITE;
            assert_eq!(libc::mmap(ptr::null_mut(), 8192, both, libc::MAP_SHARED, raw, 0), libc::MAP_FAILED);
            assert!(matches!(errno(), Some(libc::EPERM | libc::EACCES)));
            let readable = libc::mmap(ptr::null_mut(), 8192, libc::PROT_READ, libc::MAP_SHARED, raw, 0);
            assert_ne!(readable, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(readable, 8192, both), -1, "a mapping does not become writable");
            libc::munmap(readable, 8192);
            assert_eq!(libc::pwrite(raw, [2u8].as_ptr().cast(), 1, 0), -1);
            let hole = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            assert_eq!(libc::fallocate(raw, hole, 0, 4096), -1);
            assert_eq!(libc::ftruncate(raw, 0), -1);
            assert_eq!(libc::fcntl(raw, libc::F_ADD_SEALS, libc::F_SEAL_WRITE), -1);
        }
    }
    region.write(4096, &[3]).unwrap();
    assert_eq!(region.to_vec(4095, 3).unwrap(), [1, 3, 1], "its owner writes as before");
    let mut bytes = [0; 3];
    mapping.read_bytes(4095, &mut bytes).unwrap();
    assert_eq!(bytes, [1, 3, 1]);
}

#[test]
fn what_is_shared_for_writing_cannot_be_resized_or_sealed() {
    let region = shared(8192);
    let descriptor = region.share(true).unwrap().descriptor;
    // SAFETY: calls about a file.
    unsafe {
        assert_eq!(libc::ftruncate(descriptor.as_raw_fd(), 4096), -1);
        assert_eq!(libc::ftruncate(descriptor.as_raw_fd(), 1 << 20), -1);
        for seal in [libc::F_SEAL_WRITE, libc::F_SEAL_FUTURE_WRITE] {
            assert_eq!(libc::fcntl(descriptor.as_raw_fd(), libc::F_ADD_SEALS, seal), -1);
        }
    }
}

#[test]
fn descriptors_that_could_harm_are_refused() {
    let open = |descriptor: OwnedFd, length| Mapping::open(descriptor.as_fd(), length, true);
    let sealed = libc::F_SEAL_SHRINK;
    assert!(matches!(open(memory_file(0, 8192, 0), 8192), Err(MapError::NotSealed)));
    assert!(matches!(open(memory_file(0, 8192, libc::F_SEAL_GROW), 8192), Err(MapError::NotSealed)));
    assert!(matches!(open(memory_file(0, 8192, sealed), 8193), Err(MapError::TooShort)));
    assert!(matches!(open(memory_file(0, 100, sealed), 100), Err(MapError::TooShort)), "not the whole page");
    assert!(matches!(open(memory_file(0, 8192, sealed), 0), Err(MapError::TooShort)));
    assert!(matches!(open(memory_file(0, 8192, sealed), usize::MAX), Err(MapError::TooShort)));
    assert!(open(memory_file(0, 8192, sealed), 5000).is_ok());
    // Its pages are only there if somebody reserved some: a touch could end the process.
    let huge = memory_file(libc::MFD_HUGETLB, 2 << 20, sealed);
    assert!(matches!(open(huge, 4096), Err(MapError::NotSealed)));
    for path in ["/dev/zero", "/proc/self/exe", "/"] {
        let file = File::open(path).unwrap();
        assert!(matches!(open(file.into(), 4096), Err(MapError::NotSealed)), "{path}");
    }
}

#[test]
fn a_revoked_region_is_its_owners_alone() {
    for writable in [true, false] {
        let region = shared(3 * 4096);
        let mapping = mapping(&region, writable);
        region.write(0, &[1; 3 * 4096]).unwrap();
        let address = region.as_ptr();
        region.revoke().unwrap();
        assert_eq!(region.as_ptr(), address);
        assert_eq!(region.to_vec(0, 3 * 4096).unwrap(), vec![1; 3 * 4096]);
        if writable {
            mapping.write_bytes(100, &[9; 8000]).unwrap();
            assert_eq!(region.to_vec(0, 3 * 4096).unwrap(), vec![1; 3 * 4096]);
        }
        region.write(4096, &[2; 4096]).unwrap();
        let mut bytes = vec![0; 4096];
        mapping.read_bytes(4096, &mut bytes).unwrap();
        assert!(!bytes.contains(&2));
        assert!(region.share(writable).is_none() && !region.is_shareable(writable));
        region.revoke().unwrap();
        assert_eq!(region.to_vec(4095, 2).unwrap(), [1, 2]);
    }
    let never = shared(10);
    never.revoke().unwrap();
    assert!(never.share(true).is_some(), "nobody had it");
}

/// A peer that keeps its mapping reaches nothing once the last one who shared the region has ended that, if the region
/// has another use. If it has none there is nothing to protect.
#[test]
fn a_region_that_outlives_its_sharing_is_its_owners_alone() {
    let region = shared(4096);
    let other = region.clone();
    region.begin_sharing();
    other.begin_sharing();
    let mapping = mapping(&region, true);
    assert!(!region.end_sharing().unwrap(), "somebody else still shares it");
    mapping.write_bytes(0, &[1; 8]).unwrap();
    assert_eq!(other.to_vec(0, 8).unwrap(), [1; 8]);
    assert!(other.end_sharing().unwrap());
    mapping.write_bytes(0, &[2; 8]).unwrap();
    assert_eq!(region.to_vec(0, 8).unwrap(), [1; 8]);
    drop(other);

    let alone = shared(4096);
    alone.begin_sharing();
    assert!(alone.share(true).is_some());
    assert!(!alone.end_sharing().unwrap());
    let never = shared(4096);
    let kept = never.clone();
    never.begin_sharing();
    assert!(!never.end_sharing().unwrap(), "nobody had it");
    drop(kept);
}

/// Threads of the owner write while the region is taken back: each finds all of its own writes.
#[test]
fn revoking_loses_no_write_of_the_owner() {
    const LENGTH: usize = 1 << 20;
    for _ in 0..20 {
        let region = shared(LENGTH);
        let mapping = mapping(&region, true);
        let stop = AtomicBool::new(false);
        // All are at work before the region is taken back.
        let started = Barrier::new(4);
        std::thread::scope(|scope| {
            // One that counts in atomic steps, one that writes plainly over all pages, and the peer.
            let counter = scope.spawn(|| {
                let mut memory = HostMemory::new();
                let grant = memory.register(&region, Access::REMOTE, Addressing::Offset).unwrap();
                let sum = AtomicCall::new(Op::Sum, Datatype::Uint64, 1);
                let mut count = 0u64;
                started.wait();
                while !stop.load(Ordering::Relaxed) {
                    for page in 0..LENGTH / 4096 {
                        let piece = memory.remote(grant.key, page as u64 * 4096, 8, Access::REMOTE_ATOMIC).unwrap();
                        memory.atomic(piece, sum, &1u64.to_le_bytes(), &[], &mut []).unwrap();
                    }
                    count += 1;
                }
                count
            });
            let writer = scope.spawn(|| {
                let mut value = 0u64;
                started.wait();
                while !stop.load(Ordering::Relaxed) {
                    value += 1;
                    for page in 0..LENGTH / 4096 {
                        region.store_u64(page * 4096 + 8, value).unwrap();
                        assert_eq!(region.load_u64(page * 4096 + 8), Ok(value), "page {page}");
                    }
                }
                value
            });
            scope.spawn(|| {
                started.wait();
                while !stop.load(Ordering::Relaxed) {
                    for page in 0..LENGTH as u64 / 4096 {
                        mapping.write_bytes(page * 4096 + 64, &[7; 64]).unwrap();
                    }
                }
            });
            started.wait();
            while region.load_u64(LENGTH - 4096) == Ok(0) {
                std::thread::yield_now();
            }
            region.revoke().unwrap();
            let before = region.to_vec(0, LENGTH).unwrap();
            std::thread::yield_now();
            stop.store(true, Ordering::Relaxed);
            let (count, value) = (counter.join().unwrap(), writer.join().unwrap());
            for page in 0..LENGTH / 4096 {
                assert_eq!(region.load_u64(page * 4096), Ok(count), "page {page}");
                assert_eq!(region.load_u64(page * 4096 + 8), Ok(value), "page {page}");
                let peers = region.to_vec(page * 4096 + 64, 64).unwrap();
                assert_eq!(peers, before[page * 4096 + 64..page * 4096 + 128], "nothing of the peer came after");
            }
        });
    }
}

#[derive(Debug, Clone)]
enum Step {
    Write { offset: u64, bytes: Vec<u8>, by_owner: bool },
    Read { offset: u64, length: usize },
    Sum { offset: u64, value: u32 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let offset = || prop_oneof![0u64..9000, 8100u64..8300, Just(u64::MAX), Just(u64::MAX - 7)];
    let bytes = prop::collection::vec(any::<u8>(), 0..300);
    prop::collection::vec(
        prop_oneof![
            (offset(), bytes, any::<bool>()).prop_map(|(offset, bytes, by_owner)| Step::Write {
                offset,
                bytes,
                by_owner
            }),
            (offset(), 0usize..300).prop_map(|(offset, length)| Step::Read { offset, length }),
            (offset(), any::<u32>()).prop_map(|(offset, value)| Step::Sum { offset, value }),
        ],
        1..40,
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The mapping, the region and a vector agree after any steps, and refuse the same ones.
    #[test]
    fn a_mapping_is_the_region(steps in steps(), length in 1usize..9000) {
        let region = shared(length);
        let mapping = mapping(&region, true);
        let mut model = vec![0u8; length];
        let range = |offset: u64, bytes: usize| {
            let end = offset.checked_add(bytes as u64)?;
            (end <= length as u64).then_some(offset as usize..end as usize)
        };
        for step in steps {
            match step {
                Step::Write { offset, bytes, by_owner } => {
                    let result = if by_owner {
                        region.write(offset as usize, &bytes)
                    } else {
                        mapping.write_bytes(offset, &bytes)
                    };
                    match range(offset, bytes.len()) {
                        Some(range) => {
                            prop_assert_eq!(result, Ok(()));
                            model[range].copy_from_slice(&bytes);
                        }
                        None => prop_assert_eq!(result, Err(Fault::OutOfBounds)),
                    }
                }
                Step::Read { offset, length } => {
                    let mut bytes = vec![0; length];
                    let result = mapping.read_bytes(offset, &mut bytes);
                    match range(offset, length) {
                        Some(range) => {
                            prop_assert_eq!(result, Ok(()));
                            prop_assert_eq!(&bytes, &model[range]);
                        }
                        None => prop_assert_eq!(result, Err(Fault::OutOfBounds)),
                    }
                }
                Step::Sum { offset, value } => {
                    let call = AtomicCall::new(Op::Sum, Datatype::Uint32, 1);
                    let result = mapping.atomic(offset, call, &value.to_le_bytes(), &[], &mut []);
                    match range(offset, 4) {
                        None => prop_assert_eq!(result, Err(Fault::OutOfBounds)),
                        Some(_) if !offset.is_multiple_of(4) => prop_assert_eq!(result, Err(Fault::Misaligned)),
                        Some(range) => {
                            prop_assert_eq!(result, Ok(()));
                            let old = u32::from_le_bytes(model[range.clone()].try_into().unwrap());
                            model[range].copy_from_slice(&old.wrapping_add(value).to_le_bytes());
                        }
                    }
                }
            }
        }
        prop_assert_eq!(region.to_vec(0, length).unwrap(), model);
    }
}
