//! A straight way for the packets that most traffic is made of: SEND, TAGGED SEND and ACKNOWLEDGE, and for the session
//! header in front of all.
//!
//! The tables say what a packet is. This is what they say about these three, with every place a constant, because between
//! a message's post and its completion at the peer the tables are walked four times. Whatever is not exactly as expected
//! here goes to the tables, and the tests compare both ways.

use weft_wire::command::{Command, Flags, Kind, Slot};
use weft_wire::table::{Decoded, OpcodeId, ProtocolId, Tables};

use super::{Reliability, SESSION_BYTES, SessionHeader, TRAILER_BYTES, TRANSPORT_BYTES};

/// First byte of the session header: version 1; sealed; a bundle; a trailer over the first bytes alone.
const VERSION: u8 = 0x10;
const SEALED: u8 = 0x08;
const BUNDLE: u8 = 0x04;
const PARTIAL: u8 = 0x02;

const OPCODE_SEND: u8 = 0x01;
const OPCODE_TAGGED_SEND: u8 = 0x03;
const OPCODE_ACKNOWLEDGE: u8 = 0x30;

const OPCODE_AT: usize = SESSION_BYTES;
const FLAGS_AT: usize = SESSION_BYTES + 1;
const HANDLE_AT: usize = SESSION_BYTES + 2;
const DESTINATION_AT: usize = SESSION_BYTES + 4;
const SOURCE_AT: usize = SESSION_BYTES + 8;
const EPOCH_AT: usize = SESSION_BYTES + 12;
const PSN_AT: usize = SESSION_BYTES + 16;
const SPAN_AT: usize = SESSION_BYTES + 20;
const AFTER_AT: usize = SESSION_BYTES + 22;
const TICKET_AT: usize = SESSION_BYTES + 24;
/// What follows the transport header.
const BODY_AT: usize = SESSION_BYTES + TRANSPORT_BYTES;

const SEND_BYTES: usize = BODY_AT + 12;
const TAGGED_SEND_BYTES: usize = BODY_AT + 20;
pub(super) const ACKNOWLEDGE_BYTES: usize = BODY_AT + 24;

/// The flags' byte: the bit that stands for each flag of a command.
const FLAG_BITS: [(Flags, u8); 6] = [
    (Flags::SOLICITED, 0x80),
    (Flags::ACK_REQUEST, 0x40),
    (Flags::FENCE, 0x20),
    (Flags::RETRANSMIT, 0x10),
    (Flags::FIRST, 0x08),
    (Flags::LAST, 0x04),
];
/// The bits of that byte that are no command's: user data, and reserved.
const DATA: u8 = 0x02;
const RESERVED: u8 = 0x01;

/// Every flag above.
const FLAGS: u32 = {
    let (mut all, mut at) = (0, 0);
    while at < FLAG_BITS.len() {
        #[expect(clippy::indexing_slicing, reason = "evaluated when it is compiled")]
        let (flag, _) = FLAG_BITS[at];
        all |= flag.0;
        at += 1;
    }
    all
};

/// What the tables call these packets.
#[derive(Clone, Copy)]
pub(super) struct Straight {
    protocol: ProtocolId,
    send: OpcodeId,
    tagged_send: OpcodeId,
    acknowledge: OpcodeId,
}

impl Straight {
    /// `None`: the tables lack one of them.
    pub(super) fn new(tables: &Tables, protocol: ProtocolId) -> Option<Straight> {
        let opcode = |kind, flags| tables.opcode_for(protocol, &Command::new(kind, flags));
        Some(Straight {
            protocol,
            send: opcode(Kind::Send, Flags(0))?,
            tagged_send: opcode(Kind::TaggedSend, Flags(0))?,
            acknowledge: opcode(Kind::Acknowledge, Flags::RESPONSE)?,
        })
    }

    /// As [`super::Codec::session`].
    #[inline]
    pub(super) fn session(datagram: &[u8]) -> Option<SessionHeader> {
        let header: &[u8; SESSION_BYTES] = datagram.first_chunk()?;
        let first = header[0];
        if first & (0xf0 | SEALED) != VERSION || datagram.len() < SESSION_BYTES + TRAILER_BYTES {
            return None;
        }
        Some(SessionHeader {
            class: header[1],
            id: u32_at::<_, 4>(header),
            sequence: u64_at::<_, 8>(header),
            timestamp: u32_at::<_, 16>(header),
            bundle: first & BUNDLE != 0,
            partial: first & PARTIAL != 0,
        })
    }

