//! Two engines and nothing between them but a queue.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use weft_core::address::{Address, PeerId};
use weft_core::atomic::{AtomicCall, AtomicOperation, Datatype, apply};
use weft_core::command::{Command, EndpointId, Operation, PostError, Receive};
use weft_core::delivery::{Bindings, EndpointKind};
use weft_core::engine::{Config, Engine, Piece, Transmit};
use weft_core::event::{Completion, QueueId};
use weft_core::memory::{Access, Fault, Granted, LocalKey, Memory};
use weft_core::packet::Codec;
use weft_core::time::Time;
use weft_wire::checksum::{CRC32C, Crc};

/// Buffers and regions in vectors.
#[derive(Default)]
pub(crate) struct TestMemory {
    pub(crate) slots: Vec<Vec<u8>>,
    pub(crate) regions: HashMap<u64, (u32, Access)>,
    pub(crate) released: Vec<LocalKey>,
}

pub(crate) fn crc() -> &'static Crc {
    static CRC: OnceLock<Crc> = OnceLock::new();
    CRC.get_or_init(|| Crc::new(CRC32C).unwrap())
}

impl TestMemory {
    pub(crate) fn add(&mut self, bytes: Vec<u8>) -> LocalKey {
        self.slots.push(bytes);
        LocalKey(self.slots.len() as u32 - 1)
    }

    pub(crate) fn register(&mut self, key: u64, bytes: Vec<u8>, access: Access) {
        let slot = self.add(bytes).0;
        self.regions.insert(key, (slot, access));
    }

    pub(crate) fn region(&self, key: u64) -> &[u8] {
        &self.slots[self.regions[&key].0 as usize]
    }

    pub(crate) fn grant(&self, slot: u32, offset: u64, length: u64) -> Result<Granted, Fault> {
        let have = self.slots.get(slot as usize).ok_or(Fault::UnknownKey)?.len() as u64;
        if offset.checked_add(length).is_none_or(|end| end > have) {
            return Err(Fault::OutOfBounds);
        }
        Ok(Granted { slot, generation: 0, offset, length })
    }

    pub(crate) fn bytes(&self, of: Granted) -> &[u8] {
        &self.slots[of.slot as usize][of.offset as usize..][..of.length as usize]
    }
}

impl Memory for TestMemory {
    fn local_length(&self, key: LocalKey) -> Option<u64> {
        self.slots.get(key.0 as usize).map(|slot| slot.len() as u64)
    }
    fn local(&self, key: LocalKey, offset: u64, length: u64) -> Result<Granted, Fault> {
        // At most 1000 bytes in one piece, so that lists of pieces are exercised.
        self.grant(key.0, offset, length).map(|granted| granted.first(1000))
    }
    fn remote(&self, key: u64, address: u64, length: u64, access: Access) -> Result<Granted, Fault> {
        let (slot, rights) = self.regions.get(&key).ok_or(Fault::UnknownKey)?;
        if !rights.contains(access) {
            return Err(Fault::Forbidden);
        }
        self.grant(*slot, address, length).map(|granted| granted.first(3000))
    }
    fn read(&self, from: Granted, into: &mut [u8]) -> Result<(), Fault> {
        into.copy_from_slice(self.bytes(from));
        Ok(())
    }
    fn write(&mut self, to: Granted, bytes: &[u8]) -> Result<(), Fault> {
        self.slots[to.slot as usize][to.offset as usize..][..to.length as usize].copy_from_slice(bytes);
        Ok(())
    }
    fn crc32c(&self, sum: u32, of: Granted) -> Result<u32, Fault> {
        Ok(self.crc32c_bytes(sum, self.bytes(of)))
    }
    fn crc32c_bytes(&self, sum: u32, bytes: &[u8]) -> u32 {
        crc().finish(crc().update(sum ^ u32::MAX, bytes))
    }
    fn atomic(
        &mut self,
        to: Granted,
        call: AtomicCall,
        operands: &[u8],
        compares: &[u8],
        results: &mut [u8],
    ) -> Result<(), Fault> {
        let (operation, datatype) =
            (AtomicOperation::from_code(call.operation).unwrap(), Datatype::from_code(call.datatype).unwrap());
        let size = datatype.bytes();
        let target = &mut self.slots[to.slot as usize][to.offset as usize..][..to.length as usize];
        for (at, element) in target.chunks_mut(size).enumerate() {
            let part = |bytes: &[u8]| bytes.get(at * size..(at + 1) * size).unwrap_or(&[]).to_vec();
            let old = element.to_vec();
            apply(operation, datatype, &old, &part(operands), &part(compares), element)?;
            if !results.is_empty() {
                results[at * size..(at + 1) * size].copy_from_slice(&old);
            }
        }
        Ok(())
    }
    fn flush(&mut self, _: Granted, _: bool) -> Result<(), Fault> {
        Ok(())
    }
    fn invalidate(&mut self, key: u64) -> Result<(), Fault> {
        self.regions.remove(&key).map(|_| ()).ok_or(Fault::UnknownKey)
    }
    fn release(&mut self, key: LocalKey) {
        self.released.push(key);
    }
}

