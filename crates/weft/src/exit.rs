//! What a process still does for its peers when it ends without closing its domains.
//!
//! A send that was copied has ended for its program, and a message that was received may not be acknowledged yet. A system's
//! own sockets see to such things after their process has gone; here nobody is left who could.

use std::sync::{Arc, Mutex, PoisonError, TryLockError, Weak};

use crate::driver::Nic;

static NICS: Mutex<Vec<Weak<Nic>>> = Mutex::new(Vec::new());

/// This one is seen to if it still lives then.
pub(crate) fn see_to(nic: &Arc<Nic>) {
    weft_mem::exit::at_exit(settle_all);
    let mut nics = NICS.lock().unwrap_or_else(PoisonError::into_inner);
    nics.retain(|nic| nic.strong_count() > 0);
    nics.push(Arc::downgrade(nic));
}

fn settle_all() {
    let nics = match NICS.try_lock() {
        Ok(nics) => nics,
        Err(TryLockError::Poisoned(nics)) => nics.into_inner(),
        // Who ends the process here is opening a domain.
        Err(TryLockError::WouldBlock) => return,
    };
    for nic in nics.iter().filter_map(Weak::upgrade).filter(|nic| !nic.is_inherited()) {
        nic.settle();
    }
}
