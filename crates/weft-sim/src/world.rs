//! The simulated world: nodes, the network between them, the agenda and the judge, and the loop that drives them.

use std::collections::BTreeMap;
use std::sync::Arc;

use weft_core::command::PostError;
use weft_core::engine::Statistics;
use weft_core::limits::MTU_DEFAULT_BYTES;
use weft_core::packet::Codec;

use crate::memory::SimMemory;
use crate::network::{Agenda, Event, MICRO, Network};
use crate::node::{Node, socket_of};
use crate::oracle::{Oracle, Start, Violation};
use crate::random::{Random, mix};
use crate::scenario::{Narrowing, Place, Scenario};
use crate::trace::Trace;
use crate::workload::{self, What};

/// Events after which a run is taken to go round in circles.
const EVENTS_MAX: u64 = 400_000;
/// How often a program tries again when the engine had no room.
const TRIES_MAX: u32 = 12;

/// A world.
pub struct World<'a> {
    /// What happens in it.
    pub scenario: &'a Scenario,
    /// The judge.
    pub oracle: Oracle,
    /// The network.
    pub network: Network,
    /// The record.
    pub trace: Trace,
    /// Restarts until now.
    pub restarts: u64,
    /// Events until now.
    pub events: u64,
    /// Sum of what the engines counted.
    pub statistics: Statistics,
    codec: Arc<Codec>,
    pub(crate) agenda: Agenda,
    pub(crate) nodes: Vec<Option<Node>>,
    incarnations: Vec<u32>,
    /// Which start of each other node a node knows.
    known: Vec<Vec<Option<u32>>>,
    graves: BTreeMap<Start, SimMemory>,
    written_bytes: Vec<u64>,
    /// Nodes that will read their completions.
    poll_noted: Vec<bool>,
    /// Nodes that could not post all spare receives.
    pub(crate) spare_refused: Vec<bool>,
    pub(crate) now: u64,
    pub(crate) winding_up: bool,
}

