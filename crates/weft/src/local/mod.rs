//! The road inside a node: peers on the same machine are reached through shared memory.
//!
//! There is one channel (`weft_link::shm`) for each pair of endpoints and direction. Its initiator's side is a
//! [`route::Route`], its target's a [`visitor::Visitor`]; `record` says what goes through it. What arrives ends in the
//! same [`Delivery`] as packets do.
//!
//! | bytes | way |
//! |---|---|
//! | message up to 80 B | in the slot of the ring: one cache line for 8 B |
//! | up to 64 KiB | copied into the ring and out of it, in parts, both processes at work |
//! | longer, or *delivered* | offered; when a receive wants it, in parts through the ring, or copied once by the target (cross-memory attach), whichever was measured to be faster (`pace`) |
//! | write, read, atomic on memory from [`Domain::register`](crate::Domain::register) of a length | straight in the target's memory, which is mapped here |
//! | on other memory | through the target, in parts or by attach |
//! | message from device memory | copied by the target's device from the sender's allocation (`handle`), or a bounce buffer (`bounce`) |
//! | write, read on device memory | copied by the initiator's device |
//!
//! A peer may lie or die at any instruction. It has only its own channels: what it writes there is checked, what it
//! breaks is closed, and everything under way on them ends with an error.

mod attachment;
mod bounce;
mod bytes;
mod handle;
mod pace;
mod record;
mod route;
mod visitor;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use weft_core::address::{Address, PeerId};
use weft_core::command::{Command, CommandFlags, EndpointId, Level, Operation, PostError};
use weft_core::delivery::Envelope;
use weft_core::delivery::{Admitted, Delivery, Transport};
use weft_core::event::Failure;
use weft_link::shm::{Broken, ChannelId, Hello, Node, NodeEvent, TargetChannel};
use weft_mem::{HostMemory, Segment, attach};

use weft_link::limits::{RING_NEAR_SLOTS, RING_SLOTS};

use crate::limits::{LOCAL_POLLED_AT_ONCE, LOCAL_RECORDS_PER_ROUND};

use attachment::Deadlines;
use handle::{Handles, Note};
use pace::Methods;
use route::Route;
use visitor::Visitor;

/// Words of a channel that both sides may write. A grant's word is behind them.
const WORD_STATE: usize = 0;
/// The target can reach the initiator's memory.
const WORD_CAN_ATTACH: usize = 1;
/// The initiator is in one of the target's regions.
const WORD_BUSY: usize = 2;
const WORD_FIRST_GRANT: usize = 3;

/// What the target puts into [`WORD_STATE`] before it leaves because there is no such endpoint (any more).
const NO_ENDPOINT: u64 = 1;

/// Which ways the traffic inside the node took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LocalStatistics {
    /// Messages that went whole into the ring.
    pub eager: u64,
    /// Parts of longer ones, and of what was read.
    pub fragments: u64,
    /// Messages that waited here until they were wanted.
    pub offered: u64,
    /// Writes, reads and atomics straight in the peer's memory.
    pub direct: u64,
    /// Writes, reads and atomics that the peer's NIC was asked for.
    pub through_target: u64,
    /// The same, asked of this NIC.
    pub served: u64,
    /// Copies that this NIC made in the memory of a peer (cross-memory attach).
    pub attached: u64,
    /// How often the ring to a peer was found slow, and left for a while for copies in the peer's memory.
    pub ring_left: u64,
    /// Channels made to peers.
    pub routes: u64,
    /// Channels that peers made.
    pub visitors: u64,
    /// Channels that ended because the peer wrote nonsense.
    pub broken: u64,
    /// Regions that were deregistered, live on, and had to be taken from peers that had them mapped.
    pub revoked: u64,
    /// Messages that were copied here from a peer's device memory, and writes and reads that were done in it, without
    /// passing through the host.
    pub by_handle: u64,
    /// Messages that went through bounce buffers on a device: counted at both ends.
    pub bounced: u64,
    /// Messages, writes and reads whose bytes lie in device memory here and went through the host.
    pub staged: u64,
    /// Allocations of peers that were opened.
    pub handles_opened: u64,
    /// Handles of peers that made no sense or could not be opened: what they were for goes through the host.
    pub handles_refused: u64,
    /// Peers that did not leave a region of a device's memory when it was deregistered. Their channel was closed; nothing
    /// keeps them from the memory until it is freed.
    pub held: u64,
}

