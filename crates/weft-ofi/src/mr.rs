//! Memory regions.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use libc::iovec;
use weft::device::{Kind, Place};
use weft::raw::{Addressing, Buffer, Memory};
use weft::{Access, Counter, MemoryRegion, Registrable};

use crate::abi::*;
use crate::cntr::Count;
use crate::domain::Domain;
use crate::guard::{self, Result};
use crate::handle::{self, Noun};
use crate::log;

/// A region. Its descriptor, which calls name for local memory, is its handle.
pub(crate) struct Region {
    region: MemoryRegion,
    /// Count what peers write and read.
    counters: Mutex<[Option<Counter>; 2]>,
    domain: Arc<Domain>,
}

// SAFETY: `fid_mr` begins with its `fid`.
unsafe impl Noun for Region {
    type Face = fid_mr;
    const MARK: u64 = u64::from_be_bytes(*b"weft-mr ");
}

impl Region {
    /// Whether a descriptor names memory of a device.
    #[inline]
    pub(crate) fn is_on_device(descriptor: *mut c_void) -> bool {
        if descriptor.is_null() {
            return false;
        }
        // SAFETY: descriptors are what `fi_mr_desc` gave: handles of regions.
        let region = unsafe { handle::of::<Region>(descriptor.cast()) };
        region.is_ok_and(|region| !region.region.place().is_host())
    }

    /// A part of a device's memory as buffer.
    pub(crate) fn device_buffer(
        descriptor: *mut c_void,
        pointer: *mut c_void,
        length: usize,
        writable: bool,
    ) -> Result<Buffer> {
        // SAFETY: as above.
        let region = unsafe { handle::of::<Region>(descriptor.cast())? };
        let place = region.region.place();
        if place.is_guarded() {
            // What need not be mapped for peers must be for the caller's own operations.
            // SAFETY: the caller of the interface leaves the memory to the NIC until the completion.
            return Ok(unsafe { Buffer::from_raw(pointer.cast(), length) });
        }
        // SAFETY: as above.
        unsafe { Buffer::from_device_raw(place, pointer.cast(), length, writable) }.map_err(|error| {
            log::info!(MR, "{error}");
            -FI_EINVAL
        })
    }
}

static FID_OPERATIONS: fi_ops = crate::no::operations(close, bind, control);

pub(crate) static OPERATIONS: fi_ops_mr = fi_ops_mr {
    size: size_of::<fi_ops_mr>(),
    reg: Some(register),
    regv: Some(register_pieces),
    regattr: Some(register_with_attributes),
};

/// What a call asks to register.
struct Wanted {
    pointer: *mut u8,
    length: usize,
    access: u64,
    offset: u64,
    key: u64,
    flags: u64,
    context: *mut c_void,
    /// Where the memory is; `None`: to be found out.
    place: Option<Place>,
}

impl Wanted {
    /// The memory as the NIC knows it.
    ///
    /// # Safety
    /// It is the caller's until the region is closed.
    unsafe fn memory(&self, domain: &Domain) -> Result<Memory> {
        let place = match self.place {
            Some(place) => place,
            // Without the capability nobody has device memory.
            None if domain.caps & FI_HMEM == 0 => Place::HOST,
            None => Place::of(self.pointer),
        };
        // SAFETY: as the caller says.
        unsafe {
            if !place.is_host() {
                return Memory::from_device_raw(place, self.pointer, self.length, true).map_err(|error| {
                    log::info!(MR, "{error}");
                    -FI_EINVAL
                });
            }
            // Without this mode programs may register what they will map later, or never; and nobody has all mapped.
            Ok(match domain.mr_mode & FI_MR_ALLOCATED != 0 && !self.pointer.is_null() {
                true => Memory::from_raw(self.pointer, self.length),
                false => Memory::from_raw_unmapped(self.pointer, self.length, true),
            })
        }
    }

