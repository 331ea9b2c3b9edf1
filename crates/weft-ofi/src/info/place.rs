//! Where endpoints can be: an interface, a source, and a destination where one is named.

use std::net::{IpAddr, SocketAddr};

use weft::Address;

use super::offer::Mismatch;
use crate::abi::*;
use crate::address;
use crate::guard::Result;
use crate::interface::{self, Interface};

/// A place of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// The name of the interface.
    pub(super) domain: String,
    pub(super) source: Address,
    pub(super) destination: Option<Address>,
    /// The program names no node of its own: a listener may listen everywhere.
    pub(super) anywhere: bool,
}

/// What a program says about the two ends.
pub(super) struct Ends<'a> {
    pub(super) node: Option<&'a str>,
    pub(super) service: Option<&'a str>,
    pub(super) flags: u64,
    pub(super) format: u32,
    /// The source of the hints; node and service take its place where they are the source.
    pub(super) source: Option<Address>,
    /// The destination of the hints; node and service take its place where they are the destination.
    pub(super) destination: Option<Address>,
}

/// Why there is no place.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Nowhere {
    /// An attribute cannot be met.
    Mismatch(Mismatch),
    /// The node or service cannot be resolved.
    Unresolved(i32),
}

impl Place {
    /// Whether only this machine reaches it.
    pub(super) fn is_loopback(&self) -> bool {
        self.source.socket.ip().is_loopback()
    }
}

impl Ends<'_> {
    /// Every place that fits, best first.
    pub(super) fn places(&self, mut interfaces: Vec<Interface>) -> std::result::Result<Vec<Place>, Nowhere> {
        let wants_ip6 = self.wants_ip6();
        interfaces.retain(|interface| wants_ip6.is_none_or(|wants| interface.address.is_ipv6() == wants));
        let named = self.named().map_err(Nowhere::Unresolved)?;
        let (sources, destinations) = if self.flags & FI_SOURCE != 0 {
            (named, self.destination.into_iter().collect())
        } else {
            let named = if self.node.is_none() && self.service.is_none() {
                self.destination.into_iter().collect()
            } else {
                named
            };
            (self.source.into_iter().collect::<Vec<_>>(), named)
        };

        let mut places = Vec::new();
        for interface in &interfaces {
            for source in own_sources(&sources, interface) {
                if destinations.is_empty() {
                    places.push(interface.place(source, None));
                }
                for destination in destinations.iter().filter(|to| same_family(to.socket.ip(), interface.address)) {
                    let mut to = *destination;
                    if to.socket.ip().is_unspecified() {
                        // Only a service is named: the node is this one.
                        to.socket.set_ip(interface.address);
                    }
                    places.push(interface.place(source, Some(to)));
                }
            }
        }
        if places.is_empty() {
            let (attribute, asked) =
                if sources.is_empty() { ("dest_addr", &destinations) } else { ("src_addr", &sources) };
            let asked: Vec<_> = asked.iter().map(address::to_text).collect();
            let offered: Vec<_> = interfaces.iter().map(|each| format!("{} ({})", each.address, each.name)).collect();
            let none = || "no interface that is up and of this family".to_owned();
            return Err(Nowhere::Mismatch(Mismatch {
                attribute,
                asked: if asked.is_empty() { "any".to_owned() } else { asked.join(" or ") },
                offered: if offered.is_empty() { none() } else { offered.join(", ") },
            }));
        }
        // Without a node the destination is this one, which every interface reaches.
        let elsewhere = destinations.iter().any(|to| !to.socket.ip().is_unspecified());
        if !elsewhere {
            return Ok(places);
        }
        let places = routed(places);
        if places.is_empty() {
            let asked: Vec<_> = destinations.iter().map(address::to_text).collect();
            let offered = "no interface that is up has a way there".to_owned();
            return Err(Nowhere::Mismatch(Mismatch { attribute: "dest_addr", asked: asked.join(" or "), offered }));
        }
        Ok(places)
    }

    /// Whether the caller names a node or an address, of either end.
    pub(super) fn names_an_address(&self) -> bool {
        let specific = |end: &Option<Address>| end.is_some_and(|end| !end.socket.ip().is_unspecified());
        self.node.is_some() || specific(&self.source) || specific(&self.destination)
    }

    fn wants_ip6(&self) -> Option<bool> {
        match self.format {
            FI_SOCKADDR_IN => Some(false),
            FI_SOCKADDR_IN6 => Some(true),
            _ => None,
        }
    }

    /// The addresses of node and service, if there are any.
    fn named(&self) -> Result<Vec<Address>> {
        if self.node.is_none() && self.service.is_none() {
            return Ok(Vec::new());
        }
        let numeric = self.flags & FI_NUMERICHOST != 0;
        let sockets = interface::resolve(self.node, self.service, self.wants_ip6(), numeric)?;
        let endpoint = self.node.and_then(address::from_text).map_or(0, |address| address.endpoint);
        Ok(sockets.into_iter().map(|socket| Address { socket, endpoint }).collect())
    }
}

impl Interface {
    fn place(&self, (source, anywhere): (Address, bool), destination: Option<Address>) -> Place {
        Place { domain: self.name.clone(), source, destination, anywhere }
    }
}

fn same_family(one: IpAddr, other: IpAddr) -> bool {
    one.is_ipv4() == other.is_ipv4()
}

/// The sources that are addresses of an interface; whether the program left the node open stands beside each.
fn own_sources(sources: &[Address], interface: &Interface) -> Vec<(Address, bool)> {
    if sources.is_empty() {
        return vec![(Address { socket: SocketAddr::new(interface.address, 0), endpoint: 0 }, false)];
    }
    let own = |source: &Address| {
        let ip = source.socket.ip();
        if ip.is_unspecified() && same_family(ip, interface.address) {
            let socket = SocketAddr::new(interface.address, source.socket.port());
            Some((Address { socket, endpoint: source.endpoint }, true))
        } else {
            interface.holds(ip).then_some((*source, false))
        }
    };
    sources.iter().filter_map(own).collect()
}

/// With a destination, only what its route uses: the first of each family that has one. Where the routes use none of
/// the interfaces (the user may have restricted them), all stay, but for loopback to another machine.
fn routed(places: Vec<Place>) -> Vec<Place> {
    let mut best: Vec<Place> = Vec::new();
    for place in &places {
        let Some(to) = place.destination else { return places };
        let taken = best.iter().any(|other| same_family(other.source.socket.ip(), to.socket.ip()));
        if !taken && interface::source_for(to.socket) == Some(place.source.socket.ip()) {
            best.push(place.clone());
        }
    }
    if best.is_empty() {
        let near = |place: &Place| place.destination.is_none_or(|to| to.socket.ip().is_loopback());
        return places.into_iter().filter(|place| !place.is_loopback() || near(place)).collect();
    }
    best
}
