//! Sessions: the ways to a node, each with numbers, round trip, window, marks and MTU of its own. One for each node so far.

pub(crate) mod congestion;
pub(crate) mod path_mtu;
pub(crate) mod verified;

use core::fmt;
use core::net::{Ipv4Addr, SocketAddr};

use congestion::Congestion;
use path_mtu::PathMtu;

/// What a link sees of a way: one of this node's sockets, and an address of the other's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Path {
    /// Which of the link's sockets.
    pub local: u8,
    /// Where datagrams go to, or come from.
    pub remote: SocketAddr,
}

impl Path {
    /// No way to anywhere.
    pub const NOWHERE: Path =
        Path { local: 0, remote: SocketAddr::V4(core::net::SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0)) };
}

impl From<SocketAddr> for Path {
    /// By the first socket.
    fn from(remote: SocketAddr) -> Path {
        Path { local: 0, remote }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} by socket {}", self.remote, self.local)
    }
}

/// One way to a node.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) path: Path,
    /// Of the last datagram that was sent on it (P-8.14).
    pub(crate) sequence: u64,
    pub(crate) congestion: Congestion,
    pub(crate) mtu: PathMtu,
    /// Commands are under way, or something was found out that would have to be found out again.
    pub(crate) mtu_is_known: bool,
    /// ECN marks that came with the node's requests.
    pub(crate) ecn_marks: u16,
}

impl Session {
    /// What datagrams on it may have; `None`: nobody has asked, nor found out.
    #[inline]
    pub(crate) fn mtu_bytes(&self) -> Option<u32> {
        self.mtu_is_known.then(|| self.mtu.bytes())
    }
}
