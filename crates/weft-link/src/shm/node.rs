//! The meeting point of a NIC: who is here under which address, and what the sockets of all channels say.
//!
//! A connector makes the memory of the channel and sends it with its [`Hello`] in the first message; it does not wait
//! for an answer. The listener checks the user, the memory, and that the connector is who it says it is: the process
//! that listens under the address which the hello names. Whoever does not pass is hung up on.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use weft_core::address::Address;
use weft_mem::fork::LocalFd;

use super::channel::{Barrier, Channel, ChannelId, InitiatorChannel, NOTE, TargetChannel};
use super::layout::VERSION;
use super::region::Region;
use super::socket::{self, MESSAGE_MAX_BYTES, Name, Received, check};
use crate::limits::{
    ACCEPTS_MAX, CHANNELS_MAX, CHANNELS_OF_PEER_MAX, NODE_EVENTS_MAX, NOTES_MAX, STRANGER_WAIT_MS, STRANGERS_MAX,
};

const STRANGER_WAIT: Duration = Duration::from_millis(STRANGER_WAIT_MS);

/// What the initiator of a channel says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The initiator's endpoint, as [`Address::to_bytes`] writes it. That its node is where it says is checked.
    pub source: [u8; Address::BYTES],
    /// The endpoint that it wants to reach. Not checked here.
    pub target_endpoint: u32,
    /// Not looked at here.
    pub session: u32,
    /// Not looked at here.
    pub words: [u64; 4],
}

impl Hello {
    const MAGIC: [u8; 4] = *b"weft";
    const BYTES: usize = 8 + Address::BYTES + 8 + 32;

    pub(super) fn emit(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Hello::BYTES);
        bytes.extend(Hello::MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(self.source);
        bytes.extend(self.target_endpoint.to_le_bytes());
        bytes.extend(self.session.to_le_bytes());
        self.words.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        bytes
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Hello> {
        let (magic, rest) = bytes.split_first_chunk::<4>()?;
        let (version, rest) = rest.split_first_chunk::<4>()?;
        let (source, rest) = rest.split_first_chunk()?;
        let (target_endpoint, rest) = rest.split_first_chunk()?;
        let (session, rest) = rest.split_first_chunk()?;
        let (words, rest) = rest.as_chunks::<8>();
        let words: [[u8; 8]; 4] = words.try_into().ok()?;
        let right = *magic == Hello::MAGIC && u32::from_le_bytes(*version) == VERSION && rest.is_empty();
        right.then(|| Hello {
            source: *source,
            target_endpoint: u32::from_le_bytes(*target_endpoint),
            session: u32::from_le_bytes(*session),
            words: words.map(u64::from_le_bytes),
        })
    }
}

/// What happened at a node.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "rare, and moved once")]
pub enum NodeEvent {
    /// A peer made a channel to us.
    Accepted(TargetChannel, Hello),
    /// A peer sent a note.
    Note {
        /// By which channel.
        channel: ChannelId,
        /// What it says.
        bytes: Vec<u8>,
        /// What came with it.
        descriptors: Vec<OwnedFd>,
    },
    /// The peer is gone, or does not want us. Records that it pushed before can still be taken.
    Closed(ChannelId),
}

/// Why there is no channel.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No process of this user on this machine has the address.
    #[error("no process of this user on this machine has that address")]
    Nobody,
    /// A process of another user has the name: it is not trusted.
    #[error("a process of another user has that address")]
    OtherUser,
    /// This node has [`CHANNELS_MAX`] channels.
    #[error("a node has {} channels at most: close one", CHANNELS_MAX)]
    TooMany,
    /// The system said no. `WouldBlock`: too many connections wait there; try again.
    #[error("cannot connect to the node at that address: {0}")]
    System(io::Error),
}

impl From<io::Error> for ConnectError {
    fn from(error: io::Error) -> ConnectError {
        ConnectError::System(error)
    }
}

/// What a socket of the epoll set is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Token {
    Listener,
    Channel(ChannelId),
    Stranger(u32),
}

impl Token {
    fn to_word(self) -> u64 {
        match self {
            Token::Listener => 0,
            Token::Channel(id) => 1 << 32 | u64::from(id.0),
            Token::Stranger(number) => 2 << 32 | u64::from(number),
        }
    }

