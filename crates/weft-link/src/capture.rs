//! A decorator that writes every datagram that passes to a pcap file, for `weft decode`, tshark and the like.
//!
//! A link sees no Ethernet or IP headers, so each datagram gets made-up ones that say what is known: addresses, ports
//! and the congestion mark. Sent ones leave from [`Link::local`].

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::time::{SystemTime, UNIX_EPOCH};

use weft_wire::capture::LinkType;
use weft_wire::capture::write::{file_header, record_header};
use weft_wire::envelope::{Envelope, Outside};
use weft_wire::header::{HeaderError, Udp};

use weft_core::session::Path;

use crate::link::{Counters, Incoming, Link, Notice, Outgoing, SendError};

/// Congestion experienced (RFC 3168).
const ECN_CE: u8 = 0b11;

/// A link whose datagrams are written to `W`.
#[derive(Debug)]
pub struct Capture<L, W> {
    inner: L,
    file: File<W>,
    scratch: Vec<u8>,
}

/// The file; after its first error nothing more is written.
#[derive(Debug)]
struct File<W> {
    writer: W,
    error: Option<io::Error>,
    now: fn() -> u64,
}

impl<L: Link, W: Write + Send> Capture<L, W> {
    /// Begins a file with the link's datagrams.
    pub fn new(inner: L, writer: W) -> io::Result<Capture<L, W>> {
        Capture::with_clock(inner, writer, nanoseconds_since_1970)
    }

    /// The same with times from `now`, in nanoseconds since 1970.
    pub fn with_clock(inner: L, mut writer: W, now: fn() -> u64) -> io::Result<Capture<L, W>> {
        writer.write_all(&file_header(LinkType::Ethernet))?;
        Ok(Capture { inner, file: File { writer, error: None, now }, scratch: Vec::new() })
    }

    /// Ends the file; tells whether all of it could be written.
    pub fn finish(self) -> io::Result<(L, W)> {
        let mut file = self.file;
        match file.error {
            Some(error) => Err(error),
            None => file.writer.flush().map(|()| (self.inner, file.writer)),
        }
    }
}

impl<L: Link, W: Write + Send> Link for Capture<L, W> {
    fn local(&self) -> SocketAddr {
        self.inner.local()
    }

    fn mtu(&mut self, path: Path) -> u32 {
        self.inner.mtu(path)
    }

