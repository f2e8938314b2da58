//! The fence: until when this process may write.
//!
//! The election extends the fence after each renewal of the lease; the client refuses writes while it is closed. It is
//! a point in time and not a flag, so that nobody has to close it: a process that was stopped, starved or cut off finds
//! it closed when it resumes.
//!
//! Time is `CLOCK_BOOTTIME`, which goes on while the process is stopped and while the machine is suspended.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

const CLOSED: u64 = 0;
const ALWAYS: u64 = u64::MAX;

/// A point in time on the monotonic clock of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(u64);

impl Moment {
    /// Reads the clock.
    pub fn now() -> Self {
        Self(clock::nanos())
    }

    /// The time from `earlier` to `self`; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The time from this moment until now.
    pub fn elapsed(self) -> Duration {
        Self::now().since(self)
    }

    /// The moment `duration` after this one. Saturates.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos).min(ALWAYS - 1))
    }
}

/// Whether this process may write now. Clones share one state.
#[derive(Clone, Debug)]
pub struct Fence {
    open_until: Arc<AtomicU64>,
}

impl Fence {
    /// A fence that is closed until the first [`extend`](Self::extend).
    pub fn closed() -> Self {
        Self { open_until: Arc::new(AtomicU64::new(CLOSED)) }
    }

    /// A fence that is always open: for a process without leader election.
    pub fn always_open() -> Self {
        Self { open_until: Arc::new(AtomicU64::new(ALWAYS)) }
    }

    /// Keeps the fence open until `duration` after `from`, and never closes it earlier than before.
    ///
    /// `from` must be taken *before* the renewal is sent. A follower counts from after its response, so that it never
    /// counts from an earlier moment.
    pub fn extend(&self, from: Moment, duration: Duration) {
        self.open_until.fetch_max(from.plus(duration).0, Ordering::SeqCst);
    }

    /// Closes the fence at once.
    pub fn close(&self) {
        self.open_until.store(CLOSED, Ordering::SeqCst);
    }

    /// Whether a write may be sent now.
    pub fn is_open(&self) -> bool {
        Moment::now().0 < self.open_until.load(Ordering::SeqCst)
    }

    /// How long the fence stays open unless it is extended; zero if it is closed.
    pub fn remaining(&self) -> Duration {
        Moment(self.open_until.load(Ordering::SeqCst)).since(Moment::now())
    }
}

#[cfg(not(test))]
mod clock {
    pub(super) fn nanos() -> u64 {
        super::boot_nanos()
    }
}

/// Unit tests use tokio's clock, so that paused time moves the fence too.
#[cfg(test)]
mod clock {
    use std::{sync::OnceLock, time::Duration};
    use tokio::time::Instant;

    const EPOCH: Duration = Duration::from_secs(1_000_000);

    pub(super) fn nanos() -> u64 {
        static BASE: OnceLock<Instant> = OnceLock::new();
        let base = *BASE.get_or_init(Instant::now);
        let now = Instant::now();
        let since = match now.checked_duration_since(base) {
            Some(later) => EPOCH + later,
            None => EPOCH.saturating_sub(base - now),
        };
        u64::try_from(since.as_nanos()).unwrap()
    }
}

fn boot_nanos() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn it_closes_by_itself() {
        let fence = Fence::closed();
        assert!(!fence.is_open());
        fence.extend(Moment::now(), 10 * SECOND);
        tokio::time::advance(9 * SECOND).await;
        assert!(fence.is_open());
        assert_eq!(fence.remaining(), SECOND);
        tokio::time::advance(SECOND).await;
        assert!(!fence.is_open());
        assert_eq!(fence.remaining(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn it_counts_from_before_the_request() {
        let fence = Fence::closed();
        let before = Moment::now();
        tokio::time::advance(11 * SECOND).await;
        fence.extend(before, 10 * SECOND);
        assert!(!fence.is_open(), "a response that took 11 s extends nothing");
    }

    #[tokio::test(start_paused = true)]
    async fn an_older_grant_does_not_shorten_a_newer_one() {
        let fence = Fence::closed();
        let early = Moment::now();
        tokio::time::advance(5 * SECOND).await;
        fence.extend(Moment::now(), 10 * SECOND);
        fence.extend(early, 10 * SECOND);
        assert_eq!(fence.remaining(), 10 * SECOND);
    }

    #[tokio::test(start_paused = true)]
    async fn clones_share_and_close_is_immediate() {
        let fence = Fence::closed();
        let seen_elsewhere = fence.clone();
        fence.extend(Moment::now(), 10 * SECOND);
        assert!(seen_elsewhere.is_open());
        fence.close();
        assert!(!seen_elsewhere.is_open());
    }

    #[test]
    fn without_election_it_is_open_for_ever() {
        let fence = Fence::always_open();
        fence.extend(Moment::now(), SECOND);
        assert!(fence.is_open());
        assert!(fence.remaining() > 1000 * SECOND);
    }

    #[test]
    fn a_huge_grant_does_not_overflow() {
        let fence = Fence::closed();
        fence.extend(Moment::now(), Duration::MAX);
        assert!(fence.is_open());
    }

    #[test]
    fn the_real_clock_runs() {
        let first = boot_nanos();
        std::thread::sleep(Duration::from_millis(2));
        assert!(first > 0 && boot_nanos() >= first + 1_000_000);
    }
}
