//! A domain: one NIC.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use weft_core::delivery::EndpointKind;
use weft_core::engine::{Config, Engine, State, Statistics};
use weft_core::memory::Access;
use weft_link::Link;
use weft_link::udp::{self, UdpLink};
use weft_link::wait::WaitSet;
use weft_mem::HostMemory;
use weft_mem::lock::OneAtATime;

use crate::address_vector::AddressVector;
use crate::completion_queue::CompletionQueue;
use crate::counter::Counter;
use crate::driver::{Core, Nic, Progress};
use crate::endpoint::{Endpoint, EndpointOptions};
use crate::error::{Error, Result};
use crate::exit;
use crate::fabric::Fabric;
use crate::limits::LINGER_ACKNOWLEDGE_US;
use crate::local::{Local, LocalStatistics};
use crate::memory_region::{MemoryRegion, Registrable};

/// One NIC: an engine, a link, and the memory that both may touch. Clones are handles of the same NIC, as is everything
/// that was made from it; it closes when the last of them is dropped.
///
/// ```
/// use weft::{Access, Fabric, Progress};
///
/// let fabric = Fabric::new("doc")?;
/// let domain = fabric.domain().progress(Progress::Automatic).udp("127.0.0.1:0")?;
/// let queue = domain.completion_queue(64);
/// let endpoint = domain.endpoint(&queue)?;
/// let region = domain.register(vec![0; 4096], Access::REMOTE)?;
/// println!("reach me at {} and my memory at {:?}", endpoint.address(), region.remote());
/// # Ok::<(), weft::Error>(())
/// ```
#[derive(Clone)]
pub struct Domain {
    shared: Arc<Shared>,
}

struct Shared {
    nic: Arc<Nic>,
    fabric: Fabric,
    local: SocketAddr,
    thread: Option<(JoinHandle<()>, Arc<WaitSet>)>,
}

impl Domain {
    /// A domain of the fabric `""` on a UDP socket, with the usual settings. Port 0: any that is free.
    pub fn udp(bind: impl ToSocketAddrs) -> Result<Domain> {
        Fabric::new("")?.udp(bind)
    }

    /// The fabric it belongs to.
    #[must_use]
    pub fn fabric(&self) -> &Fabric {
        &self.shared.fabric
    }

    /// Where peers reach it.
    #[must_use]
    pub fn local(&self) -> SocketAddr {
        self.shared.local
    }

    /// Who does its work.
    #[must_use]
    pub fn progress_mode(&self) -> Progress {
        self.nic().progress_mode()
    }

    /// The peers that have names.
    #[must_use]
    pub fn addresses(&self) -> AddressVector {
        AddressVector::new(self.clone())
    }

    /// A queue for `capacity` completions. Peers are told to wait while it is full, and nothing is ever lost for it.
    #[must_use]
    pub fn completion_queue(&self, capacity: usize) -> CompletionQueue {
        CompletionQueue::open(self, capacity)
    }

    /// A counter of completions.
    #[must_use]
    pub fn counter(&self) -> Counter {
        Counter::open(self)
    }

    /// A reliable endpoint that reports everything to one queue.
    pub fn endpoint(&self, queue: &CompletionQueue) -> Result<Endpoint> {
        self.open_endpoint(EndpointOptions::with_queue(EndpointKind::Reliable, queue))
    }

    /// An endpoint for datagrams that may be lost, which reports everything to one queue.
    pub fn datagram_endpoint(&self, queue: &CompletionQueue) -> Result<Endpoint> {
        self.open_endpoint(EndpointOptions::with_queue(EndpointKind::Datagram, queue))
    }

    /// An endpoint that reports as the options say.
    pub fn open_endpoint(&self, options: EndpointOptions) -> Result<Endpoint> {
        Endpoint::open(self, options)
    }

    /// Lets peers reach memory: a vector of bytes (taken over, not copied), or so many zeroed bytes.
    pub fn register(&self, memory: impl Into<Registrable>, access: Access) -> Result<MemoryRegion> {
        MemoryRegion::register(self, memory.into(), access)
    }

    /// Does a round of work. Only needed with [`Progress::Manual`], by a thread that has nothing to post or to read but
    /// whose peers shall be served.
    pub fn progress(&self) -> Result<()> {
        let mut core = self.nic().lock();
        core.progress_all();
        core.check()
    }

