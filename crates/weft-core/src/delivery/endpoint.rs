//! Endpoints: opened, numbered, found.

use core::fmt;

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use hashbrown::HashMap;

use super::receive::{PostedReceive, UnexpectedMessage};
use super::{Delivery, DeliveryConfig};
use crate::address::{Address, PeerId, SourceId};
use crate::command::{EndpointId, PostError};
use crate::delivery::matching::{Posted, Unexpected};
use crate::event::{CompletionQueue, CounterId, QueueId};
use crate::hash::Keyed;
use crate::limits::{NUMBER_ROW_MAX, NUMBER_ROWS_MAX};
use crate::memory::Memory;
use crate::random::Random;

/// What an endpoint promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointKind {
    /// Every message arrives once, or its sender is told.
    Reliable,
    /// Messages of one packet that may be lost.
    Datagram,
}

/// Where an endpoint reports.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bindings {
    /// Completions of what is posted with [`Engine::post`](crate::engine::Engine::post).
    pub transmit_queue: Option<QueueId>,
    /// Completions of receives and of peers' writes with immediate data.
    pub receive_queue: Option<QueueId>,
    /// Counts sends.
    pub send_counter: Option<CounterId>,
    /// Counts receives.
    pub receive_counter: Option<CounterId>,
    /// Counts reads and fetching atomics.
    pub read_counter: Option<CounterId>,
    /// Counts writes and atomics.
    pub write_counter: Option<CounterId>,
    /// Counts writes of peers into our memory, and their atomics that change it.
    pub remote_write_counter: Option<CounterId>,
    /// Counts reads of peers from our memory, and their atomics that fetch.
    pub remote_read_counter: Option<CounterId>,
}

/// An endpoint.
#[derive(Debug)]
pub(super) struct Endpoint {
    number: u32,
    /// The number that its commands come from.
    source: u32,
    pub(super) kind: EndpointKind,
    pub(super) bindings: Bindings,
    /// The endpoint whose receives serve its messages, if not its own: then its own lists are empty.
    pub(super) srx: Option<EndpointId>,
    /// The only peer that may reach it.
    allowed_peer: Option<SourceId>,
    /// Nothing of it is reported any more.
    pub(super) silenced: bool,
    /// Datagrams that may wait for a receive.
    pub(super) datagrams_kept: usize,
    pub(super) posted: Posted<PostedReceive>,
    pub(super) unexpected: Unexpected<UnexpectedMessage>,
    pub(super) tagged_posted: Posted<PostedReceive>,
    pub(super) tagged_unexpected: Unexpected<UnexpectedMessage>,
}

/// Receives that wait, and messages that do.
pub(super) type Lists<'a> = (&'a mut Posted<PostedReceive>, &'a mut Unexpected<UnexpectedMessage>);

#[inline]
pub(super) fn lists(endpoint: &mut Endpoint, tagged: bool) -> Lists<'_> {
    if tagged {
        (&mut endpoint.tagged_posted, &mut endpoint.tagged_unexpected)
    } else {
        (&mut endpoint.posted, &mut endpoint.unexpected)
    }
}

/// The endpoints of a node, by name and by number.
#[derive(Debug)]
pub(super) struct Endpoints {
    slots: Vec<Option<Endpoint>>,
    closed: Vec<EndpointId>,
    /// Endpoints that take their receives from another: first that one.
    sharers: BTreeSet<(EndpointId, EndpointId)>,
    by_number: HashMap<u32, EndpointId, Keyed>,
    /// Rows of numbers that are drawn for nobody: the first, and how many.
    rows: Vec<(u32, u32)>,
}

impl Endpoints {
    pub(super) fn new(keyed: Keyed) -> Endpoints {
        Endpoints {
            slots: Vec::new(),
            closed: Vec::new(),
            sharers: BTreeSet::new(),
            by_number: HashMap::with_hasher(keyed),
            rows: Vec::new(),
        }
    }

