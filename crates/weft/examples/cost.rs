//! What a short message inside a node costs, in steps that a profiler tells apart: two NICs of one process, one thread.
//!
//! `valgrind --tool=callgrind --collect-atstart=no --toggle-collect='cost::rounds' target/release/examples/cost 1000 16`, then
//! `callgrind_annotate --inclusive=yes`: the functions below are never inlined, so each has a line of its own. Without a
//! profiler it prints the time of a message. Arguments: rounds, messages of a round (0: a conversation), bytes, and 1 for
//! domains without a lock, and 1 for packets (then only a conversation makes sense).
#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a profile is of use only while everything works, and the pairs have two sides"
)]

use std::hint::black_box;
use std::ops::ControlFlow;
use std::time::Instant;

use weft::raw::{self, Buffer, Operation};
use weft::{CompletionQueue, Domain, Endpoint, Fabric, PeerId, Road};

struct Side {
    #[expect(dead_code, reason = "keeps it open")]
    domain: Domain,
    queue: CompletionQueue,
    /// Never has anything: who reads it only makes progress.
    idle: CompletionQueue,
    endpoint: Endpoint,
    peer: PeerId,
    memory: Vec<u8>,
}

#[inline(never)]
fn post_receive(side: &mut Side, length: usize) {
    let mut receive = raw::receive(&side.endpoint, length as u64);
    (receive.tagged, receive.tag, receive.context) = (true, 7, 1);
    // SAFETY: the memory outlives the endpoint, and nobody looks at it.
    let buffer = unsafe { Buffer::from_raw(side.memory.as_mut_ptr(), length) };
    raw::post_receive(&side.endpoint, &receive, buffer).expect("room for a receive");
}

#[inline(never)]
fn post_send(side: &mut Side, length: usize) {
    let mut command = raw::command(&side.endpoint, Operation::TaggedSend, side.peer);
    (command.address, command.context) = (7, 2);
    // SAFETY: the memory outlives the endpoint.
    let buffer = unsafe { Buffer::from_raw_read_only(side.memory.as_ptr(), length) };
    raw::post_lent(&side.endpoint, &command, buffer).expect("room for a message");
}

#[inline(never)]
fn deliver(side: &mut Side) {
    raw::read_completions(&side.idle, 1, |_| ControlFlow::Continue(())).expect("a good link");
}

#[inline(never)]
fn read(side: &mut Side) -> usize {
    let read = raw::read_completions(&side.queue, 16, |ended| {
        black_box((ended.context, ended.kind, ended.length, ended.tag, ended.peer, ended.result.is_ok()));
        ControlFlow::Continue(())
    });
    read.expect("a good link")
}

/// `batch` messages one way, `rounds` times. A batch of 0: one message there and one back, as in a conversation, where
/// reading brings the message too.
#[inline(never)]
fn rounds(sides: &mut [Side; 2], rounds: usize, batch: usize, length: usize) {
    let [a, b] = sides;
    for _ in 0..rounds {
        if batch == 0 {
            post_receive(b, length);
            post_send(a, length);
            read(a);
            while read(b) == 0 {}
            post_receive(a, length);
            post_send(b, length);
            read(b);
            while read(a) == 0 {}
            continue;
        }
        (0..batch).for_each(|_| post_receive(b, length));
        (0..batch).for_each(|_| post_send(a, length));
        deliver(b);
        let mut received = 0;
        while received < batch {
            received += read(b);
        }
        let mut sent = 0;
        while sent < batch {
            sent += read(a);
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut numbers = std::env::args().skip(1).map(|number| number.parse::<usize>());
    let mut number = |otherwise| numbers.next().unwrap_or(Ok(otherwise));
    let (count, batch, length) = (number(100_000)?, number(16)?, number(8)?);
    let fabric = Fabric::new("cost")?;
    let alone = number(0)? != 0;
    let road = if number(0)? != 0 { Road::Packets } else { Road::Automatic };
    let domain = || match alone {
        // SAFETY: this program has one thread.
        true => fabric.domain().road(road).single_threaded(unsafe { raw::OneAtATime::promise() }).udp("127.0.0.1:0"),
        false => fabric.domain().road(road).udp("127.0.0.1:0"),
    };
    let domains = [domain()?, domain()?];
    let queues = domains.each_ref().map(|domain| [domain.completion_queue(1024), domain.completion_queue(16)]);
    let [a, b] = [0, 1].map(|index: usize| domains[index].endpoint(&queues[index][0]));
    let endpoints = [a?, b?];
    let peers = [0, 1].map(|index: usize| domains[index].addresses().insert(endpoints[1 - index].address()));
    let [to_b, to_a] = peers;
    let peers = [to_b?, to_a?];
    let mut sides = [0, 1].map(|index: usize| Side {
        domain: domains[index].clone(),
        queue: queues[index][0].clone(),
        idle: queues[index][1].clone(),
        endpoint: endpoints[index].clone(),
        peer: peers[index],
        memory: vec![0; length.max(8)],
    });
    // Channels are made and accepted: a message each way, with rounds in which everything is looked for.
    for from in [0, 1] {
        post_receive(&mut sides[1 - from], length);
        post_send(&mut sides[from], length);
        let (mut sent, mut received) = (0, 0);
        while sent + received < 2 {
            domains.iter().try_for_each(Domain::progress)?;
            sent += read(&mut sides[from]);
            received += read(&mut sides[1 - from]);
        }
    }
    let start = Instant::now();
    rounds(&mut sides, count, batch, length);
    let messages = (count * batch).max(if batch == 0 { 2 * count } else { 0 });
    println!("{:.1} ns a message", start.elapsed().as_nanos() as f64 / messages.max(1) as f64);
    Ok(())
}
