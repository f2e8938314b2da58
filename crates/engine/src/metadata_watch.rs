//! A watch that reports which objects of others change, and stores none of them.
//!
//! It asks for metadata alone, and the list that gives it a version to start from is limited to one object: ten
//! thousand Secrets cost as much memory and traffic as one. In return it does not know the state before it started.
//! Whenever it starts without a version to resume from it reports a gap, and the caller reads the objects it needs.

use std::{fmt::Debug, sync::Arc, time::Duration};

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
};

/// What a [`MetadataWatch`] reports.
#[derive(Debug)]
pub enum MetadataEvent<'a> {
    /// An object was created, updated or deleted; the event does not say which.
    Changed {
        /// Empty for a cluster-scoped kind.
        namespace: &'a str,
        /// The object's `metadata.name`.
        name: &'a str,
    },
    /// The watch has started and reports every change from now on. Earlier changes may have been missed.
    Gap,
}

/// A watch on the metadata of one kind.
pub struct MetadataWatch<K> {
    /// The kind and the namespaces to watch.
    pub api: Api<PartialObjectMeta<K>>,
    /// Passes when the watch has started.
    pub synced: ReadyCheck,
    /// Counts the restarts after failures.
    pub metrics: Arc<Metrics>,
}

impl<K> MetadataWatch<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    /// Watches until the future is dropped, and calls `notify` for every event.
    pub async fn run(self, notify: impl Fn(MetadataEvent<'_>) + Send) {
        let mut failures =
            WatchFailures { resource: K::plural(&()).into_owned(), in_a_row: 0, last: String::new() };
        loop {
            let Err(error) = self.watch(&mut failures, &notify).await else {
                sleep(WATCH_REOPEN_DELAY).await;
                continue;
            };
            self.metrics.watch_restarts(&failures.resource);
            let why = client::describe(&error);
            self.synced.note(&why, matches!(&error, kube::Error::Api(status) if status.code == 403));
            sleep(failures.delay_after(why, &error)).await;
        }
    }

    /// Watches from the current version on. Returns `Ok` when the server no longer has the history since the last
    /// version seen (410), so that the caller starts over.
    async fn watch(
        &self,
        failures: &mut WatchFailures,
        notify: &impl Fn(MetadataEvent<'_>),
    ) -> kube::Result<()> {
        // The list is only there for its version, so that one object is enough.
        let list = self.api.list(&ListParams::default().limit(1)).await?;
        let mut version = list.metadata.resource_version.unwrap_or_default();
        let params = WatchParams::default().timeout(WATCH_SERVER_TIMEOUT_SECONDS);
        let mut started = false;
        loop {
            let opened = Instant::now();
            let mut events = self.api.watch(&params, &version).await?.boxed();
            if !started {
                started = true;
                self.synced.pass();
                notify(MetadataEvent::Gap);
            }
            loop {
                let event = timeout(WATCH_IDLE_TIMEOUT, events.next()).await;
                // Opening a watch succeeds even where reading from it fails: only an event proves that it works, be it
                // a bookmark.
                if let Ok(Some(Ok(_))) = event {
                    failures.reset();
                }
                match event {
                    Ok(Some(Ok(
                        WatchEvent::Added(object)
                        | WatchEvent::Modified(object)
                        | WatchEvent::Deleted(object),
                    ))) => {
                        version = object.resource_version().unwrap_or(version);
                        let namespace = object.namespace().unwrap_or_default();
                        notify(MetadataEvent::Changed { namespace: &namespace, name: &object.name_any() });
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

/// The failures in a row of one watch. Logs a failure when its text changes, and the first success after it.
struct WatchFailures {
    resource: String,
    in_a_row: u32,
    last: String,
}

impl WatchFailures {
    fn delay_after(&mut self, why: String, error: &kube::Error) -> Duration {
        self.in_a_row += 1;
        if self.last != why {
            tracing::warn!(resource = self.resource, "watch failed, retrying: {why}");
            self.last = why;
        }
        let backoff = Backoff { base: WATCH_RETRY_BASE, max: WATCH_RETRY_MAX };
        let retry_after = match client::blocker("watch", error).retry {
            Retry::After(least) => Some(least),
            Retry::Soon | Retry::Backoff | Retry::OnChange => None,
        };
        backoff.delay(self.in_a_row, retry_after, jitter())
    }

    fn reset(&mut self) {
        if !self.last.is_empty() {
            tracing::info!(resource = self.resource, "watch works again");
        }
        (self.in_a_row, self.last) = (0, String::new());
    }
}
