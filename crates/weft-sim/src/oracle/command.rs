//! What is promised about the end of a command: one completion, with a cause if it failed and with the effect if not.

use weft_core::event::{Completion, CompletionKind, Failure};
use weft_core::memory::LocalKey;

use super::{Judge, Oracle, Start, Violation};
use crate::memory::SimMemory;
use crate::node::{CONSTANT, LEAD, WRITTEN};
use crate::workload::{Mistake, What};

impl Oracle {
    /// A command ended.
    pub(super) fn ended(
        &mut self,
        judge: &Judge,
        start: Start,
        completion: &Completion,
        memory: &mut SimMemory,
    ) -> Result<Option<ReadCheck>, Violation> {
        let record = self.records.get_mut(judge.operation as usize).filter(|record| record.start == start);
        let record = record.ok_or_else(|| judge.says("completion for nothing", completion))?;
        let kind = match record.operation.what {
            What::Send { tag: Some(_), .. } => CompletionKind::TaggedSend,
            What::Send { .. } | What::Datagram { .. } => CompletionKind::Send,
            What::Write { .. } => CompletionKind::Write,
            What::Read { .. } => CompletionKind::Read,
            What::Atomic { fetch: true, .. } => CompletionKind::FetchAtomic,
            What::Atomic { .. } => CompletionKind::Atomic,
            What::Receive { .. } | What::Cancel { .. } | What::Close | What::TooBig { .. } => CompletionKind::Receive,
        };
        if kind != completion.kind {
            return Err(judge.says("completion of another kind", completion));
        }
        // The caller's copy is in the engine's hands; what comes later is a failure, or the buffer without a word.
        // Where the queue is all but full, it ends as others do, once.
        let early = completion.local == LocalKey::NONE;
        if record.operation.is_injected() && completion.result.is_ok() && early && !record.injected {
            record.injected = true;
            return Ok(None);
        }
        if record.posted.is_none() || record.outcome.is_some() {
            return Err(judge.says("completed twice", completion));
        }
        if (record.injected || record.operation.qualities().silent) && completion.result.is_ok() {
            return Err(judge.says("a silent success was reported", completion));
        }
        record.outcome = Some((judge.at, completion.result));
        let given = record.given;
        if completion.local != given.local || completion.results != given.results {
            return Err(judge.says("another buffer came back", completion));
        }
        let take = |memory: &mut SimMemory, key: LocalKey| match key {
            LocalKey::NONE => Ok(Vec::new()),
            key => memory.detach(key).map_err(|wrong| judge.says("memory", wrong)),
        };
        let bytes = take(memory, given.local)?;
        let results = take(memory, given.results)?;
        let lead = bytes.get(..given.lead as usize).unwrap_or_default();
        if lead.iter().any(|byte| *byte != LEAD) {
            return Err(judge.says("memory", "bytes before the operation's were written"));
        }
        let content = bytes.get(given.lead as usize..).unwrap_or_default();
        match completion.result {
            Ok(()) => {
                self.counts.succeeded += 1;
                self.succeeded(judge, &results, content)
            }
            Err(failure) => {
                self.counts.failed += 1;
                self.counts.unknown += u64::from(failure == Failure::OutcomeUnknown);
                self.counts.cancelled += u64::from(failure == Failure::Cancelled);
                self.failed(judge, failure).map(|()| None)
            }
        }
    }

    /// What success promises.
    fn succeeded(&mut self, judge: &Judge, results: &[u8], content: &[u8]) -> Result<Option<ReadCheck>, Violation> {
        let Some(record) = self.records.get(judge.operation as usize) else { return Ok(None) };
        match record.operation.what {
            What::Write { mistake, length, .. } => {
                self.counts.remote += 1;
                if mistake != Mistake::None {
                    return Err(judge.says("a wrong write succeeded", format!("{mistake:?}")));
                }
                if record.placed != u64::from(length) {
                    let text = format!("{} of {length} bytes were written", record.placed);
                    return Err(judge.says("success without execution", text));
                }
                Ok(None)
            }
            What::Atomic { fetch, .. } => {
                self.counts.remote += 1;
                if record.executed != 1 {
                    return Err(judge.says("success without execution", "the atomic was not executed"));
                }
                let fetched = results.first_chunk::<8>().map(|value| u64::from_le_bytes(*value));
                if fetch && fetched != Some(record.before) {
                    let text = format!("{fetched:x?} was fetched, {:x} was there", record.before);
                    return Err(judge.says("a wrong value was fetched", text));
                }
                Ok(None)
            }
            What::Read { mistake, written, offset, .. } => {
                self.counts.remote += 1;
                if mistake != Mistake::None {
                    return Err(judge.says("a wrong read succeeded", format!("{mistake:?}")));
                }
                let (Some(target), Some(posted)) = (record.target, record.posted) else { return Ok(None) };
                let content = content.to_vec();
                let (at, node, operation) = (judge.at, judge.node, judge.operation);
                let judge = Judge { at, node, operation };
                Ok(Some(ReadCheck { target, written, offset, content, posted, judge }))
            }
            _ => Ok(None),
        }
    }

