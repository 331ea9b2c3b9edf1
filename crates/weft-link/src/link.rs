//! What the engine's driver asks of a link.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::slice::ChunksMut;

use weft_core::session::Path;

use crate::limits::QUOTED_MAX_BYTES;
use crate::segment::Segment;

/// Something that moves datagrams, none of it blocking, none of it reliable.
///
/// A driver calls [`send`](Link::send) until its batch is taken and [`receive`](Link::receive) until it gives 0, and
/// may sleep on [`descriptor`](Link::descriptor) in between.
pub trait Link: Send {
    /// Where peers reach this link.
    fn local(&self) -> SocketAddr;

    /// Bytes of a datagram that fit on a way, as far as this node can know without a word of anybody else:
    /// 512 to 65507. Asking is not for each packet; ask again after [`SendError::TooBig`].
    fn mtu(&mut self, path: Path) -> u32;

    /// Sends the batch in its order; gives how many were taken, at least one unless the batch is empty.
    ///
    /// Taken does not mean delivered: what could not go to its destination (unreachable, refused) is taken and counted
    /// in [`Counters::skipped`]. An error is about the first of the batch, of which nothing was sent.
    fn send(&mut self, batch: &[Outgoing<'_>]) -> Result<usize, SendError>;

    /// Gives what has arrived to `sink`, one batch at most; gives how many calls it made. After
    /// 0 there may still be something in a place that was not looked at this time: the next calls look there.
    fn receive(&mut self, sink: &mut dyn FnMut(Incoming<'_>)) -> io::Result<usize>;

    /// What the network has said about earlier sends and was found by [`receive`](Link::receive), oldest first.
    fn poll_notice(&mut self) -> Option<Notice>;

    /// Is readable while something is there to receive; to sleep on, not to read. `None` where only polling finds out.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// From now on [`descriptor`](Link::descriptor) is readable, too, while there is room for what
    /// [`send`](Link::send) did not take ([`SendError::WouldBlock`]); or no longer. False: it does not tell, so ask again
    /// after a while.
    fn watch_room(&mut self, wanted: bool) -> bool {
        let _ = wanted;
        false
    }

    /// What happened so far.
    fn counters(&self) -> Counters;

    /// Bytes that may arrive before they are received, about; more are lost. The other side is thought to have as much.
    fn room_bytes(&self) -> u64;
}

/// One datagram to be sent, or several of the same size to one destination.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// Which way.
    pub path: Path,
    /// The bytes, one piece after the other.
    pub pieces: &'a [Segment<'a>],
    /// 0: one datagram. Otherwise the whole is cut into datagrams of this size; the last may be shorter. Best within
    /// [`SEGMENTS_MAX`](crate::limits::SEGMENTS_MAX) datagrams and [`SEND_MAX_BYTES`](crate::limits::SEND_MAX_BYTES)
    /// bytes: what is more is copied first.
    pub segment_bytes: usize,
    /// Message class, 0 to 3; the link's configuration gives each a DSCP (P-2.3).
    pub class: u8,
    /// Where the way does not carry it in one piece, it goes in fragments (P-1.2). Otherwise no host and no router may
    /// make any. A datagram no longer than [`MTU_MIN_BYTES`](weft_core::limits::MTU_MIN_BYTES) goes either way.
    pub may_fragment: bool,
}

impl Outgoing<'_> {
    /// Bytes of its longest datagram.
    #[must_use]
    pub fn longest(&self) -> usize {
        let length = self.length();
        if self.segment_bytes == 0 { length } else { length.min(self.segment_bytes) }
    }

    /// All bytes of it.
    #[must_use]
    pub fn length(&self) -> usize {
        self.pieces.iter().map(Segment::len).sum()
    }

    /// Copies all of it behind what is in `into`.
    pub(crate) fn gather(&self, into: &mut Vec<u8>) {
        into.reserve(self.length());
        for piece in self.pieces {
            let raw = piece.as_iovec();
            // SAFETY: a segment's memory is readable for its length while it lives, and the room was reserved above.
            // Peers and other threads may write a region meanwhile, which this copy permits: it is torn, nothing worse.
            unsafe {
                let end = into.as_mut_ptr().add(into.len());
                weft_mem::copy::copy(end, raw.iov_base.cast::<u8>(), raw.iov_len);
                into.set_len(into.len() + raw.iov_len);
            }
        }
    }
}

/// One datagram that arrived, or several of the same size from one source.
#[derive(Debug)]
pub struct Incoming<'a> {
    /// The way it came.
    pub path: Path,
    /// The bytes; the receiver may change them in place.
    pub bytes: &'a mut [u8],
    /// 0: one datagram. Otherwise `bytes` are datagrams of this size; the last may be shorter.
    pub segment_bytes: usize,
    /// A router marked congestion (ECN CE) on at least one of them.
    pub marked: bool,
}

