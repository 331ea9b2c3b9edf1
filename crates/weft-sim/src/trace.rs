//! The record of a run: a hash over everything that happened, and lines for people who want to follow it.

use weft_wire::header::{
    SrdmaAck, SrdmaMessage, SrdmaRemote, SrdmaSession, SrdmaTag, SrdmaTransport, srdma_opcode as op,
};

use crate::random::mix;

/// A record.
#[derive(Debug, Default)]
pub struct Trace {
    hash: u64,
    lines: Option<Vec<String>>,
}

impl Trace {
    /// A record that keeps lines, too, when asked.
    #[must_use]
    pub fn new(keep_lines: bool) -> Trace {
        Trace { hash: 0x5eed, lines: keep_lines.then(Vec::new) }
    }

    /// The hash of everything until now.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// The lines.
    #[must_use]
    pub fn into_lines(self) -> Vec<String> {
        self.lines.unwrap_or_default()
    }

    /// Notes numbers that say what happened.
    pub fn note(&mut self, words: &[u64]) {
        for word in words {
            self.hash = mix(self.hash ^ word);
        }
    }

    /// Notes bytes.
    pub fn note_bytes(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let word = chunk.iter().fold(1u64, |word, byte| word << 8 | u64::from(*byte));
            self.hash = (self.hash ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29);
        }
    }

    /// Adds a line if lines are wanted.
    pub fn line(&mut self, now: u64, text: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.lines {
            lines.push(format!("{:>13} {}", micros(now), text()));
        }
    }

    /// Adds a line for each packet of a datagram.
    pub fn datagram(&mut self, now: u64, about: &str, bytes: &[u8]) {
        if self.lines.is_some() {
            for text in packets(bytes) {
                self.line(now, || format!("{about} {text}"));
            }
        }
    }
}

/// A time in microseconds, with the rest behind a point.
#[must_use]
pub fn micros(now: u64) -> String {
    format!("{}.{:03}", now / 1000, now % 1000)
}

const TRAILER_BYTES: usize = 4;

/// The packets of a datagram, one line each.
#[must_use]
pub fn packets(datagram: &[u8]) -> Vec<String> {
    let Ok(session) = SrdmaSession::parse(datagram) else {
        return vec![format!("{} bytes that are no packet", datagram.len())];
    };
    let end = datagram.len().saturating_sub(TRAILER_BYTES);
    let body = datagram.get(SrdmaSession::LEN..end).unwrap_or_default();
    if !session.bundle {
        return vec![packet(body)];
    }
    let mut lines = Vec::new();
    let mut rest = body;
    while let Some((length, behind)) = rest.split_first_chunk::<2>() {
        let length = usize::from(u16::from_be_bytes(*length));
        let Some((entry, behind)) = behind.split_at_checked(length) else { break };
        lines.push(format!("| {}", packet(entry)));
        rest = behind;
    }
    lines
}

fn packet(bytes: &[u8]) -> String {
    let Ok(header) = SrdmaTransport::parse(bytes) else { return format!("{} bytes that are no packet", bytes.len()) };
    let mut rest = bytes.get(SrdmaTransport::LEN..).unwrap_or_default();
    let ticket = header.ticket & 0xffff_ffff;
    let mut text = format!(
        "{:<14} psn {:08x}-{} handle {} ticket {ticket:08x} {:08x}>{:08x}",
        name(header.opcode),
        header.psn,
        header.span,
        header.handle,
        header.source,
        header.destination,
    );
    for (set, word) in
        [(header.retransmit, " again"), (header.ack_request, " ask"), (header.first, " first"), (header.last, " last")]
    {
        text.push_str(if set { word } else { "" });
    }
    if header.after != 0 {
        text.push_str(&format!(" after {}", header.after));
    }
    if matches!(header.opcode, op::ACKNOWLEDGE | op::CREDIT | op::PROBE_REPLY) {
        if let Ok(ack) = SrdmaAck::parse(rest) {
            let (highest, bitmap, credits) = (ack.highest, ack.bitmap, ack.credits);
            let status = status(ack.status);
            text.push_str(&format!(" {status} highest {highest:08x} bitmap {bitmap:x} credits {credits}"));
        }
        return text;
    }
    let moves_data = !matches!(header.opcode, 0x40..);
    if let (true, Ok(message)) = (moves_data, SrdmaMessage::parse(rest)) {
        text.push_str(&format!(" message {} at {} of {}", message.number, message.offset, message.length));
        rest = rest.get(SrdmaMessage::LEN..).unwrap_or_default();
    }
    if matches!(header.opcode, op::TAGGED_SEND | op::TAGGED_SEND_IMMEDIATE)
        && let Ok(tag) = SrdmaTag::parse(rest)
    {
        text.push_str(&format!(" tag {}", tag.tag));
    }
    if matches!(header.opcode, op::READY_TO_SEND..=op::READY_TO_SEND_TAGGED | op::WRITE..=op::READ_REQUEST | 0x20..=0x22)
        && let Ok(remote) = SrdmaRemote::parse(rest)
    {
        text.push_str(&format!(" remote {:x} key {:08x}", remote.address, remote.key & 0xffff_ffff));
    }
    text
}

fn name(opcode: u8) -> String {
    let known = match opcode {
        op::SEND => "SEND",
        op::SEND_IMMEDIATE => "SEND/i",
        op::TAGGED_SEND => "TAGGED",
        op::TAGGED_SEND_IMMEDIATE => "TAGGED/i",
        op::SEND_INVALIDATE => "SEND/inv",
        op::DATAGRAM => "DATAGRAM",
        op::DATAGRAM_IMMEDIATE => "DATAGRAM/i",
        op::READY_TO_SEND => "READY",
        op::READY_TO_SEND_TAGGED => "READY/tagged",
        op::DONE => "DONE",
        op::WITHDRAW => "WITHDRAW",
        op::WRITE => "WRITE",
        op::WRITE_IMMEDIATE => "WRITE/i",
        op::WRITE_VERIFIED => "WRITE/v",
        op::READ_REQUEST => "READ",
        op::READ_RESPONSE => "READ RESPONSE",
        op::ATOMIC => "ATOMIC",
        op::ATOMIC_FETCH => "FETCH",
        op::ATOMIC_COMPARE => "COMPARE",
        op::ATOMIC_RESPONSE => "FETCHED",
        op::ACKNOWLEDGE => "ACK",
        op::CREDIT => "CREDIT",
        op::PROBE => "PROBE",
        op::PROBE_REPLY => "PROBE REPLY",
        other => return format!("opcode {other:02x}"),
    };
    known.to_string()
}

fn status(code: u8) -> &'static str {
    match code {
        0 => "accepted",
        1 => "NOT READY",
        2 => "OUT OF WINDOW",
        3 => "SYNCHRONISE",
        4 => "RESTARTED",
        5 => "BUSY",
        6 => "IN PROGRESS",
        7 => "ACCESS REFUSED",
        8 => "LENGTH ERROR",
        9 => "NO SUCH ENDPOINT",
        10 => "NOT SUPPORTED",
        11 => "PROTOCOL ERROR",
        12 => "CHECKSUM MISMATCH",
        13 => "ABORTED",
        14 => "OPERATION FAILED",
        _ => "UNKNOWN STATUS",
    }
}
