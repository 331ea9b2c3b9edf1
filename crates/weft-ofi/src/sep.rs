//! Scalable endpoints: several transmit and receive contexts behind one address.
//!
//! The contexts' endpoints have numbers in a row, the first of which is the address, and the source of what any of them
//! sends. Transmit context and receive context
//! of the same index are the two sides of one endpoint of the NIC, which is opened when the first of them is enabled.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weft::raw::Numbers;
use weft::{Address, EndpointKind, EndpointOptions, Side};

use crate::abi::*;
use crate::av::{BoundPeers, Peers};
use crate::domain::Domain;
use crate::ep::{Endpoint, Role};
use crate::eq::EventQueue;
use crate::guard::{self, Result};
use crate::handle::{self, Noun};
use crate::info::Attributes;
use crate::{address, log};

/// What a handle of a scalable endpoint stands for. Aliases are handles of their own.
pub(crate) struct Handle {
    shared: Arc<Scalable>,
    is_alias: bool,
}

// SAFETY: `fid_ep` begins with its `fid`.
unsafe impl Noun for Handle {
    type Face = fid_ep;
    const MARK: u64 = u64::from_be_bytes(*b"weft-sep");
}

/// A scalable endpoint.
pub(crate) struct Scalable {
    contexts: Mutex<Vec<Context>>,
    numbers: Numbers,
    pub(crate) domain: Arc<Domain>,
    attributes: Attributes,
    peers: Mutex<Option<BoundPeers>>,
    aliases: AtomicUsize,
}

/// The two contexts of one index.
#[derive(Default)]
struct Context {
    endpoint: Option<weft::Endpoint>,
    transmits: bool,
    receives: bool,
}

impl Context {
    fn is_open(&mut self, side: Side) -> &mut bool {
        match side {
            Side::Transmit => &mut self.transmits,
            Side::Receive => &mut self.receives,
        }
    }
}

/// One side of a context.
pub(crate) struct Part {
    pub(crate) scalable: Arc<Scalable>,
    index: usize,
    pub(crate) side: Side,
}

impl Part {
    /// The NIC's endpoint, which the other side may have opened already.
    pub(crate) fn endpoint(&self) -> Result<weft::Endpoint> {
        let mut contexts = self.scalable.contexts();
        let context = contexts.get_mut(self.index).ok_or(-FI_EINVAL)?;
        if let Some(endpoint) = &context.endpoint {
            return Ok(endpoint.clone());
        }
        let options = EndpointOptions {
            kind: EndpointKind::Reliable,
            number: Some(self.scalable.numbers.first() + self.index as u32),
            speaks_as: Some(self.scalable.numbers.first()),
            quiet_close: true,
            ..EndpointOptions::default()
        };
        let endpoint = self.scalable.domain.nic.open_endpoint(options).map_err(|error| guard::errno(&error))?;
        context.endpoint = Some(endpoint.clone());
        Ok(endpoint)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let mut contexts = self.scalable.contexts();
        let Some(context) = contexts.get_mut(self.index) else { return };
        *context.is_open(self.side) = false;
        let is_last = !context.transmits && !context.receives;
        let endpoint = if is_last { context.endpoint.take() } else { context.endpoint.clone() };
        if let Some(endpoint) = endpoint {
            endpoint.close_side(self.side);
        }
    }
}

impl Scalable {
    fn contexts(&self) -> MutexGuard<'_, Vec<Context>> {
        self.contexts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn peers(&self) -> Option<BoundPeers> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn new(domain: &Arc<Domain>, attributes: Attributes) -> Result<Scalable> {
        let (transmits, receives) = (attributes.transmit_contexts, attributes.receive_contexts);
        if attributes.kind != FI_EP_RDM || transmits == FI_SHARED_CONTEXT || receives == FI_SHARED_CONTEXT {
            log::info!(EP_CTRL, "scalable endpoints are of type FI_EP_RDM and have contexts of their own");
            return Err(-FI_EINVAL);
        }
        let count = transmits.max(receives);
        let row = |first| Numbers::keep(&domain.nic, first, count as u32);
        let numbers = match domain.number_for(&attributes) {
            // A drawn number may lie in the way.
            Some(main) => row(Some(main)).or_else(|_| {
                domain.release_main();
                row(None)
            }),
            None => row(None),
        };
        Ok(Scalable {
            contexts: Mutex::new((0..count).map(|_| Context::default()).collect()),
            numbers: numbers.map_err(|error| guard::errno(&error))?,
            domain: domain.clone(),
            attributes,
            peers: Mutex::default(),
            aliases: AtomicUsize::new(0),
        })
    }

