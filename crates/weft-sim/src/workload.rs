//! Programs that only the seed decides: what each node sends, receives, writes, reads, updates and cancels, and when.

use weft_core::command::Level;

use crate::cells;
use crate::network::MICRO;
use crate::random::{MILLION, Random};
use crate::scenario::Place;

/// Bytes of the longest message.
const BULK_BYTES: u64 = 90_000;
/// Cells in each node for atomics.
pub const CELLS: u64 = 4;
/// Bytes that nobody may write between two ranges that are written.
pub const GAP_BYTES: u64 = 16;
/// Bytes of the region that is only read.
pub const CONSTANT_BYTES: u64 = 8 << 10;

/// One thing that a program does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Its number, which is also its context.
    pub id: u32,
    /// When.
    pub at: u64,
    /// Who.
    pub place: Place,
    /// What.
    pub what: What,
}

/// Bits that qualify an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Qualities {
    /// Carries immediate data, which is its number.
    pub immediate: bool,
    /// Waits for everything before it to the same target.
    pub fence: bool,
    /// Without completion when it succeeds.
    pub silent: bool,
    /// Need not keep message order.
    pub unordered: bool,
}

/// How a write or read is wrong on purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mistake {
    /// It is not.
    #[default]
    None,
    /// The key is unknown.
    Key,
    /// The range leaves the region.
    Range,
    /// The region does not permit it.
    Right,
}

/// What a program does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// Sends a message.
    Send {
        /// To whom.
        to: Place,
        /// With a tag.
        tag: Option<u64>,
        /// Bytes.
        length: u32,
        /// When it counts as done.
        level: Level,
        /// Bits.
        qualities: Qualities,
    },
    /// Posts a buffer.
    Receive {
        /// For tagged messages: tag and bits to ignore.
        tag: Option<(u64, u64)>,
        /// Only of this source.
        source: Option<Place>,
        /// Bytes.
        length: u64,
        /// For several messages, until less than this is free.
        multi: Option<u64>,
    },
    /// Sends a datagram.
    Datagram {
        /// To whom.
        to: Place,
        /// Bytes.
        length: u32,
    },
    /// Writes to the target's memory, to a range of its own.
    Write {
        /// Whose.
        to: Place,
        /// Where in the region.
        offset: u64,
        /// Bytes.
        length: u32,
        /// Bits.
        qualities: Qualities,
        /// When it counts as done.
        level: Level,
        /// What is wrong with it.
        mistake: Mistake,
    },
    /// Reads the target's memory.
    Read {
        /// Whose.
        to: Place,
        /// The region that is written, not the constant one.
        written: bool,
        /// Where in the region.
        offset: u64,
        /// Bytes.
        length: u32,
        /// Waits for everything before it.
        fence: bool,
        /// What is wrong with it.
        mistake: Mistake,
    },
    /// Updates a cell of the target.
    Atomic {
        /// Whose.
        to: Place,
        /// Which cell.
        cell: u64,
        /// The code of what is done.
        operation: u8,
        /// The value from before is wanted.
        fetch: bool,
        /// Bits.
        qualities: Qualities,
    },
    /// Cancels another operation.
    Cancel {
        /// Which.
        of: u32,
    },
    /// Closes the endpoint.
    Close,
    /// Hears that the way to a node carries only the shortest datagrams.
    TooBig {
        /// Which node.
        to: usize,
    },
}

impl Operation {
    /// Who else takes part.
    #[must_use]
    pub fn peer(&self) -> Option<Place> {
        match &self.what {
            What::Send { to, .. }
            | What::Datagram { to, .. }
            | What::Write { to, .. }
            | What::Read { to, .. }
            | What::Atomic { to, .. } => Some(*to),
            What::Receive { source, .. } => *source,
            What::Cancel { .. } | What::Close | What::TooBig { .. } => None,
        }
    }

