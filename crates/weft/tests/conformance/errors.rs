//! What goes wrong is told precisely, and disturbs nothing else.

use weft::{Access, Blame, Error, Failure, MemoryRegion, PeerId, PostError, RemoteAddress};

use crate::support::{Node, World, bytes_of, pattern};

/// Each way to reach a peer's memory fails like this, and messages go on.
fn all_refused(world: &World, a: &Node, b: &Node, to_b: PeerId, remote: RemoteAddress) {
    a.endpoint.write(to_b, remote, a.buffer(pattern(1, 64))).unwrap();
    a.endpoint.read(to_b, remote, a.buffer(vec![0xee; 64])).unwrap();
    a.endpoint.fetch_add(to_b, remote, 1u64).unwrap();
    a.endpoint.write(to_b, remote, a.buffer(pattern(1, 50_000))).unwrap();
    a.endpoint.read(to_b, remote, a.buffer(vec![0xee; 50_000])).unwrap();
    for _ in 0..5 {
        let failed = world.next(a);
        assert_eq!(failed.result, Err(Failure::AccessRefused), "{:?} of {}", failed.kind, failed.length);
        assert!(failed.buffer.is_some(), "the buffer comes back all the same");
        assert_eq!(failed.ok().unwrap_err().blame(), Blame::Peer);
    }
    b.endpoint.receive(b.buffer(vec![0; 8])).unwrap();
    a.endpoint.send(to_b, a.buffer(b"still".to_vec())).unwrap();
    assert_eq!(world.good(b).into_bytes().unwrap(), b"still");
    world.good(a);
}

pub(crate) fn unknown_key(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let memory = b.register(64, Access::REMOTE).unwrap();
    for key in [0, u64::MAX, memory.key() ^ 1, memory.key().rotate_left(7)] {
        all_refused(world, &a, &b, to_b, RemoteAddress { address: 0, key });
    }
    assert_eq!(memory.to_vec(0, 64).unwrap(), [0; 64]);
}

pub(crate) fn out_of_bounds(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let bytes = 4096;
    let memory = b.register(bytes, Access::REMOTE).unwrap();
    for offset in [4096, 8192, u64::MAX - 7, 1 << 63] {
        all_refused(world, &a, &b, to_b, memory.remote().at(offset));
    }
    // One byte too many, of a region that is long enough for the first packets.
    let long = b.register(20_000, Access::REMOTE).unwrap();
    a.endpoint.write(to_b, long.remote(), a.buffer(vec![1; 20_001])).unwrap();
    assert_eq!(world.next(&a).result, Err(Failure::AccessRefused));
    assert_eq!(memory.to_vec(0, bytes).unwrap(), vec![0; bytes]);
}

pub(crate) fn missing_right(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let readable = b.register(pattern(1, 64), Access::REMOTE_READ).unwrap();
    let writable = b.register(pattern(1, 64), Access::REMOTE_WRITE).unwrap();
    let closed = b.register(pattern(1, 64), Access::NONE).unwrap();
    let refused = |remote: RemoteAddress, write: bool, read: bool, atomic: bool| {
        if write {
            a.endpoint.write(to_b, remote, a.buffer(vec![0; 8])).unwrap();
        }
        if read {
            a.endpoint.read(to_b, remote, a.buffer(vec![0; 8])).unwrap();
        }
        if atomic {
            a.endpoint.fetch_add(to_b, remote, 1u64).unwrap();
        }
        for _ in 0..usize::from(write) + usize::from(read) + usize::from(atomic) {
            assert_eq!(world.next(&a).result, Err(Failure::AccessRefused));
        }
    };
    refused(readable.remote(), true, false, true);
    refused(writable.remote(), false, true, true);
    refused(closed.remote(), true, true, true);
    for region in [readable, writable, closed] {
        assert_eq!(region.to_vec(0, 64).unwrap(), pattern(1, 64));
    }
}

pub(crate) fn after_deregistration(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let memory: MemoryRegion = b.register(1 << 20, Access::REMOTE).unwrap();
    let remote = memory.remote();
    a.endpoint.write(to_b, remote, a.buffer(vec![1; 64])).unwrap();
    world.good(&a);
    let bytes = (*memory).clone();
    // In the middle of a long transfer.
    a.endpoint.write(to_b, remote, a.buffer(vec![2; 1 << 20])).unwrap();
    world.turn();
    drop(memory);
    let before = bytes.to_vec(0, 1 << 20).unwrap();
    let ended = world.next(&a);
    if before.iter().any(|byte| *byte != 2) {
        assert_eq!(ended.result, Err(Failure::AccessRefused));
    }
    all_refused(world, &a, &b, to_b, remote);
    assert!(bytes.to_vec(0, 1 << 20).unwrap() == before, "nothing is written after it");
    // The same memory under a new key.
    let again = b.domain.register(bytes, Access::REMOTE).unwrap();
    assert_ne!(again.key(), remote.key);
    a.endpoint.write(to_b, again.remote(), a.buffer(vec![3; 64])).unwrap();
    world.good(&a);
}

