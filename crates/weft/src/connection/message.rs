//! What managers tell each other: one message of at most [`MESSAGE_MAX_BYTES`] bytes, sent from one hidden endpoint to
//! another as an ordinary reliable message at level *delivered*. All numbers are big-endian.
//!
//! | bytes | what |
//! |---|---|
//! | 0..4 | `WFCM` |
//! | 4 | version, 1 |
//! | 5 | kind: 1 request, 2 accept, 3 reject, 4 confirm, 5 shutdown, 6 unwatch |
//! | 6 | bit 0 of request and accept: the sender's NIC answers by itself (automatic progress); of shutdown: the sender was connected; all else 0 |
//! | 7 | 0 |
//! | 8..16 | the receiver's token of the connection; 0 in a request, which the receiver has none of yet, and in unwatch |
//! | 16..24 | the sender's token of the connection; 0 in a reject, whose sender has none, and in unwatch |
//! | 24..28 | of request and accept: the number of the endpoint to be connected, on the NIC that sends; otherwise 0 |
//! | 28..30 | bytes of private data, at most 256; of confirm, shutdown and unwatch 0 |
//! | 30..32 | 0 |
//! | 32.. | private data, to the end of the message |
//!
//! ```text
//! connecting manager                listener              accepting manager
//!        | request(from: C) ---------> |                          |
//!        |                             | (its user decides)       |
//!        | <------ reject(to: C) ----- |                          |   or
//!        | <----------------------------- accept(to: C, from: A) -|
//!        | confirm(to: A, from: C) ------------------------------>|
//!        | <------------- shutdown, either way, at any time ----->|
//! ```
//!
//! Tokens are random, so an accept or a reject is believed because its sender knows the token that only the listener was
//! told. Who sent a message, and so where the endpoint to be connected is, comes from the message's source and never from
//! its bytes. A request that is repeated (its sender could not know whether it had arrived) is known by source and token.
//! An accept for a token that is not waited for any more is answered by a shutdown. Messages may overtake each other: a
//! shutdown of one who was connected says what its confirm says; one that comes before the accept ends the request.
//!
//! A *watch* is a message of one byte with the tag `WEFTWATC` that its receiver leaves where it is. It ends when the
//! receiver does. Unwatch says that it is not needed any more: its receiver throws it away, which ends it in order.
//!
//! Everything else that does not fit is
//! ignored and counted.

use crate::limits::{CONNECTION_DATA_MAX_BYTES, CONNECTION_HEADER_BYTES};

/// Bytes of the longest message.
pub(super) const MESSAGE_MAX_BYTES: usize = CONNECTION_HEADER_BYTES + CONNECTION_DATA_MAX_BYTES;

const MAGIC: [u8; 4] = *b"WFCM";
const VERSION: u8 = 1;
const FLAG: u8 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Request = 1,
    Accept = 2,
    Reject = 3,
    Confirm = 4,
    Shutdown = 5,
    Unwatch = 6,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) kind: Kind,
    /// Of request and accept: the sender's NIC answers by itself, so that its silence means something. Of shutdown: the
    /// sender was connected.
    pub(super) flag: bool,
    /// The receiver's token.
    pub(super) to: u64,
    /// The sender's token.
    pub(super) from: u64,
    pub(super) endpoint: u32,
    pub(super) data: Vec<u8>,
}

impl Message {
    /// One without private data.
    pub(super) fn bare(kind: Kind, to: u64, from: u64) -> Message {
        Message { kind, flag: false, to, from, endpoint: 0, data: Vec::new() }
    }

    pub(super) fn emit(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(CONNECTION_HEADER_BYTES + self.data.len());
        bytes.extend(MAGIC);
        bytes.extend([VERSION, self.kind as u8, if self.flag { FLAG } else { 0 }, 0]);
        bytes.extend(self.to.to_be_bytes());
        bytes.extend(self.from.to_be_bytes());
        bytes.extend(self.endpoint.to_be_bytes());
        // Whoever makes a message has checked its data against the limit.
        bytes.extend(u16::try_from(self.data.len()).unwrap_or(u16::MAX).to_be_bytes());
        bytes.extend([0, 0]);
        bytes.extend(&self.data);
        bytes
    }

