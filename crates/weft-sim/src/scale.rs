//! One node and very many peers: what the node keeps follows what is in flight, not whom it ever met.
//!
//! Each peer is an engine of its own, made when it is touched and dropped when its two messages have arrived: a message
//! from the node to it, and one back. At most [`IN_FLIGHT`] exist at a time. A lossless network with a fixed latency joins
//! them, so that a million peers take seconds.

use std::collections::VecDeque;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use weft_core::address::{Address, PeerId};
use weft_core::command::{Command, CommandFlags, EndpointId, Operation, Receive};
use weft_core::delivery::{Bindings, EndpointKind};
use weft_core::engine::{Config, Engine, Piece, State, Transmit};
use weft_core::event::QueueId;
use weft_core::limits::{MTU_DEFAULT_BYTES, RETAIN_US};
use weft_core::memory::{LocalKey, Memory};
use weft_core::packet::Codec;
use weft_core::time::Time;

use crate::memory::{SimMemory, Use};
use crate::network::{MICRO, SECOND};
use crate::random::Random;

/// Peers that are talked to at once.
pub const IN_FLIGHT: usize = 64;
/// Time on the way. Long enough that lives, which are kept for a moment after their last packet, stay few.
const LATENCY: u64 = 100 * MICRO;
const MESSAGE_BYTES: u32 = 32;
/// How many datagrams pass between two looks at the node's state.
const LOOK_EVERY: u64 = 61;

/// What was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScaleReport {
    /// Peers met.
    pub peers: u64,
    /// Messages that arrived, both ways.
    pub messages: u64,
    /// Datagrams carried.
    pub datagrams: u64,
    /// The most of everything at any look.
    pub most: State,
    /// When the last peer was done.
    pub end: State,
    /// After the time that peers are remembered.
    pub after: State,
    /// Virtual time until the last peer was done.
    pub took: u64,
}

impl fmt::Display for ScaleReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (most, end, after) = (&self.most, &self.end, &self.after);
        let each = |bytes: usize, of: usize| bytes as f64 / of.max(1) as f64;
        writeln!(
            f,
            "peers           {:>10}   a message to each and one from each: {} arrived",
            self.peers, self.messages
        )?;
        writeln!(f, "                             at most {IN_FLIGHT} peers exist at a time, each a real engine")?;
        writeln!(f, "datagrams       {:>10}   in {:.3} s of virtual time", self.datagrams, self.took as f64 / 1e9)?;
        writeln!(f, "trackers        {:>10}   at most, {} bytes of sequence state", most.trackers, most.tracker_bytes)?;
        writeln!(f, "lives           {:>10}   at most, {} bytes", most.lives, most.life_bytes)?;
        writeln!(
            f,
            "tombstones      {:>10}   at most, {} bytes: {:.2} for each peer",
            most.tombstones,
            most.tombstone_bytes,
            each(most.tombstone_bytes, most.tombstones)
        )?;
        writeln!(
            f,
            "at the end      {:>10}   trackers, {} lives, {} tombstones",
            end.trackers, end.lives, end.tombstones
        )?;
        write!(
            f,
            "after {:>3} s     {:>10}   trackers, {} lives, {} tombstones",
            RETAIN_US / 1_000_000,
            after.trackers,
            after.lives,
            after.tombstones
        )
    }
}

struct End {
    engine: Engine<SimMemory>,
    socket: SocketAddr,
    endpoint: EndpointId,
    queue: QueueId,
    from: LocalKey,
    into: LocalKey,
}

struct Peer {
    end: End,
    name: PeerId,
    /// Messages and completions that are still to come.
    missing: u32,
}

struct Datagram {
    at: u64,
    from: SocketAddr,
    to: SocketAddr,
    bytes: Vec<u8>,
}

