//! Packets as the engine sees them: what the SRDMA tables make of bytes, and bytes of what it wants to send.
//!
//! The generic command carries what a packet asks for. The fields of the session and of reliability, which no command
//! carries, are read and written in place through handles of the same tables.
//!
//! A datagram is one packet, or a *bundle*: one session header, then entries, each a length of two bytes and a packet without
//! session header and trailer, then one trailer for all (P-2.9).

mod straight;

use core::fmt;

use weft_wire::command::{Command, Flags, Kind, Slot};
use weft_wire::table::{DecodeError, Decoded, DefinitionError, FieldHandle, ProtocolId, Tables};

use straight::Straight;

/// Bytes of the session header.
pub const SESSION_BYTES: usize = 20;
/// Bytes of the transport header.
pub const TRANSPORT_BYTES: usize = 32;
/// Bytes of the CRC.
pub const TRAILER_BYTES: usize = 4;
/// Bytes that the CRC of a partial datagram covers (P-2.5).
pub const PARTIAL_COVERED_BYTES: usize = 256;
/// Bytes in front of each entry of a bundle.
pub const ENTRY_LENGTH_BYTES: usize = 2;
/// Bytes of an acknowledgement with session header and trailer.
pub(crate) const ACKNOWLEDGE_BYTES: usize = straight::ACKNOWLEDGE_BYTES + TRAILER_BYTES;
/// Room for all headers and the trailer of any packet.
pub const HEADERS_MAX_BYTES: usize = 160;
const _: () = assert!(HEADERS_MAX_BYTES <= PARTIAL_COVERED_BYTES, "no header goes without a checksum");

/// `after` of a message that is no member of its stream (P-6.4).
pub const UNORDERED: u16 = u16::MAX;

/// Status of an answer (P-4.9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Status {
    /// It was executed, or will be, for certain.
    Accepted = 0,
    /// Something was missing: issue the packet again under a new psn.
    NotReady = 1,
    /// Beyond the target's window.
    OutOfWindow = 2,
    /// The ticket is not known: here is another.
    Synchronise = 3,
    /// The ticket is of an earlier start of the target: here is another.
    Restarted = 4,
    /// No room for another peer now.
    Busy = 5,
    /// Being executed.
    InProgress = 6,
    /// Key, range or right.
    AccessRefused = 7,
    /// Lengths do not fit.
    LengthError = 8,
    /// No such endpoint.
    NoSuchEndpoint = 9,
    /// Cannot do that.
    NotSupported = 10,
    /// The packet makes no sense.
    ProtocolError = 11,
    /// The bytes have another checksum.
    ChecksumMismatch = 12,
    /// The target's user gave up.
    Aborted = 13,
    /// Memory or device failed.
    OperationFailed = 14,
}

impl Status {
    /// The status with this code; unknown ones are protocol errors (P-4.9).
    #[must_use]
    pub fn from_code(code: u64) -> Status {
        match code {
            0 => Status::Accepted,
            1 => Status::NotReady,
            2 => Status::OutOfWindow,
            3 => Status::Synchronise,
            4 => Status::Restarted,
            5 => Status::Busy,
            6 => Status::InProgress,
            7 => Status::AccessRefused,
            8 => Status::LengthError,
            9 => Status::NoSuchEndpoint,
            10 => Status::NotSupported,
            12 => Status::ChecksumMismatch,
            13 => Status::Aborted,
            14 => Status::OperationFailed,
            _ => Status::ProtocolError,
        }
    }
}

/// The fields of reliability, which no command carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reliability {
    /// Retransmit entry.
    pub handle: u16,
    /// Psn minus base; in answers, highest + 1 minus floor.
    pub span: u16,
    /// Message number minus that of the message to match before.
    pub after: u16,
    /// The flow's life.
    pub ticket: u64,
    /// READY TO SEND: the immediate header holds user data.
    pub data: bool,
}

/// The fields of the session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionHeader {
    /// Message class.
    pub class: u8,
    /// The session.
    pub id: u32,
    /// Of the packet in its session.
    pub sequence: u64,
    /// The sender's clock in µs.
    pub timestamp: u32,
    /// Several packets.
    pub bundle: bool,
    /// The trailer covers the first [`PARTIAL_COVERED_BYTES`] alone.
    pub partial: bool,
}

