//! Atomics on remote memory.
//!
//! Operands and compare values are copied by the call; results go straight into the caller's memory.

use std::ffi::{c_int, c_void};

use weft::raw::{
    AtomicCall, AtomicClass, AtomicOperation, Buffer, Command, CommandFlags, Datatype, DeferredId, DeferredWork,
    Operation, RemoteRange, atomic_count_max, post_atomic_vector,
};

use crate::abi::*;
use crate::domain::Domain;
use crate::ep::{Endpoint, Live};
use crate::guard::{self, Result};
use crate::handle;
use crate::limits::{LOCAL_PIECES_MAX, REMOTE_PIECES_MAX};
use crate::operation::{self, Call, Local, When};

pub(crate) static OPERATIONS: fi_ops_atomic = fi_ops_atomic {
    size: size_of::<fi_ops_atomic>(),
    write: Some(write),
    writev: Some(write_pieces),
    writemsg: Some(write_message),
    inject: Some(inject),
    readwrite: Some(fetch),
    readwritev: Some(fetch_pieces),
    readwritemsg: Some(fetch_message),
    compwrite: Some(compare),
    compwritev: Some(compare_pieces),
    compwritemsg: Some(compare_message),
    writevalid: Some(write_valid),
    readwritevalid: Some(fetch_valid),
    compwritevalid: Some(compare_valid),
};

fn operation_of(code: u32) -> Option<AtomicOperation> {
    Some(match code {
        FI_MIN => AtomicOperation::Minimum,
        FI_MAX => AtomicOperation::Maximum,
        FI_SUM => AtomicOperation::Sum,
        FI_PROD => AtomicOperation::Product,
        FI_LOR => AtomicOperation::LogicalOr,
        FI_LAND => AtomicOperation::LogicalAnd,
        FI_BOR => AtomicOperation::BitwiseOr,
        FI_BAND => AtomicOperation::BitwiseAnd,
        FI_LXOR => AtomicOperation::LogicalXor,
        FI_BXOR => AtomicOperation::BitwiseXor,
        FI_ATOMIC_READ => AtomicOperation::Read,
        FI_ATOMIC_WRITE => AtomicOperation::Write,
        FI_CSWAP => AtomicOperation::SwapIfEqual,
        FI_CSWAP_NE => AtomicOperation::SwapIfNotEqual,
        FI_CSWAP_LE => AtomicOperation::SwapIfLessOrEqual,
        FI_CSWAP_LT => AtomicOperation::SwapIfLess,
        FI_CSWAP_GE => AtomicOperation::SwapIfGreaterOrEqual,
        FI_CSWAP_GT => AtomicOperation::SwapIfGreater,
        FI_MSWAP => AtomicOperation::MaskedSwap,
        FI_DIFF => AtomicOperation::Difference,
        _ => return None,
    })
}

fn datatype_of(code: u32) -> Option<Datatype> {
    Some(match code {
        FI_INT8 => Datatype::Int8,
        FI_UINT8 => Datatype::Uint8,
        FI_INT16 => Datatype::Int16,
        FI_UINT16 => Datatype::Uint16,
        FI_INT32 => Datatype::Int32,
        FI_UINT32 => Datatype::Uint32,
        FI_INT64 => Datatype::Int64,
        FI_UINT64 => Datatype::Uint64,
        FI_FLOAT => Datatype::Binary32,
        FI_DOUBLE => Datatype::Binary64,
        FI_FLOAT_COMPLEX => Datatype::Complex32,
        FI_DOUBLE_COMPLEX => Datatype::Complex64,
        FI_LONG_DOUBLE => Datatype::Extended,
        FI_LONG_DOUBLE_COMPLEX => Datatype::ComplexExtended,
        FI_INT128 => Datatype::Int128,
        FI_UINT128 => Datatype::Uint128,
        FI_FLOAT16 => Datatype::Binary16,
        FI_BFLOAT16 => Datatype::Bfloat16,
        FI_FLOAT8_E4M3 => Datatype::Float8E4M3,
        FI_FLOAT8_E5M2 => Datatype::Float8E5M2,
        _ => return None,
    })
}

