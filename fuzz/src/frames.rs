//! Whole Ethernet frames, the way the product takes them: walk, identify, decode, verify.
//!
//! What the parse graph and the protocols promise is checked here again, with the outer headers that a frame has, so
//! that good checksums are met too.

use weft_wire::graph::{self, Stop};
use weft_wire::table::Link;

use crate::{protocol, tables};

/// One input.
pub fn run(frame: &[u8]) {
    let Ok(path) = graph::walk(Link::Ethernet, frame) else { return };
    crate::graph::check(&path, frame);
    let outer = path.outer(frame);
    let bytes = path.payload(frame);
    if let Some(id) = tables().identify(&path.seen) {
        protocol::check(id, bytes, &outer);
    }
    if path.stop == Stop::Udp {
        // The same as a packet of a session, on whatever port.
        let id = tables().identify(&path.seen.in_session()).expect("a session is always known");
        protocol::check(id, bytes, &outer);
    }
}
