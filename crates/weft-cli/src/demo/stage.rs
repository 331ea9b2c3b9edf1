//! What both halves of an act have in hand.

use std::fmt::{Debug, Display};
use std::time::{Duration, Instant};

use weft::{
    Address, Completion, CompletionQueue, Domain, Endpoint, EndpointOptions, Fabric, MemoryRegion, PeerId, Progress,
    RemoteAddress, Road,
};

use super::{Act, Amount};

/// What goes wrong is told in words.
pub(super) type Outcome<T> = Result<T, String>;

/// Long enough that only something that hangs reaches it, however busy the machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(300);
/// How often who waits looks whether the other process is there.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long a process may be kept from the processor before its peer gives it up. One that has died is noticed much
/// sooner: its host says that nobody is there.
const GIVE_UP_US: u64 = 10_000_000;

const QUEUE_CAPACITY: usize = 4096;

/// The way to the other process, beside the network.
pub(super) trait Line {
    /// Says a line.
    fn tell(&mut self, words: &str) -> Outcome<()>;
    /// Waits for a line.
    fn hear(&mut self) -> Outcome<String>;
    /// What the other process complained of already.
    fn complaint(&mut self) -> Option<String>;
    /// An error when the other process has complained, or ended before its time.
    fn look(&mut self) -> Outcome<()>;
    /// Its process id.
    fn process(&mut self) -> u32;
}

/// A NIC with one endpoint, whose sends and receives report to a queue each, and the way to the other NIC.
pub(super) struct Stage<'a> {
    pub(super) domain: Domain,
    pub(super) endpoint: Endpoint,
    pub(super) sends: CompletionQueue,
    pub(super) receives: CompletionQueue,
    /// The other NIC's endpoint, and its name here.
    pub(super) other: Address,
    pub(super) peer: PeerId,
    line: Box<dyn Line + 'a>,
    checks: u64,
    compared_bytes: u64,
}

impl<'a> Stage<'a> {
    /// Opens a NIC and gets to know the one at the other end of the line.
    pub(super) fn open(bind: &str, line: Box<dyn Line + 'a>) -> Outcome<Stage<'a>> {
        let fabric = Fabric::new("weft demo").map_err(told)?;
        // A thread of the NIC serves the other side whatever this side is at.
        let domain = fabric.domain().road(Road::Packets).progress(Progress::Automatic);
        let domain = domain.configure(|config| config.give_up_us = GIVE_UP_US).udp(bind).map_err(told)?;
        let (sends, receives) = (domain.completion_queue(QUEUE_CAPACITY), domain.completion_queue(QUEUE_CAPACITY));
        let options = EndpointOptions {
            transmit_queue: Some(sends.clone()),
            receive_queue: Some(receives.clone()),
            ..Default::default()
        };
        let endpoint = domain.open_endpoint(options).map_err(told)?;
        let (other, peer) = (endpoint.address(), PeerId(0));
        let mut stage = Stage { domain, endpoint, sends, receives, other, peer, line, checks: 0, compared_bytes: 0 };
        stage.meet_other()?;
        Ok(stage)
    }

    /// Exchanges addresses over the line.
    fn meet_other(&mut self) -> Outcome<()> {
        self.tell(&self.endpoint.address().to_string())?;
        self.other = self.hear()?.parse().map_err(told)?;
        self.peer = self.domain.addresses().insert(self.other).map_err(told)?;
        Ok(())
    }

    /// Lets go of the other process, which is killed thereby.
    pub(super) fn kill_other(&mut self) {
        self.line = Box::new(Nobody);
    }

    /// Goes on with another process.
    pub(super) fn replace_other(&mut self, line: Box<dyn Line + 'a>) -> Outcome<()> {
        self.line = line;
        self.meet_other()
    }

    pub(super) fn process(&mut self) -> u32 {
        self.line.process()
    }

    /// Both halves of an act.
    pub(super) fn perform(&mut self, number: usize, act: &Act) -> Outcome<Amount> {
        let named = |text: String| format!("{}: {text}", act.name);
        self.begin(number)?;
        let amount = (act.here)(self).map_err(|text| match self.line.complaint() {
            Some(theirs) => named(theirs),
            None => named(text),
        })?;
        let answer = self.hear().map_err(named)?;
        let counts = answer.strip_prefix("done ").and_then(|counts| counts.split_once(' '));
        let counts = counts.and_then(|(checks, bytes)| Some((checks.parse::<u64>().ok()?, bytes.parse::<u64>().ok()?)));
        let (checks, bytes) = counts.ok_or_else(|| named(answer))?;
        self.checks += checks;
        self.compared_bytes += bytes;
        Ok(amount)
    }

    /// Has the other process begin its half of an act.
    pub(super) fn begin(&mut self, number: usize) -> Outcome<()> {
        self.tell(&format!("act {number}"))
    }

    /// Checks that held, and bytes that were compared, since this was asked last.
    pub(super) fn take_checked(&mut self) -> (u64, u64) {
        (std::mem::take(&mut self.checks), std::mem::take(&mut self.compared_bytes))
    }

    /// Checks that held and bytes that were compared.
    pub(super) fn checked(&self) -> (u64, u64) {
        (self.checks, self.compared_bytes)
    }
}

/// Over the line.
impl Stage<'_> {
    pub(super) fn tell(&mut self, words: &str) -> Outcome<()> {
        self.line.tell(words)
    }

    pub(super) fn hear(&mut self) -> Outcome<String> {
        self.line.hear()
    }

