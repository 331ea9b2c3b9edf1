//! Socket addresses as the kernel has them.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use libc::{sockaddr_in, sockaddr_in6, socklen_t};

/// Room for an address of either family. The family field of both is at the same place, which the kernel relies on too.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union RawAddress {
    v4: sockaddr_in,
    v6: sockaddr_in6,
    bytes: [u8; size_of::<sockaddr_in6>()],
}

const _: () = {
    assert!(std::mem::offset_of!(sockaddr_in, sin_family) == std::mem::offset_of!(sockaddr_in6, sin6_family));
    assert!(size_of::<RawAddress>() == size_of::<sockaddr_in6>());
};

impl RawAddress {
    pub(crate) const ROOM: socklen_t = size_of::<RawAddress>() as socklen_t;

    pub(crate) const fn new() -> RawAddress {
        RawAddress { bytes: [0; size_of::<sockaddr_in6>()] }
    }

    /// The address, and how many bytes of it the kernel is to read.
    #[inline]
    pub(crate) fn from(address: SocketAddr) -> (RawAddress, socklen_t) {
        match address {
            SocketAddr::V4(v4) => {
                let raw = sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: v4.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                    sin_zero: [0; 8],
                };
                (RawAddress { v4: raw }, size_of::<sockaddr_in>() as socklen_t)
            }
            SocketAddr::V6(v6) => {
                let raw = sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: v6.port().to_be(),
                    sin6_flowinfo: v6.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                    sin6_scope_id: v6.scope_id(),
                };
                (RawAddress { v6: raw }, size_of::<sockaddr_in6>() as socklen_t)
            }
        }
    }

    /// What the kernel wrote, if it is an address.
    #[inline]
    pub(crate) fn get(&self, length: socklen_t) -> Option<SocketAddr> {
        // SAFETY: every byte of the union is initialised by its constructors, and all of its fields are plain numbers
        // for which any bytes are valid.
        let (v4, v6) = unsafe { (&self.v4, &self.v6) };
        match i32::from(v4.sin_family) {
            libc::AF_INET if length as usize >= size_of::<sockaddr_in>() => {
                let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
                Some(SocketAddr::V4(SocketAddrV4::new(ip, u16::from_be(v4.sin_port))))
            }
            libc::AF_INET6 if length as usize >= size_of::<sockaddr_in6>() => {
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                let port = u16::from_be(v6.sin6_port);
                Some(SocketAddr::V6(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id)))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back() {
        for text in ["192.0.2.7:4791", "[2001:db8::7]:1", "[fe80::1%3]:65535"] {
            let address: SocketAddr = text.parse().unwrap();
            let (raw, length) = RawAddress::from(address);
            assert_eq!(raw.get(length), Some(address));
            assert_eq!(raw.get(length - 1), None);
        }
        assert_eq!(RawAddress::new().get(RawAddress::ROOM), None);
    }
}