    #[inline]
    pub(super) fn get(&self, endpoint: EndpointId) -> Option<&Endpoint> {
        self.slots.get(endpoint.0 as usize)?.as_ref()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, endpoint: EndpointId) -> Option<&mut Endpoint> {
        self.slots.get_mut(endpoint.0 as usize)?.as_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Endpoint> {
        self.slots.iter().flatten()
    }

    fn insert(&mut self, endpoint: Endpoint) -> EndpointId {
        let (number, srx) = (endpoint.number, endpoint.srx);
        let id = self.closed.pop().unwrap_or_else(|| {
            self.slots.push(None);
            EndpointId(self.slots.len() as u32 - 1)
        });
        if let Some(slot) = self.slots.get_mut(id.0 as usize) {
            *slot = Some(endpoint);
        }
        self.by_number.insert(number, id);
        if let Some(from) = srx {
            self.sharers.insert((from, id));
        }
        id
    }

    fn remove(&mut self, endpoint: EndpointId) {
        let Some(closed) = self.slots.get_mut(endpoint.0 as usize).and_then(Option::take) else { return };
        self.by_number.remove(&closed.number);
        self.closed.push(endpoint);
        if let Some(from) = closed.srx {
            self.sharers.remove(&(from, endpoint));
        }
    }

    /// From now on `sharer` has receives of its own.
    pub(super) fn stop_sharing(&mut self, from: EndpointId, sharer: EndpointId) {
        self.sharers.remove(&(from, sharer));
        if let Some(sharer) = self.get_mut(sharer) {
            sharer.srx = None;
        }
    }

    /// Whether a number is nobody's.
    fn is_free(&self, number: u32) -> bool {
        let in_row = |&(first, count): &(u32, u32)| number.checked_sub(first).is_some_and(|at| at < count);
        !self.by_number.contains_key(&number) && !self.rows.iter().any(in_row)
    }

    /// The first of so many free numbers in a row, none of which is 0.
    fn draw_numbers(&self, random: &mut Random, count: u32) -> u32 {
        loop {
            let first = random.next_u32();
            let last = first.checked_add(count - 1);
            if first != 0 && last.is_some_and(|last| (first..=last).all(|number| self.is_free(number))) {
                return first;
            }
        }
    }
}

/// What an endpoint is opened with besides its kind and bindings. The defaults serve most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opening {
    /// The number by which peers address it; `None`: one that nobody can guess is drawn, never 0.
    pub number: Option<u32>,
    /// The number that peers see as the source of what it sends, where several endpoints speak as one; `None`: its own.
    pub source_alias: Option<u32>,
    /// Receives of this endpoint serve its messages too; none can be posted to itself. Messages are matched in the order
    /// in which they come, whichever endpoint they are for, and are reported where that one reports; where it has no
    /// queue or counter for receives, those of the other endpoint are used.
    pub srx: Option<EndpointId>,
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

impl<M: Memory> Delivery<M> {
    /// Makes an endpoint with a drawn number.
    pub fn open_endpoint(&mut self, kind: EndpointKind, bindings: Bindings) -> EndpointId {
        let number = self.endpoints.draw_numbers(&mut self.random, 1);
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
        if let Some(from) = opening.srx {
            let from = self.endpoint(from).filter(|from| from.kind == kind && from.srx.is_none());
            let from = from.ok_or(OpenError::CannotShare)?.bindings;
            bindings.receive_queue = bindings.receive_queue.or(from.receive_queue);
            bindings.receive_counter = bindings.receive_counter.or(from.receive_counter);
        }
        let number = match opening.number {
            Some(number) if self.endpoints.by_number.contains_key(&number) => {
                return Err(OpenError::NumberTaken { number });
            }
            Some(number) => number,
            None => self.endpoints.draw_numbers(&mut self.random, 1),
        };
        let id = self.insert_endpoint(kind, bindings, number, opening.srx);
        if let Some(endpoint) = self.endpoints.get_mut(id) {
            endpoint.datagrams_kept = opening.datagrams_kept;
            endpoint.source = opening.source_alias.unwrap_or(number);
        }
        Ok(id)
    }

