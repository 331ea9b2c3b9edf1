//! Messages that wait: looked at, claimed, thrown away.

use weft::raw::{self, ClaimId, Peek, Peeked};
use weft::{CompletionKind, Error, Failure, Level, Options, PostError};

use crate::support::{Node, World, pattern};

/// Short, of several parts, and waiting at their sender.
const SOME_LENGTHS: [usize; 6] = [0, 5, 80, 3000, 30_000, 400_000];

fn tagged(node: &Node, tag: u64, ignore: u64) -> raw::Receive {
    let mut receive = raw::receive(&node.endpoint, 0);
    (receive.tagged, receive.tag, receive.ignore) = (true, tag, ignore);
    receive
}

fn peek(world: &World, node: &Node, receive: &raw::Receive, how: Peek) -> Peeked {
    world.until("a message", || raw::peek(&node.endpoint, receive, how).unwrap())
}

fn receive_claimed(node: &Node, claim: ClaimId, length: usize, context: u64) {
    let mut receive = raw::receive(&node.endpoint, length as u64);
    receive.context = context;
    raw::receive_claimed(&node.endpoint, claim, &receive, node.buffer(vec![0; length])).unwrap();
}

pub(crate) fn looking_changes_nothing(world: &World) {
    let (a, b, to_b, to_a) = world.pair();
    let anything = tagged(&b, 0, u64::MAX);
    assert!(raw::peek(&b.endpoint, &anything, Peek::Look).unwrap().is_none());
    for (tag, length) in SOME_LENGTHS.into_iter().enumerate() {
        let options = Options { immediate: Some(1000 + tag as u64), ..Options::default() };
        a.endpoint.tagged_send_with(to_b, tag as u64, a.buffer(pattern(1, length)), options).unwrap();
        let receive = tagged(&b, tag as u64, 0);
        for _ in 0..3 {
            let found = peek(world, &b, &receive, Peek::Look);
            assert_eq!((found.length, found.tag, found.claim), (length as u64, tag as u64, None));
            assert_eq!((found.source, found.peer), (a.endpoint.address(), Some(to_a)));
            assert_eq!(found.immediate, Some(1000 + tag as u64));
        }
    }
    // The first that came is the first that is found.
    assert_eq!(peek(world, &b, &anything, Peek::Look).tag, 0);
    assert!(raw::peek(&b.endpoint, &raw::receive(&b.endpoint, 0), Peek::Look).unwrap().is_none(), "all have tags");
    let mut of_itself = anything;
    of_itself.source = Some(b.knows(&b));
    assert!(raw::peek(&b.endpoint, &of_itself, Peek::Look).unwrap().is_none(), "all are of the other");
    for (tag, length) in SOME_LENGTHS.into_iter().enumerate() {
        b.endpoint.tagged_receive(tag as u64, 0, b.buffer(vec![0; length])).unwrap();
        assert!(world.good(&b).into_bytes().unwrap() == pattern(1, length));
    }
    world.goods(&a, SOME_LENGTHS.len());
}

pub(crate) fn claimed_messages_are_for_who_claimed_them(world: &World) {
    let (a, b, to_b, _) = world.pair();
    for length in SOME_LENGTHS {
        a.endpoint.send(to_b, a.buffer(pattern(1, length))).unwrap();
        a.endpoint.send(to_b, a.buffer(pattern(2, length))).unwrap();
        let any = raw::receive(&b.endpoint, 0);
        let first = peek(world, &b, &any, Peek::Claim);
        assert_eq!(first.length, length as u64);
        let claim = first.claim.unwrap();
        // Who comes now gets the second.
        b.endpoint.receive(b.buffer(vec![0; length])).unwrap();
        assert!(world.good(&b).into_bytes().unwrap() == pattern(2, length), "{length}");
        assert!(raw::peek(&b.endpoint, &any, Peek::Look).unwrap().is_none());
        receive_claimed(&b, claim, length, 77);
        let received = world.good(&b);
        assert_eq!((received.context, received.length), (77, length as u64));
        assert!(received.into_bytes().unwrap() == pattern(1, length), "{length}");
        world.goods(&a, 2);
        // It can be had once.
        let again = raw::receive_claimed(&b.endpoint, claim, &any, b.buffer(vec![0; 1])).unwrap_err();
        assert!(matches!(again.error, Error::Post(PostError::NoSuchClaim)) && again.buffer.is_some());
        assert!(raw::discard_claimed(&b.endpoint, claim).is_err());
    }
    assert_eq!(b.domain.state().unexpected, 0);
}

pub(crate) fn a_claim_can_be_too_long_for_its_buffer(world: &World) {
    let (a, b, to_b, _) = world.pair();
    for length in [5, 3000, 30_000, 400_000] {
        a.endpoint.tagged_send(to_b, 9, a.buffer(pattern(1, length))).unwrap();
        let claim = peek(world, &b, &tagged(&b, 9, 0), Peek::Claim).claim.unwrap();
        receive_claimed(&b, claim, length - 1, 5);
        let received = world.next(&b);
        assert_eq!((received.result, received.length, received.tag), (Err(Failure::Truncated), length as u64, 9));
        let done = world.next(&a).result;
        assert!(done.is_ok() || done == Err(Failure::LengthError), "{done:?}");
    }
}

