//! Every bound of the links, in one place.

use std::time::Duration;

use weft_core::limits::{MTU_DEFAULT_BYTES, MTU_MAX_BYTES, MTU_MIN_BYTES};

/// Datagrams that the kernel cuts one send into.
pub const SEGMENTS_MAX: usize = 64;
/// Bytes of one send, cut or not: what UDP over IPv4 can carry.
pub const SEND_MAX_BYTES: usize = MTU_MAX_BYTES as usize;
/// Pieces of one send (`UIO_MAXIOV`).
pub const PIECES_MAX: usize = 1024;
/// Sends that go to the kernel in one call.
pub const SEND_BATCH_MAX: usize = 32;
/// Receives that come from the kernel in one call, each with a buffer of its own.
pub const RECEIVE_BATCH_MAX: usize = 16;
/// Bytes of a receive buffer. The kernel never joins more than 65535 bytes.
pub const RECEIVE_BUFFER_BYTES: usize = 64 << 10;
/// Destinations whose MTU a link remembers.
pub const ROUTES_MAX: usize = 64;
/// How long: interfaces and routes may change.
pub const ROUTE_VALID: Duration = Duration::from_secs(1);
/// Notices of the network that wait to be asked for; past it the oldest is forgotten.
pub const NOTICES_MAX: usize = 64;
/// Errors that one receive takes from the kernel; the next one takes more.
pub const REPORTS_MAX: usize = 64;
/// Bytes of a datagram that a notice quotes, at most.
pub const QUOTED_MAX_BYTES: usize = 64;
/// Message classes.
pub const CLASSES: usize = 4;
/// Sends that wait for a link inside of the process.
pub const INBOX_MAX: usize = 4096;
/// Datagrams that a faulty link holds back in one direction.
pub const HELD_MAX: usize = 4096;
/// Bytes of device memory that are copied at a time to be sent.
pub const STAGED_BYTES: usize = 256 << 10;
/// Bytes of IPv4 and UDP headers.
pub const IPV4_HEADERS_BYTES: u32 = 20 + 8;
/// Bytes of IPv6 and UDP headers.
pub const IPV6_HEADERS_BYTES: u32 = 40 + 8;

/// Records that one ring of a channel holds at least.
pub const RING_SLOTS: u32 = 512;
/// Slots of a ring that a conversation uses over and over: few enough for the first cache, beside other things.
pub const RING_NEAR_SLOTS: u32 = 32;
/// Bytes of a record that need no other place than its slot.
pub const INLINE_MAX_BYTES: usize = 80;
/// Bytes of the payloads of one ring that lie outside of the slots.
pub const RING_DATA_BYTES: u32 = 1 << 20;
/// Bytes of one record's payload.
pub const PAYLOAD_MAX_BYTES: usize = 64 << 10;
/// Records that a receiver takes before it tells the sender, unless the ring gets empty first.
pub const RING_PUBLISH_SLOTS: u32 = RING_SLOTS / 8;
/// Bytes of payloads that a receiver takes before it tells the sender, likewise.
pub const RING_PUBLISH_BYTES: u32 = RING_DATA_BYTES / 8;
/// Bytes of payloads after which a sender looks whether all were taken, so that it can use the same pages again.
pub const RING_LOOK_BYTES: u32 = 4 << 10;
/// Words of a channel that both sides may write.
pub const CHANNEL_WORDS_MAX: usize = 256;
/// Channels of one node.
pub const CHANNELS_MAX: usize = 4096;
/// Channels that one process may make to a node: one that wants them all leaves the others some.
pub const CHANNELS_OF_PEER_MAX: usize = 1024;
/// Connections that have not said hello yet; past it the oldest is closed.
pub const STRANGERS_MAX: usize = 64;
/// How long a connection may wait before it says hello.
pub const STRANGER_WAIT_MS: u64 = 5000;
/// Connections that one poll accepts.
pub const ACCEPTS_MAX: usize = 64;
/// Sockets that one poll serves.
pub const NODE_EVENTS_MAX: usize = 64;
/// Messages that one poll takes from one socket.
pub const NOTES_MAX: usize = 16;
/// Bytes of a note.
pub const NOTE_MAX_BYTES: usize = 4096;
/// Descriptors of a note.
pub const NOTE_DESCRIPTORS_MAX: usize = 8;
/// Connections that wait to be accepted; the kernel lowers it to `net.core.somaxconn`.
pub const BACKLOG_MAX: i32 = 4096;

const _: () = {
    assert!(RING_SLOTS.is_power_of_two() && RING_NEAR_SLOTS.is_power_of_two() && RING_DATA_BYTES.is_power_of_two());
    // A payload that does not fit before the end of the ring skips there: both must fit into an empty ring, and what
    // a receiver keeps to itself must not be what the sender waits for.
    assert!(PAYLOAD_MAX_BYTES * 2 + RING_PUBLISH_BYTES as usize <= RING_DATA_BYTES as usize);
};

const _: () = {
    assert!(MTU_MIN_BYTES <= MTU_DEFAULT_BYTES && MTU_DEFAULT_BYTES <= MTU_MAX_BYTES);
    assert!(MTU_DEFAULT_BYTES + IPV6_HEADERS_BYTES == 1280, "what every way of IPv6 carries (RFC 8200)");
    assert!(RECEIVE_BUFFER_BYTES > SEND_MAX_BYTES, "whatever UDP delivers fits (P-2.2)");
};
