//! The order in which operations take effect, as far as a program asked for one.
//!
//! Messages are always in order. Nothing else is, unless a program asked for it: then an operation that must not overtake
//! others that may be under way to the same peer is fenced. What is posted and what is noted have the same order, so
//! both are done under one lock; programs that ask for nothing do not pay for it.

use std::sync::{Mutex, PoisonError};

use weft::raw::{Command, CommandFlags, Operation};

use crate::abi::*;

/// What an endpoint keeps in order.
pub(crate) struct Order {
    /// What was asked for beside the order of messages.
    asked: u64,
    /// Kinds of operations since the last fence, by peer: a fence is between two endpoints.
    recent: Mutex<Vec<u8>>,
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
        Order { asked: asked & !FI_ORDER_SAS, recent: Mutex::default() }
    }

    /// Whether nothing has to be kept.
    #[inline]
    pub(crate) fn is_free(&self) -> bool {
        self.asked == 0
    }

    /// Posts a command, marked as what was asked for wants it.
    #[inline]
    pub(crate) fn keep<T, E>(
        &self,
        command: &mut Command,
        post: impl FnOnce(&Command) -> Result<T, E>,
    ) -> Result<T, E> {
        if self.asked == 0 { post(command) } else { self.fence_and_post(command, post) }
    }

    #[cold]
    fn fence_and_post<T, E>(&self, command: &mut Command, post: impl FnOnce(&Command) -> Result<T, E>) -> Result<T, E> {
        let kind = match command.operation {
            Operation::Send | Operation::TaggedSend => SENDS,
            Operation::Write => WRITES,
            Operation::Read => READS,
            Operation::Atomic => ATOMIC_WRITES,
            Operation::FetchAtomic | Operation::CompareAtomic => ATOMIC_WRITES | ATOMIC_READS,
            _ => return post(command),
        };
        let index = command.peer.0 as usize;
        let mut peers = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if peers.len() <= index {
            peers.resize(index + 1, 0);
        }
        let recent = peers.get(index).copied().unwrap_or(0);
        let rules = RULES.iter().filter(|(order, kinds, _)| self.asked & order != 0 && kinds & kind != 0);
        let behind = rules.fold(0, |behind, (.., others)| behind | others);
        if behind & recent != 0 {
            command.flags = command.flags | CommandFlags::FENCE;
        }
        let fenced = command.flags.contains(CommandFlags::FENCE);
        let posted = post(command)?;
        // What was refused is not under way, and its fence neither.
        if let Some(noted) = peers.get_mut(index) {
            *noted = if fenced { kind } else { recent | kind };
        }
        Ok(posted)
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
        let flags_to = |order: &Order, operation, peer| {
            let mut command = weft::raw::command(&endpoint, operation, weft::PeerId(peer));
            order.keep(&mut command, |command| Ok::<_, ()>(command.flags)).unwrap()
        };
        let flags = |order: &Order, operation| flags_to(order, operation, 0);
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
        // Each peer is by itself, and what was refused has changed nothing.
        let writes = Order::new(FI_ORDER_SAW);
        assert_eq!(flags_to(&writes, Operation::Write, 1), CommandFlags::NONE);
        assert_eq!(flags_to(&writes, Operation::Send, 2), CommandFlags::NONE);
        let mut refused = weft::raw::command(&endpoint, Operation::Send, weft::PeerId(1));
        assert_eq!(writes.keep(&mut refused, |_| Err::<(), _>("no room")), Err("no room"));
        assert_eq!(flags_to(&writes, Operation::Send, 1), CommandFlags::FENCE);
    }
}
