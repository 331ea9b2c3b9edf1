//! Endpoints: opened, numbered, found.

use core::fmt;

use super::{Bindings, Endpoint, EndpointKind, Engine};
use crate::address::{Address, PeerId, SourceId};
use crate::command::{EndpointId, PostError};
use crate::event::{CompletionQueue, Failure, QueueId};
use crate::limits::{NUMBER_ROW_MAX, NUMBER_ROWS_MAX};
use crate::matching::{Posted, Unexpected};
use crate::memory::Memory;
use crate::time::Time;

/// What an endpoint is opened with besides its kind and bindings. The defaults serve most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opening {
    /// The number by which peers address it; `None`: one that nobody can guess is drawn, never 0.
    pub number: Option<u32>,
    /// The number that peers see as the source of what it sends, where several endpoints speak as one; `None`: its own.
    pub speaks_as: Option<u32>,
    /// Receives of this endpoint serve its messages too; none can be posted to itself. Messages are matched in the order
    /// in which they come, whichever endpoint they are for, and are reported where that one reports; where it has no
    /// queue or counter for receives, those of the other endpoint are used.
    pub receives_from: Option<EndpointId>,
    /// So many datagrams for which no receive is posted yet wait for one; the others are lost, as all are by default.
    pub datagrams_kept: usize,
}

/// One of the two halves of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Sends, writes, reads, atomics.
    Transmit,
    /// Receives, and what peers do to our memory.
    Receive,
}

/// Why an endpoint was not opened, or numbers were not kept. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// The caller: another endpoint has the number, or a number of the row.
    NumberTaken {
        /// Which.
        number: u32,
    },
    /// The caller: receives come from an endpoint that is closed, of another kind, or takes them from a third.
    CannotShare,
    /// The caller: no such row of numbers is possible.
    BadRow,
    /// A local resource: as many rows are kept as can be.
    TooManyRows,
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::NumberTaken { number } => {
                write!(f, "endpoint number {number} is taken on this NIC: choose another, or let one be drawn")
            }
            OpenError::CannotShare => {
                write!(f, "receives can be shared with an open endpoint of the same kind that has receives of its own")
            }
            OpenError::BadRow => write!(f, "a row of numbers has 1 to {NUMBER_ROW_MAX} of them, all below 2^32"),
            OpenError::TooManyRows => write!(f, "too many rows of numbers are kept: release some"),
        }
    }
}

impl core::error::Error for OpenError {}

impl<M: Memory> Engine<M> {
    /// Makes an endpoint with a drawn number.
    pub fn open_endpoint(&mut self, kind: EndpointKind, bindings: Bindings) -> EndpointId {
        let number = self.draw_numbers(1);
        self.insert_endpoint(kind, bindings, number, None)
    }

    /// Makes an endpoint.
    pub fn open_endpoint_with(
        &mut self,
        kind: EndpointKind,
        bindings: Bindings,
        opening: &Opening,
    ) -> Result<EndpointId, OpenError> {
        let mut bindings = bindings;
        if let Some(from) = opening.receives_from {
            let from = self.endpoint(from).filter(|from| from.kind == kind && from.receives_at.is_none());
            let from = from.ok_or(OpenError::CannotShare)?.bindings;
            bindings.receive_queue = bindings.receive_queue.or(from.receive_queue);
            bindings.receive_counter = bindings.receive_counter.or(from.receive_counter);
        }
        let number = match opening.number {
            Some(number) if self.endpoint_of.contains_key(&number) => return Err(OpenError::NumberTaken { number }),
            Some(number) => number,
            None => self.draw_numbers(1),
        };
        let id = self.insert_endpoint(kind, bindings, number, opening.receives_from);
        if let Some(endpoint) = self.endpoint_mut(id) {
            endpoint.datagrams_kept = opening.datagrams_kept;
            endpoint.source = opening.speaks_as.unwrap_or(number);
        }
        Ok(id)
    }

    fn insert_endpoint(
        &mut self,
        kind: EndpointKind,
        bindings: Bindings,
        number: u32,
        receives_at: Option<EndpointId>,
    ) -> EndpointId {
        if let Some(queue) = bindings.receive_queue.and_then(|queue| self.queues.get_mut(queue.0 as usize)) {
            queue.serve_receives();
        }
        let receives = self.config.receives_max;
        let unexpected = self.config.unexpected_max;
        let endpoint = Endpoint {
            number,
            source: number,
            kind,
            bindings,
            receives_at,
            only: None,
            silenced: false,
            datagrams_kept: 0,
            posted: Posted::new(self.keyed.clone(), receives),
            unexpected: Unexpected::new(self.keyed.clone(), unexpected),
            tagged_posted: Posted::new(self.keyed.clone(), receives),
            tagged_unexpected: Unexpected::new(self.keyed.clone(), unexpected),
            refused: super::credit::Waiters::new(self.keyed.clone()),
        };
        let id = self.closed_endpoints.pop().unwrap_or_else(|| {
            self.endpoints.push(None);
            EndpointId(self.endpoints.len() as u32 - 1)
        });
        if let Some(slot) = self.endpoints.get_mut(id.0 as usize) {
            *slot = Some(endpoint);
        }
        self.endpoint_of.insert(number, id);
        if let Some(from) = receives_at {
            self.sharers.insert((from, id));
        }
        id
    }

