//! Addresses of endpoints, as C programs exchange them.
//!
//! An endpoint is a socket and a number there. In a `sockaddr_in` the number stands in the first four bytes of the
//! padding, in a `sockaddr_in6` in the flow information, both in network order. A program that only knows node and
//! service leaves them 0, which is the number of a domain's first endpoint.

use std::ffi::{CStr, CString, c_char, c_void};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use weft::Address;

use crate::abi::*;
use crate::guard::Result;

const IP4_BYTES: usize = size_of::<libc::sockaddr_in>();
const IP6_BYTES: usize = size_of::<libc::sockaddr_in6>();
const IP4_SCHEME: &str = "fi_sockaddr_in://";
const IP6_SCHEME: &str = "fi_sockaddr_in6://";

/// Bytes of an address in a format; of text, the longest with its end.
pub(crate) fn length(format: u32) -> usize {
    match format {
        FI_SOCKADDR_IN => IP4_BYTES,
        FI_ADDR_STR => IP6_SCHEME.len() + 64,
        _ => IP6_BYTES,
    }
}

/// The format for addresses like this one, if a program leaves it open.
pub(crate) fn format_of(socket: &SocketAddr) -> u32 {
    if socket.is_ipv4() { FI_SOCKADDR_IN } else { FI_SOCKADDR_IN6 }
}

/// The address as it lies in memory of C.
pub(crate) fn to_bytes(format: u32, address: &Address) -> Vec<u8> {
    if format == FI_ADDR_STR {
        return CString::new(to_text(address)).unwrap_or_default().into_bytes_with_nul();
    }
    let port = address.socket.port().to_be_bytes();
    let number = address.endpoint.to_be_bytes();
    match address.socket {
        SocketAddr::V4(v4) if format != FI_SOCKADDR_IN6 => {
            let mut bytes = (libc::AF_INET as u16).to_ne_bytes().to_vec();
            bytes.extend(port);
            bytes.extend(v4.ip().octets());
            bytes.extend(number);
            bytes.resize(IP4_BYTES, 0);
            bytes
        }
        socket => {
            let (ip, scope) = match socket {
                SocketAddr::V4(v4) => (v4.ip().to_ipv6_mapped(), 0),
                SocketAddr::V6(v6) => (*v6.ip(), v6.scope_id()),
            };
            let mut bytes = (libc::AF_INET6 as u16).to_ne_bytes().to_vec();
            bytes.extend(port);
            bytes.extend(number);
            bytes.extend(ip.octets());
            bytes.extend(scope.to_ne_bytes());
            bytes
        }
    }
}

/// Writes an address where C wants it: as much as there is room for. `length` tells the room and is told the need.
///
/// # Safety
/// `length` is null or valid; `into` is null or has that many bytes.
pub(crate) unsafe fn write(format: u32, address: &Address, into: *mut c_void, length: *mut usize) -> Result {
    let bytes = to_bytes(format, address);
    // SAFETY: as the caller says.
    let Some(length) = (unsafe { length.as_mut() }) else { return Err(-FI_EINVAL) };
    let room = std::mem::replace(length, bytes.len());
    if !into.is_null() {
        // SAFETY: as the caller says.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), into.cast(), bytes.len().min(room)) };
    }
    if room < bytes.len() || into.is_null() { Err(-FI_ETOOSMALL) } else { Ok(()) }
}