/// Elements of an atomic at most, and their size; an error if it is not possible.
fn possible(datatype: u32, operation: u32, class: AtomicClass) -> Result<(AtomicOperation, Datatype, usize)> {
    let (operation, datatype) = operation_of(operation).zip(datatype_of(datatype)).ok_or(-FI_EOPNOTSUPP)?;
    match atomic_count_max(operation, datatype, class) {
        0 => Err(-FI_EOPNOTSUPP),
        count => Ok((operation, datatype, count)),
    }
}

/// Elements in memory of the caller: one piece, or several.
#[derive(Clone, Copy)]
enum Elements {
    One { pointer: *mut c_void, count: usize, descriptor: *mut c_void },
    Many { pieces: *const fi_ioc, descriptors: *const *mut c_void, count: usize },
}

impl Elements {
    /// Calls `each` with every piece in bytes.
    ///
    /// # Safety
    /// The pieces are C's, as the interface describes them.
    unsafe fn for_each(self, bytes: usize, mut each: impl FnMut(*mut c_void, usize, *mut c_void) -> Result) -> Result {
        let mut one = |pointer: *mut c_void, count: usize, descriptor| {
            let length = count.checked_mul(bytes).ok_or(-FI_EINVAL)?;
            if pointer.is_null() && length > 0 {
                return Err(-FI_EINVAL);
            }
            each(pointer, length, descriptor)
        };
        match self {
            Elements::One { pointer, count, descriptor } => one(pointer, count, descriptor),
            Elements::Many { pieces, descriptors, count } => {
                if count > LOCAL_PIECES_MAX || (pieces.is_null() && count > 0) {
                    return Err(-FI_EINVAL);
                }
                for index in 0..count {
                    // SAFETY: as the caller says.
                    let (piece, descriptor) = unsafe {
                        let descriptor =
                            if descriptors.is_null() { std::ptr::null_mut() } else { *descriptors.add(index) };
                        (*pieces.add(index), descriptor)
                    };
                    one(piece.addr, piece.count, descriptor)?;
                }
                Ok(())
            }
        }
    }
}

/// An atomic as a call asks for it.
struct Atomic<'a> {
    class: AtomicClass,
    datatype: u32,
    operation: u32,
    operands: Elements,
    compares: Option<Elements>,
    results: Option<Elements>,
    peer: fi_addr_t,
    remote: &'a [fi_rma_ioc],
    context: *mut c_void,
    flags: u64,
}

/// What the NIC takes.
struct Prepared {
    command: Command,
    operands: Option<Buffer>,
    compares: Option<Buffer>,
    results: Option<Buffer>,
    ranges: [RemoteRange; REMOTE_PIECES_MAX],
    count: usize,
}

/// The pieces of elements as one buffer. Work that is deferred puts all buffers of an atomic in one list, which has to be
/// writable as a whole; only results are written.
///
/// # Safety
/// The pieces are C's, as the interface describes them.
unsafe fn buffer_of(elements: Elements, bytes: usize) -> Result<Buffer> {
    if let Elements::One { pointer, count, descriptor } = elements {
        let length = count.checked_mul(bytes).ok_or(-FI_EINVAL)?;
        return Local::One { pointer, length, descriptor }.buffer(true);
    }
    let mut parts: Vec<Buffer> = Vec::new();
    // SAFETY: as the caller says.
    unsafe {
        elements.for_each(bytes, |pointer, length, descriptor| {
            parts.push(Local::One { pointer, length, descriptor }.buffer(true)?);
            Ok(())
        })?;
    }
    Ok(if parts.len() == 1 { parts.swap_remove(0) } else { Buffer::from(parts) })
}

