//! What came of the effects of a plan.

use std::time::Duration;

use coder_k8s_api::Reason;

/// An object of others that bears the name of a child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignObject {
    /// Kind of the object.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// The annotation, `key=value`, with which its owner can hand it over.
    pub hand_over: String,
    /// Why it is not taken over although its owner hands it over. None: its owner does not.
    pub refused: Option<String>,
}

/// Why the operator cannot do, or does not know, something.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Blocker {
    /// For the condition, the event and the metric.
    pub reason: Reason,
    /// What is wrong, on which object, and what to do. The same text on every retry, so that the status is not rewritten.
    pub message: String,
    /// When another attempt may succeed.
    pub retry: Retry,
}

impl Blocker {
    /// A blocker that may pass by itself: retried with backoff.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), retry: Retry::Backoff }
    }

    /// A blocker that only an edit, a changed Secret or another server removes.
    pub fn until_change(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), retry: Retry::OnChange }
    }

    /// When another attempt may succeed without a change of any input. None: never.
    pub fn timed_retry(&self) -> Option<Retry> {
        Some(self.retry).filter(|retry| *retry != Retry::OnChange)
    }

    /// The same blocker with another time for the next attempt.
    #[must_use]
    pub fn with_retry(self, retry: Retry) -> Self {
        Self { retry, ..self }
    }
}

/// When to try again after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Retry {
    /// At once: our view was out of date.
    Soon,
    /// After a growing delay.
    Backoff,
    /// After a growing delay, and not before this time.
    After(Duration),
    /// When the object, a Secret that it refers to, or the server changes: the same attempt would fail the same way.
    OnChange,
}

/// What was done of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ActResult {
    /// Objects of others in the way of children.
    pub foreign: Vec<ForeignObject>,
    /// The parts that failed. One failing part does not stop the others.
    pub failures: Vec<Blocker>,
}

impl ActResult {
    /// When to try again: not before anybody who asked to be left alone is ready for it.
    pub fn retry(&self) -> Option<Retry> {
        let asked = self.failures.iter().filter_map(|failure| match failure.retry {
            Retry::After(asked) => Some(asked),
            Retry::Soon | Retry::Backoff | Retry::OnChange => None,
        });
        let first = self.failures.first().map(|failure| failure.retry);
        asked.max().map(Retry::After).or(first)
    }
}

/// Something worth telling a person when it happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventNote {
    /// Whether it is bad news.
    pub warning: bool,
    /// The reason of the event.
    pub reason: Reason,
    /// The sentence.
    pub message: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_wait_that_was_asked_for_counts() {
        let failure = |retry| Blocker::new(Reason::Pending, "").with_retry(retry);
        let after = |seconds| Retry::After(Duration::from_secs(seconds));
        let done = |retries: &[Retry]| ActResult {
            failures: retries.iter().copied().map(failure).collect(),
            ..ActResult::default()
        };
        assert_eq!(done(&[]).retry(), None);
        assert_eq!(done(&[Retry::Backoff, after(7), after(60)]).retry(), Some(after(60)));
        assert_eq!(done(&[Retry::Soon, Retry::Backoff]).retry(), Some(Retry::Soon));
    }
}
