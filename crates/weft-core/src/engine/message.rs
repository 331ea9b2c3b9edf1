//! Messages that come as packets: checked against their flow, put together from packets in any order (P-5, P-6), and handed
//! to [`Delivery`](crate::delivery::Delivery).

use alloc::vec::Vec;

use weft_wire::command::{Flags, Kind, Slot};
use weft_wire::table::Decoded;
use weft_wire::transaction::{Find, Segment, Transaction, TransactionId};

use super::request::{RequestIn, Verdict};
use super::transmit::status_of;
use super::{DatagramMeta, Engine};
use crate::command::EndpointId;
use crate::delivery::{ArrivalId, Delivered, EndpointKind, Envelope, SendMode, Start};
use crate::event::Failure;
use crate::limits::REFUSED_EACH;
use crate::memory::{Fault, Memory};
use crate::node::NodeId;
use crate::packet::Status;
use crate::time::Time;

/// A message or write of several packets that is arriving.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) life: u32,
    pub(super) number: u32,
    pub(super) envelope: Envelope,
    pub(super) received: u32,
    pub(super) place: MessagePlace,
    pub(super) last: Time,
}

/// Where its bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessagePlace {
    /// To the receive that it matched, or matches later.
    Arrival(ArrivalId),
    /// Into a region of ours, whose user or peer is told when all of it is there.
    Write { key: u64, address: u64, notify: bool, verify: Option<u32> },
}

impl Message {
    /// Whether it is a write that holds a place in the queue of an endpoint.
    fn is_notice_to(&self, endpoint: EndpointId) -> bool {
        self.envelope.endpoint == endpoint && matches!(self.place, MessagePlace::Write { notify: true, .. })
    }
}

impl<M: Memory> Engine<M> {
    pub(super) fn execute_send(&mut self, input: &RequestIn<'_>, endpoint: EndpointId) -> Verdict {
        let command = &input.decoded.command;
        let flags = command.flags();
        let rendezvous = command.kind() == Kind::ReadyToSend;
        let tagged = command.kind() == Kind::TaggedSend || rendezvous && flags.contains(Flags::IMMEDIATE);
        let immediate = if rendezvous { input.reliability.data } else { flags.contains(Flags::IMMEDIATE) };
        let tag = if tagged { command.slot(Slot::Argument0) } else { 0 };
        let envelope = Envelope { tagged, tag, ..self.envelope(input, endpoint, immediate) };
        let number = command.message() as u32;
        let several = !rendezvous && (input.payload.len() as u64) < command.length();
        let key = if several { self.message_key(input, number) } else { 0 };
        if several && let Some(transaction) = self.target.transactions.by_key(key) {
            return self.place_more(input, transaction, &envelope);
        }
        let Some(life) = self.target.lives.get(input.life) else { return Verdict::Refused(Status::NotReady) };
        if several && life.refused_message(input.request.source, number).is_some() {
            return self.refused_again(input, number);
        }
        if !life.in_order(input.request.source, input.request.destination, number, input.reliability.after) {
            // Behind one that was refused as not ready, all are: they come again behind it.
            return if life.is_refused(input.request.source, input.request.destination) {
                Verdict::Refused(Status::NotReady)
            } else {
                Verdict::OutOfOrder
            };
        }
        // Not before its turn: it would let those behind it pass the ones in front.
        if flags.contains(Flags::INVALIDATE) {
            return self.refused_send(input, Status::NotSupported);
        }
        // P-6.2: what acceptance needs, before anything is changed.
        if several && self.target.transactions.len() >= self.config.transactions_max {
            return self.not_ready(input, endpoint);
        }
        let start = match () {
            () if rendezvous => self.begin_rendezvous(input, &envelope),
            () if several => self.delivery.begin(&envelope, SendMode::Eager),
            () => match self.delivery.deliver(&envelope, &input.payload) {
                Delivered::Received | Delivered::Kept => return self.passed(input, Verdict::Accepted),
                Delivered::Failed(_) => return self.passed(input, Verdict::Refused(Status::OperationFailed)),
                Delivered::Truncated => Start::Truncated,
                Delivered::NotReady => Start::NotReady,
                Delivered::NoSuchEndpoint => Start::NoSuchEndpoint,
            },
        };
        let verdict = match start {
            Start::Ready(id) | Start::Deferred(id) if several => {
                self.begin_message(input, key, envelope, MessagePlace::Arrival(id))
            }
            Start::Ready(_) | Start::Deferred(_) => Verdict::Accepted,
            Start::Truncated => return self.refused_send(input, Status::LengthError),
            Start::NotReady => return self.not_ready(input, endpoint),
            Start::NoSuchEndpoint => return self.refused_send(input, Status::NoSuchEndpoint),
        };
        self.passed(input, verdict)
    }