/// Reads an address that C points to.
///
/// # Safety
/// `pointer` is null, or points to an address of this format (of the family that its first bytes say, or to a text that
/// ends with 0).
pub(crate) unsafe fn read(format: u32, pointer: *const c_void) -> Result<Address> {
    if pointer.is_null() {
        return Err(-FI_EINVAL);
    }
    if format == FI_ADDR_STR {
        // SAFETY: as the caller says.
        let text = unsafe { CStr::from_ptr(pointer.cast::<c_char>()) };
        return from_text(text.to_str().map_err(|_| -FI_EINVAL)?).ok_or(-FI_EINVAL);
    }
    // SAFETY: every address begins with its family.
    let family = unsafe { pointer.cast::<u16>().read_unaligned() };
    match (i32::from(family), format) {
        (libc::AF_INET, FI_SOCKADDR | FI_SOCKADDR_IN | FI_FORMAT_UNSPEC) => {
            // SAFETY: the family says that it is one.
            let bytes = unsafe { pointer.cast::<[u8; IP4_BYTES]>().read_unaligned() };
            let [_, _, p0, p1, a, b, c, d, n0, n1, n2, n3, ..] = bytes;
            let socket = SocketAddr::from((Ipv4Addr::new(a, b, c, d), u16::from_be_bytes([p0, p1])));
            Ok(Address { socket, endpoint: u32::from_be_bytes([n0, n1, n2, n3]) })
        }
        (libc::AF_INET6, FI_SOCKADDR | FI_SOCKADDR_IN6 | FI_FORMAT_UNSPEC) => {
            // SAFETY: the family says that it is one.
            let bytes = unsafe { pointer.cast::<[u8; IP6_BYTES]>().read_unaligned() };
            let [_, _, p0, p1, n0, n1, n2, n3, rest @ ..] = bytes;
            let (mut octets, mut scope) = ([0; 16], [0; 4]);
            octets.iter_mut().chain(&mut scope).zip(rest).for_each(|(to, from)| *to = from);
            let (ip, port) = (Ipv6Addr::from(octets), u16::from_be_bytes([p0, p1]));
            let socket = match ip.to_ipv4_mapped() {
                Some(v4) => SocketAddr::from((v4, port)),
                None => SocketAddrV6::new(ip, port, 0, u32::from_ne_bytes(scope)).into(),
            };
            Ok(Address { socket, endpoint: u32::from_be_bytes([n0, n1, n2, n3]) })
        }
        _ => Err(-FI_EINVAL),
    }
}

/// `fi_sockaddr_in://192.0.2.1:4791`, and `#1a2b3c4d` behind it where the number is not 0.
pub(crate) fn to_text(address: &Address) -> String {
    let scheme = if address.socket.is_ipv4() { IP4_SCHEME } else { IP6_SCHEME };
    match address.endpoint {
        0 => format!("{scheme}{}", address.socket),
        number => format!("{scheme}{}#{number:08x}", address.socket),
    }
}

/// Reads [`to_text`]; a port that is missing is 0.
pub(crate) fn from_text(text: &str) -> Option<Address> {
    let rest = text.strip_prefix(IP4_SCHEME).or_else(|| text.strip_prefix(IP6_SCHEME))?;
    let (socket, number) = rest.rsplit_once('#').unwrap_or((rest, "0"));
    let endpoint = u32::from_str_radix(number, 16).ok()?;
    let port_missing = || socket.trim_matches(['[', ']']).parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, 0));
    Some(Address { socket: socket.parse().ok().or_else(port_missing)?, endpoint })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_gives_back_what_was_written() {
        for text in ["192.0.2.1:4791", "[2001:db8::1]:7", "127.0.0.1:0"] {
            for endpoint in [0, 1, 0x1a2b_3c4d, u32::MAX] {
                let address = Address { socket: text.parse().unwrap(), endpoint };
                for format in [format_of(&address.socket), FI_SOCKADDR, FI_SOCKADDR_IN6, FI_ADDR_STR] {
                    let bytes = to_bytes(format, &address);
                    assert!(bytes.len() <= length(format), "{format}");
                    // SAFETY: what was written is such an address.
                    let back = unsafe { read(format, bytes.as_ptr().cast()) };
                    assert_eq!(back, Ok(address), "{format}");
                }
            }
        }
    }

    #[test]
    fn short_room_is_told() {
        let address = Address { socket: "192.0.2.1:4791".parse().unwrap(), endpoint: 9 };
        let (mut room, mut into) = (8, [0u8; 16]);
        // SAFETY: there are more bytes than told.
        let result = unsafe { write(FI_SOCKADDR_IN, &address, into.as_mut_ptr().cast(), &raw mut room) };
        assert_eq!((result, room, into[8..].iter().all(|byte| *byte == 0)), (Err(-FI_ETOOSMALL), 16, true));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in
            ["", "fi_sockaddr_in://", "fi_sockaddr_in://x:1", "192.0.2.1:4791", "fi_sockaddr_in://1.2.3.4:5#xyz"]
        {
            assert_eq!(from_text(text), None, "{text}");
        }
        let family = [99u8; 28];
        // SAFETY: there are as many bytes as any address has.
        assert!(unsafe { read(FI_SOCKADDR, family.as_ptr().cast()) }.is_err());
    }
}