    /// Keeps a row of numbers for endpoints that will be opened with them ([`Opening::number`]): none of them is drawn for
    /// another until [`Engine::release_numbers`]. `first`: where it begins; `None`: somewhere. Gives the first.
    pub fn keep_numbers(&mut self, first: Option<u32>, count: u32) -> Result<u32, OpenError> {
        if count == 0 || count > NUMBER_ROW_MAX || first.is_some_and(|first| first.checked_add(count - 1).is_none()) {
            return Err(OpenError::BadRow);
        }
        if self.rows.len() >= NUMBER_ROWS_MAX {
            return Err(OpenError::TooManyRows);
        }
        let first = match first {
            Some(first) => {
                if let Some(number) = (first..=first + (count - 1)).find(|number| !self.is_free(*number)) {
                    return Err(OpenError::NumberTaken { number });
                }
                first
            }
            None => self.draw_numbers(count),
        };
        self.rows.push((first, count));
        Ok(first)
    }

    /// Lets go of a row of numbers. Endpoints that have some of them keep them.
    pub fn release_numbers(&mut self, first: u32) {
        if let Some(at) = self.rows.iter().position(|row| row.0 == first) {
            self.rows.swap_remove(at);
        }
    }

    /// Whether a number is nobody's.
    fn is_free(&self, number: u32) -> bool {
        let in_row = |&(first, count): &(u32, u32)| number.checked_sub(first).is_some_and(|at| at < count);
        !self.endpoint_of.contains_key(&number) && !self.rows.iter().any(in_row)
    }

    /// The first of so many free numbers in a row, none of which is 0.
    fn draw_numbers(&mut self, count: u32) -> u32 {
        loop {
            let first = self.random.next_u32();
            let last = first.checked_add(count - 1);
            if first != 0 && last.is_some_and(|last| (first..=last).all(|number| self.is_free(number))) {
                return first;
            }
        }
    }

    /// From now on an endpoint exists for one peer only: requests and messages of anybody else are refused as if it did
    /// not. Those of others that have come already end: what waits is dropped, and receives that they matched fail with
    /// [`Failure::Aborted`].
    pub fn restrict_endpoint(&mut self, now: Time, endpoint: EndpointId, peer: PeerId) -> Result<(), PostError> {
        let source = self.addresses.source(peer).ok_or(PostError::NoSuchPeer)?;
        self.endpoint_mut(endpoint).ok_or(PostError::NoSuchEndpoint)?.only = Some(source);
        self.end_messages(now, endpoint, Failure::Aborted, &|envelope| {
            envelope.endpoint == endpoint && envelope.source_id != source
        });
        Ok(())
    }

    /// While it is silenced nothing that ends at an endpoint is reported or counted: buffers are just released. For one
    /// that is about to be closed by a user who does not want to hear of what is under way.
    pub fn silence_endpoint(&mut self, endpoint: EndpointId, silenced: bool) {
        if let Some(endpoint) = self.endpoint_mut(endpoint) {
            endpoint.silenced = silenced;
        }
    }

    /// Everything of one side of an endpoint ends without being reported, and its bindings are as if there had never been
    /// any; the other side goes on. `notices`: as for [`Engine::bind_endpoint`].
    pub fn close_side(&mut self, now: Time, endpoint: EndpointId, side: Side, notices: usize) {
        let Some(state) = self.endpoint_mut(endpoint) else { return };
        let was_silenced = core::mem::replace(&mut state.silenced, true);
        let queue = state.bindings.receive_queue;
        match side {
            Side::Transmit => self.end_commands(now, endpoint),
            Side::Receive => {
                self.close_receives(now, endpoint);
                (0..notices).for_each(|_| self.unreserve(queue));
            }
        }
        let Some(state) = self.endpoint_mut(endpoint) else { return };
        state.silenced = was_silenced;
        let old = core::mem::take(&mut state.bindings);
        state.bindings = match side {
            Side::Transmit => {
                Bindings { transmit_queue: None, send_counter: None, read_counter: None, write_counter: None, ..old }
            }
            Side::Receive => Bindings {
                receive_queue: None,
                receive_counter: None,
                remote_write_counter: None,
                remote_read_counter: None,
                ..old
            },
        };
    }

