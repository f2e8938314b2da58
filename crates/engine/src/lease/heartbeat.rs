//! A sign of life of the lease loop, for readiness.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::fence::Moment;

/// When a loop last turned. Clones share one state.
#[derive(Clone, Debug)]
pub struct Heartbeat {
    last: Arc<AtomicU64>,
}

impl Heartbeat {
    /// A loop that is about to start; it counts as alive from now.
    pub fn new() -> Self {
        Self { last: Arc::new(AtomicU64::new(Moment::now().as_nanos())) }
    }

    /// The loop turns.
    pub fn touch(&self) {
        self.last.store(Moment::now().as_nanos(), Ordering::Relaxed);
    }

    /// How long ago the loop last turned.
    pub fn age(&self) -> Duration {
        Moment::from_nanos(self.last.load(Ordering::Relaxed)).elapsed()
    }

    /// Whether the loop turned within `limit`. The lease loop turns at least once in a renew deadline.
    pub fn alive(&self, limit: Duration) -> bool {
        self.age() <= limit
    }
}

impl Default for Heartbeat {
    fn default() -> Self {
        Self::new()
    }
}
