//! How long datagrams may be on the way to a destination.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use weft_core::limits::{MTU_MAX_BYTES, MTU_MIN_BYTES};

use super::socket;
use crate::limits::{IPV4_HEADERS_BYTES, IPV6_HEADERS_BYTES, ROUTES_MAX};

/// Asks the kernel's routes, and remembers some answers.
pub(super) struct Routes {
    /// From where; its port is 0.
    local: SocketAddr,
    /// Connected to whom we ask about. It never sends.
    scratch: Option<OwnedFd>,
    /// Oldest first.
    known: VecDeque<(IpAddr, u32)>,
}

impl Routes {
    pub(super) fn new(local: SocketAddr) -> Routes {
        let mut local = local;
        local.set_port(0);
        Routes { local, scratch: None, known: VecDeque::with_capacity(ROUTES_MAX) }
    }

    pub(super) fn mtu(&mut self, to: SocketAddr) -> u32 {
        if let Some(&(_, mtu)) = self.known.iter().find(|(ip, _)| *ip == to.ip()) {
            return mtu;
        }
        // Nothing may be sent to where there is no route; the smallest is right for whatever comes later, and is not
        // remembered so that a route that appears is found.
        let Some(mtu) = self.ask(to) else { return MTU_MIN_BYTES };
        if self.known.len() >= ROUTES_MAX {
            self.known.pop_front();
        }
        self.known.push_back((to.ip(), mtu));
        mtu
    }

    /// The kernel has said that the answer is no longer right.
    pub(super) fn forget(&mut self, to: SocketAddr) {
        self.known.retain(|(ip, _)| *ip != to.ip());
    }

    fn ask(&mut self, to: SocketAddr) -> Option<u32> {
        if self.scratch.is_none() {
            let scratch = socket::open(self.local).ok()?;
            // The route may depend on the source address.
            socket::bind(&scratch, self.local).ok()?;
            self.scratch = Some(scratch);
        }
        let scratch = self.scratch.as_ref()?;
        // A socket cannot be connected to port 0, and the route does not depend on the port.
        let mut to = to;
        to.set_port(to.port().max(1));
        socket::connect(scratch, to).ok()?;
        let (level, name, headers) = if to.is_ipv6() {
            (libc::IPPROTO_IPV6, libc::IPV6_MTU, IPV6_HEADERS_BYTES)
        } else {
            (libc::IPPROTO_IP, libc::IP_MTU, IPV4_HEADERS_BYTES)
        };
        let mtu = u32::try_from(socket::get(scratch, level, name).ok()?).ok()?;
        Some(mtu.saturating_sub(headers).clamp(MTU_MIN_BYTES, MTU_MAX_BYTES))
    }
}
