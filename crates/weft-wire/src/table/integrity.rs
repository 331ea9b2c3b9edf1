//! Checksums of packets: what they cover, computing and verifying them.

use super::definition::Coverage;
use super::extract::Endian;
use super::{ChecksumTable, Control, Decoded, Protocol, Sum, SumPlace, SumRow, Tables};
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
    /// The outcome of all together: bad if any is, good if one is and none is bad.
    #[must_use]
    pub fn worst(&self) -> Checked {
        let bad = self.checked.iter().find(|checked| matches!(checked, Checked::Bad { .. }));
        let good = self.checked.iter().find(|checked| **checked == Checked::Good);
        bad.or(good).copied().unwrap_or_default()
    }

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
        for row in &control.sums {
            let Some(checksum) = tables.checksums.get(row.number) else { continue };
            let checked = match (row.read(bytes, checksum), row.compute(control, bytes, checksum, outer)) {
                (Some(found), Some(computed)) if found == computed => Checked::Good,
                (Some(found), Some(computed)) => Checked::Bad { found, computed },
                _ => Checked::None,
            };
            if let Some(place) = integrity.checked.get_mut(row.number) {
                *place = checked;
            }
        }
        integrity
    }
}

impl Protocol {
    /// Writes all checksums, in the order in which they cover each other.
    pub(super) fn write_checksums(&self, control: &Control, packet: &mut [u8], outer: &Outer<'_>) {
        for row in &control.sums {
            let Some(checksum) = self.checksums.get(row.number) else { continue };
            if let Some(value) = row.compute(control, packet, checksum, outer) {
                row.write(packet, checksum, value);
            }
        }
    }
}

/// Room for the usual masked headers: LRH, IPv6, UDP, and an opcode's headers.
const USUAL_LENGTH_BYTES: usize = 160;
/// Routers change nothing behind these bytes of a network header.
const MASKED_NETWORK_BYTES: usize = 40;

impl SumRow {
    fn read(&self, bytes: &[u8], checksum: &ChecksumTable) -> Option<u32> {
        let big = match self.place {
            SumPlace::Field(field) => field.read(bytes) as u32,
            SumPlace::Trailer(from_end) => {
                let stored = bytes.get(bytes.len().checked_sub(from_end)?..)?.get(..checksum.bytes)?;
                stored.iter().fold(0u32, |value, byte| value << 8 | u32::from(*byte))
            }
        };
        Some(if checksum.endian == Endian::Little { swap(big, checksum.bytes) } else { big })
    }

    fn write(&self, bytes: &mut [u8], checksum: &ChecksumTable, value: u32) {
        let value = if checksum.endian == Endian::Little { swap(value, checksum.bytes) } else { value };
        match self.place {
            SumPlace::Field(field) => field.write(bytes, u64::from(value)),
            SumPlace::Trailer(from_end) => {
                let start = bytes.len().saturating_sub(from_end);
                if let Some(stored) = bytes.get_mut(start..start + checksum.bytes) {
                    let big = value.to_be_bytes();
                    stored.copy_from_slice(big.get(4 - checksum.bytes..).unwrap_or(&[]));
                }
            }
        }
    }

    /// `None` when the packet is too short for its headers, or the outer headers are not known.
    fn compute(&self, control: &Control, bytes: &[u8], checksum: &ChecksumTable, outer: &Outer<'_>) -> Option<u32> {
        let header_length = usize::from(control.header_length);
        let end = match self.place {
            SumPlace::Field(_) => bytes.len().checked_sub(usize::from(control.trailer_length))?,
            SumPlace::Trailer(from_end) => bytes.len().checked_sub(from_end)?,
        };
        let covered = bytes.get(..end)?;
        if let Some((when, most)) = &self.first
            && covered.len() >= header_length
            && when.read(covered) != 0
        {
            return Some(checksum.sum.over(&[covered.get(..*most).unwrap_or(covered)]));
        }
        let (headers, body) = covered.split_at_checked(header_length)?;
        match checksum.over {
            Coverage::Packet if self.masks.is_empty() => Some(checksum.sum.over(&[covered])),
            Coverage::Link => Some(checksum.sum.over(&[outer.link, outer.network, outer.udp, covered])),
            over => {
                let body = if over == Coverage::Headers { &[] } else { body };
                let outer = if over == Coverage::Invariant { Some(outer) } else { None };
                let length = header_length + outer.map_or(0, |o| LRH_LENGTH + o.network.len() + UDP_LENGTH);
                if length <= USUAL_LENGTH_BYTES {
                    self.masked(checksum, outer, headers, body)
                } else {
                    self.masked_long(checksum, outer, headers, body)
                }
            }
        }
    }

