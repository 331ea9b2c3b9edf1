//! The boundary to C: no panic crosses it, and results become return values.

use std::panic::{AssertUnwindSafe, catch_unwind};

use weft::{Error, PostError};

use crate::abi::*;
use crate::ep::Endpoint;
use crate::{handle, log};

/// The result of a call: a negative error number of libfabric is the error.
pub(crate) type Result<T = ()> = std::result::Result<T, i32>;

/// Runs the body of a call that returns an `int`.
#[inline]
pub(crate) fn call(body: impl FnOnce() -> Result) -> i32 {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(error)) => error,
        Err(panic) => panicked(&*panic),
    }
}

/// Runs the body of a call that returns a count or an error.
#[inline]
pub(crate) fn count(body: impl FnOnce() -> Result<usize>) -> isize {
    match catch_unwind(AssertUnwindSafe(|| value_of(body()))) {
        Ok(value) => value,
        Err(panic) => panicked(&*panic) as isize,
    }
}

/// What C gets. It is made inside of the guard, out of which all goes through memory.
#[inline(always)]
fn value_of(result: Result<usize>) -> isize {
    match result {
        Ok(count) => count as isize,
        Err(error) => error as isize,
    }
}

/// Runs the body of a call that uses an endpoint. After a panic nobody knows what state it is in: it fails all later calls.
#[inline]
pub(crate) fn transfer(ep: *mut fid_ep, body: impl FnOnce() -> Result<usize>) -> isize {
    match catch_unwind(AssertUnwindSafe(|| value_of(body()))) {
        Ok(value) => value,
        Err(panic) => {
            // SAFETY: what C gave to a function of an endpoint's table.
            if let Ok(endpoint) = unsafe { handle::of::<Endpoint>(ep) } {
                endpoint.fail();
            }
            panicked(&*panic) as isize
        }
    }
}

/// Runs the body of a call that returns any value; `otherwise` after a panic.
#[inline]
pub(crate) fn value<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(value) => value,
        Err(panic) => {
            panicked(&*panic);
            otherwise
        }
    }
}

#[cold]
fn panicked(panic: &(dyn std::any::Any + Send)) -> i32 {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    log::warning!(CORE, "internal error, please report it: {}", text.unwrap_or("no message"));
    -FI_EOTHER
}

/// The error number for an error of the library, which is logged where a number cannot tell enough.
#[cold]
pub(crate) fn errno(error: &Error) -> i32 {
    let number = match error {
        Error::Post(error) => match error {
            PostError::QueueFull | PostError::CompletionQueueFull => return -FI_EAGAIN,
            PostError::NoSuchEndpoint => FI_EOPBADSTATE,
            PostError::NoSuchPeer | PostError::BadBuffer => FI_EINVAL,
            PostError::TooLong { .. } => FI_EMSGSIZE,
            PostError::NotSupported => FI_EOPNOTSUPP,
            PostError::NoSuchClaim => FI_ENOMSG,
        },
        Error::MemoryTableFull => return -FI_EAGAIN,
        Error::Operation(failure) => crate::cq::failure(*failure),
        Error::Memory(_) => FI_EFAULT,
        Error::Protocol(_) | Error::CountedFailure => FI_EOTHER,
        Error::AddressVectorFull => FI_ENOMEM,
        Error::OtherDomain => FI_EDOMAIN,
        Error::Register(_) => FI_EINVAL,
        Error::TimedOut => FI_ETIMEDOUT,
        Error::LinkFailed(_) => FI_ENETDOWN,
        Error::DeviceFailed | Error::Device(_) => FI_EIO,
        Error::System { source, .. } => source.raw_os_error().unwrap_or(FI_EIO),
        _ => FI_EOTHER,
    };
    log::info!(CORE, "{error}");
    -number
}

#[cfg(test)]
mod tests {
    use std::ptr::null_mut;

    use super::*;

    #[test]
    fn after_a_panic_an_endpoint_takes_no_more_calls() {
        // SAFETY: the calls of a program, in their order; what they give is checked, and stays open.
        unsafe {
            let (node, version) = (c"127.0.0.1".as_ptr(), FI_VERSION(1, 17));
            let mut info = null_mut();
            let found =
                crate::info::getinfo(version, node, std::ptr::null(), FI_SOURCE, std::ptr::null(), &raw mut info);
            assert_eq!(found, 0);
            let (mut fabric, mut domain, mut cq, mut av, mut ep) =
                (null_mut(), null_mut(), null_mut(), null_mut(), null_mut());
            assert_eq!(crate::fabric::open((*info).fabric_attr, &raw mut fabric, null_mut()), 0);
            assert_eq!(crate::domain::open(fabric, info, &raw mut domain, null_mut()), 0);
            let mut table: fi_av_attr = std::mem::zeroed();
            assert_eq!(crate::av::open(domain, &raw mut table, &raw mut av, null_mut()), 0);
            assert_eq!(crate::cq::open(domain, null_mut(), &raw mut cq, null_mut()), 0);
            assert_eq!(crate::ep::open(domain, info, &raw mut ep, null_mut()), 0);
            let fid = &*(*ep).fid.ops;
            assert_eq!(fid.bind.unwrap()(ep.cast(), av.cast(), 0), 0);
            assert_eq!(fid.bind.unwrap()(ep.cast(), cq.cast(), FI_TRANSMIT | FI_RECV), 0);
            assert_eq!(fid.control.unwrap()(ep.cast(), FI_ENABLE, null_mut()), 0);
            let receive = || (*(*ep).msg).recv.unwrap()(ep, null_mut(), 0, null_mut(), FI_ADDR_UNSPEC, null_mut());
            assert_eq!(receive(), 0);
            assert_eq!(transfer(ep, || panic!("for the test")), -FI_EOTHER as isize);
            assert_eq!(receive(), -FI_EOTHER as isize);
            assert_eq!(call(|| panic!("for the test")), -FI_EOTHER);
        }
    }
}