    fn send(&mut self, batch: &[Outgoing<'_>]) -> Result<usize, SendError> {
        let sent = self.inner.send(batch)?;
        let local = self.inner.local();
        for outgoing in batch.iter().take(sent) {
            self.scratch.clear();
            outgoing.gather(&mut self.scratch);
            let size = if outgoing.segment_bytes == 0 { self.scratch.len() } else { outgoing.segment_bytes };
            for datagram in self.scratch.chunks(size.max(1)) {
                self.file.write(local, outgoing.path.remote, datagram, false);
            }
        }
        Ok(sent)
    }

    fn receive(&mut self, sink: &mut dyn FnMut(Incoming<'_>)) -> io::Result<usize> {
        let local = self.inner.local();
        let file = &mut self.file;
        self.inner.receive(&mut |incoming| {
            let Incoming { path, bytes, segment_bytes, marked } = incoming;
            // Written before the sink, which may change the bytes.
            for datagram in (Incoming { path, bytes: &mut *bytes, segment_bytes, marked }).datagrams() {
                file.write(path.remote, local, datagram, marked);
            }
            sink(Incoming { path, bytes, segment_bytes, marked });
        })
    }

    fn poll_notice(&mut self) -> Option<Notice> {
        self.inner.poll_notice()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.inner.descriptor()
    }

    fn watch_room(&mut self, wanted: bool) -> bool {
        self.inner.watch_room(wanted)
    }

    fn counters(&self) -> Counters {
        self.inner.counters()
    }

    fn room_bytes(&self) -> u64 {
        self.inner.room_bytes()
    }
}

impl<W: Write> File<W> {
    fn write(&mut self, from: SocketAddr, to: SocketAddr, datagram: &[u8], marked: bool) {
        if self.error.is_some() {
            return;
        }
        // Only lengths that UDP cannot carry have no frame, and no link takes those.
        let Ok(frame) = frame(from, to, datagram, marked) else { return };
        let header = record_header((self.now)(), frame.len() as u32);
        self.error = self.writer.write_all(&header).and_then(|()| self.writer.write_all(&frame)).err();
    }
}

/// The datagram in made-up headers, with right lengths and checksums.
fn frame(from: SocketAddr, to: SocketAddr, datagram: &[u8], marked: bool) -> Result<Vec<u8>, HeaderError> {
    let mut envelope = match (from, to) {
        (SocketAddr::V4(_), SocketAddr::V4(_)) => Envelope::example_udp(from.port(), to.port()),
        // A mixed pair cannot meet on a wire; IPv6 can show both.
        _ => Envelope::example_ipv6_udp(from.port(), to.port()),
    };
    let mark = if marked { ECN_CE } else { 0 };
    for layer in &mut envelope.layers {
        match (layer, from.ip(), to.ip()) {
            (Outside::Ipv4(header, _), IpAddr::V4(from), IpAddr::V4(to)) => {
                (header.source, header.destination, header.ecn) = (from.octets(), to.octets(), mark);
            }
            (Outside::Ipv6(header), from, to) => {
                (header.source, header.destination) = (six(from), six(to));
                header.traffic_class = mark;
            }
            _ => {}
        }
    }
    envelope.fit(datagram.len())?;
    let mut frame = envelope.emit(datagram.len())?;
    let headers = envelope.length();
    if let Some(room) = frame.get_mut(headers..) {
        room.copy_from_slice(datagram);
    }
    if let (Some(addresses), Some(udp)) = (envelope.pseudo_header(), frame.get_mut(headers - Udp::LEN..)) {
        Udp::fill_checksum(&addresses, udp)?;
    }
    Ok(frame)
}

fn six(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

fn nanoseconds_since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use weft_wire::graph;
    use weft_wire::header::UdpView;

    use super::*;
    use crate::loopback::LoopbackNetwork;
    use crate::segment::Segment;

    /// The frames of a file: what lies behind each record's header.
    fn frames(file: &[u8]) -> Vec<&[u8]> {
        let mut frames = Vec::new();
        let mut rest = &file[24..];
        while let Some((header, behind)) = rest.split_at_checked(16) {
            let (frame, next) = behind.split_at(u32::from_le_bytes(*header[8..].first_chunk().unwrap()) as usize);
            frames.push(frame);
            rest = next;
        }
        frames
    }

    #[test]
    fn both_directions_are_written_datagram_by_datagram() {
        for ip in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
            let network = LoopbackNetwork::new(1500);
            let (a, b) = (SocketAddr::new(ip, 1001), SocketAddr::new(ip, 1002));
            let mut peer = network.link(b).unwrap();
            let mut link = Capture::with_clock(network.link(a).unwrap(), Vec::new(), || 5).unwrap();
            let pieces = [Segment::from_slice(b"abcdefg"), Segment::from_slice(b"hij")];
            let outgoing =
                Outgoing { path: (b).into(), pieces: &pieces, segment_bytes: 4, class: 0, may_fragment: false };
            assert_eq!(link.send(&[outgoing]).unwrap(), 1);
            assert_eq!(peer.send(&[Outgoing { path: (a).into(), segment_bytes: 0, ..outgoing }]).unwrap(), 1);
            assert_eq!(link.receive(&mut |incoming| incoming.bytes.fill(0)).unwrap(), 1);
            let (_, file) = link.finish().unwrap();
            let mut seen = Vec::new();
            for frame in frames(&file) {
                let envelope =
                    Envelope::take(&graph::walk(weft_wire::table::Link::Ethernet, frame).unwrap(), frame).unwrap();
                let udp = &frame[envelope.length() - Udp::LEN..];
                let ports = UdpView::new(udp).unwrap();
                seen.push((ports.source_port(), ports.destination_port(), &udp[Udp::LEN..]));
                let sum = Udp::compute_checksum(&envelope.pseudo_header().unwrap(), udp).unwrap();
                assert_eq!(ports.checksum(), sum);
            }
            let expected: [(u16, u16, &[u8]); 4] =
                [(1001, 1002, b"abcd"), (1001, 1002, b"efgh"), (1001, 1002, b"ij"), (1002, 1001, b"abcdefghij")];
            assert_eq!(seen, expected);
        }
    }

    #[test]
    fn a_file_that_cannot_be_written_does_not_stop_the_link() {
        let network = LoopbackNetwork::new(1500);
        let here = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 1);
        // Room for the file's header, and not for a record.
        let room: &'static mut [u8] = Box::leak(Box::new([0; 30]));
        let mut link = Capture::new(network.link(here).unwrap(), room).unwrap();
        let pieces = [Segment::from_slice(b"to myself")];
        let outgoing =
            Outgoing { path: (here).into(), pieces: &pieces, segment_bytes: 0, class: 0, may_fragment: false };
        assert_eq!(link.send(&[outgoing]).unwrap(), 1);
        assert_eq!(link.receive(&mut |incoming| assert_eq!(incoming.bytes, b"to myself")).unwrap(), 1);
        assert!(link.finish().is_err());
    }
}
