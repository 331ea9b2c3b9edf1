//! From the arguments of a call to a command or receive of the NIC: flags, buffers, peers. Messages, remote memory and
//! atomics differ in their tables of operations (`msg.rs`, `tagged.rs`, `rma.rs`, `atomic.rs`) and share this.

use std::ffi::c_void;

use libc::iovec;
use weft::raw::{Buffer, Command, CommandFlags, Deferred, DeferredId, DeferredWork, Lent, Operation, Receive, Segment};
use weft::{Level, PeerId};

use crate::abi::*;
use crate::ep::{Endpoint, Live};
use crate::guard::{self, Result};
use crate::limits::{INJECT_MAX_BYTES, LOCAL_PIECES_MAX};
use crate::mr::Region;

/// Flags of calls that send, write or update.
const TRANSMIT_FLAGS: u64 = FI_COMPLETION
    | FI_INJECT
    | FI_INJECT_COMPLETE
    | FI_TRANSMIT_COMPLETE
    | FI_DELIVERY_COMPLETE
    | FI_MATCH_COMPLETE
    | FI_FENCE
    | FI_MORE
    | FI_REMOTE_CQ_DATA
    | FI_TRIGGER
    | FI_PRIORITY;

/// Local memory of a call.
#[derive(Clone, Copy)]
pub(crate) enum Local {
    /// One piece.
    One { pointer: *mut c_void, length: usize, descriptor: *mut c_void },
    /// Several.
    Many { pieces: *const iovec, descriptors: *const *mut c_void, count: usize },
}

impl Local {
    /// Bytes in all.
    #[inline(always)]
    pub(crate) fn length(self) -> Result<usize> {
        match self {
            Local::One { length, .. } => Ok(length),
            Local::Many { .. } => {
                self.pieces()?.iter().try_fold(0usize, |sum, piece| sum.checked_add(piece.iov_len).ok_or(-FI_EINVAL))
            }
        }
    }

    /// Of a receive: without memory nothing can be received but messages without bytes.
    #[inline]
    fn or_nothing(self) -> Local {
        match self {
            Local::One { pointer, descriptor, .. } if pointer.is_null() => {
                Local::One { pointer, length: 0, descriptor }
            }
            other => other,
        }
    }

    fn pieces(&self) -> Result<&[iovec]> {
        let Local::Many { pieces, count, .. } = *self else { return Ok(&[]) };
        if count > LOCAL_PIECES_MAX || (pieces.is_null() && count > 0) {
            return Err(-FI_EINVAL);
        }
        // SAFETY: the caller of the interface gives that many for the time of the call, in which alone there are `Local`s.
        Ok(if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(pieces, count) } })
    }

    /// A buffer for the NIC. The interface says that the memory is the NIC's until the completion.
    pub(crate) fn buffer(self, writable: bool) -> Result<Buffer> {
        match self {
            Local::One { pointer, length, descriptor } => {
                if pointer.is_null() && length > 0 {
                    return Err(-FI_EINVAL);
                }
                one(pointer, length, descriptor, writable)
            }
            Local::Many { descriptors, .. } => {
                let pieces = self.pieces()?;
                if pieces.iter().any(|piece| piece.iov_base.is_null() && piece.iov_len > 0) {
                    return Err(-FI_EINVAL);
                }
                let descriptor = |index| match descriptors.is_null() {
                    true => std::ptr::null_mut(),
                    // SAFETY: there is one for each piece.
                    false => unsafe { *descriptors.add(index) },
                };
                if let [only] = pieces {
                    return one(only.iov_base, only.iov_len, descriptor(0), writable);
                }
                let on_device = (0..pieces.len()).any(|index| Region::is_on_device(descriptor(index)));
                if on_device {
                    let buffers = pieces.iter().enumerate();
                    let buffers =
                        buffers.map(|(index, piece)| one(piece.iov_base, piece.iov_len, descriptor(index), writable));
                    return Ok(Buffer::from(buffers.collect::<Result<Vec<Buffer>>>()?));
                }
                let parts = pieces.iter().map(|piece| (piece.iov_base.cast::<u8>(), piece.iov_len));
                // SAFETY: the caller of the interface leaves the memory to the NIC until the completion.
                Ok(unsafe { Buffer::from_raw_parts(parts, writable) })
            }
        }
    }

    /// The bytes, copied one behind the other; for what is injected.
    fn copy(self) -> Result<Vec<u8>> {
        let length = self.length()?;
        if length > INJECT_MAX_BYTES {
            return Err(-FI_EMSGSIZE);
        }
        let mut bytes = vec![0; length];
        self.buffer(false)?.read(0, &mut bytes).map_err(|_| -FI_EFAULT)?;
        Ok(bytes)
    }

    /// A buffer with a copy of the bytes.
    pub(crate) fn copied(self) -> Result<Buffer> {
        self.copy().map(Buffer::from)
    }
}

