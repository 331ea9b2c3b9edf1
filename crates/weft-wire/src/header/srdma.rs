//! SRDMA, Weft's own session-based protocol: `docs/protocol.md` has its clauses.
//!
//! A packet is a [`SrdmaSession`] header; then, unless it is sealed, a [`SrdmaTransport`] header whose opcode says which
//! of the others follow, in the order in which they stand here. A bundle has several of these behind one session header
//! (P-2.9): [`crate::bundle`] takes it apart.

use super::fields::{Fields, flag};

// | bytes | field                                   |
// |-------|-----------------------------------------|
// | 0     | version 4 · sealed 1 · bundle 1 ·       |
// |       | partial 1 · reserved 1                  |
// | 1     | class                                   |
// | 2–3   | key epoch                               |
// | 4–7   | session                                 |
// | 8–15  | sequence number in the session          |
// | 16–19 | timestamp                               |
const VERSION_FLAGS: usize = 0;
const CLASS: usize = 1;
const KEY_EPOCH: usize = 2;
const SESSION: usize = 4;
const SESSION_SEQUENCE: usize = 8;
const TIMESTAMP: usize = 16;

/// The session header, which begins every packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrdmaSession {
    /// [`SrdmaSession::VERSION`], 4 bits.
    pub version: u8,
    /// Whether all that follows is encrypted.
    pub sealed: bool,
    /// Whether several packets follow (P-2.9).
    pub bundle: bool,
    /// Whether the trailer covers the first bytes only (P-2.5).
    pub partial: bool,
    /// Reserved.
    pub reserved1: bool,
    /// Traffic class.
    pub class: u8,
    /// Which key of the session sealed the packet.
    pub key_epoch: u16,
    /// The session.
    pub id: u32,
    /// Sequence number in the session.
    pub sequence: u64,
    /// The sender's clock.
    pub timestamp: u32,
}

fixed_header!(SrdmaSession, SrdmaSessionView, 20, {
    version, sealed, bundle, partial, reserved1, class, key_epoch, id, sequence, timestamp,
});

impl SrdmaSessionView<'_> {
    /// [`SrdmaSession::VERSION`], 4 bits.
    #[inline]
    pub fn version(&self) -> u8 {
        self.bytes[VERSION_FLAGS] >> 4
    }

    /// Whether all that follows is encrypted.
    #[inline]
    pub fn sealed(&self) -> bool {
        self.bytes[VERSION_FLAGS] & 0x08 != 0
    }

    /// Whether several packets follow (P-2.9). Of a sealed packet it is said of what is inside.
    #[inline]
    pub fn bundle(&self) -> bool {
        self.bytes[VERSION_FLAGS] & 0x04 != 0
    }

    /// Whether the trailer covers the first bytes only (P-2.5).
    #[inline]
    pub fn partial(&self) -> bool {
        self.bytes[VERSION_FLAGS] & 0x02 != 0
    }

    /// Reserved.
    #[inline]
    pub fn reserved1(&self) -> bool {
        self.bytes[VERSION_FLAGS] & 0x01 != 0
    }

    /// Traffic class.
    #[inline]
    pub fn class(&self) -> u8 {
        self.bytes[CLASS]
    }

    /// Which key of the session sealed the packet.
    #[inline]
    pub fn key_epoch(&self) -> u16 {
        self.bytes.u16_at::<KEY_EPOCH>()
    }

    /// The session.
    #[inline]
    pub fn id(&self) -> u32 {
        self.bytes.u32_at::<SESSION>()
    }

    /// Sequence number in the session.
    #[inline]
    pub fn sequence(&self) -> u64 {
        self.bytes.u64_at::<SESSION_SEQUENCE>()
    }

    /// The sender's clock.
    #[inline]
    pub fn timestamp(&self) -> u32 {
        self.bytes.u32_at::<TIMESTAMP>()
    }
}

impl SrdmaSession {
    /// The value of the version field.
    pub const VERSION: u8 = 1;

