//! Operations on several ranges of a peer's memory, and atomics whose values lie in many pieces.

use weft::raw::{self, AtomicCall, Command, CommandFlags, Operation, RemoteRange};
use weft::{
    Access, AtomicOperation, Buffer, CompletionKind, Datatype, Error, Failure, MemoryRegion, PeerId, PostError,
    Registrable,
};

use crate::support::{Node, World, bytes_of, pattern};

fn range(memory: &MemoryRegion, offset: u64, length: u64) -> RemoteRange {
    RemoteRange { address: memory.address() + offset, key: memory.key(), length }
}

fn command(node: &Node, operation: Operation, peer: PeerId, length: u32, context: u64) -> Command {
    let mut command = raw::command(&node.endpoint, operation, peer);
    (command.length, command.context) = (length, context);
    command
}

/// Buffers of the node's memory, one behind the other, cut at places that fit no element.
fn in_pieces(node: &Node, bytes: &[u8]) -> Buffer {
    let pieces: Vec<Buffer> = bytes.chunks(7).map(|piece| node.buffer(piece.to_vec())).collect();
    pieces.into()
}

pub(crate) fn several_ranges_end_as_one(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let (first, second) =
        (b.register(200_000, Access::REMOTE).unwrap(), b.register(vec![0; 20_000], Access::REMOTE).unwrap());
    let bytes = pattern(9, 105_010);
    for context in [1, 2, 3] {
        first.write(0, &vec![0; 200_000]).unwrap();
        let ranges = [
            range(&first, 5, 10),
            range(&second, 20_000, 0),
            range(&first, 50_000, 100_000),
            range(&second, 1, 4000),
            range(&first, 160_000, 1000),
        ];
        let write = command(&a, Operation::Write, to_b, 105_010, context);
        raw::post_vector(&a.endpoint, &write, a.buffer(bytes.clone()), &ranges).unwrap();
        let done = world.good(&a);
        assert_eq!((done.context, done.kind, done.length), (context, CompletionKind::Write, 105_010));
        assert_eq!(done.buffer.unwrap().len(), 105_010);
        assert!(first.to_vec(5, 10).unwrap() == bytes[..10]);
        assert!(first.to_vec(50_000, 100_000).unwrap() == bytes[10..100_010]);
        assert!(second.to_vec(1, 4000).unwrap() == bytes[100_010..104_010]);
        assert!(first.to_vec(160_000, 1000).unwrap() == bytes[104_010..]);
        assert!(first.to_vec(15, 49_985).unwrap().iter().all(|byte| *byte == 0));
        // Back, cut otherwise, into a part of a buffer.
        let mut read = command(&a, Operation::Read, to_b, 4010, 100 + context);
        read.offset = 3;
        let ranges = [range(&second, 1, 4000), range(&first, 5, 10)];
        raw::post_vector(&a.endpoint, &read, a.buffer(vec![7; 4014]), &ranges).unwrap();
        let done = world.good(&a);
        assert_eq!((done.context, done.kind, done.length), (100 + context, CompletionKind::Read, 4010));
        let found = bytes_of(&done.buffer.unwrap());
        assert!(found[3..4003] == bytes[100_010..104_010] && found[4003..4013] == bytes[..10]);
        assert_eq!((&found[..3], found[4013]), (&[7, 7, 7][..], 7));
    }
    // No bytes at all, and one range, are as without ranges.
    let ranges = [range(&first, 0, 0), range(&second, 0, 0)];
    raw::post_vector(&a.endpoint, &command(&a, Operation::Write, to_b, 0, 7), a.buffer(vec![]), &ranges).unwrap();
    assert_eq!(world.good(&a).context, 7);
    let write = command(&a, Operation::Write, to_b, 3, 8);
    raw::post_vector(&a.endpoint, &write, a.buffer(vec![1, 2, 3]), &[range(&first, 9, 3)]).unwrap();
    assert_eq!(world.good(&a).context, 8);
    assert_eq!(first.to_vec(9, 3).unwrap(), [1, 2, 3]);
    world.idle(3);
    assert!(a.queue.read().unwrap().is_none(), "one completion for each");
}

