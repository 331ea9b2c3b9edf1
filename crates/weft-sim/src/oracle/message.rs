//! What is promised about messages: each arrives once, whole, at the one it was sent to, in a receive that fits it.

use weft_core::event::{Completion, CompletionKind, Failure};
use weft_core::memory::LocalKey;

use super::{Delivery, Judge, Oracle, Start, Violation};
use crate::memory::SimMemory;
use crate::node::{LEAD, MAGIC, payload_of};
use crate::workload::What;

impl Oracle {
    /// A receive ended, or a buffer for many got a message.
    pub(super) fn received(
        &mut self,
        judge: &Judge,
        start: Start,
        completion: &Completion,
        memory: &mut SimMemory,
    ) -> Result<(), Violation> {
        let record = self.records.get(judge.operation as usize).filter(|record| record.start == start);
        let record = record.ok_or_else(|| judge.says("completion for nothing", completion))?;
        let What::Receive { tag, source, length: room, multi } = record.operation.what else {
            return Err(judge.says("completion of another kind", completion));
        };
        // The buffer of a closed endpoint went back at once; what was arriving in it is told behind, and so is what had
        // arrived where the queue had no place for the buffer's end.
        let closed = self.is_closed(Some(start), record.operation.place);
        if closed && multi.is_some() && completion.result.is_err() && completion.local == LocalKey::NONE {
            return Ok(());
        }
        let left = record.left.as_ref().filter(|_| multi.is_some());
        if record.posted.is_none() || record.outcome.is_some() && left.is_none() {
            return Err(judge.says("completed twice", completion));
        }
        let released = completion.kind == CompletionKind::BufferReleased;
        if !released && tag.is_some() != (completion.kind == CompletionKind::TaggedReceive) {
            return Err(judge.says("completion of another kind", completion));
        }
        let (given, place) = (record.given, record.operation.place);
        let (incarnation, cancelled) = (record.start.1, record.cancelled);
        let stays = multi.is_some() && completion.local == LocalKey::NONE;
        let base = given.lead + if multi.is_some() { completion.offset } else { 0 };
        let length = completion.length.min(room);
        let content = if let Some(left) = left {
            left.get(base as usize..(base + length) as usize).map(<[u8]>::to_vec)
        } else if stays {
            memory.peek(given.local, base, length).map(<[u8]>::to_vec)
        } else if given.local == LocalKey::NONE {
            Some(Vec::new())
        } else {
            if completion.local != given.local {
                return Err(judge.says("another buffer came back", completion));
            }
            let bytes = memory.detach(given.local).map_err(|wrong| judge.says("memory", wrong))?;
            if bytes.iter().take(given.lead as usize).any(|byte| *byte != LEAD) {
                return Err(judge.says("memory", "bytes before the receive were written"));
            }
            bytes.get(base as usize..(base + length) as usize).map(<[u8]>::to_vec)
        };
        if !stays && let Some(record) = self.records.get_mut(judge.operation as usize) {
            record.outcome = Some((judge.at, completion.result));
        }
        match completion.result {
            Ok(()) => {}
            Err(Failure::Cancelled) if cancelled => {
                self.counts.cancelled += 1;
                return Ok(());
            }
            Err(Failure::Closed | Failure::Cancelled) if self.is_closed(Some(start), place) => return Ok(()),
            // The other side was closed in the middle.
            Err(Failure::Aborted | Failure::NoSuchEndpoint | Failure::AccessRefused) if !self.closed.is_empty() => {
                return Ok(());
            }
            Err(Failure::Truncated) if self.short_receives && multi.is_none() && completion.length > room => {}
            // A message whose sender went away in the middle.
            Err(Failure::OutcomeUnknown | Failure::Aborted) if self.may_give_up => return Ok(()),
            Err(Failure::AccessRefused | Failure::NoSuchEndpoint) if self.may_give_up => return Ok(()),
            // It was cancelled before it was fetched.
            Err(Failure::Aborted) if self.cancelled_sends => return Ok(()),
            Err(_) => return Err(judge.says("a receive failed without cause", completion)),
        }
        if released {
            let fits = multi.is_some() && completion.local == given.local;
            return if fits { Ok(()) } else { Err(judge.says("another buffer came back", completion)) };
        }
        let truncated = completion.result.is_err();
        let content = content.ok_or_else(|| judge.says("a message outside of its buffer", completion))?;
        let marked = content.first_chunk::<8>().map(|mark| u64::from_le_bytes(*mark));
        let marked = marked.filter(|mark| mark >> 32 == u64::from(MAGIC)).map(|mark| mark & 0xffff_ffff);
        let id = completion.immediate.or(marked).ok_or_else(|| judge.says("damaged message", completion))?;
        let message = self.records.get(id as usize).ok_or_else(|| judge.says("made-up message", completion))?;
        let judge = Judge { operation: id as u32, ..*judge };
        let (to, sent_tag, sent_length, immediate, datagram) = match message.operation.what {
            What::Send { to, tag, length, qualities, .. } => (to, tag, length, qualities.immediate, false),
            What::Datagram { to, length } => (to, None, length, true, true),
            _ => return Err(judge.says("made-up message", completion)),
        };
        let receive = completion.context as u32;
        let target = Some((place.node, incarnation));
        if to != place || message.target != target || message.posted.is_none() {
            return Err(judge.says("a message for somebody else", completion));
        }
        let from = completion.source.and_then(|address| self.directory.get(&address)).copied();
        if from != Some((message.operation.place, message.start.1)) {
            return Err(judge.says("a message from somebody else", completion));
        }
        if completion.immediate.is_some() != immediate || completion.length != u64::from(sent_length) {
            return Err(judge.says("a message with another envelope", completion));
        }
        let tag_fits = match (tag, sent_tag) {
            (Some((tag, ignore)), Some(sent)) => completion.tag == sent && (tag ^ sent) & !ignore == 0,
            (None, None) => true,
            _ => false,
        };
        if !tag_fits || source.is_some_and(|source| source != message.operation.place) {
            return Err(judge.says("a message in a receive for others", completion));
        }
        let sent = payload_of(id as u32, sent_length as usize);
        if !truncated && sent != content {
            return Err(judge.says("damaged message", format!("{completion:?} {content:02x?} instead of {sent:02x?}")));
        }
        let repeated = !message.deliveries.is_empty();
        if repeated && !(datagram && self.duplicates) {
            return Err(judge.says("delivered twice", completion));
        }
        // Messages of one source into one buffer are told in the order in which they lie there.
        let source = Some((message.operation.place, message.start));
        let after = |other: &super::Record| {
            let same = Some((other.operation.place, other.start)) == source;
            same && other.deliveries.iter().any(|d| d.receive == receive && d.offset > completion.offset)
        };
        if multi.is_some() && self.records.iter().any(after) {
            return Err(judge.says("told out of order", completion));
        }
        self.counts.messages += 1;
        self.counts.truncated += u64::from(truncated);
        let delivery = Delivery { receive, offset: completion.offset, at: judge.at, truncated };
        if let Some(message) = self.records.get_mut(id as usize) {
            message.deliveries.push(delivery);
        }
        if let Some(record) = self.records.get_mut(receive as usize) {
            record.taken += 1;
        }
        Ok(())
    }
}