/// The road inside the node, of one NIC.
pub(crate) struct Local {
    node: Node,
    address: SocketAddr,
    session: u32,
    methods: Methods,
    /// Commands to one peer that may be under way.
    commands_max: usize,
    routes: Vec<Option<Box<Route>>>,
    visitors: Vec<Option<Box<Visitor>>>,
    /// What is known about each named peer.
    ways: Vec<Ways>,
    /// Commands for peers that refused a channel: they go as packets as soon as the engine takes them.
    displaced: VecDeque<Command>,
    events: Vec<NodeEvent>,
    statistics: LocalStatistics,
    handles: Handles,
    /// Where the next look at many channels begins.
    cursor: usize,
    /// Some visitor was blocked when it was last served: with many peers that is not asked of each for every operation.
    may_be_blocked: bool,
    /// Something that sleepers know nothing of: they have to look, and say anew that they sleep.
    changed: bool,
}

/// How a peer is reached.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Packets,
    Route(u32),
}

/// How a peer is reached from each endpoint that has asked. Most peers are asked for by one.
#[derive(Default)]
struct Ways {
    first: Option<(EndpointId, Way)>,
    others: Vec<(EndpointId, Way)>,
}

impl Ways {
    #[inline(always)]
    fn from(&self, endpoint: EndpointId) -> Option<Way> {
        match self.first {
            Some((from, way)) if from == endpoint => Some(way),
            _ => self.others.iter().find(|(from, _)| *from == endpoint).map(|(_, way)| *way),
        }
    }

    fn insert(&mut self, endpoint: EndpointId, way: Way) {
        match self.first {
            None => self.first = Some((endpoint, way)),
            Some(_) => self.others.push((endpoint, way)),
        }
    }

    /// Whoever was reached by one way is by another.
    fn replace(&mut self, old: Way, new: Way) {
        for (_, way) in self.first.iter_mut().chain(&mut self.others) {
            if *way == old {
                *way = new;
            }
        }
    }

    fn retain(&mut self, kept: impl Fn(EndpointId, Way) -> bool) {
        self.first = self.first.filter(|(from, way)| kept(*from, *way));
        self.others.retain(|(from, way)| kept(*from, *way));
    }
}

impl Local {
    pub(crate) fn open(address: SocketAddr, session: u32, commands_max: usize) -> std::io::Result<Local> {
        Ok(Local {
            node: Node::open(address)?,
            address,
            session,
            methods: Methods::RING,
            commands_max: commands_max.min(route::WAITING_MAX),
            routes: Vec::new(),
            visitors: Vec::new(),
            ways: Vec::new(),
            displaced: VecDeque::new(),
            events: Vec::new(),
            statistics: LocalStatistics::default(),
            handles: Handles::default(),
            cursor: 0,
            may_be_blocked: false,
            changed: false,
        })
    }

    pub(crate) fn statistics(&self) -> LocalStatistics {
        self.statistics
    }

