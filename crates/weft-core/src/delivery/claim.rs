//! Messages that wait: looked at, claimed for later, or thrown away before there is a buffer for them.

use super::matched::RecvTarget;
use super::receive::{Body, UnexpectedMessage};
use super::{Delivery, Envelope, Freed};
use crate::address::{Address, PeerId, SourceId};
use crate::command::{EndpointId, PostError, Receive};
use crate::delivery::matching::{PostedId, UnexpectedId};
use crate::event::{Completion, CompletionFlags, CompletionKind};
use crate::memory::{LocalKey, Memory};

/// Names a message that was claimed. Once it is received or discarded the id leads nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClaimId(pub u64);

/// What is done with a message that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peek {
    /// Nothing.
    Look,
    /// No receive takes it any more but the one that names its claim.
    Claim,
    /// It is thrown away. Its sender hears that it was delivered.
    Discard,
}

/// A message that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peeked {
    /// Bytes, whether they are here yet or not.
    pub length: u64,
    /// The tag.
    pub tag: u64,
    /// Immediate data.
    pub immediate: Option<u64>,
    /// Who sent it.
    pub source: Address,
    /// Its name in the address vector, if it has one.
    pub peer: Option<PeerId>,
    /// Of [`Peek::Claim`].
    pub claim: Option<ClaimId>,
}

/// A message that was claimed.
#[derive(Debug)]
pub(super) struct Claim {
    message: UnexpectedMessage,
    /// Tells it from others that had its place.
    stamp: u32,
    /// A receive without bytes told of it.
    announced: bool,
}

/// Where a message that is still arriving waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnexpectedRef {
    /// Among the unexpected ones of its endpoint.
    Listed(UnexpectedId),
    /// Among the claims.
    Claimed(u32),
}

impl ClaimId {
    fn new(index: u32, stamp: u32) -> ClaimId {
        ClaimId(u64::from(stamp) << 32 | u64::from(index))
    }

    fn index(self) -> u32 {
        self.0 as u32
    }

