use std::sync::Arc;

use proptest::prelude::*;
use weft_core::atomic::{AtomicCall, AtomicOperation as Op, Datatype, apply};
use weft_core::memory::{Access, Fault, Granted, LocalKey, Memory};

use crate::device::{Kind, Place};
use crate::limits::{INJECT_MAX_BYTES, INJECTED_MAX_BYTES, LOCAL_BUFFERS_MAX, REGIONS_MAX};
use crate::{Addressing, AttachError, Buffer, HostMemory, Lent, MemoryRegion, RegisterError, Segment, crc32c};

fn pages(length: usize) -> MemoryRegion {
    MemoryRegion::alloc_zeroed(length).unwrap()
}

/// Reads a whole local range, piece by piece, as the engine does.
fn read_local(memory: &HostMemory, key: LocalKey, offset: u64, length: u64) -> Result<Vec<u8>, Fault> {
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < length {
        let done = bytes.len() as u64;
        let piece = memory.local(key, offset + done, length - done)?;
        assert!(piece.length > 0, "a piece has at least one byte");
        let mut part = vec![0; piece.length as usize];
        memory.read(piece, &mut part)?;
        bytes.extend(part);
    }
    Ok(bytes)
}

fn write_local(memory: &mut HostMemory, key: LocalKey, offset: u64, bytes: &[u8]) -> Result<(), Fault> {
    let mut done = 0;
    while done < bytes.len() {
        let piece = memory.local(key, offset + done as u64, (bytes.len() - done) as u64)?;
        let end = done + piece.length as usize;
        memory.write(piece, &bytes[done..end])?;
        done = end;
    }
    Ok(())
}

#[test]
fn a_vector_comes_back_without_a_copy() {
    let mut memory = HostMemory::new();
    let vec = vec![1u8, 2, 3];
    let place = vec.as_ptr();
    let key = memory.attach(vec.into()).unwrap();
    write_local(&mut memory, key, 1, &[9]).unwrap();
    let vec = memory.take(key).unwrap().into_vec().unwrap();
    assert_eq!((vec.as_ptr(), vec.as_slice()), (place, &[1, 9, 3][..]));
    let boxed: Box<[u8]> = vec![5; 7].into();
    let place = boxed.as_ptr();
    let key = memory.attach(boxed.into()).unwrap();
    let boxed = memory.take(key).unwrap().into_boxed_slice().unwrap();
    assert_eq!(boxed.as_ptr(), place);
    let shared: Arc<[u8]> = vec![1, 2].into();
    let key = memory.attach(shared.clone().into()).unwrap();
    assert!(Arc::ptr_eq(&memory.take(key).unwrap().into_shared().unwrap(), &shared));
}

#[test]
fn lent_memory_ends_when_it_is_filled() {
    let mut memory = HostMemory::new();
    let mut bytes = [0u8; 8];
    // SAFETY: the bytes outlive the memory, and nobody else touches them meanwhile.
    let lent = unsafe { Lent::from_raw(bytes.as_mut_ptr(), 8) };
    assert_eq!(memory.attach_lent(lent), None, "there is no slot yet");
    let first = memory.attach(lent.into()).unwrap();
    memory.release(first);
    let key = memory.attach_lent(lent).unwrap();
    for (offset, part) in [(4, &b"12345"[..]), (9, b""), (u64::MAX, b"1")] {
        assert_eq!(memory.fill_at_last(key, offset, Segment::from_slice(part)), None);
    }
    assert_eq!(memory.local_length(key), Some(8));
    assert_eq!(memory.fill_at_last(key, 4, Segment::from_slice(b"1234")), Some(LocalKey::NONE));
    assert_eq!((memory.local_length(key), memory.fill_at_last(key, 0, Segment::from_slice(b"x"))), (None, None));
    // The slot is used again, and a buffer that somebody wants back stays.
    assert_ne!(memory.attach_lent(lent).unwrap(), key);
    let kept = memory.attach(vec![0; 4].into()).unwrap();
    assert_eq!(memory.fill_at_last(kept, 0, Segment::from_slice(b"kept")), Some(kept));
    assert_eq!(memory.take(kept).unwrap().into_vec().unwrap(), b"kept");
    drop(memory);
    assert_eq!(&bytes, b"\0\0\0\x001234");
}

#[test]
fn stale_local_keys_are_refused() {
    let mut memory = HostMemory::new();
    let first = memory.attach(vec![1; 4].into()).unwrap();
    let granted = memory.local(first, 0, 4).unwrap();
    assert!(memory.take(first).is_some());
    let second = memory.attach(vec![2; 4].into()).unwrap();
    assert_ne!(first, second, "the slot is used again, under another generation");
    assert!(memory.take(first).is_none());
    assert_eq!(memory.local(first, 0, 1), Err(Fault::UnknownKey));
    assert_eq!(memory.local_length(first), None);
    assert_eq!(memory.read(granted, &mut [0; 4]), Err(Fault::UnknownKey));
    assert_eq!(memory.write(granted, &[0; 4]), Err(Fault::UnknownKey));
    memory.release(first);
    assert_eq!(memory.local_length(second), Some(4));
    assert_eq!(memory.local_length(LocalKey::NONE), None);
    assert_eq!(memory.local(LocalKey::NONE, 0, 0), Err(Fault::UnknownKey));
}

