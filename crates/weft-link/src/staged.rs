//! A decorator that sends from the memory of devices over a link that knows only the host's.
//!
//! Pieces that lie on a device are copied into pinned buffers, one buffer full while the one before goes out. Around any
//! link; what is all on the host goes through without a look.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use weft_mem::device::{self, DeviceError, Direction, Event, Operations, Transfer};
use weft_mem::{DeviceSegment, Pinned, Sendable};

use weft_core::session::Path;

use crate::limits::STAGED_BYTES;
use crate::link::{Counters, Incoming, Link, Notice, Outgoing, SendError};
use crate::segment::Segment;

/// A link that can send from device memory ([`Staged::send_from_anywhere`]).
#[derive(Debug)]
pub struct Staged<L> {
    inner: L,
    halves: [Option<Pinned>; 2],
    counters: StagedCounters,
}

/// As [`Outgoing`], but its bytes may be anywhere.
#[derive(Clone, Copy, Debug)]
pub struct OutgoingAnywhere<'a> {
    /// Where to.
    pub path: Path,
    /// The bytes, one piece after the other.
    pub pieces: &'a [Sendable<'a>],
    /// As [`Outgoing::segment_bytes`].
    pub segment_bytes: usize,
    /// As [`Outgoing::class`].
    pub class: u8,
    /// As [`Outgoing::may_fragment`].
    pub may_fragment: bool,
}

/// What was copied to be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StagedCounters {
    /// Pieces of device memory.
    pub pieces: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Copies that they were brought to the host in.
    pub copies: u64,
    /// Sends that were given up since the device failed: lost, as if by the network.
    pub failures: u64,
}

impl<L: Link> Staged<L> {
    /// Wraps a link. Buffers are made when something is first sent from a device.
    pub fn new(inner: L) -> Staged<L> {
        Staged { inner, halves: [None, None], counters: StagedCounters::default() }
    }

    /// The link.
    pub fn inner(&self) -> &L {
        &self.inner
    }

    /// What was copied so far.
    pub fn staged(&self) -> StagedCounters {
        self.counters
    }

