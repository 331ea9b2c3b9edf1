//! This machine's network interfaces, the names of nodes and services, and texts that cross the C boundary.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};

use crate::abi::*;
use crate::address;
use crate::guard::Result;
use crate::log;

/// An address of an interface that is up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Interface {
    /// As the system calls it.
    pub(crate) name: String,
    /// One of its addresses; an interface with several is listed for each.
    pub(crate) address: IpAddr,
    /// Leading bits of the address that its network shares.
    pub(crate) prefix: u32,
    /// Whether it reaches this machine only.
    pub(crate) loopback: bool,
}

impl Interface {
    /// Whether packets to this address arrive here: on loopback, a whole network does.
    pub(crate) fn holds(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(asked)) if self.loopback => {
                let ignored = 32u32.saturating_sub(self.prefix);
                (own.to_bits() ^ asked.to_bits()).checked_shr(ignored).unwrap_or(0) == 0
            }
            (own, asked) => own == asked,
        }
    }

    /// Where it stands in lists: what reaches other machines first, and IPv4, which peers expect, before IPv6.
    fn rank(&self) -> u8 {
        match (self.address.is_ipv4(), self.loopback) {
            (true, false) => 0,
            (true, true) => 1,
            (false, false) => 2,
            (false, true) => 3,
        }
    }
}

/// A text of C: `None` where the pointer is null.
///
/// # Safety
/// `pointer` is null, or points to bytes that end with 0 and outlive `'a`.
pub(crate) unsafe fn text<'a>(pointer: *const c_char) -> Result<Option<&'a str>> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: as the caller says.
    unsafe { CStr::from_ptr(pointer) }.to_str().map(Some).map_err(|_| -FI_EINVAL)
}

/// Writes a text and its final 0, cut to the room; returns the bytes that the whole needs.
///
/// # Safety
/// `into` is null or has `length` bytes.
pub(crate) unsafe fn write_text(text: &str, into: *mut c_char, length: usize) -> usize {
    let needed = text.len() + 1;
    if let Some(room) = length.checked_sub(1).filter(|_| !into.is_null()) {
        let copied = text.len().min(room);
        // SAFETY: `copied` bytes and the 0 are at most `length`.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), into.cast(), copied);
            into.add(copied).write(0);
        }
    }
    needed
}

/// What the user restricts the provider to: an interface's name, or an address.
pub(crate) fn restriction() -> Option<String> {
    log::parameter(c"interface").filter(|value| !value.is_empty())
}

/// The interfaces that are up, best first, restricted to what the user asked for.
pub(crate) fn interfaces() -> Vec<Interface> {
    let mut interfaces = system_interfaces();
    interfaces.sort_by_key(Interface::rank);
    if let Some(asked) = restriction() {
        let address = asked.parse::<IpAddr>().ok();
        interfaces.retain(|interface| interface.name == asked || address.is_some_and(|ip| interface.holds(ip)));
        if interfaces.is_empty() {
            log::warning!(CORE, "FI_WEFT_INTERFACE={asked}: no interface that is up has this name or address");
        }
    }
    interfaces
}

fn system_interfaces() -> Vec<Interface> {
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the system fills the pointer, or says that it failed.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        log::warning!(CORE, "the interfaces cannot be listed: {}", std::io::Error::last_os_error());
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut next = list;
    // SAFETY: the list is the system's, and ends with null.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        const WORKS: u32 = libc::IFF_UP as u32 | libc::IFF_RUNNING as u32;
        if entry.ifa_flags & WORKS != WORKS {
            continue;
        }
        // SAFETY: the name ends with 0; the addresses are null or of the family that they say.
        let (name, address, mask) =
            unsafe { (text(entry.ifa_name), socket_of(entry.ifa_addr), socket_of(entry.ifa_netmask)) };
        let (Ok(Some(name)), Some(address)) = (name, address) else { continue };
        let address = address.ip();
        if matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local() || v6.is_multicast()) {
            continue;
        }
        let prefix = match mask.map(|mask| mask.ip()) {
            Some(IpAddr::V4(mask)) => mask.to_bits().leading_ones(),
            Some(IpAddr::V6(mask)) => mask.to_bits().leading_ones(),
            None => {
                if address.is_ipv4() {
                    32
                } else {
                    128
                }
            }
        };
        let loopback = entry.ifa_flags & libc::IFF_LOOPBACK as u32 != 0;
        found.push(Interface { name: name.to_owned(), address, prefix, loopback });
    }
    // SAFETY: it came from `getifaddrs`, and nothing refers to it any more.
    unsafe { libc::freeifaddrs(list) };
    found
}

