//! Remote writes and reads.

use weft::{Access, Addressing, CompletionKind, Error, Failure, Level, Options, RegisterError, Registrable};

use crate::support::{LENGTHS, World, pattern};

const SIZE: usize = (1 << 20) + 4096;

pub(crate) fn writes_of_every_length(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let memory = b.register(SIZE, Access::REMOTE_WRITE).unwrap();
    for (seed, &length) in LENGTHS.iter().enumerate() {
        let offset = seed * 100;
        memory.write(0, &vec![0; SIZE]).unwrap();
        let bytes = pattern(seed as u64, length);
        let context = a.endpoint.write(to_b, memory.remote().at(offset as u64), a.buffer(bytes.clone())).unwrap();
        let done = world.good(&a);
        assert_eq!((done.context, done.kind, done.length), (context, CompletionKind::Write, length as u64));
        let all = memory.to_vec(0, SIZE).unwrap();
        assert!(all[offset..offset + length] == bytes, "{length} bytes");
        assert!(all[..offset].iter().chain(&all[offset + length..]).all(|byte| *byte == 0), "nothing beside them");
        assert!(b.queue.read().unwrap().is_none(), "the target's program takes no part");
    }
}

pub(crate) fn reads_of_every_length(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let bytes = pattern(5, SIZE);
    let memory = b.register(bytes.clone(), Access::REMOTE_READ).unwrap();
    for (seed, &length) in LENGTHS.iter().enumerate() {
        let offset = seed * 100;
        let context = a.endpoint.read(to_b, memory.remote().at(offset as u64), a.buffer(vec![0xee; length])).unwrap();
        let done = world.good(&a);
        assert_eq!((done.context, done.kind, done.length), (context, CompletionKind::Read, length as u64));
        assert!(done.into_bytes().unwrap() == bytes[offset..offset + length], "{length} bytes");
        assert!(b.queue.read().unwrap().is_none());
    }
}

pub(crate) fn immediate_data_follows_the_bytes(world: &World) {
    let (a, b, to_b, to_a) = world.pair();
    let memory = b.register(SIZE, Access::REMOTE_WRITE).unwrap();
    for (seed, length) in [0, 1, 1000, 5000, 300_000, 1 << 20].into_iter().enumerate() {
        let bytes = pattern(seed as u64, length);
        let options = Options { immediate: Some(seed as u64 | 1 << 63), ..Default::default() };
        a.endpoint.write_with(to_b, memory.remote(), a.buffer(bytes.clone()), options).unwrap();
        let told = world.good(&b);
        assert_eq!((told.kind, told.length), (CompletionKind::RemoteWrite, length as u64));
        assert_eq!((told.immediate, told.peer), (Some(seed as u64 | 1 << 63), Some(to_a)));
        assert!(memory.to_vec(0, length).unwrap() == bytes, "all bytes are there by then");
        world.good(&a);
    }
}

pub(crate) fn injected_writes(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let memory = b.register(4096, Access::REMOTE_WRITE).unwrap();
    for index in 0..32u8 {
        a.endpoint.inject_write(to_b, memory.remote().at(u64::from(index) * 64), &[index + 1; 64]).unwrap();
    }
    world.until("all bytes", || (memory.to_vec(0, 2048).unwrap().iter().all(|byte| *byte != 0)).then_some(()));
    for index in 0..32u8 {
        assert_eq!(memory.to_vec(usize::from(index) * 64, 64).unwrap(), [index + 1; 64]);
    }
    assert!(a.queue.read().unwrap().is_none(), "no completion for what is injected");
}

