//! Commands: what the user asks the NIC for, in 64 bytes each.
//!
//! A command stands in a queue of its target, is cut into packets, and stays as the retransmit entry until all its
//! packets are settled (P-3.3). A short payload goes out with the packet at once (the PIO way); long ones, and everything
//! that is sent again, are read from the user's buffer when the packet is made (the DMA way).

use core::fmt;

use crate::address::PeerId;
use crate::atomic::AtomicCall;
use crate::event::CounterId;
use crate::memory::LocalKey;

/// Names an endpoint of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndpointId(pub u32);

/// What a command asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Operation {
    /// A message for the next receive.
    Send,
    /// A message for the receive that its tag matches.
    TaggedSend,
    /// A message that may be lost, in one packet.
    Datagram,
    /// Bytes into the target's memory.
    Write,
    /// Bytes out of the target's memory.
    Read,
    /// An atomic without result.
    Atomic,
    /// An atomic that gives the values from before.
    FetchAtomic,
    /// An atomic that compares, and gives the values from before. The local buffer holds compare values, then operands.
    CompareAtomic,
    /// End of a rendezvous, sent by the engine itself (P-5.5).
    Done,
    /// A part of a rendezvous, sent by the engine itself: bytes out of the initiator's buffer.
    Pull,
}

/// When an operation counts as done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// The buffer may be used again; the caller has made a copy of it for the engine. Where the completion queue has no
    /// place for a failure that may follow, the same as `Transmitted`.
    Injected,
    /// The target's node has taken it and will not lose it while it lives.
    Transmitted,
    /// The bytes are in the memory of the target's user.
    Delivered,
}

/// Bits that qualify a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct CommandFlags(pub u16);

impl CommandFlags {
    /// Nothing special.
    pub const NONE: CommandFlags = CommandFlags(0);
    /// `immediate` goes to the target's completion.
    pub const IMMEDIATE: CommandFlags = CommandFlags(1);
    /// Starts when everything before it, from the same endpoint to the same endpoint, has ended; what is posted after it
    /// starts behind it (P-6.5).
    pub const FENCE: CommandFlags = CommandFlags(2);
    /// The target's owner wants to be woken.
    pub const SOLICITED: CommandFlags = CommandFlags(4);
    /// No completion when it succeeds; failures always give one.
    pub const SILENT: CommandFlags = CommandFlags(8);
    /// No message order is needed (P-6.4).
    pub const UNORDERED: CommandFlags = CommandFlags(16);
    /// More commands follow at once: do not send for this one alone.
    pub const MORE: CommandFlags = CommandFlags(32);
    /// Of writes, reads and atomics: takes effect at the target after all earlier ones with this flag, of the same endpoint
    /// to the same target, that meet it in memory ([`Command::must_follow`]).
    pub const ORDERED: CommandFlags = CommandFlags(64);
    /// Its end is counted besides ([`crate::delivery::Delivery::count_end`], which alone sets it): its context is the engine's.
    pub const COUNTED: CommandFlags = CommandFlags(1 << 15);
    /// One of the commands that a group is made of: the engine's own, and never a user's.
    pub const PART: CommandFlags = CommandFlags(1 << 14);

    /// Whether all bits of `other` are set.
    #[must_use]
    pub const fn contains(self, other: CommandFlags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Those that are not in `other`.
    #[must_use]
    pub const fn without(self, other: CommandFlags) -> CommandFlags {
        CommandFlags(self.0 & !other.0)
    }
}

impl core::ops::BitOr for CommandFlags {
    type Output = CommandFlags;
    fn bitor(self, other: CommandFlags) -> CommandFlags {
        CommandFlags(self.0 | other.0)
    }
}

/// One command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Command {
    /// What is asked for.
    pub operation: Operation,
    /// When it is done.
    pub level: Level,
    /// What is special.
    pub flags: CommandFlags,
    /// The endpoint it is sent from.
    pub endpoint: EndpointId,
    /// The endpoint it is for.
    pub peer: PeerId,
    /// The local buffer: where bytes come from; of READ, where they go.
    pub local: LocalKey,
    /// Where in the local buffer they begin.
    pub offset: u64,
    /// Bytes of the message.
    pub length: u32,
    /// Of atomics: operation and datatype, and how many elements.
    pub atomic: AtomicCall,
    /// The user's own name for it.
    pub context: u64,
    /// Remote address; of tagged sends, the tag.
    pub address: u64,
    /// Remote key.
    pub key: u64,
    /// Immediate data; of atomics with results, the local buffer for them, and above it where in that they begin.
    pub immediate: u64,
}

const _: () = assert!(size_of::<Command>() == 64, "a command is one cache line");

