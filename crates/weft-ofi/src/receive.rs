//! Receives that are not plain: multi-receive buffers; looking at, claiming and discarding messages that wait.

use std::sync::atomic::Ordering;

use weft::raw::Receive;

use crate::abi::*;
use crate::ep::{Endpoint, Live};
use crate::guard::Result;
use crate::operation::{self, Local, ReceiveCall};

/// Posts a receive with flags that a plain one does not have.
#[cold]
pub(crate) fn special(endpoint: &Endpoint, live: &Live, receive: Receive, call: &ReceiveCall) -> Result<usize> {
    if call.flags & FI_MULTI_RECV != 0 {
        return multi(endpoint, live, receive, call);
    }
    Err(-FI_ENOSYS)
}

/// A buffer for many messages. The NIC's context for it names what the completions tell.
fn multi(endpoint: &Endpoint, live: &Live, mut receive: Receive, call: &ReceiveCall) -> Result<usize> {
    let pointer = match call.local {
        Local::One { pointer, .. } => pointer,
        // SAFETY: there is one piece.
        Local::Many { pieces, count: 1, .. } if !pieces.is_null() => unsafe { (*pieces).iov_base },
        Local::Many { .. } => return Err(-FI_EINVAL),
    };
    let least = endpoint.shared().multi_receive_least.load(Ordering::Relaxed);
    receive.multi = Some(least as u64);
    let Some(queue) = &live.receive_queue else {
        let buffer = call.local.buffer(true)?;
        return operation::posted(live, weft::raw::post_receive(&live.endpoint, &receive, buffer));
    };
    let buffer = call.local.buffer(true)?;
    receive.context = queue.add_multi_receive(call.context as u64, pointer as u64);
    let result = operation::posted(live, weft::raw::post_receive(&live.endpoint, &receive, buffer));
    if result.is_err() {
        queue.remove_multi_receive(receive.context);
    }
    result
}
