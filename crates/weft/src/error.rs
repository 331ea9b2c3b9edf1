//! What can go wrong, sorted by who is to blame, with a text that says what to do next.

use std::fmt;
use std::io;

use weft_core::command::PostError;
use weft_core::engine::OpenError;
use weft_core::event::Failure;
use weft_core::memory::Fault;
use weft_mem::device::DeviceError;
use weft_mem::limits::INJECT_MAX_BYTES;
use weft_mem::{AttachError, Buffer, RegisterError};

/// The result of most calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call or an operation failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The operation was not taken; nothing was changed.
    Post(PostError),
    /// The endpoint was not opened, or its number not kept.
    Open(OpenError),
    /// The operation was taken, and failed. [`Failure`] is what its completion says.
    Operation(Failure),
    /// The caller's memory cannot be used like that.
    Memory(Fault),
    /// The protocol's tables could not be loaded.
    Protocol(String),
    /// The address vector has no room for another peer.
    AddressVectorFull,
    /// The domain holds the largest number of registrations or buffers that it can.
    MemoryTableFull,
    /// An operation that a counter counts has failed; its completion says why.
    CountedFailure,
    /// The caller joined things of different domains.
    OtherDomain,
    /// The caller promised that one thread at a time uses a domain that has a thread of its own.
    NotSingleThreaded,
    /// The caller: the endpoint has a connection already.
    AlreadyConnected,
    /// The manager has no room for another connection.
    TooManyConnections,
    /// The caller: memory cannot be registered like that.
    Register(RegisterError),
    /// The time given to the call has passed.
    TimedOut,
    /// Somebody called `signal` to end the wait.
    Interrupted,
    /// The link broke: no peer can be reached by this domain any more.
    LinkFailed(io::ErrorKind),
    /// The NIC's own thread ended by a panic, which is a bug of ours: operations that were under way may have been executed,
    /// and none is told of any more.
    NicFailed,
    /// A device failed while bytes were on their way to its memory: operations that use it may have lost some.
    DeviceFailed,
    /// Device memory cannot be had, or used like that.
    Device(DeviceError),
    /// The operating system refused something.
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

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Post(error) => error.fmt(f),
            Error::Open(error) => error.fmt(f),
            Error::Operation(failure) => failure.fmt(f),
            Error::Memory(fault) => fault.fmt(f),
            Error::Register(error) => error.fmt(f),
            Error::CountedFailure => f.write_str("an operation that the counter counts failed: read its completion"),
            Error::OtherDomain => f.write_str("it belongs to another domain: make it from the domain it is used with"),
            Error::NotSingleThreaded => {
                f.write_str("a NIC with a thread of its own is used by two: choose manual progress, or make no promise")
            }
            Error::AlreadyConnected => {
                f.write_str("the endpoint has a connection already: drop that, or open another endpoint")
            }
            Error::TooManyConnections => f.write_str("too many connections: drop those that have ended"),
            Error::Protocol(text) => write!(f, "the protocol tables cannot be loaded: {text}"),
            Error::AddressVectorFull => f.write_str("the address vector is full: remove peers that are not needed"),
            Error::MemoryTableFull => {
                f.write_str("too many buffers and regions are in use: read completions or drop regions, then try again")
            }
            Error::TimedOut => f.write_str("the time given has passed: the operations are still under way"),
            Error::Interrupted => f.write_str("a signal ended the wait: the operations are still under way"),
            Error::LinkFailed(kind) => write!(f, "the link is broken ({kind}): open a new domain"),
            Error::NicFailed => {
                f.write_str("the NIC's thread has panicked, see what it said: please report it, and open a new domain")
            }
            Error::DeviceFailed => f.write_str(
                "a device failed with bytes on their way to it: make its memory anew, and open a new domain",
            ),
            Error::Device(error) => error.fmt(f),
            Error::System { doing, source } => write!(f, "cannot {doing}: {source}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Post(error) => Some(error),
            Error::Open(error) => Some(error),
            Error::Operation(failure) => Some(failure),
            Error::Memory(fault) => Some(fault),
            Error::Register(error) => Some(error),
            Error::Device(error) => Some(error),
            Error::System { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl From<PostError> for Error {
    fn from(error: PostError) -> Error {
        Error::Post(error)
    }
}

impl From<OpenError> for Error {
    fn from(error: OpenError) -> Error {
        Error::Open(error)
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        Error::Operation(failure)
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Error {
        Error::Memory(fault)
    }
}

/// An operation that was not taken, with the buffer it would have used: nothing is lost, and `?` makes it an [`Error`].
#[derive(Debug)]
pub struct Refused {
    /// Why.
    pub error: Error,
    /// The buffer, as it was given.
    pub buffer: Option<Buffer>,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for Refused {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
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
