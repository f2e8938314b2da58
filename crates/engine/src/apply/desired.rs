//! The complete object that is sent for a child, and whether a live object already contains every field of it.
//!
//! Others may have added keys to a map or entries to a list that merges by key (an injected sidecar), and the server
//! adds defaults. A list without keys is atomic under server-side apply, so that it must be equal. Quantities are
//! compared by value, because the server stores `1000m` as `1`. A false negative costs one write; a false positive
//! would leave a change of others in place, so that every exception is listed by field.

use std::fmt::{self, Debug};

use coder_k8s_api::names::{annotation, label};
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{NamespacedKind, Owner, OwnerMark};

/// A child with namespace, owner, labels and hash added.
pub(super) struct DesiredObject {
    pub(super) name: String,
    pub(super) object: Value,
    /// Hash of `object` before the hash was added to its annotations.
    pub(super) hash: String,
}

impl DesiredObject {
    pub(super) fn new<K: NamespacedKind>(owner: &Owner, mut desired: K) -> kube::Result<Self> {
        let name = desired.name_any();
        desired.meta_mut().namespace = Some(owner.namespace.clone());
        desired.meta_mut().owner_references = match owner.mark {
            OwnerMark::ControllerReference => Some(vec![owner.reference.clone()]),
            OwnerMark::UidAnnotation(_) => None,
        };
        let labels = desired.labels_mut();
        for (key, value) in &owner.labels {
            if key == label::MANAGED_BY {
                // The watches of children select by this label: without it the operator would not see the child.
                labels.insert(key.clone(), value.clone());
            } else {
                labels.entry(key.clone()).or_insert_with(|| value.clone());
            }
        }
        let object = typed(&desired)?;
        let hash = short_hash(object.to_string().as_bytes());
        let object = with(object, &["metadata", "annotations", annotation::APPLIED_HASH], json!(hash));
        Ok(Self { name, object, hash })
    }

    /// Whether a live object has all desired labels.
    pub(super) fn labels_match<K: Resource>(&self, live: &K) -> bool {
        let labels = self.object.pointer("/metadata/labels").and_then(Value::as_object);
        labels
            .into_iter()
            .flatten()
            .all(|(key, value)| live.labels().get(key).is_some_and(|found| value.as_str() == Some(found)))
    }

    /// Whether a live object contains every desired field.
    pub(super) fn is_in<K: NamespacedKind>(&self, live: &K) -> kube::Result<bool> {
        Ok(contains("", &typed(live)?, &self.object))
    }

    /// The patch that creates or changes the object, whatever its state.
    pub(super) fn whole(&self) -> Unprintable {
        Unprintable(self.object.clone())
    }

    /// The patch that creates the object, and is refused with 409 if it exists: no object has version 1.
    pub(super) fn if_absent(&self) -> Unprintable {
        Unprintable(with(self.object.clone(), &["metadata", "resourceVersion"], json!("1")))
    }

    /// The patch that changes this incarnation of the object, and is refused if it was deleted since.
    pub(super) fn if_same<K: Resource>(&self, live: &K) -> Unprintable {
        Unprintable(with(self.object.clone(), &["metadata", "uid"], json!(live.uid())))
    }
}

/// A patch whose `Debug`, which kube requires, does not show the object: it may be a Secret.
#[derive(Clone, Serialize)]
#[serde(transparent)]
pub(super) struct Unprintable(Value);

impl Debug for Unprintable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("object")
    }
}

/// An object as JSON with apiVersion and kind, which typed objects do not serialize.
fn typed<K: NamespacedKind>(object: &K) -> kube::Result<Value> {
    let object = serde_json::to_value(object).map_err(kube::Error::SerdeError)?;
    let object = with(object, &["apiVersion"], json!(K::api_version(&())));
    Ok(with(object, &["kind"], json!(K::kind(&()))))
}

/// The object with `value` at `path`. Missing parents are created.
fn with(mut object: Value, path: &[&str], value: Value) -> Value {
    let mut field = &mut object;
    for key in path {
        if !field.is_object() {
            *field = json!({});
        }
        let Some(map) = field.as_object_mut() else { return object };
        field = map.entry(*key).or_insert(Value::Null);
    }
    *field = value;
    object
}

/// The first 16 hexadecimal digits of a SHA-256.
fn short_hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().take(8).fold(String::new(), |hash, byte| format!("{hash}{byte:02x}"))
}

