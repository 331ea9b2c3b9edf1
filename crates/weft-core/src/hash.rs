//! A keyed hash for the engine's tables. Peers choose what is hashed (addresses, message numbers), so the key is drawn
//! at start and never told; without it nobody can look for collisions.

use core::hash::{BuildHasher, Hasher};
use core::net::IpAddr;

use crate::address::Address;

/// The key of all tables of an engine.
#[derive(Clone, Debug)]
pub struct Keyed {
    first: u64,
    second: u64,
}

impl Keyed {
    /// A hash with this key.
    #[must_use]
    pub fn new(first: u64, second: u64) -> Keyed {
        Keyed { first, second: second | 1 }
    }

    /// The hash of an endpoint's address.
    #[must_use]
    pub fn hash_address(&self, address: Address) -> u64 {
        let mut hasher = self.build_hasher();
        match address.socket.ip() {
            IpAddr::V4(v4) => hasher.write_u32(u32::from(v4)),
            IpAddr::V6(v6) => {
                let bits = u128::from(v6);
                hasher.write_u64(bits as u64);
                hasher.write_u64((bits >> 64) as u64 ^ 0x6666);
            }
        }
        hasher.write_u64(u64::from(address.socket.port()) << 32 | u64::from(address.endpoint));
        hasher.finish()
    }
}

impl BuildHasher for Keyed {
    type Hasher = KeyedHasher;
    fn build_hasher(&self) -> KeyedHasher {
        KeyedHasher { state: self.first, key: self.second }
    }
}

/// Folded multiplications: each word costs one 64 × 64 bit product.
#[derive(Clone, Debug)]
pub struct KeyedHasher {
    state: u64,
    key: u64,
}

#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

impl Hasher for KeyedHasher {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word.iter_mut().zip(chunk).for_each(|(to, from)| *to = *from);
            self.write_u64(u64::from_le_bytes(word));
        }
        self.write_u64(bytes.len() as u64);
    }
    fn write_u8(&mut self, value: u8) {
        self.write_u64(u64::from(value));
    }
    fn write_u16(&mut self, value: u16) {
        self.write_u64(u64::from(value));
    }
    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }
    #[inline]
    fn write_u64(&mut self, value: u64) {
        self.state = fold(self.state ^ value, self.key ^ 0x9e37_79b9_7f4a_7c15).wrapping_add(value.rotate_left(23));
    }
    #[inline]
    fn finish(&self) -> u64 {
        fold(self.state ^ 0xa076_1d64_78bd_642f, self.key)
    }
}
