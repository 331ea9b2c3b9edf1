//! What managers and listeners share: a hidden endpoint with its queue and receives, the messages under way, the peers
//! that are watched, and the connections. The rules of the protocol are in `message.rs`.
//!
//! All of it stands behind one lock, which is taken before that of the NIC. Events are only made under it, and whoever
//! sleeps is signalled when it is let go.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use weft_core::address::{Address, PeerId};
use weft_core::command::Level;
use weft_core::event::Failure;
use weft_link::wait::WaitSet;

use super::message::{Kind, MESSAGE_MAX_BYTES, Message};
use super::{ConnectFailure, Event, LISTENER_NUMBER, Settings, Statistics};
use crate::completion_queue::{Completion, CompletionQueue};
use crate::domain::Domain;
use crate::driver::Progress;
use crate::endpoint::{Endpoint, EndpointOptions};
use crate::error::{Error, Result};
use crate::limits::{
    CONNECTION_ANSWERS_MAX, CONNECTION_ATTEMPTS, CONNECTION_COMPLETIONS_PER_TURN, CONNECTION_DATA_MAX_BYTES,
    CONNECTION_DISCARDS_MAX, CONNECTION_QUEUE_CAPACITY, CONNECTION_RECEIVES, CONNECTION_REQUEST_ATTEMPTS,
    CONNECTION_REQUESTS_MAX, CONNECTION_SEEN_MAX, CONNECTION_SENDS_MAX, CONNECTION_SILENCE_US, CONNECTION_WATCHES_MAX,
    CONNECTIONS_MAX, LINGER_MAX_US,
};
use crate::operation::Options;
use crate::raw;

mod sending;

/// The tag of messages that nobody receives: they end when their target does.
const WATCH_TAG: u64 = 0x5745_4654_5741_5443;

pub(super) struct Hub {
    state: Mutex<State>,
    set: WaitSet,
    settings: Settings,
    endpoint: Endpoint,
    queue: CompletionQueue,
}

#[derive(Default)]
struct State {
    connections: HashMap<u64, Connection>,
    /// The token of the connection that an endpoint, named by its number, has.
    by_endpoint: HashMap<u32, u64>,
    deadlines: BTreeSet<(Instant, u64)>,
    peers: HashMap<Address, Peer>,
    under_way: HashMap<u64, Outgoing>,
    watches: HashMap<u64, Address>,
    outbox: VecDeque<Outgoing>,
    next_context: u64,
    receives_missing: usize,
    events: VecDeque<(u64, Event)>,
    /// Whether requests are for the user, or refused.
    listens: bool,
    requests: VecDeque<RawRequest>,
    seen: HashSet<(Address, u64)>,
    seen_in_order: VecDeque<(Address, u64)>,
    statistics: Statistics,
    /// Somebody may sleep on the set.
    sleeps: bool,
    /// What a sleeper waits for may have come, or its time may be another.
    changed: bool,
    /// Closed when the lock is let go: closing may take a while.
    retired: Vec<Endpoint>,
}

/// One end of a connection.
struct Connection {
    context: u64,
    phase: Phase,
    /// The endpoint's number.
    number: u32,
    /// Who is asked, then the manager of the other end. Held in `peers` until the connection has ended.
    manager: Address,
    /// The other end's token.
    remote: u64,
    /// The other end's NIC answers by itself.
    automatic: bool,
    /// Messages about it whose fate is not known.
    saying: u32,
    /// The watch of its manager ended while something was being said to that: if it arrives, it was the last.
    doubtful: bool,
    peer: Option<NamedPeer>,
    deadline: Option<Instant>,
}

enum Phase {
    Requesting(Endpoint),
    /// Waits for the confirmation.
    Accepting,
    Connected,
    Ended,
}

#[derive(Clone, Copy)]
struct NamedPeer {
    peer: PeerId,
    address: Address,
    /// The name was not there before.
    added: bool,
}