pub(crate) fn a_bad_range_fails_the_whole(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let memory = b.register(4096, Access::REMOTE).unwrap();
    for bad in 0..3 {
        let mut ranges = [range(&memory, 0, 100), range(&memory, 200, 100), range(&memory, 400, 100)];
        ranges[bad].address += 4000;
        for operation in [Operation::Write, Operation::Read] {
            let posted = command(&a, operation, to_b, 300, bad as u64);
            raw::post_vector(&a.endpoint, &posted, a.buffer(vec![5; 300]), &ranges).unwrap();
            let done = world.next(&a);
            assert_eq!((done.context, done.result), (bad as u64, Err(Failure::AccessRefused)));
            assert_eq!(done.buffer.unwrap().len(), 300);
        }
    }
    world.idle(3);
    assert!(a.queue.read().unwrap().is_none());
}

pub(crate) fn immediate_data_follows_all_ranges(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let memory = b.register(200_000, Access::REMOTE).unwrap();
    for round in 1..=10u8 {
        let mut write = command(&a, Operation::Write, to_b, 90_010, u64::from(round));
        (write.flags, write.immediate) = (CommandFlags::IMMEDIATE, 70 + u64::from(round));
        let ranges = [range(&memory, 0, 60_000), range(&memory, 100_000, 30_000), range(&memory, 99_000, 10)];
        raw::post_vector(&a.endpoint, &write, a.buffer(vec![round; 90_010]), &ranges).unwrap();
        let told = world.good(&b);
        assert_eq!((told.kind, told.immediate), (CompletionKind::RemoteWrite, Some(70 + u64::from(round))));
        for part in [(0, 60_000), (100_000, 30_000), (99_000, 10)] {
            assert!(memory.to_vec(part.0, part.1).unwrap().iter().all(|byte| *byte == round), "round {round}");
        }
        assert_eq!(world.good(&a).context, u64::from(round));
    }
    world.idle(3);
    assert!(b.queue.read().unwrap().is_none(), "told once");
}

pub(crate) fn ranges_that_do_not_fit_are_refused(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let memory = b.register(4096, Access::REMOTE).unwrap();
    let post = |operation: Operation, length: u32, ranges: &[RemoteRange]| {
        let posted = command(&a, operation, to_b, length, 1);
        let refused = raw::post_vector(&a.endpoint, &posted, a.buffer(vec![0; 64]), ranges).unwrap_err();
        assert_eq!(refused.buffer.unwrap().len(), 64, "it comes back");
        refused.error
    };
    let eights = |count: usize| vec![range(&memory, 0, 4); count];
    assert!(matches!(post(Operation::Write, 0, &[]), Error::Post(PostError::BadBuffer)));
    assert!(matches!(post(Operation::Write, 9, &eights(2)), Error::Post(PostError::BadBuffer)));
    assert!(matches!(post(Operation::Write, 68, &[range(&memory, 0, 60), range(&memory, 0, 8)]), Error::Post(_)));
    assert!(matches!(post(Operation::Write, 36, &eights(9)), Error::Post(PostError::TooLong { length: 9, limit: 8 })));
    assert!(matches!(post(Operation::Send, 8, &eights(2)), Error::Post(PostError::NotSupported)));
    let overflow = [range(&memory, 0, u64::MAX), range(&memory, 0, 9)];
    assert!(matches!(post(Operation::Write, 8, &overflow), Error::Post(PostError::BadBuffer)));
    let stranger = command(&a, Operation::Write, PeerId(7777), 8, 1);
    assert!(raw::post_vector(&a.endpoint, &stranger, a.buffer(vec![0; 8]), &eights(2)).is_err());
    world.idle(3);
    assert!(a.queue.read().unwrap().is_none());
}

