//! Triggered and deferred work: operations that the NIC posts when a counter has reached a value.

use std::ffi::{c_int, c_void};

use weft::raw::{DeferredId, DeferredWork, Operation};

use crate::abi::*;
use crate::cntr::Count;
use crate::domain::Domain;
use crate::ep::Endpoint;
use crate::guard::{self, Result};
use crate::operation::{self, Call, Local, ReceiveCall, When};
use crate::{atomic, handle};

/// When a triggered operation is posted, as its context says.
///
/// # Safety
/// The context is null or that of a triggered operation.
pub(crate) unsafe fn when<'a>(context: *mut c_void) -> Result<When<'a>> {
    // SAFETY: as the caller says.
    let context = unsafe { context.cast::<fi_triggered_context>().as_ref() }.ok_or(-FI_EINVAL)?;
    if context.event_type != FI_TRIGGER_THRESHOLD {
        return Err(-FI_ENOSYS);
    }
    // SAFETY: the type says what is in the union.
    let trigger = unsafe { context.trigger.threshold };
    // SAFETY: a counter of the interface, or null.
    let count = unsafe { handle::of::<Count>(trigger.cntr)? };
    Ok(When { counter: &count.counter, threshold: trigger.threshold as u64, completion: None })
}

/// `fi_control` of a domain: the work queue.
pub(crate) unsafe extern "C" fn control(fid: *mut fid, command: c_int, argument: *mut c_void) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of a domain's table.
        let domain = unsafe { handle::of_fid::<Domain>(fid)? };
        match command {
            FI_QUEUE_WORK => {
                // SAFETY: the argument of this command.
                let work = unsafe { argument.cast::<fi_deferred_work>().as_ref() }.ok_or(-FI_EINVAL)?;
                let mut known = domain.work();
                // What was done is not told here: names are forgotten when nothing waits any more, so that a program that
                // goes on with new descriptions does not fill the table.
                if weft::raw::deferred(&domain.nic) == 0 {
                    known.clear();
                }
                // SAFETY: as the interface describes it.
                let id = unsafe { queue(work)? };
                known.insert(argument as usize, id);
                Ok(())
            }
            FI_CANCEL_WORK => {
                let id = domain.work().remove(&(argument as usize)).ok_or(-FI_ENOENT)?;
                weft::raw::cancel_deferred(&domain.nic, id).map(|_| ()).ok_or(-FI_ENOENT)
            }
            FI_FLUSH_WORK => {
                let mut work = domain.work();
                work.clear();
                weft::raw::flush_deferred(&domain.nic);
                Ok(())
            }
            // SAFETY: the argument of this command.
            FI_MAP_RAW_MR => unsafe { crate::mr::map_raw(argument.cast()) },
            // Nothing was made for it.
            FI_UNMAP_KEY => {
                if argument.is_null() {
                    Err(-FI_EINVAL)
                } else {
                    Ok(())
                }
            }
            _ => Err(-FI_ENOSYS),
        }
    })
}

/// Takes work for later.
///
/// # Safety
/// The work and all that it points to are as the interface describes them.
unsafe fn queue(work: &fi_deferred_work) -> Result<DeferredId> {
    // SAFETY: as the caller says: the type of the work says which part of the union is meant.
    unsafe {
        let counter = &handle::of::<Count>(work.triggering_cntr)?.counter;
        let completion = match work.completion_cntr.is_null() {
            true => None,
            false => Some(&handle::of::<Count>(work.completion_cntr)?.counter),
        };
        let when = When { counter, threshold: work.threshold, completion };
        match work.op_type {
            FI_OP_SEND | FI_OP_RECV => {
                let op = work.op.msg.as_ref().ok_or(-FI_EINVAL)?;
                let (endpoint, message) = (handle::of::<Endpoint>(op.ep)?, &op.msg);
                let local =
                    Local::Many { pieces: message.msg_iov, descriptors: message.desc, count: message.iov_count };
                let context = message.context;
                if work.op_type == FI_OP_RECV {
                    let call = ReceiveCall { local, source: message.addr, tag: None, context, flags: op.flags };
                    return operation::receive_later(
                        endpoint.live_receive()?,
                        &call,
                        when,
                        op.flags & FI_COMPLETION == 0,
                    );
                }
                let call = Call { local, peer: message.addr, data: message.data, context, flags: op.flags };
                let sends = if endpoint.is_datagram() { Operation::Datagram } else { Operation::Send };
                operation::transmit_when(endpoint, sends, &call, |_| {}, when)
            }
            FI_OP_TSEND | FI_OP_TRECV => {
                let op = work.op.tagged.as_ref().ok_or(-FI_EINVAL)?;
                let (endpoint, message) = (handle::of::<Endpoint>(op.ep)?, &op.msg);
                let local =
                    Local::Many { pieces: message.msg_iov, descriptors: message.desc, count: message.iov_count };
                let (context, flags) = (message.context, op.flags);
                if work.op_type == FI_OP_TRECV {
                    let tag = Some((message.tag, message.ignore));
                    let call = ReceiveCall { local, source: message.addr, tag, context, flags };
                    return operation::receive_later(
                        endpoint.live_receive()?,
                        &call,
                        when,
                        op.flags & FI_COMPLETION == 0,
                    );
                }
                let call = Call { local, peer: message.addr, data: message.data, context, flags };
                let fill = |command: &mut weft::raw::Command| command.address = message.tag;
                operation::transmit_when(endpoint, Operation::TaggedSend, &call, fill, when)
            }
            FI_OP_READ | FI_OP_WRITE => {
                let op = work.op.rma.as_ref().ok_or(-FI_EINVAL)?;
                let endpoint = handle::of::<Endpoint>(op.ep)?;
                let does = if work.op_type == FI_OP_READ { Operation::Read } else { Operation::Write };
                crate::rma::message_when(endpoint, does, &op.msg, op.flags, when)
            }
            FI_OP_ATOMIC => {
                let op = work.op.atomic.as_ref().ok_or(-FI_EINVAL)?;
                atomic::later(handle::of::<Endpoint>(op.ep)?, &op.msg, None, None, op.flags, when)
            }
            FI_OP_FETCH_ATOMIC => {
                let op = work.op.fetch_atomic.as_ref().ok_or(-FI_EINVAL)?;
                atomic::later(handle::of::<Endpoint>(op.ep)?, &op.msg, Some(&op.fetch), None, op.flags, when)
            }
            FI_OP_COMPARE_ATOMIC => {
                let op = work.op.compare_atomic.as_ref().ok_or(-FI_EINVAL)?;
                let endpoint = handle::of::<Endpoint>(op.ep)?;
                atomic::later(endpoint, &op.msg, Some(&op.fetch), Some(&op.compare), op.flags, when)
            }
            FI_OP_CNTR_SET | FI_OP_CNTR_ADD => {
                let op = work.op.cntr.as_ref().ok_or(-FI_EINVAL)?;
                let changed = handle::of::<Count>(op.cntr)?;
                let (counter, value) = (changed.counter.clone(), op.value);
                let work = match work.op_type {
                    FI_OP_CNTR_SET => DeferredWork::Set { counter, value },
                    _ => DeferredWork::Add { counter, value },
                };
                operation::defer_in(&changed.domain.nic, work, when)
            }
            _ => Err(-FI_EINVAL),
        }
    }
}
