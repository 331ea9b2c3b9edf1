//! Counters: how much ended, without telling what.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use weft_core::event::{Counter as Count, CounterId};

use crate::domain::Domain;
use crate::driver::{Alarm, Awaited, Progress, Waiter};
use crate::error::{Error, Result};

/// Counts operations that ended. An endpoint can have one for each kind of operation
/// ([`EndpointOptions`](crate::EndpointOptions)). Clones name the same counter.
///
/// ```
/// use std::time::{Duration, Instant};
/// use weft::EndpointOptions;
/// # let domain = weft::Domain::udp("127.0.0.1:0")?;
/// let received = domain.counter();
/// let endpoint = domain.open_endpoint(EndpointOptions { receive_counter: Some(received.clone()), ..Default::default() })?;
/// let myself = domain.addresses().insert(endpoint.address())?;
/// endpoint.receive(vec![0; 16])?;
/// endpoint.inject(myself, b"note")?;
/// received.wait(1, Some(Duration::from_secs(10)))?;
/// assert_eq!((received.value(), received.errors()), (1, 0));
/// # Ok::<(), weft::Error>(())
/// ```
#[derive(Clone)]
pub struct Counter {
    inner: Arc<Inner>,
}

struct Inner {
    id: CounterId,
    waiter: Waiter,
    alarm: Alarm,
    /// The value that was last read.
    last: AtomicU64,
    domain: Domain,
}

impl Counter {
    pub(crate) fn open(domain: &Domain) -> Counter {
        let id = domain.nic().lock().engine.delivery_mut().open_counter();
        let (waiter, alarm) = (Waiter::default(), Alarm::default());
        Counter { inner: Arc::new(Inner { id, waiter, alarm, last: AtomicU64::new(0), domain: domain.clone() }) }
    }

    /// Operations that succeeded.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.count().value
    }

    /// Operations that failed.
    #[must_use]
    pub fn errors(&self) -> u64 {
        self.count().errors
    }

    /// Sets the value; errors stay.
    pub fn set(&self, value: u64) {
        self.change(|count| count.value = value);
    }

    /// Adds to the value.
    pub fn add(&self, more: u64) {
        self.change(|count| count.value = count.value.wrapping_add(more));
    }

    /// Sets the errors; the value stays.
    pub fn set_errors(&self, errors: u64) {
        self.change(|count| count.errors = errors);
    }

    /// Adds to the errors.
    pub fn add_errors(&self, more: u64) {
        self.change(|count| count.errors = count.errors.wrapping_add(more));
    }

    /// Value and errors as they were at the same time.
    #[must_use]
    pub fn read(&self) -> (u64, u64) {
        let count = self.count();
        (count.value, count.errors)
    }

    /// Sleeps until the value is at least this, for `timeout` at most (`None`: for ever). Fails when an operation does, and
    /// with [`Error::Interrupted`] when [`signal`](Counter::signal) ends it.
    pub fn wait(&self, value: u64, timeout: Option<Duration>) -> Result<()> {
        let errors = self.errors();
        let awaited = Awaited::Count { counter: self.inner.id, value, errors };
        // Threads that wait for different values must not forget each other's signals, so each has its own.
        let waiter = Waiter::default();
        let start = Instant::now();
        let reached = waiter.wait(self.domain().nic(), awaited, Some(&self.inner.alarm), timeout, || {
            let count = self.count();
            self.domain().nic().lock().check_devices()?;
            if count.value >= value {
                Ok(Some(true))
            } else if count.errors != errors {
                Ok(Some(false))
            } else {
                self.domain().nic().lock().check().map(|()| None)
            }
        });
        waiter.close(&mut self.domain().nic().lock());
        match reached? {
            Some(true) => Ok(()),
            Some(false) => Err(Error::CountedFailure),
            None if timeout.is_some_and(|timeout| start.elapsed() >= timeout) => Err(Error::TimedOut),
            None => Err(Error::Interrupted),
        }
    }

    /// A descriptor to sleep on, as [`CompletionQueue::descriptor`](crate::CompletionQueue::descriptor).
    pub fn descriptor(&self) -> Result<BorrowedFd<'_>> {
        self.inner.waiter.descriptor(self.domain().nic())
    }

    /// Makes ready for sleep on the descriptor until the value is at least this, or an error is counted. False: it is,
    /// do not sleep.
    pub fn try_wait(&self, value: u64) -> Result<bool> {
        let awaited = Awaited::Count { counter: self.inner.id, value, errors: self.errors() };
        self.inner.waiter.try_wait(self.domain().nic(), awaited, &self.inner.alarm)
    }

    /// Ends waits of other threads early, as [`CompletionQueue::signal`](crate::CompletionQueue::signal).
    pub fn signal(&self) {
        let (id, mut core) = (self.inner.id, self.domain().nic().lock());
        let sleeps = |awaited| matches!(awaited, Awaited::Count { counter, .. } if counter == id);
        self.inner.alarm.ring(&mut core, sleeps);
    }

    /// The domain it belongs to.
    #[must_use]
    pub fn domain(&self) -> &Domain {
        &self.inner.domain
    }

    pub(crate) fn id(&self) -> CounterId {
        self.inner.id
    }

    fn change(&self, change: impl FnOnce(&mut Count)) {
        let mut core = self.domain().nic().lock();
        let mut count = core.engine.delivery().counter(self.inner.id);
        change(&mut count);
        core.engine.delivery_mut().set_counter(self.inner.id, count);
        core.notify();
    }

    fn count(&self) -> Count {
        let nic = self.domain().nic();
        let mut core = nic.lock();
        let manual = nic.progress_mode() == Progress::Manual;
        if manual {
            // Who reads it comes again soon, or makes ready for sleep, which looks at everything.
            core.progress();
        }
        core.settle();
        let (count, busy) = (core.engine.delivery().counter(self.inner.id), manual && core.was_busy);
        let asked_link = core.asked_link;
        drop(core);
        // Who reads the same value over and over waits for another.
        if busy || self.inner.last.swap(count.value, Ordering::Relaxed) != count.value {
            nic.backoff.reset();
        } else {
            let value = count.value.saturating_add(1);
            let awaited = Awaited::Count { counter: self.inner.id, value, errors: count.errors };
            nic.backoff.found_nothing(nic, awaited, asked_link);
        }
        count
    }
}

impl fmt::Debug for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Counter({} of {:?})", self.inner.id.0, self.inner.domain)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let mut core = self.domain.nic().lock();
        self.waiter.close(&mut core);
        core.close_counter(self.id);
    }
}