/// A manager or listener that something is said to, or that stands behind a connection.
struct Peer {
    peer: PeerId,
    added: bool,
    users: usize,
    /// The context of the message that ends when this peer does.
    watch: Option<u64>,
    /// It was asked to end that.
    unwatching: bool,
}

struct Outgoing {
    to: Address,
    kind: Kind,
    /// The connection it is about.
    token: u64,
    bytes: Vec<u8>,
    attempts: u32,
    /// When it was sent last.
    sent: Instant,
}

/// A request as the listener keeps it.
pub(super) struct RawRequest {
    /// The manager that asks.
    pub(super) from: Address,
    pub(super) token: u64,
    pub(super) endpoint: u32,
    pub(super) automatic: bool,
    pub(super) data: Vec<u8>,
}

impl RawRequest {
    /// The endpoint to be connected.
    pub(super) fn endpoint(&self) -> Address {
        Address { socket: self.from.socket, endpoint: self.endpoint }
    }
}

impl Hub {
    pub(super) fn open(domain: &Domain, settings: Settings, listens: bool) -> Result<Hub> {
        let queue = domain.completion_queue(CONNECTION_QUEUE_CAPACITY);
        let options = EndpointOptions::with_queue(crate::EndpointKind::Reliable, &queue);
        let number = listens.then_some(LISTENER_NUMBER);
        let endpoint = domain.open_endpoint(EndpointOptions { number, ..options })?;
        let set = WaitSet::new(&[queue.descriptor()?]).map_err(Error::system("make a descriptor to wait on"))?;
        let state = State { listens, receives_missing: CONNECTION_RECEIVES, ..State::default() };
        let hub = Hub { state: Mutex::new(state), set, settings, endpoint, queue };
        hub.locked(|state| hub.post_receives(state));
        Ok(hub)
    }

    pub(super) fn domain(&self) -> &Domain {
        self.endpoint.domain()
    }

    pub(super) fn address(&self) -> Address {
        self.endpoint.address()
    }

    pub(super) fn statistics(&self) -> Statistics {
        self.locked(|state| state.statistics)
    }

    /// Works on the state; afterwards wakes who sleeps, and closes what was let go.
    fn locked<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let result = work(&mut state);
        let retired = std::mem::take(&mut state.retired);
        if std::mem::take(&mut state.changed) && std::mem::take(&mut state.sleeps) {
            self.set.signal();
        }
        drop(state);
        drop(retired);
        result
    }
}

/// Waiting.
impl Hub {
    pub(super) fn poll_event(&self) -> Result<Option<Event>> {
        self.poll_with(|state| state.events.pop_front().map(|(_, event)| event))
    }

    pub(super) fn poll_request(&self) -> Result<Option<RawRequest>> {
        self.poll_with(|state| state.requests.pop_front())
    }

    fn poll_with<T>(&self, mut take: impl FnMut(&mut State) -> Option<T>) -> Result<Option<T>> {
        self.locked(|state| {
            if let Some(found) = take(state) {
                return Ok(Some(found));
            }
            let turned = self.turn(state);
            match take(state) {
                Some(found) => Ok(Some(found)),
                None => turned.map(|()| None),
            }
        })
    }

