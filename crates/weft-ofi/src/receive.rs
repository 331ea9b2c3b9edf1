//! Receives that are not plain: multi-receive buffers; looking at, claiming and discarding messages that wait.

use std::sync::atomic::Ordering;

use weft::raw::{Peek, Peeked, Receive};

use crate::abi::*;
use crate::cq::Made;
use crate::ep::{Endpoint, Live};
use crate::guard::{self, Result};
use crate::operation::{self, Local, ReceiveCall};

/// Posts a receive with flags that a plain one does not have.
#[cold]
pub(crate) fn special(endpoint: &Endpoint, live: &Live, receive: Receive, call: &ReceiveCall) -> Result<usize> {
    let (peek, claim, discard) = (FI_PEEK, FI_CLAIM, FI_DISCARD);
    match call.flags & (FI_PEEK | FI_CLAIM | FI_DISCARD) {
        0 => {}
        only if only == peek => return look(endpoint, live, &receive, call, Peek::Look),
        both if both == peek | claim => return look(endpoint, live, &receive, call, Peek::Claim),
        both if both == peek | discard => return look(endpoint, live, &receive, call, Peek::Discard),
        only if only == claim => {
            let buffer = call.local.buffer(true)?;
            let claim = endpoint.shared().take_claim(receive.context).ok_or(-FI_EINVAL)?;
            return operation::posted(live, weft::raw::receive_claimed(&live.endpoint, claim, &receive, buffer));
        }
        both if both == claim | discard => {
            let claim = endpoint.shared().take_claim(receive.context).ok_or(-FI_EINVAL)?;
            weft::raw::discard_claimed(&live.endpoint, claim).map_err(|error| guard::errno(&error))?;
            tell(live, call, None, 0);
            return Ok(0);
        }
        _ => return Err(-FI_EINVAL),
    }
    if call.flags & FI_TRIGGER != 0 {
        // SAFETY: with this flag the interface asks for a context that says when.
        let when = unsafe { crate::trigger::when(call.context)? };
        return operation::receive_later(live, call, when, false).map(|_| 0);
    }
    multi(endpoint, live, receive, call)
}

/// Looks for a message that waits; what was found is told as a completion.
fn look(endpoint: &Endpoint, live: &Live, receive: &Receive, call: &ReceiveCall, peek: Peek) -> Result<usize> {
    let found = weft::raw::peek(&live.endpoint, receive, peek).map_err(|error| guard::errno(&error))?;
    if let Some(claim) = found.as_ref().and_then(|found| found.claim) {
        endpoint.shared().keep_claim(receive.context, claim);
    }
    let error = if found.is_none() { FI_ENOMSG } else { 0 };
    tell(live, call, found.as_ref(), error);
    Ok(0)
}

/// Makes the completion of a call that moved no bytes.
fn tell(live: &Live, call: &ReceiveCall, found: Option<&Peeked>, error: i32) {
    let Some(queue) = live.receive_queue() else { return };
    let mut made = Made {
        context: call.context as u64,
        flags: FI_RECV | if call.tag.is_some() { FI_TAGGED } else { FI_MSG },
        length: 0,
        buffer: 0,
        data: 0,
        tag: call.tag.map_or(0, |(tag, _)| tag),
        source: FI_ADDR_NOTAVAIL,
        error,
        reason: error,
    };
    if let Some(found) = found {
        made.length = found.length as usize;
        made.tag = found.tag;
        made.source = found.peer.map_or(FI_ADDR_NOTAVAIL, |peer| queue.name_of(peer));
        if let Some(data) = found.immediate {
            made.flags |= FI_REMOTE_CQ_DATA;
            made.data = data;
        }
    }
    queue.push(made);
}

/// A buffer for many messages. The NIC's context for it names what the completions tell.
fn multi(endpoint: &Endpoint, live: &Live, mut receive: Receive, call: &ReceiveCall) -> Result<usize> {
    let pointer = match call.local {
        Local::One { pointer, .. } => pointer,
        // SAFETY: there is one piece.
        Local::Many { pieces, count: 1, .. } if !pieces.is_null() => unsafe { (*pieces).iov_base },
        Local::Many { .. } => return Err(-FI_EINVAL),
    };
    receive.multi = Some(endpoint.shared().multi_receive_least.load(Ordering::Relaxed) as u64);
    let buffer = call.local.buffer(true)?;
    let known = &endpoint.shared().domain.multi_receives;
    if live.receive_queue().is_none() {
        return operation::posted(live, weft::raw::post_receive(&live.endpoint, &receive, buffer));
    }
    receive.context = known.add(call.context as u64, pointer as u64, live.own_receive_queue());
    let result = operation::posted(live, weft::raw::post_receive(&live.endpoint, &receive, buffer));
    if result.is_err() {
        known.remove(receive.context);
    }
    result
}
