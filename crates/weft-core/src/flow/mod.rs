//! Reliability whose state follows the traffic (section 7 of `docs/protocol.md`).
//!
//! At the initiator a [`tracker`] exists for each target with something in flight, and a [`retransmit`] entry for each
//! command under way; a [`lane`] of the tracker has those of one pair of endpoints, a [`burst`] counts those that are posted
//! together. At the target an [`rx_flow`] exists for each initiator with requests under way, with a [`replay`] cache, and a
//! [`tombstone`] of 16 bytes for those that were heard of lately.

pub(crate) mod burst;
pub(crate) mod lane;
pub(crate) mod replay;
pub(crate) mod retransmit;
pub(crate) mod rx_flow;
pub(crate) mod tombstone;
pub(crate) mod tracker;

/// Whether psn or message number `a` comes before `b` (P-1.3).
#[inline]
pub(crate) fn before(a: u32, b: u32) -> bool {
    (b.wrapping_sub(a).wrapping_sub(1)) < (1 << 31) - 1
}

#[cfg(test)]
mod tests {
    use super::before;

    #[test]
    fn order_wraps() {
        assert!(before(0, 1) && before(u32::MAX, 0) && before(0, (1 << 31) - 1));
        assert!(!before(0, 0) && !before(1, 0) && !before(0, 1 << 31));
    }
}