impl Atomic<'_> {
    /// # Safety
    /// The pieces are C's, as the interface describes them.
    unsafe fn prepare(&self, live: &Live) -> Result<Prepared> {
        let (operation, datatype, most) = possible(self.datatype, self.operation, self.class)?;
        let bytes = datatype.bytes();
        // What only reads has no operands; how many elements it wants, its results say.
        let operands = if operation == AtomicOperation::Read { None } else { Some(self.operands) };
        // SAFETY: as the caller says.
        let buffer =
            |elements: Option<Elements>| elements.map(|elements| unsafe { buffer_of(elements, bytes) }).transpose();
        let (operands, compares, results) = (buffer(operands)?, buffer(self.compares)?, buffer(self.results)?);
        let total = operands.as_ref().or(results.as_ref()).map_or(0, Buffer::len);
        let other = |buffer: &Option<Buffer>| buffer.as_ref().is_some_and(|buffer| buffer.len() != total);
        if total == 0 || other(&compares) || other(&results) {
            return Err(-FI_EINVAL);
        }
        if self.remote.is_empty() || self.remote.len() > REMOTE_PIECES_MAX {
            return Err(-FI_EINVAL);
        }
        let mut ranges = [RemoteRange::default(); REMOTE_PIECES_MAX];
        let mut reached = 0u64;
        for (range, remote) in ranges.iter_mut().zip(self.remote) {
            let length = remote.count.checked_mul(bytes).ok_or(-FI_EINVAL)? as u64;
            reached = reached.checked_add(length).ok_or(-FI_EINVAL)?;
            *range = RemoteRange { address: remote.addr, key: remote.key, length };
        }
        if reached != total as u64 {
            return Err(-FI_EINVAL);
        }
        let count = total / bytes;
        if count > most {
            return Err(-FI_EMSGSIZE);
        }
        let does = match self.class {
            AtomicClass::Plain => Operation::Atomic,
            AtomicClass::Fetch => Operation::FetchAtomic,
            AtomicClass::Compare => Operation::CompareAtomic,
        };
        let call = Call {
            local: Local::One { pointer: std::ptr::null_mut(), length: 0, descriptor: std::ptr::null_mut() },
            peer: self.peer,
            data: 0,
            context: self.context,
            flags: self.flags & !FI_REMOTE_CQ_DATA,
        };
        let silent = live.is_silent(self.flags);
        let mut command = operation::command(live, does, live.peer(self.peer)?, &call, silent);
        command.atomic = AtomicCall::new(operation, datatype, count as u16);
        let [first, ..] = ranges;
        (command.address, command.key) = (first.address, first.key);
        Ok(Prepared { command, operands, compares, results, ranges, count: self.remote.len() })
    }

    /// # Safety
    /// As [`Atomic::prepare`].
    unsafe fn post(&self, endpoint: &Endpoint) -> Result<usize> {
        let live = endpoint.live_transmit()?;
        // SAFETY: as the caller says.
        let prepared = unsafe { self.prepare(live)? };
        if self.flags & FI_TRIGGER != 0 {
            // SAFETY: with this flag the interface asks for a context that says when.
            let when = unsafe { crate::trigger::when(self.context)? };
            return prepared.defer(live, when).map(|_| 0);
        }
        prepared.post(live)
    }
}

impl Prepared {
    fn post(self, live: &Live) -> Result<usize> {
        let ranges = self.ranges.get(..self.count).unwrap_or_default();
        let (operands, compares, results) = (self.operands.as_ref(), self.compares.as_ref(), self.results);
        let post = |command: &Command| post_atomic_vector(&live.endpoint, command, operands, compares, results, ranges);
        let mut command = self.command;
        operation::posted(live, live.order.keep(&mut command, post))
    }

    /// The NIC's work queue takes one buffer: room for the results first, then compare values, then operands.
    fn defer(self, live: &Live, when: When<'_>) -> Result<DeferredId> {
        if self.count != 1 {
            return Err(-FI_EINVAL);
        }
        let mut command = self.command;
        command.offset = self.results.as_ref().map_or(0, Buffer::len) as u64;
        let sent = [&self.compares, &self.operands].into_iter().flatten().map(Buffer::len).sum::<usize>();
        command.length = sent as u32;
        let parts: Vec<Buffer> = [self.results, self.compares, self.operands].into_iter().flatten().collect();
        let buffer = Some(Buffer::from(parts));
        let work = DeferredWork::Post { endpoint: live.endpoint.clone(), command, buffer };
        operation::defer_in(live.endpoint.domain(), work, when)
    }
}