    /// Readable when a peer comes, goes, or wakes us.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.node.descriptor()
    }

    /// Whether there is any peer to be looked for.
    #[inline]
    pub(crate) fn has_channels(&self) -> bool {
        !(self.routes.is_empty() && self.visitors.is_empty())
    }

    /// The route of an endpoint to a peer, if the peer is on this machine.
    #[inline(always)]
    fn route_to(&mut self, delivery: &Delivery<HostMemory>, endpoint: EndpointId, peer: PeerId) -> Option<u32> {
        match self.ways.get(peer.0 as usize).and_then(|ways| ways.from(endpoint)) {
            Some(Way::Route(index)) => Some(index),
            Some(Way::Packets) => None,
            None => self.find_way(delivery, endpoint, peer),
        }
    }

    #[cold]
    fn find_way(&mut self, delivery: &Delivery<HostMemory>, endpoint: EndpointId, peer: PeerId) -> Option<u32> {
        let to = delivery.addresses().address(peer)?;
        let number = delivery.endpoint_source(endpoint)?;
        let known = self
            .routes
            .iter()
            .position(|route| route.as_ref().is_some_and(|route| route.endpoint == endpoint && route.address == to));
        let index = known.map(|index| index as u32).or_else(|| self.connect(endpoint, number, to));
        let place = peer.0 as usize;
        if self.ways.len() <= place {
            self.ways.resize_with(place + 1, Ways::default);
        }
        if let Some(ways) = self.ways.get_mut(place) {
            ways.insert(endpoint, index.map_or(Way::Packets, Way::Route));
        }
        index
    }

    fn connect(&mut self, endpoint: EndpointId, number: u32, to: Address) -> Option<u32> {
        let canary = Box::new(random_word()?);
        let source = Address { socket: self.address, endpoint: number };
        // Where the word lies, for the target to try whether it can read it.
        let place = std::ptr::from_ref(&*canary).addr() as u64;
        let hello = Hello {
            source: source.to_bytes(),
            target_endpoint: to.endpoint,
            session: self.session,
            words: [place, *canary, 0, 0],
        };
        let channel = self.node.connect(to.socket, &hello).ok()?;
        // Measured now and then, when somebody is there to talk to; mostly it is read from a file.
        self.methods = Methods::new(weft_mem::calibrate::copy_methods());
        self.statistics.routes += 1;
        self.changed = true;
        Some(insert(&mut self.routes, Box::new(Route::new(channel, endpoint, to, canary))))
    }

    /// Whether what an endpoint sends to a peer goes this road.
    pub(crate) fn reaches(&self, endpoint: EndpointId, peer: PeerId) -> bool {
        let way = self.ways.get(peer.0 as usize).and_then(|ways| ways.from(endpoint));
        matches!(way, Some(Way::Route(_)))
    }

    /// What was known about a name does not hold any more.
    pub(crate) fn forget_peer(&mut self, peer: PeerId) {
        if let Some(ways) = self.ways.get_mut(peer.0 as usize) {
            *ways = Ways::default();
        }
    }

    /// Whether the route to a peer can take so many commands more; `None`: they go as packets.
    pub(crate) fn has_room(
        &mut self,
        delivery: &Delivery<HostMemory>,
        endpoint: EndpointId,
        peer: PeerId,
        commands: usize,
    ) -> Option<bool> {
        let index = self.route_to(delivery, endpoint, peer)?;
        let route = self.routes.get(index as usize)?.as_ref()?;
        Some(route.under_way() + commands <= self.commands_max)
    }

    /// Takes a command if its peer is on this machine; `None`: it goes as packets.
    #[inline]
    pub(crate) fn post(
        &mut self,
        delivery: &mut Delivery<HostMemory>,
        command: &mut Command,
        shares_processor: bool,
    ) -> Option<Result<(), PostError>> {
        if !self.displaced.is_empty() {
            // Nothing may pass those, and most of what is posted now would.
            return Some(Err(PostError::QueueFull));
        }
        let index = self.route_to(delivery, command.endpoint, command.peer)?;
        let route = self.routes.get_mut(index as usize)?.as_mut()?;
        if route.under_way() >= self.commands_max {
            return Some(Err(PostError::QueueFull));
        }
        if let Err(error) = delivery.admit(command) {
            return Some(Err(error));
        }
        self.methods.shares_processor = shares_processor;
        if route.submit(delivery, command, &self.methods, &mut self.statistics).is_err() {
            self.statistics.broken += 1;
            self.end_route(delivery, index as usize, Failure::ProtocolError);
        } else {
            self.changed |= route.wants_room() || route.is_reaching();
        }
        Some(Ok(()))
    }

    /// Whether a command is one that [`Local::do_at_once`] may do.
    #[inline(always)]
    pub(crate) fn could_do_at_once(command: &Command) -> bool {
        let simple = matches!(command.operation, Operation::Send | Operation::TaggedSend | Operation::Write);
        simple && command.level != Level::Delivered && !command.has(CommandFlags::FENCE)
    }

    /// Does such a command at once, with bytes that are the caller's, and reports it: a message into the ring, a write
    /// straight into the peer's memory. `None`: that is not possible now.
    #[inline(always)]
    pub(crate) fn do_and_report(
        &mut self,
        delivery: &mut Delivery<HostMemory>,
        command: &Command,
        bytes: Segment<'_>,
    ) -> Option<Result<(), PostError>> {
        let index = self.route_to(delivery, command.endpoint, command.peer)?;
        let route = self.routes.get_mut(index as usize)?.as_mut()?;
        // What is done cannot be refused any more.
        let place = match delivery.place_for_report(command) {
            Ok(place) => place,
            Err(error) => return Some(Err(error)),
        };
        if !route.do_at_once(command, bytes, &mut self.statistics) {
            return None;
        }
        if let Some(counter) = place.report(command) {
            delivery.count_done(counter);
        }
        Some(Ok(()))
    }

    /// The same where a buffer goes back with the completion. `Ok`: it has to be reported as done.
    #[inline]
    pub(crate) fn do_at_once(
        &mut self,
        delivery: &mut Delivery<HostMemory>,
        command: &Command,
        bytes: Segment<'_>,
    ) -> Option<Result<Admitted, PostError>> {
        let index = self.route_to(delivery, command.endpoint, command.peer)?;
        let route = self.routes.get_mut(index as usize)?.as_mut()?;
        // What is done cannot be refused any more.
        let admitted = match delivery.admit_done(command) {
            Ok(admitted) => admitted,
            Err(error) => return Some(Err(error)),
        };
        route.do_at_once(command, bytes, &mut self.statistics).then_some(Ok(admitted))
    }

    /// What peers have brought, and what has found room. True: something happened.
    #[inline]
    pub(crate) fn progress(&mut self, delivery: &mut Delivery<HostMemory>) -> bool {
        let (mut busy, mut wants_notes) = (false, false);
        let (visitors, routes) = (self.visitors.len(), self.routes.len());
        // All of them while there are few. Of many, some in each round: an empty ring costs a look.
        let looks = visitors.min(LOCAL_POLLED_AT_ONCE);
        for step in 0..looks {
            let index = if looks == visitors { step } else { (self.cursor + step) % visitors };
            if let Some(Some(visitor)) = self.visitors.get_mut(index)
                && visitor.has_work()
            {
                let owed = visitor.owes();
                match visitor.serve(delivery, &mut self.statistics) {
                    Ok(served) => {
                        // Whoever sleeps has not said that it waits for room, or will not go on.
                        let owes = !owed && visitor.owes();
                        self.changed |= owes;
                        self.may_be_blocked |= visitor.blocked;
                        busy |= served || owes;
                        // Only what is owed can wait for a note.
                        wants_notes |= visitor.owes() && visitor.pulls.wants_notes();
                        if visitor.orphan.is_some() && !visitor.orphan(delivery, 0) {
                            self.end_visitor(delivery, index);
                        }
                    }
                    Err(Broken) => self.break_visitor(delivery, index),
                }
            }
        }
        if wants_notes {
            self.attend(delivery);
        }
        let looks = routes.min(LOCAL_POLLED_AT_ONCE);
        for step in 0..looks {
            let index = if looks == routes { step } else { (self.cursor + step) % routes };
            if let Some(Some(route)) = self.routes.get_mut(index)
                && route.has_work()
            {
                busy |= self.serve_route(delivery, index);
            }
        }
        self.cursor = self.cursor.wrapping_add(LOCAL_POLLED_AT_ONCE);
        if self.may_be_blocked {
            self.may_be_blocked = self.visitors.iter().flatten().any(|visitor| visitor.blocked);
        }
        if delivery.has_decided(Transport::Shm) {
            self.matched(delivery);
            busy = true;
        }
        busy
    }

    #[inline(never)]
    fn serve_route(&mut self, delivery: &mut Delivery<HostMemory>, index: usize) -> bool {
        let Some(Some(route)) = self.routes.get_mut(index) else { return false };
        let wanted = route.wants_room();
        match route.serve(delivery, &self.methods, &mut self.statistics) {
            Ok(served) => {
                let wants = !wanted && route.wants_room();
                self.changed |= wants;
                served || wants
            }
            Err(Broken) => {
                self.statistics.broken += 1;
                self.end_route(delivery, index, Failure::ProtocolError);
                false
            }
        }
    }

    /// Whether a peer has brought something, as far as one look at few channels tells.
    #[inline]
    pub(crate) fn has_work(&mut self) -> bool {
        let few = |slots: usize| slots <= LOCAL_POLLED_AT_ONCE;
        few(self.visitors.len()) && self.visitors.iter_mut().flatten().any(|visitor| visitor.can_go_on())
            || few(self.routes.len()) && self.routes.iter_mut().flatten().any(|route| route.has_work())
    }

    /// Messages that waited at their senders are wanted now.
    fn matched(&mut self, delivery: &mut Delivery<HostMemory>) {
        // A copy may begin with it, which somebody has to go on with.
        self.changed = true;
        while let Some(matched) = delivery.poll_decided(Transport::Shm) {
            let channel = ChannelId((matched.token >> 32) as u32);
            let Some(index) = self.visitor_of(channel) else {
                delivery.end(matched.id, Err(Failure::Aborted));
                continue;
            };
            if let Some(Some(visitor)) = self.visitors.get_mut(index) {
                let result = visitor.matched(delivery, &matched);
                // Copies go on without a word of the peer.
                self.changed |= visitor.owes();
                if result.is_err() {
                    self.break_visitor(delivery, index);
                }
            }
        }
    }

    fn visitor_of(&self, channel: ChannelId) -> Option<usize> {
        self.visitors.iter().position(|visitor| visitor.as_ref().is_some_and(|v| v.channel.id() == channel))
    }

    fn route_of(&self, channel: ChannelId) -> Option<usize> {
        self.routes.iter().position(|route| route.as_ref().is_some_and(|r| r.channel.id() == channel))
    }

    /// Peers that come and go. A system call, so not for every round. True: something happened.
    pub(crate) fn attend(&mut self, delivery: &mut Delivery<HostMemory>) -> bool {
        let mut events = std::mem::take(&mut self.events);
        // A failure of the system here is one of the next call too, or none at all.
        let happened = self.node.poll(&mut events).unwrap_or(false);
        // What would have woken a sleeper is taken, and its peer has been told that it is awake: it must say anew.
        self.changed |= happened;
        for event in events.drain(..) {
            match event {
                NodeEvent::Accepted(channel, hello) => self.accept(delivery, channel, &hello),
                NodeEvent::Note { channel, bytes, descriptors } => {
                    self.noted(delivery, channel, &bytes, descriptors);
                }
                NodeEvent::Closed(channel) => self.closed(delivery, channel),
            }
        }
        self.events = events;
        self.visitors.iter_mut().flatten().for_each(|visitor| visitor.pulls.looked());
        for route in self.routes.iter_mut().flatten() {
            route.told.sweep(&route.channel);
            route.attachments.sweep(&route.channel, &self.handles);
        }
        happened
    }

    /// Something came over the socket.
    fn noted(
        &mut self,
        delivery: &mut Delivery<HostMemory>,
        channel: ChannelId,
        bytes: &[u8],
        descriptors: Vec<OwnedFd>,
    ) {
        if let Some(index) = self.route_of(channel)
            && let Some(Some(route)) = self.routes.get_mut(index)
        {
            if let Some((token, grant)) = attachment::parse_grant(bytes, &descriptors) {
                route.attached(token, grant);
                return;
            }
            match Note::parse(bytes, descriptors) {
                Some(Note::Grant(note, handle)) => {
                    route.attached_device(note, &handle, &self.handles, &mut self.statistics);
                }
                // It comes to wake us: regions that are gone are closed below.
                Some(Note::Forget(..)) => {}
                Some(Note::Handle(_) | Note::Pool(..)) | None => self.statistics.handles_refused += 1,
            }
        } else if let Some(index) = self.visitor_of(channel)
            && let Some(Some(visitor)) = self.visitors.get_mut(index)
            && visitor.noted(Note::parse(bytes, descriptors), &mut self.statistics).is_err()
        {
            self.break_visitor(delivery, index);
        }
    }

    fn accept(&mut self, delivery: &mut Delivery<HostMemory>, channel: TargetChannel, hello: &Hello) {
        let source = Address::from_bytes(&hello.source);
        let source_id = delivery.addresses().source_of(source);
        let endpoint = delivery.endpoint_by_number(hello.target_endpoint);
        let endpoint =
            endpoint.filter(|endpoint| hello.session == self.session && delivery.admits(*endpoint, source_id));
        let Some(endpoint) = endpoint else {
            channel.shared_word(WORD_STATE).store(NO_ENDPOINT, Ordering::SeqCst);
            self.node.close(channel.id());
            return;
        };
        let arrival = Envelope {
            endpoint,
            source,
            source_id,
            peer: delivery.addresses().find(source_id),
            tagged: false,
            tag: 0,
            immediate: None,
            length: 0,
        };
        // Who was told to use the ring reads nobody's memory, not even to see whether he could.
        let can_attach = weft_mem::calibrate::copy_methods().may_attach()
            && attach::can_attach(channel.peer_pid(), hello.words[0], hello.words[1]);
        channel.shared_word(WORD_CAN_ATTACH).store(u64::from(can_attach), Ordering::SeqCst);
        self.statistics.visitors += 1;
        let mut visitor = Box::new(Visitor::new(channel, arrival, self.handles.clone()));
        let welcomed = visitor.welcome();
        let index = insert(&mut self.visitors, visitor);
        self.changed = true;
        if welcomed.is_err() {
            self.break_visitor(delivery, index as usize);
        }
    }

    /// A peer is gone. What it had sent whole is taken first.
    fn closed(&mut self, delivery: &mut Delivery<HostMemory>, channel: ChannelId) {
        // As many rounds as a full ring needs: one that hung up and goes on writing is not waited for.
        const RECORDS: u32 = RING_SLOTS + RING_NEAR_SLOTS;
        const ROUNDS: usize = RECORDS as usize / LOCAL_RECORDS_PER_ROUND + 2;
        if let Some(index) = self.visitor_of(channel) {
            for _ in 0..ROUNDS {
                let Some(Some(visitor)) = self.visitors.get_mut(index) else { break };
                match visitor.serve(delivery, &mut self.statistics) {
                    Ok(true) => {}
                    Ok(false) | Err(Broken) => break,
                }
            }
            let stays = |visitor: &mut Box<Visitor>| visitor.orphan(delivery, RECORDS);
            if !self.visitors.get_mut(index).and_then(Option::as_mut).is_some_and(stays) {
                self.end_visitor(delivery, index);
            }
        }
        if let Some(index) = self.route_of(channel) {
            let mut failure = Failure::OutcomeUnknown;
            for _ in 0..ROUNDS {
                let Some(Some(route)) = self.routes.get_mut(index) else { break };
                if route.channel.shared_word(WORD_STATE).load(Ordering::Acquire) == NO_ENDPOINT {
                    failure = Failure::NoSuchEndpoint;
                }
                match route.serve(delivery, &self.methods, &mut self.statistics) {
                    Ok(true) => {}
                    Ok(false) | Err(Broken) => break,
                }
            }
            if failure == Failure::OutcomeUnknown
                && let Some(Some(route)) = self.routes.get_mut(index)
                && let Some(commands) = route.refused()
            {
                // It cannot or will not share memory with us (another PID namespace, no descriptors left); or it died, which
                // packets find out.
                self.displaced.extend(commands);
                self.ways.iter_mut().for_each(|ways| ways.replace(Way::Route(index as u32), Way::Packets));
            }
            self.end_route(delivery, index, failure);
        }
    }

    /// Gives commands that go as packets after all to `post`, as long as it takes them; false: it has no room now.
    pub(crate) fn send_displaced(&mut self, mut post: impl FnMut(&Command) -> bool) {
        while self.displaced.front().is_some_and(&mut post) {
            self.displaced.pop_front();
        }
        // Whoever sleeps goes on when the engine has room.
        self.changed |= !self.displaced.is_empty();
    }

    /// Whether [`Local::send_displaced`] has something to do.
    #[inline]
    pub(crate) fn has_displaced(&self) -> bool {
        !self.displaced.is_empty()
    }

    fn break_visitor(&mut self, delivery: &mut Delivery<HostMemory>, index: usize) {
        self.statistics.broken += 1;
        self.end_visitor(delivery, index);
    }

    fn end_visitor(&mut self, delivery: &mut Delivery<HostMemory>, index: usize) {
        let Some(mut visitor) = self.visitors.get_mut(index).and_then(Option::take) else { return };
        visitor.fail(delivery);
        self.node.close(visitor.channel.id());
        shorten(&mut self.visitors);
    }

    /// Ends a route. The next command to its peer looks for a way anew.
    fn end_route(&mut self, delivery: &mut Delivery<HostMemory>, index: usize, failure: Failure) {
        let Some(mut route) = self.routes.get_mut(index).and_then(Option::take) else { return };
        for ways in &mut self.ways {
            ways.retain(|_, way| way != Way::Route(index as u32));
        }
        route.fail(delivery, failure);
        self.handles.close_channel(route.channel.id());
        self.node.close(route.channel.id());
        shorten(&mut self.routes);
    }

    pub(crate) fn cancel(&mut self, delivery: &mut Delivery<HostMemory>, endpoint: EndpointId, context: u64) -> bool {
        let mut routes = self.routes.iter_mut().flatten().filter(|route| route.endpoint == endpoint);
        let cancelled = routes.any(|route| route.cancel(delivery, context));
        // A fence may have waited for it.
        self.changed |= cancelled;
        let wanted = |command: &Command| command.endpoint == endpoint && delivery.context_of(command) == context;
        if !cancelled
            && let Some(command) = self.displaced.iter().position(wanted).and_then(|at| self.displaced.remove(at))
        {
            delivery.report(&command, Err(Failure::Cancelled));
            return true;
        }
        cancelled
    }

    /// Commands of an endpoint, or of all, that are not done.
    pub(crate) fn under_way(&self, of: Option<EndpointId>) -> usize {
        let counts = |endpoint| of.is_none_or(|of| of == endpoint);
        let routes = self.routes.iter().flatten().filter(|route| counts(route.endpoint));
        let displaced = self.displaced.iter().filter(|command| counts(command.endpoint)).count();
        displaced + routes.map(|route| route.under_way()).sum::<usize>()
    }

    /// Writes of peers with immediate data that are under way to an endpoint.
    pub(crate) fn notices_under_way(&self, endpoint: EndpointId) -> usize {
        let visitors = self.visitors.iter().flatten().filter(|visitor| visitor.arrival.endpoint == endpoint);
        visitors.map(|visitor| visitor.notices_under_way()).sum()
    }

    /// An endpoint closes: before the engine forgets it, its commands end.
    pub(crate) fn close_endpoint(&mut self, delivery: &mut Delivery<HostMemory>, endpoint: EndpointId) {
        self.end_commands(delivery, endpoint);
        self.dismiss(delivery, |arrival| arrival.endpoint == endpoint);
        for ways in &mut self.ways {
            ways.retain(|from, _| from != endpoint);
        }
    }

    /// All commands of an endpoint end.
    pub(crate) fn end_commands(&mut self, delivery: &mut Delivery<HostMemory>, endpoint: EndpointId) {
        for index in 0..self.routes.len() {
            if self.routes.get(index).and_then(Option::as_ref).is_some_and(|route| route.endpoint == endpoint) {
                self.end_route(delivery, index, Failure::Closed);
            }
        }
        let ended = |command: &mut Command| {
            let ends = command.endpoint == endpoint;
            if ends {
                delivery.report(command, Err(Failure::Closed));
            }
            !ends
        };
        self.displaced.retain_mut(ended);
    }

    /// An endpoint is there for one peer only: all others leave.
    pub(crate) fn restrict_endpoint(&mut self, delivery: &mut Delivery<HostMemory>, endpoint: EndpointId) {
        let strangers: Vec<_> = self
            .visitors
            .iter()
            .flatten()
            .map(|visitor| visitor.arrival)
            .filter(|arrival| arrival.endpoint == endpoint && !delivery.admits(endpoint, arrival.source_id))
            .collect();
        for stranger in strangers {
            self.dismiss(delivery, |arrival| arrival.endpoint == endpoint && arrival.source_id == stranger.source_id);
        }
        self.changed = true;
    }

    /// Ends channels of peers, who are told that there is no such endpoint.
    fn dismiss(&mut self, delivery: &mut Delivery<HostMemory>, whom: impl Fn(&Envelope) -> bool) {
        for index in 0..self.visitors.len() {
            let Some(Some(visitor)) = self.visitors.get(index) else { continue };
            if whom(&visitor.arrival) {
                visitor.channel.shared_word(WORD_STATE).store(NO_ENDPOINT, Ordering::SeqCst);
                self.end_visitor(delivery, index);
            }
        }
    }

    /// A region is about to be deregistered: no honest peer is in it when this returns. From a peer that does not let go of
    /// a device's memory, which cannot be taken away, the channel is taken.
    pub(crate) fn revoke(&mut self, delivery: &mut Delivery<HostMemory>, key: u64) {
        let until = Deadlines::from_now();
        for index in 0..self.visitors.len() {
            let Some(Some(visitor)) = self.visitors.get_mut(index) else { continue };
            if !visitor.granting.revoke(&visitor.channel, key, &until) {
                self.statistics.held += 1;
                self.end_visitor(delivery, index);
            }
        }
    }

    /// As [`Local::revoke`], for every region that was handed over to a peer of this endpoint.
    pub(crate) fn revoke_granted_at(&mut self, delivery: &mut Delivery<HostMemory>, endpoint: EndpointId) {
        let visitors = self.visitors.iter().flatten().filter(|visitor| visitor.arrival.endpoint == endpoint);
        let keys: Vec<u64> = visitors.flat_map(|visitor| visitor.granting.keys()).collect();
        for key in keys {
            self.revoke(delivery, key);
        }
    }

    /// A region had to be taken from peers by force.
    pub(crate) fn count_revoked(&mut self, revoked: bool) {
        self.statistics.revoked += u64::from(revoked);
    }

    /// Whether a peer's request waits until completions are read or receives posted.
    #[inline]
    pub(crate) fn is_blocked(&self) -> bool {
        self.may_be_blocked && self.visitors.iter().flatten().any(|visitor| visitor.blocked)
    }

    /// Says to all peers that this process sleeps: they wake it through [`Local::descriptor`]. False: there is something
    /// to do after all. It is never taken back: a peer that wakes somebody who is awake does so once.
    pub(crate) fn prepare_sleep(&mut self) -> bool {
        if !self.has_channels() {
            return true;
        }
        self.visitors.iter_mut().flatten().for_each(|visitor| visitor.announce_sleep());
        self.routes.iter_mut().flatten().for_each(|route| route.announce_sleep());
        // One barrier for all: what a peer does and we do not see now wakes us.
        self.node.sleep_barrier();
        self.visitors.iter_mut().flatten().all(|visitor| visitor.may_sleep(WANTED_ROOM_BYTES))
            && self.routes.iter_mut().flatten().all(|route| route.may_sleep(WANTED_ROOM_BYTES))
    }

    /// Sleepers have to look: there may be more to do than was done for them.
    pub(crate) fn set_changed(&mut self) {
        self.changed = true;
    }

    /// Whether somebody who sleeps has to be woken for more than completions.
    pub(crate) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }
}

/// Who waits for room waits for that of a part.
const WANTED_ROOM_BYTES: usize = weft_link::limits::PAYLOAD_MAX_BYTES;

fn insert<T>(slots: &mut Vec<Option<T>>, item: T) -> u32 {
    match slots.iter().position(Option::is_none) {
        Some(index) => {
            if let Some(slot) = slots.get_mut(index) {
                *slot = Some(item);
            }
            index as u32
        }
        None => {
            slots.push(Some(item));
            slots.len() as u32 - 1
        }
    }
}

fn shorten<T>(slots: &mut Vec<Option<T>>) {
    while matches!(slots.last(), Some(None)) {
        slots.pop();
    }
}

fn random_word() -> Option<u64> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).ok()?;
    Some(u64::from_ne_bytes(bytes))
}