    /// `None`: not a message that one of us would send.
    pub(super) fn parse(bytes: &[u8]) -> Option<Message> {
        let (magic, rest) = bytes.split_first_chunk::<4>()?;
        let (&[version, kind, flags, zero], rest) = rest.split_first_chunk::<4>()?;
        let (to, rest) = rest.split_first_chunk::<8>()?;
        let (from, rest) = rest.split_first_chunk::<8>()?;
        let (endpoint, rest) = rest.split_first_chunk::<4>()?;
        let (length, rest) = rest.split_first_chunk::<2>()?;
        let (reserved, data) = rest.split_first_chunk::<2>()?;
        let kind = match kind {
            1 => Kind::Request,
            2 => Kind::Accept,
            3 => Kind::Reject,
            4 => Kind::Confirm,
            5 => Kind::Shutdown,
            6 => Kind::Unwatch,
            _ => return None,
        };
        let message = Message {
            kind,
            flag: flags == FLAG,
            to: u64::from_be_bytes(*to),
            from: u64::from_be_bytes(*from),
            endpoint: u32::from_be_bytes(*endpoint),
            data: data.to_vec(),
        };
        let names_endpoint = matches!(kind, Kind::Request | Kind::Accept);
        let right = *magic == MAGIC
            && version == VERSION
            && (flags == 0 || flags == FLAG && (names_endpoint || kind == Kind::Shutdown))
            && zero == 0
            && *reserved == [0, 0]
            && (message.to == 0) == matches!(kind, Kind::Request | Kind::Unwatch)
            && (message.from == 0) == matches!(kind, Kind::Reject | Kind::Unwatch)
            && (message.endpoint == 0 || names_endpoint)
            && data.len() == usize::from(u16::from_be_bytes(*length))
            && data.len() <= CONNECTION_DATA_MAX_BYTES
            && (data.is_empty() || names_endpoint || kind == Kind::Reject);
        right.then_some(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn messages() -> impl Strategy<Value = Message> {
        let kinds = [Kind::Request, Kind::Accept, Kind::Reject, Kind::Confirm, Kind::Shutdown, Kind::Unwatch];
        let data = proptest::collection::vec(any::<u8>(), 0..=CONNECTION_DATA_MAX_BYTES);
        let parts = (0..kinds.len(), any::<bool>(), 1..=u64::MAX, 1..=u64::MAX, any::<u32>(), data);
        parts.prop_map(move |(kind, flag, to, from, endpoint, data)| {
            let kind = kinds[kind];
            let names_endpoint = matches!(kind, Kind::Request | Kind::Accept);
            Message {
                kind,
                flag: flag && (names_endpoint || kind == Kind::Shutdown),
                to: if matches!(kind, Kind::Request | Kind::Unwatch) { 0 } else { to },
                from: if matches!(kind, Kind::Reject | Kind::Unwatch) { 0 } else { from },
                endpoint: if names_endpoint { endpoint } else { 0 },
                data: if names_endpoint || kind == Kind::Reject { data } else { Vec::new() },
            }
        })
    }

    proptest! {
        #[test]
        fn what_is_sent_is_read(message in messages()) {
            let bytes = message.emit();
            prop_assert!(bytes.len() <= MESSAGE_MAX_BYTES);
            prop_assert_eq!(Message::parse(&bytes), Some(message));
        }

        #[test]
        fn what_is_read_would_be_sent(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            if let Some(message) = Message::parse(&bytes) {
                prop_assert_eq!(message.emit(), bytes);
            }
        }

        #[test]
        fn a_changed_message_is_another_one_or_none(message in messages(), place: usize, bit in 0..8) {
            let mut bytes = message.emit();
            let place = place % bytes.len();
            bytes[place] ^= 1u8 << bit;
            if let Some(other) = Message::parse(&bytes) {
                prop_assert_eq!(other.emit(), bytes.as_slice());
            }
            bytes.pop();
            prop_assert_ne!(Message::parse(&bytes), Some(message));
        }
    }
}
