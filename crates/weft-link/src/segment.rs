//! A piece of memory that goes out.

use std::fmt;
use std::marker::PhantomData;

/// Memory that the kernel reads when it sends. Never a `&[u8]` inside: a peer or another thread may write to registered
/// memory while it goes out.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Segment<'a> {
    raw: libc::iovec,
    memory: PhantomData<&'a [u8]>,
}

// A list of segments is given to the kernel as the list of `iovec` that it is.
const _: () = assert!(size_of::<Segment<'static>>() == size_of::<libc::iovec>());

impl<'a> Segment<'a> {
    /// Bytes of our own.
    #[must_use]
    #[inline]
    pub const fn from_slice(bytes: &'a [u8]) -> Segment<'a> {
        let raw = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        Segment { raw, memory: PhantomData }
    }

    /// Bytes.
    #[must_use]
    #[inline]
    pub const fn len(&self) -> usize {
        self.raw.iov_len
    }

    /// Whether it has no bytes.
    #[must_use]
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.raw.iov_len == 0
    }

    /// As the kernel wants it: readable for `iov_len` bytes as long as the segment lives, and not to be written.
    #[must_use]
    #[inline]
    pub(crate) const fn as_iovec(&self) -> libc::iovec {
        self.raw
    }
}

impl fmt::Debug for Segment<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Segment({} bytes)", self.len())
    }
}
