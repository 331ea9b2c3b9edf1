//! iWARP: RDMAP on DDP in MPA.

use super::{Decoded, Refusal};
use crate::command::{Command, Flags, Kind, Slot};
use crate::header::{
    AtomicRequest, AtomicRequestView, AtomicResponse, AtomicResponseView, DdpControlView, DdpTagged, DdpTaggedView,
    DdpUntagged, DdpUntaggedView, Fpdu, MpaStart, MpaStartView, ReadRequest, ReadRequestView, TerminateControl,
    TerminateControlView, rdmap_opcode,
};

const DDP_VERSION: u8 = 1;
const RDMAP_VERSION: u8 = 1;
/// Bytes of immediate data, a number in network byte order (RFC 7306).
const IMMEDIATE_LENGTH: usize = 8;

const PLAIN: Flags = Flags(0);
const INVALIDATE: Flags = Flags::INVALIDATE;
const SOLICITED: Flags = Flags::SOLICITED;
const SOLICITED_INVALIDATE: Flags = Flags(Flags::SOLICITED.0 | Flags::INVALIDATE.0);
const IMMEDIATE: Flags = Flags::IMMEDIATE;
const IMMEDIATE_SOLICITED: Flags = Flags(Flags::IMMEDIATE.0 | Flags::SOLICITED.0);
const FETCH: Flags = Flags::FETCH;

// The queues of untagged messages (RFC 5040, RFC 7306).
const QUEUE_SEND: u32 = 0;
const QUEUE_REQUEST: u32 = 1;
const QUEUE_TERMINATE: u32 = 2;
const QUEUE_ATOMIC_RESPONSE: u32 = 3;

/// Decodes one FPDU, from its length to its CRC.
#[inline]
pub fn iwarp(unit: &[u8], out: &mut Decoded) -> Result<(), Refusal> {
    let fpdu = Fpdu::parse(unit)?;
    let ddp = unit.get(Fpdu::LEN..).ok_or(Refusal::Truncated)?;
    let control = DdpControlView::new(ddp)?;
    if control.version() != DDP_VERSION || control.rdmap_version() != RDMAP_VERSION {
        return Err(Refusal::Forbidden);
    }
    // With this, the pad and the payload are what the length says, and no arm needs to look at it again.
    if unit.len() != fpdu.frame_len() {
        return Err(Refusal::Forbidden);
    }
    let mut segment = Segment { unit, ddp, pad: fpdu.pad(), last: control.last(), out };
    if control.tagged() {
        return match control.opcode() {
            rdmap_opcode::WRITE => segment.tagged(Kind::Write).map(|_| ()),
            rdmap_opcode::READ_RESPONSE => {
                let stag = segment.tagged(Kind::ReadResponse)?;
                out.set(Slot::Transaction, stag);
                Ok(())
            }
            opcode => Err(Refusal::UnknownOpcode(opcode)),
        };
    }
    match control.opcode() {
        rdmap_opcode::READ_REQUEST => {
            let rest = segment.untagged(Kind::ReadRequest, PLAIN, QUEUE_REQUEST, ReadRequest::LEN)?;
            let header = ReadRequestView::new(rest)?;
            out.set(Slot::Key, header.source_stag());
            out.set(Slot::Address, header.source_to());
            out.set(Slot::Length, header.size());
            out.set(Slot::Argument0, header.sink_stag());
            out.set(Slot::Argument1, header.sink_to());
        }
        rdmap_opcode::SEND => segment.send(PLAIN)?,
        rdmap_opcode::SEND_INVALIDATE => segment.send(INVALIDATE)?,
        rdmap_opcode::SEND_SOLICITED => segment.send(SOLICITED)?,
        rdmap_opcode::SEND_SOLICITED_INVALIDATE => segment.send(SOLICITED_INVALIDATE)?,
        rdmap_opcode::TERMINATE => {
            let rest = segment.untagged(Kind::Disconnect, PLAIN, QUEUE_TERMINATE, TerminateControl::LEN)?;
            let header = TerminateControlView::new(rest)?;
            out.set(Slot::Status, header.error_code());
        }
        rdmap_opcode::IMMEDIATE => segment.immediate(IMMEDIATE)?,
        rdmap_opcode::IMMEDIATE_SOLICITED => segment.immediate(IMMEDIATE_SOLICITED)?,
        rdmap_opcode::ATOMIC_REQUEST => {
            let rest = segment.untagged(Kind::Atomic, FETCH, QUEUE_REQUEST, AtomicRequest::LEN)?;
            let header = AtomicRequestView::new(rest)?;
            out.set(Slot::Status, header.operation());
            out.set(Slot::Sequence, header.request_id());
            out.set(Slot::Key, header.remote_stag());
            out.set(Slot::Address, header.remote_to());
            out.set(Slot::Argument0, header.add_or_swap());
            out.set(Slot::Argument1, header.compare());
            out.set(Slot::Argument2, header.add_or_swap_mask());
            out.set(Slot::Argument3, header.compare_mask());
        }
        rdmap_opcode::ATOMIC_RESPONSE => {
            let rest = segment.untagged(Kind::AtomicResponse, PLAIN, QUEUE_ATOMIC_RESPONSE, AtomicResponse::LEN)?;
            let header = AtomicResponseView::new(rest)?;
            out.set(Slot::Sequence, header.request_id());
            out.set(Slot::Transaction, header.request_id());
            out.set(Slot::Argument0, header.original());
        }
        opcode => return Err(Refusal::UnknownOpcode(opcode)),
    }
    Ok(())
}