    /// Whether the engine says that it has the caller's copy, and nothing more unless it fails.
    #[must_use]
    pub fn is_injected(&self) -> bool {
        let (What::Send { level, qualities, .. } | What::Write { level, qualities, .. }) = &self.what else {
            return false;
        };
        *level == Level::Injected && !qualities.silent
    }

    /// Whether success gives the buffer back without a completion.
    #[must_use]
    pub fn is_unreported(&self) -> bool {
        self.qualities().silent || self.is_injected()
    }

    /// The bits.
    #[must_use]
    pub fn qualities(&self) -> Qualities {
        match &self.what {
            What::Send { qualities, .. } | What::Write { qualities, .. } | What::Atomic { qualities, .. } => *qualities,
            What::Read { fence, .. } => Qualities { fence: *fence, ..Qualities::default() },
            What::Datagram { .. } => Qualities { immediate: true, ..Qualities::default() },
            What::Receive { .. } | What::Cancel { .. } | What::Close | What::TooBig { .. } => Qualities::default(),
        }
    }
}

/// What the workload is made for.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Reliable endpoints of each node; one for datagrams follows them.
    pub endpoints: Vec<usize>,
    /// Longest datagram.
    pub mtu: u64,
    /// Longest message that is sent at once.
    pub eager: u64,
    /// Some receives are too short.
    pub short_receives: bool,
    /// Some messages are of very many packets.
    pub bulk: bool,
    /// Endpoints may be closed, and ways become narrower.
    pub closes: bool,
    /// About how many operations.
    pub operations: usize,
    /// When its parts begin.
    pub starts: Vec<u64>,
    /// How long each part lasts.
    pub span: u64,
}

/// Makes the operations, in order of time.
#[must_use]
pub fn operations(random: &mut Random, shape: &Shape) -> Vec<Operation> {
    let mut maker = Maker { shape, written: vec![GAP_BYTES; shape.endpoints.len()], made: Vec::new() };
    while maker.made.len() < shape.operations {
        maker.some(random);
    }
    maker.cancels(random);
    maker.changes(random);
    let mut made = maker.made;
    made.sort_by_key(|operation| operation.at);
    // Numbers follow time; what refers to another operation by number is told the new one.
    let mut renumbered = vec![0; made.len()];
    for (id, operation) in (0u32..).zip(&made) {
        if let Some(new) = renumbered.get_mut(operation.id as usize) {
            *new = id;
        }
    }
    for (id, operation) in (0u32..).zip(&mut made) {
        operation.id = id;
        if let What::Cancel { of } = &mut operation.what {
            *of = renumbered.get(*of as usize).copied().unwrap_or(0);
        }
    }
    made
}

/// Bytes of the region that is written, at each node.
#[must_use]
pub fn written_bytes(operations: &[Operation], node: usize) -> u64 {
    let end = |operation: &Operation| match operation.what {
        What::Write { to, offset, length, .. } if to.node == node => Some(offset + u64::from(length) + GAP_BYTES),
        _ => None,
    };
    operations.iter().filter_map(end).max().unwrap_or(0).max(64)
}

struct Maker<'a> {
    shape: &'a Shape,
    /// Where the next write to each node goes.
    written: Vec<u64>,
    made: Vec<Operation>,
}