    #[inline]
    fn write(&self, out: &mut [u8; Self::LEN]) {
        let flags = flag(self.sealed, 3) | flag(self.bundle, 2) | flag(self.partial, 1) | flag(self.reserved1, 0);
        out[VERSION_FLAGS] = self.version << 4 | flags;
        out[CLASS] = self.class;
        out.put_u16::<KEY_EPOCH>(self.key_epoch);
        out.put_u32::<SESSION>(self.id);
        out.put_u64::<SESSION_SEQUENCE>(self.sequence);
        out.put_u32::<TIMESTAMP>(self.timestamp);
    }
}

/// Values of the opcode in [`SrdmaTransport`].
#[expect(missing_docs, reason = "the names are those of the protocol's specification")]
pub mod srdma_opcode {
    pub const SEND: u8 = 0x01;
    pub const SEND_IMMEDIATE: u8 = 0x02;
    pub const TAGGED_SEND: u8 = 0x03;
    pub const TAGGED_SEND_IMMEDIATE: u8 = 0x04;
    pub const SEND_INVALIDATE: u8 = 0x05;
    pub const DATAGRAM: u8 = 0x06;
    pub const DATAGRAM_IMMEDIATE: u8 = 0x07;
    pub const READY_TO_SEND: u8 = 0x08;
    pub const READY_TO_SEND_TAGGED: u8 = 0x09;
    pub const DONE: u8 = 0x0a;
    pub const WITHDRAW: u8 = 0x0b;
    pub const WRITE: u8 = 0x10;
    pub const WRITE_IMMEDIATE: u8 = 0x11;
    pub const WRITE_VERIFIED: u8 = 0x12;
    pub const READ_REQUEST: u8 = 0x18;
    pub const READ_RESPONSE: u8 = 0x19;
    pub const ATOMIC: u8 = 0x20;
    pub const ATOMIC_FETCH: u8 = 0x21;
    pub const ATOMIC_COMPARE: u8 = 0x22;
    pub const ATOMIC_RESPONSE: u8 = 0x23;
    pub const FLUSH: u8 = 0x28;
    pub const VERIFY: u8 = 0x29;
    pub const ACKNOWLEDGE: u8 = 0x30;
    pub const CREDIT: u8 = 0x31;
    pub const HELLO: u8 = 0x40;
    pub const COOKIE: u8 = 0x41;
    pub const OPEN: u8 = 0x42;
    pub const ACCEPT: u8 = 0x43;
    pub const REFUSE: u8 = 0x44;
    pub const CLOSE: u8 = 0x45;
    pub const PROBE: u8 = 0x46;
    pub const PROBE_REPLY: u8 = 0x47;
    pub const REKEY: u8 = 0x48;
}

// | bytes | field                                                                                          |
// |-------|------------------------------------------------------------------------------------------------|
// | 0     | opcode                                                                                         |
// | 1     | solicited 1 · acknowledge request 1 · fence 1 · retransmit 1 · first 1 · last 1 · data 1 · reserved 1 |
// | 2–3   | handle                                                                                         |
// | 4–7   | destination endpoint                                                                           |
// | 8–11  | source endpoint                                                                                |
// | 12–15 | epoch                                                                                          |
// | 16–19 | packet sequence number                                                                         |
// | 20–21 | span                                                                                           |
// | 22–23 | after                                                                                          |
// | 24–31 | ticket                                                                                         |
const OPCODE: usize = 0;
const FLAGS: usize = 1;
const HANDLE: usize = 2;
const DESTINATION: usize = 4;
const SOURCE: usize = 8;
const EPOCH: usize = 12;
const PSN: usize = 16;
const SPAN: usize = 20;
const AFTER: usize = 22;
const TICKET: usize = 24;

