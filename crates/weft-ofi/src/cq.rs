//! Completion queues: what ended, in the format that the program chose.

use std::collections::{HashMap, VecDeque};
use std::ffi::{c_char, c_int, c_void};
use std::ops::ControlFlow;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use weft::raw::Ended;
use weft::{CompletionKind, Failure, PeerId};
use weft_core::event::CompletionFlags;

use crate::abi::*;
use crate::av::Peers;
use crate::domain::Domain;
use crate::guard::{self, Result};
use crate::handle::{self, Noun};
use crate::limits::{COMPLETIONS_LEAST, COMPLETIONS_MAX};
use crate::variable::Announcements;
use crate::wait::{self, Sleepable, Waits};
use crate::{address, log};

/// A completion queue.
pub(crate) struct Queue {
    /// Leaves its set while the descriptor is still open.
    waits: Waits,
    pub(crate) queue: weft::CompletionQueue,
    pub(crate) domain: Arc<Domain>,
    format: u32,
    /// The most entries that a sleeper can ask for; one where the program chose that any entry ends the sleep.
    threshold_max: usize,
    /// Calls to end sleeps, and those of them that a sleeper has heard.
    signals: AtomicU64,
    signals_heard: AtomicU64,
    /// Messages whose source has no name are told as errors: an endpoint was opened with `FI_SOURCE_ERR`.
    sources_must_have_names: AtomicBool,
    /// Where sources of messages have their names: the vectors of the endpoints that report here.
    peers: OnceLock<Arc<Peers>>,
    more_peers: Mutex<Vec<Arc<Peers>>>,
    /// Entries that were not made by the NIC, and how many there are.
    made: Mutex<VecDeque<Made>>,
    made_count: AtomicUsize,
    /// Messages of any length that endpoints of the domain told of.
    announcements: Arc<Announcements>,
    /// The address that the last error entry points to.
    error_data: Mutex<Vec<u8>>,
}

// SAFETY: `fid_cq` begins with its `fid`.
unsafe impl Noun for Queue {
    type Face = fid_cq;
    const MARK: u64 = u64::from_be_bytes(*b"weft-cq ");
}

/// Receives whose entries are more than what the NIC tells.
const SPECIAL: CompletionFlags = CompletionFlags(CompletionFlags::MULTI.0 | CompletionFlags::ANNOUNCED.0);

/// An entry, in no format yet.
#[derive(Clone, Copy)]
pub(crate) struct Made {
    pub(crate) context: u64,
    pub(crate) flags: u64,
    pub(crate) length: usize,
    pub(crate) buffer: u64,
    pub(crate) data: u64,
    pub(crate) tag: u64,
    pub(crate) source: fi_addr_t,
    /// Of an error, its number and the reason as [`Queue`]'s texts know it.
    pub(crate) error: i32,
    pub(crate) reason: i32,
}

/// What becomes of a completion that is not as most are.
enum Rare {
    /// An entry.
    Entry(Made),
    /// An error, to be read as such.
    Error,
    /// Nobody waits for it any more.
    Nothing,
}

/// A completion of the NIC in no format, but for what is special about it.
#[inline(always)]
fn plain_entry(completion: &Ended<'_>) -> Made {
    let mut flags = match completion.kind {
        CompletionKind::Send => FI_SEND | FI_MSG,
        CompletionKind::TaggedSend => FI_SEND | FI_TAGGED,
        CompletionKind::Receive => FI_RECV | FI_MSG,
        CompletionKind::TaggedReceive => FI_RECV | FI_TAGGED,
        CompletionKind::Write => FI_WRITE | FI_RMA,
        CompletionKind::Read => FI_READ | FI_RMA,
        CompletionKind::Atomic => FI_WRITE | FI_ATOMIC,
        CompletionKind::FetchAtomic => FI_READ | FI_ATOMIC,
        CompletionKind::RemoteWrite => FI_REMOTE_WRITE | FI_RMA,
        CompletionKind::BufferReleased => FI_RECV | FI_MSG,
        CompletionKind::Announced => FI_RECV | FI_MSG,
        CompletionKind::TaggedAnnounced => FI_RECV | FI_TAGGED,
    };
    let received = flags & (FI_RECV | FI_REMOTE_WRITE) != 0;
    if completion.immediate.is_some() {
        flags |= FI_REMOTE_CQ_DATA;
    }
    Made {
        context: completion.context,
        flags,
        // Of what was sent, the interface tells no length.
        length: if received { completion.length as usize } else { 0 },
        buffer: 0,
        data: completion.immediate.unwrap_or(0),
        tag: completion.tag,
        source: FI_ADDR_NOTAVAIL,
        error: 0,
        reason: 0,
    }
}

