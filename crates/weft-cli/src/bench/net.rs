//! `weft bench lat|bw|rate`: Weft beside its peers and its limits.
//!
//! For each size, each contender is run until its number of iterations for a round is known, which also warms it up.
//! Then come the rounds: Weft, the peers, the limit, Weft, and so on, so that a neighbour on the machine or a change of
//! clock hits all of them. The figures are medians of rounds. Over shared memory everybody's two processes are pinned to
//! the same two processors, and a cache line is passed between those before and after each run; over a network no
//! process is pinned.

use std::io::Write;
use std::time::Duration;

use clap::{ArgAction, Args};
use indicatif::ProgressBar;

use super::job::{Job, LinkKind, Measurement, Operation, Test};
use super::limit::BareUdp;
use super::memory::{self, Watch};
use super::node::{self, Kind};
use super::peer;
use super::place::Place;
use super::table::{Cell, Report, Row};
use super::{Common, size, up_to};
use crate::Failure;
use crate::process::Fault;
use crate::progress;

/// A run that takes longer is stopped.
pub(crate) const RUN_MAX: Duration = Duration::from_secs(60);

pub(crate) const NETNS_WITHOUT_UDP: &str = "--netns is for --link udp: network namespaces share no memory here";
pub(crate) const ROUNDS_DEFAULT: usize = 5;
pub(crate) const ROUNDS_MAX: usize = 1000;
const ROUND_US: f64 = 300_000.0;
const ROUND_QUICK_US: f64 = 30_000.0;
pub(crate) const SIZE_MAX_BYTES: usize = 64 << 20;
/// What the goals name.
const SIZES_DEFAULT: [usize; 5] = [8, 64, 4096, 65_536, 1_048_576];
const SIZES_SHM_DEFAULT: [usize; 6] = [8, 64, 4096, 65_536, 1_048_576, 4_194_304];
const SIZES_RATE_DEFAULT: [usize; 2] = [8, 64];
const ATOMIC_BYTES: usize = 8;
/// The first run of a contender moves about so much, in so many messages at least and at most.
const FIRST_BYTES: usize = 4 << 20;
const FIRST_ITERATIONS_MIN: usize = 20;
const FIRST_ITERATIONS_MAX: usize = 100;
const ITERATIONS_MIN: u64 = 20;
const ITERATIONS_MAX: u64 = 20_000_000;
/// A round that follows a disturbed one has at least this part of the iterations.
const DISTURBED_PART: u64 = 10;
const SETTLE: Duration = Duration::from_millis(2);
/// Of a round, this part more is done beforehand by contenders that can.
const WARM_UP_PART: u64 = 10;

/// Whose figures a column has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ColumnKind {
    Weft,
    Peer,
    Limit,
}

/// The head of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Column {
    pub(crate) kind: ColumnKind,
    pub(crate) program: &'static str,
    pub(crate) over: &'static str,
    pub(crate) how: &'static str,
}

/// One who can be measured.
pub(crate) trait Contender {
    fn column(&self) -> Column;
    /// Why there can be no figure for such a job; `None` when there can.
    fn lacks(&self, job: &Job) -> Option<String>;
    fn run(&self, job: &Job, place: &Place) -> Result<Measurement, Fault>;
    /// Whether its failure ends the benchmark; that of others is noted.
    fn is_vital(&self) -> bool {
        false
    }
}

struct Weft {
    operation: Operation,
    link: LinkKind,
}

impl Contender for Weft {
    fn column(&self) -> Column {
        Column { kind: ColumnKind::Weft, program: "weft", over: self.link.name(), how: self.operation.name() }
    }

    fn lacks(&self, _job: &Job) -> Option<String> {
        None
    }

    fn run(&self, job: &Job, place: &Place) -> Result<Measurement, Fault> {
        node::measure(Kind::Weft, job, place, RUN_MAX)
    }

    fn is_vital(&self) -> bool {
        true
    }
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Arguments {
    /// Operation
    #[arg(long = "op", value_name = "OP", default_value = "send")]
    operation: Operation,
    /// Packets, or shared memory
    #[arg(long, default_value = "udp")]
    link: LinkKind,
    /// Lengths of messages in bytes, also as 64k, 1m or 1g [default: those of the goals]
    #[arg(long, value_name = "N,N,...", action = ArgAction::Set, value_delimiter = ',', value_parser = size(SIZE_MAX_BYTES))]
    sizes: Vec<usize>,
    /// Rounds, of which the median is shown
    #[arg(long, value_name = "N", default_value_t = ROUNDS_DEFAULT, value_parser = up_to(ROUNDS_MAX))]
    rounds: usize,
    /// Leave Weft out
    #[arg(long)]
    peers_only: bool,
    /// Use two network namespaces joined by a veth pair of MTU 1500 (as root)
    #[arg(long)]
    netns: bool,
    #[command(flatten)]
    common: Common,
}

/// What is measured.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) test: Test,
    pub(crate) operation: Operation,
    pub(crate) link: LinkKind,
    pub(crate) sizes: Vec<usize>,
    pub(crate) rounds: usize,
    pub(crate) quick: bool,
    pub(crate) peers_only: bool,
}

