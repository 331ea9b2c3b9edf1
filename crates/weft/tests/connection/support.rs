//! Domains with managers, and patience.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use weft::connection::{Connection, Event, Listener, Manager, Request, Settings};
use weft::link::fault::{Faults, Faulty};
use weft::{CompletionQueue, Domain, Endpoint, Fabric, PeerId, Progress, Road};

/// Long enough that only a hang reaches it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct World {
    fabric: Fabric,
    pub(crate) road: Road,
    pub(crate) progress: Progress,
    is_faulty: bool,
    /// All that was made, so that one thread can let everybody work.
    domains: RefCell<Vec<Domain>>,
}

/// A domain with a manager and a queue.
pub(crate) struct Node {
    pub(crate) domain: Domain,
    pub(crate) manager: Manager,
    pub(crate) queue: CompletionQueue,
}

/// Two connected ends.
pub(crate) struct Pair {
    pub(crate) a: (Endpoint, Connection, PeerId),
    pub(crate) b: (Endpoint, Connection, PeerId),
}

impl World {
    pub(crate) fn new(road: Road, progress: Progress) -> World {
        let (fabric, domains) = (Fabric::new("connection").unwrap(), RefCell::default());
        World { fabric, road, progress, is_faulty: false, domains }
    }

    /// One whose network loses, repeats, reorders and damages datagrams.
    pub(crate) fn faulty(self) -> World {
        World { is_faulty: true, ..self }
    }

    pub(crate) fn domain_with(&self, change: impl FnOnce(&mut weft::Config)) -> Domain {
        let mut builder = self.fabric.domain().road(self.road).progress(self.progress).configure(change);
        if self.is_faulty {
            let seed = self.domains.borrow().len() as u64 + 1;
            let faults = Faults { loss: 0.05, duplicate: 0.05, reorder: 0.05, corrupt: 0.05, ..Faults::default() };
            builder = builder.decorate(move |link| Faulty::new(link, seed, faults, Faults::default()));
        }
        let domain = builder.udp("127.0.0.1:0").unwrap();
        self.domains.borrow_mut().push(domain.clone());
        domain
    }

    pub(crate) fn domain(&self) -> Domain {
        self.domain_with(crate::common::patient)
    }

    /// One that finds out about the dead sooner, after some seconds: a machine may well stand still for one.
    pub(crate) fn quick_node(&self, seconds: u64) -> Node {
        let domain = self.domain_with(|config| config.give_up_us = seconds * 1_000_000);
        self.node_with(domain, Settings { patience: None })
    }

    pub(crate) fn listener(&self) -> Listener {
        Listener::new(&self.domain()).unwrap()
    }

    pub(crate) fn node(&self) -> Node {
        self.node_with(self.domain(), Settings { patience: None })
    }

    pub(crate) fn node_with(&self, domain: Domain, settings: Settings) -> Node {
        let manager = Manager::with(&domain, settings).unwrap();
        let queue = domain.completion_queue(4096);
        Node { domain, manager, queue }
    }

    /// Lets go of a domain, so that it closes with its last handle.
    pub(crate) fn forget(&self, domain: &Domain) {
        self.domains.borrow_mut().retain(|other| other.local() != domain.local());
    }

    /// Lets everybody work until there is something.
    pub(crate) fn until<T>(&self, mut found: impl FnMut() -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            if let Some(found) = found() {
                return found;
            }
            self.work();
            assert!(start.elapsed() < PATIENCE, "hangs");
        }
    }

    pub(crate) fn work(&self) {
        if self.progress == Progress::Automatic {
            std::thread::yield_now();
            return;
        }
        for domain in &*self.domains.borrow() {
            domain.progress().unwrap();
        }
    }

    pub(crate) fn event(&self, node: &Node) -> Event {
        self.until(|| node.manager.poll().unwrap())
    }

    /// The event, while another manager, which has none, works too.
    pub(crate) fn event_beside(&self, node: &Node, other: &Node) -> Event {
        self.until(|| {
            assert_eq!(other.manager.poll().unwrap(), None);
            node.manager.poll().unwrap()
        })
    }

    pub(crate) fn request(&self, listener: &Listener) -> Request {
        self.until(|| listener.poll().unwrap())
    }

    /// Connects new endpoints of two nodes.
    pub(crate) fn pair(&self, listener: &Listener, a: &Node, b: &Node, contexts: [u64; 2]) -> Pair {
        let (a_end, b_end) = (a.endpoint(), b.endpoint());
        // The socket is all that one has to know.
        let to = weft::connection::listener_at(listener.domain().local());
        let asking = a.manager.connect(&a_end, to, contexts[0], b"").unwrap();
        let request = self.until(|| {
            assert_eq!(a.manager.poll().unwrap(), None);
            listener.poll().unwrap()
        });
        assert_eq!(request.endpoint(), a_end.address());
        let accepting = b.manager.accept(request, &b_end, contexts[1], b"").unwrap();
        let (mut to_b, mut to_a) = (None, None);
        self.until(|| {
            for (node, context, found) in [(a, contexts[0], &mut to_b), (b, contexts[1], &mut to_a)] {
                if let Some(event) = node.manager.poll().unwrap() {
                    let Event::Connected { context: of, peer, .. } = event else { panic!("{event:?}") };
                    assert_eq!((of, *found), (context, None));
                    *found = Some(peer);
                }
            }
            to_b.and(to_a)
        });
        Pair { a: (a_end, asking, to_b.unwrap()), b: (b_end, accepting, to_a.unwrap()) }
    }

    /// Sends a message each way.
    pub(crate) fn talk(&self, a: &Node, b: &Node, pair: &Pair, text: &[u8]) {
        for (from, to, end, other) in [(a, b, &pair.a, &pair.b), (b, a, &pair.b, &pair.a)] {
            other.0.receive(vec![0; 4096]).unwrap();
            end.0.send(end.2, text.to_vec()).unwrap();
            let received = self.until(|| to.queue.read().unwrap()).ok().unwrap();
            assert_eq!(received.source, Some(end.0.address()));
            assert_eq!(received.into_bytes().unwrap(), text);
            self.until(|| from.queue.read().unwrap()).ok().unwrap();
        }
    }

    /// Whether both managers stay silent while everybody works for a while.
    pub(crate) fn assert_silence(&self, nodes: &[&Node]) {
        for _ in 0..200 {
            for node in nodes {
                assert_eq!(node.manager.poll().unwrap(), None);
            }
            self.work();
        }
    }
}

impl Node {
    pub(crate) fn endpoint(&self) -> Endpoint {
        self.domain.endpoint(&self.queue).unwrap()
    }
}
