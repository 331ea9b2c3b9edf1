//! One simulated node: an engine with its memory and clock, and the translation of a program's operations to calls.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use weft_core::address::{Address, PeerId};
use weft_core::atomic::AtomicCall;
use weft_core::command::{Command, CommandFlags, EndpointId, Operation as Verb, PostError, Receive};
use weft_core::delivery::{Bindings, EndpointKind};
use weft_core::engine::{Engine, Piece, Transmit};
use weft_core::event::{Counter, CounterId, QueueId};
use weft_core::memory::{Access, LocalKey, Memory};
use weft_core::packet::Codec;
use weft_core::time::Time;

use crate::cells;
use crate::memory::{Content, SimMemory, Use};
use crate::random::{Random, fill, mix};
use crate::scenario::{NodeSpec, Place};
use crate::workload::{CELLS, CONSTANT_BYTES, Mistake, Operation, Qualities, What};

/// The region that peers write.
pub const WRITTEN: usize = 0;
/// The region that peers only read.
pub const CONSTANT: usize = 1;
/// The region of cells.
pub const CELL: usize = 2;
/// Stands before the bytes of a message that are not its pattern: marks the number of the operation.
pub const MAGIC: u32 = 0x5741_5246;
/// Bytes of the mark.
pub const MARK_BYTES: usize = 8;
/// Fills what stands before an operation's range in its buffer.
pub const LEAD: u8 = 0xc3;

/// A start of a node.
#[derive(Debug)]
pub struct Node {
    /// Its number.
    pub number: usize,
    /// How often it was started before.
    pub incarnation: u32,
    /// The engine.
    pub engine: Engine<SimMemory>,
    /// Its endpoints, the one for datagrams last.
    pub endpoints: Vec<EndpointId>,
    /// Its completion queues.
    pub queues: Vec<QueueId>,
    /// When the agenda has its next call; [`u64::MAX`]: not at all.
    pub timer: u64,
    seed: u64,
    rate: u64,
    clock: u64,
    piece: u64,
    written_bytes: u64,
    counters: [CounterId; 3],
    peers: BTreeMap<(Place, u32), PeerId>,
    transmit: Transmit,
}

/// What the engine was given for an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Given {
    /// The buffer.
    pub local: LocalKey,
    /// Bytes of the buffer before the operation's.
    pub lead: u64,
    /// The buffer for results.
    pub results: LocalKey,
}

/// The key of a region.
#[must_use]
pub fn key_of(seed: u64, place: (usize, u32), region: usize) -> u64 {
    mix(seed ^ mix((place.0 as u64) << 32 | u64::from(place.1)) ^ (region as u64 + 1) << 56)
}

/// Where a region begins, for peers.
#[must_use]
pub fn address_of(region: usize) -> u64 {
    0x7000_0000 + ((region as u64) << 24)
}

/// The socket of a node.
#[must_use]
pub fn socket_of(node: usize) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, (node >> 8) as u8, node as u8)), 4791)
}

/// The number that an atomic of an operation has as operand: no two have the same.
#[must_use]
pub fn operand_of(operation: u32) -> u64 {
    mix(u64::from(operation) ^ 0xa70_31c) >> 1 | 1
}

/// What a message of an operation consists of.
#[must_use]
pub fn payload_of(operation: u32, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fill(operation, 0, &mut bytes);
    if let Some((mark, _)) = bytes.split_first_chunk_mut::<MARK_BYTES>() {
        *mark = (u64::from(MAGIC) << 32 | u64::from(operation)).to_le_bytes();
    }
    bytes
}

