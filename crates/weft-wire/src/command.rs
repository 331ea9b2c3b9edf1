//! The generic command: what every RDMA packet becomes, whichever protocol it came in.
//!
//! A command is sixteen 64-bit slots. Tables name slots, so one loop can fill a command from any protocol and read it
//! back when a packet is made; people use the getters. The last four slots are arguments whose meaning follows the
//! command ([`Slot::from_name`] lists the names that a definition may use for them).

use core::fmt;

/// Number of slots in a [`Command`].
pub const SLOTS: usize = 16;

/// One generic command.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Command {
    /// Indexed by [`Slot`]. Public because the tables and the two hand-written decoders fill it slot by slot.
    pub slots: [u64; SLOTS],
}

/// What a slot of a [`Command`] holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Slot {
    /// Kind in the low 8 bits, flags above.
    Head = 0,
    /// The queue (pair), endpoint or untagged buffer queue that is addressed.
    Queue = 1,
    /// The queue or endpoint that sent.
    Source = 2,
    /// What names the transaction: an id, or the key to find it by (see `[transaction]` in a definition).
    Transaction = 3,
    /// Packet sequence number.
    Sequence = 4,
    /// Message number.
    Message = 5,
    /// Memory key (RKey, STag), or queue key where there is no memory.
    Key = 6,
    /// Remote address.
    Address = 7,
    /// Bytes of the whole operation where the packet says so, else of its payload.
    Length = 8,
    /// Where in the message this packet's payload begins.
    Offset = 9,
    /// Immediate data.
    Immediate = 10,
    /// Outcome: acknowledgement syndrome, error code.
    Status = 11,
    /// First argument.
    Argument0 = 12,
    /// Second argument.
    Argument1 = 13,
    /// Third argument.
    Argument2 = 14,
    /// Fourth argument.
    Argument3 = 15,
}

/// Names that definitions use, and the slots they mean. Several names share an argument slot: no command uses both.
const SLOT_NAMES: &[(&str, Slot)] = &[
    ("queue", Slot::Queue),
    ("source", Slot::Source),
    ("transaction", Slot::Transaction),
    ("sequence", Slot::Sequence),
    ("message", Slot::Message),
    ("key", Slot::Key),
    ("address", Slot::Address),
    ("length", Slot::Length),
    ("offset", Slot::Offset),
    ("immediate", Slot::Immediate),
    ("status", Slot::Status),
    ("operand", Slot::Argument0),
    ("compare", Slot::Argument1),
    ("operand_mask", Slot::Argument2),
    ("compare_mask", Slot::Argument3),
    ("reply_key", Slot::Argument0),
    ("reply_address", Slot::Argument1),
    ("tag", Slot::Argument0),
    ("bitmap", Slot::Argument0),
    ("echo", Slot::Argument1),
    ("hold", Slot::Argument2),
    ("marks", Slot::Immediate),
    ("credits", Slot::Length),
    ("highest", Slot::Offset),
    ("flush_type", Slot::Argument0),
    ("flush_scope", Slot::Argument1),
    ("checksum", Slot::Argument2),
    ("operation", Slot::Argument2),
    ("context", Slot::Argument2),
    ("shared_queue", Slot::Argument3),
    ("epoch", Slot::Argument3),
];

impl Slot {
    /// The slot that a definition means by `name`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Slot> {
        SLOT_NAMES.iter().find(|(known, _)| *known == name).map(|(_, slot)| *slot)
    }

    /// The slot with this number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Slot> {
        let named = SLOT_NAMES.iter().map(|(_, slot)| *slot);
        named.chain([Slot::Head]).find(|slot| *slot as u8 == number)
    }

    /// All names, for error texts and documentation.
    pub fn names() -> impl Iterator<Item = &'static str> {
        SLOT_NAMES.iter().map(|(name, _)| *name)
    }
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident = $value:literal, $name:literal;)*) => {
        /// What a generic command asks for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Kind { $($(#[$doc])* $variant = $value,)* }

        impl Kind {
            /// Every kind.
            pub const ALL: &[Kind] = &[$(Kind::$variant),*];

            /// The name in definitions, JSON and statistics.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Kind::$variant => $name,)* }
            }

            /// The kind that a number stands for.
            #[inline]
            #[must_use]
            pub fn from_bits(bits: u8) -> Kind {
                match bits { $($value => Kind::$variant,)* _ => Kind::Exception }
            }
        }
    };
}