/// A format of entries.
trait Format {
    fn of(made: &Made) -> Self;
}

impl Format for fi_cq_entry {
    #[inline(always)]
    fn of(made: &Made) -> fi_cq_entry {
        fi_cq_entry { op_context: made.context as *mut c_void }
    }
}

impl Format for fi_cq_msg_entry {
    #[inline(always)]
    fn of(made: &Made) -> fi_cq_msg_entry {
        fi_cq_msg_entry { op_context: made.context as *mut c_void, flags: made.flags, len: made.length }
    }
}

impl Format for fi_cq_data_entry {
    #[inline(always)]
    fn of(made: &Made) -> fi_cq_data_entry {
        let (op_context, buf) = (made.context as *mut c_void, made.buffer as *mut c_void);
        fi_cq_data_entry { op_context, flags: made.flags, len: made.length, buf, data: made.data }
    }
}

impl Format for fi_cq_tagged_entry {
    #[inline(always)]
    fn of(made: &Made) -> fi_cq_tagged_entry {
        let (op_context, buf) = (made.context as *mut c_void, made.buffer as *mut c_void);
        fi_cq_tagged_entry { op_context, flags: made.flags, len: made.length, buf, data: made.data, tag: made.tag }
    }
}

/// Multi-receive buffers of a domain by the context that the NIC has for them: one of a shared receive context is told of
/// in the queue of whichever endpoint a message was for.
#[derive(Default)]
pub(crate) struct MultiReceives {
    buffers: Mutex<HashMap<u64, MultiReceive>>,
    next: AtomicU64,
}

#[derive(Clone, Copy, Default)]
struct MultiReceive {
    context: u64,
    buffer: u64,
    /// The queue with whose end it is forgotten; 0 where several may tell of it.
    queue: usize,
}

impl MultiReceives {
    /// A buffer: the context that the NIC shall have for it. Where it is not given back it is forgotten with `queue`.
    pub(crate) fn add(&self, context: u64, buffer: u64, queue: Option<&Arc<Queue>>) -> u64 {
        // Unlike any address that a program could name a receive by.
        let number = self.next.fetch_add(1, Ordering::Relaxed) | 1 << 63;
        let queue = queue.map_or(0, |queue| Arc::as_ptr(queue) as usize);
        self.buffers().insert(number, MultiReceive { context, buffer, queue });
        number
    }

    /// The buffer was not posted.
    pub(crate) fn remove(&self, number: u64) {
        self.buffers().remove(&number);
    }

    /// The NIC's contexts of the buffers with a context, the oldest first.
    pub(crate) fn find(&self, context: u64) -> Vec<u64> {
        let buffers = self.buffers();
        let mut found: Vec<u64> = buffers.iter().filter(|(_, it)| it.context == context).map(|(at, _)| *at).collect();
        found.sort_unstable();
        found
    }

    /// Context and place of what came into a buffer.
    fn tell(&self, completion: &Ended<'_>) -> (u64, u64) {
        let mut buffers = self.buffers();
        let found = match completion.flags.contains(CompletionFlags::RELEASED) {
            true => buffers.remove(&completion.context),
            false => buffers.get(&completion.context).copied(),
        };
        let MultiReceive { context, buffer, .. } = found.unwrap_or_default();
        (context, buffer.wrapping_add(completion.offset()))
    }

    fn buffers(&self) -> MutexGuard<'_, HashMap<u64, MultiReceive>> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let queue = std::ptr::from_ref(self) as usize;
        self.domain.multi_receives.buffers().retain(|_, it| it.queue != queue);
    }
}

