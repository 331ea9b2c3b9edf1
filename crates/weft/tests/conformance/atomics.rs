//! Remote atomics: every operation on every type, each executed once.

use weft::raw::{AtomicCall, AtomicClass, Operation};
use weft::{Access, AtomicOperation, Datatype, Element, Error, Options, PostError, raw};

use crate::support::{World, number_in, pattern};

/// Integers as all operations see them.
trait Integer: Element + PartialEq + std::fmt::Debug {
    fn apply(operation: AtomicOperation, old: Self, compare: Self, operand: Self) -> Self;
    fn of(value: i8) -> Self;
}

macro_rules! integers {
    ($($type:ident)*) => {$(
        impl Integer for $type {
            fn apply(operation: AtomicOperation, old: $type, compare: $type, operand: $type) -> $type {
                use AtomicOperation::*;
                let swap_if = |holds: bool| if holds { operand } else { old };
                match operation {
                    Minimum => old.min(operand),
                    Maximum => old.max(operand),
                    Sum => old.wrapping_add(operand),
                    Product => old.wrapping_mul(operand),
                    Difference => old.wrapping_sub(operand),
                    LogicalOr => (old != 0 || operand != 0).into(),
                    LogicalAnd => (old != 0 && operand != 0).into(),
                    LogicalXor => ((old != 0) != (operand != 0)).into(),
                    BitwiseOr => old | operand,
                    BitwiseAnd => old & operand,
                    BitwiseXor => old ^ operand,
                    Read => old,
                    Write => operand,
                    SwapIfEqual => swap_if(compare == old),
                    SwapIfNotEqual => swap_if(compare != old),
                    SwapIfLessOrEqual => swap_if(compare <= old),
                    SwapIfLess => swap_if(compare < old),
                    SwapIfGreaterOrEqual => swap_if(compare >= old),
                    SwapIfGreater => swap_if(compare > old),
                    MaskedSwap => (operand & compare) | (old & !compare),
                }
            }
            fn of(value: i8) -> $type {
                value as $type
            }
        }
    )*};
}
integers! { u8 u16 u32 u64 i8 i16 i32 i64 }

fn all_operations_on<T: Integer>(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let memory = b.register(64, Access::REMOTE_ATOMIC | Access::REMOTE_READ).unwrap();
    let values = [0, 1, -1, 5, -77].map(T::of);
    let store = |value: T| {
        let mut bytes = Vec::new();
        value.to_little_endian(&mut bytes);
        memory.write(16, &bytes).unwrap();
    };
    let load = || T::from_little_endian(&memory.to_vec(16, T::BYTES).unwrap());
    let remote = memory.remote().at(16);
    for &operation in AtomicOperation::ALL {
        for (index, &old) in values.iter().enumerate() {
            let (operand, compare) = (values[(index + 2) % 5], values[(index + 3 + index % 2) % 5]);
            let expected = T::apply(operation, old, compare, operand);
            store(old);
            if operation.code() >= 0x10 {
                a.endpoint.compare_atomic(to_b, remote, operation, &[compare], &[operand]).unwrap();
                assert_eq!(world.good(&a).value::<T>().unwrap(), old, "{operation:?}");
                assert_eq!(load(), expected, "{operation:?}");
                continue;
            }
            a.endpoint.fetch_atomic(to_b, remote, operation, &[operand]).unwrap();
            assert_eq!(world.good(&a).value::<T>().unwrap(), old, "{operation:?}");
            assert_eq!(load(), expected, "{operation:?}");
            if operation != AtomicOperation::Read {
                store(old);
                a.endpoint.atomic(to_b, remote, operation, &[operand]).unwrap();
                world.good(&a);
                assert_eq!(load(), expected, "{operation:?}");
            }
        }
    }
}

pub(crate) fn every_operation_on_every_type(world: &World) {
    all_operations_on::<u8>(world);
    all_operations_on::<u16>(world);
    all_operations_on::<u32>(world);
    all_operations_on::<u64>(world);
    all_operations_on::<i8>(world);
    all_operations_on::<i16>(world);
    all_operations_on::<i32>(world);
    all_operations_on::<i64>(world);
}

