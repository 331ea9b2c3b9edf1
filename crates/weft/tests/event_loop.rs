//! A completion queue in somebody else's event loop.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "clippy.toml allows them in tests, but not in the functions that tests call"
)]

mod common;

use std::time::Duration;

use tokio::io::unix::AsyncFd;
use weft::{Completion, CompletionQueue, Endpoint, Fabric, PeerId, Progress, Road};

use common::patient;

const PATIENCE: Duration = Duration::from_secs(60);

/// The usual rule: read until there is nothing, arm, and only then sleep.
async fn next(queue: &CompletionQueue, descriptor: &AsyncFd<std::os::fd::BorrowedFd<'_>>) -> Completion {
    loop {
        if let Some(completion) = queue.read().unwrap() {
            return completion.ok().unwrap();
        }
        if queue.try_wait().unwrap() {
            let ready = tokio::time::timeout(PATIENCE, descriptor.readable()).await;
            ready.expect("a wake-up was lost").unwrap().clear_ready();
        }
    }
}

async fn echo(endpoint: &Endpoint, queue: &CompletionQueue, peer: PeerId, first: bool) {
    // SAFETY: the queue keeps its descriptor open longer than this.
    let descriptor = unsafe { AsyncFd::register(queue.descriptor().unwrap()).unwrap() };
    if first {
        endpoint.inject(peer, b"ping").unwrap();
    }
    for _ in 0..100 {
        endpoint.receive(vec![0; 8]).unwrap();
        assert_eq!(next(queue, &descriptor).await.into_bytes().unwrap(), b"ping");
        endpoint.inject(peer, b"ping").unwrap();
    }
}

fn play(progress: Progress) {
    for road in [Road::Packets, Road::Automatic] {
        play_on(road, progress);
    }
}

fn play_on(road: Road, progress: Progress) {
    let fabric = Fabric::new("event loop").unwrap();
    let make = || fabric.domain().road(road).progress(progress).configure(patient).udp("127.0.0.1:0").unwrap();
    let domains = [make(), make()];
    let queues = domains.each_ref().map(|domain| domain.completion_queue(64));
    let endpoints = [0, 1].map(|index: usize| domains[index].endpoint(&queues[index]).unwrap());
    let peers = [0, 1].map(|index: usize| domains[index].addresses().insert(endpoints[1 - index].address()).unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let pinging = echo(&endpoints[0], &queues[0], peers[0], true);
        let ponging = echo(&endpoints[1], &queues[1], peers[1], false);
        let mut both = (Box::pin(pinging), Box::pin(ponging), false, false);
        std::future::poll_fn(|context| {
            use std::future::Future;
            both.2 = both.2 || both.0.as_mut().poll(context).is_ready();
            both.3 = both.3 || both.1.as_mut().poll(context).is_ready();
            if both.2 && both.3 { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        })
        .await;
    });
}

#[test]
fn tokio_with_manual_progress() {
    play(Progress::Manual);
}

#[test]
fn tokio_with_automatic_progress() {
    play(Progress::Automatic);
}
