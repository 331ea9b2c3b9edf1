//! Remote memory: reads and writes.

use std::ffi::c_void;

use libc::iovec;
use weft::raw::{Command, DeferredId, Operation, RemoteRange};

use crate::abi::*;
use crate::ep::Endpoint;
use crate::guard::{self, Result};
use crate::handle;
use crate::limits::REMOTE_PIECES_MAX;
use crate::operation::{self, Call, Local, When};

pub(crate) static OPERATIONS: fi_ops_rma = fi_ops_rma {
    size: size_of::<fi_ops_rma>(),
    read: Some(read),
    readv: Some(read_pieces),
    readmsg: Some(read_message),
    write: Some(write),
    writev: Some(write_pieces),
    writemsg: Some(write_message),
    inject: Some(inject),
    writedata: Some(write_data),
    injectdata: Some(inject_data),
};

#[inline]
fn transmit(endpoint: &Endpoint, operation: Operation, call: &Call, address: u64, key: u64) -> Result<usize> {
    operation::transmit(endpoint, operation, call, |command| (command.address, command.key) = (address, key))
}

/// The call of a message structure, and its remote ranges.
///
/// # Safety
/// What the structure points to is C's, as the interface describes it.
unsafe fn call_of<'a>(endpoint: &Endpoint, message: &'a fi_msg_rma, flags: u64) -> Result<(Call, &'a [fi_rma_iov])> {
    let flags = endpoint.transmit_flags_with(flags)?;
    let local = Local::Many { pieces: message.msg_iov, descriptors: message.desc, count: message.iov_count };
    let (peer, data, context) = (message.addr, message.data, message.context);
    let count = message.rma_iov_count;
    if count == 0 || count > REMOTE_PIECES_MAX || message.rma_iov.is_null() {
        return Err(-FI_EINVAL);
    }
    // SAFETY: as the caller says.
    let remote = unsafe { std::slice::from_raw_parts(message.rma_iov, count) };
    let reached = remote.iter().try_fold(0usize, |sum, range| sum.checked_add(range.len));
    if reached != Some(local.length()?) {
        return Err(-FI_EINVAL);
    }
    Ok((Call { local, peer, data, context, flags }, remote))
}

/// # Safety
/// As [`call_of`].
unsafe fn message(endpoint: &Endpoint, operation: Operation, message: *const fi_msg_rma, flags: u64) -> Result<usize> {
    // SAFETY: as the caller says.
    let (call, remote) = unsafe { call_of(endpoint, message.as_ref().ok_or(-FI_EINVAL)?, flags)? };
    match remote {
        [only] => transmit(endpoint, operation, &call, only.addr, only.key),
        several => vector(endpoint, operation, &call, several),
    }
}

/// One operation on several ranges of the peer's memory.
fn vector(endpoint: &Endpoint, operation: Operation, call: &Call, remote: &[fi_rma_iov]) -> Result<usize> {
    if call.flags & FI_TRIGGER != 0 {
        return Err(-FI_EINVAL);
    }
    let live = endpoint.live_transmit()?;
    let silent = live.is_silent(call.flags);
    let mut command = operation::command(live, operation, live.peer(call.peer)?, call, silent);
    let buffer = match call.flags & FI_INJECT != 0 {
        true => call.local.copied()?,
        false => call.local.buffer(operation == Operation::Read)?,
    };
    command.length = u32::try_from(buffer.len()).map_err(|_| -FI_EMSGSIZE)?;
    let range = |range: &fi_rma_iov| RemoteRange { address: range.addr, key: range.key, length: range.len as u64 };
    let ranges: Vec<RemoteRange> = remote.iter().map(range).collect();
    let post = |command: &Command| weft::raw::post_vector(&live.endpoint, command, buffer, &ranges);
    operation::posted(live, live.order.keep(&mut command, post))
}

/// As [`message`], for later.
///
/// # Safety
/// As [`call_of`].
pub(crate) unsafe fn message_when(
    endpoint: &Endpoint,
    operation: Operation,
    message: &fi_msg_rma,
    flags: u64,
    when: When<'_>,
) -> Result<DeferredId> {
    // SAFETY: as the caller says.
    let (call, remote) = unsafe { call_of(endpoint, message, flags)? };
    let [remote] = remote else { return Err(-FI_EINVAL) };
    let fill = |command: &mut Command| (command.address, command.key) = (remote.addr, remote.key);
    operation::transmit_when(endpoint, operation, &call, fill, when)
}

unsafe extern "C" fn read(
    ep: *mut fid_ep,
    pointer: *mut c_void,
    length: usize,
    descriptor: *mut c_void,
    peer: fi_addr_t,
    address: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    guard::transfer(ep, || {
        // SAFETY: what C gives to a function of an endpoint's table.
        let endpoint = unsafe { handle::of::<Endpoint>(ep)? };
        let local = Local::One { pointer, length, descriptor };
        let flags = endpoint.transmit_flags() & !FI_INJECT;
        transmit(endpoint, Operation::Read, &Call { local, peer, data: 0, context, flags }, address, key)
    })
}

