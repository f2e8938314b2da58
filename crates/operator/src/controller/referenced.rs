//! What is known of Secrets, ConfigMaps and Namespaces of others that our objects refer to.
//!
//! Each is read live, once, and again only after a watch said that it changed. Of a Secret nothing is kept but the names
//! of its keys and a salted checksum.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::atomic::{AtomicU64, Ordering},
};

use coder_k8s_api::{Reason, names::label};
use coder_k8s_core::{
    outcome::Blocker,
    sources::{NeededKeys, Source, SourceContent, SourceContents, digest},
    workspace_access::Consent,
};
use coder_k8s_engine::{cache::ObjectKey, failure, secret};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;

use super::kinds::ReferencedKind;

/// What was found out, by who asked and about what.
#[derive(Default)]
pub(crate) struct ReferencedObjects {
    known: Mutex<HashMap<ObjectKey, HashMap<ObjectKey, Known>>>,
    /// Moves with every change that a watch told of: what was read before it may be outdated.
    moment: AtomicU64,
}

#[derive(Clone)]
enum Known {
    Source(NeededKeys, SourceContent),
    Consent(Consent),
}

impl ReferencedObjects {
    /// Forgets what `asker` knows of `target`, which has changed.
    pub(crate) fn changed(&self, asker: &ObjectKey, target: &ObjectKey) {
        self.moment.fetch_add(1, Ordering::SeqCst);
        if let Some(known) = self.known.lock().get_mut(asker) {
            known.remove(target);
        }
    }

    /// Forgets what `asker` knows of anything of a kind.
    pub(crate) fn watch_gap(&self, asker: &ObjectKey, kind: ReferencedKind) {
        self.moment.fetch_add(1, Ordering::SeqCst);
        if let Some(known) = self.known.lock().get_mut(asker) {
            known.retain(|target, _| target.kind != kind.as_str());
        }
    }

    /// Forgets everything of an object that is gone.
    pub(crate) fn forget(&self, asker: &ObjectKey) {
        self.known.lock().remove(asker);
    }

    fn get(&self, asker: &ObjectKey, target: &ObjectKey) -> Option<Known> {
        self.known.lock().get(asker)?.get(target).cloned()
    }

    /// Keeps what was read at `moment`, unless something has changed since.
    fn keep(&self, asker: &ObjectKey, target: ObjectKey, known: Known, moment: u64) {
        if self.moment.load(Ordering::SeqCst) == moment {
            self.known.lock().entry(asker.clone()).or_default().insert(target, known);
        }
    }

    /// What the sources of an object say. `uid` salts the checksums.
    pub(crate) async fn sources(
        &self,
        client: &Client,
        asker: &ObjectKey,
        uid: &str,
        desired: BTreeMap<Source, NeededKeys>,
    ) -> Result<SourceContents, Blocker> {
        let mut all = SourceContents::new();
        for (source, desired) in desired {
            let target = match &source {
                Source::Secret(name) => ReferencedKind::Secret.key(&asker.namespace, name),
                Source::ConfigMap(name) => ReferencedKind::ConfigMap.key(&asker.namespace, name),
            };
            if let Some(Known::Source(asked, found)) = self.get(asker, &target)
                && asked == desired
            {
                all.insert(source, found);
                continue;
            }
            let moment = self.moment.load(Ordering::SeqCst);
            let found = read(client, &target, uid, &source, &desired).await?;
            self.keep(asker, target, Known::Source(desired, found.clone()), moment);
            all.insert(source, found);
        }
        Ok(all)
    }

    /// Whether a namespace consents to workspaces of the asker's.
    pub(crate) async fn consent(
        &self,
        client: &Client,
        asker: &ObjectKey,
        namespace: &str,
    ) -> Result<Consent, Blocker> {
        let target = ReferencedKind::Namespace.key("", namespace);
        if let Some(Known::Consent(consent)) = self.get(asker, &target) {
            return Ok(consent);
        }
        let moment = self.moment.load(Ordering::SeqCst);
        let api: Api<Namespace> = Api::all(client.clone());
        let consent = match api.get_metadata_opt(namespace).await {
            Ok(None) => Consent::NoNamespace,
            Ok(Some(found)) => {
                let given = found.labels().get(&format!("{}{}", label::WORKSPACES_OF, asker.namespace));
                if given.is_some_and(|value| value == label::ALLOW) {
                    Consent::Given
                } else {
                    Consent::Missing
                }
            }
            Err(error) => return Err(failure::from_kube(&format!("read Namespace {namespace}"), &error)),
        };
        self.keep(asker, target, Known::Consent(consent), moment);
        Ok(consent)
    }
}

async fn read(
    client: &Client,
    target: &ObjectKey,
    uid: &str,
    source: &Source,
    desired: &NeededKeys,
) -> Result<SourceContent, Blocker> {
    match source {
        Source::Secret(name) => {
            let data = secret::read(client, &target.namespace, name).await.map_err(unreadable)?;
            let Some(data) = data else { return Ok(SourceContent::Absent) };
            let keys: BTreeSet<String> = data.keys().map(str::to_owned).collect();
            let digest = digest(uid, source, entries(desired, &keys, |key| data.value(key)));
            Ok(SourceContent::Data { digest, keys, values: BTreeMap::new() })
        }
        Source::ConfigMap(name) => {
            let api: Api<ConfigMap> = Api::namespaced(client.clone(), &target.namespace);
            let read = api.get_opt(name).await;
            let map = read.map_err(|error| failure::from_kube(&format!("read ConfigMap {name}"), &error))?;
            let Some(map) = map else { return Ok(SourceContent::Absent) };
            let (data, binary) = (map.data.unwrap_or_default(), map.binary_data.unwrap_or_default());
            let all: BTreeSet<String> = data.keys().chain(binary.keys()).cloned().collect();
            let value = |key: &str| {
                data.get(key)
                    .map(String::as_bytes)
                    .or_else(|| binary.get(key).map(|value| value.0.as_slice()))
            };
            let digest = digest(uid, source, entries(desired, &all, value));
            let values = desired.values.iter().filter_map(|key| Some((key.clone(), data.get(key)?.clone())));
            // Binary data does not become environment.
            Ok(SourceContent::Data { digest, values: values.collect(), keys: data.into_keys().collect() })
        }
    }
}

/// The entries of a source that count for its checksum: those that are asked for by name, and all if all matter.
fn entries<'a>(
    desired: &'a NeededKeys,
    keys: &'a BTreeSet<String>,
    value: impl Fn(&'a str) -> Option<&'a [u8]>,
) -> impl Iterator<Item = (&'a str, Option<&'a [u8]>)> {
    let of_all = desired.all.then_some(keys).into_iter().flatten();
    let counted: BTreeSet<&str> = desired.keys.iter().chain(of_all).map(String::as_str).collect();
    counted.into_iter().map(move |key| (key, value(key)))
}

/// Why a Secret could not be read.
fn unreadable(error: secret::Error) -> Blocker {
    match error {
        secret::Error::Api { name, source, .. } => {
            failure::from_kube(&format!("read Secret {name}"), &source)
        }
        secret::Error::Decode { .. } => Blocker::new(Reason::SecretUnreadable, error.to_string()),
    }
}
