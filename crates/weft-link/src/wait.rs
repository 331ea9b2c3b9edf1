//! Sleeping until something happens: the few system calls that a driver needs for it, behind safe types.
//!
//! [`WaitSet`] is one descriptor that becomes readable when a link has something, when somebody signals, or when a time
//! has come. Whoever sleeps on it clears it first, then looks once more whether there is something to do, and only then
//! sleeps: a signal that comes after the look ends the sleep at once.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use weft_mem::fork::LocalFd;

/// The processor's own clock, in ticks of no known length: to tell cheaply that little or much time has passed.
#[must_use]
#[inline]
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every processor of this kind has the instruction, and it touches no memory.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is a valid structure that lives through the call.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
        (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
    }
}

/// A flag that another thread can sleep on.
#[derive(Debug)]
pub struct Signal {
    descriptor: LocalFd,
}

impl Signal {
    /// A signal that is not set.
    pub fn new() -> io::Result<Signal> {
        // SAFETY: the call takes no pointers, and gives a new descriptor that nobody else owns, or -1.
        let descriptor = unsafe { owned(libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC))? };
        Ok(Signal { descriptor })
    }

    /// Sets it: its descriptor is readable until [`Signal::clear`].
    pub fn set(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: `one` is readable for its eight bytes. The only failure is a full counter, which is set already.
        unsafe { libc::write(self.descriptor.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Makes it not set.
    pub fn clear(&self) {
        let mut count = [0u8; 8];
        // SAFETY: `count` is writable for its eight bytes. The only failure is a signal that was not set.
        unsafe { libc::read(self.descriptor.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }
}

impl AsFd for Signal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// A clock that rings once.
#[derive(Debug)]
pub struct Timer {
    descriptor: LocalFd,
}

impl Timer {
    /// A timer that is not set.
    pub fn new() -> io::Result<Timer> {
        let flags = libc::TFD_NONBLOCK | libc::TFD_CLOEXEC;
        // SAFETY: the call takes no pointers, and gives a new descriptor that nobody else owns, or -1.
        let descriptor = unsafe { owned(libc::timerfd_create(libc::CLOCK_MONOTONIC, flags))? };
        Ok(Timer { descriptor })
    }

    /// Makes its descriptor readable after this time, and not before; `None`: never.
    pub fn set(&self, after: Option<Duration>) {
        // A time of zero would mean never to the kernel.
        let after = after.map_or(Duration::ZERO, |after| after.max(Duration::from_nanos(1)));
        let setting = libc::itimerspec { it_interval: timespec(Duration::ZERO), it_value: timespec(after) };
        // SAFETY: `setting` is a valid structure that lives through the call; the old setting is not asked for.
        unsafe { libc::timerfd_settime(self.descriptor.as_raw_fd(), 0, &raw const setting, std::ptr::null_mut()) };
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// One descriptor for links, a signal and a timer.
#[derive(Debug)]
pub struct WaitSet {
    set: LocalFd,
    signal: Signal,
    timer: Timer,
}

impl WaitSet {
    /// A set over the descriptors of links. The set does not keep them open: one that is closed leaves the set by itself.
    pub fn new(links: &[BorrowedFd<'_>]) -> io::Result<WaitSet> {
        // SAFETY: the call takes no pointers, and gives a new descriptor that nobody else owns, or -1.
        let set = unsafe { owned(libc::epoll_create1(libc::EPOLL_CLOEXEC))? };
        let wait_set = WaitSet { set, signal: Signal::new()?, timer: Timer::new()? };
        wait_set.add(wait_set.signal.as_fd())?;
        wait_set.add(wait_set.timer.as_fd())?;
        for link in links {
            wait_set.add(*link)?;
        }
        Ok(wait_set)
    }

    /// Makes the set readable until it is cleared.
    pub fn signal(&self) {
        self.signal.set();
    }

    /// Forgets signals and the time, and sets the new time after which the set becomes readable by itself.
    pub fn clear(&self, after: Option<Duration>) {
        self.signal.clear();
        self.timer.set(after);
    }

    /// Sleeps until the set is readable, for `timeout` at most (`None`: for ever). False: the time has passed.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<bool> {
        wait_readable(self.set.as_fd(), timeout)
    }

    fn add(&self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        // SAFETY: both descriptors are open, and `event` is a valid structure that lives through the call.
        let result = unsafe {
            libc::epoll_ctl(self.set.as_raw_fd(), libc::EPOLL_CTL_ADD, descriptor.as_raw_fd(), &raw mut event)
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl AsFd for WaitSet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }
}

/// Sleeps until a descriptor is readable, for `timeout` at most (`None`: for ever). False: the time has passed, or a
/// signal handler ran.
pub fn wait_readable(descriptor: BorrowedFd<'_>, timeout: Option<Duration>) -> io::Result<bool> {
    let mut polled = libc::pollfd { fd: descriptor.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let timeout = timeout.map(timespec);
    let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: one `pollfd` is given as one, the time is null or valid, and the signal mask is left alone.
    let ready = unsafe { libc::ppoll(&raw mut polled, 1, timeout, std::ptr::null()) };
    if ready >= 0 {
        return Ok(ready > 0);
    }
    match io::Error::last_os_error() {
        error if error.kind() == io::ErrorKind::Interrupted => Ok(false),
        error => Err(error),
    }
}

/// Takes a new descriptor.
///
/// # Safety
/// `descriptor` is -1, or open and owned by nobody else.
unsafe fn owned(descriptor: i32) -> io::Result<LocalFd> {
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the caller says so.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }.into())
}

fn timespec(time: Duration) -> libc::timespec {
    let seconds = libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX);
    libc::timespec { tv_sec: seconds, tv_nsec: time.subsec_nanos().into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Option<Duration> = Some(Duration::from_secs(60));
    const NOW: Option<Duration> = Some(Duration::ZERO);

    #[test]
    fn a_signal_lasts_until_it_is_cleared() {
        let set = WaitSet::new(&[]).unwrap();
        assert!(!set.wait(NOW).unwrap());
        set.signal();
        set.signal();
        assert!(set.wait(LONG).unwrap() && set.wait(LONG).unwrap());
        set.clear(None);
        assert!(!set.wait(NOW).unwrap());
    }

    #[test]
    fn a_timer_rings_until_it_is_cleared() {
        let set = WaitSet::new(&[]).unwrap();
        set.clear(Some(Duration::from_millis(1)));
        assert!(set.wait(LONG).unwrap());
        assert!(set.wait(NOW).unwrap());
        set.clear(LONG);
        assert!(!set.wait(NOW).unwrap());
        set.clear(Some(Duration::ZERO));
        assert!(set.wait(LONG).unwrap());
    }

    #[test]
    fn a_link_is_heard() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let set = WaitSet::new(&[socket.as_fd()]).unwrap();
        assert!(!set.wait(NOW).unwrap());
        socket.send_to(b"x", socket.local_addr().unwrap()).unwrap();
        assert!(set.wait(LONG).unwrap());
    }

    #[test]
    fn another_thread_wakes() {
        let set = std::sync::Arc::new(WaitSet::new(&[]).unwrap());
        let sleeper = {
            let set = set.clone();
            std::thread::spawn(move || set.wait(LONG).unwrap())
        };
        set.signal();
        assert!(sleeper.join().unwrap());
    }
}