/// An address of the system's own lists.
///
/// # Safety
/// `pointer` is null, or points to an address of the family that it says.
unsafe fn socket_of(pointer: *const libc::sockaddr) -> Option<SocketAddr> {
    // SAFETY: as the caller says.
    let family = i32::from(unsafe { pointer.as_ref() }?.sa_family);
    match family {
        libc::AF_INET => {
            // SAFETY: the family says that it is one.
            let v4 = unsafe { pointer.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(SocketAddr::from((Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)), u16::from_be(v4.sin_port))))
        }
        libc::AF_INET6 => {
            // SAFETY: the family says that it is one.
            let v6 = unsafe { pointer.cast::<libc::sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            Some(SocketAddrV6::new(ip, u16::from_be(v6.sin6_port), 0, v6.sin6_scope_id).into())
        }
        _ => None,
    }
}

/// The sockets of a node and service, IPv4 first. Without a node the addresses are the unspecified ones, without a
/// service the port is 0. A node may be in our text form, which has the port itself.
pub(crate) fn resolve(
    node: Option<&str>,
    service: Option<&str>,
    wants_ip6: Option<bool>,
    numeric_only: bool,
) -> Result<Vec<SocketAddr>> {
    let fits = |socket: &SocketAddr| wants_ip6.is_none_or(|wants| socket.is_ipv6() == wants);
    if let Some(address) = node.and_then(address::from_text) {
        // The text has the port: a service beside it would be a second one.
        return if service.is_none() && fits(&address.socket) { Ok(vec![address.socket]) } else { Err(-FI_ENODATA) };
    }
    // The system cuts numbers that are too long for a port.
    let digits = |text: &&str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if service.filter(digits).is_some_and(|number| number.parse::<u16>().is_err()) {
        return Err(-FI_ENODATA);
    }
    let node = node.map(CString::new).transpose().map_err(|_| -FI_EINVAL)?;
    let service = service.map(CString::new).transpose().map_err(|_| -FI_EINVAL)?;
    if node.is_none() && service.is_none() {
        let both: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
        return Ok(both.into_iter().map(|ip| SocketAddr::new(ip, 0)).filter(fits).collect());
    }
    // SAFETY: all zero is the documented absence of every wish.
    let mut hints: libc::addrinfo = unsafe { std::mem::zeroed() };
    hints.ai_family = wants_ip6.map_or(libc::AF_UNSPEC, |wants| if wants { libc::AF_INET6 } else { libc::AF_INET });
    hints.ai_socktype = libc::SOCK_DGRAM;
    hints.ai_flags = libc::AI_PASSIVE | if numeric_only { libc::AI_NUMERICHOST } else { 0 };
    let pointer = |text: &Option<CString>| text.as_ref().map_or(std::ptr::null(), |text| text.as_ptr());
    let mut list: *mut libc::addrinfo = std::ptr::null_mut();
    // SAFETY: the texts are null or end with 0, and the system fills the list or says that it failed.
    match unsafe { libc::getaddrinfo(pointer(&node), pointer(&service), &raw const hints, &raw mut list) } {
        0 => {}
        libc::EAI_MEMORY => return Err(-FI_ENOMEM),
        libc::EAI_AGAIN | libc::EAI_FAIL | libc::EAI_SYSTEM => return Err(-FI_EADDRNOTAVAIL),
        _ => return Err(-FI_ENODATA),
    }
    let mut found = Vec::new();
    let mut next = list;
    // SAFETY: the list is the system's, and ends with null.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ai_next;
        // SAFETY: an address of the system's list.
        if let Some(socket) = unsafe { socket_of(entry.ai_addr) }.filter(|socket| !found.contains(socket)) {
            found.push(socket);
        }
    }
    // SAFETY: it came from `getaddrinfo`, and nothing refers to it any more.
    unsafe { libc::freeaddrinfo(list) };
    found.sort_by_key(SocketAddr::is_ipv6);
    if found.is_empty() { Err(-FI_ENODATA) } else { Ok(found) }
}

