//! For faces in other languages: commands and receives as the engine takes them, with contexts and memory of the caller.
//!
//! Memory comes in through [`Buffer::from_raw`], whose contract the caller upholds; everything else is checked here as
//! everywhere. The safe calls of [`Endpoint`] are made of these.

pub use weft_core::atomic::{AtomicCall, AtomicClass, AtomicOperation, Datatype};
pub use weft_core::command::{Command, CommandFlags, EndpointId, Operation, Receive};
pub use weft_core::delivery::{ClaimId, Peek, Peeked};
pub use weft_core::memory::LocalKey;
/// Memory of the process or of a device, to be registered or used in buffers; [`crate::MemoryRegion`] is one that is
/// registered.
pub use weft_mem::MemoryRegion as Memory;
pub use weft_mem::lock::OneAtATime;
pub use weft_mem::{Addressing, Buffer, Lent, Segment};

pub use crate::deferred::{
    Deferred, DeferredId, DeferredWork, Withdrawn, cancel_deferred, defer, deferred, flush_deferred,
};
pub use crate::numbers::Numbers;
pub use crate::registrations::Registrations;
pub use crate::vector::{RemoteRange, post_atomic, post_atomic_vector, post_vector};

use std::ops::{ControlFlow, Deref};

use weft_core::address::AddressVector;
use weft_core::command::PostError;
use weft_core::delivery::Side;
use weft_core::event::{CompletionEntry, CompletionQueue as Queue};

use crate::Address;
use crate::completion_queue::CompletionQueue;
use crate::endpoint::{Endpoint, Payload};
use crate::error::{Error, Refused, Result};

/// A command without bytes, to be filled in.
#[must_use]
pub fn command(endpoint: &Endpoint, operation: Operation, peer: crate::PeerId) -> Command {
    Command::new(operation, endpoint.id(), peer)
}

/// A receive of all messages without tag, to be filled in.
#[must_use]
pub fn receive(endpoint: &Endpoint, length: u64) -> Receive {
    Receive {
        endpoint: endpoint.id(),
        local: LocalKey::NONE,
        offset: 0,
        length,
        source: None,
        tagged: false,
        tag: 0,
        ignore: 0,
        multi: None,
        silent: false,
        announce: false,
        context: 0,
        counter: None,
    }
}

/// Whether atomics of this class do this operation on this datatype. Every node of this version does the same.
///
/// ```
/// use weft::raw::{AtomicClass, atomic_count_max, atomic_is_possible};
/// use weft::{AtomicOperation, Datatype};
/// assert!(atomic_is_possible(AtomicOperation::Sum, Datatype::Complex64, AtomicClass::Fetch));
/// assert!(!atomic_is_possible(AtomicOperation::Minimum, Datatype::Complex64, AtomicClass::Fetch));
/// assert_eq!(atomic_count_max(AtomicOperation::Sum, Datatype::Uint64, AtomicClass::Plain), 128);
/// ```
#[must_use]
pub fn atomic_is_possible(operation: AtomicOperation, datatype: Datatype, class: AtomicClass) -> bool {
    atomic_count_max(operation, datatype, class) > 0
}

/// How many elements one such atomic can have at most; 0: it is not possible.
#[must_use]
pub fn atomic_count_max(operation: AtomicOperation, datatype: Datatype, class: AtomicClass) -> usize {
    usize::from(operation.count_max(datatype, class))
}

/// How many commands, or receives, could be posted to an endpoint now. Other endpoints take from the same room.
pub fn room(endpoint: &Endpoint, side: Side) -> Result<usize> {
    let core = endpoint.domain().nic().lock();
    let room = core.engine.delivery().room_for_posts(endpoint.id(), side);
    let room = room.ok_or(Error::Post(PostError::NotSupported))?;
    Ok(if side == Side::Transmit { room.min(core.engine.room_for_commands()) } else { room })
}

