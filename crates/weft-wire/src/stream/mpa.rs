//! MPA (RFC 5044): a TCP stream to start frames and FPDUs, with and without markers.
//!
//! Both ends send one start frame. Its M bit asks for markers in what its sender *receives*; its C bit asks for CRCs in
//! both directions. After that a direction is FPDUs only. A marker lies at every 512th byte of it, counted from the
//! first byte behind the start frame, the markers themselves included; it points back to the FPDU it is in. A marker in
//! front of an FPDU's length belongs to that FPDU. The CRC covers the markers.

use alloc::vec::Vec;
use core::fmt;

use crate::checksum::{CRC32C, Crc};
use crate::header::{Fpdu, HeaderError, MpaMarker, MpaStart};
use crate::limits::PRIVATE_DATA_MAX_BYTES;
use crate::table::{Checked, FrameKind};

const SPACING: u64 = MpaMarker::SPACING as u64;

/// One of the two directions, by who sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The one that opened the TCP connection, or any of the two when that is not known.
    A,
    /// The other.
    B,
}

/// Both directions of an MPA connection.
#[derive(Debug, Default)]
pub struct MpaConnection {
    ends: [End; 2],
    /// Made when the first marker is met: its tables are larger than all else here, and markers are rare.
    crc: Option<Crc>,
}

#[derive(Clone, Copy, Debug, Default)]
struct End {
    start: Option<StartFlags>,
    /// Bytes of this direction since its start frame.
    position: u64,
}

#[derive(Clone, Copy, Debug)]
struct StartFlags {
    markers: bool,
    crc: bool,
    rejected: bool,
}

/// A start frame or an FPDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MpaUnit<'a> {
    /// Which, for the protocol index.
    pub kind: FrameKind,
    /// Its bytes without markers.
    pub bytes: &'a [u8],
    /// The CRC's outcome, where the tables cannot tell: it covered markers which are no longer in `bytes`, or the two
    /// ends agreed to do without.
    pub crc: Option<Checked>,
}

/// What comes next in a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MpaStep<'a> {
    /// The unit is not complete.
    NeedMore,
    /// A unit that takes the first `consumed` bytes.
    Unit {
        /// Bytes of the stream.
        consumed: usize,
        /// The unit.
        unit: MpaUnit<'a>,
    },
}

/// Why a direction cannot be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MpaError {
    /// It does not begin with an MPA start frame.
    NotMpa,
    /// The start frame claims more private data than allowed.
    PrivateData(usize),
    /// The connection was rejected, yet something follows.
    Rejected,
    /// A marker does not point to its FPDU: the stream is out of step.
    Marker {
        /// Where it should point.
        expected: u64,
        /// Where it does.
        found: u64,
    },
    /// A header did not parse.
    Header(HeaderError),
}

impl fmt::Display for MpaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MpaError::NotMpa => write!(f, "the TCP stream does not begin with an MPA start frame"),
            MpaError::PrivateData(length) => {
                write!(
                    f,
                    "an MPA start frame claims {length} bytes of private data, at most {PRIVATE_DATA_MAX_BYTES} are allowed"
                )
            }
            MpaError::Rejected => write!(f, "bytes behind an MPA start frame that rejected the connection"),
            MpaError::Marker { expected, found } => {
                write!(f, "an MPA marker points {found} bytes back, its FPDU began {expected} back")
            }
            MpaError::Header(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for MpaError {}

impl MpaConnection {
    /// Before the first byte.
    #[must_use]
    pub fn new() -> MpaConnection {
        MpaConnection::default()
    }

    /// Cuts the next unit off the front of what `side` sent. `scratch` holds a unit whose markers are taken out.
    pub fn next<'a>(
        &mut self,
        side: Side,
        stream: &'a [u8],
        scratch: &'a mut Vec<u8>,
    ) -> Result<MpaStep<'a>, MpaError> {
        let crc_off = self.crc_agreed() == Some(false);
        let [a, b] = &mut self.ends;
        let (own, other) = if side == Side::A { (a, b) } else { (b, a) };
        let Some(start) = own.start else { return own.start_frame(stream) };
        if start.rejected && !stream.is_empty() {
            return Err(MpaError::Rejected);
        }
        // Until the other end has said whether it wants markers, what this one sends cannot be cut. An initiator
        // waits for the reply, so nothing is held up that a valid connection sends.
        let Some(wants) = other.start else { return Ok(MpaStep::NeedMore) };
        if !wants.markers {
            return own.plain_fpdu(stream, crc_off);
        }
        if self.crc.is_none() && !crc_off {
            self.crc = Crc::new(CRC32C);
        }
        own.marked_fpdu(stream, scratch, self.crc.as_ref())
    }

    /// Whether CRCs are in use; `None` before both start frames were seen.
    #[must_use]
    pub fn crc_agreed(&self) -> Option<bool> {
        let [a, b] = &self.ends;
        Some(a.start?.crc || b.start?.crc)
    }
}

