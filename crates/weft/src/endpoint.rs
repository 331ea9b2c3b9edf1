//! Endpoints: what sends and receives. Their operations are in `operation.rs` and `atomic.rs`.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use weft_core::address::{Address, PeerId};
use weft_core::command::{Command, CommandFlags, EndpointId, Level, Operation, PostError, Receive};
use weft_core::delivery::{Bindings, ClaimId, EndpointKind, Opening, Peek, Peeked, Side};
use weft_core::event::{Failure, QueueId};
use weft_core::memory::LocalKey;
use weft_mem::limits::INJECT_MAX_BYTES;
use weft_mem::{Buffer, Lent, Segment};

use crate::completion_queue::CompletionQueue;
use crate::counter::Counter;
use crate::domain::Domain;
use crate::driver::{Core, Progress};
use crate::error::{Error, Refused, Result};
use crate::limits::COPIED_MAX_BYTES;
use crate::local::Local;
use crate::vector::{self, RemoteRange};

/// Sends and receives; many peers through one endpoint, without connecting. Clones name the same endpoint. When the last
/// one is dropped it closes: what was injected is brought on its way first, all else that is under way ends with
/// [`Failure::Closed`](crate::Failure::Closed), unless [`EndpointOptions::quiet_close`] says that nobody wants to know.
///
/// ```
/// use std::time::Duration;
/// # let domain = weft::Domain::udp("127.0.0.1:0")?;
/// let queue = domain.completion_queue(64);
/// let endpoint = domain.endpoint(&queue)?;
/// let myself = domain.addresses().insert(endpoint.address())?;
///
/// let received = endpoint.tagged_receive(7, 0, vec![0; 1024])?;
/// let sent = endpoint.tagged_send(myself, 7, b"to the one who waits for a seven".to_vec())?;
/// for _ in 0..2 {
///     let completion = queue.wait(Some(Duration::from_secs(10)))?.expect("in time").ok()?;
///     if completion.context == received {
///         assert_eq!(completion.into_bytes()?, b"to the one who waits for a seven");
///     } else {
///         assert_eq!(completion.context, sent);
///         let _reuse_it: Vec<u8> = completion.buffer.unwrap().into_vec().unwrap();
///     }
/// }
/// # Ok::<(), weft::Error>(())
/// ```
#[derive(Clone)]
pub struct Endpoint {
    inner: Arc<Inner>,
}

struct Inner {
    id: EndpointId,
    address: Address,
    /// Something without completion may be under way.
    injected: AtomicBool,
    next_context: AtomicU64,
    domain: Domain,
    /// Keeps queues and counters open.
    options: EndpointOptions,
    /// So does this, for those that were bound later.
    bound_later: Mutex<Vec<EndpointOptions>>,
}

/// What an endpoint promises, and where it reports.
#[derive(Clone, Debug)]
pub struct EndpointOptions {
    /// Reliable, or datagrams that may be lost.
    pub kind: EndpointKind,
    /// Its number in [`Endpoint::address`], if that shall be a certain one: peers that know the number need not be told
    /// the address. `None`: one is drawn that nobody can guess, and that is not 0.
    pub number: Option<u32>,
    /// The number in the address that peers see as the source of what it sends, for several endpoints of a domain that are
    /// one to their peers; `None`: its own.
    pub speaks_as: Option<u32>,
    /// Another endpoint of the same domain and kind, whose receives serve messages for this one too: several endpoints can
    /// share one pool of receives. None can be posted to this one then. Messages match in the order in which they come,
    /// whichever endpoint they are for, and are reported to the queue and counter of that one, or, where it has none, of
    /// the other. What is posted stays the other's when this one closes.
    pub receives_from: Option<Endpoint>,
    /// Of datagrams, so many for which no receive is posted yet wait for one; the others are lost, as all are by default.
    pub datagrams_kept: usize,
    /// Nothing of what is under way when it closes is reported or counted: buffers just end.
    pub quiet_close: bool,
    /// Completions of what it sends, writes and reads.
    pub transmit_queue: Option<CompletionQueue>,
    /// Completions of receives, and of peers' writes with immediate data.
    pub receive_queue: Option<CompletionQueue>,
    /// Counts sends.
    pub send_counter: Option<Counter>,
    /// Counts receives.
    pub receive_counter: Option<Counter>,
    /// Counts reads and fetching atomics.
    pub read_counter: Option<Counter>,
    /// Counts writes and atomics.
    pub write_counter: Option<Counter>,
    /// Counts writes of peers into our memory, and their atomics that change it.
    pub remote_write_counter: Option<Counter>,
    /// Counts reads of peers from our memory, and their atomics that fetch.
    pub remote_read_counter: Option<Counter>,
}

