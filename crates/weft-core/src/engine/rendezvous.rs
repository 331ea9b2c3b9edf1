//! Long messages wait at their sender until they are fetched (P-5.5).

use super::request::{RequestIn, Verdict};
use super::{Engine, OwnCommand};
use crate::address::PeerId;
use crate::command::{Command, Operation};
use crate::delivery::{ArrivalId, Decided, Decision, Envelope, SendMode, Start, Transport};
use crate::event::Failure;
use crate::flow::retransmit::Entry;
use crate::memory::Memory;
use crate::node::NodeId;
use crate::packet::Status;
use crate::time::Time;

/// A message that waits at its sender, or is being fetched.
#[derive(Debug)]
pub(super) struct Rendezvous {
    /// `None`: it has ended, and its user will be told.
    arrival: Option<ArrivalId>,
    envelope: Envelope,
    /// The number that its endpoint had.
    number: u32,
    /// Under which the sender lets it be read.
    key: u64,
    address: u64,
    /// What the sender will be told; `None`: nothing, it has forgotten the message.
    taken: Option<u64>,
}

/// What DONE tells instead of the bytes taken when the message is given up: a message of no bytes can be taken too.
const NOT_TAKEN: u64 = u32::MAX as u64;
/// The same when the receive was too short: neither that nor the length of a message that could be truncated.
const TOO_LONG: u64 = 0;

impl<M: Memory> Engine<M> {
    /// A peer says that a message is ready to be fetched.
    pub(super) fn begin_rendezvous(&mut self, input: &RequestIn<'_>, envelope: &Envelope) -> Start {
        let command = &input.decoded.command;
        let (key, address) = (command.key(), command.address());
        let number = self.delivery.endpoint_number(envelope.endpoint).unwrap_or(0);
        let rendezvous = Rendezvous { arrival: None, envelope: *envelope, number, key, address, taken: None };
        let index = self.target.rendezvous.insert(rendezvous);
        let mode = SendMode::Rendezvous { transport: Transport::Packets, token: u64::from(index) };
        let start = self.delivery.begin(envelope, mode);
        let arrival = match start {
            Start::Ready(id) | Start::Deferred(id) => Some(id),
            Start::Truncated | Start::NotReady | Start::NoSuchEndpoint => None,
        };
        match self.target.rendezvous.get_mut(index) {
            Some(rendezvous) if arrival.is_some() => rendezvous.arrival = arrival,
            _ => drop(self.target.rendezvous.remove(index)),
        }
        match start {
            Start::Ready(_) => self.begin_pull(input.now, index),
            Start::Deferred(_) => drop(self.target.offers.insert((envelope.source_id, key), index)),
            _ => {}
        }
        start
    }

    /// Goes on with messages that waited at their senders and need not any more, and tells senders whose message was taken.
    pub(super) fn serve_rendezvous(&mut self, now: Time) {
        while let Some(Decided { id, token, decision }) = self.delivery.poll_decided(Transport::Packets) {
            let index = token as u32;
            let Some(rendezvous) = self.target.rendezvous.get(index) else { continue };
            self.target.offers.remove(&(rendezvous.envelope.source_id, rendezvous.key));
            let (taken, result) = match decision {
                Decision::Fetch => {
                    self.begin_pull(now, index);
                    continue;
                }
                Decision::Discard => (u64::from(rendezvous.envelope.length), Ok(())),
                Decision::Refuse(Failure::LengthError) => (TOO_LONG, Err(Failure::LengthError)),
                Decision::Refuse(failure) => (NOT_TAKEN, Err(failure)),
            };
            self.delivery.end(id, result);
            self.end_rendezvous(now, index, Some(taken));
        }
        self.tell_senders(now);
    }

    fn tell_senders(&mut self, now: Time) {
        while let Some(token) = self.delivery.poll_told() {
            let index = token as u32;
            let taken = self.target.rendezvous.get(index).and_then(|rendezvous| rendezvous.taken);
            self.end_rendezvous(now, index, taken);
        }
    }

    /// Forgets a message; its sender is told how much of it was taken.
    fn end_rendezvous(&mut self, now: Time, index: u32, taken: Option<u64>) {
        let Some(rendezvous) = self.target.rendezvous.remove(index) else { return };
        let Some(taken) = taken else { return };
        let Rendezvous { envelope, number, key, .. } = rendezvous;
        let mut command = self.own_command(Operation::Done, &envelope);
        command.key = key;
        command.immediate = taken;
        self.submit_own(now, OwnCommand { command, to: envelope.source, source: number, purpose: 0 });
    }

    fn own_command(&self, operation: Operation, envelope: &Envelope) -> Command {
        let peer = self.delivery.peer_of(envelope).unwrap_or(PeerId(u32::MAX));
        Command::new(operation, envelope.endpoint, peer)
    }

    /// Submits a command that a peer waits for, as soon as there is a handle for it.
    fn submit_own(&mut self, now: Time, own: OwnCommand) {
        let OwnCommand { command, to, source, purpose } = own;
        if !self.initiator.waiting.is_empty() || self.submit(now, command, to, source, purpose).is_none() {
            self.initiator.waiting.push_back(own);
        }
    }

