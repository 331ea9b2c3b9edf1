//! Checksums of packets: what they cover, computing and verifying them.

use super::definition::Coverage;
use super::extract::{Endian, Extract};
use super::{ChecksumTable, Control, Decoded, Protocol, Sum, Tables};
use crate::header::Checksum;
use crate::limits::{CHECKSUMS_MAX, HEADER_LENGTH_MAX_BYTES};

/// The headers in front of a protocol's first byte, as far as checksums cover them. A program that works on sockets and
/// never sees them builds them from what it knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outer<'a> {
    /// The LRH, on InfiniBand.
    pub link: &'a [u8],
    /// The IPv4 header with options, the IPv6 header with extensions, or the GRH.
    pub network: &'a [u8],
    /// The UDP header.
    pub udp: &'a [u8],
}

/// What became of one checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Checked {
    /// The packet has none.
    #[default]
    None,
    /// It is what it should be.
    Good,
    /// It is not.
    Bad {
        /// In the packet.
        found: u32,
        /// From the packet's bytes.
        computed: u32,
    },
}

impl Checked {
    /// `good`, `bad` or `none`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Checked::None => "none",
            Checked::Good => "good",
            Checked::Bad { .. } => "bad",
        }
    }
}

/// The outcome for each checksum, in the order of the definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Integrity {
    /// Indexed as [`Protocol::checksum_names`].
    pub checked: [Checked; CHECKSUMS_MAX],
}

impl Integrity {
    /// Whether no checksum is bad.
    #[must_use]
    pub fn is_intact(&self) -> bool {
        !self.checked.iter().any(|checked| matches!(checked, Checked::Bad { .. }))
    }
}

impl Tables {
    /// Verifies all checksums of a decoded packet.
    #[must_use]
    pub fn verify(&self, decoded: &Decoded, bytes: &[u8], outer: &Outer<'_>) -> Integrity {
        let mut integrity = Integrity::default();
        let Some(tables) = self.protocol(decoded.protocol) else { return integrity };
        let Some(control) = tables.control(decoded.opcode) else { return integrity };
        for (part, checksum) in tables.parts(control, bytes.len()) {
            let found = part.read(bytes, checksum);
            let computed = part.compute(bytes, checksum, outer);
            let checked = match (found, computed) {
                (Some(found), Some(computed)) if found == computed => Checked::Good,
                (Some(found), Some(computed)) => Checked::Bad { found, computed },
                _ => Checked::None,
            };
            if let Some(place) = integrity.checked.get_mut(part.number) {
                *place = checked;
            }
        }
        integrity
    }
}

impl Protocol {
    /// Writes all checksums; trailers in order, so that a later one covers an earlier one.
    pub(super) fn write_checksums(&self, control: &Control, packet: &mut [u8], outer: &Outer<'_>) {
        for (part, checksum) in self.parts(control, packet.len()) {
            if let Some(value) = part.compute(packet, checksum, outer) {
                part.write(packet, checksum, value);
            }
        }
    }

    /// The checksums of one packet: header fields first, since trailers cover them.
    fn parts<'a>(&'a self, control: &'a Control, length: usize) -> impl Iterator<Item = (Part<'a>, &'a ChecksumTable)> {
        let numbered = control.checksums.iter().zip(&control.ones);
        let known = move |header_fields: bool| {
            let mut at = length.saturating_sub(usize::from(control.trailer_length));
            numbered.clone().filter_map(move |(number, ones)| {
                let checksum = self.checksums.get(*number)?;
                let field = checksum.field.as_ref().and_then(|name| {
                    let field = control.fields.iter().find(|field| field.full_name == *name)?;
                    field.extracts.first().copied()
                });
                let part = Part { number: *number, field, at, ones, control, length };
                at += checksum.trailer_bytes;
                (checksum.field.is_some() == header_fields).then_some((part, checksum))
            })
        };
        known(true).chain(known(false))
    }
}

/// One checksum of one packet.
struct Part<'a> {
    number: usize,
    field: Option<Extract>,
    /// First byte of the trailer.
    at: usize,
    ones: &'a [Extract],
    control: &'a Control,
    length: usize,
}

