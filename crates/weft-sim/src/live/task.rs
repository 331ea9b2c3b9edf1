//! What a task does in its turn, and how far it is.

use weft_core::address::PeerId;
use weft_core::atomic::AtomicCall;
use weft_core::command::{Command, CommandFlags, Operation, PostError, Receive};
use weft_core::event::{Completion, CompletionKind};
use weft_core::memory::{Access, LocalKey};
use weft_core::time::Time;

use super::plan::{Job, Plan, TaskPlan, Verb};
use super::{CELLS, LENT_ADDRESS, Party, WRITTEN, key_of};
use crate::cells;
use crate::memory::{Content, Use};
use crate::random::{fill, pattern};

/// How far a task is.
#[derive(Clone, Debug, Default)]
pub(super) struct Task {
    pub(super) posted: usize,
    pub(super) ended: usize,
    /// Of receives: how many are posted and have got nothing.
    waiting: usize,
    /// Of what is lent: the round, and what has happened in it.
    round: usize,
    told: bool,
    region: Option<usize>,
    heard: usize,
    reads: u32,
    /// Buffers of reads that are under way, and which piece each is.
    buffers: Vec<(LocalKey, u32)>,
    pub(super) done: bool,
}

/// The place of a task's operations in the region that is written.
pub(super) fn offset_of(task: usize, operation: usize) -> u64 {
    (task as u64 * 16 + operation as u64) * 16
}

/// Bytes of the region that is written.
pub(super) fn written_bytes(plan: &Plan) -> u64 {
    offset_of(plan.tasks.len(), 0)
}

/// The key under which memory is lent; each task has one.
fn lent_key(task: usize) -> u64 {
    key_of(100 + task)
}

impl Task {
    /// Does what can be done now. False: nothing could. An error is one that must not be.
    pub(super) fn turn(&mut self, id: usize, plan: &TaskPlan, party: &mut Party, now: Time) -> Result<bool, String> {
        let before = (self.posted, self.ended, self.round, self.done);
        match &plan.job {
            Job::Send { to, lengths, level, fence } => {
                while let Some(&length) = lengths.get(self.posted).filter(|_| self.has_window(plan)) {
                    let mut command = party.command(Operation::Send, plan.place.1, *to);
                    (command.length, command.level) = (length, *level);
                    command.flags = if *fence { CommandFlags::FENCE } else { CommandFlags::NONE };
                    let mut bytes = vec![0; length as usize];
                    fill(id as u32, 0, &mut bytes);
                    if !self.post(id, party, now, command, &bytes, Use::Source)? {
                        break;
                    }
                }
                self.done = self.ended == lengths.len();
            }
            Job::Receive { count, together, length } => {
                while self.waiting < *together && self.posted < *count {
                    if !self.receive(id, plan.place.1, party, *length)? {
                        break;
                    }
                }
                self.done = self.ended == *count;
            }
            Job::Remote { to, verbs, fence, ordered } => {
                while let Some(&verb) = verbs.get(self.posted).filter(|_| self.has_window(plan)) {
                    let command = remote(id, self.posted, party.command(Operation::Write, plan.place.1, *to), verb);
                    let mut command = command;
                    for (set, flag) in [(*fence, CommandFlags::FENCE), (*ordered, CommandFlags::ORDERED)] {
                        command.flags = if set { command.flags | flag } else { command.flags };
                    }
                    let (bytes, purpose) = match verb {
                        Verb::Read => (vec![0; 8], Use::Target),
                        _ => (1u64.to_le_bytes().to_vec(), Use::Source),
                    };
                    if verb == Verb::Fetch {
                        command.immediate = u64::from(party.attach(&[0; 8], Use::Target).0);
                    }
                    if !self.post(id, party, now, command, &bytes, purpose)? {
                        break;
                    }
                }
                self.done = self.ended == verbs.len();
            }
            Job::Await { by } => {
                let (written, times) = party.engine.delivery().memory().region(WRITTEN);
                let (cells, _) = party.engine.delivery().memory().region(CELLS);
                let place = offset_of(*by, 0) as usize;
                let cell = cells.get(*by * 8).is_some_and(|value| *value != 0);
                self.done = cell || times.get(place).is_some_and(|at| *at != 0) && written.get(place) != Some(&0);
            }
            Job::Lend { to, rounds, length } => self.lend(id, plan, *to, (*rounds, *length), party, now)?,
            Job::Borrow { from, rounds, length, pieces } => {
                self.borrow(id, plan, *from, (*rounds, *length, *pieces), party, now)?;
            }
        }
        Ok(before != (self.posted, self.ended, self.round, self.done))
    }

    fn has_window(&self, plan: &TaskPlan) -> bool {
        self.posted - self.ended < plan.window
    }

    /// Posts a command. False: there is no room now.
    fn post(
        &mut self,
        id: usize,
        party: &mut Party,
        now: Time,
        mut command: Command,
        bytes: &[u8],
        purpose: Use,
    ) -> Result<bool, String> {
        command.local = party.attach(bytes, purpose);
        command.context = id as u64;
        match party.engine.post(now, &command) {
            Ok(()) => {
                self.posted += 1;
                Ok(true)
            }
            Err(error) => {
                party.detach(command.local)?;
                if matches!(command.operation, Operation::FetchAtomic) {
                    party.detach(command.results())?;
                }
                no_room(error)
            }
        }
    }