/// A DDP segment in its FPDU.
struct Segment<'a, 'b> {
    unit: &'a [u8],
    ddp: &'a [u8],
    pad: usize,
    last: bool,
    out: &'b mut Decoded,
}

impl<'a> Segment<'a, '_> {
    #[inline(always)]
    fn lay_out(&mut self, headers: usize, kind: Kind, flags: Flags) -> Result<(), Refusal> {
        let flags = if self.last { flags | Flags::LAST } else { flags };
        self.out.lay_out(self.unit.len(), headers, self.pad, Fpdu::CRC_LEN, Command::new(kind, flags))
    }

    /// A tagged segment; gives its steering tag.
    #[inline(always)]
    fn tagged(&mut self, kind: Kind) -> Result<u32, Refusal> {
        self.lay_out(Fpdu::LEN + DdpTagged::LEN, kind, PLAIN)?;
        let header = DdpTaggedView::new(self.ddp)?;
        self.out.set(Slot::Key, header.stag());
        self.out.set(Slot::Address, header.tagged_offset());
        Ok(header.stag())
    }

    /// An untagged segment for one queue, with a header of RDMAP's own of `more` bytes, which it gives.
    #[inline(always)]
    fn untagged(&mut self, kind: Kind, flags: Flags, queue: u32, more: usize) -> Result<&'a [u8], Refusal> {
        self.lay_out(Fpdu::LEN + DdpUntagged::LEN + more, kind, flags)?;
        let header = DdpUntaggedView::new(self.ddp)?;
        if header.queue() != queue {
            return Err(Refusal::Forbidden);
        }
        self.out.set(Slot::Queue, header.queue());
        self.out.set(Slot::Message, header.msn());
        self.out.set(Slot::Offset, header.offset());
        if flags.contains(Flags::INVALIDATE) {
            self.out.set(Slot::Key, header.invalidate_stag());
        }
        self.ddp.get(DdpUntagged::LEN..).ok_or(Refusal::Truncated)
    }

    /// The next buffer of the send queue: the queue and the message name it.
    #[inline(always)]
    fn send(&mut self, flags: Flags) -> Result<(), Refusal> {
        self.untagged(Kind::Send, flags, QUEUE_SEND, 0)?;
        let message = self.out.command.message();
        self.out.set(Slot::Transaction, u64::from(QUEUE_SEND) << 32 | message);
        Ok(())
    }

    #[inline(always)]
    fn immediate(&mut self, flags: Flags) -> Result<(), Refusal> {
        let rest = self.untagged(Kind::Notify, flags, QUEUE_SEND, IMMEDIATE_LENGTH)?;
        let data = rest.first_chunk::<IMMEDIATE_LENGTH>().ok_or(Refusal::Truncated)?;
        self.out.set(Slot::Immediate, u64::from_be_bytes(*data));
        Ok(())
    }
}

/// Decodes one MPA start frame with its private data.
#[inline]
pub fn mpa(unit: &[u8], out: &mut Decoded) -> Result<(), Refusal> {
    let header = MpaStartView::new(unit)?;
    let key = header.key();
    let flags = match (key[9], header.reject()) {
        (b'q', false) => PLAIN,
        (b'q', true) => Flags::REJECT,
        (b'p', false) => Flags::RESPONSE,
        (b'p', true) => Flags(Flags::RESPONSE.0 | Flags::REJECT.0),
        (other, _) => return Err(Refusal::UnknownOpcode(other)),
    };
    if key != MpaStart::KEY_REQUEST && key != MpaStart::KEY_REPLY {
        return Err(Refusal::Forbidden);
    }
    out.lay_out(unit.len(), MpaStart::LEN, 0, 0, Command::new(Kind::Connect, flags))?;
    if out.payload_length != u32::from(header.private_data_length()) {
        return Err(Refusal::Forbidden);
    }
    Ok(())
}
