//! Memory of a simulated node. It checks every access: that it stays in what was granted, that buffers are used only
//! while an operation of theirs is under way, and that bytes which one write may fill are filled once.
#![expect(clippy::indexing_slicing, reason = "ranges are checked against the buffer before they are used")]

use std::cell::RefCell;
use std::sync::OnceLock;

use weft_core::atomic::{AtomicCall, AtomicOperation, Datatype, apply};
use weft_core::memory::{Access, Fault, Granted, LocalKey, Memory};
use weft_wire::checksum::{CRC32C, Crc};

/// Bytes before and behind every buffer and region that nobody may touch.
const RED_ZONE_BYTES: usize = 24;
const RED: u8 = 0xa5;
/// Bit of [`Granted::slot`] that tells regions from local buffers.
const REGION: u32 = 1 << 31;

/// What the engine may do with a local buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Bytes come from it.
    Source,
    /// Bytes go to it.
    Target,
}

#[derive(Debug)]
struct Buffer {
    bytes: Vec<u8>,
    purpose: Use,
    /// An operation has it.
    open: bool,
    /// The longest piece that a translation gives.
    piece: u64,
}

/// How a region may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Each byte once.
    WrittenOnce,
    /// By atomics only.
    Cells,
    /// Not at all.
    Constant,
}

#[derive(Debug)]
struct Region {
    key: u64,
    address: u64,
    access: Access,
    content: Content,
    bytes: Vec<u8>,
    /// When each byte was written, 0 for never.
    written: Vec<u64>,
    closed: bool,
}

/// What a peer did to a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Bytes were written.
    Write {
        /// Which region.
        region: usize,
        /// Where.
        offset: u64,
        /// What.
        bytes: Vec<u8>,
    },
    /// Cells were updated.
    Atomic {
        /// Which region.
        region: usize,
        /// Where.
        offset: u64,
        /// With what.
        call: AtomicCall,
        /// The operands.
        operands: Vec<u8>,
        /// The values to compare with.
        compares: Vec<u8>,
        /// The values from before.
        before: Vec<u8>,
    },
}

/// The memory of one start of a node.
#[derive(Debug, Default)]
pub struct SimMemory {
    generation: u32,
    now: u64,
    buffers: Vec<Buffer>,
    regions: Vec<Region>,
    changes: Vec<Change>,
    released: Vec<LocalKey>,
    wrongs: RefCell<Vec<String>>,
}

impl SimMemory {
    /// Empty memory. Translations of another generation are noticed.
    #[must_use]
    pub fn new(generation: u32) -> SimMemory {
        SimMemory { generation, ..SimMemory::default() }
    }

    /// Tells the time, for the record of writes.
    pub fn set_now(&mut self, now: u64) {
        self.now = now;
    }

    /// Makes a buffer for one operation; its number is never used again.
    pub fn attach(&mut self, content: &[u8], purpose: Use, piece: u64) -> LocalKey {
        let mut bytes = vec![RED; RED_ZONE_BYTES];
        bytes.extend_from_slice(content);
        bytes.resize(bytes.len() + RED_ZONE_BYTES, RED);
        self.buffers.push(Buffer { bytes, purpose, open: true, piece });
        LocalKey(self.buffers.len() as u32 - 1)
    }

    /// Makes a region that peers can reach.
    pub fn register(&mut self, key: u64, address: u64, access: Access, content: Content, initial: &[u8]) -> usize {
        let mut bytes = vec![RED; RED_ZONE_BYTES];
        bytes.extend_from_slice(initial);
        bytes.resize(bytes.len() + RED_ZONE_BYTES, RED);
        let written = if content == Content::WrittenOnce { vec![0; initial.len()] } else { Vec::new() };
        self.regions.push(Region { key, address, access, content, bytes, written, closed: false });
        self.regions.len() - 1
    }

    /// Takes a region away from peers: its key may be that of another from now on.
    pub fn close(&mut self, region: usize) {
        if let Some(region) = self.regions.get_mut(region) {
            region.closed = true;
        }
    }

