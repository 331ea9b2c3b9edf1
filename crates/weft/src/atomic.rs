//! Remote atomics on Rust's own number types.

use weft_core::address::PeerId;
use weft_core::atomic::{AtomicCall, AtomicOperation, Datatype};
use weft_core::command::{Command, Operation, PostError};
use weft_core::memory::LocalKey;
use weft_mem::Buffer;

use crate::endpoint::{Endpoint, Payload};
use crate::error::Refused;
use crate::memory_region::RemoteAddress;
use crate::operation::Options;

/// A number that remote atomics work on.
pub trait Element: Copy + sealed::Sealed {
    /// Its code on the wire.
    const DATATYPE: Datatype;
    /// Its bytes.
    const BYTES: usize = size_of::<Self>();
    /// Appends its bytes as they travel.
    fn to_little_endian(self, into: &mut Vec<u8>);
    /// Reads its bytes as they travel; missing ones are 0.
    fn from_little_endian(bytes: &[u8]) -> Self;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! elements {
    ($($type:ident $datatype:ident;)*) => {$(
        impl sealed::Sealed for $type {}
        impl Element for $type {
            const DATATYPE: Datatype = Datatype::$datatype;
            fn to_little_endian(self, into: &mut Vec<u8>) {
                into.extend_from_slice(&self.to_le_bytes());
            }
            fn from_little_endian(bytes: &[u8]) -> $type {
                let mut whole = [0; size_of::<$type>()];
                whole.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
                $type::from_le_bytes(whole)
            }
        }
    )*};
}
elements! {
    u8 Uint8; u16 Uint16; u32 Uint32; u64 Uint64; u128 Uint128;
    i8 Int8; i16 Int16; i32 Int32; i64 Int64; i128 Int128;
    f32 Binary32; f64 Binary64;
}

/// Atomics: each element is updated at once, whoever else updates it by atomics of any endpoint of the target's domain.
/// Arrays are not updated at once. `remote` must be a multiple of the element's size.
impl Endpoint {
    /// Updates a peer's numbers with operands.
    pub fn atomic<T: Element>(
        &self,
        peer: PeerId,
        remote: RemoteAddress,
        operation: AtomicOperation,
        operands: &[T],
    ) -> Result<u64, Refused> {
        self.atomic_with(peer, remote, operation, operands, Options::default())
    }

    /// Updates a peer's numbers with operands.
    pub fn atomic_with<T: Element>(
        &self,
        peer: PeerId,
        remote: RemoteAddress,
        operation: AtomicOperation,
        operands: &[T],
        options: Options,
    ) -> Result<u64, Refused> {
        let call = call::<T>(operation, operands.len())?;
        let payload = bytes_of(&[operands], 0);
        self.post_atomic(Operation::Atomic, peer, remote, call, payload, options)
    }

    /// Updates a peer's numbers with operands; the completion gives the values from before
    /// ([`Completion::values`](crate::Completion::values)). With [`AtomicOperation::Read`] the operands only say how many.
    pub fn fetch_atomic<T: Element>(
        &self,
        peer: PeerId,
        remote: RemoteAddress,
        operation: AtomicOperation,
        operands: &[T],
    ) -> Result<u64, Refused> {
        self.fetch_atomic_with(peer, remote, operation, operands, Options::default())
    }

    /// As [`Endpoint::fetch_atomic`].
    pub fn fetch_atomic_with<T: Element>(
        &self,
        peer: PeerId,
        remote: RemoteAddress,
        operation: AtomicOperation,
        operands: &[T],
        options: Options,
    ) -> Result<u64, Refused> {
        let call = call::<T>(operation, operands.len())?;
        let operands = if operation == AtomicOperation::Read { &[] } else { operands };
        let payload = bytes_of(&[operands], call.bytes().unwrap_or(0));
        self.post_atomic(Operation::FetchAtomic, peer, remote, call, payload, options)
    }

