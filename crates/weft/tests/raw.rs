//! The layer for faces in other languages: memory and contexts of the caller.

mod common;

use std::ops::ControlFlow;
use std::time::Duration;

use weft::limits::COPIED_MAX_BYTES;
use weft::raw::{self, AtomicCall, Buffer, CommandFlags, Operation};
use weft::{
    Access, AtomicOperation, Datatype, Domain, Fabric, Failure, Level, Progress, Registrable, RemoteAddress, Road,
};

use weft_mem::limits::INJECT_MAX_BYTES;

use common::patient;

const PATIENCE: Option<Duration> = Some(Duration::from_secs(60));

#[test]
fn commands_with_memory_of_the_caller() {
    let domain = Domain::udp("127.0.0.1:0").unwrap();
    let queue = domain.completion_queue(64);
    let endpoint = domain.endpoint(&queue).unwrap();
    let myself = domain.addresses().insert(endpoint.address()).unwrap();
    let next = || queue.wait(PATIENCE).unwrap().unwrap().ok().unwrap();

    // A part of one buffer goes to a part of another.
    let (mut from, mut to) = (b"..hello..".to_vec(), vec![b'-'; 9]);
    // SAFETY: both vectors outlive their operations, whose completions are awaited below, and are not touched before.
    let (source, target) =
        unsafe { (Buffer::from_raw(from.as_mut_ptr(), 9), Buffer::from_raw(to.as_mut_ptr(), to.len())) };
    let mut receive = raw::receive(&endpoint, 8);
    (receive.offset, receive.context, receive.tagged, receive.tag) = (1, 17, true, 5);
    raw::post_receive(&endpoint, &receive, target).unwrap();
    let mut command = raw::command(&endpoint, Operation::TaggedSend, myself);
    (command.offset, command.length, command.context, command.address) = (2, 5, 18, 5);
    (command.level, command.flags, command.immediate) = (Level::Delivered, CommandFlags::IMMEDIATE, 99);
    raw::post(&endpoint, &command, Some(source)).unwrap();
    let mut ended = [next(), next()];
    ended.sort_by_key(|completion| completion.context);
    let [received, sent] = ended;
    assert_eq!((received.context, received.immediate, received.length), (17, Some(99), 5));
    assert_eq!(sent.context, 18);
    assert_eq!(to, b"-hello---");

    // Results of an atomic go to the beginning of the buffer that its operands end.
    let mut word = vec![40u64];
    // SAFETY: the vector outlives the registration, and is only read through the region meanwhile.
    let memory = unsafe { weft_mem::MemoryRegion::from_raw(word.as_mut_ptr().cast(), 8) };
    let region =
        domain.register(Registrable::from(memory).addressed(raw::Addressing::Virtual), Access::REMOTE).unwrap();
    let mut command = raw::command(&endpoint, Operation::FetchAtomic, myself);
    command.atomic = AtomicCall::new(AtomicOperation::Sum, Datatype::Uint64, 1);
    (command.offset, command.length, command.context) = (8, 8, 19);
    (command.address, command.key) = (region.address(), region.key());
    let operand = [0u64.to_le_bytes(), 2u64.to_le_bytes()].concat();
    raw::post(&endpoint, &command, Some(operand.into())).unwrap();
    let fetched = next();
    assert_eq!((fetched.context, fetched.value::<u64>().unwrap()), (19, 40));
    assert_eq!(region.load_u64(0).unwrap(), 42);

    // Copies, and what reaches outside of its buffer.
    let mut command = raw::command(&endpoint, Operation::Write, myself);
    (command.address, command.key, command.context) = (region.address(), region.key(), 20);
    raw::post_copy(&endpoint, &command, &7u64.to_le_bytes()).unwrap();
    assert_eq!(next().context, 20);
    assert_eq!(region.load_u64(0).unwrap(), 7);
    (command.offset, command.length) = (4, 8);
    let refused = raw::post(&endpoint, &command, Some(vec![0; 8].into())).unwrap_err();
    assert!(matches!(refused.error, weft::Error::Post(weft::PostError::BadBuffer)));
    assert_eq!(refused.buffer.unwrap().len(), 8);
}

