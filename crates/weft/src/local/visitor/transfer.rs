//! Copies that this node does in the memory of a peer, by cross-memory attach.

use std::sync::atomic::Ordering;

use weft_core::delivery::Destination;
use weft_core::delivery::{Delivery, Touched};
use weft_core::event::Failure;
use weft_core::memory::{Access, Fault, Memory};
use weft_link::shm::Broken;
use weft_mem::HostMemory;
use weft_mem::attach::{self, TransferError};

use super::super::record::{self, Response};
use super::super::{LocalStatistics, WORD_CAN_ATTACH};
use super::{Copying, Offer, Visitor, local};
use crate::limits::LOCAL_ATTACH_BYTES;

impl Visitor {
    /// One piece of the oldest copy.
    pub(super) fn transfer(
        &mut self,
        delivery: &mut Delivery<HostMemory>,
        statistics: &mut LocalStatistics,
    ) -> Result<(), Broken> {
        let Some(mut transfer) = self.transfers.pop_front() else { return Ok(()) };
        let pid = self.channel.peer_pid();
        let done = transfer.done;
        let copied = match &transfer.what {
            Copying::Offer(index, wanted) => match self.offers.get(*index) {
                Some(Offer { id: Some(id), spans: Some(spans), length, .. }) if id == wanted => {
                    let part = (u64::from(*length) - done).min(LOCAL_ATTACH_BYTES);
                    match delivery.destination(*id, done, part) {
                        Ok(Destination::Memory(memory, piece)) => attach::fetch(pid, spans, done, memory, &[piece]),
                        // Nobody wants it any more.
                        Ok(Destination::Bytes(_) | Destination::Nowhere) => Ok((u64::from(*length) - done) as usize),
                        Err(fault) => Err(TransferError::Local(fault)),
                    }
                }
                _ => return Ok(()),
            },
            Copying::Write(write, spans) => {
                let part = (u64::from(write.length) - done).min(LOCAL_ATTACH_BYTES);
                let at = write.address.wrapping_add(done);
                let memory = delivery.memory_mut();
                match memory.remote(write.key, at, part, Access::REMOTE_WRITE) {
                    Ok(piece) => attach::fetch(pid, spans, done, memory, &[piece]),
                    Err(fault) => Err(TransferError::Local(fault)),
                }
            }
            Copying::Read(read, spans) => {
                let part = (u64::from(read.length) - done).min(LOCAL_ATTACH_BYTES);
                let memory = delivery.memory();
                match memory.remote(read.key, read.address.wrapping_add(done), part, Access::REMOTE_READ) {
                    Ok(piece) => attach::store(pid, spans, done, memory, &[piece]),
                    Err(fault) => Err(TransferError::Local(fault)),
                }
            }
        };
        let length = match &transfer.what {
            Copying::Offer(index, _) => self.offers.get(*index).map_or(0, |offer| offer.length),
            Copying::Write(write, _) => write.length,
            Copying::Read(read, _) => read.length,
        };
        transfer.done += *copied.as_ref().unwrap_or(&0) as u64;
        if copied.is_ok() && transfer.done < u64::from(length) {
            self.transfers.push_front(transfer);
            return Ok(());
        }
        if matches!(copied, Err(TransferError::NotPermitted | TransferError::System(_))) {
            return self.withdraw_attach(delivery, transfer.what);
        }
        statistics.attached += u64::from(copied.is_ok());
        let settled = delivery.memory_mut().settle();
        let failed = copied.err().or_else(|| settled.err().map(TransferError::Local)).map(|error| match error {
            TransferError::Local(fault) => (fault, true),
            _ => (Fault::Failed, false),
        });
        match transfer.what {
            Copying::Offer(index, _) => {
                let offer = self.offers.remove(index);
                let Some(Offer { id: Some(id), token, .. }) = offer else { return Ok(()) };
                let (here, there) = match failed {
                    None => (Ok(()), Ok(())),
                    Some((fault, true)) => (Err(local(fault)), Err(Failure::OperationFailed)),
                    Some((_, false)) => (Err(Failure::Aborted), Err(Failure::OperationFailed)),
                };
                delivery.end(id, here);
                self.answer(token, there)
            }
            Copying::Write(write, _) => self.written(delivery, &write, failed.map_or(Ok(()), |(fault, _)| Err(fault))),
            Copying::Read(read, _) => {
                if failed.is_none() {
                    delivery.count_remote(self.arrival.endpoint, read.key, Touched::READ);
                }
                self.answer(read.token, failed.map_or(Ok(()), |(fault, _)| Err(record::failure_of(fault))))
            }
        }
    }

    /// The system lets us copy no more in the peer's memory, though it did (its process gave up its rights): the ring takes
    /// over, for what was under way too.
    fn withdraw_attach(&mut self, delivery: &mut Delivery<HostMemory>, what: Copying) -> Result<(), Broken> {
        self.channel.shared_word(WORD_CAN_ATTACH).store(0, Ordering::SeqCst);
        let token = match what {
            Copying::Offer(index, _) => {
                let Some(offer) = self.offers.get_mut(index) else { return Ok(()) };
                offer.spans = None;
                return self.pull(delivery, index);
            }
            Copying::Write(write, _) => {
                if write.immediate.is_some() {
                    delivery.unreserve_remote_write(self.arrival.endpoint);
                }
                write.token
            }
            Copying::Read(read, _) => read.token,
        };
        self.respond(Response::Again.record(u64::from(token), 0))
    }
}
