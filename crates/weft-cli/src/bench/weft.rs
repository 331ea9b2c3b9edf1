//! Weft's own two processes: one acts and measures, one serves.

use std::net::IpAddr;
use std::time::Instant;

use weft::{
    Access, Buffer, Completion, CompletionKind, CompletionQueue, Domain, Endpoint, Fabric, Level, MemoryRegion,
    Options, PeerId,
};
use weft::{Refused, RemoteAddress, Road};

use super::job::{Job, LinkKind, Measurement, Operation, Test, Times};
use super::node::{Meeting, Task};

/// Messages under way at once in `bw` and `rate`.
const UNDER_WAY: u64 = 64;
const UNDER_WAY_SHORT: u64 = 512;
/// Receives that are posted for short messages: more than a round brings, and few enough to stay in the cache.
const POSTED_SHORT: u64 = 128;
/// Writes up to this are injected in streams.
const INJECTED_BYTES: usize = 64;
/// Messages up to this are short.
const SHORT_BYTES: usize = 1024;
/// Over shared memory, one message of so many is timed: to look at a clock takes half as long as a message.
const TIMED_SHM: u64 = 64;

/// One side: a NIC with one endpoint, a region for the other side, and the way there.
struct Side {
    domain: Domain,
    queue: CompletionQueue,
    endpoint: Endpoint,
    region: MemoryRegion,
    /// What messages are sent from and received into.
    memory: MemoryRegion,
    peer: PeerId,
    remote: RemoteAddress,
    /// Buffers that are not under way.
    spare: Vec<Buffer>,
    bytes: usize,
}

type Outcome<T> = Result<T, String>;

/// A NIC whose messages take this road. It is all that a user has to write to choose one.
pub(super) fn domain(fabric: &Fabric, local: IpAddr, link: LinkKind) -> Outcome<Domain> {
    let road = match link {
        LinkKind::Udp => Road::Packets,
        LinkKind::Shm => Road::Automatic,
    };
    // Whoever else the machine works for, nobody here dies: who does not answer is kept from the processor.
    let domain = fabric.domain().road(road).configure(|config| config.give_up_us = weft_core::limits::GIVE_UP_MAX_US);
    domain.udp((local, 0)).map_err(told)
}

