//! The steady state does not allocate: not for messages, nor for remote memory, nor for atomics.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "clippy.toml allows them in tests, but not in the functions that tests call"
)]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use weft::raw::{self, AtomicCall, Operation, RemoteRange};
use weft::{Access, AtomicOperation, Buffer, CompletionQueue, Datatype, Domain, Fabric, PeerId, Road};

use common::patient;

struct Counting;

thread_local! {
    /// Of this thread, which does all the work: the one that runs the tests says now and then how long this one takes.
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: all work is the system's; counting changes nothing of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's contract is the system's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract is the system's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct Pair {
    domains: [Domain; 2],
    queues: [CompletionQueue; 2],
    endpoints: [weft::Endpoint; 2],
    to_b: PeerId,
}

impl Pair {
    fn next(&self, node: usize) -> weft::Completion {
        loop {
            if let Some(completion) = self.queues[node].read().unwrap() {
                return completion.ok().unwrap();
            }
            self.domains[1 - node].progress().unwrap();
        }
    }
}

#[test]
fn nothing_is_allocated_for_each_operation() {
    for road in [Road::Packets, Road::Automatic] {
        nothing_is_allocated(road);
    }
}

fn nothing_is_allocated(road: Road) {
    let fabric = Fabric::new("allocation").unwrap();
    let domains = [0, 1].map(|_| fabric.domain().road(road).configure(patient).udp("127.0.0.1:0").unwrap());
    let queues = domains.each_ref().map(|domain| domain.completion_queue(256));
    let endpoints = [0, 1].map(|index: usize| domains[index].endpoint(&queues[index]).unwrap());
    let to_b = domains[0].addresses().insert(endpoints[1].address()).unwrap();
    let memory = domains[1].register(1 << 16, Access::REMOTE).unwrap();
    let pair = Pair { domains, queues, endpoints, to_b };
    let mut buffers =
        [8, 4096, 60_000].map(|length| Some((Buffer::from(vec![1; length]), Buffer::from(vec![0; length]))));

    let part = |offset: u64, length: u64| RemoteRange { address: offset, key: memory.key(), length };
    let ranges = [part(0, 3000), part(9000, 1000), part(20_000, 96)];
    let operand = Buffer::from(1u64.to_le_bytes().to_vec());
    let mut results = Some(Buffer::from(vec![0; 8]));

    let mut allocated = Vec::new();
    // While the machine stood still, so that packets were sent again, and a little after it is no steady state.
    let timeouts = || pair.domains.each_ref().map(|domain| domain.statistics().timeouts);
    let (mut warm, mut stood) = (300, timeouts());
    while allocated.len() < 300 {
        let before = ALLOCATIONS.with(Cell::get);
        for pieces in &mut buffers {
            let (from, to) = pieces.take().unwrap();
            pair.endpoints[1].receive(to).unwrap();
            pair.endpoints[0].send(pair.to_b, from).unwrap();
            let to = pair.next(1).buffer.unwrap();
            let from = pair.next(0).buffer.unwrap();
            pair.endpoints[0].write(pair.to_b, memory.remote(), from).unwrap();
            let from = pair.next(0).buffer.unwrap();
            pair.endpoints[0].read(pair.to_b, memory.remote(), from).unwrap();
            let mut from = pair.next(0).buffer.unwrap();
            if from.len() == 4096 {
                let mut command = raw::command(&pair.endpoints[0], Operation::Write, pair.to_b);
                command.length = 4096;
                raw::post_vector(&pair.endpoints[0], &command, from, &ranges).unwrap();
                from = pair.next(0).buffer.unwrap();
            }
            *pieces = Some((from, to));
        }
        let mut command = raw::command(&pair.endpoints[0], Operation::FetchAtomic, pair.to_b);
        command.atomic = AtomicCall::new(AtomicOperation::Sum, Datatype::Uint64, 1);
        (command.address, command.key) = (60_000, memory.key());
        raw::post_atomic(&pair.endpoints[0], &command, Some(&operand), None, results.take()).unwrap();
        results = pair.next(0).buffer;
        assert_eq!(results.as_ref().unwrap().len(), 8);
        pair.endpoints[0].inject_write(pair.to_b, memory.remote(), &[1; 64]).unwrap();
        let more = ALLOCATIONS.with(Cell::get) - before;
        let now = timeouts();
        if stood != now {
            (warm, stood) = (warm.max(10), now);
        } else if warm > 0 {
            warm -= 1;
        } else {
            allocated.push(more);
        }
    }
    let total: usize = allocated.iter().sum();
    // Tables that grow now and then are no steady state; one for every operation (ten a round) would be 3000.
    assert!(total == 0, "{total} allocations in 300 rounds on {road:?}: {allocated:?}");
}
