//! Buffers of the user's operations.
//!
//! A [`Buffer`] owns its memory, or has it lent by contract ([`Buffer::from_raw`]), and knows whether it may be written.
//! Its bytes lie in one piece or in many. It goes into [`HostMemory`](crate::HostMemory) while an operation is under way
//! and comes out whole.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use weft_core::memory::Fault;

use crate::borrowed::Loan;
use crate::copy;
use crate::device::{DeviceError, Place};
use crate::region::MemoryRegion;
use crate::segment::Segment;
use crate::staging::{self, Located};

/// Memory that an operation sends from or receives into.
pub struct Buffer {
    /// The only piece, or nothing when there are many.
    pointer: NonNull<u8>,
    /// Bytes of all pieces.
    length: usize,
    writable: bool,
    /// Where the only piece is; the host's when there are many.
    place: Place,
    owner: Owner,
}

/// Whose memory it is. What is owned here is not touched but through `pointer` while the buffer lives.
enum Owner {
    /// The caller's, or static.
    Lent,
    /// The caller's, of the host and writable, and nobody wants the buffer back: it ends when its operation does.
    Given,
    /// Of a vector or box: a vector keeps its memory where it is when it is moved.
    Vec(Vec<u8>),
    /// A copy, in a vector that is used again for the next copy.
    Inline(Vec<u8>),
    Shared(Arc<[u8]>),
    Region(MemoryRegion),
    List(Box<List>),
    /// Pieces of the caller's.
    Pieces(Vec<Piece>),
    #[expect(dead_code, reason = "its end is what counts")]
    Borrowed(Loan),
}

/// Memory of the caller's that is to be a buffer, and that nobody wants back from its operation.
#[derive(Clone, Copy, Debug)]
pub struct Lent {
    pointer: NonNull<u8>,
    length: usize,
}

impl Lent {
    /// Memory that may be written and read.
    ///
    /// # Safety
    /// As [`Buffer::from_raw`], for every buffer that is made of it.
    #[must_use]
    #[inline]
    pub unsafe fn from_raw(pointer: *mut u8, length: usize) -> Lent {
        Lent { pointer: NonNull::new(pointer).unwrap_or(NonNull::dangling()), length }
    }

    /// Bytes.
    #[must_use]
    #[inline]
    pub fn len(self) -> usize {
        self.length
    }

    /// Whether it has no bytes.
    #[must_use]
    #[inline]
    pub fn is_empty(self) -> bool {
        self.length == 0
    }
}

// SAFETY: the contract of `Buffer::from_raw` permits every thread.
unsafe impl Send for Lent {}

impl From<Lent> for Buffer {
    #[inline(always)]
    fn from(lent: Lent) -> Buffer {
        let Lent { pointer, length } = lent;
        Buffer { pointer, length, writable: true, place: Place::HOST, owner: Owner::Given }
    }
}

struct List {
    pieces: Vec<Piece>,
    buffers: Vec<Buffer>,
}

/// One of several pieces.
#[derive(Clone, Copy)]
struct Piece {
    /// Where in the buffer it begins.
    start: usize,
    pointer: NonNull<u8>,
    length: usize,
    place: Place,
}

// SAFETY: the memory is owned by the buffer, is shared and read only, or is lent under the contract of `from_raw`, which
// permits every thread.
unsafe impl Send for Buffer {}
// SAFETY: a shared reference to a buffer gives no way to write it.
unsafe impl Sync for Buffer {}

impl Buffer {
    #[inline]
    fn one(pointer: *mut u8, length: usize, writable: bool, owner: Owner) -> Buffer {
        let place = Place::HOST;
        Buffer { pointer: NonNull::new(pointer).unwrap_or(NonNull::dangling()), length, writable, place, owner }
    }

    /// A copy of `bytes`. [`HostMemory::attach_inline`](crate::HostMemory::attach_inline) does it without allocating.
    #[must_use]
    pub fn inline(bytes: &[u8]) -> Buffer {
        Buffer::inline_from(Vec::with_capacity(bytes.len()), Segment::from_slice(bytes))
    }

    /// A copy of `bytes` in a vector that was used before.
    pub(crate) fn inline_from(mut vec: Vec<u8>, bytes: Segment<'_>) -> Buffer {
        vec.clear();
        vec.reserve(bytes.len());
        // SAFETY: there is room for that many, which this fills.
        unsafe {
            copy::copy(vec.as_mut_ptr(), bytes.as_ptr(), bytes.len());
            vec.set_len(bytes.len());
        }
        Buffer::one(vec.as_mut_ptr(), vec.len(), false, Owner::Inline(vec))
    }

