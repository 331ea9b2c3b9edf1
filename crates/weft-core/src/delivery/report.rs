//! What a node's own user posts: checked, and reported when it has ended, whatever transport takes it.

use super::Delivery;
use super::endpoint::{Endpoint, EndpointKind};
use crate::atomic::AtomicClass;
use crate::command::{Command, CommandFlags, Level, Operation, PostError};
use crate::event::{
    Completion, CompletionEntry, CompletionFlags, CompletionKind, CompletionQueue, CounterId, Failure, QueueId,
};
use crate::limits::{ATOMIC_MAX_BYTES, MESSAGE_LENGTH_MAX_BYTES, MTU_DEFAULT_BYTES};
use crate::memory::{LocalKey, Memory};
use crate::packet::{SESSION_BYTES, TRAILER_BYTES, TRANSPORT_BYTES};

impl<M: Memory> Delivery<M> {
    /// Checks a command and keeps a place for its completion, whatever transport takes it: after this, [`Delivery::report`] it
    /// once. Nothing was changed if it is refused.
    pub fn admit(&mut self, command: &mut Command) -> Result<(), PostError> {
        self.check(command)?;
        if command.has(CommandFlags::PART) {
            // The place is that of the whole.
            return if self.has_vector_op(command) { Ok(()) } else { Err(PostError::NotSupported) };
        }
        let endpoint = self.endpoint(command.endpoint).ok_or(PostError::NoSuchEndpoint)?;
        let queue = endpoint.bindings.transmit_queue;
        let wishes = command.level == Level::Injected && !command.has(CommandFlags::SILENT);
        let mut queue_state = queue.and_then(|queue| self.events.queue_mut(queue));
        let mut reserve = |places| queue_state.as_mut().is_none_or(|queue| queue.reserve_for_post(places));
        // The second place is for a failure that may come. Without it the command ends once, when it is transmitted.
        let injected = wishes && reserve(2);
        if !injected && !reserve(1) {
            return Err(PostError::CompletionQueueFull);
        }
        if wishes && !injected {
            command.level = Level::Transmitted;
        }
        if injected {
            // The caller made a copy.
            let plain = self.plain(command);
            self.events.push(queue, &completion_of(&plain, LocalKey::NONE, Ok(())));
            command.flags = command.flags | CommandFlags::SILENT;
        }
        Ok(())
    }

    /// Checks a command as far as that does not depend on room: nothing but that can refuse it later, as long as endpoint
    /// and peer stay. Nothing is changed.
    #[inline]
    pub fn check(&self, command: &Command) -> Result<(), PostError> {
        let endpoint = self.endpoint(command.endpoint).ok_or(PostError::NoSuchEndpoint)?;
        let datagram = command.operation == Operation::Datagram;
        if datagram != (endpoint.kind == EndpointKind::Datagram) {
            return Err(PostError::NotSupported);
        }
        let length = u64::from(command.length);
        if length > MESSAGE_LENGTH_MAX_BYTES {
            return Err(PostError::TooLong { length, limit: MESSAGE_LENGTH_MAX_BYTES });
        }
        self.check_operation(command)?;
        self.check_local(command.local, command.offset, u64::from(command.length))
    }

    /// Checks a command that will be done when it is posted, and that its completion has a place. Nothing is kept: the
    /// next call is [`Delivery::report_done`], or none.
    #[inline(always)]
    pub fn admit_done(&self, command: &Command) -> Result<Admitted, PostError> {
        let endpoint = self.endpoint(command.endpoint).ok_or(PostError::NoSuchEndpoint)?;
        if endpoint.kind != EndpointKind::Reliable {
            return Err(PostError::NotSupported);
        }
        let counter = counter_of(endpoint, command.operation);
        let queue = endpoint.bindings.transmit_queue.filter(|_| !command.has(CommandFlags::SILENT));
        let Some(queue) = queue else { return Ok(Admitted { queue: None, counter }) };
        match self.events.queue(queue) {
            Some(state) if !state.has_room_for_post() => Err(PostError::CompletionQueueFull),
            _ => Ok(Admitted { queue: Some(queue), counter }),
        }
    }

