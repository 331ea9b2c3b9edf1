//! Memory of this process that need not be mapped: a peer's access to what is not there is refused, and is no fault.
//!
//! Bytes are copied by the system, as between two processes: it looks at each page, and says so where there is none. Who
//! unmaps memory while it is reached this way gets an error at the peer and nothing worse.
//!
//! Atomics cannot be done by the system. The pages are made present and writable first; who unmaps them between that and the
//! update, or makes them read only, ends the process as any access of his own would.

use std::sync::OnceLock;

use weft_core::memory::Fault;

use crate::limits::PAGE_BYTES;

/// Copies out of memory that need not be mapped.
///
/// # Safety
/// `length` bytes at `into` can be written, and are another place.
pub(crate) unsafe fn read(from: *const u8, into: *mut u8, length: usize) -> Result<(), Fault> {
    // SAFETY: as the caller says.
    unsafe { move_all(into, from.cast_mut(), length, libc::process_vm_readv) }
}

/// Copies into memory that need not be mapped, or not for writing.
///
/// # Safety
/// `length` bytes at `from` can be read, and are another place; nobody has a reference to those at `to`.
pub(crate) unsafe fn write(to: *mut u8, from: *const u8, length: usize) -> Result<(), Fault> {
    // SAFETY: as the caller says.
    unsafe { move_all(from.cast_mut(), to, length, libc::process_vm_writev) }
}

type Call = unsafe extern "C" fn(
    libc::pid_t,
    *const libc::iovec,
    libc::c_ulong,
    *const libc::iovec,
    libc::c_ulong,
    libc::c_ulong,
) -> isize;

/// # Safety
/// As [`read`] or [`write`], by the call.
unsafe fn move_all(mut ours: *mut u8, mut guarded: *mut u8, mut length: usize, call: Call) -> Result<(), Fault> {
    while length > 0 {
        let local = libc::iovec { iov_base: ours.cast(), iov_len: length };
        let remote = libc::iovec { iov_base: guarded.cast(), iov_len: length };
        // SAFETY: the system finds out what is mapped on either side; that nobody has references to the bytes that are
        // written is as the caller says.
        let moved = unsafe { call(std::process::id().cast_signed(), &raw const local, 1, &raw const remote, 1, 0) };
        match usize::try_from(moved) {
            Ok(moved) if moved > 0 => {
                (ours, guarded) = (ours.wrapping_add(moved), guarded.wrapping_add(moved));
                length = length.saturating_sub(moved);
            }
            // The rest is not there, or the system forbids the call: nothing can be reached then.
            _ => return Err(Fault::OutOfBounds),
        }
    }
    Ok(())
}

/// Sees to it that bytes can be read and written now.
pub(crate) fn make_writable(pointer: *mut u8, length: usize) -> Result<(), Fault> {
    populate(pointer, length, libc::MADV_POPULATE_WRITE)
}

/// Sees to it that bytes can be read now.
pub(crate) fn make_readable(pointer: *mut u8, length: usize) -> Result<(), Fault> {
    populate(pointer, length, libc::MADV_POPULATE_READ)
}

fn populate(pointer: *mut u8, length: usize, advice: libc::c_int) -> Result<(), Fault> {
    let (start, bytes) = pages(pointer, length).ok_or(Fault::OutOfBounds)?;
    if populates() {
        // SAFETY: changes no byte; what is there stays there.
        let made = unsafe { libc::madvise(start.cast(), bytes, advice) };
        return if made == 0 { Ok(()) } else { Err(Fault::OutOfBounds) };
    }
    // An older system tells only whether they can be read.
    for page in (0..bytes).step_by(PAGE_BYTES) {
        let mut byte = 0u8;
        // SAFETY: one byte of our own is written.
        unsafe { read(start.wrapping_add(page), &raw mut byte, 1)? };
    }
    Ok(())
}

/// Whether the system can make pages writable without a write.
fn populates() -> bool {
    static POPULATES: OnceLock<bool> = OnceLock::new();
    *POPULATES.get_or_init(|| {
        let mut own = 0u8;
        let Some((start, bytes)) = pages(&raw mut own, 1) else { return false };
        // SAFETY: a page of our own stack.
        unsafe { libc::madvise(start.cast(), bytes, libc::MADV_POPULATE_WRITE) == 0 }
    })
}