    /// As [`super::Codec::write_session`], into a header of zeros or an earlier session's.
    #[inline]
    pub(super) fn write_session(header: &mut [u8; SESSION_BYTES], session: &SessionHeader) {
        header[0] = VERSION | if session.bundle { BUNDLE } else { 0 } | if session.partial { PARTIAL } else { 0 };
        header[1] = session.class;
        put::<_, 4, 4>(header, session.id.to_be_bytes());
        put::<_, 8, 8>(header, session.sequence.to_be_bytes());
        put::<_, 4, 16>(header, session.timestamp.to_be_bytes());
    }

    /// Whether the opcode says so.
    #[inline]
    pub(super) fn is_acknowledgement(packet: &[u8]) -> bool {
        packet.get(OPCODE_AT) == Some(&OPCODE_ACKNOWLEDGE)
    }

    /// As [`super::Codec::encode`]; `None`: the tables have to do it.
    #[inline]
    pub(super) fn encode(self, command: &Command, reliability: &Reliability, out: &mut [u8]) -> Option<usize> {
        let flags = command.flags();
        let fixed = flags.0 & !FLAGS;
        // A slot that is too wide for its field is the tables' business, and so is a transaction's own name.
        let slot = |slot| command.slot(slot);
        let wide = slot(Slot::Queue) | slot(Slot::Source) | slot(Slot::Sequence) | slot(Slot::Argument3);
        if (wide | slot(Slot::Offset)) >> 32 != 0 || slot(Slot::Transaction) != 0 {
            return None;
        }
        match command.kind() {
            Kind::Send if fixed == 0 => {
                let packet: &mut [u8; SEND_BYTES] = room(out)?;
                put_transport(packet, OPCODE_SEND, command, reliability);
                put_message(packet, command)?;
                Some(SEND_BYTES)
            }
            Kind::TaggedSend if fixed == 0 => {
                let packet: &mut [u8; TAGGED_SEND_BYTES] = room(out)?;
                put_transport(packet, OPCODE_TAGGED_SEND, command, reliability);
                put_message(packet, command)?;
                put::<_, 8, { BODY_AT + 12 }>(packet, slot(Slot::Argument0).to_be_bytes());
                Some(TAGGED_SEND_BYTES)
            }
            Kind::Acknowledge if fixed == Flags::RESPONSE.0 => {
                let packet: &mut [u8; ACKNOWLEDGE_BYTES] = room(out)?;
                let (status, credits) = (slot(Slot::Status), slot(Slot::Length));
                let (marks, echo, hold) = (slot(Slot::Immediate), slot(Slot::Argument1), slot(Slot::Argument2));
                if (status | credits) >> 8 | marks >> 16 | (echo | hold) >> 32 != 0 {
                    return None;
                }
                put_transport(packet, OPCODE_ACKNOWLEDGE, command, reliability);
                put::<_, 2, BODY_AT>(packet, [status as u8, credits as u8]);
                put::<_, 2, { BODY_AT + 2 }>(packet, (marks as u16).to_be_bytes());
                put::<_, 4, { BODY_AT + 4 }>(packet, (echo as u32).to_be_bytes());
                put::<_, 4, { BODY_AT + 8 }>(packet, (hold as u32).to_be_bytes());
                put::<_, 4, { BODY_AT + 12 }>(packet, (slot(Slot::Offset) as u32).to_be_bytes());
                put::<_, 8, { BODY_AT + 16 }>(packet, slot(Slot::Argument0).to_be_bytes());
                Some(ACKNOWLEDGE_BYTES)
            }
            _ => None,
        }
    }

