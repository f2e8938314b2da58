//! Following the objects of one kind into a cache.
//!
//! An object that does not parse is named in a log line and in a metric and is otherwise left out: it never
//! hides the others. A watch that fails is retried with backoff; until its first success the readiness of the
//! process says why. After a gap only what really changed is reported.

use std::{collections::HashSet, fmt::Debug, sync::Arc, time::Duration};

use futures::{StreamExt, TryStreamExt};
use kube::{
    Api, Resource, ResourceExt,
    core::DeserializeGuard,
    runtime::{WatchStreamExt, utils::Backoff, watcher},
};
use serde::de::DeserializeOwned;

use crate::{cache::Cache, health::ReadyCheck, key::Key, metrics::Metrics};

/// What happened to an object.
#[derive(Debug)]
pub enum Change<'a, K> {
    /// It is there, in a state that was not seen before.
    Updated {
        /// The state before, if any.
        before: Option<&'a K>,
        /// The state now.
        now: &'a K,
    },
    /// It is gone, or can no longer be read.
    Deleted(&'a K),
}

/// One watch.
pub struct ObjectWatch<K> {
    /// Where the objects are.
    pub api: Api<DeserializeGuard<K>>,
    /// Which of them.
    pub config: watcher::Config,
    /// The namespace that `api` is limited to, if any. Several watches may share a cache.
    pub namespace: Option<String>,
    /// Where they are kept.
    pub cache: Cache<K>,
    /// Passes at the first complete list.
    pub synced: ReadyCheck,
    /// Counts restarts and objects that do not parse.
    pub metrics: Arc<Metrics>,
}

impl<K> ObjectWatch<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    /// Follows until it is dropped, telling of every change after it is in the cache.
    pub async fn run(&self, tell: impl Fn(Change<'_, K>) + Send) {
        let mut events = watcher(self.api.clone(), self.config.clone()).backoff(Steady::default()).boxed();
        let mut listed = HashSet::new();
        let mut trouble: Option<String> = None;
        let resource = K::plural(&());
        loop {
            match events.try_next().await {
                Ok(Some(event)) => {
                    // The watcher announces a list before it has one.
                    if !matches!(event, watcher::Event::Init) && trouble.take().is_some() {
                        tracing::info!(%resource, "watch works again");
                    }
                    self.handle(event, &mut listed, &tell);
                }
                Ok(None) => return,
                Err(error) => {
                    self.metrics.watch_restarts(&resource);
                    let why = explain(&error);
                    if is_refusal(&error) {
                        self.synced.refuse(&why);
                    } else {
                        self.synced.note(&why);
                    }
                    if trouble.as_ref() != Some(&why) {
                        tracing::warn!(%resource, namespace = self.namespace, "watch failed, trying again: {why}");
                        trouble = Some(why);
                    }
                }
            }
        }
    }

    /// Forgets every object, as if all were gone.
    pub fn clear(&self, tell: impl Fn(Change<'_, K>)) {
        self.keep_only(&HashSet::new(), &tell);
    }

    fn handle(
        &self,
        event: watcher::Event<DeserializeGuard<K>>,
        listed: &mut HashSet<Key>,
        tell: &impl Fn(Change<'_, K>),
    ) {
        match event {
            watcher::Event::Init => listed.clear(),
            watcher::Event::InitApply(object) => {
                listed.insert(Key::of(self.cache.kind(), &object));
                self.seen(object, tell);
            }
            watcher::Event::InitDone => {
                self.keep_only(listed, tell);
                listed.clear();
                self.synced.pass();
            }
            watcher::Event::Apply(object) => self.seen(object, tell),
            watcher::Event::Delete(object) => self.gone(&Key::of(self.cache.kind(), &object), tell),
        }
    }

    fn seen(&self, object: DeserializeGuard<K>, tell: &impl Fn(Change<'_, K>)) {
        let key = Key::of(self.cache.kind(), &object);
        match object.0 {
            Ok(object) => {
                if self.cache.is_readable_again(&key) {
                    tracing::info!(object = %key, "object can be read again");
                }
                let (before, now) = self.cache.insert(object);
                if before.as_ref().is_none_or(|before| before.resource_version() != now.resource_version()) {
                    tell(Change::Updated { before: before.as_deref(), now: &now });
                }
            }
            Err(invalid) => {
                let why = unquoted(&invalid.error);
                if self.cache.cannot_read(&key, &why) {
                    tracing::error!(object = %key, "object cannot be read and is left alone until it is mended: {why}");
                }
                self.tell_gone(&key, tell);
            }
        }
        self.metrics.unparsable(self.cache.kind(), self.cache.unreadable());
    }

    fn gone(&self, key: &Key, tell: &impl Fn(Change<'_, K>)) {
        self.cache.is_readable_again(key);
        self.metrics.unparsable(self.cache.kind(), self.cache.unreadable());
        self.tell_gone(key, tell);
    }

    fn tell_gone(&self, key: &Key, tell: &impl Fn(Change<'_, K>)) {
        if let Some(object) = self.cache.remove(key) {
            tell(Change::Deleted(&object));
        }
    }

    fn keep_only(&self, listed: &HashSet<Key>, tell: &impl Fn(Change<'_, K>)) {
        for key in self.cache.others(self.namespace.as_deref(), listed) {
            self.gone(&key, tell);
        }
    }
}

/// The watcher's own backoff, which grows over failures in a row. The stream would reset it at the mere announcement of
/// the next try; its own timer does so when all has been well for two minutes.
#[derive(Default)]
struct Steady(watcher::DefaultBackoff);

impl Iterator for Steady {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.0.next()
    }
}

impl Backoff for Steady {
    fn reset(&mut self) {}
}

fn is_refusal(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => status.code == 403,
        _ => false,
    }
}

/// A watch error in a sentence. The API server's own words name verb and resource.
fn explain(error: &watcher::Error) -> String {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status)) if status.code == 404 => {
            "the API server does not know this resource; is its CRD installed?".to_owned()
        }
        watcher::Error::WatchError(status) => status.message.clone(),
        other => crate::client::describe(other),
    }
}

/// What a decoder says, without the value over which it stumbled.
fn unquoted(error: &str) -> String {
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
    fn the_value_that_does_not_fit_is_not_quoted() {
        let error = serde_json::from_str::<Vec<i32>>(r#"["hunter2"]"#).unwrap_err().to_string();
        assert!(error.contains("hunter2"));
        assert_eq!(unquoted(&error), "expected i32 at line 1 column 10");
        assert_eq!(unquoted("missing field `name`"), "missing field `name`");
    }
}