impl Command {
    /// A command without bytes, to be filled in.
    #[must_use]
    pub fn new(operation: Operation, endpoint: EndpointId, peer: PeerId) -> Command {
        Command {
            operation,
            level: Level::Transmitted,
            flags: CommandFlags::NONE,
            endpoint,
            peer,
            local: LocalKey::NONE,
            offset: 0,
            length: 0,
            atomic: AtomicCall { operation: 0, datatype: 0, count: 0 },
            context: 0,
            address: 0,
            key: 0,
            immediate: 0,
        }
    }

    /// Of atomics with results: the local buffer for them.
    #[must_use]
    pub fn results(&self) -> LocalKey {
        LocalKey(self.immediate as u32)
    }

    /// The first and the last byte of the target's memory that it touches. `None`: it touches none.
    #[must_use]
    pub fn remote_range(&self) -> Option<(u64, u64)> {
        let length = match self.operation {
            Operation::Write | Operation::Read => u64::from(self.length),
            Operation::Atomic | Operation::FetchAtomic | Operation::CompareAtomic => self.atomic.bytes()? as u64,
            _ => return None,
        };
        (length > 0).then(|| (self.address, self.address.saturating_add(length - 1)))
    }

    /// Whether it must wait until an earlier command of the same endpoint to the same target is settled: both are
    /// [`CommandFlags::ORDERED`] and touch the same bytes under the same key. What is apart is not kept in order.
    #[must_use]
    pub fn must_follow(&self, earlier: &Command) -> bool {
        if !(self.has(CommandFlags::ORDERED) && earlier.has(CommandFlags::ORDERED) && self.key == earlier.key) {
            return false;
        }
        match (self.remote_range(), earlier.remote_range()) {
            (Some((first, last)), Some((from, to))) => first <= to && from <= last,
            _ => false,
        }
    }

    /// Of atomics with results: where in the local buffer for them they begin.
    #[must_use]
    pub fn results_offset(&self) -> u64 {
        self.immediate >> 32
    }

    /// Whether a flag is set.
    #[must_use]
    pub fn has(&self, flag: CommandFlags) -> bool {
        self.flags.contains(flag)
    }
}

/// A buffer posted for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receive {
    /// The endpoint that receives.
    pub endpoint: EndpointId,
    /// Where bytes go.
    pub local: LocalKey,
    /// Where in the local buffer they begin.
    pub offset: u64,
    /// Bytes of room.
    pub length: u64,
    /// Only messages of this peer; `None`: of anyone.
    pub source: Option<PeerId>,
    /// Tagged messages, or those without tag.
    pub tagged: bool,
    /// The tag wanted.
    pub tag: u64,
    /// Bits of the tag that do not matter.
    pub ignore: u64,
    /// A multi-receive buffer takes messages one behind the other until less than this is free.
    pub multi: Option<u64>,
    /// No completion when it succeeds.
    pub silent: bool,
    /// Takes no bytes: the message that it matches is claimed, and its completion tells by what name.
    pub announce: bool,
    /// The user's own name for it.
    pub context: u64,
    /// Counts its end besides the endpoint's own counter.
    pub counter: Option<CounterId>,
}

/// Why a command or receive was not taken. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostError {
    /// The caller: no such endpoint, or it is closed.
    NoSuchEndpoint,
    /// The caller: the peer is not in the address vector.
    NoSuchPeer,
    /// The caller: more bytes than a message may have.
    TooLong {
        /// Bytes asked for.
        length: u64,
        /// Bytes possible.
        limit: u64,
    },
    /// The caller: the local buffer is unknown or shorter than that.
    BadBuffer,
    /// The caller: the operation does not fit the endpoint, or the atomic does not exist.
    NotSupported,
    /// The caller: no message is claimed by that name at the endpoint.
    NoSuchClaim,
    /// A local resource: too much is under way.
    QueueFull,
    /// A local resource: the completion queue could not take its event.
    CompletionQueueFull,
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PostError::NoSuchEndpoint => write!(f, "no such endpoint: it was closed, or never opened"),
            PostError::NoSuchPeer => write!(f, "no such peer: insert its address into the address vector first"),
            PostError::TooLong { length, limit } => {
                write!(f, "{length} bytes are too long: this operation takes at most {limit}")
            }
            PostError::BadBuffer => write!(f, "the operation reaches outside of its local buffer"),
            PostError::NotSupported => write!(f, "this endpoint cannot do the operation on this datatype"),
            PostError::NoSuchClaim => {
                write!(f, "no such claim: its message was received or discarded, or never claimed")
            }
            PostError::QueueFull => write!(f, "too many operations are under way: read completions, then try again"),
            PostError::CompletionQueueFull => {
                write!(f, "the completion queue has no room for its event: read completions, then try again")
            }
        }
    }
}

impl core::error::Error for PostError {}