pub(crate) fn discarded_messages_are_done_for_their_sender(world: &World) {
    let (a, b, to_b, _) = world.pair();
    for length in SOME_LENGTHS {
        for level in [Level::Transmitted, Level::Delivered] {
            for claim_first in [false, true] {
                let options = Options { level, ..Options::default() };
                let context = a.endpoint.tagged_send_with(to_b, 1, a.buffer(pattern(1, length)), options).unwrap();
                a.endpoint.tagged_send(to_b, 1, a.buffer(b"next".to_vec())).unwrap();
                let receive = tagged(&b, 1, 0);
                if claim_first {
                    let found = peek(world, &b, &receive, Peek::Claim);
                    raw::discard_claimed(&b.endpoint, found.claim.unwrap()).unwrap();
                } else {
                    assert_eq!(peek(world, &b, &receive, Peek::Discard).length, length as u64);
                }
                b.endpoint.tagged_receive(1, 0, b.buffer(vec![0; 8])).unwrap();
                assert_eq!(world.good(&b).into_bytes().unwrap(), b"next");
                let mut contexts: Vec<u64> = world.goods(&a, 2).iter().map(|done| done.context).collect();
                contexts.sort_unstable();
                assert_eq!(contexts[0], context, "{length} {level:?}");
            }
        }
    }
    world.until("nothing is left", || {
        (b.domain.state().unexpected == 0 && b.domain.state().messages == 0).then_some(())
    });
}

pub(crate) fn claims_end_with_their_endpoint(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let mut claims = Vec::new();
    for length in SOME_LENGTHS {
        a.endpoint.tagged_send(to_b, 1, a.buffer(pattern(1, length))).unwrap();
        claims.extend(peek(world, &b, &tagged(&b, 1, 0), Peek::Claim).claim);
    }
    let other = b.domain.endpoint(&b.queue).unwrap();
    for claim in &claims {
        assert!(raw::discard_claimed(&other, *claim).is_err(), "it is another endpoint's");
    }
    drop(b.endpoint);
    for _ in SOME_LENGTHS {
        let done = world.next(&a);
        assert_eq!(done.result.is_err(), done.length >= 400_000, "what nobody fetched is not delivered: {done:?}");
    }
    world.until("nothing is left", || (b.domain.state().unexpected == 0).then_some(()));
}

/// A message that was claimed while its bytes were on their way may not come.
pub(crate) fn a_claimed_message_can_be_lost(world: &World) {
    let (a, b, to_b, _) = world.pair();
    let context = a.endpoint.tagged_send(to_b, 1, a.buffer(pattern(1, 400_000))).unwrap();
    let claim = peek(world, &b, &tagged(&b, 1, 0), Peek::Claim).claim.unwrap();
    // Not while a packet of it is under way. Where the target may read it at any time, its sender can only ask for it.
    let cancelled = world.until("cancelled", || {
        a.endpoint.cancel(context);
        a.queue.read().unwrap()
    });
    assert_eq!((cancelled.context, cancelled.result), (context, Err(Failure::Cancelled)));
    receive_claimed(&b, claim, 400_000, 5);
    let received = world.next(&b);
    assert_eq!((received.context, received.result), (5, Err(Failure::Aborted)));
    assert_eq!(received.buffer.unwrap().len(), 400_000);
}

/// A receive that takes no bytes is told of its message, for which there is time to find a buffer.
pub(crate) fn announced_messages_wait_for_a_buffer(world: &World) {
    let (a, b, to_b, to_a) = world.pair();
    let mut announced = tagged(&b, 5, 0);
    (announced.announce, announced.context) = (true, 21);
    for length in SOME_LENGTHS {
        for early in [true, false] {
            let post = || raw::post_receive(&b.endpoint, &announced, b.buffer([])).unwrap();
            let options = Options { immediate: Some(31), ..Options::default() };
            if early {
                post();
            }
            a.endpoint.tagged_send_with(to_b, 5, a.buffer(pattern(1, length)), options).unwrap();
            if !early {
                peek(world, &b, &tagged(&b, 5, 0), Peek::Look);
                post();
            }
            let told = world.good(&b);
            assert_eq!((told.context, told.kind, told.announced), (21, CompletionKind::TaggedAnnounced, true));
            assert_eq!((told.length, told.tag, told.immediate), (length as u64, 5, Some(31)));
            assert_eq!((told.source, told.peer), (Some(a.endpoint.address()), Some(to_a)));
            // It is nobody else's, and the receive is used up.
            assert!(raw::peek(&b.endpoint, &tagged(&b, 5, 0), Peek::Look).unwrap().is_none());
            a.endpoint.tagged_send(to_b, 5, a.buffer(b"next".to_vec())).unwrap();
            b.endpoint.tagged_receive(5, 0, b.buffer(vec![0; 4])).unwrap();
            assert_eq!(world.good(&b).into_bytes().unwrap(), b"next");
            receive_claimed(&b, ClaimId(told.offset), length, 22);
            let received = world.good(&b);
            assert_eq!(
                (received.context, received.kind, received.announced),
                (22, CompletionKind::TaggedReceive, true)
            );
            assert!(received.into_bytes().unwrap() == pattern(1, length), "{length} {early}");
            world.goods(&a, 2);
        }
    }
    // Without tag, thrown away; and one that gets nothing.
    let mut announced = raw::receive(&b.endpoint, 0);
    (announced.announce, announced.context) = (true, 23);
    for _ in 0..2 {
        raw::post_receive(&b.endpoint, &announced, b.buffer([])).unwrap();
    }
    a.endpoint.send(to_b, a.buffer(pattern(1, 400_000))).unwrap();
    let told = world.good(&b);
    assert_eq!(told.kind, CompletionKind::Announced);
    raw::discard_claimed(&b.endpoint, ClaimId(told.offset)).unwrap();
    world.good(&a);
    assert!(b.endpoint.cancel(23));
    assert_eq!(world.next(&b).result, Err(Failure::Cancelled));
    assert_eq!(b.domain.state().unexpected, 0);
}
