//! The last work of a process for its peers, when it ends without closing its domains.
//!
//! A send that was copied has ended for its program, and a message that was received may not be acknowledged yet. A system's
//! own sockets see to such things after their process has gone; here nobody is left who could.

use std::sync::{Arc, LazyLock, Weak};

use weft_mem::lock::Lock;

use crate::driver::Nic;

/// With a lock that a child of `fork` finds free, whoever held it in the parent.
static NICS: LazyLock<Lock<Vec<Weak<Nic>>>> = LazyLock::new(|| Lock::new(Vec::new(), None));

/// This one is seen to if it still lives then.
pub(crate) fn see_to(nic: &Arc<Nic>) {
    weft_mem::exit::at_exit(settle_all);
    let mut nics = NICS.lock();
    nics.retain(|nic| nic.strong_count() > 0);
    nics.push(Arc::downgrade(nic));
}

fn settle_all() {
    // Otherwise the process ends while a domain is being opened.
    let Some(nics) = NICS.try_visit() else { return };
    for nic in nics.iter().filter_map(Weak::upgrade).filter(|nic| !nic.is_inherited()) {
        nic.settle();
    }
}
