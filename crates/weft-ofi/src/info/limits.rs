//! Limits that programs are told, with their unit at the end of their name.

use weft_core::limits::MTU_DEFAULT_BYTES;
use weft_core::packet::{SESSION_BYTES, TRAILER_BYTES, TRANSPORT_BYTES};

/// Bytes of a datagram: it fits in one packet on every path, with the headers of the messages that carry it.
pub(crate) const DATAGRAM_MAX_BYTES: usize = MTU_DEFAULT_BYTES as usize - DATAGRAM_HEADERS_BYTES;
/// Bytes of a packet that are kept for headers.
const DATAGRAM_HEADERS_BYTES: usize = 80;
/// Bytes of the messages that an endpoint keeps until a receive is posted, which a program can rely on.
pub(crate) const BUFFERED_MAX_BYTES: usize = 1 << 20;
/// Bytes of the key of a region.
pub(crate) const KEY_BYTES: usize = 8;
/// Bytes of the data that a completion at the target carries.
pub(crate) const IMMEDIATE_BYTES: usize = 8;
/// Endpoints, queues, counters and contexts of a domain that a program may plan for.
pub(crate) const OBJECTS_MAX: usize = 1 << 16;
/// Pieces of a region.
pub(crate) const REGION_PIECES_MAX: usize = 1;
/// Regions of a domain that a program may plan for.
pub(crate) const REGIONS_MAX: usize = 1 << 20;
/// Bytes that a failed completion can carry: the address of a source.
pub(crate) const ERROR_DATA_MAX_BYTES: usize = size_of::<libc::sockaddr_in6>();

const _: () = assert!(
    SESSION_BYTES + TRANSPORT_BYTES + 12 + IMMEDIATE_BYTES + TRAILER_BYTES <= DATAGRAM_HEADERS_BYTES,
    "a datagram with immediate data (12 bytes say for whom it is) fits in the smallest packet",
);
