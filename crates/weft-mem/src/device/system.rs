//! The host's memory as a kind among others, so that no caller needs to tell it apart.

use super::{Allocation, Capabilities, DeviceError, Direction, Event, Handle, Kind, Operations, Place, Transfer};
use crate::{copy, guarded};

/// The host's memory.
#[derive(Debug)]
pub(super) struct System;

impl Operations for System {
    fn kind(&self) -> Kind {
        Kind::System
    }

    fn devices(&self) -> u32 {
        1
    }

    fn describe(&self, _device: u32) -> String {
        "memory of this process".to_owned()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    unsafe fn copy(&self, device: u32, direction: Direction, pieces: &[Transfer]) -> Result<(), DeviceError> {
        let guarded = Place::new(Kind::System, device).is_guarded();
        for piece in pieces {
            let (to, from) = (piece.to as *mut u8, piece.from as *const u8);
            if guarded {
                // SAFETY: as the caller promised of the other side.
                let copied = unsafe {
                    match direction {
                        Direction::ToDevice => guarded::write(to, from, piece.length),
                        Direction::FromDevice => guarded::read(from, to, piece.length),
                        Direction::Within => return Err(DeviceError::NotSupported),
                    }
                };
                copied.map_err(|_| DeviceError::BadAddress)?;
                continue;
            }
            // SAFETY: as the caller promised.
            unsafe { copy::copy(to, from, piece.length) };
        }
        Ok(())
    }

    unsafe fn start(&self, device: u32, direction: Direction, pieces: &[Transfer]) -> Result<Event, DeviceError> {
        // SAFETY: as the caller promised.
        unsafe { self.copy(device, direction, pieces)? };
        Ok(Event(0))
    }

    fn is_done(&self, _event: &Event) -> Result<bool, DeviceError> {
        Ok(true)
    }

    fn wait(&self, _event: Event) -> Result<(), DeviceError> {
        Ok(())
    }

    fn allocate(&self, _device: u32, _length: usize) -> Result<u64, DeviceError> {
        Err(DeviceError::NotSupported) // `MemoryRegion::alloc_zeroed` does
    }

    unsafe fn free(&self, _device: u32, _address: u64) -> Result<(), DeviceError> {
        Err(DeviceError::NotSupported)
    }

    fn classify(&self, _address: u64) -> Option<Allocation> {
        None
    }

    fn export(&self, _address: u64) -> Result<Handle, DeviceError> {
        Err(DeviceError::NotSupported)
    }

    fn import(&self, _handle: &Handle) -> Result<u64, DeviceError> {
        Err(DeviceError::NotSupported)
    }

    unsafe fn release(&self, _base: u64) -> Result<(), DeviceError> {
        Err(DeviceError::NotSupported)
    }

    unsafe fn register_host(&self, _pointer: *mut u8, _length: usize) -> Result<(), DeviceError> {
        Ok(())
    }

    unsafe fn unregister_host(&self, _pointer: *mut u8) -> Result<(), DeviceError> {
        Ok(())
    }
}
