//! Operations on borrowed memory.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use weft_core::address::PeerId;
use weft_core::event::QueueId;
use weft_mem::Buffer;
use weft_mem::borrowed::{self, Loans};

use crate::driver::{Awaited, Waiter};
use crate::endpoint::Endpoint;
use crate::error::{Error, Refused, Result};
use crate::memory_region::RemoteAddress;
use crate::operation::{Options, ReceiveOptions};

/// Operations whose memory is borrowed from the caller ([`Endpoint::scope`]).
///
/// Their completions go to the endpoint's queues like all others, but without a buffer. Contexts are always chosen by
/// the library here.
#[derive(Debug)]
pub struct Scope<'scope, 'env> {
    endpoint: &'scope Endpoint,
    loans: &'scope Loans<'env>,
    begun: &'scope Begun,
}

/// The contexts of what was begun.
#[derive(Debug, Default)]
struct Begun {
    contexts: Mutex<Vec<u64>>,
}

impl Begun {
    fn contexts(&self) -> Vec<u64> {
        self.contexts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Endpoint {
    /// Runs `f`, which can begin operations on memory that it borrows. Leaving it in whatever way, also by a panic, first
    /// cancels what can be cancelled and then waits until all of them are done; to have them succeed, call
    /// [`Scope::wait`] before.
    ///
    /// ```
    /// # let domain = weft::Domain::udp("127.0.0.1:0")?;
    /// # let queue = domain.completion_queue(64);
    /// # let endpoint = domain.endpoint(&queue)?;
    /// # let myself = domain.addresses().insert(endpoint.address())?;
    /// let words = String::from("no copy, no allocation");
    /// let mut buffer = [0; 64];
    /// endpoint.scope(|scope| {
    ///     scope.receive(&mut buffer)?;
    ///     scope.send(myself, words.as_bytes())?;
    ///     scope.wait(None)
    /// })?;
    /// assert_eq!(&buffer[..words.len()], words.as_bytes());
    /// # Ok::<(), weft::Error>(())
    /// ```
    ///
    /// Memory that does not outlive the call cannot be lent:
    /// ```compile_fail,E0597
    /// # let domain = weft::Domain::udp("127.0.0.1:0").unwrap();
    /// # let endpoint = domain.endpoint(&domain.completion_queue(64)).unwrap();
    /// endpoint.scope(|scope| {
    ///     let mut inside = [0; 64];
    ///     scope.receive(&mut inside).unwrap();
    /// });
    /// ```
    /// nor can it be used while it is lent:
    /// ```compile_fail,E0502
    /// # let domain = weft::Domain::udp("127.0.0.1:0").unwrap();
    /// # let endpoint = domain.endpoint(&domain.completion_queue(64)).unwrap();
    /// let mut buffer = [0; 64];
    /// endpoint.scope(|scope| {
    ///     scope.receive(&mut buffer).unwrap();
    ///     println!("{:?}", buffer);
    /// });
    /// ```
    pub fn scope<'env, R>(&self, f: impl for<'scope> FnOnce(&Scope<'scope, 'env>) -> R) -> R {
        let begun = Begun::default();
        let waiter = Waiter::default();
        let settle = |outstanding: &borrowed::Outstanding| {
            for context in begun.contexts() {
                self.cancel(context);
            }
            // Failing to sleep is no reason to leave: the memory is still in use.
            let _ = self.settle(&waiter, outstanding, SETTLE_STEP);
        };
        borrowed::scope(settle, |loans| f(&Scope { endpoint: self, loans, begun: &begun }))
    }

    /// Takes completions aside until all loans are back; false: the time has passed.
    fn settle(&self, waiter: &Waiter, outstanding: &borrowed::Outstanding, timeout: Duration) -> Result<bool> {
        let nic = self.domain().nic();
        let queues = self.queues();
        let settled = waiter.wait(nic, Awaited::Fresh(queues), None, Some(timeout), || {
            let mut core = nic.lock_progressed();
            queues.into_iter().flatten().for_each(|queue| core.stash(queue));
            // Receives that serve other endpoints too are reported there.
            let others: Vec<QueueId> = core.engine.delivery().sharing_queues(self.id()).collect();
            others.into_iter().for_each(|queue| core.stash(queue));
            Ok((outstanding.count() == 0).then_some(()))
        });
        // Nobody may sleep on it again, and an operation without completion wakes nobody: it must not stay armed.
        waiter.close(&mut nic.lock());
        Ok(settled?.is_some())
    }
}

/// How long one look lasts: operations without completion end without waking anybody.
const SETTLE_STEP: Duration = Duration::from_millis(1);

impl<'scope, 'env> Scope<'scope, 'env> {
    /// Waits until everything that was begun in the scope is done, for `timeout` at most (`None`: for ever).
    pub fn wait(&self, timeout: Option<Duration>) -> Result<()> {
        let start = std::time::Instant::now();
        let waiter = Waiter::default();
        loop {
            let left = timeout.map_or(SETTLE_STEP, |timeout| timeout.saturating_sub(start.elapsed()).min(SETTLE_STEP));
            if self.endpoint.settle(&waiter, self.loans.outstanding(), left)? {
                return Ok(());
            }
            if timeout.is_some_and(|timeout| start.elapsed() >= timeout) {
                return Err(Error::TimedOut);
            }
        }
    }

