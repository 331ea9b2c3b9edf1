//! Two engines and nothing between them but a queue: every operation once, in detail. Faults are the simulator's business.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use weft_core::address::{Address, PeerId};
use weft_core::atomic::{AtomicCall, AtomicOperation, Datatype, apply};
use weft_core::command::{Command, CommandFlags, EndpointId, Level, Operation, PostError, Receive};
use weft_core::engine::{Bindings, Config, EndpointKind, Engine, Piece, Transmit};
use weft_core::event::{Completion, CompletionKind, Failure, QueueId};
use weft_core::memory::{Access, Fault, Granted, LocalKey, Memory};
use weft_core::packet::Codec;
use weft_core::time::Time;
use weft_wire::checksum::{CRC32C, Crc};

/// Buffers and regions in vectors.
#[derive(Default)]
struct TestMemory {
    slots: Vec<Vec<u8>>,
    regions: HashMap<u64, (u32, Access)>,
    released: Vec<LocalKey>,
}

fn crc() -> &'static Crc {
    static CRC: OnceLock<Crc> = OnceLock::new();
    CRC.get_or_init(|| Crc::new(CRC32C).unwrap())
}

impl TestMemory {
    fn add(&mut self, bytes: Vec<u8>) -> LocalKey {
        self.slots.push(bytes);
        LocalKey(self.slots.len() as u32 - 1)
    }

    fn register(&mut self, key: u64, bytes: Vec<u8>, access: Access) {
        let slot = self.add(bytes).0;
        self.regions.insert(key, (slot, access));
    }

    fn region(&self, key: u64) -> &[u8] {
        &self.slots[self.regions[&key].0 as usize]
    }

    fn grant(&self, slot: u32, offset: u64, length: u64) -> Result<Granted, Fault> {
        let have = self.slots.get(slot as usize).ok_or(Fault::UnknownKey)?.len() as u64;
        if offset.checked_add(length).is_none_or(|end| end > have) {
            return Err(Fault::OutOfBounds);
        }
        Ok(Granted { slot, generation: 0, offset, length })
    }