pub(crate) fn unknown_peer(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let refused = a.endpoint.send(PeerId(12_345), a.buffer(vec![1; 8])).unwrap_err();
    assert!(matches!(refused.error, Error::Post(PostError::NoSuchPeer)), "{refused}");
    assert_eq!(refused.error.blame(), Blame::Caller);
    assert!(a.domain.addresses().remove(to_b));
    let refused = a.endpoint.write(to_b, RemoteAddress { address: 0, key: 0 }, a.buffer(vec![1; 8])).unwrap_err();
    assert!(matches!(refused.error, Error::Post(PostError::NoSuchPeer)), "{refused}");
    assert_eq!(bytes_of(&refused.buffer.unwrap()), [1; 8]);
    // Somebody who is not in the vector can send all the same.
    let to_b = a.knows(&b);
    b.endpoint.receive(b.buffer(vec![0; 8])).unwrap();
    a.endpoint.send(to_b, a.buffer(vec![5; 5])).unwrap();
    assert_eq!(world.good(&b).source, Some(a.endpoint.address()));
}

pub(crate) fn queue_full(world: &World) {
    let a = world.node_with(1 << 16, |config| config.commands_max = 64);
    let b = world.node();
    let to_b = a.knows(&b);
    let mut taken = 0;
    let refused = loop {
        match a.endpoint.send(to_b, a.buffer(vec![1; 300_000])) {
            Ok(_) => taken += 1,
            Err(refused) => break refused,
        }
        assert!(taken <= 64);
    };
    assert!(matches!(refused.error, Error::Post(PostError::QueueFull)), "{refused}");
    assert!(refused.error.is_full() && refused.error.blame() == Blame::Resource);
    let buffer = refused.buffer.unwrap();
    // It clears when they are done.
    for _ in 0..=taken {
        b.endpoint.receive(b.buffer(vec![0; 300_000])).unwrap();
    }
    world.good(&a);
    let mut again = Some(buffer);
    world.until("room", || match a.endpoint.send(to_b, again.take()?) {
        Ok(_) => Some(()),
        Err(refused) => {
            again = refused.buffer;
            None
        }
    });
    world.goods(&a, taken);
    for completion in world.goods(&b, taken + 1) {
        assert_eq!(completion.length, 300_000);
    }
}

pub(crate) fn closed_remote_endpoint(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let other = b.domain.endpoint(&b.queue).unwrap();
    let to_other = a.domain.addresses().insert(other.address()).unwrap();
    drop(other);
    a.endpoint.send(to_other, a.buffer(vec![1; 8])).unwrap();
    assert_eq!(world.next(&a).result, Err(Failure::NoSuchEndpoint));
    b.endpoint.receive(b.buffer(vec![0; 8])).unwrap();
    a.endpoint.send(to_b, a.buffer(vec![1; 8])).unwrap();
    world.good(&a);
    world.good(&b);
}

pub(crate) fn read_only_buffers(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let shared: std::sync::Arc<[u8]> = vec![0; 8].into();
    let refused = a.endpoint.receive(shared.clone()).unwrap_err();
    assert!(matches!(refused.error, Error::Post(PostError::BadBuffer)), "{refused}");
    let memory = b.register(8, Access::REMOTE).unwrap();
    let refused = a.endpoint.read(to_b, memory.remote(), shared).unwrap_err();
    assert!(matches!(refused.error, Error::Post(PostError::BadBuffer)), "{refused}");
}

pub(crate) fn misaligned_atomics(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let memory = b.register(64, Access::REMOTE).unwrap();
    a.endpoint.fetch_add(to_b, memory.remote().at(4), 1u64).unwrap();
    assert_eq!(world.next(&a).result, Err(Failure::AccessRefused));
    a.endpoint.fetch_add(to_b, memory.remote().at(4), 1u32).unwrap();
    world.good(&a);
}

pub(crate) fn foreign_queue(world: &World) {
    let (a, b, ..) = world.pair();
    assert!(matches!(a.domain.endpoint(&b.queue), Err(Error::OtherDomain)));
}

pub(crate) fn too_long_to_inject(world: &World) {
    let (a, _b, to_b, _) = world.pair();
    let refused = a.endpoint.inject(to_b, &[0; 300_000]).unwrap_err();
    assert!(matches!(refused.error, Error::Post(PostError::TooLong { length: 300_000, .. })), "{refused}");
}
