//! Reading and making packets does not allocate: the way of every packet is counted by an allocator that counts.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "clippy.toml allows them in tests, but not in the functions that tests call"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use weft_wire::envelope::{Envelope, Outside};
use weft_wire::graph::{self, Stop};
use weft_wire::header::{Ethernet, Grh, Lrh, ether_type, link_next_header, udp_port};
use weft_wire::limits::TRANSFER_LENGTH_DEFAULT_BYTES;
use weft_wire::table::{Decoded, FrameKind, Link, Outer, ProtocolId, Tables};

/// The system's allocator, which counts what the thread asks of it.
struct Counting;

thread_local! {
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

fn count() {
    // A thread that ends may allocate after its counter is gone; nobody asks for its count.
    let _ = CALLS.try_with(|calls| calls.set(calls.get() + 1));
}

// SAFETY: every method does what `System` does with the same arguments, so `System` upholds the contract. Counting
// touches a thread-local cell that needs no allocation and no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller upholds the contract for `layout`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller gives what `alloc` gave for the same `layout`, which came from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as for `dealloc`; the caller upholds the contract for `size`.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Calls of the allocator while `work` runs.
fn calls_of(work: impl FnOnce()) -> usize {
    let before = CALLS.with(Cell::get);
    work();
    CALLS.with(Cell::get) - before
}

#[test]
fn the_counter_counts() {
    assert!(calls_of(|| drop(std::hint::black_box(vec![1u8; 100]))) >= 2);
}

/// The headers in front of a protocol, and the link that they begin on; none for units of a stream and for SRDMA.
fn envelope(protocol: &str) -> Option<(Link, Envelope)> {
    let ethernet = |ethertype| Outside::Ethernet(Ethernet { destination: [2; 6], source: [4; 6], ethertype });
    let grh = Grh {
        traffic_class: 0,
        flow_label: 0,
        payload_length: 0,
        next_header: Grh::TRANSPORT,
        hop_limit: 1,
        source_gid: [1; 16],
        destination_gid: [2; 16],
    };
    let lnh = link_next_header::LOCAL;
    let lrh = Lrh { vl: 0, lver: 0, sl: 0, reserved2: 0, lnh, dlid: 1, reserved5: 0, pktlen: 0, slid: 2 };
    let layers = match protocol {
        "roce-v2" => return Some((Link::Ethernet, Envelope::example_udp(0xc000, udp_port::ROCE_V2))),
        "roce-v1" => vec![ethernet(ether_type::ROCE_V1), Outside::Grh(grh)],
        "infiniband" => return Some((Link::InfiniBand, Envelope { layers: vec![Outside::Lrh(lrh)] })),
        _ => return None,
    };
    Some((Link::Ethernet, Envelope { layers }))
}

/// Everything that is done with a packet on its way up, and its way down again.
fn there_and_back(tables: &Tables, protocol: ProtocolId, link: Option<Link>, frame: &[u8], room: &mut [u8]) {
    let (bytes, outer) = match link {
        Some(link) => {
            let path = graph::walk(link, frame).unwrap();
            assert_ne!(path.stop, Stop::Other);
            assert_eq!(tables.identify(&path.seen), Some(protocol));
            let _ = tables.identify(&path.seen.in_stream(FrameKind::MpaFpdu));
            (path.payload(frame), path.outer(frame))
        }
        None => (frame, Outer::default()),
    };
    let mut decoded = Decoded::default();
    tables.decode(protocol, bytes, &mut decoded).unwrap();
    assert!(tables.verify(&decoded, bytes, &outer).is_intact());
    assert!(tables.commands(&decoded, TRANSFER_LENGTH_DEFAULT_BYTES).count() >= 1);
    let _ = tables.validate(&decoded, bytes, &[0; 8], &[0; 8]);
    let _ = (tables.placement(&decoded), tables.transaction_by(&decoded));
    let length = tables.encode(protocol, &decoded.command, decoded.payload(bytes), &outer, room).unwrap();
    assert_eq!(&room[..length], bytes);
    let fields = tables.fields(protocol, decoded.opcode, bytes).unwrap();
    tables.encode_fields(protocol, decoded.opcode, &fields, decoded.payload(bytes), &outer, room).unwrap();
    // What is refused must not allocate either.
    for length in 0..bytes.len() {
        let _ = tables.decode(protocol, &bytes[..length], &mut decoded);
        let _ = link.map(|link| graph::walk(link, &frame[..length]));
    }
}

#[test]
fn packets_come_and_go_without_an_allocation() {
    let tables = Tables::builtin().unwrap_or_else(|error| panic!("{error}"));
    let mut room = [0; 512];
    let mut packets = 0;
    for (protocol, of) in tables.protocols() {
        for opcode in of.opcodes() {
            let mut packet = [0; 512];
            let command = opcode.command();
            let mut encode = |outer: &Outer<'_>| tables.encode(protocol, &command, &[7; 10], outer, &mut packet);
            let length = encode(&Outer::default()).unwrap();
            let (link, frame) = match envelope(of.name()) {
                None => (None, packet[..length].to_vec()),
                Some((link, mut envelope)) => {
                    envelope.fit(length).unwrap();
                    let mut frame = envelope.emit(length).unwrap();
                    let path = graph::walk(link, &frame).unwrap();
                    encode(&path.outer(&frame)).unwrap();
                    frame[path.start..].copy_from_slice(&packet[..length]);
                    (Some(link), frame)
                }
            };
            let calls = calls_of(|| there_and_back(&tables, protocol, link, &frame, &mut room));
            assert_eq!(calls, 0, "{} {}", of.name(), opcode.name());
            packets += 1;
        }
    }
    assert!(packets > 300, "{packets}");
}