    fn bytes(&self, of: Granted) -> &[u8] {
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

struct Node {
    engine: Engine<TestMemory>,
    socket: SocketAddr,
    endpoint: EndpointId,
    datagrams: EndpointId,
    sends: QueueId,
    receives: QueueId,
}

impl Node {
    fn address(&self, endpoint: EndpointId) -> Address {
        Address { socket: self.socket, endpoint: self.engine.endpoint_number(endpoint).unwrap() }
    }
}

/// Two nodes with a peer each: the other's reliable and datagram endpoints.
struct Pair {
    nodes: [Node; 2],
    now: Time,
    datagrams: usize,
}

const PEER: PeerId = PeerId(0);
const DATAGRAM_PEER: PeerId = PeerId(1);

fn codec() -> Arc<Codec> {
    static CODEC: OnceLock<Arc<Codec>> = OnceLock::new();
    Arc::clone(CODEC.get_or_init(|| Arc::new(Codec::builtin().unwrap())))
}

impl Pair {
    fn new() -> Pair {
        Pair::with(Config { eager_max_bytes: 5000, ..Config::default() }, 64)
    }

    fn with(config: Config, capacity: usize) -> Pair {
        let node = |number: u8| {
            let mut engine = Engine::new(config.clone(), codec(), [number; 32], TestMemory::default());
            let (sends, receives) = (engine.open_queue(capacity), engine.open_queue(capacity));
            let bindings =
                Bindings { transmit_queue: Some(sends), receive_queue: Some(receives), ..Bindings::default() };
            let endpoint = engine.open_endpoint(EndpointKind::Reliable, bindings);
            let datagrams = engine.open_endpoint(EndpointKind::Datagram, bindings);
            let socket = SocketAddr::from(([10, 0, 0, number], 4000));
            Node { engine, socket, endpoint, datagrams, sends, receives }
        };
        let mut nodes = [node(1), node(2)];
        for at in 0..2 {
            let addresses = [nodes[1 - at].endpoint, nodes[1 - at].datagrams].map(|e| nodes[1 - at].address(e));
            for address in addresses {
                nodes[at].engine.addresses_mut().insert(address, 1232).unwrap();
            }
        }
        Pair { nodes, now: Time::from_micros(1_000_000), datagrams: 0 }
    }

    /// Carries datagrams to and fro, and lets time pass, until nothing more happens for a while.
    fn settle(&mut self) {
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

    fn deliver(&mut self, from: usize, transmit: &Transmit) {
        let mut bytes = Vec::new();
        for piece in &transmit.pieces {
            match piece {
                Piece::Bytes { start, length } => {
                    bytes.extend_from_slice(&transmit.bytes[*start as usize..][..*length as usize]);
                }
                Piece::Memory(granted) => bytes.extend_from_slice(self.nodes[from].engine.memory().bytes(*granted)),
            }
        }
        let socket = self.nodes[from].socket;
        let to = &mut self.nodes[1 - from];
        assert_eq!(transmit.to, to.socket);
        let size = if transmit.segment_bytes == 0 { bytes.len() } else { transmit.segment_bytes };
        for datagram in bytes.chunks_mut(size) {
            self.datagrams += 1;
            to.engine.handle_datagram(self.now, socket, datagram, false);
        }
    }

    fn buffer(&mut self, node: usize, bytes: Vec<u8>) -> LocalKey {
        self.nodes[node].engine.memory_mut().add(bytes)
    }

    fn send(&mut self, node: usize, bytes: &[u8], change: impl Fn(&mut Command)) -> Result<(), PostError> {
        let local = self.buffer(node, bytes.to_vec());
        let mut command = Command::new(Operation::Send, self.nodes[node].endpoint, PEER);
        command.local = local;
        command.length = bytes.len() as u32;
        change(&mut command);
        self.nodes[node].engine.post(self.now, &command)
    }

    fn receive(&mut self, node: usize, length: usize, change: impl Fn(&mut Receive)) -> LocalKey {
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
            context: 0,
        };
        change(&mut receive);
        self.nodes[node].engine.post_receive(self.now, &receive).unwrap();
        local
    }

    fn sent(&mut self, node: usize) -> Completion {
        let queue = self.nodes[node].sends;
        self.nodes[node].engine.poll_completion(queue).expect("a completion of a send")
    }

    fn received(&mut self, node: usize) -> Completion {
        let queue = self.nodes[node].receives;
        self.nodes[node].engine.poll_completion(queue).expect("a completion of a receive")
    }

    fn bytes(&self, node: usize, key: LocalKey) -> &[u8] {
        &self.nodes[node].engine.memory().slots[key.0 as usize]
    }

    /// Nothing is left over.
    fn assert_quiet(&mut self) {
        self.now = self.now.plus_micros(130_000_000);
        for _ in 0..3 {
            self.settle();
            self.now = self.now.plus_micros(70_000_000);
        }
        for node in &mut self.nodes {
            assert_eq!(node.engine.poll_completion(node.sends), None);
            assert_eq!(node.engine.poll_completion(node.receives), None);
            let state = node.engine.state();
            assert_eq!(state, weft_core::engine::State { receives: state.receives, ..Default::default() });
        }
    }
}

fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|at| (at as u8).wrapping_mul(31).wrapping_add((at >> 8) as u8).wrapping_add(seed)).collect()
}

#[test]
fn messages_of_every_length_arrive_expected_and_unexpected() {
    for length in [0, 1, 8, 511, 512, 513, 1100, 1168, 1169, 3000, 5000, 5001, 20_000, 100_000] {
        for early in [true, false] {
            let mut pair = Pair::new();
            let message = pattern(length, 3);
            let mut local = LocalKey::NONE;
            if early {
                local = pair.receive(1, length, |receive| receive.context = 9);
            }
            pair.send(0, &message, |command| {
                command.context = 7;
                command.immediate = 0xabc;
                command.flags = CommandFlags::IMMEDIATE;
            })
            .unwrap();
            pair.settle();
            if !early {
                local = pair.receive(1, length, |receive| receive.context = 9);
                pair.settle();
            }
            let done = pair.received(1);
            assert_eq!((done.context, done.kind, done.result), (9, CompletionKind::Receive, Ok(())), "{length}");
            assert_eq!((done.length, done.immediate), (length as u64, Some(0xabc)));
            assert_eq!(done.source, Some(pair.nodes[0].address(pair.nodes[0].endpoint)));
            assert_eq!(done.peer, Some(PEER));
            assert_eq!(pair.bytes(1, local), message, "{length} {early}");
            let done = pair.sent(0);
            assert_eq!((done.context, done.result), (7, Ok(())));
            pair.assert_quiet();
        }
    }
}

