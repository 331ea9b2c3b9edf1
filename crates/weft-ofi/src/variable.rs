//! Messages of any length (`FI_VARIABLE_MSG`): the program hears of a message, with its length, before it gives memory for
//! it. Of messages without tag it hears without asking; tagged ones it asks for by posting tags without memory. What it
//! hears names a [`fi_recv_context`] of ours, by which it claims or discards the message.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use libc::iovec;
use weft::CompletionKind;
use weft::raw::{Buffer, ClaimId, Ended, Receive};

use crate::abi::*;
use crate::ep::{Endpoint, Live};
use crate::guard::{self, Result};
use crate::handle;
use crate::limits::ANNOUNCING_RECEIVES;
use crate::operation::{self, Local, ReceiveCall};

/// What the endpoints of a domain told of, or will. Its lock is taken inside the NIC's: nobody calls the NIC with it.
#[derive(Default)]
pub(crate) struct Announcements {
    known: Mutex<Known>,
    /// How many receives have to be posted again.
    lacking: AtomicUsize,
    owners: AtomicU64,
}

#[derive(Default)]
struct Known {
    /// By the address of the context that the program has, or will have.
    news: HashMap<u64, News>,
    /// The same by the numbers that the NIC has for receives that told of nothing yet. Addresses are used again, and what
    /// an endpoint told before it was closed may still be in a queue.
    posted: HashMap<u64, u64>,
    /// The endpoints that lack a receive, once for each.
    lacking: Vec<Weak<Variable>>,
    last: u64,
}

/// One message that was told of, or a receive that will tell of one.
struct News {
    context: Context,
    tagged: bool,
    state: State,
    /// Older ones have smaller numbers.
    number: u64,
    owner: u64,
    variable: Weak<Variable>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// No message has come.
    Posted,
    /// The program knows.
    Told(ClaimId),
    /// The program is about to receive or discard it.
    Taken(ClaimId),
}

/// A context that the program reads and writes by its address.
struct Context(*mut fi_recv_context);

// SAFETY: the memory belongs to the value, whatever thread has it.
unsafe impl Send for Context {}

impl Context {
    fn new(ep: *mut fid_ep, context: *mut c_void) -> Context {
        Context(Box::into_raw(Box::new(fi_recv_context { ep, context })))
    }

    fn address(&self) -> u64 {
        self.0 as u64
    }