/// Whether all bytes are mapped now, for whatever access.
pub(crate) fn is_mapped(pointer: *mut u8, length: usize) -> bool {
    if length == 0 {
        return true;
    }
    // SAFETY: with this flag the system only looks whether all of it is mapped.
    pages(pointer, length)
        .is_some_and(|(start, bytes)| unsafe { libc::msync(start.cast(), bytes, libc::MS_ASYNC) } == 0)
}

/// The pages that bytes are in; `None`: they wrap around the address space, or end with it.
fn pages(pointer: *mut u8, length: usize) -> Option<(*mut u8, usize)> {
    let inside = pointer.addr() % PAGE_BYTES;
    let bytes = inside.checked_add(length)?.checked_next_multiple_of(PAGE_BYTES)?;
    let start = pointer.wrapping_sub(inside);
    start.addr().checked_add(bytes)?;
    Some((start, bytes))
}

#[cfg(test)]
mod tests {
    use weft_core::atomic::{AtomicCall, AtomicOperation, Datatype};
    use weft_core::memory::{Access, Memory};

    use super::*;
    use crate::device::Place;
    use crate::{Addressing, HostMemory, MemoryRegion};

    /// Four pages: one to write, one that is missing, one to read only, one that nobody may touch.
    fn holes() -> *mut u8 {
        // SAFETY: new memory, of which some is given back or protected at once; nobody else knows it.
        unsafe {
            let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let start = libc::mmap(std::ptr::null_mut(), 4 * PAGE_BYTES, protection, flags, -1, 0).cast::<u8>();
            assert_ne!(start.cast(), libc::MAP_FAILED);
            assert_eq!(libc::munmap(start.wrapping_add(PAGE_BYTES).cast(), PAGE_BYTES), 0);
            assert_eq!(libc::mprotect(start.wrapping_add(2 * PAGE_BYTES).cast(), PAGE_BYTES, libc::PROT_READ), 0);
            assert_eq!(libc::mprotect(start.wrapping_add(3 * PAGE_BYTES).cast(), PAGE_BYTES, libc::PROT_NONE), 0);
            start
        }
    }

    #[test]
    fn what_is_not_there_is_refused_and_the_rest_is_reached() {
        let start = holes();
        let mut memory = HostMemory::new();
        let (page, all) = (PAGE_BYTES as u64, 4 * PAGE_BYTES);
        // SAFETY: nobody has references to these pages.
        let region = unsafe { MemoryRegion::from_raw_unmapped(start, all, true) };
        assert_eq!(region.place(), Place::GUARDED);
        let key = memory.register(&region, Access::REMOTE, Addressing::Offset).unwrap().key;
        let sum = AtomicCall::new(AtomicOperation::Sum, Datatype::Uint64, 1);
        let mut old = [0; 8];
        // (offset, length, can be read, can be written)
        let cases = [
            (0, 100, true, true),
            (page - 8, 8, true, true),
            (page - 8, 9, false, false),
            (page, 8, false, false),
            (2 * page - 1, 2, false, false),
            (2 * page, 8, true, false),
            (3 * page - 8, 8, true, false),
            (3 * page - 8, 9, false, false),
            (3 * page, 8, false, false),
            (0, 4 * page, false, false),
        ];
        for round in 0..2 {
            for (offset, length, readable, writable) in cases {
                let bytes = vec![9; length as usize];
                let to = memory.remote(key, offset, length, Access::REMOTE_WRITE).unwrap();
                let expected = |good| if good { Ok(()) } else { Err(Fault::OutOfBounds) };
                assert_eq!(memory.write(to, &bytes), expected(writable), "write {offset} {length}");
                let from = memory.remote(key, offset, length, Access::REMOTE_READ).unwrap();
                let mut found = vec![1; length as usize];
                assert_eq!(memory.read(from, &mut found), expected(readable), "read {offset} {length}");
                assert!(!writable || found == bytes);
                memory.advance();
                assert_eq!(memory.crc32c(0, from).map(drop), expected(readable), "checksum {offset} {length}");
                if let Ok(crc) = memory.crc32c(0, from) {
                    assert_eq!(crc, crate::crc32c(0, &found), "round {round}");
                }
                assert!(memory.segment(from).is_err());
                if length == 8 {
                    let to = memory.remote(key, offset, 8, Access::REMOTE_ATOMIC).unwrap();
                    let one = 1u64.to_le_bytes();
                    let done = memory.atomic(to, sum, &one, &[], &mut old);
                    // An older system cannot tell that a page is read only, so that is not tried there.
                    if populates() || writable || !readable {
                        assert_eq!(done, expected(writable), "atomic {offset}");
                    }
                    assert!(!writable || old == [9; 8]);
                    assert_eq!(done.and_then(|()| memory.read(from, &mut old)).is_ok(), writable);
                }
            }
            memory.settle().unwrap();
        }
        assert_eq!(region.write(0, b"mine"), Ok(()));
        assert_eq!(region.to_vec(0, 4).unwrap(), b"mine");
        assert!(region.write(PAGE_BYTES, b"nobody's").is_err());
        // SAFETY: made by `holes`; the holes in it do not matter.
        unsafe { libc::munmap(start.cast(), all) };
        let to = memory.remote(key, 0, 8, Access::REMOTE_WRITE).unwrap();
        assert_eq!(memory.write(to, &[0; 8]), Err(Fault::OutOfBounds), "gone meanwhile");
    }

