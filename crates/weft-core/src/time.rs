//! Time as the engine sees it: nanoseconds since some start that the driver chose. The engine only compares and
//! subtracts, so any monotonic clock will do, a simulated one too.

use core::ops::{Add, Sub};

/// A point in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct Time(pub u64);

impl Time {
    /// Later than everything.
    pub const NEVER: Time = Time(u64::MAX);

    /// The point this many microseconds after the start.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Time {
        Time(micros.saturating_mul(1000))
    }

    /// Microseconds since the start.
    #[must_use]
    pub const fn micros(self) -> u64 {
        self.0 / 1000
    }

    /// Nanoseconds from `earlier` to here; 0 when it is later.
    #[must_use]
    pub const fn since(self, earlier: Time) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// This many microseconds later.
    #[must_use]
    pub const fn plus_micros(self, micros: u64) -> Time {
        Time(self.0.saturating_add(micros.saturating_mul(1000)))
    }
}

impl Add<u64> for Time {
    type Output = Time;
    /// So many nanoseconds later.
    fn add(self, nanos: u64) -> Time {
        Time(self.0.saturating_add(nanos))
    }
}

impl Sub<Time> for Time {
    type Output = u64;
    fn sub(self, earlier: Time) -> u64 {
        self.since(earlier)
    }
}