#[test]
fn completions_are_shown_where_they_are() {
    for (road, alone) in [(Road::Automatic, false), (Road::Packets, false), (Road::Automatic, true)] {
        let mut builder = Fabric::new("shown").unwrap().domain().road(road).configure(patient);
        if alone {
            // SAFETY: one thread uses the domain.
            builder = builder.single_threaded(unsafe { raw::OneAtATime::promise() });
        }
        let domain = builder.udp("127.0.0.1:0").unwrap();
        let queue = domain.completion_queue(64);
        let endpoint = domain.endpoint(&queue).unwrap();
        let myself = domain.addresses().insert(endpoint.address()).unwrap();

        let (lengths, mut from, mut to) = ([8usize, 200, 5000], vec![7u8; 5000], vec![0u8; 15_000]);
        for round in 0..3u64 {
            to.fill(0);
            let mut contexts: Vec<u64> = Vec::new();
            for (index, length) in lengths.into_iter().enumerate() {
                let at = to.as_mut_ptr().wrapping_add(5000 * index);
                // SAFETY: both vectors outlive the operations, whose completions are awaited below.
                let (target, source) =
                    unsafe { (Buffer::from_raw(at, 5000), Buffer::from_raw_read_only(from.as_mut_ptr(), length)) };
                let mut receive = raw::receive(&endpoint, 5000);
                (receive.context, receive.tagged, receive.tag) = (10 + index as u64, true, length as u64);
                raw::post_receive(&endpoint, &receive, target).unwrap();
                let mut command = raw::command(&endpoint, Operation::TaggedSend, myself);
                (command.context, command.address) = (20 + index as u64, length as u64);
                raw::post_lent(&endpoint, &command, source).unwrap();
            }
            let mut stay = true;
            while contexts.len() < 6 {
                let limit = if round == 0 { 1 } else { 4 };
                let before = contexts.len();
                let count = raw::read_completions(&queue, limit, |ended| {
                    assert_eq!(ended.result, Ok(()));
                    if std::mem::take(&mut stay) {
                        return ControlFlow::Break(());
                    }
                    if ended.kind == weft::CompletionKind::TaggedReceive {
                        assert_eq!((ended.source(), ended.peer), (Some(endpoint.address()), Some(myself)));
                        let length = lengths[ended.context as usize - 10];
                        assert_eq!((ended.length, ended.tag), (length as u64, length as u64));
                    }
                    contexts.push(ended.context);
                    ControlFlow::Continue(())
                });
                assert_eq!(count.unwrap(), contexts.len() - before);
                assert!(contexts.len() - before <= limit);
            }
            contexts.sort_unstable();
            assert_eq!(contexts, [10, 11, 12, 20, 21, 22]);
            for (index, length) in lengths.into_iter().enumerate() {
                let received = to.get(5000 * index..5000 * (index + 1)).unwrap();
                assert!(received.iter().enumerate().all(|(at, byte)| *byte == if at < length { 7 } else { 0 }));
            }
        }
        assert_eq!(raw::read_completions(&queue, 8, |_| ControlFlow::Continue(())).unwrap(), 0);
    }
}

