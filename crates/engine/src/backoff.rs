//! Delays after failures: exponential, with jitter, and not shorter than the Retry-After of the other side, which is
//! honoured up to [`RETRY_AFTER_MAX`].
//!
//! [`Backoff`] computes one delay and keeps no state. [`Failures`] counts the failures in a row of each object.

use std::{collections::HashMap, time::Duration};

use coder_k8s_core::outcome::Retry;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    cache::ObjectKey,
    intervals::{REQUEUE_AFTER_CONFLICT, REQUEUE_BACKOFF_BASE, REQUEUE_BACKOFF_MAX, RETRY_AFTER_MAX},
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
    /// retried together. The delay is at least `retry_after`, up to [`RETRY_AFTER_MAX`].
    pub fn delay(&self, failures: u32, retry_after: Option<Duration>, jitter: f64) -> Duration {
        let doubled =
            self.base.saturating_mul(1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX));
        let delay = doubled.min(self.max).mul_f64(1.0 - 0.2 * jitter.clamp(0.0, 1.0));
        retry_after.map_or(delay, |least| delay.max(least.min(RETRY_AFTER_MAX)))
    }
}

/// The number of failures in a row of each object.
#[derive(Debug, Default)]
pub struct Failures {
    backoff: Backoff,
    in_a_row: Mutex<HashMap<ObjectKey, Failing>>,
}

/// An object that has failed since it last succeeded.
#[derive(Clone, Copy, Debug)]
struct Failing {
    count: u32,
    /// When the next attempt is due. One that fails earlier, because something enqueued the object, is not counted: else a
    /// few quick events would make a delay of minutes.
    due: Instant,
}

impl Failures {
    /// Counts a failure and returns the delay before the next attempt. A failure before the attempt that was due keeps the
    /// delay as it was.
    pub fn failed(&self, key: &ObjectKey, retry: Retry) -> Duration {
        let now = Instant::now();
        let mut all = self.in_a_row.lock();
        let before = all.get(key).copied();
        let early = before.filter(|before| now < before.due);
        let count =
            early.map_or_else(|| before.map_or(0, |b| b.count).saturating_add(1), |early| early.count);
        let retry_after = match retry {
            Retry::Soon | Retry::Backoff | Retry::OnChange => None,
            Retry::After(least) => Some(least.min(RETRY_AFTER_MAX)),
        };
        let delay = match (retry, early) {
            (_, Some(early)) => (early.due - now).max(retry_after.unwrap_or_default()),
            // The watch usually catches up within milliseconds. A view that stays outdated backs off like the rest.
            (Retry::Soon, None) if count == 1 => REQUEUE_AFTER_CONFLICT,
            (_, None) => self.backoff.delay(count, retry_after, jitter()),
        };
        all.insert(key.clone(), Failing { count, due: now + delay });
        delay
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

    #[tokio::test(start_paused = true)]
    async fn an_object_that_succeeds_starts_over() {
        let (failures, key) = (Failures::default(), ObjectKey::new("Thing", "ns", "a"));
        let mut delays = Vec::new();
        for _ in 0..3 {
            let delay = failures.failed(&key, Retry::Backoff);
            tokio::time::advance(delay).await;
            delays.push(delay);
        }
        assert!(delays.is_sorted() && delays[2] > Duration::from_secs(1));
        failures.forget(&key);
        assert!(failures.failed(&key, Retry::Backoff) <= Duration::from_millis(500));
        assert!(failures.in_a_row.lock().len() == 1);
    }

    #[tokio::test(start_paused = true)]
    async fn quick_wakes_do_not_count_as_failures_in_a_row() {
        let (failures, key) = (Failures::default(), ObjectKey::new("Thing", "ns", "a"));
        let first = failures.failed(&key, Retry::Backoff);
        for _ in 0..50 {
            assert!(failures.failed(&key, Retry::Backoff) <= first, "the attempt that is due stays due");
        }
        let asked = Duration::from_secs(7);
        assert_eq!(failures.failed(&key, Retry::After(asked)), asked, "what the other side asks for counts");
        tokio::time::advance(asked).await;
        assert!(
            failures.failed(&key, Retry::Backoff) <= Duration::from_secs(1),
            "this is the second failure"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_retry_after_without_bounds_is_honoured_up_to_five_minutes() {
        let (failures, key) = (Failures::default(), ObjectKey::new("Thing", "ns", "a"));
        for seconds in [1_000_000_000, u64::MAX] {
            let after = Retry::After(Duration::from_secs(seconds));
            assert_eq!(failures.failed(&key, after), RETRY_AFTER_MAX, "{seconds}");
        }
    }

    #[test]
    fn a_retry_after_is_a_lower_bound() {
        let backoff = Backoff::default();
        assert_eq!(backoff.delay(1, Some(Duration::from_secs(7)), 0.5), Duration::from_secs(7));
        assert_eq!(backoff.delay(12, Some(Duration::from_secs(7)), 0.0), Duration::from_mins(5));
    }
}