    /// A command that was done at once. `local` is the buffer that its completion gives back.
    pub fn report_done(&mut self, command: &Command, admitted: Admitted, local: LocalKey) {
        if admitted.counter.is_some() {
            self.count(admitted.counter, true);
        }
        if let Some(queue) = admitted.queue.and_then(|queue| self.events.queue_mut(queue)) {
            queue.push_at_once(done(command, local));
        } else if local != LocalKey::NONE {
            self.memory.release(local);
        }
    }

    /// As [`Delivery::admit_done`], for a command without a buffer to give back, and with the queue at hand:
    /// [`ReportPlace::report`] follows, or nothing.
    #[inline(always)]
    pub fn place_for_report(&mut self, command: &Command) -> Result<ReportPlace<'_>, PostError> {
        let Admitted { queue, counter } = self.admit_done(command)?;
        Ok(ReportPlace { queue: queue.and_then(|queue| self.events.queue_mut(queue)), counter })
    }

    fn check_operation(&self, command: &Command) -> Result<(), PostError> {
        let class = match command.operation {
            Operation::Done | Operation::Pull => return Err(PostError::NotSupported),
            Operation::Datagram => {
                // One that the way does not carry goes in fragments, as far as every way can be thought to do it.
                let mtu = self.addresses.mtu(command.peer).unwrap_or(self.config.mtu_bytes).max(MTU_DEFAULT_BYTES);
                let limit = u64::from(mtu).saturating_sub(DATAGRAM_HEADERS_BYTES);
                let length = u64::from(command.length);
                return if length > limit { Err(PostError::TooLong { length, limit }) } else { Ok(()) };
            }
            Operation::Atomic => AtomicClass::Plain,
            Operation::FetchAtomic => AtomicClass::Fetch,
            Operation::CompareAtomic => AtomicClass::Compare,
            _ => return Ok(()),
        };
        command.atomic.check(class).map_err(|_| PostError::NotSupported)?;
        // What is read has as many bytes as elements, though it sends none.
        let length = u64::from(command.length).max(command.atomic.bytes().unwrap_or(0) as u64);
        if length > u64::from(ATOMIC_MAX_BYTES) {
            return Err(PostError::TooLong { length, limit: u64::from(ATOMIC_MAX_BYTES) });
        }
        if command.atomic.count == 0 || command.atomic.payload_bytes() != Some(command.length as usize) {
            return Err(PostError::BadBuffer);
        }
        if class != AtomicClass::Plain {
            let bytes = command.atomic.bytes().unwrap_or(0) as u64;
            self.check_local(command.results(), command.results_offset(), bytes)?;
        }
        Ok(())
    }

    #[inline]
    pub(super) fn check_local(&self, local: LocalKey, offset: u64, length: u64) -> Result<(), PostError> {
        if length == 0 {
            return Ok(());
        }
        let have = self.memory.local_length(local).ok_or(PostError::BadBuffer)?;
        match offset.checked_add(length) {
            Some(end) if end <= have => Ok(()),
            _ => Err(PostError::BadBuffer),
        }
    }

    /// Tells the user that a command ended. Its place in the queue was reserved when it was posted.
    pub fn report(&mut self, command: &Command, result: Result<(), Failure>) {
        if command.has(CommandFlags::PART) {
            return self.part_ended(command, result);
        }
        let plain;
        let command = if command.has(CommandFlags::COUNTED) {
            plain = self.end_counted(command, result.is_ok());
            &plain
        } else {
            command
        };
        let Some(endpoint) = self.endpoint(command.endpoint) else {
            self.release_buffers(command);
            return;
        };
        // A sender that did not wait for the target's answer is not told that the receive was too short: the receiver is.
        let sends = matches!(command.operation, Operation::Send | Operation::TaggedSend);
        let cut = sends && result == Err(Failure::LengthError) && has_ended(command);
        let result = if cut { Ok(()) } else { result };
        let (queue, silenced) = (endpoint.bindings.transmit_queue, endpoint.silenced);
        let counter = counter_of(endpoint, command.operation).filter(|_| !silenced);
        self.count(counter, result.is_ok());
        let silent = silenced || result.is_ok() && command.has(CommandFlags::SILENT);
        if silent || queue.is_none() {
            self.unreserve(queue);
            self.release_buffers(command);
        } else {
            self.events.push(queue, &completion_of(command, command.local, result));
        }
    }

    fn release_buffers(&mut self, command: &Command) {
        if command.local != LocalKey::NONE {
            self.memory.release(command.local);
        }
        let fetches = matches!(command.operation, Operation::FetchAtomic | Operation::CompareAtomic);
        if fetches && command.results() != command.local {
            self.memory.release(command.results());
        }
    }

    /// Whether the end of a command makes a completion or is counted.
    pub(crate) fn is_reported(&self, command: &Command) -> bool {
        let counter = || self.endpoint(command.endpoint).and_then(|endpoint| counter_of(endpoint, command.operation));
        let by_others = command.has(CommandFlags::PART) || command.has(CommandFlags::COUNTED);
        !command.has(CommandFlags::SILENT) || by_others || counter().is_some()
    }

    /// Gives back what [`Delivery::admit`] has kept, for a command that was not taken after all.
    pub(crate) fn unadmit(&mut self, command: &Command) {
        if !command.has(CommandFlags::PART) {
            let queue = self.endpoint(command.endpoint).and_then(|endpoint| endpoint.bindings.transmit_queue);
            self.unreserve(queue);
        }
    }
}

