//! SRDMA.

use super::{Decoded, Fill, Refusal, filled};
use crate::command::{Command, Flags, Kind, Slot};
use crate::header::{
    SrdmaAck, SrdmaAckView, SrdmaAtomic, SrdmaAtomicView, SrdmaCookie, SrdmaFlush, SrdmaFlushView, SrdmaImmediate,
    SrdmaImmediateView, SrdmaInvalidate, SrdmaInvalidateView, SrdmaMessage, SrdmaMessageView, SrdmaRemote,
    SrdmaRemoteView, SrdmaSession, SrdmaSessionView, SrdmaSetup, SrdmaSetupView, SrdmaTag, SrdmaTagView,
    SrdmaTransport, SrdmaTransportView, SrdmaVerify, SrdmaVerifyView, srdma_opcode as opcode,
};

const CRC_LENGTH: usize = 4;

const PLAIN: Flags = Flags(0);
const IMMEDIATE: Flags = Flags::IMMEDIATE;
const INVALIDATE: Flags = Flags::INVALIDATE;
const VERIFY: Flags = Flags::VERIFY;
const FETCH: Flags = Flags::FETCH;
const RESPONSE: Flags = Flags::RESPONSE;
const REJECT: Flags = Flags::REJECT;
const RESPONSE_REJECT: Flags = Flags(Flags::RESPONSE.0 | Flags::REJECT.0);

