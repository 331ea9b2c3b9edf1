//! Two processes that work together, in hand from their start to their end.
//!
//! Nothing here polls while they measure: threads wait for their output, and the parent waits for those threads. Whatever
//! way a run ends, dropping the [`Pair`] kills and reaps both; and should this process be killed itself, the kernel
//! kills them (`setpriv --pdeathsig`).

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use clap::ValueEnum;

use super::Fault;

/// More than this of a process's output is not read.
const OUTPUT_MAX_BYTES: u64 = 1 << 20;
/// So much of a complaint is passed on.
const COMPLAINT_MAX_CHARACTERS: usize = 300;
/// How long a process that has closed its output may take to end.
const END_MAX: Duration = Duration::from_secs(30);
const END_POLL: Duration = Duration::from_millis(1);

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Role {
    Server,
    Client,
}

impl Role {
    pub(crate) const BOTH: [Role; 2] = [Role::Server, Role::Client];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Role::Server => "server",
            Role::Client => "client",
        }
    }

    pub(crate) fn other(self) -> Role {
        match self {
            Role::Server => Role::Client,
            Role::Client => Role::Server,
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        text.write_str(self.name())
    }
}

/// What one of them did.
#[derive(Debug)]
pub(crate) enum Event {
    /// It printed a line.
    Line(Role, String),
    /// It ended, and well.
    Ended(Role),
}

/// Up to two processes, with one deadline.
pub(crate) struct Pair {
    title: String,
    limit: Duration,
    deadline: Instant,
    server: Option<Process>,
    client: Option<Process>,
    news: Sender<News>,
    events: Receiver<News>,
    /// Taken from `events` and not yet told.
    kept: VecDeque<News>,
}

enum News {
    Line(Role, String),
    OutputClosed(Role),
}

struct Process {
    child: Child,
    /// Taken when joined.
    complaints: Option<JoinHandle<String>>,
}

impl Pair {
    /// No process yet; `title` names the two in messages.
    pub(crate) fn new(title: &str, limit: Duration) -> Pair {
        let (news, events) = channel();
        let deadline = Instant::now() + limit;
        Pair {
            title: title.to_string(),
            limit,
            deadline,
            server: None,
            client: None,
            news,
            events,
            kept: VecDeque::new(),
        }
    }

    /// Starts `command` in a role. Its standard input is a pipe, so that it learns when this process is gone.
    pub(crate) fn start(&mut self, role: Role, mut command: Command) -> Result<(), Fault> {
        let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let child = started.map_err(|error| Fault::Start {
            program: command.get_program().to_string_lossy().into_owned(),
            why: error.to_string(),
        })?;
        let mut process = Process { child, complaints: None };
        if let Some(output) = process.child.stdout.take() {
            let news = self.news.clone();
            std::thread::spawn(move || {
                let lines = BufReader::new(output.take(OUTPUT_MAX_BYTES)).lines();
                for line in lines.map_while(Result::ok) {
                    // Where nobody listens any more, the process is about to be killed.
                    let _ = news.send(News::Line(role, line));
                }
                let _ = news.send(News::OutputClosed(role));
            });
        }
        if let Some(errors) = process.child.stderr.take() {
            process.complaints = Some(std::thread::spawn(move || {
                let mut text = Vec::new();
                let _ = errors.take(OUTPUT_MAX_BYTES).read_to_end(&mut text);
                String::from_utf8_lossy(&text).into_owned()
            }));
        }
        *self.slot(role) = Some(process);
        Ok(())
    }

    fn slot(&mut self, role: Role) -> &mut Option<Process> {
        match role {
            Role::Server => &mut self.server,
            Role::Client => &mut self.client,
        }
    }

    /// The process that runs in `role`.
    pub(crate) fn id(&mut self, role: Role) -> Option<u32> {
        self.slot(role).as_ref().map(|process| process.child.id())
    }

    /// Writes a line to a process. That it has ended shows itself in [`Pair::next`], so a broken pipe is no fault here.
    pub(crate) fn tell(&mut self, role: Role, line: &str) {
        let input = self.slot(role).as_mut().and_then(|process| process.child.stdin.as_mut());
        if let Some(input) = input {
            let _ = writeln!(input, "{line}").and_then(|()| input.flush());
        }
    }

    /// Closes a process's standard input.
    pub(crate) fn close(&mut self, role: Role) {
        if let Some(process) = self.slot(role) {
            process.child.stdin = None;
        }
    }