impl Node {
    /// Starts a node.
    #[must_use]
    pub fn start(
        spec: &NodeSpec,
        codec: &Arc<Codec>,
        number: usize,
        incarnation: u32,
        seed: u64,
        written_bytes: u64,
    ) -> Node {
        let mut memory = SimMemory::new(incarnation + 1);
        let key = |region| key_of(seed, (number, incarnation), region);
        let written = vec![0; written_bytes as usize];
        memory.register(key(WRITTEN), address_of(WRITTEN), Access::REMOTE, Content::WrittenOnce, &written);
        let mut constant = vec![0; CONSTANT_BYTES as usize];
        fill(u32::MAX, 0, &mut constant);
        memory.register(key(CONSTANT), address_of(CONSTANT), Access::REMOTE_READ, Content::Constant, &constant);
        let cells = vec![0; (CELLS * cells::BYTES) as usize];
        memory.register(key(CELL), address_of(CELL), Access::REMOTE, Content::Cells, &cells);

        let engine_seed = Random::new(seed, mix((number as u64) << 32 | u64::from(incarnation))).seed();
        let mut engine = Engine::new(spec.config.clone(), Arc::clone(codec), engine_seed, memory);
        let counters = [
            engine.delivery_mut().open_counter(),
            engine.delivery_mut().open_counter(),
            engine.delivery_mut().open_counter(),
        ];
        let [send, read, write] = counters.map(Some);
        let mut endpoints = Vec::new();
        let mut queues = Vec::new();
        for at in 0..=spec.reliable {
            let kind = if at == spec.reliable { EndpointKind::Datagram } else { EndpointKind::Reliable };
            let transmit = engine.delivery_mut().open_queue(spec.queue);
            queues.push(transmit);
            let receive = if spec.one_queue { transmit } else { engine.delivery_mut().open_queue(spec.queue) };
            if !spec.one_queue {
                queues.push(receive);
            }
            let bindings = Bindings {
                transmit_queue: Some(transmit),
                receive_queue: Some(receive),
                send_counter: send,
                read_counter: read,
                write_counter: write,
                ..Bindings::default()
            };
            endpoints.push(engine.delivery_mut().open_endpoint(kind, bindings));
        }
        let transmit = Transmit::default();
        Node {
            number,
            incarnation,
            engine,
            endpoints,
            queues,
            timer: u64::MAX,
            seed,
            rate: spec.rate,
            clock: spec.clock,
            piece: spec.piece,
            written_bytes,
            counters,
            peers: BTreeMap::new(),
            transmit,
        }
    }

    /// What its clock shows.
    #[must_use]
    pub fn local_time(&self, now: u64) -> Time {
        Time(self.clock + ((u128::from(now) * u128::from(self.rate)) >> 10) as u64)
    }

    /// When its clock will show this.
    #[must_use]
    pub fn true_time(&self, local: Time) -> u64 {
        if local == Time::NEVER {
            return u64::MAX;
        }
        let since = u128::from(local.0.saturating_sub(self.clock));
        ((since << 10).div_ceil(u128::from(self.rate))) as u64
    }

    /// The address of one of its endpoints.
    #[must_use]
    pub fn address(&self, endpoint: usize) -> Option<Address> {
        let number = self.engine.delivery().endpoint_number(*self.endpoints.get(endpoint)?)?;
        Some(Address { socket: socket_of(self.number), endpoint: number })
    }

    /// What its counters show: sends, reads, writes.
    #[must_use]
    pub fn counters(&self) -> ((usize, u32), [Counter; 3]) {
        ((self.number, self.incarnation), self.counters.map(|counter| self.engine.delivery().counter(counter)))
    }

    /// Learns an address.
    pub fn learn(&mut self, place: Place, incarnation: u32, address: Address, mtu: u32) {
        if let Some(peer) = self.engine.delivery_mut().addresses_mut().insert(address, mtu) {
            self.peers.insert((place, incarnation), peer);
        }
    }

    /// Sets the time of the record of writes.
    pub fn note_time(&mut self, now: u64) {
        self.engine.delivery_mut().memory_mut().set_now(now);
    }