#[test]
fn what_is_read_only_is_never_written() {
    let mut memory = HostMemory::new();
    let shared: Arc<[u8]> = vec![7; 4].into();
    let parts = vec![Buffer::from(vec![0; 4]), Buffer::from(shared.clone())];
    for buffer in [shared.into(), Buffer::from(&b"text"[..]), Buffer::inline(b"copy"), parts.into()] {
        assert!(!buffer.is_writable());
        let key = memory.attach(buffer).unwrap();
        assert_eq!(memory.is_writable(key), Some(false));
        let granted = memory.local(key, 0, 4).unwrap();
        assert_eq!(memory.write(granted, &[0; 4]), Err(Fault::Forbidden));
        let call = AtomicCall::new(Op::Write, Datatype::Uint8, 4);
        assert_eq!(memory.atomic(granted, call, &[0; 4], &[], &mut []), Err(Fault::Forbidden));
        assert!(memory.read(granted, &mut [0; 4]).is_ok());
        memory.release(key);
    }
    // SAFETY: a static of four bytes, only read.
    let region = unsafe { MemoryRegion::from_raw_read_only(b"text".as_ptr(), 4) };
    assert_eq!(region.write(0, b"x"), Err(Fault::Forbidden));
    assert_eq!(region.store_u8(0, 1), Err(Fault::Forbidden));
    for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC, Access::REMOTE] {
        assert_eq!(memory.register(&region, access, Addressing::Offset), Err(RegisterError::ReadOnly));
    }
    assert!(memory.register(&region, Access::REMOTE_READ, Addressing::Offset).is_ok());
}

#[test]
fn copies_are_pooled_and_bounded() {
    let mut memory = HostMemory::new();
    let key = memory.attach_inline(b"hello").unwrap();
    assert_eq!(read_local(&memory, key, 0, 5).unwrap(), b"hello");
    let place = memory.segment(memory.local(key, 0, 5).unwrap()).unwrap();
    let place = Segment::iovecs(&[place])[0].iov_base;
    memory.release(key);
    let key = memory.attach_inline(b"world!").unwrap();
    let again = memory.segment(memory.local(key, 0, 6).unwrap()).unwrap();
    assert_eq!(Segment::iovecs(&[again])[0].iov_base, place, "the memory of the first copy is used again");
    assert_eq!(read_local(&memory, key, 0, 6).unwrap(), b"world!");
    assert!(memory.attach_inline(&[0; INJECT_MAX_BYTES]).is_ok());
    let error = memory.attach_inline(&[0; INJECT_MAX_BYTES + 1]).unwrap_err();
    assert!(matches!(error, AttachError::TooLong { length } if length == INJECT_MAX_BYTES + 1));
}

#[test]
fn copies_under_way_have_a_limit_in_bytes() {
    let mut memory = HostMemory::new();
    let keys: Vec<_> = (0..INJECTED_MAX_BYTES / INJECT_MAX_BYTES)
        .map(|_| memory.attach_inline(&[7; INJECT_MAX_BYTES]).unwrap())
        .collect();
    assert!(matches!(memory.attach_inline(&[1]).unwrap_err(), AttachError::TooManyCopies));
    // Buffers that are no copies do not count, nor does it matter how a copy ends.
    let key = memory.attach(vec![0; INJECT_MAX_BYTES].into()).unwrap();
    drop(memory.take(key));
    assert!(matches!(memory.attach_inline(&[1]).unwrap_err(), AttachError::TooManyCopies));
    memory.release(keys[0]);
    drop(memory.take(keys[1]));
    assert!(memory.attach_inline(&[1; INJECT_MAX_BYTES]).is_ok());
    assert!(memory.attach_inline(&[1; INJECT_MAX_BYTES]).is_ok());
    assert!(matches!(memory.attach_inline(&[1]).unwrap_err(), AttachError::TooManyCopies));
}

