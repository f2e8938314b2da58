//! Noticing that objects of others change, without keeping any of them.
//!
//! Only metadata is asked for, and only from now on: the list that starts the watch is cut at one object. So
//! ten thousand Secrets cost what one costs. When the watch stands, at first and after every gap, the caller is told
//! to look for itself at what matters.

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
    failure,
    health::ReadyCheck,
    metrics::Metrics,
};

/// Seconds after which the server ends a watch, so that it is made anew.
const SERVER_LIMIT: u32 = 290;
/// How long a silent watch is trusted.
const GRACE: Duration = Duration::from_mins(5);
/// The least time from one watch to the next.
const SHORTEST: Duration = Duration::from_secs(1);

/// What a tripwire tells.
#[derive(Debug)]
pub enum MetadataEvent<'a> {
    /// This object was created, changed or deleted.
    Touched {
        /// Its namespace.
        namespace: &'a str,
        /// Its name.
        name: &'a str,
    },
    /// The watch stands from now on; earlier changes may have been missed. Look at everything that matters.
    Gap,
}

/// One tripwire.
pub struct MetadataWatch<K> {
    /// Where the objects are.
    pub api: Api<PartialObjectMeta<K>>,
    /// Passes when the watch stands.
    pub synced: ReadyCheck,
    /// Counts restarts.
    pub metrics: Arc<Metrics>,
}

impl<K> MetadataWatch<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    /// Watches until it is dropped.
    pub async fn run(self, tell: impl Fn(MetadataEvent<'_>) + Send) {
        let mut trouble = Trouble { resource: K::plural(&()).into_owned(), failures: 0, last: String::new() };
        loop {
            let Err(error) = self.watch(&mut trouble, &tell).await else {
                sleep(SHORTEST).await;
                continue;
            };
            self.metrics.watch_restarts(&trouble.resource);
            let why = crate::client::describe(&error);
            match &error {
                kube::Error::Api(status) if status.code == 403 => self.synced.refuse(&why),
                _ => self.synced.note(&why),
            }
            sleep(trouble.delay_after(why, &error)).await;
        }
    }

    /// Watches from now on. Ends well when the server can no longer tell what happened since then.
    async fn watch(&self, trouble: &mut Trouble, tell: &impl Fn(MetadataEvent<'_>)) -> kube::Result<()> {
        let mut version = self.now().await?;
        let params = WatchParams::default().timeout(SERVER_LIMIT);
        let mut stands = false;
        loop {
            let opened = Instant::now();
            let mut events = self.api.watch(&params, &version).await?.boxed();
            if !stands {
                stands = true;
                self.synced.pass();
                tell(MetadataEvent::Gap);
            }
            loop {
                let event = timeout(GRACE, events.next()).await;
                // Only a watch that brings something, be it a bookmark, is known to work.
                if let Ok(Some(Ok(_))) = event {
                    trouble.is_over();
                }
                match event {
                    Ok(Some(Ok(
                        WatchEvent::Added(object)
                        | WatchEvent::Modified(object)
                        | WatchEvent::Deleted(object),
                    ))) => {
                        version = object.resource_version().unwrap_or(version);
                        let namespace = object.namespace().unwrap_or_default();
                        tell(MetadataEvent::Touched { namespace: &namespace, name: &object.name_any() });
                    }
                    Ok(Some(Ok(WatchEvent::Bookmark(mark)))) => version = mark.metadata.resource_version,
                    Ok(Some(Ok(WatchEvent::Error(status)))) if status.code == 410 => return Ok(()),
                    Ok(Some(Ok(WatchEvent::Error(status)))) => return Err(kube::Error::Api(status)),
                    Ok(Some(Err(error))) => return Err(error),
                    // The server ended the watch, or went silent: go on from the last known version.
                    Ok(None) | Err(_) => break,
                }
            }
            // A server that ends every watch at once is not asked again at once.
            sleep_until(opened + SHORTEST).await;
        }
    }

    async fn now(&self) -> kube::Result<String> {
        let list = self.api.list(&ListParams::default().limit(1)).await?;
        Ok(list.metadata.resource_version.unwrap_or_default())
    }
}

/// The failures in a row, said when they change and when they are over.
struct Trouble {
    resource: String,
    failures: u32,
    last: String,
}

impl Trouble {
    fn delay_after(&mut self, why: String, error: &kube::Error) -> Duration {
        self.failures += 1;
        if self.last != why {
            tracing::warn!(resource = self.resource, "watch failed, trying again: {why}");
            self.last = why;
        }
        let backoff = Backoff { base: Duration::from_millis(800), cap: Duration::from_secs(30) };
        let asked = match failure::from_kube("watch", error).retry {
            Retry::After(asked) => Some(asked),
            Retry::Soon | Retry::Backoff | Retry::OnChange => None,
        };
        backoff.delay(self.failures, asked, jitter())
    }

    fn is_over(&mut self) {
        if !self.last.is_empty() {
            tracing::info!(resource = self.resource, "watch works again");
        }
        (self.failures, self.last) = (0, String::new());
    }
}
