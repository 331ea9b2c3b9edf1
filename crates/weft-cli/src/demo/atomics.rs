//! Remote atomics: both processes at one word, and what there is beside addition.

use weft::{Access, AtomicOperation, PeerId, RemoteAddress};

use super::stage::{Outcome, Stage, told};
use super::{Act, Amount};

const WORD_BYTES: u64 = 8;
const ADDITIONS: u64 = 1000;
/// Additions of one process that are under way at once.
const UNDER_WAY: u64 = 64;

/// The word is in the second process, whose own additions go through its NIC too.
pub(super) const FETCH_ADD: Act = Act {
    name: "fetch-add, both at one word",
    verified: "the sum; no two fetched the same value",
    here: |stage| {
        let remote = stage.learn()?;
        stage.meet()?;
        let mut fetched = add(stage, stage.peer, remote)?;
        stage.endpoint.receive(vec![0; (ADDITIONS * WORD_BYTES) as usize]).map_err(told)?;
        let theirs = stage.received()?.into_bytes().map_err(told)?;
        fetched.extend(theirs.chunks(8).map(<u64 as weft::Element>::from_little_endian));
        fetched.sort_unstable();
        stage.check(fetched.iter().copied().eq(0..2 * ADDITIONS), "each value was fetched once")?;
        stage.endpoint.fetch_atomic(stage.peer, remote, AtomicOperation::Read, &[0_u64]).map_err(told)?;
        let sum = stage.done()?.value::<u64>().map_err(told)?;
        stage.equal("the sum", sum, 2 * ADDITIONS)?;
        stage.meet()?;
        Ok(Amount { operations: 2 * ADDITIONS, bytes: 2 * ADDITIONS * WORD_BYTES })
    },
    there: |stage| {
        let region = stage.domain.register(8, Access::REMOTE_ATOMIC).map_err(told)?;
        let myself = stage.domain.addresses().insert(stage.endpoint.address()).map_err(told)?;
        stage.offer(&region)?;
        stage.meet()?;
        let fetched = add(stage, myself, region.remote())?;
        let bytes: Vec<u8> = fetched.into_iter().flat_map(u64::to_le_bytes).collect();
        stage.endpoint.send(stage.peer, bytes).map_err(told)?;
        stage.done()?;
        stage.meet()?;
        let sum = region.load_u64(0).map_err(told)?;
        stage.equal("the sum in memory", sum, 2 * ADDITIONS)
    },
};

fn add(stage: &mut Stage<'_>, peer: PeerId, word: RemoteAddress) -> Outcome<Vec<u64>> {
    let mut fetched = Vec::new();
    for begun in 0..ADDITIONS + UNDER_WAY {
        if begun < ADDITIONS {
            stage.endpoint.fetch_add(peer, word, 1_u64).map_err(told)?;
        }
        if begun >= UNDER_WAY {
            fetched.push(stage.done()?.value().map_err(told)?);
        }
    }
    Ok(fetched)
}

const ROUNDS: u64 = 100;

pub(super) const COMPARE_SWAP: Act = Act {
    name: "compare-and-swap, both",
    verified: "every round has one winner",
    here: |stage| {
        let remote = stage.learn()?;
        stage.meet()?;
        let mine = swap(stage, stage.peer, remote)?;
        stage.endpoint.receive(vec![0; ROUNDS as usize]).map_err(told)?;
        let theirs = stage.received()?.into_bytes().map_err(told)?;
        stage.equal("rounds", theirs.len(), mine.len())?;
        for (mine, theirs) in mine.into_iter().zip(theirs) {
            stage.equal("winners of a round", mine + theirs, 1)?;
        }
        stage.meet()?;
        Ok(Amount { operations: 2 * ROUNDS, bytes: 2 * ROUNDS * WORD_BYTES })
    },
    there: |stage| {
        let region = stage.domain.register(8, Access::REMOTE_ATOMIC).map_err(told)?;
        let myself = stage.domain.addresses().insert(stage.endpoint.address()).map_err(told)?;
        stage.offer(&region)?;
        stage.meet()?;
        let won = swap(stage, myself, region.remote())?;
        stage.endpoint.send(stage.peer, won).map_err(told)?;
        stage.done()?;
        stage.meet()?;
        let last = region.load_u64(0).map_err(told)?;
        stage.equal("the word after the last round", last, ROUNDS)
    },
};