    /// `length` bytes of a region from `offset`, which keep it alive. Writable if the region is.
    pub fn from_region(region: &MemoryRegion, offset: usize, length: usize) -> Result<Buffer, Fault> {
        let pointer = region.range(offset, length)?;
        let buffer = Buffer::one(pointer, length, region.is_writable(), Owner::Region(region.clone()));
        Ok(Buffer { place: region.place(), ..buffer })
    }

    /// Memory of the caller at a place, the host's or a device's.
    ///
    /// # Safety
    /// As [`Buffer::from_raw`], and [`MemoryRegion::from_device_raw`].
    pub unsafe fn from_device_raw(
        place: Place,
        pointer: *mut u8,
        length: usize,
        writable: bool,
    ) -> Result<Buffer, DeviceError> {
        // SAFETY: as the caller promised.
        let region = unsafe { MemoryRegion::from_device_raw(place, pointer, length, writable)? };
        Buffer::from_region(&region, 0, length).map_err(|_| DeviceError::BadAddress)
    }

    /// Where its bytes are; `None`: in several places.
    #[must_use]
    #[inline]
    pub fn place(&self) -> Option<Place> {
        let Some(pieces) = self.pieces() else { return Some(self.place) };
        let mut places = pieces.iter().map(|piece| piece.place);
        let first = places.next().unwrap_or(Place::HOST);
        places.all(|place| place == first).then_some(first)
    }

    /// Its pieces, if it may have many.
    #[inline]
    fn pieces(&self) -> Option<&[Piece]> {
        match &self.owner {
            Owner::List(list) => Some(&list.pieces),
            Owner::Pieces(pieces) => Some(pieces),
            _ => None,
        }
    }

    /// The region it is part of, if it is of one.
    pub(crate) fn region(&self) -> Option<&MemoryRegion> {
        if let Owner::Region(region) = &self.owner { Some(region) } else { None }
    }

    /// Whether all of it is the host's.
    #[must_use]
    #[inline]
    pub fn is_host(&self) -> bool {
        self.place().is_some_and(Place::is_host)
    }