kinds! {
    /// For the slow path: nothing that the tables know how to do.
    Exception = 0, "exception";
    /// Payload for a posted receive.
    Send = 1, "send";
    /// Payload for the memory that key and address name.
    Write = 2, "write";
    /// Send back `length` bytes from key and address.
    ReadRequest = 3, "read_request";
    /// Payload that answers a read.
    ReadResponse = 4, "read_response";
    /// What was received, well or badly (`status`).
    Acknowledge = 5, "acknowledge";
    /// Compare and swap at key and address.
    CompareSwap = 6, "compare_swap";
    /// Fetch and add at key and address.
    FetchAdd = 7, "fetch_add";
    /// Any other atomic (`operation`), its operands in the payload.
    Atomic = 8, "atomic";
    /// What was in memory before an atomic.
    AtomicResponse = 9, "atomic_response";
    /// Write eight bytes as one.
    AtomicWrite = 10, "atomic_write";
    /// Make earlier writes visible or durable.
    Flush = 11, "flush";
    /// Compare the checksum of a range with `checksum`.
    Verify = 12, "verify";
    /// Make a key unusable.
    Invalidate = 13, "invalidate";
    /// Tell the queue's owner: immediate data, end of a written message.
    Notify = 14, "notify";
    /// Slow down: the path is congested.
    Congestion = 15, "congestion";
    /// Set up a connection or session.
    Connect = 16, "connect";
    /// Tear one down.
    Disconnect = 17, "disconnect";
    /// Ask whether the path works.
    Probe = 18, "probe";
    /// Encrypted; the session layer opens it and decodes again.
    Sealed = 19, "sealed";
    /// A long message waits at the sender (rendezvous).
    ReadyToSend = 20, "ready_to_send";
    /// Payload for a posted receive, with no promise of delivery.
    Datagram = 21, "datagram";
    /// A send chosen by tag.
    TaggedSend = 22, "tagged_send";
    /// Something for the protocol's own control (key change, credit).
    Control = 23, "control";
    /// Several packets in one datagram; the session layer takes them apart.
    Bundle = 24, "bundle";
}

impl Kind {
    /// The kind that a definition means by `name`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Kind> {
        Kind::ALL.iter().copied().find(|kind| kind.name() == name)
    }
}

/// Bits that qualify a command.
#[derive(Clone, Copy, PartialEq, Eq, Default, Hash, PartialOrd, Ord)]
pub struct Flags(pub u32);

/// Names of the flags, lowest bit first. The transport class sits above them.
const FLAG_NAMES: [&str; 14] = [
    "first",
    "last",
    "immediate",
    "invalidate",
    "solicited",
    "ack_request",
    "congestion_forward",
    "congestion_backward",
    "fence",
    "retransmit",
    "response",
    "verify",
    "reject",
    "fetch",
];

impl Flags {
    /// First packet of its message.
    pub const FIRST: Flags = Flags(1);
    /// Last packet of its message.
    pub const LAST: Flags = Flags(1 << 1);
    /// Carries immediate data.
    pub const IMMEDIATE: Flags = Flags(1 << 2);
    /// Also invalidates a key.
    pub const INVALIDATE: Flags = Flags(1 << 3);
    /// The receiver's owner wants to be woken.
    pub const SOLICITED: Flags = Flags(1 << 4);
    /// The sender wants an acknowledgement.
    pub const ACK_REQUEST: Flags = Flags(1 << 5);
    /// Explicit congestion notification, forward.
    pub const CONGESTION_FORWARD: Flags = Flags(1 << 6);
    /// Explicit congestion notification, backward.
    pub const CONGESTION_BACKWARD: Flags = Flags(1 << 7);
    /// Starts only when all before it are done.
    pub const FENCE: Flags = Flags(1 << 8);
    /// Sent before.
    pub const RETRANSMIT: Flags = Flags(1 << 9);
    /// Answers something.
    pub const RESPONSE: Flags = Flags(1 << 10);
    /// Also asks for a check of the data.
    pub const VERIFY: Flags = Flags(1 << 11);
    /// Refuses.
    pub const REJECT: Flags = Flags(1 << 12);
    /// Returns the value from before.
    pub const FETCH: Flags = Flags(1 << 13);
    /// Where the transport class begins.
    pub const CLASS_SHIFT: u32 = 24;

    /// The flag that a definition means by `name`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Flags> {
        let bit = FLAG_NAMES.iter().position(|known| *known == name)?;
        Some(Flags(1 << u32::try_from(bit).ok()?))
    }

    /// All names, for error texts.
    pub fn names() -> impl Iterator<Item = &'static str> {
        FLAG_NAMES.iter().copied()
    }

    /// The names of the flags that are set.
    pub fn set_names(self) -> impl Iterator<Item = &'static str> {
        FLAG_NAMES.iter().enumerate().filter(move |(bit, _)| self.0 >> bit & 1 == 1).map(|(_, name)| *name)
    }

    /// Whether all bits of `other` are set.
    #[inline]
    #[must_use]
    pub fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Number of the transport class (the definition's family, counted from 1 in order of its codes; 0: none).
    #[inline]
    #[must_use]
    pub fn class(self) -> u8 {
        (self.0 >> Flags::CLASS_SHIFT) as u8
    }
}