impl Queue {
    /// Sources of messages have their names in this vector too.
    pub(crate) fn names_from(&self, peers: &Arc<Peers>) {
        if let Err(peers) = self.peers.set(peers.clone()) {
            let known = self.peers.get().is_some_and(|known| Arc::ptr_eq(known, &peers));
            let mut more = self.more_peers.lock().unwrap_or_else(PoisonError::into_inner);
            if !known && !more.iter().any(|known| Arc::ptr_eq(known, &peers)) {
                more.push(peers);
            }
        }
    }

    /// Messages of somebody without a name are told as errors from here on.
    pub(crate) fn demand_names(&self) {
        self.sources_must_have_names.store(true, Ordering::Relaxed);
    }

    /// Whether it is a message that arrived well, and whose source has to be told because it has no name.
    #[inline]
    fn is_of_unknown(&self, completion: &Ended<'_>) -> bool {
        self.sources_must_have_names.load(Ordering::Relaxed)
            && matches!(completion.kind, CompletionKind::Receive | CompletionKind::TaggedReceive)
            && self.name(completion) == FI_ADDR_NOTAVAIL
    }

    /// Adds an entry that the NIC does not make.
    pub(crate) fn push(&self, entry: Made) {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        made.push_back(entry);
        self.made_count.store(made.len(), Ordering::Release);
        drop(made);
        if self.waits.is_some() {
            self.queue.signal();
        }
    }