#[test]
fn a_list_is_addressed_across_its_pieces() {
    let mut memory = HostMemory::new();
    let region = pages(16);
    let inner = Buffer::from(vec![Buffer::from(vec![3, 4]), Buffer::from(Vec::<u8>::new()), Buffer::from(vec![5])]);
    let part = Buffer::from_region(&region, 4, 3).unwrap();
    let list = Buffer::from(vec![Buffer::from(vec![0, 1, 2]), inner, part]);
    assert_eq!((list.len(), list.is_writable()), (9, true));
    let mut bytes = [0; 4];
    list.read(2, &mut bytes).unwrap();
    assert_eq!(bytes, [2, 3, 4, 5]);
    assert_eq!(list.read(6, &mut bytes), Err(Fault::OutOfBounds));
    let key = memory.attach(list).unwrap();
    assert_eq!(memory.local(key, 1, 8).unwrap().length, 2, "up to the end of the first piece");
    assert_eq!(memory.local(key, 3, 6).unwrap().length, 2);
    write_local(&mut memory, key, 2, &[20, 30, 40, 50, 60, 70]).unwrap();
    assert_eq!(read_local(&memory, key, 0, 9).unwrap(), [0, 1, 20, 30, 40, 50, 60, 70, 0]);
    assert_eq!(region.to_vec(0, 8).unwrap(), [0, 0, 0, 0, 60, 70, 0, 0]);
    // A piece that somebody made longer than it is reaches nothing.
    let forged = Granted { length: 4, ..memory.local(key, 1, 8).unwrap() };
    assert_eq!(memory.read(forged, &mut [0; 4]), Err(Fault::OutOfBounds));
    let buffers = memory.take(key).unwrap().into_list().unwrap();
    assert_eq!(buffers.len(), 3);
    let first = buffers.into_iter().next().unwrap().into_vec().unwrap();
    assert_eq!(first, [0, 1, 20]);
    assert!(Buffer::from_region(&region, 14, 3).is_err());
}

#[test]
fn raw_parts_are_a_list() {
    let mut memory = HostMemory::new();
    let (mut a, mut b) = ([1u8, 2], [3u8, 4, 5]);
    let parts = [(a.as_mut_ptr(), 2), (std::ptr::null_mut(), 0), (b.as_mut_ptr(), 3)];
    // SAFETY: both arrays live until the buffer is dropped, and are not looked at before.
    let key = memory.attach(unsafe { Buffer::from_raw_parts(parts, true) }).unwrap();
    write_local(&mut memory, key, 1, &[8, 9]).unwrap();
    drop(memory);
    assert_eq!((a, b), ([1, 8], [9, 4, 5]));
    let parts = |parts: &[(*mut u8, usize)]| {
        // SAFETY: as above.
        unsafe { Buffer::from_raw_parts(parts.to_vec(), false) }
    };
    let one = parts(&[(std::ptr::null_mut(), 0), (b.as_mut_ptr(), 3), (std::ptr::null_mut(), 0)]);
    assert_eq!(one.segment().unwrap().len(), 3, "one piece is no list");
    assert!(!one.is_writable());
    assert_eq!((parts(&[]).len(), parts(&[(std::ptr::null_mut(), 0)]).len()), (0, 0));
    let nested: Buffer = vec![parts(&[(a.as_mut_ptr(), 2), (b.as_mut_ptr(), 3)]), vec![7].into()].into();
    let mut bytes = [0; 6];
    nested.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [1, 8, 9, 4, 5, 7]);
}

#[test]
fn raw_parts_of_host_and_device() {
    let mut memory = HostMemory::new();
    let place = Place::new(Kind::Emulated, 0);
    let device = MemoryRegion::alloc_device(place, 64).unwrap();
    device.write(0, &[5; 64]).unwrap();
    let mut host = [1u8; 8];
    let parts = [(Place::HOST, host.as_mut_ptr(), 8), (place, device.as_ptr().wrapping_add(8), 8)];
    // SAFETY: array and region live until the buffer is taken, and are not looked at before.
    let buffer = unsafe { Buffer::from_raw_parts_at(parts, true) };
    assert_eq!((buffer.place(), buffer.is_host(), buffer.len()), (None, false, 16));
    let key = memory.attach(buffer).unwrap();
    assert_eq!(read_local(&memory, key, 0, 16).unwrap(), [[1; 8], [5; 8]].concat());
    write_local(&mut memory, key, 6, &[9; 4]).unwrap();
    memory.settle().unwrap();
    drop(memory.take(key));
    assert_eq!((&host[5..], device.to_vec(7, 4).unwrap()), (&[1, 9, 9][..], vec![5, 9, 9, 5]));
    // SAFETY: as above.
    let buffer = unsafe { Buffer::from_raw_at(place, device.as_ptr(), 16, false) };
    assert_eq!((buffer.place(), buffer.is_writable(), buffer.segment().is_none()), (Some(place), false, true));
    let mut bytes = [0; 16];
    buffer.read(0, &mut bytes).unwrap();
    assert_eq!(bytes[8..10], [9, 9]);
}

#[test]
fn a_pair_is_one() {
    let mut memory = HostMemory::new();
    for _ in 0..3 {
        let (copy, results) = memory.attach_pair(b"sent", vec![0; 8].into()).unwrap();
        assert_eq!(read_local(&memory, copy, 0, 4).unwrap(), b"sent");
        write_local(&mut memory, results, 0, b"received").unwrap();
        assert_eq!(memory.take(copy).unwrap().into_vec().unwrap(), b"received");
        assert!(memory.take(copy).is_none() && memory.take(results).is_none());
        let (copy, results) = memory.attach_pair(b"", vec![0; 8].into()).unwrap();
        memory.release(copy);
        assert_eq!((memory.local_length(copy), memory.local_length(results)), (None, None));
        // What has the slot next is nobody's other half.
        let alone = memory.attach(vec![3].into()).unwrap();
        assert_eq!(memory.take(alone).unwrap().into_vec().unwrap(), [3]);
    }
    assert!(memory.attach_pair(&[0; INJECT_MAX_BYTES + 1], vec![0; 8].into()).is_err());
}

