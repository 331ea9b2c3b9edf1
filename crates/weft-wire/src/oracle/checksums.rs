//! The checksums of the built-in protocols, by hand.

use alloc::vec::Vec;

use super::{Found, Transport};
use crate::checksum::{CRC32, CRC32C, Crc, VCRC};
use crate::header::{Bth, Fpdu, Lrh, SrdmaSessionView, Udp};
use crate::table::Checked;

/// The three CRCs, compiled once.
#[derive(Debug)]
pub struct Checksums {
    icrc: Crc,
    vcrc: Crc,
    crc32c: Crc,
}

/// What the ICRC usually sees of the headers in front and of the BTH.
const MASKED_LENGTH_USUAL_BYTES: usize = Lrh::LEN + 256 + Udp::LEN + Bth::LEN;
const IPV4_VERSION: u8 = 4;
/// The LRH when there is a network header, with which it does not count.
const MASKED_LRH: [u8; Lrh::LEN] = [0xff; Lrh::LEN];

impl Checksums {
    /// Compiles the tables. `None` is never given for the CRCs that are used here.
    #[must_use]
    pub fn new() -> Option<Checksums> {
        Some(Checksums { icrc: Crc::new(CRC32)?, vcrc: Crc::new(VCRC)?, crc32c: Crc::new(CRC32C)? })
    }

    /// The ICRC and, on InfiniBand, the VCRC of a frame that [`roce`](super::roce) took.
    #[must_use]
    pub fn roce(&self, frame: &[u8], found: &Found) -> [Checked; 2] {
        let native = found.transport == Transport::InfiniBand;
        let end = if native { found.end.saturating_sub(2) } else { found.end };
        let icrc = self.icrc(frame, found, end).unwrap_or_default();
        let vcrc = if native { self.vcrc(frame, end).unwrap_or_default() } else { Checked::None };
        [icrc, vcrc]
    }

    fn icrc(&self, frame: &[u8], found: &Found, end: usize) -> Option<Checked> {
        let body = found.start + Bth::LEN;
        let length = Lrh::LEN + body - found.network;
        let mut usual = [0; MASKED_LENGTH_USUAL_BYTES];
        let mut long = Vec::new();
        let masked = if length <= usual.len() {
            usual.as_mut_slice()
        } else {
            long.resize(length, 0);
            long.as_mut_slice()
        };
        let (lrh, rest) = masked.split_first_chunk_mut::<{ Lrh::LEN }>()?;
        let headers = rest.get_mut(..body - found.network)?;
        headers.copy_from_slice(frame.get(found.network..body)?);
        let (network, bth) = headers.split_at_mut_checked(found.start - found.network)?;
        *bth.get_mut(4)? = 0xff;
        if network.is_empty() {
            *lrh = *frame.first_chunk()?;
            lrh[0] |= 0xf0;
        } else {
            *lrh = MASKED_LRH;
            if network.first()? >> 4 == IPV4_VERSION {
                let ip = network.first_chunk_mut::<20>()?;
                (ip[1], ip[8], ip[10], ip[11]) = (0xff, 0xff, 0xff, 0xff);
            } else {
                let ip = network.first_chunk_mut::<40>()?;
                (ip[0], ip[1], ip[2], ip[3], ip[7]) = (ip[0] | 0x0f, 0xff, 0xff, 0xff, 0xff);
            }
            if found.transport == Transport::RoceV2 {
                let udp = network.last_chunk_mut::<{ Udp::LEN }>()?;
                (udp[6], udp[7]) = (0xff, 0xff);
            }
        }
        let register = self.icrc.update(self.icrc.start(), masked.get(..length)?);
        let (payload, stored) = frame.get(body..end)?.split_last_chunk::<4>()?;
        let register = self.icrc.update(register, payload);
        Some(compare(u32::from_le_bytes(*stored), self.icrc.finish(register)))
    }

    fn vcrc(&self, frame: &[u8], end: usize) -> Option<Checked> {
        let computed = self.vcrc.of(frame.get(..end)?);
        let stored = frame.get(end..)?.first_chunk::<2>()?;
        Some(compare(u32::from(u16::from_le_bytes(*stored)), computed))
    }

    /// The CRC of an FPDU.
    #[must_use]
    pub fn iwarp(&self, unit: &[u8]) -> Checked {
        let Some((covered, stored)) = unit.split_last_chunk::<{ Fpdu::CRC_LEN }>() else { return Checked::None };
        compare(u32::from_le_bytes(*stored), self.crc32c.of(covered))
    }

    /// The CRC of an SRDMA packet: of its first 256 bytes alone where it says so (P-2.5); a sealed one has none.
    #[must_use]
    pub fn srdma(&self, bytes: &[u8]) -> Checked {
        match (SrdmaSessionView::new(bytes), bytes.split_last_chunk::<4>()) {
            (Ok(session), Some((covered, stored))) if !session.sealed() => {
                let covered = covered.get(..256).filter(|_| session.partial()).unwrap_or(covered);
                compare(u32::from_le_bytes(*stored), self.crc32c.of(covered))
            }
            _ => Checked::None,
        }
    }
}

#[inline]
fn compare(found: u32, computed: u32) -> Checked {
    if found == computed { Checked::Good } else { Checked::Bad { found, computed } }
}
