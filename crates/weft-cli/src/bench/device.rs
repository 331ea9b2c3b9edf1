//! `weft bench device`: messages from and to the memory of devices, beside plain copies by the device itself.
//!
//! For each operation, road and pair of memories, two processes live through all sizes. At each size bytes are verified
//! first: the target has other bytes and a guard behind them, one operation runs, and whoever has the memory compares.
//! Some more operations run that are not measured, so that what is done once is not in the figures. Then come the rounds, in each of which the client measures one operation at a time, many at once, and plain copies
//! the same way, in turns. Last, the bytes are compared again. Client and server speak in short tagged messages of host
//! memory; the messages that are measured have no tag.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{ArgAction, Args, ValueEnum};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use weft::{Access, Completion, CompletionKind, CompletionQueue, Domain, Endpoint, Fabric, MemoryRegion, PeerId};
use weft::{Options as Sending, Refused, RemoteAddress};
use weft_mem::bare::PlainCopy;
use weft_mem::device::{self, Kind, Place};

use super::job::{LinkKind, Operation};
use super::node::Meeting;
use super::table::DIGITS;
use super::{Common, one_of, size, up_to};
use crate::Failure;
use crate::json::decimal;
use crate::process::Fault;
use crate::process::pair::{Event, Pair, Role};
use crate::process::parent::Parent;
use crate::progress;

/// The hidden command that a child is.
pub(crate) const COMMAND: &str = "bench-device-node";

/// The operations that take device memory on both sides.
const OPERATIONS: [Operation; 3] = [Operation::Send, Operation::Write, Operation::Read];
const ROUNDS_DEFAULT: usize = 5;
const ROUNDS_MAX: usize = 100;
const SPAN_US: u64 = 20_000;
const SPAN_QUICK_US: u64 = 1000;
const SIZE_MAX_BYTES: usize = 1 << 30;
const SIZE_FIRST_BYTES: usize = 8;
/// Unless sizes are asked for, packets carry up to this.
const SIZE_UDP_MAX_BYTES: usize = 64 << 20;
/// Unless sizes are asked for, emulated devices are tried with up to this.
const SIZE_EMULATED_MAX_BYTES: usize = 4 << 20;
/// All sizes of one pair of processes take at most this long.
const PAIR_MAX: Duration = Duration::from_secs(600);
/// How long a child may take to notice that its input is closed.
const GRACE: Duration = Duration::from_secs(2);
const COUNT_MAX: u64 = 100_000;
/// Operations and plain copies at each size that are not measured, one at a time and then as many at once: handles are
/// opened after some short messages, host memory is made known to the device at the first long copy.
const WARM_COUNT: u64 = 20;
/// Of more than so many bytes there are fewer.
const WARM_BYTES: usize = 1 << 20;
const WARM_LONG_COUNT: u64 = 3;
/// Many at once are so many, or as many as have so many bytes.
const WINDOW_MAX: u64 = 64;
const WINDOW_BYTES: u64 = 64 << 20;
const TAG: u64 = 1;
const TEXT_MAX_BYTES: usize = 128;
const GUARD_BYTES: usize = 64;
const GUARD: u8 = 0xa5;
const CHUNK_BYTES: usize = 1 << 20;

/// Whose memory is a device's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Memories {
    client: bool,
    server: bool,
}

impl Memories {
    const ALL: [Memories; 3] = [
        Memories { client: true, server: true },
        Memories { client: true, server: false },
        Memories { client: false, server: true },
    ];

    fn name(self) -> &'static str {
        match (self.client, self.server) {
            (true, true) => "device-device",
            (true, false) => "device-host",
            (false, true) => "host-device",
            (false, false) => "host-host",
        }
    }
}

impl ValueEnum for Memories {
    fn value_variants<'a>() -> &'a [Memories] {
        &Memories::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.name()))
    }
}

/// What one pair of processes does.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
struct Task {
    operation: Operation,
    link: LinkKind,
    memories: Memories,
    #[arg(value_parser = device_kind())]
    kind: Kind,
    rounds: usize,
    span_us: u64,
    #[arg(value_delimiter = ',')]
    sizes: Vec<usize>,
}

