//! What managers and listeners say to each other, what becomes of it, and the watch of those it is said to.

use super::*;

impl Hub {
    /// Sends something that nobody here waits for the fate of, unless too much of that waits already.
    pub(super) fn answer(&self, state: &mut State, to: Address, message: &Message) {
        if state.outbox.len() < CONNECTION_ANSWERS_MAX {
            // Who is not answered finds out by its own clock.
            let _ = self.send(state, to, 0, message);
        }
    }

    pub(super) fn send(&self, state: &mut State, to: Address, token: u64, message: &Message) -> Result<()> {
        self.hold(state, to)?;
        let (kind, bytes) = (message.kind, message.emit());
        let outgoing = Outgoing { to, kind, token, bytes, attempts: 0, sent: Instant::now() };
        if let Some(connection) = state.connections.get_mut(&token) {
            connection.saying += 1;
        }
        self.transmit(state, outgoing);
        Ok(())
    }

    pub(super) fn transmit(&self, state: &mut State, mut outgoing: Outgoing) {
        let Some(peer) = state.peers.get(&outgoing.to).map(|peer| peer.peer) else { return };
        if state.under_way.len() >= CONNECTION_SENDS_MAX {
            state.outbox.push_back(outgoing);
            return;
        }
        state.next_context += 1;
        let context = state.next_context;
        // Only then is it told for certain that the other manager has it.
        let options = Options { context: Some(context), level: Level::Delivered, ..Options::default() };
        match self.endpoint.send_with(peer, outgoing.bytes.clone(), options) {
            Ok(_) => {
                outgoing.attempts += 1;
                outgoing.sent = Instant::now();
                let (to, token) = (outgoing.to, outgoing.token);
                state.under_way.insert(context, outgoing);
                // From here on nothing may be said for long.
                if let Some(connection) = state.connections.get_mut(&token)
                    && !matches!(connection.phase, Phase::Ended)
                    && connection.manager == to
                {
                    connection.doubtful = false;
                    let automatic = connection.automatic;
                    self.watch(state, to, automatic);
                }
            }
            Err(refused) if refused.error.is_full() => state.outbox.push_back(outgoing),
            Err(_) => self.settle(state, outgoing, Err(Failure::OperationFailed)),
        }
    }

    pub(super) fn settle(&self, state: &mut State, outgoing: Outgoing, result: Result<(), Failure>) {
        let connection = state.connections.get(&outgoing.token);
        let phase = connection.map(|connection| &connection.phase);
        // Where neither this nor the watch is heard of, nobody is there.
        let patient = if connection.is_some_and(|it| it.doubtful) { 0 } else { CONNECTION_ATTEMPTS };
        let (wanted, attempts) = match (outgoing.kind, phase) {
            (Kind::Request, Some(Phase::Requesting(_))) => (true, CONNECTION_REQUEST_ATTEMPTS),
            (Kind::Accept, Some(Phase::Accepting)) => (true, patient),
            (Kind::Confirm, Some(Phase::Connected)) => (true, patient),
            (Kind::Reject | Kind::Shutdown, _) => (true, CONNECTION_REQUEST_ATTEMPTS),
            _ => (false, 0),
        };
        let (to, token) = (outgoing.to, outgoing.token);
        // Nobody says that the listener is not there. It may be stopped or have no turn: its time is the user's patience.
        let silence = outgoing.sent.elapsed() >= Duration::from_micros(CONNECTION_SILENCE_US);
        let again = outgoing.attempts < attempts || silence && outgoing.kind == Kind::Request;
        match result {
            Ok(()) => {
                if connection.is_some_and(|connection| connection.doubtful && connection.manager == to) {
                    self.fail(state, token, ConnectFailure::Unreachable);
                }
            }
            // It may have arrived: all who receive know what came before.
            Err(Failure::OutcomeUnknown) if wanted && again && !self.is_absent(to) => {
                self.transmit(state, outgoing);
                return;
            }
            Err(failure) if wanted && token != 0 => {
                // An endpoint that closes, or a process that is gone: its NIC says so, or its host.
                let gone = matches!(failure, Failure::NoSuchEndpoint | Failure::Aborted) || self.is_absent(to);
                let nobody = gone && outgoing.kind == Kind::Request;
                let failure = if nobody { ConnectFailure::NobodyListens } else { ConnectFailure::Unreachable };
                self.fail(state, token, failure);
            }
            Err(_) => {}
        }
        self.let_go(state, to);
        if let Some(connection) = state.connections.get_mut(&token) {
            connection.saying = connection.saying.saturating_sub(1);
        }
    }