    /// Counts of what happened.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        *self.nic().lock().engine.statistics()
    }

    /// Which ways the traffic to and from peers on this machine took.
    #[must_use]
    pub fn local_statistics(&self) -> LocalStatistics {
        self.nic().lock().local.as_ref().map(Local::statistics).unwrap_or_default()
    }

    /// What became of datagrams that did not go the plain way.
    #[must_use]
    pub fn link_counters(&self) -> weft_link::Counters {
        self.nic().lock().link.counters()
    }

    /// Which ways bytes took that do not go straight between memory and link.
    #[must_use]
    pub fn transfer_counters(&self) -> TransferCounters {
        let core = self.nic().lock();
        TransferCounters { staging: core.engine.delivery().memory().staging_counters(), staged: core.link.staged() }
    }

    /// How much the engine keeps.
    #[must_use]
    pub fn state(&self) -> State {
        self.nic().lock().engine.state()
    }

    /// Makes it vanish as if its process were killed: from now on it neither sends nor hears anything, and peers find out
    /// by themselves. For tests of what they do then.
    pub fn abandon(&self) {
        self.nic().lock().abandon();
    }

    #[inline]
    pub(crate) fn nic(&self) -> &Nic {
        &self.shared.nic
    }

    pub(crate) fn is_same(&self, other: &Domain) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Domain({} at {})", self.shared.fabric.name(), self.shared.local)
    }
}

impl Drop for Shared {
    /// Everything made from the domain is closed already: each of it holds a handle.
    fn drop(&mut self) {
        if self.nic.is_inherited() {
            // Its thread is the parent's.
            std::mem::forget(self.thread.take());
            return;
        }
        if let Some((thread, set)) = self.thread.take() {
            self.nic.stop(&set);
            thread.thread().unpark();
            // A panic of the NIC's thread has been told to whoever asked.
            let _ = thread.join();
        }
        // Who sent us something last waits for its acknowledgement, which the engine may still hold back.
        let heard = {
            let core = self.nic.lock();
            !core.is_abandoned() && core.engine.statistics().packets_received > 0
        };
        let (start, linger) = (Instant::now(), Duration::from_micros(LINGER_ACKNOWLEDGE_US));
        // At least once, even if this thread was kept from the processor for that long.
        let mut lingers = heard;
        while lingers {
            self.nic.lock().progress_and_acknowledge();
            lingers = start.elapsed() < linger;
        }
    }
}

/// Which ways bytes took that do not go straight between memory and link: nothing falls back in silence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransferCounters {
    /// Through pinned buffers from and to devices.
    pub staging: weft_mem::StagingCounters,
    /// Copied from a device once more, since the link could not take them when they had been fetched.
    pub staged: weft_link::staged::StagedCounters,
}

/// What wraps a link before a domain uses it.
type Decorator = Box<dyn FnOnce(Box<dyn Link>) -> Box<dyn Link>>;

/// A domain whose settings are still to be chosen.
pub struct DomainBuilder {
    fabric: Fabric,
    config: Config,
    udp: udp::Config,
    progress: Progress,
    decorators: Vec<Decorator>,
    road: Option<Road>,
    promised: Option<OneAtATime>,
    stand_in: bool,
}

/// How peers on the same machine are reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Road {
    /// Through shared memory where the peer is a process of the same user on this machine, as packets otherwise.
    #[default]
    Automatic,
    /// As packets, wherever they are.
    Packets,
}

impl DomainBuilder {
    pub(crate) fn new(fabric: Fabric) -> DomainBuilder {
        DomainBuilder {
            fabric,
            config: Config::default(),
            udp: udp::Config::default(),
            progress: Progress::Manual,
            decorators: Vec::new(),
            road: None,
            promised: None,
            stand_in: false,
        }
    }

    /// How peers on the same machine are reached; [`Road::Automatic`] unless chosen or the link is decorated.
    #[must_use]
    pub fn road(mut self, road: Road) -> DomainBuilder {
        self.road = Some(road);
        self
    }

    /// Who does the work; [`Progress::Manual`] unless chosen.
    #[must_use]
    pub fn progress(mut self, progress: Progress) -> DomainBuilder {
        self.progress = progress;
        self
    }

    /// Spares the lock: the caller has promised that calls of this domain, and of everything that is made from it, come one
    /// at a time. Not possible with [`Progress::Automatic`], which is a thread of its own.
    #[must_use]
    pub fn single_threaded(mut self, promise: OneAtATime) -> DomainBuilder {
        self.promised = Some(promise);
        self
    }

