//! What goes wrong with the lease, in words, and said once: a line a second about the same trouble would
//! only hide the next one.

use std::time::Duration;

use super::Settings;
use crate::client;

/// Why one try came to nothing.
#[derive(Debug)]
pub(super) enum Failed {
    Call { verb: &'static str, error: kube::Error },
    Silent,
}

impl Failed {
    pub(super) fn to(verb: &'static str) -> impl FnOnce(kube::Error) -> Self {
        move |error| Self::Call { verb, error }
    }

    fn code(&self) -> Option<u16> {
        match self {
            Self::Call { error: kube::Error::Api(status), .. } => Some(status.code),
            _ => None,
        }
    }

    /// Whether somebody else was faster, or what we went by is gone. The next look tells.
    pub(super) fn is_outdated(&self) -> bool {
        match self {
            Self::Call { verb: "update", .. } => matches!(self.code(), Some(409 | 404)),
            _ => self.code() == Some(409),
        }
    }

    fn describe(&self, namespace: &str) -> String {
        match self {
            // Without the time that was allowed: it differs from try to try, and this text tells what is new.
            Self::Silent => "no answer from the API server".into(),
            Self::Call { verb, error: kube::Error::Api(status) } if status.code == 403 => format!(
                "not allowed to {verb} leases.coordination.k8s.io in namespace {namespace}; a Role there has to \
                 grant get, create and update: {}",
                status.message
            ),
            Self::Call { verb, error: kube::Error::Api(status) } => {
                format!("cannot {verb} it: {} ({})", status.message, status.code)
            }
            Self::Call { verb, error } => format!("cannot {verb} it: {}", client::describe(error)),
        }
    }
}

/// Says each trouble when it changes and once when it is over.
pub(super) struct Trouble {
    lease: String,
    namespace: String,
    deadline: Duration,
    lease_duration: Duration,
    /// The last failure since the last success.
    last: Option<String>,
    /// The last one that was worth a warning.
    said: Option<String>,
}

impl Trouble {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            lease: settings.name.clone(),
            namespace: settings.namespace.clone(),
            deadline: settings.renew_deadline,
            lease_duration: settings.lease_duration,
            last: None,
            said: None,
        }
    }

    pub(super) fn following(&mut self, failed: &Failed) {
        self.say(failed, || "cannot stand for leader".into());
    }

    pub(super) fn leading(&mut self, failed: &Failed, since: Duration) {
        let (since, deadline) = (since.as_secs(), self.deadline.as_secs());
        self.say(failed, || format!("lease not renewed for {since} s of {deadline} s"));
    }

    pub(super) fn releasing(&mut self, failed: &Failed) {
        let wait = self.lease_duration.as_secs();
        self.said = None;
        self.say(failed, || format!("lease not released, a successor waits for up to {wait} s"));
    }

    /// A try succeeded.
    pub(super) fn is_over(&mut self) {
        self.last = None;
        if self.said.take().is_some() {
            tracing::info!(lease = self.lease, "the lease is in reach again");
        }
    }

    /// The last trouble, for whoever has to explain the outcome.
    pub(super) fn last(&self) -> String {
        self.last.clone().unwrap_or_else(|| "this process did not get to run".into())
    }

    fn say(&mut self, failed: &Failed, meaning: impl FnOnce() -> String) {
        let what = failed.describe(&self.namespace);
        if failed.is_outdated() {
            tracing::debug!(lease = self.lease, "somebody else wrote the lease first");
        } else if self.said.as_ref() != Some(&what) {
            tracing::warn!(lease = self.lease, "{}: {what}", meaning());
            self.said = Some(what.clone());
        }
        self.last = Some(what);
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    fn refused(verb: &'static str, code: u16, message: &str) -> Failed {
        let status = Status::failure(message, "Reason").with_code(code);
        Failed::Call { verb, error: kube::Error::Api(status.boxed()) }
    }

    #[test]
    fn a_missing_permission_names_verb_and_resource() {
        let text = refused("update", 403, "leases \"op\" is forbidden").describe("coder");
        assert_eq!(
            text,
            "not allowed to update leases.coordination.k8s.io in namespace coder; a Role there has to grant get, \
             create and update: leases \"op\" is forbidden"
        );
    }

    #[test]
    fn other_troubles_are_told_with_their_cause() {
        assert_eq!(refused("get", 500, "etcd is down").describe("x"), "cannot get it: etcd is down (500)");
        let broken = std::io::Error::other("connection refused");
        let failed = Failed::Call { verb: "get", error: kube::Error::Service(broken.into()) };
        assert_eq!(failed.describe("x"), "cannot get it: connection refused");
    }

    #[test]
    fn trouble_is_said_when_it_changes() {
        let (subscriber, _, captured) = crate::logs::for_tests(false, "info");
        tracing::subscriber::with_default(subscriber, || {
            let mut trouble = Trouble::new(&Settings::new("ns", "op", "me"));
            let heard = || captured.take();
            trouble.leading(&refused("update", 500, "etcd is down"), Duration::from_secs(4));
            let line = heard();
            assert!(
                line.contains("WARN lease not renewed for 4 s of 10 s: cannot update it: etcd is down (500)"),
                "{line}"
            );
            trouble.leading(&refused("update", 500, "etcd is down"), Duration::from_secs(5));
            trouble.leading(&refused("update", 409, "conflict"), Duration::from_secs(6));
            trouble.leading(&refused("update", 500, "etcd is down"), Duration::from_secs(7));
            assert_eq!(heard(), "");
            trouble.leading(&Failed::Silent, Duration::from_secs(8));
            assert!(heard().contains("lease not renewed for 8 s of 10 s: no answer from the API server"));
            assert_eq!(trouble.last(), "no answer from the API server");
            trouble.is_over();
            assert!(heard().contains("INFO the lease is in reach again"));
            trouble.is_over();
            assert_eq!(heard(), "");
        });
    }

    #[test]
    fn a_lost_race_is_not_trouble() {
        for (verb, code, outdated) in [
            ("update", 409, true),
            ("update", 404, true),
            ("create", 409, true),
            ("create", 404, false),
            ("get", 500, false),
        ] {
            assert_eq!(refused(verb, code, "").is_outdated(), outdated, "{verb} {code}");
        }
    }
}
