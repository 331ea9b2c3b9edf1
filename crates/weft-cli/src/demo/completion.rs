//! When things are done, and how a program learns of it: fences, levels, datagrams, descriptors, cancelling.

use std::collections::HashSet;
use std::os::fd::AsFd;
use std::time::Duration;

use weft::link::wait::wait_readable;
use weft::{Access, Completion, Failure, Level, Options};

use super::stage::{Outcome, PATIENCE, Stage, pattern, told};
use super::{Act, Amount};

const FENCES: u8 = 10;
const FENCED_BYTES: usize = 150_000;

pub(super) const FENCE: Act = Act {
    name: "fence",
    verified: "the read behind it sees all of the write",
    here: |stage| {
        let remote = stage.learn()?;
        let fence = Options { fence: true, ..Default::default() };
        for round in 1..=FENCES {
            stage.endpoint.write(stage.peer, remote, vec![round; FENCED_BYTES]).map_err(told)?;
            let room = vec![0; FENCED_BYTES];
            let read = stage.endpoint.read_with(stage.peer, remote, room, fence).map_err(told)?;
            stage.done()?;
            let done = stage.done()?;
            stage.equal("the later completion", done.context, read)?;
            stage.same("what the read saw", &done.into_bytes().map_err(told)?, &[round; FENCED_BYTES])?;
        }
        stage.meet()?;
        let rounds = u64::from(FENCES);
        Ok(Amount { operations: 2 * rounds, bytes: 2 * rounds * FENCED_BYTES as u64 })
    },
    there: |stage| {
        let region = stage.domain.register(FENCED_BYTES, Access::REMOTE).map_err(told)?;
        stage.offer(&region)?;
        stage.meet()
    },
};

const LEVEL_BYTES: usize = 4000;
/// Long enough for a completion that comes too early to show itself.
const QUIET: Duration = Duration::from_millis(30);

pub(super) const LEVELS: Act = Act {
    name: "completion levels: all three",
    verified: "injected at once, delivered only when taken",
    here: |stage| {
        let send = |stage: &mut Stage<'_>, seed: u64, level: Level| {
            let options = Options { level, ..Default::default() };
            stage.endpoint.send_with(stage.peer, pattern(seed, LEVEL_BYTES), options).map_err(told)
        };
        let injected = send(stage, 0, Level::Injected)?;
        let at_once = stage.sends.read().map_err(told)?.map(|done| (done.context, done.result));
        stage.equal("injected, read at once", at_once, Some((injected, Ok(()))))?;
        let transmitted = send(stage, 1, Level::Transmitted)?;
        let done = stage.done()?.context;
        stage.equal("transmitted, which nobody has received", done, transmitted)?;
        let delivered = send(stage, 2, Level::Delivered)?;
        let early = stage.sends.wait(Some(QUIET)).map_err(told)?.map(|done| done.context);
        stage.equal("delivered, which nobody has received", early, None)?;
        stage.meet()?;
        let done = stage.done()?.context;
        stage.equal("delivered", done, delivered)?;
        Ok(Amount { operations: 3, bytes: 3 * LEVEL_BYTES as u64 })
    },
    there: |stage| {
        stage.meet()?;
        (0..3).try_for_each(|seed| stage.receive(seed, LEVEL_BYTES))
    },
};

const DATAGRAMS_SENT: u64 = 64;
const DATAGRAM_BYTES: usize = 1000;
/// A datagram that has not come by then is lost.
const LOST_AFTER: Duration = Duration::from_millis(200);

pub(super) const DATAGRAMS: Act = Act {
    name: "unreliable datagrams",
    verified: "of 64 sent: each whole, none twice",
    here: |stage| {
        let queue = stage.domain.completion_queue(2 * DATAGRAMS_SENT as usize);
        let endpoint = stage.domain.datagram_endpoint(&queue).map_err(told)?;
        let peer = stage.hear()?.parse().map_err(told)?;
        let peer = stage.domain.addresses().insert(peer).map_err(told)?;
        for index in 0..DATAGRAMS_SENT {
            endpoint.send(peer, numbered(index)).map_err(told)?;
        }
        for _ in 0..DATAGRAMS_SENT {
            stage.wait(&queue)?.ok().map_err(told)?;
        }
        let arrived: u64 = stage.hear()?.parse().map_err(told)?;
        Ok(Amount { operations: arrived, bytes: arrived * DATAGRAM_BYTES as u64 })
    },
    there: |stage| {
        let queue = stage.domain.completion_queue(2 * DATAGRAMS_SENT as usize);
        let endpoint = stage.domain.datagram_endpoint(&queue).map_err(told)?;
        for _ in 0..DATAGRAMS_SENT {
            endpoint.receive(vec![0; DATAGRAM_BYTES]).map_err(told)?;
        }
        stage.tell(&endpoint.address().to_string())?;
        let mut seen = HashSet::new();
        let mut patience = PATIENCE;
        while seen.len() < DATAGRAMS_SENT as usize
            && let Some(received) = queue.wait(Some(patience)).map_err(told)?
        {
            let bytes = received.ok().map_err(told)?.into_bytes().map_err(told)?;
            let index = bytes.first().copied().map_or(0, u64::from);
            stage.same("the datagram", &bytes, &numbered(index))?;
            stage.check(seen.insert(index), "no datagram comes twice")?;
            patience = LOST_AFTER;
        }
        stage.check(!seen.is_empty(), "some datagrams arrive")?;
        stage.tell(&seen.len().to_string())
    },
};

