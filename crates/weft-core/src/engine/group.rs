//! Commands that are posted in parts and end as one: an operation on several ranges of a target's memory.
//!
//! The whole has the buffer, the place in the completion queue and the counter; each part is a command of its own on either
//! road, which names its group where others have their context. The whole ends with its last part, and fails as the first
//! of them that failed.

use super::Engine;
use crate::command::{Command, CommandFlags, PostError};
use crate::event::Failure;
use crate::memory::Memory;

/// A command whose parts are under way.
#[derive(Debug)]
pub(super) struct Group {
    whole: Command,
    /// Parts that have not ended.
    left: u32,
    failure: Option<Failure>,
}

impl<M: Memory> Engine<M> {
    /// Whether so many commands more can be posted as packets.
    #[must_use]
    pub fn has_room_for(&self, commands: usize) -> bool {
        commands <= self.room_for_commands()
    }

    /// How many commands more can be posted as packets.
    pub(super) fn room_for_commands(&self) -> usize {
        // Some entries stay free for what the engine sends itself: the target's side must not starve.
        self.entries.room().saturating_sub((self.config.commands_max / 8).max(2))
    }

    /// Takes a command that goes as `parts` others. Each of them has to be made with [`Engine::part`] and be posted, or
    /// be [reported](Engine::report) as failed.
    pub fn open_group(&mut self, whole: &Command, parts: u32) -> Result<GroupId, PostError> {
        if parts == 0 {
            return Err(PostError::BadBuffer);
        }
        let mut whole = *whole;
        self.admit(&mut whole)?;
        Ok(GroupId(self.groups.insert(Group { whole, left: parts, failure: None })))
    }

    /// Makes a command a part of a group. Its buffers have to be those of the whole.
    #[must_use]
    pub fn part(&self, group: GroupId, command: &Command) -> Command {
        Command { flags: command.flags | CommandFlags::PART, context: u64::from(group.0), ..*command }
    }

    /// Whether a part's group is there.
    pub(super) fn has_group(&self, part: &Command) -> bool {
        group_of(part).is_some_and(|group| self.groups.get(group).is_some())
    }

    pub(super) fn part_ended(&mut self, part: &Command, result: Result<(), Failure>) {
        let Some((number, group)) = group_of(part).and_then(|number| Some((number, self.groups.get_mut(number)?)))
        else {
            return;
        };
        group.left = group.left.saturating_sub(1);
        group.failure = group.failure.or(result.err());
        if group.left == 0
            && let Some(group) = self.groups.remove(number)
        {
            self.report(&group.whole, group.failure.map_or(Ok(()), Err));
        }
    }
}

/// Names a command that goes in parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupId(u32);

fn group_of(part: &Command) -> Option<u32> {
    u32::try_from(part.context).ok()
}
