//! A link over a UDP socket of the kernel.
//!
//! What makes it fast: one system call moves up to 64 KiB to one destination, cut and joined by the kernel
//! (`UDP_SEGMENT`, `UDP_GRO`); several sends or receives share a call (`sendmmsg`, `recvmmsg`); and a lone datagram,
//! which is what latency is about, takes the plain call with nothing beside it. Read `send.rs` and `receive.rs` next.

pub(crate) mod address;
mod control;
mod favourite;
mod netlink;
mod receive;
mod report;
mod route;
mod send;
pub(crate) mod socket;
#[cfg(test)]
mod tests;

use std::cell::OnceCell;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use weft_core::limits::MTU_MIN_BYTES;
use weft_mem::fork::LocalFd;

use weft_core::session::Path;

use crate::limits::CLASSES;
use crate::link::{Counters, Incoming, Link, Notice, Outgoing, SendError};
use crate::wait::ticks;

use favourite::Favourite;
use receive::{Pace, Receiver};
use report::Reports;
use route::Routes;
use send::Sender;

/// ECN-capable transport, code point 0 (RFC 3168): routers mark instead of dropping.
const ECT_0: u8 = 0b10;

/// How a [`UdpLink`] is set up.
#[derive(Clone, Debug)]
pub struct Config {
    /// DSCP of each message class, 0 to 63.
    pub dscp: [u8; CLASSES],
    /// Bytes of the socket's receive buffer, as far as the system permits.
    pub receive_buffer_bytes: usize,
    /// Bytes of its send buffer.
    pub send_buffer_bytes: usize,
    /// Let the kernel cut and join, where it can.
    pub offload: bool,
    /// Have a second socket, connected to the peer that single datagrams keep going to: faster by a tenth.
    pub favourite: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            dscp: [0; CLASSES],
            receive_buffer_bytes: 8 << 20,
            send_buffer_bytes: 4 << 20,
            offload: true,
            favourite: true,
        }
    }
}

/// A link over one UDP socket, IPv4 or IPv6.
pub struct UdpLink {
    socket: LocalFd,
    local: SocketAddr,
    sender: Sender,
    receiver: Receiver,
    pace: Pace,
    favourite: Favourite,
    reports: Reports,
    /// Made when somebody wants to sleep: being watched costs a socket time for each datagram.
    watcher: OnceCell<LocalFd>,
    /// The last batch that was not taken was for the favourite's socket.
    favourite_is_full: bool,
    /// The watcher waits for room, too: of the favourite's socket, or of the open one.
    awaited_room: Option<bool>,
    routes: Routes,
    room_bytes: u64,
    counters: Counters,
    config: Config,
}

// SAFETY: the raw pointers inside are those of message headers, which are written anew before each call that reads
// them and never followed otherwise.
unsafe impl Send for UdpLink {}

impl UdpLink {
    /// Binds a socket to `local`; port 0 lets the kernel choose one.
    pub fn open(local: SocketAddr, config: &Config) -> io::Result<UdpLink> {
        let socket = LocalFd::from(socket::open(local)?);
        prepare(&socket, local.is_ipv6(), config)?;
        // Kernels before 4.18 do not know it; then every datagram goes alone.
        let cuts = config.offload && socket::get(&socket, libc::SOL_UDP, libc::UDP_SEGMENT).is_ok();
        socket::bind(&socket, local)?;
        let local = socket::local(&socket)?;
        // The kernel counts its own overhead too, about as much again.
        let room = socket::get(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF)? / 2;
        Ok(UdpLink {
            room_bytes: u64::try_from(room).unwrap_or(0),
            sender: Sender::new(cuts, traffic_classes(config)),
            receiver: Receiver::new(),
            pace: Pace::new(config.offload),
            favourite: Favourite::new(config.favourite),
            reports: Reports::default(),
            watcher: OnceCell::new(),
            favourite_is_full: false,
            awaited_room: None,
            routes: Routes::new(local),
            counters: Counters::default(),
            config: config.clone(),
            socket,
            local,
        })
    }

