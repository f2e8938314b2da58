//! What is known of the Secrets, ConfigMaps and Namespaces that our objects refer to and do not own.
//!
//! Each is read live once for each referrer, and again only after a metadata watch showed a change. Of a Secret only the
//! names of its keys and a salted checksum are kept, never a value.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::atomic::{AtomicU64, Ordering},
};

use coder_k8s_api::Reason;
use coder_k8s_core::{
    outcome::Blocker,
    sources::{NeededKeys, Source, SourceContent, SourceContents, digest, secret_digest},
    workspace_access::Consent,
};
use coder_k8s_engine::{cache::ObjectKey, client, secret};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{Api, Client};
use parking_lot::Mutex;

use super::kinds::ReferencedKind;

/// What was read, by referrer and then by the object referred to.
#[derive(Default)]
pub(crate) struct ReferencedObjects {
    known: Mutex<HashMap<ObjectKey, HashMap<Use, Known>>>,
    /// Counts the changes that watches showed. A read that began at another count may be outdated and is not kept.
    changes: AtomicU64,
}

/// An object that is referred to, and the key of a Secret if only that is of interest.
type Use = (ObjectKey, Option<String>);

#[derive(Clone)]
enum Known {
    Source(NeededKeys, SourceContent),
    Digest(String),
    Consent(Consent),
}

impl ReferencedObjects {
    /// Forgets a target that has changed, or all targets of its kind if the watch missed events and `target` is None.
    pub(crate) fn changed(&self, referrer: &ObjectKey, kind: ReferencedKind, target: Option<&ObjectKey>) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        if let Some(known) = self.known.lock().get_mut(referrer) {
            known.retain(|(key, _), _| target.map_or(key.kind != kind.as_str(), |target| key != target));
        }
    }

    /// Forgets a referrer that no longer exists.
    pub(crate) fn forget(&self, referrer: &ObjectKey) {
        self.known.lock().remove(referrer);
    }

    fn get(&self, referrer: &ObjectKey, target: &Use) -> Option<Known> {
        self.known.lock().get(referrer)?.get(target).cloned()
    }

    /// Keeps what was read since the count of changes was `changes`, unless a watch showed a change since then: the event may
    /// have arrived while the read was under way, and would otherwise be lost.
    fn keep(&self, referrer: &ObjectKey, target: Use, known: Known, changes: u64) {
        if self.changes.load(Ordering::SeqCst) == changes {
            self.known.lock().entry(referrer.clone()).or_default().insert(target, known);
        }
    }

    /// The contents of the Secrets and ConfigMaps that an object needs. `uid` salts the checksums, so that equal values in two
    /// objects have different ones.
    pub(crate) async fn sources(
        &self,
        client: &Client,
        referrer: &ObjectKey,
        uid: &str,
        desired: BTreeMap<Source, NeededKeys>,
    ) -> Result<SourceContents, Blocker> {
        let mut all = SourceContents::new();
        for (source, desired) in desired {
            let target = match &source {
                Source::Secret(name) => (ReferencedKind::Secret.key(&referrer.namespace, name), None),
                Source::ConfigMap(name) => (ReferencedKind::ConfigMap.key(&referrer.namespace, name), None),
            };
            if let Some(Known::Source(needed, found)) = self.get(referrer, &target)
                && needed == desired
            {
                all.insert(source, found);
                continue;
            }
            let changes = self.changes.load(Ordering::SeqCst);
            let found = read(client, &target.0, uid, &source, &desired).await?;
            self.keep(referrer, target, Known::Source(desired, found.clone()), changes);
            all.insert(source, found);
        }
        Ok(all)
    }

    /// The digest of one key of a Secret, by which a change of its value is recognised.
    pub(crate) async fn secret_digest(
        &self,
        client: &Client,
        referrer: &ObjectKey,
        uid: &str,
        (name, key): (&str, &str),
    ) -> Result<String, Blocker> {
        let target = (ReferencedKind::Secret.key(&referrer.namespace, name), Some(key.to_owned()));
        if let Some(Known::Digest(digest)) = self.get(referrer, &target) {
            return Ok(digest);
        }
        let changes = self.changes.load(Ordering::SeqCst);
        let data = secret::read(client, &referrer.namespace, name).await.map_err(unreadable)?;
        let digest = secret_digest(uid, name, key, data.as_ref().and_then(|data| data.value(key)));
        self.keep(referrer, target, Known::Digest(digest.clone()), changes);
        Ok(digest)
    }

    /// Whether a namespace that the spec of the referrer names consents to its workspaces.
    pub(crate) async fn consent(
        &self,
        client: &Client,
        referrer: &ObjectKey,
        namespace: &str,
    ) -> Result<Consent, Blocker> {
        let target = (ReferencedKind::Namespace.key("", namespace), None);
        if let Some(Known::Consent(consent)) = self.get(referrer, &target) {
            return Ok(consent);
        }
        let changes = self.changes.load(Ordering::SeqCst);
        let consent = read_consent(client, namespace, &referrer.namespace).await?;
        self.keep(referrer, target, Known::Consent(consent), changes);
        Ok(consent)
    }

    /// Records the consent that a poll has read. Returns whether it is new.
    pub(crate) fn set_consent(&self, referrer: &ObjectKey, namespace: &str, consent: Consent) -> bool {
        let target = (ReferencedKind::Namespace.key("", namespace), None);
        let mut known = self.known.lock();
        let before = known.entry(referrer.clone()).or_default().insert(target, Known::Consent(consent));
        !matches!(before, Some(Known::Consent(before)) if before == consent)
    }
}

