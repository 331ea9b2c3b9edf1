//! Copies by the system, with this process as its own peer. What takes two is in `processes.rs`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use proptest::prelude::*;
use weft_core::memory::{Access, Fault, Granted, LocalKey, Memory};
use weft_mem::attach::{self, Span, TransferError};
use weft_mem::{Addressing, Buffer, HostMemory, MemoryRegion};

fn own_pid() -> i32 {
    std::process::id() as i32
}

fn span_of(bytes: &[u8]) -> Span {
    Span { address: bytes.as_ptr().addr() as u64, length: bytes.len() as u64 }
}

/// All pieces of an attached buffer.
fn pieces(memory: &HostMemory, key: LocalKey) -> Vec<Granted> {
    let (mut pieces, mut offset) = (Vec::new(), 0);
    let length = memory.local_length(key).unwrap();
    while offset < length {
        let piece = memory.local(key, offset, length - offset).unwrap();
        offset += piece.length;
        pieces.push(piece);
    }
    pieces
}

#[test]
fn bytes_are_fetched_and_stored() {
    let mut memory = HostMemory::new();
    let peer: Vec<u8> = (0..=255).collect();
    let key = memory.attach(vec![0; 100].into()).unwrap();
    let to = pieces(&memory, key);
    assert_eq!(attach::fetch(own_pid(), &[span_of(&peer)], 5, &mut memory, &to).unwrap(), 100);
    assert_eq!(memory.take(key).unwrap().into_vec().unwrap(), peer[5..105]);
    let region = MemoryRegion::alloc_zeroed(300).unwrap();
    let span = Span { address: region.as_ptr().addr() as u64, length: 300 };
    let key = memory.attach(peer.clone().into()).unwrap();
    let from = pieces(&memory, key);
    assert_eq!(attach::store(own_pid(), &[span], 44, &memory, &from).unwrap(), 256);
    assert_eq!(region.to_vec(43, 257).unwrap(), [&[0][..], &peer].concat());
    assert_eq!(attach::store(own_pid(), &[span], 0, &memory, &[]).unwrap(), 0);
}

#[test]
fn spans_tell_where_bytes_are() {
    let mut memory = HostMemory::new();
    let vectors: Vec<Vec<u8>> = (1u8..=5).map(|value| vec![value; 10]).collect();
    let expected: Vec<Span> = vectors.iter().map(|bytes| span_of(bytes)).collect();
    let list: Vec<Buffer> = vectors.into_iter().map(Buffer::from).collect();
    let key = memory.attach(list.into()).unwrap();
    let mut spans = vec![Span::default()];
    assert_eq!(memory.local_spans(key, 0, 50, 8, &mut spans), Ok(50));
    assert_eq!(spans, expected);
    assert_eq!(memory.local_spans(key, 15, 20, 2, &mut spans), Ok(15), "two of three pieces");
    let second = Span { address: expected[1].address + 5, length: 5 };
    assert_eq!(spans, [second, expected[2]]);
    assert_eq!(memory.local_spans(key, 45, 6, 8, &mut spans), Err(Fault::OutOfBounds));
    assert_eq!(memory.local_spans(key, u64::MAX, 1, 8, &mut spans), Err(Fault::OutOfBounds));
    assert_eq!(memory.local_spans(key, 50, 0, 8, &mut spans), Ok(0));
    assert!(spans.is_empty());
    memory.release(key);
    assert_eq!(memory.local_spans(key, 0, 1, 8, &mut spans), Err(Fault::UnknownKey));
}

#[test]
fn this_side_touches_only_what_it_may() {
    let mut memory = HostMemory::new();
    let peer = [1u8; 16];
    let span = span_of(&peer);
    let fixed = memory.attach(Buffer::from(&[0u8; 16][..])).unwrap();
    let fixed = memory.local(fixed, 0, 16).unwrap();
    let local = |result| match result {
        Err(TransferError::Local(fault)) => fault,
        other => panic!("{other:?}"),
    };
    assert_eq!(local(attach::fetch(own_pid(), &[span], 0, &mut memory, &[fixed])), Fault::Forbidden);
    let region = MemoryRegion::alloc_zeroed(16).unwrap();
    let grant = memory.register(&region, Access::REMOTE_READ, Addressing::Offset).unwrap();
    let piece = memory.remote(grant.key, 0, 16, Access::REMOTE_READ).unwrap();
    assert_eq!(local(attach::fetch(own_pid(), &[span], 0, &mut memory, &[piece])), Fault::Forbidden);
    let beyond = Granted { length: 17, ..piece };
    assert_eq!(local(attach::store(own_pid(), &[span], 0, &memory, &[beyond])), Fault::OutOfBounds);
    memory.deregister(grant.key).unwrap();
    assert_eq!(local(attach::store(own_pid(), &[span], 0, &memory, &[piece])), Fault::UnknownKey);
    assert_eq!(region.to_vec(0, 16).unwrap(), [0; 16]);
}