    /// Whether a failure had a cause.
    fn failed(&self, judge: &Judge, failure: Failure) -> Result<(), Violation> {
        let Some(record) = self.records.get(judge.operation as usize) else { return Ok(()) };
        let mistaken = match record.operation.what {
            What::Write { mistake, .. } | What::Read { mistake, .. } => mistake != Mistake::None,
            _ => false,
        };
        let closed = self.touches_closed(record);
        let right = match failure {
            Failure::Cancelled => record.cancelled,
            Failure::OutcomeUnknown => self.may_give_up,
            Failure::AccessRefused => mistaken || self.restarts,
            // The target stopped fetching the message.
            Failure::Aborted if self.may_give_up || closed => matches!(record.operation.what, What::Send { .. }),
            Failure::LengthError | Failure::Aborted => {
                self.short_receives && matches!(record.operation.what, What::Send { .. })
            }
            Failure::NoSuchEndpoint => self.restarts || closed,
            Failure::Closed => self.is_closed(Some(record.start), record.operation.place),
            _ => false,
        };
        if right { Ok(()) } else { Err(judge.says("failed without cause", failure)) }
    }

    /// A buffer came back without completion: its command was silent and succeeded.
    pub fn released(&mut self, now: u64, start: Start, key: LocalKey, memory: &mut SimMemory) -> Result<(), Violation> {
        let judge = Judge { at: now, node: start.0, operation: u32::MAX };
        let found = self.records.iter_mut().find(|record| {
            record.start == start && record.given.local == key && record.posted.is_some() && record.outcome.is_none()
        });
        let Some(record) = found else {
            return Err(judge.says("a buffer came back for nothing", format!("{key:?}")));
        };
        let judge = Judge { operation: record.operation.id, ..judge };
        let closed = self.closed.contains(&(start, record.operation.place.endpoint));
        if closed && matches!(record.operation.what, What::Receive { .. }) {
            // There was no place for its completion.
            record.outcome = Some((now, Err(Failure::Closed)));
            record.left = Some(memory.detach(key).map_err(|wrong| judge.says("memory", wrong))?);
            return Ok(());
        }
        if !record.operation.is_unreported() {
            return Err(judge.says("success was not reported", format!("{key:?}")));
        }
        record.outcome = Some((now, Ok(())));
        self.counts.succeeded += 1;
        let bytes = memory.detach(key).map_err(|wrong| judge.says("memory", wrong))?;
        self.succeeded(&judge, &[], &bytes).map(|_| ())
    }
}

/// What a read brought, to be held against the memory that it read.
#[derive(Debug)]
pub struct ReadCheck {
    /// Whose memory.
    pub target: Start,
    written: bool,
    offset: u64,
    content: Vec<u8>,
    posted: u64,
    judge: Judge,
}

impl ReadCheck {
    /// Every byte must have been there at some time since the read was posted.
    pub fn judge(&self, memory: &SimMemory) -> Result<(), Violation> {
        let (bytes, times) = memory.region(if self.written { WRITTEN } else { CONSTANT });
        for (at, value) in (self.offset as usize..).zip(&self.content) {
            let present = bytes.get(at).copied().unwrap_or(0);
            let time = times.get(at).copied().unwrap_or(0);
            if *value != present && !(self.written && *value == 0 && time >= self.posted) {
                let text = format!("byte {at} was read as {value:02x}; it is {present:02x} since {time}");
                return Err(self.judge.says("a read returned what was never there", text));
            }
        }
        Ok(())
    }
}
