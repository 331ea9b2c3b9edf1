//! Operations on several ranges of a peer's memory, and atomics whose values lie anywhere.

use std::array;

use weft_core::atomic::{AtomicCall, AtomicClass, AtomicOperation};
use weft_core::command::{Command, CommandFlags, Level, Operation, PostError};
use weft_core::limits::ATOMIC_MAX_BYTES;
use weft_core::memory::LocalKey;
use weft_mem::Buffer;

use crate::endpoint::{Endpoint, Payload};
use crate::error::Refused;
use crate::limits::RANGES_MAX;

/// A range of a peer's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RemoteRange {
    /// Where it begins.
    pub address: u64,
    /// The key of its registration.
    pub key: u64,
    /// Bytes.
    pub length: u64,
}

/// Posts a write or read of which `offset` and `length` name a part of `buffer`, to or from several ranges of the peer's
/// memory, one behind the other; they have `length` bytes together. All of it is posted or nothing, and it has one
/// completion, when the last range is done; of several failures it tells the first. Immediate data comes when all bytes
/// are there. It cannot be cancelled.
pub fn post_vector(
    endpoint: &Endpoint,
    command: &Command,
    buffer: Buffer,
    ranges: &[RemoteRange],
) -> Result<(), Refused> {
    let refuse = |error: PostError, buffer| Err(Refused { error: error.into(), buffer: Some(buffer) });
    let mut command = *command;
    (command.endpoint, command.local) = (endpoint.id(), LocalKey::NONE);
    if !matches!(command.operation, Operation::Write | Operation::Read) {
        return refuse(PostError::NotSupported, buffer);
    }
    let ranges = match Ranges::new(ranges, u64::from(command.length)) {
        Ok(ranges) => ranges,
        Err(error) => return refuse(error, buffer),
    };
    match ranges.only() {
        Some(range) => {
            (command.address, command.key) = (range.address, range.key);
            endpoint.post(command, Payload::Part(buffer), Some(command.context)).map(|_| ())
        }
        None => endpoint.post_parts(command, Payload::Part(buffer), ranges.all()),
    }
}

/// Posts an atomic whose operands, compare values and results are in buffers of their own, each in one piece or many,
/// aligned or not, of the host or a device. What is sent is copied before this returns; the results are in their buffer
/// when the completion comes, which gives that buffer back. `command.atomic` says how many elements; its address and key,
/// where they are.
///
/// [`AtomicOperation::Read`] needs no operands, only [`Operation::CompareAtomic`] compare values, and all but
/// [`Operation::Atomic`] a buffer for results.
pub fn post_atomic(
    endpoint: &Endpoint,
    command: &Command,
    operands: Option<&Buffer>,
    compares: Option<&Buffer>,
    results: Option<Buffer>,
) -> Result<(), Refused> {
    let length = command.atomic.bytes().unwrap_or(0) as u64;
    let range = RemoteRange { address: command.address, key: command.key, length };
    post_atomic_vector(endpoint, command, operands, compares, results, &[range])
}

/// As [`post_atomic`], on elements in several ranges, which have as many bytes as all elements together. All of it is
/// posted or nothing, and it has one completion.
pub fn post_atomic_vector(
    endpoint: &Endpoint,
    command: &Command,
    operands: Option<&Buffer>,
    compares: Option<&Buffer>,
    results: Option<Buffer>,
    ranges: &[RemoteRange],
) -> Result<(), Refused> {
    let mut command = *command;
    (command.endpoint, command.local) = (endpoint.id(), LocalKey::NONE);
    (command.offset, command.immediate) = (0, u64::from(LocalKey::NONE.0));
    command.flags = command.flags.without(CommandFlags::IMMEDIATE);
    let mut bytes = [0; ATOMIC_MAX_BYTES as usize];
    let (length, ranges) = match gather(&command, operands, compares, results.as_ref(), ranges, &mut bytes) {
        Ok(gathered) => gathered,
        Err(error) => return Err(Refused { error: error.into(), buffer: results }),
    };
    let bytes = bytes.get(..length).unwrap_or_default();
    let payload = match results {
        Some(results) => {
            // Done is what has its results.
            command.level = command.level.max(Level::Transmitted);
            Payload::Fetch { bytes, results }
        }
        None => Payload::Copy(bytes),
    };
    match ranges.only() {
        Some(range) => {
            (command.address, command.key) = (range.address, range.key);
            endpoint.post(command, payload, Some(command.context)).map(|_| ())
        }
        None => {
            command.length = length as u32;
            endpoint.post_parts(command, payload, ranges.all())
        }
    }
}