fn one(pointer: *mut c_void, length: usize, descriptor: *mut c_void, writable: bool) -> Result<Buffer> {
    if !descriptor.is_null() && Region::is_on_device(descriptor) {
        return Region::device_buffer(descriptor, pointer, length, writable);
    }
    Ok(host_buffer(pointer, length, writable))
}

#[inline(always)]
fn host_buffer(pointer: *mut c_void, length: usize, writable: bool) -> Buffer {
    // SAFETY: the caller of the interface leaves the memory to the NIC until the completion.
    unsafe {
        match writable {
            true => Buffer::from_raw(pointer.cast(), length),
            false => Buffer::from_raw_read_only(pointer.cast(), length),
        }
    }
}

/// What a call that sends, writes or updates asks for, besides what its operation is.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    pub(crate) local: Local,
    pub(crate) peer: fi_addr_t,
    pub(crate) data: u64,
    pub(crate) context: *mut c_void,
    pub(crate) flags: u64,
}

const LEVELS: u64 =
    FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE | FI_COMMIT_COMPLETE;

/// The level of completion that flags ask for, of what is not copied.
#[inline(always)]
fn level(flags: u64) -> Level {
    if flags & (FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE) != 0 { Level::Delivered } else { Level::Transmitted }
}

/// The command of a call, without its bytes.
#[inline(always)]
pub(crate) fn command(live: &Live, operation: Operation, peer: PeerId, call: &Call, silent: bool) -> Command {
    let mut command = weft::raw::command(&live.endpoint, operation, peer);
    command.context = call.context as u64;
    command.level = level(call.flags);
    let mut flags = CommandFlags::NONE;
    if silent {
        flags = flags | CommandFlags::SILENT;
    }
    // One test for what is rare.
    if call.flags & (FI_REMOTE_CQ_DATA | FI_FENCE | FI_MORE) != 0 {
        if call.flags & FI_REMOTE_CQ_DATA != 0 {
            flags = flags | CommandFlags::IMMEDIATE;
            command.immediate = call.data;
        }
        if call.flags & FI_FENCE != 0 {
            flags = flags | CommandFlags::FENCE;
        }
        if call.flags & FI_MORE != 0 {
            flags = flags | CommandFlags::MORE;
        }
    }
    command.flags = flags;
    command
}

/// When deferred work is posted: when a counter has reached a value. Another one counts its end.
#[derive(Clone, Copy)]
pub(crate) struct When<'a> {
    pub(crate) counter: &'a weft::Counter,
    pub(crate) threshold: u64,
    pub(crate) completion: Option<&'a weft::Counter>,
}

/// Flags with which a call is not done at once. The others are for what takes longer, or are seen to there.
const NOT_AT_ONCE: u64 = FI_INJECT | FI_TRIGGER | FI_FENCE | FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE;

/// Posts what a call asks for. `fill` completes the command.
///
/// What nearly every call asks for is done first, in place: one piece of host memory, for a peer on this machine. All
/// else, and all that can be wrong, is what [`transmit_anyhow`] knows.
#[inline(always)]
pub(crate) fn transmit(
    endpoint: &Endpoint,
    operation: Operation,
    call: &Call,
    fill: impl FnOnce(&mut Command),
) -> Result<usize> {
    let live = endpoint.live_transmit()?;
    let mut command = command(live, operation, live.peer(call.peer)?, call, live.is_silent(call.flags));
    fill(&mut command);
    if let Local::One { pointer, length, descriptor } = call.local
        && !pointer.is_null()
        && descriptor.is_null()
        && call.flags & NOT_AT_ONCE == 0
        && live.order.is_free()
    {
        // SAFETY: the caller of the interface leaves the memory to the NIC until the completion.
        let bytes = unsafe { Segment::from_raw(pointer.cast(), length) };
        if weft::raw::do_at_once(&live.endpoint, command, bytes) {
            return Ok(0);
        }
    }
    transmit_anyhow(live, command, *call)
}

/// Both come as copies: then the compiler need not keep them in memory where this is not called.
#[inline(never)]
fn transmit_anyhow(live: &Live, mut command: Command, call: Call) -> Result<usize> {
    let call = &call;
    if call.flags & (FI_INJECT | FI_TRIGGER) != 0 {
        return transmit_special(live, command, call);
    }
    let buffer = call.local.buffer(command.operation == Operation::Read)?;
    command.length = u32::try_from(buffer.len()).map_err(|_| -FI_EMSGSIZE)?;
    if may_end_when_copied(&command, call.flags) {
        command.level = Level::Injected;
    }
    posted(live, live.order.keep(&mut command, |command| weft::raw::post_lent(&live.endpoint, command, buffer)))
}