impl<'a> World<'a> {
    /// A world at its beginning.
    #[must_use]
    pub fn new(scenario: &'a Scenario, codec: &Arc<Codec>, trace: Trace) -> World<'a> {
        let count = scenario.nodes.len();
        let random = Random::new(scenario.seed, 2 + mix(scenario.salt));
        let written = |node| workload::written_bytes(&scenario.operations, node);
        let mut world = World {
            scenario,
            oracle: Oracle::new(scenario),
            network: Network::new(count, scenario.faults.clone(), random),
            trace,
            restarts: 0,
            events: 0,
            statistics: Statistics::default(),
            codec: Arc::clone(codec),
            agenda: Agenda::default(),
            nodes: (0..count).map(|_| None).collect(),
            incarnations: vec![0; count],
            known: vec![vec![None; count]; count],
            graves: BTreeMap::new(),
            written_bytes: (0..count).map(written).collect(),
            poll_noted: vec![false; count],
            spare_refused: vec![false; count],
            now: 0,
            winding_up: false,
        };
        (0..count).for_each(|node| world.start(node));
        for node in 0..count {
            (0..count).for_each(|other| world.learn(node, other));
        }
        world.fill_agenda();
        world
    }

    fn fill_agenda(&mut self) {
        for crash in &self.scenario.crashes {
            self.agenda.add(crash.at, Event::Crash { node: crash.node });
            self.agenda.add(crash.at + crash.down, Event::Restart { node: crash.node });
            for node in 0..self.nodes.len() {
                let at = crash.at + crash.down + crash.unnoticed;
                self.agenda.add(at, Event::Learn { node, other: crash.node });
            }
        }
        for cut in &self.scenario.partitions {
            let ways = [(cut.from, cut.to), (cut.to, cut.from)];
            for (from, to) in ways.into_iter().take(if cut.both { 2 } else { 1 }) {
                self.agenda.add(cut.at, Event::Cut { from, to, cut: true });
                self.agenda.add(cut.at + cut.lasts, Event::Cut { from, to, cut: false });
            }
        }
        for &Narrowing { from, to, at, lasts, carries } in &self.scenario.narrowings {
            self.agenda.add(at, Event::Narrow { from, to, carries: Some(carries) });
            // The end of the trouble may come first.
            if at + lasts < self.scenario.end {
                self.agenda.add(at + lasts, Event::Narrow { from, to, carries: None });
            }
        }
        for operation in &self.scenario.operations {
            self.agenda.add(operation.at, Event::Operate { id: operation.id, tries: 0 });
        }
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Runs to the end and judges.
    pub fn run(&mut self) -> Result<(), Violation> {
        self.run_until(self.scenario.end)?;
        self.wind_up()?;
        self.rest()?;
        self.close()
    }

    pub(crate) fn violation(&self, kind: &'static str, node: Option<usize>, text: String) -> Violation {
        Violation { kind, at: self.now, node, operation: None, text }
    }

    pub(crate) fn run_until(&mut self, end: u64) -> Result<(), Violation> {
        while self.agenda.next_at().is_some_and(|at| at <= end) {
            self.step()?;
        }
        self.now = self.now.max(end);
        Ok(())
    }

    pub(crate) fn step(&mut self) -> Result<(), Violation> {
        let Some((at, event)) = self.agenda.take() else { return Ok(()) };
        self.events += 1;
        if self.events > EVENTS_MAX {
            return Err(self.violation("without end", None, format!("{EVENTS_MAX} events: {event:?}")));
        }
        self.now = self.now.max(at);
        match event {
            Event::Arrive { from, to, bytes, marked } => self.arrive(from, to, bytes, marked),
            Event::Timer { node } => {
                let now = self.now;
                let Some(up) = self.nodes.get_mut(node).and_then(Option::as_mut) else { return Ok(()) };
                if up.timer != at {
                    return Ok(());
                }
                up.timer = u64::MAX;
                self.trace.note(&[now, 1, node as u64]);
                up.note_time(now);
                let local = up.local_time(now);
                up.engine.handle_timeout(local);
                self.settle(node)
            }
            Event::Poll { node } => {
                self.poll_noted.iter_mut().skip(node).take(1).for_each(|noted| *noted = false);
                // Reading makes room, which may lead to more.
                if self.poll(node)? { self.settle(node) } else { self.bring_out(node) }
            }
            Event::Operate { id, tries } => self.operate(id, tries),
            Event::Crash { node } => self.crash(node),
            Event::Restart { node } => {
                if self.nodes.get(node).is_some_and(Option::is_none) {
                    self.start(node);
                    (0..self.nodes.len()).for_each(|other| self.learn(node, other));
                }
                Ok(())
            }
            Event::Learn { node, other } => {
                self.learn(node, other);
                Ok(())
            }
            Event::Cut { from, to, cut } => {
                self.network.cut(from, to, cut);
                self.trace.line(self.now, || format!("way {from} > {to} {}", if cut { "cut" } else { "joined" }));
                Ok(())
            }
            Event::Narrow { from, to, carries } => {
                self.network.narrow(from, to, carries);
                self.trace.line(self.now, || format!("way {from} > {to} carries {carries:?}"));
                Ok(())
            }
        }
    }

    pub(crate) fn start(&mut self, node: usize) {
        let (Some(spec), Some(incarnation)) = (self.scenario.nodes.get(node), self.incarnations.get(node).copied())
        else {
            return;
        };
        let written = self.written_bytes.get(node).copied().unwrap_or(0);
        let started = Node::start(spec, &self.codec, node, incarnation, self.scenario.seed, written);
        for endpoint in 0..started.endpoints.len() {
            if let Some(address) = started.address(endpoint) {
                self.oracle.learn(address, Place { node, endpoint }, incarnation);
            }
        }
        self.trace.line(self.now, || format!("node {node} starts, start {incarnation}"));
        if let Some(slot) = self.nodes.get_mut(node) {
            *slot = Some(started);
        }
    }

    /// `node` hears the present addresses of `other`.
    pub(crate) fn learn(&mut self, node: usize, other: usize) {
        let Some(Some(known)) = self.nodes.get(other) else { return };
        let incarnation = known.incarnation;
        let addresses: Vec<_> = (0..known.endpoints.len()).filter_map(|at| Some((at, known.address(at)?))).collect();
        let mtu = self.scenario.mtu;
        let Some(Some(learner)) = self.nodes.get_mut(node) else { return };
        for (endpoint, address) in addresses {
            learner.learn(Place { node: other, endpoint }, incarnation, address, mtu);
        }
        if let Some(slot) = self.known.get_mut(node).and_then(|known| known.get_mut(other)) {
            *slot = Some(incarnation);
        }
    }

    /// All completions that are there count as seen, so that the judge knows what the engine had done.
    fn crash(&mut self, node: usize) -> Result<(), Violation> {
        self.poll(node)?;
        let Some(mut dead) = self.nodes.get_mut(node).and_then(Option::take) else { return Ok(()) };
        let start = (node, dead.incarnation);
        self.trace.line(self.now, || format!("node {node} crashes"));
        self.count(&dead);
        self.oracle.crashed(start);
        self.graves.insert(start, std::mem::take(dead.engine.delivery_mut().memory_mut()));
        self.restarts += 1;
        if let Some(incarnation) = self.incarnations.get_mut(node) {
            *incarnation += 1;
        }
        if let Some(known) = self.known.get_mut(node) {
            known.fill(None);
        }
        Ok(())
    }

    pub(crate) fn count(&mut self, node: &Node) {
        let (sum, more) = (&mut self.statistics, node.engine.statistics());
        sum.datagrams_sent += more.datagrams_sent;
        sum.packets_sent += more.packets_sent;
        sum.retransmissions += more.retransmissions;
        sum.timeouts += more.timeouts;
        sum.duplicates += more.duplicates;
        sum.dropped_damaged += more.dropped_damaged;
        sum.dropped_late += more.dropped_late;
        sum.dropped_datagrams += more.dropped_datagrams;
        sum.not_ready += more.not_ready;
        sum.held += more.held;
        sum.tickets_offered += more.tickets_offered;
        sum.given_up += more.given_up;
        sum.absent += more.absent;
        sum.narrowed += more.narrowed;
        sum.widened += more.widened;
        sum.withdrawn += more.withdrawn;
    }

    fn arrive(&mut self, from: usize, to: usize, mut bytes: Vec<u8>, marked: bool) -> Result<(), Violation> {
        let now = self.now;
        let Some(node) = self.nodes.get_mut(to).and_then(Option::as_mut) else {
            self.network.counts.down_drops += 1;
            return self.tell_absent(from, to, &bytes);
        };
        self.network.counts.delivered += 1;
        self.trace.note(&[now, 2, from as u64, to as u64]);
        self.trace.note_bytes(&bytes);
        self.trace.datagram(now, &format!("{from} => {to}"), &bytes);
        node.note_time(now);
        let local = node.local_time(now);
        node.engine.handle_datagram_early(local, socket_of(from).into(), &mut bytes, marked);
        self.settle(to)
    }

    /// The host of a node that is down says so to who sent it something.
    fn tell_absent(&mut self, from: usize, to: usize, bytes: &[u8]) -> Result<(), Violation> {
        let now = self.now;
        let Some(node) = self.nodes.get_mut(from).and_then(Option::as_mut) else { return Ok(()) };
        node.note_time(now);
        let local = node.local_time(now);
        node.engine.handle_absent(local, socket_of(to).into(), bytes);
        self.settle(from)
    }

    fn operate(&mut self, id: u32, tries: u32) -> Result<(), Violation> {
        let now = self.now;
        let Some(operation) = self.oracle.records.get(id as usize).map(|record| record.operation.clone()) else {
            return Ok(());
        };
        let place = operation.place;
        let known = operation.peer().map(|peer| {
            let known = self.known.get(place.node).and_then(|known| known.get(peer.node).copied().flatten());
            known.map(|incarnation| (peer.node, incarnation))
        });
        let Some(node) = self.nodes.get_mut(place.node).and_then(Option::as_mut) else { return Ok(()) };
        let start = (place.node, node.incarnation);
        node.note_time(now);
        if let What::Cancel { of } = operation.what {
            let mine = self
                .oracle
                .records
                .get(of as usize)
                .is_some_and(|record| record.start == start && self.oracle.is_pending(record));
            let (local, endpoint) = (node.local_time(now), node.endpoints.get(place.endpoint).copied());
            let done = mine && endpoint.is_some_and(|endpoint| node.engine.cancel(local, endpoint, u64::from(of)));
            self.trace.line(now, || format!("{} cancels {of}: {done}", place.node));
            if done {
                self.oracle.cancelled(of);
            }
            return self.settle(place.node);
        }
        match operation.what {
            What::Close => return self.close_one(place),
            What::TooBig { to } => {
                let local = node.local_time(now);
                node.engine.handle_too_big(local, socket_of(to).into(), MTU_DEFAULT_BYTES);
                return self.settle(place.node);
            }
            _ => {}
        }
        if known == Some(None) {
            return Ok(());
        }
        let target = known.flatten();
        self.oracle.begin(now, id, start, target);
        let incarnation = target.map(|(_, incarnation)| incarnation);
        let posted = match operation.what {
            What::Receive { .. } => node.post_receive(&operation, incarnation),
            _ => node.post(now, &operation, incarnation.unwrap_or(0)),
        };
        self.oracle.begun(id, posted.as_ref().ok().copied());
        self.trace.note(&[now, 3, u64::from(id), u64::from(posted.is_ok())]);
        self.trace.line(now, || format!("{} posts {id}: {:?} {posted:?}", place.node, operation.what));
        if let Err(Some(error)) = posted {
            let closed = error == PostError::NoSuchEndpoint && self.oracle.is_closed(Some(start), place);
            if closed {
                return Ok(());
            }
            if !matches!(error, PostError::QueueFull | PostError::CompletionQueueFull) {
                let violation = self.violation("refused without cause", Some(place.node), error.to_string());
                return Err(Violation { operation: Some(id), ..violation });
            }
            if tries < TRIES_MAX {
                self.agenda.add(now + ((100 * MICRO) << tries), Event::Operate { id, tries: tries + 1 });
            }
        }
        self.settle(place.node)
    }

    /// Closes one endpoint. What ended before is read first: afterwards its buffers are gone.
    fn close_one(&mut self, place: Place) -> Result<(), Violation> {
        self.poll(place.node)?;
        let now = self.now;
        let Some(node) = self.nodes.get_mut(place.node).and_then(Option::as_mut) else { return Ok(()) };
        self.oracle.closes((place.node, node.incarnation), place);
        self.trace.line(now, || format!("{} closes endpoint {}", place.node, place.endpoint));
        if let Some(endpoint) = node.endpoints.get(place.endpoint).copied() {
            let local = node.local_time(now);
            node.engine.close_endpoint(local, endpoint);
        }
        self.settle(place.node)
    }

    /// Brings out what the last call to a node's engine led to.
    pub(crate) fn settle(&mut self, node: usize) -> Result<(), Violation> {
        let every = self.poll_every(node);
        // A lazy program looks some time after something happened.
        if every > 0
            && let Some(noted @ false) = self.poll_noted.get_mut(node)
        {
            *noted = true;
            self.agenda.add(self.now + every, Event::Poll { node });
        }
        self.bring_out(node)
    }

    /// How long a program lets completions wait.
    fn poll_every(&self, node: usize) -> u64 {
        let every = self.scenario.nodes.get(node).map_or(0, |spec| spec.poll_every);
        if self.winding_up { 0 } else { every }
    }

    fn bring_out(&mut self, node: usize) -> Result<(), Violation> {
        let eager = self.poll_every(node) == 0;
        loop {
            self.flush(node)?;
            let read = eager && self.poll(node)?;
            let refused = self.spare_refused.get(node) == Some(&true);
            if self.winding_up && (read || refused) {
                self.spare_receives(node)?;
            }
            if !read {
                break;
            }
        }
        let Some(up) = self.nodes.get_mut(node).and_then(Option::as_mut) else { return Ok(()) };
        let due = up.true_time(up.engine.poll_timeout());
        if due != up.timer {
            up.timer = if due == u64::MAX { due } else { due.max(self.now) };
            if due != u64::MAX {
                self.agenda.add(up.timer, Event::Timer { node });
            }
        }
        Ok(())
    }

    /// Sends what is to be sent and judges what was written.
    pub(crate) fn flush(&mut self, node: usize) -> Result<(), Violation> {
        let now = self.now;
        let Some(up) = self.nodes.get_mut(node).and_then(Option::as_mut) else { return Ok(()) };
        let start = (node, up.incarnation);
        let (network, agenda, trace) = (&mut self.network, &mut self.agenda, &mut self.trace);
        let mut drained;
        loop {
            let mut refused = Vec::new();
            drained = up.drain(now, |to, bytes, may_fragment| {
                let other = match to.ip() {
                    std::net::IpAddr::V4(v4) => usize::from(v4.octets()[3]),
                    std::net::IpAddr::V6(_) => usize::MAX,
                };
                trace.note(&[now, 4, node as u64, other as u64]);
                trace.datagram(now, &format!("{node} -> {other}"), &bytes);
                match network.refuses(node, other, bytes.len(), may_fragment) {
                    Some(carried) => refused.push((to, carried)),
                    None => network.send(agenda, now, (node, other), bytes, may_fragment),
                }
            });
            if refused.is_empty() {
                break;
            }
            for (to, carried) in refused {
                let local = up.local_time(now);
                up.engine.handle_too_big(local, to.into(), carried);
            }
        }
        let memory = up.engine.delivery_mut().memory_mut();
        let wrong = memory.take_wrong();
        let (changes, released) = (memory.take_changes(), memory.take_released());
        for change in &changes {
            self.oracle.changed(now, start, change)?;
        }
        for key in released {
            self.oracle.released(now, start, key, memory)?;
        }
        match (wrong, drained) {
            (Some(text), _) => Err(self.violation("memory", Some(node), text)),
            (None, Err(text)) => Err(self.violation("sending", Some(node), text)),
            (None, Ok(())) => Ok(()),
        }
    }

    /// Reads the completions of a node; whether there were any.
    pub(crate) fn poll(&mut self, node: usize) -> Result<bool, Violation> {
        self.flush(node)?;
        let now = self.now;
        let Some(up) = self.nodes.get_mut(node).and_then(Option::as_mut) else { return Ok(false) };
        let start = (node, up.incarnation);
        let mut any = false;
        let mut reads = Vec::new();
        for queue in up.queues.clone() {
            while let Some(completion) = up.engine.delivery_mut().poll_completion(queue) {
                any = true;
                self.trace.note(&[now, 5, node as u64, completion.context, completion.length]);
                self.trace.note(&[u64::from(completion.result.is_ok()), completion.immediate.unwrap_or(1)]);
                self.trace.line(now, || {
                    let (kind, context, result) = (completion.kind, completion.context, completion.result);
                    format!("{node} sees {kind:?} {context} {result:?} immediate {:?}", completion.immediate)
                });
                reads.extend(self.oracle.completed(now, start, &completion, up.engine.delivery_mut().memory_mut())?);
            }
        }
        for read in reads {
            let alive = self.nodes.get(read.target.0).and_then(Option::as_ref);
            let alive = alive.filter(|other| other.incarnation == read.target.1);
            let memory = alive.map(|other| other.engine.delivery().memory()).or_else(|| self.graves.get(&read.target));
            memory.map_or(Ok(()), |memory| read.judge(memory))?;
        }
        Ok(any)
    }
}