/// Everything that this process has is registered, mapped or not: accesses to what is not mapped are refused, and nothing
/// else happens.
#[test]
fn memory_that_need_not_be_mapped() {
    for road in [Road::Packets, Road::Automatic] {
        let fabric = Fabric::new("unmapped").unwrap();
        let builder = || fabric.domain().progress(Progress::Automatic).road(road).configure(patient);
        let domains = [0, 1].map(|_| builder().udp("127.0.0.1:0").unwrap());
        let queues = domains.each_ref().map(|domain| domain.completion_queue(64));
        let [a, b] = [0, 1].map(|index: usize| domains[index].endpoint(&queues[index]).unwrap());
        let to_b = domains[0].addresses().insert(b.address()).unwrap();
        let next = || queues[0].wait(PATIENCE).unwrap().unwrap();
        // SAFETY: peers reach only the vector below, which is not looked at meanwhile.
        let memory = unsafe { raw::Memory::from_raw_unmapped(std::ptr::null_mut(), usize::MAX, true) };
        let everything = Registrable::from(memory).addressed(raw::Addressing::Virtual).with_key(1);
        let region = domains[1].register(everything, Access::REMOTE).unwrap();
        assert_eq!((region.address(), region.key()), (0, 1));
        let mut there = vec![0u64; 200_000];
        let start = there.as_mut_ptr() as u64;
        let at = |address: u64| RemoteAddress { address, key: 1 };

        for round in 1..=3u8 {
            for length in [1, 8, 1000, 5000, 70_000, 1_000_000] {
                let bytes: Vec<u8> = (0..length).map(|index| (index % 251) as u8 ^ round).collect();
                a.write(to_b, at(start + 8), bytes.clone()).unwrap();
                next().ok().unwrap();
                a.read(to_b, at(start + 8), vec![0; length]).unwrap();
                assert!(next().ok().unwrap().into_bytes().unwrap() == bytes, "{length} bytes on {road:?}");
                // Nothing is there, neither near the beginning nor near the end.
                for nowhere in [64, u64::MAX - (2 << 20)] {
                    a.write(to_b, at(nowhere), bytes.clone()).unwrap();
                    assert_eq!(next().result, Err(Failure::AccessRefused), "write {length} bytes on {road:?}");
                    a.read(to_b, at(nowhere), vec![0; length]).unwrap();
                    assert_eq!(next().result, Err(Failure::AccessRefused), "read {length} bytes on {road:?}");
                }
            }
            // The memory changes without anybody being told.
            there[1] = u64::from(round);
            a.read(to_b, at(start + 8), vec![0; 8]).unwrap();
            let found = next().ok().unwrap().into_bytes().unwrap();
            assert_eq!(found, u64::from(round).to_le_bytes(), "{road:?}");
            a.fetch_add(to_b, at(start + 8), 5u64).unwrap();
            assert_eq!(next().ok().unwrap().value::<u64>().unwrap(), u64::from(round));
            assert_eq!(there[1], u64::from(round) + 5);
            a.fetch_add(to_b, at(64), 5u64).unwrap();
            assert_eq!(next().result, Err(Failure::AccessRefused), "{road:?}");
        }
        assert_eq!(there[0], 0);
        drop(region);
        a.read(to_b, at(start), vec![0; 8]).unwrap();
        assert_eq!(next().result, Err(Failure::AccessRefused), "deregistered");
    }
}

#[test]
fn a_domain_with_a_thread_of_its_own_needs_its_lock() {
    let builder = Fabric::new("alone").unwrap().domain().progress(Progress::Automatic);
    // SAFETY: no such domain is made.
    let opened = builder.single_threaded(unsafe { raw::OneAtATime::promise() }).udp("127.0.0.1:0");
    assert!(matches!(opened, Err(weft::Error::NotSingleThreaded)));
}

#[test]
fn completions_keep_the_address_of_a_name_that_goes() {
    let fabric = Fabric::new("names").unwrap();
    let domains = [fabric.udp("127.0.0.1:0").unwrap(), fabric.udp("127.0.0.1:0").unwrap()];
    let queues = domains.each_ref().map(|domain| domain.completion_queue(64));
    let endpoints = [0, 1].map(|index: usize| domains[index].endpoint(&queues[index]).unwrap());
    let to_b = domains[0].addresses().insert(endpoints[1].address()).unwrap();
    let send = |named: bool| {
        let to_a = named.then(|| domains[1].addresses().insert(endpoints[0].address()).unwrap());
        endpoints[1].receive(vec![0; 8]).unwrap();
        endpoints[0].inject(to_b, b"who am I").unwrap();
        while !queues[1].try_wait().is_ok_and(|sleeps| !sleeps) {
            domains[0].progress().unwrap();
        }
        to_a
    };
    // Two of a stranger, one of a friend, and one of a friend that is forgotten before it is read.
    let mut expected = vec![None];
    send(false);
    let friend = send(true);
    expected.push(friend);
    assert!(domains[1].addresses().remove(friend.unwrap()));
    expected.push(send(false));
    expected.push(send(true));
    for peer in expected {
        let received = queues[1].wait(PATIENCE).unwrap().unwrap();
        assert_eq!((received.peer, received.source), (peer, Some(endpoints[0].address())));
    }
}

