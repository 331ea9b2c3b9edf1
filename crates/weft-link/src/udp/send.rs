//! The sending half: one call for one datagram, one call for many, and what to do when the kernel refuses.

use std::cell::Cell;
use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;

use libc::{c_int, c_void, iovec, mmsghdr, msghdr, socklen_t};

use weft_mem::fork::LocalFd;

use super::address::RawAddress;
use super::control::Control;
use super::socket;
use weft_core::session::Path;

use crate::limits::{CLASSES, PIECES_MAX, SEGMENTS_MAX, SEND_BATCH_MAX, SEND_MAX_BYTES};
use crate::link::{Counters, Outgoing, SendError};
use crate::segment::Segment;

/// A datagram in pieces up to this length is copied together rather than told as pieces.
const SHORT_BYTES: usize = 512;
/// So is one up to this length, a page of payload, by a function of its own: its room is more than a page of stack.
const COPIED_BYTES: usize = 4096 + 256;

/// What sending remembers between calls.
pub(super) struct Sender {
    /// The kernel cuts.
    offload: bool,
    /// Traffic class of each message class. The first is the socket's own and needs no telling.
    classes: [u8; CLASSES],
    /// Room for the messages of one call.
    slots: Box<[Slot; SEND_BATCH_MAX]>,
    headers: Box<[mmsghdr; SEND_BATCH_MAX]>,
    rest: Rest,
    /// The kernel told of an earlier datagram instead of sending one: more may wait in its error queue.
    stumbled: Cell<bool>,
}

/// What a message header points to besides the bytes.
#[derive(Clone, Copy)]
struct Slot {
    name: RawAddress,
    control: Control,
}

/// The copy of something that had to be cut by us, of which not all is sent yet.
struct Rest {
    bytes: Vec<u8>,
    sent: usize,
    path: Path,
    segment_bytes: usize,
    class: u8,
}

/// What an error of the kernel means.
enum Refusal {
    WouldBlock,
    TooBig,
    /// Perhaps the kernel cannot cut on this way.
    Offload,
    /// The datagram cannot go where it should.
    Skip,
    Broken(io::Error),
}

impl Sender {
    pub(super) fn new(offload: bool, classes: [u8; CLASSES]) -> Sender {
        let slot = Slot { name: RawAddress::new(), control: Control::new() };
        // SAFETY: a header of zeros has no addresses and no lengths, and is valid.
        let header: mmsghdr = unsafe { std::mem::zeroed() };
        Sender {
            offload,
            classes,
            slots: Box::new([slot; SEND_BATCH_MAX]),
            headers: Box::new([header; SEND_BATCH_MAX]),
            rest: Rest { bytes: Vec::new(), sent: 0, path: Path::NOWHERE, segment_bytes: 0, class: 0 },
            stumbled: Cell::new(false),
        }
    }

    #[inline]
    pub(super) fn has_stumbled(&self) -> bool {
        self.stumbled.get()
    }

    pub(super) fn set_stumbled(&self, stumbled: bool) {
        self.stumbled.set(stumbled);
    }

    pub(super) fn offloads(&self) -> bool {
        self.offload
    }

    #[inline]
    pub(super) fn has_rest(&self) -> bool {
        self.rest.sent < self.rest.bytes.len()
    }