struct Handles {
    version: FieldHandle,
    sealed: FieldHandle,
    bundle: FieldHandle,
    partial: FieldHandle,
    class: FieldHandle,
    id: FieldHandle,
    sequence: FieldHandle,
    timestamp: FieldHandle,
    handle: FieldHandle,
    span: FieldHandle,
    after: FieldHandle,
    ticket: FieldHandle,
    data: FieldHandle,
    opcode: FieldHandle,
    destination: FieldHandle,
    source: FieldHandle,
    epoch: FieldHandle,
    psn: FieldHandle,
}

/// The opcodes of requests, those to come too (P-3.1).
const REQUESTS: core::ops::RangeInclusive<u8> = 0x01..=0x2f;

/// SRDMA's tables, ready for use. One serves any number of engines.
pub struct Codec {
    tables: Tables,
    srdma: ProtocolId,
    handles: Handles,
    /// The short way for Weft's own definition, none for others.
    straight: Option<Straight>,
}

impl fmt::Debug for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Codec").finish_non_exhaustive()
    }
}

/// The tables cannot serve as SRDMA.
#[derive(Debug)]
pub enum CodecError {
    /// A definition is wrong.
    Definition(DefinitionError),
    /// The definition of SRDMA lacks this field, or there is no such definition.
    Missing(&'static str),
}

impl fmt::Display for CodecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CodecError::Definition(error) => write!(f, "{error}"),
            CodecError::Missing(what) => write!(f, "the definition of SRDMA has no {what}"),
        }
    }
}

impl core::error::Error for CodecError {}

impl Codec {
    /// Weft's own definition.
    pub fn builtin() -> Result<Codec, CodecError> {
        let mut codec = Codec::new(Tables::builtin().map_err(CodecError::Definition)?)?;
        codec.straight = Straight::new(&codec.tables, codec.srdma);
        Ok(codec)
    }

    /// The definition named `srdma` in these tables.
    pub fn new(tables: Tables) -> Result<Codec, CodecError> {
        let srdma = tables.find("srdma").ok_or(CodecError::Missing("protocol `srdma`"))?;
        let find = |name: &'static str| tables.handle(srdma, name).ok_or(CodecError::Missing(name));
        let handles = Handles {
            version: find("session.version")?,
            sealed: find("session.sealed")?,
            bundle: find("session.bundle")?,
            partial: find("session.partial")?,
            class: find("session.class")?,
            id: find("session.id")?,
            sequence: find("session.sequence")?,
            timestamp: find("session.timestamp")?,
            handle: find("transport.handle")?,
            span: find("transport.span")?,
            after: find("transport.after")?,
            ticket: find("transport.ticket")?,
            data: find("transport.data")?,
            opcode: find("transport.opcode")?,
            destination: find("transport.destination")?,
            source: find("transport.source")?,
            epoch: find("transport.epoch")?,
            psn: find("transport.psn")?,
        };
        Ok(Codec { tables, srdma, handles, straight: None })
    }

    /// The tables.
    #[must_use]
    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// Reads the session header; `None` when there is none, of this version, unsealed.
    #[inline]
    #[must_use]
    pub fn session(&self, datagram: &[u8]) -> Option<SessionHeader> {
        if self.straight.is_some() {
            return Straight::session(datagram);
        }
        if datagram.len() < SESSION_BYTES + TRAILER_BYTES {
            return None;
        }
        let handles = &self.handles;
        if handles.version.read(datagram) != 1 || handles.sealed.read(datagram) != 0 {
            return None;
        }
        Some(SessionHeader {
            class: handles.class.read(datagram) as u8,
            id: handles.id.read(datagram) as u32,
            sequence: handles.sequence.read(datagram),
            timestamp: handles.timestamp.read(datagram) as u32,
            bundle: handles.bundle.read(datagram) != 0,
            partial: handles.partial.read(datagram) != 0,
        })
    }

    /// Writes the session header over the one that the tables made.
    #[inline]
    pub fn write_session(&self, datagram: &mut [u8], session: &SessionHeader) {
        if self.straight.is_some()
            && let Some(header) = datagram.first_chunk_mut()
        {
            return Straight::write_session(header, session);
        }
        let handles = &self.handles;
        if let Some(first) = datagram.first_mut() {
            *first = 0;
        }
        handles.version.write(datagram, 1);
        handles.class.write(datagram, u64::from(session.class));
        handles.id.write(datagram, u64::from(session.id));
        handles.sequence.write(datagram, session.sequence);
        handles.timestamp.write(datagram, u64::from(session.timestamp));
        handles.bundle.write(datagram, u64::from(session.bundle));
        handles.partial.write(datagram, u64::from(session.partial));
    }

