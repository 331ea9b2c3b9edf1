//! The engine's random numbers: the ChaCha8 keystream of the seed it was made with. Peers see some of the numbers (tickets,
//! psns, keys) and must not be able to tell the next from them.

use core::fmt;

/// A stream of random numbers.
#[derive(Clone)]
pub(crate) struct Random {
    key: [u32; 8],
    counter: u64,
    block: [u32; 16],
    used: usize,
}

impl Random {
    /// The stream of a seed.
    #[must_use]
    pub(crate) fn new(seed: [u8; 32]) -> Random {
        let mut key = [0; 8];
        for (word, bytes) in key.iter_mut().zip(seed.chunks_exact(4)) {
            *word = bytes.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
        }
        Random { key, counter: 0, block: [0; 16], used: 16 }
    }

    /// The next 32 bits.
    pub(crate) fn next_u32(&mut self) -> u32 {
        if self.used >= self.block.len() {
            self.refill();
        }
        let word = self.block.get(self.used).copied().unwrap_or(0);
        self.used += 1;
        word
    }

    /// The next 64 bits.
    pub(crate) fn next_u64(&mut self) -> u64 {
        u64::from(self.next_u32()) << 32 | u64::from(self.next_u32())
    }

    fn refill(&mut self) {
        let [k0, k1, k2, k3, k4, k5, k6, k7] = self.key;
        let start = [
            0x6170_7865,
            0x3320_646e,
            0x7962_2d32,
            0x6b20_6574,
            k0,
            k1,
            k2,
            k3,
            k4,
            k5,
            k6,
            k7,
            self.counter as u32,
            (self.counter >> 32) as u32,
            0,
            0,
        ];
        let mut state = start;
        for _ in 0..4 {
            quarter::<0, 4, 8, 12>(&mut state);
            quarter::<1, 5, 9, 13>(&mut state);
            quarter::<2, 6, 10, 14>(&mut state);
            quarter::<3, 7, 11, 15>(&mut state);
            quarter::<0, 5, 10, 15>(&mut state);
            quarter::<1, 6, 11, 12>(&mut state);
            quarter::<2, 7, 8, 13>(&mut state);
            quarter::<3, 4, 9, 14>(&mut state);
        }
        for (word, first) in state.iter_mut().zip(start) {
            *word = word.wrapping_add(first);
        }
        self.block = state;
        self.counter += 1;
        self.used = 0;
    }
}

#[expect(clippy::indexing_slicing, reason = "the places are constants below 16")]
fn quarter<const A: usize, const B: usize, const C: usize, const D: usize>(state: &mut [u32; 16]) {
    let (mut a, mut b, mut c, mut d) = (state[A], state[B], state[C], state[D]);
    a = a.wrapping_add(b);
    d = (d ^ a).rotate_left(16);
    c = c.wrapping_add(d);
    b = (b ^ c).rotate_left(12);
    a = a.wrapping_add(b);
    d = (d ^ a).rotate_left(8);
    c = c.wrapping_add(d);
    b = (b ^ c).rotate_left(7);
    state[A] = a;
    state[B] = b;
    state[C] = c;
    state[D] = d;
}

impl fmt::Debug for Random {
    /// Nothing of the key: a log must not give it away.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Random").field("counter", &self.counter).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keystream_of_a_zero_key_is_the_published_one() {
        // ChaCha8, 256-bit key of zeros, IV of zeros: first bytes 3e 00 ef 2f 89 5f 40 d6.
        let mut random = Random::new([0; 32]);
        assert_eq!(random.next_u32().to_le_bytes(), [0x3e, 0x00, 0xef, 0x2f]);
        assert_eq!(random.next_u32().to_le_bytes(), [0x89, 0x5f, 0x40, 0xd6]);
    }
}
