//! Nodes: the engines at the other ends, and what is known of each.
//!
//! Everything that has to do with reliability is keyed by [`NodeId`], everything that has to do with the way there belongs
//! to a [`Session`], and only a link sees a socket address ([`Path`]). A node is listed while something is under way
//! between it and this one, and for some time after, as long as there is room: what is forgotten costs a round trip.

use alloc::collections::VecDeque;
use core::hash::{Hash, Hasher};
use core::net::{IpAddr, SocketAddr};

use hashbrown::HashMap;

use crate::address::Address;
use crate::hash::Keyed;
use crate::limits::MTU_MAX_BYTES;
use crate::random::Random;
use crate::session::congestion::Congestion;
use crate::session::path_mtu::PathMtu;
use crate::session::{Path, Session};
use crate::slab::Slab;

/// Who a node is. Without a handshake it shows nothing but where it is reached, and a new start of it by a new epoch and
/// new incarnations (P-3.2, P-7.5): so that is who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodeId(SocketAddr);

impl NodeId {
    /// The node behind a path.
    #[inline]
    pub(crate) fn at(path: Path) -> NodeId {
        NodeId(path.remote)
    }

    /// The node that an endpoint is in.
    #[inline]
    pub(crate) fn of(address: Address) -> NodeId {
        NodeId(address.socket)
    }

    /// The address of one of its endpoints.
    #[inline]
    pub(crate) fn endpoint(self, number: u32) -> Address {
        Address { socket: self.0, endpoint: number }
    }

    /// The way there before anything else is known.
    #[inline]
    pub(crate) fn path(self) -> Path {
        Path::from(self.0)
    }

    /// The whole of it in 48 bits, if it fits.
    pub(crate) fn packed(self) -> Option<u64> {
        match self.0.ip() {
            IpAddr::V4(ip) => Some(u64::from(u32::from(ip)) << 16 | u64::from(self.0.port())),
            IpAddr::V6(_) => None,
        }
    }
}

impl Hash for NodeId {
    /// In one step where it is short.
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        match (self.packed(), self.0.ip()) {
            (Some(packed), _) => state.write_u64(packed),
            (None, IpAddr::V6(ip)) => {
                let bits = u128::from(ip);
                state.write_u64(bits as u64);
                state.write_u64((bits >> 64) as u64);
                state.write_u64(u64::from(self.0.port()) | 1 << 32);
            }
            (None, IpAddr::V4(_)) => {}
        }
    }
}

/// What is remembered of a target when its tracker is freed (P-7.1). Losing it costs one round trip.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KnownIncarnation {
    pub(crate) ticket: u64,
    /// The counter of psns when it was taken (P-7.13).
    pub(crate) psn: u64,
}

/// A node that is listed.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) id: NodeId,
    /// The only way there so far.
    pub(crate) session: Session,
    /// Where commands for it are tracked, while there are some.
    pub(crate) tracker: Option<u32>,
    /// Where its requests are tracked, while there are some.
    pub(crate) rx_flow: Option<u32>,
    pub(crate) known: Option<KnownIncarnation>,
    /// It was given up because its host says that nobody is there, and was not heard of since.
    pub(crate) absent: bool,
    /// In the list of those that may be forgotten.
    listed_idle: bool,
}

impl Node {
    fn is_idle(&self) -> bool {
        self.tracker.is_none() && self.rx_flow.is_none()
    }
}

/// The nodes that are listed.
#[derive(Debug)]
pub(crate) struct Nodes {
    slots: Slab<Node>,
    of: HashMap<NodeId, u32, Keyed>,
    /// The node of the last look-up: the next one is mostly about it too.
    last: u32,
    /// Those with nothing under way, the longest idle first.
    idle: VecDeque<u32>,
    idle_max: usize,
    window_max_bytes: u64,
}

impl Nodes {
    /// At most `idle_max` are remembered with nothing under way.
    pub(crate) fn new(keyed: Keyed, idle_max: usize, window_max_bytes: u64) -> Nodes {
        let (slots, of) = (Slab::new(), HashMap::with_hasher(keyed));
        Nodes { slots, of, last: 0, idle: VecDeque::new(), idle_max, window_max_bytes }
    }

    /// The place of a node in the list.
    #[inline]
    pub(crate) fn find(&self, id: NodeId) -> Option<u32> {
        if self.slots.get(self.last).is_some_and(|node| node.id == id) {
            return Some(self.last);
        }
        self.of.get(&id).copied()
    }

    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&Node> {
        self.slots.get(index)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut Node> {
        self.slots.get_mut(index)
    }

    /// A node, if it is listed.
    #[inline]
    pub(crate) fn of(&self, id: NodeId) -> Option<&Node> {
        self.slots.get(self.find(id)?)
    }

    /// The same, to change it; the next look-up is mostly about it too.
    #[inline]
    pub(crate) fn of_mut(&mut self, id: NodeId) -> Option<&mut Node> {
        self.last = self.find(id)?;
        self.slots.get_mut(self.last)
    }

    /// The place of a node, which is listed now if it was not. `path`: how it is reached if nothing is known of it.
    pub(crate) fn enter(&mut self, id: NodeId, path: Path, random: &mut Random) -> u32 {
        if let Some(index) = self.find(id) {
            self.last = index;
            return index;
        }
        let session = Session {
            path,
            sequence: random.next_u64() >> 2,
            congestion: Congestion::new(MTU_MAX_BYTES, self.window_max_bytes),
            mtu: PathMtu::new(MTU_MAX_BYTES),
            mtu_is_known: false,
            ecn_marks: 0,
        };
        let node = Node { id, session, tracker: None, rx_flow: None, known: None, absent: false, listed_idle: false };
        let index = self.slots.insert(node);
        self.of.insert(id, index);
        self.last = index;
        index
    }

    /// Nothing may be under way between a node and this one any more: then it may be forgotten when others need its room.
    pub(crate) fn rest(&mut self, index: u32) {
        let Some(node) = self.slots.get_mut(index).filter(|node| node.is_idle() && !node.listed_idle) else { return };
        node.listed_idle = true;
        self.idle.push_back(index);
        while self.idle.len() > self.idle_max
            && let Some(oldest) = self.idle.pop_front()
        {
            let Some(node) = self.slots.get_mut(oldest) else { continue };
            node.listed_idle = false;
            if node.is_idle()
                && let Some(node) = self.slots.remove(oldest)
            {
                self.of.remove(&node.id);
            }
        }
    }
}