/// Decodes one UDP payload.
#[inline]
pub fn srdma(bytes: &[u8], out: &mut Decoded) -> Result<(), Refusal> {
    let session = SrdmaSessionView::new(bytes)?;
    if session.version() != SrdmaSession::VERSION {
        return Err(Refusal::Forbidden);
    }
    if session.sealed() {
        return out.lay_out(bytes.len(), SrdmaSession::LEN, 0, 0, Command::new(Kind::Sealed, PLAIN));
    }
    if session.bundle() {
        return out.lay_out(bytes.len(), SrdmaSession::LEN, 0, CRC_LENGTH, Command::new(Kind::Bundle, PLAIN));
    }
    const FIXED: usize = SrdmaSession::LEN + SrdmaTransport::LEN;
    let transport = SrdmaTransportView::new(bytes.get(SrdmaSession::LEN..).ok_or(Refusal::Truncated)?)?;
    // One arm: command, flags, how the transaction is named, and the headers behind the transport header.
    macro_rules! take {
        ($kind:ident $flags:ident $transaction:ident $($header:ident)*) => {{
            const HEADERS: usize = FIXED $(+ $header::LEN)*;
            out.lay_out(bytes.len(), HEADERS, 0, CRC_LENGTH, Command::new(Kind::$kind, $flags))?;
            let _rest = bytes.get(FIXED..HEADERS).unwrap_or(&[]);
            $(let _rest = filled::<$header>(_rest, out, $header::LEN)?;)*
            out.set(Slot::Transaction, $transaction(&transport, &out.command));
        }};
    }
    match transport.opcode() {
        opcode::SEND => take!(Send PLAIN by_message SrdmaMessage),
        opcode::SEND_IMMEDIATE => take!(Send IMMEDIATE by_message SrdmaMessage SrdmaImmediate),
        opcode::TAGGED_SEND => take!(TaggedSend PLAIN by_tag SrdmaMessage SrdmaTag),
        opcode::TAGGED_SEND_IMMEDIATE => take!(TaggedSend IMMEDIATE by_tag SrdmaMessage SrdmaTag SrdmaImmediate),
        opcode::SEND_INVALIDATE => take!(Send INVALIDATE by_message SrdmaMessage SrdmaInvalidate),
        opcode::DATAGRAM => take!(Datagram PLAIN by_message SrdmaMessage),
        opcode::DATAGRAM_IMMEDIATE => take!(Datagram IMMEDIATE by_message SrdmaMessage SrdmaImmediate),
        opcode::READY_TO_SEND => take!(ReadyToSend PLAIN by_message SrdmaMessage SrdmaRemote SrdmaImmediate),
        opcode::READY_TO_SEND_TAGGED => {
            take!(ReadyToSend IMMEDIATE by_tag SrdmaMessage SrdmaRemote SrdmaTag SrdmaImmediate)
        }
        opcode::DONE => take!(Invalidate PLAIN by_message SrdmaMessage SrdmaInvalidate),
        opcode::WITHDRAW => take!(Control REJECT by_handle),
        opcode::WRITE => take!(Write PLAIN by_message SrdmaMessage SrdmaRemote),
        opcode::WRITE_IMMEDIATE => take!(Write IMMEDIATE by_message SrdmaMessage SrdmaRemote SrdmaImmediate),
        opcode::WRITE_VERIFIED => take!(Write VERIFY by_message SrdmaMessage SrdmaRemote SrdmaVerify),
        opcode::READ_REQUEST => take!(ReadRequest PLAIN by_message SrdmaMessage SrdmaRemote),
        opcode::READ_RESPONSE => take!(ReadResponse RESPONSE by_handle SrdmaMessage),
        opcode::ATOMIC => take!(Atomic PLAIN by_message SrdmaMessage SrdmaRemote SrdmaAtomic),
        opcode::ATOMIC_FETCH => take!(Atomic FETCH by_message SrdmaMessage SrdmaRemote SrdmaAtomic),
        opcode::ATOMIC_COMPARE => take!(CompareSwap FETCH by_message SrdmaMessage SrdmaRemote SrdmaAtomic),
        opcode::ATOMIC_RESPONSE => take!(AtomicResponse RESPONSE by_handle SrdmaMessage),
        opcode::FLUSH => take!(Flush PLAIN by_message SrdmaMessage SrdmaRemote SrdmaFlush),
        opcode::VERIFY => take!(Verify PLAIN by_message SrdmaMessage SrdmaRemote SrdmaVerify),
        opcode::ACKNOWLEDGE => take!(Acknowledge RESPONSE by_handle SrdmaAck),
        opcode::CREDIT => take!(Control PLAIN by_handle SrdmaAck),
        opcode::HELLO => take!(Connect PLAIN by_handle SrdmaSetup),
        opcode::COOKIE => take!(Connect RESPONSE_REJECT by_handle SrdmaSetup SrdmaCookie),
        opcode::OPEN => take!(Connect VERIFY by_handle SrdmaSetup SrdmaCookie),
        opcode::ACCEPT => take!(Connect RESPONSE by_handle SrdmaSetup),
        opcode::REFUSE => take!(Connect REJECT by_handle SrdmaSetup),
        opcode::CLOSE => take!(Disconnect PLAIN by_handle),
        opcode::PROBE => take!(Probe PLAIN by_handle),
        opcode::PROBE_REPLY => take!(Probe RESPONSE by_handle SrdmaAck),
        opcode::REKEY => take!(Control RESPONSE by_handle SrdmaSetup),
        other => return Err(Refusal::UnknownOpcode(other)),
    }
    let mut flags = 0;
    for (set, flag) in [
        (transport.solicited(), Flags::SOLICITED),
        (transport.ack_request(), Flags::ACK_REQUEST),
        (transport.fence(), Flags::FENCE),
        (transport.retransmit(), Flags::RETRANSMIT),
        (transport.first(), Flags::FIRST),
        (transport.last(), Flags::LAST),
    ] {
        flags |= u32::from(set) * flag.0;
    }
    out.add_flags(Flags(flags));
    out.set(Slot::Queue, transport.destination());
    out.set(Slot::Source, transport.source());
    out.set(Slot::Sequence, transport.psn());
    out.set(Slot::Argument3, transport.epoch());
    Ok(())
}

impl Fill for SrdmaMessage {
    #[inline(always)]
    fn fill(bytes: &[u8], out: &mut Decoded) -> Result<(), Refusal> {
        let header = SrdmaMessageView::new(bytes)?;
        out.set(Slot::Message, header.number());
        out.set(Slot::Offset, header.offset());
        out.set(Slot::Length, header.length());
        Ok(())
    }
}

