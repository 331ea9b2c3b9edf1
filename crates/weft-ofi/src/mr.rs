//! Memory regions.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, OnceLock};

use libc::iovec;
use weft::raw::{Addressing, Buffer, Memory};
use weft::{Access, MemoryRegion, Registrable};

use crate::abi::*;
use crate::domain::Domain;
use crate::guard::{self, Result};
use crate::handle::{self, Noun};
use crate::log;

/// A region. Its descriptor, which calls name for local memory, is its handle.
pub(crate) struct Region {
    domain: Arc<Domain>,
    region: OnceLock<MemoryRegion>,
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
        // SAFETY: descriptors are what `fi_mr_desc` gave: handles of regions.
        let region = unsafe { handle::of::<Region>(descriptor.cast()) };
        region.is_ok_and(|region| region.region.get().is_some_and(|region| !region.place().is_host()))
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
        let region = region.region.get().ok_or(-FI_EINVAL)?;
        // SAFETY: the caller of the interface leaves the memory to the NIC until the completion.
        unsafe { Buffer::from_device_raw(region.place(), pointer.cast(), length, writable) }.map_err(|_| -FI_EINVAL)
    }
}

static FID_OPERATIONS: fi_ops = fi_ops {
    size: size_of::<fi_ops>(),
    close: Some(close),
    bind: Some(bind),
    control: Some(control),
    ops_open: Some(crate::no::ops_open),
    tostr: None,
    ops_set: None,
};

pub(crate) static OPERATIONS: fi_ops_mr = fi_ops_mr {
    size: size_of::<fi_ops_mr>(),
    reg: Some(register),
    regv: Some(register_pieces),
    regattr: Some(register_with_attributes),
};

/// Registers memory of C.
///
/// # Safety
/// `fid` is null or a domain; the memory is the caller's until the region is closed.
unsafe fn open(
    fid: *mut fid,
    pointer: *const c_void,
    length: usize,
    access: u64,
    key: u64,
    context: *mut c_void,
    into: *mut *mut fid_mr,
) -> Result {
    // SAFETY: as the caller says.
    let domain = unsafe { handle::of_fid::<Domain>(fid)? };
    let known = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
    if into.is_null() || access & !known != 0 || length == 0 {
        return Err(-FI_EINVAL);
    }
    // SAFETY: as the caller says.
    let memory = unsafe { Memory::from_raw(pointer.cast_mut().cast(), length) };
    let mut granted = Access(0);
    if access & FI_REMOTE_READ != 0 {
        granted = granted | Access::REMOTE_READ;
    }
    if access & FI_REMOTE_WRITE != 0 {
        granted = granted | Access::REMOTE_WRITE;
    }
    if access & (FI_REMOTE_READ | FI_REMOTE_WRITE) == FI_REMOTE_READ | FI_REMOTE_WRITE {
        granted = granted | Access::REMOTE_ATOMIC;
    }
    let mut registrable = Registrable::from(memory);
    if domain.mr_mode & FI_MR_VIRT_ADDR != 0 {
        registrable = registrable.addressed(Addressing::Virtual);
    }
    if domain.mr_mode & FI_MR_PROV_KEY == 0 {
        registrable = registrable.with_key(key);
    }
    let region = domain.nic.register(registrable, granted).map_err(|error| match error {
        weft::Error::Register(weft_mem::RegisterError::KeyInUse) => {
            log::info!(MR, "the key {key:#x} is in use");
            -FI_ENOKEY
        }
        error => guard::errno(&error),
    })?;
    let key = region.key();
    let face =
        fid_mr { fid: handle::fid_of(FI_CLASS_MR, context, &FID_OPERATIONS), mem_desc: std::ptr::null_mut(), key };
    let region = Region { domain: domain.clone(), region: OnceLock::from(region) };
    let opened = handle::open(face, Arc::new(region));
    // SAFETY: it was just opened, and `into` was checked.
    unsafe {
        (*opened).mem_desc = opened.cast();
        *into = opened;
    }
    Ok(())
}

unsafe extern "C" fn register(
    fid: *mut fid,
    pointer: *const c_void,
    length: usize,
    access: u64,
    _offset: u64,
    key: u64,
    _flags: u64,
    into: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: what C gives to a function of a domain's table.
    guard::call(|| unsafe { open(fid, pointer, length, access, key, context, into) })
}

unsafe extern "C" fn register_pieces(
    fid: *mut fid,
    pieces: *const iovec,
    count: usize,
    access: u64,
    _offset: u64,
    key: u64,
    _flags: u64,
    into: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    guard::call(|| {
        if count != 1 || pieces.is_null() {
            return Err(-FI_EINVAL);
        }
        // SAFETY: what C gives to a function of a domain's table.
        unsafe { open(fid, (*pieces).iov_base, (*pieces).iov_len, access, key, context, into) }
    })
}

unsafe extern "C" fn register_with_attributes(
    fid: *mut fid,
    attributes: *const fi_mr_attr,
    _flags: u64,
    into: *mut *mut fid_mr,
) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of a domain's table.
        unsafe {
            let attributes = attributes.as_ref().ok_or(-FI_EINVAL)?;
            let pieces = attributes.mr_iov.mr_iov;
            if attributes.iov_count != 1 || pieces.is_null() {
                return Err(-FI_EINVAL);
            }
            let (access, key) = (attributes.access, attributes.requested_key);
            open(fid, (*pieces).iov_base, (*pieces).iov_len, access, key, attributes.context, into)
        }
    })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: what C gives to a function of a region's table.
    guard::call(|| unsafe { handle::close::<Region>(fid) })
}

unsafe extern "C" fn bind(fid: *mut fid, to: *mut fid, _flags: u64) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of a region's table.
        let (_, other) = unsafe { (handle::of_fid::<Region>(fid)?, to.as_ref().ok_or(-FI_EINVAL)?) };
        match other.fclass {
            FI_CLASS_EP => Ok(()),
            _ => Err(-FI_EINVAL),
        }
    })
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, _argument: *mut c_void) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of a region's table.
        unsafe { handle::of_fid::<Region>(fid)? };
        match command {
            FI_ENABLE => Ok(()),
            _ => Err(-FI_ENOSYS),
        }
    })
}