/// The transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrdmaTransport {
    /// One of [`srdma_opcode`].
    pub opcode: u8,
    /// Whether the receiver is to raise an event.
    pub solicited: bool,
    /// Whether the sender asks for an acknowledgement.
    pub ack_request: bool,
    /// Whether all before it must be done.
    pub fence: bool,
    /// Whether it was sent before.
    pub retransmit: bool,
    /// First packet of its message.
    pub first: bool,
    /// Last packet of its message.
    pub last: bool,
    /// Whether the immediate data of a rendezvous is the user's.
    pub data: bool,
    /// Reserved, 1 bit.
    pub reserved1: bool,
    /// Names the transaction; comes back in what answers.
    pub handle: u16,
    /// Destination endpoint.
    pub destination: u32,
    /// Source endpoint.
    pub source: u32,
    /// Changes when the sender starts anew.
    pub epoch: u32,
    /// Packet sequence number.
    pub psn: u32,
    /// How far the sequence number is from the lowest that matters.
    pub span: u16,
    /// How many messages back the one is that must be matched before.
    pub after: u16,
    /// Which life of the flow.
    pub ticket: u64,
}

fixed_header!(SrdmaTransport, SrdmaTransportView, 32, {
    opcode, solicited, ack_request, fence, retransmit, first, last, data, reserved1, handle, destination, source, epoch,
    psn, span, after, ticket,
});

impl SrdmaTransportView<'_> {
    /// One of [`srdma_opcode`].
    #[inline]
    pub fn opcode(&self) -> u8 {
        self.bytes[OPCODE]
    }

    /// Whether the receiver is to raise an event.
    #[inline]
    pub fn solicited(&self) -> bool {
        self.bytes[FLAGS] & 0x80 != 0
    }

    /// Whether the sender asks for an acknowledgement.
    #[inline]
    pub fn ack_request(&self) -> bool {
        self.bytes[FLAGS] & 0x40 != 0
    }

    /// Whether all before it must be done.
    #[inline]
    pub fn fence(&self) -> bool {
        self.bytes[FLAGS] & 0x20 != 0
    }

    /// Whether it was sent before.
    #[inline]
    pub fn retransmit(&self) -> bool {
        self.bytes[FLAGS] & 0x10 != 0
    }

    /// First packet of its message.
    #[inline]
    pub fn first(&self) -> bool {
        self.bytes[FLAGS] & 0x08 != 0
    }

    /// Last packet of its message.
    #[inline]
    pub fn last(&self) -> bool {
        self.bytes[FLAGS] & 0x04 != 0
    }

    /// Whether the immediate data of a rendezvous is the user's.
    #[inline]
    pub fn data(&self) -> bool {
        self.bytes[FLAGS] & 0x02 != 0
    }

    /// Reserved, 1 bit.
    #[inline]
    pub fn reserved1(&self) -> bool {
        self.bytes[FLAGS] & 0x01 != 0
    }

    /// Names the transaction; comes back in what answers.
    #[inline]
    pub fn handle(&self) -> u16 {
        self.bytes.u16_at::<HANDLE>()
    }

    /// Destination endpoint.
    #[inline]
    pub fn destination(&self) -> u32 {
        self.bytes.u32_at::<DESTINATION>()
    }

    /// Source endpoint.
    #[inline]
    pub fn source(&self) -> u32 {
        self.bytes.u32_at::<SOURCE>()
    }

    /// Changes when the sender starts anew.
    #[inline]
    pub fn epoch(&self) -> u32 {
        self.bytes.u32_at::<EPOCH>()
    }

    /// Packet sequence number.
    #[inline]
    pub fn psn(&self) -> u32 {
        self.bytes.u32_at::<PSN>()
    }

    /// How far the sequence number is from the lowest that matters.
    #[inline]
    pub fn span(&self) -> u16 {
        self.bytes.u16_at::<SPAN>()
    }

    /// How many messages back the one is that must be matched before.
    #[inline]
    pub fn after(&self) -> u16 {
        self.bytes.u16_at::<AFTER>()
    }

    /// Which life of the flow.
    #[inline]
    pub fn ticket(&self) -> u64 {
        self.bytes.u64_at::<TICKET>()
    }
}

