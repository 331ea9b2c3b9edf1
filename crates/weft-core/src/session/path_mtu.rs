//! How long datagrams to one target may be (P-2.2, P-8.9).
//!
//! The link knows what leaves this host. What the way behind it carries nobody is believed about: one that was silent twice
//! is taken for one that loses what is long, unless a PROBE of full length was answered in between, and until one is.

use crate::limits::{
    MTU_DEFAULT_BYTES, MTU_ETHERNET_BYTES, MTU_MIN_BYTES, MTU_PROBE_MAX_US, MTU_PROBE_US, MTU_TIMEOUTS,
};
use crate::time::Time;

/// What is known about a way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathMtu {
    bytes: u32,
    /// What the link has said when the target was named: no PROBE tries more.
    most: u32,
    /// Probe timeouts since it was last seen to carry what it should.
    timeouts: u32,
    /// Of the next PROBE.
    next_bytes: u32,
    next_probe: Time,
    wait_us: u64,
    /// The PROBE that is unanswered.
    probe: Option<MtuProbe>,
}

#[derive(Clone, Copy, Debug)]
struct MtuProbe {
    handle: u16,
    timestamp: u32,
    bytes: u32,
}

impl PathMtu {
    /// A way that carries what the link has said.
    pub(crate) fn new(most: u32) -> PathMtu {
        let (next_probe, wait_us) = (Time(0), MTU_PROBE_US);
        PathMtu { bytes: most, most, timeouts: 0, next_bytes: most, next_probe, wait_us, probe: None }
    }

    /// The same way later, when the link may say something else.
    pub(crate) fn resume(self, most: u32) -> PathMtu {
        let (bytes, next_bytes) = (self.bytes.min(most), self.next_bytes.min(most));
        PathMtu { bytes, most, next_bytes, probe: None, ..self }
    }

    /// Packets are cut for this.
    pub(crate) fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Whether it carries, or seems to carry, less than was thought.
    pub(crate) fn is_narrow(&self) -> bool {
        self.bytes < self.most
    }

    /// Whether anything is known that would have to be found out again.
    pub(crate) fn is_notable(&self) -> bool {
        self.is_narrow() || self.timeouts > 0
    }

    /// The link says that no more than this leaves the host. True: that is less than was thought.
    pub(crate) fn limit(&mut self, now: Time, bytes: u32) -> bool {
        if self.probe.is_some_and(|probe| probe.bytes > bytes) && bytes > self.bytes {
            // It was a PROBE that did not leave: the next one asks for what does.
            (self.next_bytes, self.next_probe, self.probe) = (bytes, now, None);
        }
        let less = bytes < self.bytes;
        if less {
            self.narrow(bytes, now.plus_micros(self.wait_us));
        }
        less
    }

    /// An answer did not come. When that happens again before a PROBE of full length was answered, perhaps it is what is long
    /// that does not arrive. True: packets are cut shorter now.
    pub(crate) fn time_out(&mut self, now: Time) -> bool {
        self.timeouts = self.timeouts.saturating_add(1);
        if self.timeouts < MTU_TIMEOUTS {
            if !self.is_narrow() {
                (self.next_probe, self.wait_us) = (now, MTU_PROBE_US);
            }
            return false;
        }
        let bytes = if self.bytes > MTU_DEFAULT_BYTES { MTU_DEFAULT_BYTES } else { MTU_MIN_BYTES };
        let less = bytes < self.bytes;
        if less {
            // Mostly it was something else. That is found out as soon as anything is heard.
            self.wait_us = MTU_PROBE_US;
            self.narrow(bytes, now);
        }
        less
    }

    fn narrow(&mut self, bytes: u32, next_probe: Time) {
        (self.bytes, self.next_bytes, self.next_probe) = (bytes, self.most, next_probe);
    }