    /// Registers it.
    ///
    /// # Safety
    /// `fid` is null or a domain; the memory is the caller's until the region is closed.
    unsafe fn open(&self, fid: *mut fid, into: *mut *mut fid_mr) -> Result {
        // SAFETY: as the caller says.
        let domain = unsafe { handle::of_fid::<Domain>(fid)? };
        let known = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
        if into.is_null() || self.access & !known != 0 || self.length == 0 || self.offset != 0 {
            return Err(-FI_EINVAL);
        }
        // Only who registers everything begins there.
        if self.pointer.is_null() && self.length != usize::MAX {
            return Err(-FI_EINVAL);
        }
        if self.flags & !(FI_RMA_EVENT | FI_HMEM_DEVICE_ONLY | FI_HMEM_HOST_ALLOC) != 0 {
            log::info!(MR, "flags {:#x} are not supported", self.flags);
            return Err(-FI_EINVAL);
        }
        // SAFETY: as the caller says.
        let memory = unsafe { self.memory(domain)? };
        let mut granted = Access::NONE;
        if self.access & FI_REMOTE_READ != 0 {
            granted = granted | Access::REMOTE_READ;
        }
        if self.access & FI_REMOTE_WRITE != 0 {
            granted = granted | Access::REMOTE_WRITE;
        }
        if self.access & (FI_REMOTE_READ | FI_REMOTE_WRITE) != 0 {
            granted = granted | Access::REMOTE_ATOMIC;
        }
        let mut registrable = Registrable::from(memory);
        if domain.mr_mode & FI_MR_VIRT_ADDR != 0 {
            registrable = registrable.addressed(Addressing::Virtual);
        }
        if domain.mr_mode & FI_MR_PROV_KEY == 0 {
            registrable = registrable.with_key(self.key);
        }
        let region = domain.nic.register(registrable, granted).map_err(|error| match error {
            weft::Error::Register(weft_mem::RegisterError::KeyInUse) => {
                log::info!(MR, "the key {:#x} is in use: choose another", self.key);
                -FI_ENOKEY
            }
            error => guard::errno(&error),
        })?;
        let face = fid_mr {
            fid: handle::fid_of(FI_CLASS_MR, self.context, &FID_OPERATIONS),
            mem_desc: std::ptr::null_mut(),
            key: region.key(),
        };
        let region = Region { region, counters: Mutex::default(), domain: domain.clone() };
        let opened = handle::open(face, Arc::new(region));
        // SAFETY: it was just opened, and `into` was checked.
        unsafe {
            (*opened).mem_desc = opened.cast();
            *into = opened;
        }
        Ok(())
    }
}

unsafe extern "C" fn register(
    fid: *mut fid,
    pointer: *const c_void,
    length: usize,
    access: u64,
    offset: u64,
    key: u64,
    flags: u64,
    into: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    let pointer = pointer.cast_mut().cast();
    let wanted = Wanted { pointer, length, access, offset, key, flags, context, place: None };
    // SAFETY: what C gives to a function of a domain's table.
    guard::call(|| unsafe { wanted.open(fid, into) })
}

unsafe extern "C" fn register_pieces(
    fid: *mut fid,
    pieces: *const iovec,
    count: usize,
    access: u64,
    offset: u64,
    key: u64,
    flags: u64,
    into: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of a domain's table.
        unsafe {
            let piece = only(pieces, count)?;
            let (pointer, length) = (piece.iov_base.cast(), piece.iov_len);
            Wanted { pointer, length, access, offset, key, flags, context, place: None }.open(fid, into)
        }
    })
}

/// Regions have one piece (`mr_iov_limit`).
///
/// # Safety
/// There are as many pieces as told.
unsafe fn only(pieces: *const iovec, count: usize) -> Result<iovec> {
    if count != 1 || pieces.is_null() {
        log::info!(MR, "a region of {count} pieces is not supported: register each");
        return Err(-FI_EINVAL);
    }
    // SAFETY: as the caller says.
    Ok(unsafe { *pieces })
}