    fn address(&self) -> Address {
        Address { socket: self.domain.nic.local(), endpoint: self.numbers.first() }
    }

    /// Takes one side of a context.
    fn part(self: &Arc<Self>, index: c_int, side: Side) -> Result<Part> {
        let count = match side {
            Side::Transmit => self.attributes.transmit_contexts,
            Side::Receive => self.attributes.receive_contexts,
        };
        let index = usize::try_from(index).ok().filter(|index| *index < count).ok_or(-FI_EINVAL)?;
        let mut contexts = self.contexts();
        let context = contexts.get_mut(index).ok_or(-FI_EINVAL)?;
        if std::mem::replace(context.is_open(side), true) {
            log::info!(EP_CTRL, "context {index} is open already");
            return Err(-FI_EBUSY);
        }
        Ok(Part { scalable: self.clone(), index, side })
    }

    /// Opens a handle.
    fn face(self: &Arc<Self>, is_alias: bool, context: *mut c_void) -> *mut fid_ep {
        self.aliases.fetch_add(usize::from(is_alias), Ordering::Relaxed);
        let face = fid_ep {
            fid: handle::fid_of(FI_CLASS_SEP, context, &FID_OPERATIONS),
            ops: handle::table(&OPERATIONS),
            cm: handle::table(&CM_OPERATIONS),
            // Their functions refuse handles that are not of endpoints.
            msg: handle::table(&crate::msg::OPERATIONS),
            rma: handle::table(&crate::rma::OPERATIONS),
            tagged: handle::table(&crate::tagged::OPERATIONS),
            atomic: handle::table(&crate::atomic::OPERATIONS),
            collective: std::ptr::null_mut(),
        };
        handle::open(face, Arc::new(Handle { shared: self.clone(), is_alias }))
    }
}

impl Drop for Scalable {
    fn drop(&mut self) {
        if self.numbers.first() == 0 {
            self.domain.release_main();
        }
    }
}

static FID_OPERATIONS: fi_ops = crate::no::operations(close, bind, control);

static OPERATIONS: fi_ops_ep = fi_ops_ep {
    size: size_of::<fi_ops_ep>(),
    cancel: Some(crate::no::cancel),
    getopt: Some(crate::no::getopt),
    setopt: Some(crate::no::setopt),
    tx_ctx: Some(transmit_context),
    rx_ctx: Some(receive_context),
    rx_size_left: Some(crate::no::size_left),
    tx_size_left: Some(crate::no::size_left),
};

static CM_OPERATIONS: fi_ops_cm = fi_ops_cm {
    size: size_of::<fi_ops_cm>(),
    setname: Some(crate::no::setname),
    getname: Some(get_name),
    getpeer: Some(crate::no::getpeer),
    connect: Some(crate::no::connect),
    listen: Some(crate::no::listen),
    accept: Some(crate::no::accept),
    reject: Some(crate::no::reject),
    shutdown: Some(crate::no::shutdown),
    join: Some(crate::no::join),
};

/// `fi_scalable_ep`.
pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    info: *mut fi_info,
    into: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of a domain's table.
        let (domain, info) = unsafe { (handle::of::<Domain>(domain)?, info.as_ref().ok_or(-FI_EINVAL)?) };
        if into.is_null() {
            return Err(-FI_EINVAL);
        }
        // SAFETY: an info of libfabric, whose attributes are null or valid.
        let attributes = unsafe { Attributes::of(info)? };
        domain.check_source(&attributes)?;
        let scalable = Arc::new(Scalable::new(domain, attributes)?);
        // SAFETY: `into` was checked.
        unsafe { *into = scalable.face(false, context) };
        Ok(())
    })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of a scalable endpoint's table.
        let closed = unsafe { handle::of_fid::<Handle>(fid)? };
        let (shared, is_alias) = (closed.shared.clone(), closed.is_alias);
        let has_contexts = || shared.contexts().iter().any(|context| context.transmits || context.receives);
        if !is_alias && (shared.aliases.load(Ordering::Relaxed) > 0 || has_contexts()) {
            return Err(-FI_EBUSY);
        }
        // SAFETY: as above.
        unsafe { handle::close::<Handle>(fid)? };
        shared.aliases.fetch_sub(usize::from(is_alias), Ordering::Relaxed);
        Ok(())
    })
}

