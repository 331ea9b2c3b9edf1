//! For faces in other languages: commands and receives as the engine takes them, with contexts and memory of the caller.
//!
//! Memory comes in through [`Buffer::from_raw`], whose contract the caller upholds; everything else is checked here as
//! everywhere. The safe calls of [`Endpoint`] are made of these.

pub use weft_core::atomic::{AtomicCall, AtomicClass, AtomicOperation, Datatype};
pub use weft_core::command::{Command, CommandFlags, EndpointId, Operation, Receive};
pub use weft_core::memory::LocalKey;
/// Memory of the process or of a device, to be registered or used in buffers; [`crate::MemoryRegion`] is one that is
/// registered.
pub use weft_mem::MemoryRegion as Memory;
pub use weft_mem::{Addressing, Buffer};

pub use crate::registrations::Registrations;
pub use crate::vector::{RemoteRange, post_atomic, post_atomic_vector, post_vector};

use crate::endpoint::{Endpoint, Payload};
use crate::error::Refused;

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
        context: 0,
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

/// Posts a command with a copy of `bytes`, all of them.
pub fn post_copy(endpoint: &Endpoint, command: &Command, bytes: &[u8]) -> Result<(), Refused> {
    let mut command = *command;
    command.endpoint = endpoint.id();
    command.offset = 0;
    endpoint.post(command, Payload::Copy(bytes), Some(command.context)).map(|_| ())
}

/// Posts a receive of which `offset` and `length` name a part of `buffer`; its endpoint and local key are filled in here.
pub fn post_receive(endpoint: &Endpoint, receive: &Receive, buffer: Buffer) -> Result<(), Refused> {
    let mut receive = *receive;
    receive.endpoint = endpoint.id();
    endpoint.post_receive(receive, buffer, Some(receive.context)).map(|_| ())
}