    /// Sends as [`Link::send`] does, from anywhere. What a device fails to give is taken, lost and counted.
    pub fn send_from_anywhere(&mut self, batch: &[OutgoingAnywhere<'_>]) -> Result<usize, SendError> {
        let mut left = batch;
        let (mut next, mut half) = (self.start(left, 0), 0);
        while !left.is_empty() {
            let group = next;
            let behind = left.get(group.count..).unwrap_or_default();
            half = 1 - half;
            next = if behind.is_empty() { Flight::default() } else { self.start(behind, half) };
            let taken = match self.send_group(left, group) {
                Ok(taken) => taken,
                // The next call meets it again, as the first of its batch.
                Err(_) if left.len() < batch.len() => break,
                Err(error) => return Err(error),
            };
            let is_all = behind.len() + taken == left.len();
            left = left.get(taken..).unwrap_or_default();
            if !is_all {
                break;
            }
        }
        Ok(batch.len() - left.len())
    }

    /// Starts to copy as much from the front of a batch as a buffer takes, at least one.
    fn start(&mut self, batch: &[OutgoingAnywhere<'_>], half: usize) -> Flight {
        let mut flight = Flight::default();
        for outgoing in batch {
            let bytes: usize = device_pieces(outgoing).map(DeviceSegment::len).sum();
            if flight.count > 0 && flight.bytes + bytes > STAGED_BYTES {
                break;
            }
            flight.count += 1;
            flight.bytes += bytes;
        }
        if flight.bytes > 0
            && let Err(error) = self.start_copies(batch, half, &mut flight)
        {
            flight.failed = Some(error);
        }
        flight
    }

    fn start_copies(
        &mut self,
        batch: &[OutgoingAnywhere<'_>],
        half: usize,
        flight: &mut Flight,
    ) -> Result<(), DeviceError> {
        let buffer = self.halves.get_mut(half).ok_or(DeviceError::BadAddress)?;
        if buffer.as_ref().is_none_or(|pinned| pinned.length() < flight.bytes) {
            *buffer = Some(Pinned::new(flight.bytes.max(STAGED_BYTES))?);
        }
        let buffer = buffer.as_mut().ok_or(DeviceError::OutOfMemory)?;
        flight.base = buffer.at(0);
        let mut pieces = batch.iter().take(flight.count).flat_map(device_pieces).peekable();
        let mut at = 0;
        let mut transfers = Vec::new();
        while let Some(piece) = pieces.next() {
            buffer.register(piece.place().kind)?;
            transfers.push(Transfer { to: buffer.at(at) as u64, from: piece.address(), length: piece.len() });
            self.counters.pieces += 1;
            self.counters.bytes += piece.len() as u64;
            at += piece.len();
            if pieces.peek().is_some_and(|next| next.place() == piece.place()) {
                continue;
            }
            let place = piece.place();
            let operations = device::operations(place.kind).map_err(|absent| DeviceError::Failed(absent.0))?;
            self.counters.copies += 1;
            // SAFETY: the pieces can be read while the batch is borrowed, and the flight is waited for, if only by being
            // dropped, before that; their lengths add up to what the buffer has, which nobody else uses.
            let event = unsafe { operations.start(place.device, Direction::FromDevice, &transfers)? };
            flight.events.push((operations, event));
            transfers.clear();
        }
        Ok(())
    }

    /// Sends what a flight has brought; gives how many were taken.
    fn send_group(&mut self, batch: &[OutgoingAnywhere<'_>], mut flight: Flight) -> Result<usize, SendError> {
        let group = batch.get(..flight.count).unwrap_or(batch);
        if flight.land().is_err() {
            self.counters.failures += group.len() as u64;
            return Ok(group.len());
        }
        let mut at = 0;
        let pieces: Vec<Vec<Segment<'_>>> = group
            .iter()
            .map(|outgoing| {
                let segments = outgoing.pieces.iter().map(|piece| match piece {
                    Sendable::Host(segment) => *segment,
                    Sendable::Device(segment) => {
                        let start = flight.base.wrapping_add(at);
                        at += segment.len();
                        // SAFETY: the copy is there, as many bytes behind those of the pieces before; the buffer lives
                        // and is not written before the next call.
                        unsafe { Segment::from_raw(start, segment.len()) }
                    }
                });
                segments.collect()
            })
            .collect();
        let outgoing: Vec<Outgoing<'_>> = group
            .iter()
            .zip(&pieces)
            .map(|(outgoing, pieces)| Outgoing {
                path: outgoing.path,
                pieces,
                segment_bytes: outgoing.segment_bytes,
                class: outgoing.class,
                may_fragment: outgoing.may_fragment,
            })
            .collect();
        self.inner.send(&outgoing)
    }
}

fn device_pieces<'a>(outgoing: &'a OutgoingAnywhere<'_>) -> impl Iterator<Item = &'a DeviceSegment<'a>> {
    outgoing.pieces.iter().filter_map(|piece| match piece {
        Sendable::Device(segment) if !segment.is_empty() => Some(segment),
        _ => None,
    })
}

/// Copies that are under way for the first of a batch.
struct Flight {
    /// Sends that it is for.
    count: usize,
    bytes: usize,
    base: *mut u8,
    events: Vec<(&'static dyn Operations, Event)>,
    failed: Option<DeviceError>,
}

impl Default for Flight {
    fn default() -> Flight {
        Flight { count: 0, bytes: 0, base: std::ptr::dangling_mut(), events: Vec::new(), failed: None }
    }
}

impl Flight {
    /// Waits for all copies.
    fn land(&mut self) -> Result<(), DeviceError> {
        for (operations, event) in self.events.drain(..) {
            if let Err(error) = operations.wait(event) {
                self.failed.get_or_insert(error);
            }
        }
        self.failed.take().map_or(Ok(()), Err)
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        // No copy may go on when its buffer or its source is somebody else's.
        let _ = self.land();
    }
}

impl fmt::Debug for Flight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Flight({} bytes for {} sends)", self.bytes, self.count)
    }
}

impl<L: Link> Link for Staged<L> {
    fn local(&self) -> SocketAddr {
        self.inner.local()
    }

    fn mtu(&mut self, path: Path) -> u32 {
        self.inner.mtu(path)
    }

    fn send(&mut self, batch: &[Outgoing<'_>]) -> Result<usize, SendError> {
        self.inner.send(batch)
    }

    fn receive(&mut self, sink: &mut dyn FnMut(Incoming<'_>)) -> io::Result<usize> {
        self.inner.receive(sink)
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

#[cfg(test)]
mod tests {
    use weft_mem::MemoryRegion;
    use weft_mem::device::{Kind, Place};

    use super::*;
    use crate::limits::INBOX_MAX;
    use crate::loopback::{LoopbackLink, pair};

    fn region(device: u32, length: usize) -> (MemoryRegion, Vec<u8>) {
        let bytes: Vec<u8> = (0..length).map(|i| (i * 31 + i / 256) as u8).collect();
        let region = MemoryRegion::alloc_device(Place::new(Kind::Emulated, device), length).unwrap();
        region.write(0, &bytes).unwrap();
        (region, bytes)
    }

    fn piece(region: &MemoryRegion, offset: usize, length: usize) -> Sendable<'_> {
        assert!(offset + length <= region.length());
        let address = region.as_ptr() as u64 + offset as u64;
        // SAFETY: the region is borrowed as long as the segment.
        Sendable::Device(unsafe { DeviceSegment::from_raw(region.place(), address, length) })
    }

    fn received(link: &mut LoopbackLink) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        while link.receive(&mut |incoming| all.push(incoming.bytes.to_vec())).unwrap() > 0 {}
        all
    }

    #[test]
    fn pieces_of_all_places_arrive() {
        let (a, mut b) = pair(65_507);
        let mut a = Staged::new(a);
        let ((first, bytes), (second, more)) = (region(0, 100_000), region(1, 50_000));
        let to = b.local();
        let pieces = [
            Sendable::Host(Segment::from_slice(b"head")),
            piece(&first, 100, 20_000),
            piece(&first, 50_000, 1),
            piece(&second, 7, 30_000),
            piece(&second, 0, 0),
            Sendable::Host(Segment::from_slice(b"tail")),
        ];
        let outgoing =
            OutgoingAnywhere { path: to.into(), pieces: &pieces, segment_bytes: 0, class: 0, may_fragment: false };
        assert_eq!(a.send_from_anywhere(&[outgoing; 30]).unwrap(), 30);
        let whole = [b"head", &bytes[100..20_100], &bytes[50_000..50_001], &more[7..30_007], &b"tail"[..]].concat();
        assert_eq!(received(&mut b), vec![whole; 30]);
        let counters = a.staged();
        assert_eq!((counters.pieces, counters.bytes), (90, 30 * 50_001));
        assert!(counters.copies >= 12 && counters.copies < 90, "{counters:?}");
        assert_eq!(counters.failures, 0);
    }

    #[test]
    fn more_than_a_buffer_in_one() {
        let (a, mut b) = pair(65_507);
        let mut a = Staged::new(a);
        let (memory, bytes) = region(0, 3 * STAGED_BYTES);
        let pieces = [piece(&memory, 0, memory.length())];
        let to = b.local();
        let outgoing =
            OutgoingAnywhere { path: to.into(), pieces: &pieces, segment_bytes: 60_000, class: 0, may_fragment: false };
        assert_eq!(a.send_from_anywhere(&[outgoing]).unwrap(), 1);
        assert_eq!(received(&mut b).concat(), bytes);
    }

    #[test]
    fn what_the_link_refuses_is_told_as_it_tells_it() {
        let (a, mut b) = pair(1500);
        let mut a = Staged::new(a);
        let (memory, bytes) = region(0, 4000);
        let (short, long) = ([piece(&memory, 0, 1000)], [piece(&memory, 0, 4000)]);
        let to = b.local();
        let fits =
            OutgoingAnywhere { path: to.into(), pieces: &short, segment_bytes: 0, class: 0, may_fragment: false };
        let too_long = OutgoingAnywhere { pieces: &long, ..fits };
        assert_eq!(a.send_from_anywhere(&[]).unwrap(), 0);
        assert_eq!(a.send_from_anywhere(&[fits, too_long, fits]).unwrap(), 1);
        assert!(matches!(a.send_from_anywhere(&[too_long, fits]), Err(SendError::TooBig { .. })));
        let many = vec![fits; INBOX_MAX];
        assert_eq!(a.send_from_anywhere(&many).unwrap(), INBOX_MAX - 1);
        assert!(matches!(a.send_from_anywhere(&many), Err(SendError::WouldBlock)));
        assert_eq!(received(&mut b), vec![bytes[..1000].to_vec(); INBOX_MAX]);
    }

    #[test]
    fn what_a_device_fails_to_give_is_lost_and_counted() {
        let (a, mut b) = pair(1500);
        let mut a = Staged::new(a);
        let (memory, _) = region(0, 100);
        // SAFETY: none of it is there, which the emulated device sees.
        let gone = unsafe { DeviceSegment::from_raw(memory.place(), memory.as_ptr() as u64 + 50, 100) };
        let pieces = [Sendable::Device(gone)];
        let to = b.local();
        let outgoing =
            OutgoingAnywhere { path: to.into(), pieces: &pieces, segment_bytes: 0, class: 0, may_fragment: false };
        assert_eq!(a.send_from_anywhere(&[outgoing]).unwrap(), 1);
        assert_eq!(a.staged().failures, 1);
        assert!(received(&mut b).is_empty());
    }

    #[test]
    fn is_a_link_as_any_other() {
        let (a, mut b) = pair(1500);
        let mut a = Staged::new(a);
        assert_eq!((a.local(), a.mtu(b.local().into())), (a.inner().local(), 1500));
        let pieces = [Segment::from_slice(b"plain")];
        let to = b.local();
        assert_eq!(
            a.send(&[Outgoing { path: to.into(), pieces: &pieces, segment_bytes: 0, class: 0, may_fragment: false }])
                .unwrap(),
            1
        );
        assert_eq!(received(&mut b), [b"plain"]);
        assert_eq!(a.staged(), StagedCounters::default());
    }
}
