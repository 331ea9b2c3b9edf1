//! A second socket for the peer that sends keep going to.
//!
//! A connected socket sends about 350 ns faster, because the kernel remembers the route, and finds what arrives from its
//! peer faster. But a connected socket hears only its peer. So the link has two on one port: the open one, which hears
//! everybody, and this one, connected to whom the last [`RUN`] batches went. What the peer sends then arrives
//! here, and the link polls both. Nothing is lost when the favourite changes: what is queued stays readable.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use weft_mem::fork::LocalFd;

use super::receive::Pace;
use super::socket;

/// Batches in a row to one destination that make it the favourite. Connecting costs as much as ten of them save.
const RUN: u32 = 64;
/// Polls of this socket for one of the open one, while nothing arrives there. While something does, it is one for one.
const POLLS_MAX: u32 = 16;
/// Ticks after which the open one is polled whatever the count, about 10 µs. A thread that gives its processor away between
/// two polls would be deaf to everybody else for many turns; one that does not polls so often in less.
const POLL_TICKS_MAX: u64 = 25_000;

/// Who the favourite is, and who may become it.
pub(super) struct Favourite {
    /// Where the last batches went.
    candidate: SocketAddr,
    run: u32,
    connected: Option<Connected>,
    /// Favourites are wanted, and the system has not refused them.
    enabled: bool,
}

/// The second socket.
pub(super) struct Connected {
    pub(super) socket: LocalFd,
    pub(super) pace: Pace,
    peer: SocketAddr,
    /// Polls until it is the open socket's turn.
    wait: u32,
    /// Polls between its turns: 1 after something was there, and twice as many after each time that nothing was.
    interval: u32,
    /// When its last turn was.
    last_turn: u64,
}

impl Favourite {
    pub(super) fn new(enabled: bool) -> Favourite {
        let nobody = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0));
        Favourite { candidate: nobody, run: 0, connected: None, enabled }
    }

    /// The socket that is connected to `to`, if it is the favourite.
    #[inline]
    pub(super) fn socket_to(&self, to: SocketAddr) -> Option<&LocalFd> {
        self.connected.as_ref().filter(|connected| connected.peer == to).map(|connected| &connected.socket)
    }

    pub(super) fn connected(&self) -> Option<&Connected> {
        self.connected.as_ref()
    }

    #[inline]
    pub(super) fn connected_mut(&mut self) -> Option<&mut Connected> {
        self.connected.as_mut()
    }

    /// Counts a batch; true when another should become the favourite.
    #[inline]
    pub(super) fn note(&mut self, to: SocketAddr) -> bool {
        if self.socket_to(to).is_some() {
            self.run = 0;
            return false;
        }
        self.run = if self.candidate == to { self.run + 1 } else { 1 };
        self.candidate = to;
        self.run >= RUN && self.enabled
    }

    /// Makes the candidate the favourite. `prepare` sets a new socket's options; `open` is bound to `local`.
    /// True when there is a new socket.
    #[cold]
    pub(super) fn adopt(
        &mut self,
        open: &LocalFd,
        local: SocketAddr,
        joins: bool,
        prepare: impl Fn(&LocalFd) -> io::Result<()>,
    ) -> bool {
        self.run = 0;
        let to = self.candidate;
        if let Some(connected) = &mut self.connected {
            // Where the open socket has no address of its own, the last peer's route gave this one an address.
            if local.ip().is_unspecified() {
                let _ = socket::disconnect(&connected.socket);
            }
            match socket::connect(&connected.socket, to) {
                Ok(()) => connected.peer = to,
                // No datagram can be for nobody, so nothing is sent here until the next change.
                Err(_) => connected.peer = SocketAddr::new(to.ip(), 0),
            }
            return false;
        }
        match second(open, local, to, prepare) {
            Ok(socket) => {
                self.connected = Some(Connected::new(socket, joins, to));
                true
            }
            // A wish only: the open socket does everything.
            Err(_) => {
                self.enabled = false;
                false
            }
        }
    }
}

impl Connected {
    fn new(socket: LocalFd, joins: bool, peer: SocketAddr) -> Connected {
        Connected { socket, pace: Pace::new(joins), peer, wait: 1, interval: 1, last_turn: 0 }
    }

    /// Whether it is the open socket's turn, too; `now` is in ticks.
    #[inline]
    pub(super) fn is_turn(&mut self, now: u64) -> bool {
        self.wait -= 1;
        self.wait == 0 || now.wrapping_sub(self.last_turn) >= POLL_TICKS_MAX
    }

    /// The open socket had its turn, and something was `found` there or not.
    #[inline]
    pub(super) fn end_turn(&mut self, now: u64, found: bool) {
        self.interval = if found { 1 } else { (self.interval * 2).min(POLLS_MAX) };
        (self.wait, self.last_turn) = (self.interval, now);
    }
}

/// A socket on the same port as `open`, connected to `to`.
fn second(
    open: &LocalFd,
    local: SocketAddr,
    to: SocketAddr,
    prepare: impl Fn(&LocalFd) -> io::Result<()>,
) -> io::Result<LocalFd> {
    let socket = LocalFd::from(socket::open(local)?);
    prepare(&socket)?;
    // The port is shared only for this moment: whoever else asks for it must go on being refused.
    let share = |value| {
        socket::set(open, libc::SOL_SOCKET, libc::SO_REUSEPORT, value)?;
        socket::set(&socket, libc::SOL_SOCKET, libc::SO_REUSEPORT, value)
    };
    let bound = share(1).and_then(|()| socket::bind(&socket, local));
    share(0)?;
    bound?;
    // Between the two calls the kernel may give this socket anybody's datagrams; they are read as any others.
    socket::connect(&socket, to)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_open_socket_is_polled_in_time() {
        let somewhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let socket = LocalFd::from(socket::open(somewhere).unwrap());
        let mut connected = Connected::new(socket, false, somewhere);
        let mut now = 1_000_000;
        // In a row: less and less often while nothing is there.
        let mut polls = Vec::new();
        for _ in 0..7 {
            let mut count = 1;
            while !connected.is_turn(now) {
                count += 1;
            }
            connected.end_turn(now, false);
            polls.push(count);
        }
        assert_eq!(polls, [1, 2, 4, 8, 16, 16, 16]);
        // Now and then: each time.
        for _ in 0..10 {
            now += POLL_TICKS_MAX;
            assert!(connected.is_turn(now));
            connected.end_turn(now, false);
            assert!(!connected.is_turn(now));
        }
        connected.end_turn(now, true);
        assert!(connected.is_turn(now));
    }
}