    #[test]
    fn what_is_mapped_is_memory_like_any_other() {
        let mut bytes = vec![0u8; 10_000];
        // SAFETY: the vector lives longer, and is looked at through the region only.
        let region = unsafe { MemoryRegion::from_raw_unmapped(bytes.as_mut_ptr(), bytes.len(), true) };
        assert_eq!(region.place(), Place::HOST);
        // SAFETY: no bytes.
        let nothing = unsafe { MemoryRegion::from_raw_unmapped(std::ptr::null_mut(), 0, true) };
        assert_eq!((nothing.place(), nothing.as_ptr().is_null()), (Place::HOST, true));
    }

    #[test]
    fn the_whole_address_space() {
        let mut memory = HostMemory::new();
        let mut bytes = vec![0u64; 16];
        // SAFETY: only the vector is reached, and not looked at meanwhile.
        let region = unsafe { MemoryRegion::from_raw_unmapped(std::ptr::null_mut(), usize::MAX, true) };
        let made = memory.register(&region, Access::REMOTE, Addressing::Virtual).unwrap();
        assert_eq!((made.address, made.length), (0, u64::MAX));
        let address = bytes.as_mut_ptr() as u64;
        let to = memory.remote(made.key, address + 8, 8, Access::REMOTE_WRITE).unwrap();
        memory.write(to, &7u64.to_le_bytes()).unwrap();
        let call = AtomicCall::new(AtomicOperation::Sum, Datatype::Uint64, 2);
        let to = memory.remote(made.key, address + 8, 16, Access::REMOTE_ATOMIC).unwrap();
        memory.atomic(to, call, &[[1; 8], [2; 8]].concat(), &[], &mut []).unwrap();
        for nowhere in [0, 8, 4096, u64::MAX - 8, 1 << 63] {
            let to = memory.remote(made.key, nowhere, 8, Access::REMOTE_WRITE).unwrap();
            assert_eq!(memory.write(to, &[1; 8]), Err(Fault::OutOfBounds), "{nowhere:#x}");
            let from = memory.remote(made.key, nowhere, 8, Access::REMOTE_READ).unwrap();
            assert_eq!(memory.crc32c(0, from), Err(Fault::OutOfBounds), "{nowhere:#x}");
            let to = memory.remote(made.key, nowhere, 8, Access::REMOTE_ATOMIC).unwrap();
            let one = AtomicCall { count: 1, ..call };
            assert_eq!(memory.atomic(to, one, &[1; 8], &[], &mut []), Err(Fault::OutOfBounds), "{nowhere:#x}");
        }
        memory.settle().unwrap();
        assert_eq!(bytes[..4], [0, 7 + 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0]);
    }
}