/// Whether a namespace consents to the workspaces of the namespace `source`, read live.
pub(crate) async fn read_consent(client: &Client, namespace: &str, source: &str) -> Result<Consent, Blocker> {
    Ok(match read_labels(client, namespace).await? {
        Some(labels) => Consent::of_labels(&labels, source),
        None => Consent::NoNamespace,
    })
}

/// The labels of a namespace. None: there is no such namespace.
pub(crate) async fn read_labels(
    client: &Client,
    namespace: &str,
) -> Result<Option<BTreeMap<String, String>>, Blocker> {
    let api: Api<Namespace> = Api::all(client.clone());
    let found = api.get_metadata_opt(namespace).await;
    let found = found.map_err(|error| client::blocker(&format!("read Namespace {namespace}"), &error))?;
    Ok(found.map(|found| found.metadata.labels.unwrap_or_default()))
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
            let read = async { api.get_opt(client::object_name(name)?).await }.await;
            let map = read.map_err(|error| client::blocker(&format!("read ConfigMap {name}"), &error))?;
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
            // Binary data counts for the checksum, since it can be mounted, but the kubelet makes no environment of it.
            Ok(SourceContent::Data { digest, values: values.collect(), keys: data.into_keys().collect() })
        }
    }
}

/// The entries of a source that count for its checksum: those that are needed by name, or all if any entry may matter.
/// Other entries can change without a rollout.
fn entries<'a>(
    desired: &'a NeededKeys,
    keys: &'a BTreeSet<String>,
    value: impl Fn(&'a str) -> Option<&'a [u8]>,
) -> impl Iterator<Item = (&'a str, Option<&'a [u8]>)> {
    let of_all = desired.all.then_some(keys).into_iter().flatten();
    let counted: BTreeSet<&str> = desired.keys.iter().chain(of_all).map(String::as_str).collect();
    counted.into_iter().map(move |key| (key, value(key)))
}

fn unreadable(error: secret::Error) -> Blocker {
    match error {
        secret::Error::Api { name, source, .. } => client::blocker(&format!("read Secret {name}"), &source),
        secret::Error::Decode { .. } => Blocker::new(Reason::SecretUnreadable, error.to_string()),
    }
}