/// Lists that merge by key under server-side apply, by the name of their field. Of several sets of keys the first is
/// used that all desired entries have.
const KEYED: [(&str, &[&[&str]]); 12] = [
    ("containers", &[&["name"]]),
    ("initContainers", &[&["name"]]),
    ("env", &[&["name"]]),
    ("volumes", &[&["name"]]),
    ("volumeMounts", &[&["mountPath"]]),
    ("ports", &[&["containerPort", "protocol"], &["port", "protocol"], &["containerPort"], &["port"]]),
    ("imagePullSecrets", &[&["name"]]),
    ("hostAliases", &[&["ip"]]),
    ("topologySpreadConstraints", &[&["topologyKey", "whenUnsatisfiable"]]),
    ("ownerReferences", &[&["uid"]]),
    ("secrets", &[&["name"]]),
    ("conditions", &[&["type"]]),
];

/// Lists of plain values that merge as sets.
const SETS: [&str; 1] = ["finalizers"];

/// Maps whose values are quantities.
const QUANTITIES: [&str; 5] = ["limits", "requests", "capacity", "sizeLimit", "divisor"];

/// Whether `live`, the value of a field of this name, contains all of `desired`.
fn contains(field: &str, live: &Value, desired: &Value) -> bool {
    match (live, desired) {
        (Value::Object(live), Value::Object(desired)) => desired.iter().all(|(key, value)| {
            let field = if QUANTITIES.contains(&field) { field } else { key.as_str() };
            live.get(key).map_or_else(|| is_dropped(key, value), |found| contains(field, found, value))
        }),
        (Value::Array(live), Value::Array(desired)) if SETS.contains(&field) => {
            desired.iter().all(|entry| live.contains(entry))
        }
        (Value::Array(live), Value::Array(desired)) => match keys_of(field, desired) {
            Some(keys) => desired.iter().all(|entry| {
                live.iter().any(|found| has_same_keys(keys, found, entry) && contains("", found, entry))
            }),
            None => live.len() == desired.len() && live.iter().zip(desired).all(|(a, b)| contains("", a, b)),
        },
        (live, desired) if QUANTITIES.contains(&field) => match (quantity(live), quantity(desired)) {
            (Some(live), Some(desired)) => live == desired,
            _ => live == desired,
        },
        (live, desired) => live == desired,
    }
}

/// Booleans that the server omits when they are false. For all others, absent and false differ.
const DROPPED_WHEN_OFF: [&str; 9] = [
    "hostIPC",
    "hostNetwork",
    "hostPID",
    "paused",
    "publishNotReadyAddresses",
    "readOnly",
    "stdin",
    "stdinOnce",
    "tty",
];

/// Numbers that the server omits when they are zero.
const DROPPED_WHEN_ZERO: [&str; 4] = ["hostPort", "initialDelaySeconds", "minReadySeconds", "nodePort"];

/// Whether the server omits this value when it stores the object, so that its absence is no difference.
fn is_dropped(key: &str, value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(set) => !set && DROPPED_WHEN_OFF.contains(&key),
        Value::Object(map) => map.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Number(number) => number.as_i64() == Some(0) && DROPPED_WHEN_ZERO.contains(&key),
    }
}

fn keys_of(field: &str, desired: &[Value]) -> Option<&'static [&'static str]> {
    let (_, alternatives) = KEYED.iter().find(|(name, _)| *name == field)?;
    let have = |keys: &[&str]| desired.iter().all(|entry| keys.iter().all(|key| entry.get(key).is_some()));
    alternatives.iter().find(|keys| have(keys)).copied()
}

fn has_same_keys(keys: &[&str], a: &Value, b: &Value) -> bool {
    keys.iter().all(|key| a.get(key) == b.get(key))
}

