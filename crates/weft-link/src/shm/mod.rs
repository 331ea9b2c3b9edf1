//! Records between two processes of one machine, through memory that they share.
//!
//! A [`Channel`] is a memory of its own with three rings. The initiator writes two: what its target may have to leave for
//! a while ([`InitiatorChannel::messages`]), and what its target always takes ([`InitiatorChannel::transfers`]), so that the
//! first never stands before the second. The target writes [`TargetChannel::responses`]. Only these two processes map it, so
//! a peer that writes nonsense harms its own messages and nobody else's. A [`Node`] is where channels come from: it listens under the address of its NIC, hands
//! the memory over through a Unix socket, and hears through the same socket when a peer wakes it, sends a note, or dies.
//! Nothing is named in a file system, so nothing stays behind.
//!
//! What records mean is the business of whoever uses this. Read `layout` for where things lie, `ring` for how records
//! are handed over, then `channel` and `node`.
//!
//! # Limits
//! A ring holds [`RING_SLOTS`](crate::limits::RING_SLOTS) records at least and
//! [`PAYLOAD_MAX_BYTES`](crate::limits::PAYLOAD_MAX_BYTES) in one; what is longer goes in pieces
//! ([`PushError::TooLong`]). Up to [`INLINE_MAX_BYTES`](crate::limits::INLINE_MAX_BYTES) travel in the slot, eight (or
//! sixteen) of them in the same cache line as the record.
//!
//! # Sleeping
//! Who wants to sleep calls [`Receiver::prepare_sleep`] for each channel, and sleeps on [`Node::descriptor`] if all said
//! true; then [`Receiver::awake`]. With many channels one barrier serves all: [`Receiver::announce_sleep`] for each,
//! [`Node::sleep_barrier`] once, [`Receiver::is_empty`] for each. Who waits for room does the same with
//! [`Sender::prepare_sleep`], or [`Sender::announce_sleep`] and [`Sender::is_full`].

pub(crate) mod layout;
pub(crate) mod ring;
mod sync;

#[cfg(not(loom))]
mod channel;
#[cfg(test)]
#[cfg(loom)]
mod loom_tests;
#[cfg(not(loom))]
mod node;
#[cfg(not(loom))]
mod region;
#[cfg(test)]
#[cfg(not(loom))]
mod ring_tests;
#[cfg(not(loom))]
mod socket;
#[cfg(test)]
#[cfg(not(loom))]
mod stranger_tests;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;

#[cfg(not(loom))]
pub use channel::{
    Channel, ChannelId, Claim, Incoming, InitiatorChannel, Parts, Receiver, Room, Sender, TargetChannel,
};
#[cfg(not(loom))]
pub use node::{ConnectError, Hello, Node, NodeEvent};
pub use ring::{Broken, Full, PushError};

/// A record as its users see it: the ring does not look into it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// What it is.
    pub kind: u8,
    /// How it is.
    pub flags: u8,
    /// Whatever belongs to it.
    pub words: [u64; 4],
}