#[derive(Args)]
pub(crate) struct ChildArguments {
    role: Role,
    #[command(flatten)]
    task: Task,
}

impl Task {
    fn title(&self) -> String {
        let (from, to) = if self.operation == Operation::Read { ("to", "from") } else { ("from", "to") };
        let of = |is_device| if is_device { self.kind.to_string() } else { "host".to_string() };
        let (client, server) = (of(self.memories.client), of(self.memories.server));
        format!("{} over {}, {from} {client} memory {to} {server} memory", self.operation.name(), self.link.name())
    }

    fn words(&self) -> Vec<String> {
        let sizes: Vec<String> = self.sizes.iter().map(usize::to_string).collect();
        vec![
            self.operation.name().to_string(),
            self.link.name().to_string(),
            self.memories.name().to_string(),
            self.kind.to_string(),
            self.rounds.to_string(),
            self.span_us.to_string(),
            sizes.join(","),
        ]
    }

    fn place(&self, role: Role) -> Place {
        let is_device = if role == Role::Client { self.memories.client } else { self.memories.server };
        if !is_device {
            return Place::HOST;
        }
        Place::new(self.kind, 0)
    }
}

fn device_kind() -> impl TypedValueParser<Value = Kind> {
    let known = |name: String| Kind::ALL.into_iter().find(|kind| kind.to_string() == name);
    PossibleValuesParser::new(["cuda", "rocm", "level-zero", "emulated"])
        .try_map(move |name| known(name).ok_or("there is no such kind"))
}

#[derive(Args, Debug)]
#[command(after_help = AFTER)]
pub(crate) struct Arguments {
    /// Kind of memory [default: the first that is present]
    #[arg(long, value_parser = device_kind())]
    kind: Option<Kind>,
    /// Operation [default: each]
    #[arg(long = "op", value_name = "OP", value_parser = one_of(&OPERATIONS))]
    operation: Option<Operation>,
    /// Packets, or shared memory [default: each]
    #[arg(long)]
    link: Option<LinkKind>,
    /// Memory of the client and of the server [default: each]
    #[arg(long = "memory", value_name = "PAIR")]
    memories: Option<Memories>,
    /// Lengths of messages in bytes, also as 64k, 1m or 1g [default: powers of two]
    #[arg(long, value_name = "N,N,...", action = ArgAction::Set, value_delimiter = ',', value_parser = size(SIZE_MAX_BYTES))]
    sizes: Vec<usize>,
    /// Rounds, of which the median is shown
    #[arg(long, value_name = "N", default_value_t = ROUNDS_DEFAULT, value_parser = up_to(ROUNDS_MAX))]
    rounds: usize,
    #[command(flatten)]
    common: Common,
}

const AFTER: &str = "\
At each size all bytes are verified before and after. One at a time, a send is
over when the receiver has said so in a short message, a write or read with its
completion. Beside it, copies of the same bytes from and to the same kinds of
memory inside of the client, by the operations of the device. The sizes, unless
chosen, go from 8 to 1g, over udp to 64m, of emulated devices to 4m.

Example:
  weft bench device --kind cuda --op send --sizes 8,4k,1m";

impl Arguments {
    fn task(&self, kind: Kind, operation: Operation, link: LinkKind, memories: Memories) -> Task {
        let mut sizes = self.sizes.clone();
        if sizes.is_empty() {
            let most = if kind == Kind::Emulated { SIZE_EMULATED_MAX_BYTES } else { SIZE_MAX_BYTES };
            let most = if link == LinkKind::Udp { most.min(SIZE_UDP_MAX_BYTES) } else { most };
            sizes = std::iter::successors(Some(SIZE_FIRST_BYTES), |size| Some(size * 2))
                .take_while(|size| *size <= most)
                .collect();
        }
        let span_us = if self.common.quick { SPAN_QUICK_US } else { SPAN_US };
        Task { operation, link, memories, kind, rounds: self.rounds, span_us, sizes }
    }
}

/// What was found at one size. The first of two is Weft's, the second the plain copy's.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
struct Row {
    bytes: usize,
    /// Microseconds, one at a time.
    one_us: [f64; 2],
    /// Million bytes a second, many at once.
    many: [f64; 2],
}