impl<'a> Incoming<'a> {
    /// Each datagram alone. A datagram without bytes, of which no protocol here knows, is none.
    pub fn datagrams(self) -> ChunksMut<'a, u8> {
        let size = if self.segment_bytes == 0 { self.bytes.len() } else { self.segment_bytes };
        self.bytes.chunks_mut(size.max(1))
    }
}

/// The host of a destination says that nobody has that port. Anybody can say so in its name: only who has seen the
/// datagram can quote it.
#[derive(Clone, Copy, Debug)]
pub struct Notice {
    /// The way to it.
    pub path: Path,
    quoted: [u8; QUOTED_MAX_BYTES],
    length: usize,
}

impl Notice {
    /// A notice about a datagram on `path`, of whose beginning [`QUOTED_MAX_BYTES`] at most are kept.
    #[must_use]
    pub fn new(path: Path, datagram: &[u8]) -> Notice {
        let mut quoted = [0; QUOTED_MAX_BYTES];
        let length = quoted.iter_mut().zip(datagram).map(|(kept, byte)| *kept = *byte).count();
        Notice { path, quoted, length }
    }

    /// The beginning of the datagram, as far as the host gave it back.
    #[must_use]
    pub fn quoted(&self) -> &[u8] {
        self.quoted.get(..self.length).unwrap_or_default()
    }
}

/// What became of datagrams that did not go the plain way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Sends that the link took but could not bring on their way: unreachable, refused, filtered.
    pub skipped: u64,
    /// Receives that were thrown away: cut short by the kernel, or from an address that is none.
    pub mangled: u64,
    /// Errors that the network reported about earlier sends.
    pub reported: u64,
}

/// Why a batch was not taken.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// There is no room now: send the batch again later.
    #[error("the link has no room now: send again later")]
    WouldBlock,
    /// A datagram of the first of the batch is longer than its way permits: cut it smaller. The link's
    /// [`mtu`](Link::mtu) may know more now.
    #[error("the datagram does not fit on the way to {path}: send smaller ones")]
    TooBig {
        /// The way.
        path: Path,
    },
    /// The link itself is broken; no batch will ever be taken.
    #[error("the link is broken: open it anew ({0})")]
    Failed(#[source] io::Error),
}

impl<L: Link + ?Sized> Link for Box<L> {
    fn local(&self) -> SocketAddr {
        (**self).local()
    }
    fn mtu(&mut self, path: Path) -> u32 {
        (**self).mtu(path)
    }
    fn send(&mut self, batch: &[Outgoing<'_>]) -> Result<usize, SendError> {
        (**self).send(batch)
    }
    fn receive(&mut self, sink: &mut dyn FnMut(Incoming<'_>)) -> io::Result<usize> {
        (**self).receive(sink)
    }
    fn poll_notice(&mut self) -> Option<Notice> {
        (**self).poll_notice()
    }
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        (**self).descriptor()
    }
    fn watch_room(&mut self, wanted: bool) -> bool {
        (**self).watch_room(wanted)
    }
    fn counters(&self) -> Counters {
        (**self).counters()
    }
    fn room_bytes(&self) -> u64 {
        (**self).room_bytes()
    }
}