impl End {
    fn start_frame<'a>(&mut self, stream: &'a [u8]) -> Result<MpaStep<'a>, MpaError> {
        let keys = [MpaStart::KEY_REQUEST, MpaStart::KEY_REPLY];
        if !keys.iter().any(|key| stream.iter().zip(key).all(|(found, key)| found == key)) {
            return Err(MpaError::NotMpa);
        }
        if stream.len() < MpaStart::LEN {
            return Ok(MpaStep::NeedMore);
        }
        let frame = MpaStart::parse(stream).map_err(MpaError::Header)?;
        let private = usize::from(frame.private_data_length);
        if private > PRIVATE_DATA_MAX_BYTES {
            return Err(MpaError::PrivateData(private));
        }
        let consumed = MpaStart::LEN + private;
        let Some(bytes) = stream.get(..consumed) else { return Ok(MpaStep::NeedMore) };
        self.start = Some(StartFlags { markers: frame.markers, crc: frame.crc, rejected: frame.reject });
        Ok(MpaStep::Unit { consumed, unit: MpaUnit { kind: FrameKind::MpaStart, bytes, crc: Some(Checked::None) } })
    }

    fn plain_fpdu<'a>(&mut self, stream: &'a [u8], crc_off: bool) -> Result<MpaStep<'a>, MpaError> {
        if stream.len() < Fpdu::LEN {
            return Ok(MpaStep::NeedMore);
        }
        let consumed = Fpdu::parse(stream).map_err(MpaError::Header)?.frame_len();
        let Some(bytes) = stream.get(..consumed) else { return Ok(MpaStep::NeedMore) };
        self.position += consumed as u64;
        let crc = crc_off.then_some(Checked::None);
        Ok(MpaStep::Unit { consumed, unit: MpaUnit { kind: FrameKind::MpaFpdu, bytes, crc } })
    }

    fn marked_fpdu<'a>(
        &mut self,
        stream: &'a [u8],
        scratch: &'a mut Vec<u8>,
        crc: Option<&Crc>,
    ) -> Result<MpaStep<'a>, MpaError> {
        scratch.clear();
        let mut rest = stream;
        let mut at = self.position;
        // Markers point back to the length field; one in front of it points at it, with 0.
        let begin = if at.is_multiple_of(SPACING) { at + MpaMarker::LEN as u64 } else { at };
        let mut wanted = Fpdu::LEN;
        loop {
            if at.is_multiple_of(SPACING) {
                let Some((marker, behind)) = rest.split_at_checked(MpaMarker::LEN) else {
                    return Ok(MpaStep::NeedMore);
                };
                let found = u64::from(MpaMarker::parse(marker).map_err(MpaError::Header)?.fpdu_pointer);
                let expected = at.saturating_sub(begin);
                if found != expected {
                    return Err(MpaError::Marker { expected, found });
                }
                rest = behind;
                at += MpaMarker::LEN as u64;
            }
            let until_marker = SPACING - at % SPACING;
            let take = (wanted - scratch.len()).min(usize::try_from(until_marker).unwrap_or(usize::MAX));
            let Some((part, behind)) = rest.split_at_checked(take) else { return Ok(MpaStep::NeedMore) };
            scratch.extend_from_slice(part);
            rest = behind;
            at += take as u64;
            if scratch.len() < wanted {
                continue;
            }
            if wanted > Fpdu::LEN {
                break;
            }
            wanted = Fpdu::parse(scratch).map_err(MpaError::Header)?.frame_len();
        }
        let consumed = stream.len() - rest.len();
        self.position = at;
        let raw = stream.get(..consumed.saturating_sub(Fpdu::CRC_LEN)).unwrap_or(&[]);
        let stored = scratch.last_chunk::<4>().map(|stored| u32::from_le_bytes(*stored));
        let checked = match (stored, crc.map(|crc| crc.of(raw))) {
            (Some(found), Some(computed)) if found == computed => Checked::Good,
            (Some(found), Some(computed)) => Checked::Bad { found, computed },
            _ => Checked::None,
        };
        let unit = MpaUnit { kind: FrameKind::MpaFpdu, bytes: scratch, crc: Some(checked) };
        Ok(MpaStep::Unit { consumed, unit })
    }
}

