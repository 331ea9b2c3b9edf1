//! What a peer does to our memory: writes, reads, atomics.

use weft_core::atomic::AtomicClass;
use weft_core::delivery::Envelope;
use weft_core::delivery::{Delivery, Touched};
use weft_core::limits::ATOMIC_MAX_BYTES;
use weft_core::memory::{Access, Fault, Memory};
use weft_link::limits::PAYLOAD_MAX_BYTES;
use weft_link::shm::{Broken, PushError, Record};
use weft_mem::{HostMemory, Segment};

use super::super::LocalStatistics;
use super::super::record::{self, Response};
use super::{Copying, Incoming, Lane, Outcome, Read, Transfer, Visitor, Write};
use crate::limits::{LOCAL_FRAGMENT_BYTES, LOCAL_QUESTIONS_MAX};

impl Visitor {
    pub(super) fn write(
        &mut self,
        delivery: &mut Delivery<HostMemory>,
        lane: Lane,
        record: &Record,
    ) -> Result<Outcome, Broken> {
        let write = Write {
            token: record::token_of(record),
            key: record.words[3],
            address: record.words[0],
            length: record::length_of(record),
            immediate: record::immediate_of(record),
        };
        let by_spans = record.flags & record::SPANS != 0;
        let part = self.payload(lane)?.len() as u32;
        if !matches!(self.incoming.of(lane), Incoming::Nothing)
            || !by_spans && (part > write.length || part == 0 && write.length > 0)
        {
            return Err(Broken);
        }
        let allowed = delivery.memory().remote(write.key, write.address, u64::from(write.length), Access::REMOTE_WRITE);
        if let Err(fault) = allowed {
            if !by_spans && part < write.length {
                *self.incoming.of(lane) = Incoming::Skip { left: write.length - part };
            }
            self.answer(write.token, Err(record::failure_of(fault)))?;
            return Ok(Outcome::Taken);
        }
        // Nonsense is found before a place is reserved.
        let spans = if by_spans { Some(self.spans(lane, write.length)?) } else { None };
        if self.transfers.len() >= LOCAL_QUESTIONS_MAX {
            return Ok(Outcome::NoRoom);
        }
        if write.immediate.is_some() && !delivery.reserve_remote_write(self.arrival.endpoint) {
            return Ok(Outcome::Blocked);
        }
        if let Some(spans) = spans {
            self.transfers.push_back(Transfer { done: 0, what: Copying::Write(write, spans) });
            return Ok(Outcome::Taken);
        }
        if write.length == 0 {
            self.written(delivery, &write, Ok(()))?;
            return Ok(Outcome::Taken);
        }
        *self.incoming.of(lane) = Incoming::Write { write, received: 0 };
        self.more(delivery, lane)
    }

    /// A write is complete, or has failed.
    pub(super) fn written(
        &mut self,
        delivery: &mut Delivery<HostMemory>,
        write: &Write,
        result: Result<(), Fault>,
    ) -> Result<(), Broken> {
        // Nobody is told before the bytes are where they belong, in a device's memory too.
        let result = result.and_then(|()| delivery.memory_mut().settle());
        if result.is_ok() {
            let arrival = Envelope { immediate: write.immediate, length: write.length, ..self.arrival };
            delivery.remote_write(&arrival, write.key);
        } else if write.immediate.is_some() {
            delivery.unreserve_remote_write(self.arrival.endpoint);
        }
        self.answer(write.token, result.map_err(record::failure_of))
    }

    pub(super) fn read(
        &mut self,
        delivery: &mut Delivery<HostMemory>,
        lane: Lane,
        record: &Record,
    ) -> Result<Outcome, Broken> {
        let (token, length) = (record::token_of(record), record::length_of(record));
        let read = Read { token, key: record.words[3], address: record.words[0], length, sent: 0 };
        let spans = if record.flags & record::SPANS != 0 { Some(self.spans(lane, length)?) } else { None };
        if self.reads.len() + self.transfers.len() >= LOCAL_QUESTIONS_MAX {
            return Ok(Outcome::NoRoom);
        }
        let allowed = delivery.memory().remote(read.key, read.address, u64::from(length), Access::REMOTE_READ);
        if let Err(fault) = allowed {
            self.answer(token, Err(record::failure_of(fault)))?;
            return Ok(Outcome::Taken);
        }
        match spans {
            Some(spans) => self.transfers.push_back(Transfer { done: 0, what: Copying::Read(read, spans) }),
            None if length == 0 => {
                delivery.count_remote(self.arrival.endpoint, read.key, Touched::READ);
                self.answer(token, Ok(()))?;
            }
            None => self.reads.push_back(read),
        }
        Ok(Outcome::Taken)
    }

