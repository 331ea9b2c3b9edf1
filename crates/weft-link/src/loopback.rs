//! Links inside of one process, without sockets: for tests, and for nodes that live together.
//!
//! Nothing is lost here that the sender was told is taken: a full inbox makes the sender wait. Wrap a link in
//! [`Faulty`](crate::fault::Faulty) for a worse network.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weft_core::limits::{MTU_DEFAULT_BYTES, MTU_MAX_BYTES, MTU_MIN_BYTES};

use weft_core::session::Path;

use crate::limits::{INBOX_MAX, RECEIVE_BATCH_MAX};
use crate::link::{Counters, Incoming, Link, Notice, Outgoing, SendError};

/// What waits for a link: where from, the bytes, and the size of joined datagrams.
type Letter = (SocketAddr, Vec<u8>, usize);
type Inbox = Arc<Mutex<VecDeque<Letter>>>;

/// A network of the process's own.
#[derive(Clone)]
pub struct LoopbackNetwork {
    inboxes: Arc<Mutex<HashMap<SocketAddr, Inbox>>>,
    mtu: u32,
}

impl LoopbackNetwork {
    /// An empty network whose datagrams have at most `mtu` bytes (512 to 65507).
    #[must_use]
    pub fn new(mtu: u32) -> LoopbackNetwork {
        LoopbackNetwork { inboxes: Arc::default(), mtu: mtu.clamp(MTU_MIN_BYTES, MTU_MAX_BYTES) }
    }

    /// A link that others reach at `local`, which is only a name here. `None` when it is taken.
    #[must_use]
    pub fn link(&self, local: SocketAddr) -> Option<LoopbackLink> {
        let mut inboxes = lock(&self.inboxes);
        let taken = inboxes.contains_key(&local);
        (!taken).then(|| self.join(&mut inboxes, local))
    }

    fn join(&self, inboxes: &mut HashMap<SocketAddr, Inbox>, local: SocketAddr) -> LoopbackLink {
        let inbox = Arc::clone(inboxes.entry(local).or_default());
        LoopbackLink { network: self.clone(), local, inbox, counters: Counters::default(), batch: Vec::new() }
    }
}

/// Two links that reach each other and nobody else.
#[must_use]
pub fn pair(mtu: u32) -> (LoopbackLink, LoopbackLink) {
    let network = LoopbackNetwork::new(mtu);
    let link = |host| {
        let local = SocketAddr::new(Ipv4Addr::new(127, 0, 0, host).into(), 4791);
        network.join(&mut lock(&network.inboxes), local)
    };
    (link(1), link(2))
}

/// A link of a [`LoopbackNetwork`]. It leaves the network when it is dropped.
pub struct LoopbackLink {
    network: LoopbackNetwork,
    local: SocketAddr,
    inbox: Inbox,
    counters: Counters,
    /// Taken from the inbox before any is handed on, so that the sink may send to this very link.
    batch: Vec<Letter>,
}

impl LoopbackLink {
    fn send_one(&mut self, outgoing: &Outgoing<'_>) -> Result<(), SendError> {
        let length = outgoing.length();
        let longest = outgoing.longest();
        if longest > self.network.mtu as usize && !outgoing.may_fragment {
            return Err(SendError::TooBig { path: outgoing.path });
        }
        let Some(inbox) = lock(&self.network.inboxes).get(&outgoing.path.remote).map(Arc::clone) else {
            self.counters.skipped += 1;
            return Ok(());
        };
        let mut inbox = lock(&inbox);
        if inbox.len() >= INBOX_MAX {
            return Err(SendError::WouldBlock);
        }
        let mut bytes = Vec::new();
        outgoing.gather(&mut bytes);
        let segment_bytes = if longest < length { longest } else { 0 };
        inbox.push_back((self.local, bytes, segment_bytes));
        Ok(())
    }
}

impl Link for LoopbackLink {
    fn local(&self) -> SocketAddr {
        self.local
    }

    fn mtu(&mut self, _path: Path) -> u32 {
        self.network.mtu
    }