    /// What the program left in it.
    fn value(&self) -> *mut c_void {
        // SAFETY: it is ours, and the program does not write it during the call that ends its use.
        unsafe { (*self.0).context }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it was made from a box, and the program may not use it any more.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

impl Announcements {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this is news of a message that went with its endpoint. Called inside the NIC.
    #[cold]
    pub(crate) fn is_forgotten(&self, completion: &Ended<'_>) -> bool {
        let is_news = matches!(completion.kind, CompletionKind::Announced | CompletionKind::TaggedAnnounced);
        is_news && !self.known().posted.contains_key(&completion.context)
    }

    /// A message is told of: the context that names it. Called inside the NIC.
    pub(crate) fn heard(&self, completion: &Ended<'_>) -> u64 {
        let mut known = self.known();
        let Some(address) = known.posted.remove(&completion.context) else { return 0 };
        let Some(news) = known.news.get_mut(&address) else { return 0 };
        news.state = State::Told(ClaimId(completion.offset()));
        if !news.tagged {
            let variable = news.variable.clone();
            known.lacking.push(variable);
            self.lacking.store(known.lacking.len(), Ordering::Release);
        }
        address
    }

    /// A receive was cancelled: if it was the program's tag, the context that it had. Called inside the NIC.
    pub(crate) fn cancelled(&self, completion: &Ended<'_>) -> Option<u64> {
        if completion.kind != CompletionKind::TaggedReceive {
            return None;
        }
        let mut known = self.known();
        let address = known.posted.remove(&completion.context)?;
        known.news.remove(&address).map(|news| news.context.value() as u64)
    }

    /// Posts receives again that told of a message.
    #[inline]
    pub(crate) fn refill(&self) {
        if self.lacking.load(Ordering::Acquire) > 0 {
            self.refill_now();
        }
    }

    #[cold]
    fn refill_now(&self) {
        let mut known = self.known();
        let lacking = std::mem::take(&mut known.lacking);
        self.lacking.store(0, Ordering::Release);
        drop(known);
        let mut refused = Vec::new();
        for owner in lacking {
            let Some(variable) = owner.upgrade() else { continue };
            if variable.post(weft::raw::receive(&variable.endpoint, 0), variable.face, std::ptr::null_mut()).is_err() {
                refused.push(owner);
            }
        }
        if !refused.is_empty() {
            // There is no room now: the next one who looks for completions tries again.
            let mut known = self.known();
            known.lacking.append(&mut refused);
            self.lacking.store(known.lacking.len(), Ordering::Release);
        }
    }
}

/// An endpoint that tells of messages.
pub(crate) struct Variable {
    endpoint: weft::Endpoint,
    /// What the program knows the endpoint by; nobody follows it here.
    face: *mut fid_ep,
    /// Ends after the endpoint: then nothing is told any more.
    owned: Owned,
}

// SAFETY: the pointer is a name.
unsafe impl Send for Variable {}
// SAFETY: as above.
unsafe impl Sync for Variable {}

/// The contexts of one endpoint.
struct Owned {
    announcements: Arc<Announcements>,
    number: u64,
}

impl Drop for Owned {
    fn drop(&mut self) {
        let mut known = self.announcements.known();
        known.news.retain(|_, news| news.owner != self.number);
        let Known { news, posted, .. } = &mut *known;
        posted.retain(|_, address| news.contains_key(address));
    }
}

impl Variable {
    pub(crate) fn new(announcements: &Arc<Announcements>, endpoint: &weft::Endpoint, face: *mut fid_ep) -> Variable {
        let number = announcements.owners.fetch_add(1, Ordering::Relaxed);
        let owned = Owned { announcements: announcements.clone(), number };
        Variable { endpoint: endpoint.clone(), face, owned }
    }

    /// The endpoint is enabled. `messages`: it tells of messages without tag.
    pub(crate) fn start(self: &Arc<Self>, messages: bool) {
        let announcements = &self.owned.announcements;
        if messages {
            let mut known = announcements.known();
            known.lacking.extend((0..ANNOUNCING_RECEIVES).map(|_| Arc::downgrade(self)));
            announcements.lacking.store(known.lacking.len(), Ordering::Release);
        }
        announcements.refill();
    }

    /// Posts a receive that tells of a message, with a context that says this.
    fn post(
        self: &Arc<Self>,
        mut receive: Receive,
        ep: *mut fid_ep,
        value: *mut c_void,
    ) -> std::result::Result<(), weft::Refused> {
        let announcements = &self.owned.announcements;
        let context = Context::new(ep, value);
        let address = context.address();
        let mut known = announcements.known();
        known.last += 1;
        // Unlike any address that a program could name an operation by.
        let (number, variable) = (known.last | 1 << 63, Arc::downgrade(self));
        (receive.context, receive.announce, receive.silent) = (number, true, false);
        known.posted.insert(number, address);
        let (tagged, state, owner) = (receive.tagged, State::Posted, self.owned.number);
        known.news.insert(address, News { context, tagged, state, number, owner, variable });
        drop(known);
        let result = weft::raw::post_receive(&self.endpoint, &receive, Buffer::from(Vec::<u8>::new()));
        if result.is_err() {
            let mut known = announcements.known();
            known.news.remove(&address);
            known.posted.remove(&number);
        }
        result
    }

    /// A message that was told of, for a call that ends its waiting, and the value that the program left in its context.
    fn take(&self, context: u64, tagged: bool) -> Option<(ClaimId, *mut c_void)> {
        let mut known = self.owned.announcements.known();
        let news = known.news.get_mut(&context);
        let news = news.filter(|news| news.owner == self.owned.number && news.tagged == tagged)?;
        let State::Told(claim) = news.state else { return None };
        news.state = State::Taken(claim);
        Some((claim, news.context.value()))
    }

    /// The call that took it has ended.
    fn taken(&self, context: u64, done: bool) {
        let mut known = self.owned.announcements.known();
        if done {
            known.news.remove(&context);
        } else if let Some(news) = known.news.get_mut(&context)
            && let State::Taken(claim) = news.state
        {
            news.state = State::Told(claim);
        }
    }

    /// Cancels the oldest tag that was posted with this context, or else what the NIC knows by it.
    pub(crate) fn cancel(&self, context: *mut c_void) -> bool {
        let found = {
            let known = self.owned.announcements.known();
            let mine = |news: &&News| news.tagged && news.owner == self.owned.number && news.state == State::Posted;
            let of_context = known.news.values().filter(mine).filter(|news| news.context.value() == context);
            of_context.map(|news| news.number).min()
        };
        self.endpoint.cancel(found.unwrap_or(context as u64))
    }
}

/// Receives or discards a message that was told of, or looks for one that was not.
fn receive_message(endpoint: &Endpoint, call: &ReceiveCall) -> Result<usize> {
    let live = endpoint.live_receive()?;
    let variable = live.variable.as_ref().ok_or(-FI_EOPNOTSUPP)?;
    match call.flags & (FI_PEEK | FI_CLAIM | FI_DISCARD) {
        0 if call.tag.is_some() => return post_tag(live, variable, call),
        // Nobody posts receives but we.
        0 => return Err(-FI_EOPNOTSUPP),
        _ if call.flags & (FI_MULTI_RECV | FI_TRIGGER) != 0 => return Err(-FI_EOPNOTSUPP),
        _ if call.flags & FI_PEEK != 0 => return operation::receive(endpoint, call),
        _ => {}
    }
    let context = call.context as u64;
    let Some((claim, value)) = variable.take(context, call.tag.is_some()) else {
        // It may be one that was claimed when it was looked for.
        return operation::receive(endpoint, call);
    };
    let result = if call.flags & FI_DISCARD != 0 {
        weft::raw::discard_claimed(&live.endpoint, claim).map(|()| 0).map_err(|error| guard::errno(&error))
    } else {
        receive_claimed(live, claim, &ReceiveCall { context: value, ..*call })
    };
    variable.taken(context, result.is_ok());
    variable.owned.announcements.refill();
    result
}

fn receive_claimed(live: &Live, claim: ClaimId, call: &ReceiveCall) -> Result<usize> {
    // The message is known: nobody else's can be meant.
    let receive = operation::receive_of(live, &ReceiveCall { source: FI_ADDR_UNSPEC, ..*call })?;
    let buffer = call.local.buffer(true)?;
    operation::posted(live, weft::raw::receive_claimed(&live.endpoint, claim, &receive, buffer))
}

/// The program wants to hear of messages with a tag. Memory that it names does not matter.
fn post_tag(live: &Live, variable: &Arc<Variable>, call: &ReceiveCall) -> Result<usize> {
    if call.flags & FI_TRIGGER != 0 {
        return Err(-FI_EOPNOTSUPP);
    }
    let receive = operation::receive_of(live, &ReceiveCall { local: NOTHING, ..*call })?;
    operation::posted(live, variable.post(receive, std::ptr::null_mut(), call.context))
}

const NOTHING: Local = Local::One { pointer: std::ptr::null_mut(), length: 0, descriptor: std::ptr::null_mut() };

/// Messages without tag.
pub(crate) static MESSAGES: fi_ops_msg = fi_ops_msg {
    recv: Some(message::receive),
    recvv: Some(message::receive_pieces),
    recvmsg: Some(message::receive_message),
    ..crate::msg::OPERATIONS
};

/// Messages with tag.
pub(crate) static TAGGED: fi_ops_tagged = fi_ops_tagged {
    recv: Some(tagged::receive),
    recvv: Some(tagged::receive_pieces),
    recvmsg: Some(tagged::receive_message),
    ..crate::tagged::OPERATIONS
};

mod message {
    use super::*;

    pub(super) unsafe extern "C" fn receive(
        _ep: *mut fid_ep,
        _pointer: *mut c_void,
        _length: usize,
        _descriptor: *mut c_void,
        _source: fi_addr_t,
        _context: *mut c_void,
    ) -> isize {
        -(FI_EOPNOTSUPP as isize)
    }

    pub(super) unsafe extern "C" fn receive_pieces(
        _ep: *mut fid_ep,
        _pieces: *const iovec,
        _descriptors: *mut *mut c_void,
        _count: usize,
        _source: fi_addr_t,
        _context: *mut c_void,
    ) -> isize {
        -(FI_EOPNOTSUPP as isize)
    }

    pub(super) unsafe extern "C" fn receive_message(ep: *mut fid_ep, message: *const fi_msg, flags: u64) -> isize {
        guard::count(|| {
            // SAFETY: what C gives to a function of an endpoint's table.
            let (endpoint, message) = unsafe { (handle::of::<Endpoint>(ep)?, message.as_ref().ok_or(-FI_EINVAL)?) };
            let local = Local::Many { pieces: message.msg_iov, descriptors: message.desc, count: message.iov_count };
            let (source, context) = (message.addr, message.context);
            let flags = endpoint.receive_flags_with(flags)?;
            super::receive_message(endpoint, &ReceiveCall { local, source, tag: None, context, flags })
        })
    }
}

mod tagged {
    use super::*;

    pub(super) unsafe extern "C" fn receive(
        ep: *mut fid_ep,
        _pointer: *mut c_void,
        _length: usize,
        _descriptor: *mut c_void,
        source: fi_addr_t,
        tag: u64,
        ignore: u64,
        context: *mut c_void,
    ) -> isize {
        guard::count(|| {
            // SAFETY: what C gives to a function of an endpoint's table.
            let endpoint = unsafe { handle::of::<Endpoint>(ep)? };
            let call = ReceiveCall { local: NOTHING, source, tag: Some((tag, ignore)), context, flags: 0 };
            super::receive_message(endpoint, &call)
        })
    }

    pub(super) unsafe extern "C" fn receive_pieces(
        ep: *mut fid_ep,
        _pieces: *const iovec,
        _descriptors: *mut *mut c_void,
        _count: usize,
        source: fi_addr_t,
        tag: u64,
        ignore: u64,
        context: *mut c_void,
    ) -> isize {
        // SAFETY: as the caller says.
        unsafe { receive(ep, std::ptr::null_mut(), 0, std::ptr::null_mut(), source, tag, ignore, context) }
    }

    pub(super) unsafe extern "C" fn receive_message(
        ep: *mut fid_ep,
        message: *const fi_msg_tagged,
        flags: u64,
    ) -> isize {
        guard::count(|| {
            // SAFETY: what C gives to a function of an endpoint's table.
            let (endpoint, message) = unsafe { (handle::of::<Endpoint>(ep)?, message.as_ref().ok_or(-FI_EINVAL)?) };
            let local = Local::Many { pieces: message.msg_iov, descriptors: message.desc, count: message.iov_count };
            let (source, context) = (message.addr, message.context);
            let (tag, ignore) = (message.tag, message.ignore);
            let flags = endpoint.receive_flags_with(flags)?;
            super::receive_message(endpoint, &ReceiveCall { local, source, tag: Some((tag, ignore)), context, flags })
        })
    }
}
