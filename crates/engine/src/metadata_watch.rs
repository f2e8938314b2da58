//! A watch that reports which objects of others change, and stores none of them.
//!
//! It asks for metadata alone, and the list that gives it a version to start from names no object: ten
//! thousand Secrets cost as much memory and traffic as none. In return it does not know the state before it started.
//! Whenever it starts without a version to resume from it reports a gap, and the caller reads the objects it needs.

use std::{borrow::Cow, fmt::Debug, sync::Arc};

use coder_k8s_core::outcome::Retry;
use futures::StreamExt;
use kube::{
    Api, Resource, ResourceExt,
    api::{ListParams, PartialObjectMeta, WatchEvent, WatchParams},
};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::{
    backoff::{Backoff, jitter},
    client,
    health::ReadyCheck,
    intervals::{
        WATCH_IDLE_TIMEOUT, WATCH_REOPEN_DELAY, WATCH_RETRY_BASE, WATCH_RETRY_MAX,
        WATCH_SERVER_TIMEOUT_SECONDS,
    },
    metrics::Metrics,
    outage::Outage,
};

/// Selects nothing: no object can have this name.
const NO_OBJECT: &str = "metadata.name=-";

/// What a [`MetadataWatch`] reports.
#[derive(Debug)]
pub enum MetadataEvent<'a> {
    /// An object was created, updated or deleted; the event does not say which.
    Changed {
        /// Empty for a cluster-scoped kind.
        namespace: &'a str,
        /// The object's `metadata.name`.
        name: &'a str,
        /// What is read at this version shows the change. None: unknown.
        version: Option<&'a str>,
    },
    /// Earlier changes may have been missed. Later ones are reported, unless the API server refuses the watch: then this is
    /// the only event, so that the caller reads what it needs at least once.
    Gap {
        /// What is read at this version shows all that may have been missed. None: unknown.
        version: Option<&'a str>,
    },
}

/// A watch on the metadata of one kind.
pub struct MetadataWatch<K> {
    /// The kind and the namespaces to watch.
    pub api: Api<PartialObjectMeta<K>>,
    /// Passes when the watch has started.
    pub synced: ReadyCheck,
    /// Counts the restarts after failures.
    pub metrics: Arc<Metrics>,
    /// Says whether the API server is away, which is no failure of this watch. That of the client.
    pub outage: Outage,
}

impl<K> MetadataWatch<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    /// Watches until the future is dropped, and calls `notify` for every event.
    pub async fn run(self, notify: impl Fn(MetadataEvent<'_>) + Send) {
        let mut failures =
            WatchFailures::new(K::plural(&()), None, &self.synced, &self.metrics, &self.outage);
        loop {
            let Err(error) = self.watch(&mut failures, &notify).await else {
                sleep(WATCH_REOPEN_DELAY).await;
                continue;
            };
            let forbidden = matches!(&error, kube::Error::Api(status) if status.code == 403);
            failures.failed(client::describe(&error), forbidden, client::may_pass(&error));
            if forbidden && failures.in_a_row == 1 {
                notify(MetadataEvent::Gap { version: None });
            }
            let backoff = Backoff { base: WATCH_RETRY_BASE, max: WATCH_RETRY_MAX };
            let retry_after = match client::blocker("watch", &error).retry {
                Retry::After(least) => Some(least),
                Retry::Soon | Retry::Backoff | Retry::OnChange => None,
            };
            sleep(backoff.delay(failures.in_a_row, retry_after, jitter())).await;
        }
    }

    /// Watches from the current version on. Returns `Ok` when the server no longer has the history since the last
    /// version seen (410), so that the caller starts over.
    async fn watch(
        &self,
        failures: &mut WatchFailures<'_>,
        notify: &impl Fn(MetadataEvent<'_>),
    ) -> kube::Result<()> {
        // The list is only there for its version, so that it asks for no object. That version may be older than the last write,
        // which costs events and misses none; the newest one would have to wait for etcd.
        let list = self.api.list(&ListParams::default().match_any().fields(NO_OBJECT)).await?;
        let mut version = list.metadata.resource_version.unwrap_or_default();
        let params = WatchParams::default().timeout(WATCH_SERVER_TIMEOUT_SECONDS);
        // Before the watch is open: it begins at this version, so that it reports what changes after the caller has read.
        notify(MetadataEvent::Gap {
            version: Some(&version).filter(|version| !version.is_empty()).map(String::as_str),
        });
        loop {
            let opened = Instant::now();
            let mut events = self.api.watch(&params, &version).await?.boxed();
            self.synced.pass();
            loop {
                let event = timeout(WATCH_IDLE_TIMEOUT, events.next()).await;
                // Opening a watch succeeds even where reading from it fails: only an event proves that it works, be it
                // a bookmark.
                if let Ok(Some(Ok(_))) = event {
                    failures.works();
                }
                match event {
                    Ok(Some(Ok(
                        WatchEvent::Added(object)
                        | WatchEvent::Modified(object)
                        | WatchEvent::Deleted(object),
                    ))) => {
                        let seen = object.resource_version();
                        let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
                        notify(MetadataEvent::Changed {
                            namespace: &namespace,
                            name: &name,
                            version: seen.as_deref(),
                        });
                        version = seen.unwrap_or(version);
                    }
                    Ok(Some(Ok(WatchEvent::Bookmark(mark)))) => version = mark.metadata.resource_version,
                    Ok(Some(Ok(WatchEvent::Error(status)))) if status.code == 410 => return Ok(()),
                    Ok(Some(Ok(WatchEvent::Error(status)))) => return Err(kube::Error::Api(status)),
                    Ok(Some(Err(error))) => return Err(error),
                    // The server ended the watch, or the connection is silent: resume from the last version seen.
                    Ok(None) | Err(_) => break,
                }
            }
            // A server that ends every watch at once must not be called in a tight loop.
            sleep_until(opened + WATCH_REOPEN_DELAY).await;
        }
    }
}

/// How many attempts of a watch in a row may break off before that is its own failure, and not one of the API server that
/// another call is about to notice.
const MAX_BROKEN: u32 = 3;

/// The failures in a row of one watch. Logs a failure when its text changes, and the first success after it. An API server
/// that is away fails every watch: [`Outage`] tells of that.
pub(crate) struct WatchFailures<'a> {
    resource: Cow<'static, str>,
    /// The namespace that the watch is limited to, if any.
    namespace: Option<&'a str>,
    synced: &'a ReadyCheck,
    metrics: &'a Metrics,
    outage: &'a Outage,
    in_a_row: u32,
    /// Attempts in a row that broke off while the API server answered others.
    broken: u32,
    last: Option<String>,
}

