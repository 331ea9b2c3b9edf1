//! Credits (P-7.10): initiators that were refused as not ready are told when there is room.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use hashbrown::HashMap;
use weft_wire::command::Kind;

use super::{Engine, Target};
use crate::command::EndpointId;
use crate::delivery::Freed;
use crate::flow::rx_flow::Request;
use crate::hash::Keyed;
use crate::limits::ANSWERS_MAX;
use crate::memory::Memory;
use crate::node::NodeId;
use crate::packet::Status;

/// Those whom an endpoint refused, the first first.
#[derive(Debug)]
pub(super) struct Waiters {
    order: VecDeque<(NodeId, u32)>,
    /// The last request of each that was refused, by peer and source.
    requests: HashMap<(NodeId, u32), Request, Keyed>,
}

impl Waiters {
    pub(super) fn new(keyed: Keyed) -> Waiters {
        Waiters { order: VecDeque::new(), requests: HashMap::with_hasher(keyed) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Notes one that was refused, unless there are so many already: those ask again by themselves.
    pub(super) fn note(&mut self, request: Request, most: usize) {
        let name = (request.node(), request.source);
        if let Some(known) = self.requests.get_mut(&name) {
            *known = request;
        } else if self.order.len() < most {
            self.requests.insert(name, request);
            self.order.push_back(name);
        }
    }

    fn take(&mut self) -> Option<Request> {
        let name = self.order.pop_front()?;
        self.requests.remove(&name)
    }
}

impl Target {
    /// Notes an initiator that an endpoint refused.
    pub(super) fn refuse(&mut self, endpoint: EndpointId, request: Request, most: usize, keyed: &Keyed) {
        let waiters = self.refused.entry(endpoint).or_insert_with(|| Waiters::new(keyed.clone()));
        waiters.note(request, most);
    }
}

impl<M: Memory> Engine<M> {
    /// Tells as many of those that were refused as there is room for now: the others would be refused again, and are told
    /// when the next place is free.
    #[cold]
    pub(super) fn grant_credits(&mut self) {
        let freed = self.delivery.take_freed();
        let (delivery, answers) = (&self.delivery, self.target.answers.len());
        let is_freed = |endpoint: EndpointId| {
            freed.iter().any(|freed| match *freed {
                Freed::Shared => true,
                Freed::Queue(queue) => delivery.receive_queue_of(endpoint) == Some(queue),
                Freed::Receives(receiver) => delivery.receiver_of(endpoint) == receiver,
            })
        };
        let mut credits = Vec::new();
        self.target.refused.retain(|&endpoint, waiters| {
            if is_freed(endpoint) {
                let room = delivery.room_for_receives(endpoint).min(ANSWERS_MAX.saturating_sub(answers));
                let told = core::iter::from_fn(|| waiters.take());
                credits.extend(told.take(room.saturating_sub(credits.len())));
            }
            !waiters.is_empty()
        });
        self.delivery.watch_room(!self.target.refused.is_empty());
        for request in credits {
            self.answer(request, Status::Accepted, 0, Kind::Control);
        }
    }
}
