//! Failures of attempts to read or write the Lease: their description, and a log that does not repeat itself. Attempts
//! fail several times a second while the API server is down; one line for each would bury everything else. That it is down
//! is told by [`Outage`], for all who call it.

use std::time::Duration;

use super::LeaseSettings;
use crate::{client, outage::Outage};

/// Why one attempt failed.
#[derive(Debug)]
pub(super) enum AttemptError {
    Call {
        verb: &'static str,
        error: kube::Error,
    },
    /// No response within the time of the attempt.
    Timeout,
}

impl AttemptError {
    pub(super) fn of(verb: &'static str) -> impl FnOnce(kube::Error) -> Self {
        move |error| Self::Call { verb, error }
    }

    fn code(&self) -> Option<u16> {
        match self {
            Self::Call { error: kube::Error::Api(status), .. } => Some(status.code),
            _ => None,
        }
    }

    /// Whether another client wrote or deleted the Lease first. The next read shows what it did.
    pub(super) fn is_conflict(&self) -> bool {
        match self {
            Self::Call { verb: "update", .. } => matches!(self.code(), Some(409 | 404)),
            _ => self.code() == Some(409),
        }
    }

    fn describe(&self, namespace: &str) -> String {
        match self {
            // The text does not state the timeout, which differs between attempts: a new text counts as a new failure.
            Self::Timeout => "no response from the API server".into(),
            Self::Call { verb, error: kube::Error::Api(status) } if status.code == 403 => format!(
                "not allowed to {verb} leases.coordination.k8s.io in namespace {namespace}; grant get, create \
                 and update there with a Role: {}",
                status.message
            ),
            Self::Call { verb, error: kube::Error::Api(status) } => {
                format!("cannot {verb} the lease: {} ({})", status.message, status.code)
            }
            Self::Call { verb, error } => format!("cannot {verb} the lease: {}", client::describe(error)),
        }
    }
}

/// Logs a failure when its text changes, and the first success after it.
pub(super) struct FailureLog {
    settings: LeaseSettings,
    outage: Outage,
    /// The last failure since the last success, conflicts included.
    last: Option<String>,
    /// The last failure that was logged as a warning.
    logged: Option<String>,
}

impl FailureLog {
    pub(super) fn new(settings: &LeaseSettings, outage: Outage) -> Self {
        Self { settings: settings.clone(), outage, last: None, logged: None }
    }

    pub(super) fn following(&mut self, error: &AttemptError) {
        let name = self.settings.name.clone();
        self.log(error, || format!("cannot compete for the lease {name}"));
    }

    pub(super) fn leading(&mut self, error: &AttemptError, since: Duration) {
        let (since, deadline) = (since.as_secs(), self.settings.renew_deadline.as_secs());
        let name = self.settings.name.clone();
        self.log(error, || format!("the lease {name} is not renewed for {since} s of {deadline} s"));
    }

    pub(super) fn releasing(&mut self, error: &AttemptError) {
        let wait = self.settings.lease_duration.as_secs();
        self.logged = None;
        let name = self.settings.name.clone();
        self.log(error, || {
            format!("the lease {name} is not released, and a successor waits for up to {wait} s")
        });
    }

    /// Records a success.
    pub(super) fn reset(&mut self) {
        self.last = None;
        if self.logged.take().is_some() {
            tracing::info!("the lease {} can be read and written again", self.settings.name);
        }
    }

    /// The last failure, as the cause of a lost lease. Without one, the process was stopped past its deadline.
    pub(super) fn last(&self) -> String {
        self.last.clone().unwrap_or_else(|| "this process did not get to run".into())
    }

    fn log(&mut self, error: &AttemptError, consequence: impl FnOnce() -> String) {
        let text = error.describe(&self.settings.namespace);
        if error.is_conflict() {
            tracing::debug!("another client wrote the lease {} first", self.settings.name);
        } else if self.outage.is_recent() {
            tracing::debug!("{}: {text}", consequence());
        } else if self.logged.as_ref() != Some(&text) {
            tracing::warn!("{}: {text}", consequence());
            self.logged = Some(text.clone());
        }
        self.last = Some(text);
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    fn refused(verb: &'static str, code: u16, message: &str) -> AttemptError {
        let status = Status::failure(message, "Reason").with_code(code);
        AttemptError::Call { verb, error: kube::Error::Api(status.boxed()) }
    }

    #[test]
    fn a_missing_permission_names_verb_and_resource() {
        let text = refused("update", 403, "leases \"op\" is forbidden").describe("coder");
        assert_eq!(
            text,
            "not allowed to update leases.coordination.k8s.io in namespace coder; grant get, create and update \
             there with a Role: leases \"op\" is forbidden"
        );
    }

    #[test]
    fn other_failures_are_described_with_their_cause() {
        assert_eq!(
            refused("get", 500, "etcd is down").describe("x"),
            "cannot get the lease: etcd is down (500)"
        );
        let broken = std::io::Error::other("connection refused");
        let error = AttemptError::Call { verb: "get", error: kube::Error::Service(broken.into()) };
        assert_eq!(error.describe("x"), "cannot get the lease: connection refused");
    }

    #[test]
    fn a_failure_is_logged_when_it_changes() {
        let (subscriber, _, captured) = crate::logs::tests::subscriber(false, "info");
        tracing::subscriber::with_default(subscriber, || {
            let outage = Outage::default();
            let mut failures = FailureLog::new(&LeaseSettings::new("ns", "op", "me"), outage.clone());
            let logged = || captured.take();
            failures.leading(&refused("update", 500, "etcd is down"), Duration::from_secs(4));
            let line = logged();
            assert!(
                line.contains(
                    "WARN the lease op is not renewed for 4 s of 10 s: cannot update the lease: etcd is down (500)"
                ),
                "{line}"
            );
            failures.leading(&refused("update", 500, "etcd is down"), Duration::from_secs(5));
            failures.leading(&refused("update", 409, "conflict"), Duration::from_secs(6));
            failures.leading(&refused("update", 500, "etcd is down"), Duration::from_secs(7));
            assert_eq!(logged(), "");
            failures.leading(&AttemptError::Timeout, Duration::from_secs(8));
            assert!(
                logged()
                    .contains("the lease op is not renewed for 8 s of 10 s: no response from the API server")
            );
            assert_eq!(failures.last(), "no response from the API server");
            failures.reset();
            assert!(logged().contains("INFO the lease op can be read and written again"));
            failures.reset();
            assert_eq!(logged(), "");

            // An outage has its own line; the lease loop adds none.
            outage.unanswered(tokio::time::Instant::now(), || "connection refused".into());
            logged();
            failures.leading(&AttemptError::Timeout, Duration::from_secs(2));
            failures.following(&refused("get", 503, "not there"));
            failures.following(&refused("get", 403, "the rules are not known yet"));
            failures.reset();
            assert_eq!(logged(), "");
        });
    }

    #[test]
    fn a_lost_race_is_a_conflict() {
        for (verb, code, conflict) in [
            ("update", 409, true),
            ("update", 404, true),
            ("create", 409, true),
            ("create", 404, false),
            ("get", 500, false),
        ] {
            assert_eq!(refused(verb, code, "").is_conflict(), conflict, "{verb} {code}");
        }
    }
}