    fn from_word(word: u64) -> Token {
        match word >> 32 {
            0 => Token::Listener,
            1 => Token::Channel(ChannelId(word as u32)),
            _ => Token::Stranger(word as u32),
        }
    }
}

/// No process has this number.
const NOBODY: i32 = 0;

/// A connection that has not said hello.
struct Stranger {
    number: u32,
    socket: LocalFd,
    pid: i32,
    since: Instant,
}

/// The meeting point of a NIC.
pub struct Node {
    epoll: LocalFd,
    listener: LocalFd,
    user: u32,
    barrier: Barrier,
    /// The sockets of channels, by their number. The channel holds its socket too.
    channels: Vec<Option<Arc<LocalFd>>>,
    /// The processes that made them, if it was not us.
    visitors: Vec<i32>,
    /// Numbers that can be used again.
    free: Vec<u32>,
    /// Numbers that can be used again after the next poll: events with them may be under way to the user.
    retired: Vec<u32>,
    /// Channels whose peer is gone, and which were not closed yet.
    ended: Vec<ChannelId>,
    strangers: Vec<Stranger>,
    next_stranger: u32,
    buffer: Box<[u8]>,
    /// Kept for [`Node::turn_away`].
    spare: Option<OwnedFd>,
}

impl Node {
    /// Listens under the address of a NIC, which is that of its UDP socket, so that nobody else can have it.
    /// `AddrInUse`: another node of this user listens there.
    pub fn open(local: SocketAddr) -> io::Result<Node> {
        // SAFETY: no memory is involved, and it cannot fail.
        let user = unsafe { libc::geteuid() };
        let listener = socket::listen(&Name::new(user, local))?;
        // SAFETY: no memory is involved.
        let epoll = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: the kernel has just given us this descriptor, and nobody else has it.
        let epoll = LocalFd::from(unsafe { OwnedFd::from_raw_fd(epoll) });
        let spare = Some(epoll.as_fd().try_clone_to_owned()?);
        let node = Node {
            epoll,
            listener,
            user,
            barrier: Barrier::register(),
            channels: Vec::new(),
            visitors: Vec::new(),
            free: Vec::new(),
            retired: Vec::new(),
            ended: Vec::new(),
            strangers: Vec::new(),
            next_stranger: 0,
            buffer: vec![0; MESSAGE_MAX_BYTES].into_boxed_slice(),
            spare,
        };
        node.watch(node.listener.as_fd(), Token::Listener)?;
        Ok(node)
    }

    /// Takes itself for another user's.
    #[cfg(test)]
    pub(super) fn pretend(&mut self, user: u32) {
        self.user = user;
    }

    /// Makes a channel to the node at an address. It can be used at once; whether the other side wants it shows later:
    /// if not, it is closed. Never waits.
    pub fn connect(&mut self, to: SocketAddr, hello: &Hello) -> Result<InitiatorChannel, ConnectError> {
        let (socket, peer) = self.reach(to)?.ok_or(ConnectError::Nobody)?;
        if peer.uid != self.user {
            return Err(ConnectError::OtherUser);
        }
        let id = self.allocate().ok_or(ConnectError::TooMany)?;
        let made = Region::create().and_then(|(region, memory)| {
            socket::send(socket.as_fd(), [&hello.emit(), &[]], &[memory.as_fd()])?;
            self.watch(socket.as_fd(), Token::Channel(id))?;
            Ok(region)
        });
        match made {
            Ok(region) => Ok(InitiatorChannel::new(self.channel(id, peer.pid, region, socket))),
            Err(error) => {
                self.free.push(id.0);
                Err(error.into())
            }
        }
    }