impl Default for EndpointOptions {
    fn default() -> EndpointOptions {
        EndpointOptions {
            kind: EndpointKind::Reliable,
            number: None,
            speaks_as: None,
            receives_from: None,
            datagrams_kept: 0,
            quiet_close: false,
            transmit_queue: None,
            receive_queue: None,
            send_counter: None,
            receive_counter: None,
            read_counter: None,
            write_counter: None,
            remote_write_counter: None,
            remote_read_counter: None,
        }
    }
}

impl EndpointOptions {
    /// Reports everything to one queue.
    #[must_use]
    pub fn with_queue(kind: EndpointKind, queue: &CompletionQueue) -> EndpointOptions {
        let queue = || Some(queue.clone());
        EndpointOptions { kind, transmit_queue: queue(), receive_queue: queue(), ..Default::default() }
    }

    fn counters(&self) -> [&Option<Counter>; 6] {
        [
            &self.send_counter,
            &self.receive_counter,
            &self.read_counter,
            &self.write_counter,
            &self.remote_write_counter,
            &self.remote_read_counter,
        ]
    }

    /// Whether something in it is of another domain.
    fn is_foreign_to(&self, domain: &Domain) -> bool {
        let mut queues = [&self.transmit_queue, &self.receive_queue].into_iter().flatten();
        queues.any(|queue| !queue.domain().is_same(domain))
            || self.counters().into_iter().flatten().any(|counter| !counter.domain().is_same(domain))
            || self.receives_from.as_ref().is_some_and(|other| !other.domain().is_same(domain))
    }

    fn bindings(&self) -> Bindings {
        let queue = |queue: &Option<CompletionQueue>| queue.as_ref().map(CompletionQueue::id);
        let counter = |counter: &Option<Counter>| counter.as_ref().map(Counter::id);
        Bindings {
            transmit_queue: queue(&self.transmit_queue),
            receive_queue: queue(&self.receive_queue),
            send_counter: counter(&self.send_counter),
            receive_counter: counter(&self.receive_counter),
            read_counter: counter(&self.read_counter),
            write_counter: counter(&self.write_counter),
            remote_write_counter: counter(&self.remote_write_counter),
            remote_read_counter: counter(&self.remote_read_counter),
        }
    }
}

/// Why a command was not done at once.
enum NotDone<'a> {
    /// It has to be posted.
    Later(Payload<'a>),
    /// It cannot be.
    Refused(Refused),
}