    /// Whether the host of a peer said that nobody is there.
    pub(super) fn is_absent(&self, peer: Address) -> bool {
        self.domain().nic().lock().engine.is_absent(peer.socket)
    }

    /// Keeps a peer's name for one more user.
    pub(super) fn hold(&self, state: &mut State, address: Address) -> Result<PeerId> {
        if let Some(peer) = state.peers.get_mut(&address) {
            peer.users += 1;
            return Ok(peer.peer);
        }
        let addresses = self.domain().addresses();
        let added = addresses.find(address).is_none();
        let peer = addresses.insert(address)?;
        state.peers.insert(address, Peer { peer, added, users: 1, watch: None, unwatching: false });
        Ok(peer)
    }

    pub(super) fn let_go(&self, state: &mut State, address: Address) {
        let Some(peer) = state.peers.get_mut(&address) else { return };
        peer.users = peer.users.saturating_sub(1);
        if peer.users == 0 && peer.watch.is_some() && !peer.unwatching {
            peer.unwatching = true;
            // If it is not heard the watch goes on, for the next connection to this peer.
            let _ = self.send(state, address, 0, &Message::bare(Kind::Unwatch, 0, 0));
        }
        self.tidy(state, address);
    }

    pub(super) fn tidy(&self, state: &mut State, address: Address) {
        let idle = |peer: &Peer| peer.users == 0 && peer.watch.is_none();
        if state.peers.get(&address).is_some_and(idle)
            && let Some(peer) = state.peers.remove(&address)
            && peer.added
        {
            self.domain().addresses().remove(peer.peer);
        }
    }

    /// Sends a message that nobody receives: it ends when the peer's manager closes or its process dies. Over shared
    /// memory the kernel tells; as packets the engine asks all the while, which only a peer can answer whose NIC does so
    /// by itself: others may be silent because they are busy.
    pub(super) fn watch(&self, state: &mut State, address: Address, automatic: bool) {
        let watched = state.watches.len();
        let Some(peer) = state.peers.get_mut(&address) else { return };
        if peer.watch.is_some() || watched >= CONNECTION_WATCHES_MAX {
            return;
        }
        let id = self.endpoint.id();
        let near = self.domain().nic().lock().local.as_ref().is_some_and(|local| local.reaches(id, peer.peer));
        if !near && !automatic {
            return;
        }
        state.next_context += 1;
        let context = state.next_context;
        let options = Options { context: Some(context), level: Level::Delivered, ..Options::default() };
        if self.endpoint.tagged_send_with(peer.peer, WATCH_TAG, vec![0], options).is_ok() {
            peer.watch = Some(context);
            state.watches.insert(context, address);
        }
    }

    /// Makes an endpoint that of a connection: it hears its peer and nobody else.
    pub(super) fn join(&self, endpoint: &Endpoint, address: Address) -> Result<NamedPeer> {
        let addresses = endpoint.domain().addresses();
        let added = addresses.find(address).is_none();
        let peer = addresses.insert(address)?;
        let named = NamedPeer { peer, address, added };
        endpoint.restrict_to(peer).inspect_err(|_| self.forget(named))?;
        Ok(named)
    }

    pub(super) fn forget(&self, named: NamedPeer) {
        if named.added {
            self.domain().addresses().remove(named.peer);
        }
    }
}
