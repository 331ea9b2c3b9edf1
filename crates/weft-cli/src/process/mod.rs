//! Processes that `weft` starts of itself and of other programs, for its benchmarks and its demo: [`pair`] is how the
//! parent keeps them in hand, [`parent`] how a child of ours speaks with it.

pub(crate) mod pair;
pub(crate) mod parent;

use std::process::Command;

/// Why two processes did not do what they were started for.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    /// A program could not be started.
    #[error("{program} cannot be started: {why}")]
    Start { program: String, why: String },
    /// A process ended before its time or in failure; `why` is its exit status and what it complained of.
    #[error("{who}: {why}")]
    Ended { who: String, why: String },
    /// It took too long and was killed.
    #[error("{who} was not done after {seconds} s and was stopped")]
    Slow { who: String, seconds: u64 },
    /// It ended well, but what it printed is not what is known of it.
    #[error("{who} printed no figure that is understood: {shown}")]
    Unread { who: String, shown: String },
}

/// `program` as it is started, killed by the kernel when this process is gone.
pub(crate) fn command(program: &str) -> Command {
    match killed_with_us() {
        [] => Command::new(program),
        [first, rest @ ..] => {
            let mut command = Command::new(first);
            command.args(rest).arg(program);
            command
        }
    }
}

/// What stands before a program so that the kernel kills it when this process is gone; nothing where `setpriv` is not
/// there. It replaces itself with the program.
pub(crate) fn killed_with_us() -> &'static [&'static str] {
    if on_path("setpriv") { &["setpriv", "--pdeathsig", "KILL"] } else { &[] }
}

/// Whether the PATH has a program of this name.
pub(crate) fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}
