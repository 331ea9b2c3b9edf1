//! The internet checksum (RFC 1071) of IPv4, UDP, TCP and GRE.
//!
//! Headers keep their checksum as it was on the wire; computing, filling and comparing are separate steps, because
//! links may leave them to hardware and RoCEv2 sends UDP without one.

use super::HeaderError;

/// A running one's-complement sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checksum {
    // 64 bits hold the carries of 2^32 additions, so folding can wait for the end.
    sum: u64,
    /// An odd number of bytes was added: the next one is the low half of a word.
    odd: bool,
}

impl Checksum {
    /// The sum of nothing.
    pub const fn new() -> Self {
        Self { sum: 0, odd: false }
    }

    /// Adds `bytes` behind what was added before. An odd last byte counts as if a zero followed, until more comes.
    #[must_use]
    pub fn add_bytes(mut self, mut bytes: &[u8]) -> Self {
        if self.odd
            && let [first, rest @ ..] = bytes
        {
            self.sum += u64::from(*first);
            self.odd = false;
            bytes = rest;
        }
        // Sums of 32-bit words fold to the same 16 bits as sums of 16-bit words (RFC 1071, section 2).
        let (words, tail) = bytes.as_chunks::<4>();
        for word in words {
            self.sum += u64::from(u32::from_be_bytes(*word));
        }
        let mut last = [0; 4];
        for (to, from) in last.iter_mut().zip(tail) {
            *to = *from;
        }
        self.sum += u64::from(u32::from_be_bytes(last));
        self.odd ^= bytes.len() % 2 == 1;
        self
    }

    /// Adds one 16-bit word.
    #[must_use]
    pub fn add_u16(self, word: u16) -> Self {
        self.add_bytes(&word.to_be_bytes())
    }

    /// The checksum: the complement of the folded sum.
    pub fn finish(self) -> u16 {
        let mut sum = self.sum;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }

    /// Adds `bytes` except for the 16-bit checksum field at `at`, which counts as zero.
    pub(super) fn add_around(self, bytes: &[u8], at: usize) -> Result<Self, HeaderError> {
        match (bytes.get(..at), bytes.get(at.saturating_add(2)..)) {
            (Some(before), Some(after)) => Ok(self.add_bytes(before).add_bytes(after)),
            _ => Err(HeaderError::Truncated { needed: at.saturating_add(2), have: bytes.len() }),
        }
    }
}

/// The addresses that UDP and TCP checksums cover besides their own bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PseudoHeader {
    /// RFC 768 and RFC 9293.
    Ipv4 {
        /// Source address.
        source: [u8; 4],
        /// Destination address.
        destination: [u8; 4],
    },
    /// RFC 8200, section 8.1.
    Ipv6 {
        /// Source address.
        source: [u8; 16],
        /// Destination address: the final one, where a routing header names others.
        destination: [u8; 16],
    },
}

impl PseudoHeader {
    /// The sum of the pseudo-header for `length` bytes of `protocol`.
    pub fn sum(&self, protocol: u8, length: usize) -> Checksum {
        let addresses = match self {
            Self::Ipv4 { source, destination } => Checksum::new().add_bytes(source).add_bytes(destination),
            Self::Ipv6 { source, destination } => Checksum::new().add_bytes(source).add_bytes(destination),
        };
        // A length past 32 bits cannot be carried by IP; the sum of its 64-bit form is right for all that can.
        addresses.add_u16(u16::from(protocol)).add_bytes(&(length as u64).to_be_bytes())
    }
}

/// Writes `value` to the 16-bit field at `at`.
pub(super) fn fill(bytes: &mut [u8], at: usize, value: u16) -> Result<(), HeaderError> {
    let have = bytes.len();
    let field = bytes.get_mut(at..).and_then(<[u8]>::first_chunk_mut::<2>);
    *field.ok_or(HeaderError::Truncated { needed: at.saturating_add(2), have })? = value.to_be_bytes();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// RFC 1071 word by word, as plainly as it can be said.
    fn plain(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u32::from(*low));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }

    #[test]
    fn the_example_of_rfc_1071() {
        let sum = Checksum::new().add_bytes(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
        assert_eq!(sum.finish(), !0xddf2);
    }

    proptest! {
        #[test]
        fn agrees_with_the_plain_sum(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(Checksum::new().add_bytes(&bytes).finish(), plain(&bytes));
        }
    }
}