    /// A message has had its turn in its stream.
    fn passed(&mut self, input: &RequestIn<'_>, verdict: Verdict) -> Verdict {
        if let Some(life) = self.target.lives.get_mut(input.life) {
            let number = input.decoded.command.message() as u32;
            life.passed(input.request.source, input.request.destination, number, input.reliability.after);
        }
        verdict
    }

    /// What delivery needs to know of a request.
    pub(super) fn envelope(&self, input: &RequestIn<'_>, endpoint: EndpointId, immediate: bool) -> Envelope {
        let command = &input.decoded.command;
        let source = input.request.node().endpoint(input.request.source);
        Envelope {
            endpoint,
            source,
            source_id: self.delivery.addresses().source_of(source),
            peer: None,
            tagged: false,
            tag: 0,
            immediate: immediate.then(|| command.immediate()),
            length: command.length() as u32,
        }
    }

    /// What names a message of several packets: nobody else has this ticket.
    pub(super) fn message_key(&self, input: &RequestIn<'_>, number: u32) -> u64 {
        use core::hash::BuildHasher;
        self.keyed.hash_one((input.request.ticket, u64::from(input.request.source) << 32 | u64::from(number)))
    }

    pub(super) fn not_ready(&mut self, input: &RequestIn<'_>, endpoint: EndpointId) -> Verdict {
        let command = &input.decoded.command;
        if matches!(command.kind(), Kind::Send | Kind::TaggedSend | Kind::ReadyToSend)
            && let Some(life) = self.target.lives.get_mut(input.life)
        {
            let number = command.message() as u32;
            life.not_ready(input.request.source, input.request.destination, number, input.reliability.after);
        }
        let most = self.config.lives_max.saturating_mul(REFUSED_EACH);
        self.target.refuse(endpoint, input.request, most, &self.keyed);
        self.delivery.watch_room(true);
        Verdict::Refused(Status::NotReady)
    }

    /// The first packet seen of a message or write of several.
    pub(super) fn begin_message(
        &mut self,
        input: &RequestIn<'_>,
        key: u64,
        envelope: Envelope,
        place: MessagePlace,
    ) -> Verdict {
        let segment = Segment { address: 0, length: u64::from(envelope.length) };
        let transactions = &mut self.target.transactions;
        let transaction = Transaction::new(&[segment]).and_then(|t| transactions.insert(t, Find::Key(key)).ok());
        let number = input.decoded.command.message() as u32;
        let message = Message { life: input.life, number, envelope, received: 0, place, last: input.now };
        let Some(transaction) = transaction else {
            // Two messages with one name: the initiator broke P-4.1. What was taken for it is given back.
            self.end_message(&message, Err(Failure::ProtocolError));
            return Verdict::Refused(Status::ProtocolError);
        };
        self.target.messages.insert(transaction, message);
        if let Some(life) = self.target.lives.get_mut(input.life) {
            life.messages += 1;
        }
        self.place_more(input, transaction, &envelope)
    }

    /// A packet of a message that is arriving.
    fn place_more(&mut self, input: &RequestIn<'_>, id: TransactionId, envelope: &Envelope) -> Verdict {
        let Some(message) = self.target.messages.get_mut(&id) else { return Verdict::Refused(Status::ProtocolError) };
        // P-4.1: all packets of a message say the same.
        let same = message.envelope.endpoint == envelope.endpoint
            && message.envelope.source == envelope.source
            && message.envelope.tagged == envelope.tagged
            && message.envelope.tag == envelope.tag
            && message.envelope.immediate == envelope.immediate
            && message.envelope.length == envelope.length
            && message.number == input.decoded.command.message() as u32;
        let MessagePlace::Arrival(arrival) = message.place else {
            return if same { Verdict::Accepted } else { Verdict::Refused(Status::ProtocolError) };
        };
        if !same {
            return Verdict::Refused(Status::ProtocolError);
        }
        message.last = input.now;
        let Some(transaction) = self.target.transactions.get_mut(id) else {
            return Verdict::Refused(Status::ProtocolError);
        };
        let Ok(pieces) = self.codec.tables().place(input.decoded, Some(transaction)) else {
            return Verdict::Refused(Status::LengthError);
        };
        let mut placed = Ok(());
        let mut rest = input.payload;
        for piece in pieces {
            let Some((part, behind)) = rest.split_at_checked(piece.length as usize) else {
                placed = Err(Fault::OutOfBounds);
                break;
            };
            rest = behind;
            placed = self.delivery.place(arrival, piece.address, &part);
            if placed.is_err() {
                break;
            }
        }
        if let Err(fault) = placed {
            self.abort_message(id, Failure::LocalFault);
            // It is our own buffer that failed, whatever the fault is called.
            let status =
                if status_of(fault) == Status::NotSupported { Status::NotSupported } else { Status::OperationFailed };
            return self.refused_send(input, status);
        }
        // A peer that sends a part twice under two psns only cheats itself, but must not overflow it.
        message.received = message.received.saturating_add(input.payload.len() as u32);
        if message.received >= message.envelope.length
            && let Some(message) = self.take_message(id)
        {
            self.end_message(&message, Ok(()));
        }
        Verdict::Accepted
    }