#[test]
fn bounds_of_local_buffers() {
    let mut memory = HostMemory::new();
    let key = memory.attach(vec![0; 10].into()).unwrap();
    for (offset, length) in [(0, 11), (10, 1), (11, 0), (u64::MAX, 1), (1, u64::MAX)] {
        assert_eq!(memory.local(key, offset, length), Err(Fault::OutOfBounds), "{offset} {length}");
    }
    let end = memory.local(key, 10, 0).unwrap();
    assert!(memory.read(end, &mut []).is_ok());
    let granted = memory.local(key, 4, 4).unwrap();
    assert_eq!(memory.read(granted, &mut [0; 3]), Err(Fault::OutOfBounds));
    for forged in [
        Granted { offset: 8, ..granted },
        Granted { offset: u64::MAX - 1, ..granted },
        Granted { length: u64::MAX, ..granted },
        Granted { slot: 77, ..granted },
        Granted { slot: granted.slot | 1 << 31, ..granted },
        Granted { generation: 5, ..granted },
    ] {
        assert!(memory.segment(forged).is_err(), "{forged:?}");
        assert!(memory.crc32c(0, forged).is_err(), "{forged:?}");
        assert!(memory.flush(forged, false).is_err(), "{forged:?}");
    }
}

#[test]
fn peers_reach_what_was_registered_and_nothing_else() {
    let mut memory = HostMemory::new();
    let area = pages(4096);
    for addressing in [Addressing::Virtual, Addressing::Offset, Addressing::At(u64::MAX - 4096)] {
        let region = memory.register(&area, Access::REMOTE, addressing).unwrap();
        let (key, base) = (region.key, region.address);
        let granted = memory.remote(key, base + 100, 200, Access::REMOTE_WRITE).unwrap();
        memory.write(granted, &[7; 200]).unwrap();
        assert_eq!(area.to_vec(99, 2).unwrap(), [0, 7]);
        assert_eq!(memory.crc32c(0, granted).unwrap(), crc32c(0, &[7; 200]));
        assert!(memory.remote(key, base, 4096, Access::REMOTE_READ).is_ok());
        assert!(memory.remote(key, base + 4096, 0, Access::REMOTE_READ).is_ok());
        for (address, length) in [
            (base, 4097),
            (base.wrapping_sub(1), 2),
            (base + 4096, 1),
            (base + 1, u64::MAX),
            (u64::MAX, 2),
            (base.wrapping_sub(10), u64::MAX),
        ] {
            let result = memory.remote(key, address, length, Access::REMOTE_READ);
            assert_eq!(result, Err(Fault::OutOfBounds), "{address:#x} {length}");
        }
        for other in [0, 1, u64::MAX, key ^ 1, key ^ 1 << 63, key.wrapping_add(1)] {
            assert_eq!(memory.remote(other, base, 1, Access::REMOTE_READ), Err(Fault::UnknownKey));
        }
        area.write(0, &[0; 4096]).unwrap();
    }
    assert_eq!(memory.regions(), 3);
    let wraps = memory.register(&area, Access::REMOTE, Addressing::At(u64::MAX - 4094));
    assert_eq!(wraps, Err(RegisterError::Wraps));
}

#[test]
fn regions_reach_up_to_the_last_address() {
    let mut memory = HostMemory::new();
    let area = pages(4096);
    let base = u64::MAX - 4095;
    let key = memory.register(&area, Access::REMOTE, Addressing::At(base)).unwrap().key;
    let last = memory.remote(key, u64::MAX, 1, Access::REMOTE_WRITE).unwrap();
    memory.write(last, &[9]).unwrap();
    assert_eq!(area.load_u8(4095), Ok(9));
    assert!(memory.remote(key, base, 4096, Access::REMOTE_READ).is_ok());
    for (address, length) in [(u64::MAX, 2), (base, 4097), (0, 0), (0, 1), (base - 1, 1)] {
        assert_eq!(memory.remote(key, address, length, Access::REMOTE_READ), Err(Fault::OutOfBounds), "{address:#x}");
    }
    // What has no bytes can be anywhere, and has no bytes.
    for base in [0, 77, u64::MAX] {
        let key = memory.register(&pages(0), Access::REMOTE, Addressing::At(base)).unwrap().key;
        assert_eq!(memory.remote(key, base, 0, Access::REMOTE_WRITE).unwrap().length, 0);
        assert_eq!(memory.remote(key, base, 1, Access::REMOTE_WRITE), Err(Fault::OutOfBounds));
    }
    // SAFETY: no bytes.
    let nothing = unsafe { MemoryRegion::from_raw(std::ptr::null_mut(), 0) };
    let region = memory.register(&nothing, Access::REMOTE, Addressing::Virtual).unwrap();
    assert_eq!((region.address, region.length), (0, 0));
    let granted = memory.remote(region.key, 0, 0, Access::REMOTE_READ).unwrap();
    assert_eq!(memory.read(granted, &mut []), Ok(()));
    assert_eq!(memory.crc32c(0, granted), Ok(0));
    assert_eq!(memory.segment(granted).unwrap().len(), 0);
    let granted = memory.remote(region.key, 0, 0, Access::REMOTE_WRITE).unwrap();
    assert_eq!(memory.write(granted, &[]), Ok(()));
}

