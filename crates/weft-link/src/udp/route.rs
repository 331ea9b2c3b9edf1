//! How long datagrams may be on the way to a destination, as far as this host decides it.
//!
//! The kernel also remembers what routers have said about a way. That is not asked for: whoever can send a packet can say
//! it in a router's name.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use weft_core::limits::{MTU_DEFAULT_BYTES, MTU_MAX_BYTES, MTU_MIN_BYTES};

use super::netlink::Netlink;
use crate::limits::{IPV4_HEADERS_BYTES, IPV6_HEADERS_BYTES, ROUTE_VALID, ROUTES_MAX};

/// Asks the kernel's routes, and remembers some answers.
pub(super) struct Routes {
    /// From where: the route may depend on it.
    local: IpAddr,
    netlink: Option<Netlink>,
    /// Oldest first: who, what, and when it was asked.
    known: VecDeque<(IpAddr, u32, Instant)>,
}

impl Routes {
    pub(super) fn new(local: SocketAddr) -> Routes {
        // Where the system has none, every way is one of which nothing is known.
        let netlink = Netlink::open().ok();
        Routes { local: local.ip(), netlink, known: VecDeque::with_capacity(ROUTES_MAX) }
    }

    pub(super) fn mtu(&mut self, to: SocketAddr) -> u32 {
        let now = Instant::now();
        let fresh = |asked: &Instant| now.duration_since(*asked) < ROUTE_VALID;
        if let Some(&(_, mtu, _)) = self.known.iter().find(|(ip, _, asked)| *ip == to.ip() && fresh(asked)) {
            return mtu;
        }
        self.forget(to);
        // Nothing may be sent to where there is no route; what needs no knowledge is right for whatever comes later, and
        // is not remembered so that a route that appears is found.
        let Some(mtu) = self.ask(to) else { return MTU_DEFAULT_BYTES };
        if self.known.len() >= ROUTES_MAX {
            self.known.pop_front();
        }
        self.known.push_back((to.ip(), mtu, now));
        mtu
    }

    /// The kernel has said that the answer is no longer right.
    pub(super) fn forget(&mut self, to: SocketAddr) {
        self.known.retain(|(ip, ..)| *ip != to.ip());
    }

    fn ask(&mut self, to: SocketAddr) -> Option<u32> {
        let from = Some(self.local).filter(|local| !local.is_unspecified());
        let mtu = self.netlink.as_mut()?.mtu(from, to)?;
        let headers = if to.is_ipv6() { IPV6_HEADERS_BYTES } else { IPV4_HEADERS_BYTES };
        Some(mtu.saturating_sub(headers).clamp(MTU_MIN_BYTES, MTU_MAX_BYTES))
    }
}