    pub(super) fn descriptor(&self) -> std::os::fd::BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(&self.set)
    }

    pub(super) fn try_wait(&self) -> Result<bool> {
        self.locked(|state| {
            self.turn(state)?;
            if !state.events.is_empty() || !state.requests.is_empty() {
                return Ok(false);
            }
            let now = Instant::now();
            let next = state.deadlines.first().map(|(deadline, _)| deadline.saturating_duration_since(now));
            self.set.clear(next);
            (state.sleeps, state.changed) = (true, false);
            self.queue.try_wait()
        })
    }

    pub(super) fn wait<T>(
        &self,
        timeout: Option<Duration>,
        mut poll: impl FnMut() -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let start = Instant::now();
        loop {
            if let Some(found) = poll()? {
                return Ok(Some(found));
            }
            let left = timeout.map(|timeout| timeout.saturating_sub(start.elapsed()));
            if left == Some(Duration::ZERO) {
                return Ok(None);
            }
            if self.try_wait()? {
                self.set.wait(left).map_err(Error::system("sleep"))?;
            }
        }
    }

    /// Takes what has come, sends what waits, and ends what is overdue.
    fn turn(&self, state: &mut State) -> Result<()> {
        let mut result = Ok(());
        for _ in 0..CONNECTION_COMPLETIONS_PER_TURN {
            // Those that the user does not ask for wait at their senders.
            if state.requests.len() >= CONNECTION_REQUESTS_MAX {
                break;
            }
            match self.queue.read() {
                Ok(Some(completion)) => self.handle(state, completion),
                Ok(None) => break,
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        self.post_receives(state);
        for _ in 0..state.outbox.len() {
            if state.under_way.len() >= CONNECTION_SENDS_MAX {
                break;
            }
            let Some(outgoing) = state.outbox.pop_front() else { break };
            self.transmit(state, outgoing);
        }
        let now = Instant::now();
        while let Some(&(deadline, token)) = state.deadlines.first()
            && deadline <= now
        {
            state.deadlines.remove(&(deadline, token));
            // Nobody has heard the request, as far as is known.
            let unheard = |it: &Connection| matches!(it.phase, Phase::Requesting(_)) && it.saying > 0;
            let silence = state.connections.get(&token).is_some_and(unheard);
            let failure = if silence { ConnectFailure::Unreachable } else { ConnectFailure::TimedOut };
            self.fail(state, token, failure);
        }
        result
    }

    fn post_receives(&self, state: &mut State) {
        while state.receives_missing > 0 && self.endpoint.receive(vec![0; MESSAGE_MAX_BYTES]).is_ok() {
            state.receives_missing -= 1;
        }
    }

    fn handle(&self, state: &mut State, completion: Completion) {
        if let Some(outgoing) = state.under_way.remove(&completion.context) {
            self.settle(state, outgoing, completion.result);
        } else if let Some(address) = state.watches.remove(&completion.context) {
            self.lose(state, address, completion.result);
        } else if completion.kind == crate::CompletionKind::Receive {
            self.hear(state, completion);
        }
    }
}

/// What users do.
impl Hub {
    pub(super) fn connect(&self, endpoint: &Endpoint, to: Address, context: u64, data: &[u8]) -> Result<u64> {
        self.check(endpoint, data)?;
        let token = draw_token()?;
        let message = Message {
            kind: Kind::Request,
            flag: self.domain().progress_mode() == Progress::Automatic,
            to: 0,
            from: token,
            endpoint: endpoint.address().endpoint,
            data: data.to_vec(),
        };
        self.locked(|state| {
            self.admit(state, endpoint)?;
            self.hold(state, to)?;
            let phase = Phase::Requesting(endpoint.clone());
            let number = endpoint.address().endpoint;
            self.begin(state, token, Connection::new(context, phase, number, to));
            self.send(state, to, token, &message)
        })?;
        Ok(token)
    }

    pub(super) fn accept(&self, request: &RawRequest, endpoint: &Endpoint, context: u64, data: &[u8]) -> Result<u64> {
        self.check(endpoint, data)?;
        let token = draw_token()?;
        let message = Message {
            kind: Kind::Accept,
            flag: self.domain().progress_mode() == Progress::Automatic,
            to: request.token,
            from: token,
            endpoint: endpoint.address().endpoint,
            data: data.to_vec(),
        };
        self.locked(|state| {
            self.admit(state, endpoint)?;
            let manager = request.from;
            self.hold(state, manager)?;
            let peer = self.join(endpoint, request.endpoint()).inspect_err(|_| self.let_go(state, manager))?;
            let (number, phase) = (endpoint.address().endpoint, Phase::Accepting);
            let (remote, automatic, peer) = (request.token, request.automatic, Some(peer));
            let connection = Connection::new(context, phase, number, manager);
            self.begin(state, token, Connection { remote, automatic, peer, ..connection });
            self.send(state, manager, token, &message)?;
            Ok(token)
        })
    }

    pub(super) fn reject(&self, request: &RawRequest, data: &[u8]) -> Result<()> {
        check_data(data)?;
        self.locked(|state| {
            let message = Message { data: data.to_vec(), ..Message::bare(Kind::Reject, request.token, 0) };
            self.send(state, request.from, 0, &message)
        })
    }

    /// Ends a connection, or the attempt at one, for its user. There is no event of it.
    pub(super) fn shut_down(&self, token: u64) {
        self.locked(|state| self.leave(state, token));
    }

    /// An operation has failed as they do when the peer is gone.
    pub(super) fn lost(&self, token: u64) {
        self.locked(|state| {
            let connected = state.connections.get(&token).is_some_and(|it| matches!(it.phase, Phase::Connected));
            if connected {
                self.end(state, token, |context| Event::Shutdown { context });
            }
        });
    }

    /// The user has no handle of the connection any more: nothing of it is kept, and no event names it.
    pub(super) fn release_connection(&self, token: u64) {
        self.locked(|state| {
            self.leave(state, token);
            if let Some(connection) = state.connections.remove(&token) {
                state.by_endpoint.remove(&connection.number);
                connection.peer.into_iter().for_each(|peer| self.forget(peer));
            }
            state.events.retain(|(of, _)| *of != token);
        });
    }

    /// From now on everybody who asks is refused.
    pub(super) fn stop_listening(&self) {
        self.locked(|state| {
            if std::mem::take(&mut state.listens) {
                self.disappear();
            }
            while let Some(request) = state.requests.pop_front() {
                let message = Message::bare(Kind::Reject, request.token, 0);
                // Who cannot be told finds out by its own clock.
                let _ = self.send(state, request.from, 0, &message);
            }
            // Those that came just before are in the queue.
            for _ in 0..CONNECTION_QUEUE_CAPACITY / CONNECTION_COMPLETIONS_PER_TURN {
                let _ = self.turn(state);
            }
        });
    }

    /// From now on the NIC tells whoever asks that nobody is here: there may be nobody who looks after messages.
    fn disappear(&self) {
        let addresses = self.domain().addresses();
        let added = addresses.find(self.address()).is_none();
        if let Ok(nobody_else) = addresses.insert(self.address()) {
            let _ = self.endpoint.restrict_to(nobody_else);
            if added {
                addresses.remove(nobody_else);
            }
        }
    }

    pub(super) fn peer_of(&self, token: u64) -> Option<(PeerId, Address)> {
        self.locked(|state| {
            let connection = state.connections.get(&token)?;
            let known = matches!(connection.phase, Phase::Connected | Phase::Ended);
            connection.peer.filter(|_| known).map(|named| (named.peer, named.address))
        })
    }

    pub(super) fn is_connected(&self, token: u64) -> bool {
        self.locked(|state| state.connections.get(&token).is_some_and(|it| matches!(it.phase, Phase::Connected)))
    }

    fn check(&self, endpoint: &Endpoint, data: &[u8]) -> Result<()> {
        check_data(data)?;
        if !endpoint.domain().is_same(self.domain()) {
            return Err(Error::OtherDomain);
        }
        if endpoint.kind() != crate::EndpointKind::Reliable {
            return Err(crate::PostError::NotSupported.into());
        }
        Ok(())
    }

    fn admit(&self, state: &mut State, endpoint: &Endpoint) -> Result<()> {
        if state.by_endpoint.contains_key(&endpoint.address().endpoint) {
            return Err(Error::AlreadyConnected);
        }
        if state.connections.len() >= CONNECTIONS_MAX {
            return Err(Error::TooManyConnections);
        }
        Ok(())
    }

    fn begin(&self, state: &mut State, token: u64, mut connection: Connection) {
        connection.deadline = self.settings.patience.and_then(|patience| Instant::now().checked_add(patience));
        if let Some(deadline) = connection.deadline {
            state.deadlines.insert((deadline, token));
            state.changed = true;
        }
        state.by_endpoint.insert(connection.number, token);
        state.connections.insert(token, connection);
    }

    fn leave(&self, state: &mut State, token: u64) {
        let Some(connection) = state.connections.get(&token) else { return };
        let connected = matches!(connection.phase, Phase::Connected);
        let (manager, remote) = (connection.manager, connection.remote);
        match connection.phase {
            Phase::Requesting(_) => {}
            Phase::Accepting | Phase::Connected => {
                let message = Message { flag: connected, ..Message::bare(Kind::Shutdown, remote, token) };
                // Who cannot be told finds out by its watch.
                let _ = self.send(state, manager, token, &message);
            }
            Phase::Ended => return,
        }
        self.finish(state, token);
    }
}

/// What peers do.
impl Hub {
    fn hear(&self, state: &mut State, completion: Completion) {
        state.receives_missing += 1;
        let source = completion.source;
        let message = completion.into_bytes().ok().and_then(|bytes| Message::parse(&bytes));
        let (Some(source), Some(message)) = (source, message) else {
            state.statistics.ignored += 1;
            return;
        };
        let right = match message.kind {
            Kind::Request => self.requested(state, source, message),
            Kind::Accept => self.accepted(state, source, message),
            Kind::Reject => self.rejected(state, message),
            Kind::Confirm => self.confirmed(state, source, &message),
            Kind::Shutdown => self.closed(state, source, &message),
            Kind::Unwatch => self.unwatched(state, source),
        };
        state.statistics.ignored += u64::from(!right);
    }

    fn requested(&self, state: &mut State, from: Address, message: Message) -> bool {
        let name = (from, message.from);
        if state.seen.contains(&name) {
            return false;
        }
        if !state.listens {
            self.answer(state, from, &Message::bare(Kind::Reject, message.from, 0));
            return true;
        }
        if state.seen_in_order.len() >= CONNECTION_SEEN_MAX
            && let Some(oldest) = state.seen_in_order.pop_front()
        {
            state.seen.remove(&oldest);
        }
        state.seen.insert(name);
        state.seen_in_order.push_back(name);
        let Message { from: token, endpoint, flag: automatic, data, .. } = message;
        state.requests.push_back(RawRequest { from, token, endpoint, automatic, data });
        state.statistics.requests += 1;
        state.changed = true;
        true
    }

    fn accepted(&self, state: &mut State, from: Address, message: Message) -> bool {
        let refusal = Message::bare(Kind::Shutdown, message.from, message.to);
        let Some(connection) = state.connections.get(&message.to) else {
            self.answer(state, from, &refusal);
            return true;
        };
        let endpoint = match &connection.phase {
            Phase::Requesting(endpoint) => endpoint.clone(),
            // The very same once more: its sender could not know that it had arrived, and is being told.
            _ if connection.remote == message.from && connection.manager == from => return true,
            _ => {
                self.answer(state, from, &refusal);
                return true;
            }
        };
        let asked = connection.manager;
        let address = Address { socket: from.socket, endpoint: message.endpoint };
        let named = self
            .hold(state, from)
            .and_then(|_| self.join(&endpoint, address).inspect_err(|_| self.let_go(state, from)));
        state.retired.push(endpoint);
        let Ok(named) = named else {
            self.answer(state, from, &refusal);
            self.fail(state, message.to, ConnectFailure::NoResources);
            return true;
        };
        self.let_go(state, asked);
        let Some(connection) = state.connections.get_mut(&message.to) else { return false };
        let token = message.to;
        if let Phase::Requesting(endpoint) = std::mem::replace(&mut connection.phase, Phase::Connected) {
            state.retired.push(endpoint);
        }
        (connection.manager, connection.remote, connection.peer) = (from, message.from, Some(named));
        connection.automatic = message.flag;
        if let Some(deadline) = connection.deadline.take() {
            state.deadlines.remove(&(deadline, token));
        }
        let NamedPeer { peer, address, .. } = named;
        let event = Event::Connected { context: connection.context, peer, address, data: message.data };
        push(state, token, event);
        if self.send(state, from, token, &Message::bare(Kind::Confirm, message.from, token)).is_err() {
            self.end(state, token, |context| Event::Shutdown { context });
        }
        true
    }

    fn rejected(&self, state: &mut State, message: Message) -> bool {
        let Some(connection) = state.connections.get(&message.to) else { return false };
        if !matches!(connection.phase, Phase::Requesting(_)) {
            return false;
        }
        self.end(state, message.to, |context| Event::Refused { context, data: message.data });
        true
    }

    fn confirmed(&self, state: &mut State, from: Address, message: &Message) -> bool {
        let Some(connection) = state.connections.get_mut(&message.to) else { return false };
        if !connection.is_with(from, message.from) || !matches!(connection.phase, Phase::Accepting) {
            return false;
        }
        let Some(NamedPeer { peer, address, .. }) = connection.peer else { return false };
        connection.phase = Phase::Connected;
        if let Some(deadline) = connection.deadline.take() {
            state.deadlines.remove(&(deadline, message.to));
        }
        let event = Event::Connected { context: connection.context, peer, address, data: Vec::new() };
        push(state, message.to, event);
        true
    }

    fn closed(&self, state: &mut State, from: Address, message: &Message) -> bool {
        // Messages that are under way together arrive in any order: this one says what the confirmation would have.
        if message.flag {
            self.confirmed(state, from, message);
        }
        let Some(connection) = state.connections.get(&message.to) else { return false };
        match connection.phase {
            // What it asked for it does not want any more, or what was accepted, if that was never heard of.
            Phase::Accepting if connection.is_with(from, message.from) => {
                self.fail(state, message.to, ConnectFailure::Withdrawn);
            }
            Phase::Requesting(_) => self.fail(state, message.to, ConnectFailure::Withdrawn),
            Phase::Connected if connection.is_with(from, message.from) => {
                self.end(state, message.to, |context| Event::Shutdown { context });
            }
            Phase::Accepting | Phase::Connected | Phase::Ended => return false,
        }
        true
    }

    fn unwatched(&self, state: &mut State, from: Address) -> bool {
        let Ok(peer) = self.hold(state, from) else { return false };
        let found = self.discard_watches(peer);
        self.let_go(state, from);
        found
    }

    /// Throws away what a peer left here to hear of our end.
    fn discard_watches(&self, peer: PeerId) -> bool {
        let mut watch = raw::receive(&self.endpoint, 1);
        (watch.source, watch.tagged, watch.tag) = (Some(peer), true, WATCH_TAG);
        // An honest peer leaves one.
        let discard = || matches!(raw::peek(&self.endpoint, &watch, raw::Peek::Discard), Ok(Some(_)));
        (0..CONNECTION_DISCARDS_MAX).take_while(|_| discard()).count() > 0
    }

    /// A watched peer is gone, and with it all connections that it stands behind.
    fn lose(&self, state: &mut State, address: Address, result: Result<(), Failure>) {
        let Some(peer) = state.peers.get_mut(&address) else { return };
        (peer.watch, peer.unwatching) = (None, false);
        let (id, used) = (peer.peer, peer.users > 0);
        if result.is_ok() && used {
            // It was asked to end the watch, and then there was another connection.
            let lives = |it: &&Connection| it.manager == address && !matches!(it.phase, Phase::Ended);
            let automatic = state.connections.values().find(lives).map(|connection| connection.automatic);
            automatic.into_iter().for_each(|automatic| self.watch(state, address, automatic));
            return;
        }
        if result.is_err() {
            self.discard_watches(id);
        }
        self.tidy(state, address);
        if matches!(result, Ok(()) | Err(Failure::Cancelled | Failure::Closed)) {
            return;
        }
        // A listener that closes in order has answered everybody, or its user has: the answer is on its way.
        let in_order = matches!(result, Err(Failure::NoSuchEndpoint | Failure::Aborted));
        let ends = |connection: &Connection| !(in_order && matches!(connection.phase, Phase::Requesting(_)));
        let behind = state.connections.iter().filter(|(_, it)| it.manager == address && ends(it));
        let tokens: Vec<u64> = behind.map(|(token, _)| *token).collect();
        for token in tokens {
            let Some(connection) = state.connections.get_mut(&token) else { continue };
            connection.doubtful = connection.saying > 0;
            if !connection.doubtful {
                self.fail(state, token, ConnectFailure::Unreachable);
            }
        }
    }

    /// Ends a connection or an attempt that goes wrong, with the event that its phase asks for.
    fn fail(&self, state: &mut State, token: u64, failure: ConnectFailure) {
        let Some(connection) = state.connections.get(&token) else { return };
        match connection.phase {
            Phase::Requesting(_) => self.end(state, token, |context| Event::Failed { context, failure }),
            Phase::Accepting => {
                let (manager, remote) = (connection.manager, connection.remote);
                if failure == ConnectFailure::TimedOut {
                    let message = Message::bare(Kind::Shutdown, remote, token);
                    self.answer(state, manager, &message);
                }
                self.end(state, token, |context| Event::Failed { context, failure });
            }
            Phase::Connected => self.end(state, token, |context| Event::Shutdown { context }),
            Phase::Ended => {}
        }
    }

    fn end(&self, state: &mut State, token: u64, event: impl FnOnce(u64) -> Event) {
        let Some(context) = state.connections.get(&token).map(|connection| connection.context) else { return };
        self.finish(state, token);
        push(state, token, event(context));
    }

    /// Nothing more will happen on a connection; its handle may still be there.
    fn finish(&self, state: &mut State, token: u64) {
        let Some(connection) = state.connections.get_mut(&token) else { return };
        let manager = connection.manager;
        match std::mem::replace(&mut connection.phase, Phase::Ended) {
            Phase::Ended => return,
            Phase::Requesting(endpoint) => state.retired.push(endpoint),
            Phase::Accepting | Phase::Connected => {}
        }
        if let Some(deadline) = connection.deadline.take() {
            state.deadlines.remove(&(deadline, token));
        }
        self.let_go(state, manager);
    }
}

impl Connection {
    fn new(context: u64, phase: Phase, number: u32, manager: Address) -> Connection {
        let (remote, automatic, saying, doubtful, peer, deadline) = (0, false, 0, false, None, None);
        Connection { context, phase, number, manager, remote, automatic, saying, doubtful, peer, deadline }
    }

    fn is_with(&self, manager: Address, remote: u64) -> bool {
        self.manager == manager && self.remote == remote
    }
}

impl Drop for Hub {
    /// What was said last is brought on its way. All handles are gone, so there are no connections any more.
    fn drop(&mut self) {
        self.stop_listening();
        let start = Instant::now();
        let patience = Duration::from_micros(LINGER_MAX_US);
        loop {
            let quiet = self.locked(|state| state.under_way.is_empty() && state.outbox.is_empty());
            let left = patience.saturating_sub(start.elapsed());
            if quiet || left == Duration::ZERO || self.domain().nic().lock().is_abandoned() {
                return;
            }
            let Ok(Some(completion)) = self.queue.wait(Some(left)) else { return };
            self.locked(|state| {
                self.handle(state, completion);
                // The engine's failures end the waiting at the next look.
                let _ = self.turn(state);
            });
        }
    }
}

fn push(state: &mut State, token: u64, event: Event) {
    state.events.push_back((token, event));
    state.changed = true;
}

fn check_data(data: &[u8]) -> Result<()> {
    let (length, limit) = (data.len() as u64, CONNECTION_DATA_MAX_BYTES as u64);
    if length > limit { Err(crate::PostError::TooLong { length, limit }.into()) } else { Ok(()) }
}

/// A number that nobody can guess, never 0.
fn draw_token() -> Result<u64> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::system("draw random numbers")(std::io::Error::other(error.to_string())))?;
    Ok(u64::from_ne_bytes(bytes).max(1))
}
