//! The engine under datagrams that a peer made up.
//!
//! The input is a list of records: flags, a length, and as many bytes, which become what follows the session header of a
//! datagram. Flags have the harness fill in what an attacker would have to know (ticket, endpoint, key, the names of the
//! engine's own requests), so that nonsense gets far.
//!
//! What must hold: no panic; no access outside of what was granted, red zones intact; every round of sending ends; no more
//! completions than operations; state within its bounds.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use weft_core::address::{Address, PeerId};
use weft_core::command::{Command, EndpointId, Operation, Receive};
use weft_core::delivery::{Bindings, EndpointKind};
use weft_core::engine::{Config, Engine, Piece, Transmit};
use weft_core::event::QueueId;
use weft_core::memory::{Access, Memory};
use weft_core::packet::Codec;
use weft_core::time::Time;
use weft_sim::memory::{Content, SimMemory, Use};

/// The right ticket.
pub const TICKET: u8 = 1;
/// The next psn, plus the low bits of the record's own.
pub const PSN: u8 = 2;
/// Our endpoint.
pub const ENDPOINT: u8 = 4;
/// A key of ours.
pub const KEY: u8 = 8;
/// The names of the engine's own last request.
pub const ANSWER: u8 = 16;
/// Some time passes before.
pub const LATER: u8 = 32;
/// The checksum is left wrong.
pub const DAMAGED: u8 = 64;
/// The bytes are entries of a bundle.
pub const BUNDLE: u8 = 128;

const CELLS: u64 = 0x1111;
const CONSTANT: u64 = 0x2222;
const RECORDS_MAX: usize = 64;
const TRANSMITS_MAX: usize = 10_000;
const SESSION_BYTES: usize = 20;

fn codec() -> Arc<Codec> {
    static CODEC: OnceLock<Arc<Codec>> = OnceLock::new();
    Arc::clone(CODEC.get_or_init(|| Arc::new(Codec::builtin().unwrap_or_else(|error| panic!("{error}")))))
}

struct Harness {
    engine: Engine<SimMemory>,
    endpoint: EndpointId,
    queue: QueueId,
    now: Time,
    offered: u64,
    psn: u32,
    /// Handle, epoch, psn, ticket and ends of the engine's last request.
    own: [u8; 32],
    operations: usize,
    completions: usize,
}

/// Feeds the records of an input to an engine.
pub fn run(input: &[u8]) {
    let mut harness = Harness::new();
    let mut rest = input;
    for _ in 0..RECORDS_MAX {
        let [flags, length, behind @ ..] = rest else { break };
        let (body, behind) = behind.split_at((*length as usize).min(behind.len()));
        rest = behind;
        harness.feed(*flags, body);
    }
    harness.end();
}

fn peer() -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 2], 7))
}

impl Harness {
    fn new() -> Harness {
        let config = Config { transactions_max: 8, lives_max: 4, unexpected_max_bytes: 1 << 16, ..Config::default() };
        let mut memory = SimMemory::new(1);
        memory.register(CELLS, 0, Access::REMOTE, Content::Cells, &[0; 256]);
        memory.register(CONSTANT, 0, Access::REMOTE_READ, Content::Constant, &[7; 4000]);
        let mut engine = Engine::new(config, codec(), [3; 32], memory);
        let queue = engine.delivery_mut().open_queue(64);
        let bindings = Bindings { transmit_queue: Some(queue), receive_queue: Some(queue), ..Bindings::default() };
        let endpoint = engine.delivery_mut().open_endpoint(EndpointKind::Reliable, bindings);
        engine.delivery_mut().open_endpoint(EndpointKind::Datagram, bindings);
        engine.delivery_mut().addresses_mut().insert(Address { socket: peer(), endpoint: 9 }, 1232);
        let now = Time::from_micros(1_000_000);
        let own = [0; 32];
        let mut harness =
            Harness { engine, endpoint, queue, now, offered: 0, psn: 5, own, operations: 0, completions: 0 };
        for (operation, length) in [(Operation::Send, 3000u32), (Operation::Read, 2000)] {
            let purpose = if operation == Operation::Send { Use::Source } else { Use::Target };
            let local = harness.engine.delivery_mut().memory_mut().attach(&vec![1; length as usize], purpose, u64::MAX);
            let mut command = Command::new(operation, endpoint, PeerId(0));
            (command.local, command.length) = (local, length);
            harness.operations += usize::from(harness.engine.post(now, &command).is_ok());
        }
        for (tagged, length) in [(false, 100), (false, 5000), (true, 100)] {
            harness.receive(tagged, length);
        }
        harness.round();
        harness
    }

