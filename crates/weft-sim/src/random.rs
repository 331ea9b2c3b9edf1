//! Numbers that only the seed decides: xoshiro256**, filled by splitmix64.

/// A deterministic source of numbers.
#[derive(Clone, Debug)]
pub struct Random {
    state: [u64; 4],
}

/// A million: chances are given in parts of it.
pub const MILLION: u32 = 1_000_000;

/// The finishing step of splitmix64: every bit of the input reaches every bit of the output.
#[must_use]
pub const fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

impl Random {
    /// The source of a seed. `purpose` keeps the sources of one seed apart.
    #[must_use]
    pub const fn new(seed: u64, purpose: u64) -> Random {
        let first = mix(seed ^ mix(purpose));
        let second = mix(first);
        let third = mix(second);
        Random { state: [first, second, third, mix(third) | 1] }
    }

    /// The next 64 bits.
    pub const fn next(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let result = b.wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let (c, d) = (c ^ a, d ^ b);
        self.state = [a ^ d, b ^ c, c ^ (b << 17), d.rotate_left(45)];
        result
    }

    /// A number below `bound`; 0 when there is none.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// A number from `low` to `high`, both possible.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low).saturating_add(1))
    }

    /// True in so many of a million cases.
    pub fn chance(&mut self, of_a_million: u32) -> bool {
        of_a_million > 0 && self.below(u64::from(MILLION)) < u64::from(of_a_million)
    }

    /// True once in `times`.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// One of several; the default of its type when there are none.
    pub fn pick<T: Copy + Default>(&mut self, from: &[T]) -> T {
        from.get(self.below(from.len() as u64) as usize).copied().unwrap_or_default()
    }

    /// A seed for an engine.
    pub fn seed(&mut self) -> [u8; 32] {
        let mut bytes = [0; 32];
        for chunk in bytes.chunks_exact_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes());
        }
        bytes
    }
}

/// Byte `at` of what operation `operation` sends or writes. Never 0, so that it differs from memory that nobody wrote.
#[must_use]
pub fn pattern(operation: u32, at: u64) -> u8 {
    let word = mix(u64::from(operation) << 32 ^ (at >> 3));
    (word >> (8 * (at & 7))) as u8 | 1
}

/// Fills `bytes` with the pattern of an operation, from its byte `from` on.
pub fn fill(operation: u32, from: u64, bytes: &mut [u8]) {
    for (at, byte) in (from..).zip(bytes) {
        *byte = pattern(operation, at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_same_numbers() {
        let (mut one, mut two, mut other) = (Random::new(7, 1), Random::new(7, 1), Random::new(7, 2));
        let of = |random: &mut Random| (0..9).map(|_| random.next()).collect::<Vec<_>>();
        assert_eq!(of(&mut one), of(&mut two));
        assert_ne!(of(&mut one), of(&mut other));
    }

    #[test]
    fn bounds_hold() {
        let mut random = Random::new(1, 1);
        for _ in 0..1000 {
            assert!(random.below(3) < 3);
            assert!((5..=6).contains(&random.between(5, 6)));
            assert!(!random.chance(0) && random.chance(MILLION));
            assert!([4, 9].contains(&random.pick(&[4, 9])));
        }
        assert_eq!(random.below(0), 0);
    }
}