    fn send(&mut self, batch: &[Outgoing<'_>]) -> Result<usize, SendError> {
        for (index, outgoing) in batch.iter().enumerate() {
            match self.send_one(outgoing) {
                Ok(()) => {}
                Err(_) if index > 0 => return Ok(index),
                Err(error) => return Err(error),
            }
        }
        Ok(batch.len())
    }

    fn receive(&mut self, sink: &mut dyn FnMut(Incoming<'_>)) -> io::Result<usize> {
        {
            let mut inbox = lock(&self.inbox);
            let count = inbox.len().min(RECEIVE_BATCH_MAX);
            self.batch.extend(inbox.drain(..count));
        }
        let count = self.batch.len();
        for (from, mut bytes, segment_bytes) in self.batch.drain(..) {
            sink(Incoming { path: from.into(), bytes: &mut bytes, segment_bytes, marked: false });
        }
        Ok(count)
    }

    fn poll_notice(&mut self) -> Option<Notice> {
        None
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    fn room_bytes(&self) -> u64 {
        // As many of the shortest useful datagrams as an inbox takes, shared by a few senders.
        (INBOX_MAX * MTU_DEFAULT_BYTES as usize / 4) as u64
    }
}

impl Drop for LoopbackLink {
    fn drop(&mut self) {
        lock(&self.network.inboxes).remove(&self.local);
    }
}

impl fmt::Debug for LoopbackLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoopbackLink").field("local", &self.local).finish_non_exhaustive()
    }
}

impl fmt::Debug for LoopbackNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoopbackNetwork").field("links", &lock(&self.inboxes).len()).finish_non_exhaustive()
    }
}

/// A thread that panicked while it held the lock left whole letters behind.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::Segment;

    #[test]
    fn letters_arrive_in_order_and_joined() {
        let (mut a, mut b) = pair(1500);
        let bytes: Vec<_> = (0..100u8).collect();
        let pieces = [Segment::from_slice(&bytes[..30]), Segment::from_slice(&bytes[30..])];
        let to = b.local();
        let outgoing = Outgoing { path: to.into(), pieces: &pieces, segment_bytes: 40, class: 0, may_fragment: false };
        assert_eq!(a.send(&[outgoing, Outgoing { segment_bytes: 0, ..outgoing }]).unwrap(), 2);
        let mut lengths = Vec::new();
        let got = b.receive(&mut |incoming| {
            assert_eq!(incoming.bytes, bytes);
            lengths.extend(incoming.datagrams().map(|datagram| datagram.len()));
        });
        assert_eq!((got.unwrap(), lengths), (2, vec![40, 40, 20, 100]));
    }

    #[test]
    fn full_absent_and_too_big() {
        let network = LoopbackNetwork::new(0);
        let [a, b, c] = [1, 2, 3].map(|port| SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port));
        let (mut link, mut other) = (network.link(a).unwrap(), network.link(b).unwrap());
        assert!(network.link(a).is_none());
        assert_eq!(link.mtu(b.into()), 512);
        let bytes = [0; 513];
        let long = [Segment::from_slice(&bytes)];
        let pieces = [Segment::from_slice(b"x")];
        assert!(matches!(
            link.send(&[Outgoing { path: (b).into(), pieces: &long, segment_bytes: 0, class: 0, may_fragment: false }]),
            Err(SendError::TooBig { path }) if path == b.into()
        ));
        let fragmented = Outgoing { path: (b).into(), pieces: &long, segment_bytes: 0, class: 0, may_fragment: true };
        assert_eq!(link.send(&[fragmented]).unwrap(), 1);
        assert_eq!(other.receive(&mut |incoming| assert_eq!(incoming.bytes, bytes)).unwrap(), 1);
        let short = Outgoing { path: (c).into(), pieces: &pieces, segment_bytes: 0, class: 0, may_fragment: false };
        assert_eq!(link.send(&[short]).unwrap(), 1);
        assert_eq!(link.counters().skipped, 1);
        let many = vec![Outgoing { path: (b).into(), ..short }; INBOX_MAX + 1];
        assert_eq!(link.send(&many).unwrap(), INBOX_MAX);
        assert!(matches!(link.send(&many), Err(SendError::WouldBlock)));
        assert_eq!(other.receive(&mut |_| ()).unwrap(), RECEIVE_BATCH_MAX);
        drop(other);
        assert_eq!(link.send(&[Outgoing { path: (b).into(), ..short }]).unwrap(), 1);
        assert_eq!(link.counters().skipped, 2);
    }
}