    /// Sets those bindings of an endpoint that it has not got yet; the others stay as they are. What its user has posted
    /// has no place in the new queues: so it is called before anything is posted to the side that they are for. `notices`:
    /// writes of peers with immediate data that are under way by another road ([`Engine::reserve_remote_write`]).
    pub fn bind_endpoint(&mut self, endpoint: EndpointId, more: &Bindings, notices: usize) -> Result<(), PostError> {
        let is_bound = self.endpoint(endpoint).ok_or(PostError::NoSuchEndpoint)?.bindings.receive_queue.is_some();
        let receives = more.receive_queue.filter(|_| !is_bound);
        if let Some(queue) = receives.and_then(|queue| self.queues.get_mut(queue.0 as usize)) {
            let under_way = self.messages.values().filter(|message| message.is_notice_to(endpoint)).count();
            let notices = notices + under_way;
            if !queue.reserve_many(notices) {
                return Err(PostError::CompletionQueueFull);
            }
            queue.serve_receives();
        }
        let bindings = &mut self.endpoint_mut(endpoint).ok_or(PostError::NoSuchEndpoint)?.bindings;
        bindings.transmit_queue = bindings.transmit_queue.or(more.transmit_queue);
        bindings.receive_queue = bindings.receive_queue.or(more.receive_queue);
        bindings.send_counter = bindings.send_counter.or(more.send_counter);
        bindings.receive_counter = bindings.receive_counter.or(more.receive_counter);
        bindings.read_counter = bindings.read_counter.or(more.read_counter);
        bindings.write_counter = bindings.write_counter.or(more.write_counter);
        bindings.remote_write_counter = bindings.remote_write_counter.or(more.remote_write_counter);
        bindings.remote_read_counter = bindings.remote_read_counter.or(more.remote_read_counter);
        Ok(())
    }

    /// Whether an endpoint is there for a source, as [`crate::address::AddressVector::source_of`] names it.
    pub fn admits(&self, endpoint: EndpointId, source: SourceId) -> bool {
        self.endpoint(endpoint).is_some_and(|endpoint| endpoint.only.is_none_or(|only| only == source))
    }

    /// The endpoint of a kind that has a number, if it is there for this source.
    pub(super) fn endpoint_for(&self, number: u32, kind: EndpointKind, source: Address) -> Option<EndpointId> {
        let id = self.endpoint_of.get(&number).copied()?;
        let endpoint = self.endpoint(id).filter(|endpoint| endpoint.kind == kind)?;
        match endpoint.only {
            Some(only) if only != self.addresses.source_of(source) => None,
            _ => Some(id),
        }
    }

    /// The endpoint whose receives serve the messages of this one: itself, unless it shares another's.
    pub(super) fn receiver_of(&self, endpoint: EndpointId) -> EndpointId {
        self.endpoint(endpoint).and_then(|endpoint| endpoint.receives_at).unwrap_or(endpoint)
    }

    /// The endpoints that take their receives from this one.
    pub(super) fn sharers_of(&self, endpoint: EndpointId) -> impl Iterator<Item = EndpointId> {
        let all = (endpoint, EndpointId(0))..=(endpoint, EndpointId(u32::MAX));
        self.sharers.range(all).map(|(_, sharer)| *sharer)
    }

    /// The queues besides its own that receives of an endpoint are reported to: those of endpoints that share them.
    pub fn sharing_queues(&self, endpoint: EndpointId) -> impl Iterator<Item = QueueId> {
        self.sharers_of(endpoint).filter_map(|other| self.endpoint(other)?.bindings.receive_queue)
    }

    /// How many commands, or receives, an endpoint could take now: what is posted elsewhere takes from the same room.
    pub fn room_for_posts(&self, endpoint: EndpointId, side: Side) -> Option<usize> {
        let endpoint = self.endpoint(endpoint)?;
        match side {
            Side::Transmit => {
                let queue = endpoint.bindings.transmit_queue.and_then(|queue| self.queues.get(queue.0 as usize));
                Some(queue.map_or(usize::MAX, CompletionQueue::room_for_posts).min(self.room_for_commands()))
            }
            Side::Receive if endpoint.receives_at.is_some() => None,
            Side::Receive => {
                let most = self.config.receives_max;
                Some(most.saturating_sub(endpoint.posted.len().max(endpoint.tagged_posted.len())))
            }
        }
    }

    /// The number by which peers address an endpoint ([`crate::address::Address::endpoint`]).
    pub fn endpoint_number(&self, endpoint: EndpointId) -> Option<u32> {
        self.endpoint(endpoint).map(|endpoint| endpoint.number)
    }

    /// The number that peers see as the source of what an endpoint sends.
    pub fn endpoint_source(&self, endpoint: EndpointId) -> Option<u32> {
        self.endpoint(endpoint).map(|endpoint| endpoint.source)
    }

    #[inline]
    pub(super) fn endpoint(&self, endpoint: EndpointId) -> Option<&Endpoint> {
        self.endpoints.get(endpoint.0 as usize)?.as_ref()
    }

    #[inline]
    pub(super) fn endpoint_mut(&mut self, endpoint: EndpointId) -> Option<&mut Endpoint> {
        self.endpoints.get_mut(endpoint.0 as usize)?.as_mut()
    }
}
