//! A watch that fills a [`Cache`] with the objects of one kind and reports their changes.
//!
//! An object that does not parse is left out of the cache, named in the log and counted in a metric; the watch goes on
//! with the others. A watch that fails is retried with backoff; until its first success, the readiness of the process
//! says why. After a reconnect only objects whose version changed are reported.
//!
//! The objects that exist come first in the watch itself, one at a time, in the state of the API server's cache. That state may
//! be older than the last write, as any cached object may be. In return nothing waits for etcd, and no page is held in memory.
//! An API server that cannot stream them is asked for pages, for a while.

use std::{collections::HashSet, fmt::Debug, sync::Arc, time::Duration};

use futures::{StreamExt, TryStreamExt, stream::BoxStream};
use kube::{
    Api, Resource, ResourceExt,
    runtime::{WatchStreamExt, utils::Backoff, watcher},
};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout};

use crate::{
    cache::{Cache, ObjectKey},
    client,
    health::ReadyCheck,
    intervals::{PAGED_LIST_PERIOD, STREAMED_LIST_IDLE_TIMEOUT},
    metadata_watch::WatchFailures,
    metrics::Metrics,
    outage::Outage,
    parsed_object::ParsedObject,
};

/// How many objects a list asks for at a time. While a page is parsed it takes several times the memory of its JSON.
const LIST_PAGE_OBJECTS: u32 = 100;

/// How the API server is asked for the objects that exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InitialList {
    /// As the first events of the watch.
    Streamed,
    /// By lists, which an API server needs whose feature gate `WatchList` is off: by default that of Kubernetes 1.33.
    Paged {
        /// When the API server refused to stream. It may be another one by now.
        since: Instant,
    },
}

type Events<K> = BoxStream<'static, watcher::Result<watcher::Event<ParsedObject<K>>>>;

/// What an [`ObjectWatch`] reports. The cache reflects the event before it is reported.
#[derive(Debug)]
pub enum ObjectEvent<'a, K> {
    /// The object was created, or its resourceVersion changed.
    Updated {
        /// The cached object before; `None` if the cache had none.
        before: Option<&'a K>,
        /// The object as it is cached now.
        now: &'a K,
        /// Whether it came with everything that exists: the watch may have missed versions before this one.
        is_listed: bool,
    },
    /// The object is gone, no longer parses, or no longer belongs into the cache. Holds its last cached state.
    Deleted(&'a K),
}

/// A watch on one kind.
pub struct ObjectWatch<K> {
    /// The kind and the namespaces to watch.
    pub api: Api<ParsedObject<K>>,
    /// Selectors of the objects to watch.
    pub config: watcher::Config,
    /// The namespace that `api` is limited to, if any. Watches of several namespaces may share a cache.
    pub namespace: Option<String>,
    /// The cache that this watch fills.
    pub cache: Cache<K>,
    /// Passes after the first complete list.
    pub synced: ReadyCheck,
    /// Counts restarts after failures, and objects that do not parse.
    pub metrics: Arc<Metrics>,
    /// Says whether the API server is away, which is no failure of this watch. That of the client.
    pub outage: Outage,
}