/// Tries to be the first of every round; gives 1 for each that was won.
fn swap(stage: &mut Stage<'_>, peer: PeerId, word: RemoteAddress) -> Outcome<Vec<u8>> {
    let mut won = Vec::new();
    for round in 0..ROUNDS {
        stage.endpoint.compare_swap(peer, word, round, round + 1).map_err(told)?;
        let before = stage.done()?.value::<u64>().map_err(told)?;
        stage.check(before >= round, "no round comes before its time")?;
        won.push(u8::from(before == round));
    }
    Ok(won)
}

pub(super) const FLOAT: Act = Act {
    name: "float atomics: f64, f32",
    verified: "values before and after, to the bit",
    here: |stage| {
        let remote = stage.learn()?;
        stage.endpoint.fetch_add(stage.peer, remote, 0.25_f64).map_err(told)?;
        let before = stage.done()?.value::<f64>().map_err(told)?;
        stage.equal("f64 before the sum", before.to_bits(), 1.5_f64.to_bits())?;
        let product = AtomicOperation::Product;
        stage.endpoint.fetch_atomic(stage.peer, remote.at(8), product, &[-4.0_f32, 0.5]).map_err(told)?;
        let before = stage.done()?.values::<f32>().map_err(told)?;
        stage.equal("f32 before the product", before, vec![-2.5, 8.0])?;
        stage.meet()?;
        Ok(Amount { operations: 2, bytes: 16 })
    },
    there: |stage| {
        let region = stage.domain.register(16, Access::REMOTE_ATOMIC).map_err(told)?;
        region.write(0, &1.5_f64.to_le_bytes()).map_err(told)?;
        region.write(8, &[(-2.5_f32).to_le_bytes(), 8.0_f32.to_le_bytes()].concat()).map_err(told)?;
        stage.offer(&region)?;
        stage.meet()?;
        let due = [1.75_f64.to_le_bytes().as_slice(), &10.0_f32.to_le_bytes(), &4.0_f32.to_le_bytes()].concat();
        stage.same("the numbers in memory", &region.to_vec(0, 16).map_err(told)?, &due)
    },
};

pub(super) const EXTREMES: Act = Act {
    name: "minimum, maximum: u32, i64",
    verified: "values before and after",
    here: |stage| {
        let remote = stage.learn()?;
        let operands = [5_u32, 5];
        stage.endpoint.fetch_atomic(stage.peer, remote, AtomicOperation::Minimum, &operands).map_err(told)?;
        let before = stage.done()?.values::<u32>().map_err(told)?;
        stage.equal("u32 before the minimum", before, vec![3, 9])?;
        stage.endpoint.fetch_atomic(stage.peer, remote.at(8), AtomicOperation::Maximum, &[-1_i64]).map_err(told)?;
        let before = stage.done()?.value::<i64>().map_err(told)?;
        stage.equal("i64 before the maximum", before, -9)?;
        stage.meet()?;
        Ok(Amount { operations: 2, bytes: 16 })
    },
    there: |stage| {
        let region = stage.domain.register(16, Access::REMOTE_ATOMIC).map_err(told)?;
        region.write(0, &[3_u32.to_le_bytes(), 9_u32.to_le_bytes()].concat()).map_err(told)?;
        region.write(8, &(-9_i64).to_le_bytes()).map_err(told)?;
        stage.offer(&region)?;
        stage.meet()?;
        let due = [3_u32.to_le_bytes().as_slice(), &5_u32.to_le_bytes(), &(-1_i64).to_le_bytes()].concat();
        stage.same("the numbers in memory", &region.to_vec(0, 16).map_err(told)?, &due)
    },
};