#[test]
fn chosen_keys_live_beside_drawn_ones() {
    let mut memory = HostMemory::new();
    let (first, second) = (pages(64), pages(64));
    let drawn: Vec<u64> =
        (0..50).map(|_| memory.register(&first, Access::REMOTE, Addressing::Offset).unwrap().key).collect();
    let chosen = [0, 1, 2, u64::MAX, 1 << 63, 0xdead_beef];
    for (index, &key) in chosen.iter().enumerate() {
        let base = Addressing::At(index as u64);
        assert_eq!(memory.register_as(key, &second, Access::REMOTE, base).unwrap().key, key);
    }
    for &key in chosen.iter().chain(&drawn) {
        assert_eq!(memory.register_as(key, &second, Access::REMOTE, Addressing::Offset), Err(RegisterError::KeyInUse));
    }
    assert_eq!(memory.regions(), 56, "nothing is left of those that were refused");
    for (index, &key) in chosen.iter().enumerate() {
        let granted = memory.remote(key, index as u64, 64, Access::REMOTE_WRITE).unwrap();
        memory.write(granted, &[index as u8; 64]).unwrap();
        assert_eq!(second.load_u8(63), Ok(index as u8));
        assert!(memory.remote(key, index as u64, 65, Access::REMOTE_WRITE).is_err());
    }
    for &key in &drawn {
        assert!(memory.remote(key, 0, 64, Access::REMOTE_READ).is_ok());
    }
    // One that is ended is unknown, and can be chosen again; a drawn one can be too once it is free.
    let granted = memory.remote(2, 2, 64, Access::REMOTE_READ).unwrap();
    for key in [2, drawn[7]] {
        memory.deregister(key).unwrap();
        assert_eq!(memory.remote(key, 2, 1, Access::REMOTE_READ), Err(Fault::UnknownKey));
        assert_eq!(memory.deregister(key), Err(Fault::UnknownKey));
        assert!(memory.register_as(key, &first, Access::REMOTE, Addressing::Offset).is_ok());
        assert!(memory.remote(key, 0, 64, Access::REMOTE_READ).is_ok());
    }
    assert_eq!(memory.read(granted, &mut [0; 64]), Err(Fault::UnknownKey), "the key means another registration now");
}

#[test]
fn an_old_registration_does_not_end_the_new_one_of_its_key() {
    let mut memory = HostMemory::new();
    let area = pages(64);
    let access = Access::REMOTE | Access::REMOTE_INVALIDATE;
    let old = memory.register_as(5, &area, access, Addressing::Offset).unwrap();
    memory.invalidate(5).unwrap();
    let new = memory.register_as(5, &area, access, Addressing::Offset).unwrap();
    assert_eq!(memory.end(&old), Err(Fault::UnknownKey));
    assert!(memory.remote(5, 0, 64, Access::REMOTE_READ).is_ok());
    assert_eq!(memory.end(&new), Ok(()));
    assert_eq!(memory.regions(), 0);
}

#[test]
fn rights_are_those_of_the_registration() {
    let mut memory = HostMemory::new();
    let area = pages(64);
    let rights = [Access::REMOTE_READ, Access::REMOTE_WRITE, Access::REMOTE_ATOMIC];
    for given in rights {
        let region = memory.register(&area, given, Addressing::Offset).unwrap();
        for wanted in rights {
            let granted = memory.remote(region.key, 0, 8, wanted);
            assert_eq!(granted.is_ok(), given == wanted);
            assert!(given == wanted || granted == Err(Fault::Forbidden));
        }
        let granted = memory.remote(region.key, 0, 8, given).unwrap();
        let call = AtomicCall::new(Op::Sum, Datatype::Uint64, 1);
        assert_eq!(memory.read(granted, &mut [0; 8]).is_ok(), given == Access::REMOTE_READ);
        assert_eq!(memory.segment(granted).is_ok(), given == Access::REMOTE_READ);
        assert_eq!(memory.write(granted, &[0; 8]).is_ok(), given == Access::REMOTE_WRITE);
        assert_eq!(memory.atomic(granted, call, &[0; 8], &[], &mut []).is_ok(), given == Access::REMOTE_ATOMIC);
        assert_eq!(memory.invalidate(region.key), Err(Fault::Forbidden));
        assert_eq!(memory.flush(granted, true), Err(Fault::NotSupported));
        assert_eq!(memory.flush(granted, false), Ok(()));
    }
    let access = Access::REMOTE | Access::REMOTE_INVALIDATE;
    let region = memory.register(&area, access, Addressing::Offset).unwrap();
    assert_eq!(memory.invalidate(region.key), Ok(()));
    assert_eq!(memory.remote(region.key, 0, 1, Access::REMOTE_READ), Err(Fault::UnknownKey));
    assert_eq!(memory.invalidate(region.key), Err(Fault::UnknownKey));
    assert_eq!(memory.deregister(region.key), Err(Fault::UnknownKey));
}

