//! Whether the ring is still as fast as it was measured to be.
//!
//! Two cores pass bytes to each other quickly only where they are near, and a system moves programs between cores, as a
//! hypervisor moves those: what was measured at the start may be wrong by a factor of ten a second later, and right again
//! after that. Cross-memory attach, which is one copy by one core, hardly suffers. So parts that go through the ring are
//! timed, one in few; where they stay slow, the next long operations go by attach, and then the ring is tried again.
//!
//! Where processes have to share a processor, attach serves too, whatever was measured: through the ring each part costs two
//! copies, and a turn on the processor of both.

use std::time::{Duration, Instant};

use weft_mem::calibrate::CopyMethods;

use super::LocalStatistics;
use crate::limits::{
    LOCAL_ATTACH_MIN_BYTES, LOCAL_EAGER_MAX_BYTES, LOCAL_FRAGMENT_BYTES, LOCAL_PARTS_PER_TIMED, LOCAL_SLOW_AGAIN,
    LOCAL_SLOW_AVOID_BYTES, LOCAL_SLOW_PARTS, LOCAL_SLOW_TRY_BYTES,
};

/// Which way long operations take, as measured at the start.
#[derive(Clone, Copy, Debug)]
pub(super) struct Methods {
    /// From this length on one copy by cross-memory attach is faster than two through the ring.
    pub(super) attach_from_bytes: usize,
    /// Others want the processor too: one copy by one process costs half of two, and needs no turns.
    pub(super) shares_processor: bool,
    /// A part that takes longer than this is slow: attach would have copied twice as much. `None`: there is no choice.
    slow_part: Option<Duration>,
}

impl Methods {
    /// Before anything was measured: everything goes through the ring.
    pub(super) const RING: Methods =
        Methods { attach_from_bytes: usize::MAX, shares_processor: false, slow_part: None };

    pub(super) fn new(measured: &CopyMethods) -> Methods {
        let attach_rate = measured.measurements.last().map_or(0, |longest| longest.attach);
        let nanoseconds = (2 * LOCAL_FRAGMENT_BYTES as u64 * 1_000_000_000).checked_div(attach_rate);
        Methods {
            attach_from_bytes: measured.attach_from_bytes.map_or(usize::MAX, |bytes| bytes.max(LOCAL_ATTACH_MIN_BYTES)),
            shares_processor: false,
            slow_part: nanoseconds.map(Duration::from_nanos),
        }
    }
}

/// What is known of the ring of one channel.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Parts that went through it.
    parts: u32,
    /// Timed ones that were slow, without a faster one in between.
    slow: u32,
    /// Bytes that go by attach before the ring is tried again, and then bytes that try it. The rest waits for what comes of
    /// that: programs post many operations before the first of them is in the ring.
    avoids: u64,
    tries: u64,
}

impl Pace {
    /// Before a part is copied into the ring or out of it: when that begins, if this part is timed.
    #[inline]
    pub(super) fn begin(&mut self, methods: &Methods, length: usize) -> Option<Instant> {
        // Shorter ones say little, and the clock would cost them more.
        let whole = length == LOCAL_FRAGMENT_BYTES && methods.slow_part.is_some();
        self.parts = self.parts.wrapping_add(u32::from(whole));
        (whole && self.parts.is_multiple_of(LOCAL_PARTS_PER_TIMED)).then(Instant::now)
    }

    /// After it was copied.
    #[inline]
    pub(super) fn end(&mut self, methods: &Methods, begun: Option<Instant>, statistics: &mut LocalStatistics) {
        if let Some(begun) = begun {
            statistics.ring_left += u64::from(self.took(methods, begun.elapsed()));
        }
    }