    /// Updates a peer's numbers with operands where the comparison holds; the completion gives the values from before.
    pub fn compare_atomic<T: Element>(
        &self,
        peer: PeerId,
        remote: RemoteAddress,
        operation: AtomicOperation,
        compares: &[T],
        operands: &[T],
    ) -> Result<u64, Refused> {
        self.compare_atomic_with(peer, remote, operation, compares, operands, Options::default())
    }

    /// As [`Endpoint::compare_atomic`].
    pub fn compare_atomic_with<T: Element>(
        &self,
        peer: PeerId,
        remote: RemoteAddress,
        operation: AtomicOperation,
        compares: &[T],
        operands: &[T],
        options: Options,
    ) -> Result<u64, Refused> {
        if compares.len() != operands.len() {
            return Err(PostError::BadBuffer.into());
        }
        let call = call::<T>(operation, operands.len())?;
        let payload = bytes_of(&[compares, operands], call.bytes().unwrap_or(0));
        self.post_atomic(Operation::CompareAtomic, peer, remote, call, payload, options)
    }

    /// Adds to one number; the completion gives the value from before.
    pub fn fetch_add<T: Element>(&self, peer: PeerId, remote: RemoteAddress, operand: T) -> Result<u64, Refused> {
        self.fetch_atomic(peer, remote, AtomicOperation::Sum, &[operand])
    }

    /// Sets one number if it is `compare`; the completion gives the value from before.
    pub fn compare_swap<T: Element>(
        &self,
        peer: PeerId,
        remote: RemoteAddress,
        compare: T,
        operand: T,
    ) -> Result<u64, Refused> {
        self.compare_atomic(peer, remote, AtomicOperation::SwapIfEqual, &[compare], &[operand])
    }

    /// Any atomic by its codes (P-4.7). `payload` is one buffer: room for the results first, then compare values, then
    /// operands; the completion gives it back with the results filled in.
    pub fn atomic_by_code(
        &self,
        operation: Operation,
        peer: PeerId,
        remote: RemoteAddress,
        call: AtomicCall,
        payload: impl Into<Buffer>,
        options: Options,
    ) -> Result<u64, Refused> {
        self.post_atomic(operation, peer, remote, call, payload.into(), options)
    }

    fn post_atomic(
        &self,
        operation: Operation,
        peer: PeerId,
        remote: RemoteAddress,
        call: AtomicCall,
        payload: Buffer,
        options: Options,
    ) -> Result<u64, Refused> {
        let fetches = operation != Operation::Atomic;
        let results = if fetches { call.bytes().unwrap_or(0) } else { 0 };
        let refuse = |error: PostError, buffer| Err(Refused { error: error.into(), buffer: Some(buffer) });
        if options.immediate.is_some() || call.bytes().is_none() {
            return refuse(PostError::NotSupported, payload);
        }
        if payload.len() < results || (fetches && !payload.is_writable()) {
            return refuse(PostError::BadBuffer, payload);
        }
        let mut command = Command::new(operation, self.id(), peer);
        options.apply(&mut command);
        command.atomic = call;
        command.offset = results as u64;
        command.length = (payload.len() - results) as u32;
        (command.address, command.key) = (remote.address, remote.key);
        command.immediate = u64::from(LocalKey::NONE.0);
        self.post(command, Payload::Atomic { buffer: payload, fetches }, options.context)
    }
}

fn call<T: Element>(operation: AtomicOperation, count: usize) -> Result<AtomicCall, Refused> {
    let limit = u64::from(u16::MAX);
    let count = u16::try_from(count).map_err(|_| PostError::TooLong { length: count as u64, limit })?;
    Ok(AtomicCall::new(operation, T::DATATYPE, count))
}

/// Room for results, then the lists one behind the other.
fn bytes_of<T: Element>(lists: &[&[T]], results: usize) -> Buffer {
    let elements = lists.iter().map(|list| list.len()).sum::<usize>();
    let mut bytes = Vec::with_capacity(results + elements * T::BYTES);
    bytes.resize(results, 0);
    lists.iter().copied().flatten().for_each(|element| element.to_little_endian(&mut bytes));
    Buffer::from(bytes)
}
