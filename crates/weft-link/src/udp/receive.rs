//! The receiving half: one datagram by the plain call while little arrives, several by one call while much does.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use libc::{iovec, mmsghdr, msghdr};

use super::address::RawAddress;
use super::control::Control;
use crate::limits::{RECEIVE_BATCH_MAX, RECEIVE_BUFFER_BYTES};
use crate::link::{Counters, Incoming};

/// Buffers begin on pages, so that the kernel's copies do not straddle one more than they have to.
const PAGE_BYTES: usize = 4096;
/// Receives in a row that found something, after which more are asked for at once.
const STREAK: u32 = 2;
/// From this many bytes on a receive is worth a call of its own: the next one then lands in the same, warm buffer.
const LARGE_BYTES: usize = 8 << 10;

/// What receiving remembers between calls.
pub(super) struct Receiver {
    /// All buffers, with room to begin on a page.
    memory: Box<[u8]>,
    /// Where the first begins.
    start: usize,
    slots: Box<[Slot; RECEIVE_BATCH_MAX]>,
    headers: Box<[mmsghdr; RECEIVE_BATCH_MAX]>,
    /// Small receives that followed each other without an empty one in between.
    streak: u32,
}

#[derive(Clone, Copy)]
struct Slot {
    name: RawAddress,
    control: Control,
    buffer: iovec,
}

impl Receiver {
    pub(super) fn new() -> Receiver {
        let memory = vec![0; RECEIVE_BATCH_MAX * RECEIVE_BUFFER_BYTES + PAGE_BYTES].into_boxed_slice();
        let start = memory.as_ptr().align_offset(PAGE_BYTES).min(PAGE_BYTES);
        let buffer = iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let slot = Slot { name: RawAddress::new(), control: Control::new(), buffer };
        // SAFETY: a header of zeros has no addresses and no lengths, and is valid.
        let header: mmsghdr = unsafe { std::mem::zeroed() };
        Receiver {
            memory,
            start,
            slots: Box::new([slot; RECEIVE_BATCH_MAX]),
            headers: Box::new([header; RECEIVE_BATCH_MAX]),
            streak: 0,
        }
    }

    #[inline]
    pub(super) fn receive(
        &mut self,
        socket: &OwnedFd,
        sink: &mut dyn FnMut(Incoming<'_>),
        counters: &mut Counters,
    ) -> io::Result<usize> {
        if self.streak < STREAK {
            self.receive_one(socket, sink, counters)
        } else {
            self.receive_many(socket, sink, counters)
        }
    }

    #[inline]
    fn receive_one(
        &mut self,
        socket: &OwnedFd,
        sink: &mut dyn FnMut(Incoming<'_>),
        counters: &mut Counters,
    ) -> io::Result<usize> {
        let [slot, ..] = &mut *self.slots;
        let Some(buffer) = self.memory.get_mut(self.start..self.start + RECEIVE_BUFFER_BYTES) else { return Ok(0) };
        slot.buffer = iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        // SAFETY: a header of zeros has no addresses and no lengths, and is valid.
        let mut header: msghdr = unsafe { std::mem::zeroed() };
        slot.aim(&mut header);
        // SAFETY: the header points to room of the told lengths, which nothing else touches until the call returns.
        let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, 0) };
        let Ok(length) = usize::try_from(received) else {
            self.streak = 0;
            return quiet(io::Error::last_os_error(), counters);
        };
        self.streak = if length < LARGE_BYTES { self.streak + 1 } else { 0 };
        Ok(slot.deliver(&header, buffer, length, sink, counters))
    }

    fn receive_many(
        &mut self,
        socket: &OwnedFd,
        sink: &mut dyn FnMut(Incoming<'_>),
        counters: &mut Counters,
    ) -> io::Result<usize> {
        let Some(buffers) = self.memory.get_mut(self.start..) else { return Ok(0) };
        for ((slot, header), buffer) in
            self.slots.iter_mut().zip(self.headers.iter_mut()).zip(buffers.chunks_exact_mut(RECEIVE_BUFFER_BYTES))
        {
            slot.buffer = iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
            slot.aim(&mut header.msg_hdr);
        }
        let count = RECEIVE_BATCH_MAX as u32;
        // SAFETY: each header points to room of its own of the told lengths, which nothing else touches until the call
        // returns. There is no timeout to write.
        let received =
            unsafe { libc::recvmmsg(socket.as_raw_fd(), self.headers.as_mut_ptr(), count, 0, std::ptr::null_mut()) };
        let Ok(received) = usize::try_from(received) else {
            self.streak = 0;
            return quiet(io::Error::last_os_error(), counters);
        };
        let mut delivered = 0;
        let mut large = false;
        for ((slot, header), buffer) in self
            .slots
            .iter()
            .zip(self.headers.iter())
            .zip(buffers.chunks_exact_mut(RECEIVE_BUFFER_BYTES))
            .take(received)
        {
            let length = header.msg_len as usize;
            large |= length >= LARGE_BYTES;
            delivered += slot.deliver(&header.msg_hdr, buffer, length, sink, counters);
        }
        if received <= 1 || large {
            self.streak = 0;
        }
        Ok(delivered)
    }
}

impl Slot {
    /// Points the header to this slot's room.
    #[inline]
    fn aim(&mut self, header: &mut msghdr) {
        header.msg_name = (&raw mut self.name).cast();
        header.msg_namelen = RawAddress::ROOM;
        header.msg_iov = &raw mut self.buffer;
        header.msg_iovlen = 1;
        header.msg_control = self.control.as_mut_ptr();
        header.msg_controllen = Control::ROOM as _;
        header.msg_flags = 0;
    }

    /// Gives what the kernel wrote to the sink.
    #[inline]
    fn deliver(
        &self,
        header: &msghdr,
        buffer: &mut [u8],
        length: usize,
        sink: &mut dyn FnMut(Incoming<'_>),
        counters: &mut Counters,
    ) -> usize {
        let whole = header.msg_flags & libc::MSG_TRUNC == 0;
        let (Some(from), Some(bytes), true) = (self.name.get(header.msg_namelen), buffer.get_mut(..length), whole)
        else {
            counters.mangled += 1;
            return 0;
        };
        #[allow(clippy::unnecessary_cast, reason = "the type differs between C libraries")]
        let beside = self.control.read(header.msg_controllen as usize);
        sink(Incoming { from, bytes, segment_bytes: beside.segment_bytes, marked: beside.marked });
        1
    }
}

/// Sorts what is no error of the link from what is.
#[cold]
fn quiet(error: io::Error, counters: &mut Counters) -> io::Result<usize> {
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EINTR) => Ok(0),
        Some(libc::EBADF | libc::ENOTSOCK | libc::EFAULT | libc::EINVAL | libc::ENOMEM) => Err(error),
        // What the network says about an earlier send.
        _ => {
            counters.reported += 1;
            Ok(0)
        }
    }
}
