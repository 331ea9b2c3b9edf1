//! Messages: of every length, early, tagged, directed, many to a buffer, injected, in pieces.

use weft::{Access, Buffer, CompletionKind, Options, ReceiveOptions};

use super::stage::{pattern, told};
use super::{Act, Amount};

const LENGTHS_BYTES: [usize; 7] = [0, 1, 8, 1000, 64 << 10, 1 << 20, 16 << 20];
/// Seeds of what comes back differ from those of what goes out.
const BACK: u64 = 100;

pub(super) const LENGTHS: Act = Act {
    name: "send, receive: 0 B to 16 MiB",
    verified: "both ways: bytes, source, buffer returned",
    here: |stage| {
        for (seed, length) in (0..).zip(LENGTHS_BYTES) {
            stage.send(seed, length)?;
            stage.receive(seed + BACK, length)?;
        }
        let bytes = LENGTHS_BYTES.iter().sum::<usize>() as u64;
        Ok(Amount { operations: 2 * LENGTHS_BYTES.len() as u64, bytes: 2 * bytes })
    },
    there: |stage| {
        for (seed, length) in (0..).zip(LENGTHS_BYTES) {
            stage.receive(seed, length)?;
            stage.send(seed + BACK, length)?;
        }
        Ok(())
    },
};

const EARLY_COUNT: u64 = 16;
const EARLY_STEP_BYTES: usize = 300;
const EARLY_LONG_BYTES: usize = 1 << 20;

/// Short ones wait at the target, a long one at its sender.
pub(super) const EARLY: Act = Act {
    name: "messages before their receive",
    verified: "kept, matched in order; the tagged one by tag",
    here: |stage| {
        let mut bytes = 0;
        for index in 0..EARLY_COUNT {
            let length = index as usize * EARLY_STEP_BYTES;
            stage.send(index, length)?;
            bytes += length;
        }
        stage.endpoint.tagged_send(stage.peer, 7, pattern(50, 100)).map_err(told)?;
        stage.done()?;
        stage.endpoint.send(stage.peer, pattern(60, EARLY_LONG_BYTES)).map_err(told)?;
        stage.meet()?;
        stage.done()?;
        Ok(Amount { operations: EARLY_COUNT + 2, bytes: (bytes + 100 + EARLY_LONG_BYTES) as u64 })
    },
    there: |stage| {
        stage.meet()?;
        stage.undisturbed()?;
        // Behind the others, and yet the first to be taken.
        stage.endpoint.tagged_receive(7, 0, vec![0; 100]).map_err(told)?;
        let tagged = stage.received()?;
        stage.equal("the early tagged message", (tagged.kind, tagged.tag), (CompletionKind::TaggedReceive, 7))?;
        stage.same_pattern("the early tagged message", &tagged.into_bytes().map_err(told)?, 50)?;
        for index in 0..EARLY_COUNT {
            stage.receive(index, index as usize * EARLY_STEP_BYTES)?;
        }
        stage.receive(60, EARLY_LONG_BYTES)
    },
};

/// All with the same tag; long ones take longer, and yet keep their place.
const TAGGED_LENGTHS: [usize; 10] = [100_000, 1, 70_000, 0, 2000, 64, 300_000, 8, 1500, 65_536];
const TAGS: [u64; 3] = [0x5678, 0x1234, 0x9999];

