//! Progress: nodes with as little room as can be, programs that wait for each other, and a judge who wants everything to end
//! in a number of turns, once the network is quiet. Who waits for what is told when it does not.
//!
//! The scenarios have a source of chances of their own; see `plan.rs` for why nothing in them waits for itself.

mod plan;
mod task;

use std::net::IpAddr;
use std::sync::Arc;

use weft_core::address::{Address, PeerId};
use weft_core::command::{Command, EndpointId, Operation};
use weft_core::delivery::{Bindings, EndpointKind};
use weft_core::engine::{Config, Engine, Piece, Transmit};
use weft_core::event::{CompletionKind, QueueId};
use weft_core::memory::{Access, LocalKey, Memory};
use weft_core::packet::Codec;
use weft_core::time::Time;

use crate::memory::{Content, SimMemory, Use};
use crate::network::{Agenda, Event, MILLI, Network};
use crate::node::socket_of;
use crate::oracle::Violation;
use crate::random::{Random, mix};
use crate::trace::Trace;

use plan::{Place, Plan};
use task::{NOBODY, Task};

/// The region that tasks write, and that of cells.
const WRITTEN: usize = 0;
/// See [`WRITTEN`].
const CELLS: usize = 1;
/// Where memory that is lent begins, for peers.
const LENT_ADDRESS: u64 = 0x9000;
/// Turns of one program within which everything must end when the network is quiet. Deadlocks last for ever, and what needs
/// a timer again and again takes about as long.
const TURNS_MAX: u64 = 10_000;
/// Nothing goes on for so long without end.
const EVENTS_MAX: u64 = 2_000_000;

/// What a run exercised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Operations that ended.
    pub operations: u64,
    /// Requests that were refused because something was not ready.
    pub not_ready: u64,
    /// Turns that it took.
    pub turns: u64,
}

/// A node.
pub(crate) struct Party {
    engine: Engine<SimMemory>,
    endpoints: Vec<(EndpointId, QueueId, QueueId)>,
    peers: Vec<(Place, PeerId)>,
    /// The key that memory was lent under last.
    lent: u64,
    buffers: u32,
    timer: u64,
    turns: u64,
}

/// The key of a region: all nodes have the same ones.
fn key_of(region: usize) -> u64 {
    mix(region as u64 + 0x11fe)
}

impl Party {
    fn command(&self, operation: Operation, endpoint: usize, to: Place) -> Command {
        let peer = self.peers.iter().find(|(place, _)| *place == to).map_or(NOBODY, |(_, peer)| *peer);
        Command::new(operation, self.endpoint(endpoint), peer)
    }

    fn endpoint(&self, endpoint: usize) -> EndpointId {
        self.endpoints.get(endpoint).map_or(EndpointId(u32::MAX), |(id, ..)| *id)
    }

    fn attach(&mut self, bytes: &[u8], purpose: Use) -> LocalKey {
        self.buffers += 1;
        self.engine.delivery_mut().memory_mut().attach(bytes, purpose, 1 << 20)
    }

    /// The name of the buffer that is attached next.
    fn next_buffer(&self) -> LocalKey {
        LocalKey(self.buffers)
    }

    fn detach(&mut self, local: LocalKey) -> Result<Vec<u8>, String> {
        if local == LocalKey::NONE { Ok(Vec::new()) } else { self.engine.delivery_mut().memory_mut().detach(local) }
    }
}

struct Live<'a> {
    plan: Plan,
    tasks: Vec<Task>,
    parties: Vec<Party>,
    network: Network,
    agenda: Agenda,
    trace: &'a mut Trace,
    now: u64,
    quiet: bool,
    ended: u64,
}

/// Runs the scenario of a seed. `change` may alter the configuration of each node.
pub fn run(
    seed: u64,
    codec: &Arc<Codec>,
    trace: &mut Trace,
    change: impl Fn(&mut Config),
) -> Result<Counts, Violation> {
    let mut plan = Plan::new(seed);
    plan.nodes.iter_mut().for_each(|node| change(&mut node.config));
    let parties = parties(seed, &plan, codec);
    let network = Network::new(plan.nodes.len(), plan.faults.clone(), Random::new(seed, 6));
    let tasks = vec![Task::default(); plan.tasks.len()];
    let agenda = Agenda::default();
    let mut live = Live { plan, tasks, parties, network, agenda, trace, now: 0, quiet: false, ended: 0 };
    live.run()?;
    let not_ready = live.parties.iter().map(|party| party.engine.statistics().not_ready).sum();
    let turns = live.parties.iter().map(|party| party.turns).sum();
    Ok(Counts { operations: live.ended, not_ready, turns })
}