    /// As [`super::Codec::decode`]; `None`: the tables have to do it.
    #[inline]
    pub(super) fn decode(self, packet: &[u8], decoded: &mut Decoded) -> Option<Reliability> {
        let header: &[u8; BODY_AT] = packet.first_chunk()?;
        let bits = header[FLAGS_AT];
        if header[0] != VERSION || bits & RESERVED != 0 {
            return None;
        }
        let (opcode, length) = match header[OPCODE_AT] {
            OPCODE_SEND => {
                let header: &[u8; SEND_BYTES] = packet.first_chunk()?;
                let command = &mut decoded.command;
                *command = common(header, Kind::Send, 0);
                message(header, command);
                command.set(Slot::Transaction, command.source() << 32 | command.message());
                (self.send, SEND_BYTES)
            }
            OPCODE_TAGGED_SEND => {
                let header: &[u8; TAGGED_SEND_BYTES] = packet.first_chunk()?;
                let command = &mut decoded.command;
                *command = common(header, Kind::TaggedSend, 0);
                message(header, command);
                let tag = u64_at::<_, { BODY_AT + 12 }>(header);
                command.set(Slot::Transaction, tag);
                command.set(Slot::Argument0, tag);
                (self.tagged_send, TAGGED_SEND_BYTES)
            }
            OPCODE_ACKNOWLEDGE => {
                let header: &[u8; ACKNOWLEDGE_BYTES] = packet.first_chunk()?;
                let command = &mut decoded.command;
                *command = common(header, Kind::Acknowledge, Flags::RESPONSE.0);
                command.set(Slot::Transaction, u64::from(u16_at::<_, HANDLE_AT>(header)));
                command.set(Slot::Status, u64::from(header[BODY_AT]));
                command.set(Slot::Length, u64::from(header[BODY_AT + 1]));
                command.set(Slot::Immediate, u64::from(u16_at::<_, { BODY_AT + 2 }>(header)));
                command.set(Slot::Argument1, u64::from(u32_at::<_, { BODY_AT + 4 }>(header)));
                command.set(Slot::Argument2, u64::from(u32_at::<_, { BODY_AT + 8 }>(header)));
                command.set(Slot::Offset, u64::from(u32_at::<_, { BODY_AT + 12 }>(header)));
                command.set(Slot::Argument0, u64_at::<_, { BODY_AT + 16 }>(header));
                (self.acknowledge, ACKNOWLEDGE_BYTES)
            }
            _ => return None,
        };
        let payload = packet.len().checked_sub(length + TRAILER_BYTES)?;
        decoded.protocol = self.protocol;
        decoded.opcode = opcode;
        decoded.header_length = length as u16;
        decoded.trim = TRAILER_BYTES as u16;
        decoded.payload_length = u32::try_from(payload).ok()?;
        Some(Reliability {
            handle: u16_at::<_, HANDLE_AT>(header),
            span: u16_at::<_, SPAN_AT>(header),
            after: u16_at::<_, AFTER_AT>(header),
            ticket: u64_at::<_, TICKET_AT>(header),
            data: bits & DATA != 0,
        })
    }
}

/// Not a bundle any more: the header of an entry.
#[inline]
pub(super) fn unmark_bundle(header: &mut [u8; SESSION_BYTES]) {
    header[0] &= !BUNDLE;
}

/// Room for the headers, the trailer behind them included, as the tables want it.
#[inline]
fn room<const N: usize>(out: &mut [u8]) -> Option<&mut [u8; N]> {
    if out.len() < N + TRAILER_BYTES {
        return None;
    }
    out.first_chunk_mut()
}

#[inline]
fn put_transport<const N: usize>(packet: &mut [u8; N], opcode: u8, command: &Command, reliability: &Reliability) {
    let flags = command.flags().0;
    let mut bits = if reliability.data { DATA } else { 0 };
    for (flag, bit) in FLAG_BITS {
        if flags & flag.0 != 0 {
            bits |= bit;
        }
    }
    put::<N, SESSION_BYTES, 0>(packet, EMPTY_SESSION);
    put::<N, 2, OPCODE_AT>(packet, [opcode, bits]);
    put::<N, 2, HANDLE_AT>(packet, reliability.handle.to_be_bytes());
    put::<N, 4, DESTINATION_AT>(packet, (command.queue() as u32).to_be_bytes());
    put::<N, 4, SOURCE_AT>(packet, (command.source() as u32).to_be_bytes());
    put::<N, 4, EPOCH_AT>(packet, (command.slot(Slot::Argument3) as u32).to_be_bytes());
    put::<N, 4, PSN_AT>(packet, (command.sequence() as u32).to_be_bytes());
    put::<N, 2, SPAN_AT>(packet, reliability.span.to_be_bytes());
    put::<N, 2, AFTER_AT>(packet, reliability.after.to_be_bytes());
    put::<N, 8, TICKET_AT>(packet, reliability.ticket.to_be_bytes());
}

