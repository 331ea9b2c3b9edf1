//! Traffic of all kinds between two endpoints, with canaries around everything that a peer can reach.

use std::collections::HashMap;
use std::net::SocketAddr;

use weft::{
    Access, Address, Buffer, Completion, CompletionKind, CompletionQueue, Domain, Endpoint, Fabric, Failure, Level,
    MemoryRegion, Options, PeerId, Progress, RemoteAddress,
};

pub(crate) const FABRIC: &str = "node-faults";
/// Bytes of a region that the peer is told of.
pub(crate) const WINDOW: usize = 1 << 20;
/// Bytes before and behind them that nobody may change.
const MARGIN: usize = 4096;
const CANARY: u8 = 0xc5;
/// Kinds of operations.
pub(crate) const KINDS: u64 = 15;

pub(crate) fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    state.wrapping_mul(0x2545_f491_4f6c_dd1d)
}

pub(crate) struct Node {
    pub(crate) domain: Domain,
    pub(crate) queue: CompletionQueue,
    pub(crate) endpoint: Endpoint,
}

impl Node {
    pub(crate) fn new(at: SocketAddr, progress: Progress) -> Node {
        let domain = Fabric::new(FABRIC).unwrap().domain().progress(progress).udp(at).unwrap();
        Node::on(&domain)
    }

    /// One that waits for who does not answer as long as is possible: a machine that stands still for a second must not
    /// look like a dead peer.
    pub(crate) fn patient(at: SocketAddr, progress: Progress) -> Node {
        let builder = Fabric::new(FABRIC).unwrap().domain().progress(progress);
        Node::on(&builder.configure(crate::common::patient).udp(at).unwrap())
    }

    pub(crate) fn on(domain: &Domain) -> Node {
        let queue = domain.completion_queue(1 << 12);
        let endpoint = domain.endpoint(&queue).unwrap();
        Node { domain: domain.clone(), queue, endpoint }
    }
}

pub(crate) fn anywhere() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// An address as an argument of a process.
pub(crate) fn address_to_text(address: Address) -> String {
    address.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn address_from_text(text: &str) -> Address {
    let mut bytes = [0; Address::BYTES];
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).unwrap();
    }
    Address::from_bytes(&bytes)
}

/// The two regions that a peer may reach: one by itself, the other only through our NIC.
pub(crate) struct Regions {
    regions: [MemoryRegion; 2],
}

impl Regions {
    pub(crate) fn new(domain: &Domain) -> Regions {
        let bytes = WINDOW + 2 * MARGIN;
        let shared = domain.register(bytes, Access::REMOTE).unwrap();
        let other = domain.register(vec![0; bytes], Access::REMOTE).unwrap();
        for region in [&shared, &other] {
            region.write(0, &[CANARY; MARGIN]).unwrap();
            region.write(MARGIN + WINDOW, &[CANARY; MARGIN]).unwrap();
        }
        Regions { regions: [shared, other] }
    }

    pub(crate) fn remotes(&self) -> [RemoteAddress; 2] {
        [0, 1].map(|index: usize| self.regions[index].remote().at(MARGIN as u64))
    }

    pub(crate) fn assert_canaries(&self) {
        for region in &self.regions {
            for at in [0, MARGIN + WINDOW] {
                assert!(region.to_vec(at, MARGIN).unwrap() == [CANARY; MARGIN], "a canary of a region at {at}");
            }
        }
    }
}

pub(crate) fn remotes_to_bytes(remotes: [RemoteAddress; 2]) -> Vec<u8> {
    remotes.iter().flat_map(|remote| [remote.address, remote.key]).flat_map(u64::to_le_bytes).collect()
}

pub(crate) fn remotes_from_bytes(bytes: &[u8]) -> [RemoteAddress; 2] {
    let word = |index: usize| u64::from_le_bytes(bytes[8 * index..8 * index + 8].try_into().unwrap());
    [0, 2].map(|index| RemoteAddress { address: word(index), key: word(index + 1) })
}

