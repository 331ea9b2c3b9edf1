//! Messages in the name of routers.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const UDP: u8 = 17;

/// Tells the host of `victim`, who has sent to `to`, that a router carries no more than `mtu` bytes. Nothing that the
/// victim has sent need be known, only addresses and ports.
pub(crate) fn too_big(victim: SocketAddr, to: SocketAddr, mtu: u32) {
    let mut message = if victim.is_ipv6() { packet_too_big(mtu) } else { fragmentation_needed(mtu) };
    message.extend(quoted(victim, to));
    let protocol = if victim.is_ipv6() {
        libc::IPPROTO_ICMPV6
    } else {
        let sum = checksum(&message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        libc::IPPROTO_ICMP
    };
    let family = if victim.is_ipv6() { libc::AF_INET6 } else { libc::AF_INET };
    // SAFETY: no memory is involved.
    let fd = unsafe { libc::socket(family, libc::SOCK_RAW, protocol) };
    assert!(fd >= 0, "{}", io::Error::last_os_error());
    // SAFETY: the kernel has just given us this descriptor, and nobody else has it.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let (bytes, length) = (message.as_ptr().cast(), message.len());
    // SAFETY: zeros are valid addresses.
    let (mut v4, mut v6): (libc::sockaddr_in, libc::sockaddr_in6) = unsafe { std::mem::zeroed() };
    // SAFETY: the message can be read for its length, and the address is as long as told.
    let sent = unsafe {
        match victim.ip() {
            IpAddr::V4(ip) => {
                v4.sin_family = family as u16;
                v4.sin_addr.s_addr = u32::from_ne_bytes(ip.octets());
                let name = (&raw const v4).cast();
                libc::sendto(socket.as_raw_fd(), bytes, length, 0, name, size_of_val(&v4) as u32)
            }
            IpAddr::V6(ip) => {
                v6.sin6_family = family as u16;
                v6.sin6_addr.s6_addr = ip.octets();
                let name = (&raw const v6).cast();
                libc::sendto(socket.as_raw_fd(), bytes, length, 0, name, size_of_val(&v6) as u32)
            }
        }
    };
    assert!(sent >= 0, "{}", io::Error::last_os_error());
}

/// RFC 1191, without the checksum.
fn fragmentation_needed(mtu: u32) -> Vec<u8> {
    let [_, _, high, low] = mtu.to_be_bytes();
    vec![3, 4, 0, 0, 0, 0, high, low]
}

/// RFC 4443; the kernel writes the checksum.
fn packet_too_big(mtu: u32) -> Vec<u8> {
    [[2, 0, 0, 0], mtu.to_be_bytes()].concat()
}

/// The headers of a datagram.
fn quoted(from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    const PAYLOAD: u16 = 1400;
    let mut headers = match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut ip = vec![0x45, 0];
            ip.extend((PAYLOAD + 28).to_be_bytes());
            ip.extend([0, 1, 0x40, 0, 64, UDP, 0, 0]);
            ip.extend(from.octets());
            ip.extend(to.octets());
            let sum = checksum(&ip);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
            ip
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let mut ip = vec![0x60, 0, 0, 0];
            ip.extend((PAYLOAD + 8).to_be_bytes());
            ip.extend([UDP, 64]);
            ip.extend(from.octets());
            ip.extend(to.octets());
            ip
        }
        _ => panic!("both are of one family"),
    };
    for field in [from.port(), to.port(), PAYLOAD + 8, 0] {
        headers.extend(field.to_be_bytes());
    }
    headers
}

/// RFC 1071.
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let sum: u32 = words.sum();
    let sum = (sum >> 16) + (sum & 0xffff);
    !((sum + (sum >> 16)) as u16)
}