    fn pop_made(&self, wanted: impl FnOnce(&Made) -> bool) -> Option<Made> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let found = if made.front().is_some_and(wanted) { made.pop_front() } else { None };
        self.made_count.store(made.len(), Ordering::Release);
        found
    }

    /// Whether there is something to read now, after a round of progress.
    pub(crate) fn has_entries(&self) -> Result<bool> {
        self.announcements.refill();
        let mut found = self.made_count.load(Ordering::Acquire) > 0;
        let each = |_: &Ended<'_>| {
            found = true;
            ControlFlow::Break(())
        };
        weft::raw::read_completions(&self.queue, 1, each).map_err(|error| guard::errno(&error))?;
        if found {
            // Progress is what polling is for, even where there is something already; a fault is told when that was read.
            let _ = self.queue.domain().progress();
        }
        Ok(found)
    }

    /// Whether somebody ends sleeps that began when so many calls were heard.
    fn hears_signal(&self, heard: u64) -> bool {
        let signals = self.signals.load(Ordering::Acquire);
        if signals != heard {
            self.signals_heard.fetch_max(signals, Ordering::AcqRel);
        }
        signals != heard
    }

    #[inline]
    fn name(&self, completion: &Ended<'_>) -> fi_addr_t {
        completion.peer.map_or(FI_ADDR_NOTAVAIL, |peer| self.name_of(peer))
    }

    /// The name that a peer of the NIC has in one of the vectors.
    #[inline]
    pub(crate) fn name_of(&self, peer: PeerId) -> fi_addr_t {
        match self.peers.get().and_then(|peers| peers.name(peer)) {
            Some(name) => name,
            None => {
                let more = self.more_peers.lock().unwrap_or_else(PoisonError::into_inner);
                more.iter().find_map(|peers| peers.name(peer)).unwrap_or(FI_ADDR_NOTAVAIL)
            }
        }
    }

    /// A completion of the NIC that is not as most are.
    #[cold]
    fn rare_entry(&self, completion: &Ended<'_>) -> Rare {
        if completion.result.is_err() || self.is_of_unknown(completion) {
            Rare::Error
        } else if self.announcements.is_forgotten(completion) {
            Rare::Nothing
        } else {
            Rare::Entry(self.entry(completion))
        }
    }

    /// A completion of the NIC in no format.
    fn entry(&self, completion: &Ended<'_>) -> Made {
        let mut made = plain_entry(completion);
        if completion.flags.intersects(SPECIAL) {
            let (context, buffer, more) = self.special(completion);
            (made.context, made.buffer) = (context, buffer);
            made.flags |= more;
        }
        made
    }

    /// Context, buffer and further flags of a receive that is not plain.
    #[cold]
    fn special(&self, completion: &Ended<'_>) -> (u64, u64, u64) {
        if !completion.flags.contains(CompletionFlags::ANNOUNCED) {
            let (context, buffer) = self.domain.multi_receives.tell(completion);
            let released = completion.flags.contains(CompletionFlags::RELEASED);
            return (context, buffer, if released { FI_MULTI_RECV } else { 0 });
        }
        match completion.kind {
            CompletionKind::Announced | CompletionKind::TaggedAnnounced => {
                let context = self.announcements.heard(completion);
                // None of the bytes are told with the news.
                (context, 0, if completion.length > 0 { FI_MORE } else { 0 })
            }
            _ => (completion.context, 0, FI_CLAIM),
        }
    }

    /// Reads entries in the queue's format.
    ///
    /// # Safety
    /// There is room for `count` of them, and for as many sources if that is not null.
    #[inline]
    unsafe fn read(&self, into: *mut c_void, count: usize, sources: *mut fi_addr_t) -> Result<usize> {
        if into.is_null() && count > 0 {
            return Err(-FI_EINVAL);
        }
        // SAFETY: as the caller says.
        unsafe {
            match self.format {
                FI_CQ_FORMAT_TAGGED => self.read_as::<fi_cq_tagged_entry>(into.cast(), count, sources),
                FI_CQ_FORMAT_DATA => self.read_as::<fi_cq_data_entry>(into.cast(), count, sources),
                FI_CQ_FORMAT_MSG => self.read_as::<fi_cq_msg_entry>(into.cast(), count, sources),
                _ => self.read_as::<fi_cq_entry>(into.cast(), count, sources),
            }
        }
    }

    /// # Safety
    /// As [`Queue::read`], in this format.
    #[inline]
    unsafe fn read_as<F: Format>(&self, into: *mut F, count: usize, sources: *mut fi_addr_t) -> Result<usize> {
        let mut read = 0;
        if self.made_count.load(Ordering::Acquire) > 0 {
            // SAFETY: as the caller says.
            read = unsafe { self.read_made(into, count, sources) };
        }
        if read == count {
            return if count == 0 { self.has_entries().map(|_| 0) } else { Ok(read) };
        }
        let mut failed = false;
        let room = count - read;
        let names_matter = self.sources_must_have_names.load(Ordering::Relaxed);
        let each = |completion: &Ended<'_>| {
            let made = if completion.result.is_ok() && !completion.flags.intersects(SPECIAL) && !names_matter {
                plain_entry(completion)
            } else {
                match self.rare_entry(completion) {
                    Rare::Entry(made) => made,
                    Rare::Error => {
                        failed = true;
                        return ControlFlow::Break(());
                    }
                    Rare::Nothing => return ControlFlow::Continue(()),
                }
            };
            // SAFETY: as the caller says; no more are shown than there is room for.
            unsafe {
                into.add(read).write(F::of(&made));
                if !sources.is_null() {
                    sources.add(read).write(self.name(completion));
                }
            }
            read += 1;
            ControlFlow::Continue(())
        };
        weft::raw::read_completions(&self.queue, room, each).map_err(|error| guard::errno(&error))?;
        if read > 0 {
            return Ok(read);
        }
        self.announcements.refill();
        let failed = failed || self.made_count.load(Ordering::Acquire) > 0;
        Err(if failed { -FI_EAVAIL } else { -FI_EAGAIN })
    }

    /// Reads entries that the NIC did not make.
    ///
    /// # Safety
    /// As [`Queue::read_as`].
    #[cold]
    unsafe fn read_made<F: Format>(&self, into: *mut F, count: usize, sources: *mut fi_addr_t) -> usize {
        let mut read = 0;
        while read < count
            && let Some(made) = self.pop_made(|made| made.error == 0)
        {
            // SAFETY: as the caller says.
            unsafe {
                into.add(read).write(F::of(&made));
                if !sources.is_null() {
                    sources.add(read).write(made.source);
                }
            }
            read += 1;
        }
        read
    }

    /// The error at the head of the queue, taken out.
    fn read_error(&self) -> Result<(Made, Option<weft::Address>, usize)> {
        if let Some(made) = self.pop_made(|made| made.error != 0) {
            return Ok((made, None, 0));
        }
        let mut found = None;
        let each = |completion: &Ended<'_>| {
            let (error, reason) = match completion.result {
                Err(reason) => (failure(reason), reason as i32),
                Ok(()) if self.is_of_unknown(completion) => (FI_EADDRNOTAVAIL, 0),
                Ok(()) => return ControlFlow::Break(()),
            };
            // Of a message that did not fit, the room is told, and what was beyond it.
            let length =
                if error == FI_ETRUNC { completion.length.min(completion.offset()) } else { completion.length };
            let (truncated, length) = ((completion.length - length) as usize, length as usize);
            let source = self.name(completion);
            let mut made = Made { error, reason, source, length, ..self.entry(completion) };
            if completion.flags.contains(CompletionFlags::LATE) {
                // Its completion was read long ago, and the program may have thrown away or reused what this points to.
                made.context = 0;
            }
            if completion.result == Err(Failure::Cancelled)
                && let Some(context) = self.announcements.cancelled(completion)
            {
                made.context = context;
            }
            found = Some((made, completion.source(), truncated));
            ControlFlow::Continue(())
        };
        weft::raw::read_completions(&self.queue, 1, each).map_err(|error| guard::errno(&error))?;
        found.ok_or(-FI_EAGAIN)
    }

    /// Reads entries, and sleeps until there is one.
    ///
    /// # Safety
    /// As [`Queue::read`].
    unsafe fn read_or_sleep(
        &self,
        into: *mut c_void,
        count: usize,
        sources: *mut fi_addr_t,
        condition: *const c_void,
        timeout: c_int,
    ) -> Result<usize> {
        self.waits.check_sleep()?;
        let threshold = (condition as usize).clamp(1, self.threshold_max);
        let deadline = wait::deadline(timeout);
        let heard = self.signals_heard.load(Ordering::Acquire);
        // More than one entry is waited for once: a condition is a wish, so what there is then is what there is.
        let mut wanted = threshold.saturating_sub(self.made_count.load(Ordering::Acquire));
        loop {
            if wanted <= 1 {
                // SAFETY: as the caller says.
                match unsafe { self.read(into, count, sources) } {
                    Err(error) if error == -FI_EAGAIN && count > 0 => {}
                    result => return result,
                }
                if self.hears_signal(heard) || wait::left(deadline) == Some(Duration::ZERO) {
                    return Err(-FI_EAGAIN);
                }
            }
            if self.waits.yields() && wanted <= 1 {
                std::thread::yield_now();
                continue;
            }
            // It ends early when somebody signals or an entry comes that the NIC does not make.
            self.queue.wait_for(wanted.max(1), wait::left(deadline)).map_err(|error| guard::errno(&error))?;
            wanted = 1;
        }
    }
}