pub(super) const TAGGED: Act = Act {
    name: "tagged, with ignore bits",
    verified: "each to the oldest receive that matches",
    here: |stage| {
        stage.meet()?;
        for tag in TAGS {
            stage.endpoint.tagged_send(stage.peer, tag, tag.to_le_bytes().to_vec()).map_err(told)?;
        }
        for (seed, length) in (0..).zip(TAGGED_LENGTHS) {
            stage.endpoint.tagged_send(stage.peer, 7, pattern(seed, length)).map_err(told)?;
        }
        let operations = TAGS.len() + TAGGED_LENGTHS.len();
        for _ in 0..operations {
            stage.done()?;
        }
        let bytes = 8 * TAGS.len() + TAGGED_LENGTHS.iter().sum::<usize>();
        Ok(Amount { operations: operations as u64, bytes: bytes as u64 })
    },
    there: |stage| {
        let exact = stage.endpoint.tagged_receive(0x1234, 0, vec![0; 8]).map_err(told)?;
        let low_bits = stage.endpoint.tagged_receive(0x5600, 0xff, vec![0; 8]).map_err(told)?;
        let any = stage.endpoint.tagged_receive(0, u64::MAX, vec![0; 8]).map_err(told)?;
        for _ in TAGGED_LENGTHS {
            stage.endpoint.tagged_receive(7, 0, vec![0; 300_000]).map_err(told)?;
        }
        stage.meet()?;
        let mut all = stage.received_by_context(TAGS.len() + TAGGED_LENGTHS.len())?.into_iter();
        for (context, tag) in [(exact, 0x1234_u64), (low_bits, 0x5678), (any, 0x9999)] {
            let received = all.next().ok_or("a tagged message is missing")?;
            stage.equal("receive and tag", (received.context, received.tag), (context, tag))?;
            stage.same("the tagged message", &received.into_bytes().map_err(told)?, &tag.to_le_bytes())?;
        }
        for ((seed, length), received) in (0..).zip(TAGGED_LENGTHS).zip(all) {
            stage.equal("length in order", received.length, length as u64)?;
            stage.same_pattern("the message in order", &received.into_bytes().map_err(told)?, seed)?;
        }
        Ok(())
    },
};

pub(super) const DIRECTED: Act = Act {
    name: "directed receive",
    verified: "taken by source, not by order",
    here: |stage| {
        let queue = stage.domain.completion_queue(16);
        let second = stage.domain.endpoint(&queue).map_err(told)?;
        stage.tell(&second.address().to_string())?;
        stage.meet()?;
        stage.send(1, 500)?;
        second.send(stage.peer, pattern(2, 500)).map_err(told)?;
        stage.wait(&queue)?.ok().map_err(told)?;
        Ok(Amount { operations: 2, bytes: 1000 })
    },
    there: |stage| {
        let second = stage.hear()?.parse().map_err(told)?;
        let second = stage.domain.addresses().insert(second).map_err(told)?;
        let from = |peer| ReceiveOptions { source: Some(peer), ..Default::default() };
        let of_second = stage.endpoint.receive_with(vec![0; 500], from(second)).map_err(told)?;
        let of_first = stage.endpoint.receive_with(vec![0; 500], from(stage.peer)).map_err(told)?;
        stage.meet()?;
        let mut both = stage.received_by_context(2)?.into_iter();
        for (context, peer, seed) in [(of_second, second, 2), (of_first, stage.peer, 1)] {
            let received = both.next().ok_or("a message is missing")?;
            stage.equal("receive and source", (received.context, received.peer), (context, Some(peer)))?;
            stage.same_pattern("the directed message", &received.into_bytes().map_err(told)?, seed)?;
        }
        Ok(())
    },
};

const MULTI_LENGTHS: [usize; 7] = [2500, 0, 1, 3000, 900, 2000, 700];
const MULTI_BYTES: usize = 10_000;
const MULTI_LEAST_BYTES: u64 = 1000;

