//! The receiving half: the cheapest call that does for what arrives.
//!
//! `recvfrom` costs about 200 ns less than `recvmsg` with control messages, and 130 ns less when nothing is there, but
//! tells neither the size of joined datagrams nor marks. So joining is switched on only once large datagrams follow each
//! other, and off again when none came for a while; while it is off and little arrives, `recvfrom` does, and every
//! sixteenth call asks for marks too. A flow that fills queues is made of large datagrams, and those are always asked about.
//! Several small ones in a row share one `recvmmsg`. `examples/bare.rs` measures.

use std::io;
use std::os::fd::AsRawFd;

use libc::{iovec, mmsghdr, msghdr};

use weft_mem::fork::LocalFd;

use super::address::RawAddress;
use super::control::Control;
use super::socket;
use crate::limits::{RECEIVE_BATCH_MAX, RECEIVE_BUFFER_BYTES};
use crate::link::{Counters, Incoming};

/// Buffers begin on pages, so that the kernel's copies do not straddle one more than they have to.
const PAGE_BYTES: usize = 4096;
/// Receives in a row that found something, after which more are asked for at once. In a conversation that goes fast
/// nobody looks in vain, and a look for one costs less.
const STREAK: u32 = 4;
/// From this many bytes on datagrams are worth joining; below it they are rather waited for. No smaller than bulk
/// datagrams of the smallest MTU.
const LARGE_BYTES: usize = 1024;
/// From this many bytes on a receive is worth a call of its own: the next one then lands in the same, warm buffer.
const HUGE_BYTES: usize = 8 << 10;
/// Receives by the short call between two that also ask for marks.
const SAMPLE: u32 = 16;
/// Calls without a large datagram after which joining is switched off.
const QUIET_CALLS: u32 = 2048;
/// Calls after which nothing joined can be on its way up any more: only then is the short call safe.
const CALM_CALLS: u32 = 4 * QUIET_CALLS;

/// What receiving remembers between calls.
pub(super) struct Receiver {
    /// All buffers, with room to begin on a page.
    memory: Box<[u8]>,
    /// Where the first begins.
    start: usize,
    slots: Box<[Slot; RECEIVE_BATCH_MAX]>,
    headers: Box<[mmsghdr; RECEIVE_BATCH_MAX]>,
}