    fn insert_endpoint(
        &mut self,
        kind: EndpointKind,
        bindings: Bindings,
        number: u32,
        srx: Option<EndpointId>,
    ) -> EndpointId {
        if let Some(queue) = bindings.receive_queue.and_then(|queue| self.events.queue_mut(queue)) {
            queue.serve_receives();
        }
        let DeliveryConfig { receives_max, unexpected_max, .. } = self.config;
        let keyed = || self.keyed.clone();
        self.endpoints.insert(Endpoint {
            number,
            source: number,
            kind,
            bindings,
            srx,
            allowed_peer: None,
            silenced: false,
            datagrams_kept: 0,
            posted: Posted::new(keyed(), receives_max),
            unexpected: Unexpected::new(keyed(), unexpected_max),
            tagged_posted: Posted::new(keyed(), receives_max),
            tagged_unexpected: Unexpected::new(keyed(), unexpected_max),
        })
    }

    /// Takes an endpoint away. Everything of it has ended.
    pub(crate) fn remove_endpoint(&mut self, endpoint: EndpointId) {
        self.endpoints.remove(endpoint);
    }

    /// Keeps a row of numbers for endpoints that will be opened with them ([`Opening::number`]): none of them is drawn for
    /// another until [`Delivery::release_numbers`]. `first`: where it begins; `None`: somewhere. Gives the first.
    pub fn keep_numbers(&mut self, first: Option<u32>, count: u32) -> Result<u32, OpenError> {
        if count == 0 || count > NUMBER_ROW_MAX || first.is_some_and(|first| first.checked_add(count - 1).is_none()) {
            return Err(OpenError::BadRow);
        }
        if self.endpoints.rows.len() >= NUMBER_ROWS_MAX {
            return Err(OpenError::TooManyRows);
        }
        let first = match first {
            Some(first) => {
                if let Some(number) = (first..=first + (count - 1)).find(|number| !self.endpoints.is_free(*number)) {
                    return Err(OpenError::NumberTaken { number });
                }
                first
            }
            None => self.endpoints.draw_numbers(&mut self.random, count),
        };
        self.endpoints.rows.push((first, count));
        Ok(first)
    }

    /// Lets go of a row of numbers. Endpoints that have some of them keep them.
    pub fn release_numbers(&mut self, first: u32) {
        if let Some(at) = self.endpoints.rows.iter().position(|row| row.0 == first) {
            self.endpoints.rows.swap_remove(at);
        }
    }

    /// From now on an endpoint exists for one peer only.
    pub(crate) fn allow_only(&mut self, endpoint: EndpointId, peer: PeerId) -> Result<SourceId, PostError> {
        let source = self.addresses.source(peer).ok_or(PostError::NoSuchPeer)?;
        self.endpoints.get_mut(endpoint).ok_or(PostError::NoSuchEndpoint)?.allowed_peer = Some(source);
        Ok(source)
    }

    /// While it is silenced nothing that ends at an endpoint is reported or counted: buffers are just released. For one
    /// that is about to be closed by a user who does not want to hear of what is under way. Gives what it was before.
    pub fn silence_endpoint(&mut self, endpoint: EndpointId, silenced: bool) -> bool {
        let endpoint = self.endpoints.get_mut(endpoint);
        endpoint.is_some_and(|endpoint| core::mem::replace(&mut endpoint.silenced, silenced))
    }

