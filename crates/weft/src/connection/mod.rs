//! Connections: two endpoints that agreed to talk to each other, and to nobody else.
//!
//! Reliable endpoints need no connection to talk. A connection adds what programs of connected transports expect: a
//! [`Listener`] at an address that is known, a [`Request`] with private data that is accepted or rejected, and news when
//! the other end is gone. Data then goes through the endpoints as always, on either road.
//!
//! A [`Manager`] belongs to a domain and looks after the connections of its endpoints; a [`Listener`] has a domain of its
//! own. Both are polled for what happened ([`Manager::poll`], [`Listener::poll`]), or slept on: together with other
//! things by their descriptors, which follow the rule of [`CompletionQueue::descriptor`](crate::CompletionQueue).
//!
//! ```
//! use std::time::Duration;
//! use weft::connection::{Event, Listener, Manager};
//! use weft::{Fabric, Progress};
//!
//! let patience = Some(Duration::from_secs(10));
//! let fabric = Fabric::new("doc")?;
//! let make = || fabric.domain().progress(Progress::Automatic).udp("127.0.0.1:0");
//!
//! // One process listens.
//! let listener = Listener::new(&make()?)?;
//! let server = make()?;
//! let server_manager = Manager::new(&server)?;
//! let server_queue = server.completion_queue(64);
//!
//! // Another one connects.
//! let client = make()?;
//! let client_manager = Manager::new(&client)?;
//! let client_queue = client.completion_queue(64);
//! let client_end = client.endpoint(&client_queue)?;
//! let asking = client_manager.connect(&client_end, listener.address(), 1, b"may I?")?;
//!
//! let request = listener.wait(patience)?.expect("in time");
//! assert_eq!(request.data(), b"may I?");
//! let server_end = server.endpoint(&server_queue)?;
//! let answering = server_manager.accept(request, &server_end, 2, b"welcome")?;
//!
//! let Some(Event::Connected { context: 1, peer: to_server, data, .. }) = client_manager.wait(patience)? else {
//!     panic!("not connected")
//! };
//! assert_eq!(data, b"welcome");
//! assert!(matches!(server_manager.wait(patience)?, Some(Event::Connected { context: 2, .. })));
//!
//! server_end.receive(vec![0; 64])?;
//! client_end.send(to_server, b"hello".to_vec())?;
//! assert_eq!(server_queue.wait(patience)?.expect("in time").into_bytes()?, b"hello");
//!
//! drop(asking);
//! assert!(matches!(server_manager.wait(patience)?, Some(Event::Shutdown { context: 2 })));
//! # drop(answering);
//! # Ok::<(), weft::Error>(())
//! ```
//!
//! # What is promised
//! - Both ends are restricted to each other ([`Endpoint::restrict_to`]), the accepting one when it accepts, the connecting
//!   one when it hears of it. They stay so after the end of the connection.
//! - Of each connection exactly one of [`Event::Connected`], [`Event::Refused`] and [`Event::Failed`] is told, then at
//!   most one [`Event::Shutdown`]; nothing after the user has shut it down or dropped its handle.
//! - A request reaches the listener's user once, however often it had to be sent.
//! - The accepting endpoint can be sent to as soon as the connecting one hears that it is connected.
//! - The end of a connection has no order with its data: messages that were sent before may still be received after
//!   [`Event::Shutdown`].
//!
//! # How the death of a peer is heard of
//! A manager that closes says so for all its connections. Beyond that each manager leaves one message with every manager
//! that it has connections to; nobody receives it, and it fails when its target is gone. On the road through shared memory
//! the kernel tells that at once, whatever the peer's progress. As packets the engine asks the peer's NIC five times a
//! second and gives up after [`Config::give_up_us`](crate::Config), or within about a second where the peer's host says
//! that nobody has its port any more; that is only done if the peer said that its NIC works
//! with automatic progress, as one that is only busy would seem dead otherwise. In the one case that is left, packets to
//! a NIC with manual progress, death is noticed when something is sent to it: who sees
//! [`Failure::OutcomeUnknown`](crate::Failure::OutcomeUnknown) on a connected endpoint calls [`Connection::lost`].

mod hub;
mod message;

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use weft_core::address::{Address, PeerId};

use self::hub::{Hub, RawRequest};
use crate::domain::Domain;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::limits::CONNECTION_PATIENCE_US;

/// The number of a listener's endpoint, so that its socket is all that one has to know of it.
pub const LISTENER_NUMBER: u32 = 0;

/// Where the listener at a socket is.
#[must_use]
pub fn listener_at(socket: SocketAddr) -> Address {
    Address { socket, endpoint: LISTENER_NUMBER }
}

/// What can be chosen about a manager or a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How long the answer to a request, and the confirmation of an acceptance, is waited for; `None`: for ever. Two
    /// minutes unless chosen. A listener of which nothing is heard is waited for as long, since its process may be stopped
    /// or kept from the processor; where its NIC or its host says that nobody is there, that is told at once.
    pub patience: Option<Duration>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { patience: Some(Duration::from_micros(CONNECTION_PATIENCE_US)) }
    }
}