/// `weft bench device`.
pub(crate) fn run(options: &Arguments, out: &mut dyn Write) -> Result<(), Failure> {
    let json = options.common.json;
    let kind = match options.kind {
        Some(kind) => kind,
        // A real one, if there is one.
        None => [Kind::Cuda, Kind::Rocm, Kind::LevelZero]
            .into_iter()
            .find(|kind| device::operations(*kind).is_ok_and(|operations| operations.devices() > 0))
            .unwrap_or(Kind::Emulated),
    };
    let operations = device::operations(kind).map_err(|absent| Failure::Told(format!("{kind}: {}", absent.0)))?;
    if operations.devices() == 0 {
        return Err(Failure::Told(format!("{kind}: there is no device")));
    }
    let described = operations.describe(0);
    if !json {
        writeln!(out, "device: {kind}, {described}; medians of {} rounds, all bytes verified", options.rounds)?;
        writeln!(
            out,
            "not measured: {} operations at each size before ({} above {} bytes), in which handles are opened and host memory \
             is made known to the device",
            2 * WARM_COUNT,
            2 * WARM_LONG_COUNT,
            WARM_BYTES
        )?;
    }
    let (mut tried, mut failed) = (0, 0);
    for link in options.link.map_or(vec![LinkKind::Shm, LinkKind::Udp], |one| vec![one]) {
        for operation in options.operation.map_or(OPERATIONS.to_vec(), |one| vec![one]) {
            for memories in options.memories.map_or(Memories::ALL.to_vec(), |one| vec![one]) {
                let task = options.task(kind, operation, link, memories);
                tried += 1;
                let progress = progress::stage().with_message(task.title());
                progress.tick();
                let found = measure(&task);
                progress.finish_and_clear();
                failed += usize::from(found.is_err());
                write_task(&task, &described, &found, json, out)?;
                out.flush()?;
            }
        }
    }
    match failed {
        0 => Ok(()),
        _ => Err(Failure::Told(format!("{failed} of {tried} pairs of processes failed"))),
    }
}

/// What a pair of processes found: rows, and which ways its messages took.
struct Found {
    rows: Vec<Row>,
    ways: String,
}

fn measure(task: &Task) -> Result<Found, Fault> {
    let program = std::env::current_exe();
    let program = program.map_err(|error| Fault::Start { program: "weft".to_string(), why: error.to_string() })?;
    let mut pair = Pair::new(&task.title(), PAIR_MAX);
    for role in Role::BOTH {
        let mut command = crate::process::command(&program.to_string_lossy());
        command.args([COMMAND, role.name()]).args(task.words());
        pair.start(role, command)?;
    }
    let mut found = Found { rows: Vec::new(), ways: String::new() };
    let mut running = Role::BOTH.len();
    while running > 0 {
        match pair.next()? {
            Event::Line(role, line) if line.starts_with("hello ") => pair.tell(role.other(), &line),
            Event::Line(role, line) => match line.strip_prefix("ways ") {
                Some(ways) => found.ways = ways.to_string(),
                None => {
                    let unread = || Fault::Unread { who: format!("{}, {role}", task.title()), shown: line.clone() };
                    found.rows.push(serde_json::from_str(&line).map_err(|_| unread())?);
                }
            },
            Event::Ended(role) => {
                running -= 1;
                pair.close(role.other());
            }
        }
    }
    if found.rows.len() == task.sizes.len() {
        return Ok(found);
    }
    Err(Fault::Unread { who: task.title(), shown: format!("{} of {} sizes", found.rows.len(), task.sizes.len()) })
}