    /// A command ended: its handle is for one that a peer waits for, if there is one.
    pub(super) fn submit_waiting(&mut self, now: Time) {
        while self.initiator.entries.has_room(1)
            && let Some(OwnCommand { command, to, source, purpose }) = self.initiator.waiting.pop_front()
        {
            self.submit(now, command, to, source, purpose);
        }
    }

    /// Fetches a message.
    fn begin_pull(&mut self, now: Time, index: u32) {
        let Some(rendezvous) = self.target.rendezvous.get(index) else { return };
        if rendezvous.envelope.length == 0 {
            return self.pull_ended(now, index, Ok(()));
        }
        let Some((local, offset)) = rendezvous.arrival.and_then(|id| self.delivery.target_of(id)) else {
            // Its receive has ended.
            return self.pull_ended(now, index, Err(Failure::Aborted));
        };
        let mut command = self.own_command(Operation::Pull, &rendezvous.envelope);
        command.local = local;
        command.offset = offset;
        command.length = rendezvous.envelope.length;
        command.key = rendezvous.key;
        command.address = rendezvous.address;
        let (to, source) = (rendezvous.envelope.source, rendezvous.number);
        self.submit_own(now, OwnCommand { command, to, source, purpose: index });
    }

    pub(super) fn pull_ended(&mut self, now: Time, index: u32, result: Result<(), Failure>) {
        let Some(rendezvous) = self.target.rendezvous.get_mut(index) else { return };
        let taken = if result.is_ok() { u64::from(rendezvous.envelope.length) } else { NOT_TAKEN };
        // A sender that waits for it must hear of the end, unless it has forgotten the message itself.
        let taken = (result != Err(Failure::AccessRefused)).then_some(taken);
        rendezvous.taken = taken;
        // To a receiver it is all the same: the sender is not there any more, or does not want to.
        let result = result.map_err(|failure| match failure {
            Failure::Closed | Failure::LocalFault | Failure::OutcomeUnknown => failure,
            _ => Failure::Aborted,
        });
        let Some(arrival) = rendezvous.arrival.take() else { return };
        if !self.delivery.end(arrival, result) {
            // There is nobody left who could be told first.
            self.end_rendezvous(now, index, taken);
        }
        self.tell_senders(now);
    }

    /// Messages that are being fetched end.
    pub(super) fn end_pulls(&mut self, now: Time, failure: Failure, ends: &impl Fn(&Envelope) -> bool) {
        let target = &self.target;
        let is_ending = |operation: Operation, purpose: u32| {
            operation == Operation::Pull && target.rendezvous.get(purpose).is_some_and(|r| ends(&r.envelope))
        };
        let entries = self.initiator.entries.handles();
        let ending = entries.filter(|(_, entry)| is_ending(entry.command.operation, entry.purpose));
        let ending: alloc::vec::Vec<u16> = ending.map(|(handle, _)| handle).collect();
        // Those for which no handle was free yet.
        let mut waiting = core::mem::take(&mut self.initiator.waiting);
        let mut unsent = alloc::vec::Vec::new();
        waiting.retain(|own| {
            let ends = is_ending(own.command.operation, own.purpose);
            unsent.extend(ends.then_some(own.purpose));
            !ends
        });
        self.initiator.waiting = waiting;
        for handle in ending {
            self.finish(now, handle, Err(failure));
        }
        for index in unsent {
            self.pull_ended(now, index, Err(failure));
        }
    }

    /// The target has fetched our message, or does not want it.
    pub(super) fn execute_done(&mut self, input: &RequestIn<'_>) -> Verdict {
        let command = &input.decoded.command;
        let handle = command.key() as u16;
        let entry = self.initiator.entries.get(handle);
        let entry = entry.filter(|entry| entry.rendezvous == command.key() && command.key() != 0);
        let Some(entry) = entry.filter(|entry| NodeId::of(entry.to) == input.request.node()) else {
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
        let address = request.node().endpoint(request.source);
        let source = self.delivery.addresses().source_of(address);
        let offered = self.target.offers.get(&(source, command.key())).copied();
        let arrival = offered.and_then(|index| self.target.rendezvous.get(index)?.arrival);
        if command.length() == NOT_TAKEN
            && let (Some(index), Some(arrival)) = (offered, arrival)
            && self.delivery.is_waiting(arrival)
        {
            self.target.offers.remove(&(source, command.key()));
            self.target.rendezvous.remove(index);
            self.delivery.end(arrival, Err(Failure::Aborted));
            return Verdict::Accepted;
        }
        Verdict::Refused(Status::AccessRefused)
    }

    /// Takes a message back that its target has heard of and not asked for.
    pub(super) fn withdraw(&mut self, now: Time, entry: &Entry) {
        let mut command = Command::new(Operation::Done, entry.command.endpoint, entry.command.peer);
        (command.key, command.immediate) = (entry.rendezvous, NOT_TAKEN);
        self.submit_own(now, OwnCommand { command, to: entry.to, source: entry.source, purpose: 0 });
    }
}