    /// Takes a message out of its tables.
    pub(super) fn take_message(&mut self, id: TransactionId) -> Option<Message> {
        let target = &mut self.target;
        if target.transactions.len() >= self.config.transactions_max {
            self.delivery.free_shared();
        }
        target.transactions.remove(id);
        let message = target.messages.remove(&id)?;
        if let Some(life) = target.lives.get_mut(message.life) {
            life.messages = life.messages.saturating_sub(1);
        }
        Some(message)
    }

    /// A message is complete (P-6.3), or will not be.
    fn end_message(&mut self, message: &Message, result: Result<(), Failure>) {
        match message.place {
            MessagePlace::Arrival(arrival) => drop(self.delivery.end(arrival, result)),
            MessagePlace::Write { notify: true, .. } => {
                self.delivery.unreserve_remote_write(message.envelope.endpoint);
            }
            MessagePlace::Write { .. } => {}
        }
    }

    /// A message will not become complete.
    pub(super) fn abort_message(&mut self, id: TransactionId, failure: Failure) {
        if let Some(message) = self.take_message(id) {
            self.end_message(&message, Err(failure));
        }
    }

    fn abort_messages_where(&mut self, failure: Failure, ends: impl Fn(&Message) -> bool) {
        let ending = self.target.messages.iter().filter(|(_, message)| ends(message));
        let ending: Vec<TransactionId> = ending.map(|(id, _)| *id).collect();
        for id in ending {
            self.abort_message(id, failure);
        }
    }

    /// A life ended: so do its incomplete messages (P-7.12).
    pub(super) fn abort_messages(&mut self, life: u32) {
        self.abort_messages_where(Failure::Aborted, |message| message.life == life);
    }

    /// Messages of which nothing came for long, their lives notwithstanding.
    pub(super) fn abort_idle_messages(&mut self, now: Time) {
        let idle = |message: &Message| now >= message.last.plus_micros(crate::limits::MESSAGE_IDLE_US);
        let old = self.target.messages.iter().filter(|(_, message)| idle(message));
        let old: Vec<TransactionId> = old.map(|(id, _)| *id).collect();
        for id in old {
            // The initiator was not told, and may only have slept: what it still sends of the message must be refused.
            if let Some(message) = self.target.messages.get(&id)
                && let Some(life) = self.target.lives.get_mut(message.life)
            {
                life.give_up_message(message.envelope.source.endpoint, message.number, Status::Aborted, now);
            }
            self.abort_message(id, Failure::Aborted);
        }
    }

    /// Messages for an endpoint, or for those that share its receives, end: matched, arriving, waiting and claimed ones.
    pub(super) fn end_messages(
        &mut self,
        now: Time,
        endpoint: EndpointId,
        failure: Failure,
        ends: &impl Fn(&Envelope) -> bool,
    ) {
        // Those that are being fetched hold places in the queue: they end while it is known which queue that is.
        self.end_pulls(now, failure, ends);
        // Writes need no receive: those to another endpoint go on.
        self.abort_messages_where(failure, |message| {
            let write = matches!(message.place, MessagePlace::Write { .. });
            ends(&message.envelope) && (message.envelope.endpoint == endpoint || !write)
        });
        self.delivery.end_messages(endpoint, failure, ends);
        self.serve_rendezvous(now);
    }

    /// Writes of peers with immediate data that are under way as packets to an endpoint.
    pub(super) fn notices_under_way(&self, endpoint: EndpointId) -> usize {
        self.target.messages.values().filter(|message| message.is_notice_to(endpoint)).count()
    }

    /// A datagram of an unreliable endpoint: delivered to a posted receive, or dropped (P-5.4).
    pub(super) fn handle_unreliable(&mut self, arrived: &DatagramMeta, decoded: &Decoded, payload: &[u8]) {
        let command = &decoded.command;
        let source = NodeId::at(arrived.path).endpoint(command.source() as u32);
        let endpoint = self.delivery.endpoint_for(command.queue() as u32, EndpointKind::Datagram, source);
        let whole = command.length() == payload.len() as u64 && command.offset() == 0;
        let delivered = endpoint.filter(|_| whole).is_some_and(|endpoint| {
            let envelope = Envelope {
                endpoint,
                source,
                source_id: self.delivery.addresses().source_of(source),
                peer: None,
                tagged: false,
                tag: 0,
                immediate: command.flags().contains(Flags::IMMEDIATE).then(|| command.immediate()),
                length: payload.len() as u32,
            };
            self.delivery.deliver_datagram(&envelope, &payload)
        });
        self.statistics.dropped_datagrams += u64::from(!delivered);
    }
}
