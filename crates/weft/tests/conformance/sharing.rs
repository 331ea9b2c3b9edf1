//! Endpoints that share one pool of receives.

use weft::{Completion, Options, PeerId, PostError, ReceiveOptions, raw};
use weft::{
    CompletionKind, CompletionQueue, Endpoint, EndpointKind, EndpointOptions, Error, Failure, Level, OpenError,
};

use crate::support::{Node, World, pattern};

/// Two endpoints of a node with a queue each, which take their receives from the node's own endpoint.
struct Sharing {
    queues: [CompletionQueue; 2],
    endpoints: [Endpoint; 2],
}

impl Sharing {
    fn new(node: &Node) -> Sharing {
        let queues = [(); 2].map(|()| node.domain.completion_queue(256));
        let endpoints = queues.clone().map(|queue| {
            let options = EndpointOptions::with_queue(EndpointKind::Reliable, &queue);
            let options = EndpointOptions { receives_from: Some(node.endpoint.clone()), ..options };
            node.domain.open_endpoint(options).unwrap()
        });
        Sharing { queues, endpoints }
    }

    fn peers(&self, node: &Node) -> [PeerId; 2] {
        self.endpoints.each_ref().map(|endpoint| node.domain.addresses().insert(endpoint.address()).unwrap())
    }

    fn next(&self, world: &World, at: usize) -> Completion {
        world.until("completion", || self.queues[at].read().unwrap())
    }
}

const SOME_LENGTHS: [usize; 5] = [0, 60, 3000, 60_000, 400_000];

pub(crate) fn one_pool_serves_several(world: &World) {
    let (a, b, to_b, to_a) = world.pair();
    let sharing = Sharing::new(&b);
    let to = sharing.peers(&a);
    for length in SOME_LENGTHS {
        // The first three are posted before their messages come, the others behind.
        let order = [1, 0, 2, 0, 1, 2];
        let mut posted = Vec::new();
        for _ in 0..3 {
            posted.push(b.endpoint.receive(b.buffer(vec![0; length])).unwrap());
        }
        for (index, at) in order.into_iter().enumerate() {
            let peer = if at == 2 { to_b } else { to[at] };
            a.endpoint.send(peer, a.buffer(pattern(index as u64, length))).unwrap();
            // One behind the other, so that it is known which comes first.
            if index < 3 {
                let received = if at == 2 { world.next(&b) } else { sharing.next(world, at) }.ok().unwrap();
                assert_eq!((received.context, received.kind), (posted[index], CompletionKind::Receive));
                assert_eq!(received.peer, Some(to_a));
                assert!(received.into_bytes().unwrap() == pattern(index as u64, length));
            } else {
                let waiting = || (b.domain.state().unexpected + 3 > index).then_some(());
                world.until("it waits", waiting);
            }
        }
        for (index, at) in order.into_iter().enumerate().skip(3) {
            let context = b.endpoint.receive(b.buffer(vec![0; length])).unwrap();
            let received = if at == 2 { world.next(&b) } else { sharing.next(world, at) }.ok().unwrap();
            assert_eq!(received.context, context, "in the order in which they came: {index} of {length}");
            assert!(received.into_bytes().unwrap() == pattern(index as u64, length));
        }
        world.goods(&a, order.len());
    }
    assert!(b.queue.read().unwrap().is_none());
}

pub(crate) fn pools_have_tags_sources_and_long_buffers(world: &World) {
    let (a, b, _, to_a) = world.pair();
    let sharing = Sharing::new(&b);
    let to = sharing.peers(&a);
    let options = ReceiveOptions { source: Some(to_a), tag: Some(5), ..Default::default() };
    let tagged = b.endpoint.receive_with(b.buffer(vec![0; 8]), options).unwrap();
    let multi = ReceiveOptions { multi: Some(100), ..Default::default() };
    let multi = b.endpoint.receive_with(b.buffer(vec![0; 1000]), multi).unwrap();
    for at in [0, 1, 0, 1] {
        a.endpoint.send(to[at], a.buffer(pattern(at as u64, 230))).unwrap();
        let received = sharing.next(world, at).ok().unwrap();
        assert_eq!((received.context, received.length, received.multi), (multi, 230, true));
        assert_eq!(received.released, received.offset == 690);
    }
    a.endpoint.tagged_send(to[1], 5, a.buffer(vec![1; 8])).unwrap();
    assert_eq!(sharing.next(world, 1).ok().unwrap().context, tagged);
    // What waits can be claimed where receives are posted.
    a.endpoint.tagged_send(to[0], 6, a.buffer(pattern(6, 4000))).unwrap();
    let mut receive = raw::receive(&b.endpoint, 4000);
    (receive.tagged, receive.tag, receive.context) = (true, 6, 66);
    let found = world.until("it waits", || raw::peek(&b.endpoint, &receive, raw::Peek::Claim).unwrap());
    raw::receive_claimed(&b.endpoint, found.claim.unwrap(), &receive, b.buffer(vec![0; 4000])).unwrap();
    let received = sharing.next(world, 0).ok().unwrap();
    assert_eq!(received.context, 66);
    assert!(received.into_bytes().unwrap() == pattern(6, 4000));
    world.goods(&a, 6);
}

