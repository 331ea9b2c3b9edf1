use proptest::prelude::*;
use weft_core::atomic::{AtomicCall, AtomicOperation, Datatype};
use weft_core::memory::{Access, LocalKey, Memory};

use super::*;
use crate::device::emulated;
use crate::{Addressing, Buffer, HostMemory, MemoryRegion, SegmentMut, Sendable, crc32c};

const DEVICE: Place = Place::new(Kind::Emulated, 0);
const OTHER: Place = Place::new(Kind::Emulated, 1);

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 7 + i / 251) as u8).collect()
}

fn device(bytes: &[u8]) -> MemoryRegion {
    let region = MemoryRegion::alloc_device(DEVICE, bytes.len()).unwrap();
    region.write(0, bytes).unwrap();
    region
}

/// A buffer over all of a region, attached.
fn attached(memory: &mut HostMemory, region: &MemoryRegion) -> LocalKey {
    memory.attach(Buffer::from_region(region, 0, region.length()).unwrap()).unwrap()
}

#[test]
fn regions_of_a_device_are_copied_not_touched() {
    let region = MemoryRegion::alloc_device(DEVICE, 10_000).unwrap();
    assert_eq!(region.place(), DEVICE);
    assert_eq!(Place::of(region.as_ptr()), DEVICE);
    assert_eq!(Place::of(&raw const region), Place::HOST);
    let found = region.allocation().unwrap();
    assert_eq!((found.base, found.length), (region.as_ptr() as u64, 10_000));
    region.write(100, b"bytes").unwrap();
    assert_eq!(region.to_vec(100, 5).unwrap(), b"bytes");
    assert_eq!(region.load_u64(0), Err(Fault::NotSupported));
    assert_eq!(region.store_u8(0, 1), Err(Fault::NotSupported));
    assert_eq!(region.read(9_999, &mut [0; 2]), Err(Fault::OutOfBounds));
    let buffer = Buffer::from_region(&region, 100, 5).unwrap();
    assert_eq!(buffer.place(), Some(DEVICE));
    let mut read = [0; 3];
    buffer.read(2, &mut read).unwrap();
    assert_eq!(&read, b"tes");
    assert!(format!("{region:?} {buffer:?}").contains("emulated device 0"));
    // SAFETY: the region lives, and what does not fit in is refused.
    unsafe {
        let part = MemoryRegion::from_raw_anywhere(region.as_ptr().wrapping_add(100), 5, false).unwrap();
        assert_eq!((part.place(), part.is_writable()), (DEVICE, false));
        assert_eq!(part.to_vec(0, 5).unwrap(), b"bytes");
        assert!(MemoryRegion::from_device_raw(DEVICE, region.as_ptr(), 10_001, true).is_err());
        assert!(MemoryRegion::from_device_raw(OTHER, region.as_ptr(), 10, true).is_err());
    }
    assert!(MemoryRegion::alloc_device(Place::new(Kind::Emulated, 9), 10).is_err());
    assert_eq!(MemoryRegion::alloc_device(DEVICE, 0).unwrap().to_vec(0, 0).unwrap(), []);
    assert!(MemoryRegion::alloc_device(Place::HOST, 64).unwrap().load_u64(0).is_ok());
}

#[test]
fn lists_mix_places() {
    let region = device(b"on the device");
    let list =
        Buffer::from(vec![Buffer::from(b"on the host, ".to_vec()), Buffer::from_region(&region, 0, 13).unwrap()]);
    assert_eq!(list.place(), None);
    assert!(!list.is_host());
    let mut bytes = [0; 26];
    list.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"on the host, on the device");
    let mut memory = HostMemory::new();
    let key = memory.attach(list).unwrap();
    assert_eq!(memory.local_place(key), None);
    let first = memory.local(key, 0, 26).unwrap();
    let second = memory.local(key, first.length, 26 - first.length).unwrap();
    assert_eq!(memory.place(first, Access::REMOTE_READ), Ok(Place::HOST));
    assert_eq!(memory.place(second, Access::REMOTE_READ), Ok(DEVICE));
    assert!(memory.segment(first).is_ok());
    assert_eq!(memory.segment(second).err(), Some(Fault::NotSupported));
}

