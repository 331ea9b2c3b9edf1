//! What is measured: the test, the operation, the size, and the figure that comes out.
//!
//! Jobs travel between processes as words of a command line, measurements as JSON.

use std::time::Duration;

use clap::{Args, ValueEnum};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Longer times count as this one; a run takes less.
const LONGEST_NS: u64 = 60_000_000_000;

/// What a benchmark looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Test {
    /// Microseconds, one message under way.
    #[value(name = "lat")]
    Latency,
    /// Million bytes a second, many messages under way.
    #[value(name = "bw")]
    Bandwidth,
    /// Million messages a second, many under way.
    Rate,
}

impl Test {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Test::Latency => "lat",
            Test::Bandwidth => "bw",
            Test::Rate => "rate",
        }
    }

    pub(crate) fn unit(self) -> &'static str {
        match self {
            Test::Latency => "us",
            Test::Bandwidth => "MB/s",
            Test::Rate => "M/s",
        }
    }

    /// The figure of this test when a message takes `message_us`.
    pub(crate) fn figure(self, bytes: usize, message_us: f64) -> f64 {
        match self {
            Test::Latency => message_us,
            Test::Bandwidth => bytes as f64 / message_us,
            Test::Rate => 1.0 / message_us,
        }
    }

    /// The better of two figures.
    pub(crate) fn better(self, one: f64, other: f64) -> f64 {
        if self == Test::Latency { one.min(other) } else { one.max(other) }
    }
}

/// What a message does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Operation {
    Send,
    Tagged,
    Write,
    Read,
    Atomic,
}

impl Operation {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Operation::Send => "send",
            Operation::Tagged => "tagged",
            Operation::Write => "write",
            Operation::Read => "read",
            Operation::Atomic => "atomic",
        }
    }

    /// Whether one operation is a whole round trip, so that its latency is not half of one. perftest, OSU's benchmarks
    /// and ucx_perftest count alike.
    pub(crate) fn answers(self) -> bool {
        matches!(self, Operation::Read | Operation::Atomic)
    }
}

/// The road that messages take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LinkKind {
    /// Packets.
    Udp,
    /// Shared memory of two processes.
    Shm,
}

impl LinkKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            LinkKind::Udp => "udp",
            LinkKind::Shm => "shm",
        }
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            LinkKind::Udp => "network",
            LinkKind::Shm => "shared memory",
        }
    }
}

/// One run of one contender.
#[derive(Args, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    pub(crate) test: Test,
    pub(crate) operation: Operation,
    pub(crate) link: LinkKind,
    /// Length of a message.
    pub(crate) bytes: usize,
    /// Messages that are counted; in a ping-pong, those of one direction.
    pub(crate) iterations: u64,
    /// Messages before those.
    pub(crate) warm_up: u64,
    /// How long the run is meant to take, for those that go by the clock and not by a count.
    pub(crate) span_us: u64,
}

impl Job {
    /// The job as words of a command line, which `clap` reads.
    pub(crate) fn words(&self) -> Vec<String> {
        let Job { test, operation, link, bytes, iterations, warm_up, span_us } = self;
        let names = [test.name(), operation.name(), link.name()].map(str::to_string);
        let numbers = [*bytes as u64, *iterations, *warm_up, *span_us].map(|number| number.to_string());
        names.into_iter().chain(numbers).collect()
    }
}

/// What a run found.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
pub(crate) struct Measurement {
    /// In the unit of the test.
    pub(crate) figure: f64,
    /// How often it was done.
    pub(crate) iterations: u64,
    /// How long all of it took; from it comes the number of iterations of the next run.
    pub(crate) elapsed_us: f64,
    /// Where each message was timed.
    pub(crate) spread: Option<Spread>,
}

/// How the messages of one run differ, in microseconds, in perftest's terms.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
pub(crate) struct Spread {
    pub(crate) minimum: f64,
    /// The median.
    pub(crate) typical: f64,
    pub(crate) percentile_99: f64,
    pub(crate) percentile_99_9: f64,
}

/// Times of single messages in nanoseconds, exact to three digits.
pub(crate) struct Times(Histogram<u32>);