    /// The checksum over outer headers and headers as they count, and the body as it is. What is masked lies together,
    /// so that a CRC runs over it in long steps.
    fn masked(&self, checksum: &ChecksumTable, outer: Option<&Outer<'_>>, headers: &[u8], body: &[u8]) -> Option<u32> {
        let mut room = [0u8; USUAL_LENGTH_BYTES];
        let start = outer.map_or(Some(0), |outer| invariant_prefix(outer, &mut room))?;
        let end = start + self.masked_headers(headers, room.get_mut(start..)?)?;
        Some(checksum.sum.over(&[room.get(..end)?, body]))
    }

    /// The same for network headers of any length: what is behind their masked part is taken from where it is.
    #[cold]
    fn masked_long(
        &self,
        checksum: &ChecksumTable,
        outer: Option<&Outer<'_>>,
        headers: &[u8],
        body: &[u8],
    ) -> Option<u32> {
        let mut first = [0u8; LRH_LENGTH + MASKED_NETWORK_BYTES];
        let mut second = [0u8; UDP_LENGTH + HEADER_LENGTH_MAX_BYTES];
        let (mut first_length, mut second_length, mut between): (_, _, &[u8]) = (0, 0, &[]);
        if let Some(outer) = outer {
            let (front, behind) = outer.network.split_at(outer.network.len().min(MASKED_NETWORK_BYTES));
            first_length = invariant_prefix(&Outer { network: front, udp: &[], ..*outer }, &mut first)?;
            second_length = masked_udp(outer.udp, &mut second)?;
            between = behind;
        }
        second_length += self.masked_headers(headers, second.get_mut(second_length..)?)?;
        Some(checksum.sum.over(&[first.get(..first_length)?, between, second.get(..second_length)?, body]))
    }

    /// Copies the headers as they count. Returns how many bytes.
    fn masked_headers(&self, headers: &[u8], out: &mut [u8]) -> Option<usize> {
        let copy = out.get_mut(..headers.len())?;
        copy.copy_from_slice(headers);
        for mask in &self.masks {
            if let Some(byte) = copy.get_mut(usize::from(mask.offset)) {
                *byte = *byte & mask.keep | mask.set;
            }
        }
        Some(headers.len())
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
/// Writes the outer headers as the ICRC sees them: what routers may change is ones. Returns how many bytes; `None` when
/// there are none, or more than fits.
fn invariant_prefix(outer: &Outer<'_>, masked: &mut [u8]) -> Option<usize> {
    let network = outer.network;
    if network.is_empty() && outer.link.is_empty() {
        return None;
    }
    let (lrh, rest) = masked.split_at_mut_checked(LRH_LENGTH)?;
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
    let length = LRH_LENGTH + network.len();
    Some(length + masked_udp(outer.udp, masked.get_mut(length..)?)?)
}

/// The same for the UDP header, where there is one: its checksum is ones.
fn masked_udp(udp: &[u8], out: &mut [u8]) -> Option<usize> {
    if udp.is_empty() {
        return Some(0);
    }
    let out = out.get_mut(..UDP_LENGTH)?;
    out.copy_from_slice(udp.get(..UDP_LENGTH)?);
    if let [.., check_high, check_low] = out {
        *check_high = 0xff;
        *check_low = 0xff;
    }
    Some(UDP_LENGTH)
}
