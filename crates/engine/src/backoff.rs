//! Delays after failures: exponential, with jitter, and never shorter than the Retry-After of the other side.
//!
//! [`Backoff`] computes one delay and keeps no state. [`Failures`] counts the failures in a row of each object.

use std::{collections::HashMap, time::Duration};

use coder_k8s_core::outcome::Retry;
use parking_lot::Mutex;

use crate::{
    cache::ObjectKey,
    intervals::{REQUEUE_AFTER_CONFLICT, REQUEUE_BACKOFF_BASE, REQUEUE_BACKOFF_MAX},
};

/// A delay that doubles with each failure. The default is that of a reconcile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The delay after the first failure.
    pub base: Duration,
    /// The longest delay, unless the other side asks for more.
    pub max: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { base: REQUEUE_BACKOFF_BASE, max: REQUEUE_BACKOFF_MAX }
    }
}

impl Backoff {
    /// The delay after `failures` failures in a row, the first counted as one.
    ///
    /// `jitter` in `0.0..1.0` shortens the delay by up to a fifth, so that objects that failed together are not
    /// retried together. The delay is at least `retry_after`.
    pub fn delay(&self, failures: u32, retry_after: Option<Duration>, jitter: f64) -> Duration {
        let doubled =
            self.base.saturating_mul(1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX));
        let delay = doubled.min(self.max).mul_f64(1.0 - 0.2 * jitter.clamp(0.0, 1.0));
        retry_after.map_or(delay, |least| delay.max(least))
    }
}

/// The number of failures in a row of each object.
#[derive(Debug, Default)]
pub struct Failures {
    backoff: Backoff,
    in_a_row: Mutex<HashMap<ObjectKey, u32>>,
}

impl Failures {
    /// Counts a failure and returns the delay before the next attempt.
    pub fn failed(&self, key: &ObjectKey, retry: Retry) -> Duration {
        let mut all = self.in_a_row.lock();
        let count = all.entry(key.clone()).or_default();
        *count = count.saturating_add(1);
        let retry_after = match retry {
            // The watch usually catches up within milliseconds. A view that stays outdated backs off like the rest.
            Retry::Soon if *count == 1 => return REQUEUE_AFTER_CONFLICT,
            Retry::Soon | Retry::Backoff | Retry::OnChange => None,
            Retry::After(least) => Some(least),
        };
        self.backoff.delay(*count, retry_after, jitter())
    }

    /// Whether the object has failed since it last succeeded.
    pub fn any(&self, key: &ObjectKey) -> bool {
        self.in_a_row.lock().contains_key(key)
    }

    /// Resets the count of an object that succeeded or is gone.
    pub fn forget(&self, key: &ObjectKey) {
        self.in_a_row.lock().remove(key);
    }
}

/// A random number in `0.0..1.0`. It spreads retries and is not fit for secrets.
pub fn jitter() -> f64 {
    use std::hash::{BuildHasher, RandomState};
    let bits = u32::try_from(RandomState::new().hash_one(0) >> 32).unwrap_or_default();
    f64::from(bits) / (f64::from(u32::MAX) + 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_maximum() {
        let backoff = Backoff::default();
        let delays: Vec<_> = (1..=12).map(|n| backoff.delay(n, None, 0.0).as_millis()).collect();
        assert_eq!(delays[..4], [500, 1000, 2000, 4000]);
        assert_eq!(delays[11], 300_000);
        assert_eq!(backoff.delay(u32::MAX, None, 0.0), Duration::from_mins(5));
    }

    #[test]
    fn jitter_shortens_by_at_most_a_fifth() {
        let backoff = Backoff::default();
        assert_eq!(backoff.delay(2, None, 0.999_999), Duration::from_nanos(800_000_200));
        assert!((0..100).map(|_| jitter()).all(|j| (0.0..1.0).contains(&j)));
    }

    #[test]
    fn an_object_that_succeeds_starts_over() {
        let (failures, key) = (Failures::default(), ObjectKey::new("Thing", "ns", "a"));
        let delays: Vec<_> = (0..3).map(|_| failures.failed(&key, Retry::Backoff)).collect();
        assert!(delays.is_sorted() && delays[2] > Duration::from_secs(1));
        failures.forget(&key);
        assert!(failures.failed(&key, Retry::Backoff) <= Duration::from_millis(500));
        assert!(failures.in_a_row.lock().len() == 1);
    }

    #[test]
    fn a_retry_after_is_a_lower_bound() {
        let backoff = Backoff::default();
        assert_eq!(backoff.delay(1, Some(Duration::from_secs(7)), 0.5), Duration::from_secs(7));
        assert_eq!(backoff.delay(12, Some(Duration::from_secs(7)), 0.0), Duration::from_mins(5));
    }
}