    /// Clears the mark of a bundle: its first bytes become the session header of an entry.
    pub(crate) fn unmark_bundle(&self, header: &mut [u8; SESSION_BYTES]) {
        if self.straight.is_some() {
            return straight::unmark_bundle(header);
        }
        self.handles.bundle.write(header, 0);
    }

    /// Whether a packet is an acknowledgement and nothing else, as far as that can be seen at once.
    #[inline]
    pub(crate) fn is_acknowledgement(&self, packet: &[u8]) -> bool {
        self.straight.is_some() && packet.len() == ACKNOWLEDGE_BYTES && Straight::is_acknowledgement(packet)
    }

    /// Decodes a packet whose trailer was verified.
    #[inline]
    pub fn decode(&self, packet: &[u8], decoded: &mut Decoded) -> Option<Reliability> {
        match self.straight.and_then(|straight| straight.decode(packet, decoded)) {
            None => self.decode_by_tables(packet, decoded),
            reliability => reliability,
        }
    }

    #[inline(never)]
    fn decode_by_tables(&self, packet: &[u8], decoded: &mut Decoded) -> Option<Reliability> {
        self.tables.decode(self.srdma, packet, decoded).ok()?;
        Some(self.reliability(packet))
    }

    fn reliability(&self, packet: &[u8]) -> Reliability {
        let handles = &self.handles;
        Reliability {
            handle: handles.handle.read(packet) as u16,
            span: handles.span.read(packet) as u16,
            after: handles.after.read(packet) as u16,
            ticket: handles.ticket.read(packet),
            data: handles.data.read(packet) != 0,
        }
    }

    /// What can be told of a request whose opcode the tables do not know (P-3.1); `None` when it is no such packet.
    #[cold]
    pub(crate) fn unknown_request(&self, packet: &[u8]) -> Option<(Command, Reliability)> {
        let opcode = self.opcode(packet).filter(|opcode| REQUESTS.contains(opcode))?;
        let unknown = self.tables.decode(self.srdma, packet, &mut Decoded::default());
        if unknown != Err(DecodeError::UnknownOpcode(u16::from(opcode))) {
            return None;
        }
        let field = |handle: &FieldHandle| handle.read(packet) as u32;
        let handles = &self.handles;
        let (destination, source) = (field(&handles.destination), field(&handles.source));
        let command = whole(Kind::Control, Flags(0));
        let command = between(command, destination, source, field(&handles.epoch), field(&handles.psn));
        Some((command, self.reliability(packet)))
    }

    /// The opcode's byte of a packet, for those that the tables do not know.
    #[must_use]
    pub fn opcode(&self, packet: &[u8]) -> Option<u8> {
        (packet.len() >= SESSION_BYTES + TRANSPORT_BYTES).then(|| self.handles.opcode.read(packet) as u8)
    }

    /// Writes all headers of a packet, the session header to be filled in. Returns their length.
    #[inline]
    pub fn encode(&self, command: &Command, reliability: &Reliability, out: &mut [u8]) -> Option<usize> {
        match self.straight.and_then(|straight| straight.encode(command, reliability, out)) {
            None => self.encode_by_tables(command, reliability, out),
            length => length,
        }
    }

    #[inline(never)]
    fn encode_by_tables(&self, command: &Command, reliability: &Reliability, out: &mut [u8]) -> Option<usize> {
        let (_, length) = self.tables.encode_open(self.srdma, command, &[], out).ok()?;
        let handles = &self.handles;
        handles.handle.write(out, u64::from(reliability.handle));
        handles.span.write(out, u64::from(reliability.span));
        handles.after.write(out, u64::from(reliability.after));
        handles.ticket.write(out, reliability.ticket);
        if reliability.data {
            handles.data.write(out, 1);
        }
        length.checked_sub(TRAILER_BYTES)
    }
}

/// A command with the flags that only a packet that stands for itself has.
#[must_use]
pub(crate) fn whole(kind: Kind, flags: Flags) -> Command {
    Command::new(kind, flags | Flags::FIRST | Flags::LAST)
}

/// Fills the ends of a command.
#[must_use]
pub(crate) fn between(command: Command, destination: u32, source: u32, epoch: u32, psn: u32) -> Command {
    let epoch = u64::from(epoch);
    let command = command.with(Slot::Queue, u64::from(destination)).with(Slot::Source, u64::from(source));
    command.with(Slot::Sequence, u64::from(psn)).with(Slot::Argument3, epoch)
}