    /// Gives a receive to the engine.
    pub fn post_receive(&mut self, operation: &Operation, source: Option<u32>) -> Result<Given, Option<PostError>> {
        let What::Receive { tag, source: from, length, multi } = operation.what else { return Err(None) };
        let source = match from {
            None => None,
            Some(place) => {
                let known = source.and_then(|incarnation| self.peers.get(&(place, incarnation)));
                Some(*known.ok_or(None)?)
            }
        };
        let given = self.attach(operation.id, &vec![0; length as usize], Use::Target);
        let receive = Receive {
            endpoint: self.endpoint(operation.place)?,
            local: given.local,
            offset: given.lead,
            length,
            source,
            tagged: tag.is_some(),
            tag: tag.map_or(0, |(tag, _)| tag),
            ignore: tag.map_or(0, |(_, ignore)| ignore),
            multi,
            silent: false,
            announce: false,
            context: u64::from(operation.id),
            counter: None,
        };
        self.engine.delivery_mut().post_receive(&receive).map_err(|error| self.take_back(given, error))?;
        Ok(given)
    }

    /// Gives a command to the engine; `target` is the start of the peer that its program believes in. Without error text
    /// the program did not know the peer.
    pub fn post(&mut self, now: u64, operation: &Operation, target: u32) -> Result<Given, Option<PostError>> {
        let place = operation.peer().ok_or(None)?;
        let peer = *self.peers.get(&(place, target)).ok_or(None)?;
        let mut command = Command::new(Verb::Send, self.endpoint(operation.place)?, peer);
        command.context = u64::from(operation.id);
        let key = |region| key_of(self.seed, (place.node, target), region);
        let id = operation.id;
        let mut results = LocalKey::NONE;
        let given = match operation.what {
            What::Send { tag, length, level, .. } => {
                command.operation = if tag.is_some() { Verb::TaggedSend } else { Verb::Send };
                command.address = tag.unwrap_or(0);
                (command.length, command.level) = (length, level);
                self.attach(id, &payload_of(id, length as usize), Use::Source)
            }
            What::Datagram { length, .. } => {
                (command.operation, command.length) = (Verb::Datagram, length);
                self.attach(id, &payload_of(id, length as usize), Use::Source)
            }
            What::Write { offset, length, level, mistake, .. } => {
                command.operation = Verb::Write;
                (command.length, command.level) = (length, level);
                (command.address, command.key) = (address_of(WRITTEN) + offset, key(WRITTEN));
                match mistake {
                    Mistake::None => {}
                    Mistake::Key => command.key ^= 0xbad0,
                    Mistake::Range => command.address = address_of(WRITTEN) + self.written_bytes.max(1 << 23),
                    Mistake::Right => (command.address, command.key) = (address_of(CONSTANT), key(CONSTANT)),
                }
                let mut bytes = vec![0; length as usize];
                fill(id, 0, &mut bytes);
                self.attach(id, &bytes, Use::Source)
            }
            What::Read { written, offset, length, mistake, .. } => {
                command.operation = Verb::Read;
                command.length = length;
                let region = if written { WRITTEN } else { CONSTANT };
                (command.address, command.key) = (address_of(region) + offset, key(region));
                match mistake {
                    Mistake::Key => command.key ^= 0xbad0,
                    Mistake::Range => command.address = address_of(CELL) - u64::from(length) / 2 - 1,
                    Mistake::None | Mistake::Right => {}
                }
                self.attach(id, &vec![0; length as usize], Use::Target)
            }
            What::Atomic { cell, operation, fetch, .. } => {
                let compares = matches!(operation, cells::SWAP_IF_EQUAL | cells::SWAP_IF_LESS);
                command.operation = match (compares, fetch) {
                    (true, _) => Verb::CompareAtomic,
                    (false, true) => Verb::FetchAtomic,
                    (false, false) => Verb::Atomic,
                };
                command.atomic = AtomicCall { operation, datatype: cells::DATATYPE, count: 1 };
                (command.address, command.key) = (address_of(CELL) + cell * cells::BYTES, key(CELL));
                let mut bytes = if compares { vec![0; 8] } else { Vec::new() };
                bytes.extend_from_slice(&operand_of(id).to_le_bytes());
                command.length = bytes.len() as u32;
                if fetch {
                    results = self.engine.delivery_mut().memory_mut().attach(&[0; 8], Use::Target, 1 << 20);
                }
                self.attach(id, &bytes, Use::Source)
            }
            What::Receive { .. } | What::Cancel { .. } | What::Close | What::TooBig { .. } => return Err(None),
        };
        (command.local, command.offset) = (given.local, given.lead);
        let qualities = operation.qualities();
        command.flags = flags_of(qualities);
        command.immediate = if results == LocalKey::NONE { u64::from(id) } else { u64::from(results.0) };
        let given = Given { results, ..given };
        let now = self.local_time(now);
        self.engine.post(now, &command).map_err(|error| self.take_back(given, error))?;
        Ok(given)
    }