#[test]
fn packets_are_gathered_to_few_copies() {
    let mut memory = HostMemory::new();
    let region = MemoryRegion::alloc_device(DEVICE, 1 << 20).unwrap();
    let key = attached(&mut memory, &region);
    let bytes = pattern(1 << 20);
    for (index, packet) in bytes.chunks(1400).enumerate() {
        let to = memory.local(key, index as u64 * 1400, packet.len() as u64).unwrap();
        memory.write(to, packet).unwrap();
    }
    memory.settle().unwrap();
    assert_eq!(region.to_vec(0, 1 << 20).unwrap(), bytes);
    let counters = memory.staging_counters();
    assert_eq!((counters.in_writes, counters.in_bytes), ((1u64 << 20).div_ceil(1400), 1 << 20));
    let full = (1u64 << 20) / STAGE_IN_BYTES as u64;
    assert_eq!(counters.in_copies, full, "as many as there are buffers full of it");
    assert_eq!((counters.unpinned, counters.failures), (0, 0));
}

#[test]
fn what_was_written_is_seen_at_once_through_here() {
    let mut memory = HostMemory::new();
    let region = MemoryRegion::alloc_device(DEVICE, 4096).unwrap();
    let key = attached(&mut memory, &region);
    let peers = memory.register(&region, Access::REMOTE, Addressing::Offset).unwrap().key;
    for round in 1..20u8 {
        let to = memory.local(key, 100, 50).unwrap();
        memory.write(to, &[round; 50]).unwrap();
        let from = memory.remote(peers, 100, 50, Access::REMOTE_READ).unwrap();
        let mut read = [0; 50];
        match round % 3 {
            0 => memory.read(from, &mut read).unwrap(),
            // SAFETY: the array is there.
            1 => memory.copy_out(from, unsafe { SegmentMut::from_raw(read.as_mut_ptr(), 50) }).unwrap(),
            _ => {
                assert_eq!(memory.crc32c(0, from).unwrap(), crc32c(0, &[round; 50]));
                read = [round; 50];
            }
        }
        assert_eq!(read, [round; 50]);
    }
    // And what comes from other threads, or kernels, is seen by what comes later.
    let from = memory.remote(peers, 100, 50, Access::REMOTE_READ).unwrap();
    region.write(100, &[99; 50]).unwrap();
    memory.advance();
    assert_eq!(memory.crc32c(0, from).unwrap(), crc32c(0, &[99; 50]));
}

#[test]
fn sending_copies_each_byte_once() {
    let mut memory = HostMemory::new();
    let bytes = pattern(2 << 20);
    let region = device(&bytes);
    let key = attached(&mut memory, &region);
    let mut sent = Vec::new();
    // As the engine does: a batch is summed up, then sent.
    for batch in (0..bytes.len()).step_by(128 << 10) {
        let mut pieces = Vec::new();
        for offset in (batch..batch + (128 << 10)).step_by(1400) {
            let length = 1400.min(batch + (128 << 10) - offset);
            let piece = memory.local(key, offset as u64, length as u64).unwrap();
            assert_eq!(memory.crc32c(0, piece).unwrap(), crc32c(0, &bytes[offset..offset + length]));
            pieces.push(piece);
        }
        for piece in pieces {
            let Ok(Sendable::Host(segment)) = memory.sendable(piece) else { panic!("it is on the host") };
            let mut part = vec![0; segment.len()];
            assert!(segment.copy_to(&mut part));
            sent.extend(part);
        }
    }
    assert!(sent == bytes);
    let counters = memory.staging_counters();
    // But for pieces at the edge of what was fetched before it was clear that more follows.
    assert!((2 << 20..(2 << 20) + 8 * 1400).contains(&counters.out_bytes), "{counters:?}");
    assert!(counters.out_copies < 20, "{counters:?}");
}

#[test]
fn what_is_not_fetched_is_told_to_be_the_devices() {
    let mut memory = HostMemory::new();
    let region = device(&pattern(100));
    let key = attached(&mut memory, &region);
    let piece = memory.local(key, 10, 20).unwrap();
    let Ok(Sendable::Device(segment)) = memory.sendable(piece) else { panic!("nobody fetched it") };
    assert_eq!((segment.place(), segment.address(), segment.len()), (DEVICE, region.as_ptr() as u64 + 10, 20));
}

