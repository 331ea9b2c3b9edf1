//! Long messages wait at their sender until they are fetched (P-5.5).

use super::*;
use crate::reliable::entry::Entry;

impl<M: Memory> Engine<M> {
    /// Fetches a message. There is room for the commands that it takes.
    pub(super) fn begin_pull(&mut self, now: Time, envelope: Envelope, landing: Landing, key: u64, address: u64) {
        self.clock = now;
        self.offers.remove(&(envelope.source_id, key));
        let number = self.endpoint_number(envelope.endpoint).unwrap_or(0);
        if u64::from(envelope.length) > landing.room {
            let done = Some((key, landing.room.min(u64::from(envelope.length) - 1)));
            self.complete_receive(&envelope, &Landing { done, ..landing }, Err(Failure::Truncated));
            return;
        }
        if envelope.length == 0 {
            self.complete_receive(&envelope, &Landing { done: Some((key, 0)), ..landing }, Ok(()));
            return;
        }
        let peer = self.peer_of(&envelope).unwrap_or(PeerId(u32::MAX));
        let mut command = Command::new(Operation::Pull, envelope.endpoint, peer);
        command.local = landing.local;
        command.offset = landing.offset;
        command.length = envelope.length;
        command.key = key;
        command.address = address;
        let index = self.pulls.insert(Pull { landing, envelope, key });
        if self.submit(now, command, envelope.source, number, index).is_none() {
            self.pull_ended(now, index, Err(Failure::Aborted));
        }
    }

    pub(in crate::engine) fn pull_ended(&mut self, now: Time, index: u32, result: Result<(), Failure>) {
        self.clock = now;
        let Some(pull) = self.pulls.remove(index) else { return };
        let taken = if result.is_ok() { u64::from(pull.envelope.length) } else { NOT_TAKEN };
        // Who waits for it must hear of the end, unless he has forgotten the message himself.
        let done = (result != Err(Failure::AccessRefused)).then_some((pull.key, taken));
        // To a receiver it is all the same: the sender is not there any more, or does not want to.
        let result = result.map_err(|failure| match failure {
            Failure::Closed | Failure::LocalFault | Failure::OutcomeUnknown => failure,
            _ => Failure::Aborted,
        });
        self.complete_receive(&pull.envelope, &Landing { done, ..pull.landing }, result);
    }

    /// Tells the sender of a long message that it is done, and how much of it was taken.
    pub(super) fn send_done(&mut self, now: Time, envelope: &Envelope, key: u64, taken: u64) {
        let source = self.endpoint_number(envelope.endpoint).unwrap_or(0);
        let peer = self.peer_of(envelope).unwrap_or(PeerId(u32::MAX));
        let mut command = Command::new(Operation::Done, envelope.endpoint, peer);
        command.key = key;
        command.immediate = taken;
        if self.submit(now, command, envelope.source, source, 0).is_none() {
            self.dones.push_back((command, envelope.source, source));
        }
    }

    /// A command ended: its handle is for a DONE that waits, if one does.
    pub(in crate::engine) fn send_waiting_done(&mut self, now: Time) {
        if self.entries.has_room(1)
            && let Some((command, to, source)) = self.dones.pop_front()
        {
            self.submit(now, command, to, source, 0);
        }
    }

    /// The target has fetched our message, or does not want it.
    pub(in crate::engine) fn execute_done(&mut self, input: &RequestIn<'_>) -> Verdict {
        let command = &input.decoded.command;
        let handle = command.key() as u16;
        let entry = self.entries.get(handle).filter(|entry| entry.rendezvous == command.key() && command.key() != 0);
        let Some(entry) = entry.filter(|entry| entry.to.socket == input.request.from) else {
            return self.execute_withdrawal(input);
        };
        let result = match command.length() {
            taken if taken == u64::from(entry.command.length) => Ok(()),
            NOT_TAKEN => Err(Failure::Aborted),
            _ => Err(Failure::LengthError),
        };
        self.finish(input.now, handle, result);
        Verdict::Accepted
    }

    /// A sender does not offer a message any more: nobody will match it, unless somebody has.
    fn execute_withdrawal(&mut self, input: &RequestIn<'_>) -> Verdict {
        let (command, request) = (&input.decoded.command, &input.request);
        let key = command.key();
        let source = self.addresses.source_of(Address { socket: request.from, endpoint: request.source });
        if command.length() == NOT_TAKEN
            && let Some((endpoint, tagged, id)) = self.offers.remove(&(source, key))
            && let Some((_, unexpected)) = self.lists_of(endpoint, tagged)
            && let Some(UnexpectedMessage { envelope, body: Body::Rendezvous { key: waiting, .. } }) =
                unexpected.get(id)
            && (envelope.source_id, *waiting) == (source, key)
        {
            unexpected.remove(id);
            self.credits_due |= self.credits_owed;
            return Verdict::Accepted;
        }
        Verdict::Refused(Status::AccessRefused)
    }

    /// Takes a message back that its target has heard of and not asked for.
    pub(in crate::engine) fn withdraw(&mut self, now: Time, entry: &Entry) {
        let mut command = Command::new(Operation::Done, entry.command.endpoint, entry.command.peer);
        (command.key, command.immediate) = (entry.rendezvous, NOT_TAKEN);
        if self.submit(now, command, entry.to, entry.source, 0).is_none() {
            self.dones.push_back((command, entry.to, entry.source));
        }
    }
}