/// Elements of all pieces.
///
/// # Safety
/// They are C's, as the interface describes them.
unsafe fn total(pieces: *const fi_ioc, count: usize) -> Result<usize> {
    let mut sum = 0usize;
    // SAFETY: as the caller says.
    unsafe {
        Elements::Many { pieces, descriptors: std::ptr::null(), count }.for_each(1, |_, elements, _| {
            sum = sum.checked_add(elements).ok_or(-FI_EINVAL)?;
            Ok(())
        })?;
    }
    Ok(sum)
}

/// The remote ranges of a message.
///
/// # Safety
/// They are C's, as the interface describes them.
unsafe fn remote_of(message: &fi_msg_atomic) -> Result<&[fi_rma_ioc]> {
    let count = message.rma_iov_count;
    if count == 0 || count > REMOTE_PIECES_MAX || message.rma_iov.is_null() {
        return Err(-FI_EINVAL);
    }
    // SAFETY: as the caller says.
    Ok(unsafe { std::slice::from_raw_parts(message.rma_iov, count) })
}

/// # Safety
/// The structures are C's, as the interface describes them.
unsafe fn of_message<'a>(
    endpoint: &Endpoint,
    class: AtomicClass,
    message: &'a fi_msg_atomic,
    compares: Option<Elements>,
    results: Option<Elements>,
    flags: u64,
) -> Result<Atomic<'a>> {
    let flags = endpoint.transmit_flags_with(flags)?;
    Ok(Atomic {
        class,
        datatype: message.datatype,
        operation: message.op,
        operands: Elements::Many { pieces: message.msg_iov, descriptors: message.desc, count: message.iov_count },
        compares,
        results,
        peer: message.addr,
        // SAFETY: as the caller says.
        remote: unsafe { remote_of(message)? },
        context: message.context,
        flags,
    })
}

/// # Safety
/// As [`of_message`].
unsafe fn post_message(
    endpoint: &Endpoint,
    class: AtomicClass,
    message: *const fi_msg_atomic,
    compares: Option<Elements>,
    results: Option<Elements>,
    flags: u64,
) -> Result<usize> {
    // SAFETY: as the caller says.
    unsafe {
        let message = message.as_ref().ok_or(-FI_EINVAL)?;
        of_message(endpoint, class, message, compares, results, flags)?.post(endpoint)
    }
}

/// An atomic of the work queue.
///
/// # Safety
/// The structures are C's, as the interface describes them.
pub(crate) unsafe fn later(
    endpoint: &Endpoint,
    message: &fi_msg_atomic,
    fetch: Option<&fi_msg_fetch>,
    compare: Option<&fi_msg_compare>,
    flags: u64,
    when: When<'_>,
) -> Result<DeferredId> {
    let class = match (fetch, compare) {
        (_, Some(_)) => AtomicClass::Compare,
        (Some(_), None) => AtomicClass::Fetch,
        (None, None) => AtomicClass::Plain,
    };
    let results =
        fetch.map(|fetch| Elements::Many { pieces: fetch.msg_iov, descriptors: fetch.desc, count: fetch.iov_count });
    let compares = compare.map(|compare| Elements::Many {
        pieces: compare.msg_iov,
        descriptors: compare.desc,
        count: compare.iov_count,
    });
    let live = endpoint.live_transmit()?;
    // SAFETY: as the caller says.
    let mut prepared = unsafe { of_message(endpoint, class, message, compares, results, flags)?.prepare(live)? };
    if flags & FI_COMPLETION == 0 {
        prepared.command.flags = prepared.command.flags | CommandFlags::SILENT;
    }
    prepared.defer(live, when)
}

