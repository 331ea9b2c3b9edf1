//! Handles: what a C pointer to an object of libfabric points to.
//!
//! The part that C sees comes first, then a mark, then ours. The mark says of which noun the object is, and that it is
//! open: a call through a wrong or closed handle is refused as far as that can be seen. So that it can be seen for a
//! while, the memory of closed handles is kept until enough others were closed.

use std::alloc::Layout;
use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::abi::{FI_EBADF, FI_EBUSY, FI_EINVAL, fi_ops, fid};
use crate::guard::Result;
use crate::limits::CLOSED_HANDLES_KEPT;

/// What stands behind a handle.
///
/// # Safety
/// `Face` is `repr(C)` and begins with a [`fid`].
pub(crate) unsafe trait Noun: Send + Sync {
    /// The structure that C sees.
    type Face;
    /// Tells its handles from those of other nouns.
    const MARK: u64;
}

#[repr(C)]
struct Handle<T: Noun> {
    /// C reads it, and may write the context.
    face: UnsafeCell<T::Face>,
    mark: AtomicU64,
    /// Other objects that use this one hold it too: then it cannot be closed.
    body: ManuallyDrop<Arc<T>>,
}

/// Opens an object; [`close`] ends it.
pub(crate) fn open<T: Noun>(face: T::Face, body: Arc<T>) -> *mut T::Face {
    let handle = Handle { face: UnsafeCell::new(face), mark: AtomicU64::new(T::MARK), body: ManuallyDrop::new(body) };
    Box::into_raw(Box::new(handle)).cast()
}

/// The object behind a handle.
///
/// # Safety
/// `face` is null, or was given by [`open`], of whatever noun, and at most [`CLOSED_HANDLES_KEPT`] handles were closed
/// after it.
#[inline]
pub(crate) unsafe fn of<'a, T: Noun>(face: *const T::Face) -> Result<&'a Arc<T>> {
    if face.is_null() || !face.cast::<Handle<T>>().is_aligned() {
        return Err(-FI_EINVAL);
    }
    let handle = face.cast::<Handle<T>>();
    // SAFETY: handles of all nouns have their mark behind a face whose size the noun says; where the nouns differ, the
    // caller went through a table of operations of ours, or looked at the class in the `fid`, which both say the noun.
    let mark = unsafe { &(*handle).mark };
    if mark.load(Ordering::Relaxed) != T::MARK {
        return Err(-FI_EBADF);
    }
    // SAFETY: the mark says that it is open and of this noun.
    Ok(unsafe { &(*handle).body })
}

/// The object behind a `fid`.
///
/// # Safety
/// As [`of`].
#[inline]
pub(crate) unsafe fn of_fid<'a, T: Noun>(fid: *const fid) -> Result<&'a Arc<T>> {
    // SAFETY: as the caller says; a face begins with its fid.
    unsafe { of::<T>(fid.cast()) }
}

/// Closes an object, unless other objects use it.
///
/// # Safety
/// As [`of`], and no other thread uses it.
pub(crate) unsafe fn close<T: Noun>(fid: *mut fid) -> Result {
    // SAFETY: as the caller says.
    if Arc::strong_count(unsafe { of_fid::<T>(fid)? }) > 1 {
        return Err(-FI_EBUSY);
    }
    // SAFETY: as the caller says, and it was checked.
    unsafe { close_in_use::<T>(fid) }
}

/// Closes an object of which others may go on using what is behind it.
///
/// # Safety
/// As [`close`].
pub(crate) unsafe fn close_in_use<T: Noun>(fid: *mut fid) -> Result {
    // SAFETY: as the caller says.
    unsafe { of_fid::<T>(fid)? };
    let handle = fid.cast::<Handle<T>>();
    // SAFETY: it is open, and nobody else uses it; the mark keeps everybody from the body from here on.
    unsafe {
        (*handle).mark.store(0, Ordering::Relaxed);
        ManuallyDrop::drop(&mut (*handle).body);
    }
    keep_closed(Closed { memory: handle.cast(), layout: Layout::new::<Handle<T>>() });
    Ok(())
}

/// The memory of a closed handle.
struct Closed {
    memory: *mut u8,
    layout: Layout,
}

// SAFETY: nothing but its end is left of it.
unsafe impl Send for Closed {}

impl Drop for Closed {
    fn drop(&mut self) {
        // SAFETY: it was allocated by a `Box` with this layout, and its contents were dropped.
        unsafe { std::alloc::dealloc(self.memory, self.layout) };
    }
}

static CLOSED: Mutex<VecDeque<Closed>> = Mutex::new(VecDeque::new());

fn keep_closed(closed: Closed) {
    let mut kept = CLOSED.lock().unwrap_or_else(PoisonError::into_inner);
    kept.push_back(closed);
    if kept.len() > CLOSED_HANDLES_KEPT {
        kept.pop_front();
    }
}

/// Frees the memory of closed handles, when the provider is unloaded.
pub(crate) fn forget_closed() {
    CLOSED.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

/// The beginning of a face.
pub(crate) fn fid_of(class: usize, context: *mut std::ffi::c_void, operations: &'static fi_ops) -> fid {
    fid { fclass: class, context, ops: std::ptr::from_ref(operations).cast_mut() }
}

/// A table of operations as a face names it: C's types say that it could be written, which nobody does.
pub(crate) fn table<T: Sync>(operations: &'static T) -> *mut T {
    std::ptr::from_ref(operations).cast_mut()
}
