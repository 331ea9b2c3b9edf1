//! Proof that bytes are what their sender sent. Only [`open`] makes it, so nothing can be looked up before (P-2.4).

use alloc::vec::Vec;

use crate::memory::Memory;
use crate::packet::{Codec, PARTIAL_COVERED_BYTES, SESSION_BYTES, SessionHeader, TRAILER_BYTES, TRANSPORT_BYTES};

/// What tells a genuine datagram: a checksum, or a cipher, which makes it readable in place.
pub(crate) trait Protection {
    /// Whether a datagram is genuine.
    fn open(&self, header: &SessionHeader, datagram: &mut [u8]) -> bool;
}

/// Protection against damage only: a CRC-32C behind everything, over everything or, where its sender says so, over the
/// headers (P-2.5).
pub(crate) struct Crc<'a, M>(pub(crate) &'a M);

impl<M: Memory> Protection for Crc<'_, M> {
    #[inline]
    fn open(&self, header: &SessionHeader, datagram: &mut [u8]) -> bool {
        let Some((body, trailer)) = datagram.split_last_chunk::<TRAILER_BYTES>() else { return false };
        let body = body.get(..PARTIAL_COVERED_BYTES).filter(|_| header.partial).unwrap_or(body);
        self.0.crc32c_bytes(0, body).to_le_bytes() == *trailer
    }
}

/// Why a datagram is not looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rejected {
    /// Not of this session.
    Foreign,
    /// Not genuine.
    Damaged,
    /// Its entries do not fit in it.
    Malformed,
}

/// Bytes of a packet that were verified.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Verified<B>(B);

impl<B: AsRef<[u8]>> Verified<B> {
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        self.0.as_ref()
    }

    #[inline]
    pub(crate) fn packet(&self) -> Verified<&[u8]> {
        Verified(self.0.as_ref())
    }

    /// A copy, to be looked at later.
    pub(crate) fn to_vec(&self) -> Verified<Vec<u8>> {
        Verified(self.bytes().to_vec())
    }

    /// The same of its first bytes.
    #[inline]
    pub(crate) fn to_array<const N: usize>(&self) -> Option<Verified<[u8; N]>> {
        self.bytes().first_chunk().copied().map(Verified)
    }
}

/// A packet of a datagram.
pub(crate) struct Packet<'a> {
    pub(crate) verified: Verified<&'a [u8]>,
    /// It is the last of several.
    pub(crate) ends_bundle: bool,
}

/// A datagram that was verified, of which packets are taken one by one. It is unpacked in place (P-2.9).
pub(crate) struct Datagram<'a> {
    pub(crate) header: SessionHeader,
    bytes: &'a mut [u8],
    /// The session header of each entry.
    entry_header: [u8; SESSION_BYTES],
    at: usize,
}

/// Verifies a datagram of the session `id`.
#[inline]
pub(crate) fn open<'a>(
    codec: &Codec,
    protection: &impl Protection,
    id: u32,
    datagram: &'a mut [u8],
) -> Result<Datagram<'a>, Rejected> {
    let header = codec.session(datagram).filter(|header| header.id == id).ok_or(Rejected::Foreign)?;
    if !protection.open(&header, datagram) {
        return Err(Rejected::Damaged);
    }
    let mut entry_header = *datagram.first_chunk::<SESSION_BYTES>().ok_or(Rejected::Foreign)?;
    if header.bundle {
        codec.unmark_bundle(&mut entry_header);
    }
    Ok(Datagram { header, bytes: datagram, entry_header, at: if header.bundle { SESSION_BYTES } else { 0 } })
}

impl Datagram<'_> {
    /// The next packet.
    #[inline]
    pub(crate) fn next_packet(&mut self) -> Result<Option<Packet<'_>>, Rejected> {
        let end = self.bytes.len() - TRAILER_BYTES;
        if self.at >= end {
            return Ok(None);
        }
        if !self.header.bundle {
            self.at = end;
            return Ok(Some(Packet { verified: Verified(self.bytes), ends_bundle: false }));
        }
        self.next_entry(end).map(Some)
    }

    /// Each entry gets the session header in front of it, over what was read before.
    fn next_entry(&mut self, end: usize) -> Result<Packet<'_>, Rejected> {
        let length = self.bytes.get(self.at..end).and_then(|bytes| bytes.first_chunk());
        let length = length.map_or(0, |bytes| usize::from(u16::from_be_bytes(*bytes)));
        let (first, start) = (self.at == SESSION_BYTES, self.at + 2);
        if length < TRANSPORT_BYTES || start + length > end {
            return Err(Rejected::Malformed);
        }
        self.at = start + length;
        let packet = self.bytes.get_mut(start - SESSION_BYTES..start + length + TRAILER_BYTES);
        let packet = packet.ok_or(Rejected::Malformed)?;
        if let Some(place) = packet.first_chunk_mut() {
            *place = self.entry_header;
        }
        Ok(Packet { verified: Verified(packet), ends_bundle: !first && self.at == end })
    }
}
