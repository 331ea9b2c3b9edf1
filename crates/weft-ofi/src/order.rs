//! The order in which operations take effect, as far as a program asked for one.
//!
//! Messages are always in order. Writes, reads and atomics that touch the same bytes are kept in order by the NIC where
//! they say so. Between messages and the others there is no order of the NIC's own: where a program asked for it, the first
//! of a kind after others is fenced.

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

/// Orders among operations on memory.
const MEMORY: u64 = FI_ORDER_RAR
    | FI_ORDER_RAW
    | FI_ORDER_WAR
    | FI_ORDER_WAW
    | FI_ORDER_RMA_RAR
    | FI_ORDER_RMA_RAW
    | FI_ORDER_RMA_WAR
    | FI_ORDER_RMA_WAW
    | FI_ORDER_ATOMIC_RAR
    | FI_ORDER_ATOMIC_RAW
    | FI_ORDER_ATOMIC_WAR
    | FI_ORDER_ATOMIC_WAW;

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
        // What it is, and what it must not overtake.
        let (kind, behind) = match command.operation {
            Operation::Send | Operation::TaggedSend => (SENDS, [(FI_ORDER_SAW, WRITES), (FI_ORDER_SAR, READS)]),
            Operation::Write | Operation::Atomic => (WRITES, [(FI_ORDER_WAS, SENDS), (0, 0)]),
            Operation::Read => (READS, [(FI_ORDER_RAS, SENDS), (0, 0)]),
            Operation::FetchAtomic | Operation::CompareAtomic => {
                (READS | WRITES, [(FI_ORDER_RAS, SENDS), (FI_ORDER_WAS, SENDS)])
            }
            _ => return,
        };
        if kind != SENDS && self.asked & MEMORY != 0 {
            command.flags = command.flags | CommandFlags::ORDERED;
        }
        let recent = self.recent.load(Ordering::Relaxed);
        if behind.iter().any(|(order, kinds)| self.asked & order != 0 && recent & kinds != 0) {
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
        assert_eq!(flags(&atomics, Operation::FetchAtomic), CommandFlags::ORDERED);
        assert_eq!(flags(&atomics, Operation::Send), CommandFlags::NONE);
    }
}