unsafe extern "C" fn register_with_attributes(
    fid: *mut fid,
    attributes: *const fi_mr_attr,
    flags: u64,
    into: *mut *mut fid_mr,
) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of a domain's table. Fields that came later are not read.
        unsafe {
            if attributes.is_null() || flags & FI_MR_DMABUF != 0 {
                return Err(-FI_EINVAL);
            }
            let domain = handle::of_fid::<Domain>(fid)?;
            let piece = only((*attributes).mr_iov.mr_iov, (*attributes).iov_count)?;
            // The interface of memory is told by those who use the capability; others may leave it as it was.
            let place = match (*attributes).iface {
                _ if domain.caps & FI_HMEM == 0 => None,
                FI_HMEM_SYSTEM => Some(Place::HOST),
                FI_HMEM_CUDA => Some(Place::new(Kind::Cuda, (*attributes).device.cuda as u32)),
                FI_HMEM_ROCR => Some(Place::new(Kind::Rocm, (*attributes).device.reserved as u32)),
                FI_HMEM_ZE => Some(Place::new(Kind::LevelZero, (*attributes).device.ze as u32)),
                other => {
                    log::info!(MR, "memory of interface {other} is not supported");
                    return Err(-FI_ENOSYS);
                }
            };
            let wanted = Wanted {
                pointer: piece.iov_base.cast(),
                length: piece.iov_len,
                access: (*attributes).access,
                offset: (*attributes).offset,
                key: (*attributes).requested_key,
                flags,
                context: (*attributes).context,
                place,
            };
            wanted.open(fid, into)
        }
    })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: what C gives to a function of a region's table.
    guard::call(|| unsafe { handle::close::<Region>(fid) })
}

/// Binds a counter of what peers do, or the endpoint that they do it through. Peers reach a region through every endpoint
/// of its domain, so the latter changes nothing.
unsafe extern "C" fn bind(fid: *mut fid, to: *mut fid, flags: u64) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of a region's table.
        let (region, other) = unsafe { (handle::of_fid::<Region>(fid)?, to.as_ref().ok_or(-FI_EINVAL)?) };
        match other.fclass {
            FI_CLASS_EP | FI_CLASS_SEP | FI_CLASS_RX_CTX => Ok(()),
            FI_CLASS_CNTR => {
                if flags & (FI_REMOTE_WRITE | FI_REMOTE_READ) == 0 || flags & !(FI_REMOTE_WRITE | FI_REMOTE_READ) != 0 {
                    return Err(-FI_EINVAL);
                }
                // SAFETY: the class says what it is.
                let count = unsafe { handle::of_fid::<Count>(to)? };
                let mut counters = region.counters.lock().unwrap_or_else(PoisonError::into_inner);
                let [writes, reads] = &mut *counters;
                if flags & FI_REMOTE_WRITE != 0 {
                    *writes = Some(count.counter.clone());
                }
                if flags & FI_REMOTE_READ != 0 {
                    *reads = Some(count.counter.clone());
                }
                region.region.count(writes.clone(), reads.clone()).map_err(|error| guard::errno(&error))
            }
            _ => Err(-FI_EINVAL),
        }
    })
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, argument: *mut c_void) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of a region's table.
        let region = unsafe { handle::of_fid::<Region>(fid)? };
        match command {
            // Regions are there from the beginning, and what they name is looked at when it is used.
            FI_ENABLE | FI_REFRESH => Ok(()),
            FI_GET_RAW_MR => {
                // SAFETY: the argument of this command.
                unsafe {
                    let raw = argument.cast::<fi_mr_raw_attr>().as_mut().ok_or(-FI_EINVAL)?;
                    let size = raw.key_size.as_mut().ok_or(-FI_EINVAL)?;
                    if std::mem::replace(size, size_of::<u64>()) < size_of::<u64>() || raw.raw_key.is_null() {
                        return Err(-FI_ETOOSMALL);
                    }
                    raw.raw_key.cast::<u64>().write_unaligned(region.region.key());
                    if !raw.base_addr.is_null() {
                        let addressed = region.domain.mr_mode & FI_MR_VIRT_ADDR != 0;
                        *raw.base_addr = if addressed { region.region.address() } else { 0 };
                    }
                }
                Ok(())
            }
            _ => Err(-FI_ENOSYS),
        }
    })
}

/// Makes a usable key of one that a peer has got as raw bytes: they are the key.
///
/// # Safety
/// `map` is null, or as the command's argument.
pub(crate) unsafe fn map_raw(map: *const fi_mr_map_raw) -> Result {
    // SAFETY: as the caller says.
    unsafe {
        let map = map.as_ref().ok_or(-FI_EINVAL)?;
        if map.raw_key.is_null() || map.key.is_null() || map.flags != 0 || map.key_size != size_of::<u64>() {
            return Err(-FI_EINVAL);
        }
        *map.key = map.raw_key.cast::<u64>().read_unaligned();
        Ok(())
    }
}