impl Options {
    fn new(test: Test, arguments: Arguments) -> Result<Options, String> {
        let Arguments { operation, link, mut sizes, rounds, peers_only, netns, common } = arguments;
        if operation == Operation::Atomic {
            if sizes.iter().any(|bytes| *bytes != ATOMIC_BYTES) {
                return Err(format!("atomics are of {ATOMIC_BYTES} bytes"));
            }
            sizes = vec![ATOMIC_BYTES];
        }
        if netns && link == LinkKind::Shm {
            return Err(NETNS_WITHOUT_UDP.to_string());
        }
        if sizes.is_empty() {
            sizes = match (test, link) {
                (Test::Rate, _) => SIZES_RATE_DEFAULT.to_vec(),
                (_, LinkKind::Udp) => SIZES_DEFAULT.to_vec(),
                (_, LinkKind::Shm) => SIZES_SHM_DEFAULT.to_vec(),
            };
        }
        Ok(Options { test, operation, link, sizes, rounds, quick: common.quick, peers_only })
    }

    fn round_us(&self) -> f64 {
        if self.quick { ROUND_QUICK_US } else { ROUND_US }
    }

    fn job(&self, bytes: usize, iterations: u64) -> Job {
        let Options { test, operation, link, .. } = *self;
        Job {
            test,
            operation,
            link,
            bytes,
            iterations,
            warm_up: iterations / WARM_UP_PART,
            span_us: self.round_us() as u64,
        }
    }
}

/// `weft bench TEST`.
pub(crate) fn run(test: Test, arguments: Arguments, out: &mut dyn Write) -> Result<(), Failure> {
    let (netns, json) = (arguments.netns, arguments.common.json);
    let options = Options::new(test, arguments).map_err(Failure::Usage)?;
    let (place, note) = match options.link {
        LinkKind::Udp if netns => (Place::namespaces()?, None),
        LinkKind::Udp => (Place::loopback(), None),
        LinkKind::Shm => Place::processors(),
    };
    let report = measure(&options, &place, note)?;
    // The namespaces are not needed any more, even if the reader of the report takes its time.
    drop(place);
    Ok(if json { report.write_json(out) } else { report.write(out) }?)
}

fn measure(options: &Options, place: &Place, note: Option<String>) -> Result<Report, Failure> {
    let mut contenders: Vec<Box<dyn Contender>> = Vec::new();
    if !options.peers_only {
        contenders.push(Box::new(Weft { operation: options.operation, link: options.link }));
    }
    let (peers, mut notes) = peer::installed(options.test, options.operation, options.link);
    notes.extend(note);
    contenders.extend(peers);
    let mut watch = None;
    match options.link {
        LinkKind::Udp => contenders.push(Box::new(BareUdp { test: options.test })),
        LinkKind::Shm => {
            contenders.extend(memory::limits(options.test));
            watch = Some(Watch::default());
        }
    }
    let mut machine = Machine { watch, ..Machine::default() };
    let rows = rows(options, place, &contenders, &mut machine, &mut notes)?;
    notes.extend(machine.notes());
    let mut columns: Vec<Column> = contenders.iter().map(|contender| contender.column()).collect();
    columns.extend(machine.line_column(options));
    Ok(Report {
        test: options.test,
        operation: options.operation,
        link: options.link,
        place: place.title(),
        rounds: options.rounds,
        columns,
        rows,
        notes,
    })
}

/// What is looked at between runs.
#[derive(Default)]
pub(crate) struct Machine {
    neighbours: Neighbours,
    /// Where all processes are pinned.
    watch: Option<Watch>,
}

impl Machine {
    /// Latencies are compared with the line itself; for the other tests it only tells how the machine does.
    fn line_column(&self, options: &Options) -> Option<Column> {
        (self.watch.is_some() && options.test == Test::Latency).then_some(memory::LINE)
    }

    /// What was seen.
    pub(crate) fn notes(&self) -> impl Iterator<Item = String> {
        self.watch.as_ref().and_then(Watch::note).into_iter().chain(self.neighbours.warning())
    }

