//! What came of the effects of a plan.

use std::time::Duration;

/// An object of others that bears the name of a child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Foreign {
    /// Kind of the object.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// The annotation, `key=value`, with which its owner can hand it over.
    pub hand_over: String,
}

/// An effect that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The reason, one word: for the condition, the event and the metric.
    pub reason: &'static str,
    /// What failed, in a sentence that names the object. Stable from try to try.
    pub message: String,
    /// When to try again.
    pub retry: Retry,
}

/// What is in the way, or why something is not known.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Trouble {
    /// One word.
    pub reason: &'static str,
    /// A sentence, the same from try to try.
    pub message: String,
}

/// When to try again after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// At once: our view was out of date.
    Soon,
    /// After a growing delay.
    Backoff,
    /// After a growing delay, and not before this time.
    After(Duration),
}

/// What was done of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Objects of others in the way of children.
    pub foreign: Vec<Foreign>,
    /// The parts that failed. One failing part does not stop the others.
    pub failures: Vec<Failure>,
}

impl Done {
    /// When to try again: not before anybody who asked to be left alone is ready for it.
    pub fn retry(&self) -> Option<Retry> {
        let asked = self.failures.iter().filter_map(|failure| match failure.retry {
            Retry::After(asked) => Some(asked),
            Retry::Soon | Retry::Backoff => None,
        });
        let first = self.failures.first().map(|failure| failure.retry);
        asked.max().map(Retry::After).or(first)
    }
}

/// Something worth telling a person when it happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Whether it is bad news.
    pub warning: bool,
    /// The reason, one word.
    pub reason: String,
    /// The sentence.
    pub message: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_wait_that_was_asked_for_counts() {
        let failure = |retry| Failure { reason: "x", message: String::new(), retry };
        let after = |seconds| Retry::After(Duration::from_secs(seconds));
        let done = |retries: &[Retry]| Done {
            failures: retries.iter().copied().map(failure).collect(),
            ..Done::default()
        };
        assert_eq!(done(&[]).retry(), None);
        assert_eq!(done(&[Retry::Backoff, after(7), after(60)]).retry(), Some(after(60)));
        assert_eq!(done(&[Retry::Soon, Retry::Backoff]).retry(), Some(Retry::Soon));
    }
}