unsafe extern "C" fn read_pieces(
    ep: *mut fid_ep,
    pieces: *const iovec,
    descriptors: *mut *mut c_void,
    count: usize,
    peer: fi_addr_t,
    address: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    guard::transfer(ep, || {
        // SAFETY: what C gives to a function of an endpoint's table.
        let endpoint = unsafe { handle::of::<Endpoint>(ep)? };
        let local = Local::Many { pieces, descriptors, count };
        let flags = endpoint.transmit_flags() & !FI_INJECT;
        transmit(endpoint, Operation::Read, &Call { local, peer, data: 0, context, flags }, address, key)
    })
}

unsafe extern "C" fn read_message(ep: *mut fid_ep, from: *const fi_msg_rma, flags: u64) -> isize {
    guard::transfer(ep, || {
        if flags & FI_INJECT != 0 {
            return Err(-FI_EINVAL);
        }
        // SAFETY: what C gives to a function of an endpoint's table.
        unsafe { message(handle::of::<Endpoint>(ep)?, Operation::Read, from, flags) }
    })
}

unsafe extern "C" fn write(
    ep: *mut fid_ep,
    pointer: *const c_void,
    length: usize,
    descriptor: *mut c_void,
    peer: fi_addr_t,
    address: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    guard::transfer(ep, || {
        // SAFETY: what C gives to a function of an endpoint's table.
        let endpoint = unsafe { handle::of::<Endpoint>(ep)? };
        let local = Local::One { pointer: pointer.cast_mut(), length, descriptor };
        let flags = endpoint.transmit_flags();
        transmit(endpoint, Operation::Write, &Call { local, peer, data: 0, context, flags }, address, key)
    })
}

unsafe extern "C" fn write_pieces(
    ep: *mut fid_ep,
    pieces: *const iovec,
    descriptors: *mut *mut c_void,
    count: usize,
    peer: fi_addr_t,
    address: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    guard::transfer(ep, || {
        // SAFETY: what C gives to a function of an endpoint's table.
        let endpoint = unsafe { handle::of::<Endpoint>(ep)? };
        let local = Local::Many { pieces, descriptors, count };
        let flags = endpoint.transmit_flags();
        transmit(endpoint, Operation::Write, &Call { local, peer, data: 0, context, flags }, address, key)
    })
}

unsafe extern "C" fn write_message(ep: *mut fid_ep, from: *const fi_msg_rma, flags: u64) -> isize {
    // SAFETY: what C gives to a function of an endpoint's table.
    guard::transfer(ep, || unsafe { message(handle::of::<Endpoint>(ep)?, Operation::Write, from, flags) })
}

unsafe extern "C" fn write_data(
    ep: *mut fid_ep,
    pointer: *const c_void,
    length: usize,
    descriptor: *mut c_void,
    data: u64,
    peer: fi_addr_t,
    address: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    guard::transfer(ep, || {
        // SAFETY: what C gives to a function of an endpoint's table.
        let endpoint = unsafe { handle::of::<Endpoint>(ep)? };
        let local = Local::One { pointer: pointer.cast_mut(), length, descriptor };
        let flags = endpoint.transmit_flags() | FI_REMOTE_CQ_DATA;
        transmit(endpoint, Operation::Write, &Call { local, peer, data, context, flags }, address, key)
    })
}

unsafe extern "C" fn inject(
    ep: *mut fid_ep,
    pointer: *const c_void,
    length: usize,
    peer: fi_addr_t,
    address: u64,
    key: u64,
) -> isize {
    guard::transfer(ep, || {
        // SAFETY: what C gives to a function of an endpoint's table.
        let endpoint = unsafe { handle::of::<Endpoint>(ep)? };
        let fill = |command: &mut Command| (command.address, command.key) = (address, key);
        operation::inject(endpoint, Operation::Write, pointer, length, peer, fill)
    })
}

unsafe extern "C" fn inject_data(
    ep: *mut fid_ep,
    pointer: *const c_void,
    length: usize,
    data: u64,
    peer: fi_addr_t,
    address: u64,
    key: u64,
) -> isize {
    guard::transfer(ep, || {
        // SAFETY: what C gives to a function of an endpoint's table.
        let endpoint = unsafe { handle::of::<Endpoint>(ep)? };
        let fill = |command: &mut Command| {
            (command.address, command.key) = (address, key);
            operation::immediate(command, data);
        };
        operation::inject(endpoint, Operation::Write, pointer, length, peer, fill)
    })
}