/// A datagram whose first byte says which it is.
fn numbered(index: u64) -> Vec<u8> {
    let mut bytes = pattern(index, DATAGRAM_BYTES);
    if let Some(first) = bytes.first_mut() {
        *first = index as u8;
    }
    bytes
}

const WAKES: u64 = 50;

/// Both sides sleep in poll(2) until the other has answered.
pub(super) const DESCRIPTOR: Act = Act {
    name: "sleep on a file descriptor",
    verified: "poll(2) at both ends, no wake-up lost",
    here: |stage| {
        let mut sleeps = 0;
        for round in 0..WAKES {
            stage.endpoint.receive(vec![0; 16]).map_err(told)?;
            stage.endpoint.inject(stage.peer, &pattern(round, 8)).map_err(told)?;
            let received = poll(stage, |stage| {
                sleeps += 1;
                // The first time, the other side answers only now, so that this one has slept.
                if sleeps == 1 { stage.tell("asleep") } else { Ok(()) }
            })?;
            stage.same_pattern("the answer", &received.into_bytes().map_err(told)?, round + 1)?;
        }
        stage.check(sleeps > 0, "it slept")?;
        Ok(Amount { operations: 2 * WAKES, bytes: 16 * WAKES })
    },
    there: |stage| {
        for round in 0..WAKES {
            stage.endpoint.receive(vec![0; 16]).map_err(told)?;
            let received = poll(stage, |_| Ok(()))?;
            stage.same_pattern("the question", &received.into_bytes().map_err(told)?, round)?;
            if round == 0 {
                let told = stage.hear()?;
                stage.equal("the other side", told.as_str(), "asleep")?;
            }
            stage.endpoint.inject(stage.peer, &pattern(round + 1, 8)).map_err(told)?;
        }
        Ok(())
    },
};

/// The rule of [`weft::CompletionQueue::descriptor`]: read until there is nothing, arm, and only then sleep. What is armed
/// wakes also who falls asleep later, so `before_sleep` may take its time.
fn poll(stage: &mut Stage<'_>, mut before_sleep: impl FnMut(&mut Stage<'_>) -> Outcome<()>) -> Outcome<Completion> {
    let receives = stage.receives.clone();
    let descriptor = receives.descriptor().map_err(told)?;
    loop {
        if let Some(completion) = stage.receives.read().map_err(told)? {
            return completion.ok().map_err(told);
        }
        if stage.receives.try_wait().map_err(told)? {
            before_sleep(stage)?;
            if !wait_readable(descriptor.as_fd(), Some(PATIENCE)).map_err(told)? {
                return Err("a wake-up was lost".to_string());
            }
        }
    }
}

pub(super) const CANCEL: Act = Act {
    name: "cancel a receive",
    verified: "Cancelled, buffer back; the next one matches",
    here: |stage| {
        let first = stage.endpoint.receive(vec![1; 8]).map_err(told)?;
        let second = stage.endpoint.receive(vec![2; 8]).map_err(told)?;
        let cancelled = stage.endpoint.cancel(first);
        stage.check(cancelled, "a receive that waits can be cancelled")?;
        let ended = stage.arrived()?;
        stage.equal("the cancelled receive", (ended.context, ended.result), (first, Err(Failure::Cancelled)))?;
        let buffer = ended.buffer.and_then(|buffer| buffer.into_vec().ok());
        stage.equal("its buffer", buffer, Some(vec![1; 8]))?;
        stage.meet()?;
        let received = stage.received()?;
        stage.equal("the receive that took the message", received.context, second)?;
        stage.same_pattern("the message", &received.into_bytes().map_err(told)?, 4)?;
        let cancelled = stage.endpoint.cancel(second);
        stage.check(!cancelled, "what is done cannot be cancelled")?;
        Ok(Amount { operations: 1, bytes: 8 })
    },
    there: |stage| {
        stage.meet()?;
        stage.send(4, 8)
    },
};
