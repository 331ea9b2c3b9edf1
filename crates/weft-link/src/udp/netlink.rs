//! Asks the kernel what its administrator has decided about a way: the route's MTU and that of its interface
//! (rtnetlink(7)). A socket would tell something else: what routers have said since.

use std::ffi::CStr;
use std::fs;
use std::io;
use std::mem::size_of;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use libc::{ifreq, nlmsghdr};

use weft_mem::fork::LocalFd;

use super::socket::check;

/// Bytes of a question or an answer: one route with its attributes. A route over many interfaces may have more; then the
/// first of them count.
const MESSAGE_MAX_BYTES: usize = 4096;
/// Bytes of the header of every message.
const HEADER_BYTES: usize = size_of::<nlmsghdr>();
/// Bytes of `struct rtmsg`.
const ROUTE_BYTES: usize = 12;
/// Where in it the type of the route is.
const ROUTE_TYPE: usize = HEADER_BYTES + 7;
/// Bytes of `struct rtattr`.
const ATTRIBUTE_BYTES: usize = 4;
/// Bytes of `struct rtnexthop`, and where in it the interface is.
const NEXT_HOP_BYTES: usize = 8;
const NEXT_HOP_INTERFACE: usize = 4;
/// The route as it was configured, without what routers have said (`RTM_F_FIB_MATCH`).
const FIB_MATCH: u32 = 0x2000;
/// The metric that is the MTU (`RTAX_MTU`).
const METRIC_MTU: u16 = 2;
/// Number of the loopback interface of every network namespace.
const LOOPBACK: u32 = 1;

/// A socket to ask by.
pub(super) struct Netlink {
    socket: LocalFd,
    sequence: u32,
}

/// What an answer says.
#[derive(Debug, Default, PartialEq, Eq)]
struct Route {
    interfaces: Vec<u32>,
    mtu: Option<u32>,
}

impl Netlink {
    pub(super) fn open() -> io::Result<Netlink> {
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: no memory is involved.
        let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) };
        check(fd)?;
        // SAFETY: the kernel has just given us this descriptor, and nobody else has it.
        Ok(Netlink { socket: unsafe { OwnedFd::from_raw_fd(fd) }.into(), sequence: 0 })
    }

    /// Bytes of an IP packet from here to there; `None` without a route, or where the kernel does not say.
    pub(super) fn mtu(&mut self, from: Option<IpAddr>, to: SocketAddr) -> Option<u32> {
        self.sequence = self.sequence.wrapping_add(1);
        let question = question(self.sequence, from, to);
        let (bytes, length) = (question.as_ptr().cast(), question.len());
        // SAFETY: the question can be read for its length.
        let sent = unsafe { libc::send(self.socket.as_raw_fd(), bytes, length, 0) };
        usize::try_from(sent).ok()?;
        // The kernel answers before the call above returns. An answer to an earlier question is passed over.
        loop {
            let mut answer = [0u8; MESSAGE_MAX_BYTES];
            let (bytes, length) = (answer.as_mut_ptr().cast(), answer.len());
            // SAFETY: the answer has room for its length.
            let received = unsafe { libc::recv(self.socket.as_raw_fd(), bytes, length, 0) };
            let answer = answer.get(..usize::try_from(received).ok()?)?;
            if u32_at(answer, 8) != Some(self.sequence) {
                continue;
            }
            let route = parse(answer)?;
            let interfaces = route.interfaces.iter().filter_map(|index| self.interface_mtu(*index, to.is_ipv6()));
            return interfaces.chain(route.mtu).min();
        }
    }

    /// Bytes of an IP packet that an interface carries.
    fn interface_mtu(&self, index: u32, ipv6: bool) -> Option<u32> {
        // SAFETY: zeros are a valid request.
        let mut request: ifreq = unsafe { std::mem::zeroed() };
        request.ifr_ifru.ifru_ifindex = i32::try_from(index).ok()?;
        for asked in [libc::SIOCGIFNAME, libc::SIOCGIFMTU] {
            // SAFETY: the request has the interface's number, then its name, and room for the answer.
            check(unsafe { libc::ioctl(self.socket.as_raw_fd(), asked as _, &raw mut request) }).ok()?;
        }
        // SAFETY: the kernel has just written this field.
        let mtu = u32::try_from(unsafe { request.ifr_ifru.ifru_mtu }).ok()?;
        // SAFETY: the kernel has written the name, with its end.
        let name = unsafe { CStr::from_ptr(request.ifr_name.as_ptr()) }.to_str().ok()?;
        // Routers of the own link may have announced less for this family (RFC 4861), which the interface does not tell.
        let announced = ipv6.then(|| fs::read_to_string(format!("/proc/sys/net/ipv6/conf/{name}/mtu")).ok()).flatten();
        let announced = announced.and_then(|text| text.trim().parse().ok());
        Some(announced.map_or(mtu, |announced: u32| announced.min(mtu)))
    }
}

/// Asks for the route from here to there.
fn question(sequence: u32, from: Option<IpAddr>, to: SocketAddr) -> Vec<u8> {
    let bits = |ip: IpAddr| if ip.is_ipv6() { 128u8 } else { 32 };
    let family = if to.is_ipv6() { libc::AF_INET6 } else { libc::AF_INET };
    let mut message = vec![0; HEADER_BYTES];
    message.extend([family as u8, bits(to.ip()), from.map_or(0, bits), 0, 0, 0, 0, 0]);
    message.extend(FIB_MATCH.to_ne_bytes());
    put_address(&mut message, libc::RTA_DST, to.ip());
    if let Some(from) = from {
        put_address(&mut message, libc::RTA_SRC, from);
    }
    // An address that is only good on one link.
    if let SocketAddr::V6(v6) = to
        && v6.scope_id() != 0
    {
        put(&mut message, libc::RTA_OIF, &v6.scope_id().to_ne_bytes());
    }
    let header = [
        (message.len() as u32).to_ne_bytes(),
        two(libc::RTM_GETROUTE, libc::NLM_F_REQUEST as u16),
        sequence.to_ne_bytes(),
        [0; 4],
    ];
    message.splice(..HEADER_BYTES, header.concat());
    message
}