pub(crate) fn values_in_many_pieces(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let memory = b.register(1024, Access::REMOTE).unwrap();
    let little = |values: &[u64]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let (old, operands) = (little(&[1, 2, 3, 4, 5]), little(&[10, 20, 30, 40, 50]));
    let compares = little(&[1, 0, 3, 0, 5]);
    let atomic = |operation: Operation, what: AtomicOperation| {
        let mut command = command(&a, operation, to_b, 0, 5);
        command.atomic = AtomicCall::new(what, Datatype::Uint64, 5);
        (command.address, command.key) = (memory.address() + 8, memory.key());
        command
    };
    for _ in 0..3 {
        memory.write(8, &old).unwrap();
        let add = atomic(Operation::Atomic, AtomicOperation::Sum);
        raw::post_atomic(&a.endpoint, &add, Some(&in_pieces(&a, &operands)), None, None).unwrap();
        assert_eq!((world.good(&a).context, memory.to_vec(8, 40).unwrap()), (5, little(&[11, 22, 33, 44, 55])));

        memory.write(8, &old).unwrap();
        let fetch = atomic(Operation::FetchAtomic, AtomicOperation::Sum);
        let results = in_pieces(&a, &[9; 40]);
        raw::post_atomic(&a.endpoint, &fetch, Some(&in_pieces(&a, &operands)), None, Some(results)).unwrap();
        let done = world.good(&a);
        assert_eq!((done.context, done.kind), (5, CompletionKind::FetchAtomic));
        assert_eq!(bytes_of(&done.buffer.unwrap()), old);

        memory.write(8, &old).unwrap();
        let read = atomic(Operation::FetchAtomic, AtomicOperation::Read);
        raw::post_atomic(&a.endpoint, &read, None, None, Some(in_pieces(&a, &[9; 40]))).unwrap();
        assert_eq!(bytes_of(&world.good(&a).buffer.unwrap()), old);

        let swap = atomic(Operation::CompareAtomic, AtomicOperation::SwapIfEqual);
        let (operands, compares) = (in_pieces(&a, &operands), a.buffer(compares.clone()));
        raw::post_atomic(&a.endpoint, &swap, Some(&operands), Some(&compares), Some(a.buffer(vec![9; 40]))).unwrap();
        assert_eq!(bytes_of(&world.good(&a).buffer.unwrap()), old);
        assert_eq!(memory.to_vec(8, 40).unwrap(), little(&[10, 2, 30, 4, 50]));
    }
    // What is missing, too much or too short.
    let (five, four) = (a.buffer(vec![0; 40]), a.buffer(vec![0; 32]));
    let results = || Some(a.buffer(vec![0; 40]));
    let add = atomic(Operation::Atomic, AtomicOperation::Sum);
    let fetch = atomic(Operation::FetchAtomic, AtomicOperation::Sum);
    let swap = atomic(Operation::CompareAtomic, AtomicOperation::SwapIfEqual);
    let cases = [
        (&add, None, None, None),
        (&add, Some(&four), None, None),
        (&add, Some(&five), Some(&five), None),
        (&add, Some(&five), None, results()),
        (&fetch, Some(&five), None, None),
        (&fetch, Some(&five), None, Some(a.buffer(vec![0; 39]))),
        (&swap, Some(&five), None, results()),
        (&swap, Some(&five), Some(&four), results()),
    ];
    for (index, (command, operands, compares, results)) in cases.into_iter().enumerate() {
        let given = results.as_ref().map(Buffer::len);
        let refused = raw::post_atomic(&a.endpoint, command, operands, compares, results).unwrap_err();
        assert!(matches!(refused.error, Error::Post(PostError::BadBuffer)), "{index}: {refused}");
        assert_eq!(refused.buffer.as_ref().map(Buffer::len), given);
    }
    let mut many = fetch;
    many.atomic.count = 129;
    let refused = raw::post_atomic(&a.endpoint, &many, Some(&five), None, results()).unwrap_err();
    assert!(matches!(refused.error, Error::Post(PostError::TooLong { length: 1032, limit: 1024 })), "{refused}");
    // A failure gives the buffer back too.
    let mut nowhere = fetch;
    nowhere.key = !memory.key();
    raw::post_atomic(&a.endpoint, &nowhere, Some(&five), None, results()).unwrap();
    let done = world.next(&a);
    assert_eq!((done.result, done.buffer.unwrap().len()), (Err(Failure::AccessRefused), 40));
}

