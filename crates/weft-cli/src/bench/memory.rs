//! The limits of shared memory: what two processors and their caches do, with nothing of a protocol on top.
//!
//! | limit | of | is |
//! |---|---|---|
//! | line, ping-pong | `lat` | half of the time in which a cache line goes to the other processor and back |
//! | lines, stream | `rate` | cache lines with eight bytes each, through a ring of 512 of them |
//! | memcpy | `lat`, `bw` | a copy by one processor, of memory that is its own; the faster of libc's and Weft's |
//!
//! The line's figure is also the measure of the machine: where processors are virtual they move, and with them the figure
//! by factors. So it is taken before and after every run of everybody ([`Watch`]), and each run can be judged by its own.

use std::time::Duration;

use weft_mem::bare::{self, Board};

use super::job::{Job, LinkKind, Measurement, Operation, Test};
use super::net::{Column, ColumnKind, Contender, RUN_MAX};
use super::node::{self, Kind, Meeting, Task};
use super::place::Place;
use crate::process::Fault;
use crate::process::pair::Role;

/// Round trips of a line that are timed together, and how often they are. The median of those does not notice that the
/// processor was taken away for a while.
const LINE_ROUNDS: u64 = 500;
const LINE_BATCHES: usize = 40;
/// Lines before and after a run that differ by more say that the processors moved meanwhile.
const MOVED_FACTOR: f64 = 1.5;
const PAUSE: Duration = Duration::from_millis(1);

/// The column of the cache line. Its figures come from the [`Watch`].
pub(crate) const LINE: Column = Column { kind: ColumnKind::Limit, program: "bare", over: "line", how: "ping-pong" };
const LINES: Column = Column { kind: ColumnKind::Limit, program: "bare", over: "lines", how: "stream" };
const COPY: Column = Column { kind: ColumnKind::Limit, program: "bare", over: "memcpy", how: "one core" };

/// Limits that run as everybody else does.
pub(crate) fn limits(test: Test) -> Vec<Box<dyn Contender>> {
    match test {
        Test::Latency | Test::Bandwidth => vec![Box::new(Limit { column: COPY, kind: Kind::Copy })],
        Test::Rate => vec![Box::new(Limit { column: LINES, kind: Kind::LineStream })],
    }
}

struct Limit {
    column: Column,
    kind: Kind,
}

impl Contender for Limit {
    fn column(&self) -> Column {
        self.column
    }

    fn lacks(&self, _job: &Job) -> Option<String> {
        None
    }

    fn run(&self, job: &Job, place: &Place) -> Result<Measurement, Fault> {
        node::measure(self.kind, job, place, RUN_MAX)
    }
}

/// Takes the figure of the cache line between runs.
#[derive(Default)]
pub(crate) struct Watch {
    last_us: Option<f64>,
    runs: usize,
    moved: usize,
    least_us: Option<f64>,
    most_us: Option<f64>,
}

impl Watch {
    /// The line before a run: the one after the last run, if nothing ran since.
    pub(crate) fn before(&mut self, place: &Place) -> Result<f64, Fault> {
        match self.last_us {
            Some(last_us) => Ok(last_us),
            None => self.take(place),
        }
    }

    /// The line after a run; with the one before it.
    pub(crate) fn after(&mut self, before_us: f64, place: &Place) -> Result<[f64; 2], Fault> {
        let after_us = self.take(place)?;
        self.runs += 1;
        self.moved += usize::from(before_us.max(after_us) > MOVED_FACTOR * before_us.min(after_us));
        Ok([before_us, after_us])
    }

    /// Something else has run.
    pub(crate) fn forget(&mut self) {
        self.last_us = None;
    }

    fn take(&mut self, place: &Place) -> Result<f64, Fault> {
        let job = Job {
            test: Test::Latency,
            operation: Operation::Send,
            link: LinkKind::Shm,
            bytes: 8,
            iterations: LINE_ROUNDS * LINE_BATCHES as u64,
            warm_up: 0,
            span_us: 0,
        };
        let figure = node::measure(Kind::Line, &job, place, RUN_MAX)?.figure;
        self.last_us = Some(figure);
        self.least_us = Some(self.least_us.map_or(figure, |least| least.min(figure)));
        self.most_us = Some(self.most_us.map_or(figure, |most| most.max(figure)));
        Ok(figure)
    }

