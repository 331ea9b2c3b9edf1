//! Writes of peers into our memory, as packets.

use super::Engine;
use super::message::MessagePlace;
use super::request::{RequestIn, Verdict};
use super::transmit::status_of;
use weft_wire::command::{Flags, Slot};

use crate::command::EndpointId;
use crate::event::Failure;
use crate::memory::{Access, Memory};
use crate::packet::Status;

impl<M: Memory> Engine<M> {
    pub(super) fn execute_write(&mut self, input: &RequestIn<'_>, endpoint: EndpointId) -> Verdict {
        let command = &input.decoded.command;
        let flags = command.flags();
        let notify = flags.contains(Flags::IMMEDIATE);
        let verify = flags.contains(Flags::VERIFY).then(|| command.slot(Slot::Argument2) as u32);
        let length = input.payload.len() as u64;
        let several = length < command.length();
        let counted = notify || verify.is_some() || self.delivery.counts_writes(endpoint, command.key());
        let (key, number) = (self.message_key(input, command.message() as u32), command.message() as u32);
        // Whose packets are put together: nobody waits for the end of the others.
        let message_key = (several && counted).then_some(key);
        if message_key.is_some() {
            let life = self.target.lives.get(input.life);
            if life.is_some_and(|life| life.refused_message(input.request.source, number).is_some()) {
                return self.refused_again(input, number);
            }
        }
        if let Err(fault) = self.delivery.check_remote(command.key(), command.address(), length, Access::REMOTE_WRITE) {
            return self.refused_write(input, message_key, status_of(fault));
        }
        let envelope = self.envelope(input, endpoint, notify);
        let start = command.address().wrapping_sub(command.offset());
        let place = MessagePlace::Write { key: command.key(), address: start, notify, verify };
        if message_key.is_some() && self.target.transactions.by_key(key).is_none() {
            if self.target.transactions.len() >= self.config.transactions_max
                || notify && !self.delivery.reserve_remote_write(endpoint)
            {
                return self.not_ready(input, endpoint);
            }
            if self.begin_message(input, key, envelope, place) != Verdict::Accepted {
                return Verdict::Refused(Status::ProtocolError);
            }
        } else if message_key.is_none() && notify && !self.delivery.reserve_remote_write(endpoint) {
            return self.not_ready(input, endpoint);
        }
        let message = message_key.and_then(|key| self.target.transactions.by_key(key));
        if message_key.is_some() {
            // P-4.1: all packets of a message say the same.
            let same = message.and_then(|id| self.target.messages.get(&id)).is_some_and(|known| {
                known.place == place
                    && known.envelope.source == envelope.source
                    && known.envelope.length == envelope.length
                    && known.envelope.immediate == envelope.immediate
            });
            if !same {
                return Verdict::Refused(Status::ProtocolError);
            }
        }
        if let Err(fault) = self.delivery.write_region(command.key(), command.address(), &input.payload) {
            if notify && message_key.is_none() {
                self.delivery.unreserve_remote_write(endpoint);
            }
            return self.refused_write(input, message_key, status_of(fault));
        }
        if several {
            let Some(id) = message else { return Verdict::Accepted };
            let Some(arriving) = self.target.messages.get_mut(&id) else { return Verdict::Accepted };
            arriving.last = input.now;
            arriving.received = arriving.received.saturating_add(length as u32);
            if arriving.received < arriving.envelope.length {
                return Verdict::Accepted;
            }
            self.take_message(id);
        }
        if let Some(wanted) = verify
            && self.delivery.checksum_of(command.key(), start, command.length()) != Ok(wanted)
        {
            if notify {
                self.delivery.unreserve_remote_write(endpoint);
            }
            return Verdict::Refused(Status::ChecksumMismatch);
        }
        self.delivery.remote_write(&envelope, command.key());
        Verdict::Accepted
    }

    /// A packet of a write cannot be placed: if the message has several, it ends, and its others share its fate (P-4.10).
    fn refused_write(&mut self, input: &RequestIn<'_>, message: Option<u64>, status: Status) -> Verdict {
        let Some(key) = message else { return Verdict::Refused(status) };
        if let Some(id) = self.target.transactions.by_key(key) {
            self.abort_message(id, Failure::Aborted);
        }
        if let Some(life) = self.target.lives.get_mut(input.life) {
            let number = input.decoded.command.message() as u32;
            life.refuse_message(input.request.source, number, status, input.request.psn);
        }
        Verdict::Refused(status)
    }

    /// Another packet of a message that was refused.
    pub(super) fn refused_again(&mut self, input: &RequestIn<'_>, number: u32) -> Verdict {
        let life = self.target.lives.get_mut(input.life);
        let status = life.and_then(|life| life.refuse_again(input.request.source, number, input.request.psn));
        Verdict::Refused(status.unwrap_or(Status::ProtocolError))
    }
}
