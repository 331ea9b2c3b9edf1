//! Reading and writing big-endian fields of a header whose length is part of its type.
//!
//! The offset is a constant too, so that "inside the header" is proved by the compiler: a wrong offset does not build,
//! and the code that remains has no bounds check.

/// Fields of a byte array, at offsets known when compiling.
pub(super) trait Fields {
    /// `WIDTH` bytes from `AT` on.
    fn bytes_at<const AT: usize, const WIDTH: usize>(&self) -> [u8; WIDTH];
    /// Puts `value` at `AT`.
    fn put_bytes<const AT: usize, const WIDTH: usize>(&mut self, value: [u8; WIDTH]);

    #[inline(always)]
    fn u16_at<const AT: usize>(&self) -> u16 {
        u16::from_be_bytes(self.bytes_at::<AT, 2>())
    }

    #[inline(always)]
    fn u24_at<const AT: usize>(&self) -> u32 {
        let [high, middle, low] = self.bytes_at::<AT, 3>();
        u32::from_be_bytes([0, high, middle, low])
    }

    #[inline(always)]
    fn u32_at<const AT: usize>(&self) -> u32 {
        u32::from_be_bytes(self.bytes_at::<AT, 4>())
    }

    #[inline(always)]
    fn u64_at<const AT: usize>(&self) -> u64 {
        u64::from_be_bytes(self.bytes_at::<AT, 8>())
    }

    #[inline(always)]
    fn put_u16<const AT: usize>(&mut self, value: u16) {
        self.put_bytes::<AT, 2>(value.to_be_bytes());
    }

    /// The upper eight bits of `value` do not reach the wire.
    #[inline(always)]
    fn put_u24<const AT: usize>(&mut self, value: u32) {
        let [_, high, middle, low] = value.to_be_bytes();
        self.put_bytes::<AT, 3>([high, middle, low]);
    }

    #[inline(always)]
    fn put_u32<const AT: usize>(&mut self, value: u32) {
        self.put_bytes::<AT, 4>(value.to_be_bytes());
    }

    #[inline(always)]
    fn put_u64<const AT: usize>(&mut self, value: u64) {
        self.put_bytes::<AT, 8>(value.to_be_bytes());
    }
}

impl<const N: usize> Fields for [u8; N] {
    #[inline(always)]
    fn bytes_at<const AT: usize, const WIDTH: usize>(&self) -> [u8; WIDTH] {
        const { assert!(AT + WIDTH <= N, "the field ends after the header") };
        let mut field = [0; WIDTH];
        field.copy_from_slice(&self[AT..AT + WIDTH]);
        field
    }

    #[inline(always)]
    fn put_bytes<const AT: usize, const WIDTH: usize>(&mut self, value: [u8; WIDTH]) {
        const { assert!(AT + WIDTH <= N, "the field ends after the header") };
        self[AT..AT + WIDTH].copy_from_slice(&value);
    }
}

/// A flag at its place in a byte; bit 0 is the least significant.
#[inline(always)]
pub(super) const fn flag(set: bool, bit: u32) -> u8 {
    (set as u8) << bit
}
