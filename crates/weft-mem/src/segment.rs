//! Pieces of memory for the system's scatter/gather calls, so that a link can send user memory without a copy.

use std::marker::PhantomData;

/// Bytes to be sent: an `iovec` that cannot outlive what it points into.
///
/// Made by [`HostMemory::segment`](crate::HostMemory::segment), and lives as long as the borrow: meanwhile nothing can be
/// attached, taken, registered or deregistered. Peers may change the bytes of a region at any time, so only the system
/// may read them.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Segment<'a> {
    iovec: libc::iovec,
    memory: PhantomData<&'a [u8]>,
}

const _: () = assert!(
    size_of::<Segment<'_>>() == size_of::<libc::iovec>() && align_of::<Segment<'_>>() == align_of::<libc::iovec>(),
    "a slice of segments is passed to the system as iovecs"
);

// SAFETY: it is a shared borrow of bytes that only the system reads, which every thread may ask for.
unsafe impl Send for Segment<'_> {}
// SAFETY: as above.
unsafe impl Sync for Segment<'_> {}

impl<'a> Segment<'a> {
    /// Bytes of this program.
    #[must_use]
    pub fn from_slice(bytes: &'a [u8]) -> Segment<'a> {
        Segment::new(bytes.as_ptr().cast_mut(), bytes.len())
    }

    /// The caller sees to it that the bytes can be read during `'a`.
    pub(crate) fn new(pointer: *mut u8, length: usize) -> Segment<'a> {
        Segment { iovec: libc::iovec { iov_base: pointer.cast(), iov_len: length }, memory: PhantomData }
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.iovec.iov_len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.iovec.iov_len == 0
    }

    /// As the system takes it; only for reading.
    #[must_use]
    #[inline]
    pub const fn as_iovec(&self) -> libc::iovec {
        self.iovec
    }

    /// As the system takes them; only for reading.
    #[must_use]
    pub fn iovecs<'s>(segments: &'s [Segment<'a>]) -> &'s [libc::iovec] {
        // SAFETY: a segment is a transparent iovec (its other field has no bytes), so the slices have the same layout.
        unsafe { std::slice::from_raw_parts(segments.as_ptr().cast(), segments.len()) }
    }
}

impl std::fmt::Debug for Segment<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Segment({} bytes at {:?})", self.iovec.iov_len, self.iovec.iov_base)
    }
}