/// What happened to a connection, named by the context that its user chose.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The two ends are connected.
    Connected {
        /// The user's name for the connection.
        context: u64,
        /// The other end's endpoint: what operations take.
        peer: PeerId,
        /// Its address.
        address: Address,
        /// What the accepting side sent along; the accepting side itself gets nothing.
        data: Vec<u8>,
    },
    /// The listener's user said no.
    Refused {
        /// The user's name for the connection.
        context: u64,
        /// What it sent along.
        data: Vec<u8>,
    },
    /// There was no yes and no no.
    Failed {
        /// The user's name for the connection.
        context: u64,
        /// Why.
        failure: ConnectFailure,
    },
    /// The other end has ended a connection that was, or is gone.
    Shutdown {
        /// The user's name for the connection.
        context: u64,
    },
}

impl Event {
    /// The user's name for the connection.
    #[must_use]
    pub fn context(&self) -> u64 {
        match *self {
            Event::Connected { context, .. }
            | Event::Refused { context, .. }
            | Event::Failed { context, .. }
            | Event::Shutdown { context } => context,
        }
    }
}

/// Why two endpoints were not connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectFailure {
    /// The peer: nobody listens at that address. Its NIC says so, or its host: there is no NIC.
    #[error("nobody listens at that address: start the listener first")]
    NobodyListens,
    /// The path: nothing was heard from there in time, or not any more.
    #[error("no answer from that address: check that its process lives, and the network")]
    Unreachable,
    /// The peer: it is there, and has not answered in time.
    #[error("the peer is there but did not answer in time: is its program stuck?")]
    TimedOut,
    /// The peer: what was accepted is not wanted any more.
    #[error("the peer did not want the connection any more when it was accepted")]
    Withdrawn,
    /// A local resource was used up when the answer came.
    #[error("the address vector is full: remove peers that are not needed")]
    NoResources,
}

/// Counts of what happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Requests that were heard.
    pub requests: u64,
    /// Messages that meant nothing: garbage, repetitions, and what was about connections that have ended.
    pub ignored: u64,
}

/// Looks after the connections of a domain's endpoints. Clones are handles of the same manager. It has to be polled now and
/// then, whatever the progress of its domain: messages are understood, and what was lost is sent again, in those calls.
///
/// The domain should be bound to one address: one that is bound to all of its host is known to peers on the same machine by
/// different addresses, depending on the road.
#[derive(Clone)]
pub struct Manager {
    hub: Arc<Hub>,
}

impl Manager {
    /// A manager for a domain, with the usual settings. One is enough for all endpoints of it.
    pub fn new(domain: &Domain) -> Result<Manager> {
        Manager::with(domain, Settings::default())
    }

    /// A manager for a domain.
    pub fn with(domain: &Domain, settings: Settings) -> Result<Manager> {
        Ok(Manager { hub: Arc::new(Hub::open(domain, settings, false)?) })
    }

    /// Asks a listener to connect an endpoint of this domain; returns at once. The event that tells the answer carries
    /// `context`. At most [`CONNECTION_DATA_MAX_BYTES`](crate::limits::CONNECTION_DATA_MAX_BYTES) bytes of private data go
    /// along.
    pub fn connect(&self, endpoint: &Endpoint, to: Address, context: u64, data: &[u8]) -> Result<Connection> {
        let token = self.hub.connect(endpoint, to, context, data)?;
        Ok(Connection { hub: self.hub.clone(), token, context })
    }

    /// Says yes to a request, with an endpoint of this domain, which may be another than the listener's. The endpoint can
    /// receive from now on; [`Event::Connected`] comes when the other end has heard of it.
    pub fn accept(
        &self,
        request: Request,
        endpoint: &Endpoint,
        context: u64,
        data: &[u8],
    ) -> Result<Connection, NotAccepted> {
        match self.hub.accept(&request.raw, endpoint, context, data) {
            Ok(token) => {
                request.answered();
                Ok(Connection { hub: self.hub.clone(), token, context })
            }
            Err(error) => Err(NotAccepted { error, request }),
        }
    }

    /// The oldest event, if there is one. Does a round of progress if there is not.
    pub fn poll(&self) -> Result<Option<Event>> {
        self.hub.poll_event()
    }

    /// The oldest event; sleeps until there is one, for `timeout` at most (`None`: for ever).
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Option<Event>> {
        self.hub.wait(timeout, || self.poll())
    }

    /// A descriptor for `poll`, `epoll` and event loops: readable when [`try_wait`](Manager::try_wait) was true and there
    /// may be an event. Never read from it.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.hub.descriptor()
    }

    /// Makes ready for sleep on the descriptor. False: there may be events, do not sleep.
    pub fn try_wait(&self) -> Result<bool> {
        self.hub.try_wait()
    }

    /// The domain it belongs to.
    #[must_use]
    pub fn domain(&self) -> &Domain {
        self.hub.domain()
    }

    /// Counts of what happened.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.hub.statistics()
    }
}

