//! What peers do to memory of ours: writes, reads and atomics, wherever they come from.

use super::arrival::Payload;
use super::{Delivery, Envelope, Touched};
use crate::command::EndpointId;
use crate::event::{Completion, CompletionFlags, CompletionKind};
use crate::memory::{Access, Fault, LocalKey, Memory};

impl<M: Memory> Delivery<M> {
    /// Whether a peer may do `access` to all of a range of a region.
    pub fn check_remote(&self, key: u64, address: u64, length: u64, access: Access) -> Result<(), Fault> {
        self.memory.remote(key, address, length, access).map(|_| ())
    }

    /// Puts bytes of a peer into a region.
    pub fn write_region(&mut self, key: u64, address: u64, payload: &impl Payload<M>) -> Result<(), Fault> {
        let (mut done, length) = (0, payload.length());
        while done < length {
            let left = (length - done) as u64;
            let at = address.checked_add(done as u64).ok_or(Fault::OutOfBounds)?;
            let piece = self.memory.remote(key, at, left, Access::REMOTE_WRITE)?.first(left);
            if piece.length == 0 {
                return Err(Fault::OutOfBounds);
            }
            payload.place(&mut self.memory, piece, done)?;
            done += piece.length as usize;
        }
        Ok(())
    }

    /// The CRC-32C of a range of a region.
    pub fn checksum_of(&self, key: u64, address: u64, length: u64) -> Result<u32, Fault> {
        let (mut crc, mut at) = (0, 0);
        while at < length {
            let address = address.checked_add(at).ok_or(Fault::OutOfBounds)?;
            let piece = self.memory.remote(key, address, length - at, Access::REMOTE_READ)?;
            if piece.length == 0 {
                return Err(Fault::OutOfBounds);
            }
            crc = self.memory.crc32c(crc, piece)?;
            at += piece.length;
        }
        Ok(crc)
    }

    /// Keeps a place for the completion of a peer's write with immediate data. False: bring it again later.
    pub fn reserve_remote_write(&mut self, endpoint: EndpointId) -> bool {
        let queue = self.receive_queue_of(endpoint);
        self.events.reserve(queue)
    }

    /// Gives the place back.
    pub fn unreserve_remote_write(&mut self, endpoint: EndpointId) {
        let queue = self.receive_queue_of(endpoint);
        self.unreserve(queue);
    }

    /// A peer has written into our memory with this key. With immediate data the user is told, for which a place was
    /// reserved.
    pub fn remote_write(&mut self, envelope: &Envelope, key: u64) {
        self.count_remote(envelope.endpoint, key, Touched::WRITTEN);
        if envelope.immediate.is_none() {
            return;
        }
        let (queue, peer) = (self.receive_queue_of(envelope.endpoint), self.peer_of(envelope));
        self.events.push(
            queue,
            &Completion {
                context: 0,
                kind: CompletionKind::RemoteWrite,
                flags: CompletionFlags::NONE,
                result: Ok(()),
                length: u64::from(envelope.length),
                tag: 0,
                immediate: envelope.immediate,
                source: Some(envelope.source),
                peer,
                local: LocalKey::NONE,
                results: LocalKey::NONE,
                offset: 0,
            },
        );
    }
}