    /// Sends a batch. A socket that is `connected` is so to all destinations in it.
    #[inline]
    pub(super) fn send(
        &mut self,
        socket: &LocalFd,
        connected: bool,
        batch: &[Outgoing<'_>],
        counters: &mut Counters,
    ) -> Result<usize, SendError> {
        if self.has_rest() {
            match self.send_rest(socket, counters) {
                // The way became narrower while it waited. The batch has nothing to do with it.
                Err(SendError::TooBig { .. }) => counters.skipped += 1,
                other => other?,
            }
        }
        if let [one] = batch {
            return self.send_one(socket, one, counters).map(|()| 1);
        }
        let mut left = batch;
        while let [first, behind @ ..] = left {
            let taken = match self.send_many(socket, connected, left) {
                0 => self.send_one(socket, first, counters).map(|()| behind),
                sent => Ok(left.get(sent..).unwrap_or(&[])),
            };
            match taken {
                Ok(rest) => left = rest,
                // The next call meets it again, as the first of its batch.
                Err(_) if left.len() < batch.len() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(batch.len() - left.len())
    }

    /// One that may go in fragments. The kernel knows such a permission for a socket only, so the socket gets it for a
    /// moment.
    #[cold]
    pub(super) fn send_in_fragments(
        &mut self,
        socket: &LocalFd,
        outgoing: &Outgoing<'_>,
        counters: &mut Counters,
    ) -> Result<(), SendError> {
        let ipv6 = outgoing.path.remote.is_ipv6();
        if socket::permit_fragments(socket, ipv6, true).is_err() {
            return Err(SendError::TooBig { path: outgoing.path });
        }
        // The kernel makes no fragments of what it cuts.
        let offload = std::mem::replace(&mut self.offload, false);
        let sent = self.send(socket, false, std::slice::from_ref(outgoing), counters);
        self.offload = offload;
        // What was permitted can be forbidden again.
        let _ = socket::permit_fragments(socket, ipv6, false);
        sent.map(|_| ())
    }

    /// One on a socket that is connected to its destination; false when it is not that simple, and nothing was sent.
    #[inline]
    pub(super) fn send_connected(&self, socket: &LocalFd, outgoing: &Outgoing<'_>) -> bool {
        let Some(segment_bytes) = self.plan(outgoing) else { return false };
        !self.has_rest() && self.call(socket, None, outgoing, segment_bytes).is_ok()
    }

    /// One, by the plain call.
    #[inline]
    fn send_one(
        &mut self,
        socket: &LocalFd,
        outgoing: &Outgoing<'_>,
        counters: &mut Counters,
    ) -> Result<(), SendError> {
        let Some(segment_bytes) = self.plan(outgoing) else { return self.send_cut(socket, outgoing, counters) };
        match self.call(socket, Some(outgoing.path.remote), outgoing, segment_bytes) {
            Ok(()) => Ok(()),
            Err(Refusal::WouldBlock) => Err(SendError::WouldBlock),
            Err(Refusal::TooBig) => Err(SendError::TooBig { path: outgoing.path }),
            Err(Refusal::Skip) => {
                counters.skipped += 1;
                Ok(())
            }
            Err(Refusal::Broken(error)) => Err(SendError::Failed(error)),
            Err(Refusal::Offload) => {
                // Older kernels say the same of datagrams that are too long. Only when single ones go through is it
                // the cutting that they refuse.
                let skipped = counters.skipped;
                self.offload = false;
                let sent = self.send_cut(socket, outgoing, counters);
                self.offload = sent.is_err() || counters.skipped != skipped;
                sent
            }
        }
    }

    /// As many from the front as one call takes; 0 when the first has to be looked at alone.
    fn send_many(&mut self, socket: &LocalFd, connected: bool, batch: &[Outgoing<'_>]) -> usize {
        let mut count = 0;
        let (offload, classes) = (self.offload, self.classes);
        for ((outgoing, slot), header) in batch.iter().zip(self.slots.iter_mut()).zip(self.headers.iter_mut()) {
            let Some(segment_bytes) = plan(offload, outgoing) else { break };
            let class = told_class(&classes, outgoing.class);
            let control_length = slot.control.fill(segment_bytes, class, outgoing.path.remote.is_ipv6());
            header.msg_len = 0;
            if connected {
                header.msg_hdr.msg_name = std::ptr::null_mut();
                header.msg_hdr.msg_namelen = 0;
            } else {
                (slot.name, header.msg_hdr.msg_namelen) = RawAddress::from(outgoing.path.remote);
                header.msg_hdr.msg_name = (&raw mut slot.name).cast();
            }
            header.msg_hdr.msg_iov = outgoing.pieces.as_ptr().cast_mut().cast::<iovec>();
            header.msg_hdr.msg_iovlen = outgoing.pieces.len() as _;
            header.msg_hdr.msg_control = slot.control.as_mut_ptr();
            header.msg_hdr.msg_controllen = control_length as _;
            count += 1;
        }
        if count < 2 {
            return 0;
        }
        // SAFETY: the first `count` headers point to slots of ours and to pieces of the batch, all of which live until
        // the call returns; the kernel only reads the pieces, which are `iovec` in memory.
        let sent = unsafe { libc::sendmmsg(socket.as_raw_fd(), self.headers.as_mut_ptr(), count, 0) };
        let sent = usize::try_from(sent).unwrap_or(0);
        // What stopped the next one is not told: it may have been about an earlier one.
        if sent < count as usize {
            self.stumbled.set(true);
        }
        sent
    }

    /// Copies something that the kernel does not take in one go, and sends it in several.
    #[cold]
    fn send_cut(
        &mut self,
        socket: &LocalFd,
        outgoing: &Outgoing<'_>,
        counters: &mut Counters,
    ) -> Result<(), SendError> {
        self.rest.bytes.clear();
        outgoing.gather(&mut self.rest.bytes);
        self.rest.sent = 0;
        self.rest.path = outgoing.path;
        self.rest.class = outgoing.class;
        self.rest.segment_bytes =
            if outgoing.segment_bytes == 0 { self.rest.bytes.len() } else { outgoing.segment_bytes };
        let sent = self.send_rest(socket, counters);
        if matches!(sent, Err(SendError::WouldBlock)) && self.rest.sent > 0 {
            // It is taken: the rest goes before whatever is sent next.
            return Ok(());
        }
        if sent.is_err() {
            self.rest.bytes.clear();
        }
        sent
    }

    /// Sends what is left of the copy. Only when it would block is anything left of it afterwards.
    #[cold]
    fn send_rest(&mut self, socket: &LocalFd, counters: &mut Counters) -> Result<(), SendError> {
        // The copy is taken out so that the call can borrow the sender.
        let mut rest = std::mem::take(&mut self.rest.bytes);
        let size = self.rest.segment_bytes.max(1);
        let mut result = Ok(());
        while self.rest.sent < rest.len() {
            let segments = if self.offload { (SEND_MAX_BYTES / size).clamp(1, SEGMENTS_MAX) } else { 1 };
            let end = rest.len().min(self.rest.sent + segments * size);
            let part = rest.get(self.rest.sent..end).unwrap_or(&[]);
            let cut = if part.len() > size { size as u16 } else { 0 };
            let (path, class) = (self.rest.path, self.rest.class);
            let pieces = &[Segment::from_slice(part)];
            let outgoing = Outgoing { path, pieces, segment_bytes: size, class, may_fragment: false };
            match self.call(socket, Some(path.remote), &outgoing, cut) {
                Ok(()) => self.rest.sent = end,
                Err(Refusal::Skip) => {
                    counters.skipped += 1;
                    self.rest.sent = end;
                }
                Err(Refusal::Offload) => self.offload = false,
                Err(Refusal::WouldBlock) => {
                    result = Err(SendError::WouldBlock);
                    break;
                }
                Err(Refusal::TooBig) => {
                    rest.clear();
                    result = Err(SendError::TooBig { path: self.rest.path });
                }
                Err(Refusal::Broken(error)) => {
                    rest.clear();
                    result = Err(SendError::Failed(error));
                }
            }
        }
        self.rest.bytes = rest;
        result
    }

    fn plan(&self, outgoing: &Outgoing<'_>) -> Option<u16> {
        plan(self.offload, outgoing)
    }

    /// Sends one, to `to` or, without, to whom the socket is connected to.
    #[inline]
    fn call(
        &self,
        socket: &LocalFd,
        to: Option<SocketAddr>,
        outgoing: &Outgoing<'_>,
        segment_bytes: u16,
    ) -> Result<(), Refusal> {
        let mut named = to.map(RawAddress::from);
        let pieces = outgoing.pieces;
        let class = told_class(&self.classes, outgoing.class);
        if segment_bytes == 0 && class.is_none() {
            let name = named.as_ref().map(|(name, length)| (name, *length));
            let stumbled = &self.stumbled;
            let sent = send_whole::<SHORT_BYTES>(socket, name, pieces, stumbled)
                .or_else(|| send_copied(socket, name, pieces, stumbled));
            if let Some(sent) = sent {
                return sent;
            }
        }
        let (name_at, name_length) = match &mut named {
            Some((name, length)) => ((&raw mut *name).cast::<c_void>(), *length),
            None => (std::ptr::null_mut(), 0),
        };
        let mut control = Control::new();
        // SAFETY: a header of zeros has no addresses and no lengths, and is valid.
        let mut header: msghdr = unsafe { std::mem::zeroed() };
        header.msg_name = name_at;
        header.msg_namelen = name_length;
        header.msg_iov = pieces.as_ptr().cast_mut().cast::<iovec>();
        header.msg_iovlen = pieces.len() as _;
        if segment_bytes != 0 || class.is_some() {
            header.msg_controllen = control.fill(segment_bytes, class, outgoing.path.remote.is_ipv6()) as _;
            header.msg_control = control.as_mut_ptr();
        }
        attempt(segment_bytes != 0, &self.stumbled, || {
            // SAFETY: the header points to a name, control messages and pieces that live until the call returns; the
            // kernel only reads the pieces, which are `iovec` in memory.
            unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const header, 0) }
        })
    }
}

/// Calls the kernel until no signal interrupts, and once more after an error that may be that of an earlier datagram, to
/// whomever: the kernel tells it once, and sends nothing.
#[inline]
fn attempt(cut: bool, stumbled: &Cell<bool>, mut call: impl FnMut() -> isize) -> Result<(), Refusal> {
    let mut again = true;
    loop {
        if call() >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() == Some(libc::EINTR) {
            continue;
        }
        let refusal = Refusal::from(error.raw_os_error().unwrap_or(0), error, cut);
        if !matches!(refusal, Refusal::Skip | Refusal::TooBig) || !again {
            return Err(refusal);
        }
        stumbled.set(true);
        again = false;
    }
}

/// One datagram by `sendto`, which costs about 140 ns less than `sendmsg`; `None`: its pieces have more than `ROOM` bytes.
#[inline]
fn send_whole<const ROOM: usize>(
    socket: &LocalFd,
    name: Option<(&RawAddress, socklen_t)>,
    pieces: &[Segment<'_>],
    stumbled: &Cell<bool>,
) -> Option<Result<(), Refusal>> {
    let mut copy = [MaybeUninit::uninit(); ROOM];
    let whole = contiguous(pieces, &mut copy)?;
    let (name_at, name_length) = name.map_or((std::ptr::null(), 0), |(name, length)| (&raw const *name, length));
    Some(attempt(false, stumbled, || {
        // SAFETY: `whole` can be read for its length while the pieces and the copy live, and the name is as long as told.
        unsafe {
            let (bytes, length) = (whole.iov_base, whole.iov_len);
            libc::sendto(socket.as_raw_fd(), bytes, length, 0, name_at.cast(), name_length)
        }
    }))
}

/// The same for a longer one.
#[inline(never)]
fn send_copied(
    socket: &LocalFd,
    name: Option<(&RawAddress, socklen_t)>,
    pieces: &[Segment<'_>],
    stumbled: &Cell<bool>,
) -> Option<Result<(), Refusal>> {
    send_whole::<COPIED_BYTES>(socket, name, pieces, stumbled)
}

/// The pieces as one, copied when they fit.
#[inline]
fn contiguous<const ROOM: usize>(pieces: &[Segment<'_>], copy: &mut [MaybeUninit<u8>; ROOM]) -> Option<iovec> {
    if let [one] = pieces {
        return Some(one.as_iovec());
    }
    let to = copy.as_mut_ptr().cast::<u8>();
    let mut length = 0;
    for piece in pieces {
        let raw = piece.as_iovec();
        if raw.iov_len > ROOM - length {
            return None;
        }
        // SAFETY: a segment's memory is readable for its length while it lives, and what is left of the copy has room
        // for it. Peers and other threads may write a region meanwhile, which this copy permits.
        unsafe { weft_mem::copy::copy(to.add(length), raw.iov_base.cast::<u8>(), raw.iov_len) };
        length += raw.iov_len;
    }
    Some(iovec { iov_base: to.cast(), iov_len: length })
}

/// The segment size that the kernel is told, 0 when there is nothing to cut; `None` when we have to cut.
#[inline]
fn plan(offload: bool, outgoing: &Outgoing<'_>) -> Option<u16> {
    if outgoing.segment_bytes == 0 {
        return (outgoing.pieces.len() <= PIECES_MAX).then_some(0);
    }
    let length = outgoing.length();
    let fits = length <= SEND_MAX_BYTES
        && length <= outgoing.segment_bytes.saturating_mul(SEGMENTS_MAX)
        && outgoing.pieces.len() <= PIECES_MAX;
    match fits {
        true if length <= outgoing.segment_bytes => Some(0),
        true if offload => u16::try_from(outgoing.segment_bytes).ok(),
        _ => None,
    }
}

/// The traffic class that has to be told with a message; `None` for the socket's own.
#[inline]
fn told_class(classes: &[u8; CLASSES], class: u8) -> Option<u8> {
    let [own, ..] = *classes;
    classes.get(usize::from(class)).copied().filter(|class| *class != own)
}

impl Refusal {
    #[cold]
    fn from(code: c_int, error: io::Error, cut: bool) -> Refusal {
        match code {
            libc::EAGAIN => Refusal::WouldBlock,
            libc::EMSGSIZE => Refusal::TooBig,
            libc::EINVAL | libc::EIO if cut => Refusal::Offload,
            libc::EBADF | libc::ENOTSOCK | libc::EDESTADDRREQ | libc::EPIPE => Refusal::Broken(error),
            // Everything else is about this destination, this moment or these bytes: ECONNREFUSED, EHOSTUNREACH,
            // ENETUNREACH, EPERM (a filter), ENOBUFS (a full queue), EFAULT (memory that its user has unmapped).
            _ => Refusal::Skip,
        }
    }
}
