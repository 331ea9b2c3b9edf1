//! The tables against the decoders that were written by hand: both take a packet, or neither does; what they make of it
//! is the same to the last slot, and so is the outcome of every checksum.

use std::sync::OnceLock;

use weft_wire::graph::{LayerKind, Path, walk};
use weft_wire::oracle::{self, Checksums, Transport};
use weft_wire::table::{Checked, Decoded, Link, Outer, ProtocolId};

use crate::tables;

fn checksums() -> &'static Checksums {
    static CHECKSUMS: OnceLock<Checksums> = OnceLock::new();
    CHECKSUMS.get_or_init(|| Checksums::new().expect("known CRCs"))
}

fn in_oracle_words(decoded: &Decoded) -> oracle::Decoded {
    oracle::Decoded {
        header_length: decoded.header_length,
        trim: decoded.trim,
        payload_length: decoded.payload_length,
        command: decoded.command,
    }
}

/// A packet of a protocol that can be told without the headers in front of it.
pub fn agree_on_unit(id: ProtocolId, bytes: &[u8]) {
    let mut by_hand = oracle::Decoded::default();
    let name = tables().protocol(id).expect("a built-in protocol").name();
    let (two, checked) = match name {
        "iwarp" => (oracle::iwarp(bytes, &mut by_hand), checksums().iwarp(bytes)),
        "mpa" => (oracle::mpa(bytes, &mut by_hand), Checked::None),
        "srdma" => (oracle::srdma(bytes, &mut by_hand), checksums().srdma(bytes)),
        _ => return,
    };
    let mut by_tables = Decoded::default();
    let one = tables().decode(id, bytes, &mut by_tables);
    assert_eq!(one.is_ok(), two.is_ok(), "tables {one:?}, by hand {two:?}");
    if one.is_ok() {
        assert_eq!(in_oracle_words(&by_tables), by_hand);
        assert_eq!(tables().verify(&by_tables, bytes, &Outer::default()).checked[0], checked);
    }
}

/// A frame that may carry the InfiniBand transport. By hand only those outside of tunnels are read.
pub fn agree_on_frame(link: Link, frame: &[u8]) {
    let mut by_hand = oracle::Decoded::default();
    let two = oracle::roce(link, frame, &mut by_hand);
    let one = walk(link, frame).ok().and_then(|path| {
        let id = tables().identify(&path.seen)?;
        let mut decoded = Decoded::default();
        tables().decode(id, path.payload(frame), &mut decoded).ok()?;
        Some((path, decoded))
    });
    let (path, decoded) = match one {
        Some((path, _)) if is_tunnelled(&path) => return,
        Some(one) => one,
        None => {
            assert!(two.is_err(), "only by hand: {two:?}");
            return;
        }
    };
    let found = two.unwrap_or_else(|refusal| panic!("by hand: {refusal}"));
    let name = match found.transport {
        Transport::RoceV2 => "roce-v2",
        Transport::RoceV1 => "roce-v1",
        Transport::InfiniBand => "infiniband",
    };
    assert_eq!(tables().find(name), Some(decoded.protocol));
    assert_eq!((path.start, path.end), (found.start, found.end));
    assert_eq!(in_oracle_words(&decoded), by_hand);
    let integrity = tables().verify(&decoded, path.payload(frame), &path.outer(frame));
    assert_eq!(integrity.checked[..2], checksums().roce(frame, &found));
}

fn is_tunnelled(path: &Path) -> bool {
    let count = |of: &[LayerKind]| path.layers().iter().filter(|layer| of.contains(&layer.kind)).count();
    count(&[LayerKind::Vxlan, LayerKind::Gre]) > 0 || count(&[LayerKind::Ipv4, LayerKind::Ipv6]) > 1
}

/// Puts headers of the link in front of a bare packet, with lengths that fit.
pub fn agree_on_transport(name: &str, bytes: &[u8]) {
    let length = |more: usize| (bytes.len() + more) as u16;
    if bytes.len() > 4096 {
        return;
    }
    let (link, mut frame) = match name {
        "roce-v2" => {
            let ip = [&[0x45, 0][..], &length(28).to_be_bytes(), &[0, 0, 0, 0, 64, 17], &[0; 10]].concat();
            (Link::Ip, [&ip[..], &[0xc0, 0, 0x12, 0xb7], &length(8).to_be_bytes(), &[0, 0]].concat())
        }
        "roce-v1" => {
            let ethernet = [&[2; 12][..], &[0x89, 0x15, 0x60, 0, 0, 0], &length(0).to_be_bytes(), &[0x1b, 64]].concat();
            (Link::Ethernet, [&ethernet[..], &[3; 32]].concat())
        }
        "infiniband" => (Link::InfiniBand, [&[0, 2, 0, 1][..], &(length(6) / 4).to_be_bytes(), &[0, 2]].concat()),
        _ => return,
    };
    frame.extend_from_slice(bytes);
    agree_on_frame(link, &frame);
}
