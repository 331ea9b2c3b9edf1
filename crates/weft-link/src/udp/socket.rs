//! The socket and its options.

use std::io;
use std::mem::size_of_val;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use libc::{c_int, socklen_t};

use weft_mem::fork::LocalFd;

use super::address::RawAddress;

/// A UDP socket that does not block, not yet bound.
pub(crate) fn open(of_family: SocketAddr) -> io::Result<OwnedFd> {
    let family = if of_family.is_ipv6() { libc::AF_INET6 } else { libc::AF_INET };
    // SAFETY: no memory is involved.
    let fd = unsafe { libc::socket(family, libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC, 0) };
    check(fd)?;
    // SAFETY: the kernel has just given us this descriptor, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

pub(crate) fn bind(socket: &impl AsRawFd, to: SocketAddr) -> io::Result<()> {
    let (raw, length) = RawAddress::from(to);
    // SAFETY: `raw` holds an address of `length` bytes.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const raw).cast(), length) })
}

pub(crate) fn connect(socket: &impl AsRawFd, to: SocketAddr) -> io::Result<()> {
    let (raw, length) = RawAddress::from(to);
    // SAFETY: `raw` holds an address of `length` bytes.
    check(unsafe { libc::connect(socket.as_raw_fd(), (&raw const raw).cast(), length) })
}

/// Takes the peer away, and the address that its route gave the socket.
pub(crate) fn disconnect(socket: &impl AsRawFd) -> io::Result<()> {
    // SAFETY: zeros are a valid address, of no family (`AF_UNSPEC`).
    let nobody: libc::sockaddr = unsafe { std::mem::zeroed() };
    // SAFETY: the address is as long as told.
    check(unsafe { libc::connect(socket.as_raw_fd(), &raw const nobody, size_of_val(&nobody) as socklen_t) })
}

/// A descriptor that is readable while one of the sockets added to it is.
pub(crate) fn watcher() -> io::Result<LocalFd> {
    // SAFETY: no memory is involved.
    let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    check(fd)?;
    // SAFETY: the kernel has just given us this descriptor, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) }.into())
}

/// Adds a socket to a [`watcher`].
pub(crate) fn watch(watcher: &impl AsRawFd, socket: &impl AsRawFd) -> io::Result<()> {
    control(watcher, socket, libc::EPOLL_CTL_ADD, libc::EPOLLIN)
}

/// Makes a [`watcher`] readable while one of its sockets has room for what is to be sent, too; or no longer.
pub(crate) fn watch_room(watcher: &impl AsRawFd, socket: &impl AsRawFd, wanted: bool) -> io::Result<()> {
    let room = if wanted { libc::EPOLLOUT } else { 0 };
    control(watcher, socket, libc::EPOLL_CTL_MOD, libc::EPOLLIN | room)
}

fn control(watcher: &impl AsRawFd, socket: &impl AsRawFd, operation: c_int, events: c_int) -> io::Result<()> {
    let mut event = libc::epoll_event { events: events as u32, u64: 0 };
    // SAFETY: the event is read during the call only.
    check(unsafe { libc::epoll_ctl(watcher.as_raw_fd(), operation, socket.as_raw_fd(), &raw mut event) })
}

/// What the socket is bound to.
pub(crate) fn local(socket: &impl AsRawFd) -> io::Result<SocketAddr> {
    let mut raw = RawAddress::new();
    let mut length = RawAddress::ROOM;
    // SAFETY: `raw` has room for `length` bytes.
    check(unsafe { libc::getsockname(socket.as_raw_fd(), (&raw mut raw).cast(), &mut length) })?;
    raw.get(length).ok_or_else(|| io::Error::from(io::ErrorKind::AddrNotAvailable))
}

pub(crate) fn set(socket: &impl AsRawFd, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    let length = size_of_val(&value) as socklen_t;
    // SAFETY: `value` is as long as told.
    check(unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), length) })
}

pub(crate) fn get(socket: &impl AsRawFd, level: c_int, name: c_int) -> io::Result<c_int> {
    let mut value: c_int = 0;
    let mut length = size_of_val(&value) as socklen_t;
    // SAFETY: `value` has room for `length` bytes.
    check(unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut value).cast(), &mut length) })?;
    Ok(value)
}

/// Asks for buffers of these sizes: past the system's limit where we may, up to it otherwise.
pub(crate) fn set_buffers(socket: &impl AsRawFd, receive_bytes: usize, send_bytes: usize) {
    let wanted =
        [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, receive_bytes), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, send_bytes)];
    for (force, plain, bytes) in wanted {
        // The kernel doubles the value.
        let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX / 2).min(c_int::MAX / 2);
        if set(socket, libc::SOL_SOCKET, force, bytes).is_err() {
            // Smaller buffers than asked for only lose sooner.
            let _ = set(socket, libc::SOL_SOCKET, plain, bytes);
        }
    }
}

/// Lets a socket send in fragments what the way does not carry in one piece, or forbids it to hosts and routers (DF); then
/// nobody's word is taken on what the way carries but the interface's (`IP_MTU_DISCOVER` in ip(7)): what routers say, or
/// somebody in their name, changes nothing.
pub(crate) fn permit_fragments(socket: &impl AsRawFd, ipv6: bool, permit: bool) -> io::Result<()> {
    if ipv6 {
        // Routers make no fragments here, so the kernel must know for what length. Who lies to it about that only gets
        // more of them than are needed.
        let discover = if permit { libc::IPV6_PMTUDISC_WANT } else { libc::IPV6_PMTUDISC_PROBE };
        set(socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, discover)
    } else {
        let discover = if permit { libc::IP_PMTUDISC_OMIT } else { libc::IP_PMTUDISC_PROBE };
        set(socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, discover)
    }
}

/// The error of a call that gives a negative number for one.
pub(crate) fn check(result: c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
