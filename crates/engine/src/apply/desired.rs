//! The complete object that is sent for a child, and whether a live object already contains every field of it.
//!
//! Others may have added keys to a map or entries to a list that merges by key (an injected sidecar), and the server
//! adds defaults. A list without keys is atomic under server-side apply, so that it must be equal. Quantities are
//! compared by value, because the server stores `1000m` as `1`. A false negative costs one write; a false positive
//! would leave a change of others in place, so that every exception is listed by field.

use std::fmt::{self, Debug, Write as _};

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
    /// Hash of the paths of all fields of `object`, without their values.
    pub(super) shape: String,
}

/// The annotation that says what was written last: the hash, and behind a dot the shape. An earlier release wrote no shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AppliedHash<'a> {
    pub(super) hash: &'a str,
    pub(super) shape: Option<&'a str>,
}

impl<'a> AppliedHash<'a> {
    pub(super) fn parse(text: &'a str) -> Self {
        match text.split_once('.') {
            Some((hash, shape)) => Self { hash, shape: Some(shape) },
            None => Self { hash: text, shape: None },
        }
    }
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
        let mut paths = String::new();
        describe_shape("", &object, &mut paths);
        let shape = short_hash(paths.as_bytes());
        let applied = json!(format!("{hash}.{shape}"));
        let object = with(object, &["metadata", "annotations", annotation::APPLIED_HASH], applied);
        Ok(Self { name, object, hash, shape })
    }

    /// Whether a live object has all desired labels.
    pub(super) fn labels_match<K: Resource>(&self, live: &K) -> bool {
        let labels = self.object.pointer("/metadata/labels").and_then(Value::as_object);
        labels
            .into_iter()
            .flatten()
            .all(|(key, value)| live.labels().get(key).is_some_and(|found| value.as_str() == Some(found)))
    }

    /// Whether a live object contains every desired field. An annotation of an earlier release, without a shape, counts.
    pub(super) fn is_in<K: NamespacedKind>(&self, live: &K) -> kube::Result<bool> {
        let mut live = typed(live)?;
        let applied =
            self.object.pointer("/metadata/annotations").and_then(|all| all.get(annotation::APPLIED_HASH));
        if let (Some(found), Some(applied)) = (
            live.pointer_mut("/metadata/annotations").and_then(|all| all.get_mut(annotation::APPLIED_HASH)),
            applied,
        ) && found.as_str().is_some_and(|found| AppliedHash::parse(found).hash == self.hash)
        {
            found.clone_from(applied);
        }
        Ok(contains("", &live, &self.object))
    }

    /// The strategic merge patch that sets the desired values in a live object of the same shape, and is refused if it was
    /// deleted since. None: more than values differ, because somebody removed an entry of a list.
    pub(super) fn changed_values<K: NamespacedKind>(&self, live: &K) -> kube::Result<Option<Unprintable>> {
        let values = changed("", &typed(live)?, &self.object);
        Ok(values.map(|values| Unprintable(with(values, &["metadata", "uid"], json!(live.uid())))))
    }

    /// The patch that creates or changes the object, whatever its state.
    pub(super) fn whole(&self) -> Unprintable {
        Unprintable(self.object.clone())
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

/// Writes the paths of all fields in order. A list that merges by key is described by the keys of its entries, any other list is
/// one value.
fn describe_shape(field: &str, value: &Value, paths: &mut String) {
    match value {
        Value::Object(map) => {
            paths.push('{');
            for (key, value) in map {
                paths.push_str(key);
                paths.push(':');
                describe_shape(key, value, paths);
            }
            paths.push('}');
        }
        Value::Array(list) => {
            let keys = keys_of(field, list);
            paths.push('[');
            for entry in list.iter().filter(|_| keys.is_some()) {
                for key in keys.into_iter().flatten() {
                    let _ = write!(paths, "{},", entry.get(*key).unwrap_or(&Value::Null));
                }
                describe_shape("", entry, paths);
            }
            paths.push(']');
        }
        Value::Null => paths.push('-'),
        _ => paths.push('.'),
    }
}

/// The part of `desired` that `live`, the value of a field of this name, does not contain. None: it cannot be set without
/// removing or ordering entries of a list.
fn changed(field: &str, live: &Value, desired: &Value) -> Option<Value> {
    match (live, desired) {
        (Value::Object(live), Value::Object(desired)) => {
            let mut values = serde_json::Map::new();
            for (key, value) in desired {
                let name = if QUANTITIES.contains(&field) { field } else { key.as_str() };
                match live.get(key) {
                    None if is_dropped(key, value) => {}
                    None => drop(values.insert(key.clone(), value.clone())),
                    Some(found) if contains(name, found, value) => {}
                    Some(found) => drop(values.insert(key.clone(), changed(name, found, value)?)),
                }
            }
            Some(Value::Object(values))
        }
        (Value::Array(live), Value::Array(desired)) => {
            let Some(keys) = keys_of(field, desired).filter(|_| !SETS.contains(&field)) else {
                return Some(Value::Array(desired.clone()));
            };
            let mut entries = Vec::new();
            for entry in desired {
                let found = live.iter().find(|found| has_same_keys(keys, found, entry))?;
                if !contains("", found, entry) {
                    let mut values = changed("", found, entry)?;
                    for key in keys {
                        values.as_object_mut()?.insert((*key).to_owned(), entry.get(key)?.clone());
                    }
                    entries.push(values);
                }
            }
            Some(Value::Array(entries))
        }
        (_, desired) => Some(desired.clone()),
    }
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

    fn shape(object: &Value) -> String {
        let mut paths = String::new();
        describe_shape("", object, &mut paths);
        paths
    }

    #[test]
    fn the_shape_changes_with_fields_and_entries_and_not_with_values() {
        let one = json!({"spec": {"replicas": 1, "args": ["a"], "containers": [
            {"name": "coder", "image": "coder:1", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "1"}]}]}});
        let changed = |pointer: &str, value: Value| {
            let mut object = one.clone();
            *object.pointer_mut(pointer).unwrap() = value;
            shape(&object) == shape(&one)
        };
        assert!(changed("/spec/replicas", json!(3)));
        assert!(changed("/spec/args", json!(["a", "b"])), "a list without keys is one value");
        assert!(changed("/spec/containers/0/env/1/value", json!("2")));
        assert!(!changed("/spec/containers/0/env/1/name", json!("C")));
        assert!(!changed(
            "/spec/containers/0/env/1",
            json!({"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "x"}}})
        ));
        assert!(!changed("/spec/containers/0/env", json!([{"name": "A", "value": "1"}])));
        let (ab, ba) = (json!([{"name": "A"}, {"name": "B"}]), json!([{"name": "B"}, {"name": "A"}]));
        assert_ne!(shape(&json!({"env": ab})), shape(&json!({"env": ba})), "the order of variables counts");
        assert!(!changed("/spec", json!({"replicas": 1})));
    }

    #[test]
    fn a_patch_has_the_changed_values_and_the_keys_that_lead_to_them() {
        let live = json!({"metadata": {"labels": {"a": "1", "theirs": "x"}}, "spec": {"replicas": 1, "template": {"spec": {"containers": [
            {"name": "mesh", "image": "mesh"},
            {"name": "coder", "image": "coder:1", "args": ["a"], "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "1"}],
             "resources": {"limits": {"cpu": "1"}}}]}}}});
        let mut desired = json!({"metadata": {"labels": {"a": "1"}}, "spec": {"replicas": 1, "template": {"spec": {"containers": [
            {"name": "coder", "image": "coder:1", "args": ["a"], "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "1"}],
             "resources": {"limits": {"cpu": "1000m"}}}]}}}});
        assert_eq!(changed("", &live, &desired), Some(json!({})), "quantities are the same in another form");
        desired["spec"]["replicas"] = json!(2);
        assert_eq!(changed("", &live, &desired), Some(json!({"spec": {"replicas": 2}})));
        desired["spec"]["template"]["spec"]["containers"][0]["env"][1]["value"] = json!("2");
        desired["spec"]["template"]["spec"]["containers"][0]["args"] = json!(["b"]);
        assert_eq!(
            changed("", &live, &desired),
            Some(json!({"spec": {"replicas": 2, "template": {"spec": {"containers": [
                {"name": "coder", "args": ["b"], "env": [{"name": "B", "value": "2"}]}]}}}}))
        );
        desired["spec"]["template"]["spec"]["containers"][0]["env"][1]["name"] = json!("C");
        assert_eq!(changed("", &live, &desired), None, "an entry that is missing has a place in the order");
    }

    #[test]
    fn the_annotation_of_an_earlier_release_has_no_shape() {
        assert_eq!(AppliedHash::parse("0123"), AppliedHash { hash: "0123", shape: None });
        assert_eq!(AppliedHash::parse("0123.ab"), AppliedHash { hash: "0123", shape: Some("ab") });
    }

    #[test]
    fn finalizers_are_a_set() {
        let live = json!({"finalizers": ["theirs", "ours"]});
        assert!(contains("", &live, &json!({"finalizers": ["ours"]})));
        assert!(!contains("", &live, &json!({"finalizers": ["missing"]})));
    }
}
