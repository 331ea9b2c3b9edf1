//! What can be said about a run only when it is over: that nothing is missing, and that messages matched in order.
//!
//! The rule of matching is checked without knowing how messages of different streams interleaved. Let a stand before b
//! in a stream, and let the receive r that took b fit a as well. When b matched, a had arrived, so a must have matched
//! before; and the receive that took a must have been posted before r, or a would have taken r. Likewise, a receive that
//! fits a message and was posted before the one that took it must have been used up.

use weft_core::command::Level;
use weft_core::event::Failure;

use super::{Judge, Oracle, Record, Start, Violation};
use crate::workload::{Mistake, What};

impl Oracle {
    /// The first promise that turned out not to be kept. `alive` says whether a start of a node lasted to the end.
    pub fn finish(&self, now: u64, alive: impl Fn(Start) -> bool) -> Result<(), Violation> {
        for record in self.records.iter().filter(|record| record.posted.is_some()) {
            let judge = Judge { at: now, node: record.start.0, operation: record.operation.id };
            let succeeded = matches!(record.outcome, Some((_, Ok(()))));
            let refused = matches!(record.outcome, Some((_, Err(failure))) if failure != Failure::OutcomeUnknown);
            match record.operation.what {
                What::Send { level, .. } => {
                    let closed = record.operation.peer().is_some_and(|peer| self.is_closed(record.target, peer));
                    let kept = level == Level::Delivered || record.target.is_some_and(&alive) && !closed;
                    if succeeded && kept && record.deliveries.is_empty() {
                        return Err(judge.says("success without delivery", record.to_string()));
                    }
                    // Closing an endpoint says nothing of what was executed before.
                    let untouched = refused && !matches!(record.outcome, Some((_, Err(Failure::Closed))));
                    if untouched && record.deliveries.iter().any(|delivery| !delivery.truncated) {
                        return Err(judge.says("refused, but delivered", record.to_string()));
                    }
                }
                What::Write { qualities, mistake, .. } => {
                    if succeeded && qualities.immediate && record.notified != 1 {
                        return Err(judge.says("success without notification", record.to_string()));
                    }
                    if mistake != Mistake::None && record.placed > 0 {
                        return Err(judge.says("refused, but executed", record.to_string()));
                    }
                }
                _ => {}
            }
        }
        self.fences(now)?;
        self.streams(now)?;
        self.receives(now)
    }

    /// P-6.5: what stood before a fence, between the same two endpoints, was executed before what stands behind it.
    fn fences(&self, now: u64) -> Result<(), Violation> {
        let executed = |record: &&Record| record.placed > 0 || record.executed > 0;
        let fenced = |record: &&Record| record.operation.qualities().fence;
        for record in self.records.iter().filter(executed).filter(fenced) {
            let before = self.records.iter().filter(executed).filter(|earlier| {
                earlier.order < record.order
                    && earlier.start == record.start
                    && earlier.operation.place == record.operation.place
                    && earlier.target == record.target
                    && earlier.operation.peer() == record.operation.peer()
                    && matches!(earlier.outcome, Some((_, Ok(()))))
            });
            for earlier in before {
                if earlier.last_at > record.first_at {
                    let judge = Judge { at: now, node: record.start.0, operation: record.operation.id };
                    let text = format!("operation {} was executed after it", earlier.operation.id);
                    return Err(judge.says("a fence was overtaken", text));
                }
            }
        }
        Ok(())
    }

    /// Messages of a stream matched in order.
    fn streams(&self, now: u64) -> Result<(), Violation> {
        let sent: Vec<_> = self.records.iter().filter_map(|record| Some((record, Message::of(record)?))).collect();
        for (later, second) in &sent {
            let Some(delivery) = later.deliveries.first() else { continue };
            let Some(taker) = self.records.get(delivery.receive as usize) else { continue };
            for (earlier, first) in &sent {
                let together = earlier.operation.place == later.operation.place
                    && earlier.start == later.start
                    && earlier.target == later.target
                    && second.to == first.to
                    && earlier.order < later.order;
                if !together || !first.ordered || !second.ordered || !fits(taker, earlier, first) {
                    continue;
                }
                // A message that failed may have come late or never; only success keeps its place.
                if !matches!(earlier.outcome, Some((_, Ok(())))) {
                    continue;
                }
                let Some(before) = earlier.deliveries.first() else { continue };
                let Some(other) = self.records.get(before.receive as usize) else { continue };
                let same = before.receive == delivery.receive;
                if other.order > taker.order || (same && before.offset > delivery.offset) {
                    let judge = Judge { at: now, node: taker.start.0, operation: later.operation.id };
                    let text = format!(
                        "it overtook operation {} of its stream: receive {} took it, receive {} the earlier one",
                        earlier.operation.id, delivery.receive, before.receive
                    );
                    return Err(judge.says("message order", text));
                }
            }
        }
        Ok(())
    }

    /// No message passed a receive that was there for it.
    fn receives(&self, now: u64) -> Result<(), Violation> {
        for record in &self.records {
            let Some(message) = Message::of(record) else { continue };
            for delivery in &record.deliveries {
                let Some(taker) = self.records.get(delivery.receive as usize) else { continue };
                let passed = self.records.iter().find(|receive| {
                    let earlier = receive.start == taker.start
                        && receive.operation.place == taker.operation.place
                        && receive.posted.is_some()
                        && receive.order < taker.order;
                    let Some((ended, how)) = receive.outcome else {
                        return earlier && !receive.lost && fits(receive, record, &message);
                    };
                    let unused = receive.taken == 0 && how == Err(Failure::Cancelled) && ended > delivery.at;
                    earlier && unused && fits(receive, record, &message)
                });
                if let Some(receive) = passed {
                    let judge = Judge { at: now, node: taker.start.0, operation: record.operation.id };
                    let text = format!("receive {} took it past {}", delivery.receive, receive.operation.id);
                    return Err(judge.says("a message passed a receive", text));
                }
            }
        }
        Ok(())
    }
}

/// What matching knows of a message.
struct Message {
    to: crate::scenario::Place,
    tag: Option<u64>,
    ordered: bool,
}

impl Message {
    fn of(record: &Record) -> Option<Message> {
        match record.operation.what {
            What::Send { to, tag, qualities, .. } if record.posted.is_some() => {
                Some(Message { to, tag, ordered: !qualities.unordered })
            }
            _ => None,
        }
    }
}

/// Whether a receive would take a message.
fn fits(receive: &Record, message: &Record, about: &Message) -> bool {
    let What::Receive { tag, source, .. } = receive.operation.what else { return false };
    let tags = match (tag, about.tag) {
        (Some((tag, ignore)), Some(sent)) => (tag ^ sent) & !ignore == 0,
        (None, None) => true,
        _ => false,
    };
    // A receive for one source names the start of the node that its program knew.
    let source_fits = source.is_none_or(|source| {
        source == message.operation.place && receive.target.is_some_and(|start| start == message.start)
    });
    tags && source_fits
}