    fn stamp(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

impl<M: Memory> Delivery<M> {
    /// Finds the first waiting message that a receive would take. Buffer, context and what else the receive names do not
    /// matter. `None`: there is none yet.
    pub fn peek(&mut self, receive: &Receive, peek: Peek) -> Result<Option<Peeked>, PostError> {
        let source = self.source_wanted(receive)?;
        let Some(found) = self.find_unexpected(receive, source) else { return Ok(None) };
        if peek == Peek::Claim && self.claims.len() >= self.config.unexpected_max {
            return Err(PostError::QueueFull);
        }
        let (_, unexpected) = self.lists_of(receive.endpoint, receive.tagged).ok_or(PostError::NoSuchEndpoint)?;
        let Some(envelope) = unexpected.get(found).map(|message| message.envelope) else { return Ok(None) };
        let mut claim = None;
        match peek {
            Peek::Look => {}
            Peek::Claim => claim = self.claim(&envelope, found),
            Peek::Discard => {
                let (_, unexpected) =
                    self.lists_of(receive.endpoint, receive.tagged).ok_or(PostError::NoSuchEndpoint)?;
                if let Some(message) = unexpected.remove(found) {
                    self.discard_message(message);
                    self.note_freed(Freed::Receives(receive.endpoint));
                }
            }
        }
        Ok(Some(Peeked {
            length: u64::from(envelope.length),
            tag: envelope.tag,
            immediate: envelope.immediate,
            source: envelope.source,
            peer: self.peer_of(&envelope),
            claim,
        }))
    }

    /// Takes a buffer for a message that was claimed. It completes as a receive that the message matched.
    pub fn receive_claimed(&mut self, claim: ClaimId, receive: &Receive) -> Result<(), PostError> {
        let envelope = self.claimed(receive.endpoint, claim)?.message.envelope;
        if receive.multi.is_some() || receive.announce {
            return Err(PostError::NotSupported);
        }
        self.check_local(receive.local, receive.offset, receive.length)?;
        let queue = self.receive_queue_of(envelope.endpoint);
        if !self.events.reserve(queue) {
            return Err(PostError::CompletionQueueFull);
        }
        match self.claims.remove(claim.index()) {
            Some(claim) => {
                let mut target = RecvTarget::of(receive);
                if claim.announced {
                    target.flags = CompletionFlags::ANNOUNCED;
                }
                self.give(claim.message, target);
            }
            None => self.unreserve(queue),
        }
        self.note_freed(Freed::Receives(receive.endpoint));
        Ok(())
    }

    /// Throws a message away that was claimed. Its sender hears that it was delivered.
    pub fn discard_claimed(&mut self, endpoint: EndpointId, claim: ClaimId) -> Result<(), PostError> {
        self.claimed(endpoint, claim)?;
        if let Some(claim) = self.claims.remove(claim.index()) {
            self.discard_message(claim.message);
            self.note_freed(Freed::Receives(endpoint));
        }
        Ok(())
    }

    fn claimed(&self, endpoint: EndpointId, claim: ClaimId) -> Result<&Claim, PostError> {
        let found = self.claims.get(claim.index()).filter(|found| found.stamp == claim.stamp());
        let receiver = |found: &&Claim| self.receiver_of(found.message.envelope.endpoint);
        found.filter(|found| receiver(found) == endpoint).ok_or(PostError::NoSuchClaim)
    }

    /// Takes a message out of its list, for whoever names it.
    pub(super) fn claim(&mut self, envelope: &Envelope, id: UnexpectedId) -> Option<ClaimId> {
        let message = self.lists_of(envelope.endpoint, envelope.tagged)?.1.remove(id)?;
        self.claim_stamp = self.claim_stamp.wrapping_add(1);
        let arriving = match message.body {
            Body::Arriving(index) => Some(index),
            Body::Whole(_) | Body::Lost => None,
        };
        let index = self.claims.insert(Claim { message, stamp: self.claim_stamp, announced: false });
        if let Some(arriving) = arriving {
            self.arriving_was_claimed(arriving, index);
        }
        Some(ClaimId::new(index, self.claim_stamp))
    }

    /// A message has matched a receive that takes no bytes. `kept`: where it waits; `None`: there was no room for it, and
    /// the receive stays. A place in the queue is reserved.
    pub(super) fn announce(&mut self, envelope: &Envelope, posted: PostedId, kept: Option<UnexpectedId>) {
        let claim = kept.and_then(|id| self.claim(envelope, id));
        let lists = self.lists_of(envelope.endpoint, envelope.tagged);
        let receive = lists.filter(|_| claim.is_some()).and_then(|(list, _)| list.remove(posted));
        match (claim, receive) {
            (Some(claim), Some(posted)) => self.tell_announced(envelope, &posted.receive, claim),
            _ => {
                let queue = self.receive_queue_of(envelope.endpoint);
                self.unreserve(queue);
            }
        }
    }

    /// The same for a receive that finds its message waiting.
    pub(super) fn post_announced(&mut self, receive: &Receive, source: Option<SourceId>) -> Result<(), PostError> {
        if receive.multi.is_some() {
            return Err(PostError::NotSupported);
        }
        let Some(found) = self.find_unexpected(receive, source) else {
            return self.list_receive(receive, source, None);
        };
        let queue = self.queue_of_unexpected(receive, found);
        if self.claims.len() >= self.config.unexpected_max {
            return Err(PostError::QueueFull);
        }
        if !self.events.reserve(queue) {
            return Err(PostError::CompletionQueueFull);
        }
        let (_, unexpected) = self.lists_of(receive.endpoint, receive.tagged).ok_or(PostError::NoSuchEndpoint)?;
        let envelope = unexpected.get(found).map(|message| message.envelope);
        match envelope.and_then(|envelope| Some((envelope, self.claim(&envelope, found)?))) {
            Some((envelope, claim)) => self.tell_announced(&envelope, receive, claim),
            None => self.unreserve(queue),
        }
        Ok(())
    }

    fn tell_announced(&mut self, envelope: &Envelope, receive: &Receive, claim: ClaimId) {
        if let Some(claim) = self.claims.get_mut(claim.index()) {
            claim.announced = true;
        }
        let queue = self.receive_queue_of(envelope.endpoint);
        let completion = Completion {
            context: receive.context,
            kind: if envelope.tagged { CompletionKind::TaggedAnnounced } else { CompletionKind::Announced },
            flags: CompletionFlags::ANNOUNCED,
            result: Ok(()),
            length: u64::from(envelope.length),
            tag: envelope.tag,
            immediate: envelope.immediate,
            source: Some(envelope.source),
            peer: self.peer_of(envelope),
            local: receive.local,
            results: LocalKey::NONE,
            offset: claim.0,
        };
        if queue.is_some() {
            self.events.push(queue, &completion);
        } else {
            self.release_local(receive.local);
        }
    }

    /// A message that waits and is still arriving.
    pub(super) fn unexpected_mut(&mut self, envelope: &Envelope, at: UnexpectedRef) -> Option<&mut UnexpectedMessage> {
        match at {
            UnexpectedRef::Listed(id) => self.lists_of(envelope.endpoint, envelope.tagged)?.1.get_mut(id),
            UnexpectedRef::Claimed(index) => self.claims.get_mut(index).map(|claim| &mut claim.message),
        }
    }

    /// A message that was still arriving does not come. Who has claimed it is told when he asks for it.
    pub(super) fn forget_unexpected(&mut self, envelope: &Envelope, at: UnexpectedRef) {
        match at {
            UnexpectedRef::Listed(id) => {
                if let Some((_, unexpected)) = self.lists_of(envelope.endpoint, envelope.tagged) {
                    unexpected.remove(id);
                }
                self.note_freed(Freed::Shared);
            }
            UnexpectedRef::Claimed(index) => {
                if let Some(claim) = self.claims.get_mut(index) {
                    claim.message.body = Body::Lost;
                }
            }
        }
    }

    /// Nobody will have a message; its sender need not know.
    fn discard_message(&mut self, message: UnexpectedMessage) {
        match message.body {
            Body::Whole(bytes) => self.recycle(bytes),
            Body::Arriving(index) => self.discard_arriving(index),
            Body::Lost => {}
        }
    }

    /// Claims that end with their endpoint. What is arriving for them has ended.
    pub(super) fn close_claims(&mut self, ends: &impl Fn(&Envelope) -> bool) {
        let mut from = 0;
        while let Some(index) = self.claims.next_from(from) {
            from = index + 1;
            if self.claims.get(index).is_some_and(|claim| ends(&claim.message.envelope))
                && let Some(claim) = self.claims.remove(index)
            {
                self.drop_message(claim.message);
            }
        }
    }

    /// A message that waits ends with its endpoint. What is arriving has ended.
    pub(super) fn drop_message(&mut self, message: UnexpectedMessage) {
        if let Body::Whole(bytes) = message.body {
            self.recycle(bytes);
        }
    }
}