/// A session header to be filled in.
const EMPTY_SESSION: [u8; SESSION_BYTES] = {
    let mut header = [0; SESSION_BYTES];
    header[0] = VERSION;
    header
};

#[inline]
fn put_message<const N: usize>(packet: &mut [u8; N], command: &Command) -> Option<()> {
    let (number, length) = (command.message(), command.length());
    if (number | length) >> 32 != 0 {
        return None;
    }
    put::<N, 4, BODY_AT>(packet, (number as u32).to_be_bytes());
    put::<N, 4, { BODY_AT + 4 }>(packet, (command.offset() as u32).to_be_bytes());
    put::<N, 4, { BODY_AT + 8 }>(packet, (length as u32).to_be_bytes());
    Some(())
}

/// The slots that the transport header fills.
#[inline]
fn common<const N: usize>(header: &[u8; N], kind: Kind, fixed: u32) -> Command {
    let [bits] = at::<N, 1, FLAGS_AT>(header);
    let mut flags = fixed;
    for (flag, bit) in FLAG_BITS {
        if bits & bit != 0 {
            flags |= flag.0;
        }
    }
    let mut command = Command::new(kind, Flags(flags));
    command.set(Slot::Queue, u64::from(u32_at::<N, DESTINATION_AT>(header)));
    command.set(Slot::Source, u64::from(u32_at::<N, SOURCE_AT>(header)));
    command.set(Slot::Argument3, u64::from(u32_at::<N, EPOCH_AT>(header)));
    command.set(Slot::Sequence, u64::from(u32_at::<N, PSN_AT>(header)));
    command
}

/// The slots that the message header fills.
#[inline]
fn message<const N: usize>(header: &[u8; N], command: &mut Command) {
    command.set(Slot::Message, u64::from(u32_at::<N, BODY_AT>(header)));
    command.set(Slot::Offset, u64::from(u32_at::<N, { BODY_AT + 4 }>(header)));
    command.set(Slot::Length, u64::from(u32_at::<N, { BODY_AT + 8 }>(header)));
}

/// `W` bytes at a place inside of `N`, which is known when this is compiled.
#[inline(always)]
fn put<const N: usize, const W: usize, const AT: usize>(bytes: &mut [u8; N], value: [u8; W]) {
    const { assert!(AT + W <= N) };
    if let Some(place) = bytes.get_mut(AT..AT + W) {
        place.copy_from_slice(&value);
    }
}

#[inline(always)]
fn at<const N: usize, const W: usize, const AT: usize>(bytes: &[u8; N]) -> [u8; W] {
    const { assert!(AT + W <= N) };
    bytes.get(AT..AT + W).and_then(|bytes| bytes.first_chunk()).copied().unwrap_or([0; W])
}

#[inline(always)]
fn u16_at<const N: usize, const AT: usize>(bytes: &[u8; N]) -> u16 {
    u16::from_be_bytes(at::<N, 2, AT>(bytes))
}

#[inline(always)]
fn u32_at<const N: usize, const AT: usize>(bytes: &[u8; N]) -> u32 {
    u32::from_be_bytes(at::<N, 4, AT>(bytes))
}

#[inline(always)]
fn u64_at<const N: usize, const AT: usize>(bytes: &[u8; N]) -> u64 {
    u64::from_be_bytes(at::<N, 8, AT>(bytes))
}

#[cfg(test)]
mod tests {
    use super::super::Codec;
    use super::*;
    use proptest::prelude::*;
    use std::sync::OnceLock;
    use std::vec::Vec;