/// The bytes of a command.
pub(crate) enum Payload<'a> {
    /// As the command says already.
    None,
    /// All of a buffer.
    Whole(Buffer),
    /// All of a buffer that need not come back.
    Lent(Buffer),
    /// A buffer of which the command names the part.
    Part(Buffer),
    /// As `Part`, and if it fetches the results go to its beginning.
    Atomic { buffer: Buffer, fetches: bool },
    /// A copy of these.
    Copy(&'a [u8]),
    /// Of an atomic: a copy of these, and where its results go.
    Fetch { bytes: &'a [u8], results: Buffer },
}

impl Endpoint {
    pub(crate) fn open(domain: &Domain, options: EndpointOptions) -> Result<Endpoint> {
        if options.is_foreign_to(domain) {
            return Err(Error::OtherDomain);
        }
        let bindings = options.bindings();
        let mut core = domain.nic().lock();
        let receives_from = options.receives_from.as_ref().map(Endpoint::id);
        let (number, speaks_as, datagrams_kept) = (options.number, options.speaks_as, options.datagrams_kept);
        let opening = Opening { number, source_alias: speaks_as, srx: receives_from, datagrams_kept };
        let id = core.engine.delivery_mut().open_endpoint_with(options.kind, bindings, &opening)?;
        let number = core.engine.delivery().endpoint_number(id).ok_or(PostError::NoSuchEndpoint)?;
        drop(core);
        let address = Address { socket: domain.local(), endpoint: number };
        let next_context = AtomicU64::new(1 << 63);
        let inner = Inner {
            id,
            address,
            injected: AtomicBool::new(false),
            next_context,
            domain: domain.clone(),
            options,
            bound_later: Mutex::default(),
        };
        Ok(Endpoint { inner: Arc::new(inner) })
    }

    /// What peers put into their address vectors to reach it. A domain that is bound to all addresses of its host does
    /// not know which of them the peer can reach: the caller fills in the IP address.
    #[must_use]
    pub fn address(&self) -> Address {
        self.inner.address
    }

    /// What it promises.
    #[must_use]
    pub fn kind(&self) -> EndpointKind {
        self.inner.options.kind
    }

    /// The domain it belongs to.
    #[must_use]
    #[inline]
    pub fn domain(&self) -> &Domain {
        &self.inner.domain
    }

    /// Lets it report to queues and counters of which it has had none: those that it has stay. Nothing may have been
    /// posted yet that would be reported there. What else the options say does not matter. Writes of peers with immediate
    /// data that are under way need places in the queue for receives: without room for them nothing is changed.
    pub fn bind(&self, more: EndpointOptions) -> Result<()> {
        if more.is_foreign_to(self.domain()) {
            return Err(Error::OtherDomain);
        }
        let mut guard = self.domain().nic().lock();
        let core = &mut *guard;
        let notices = core.local.as_ref().map_or(0, |local| local.notices_under_way(self.inner.id));
        core.engine.bind_endpoint(self.inner.id, &more.bindings(), notices)?;
        if (more.remote_write_counter.is_some() || more.remote_read_counter.is_some())
            && let Some(local) = &mut core.local
        {
            // What peers do to memory that they have mapped is not counted: they ask anew, and are refused.
            local.revoke_granted_at(core.engine.delivery_mut(), self.inner.id);
        }
        drop(guard);
        self.inner.bound_later.lock().unwrap_or_else(PoisonError::into_inner).push(more);
        Ok(())
    }

    /// Ends one side of it: what is under way there is over without being reported, and the memory is the caller's again.
    /// Queues and counters of that side that were [bound later](Endpoint::bind) are let go of, and others can be bound. The
    /// other side goes on.
    pub fn close_side(&self, side: Side) {
        let id = self.inner.id;
        if side == Side::Transmit {
            self.inner.linger();
        }
        let mut core = self.domain().nic().lock();
        let now = core.now();
        core.drop_deferred_of(id, Some(side));
        let core_ref = &mut *core;
        let notices = core_ref.local.as_ref().map_or(0, |local| local.notices_under_way(id));
        if side == Side::Transmit
            && let Some(local) = &mut core_ref.local
        {
            core_ref.engine.delivery_mut().silence_endpoint(id, true);
            local.end_commands(core_ref.engine.delivery_mut(), id);
            core_ref.engine.delivery_mut().silence_endpoint(id, false);
        }
        core.engine.close_side(now, id, side, notices);
        core.unblock();
        core.transmit(now);
        core.notify();
        drop(core);
        let mut later = self.inner.bound_later.lock().unwrap_or_else(PoisonError::into_inner);
        for options in &mut *later {
            match side {
                Side::Transmit => {
                    options.transmit_queue = None;
                    (options.send_counter, options.read_counter, options.write_counter) = (None, None, None);
                }
                Side::Receive => {
                    (options.receive_queue, options.receive_counter) = (None, None);
                    (options.remote_write_counter, options.remote_read_counter) = (None, None);
                }
            }
        }
    }

    /// The queues that it reports to.
    pub(crate) fn queues(&self) -> [Option<QueueId>; 2] {
        let later = self.inner.bound_later.lock().unwrap_or_else(PoisonError::into_inner);
        let all = || std::iter::once(&self.inner.options).chain(later.iter());
        [
            all().find_map(|options| options.transmit_queue.as_ref()).map(CompletionQueue::id),
            all().find_map(|options| options.receive_queue.as_ref()).map(CompletionQueue::id),
        ]
    }

    /// Where it reports, as it was opened; [`Endpoint::bind`] may have added to it.
    #[must_use]
    pub fn options(&self) -> &EndpointOptions {
        &self.inner.options
    }

    /// Cancels the oldest receive or other operation with this context, if it still can be; its completion says
    /// [`Failure::Cancelled`](crate::Failure::Cancelled). False: it is done, or its outcome is the peer's business now.
    pub fn cancel(&self, context: u64) -> bool {
        let mut core = self.domain().nic().lock();
        let now = core.now();
        let mut cancelled = core.engine.cancel(now, self.inner.id, context);
        let core_ref = &mut *core;
        if !cancelled && let Some(local) = &mut core_ref.local {
            cancelled = local.cancel(core_ref.engine.delivery_mut(), self.inner.id, context);
        }
        core.posted(now, false);
        cancelled
    }

    /// From now on it exists for one peer only: requests and messages of all others are refused as if there were no such
    /// endpoint. What they have sent before is dropped; receives that it had matched fail with
    /// [`Failure::Aborted`](crate::Failure::Aborted). For connections: both ends restrict themselves to each other.
    ///
    /// The peer is told by its address. A peer on this machine whose domain is bound to all addresses is not known as one
    /// of them: such a domain has to be bound to one.
    pub fn restrict_to(&self, peer: PeerId) -> Result<()> {
        let mut core = self.domain().nic().lock();
        let now = core.now();
        let core_ref = &mut *core;
        core_ref.engine.restrict_endpoint(now, self.inner.id, peer)?;
        if let Some(local) = &mut core_ref.local {
            local.restrict_endpoint(core_ref.engine.delivery_mut(), self.inner.id);
        }
        core.transmit(now);
        core.notify();
        Ok(())
    }

    pub(crate) fn id(&self) -> EndpointId {
        self.inner.id
    }

    /// Before a command is posted that is not done at once: the endpoint may be closed before it has ended.
    #[inline]
    pub(crate) fn will_post(&self, command: &Command) {
        if is_unawaited(command) {
            self.inner.injected.store(true, Ordering::Relaxed);
        }
    }

    fn context(&self, chosen: Option<u64>) -> u64 {
        chosen.unwrap_or_else(|| self.inner.next_context.fetch_add(1, Ordering::Relaxed))
    }

    /// Does a command with bytes that stay the caller's, if that can be done before this returns: a peer on this machine,
    /// and nothing in the way. `None`: it has to be posted.
    ///
    /// Inlined with all that it calls: what a caller knows of its command when it is compiled is not asked again.
    #[inline(always)]
    pub(crate) fn post_at_once(&self, command: &mut Command, bytes: Segment<'_>) -> Option<Result<(), PostError>> {
        if !Local::could_do_at_once(command) {
            return None;
        }
        command.endpoint = self.inner.id;
        command.length = u32::try_from(bytes.len()).ok()?;
        command.flags = command.flags.without(CommandFlags::PART | CommandFlags::COUNTED);
        if command.has(CommandFlags::SILENT) {
            self.inner.injected.store(true, Ordering::Relaxed);
        }
        let mut core = self.domain().nic().lock();
        let core = &mut *core;
        let done = core.local.as_mut()?.do_and_report(core.engine.delivery_mut(), command, bytes)?;
        core.notify();
        Some(done)
    }

    /// Posts a command with its bytes; gives its context.
    pub(crate) fn post(
        &self,
        mut command: Command,
        payload: Payload<'_>,
        context: Option<u64>,
    ) -> Result<u64, Refused> {
        command.context = self.context(context);
        command.flags = command.flags.without(CommandFlags::PART | CommandFlags::COUNTED);
        let mut core = self.domain().nic().lock();
        let payload = match core.do_local_at_once(&mut command, payload) {
            Ok(()) => return Ok(command.context),
            Err(NotDone::Refused(refused)) => return Err(refused),
            Err(NotDone::Later(payload)) => core.copy_short(&mut command, payload),
        };
        self.will_post(&command);
        core.attach_payload(&mut command, payload)?;
        if let Some(posted) = core.post_local(&mut command) {
            return match posted {
                Ok(()) => Ok(command.context),
                Err(error) => {
                    let buffer = core.engine.delivery_mut().memory_mut().take(command.local);
                    Err(Refused { error: error.into(), buffer })
                }
            };
        }
        let now = core.now();
        if let Err(error) = core.engine.post(now, &command) {
            let buffer = core.engine.delivery_mut().memory_mut().take(command.local);
            return Err(Refused { error: error.into(), buffer });
        }
        let more = command.has(CommandFlags::MORE);
        if is_unawaited(&command) {
            core.posted_unawaited(now, more)
        } else {
            core.posted(now, more)
        }
        Ok(command.context)
    }

    /// Posts a command that goes in parts, each to a range of the peer's memory, all of them or none.
    pub(crate) fn post_parts(
        &self,
        mut whole: Command,
        payload: Payload<'_>,
        ranges: &[RemoteRange],
    ) -> Result<(), Refused> {
        whole.flags = whole.flags.without(CommandFlags::PART | CommandFlags::COUNTED);
        self.will_post(&whole);
        let mut core = self.domain().nic().lock();
        core.attach_payload(&mut whole, payload)?;
        core.post_parts(&whole, ranges).map_err(|error| {
            let buffer = core.engine.delivery_mut().memory_mut().take(whole.local);
            Refused { error: error.into(), buffer }
        })
    }

    /// Posts a receive with its buffer; gives its context.
    pub(crate) fn post_receive(&self, receive: Receive, buffer: Buffer, context: Option<u64>) -> Result<u64, Refused> {
        self.post_receive_for(None, receive, buffer, context)
    }

    /// The same, for a message that was claimed or for any that matches.
    pub(crate) fn post_receive_for(
        &self,
        claim: Option<ClaimId>,
        mut receive: Receive,
        buffer: Buffer,
        context: Option<u64>,
    ) -> Result<u64, Refused> {
        receive.context = self.context(context);
        self.enlist(claim, &mut receive, buffer).map(|()| receive.context)
    }

    /// Posts a receive with memory that was lent; its local key is filled in here. Inlined as [`Endpoint::post_at_once`]
    /// is.
    #[inline(always)]
    pub(crate) fn enlist_lent(&self, mut receive: Receive, lent: Lent) -> Result<(), Refused> {
        let mut core = self.domain().nic().lock();
        let core = &mut *core;
        receive.local = match core.engine.delivery_mut().memory_mut().attach_lent(lent) {
            Some(local) => local,
            None => core.attach(lent.into())?,
        };
        if !core.engine.delivery_mut().post_receive_fast(&receive, lent.len() as u64) {
            core.post_receive_anyhow(None, receive)?;
        }
        core.received();
        Ok(())
    }

    /// Posts a receive with its buffer; its local key is filled in here.
    #[inline]
    pub(crate) fn enlist(&self, claim: Option<ClaimId>, receive: &mut Receive, buffer: Buffer) -> Result<(), Refused> {
        if !buffer.is_writable() && !buffer.is_empty() {
            return Err(Refused { error: PostError::BadBuffer.into(), buffer: Some(buffer) });
        }
        let mut core = self.domain().nic().lock();
        let core = &mut *core;
        let length = buffer.len() as u64;
        receive.local = core.attach(buffer)?;
        if claim.is_some() || !core.engine.delivery_mut().post_receive_fast(receive, length) {
            core.post_receive_anyhow(claim, *receive)?;
        }
        core.received();
        Ok(())
    }

    /// The first message that waits and that a receive would take. Messages that come are looked for if none waits.
    pub(crate) fn peek(&self, mut receive: Receive, peek: Peek) -> Result<Option<Peeked>> {
        receive.endpoint = self.inner.id;
        let nic = self.domain().nic();
        let mut core = nic.lock();
        let mut found = core.engine.delivery_mut().peek(&receive, peek)?;
        if found.is_none() && nic.progress_mode() == Progress::Manual {
            core.progress();
            found = core.engine.delivery_mut().peek(&receive, peek)?;
        }
        if found.is_none() {
            core.check()?;
        } else if peek == Peek::Discard {
            core.received();
        }
        Ok(found)
    }

    pub(crate) fn discard_claimed(&self, claim: ClaimId) -> Result<()> {
        let mut core = self.domain().nic().lock();
        core.engine.delivery_mut().discard_claimed(self.inner.id, claim)?;
        core.received();
        Ok(())
    }
}

/// Whether the poster of a command waits for nothing: it hears no more of it, unless it fails.
#[inline]
fn is_unawaited(command: &Command) -> bool {
    command.has(CommandFlags::SILENT) || command.level == Level::Injected
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({}, {:?})", self.inner.address, self.inner.options.kind)
    }
}

