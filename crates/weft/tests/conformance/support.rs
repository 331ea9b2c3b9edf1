//! Nodes on any link with any progress and any memory, and a wait that serves all of them.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use weft::device::{Kind, Place};
use weft::{
    Access, Buffer, Completion, CompletionQueue, Config, Domain, Endpoint, Fabric, MemoryRegion, PeerId, Progress, raw,
};

/// Long enough that only a hang reaches it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// What the nodes of a test are joined by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ways {
    Udp,
    Loopback,
    FaultyUdp,
    /// Shared memory: the nodes find out by themselves that they are on one machine.
    Shm,
}

/// Where the buffers and regions of a node are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    Host,
    /// Of an emulated device; each node has one of its own.
    Emulated,
}

/// One combination of link, progress and memory.
pub(crate) struct World {
    fabric: Fabric,
    ways: Ways,
    progress: Progress,
    network: weft::link::loopback::LoopbackNetwork,
    domains: RefCell<Vec<Domain>>,
    /// Of the first domain, which begins most of what happens, and of all others.
    memory: [Memory; 2],
    first: Cell<Option<SocketAddr>>,
}

/// A domain with one endpoint that reports to one queue.
pub(crate) struct Node {
    pub(crate) domain: Domain,
    pub(crate) queue: CompletionQueue,
    pub(crate) endpoint: Endpoint,
    place: Place,
    arena: Mutex<Option<(raw::Memory, usize)>>,
}

/// What buffers are cut from when they are on a device: as real programs do, and with few descriptors.
const ARENA_BYTES: usize = 4 << 20;

impl World {
    pub(crate) fn new(ways: Ways, progress: Progress, first: Memory, others: Memory) -> World {
        World {
            fabric: Fabric::new("conformance").unwrap(),
            ways,
            progress,
            network: weft::link::loopback::LoopbackNetwork::new(9000),
            domains: RefCell::default(),
            memory: [first, others],
            first: Cell::default(),
        }
    }

    pub(crate) fn is_faulty(&self) -> bool {
        self.ways == Ways::FaultyUdp
    }

    pub(crate) fn progress(&self) -> Progress {
        self.progress
    }

    pub(crate) fn domain(&self) -> Domain {
        self.domain_with(|_| {})
    }

    pub(crate) fn domain_with(&self, change: impl FnOnce(&mut Config)) -> Domain {
        self.domain_of(&self.fabric, change)
    }

    /// A domain of any fabric, joined to the others.
    pub(crate) fn domain_of(&self, fabric: &Fabric, change: impl FnOnce(&mut Config)) -> Domain {
        let mut builder = fabric.domain().progress(self.progress).configure(|config| {
            crate::common::patient(config);
            // The cases' lengths are on both sides of it, without the time that longer ones take over a bad network.
            config.eager_max_bytes = 256 << 10;
            change(config);
        });
        if self.is_faulty() {
            let seed = self.domains.borrow().len() as u64 + 1;
            builder =
                builder.decorate(move |link| weft::link::fault::Faulty::new(link, seed, faults(), Default::default()));
        }
        let domain = match self.ways {
            Ways::Shm => builder.udp("127.0.0.1:0").unwrap(),
            Ways::Udp | Ways::FaultyUdp => builder.road(weft::Road::Packets).udp("127.0.0.1:0").unwrap(),
            Ways::Loopback => {
                let local = SocketAddr::from(([10, 0, 0, 1], self.domains.borrow().len() as u16 + 1));
                builder.link(Box::new(self.network.link(local).unwrap())).unwrap()
            }
        };
        if self.first.get().is_none() {
            self.first.set(Some(domain.local()));
        }
        self.domains.borrow_mut().push(domain.clone());
        domain
    }

    pub(crate) fn node(&self) -> Node {
        self.node_on(self.domain(), 4096)
    }

    pub(crate) fn node_with(&self, capacity: usize, change: impl FnOnce(&mut Config)) -> Node {
        self.node_on(self.domain_with(change), capacity)
    }

    pub(crate) fn node_on(&self, domain: Domain, capacity: usize) -> Node {
        let queue = domain.completion_queue(capacity);
        let endpoint = domain.endpoint(&queue).unwrap();
        let is_first = self.first.get() == Some(domain.local());
        let place = match self.memory[usize::from(!is_first)] {
            Memory::Host => Place::HOST,
            Memory::Emulated => Place::new(Kind::Emulated, u32::from(!is_first)),
        };
        Node { domain, queue, endpoint, place, arena: Mutex::default() }
    }

    /// Two nodes that know each other.
    pub(crate) fn pair(&self) -> (Node, Node, PeerId, PeerId) {
        let (a, b) = (self.node(), self.node());
        let (to_b, to_a) = (a.knows(&b), b.knows(&a));
        (a, b, to_b, to_a)
    }

    /// Lets go of a domain, so that it closes with its last handle.
    pub(crate) fn forget(&self, domain: &Domain) {
        self.domains.borrow_mut().retain(|other| other.local() != domain.local());
    }

