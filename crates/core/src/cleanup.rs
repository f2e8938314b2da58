//! The deadline of a clean-up: how long the deletion of an object may wait for what it leaves in coderd.
//!
//! It counts from the moment clean-up can begin, which the status records, and nobody extends it: delays and calls of the
//! clean-up are fitted into what is left. Fractions of the whole deadline keep room for at least three attempts.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::intervals::CLEANUP_DELAY_MIN;

/// A clean-up under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cleanup {
    /// `--cleanup-timeout`.
    pub limit: Duration,
    /// How long until what is left is abandoned.
    pub left: Duration,
}

impl Cleanup {
    /// The clean-up that began then.
    pub fn new(limit: Duration, began: Timestamp, now: Timestamp) -> Self {
        // A beginning ahead of now is the clock of another process.
        let elapsed = Duration::try_from(now.duration_since(began)).unwrap_or_default();
        Self { limit, left: limit.saturating_sub(elapsed) }
    }

    /// Whether the deadline has passed.
    pub fn is_over(self) -> bool {
        self.left.is_zero()
    }

    /// Deadline of one call: a sixth of the whole, and as what is left gets shorter a quarter of that, so that calls that
    /// hang leave time for others. Of a process that starts after the deadline, a short one.
    pub fn call_timeout(self) -> Duration {
        let short = self.limit / 24;
        if self.is_over() {
            return short;
        }
        (self.limit / 6).min((self.left / 4).max(self.left.min(short)))
    }

    /// How long one attempt may take: what is left, or the time of a last attempt.
    pub fn attempt_timeout(self) -> Duration {
        self.left.max(self.limit / 12)
    }

    /// How long a server that asks for it, or that cannot be reached, is left alone.
    pub fn patience(self) -> Duration {
        self.limit / 4
    }

    /// Whether the token of a control plane is still kept for pools and proxies that clean up with it: for two thirds of the
    /// time. The rest is for its own revocation.
    pub fn may_wait_for_dependents(self) -> bool {
        self.left > self.limit / 3
    }

    /// The delay before the next attempt, of which `wanted` is what a backoff or a server asks for. The last attempt comes
    /// shortly before the deadline, and the attempt after it is the end.
    pub fn delay(self, wanted: Option<Duration>) -> Duration {
        let most = self.limit / 6;
        let delay = wanted.map_or(most, |wanted| wanted.min(most));
        let last = self.left.saturating_sub(self.limit / 12);
        let bound = if last.is_zero() { self.left } else { last };
        let delay = if self.is_over() { delay } else { delay.min(bound) };
        delay.max(CLEANUP_DELAY_MIN)
    }
}

/// When a clean-up began, as the status records it. None: nothing is recorded that can be true of this deletion.
pub fn recorded_start(
    recorded: Option<Timestamp>,
    deleted: Timestamp,
    limit: Duration,
    now: Timestamp,
) -> Option<Timestamp> {
    // The status holds whole seconds, and clocks of two processes differ.
    let ahead = SignedDuration::try_from(limit).unwrap_or(SignedDuration::MAX);
    recorded.filter(|at| {
        at.duration_since(deleted) >= -SignedDuration::from_secs(1) && at.duration_since(now) <= ahead
    })
}

#[cfg(test)]
pub(crate) mod table;

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_mins(2);

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn whatever_is_asked_for_at_least_three_attempts_fit_and_the_last_is_before_the_deadline() {
        for limit in [6, 20, 120].map(Duration::from_secs) {
            for wanted in [None, Some(Duration::ZERO), Some(limit / 4), Some(Duration::from_secs(u64::MAX))] {
                let (mut left, mut attempts) = (limit, Vec::new());
                while !left.is_zero() && attempts.len() < 10_000 {
                    attempts.push(left);
                    let cleanup = Cleanup { limit, left };
                    assert!(cleanup.call_timeout() <= limit / 6);
                    left = left.saturating_sub(cleanup.delay(wanted));
                }
                assert!(attempts.len() >= 3, "{limit:?} {wanted:?}: {attempts:?}");
                let last = attempts.last().unwrap();
                assert!(*last <= limit / 6, "{limit:?} {wanted:?}: {attempts:?}");
                assert!(wanted == Some(Duration::ZERO) || attempts.len() <= 12, "{attempts:?}");
            }
        }
    }

    #[test]
    fn a_clean_up_that_is_over_makes_no_storm() {
        let over = Cleanup::new(LIMIT, at(0), at(120));
        assert!(over.is_over());
        assert_eq!(over.delay(None), Duration::from_secs(20));
        assert_eq!(over.delay(Some(Duration::ZERO)), CLEANUP_DELAY_MIN);
    }

    #[test]
    fn a_recorded_start_counts_if_it_can_be_true() {
        let start = |recorded| recorded_start(Some(at(recorded)), at(1000), LIMIT, at(2000));
        assert_eq!(start(1500), Some(at(1500)));
        assert_eq!(start(900), None, "of an earlier life");
        assert_eq!(start(2010), Some(at(2010)), "another clock");
        assert_eq!(start(9000), None, "nobody extends the deadline");
        assert_eq!(recorded_start(None, at(1000), LIMIT, at(2000)), None);
    }
}