pub(crate) fn who_has_no_queue_reports_to_the_pool(world: &World) {
    let (a, b) = (world.node(), world.node());
    let (received, pool_received) = (b.domain.counter(), b.domain.counter());
    let pool = EndpointOptions {
        receive_counter: Some(pool_received.clone()),
        ..EndpointOptions::with_queue(EndpointKind::Reliable, &b.queue)
    };
    let pool = b.domain.open_endpoint(pool).unwrap();
    let options = || EndpointOptions { receives_from: Some(pool.clone()), ..Default::default() };
    let counted = EndpointOptions { receive_counter: Some(received.clone()), ..options() };
    let endpoints = [b.domain.open_endpoint(options()).unwrap(), b.domain.open_endpoint(counted).unwrap()];
    for endpoint in &endpoints {
        let peer = a.domain.addresses().insert(endpoint.address()).unwrap();
        pool.receive(b.buffer(vec![0; 8])).unwrap();
        a.endpoint.send(peer, a.buffer(vec![7; 8])).unwrap();
        assert_eq!(world.good(&b).into_bytes().unwrap(), [7; 8]);
        world.good(&a);
    }
    assert_eq!((pool_received.value(), received.value()), (1, 1));

    // What cannot be.
    let refused = endpoints[0].receive(b.buffer(vec![0; 8])).unwrap_err();
    assert!(matches!(refused.error, Error::Post(PostError::NotSupported)));
    let from = |endpoint: &Endpoint| EndpointOptions { receives_from: Some(endpoint.clone()), ..Default::default() };
    let third = b.domain.open_endpoint(from(&endpoints[0])).unwrap_err();
    assert!(matches!(third, Error::Open(OpenError::CannotShare)));
    let kind = EndpointOptions { kind: EndpointKind::Datagram, ..from(&pool) };
    assert!(matches!(b.domain.open_endpoint(kind).unwrap_err(), Error::Open(OpenError::CannotShare)));
    assert!(matches!(a.domain.open_endpoint(from(&pool)).unwrap_err(), Error::OtherDomain));
}

/// Senders that were refused for want of room go on when receives are posted to the pool.
pub(crate) fn a_full_pool_holds_senders_back(world: &World) {
    let a = world.node();
    let b = world.node_with(4096, |config| config.unexpected_max = 4);
    let sharing = Sharing::new(&b);
    let to = sharing.peers(&a);
    for index in 0..40u64 {
        a.endpoint.send(to[index as usize % 2], a.buffer(pattern(index, 100))).unwrap();
    }
    world.idle(20);
    let mut last = [None; 2];
    for _ in 0..40 {
        b.endpoint.receive(b.buffer(vec![0; 100])).unwrap();
        let at = world.until("a message", || {
            (0..2).find_map(|at| sharing.queues[at].read().unwrap().map(|completion| (at, completion)))
        });
        let (at, bytes) = (at.0, at.1.into_bytes().unwrap());
        let number = (0..40u64).find(|index| pattern(*index, 100) == bytes).unwrap();
        assert_eq!(number as usize % 2, at);
        assert!(last[at] < Some(number), "in the order in which they were sent");
        last[at] = Some(number);
    }
    world.goods(&a, 40);
}

pub(crate) fn sharing_ends_in_any_order(world: &World) {
    let (a, b) = (world.node(), world.node());
    let sharing = Sharing::new(&b);
    let to = sharing.peers(&a);
    let options = Options { level: Level::Delivered, ..Options::default() };
    for length in [10, 3000, 400_000] {
        for peer in to {
            a.endpoint.send_with(peer, a.buffer(pattern(1, length)), options).unwrap();
        }
    }
    world.until("all wait", || (b.domain.state().unexpected == 6).then_some(()));
    // One that shares closes: its messages end, those of the other wait on, and the pool stays.
    let Sharing { queues, endpoints: [first, second] } = sharing;
    drop(first);
    for _ in 0..3 {
        assert!(world.next(&a).result.is_err());
    }
    assert_eq!(b.domain.state().unexpected, 3);
    b.endpoint.receive(b.buffer(vec![0; 10])).unwrap();
    assert_eq!(world.until("completion", || queues[1].read().unwrap()).length, 10);
    world.good(&a);
    // The pool's last handle but for the one that the other keeps.
    let context = b.endpoint.receive_with(b.buffer(vec![0; 8]), ReceiveOptions { tag: Some(1), ..Default::default() });
    drop(b.endpoint);
    drop(second);
    for _ in 0..2 {
        assert!(world.next(&a).result.is_err());
    }
    let closed = world.until("completion", || b.queue.read().unwrap());
    assert_eq!((closed.context, closed.result), (context.unwrap(), Err(Failure::Closed)));
    world.until("nothing is left", || (b.domain.state().unexpected == 0).then_some(()));
    assert_eq!(b.domain.state().receives, 0);
}