impl Sleepable for Queue {
    fn waits(&self) -> &Waits {
        &self.waits
    }

    fn try_sleep(&self) -> Result<bool> {
        self.announcements.refill();
        // Made ready first: an entry of ours that comes after the look wakes.
        let heard = self.signals_heard.load(Ordering::Acquire);
        let safe = self.queue.try_wait().map_err(|error| guard::errno(&error))? && !self.hears_signal(heard);
        Ok(safe && self.made_count.load(Ordering::Acquire) == 0)
    }

    fn descriptor(&self) -> Result<RawFd> {
        self.queue.descriptor().map(|descriptor| descriptor.as_raw_fd()).map_err(|error| guard::errno(&error))
    }
}

/// The error number of an operation that failed.
pub(crate) fn failure(failure: Failure) -> i32 {
    match failure {
        Failure::Cancelled | Failure::Closed => FI_ECANCELED,
        Failure::Truncated | Failure::LengthError => FI_ETRUNC,
        Failure::LocalFault => FI_EFAULT,
        Failure::AccessRefused => FI_EACCES,
        Failure::NoSuchEndpoint => FI_ECONNREFUSED,
        Failure::NotSupported => FI_EOPNOTSUPP,
        Failure::ProtocolError | Failure::ChecksumMismatch | Failure::OperationFailed => FI_EIO,
        Failure::Aborted => FI_ECONNABORTED,
        Failure::OutcomeUnknown => FI_ETIMEDOUT,
    }
}

/// The failures in the order of their numbers, for texts.
const FAILURES: [Failure; 13] = [
    Failure::Cancelled,
    Failure::Truncated,
    Failure::LocalFault,
    Failure::Closed,
    Failure::AccessRefused,
    Failure::LengthError,
    Failure::NoSuchEndpoint,
    Failure::NotSupported,
    Failure::ProtocolError,
    Failure::ChecksumMismatch,
    Failure::Aborted,
    Failure::OperationFailed,
    Failure::OutcomeUnknown,
];