impl Maker<'_> {
    fn add(&mut self, at: u64, place: Place, what: What) {
        self.made.push(Operation { id: self.made.len() as u32, at, place, what });
    }

    fn reliable(&self, random: &mut Random, node: usize) -> Place {
        let endpoints = self.shape.endpoints.get(node).copied().unwrap_or(1);
        Place { node, endpoint: random.below(endpoints as u64) as usize }
    }

    /// One operation, or several that belong together.
    fn some(&mut self, random: &mut Random) {
        let nodes = self.shape.endpoints.len() as u64;
        let node = random.below(nodes) as usize;
        // Now and then a node talks to itself.
        let distance = if random.once_in(12) { 0 } else { 1 + random.below(nodes - 1) as usize };
        let other = (node + distance) % nodes as usize;
        let (from, to) = (self.reliable(random, node), self.reliable(random, other));
        let at = random.pick(&self.shape.starts) + random.below(self.shape.span);
        match random.below(20) {
            0..=9 => self.message(random, at, from, to),
            10 => self.datagrams(random, at, node, other),
            11..=13 => self.write(random, at, from, to),
            14..=15 => self.read(random, at, from, to),
            16..=18 => self.atomic(random, at, from, to),
            _ => self.multi(random, at, from, to),
        }
    }

    fn qualities(random: &mut Random) -> Qualities {
        Qualities {
            immediate: random.once_in(2),
            fence: random.once_in(10),
            silent: random.once_in(6),
            unordered: random.once_in(12),
        }
    }

    fn level(random: &mut Random) -> Level {
        match random.below(6) {
            0 | 1 => Level::Delivered,
            2 => Level::Injected,
            _ => Level::Transmitted,
        }
    }

    fn length(&self, random: &mut Random) -> u32 {
        let (mtu, eager) = (self.shape.mtu, self.shape.eager);
        let around = random.below(5);
        if self.shape.bulk && random.once_in(5) {
            return random.between(10_000, BULK_BYTES) as u32;
        }
        let length = match random.below(12) {
            0 => 0,
            1 => 1,
            2..=4 => 8 + random.below(56),
            5 => mtu - 100 + around * 2,
            6 => (mtu - 90) * 2 + around,
            7 => (mtu - 90) * random.between(2, 4),
            8 => eager - 2 + around,
            9 => eager + 1 + random.below(mtu),
            10 => random.below(mtu),
            _ => 3 * eager.min(1000),
        };
        length as u32
    }

    /// A burst of messages in one direction, with receives before and after.
    fn message(&mut self, random: &mut Random, at: u64, from: Place, to: Place) {
        let tagged = random.once_in(2);
        for _ in 0..random.pick(&[1, 1, 2, 3, 5]) {
            let tag = tagged.then(|| random.below(3));
            let length = self.length(random);
            let mut qualities = Maker::qualities(random);
            qualities.immediate |= length < 8 || self.shape.short_receives;
            let level = Maker::level(random);
            let at = at + random.below(30 * MICRO);
            self.add(at, from, What::Send { to, tag, length, level, qualities });
            if random.chance(MILLION / 8 * 7) {
                let late = random.pick(&[0, 0, 100 * MICRO, self.shape.span / 2]);
                let at = (at + late).saturating_sub(random.below(60 * MICRO));
                let tag = tag.map(|tag| match random.below(4) {
                    0 => (0, u64::MAX),
                    1 => (tag & !1, 1),
                    _ => (tag, 0),
                });
                let source = random.once_in(3).then_some(from);
                let short = self.shape.short_receives && random.once_in(3);
                let length = if short { u64::from(length) / 2 } else { self.longest() };
                self.add(at, to, What::Receive { tag, source, length, multi: None });
            }
        }
    }

    /// As long as any message.
    fn longest(&self) -> u64 {
        let bulk = if self.shape.bulk { BULK_BYTES } else { 0 };
        (4 * self.shape.mtu).max(self.shape.eager + self.shape.mtu + 8).max(bulk)
    }

    /// A buffer for many messages.
    fn multi(&mut self, random: &mut Random, at: u64, _from: Place, to: Place) {
        let tag = random.once_in(3).then_some((0, u64::MAX));
        let length = 2 * self.longest();
        let multi = Some(self.longest());
        self.add(at, to, What::Receive { tag, source: None, length, multi });
    }

    fn datagrams(&mut self, random: &mut Random, at: u64, node: usize, other: usize) {
        let last = |node: usize| self.shape.endpoints.get(node).copied().unwrap_or(1);
        let from = Place { node, endpoint: last(node) };
        let to = Place { node: other, endpoint: last(other) };
        for _ in 0..random.between(1, 3) {
            let length = random.below(self.shape.mtu - 150) as u32;
            if random.chance(MILLION / 4 * 3) {
                let room = self.shape.mtu;
                let receive = What::Receive { tag: None, source: None, length: room, multi: None };
                self.add(at.saturating_sub(random.below(20 * MICRO)), to, receive);
            }
            self.add(at + random.below(20 * MICRO), from, What::Datagram { to, length });
        }
    }

    fn write(&mut self, random: &mut Random, at: u64, from: Place, to: Place) {
        for _ in 0..random.pick(&[1, 1, 2, 4]) {
            let length = self.length(random);
            let mut qualities = Maker::qualities(random);
            qualities.unordered = false;
            let mistake = match random.below(30) {
                0 => Mistake::Key,
                1 => Mistake::Range,
                2 => Mistake::Right,
                _ => Mistake::None,
            };
            let mistake = if length == 0 { Mistake::None } else { mistake };
            let Some(next) = self.written.get_mut(to.node) else { return };
            let offset = *next;
            *next += u64::from(length) + GAP_BYTES;
            let level = Maker::level(random);
            let at = at + random.below(20 * MICRO);
            self.add(at, from, What::Write { to, offset, length, qualities, level, mistake });
        }
    }

    fn read(&mut self, random: &mut Random, at: u64, from: Place, to: Place) {
        let space = self.written.get(to.node).copied().unwrap_or(0);
        let length = u64::from(self.length(random));
        let written = random.once_in(2) && space > 2 * GAP_BYTES;
        let length = if written { length.min(space / 2) } else { length.min(CONSTANT_BYTES) };
        let offset = random.below(if written { space - length } else { CONSTANT_BYTES - length + 1 });
        let mistake = match random.below(20) {
            0 if length > 0 => Mistake::Key,
            1 if length > 0 => Mistake::Range,
            _ => Mistake::None,
        };
        let fence = random.once_in(8);
        self.add(at, from, What::Read { to, written, offset, length: length as u32, fence, mistake });
    }

    fn atomic(&mut self, random: &mut Random, at: u64, from: Place, to: Place) {
        for _ in 0..random.pick(&[1, 2, 4]) {
            let operation = random.pick(&[
                cells::SUM,
                cells::SUM,
                cells::XOR,
                cells::WRITE,
                cells::SWAP_IF_EQUAL,
                cells::SWAP_IF_LESS,
            ]);
            let compares = matches!(operation, cells::SWAP_IF_EQUAL | cells::SWAP_IF_LESS);
            let fetch = compares || random.chance(MILLION / 3 * 2);
            let mut qualities = Maker::qualities(random);
            (qualities.immediate, qualities.unordered) = (false, false);
            qualities.silent &= !fetch;
            let cell = random.below(CELLS);
            let at = at + random.below(20 * MICRO);
            self.add(at, from, What::Atomic { to, cell, operation, fetch, qualities });
        }
    }

    /// An endpoint is closed, or a way becomes narrower.
    fn changes(&mut self, random: &mut Random) {
        if !self.shape.closes {
            return;
        }
        let node = random.below(self.shape.endpoints.len() as u64) as usize;
        let at = random.pick(&self.shape.starts) + random.below(self.shape.span);
        if random.once_in(2) {
            let place = self.reliable(random, node);
            self.add(at, place, What::Close);
        } else {
            let to = random.below(self.shape.endpoints.len() as u64) as usize;
            self.add(at, Place { node, endpoint: 0 }, What::TooBig { to });
        }
    }

    /// Some operations are cancelled, most of them too late.
    fn cancels(&mut self, random: &mut Random) {
        if !random.once_in(3) {
            return;
        }
        for _ in 0..random.between(1, 4) {
            let of = random.below(self.made.len() as u64);
            let Some(target) = self.made.get(of as usize) else { return };
            if matches!(target.what, What::Send { .. } | What::Receive { .. }) {
                let (at, place) = (target.at + random.below(self.shape.span / 2 + 1), target.place);
                self.add(at, place, What::Cancel { of: of as u32 });
            }
        }
    }
}