/// Buffers of [`WINDOW`] bytes in one piece of memory, with canaries between them.
pub(crate) struct Arena {
    memory: weft_mem::MemoryRegion,
    free: Vec<usize>,
    lent: HashMap<u64, usize>,
}

impl Arena {
    const STRIDE: usize = WINDOW + MARGIN;

    pub(crate) fn new(slots: usize) -> Arena {
        let memory = weft_mem::MemoryRegion::from_vec(vec![CANARY; slots * Arena::STRIDE + MARGIN]);
        Arena { memory, free: (0..slots).collect(), lent: HashMap::new() }
    }

    fn start(slot: usize) -> usize {
        MARGIN + slot * Arena::STRIDE
    }

    /// A buffer, if there is one, for what `post` gives the context of.
    pub(crate) fn lend<E>(
        &mut self,
        length: usize,
        post: impl FnOnce(Buffer) -> Result<u64, E>,
    ) -> Result<Option<u64>, E> {
        let Some(slot) = self.free.pop() else { return Ok(None) };
        match post(Buffer::from_region(&self.memory, Arena::start(slot), length).unwrap()) {
            Ok(context) => {
                self.lent.insert(context, slot);
                Ok(Some(context))
            }
            Err(error) => {
                self.free.push(slot);
                Err(error)
            }
        }
    }

    pub(crate) fn returned(&mut self, context: u64) {
        if let Some(slot) = self.lent.remove(&context) {
            self.free.push(slot);
        }
    }

    pub(crate) fn assert_canaries(&self) {
        let slots = self.free.len() + self.lent.len();
        for margin in 0..=slots {
            let at = margin * Arena::STRIDE;
            assert!(self.memory.to_vec(at, MARGIN).unwrap() == [CANARY; MARGIN], "a canary of the buffers at {at}");
        }
    }
}

/// One side's operations with a peer.
pub(crate) struct Traffic {
    pub(crate) node: Node,
    arena: Arena,
    peer: Option<(PeerId, [RemoteAddress; 2])>,
    step: u64,
    /// Kinds of the operations under way, by their context.
    pub(crate) pending: HashMap<u64, u64>,
    receives: HashMap<u64, ()>,
    /// Operations that ended well, and otherwise.
    pub(crate) succeeded: u64,
    pub(crate) failed: u64,
    pub(crate) received: u64,
}

impl Traffic {
    pub(crate) fn new(node: Node) -> Traffic {
        Traffic {
            node,
            arena: Arena::new(12),
            peer: None,
            step: 0,
            pending: HashMap::new(),
            receives: HashMap::new(),
            succeeded: 0,
            failed: 0,
            received: 0,
        }
    }

    pub(crate) fn meet(&mut self, peer: Address, remotes: [RemoteAddress; 2], first: u64) {
        self.peer = Some((self.node.domain.addresses().insert(peer).unwrap(), remotes));
        self.step = first;
    }

    pub(crate) fn knows_peer(&self) -> bool {
        self.peer.is_some()
    }

    /// Keeps receives posted: half of the buffers are for reads.
    pub(crate) fn post_receives(&mut self) {
        while self.receives.len() < 6 {
            let endpoint = &self.node.endpoint;
            match self.arena.lend(WINDOW, |buffer| endpoint.tagged_receive(0, u64::MAX, buffer)) {
                Ok(Some(context)) => drop(self.receives.insert(context, ())),
                Ok(None) => break,
                Err(refused) => panic!("{refused:?}"),
            }
        }
    }