    /// With [`Progress::Manual`]: a thread does the work while callers stay away for longer than a moment, so that peers who
    /// wait for an answer do not think that this one is dead.
    #[must_use]
    pub fn stand_in(mut self) -> DomainBuilder {
        self.stand_in = true;
        self
    }

    /// Changes the engine's settings. The session is the fabric's whatever is set here.
    #[must_use]
    pub fn configure(mut self, change: impl FnOnce(&mut Config)) -> DomainBuilder {
        change(&mut self.config);
        self
    }

    /// Changes the settings of the UDP socket.
    #[must_use]
    pub fn configure_udp(mut self, change: impl FnOnce(&mut udp::Config)) -> DomainBuilder {
        change(&mut self.udp);
        self
    }

    /// Wraps the link, for faults or a capture. The last wrapper is the outermost. So that it sees all traffic, peers on
    /// the same machine are then reached as packets too, unless [`DomainBuilder::road`] says otherwise.
    #[must_use]
    pub fn decorate<L: Link + 'static>(mut self, wrap: impl FnOnce(Box<dyn Link>) -> L + 'static) -> DomainBuilder {
        self.decorators.push(Box::new(|link| Box::new(wrap(link))));
        self
    }

    /// Opens it on a UDP socket. Port 0: any that is free.
    pub fn udp(mut self, bind: impl ToSocketAddrs) -> Result<Domain> {
        let doing = "open a UDP socket";
        let mut addresses = bind.to_socket_addrs().map_err(Error::system("resolve the address to bind to"))?;
        let none = || Error::system(doing)(std::io::ErrorKind::AddrNotAvailable.into());
        let link = UdpLink::open(addresses.next().ok_or_else(none)?, &self.udp).map_err(Error::system(doing))?;
        let road = self.road.unwrap_or(if self.decorators.is_empty() { Road::Automatic } else { Road::Packets });
        let local = match road {
            Road::Packets => None,
            Road::Automatic => {
                // Without it everything goes as packets: a second domain on the same port cannot have the name.
                Local::open(link.local(), self.fabric.session_id(), self.config.commands_max).ok()
            }
        };
        self.config.host_address = Some(link.local().ip()).filter(|_| self.decorators.is_empty());
        self.open(Box::new(link), local)
    }

    /// Opens it on any link. Everything goes through it, to peers on the same machine too.
    pub fn link(self, link: Box<dyn Link>) -> Result<Domain> {
        self.open(link, None)
    }

    fn open(self, link: Box<dyn Link>, local: Option<Local>) -> Result<Domain> {
        if self.promised.is_some() && self.progress == Progress::Automatic {
            return Err(Error::NotSingleThreaded);
        }
        let link = self.decorators.into_iter().fold(link, |link, wrap| wrap(link));
        let mut seed = [0; 32];
        getrandom::fill(&mut seed)
            .map_err(|error| Error::system("draw random numbers")(std::io::Error::other(error.to_string())))?;
        let mut config = Config { session: self.fabric.session_id(), ..self.config };
        if config.window_max_bytes == Config::default().window_max_bytes {
            config.window_max_bytes = link.room_bytes();
        }
        let engine = Engine::new(config, self.fabric.codec(), seed, HostMemory::new());
        let address = link.local();
        let nic = Arc::new(Nic::new(Core::new(engine, link, local), self.progress, self.promised));
        nic.backoff.prepare(&nic);
        exit::see_to(&nic);
        let thread = match self.progress {
            Progress::Manual if self.stand_in => Some(start_thread(&nic, Nic::stand_in)?),
            Progress::Manual => None,
            Progress::Automatic => Some(start_thread(&nic, Nic::run)?),
        };
        let shared = Shared { nic, fabric: self.fabric, local: address, thread };
        Ok(Domain { shared: Arc::new(shared) })
    }
}

impl fmt::Debug for DomainBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DomainBuilder({}, {:?})", self.fabric.name(), self.progress)
    }
}

fn start_thread(nic: &Arc<Nic>, work: fn(&Nic, &Arc<WaitSet>)) -> Result<(JoinHandle<()>, Arc<WaitSet>)> {
    let set = WaitSet::new(&nic.lock().descriptors(true)).map_err(Error::system("make a descriptor to wait on"))?;
    let set = Arc::new(set);
    let (nic, sleeps_on) = (nic.clone(), set.clone());
    let thread = std::thread::Builder::new().name("weft-nic".to_owned()).spawn(move || nic.employ(&sleeps_on, work));
    Ok((thread.map_err(Error::system("start the NIC's thread"))?, set))
}
