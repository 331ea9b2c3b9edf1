//! How packets become datagrams: bundles of short ones, and segments whose payload stays in memory.

use super::*;

impl<M: Memory> Engine<M> {
    /// The session header of the next datagram on a path.
    pub(super) fn next_session(&mut self, now: Time, path: Path, class: u8, bundle: bool) -> SessionHeader {
        let node = self.nodes.of_mut(NodeId::at(path));
        let sequence = node.map_or(&mut self.sequence, |node| &mut node.session.sequence);
        *sequence += 1;
        let (id, timestamp) = (self.config.session, now.micros() as u32);
        SessionHeader { class, id, sequence: *sequence, timestamp, bundle, partial: self.stays_in_host(path) }
    }

    /// Whether datagrams on this path are copied from memory to memory of this host, and nothing can damage them.
    fn stays_in_host(&self, path: Path) -> bool {
        let remote = path.remote.ip();
        self.config.host_address.is_some_and(|own| remote == own || remote.is_loopback())
    }

    /// Writes session header and trailer of a bundle. False: there was nothing in it.
    pub(super) fn end_bundle(&mut self, now: Time, path: Path, class: u8, out: &mut Transmit, bundle: Bundle) -> bool {
        if bundle.is_empty() {
            bundle.cancel(out);
            return false;
        }
        let mut session = self.next_session(now, path, class, bundle.entries > 1);
        // Else a header of an entry may stand behind what is summed. Short ones cost nothing to sum.
        session.partial &= bundle.tail.is_some() && out.bytes.len() <= PARTIAL_COVERED_BYTES;
        // A packet that stands alone has no length in front of it: the header moves up by that much.
        let start = if bundle.entries > 1 { 0 } else { ENTRY_LENGTH_BYTES };
        if let Some(header) = out.bytes.get_mut(start..start + SESSION_BYTES) {
            header.fill(0);
            self.codec.write_session(header, &session);
        }
        if bundle.entries > 1
            && let Some(length) = out.bytes.get_mut(SESSION_BYTES..SESSION_BYTES + ENTRY_LENGTH_BYTES)
        {
            length.copy_from_slice(&bundle.first.to_be_bytes());
        }
        let mut sum = Summing::begin(&session);
        sum.add(self.delivery.memory(), out.bytes.get(start..).unwrap_or(&[]));
        let inside = out.bytes.len();
        let mut behind = start;
        if let Some(tail) = bundle.tail {
            out.pieces.push(Piece::Bytes { start: start as u32, length: (inside - start) as u32 });
            behind = inside;
            let piece_at = |memory: &M, at, left| memory.local(tail.local, tail.offset + at, left);
            let appended = append_memory(self.delivery.memory(), out, u64::from(tail.length), &mut sum, piece_at);
            if let Err(fault) = appended {
                // Nothing of it goes out: the acknowledgement in front of it is owed again when the peer asks.
                out.pieces.clear();
                self.local_fault(now, tail.handle, fault);
                return false;
            }
        }
        out.bytes.extend_from_slice(&sum.trailer());
        out.pieces.push(Piece::Bytes { start: behind as u32, length: (out.bytes.len() - behind) as u32 });
        out.path = path;
        out.class = class;
        let tail = bundle.tail.map_or(0, |tail| tail.length as usize);
        let length = out.bytes.len() - start + tail;
        if length > MTU_MIN_BYTES as usize {
            // Only a packet that cannot be cut is too long, or an answer that is.
            out.may_fragment = bundle.again || length > self.path_mtu(NodeId::at(path));
            self.statistics.fragmentable += u64::from(out.may_fragment);
        }
        self.statistics.datagrams_sent += 1;
        true
    }
}

/// A bundle in the making, at the beginning of a transmit's bytes: two bytes for the first entry's length are left free, so
/// that a lone packet needs no move.
#[derive(Debug)]
pub(super) struct Bundle {
    pub(super) entries: usize,
    first: u16,
    tail: Option<Tail>,
    /// What it answers was asked for before.
    pub(super) again: bool,
}

/// The payload of a bundle's last packet, where it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tail {
    pub(super) handle: u16,
    pub(super) local: LocalKey,
    pub(super) offset: u64,
    pub(super) length: u32,
}