#[test]
fn other_processes_are_copied_from_and_to_devices() {
    use crate::attach::{Span, fetch, store};
    let pid = std::process::id().cast_signed();
    let bytes = pattern(1 << 20);
    let there = bytes.clone();
    let spans = [
        Span { address: there.as_ptr() as u64, length: 300_000 },
        Span { address: there.as_ptr() as u64 + 300_000, length: (1 << 20) - 300_000 },
    ];
    let mut memory = HostMemory::new();
    let (region, host) = (MemoryRegion::alloc_device(DEVICE, 900_000).unwrap(), MemoryRegion::from_vec(vec![0; 1000]));
    let parts = [&region, &host].map(|region| Buffer::from_region(region, 0, region.length()).unwrap());
    let key = memory.attach(Buffer::from(Vec::from(parts))).unwrap();
    let pieces = [memory.local(key, 0, 901_000).unwrap(), memory.local(key, 900_000, 1000).unwrap()];
    assert_eq!(fetch(pid, &spans, 777, &mut memory, &pieces).unwrap(), 901_000);
    memory.settle().unwrap();
    assert!(region.to_vec(0, 900_000).unwrap() == bytes[777..900_777]);
    assert!(host.to_vec(0, 1000).unwrap() == bytes[900_777..901_777]);
    // And back, to another place; a region is seen as it is at that moment.
    let peers = memory.register(&region, Access::REMOTE, Addressing::Offset).unwrap().key;
    for value in 1..5 {
        let mut back = vec![0; 900_000];
        let spans = [Span { address: back.as_mut_ptr() as u64, length: 900_000 }];
        region.write(400_000, &[value; 10]).unwrap();
        let piece = memory.remote(peers, 0, 900_000, Access::REMOTE_READ).unwrap();
        assert_eq!(store(pid, &spans, 0, &memory, &[piece]).unwrap(), 900_000);
        assert!(back == region.to_vec(0, 900_000).unwrap());
    }
    let short = [Span { address: there.as_ptr() as u64, length: 1000 }];
    assert!(fetch(pid, &short, 0, &mut memory, &pieces).is_err());
    assert!(fetch(pid, &[Span { address: 16, length: 1 << 20 }], 0, &mut memory, &pieces).is_err());
    memory.settle().unwrap();
}

#[test]
fn atomics_are_done_on_the_host() {
    let mut memory = HostMemory::new();
    let region = MemoryRegion::alloc_device(DEVICE, 64).unwrap();
    let key = memory.register(&region, Access::REMOTE, Addressing::Offset).unwrap().key;
    let call = AtomicCall { operation: AtomicOperation::Sum as u8, datatype: Datatype::Uint64 as u8, count: 2 };
    let operands: Vec<u8> = [5u64, 7].iter().flat_map(|value| value.to_le_bytes()).collect();
    for round in 0..3u64 {
        let to = memory.remote(key, 16, 16, Access::REMOTE_ATOMIC).unwrap();
        let mut results = [0; 16];
        memory.atomic(to, call, &operands, &[], &mut results).unwrap();
        assert_eq!(results[..8], (round * 5).to_le_bytes());
    }
    assert_eq!(region.to_vec(24, 8).unwrap(), 21u64.to_le_bytes());
    let odd = memory.remote(key, 17, 16, Access::REMOTE_ATOMIC).unwrap();
    assert_eq!(memory.atomic(odd, call, &operands, &[], &mut []), Err(Fault::Misaligned));
    assert_eq!(memory.staging_counters().atomics, 3);
}

#[test]
fn memory_that_is_taken_back_is_used_no_more() {
    let mut memory = HostMemory::new();
    for _ in 0..20 {
        let region = device(&pattern(1 << 20));
        let (from, to) = (attached(&mut memory, &region), MemoryRegion::alloc_device(OTHER, 1 << 20).unwrap());
        let into = attached(&mut memory, &to);
        for offset in (0..900 << 10).step_by(64 << 10) {
            let piece = memory.local(from, offset, 64 << 10).unwrap();
            memory.crc32c(0, piece).unwrap();
            let piece = memory.local(into, offset, 64 << 10).unwrap();
            memory.write(piece, &[3; 64 << 10]).unwrap();
        }
        // The copy that was started ahead must not meet freed memory, nor may what was gathered be lost.
        drop((memory.take(from), region));
        assert!(memory.take(into).is_some());
        assert_eq!(to.to_vec(0, 896 << 10).unwrap(), vec![3; 896 << 10]);
    }
    assert_eq!(memory.staging_counters().failures, 0);
    assert!(memory.settle().is_ok());
}