    /// What was seen, for a note.
    pub(crate) fn note(&self) -> Option<String> {
        let (least, most) = (self.least_us?, self.most_us?);
        let Watch { runs, moved, .. } = self;
        let moved = match moved {
            0 => String::new(),
            _ => {
                format!("; it changed by more than {MOVED_FACTOR} times during {moved} of {runs} runs: processors move")
            }
        };
        Some(format!("cache line before and after runs: {least:.3} to {most:.3} µs{moved}"))
    }
}

type Outcome = Result<Option<Measurement>, String>;

/// The server makes the board, the client opens it.
fn board(role: Role, meeting: &mut Meeting<'_>) -> Result<Board, String> {
    let told = |error: std::io::Error| format!("shared memory: {error}");
    match role {
        Role::Server => {
            let board = Board::new().map_err(told)?;
            meeting.exchange(&board.path())?;
            Ok(board)
        }
        Role::Client => {
            let path = meeting.exchange("-")?;
            Board::open(&path).map_err(|error| format!("{path}: {error}"))
        }
    }
}

/// Gives the line back.
pub(crate) fn line_server(_task: &Task, meeting: &mut Meeting<'_>) -> Outcome {
    board(Role::Server, meeting)?.ping_pong_server(|| meeting.over());
    Ok(None)
}

/// Passes the line, and measures.
pub(crate) fn line_client(task: &Task, meeting: &mut Meeting<'_>) -> Outcome {
    let board = board(Role::Client, meeting)?;
    let mut times = board.ping_pong_client(LINE_BATCHES, LINE_ROUNDS, || meeting.over());
    times.sort_unstable();
    let median = times.get(times.len() / 2).ok_or("the other process is gone")?;
    let round_us = median.as_secs_f64() * 1e6 / LINE_ROUNDS as f64;
    let elapsed_us = round_us * task.job.iterations as f64;
    Ok(Some(Measurement { figure: round_us / 2.0, iterations: task.job.iterations, elapsed_us, spread: None }))
}

/// Receives lines.
pub(crate) fn stream_server(_task: &Task, meeting: &mut Meeting<'_>) -> Outcome {
    board(Role::Server, meeting)?.stream_receiver(|| meeting.over());
    Ok(None)
}

/// Sends lines, and measures.
pub(crate) fn stream_client(task: &Task, meeting: &mut Meeting<'_>) -> Outcome {
    let board = board(Role::Client, meeting)?;
    let elapsed = board.stream_sender(task.job.iterations, || meeting.over()).ok_or("the other process is gone")?;
    Ok(Some(Measurement::of(&task.job, elapsed.as_secs_f64() * 1e6, 1)))
}

/// Keeps out of the way.
pub(crate) fn copy_server(_task: &Task, meeting: &mut Meeting<'_>) -> Outcome {
    while !meeting.over() {
        std::thread::sleep(PAUSE);
    }
    Ok(None)
}

/// Copies, and measures.
pub(crate) fn copy_client(task: &Task, _meeting: &mut Meeting<'_>) -> Outcome {
    let Job { bytes, iterations, .. } = task.job;
    let times = bare::copy_times(bytes, iterations).ok_or_else(|| format!("no memory for copies of {bytes} bytes"))?;
    let better_us = times.ours.min(times.memcpy).as_secs_f64() * 1e6;
    let found = Measurement::of(&task.job, better_us, 1);
    // The next run is planned by what both took.
    Ok(Some(Measurement { elapsed_us: (times.ours + times.memcpy).as_secs_f64() * 1e6, ..found }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_that_move_are_told_of() {
        assert_eq!(Watch::default().note(), None);
        let watch = Watch { last_us: None, runs: 9, moved: 0, least_us: Some(0.055), most_us: Some(0.06) };
        assert_eq!(watch.note().unwrap(), "cache line before and after runs: 0.055 to 0.060 µs");
        let told = Watch { moved: 2, ..watch }.note().unwrap();
        assert!(told.ends_with("it changed by more than 1.5 times during 2 of 9 runs: processors move"), "{told}");
    }
}
