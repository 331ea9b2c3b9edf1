//! Round trip, probe timeout and congestion window of one path. A session group will have one of these for each session.

use crate::limits::{
    DELAY_TARGET_MIN_US, PTO_MAX_US, PTO_MIN_US, READS_TOGETHER, WINDOW_FIRST_PACKETS, WINDOW_LEAST_PACKETS,
};
use crate::time::Time;

/// What is known about a path, and how much may be in flight on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Congestion {
    /// Smoothed round trip and its variation; 0: none yet.
    srtt_us: u32,
    rttvar_us: u32,
    base_rtt_us: u32,
    /// Bytes that may be in flight.
    window: u64,
    /// Above it the window grows slowly.
    threshold: u64,
    /// Never above this: what the peer's socket is thought to hold.
    window_max: u64,
    in_flight: u64,
    packet: u64,
    /// No second decrease before this.
    next_decrease: Time,
    marks: u16,
    /// Window and threshold before the last collapse, and when that was: for the case that nothing was lost after all.
    before_collapse: Option<(u64, u64, Time)>,
}

impl Congestion {
    pub(crate) fn new(packet: u32, window_max: u64) -> Congestion {
        let packet = u64::from(packet);
        let window_max = window_max.max(packet * WINDOW_LEAST_PACKETS);
        Congestion {
            srtt_us: 0,
            rttvar_us: 0,
            base_rtt_us: 0,
            window: (packet * WINDOW_FIRST_PACKETS).min(window_max),
            threshold: window_max,
            window_max,
            in_flight: 0,
            packet,
            next_decrease: Time(0),
            marks: 0,
            before_collapse: None,
        }
    }

    /// The same path later, with nothing in flight.
    pub(crate) fn resume(self) -> Congestion {
        Congestion { in_flight: 0, ..self }
    }

    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Whether so many more bytes may go. One packet always may.
    pub(crate) fn admits(&self, bytes: u64) -> bool {
        self.in_flight == 0 || self.in_flight + bytes <= self.window
    }

    /// Whether several reads of so many bytes may go, or as many as a quarter of the window has room for.
    pub(crate) fn admits_several(&self, bytes: u64) -> bool {
        self.admits((bytes * READS_TOGETHER).min(self.window / 4).max(bytes))
    }

    pub(crate) fn sent(&mut self, bytes: u64) {
        self.in_flight += bytes;
    }

    /// Bytes left the path: accepted, lost, or given up.
    pub(crate) fn left(&mut self, bytes: u64) {
        self.in_flight = self.in_flight.saturating_sub(bytes);
    }

    /// Bytes arrived.
    pub(crate) fn delivered(&mut self, bytes: u64) {
        if self.window < self.threshold {
            self.window += bytes;
        } else {
            self.window += (self.packet * bytes).checked_div(self.window).unwrap_or(0);
        }
        self.window = self.window.min(self.window_max);
    }

    /// A round trip was measured, of a packet sent at `sent`; `marks` is the peer's count of ECN marks.
    pub(crate) fn sample(&mut self, rtt_us: u32, sent: Time, marks: u16, now: Time) {
        if let Some((window, threshold, at)) = self.before_collapse.take() {
            // What was sent before has arrived: the answer was only late.
            if sent < at {
                self.window = self.window.max(window);
                self.threshold = self.threshold.max(threshold);
            }
        }
        if self.srtt_us == 0 {
            self.srtt_us = rtt_us.max(1);
            self.rttvar_us = rtt_us / 2;
            self.base_rtt_us = rtt_us.max(1);
        } else {
            let difference = self.srtt_us.abs_diff(rtt_us);
            self.rttvar_us = ((u64::from(self.rttvar_us) * 3 + u64::from(difference)) / 4) as u32;
            self.srtt_us = ((u64::from(self.srtt_us) * 7 + u64::from(rtt_us)) / 8).max(1) as u32;
            self.base_rtt_us = self.base_rtt_us.min(rtt_us.max(1));
        }
        let marked = marks != self.marks;
        self.marks = marks;
        let target = self.base_rtt_us.saturating_add(self.base_rtt_us.max(DELAY_TARGET_MIN_US));
        // Delay alone is no reason: on a busy machine it is mostly the time until a process runs again.
        if marked && self.srtt_us > target {
            // cwnd *= max(1 − 0.8 (average − target) / average, 0.5)
            let over = u64::from(self.srtt_us - target) * 800 / u64::from(self.srtt_us);
            self.decrease(1000 - over.min(500), now);
        }
    }

    /// A packet was lost.
    pub(crate) fn lost(&mut self, now: Time) {
        self.decrease(700, now);
    }

    /// Nothing came back at all, twice in a row.
    pub(crate) fn collapsed(&mut self, now: Time) {
        if self.before_collapse.is_none() {
            self.before_collapse = Some((self.window, self.threshold, now));
        }
        self.threshold = (self.window / 2).max(self.packet * WINDOW_LEAST_PACKETS);
        self.window = self.packet * WINDOW_LEAST_PACKETS;
    }

    fn decrease(&mut self, thousandths: u64, now: Time) {
        if now < self.next_decrease {
            return;
        }
        self.next_decrease = now.plus_micros(u64::from(self.srtt_us.max(1)));
        self.window = (self.window * thousandths / 1000).max(self.packet * WINDOW_LEAST_PACKETS);
        self.threshold = self.window;
    }

    /// A quarter of a round trip: how long an overtaken packet is given to arrive (P-7.11).
    pub(crate) fn reorder_us(&self) -> u64 {
        u64::from(self.srtt_us) + u64::from(self.srtt_us / 4) + u64::from(self.rttvar_us)
    }

    /// The probe timeout after so many without an answer (P-7.11).
    pub(crate) fn pto_us(&self, without_answer: u32) -> u64 {
        let pto =
            if self.srtt_us == 0 { 4 * PTO_MIN_US } else { u64::from(self.srtt_us) + 4 * u64::from(self.rttvar_us) };
        (pto.max(PTO_MIN_US) << without_answer.min(8)).min(PTO_MAX_US)
    }

    /// The packets became shorter.
    pub(crate) fn set_packet(&mut self, packet: u32) {
        self.packet = u64::from(packet);
    }
}