fn parties(seed: u64, plan: &Plan, codec: &Arc<Codec>) -> Vec<Party> {
    let mut addresses: Vec<(Place, Address)> = Vec::new();
    let mut parties = Vec::new();
    for (number, node) in plan.nodes.iter().enumerate() {
        let mut memory = SimMemory::new(1);
        let written = vec![0; task::written_bytes(plan) as usize];
        memory.register(key_of(WRITTEN), 0, Access::REMOTE, Content::WrittenOnce, &written);
        memory.register(key_of(CELLS), 0, Access::REMOTE, Content::Cells, &vec![0; plan.tasks.len() * 8]);
        let engine_seed = Random::new(seed, mix(number as u64 + 0x11fe)).seed();
        let mut engine = Engine::new(node.config.clone(), Arc::clone(codec), engine_seed, memory);
        let mut endpoints = Vec::new();
        for (at, endpoint) in node.endpoints.iter().enumerate() {
            let transmit = engine.delivery_mut().open_queue(endpoint.places);
            let receive = if endpoint.one_queue { transmit } else { engine.delivery_mut().open_queue(endpoint.places) };
            let bindings =
                Bindings { transmit_queue: Some(transmit), receive_queue: Some(receive), ..Bindings::default() };
            let id = engine.delivery_mut().open_endpoint(EndpointKind::Reliable, bindings);
            let number_of = engine.delivery().endpoint_number(id).unwrap_or(0);
            addresses.push(((number, at), Address { socket: socket_of(number), endpoint: number_of }));
            endpoints.push((id, transmit, receive));
        }
        parties.push(Party { engine, endpoints, peers: Vec::new(), lent: 0, buffers: 0, timer: u64::MAX, turns: 0 });
    }
    for party in &mut parties {
        for (place, address) in &addresses {
            let peer = party.engine.delivery_mut().addresses_mut().insert(*address, 1232);
            party.peers.extend(peer.map(|peer| (*place, peer)));
        }
    }
    parties
}