/// Whether a call asks for nothing but its buffer back: it says so, or it sends and names no level at all. Most programs do
/// not name any, and wait for a completion only to use the buffer again; who wants to hear that a message has arrived asks
/// for `FI_TRANSMIT_COMPLETE` or more. A write without a level is not of these: programs take its end for its effect.
fn may_end_when_copied(command: &Command, flags: u64) -> bool {
    let sends = matches!(command.operation, Operation::Send | Operation::TaggedSend);
    match flags & LEVELS {
        0 => sends,
        FI_INJECT_COMPLETE => sends || command.operation == Operation::Write,
        _ => false,
    }
}

#[cold]
fn transmit_special(live: &Live, mut command: Command, call: &Call) -> Result<usize> {
    if call.flags & FI_TRIGGER != 0 {
        // SAFETY: with this flag the interface asks for a context that says when.
        let when = unsafe { crate::trigger::when(call.context)? };
        return transmit_later(live, command, call, when).map(|_| 0);
    }
    let bytes = call.local.copy()?;
    command.length = bytes.len() as u32;
    posted(live, live.order.keep(&mut command, |command| weft::raw::post_copy(&live.endpoint, command, &bytes)))
}

/// Posts a command when its time comes; gives its name.
pub(crate) fn transmit_later(live: &Live, mut command: Command, call: &Call, when: When<'_>) -> Result<DeferredId> {
    let buffer = match call.flags & FI_INJECT != 0 {
        true => call.local.copied()?,
        false => call.local.buffer(command.operation == Operation::Read)?,
    };
    command.length = u32::try_from(buffer.len()).map_err(|_| -FI_EMSGSIZE)?;
    let work = DeferredWork::Post { endpoint: live.endpoint.clone(), command, buffer: Some(buffer) };
    defer_in(live.endpoint.domain(), work, when)
}

/// As [`transmit`], for later.
pub(crate) fn transmit_when(
    endpoint: &Endpoint,
    operation: Operation,
    call: &Call,
    fill: impl FnOnce(&mut Command),
    when: When<'_>,
) -> Result<DeferredId> {
    check_transmit_flags(call.flags)?;
    let live = endpoint.live_transmit()?;
    let peer = live.peer(call.peer)?;
    // Of deferred work, the counter tells the end, and a completion only who asks for one.
    let mut command = command(live, operation, peer, call, call.flags & FI_COMPLETION == 0);
    fill(&mut command);
    transmit_later(live, command, call, when)
}

/// Defers work.
pub(crate) fn defer_in(nic: &weft::Domain, work: DeferredWork, when: When<'_>) -> Result<DeferredId> {
    let When { counter, threshold, completion } = when;
    let deferred = Deferred { work, completion_counter: completion.cloned() };
    weft::raw::defer(nic, counter, threshold, deferred).map_err(|refused| guard::errno(&refused.error))
}

/// Posts a copy of bytes, without completion: `fi_inject` and its kin. As [`transmit`], most are done in place.
#[inline(always)]
pub(crate) fn inject(
    endpoint: &Endpoint,
    operation: Operation,
    pointer: *const c_void,
    length: usize,
    peer: fi_addr_t,
    fill: impl FnOnce(&mut Command),
) -> Result<usize> {
    let live = endpoint.live_transmit()?;
    let peer = live.peer(peer)?;
    if length > INJECT_MAX_BYTES {
        return Err(-FI_EMSGSIZE);
    }
    if pointer.is_null() && length > 0 {
        return Err(-FI_EINVAL);
    }
    let mut command = weft::raw::command(&live.endpoint, operation, peer);
    (command.level, command.flags) = (Level::Injected, CommandFlags::SILENT);
    fill(&mut command);
    // SAFETY: the caller of the interface gives that many bytes, for the time of the call.
    let bytes = if length == 0 { &[] } else { unsafe { std::slice::from_raw_parts(pointer.cast::<u8>(), length) } };
    if live.order.is_free() && weft::raw::do_at_once(&live.endpoint, command, Segment::from_slice(bytes)) {
        return Ok(0);
    }
    inject_anyhow(live, command, bytes)
}

#[inline(never)]
fn inject_anyhow(live: &Live, mut command: Command, bytes: &[u8]) -> Result<usize> {
    command.length = bytes.len() as u32;
    posted(live, live.order.keep(&mut command, |command| weft::raw::post_copy(&live.endpoint, command, bytes)))
}

/// Sets the immediate data of a command.
#[inline]
pub(crate) fn immediate(command: &mut Command, data: u64) {
    command.flags = command.flags | CommandFlags::IMMEDIATE;
    command.immediate = data;
}