pub(crate) struct Node {
    pub(crate) engine: Engine<TestMemory>,
    pub(crate) socket: SocketAddr,
    pub(crate) endpoint: EndpointId,
    pub(crate) datagrams: EndpointId,
    pub(crate) sends: QueueId,
    pub(crate) receives: QueueId,
}

impl Node {
    pub(crate) fn address(&self, endpoint: EndpointId) -> Address {
        Address { socket: self.socket, endpoint: self.engine.delivery().endpoint_number(endpoint).unwrap() }
    }
}

/// What is done to a datagram on its way.
type Damage = Box<dyn FnMut(&mut [u8])>;

/// Two nodes with a peer each: the other's reliable and datagram endpoints.
pub(crate) struct Pair {
    pub(crate) nodes: [Node; 2],
    pub(crate) now: Time,
    pub(crate) datagrams: usize,
    /// Done to each datagram on its way.
    pub(crate) damage: Damage,
}

pub(crate) const PEER: PeerId = PeerId(0);
pub(crate) const DATAGRAM_PEER: PeerId = PeerId(1);

pub(crate) fn codec() -> Arc<Codec> {
    static CODEC: OnceLock<Arc<Codec>> = OnceLock::new();
    Arc::clone(CODEC.get_or_init(|| Arc::new(Codec::builtin().unwrap())))
}

impl Pair {
    pub(crate) fn new() -> Pair {
        Pair::with(Config { eager_max_bytes: 5000, ..Config::default() }, 64)
    }

    pub(crate) fn with(config: Config, capacity: usize) -> Pair {
        let node = |number: u8| {
            let mut engine = Engine::new(config.clone(), codec(), [number; 32], TestMemory::default());
            let (sends, receives) =
                (engine.delivery_mut().open_queue(capacity), engine.delivery_mut().open_queue(capacity));
            let bindings =
                Bindings { transmit_queue: Some(sends), receive_queue: Some(receives), ..Bindings::default() };
            let endpoint = engine.delivery_mut().open_endpoint(EndpointKind::Reliable, bindings);
            let datagrams = engine.delivery_mut().open_endpoint(EndpointKind::Datagram, bindings);
            let socket = SocketAddr::from(([10, 0, 0, number], 4000));
            Node { engine, socket, endpoint, datagrams, sends, receives }
        };
        let mut nodes = [node(1), node(2)];
        for at in 0..2 {
            let addresses = [nodes[1 - at].endpoint, nodes[1 - at].datagrams].map(|e| nodes[1 - at].address(e));
            for address in addresses {
                nodes[at].engine.delivery_mut().addresses_mut().insert(address, 1232).unwrap();
            }
        }
        Pair { nodes, now: Time::from_micros(1_000_000), datagrams: 0, damage: Box::new(|_| {}) }
    }

    /// Carries datagrams to and fro, and lets time pass, until nothing more happens for a while.
    pub(crate) fn settle(&mut self) {
        let mut transmit = Transmit::default();
        for _ in 0..200 {
            loop {
                let mut moved = false;
                for at in 0..2 {
                    while self.nodes[at].engine.poll_transmit(self.now, &mut transmit) {
                        moved = true;
                        self.deliver(at, &transmit);
                    }
                }
                if !moved {
                    break;
                }
            }
            self.now = self.now.plus_micros(60);
            for node in &mut self.nodes {
                node.engine.handle_timeout(self.now);
            }
        }
    }

    pub(crate) fn deliver(&mut self, from: usize, transmit: &Transmit) {
        let mut bytes = Vec::new();
        for piece in &transmit.pieces {
            match piece {
                Piece::Bytes { start, length } => {
                    bytes.extend_from_slice(&transmit.bytes[*start as usize..][..*length as usize]);
                }
                Piece::Memory(granted) => {
                    bytes.extend_from_slice(self.nodes[from].engine.delivery().memory().bytes(*granted))
                }
            }
        }
        let socket = self.nodes[from].socket;
        let to = &mut self.nodes[1 - from];
        assert_eq!(transmit.path.remote, to.socket);
        let size = if transmit.segment_bytes == 0 { bytes.len() } else { transmit.segment_bytes };
        for datagram in bytes.chunks_mut(size) {
            self.datagrams += 1;
            (self.damage)(datagram);
            // As drivers do: what it leaves is taken when time passes.
            to.engine.handle_datagram_early(self.now, socket.into(), datagram, false);
        }
    }

