//! Remote memory: the program at the target takes no part.

use weft::{Access, CompletionKind, Options};

use super::stage::{pattern, told};
use super::{Act, Amount};

const LENGTHS_BYTES: [usize; 6] = [1, 8, 1000, 64 << 10, 1 << 20, 16 << 20];
/// Bytes between what is written, which must stay as they are.
const GAP_BYTES: usize = 64;

pub(super) const WRITE: Act = Act {
    name: "remote write: 1 B to 16 MiB",
    verified: "bytes there, none beside; no completion there",
    here: |stage| {
        let remote = stage.learn()?;
        let mut offset = GAP_BYTES;
        for (seed, length) in (0..).zip(LENGTHS_BYTES) {
            stage.endpoint.write(stage.peer, remote.at(offset as u64), pattern(seed, length)).map_err(told)?;
            let done = stage.done()?;
            stage.equal("completion", (done.kind, done.length), (CompletionKind::Write, length as u64))?;
            offset += length + GAP_BYTES;
        }
        stage.meet()?;
        let bytes = LENGTHS_BYTES.iter().sum::<usize>() as u64;
        Ok(Amount { operations: LENGTHS_BYTES.len() as u64, bytes })
    },
    there: |stage| {
        let length = LENGTHS_BYTES.iter().map(|length| length + GAP_BYTES).sum::<usize>() + GAP_BYTES;
        let region = stage.domain.register(length, Access::REMOTE_WRITE).map_err(told)?;
        stage.offer(&region)?;
        stage.meet()?;
        let mut offset = 0;
        for (seed, length) in (0..).zip(LENGTHS_BYTES) {
            stage.same("the gap", &region.to_vec(offset, GAP_BYTES).map_err(told)?, &[0; GAP_BYTES])?;
            offset += GAP_BYTES;
            stage.same_pattern("what was written", &region.to_vec(offset, length).map_err(told)?, seed)?;
            offset += length;
        }
        stage.same("the gap", &region.to_vec(offset, GAP_BYTES).map_err(told)?, &[0; GAP_BYTES])?;
        stage.undisturbed()
    },
};

const IMMEDIATE_LENGTHS: [usize; 5] = [0, 1, 1000, 64 << 10, 1 << 20];

pub(super) const IMMEDIATE: Act = Act {
    name: "write with immediate data",
    verified: "notice comes when every byte is in place",
    here: |stage| {
        let remote = stage.learn()?;
        for (seed, length) in (1..).zip(IMMEDIATE_LENGTHS) {
            let options = Options { immediate: Some(seed << 40), ..Default::default() };
            stage.endpoint.write_with(stage.peer, remote, pattern(seed, length), options).map_err(told)?;
            stage.done()?;
            stage.meet()?;
        }
        let bytes = IMMEDIATE_LENGTHS.iter().sum::<usize>() as u64;
        Ok(Amount { operations: IMMEDIATE_LENGTHS.len() as u64, bytes })
    },
    there: |stage| {
        let region = stage.domain.register(1 << 20, Access::REMOTE_WRITE).map_err(told)?;
        stage.offer(&region)?;
        for (seed, length) in (1..).zip(IMMEDIATE_LENGTHS) {
            let notice = stage.received()?;
            let bytes = region.to_vec(0, length).map_err(told)?;
            let due = (CompletionKind::RemoteWrite, length as u64, Some(seed << 40), Some(stage.peer));
            stage.equal("the notice", (notice.kind, notice.length, notice.immediate, notice.peer), due)?;
            stage.same_pattern("what was written", &bytes, seed)?;
            stage.meet()?;
        }
        Ok(())
    },
};

pub(super) const READ: Act = Act {
    name: "remote read: 1 B to 16 MiB",
    verified: "bytes; no completion at the target",
    here: |stage| {
        let remote = stage.learn()?;
        let all = pattern(9, LENGTHS_BYTES.iter().sum());
        let mut rest = all.as_slice();
        for length in LENGTHS_BYTES {
            let offset = (all.len() - rest.len()) as u64;
            let (due, behind) = rest.split_at_checked(length).ok_or("the lengths do not add up")?;
            stage.endpoint.read(stage.peer, remote.at(offset), vec![0xee; length]).map_err(told)?;
            let done = stage.done()?;
            stage.equal("completion", (done.kind, done.length), (CompletionKind::Read, length as u64))?;
            stage.same("what was read", &done.into_bytes().map_err(told)?, due)?;
            rest = behind;
        }
        stage.meet()?;
        Ok(Amount { operations: LENGTHS_BYTES.len() as u64, bytes: all.len() as u64 })
    },
    there: |stage| {
        let bytes = pattern(9, LENGTHS_BYTES.iter().sum());
        let region = stage.domain.register(bytes, Access::REMOTE_READ).map_err(told)?;
        stage.offer(&region)?;
        stage.meet()?;
        stage.undisturbed()
    },
};
