//! Processes that a test starts: this test binary once more, in a role of its own.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Says which role a process has; without it the test of that name has nothing to play.
const ROLE: &str = "WEFT_NODE_ROLE";
const ARGUMENTS: &str = "WEFT_NODE_ARGUMENTS";

/// A process that ends with its parent, however that ends.
pub(crate) struct Process {
    child: Child,
}

impl Process {
    /// Starts this binary again as `role`.
    pub(crate) fn start(role: &str, arguments: &[String], change: impl FnOnce(&mut Command)) -> Process {
        Process::start_at(&std::env::current_exe().unwrap(), role, arguments, change)
    }

    /// Starts a copy of this binary.
    pub(crate) fn start_at(
        program: &Path,
        role: &str,
        arguments: &[String],
        change: impl FnOnce(&mut Command),
    ) -> Process {
        let mut command = Command::new(program);
        command
            .args(["--exact", "role", "--nocapture", "--test-threads=1", "-q"])
            .env(ROLE, role)
            .env(ARGUMENTS, arguments.join(" "))
            .stdin(Stdio::piped())
            .stdout(Stdio::null());
        change(&mut command);
        Process { child: command.spawn().unwrap() }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self) -> ExitStatus {
        self.child.kill().unwrap();
        self.child.wait().unwrap()
    }

    pub(crate) fn stop(&self) {
        crate::common::stop(self.pid());
    }

    /// Any other signal.
    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill").args(["-s", name, &self.pid().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// Lets it end by itself: its input ends.
    pub(crate) fn finish(&mut self) -> ExitStatus {
        drop(self.child.stdin.take());
        self.child.wait().unwrap()
    }

    /// Tells it that it has done enough.
    pub(crate) fn enough(&mut self) {
        // It may have ended already, which shows elsewhere.
        let _ = self.child.stdin.as_mut().map(|input| input.write_all(b"."));
    }

    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The role of this process, if a test started it, and its arguments.
pub(crate) fn role() -> Option<(String, Vec<String>)> {
    let role = std::env::var(ROLE).ok()?;
    let arguments = std::env::var(ARGUMENTS).unwrap_or_default();
    Some((role, arguments.split_whitespace().map(str::to_owned).collect()))
}

/// Whether the parent has ended, or wants this process to end.
pub(crate) fn watch_parent() -> Arc<AtomicBool> {
    hear_parent().1
}

/// Whether the parent has told this process that it has done [enough](Process::enough), and as [`watch_parent`].
pub(crate) fn hear_parent() -> (Arc<AtomicBool>, Arc<AtomicBool>) {
    let (enough, over) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let heard = (enough.clone(), over.clone());
    std::thread::spawn(move || {
        while std::io::stdin().read(&mut [0]).is_ok_and(|length| length > 0) {
            heard.0.store(true, Ordering::SeqCst);
        }
        heard.1.store(true, Ordering::SeqCst);
    });
    (enough, over)
}
