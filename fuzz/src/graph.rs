//! The parse graph: the first byte picks the link, the rest is a frame.
//!
//! For every frame that is walked to its end:
//! - the payload lies in the frame, and the layers lie before it, each behind the one before;
//! - the outer headers for checksums are the bytes directly before the payload;
//! - the headers taken as structs and written back are the same bytes.

use weft_wire::envelope::Envelope;
use weft_wire::graph::{Path, Stop, walk};
use weft_wire::limits::LAYERS_MAX;
use weft_wire::table::Link;

/// One input.
pub fn run(input: &[u8]) {
    let Some((first, frame)) = input.split_first() else { return };
    let link = match first % 3 {
        0 => Link::Ethernet,
        1 => Link::InfiniBand,
        _ => Link::Ip,
    };
    match walk(link, frame) {
        Ok(path) => check(&path, frame),
        Err(error) => assert!(error.offset <= frame.len(), "{error}"),
    }
}

/// What holds for every path.
pub fn check(path: &Path, frame: &[u8]) {
    assert!(path.start <= path.end && path.end <= frame.len());
    assert_eq!(path.payload(frame), &frame[path.start..path.end]);
    let layers = path.layers();
    assert!(!layers.is_empty() && layers.len() <= LAYERS_MAX);
    assert_eq!(layers[0].offset, 0);
    assert!(layers.windows(2).all(|pair| pair[0].offset < pair[1].offset), "{layers:?}");
    assert!(layers.iter().all(|layer| (layer.offset as usize) < path.start), "{layers:?}");
    assert!(layers.iter().all(|layer| path.innermost(layer.kind).is_some_and(|at| at >= layer.offset as usize)));

    let outer = path.outer(frame);
    let parts = [outer.link, outer.network, outer.udp].concat();
    if path.stop == Stop::Udp {
        assert_eq!(outer.udp.len(), 8);
        assert!(outer.network.len() >= 20);
    }
    if matches!(path.stop, Stop::Udp | Stop::Transport) {
        assert!(!parts.is_empty());
        assert_eq!(parts, &frame[path.start - parts.len()..path.start]);
    }

    let envelope = Envelope::take(path, frame).expect("the graph parsed these headers");
    assert_eq!(envelope.length(), path.start);
    let payload = path.payload(frame);
    let written = envelope.emit(payload.len()).expect("headers of a frame can be written");
    assert_eq!(written.len(), path.end);
    assert_eq!(&written[..path.start], &frame[..path.start], "{envelope:?}");
}
