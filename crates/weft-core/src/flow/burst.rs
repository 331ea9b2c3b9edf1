//! When a row of commands to one target ends.
//!
//! Short commands that a program posts one after the other share a datagram, so each waits for company until the program
//! comes to look for completions. The last of them waits for nothing; and if the program computes first, as it may behind a
//! collective that does not block, so do all. Programs post the same rows again and again, so rows that went before tell
//! where this one ends.

/// Commands that were posted to one target since the user came to look.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Burst {
    round: u32,
    count: u32,
    /// Of the burst before.
    before: u32,
    /// The one before that was as long.
    is_steady: bool,
    /// What lately was the longest: it is forgotten by halves. A burst that goes on beyond may be twice as long.
    expected: u32,
}

impl Burst {
    /// Counts a command; true if no other is expected behind it. A program that `awaits` its end comes to look soon, so two
    /// bursts must have ended here. One that does not may be away for long.
    #[inline]
    pub(crate) fn count(&mut self, round: u32, awaits: bool) -> bool {
        if self.round != round {
            self.is_steady = self.count == self.before;
            self.expected = self.count.max(self.expected / 2);
            (self.round, self.before, self.count) = (round, self.count, 0);
        }
        self.count = self.count.saturating_add(1);
        let may_end = self.count >= self.expected;
        if may_end {
            self.expected = self.count.saturating_mul(2);
        }
        if awaits { self.is_steady && self.count == self.before } else { may_end }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_ends_where_two_before_it_did() {
        let mut burst = Burst::default();
        let mut count = |round| burst.count(round, true);
        assert_eq!([1, 1, 1].map(&mut count), [false; 3]);
        assert_eq!([2, 2, 2].map(&mut count), [false; 3]);
        assert_eq!([4, 4, 4].map(&mut count), [false, false, true]);
        // One that goes on is not over, and those behind it may be as long.
        assert_eq!([5, 5, 5, 5].map(&mut count), [false, false, true, false]);
        assert_eq!([6, 6, 6].map(&mut count), [false; 3]);
        // Those that come one by one wait for nobody.
        assert_eq!([7, 8, u32::MAX, 0].map(&mut count), [false, false, true, true]);
    }

    #[test]
    fn what_nobody_waits_for_goes_wherever_it_may_end() {
        let mut burst = Burst::default();
        let mut count = |round| burst.count(round, false);
        assert_eq!([1, 1, 1, 1, 1].map(&mut count), [true, true, false, true, false]);
        assert_eq!([2, 2, 2, 2, 2, 2].map(&mut count), [false, false, false, false, true, false]);
        // Short ones in between do not make a long one be forgotten at once.
        assert_eq!([3, 4, 5].map(&mut count), [false, false, true]);
        assert_eq!([6, 6, 6].map(&mut count), [true, true, false]);
    }
}