impl Inner {
    /// Brings what was injected on its way.
    fn linger(&self) {
        if !self.injected.load(Ordering::Relaxed) || self.domain.nic().is_inherited() {
            return;
        }
        self.domain.nic().linger(self.id);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.linger();
        let nic = self.domain.nic();
        let mut core = nic.lock();
        let now = core.now();
        core.drop_deferred_of(self.id, None);
        if self.options.quiet_close {
            core.engine.delivery_mut().silence_endpoint(self.id, true);
        }
        core.close_local(self.id);
        core.engine.close_endpoint(now, self.id);
        // Perhaps the program ends now, and closes nothing else.
        core.engine.flush_acks();
        core.transmit(now);
        core.notify();
    }
}

impl Core {
    /// Posts a command whose peer is on this machine; `None`: it goes as packets.
    #[inline]
    pub(crate) fn post_local(&mut self, command: &mut Command) -> Option<Result<(), PostError>> {
        self.send_displaced();
        let shares_processor = self.shares_processor.load(Ordering::Relaxed);
        let posted = self.local.as_mut()?.post(self.engine.delivery_mut(), command, shares_processor)?;
        self.notify();
        Some(posted)
    }

    /// Does a command whose peer is on this machine, if that needs no more than a copy of its bytes.
    #[inline]
    fn do_local_at_once<'a>(&mut self, command: &mut Command, payload: Payload<'a>) -> Result<(), NotDone<'a>> {
        let Some(local) = &mut self.local else { return Err(NotDone::Later(payload)) };
        if !Local::could_do_at_once(command) {
            return Err(NotDone::Later(payload));
        }
        let bytes = match &payload {
            Payload::Copy(bytes) => Some(Segment::from_slice(bytes)),
            Payload::Whole(buffer) if self.engine.delivery().memory().has_room() => buffer.segment(),
            Payload::Lent(buffer) => buffer.segment(),
            _ => None,
        };
        let short = bytes.and_then(|bytes| Some((bytes, u32::try_from(bytes.len()).ok()?)));
        let Some((bytes, length)) = short else { return Err(NotDone::Later(payload)) };
        command.length = length;
        let admitted = match local.do_at_once(self.engine.delivery_mut(), command, bytes) {
            None => return Err(NotDone::Later(payload)),
            Some(Err(error)) => {
                let buffer = match payload {
                    Payload::Whole(buffer) | Payload::Lent(buffer) => Some(buffer),
                    _ => None,
                };
                return Err(NotDone::Refused(Refused { error: error.into(), buffer }));
            }
            Some(Ok(admitted)) => admitted,
        };
        let local = match payload {
            Payload::Whole(buffer) => self.attach(buffer).unwrap_or(LocalKey::NONE),
            _ => LocalKey::NONE,
        };
        self.engine.delivery_mut().report_done(command, admitted, local);
        self.notify();
        Ok(())
    }

    /// A command with memory of the caller's that may end as soon as that can be used again: over packets the NIC copies
    /// short ones, which spares the wait for the target's answer. All others end with that.
    ///
    /// Where processors are shared, the answer waits until the target's process has its turn, which is worth a longer copy.
    #[inline]
    fn copy_short<'a>(&mut self, command: &mut Command, payload: Payload<'a>) -> Payload<'a> {
        let Payload::Lent(buffer) = &payload else { return payload };
        if command.level != Level::Injected {
            return payload;
        }
        command.level = Level::Transmitted;
        let is_shared = self.shares_processor.load(Ordering::Relaxed);
        let limit = if is_shared { INJECT_MAX_BYTES } else { COPIED_MAX_BYTES };
        let Some(bytes) = buffer.segment().filter(|bytes| bytes.len() <= limit) else { return payload };
        let goes_local = self.local.as_ref().is_some_and(|local| local.reaches(command.endpoint, command.peer));
        if goes_local || self.engine.room_for_commands() == 0 {
            return payload;
        }
        let Ok(key) = self.engine.delivery_mut().memory_mut().attach_copy(bytes) else { return payload };
        (command.level, command.local, command.length) = (Level::Injected, key, bytes.len() as u32);
        if let Payload::Lent(buffer) = payload {
            buffer.discard();
        }
        Payload::None
    }

    /// Posts a receive whose buffer is attached, and which is not as simple as most.
    #[inline(never)]
    fn post_receive_anyhow(&mut self, claim: Option<ClaimId>, receive: Receive) -> Result<(), Refused> {
        let posted = match claim {
            None => self.engine.delivery_mut().post_receive(&receive),
            Some(claim) => self.engine.delivery_mut().receive_claimed(claim, &receive),
        };
        posted.map_err(|error| {
            let buffer = self.engine.delivery_mut().memory_mut().take(receive.local);
            Refused { error: error.into(), buffer }
        })
    }

    /// After a receive was posted or a message thrown away: what waited for that goes on, and peers are told.
    #[inline]
    fn received(&mut self) {
        self.unblock();
        if self.engine.is_urgent() {
            let now = self.now();
            self.posted(now, false);
        } else {
            // A message that waited completes it at once: others may sleep for that.
            self.notify();
        }
    }

    pub(crate) fn post_parts(&mut self, whole: &Command, ranges: &[RemoteRange]) -> Result<(), PostError> {
        let local = self.local.as_mut();
        let room =
            local.and_then(|local| local.has_room(self.engine.delivery(), whole.endpoint, whole.peer, ranges.len()));
        if !room.unwrap_or_else(|| ranges.len() <= self.engine.room_for_commands()) {
            return Err(PostError::QueueFull);
        }
        self.engine.delivery().addresses().address(whole.peer).ok_or(PostError::NoSuchPeer)?;
        let parts = vector::parts(whole, ranges)?;
        let group = self.engine.delivery_mut().open_vector_op(whole, ranges.len() as u32)?;
        let now = self.now();
        // What a part triggers must not take the room of the next one.
        let held = self.deferred.hold(true);
        for part in parts {
            let mut part = self.engine.delivery().part(group, &part);
            let local = self.post_local(&mut part);
            if local.unwrap_or_else(|| self.engine.post(now, &part)).is_err() {
                // There was room for all of them, and nothing else can be wrong: but the user must hear of the rest.
                self.engine.delivery_mut().report(&part, Err(Failure::LocalFault));
            }
        }
        self.deferred.hold(held);
        self.posted(now, whole.has(CommandFlags::MORE));
        Ok(())
    }

    fn close_local(&mut self, endpoint: EndpointId) {
        if let Some(local) = &mut self.local {
            local.close_endpoint(self.engine.delivery_mut(), endpoint);
        }
    }

    /// Makes a buffer the engine's; an empty one is none.
    #[inline]
    pub(crate) fn attach(&mut self, buffer: Buffer) -> Result<LocalKey, Refused> {
        self.engine.delivery_mut().memory_mut().attach(buffer).map_err(Refused::from)
    }

    fn attach_payload(&mut self, command: &mut Command, payload: Payload<'_>) -> Result<(), Refused> {
        let limit = weft_core::limits::MESSAGE_LENGTH_MAX_BYTES;
        let too_long = |length: usize| PostError::TooLong { length: length as u64, limit };
        match payload {
            Payload::None => {}
            Payload::Whole(buffer) | Payload::Lent(buffer) => {
                let length = buffer.len();
                let reads = command.operation == Operation::Read && !buffer.is_writable() && length > 0;
                let error = if reads { Err(PostError::BadBuffer) } else { Ok(()) };
                match error.and(u32::try_from(length).map_err(|_| too_long(length))) {
                    Ok(length) => command.length = length,
                    Err(error) => return Err(Refused { error: error.into(), buffer: Some(buffer) }),
                }
                command.local = self.attach(buffer)?;
            }
            Payload::Part(buffer) => {
                if command.operation == Operation::Read && !buffer.is_writable() && command.length > 0 {
                    return Err(Refused { error: PostError::BadBuffer.into(), buffer: Some(buffer) });
                }
                command.local = self.attach(buffer)?;
            }
            Payload::Atomic { buffer, fetches } => {
                if fetches && !buffer.is_writable() {
                    return Err(Refused { error: PostError::BadBuffer.into(), buffer: Some(buffer) });
                }
                command.local = self.attach(buffer)?;
                if fetches {
                    command.immediate = u64::from(command.local.0);
                }
            }
            Payload::Copy(bytes) => {
                command.length = u32::try_from(bytes.len()).map_err(|_| too_long(bytes.len()))?;
                command.local = self.engine.delivery_mut().memory_mut().attach_inline(bytes)?;
            }
            Payload::Fetch { bytes, results } => {
                if !results.is_writable() {
                    return Err(Refused { error: PostError::BadBuffer.into(), buffer: Some(results) });
                }
                command.length = u32::try_from(bytes.len()).map_err(|_| too_long(bytes.len()))?;
                let (local, results) = self.engine.delivery_mut().memory_mut().attach_pair(bytes, results)?;
                (command.local, command.immediate) = (local, u64::from(results.0));
            }
        }
        Ok(())
    }
}