fn told(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl Side {
    fn open(local: IpAddr, job: &Job, meeting: &mut Meeting<'_>) -> Outcome<Side> {
        let fabric = Fabric::new("weft bench").map_err(told)?;
        let domain = domain(&fabric, local, job.link)?;
        let queue = domain.completion_queue(4 * UNDER_WAY_SHORT as usize);
        let endpoint = domain.endpoint(&queue).map_err(told)?;
        let region = domain.register(job.bytes.max(64), Access::REMOTE).map_err(told)?;
        let memory = domain.register(job.bytes.max(64), Access::NONE).map_err(told)?;
        let remote = region.remote();
        let mine = format!("{} {} {}", endpoint.address(), remote.address, remote.key);
        let theirs = meeting.exchange(&mine)?;
        let mut words = theirs.split(' ');
        let mut word = || words.next().ok_or_else(|| format!("`{theirs}` is no address"));
        let address = word()?.parse().map_err(told)?;
        let remote = RemoteAddress { address: word()?.parse().map_err(told)?, key: word()?.parse().map_err(told)? };
        let peer = domain.addresses().insert(address).map_err(told)?;
        Ok(Side { domain, queue, endpoint, region, memory, peer, remote, spare: Vec::new(), bytes: job.bytes })
    }

    /// A buffer that is not under way. All of them are the same memory, as in OSU's benchmarks and ucx_perftest.
    fn buffer(&mut self) -> Outcome<Buffer> {
        match self.spare.pop() {
            Some(buffer) => Ok(buffer),
            None => self.memory.buffer(0, self.bytes).map_err(told),
        }
    }

    /// Begins an operation; false: too many are under way.
    fn begin(&mut self, operation: Operation) -> Outcome<bool> {
        let buffer = self.buffer()?;
        let (endpoint, peer, remote) = (&self.endpoint, self.peer, self.remote);
        let begun = match operation {
            Operation::Send => endpoint.send(peer, buffer),
            Operation::Tagged => endpoint.tagged_send(peer, 7, buffer),
            Operation::Write => endpoint.write(peer, remote, buffer),
            Operation::Read => endpoint.read(peer, remote, buffer),
            Operation::Atomic => {
                self.spare.push(buffer);
                endpoint.fetch_add(peer, remote, 1u64)
            }
        };
        match begun {
            Ok(_) => Ok(true),
            Err(Refused { error, buffer }) if error.is_full() => {
                self.spare.extend(buffer.filter(|_| operation != Operation::Atomic));
                Ok(false)
            }
            Err(refused) => Err(told(refused.error)),
        }
    }

    fn receive(&mut self, operation: Operation) -> Outcome<()> {
        let buffer = self.buffer()?;
        let posted = match operation {
            Operation::Tagged => self.endpoint.tagged_receive(7, 0, buffer),
            _ => self.endpoint.receive(buffer),
        };
        posted.map(|_| ()).map_err(|refused| told(refused.error))
    }

    /// Keeps the buffer of a completion; tells whether a message arrived.
    fn ended(&mut self, completion: Completion) -> Outcome<bool> {
        completion.result.map_err(told)?;
        if !matches!(completion.kind, CompletionKind::Atomic | CompletionKind::FetchAtomic) {
            self.spare.extend(completion.buffer);
        }
        Ok(matches!(completion.kind, CompletionKind::Receive | CompletionKind::TaggedReceive))
    }

    /// Waits, spinning, for one completion.
    fn completion(&mut self) -> Outcome<()> {
        loop {
            if let Some(completion) = self.queue.read().map_err(told)? {
                return self.ended(completion).map(|_| ());
            }
        }
    }

    /// Waits, spinning, until a message has arrived.
    fn arrival(&mut self) -> Outcome<()> {
        loop {
            if let Some(completion) = self.queue.read().map_err(told)?
                && self.ended(completion)?
            {
                return Ok(());
            }
        }
    }
}

/// The one that acts: `warm_up` messages, then `iterations`, then its measurement.
pub(super) fn client(task: &Task, meeting: &mut Meeting<'_>) -> Outcome<Option<Measurement>> {
    let job = &task.job;
    let mut side = Side::open(task.local, job, meeting)?;
    let found = if job.test == Test::Latency {
        latency(&mut side, job)?
    } else {
        stream(&mut side, job, job.warm_up)?;
        let start = Instant::now();
        stream(&mut side, job, job.iterations)?;
        Measurement::of(job, start.elapsed().as_secs_f64() * 1e6, 1)
    };
    // A library falls back to packets where shared memory cannot be had. A benchmark must not do so in silence.
    let routes = side.domain.local_statistics().routes;
    match (job.link, routes) {
        (LinkKind::Shm, 0) => Err("the messages went as packets: the peer was not found on this machine".to_string()),
        (LinkKind::Udp, 1..) => Err("the messages went through shared memory".to_string()),
        _ => Ok(Some(found)),
    }
}

fn latency(side: &mut Side, job: &Job) -> Outcome<Measurement> {
    let timed_every = if job.link == LinkKind::Shm { TIMED_SHM } else { 1 };
    let mut times = Times::new()?;
    let legs = if job.operation.answers() { 1 } else { 2 };
    let mut begin = Instant::now();
    if matches!(job.operation, Operation::Send | Operation::Tagged) {
        side.receive(job.operation)?;
        side.receive(job.operation)?;
    }
    for round in 0..job.warm_up + job.iterations {
        if round == job.warm_up {
            begin = Instant::now();
        }
        let start = (round >= job.warm_up && round.is_multiple_of(timed_every)).then(Instant::now);
        match job.operation {
            Operation::Send | Operation::Tagged => {
                while !side.begin(job.operation)? {
                    side.domain.progress().map_err(told)?;
                }
                // While the message is under way there is time to post the receive after next.
                if round > 0 {
                    side.receive(job.operation)?;
                }
                side.arrival()?;
            }
            Operation::Write => {
                let mark = (round & 0x7f) as u8 + 1;
                write_marked(side, mark)?;
                await_mark(side, mark, None)?;
            }
            Operation::Read | Operation::Atomic => {
                side.begin(job.operation)?;
                loop {
                    if let Some(completion) = side.queue.read().map_err(told)? {
                        side.ended(completion)?;
                        break;
                    }
                }
            }
        }
        if let Some(start) = start {
            times.record(start.elapsed());
        }
    }
    let mut measurement = Measurement::of(job, begin.elapsed().as_secs_f64() * 1e6, legs);
    measurement.spread = times.spread(legs as f64);
    Ok(measurement)
}

/// Writes the whole message with a mark in its last byte, as perftest does. The write before it has been answered, so
/// nobody needs its bytes any more.
fn write_marked(side: &mut Side, mark: u8) -> Outcome<()> {
    side.memory.store_u8(side.bytes.max(1) - 1, mark).map_err(told)?;
    while !side.begin(Operation::Write)? {
        side.domain.progress().map_err(told)?;
    }
    Ok(())
}

/// Spins until the mark is in our memory. False: the work is over.
fn await_mark(side: &mut Side, mark: u8, meeting: Option<&Meeting<'_>>) -> Outcome<bool> {
    let last = side.bytes.max(1) - 1;
    loop {
        while let Some(completion) = side.queue.read().map_err(told)? {
            side.ended(completion)?;
        }
        if side.region.load_u8(last).map_err(told)? == mark {
            return Ok(true);
        }
        if meeting.is_some_and(Meeting::over) {
            return Ok(false);
        }
    }
}

/// So many messages, many under way, until all have arrived.
fn stream(side: &mut Side, job: &Job, count: u64) -> Outcome<()> {
    if job.operation == Operation::Write && job.bytes <= INJECTED_BYTES {
        return inject(side, job, count);
    }
    let window = if job.bytes <= SHORT_BYTES { UNDER_WAY_SHORT } else { UNDER_WAY };
    let (mut begun, mut ended) = (0, 0);
    let mut completions = Vec::new();
    while ended < count {
        while begun < count && begun - ended < window && side.begin(job.operation)? {
            begun += 1;
        }
        side.queue.read_many(&mut completions, window as usize).map_err(told)?;
        for completion in completions.drain(..) {
            side.ended(completion)?;
            ended += 1;
        }
    }
    if matches!(job.operation, Operation::Send | Operation::Tagged) {
        // A send may count as done before it arrives. One that is delivered is behind all others.
        last(side, job.operation)?;
    }
    Ok(())
}

/// One message more, until the other side's program has it.
fn last(side: &mut Side, operation: Operation) -> Outcome<()> {
    let options = Options { level: Level::Delivered, ..Options::default() };
    let mut buffer = Some(side.buffer()?);
    while let Some(given) = buffer.take() {
        let begun = match operation {
            Operation::Tagged => side.endpoint.tagged_send_with(side.peer, 7, given, options),
            _ => side.endpoint.send_with(side.peer, given, options),
        };
        if let Err(Refused { error, buffer: back }) = begun {
            if !error.is_full() {
                return Err(told(error));
            }
            buffer = back;
            side.domain.progress().map_err(told)?;
        }
    }
    side.completion()
}

/// So many short writes as fabtests and ucx_perftest do them: injected, without a completion for each. The last one has
/// one, and is behind a fence.
fn inject(side: &mut Side, job: &Job, count: u64) -> Outcome<()> {
    let bytes = [1; INJECTED_BYTES];
    let bytes = bytes.get(..job.bytes).unwrap_or_default();
    for _ in 1..count {
        while let Err(refused) = side.endpoint.inject_write(side.peer, side.remote, bytes) {
            if !refused.error.is_full() {
                return Err(told(refused.error));
            }
            side.domain.progress().map_err(told)?;
        }
    }
    let options = Options { fence: true, ..Options::default() };
    let buffer = side.buffer()?;
    side.endpoint.write_with(side.peer, side.remote, buffer, options).map_err(|refused| told(refused.error))?;
    side.completion()
}

/// The one that is written to, read from and sent to. It serves until the work is over.
pub(super) fn server(task: &Task, meeting: &mut Meeting<'_>) -> Outcome<Option<Measurement>> {
    let job = &task.job;
    let mut side = Side::open(task.local, job, meeting)?;
    let messages = matches!(job.operation, Operation::Send | Operation::Tagged);
    let short = job.bytes <= SHORT_BYTES;
    if messages {
        let posted = if job.test == Test::Latency {
            1
        } else if short {
            POSTED_SHORT
        } else {
            2 * UNDER_WAY
        };
        for _ in 0..posted {
            side.receive(job.operation)?;
        }
    }
    let mut round = 0u64;
    let mut completions = Vec::new();
    while !meeting.over() {
        if job.test == Test::Latency && job.operation == Operation::Write {
            let mark = (round & 0x7f) as u8 + 1;
            if !await_mark(&mut side, mark, Some(meeting))? {
                break;
            }
            write_marked(&mut side, mark)?;
            round += 1;
            continue;
        }
        side.queue.read_many(&mut completions, 256).map_err(told)?;
        for completion in completions.drain(..) {
            if side.ended(completion)? {
                if job.test == Test::Latency {
                    while !side.begin(job.operation)? {
                        side.domain.progress().map_err(told)?;
                    }
                }
                side.receive(job.operation)?;
            }
        }
    }
    Ok(None)
}
