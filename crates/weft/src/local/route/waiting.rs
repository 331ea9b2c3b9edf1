//! Commands of a route that wait for an answer.

use weft_core::command::{Command, CommandFlags};

use weft_core::limits::ORDERED_MAX;

use crate::limits::LOCAL_REGIONS_MAX;

/// A command that an answer is awaited for.
pub(super) struct Waiting {
    pub(super) command: Command,
    pub(super) state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Until the target says that it is done.
    Answer,
    /// Until the target wants it. It may be reading it already if it was told where it lies.
    Offered { readable: bool },
    /// The same, and the target was asked to forget it. It says whether it has, or fetches it nevertheless.
    Withdrawn,
    /// The target copies it out of a bounce buffer.
    Bounced { slot: u32 },
    /// The target wants it: this much has been sent.
    Pulled { arrival: u64, sent: u32 },
    /// Until all bytes have come.
    Reading { received: u32 },
    /// Until the device has copied.
    Reaching,
    /// Until the target says whether this node may reach a region by itself.
    Attach,
}

/// Commands of one route that may be under way.
pub(in crate::local) const WAITING_MAX: usize = 1 << 19;

/// No command has it: there are fewer places.
pub(super) const NO_TOKEN: u32 = u32::MAX;

/// Commands that answers are awaited for, by their token: a place, and above it how often that was used, so that a late
/// answer to what was given up does not meet another command.
#[derive(Default)]
pub(super) struct Waitings {
    slots: Vec<Slot>,
    free: Vec<u32>,
    pub(super) length: usize,
    /// Of them, questions that no user asked.
    questions: usize,
    /// Those that later ones may have to wait for.
    ordered: Vec<u32>,
}

#[derive(Default)]
struct Slot {
    waiting: Option<Waiting>,
    uses: u32,
}

const PLACE_BITS: u32 = 20;
const PLACES: u32 = 1 << PLACE_BITS;
/// The highest bit is that of tokens of another kind (`bounce`).
const USES: u32 = 1 << (31 - PLACE_BITS);
const _: () = assert!(WAITING_MAX + LOCAL_REGIONS_MAX < PLACES as usize);

impl Waitings {
    pub(super) fn insert(&mut self, command: Command, state: State) -> u32 {
        self.length += 1;
        self.questions += usize::from(state == State::Attach);
        let place = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() as u32 - 1
        });
        let Some(slot) = self.slots.get_mut(place as usize) else { return NO_TOKEN };
        slot.waiting = Some(Waiting { command, state });
        let token = slot.uses << PLACE_BITS | place;
        if command.has(CommandFlags::ORDERED) {
            self.ordered.push(token);
        }
        token
    }

    fn slot_mut(&mut self, token: u32) -> Option<&mut Slot> {
        let slot = self.slots.get_mut((token % PLACES) as usize)?;
        (slot.uses << PLACE_BITS == token / PLACES * PLACES).then_some(slot)
    }

    pub(super) fn get_mut(&mut self, token: u32) -> Option<&mut Waiting> {
        self.slot_mut(token)?.waiting.as_mut()
    }

    pub(super) fn remove(&mut self, token: u32) -> Option<Waiting> {
        let slot = self.slot_mut(token)?;
        let waiting = slot.waiting.take()?;
        slot.uses = (slot.uses + 1) % USES;
        self.free.push(token % PLACES);
        self.length -= 1;
        self.questions -= usize::from(waiting.state == State::Attach);
        if waiting.command.has(CommandFlags::ORDERED) {
            self.ordered.retain(|other| *other != token);
        }
        Some(waiting)
    }

    pub(super) fn find(&self, wanted: impl Fn(&Waiting) -> bool) -> Option<u32> {
        let place = self.slots.iter().position(|slot| slot.waiting.as_ref().is_some_and(&wanted))?;
        self.slots.get(place).map(|slot| slot.uses << PLACE_BITS | place as u32)
    }

    /// Whether an ordered command has to wait for one of these.
    #[inline]
    pub(super) fn hold_back(&self, command: &Command) -> bool {
        command.has(CommandFlags::ORDERED) && !self.ordered.is_empty() && self.hold_back_ordered(command)
    }

    #[cold]
    fn hold_back_ordered(&self, command: &Command) -> bool {
        let earlier = |token: &u32| {
            let slot = self.slots.get((token % PLACES) as usize);
            let waiting = slot.and_then(|slot| slot.waiting.as_ref());
            waiting.is_some_and(|waiting| command.must_follow(&waiting.command))
        };
        self.ordered.len() >= ORDERED_MAX || self.ordered.iter().any(earlier)
    }

    /// Operations of the user.
    pub(super) fn operations(&self) -> usize {
        self.length - self.questions
    }
}