    /// Waits until both halves are here.
    pub(super) fn meet(&mut self) -> Outcome<()> {
        self.tell("here")?;
        match self.hear()?.as_str() {
            "here" => Ok(()),
            other => Err(other.to_string()),
        }
    }

    /// Tells the other side how to reach memory.
    pub(super) fn offer(&mut self, region: &MemoryRegion) -> Outcome<()> {
        let remote = region.remote();
        self.tell(&format!("{} {}", remote.address, remote.key))
    }

    /// Hears how to reach the other side's memory.
    pub(super) fn learn(&mut self) -> Outcome<RemoteAddress> {
        let words = self.hear()?;
        let remote = words
            .split_once(' ')
            .and_then(|(address, key)| Some(RemoteAddress { address: address.parse().ok()?, key: key.parse().ok()? }));
        remote.ok_or(words)
    }
}

/// Checks. Each that fails ends the demo.
impl Stage<'_> {
    pub(super) fn check(&mut self, holds: bool, what: &str) -> Outcome<()> {
        if !holds {
            return Err(format!("it does not hold that {what}"));
        }
        self.checks += 1;
        Ok(())
    }

    pub(super) fn equal<T: PartialEq + Debug>(&mut self, what: &str, found: T, due: T) -> Outcome<()> {
        if found != due {
            return Err(format!("{what}: {found:?}, where {due:?} is due"));
        }
        self.checks += 1;
        Ok(())
    }

    /// Compares every byte.
    pub(super) fn same(&mut self, what: &str, found: &[u8], due: &[u8]) -> Outcome<()> {
        self.equal(&format!("length of {what}"), found.len(), due.len())?;
        if found != due {
            let place = found.iter().zip(due).position(|(found, due)| found != due).unwrap_or_default();
            return Err(format!("{what}: byte {place} of {} is wrong", due.len()));
        }
        self.checks += 1;
        self.compared_bytes += due.len() as u64;
        Ok(())
    }

    pub(super) fn same_pattern(&mut self, what: &str, found: &[u8], seed: u64) -> Outcome<()> {
        self.same(what, found, &pattern(seed, found.len()))
    }
}

/// Completions.
impl Stage<'_> {
    /// The next of a queue, good or bad.
    pub(super) fn wait(&mut self, queue: &CompletionQueue) -> Outcome<Completion> {
        let begun = Instant::now();
        loop {
            if let Some(found) = queue.wait(Some(LOOK_EVERY)).map_err(told)? {
                return Ok(found);
            }
            self.line.look()?;
            if begun.elapsed() > PATIENCE {
                return Err(format!("no completion in {} s", PATIENCE.as_secs()));
            }
        }
    }

    /// How the next of what this side began ended.
    pub(super) fn settled(&mut self) -> Outcome<Completion> {
        let queue = self.sends.clone();
        self.wait(&queue)
    }

    /// The next of what this side began, which must have succeeded.
    pub(super) fn done(&mut self) -> Outcome<Completion> {
        self.settled()?.ok().map_err(told)
    }

    /// The next receive or written notice, good or bad.
    pub(super) fn arrived(&mut self) -> Outcome<Completion> {
        let queue = self.receives.clone();
        self.wait(&queue)
    }

    /// The next receive or written notice, which must be good.
    pub(super) fn received(&mut self) -> Outcome<Completion> {
        self.arrived()?.ok().map_err(told)
    }

    /// The next `count` receives, which must be good, by context: they may end in another order than they began.
    pub(super) fn received_by_context(&mut self, count: usize) -> Outcome<Vec<Completion>> {
        let mut all = (0..count).map(|_| self.received()).collect::<Outcome<Vec<_>>>()?;
        all.sort_by_key(|completion| completion.context);
        Ok(all)
    }

    /// Nothing came of which this side's program would have to know.
    pub(super) fn undisturbed(&mut self) -> Outcome<()> {
        let nothing = self.receives.read().map_err(told)?.is_none();
        self.check(nothing, "the program at the target has nothing to read")
    }

    /// Sends a message and sees it settled.
    pub(super) fn send(&mut self, seed: u64, length: usize) -> Outcome<()> {
        let context = self.endpoint.send(self.peer, pattern(seed, length)).map_err(told)?;
        let done = self.done()?;
        self.equal("completion of the send", (done.context, done.length), (context, length as u64))?;
        let buffer = done.buffer.map_or(Ok(Vec::new()), weft::Buffer::into_vec);
        let buffer = buffer.map_err(|_| "the buffer that came back is another one")?;
        self.same_pattern("the buffer that came back", &buffer, seed)
    }

    /// Receives a message and compares it.
    pub(super) fn receive(&mut self, seed: u64, length: usize) -> Outcome<()> {
        let context = self.endpoint.receive(vec![0xee; length]).map_err(told)?;
        let received = self.received()?;
        self.equal("completion of the receive", (received.context, received.length), (context, length as u64))?;
        self.equal("source of the message", received.source, Some(self.other))?;
        self.same_pattern("the message", &received.into_bytes().map_err(told)?, seed)
    }
}

/// No process at all.
struct Nobody;

impl Line for Nobody {
    fn tell(&mut self, _: &str) -> Outcome<()> {
        self.hear().map(|_| ())
    }

    fn hear(&mut self) -> Outcome<String> {
        Err("there is no second process".to_string())
    }

    fn complaint(&mut self) -> Option<String> {
        None
    }

    fn look(&mut self) -> Outcome<()> {
        Ok(())
    }

    fn process(&mut self) -> u32 {
        0
    }
}

pub(super) fn told(error: impl Display) -> String {
    error.to_string()
}

/// Bytes that tell where they are and whose they are.
pub(super) fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 7);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}
