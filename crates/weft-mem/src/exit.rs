//! A hook for the end of a process by `exit`, or by a return from `main`.

use std::panic::catch_unwind;
use std::sync::OnceLock;

static HOOK: OnceLock<fn()> = OnceLock::new();

/// Has `hook` called when the process ends, or before this library is unloaded; only the first one that is given. Other
/// threads may run meanwhile, and whoever ended the process may hold any lock.
pub fn at_exit(hook: fn()) {
    if HOOK.set(hook).is_ok() {
        // SAFETY: the handler is a function of this library, which calls it before it is unloaded. If there is no memory for
        // it, the hook is not called.
        unsafe { libc::atexit(run) };
    }
}

extern "C" fn run() {
    if let Some(hook) = HOOK.get() {
        // The process ends whatever happens, and nobody is left to be told.
        let _ = catch_unwind(hook);
    }
}