pub(crate) fn fetch_add_counts_each_once(world: &World) {
    let (a, b) = (world.node(), world.node());
    let c = world.node();
    let memory = c.register(8, Access::REMOTE_ATOMIC).unwrap();
    let (from_a, from_b) = (a.knows(&c), b.knows(&c));
    for _ in 0..300 {
        a.endpoint.fetch_add(from_a, memory.remote(), 1u64).unwrap();
        b.endpoint.fetch_add(from_b, memory.remote(), 1u64).unwrap();
    }
    let mut seen: Vec<u64> = world.goods(&a, 300).iter().map(|completion| completion.value().unwrap()).collect();
    seen.extend(world.goods(&b, 300).iter().map(|completion| completion.value::<u64>().unwrap()));
    seen.sort_unstable();
    assert!(seen.iter().copied().eq(0..600), "each value was seen once");
    assert_eq!(number_in(&memory), 600);
}

pub(crate) fn compare_and_swap_has_one_winner(world: &World) {
    let (a, b) = (world.node(), world.node());
    let c = world.node();
    let memory = c.register(8, Access::REMOTE_ATOMIC).unwrap();
    let (from_a, from_b) = (a.knows(&c), b.knows(&c));
    for round in 0..50u64 {
        a.endpoint.compare_swap(from_a, memory.remote(), round * 10, round * 10 + 10).unwrap();
        b.endpoint.compare_swap(from_b, memory.remote(), round * 10, round * 10 + 10).unwrap();
        let (first, second) = (world.good(&a).value::<u64>().unwrap(), world.good(&b).value::<u64>().unwrap());
        assert_eq!(u32::from(first == round * 10) + u32::from(second == round * 10), 1, "{first} {second}");
        assert_eq!(number_in(&memory), round * 10 + 10);
    }
}

pub(crate) fn arrays_of_elements(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let memory = b.register(1024, Access::REMOTE).unwrap();
    let operands: Vec<u32> = (0..200).collect();
    for _ in 0..3 {
        a.endpoint.atomic(to_b, memory.remote(), AtomicOperation::Sum, &operands).unwrap();
    }
    world.goods(&a, 3);
    a.endpoint.fetch_atomic(to_b, memory.remote(), AtomicOperation::Write, &vec![7u32; 200]).unwrap();
    assert!(world.good(&a).values::<u32>().unwrap().into_iter().eq((0..200).map(|value| 3 * value)));
    a.endpoint.fetch_atomic(to_b, memory.remote(), AtomicOperation::Read, &vec![0u32; 200]).unwrap();
    assert_eq!(world.good(&a).values::<u32>().unwrap(), [7; 200]);
}

pub(crate) fn floats(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let memory = b.register(16, Access::REMOTE).unwrap();
    memory.write(0, &1.5f64.to_le_bytes()).unwrap();
    memory.write(8, &(-2.5f32).to_le_bytes()).unwrap();
    a.endpoint.fetch_add(to_b, memory.remote(), 0.25f64).unwrap();
    assert_eq!(world.good(&a).value::<f64>().unwrap(), 1.5);
    a.endpoint.fetch_atomic(to_b, memory.remote().at(8), AtomicOperation::Minimum, &[-3.0f32]).unwrap();
    assert_eq!(world.good(&a).value::<f32>().unwrap(), -2.5);
    a.endpoint.compare_swap(to_b, memory.remote().at(8), -3.0f32, 8.0).unwrap();
    assert_eq!(world.good(&a).value::<f32>().unwrap(), -3.0);
    assert_eq!(memory.to_vec(0, 8).unwrap(), 1.75f64.to_le_bytes());
    assert_eq!(memory.to_vec(8, 4).unwrap(), 8.0f32.to_le_bytes());
}