    fn receive(&mut self, id: usize, endpoint: usize, party: &mut Party, length: u64) -> Result<bool, String> {
        let local = party.attach(&vec![0; length as usize], Use::Target);
        let receive = Receive {
            endpoint: party.endpoint(endpoint),
            local,
            offset: 0,
            length,
            source: None,
            tagged: false,
            tag: 0,
            ignore: 0,
            multi: None,
            silent: false,
            announce: false,
            context: id as u64,
            counter: None,
        };
        match party.engine.delivery_mut().post_receive(&receive) {
            Ok(()) => {
                self.posted += 1;
                self.waiting += 1;
                Ok(true)
            }
            Err(error) => {
                party.detach(local)?;
                no_room(error)
            }
        }
    }

    /// The owner of memory that is lent.
    fn lend(
        &mut self,
        id: usize,
        plan: &TaskPlan,
        to: (usize, usize),
        (rounds, length): (usize, u32),
        party: &mut Party,
        now: Time,
    ) -> Result<(), String> {
        if self.waiting == 0 && self.heard < rounds {
            self.receive(id, plan.place.1, party, 8)?;
        }
        if self.round < rounds && self.region.is_none() {
            let mut bytes = vec![0; length as usize];
            fill(self.round as u32, 0, &mut bytes);
            let memory = party.engine.delivery_mut().memory_mut();
            let region = memory.register(lent_key(id), LENT_ADDRESS, Access::REMOTE_READ, Content::Constant, &bytes);
            self.region = Some(region);
        }
        if self.round < rounds && !self.told {
            let mut command = party.command(Operation::Send, plan.place.1, to);
            command.length = 16;
            let mut bytes = (self.round as u64).to_le_bytes().to_vec();
            bytes.extend(lent_key(id).to_le_bytes());
            self.told = self.post(id, party, now, command, &bytes, Use::Source)?;
        }
        if self.heard > self.round {
            // The peer has said that it is done: the key may be used again at once.
            if let Some(region) = self.region.take() {
                party.engine.delivery_mut().memory_mut().close(region);
            }
            (self.round, self.told) = (self.round + 1, false);
        }
        self.done = self.round == rounds && self.ended == self.posted;
        Ok(())
    }

    /// The reader of memory that is lent.
    fn borrow(
        &mut self,
        id: usize,
        plan: &TaskPlan,
        from: (usize, usize),
        (rounds, length, pieces): (usize, u32, u32),
        party: &mut Party,
        now: Time,
    ) -> Result<(), String> {
        if self.waiting == 0 && self.heard < rounds {
            self.receive(id, plan.place.1, party, 16)?;
        }
        let each = length.div_ceil(pieces);
        while self.heard > self.round && self.reads < pieces {
            let mut command = party.command(Operation::Read, plan.place.1, from);
            let offset = self.reads * each;
            (command.key, command.address) = (party.lent, LENT_ADDRESS + u64::from(offset));
            command.length = each.min(length - offset);
            let bytes = vec![0; command.length as usize];
            let next = party.next_buffer();
            if !self.post(id, party, now, command, &bytes, Use::Target)? {
                break;
            }
            self.buffers.push((next, offset));
            self.reads += 1;
        }
        if self.heard > self.round && self.reads == pieces && self.buffers.is_empty() {
            let mut command = party.command(Operation::Send, plan.place.1, from);
            command.length = 8;
            if self.post(id, party, now, command, &[1; 8], Use::Source)? {
                (self.round, self.reads) = (self.round + 1, 0);
            }
        }
        self.done = self.round == rounds && self.ended == self.posted;
        Ok(())
    }

    /// An operation of the task has ended.
    pub(super) fn completed(&mut self, completion: &Completion, party: &mut Party) -> Result<(), String> {
        if let Err(failure) = completion.result {
            return Err(format!("{:?} failed: {failure}", completion.kind));
        }
        let bytes = party.detach(completion.local)?;
        party.detach(completion.results)?;
        self.ended += 1;
        match completion.kind {
            CompletionKind::Receive => {
                self.waiting -= 1;
                self.heard += 1;
                // What is lent says under which key.
                if let Some((_, key)) = bytes.split_first_chunk::<8>().filter(|_| completion.length == 16)
                    && let Some(key) = key.first_chunk()
                {
                    party.lent = u64::from_le_bytes(*key);
                }
            }
            CompletionKind::Read => {
                let Some(at) = self.buffers.iter().position(|(local, _)| *local == completion.local) else {
                    return Ok(());
                };
                let (_, offset) = self.buffers.swap_remove(at);
                let round = self.round as u32;
                let right = (u64::from(offset)..).zip(&bytes).all(|(at, byte)| pattern(round, at) == *byte);
                if !right {
                    return Err(format!("a read of round {round} brought other bytes"));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

fn no_room(error: PostError) -> Result<bool, String> {
    match error {
        PostError::QueueFull | PostError::CompletionQueueFull => Ok(false),
        error => Err(format!("refused without cause: {error}")),
    }
}

fn remote(id: usize, at: usize, mut command: Command, verb: Verb) -> Command {
    (command.key, command.address, command.length) = (key_of(WRITTEN), offset_of(id, at), 8);
    match verb {
        Verb::Write => {}
        Verb::Notice => command.flags = CommandFlags::IMMEDIATE,
        Verb::Read => command.operation = Operation::Read,
        Verb::Fetch => {
            command.operation = Operation::FetchAtomic;
            command.atomic = AtomicCall { operation: cells::SUM, datatype: cells::DATATYPE, count: 1 };
            (command.key, command.address) = (key_of(CELLS), id as u64 * 8);
        }
    }
    command
}

/// Nobody has this name.
pub(super) const NOBODY: PeerId = PeerId(u32::MAX);