fn write_task(
    task: &Task,
    described: &str,
    found: &Result<Found, Fault>,
    json: bool,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    if json {
        return write_json(task, described, found, out);
    }
    writeln!(out, "\n{}", task.title())?;
    let Found { rows, ways } = match found {
        Ok(found) => found,
        Err(fault) => return writeln!(out, "  failed: {fault}"),
    };
    writeln!(out, "{:>12}  {:>34}  {:>36}", "", "one at a time, µs", "many at once, MB/s")?;
    writeln!(
        out,
        "{:>12}  {:>12} {:>12} {:>8}  {:>14} {:>12} {:>8}",
        "bytes", "weft", "plain copy", "ratio", "weft", "plain copy", "ratio"
    )?;
    for row in rows {
        let Row { bytes, one_us: [weft_us, plain_us], many: [weft, plain] } = row;
        let (one, many) = (weft_us / plain_us, weft / plain);
        writeln!(
            out,
            "{bytes:>12}  {weft_us:>12.2} {plain_us:>12.2} {one:>8.2}  {weft:>14.1} {plain:>12.1} {many:>8.2}"
        )?;
    }
    writeln!(out, "ways taken: {ways}")
}

fn write_json(task: &Task, described: &str, found: &Result<Found, Fault>, out: &mut dyn Write) -> std::io::Result<()> {
    let mut write = |about: &[(&str, Value)]| {
        let head = [
            ("test", "device".into()),
            ("op", task.operation.name().into()),
            ("link", task.link.name().into()),
            ("memory", task.memories.name().into()),
            ("kind", task.kind.to_string().into()),
            ("device", described.into()),
        ];
        writeln!(out, "{}", head.iter().chain(about).cloned().collect::<Value>())
    };
    let Found { rows, ways } = match found {
        Ok(found) => found,
        Err(fault) => return write(&[("failed", fault.to_string().into())]),
    };
    rows.iter().try_for_each(|row| {
        let Row { bytes, one_us: [weft_us, plain_us], many: [weft, plain] } = *row;
        write(&[
            ("bytes", bytes.into()),
            ("weft_us", decimal(weft_us, DIGITS)),
            ("plain_copy_us", decimal(plain_us, DIGITS)),
            ("weft_to_plain_copy_us", decimal(weft_us / plain_us, DIGITS)),
            ("weft_mb_s", decimal(weft, DIGITS)),
            ("plain_copy_mb_s", decimal(plain, DIGITS)),
            ("weft_to_plain_copy_mb_s", decimal(weft / plain, DIGITS)),
            ("ways", ways.as_str().into()),
        ])
    })
}

/// A child's whole life.
pub(crate) fn child(ChildArguments { role, task }: &ChildArguments, out: &mut dyn Write) -> Result<(), Failure> {
    let mut meeting = Meeting::new(Parent::new(out, GRACE));
    let side = Side::open(task, *role, &mut meeting).map_err(Failure::Told)?;
    match role {
        Role::Server => server(task, &side, &meeting),
        Role::Client => client(task, side, &mut meeting),
    }
    .map_err(Failure::Told)
}

type Outcome<T> = Result<T, String>;

