//! The clean-ups that are under way in this process: when each could begin, and how often it was tried.
//!
//! The beginning is on the status too (`cleanupStartTime`), so that a restart does not move it. It is kept here as well, so
//! that a status that cannot be written extends no deadline. What follows from it is decided in `core::cleanup`.

use std::{
    collections::{HashMap, hash_map::Entry},
    time::Duration,
};

use coder_k8s_coderd::CallLimits;
use coder_k8s_core::cleanup::{Cleanup, recorded_start};
use coder_k8s_engine::{cache::ObjectKey, queue::Action};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use parking_lot::Mutex;

/// The clean-ups of one process.
pub(crate) struct Cleanups {
    limit: Duration,
    under_way: Mutex<HashMap<ObjectKey, UnderWay>>,
}

struct UnderWay {
    uid: Option<String>,
    began: Timestamp,
    attempts: u32,
}

/// One attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CleanupAttempt {
    pub(crate) cleanup: Cleanup,
    /// Whether the deadline has passed and this process has tried before: nothing is tried any more. A process that starts
    /// after the deadline tries once.
    pub(crate) overdue: bool,
}

impl CleanupAttempt {
    /// What its calls may take.
    pub(crate) fn limits(self) -> CallLimits {
        CallLimits { timeout: Some(self.cleanup.call_timeout()), patience: Some(self.cleanup.patience()) }
    }
}

impl Cleanups {
    /// No clean-up is under way. `limit` is `--cleanup-timeout`.
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit, under_way: Mutex::default() }
    }

    /// Begins a clean-up that has not begun, and counts an attempt in coderd if this is one. `recorded` is the beginning on
    /// the status.
    pub(crate) fn attempt(
        &self,
        key: &ObjectKey,
        uid: Option<String>,
        recorded: Option<Timestamp>,
        deleted: Timestamp,
        now: Timestamp,
        counts: bool,
    ) -> CleanupAttempt {
        let mut all = self.under_way.lock();
        let began = recorded_start(recorded, deleted, self.limit, now).unwrap_or(now);
        let new = UnderWay { uid, began, attempts: 0 };
        let state = match all.entry(key.clone()) {
            Entry::Occupied(known) if known.get().uid == new.uid => known.into_mut(),
            entry => entry.insert_entry(new).into_mut(),
        };
        let cleanup = Cleanup::new(self.limit, state.began, now);
        let overdue = cleanup.is_over() && state.attempts > 0;
        state.attempts = state.attempts.saturating_add(u32::from(counts));
        CleanupAttempt { cleanup, overdue }
    }

    /// When a clean-up began, in whole seconds as the status has it.
    pub(crate) fn start(&self, key: &ObjectKey, now: Timestamp) -> Option<Time> {
        let began = self.under_way.lock().get(key)?.began;
        Some(Time(Timestamp::from_second(began.as_second()).unwrap_or(now)))
    }

    /// The requeue of an object: no later than its clean-up needs it.
    pub(crate) fn bound(&self, key: &ObjectKey, next: Action, now: Timestamp) -> Action {
        let Some(began) = self.under_way.lock().get(key).map(|state| state.began) else { return next };
        let wanted = match next {
            Action::AwaitChange => None,
            Action::RequeueAfter(delay) => Some(delay),
        };
        Action::RequeueAfter(Cleanup::new(self.limit, began, now).delay(wanted))
    }

    /// Forgets a clean-up that has ended.
    pub(crate) fn forget(&self, key: &ObjectKey) {
        self.under_way.lock().remove(key);
    }
}