    /// Whether the kernel cuts what is sent; false once it has refused to.
    #[must_use]
    pub fn offloads(&self) -> bool {
        self.sender.offloads()
    }

    /// Looks at the favourite's socket, if there is one, and at the open one when it is its turn.
    #[inline]
    fn receive_datagrams(&mut self, sink: &mut dyn FnMut(Incoming<'_>)) -> io::Result<usize> {
        if let Some(favourite) = self.favourite.connected_mut() {
            let got = self.receiver.receive(&favourite.socket, &mut favourite.pace, sink, &mut self.counters)?;
            let now = ticks();
            if !favourite.is_turn(now) {
                return Ok(got);
            }
            let others = self.receiver.receive(&self.socket, &mut self.pace, sink, &mut self.counters);
            favourite.end_turn(now, others.as_ref().is_ok_and(|others| *others > 0));
            return others.map(|others| got + others);
        }
        self.receiver.receive(&self.socket, &mut self.pace, sink, &mut self.counters)
    }

    /// Takes what the network has said about earlier sends. While it waits, the descriptor is readable.
    #[cold]
    fn take_reports(&mut self) {
        let favourite = self.favourite.connected().map(|favourite| &favourite.socket);
        let all = self.reports.take([Some(&self.socket), favourite].into_iter().flatten(), &self.counters);
        self.sender.set_stumbled(!all);
    }

    /// Sends those before the first that may go in fragments, or that one alone.
    #[cold]
    fn send_up_to_fragments(&mut self, batch: &[Outgoing<'_>]) -> Result<usize, SendError> {
        let whole = batch.iter().take_while(|outgoing| !outgoing.may_fragment).count();
        match batch.get(..whole) {
            Some(whole @ [_, ..]) => self.send(whole),
            _ => batch.first().map_or(Ok(0), |first| self.send_in_fragments(first)),
        }
    }

    #[cold]
    fn send_in_fragments(&mut self, outgoing: &Outgoing<'_>) -> Result<usize, SendError> {
        self.favourite_is_full = false;
        self.sender.send_in_fragments(&self.socket, outgoing, &mut self.counters).map(|()| 1)
    }

    /// Connects the second socket to whom single datagrams keep going to.
    #[cold]
    fn adopt(&mut self) {
        let (ipv6, config) = (self.local.is_ipv6(), &self.config);
        let new =
            self.favourite.adopt(&self.socket, self.local, config.offload, |socket| prepare(socket, ipv6, config));
        if new && let (Some(watcher), Some(favourite)) = (self.watcher.get(), self.favourite.connected()) {
            // Without it a sleeper would miss the favourite, so it could not be one.
            if socket::watch(watcher, &favourite.socket).is_err() {
                self.favourite = Favourite::new(false);
            }
        }
    }
}

impl Link for UdpLink {
    fn local(&self) -> SocketAddr {
        self.local
    }

    fn mtu(&mut self, path: Path) -> u32 {
        self.routes.mtu(path.remote)
    }

    #[inline]
    fn send(&mut self, batch: &[Outgoing<'_>]) -> Result<usize, SendError> {
        if batch.iter().any(|outgoing| outgoing.may_fragment) {
            return self.send_up_to_fragments(batch);
        }
        let mut favourite = None;
        if let [first, others @ ..] = batch
            && others.iter().all(|other| other.path == first.path)
        {
            if self.favourite.note(first.path.remote) {
                self.adopt();
            }
            favourite = self.favourite.socket_to(first.path.remote);
            if let Some(socket) = favourite
                && others.is_empty()
                && self.sender.send_connected(socket, first)
            {
                return Ok(1);
            }
            // Where that failed, the way below finds out why.
        }
        let socket = favourite.unwrap_or(&self.socket);
        let sent = self.sender.send(socket, favourite.is_some(), batch, &mut self.counters);
        if let Err(SendError::WouldBlock) = &sent {
            self.favourite_is_full = favourite.is_some();
        }
        if let Err(SendError::TooBig { path }) = &sent {
            self.routes.forget(path.remote);
            // The kernel says it a second time, in the error queue.
            self.take_reports();
            // Nobody can cut it smaller.
            if let Some(least) = batch.first().filter(|first| first.longest() <= MTU_MIN_BYTES as usize) {
                return self.send_in_fragments(least);
            }
        }
        sent
    }

    #[inline]
    fn receive(&mut self, sink: &mut dyn FnMut(Incoming<'_>)) -> io::Result<usize> {
        if self.sender.has_rest() {
            // Whatever stops it now stops the next send too, which tells.
            let _ = self.sender.send(&self.socket, false, &[], &mut self.counters);
        }
        let got = self.receive_datagrams(sink)?;
        if self.sender.has_stumbled() || self.reports.are_waiting(&self.counters) {
            self.take_reports();
            // The error stood before what had come.
            return if got > 0 { Ok(got) } else { self.receive_datagrams(sink) };
        }
        Ok(got)
    }

    fn poll_notice(&mut self) -> Option<Notice> {
        self.reports.poll_notice()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        if self.watcher.get().is_none() {
            let watcher = socket::watcher().ok()?;
            socket::watch(&watcher, &self.socket).ok()?;
            if let Some(favourite) = self.favourite.connected() {
                socket::watch(&watcher, &favourite.socket).ok()?;
            }
            // Nobody else can have set it: the link is not shared between threads.
            let _ = self.watcher.set(watcher);
        }
        self.watcher.get().map(AsFd::as_fd)
    }

    #[cold]
    fn watch_room(&mut self, wanted: bool) -> bool {
        let awaited = wanted.then_some(self.favourite_is_full);
        if self.descriptor().is_none() || awaited == self.awaited_room {
            return self.awaited_room.is_some();
        }
        let Some(watcher) = self.watcher.get() else { return false };
        // One that has room would keep the sleeper awake, so only that is watched which has none.
        let open = socket::watch_room(watcher, &self.socket, awaited == Some(false)).is_ok();
        let favourite = self.favourite.connected().map(|favourite| &favourite.socket);
        let favourite =
            favourite.is_none_or(|socket| socket::watch_room(watcher, socket, awaited == Some(true)).is_ok());
        self.awaited_room = awaited.filter(|_| open && favourite);
        self.awaited_room.is_some()
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    fn room_bytes(&self) -> u64 {
        self.room_bytes
    }
}

/// Traffic class of each message class.
fn traffic_classes(config: &Config) -> [u8; CLASSES] {
    config.dscp.map(|dscp| dscp << 2 | ECT_0)
}

/// Sets the options of a socket that is not yet bound.
fn prepare(socket: &LocalFd, ipv6: bool, config: &Config) -> io::Result<()> {
    let [default_class, ..] = traffic_classes(config).map(i32::from);
    socket::permit_fragments(socket, ipv6, false)?;
    if ipv6 {
        // One family for each link, so that an address has one form only.
        socket::set(socket, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1)?;
        socket::set(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1)?;
        socket::set(socket, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, default_class)?;
        // A wish only: without it those who are gone are noticed later.
        let _ = socket::set(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 1);
    } else {
        socket::set(socket, libc::IPPROTO_IP, libc::IP_RECVTOS, 1)?;
        socket::set(socket, libc::IPPROTO_IP, libc::IP_TOS, default_class)?;
        // A wish only, as above.
        let _ = socket::set(socket, libc::IPPROTO_IP, libc::IP_RECVERR, 1);
    }
    socket::set_buffers(socket, config.receive_buffer_bytes, config.send_buffer_bytes);
    Ok(())
}

impl fmt::Debug for UdpLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UdpLink").field("local", &self.local).field("counters", &self.counters).finish_non_exhaustive()
    }
}