#[test]
fn a_peer_that_lies_gets_an_error() {
    let mut memory = HostMemory::new();
    let key = memory.attach(vec![0; 8192].into()).unwrap();
    let to = pieces(&memory, key);
    let page = MemoryRegion::alloc_shared(4096).unwrap();
    let good = Span { address: page.as_ptr().addr() as u64, length: 4096 };
    let nothing = [0, 8, 1 << 46, 1 << 63, u64::MAX - 8191].map(|address| Span { address, length: 8192 });
    for bad in nothing.into_iter().chain([Span { address: u64::MAX, length: u64::MAX }]) {
        for spans in [&[bad][..], &[good, bad], &[good, Span::default(), bad, good]] {
            let result = attach::fetch(own_pid(), spans, 0, &mut memory, &to);
            assert!(matches!(result, Err(TransferError::BadAddress)), "{spans:?} {result:?}");
            let result = attach::store(own_pid(), spans, 0, &memory, &to);
            assert!(matches!(result, Err(TransferError::BadAddress)), "{spans:?} {result:?}");
        }
    }
    for (spans, skip) in [(&[][..], 0), (&[good][..], 0), (&[good, good][..], 1), (&[good, good][..], u64::MAX)] {
        let result = attach::fetch(own_pid(), spans, skip, &mut memory, &to);
        assert!(matches!(result, Err(TransferError::TooShort)), "{result:?}");
    }
    let constant = span_of(b"what the program may not write");
    let result = attach::store(own_pid(), &[constant], 0, &memory, &[to[0].first(8)]);
    assert!(matches!(result, Err(TransferError::BadAddress)), "{result:?}");
    assert!(matches!(attach::fetch(-1, &[good, good], 0, &mut memory, &to), Err(TransferError::Gone)));
}

/// Of a region that need not be mapped: the fault is whose bytes are not there.
#[test]
fn what_is_not_mapped_here_is_no_fault_of_the_peer() {
    let mut memory = HostMemory::new();
    let mut here = vec![1u8; 64];
    // SAFETY: of it only `here` is reached, which is not looked at meanwhile.
    let everything = unsafe { MemoryRegion::from_raw_unmapped(std::ptr::null_mut(), usize::MAX, true) };
    memory.register_as(1, &everything, Access::REMOTE, Addressing::Virtual).unwrap();
    let peer = vec![2u8; 64];
    let start = here.as_mut_ptr().addr() as u64;
    let nowhere = [Span { address: 64, length: 64 }];
    for (address, span, expected) in [
        (start, [span_of(&peer)], None),
        (128, [span_of(&peer)], Some(true)),
        (start, nowhere, Some(false)),
        (128, nowhere, Some(true)),
    ] {
        let to = memory.remote(1, address, 64, Access::REMOTE_WRITE).unwrap();
        let fetched = attach::fetch(own_pid(), &span, 0, &mut memory, &[to]);
        let from = memory.remote(1, address, 64, Access::REMOTE_READ).unwrap();
        let stored = attach::store(own_pid(), &span, 0, &memory, &[from]);
        for result in [fetched, stored] {
            let is_ours = result.err().map(|error| match error {
                TransferError::Local(Fault::OutOfBounds) => true,
                TransferError::BadAddress => false,
                error => panic!("{error}"),
            });
            assert_eq!(is_ours, expected, "{address:#x} {span:?}");
        }
    }
    assert_eq!(here, peer);
}

#[test]
fn a_probe_reads_one_word() {
    let word = Box::new(0x1234_5678_9abc_def0u64);
    let address = (&raw const *word).addr() as u64;
    assert!(attach::can_attach(own_pid(), address, *word));
    assert!(!attach::can_attach(own_pid(), address, 1));
    assert!(!attach::can_attach(own_pid(), 0, 0));
    assert!(!attach::can_attach(-1, address, *word));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Lists of any pieces on both sides, also more than one call takes: the bytes are those of the concatenations.
    #[test]
    fn lists_are_one_behind_the_other(
        remote in prop::collection::vec(0usize..40, 0..200),
        local in prop::collection::vec(0usize..40, 0..200),
        skip in 0usize..200,
    ) {
        let mut memory = HostMemory::new();
        let mut value = 0u8;
        let mut fill = |length: &usize| -> Vec<u8> { (0..*length).map(|_| { value = value.wrapping_add(1); value }).collect() };
        let peer: Vec<Vec<u8>> = remote.iter().map(&mut fill).collect();
        let all: Vec<u8> = peer.concat();
        let spans: Vec<Span> = peer.iter().map(|bytes| span_of(bytes)).collect();
        let wanted: usize = local.iter().sum();
        let list: Vec<Buffer> = local.iter().map(|&length| Buffer::from(vec![0; length])).collect();
        let key = memory.attach(list.into()).unwrap();
        let to = pieces(&memory, key);
        let result = attach::fetch(own_pid(), &spans, skip as u64, &mut memory, &to);
        if wanted > 0 && skip + wanted > all.len() {
            prop_assert!(matches!(result, Err(TransferError::TooShort)));
        } else {
            prop_assert_eq!(result.unwrap(), wanted);
            let mut bytes = vec![0; wanted];
            memory.take(key).unwrap().read(0, &mut bytes).unwrap();
            prop_assert_eq!(&bytes[..], all.get(skip..skip + wanted).unwrap_or_default());
        }
    }
}