    /// Whether a PROBE should be sent now.
    pub(crate) fn wants_probe(&self, now: Time) -> bool {
        self.is_notable() && now >= self.next_probe
    }

    /// A PROBE is sent; gives the length of its datagram.
    pub(crate) fn send_probe(&mut self, now: Time, handle: u16, timestamp: u32) -> u32 {
        let bytes = self.next_bytes;
        self.probe = Some(MtuProbe { handle, timestamp, bytes });
        // Where a way carries less than its ends, it mostly carries what Ethernet does.
        let ethernet = bytes == self.most && (self.bytes + 1..self.most).contains(&MTU_ETHERNET_BYTES);
        self.next_bytes = if ethernet { MTU_ETHERNET_BYTES } else { self.most };
        self.next_probe = now.plus_micros(self.wait_us);
        self.wait_us = (self.wait_us * 2).min(MTU_PROBE_MAX_US);
        bytes
    }

    /// A PROBE was answered. `None`: it was none of these. Otherwise as much is carried, and whether that is news.
    pub(crate) fn answered(&mut self, handle: u16, timestamp: u32) -> Option<bool> {
        let probe = self.probe.filter(|probe| (probe.handle, probe.timestamp) == (handle, timestamp))?;
        let before = self.bytes;
        (self.probe, self.timeouts) = (None, 0);
        self.bytes = self.bytes.max(probe.bytes).min(self.most);
        Some(self.bytes > before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes of the PROBEs that a way wants, one after the other, none of them answered.
    fn sizes(path: &mut PathMtu, count: usize) -> Vec<u32> {
        let mut now = Time(1);
        let sizes = (0..count).map(|_| {
            while !path.wants_probe(now) {
                now = now.plus_micros(1000);
            }
            path.send_probe(now, 1, 2)
        });
        sizes.collect()
    }

    use alloc::vec::Vec;

    #[test]
    fn silence_makes_it_narrow_and_a_probe_wide_again() {
        let mut path = PathMtu::new(9000);
        assert!(!path.is_narrow() && !path.wants_probe(Time::NEVER));
        assert!(!path.time_out(Time(4)) && path.is_notable() && !path.is_narrow());
        assert!(path.time_out(Time(5)) && path.bytes() == 1232);
        assert!(path.time_out(Time(6)) && path.bytes() == 512);
        assert!(!path.time_out(Time(7)));
        assert_eq!(sizes(&mut path, 3), [9000, 1452, 9000]);
        assert_eq!((path.answered(1, 3), path.answered(2, 2), path.bytes()), (None, None, 512));
        assert_eq!((path.answered(1, 2), path.bytes(), path.is_notable()), (Some(true), 9000, false));
        assert_eq!(path.answered(1, 2), None);
    }

    #[test]
    fn silence_now_and_then_makes_nothing_narrow() {
        let mut path = PathMtu::new(9000);
        for at in 1..10 {
            assert!(!path.time_out(Time(at)) && path.wants_probe(Time(at)));
            assert_eq!(path.send_probe(Time(at), 1, 2), 9000);
            assert_eq!((path.answered(1, 2), path.wants_probe(Time::NEVER)), (Some(false), false));
        }
    }

    #[test]
    fn what_the_link_says_is_a_limit_and_the_next_question() {
        let mut path = PathMtu::new(1472);
        assert!(path.limit(Time(1), 972) && !path.limit(Time(1), 972));
        assert!(!path.time_out(Time(2)) && path.time_out(Time(2)) && path.bytes() == 512);
        assert_eq!(sizes(&mut path, 1), [1472]);
        // The PROBE did not leave.
        assert!(!path.limit(Time(3), 972) && path.wants_probe(Time(3)));
        assert_eq!(path.send_probe(Time(3), 7, 8), 972);
        assert_eq!((path.answered(7, 8), path.bytes(), path.is_narrow()), (Some(true), 972, true));
        assert_eq!(path.resume(900).bytes(), 900);
    }
}
