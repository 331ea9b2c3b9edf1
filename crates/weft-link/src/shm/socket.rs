//! Unix sockets: names without files, credentials, and messages with descriptors.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use weft_mem::fork::LocalFd;

use crate::limits::{BACKLOG_MAX, NOTE_DESCRIPTORS_MAX, NOTE_MAX_BYTES};

/// Words of a buffer for the control messages of the most descriptors: a header of 16 bytes, 4 bytes each.
const CONTROL_WORDS: usize = 2 + NOTE_DESCRIPTORS_MAX.div_ceil(2);
/// Room for the longest message: a note with its mark.
pub(crate) const MESSAGE_MAX_BYTES: usize = NOTE_MAX_BYTES + 1;

/// Who is at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Credentials {
    pub(crate) pid: i32,
    pub(crate) uid: u32,
}

/// A name that no file has. It belongs to the network namespace, as the address in it does, and goes with the socket.
pub(crate) struct Name {
    address: libc::sockaddr_un,
    length: libc::socklen_t,
}

impl Name {
    /// The name of the node of a user at an address.
    pub(crate) fn new(uid: u32, of: SocketAddr) -> Name {
        let text = format!("\0weft.{uid}.{}.{}", of.ip().to_canonical(), of.port());
        // SAFETY: zeros are a valid address.
        let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        // The longest name (a number, an IPv6 address, a port) is far shorter than the 108 bytes there are.
        for (to, from) in address.sun_path.iter_mut().zip(text.bytes()) {
            *to = from as libc::c_char;
        }
        let length = std::mem::offset_of!(libc::sockaddr_un, sun_path) + text.len().min(address.sun_path.len());
        Name { address, length: length as libc::socklen_t }
    }
}

/// The names under which a node may be found that has this address: its own, and those of all addresses.
pub(crate) fn candidates(uid: u32, to: SocketAddr) -> impl Iterator<Item = Name> {
    let ip = to.ip().to_canonical();
    let others: &[IpAddr] = if ip.is_ipv4() {
        &[IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)]
    } else {
        &[IpAddr::V6(Ipv6Addr::UNSPECIFIED)]
    };
    // Somebody here may listen on all addresses under the same port as somebody elsewhere.
    let others = if is_local(ip) { others } else { &[] };
    let exact = std::iter::once(ip);
    let port = to.port();
    exact
        .chain(others.iter().copied().filter(move |other| *other != ip))
        .map(move |ip| Name::new(uid, SocketAddr::new(ip, port)))
}

/// Whether an address is one of this machine: only those can be bound.
fn is_local(ip: IpAddr) -> bool {
    std::net::UdpSocket::bind(SocketAddr::new(ip, 0)).is_ok()
}

/// A socket that keeps the bounds of messages, and does not block.
fn open() -> io::Result<LocalFd> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no memory is involved.
    let descriptor = check(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })?;
    // SAFETY: the kernel has just given us this descriptor, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }.into())
}

/// Listens under a name.
pub(crate) fn listen(name: &Name) -> io::Result<LocalFd> {
    let socket = open()?;
    // SAFETY: the name holds an address of its length.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const name.address).cast(), name.length) })?;
    // SAFETY: no memory is involved.
    check(unsafe { libc::listen(socket.as_raw_fd(), BACKLOG_MAX) })?;
    Ok(socket)
}

/// Connects to who listens there; `None`: nobody does.
pub(crate) fn connect(name: &Name) -> io::Result<Option<LocalFd>> {
    let socket = open()?;
    // SAFETY: the name holds an address of its length.
    match check(unsafe { libc::connect(socket.as_raw_fd(), (&raw const name.address).cast(), name.length) }) {
        Ok(_) => Ok(Some(socket)),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(None),
        Err(error) => Err(error),
    }
}

/// A connection that waits; `None`: there is none.
pub(crate) fn accept(listener: BorrowedFd<'_>) -> io::Result<Option<LocalFd>> {
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: the address of the other end is not asked for.
    let descriptor = unsafe { libc::accept4(listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut(), flags) };
    match check(descriptor) {
        // SAFETY: the kernel has just given us this descriptor, and nobody else has it.
        Ok(descriptor) => Ok(Some(unsafe { OwnedFd::from_raw_fd(descriptor) }.into())),
        Err(error) if passing(&error) || error.kind() == io::ErrorKind::ConnectionAborted => Ok(None),
        Err(error) => Err(error),
    }
}