unsafe extern "C" fn write(
    ep: *mut fid_ep,
    pointer: *const c_void,
    count: usize,
    descriptor: *mut c_void,
    peer: fi_addr_t,
    address: u64,
    key: u64,
    datatype: u32,
    operation: u32,
    context: *mut c_void,
) -> isize {
    guard::transfer(ep, || {
        // SAFETY: what C gives to a function of an endpoint's table.
        let endpoint = unsafe { handle::of::<Endpoint>(ep)? };
        let operands = Elements::One { pointer: pointer.cast_mut(), count, descriptor };
        let remote = &[fi_rma_ioc { addr: address, count, key }];
        let (class, flags) = (AtomicClass::Plain, endpoint.transmit_flags());
        let (compares, results) = (None, None);
        let atomic = Atomic { class, datatype, operation, operands, compares, results, peer, remote, context, flags };
        // SAFETY: as the caller of the interface promises.
        unsafe { atomic.post(endpoint) }
    })
}

unsafe extern "C" fn write_pieces(
    ep: *mut fid_ep,
    pieces: *const fi_ioc,
    descriptors: *mut *mut c_void,
    count: usize,
    peer: fi_addr_t,
    address: u64,
    key: u64,
    datatype: u32,
    operation: u32,
    context: *mut c_void,
) -> isize {
    guard::transfer(ep, || {
        // SAFETY: what C gives to a function of an endpoint's table.
        let endpoint = unsafe { handle::of::<Endpoint>(ep)? };
        let operands = Elements::Many { pieces, descriptors, count };
        // SAFETY: as the caller of the interface promises.
        let remote = &[fi_rma_ioc { addr: address, count: unsafe { total(pieces, count)? }, key }];
        let (class, flags) = (AtomicClass::Plain, endpoint.transmit_flags());
        let (compares, results) = (None, None);
        let atomic = Atomic { class, datatype, operation, operands, compares, results, peer, remote, context, flags };
        // SAFETY: as the caller of the interface promises.
        unsafe { atomic.post(endpoint) }
    })
}

unsafe extern "C" fn write_message(ep: *mut fid_ep, message: *const fi_msg_atomic, flags: u64) -> isize {
    guard::transfer(ep, || {
        // SAFETY: what C gives to a function of an endpoint's table.
        unsafe {
            let endpoint = handle::of::<Endpoint>(ep)?;
            post_message(endpoint, AtomicClass::Plain, message, None, None, flags)
        }
    })
}

unsafe extern "C" fn inject(
    ep: *mut fid_ep,
    pointer: *const c_void,
    count: usize,
    peer: fi_addr_t,
    address: u64,
    key: u64,
    datatype: u32,
    operation: u32,
) -> isize {
    guard::transfer(ep, || {
        // SAFETY: what C gives to a function of an endpoint's table.
        let endpoint = unsafe { handle::of::<Endpoint>(ep)? };
        let live = endpoint.live_transmit()?;
        let (descriptor, context) = (std::ptr::null_mut(), std::ptr::null_mut());
        let operands = Elements::One { pointer: pointer.cast_mut(), count, descriptor };
        let remote = &[fi_rma_ioc { addr: address, count, key }];
        let (class, compares, results, flags) = (AtomicClass::Plain, None, None, 0);
        let atomic = Atomic { class, datatype, operation, operands, compares, results, peer, remote, context, flags };
        // SAFETY: as the caller of the interface promises.
        let mut prepared = unsafe { atomic.prepare(live)? };
        prepared.command.flags = prepared.command.flags | CommandFlags::SILENT;
        prepared.post(live)
    })
}

unsafe extern "C" fn fetch(
    ep: *mut fid_ep,
    pointer: *const c_void,
    count: usize,
    descriptor: *mut c_void,
    result: *mut c_void,
    result_descriptor: *mut c_void,
    peer: fi_addr_t,
    address: u64,
    key: u64,
    datatype: u32,
    operation: u32,
    context: *mut c_void,
) -> isize {
    guard::transfer(ep, || {
        // SAFETY: what C gives to a function of an endpoint's table.
        let endpoint = unsafe { handle::of::<Endpoint>(ep)? };
        let operands = Elements::One { pointer: pointer.cast_mut(), count, descriptor };
        let remote = &[fi_rma_ioc { addr: address, count, key }];
        let results = Some(Elements::One { pointer: result, count, descriptor: result_descriptor });
        let (class, compares, flags) = (AtomicClass::Fetch, None, endpoint.transmit_flags() & !FI_INJECT);
        let atomic = Atomic { class, datatype, operation, operands, compares, results, peer, remote, context, flags };
        // SAFETY: as the caller of the interface promises.
        unsafe { atomic.post(endpoint) }
    })
}