    /// All of it, if it lies in one piece of host memory.
    #[must_use]
    #[inline]
    pub fn segment(&self) -> Option<Segment<'_>> {
        let one = self.pieces().is_none() && self.place.is_host();
        one.then(|| Segment::new(self.pointer.as_ptr(), self.length))
    }

    /// Memory of the caller, to be written and read.
    ///
    /// # Safety
    /// Until the buffer is dropped (for an attached one: until its operation's completion was read and it was taken or
    /// released) the `length` bytes at `pointer` must be mapped for reading and writing, and no reference of Rust to
    /// them may be in use when the operation writes there.
    #[must_use]
    #[inline]
    pub unsafe fn from_raw(pointer: *mut u8, length: usize) -> Buffer {
        Buffer::one(pointer, length, true, Owner::Lent)
    }

    /// Memory of the caller, to be read only.
    ///
    /// # Safety
    /// As [`Buffer::from_raw`], but the memory need not be writable.
    #[must_use]
    #[inline]
    pub unsafe fn from_raw_read_only(pointer: *const u8, length: usize) -> Buffer {
        Buffer::one(pointer.cast_mut(), length, false, Owner::Lent)
    }

    /// Memory of the caller at a place that the caller knows: without a look at it, an allocation or a count, for faces that
    /// make a buffer for each operation. [`Buffer::from_device_raw`] checks what it is told.
    ///
    /// # Safety
    /// As [`Buffer::from_raw`], if not `writable` as [`Buffer::from_raw_read_only`]; and all of it is at `place`, of a device
    /// in one allocation.
    #[must_use]
    #[inline]
    pub unsafe fn from_raw_at(place: Place, pointer: *mut u8, length: usize, writable: bool) -> Buffer {
        Buffer { place, ..Buffer::one(pointer, length, writable, Owner::Lent) }
    }

    /// Pieces of memory of the caller, one behind the other.
    ///
    /// # Safety
    /// For each piece, as [`Buffer::from_raw`]; if not `writable`, they need only be readable.
    #[must_use]
    pub unsafe fn from_raw_parts(parts: impl IntoIterator<Item = (*mut u8, usize)>, writable: bool) -> Buffer {
        let parts = parts.into_iter().map(|(pointer, length)| (Place::HOST, pointer, length));
        // SAFETY: as the caller promised.
        unsafe { Buffer::from_raw_parts_at(parts, writable) }
    }

    /// The same, each piece at a place that the caller knows. One piece is a buffer like any other; more cost one
    /// allocation.
    ///
    /// # Safety
    /// For each piece, as [`Buffer::from_raw_at`].
    #[must_use]
    pub unsafe fn from_raw_parts_at(
        parts: impl IntoIterator<Item = (Place, *mut u8, usize)>,
        writable: bool,
    ) -> Buffer {
        let mut parts = parts.into_iter().filter(|(.., length)| *length > 0);
        let first = parts.next().unwrap_or((Place::HOST, std::ptr::null_mut(), 0));
        let Some(second) = parts.next() else {
            // SAFETY: as the caller promised.
            return unsafe { Buffer::from_raw_at(first.0, first.1, first.2, writable) };
        };
        let mut list = Pieces { pieces: Vec::with_capacity(parts.size_hint().0 + 2), length: 0 };
        for (place, pointer, length) in [first, second].into_iter().chain(parts) {
            list.push(NonNull::new(pointer).unwrap_or(NonNull::dangling()), length, place);
        }
        let (pieces, length) = (list.pieces, list.length);
        Buffer { length, ..Buffer::one(std::ptr::null_mut(), 0, writable, Owner::Pieces(pieces)) }
    }

    /// Memory that is lent until `loan` is dropped with the buffer.
    ///
    /// # Safety
    /// As [`Buffer::from_raw`]; if not `writable`, it need only be readable.
    pub(crate) unsafe fn lent(pointer: *mut u8, length: usize, writable: bool, loan: Loan) -> Buffer {
        Buffer::one(pointer, length, writable, Owner::Borrowed(loan))
    }

    /// Whether it is memory of the caller, so that nothing is to be done when it is dropped.
    #[inline]
    pub(crate) fn is_lent(&self) -> bool {
        matches!(self.owner, Owner::Lent | Owner::Given)
    }

    /// Where it is and its bytes, if it was made of a [`Lent`].
    #[inline(always)]
    pub(crate) fn given(&self) -> Option<(NonNull<u8>, usize)> {
        matches!(self.owner, Owner::Given).then_some((self.pointer, self.length))
    }

    /// The same buffer, put together anew where it goes if it is memory of the caller: who loads what has just been stored
    /// in smaller pieces waits for it.
    #[inline(always)]
    pub(crate) fn moved(self) -> Buffer {
        if !self.is_lent() {
            return self;
        }
        let (pointer, length, writable, place) = (self.pointer, self.length, self.writable, self.place);
        std::mem::forget(self);
        Buffer { pointer, length, writable, place, owner: Owner::Lent }
    }

    /// Drops it; that of memory of the caller costs nothing.
    #[inline]
    pub fn discard(self) {
        if self.is_lent() {
            std::mem::forget(self);
        }
    }

    /// Whether some of it is lent by a [`scope`](crate::borrowed::scope), which waits for it to be dropped.
    #[must_use]
    pub fn is_borrowed(&self) -> bool {
        match &self.owner {
            Owner::Borrowed(_) => true,
            Owner::List(list) => list.buffers.iter().any(Buffer::is_borrowed),
            _ => false,
        }
    }

    /// Bytes.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether it has no bytes.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Whether an operation may write into it. Lists are writable when all their parts are.
    #[must_use]
    #[inline]
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// The vector, box or copy that the buffer was made of, without copying; other buffers come back as they are.
    pub fn into_vec(self) -> Result<Vec<u8>, Buffer> {
        match self.owner {
            Owner::Vec(vec) | Owner::Inline(vec) => Ok(vec),
            owner => Err(Buffer { owner, ..self }),
        }
    }

    /// The box that the buffer was made of, without copying; other buffers come back as they are.
    pub fn into_boxed_slice(self) -> Result<Box<[u8]>, Buffer> {
        self.into_vec().map(Vec::into_boxed_slice)
    }

    /// The shared bytes that the buffer was made of; other buffers come back as they are.
    pub fn into_shared(self) -> Result<Arc<[u8]>, Buffer> {
        match self.owner {
            Owner::Shared(bytes) => Ok(bytes),
            owner => Err(Buffer { owner, ..self }),
        }
    }

    /// The region that the buffer is a part of; other buffers come back as they are.
    pub fn into_region(self) -> Result<MemoryRegion, Buffer> {
        match self.owner {
            Owner::Region(region) => Ok(region),
            owner => Err(Buffer { owner, ..self }),
        }
    }

    /// The buffers that the list was made of; other buffers come back as they are.
    pub fn into_list(self) -> Result<Vec<Buffer>, Buffer> {
        match self.owner {
            Owner::List(list) => Ok(list.buffers),
            owner => Err(Buffer { owner, ..self }),
        }
    }

    /// Copies its bytes from `offset` on, as many as `into` takes.
    pub fn read(&self, mut offset: usize, mut into: &mut [u8]) -> Result<(), Fault> {
        while !into.is_empty() {
            let (pointer, available, place) = self.piece(offset).ok_or(Fault::OutOfBounds)?;
            let length = available.min(into.len());
            let (head, rest) = into.split_at_mut(length);
            if place.is_host() {
                // SAFETY: `piece` gives bytes inside the buffer, and `head` is a place of its own.
                unsafe { copy::copy(head.as_mut_ptr(), pointer, length) };
            } else {
                let from = Located { place, address: pointer as u64, length };
                // SAFETY: as above.
                unsafe { staging::copy_from(from, head.as_mut_ptr()) }.map_err(staging::fault)?;
            }
            (into, offset) = (rest, offset + length);
        }
        Ok(())
    }

    /// Bytes of a copy that [`HostMemory`](crate::HostMemory) made; other buffers have none.
    #[inline]
    pub(crate) fn copied_bytes(&self) -> usize {
        if matches!(self.owner, Owner::Inline(_)) { self.length } else { 0 }
    }

    /// The vector of a copy, for the next one.
    pub(crate) fn into_recycled(self) -> Option<Vec<u8>> {
        match self.owner {
            Owner::Inline(vec) => Some(vec),
            _ => None,
        }
    }

    /// Where the byte at `offset` is, how many (at least one) lie there in one piece, and at which place that pointer
    /// means something. `None` at or past the end.
    #[inline]
    pub(crate) fn piece(&self, offset: usize) -> Option<(*mut u8, usize, Place)> {
        if offset >= self.length {
            return None;
        }
        let Some(pieces) = self.pieces() else {
            return Some((self.pointer.as_ptr().wrapping_add(offset), self.length - offset, self.place));
        };
        // The last piece that begins at or before it; there are no empty ones.
        let index = pieces.partition_point(|piece| piece.start <= offset).checked_sub(1)?;
        let piece = pieces.get(index)?;
        let inside = offset - piece.start;
        Some((piece.pointer.as_ptr().wrapping_add(inside), piece.length.checked_sub(inside)?, piece.place))
    }
}