    /// Readable when [`Node::poll`] has something to do.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Does what is to be done now, and says what happened. True: there was something, if only a wake.
    pub fn poll(&mut self, events: &mut Vec<NodeEvent>) -> io::Result<bool> {
        self.free.append(&mut self.retired);
        let mut ready = [libc::epoll_event { events: 0, u64: 0 }; NODE_EVENTS_MAX];
        // SAFETY: there is room for as many events as we say.
        let count = unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), ready.as_mut_ptr(), NODE_EVENTS_MAX as i32, 0) };
        let count = match check(count) {
            Ok(count) => count as usize,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            Err(error) => return Err(error),
        };
        for event in ready.iter().take(count) {
            match Token::from_word(event.u64) {
                Token::Listener => self.accept(events),
                Token::Channel(id) => self.serve(id, events),
                Token::Stranger(number) => self.welcome(number, events),
            }
        }
        if !self.strangers.is_empty() {
            self.strangers.retain(|stranger| stranger.since.elapsed() < STRANGER_WAIT);
        }
        Ok(count > 0)
    }

    /// Forgets a channel; its number is used again later. The connection ends when the [`Channel`] is dropped.
    pub fn close(&mut self, channel: ChannelId) {
        if let Some(socket) = self.channels.get_mut(channel.0 as usize).and_then(Option::take) {
            if let Some(visitor) = self.visitors.get_mut(channel.0 as usize) {
                *visitor = NOBODY;
            }
            self.ended.retain(|ended| *ended != channel);
            self.ignore(socket.as_fd());
            self.retired.push(channel.0);
        }
    }

    /// Between [`Receiver::announce_sleep`](super::Receiver::announce_sleep) for some channels and the last look at
    /// them: what any peer pushes and we do not see then will wake us.
    pub fn sleep_barrier(&self) {
        self.barrier.run();
    }

    /// A connection to whoever of this user listens for an address, and who that is.
    fn reach(&self, to: SocketAddr) -> io::Result<Option<(LocalFd, socket::Credentials)>> {
        for name in socket::candidates(self.user, to) {
            if let Some(socket) = socket::connect(&name)? {
                let credentials = socket::credentials(socket.as_fd())?;
                return Ok(Some((socket, credentials)));
            }
        }
        Ok(None)
    }

    fn channel(&mut self, id: ChannelId, pid: i32, region: Region, socket: LocalFd) -> Channel {
        let socket = Arc::new(socket);
        if let Some(place) = self.channels.get_mut(id.0 as usize) {
            *place = Some(socket.clone());
        }
        Channel::new(id, pid, region, socket, self.barrier)
    }

    /// A number for a channel.
    fn allocate(&mut self) -> Option<ChannelId> {
        // Channels that were dropped without a word, after their peer was gone.
        let dropped = |id: &ChannelId| {
            self.channels
                .get(id.0 as usize)
                .and_then(Option::as_ref)
                .is_none_or(|socket| Arc::strong_count(socket) == 1)
        };
        let dropped: Vec<ChannelId> = self.ended.iter().copied().filter(dropped).collect();
        dropped.into_iter().for_each(|id| self.close(id));
        if let Some(number) = self.free.pop() {
            return Some(ChannelId(number));
        }
        if self.channels.len() >= CHANNELS_MAX {
            return None;
        }
        self.channels.push(None);
        Some(ChannelId(self.channels.len() as u32 - 1))
    }

    fn accept(&mut self, events: &mut Vec<NodeEvent>) {
        for _ in 0..ACCEPTS_MAX {
            let socket = match socket::accept(self.listener.as_fd()) {
                Ok(Some(socket)) => socket,
                Ok(None) => break,
                Err(_) => {
                    self.turn_away();
                    break;
                }
            };
            let Ok(peer) = socket::credentials(socket.as_fd()) else { continue };
            // A process that we cannot see (another PID namespace) has no number by which it could be known.
            if peer.uid != self.user || peer.pid <= 0 {
                continue;
            }
            let number = self.next_stranger;
            self.next_stranger = number.wrapping_add(1);
            if self.watch(socket.as_fd(), Token::Stranger(number)).is_err() {
                continue;
            }
            if self.strangers.len() >= STRANGERS_MAX {
                self.strangers.remove(0);
            }
            self.strangers.push(Stranger { number, socket, pid: peer.pid, since: Instant::now() });
            // An honest one says hello with the connection: many of them at once must not push each other out.
            self.welcome(number, events);
        }
    }

    /// There is no descriptor left for who waits: hangs up on it, with the one that is spare for this. Otherwise the
    /// set would stay readable, and nobody could sleep on it.
    fn turn_away(&mut self) {
        self.spare = None;
        drop(socket::accept(self.listener.as_fd()));
        self.spare = self.epoll.as_fd().try_clone_to_owned().ok();
    }

    /// A stranger has said something, or left.
    fn welcome(&mut self, number: u32, events: &mut Vec<NodeEvent>) {
        let Some(index) = self.strangers.iter().position(|stranger| stranger.number == number) else { return };
        let Some(stranger) = self.strangers.get(index) else { return };
        let received = socket::receive(stranger.socket.as_fd(), &mut self.buffer);
        if matches!(received, Received::Nothing) {
            return;
        }
        let stranger = self.strangers.remove(index);
        let Received::Message(length, descriptors) = received else { return };
        let Some(hello) = self.buffer.get(..length).and_then(Hello::parse) else { return };
        let [memory] = descriptors.as_slice() else { return };
        let Ok(region) = Region::accept(memory.as_fd()) else { return };
        let ours = i64::from(stranger.pid) == i64::from(std::process::id());
        if !ours && self.accepted_from(stranger.pid) >= CHANNELS_OF_PEER_MAX
            || !self.is_who_it_says(stranger.pid, &hello)
        {
            return;
        }
        let Some(id) = self.allocate() else { return };
        if self.rewatch(stranger.socket.as_fd(), Token::Channel(id)).is_err() {
            self.free.push(id.0);
            return;
        }
        let channel = TargetChannel::new(self.channel(id, stranger.pid, region, stranger.socket));
        if self.visitors.len() <= id.0 as usize {
            self.visitors.resize(id.0 as usize + 1, NOBODY);
        }
        if let Some(visitor) = self.visitors.get_mut(id.0 as usize) {
            *visitor = stranger.pid;
        }
        events.push(NodeEvent::Accepted(channel, hello));
    }

    /// Channels that a process has made to us.
    fn accepted_from(&self, pid: i32) -> usize {
        self.visitors.iter().filter(|visitor| **visitor == pid).count()
    }

    /// Whether a process listens under the address that it names as its own.
    fn is_who_it_says(&self, pid: i32, hello: &Hello) -> bool {
        if i64::from(pid) == i64::from(std::process::id()) {
            return true;
        }
        let source = Address::from_bytes(&hello.source).socket;
        // The other node sees a connection that says nothing and ends.
        matches!(self.reach(source), Ok(Some((_, listener))) if listener.pid == pid && listener.uid == self.user)
    }

    /// A channel's socket has something.
    fn serve(&mut self, id: ChannelId, events: &mut Vec<NodeEvent>) {
        let Some(socket) = self.channels.get(id.0 as usize).and_then(Option::clone) else { return };
        for _ in 0..NOTES_MAX {
            match socket::receive(socket.as_fd(), &mut self.buffer) {
                Received::Nothing => return,
                Received::Message(length, descriptors) => {
                    if let Some((&NOTE, note)) = self.buffer.get(..length).and_then(|bytes| bytes.split_first()) {
                        events.push(NodeEvent::Note { channel: id, bytes: note.to_vec(), descriptors });
                    }
                }
                Received::TooLong | Received::Closed => {
                    self.ignore(socket.as_fd());
                    socket::hang_up(socket.as_fd());
                    // The node's and ours here: nobody else has it, so nobody wants to know.
                    if Arc::strong_count(&socket) == 2 {
                        self.close(id);
                    } else {
                        self.ended.push(id);
                        events.push(NodeEvent::Closed(id));
                    }
                    return;
                }
            }
        }
    }

    fn watch(&self, socket: BorrowedFd<'_>, token: Token) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, socket, token)
    }

    fn rewatch(&self, socket: BorrowedFd<'_>, token: Token) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, socket, token)
    }

    fn ignore(&self, socket: BorrowedFd<'_>) {
        // One that is not watched any more is what we want.
        let _ = self.control(libc::EPOLL_CTL_DEL, socket, Token::Listener);
    }

    fn control(&self, operation: i32, socket: BorrowedFd<'_>, token: Token) -> io::Result<()> {
        let events = (libc::EPOLLIN | libc::EPOLLRDHUP) as u32;
        let mut event = libc::epoll_event { events, u64: token.to_word() };
        // SAFETY: both descriptors are open, and `event` is a valid structure that lives through the call.
        check(unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), operation, socket.as_raw_fd(), &raw mut event) })?;
        Ok(())
    }
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let channels = self.channels.iter().flatten().count();
        write!(f, "Node({channels} channels, {} strangers)", self.strangers.len())
    }
}
