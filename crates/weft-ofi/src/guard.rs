//! The boundary to C: no panic crosses it, and results become return values.

use std::panic::{AssertUnwindSafe, catch_unwind};

use weft::{Error, PostError};

use crate::abi::*;
use crate::log;

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
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(count)) => count as isize,
        Ok(Err(error)) => error as isize,
        Err(panic) => panicked(&*panic) as isize,
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