impl SrdmaTransport {
    #[inline]
    fn write(&self, out: &mut [u8; Self::LEN]) {
        out[OPCODE] = self.opcode;
        out[FLAGS] = flag(self.solicited, 7)
            | flag(self.ack_request, 6)
            | flag(self.fence, 5)
            | flag(self.retransmit, 4)
            | flag(self.first, 3)
            | flag(self.last, 2)
            | flag(self.data, 1)
            | flag(self.reserved1, 0);
        out.put_u16::<HANDLE>(self.handle);
        out.put_u32::<DESTINATION>(self.destination);
        out.put_u32::<SOURCE>(self.source);
        out.put_u32::<EPOCH>(self.epoch);
        out.put_u32::<PSN>(self.psn);
        out.put_u16::<SPAN>(self.span);
        out.put_u16::<AFTER>(self.after);
        out.put_u64::<TICKET>(self.ticket);
    }
}

whole_byte_header! {
    /// Which message, and which part of it.
    SrdmaMessage, SrdmaMessageView, 12 {
        /// Message number.
        number: u32 = 0,
        /// Where in the message the payload begins.
        offset: u32 = 4,
        /// Bytes of the whole message.
        length: u32 = 8,
    }
}

whole_byte_header! {
    /// Memory at the receiver.
    SrdmaRemote, SrdmaRemoteView, 16 {
        /// Address.
        address: u64 = 0,
        /// Key.
        key: u64 = 8,
    }
}

whole_byte_header! {
    /// The tag to match.
    SrdmaTag, SrdmaTagView, 8 {
        /// The tag.
        tag: u64 = 0,
    }
}

whole_byte_header! {
    /// Immediate data.
    SrdmaImmediate, SrdmaImmediateView, 8 {
        /// The immediate.
        data: u64 = 0,
    }
}

whole_byte_header! {
    /// A key to invalidate.
    SrdmaInvalidate, SrdmaInvalidateView, 8 {
        /// The key.
        key: u64 = 0,
    }
}

whole_byte_header! {
    /// The checksum that the data must have.
    SrdmaVerify, SrdmaVerifyView, 4 {
        /// CRC32c of the data.
        crc32c: u32 = 0,
    }
}

whole_byte_header! {
    /// An atomic operation; its operands are the payload.
    SrdmaAtomic, SrdmaAtomicView, 4 {
        /// What to do.
        operation: u8 = 0,
        /// Type of the operands.
        datatype: u8 = 1,
        /// Number of the operands.
        count: u16 = 2,
    }
}

whole_byte_header! {
    /// A flush.
    SrdmaFlush, SrdmaFlushView, 4 {
        /// How far: visible or durable.
        kind: u8 = 0,
        /// What: the range or the whole region.
        scope: u8 = 1,
        /// Reserved, 16 bits.
        reserved16: u16 = 2,
    }
}

whole_byte_header! {
    /// An acknowledgement.
    SrdmaAck, SrdmaAckView, 24 {
        /// Outcome.
        status: u8 = 0,
        /// Messages that the receiver has room for.
        credits: u8 = 1,
        /// Packets that came with a congestion mark.
        marks: u16 = 2,
        /// The timestamp of what is acknowledged.
        echo: u32 = 4,
        /// How long the receiver held it back.
        hold: u32 = 8,
        /// Highest sequence number received.
        highest: u32 = 12,
        /// Which of those before it were received.
        bitmap: u64 = 16,
    }
}

whole_byte_header! {
    /// Session set-up.
    SrdmaSetup, SrdmaSetupView, 24 {
        /// [`SrdmaSetup::MAGIC`].
        magic: u64 = 0,
        /// The session group.
        group: u64 = 8,
        /// The sender's number for the session.
        id: u32 = 16,
        /// Cipher suite.
        suite: u16 = 20,
        /// Sessions wanted.
        sessions: u8 = 22,
        /// Why it was refused.
        reason: u8 = 23,
    }
}

impl SrdmaSetup {
    /// What `magic` must be.
    pub const MAGIC: u64 = u64::from_be_bytes(*b"SRDMA/W1");
}

const COOKIE: usize = 0;

/// What a client must return before the server keeps any state for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrdmaCookie {
    /// The cookie, 16 bytes.
    pub cookie: [u8; 16],
}

fixed_header!(SrdmaCookie, SrdmaCookieView, 16, { cookie });