#[test]
fn a_deregistered_key_stays_dead_while_its_slot_is_used_again() {
    let mut memory = HostMemory::new();
    let area = pages(64);
    let mut dead = Vec::new();
    for _ in 0..300 {
        let region = memory.register(&area, Access::REMOTE, Addressing::Offset).unwrap();
        let granted = memory.remote(region.key, 0, 64, Access::REMOTE_READ).unwrap();
        memory.deregister(region.key).unwrap();
        assert_eq!(memory.read(granted, &mut [0; 64]), Err(Fault::UnknownKey));
        dead.push((region.key, granted));
        let fresh = memory.register(&area, Access::REMOTE, Addressing::Offset).unwrap();
        for (key, granted) in &dead {
            assert_eq!(memory.remote(*key, 0, 1, Access::REMOTE_READ), Err(Fault::UnknownKey));
            assert!(memory.read(*granted, &mut [0; 64]).is_err());
            assert_eq!(memory.deregister(*key), Err(Fault::UnknownKey));
        }
        memory.deregister(fresh.key).unwrap();
    }
    assert_eq!(memory.regions(), 0);
    dead.sort_by_key(|(key, _)| *key);
    dead.dedup_by_key(|(key, _)| *key);
    assert_eq!(dead.len(), 300);
}

#[test]
fn keys_of_many_regions_are_found_and_look_random() {
    let mut memory = HostMemory::new();
    let area = pages(8);
    let keys: Vec<u64> =
        (0..2000).map(|i| memory.register(&area, Access::REMOTE, Addressing::At(i)).unwrap().key).collect();
    for (i, key) in keys.iter().enumerate() {
        assert!(memory.remote(*key, i as u64, 8, Access::REMOTE_READ).is_ok());
    }
    // Of the upper 40 bits, each must be set in about half of the keys (1000 ± 22; eight sigmas are allowed).
    for bit in 24..64 {
        let set = keys.iter().filter(|key| *key >> bit & 1 == 1).count();
        assert!((820..1180).contains(&set), "bit {bit}: {set}");
    }
    keys.iter().for_each(|key| memory.deregister(*key).unwrap());
}

#[test]
fn memory_lives_as_long_as_its_registration_and_comes_back() {
    let mut memory = HostMemory::new();
    let area = MemoryRegion::from_vec(vec![5; 100]);
    let region = memory.register(&area, Access::REMOTE, Addressing::Offset).unwrap();
    let area = area.into_vec().unwrap_err();
    drop(area.clone());
    assert_eq!(area.load_u8(3), Ok(5));
    memory.deregister(region.key).unwrap();
    assert_eq!(area.into_vec().unwrap(), vec![5; 100]);
    let area = pages(10);
    let region = memory.register(&area, Access::REMOTE, Addressing::Offset).unwrap();
    drop(area);
    let granted = memory.remote(region.key, 0, 10, Access::REMOTE_READ).unwrap();
    assert_eq!(memory.segment(granted).unwrap().len(), 10);
    assert!(pages(0).into_vec().is_err());
}

#[test]
fn handles_check_bounds_and_alignment() {
    let area = pages(16);
    assert_eq!(area.as_ptr() as usize % 4096, 0);
    area.store_u32(4, 0x0403_0201).unwrap();
    assert_eq!(area.load_u32(4), Ok(0x0403_0201));
    assert_eq!(area.load_u16(6), Ok(u16::from_ne_bytes(area.to_vec(6, 2).unwrap().try_into().unwrap())));
    assert_eq!(area.load_u64(4), Err(Fault::Misaligned));
    assert_eq!(area.load_u64(16), Err(Fault::OutOfBounds));
    assert_eq!(area.store_u64(usize::MAX - 7, 0), Err(Fault::OutOfBounds));
    assert_eq!(area.read(15, &mut [0; 2]), Err(Fault::OutOfBounds));
    assert_eq!(area.write(17, &[]), Err(Fault::OutOfBounds));
    assert!(area.to_vec(0, usize::MAX).is_err());
}

#[test]
fn too_many_are_refused_and_nothing_is_lost() {
    let mut memory = HostMemory::new();
    let keys: Vec<LocalKey> = (0..LOCAL_BUFFERS_MAX).map(|_| memory.attach(Buffer::from(&b""[..])).unwrap()).collect();
    assert!(!keys.contains(&LocalKey::NONE));
    let Err(AttachError::TooMany(buffer)) = memory.attach(vec![5].into()) else { panic!("one too many") };
    memory.take(keys[77]).unwrap();
    let key = memory.attach(buffer).unwrap();
    assert_eq!(read_local(&memory, key, 0, 1).unwrap(), [5]);

    let area = pages(8);
    let register = |memory: &mut HostMemory| memory.register(&area, Access::REMOTE, Addressing::Offset);
    let regions: Vec<u64> = (0..REGIONS_MAX).map(|_| register(&mut memory).unwrap().key).collect();
    assert_eq!(register(&mut memory), Err(RegisterError::TooMany));
    memory.deregister(regions[5]).unwrap();
    assert!(register(&mut memory).is_ok());
    assert_eq!(memory.remote(regions[5], 0, 1, Access::REMOTE_READ), Err(Fault::UnknownKey));
    assert!(memory.remote(regions[6], 0, 1, Access::REMOTE_READ).is_ok());
}