pub(crate) fn atomics_on_several_ranges(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let (first, second) =
        (b.register(1024, Access::REMOTE).unwrap(), b.register(vec![0; 1024], Access::REMOTE).unwrap());
    let little = |values: &[u32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let ranges = [range(&second, 100, 8), range(&first, 0, 4), range(&second, 0, 0), range(&first, 500, 12)];
    let old = little(&[1, 2, 3, 4, 5, 6]);
    let fill = || {
        second.write(100, &old[..8]).unwrap();
        first.write(0, &old[8..12]).unwrap();
        first.write(500, &old[12..]).unwrap();
    };
    let now = || [second.to_vec(100, 8).unwrap(), first.to_vec(0, 4).unwrap(), first.to_vec(500, 12).unwrap()].concat();
    let atomic = |operation: Operation, what: AtomicOperation| {
        let mut command = command(&a, operation, to_b, 0, 6);
        command.atomic = AtomicCall::new(what, Datatype::Uint32, 6);
        command
    };
    let operands = in_pieces(&a, &little(&[10, 20, 30, 40, 50, 60]));
    for _ in 0..3 {
        fill();
        let add = atomic(Operation::Atomic, AtomicOperation::Sum);
        raw::post_atomic_vector(&a.endpoint, &add, Some(&operands), None, None, &ranges).unwrap();
        assert_eq!(world.good(&a).context, 6);
        assert_eq!(now(), little(&[11, 22, 33, 44, 55, 66]));

        fill();
        let fetch = atomic(Operation::FetchAtomic, AtomicOperation::Difference);
        let results = Some(in_pieces(&a, &[9; 24]));
        raw::post_atomic_vector(&a.endpoint, &fetch, Some(&operands), None, results, &ranges).unwrap();
        assert_eq!(bytes_of(&world.good(&a).buffer.unwrap()), old);
        assert_eq!(now()[..4], (1u32.wrapping_sub(10)).to_le_bytes());

        fill();
        let read = atomic(Operation::FetchAtomic, AtomicOperation::Read);
        raw::post_atomic_vector(&a.endpoint, &read, None, None, Some(a.buffer(vec![9; 24])), &ranges).unwrap();
        assert_eq!(bytes_of(&world.good(&a).buffer.unwrap()), old);

        let swap = atomic(Operation::CompareAtomic, AtomicOperation::SwapIfNotEqual);
        let compares = in_pieces(&a, &little(&[1, 0, 3, 0, 5, 0]));
        let results = Some(in_pieces(&a, &[9; 24]));
        raw::post_atomic_vector(&a.endpoint, &swap, Some(&operands), Some(&compares), results, &ranges).unwrap();
        assert_eq!(bytes_of(&world.good(&a).buffer.unwrap()), old);
        assert_eq!(now(), little(&[1, 20, 3, 40, 5, 60]));
    }
    let torn = [range(&first, 0, 6), range(&first, 8, 18)];
    let add = atomic(Operation::Atomic, AtomicOperation::Sum);
    let refused = raw::post_atomic_vector(&a.endpoint, &add, Some(&operands), None, None, &torn).unwrap_err();
    assert!(matches!(refused.error, Error::Post(PostError::BadBuffer)), "{refused}");
    world.idle(3);
    assert!(a.queue.read().unwrap().is_none());
}

pub(crate) fn closing_ends_what_goes_in_parts(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let memory = b.register(vec![0; 100_000], Access::REMOTE).unwrap();
    let again = b.domain.register(Registrable::from((*memory).clone()).with_key(3), Access::REMOTE).unwrap();
    for context in 0..20 {
        let ranges = [range(&memory, 0, 40_000), range(&again, 40_000, 40_000)];
        let write = command(&a, Operation::Write, to_b, 80_000, context);
        raw::post_vector(&a.endpoint, &write, a.buffer(vec![1; 80_000]), &ranges).unwrap();
    }
    assert!(!a.endpoint.cancel(0), "it cannot be called back in parts");
    let Node { endpoint, queue, .. } = a;
    drop(endpoint);
    let mut contexts = Vec::new();
    while let Some(done) = queue.read().unwrap() {
        assert!(matches!(done.result, Ok(()) | Err(Failure::Closed)), "{done:?}");
        assert_eq!(done.buffer.unwrap().len(), 80_000);
        contexts.push(done.context);
    }
    contexts.sort_unstable();
    assert!(contexts.into_iter().eq(0..20), "each ends once");
}

pub(crate) fn nothing_is_posted_without_room(world: &World) {
    let a = world.node_with(8, |_| {});
    let b = world.node();
    let to_b = a.knows(&b);
    let memory = b.register(vec![0; 4096], Access::REMOTE).unwrap();
    let (mut taken, mut done) = (0, 0);
    // The queue has eight places, and each takes one though it has four parts.
    let ranges = [range(&memory, 0, 8), range(&memory, 16, 8), range(&memory, 32, 8), range(&memory, 64, 8)];
    for context in 0..200 {
        let write = command(&a, Operation::Write, to_b, 32, context);
        match raw::post_vector(&a.endpoint, &write, a.buffer(vec![1; 32]), &ranges) {
            Ok(()) => taken += 1,
            Err(refused) => {
                assert!(refused.error.is_full(), "{refused}");
                assert_eq!(refused.buffer.unwrap().len(), 32);
                world.good(&a);
                done += 1;
            }
        }
    }
    assert!(taken >= 8 && done > 0, "{taken} {done}");
    (done..taken).for_each(|_| drop(world.good(&a)));
    world.idle(3);
    assert!(a.queue.read().unwrap().is_none());
}