/// Headers of a datagram with immediate data.
const DATAGRAM_HEADERS_BYTES: u64 = (SESSION_BYTES + TRANSPORT_BYTES + 12 + 8 + TRAILER_BYTES) as u64;

/// Where a command that is done at once will be reported, as long as nothing else happens.
#[derive(Debug)]
pub struct ReportPlace<'a> {
    queue: Option<&'a mut CompletionQueue>,
    counter: Option<CounterId>,
}

impl ReportPlace<'_> {
    /// The command was done. What counts it is for [`Delivery::count_done`].
    #[inline(always)]
    #[must_use]
    pub fn report(self, command: &Command) -> Option<CounterId> {
        if let Some(queue) = self.queue {
            queue.push_at_once(done(command, LocalKey::NONE));
        }
        self.counter
    }
}

/// The completion of a command that was done at once.
#[inline(always)]
fn done(command: &Command, local: LocalKey) -> CompletionEntry {
    CompletionEntry {
        context: command.context,
        length: u64::from(command.length),
        tag: if command.operation == Operation::TaggedSend { command.address } else { 0 },
        immediate: None,
        place: 0,
        peer: Some(command.peer),
        local,
        kind: kind_of(command.operation),
        flags: CompletionFlags::NONE,
        result: Ok(()),
    }
}

#[inline(always)]
fn counter_of(endpoint: &Endpoint, operation: Operation) -> Option<CounterId> {
    let bindings = &endpoint.bindings;
    match operation {
        Operation::Send | Operation::TaggedSend | Operation::Datagram => bindings.send_counter,
        Operation::Read | Operation::FetchAtomic | Operation::CompareAtomic => bindings.read_counter,
        Operation::Write | Operation::Atomic => bindings.write_counter,
        Operation::Done | Operation::Pull => None,
    }
}

/// Where a command that is done at once will be reported.
#[derive(Clone, Copy, Debug)]
pub struct Admitted {
    queue: Option<QueueId>,
    counter: Option<CounterId>,
}

#[inline(always)]
fn kind_of(operation: Operation) -> CompletionKind {
    match operation {
        Operation::Read | Operation::Pull => CompletionKind::Read,
        Operation::Write => CompletionKind::Write,
        Operation::Atomic => CompletionKind::Atomic,
        Operation::FetchAtomic | Operation::CompareAtomic => CompletionKind::FetchAtomic,
        Operation::TaggedSend => CompletionKind::TaggedSend,
        _ => CompletionKind::Send,
    }
}

/// Whether a command has ended for its user: see [`Delivery::admit`].
fn has_ended(command: &Command) -> bool {
    command.level == Level::Injected && command.has(CommandFlags::SILENT)
}

fn completion_of(command: &Command, local: LocalKey, result: Result<(), Failure>) -> Completion {
    Completion {
        context: command.context,
        kind: kind_of(command.operation),
        flags: if result.is_err() && has_ended(command) { CompletionFlags::LATE } else { CompletionFlags::NONE },
        result,
        length: u64::from(command.length),
        tag: if command.operation == Operation::TaggedSend { command.address } else { 0 },
        immediate: None,
        source: None,
        peer: Some(command.peer),
        local,
        results: match command.operation {
            Operation::FetchAtomic | Operation::CompareAtomic if local != LocalKey::NONE => command.results(),
            _ => LocalKey::NONE,
        },
        offset: 0,
    }
}