#[test]
fn memory_can_go_to_other_threads() {
    fn check<T: Send + Sync>() {}
    check::<HostMemory>();
    check::<Buffer>();
    check::<MemoryRegion>();
}

#[test]
fn segments_name_the_memory_itself() {
    let mut memory = HostMemory::new();
    let key = memory.attach(vec![1, 2, 3].into()).unwrap();
    let head = [9u8; 2];
    let segments = [Segment::from_slice(&head), memory.segment(memory.local(key, 1, 2).unwrap()).unwrap()];
    let iovecs = Segment::iovecs(&segments);
    assert_eq!((iovecs[0].iov_len, iovecs[1].iov_len), (2, 2));
    assert_eq!(iovecs[0].iov_base.cast_const().cast(), head.as_ptr());
    assert!(!segments[1].is_empty());
    // SAFETY: the memory is borrowed by the segment; the first byte was attached above.
    assert_eq!(unsafe { *iovecs[1].iov_base.cast::<u8>() }, 2);
}

#[test]
fn atomics_check_lengths_alignment_and_what_exists() {
    let mut memory = HostMemory::new();
    let area = pages(64);
    let region = memory.register(&area, Access::REMOTE, Addressing::Offset).unwrap();
    let granted = |memory: &HostMemory, address, length| {
        memory.remote(region.key, address, length, Access::REMOTE_ATOMIC).unwrap()
    };
    let sum = |count| AtomicCall::new(Op::Sum, Datatype::Uint32, count);
    let misaligned = granted(&memory, 2, 4);
    assert_eq!(memory.atomic(misaligned, sum(1), &[0; 4], &[], &mut []), Err(Fault::Misaligned));
    let place = granted(&memory, 8, 8);
    for (count, operands, results) in [(1, 4, 0), (2, 4, 0), (2, 8, 4), (0, 0, 0), (3, 12, 0)] {
        let result = memory.atomic(place, sum(count), &vec![0; operands], &[], &mut vec![0; results]);
        assert_eq!(result, Err(Fault::OutOfBounds), "{count} {operands} {results}");
    }
    let mut results = [0xEE; 8];
    memory.atomic(place, sum(2), &[1, 0, 0, 0, 2, 0, 0, 0], &[], &mut results).unwrap();
    memory.atomic(place, sum(2), &[255, 0, 0, 0, 2, 0, 0, 0], &[], &mut results).unwrap();
    assert_eq!(results, [1, 0, 0, 0, 2, 0, 0, 0]);
    memory.atomic(place, AtomicCall::new(Op::Read, Datatype::Uint32, 2), &[], &[], &mut results).unwrap();
    assert_eq!(results, [0, 1, 0, 0, 4, 0, 0, 0]);
    let swap = AtomicCall::new(Op::SwapIfEqual, Datatype::Uint64, 1);
    assert_eq!(memory.atomic(place, swap, &[0; 8], &[], &mut results), Err(Fault::OutOfBounds), "no compare value");
    memory.atomic(place, swap, &[6; 8], &results.clone(), &mut results).unwrap();
    assert_eq!(area.to_vec(8, 8).unwrap(), [6; 8]);
    for call in [
        AtomicCall { operation: 0x99, datatype: 3, count: 2 },
        AtomicCall { operation: 3, datatype: 0x99, count: 2 },
        AtomicCall::new(Op::Sum, Datatype::Extended, 1),
        AtomicCall::new(Op::BitwiseAnd, Datatype::Binary64, 1),
    ] {
        assert_eq!(memory.atomic(place, call, &[0; 8], &[], &mut []), Err(Fault::NotSupported));
    }
}