impl Part<'_> {
    fn read(&self, bytes: &[u8], checksum: &ChecksumTable) -> Option<u32> {
        if let Some(field) = self.field {
            let value = field.read(bytes) as u32;
            return Some(if checksum.endian == Endian::Little { swap(value, checksum.bytes) } else { value });
        }
        let stored = bytes.get(self.at..self.at + checksum.bytes)?;
        let big = stored.iter().fold(0u32, |value, byte| value << 8 | u32::from(*byte));
        Some(if checksum.endian == Endian::Little { swap(big, checksum.bytes) } else { big })
    }

    fn write(&self, bytes: &mut [u8], checksum: &ChecksumTable, value: u32) {
        let value = if checksum.endian == Endian::Little { swap(value, checksum.bytes) } else { value };
        if let Some(field) = self.field {
            field.write(bytes, u64::from(value));
        } else if let Some(stored) = bytes.get_mut(self.at..self.at + checksum.bytes) {
            let big = value.to_be_bytes();
            stored.copy_from_slice(big.get(4 - checksum.bytes..).unwrap_or(&[]));
        }
    }

    /// `None` when the packet is too short for its headers, or the outer headers are not known.
    fn compute(&self, bytes: &[u8], checksum: &ChecksumTable, outer: &Outer<'_>) -> Option<u32> {
        let header_length = usize::from(self.control.header_length);
        let mut headers = [0u8; HEADER_LENGTH_MAX_BYTES];
        let headers = headers.get_mut(..header_length)?;
        headers.copy_from_slice(bytes.get(..header_length)?);
        for field in self.ones {
            field.write(headers, u64::MAX);
        }
        let end = match self.field {
            Some(field) => {
                field.write(headers, 0);
                self.length.saturating_sub(usize::from(self.control.trailer_length))
            }
            None => self.at,
        };
        let body = bytes.get(header_length..end)?;
        match checksum.over {
            Coverage::Packet => Some(checksum.sum.over(&[headers, body])),
            Coverage::Headers => Some(checksum.sum.over(&[headers])),
            Coverage::Link => {
                Some(checksum.sum.over(&[outer.link, outer.network, outer.udp, bytes.get(..header_length)?, body]))
            }
            Coverage::Invariant => {
                let mut masked = [0u8; MASKED_LENGTH_MAX_BYTES];
                let prefix = invariant_prefix(outer, &mut masked)?;
                Some(checksum.sum.over(&[prefix, headers, body]))
            }
        }
    }
}

fn swap(value: u32, bytes: usize) -> u32 {
    value.swap_bytes() >> (32 - 8 * bytes.clamp(1, 4))
}

impl Sum {
    fn over(&self, parts: &[&[u8]]) -> u32 {
        match self {
            Sum::Crc(crc) => crc.finish(parts.iter().fold(crc.start(), |register, part| crc.update(register, part))),
            Sum::Internet => u32::from(parts.iter().fold(Checksum::new(), |sum, part| sum.add_bytes(part)).finish()),
            Sum::Bytes => u32::from(parts.iter().flat_map(|part| *part).fold(0u8, |sum, byte| sum.wrapping_add(*byte))),
            Sum::Xor => u32::from(parts.iter().flat_map(|part| *part).fold(0u8, |sum, byte| sum ^ byte)),
        }
    }
}

const LRH_LENGTH: usize = 8;
const UDP_LENGTH: usize = 8;
/// LRH, then the longest network header that the ICRC is defined for (IPv4 with options; IPv6 with a few extensions),
/// then UDP.
const MASKED_LENGTH_MAX_BYTES: usize = LRH_LENGTH + 256 + UDP_LENGTH;

/// The outer headers as the ICRC sees them: what routers may change is ones. `None` when there are none, or more than
/// fits.
fn invariant_prefix<'a>(outer: &Outer<'_>, masked: &'a mut [u8; MASKED_LENGTH_MAX_BYTES]) -> Option<&'a [u8]> {
    let network = outer.network;
    if network.is_empty() && outer.link.is_empty() {
        return None;
    }
    let (lrh, rest) = masked.split_at_mut(LRH_LENGTH);
    lrh.fill(0xff);
    if network.is_empty() {
        // Without a global route header only the virtual lane may change (LNH 2).
        lrh.copy_from_slice(outer.link.get(..LRH_LENGTH)?);
        if let Some(first) = lrh.first_mut() {
            *first |= 0xf0;
        }
    }
    let out = rest.get_mut(..network.len())?;
    out.copy_from_slice(network);
    match out {
        // Version 4: type of service, time to live, header checksum.
        [v, tos, _, _, _, _, _, _, ttl, _, check_high, check_low, ..] if *v >> 4 == 4 => {
            for byte in [tos, ttl, check_high, check_low] {
                *byte = 0xff;
            }
        }
        // Version 6, and the GRH which is laid out alike: traffic class, flow label, hop limit.
        [v, flow_a, flow_b, flow_c, _, _, _, hops, ..] if *v >> 4 == 6 => {
            *v |= 0x0f;
            for byte in [flow_a, flow_b, flow_c, hops] {
                *byte = 0xff;
            }
        }
        [] => {}
        _ => return None,
    }
    let mut length = LRH_LENGTH + network.len();
    if !outer.udp.is_empty() {
        let udp = masked.get_mut(length..length + UDP_LENGTH)?;
        udp.copy_from_slice(outer.udp.get(..UDP_LENGTH)?);
        if let [.., check_high, check_low] = udp {
            *check_high = 0xff;
            *check_low = 0xff;
        }
        length += UDP_LENGTH;
    }
    masked.get(..length)
}
