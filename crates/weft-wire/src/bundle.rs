//! Bundles of SRDMA: several small packets of one session in one datagram (`docs/protocol.md`, P-2.9).
//!
//! [`entries`] finds them, whatever the bytes are; [`alone`] makes of one the packet that it stands for, so that the
//! tables can decode it. Both are for tools that read captures: an engine has opened and verified the datagram first.
//!
//! ```
//! use weft_wire::bundle;
//! use weft_wire::command::{Command, Flags, Kind};
//! use weft_wire::table::{Decoded, Outer, Tables};
//!
//! let tables = Tables::builtin()?;
//! let srdma = tables.find("srdma").unwrap();
//! let probe = [&[0, 32, 0x46][..], &[0; 31]].concat();
//! let two = [&probe[..], &probe].concat();
//! let mut datagram = [0; 256];
//! let command = Command::new(Kind::Bundle, Flags::default());
//! let length = tables.encode(srdma, &command, &two, &Outer::default(), &mut datagram)?;
//!
//! let datagram = &datagram[..length];
//! let mut scratch = Vec::new();
//! for entry in bundle::entries(datagram) {
//!     let packet = bundle::alone(datagram, &entry?, &mut scratch).unwrap();
//!     let mut decoded = Decoded::default();
//!     tables.decode(srdma, packet, &mut decoded)?;
//!     assert_eq!(decoded.command.kind(), Kind::Probe);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use alloc::vec::Vec;
use core::fmt;
use core::iter::FusedIterator;
use core::ops::Range;

use crate::header::{SrdmaSession, SrdmaSessionView, SrdmaTransport};

/// Bytes of the length in front of an entry.
pub const LENGTH_BYTES: usize = 2;
/// Bytes of the trailer of an unsealed datagram.
pub const TRAILER_BYTES: usize = 4;

/// The first byte of a session header without its `bundle` bit.
const NOT_A_BUNDLE: u8 = !0x04;

/// Where the entries of a bundle lie in `datagram`, which is unsealed and whole: from session header to trailer.
///
/// The first error is the last item: that entry and those behind it are not packets, those before it are.
pub fn entries(datagram: &[u8]) -> impl FusedIterator<Item = Result<Range<usize>, BundleError>> + '_ {
    Entries { datagram, at: SrdmaSession::LEN, is_done: false }
}

/// The packet that an entry of `datagram` stands for: the session header with `bundle` = 0, the entry, and four bytes
/// of zero where its trailer would be, which nobody may verify. It is made in `out`; `None` when the range is none of
/// the datagram's.
pub fn alone<'o>(datagram: &[u8], entry: &Range<usize>, out: &'o mut Vec<u8>) -> Option<&'o [u8]> {
    let session = datagram.first_chunk::<{ SrdmaSession::LEN }>()?;
    let entry = datagram.get(entry.clone())?;
    out.clear();
    out.extend_from_slice(session);
    if let Some(first) = out.first_mut() {
        *first &= NOT_A_BUNDLE;
    }
    out.extend_from_slice(entry);
    out.extend_from_slice(&[0; TRAILER_BYTES]);
    Some(out)
}

/// Why a bundle ends before its last byte. Offsets count from the first byte of the datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BundleError {
    /// No session header of an unsealed bundle, or no room for a trailer behind it.
    NotABundle,
    /// There is no entry.
    Empty,
    /// The entry at this offset cannot hold a transport header.
    Short {
        /// Where its length stands.
        at: usize,
        /// What it says.
        length: usize,
    },
    /// The entry at this offset leaves the datagram.
    Leaves {
        /// Where its length stands.
        at: usize,
        /// What it says, with the length's own bytes.
        needed: usize,
        /// Bytes that are there.
        have: usize,
    },
}

impl fmt::Display for BundleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BundleError::NotABundle => write!(f, "not an unsealed bundle"),
            BundleError::Empty => write!(f, "a bundle without an entry"),
            BundleError::Short { at, length } => {
                write!(f, "the entry at byte {at} has {length} bytes, a transport header {}", SrdmaTransport::LEN)
            }
            BundleError::Leaves { at, needed, have } => {
                write!(f, "the entry at byte {at} takes {needed} bytes, {have} are left")
            }
        }
    }
}

impl core::error::Error for BundleError {}

struct Entries<'a> {
    datagram: &'a [u8],
    /// Where the next length stands.
    at: usize,
    is_done: bool,
}