/// The address from which the system would send to a destination; `None` where it knows no route.
pub(crate) fn source_for(destination: SocketAddr) -> Option<IpAddr> {
    let any: IpAddr = if destination.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    // Nothing is sent; the port only has to be one.
    let mut to = destination;
    to.set_port(destination.port().max(1));
    socket.connect(to).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// The address of the best interface of a family, the loopback address if there is none.
pub(crate) fn default_source(ip6: bool) -> IpAddr {
    let loopback = || if ip6 { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() };
    interfaces().into_iter().map(|interface| interface.address).find(|ip| ip.is_ipv6() == ip6).unwrap_or_else(loopback)
}

/// A text that C reads after the call: in its buffer, or where it stays until the next call of this thread.
pub(crate) fn lasting_text(text: &str, into: *mut c_char, length: usize) -> *const c_char {
    thread_local! {
        static LAST: RefCell<CString> = RefCell::default();
    }
    if !into.is_null() && length > 0 {
        // SAFETY: the caller of the interface gives that many bytes.
        unsafe { write_text(text, into, length) };
        return into;
    }
    LAST.with_borrow_mut(|last| {
        *last = CString::new(text).unwrap_or_default();
        last.as_ptr()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_to_the_room_and_always_end() {
        for (room, expected) in [(0, "####"), (1, "\0###"), (3, "ab\0#"), (4, "abc\0")] {
            let mut into = *b"####";
            // SAFETY: there are at least `room` bytes.
            let needed = unsafe { write_text("abc", into.as_mut_ptr().cast(), room) };
            assert_eq!((needed, std::str::from_utf8(&into)), (4, Ok(expected)), "{room}");
        }
        // SAFETY: null is permitted.
        assert_eq!(unsafe { write_text("abc", std::ptr::null_mut(), 9) }, 4);
    }

    #[test]
    fn texts_that_are_no_utf8_are_refused() {
        // SAFETY: they end with 0.
        unsafe {
            assert_eq!(text(std::ptr::null()), Ok(None));
            assert_eq!(text(c"eth0".as_ptr()), Ok(Some("eth0")));
            assert_eq!(text(c"\xff".as_ptr()), Err(-FI_EINVAL));
        }
    }

    #[test]
    fn loopback_is_an_interface_and_holds_its_network() {
        let loopback = interfaces().into_iter().find(|interface| interface.loopback && interface.address.is_ipv4());
        let loopback = loopback.expect("every machine has one");
        assert!(loopback.holds("127.0.0.2".parse().unwrap()), "{loopback:?}");
        assert!(!loopback.holds("192.0.2.1".parse().unwrap()));
        let ranks: Vec<u8> = interfaces().iter().map(Interface::rank).collect();
        assert!(ranks.is_sorted(), "{ranks:?}");
    }

    #[test]
    fn nodes_and_services_become_sockets() {
        let one = |text: &str| Ok(vec![text.parse::<SocketAddr>().unwrap()]);
        let cases = [
            (Some("127.0.0.1"), Some("4791"), None, one("127.0.0.1:4791")),
            (Some("::1"), None, None, one("[::1]:0")),
            (Some("::1"), None, Some(false), Err(-FI_ENODATA)),
            (Some("fi_sockaddr_in://192.0.2.1:7#00000002"), None, None, one("192.0.2.1:7")),
            (Some("fi_sockaddr_in://192.0.2.1:7"), Some("8"), None, Err(-FI_ENODATA)),
            (None, Some("7"), Some(false), one("0.0.0.0:7")),
            (None, None, Some(true), one("[::]:0")),
            (None, Some("65536"), None, Err(-FI_ENODATA)),
            (Some("no.such name"), None, None, Err(-FI_ENODATA)),
            (Some("a\0b"), None, None, Err(-FI_EINVAL)),
        ];
        for (node, service, wants_ip6, expected) in cases {
            assert_eq!(resolve(node, service, wants_ip6, true), expected, "{node:?} {service:?}");
        }
    }

    #[test]
    fn loopback_is_reached_from_loopback() {
        assert_eq!(source_for("127.0.0.1:0".parse().unwrap()), Some(Ipv4Addr::LOCALHOST.into()));
        assert!(default_source(false).is_ipv4() && default_source(true).is_ipv6());
    }
}