/// Pieces being put together.
#[derive(Default)]
struct Pieces {
    pieces: Vec<Piece>,
    length: usize,
}

impl Pieces {
    fn push(&mut self, pointer: NonNull<u8>, length: usize, place: Place) {
        // A sum past the address space can only be of pieces that overlap; what is past it is left out.
        let length = length.min(usize::MAX - self.length);
        if length > 0 {
            self.pieces.push(Piece { start: self.length, pointer, length, place });
            self.length += length;
        }
    }

    fn into_buffer(self, buffers: Vec<Buffer>, writable: bool) -> Buffer {
        let (pieces, length) = (self.pieces, self.length);
        Buffer {
            pointer: NonNull::dangling(),
            length,
            writable,
            place: Place::HOST,
            owner: Owner::List(Box::new(List { pieces, buffers })),
        }
    }
}

impl From<Vec<u8>> for Buffer {
    #[inline]
    fn from(mut vec: Vec<u8>) -> Buffer {
        Buffer::one(vec.as_mut_ptr(), vec.len(), true, Owner::Vec(vec))
    }
}

impl From<Box<[u8]>> for Buffer {
    fn from(bytes: Box<[u8]>) -> Buffer {
        Buffer::from(bytes.into_vec())
    }
}

impl From<Arc<[u8]>> for Buffer {
    fn from(bytes: Arc<[u8]>) -> Buffer {
        Buffer::one(bytes.as_ptr().cast_mut(), bytes.len(), false, Owner::Shared(bytes))
    }
}

impl From<&'static [u8]> for Buffer {
    fn from(bytes: &'static [u8]) -> Buffer {
        Buffer::one(bytes.as_ptr().cast_mut(), bytes.len(), false, Owner::Lent)
    }
}

/// The buffers one behind the other.
impl From<Vec<Buffer>> for Buffer {
    fn from(buffers: Vec<Buffer>) -> Buffer {
        let mut pieces = Pieces::default();
        for buffer in &buffers {
            match buffer.pieces() {
                Some(parts) => {
                    parts.iter().for_each(|piece| pieces.push(piece.pointer, piece.length, piece.place));
                }
                None => pieces.push(buffer.pointer, buffer.length, buffer.place),
            }
        }
        let writable = buffers.iter().all(Buffer::is_writable);
        pieces.into_buffer(buffers, writable)
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.owner {
            Owner::Lent | Owner::Given => "lent",
            Owner::Vec(_) => "owned",
            Owner::Inline(_) => "copied",
            Owner::Shared(_) => "shared",
            Owner::Region(_) => "of a region",
            Owner::List(_) | Owner::Pieces(_) => "in pieces",
            Owner::Borrowed(_) => "borrowed",
        };
        let access = if self.writable { "" } else { ", read only" };
        write!(f, "Buffer({} bytes {kind}{access}", self.length)?;
        match self.place() {
            Some(place) if place.is_host() => f.write_str(")"),
            Some(place) => write!(f, ", {place})"),
            None => f.write_str(", in several places)"),
        }
    }
}