/// Puts what an atomic sends where it is sent from: of each range the compare values, then the operands. Gives how many
/// bytes they are.
fn gather(
    command: &Command,
    operands: Option<&Buffer>,
    compares: Option<&Buffer>,
    results: Option<&Buffer>,
    ranges: &[RemoteRange],
    into: &mut [u8],
) -> Result<(usize, Ranges), PostError> {
    let class = match command.operation {
        Operation::Atomic => AtomicClass::Plain,
        Operation::FetchAtomic => AtomicClass::Fetch,
        Operation::CompareAtomic => AtomicClass::Compare,
        _ => return Err(PostError::NotSupported),
    };
    let call = command.atomic;
    let (operation, datatype) = call.check(class).map_err(|_| PostError::NotSupported)?;
    let (elements, payload) = (call.bytes().unwrap_or(0), call.payload_bytes().unwrap_or(0));
    if elements.max(payload) > into.len() {
        return Err(PostError::TooLong { length: elements.max(payload) as u64, limit: into.len() as u64 });
    }
    let operands = operands.filter(|_| operation != AtomicOperation::Read);
    let has = |buffer: Option<&Buffer>, needed: bool| match buffer {
        Some(buffer) => needed && buffer.len() == elements,
        None => !needed,
    };
    let all = has(operands, operation != AtomicOperation::Read)
        && has(compares, class == AtomicClass::Compare)
        && has(results, class != AtomicClass::Plain);
    let whole = ranges.iter().all(|range| range.length.is_multiple_of(datatype.bytes() as u64));
    if call.count == 0 || !all || !whole {
        return Err(PostError::BadBuffer);
    }
    let ranges = Ranges::new(ranges, elements as u64)?;
    let (mut from, mut to) = (0, 0);
    for range in ranges.all() {
        let length = range.length as usize;
        for values in [compares, operands].into_iter().flatten() {
            let place = into.get_mut(to..to + length).ok_or(PostError::BadBuffer)?;
            values.read(from, place).map_err(|_| PostError::BadBuffer)?;
            to += length;
        }
        from += length;
    }
    Ok((to, ranges))
}

/// The ranges that have bytes, which must have so many together; one that has none if all are so.
pub(crate) fn checked_ranges(ranges: &[RemoteRange], bytes: u64) -> Result<Vec<RemoteRange>, PostError> {
    Ok(Ranges::new(ranges, bytes)?.all().to_vec())
}

/// The buffer of an atomic whose values are read when it is posted: results, compare values, operands, which the command is
/// told. Compare values and operands of several ranges would have to lie in turns.
pub(crate) fn atomic_buffer(
    command: &mut Command,
    operands: Option<Buffer>,
    compares: Option<Buffer>,
    results: Option<Buffer>,
    ranges: usize,
) -> Result<Option<Buffer>, PostError> {
    let class = match command.operation {
        Operation::Atomic => AtomicClass::Plain,
        Operation::FetchAtomic => AtomicClass::Fetch,
        Operation::CompareAtomic if ranges <= 1 => AtomicClass::Compare,
        _ => return Err(PostError::NotSupported),
    };
    let (operation, _) = command.atomic.check(class).map_err(|_| PostError::NotSupported)?;
    let elements = command.atomic.bytes().unwrap_or(0);
    let operands = operands.filter(|_| operation != AtomicOperation::Read);
    let has = |buffer: &Option<Buffer>, needed: bool| match buffer {
        Some(buffer) => needed && buffer.len() == elements,
        None => !needed,
    };
    let all = has(&operands, operation != AtomicOperation::Read)
        && has(&compares, class == AtomicClass::Compare)
        && has(&results, class != AtomicClass::Plain);
    if !all {
        return Err(PostError::BadBuffer);
    }
    command.flags = command.flags.without(CommandFlags::IMMEDIATE);
    command.offset = results.as_ref().map_or(0, Buffer::len) as u64;
    command.length = command.atomic.payload_bytes().unwrap_or(0) as u32;
    let pieces: Vec<Buffer> = [results, compares, operands].into_iter().flatten().collect();
    Ok((!pieces.is_empty()).then(|| pieces.into()))
}