    fn receive(&mut self, tagged: bool, length: u64) {
        let local = self.engine.delivery_mut().memory_mut().attach(&vec![0; length as usize], Use::Target, 700);
        let receive = Receive {
            endpoint: self.endpoint,
            local,
            offset: 0,
            length,
            source: None,
            tagged,
            tag: 0,
            ignore: u64::MAX,
            multi: None,
            silent: false,
            announce: false,
            counter: None,
            context: 0,
        };
        self.operations += usize::from(self.engine.delivery_mut().post_receive(&receive).is_ok());
    }

    fn feed(&mut self, flags: u8, body: &[u8]) {
        if flags & LATER != 0 {
            let step = body.last().copied().unwrap_or(1);
            self.now = self.now.plus_micros(1 << (step % 28));
            self.engine.handle_timeout(self.now);
            self.round();
        }
        let mut datagram = vec![0; SESSION_BYTES];
        datagram[0] = if flags & BUNDLE != 0 { 0x14 } else { 0x10 };
        datagram.extend_from_slice(body);
        // A bundle's first entry begins behind its length.
        let at = SESSION_BYTES + if flags & BUNDLE != 0 { 2 } else { 0 };
        let number = self.engine.delivery().endpoint_number(self.endpoint).unwrap_or(0);
        if flags & ENDPOINT != 0 {
            patch(&mut datagram, at + 4, &number.to_be_bytes());
        }
        if flags & PSN != 0 {
            let low = u32::from(datagram.get(at + 19).copied().unwrap_or(0) & 7);
            patch(&mut datagram, at + 16, &(self.psn + low).to_be_bytes());
            patch(&mut datagram, at + 20, &[0, low as u8]);
            self.psn += 1;
        }
        if flags & TICKET != 0 {
            patch(&mut datagram, at + 24, &self.offered.to_be_bytes());
        }
        if flags & KEY != 0 {
            let key = if datagram.get(at).is_some_and(|opcode| *opcode >= 0x20) { CELLS } else { CONSTANT };
            patch(&mut datagram, at + 52, &key.to_be_bytes());
        }
        if flags & ANSWER != 0 {
            let own = self.own;
            patch(&mut datagram, at + 2, &own[2..4]);
            patch(&mut datagram, at + 4, &own[8..12]);
            patch(&mut datagram, at + 8, &own[4..8]);
            patch(&mut datagram, at + 12, &own[12..20]);
            patch(&mut datagram, at + 24, &own[24..32]);
        }
        let sum = self.engine.delivery().memory().crc32c_bytes(0, &datagram);
        let sum = if flags & DAMAGED != 0 { !sum } else { sum };
        datagram.extend_from_slice(&sum.to_le_bytes());
        self.engine.handle_datagram(self.now, peer().into(), &mut datagram, flags & DAMAGED != 0);
        self.round();
    }

    /// Takes what the engine wants to send, and what it has to tell.
    fn round(&mut self) {
        let mut transmit = Transmit::default();
        let mut count = 0;
        while self.engine.poll_transmit(self.now, &mut transmit) {
            count += 1;
            assert!(count < TRANSMITS_MAX, "sending has no end");
            let Some(Piece::Bytes { start, .. }) = transmit.pieces.first() else {
                panic!("a datagram without headers")
            };
            let Some(datagram) = transmit.bytes.get(*start as usize..) else { panic!("outside of the bytes") };
            let bundle = datagram[0] & 4 != 0;
            let Some(packet) = datagram.get(SESSION_BYTES + if bundle { 2 } else { 0 }..) else { continue };
            match packet.first() {
                // An Acknowledge that offers a ticket.
                Some(0x30) if matches!(packet.get(32), Some(3 | 4)) => {
                    if let Some(offer) = packet.get(48..56).and_then(|bytes| bytes.try_into().ok()) {
                        self.offered = u64::from_be_bytes(offer);
                    }
                }
                Some(opcode) if *opcode < 0x30 => {
                    if let Some(header) = packet.get(..32).and_then(|bytes| bytes.try_into().ok()) {
                        self.own = header;
                    }
                }
                _ => {}
            }
        }
        while self.engine.delivery_mut().poll_completion(self.queue).is_some() {
            self.completions += 1;
        }
        if let Some(wrong) = self.engine.delivery().memory().take_wrong() {
            panic!("{wrong}");
        }
    }

    fn end(mut self) {
        let state = self.engine.state();
        assert!(state.lives <= 4 && state.messages <= 8 && state.trackers <= 4, "{state:?}");
        // Long silence: all that waits for a peer ends.
        for _ in 0..8 {
            self.now = self.now.plus_micros(70_000_000);
            self.engine.handle_timeout(self.now);
            self.round();
        }
        self.engine.close_endpoint(self.now, self.endpoint);
        self.round();
        if let Err(wrong) = self.engine.delivery().memory().check_all() {
            panic!("{wrong}");
        }
        // Writes with immediate data give completions of their own, so there may be more of them than operations; none of
        // ours may be missing.
        assert!(self.completions >= self.operations, "{} of {}", self.completions, self.operations);
    }
}

fn patch(datagram: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(place) = datagram.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}
