//! Commands that are posted in parts and end as one: an operation on several ranges of a target's memory.
//!
//! The whole has the buffer, the place in the completion queue and the counter; each part is a command of its own on either
//! road, which names the whole where others have their context. The whole ends with its last part, and fails as the first
//! of them that failed.

use super::Delivery;
use crate::command::{Command, CommandFlags, PostError};
use crate::event::Failure;
use crate::memory::Memory;

/// A command whose parts are under way.
#[derive(Debug)]
pub(super) struct VectorOp {
    whole: Command,
    /// Parts that have not ended.
    left: u32,
    failure: Option<Failure>,
}

impl<M: Memory> Delivery<M> {
    /// Takes a command that goes as `parts` others. Each of them has to be made with [`Delivery::part`] and be posted, or
    /// be [reported](Delivery::report) as failed.
    pub fn open_vector_op(&mut self, whole: &Command, parts: u32) -> Result<VectorOpId, PostError> {
        if parts == 0 {
            return Err(PostError::BadBuffer);
        }
        let mut whole = *whole;
        self.admit(&mut whole)?;
        Ok(VectorOpId(self.vector_ops.insert(VectorOp { whole, left: parts, failure: None })))
    }

    /// Makes a command a part of such an operation. Its buffers have to be those of the whole.
    #[must_use]
    pub fn part(&self, operation: VectorOpId, command: &Command) -> Command {
        Command { flags: command.flags | CommandFlags::PART, context: u64::from(operation.0), ..*command }
    }

    /// Whether the operation that a part is of is there.
    pub(super) fn has_vector_op(&self, part: &Command) -> bool {
        vector_op_of(part).is_some_and(|whole| self.vector_ops.get(whole).is_some())
    }

    pub(super) fn part_ended(&mut self, part: &Command, result: Result<(), Failure>) {
        let Some(number) = vector_op_of(part) else { return };
        let Some(operation) = self.vector_ops.get_mut(number) else { return };
        operation.left = operation.left.saturating_sub(1);
        operation.failure = operation.failure.or(result.err());
        if operation.left == 0
            && let Some(operation) = self.vector_ops.remove(number)
        {
            self.report(&operation.whole, operation.failure.map_or(Ok(()), Err));
        }
    }
}

/// Names a command that goes in parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VectorOpId(u32);

fn vector_op_of(part: &Command) -> Option<u32> {
    u32::try_from(part.context).ok()
}
