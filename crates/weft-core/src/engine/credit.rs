//! Credits (P-7.10): who was refused as not ready is told when there is room.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use hashbrown::HashMap;
use weft_wire::command::Kind;

use super::{Endpoint, Engine};
use crate::command::EndpointId;
use crate::event::{CompletionQueue, QueueId};
use crate::hash::{Keyed, Peer};
use crate::limits::ANSWERS_MAX;
use crate::memory::Memory;
use crate::packet::Status;
use crate::reliable::life::Request;

/// Those whom an endpoint refused, the first first.
#[derive(Debug)]
pub(super) struct Waiters {
    order: VecDeque<(Peer, u32)>,
    /// The last request of each that was refused, by peer and source.
    requests: HashMap<(Peer, u32), Request, Keyed>,
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
        let name = (Peer(request.from), request.source);
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

impl<M: Memory> Engine<M> {
    /// Completions were read: tells those whom endpoints that report to the queue refused.
    #[cold]
    pub(super) fn grant_credits(&mut self, queue: QueueId) {
        self.grant(|_, endpoint| endpoint.bindings.receive_queue == Some(queue));
    }

    /// A receive was posted: tells those whom the endpoint refused, or one that takes receives from it.
    pub(super) fn grant_credits_of(&mut self, receiver: EndpointId) {
        if self.credits_owed {
            self.grant(|id, endpoint| id == receiver || endpoint.receives_at == Some(receiver));
        }
    }

    /// Something became free that all endpoints share.
    #[cold]
    pub(super) fn grant_due(&mut self) {
        self.credits_due = false;
        self.grant(|_, _| true);
    }

    /// Tells as many as there is room for: the others would be refused again, and are told when the next place is free.
    fn grant(&mut self, of: impl Fn(EndpointId, &Endpoint) -> bool) {
        let mut credits = Vec::new();
        let mut left = false;
        for (id, endpoint) in (0..).zip(&mut self.endpoints) {
            let Some(endpoint) = endpoint.as_mut().filter(|endpoint| !endpoint.refused.is_empty()) else { continue };
            if of(EndpointId(id), endpoint) {
                let queue = endpoint.bindings.receive_queue.and_then(|queue| self.queues.get(queue.0 as usize));
                let room = queue.map_or(usize::MAX, CompletionQueue::free).min(ANSWERS_MAX - self.answers.len());
                let told = core::iter::from_fn(|| endpoint.refused.take());
                credits.extend(told.take(room.saturating_sub(credits.len())));
            }
            left |= !endpoint.refused.is_empty();
        }
        self.credits_owed = left;
        for request in credits {
            // Nothing else would bring the driver here.
            self.urgent = true;
            self.answer(request, Status::Accepted, 0, Kind::Control);
        }
    }
}