impl fmt::Debug for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Manager({})", self.hub.address())
    }
}

/// Hears requests at an address. It takes number 0 of its domain, which should be there for it alone; with automatic
/// progress those who ask hear of it whatever its program does. When it is dropped, requests that its user has not seen are
/// rejected, and who asks later hears that nobody listens; the domain lives on until those that were seen are answered.
pub struct Listener {
    hub: Arc<Hub>,
}

impl Listener {
    /// A listener at the address of a domain.
    pub fn new(domain: &Domain) -> Result<Listener> {
        Ok(Listener { hub: Arc::new(Hub::open(domain, Settings::default(), true)?) })
    }

    /// Where to connect to.
    #[must_use]
    pub fn address(&self) -> Address {
        self.hub.address()
    }

    /// The oldest request, if there is one. Does a round of progress if there is not.
    pub fn poll(&self) -> Result<Option<Request>> {
        let raw = self.hub.poll_request()?;
        Ok(raw.map(|raw| Request { hub: self.hub.clone(), raw: Box::new(raw), is_answered: false }))
    }

    /// The oldest request; sleeps until there is one, for `timeout` at most (`None`: for ever).
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Option<Request>> {
        self.hub.wait(timeout, || self.poll())
    }

    /// As [`Manager::descriptor`].
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.hub.descriptor()
    }

    /// As [`Manager::try_wait`].
    pub fn try_wait(&self) -> Result<bool> {
        self.hub.try_wait()
    }

    /// The domain it listens with.
    #[must_use]
    pub fn domain(&self) -> &Domain {
        self.hub.domain()
    }

    /// Counts of what happened.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.hub.statistics()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.hub.stop_listening();
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Listener({})", self.hub.address())
    }
}

/// Somebody wants to connect. Keep it as long as needed, then give it to [`Manager::accept`] or [`Request::reject`];
/// dropping it rejects it without data.
pub struct Request {
    hub: Arc<Hub>,
    raw: Box<RawRequest>,
    is_answered: bool,
}

impl Request {
    /// What was sent along.
    #[must_use]
    pub fn data(&self) -> &[u8] {
        &self.raw.data
    }

    /// The endpoint that wants to be connected.
    #[must_use]
    pub fn endpoint(&self) -> Address {
        self.raw.endpoint()
    }

    /// Says no.
    pub fn reject(self, data: &[u8]) -> Result<(), NotRejected> {
        match self.hub.reject(&self.raw, data) {
            Ok(()) => {
                self.answered();
                Ok(())
            }
            Err(error) => Err(NotRejected { error, request: self }),
        }
    }

    fn answered(mut self) {
        self.is_answered = true;
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if !self.is_answered {
            // Who cannot be told finds out by its own clock.
            let _ = self.hub.reject(&self.raw, &[]);
        }
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Request(of {}, {} bytes)", self.endpoint(), self.raw.data.len())
    }
}

/// A request that could not be answered like that, and is still to be; `?` makes it an [`Error`] and rejects it.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct NotAccepted {
    /// Why.
    #[source]
    pub error: Error,
    /// The request, as it was.
    pub request: Request,
}

/// The same of a rejection.
pub type NotRejected = NotAccepted;

impl From<NotAccepted> for Error {
    fn from(not: NotAccepted) -> Error {
        not.error
    }
}

/// One end of a connection, or of an attempt at one. Dropping it shuts it down, and gives the peer's name in the address
/// vector back if the connection brought it there; the endpoint is the user's and stays.
pub struct Connection {
    hub: Arc<Hub>,
    token: u64,
    context: u64,
}

impl Connection {
    /// The user's name for it.
    #[must_use]
    pub fn context(&self) -> u64 {
        self.context
    }

    /// The other end's endpoint, once it is connected.
    #[must_use]
    pub fn peer(&self) -> Option<PeerId> {
        self.hub.peer_of(self.token).map(|(peer, _)| peer)
    }

    /// The other end's address, once it is connected.
    #[must_use]
    pub fn address(&self) -> Option<Address> {
        self.hub.peer_of(self.token).map(|(_, address)| address)
    }

    /// Whether it is connected now.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.hub.is_connected(self.token)
    }

    /// Ends it: the other end is told, here is no further event. What was sent before may still arrive.
    pub fn shutdown(&self) {
        self.hub.shut_down(self.token);
    }

    /// Says that an operation on it failed with [`Failure::OutcomeUnknown`](crate::Failure::OutcomeUnknown), as they do
    /// when the peer is gone: [`Event::Shutdown`] follows if it was connected.
    pub fn lost(&self) {
        self.hub.lost(self.token);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.hub.release_connection(self.token);
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connection({} of {})", self.context, self.hub.address())
    }
}