    /// Lets every node work once.
    pub(crate) fn turn(&self) {
        if self.progress == Progress::Manual {
            self.domains.borrow().iter().for_each(|domain| domain.progress().unwrap());
        } else {
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Lets every node work until `found` finds something.
    pub(crate) fn until<T>(&self, what: &str, mut found: impl FnMut() -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            if let Some(found) = found() {
                return found;
            }
            assert!(start.elapsed() < PATIENCE, "hangs: {what}");
            self.turn();
        }
    }

    /// The next completion of a node, good or bad.
    pub(crate) fn next(&self, node: &Node) -> Completion {
        self.until("completion", || node.queue.read().unwrap())
    }

    /// The next completion of a node, which must be good.
    pub(crate) fn good(&self, node: &Node) -> Completion {
        self.next(node).ok().unwrap()
    }

    /// The next `count` completions, all good.
    pub(crate) fn goods(&self, node: &Node, count: usize) -> Vec<Completion> {
        (0..count).map(|_| self.good(node)).collect()
    }

    /// Lets every node work for a while, to see that nothing happens.
    pub(crate) fn idle(&self, rounds: usize) {
        (0..rounds).for_each(|_| {
            self.turn();
            std::thread::sleep(Duration::from_micros(50));
        });
    }
}

impl Drop for World {
    /// What shared memory is tested for must not have gone another way.
    fn drop(&mut self) {
        if self.ways == Ways::Shm && !std::thread::panicking() {
            for domain in self.domains.borrow().iter() {
                assert_eq!(domain.statistics().packets_sent, 0, "nothing goes as packets");
            }
        }
    }
}

impl Node {
    /// Names another node's endpoint.
    pub(crate) fn knows(&self, other: &Node) -> PeerId {
        self.domain.addresses().insert(other.endpoint.address()).unwrap()
    }

    /// A buffer with these bytes in the node's kind of memory.
    pub(crate) fn buffer(&self, bytes: impl Into<Vec<u8>>) -> Buffer {
        let bytes = bytes.into();
        if self.place.is_host() {
            return bytes.into();
        }
        let mut arena = self.arena.lock().unwrap();
        let (region, used) = match arena.take() {
            Some((region, used)) if used + bytes.len() <= region.length() => (region, used),
            _ => (raw::Memory::alloc_device(self.place, ARENA_BYTES.max(bytes.len())).unwrap(), 0),
        };
        region.write(used, &bytes).unwrap();
        let buffer = Buffer::from_region(&region, used, bytes.len()).unwrap();
        *arena = Some((region, used + bytes.len().next_multiple_of(64)));
        buffer
    }

    /// Registers memory of the node's kind: a copy of bytes, or so many zeros.
    pub(crate) fn register(&self, content: impl Into<Content>, access: Access) -> weft::Result<MemoryRegion> {
        if self.place.is_host() {
            return match content.into() {
                Content::Bytes(bytes) => self.domain.register(bytes, access),
                Content::Zeros(length) => self.domain.register(length, access),
            };
        }
        let bytes = match content.into() {
            Content::Bytes(bytes) => bytes,
            Content::Zeros(length) => vec![0; length],
        };
        let region = raw::Memory::alloc_device(self.place, bytes.len())?;
        region.write(0, &bytes)?;
        self.domain.register(region, access)
    }
}

/// What a region begins with.
pub(crate) enum Content {
    Bytes(Vec<u8>),
    Zeros(usize),
}

impl From<Vec<u8>> for Content {
    fn from(bytes: Vec<u8>) -> Content {
        Content::Bytes(bytes)
    }
}

impl From<usize> for Content {
    fn from(length: usize) -> Content {
        Content::Zeros(length)
    }
}

/// All bytes of a buffer, wherever they are.
pub(crate) fn bytes_of(buffer: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.len()];
    buffer.read(0, &mut bytes).unwrap();
    bytes
}

/// The number at the beginning of a region, wherever it is.
pub(crate) fn number_in(memory: &MemoryRegion) -> u64 {
    let bytes = memory.to_vec(0, 8).unwrap();
    u64::from_le_bytes(bytes.try_into().unwrap())
}

fn faults() -> weft::link::fault::Faults {
    weft::link::fault::Faults { loss: 0.05, duplicate: 0.05, reorder: 0.05, corrupt: 0.05, ..Default::default() }
}

/// Bytes that tell where they are and whose they are.
pub(crate) fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 24) as u8
        })
        .collect()
}

/// Lengths around every edge: nothing, one packet, several, eager and rendezvous.
pub(crate) const LENGTHS: &[usize] = &[
    0,
    1,
    7,
    8,
    63,
    64,
    1000,
    1100,
    1231,
    1232,
    1233,
    2048,
    4095,
    4096,
    4097,
    9000,
    16_384,
    65_000,
    65_535,
    65_536,
    65_537,
    300_000,
    1 << 20,
];