static FID_OPERATIONS: fi_ops = crate::no::operations(close, crate::no::bind, control);

static OPERATIONS: fi_ops_cq = fi_ops_cq {
    size: size_of::<fi_ops_cq>(),
    read: Some(read),
    readfrom: Some(read_from),
    readerr: Some(read_error),
    sread: Some(read_or_sleep),
    sreadfrom: Some(read_from_or_sleep),
    signal: Some(signal),
    strerror: Some(error_text),
};

/// `fi_cq_open`.
pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    attributes: *mut fi_cq_attr,
    into: *mut *mut fid_cq,
    context: *mut c_void,
) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of a domain's table.
        let (domain, attributes) = unsafe { (handle::of::<Domain>(domain)?, attributes.as_mut()) };
        if into.is_null() {
            return Err(-FI_EINVAL);
        }
        let (mut size, mut format, mut wait_object) = (0, FI_CQ_FORMAT_UNSPEC, FI_WAIT_NONE);
        let (mut wait_set, mut wait_condition) = (std::ptr::null_mut(), FI_CQ_COND_NONE);
        if let Some(attributes) = attributes {
            (size, format, wait_object) = (attributes.size, attributes.format, attributes.wait_obj);
            (wait_set, wait_condition) = (attributes.wait_set, attributes.wait_cond);
            if attributes.flags & !FI_AFFINITY != 0 {
                return Err(-FI_EINVAL);
            }
            if attributes.format == FI_CQ_FORMAT_UNSPEC {
                attributes.format = FI_CQ_FORMAT_CONTEXT;
            }
        }
        match format {
            FI_CQ_FORMAT_UNSPEC => format = FI_CQ_FORMAT_CONTEXT,
            FI_CQ_FORMAT_CONTEXT | FI_CQ_FORMAT_MSG | FI_CQ_FORMAT_DATA | FI_CQ_FORMAT_TAGGED => {}
            _ => return Err(-FI_ENOSYS),
        }
        if size > COMPLETIONS_MAX {
            log::warning!(CQ, "a queue of {size} completions is too long: at most {COMPLETIONS_MAX}");
            return Err(-FI_EINVAL);
        }
        let size = size.max(COMPLETIONS_LEAST);
        let threshold_max = match wait_condition {
            FI_CQ_COND_THRESHOLD => size,
            FI_CQ_COND_NONE => 1,
            // It does not matter who never sleeps for what.
            _ if wait_object == FI_WAIT_NONE => 1,
            _ => return Err(-FI_EINVAL),
        };
        let queue = Arc::new(Queue {
            // SAFETY: what the attributes say.
            waits: unsafe { Waits::new(wait_object, wait_set, &domain.fabric)? },
            queue: domain.nic.completion_queue(size),
            domain: domain.clone(),
            format,
            threshold_max,
            signals: AtomicU64::new(0),
            signals_heard: AtomicU64::new(0),
            sources_must_have_names: AtomicBool::new(false),
            peers: OnceLock::new(),
            more_peers: Mutex::default(),
            made: Mutex::default(),
            made_count: AtomicUsize::new(0),
            announcements: domain.announcements.clone(),
            error_data: Mutex::default(),
        });
        queue.waits.start(&queue)?;
        let fid = handle::fid_of(FI_CLASS_CQ, context, &FID_OPERATIONS);
        let face = fid_cq { fid, ops: handle::table(&OPERATIONS) };
        // SAFETY: `into` was checked.
        unsafe { *into = handle::open(face, queue) };
        Ok(())
    })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: what C gives to a function of a queue's table.
    guard::call(|| unsafe { wait::close::<Queue>(fid) })
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: what C gives to a function of a queue's table.
    guard::call(|| unsafe { wait::control::<Queue>(fid, command, argument) })
}

unsafe extern "C" fn read(cq: *mut fid_cq, into: *mut c_void, count: usize) -> isize {
    // SAFETY: as the caller says.
    unsafe { read_from(cq, into, count, std::ptr::null_mut()) }
}