unsafe extern "C" fn bind(fid: *mut fid, to: *mut fid, _flags: u64) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of a scalable endpoint's table.
        let (scalable, other) = unsafe { (&handle::of_fid::<Handle>(fid)?.shared, to.as_ref().ok_or(-FI_EINVAL)?) };
        match other.fclass {
            FI_CLASS_AV => {
                // SAFETY: the class says what it is.
                let peers = unsafe { handle::of_fid::<Peers>(to)? };
                let mut bound = scalable.peers.lock().unwrap_or_else(PoisonError::into_inner);
                if bound.is_some() {
                    return Err(-FI_EINVAL);
                }
                *bound = Some(BoundPeers::new(peers));
                Ok(())
            }
            // Nothing is ever reported there.
            // SAFETY: the class says what it is.
            FI_CLASS_EQ => unsafe { handle::of_fid::<EventQueue>(to) }.map(|_| ()),
            _ => {
                log::info!(EP_CTRL, "queues and counters are bound to the contexts of a scalable endpoint");
                Err(-FI_EINVAL)
            }
        }
    })
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, argument: *mut c_void) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of a scalable endpoint's table.
        let scalable = unsafe { &handle::of_fid::<Handle>(fid)?.shared };
        match command {
            FI_ENABLE if scalable.peers().is_none() => Err(-FI_ENOAV),
            // Its contexts are enabled one by one.
            FI_ENABLE => Ok(()),
            FI_ALIAS => {
                // SAFETY: the argument of this command.
                let alias = unsafe { argument.cast::<fi_alias>().as_mut() }.ok_or(-FI_EINVAL)?;
                if alias.fid.is_null() {
                    return Err(-FI_EINVAL);
                }
                // SAFETY: `fid` is open; the pointer in the argument was checked.
                unsafe { *alias.fid = scalable.face(true, (*fid).context).cast() };
                Ok(())
            }
            _ => Err(-FI_ENOSYS),
        }
    })
}

unsafe extern "C" fn get_name(fid: fid_t, into: *mut c_void, length: *mut usize) -> c_int {
    guard::call(|| {
        // SAFETY: what C gives to a function of a scalable endpoint's table.
        let scalable = unsafe { &handle::of_fid::<Handle>(fid)?.shared };
        // SAFETY: as the caller of the interface promises.
        unsafe { address::write(scalable.domain.format, &scalable.address(), into, length) }
    })
}

/// Opens one side of a context.
///
/// # Safety
/// `sep` is null or a scalable endpoint.
unsafe fn open_context(
    sep: *mut fid_ep,
    index: c_int,
    side: Side,
    flags: Option<u64>,
    into: *mut *mut fid_ep,
    context: *mut c_void,
) -> Result {
    // SAFETY: as the caller says.
    let scalable = unsafe { &handle::of::<Handle>(sep)?.shared };
    if into.is_null() {
        return Err(-FI_EINVAL);
    }
    let mut attributes = scalable.attributes.clone();
    let (class, own_flags, other_caps) = match side {
        Side::Transmit => (FI_CLASS_TX_CTX, &mut attributes.transmit_flags, &mut attributes.receive_caps),
        Side::Receive => (FI_CLASS_RX_CTX, &mut attributes.receive_flags, &mut attributes.transmit_caps),
    };
    *own_flags = flags.unwrap_or(*own_flags);
    *other_caps = 0;
    let role = Role::Part(scalable.part(index, side)?);
    // SAFETY: `into` was checked.
    unsafe { *into = Endpoint::new(&scalable.domain, attributes, role, None).face(class, context) };
    Ok(())
}

/// `fi_tx_context`.
unsafe extern "C" fn transmit_context(
    sep: *mut fid_ep,
    index: c_int,
    wanted: *mut fi_tx_attr,
    into: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    // SAFETY: what C gives to a function of a scalable endpoint's table.
    guard::call(|| unsafe {
        let flags = wanted.as_ref().map(|wanted| wanted.op_flags);
        open_context(sep, index, Side::Transmit, flags, into, context)
    })
}

/// `fi_rx_context`.
unsafe extern "C" fn receive_context(
    sep: *mut fid_ep,
    index: c_int,
    wanted: *mut fi_rx_attr,
    into: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    // SAFETY: what C gives to a function of a scalable endpoint's table.
    guard::call(|| unsafe {
        let flags = wanted.as_ref().map(|wanted| wanted.op_flags);
        open_context(sep, index, Side::Receive, flags, into, context)
    })
}