/// A quantity in thousandths. `None` if the value is not a quantity, or too fine or too large to compare.
fn quantity(value: &Value) -> Option<i128> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => return None,
    };
    let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, suffix) = text.split_at(split);
    let unit: i128 = match suffix {
        "m" => 1,
        "" => 1_000,
        "k" => 1_000_000,
        "M" => 1_000_000_000,
        "G" => 1_000_000_000_000,
        "T" => 1_000_000_000_000_000,
        "P" => 1_000_000_000_000_000_000,
        "Ki" => 1_000 << 10,
        "Mi" => 1_000 << 20,
        "Gi" => 1_000 << 30,
        "Ti" => 1_000 << 40,
        "Pi" => 1_000 << 50,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = u32::try_from(fraction.len()).ok().filter(|digits| *digits <= 9)?;
    let scaled: i128 = format!("{whole}{fraction}").parse().ok()?;
    let scale = 10_i128.pow(digits);
    let value = scaled.checked_mul(unit)?;
    (value % scale == 0).then_some(value / scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn additions_of_others_are_ignored() {
        let live = json!({
            "metadata": {"labels": {"a": "1", "theirs": "x"}, "resourceVersion": "7"},
            "spec": {"template": {"spec": {"containers": [
                {"name": "sidecar", "image": "mesh"},
                {"name": "coder", "image": "coder:1", "imagePullPolicy": "Always", "env": [
                    {"name": "THEIRS", "value": "y"}, {"name": "A", "value": "1"}]},
            ]}}},
        });
        let desired = json!({
            "metadata": {"labels": {"a": "1"}, "annotations": {}},
            "spec": {"template": {"spec": {"containers": [{"name": "coder", "image": "coder:1", "env": [{"name": "A", "value": "1"}]}]}}},
        });
        assert!(contains("", &live, &desired));
    }

    #[test]
    fn a_changed_or_missing_field_is_found() {
        let live = json!({"spec": {"replicas": 2, "containers": [{"name": "coder", "image": "coder:2"}]}});
        assert!(!contains("", &live, &json!({"spec": {"replicas": 3}})));
        assert!(!contains(
            "",
            &live,
            &json!({"spec": {"containers": [{"name": "coder", "image": "coder:1"}]}})
        ));
        assert!(!contains("", &live, &json!({"spec": {"containers": [{"name": "other"}]}})));
        assert!(!contains("", &live, &json!({"spec": {"paused": true}})));
        assert!(contains(
            "",
            &live,
            &json!({"spec": {"paused": false, "strategy": {}, "args": [], "note": ""}})
        ));
        assert!(contains("", &live, &json!({"spec": {"readinessProbe": {}, "minReadySeconds": 0}})));
        assert!(!contains("", &live, &json!({"spec": {"runAsUser": 0}})), "zero is not the default");
        assert!(
            !contains("", &live, &json!({"spec": {"automountServiceAccountToken": false}})),
            "false is not the default"
        );
    }

    #[test]
    fn a_list_without_keys_must_be_equal() {
        let live = json!({"args": ["a", "b"], "rules": [{"host": "x", "pathType": "Prefix"}]});
        assert!(contains("", &live, &json!({"args": ["a", "b"], "rules": [{"host": "x"}]})));
        assert!(!contains("", &live, &json!({"args": ["a"]})));
        assert!(!contains("", &live, &json!({"args": ["b", "a"]})));
        assert!(!contains("", &live, &json!({"rules": [{"host": "x"}, {"host": "y"}]})));
    }

    #[test]
    fn ports_match_with_and_without_the_defaulted_protocol() {
        let live = json!({"ports": [{"port": 80, "protocol": "TCP", "targetPort": 8080, "nodePort": 30080}]});
        assert!(contains("", &live, &json!({"ports": [{"port": 80, "targetPort": 8080}]})));
        assert!(contains("", &live, &json!({"ports": [{"port": 80, "protocol": "TCP"}]})));
        assert!(!contains("", &live, &json!({"ports": [{"port": 81}]})));
    }

    #[test]
    fn quantities_are_compared_by_value() {
        let live =
            json!({"resources": {"limits": {"cpu": "1", "memory": "4Gi"}, "requests": {"cpu": "1500m"}}});
        for same in [
            json!({"resources": {"limits": {"cpu": "1000m", "memory": "4096Mi"}}}),
            json!({"resources": {"limits": {"cpu": 1}, "requests": {"cpu": "1.5"}}}),
        ] {
            assert!(contains("", &live, &same), "{same}");
        }
        assert!(!contains("", &live, &json!({"resources": {"limits": {"cpu": "2"}}})));
        assert!(!contains("", &live, &json!({"resources": {"limits": {"memory": "4G"}}})));
    }

    #[test]
    fn finalizers_are_a_set() {
        let live = json!({"finalizers": ["theirs", "ours"]});
        assert!(contains("", &live, &json!({"finalizers": ["ours"]})));
        assert!(!contains("", &live, &json!({"finalizers": ["missing"]})));
    }
}