    /// The operation of a buffer has ended: what is in it, and whether its surroundings are whole.
    pub fn detach(&mut self, key: LocalKey) -> Result<Vec<u8>, String> {
        let Some(buffer) = self.buffers.get_mut(key.0 as usize) else {
            return Err(format!("buffer {} was given back but never existed", key.0));
        };
        if !std::mem::replace(&mut buffer.open, false) {
            return Err(format!("buffer {} was given back twice", key.0));
        }
        whole(&buffer.bytes).map_err(|wrong| format!("buffer {}: {wrong}", key.0))?;
        let bytes = std::mem::take(&mut buffer.bytes);
        Ok(bytes[RED_ZONE_BYTES..bytes.len() - RED_ZONE_BYTES].to_vec())
    }

    /// Bytes of a buffer that stays in use.
    #[must_use]
    pub fn peek(&self, key: LocalKey, offset: u64, length: u64) -> Option<&[u8]> {
        let buffer = self.buffers.get(key.0 as usize).filter(|buffer| buffer.open)?;
        let start = RED_ZONE_BYTES.checked_add(offset as usize)?;
        let end = start.checked_add(length as usize)?;
        (end + RED_ZONE_BYTES <= buffer.bytes.len()).then(|| &buffer.bytes[start..end])
    }

    /// Bytes of a region, and when each was written.
    #[must_use]
    pub fn region(&self, region: usize) -> (&[u8], &[u64]) {
        self.regions.get(region).map_or((&[], &[]), |region| {
            (&region.bytes[RED_ZONE_BYTES..region.bytes.len() - RED_ZONE_BYTES], region.written.as_slice())
        })
    }

    /// What peers did since the last call.
    pub fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    /// Buffers that came back without a completion since the last call.
    pub fn take_released(&mut self) -> Vec<LocalKey> {
        std::mem::take(&mut self.released)
    }

    /// The first access that was wrong.
    pub fn take_wrong(&self) -> Option<String> {
        let mut wrongs = self.wrongs.borrow_mut();
        (!wrongs.is_empty()).then(|| wrongs.remove(0))
    }

    /// Whether the surroundings of everything are whole, and how many buffers are still in use.
    pub fn check_all(&self) -> Result<usize, String> {
        let mut open = 0;
        for (number, buffer) in self.buffers.iter().enumerate().filter(|(_, buffer)| buffer.open) {
            whole(&buffer.bytes).map_err(|wrong| format!("buffer {number}: {wrong}"))?;
            open += 1;
        }
        for (number, region) in self.regions.iter().enumerate() {
            whole(&region.bytes).map_err(|wrong| format!("region {number}: {wrong}"))?;
        }
        Ok(open)
    }

    fn wrong(&self, text: String) -> Fault {
        self.wrongs.borrow_mut().push(text);
        Fault::Failed
    }

    /// The bytes of a piece, after all checks.
    fn find(&self, piece: Granted, write: bool) -> Result<(&Vec<u8>, usize, usize), Fault> {
        if piece.generation != self.generation {
            return Err(self.wrong(format!("a piece of another start of the node is used: {piece:?}")));
        }
        let bytes = if piece.slot & REGION != 0 {
            let region = self.regions.get((piece.slot & !REGION) as usize);
            let region = region.ok_or_else(|| self.wrong(format!("no such region: {piece:?}")))?;
            if region.closed {
                return Err(self.wrong(format!("a region is used after it was closed: {piece:?}")));
            }
            if write && region.content != Content::WrittenOnce {
                return Err(self.wrong(format!("a region that must not be is written: {piece:?}")));
            }
            &region.bytes
        } else {
            let buffer = self.buffers.get(piece.slot as usize);
            let buffer = buffer.ok_or_else(|| self.wrong(format!("no such buffer: {piece:?}")))?;
            if !buffer.open {
                return Err(self.wrong(format!("a buffer is used after it was given back: {piece:?}, write {write}")));
            }
            if write && buffer.purpose == Use::Source {
                return Err(self.wrong(format!("a buffer to send from is written: {piece:?}")));
            }
            &buffer.bytes
        };
        let room = bytes.len() - 2 * RED_ZONE_BYTES;
        let end = piece.offset.checked_add(piece.length).filter(|end| *end <= room as u64);
        if end.is_none() {
            return Err(self.wrong(format!("a piece leaves its {room} bytes: {piece:?}")));
        }
        let start = RED_ZONE_BYTES + piece.offset as usize;
        Ok((bytes, start, start + piece.length as usize))
    }
}