#[test]
fn tags_choose_receives_in_order() {
    let mut pair = Pair::new();
    let tagged = |tag: u64, ignore: u64| {
        move |receive: &mut Receive| {
            (receive.tagged, receive.tag, receive.ignore, receive.context) = (true, tag, ignore, tag)
        }
    };
    pair.receive(1, 10, tagged(5, 0));
    pair.receive(1, 10, tagged(0x70, 0xf));
    pair.receive(1, 10, tagged(5, 0));
    for (tag, byte) in [(0x7a, 1u8), (5, 2), (5, 3), (6, 4)] {
        pair.send(0, &[byte], |command| (command.operation, command.address) = (Operation::TaggedSend, tag)).unwrap();
    }
    pair.settle();
    let got: Vec<_> = (0..3).map(|_| pair.received(1)).map(|done| (done.context, done.tag)).collect();
    assert_eq!(got, [(0x70, 0x7a), (5, 5), (5, 5)]);
    let last = pair.receive(1, 10, tagged(6, 0));
    assert_eq!(pair.received(1).tag, 6);
    assert_eq!(pair.bytes(1, last)[0], 4);
    for _ in 0..4 {
        assert_eq!(pair.sent(0).result, Ok(()));
    }
    pair.assert_quiet();
}

#[test]
fn short_messages_share_datagrams_and_acknowledgements_ride_along() {
    let mut pair = Pair::new();
    for _ in 0..40 {
        pair.receive(1, 8, |_| {});
    }
    pair.send(0, &[0; 8], |_| {}).unwrap();
    pair.settle();
    let before = pair.datagrams;
    for at in 0..10 {
        pair.send(0, &[at; 8], |_| {}).unwrap();
    }
    pair.settle();
    assert_eq!(pair.datagrams - before, 2, "ten messages in one datagram, one acknowledgement");
    for _ in 0..11 {
        assert_eq!(pair.received(1).result, Ok(()));
        assert_eq!(pair.sent(0).result, Ok(()));
    }
    pair.assert_quiet();
}

#[test]
fn remote_memory_is_written_read_and_guarded() {
    let mut pair = Pair::new();
    let rights = Access::REMOTE_READ | Access::REMOTE_WRITE;
    pair.nodes[1].engine.memory_mut().register(77, vec![0; 50_000], rights);
    pair.nodes[1].engine.memory_mut().register(78, vec![0; 64], Access::REMOTE_READ);
    for length in [0, 1, 600, 1152, 1153, 40_000] {
        let data = pattern(length, 9);
        let write =
            |command: &mut Command| (command.operation, command.key, command.address) = (Operation::Write, 77, 100);
        pair.send(0, &data, write).unwrap();
        pair.settle();
        assert_eq!(pair.sent(0).result, Ok(()));
        assert_eq!(&pair.nodes[1].engine.memory().region(77)[100..100 + length], data);
        let local = pair.buffer(0, vec![0; length]);
        let mut command = Command::new(Operation::Read, pair.nodes[0].endpoint, PEER);
        (command.local, command.length, command.key, command.address) = (local, length as u32, 77, 100);
        pair.nodes[0].engine.post(pair.now, &command).unwrap();
        pair.settle();
        let done = pair.sent(0);
        assert_eq!((done.kind, done.result), (CompletionKind::Read, Ok(())), "{length}");
        assert_eq!(pair.bytes(0, local), data);
    }
    for (key, address, length) in [(79, 0, 8), (77, 49_999, 2), (77, u64::MAX, 2), (78, 0, 8)] {
        let write = |command: &mut Command| {
            (command.operation, command.key, command.address) = (Operation::Write, key, address)
        };
        pair.send(0, &vec![1; length], write).unwrap();
        pair.settle();
        assert_eq!(pair.sent(0).result, Err(Failure::AccessRefused));
    }
    let notify = |command: &mut Command| {
        (command.operation, command.key, command.immediate) = (Operation::Write, 77, 4711);
        command.flags = CommandFlags::IMMEDIATE;
    };
    pair.send(0, &pattern(3000, 1), notify).unwrap();
    pair.settle();
    let done = pair.received(1);
    assert_eq!((done.kind, done.immediate, done.length), (CompletionKind::RemoteWrite, Some(4711), 3000));
    assert_eq!(pair.sent(0).result, Ok(()));
    pair.assert_quiet();
}

