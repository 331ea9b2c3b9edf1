//! What can go wrong, sorted by who is to blame, with a text that says what to do next.

use std::io;

use weft_core::command::PostError;
use weft_core::delivery::OpenError;
use weft_core::event::Failure;
use weft_core::memory::Fault;
use weft_mem::device::DeviceError;
use weft_mem::limits::INJECT_MAX_BYTES;
use weft_mem::{AttachError, Buffer, RegisterError};

/// The result of most calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call or an operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operation was not taken; nothing was changed.
    #[error("{0}")]
    Post(#[from] PostError),
    /// The endpoint was not opened, or its number not kept.
    #[error("{0}")]
    Open(#[from] OpenError),
    /// The operation was taken, and failed. [`Failure`] is what its completion says.
    #[error("{0}")]
    Operation(#[from] Failure),
    /// The caller's memory cannot be used like that.
    #[error("{0}")]
    Memory(#[from] Fault),
    /// The protocol's tables could not be loaded.
    #[error("the protocol tables cannot be loaded: {0}")]
    Protocol(String),
    /// The address vector has no room for another peer.
    #[error("the address vector is full: remove peers that are not needed")]
    AddressVectorFull,
    /// The domain holds the largest number of registrations or buffers that it can.
    #[error("too many buffers and regions are in use: read completions or drop regions, then try again")]
    MemoryTableFull,
    /// An operation that a counter counts has failed; its completion says why.
    #[error("an operation that the counter counts failed: read its completion")]
    CountedFailure,
    /// The caller joined things of different domains.
    #[error("it belongs to another domain: make it from the domain it is used with")]
    OtherDomain,
    /// The caller promised that one thread at a time uses a domain that has a thread of its own.
    #[error("a NIC with a thread of its own is used by two: choose manual progress, or make no promise")]
    NotSingleThreaded,
    /// The caller: the endpoint has a connection already.
    #[error("the endpoint has a connection already: drop that, or open another endpoint")]
    AlreadyConnected,
    /// The manager has no room for another connection.
    #[error("too many connections: drop those that have ended")]
    TooManyConnections,
    /// The caller: memory cannot be registered like that.
    #[error("{0}")]
    Register(#[source] RegisterError),
    /// The time given to the call has passed.
    #[error("the time given has passed: the operations are still under way")]
    TimedOut,
    /// Somebody called `signal` to end the wait.
    #[error("a signal ended the wait: the operations are still under way")]
    Interrupted,
    /// The link broke: no peer can be reached by this domain any more.
    #[error("the link is broken ({0}): open a new domain")]
    LinkFailed(io::ErrorKind),
    /// The NIC's own thread ended by a panic, which is a bug of ours: operations that were under way may have been executed,
    /// and none is told of any more.
    #[error("the NIC's thread has panicked, see what it said: please report it, and open a new domain")]
    NicFailed,
    /// A device failed while bytes were on their way to its memory: operations that use it may have lost some.
    #[error("a device failed with bytes on their way to it: make its memory anew, and open a new domain")]
    DeviceFailed,
    /// Device memory cannot be had, or used like that.
    #[error("{0}")]
    Device(#[source] DeviceError),
    /// The operating system refused something.
    #[error("cannot {doing}: {source}")]
    System {
        /// What was tried.
        doing: &'static str,
        /// What it said.
        source: io::Error,
    },
}

/// Who has to act for it to go better next time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Blame {
    /// The caller of this library.
    Caller,
    /// The program at the other end.
    Peer,
    /// The network between the two, or a restart.
    Path,
    /// Something of this node that is used up, or refused by the operating system.
    Resource,
}

impl Error {
    /// Who is to blame.
    #[must_use]
    pub fn blame(&self) -> Blame {
        match self {
            Error::Post(PostError::QueueFull | PostError::CompletionQueueFull) => Blame::Resource,
            Error::Post(_) | Error::Memory(_) | Error::OtherDomain => Blame::Caller,
            Error::NotSingleThreaded | Error::AlreadyConnected | Error::Interrupted => Blame::Caller,
            Error::Open(OpenError::TooManyRows) => Blame::Resource,
            Error::Open(_) => Blame::Caller,
            Error::Register(RegisterError::Wraps | RegisterError::ReadOnly | RegisterError::KeyInUse) => Blame::Caller,
            Error::Register(_) => Blame::Resource,
            Error::Operation(failure) => match failure {
                Failure::Cancelled | Failure::Truncated | Failure::LocalFault | Failure::Closed => Blame::Caller,
                Failure::OutcomeUnknown => Blame::Path,
                _ => Blame::Peer,
            },
            Error::TimedOut | Error::CountedFailure | Error::LinkFailed(_) => Blame::Path,
            Error::Device(DeviceError::NotSupported | DeviceError::BadAddress) => Blame::Caller,
            Error::Device(DeviceError::BadHandle) => Blame::Peer,
            Error::NicFailed | Error::DeviceFailed | Error::Device(_) => Blame::Resource,
            Error::Protocol(_) | Error::AddressVectorFull | Error::MemoryTableFull => Blame::Resource,
            Error::TooManyConnections | Error::System { .. } => Blame::Resource,
        }
    }

    /// Whether the same call can succeed after completions have been read.
    #[must_use]
    pub fn is_full(&self) -> bool {
        matches!(self, Error::Post(PostError::QueueFull | PostError::CompletionQueueFull) | Error::MemoryTableFull)
    }

    pub(crate) fn system(doing: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::System { doing, source }
    }
}

/// An operation that was not taken, with the buffer it would have used: nothing is lost, and `?` makes it an [`Error`].
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Refused {
    /// Why.
    #[source]
    pub error: Error,
    /// The buffer, as it was given.
    pub buffer: Option<Buffer>,
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Error {
        refused.error
    }
}

impl From<RegisterError> for Error {
    fn from(error: RegisterError) -> Error {
        Error::Register(error)
    }
}

impl From<DeviceError> for Error {
    fn from(error: DeviceError) -> Error {
        Error::Device(error)
    }
}

impl From<PostError> for Refused {
    fn from(error: PostError) -> Refused {
        Refused { error: Error::Post(error), buffer: None }
    }
}

impl From<AttachError> for Refused {
    fn from(error: AttachError) -> Refused {
        match error {
            AttachError::TooMany(buffer) => Refused { error: Error::MemoryTableFull, buffer: Some(buffer) },
            AttachError::TooManyCopies => Refused { error: Error::MemoryTableFull, buffer: None },
            AttachError::TooLong { length } => {
                PostError::TooLong { length: length as u64, limit: INJECT_MAX_BYTES as u64 }.into()
            }
        }
    }
}
