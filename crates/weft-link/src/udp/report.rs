//! What the network says about earlier sends, from the kernel's error queue.
//!
//! The kernel holds an error against a socket until a call on it, about whatever, has failed with it once; what it is
//! about waits in a queue beside. That queue is read only when a call has failed, so it costs nothing otherwise. It must
//! be read then: it takes room from what arrives, and as long as it is not empty the socket wakes its sleepers.

use std::collections::VecDeque;
use std::mem::size_of;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;

use libc::{c_int, iovec, msghdr, sock_extended_err};

use weft_mem::fork::LocalFd;

use super::address::RawAddress;
use super::control::messages;
use crate::limits::{NOTICES_MAX, QUOTED_MAX_BYTES, REPORTS_MAX};
use crate::link::{Counters, Notice};

/// Bytes of control messages of a report: the error with the address of who told it, a traffic class, room to spare.
const CONTROL_BYTES: usize = 256;

/// What was taken from the error queues and not asked for yet.
#[derive(Default)]
pub(super) struct Reports {
    notices: VecDeque<Notice>,
    /// [`Counters::reported`] when the queues were last empty.
    taken: u64,
}

impl Reports {
    /// Whether a receive has failed with somebody's error.
    #[inline]
    pub(super) fn are_waiting(&self, counters: &Counters) -> bool {
        counters.reported != self.taken
    }

    /// Empties the error queues of these sockets. False: one has more than is taken at once.
    pub(super) fn take<'a>(&mut self, sockets: impl Iterator<Item = &'a LocalFd>, counters: &Counters) -> bool {
        self.taken = counters.reported;
        let mut all = true;
        for socket in sockets {
            let mut left = REPORTS_MAX;
            while left > 0 && self.take_one(socket) {
                left -= 1;
            }
            all &= left > 0;
        }
        all
    }

    pub(super) fn poll_notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    /// Takes the oldest of a socket's; false when there is none.
    fn take_one(&mut self, socket: &LocalFd) -> bool {
        let mut name = RawAddress::new();
        let mut quoted = [0u8; QUOTED_MAX_BYTES];
        let mut control = Room([0; CONTROL_BYTES]);
        let mut buffer = iovec { iov_base: quoted.as_mut_ptr().cast(), iov_len: quoted.len() };
        // SAFETY: a header of zeros has no addresses and no lengths, and is valid.
        let mut header: msghdr = unsafe { std::mem::zeroed() };
        header.msg_name = (&raw mut name).cast();
        header.msg_namelen = RawAddress::ROOM;
        header.msg_iov = &raw mut buffer;
        header.msg_iovlen = 1;
        header.msg_control = control.0.as_mut_ptr().cast();
        header.msg_controllen = CONTROL_BYTES as _;
        // SAFETY: the header points to room of the told lengths, which nothing else touches until the call returns. The
        // error queue never blocks.
        let length = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, libc::MSG_ERRQUEUE) };
        let Ok(length) = usize::try_from(length) else { return false };
        #[allow(clippy::unnecessary_cast, reason = "the type differs between C libraries")]
        let told = control.0.get(..header.msg_controllen as usize).unwrap_or(&[]);
        if say_refused(told)
            && let Some(to) = name.get(header.msg_namelen)
        {
            self.note(to, quoted.get(..length).unwrap_or(&quoted));
        }
        true
    }

    fn note(&mut self, to: SocketAddr, quoted: &[u8]) {
        if self.notices.len() >= NOTICES_MAX {
            self.notices.pop_front();
        }
        self.notices.push_back(Notice::new(to.into(), quoted));
    }
}

/// Room for the control messages of a report.
#[repr(C, align(8))]
struct Room([u8; CONTROL_BYTES]);

/// Whether control messages tell that the port of the destination is nobody's, as its host says. All else (no route, a
/// datagram too long) is about the way, which may be another soon.
fn say_refused(control: &[u8]) -> bool {
    let is_error =
        |kind| matches!(kind, (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR));
    let error = messages(control).find(|(kind, data)| is_error(*kind) && data.len() >= size_of::<sock_extended_err>());
    error.is_some_and(|(_, data)| {
        // SAFETY: that many bytes are there, any are a valid one, and the read needs no alignment.
        let error = unsafe { data.as_ptr().cast::<sock_extended_err>().read_unaligned() };
        let told = matches!(error.ee_origin, libc::SO_EE_ORIGIN_ICMP | libc::SO_EE_ORIGIN_ICMP6);
        told && error.ee_errno as c_int == libc::ECONNREFUSED
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_can_be_read() {
        for fill in 0..=255u8 {
            for length in 0..=CONTROL_BYTES {
                assert!(!say_refused(&[fill; CONTROL_BYTES][..length]));
            }
        }
    }
}