    /// A run, with the cache line before and after it.
    fn watched<T>(
        &mut self,
        place: &Place,
        run: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<(T, Option<[f64; 2]>), Failure> {
        let told = |fault: Fault| Failure::Told(fault.to_string());
        let Some(watch) = &mut self.watch else { return Ok((run()?, None)) };
        let before_us = watch.before(place).map_err(told)?;
        let found = run()?;
        let lines = watch.after(before_us, place).map_err(told)?;
        Ok((found, Some(lines)))
    }
}

/// Measures all contenders at all sizes, in rounds.
pub(crate) fn rows(
    options: &Options,
    place: &Place,
    contenders: &[Box<dyn Contender>],
    machine: &mut Machine,
    notes: &mut Vec<String>,
) -> Result<Vec<Row>, Failure> {
    let progress = progress::stage();
    let row = |&bytes| row(options, place, contenders, bytes, machine, notes, &progress);
    options.sizes.iter().map(row).collect()
}

fn row(
    options: &Options,
    place: &Place,
    contenders: &[Box<dyn Contender>],
    bytes: usize,
    machine: &mut Machine,
    notes: &mut Vec<String>,
    progress: &ProgressBar,
) -> Result<Row, Failure> {
    let mut entries = Vec::new();
    if let Some(watch) = &mut machine.watch {
        watch.forget();
    }
    let show = |stage: &str, contender: &dyn Contender| {
        progress.set_message(format!("{}, {bytes} bytes, {stage}: {}", options.test.name(), contender.column().name()));
    };
    for contender in contenders {
        let mut entry = Entry { contender: contender.as_ref(), iterations: 0, most: 0, cell: Cell::default() };
        show("warm-up", entry.contender);
        match contender.lacks(&options.job(bytes, 1)) {
            Some(why) => entry.give_up(why, notes),
            None => entry.warm_up(options, place, bytes, notes)?,
        }
        entries.push(entry);
    }
    for round in 1..=options.rounds {
        for entry in entries.iter_mut().filter(|entry| !entry.cell.given_up) {
            show(&format!("round {round} of {}", options.rounds), entry.contender);
            machine.neighbours.look();
            let job = options.job(bytes, entry.iterations);
            let (found, lines) = machine.watched(place, || entry.run(&job, place, notes))?;
            if let Some(found) = found {
                entry.cell.measurements.push(found);
                entry.cell.lines_us.extend(lines);
                entry.plan(&found, options.round_us());
            }
        }
    }
    let mut cells: Vec<Cell> = entries.into_iter().map(|entry| entry.cell).collect();
    if machine.line_column(options).is_some() {
        cells.push(Cell::of_lines(&cells));
    }
    Ok(Row { bytes, cells })
}

/// A contender at one size.
struct Entry<'a> {
    contender: &'a dyn Contender,
    iterations: u64,
    /// The most that a round could hold so far: what the machine does when nobody disturbs it.
    most: u64,
    cell: Cell,
}

impl Entry<'_> {
    /// Finds how many iterations make a round. The first, short run counts the cost of setting up as well, so a longer
    /// one corrects it.
    fn warm_up(
        &mut self,
        options: &Options,
        place: &Place,
        bytes: usize,
        notes: &mut Vec<String>,
    ) -> Result<(), Failure> {
        self.iterations = (FIRST_BYTES / bytes).clamp(FIRST_ITERATIONS_MIN, FIRST_ITERATIONS_MAX) as u64;
        let spans_us: &[f64] = if options.quick { &[ROUND_QUICK_US] } else { &[ROUND_QUICK_US, ROUND_US] };
        for span_us in spans_us {
            let job = options.job(bytes, self.iterations);
            let Some(found) = self.run(&job, place, notes)? else { return Ok(()) };
            self.most = 0;
            self.plan(&found, *span_us);
        }
        Ok(())
    }

    /// Sets the iterations of the next run from the pace of the last. When others take the processors, the pace falls a
    /// thousandfold: a round must neither take minutes then, nor be too short when they are gone.
    fn plan(&mut self, found: &Measurement, span_us: f64) {
        let fit = (found.iterations as f64 * span_us / found.elapsed_us.max(1.0)) as u64;
        self.most = self.most.max(fit);
        self.iterations = fit.max(self.most / DISTURBED_PART).clamp(ITERATIONS_MIN, ITERATIONS_MAX);
    }

    /// Where one fails that is not vital, it is noted, and the others go on.
    fn run(&mut self, job: &Job, place: &Place, notes: &mut Vec<String>) -> Result<Option<Measurement>, Failure> {
        match self.contender.run(job, place) {
            Ok(found) => Ok(Some(found)),
            Err(fault) if self.contender.is_vital() => Err(Failure::Told(fault.to_string())),
            Err(fault) => {
                self.give_up(format!("{} bytes: failed: {fault}", job.bytes), notes);
                Ok(None)
            }
        }
    }

    /// What it has measured so far stays.
    fn give_up(&mut self, why: String, notes: &mut Vec<String>) {
        self.cell.given_up = true;
        let note = format!("{}: {why}", self.contender.column().name());
        // The same may be true of several sizes.
        if !notes.contains(&note) {
            notes.push(note);
        }
    }
}

