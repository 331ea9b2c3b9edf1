//! Bytes of local buffers into rings and out of them.

use weft_core::command::Command;
use weft_core::memory::{Fault, LocalKey, Memory};
use weft_link::limits::{INLINE_MAX_BYTES, PAYLOAD_MAX_BYTES};
use weft_link::shm::{PushError, Record, Sender};
use weft_mem::{HostMemory, Segment, SegmentMut};

use super::handle;
use crate::limits::{
    LOCAL_DEVICE_EAGER_MAX_BYTES, LOCAL_DEVICE_PARTS_MAX, LOCAL_EAGER_MAX_BYTES, LOCAL_FRAGMENT_BYTES,
};

/// Why bytes did not get into the ring.
pub(super) enum Unsent {
    Full,
    Broken,
    /// Our own buffer cannot be read.
    Fault,
}

impl From<PushError> for Unsent {
    fn from(error: PushError) -> Unsent {
        match error {
            PushError::Full => Unsent::Full,
            PushError::Broken | PushError::TooLong => Unsent::Broken,
        }
    }
}

/// Puts a part of a local buffer into the ring.
#[inline]
pub(super) fn push_local(
    sender: &mut Sender,
    record: &Record,
    memory: &HostMemory,
    local: LocalKey,
    offset: u64,
    length: usize,
) -> Result<(), Unsent> {
    if length <= INLINE_MAX_BYTES {
        let mut bytes = [0; INLINE_MAX_BYTES];
        let payload = bytes.get_mut(..length).unwrap_or_default();
        read_local(memory, local, offset, payload).map_err(|_| Unsent::Fault)?;
        return Ok(sender.push(record, payload)?);
    }
    debug_assert!(length <= PAYLOAD_MAX_BYTES, "a payload fits the ring");
    let mut claim = sender.claim(length)?;
    copy_local(memory, local, offset, claim.segment()).map_err(|_| Unsent::Fault)?;
    claim.commit(record);
    Ok(())
}

/// The longest part in which the bytes of a command go through the ring. A device takes long to begin to copy, and then is
/// fast.
#[inline]
pub(super) fn fragment_bytes(memory: &HostMemory, command: &Command) -> u32 {
    let on_device = memory.uses_devices() && handle::is_on_device(memory, command);
    if on_device { PAYLOAD_MAX_BYTES as u32 } else { LOCAL_FRAGMENT_BYTES as u32 }
}

/// Whether a message is short enough to go before it is wanted.
#[inline]
pub(super) fn goes_at_once(memory: &HostMemory, command: &Command) -> bool {
    let length = command.length as usize;
    let on_device = || memory.uses_devices() && handle::is_on_device(memory, command);
    length <= LOCAL_EAGER_MAX_BYTES || length <= LOCAL_DEVICE_EAGER_MAX_BYTES && on_device()
}

/// Puts the next parts of a message in device memory into the ring, in one copy; how many bytes they have. The record of
/// each is made with how many are before it.
pub(super) fn push_device(
    sender: &mut Sender,
    memory: &HostMemory,
    command: &Command,
    from: u64,
    left: u32,
    record: impl Fn(u32) -> Record,
) -> Result<u32, Unsent> {
    const PART: u32 = PAYLOAD_MAX_BYTES as u32;
    let mut count = (left / PART).min(LOCAL_DEVICE_PARTS_MAX);
    // Fewer where there is not as much room: the ring is not full then, and the target has something to do.
    while count > 1 {
        match sender.claim_parts(PAYLOAD_MAX_BYTES, count) {
            Ok(mut parts) => {
                copy_local(memory, command.local, from, parts.segment()).map_err(|_| Unsent::Fault)?;
                parts.commit(|part| record(part * PART));
                return Ok(count * PART);
            }
            Err(PushError::Full) => count /= 2,
            Err(error) => return Err(error.into()),
        }
    }
    let part = left.min(PART);
    push_local(sender, &record(0), memory, command.local, from, part as usize)?;
    Ok(part)
}

/// Copies a part of a local buffer out.
#[inline]
pub(super) fn read_local(memory: &HostMemory, local: LocalKey, offset: u64, into: &mut [u8]) -> Result<(), Fault> {
    let mut done = 0;
    while done < into.len() {
        let left = (into.len() - done) as u64;
        let piece = memory.local(local, offset + done as u64, left)?;
        let end = done + piece.length as usize;
        match into.get_mut(done..end) {
            Some(part) if !part.is_empty() => memory.read(piece, part)?,
            _ => return Err(Fault::OutOfBounds),
        }
        done = end;
    }
    Ok(())
}

/// Copies a part of a local buffer into shared memory.
pub(super) fn copy_local(
    memory: &HostMemory,
    local: LocalKey,
    mut offset: u64,
    mut into: SegmentMut<'_>,
) -> Result<(), Fault> {
    while !into.is_empty() {
        let piece = memory.local(local, offset, into.len() as u64)?;
        if piece.length == 0 {
            return Err(Fault::OutOfBounds);
        }
        let (part, rest) = into.split_at(piece.length as usize).ok_or(Fault::OutOfBounds)?;
        memory.copy_out(piece, part)?;
        offset += piece.length;
        into = rest;
    }
    Ok(())
}

/// Copies shared memory into a part of a local buffer.
pub(super) fn write_local(
    memory: &mut HostMemory,
    local: LocalKey,
    offset: u64,
    from: Segment<'_>,
) -> Result<(), Fault> {
    let mut done = 0;
    while done < from.len() {
        let piece = memory.local(local, offset + done as u64, (from.len() - done) as u64)?;
        let length = piece.length as usize;
        let part = from.part(done, length).filter(|part| !part.is_empty()).ok_or(Fault::OutOfBounds)?;
        memory.copy_in(piece, part)?;
        done += length;
    }
    Ok(())
}