    /// Whether the ring is left for that.
    fn took(&mut self, methods: &Methods, time: Duration) -> bool {
        // Who was interrupted is slow once. A peer's core that is far away makes all of them slow.
        if methods.slow_part.is_none_or(|slow| time <= slow) {
            (self.slow, self.avoids, self.tries) = (0, 0, 0);
            return false;
        }
        self.slow += 1;
        let leaves = self.slow >= LOCAL_SLOW_PARTS;
        if leaves {
            (self.avoids, self.tries) = (LOCAL_SLOW_AVOID_BYTES, 0);
            // What was slow so long needs less to be found slow again.
            self.slow = LOCAL_SLOW_PARTS - LOCAL_SLOW_AGAIN;
        }
        leaves
    }

    /// Whether an operation of this length goes by attach, where that is possible.
    pub(super) fn prefers_attach(&mut self, methods: &Methods, length: u32) -> bool {
        if length as usize >= methods.attach_from_bytes {
            return true;
        }
        if (length as usize) < LOCAL_ATTACH_MIN_BYTES {
            return false;
        }
        if methods.shares_processor && length as usize > LOCAL_EAGER_MAX_BYTES {
            return true;
        }
        let length = u64::from(length);
        if self.avoids > 0 {
            self.avoids = self.avoids.saturating_sub(length);
            self.tries = if self.avoids == 0 { LOCAL_SLOW_TRY_BYTES } else { 0 };
            return true;
        }
        if self.tries > 0 {
            self.tries = self.tries.saturating_sub(length);
            self.avoids = if self.tries == 0 { LOCAL_SLOW_AVOID_BYTES } else { 0 };
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use weft_mem::calibrate::{Decided, Measurement};

    use super::*;
    use crate::{Access, Domain, Fabric};

    const LONG: u32 = 1 << 20;

    fn measured(attach: u64, ring: u64) -> Methods {
        let measurements = vec![Measurement { length: LONG as usize, attach, ring }];
        Methods::new(&CopyMethods { attach_from_bytes: None, measurements, decided: Decided::Measured })
    }

    /// Attach copies 10 bytes a nanosecond: a part may take 6.5 µs.
    fn methods() -> Methods {
        measured(10_000_000_000, 20_000_000_000)
    }

    fn slow_parts(pace: &mut Pace, count: u32) -> u32 {
        (0..count).map(|_| u32::from(pace.took(&methods(), SLOW))).sum()
    }

    const FAST: Duration = Duration::from_micros(3);
    const SLOW: Duration = Duration::from_micros(30);

    #[test]
    fn a_slow_ring_is_left_for_a_while() {
        let (methods, mut pace) = (methods(), Pace::default());
        assert!(!pace.prefers_attach(&methods, LONG));
        assert_eq!(slow_parts(&mut pace, LOCAL_SLOW_PARTS), 1);
        let operations = LOCAL_SLOW_AVOID_BYTES / u64::from(LONG);
        for _ in 0..2 {
            assert!((0..operations).all(|_| pace.prefers_attach(&methods, LONG)));
            let tries = LOCAL_SLOW_TRY_BYTES.div_ceil(u64::from(LONG));
            assert!((0..tries).all(|_| !pace.prefers_attach(&methods, LONG)), "the ring is tried again");
            assert!(pace.prefers_attach(&methods, LONG), "by few, until it is known what comes of it");
            assert_eq!(slow_parts(&mut pace, LOCAL_SLOW_AGAIN), 1, "and it is as slow as it was");
        }
    }

    #[test]
    fn a_ring_that_is_fast_again_is_used() {
        let (methods, mut pace) = (methods(), Pace::default());
        slow_parts(&mut pace, LOCAL_SLOW_PARTS);
        while pace.prefers_attach(&methods, LONG) {}
        assert!(pace.prefers_attach(&methods, LONG), "nothing is known of the one that tries it");
        assert!(!pace.took(&methods, FAST));
        assert!((0..1000).all(|_| !pace.prefers_attach(&methods, LONG)));
        assert_eq!(slow_parts(&mut pace, LOCAL_SLOW_PARTS - 1), 0);
        assert!(!pace.prefers_attach(&methods, LONG), "one fast part, and the count begins anew");
    }

    #[test]
    fn interruptions_are_not_taken_for_a_slow_ring() {
        let (methods, mut pace) = (methods(), Pace::default());
        for _ in 0..1000 {
            assert_eq!(slow_parts(&mut pace, LOCAL_SLOW_PARTS - 1), 0);
            assert!(!pace.took(&methods, FAST));
        }
        assert!(!pace.prefers_attach(&methods, LONG));
    }

    #[test]
    fn short_operations_stay_in_the_ring() {
        let (methods, mut pace) = (methods(), Pace::default());
        slow_parts(&mut pace, LOCAL_SLOW_PARTS);
        assert!(!pace.prefers_attach(&methods, LOCAL_ATTACH_MIN_BYTES as u32 - 1));
        assert!(pace.prefers_attach(&methods, LOCAL_ATTACH_MIN_BYTES as u32));
    }

    #[test]
    fn nothing_is_timed_where_there_is_no_choice() {
        let told = CopyMethods { attach_from_bytes: None, measurements: Vec::new(), decided: Decided::Told };
        for methods in [Methods::RING, Methods::new(&told), measured(0, 20_000_000_000)] {
            let mut pace = Pace::default();
            assert!((0..100).all(|_| pace.begin(&methods, LOCAL_FRAGMENT_BYTES).is_none()));
            assert!(!pace.prefers_attach(&methods, u32::MAX));
        }
    }

    #[test]
    fn one_part_in_few_is_timed() {
        let (methods, mut pace) = (methods(), Pace::default());
        let timed = |pace: &mut Pace, length| (0..80).filter(|_| pace.begin(&methods, length).is_some()).count();
        assert_eq!(timed(&mut pace, LOCAL_FRAGMENT_BYTES), 80 / LOCAL_PARTS_PER_TIMED as usize);
        assert_eq!(timed(&mut pace, LOCAL_FRAGMENT_BYTES / 2), 0);
    }

    /// Messages, writes and reads while the way changes under them, there and back.
    #[test]
    fn no_byte_is_lost_when_the_way_changes() {
        let fabric = Fabric::new("pace").unwrap();
        let domains = [fabric.udp("127.0.0.1:0").unwrap(), fabric.udp("127.0.0.1:0").unwrap()];
        let queues = domains.each_ref().map(|domain| domain.completion_queue(64));
        let [here, there] = [0, 1].map(|side| domains[side].endpoint(&queues[side]).unwrap());
        let to = domains[0].addresses().insert(there.address()).unwrap();
        // Memory of the program's own, which is not mapped by peers.
        let region = domains[1].register(vec![0; LONG as usize], Access::REMOTE).unwrap();
        let end = |side: usize| loop {
            if let Some(completion) = queues[side].read().unwrap() {
                return completion.ok().unwrap();
            }
            domains[1 - side].progress().unwrap();
        };
        for round in 0..400u32 {
            let bytes: Vec<u8> = (0..LONG).map(|byte| (byte / 7 + round) as u8).collect();
            let expected = bytes.clone();
            match round % 3 {
                0 => {
                    there.receive(vec![0; LONG as usize]).unwrap();
                    here.send(to, bytes).unwrap();
                    assert_eq!(end(1).into_bytes().unwrap(), expected);
                }
                1 => {
                    here.write(to, region.remote(), bytes).unwrap();
                }
                _ => {
                    region.write(0, &bytes).unwrap();
                    here.read(to, region.remote(), vec![0; LONG as usize]).unwrap();
                }
            }
            let done = end(0);
            match round % 3 {
                0 => {}
                1 => assert_eq!(region.to_vec(0, LONG as usize).unwrap(), expected),
                _ => assert_eq!(done.into_bytes().unwrap(), expected),
            }
            // From the first one on every part is slow, and the ring is used at all, whatever was measured here.
            let mut core = domains[0].nic().lock();
            core.local.as_mut().unwrap().methods =
                Methods { attach_from_bytes: usize::MAX, shares_processor: false, slow_part: Some(Duration::ZERO) };
        }
        let [here, there] = domains.each_ref().map(Domain::local_statistics);
        assert!(here.ring_left >= 2 && there.attached > 0, "{here:?} {there:?}");
    }
}
