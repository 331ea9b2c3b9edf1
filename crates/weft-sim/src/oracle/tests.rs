//! The judge notices what it is there to notice.

use std::net::SocketAddr;

use weft_core::command::Level;
use weft_core::event::{CompletionFlags, CompletionKind};

use super::*;
use crate::memory::Use;
use crate::node::{payload_of, socket_of};
use crate::scenario::Place;
use crate::workload::{Qualities, What};

const SENDER: Place = Place { node: 0, endpoint: 0 };
const RECEIVER: Place = Place { node: 1, endpoint: 0 };
const LENGTH: u32 = 20;

/// Two messages (0 and 1) of one stream, and two receives (2 and 3) that fit both.
struct Case {
    oracle: Oracle,
    memory: SimMemory,
}

fn address(node: usize) -> Address {
    let socket: SocketAddr = socket_of(node);
    Address { socket, endpoint: 7 }
}

impl Case {
    fn new() -> Case {
        let mut scenario = Scenario::from_seed(0);
        scenario.operations = (0..4)
            .map(|id| {
                let send = What::Send {
                    to: RECEIVER,
                    tag: None,
                    length: LENGTH,
                    level: Level::Delivered,
                    qualities: Qualities::default(),
                };
                let receive = What::Receive { tag: None, source: None, length: u64::from(LENGTH), multi: None };
                let (place, what) = if id < 2 { (SENDER, send) } else { (RECEIVER, receive) };
                Operation { id, at: 0, place, what }
            })
            .collect();
        let mut case = Case { oracle: Oracle::new(&scenario), memory: SimMemory::new(1) };
        case.oracle.learn(address(0), SENDER, 0);
        for id in 0..4 {
            let start = (usize::from(id >= 2), 0);
            case.oracle.begin(1, id, start, (id < 2).then_some((1, 0)));
            let local =
                if id < 2 { LocalKey::NONE } else { case.memory.attach(&[0; LENGTH as usize], Use::Target, 1 << 20) };
            case.oracle.begun(id, Some(Given { local, lead: 0, results: LocalKey::NONE }));
        }
        case
    }

    fn completion(context: u32, kind: CompletionKind, local: LocalKey) -> Completion {
        Completion {
            context: u64::from(context),
            kind,
            flags: CompletionFlags::NONE,
            result: Ok(()),
            length: u64::from(LENGTH),
            tag: 0,
            immediate: None,
            source: (kind == CompletionKind::Receive).then(|| address(0)),
            peer: None,
            local,
            results: LocalKey::NONE,
            offset: 0,
        }
    }

    /// Message `message` arrives in receive `receive`.
    fn arrive(&mut self, message: u32, receive: u32) -> Result<(), Violation> {
        use weft_core::memory::Memory;
        let local = self.oracle.records[receive as usize].given.local;
        let piece = self.memory.local(local, 0, u64::from(LENGTH)).unwrap();
        self.memory.write(piece, &payload_of(message, LENGTH as usize)).unwrap();
        let completion = Case::completion(receive, CompletionKind::Receive, local);
        self.oracle.completed(5, (1, 0), &completion, &mut self.memory).map(|_| ())
    }

    fn sent(&mut self, message: u32) -> Result<(), Violation> {
        let completion = Case::completion(message, CompletionKind::Send, LocalKey::NONE);
        self.oracle.completed(6, (0, 0), &completion, &mut self.memory).map(|_| ())
    }

    fn finish(&self) -> &'static str {
        self.oracle.finish(9, |_| true).map_or_else(|violation| violation.kind, |()| "well")
    }
}

#[test]
fn order_is_kept() {
    let mut case = Case::new();
    case.arrive(0, 2).unwrap();
    case.arrive(1, 3).unwrap();
    case.sent(0).unwrap();
    case.sent(1).unwrap();
    assert_eq!(case.finish(), "well");
    assert_eq!(case.sent(1).unwrap_err().kind, "completed twice");
}

#[test]
fn overtaking_is_seen() {
    let mut case = Case::new();
    case.arrive(1, 2).unwrap();
    case.arrive(0, 3).unwrap();
    case.sent(0).unwrap();
    case.sent(1).unwrap();
    assert_eq!(case.finish(), "message order");
}

#[test]
fn a_second_delivery_is_seen() {
    let mut case = Case::new();
    case.arrive(0, 2).unwrap();
    assert_eq!(case.arrive(0, 3).unwrap_err().kind, "delivered twice");
}

#[test]
fn a_receive_that_was_passed_is_seen() {
    let mut case = Case::new();
    case.arrive(0, 3).unwrap();
    assert_eq!(case.finish(), "a message passed a receive");
}

#[test]
fn success_without_delivery_is_seen() {
    let mut case = Case::new();
    case.sent(0).unwrap();
    assert_eq!(case.finish(), "success without delivery");
}