/// Every pair that is said to be possible, with as many elements as are said to be possible, does what it should.
pub(crate) fn all_that_is_possible(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let memory = b.register(2048, Access::REMOTE).unwrap();
    let classes = [
        (AtomicClass::Plain, Operation::Atomic),
        (AtomicClass::Fetch, Operation::FetchAtomic),
        (AtomicClass::Compare, Operation::CompareAtomic),
    ];
    let pairs = AtomicOperation::ALL
        .iter()
        .flat_map(|operation| Datatype::ALL.iter().map(move |datatype| (operation, datatype)));
    for ((&operation, &datatype), (class, command)) in pairs.flat_map(|pair| classes.map(|class| (pair, class))) {
        let count = raw::atomic_count_max(operation, datatype, class);
        let call = AtomicCall::new(operation, datatype, count.max(1) as u16);
        let (bytes, payload) = (call.bytes().unwrap(), call.payload_bytes().unwrap());
        let results = if class == AtomicClass::Plain { 0 } else { bytes };
        let old = pattern(u64::from(datatype.code()), bytes);
        let sent = pattern(u64::from(operation.code()), payload);
        // Complex numbers lie where compilers put them.
        let at = datatype.alignment();
        memory.write(at, &old).unwrap();
        let buffer = [vec![0; results], sent.clone()].concat();
        let remote = memory.remote().at(at as u64);
        let posted = a.endpoint.atomic_by_code(command, to_b, remote, call, buffer, Options::default());
        assert_eq!(posted.is_ok(), count > 0, "{operation:?} {datatype:?} {class:?}");
        if posted.is_err() {
            continue;
        }
        let done = world.good(&a);
        if results > 0 {
            let mut fetched = vec![0; results];
            done.buffer.unwrap().read(0, &mut fetched).unwrap();
            assert!(fetched == old, "{operation:?} {datatype:?} {class:?}");
        }
        let each = datatype.bytes();
        let (compares, operands) = if payload > bytes { sent.split_at(bytes) } else { (&[] as &[u8], &sent[..]) };
        let element = |of: &[u8], index: usize| of.chunks(each).nth(index).unwrap_or_default().to_vec();
        let now = memory.to_vec(at, bytes).unwrap();
        for index in 0..count {
            let mut new = vec![0; each];
            let (operand, compare) = (element(operands, index), element(compares, index));
            weft_core::atomic::apply(operation, datatype, &element(&old, index), &operand, &compare, &mut new).unwrap();
            assert_eq!(element(&now, index), new, "{operation:?} {datatype:?} {class:?}");
        }
    }
    // One more is too long, also for those who only read.
    let call = AtomicCall::new(AtomicOperation::Read, Datatype::Uint64, 129);
    let posted = a.endpoint.atomic_by_code(
        Operation::FetchAtomic,
        to_b,
        memory.remote(),
        call,
        vec![0; 1032],
        Options::default(),
    );
    assert!(matches!(posted.unwrap_err().error, Error::Post(PostError::TooLong { length: 1032, limit: 1024 })));
}

pub(crate) fn what_does_not_exist_is_refused(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let memory = b.register(64, Access::REMOTE).unwrap();
    let refused = a.endpoint.atomic(to_b, memory.remote(), AtomicOperation::BitwiseOr, &[1.0f32]).unwrap_err();
    assert!(matches!(refused.error, Error::Post(PostError::NotSupported)), "{refused}");
    let refused = a.endpoint.fetch_atomic(to_b, memory.remote(), AtomicOperation::SwapIfEqual, &[1u8]).unwrap_err();
    assert!(matches!(refused.error, Error::Post(PostError::NotSupported)), "{refused}");
    let refused = a.endpoint.atomic::<u8>(to_b, memory.remote(), AtomicOperation::Sum, &[]).unwrap_err();
    assert!(matches!(refused.error, Error::Post(_)), "{refused}");
    let refused =
        a.endpoint.compare_atomic(to_b, memory.remote(), AtomicOperation::SwapIfEqual, &[1u8], &[1, 2]).unwrap_err();
    assert!(matches!(refused.error, Error::Post(PostError::BadBuffer)), "{refused}");
}