impl<'a> WatchFailures<'a> {
    pub(crate) fn new(
        resource: Cow<'static, str>,
        namespace: Option<&'a str>,
        synced: &'a ReadyCheck,
        metrics: &'a Metrics,
        outage: &'a Outage,
    ) -> Self {
        Self { resource, namespace, synced, metrics, outage, in_a_row: 0, broken: 0, last: None }
    }

    /// Counts a failure. `may_pass`: the API server said nothing, or asks to retry later.
    pub(crate) fn failed(&mut self, why: String, forbidden: bool, may_pass: bool) {
        self.in_a_row += 1;
        self.metrics.watch_restarts(&self.resource);
        self.synced.note(&why, forbidden);
        let is_outage = self.outage.is_recent();
        self.broken = if may_pass && !is_outage { self.broken + 1 } else { 0 };
        let is_told = is_outage || (may_pass && self.broken < MAX_BROKEN);
        let Self { resource, namespace, .. } = self;
        if is_told {
            tracing::debug!(%resource, namespace, "the watch failed and starts again: {why}");
        } else if self.last.as_ref() != Some(&why) {
            let place = namespace.map_or_else(String::new, |namespace| format!(" in namespace {namespace}"));
            tracing::warn!("cannot watch {resource}{place}, and the operator keeps trying: {why}");
            self.last = Some(why);
        }
    }

    /// Counts a watch that begins anew because the server no longer has the history since the last version. That is no failure.
    pub(crate) fn expired(&self) {
        self.metrics.watch_restarts(&self.resource);
        tracing::debug!(resource = %self.resource, "the watch expired; everything is listed anew");
    }

    pub(crate) fn works(&mut self) {
        self.in_a_row = 0;
        self.broken = 0;
        if self.last.take().is_some() {
            let place =
                self.namespace.map_or_else(String::new, |namespace| format!(" in namespace {namespace}"));
            tracing::info!("the watch of {}{place} works again", self.resource);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::Readiness;

    #[tokio::test(start_paused = true)]
    async fn a_watch_tells_of_its_own_failures_and_not_of_an_outage() {
        let (subscriber, _, captured) = crate::logs::tests::subscriber(false, "info");
        let _logging = tracing::subscriber::set_default(subscriber);
        let (check, metrics, outage) =
            (Readiness::default().ready_check("watch secrets"), Metrics::new(), Outage::default());
        let mut watch = WatchFailures::new("secrets".into(), Some("team"), &check, &metrics, &outage);

        // A connection that breaks, and then a server that is gone.
        watch.failed("broken pipe".into(), false, true);
        assert_eq!(captured.take(), "");
        outage.unanswered(Instant::now(), || "connection refused".into());
        assert_eq!(captured.take().lines().count(), 1);
        for _ in 0..50 {
            watch.failed("connection refused".into(), false, true);
        }
        outage.answered();
        assert_eq!(captured.take().lines().count(), 1);
        // It is back, and knows its rules a moment later.
        watch.failed("forbidden".into(), true, false);
        watch.works();
        assert_eq!(captured.take(), "");

        tokio::time::advance(std::time::Duration::from_mins(1)).await;
        watch.failed("forbidden".into(), true, false);
        watch.failed("forbidden".into(), true, false);
        let line = captured.take();
        assert!(
            line.ends_with(
                "WARN cannot watch secrets in namespace team, and the operator keeps trying: forbidden\n"
            ),
            "{line}"
        );
        watch.works();
        assert!(captured.take().ends_with("INFO the watch of secrets in namespace team works again\n"));

        // Only this watch is cut off, again and again.
        for _ in 0..10 {
            watch.failed("broken pipe".into(), false, true);
        }
        assert_eq!(captured.take().lines().count(), 1);
    }
}
