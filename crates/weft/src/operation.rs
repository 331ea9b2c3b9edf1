//! Operations: messages, remote writes and reads.

use weft_core::address::PeerId;
use weft_core::command::{Command, CommandFlags, Level, Operation, Receive};
use weft_core::delivery::EndpointKind;
use weft_mem::Buffer;

use crate::endpoint::{Endpoint, Payload};
use crate::error::Refused;
use crate::memory_region::RemoteAddress;

/// What is special about an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The caller's own name for it, which its completion carries; otherwise the library takes a number that is not in
    /// use, above 2⁶³.
    pub context: Option<u64>,
    /// When it counts as done. With [`Level::Injected`] the NIC keeps the buffer.
    pub level: Level,
    /// Goes to the completion at the target.
    pub immediate: Option<u64>,
    /// Starts when everything before it from this endpoint to the same target is settled.
    pub fence: bool,
    /// The target's owner wants to be woken.
    pub solicited: bool,
    /// No completion when it succeeds; the NIC keeps the buffer then.
    pub silent: bool,
    /// Of messages: may overtake earlier ones.
    pub unordered: bool,
    /// Of writes, reads and atomics: takes effect after all earlier ordered ones of this endpoint to the same target that
    /// touch the same bytes under the same key. Those that touch other bytes may overtake each other.
    pub ordered: bool,
    /// More operations follow at once; this one may wait for them, to share datagrams.
    pub more: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            context: None,
            level: Level::Transmitted,
            immediate: None,
            fence: false,
            solicited: false,
            silent: false,
            unordered: false,
            ordered: false,
            more: false,
        }
    }
}

impl Options {
    pub(crate) fn apply(&self, command: &mut Command) {
        command.level = self.level;
        let flags = [
            (self.immediate.is_some(), CommandFlags::IMMEDIATE),
            (self.fence, CommandFlags::FENCE),
            (self.solicited, CommandFlags::SOLICITED),
            (self.silent, CommandFlags::SILENT),
            (self.unordered, CommandFlags::UNORDERED),
            (self.ordered, CommandFlags::ORDERED),
            (self.more, CommandFlags::MORE),
        ];
        for (set, flag) in flags {
            if set {
                command.flags = command.flags | flag;
            }
        }
        command.immediate = self.immediate.unwrap_or(0);
    }

    /// As an injection: the copy goes its own way.
    fn injected(self) -> Options {
        Options { level: Level::Injected, silent: true, ..self }
    }
}

/// What is special about a receive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiveOptions {
    /// As [`Options::context`].
    pub context: Option<u64>,
    /// Only messages of this peer; `None`: of anyone.
    pub source: Option<PeerId>,
    /// Only messages with this tag; `None`: only messages without.
    pub tag: Option<u64>,
    /// Bits of the tag that do not matter.
    pub ignore: u64,
    /// A multi-receive: takes messages one behind the other until less than this is free. Each gives a completion, and
    /// the last of them gives the buffer back. Use a part of a [`MemoryRegion`](crate::MemoryRegion) to read messages
    /// before that.
    pub multi: Option<u64>,
    /// No completion when it succeeds.
    pub silent: bool,
}

/// Messages. Every call gives the context of its completion, or the buffer back if it was not taken.
///
/// A message is a datagram, which may be lost and must fit into one packet, on endpoints made for those.
impl Endpoint {
    /// Sends a message to a peer's next receive.
    pub fn send(&self, peer: PeerId, buffer: impl Into<Buffer>) -> Result<u64, Refused> {
        self.send_with(peer, buffer, Options::default())
    }

    /// Sends a message to a peer's next receive.
    pub fn send_with(&self, peer: PeerId, buffer: impl Into<Buffer>, options: Options) -> Result<u64, Refused> {
        self.post(self.message(peer, None, &options), Payload::Whole(buffer.into()), options.context)
    }

    /// Sends a message to the receive that its tag matches.
    pub fn tagged_send(&self, peer: PeerId, tag: u64, buffer: impl Into<Buffer>) -> Result<u64, Refused> {
        self.tagged_send_with(peer, tag, buffer, Options::default())
    }

    /// Sends a message to the receive that its tag matches.
    pub fn tagged_send_with(
        &self,
        peer: PeerId,
        tag: u64,
        buffer: impl Into<Buffer>,
        options: Options,
    ) -> Result<u64, Refused> {
        self.post(self.message(peer, Some(tag), &options), Payload::Whole(buffer.into()), options.context)
    }