impl SrdmaCookieView<'_> {
    /// The cookie, 16 bytes.
    #[inline]
    pub fn cookie(&self) -> [u8; 16] {
        self.bytes.bytes_at::<COOKIE, 16>()
    }
}

impl SrdmaCookie {
    #[inline]
    fn write(&self, out: &mut [u8; Self::LEN]) {
        out.put_bytes::<COOKIE, 16>(self.cookie);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    round_trip!(
        session,
        SrdmaSession {
            version: bits!(u8, 4),
            sealed: any::<bool>(),
            bundle: any::<bool>(),
            partial: any::<bool>(),
            reserved1: any::<bool>(),
            class: any::<u8>(),
            key_epoch: any::<u16>(),
            id: any::<u32>(),
            sequence: any::<u64>(),
            timestamp: any::<u32>(),
        }
    );
    round_trip!(
        transport,
        SrdmaTransport {
            opcode: any::<u8>(),
            solicited: any::<bool>(),
            ack_request: any::<bool>(),
            fence: any::<bool>(),
            retransmit: any::<bool>(),
            first: any::<bool>(),
            last: any::<bool>(),
            data: any::<bool>(),
            reserved1: any::<bool>(),
            handle: any::<u16>(),
            destination: any::<u32>(),
            source: any::<u32>(),
            epoch: any::<u32>(),
            psn: any::<u32>(),
            span: any::<u16>(),
            after: any::<u16>(),
            ticket: any::<u64>(),
        }
    );
    round_trip!(message, SrdmaMessage { number: any::<u32>(), offset: any::<u32>(), length: any::<u32>() });
    round_trip!(remote, SrdmaRemote { address: any::<u64>(), key: any::<u64>() });
    round_trip!(tag, SrdmaTag { tag: any::<u64>() });
    round_trip!(immediate, SrdmaImmediate { data: any::<u64>() });
    round_trip!(invalidate, SrdmaInvalidate { key: any::<u64>() });
    round_trip!(verify, SrdmaVerify { crc32c: any::<u32>() });
    round_trip!(atomic, SrdmaAtomic { operation: any::<u8>(), datatype: any::<u8>(), count: any::<u16>() });
    round_trip!(flush, SrdmaFlush { kind: any::<u8>(), scope: any::<u8>(), reserved16: any::<u16>() });
    round_trip!(
        ack,
        SrdmaAck {
            status: any::<u8>(),
            credits: any::<u8>(),
            marks: any::<u16>(),
            echo: any::<u32>(),
            hold: any::<u32>(),
            highest: any::<u32>(),
            bitmap: any::<u64>(),
        }
    );
    round_trip!(
        setup,
        SrdmaSetup {
            magic: any::<u64>(),
            group: any::<u64>(),
            id: any::<u32>(),
            suite: any::<u16>(),
            sessions: any::<u8>(),
            reason: any::<u8>(),
        }
    );
    round_trip!(cookie, SrdmaCookie { cookie: any::<[u8; 16]>() });

    #[test]
    fn session_flags_by_hand() {
        let mut bytes = [0; SrdmaSession::LEN];
        for (first, [sealed, bundle, partial, reserved1]) in [
            (0x10, [false; 4]),
            (0x14, [false, true, false, false]),
            (0x12, [false, false, true, false]),
            (0x18, [true, false, false, false]),
            (0x1f, [true; 4]),
        ] {
            bytes[0] = first;
            let header = SrdmaSession::parse(&bytes).unwrap();
            let said = [header.sealed, header.bundle, header.partial, header.reserved1];
            assert_eq!((header.version, said), (1, [sealed, bundle, partial, reserved1]));
        }
    }

    #[test]
    fn transport_flags_by_hand() {
        let mut bytes = [0; SrdmaTransport::LEN];
        bytes[0] = srdma_opcode::WRITE;
        bytes[1] = 0b1010_0101;
        let header = SrdmaTransport::parse(&bytes).unwrap();
        assert!(header.solicited && header.fence && header.last);
        assert!(!header.ack_request && !header.retransmit && !header.first);
        assert!(!header.data && header.reserved1);
    }
}