impl End {
    fn new(config: Config, codec: &Arc<Codec>, seed: [u8; 32], socket: SocketAddr, queue: usize) -> End {
        let mut memory = SimMemory::new(1);
        let from = memory.attach(&[0x77; MESSAGE_BYTES as usize], Use::Source, 1 << 20);
        let into = memory.attach(&[0; MESSAGE_BYTES as usize], Use::Target, 1 << 20);
        let mut engine = Engine::new(config, Arc::clone(codec), seed, memory);
        let queue = engine.delivery_mut().open_queue(queue);
        let bindings = Bindings { transmit_queue: Some(queue), receive_queue: Some(queue), ..Bindings::default() };
        let endpoint = engine.delivery_mut().open_endpoint(EndpointKind::Reliable, bindings);
        End { engine, socket, endpoint, queue, from, into }
    }

    fn address(&self) -> Result<Address, String> {
        let endpoint = self.engine.delivery().endpoint_number(self.endpoint).ok_or("an endpoint without number")?;
        Ok(Address { socket: self.socket, endpoint })
    }

    fn receive(&mut self) -> Result<(), String> {
        let receive = Receive {
            endpoint: self.endpoint,
            local: self.into,
            offset: 0,
            length: u64::from(MESSAGE_BYTES),
            source: None,
            tagged: false,
            tag: 0,
            ignore: 0,
            multi: None,
            silent: false,
            announce: false,
            context: u64::MAX,
            counter: None,
        };
        self.engine.delivery_mut().post_receive(&receive).map_err(|error| format!("a receive: {error}"))
    }

    fn send(&mut self, now: u64, to: PeerId, number: u64) -> Result<(), String> {
        let mut command = Command::new(Operation::Send, self.endpoint, to);
        (command.local, command.length) = (self.from, MESSAGE_BYTES);
        (command.flags, command.immediate) = (CommandFlags::IMMEDIATE, number);
        command.context = number;
        self.engine.post(Time(now), &command).map_err(|error| format!("a send: {error}"))
    }

    fn drain(&mut self, now: u64, transmit: &mut Transmit, wire: &mut VecDeque<Datagram>) -> Result<(), String> {
        while self.engine.poll_transmit(Time(now), transmit) {
            let mut bytes = Vec::new();
            for piece in &transmit.pieces {
                match *piece {
                    Piece::Bytes { start, length } => {
                        let part = transmit.bytes.get(start as usize..(start + length) as usize);
                        bytes.extend_from_slice(part.ok_or("a piece lies outside of its bytes")?);
                    }
                    Piece::Memory(granted) => {
                        let from = bytes.len();
                        bytes.resize(from + granted.length as usize, 0);
                        let into = bytes.get_mut(from..).unwrap_or_default();
                        self.engine.delivery().memory().read(granted, into).map_err(|fault| fault.to_string())?;
                    }
                }
            }
            let each = if transmit.segment_bytes == 0 { bytes.len().max(1) } else { transmit.segment_bytes };
            for datagram in bytes.chunks(each) {
                let bytes = datagram.to_vec();
                wire.push_back(Datagram { at: now + LATENCY, from: self.socket, to: transmit.path.remote, bytes });
            }
        }
        Ok(())
    }
}

struct Scale<'a> {
    codec: &'a Arc<Codec>,
    random: Random,
    hub: End,
    hub_timer: u64,
    peers: Vec<Option<Peer>>,
    wire: VecDeque<Datagram>,
    transmit: Transmit,
    /// Whose message has arrived at the node.
    seen: Vec<u64>,
    now: u64,
    next: u64,
    report: ScaleReport,
}

/// The socket of a peer; its lowest bits are its place among those in flight.
fn socket_of(number: u64) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::from((10 << 24) + (number >> 8) as u32)), 10_000 + (number & 255) as u16)
}

