//! What is promised about remote memory: every write and atomic is executed at most once, as it was asked for.

use weft_core::event::Completion;

use super::{Judge, Oracle, Start, Violation};
use crate::cells;
use crate::memory::Change;
use crate::node::{CELL, WRITTEN, operand_of};
use crate::random::pattern;
use crate::workload::{CELLS, Mistake, What};

impl Oracle {
    /// Somebody's write with immediate data arrived.
    pub(super) fn notified(&mut self, judge: &Judge, start: Start, completion: &Completion) -> Result<(), Violation> {
        let id = completion.immediate.unwrap_or(u64::MAX);
        let judge = Judge { operation: id as u32, ..*judge };
        let record = self.records.get_mut(id as usize).ok_or_else(|| judge.says("made-up notification", completion))?;
        let What::Write { length, qualities, .. } = record.operation.what else {
            return Err(judge.says("made-up notification", completion));
        };
        record.notified += 1;
        let fits = qualities.immediate && record.target == Some(start) && record.posted.is_some();
        let source = completion.source.and_then(|address| self.directory.get(&address));
        let source_fits = source == Some(&(record.operation.place, record.start.1));
        if !fits || !source_fits || completion.result.is_err() || completion.length != u64::from(length) {
            return Err(judge.says("wrong notification", completion));
        }
        if record.notified > 1 {
            return Err(judge.says("notified twice", completion));
        }
        if record.placed != u64::from(length) {
            return Err(judge.says("notified before all bytes were placed", completion));
        }
        Ok(())
    }

    /// A peer changed memory of a node.
    pub fn changed(&mut self, now: u64, start: Start, change: &Change) -> Result<(), Violation> {
        match change {
            Change::Write { region, offset, bytes } => {
                let judge = Judge { at: now, node: start.0, operation: u32::MAX };
                let end = offset + bytes.len() as u64;
                let found = self.records.iter_mut().find(|record| match record.operation.what {
                    What::Write { to, offset: first, length, .. } => {
                        to.node == start.0 && first <= *offset && end <= first + u64::from(length)
                    }
                    _ => false,
                });
                let found = found.filter(|_| *region == WRITTEN);
                let record =
                    found.ok_or_else(|| judge.says("written outside of every write", format!("{change:?}")))?;
                let judge = Judge { operation: record.operation.id, ..judge };
                let What::Write { offset: first, mistake, .. } = record.operation.what else { return Ok(()) };
                if record.posted.is_none() || record.target != Some(start) || mistake != Mistake::None {
                    return Err(judge.says("executed though nobody asked", format!("{change:?}")));
                }
                let id = record.operation.id;
                let right = (offset - first..).zip(bytes).all(|(at, byte)| pattern(id, at) == *byte);
                if !right {
                    return Err(judge.says("damaged write", format!("{change:?}")));
                }
                if record.placed == 0 {
                    record.first_at = now;
                }
                record.placed += bytes.len() as u64;
                record.last_at = now;
                Ok(())
            }
            Change::Atomic { region, offset, call, operands, compares, before } => {
                let operand = operands.first_chunk::<8>().map_or(0, |value| u64::from_le_bytes(*value));
                let value = before.first_chunk::<8>().map_or(0, |value| u64::from_le_bytes(*value));
                let judge = Judge { at: now, node: start.0, operation: u32::MAX };
                let found = self.records.iter_mut().find(|record| {
                    matches!(record.operation.what, What::Atomic { .. }) && operand_of(record.operation.id) == operand
                });
                let record = found.ok_or_else(|| judge.says("made-up atomic", format!("{change:?}")))?;
                let judge = Judge { operation: record.operation.id, ..judge };
                let What::Atomic { cell, operation, .. } = record.operation.what else { return Ok(()) };
                let fits = *region == CELL && *offset == cell * cells::BYTES && cell < CELLS;
                let fits = fits && call.operation == operation && record.target == Some(start);
                if !fits || record.posted.is_none() {
                    return Err(judge.says("executed though nobody asked", format!("{change:?}")));
                }
                record.executed += 1;
                (record.first_at, record.last_at, record.before) = (now, now, value);
                if record.executed > 1 {
                    return Err(judge.says("executed twice", format!("{change:?}")));
                }
                let shadow = self.cells.entry((start, cell)).or_insert(0);
                if *shadow != value {
                    return Err(judge.says("a cell changed by itself", format!("{value:x} instead of {shadow:x}")));
                }
                let mut after = value.to_le_bytes();
                if cells::update(&mut after, *call, operands, compares).is_none() {
                    return Err(judge.says("executed though nobody asked", format!("{change:?}")));
                }
                *shadow = u64::from_le_bytes(after);
                Ok(())
            }
        }
    }
}
