//! A NIC whose own thread panics.

mod common;

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use weft::link::{Counters, Incoming, Link, Notice, Outgoing, SendError};
use weft::{Error, Fabric, Progress, Road};

use common::patient;

/// Long enough that only a hang reaches it.
const PATIENCE: Option<Duration> = Some(Duration::from_secs(60));

/// A link with a bug that shows when it is told to.
struct Buggy {
    inner: Box<dyn Link>,
    shows: Arc<AtomicBool>,
}

impl Link for Buggy {
    fn local(&self) -> SocketAddr {
        self.inner.local()
    }
    fn mtu(&mut self, path: weft_core::session::Path) -> u32 {
        self.inner.mtu(path)
    }
    fn send(&mut self, batch: &[Outgoing<'_>]) -> Result<usize, SendError> {
        self.inner.send(batch)
    }
    fn receive(&mut self, sink: &mut dyn FnMut(Incoming<'_>)) -> io::Result<usize> {
        assert!(!self.shows.load(Ordering::SeqCst), "a bug that the test planted");
        self.inner.receive(sink)
    }
    fn poll_notice(&mut self) -> Option<Notice> {
        self.inner.poll_notice()
    }
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.inner.descriptor()
    }
    fn counters(&self) -> Counters {
        self.inner.counters()
    }
    fn room_bytes(&self) -> u64 {
        self.inner.room_bytes()
    }
}

#[test]
fn a_panic_of_the_nics_thread_is_heard_by_all_who_wait() {
    let fabric = Fabric::new("panic").unwrap();
    for road in [Road::Packets, Road::Automatic] {
        let shows = Arc::new(AtomicBool::new(false));
        let bug = shows.clone();
        let domain = fabric
            .domain()
            .road(road)
            .progress(Progress::Automatic)
            .configure(patient)
            .decorate(move |inner| Buggy { inner, shows: bug })
            .udp("127.0.0.1:0")
            .unwrap();
        let other = fabric.domain().road(road).progress(Progress::Automatic).configure(patient);
        let other = other.udp("127.0.0.1:0").unwrap();
        let (queue, other_queue) = (domain.completion_queue(64), other.completion_queue(64));
        let counter = domain.counter();
        let (end, other_end) = (domain.endpoint(&queue).unwrap(), other.endpoint(&other_queue).unwrap());
        let to_other = domain.addresses().insert(other_end.address()).unwrap();
        other_end.receive(vec![0; 8]).unwrap();
        end.send(to_other, vec![1; 8]).unwrap();
        assert!(queue.wait(PATIENCE).unwrap().unwrap().result.is_ok());

        // One waits for a message that will not come, one for a count, and a message waits for a receive.
        end.receive(vec![0; 8]).unwrap();
        end.send(to_other, vec![1; 1 << 20]).unwrap();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| queue.wait(PATIENCE).map(|found| found.is_some()));
            let counting = scope.spawn(|| counter.wait(1, PATIENCE));
            shows.store(true, Ordering::SeqCst);
            // Something comes, so the thread looks.
            let knock = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
            knock.send_to(b"anything", end.address().socket).unwrap();
            assert!(matches!(reader.join().unwrap(), Err(Error::NicFailed)));
            assert!(matches!(counting.join().unwrap(), Err(Error::NicFailed)));
        });
        // Who comes later hears it at once.
        assert!(matches!(queue.read(), Err(Error::NicFailed)));
        assert!(matches!(queue.try_wait(), Err(Error::NicFailed)));
        assert!(matches!(domain.progress(), Err(Error::NicFailed)));
        // Everything can be closed, and others go on.
        drop((end, queue, counter, domain));
        let there = other.endpoint(&other_queue).unwrap();
        let to_there = other.addresses().insert(there.address()).unwrap();
        there.receive(vec![0; 8]).unwrap();
        other_end.send(to_there, vec![2; 8]).unwrap();
        while !other_queue.wait(PATIENCE).unwrap().unwrap().into_bytes().is_ok_and(|bytes| bytes == [2; 8]) {}
    }
}