impl Entries<'_> {
    /// The next entry; `None` behind the last.
    fn step(&self) -> Result<Option<Range<usize>>, BundleError> {
        let is_bundle = |session: &SrdmaSessionView<'_>| {
            session.version() == SrdmaSession::VERSION && session.bundle() && !session.sealed()
        };
        if !SrdmaSessionView::new(self.datagram).is_ok_and(|session| is_bundle(&session)) {
            return Err(BundleError::NotABundle);
        }
        let at = self.at;
        let (covered, _) = self.datagram.split_last_chunk::<TRAILER_BYTES>().ok_or(BundleError::NotABundle)?;
        let rest = covered.get(at..).ok_or(BundleError::NotABundle)?;
        if rest.is_empty() {
            return if at == SrdmaSession::LEN { Err(BundleError::Empty) } else { Ok(None) };
        }
        let Some((length, rest)) = rest.split_first_chunk::<LENGTH_BYTES>() else {
            return Err(BundleError::Leaves { at, needed: LENGTH_BYTES, have: rest.len() });
        };
        let length = usize::from(u16::from_be_bytes(*length));
        if length < SrdmaTransport::LEN {
            return Err(BundleError::Short { at, length });
        }
        if length > rest.len() {
            return Err(BundleError::Leaves { at, needed: LENGTH_BYTES + length, have: LENGTH_BYTES + rest.len() });
        }
        let start = at + LENGTH_BYTES;
        Ok(Some(start..start + length))
    }
}

impl Iterator for Entries<'_> {
    type Item = Result<Range<usize>, BundleError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_done {
            return None;
        }
        let step = self.step();
        match &step {
            Ok(Some(entry)) => self.at = entry.end,
            Ok(None) | Err(_) => self.is_done = true,
        }
        step.transpose()
    }
}