pub(crate) fn fences_order_writes(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let memory = b.register(300_000, Access::REMOTE).unwrap();
    let fence = Options { fence: true, level: Level::Delivered, ..Default::default() };
    for round in 1..=20u8 {
        a.endpoint.write(to_b, memory.remote(), a.buffer(vec![round; 150_000])).unwrap();
        // What is behind a fence sees all that was before it.
        let read = a.endpoint.read_with(to_b, memory.remote(), a.buffer(vec![0; 150_000]), fence).unwrap();
        let over = a.endpoint.write_with(to_b, memory.remote().at(149_000), a.buffer(vec![0xff; 1000]), fence).unwrap();
        let order: Vec<_> = world.goods(&a, 3).into_iter().collect();
        assert_eq!(order[2].context, over);
        assert_eq!(order[1].context, read);
        assert!(order[1].bytes().unwrap().iter().all(|byte| *byte == round), "round {round}");
        assert_eq!(memory.to_vec(149_000, 1000).unwrap(), [0xff; 1000]);
    }
}

pub(crate) fn overlapping_regions_and_offsets(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let bytes = weft::raw::Buffer::from(vec![0; 8]);
    drop(bytes);
    let memory = b.register(pattern(1, 8192), Access::REMOTE).unwrap();
    let same = Registrable::from((*memory).clone()).addressed(Addressing::At(1 << 40));
    let again = b.domain.register(same, Access::REMOTE_READ).unwrap();
    assert_ne!(memory.key(), again.key());
    assert_eq!(again.address(), 1 << 40);
    a.endpoint.write(to_b, memory.remote().at(100), a.buffer(b"seen by both names".to_vec())).unwrap();
    world.good(&a);
    a.endpoint.read(to_b, again.remote().at(100), a.buffer(vec![0; 18])).unwrap();
    assert_eq!(world.good(&a).into_bytes().unwrap(), b"seen by both names");
}

pub(crate) fn write_from_and_to_regions(world: &World) {
    let (a, b, to_b, to_a) = world.pair();
    let (here, there) =
        (a.register(pattern(1, 300_000), Access::REMOTE).unwrap(), b.register(300_000, Access::REMOTE).unwrap());
    a.endpoint.write(to_b, there.remote(), here.buffer(0, 300_000).unwrap()).unwrap();
    world.good(&a);
    assert!(there.to_vec(0, 300_000).unwrap() == pattern(1, 300_000));
    here.write(0, &vec![0; 300_000]).unwrap();
    // And back, read by one and written by the other.
    a.endpoint.read(to_b, there.remote(), here.buffer(0, 150_000).unwrap()).unwrap();
    b.endpoint.write(to_a, here.remote().at(150_000), there.buffer(150_000, 150_000).unwrap()).unwrap();
    world.good(&a);
    world.good(&b);
    assert!(here.to_vec(0, 300_000).unwrap() == pattern(1, 300_000));
}

pub(crate) fn chosen_keys(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let plain = b.register(4096, Access::REMOTE).unwrap();
    for key in [0, 1, u64::MAX] {
        // The same key means other memory in every round, whatever the peer remembers of the one before.
        for round in 1..=3u8 {
            let memory = b.register(vec![0; 4096], Access::NONE).unwrap();
            let chosen = || Registrable::from((*memory).clone()).with_key(key).addressed(Addressing::At(1 << 20));
            let region = b.domain.register(chosen(), Access::REMOTE).unwrap();
            assert_eq!((region.key(), region.address()), (key, 1 << 20));
            let refused = b.domain.register(chosen(), Access::REMOTE).unwrap_err();
            assert!(matches!(refused, Error::Register(RegisterError::KeyInUse)), "{refused}");
            for _ in 0..3 {
                a.endpoint.write(to_b, region.remote().at(8), a.buffer(vec![round; 64])).unwrap();
                world.good(&a);
                a.endpoint.read(to_b, region.remote(), a.buffer(vec![9; 100])).unwrap();
                let bytes = world.good(&a).into_bytes().unwrap();
                assert!(bytes[..8] == [0; 8] && bytes[8..72] == [round; 64] && bytes[72..] == [0; 28], "round {round}");
            }
            let remote = region.remote();
            drop(region);
            a.endpoint.write(to_b, remote, a.buffer(vec![0xff; 8])).unwrap();
            assert_eq!(world.next(&a).result, Err(Failure::AccessRefused));
            assert_eq!(memory.to_vec(0, 8).unwrap(), [0; 8]);
            // Memory that a peer may map by itself, under the same key.
            if memory.place().is_host() {
                let region = b.domain.register(Registrable::from(256).with_key(key), Access::REMOTE).unwrap();
                for _ in 0..3 {
                    a.endpoint.write(to_b, region.remote(), a.buffer(vec![round + 100; 8])).unwrap();
                    world.good(&a);
                    assert_eq!(region.to_vec(0, 8).unwrap(), [round + 100; 8]);
                    region.write(0, &[0; 8]).unwrap();
                }
            }
        }
    }
    assert_eq!(plain.to_vec(0, 4096).unwrap(), vec![0; 4096]);
}

