//! The second process: this program again, which plays the other half of every act.
//!
//! Over its standard input it hears `act NUMBER`, and answers `done CHECKS BYTES` or `failed TEXT`; in between are the
//! lines of the act itself. When its input is closed it ends at once, so that it never outlives its parent.

use std::io::Write;
use std::process::Command;
use std::time::Duration;

use super::stage::{Line, Outcome, Stage};
use super::{ACTS, restart};
use crate::Failure;
use crate::process::killed_with_us;
use crate::process::pair::{Event, Pair, Role};
use crate::process::parent::Parent;

/// The hidden command that it is.
pub(crate) const COMMAND: &str = "demo-partner";

/// How long it may live: far longer than the demo takes on the busiest machine.
const LIFE_MAX: Duration = Duration::from_secs(900);

/// The second process, as the first has it in hand. It is killed when this is dropped.
pub(super) struct Partner {
    pair: Pair,
}

/// Starts it, on this address.
pub(super) fn start(bind: &str) -> Result<Partner, Failure> {
    let program = std::env::current_exe()?;
    let mut words = killed_with_us().iter();
    let mut command = match words.next() {
        Some(first) => {
            let mut command = Command::new(first);
            command.args(words).arg(program);
            command
        }
        None => Command::new(program),
    };
    command.args([COMMAND, bind]);
    let mut pair = Pair::new("the second process", LIFE_MAX);
    pair.start(Role::Server, command).map_err(|fault| Failure::Told(fault.to_string()))?;
    Ok(Partner { pair })
}

impl Line for Partner {
    fn tell(&mut self, words: &str) -> Outcome<()> {
        self.pair.tell(Role::Server, words);
        Ok(())
    }

    fn hear(&mut self) -> Outcome<String> {
        match self.pair.next().map_err(|fault| fault.to_string())? {
            Event::Line(_, line) => match line.strip_prefix("failed ") {
                Some(text) => Err(text.to_string()),
                None => Ok(line),
            },
            Event::Ended(_) => Err("the second process ended".to_string()),
        }
    }

    fn complaint(&mut self) -> Option<String> {
        self.pair.find_line(|line| line.strip_prefix("failed ").map(str::to_string))
    }

    fn look(&mut self) -> Outcome<()> {
        match self.complaint() {
            Some(text) => Err(text),
            None => self.pair.still_runs(Role::Server).map_err(|fault| fault.to_string()),
        }
    }

    fn process(&mut self) -> u32 {
        self.pair.id(Role::Server).unwrap_or_default()
    }
}

impl Line for Parent<'_> {
    fn tell(&mut self, words: &str) -> Outcome<()> {
        Parent::tell(self, words)
    }

    fn hear(&mut self) -> Outcome<String> {
        Parent::hear(self)
    }

    fn complaint(&mut self) -> Option<String> {
        None
    }

    fn look(&mut self) -> Outcome<()> {
        // When the first process is gone, this one ends wherever it is.
        Ok(())
    }

    fn process(&mut self) -> u32 {
        std::os::unix::process::parent_id()
    }
}

/// The life of the second process.
pub(crate) fn partner(bind: &str, out: &mut dyn Write) -> Result<(), Failure> {
    play(bind, out).map_err(Failure::Told)
}

fn play(bind: &str, out: &mut dyn Write) -> Outcome<()> {
    let parent = Parent::new(out, Duration::ZERO);
    let stage = &mut Stage::open(bind, Box::new(parent))?;
    loop {
        let cue = stage.hear()?;
        let number: Option<usize> = cue.strip_prefix("act ").and_then(|number| number.parse().ok());
        let unknown = || format!("`{cue}` is no act");
        let number = number.ok_or_else(unknown)?;
        let outcome = match ACTS.get(number) {
            Some(act) => (act.there)(stage),
            None if number == restart::ACT => restart::there(stage),
            None => return Err(unknown()),
        };
        let (checks, bytes) = stage.take_checked();
        match outcome {
            Ok(()) => stage.tell(&format!("done {checks} {bytes}"))?,
            Err(text) => stage.tell(&format!("failed {}", text.replace('\n', " ")))?,
        }
    }
}