#[test]
fn atomics_fetch_compare_and_add() {
    let mut pair = Pair::new();
    pair.nodes[1].engine.memory_mut().register(5, 10u64.to_le_bytes().to_vec(), Access::REMOTE_ATOMIC);
    let mut atomic = |operation, code, operands: &[u64], results: bool| {
        let bytes: Vec<u8> = operands.iter().flat_map(|operand| operand.to_le_bytes()).collect();
        let result = pair.buffer(0, vec![0; 8]);
        pair.send(0, &bytes, |command| {
            (command.operation, command.key) = (operation, 5);
            command.atomic = AtomicCall { operation: code, datatype: 0x14, count: 1 };
            command.immediate = u64::from(result.0);
        })
        .unwrap();
        pair.settle();
        assert_eq!(pair.sent(0).result, Ok(()));
        let result = if results { u64::from_le_bytes(pair.bytes(0, result).try_into().unwrap()) } else { 0 };
        (result, u64::from_le_bytes(pair.nodes[1].engine.memory().region(5).try_into().unwrap()))
    };
    assert_eq!(atomic(Operation::Atomic, 0x03, &[5], false), (0, 15));
    assert_eq!(atomic(Operation::FetchAtomic, 0x03, &[5], true), (15, 20));
    assert_eq!(atomic(Operation::CompareAtomic, 0x10, &[20, 99], true), (20, 99));
    assert_eq!(atomic(Operation::CompareAtomic, 0x10, &[20, 1], true), (99, 99));
    assert_eq!(atomic(Operation::FetchAtomic, 0x0c, &[], true), (99, 99));
    pair.assert_quiet();
}

#[test]
fn delivered_means_in_the_users_buffer() {
    let mut pair = Pair::new();
    pair.send(0, b"careful", |command| command.level = Level::Delivered).unwrap();
    pair.settle();
    let queue = pair.nodes[0].sends;
    assert_eq!(pair.nodes[0].engine.poll_completion(queue), None);
    let local = pair.receive(1, 7, |_| {});
    pair.settle();
    assert_eq!(pair.sent(0).result, Ok(()));
    assert_eq!(pair.bytes(1, local), b"careful");
    assert_eq!(pair.received(1).result, Ok(()));
    pair.assert_quiet();
}

#[test]
fn a_full_completion_queue_refuses_and_resumes() {
    let mut pair = Pair::with(Config::default(), 4);
    for _ in 0..20 {
        pair.receive(1, 8, |_| {});
    }
    let mut posted = 0;
    let mut done = 0;
    let mut seen = 0;
    while seen < 20 {
        while posted < 20 && pair.send(0, &[posted as u8; 8], |_| {}).is_ok() {
            posted += 1;
        }
        pair.settle();
        let (sends, receives) = (pair.nodes[0].sends, pair.nodes[1].receives);
        while let Some(completion) = pair.nodes[0].engine.poll_completion(sends) {
            assert_eq!(completion.result, Ok(()));
            done += 1;
        }
        // One at a time: the queue is full most of the time.
        if let Some(completion) = pair.nodes[1].engine.poll_completion(receives) {
            assert_eq!(completion.result, Ok(()));
            assert_eq!(pair.bytes(1, completion.local)[0], seen as u8, "order is kept");
            seen += 1;
        }
    }
    pair.settle();
    while done < 20 {
        assert_eq!(pair.sent(0).result, Ok(()));
        done += 1;
    }
    assert!(pair.nodes[1].engine.statistics().not_ready > 0);
    pair.assert_quiet();
}