unsafe extern "C" fn fetch_pieces(
    ep: *mut fid_ep,
    pieces: *const fi_ioc,
    descriptors: *mut *mut c_void,
    count: usize,
    result: *mut fi_ioc,
    result_descriptors: *mut *mut c_void,
    result_count: usize,
    peer: fi_addr_t,
    address: u64,
    key: u64,
    datatype: u32,
    operation: u32,
    context: *mut c_void,
) -> isize {
    guard::transfer(ep, || {
        // SAFETY: what C gives to a function of an endpoint's table.
        let endpoint = unsafe { handle::of::<Endpoint>(ep)? };
        let operands = Elements::Many { pieces, descriptors, count };
        // SAFETY: as the caller of the interface promises.
        let remote = &[fi_rma_ioc { addr: address, count: unsafe { total(pieces, count)? }, key }];
        let results = Some(Elements::Many { pieces: result, descriptors: result_descriptors, count: result_count });
        let (class, compares, flags) = (AtomicClass::Fetch, None, endpoint.transmit_flags() & !FI_INJECT);
        let atomic = Atomic { class, datatype, operation, operands, compares, results, peer, remote, context, flags };
        // SAFETY: as the caller of the interface promises.
        unsafe { atomic.post(endpoint) }
    })
}

unsafe extern "C" fn fetch_message(
    ep: *mut fid_ep,
    message: *const fi_msg_atomic,
    result: *mut fi_ioc,
    result_descriptors: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    guard::transfer(ep, || {
        let results = Some(Elements::Many { pieces: result, descriptors: result_descriptors, count: result_count });
        // SAFETY: what C gives to a function of an endpoint's table.
        unsafe {
            let endpoint = handle::of::<Endpoint>(ep)?;
            post_message(endpoint, AtomicClass::Fetch, message, None, results, flags & !FI_INJECT)
        }
    })
}

unsafe extern "C" fn compare(
    ep: *mut fid_ep,
    pointer: *const c_void,
    count: usize,
    descriptor: *mut c_void,
    compare: *const c_void,
    compare_descriptor: *mut c_void,
    result: *mut c_void,
    result_descriptor: *mut c_void,
    peer: fi_addr_t,
    address: u64,
    key: u64,
    datatype: u32,
    operation: u32,
    context: *mut c_void,
) -> isize {
    guard::transfer(ep, || {
        // SAFETY: what C gives to a function of an endpoint's table.
        let endpoint = unsafe { handle::of::<Endpoint>(ep)? };
        let operands = Elements::One { pointer: pointer.cast_mut(), count, descriptor };
        let remote = &[fi_rma_ioc { addr: address, count, key }];
        let compares = Some(Elements::One { pointer: compare.cast_mut(), count, descriptor: compare_descriptor });
        let results = Some(Elements::One { pointer: result, count, descriptor: result_descriptor });
        let (class, flags) = (AtomicClass::Compare, endpoint.transmit_flags() & !FI_INJECT);
        let atomic = Atomic { class, datatype, operation, operands, compares, results, peer, remote, context, flags };
        // SAFETY: as the caller of the interface promises.
        unsafe { atomic.post(endpoint) }
    })
}