    /// One side of an endpoint is as if it had never been bound.
    pub(crate) fn unbind_side(&mut self, endpoint: EndpointId, side: Side) {
        let Some(state) = self.endpoints.get_mut(endpoint) else { return };
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
    /// writes of peers with immediate data that are under way ([`Delivery::reserve_remote_write`]).
    pub(crate) fn bind_endpoint(
        &mut self,
        endpoint: EndpointId,
        more: &Bindings,
        notices: usize,
    ) -> Result<(), PostError> {
        let is_bound = self.endpoint(endpoint).ok_or(PostError::NoSuchEndpoint)?.bindings.receive_queue.is_some();
        let receives = more.receive_queue.filter(|_| !is_bound);
        if let Some(queue) = receives.and_then(|queue| self.events.queue_mut(queue)) {
            if !queue.reserve_many(notices) {
                return Err(PostError::CompletionQueueFull);
            }
            queue.serve_receives();
        }
        let bindings = &mut self.endpoints.get_mut(endpoint).ok_or(PostError::NoSuchEndpoint)?.bindings;
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
        self.endpoint(endpoint).is_some_and(|endpoint| endpoint.allowed_peer.is_none_or(|allowed| allowed == source))
    }

    /// The endpoint of a kind that has a number, if it is there for this source.
    pub(crate) fn endpoint_for(&self, number: u32, kind: EndpointKind, source: Address) -> Option<EndpointId> {
        let id = self.endpoint_by_number(number)?;
        let endpoint = self.endpoint(id).filter(|endpoint| endpoint.kind == kind)?;
        match endpoint.allowed_peer {
            Some(allowed) if allowed != self.addresses.source_of(source) => None,
            _ => Some(id),
        }
    }

    /// The endpoint whose receives serve the messages of this one: itself, unless it shares another's.
    pub(crate) fn receiver_of(&self, endpoint: EndpointId) -> EndpointId {
        self.endpoint(endpoint).and_then(|endpoint| endpoint.srx).unwrap_or(endpoint)
    }

    /// The endpoints that take their receives from this one.
    pub(crate) fn sharers_of(&self, endpoint: EndpointId) -> impl Iterator<Item = EndpointId> {
        let all = (endpoint, EndpointId(0))..=(endpoint, EndpointId(u32::MAX));
        self.endpoints.sharers.range(all).map(|(_, sharer)| *sharer)
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
                let queue = endpoint.bindings.transmit_queue.and_then(|queue| self.events.queue(queue));
                Some(queue.map_or(usize::MAX, CompletionQueue::room_for_posts))
            }
            Side::Receive if endpoint.srx.is_some() => None,
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

    /// The endpoint that peers call by a number.
    pub fn endpoint_by_number(&self, number: u32) -> Option<EndpointId> {
        self.endpoints.by_number.get(&number).copied()
    }

    /// Whether messages wait for a receive at an endpoint.
    #[inline]
    pub fn has_unexpected(&self, endpoint: EndpointId) -> bool {
        self.endpoint(endpoint).is_some_and(|e| !(e.unexpected.is_empty() && e.tagged_unexpected.is_empty()))
    }

    /// The queue that tells of what an endpoint receives.
    pub(crate) fn receive_queue_of(&self, endpoint: EndpointId) -> Option<QueueId> {
        self.endpoint(endpoint)?.bindings.receive_queue
    }

    /// How many completions the queue could take that tells of what an endpoint receives.
    pub(crate) fn room_for_receives(&self, endpoint: EndpointId) -> usize {
        let queue = self.receive_queue_of(endpoint).and_then(|queue| self.events.queue(queue));
        queue.map_or(usize::MAX, CompletionQueue::free)
    }

    /// The lists that messages for an endpoint are in, and receives for them.
    pub(super) fn lists_of(&mut self, endpoint: EndpointId, tagged: bool) -> Option<Lists<'_>> {
        let receiver = self.receiver_of(endpoint);
        self.endpoints.get_mut(receiver).map(|endpoint| lists(endpoint, tagged))
    }

    #[inline]
    pub(super) fn endpoint(&self, endpoint: EndpointId) -> Option<&Endpoint> {
        self.endpoints.get(endpoint)
    }
}