impl FusedIterator for Entries<'_> {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Command, Flags, Kind};
    use crate::table::{Checked, Decoded, Outer, Tables};
    use proptest::prelude::*;
    use std::vec;

    const SESSION: [u8; SrdmaSession::LEN] = [0x14, 1, 0, 0, 9, 9, 9, 9, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 7];

    fn with_lengths(entries: &[(u16, Vec<u8>)]) -> Vec<u8> {
        let mut datagram = SESSION.to_vec();
        for (length, entry) in entries {
            datagram.extend_from_slice(&length.to_be_bytes());
            datagram.extend_from_slice(entry);
        }
        datagram.extend_from_slice(&[0xee; TRAILER_BYTES]);
        datagram
    }

    fn bundle(entries: &[Vec<u8>]) -> Vec<u8> {
        let honest: Vec<_> = entries.iter().map(|entry| (entry.len() as u16, entry.clone())).collect();
        with_lengths(&honest)
    }

    fn walk(datagram: &[u8]) -> (Vec<Range<usize>>, Option<BundleError>) {
        let (mut good, mut bad) = (Vec::new(), None);
        for entry in entries(datagram) {
            assert_eq!(bad, None, "nothing comes behind an error");
            match entry {
                Ok(entry) => good.push(entry),
                Err(error) => bad = Some(error),
            }
        }
        (good, bad)
    }

    #[test]
    fn what_is_wrong_is_said_and_what_came_before_stands() {
        let whole = vec![0x46; 32];
        let cases: [(Vec<u8>, usize, Option<BundleError>); 7] = [
            (bundle(&[whole.clone(), vec![1; 40]]), 2, None),
            (bundle(&[]), 0, Some(BundleError::Empty)),
            (bundle(&[whole.clone(), vec![1; 31]]), 1, Some(BundleError::Short { at: 54, length: 31 })),
            (bundle(&[vec![]]), 0, Some(BundleError::Short { at: 20, length: 0 })),
            (
                with_lengths(&[(32, whole.clone()), (33, whole.clone())]),
                1,
                Some(BundleError::Leaves { at: 54, needed: 35, have: 34 }),
            ),
            // The four bytes of the trailer belong to no entry.
            (
                with_lengths(&[(u16::MAX, whole.clone())]),
                0,
                Some(BundleError::Leaves { at: 20, needed: 65537, have: 34 }),
            ),
            (
                [&bundle(core::slice::from_ref(&whole))[..], &[0]].concat(),
                1,
                Some(BundleError::Leaves { at: 54, needed: 2, have: 1 }),
            ),
        ];
        for (datagram, good, bad) in cases {
            let walked = walk(&datagram);
            assert_eq!((walked.0.len(), walked.1), (good, bad), "{datagram:02x?}");
        }
        for first in [0x10, 0x18, 0x1c, 0x24] {
            let mut datagram = bundle(core::slice::from_ref(&whole));
            datagram[0] = first;
            assert_eq!(walk(&datagram), (vec![], Some(BundleError::NotABundle)), "sealed, no bundle, another version");
        }
        for length in 0..24 {
            let datagram = bundle(core::slice::from_ref(&whole));
            assert_eq!(walk(&datagram[..length]), (vec![], Some(BundleError::NotABundle)));
        }
    }

    #[test]
    fn an_entry_is_what_the_packet_alone_is() {
        let tables = Tables::builtin().unwrap();
        let srdma = tables.find("srdma").unwrap();
        let mut packets = Vec::new();
        for (kind, flags) in
            [(Kind::Send, Flags::FIRST), (Kind::Acknowledge, Flags::RESPONSE), (Kind::Write, Flags::LAST)]
        {
            let mut packet = vec![0; 128];
            let command = Command::new(kind, flags);
            let length = tables.encode(srdma, &command, b"payload", &Outer::default(), &mut packet).unwrap();
            packet.truncate(length);
            packets.push(packet);
        }
        let bare = |packet: &[u8]| packet[SrdmaSession::LEN..packet.len() - TRAILER_BYTES].to_vec();
        let made = bundle(&packets.iter().map(|packet| bare(packet)).collect::<Vec<_>>());

        // The tables make and verify the datagram around them.
        let mut datagram = vec![0; 1024];
        let inside = &made[SrdmaSession::LEN..made.len() - TRAILER_BYTES];
        let command = Command::new(Kind::Bundle, Flags::default());
        let length = tables.encode(srdma, &command, inside, &Outer::default(), &mut datagram).unwrap();
        let datagram = &datagram[..length];
        let mut decoded = Decoded::default();
        tables.decode(srdma, datagram, &mut decoded).unwrap();
        assert_eq!((decoded.command.kind(), decoded.payload(datagram)), (Kind::Bundle, inside));
        assert_eq!(tables.verify(&decoded, datagram, &Outer::default()).checked[0], Checked::Good);

        let mut scratch = Vec::new();
        let mut count = 0;
        for (entry, packet) in entries(datagram).zip(&packets) {
            let again = alone(datagram, &entry.unwrap(), &mut scratch).unwrap();
            let without_trailer = packet.len() - TRAILER_BYTES;
            assert_eq!((again.len(), &again[..without_trailer]), (packet.len(), &packet[..without_trailer]));
            count += 1;
        }
        assert_eq!(count, packets.len());
        assert_eq!(alone(datagram, &(20..length + 1), &mut scratch), None);
    }

    fn any_entries() -> impl Strategy<Value = Vec<Vec<u8>>> {
        prop::collection::vec(prop::collection::vec(any::<u8>(), SrdmaTransport::LEN..90), 1..12)
    }

    /// What holds for any bytes: entries lie behind each other from the session header on, none of them too short, all
    /// before the trailer; without an error they reach it.
    fn holds(datagram: &[u8]) -> (Vec<Range<usize>>, Option<BundleError>) {
        let (good, bad) = walk(datagram);
        let mut at = SrdmaSession::LEN;
        let mut scratch = Vec::new();
        for entry in &good {
            assert_eq!(entry.start, at + LENGTH_BYTES);
            assert!(entry.len() >= SrdmaTransport::LEN && entry.end + TRAILER_BYTES <= datagram.len());
            let packet = alone(datagram, entry, &mut scratch).unwrap();
            assert_eq!(walk(packet).1, Some(BundleError::NotABundle));
            at = entry.end;
        }
        assert!(bad.is_some() || at + TRAILER_BYTES == datagram.len());
        (good, bad)
    }

    proptest! {
        #[test]
        fn random_bundles_round_trip(packets in any_entries()) {
            let datagram = bundle(&packets);
            let (found, error) = holds(&datagram);
            prop_assert_eq!(error, None);
            let found: Vec<_> = found.into_iter().map(|entry| datagram[entry].to_vec()).collect();
            prop_assert_eq!(found, packets);
        }

        #[test]
        fn cut_anywhere_the_front_stands(packets in any_entries(), cut in any::<prop::sample::Index>()) {
            let whole = bundle(&packets);
            let (all, _) = walk(&whole);
            let length = cut.index(whole.len());
            let (found, error) = holds(&whole[..length]);
            prop_assert_eq!(&all[..found.len()], &found[..]);
            // Only a cut right behind an entry and four bytes more goes unseen; the checksum finds it.
            let unseen = found.last().is_some_and(|last| last.end + TRAILER_BYTES == length);
            prop_assert_eq!(error.is_none(), unseen);
        }

        #[test]
        fn lying_lengths(packets in any_entries(), lie in any::<u16>(), at in any::<prop::sample::Index>()) {
            let liar = at.index(packets.len());
            let said = |number: usize, entry: &[u8]| if number == liar { lie } else { entry.len() as u16 };
            let lengths: Vec<_> = packets.iter().enumerate().map(|(n, e)| (said(n, e), e.clone())).collect();
            let (found, _) = holds(&with_lengths(&lengths));
            let before = &walk(&bundle(&packets)).0[..liar];
            prop_assert_eq!(&found[..liar], before);
        }

        #[test]
        fn any_bytes(mut bytes in prop::collection::vec(any::<u8>(), 0..300), is_bundle in any::<bool>()) {
            if let (true, Some(first)) = (is_bundle, bytes.first_mut()) {
                *first = SESSION[0];
            }
            holds(&bytes);
        }
    }
}