/// Puts markers into an FPDU that begins at `position` of its direction, and computes its CRC anew. Returns the
/// position behind it. Without `crc` the CRC field is zero.
pub fn mark(position: u64, fpdu: &[u8], crc: Option<&Crc>, out: &mut Vec<u8>) -> u64 {
    let start = out.len();
    let begin = if position.is_multiple_of(SPACING) { position + MpaMarker::LEN as u64 } else { position };
    let mut at = position;
    let body = fpdu.len().saturating_sub(Fpdu::CRC_LEN);
    let (body, _) = fpdu.split_at(body);
    let put = |bytes: &[u8], out: &mut Vec<u8>, at: &mut u64| {
        for byte in bytes {
            if at.is_multiple_of(SPACING) {
                let pointer = at.saturating_sub(begin) as u16;
                let [high, low] = pointer.to_be_bytes();
                out.extend_from_slice(&[0, 0, high, low]);
                *at += MpaMarker::LEN as u64;
            }
            out.push(*byte);
            *at += 1;
        }
    };
    put(body, out, &mut at);
    // A marker that falls between body and CRC is covered too: it is put before the CRC is known.
    put(&[0], out, &mut at);
    out.pop();
    at -= 1;
    let value = crc.map_or(0, |crc| crc.of(out.get(start..).unwrap_or(&[])));
    out.extend_from_slice(&value.to_le_bytes());
    at + 4
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec;

    fn start(reply: bool, markers: bool, crc: bool, private: &[u8]) -> Vec<u8> {
        let key = if reply { MpaStart::KEY_REPLY } else { MpaStart::KEY_REQUEST };
        let header = MpaStart {
            key,
            markers,
            crc,
            reject: false,
            enhanced: false,
            reserved4: 0,
            revision: 1,
            private_data_length: private.len() as u16,
        };
        let mut out = vec![0; MpaStart::LEN];
        header.emit(&mut out).unwrap();
        out.extend_from_slice(private);
        out
    }

    /// An FPDU without markers, its CRC right.
    fn fpdu(ulpdu: &[u8], crc: &Crc) -> Vec<u8> {
        let mut out = (ulpdu.len() as u16).to_be_bytes().to_vec();
        out.extend_from_slice(ulpdu);
        out.resize(out.len().next_multiple_of(4), 0);
        let value = crc.of(&out);
        out.extend_from_slice(&value.to_le_bytes());
        out
    }

    type Units = Vec<(Vec<u8>, Option<Checked>)>;

    fn units(connection: &mut MpaConnection, side: Side, mut stream: &[u8]) -> Result<Units, MpaError> {
        let mut found = Vec::new();
        let mut scratch = Vec::new();
        while let MpaStep::Unit { consumed, unit } = connection.next(side, stream, &mut scratch)? {
            found.push((unit.bytes.to_vec(), unit.crc));
            stream = &stream[consumed..];
        }
        Ok(found)
    }

    fn connected(markers: bool) -> MpaConnection {
        let mut connection = MpaConnection::new();
        assert_eq!(units(&mut connection, Side::A, &start(false, false, true, b"hello")).unwrap().len(), 1);
        assert_eq!(units(&mut connection, Side::B, &start(true, markers, false, b"")).unwrap().len(), 1);
        assert_eq!(connection.crc_agreed(), Some(true));
        connection
    }

    proptest! {
        #[test]
        fn markers_go_in_and_come_out(lengths in proptest::collection::vec(0usize..1500, 1..12), cut in any::<usize>()) {
            let crc = Crc::new(CRC32C).unwrap();
            let plain: Vec<_> = lengths.iter().map(|n| fpdu(&(0..*n).map(|i| i as u8).collect::<Vec<_>>(), &crc)).collect();
            let mut stream = Vec::new();
            let mut position = 0;
            for unit in &plain {
                position = mark(position, unit, Some(&crc), &mut stream);
                prop_assert_eq!(position, stream.len() as u64);
            }
            // Each marker is where it should be: every 512 bytes, pointing into its FPDU.
            let mut connection = connected(true);
            // First a part, then all that was not consumed: units must not depend on how bytes arrive.
            let cut = cut % (stream.len() + 1);
            let mut found = Vec::new();
            let mut consumed_total = 0;
            let mut scratch = Vec::new();
            for end in [cut, stream.len()] {
                while let MpaStep::Unit { consumed, unit } =
                    connection.next(Side::A, &stream[consumed_total..end], &mut scratch).unwrap()
                {
                    prop_assert_eq!(unit.crc, Some(Checked::Good));
                    found.push(unit.bytes[..unit.bytes.len() - 4].to_vec());
                    consumed_total += consumed;
                }
            }
            prop_assert_eq!(consumed_total, stream.len());
            let bodies: Vec<_> = plain.iter().map(|unit| unit[..unit.len() - 4].to_vec()).collect();
            prop_assert_eq!(found, bodies);
        }

        #[test]
        fn no_stream_panics(bytes in proptest::collection::vec(any::<u8>(), 0..1200), markers: bool) {
            let _ = units(&mut connected(markers), Side::A, &bytes);
            let _ = units(&mut MpaConnection::new(), Side::B, &bytes);
        }
    }

    #[test]
    fn without_markers_units_are_slices_of_the_stream() {
        let crc = Crc::new(CRC32C).unwrap();
        let (one, two) = (fpdu(b"one", &crc), fpdu(b"twenty-two", &crc));
        let stream = [one.clone(), two.clone()].concat();
        assert_eq!(units(&mut connected(false), Side::A, &stream).unwrap(), [(one, None), (two, None)]);
    }

    #[test]
    fn faults_are_named() {
        let mut connection = MpaConnection::new();
        assert_eq!(units(&mut connection, Side::A, b"GET / HTTP/1.1\r\n"), Err(MpaError::NotMpa));
        assert_eq!(units(&mut connection, Side::A, b"MPA ID Re"), Ok(vec![]));
        let mut long = start(false, false, true, b"");
        long[18..20].copy_from_slice(&513u16.to_be_bytes());
        assert_eq!(units(&mut connection, Side::A, &long), Err(MpaError::PrivateData(513)));
        let mut reject = start(true, false, true, b"");
        reject[16] |= 0x20;
        reject.push(1);
        assert_eq!(units(&mut connection, Side::B, &reject), Err(MpaError::Rejected));
        let crc = Crc::new(CRC32C).unwrap();
        let mut stream = Vec::new();
        mark(0, &fpdu(&[7; 600], &crc), Some(&crc), &mut stream);
        let mut bent = stream.clone();
        bent[515] ^= 1;
        assert!(matches!(units(&mut connected(true), Side::A, &bent), Err(MpaError::Marker { expected: 508, .. })));
        let mut corrupt = stream;
        corrupt[100] ^= 1;
        assert!(matches!(units(&mut connected(true), Side::A, &corrupt).unwrap()[0].1, Some(Checked::Bad { .. })));
    }
}