impl core::ops::BitOr for Flags {
    type Output = Flags;
    fn bitor(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.set_names()).finish()?;
        if self.class() != 0 { write!(f, " class {}", self.class()) } else { Ok(()) }
    }
}

/// The bits below the flags in [`Slot::Head`].
pub(crate) const KIND_BITS: u32 = 8;

macro_rules! getters {
    ($($(#[$doc:meta])* $name:ident, $slot:ident;)*) => {
        impl Command {
            $($(#[$doc])* #[inline] #[must_use] pub fn $name(&self) -> u64 { self.slot(Slot::$slot) })*
        }
    };
}

getters! {
    /// See [`Slot::Queue`].
    queue, Queue;
    /// See [`Slot::Source`].
    source, Source;
    /// See [`Slot::Transaction`].
    transaction, Transaction;
    /// See [`Slot::Sequence`].
    sequence, Sequence;
    /// See [`Slot::Message`].
    message, Message;
    /// See [`Slot::Key`].
    key, Key;
    /// See [`Slot::Address`].
    address, Address;
    /// See [`Slot::Length`].
    length, Length;
    /// See [`Slot::Offset`].
    offset, Offset;
    /// See [`Slot::Immediate`].
    immediate, Immediate;
    /// See [`Slot::Status`].
    status, Status;
}

impl Command {
    /// A command with nothing but its kind and flags.
    #[inline]
    #[must_use]
    pub fn new(kind: Kind, flags: Flags) -> Command {
        let mut command = Command::default();
        command.slots[0] = u64::from(flags.0) << KIND_BITS | u64::from(kind as u8);
        command
    }

    /// What is asked for.
    #[inline]
    #[must_use]
    pub fn kind(&self) -> Kind {
        Kind::from_bits(self.slots[0] as u8)
    }

    /// The flags.
    #[inline]
    #[must_use]
    pub fn flags(&self) -> Flags {
        Flags((self.slots[0] >> KIND_BITS) as u32)
    }

    /// The value of any slot.
    #[inline]
    #[must_use]
    #[expect(clippy::indexing_slicing, reason = "there are as many slots as `Slot` has values")]
    pub fn slot(&self, slot: Slot) -> u64 {
        self.slots[slot as usize]
    }

    /// Changes one slot.
    #[inline]
    #[expect(clippy::indexing_slicing, reason = "there are as many slots as `Slot` has values")]
    pub fn set(&mut self, slot: Slot, value: u64) {
        self.slots[slot as usize] = value;
    }

    /// The command with one slot changed.
    #[inline]
    #[must_use]
    pub fn with(mut self, slot: Slot, value: u64) -> Command {
        self.set(slot, value);
        self
    }
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Command");
        out.field("kind", &self.kind()).field("flags", &self.flags());
        let mut seen = 0u16;
        for (name, slot) in SLOT_NAMES {
            let bit = 1 << *slot as u8;
            if seen & bit == 0 && self.slot(*slot) != 0 {
                out.field(name, &format_args!("{:#x}", self.slot(*slot)));
            }
            seen |= bit;
        }
        out.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_agree() {
        for kind in Kind::ALL {
            assert_eq!(Kind::from_name(kind.name()), Some(*kind));
            assert_eq!(Kind::from_bits(*kind as u8), *kind);
        }
        assert_eq!(Kind::from_bits(255), Kind::Exception);
        for name in Flags::names() {
            let flag = Flags::from_name(name).unwrap();
            assert_eq!(flag.set_names().collect::<std::vec::Vec<_>>(), [name]);
        }
        let numbers = (0..SLOTS as u8).map(|number| Slot::from_number(number).map(|slot| slot as u8));
        assert!(numbers.eq((0..SLOTS as u8).map(Some)), "every slot has a name");
        assert!(FLAG_NAMES.len() < Flags::CLASS_SHIFT as usize);
    }

    #[test]
    fn head_holds_kind_and_flags_apart() {
        let command = Command::new(Kind::Write, Flags::LAST | Flags(3 << Flags::CLASS_SHIFT)).with(Slot::Key, 7);
        assert_eq!(command.kind(), Kind::Write);
        assert!(command.flags().contains(Flags::LAST) && !command.flags().contains(Flags::FIRST));
        assert_eq!((command.flags().class(), command.key()), (3, 7));
    }
}
