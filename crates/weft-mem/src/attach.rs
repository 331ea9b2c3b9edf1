//! Cross-memory attach: one copy between this node's memory and that of another process, done by the system.
//!
//! The other process says where its bytes are ([`HostMemory::local_spans`]); the system checks that this process may
//! touch it at all, and that something is mapped there. On this side only pieces that are attached or registered are
//! touched. A process may lie about its spans, or reuse them: that harms only its own bytes.
//!
//! A process id can be given to another process once its own has ended. So whoever calls this knows the process to be
//! alive, by the socket between them, and looks again afterwards before it believes what it got.

use std::io;

use weft_core::memory::{Access, Fault, Granted, LocalKey, Memory};

use crate::device::Place;
use crate::limits::ATTACH_SPANS_MAX;
use crate::{HostMemory, guarded};

/// Bytes of a process, by their address there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// The first one.
    pub address: u64,
    /// How many.
    pub length: u64,
}

impl HostMemory {
    /// Where the bytes of an attached buffer are, for a peer that will [`fetch`] or [`store`] them: `spans` is filled
    /// with at most `max` of them. Gives the bytes that they cover: less than `length` where there are more pieces.
    pub fn local_spans(
        &self,
        key: LocalKey,
        offset: u64,
        length: u64,
        max: usize,
        spans: &mut Vec<Span>,
    ) -> Result<u64, Fault> {
        spans.clear();
        let mut covered = 0;
        while covered < length && spans.len() < max {
            let piece = self.local(key, offset.saturating_add(covered), length - covered)?;
            spans.push(self.span(piece)?);
            covered += piece.length;
        }
        Ok(covered)
    }

    /// Where a piece is.
    pub fn span(&self, of: Granted) -> Result<Span, Fault> {
        let pointer = self.pointer(of, Access::REMOTE_READ)?;
        Ok(Span { address: pointer.addr() as u64, length: of.length })
    }
}

/// Copies from another process into pieces of this node's memory: as many bytes as the pieces have, from `skip` bytes
/// behind the beginning of the spans. All of them, or an error; then some may have been copied.
pub fn fetch(
    pid: i32,
    remote: &[Span],
    skip: u64,
    memory: &mut HostMemory,
    to: &[Granted],
) -> Result<usize, TransferError> {
    if memory.uses_devices() {
        return fetch_anywhere(pid, remote, skip, memory, to);
    }
    let local = Cursor::local(memory, to, Access::REMOTE_WRITE);
    transfer(pid, Cursor::remote(remote, skip), local, libc::process_vm_readv)
}

/// Copies pieces of this node's memory to another process: all bytes of the pieces, to `skip` bytes behind the beginning
/// of the spans. All of them, or an error; then some may have been copied.
pub fn store(
    pid: i32,
    remote: &[Span],
    skip: u64,
    memory: &HostMemory,
    from: &[Granted],
) -> Result<usize, TransferError> {
    if memory.uses_devices() {
        return store_anywhere(pid, remote, skip, memory, from);
    }
    let local = Cursor::local(memory, from, Access::REMOTE_READ);
    transfer(pid, Cursor::remote(remote, skip), local, libc::process_vm_writev)
}

/// As [`fetch`], piece by piece, since the system cannot write to devices: for those it writes to a buffer of the host.
fn fetch_anywhere(
    pid: i32,
    remote: &[Span],
    skip: u64,
    memory: &mut HostMemory,
    to: &[Granted],
) -> Result<usize, TransferError> {
    let mut done = 0;
    for &piece in to {
        let mut left = piece;
        while left.length > 0 {
            let (pointer, length) = memory.writable(left).map_err(TransferError::Local)?;
            let local = Cursor::one(pointer, length);
            transfer(pid, Cursor::remote(remote, skip.saturating_add(done as u64)), local, libc::process_vm_readv)
                .map_err(|error| {
                    let ours = || guarded::make_writable(pointer, length);
                    whose(error, memory.place(left, Access::REMOTE_WRITE), ours)
                })?;
            memory.written(left, length).map_err(TransferError::Local)?;
            left = behind(left, length)?;
            done += length;
        }
    }
    Ok(done)
}