/// What has arrived on one socket lately, which decides by which call to ask.
pub(super) struct Pace {
    /// Receives that followed each other without an empty or a huge one in between.
    streak: u32,
    /// Calls since the last large datagram, up to [`CALM_CALLS`]: there, nothing joined can come.
    quiet: u32,
    /// Receives by the short call since marks were asked for.
    unsampled: u32,
    /// The kernel can join.
    joins: bool,
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
        }
    }

    #[inline]
    pub(super) fn receive(
        &mut self,
        socket: &LocalFd,
        pace: &mut Pace,
        sink: &mut dyn FnMut(Incoming<'_>),
        counters: &mut Counters,
    ) -> io::Result<usize> {
        if pace.streak >= STREAK {
            self.receive_many(socket, pace, sink, counters)
        } else if pace.quiet == CALM_CALLS && pace.unsampled < SAMPLE {
            self.receive_short(socket, pace, sink, counters)
        } else {
            self.receive_one(socket, pace, sink, counters)
        }
    }

    /// One, without control messages. Only right while nothing is joined.
    #[inline]
    fn receive_short(
        &mut self,
        socket: &LocalFd,
        pace: &mut Pace,
        sink: &mut dyn FnMut(Incoming<'_>),
        counters: &mut Counters,
    ) -> io::Result<usize> {
        let Some(buffer) = self.memory.get_mut(self.start..self.start + RECEIVE_BUFFER_BYTES) else { return Ok(0) };
        let mut name = RawAddress::new();
        let mut name_length = RawAddress::ROOM;
        let (to, room) = (buffer.as_mut_ptr().cast(), buffer.len());
        // SAFETY: the buffer and the name have room of the told lengths, and nothing else touches them meanwhile. The
        // kernel cannot cut a datagram short: it is never longer than the buffer.
        let received =
            unsafe { libc::recvfrom(socket.as_raw_fd(), to, room, 0, (&raw mut name).cast(), &raw mut name_length) };
        let Ok(length) = usize::try_from(received) else {
            pace.streak = 0;
            return quiet(io::Error::last_os_error(), counters);
        };
        let (Some(from), Some(bytes)) = (name.get(name_length), buffer.get_mut(..length)) else {
            counters.mangled += 1;
            return Ok(0);
        };
        sink(Incoming { path: from.into(), bytes, segment_bytes: 0, marked: false });
        pace.unsampled += 1;
        pace.note(socket, length, 1);
        Ok(1)
    }

    #[inline]
    fn receive_one(
        &mut self,
        socket: &LocalFd,
        pace: &mut Pace,
        sink: &mut dyn FnMut(Incoming<'_>),
        counters: &mut Counters,
    ) -> io::Result<usize> {
        pace.note_call(socket);
        let [slot, ..] = &mut *self.slots;
        let Some(buffer) = self.memory.get_mut(self.start..self.start + RECEIVE_BUFFER_BYTES) else { return Ok(0) };
        slot.buffer = iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        // SAFETY: a header of zeros has no addresses and no lengths, and is valid.
        let mut header: msghdr = unsafe { std::mem::zeroed() };
        slot.aim(&mut header);
        // SAFETY: the header points to room of the told lengths, which nothing else touches until the call returns.
        let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, 0) };
        let Ok(length) = usize::try_from(received) else {
            pace.streak = 0;
            return quiet(io::Error::last_os_error(), counters);
        };
        let delivered = slot.deliver(&header, buffer, length, sink, pace, counters);
        pace.unsampled = 0;
        pace.note(socket, length, 1);
        Ok(delivered)
    }

    fn receive_many(
        &mut self,
        socket: &LocalFd,
        pace: &mut Pace,
        sink: &mut dyn FnMut(Incoming<'_>),
        counters: &mut Counters,
    ) -> io::Result<usize> {
        pace.note_call(socket);
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
            pace.streak = 0;
            return quiet(io::Error::last_os_error(), counters);
        };
        let mut delivered = 0;
        let mut largest = 0;
        for ((slot, header), buffer) in self
            .slots
            .iter()
            .zip(self.headers.iter())
            .zip(buffers.chunks_exact_mut(RECEIVE_BUFFER_BYTES))
            .take(received)
        {
            let length = header.msg_len as usize;
            largest = largest.max(length);
            delivered += slot.deliver(&header.msg_hdr, buffer, length, sink, pace, counters);
        }
        pace.unsampled = 0;
        pace.note(socket, largest, received);
        if received <= 1 {
            pace.streak = 0;
        }
        Ok(delivered)
    }
}

impl Pace {
    pub(super) fn new(joins: bool) -> Pace {
        Pace { streak: 0, quiet: CALM_CALLS, unsampled: 0, joins }
    }

    /// Learns from a call that brought `count` messages, the largest of this length.
    #[inline]
    fn note(&mut self, socket: &LocalFd, largest: usize, count: usize) {
        // One that comes alone is a message, not a flow: it need not wait for others, nor be asked about marks.
        if largest >= HUGE_BYTES || largest >= LARGE_BYTES && (self.streak > 0 || self.quiet < CALM_CALLS) {
            self.note_large(socket);
        }
        self.streak = if largest >= HUGE_BYTES || count == 0 { 0 } else { self.streak + 1 };
    }

    fn note_large(&mut self, socket: &LocalFd) {
        if self.joins {
            if self.quiet >= QUIET_CALLS {
                // Where the kernel refuses, nothing is ever joined, and asking again is cheap beside a large datagram.
                let _ = socket::set(socket, libc::SOL_UDP, libc::UDP_GRO, 1);
            }
            self.quiet = 0;
        }
        // Bulk wants its marks.
        self.unsampled = SAMPLE;
    }

    /// Counts a call that asked for control messages, and switches joining off when it has been of no use.
    #[inline]
    fn note_call(&mut self, socket: &LocalFd) {
        if self.quiet < CALM_CALLS {
            self.quiet += 1;
            if self.quiet == QUIET_CALLS {
                let _ = socket::set(socket, libc::SOL_UDP, libc::UDP_GRO, 0);
            }
        }
    }

    /// A mark was seen: more are likely, and for a while all are to be.
    fn note_mark(&mut self) {
        self.quiet = self.quiet.min(QUIET_CALLS);
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
        pace: &mut Pace,
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
        if beside.marked {
            pace.note_mark();
        }
        sink(Incoming { path: from.into(), bytes, segment_bytes: beside.segment_bytes, marked: beside.marked });
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