    /// Puts what is read into the ring, as far as there is room.
    pub(super) fn send_reads(
        &mut self,
        delivery: &mut Delivery<HostMemory>,
        statistics: &mut LocalStatistics,
    ) -> Result<bool, Broken> {
        let mut moved = false;
        while self.answers.is_empty()
            && let Some(read) = self.reads.front_mut()
        {
            let (memory, at) = (delivery.memory(), read.address.wrapping_add(u64::from(read.sent)));
            let left = u64::from(read.length - read.sent);
            let of = memory.remote(read.key, at, left, Access::REMOTE_READ);
            let fragment = match of.and_then(|of| memory.place(of, Access::REMOTE_READ)) {
                Ok(place) if !place.is_host() && !place.is_guarded() => {
                    self.channel.make_known(place.kind);
                    PAYLOAD_MAX_BYTES
                }
                _ => LOCAL_FRAGMENT_BYTES,
            };
            let part = (read.length - read.sent).min(fragment as u32);
            let mut claim = match self.channel.responses().claim(part as usize) {
                Ok(claim) => claim,
                Err(PushError::Full) => return Ok(moved),
                Err(PushError::Broken | PushError::TooLong) => return Err(Broken),
            };
            moved = true;
            let copied = memory
                .remote(read.key, at, u64::from(part), Access::REMOTE_READ)
                .and_then(|piece| memory.copy_out(piece, claim.segment()));
            let token = read.token;
            if let Err(fault) = copied {
                self.reads.pop_front();
                self.answer(token, Err(record::failure_of(fault)))?;
                continue;
            }
            claim.commit(&Response::Data.record(u64::from(token), u64::from(read.sent)));
            statistics.fragments += 1;
            read.sent += part;
            if read.sent == read.length {
                let key = read.key;
                self.reads.pop_front();
                delivery.count_remote(self.arrival.endpoint, key, Touched::READ);
            }
        }
        Ok(moved)
    }

    pub(super) fn atomic(
        &mut self,
        delivery: &mut Delivery<HostMemory>,
        lane: Lane,
        record: &Record,
    ) -> Result<Outcome, Broken> {
        let token = record::token_of(record);
        // The room for the answer comes first: an atomic must not be executed twice.
        match self.channel.responses().claim(ATOMIC_MAX_BYTES as usize) {
            Ok(_room) => {}
            Err(PushError::Full) => return Ok(Outcome::NoRoom),
            Err(PushError::Broken | PushError::TooLong) => return Err(Broken),
        }
        let (call, class) = record::unpack_atomic(record.words[1]);
        let (class, fetches) = match class {
            0 => (AtomicClass::Plain, false),
            1 => (AtomicClass::Fetch, true),
            2 => (AtomicClass::Compare, true),
            _ => return Err(Broken),
        };
        let mut bytes = [0; ATOMIC_MAX_BYTES as usize];
        let payload = self.payload(lane)?;
        let operands = bytes.get_mut(..payload.len()).ok_or(Broken)?;
        let _same_length = payload.copy_to(operands);
        let mut results = [0; ATOMIC_MAX_BYTES as usize];
        let outcome = call.check(class).and_then(|_| {
            let element_bytes = call.bytes().filter(|bytes| *bytes > 0).ok_or(Fault::OutOfBounds)?;
            if call.payload_bytes() != Some(operands.len()) {
                return Err(Fault::OutOfBounds);
            }
            let results = results.get_mut(..if fetches { element_bytes } else { 0 }).ok_or(Fault::OutOfBounds)?;
            let (compares, operands) = match class {
                AtomicClass::Compare => operands.split_at(operands.len() / 2),
                _ => (&[] as &[u8], &*operands),
            };
            let memory = delivery.memory_mut();
            let piece = memory.remote(record.words[3], record.words[0], element_bytes as u64, Access::REMOTE_ATOMIC)?;
            memory.atomic(piece, call, operands, compares, results)?;
            memory.settle()?;
            Ok(element_bytes)
        });
        match outcome {
            Ok(element_bytes) => {
                delivery.count_remote(self.arrival.endpoint, record.words[3], Touched::by_atomic(call, fetches));
                if !fetches {
                    self.answer(token, Ok(()))?;
                    return Ok(Outcome::Taken);
                }
                let results = results.get(..element_bytes).unwrap_or_default();
                match self.channel.responses().push(&Response::Result.record(u64::from(token), 0), results) {
                    Ok(()) => Ok(Outcome::Taken),
                    Err(_) => Err(Broken),
                }
            }
            Err(fault) => self.answer(token, Err(record::failure_of(fault))).map(|()| Outcome::Taken),
        }
    }
}

/// Puts a part of a write where it belongs.
pub(super) fn write_remote(
    memory: &mut HostMemory,
    key: u64,
    address: u64,
    offset: u64,
    from: Segment<'_>,
) -> Result<(), Fault> {
    let mut done = 0;
    while done < from.len() {
        let at = address.checked_add(offset + done as u64).ok_or(Fault::OutOfBounds)?;
        let piece = memory.remote(key, at, (from.len() - done) as u64, Access::REMOTE_WRITE)?;
        let length = piece.length as usize;
        let part = from.part(done, length).filter(|part| !part.is_empty()).ok_or(Fault::OutOfBounds)?;
        memory.copy_in(piece, part)?;
        done += length;
    }
    Ok(())
}
