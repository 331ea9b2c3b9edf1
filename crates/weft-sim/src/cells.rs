//! The cells that simulated atomics work on: unsigned integers of 64 bits, and what the operations do to them. Written a
//! second time here, so that the oracle does not trust the code that it judges.

use weft_core::atomic::AtomicCall;

/// Bytes of a cell.
pub const BYTES: u64 = 8;
/// Datatype of a cell (P-4.7).
pub const DATATYPE: u8 = 0x14;
/// Operation codes (P-4.7).
pub const SUM: u8 = 0x03;
/// See [`SUM`].
pub const XOR: u8 = 0x0b;
/// See [`SUM`].
pub const WRITE: u8 = 0x0d;
/// See [`SUM`].
pub const SWAP_IF_EQUAL: u8 = 0x10;
/// See [`SUM`].
pub const SWAP_IF_LESS: u8 = 0x13;

/// Updates cells in place. `None`: the operation is not one of those above, or lengths do not fit.
pub fn update(cells: &mut [u8], call: AtomicCall, operands: &[u8], compares: &[u8]) -> Option<()> {
    let compared = matches!(call.operation, SWAP_IF_EQUAL | SWAP_IF_LESS);
    let bytes = usize::from(call.count) * BYTES as usize;
    if call.datatype != DATATYPE || cells.len() != bytes || operands.len() != bytes {
        return None;
    }
    if compared && compares.len() != bytes {
        return None;
    }
    let mut compares = compares.as_chunks::<8>().0.iter();
    for (cell, operand) in cells.as_chunks_mut::<8>().0.iter_mut().zip(operands.as_chunks::<8>().0) {
        let (old, operand) = (u64::from_le_bytes(*cell), u64::from_le_bytes(*operand));
        let compare = if compared { u64::from_le_bytes(*compares.next()?) } else { 0 };
        let new = match call.operation {
            SUM => old.wrapping_add(operand),
            XOR => old ^ operand,
            WRITE => operand,
            SWAP_IF_EQUAL if compare == old => operand,
            SWAP_IF_LESS if compare < old => operand,
            SWAP_IF_EQUAL | SWAP_IF_LESS => old,
            _ => return None,
        };
        *cell = new.to_le_bytes();
    }
    Some(())
}