impl<K> ObjectWatch<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    /// Watches until the future is dropped, and calls `notify` for every change.
    pub async fn run(&self, notify: impl Fn(ObjectEvent<'_, K>) + Send) {
        let mut initial = InitialList::Streamed;
        let (mut events, mut listed) = (self.events(initial), HashSet::new());
        let (mut is_listing, mut is_interrupted) = (false, false);
        let namespace = self.namespace.as_deref();
        let mut failures =
            WatchFailures::new(K::plural(&()), namespace, &self.synced, &self.metrics, &self.outage);
        loop {
            if let InitialList::Paged { since } = initial
                && is_interrupted
                && since.elapsed() >= PAGED_LIST_PERIOD
            {
                initial = InitialList::Streamed;
                events = self.events(initial);
            }
            // A page has the deadline of its call; between the events of a watch there may be any time.
            let next = if is_listing && initial == InitialList::Streamed {
                timeout(STREAMED_LIST_IDLE_TIMEOUT, events.try_next()).await
            } else {
                Ok(events.try_next().await)
            };
            let Ok(next) = next else {
                let seconds = STREAMED_LIST_IDLE_TIMEOUT.as_secs();
                let why = format!("the API server sent nothing for {seconds} s of the objects that exist");
                failures.failed(why, false, true);
                (events, is_listing) = (self.events(initial), false);
                continue;
            };
            is_listing = matches!(next, Ok(Some(watcher::Event::Init | watcher::Event::InitApply(_))));
            is_interrupted = next.is_err();
            match next {
                Ok(Some(event)) => {
                    // `Init` only announces a list; it proves nothing.
                    if !matches!(event, watcher::Event::Init) {
                        failures.works();
                    }
                    self.handle(event, &mut listed, &notify);
                }
                Ok(None) => return,
                // The history since the last version is gone, as after a pause: the watcher begins anew.
                Err(error) if is_expired(&error) => failures.expired(),
                Err(error) if initial == InitialList::Streamed && cannot_stream(&error) => {
                    tracing::debug!(resource = %K::plural(&()), "listing in pages: {}", explain(&error));
                    initial = InitialList::Paged { since: Instant::now() };
                    events = self.events(initial);
                }
                Err(error) => failures.failed(explain(&error), is_forbidden(&error), may_pass(&error)),
            }
        }
    }

    /// Everything that exists, and then every change.
    fn events(&self, initial: InitialList) -> Events<K> {
        let config = self.config.clone();
        let config = match initial {
            InitialList::Streamed => config.streaming_lists(),
            InitialList::Paged { .. } => config.page_size(LIST_PAGE_OBJECTS),
        };
        watcher(self.api.clone(), config).backoff(WithoutReset::default()).boxed()
    }

    /// Removes every object from the cache and reports each as deleted. For a kind whose CRD was uninstalled.
    pub fn clear(&self, notify: impl Fn(ObjectEvent<'_, K>)) {
        self.keep_only(&HashSet::new(), &notify);
    }

    fn handle(
        &self,
        event: watcher::Event<ParsedObject<K>>,
        listed: &mut HashSet<ObjectKey>,
        notify: &impl Fn(ObjectEvent<'_, K>),
    ) {
        match event {
            watcher::Event::Init => listed.clear(),
            watcher::Event::InitApply(object) => {
                listed.insert(ObjectKey::of(self.cache.kind(), &object));
                self.store(object, true, notify);
            }
            watcher::Event::InitDone => {
                self.keep_only(listed, notify);
                listed.clear();
                self.synced.pass();
            }
            watcher::Event::Apply(object) => self.store(object, false, notify),
            watcher::Event::Delete(object) => self.remove(&ObjectKey::of(self.cache.kind(), &object), notify),
        }
    }

    fn store(&self, object: ParsedObject<K>, is_listed: bool, notify: &impl Fn(ObjectEvent<'_, K>)) {
        let key = ObjectKey::of(self.cache.kind(), &object);
        match object.0 {
            Ok(object) if !self.cache.keeps(&object) => {
                self.cache.clear_unreadable(&key);
                self.evict(&key, notify);
            }
            Ok(object) => {
                if self.cache.clear_unreadable(&key) {
                    tracing::info!("{key} can be parsed again");
                }
                let (before, now) = self.cache.insert(object);
                if before.as_ref().is_none_or(|before| before.resource_version() != now.resource_version()) {
                    notify(ObjectEvent::Updated { before: before.as_deref(), now: &now, is_listed });
                }
            }
            Err(invalid) => {
                let why = without_value(&invalid.error);
                if self.cache.mark_unreadable(&key, &why) {
                    tracing::error!("{key} cannot be parsed, and is ignored until it is corrected: {why}");
                }
                self.evict(&key, notify);
            }
        }
        self.metrics.unparsable(self.cache.kind(), self.cache.unreadable());
    }

    fn remove(&self, key: &ObjectKey, notify: &impl Fn(ObjectEvent<'_, K>)) {
        self.cache.clear_unreadable(key);
        self.metrics.unparsable(self.cache.kind(), self.cache.unreadable());
        self.evict(key, notify);
    }

    fn evict(&self, key: &ObjectKey, notify: &impl Fn(ObjectEvent<'_, K>)) {
        if let Some(object) = self.cache.remove(key) {
            notify(ObjectEvent::Deleted(&object));
        }
    }

    fn keep_only(&self, listed: &HashSet<ObjectKey>, notify: &impl Fn(ObjectEvent<'_, K>)) {
        for key in self.cache.keys_except(self.namespace.as_deref(), listed) {
            self.remove(&key, notify);
        }
    }
}

/// The default backoff of kube's watcher, without resets by the stream: the stream resets it at every `Init`, which
/// comes before each attempt, so that it would never grow. Its own timer resets it after two minutes without a failure.
#[derive(Default)]
struct WithoutReset(watcher::DefaultBackoff);

impl Iterator for WithoutReset {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.0.next()
    }
}

impl Backoff for WithoutReset {
    fn reset(&mut self) {}
}

fn is_expired(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::WatchStartFailed(kube::Error::Api(status)) | watcher::Error::WatchError(status) => {
            status.code == 410
        }
        _ => false,
    }
}

fn may_pass(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(cause)
        | watcher::Error::WatchStartFailed(cause)
        | watcher::Error::WatchFailed(cause) => client::may_pass(cause),
        _ => false,
    }
}

fn is_forbidden(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => status.code == 403,
        _ => false,
    }
}

/// Whether the API server cannot stream a list: not at all (422), or not yet (429), as that of a CRD that is new, whose cache
/// is still empty. Both can be listed.
fn cannot_stream(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::WatchStartFailed(kube::Error::Api(status)) if matches!(status.code, 422 | 429))
}

/// Describes a watch error in one sentence. A message of the API server already names verb and resource.
fn explain(error: &watcher::Error) -> String {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
            if status.code == 404 =>
        {
            "the API server does not serve this resource; check that its CRD is installed".to_owned()
        }
        watcher::Error::WatchError(status) => status.message.clone(),
        other => client::describe(other),
    }
}

/// Removes the offending value from a parse error: it may be a secret that was put into the wrong field.
fn without_value(error: &str) -> String {
    let quotes =
        ["invalid type", "invalid value", "unknown variant"].iter().any(|start| error.contains(start));
    match error.rfind("expected") {
        Some(at) if quotes => error.get(at..).unwrap_or_default().to_owned(),
        _ if quotes => "a value has the wrong type".to_owned(),
        _ => error.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parse_error_does_not_quote_the_value() {
        let error = serde_json::from_str::<Vec<i32>>(r#"["hunter2"]"#).unwrap_err().to_string();
        assert!(error.contains("hunter2"));
        assert_eq!(without_value(&error), "expected i32 at line 1 column 10");
        assert_eq!(without_value("missing field `name`"), "missing field `name`");
    }
}