/// Two nodes of this process, each with its own thread, add to the same memory, as does a handle's owner.
#[test]
fn atomics_of_two_threads_sum_up() {
    const ROUNDS: u64 = 20_000;
    let area = pages(4096);
    let datatypes: [(Datatype, u64, &[u8]); 6] = [
        (Datatype::Uint64, 0, &[1, 0, 0, 0, 0, 0, 0, 0]),
        (Datatype::Int16, 8, &[1, 0]),
        (Datatype::Uint8, 12, &[1]),
        (Datatype::Binary64, 16, &[0, 0, 0, 0, 0, 0, 0xF0, 0x3F]),
        (Datatype::Binary32, 24, &[0, 0, 0x80, 0x3F]),
        (Datatype::Uint128, 32, &[255, 255, 255, 255, 255, 255, 255, 255, 0, 0, 0, 0, 0, 0, 0, 0]),
    ];
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut memory = HostMemory::new();
                let region = memory.register(&area, Access::REMOTE, Addressing::Virtual).unwrap();
                for _ in 0..ROUNDS {
                    for (datatype, offset, one) in datatypes {
                        let (address, length) = (region.address + offset, one.len() as u64);
                        let place = memory.remote(region.key, address, length, Access::REMOTE_ATOMIC).unwrap();
                        memory.atomic(place, AtomicCall::new(Op::Sum, datatype, 1), one, &[], &mut []).unwrap();
                    }
                }
            });
        }
    });
    let element = |offset, length| area.to_vec(offset, length).unwrap();
    assert_eq!(area.load_u64(0), Ok(2 * ROUNDS));
    assert_eq!(area.load_u16(8), Ok((2 * ROUNDS) as u16));
    assert_eq!(area.load_u8(12), Ok((2 * ROUNDS) as u8));
    assert_eq!(f64::from_le_bytes(element(16, 8).try_into().unwrap()), (2 * ROUNDS) as f64);
    assert_eq!(f32::from_le_bytes(element(24, 4).try_into().unwrap()), (2 * ROUNDS) as f32);
    assert_eq!(u128::from_le_bytes(element(32, 16).try_into().unwrap()), u128::from(2 * ROUNDS) * u128::from(u64::MAX));
}

proptest! {
    /// Real memory and the arithmetic on values agree, for every operation on every datatype.
    #[test]
    fn atomics_on_memory_are_those_of_the_engine(
        operation in prop::sample::select(Op::ALL),
        datatype in prop::sample::select(Datatype::ALL),
        old: [u8; 16], operand: [u8; 16], compare: [u8; 16], same: bool,
    ) {
        let compare = if same { old } else { compare };
        let bytes = datatype.bytes();
        prop_assume!(bytes <= 16);
        let count = 16 / bytes;
        let (mut memory, area) = (HostMemory::new(), pages(16));
        area.write(0, &old).unwrap();
        let region = memory.register(&area, Access::REMOTE, Addressing::Offset).unwrap();
        let place = memory.remote(region.key, 0, 16, Access::REMOTE_ATOMIC).unwrap();
        let mut results = [0; 16];
        let call = AtomicCall::new(operation, datatype, count as u16);
        let outcome = memory.atomic(place, call, &operand, &compare, &mut results);
        prop_assert_eq!(outcome.is_ok(), operation.is_done_on(datatype));
        if outcome.is_ok() {
            prop_assert_eq!(results, old);
            let mut expected = [0; 16];
            for i in (0..16).step_by(bytes) {
                let one = i..i + bytes;
                apply(operation, datatype, &old[one.clone()], &operand[one.clone()], &compare[one.clone()],
                    &mut expected[one]).unwrap();
            }
            prop_assert_eq!(area.to_vec(0, 16).unwrap(), expected);
        } else {
            prop_assert_eq!(area.to_vec(0, 16).unwrap(), old);
        }
    }

    /// A list behaves as the concatenation of its pieces, whatever is written where.
    #[test]
    fn lists_are_their_concatenation(
        lengths in prop::collection::vec(0usize..40, 0..8),
        writes in prop::collection::vec((0usize..200, 0usize..60, any::<u8>()), 0..10),
    ) {
        let mut memory = HostMemory::new();
        let pieces: Vec<Buffer> = lengths.iter().map(|length| vec![0; *length].into()).collect();
        let key = memory.attach(pieces.into()).unwrap();
        let mut model = vec![0; lengths.iter().sum()];
        for (offset, length, byte) in writes {
            let outcome = write_local(&mut memory, key, offset as u64, &vec![byte; length]);
            match model.get_mut(offset..offset + length) {
                Some(range) => { range.fill(byte); prop_assert_eq!(outcome, Ok(())); }
                None => prop_assert!(length == 0 || outcome == Err(Fault::OutOfBounds)),
            }
            // What does not fit as a whole was refused as a whole.
            prop_assert_eq!(read_local(&memory, key, 0, model.len() as u64).unwrap(), model.clone());
        }
    }

    /// Whatever a made-up piece says, it reaches only what is registered: the model is one buffer of 32 bytes.
    #[test]
    fn made_up_pieces_reach_nothing_else(slot: u32, generation: u32, offset: u64, length in 0u64..64, near: bool) {
        let mut memory = HostMemory::new();
        let key = memory.attach(vec![1; 32].into()).unwrap();
        let true_one = memory.local(key, 0, 32).unwrap();
        let forged = if near {
            Granted { offset: offset % 40, length, ..true_one }
        } else {
            Granted { slot, generation, offset, length }
        };
        let inside = (forged.slot, forged.generation) == (true_one.slot, true_one.generation)
            && forged.offset.checked_add(length).is_some_and(|end| end <= 32);
        prop_assert_eq!(memory.read(forged, &mut vec![0; length as usize]).is_ok(), inside);
        prop_assert_eq!(memory.write(forged, &vec![0; length as usize]).is_ok(), inside);
    }
}