pub(crate) fn addresses_up_to_the_last_one(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let bytes = pattern(3, 100_000);
    let memory = b.register(bytes.clone(), Access::NONE).unwrap();
    let start = memory.as_ptr() as u64;
    for (addressing, base) in [(Addressing::Virtual, start), (Addressing::At(u64::MAX - 99_999), u64::MAX - 99_999)] {
        let registrable = Registrable::from((*memory).clone()).addressed(addressing);
        let region = b.domain.register(registrable, Access::REMOTE).unwrap();
        assert_eq!(region.address(), base);
        a.endpoint.write(to_b, region.remote(), a.buffer(bytes.clone())).unwrap();
        world.good(&a);
        a.endpoint.read(to_b, region.remote(), a.buffer(vec![0; 100_000])).unwrap();
        assert!(world.good(&a).into_bytes().unwrap() == bytes);
        a.endpoint.read(to_b, region.remote().at(99_999), a.buffer(vec![0; 1])).unwrap();
        assert_eq!(world.good(&a).into_bytes().unwrap(), bytes[99_999..]);
        a.endpoint.write(to_b, region.remote().at(99_992), a.buffer(bytes[99_992..].to_vec())).unwrap();
        world.good(&a);
        for (offset, length) in [(99_999, 2), (1, 100_000), (100_000, 1), (u64::MAX, 1)] {
            a.endpoint.read(to_b, region.remote().at(offset), a.buffer(vec![0; length])).unwrap();
            assert_eq!(world.next(&a).result, Err(Failure::AccessRefused), "{offset} {length}");
        }
    }
    assert!(memory.to_vec(0, 100_000).unwrap() == bytes);
}

/// Each of many operations at once sees what those before it did, though some go straight into the peer's memory, some
/// through its NIC, and some in many parts.
pub(crate) fn ordered_operations_see_those_before(world: &World) {
    let (a, b, to_b, _) = world.pair();
    for shared in [true, false] {
        let memory = if shared { b.register(SIZE, Access::REMOTE) } else { b.register(vec![0; SIZE], Access::REMOTE) };
        let memory = memory.unwrap();
        let mut model = vec![0u8; SIZE];
        let mut seen: Vec<(u64, Vec<u8>)> = Vec::new();
        let mut random = pattern(u64::from(shared) + 3, 4000).into_iter();
        let mut draw = |end: usize| usize::from(random.next().unwrap()) % end;
        const ROUNDS: usize = 120;
        for round in 0..ROUNDS {
            let length = [8, 64, 5000, 90_000][draw(4)];
            let offset = [0, 8, 40, 4000, 64_000][draw(5)];
            let remote = memory.remote().at(offset as u64);
            let options = Options { ordered: true, ..Default::default() };
            let place = &mut model[offset..offset + length];
            match draw(4) {
                0 => {
                    let bytes = pattern(round as u64, length);
                    place.copy_from_slice(&bytes);
                    a.endpoint.write_with(to_b, remote, a.buffer(bytes), options).unwrap();
                }
                1 => {
                    let bytes = pattern(round as u64, length);
                    place.copy_from_slice(&bytes);
                    let options = Options { immediate: Some(1), ..options };
                    a.endpoint.write_with(to_b, remote, a.buffer(bytes), options).unwrap();
                }
                2 => {
                    let context = a.endpoint.read_with(to_b, remote, a.buffer(vec![0; length]), options).unwrap();
                    seen.push((context, place.to_vec()));
                }
                _ => {
                    let old = u64::from_le_bytes(place[..8].try_into().unwrap());
                    place[..8].copy_from_slice(&old.wrapping_add(5).to_le_bytes());
                    let sum = weft::AtomicOperation::Sum;
                    let context = a.endpoint.fetch_atomic_with(to_b, remote, sum, &[5u64], options).unwrap();
                    seen.push((context, old.to_le_bytes().to_vec()));
                }
            }
            if draw(10) == 0 {
                world.turn();
            }
        }
        for done in world.goods(&a, ROUNDS) {
            if let Some((_, expected)) = seen.iter().find(|(context, _)| *context == done.context) {
                let found = match done.kind {
                    CompletionKind::Read => done.bytes().unwrap(),
                    _ => done.value::<u64>().unwrap().to_le_bytes().to_vec(),
                };
                assert!(found == *expected, "shared {shared}");
            }
        }
        assert!(memory.to_vec(0, SIZE).unwrap() == model, "shared {shared}");
    }
}