impl Times {
    pub(crate) fn new() -> Result<Times, String> {
        let histogram = Histogram::new_with_max(LONGEST_NS, 3);
        histogram.map(Times).map_err(|error| format!("the times of messages cannot be kept: {error}"))
    }

    pub(crate) fn record(&mut self, time: Duration) {
        self.0.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// `None` when there are none. `divisor` 2 makes halves of round trips.
    pub(crate) fn spread(&self, divisor: f64) -> Option<Spread> {
        let us = |ns: u64| ns as f64 / 1000.0 / divisor;
        let at = |quantile| us(self.0.value_at_quantile(quantile));
        (!self.0.is_empty()).then(|| Spread {
            minimum: us(self.0.min()),
            typical: at(0.5),
            percentile_99: at(0.99),
            percentile_99_9: at(0.999),
        })
    }
}

impl Measurement {
    /// The measurement of a job whose messages took `elapsed_us` in all.
    pub(crate) fn of(job: &Job, elapsed_us: f64, messages_per_iteration: u64) -> Measurement {
        let messages = (job.iterations * messages_per_iteration) as f64;
        let figure = job.test.figure(job.bytes, elapsed_us / messages);
        Measurement { figure, iterations: job.iterations, elapsed_us, spread: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::parse;

    #[test]
    fn jobs_and_measurements_survive_being_words() {
        for (&test, link) in Test::value_variants().iter().zip([LinkKind::Udp, LinkKind::Shm, LinkKind::Udp]) {
            for &operation in Operation::value_variants() {
                let job = Job { test, operation, link, bytes: 8, iterations: 70_000, warm_up: 7, span_us: 9 };
                let words = job.words();
                assert_eq!(parse(&words.join(" ")), Ok(job));
                assert!(parse::<Job>(&words[1..].join(" ")).is_err());
            }
        }
        let plain = Measurement { figure: 4.25, iterations: 1000, elapsed_us: 8500.5, spread: None };
        let spread = Spread { minimum: 3.5, typical: 4.0, percentile_99: 9.0, percentile_99_9: 21.25 };
        for measurement in [plain, Measurement { spread: Some(spread), ..plain }] {
            let line = serde_json::to_string(&measurement).unwrap();
            assert_eq!(serde_json::from_str::<Measurement>(&line).unwrap(), measurement);
        }
        let line = serde_json::to_string(&Measurement { figure: f64::NAN, ..plain }).unwrap();
        assert!(serde_json::from_str::<Measurement>(&line).is_err(), "{line}");
    }

    #[test]
    fn figures_have_the_units_they_say() {
        let job = Job {
            test: Test::Latency,
            operation: Operation::Send,
            link: LinkKind::Udp,
            bytes: 1000,
            iterations: 10,
            warm_up: 0,
            span_us: 0,
        };
        let figure = |test, each| Measurement::of(&Job { test, ..job }, 100.0, each).figure;
        assert_eq!(figure(Test::Latency, 2), 5.0);
        assert_eq!(figure(Test::Bandwidth, 1), 100.0);
        assert_eq!(figure(Test::Rate, 1), 0.1);
    }

    #[test]
    fn times_are_exact_to_three_digits() {
        let mut times = Times::new().unwrap();
        assert_eq!(times.spread(1.0), None);
        (0..=1000).rev().for_each(|time| times.record(Duration::from_micros(time)));
        let Spread { minimum, typical, percentile_99, percentile_99_9 } = times.spread(2.0).unwrap();
        assert_eq!(minimum, 0.0);
        for (found, wanted) in [(typical, 250.0), (percentile_99, 495.0), (percentile_99_9, 499.5)] {
            assert!((found / wanted - 1.0).abs() < 0.001, "{found} instead of {wanted}");
        }
        // What is below a microsecond is exact, what is longer than anything that is waited for counts as that.
        let mut times = Times::new().unwrap();
        times.record(Duration::from_nanos(55));
        assert_eq!(times.spread(1.0).unwrap().typical, 0.055);
        times.record(Duration::MAX);
        assert!(times.spread(1.0).unwrap().percentile_99 >= 60e6);
    }
}