    /// Takes the datagrams that the engine wants to send, one by one, and whether each may go in fragments.
    pub fn drain(&mut self, now: u64, mut send: impl FnMut(SocketAddr, Vec<u8>, bool)) -> Result<(), String> {
        let local = self.local_time(now);
        let mut rounds = 0;
        loop {
            if !self.engine.poll_transmit(local, &mut self.transmit) {
                // An acknowledgement that was left is taken last, and may let more go.
                if !self.engine.has_deferred_ack() {
                    return Ok(());
                }
                self.engine.handle_deferred_ack();
                continue;
            }
            rounds += 1;
            if rounds > 20_000 {
                return Err("poll_transmit gives datagrams without end".to_string());
            }
            let mut bytes = Vec::new();
            for piece in &self.transmit.pieces {
                match *piece {
                    Piece::Bytes { start, length } => {
                        let range = start as usize..start as usize + length as usize;
                        let part = self.transmit.bytes.get(range);
                        bytes.extend_from_slice(part.ok_or("a piece lies outside of its bytes")?);
                    }
                    Piece::Memory(granted) => {
                        let from = bytes.len();
                        bytes.resize(from + granted.length as usize, 0);
                        let into = bytes.get_mut(from..).unwrap_or_default();
                        self.engine
                            .delivery()
                            .memory()
                            .read(granted, into)
                            .map_err(|fault| format!("a piece to send: {fault}"))?;
                    }
                }
            }
            let (to, may_fragment) = (self.transmit.path.remote, self.transmit.may_fragment);
            match self.transmit.segment_bytes {
                0 => send(to, bytes, may_fragment),
                each => bytes.chunks(each).for_each(|datagram| send(to, datagram.to_vec(), may_fragment)),
            }
        }
    }

    fn endpoint(&self, place: Place) -> Result<EndpointId, Option<PostError>> {
        self.endpoints.get(place.endpoint).copied().ok_or(None)
    }

    /// Some buffers begin before the operation's bytes.
    fn attach(&mut self, id: u32, content: &[u8], purpose: Use) -> Given {
        let lead = if id.is_multiple_of(3) { 5 } else { 0 };
        if content.is_empty() {
            return Given { local: LocalKey::NONE, lead: 0, results: LocalKey::NONE };
        }
        let mut bytes = vec![LEAD; lead];
        bytes.extend_from_slice(content);
        let local = self.engine.delivery_mut().memory_mut().attach(&bytes, purpose, self.piece);
        Given { local, lead: lead as u64, results: LocalKey::NONE }
    }

    fn take_back(&mut self, given: Given, error: PostError) -> Option<PostError> {
        for key in [given.local, given.results] {
            if key != LocalKey::NONE {
                // It was attached just now, so that nothing can be wrong with it.
                let _ = self.engine.delivery_mut().memory_mut().detach(key);
            }
        }
        Some(error)
    }
}

fn flags_of(qualities: Qualities) -> CommandFlags {
    let bits = [
        (qualities.immediate, CommandFlags::IMMEDIATE),
        (qualities.fence, CommandFlags::FENCE),
        (qualities.silent, CommandFlags::SILENT),
        (qualities.unordered, CommandFlags::UNORDERED),
    ];
    bits.iter().filter(|(set, _)| *set).fold(CommandFlags::NONE, |flags, (_, bit)| flags | *bit)
}