impl Fill for SrdmaRemote {
    #[inline(always)]
    fn fill(bytes: &[u8], out: &mut Decoded) -> Result<(), Refusal> {
        let header = SrdmaRemoteView::new(bytes)?;
        out.set(Slot::Address, header.address());
        out.set(Slot::Key, header.key());
        Ok(())
    }
}

impl Fill for SrdmaTag {
    #[inline(always)]
    fn fill(bytes: &[u8], out: &mut Decoded) -> Result<(), Refusal> {
        let header = SrdmaTagView::new(bytes)?;
        out.set(Slot::Argument0, header.tag());
        Ok(())
    }
}

impl Fill for SrdmaImmediate {
    #[inline(always)]
    fn fill(bytes: &[u8], out: &mut Decoded) -> Result<(), Refusal> {
        let header = SrdmaImmediateView::new(bytes)?;
        out.set(Slot::Immediate, header.data());
        Ok(())
    }
}

impl Fill for SrdmaInvalidate {
    #[inline(always)]
    fn fill(bytes: &[u8], out: &mut Decoded) -> Result<(), Refusal> {
        let header = SrdmaInvalidateView::new(bytes)?;
        out.set(Slot::Key, header.key());
        Ok(())
    }
}

impl Fill for SrdmaVerify {
    #[inline(always)]
    fn fill(bytes: &[u8], out: &mut Decoded) -> Result<(), Refusal> {
        let header = SrdmaVerifyView::new(bytes)?;
        out.set(Slot::Argument2, header.crc32c());
        Ok(())
    }
}

impl Fill for SrdmaAtomic {
    #[inline(always)]
    fn fill(bytes: &[u8], out: &mut Decoded) -> Result<(), Refusal> {
        let header = SrdmaAtomicView::new(bytes)?;
        out.set(Slot::Argument2, header.operation());
        out.set(Slot::Status, header.datatype());
        out.set(Slot::Argument0, header.count());
        Ok(())
    }
}

impl Fill for SrdmaFlush {
    #[inline(always)]
    fn fill(bytes: &[u8], out: &mut Decoded) -> Result<(), Refusal> {
        let header = SrdmaFlushView::new(bytes)?;
        out.set(Slot::Argument0, header.kind());
        out.set(Slot::Argument1, header.scope());
        Ok(())
    }
}

impl Fill for SrdmaAck {
    #[inline(always)]
    fn fill(bytes: &[u8], out: &mut Decoded) -> Result<(), Refusal> {
        let header = SrdmaAckView::new(bytes)?;
        out.set(Slot::Status, header.status());
        out.set(Slot::Length, header.credits());
        out.set(Slot::Immediate, header.marks());
        out.set(Slot::Argument1, header.echo());
        out.set(Slot::Argument2, header.hold());
        out.set(Slot::Offset, header.highest());
        out.set(Slot::Argument0, header.bitmap());
        Ok(())
    }
}

impl Fill for SrdmaSetup {
    #[inline(always)]
    fn fill(bytes: &[u8], out: &mut Decoded) -> Result<(), Refusal> {
        let header = SrdmaSetupView::new(bytes)?;
        if header.magic() != SrdmaSetup::MAGIC {
            return Err(Refusal::Forbidden);
        }
        out.set(Slot::Key, header.group());
        out.set(Slot::Address, header.id());
        out.set(Slot::Immediate, header.suite());
        out.set(Slot::Status, header.sessions());
        Ok(())
    }
}

impl Fill for SrdmaCookie {
    #[inline(always)]
    fn fill(_: &[u8], _: &mut Decoded) -> Result<(), Refusal> {
        Ok(())
    }
}

/// A new message: its sender and its number.
#[inline(always)]
fn by_message(transport: &SrdmaTransportView<'_>, command: &Command) -> u64 {
    u64::from(transport.source()) << 32 | command.message()
}

/// A new message that is matched.
#[inline(always)]
fn by_tag(_: &SrdmaTransportView<'_>, command: &Command) -> u64 {
    command.slot(Slot::Argument0)
}

/// What belongs to something that was asked for.
#[inline(always)]
fn by_handle(transport: &SrdmaTransportView<'_>, _: &Command) -> u64 {
    u64::from(transport.handle())
}
