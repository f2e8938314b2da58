//! Following the objects of one kind into a cache.
//!
//! An object that does not parse is named in a log line and in a metric and is otherwise left out: it never
//! hides the others. A watch that fails is retried with backoff; until its first success the readiness of the
//! process says why. After a gap only what really changed is reported.

use std::{
    collections::{HashMap, HashSet},
    fmt::Debug,
    sync::Arc,
};

use futures::{StreamExt, TryStreamExt};
use kube::{
    Api, Resource, ResourceExt,
    core::DeserializeGuard,
    runtime::{WatchStreamExt, watcher},
};
use serde::de::DeserializeOwned;

use crate::{cache::Cache, health::Gate, key::Key, metrics::Metrics};

/// What happened to an object.
#[derive(Debug)]
pub enum Change<'a, K> {
    /// It is there, in a state that was not seen before.
    Seen(&'a K),
    /// It is gone, or can no longer be read.
    Gone(&'a K),
}

/// One watch.
pub struct Follow<K> {
    /// Where the objects are.
    pub api: Api<DeserializeGuard<K>>,
    /// Which of them.
    pub config: watcher::Config,
    /// The namespace that `api` is limited to, if any. Several watches may share a cache.
    pub namespace: Option<String>,
    /// Where they are kept.
    pub cache: Cache<K>,
    /// Passes at the first complete list.
    pub synced: Gate,
    /// Counts restarts and objects that do not parse.
    pub metrics: Arc<Metrics>,
}

impl<K> Follow<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    /// Follows until it is dropped, telling of every change after it is in the cache.
    pub async fn run(&self, tell: impl Fn(Change<'_, K>) + Send) {
        let mut events = watcher(self.api.clone(), self.config.clone()).default_backoff().boxed();
        let mut unreadable = Unreadable::new(self.cache.kind(), self.metrics.clone());
        let mut listed = HashSet::new();
        let mut trouble = None;
        let resource = K::plural(&());
        loop {
            match events.try_next().await {
                Ok(Some(event)) => match event {
                    watcher::Event::Init => listed.clear(),
                    watcher::Event::InitApply(object) => {
                        listed.insert(Key::of(self.cache.kind(), &object));
                        self.seen(object, &mut unreadable, &tell);
                    }
                    watcher::Event::InitDone => {
                        for key in self.cache.others(self.namespace.as_deref(), &listed) {
                            self.gone(&key, &tell);
                        }
                        unreadable.keep_only(&listed);
                        listed.clear();
                        if trouble.take().is_some() {
                            tracing::info!(%resource, "watch works again");
                        }
                        self.synced.pass();
                    }
                    watcher::Event::Apply(object) => self.seen(object, &mut unreadable, &tell),
                    watcher::Event::Delete(object) => {
                        let key = Key::of(self.cache.kind(), &object);
                        unreadable.forget(&key);
                        self.gone(&key, &tell);
                    }
                },
                Ok(None) => return,
                Err(error) => {
                    self.metrics.watch_restarts(&resource);
                    let why = explain(&error);
                    self.synced.note(&why);
                    if trouble.as_ref() != Some(&why) {
                        tracing::warn!(%resource, namespace = self.namespace, "watch failed, trying again: {why}");
                        trouble = Some(why);
                    }
                }
            }
        }
    }

    fn seen(&self, object: DeserializeGuard<K>, unreadable: &mut Unreadable, tell: &impl Fn(Change<'_, K>)) {
        let key = Key::of(self.cache.kind(), &object);
        match object.0 {
            Ok(object) => {
                unreadable.forget(&key);
                let version = object.resource_version();
                let before = self.cache.insert(object);
                if before.is_none_or(|before| before.resource_version() != version)
                    && let Some(now) = self.cache.get(&key.namespace, &key.name)
                {
                    tell(Change::Seen(&now));
                }
            }
            Err(invalid) => {
                unreadable.note(&key, &invalid.error);
                self.gone(&key, tell);
            }
        }
    }

    fn gone(&self, key: &Key, tell: &impl Fn(Change<'_, K>)) {
        if let Some(object) = self.cache.remove(key) {
            tell(Change::Gone(&object));
        }
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

/// The objects that do not parse, and why.
struct Unreadable {
    kind: &'static str,
    why: HashMap<Key, String>,
    metrics: Arc<Metrics>,
}

impl Unreadable {
    fn new(kind: &'static str, metrics: Arc<Metrics>) -> Self {
        Self { kind, why: HashMap::new(), metrics }
    }

    fn note(&mut self, key: &Key, error: &str) {
        if self.why.get(key).is_none_or(|known| known != error) {
            tracing::error!(object = %key, "object cannot be read and is left alone until it is mended: {error}");
            self.why.insert(key.clone(), error.to_owned());
            self.count();
        }
    }

    fn forget(&mut self, key: &Key) {
        if self.why.remove(key).is_some() {
            tracing::info!(object = %key, "object can be read again");
            self.count();
        }
    }

    fn keep_only(&mut self, listed: &HashSet<Key>) {
        self.why.retain(|key, _| listed.contains(key));
        self.count();
    }

    fn count(&self) {
        self.metrics.unparsable(self.kind, self.why.len());
    }
}