unsafe extern "C" fn compare_pieces(
    ep: *mut fid_ep,
    pieces: *const fi_ioc,
    descriptors: *mut *mut c_void,
    count: usize,
    compare: *const fi_ioc,
    compare_descriptors: *mut *mut c_void,
    compare_count: usize,
    result: *mut fi_ioc,
    result_descriptors: *mut *mut c_void,
    result_count: usize,
    peer: fi_addr_t,
    address: u64,
    key: u64,
    datatype: u32,
    operation: u32,
    context: *mut c_void,
) -> isize {
    guard::transfer(ep, || {
        // SAFETY: what C gives to a function of an endpoint's table.
        let endpoint = unsafe { handle::of::<Endpoint>(ep)? };
        let operands = Elements::Many { pieces, descriptors, count };
        // SAFETY: as the caller of the interface promises.
        let remote = &[fi_rma_ioc { addr: address, count: unsafe { total(pieces, count)? }, key }];
        let compares = Some(Elements::Many { pieces: compare, descriptors: compare_descriptors, count: compare_count });
        let results = Some(Elements::Many { pieces: result, descriptors: result_descriptors, count: result_count });
        let (class, flags) = (AtomicClass::Compare, endpoint.transmit_flags() & !FI_INJECT);
        let atomic = Atomic { class, datatype, operation, operands, compares, results, peer, remote, context, flags };
        // SAFETY: as the caller of the interface promises.
        unsafe { atomic.post(endpoint) }
    })
}

unsafe extern "C" fn compare_message(
    ep: *mut fid_ep,
    message: *const fi_msg_atomic,
    compare: *const fi_ioc,
    compare_descriptors: *mut *mut c_void,
    compare_count: usize,
    result: *mut fi_ioc,
    result_descriptors: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    guard::transfer(ep, || {
        let compares = Some(Elements::Many { pieces: compare, descriptors: compare_descriptors, count: compare_count });
        let results = Some(Elements::Many { pieces: result, descriptors: result_descriptors, count: result_count });
        // SAFETY: what C gives to a function of an endpoint's table.
        unsafe {
            let endpoint = handle::of::<Endpoint>(ep)?;
            post_message(endpoint, AtomicClass::Compare, message, compares, results, flags & !FI_INJECT)
        }
    })
}

/// Tells whether an atomic is possible, and on how many elements.
///
/// # Safety
/// `ep` is null or an endpoint; `count` is null or valid.
unsafe fn valid(ep: *mut fid_ep, datatype: u32, operation: u32, count: *mut usize, class: AtomicClass) -> c_int {
    guard::call(|| {
        // SAFETY: as the caller says.
        unsafe { handle::of::<Endpoint>(ep)? };
        let (.., most) = possible(datatype, operation, class)?;
        if !count.is_null() {
            // SAFETY: as the caller says.
            unsafe { *count = most };
        }
        Ok(())
    })
}

unsafe extern "C" fn write_valid(ep: *mut fid_ep, datatype: u32, operation: u32, count: *mut usize) -> c_int {
    // SAFETY: what C gives to a function of an endpoint's table.
    unsafe { valid(ep, datatype, operation, count, AtomicClass::Plain) }
}

unsafe extern "C" fn fetch_valid(ep: *mut fid_ep, datatype: u32, operation: u32, count: *mut usize) -> c_int {
    // SAFETY: what C gives to a function of an endpoint's table.
    unsafe { valid(ep, datatype, operation, count, AtomicClass::Fetch) }
}

unsafe extern "C" fn compare_valid(ep: *mut fid_ep, datatype: u32, operation: u32, count: *mut usize) -> c_int {
    // SAFETY: what C gives to a function of an endpoint's table.
    unsafe { valid(ep, datatype, operation, count, AtomicClass::Compare) }
}

/// `fi_query_atomic`.
pub(crate) unsafe extern "C" fn query(
    domain: *mut fid_domain,
    datatype: u32,
    operation: u32,
    into: *mut fi_atomic_attr,
    flags: u64,
) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of a domain's table.
        let (_, into) = unsafe { (handle::of::<Domain>(domain)?, into.as_mut().ok_or(-FI_EINVAL)?) };
        let class = match flags & !FI_TAGGED {
            0 => AtomicClass::Plain,
            FI_FETCH_ATOMIC => AtomicClass::Fetch,
            FI_COMPARE_ATOMIC => AtomicClass::Compare,
            _ => return Err(-FI_EINVAL),
        };
        if flags & FI_TAGGED != 0 {
            return Err(-FI_EOPNOTSUPP);
        }
        let (_, datatype, most) = possible(datatype, operation, class)?;
        (into.count, into.size) = (most, datatype.bytes());
        Ok(())
    })
}
