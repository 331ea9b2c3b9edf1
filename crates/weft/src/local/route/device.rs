//! What a route does with memory of devices, its own or the target's, so that no byte passes through the host.

use weft_core::command::{Command, Level, Operation};
use weft_core::delivery::Delivery;
use weft_core::memory::Access;
use weft_link::shm::Broken;
use weft_mem::HostMemory;
use weft_mem::device::Handle;

use super::super::handle::{self, DeviceNote, Handles, Reached, Reference};
use super::super::record::{self, Request};
use super::super::{LocalStatistics, Methods};
use super::{Attempt, Lane, Route, State, flags_of};
use crate::limits::{LOCAL_BOUNCE_BYTES, LOCAL_BOUNCE_MIN_BYTES, LOCAL_DEVICE_EAGER_MAX_BYTES};

impl Route {
    /// A command in a node that uses devices.
    #[cold]
    pub(super) fn attempt_anywhere(
        &mut self,
        delivery: &mut Delivery<HostMemory>,
        command: &Command,
        lane: Lane,
        methods: &Methods,
        statistics: &mut LocalStatistics,
    ) -> Result<Attempt, Broken> {
        if let Some(attempt) = self.attempt_device(delivery, command, lane, statistics)? {
            return Ok(attempt);
        }
        if handle::is_on_device(delivery.memory(), command)
            && let Some(place) = delivery.memory().local_place(command.local)
        {
            self.channel.make_known(place.kind);
        }
        let direct = statistics.direct;
        let attempt = self.attempt_plain(delivery, command, lane, None, methods, statistics)?;
        let goes = !matches!(attempt, Attempt::Full) && statistics.direct == direct;
        statistics.staged += u64::from(goes && handle::is_on_device(delivery.memory(), command));
        Ok(attempt)
    }

    /// A command that devices can do without the host.
    fn attempt_device(
        &mut self,
        delivery: &mut Delivery<HostMemory>,
        command: &Command,
        lane: Lane,
        statistics: &mut LocalStatistics,
    ) -> Result<Option<Attempt>, Broken> {
        let length = command.length as usize;
        match command.operation {
            Operation::Write if lane == Lane::Transfers => {
                return Ok(self.reach_device(delivery, command, Access::REMOTE_WRITE, statistics));
            }
            Operation::Read if lane == Lane::Transfers => {
                return Ok(self.reach_device(delivery, command, Access::REMOTE_READ, statistics));
            }
            _ => {}
        }
        if !matches!(command.operation, Operation::Send | Operation::TaggedSend)
            || !handle::is_on_device(delivery.memory(), command)
        {
            return Ok(None);
        }
        if let Some(reference) = self.told.refer(&self.channel, delivery.memory(), command) {
            return self.offer_by_handle(command, reference, statistics).map(Some);
        }
        if (LOCAL_BOUNCE_MIN_BYTES..=LOCAL_BOUNCE_BYTES).contains(&length) && command.level != Level::Delivered {
            return self.bounce(delivery, command, statistics);
        }
        Ok(None)
    }

    /// A message in device memory: it waits there until the target wants it.
    fn offer_by_handle(
        &mut self,
        command: &Command,
        reference: Reference,
        statistics: &mut LocalStatistics,
    ) -> Result<Attempt, Broken> {
        let mut flags = offer_flags(command);
        if command.level == Level::Delivered {
            flags |= record::ANSWER;
        } else if command.length as usize <= LOCAL_DEVICE_EAGER_MAX_BYTES {
            flags |= record::TAKEN_OVER;
        }
        let words = [command.address, command.immediate, 0, 0];
        let state = State::Offered { readable: true };
        let attempt = self.ask(command, Lane::Messages, state, Request::Offer, flags, words, &reference.to_bytes())?;
        statistics.offered += u64::from(matches!(attempt, Attempt::Taken));
        Ok(attempt)
    }

    /// A write or read in device memory of the target that this node may reach.
    fn reach_device(
        &mut self,
        delivery: &mut Delivery<HostMemory>,
        command: &Command,
        access: Access,
        statistics: &mut LocalStatistics,
    ) -> Option<Attempt> {
        let (imported, at) = self.attachments.enter(&self.channel, command, access)?;
        match handle::reach(delivery.memory_mut(), command, &imported, at) {
            Reached::Done(result) => {
                self.attachments.leave(&self.channel, command.key);
                delivery.report(command, result);
            }
            Reached::Going(mut reaching) => {
                reaching.token = self.waiting.insert(*command, State::Reaching);
                self.reaching.push(reaching);
            }
            Reached::Not => {
                self.attachments.leave(&self.channel, command.key);
                return None;
            }
        }
        statistics.direct += 1;
        statistics.by_handle += 1;
        Some(Attempt::Taken)
    }

    /// Copies in the target's device memory that are done. True: there were some.
    pub(super) fn serve_reaching(&mut self, delivery: &mut Delivery<HostMemory>) -> bool {
        let mut busy = false;
        let mut index = 0;
        while let Some(reaching) = self.reaching.get_mut(index) {
            let Some(result) = reaching.poll(delivery.memory_mut()) else {
                index += 1;
                continue;
            };
            let (token, key) = (reaching.token, reaching.key);
            self.reaching.swap_remove(index);
            self.attachments.leave(&self.channel, key);
            if let Some(waiting) = self.waiting.remove(token) {
                delivery.report(&waiting.command, result);
            }
            busy = true;
        }
        busy
    }

    /// Whether devices are at work for it.
    pub(in crate::local) fn is_reaching(&self) -> bool {
        !self.reaching.is_empty()
    }

    /// A message that goes by a bounce buffer, if there is one.
    fn bounce(
        &mut self,
        delivery: &mut Delivery<HostMemory>,
        command: &Command,
        statistics: &mut LocalStatistics,
    ) -> Result<Option<Attempt>, Broken> {
        if !self.channel.messages().has_room(Reference::BYTES) {
            return Ok(Some(Attempt::Full));
        }
        let Some(bounced) = self.bounces.take(&self.channel, delivery.memory_mut(), command) else { return Ok(None) };
        let flags = offer_flags(command) | record::TAKEN_OVER;
        let words = [command.address, command.immediate, 0, 0];
        let state = State::Bounced { slot: bounced.slot };
        let attempt =
            self.ask(command, Lane::Messages, state, Request::Offer, flags, words, &bounced.reference.to_bytes())?;
        if matches!(attempt, Attempt::Taken) {
            statistics.bounced += 1;
        } else {
            self.bounces.give_back(bounced.slot);
        }
        Ok(Some(attempt))
    }

    /// The target has sent a handle to reach a region of a device's memory.
    pub(in crate::local) fn attached_device(
        &mut self,
        note: DeviceNote,
        handle: &Handle,
        handles: &Handles,
        statistics: &mut LocalStatistics,
    ) {
        if self.waiting.get_mut(note.token).is_some_and(|waiting| waiting.state == State::Attach)
            && let Some(waiting) = self.waiting.remove(note.token)
        {
            let key = waiting.command.key;
            if self.attachments.granted_device(&self.channel, handles, key, note, handle) {
                statistics.handles_opened += 1;
            } else {
                statistics.handles_refused += 1;
            }
        }
    }
}

/// Of an offer by handle.
fn offer_flags(command: &Command) -> u8 {
    let tagged = if command.operation == Operation::TaggedSend { record::TAGGED } else { 0 };
    flags_of(command) | record::HANDLE | tagged
}