/// Who was at the other end when the connection was made: for a connector, who listens.
pub(crate) fn credentials(socket: BorrowedFd<'_>) -> io::Result<Credentials> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `credentials` has `length` bytes and lives through the call.
    check(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut length,
        )
    })?;
    Ok(Credentials { pid: credentials.pid, uid: credentials.uid })
}

/// Sends one message of two parts, with descriptors. It goes whole or not at all.
pub(crate) fn send(socket: BorrowedFd<'_>, parts: [&[u8]; 2], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    if descriptors.len() > NOTE_DESCRIPTORS_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut vectors = parts.map(|part| libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() });
    let mut control = [0u64; CONTROL_WORDS];
    // SAFETY: zeros are a valid message header.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = vectors.as_mut_ptr();
    header.msg_iovlen = vectors.len();
    if !descriptors.is_empty() {
        let bytes = size_of_val(descriptors) as u32;
        const { assert!(size_of::<BorrowedFd<'_>>() == 4) };
        header.msg_control = control.as_mut_ptr().cast();
        // SAFETY: it only computes.
        header.msg_controllen = unsafe { libc::CMSG_SPACE(bytes) } as usize;
        // SAFETY: `control` is aligned, zero, and has room for one control message with the most descriptors.
        unsafe {
            let first = libc::CMSG_FIRSTHDR(&raw const header);
            (*first).cmsg_level = libc::SOL_SOCKET;
            (*first).cmsg_type = libc::SCM_RIGHTS;
            (*first).cmsg_len = libc::CMSG_LEN(bytes) as usize;
            let data = libc::CMSG_DATA(first).cast::<i32>();
            for (index, descriptor) in descriptors.iter().enumerate() {
                data.add(index).write_unaligned(descriptor.as_raw_fd());
            }
        }
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the header names two parts and the control message, which all live through the call.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const header, flags) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// What a socket gave.
#[derive(Debug)]
pub(crate) enum Received {
    /// Nothing now.
    Nothing,
    /// A message of so many bytes, with its descriptors.
    Message(usize, Vec<OwnedFd>),
    /// A message that is longer than any that we send.
    TooLong,
    /// The other end is closed.
    Closed,
}

/// Takes one message. Descriptors past [`NOTE_DESCRIPTORS_MAX`] are closed by the kernel.
pub(crate) fn receive(socket: BorrowedFd<'_>, into: &mut [u8]) -> Received {
    let mut vector = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let mut control = [0u64; CONTROL_WORDS];
    // SAFETY: zeros are a valid message header.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut vector;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control);
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the header names one part and the room for control messages, which live through the call.
    let length = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) };
    let Ok(length) = usize::try_from(length) else {
        return if passing(&io::Error::last_os_error()) { Received::Nothing } else { Received::Closed };
    };
    let descriptors = descriptors(&header);
    if header.msg_flags & libc::MSG_TRUNC != 0 {
        return Received::TooLong;
    }
    // We never send a message of no bytes, so it is the end.
    if length == 0 { Received::Closed } else { Received::Message(length, descriptors) }
}

/// The descriptors that came with a message.
fn descriptors(header: &libc::msghdr) -> Vec<OwnedFd> {
    let mut descriptors = Vec::new();
    // SAFETY: the kernel filled the control messages of this header, and says how long they are.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !next.is_null() {
        // SAFETY: it points to a control message that the kernel has written.
        let (level, kind, length) = unsafe { ((*next).cmsg_level, (*next).cmsg_type, (*next).cmsg_len) };
        if level == libc::SOL_SOCKET && kind == libc::SCM_RIGHTS {
            // SAFETY: it only computes.
            let count = (length - unsafe { libc::CMSG_LEN(0) } as usize) / size_of::<i32>();
            for index in 0..count {
                // SAFETY: there are `count` descriptors, which the kernel has just given us.
                let descriptor =
                    unsafe { OwnedFd::from_raw_fd(libc::CMSG_DATA(next).cast::<i32>().add(index).read_unaligned()) };
                descriptors.push(descriptor);
            }
        }
        // SAFETY: as above.
        next = unsafe { libc::CMSG_NXTHDR(header, next) };
    }
    descriptors
}

/// Ends the connection for both sides, whoever else still holds the descriptor.
pub(crate) fn hang_up(socket: BorrowedFd<'_>) {
    // SAFETY: no memory is involved. A socket that is not connected any more is what we want.
    unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_RDWR) };
}

/// An error that only says: not now.
fn passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// The result of a system call.
pub(crate) fn check(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