impl Memory for SimMemory {
    fn local_length(&self, key: LocalKey) -> Option<u64> {
        let buffer = self.buffers.get(key.0 as usize).filter(|buffer| buffer.open)?;
        Some((buffer.bytes.len() - 2 * RED_ZONE_BYTES) as u64)
    }

    fn local(&self, key: LocalKey, offset: u64, length: u64) -> Result<Granted, Fault> {
        let Some(buffer) = self.buffers.get(key.0 as usize) else { return Err(Fault::UnknownKey) };
        if !buffer.open {
            return Err(self.wrong(format!("buffer {} is asked for after it was given back", key.0)));
        }
        let room = (buffer.bytes.len() - 2 * RED_ZONE_BYTES) as u64;
        if offset.checked_add(length).is_none_or(|end| end > room) {
            return Err(Fault::OutOfBounds);
        }
        let length = length.min(buffer.piece - offset % buffer.piece);
        Ok(Granted { slot: key.0, generation: self.generation, offset, length })
    }

    fn remote(&self, key: u64, address: u64, length: u64, access: Access) -> Result<Granted, Fault> {
        let found =
            self.regions.iter().position(|region| region.key == key && !region.closed).ok_or(Fault::UnknownKey)?;
        let region = &self.regions[found];
        let room = (region.bytes.len() - 2 * RED_ZONE_BYTES) as u64;
        let offset = address.checked_sub(region.address).ok_or(Fault::OutOfBounds)?;
        if offset.checked_add(length).is_none_or(|end| end > room) {
            return Err(Fault::OutOfBounds);
        }
        if !region.access.contains(access) {
            return Err(Fault::Forbidden);
        }
        Ok(Granted { slot: found as u32 | REGION, generation: self.generation, offset, length })
    }

    fn read(&self, from: Granted, into: &mut [u8]) -> Result<(), Fault> {
        let (bytes, start, end) = self.find(from, false)?;
        if into.len() != end - start {
            return Err(self.wrong(format!("{} bytes are read from {from:?}", into.len())));
        }
        into.copy_from_slice(&bytes[start..end]);
        Ok(())
    }

    fn write(&mut self, to: Granted, bytes: &[u8]) -> Result<(), Fault> {
        let (_, start, end) = self.find(to, true)?;
        if bytes.len() != end - start {
            return Err(self.wrong(format!("{} bytes are written to {to:?}", bytes.len())));
        }
        if to.slot & REGION == 0 {
            self.buffers[to.slot as usize].bytes[start..end].copy_from_slice(bytes);
            return Ok(());
        }
        if bytes.is_empty() {
            return Ok(());
        }
        let number = (to.slot & !REGION) as usize;
        let region = &mut self.regions[number];
        let now = self.now.max(1);
        let range = to.offset as usize..(to.offset + to.length) as usize;
        let again = region.written[range.clone()].iter().find(|at| **at != 0).copied();
        region.written[range].fill(now);
        region.bytes[start..end].copy_from_slice(bytes);
        if let Some(at) = again {
            let text = format!("executed twice: bytes {}+{} of region {number}, first at {at}", to.offset, to.length);
            self.wrongs.borrow_mut().push(text);
        }
        self.changes.push(Change::Write { region: number, offset: to.offset, bytes: bytes.to_vec() });
        Ok(())
    }

    fn crc32c(&self, crc: u32, of: Granted) -> Result<u32, Fault> {
        let (bytes, start, end) = self.find(of, false)?;
        Ok(checksum(crc, &bytes[start..end]))
    }

    fn crc32c_bytes(&self, crc: u32, bytes: &[u8]) -> u32 {
        checksum(crc, bytes)
    }