impl Bundle {
    pub(super) fn begin(out: &mut Transmit) -> Bundle {
        out.bytes.clear();
        out.pieces.clear();
        out.bytes.resize(SESSION_BYTES + ENTRY_LENGTH_BYTES, 0);
        Bundle { entries: 0, first: 0, tail: None, again: false }
    }

    pub(super) fn cancel(self, out: &mut Transmit) {
        out.bytes.clear();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries == 0
    }

    pub(super) fn has_room(&self, out: &Transmit, bytes: usize, limit: usize) -> bool {
        out.bytes.len() + ENTRY_LENGTH_BYTES + bytes + TRAILER_BYTES <= limit
    }

    /// Adds a packet with this much payload. `fill` writes its headers, session header included, and the payload behind
    /// them, and gives the length of the headers. False: it gave none, and nothing was added.
    pub(super) fn add(
        &mut self,
        out: &mut Transmit,
        payload: usize,
        fill: impl FnOnce(&mut [u8]) -> Option<usize>,
    ) -> bool {
        self.add_entry(out, payload, 0, fill)
    }

    /// Adds a last packet, whose payload stays in memory.
    pub(super) fn add_tail(
        &mut self,
        out: &mut Transmit,
        tail: Tail,
        fill: impl FnOnce(&mut [u8]) -> Option<usize>,
    ) -> bool {
        let added = self.add_entry(out, 0, tail.length as usize, fill);
        self.tail = added.then_some(tail);
        added
    }

    fn add_entry(
        &mut self,
        out: &mut Transmit,
        payload: usize,
        outside: usize,
        fill: impl FnOnce(&mut [u8]) -> Option<usize>,
    ) -> bool {
        let before = out.bytes.len();
        if self.entries > 0 {
            out.bytes.extend_from_slice(&[0; ENTRY_LENGTH_BYTES]);
        }
        // The tables write a session header in front, where the packet before ends: those bytes are put back.
        let start = out.bytes.len() - SESSION_BYTES;
        let kept: Option<[u8; SESSION_BYTES]> = out.bytes.last_chunk().copied();
        out.bytes.resize(start + HEADERS_MAX_BYTES + payload, 0);
        let headers = out.bytes.get_mut(start..).and_then(fill);
        if let (Some(place), Some(kept)) = (out.bytes.get_mut(start..start + SESSION_BYTES), kept) {
            place.copy_from_slice(&kept);
        }
        let Some(headers) = headers else {
            out.bytes.truncate(before);
            return false;
        };
        out.bytes.truncate(start + headers + payload);
        let length = (headers + payload + outside - SESSION_BYTES) as u16;
        if self.entries == 0 {
            self.first = length;
        } else if let Some(place) = out.bytes.get_mut(before..before + ENTRY_LENGTH_BYTES) {
            place.copy_from_slice(&length.to_be_bytes());
        }
        self.entries += 1;
        true
    }
}

/// The trailer of a datagram in the making: a CRC-32C of all of it, or of its first bytes (P-2.5).
pub(super) struct Summing {
    crc: u32,
    /// Bytes that it still covers.
    left: u64,
}

impl Summing {
    pub(super) fn begin(session: &SessionHeader) -> Summing {
        Summing { crc: 0, left: if session.partial { PARTIAL_COVERED_BYTES as u64 } else { u64::MAX } }
    }

    fn add<M: Memory>(&mut self, memory: &M, bytes: &[u8]) {
        let covered = usize::try_from(self.left).ok().and_then(|left| bytes.get(..left)).unwrap_or(bytes);
        self.crc = memory.crc32c_bytes(self.crc, covered);
        self.left -= covered.len() as u64;
    }

    fn add_piece<M: Memory>(&mut self, memory: &M, piece: Granted) -> Result<(), Fault> {
        self.crc = memory.crc32c_to_send(self.crc, piece, self.left)?;
        self.left = self.left.saturating_sub(piece.length);
        Ok(())
    }

    fn trailer(&self) -> [u8; TRAILER_BYTES] {
        self.crc.to_le_bytes()
    }
}