    /// Sends a copy of a short message. There is no completion unless it fails.
    pub fn inject(&self, peer: PeerId, bytes: &[u8]) -> Result<u64, Refused> {
        self.inject_with(peer, bytes, Options::default())
    }

    /// Sends a copy of a short message. There is no completion unless it fails.
    pub fn inject_with(&self, peer: PeerId, bytes: &[u8], options: Options) -> Result<u64, Refused> {
        let command = self.message(peer, None, &options.injected());
        self.post(command, Payload::Copy(bytes), options.context)
    }

    /// Sends a copy of a short tagged message. There is no completion unless it fails.
    pub fn tagged_inject(&self, peer: PeerId, tag: u64, bytes: &[u8]) -> Result<u64, Refused> {
        let options = Options::default().injected();
        self.post(self.message(peer, Some(tag), &options), Payload::Copy(bytes), None)
    }

    /// Takes the next message without tag, of anyone.
    pub fn receive(&self, buffer: impl Into<Buffer>) -> Result<u64, Refused> {
        self.receive_with(buffer, ReceiveOptions::default())
    }

    /// Takes the next message with this tag, but for the bits to ignore, of anyone.
    pub fn tagged_receive(&self, tag: u64, ignore: u64, buffer: impl Into<Buffer>) -> Result<u64, Refused> {
        self.receive_with(buffer, ReceiveOptions { tag: Some(tag), ignore, ..Default::default() })
    }

    /// Takes messages as the options say.
    pub fn receive_with(&self, buffer: impl Into<Buffer>, options: ReceiveOptions) -> Result<u64, Refused> {
        let buffer = buffer.into();
        let receive = Receive {
            endpoint: self.id(),
            local: weft_core::memory::LocalKey::NONE,
            offset: 0,
            length: buffer.len() as u64,
            source: options.source,
            tagged: options.tag.is_some(),
            tag: options.tag.unwrap_or(0),
            ignore: options.ignore,
            multi: options.multi,
            silent: options.silent,
            announce: false,
            context: 0,
            counter: None,
        };
        self.post_receive(receive, buffer, options.context)
    }

    fn message(&self, peer: PeerId, tag: Option<u64>, options: &Options) -> Command {
        let operation = match (self.kind(), tag) {
            (EndpointKind::Datagram, None) => Operation::Datagram,
            (_, None) => Operation::Send,
            // The engine refuses what a datagram endpoint cannot do.
            (_, Some(_)) => Operation::TaggedSend,
        };
        let mut command = Command::new(operation, self.id(), peer);
        options.apply(&mut command);
        command.address = tag.unwrap_or(0);
        command
    }
}

/// Remote memory: the target's program takes no part.
impl Endpoint {
    /// Writes bytes into a peer's memory.
    pub fn write(&self, peer: PeerId, remote: RemoteAddress, buffer: impl Into<Buffer>) -> Result<u64, Refused> {
        self.write_with(peer, remote, buffer, Options::default())
    }

    /// Writes bytes into a peer's memory; with immediate data its receive queue gets a completion when all are there.
    pub fn write_with(
        &self,
        peer: PeerId,
        remote: RemoteAddress,
        buffer: impl Into<Buffer>,
        options: Options,
    ) -> Result<u64, Refused> {
        let command = self.access(Operation::Write, peer, remote, &options);
        self.post(command, Payload::Whole(buffer.into()), options.context)
    }

    /// Writes a copy of a few bytes. There is no completion unless it fails.
    pub fn inject_write(&self, peer: PeerId, remote: RemoteAddress, bytes: &[u8]) -> Result<u64, Refused> {
        let command = self.access(Operation::Write, peer, remote, &Options::default().injected());
        self.post(command, Payload::Copy(bytes), None)
    }

    /// Reads as many bytes of a peer's memory as the buffer has.
    pub fn read(&self, peer: PeerId, remote: RemoteAddress, buffer: impl Into<Buffer>) -> Result<u64, Refused> {
        self.read_with(peer, remote, buffer, Options::default())
    }

    /// Reads as many bytes of a peer's memory as the buffer has.
    pub fn read_with(
        &self,
        peer: PeerId,
        remote: RemoteAddress,
        buffer: impl Into<Buffer>,
        options: Options,
    ) -> Result<u64, Refused> {
        let command = self.access(Operation::Read, peer, remote, &options);
        self.post(command, Payload::Whole(buffer.into()), options.context)
    }

    fn access(&self, operation: Operation, peer: PeerId, remote: RemoteAddress, options: &Options) -> Command {
        let mut command = Command::new(operation, self.id(), peer);
        options.apply(&mut command);
        (command.address, command.key) = (remote.address, remote.key);
        command
    }
}