/// Meets `peers` peers. `progress` is told how many are done.
pub fn scale(peers: u64, codec: &Arc<Codec>, mut progress: impl FnMut(u64)) -> Result<ScaleReport, String> {
    let mut random = Random::new(peers, 3);
    let socket = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 4791);
    let config = Config {
        commands_max: 2 * IN_FLIGHT,
        receives_max: 4 * IN_FLIGHT,
        unexpected_max: IN_FLIGHT,
        tombstones_max: usize::try_from(peers).unwrap_or(usize::MAX).saturating_add(1024),
        tickets_max: IN_FLIGHT,
        ..Config::default()
    };
    let hub = End::new(config, codec, random.seed(), socket, 8 * IN_FLIGHT);
    let transmit = Transmit::default();
    let mut scale = Scale {
        codec,
        random,
        hub,
        hub_timer: u64::MAX,
        peers: (0..IN_FLIGHT).map(|_| None).collect(),
        wire: VecDeque::new(),
        transmit,
        seen: vec![0; (peers as usize).div_ceil(64)],
        now: SECOND,
        next: 0,
        report: ScaleReport { peers, ..ScaleReport::default() },
    };
    for _ in 0..2 * IN_FLIGHT {
        scale.hub.receive()?;
    }
    let begun = scale.now;
    let mut told = 0;
    loop {
        scale.fill(peers)?;
        if scale.peers.iter().all(Option::is_none) {
            break;
        }
        scale.step()?;
        if scale.report.datagrams.is_multiple_of(LOOK_EVERY) {
            scale.look();
        }
        if scale.next >= told + 10_000 {
            told = scale.next;
            progress(told);
        }
    }
    scale.look();
    scale.report.took = scale.now - begun;
    scale.report.end = scale.hub.engine.state();
    let end = scale.now + RETAIN_US * MICRO + 5 * SECOND;
    while scale.due() <= end {
        scale.step()?;
    }
    scale.now = end;
    scale.hub.engine.handle_timeout(Time(end));
    scale.report.after = scale.hub.engine.state();
    scale.judge()
}