/// As [`store`], piece by piece, since the system cannot read from devices: of those it reads a copy.
fn store_anywhere(
    pid: i32,
    remote: &[Span],
    skip: u64,
    memory: &HostMemory,
    from: &[Granted],
) -> Result<usize, TransferError> {
    let mut done = 0;
    for &piece in from {
        let mut left = piece;
        while left.length > 0 {
            let (pointer, length) = memory.readable(left).map_err(TransferError::Local)?;
            let local = Cursor::one(pointer.cast_mut(), length);
            transfer(pid, Cursor::remote(remote, skip.saturating_add(done as u64)), local, libc::process_vm_writev)
                .map_err(|error| {
                    let ours = || guarded::make_readable(pointer.cast_mut(), length);
                    whose(error, memory.place(left, Access::REMOTE_READ), ours)
                })?;
            left = behind(left, length)?;
            done += length;
        }
    }
    Ok(done)
}

/// An error by the side that it is of: what the system calls a bad address may be one of ours, where memory need not be
/// mapped. `ours` looks.
fn whose(error: TransferError, place: Result<Place, Fault>, ours: impl FnOnce() -> Result<(), Fault>) -> TransferError {
    match error {
        TransferError::BadAddress if place.is_ok_and(Place::is_guarded) => {
            ours().err().map_or(error, TransferError::Local)
        }
        _ => error,
    }
}

/// A piece without its first bytes, of which there is at least one.
fn behind(piece: Granted, length: usize) -> Result<Granted, TransferError> {
    let rest = piece.length.checked_sub(length as u64).filter(|_| length > 0);
    let length = rest.ok_or(TransferError::Local(Fault::OutOfBounds))?;
    Ok(Granted { offset: piece.offset + (piece.length - length), length, ..piece })
}

/// Whether this process may touch the memory of another: reads a word there, and compares.
#[must_use]
pub fn can_attach(pid: i32, address: u64, expected: u64) -> bool {
    let mut word = [0u8; 8];
    let local = libc::iovec { iov_base: word.as_mut_ptr().cast(), iov_len: word.len() };
    let remote = remote_iovec(address, word.len());
    // SAFETY: the local bytes are on the stack; the system checks the remote ones.
    let copied = unsafe { libc::process_vm_readv(pid, &local, 1, &remote, 1, 0) };
    usize::try_from(copied) == Ok(word.len()) && u64::from_ne_bytes(word) == expected
}

/// One of the two calls of the system.
type Call = unsafe extern "C" fn(
    libc::pid_t,
    *const libc::iovec,
    libc::c_ulong,
    *const libc::iovec,
    libc::c_ulong,
    libc::c_ulong,
) -> isize;

fn transfer<R, L>(pid: i32, mut remote: Cursor<R>, mut local: Cursor<L>, call: Call) -> Result<usize, TransferError>
where
    R: Iterator<Item = Result<libc::iovec, TransferError>>,
    L: Iterator<Item = Result<libc::iovec, TransferError>>,
{
    let mut done = 0usize;
    loop {
        local.fill()?;
        let wanted = local.bytes();
        if wanted == 0 {
            return Ok(done);
        }
        remote.fill()?;
        let available = remote.bytes();
        if available == 0 {
            return Err(TransferError::TooShort);
        }
        // The system stops at the end of the shorter list.
        let (here, there) = (local.iovecs(), remote.iovecs());
        // SAFETY: the local pieces were resolved by `HostMemory`, which is borrowed during this call, with the right to
        // read or write as the call does; the system checks the remote ones. The counts are those of the slices.
        let copied = unsafe { call(pid, here.as_ptr(), here.len() as _, there.as_ptr(), there.len() as _, 0) };
        let Ok(copied) = usize::try_from(copied) else {
            let error = io::Error::last_os_error();
            if error.kind() == io::ErrorKind::Interrupted {
                continue;
            }
            return Err(TransferError::from_system(error));
        };
        // Nothing, though both sides had bytes: never go round for ever.
        if copied == 0 || copied > wanted.min(available) {
            return Err(TransferError::BadAddress);
        }
        local.advance(copied);
        remote.advance(copied);
        done = done.saturating_add(copied);
    }
}

/// A list of pieces as far as the system takes one, and what comes behind.
struct Cursor<I> {
    window: [libc::iovec; ATTACH_SPANS_MAX],
    first: usize,
    end: usize,
    rest: I,
}

impl Cursor<()> {
    fn one(pointer: *mut u8, length: usize) -> Cursor<impl Iterator<Item = Result<libc::iovec, TransferError>>> {
        Cursor::new(std::iter::once(Ok(libc::iovec { iov_base: pointer.cast(), iov_len: length })))
    }

