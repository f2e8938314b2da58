//! Noticing that objects of others change, without keeping any of them.
//!
//! Only metadata is asked for, and only from now on: the list that starts the watch is cut at one object. So
//! ten thousand Secrets cost what one costs. After a gap, when changes may have been missed, the caller is told so.

use std::{fmt::Debug, sync::Arc, time::Duration};

use futures::StreamExt;
use kube::{
    Api, Resource, ResourceExt,
    api::{ListParams, PartialObjectMeta, WatchEvent, WatchParams},
};
use serde::de::DeserializeOwned;
use tokio::time::{sleep, timeout};

use crate::{
    backoff::{Backoff, jitter},
    health::Gate,
    metrics::Metrics,
};

/// Seconds after which the server ends a watch, so that it is made anew.
const SERVER_LIMIT: u32 = 290;
/// How long a silent watch is trusted beyond that.
const GRACE: Duration = Duration::from_mins(5);

/// What a tripwire tells.
#[derive(Debug)]
pub enum Tripped<'a> {
    /// This object was created, changed or deleted.
    Touched {
        /// Its namespace.
        namespace: &'a str,
        /// Its name.
        name: &'a str,
    },
    /// Changes may have been missed: look at everything that matters.
    Gap,
}

/// One tripwire.
pub struct Tripwire<K> {
    /// Where the objects are.
    pub api: Api<PartialObjectMeta<K>>,
    /// Passes when the watch stands.
    pub synced: Gate,
    /// Counts restarts.
    pub metrics: Arc<Metrics>,
}

impl<K> Tripwire<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    /// Watches until it is dropped.
    pub async fn run(self, tell: impl Fn(Tripped<'_>) + Send) {
        let (mut failures, mut started) = (0, false);
        let mut trouble = String::new();
        let resource = K::plural(&());
        loop {
            let ended = async {
                let version = self.now().await?;
                self.synced.pass();
                if started {
                    tell(Tripped::Gap);
                }
                started = true;
                if !trouble.is_empty() {
                    tracing::info!(%resource, "watch works again");
                    trouble.clear();
                }
                failures = 0;
                self.watch(version, &tell).await
            };
            match ended.await {
                // The server's history does not reach back far enough: start over from now.
                Ok(()) => {}
                Err(error) => {
                    self.metrics.watch_restarts(&resource);
                    failures += 1;
                    let why = crate::client::describe(&error);
                    self.synced.note(&why);
                    if trouble != why {
                        tracing::warn!(%resource, "watch failed, trying again: {why}");
                        trouble = why;
                    }
                    let backoff = Backoff { base: Duration::from_millis(800), cap: Duration::from_secs(30) };
                    sleep(backoff.delay(failures, None, jitter())).await;
                }
            }
        }
    }

    async fn now(&self) -> kube::Result<String> {
        let list = self.api.list(&ListParams::default().limit(1)).await?;
        Ok(list.metadata.resource_version.unwrap_or_default())
    }

    /// Watches from `version` on. Ends well when the server can no longer tell what happened since then.
    async fn watch(&self, mut version: String, tell: &impl Fn(Tripped<'_>)) -> kube::Result<()> {
        let params = WatchParams::default().timeout(SERVER_LIMIT);
        loop {
            let mut events = self.api.watch(&params, &version).await?.boxed();
            loop {
                match timeout(GRACE, events.next()).await {
                    Ok(Some(Ok(
                        WatchEvent::Added(object)
                        | WatchEvent::Modified(object)
                        | WatchEvent::Deleted(object),
                    ))) => {
                        version = object.resource_version().unwrap_or(version);
                        let namespace = object.namespace().unwrap_or_default();
                        tell(Tripped::Touched { namespace: &namespace, name: &object.name_any() });
                    }
                    Ok(Some(Ok(WatchEvent::Bookmark(mark)))) => version = mark.metadata.resource_version,
                    Ok(Some(Ok(WatchEvent::Error(status)))) if status.code == 410 => return Ok(()),
                    Ok(Some(Ok(WatchEvent::Error(status)))) => return Err(kube::Error::Api(status)),
                    Ok(Some(Err(error))) => return Err(error),
                    // The server ended the watch, or went silent: go on from the last known version.
                    Ok(None) | Err(_) => break,
                }
            }
        }
    }
}