#[test]
fn multi_receive_buffers_fill_up_and_come_back() {
    let mut pair = Pair::new();
    let multi = |receive: &mut Receive| receive.multi = Some(20);
    let first = pair.receive(1, 100, multi);
    let second = pair.receive(1, 100, multi);
    for at in 0..5u8 {
        pair.send(0, &[at; 30], |_| {}).unwrap();
    }
    pair.settle();
    let mut got = Vec::new();
    for _ in 0..5 {
        let done = pair.received(1);
        got.push((done.kind, done.offset, done.local));
    }
    let message = |offset, local| (CompletionKind::Receive, offset, local);
    let none = LocalKey::NONE;
    // After three messages 10 bytes are left, less than 20: the buffer is done with its third message.
    assert_eq!(got, [message(0, none), message(30, none), message(60, first), message(0, none), message(30, none)]);
    assert_eq!(&pair.bytes(1, first)[60..90], [2; 30]);
    assert_eq!(&pair.bytes(1, second)[..30], [3; 30]);
    for _ in 0..5 {
        pair.sent(0);
    }
    assert!({
        let (engine, endpoint) = (&mut pair.nodes[1].engine, pair.nodes[1].endpoint);
        engine.cancel(Time(0), endpoint, 0)
    });
    assert_eq!(pair.received(1).result, Err(Failure::Cancelled));
    pair.assert_quiet();
}

#[test]
fn datagrams_arrive_or_do_not() {
    let mut pair = Pair::new();
    let endpoint = pair.nodes[1].datagrams;
    let local = pair.receive(1, 64, |receive| receive.endpoint = endpoint);
    let from = pair.nodes[0].datagrams;
    for byte in [1u8, 2] {
        pair.send(0, &[byte; 9], |command| {
            (command.operation, command.endpoint, command.peer) = (Operation::Datagram, from, DATAGRAM_PEER);
        })
        .unwrap();
    }
    pair.settle();
    assert_eq!(pair.received(1).length, 9);
    assert_eq!(pair.bytes(1, local)[..9], [1; 9]);
    assert_eq!(pair.nodes[1].engine.statistics().dropped_datagrams, 1);
    assert_eq!((pair.sent(0).result, pair.sent(0).result), (Ok(()), Ok(())));
    pair.assert_quiet();
}

#[test]
fn errors_are_precise() {
    let mut pair = Pair::new();
    let endpoint = pair.nodes[0].endpoint;
    assert_eq!(pair.send(0, b"x", |command| command.peer = PeerId(9)), Err(PostError::NoSuchPeer));
    assert_eq!(pair.send(0, b"x", |command| command.endpoint = EndpointId(9)), Err(PostError::NoSuchEndpoint));
    assert_eq!(pair.send(0, b"x", |command| command.length = 2), Err(PostError::BadBuffer));
    assert_eq!(pair.send(0, b"x", |command| command.operation = Operation::Datagram), Err(PostError::NotSupported));
    // A receive that is too short: both are told.
    pair.receive(1, 4, |_| {});
    pair.send(0, b"too long", |_| {}).unwrap();
    pair.settle();
    let done = pair.received(1);
    assert_eq!((done.result, done.length), (Err(Failure::Truncated), 8));
    assert_eq!(pair.sent(0).result, Err(Failure::LengthError));
    // An endpoint that is gone.
    let gone = pair.nodes[1].endpoint;
    let now = pair.now;
    pair.nodes[1].engine.close_endpoint(now, gone);
    pair.send(0, b"anyone?", |_| {}).unwrap();
    pair.settle();
    assert_eq!(pair.sent(0).result, Err(Failure::NoSuchEndpoint));
    let _ = endpoint;
    pair.assert_quiet();
}
