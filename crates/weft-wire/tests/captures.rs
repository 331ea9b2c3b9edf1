use std::vec::Vec;
use weft_wire::*;
fn packets(path: &std::path::Path) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(path).unwrap();
    let mut reader = capture::Reader::new();
    let mut rest = &bytes[..];
    let mut out = Vec::new();
    loop {
        match reader.next(rest).unwrap() {
            capture::Step::NeedMore { .. } => break,
            capture::Step::Skip { consumed } => rest = &rest[consumed..],
            capture::Step::Packet { consumed, packet } => {
                out.push(packet.data.to_vec());
                rest = &rest[consumed..];
            }
            capture::Step::Bad { error, .. } => panic!("{error}"),
        }
    }
    out
}
#[test]
fn all() {
    let t = match table::Tables::builtin() {
        Ok(t) => t,
        Err(e) => panic!("{e}"),
    };
    let mut n = 0;
    for f in std::fs::read_dir("/work/shared/captures").unwrap() {
        let f = f.unwrap().path();
        if f.extension().is_none_or(|e| e != "pcap") {
            continue;
        }
        for (i, p) in packets(&f).iter().enumerate() {
            let path = graph::walk(table::Link::Ethernet, p).unwrap();
            let Some(id) = t.identify(&path.seen) else { continue };
            let mut d = table::Decoded::default();
            let bytes = path.payload(p);
            t.decode(id, bytes, &mut d).unwrap();
            let integ = t.verify(&d, bytes, &path.outer(p));
            assert_eq!(integ.checked[0], table::Checked::Good, "{f:?} {i}");
            let fields = t.fields(id, d.opcode, bytes).unwrap();
            let env = envelope::Envelope::take(&path, p).unwrap();
            let mut frame = env.emit(bytes.len()).unwrap();
            let start = path.start;
            let (head, body) = frame.split_at_mut(start);
            let _ = head;
            let mut whole = vec![0u8; 2000];
            let l = t.encode_fields(id, d.opcode, &fields, d.payload(bytes), &path.outer(p), &mut whole).unwrap();
            body[..l].copy_from_slice(&whole[..l]);
            assert_eq!(&frame, p);
            let l2 = t.encode(id, &d.command, d.payload(bytes), &path.outer(p), &mut whole).unwrap();
            if &whole[..l2] != bytes {
                println!("{f:?} {i} command encode differs {:?}", d.command);
            }
            n += 1;
        }
    }
    println!("{n}");
}