unsafe extern "C" fn read_from(cq: *mut fid_cq, into: *mut c_void, count: usize, sources: *mut fi_addr_t) -> isize {
    guard::count(|| {
        // SAFETY: what C gives to a function of a queue's table.
        unsafe { handle::of::<Queue>(cq)?.read(into, count, sources) }
    })
}

unsafe extern "C" fn read_or_sleep(
    cq: *mut fid_cq,
    into: *mut c_void,
    count: usize,
    condition: *const c_void,
    timeout: c_int,
) -> isize {
    // SAFETY: as the caller says.
    unsafe { read_from_or_sleep(cq, into, count, std::ptr::null_mut(), condition, timeout) }
}

unsafe extern "C" fn read_from_or_sleep(
    cq: *mut fid_cq,
    into: *mut c_void,
    count: usize,
    sources: *mut fi_addr_t,
    condition: *const c_void,
    timeout: c_int,
) -> isize {
    guard::count(|| {
        // SAFETY: what C gives to a function of a queue's table.
        unsafe { handle::of::<Queue>(cq)?.read_or_sleep(into, count, sources, condition, timeout) }
    })
}

unsafe extern "C" fn read_error(cq: *mut fid_cq, into: *mut fi_cq_err_entry, _flags: u64) -> isize {
    guard::count(|| {
        // SAFETY: what C gives to a function of a queue's table.
        let queue = unsafe { handle::of::<Queue>(cq)? };
        if into.is_null() {
            return Err(-FI_EINVAL);
        }
        let (made, source, truncated) = queue.read_error()?;
        // SAFETY: the fields that every version has are there; those that came later are for programs that know them.
        unsafe {
            (*into).op_context = made.context as *mut c_void;
            (*into).flags = made.flags;
            (*into).len = made.length;
            (*into).buf = made.buffer as *mut c_void;
            (*into).data = made.data;
            (*into).tag = made.tag;
            (*into).olen = truncated;
            (*into).err = made.error;
            (*into).prov_errno = made.reason;
            if queue.domain.api_version >= FI_VERSION(1, 20) {
                (*into).src_addr = made.source;
            }
            let bytes = match source {
                Some(source) if made.error == FI_EADDRNOTAVAIL => address::to_bytes(queue.domain.format, &source),
                _ => Vec::new(),
            };
            write_error_data(queue, into, bytes);
        }
        Ok(1)
    })
}

/// Gives the caller the bytes that tell more of an error: into its own buffer if it has one.
///
/// # Safety
/// `into` is an entry of C.
unsafe fn write_error_data(queue: &Queue, into: *mut fi_cq_err_entry, bytes: Vec<u8>) {
    // SAFETY: as the caller says.
    unsafe {
        // Before this version an entry ended with the pointer.
        let tells_room = queue.domain.api_version >= FI_VERSION(1, 5);
        if tells_room && !(*into).err_data.is_null() && (*into).err_data_size > 0 {
            let length = bytes.len().min((*into).err_data_size);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), (*into).err_data.cast(), length);
            (*into).err_data_size = length;
            return;
        }
        let mut kept = queue.error_data.lock().unwrap_or_else(PoisonError::into_inner);
        *kept = bytes;
        (*into).err_data = if kept.is_empty() { std::ptr::null_mut() } else { kept.as_mut_ptr().cast() };
        if tells_room {
            (*into).err_data_size = kept.len();
        }
    }
}

unsafe extern "C" fn signal(cq: *mut fid_cq) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of a queue's table.
        let queue = unsafe { handle::of::<Queue>(cq)? };
        if !queue.waits.is_some() {
            return Err(-FI_ENOSYS);
        }
        queue.signals.fetch_add(1, Ordering::AcqRel);
        queue.queue.signal();
        Ok(())
    })
}

unsafe extern "C" fn error_text(
    _cq: *mut fid_cq,
    reason: c_int,
    _data: *const c_void,
    into: *mut c_char,
    length: usize,
) -> *const c_char {
    guard::value(std::ptr::null(), || {
        let failure = FAILURES.into_iter().find(|failure| *failure as c_int == reason);
        let text = failure.map_or_else(|| "no reason is known".to_owned(), |failure| failure.to_string());
        crate::interface::lasting_text(&text, into, length)
    })
}