/// The result of a post. Where there was no room, a round of progress may make some: the caller will try again.
#[inline(always)]
pub(crate) fn posted(live: &Live, result: std::result::Result<(), weft::Refused>) -> Result<usize> {
    match result {
        Ok(()) => Ok(0),
        Err(refused) => Err(refuse(live, &refused.error)),
    }
}

#[cold]
fn refuse(live: &Live, error: &weft::Error) -> i32 {
    if error.is_full()
        && let Err(error) = live.endpoint.domain().progress()
    {
        return guard::errno(&error);
    }
    guard::errno(error)
}

/// What a call that receives asks for.
#[derive(Clone, Copy)]
pub(crate) struct ReceiveCall {
    pub(crate) local: Local,
    pub(crate) source: fi_addr_t,
    pub(crate) tag: Option<(u64, u64)>,
    pub(crate) context: *mut c_void,
    pub(crate) flags: u64,
}

/// The receive of a call.
#[inline(always)]
pub(crate) fn receive_of(live: &Live, call: &ReceiveCall) -> Result<Receive> {
    let length = call.local.or_nothing().length()?;
    let mut receive = weft::raw::receive(&live.endpoint, length as u64);
    receive.context = call.context as u64;
    receive.silent = live.is_silent_receive(call.flags);
    if let Some((tag, ignore)) = call.tag {
        (receive.tagged, receive.tag, receive.ignore) = (true, tag, ignore);
    }
    if live.directed && call.source != FI_ADDR_UNSPEC {
        receive.source = Some(live.source(call.source)?);
    }
    Ok(receive)
}

/// Flags of receives that are not plain.
const SPECIAL_RECEIVE: u64 = FI_PEEK | FI_CLAIM | FI_DISCARD | FI_MULTI_RECV | FI_TRIGGER;

/// Posts a receive. What nearly every call asks for is done in place, as by [`transmit`].
#[inline(always)]
pub(crate) fn receive(endpoint: &Endpoint, call: &ReceiveCall) -> Result<usize> {
    let live = endpoint.live_receive()?;
    if let Local::One { pointer, length, descriptor } = call.local
        && !pointer.is_null()
        && descriptor.is_null()
        && call.flags & SPECIAL_RECEIVE == 0
    {
        // SAFETY: the caller of the interface leaves the memory to the NIC until the completion.
        let lent = unsafe { Lent::from_raw(pointer.cast(), length) };
        return posted(live, weft::raw::post_receive_lent(&live.endpoint, &receive_of(live, call)?, lent));
    }
    receive_anyhow(endpoint, live, *call)
}

#[inline(never)]
fn receive_anyhow(endpoint: &Endpoint, live: &Live, call: ReceiveCall) -> Result<usize> {
    let call = &call;
    let receive = receive_of(live, call)?;
    if call.flags & SPECIAL_RECEIVE != 0 {
        return crate::receive::special(endpoint, live, receive, call);
    }
    let buffer = call.local.or_nothing().buffer(true)?;
    posted(live, weft::raw::post_receive(&live.endpoint, &receive, buffer))
}

/// Posts a receive when its time comes; gives its name.
pub(crate) fn receive_later(live: &Live, call: &ReceiveCall, when: When<'_>, silent: bool) -> Result<DeferredId> {
    if live.variable.is_some() {
        return Err(-FI_EOPNOTSUPP);
    }
    let (mut receive, buffer) = (receive_of(live, call)?, call.local.buffer(true)?);
    receive.silent |= silent;
    let work = DeferredWork::Receive { endpoint: live.endpoint.clone(), receive, buffer };
    defer_in(live.endpoint.domain(), work, when)
}

/// Checks the flags of a call that sends.
#[inline]
pub(crate) fn check_transmit_flags(flags: u64) -> Result {
    if flags & !TRANSMIT_FLAGS == 0 { Ok(()) } else { Err(-FI_EINVAL) }
}

/// Flags of calls that receive.
const RECEIVE_FLAGS: u64 = FI_COMPLETION
    | FI_MORE
    | FI_MULTI_RECV
    | FI_PEEK
    | FI_CLAIM
    | FI_DISCARD
    | FI_TRIGGER
    | FI_REMOTE_CQ_DATA
    | FI_INJECT_COMPLETE
    | FI_TRANSMIT_COMPLETE
    | FI_DELIVERY_COMPLETE;

/// Checks the flags of a call that receives.
#[inline]
pub(crate) fn check_receive_flags(flags: u64) -> Result {
    if flags & !RECEIVE_FLAGS == 0 { Ok(()) } else { Err(-FI_EINVAL) }
}
