//! What must not work, and the error that says so.

use weft::{Access, Error, Failure, PeerId, PostError, RemoteAddress};

use super::stage::{Outcome, Stage, pattern, told};
use super::{Act, Amount};

const REGION_BYTES: usize = 4096;
const REACH_BYTES: usize = 64;

pub(super) const WRONG_KEY: Act = Act {
    name: "refused: wrong key",
    verified: "AccessRefused; memory unchanged",
    here: |stage| {
        let remote = stage.learn()?;
        for key in [0, u64::MAX, remote.key ^ 1] {
            all_refused(stage, RemoteAddress { key, ..remote })?;
        }
        stage.meet()?;
        Ok(Amount { operations: 9, bytes: 0 })
    },
    there: keep_unchanged,
};

pub(super) const OUT_OF_BOUNDS: Act = Act {
    name: "refused: out of bounds",
    verified: "AccessRefused; memory unchanged",
    here: |stage| {
        let remote = stage.learn()?;
        for offset in [(REGION_BYTES - 1) as u64, REGION_BYTES as u64, u64::MAX - 7] {
            all_refused(stage, remote.at(offset))?;
        }
        stage.meet()?;
        Ok(Amount { operations: 9, bytes: 0 })
    },
    there: keep_unchanged,
};

/// A write, a read and an atomic: each is refused, and gives its buffer back.
fn all_refused(stage: &mut Stage<'_>, remote: RemoteAddress) -> Outcome<()> {
    stage.endpoint.write(stage.peer, remote, pattern(1, REACH_BYTES)).map_err(told)?;
    stage.endpoint.read(stage.peer, remote, vec![0xee; REACH_BYTES]).map_err(told)?;
    stage.endpoint.fetch_add(stage.peer, remote, 1_u64).map_err(told)?;
    for _ in 0..3 {
        let ended = stage.settled()?;
        stage.equal("what was refused", ended.result, Err(Failure::AccessRefused))?;
        stage.check(ended.buffer.is_some(), "the buffer comes back")?;
    }
    Ok(())
}

fn keep_unchanged(stage: &mut Stage<'_>) -> Outcome<()> {
    let region = stage.domain.register(pattern(5, REGION_BYTES), Access::REMOTE).map_err(told)?;
    stage.offer(&region)?;
    stage.meet()?;
    stage.same_pattern("the memory", &region.to_vec(0, REGION_BYTES).map_err(told)?, 5)?;
    stage.undisturbed()
}

pub(super) const DEREGISTERED: Act = Act {
    name: "refused: after deregistration",
    verified: "AccessRefused; memory unchanged",
    here: |stage| {
        let remote = stage.learn()?;
        stage.endpoint.write(stage.peer, remote, pattern(6, REACH_BYTES)).map_err(told)?;
        stage.done()?;
        stage.meet()?;
        stage.meet()?;
        all_refused(stage, remote)?;
        stage.meet()?;
        Ok(Amount { operations: 3, bytes: 0 })
    },
    there: |stage| {
        let region = stage.domain.register(REGION_BYTES, Access::REMOTE).map_err(told)?;
        stage.offer(&region)?;
        stage.meet()?;
        // The memory itself lives on; what ends is the peers' right to it.
        let memory = (*region).clone();
        drop(region);
        stage.meet()?;
        stage.meet()?;
        stage.same_pattern("the memory", &memory.to_vec(0, REACH_BYTES).map_err(told)?, 6)
    },
};

/// Room and message: short ones travel with their announcement, long ones wait to be asked for.
const TOO_LONG_BYTES: [(usize, usize); 3] = [(10, 20), (1000, 5000), (1000, 200_000)];

pub(super) const TOO_LONG: Act = Act {
    name: "refused: longer than receive",
    verified: "Truncated there, LengthError here",
    here: |stage| {
        for (_, length) in TOO_LONG_BYTES {
            stage.meet()?;
            stage.endpoint.send(stage.peer, pattern(1, length)).map_err(told)?;
            let ended = stage.settled()?;
            stage.equal("the send", ended.result, Err(Failure::LengthError))?;
            stage.send(2, 8)?;
        }
        Ok(Amount { operations: TOO_LONG_BYTES.len() as u64, bytes: 0 })
    },
    there: |stage| {
        for (room, length) in TOO_LONG_BYTES {
            stage.endpoint.receive(vec![0; room]).map_err(told)?;
            stage.meet()?;
            let ended = stage.arrived()?;
            let due = (Err(Failure::Truncated), length as u64);
            stage.equal("the receive", (ended.result, ended.length), due)?;
            // What comes behind it is not disturbed.
            stage.receive(2, 8)?;
        }
        Ok(())
    },
};

pub(super) const UNKNOWN_PEER: Act = Act {
    name: "refused: unknown peer",
    verified: "NoSuchPeer from the call itself, buffer back",
    here: |stage| {
        let Err(refused) = stage.endpoint.send(PeerId(12_345), pattern(1, 8)) else {
            return Err("a send to nobody was taken".to_string());
        };
        let precise = matches!(refused.error, Error::Post(PostError::NoSuchPeer));
        stage.check(precise, "the error is NoSuchPeer")?;
        let buffer = refused.buffer.and_then(|buffer| buffer.into_vec().ok());
        stage.equal("the buffer", buffer, Some(pattern(1, 8)))?;
        Ok(Amount { operations: 1, bytes: 0 })
    },
    there: |_| Ok(()),
};
