//! What a node keeps follows what is in flight, not whom it ever met: counted in bytes of its heap.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use weft_core::packet::Codec;
use weft_sim::scale;

struct Counting;

thread_local! {
    /// Bytes that are allocated now, by this thread.
    static LIVE: Cell<isize> = const { Cell::new(0) };
}

// SAFETY: all work is the system's; counting changes nothing of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.with(|live| live.set(live.get() + layout.size() as isize));
        // SAFETY: the caller's contract is the system's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.with(|live| live.set(live.get() - layout.size() as isize));
        // SAFETY: the caller's contract is the system's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// With the tables' spare places, which are up to as many as those in use. A tracker or a flow is several hundred bytes.
const IDLE_PEER_MAX_BYTES: isize = 100;

#[test]
fn an_idle_peer_costs_a_tombstone_and_then_nothing() {
    let codec = Arc::new(Codec::builtin().unwrap());
    let (mut peers, mut live) = (Vec::new(), Vec::new());
    let report = scale::scale(40_000, &codec, |done| {
        peers.push(done as isize);
        live.push(LIVE.with(Cell::get));
    })
    .unwrap();
    let (more_peers, more_bytes) = (peers.last().unwrap() - peers[0], live.last().unwrap() - live[0]);
    assert!(more_peers >= 30_000, "{peers:?}");
    assert!(more_bytes < more_peers * IDLE_PEER_MAX_BYTES, "{more_bytes} bytes for {more_peers} peers: {live:?}");
    let state = report.after;
    assert_eq!((state.trackers, state.lives, state.tombstones, state.commands), (0, 0, 0, 0), "{state:?}");
}
