//! Every bound of the links, in one place.

use weft_core::limits::{MTU_MAX_BYTES, MTU_MIN_BYTES};

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

const _: () = {
    assert!(MTU_MIN_BYTES <= MTU_MAX_BYTES);
    assert!(RECEIVE_BUFFER_BYTES > SEND_MAX_BYTES, "whatever UDP delivers fits (P-2.2)");
};