fn told(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// One side: a NIC, memory at the place that the task says, and the way to the other.
struct Side {
    domain: Domain,
    queue: CompletionQueue,
    endpoint: Endpoint,
    region: MemoryRegion,
    peer: PeerId,
    remote: RemoteAddress,
}

/// What a completion says.
enum Happened {
    /// The other side spoke.
    Text(String),
    /// A measured message arrived.
    Arrived,
    /// An operation of ours ended.
    Ended,
}

impl Side {
    fn open(task: &Task, role: Role, meeting: &mut Meeting<'_>) -> Outcome<Side> {
        let fabric = Fabric::new("weft bench device").map_err(told)?;
        let domain = super::weft::domain(&fabric, IpAddr::V4(Ipv4Addr::LOCALHOST), task.link)?;
        let queue = domain.completion_queue(8 * WINDOW_MAX as usize);
        let endpoint = domain.endpoint(&queue).map_err(told)?;
        let length = task.sizes.iter().max().copied().unwrap_or_default() + GUARD_BYTES;
        let place = task.place(role);
        // Host memory comes from Weft's own shared heap, as a user would take it.
        let region = if place.is_host() {
            domain.register(length, Access::REMOTE)
        } else {
            let memory = weft_mem::MemoryRegion::alloc_device(place, length).map_err(told)?;
            domain.register(memory, Access::REMOTE)
        };
        let region = region.map_err(told)?;
        let remote = region.remote();
        let theirs = meeting.exchange(&format!("{} {} {}", endpoint.address(), remote.address, remote.key))?;
        let mut words = theirs.split(' ');
        let mut word = || words.next().ok_or_else(|| format!("`{theirs}` is no address"));
        let address = word()?.parse().map_err(told)?;
        let remote = RemoteAddress { address: word()?.parse().map_err(told)?, key: word()?.parse().map_err(told)? };
        let peer = domain.addresses().insert(address).map_err(told)?;
        let side = Side { domain, queue, endpoint, region, peer, remote };
        side.listen()?;
        Ok(side)
    }

    /// Makes ready for what the other side says next.
    fn listen(&self) -> Outcome<()> {
        let buffer = vec![0; TEXT_MAX_BYTES];
        self.endpoint.tagged_receive(TAG, 0, buffer).map(|_| ()).map_err(|refused| told(refused.error))
    }

    fn say(&self, text: &str) -> Outcome<()> {
        self.posted(|| {
            let silent = Sending { silent: true, ..Sending::default() };
            Ok(self.endpoint.tagged_send_with(self.peer, TAG, text.as_bytes().to_vec(), silent))
        })
    }

    /// Posts until there is room.
    fn posted(&self, post: impl Fn() -> Outcome<Result<u64, Refused>>) -> Outcome<()> {
        loop {
            match post()? {
                Ok(_) => return Ok(()),
                Err(refused) if refused.error.is_full() => self.domain.progress().map_err(told)?,
                Err(refused) => return Err(told(refused.error)),
            }
        }
    }

    /// Begins the operation that is measured.
    fn begin(&self, operation: Operation, bytes: usize) -> Outcome<()> {
        self.posted(|| {
            let (endpoint, buffer) = (&self.endpoint, self.region.buffer(0, bytes).map_err(told)?);
            Ok(match operation {
                Operation::Write => endpoint.write(self.peer, self.remote, buffer),
                Operation::Read => endpoint.read(self.peer, self.remote, buffer),
                _ => endpoint.send(self.peer, buffer),
            })
        })
    }

    fn receive(&self, bytes: usize) -> Outcome<()> {
        let buffer = self.region.buffer(0, bytes).map_err(told)?;
        self.endpoint.receive(buffer).map(|_| ()).map_err(|refused| told(refused.error))
    }

    /// What happened, if anything did.
    fn look(&self) -> Outcome<Option<Happened>> {
        let Some(completion) = self.queue.read().map_err(told)? else { return Ok(None) };
        let Completion { kind, result, .. } = completion;
        result.map_err(told)?;
        Ok(Some(match kind {
            CompletionKind::TaggedReceive => {
                self.listen()?;
                let bytes = completion.into_bytes().map_err(told)?;
                Happened::Text(String::from_utf8_lossy(&bytes).into_owned())
            }
            CompletionKind::Receive => Happened::Arrived,
            _ => Happened::Ended,
        }))
    }

    /// Fills memory with bytes that a seed makes, and guards what is behind.
    fn fill(&self, bytes: usize, seed: u64) -> Outcome<()> {
        each_chunk(bytes, seed, |offset, chunk| self.region.write(offset, chunk).map_err(told))?;
        self.region.write(bytes, &[GUARD; GUARD_BYTES]).map_err(told)
    }

    /// Compares memory with the bytes that a seed makes, and looks at the guard.
    fn check(&self, bytes: usize, seed: u64) -> Outcome<()> {
        let mut found = vec![0; CHUNK_BYTES.min(bytes)];
        each_chunk(bytes, seed, |offset, chunk| {
            let found = found.get_mut(..chunk.len()).ok_or("a chunk is too long")?;
            self.region.read(offset, found).map_err(told)?;
            match found.iter().zip(chunk).position(|(is, should)| is != should) {
                None => Ok(()),
                Some(place) => Err(format!("{bytes} bytes: byte {} is wrong", offset + place)),
            }
        })?;
        let guard = self.region.to_vec(bytes, GUARD_BYTES).map_err(told)?;
        let whole = guard.iter().all(|byte| *byte == GUARD);
        if whole { Ok(()) } else { Err(format!("{bytes} bytes: what is behind them was written")) }
    }
}

/// Calls with each chunk of the bytes that a seed makes.
fn each_chunk(bytes: usize, seed: u64, mut call: impl FnMut(usize, &[u8]) -> Outcome<()>) -> Outcome<()> {
    let mut chunk = vec![0; CHUNK_BYTES.min(bytes)];
    let mut offset = 0;
    while offset < bytes {
        let length = CHUNK_BYTES.min(bytes - offset);
        let chunk = chunk.get_mut(..length).ok_or("a chunk is too long")?;
        for (index, word) in chunk.chunks_mut(8).enumerate() {
            let number = ((offset / 8 + index) as u64 ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            for (byte, value) in word.iter_mut().zip(number.to_be_bytes()) {
                *byte = value;
            }
        }
        call(offset, chunk)?;
        offset += length;
    }
    Ok(())
}

/// Does what the client says, until it says no more.
fn server(task: &Task, side: &Side, meeting: &Meeting<'_>) -> Outcome<()> {
    while !meeting.over() {
        let Some(happened) = side.look()? else { continue };
        let Happened::Text(text) = happened else { continue };
        let words: Vec<&str> = text.split(' ').collect();
        let number = |word: &str| word.parse::<u64>().map_err(|_| format!("`{text}` is no request"));
        match words.as_slice() {
            ["fill", bytes, seed] => {
                let done = side.fill(number(bytes)? as usize, number(seed)?);
                side.say(&answer(done))?;
            }
            ["check", bytes, seed] => {
                let done = side.check(number(bytes)? as usize, number(seed)?);
                side.say(&answer(done))?;
            }
            // So many messages: each is answered, or only the last.
            ["expect", bytes, count, each] if task.operation == Operation::Send => {
                let (bytes, count, each) = (number(bytes)? as usize, number(count)?, *each == "each");
                let mut posted = window(bytes).min(count);
                for _ in 0..posted {
                    side.receive(bytes)?;
                }
                side.say("ok")?;
                let mut arrived = 0;
                while arrived < count && !meeting.over() {
                    if !matches!(side.look()?, Some(Happened::Arrived)) {
                        continue;
                    }
                    arrived += 1;
                    if each || arrived == count {
                        side.say("ok")?;
                    }
                    if posted < count {
                        side.receive(bytes)?;
                        posted += 1;
                    }
                }
            }
            _ => return Err(format!("`{text}` is no request")),
        }
    }
    Ok(())
}

fn answer(done: Outcome<()>) -> String {
    done.map_or_else(|error| error.chars().take(TEXT_MAX_BYTES / 4).collect(), |()| "ok".to_string())
}

fn window(bytes: usize) -> u64 {
    (WINDOW_BYTES / bytes.max(1) as u64).clamp(2, WINDOW_MAX)
}

/// The one that acts.
struct Client<'a> {
    task: &'a Task,
    side: Side,
}

fn client(task: &Task, side: Side, meeting: &mut Meeting<'_>) -> Outcome<()> {
    let client = Client { task, side };
    let (from, to) = match task.operation {
        Operation::Read => (task.place(Role::Server), task.place(Role::Client)),
        _ => (task.place(Role::Client), task.place(Role::Server)),
    };
    let longest = task.sizes.iter().max().copied().unwrap_or_default();
    let plain = PlainCopy::new(from, to, longest).map_err(|error| format!("plain copy: {error}"))?;
    for &bytes in &task.sizes {
        let row = client.row(bytes, &plain)?;
        meeting.tell(&serde_json::to_string(&row).map_err(told)?)?;
    }
    let local = client.side.domain.local_statistics();
    if (task.link == LinkKind::Shm) != (local.routes > 0) {
        return Err("the messages did not take the road that was asked for".to_string());
    }
    meeting.tell(&format!("ways {}", ways(&client.side.domain)))
}

/// Which ways the client's messages took, by the counts that are not zero.
fn ways(domain: &Domain) -> String {
    let local = domain.local_statistics();
    let weft::TransferCounters { staging, staged, .. } = domain.transfer_counters();
    let counts = [
        ("whole in the ring", local.eager),
        ("fragments", local.fragments),
        ("offered", local.offered),
        ("straight in the peer's memory", local.direct),
        ("by handle", local.by_handle),
        ("through bounce buffers", local.bounced),
        ("from device memory through the host", local.staged),
        ("through the target", local.through_target),
        ("served", local.served),
        ("by attach", local.attached),
        ("times a slow ring was left for attach", local.ring_left),
        ("copies from the device", staging.out_copies),
        ("copies to the device", staging.in_copies),
        ("copies for the link", staged.copies),
        ("staging buffers that are not pinned", staging.unpinned),
        ("copies that failed", staging.failures + staged.failures),
    ];
    let shown: Vec<String> =
        counts.into_iter().filter(|(_, count)| *count > 0).map(|(name, count)| format!("{name} {count}")).collect();
    if shown.is_empty() { "packets alone".to_string() } else { shown.join(", ") }
}

impl Client<'_> {
    fn row(&self, bytes: usize, plain: &PlainCopy) -> Outcome<Row> {
        let seed = bytes as u64;
        let (source, target) = (seed, !seed);
        let is_read = self.task.operation == Operation::Read;
        self.side.fill(bytes, if is_read { target } else { source })?;
        self.ask(&format!("fill {bytes} {}", if is_read { source } else { target }))?;
        self.one_by_one(bytes, 1)?;
        self.verify(bytes, source)?;

        let failed = |error: device::DeviceError| format!("plain copy: {error}");
        let span_us = self.task.span_us as f64;
        let fit = |each_us: f64| ((span_us / each_us.max(0.01)) as u64).clamp(1, COUNT_MAX);
        let each_us = |took: Duration, count: u64| took.as_secs_f64() * 1e6 / count as f64;
        let window = window(bytes);
        let warm = if bytes <= WARM_BYTES { WARM_COUNT } else { WARM_LONG_COUNT };
        self.one_by_one(bytes, warm)?;
        self.many_at_once(bytes, warm, window)?;
        let first_weft = fit(each_us(self.one_by_one(bytes, 2)?, 2));
        plain.one_by_one(bytes, warm).map_err(failed)?;
        plain.many_at_once(bytes, warm, window as usize).map_err(failed)?;
        let first_plain = fit(each_us(plain.one_by_one(bytes, 2).map_err(failed)?, 2));
        let mut figures: [Vec<f64>; 4] = Default::default();
        for _ in 0..self.task.rounds {
            let [weft_us, plain_us, weft_many, plain_many] = &mut figures;
            weft_us.push(each_us(self.one_by_one(bytes, first_weft)?, first_weft));
            let one_us = each_us(plain.one_by_one(bytes, first_plain).map_err(failed)?, first_plain);
            plain_us.push(one_us);
            let (weft, others) = (first_weft.max(2 * window), first_plain.max(2 * window));
            weft_many.push(bytes as f64 / each_us(self.many_at_once(bytes, weft, window)?, weft));
            let took = plain.many_at_once(bytes, others, window as usize).map_err(failed)?;
            // Devices whose copies are slow to start in the background are better off without.
            plain_many.push(bytes as f64 / each_us(took, others).min(one_us));
        }
        self.verify(bytes, source)?;
        let [weft_us, plain_us, weft_many, plain_many] = figures.map(median);
        Ok(Row { bytes, one_us: [weft_us, plain_us], many: [weft_many, plain_many] })
    }

    /// Compares what arrived, where it arrived.
    fn verify(&self, bytes: usize, seed: u64) -> Outcome<()> {
        match self.task.operation {
            Operation::Read => self.side.check(bytes, seed),
            _ => self.ask(&format!("check {bytes} {seed}")),
        }
    }

    /// Asks the server and waits until it has done so.
    fn ask(&self, text: &str) -> Outcome<()> {
        self.side.say(text)?;
        self.answered()
    }

    fn answered(&self) -> Outcome<()> {
        loop {
            match self.side.look()? {
                Some(Happened::Text(text)) if text == "ok" => return Ok(()),
                Some(Happened::Text(text)) => return Err(format!("the server says: {text}")),
                _ => {}
            }
        }
    }

    /// How long so many operations take, one at a time. A message is over when the receiver has said so, in a short one.
    fn one_by_one(&self, bytes: usize, count: u64) -> Outcome<Duration> {
        let operation = self.task.operation;
        let is_send = operation == Operation::Send;
        if is_send {
            self.ask(&format!("expect {bytes} {count} each"))?;
        }
        let start = Instant::now();
        for _ in 0..count {
            self.side.begin(operation, bytes)?;
            let (mut ended, mut answered) = (false, !is_send);
            while !(ended && answered) {
                match self.side.look()? {
                    Some(Happened::Ended) => ended = true,
                    Some(Happened::Text(text)) if text == "ok" => answered = true,
                    Some(Happened::Text(text)) => return Err(format!("the server says: {text}")),
                    _ => {}
                }
            }
        }
        Ok(start.elapsed())
    }

    /// How long so many operations take, many under way, until the last has ended and arrived.
    fn many_at_once(&self, bytes: usize, count: u64, window: u64) -> Outcome<Duration> {
        let operation = self.task.operation;
        let is_send = operation == Operation::Send;
        if is_send {
            self.ask(&format!("expect {bytes} {count} last"))?;
        }
        let (mut begun, mut ended, mut answered) = (0, 0, !is_send);
        let start = Instant::now();
        while ended < count || !answered {
            while begun < count && begun - ended < window {
                self.side.begin(operation, bytes)?;
                begun += 1;
            }
            match self.side.look()? {
                Some(Happened::Ended) => ended += 1,
                Some(Happened::Text(text)) if text == "ok" => answered = true,
                Some(Happened::Text(text)) => return Err(format!("the server says: {text}")),
                _ => {}
            }
        }
        Ok(start.elapsed())
    }
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::parse;

    #[test]
    fn tasks_and_rows_survive_being_words() {
        let options: Arguments = parse("--kind emulated --sizes 8,1m --rounds 2 --quick").unwrap();
        for operation in OPERATIONS {
            for memories in Memories::ALL {
                let task = options.task(Kind::Emulated, operation, LinkKind::Shm, memories);
                assert_eq!(parse(&task.words().join(" ")), Ok(task));
            }
        }
        let row = Row { bytes: 8, one_us: [1.5, 2.0], many: [3.0, 4.25] };
        assert_eq!(serde_json::from_str::<Row>(&serde_json::to_string(&row).unwrap()).unwrap(), row);
        assert!(serde_json::from_str::<Row>("row").is_err());
    }

    #[test]
    fn options_are_read() {
        let options: Arguments = parse("").unwrap();
        let udp = options.task(Kind::Cuda, Operation::Send, LinkKind::Udp, Memories::ALL[0]);
        assert_eq!((udp.sizes.first(), udp.sizes.last()), (Some(&8), Some(&SIZE_UDP_MAX_BYTES)));
        let shm = options.task(Kind::Cuda, Operation::Send, LinkKind::Shm, Memories::ALL[0]);
        assert_eq!(shm.sizes.last(), Some(&SIZE_MAX_BYTES));
        for (wrong, told) in [
            ("--kind system", "[possible values: cuda, rocm, level-zero, emulated]"),
            ("--op atomic", "[possible values: send, write, read]"),
            ("--memory host-host", "[possible values: device-device, device-host, host-device]"),
            ("--sizes 2g", "is no size"),
            ("--rounds 0", "0 is not in 1..=100"),
            ("--fast", "unexpected argument"),
        ] {
            let error = parse::<Arguments>(wrong).unwrap_err();
            assert!(error.contains(told), "{error}");
        }
    }

    #[test]
    fn the_same_seed_makes_the_same_bytes_in_chunks_of_any_length() {
        let mut whole = Vec::new();
        each_chunk(CHUNK_BYTES + 13, 5, |_, chunk| {
            whole.extend_from_slice(chunk);
            Ok(())
        })
        .unwrap();
        assert_eq!(whole.len(), CHUNK_BYTES + 13);
        each_chunk(9, 5, |_, chunk| {
            assert_eq!(chunk, &whole[..9]);
            Ok(())
        })
        .unwrap();
        assert_ne!(whole[..8], whole[8..16]);
    }
}