    pub(crate) fn buffer(&mut self, node: usize, bytes: Vec<u8>) -> LocalKey {
        self.nodes[node].engine.delivery_mut().memory_mut().add(bytes)
    }

    pub(crate) fn send(&mut self, node: usize, bytes: &[u8], change: impl Fn(&mut Command)) -> Result<(), PostError> {
        let local = self.buffer(node, bytes.to_vec());
        let mut command = Command::new(Operation::Send, self.nodes[node].endpoint, PEER);
        command.local = local;
        command.length = bytes.len() as u32;
        change(&mut command);
        self.nodes[node].engine.post(self.now, &command)
    }

    pub(crate) fn receive(&mut self, node: usize, length: usize, change: impl Fn(&mut Receive)) -> LocalKey {
        let local = self.buffer(node, vec![0xee; length]);
        let mut receive = Receive {
            endpoint: self.nodes[node].endpoint,
            local,
            offset: 0,
            length: length as u64,
            source: None,
            tagged: false,
            tag: 0,
            ignore: 0,
            multi: None,
            silent: false,
            announce: false,
            context: 0,
            counter: None,
        };
        change(&mut receive);
        self.nodes[node].engine.delivery_mut().post_receive(&receive).unwrap();
        local
    }

    pub(crate) fn sent(&mut self, node: usize) -> Completion {
        let queue = self.nodes[node].sends;
        self.nodes[node].engine.delivery_mut().poll_completion(queue).expect("a completion of a send")
    }

    pub(crate) fn received(&mut self, node: usize) -> Completion {
        let queue = self.nodes[node].receives;
        self.nodes[node].engine.delivery_mut().poll_completion(queue).expect("a completion of a receive")
    }

    pub(crate) fn bytes(&self, node: usize, key: LocalKey) -> &[u8] {
        &self.nodes[node].engine.delivery().memory().slots[key.0 as usize]
    }

    /// Nothing is left over.
    pub(crate) fn assert_quiet(&mut self) {
        self.now = self.now.plus_micros(130_000_000);
        for _ in 0..3 {
            self.settle();
            self.now = self.now.plus_micros(70_000_000);
        }
        for node in &mut self.nodes {
            assert_eq!(node.engine.delivery_mut().poll_completion(node.sends), None);
            assert_eq!(node.engine.delivery_mut().poll_completion(node.receives), None);
            let state = node.engine.state();
            assert_eq!(state, weft_core::engine::State { receives: state.receives, ..Default::default() });
        }
    }
}

/// The datagrams of a transmit.
pub(crate) fn datagrams(pair: &Pair, from: usize, transmit: &Transmit) -> Vec<Vec<u8>> {
    let mut bytes = Vec::new();
    for piece in &transmit.pieces {
        match piece {
            Piece::Bytes { start, length } => {
                bytes.extend_from_slice(&transmit.bytes[*start as usize..][..*length as usize]);
            }
            Piece::Memory(granted) => {
                bytes.extend_from_slice(pair.nodes[from].engine.delivery().memory().bytes(*granted))
            }
        }
    }
    let size = if transmit.segment_bytes == 0 { bytes.len().max(1) } else { transmit.segment_bytes };
    bytes.chunks(size).map(<[u8]>::to_vec).collect()
}

/// Everything that a node wants to send now.
pub(crate) fn drain(pair: &mut Pair, from: usize) -> Vec<Vec<u8>> {
    let (mut transmit, mut all) = (Transmit::default(), Vec::new());
    while pair.nodes[from].engine.poll_transmit(pair.now, &mut transmit) {
        assert!(!transmit.pieces.is_empty(), "a transmit without a byte");
        all.extend(datagrams(pair, from, &transmit));
    }
    all
}

pub(crate) fn give(pair: &mut Pair, to: usize, mut datagram: Vec<u8>) {
    let from = pair.nodes[1 - to].socket;
    pair.nodes[to].engine.handle_datagram(pair.now, from.into(), &mut datagram, false);
}

pub(crate) fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|at| (at as u8).wrapping_mul(31).wrapping_add((at >> 8) as u8).wrapping_add(seed)).collect()
}
