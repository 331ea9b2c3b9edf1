//! What is measured: the test, the operation, the size, and the figure that comes out.
//!
//! Both travel between processes as words, so both can be written and read here.

/// What a benchmark looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Test {
    /// Microseconds, one message under way.
    Latency,
    /// Million bytes a second, many messages under way.
    Bandwidth,
    /// Million messages a second, many under way.
    Rate,
}

impl Test {
    const ALL: [Test; 3] = [Test::Latency, Test::Bandwidth, Test::Rate];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Test::Latency => "lat",
            Test::Bandwidth => "bw",
            Test::Rate => "rate",
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Test> {
        Test::ALL.into_iter().find(|test| test.name() == name)
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Send,
    Tagged,
    Write,
    Read,
    Atomic,
}

impl Operation {
    const ALL: [Operation; 5] =
        [Operation::Send, Operation::Tagged, Operation::Write, Operation::Read, Operation::Atomic];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Operation::Send => "send",
            Operation::Tagged => "tagged",
            Operation::Write => "write",
            Operation::Read => "read",
            Operation::Atomic => "atomic",
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Operation> {
        Operation::ALL.into_iter().find(|operation| operation.name() == name)
    }

    /// Whether one operation is a whole round trip, so that its latency is not half of one. perftest, OSU's benchmarks
    /// and ucx_perftest count alike.
    pub(crate) fn answers(self) -> bool {
        matches!(self, Operation::Read | Operation::Atomic)
    }
}

/// The road that messages take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkKind {
    /// Packets.
    Udp,
    /// Shared memory of two processes.
    Shm,
}

impl LinkKind {
    const ALL: [LinkKind; 2] = [LinkKind::Udp, LinkKind::Shm];

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

    pub(crate) fn from_name(name: &str) -> Option<LinkKind> {
        LinkKind::ALL.into_iter().find(|link| link.name() == name)
    }
}

/// One run of one contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// The job as words of a command line.
    pub(crate) fn words(&self) -> Vec<String> {
        let Job { test, operation, link, bytes, iterations, warm_up, span_us } = self;
        let names = [test.name(), operation.name(), link.name()].map(str::to_string);
        let numbers = [*bytes as u64, *iterations, *warm_up, *span_us].map(|number| number.to_string());
        names.into_iter().chain(numbers).collect()
    }

    /// What [`Job::words`] wrote.
    pub(crate) fn from_words(words: &[&str]) -> Option<Job> {
        let [test, operation, link, bytes, iterations, warm_up, span_us] = words else { return None };
        Some(Job {
            test: Test::from_name(test)?,
            operation: Operation::from_name(operation)?,
            link: LinkKind::from_name(link)?,
            bytes: bytes.parse().ok()?,
            iterations: iterations.parse().ok()?,
            warm_up: warm_up.parse().ok()?,
            span_us: span_us.parse().ok()?,
        })
    }
}

/// What a run found.
#[derive(Clone, Copy, Debug, PartialEq)]
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
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) minimum: f64,
    /// The median.
    pub(crate) typical: f64,
    pub(crate) percentile_99: f64,
    pub(crate) percentile_99_9: f64,
}

impl Spread {
    /// The spread of `times` (sorts them); `None` when there are none. `divisor` 2 makes halves of round trips.
    pub(crate) fn of(times_ns: &mut [u32], divisor: f64) -> Option<Spread> {
        times_ns.sort_unstable();
        let last = times_ns.len().checked_sub(1)?;
        let at = |fraction: f64| {
            let index = (last as f64 * fraction) as usize;
            times_ns.get(index).map(|time| f64::from(*time) / 1000.0 / divisor)
        };
        Some(Spread { minimum: at(0.0)?, typical: at(0.5)?, percentile_99: at(0.99)?, percentile_99_9: at(0.999)? })
    }
}

impl Measurement {
    /// The measurement of a job whose messages took `elapsed_us` in all.
    pub(crate) fn of(job: &Job, elapsed_us: f64, messages_per_iteration: u64) -> Measurement {
        let messages = (job.iterations * messages_per_iteration) as f64;
        let figure = job.test.figure(job.bytes, elapsed_us / messages);
        Measurement { figure, iterations: job.iterations, elapsed_us, spread: None }
    }

    /// The measurement as words of a line.
    pub(crate) fn words(&self) -> String {
        let Measurement { figure, iterations, elapsed_us, spread } = self;
        let rest = spread.map(|spread| {
            let Spread { minimum, typical, percentile_99, percentile_99_9 } = spread;
            format!(" {minimum} {typical} {percentile_99} {percentile_99_9}")
        });
        format!("{figure} {iterations} {elapsed_us}{}", rest.unwrap_or_default())
    }

    /// What [`Measurement::words`] wrote.
    pub(crate) fn from_words(line: &str) -> Option<Measurement> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (first, rest) = words.split_at_checked(3)?;
        let [figure, iterations, elapsed_us] = first else { return None };
        let number = |word: &str| word.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0);
        let spread = match rest {
            [] => None,
            [minimum, typical, percentile_99, percentile_99_9] => Some(Spread {
                minimum: number(minimum)?,
                typical: number(typical)?,
                percentile_99: number(percentile_99)?,
                percentile_99_9: number(percentile_99_9)?,
            }),
            _ => return None,
        };
        let (figure, elapsed_us) = (number(figure)?, number(elapsed_us)?);
        Some(Measurement { figure, iterations: iterations.parse().ok()?, elapsed_us, spread })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_and_measurements_survive_being_words() {
        for (test, link) in Test::ALL.into_iter().zip([LinkKind::Udp, LinkKind::Shm, LinkKind::Udp]) {
            for operation in Operation::ALL {
                let job = Job { test, operation, link, bytes: 8, iterations: 70_000, warm_up: 7, span_us: 9 };
                let words = job.words();
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                assert_eq!(Job::from_words(&words), Some(job));
                assert_eq!(Job::from_words(&words[1..]), None);
            }
        }
        let plain = Measurement { figure: 4.25, iterations: 1000, elapsed_us: 8500.5, spread: None };
        let spread = Spread { minimum: 3.5, typical: 4.0, percentile_99: 9.0, percentile_99_9: 21.25 };
        for measurement in [plain, Measurement { spread: Some(spread), ..plain }] {
            assert_eq!(Measurement::from_words(&measurement.words()), Some(measurement));
        }
        for wrong in ["", "1 2", "1 2 3 4", "NaN 2 3", "-1 2 3", "1 x 3", "1 2 3 4 5 6 7 8"] {
            assert_eq!(Measurement::from_words(wrong), None, "{wrong}");
        }
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
        let mut times: Vec<u32> = (0..=1000).rev().map(|time| time * 1000).collect();
        let spread = Spread::of(&mut times, 2.0).unwrap();
        assert_eq!((spread.minimum, spread.typical, spread.percentile_99_9), (0.0, 250.0, 499.5));
        assert_eq!(Spread::of(&mut [], 1.0), None);
    }
}
