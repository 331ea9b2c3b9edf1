//! The order in which operations take effect, as far as a program asked for one.
//!
//! Messages are always in order. Nothing else is, unless a program asked for it: then an operation that must not overtake
//! others that may be under way is fenced.

use std::sync::atomic::{AtomicU8, Ordering};

use weft::raw::{Command, CommandFlags, Operation};

use crate::abi::*;

/// What an endpoint keeps in order.
pub(crate) struct Order {
    /// What was asked for beside the order of messages.
    asked: u64,
    /// Kinds of operations since the last fence.
    recent: AtomicU8,
}

const SENDS: u8 = 1;
const WRITES: u8 = 2;
const READS: u8 = 4;
const ATOMIC_WRITES: u8 = 8;
const ATOMIC_READS: u8 = 16;

/// Which order keeps operations of which kind behind which others.
const RULES: [(u64, u8, u8); 16] = [
    (FI_ORDER_SAW, SENDS, WRITES | ATOMIC_WRITES),
    (FI_ORDER_SAR, SENDS, READS | ATOMIC_READS),
    (FI_ORDER_WAS, WRITES | ATOMIC_WRITES, SENDS),
    (FI_ORDER_RAS, READS | ATOMIC_READS, SENDS),
    (FI_ORDER_RAR, READS | ATOMIC_READS, READS | ATOMIC_READS),
    (FI_ORDER_RAW, READS | ATOMIC_READS, WRITES | ATOMIC_WRITES),
    (FI_ORDER_WAR, WRITES | ATOMIC_WRITES, READS | ATOMIC_READS),
    (FI_ORDER_WAW, WRITES | ATOMIC_WRITES, WRITES | ATOMIC_WRITES),
    (FI_ORDER_RMA_RAR, READS, READS),
    (FI_ORDER_RMA_RAW, READS, WRITES),
    (FI_ORDER_RMA_WAR, WRITES, READS),
    (FI_ORDER_RMA_WAW, WRITES, WRITES),
    (FI_ORDER_ATOMIC_RAR, ATOMIC_READS, ATOMIC_READS),
    (FI_ORDER_ATOMIC_RAW, ATOMIC_READS, ATOMIC_WRITES),
    (FI_ORDER_ATOMIC_WAR, ATOMIC_WRITES, ATOMIC_READS),
    (FI_ORDER_ATOMIC_WAW, ATOMIC_WRITES, ATOMIC_WRITES),
];

impl Order {
    pub(crate) fn new(asked: u64) -> Order {
        Order { asked: asked & !FI_ORDER_SAS, recent: AtomicU8::new(0) }
    }

    /// Marks a command as what was asked for wants it.
    #[inline]
    pub(crate) fn apply(&self, command: &mut Command) {
        if self.asked != 0 {
            self.keep(command);
        }
    }

    #[cold]
    fn keep(&self, command: &mut Command) {
        let kind = match command.operation {
            Operation::Send | Operation::TaggedSend => SENDS,
            Operation::Write => WRITES,
            Operation::Read => READS,
            Operation::Atomic => ATOMIC_WRITES,
            Operation::FetchAtomic | Operation::CompareAtomic => ATOMIC_WRITES | ATOMIC_READS,
            _ => return,
        };
        let recent = self.recent.load(Ordering::Relaxed);
        let behind = RULES.iter().filter(|(order, kinds, _)| self.asked & order != 0 && kinds & kind != 0);
        if behind.fold(0, |behind, (.., others)| behind | others) & recent != 0 {
            command.flags = command.flags | CommandFlags::FENCE;
            self.recent.store(kind, Ordering::Relaxed);
        } else {
            self.recent.store(recent | kind, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_asked_for_is_kept() {
        let domain = weft::Domain::udp("127.0.0.1:0").unwrap();
        let queue = domain.completion_queue(16);
        let endpoint = domain.endpoint(&queue).unwrap();
        let flags = |order: &Order, operation| {
            let mut command = weft::raw::command(&endpoint, operation, weft::PeerId(0));
            order.apply(&mut command);
            command.flags
        };
        let nothing = Order::new(FI_ORDER_SAS);
        for operation in [Operation::Write, Operation::Send, Operation::Read] {
            assert_eq!(flags(&nothing, operation), CommandFlags::NONE);
        }
        let sends_behind_writes = Order::new(FI_ORDER_SAS | FI_ORDER_SAW);
        assert_eq!(flags(&sends_behind_writes, Operation::Send), CommandFlags::NONE);
        assert_eq!(flags(&sends_behind_writes, Operation::Write), CommandFlags::NONE);
        assert_eq!(flags(&sends_behind_writes, Operation::Send), CommandFlags::FENCE);
        assert_eq!(flags(&sends_behind_writes, Operation::Send), CommandFlags::NONE);
        let atomics = Order::new(FI_ORDER_ATOMIC_RAW);
        assert_eq!(flags(&atomics, Operation::Atomic), CommandFlags::NONE);
        assert_eq!(flags(&atomics, Operation::Atomic), CommandFlags::NONE);
        assert_eq!(flags(&atomics, Operation::Read), CommandFlags::NONE);
        assert_eq!(flags(&atomics, Operation::FetchAtomic), CommandFlags::FENCE);
        assert_eq!(flags(&atomics, Operation::Send), CommandFlags::NONE);
    }
}