/// Posts a command of which `offset` and `length` name a part of `buffer`; its endpoint and local key are filled in here.
/// Of an atomic that fetches, the results go to the beginning of the same buffer.
pub fn post(endpoint: &Endpoint, command: &Command, buffer: Option<Buffer>) -> Result<(), Refused> {
    let mut command = *command;
    command.endpoint = endpoint.id();
    command.local = LocalKey::NONE;
    let payload = match (command.operation, buffer) {
        // Results never go to a buffer that the command names: it would be another operation's.
        (Operation::FetchAtomic | Operation::CompareAtomic, None) => {
            command.immediate = u64::from(LocalKey::NONE.0);
            Payload::None
        }
        (_, None) => Payload::None,
        (Operation::FetchAtomic | Operation::CompareAtomic, Some(buffer)) => Payload::Atomic { buffer, fetches: true },
        (_, Some(buffer)) => Payload::Part(buffer),
    };
    endpoint.post(command, payload, Some(command.context)).map(|_| ())
}

/// Posts a command with all of `buffer`, which nobody wants back: where the command is done at once, the buffer is dropped
/// before this returns, which spares its way through the tables and the completion. One with
/// [`Level::Injected`](crate::Level::Injected) is copied if it is short, and ends at once; if it is not, it ends as with
/// [`Level::Transmitted`](crate::Level::Transmitted). Otherwise as [`post`].
#[inline]
pub fn post_lent(endpoint: &Endpoint, command: &Command, buffer: Buffer) -> Result<(), Refused> {
    let mut command = *command;
    if let Some(segment) = buffer.segment()
        && let Some(done) = endpoint.post_at_once(&mut command, segment)
    {
        return match done {
            Ok(()) => {
                buffer.discard();
                Ok(())
            }
            Err(error) => Err(Refused { error: error.into(), buffer: Some(buffer) }),
        };
    }
    post_lent_later(endpoint, command, buffer)
}

fn post_lent_later(endpoint: &Endpoint, mut command: Command, buffer: Buffer) -> Result<(), Refused> {
    command.endpoint = endpoint.id();
    command.local = LocalKey::NONE;
    command.offset = 0;
    let payload = match command.operation {
        Operation::FetchAtomic | Operation::CompareAtomic => return post(endpoint, &command, Some(buffer)),
        _ => Payload::Lent(buffer),
    };
    endpoint.post(command, payload, Some(command.context)).map(|_| ())
}

/// Does a command with all of `bytes` now, if that takes no more than a copy of them: a short message or write, a peer on
/// this machine, and nothing in the way. False: nothing was changed. Then it has to be posted, which also tells what may
/// be wrong with it.
///
/// It is inlined, so that a caller pays only for what it does not know of the command when it is compiled.
#[inline(always)]
#[must_use]
pub fn do_at_once(endpoint: &Endpoint, mut command: Command, bytes: Segment<'_>) -> bool {
    matches!(endpoint.post_at_once(&mut command, bytes), Some(Ok(())))
}

/// Posts a command with a copy of `bytes`, all of them.
#[inline]
pub fn post_copy(endpoint: &Endpoint, command: &Command, bytes: &[u8]) -> Result<(), Refused> {
    let mut command = *command;
    if let Some(done) = endpoint.post_at_once(&mut command, Segment::from_slice(bytes)) {
        return done.map_err(|error| Refused { error: error.into(), buffer: None });
    }
    command.endpoint = endpoint.id();
    command.offset = 0;
    endpoint.post(command, Payload::Copy(bytes), Some(command.context)).map(|_| ())
}

/// Posts a receive of which `offset` and `length` name a part of `buffer`; its endpoint and local key are filled in here.
#[inline]
pub fn post_receive(endpoint: &Endpoint, receive: &Receive, buffer: Buffer) -> Result<(), Refused> {
    let mut receive = *receive;
    receive.endpoint = endpoint.id();
    endpoint.enlist(None, &mut receive, buffer)
}

/// As [`post_receive`], with memory that was lent. Inlined, as [`do_at_once`] is.
#[inline(always)]
pub fn post_receive_lent(endpoint: &Endpoint, receive: &Receive, lent: Lent) -> Result<(), Refused> {
    let mut receive = *receive;
    receive.endpoint = endpoint.id();
    endpoint.enlist_lent(receive, lent)
}