impl Live<'_> {
    fn run(&mut self) -> Result<(), Violation> {
        for node in 0..self.parties.len() {
            self.agenda.add(0, Event::Poll { node });
        }
        self.agenda.add(self.plan.quiet, Event::Cut { from: 0, to: 0, cut: false });
        let mut events = 0;
        while self.tasks.iter().any(|task| !task.done) {
            events += 1;
            let Some((at, event)) = self.agenda.take().filter(|_| events < EVENTS_MAX) else {
                return Err(self.stuck("events without end", None));
            };
            self.now = at;
            match event {
                Event::Arrive { from, to, mut bytes, marked } => {
                    let now = self.time();
                    self.trace.datagram(at, &format!("{from} => {to}"), &bytes);
                    let Some(party) = self.parties.get_mut(to) else { continue };
                    party.engine.delivery_mut().memory_mut().set_now(at);
                    party.engine.handle_datagram_early(now, socket_of(from).into(), &mut bytes, marked);
                    self.bring_out(to)?;
                }
                Event::Timer { node } => {
                    let now = self.time();
                    let Some(party) = self.parties.get_mut(node).filter(|party| party.timer == at) else { continue };
                    party.timer = u64::MAX;
                    party.engine.handle_timeout(now);
                    self.bring_out(node)?;
                }
                Event::Poll { node } => self.turn(node)?,
                _ => {
                    // The trouble is over.
                    self.network.heal();
                    self.quiet = true;
                    self.parties.iter_mut().for_each(|party| party.turns = 0);
                }
            }
        }
        Ok(())
    }

    fn time(&self) -> Time {
        Time(1_000_000_000 + self.now)
    }

    /// A program reads completions, and each of its tasks does what it can.
    fn turn(&mut self, node: usize) -> Result<(), Violation> {
        let now = self.time();
        let Some(spec) = self.plan.nodes.get(node) else { return Ok(()) };
        let turn = spec.turn;
        for (at, endpoint) in spec.endpoints.clone().into_iter().enumerate() {
            let paused = (endpoint.pause.0..endpoint.pause.1).contains(&self.now);
            let held = endpoint.reads_after.is_some_and(|task| self.tasks.get(task).is_some_and(|task| !task.done));
            let party = self.parties.get(node).and_then(|party| party.endpoints.get(at).copied());
            let Some((_, transmit, receive)) = party.filter(|_| !paused) else { continue };
            self.read(node, transmit, endpoint.reads)?;
            if !held && !endpoint.one_queue {
                self.read(node, receive, endpoint.reads)?;
            }
        }
        for id in 0..self.tasks.len() {
            let Some(plan) = self.plan.tasks.get(id).filter(|plan| plan.place.0 == node && plan.from <= self.now)
            else {
                continue;
            };
            let waits = plan.after.is_some_and(|task| self.tasks.get(task).is_some_and(|task| !task.done));
            let (Some(task), Some(party)) = (self.tasks.get_mut(id), self.parties.get_mut(node)) else { continue };
            if task.done || waits {
                continue;
            }
            match task.turn(id, plan, party, now) {
                Ok(true) => {
                    let (now, text) = (self.now, format!("task {id}: {task:?}"));
                    self.trace.line(now, || text);
                }
                Ok(false) => {}
                Err(text) => return Err(self.stuck("a broken promise", Some((node, text)))),
            }
            self.bring_out(node)?;
        }
        let Some(party) = self.parties.get_mut(node) else { return Ok(()) };
        party.turns += 1;
        if self.quiet && party.turns > TURNS_MAX {
            return Err(self.stuck("no progress", None));
        }
        self.agenda.add(self.now + turn, Event::Poll { node });
        self.bring_out(node)
    }

    fn read(&mut self, node: usize, queue: QueueId, most: usize) -> Result<(), Violation> {
        for _ in 0..most {
            let Some(party) = self.parties.get_mut(node) else { return Ok(()) };
            let Some(completion) = party.engine.delivery_mut().poll_completion(queue) else { break };
            if completion.kind == CompletionKind::RemoteWrite {
                continue;
            }
            self.ended += 1;
            let Some(task) = self.tasks.get_mut(completion.context as usize) else { continue };
            if let Err(text) = task.completed(&completion, party) {
                let text = format!("task {}: {text}", completion.context);
                return Err(self.stuck("a broken promise", Some((node, text))));
            }
        }
        self.bring_out(node)
    }

    /// Sends what is to be sent, and notes when the engine wants to be called.
    fn bring_out(&mut self, node: usize) -> Result<(), Violation> {
        let (now, time) = (self.now, self.time());
        let Some(party) = self.parties.get_mut(node) else { return Ok(()) };
        let mut transmit = Transmit::default();
        loop {
            if !party.engine.poll_transmit(time, &mut transmit) {
                if !party.engine.has_deferred_ack() {
                    break;
                }
                party.engine.handle_deferred_ack();
                continue;
            }
            let mut bytes = Vec::new();
            for piece in &transmit.pieces {
                match *piece {
                    Piece::Bytes { start, length } => {
                        let end = start as usize + length as usize;
                        bytes.extend_from_slice(transmit.bytes.get(start as usize..end).unwrap_or_default());
                    }
                    Piece::Memory(granted) => {
                        let from = bytes.len();
                        bytes.resize(from + granted.length as usize, 0);
                        let read =
                            party.engine.delivery().memory().read(granted, bytes.get_mut(from..).unwrap_or_default());
                        if read.is_err() {
                            break;
                        }
                    }
                }
            }
            let to = match transmit.path.remote.ip() {
                IpAddr::V4(v4) => usize::from(v4.octets()[3]),
                IpAddr::V6(_) => usize::MAX,
            };
            let each = if transmit.segment_bytes == 0 { bytes.len().max(1) } else { transmit.segment_bytes };
            for datagram in bytes.chunks(each) {
                self.trace.datagram(now, &format!("{node} -> {to}"), datagram);
                self.network.send(&mut self.agenda, now, (node, to), datagram.to_vec(), transmit.may_fragment);
            }
        }
        if let Some(text) = party.engine.delivery().memory().take_wrong() {
            return Err(self.stuck("memory", Some((node, text))));
        }
        let due = party.engine.poll_timeout();
        let due = if due == Time::NEVER { u64::MAX } else { due.0.saturating_sub(1_000_000_000).max(now) };
        if due != party.timer && due != u64::MAX {
            party.timer = due;
            self.agenda.add(due, Event::Timer { node });
        }
        Ok(())
    }

    /// Who waits for what.
    fn stuck(&self, kind: &'static str, wrong: Option<(usize, String)>) -> Violation {
        let mut text = wrong.as_ref().map_or(String::new(), |(_, text)| format!("{text}; "));
        for (id, (task, plan)) in
            self.tasks.iter().zip(&self.plan.tasks).enumerate().filter(|(_, (task, _))| !task.done)
        {
            let waits = plan.after.filter(|task| self.tasks.get(*task).is_some_and(|task| !task.done));
            let waits = waits.map_or(String::new(), |task| format!(" waits for task {task},"));
            let (posted, ended) = (task.posted, task.ended);
            text += &format!("task {id} at {:?}{waits} posted {posted}, ended {ended}: {:?}; ", plan.place, plan.job);
        }
        for (node, party) in self.parties.iter().enumerate() {
            let state = party.engine.state();
            let (commands, unexpected, receives, reserved) =
                (state.commands, state.unexpected, state.receives, state.reserved);
            text += &format!(
                "node {node}: {commands} commands, {unexpected} unexpected, {receives} receives, {reserved} reserved; "
            );
        }
        Violation { kind, at: self.now, node: wrong.map(|(node, _)| node), operation: None, text }
    }
}

const _: () = assert!(TURNS_MAX * 100 * crate::network::MICRO >= 1000 * MILLI, "ten of the longest waits for a credit");
