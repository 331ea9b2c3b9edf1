//! A child's line to its parent: its standard input and output.

use std::io::{BufRead, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// The parent, as its child sees it. A child whose input is closed and that does not end within its grace ends itself,
/// so that none outlives a parent that was killed.
pub(crate) struct Parent<'a> {
    out: &'a mut dyn Write,
    lines: Receiver<String>,
    gone: Arc<AtomicBool>,
}

impl<'a> Parent<'a> {
    /// To be made once: it reads all of standard input.
    pub(crate) fn new(out: &'a mut dyn Write, grace: Duration) -> Parent<'a> {
        let (sender, lines) = channel();
        let gone = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&gone);
        std::thread::spawn(move || {
            for line in std::io::stdin().lock().lines().map_while(Result::ok) {
                // The work may be done without what comes late.
                let _ = sender.send(line);
            }
            seen.store(true, Ordering::Relaxed);
            drop(sender);
            std::thread::sleep(grace);
            std::process::exit(3);
        });
        Parent { out, lines, gone }
    }

    /// Says a line.
    pub(crate) fn tell(&mut self, line: &str) -> Result<(), String> {
        writeln!(self.out, "{line}").and_then(|()| self.out.flush()).map_err(|error| error.to_string())
    }

    /// Waits for a line.
    pub(crate) fn hear(&mut self) -> Result<String, String> {
        self.lines.recv().map_err(|_| "the process that started this one is gone".to_string())
    }

    /// Whether it has closed the line. One relaxed load.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }
}