fn put_address(message: &mut Vec<u8>, kind: u16, ip: IpAddr) {
    match ip {
        IpAddr::V4(v4) => put(message, kind, &v4.octets()),
        IpAddr::V6(v6) => put(message, kind, &v6.octets()),
    }
}

fn put(message: &mut Vec<u8>, kind: u16, value: &[u8]) {
    message.extend(two((ATTRIBUTE_BYTES + value.len()) as u16, kind));
    message.extend(value);
}

fn two(first: u16, second: u16) -> [u8; 4] {
    let ([a, b], [c, d]) = (first.to_ne_bytes(), second.to_ne_bytes());
    [a, b, c, d]
}

/// Reads an answer; `None` if it is no route.
fn parse(message: &[u8]) -> Option<Route> {
    if u16_at(message, 4) != Some(libc::RTM_NEWROUTE) {
        return None;
    }
    let mut route = Route::default();
    for (kind, value) in attributes(message.get(HEADER_BYTES + ROUTE_BYTES..)?) {
        match kind {
            libc::RTA_OIF => route.interfaces.extend(u32_at(value, 0)),
            libc::RTA_MULTIPATH => route.interfaces.extend(next_hops(value)),
            libc::RTA_METRICS => {
                let metric = attributes(value).find(|(kind, _)| *kind == METRIC_MTU);
                route.mtu = metric.and_then(|(_, value)| u32_at(value, 0)).filter(|mtu| *mtu != 0);
            }
            _ => {}
        }
    }
    // What is for ourselves stays inside, whichever interface has the address.
    if message.get(ROUTE_TYPE) == Some(&libc::RTN_LOCAL) {
        route.interfaces = vec![LOOPBACK];
    }
    Some(route)
}

/// Kind and value of each attribute.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (length, kind) = (usize::from(u16_at(bytes, 0)?), u16_at(bytes, 2)?);
        let value = bytes.get(ATTRIBUTE_BYTES..length)?;
        bytes = bytes.get(length.next_multiple_of(ATTRIBUTE_BYTES)..).unwrap_or(&[]);
        // The upper bits say how the value is written.
        Some((kind & libc::NLA_TYPE_MASK as u16, value))
    })
}

/// The interfaces of a route that has several.
fn next_hops(mut bytes: &[u8]) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let (length, interface) = (usize::from(u16_at(bytes, 0)?), u32_at(bytes, NEXT_HOP_INTERFACE)?);
        bytes = bytes.get(length.max(NEXT_HOP_BYTES).next_multiple_of(ATTRIBUTE_BYTES)..).unwrap_or(&[]);
        Some(interface)
    })
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|bytes| u16::from_ne_bytes(*bytes))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(kind: u8, attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut message = [two(0, 0), two(libc::RTM_NEWROUTE, 0), [0; 4], [0; 4]].concat();
        message.extend([0, 0, 0, 0, 0, 0, 0, kind, 0, 0, 0, 0]);
        attributes.iter().for_each(|(kind, value)| put(&mut message, *kind, value));
        message
    }

    #[test]
    fn routes_are_read() {
        let seven = 7u32.to_ne_bytes();
        let mut metrics = Vec::new();
        put(&mut metrics, METRIC_MTU, &1400u32.to_ne_bytes());
        let plain =
            answer(1, &[(libc::RTA_DST, &[10, 0, 0, 1]), (libc::RTA_OIF, &seven), (libc::RTA_METRICS, &metrics)]);
        assert_eq!(parse(&plain), Some(Route { interfaces: vec![7], mtu: Some(1400) }));
        assert_eq!(
            parse(&answer(libc::RTN_LOCAL, &[(libc::RTA_OIF, &seven)])),
            Some(Route { interfaces: vec![1], mtu: None })
        );
        let hop = |interface: u32| [two(8, 0), interface.to_ne_bytes()].concat();
        let several = answer(1, &[(libc::RTA_MULTIPATH, &[hop(3), hop(4)].concat())]);
        assert_eq!(parse(&several), Some(Route { interfaces: vec![3, 4], mtu: None }));
        // No answer is cut short without being so everywhere, and none of it may matter.
        for length in 0..plain.len() {
            parse(&plain[..length]);
        }
    }

    #[test]
    fn any_bytes_can_be_read() {
        for fill in 0..=255u8 {
            for length in 0..200 {
                let mut message = answer(1, &[]);
                message.extend(vec![fill; length]);
                parse(&message);
                attributes(&message).for_each(drop);
                next_hops(&message).for_each(drop);
            }
        }
    }

    #[test]
    fn the_kernel_answers() {
        let mut netlink = Netlink::open().unwrap();
        let loopback = netlink.mtu(Some("127.0.0.1".parse().unwrap()), "127.0.0.9:1".parse().unwrap());
        assert_eq!(loopback, Some(65_536));
        assert_eq!(netlink.mtu(None, "[::1]:1".parse().unwrap()), Some(65_536));
    }
}