    fn atomic(
        &mut self,
        to: Granted,
        call: AtomicCall,
        operands: &[u8],
        compares: &[u8],
        results: &mut [u8],
    ) -> Result<(), Fault> {
        let (operation, datatype) = (AtomicOperation::from_code(call.operation), Datatype::from_code(call.datatype));
        let (Some(operation), Some(datatype)) = (operation, datatype) else { return Err(Fault::NotSupported) };
        let (bytes, start, end) = self.find(to, false)?;
        let each = datatype.bytes();
        if !to.offset.is_multiple_of(datatype.alignment() as u64) {
            return Err(Fault::Misaligned);
        }
        let before = bytes[start..end].to_vec();
        let mut after = before.clone();
        let mut compared = compares.chunks(each);
        for ((old, new), operand) in before.chunks(each).zip(after.chunks_mut(each)).zip(operands.chunks(each)) {
            apply(operation, datatype, old, operand, compared.next().unwrap_or_default(), new)?;
        }
        if to.slot & REGION == 0 || self.regions[(to.slot & !REGION) as usize].content != Content::Cells {
            return Err(self.wrong(format!("an atomic on memory that is not for them: {to:?}")));
        }
        let number = (to.slot & !REGION) as usize;
        self.regions[number].bytes[start..end].copy_from_slice(&after);
        if !results.is_empty() {
            if results.len() != before.len() {
                return Err(self.wrong(format!("{} bytes are wanted of an atomic on {to:?}", results.len())));
            }
            results.copy_from_slice(&before);
        }
        let (operands, compares) = (operands.to_vec(), compares.to_vec());
        self.changes.push(Change::Atomic { region: number, offset: to.offset, call, operands, compares, before });
        Ok(())
    }

    fn flush(&mut self, range: Granted, _durable: bool) -> Result<(), Fault> {
        self.find(range, false).map(|_| ())
    }

    fn invalidate(&mut self, key: u64) -> Result<(), Fault> {
        let region =
            self.regions.iter_mut().find(|region| region.key == key && !region.closed).ok_or(Fault::UnknownKey)?;
        if !region.access.contains(Access::REMOTE_INVALIDATE) {
            return Err(Fault::Forbidden);
        }
        region.key = 0;
        Ok(())
    }

    fn release(&mut self, key: LocalKey) {
        self.released.push(key);
    }
}

fn whole(bytes: &[u8]) -> Result<(), String> {
    let (front, rest) = bytes.split_at(RED_ZONE_BYTES);
    let back = &rest[rest.len() - RED_ZONE_BYTES..];
    match front.iter().chain(back).position(|byte| *byte != RED) {
        None => Ok(()),
        Some(at) if at < RED_ZONE_BYTES => Err(format!("written {} bytes before its beginning", RED_ZONE_BYTES - at)),
        Some(at) => Err(format!("written {} bytes behind its end", at - RED_ZONE_BYTES)),
    }
}

fn checksum(crc: u32, bytes: &[u8]) -> u32 {
    static TABLES: OnceLock<Option<Crc>> = OnceLock::new();
    let tables = TABLES.get_or_init(|| Crc::new(CRC32C));
    tables.as_ref().map_or(0, |tables| tables.finish(tables.update(!crc, bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_continues() {
        assert_eq!(checksum(0, b"123456789"), 0xe306_9283);
        assert_eq!(checksum(checksum(0, b"1234"), b"56789"), 0xe306_9283);
    }

    #[test]
    fn second_write_is_seen() {
        let mut memory = SimMemory::new(1);
        memory.register(7, 0x1000, Access::REMOTE, Content::WrittenOnce, &[0; 64]);
        let piece = memory.remote(7, 0x1008, 8, Access::REMOTE_WRITE).unwrap();
        memory.write(piece, &[1; 8]).unwrap();
        assert_eq!(memory.take_wrong(), None);
        memory.write(piece, &[1; 8]).unwrap();
        assert!(memory.take_wrong().unwrap().contains("twice"));
        assert_eq!(memory.remote(7, 0x1039, 8, Access::REMOTE_WRITE), Err(Fault::OutOfBounds));
    }

    #[test]
    fn buffers_are_used_while_open() {
        let mut memory = SimMemory::new(1);
        let key = memory.attach(&[0; 10], Use::Target, 4);
        let piece = memory.local(key, 2, 8).unwrap();
        assert_eq!(piece.length, 2);
        memory.write(piece, &[9, 9]).unwrap();
        assert_eq!(memory.detach(key), Ok(vec![0, 0, 9, 9, 0, 0, 0, 0, 0, 0]));
        assert!(memory.write(piece, &[9, 9]).is_err());
        assert!(memory.take_wrong().unwrap().contains("given back"));
        assert!(memory.detach(key).is_err());
    }
}
