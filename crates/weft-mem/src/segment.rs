//! Pieces of memory for the system's scatter/gather calls, so that a link can send user memory without a copy.

use std::marker::PhantomData;

use crate::copy;
use crate::device::Place;

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
    #[inline]
    pub fn from_slice(bytes: &'a [u8]) -> Segment<'a> {
        Segment::new(bytes.as_ptr().cast_mut(), bytes.len())
    }

    /// Bytes that others may write at the same time, as in memory that is shared with another process.
    ///
    /// # Safety
    /// The bytes can be read during `'a`, and no reference of Rust is to them.
    #[must_use]
    #[inline]
    pub unsafe fn from_raw(pointer: *const u8, length: usize) -> Segment<'a> {
        Segment::new(pointer.cast_mut(), length)
    }

    /// Copies all of it out; false: `into` has another length.
    #[must_use]
    #[inline]
    pub fn copy_to(&self, into: &mut [u8]) -> bool {
        if into.len() != self.len() {
            return false;
        }
        // SAFETY: whoever made the segment promised that the bytes can be read; `into` is a place of its own.
        unsafe { copy::copy(into.as_mut_ptr(), self.iovec.iov_base.cast(), self.len()) };
        true
    }

    /// Some of it; `None`: it has not as many.
    #[must_use]
    #[inline]
    pub fn part(&self, offset: usize, length: usize) -> Option<Segment<'a>> {
        let end = offset.checked_add(length)?;
        (end <= self.len()).then(|| Segment::new(self.iovec.iov_base.cast::<u8>().wrapping_add(offset), length))
    }

    /// The caller sees to it that the bytes can be read during `'a`.
    #[inline]
    pub(crate) fn new(pointer: *mut u8, length: usize) -> Segment<'a> {
        Segment { iovec: libc::iovec { iov_base: pointer.cast(), iov_len: length }, memory: PhantomData }
    }

    /// Bytes.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.iovec.iov_len
    }

    /// Whether there are none.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.iovec.iov_len == 0
    }

    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.iovec.iov_base.cast_const().cast()
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

/// Bytes to be sent that lie in the memory of a device. Only its operations can read them, so this is no [`Segment`].
#[derive(Clone, Copy, Debug)]
pub struct DeviceSegment<'a> {
    place: Place,
    address: u64,
    length: usize,
    memory: PhantomData<&'a [u8]>,
}

impl DeviceSegment<'_> {
    /// A piece of device memory.
    ///
    /// # Safety
    /// The bytes can be read by the device's operations during the segment's life.
    #[must_use]
    pub unsafe fn from_raw<'a>(place: Place, address: u64, length: usize) -> DeviceSegment<'a> {
        DeviceSegment { place, address, length, memory: PhantomData }
    }

    /// Which device.
    #[must_use]
    pub fn place(&self) -> Place {
        self.place
    }

    /// Where, as the device's operations take it.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

/// Bytes to be sent, wherever they are.
#[derive(Clone, Copy, Debug)]
pub enum Sendable<'a> {
    /// On the host: any link can send them.
    Host(Segment<'a>),
    /// In the memory of a device: they have to be copied first.
    Device(DeviceSegment<'a>),
}

impl Sendable<'_> {
    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Sendable::Host(segment) => segment.len(),
            Sendable::Device(segment) => segment.len(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Room for bytes in memory that is shared with another process. What is written there is only ever copied to, never
/// seen through a reference.
pub struct SegmentMut<'a> {
    pointer: *mut u8,
    length: usize,
    memory: PhantomData<&'a mut [u8]>,
}

impl<'a> SegmentMut<'a> {
    /// Room that others may read and write at the same time.
    ///
    /// # Safety
    /// The bytes can be written during `'a`, and no reference of Rust is to them.
    #[must_use]
    pub unsafe fn from_raw(pointer: *mut u8, length: usize) -> SegmentMut<'a> {
        SegmentMut { pointer, length, memory: PhantomData }
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Where it is, for those who copy in other ways.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.pointer
    }

    /// Fills all of it; false: `bytes` has another length.
    #[must_use]
    pub fn copy_from(&mut self, bytes: &[u8]) -> bool {
        if bytes.len() != self.length {
            return false;
        }
        // SAFETY: whoever made it promised that the bytes can be written; `bytes` is another place.
        unsafe { copy::copy(self.pointer, bytes.as_ptr(), self.length) };
        true
    }

    /// The first `length` bytes, and the rest; `None`: it has not as many.
    #[must_use]
    pub fn split_at(self, length: usize) -> Option<(SegmentMut<'a>, SegmentMut<'a>)> {
        let rest = self.length.checked_sub(length)?;
        let behind = SegmentMut { pointer: self.pointer.wrapping_add(length), length: rest, memory: PhantomData };
        Some((SegmentMut { length, ..self }, behind))
    }
}

impl std::fmt::Debug for SegmentMut<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SegmentMut({} bytes at {:?})", self.length, self.pointer)
    }
}