impl Scale<'_> {
    /// Brings in peers until enough are there.
    fn fill(&mut self, peers: u64) -> Result<(), String> {
        for place in 0..IN_FLIGHT {
            if self.next >= peers || self.peers.get(place).is_none_or(Option::is_some) {
                continue;
            }
            let number = self.next;
            self.next += 1;
            let config = Config {
                commands_max: 4,
                lives_max: 4,
                receives_max: 4,
                unexpected_max: 4,
                tombstones_max: 4,
                tickets_max: 1,
                transactions_max: 1,
                ..Config::default()
            };
            let mut end = End::new(config, self.codec, self.random.seed(), socket_of(number), 8);
            let hub = end
                .engine
                .delivery_mut()
                .addresses_mut()
                .insert(self.hub.address()?, MTU_DEFAULT_BYTES)
                .ok_or("no room for a name")?;
            let name = self
                .hub
                .engine
                .delivery_mut()
                .addresses_mut()
                .insert(end.address()?, MTU_DEFAULT_BYTES)
                .ok_or("no room for a name")?;
            end.receive()?;
            end.send(self.now, hub, number)?;
            end.drain(self.now, &mut self.transmit, &mut self.wire)?;
            self.hub.send(self.now, name, number << 8 | place as u64)?;
            // To come: the end of its send and of ours, its message and ours.
            if let Some(slot) = self.peers.get_mut(place) {
                *slot = Some(Peer { end, name, missing: 4 });
            }
        }
        self.settle_hub()
    }

    fn due(&self) -> u64 {
        let timers = self.peers.iter().flatten().map(|peer| peer.end.engine.poll_timeout().0).min();
        let wire = self.wire.front().map_or(u64::MAX, |datagram| datagram.at);
        wire.min(self.hub_timer).min(timers.unwrap_or(u64::MAX))
    }

    fn step(&mut self) -> Result<(), String> {
        let due = self.due();
        if due == u64::MAX {
            let missing: Vec<u32> = self.peers.iter().flatten().map(|peer| peer.missing).collect();
            return Err(format!("nothing happens any more, but {missing:?} messages or completions are missing"));
        }
        self.now = self.now.max(due);
        let now = self.now;
        if self.wire.front().is_some_and(|datagram| datagram.at <= now)
            && let Some(datagram) = self.wire.pop_front()
        {
            self.report.datagrams += 1;
            return self.arrive(datagram);
        }
        if self.hub_timer <= now {
            self.hub.engine.handle_timeout(Time(now));
            return self.settle_hub();
        }
        for place in 0..IN_FLIGHT {
            if let Some(Some(peer)) = self.peers.get_mut(place)
                && peer.end.engine.poll_timeout().0 <= now
            {
                peer.end.engine.handle_timeout(Time(now));
                self.settle_peer(place)?;
            }
        }
        Ok(())
    }

    fn arrive(&mut self, mut datagram: Datagram) -> Result<(), String> {
        let now = Time(self.now);
        if datagram.to == self.hub.socket {
            self.hub.engine.handle_datagram(now, datagram.from.into(), &mut datagram.bytes, false);
            return self.settle_hub();
        }
        let place = self.peers.iter().position(|peer| peer.as_ref().is_some_and(|peer| peer.end.socket == datagram.to));
        // Peers that are gone hear nothing.
        let Some(place) = place else { return Ok(()) };
        if let Some(Some(peer)) = self.peers.get_mut(place) {
            peer.end.engine.handle_datagram(now, datagram.from.into(), &mut datagram.bytes, false);
        }
        self.settle_peer(place)
    }

    fn settle_hub(&mut self) -> Result<(), String> {
        self.hub.drain(self.now, &mut self.transmit, &mut self.wire)?;
        while let Some(completion) = self.hub.engine.delivery_mut().poll_completion(self.hub.queue) {
            completion.result.map_err(|failure| format!("at the node: {failure}"))?;
            let place = match completion.immediate {
                None => (completion.context & 255) as usize,
                Some(number) => {
                    self.hub.receive()?;
                    self.report.messages += 1;
                    let word = self.seen.get_mut(number as usize / 64).ok_or("a message of nobody")?;
                    if *word >> (number % 64) & 1 == 1 {
                        return Err(format!("the message of peer {number} arrived twice"));
                    }
                    *word |= 1 << (number % 64);
                    let from = completion.source.map(|source| source.socket);
                    let from = self.peers.iter().position(|peer| peer.as_ref().map(|peer| peer.end.socket) == from);
                    from.ok_or("a message of a peer that is done")?
                }
            };
            self.count_down(place);
        }
        self.hub.drain(self.now, &mut self.transmit, &mut self.wire)?;
        self.hub_timer = self.hub.engine.poll_timeout().0;
        Ok(())
    }

    fn settle_peer(&mut self, place: usize) -> Result<(), String> {
        let Some(Some(peer)) = self.peers.get_mut(place) else { return Ok(()) };
        peer.end.drain(self.now, &mut self.transmit, &mut self.wire)?;
        let mut ended = 0;
        while let Some(completion) = peer.end.engine.delivery_mut().poll_completion(peer.end.queue) {
            completion.result.map_err(|failure| format!("at a peer: {failure}"))?;
            self.report.messages += u64::from(completion.immediate.is_some());
            ended += 1;
        }
        (0..ended).for_each(|_| self.count_down(place));
        Ok(())
    }

    /// A peer is dropped when nothing is missing.
    fn count_down(&mut self, place: usize) {
        let Some(slot) = self.peers.get_mut(place) else { return };
        let Some(peer) = slot else { return };
        peer.missing = peer.missing.saturating_sub(1);
        if peer.missing == 0 {
            self.hub.engine.delivery_mut().remove_address(peer.name);
            *slot = None;
        }
    }

    fn look(&mut self) {
        let state = self.hub.engine.state();
        let most = &mut self.report.most;
        for (most, now) in [
            (&mut most.trackers, state.trackers),
            (&mut most.tracker_bytes, state.tracker_bytes),
            (&mut most.commands, state.commands),
            (&mut most.lives, state.lives),
            (&mut most.life_bytes, state.life_bytes),
            (&mut most.tombstones, state.tombstones),
            (&mut most.tombstone_bytes, state.tombstone_bytes),
        ] {
            *most = now.max(*most);
        }
    }

    fn judge(&self) -> Result<ScaleReport, String> {
        let report = self.report;
        if report.messages != 2 * report.peers {
            return Err(format!("{} of {} messages arrived", report.messages, 2 * report.peers));
        }
        if report.most.trackers > 2 * IN_FLIGHT {
            return Err(format!("{} trackers for {IN_FLIGHT} peers in flight", report.most.trackers));
        }
        let after = report.after;
        if after.trackers + after.lives + after.tombstones + after.commands > 0 {
            return Err(format!("something is kept for ever: {after:?}"));
        }
        Ok(report)
    }
}