/// Sends that end when they are copied, and others that end when the target has them.
#[test]
fn short_sends_end_when_they_are_copied() {
    let domain =
        || Fabric::new("copied").unwrap().domain().road(Road::Packets).progress(Progress::Manual).configure(patient);
    let (a, b) = (domain().udp("127.0.0.1:0").unwrap(), domain().udp("127.0.0.1:0").unwrap());
    let (at_a, at_b) = (a.completion_queue(6), b.completion_queue(16));
    let (from, to) = (a.endpoint(&at_a).unwrap(), b.endpoint(&at_b).unwrap());
    let peer = a.addresses().insert(to.address()).unwrap();
    let mut bytes = vec![7u8; INJECT_MAX_BYTES + 1];
    let mut post = |level, length: usize, context| {
        let mut command = raw::command(&from, Operation::Send, peer);
        (command.level, command.context) = (level, context);
        // SAFETY: the vector lives longer than the operations, and is written only when none of them reads it any more.
        let buffer = unsafe { Buffer::from_raw_read_only(bytes.as_mut_ptr(), length) };
        raw::post_lent(&from, &command, buffer).unwrap();
    };
    let ended = || at_a.read().unwrap().map(|completion| completion.ok().unwrap().context);
    let lengths = [10, COPIED_MAX_BYTES, INJECT_MAX_BYTES + 1, 20, 30];
    for length in lengths {
        to.receive(vec![0; length]).unwrap();
    }
    post(Level::Injected, lengths[0], 1);
    post(Level::Injected, lengths[1], 2);
    assert_eq!((ended(), ended()), (Some(1), Some(2)), "nobody has received them");
    // Too long to be copied; another level; and no second place for a failure: one is kept for each of those before, and
    // one for what is received.
    post(Level::Injected, lengths[2], 3);
    post(Level::Transmitted, lengths[3], 4);
    post(Level::Injected, lengths[4], 5);
    assert_eq!(ended(), None, "the target's answer is awaited");
    for context in 3..=5 {
        while ended() != Some(context) {
            b.progress().unwrap();
        }
    }
    bytes.fill(9);
    for length in &lengths {
        let received = at_b.wait(PATIENCE).unwrap().unwrap().ok().unwrap();
        assert_eq!(received.into_bytes().unwrap(), vec![7; *length]);
    }
}

/// A program that computes after its sends were done keeps none of them from its peer, though it does not come back.
#[test]
fn what_was_read_to_be_done_is_on_its_way() {
    let domain =
        || Fabric::new("gone").unwrap().domain().road(Road::Packets).progress(Progress::Manual).configure(patient);
    let (a, b) = (domain().udp("127.0.0.1:0").unwrap(), domain().udp("127.0.0.1:0").unwrap());
    let (at_a, at_b) = (a.completion_queue(64), b.completion_queue(64));
    let (from, to) = (a.endpoint(&at_a).unwrap(), b.endpoint(&at_b).unwrap());
    let peer = a.addresses().insert(to.address()).unwrap();
    let mut bytes = [7u8; 64];
    // Alone, and in company that is expected or not.
    for sends in [1, 3, 3, 2, 7, 1] {
        // The first contact needs both.
        to.receive(vec![0; 64]).unwrap();
        from.inject(peer, &bytes).unwrap();
        while at_b.read().unwrap().is_none() {
            a.progress().unwrap();
        }
        for context in 0..sends {
            to.receive(vec![0; 64]).unwrap();
            let mut command = raw::command(&from, Operation::Send, peer);
            (command.level, command.context) = (Level::Injected, context);
            // SAFETY: the bytes live longer than the operations, and nobody writes them.
            let buffer = unsafe { Buffer::from_raw_read_only(bytes.as_mut_ptr(), bytes.len()) };
            raw::post_lent(&from, &command, buffer).unwrap();
        }
        for context in 0..sends {
            assert_eq!(at_a.read().unwrap().unwrap().ok().unwrap().context, context);
        }
        for _ in 0..sends {
            assert!(at_b.wait(PATIENCE).unwrap().expect("it waits at its sender").result.is_ok());
        }
    }
}