    /// Begins one more operation; false: enough are under way.
    pub(crate) fn post(&mut self) -> bool {
        let Some((peer, remotes)) = self.peer else { return false };
        if self.pending.len() >= 24 {
            return false;
        }
        let (step, kind) = (self.step, self.step % KINDS);
        let endpoint = &self.node.endpoint;
        let filled = |length: usize| vec![step as u8; length];
        let delivered = Options { level: Level::Delivered, ..Default::default() };
        let immediate = Options { immediate: Some(step), ..Default::default() };
        let fenced = Options { fence: true, ..Default::default() };
        let posted = match kind {
            0 => endpoint.tagged_send(peer, step, filled(8)),
            1 => endpoint.tagged_send(peer, step, filled(64)),
            2 => endpoint.tagged_send(peer, step, filled(1000)),
            3 => endpoint.tagged_send(peer, step, filled(40_000)),
            4 => endpoint.tagged_send(peer, step, filled(WINDOW)),
            5 => endpoint.tagged_send_with(peer, step, filled(300), delivered),
            6 => endpoint.write(peer, remotes[0], filled(64)),
            7 => endpoint.write(peer, remotes[0], filled(WINDOW)),
            8 => endpoint.write(peer, remotes[1].at(64), filled(4000)),
            9 => endpoint.write(peer, remotes[1].at(8192), filled(600_000)),
            12 => endpoint.fetch_add(peer, remotes[0].at(8), 1u64),
            13 => endpoint.fetch_add(peer, remotes[1].at(8), 1u64),
            14 => endpoint.write_with(
                peer,
                remotes[1].at(64),
                filled(100),
                if step.is_multiple_of(2) { immediate } else { fenced },
            ),
            read => {
                let (remote, length) = if read == 10 { (remotes[0], 100_000) } else { (remotes[1], 200_000) };
                match self.arena.lend(length, |buffer| endpoint.read(peer, remote, buffer)) {
                    Ok(Some(context)) => Ok(context),
                    Ok(None) => {
                        self.step += 1;
                        return true;
                    }
                    Err(refused) => Err(refused),
                }
            }
        };
        self.step += 1;
        let context = posted.unwrap_or_else(|refused| panic!("{refused:?}"));
        assert!(self.pending.insert(context, kind).is_none(), "a context is used once");
        true
    }

    /// Takes one completion to the account; the first message of a peer is given back: what it says, and who it is.
    pub(crate) fn take(&mut self, completion: Completion, hello: u64) -> Option<(Address, Vec<u8>)> {
        let context = completion.context;
        match completion.kind {
            CompletionKind::RemoteWrite => {
                assert!(completion.result.is_ok() && completion.length == 100);
                return None;
            }
            CompletionKind::Receive | CompletionKind::TaggedReceive => {
                assert!(self.receives.remove(&context).is_some(), "a receive ends once: {completion:?}");
                let mut found = None;
                match completion.result {
                    Ok(()) => {
                        let bytes = completion.bytes().unwrap();
                        if completion.tag == hello {
                            found = completion.source.map(|source| (source, bytes));
                        } else {
                            assert!(bytes == vec![completion.tag as u8; bytes.len()], "a message is intact");
                        }
                        self.received += 1;
                    }
                    Err(Failure::Aborted | Failure::Cancelled | Failure::Closed) => {}
                    Err(other) => panic!("a receive ended with {other:?}"),
                }
                drop(completion);
                self.arena.returned(context);
                return found;
            }
            _ => {}
        }
        let kind = self.pending.remove(&context);
        assert!(kind.is_some(), "an operation ends once: {completion:?}");
        match completion.result {
            Ok(()) => self.succeeded += 1,
            Err(Failure::OutcomeUnknown | Failure::OperationFailed | Failure::Aborted | Failure::NoSuchEndpoint) => {
                self.failed += 1;
            }
            Err(other) => panic!("kind {kind:?} ended with {other:?}"),
        }
        drop(completion);
        self.arena.returned(context);
        None
    }

    /// Cancels all receives.
    pub(crate) fn cancel_receives(&self) {
        for context in self.receives.keys() {
            self.node.endpoint.cancel(*context);
        }
    }

    pub(crate) fn receives(&self) -> usize {
        self.receives.len()
    }

    pub(crate) fn assert_canaries(&self) {
        self.arena.assert_canaries();
    }
}