pub(super) const MULTI: Act = Act {
    name: "multi-receive",
    verified: "one buffer: no overlap, released when full",
    here: |stage| {
        stage.meet()?;
        for (index, length) in (0..).zip(MULTI_LENGTHS) {
            let options = Options { immediate: Some(index), ..Default::default() };
            stage.endpoint.send_with(stage.peer, pattern(index, length), options).map_err(told)?;
        }
        for _ in MULTI_LENGTHS {
            stage.done()?;
        }
        let bytes = MULTI_LENGTHS.iter().sum::<usize>() as u64;
        Ok(Amount { operations: MULTI_LENGTHS.len() as u64, bytes })
    },
    there: |stage| {
        let region = stage.domain.register(MULTI_BYTES, Access::NONE).map_err(told)?;
        let options = ReceiveOptions { multi: Some(MULTI_LEAST_BYTES), ..Default::default() };
        let room = region.buffer(0, MULTI_BYTES).map_err(told)?;
        let context = stage.endpoint.receive_with(room, options).map_err(told)?;
        stage.meet()?;
        let mut taken = Vec::new();
        let mut released = 0;
        for _ in MULTI_LENGTHS {
            let received = stage.received()?;
            let index = received.immediate.ok_or("a message without its number")?;
            let length = MULTI_LENGTHS.get(index as usize).copied().unwrap_or_default();
            stage.equal("receive and length", (received.context, received.length), (context, length as u64))?;
            let bytes = region.to_vec(received.offset as usize, length).map_err(told)?;
            stage.same_pattern("the message in the buffer", &bytes, index)?;
            taken.push((received.offset, received.offset + received.length));
            released += usize::from(received.buffer.is_some());
        }
        taken.sort_unstable();
        let apart = taken.iter().zip(taken.iter().skip(1)).all(|(one, next)| one.1 <= next.0);
        stage.check(apart, "messages lie one behind the other")?;
        stage.equal("times that the buffer was given back", released, 1)
    },
};

const INJECTED: u64 = 64;
const INJECTED_WRITES: usize = 32;

pub(super) const INJECT: Act = Act {
    name: "inject: messages and writes",
    verified: "copied at once; bytes; no completion",
    here: |stage| {
        let remote = stage.learn()?;
        let mut bytes = 0;
        for index in 0..INJECTED {
            stage.endpoint.inject(stage.peer, &pattern(index, index as usize)).map_err(told)?;
            bytes += index;
        }
        let written = pattern(99, INJECTED_WRITES * 8);
        for (piece, offset) in written.chunks(8).zip((0..).step_by(8)) {
            stage.endpoint.inject_write(stage.peer, remote.at(offset), piece).map_err(told)?;
        }
        // The only one that completes, when all of them are settled.
        let fence = Options { fence: true, ..Default::default() };
        let context = stage.endpoint.read_with(stage.peer, remote, vec![0; written.len()], fence).map_err(told)?;
        let read = stage.done()?;
        stage.equal("the only completion", read.context, context)?;
        stage.same("what was injected", &read.into_bytes().map_err(told)?, &written)?;
        stage.meet()?;
        Ok(Amount { operations: INJECTED + INJECTED_WRITES as u64, bytes: bytes + written.len() as u64 })
    },
    there: |stage| {
        let region = stage.domain.register(INJECTED_WRITES * 8, Access::REMOTE).map_err(told)?;
        stage.offer(&region)?;
        for index in 0..INJECTED {
            stage.receive(index, index as usize)?;
        }
        stage.meet()
    },
};

const LIST_BYTES: usize = 150_000;
const LIST_PIECES: [usize; 5] = [1, 0, 4, 995, 149_000];
const LIST_ROOMS: [usize; 5] = [10, 0, 1500, 64_000, 100_000];

pub(super) const LISTS: Act = Act {
    name: "scatter/gather lists",
    verified: "5 pieces to 5 others; bytes, list returned",
    here: |stage| {
        let region = stage.domain.register(pattern(3, LIST_BYTES), Access::NONE).map_err(told)?;
        let mut offset = 0;
        let mut pieces: Vec<Buffer> = Vec::new();
        for length in LIST_PIECES {
            pieces.push(region.buffer(offset, length).map_err(told)?);
            offset += length;
        }
        stage.endpoint.send(stage.peer, pieces).map_err(told)?;
        stage.done()?;
        Ok(Amount { operations: 1, bytes: LIST_BYTES as u64 })
    },
    there: |stage| {
        let rooms = LIST_ROOMS.map(|length| Buffer::from(vec![0; length]));
        stage.endpoint.receive(Vec::from(rooms)).map_err(told)?;
        let received = stage.received()?;
        stage.same_pattern("the scattered message", &received.bytes().map_err(told)?, 3)?;
        stage.equal("its length", received.length, LIST_BYTES as u64)?;
        let list = received.buffer.and_then(|buffer| buffer.into_list().ok()).unwrap_or_default();
        stage.equal("the list that came back", list.iter().map(Buffer::len).collect(), LIST_ROOMS.to_vec())
    },
};
