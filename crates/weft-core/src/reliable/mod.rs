//! Reliability whose state follows the traffic (section 7 of `docs/protocol.md`).
//!
//! At the initiator a [`tracker`] exists for each target with something in flight, and an [`entry`] for each command under
//! way; a [`lane`] of the tracker has those of one pair of endpoints. At the target a [`life`] exists for each peer with requests under way, and a [`tombstone`] of 16 bytes for those
//! that were heard of lately.

pub(crate) mod congestion;
pub(crate) mod entry;
pub(crate) mod lane;
pub(crate) mod life;
pub(crate) mod path;
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