/// A completion where it waits. [`Ended::source`] tells who sent a message; all else is in the entry itself.
#[derive(Clone, Copy)]
pub struct Ended<'a> {
    entry: &'a CompletionEntry,
    source: Source<'a>,
}

#[derive(Clone, Copy)]
enum Source<'a> {
    Known(Option<Address>),
    Asked(&'a AddressVector, &'a Queue),
}

impl<'a> Ended<'a> {
    #[inline]
    pub(crate) fn new(addresses: &'a AddressVector, queue: &'a Queue, entry: &'a CompletionEntry) -> Ended<'a> {
        Ended { entry, source: Source::Asked(addresses, queue) }
    }

    pub(crate) fn from(entry: &'a CompletionEntry, source: Option<Address>) -> Ended<'a> {
        Ended { entry, source: Source::Known(source) }
    }

    /// Of messages: who sent it, whether that has a name or not.
    #[must_use]
    pub fn source(&self) -> Option<Address> {
        match self.source {
            Source::Known(source) => source,
            Source::Asked(addresses, queue) => queue.source(addresses),
        }
    }
}

impl Deref for Ended<'_> {
    type Target = CompletionEntry;

    #[inline]
    fn deref(&self) -> &CompletionEntry {
        self.entry
    }
}

impl std::fmt::Debug for Ended<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.entry.fmt(f)
    }
}

/// Shows the oldest completions to `take`, `limit` at most, and takes them out of the queue; gives how many. Buffers of
/// their operations are released, not given back. `Break`: this one stays, and no more are shown. Progress is made if
/// there is nothing to read.
///
/// `take` is called under the NIC's lock: it must not call anything of the same domain.
#[inline(always)]
pub fn read_completions(
    queue: &CompletionQueue,
    limit: usize,
    take: impl FnMut(&Ended<'_>) -> ControlFlow<()>,
) -> Result<usize> {
    queue.show(limit, take)
}

/// Finds the first message that waits and that `receive` would take, tagged or not, whether its bytes are here or still at
/// its sender; of the receive only source, tag and ignored bits matter. `None`: there is none, also after a round of work
/// where that is the caller's business.
///
/// ```
/// use weft::raw::{self, Buffer, Peek};
/// # let domain = weft::Domain::udp("127.0.0.1:0")?;
/// # let queue = domain.completion_queue(64);
/// # let endpoint = domain.endpoint(&queue)?;
/// # let myself = domain.addresses().insert(endpoint.address())?;
/// endpoint.inject(myself, b"how long is it?")?;
/// let mut receive = raw::receive(&endpoint, 0);
/// let found = loop {
///     if let Some(found) = raw::peek(&endpoint, &receive, Peek::Claim)? {
///         break found;
///     }
/// };
/// // It is ours now, whatever else is posted; and we know how much room it takes.
/// (receive.length, receive.context) = (found.length, 99);
/// raw::receive_claimed(&endpoint, found.claim.unwrap(), &receive, Buffer::from(vec![0; found.length as usize]))?;
/// let completion = queue.wait(None)?.unwrap();
/// assert_eq!(completion.context, 99);
/// assert_eq!(completion.into_bytes()?, b"how long is it?");
/// # Ok::<(), weft::Error>(())
/// ```
pub fn peek(endpoint: &Endpoint, receive: &Receive, peek: Peek) -> Result<Option<Peeked>> {
    endpoint.peek(*receive, peek)
}

/// Posts a buffer for a message that was claimed, as [`post_receive`] does for one that is to come. Source, tag and ignored
/// bits of the receive do not matter. If the message is lost meanwhile (its sender died, or took it back), the completion
/// says [`Failure::Aborted`](crate::Failure::Aborted).
pub fn receive_claimed(endpoint: &Endpoint, claim: ClaimId, receive: &Receive, buffer: Buffer) -> Result<(), Refused> {
    let mut receive = *receive;
    receive.endpoint = endpoint.id();
    endpoint.post_receive_for(Some(claim), receive, buffer, Some(receive.context)).map(|_| ())
}

/// Throws a message away that was claimed. Its sender hears that it was delivered.
pub fn discard_claimed(endpoint: &Endpoint, claim: ClaimId) -> Result<()> {
    endpoint.discard_claimed(claim)
}