    /// As [`Endpoint::send`].
    pub fn send(&self, peer: PeerId, bytes: &'env [u8]) -> Result<u64> {
        self.send_with(peer, bytes, Options::default())
    }

    /// As [`Endpoint::send_with`].
    pub fn send_with(&self, peer: PeerId, bytes: &'env [u8], options: Options) -> Result<u64> {
        let options = Options { context: None, ..options };
        self.begin(self.endpoint.send_with(peer, self.loans.read_only(bytes), options))
    }

    /// Sends several pieces as one message.
    pub fn send_list(&self, peer: PeerId, list: &[&'env [u8]], options: Options) -> Result<u64> {
        let options = Options { context: None, ..options };
        let list: Vec<Buffer> = list.iter().map(|bytes| self.loans.read_only(bytes)).collect();
        self.begin(self.endpoint.send_with(peer, list, options))
    }

    /// As [`Endpoint::tagged_send_with`].
    pub fn tagged_send(&self, peer: PeerId, tag: u64, bytes: &'env [u8], options: Options) -> Result<u64> {
        let options = Options { context: None, ..options };
        self.begin(self.endpoint.tagged_send_with(peer, tag, self.loans.read_only(bytes), options))
    }

    /// As [`Endpoint::receive`].
    pub fn receive(&self, bytes: &'env mut [u8]) -> Result<u64> {
        self.receive_with(bytes, ReceiveOptions::default())
    }

    /// As [`Endpoint::receive_with`].
    pub fn receive_with(&self, bytes: &'env mut [u8], options: ReceiveOptions) -> Result<u64> {
        let options = ReceiveOptions { context: None, ..options };
        self.begin(self.endpoint.receive_with(self.loans.writable(bytes), options))
    }

    /// Receives one message into several pieces.
    pub fn receive_list(&self, list: impl IntoIterator<Item = &'env mut [u8]>, options: ReceiveOptions) -> Result<u64> {
        let options = ReceiveOptions { context: None, ..options };
        let list: Vec<Buffer> = list.into_iter().map(|bytes| self.loans.writable(bytes)).collect();
        self.begin(self.endpoint.receive_with(list, options))
    }

    /// As [`Endpoint::write_with`].
    pub fn write(&self, peer: PeerId, remote: RemoteAddress, bytes: &'env [u8], options: Options) -> Result<u64> {
        let options = Options { context: None, ..options };
        self.begin(self.endpoint.write_with(peer, remote, self.loans.read_only(bytes), options))
    }

    /// As [`Endpoint::read_with`].
    pub fn read(&self, peer: PeerId, remote: RemoteAddress, bytes: &'env mut [u8], options: Options) -> Result<u64> {
        let options = Options { context: None, ..options };
        self.begin(self.endpoint.read_with(peer, remote, self.loans.writable(bytes), options))
    }

    /// Remembers what was begun. What was refused gives its loan back here.
    fn begin(&self, begun: Result<u64, Refused>) -> Result<u64> {
        let context = begun?;
        self.begun.contexts.lock().unwrap_or_else(PoisonError::into_inner).push(context);
        Ok(context)
    }
}