    /// Waits for what happens next. A process that ends in failure, or the deadline, is a fault.
    pub(crate) fn next(&mut self) -> Result<Event, Fault> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        let news = self.kept.pop_front().map_or_else(|| self.events.recv_timeout(left), Ok);
        match news {
            Ok(News::Line(role, line)) => Ok(Event::Line(role, line)),
            Ok(News::OutputClosed(role)) => self.ended(role).map(|()| Event::Ended(role)),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                Err(Fault::Slow { who: self.title.clone(), seconds: self.limit.as_secs() })
            }
        }
    }

    /// What `wanted` makes of the first line that came already and that it wants. All stay for [`Pair::next`].
    pub(crate) fn find_line<T>(&mut self, wanted: impl Fn(&str) -> Option<T>) -> Option<T> {
        self.kept.extend(self.events.try_iter());
        self.kept.iter().find_map(|news| match news {
            News::Line(_, line) => wanted(line),
            News::OutputClosed(_) => None,
        })
    }

    /// Whether a process runs, without waiting; one that ended is a fault, for this is asked while it has work to do.
    pub(crate) fn still_runs(&mut self, role: Role) -> Result<(), Fault> {
        let who = format!("{}, {role}", self.title);
        let Some(process) = self.slot(role) else { return Ok(()) };
        match process.child.try_wait() {
            Ok(None) => Ok(()),
            _ => Err(process.fault(who)),
        }
    }

    /// How long both may still take.
    pub(crate) fn deadline(&self) -> Instant {
        self.deadline
    }

    fn ended(&mut self, role: Role) -> Result<(), Fault> {
        let who = format!("{}, {role}", self.title);
        let latest = self.deadline.min(Instant::now() + END_MAX);
        let Some(process) = self.slot(role) else { return Ok(()) };
        loop {
            match process.child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(_)) => return Err(process.fault(who)),
                Ok(None) if Instant::now() < latest => std::thread::sleep(END_POLL),
                Ok(None) => return Err(Fault::Slow { who, seconds: END_MAX.as_secs() }),
                Err(error) => return Err(Fault::Ended { who, why: error.to_string() }),
            }
        }
    }
}

impl Process {
    fn end(&mut self) -> io::Result<std::process::ExitStatus> {
        // It may have ended; then there is nothing to kill.
        let _ = self.child.kill();
        self.child.wait()
    }

    /// Ends the process, and tells how it went and what it complained of.
    fn fault(&mut self, who: String) -> Fault {
        let status = self.end().map_or_else(|error| error.to_string(), |status| status.to_string());
        let complaints = self.complaints.take().and_then(|thread| thread.join().ok()).unwrap_or_default();
        let told: Vec<&str> = complaints.lines().map(tidy).filter(|line| !line.is_empty()).collect();
        let told: String = told.join("; ").chars().take(COMPLAINT_MAX_CHARACTERS).collect();
        let why = if told.is_empty() { status } else { format!("{told} ({status})") };
        Fault::Ended { who, why }
    }
}

/// A complaint without the name that our own children put before it: the role is named already.
fn tidy(line: &str) -> &str {
    let line = line.trim();
    line.strip_prefix("weft: ").unwrap_or(line)
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Far beyond what any of these processes needs.
    const HANG_GUARD: Duration = Duration::from_secs(300);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn alive(id: u32) -> bool {
        std::path::Path::new(&format!("/proc/{id}")).exists()
    }

    #[test]
    fn lines_and_ends_are_told_in_order() {
        let mut pair = Pair::new("two", HANG_GUARD);
        pair.start(Role::Client, shell("read word; echo got $word")).unwrap();
        pair.tell(Role::Client, "it");
        assert!(matches!(pair.next().unwrap(), Event::Line(Role::Client, line) if line == "got it"));
        assert!(matches!(pair.next().unwrap(), Event::Ended(Role::Client)));
    }

    #[test]
    fn a_process_that_dies_ends_the_run_and_takes_the_other_with_it() {
        let mut pair = Pair::new("two", HANG_GUARD);
        pair.start(Role::Server, shell("exec sleep 100000")).unwrap();
        let server = pair.id(Role::Server).unwrap();
        pair.start(Role::Client, shell("echo no such thing >&2; exit 3")).unwrap();
        let fault = pair.next().unwrap_err().to_string();
        assert_eq!(fault, "two, client: no such thing (exit status: 3)");
        assert!(alive(server));
        drop(pair);
        assert!(!alive(server));
    }

    #[test]
    fn a_process_that_hangs_is_stopped() {
        let mut pair = Pair::new("two", Duration::from_millis(50));
        pair.start(Role::Server, shell("exec sleep 100000")).unwrap();
        let server = pair.id(Role::Server).unwrap();
        assert!(matches!(pair.next(), Err(Fault::Slow { .. })));
        drop(pair);
        assert!(!alive(server));
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let mut pair = Pair::new("two", Duration::from_secs(1));
        let fault = pair.start(Role::Server, Command::new("/nonexistent/program")).unwrap_err();
        assert!(fault.to_string().starts_with("/nonexistent/program cannot be started: No such file"));
    }
}