/// Whether a datagram of this length can leave with those before it: all but the last have the same length.
pub(super) fn has_segment_room(out: &Transmit, total: usize) -> bool {
    if out.pieces.is_empty() {
        return true;
    }
    let (count, bytes, last) = segments(out);
    total <= out.segment_bytes
        && last == out.segment_bytes
        && count < SEGMENTS_MAX
        && bytes + total <= TRANSMIT_MAX_BYTES
}

/// Datagrams, bytes, and length of the last datagram.
pub(super) fn segments(out: &Transmit) -> (usize, usize, usize) {
    let bytes = out.length();
    let size = out.segment_bytes.max(1);
    let last = bytes % size;
    (bytes.div_ceil(size), bytes, if last == 0 { size } else { last })
}

/// Appends one datagram: headers, payload from memory, trailer. On a fault the transmit is as before.
pub(super) fn append_segment<M: Memory>(
    memory: &M,
    out: &mut Transmit,
    mut sum: Summing,
    headers: &[u8],
    length: u32,
    piece_at: impl Fn(&M, u64, u64) -> Result<Granted, Fault>,
) -> Result<(), Fault> {
    let (pieces, start) = (out.pieces.len(), out.bytes.len());
    out.bytes.extend_from_slice(headers);
    out.pieces.push(Piece::Bytes { start: start as u32, length: headers.len() as u32 });
    let length = u64::from(length);
    sum.add(memory, headers);
    if let Err(fault) = append_memory(memory, out, length, &mut sum, piece_at) {
        out.pieces.truncate(pieces);
        out.bytes.truncate(start);
        return Err(fault);
    }
    let trailer = out.bytes.len() as u32;
    out.bytes.extend_from_slice(&sum.trailer());
    out.pieces.push(Piece::Bytes { start: trailer, length: TRAILER_BYTES as u32 });
    if pieces == 0 {
        out.segment_bytes = headers.len() + length as usize + TRAILER_BYTES;
    }
    Ok(())
}

/// As [`append_segment`], with a copy of the payload: for memory that is released before the transmit is sent.
pub(super) fn append_copy<M: Memory>(
    memory: &M,
    out: &mut Transmit,
    mut sum: Summing,
    headers: &[u8],
    length: u32,
    piece_at: impl Fn(&M, u64, u64) -> Result<Granted, Fault>,
) -> Result<(), Fault> {
    let start = out.bytes.len();
    out.bytes.extend_from_slice(headers);
    let (mut at, length) = (0, u64::from(length));
    while at < length {
        let end = out.bytes.len();
        let copied = piece_at(memory, at, length - at).and_then(|piece| {
            let piece = piece.first(length - at);
            out.bytes.resize(end + piece.length as usize, 0);
            let room = out.bytes.get_mut(end..).filter(|room| !room.is_empty()).ok_or(Fault::OutOfBounds)?;
            memory.read(piece, room)?;
            Ok(piece.length)
        });
        match copied {
            Ok(copied) => at += copied,
            Err(fault) => {
                out.bytes.truncate(start);
                return Err(fault);
            }
        }
    }
    sum.add(memory, out.bytes.get(start..).unwrap_or_default());
    out.bytes.extend_from_slice(&sum.trailer());
    let whole = out.bytes.len() - start;
    out.pieces.push(Piece::Bytes { start: start as u32, length: whole as u32 });
    if out.pieces.len() == 1 {
        out.segment_bytes = whole;
    }
    Ok(())
}

/// Appends pieces of memory, and goes on with the checksum over them.
fn append_memory<M: Memory>(
    memory: &M,
    out: &mut Transmit,
    length: u64,
    sum: &mut Summing,
    piece_at: impl Fn(&M, u64, u64) -> Result<Granted, Fault>,
) -> Result<(), Fault> {
    let mut at = 0;
    while at < length {
        let piece = piece_at(memory, at, length - at)?.first(length - at);
        if piece.length == 0 {
            return Err(Fault::OutOfBounds);
        }
        sum.add_piece(memory, piece)?;
        at += piece.length;
        out.pieces.push(Piece::Memory(piece));
    }
    Ok(())
}