pub(crate) fn regions_count_what_peers_do(world: &World) {
    let (a, b, to_b, _) = world.pair();
    for shared in [true, false] {
        let register = || match shared {
            true => b.register(SIZE, Access::REMOTE).unwrap(),
            false => b.register(vec![0; SIZE], Access::REMOTE).unwrap(),
        };
        let (memory, other) = (register(), register());
        let touch = |target: &weft::MemoryRegion| {
            for length in [0, 8, 5000, 100_000] {
                let here = target.remote();
                a.endpoint.write(to_b, here, a.buffer(vec![1; length])).unwrap();
                a.endpoint.read(to_b, here, a.buffer(vec![0; length])).unwrap();
                world.goods(&a, 2);
            }
            a.endpoint.atomic(to_b, target.remote(), weft::AtomicOperation::Sum, &[1u64]).unwrap();
            a.endpoint.fetch_add(to_b, target.remote(), 1u64).unwrap();
            a.endpoint.fetch_atomic(to_b, target.remote(), weft::AtomicOperation::Read, &[0u64]).unwrap();
            world.goods(&a, 3);
            // What is refused does not count.
            a.endpoint.write(to_b, target.remote().at(SIZE as u64 - 4), a.buffer(vec![1; 8])).unwrap();
            assert!(world.next(&a).result.is_err());
        };
        // Peers may have it mapped before it is counted.
        touch(&memory);
        let (writes, reads) = (b.domain.counter(), b.domain.counter());
        memory.count(Some(writes.clone()), Some(reads.clone())).unwrap();
        touch(&memory);
        touch(&other);
        // Four writes and two atomics that change it, four reads and two atomics that fetch.
        let counted = || Some((writes.read(), reads.read()));
        world.until("all counted", || counted().filter(|counted| *counted == ((6, 0), (6, 0))));
        memory.count(Some(writes.clone()), None).unwrap();
        touch(&memory);
        world.until("writes alone", || counted().filter(|counted| *counted == ((12, 0), (6, 0))));
        // A region keeps its counters open, and others' numbers are not theirs.
        memory.count(Some(b.domain.counter()), Some(b.domain.counter())).unwrap();
        let fresh = b.domain.counter();
        touch(&memory);
        memory.count(None, None).unwrap();
        touch(&memory);
        drop(memory);
        world.idle(10);
        assert_eq!((counted(), fresh.read()), (Some(((12, 0), (6, 0))), (0, 0)));
        assert!(matches!(other.count(Some(a.domain.counter()), None), Err(Error::OtherDomain)));
    }
}