/// Ranges that have bytes; one that has none if all are so.
struct Ranges {
    ranges: [RemoteRange; RANGES_MAX],
    length: usize,
}

impl Ranges {
    fn new(ranges: &[RemoteRange], bytes: u64) -> Result<Ranges, PostError> {
        let first = ranges.first().ok_or(PostError::BadBuffer)?;
        let total = ranges.iter().try_fold(0u64, |total, range| total.checked_add(range.length));
        if total != Some(bytes) {
            return Err(PostError::BadBuffer);
        }
        if bytes == 0 {
            return Ok(Ranges { ranges: [*first; RANGES_MAX], length: 1 });
        }
        let mut kept = ranges.iter().copied().filter(|range| range.length > 0);
        let found: [RemoteRange; RANGES_MAX] = array::from_fn(|_| kept.next().unwrap_or_default());
        if kept.next().is_some() {
            return Err(PostError::TooLong { length: ranges.len() as u64, limit: RANGES_MAX as u64 });
        }
        let length = found.iter().filter(|range| range.length > 0).count();
        Ok(Ranges { ranges: found, length })
    }

    fn all(&self) -> &[RemoteRange] {
        self.ranges.get(..self.length).unwrap_or_default()
    }

    fn only(&self) -> Option<RemoteRange> {
        self.ranges.first().copied().filter(|_| self.length == 1)
    }
}

/// The parts of a command, one for each range.
pub(crate) fn parts<'a>(
    whole: &'a Command,
    ranges: &'a [RemoteRange],
) -> Result<impl Iterator<Item = Command> + use<'a>, PostError> {
    let element = AtomicCall { count: 1, ..whole.atomic };
    let atomic = matches!(whole.operation, Operation::Atomic | Operation::FetchAtomic | Operation::CompareAtomic);
    let sizes = if atomic { element.bytes().zip(element.payload_bytes()) } else { Some((1, 1)) };
    let (each, sent) = sizes.filter(|(each, _)| *each > 0).ok_or(PostError::NotSupported)?;
    let (mut offset, mut results) = (whole.offset, whole.results_offset());
    let last = ranges.len().saturating_sub(1);
    let in_between = whole.flags.without(CommandFlags::IMMEDIATE | CommandFlags::SOLICITED | CommandFlags::FENCE);
    Ok(ranges.iter().enumerate().map(move |(index, range)| {
        let mut part = Command { address: range.address, key: range.key, offset, ..*whole };
        let count = range.length / each as u64;
        part.length = (count * sent as u64) as u32;
        if atomic {
            part.atomic.count = count as u16;
            part.immediate = whole.immediate & u64::from(u32::MAX) | results << 32;
        }
        offset += u64::from(part.length);
        results += range.length;
        part.flags = in_between | CommandFlags::MORE;
        if index == 0 && whole.has(CommandFlags::FENCE) {
            part.flags = part.flags | CommandFlags::FENCE;
        }
        if index == last {
            // Who is told of the last part may look at the others.
            let told = whole.has(CommandFlags::IMMEDIATE) || whole.has(CommandFlags::SOLICITED);
            let fence = if told { CommandFlags::FENCE } else { CommandFlags::NONE };
            part.flags = whole.flags.without(CommandFlags::FENCE) | fence;
        }
        part
    }))
}