    fn local<'a>(
        memory: &'a HostMemory,
        pieces: &'a [Granted],
        access: Access,
    ) -> Cursor<impl Iterator<Item = Result<libc::iovec, TransferError>> + use<'a>> {
        Cursor::new(pieces.iter().filter(|piece| piece.length > 0).map(move |&piece| {
            let pointer = memory.pointer(piece, access).map_err(TransferError::Local)?;
            // It fits: the piece is in memory.
            Ok(libc::iovec { iov_base: pointer.cast(), iov_len: piece.length as usize })
        }))
    }

    fn remote(
        spans: &[Span],
        mut skip: u64,
    ) -> Cursor<impl Iterator<Item = Result<libc::iovec, TransferError>> + use<'_>> {
        Cursor::new(spans.iter().filter_map(move |span| {
            let skipped = skip.min(span.length);
            skip -= skipped;
            let length = span.length - skipped;
            if length == 0 {
                return None;
            }
            let part = || Some((span.address.checked_add(skipped)?, usize::try_from(length).ok()?));
            Some(part().map(|(address, length)| remote_iovec(address, length)).ok_or(TransferError::BadAddress))
        }))
    }
}

impl<I: Iterator<Item = Result<libc::iovec, TransferError>>> Cursor<I> {
    fn new(rest: I) -> Cursor<I> {
        Cursor { window: [remote_iovec(0, 0); ATTACH_SPANS_MAX], first: 0, end: 0, rest }
    }

    /// Fetches more pieces when there are none.
    fn fill(&mut self) -> Result<(), TransferError> {
        if self.first < self.end {
            return Ok(());
        }
        (self.first, self.end) = (0, 0);
        for place in &mut self.window {
            let Some(piece) = self.rest.next() else { break };
            *place = piece?;
            self.end += 1;
        }
        Ok(())
    }

    fn iovecs(&self) -> &[libc::iovec] {
        self.window.get(self.first..self.end).unwrap_or_default()
    }

    fn bytes(&self) -> usize {
        self.iovecs().iter().fold(0, |sum, iovec| sum.saturating_add(iovec.iov_len))
    }

    fn advance(&mut self, mut bytes: usize) {
        let pieces = self.window.get_mut(self.first..self.end).unwrap_or_default();
        for iovec in pieces {
            let step = bytes.min(iovec.iov_len);
            iovec.iov_base = iovec.iov_base.wrapping_byte_add(step);
            iovec.iov_len -= step;
            bytes -= step;
            if iovec.iov_len > 0 {
                break;
            }
            self.first += 1;
        }
    }
}

fn remote_iovec(address: u64, length: usize) -> libc::iovec {
    libc::iovec { iov_base: std::ptr::without_provenance_mut(address as usize), iov_len: length }
}

/// Why bytes were not copied between processes.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// The path: the system does not let this process touch the other one, which has another user, another container
    /// or a setting of Yama between. It will not for the next transfer either: take another way.
    #[error(
        "the system does not permit to copy from or to this process: run both as one user in one container, and look at /proc/sys/kernel/yama/ptrace_scope"
    )]
    NotPermitted,
    /// The peer: there is no such process (any more).
    #[error("the process has ended")]
    Gone,
    /// The peer: nothing is mapped where it said its bytes were, or it may not be written.
    #[error("the process has no memory where it said")]
    BadAddress,
    /// The caller: the spans have less bytes than the pieces.
    #[error("the process named less bytes than the transfer needs")]
    TooShort,
    /// The caller: a piece of this node's own memory cannot be used.
    #[error("this side of the transfer: {0}")]
    Local(Fault),
    /// A local resource.
    #[error("copying between processes failed: {0}")]
    System(io::Error),
}

impl TransferError {
    fn from_system(error: io::Error) -> TransferError {
        match error.raw_os_error() {
            // A filter of system calls may say that there is no such call.
            Some(libc::EPERM | libc::EACCES | libc::ENOSYS) => TransferError::NotPermitted,
            Some(libc::ESRCH) => TransferError::Gone,
            Some(libc::EFAULT) => TransferError::BadAddress,
            // Lengths that go past the end of the address space.
            Some(libc::EINVAL) => TransferError::BadAddress,
            _ => TransferError::System(error),
        }
    }
}