#[test]
fn a_device_that_fails_is_not_forgotten() {
    let mut memory = HostMemory::new();
    let operations = operations(DEVICE).unwrap();
    let address = operations.allocate(0, 4096).unwrap();
    // SAFETY: not kept, on purpose: the emulated device sees it and refuses.
    let region = unsafe { MemoryRegion::from_device_raw(DEVICE, address as *mut u8, 4096, true).unwrap() };
    let key = attached(&mut memory, &region);
    // SAFETY: as above.
    unsafe { operations.free(0, address).unwrap() };
    let to = memory.local(key, 0, 8).unwrap();
    memory.write(to, &[1; 8]).unwrap();
    assert_eq!(memory.settle(), Err(Fault::Failed));
    assert_eq!(memory.settle(), Err(Fault::Failed));
    assert!(memory.staging_counters().failures > 0);
}

#[test]
fn staging_buffers_are_pinned_and_given_back() {
    let mut pinned = Pinned::new(100_000).unwrap();
    assert!(pinned.register(Kind::Emulated).unwrap());
    let pointer = pinned.at(0);
    assert!(emulated::is_host_registered(pointer, 100_000));
    assert!(pinned.register(Kind::Emulated).unwrap(), "once is enough");
    assert!(pinned.register(Kind::Cuda).is_err() || emulated::is_host_registered(pointer, 1));
    drop(pinned);
    assert!(!emulated::is_host_registered(pointer, 100_000));
}

/// What a random program does to device memory.
#[derive(Clone, Debug)]
enum Step {
    Write { offset: usize, length: usize, value: u8 },
    Read { offset: usize, length: usize },
    Sum { offset: usize, length: usize },
    Advance,
    Settle,
}

fn step() -> impl Strategy<Value = Step> {
    let range = || (0..SIZE, 1..SIZE / 2).prop_map(|(offset, length)| (offset, length.min(SIZE - offset)));
    prop_oneof![
        (range(), any::<u8>()).prop_map(|((offset, length), value)| Step::Write { offset, length, value }),
        range().prop_map(|(offset, length)| Step::Read { offset, length }),
        range().prop_map(|(offset, length)| Step::Sum { offset, length }),
        Just(Step::Advance),
        Just(Step::Settle),
    ]
}

const SIZE: usize = 700_000;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn behaves_as_memory(steps in prop::collection::vec(step(), 1..24), local in any::<bool>(), ordered in any::<bool>()) {
        let mut memory = HostMemory::new();
        let region = MemoryRegion::alloc_device(DEVICE, SIZE).unwrap();
        let key = attached(&mut memory, &region);
        let peers = memory.register(&region, Access::REMOTE, Addressing::Offset).unwrap().key;
        let mut model = vec![0; SIZE];
        let mut cursor = 0;
        for step in steps {
            let at = |memory: &HostMemory, offset: usize, length: usize, access| match local {
                true => memory.local(key, offset as u64, length as u64).unwrap(),
                false => memory.remote(peers, offset as u64, length as u64, access).unwrap(),
            };
            match step {
                Step::Write { offset, length, value } => {
                    for (index, packet) in model[offset..offset + length].chunks_mut(60_000).enumerate() {
                        packet.fill(value.wrapping_add(index as u8));
                        let to = at(&memory, offset + index * 60_000, packet.len(), Access::REMOTE_WRITE);
                        memory.write(to, packet).unwrap();
                    }
                }
                Step::Read { offset, length } => {
                    let from = at(&memory, offset, length, Access::REMOTE_READ);
                    let mut read = vec![0xee; length];
                    memory.read(from, &mut read).unwrap();
                    prop_assert!(read == model[offset..offset + length]);
                }
                Step::Sum { offset, length } => {
                    // In order where it can be, so that the window is used.
                    let offset = if ordered && cursor + length <= SIZE { cursor } else { offset };
                    cursor = offset + length;
                    let mut done = 0;
                    while done < length {
                        let part = 9000.min(length - done);
                        let from = at(&memory, offset + done, part, Access::REMOTE_READ);
                        let range = offset + done..offset + done + part;
                        prop_assert_eq!(memory.crc32c(1, from).unwrap(), crc32c(1, &model[range]));
                        done += part;
                    }
                }
                Step::Advance => memory.advance(),
                Step::Settle => memory.settle().unwrap(),
            }
        }
        memory.settle().unwrap();
        prop_assert!(region.to_vec(0, SIZE).unwrap() == model);
    }
}