/// Whether others have the processors. A message waits for milliseconds when the one that it is for does not run, and the
/// contenders that sleep and those that spin do not suffer alike.
#[derive(Default)]
struct Neighbours {
    looks: usize,
    seen: usize,
}

impl Neighbours {
    /// Looks between two runs, when nobody but this thread should be running.
    fn look(&mut self) {
        // The threads that read the last run's output end in a moment.
        std::thread::sleep(SETTLE);
        let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        self.looks += 1;
        self.seen += usize::from(running(&text).is_some_and(|running| running > 1));
    }

    fn warning(&self) -> Option<String> {
        let Neighbours { looks, seen } = self;
        let many = seen * 4 > *looks;
        many.then(|| format!("others were running before {seen} of {looks} runs: these figures mean little"))
    }
}

/// How many threads run, of a text such as `2.35 2.98 2.05 2/87 8385`.
fn running(loadavg: &str) -> Option<u32> {
    loadavg.split_whitespace().nth(3)?.split('/').next()?.parse().ok()
}

impl Column {
    /// The column's name in notes and JSON.
    pub(crate) fn name(&self) -> String {
        format!("{} {} {}", self.program, self.over, self.how)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::parse;

    #[test]
    fn busy_neighbours_are_told_of() {
        assert_eq!(running("2.35 2.98 2.05 12/87 8385\n"), Some(12));
        assert_eq!(running("2.35 2.98"), None);
        assert_eq!(Neighbours { looks: 8, seen: 2 }.warning(), None);
        assert!(Neighbours { looks: 8, seen: 3 }.warning().unwrap().contains("before 3 of 8 runs"));
    }

    #[test]
    fn options_are_read() {
        let options = |test, line: &str| parse(line).and_then(|arguments: Arguments| Options::new(test, arguments));
        let line = "--op tagged --link udp --sizes 8,64K,1m --rounds 3 --json --netns";
        let arguments: Arguments = parse(line).unwrap();
        assert!(arguments.common.json && arguments.netns);
        let tagged = options(Test::Bandwidth, line).unwrap();
        assert_eq!((tagged.test, tagged.operation, tagged.rounds), (Test::Bandwidth, Operation::Tagged, 3));
        assert_eq!(tagged.sizes, [8, 65_536, 1_048_576]);
        assert!(!tagged.quick && !tagged.peers_only);
        assert_eq!(options(Test::Latency, "").unwrap().sizes, SIZES_DEFAULT);
        assert_eq!(options(Test::Rate, "").unwrap().sizes, SIZES_RATE_DEFAULT);
        assert_eq!(options(Test::Bandwidth, "--link shm").unwrap().sizes, SIZES_SHM_DEFAULT);
        assert_eq!(options(Test::Latency, "--op atomic").unwrap().sizes, [8]);
        // The last of several counts.
        assert_eq!(options(Test::Latency, "--sizes 1,2 --quick --sizes 3 --quick").unwrap().sizes, [3]);
        for (wrong, told) in [
            ("--sizes 8,,9", "`` is no size"),
            ("--sizes 0", "`0` is no size"),
            ("--sizes 8kk", "`8kk` is no size"),
            ("--sizes 99999999999999999999m", "is no size"),
            ("--sizes", "a value is required for '--sizes <N,N,...>'"),
            ("--rounds 0", "0 is not in 1..=1000"),
            ("--op swim", "[possible values: send, tagged, write, read, atomic]"),
            ("--op atomic --sizes 64", "atomics are of 8 bytes"),
            ("--link tcp", "[possible values: udp, shm]"),
            ("--link shm --netns", "--netns is for --link udp"),
            ("--fast", "unexpected argument '--fast'"),
        ] {
            let error = options(Test::Latency, wrong).unwrap_err();
            assert!(error.contains(told), "{error}");
        }
    }
}