    /// Codecs with and without this module.
    fn codecs() -> &'static [Codec; 2] {
        static CODECS: OnceLock<[Codec; 2]> = OnceLock::new();
        CODECS.get_or_init(|| [Codec::builtin().unwrap(), Codec::new(Tables::builtin().unwrap()).unwrap()])
    }

    fn command() -> impl Strategy<Value = Command> {
        let kinds = prop_oneof![Just(Kind::Send), Just(Kind::TaggedSend), Just(Kind::Acknowledge), Just(Kind::Write)];
        // Narrow values mostly: others are refused.
        let value = prop_oneof![4 => 0u64..256, 4 => any::<u32>().prop_map(u64::from), 1 => any::<u64>()];
        let flags = prop_oneof![3 => Just(0), 1 => Just(Flags::IMMEDIATE.0), 1 => Just(Flags::REJECT.0)];
        (kinds, any::<u32>(), flags, prop::array::uniform16(value)).prop_map(|(kind, flags, other, slots)| {
            let response = if kind == Kind::Acknowledge { Flags::RESPONSE.0 } else { 0 };
            let mut command = Command::new(kind, Flags(flags & FLAGS | other | response));
            command.slots.iter_mut().zip(slots).skip(1).for_each(|(slot, value)| *slot = value);
            command.with(Slot::Transaction, 0)
        })
    }

    fn reliability() -> impl Strategy<Value = Reliability> {
        (any::<u16>(), any::<u16>(), any::<u16>(), any::<u64>(), any::<bool>())
            .prop_map(|(handle, span, after, ticket, data)| Reliability { handle, span, after, ticket, data })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1024))]

        #[test]
        fn encodes_as_the_tables(command in command(), reliability in reliability(), room in 60usize..200) {
            let [straight, by_tables] = codecs();
            let (mut left, mut right) = ([0xa5; 200], [0xa5; 200]);
            let length = straight.encode(&command, &reliability, &mut left[..room]);
            prop_assert_eq!(length, by_tables.encode(&command, &reliability, &mut right[..room]));
            let length = length.unwrap_or(0);
            prop_assert_eq!(&left[..length], &right[..length]);
        }

        #[test]
        fn decodes_as_the_tables(
            opcode in prop_oneof![Just(OPCODE_SEND), Just(OPCODE_TAGGED_SEND), Just(OPCODE_ACKNOWLEDGE), any::<u8>()],
            first in prop_oneof![8 => Just(VERSION), 1 => any::<u8>()],
            mut bytes in prop::collection::vec(any::<u8>(), 0..160),
        ) {
            let [straight, by_tables] = codecs();
            bytes.iter_mut().take(1).for_each(|byte| *byte = first);
            bytes.iter_mut().skip(OPCODE_AT).take(1).for_each(|byte| *byte = opcode);
            let (mut left, mut right) = (Decoded::default(), Decoded::default());
            let reliability = straight.decode(&bytes, &mut left);
            prop_assert_eq!(reliability, by_tables.decode(&bytes, &mut right));
            if reliability.is_some() {
                prop_assert_eq!(left, right);
            }
            prop_assert_eq!(straight.session(&bytes), by_tables.session(&bytes));
        }

        #[test]
        fn writes_sessions_as_the_tables(class in any::<u8>(), id in any::<u32>(), sequence in any::<u64>(),
                                         timestamp in any::<u32>(), bundle in any::<bool>(),
                                         partial in any::<bool>()) {
            let [straight, by_tables] = codecs();
            let session = SessionHeader { class, id, sequence, timestamp, bundle, partial };
            let (mut left, mut right) = ([0; SESSION_BYTES], [0; SESSION_BYTES]);
            straight.write_session(&mut left, &session);
            by_tables.write_session(&mut right, &session);
            prop_assert_eq!(left, right);
            straight.unmark_bundle(&mut left);
            by_tables.unmark_bundle(&mut right);
            prop_assert_eq!(left, right);
        }
    }

    /// The everyday packets do take the short way: otherwise the comparisons above would compare the tables with themselves.
    #[test]
    fn takes_the_everyday_packets() {
        let tables = Tables::builtin().unwrap();
        let straight = Straight::new(&tables, tables.find("srdma").unwrap()).unwrap();
        for (kind, flags) in
            [(Kind::Send, Flags(0)), (Kind::TaggedSend, Flags(0)), (Kind::Acknowledge, Flags::RESPONSE)]
        {
            let command = Command::new(kind, flags | Flags::FIRST | Flags::LAST | Flags::ACK_REQUEST);
            let mut packet = Vec::from([0; 160]);
            let length = straight.encode(&command, &Reliability::default(), &mut packet).unwrap();
            packet.truncate(length + TRAILER_BYTES);
            assert!(straight.decode(&packet, &mut Decoded::default()).is_some());
        }
    }
}
