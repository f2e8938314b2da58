//! Everything that an operator leaves behind, in a form that is the same in each run.
//!
//! Ids, secrets, hashes and times become symbols in the order in which they appear, so that two snapshots are equal if the
//! same values are in the same places: the key in coderd is the one in the Secret, and the pods refer to its checksum.

use std::collections::BTreeMap;

use coder_k8s_testbed::codersim::CoderSim;
use futures::future::try_join_all;
use kube::{
    Api, Client, ResourceExt as _,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams},
};
use secrecy::ExposeSecret as _;
use serde_json::{Map, Value, json};

/// Group, version, kind and plural of everything that is looked at.
const KINDS: [(&str, &str, &str, &str); 13] = [
    ("coder.com", "v1alpha1", "CoderControlPlane", "codercontrolplanes"),
    ("coder.com", "v1alpha1", "CoderProvisioner", "coderprovisioners"),
    ("coder.com", "v1alpha1", "CoderWorkspaceProxy", "coderworkspaceproxies"),
    ("apps", "v1", "Deployment", "deployments"),
    ("", "v1", "Service", "services"),
    ("", "v1", "ServiceAccount", "serviceaccounts"),
    ("", "v1", "Secret", "secrets"),
    ("", "v1", "ConfigMap", "configmaps"),
    ("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets"),
    ("networking.k8s.io", "v1", "Ingress", "ingresses"),
    ("gateway.networking.k8s.io", "v1", "HTTPRoute", "httproutes"),
    ("rbac.authorization.k8s.io", "v1", "Role", "roles"),
    ("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings"),
];

/// Objects that the cluster or the harness puts into every namespace.
const OF_OTHERS: [(&str, &str); 2] = [("ServiceAccount", "default"), ("ConfigMap", "kube-root-ca.crt")];

/// The state of a namespace and of its coderd.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot(BTreeMap<String, Value>);

impl Snapshot {
    /// Looks at some namespaces and servers.
    pub async fn take(
        client: &Client,
        namespaces: &[String],
        servers: &[&CoderSim],
        tokens: Option<usize>,
    ) -> kube::Result<Self> {
        let lists = namespaces.iter().flat_map(|namespace| {
            KINDS.map(|(group, version, kind, plural)| {
                let kind = GroupVersionKind::gvk(group, version, kind);
                let resource = ApiResource::from_gvk_with_plural(&kind, plural);
                let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
                async move { Ok::<_, kube::Error>((kind.kind, api.list(&ListParams::default()).await?.items)) }
            })
        });
        let mut all = BTreeMap::new();
        for (kind, objects) in try_join_all(lists).await? {
            for object in objects {
                let name = object.name_any();
                if OF_OTHERS.contains(&(kind.as_str(), name.as_str()))
                    || name.starts_with("coder-k8s")
                    || object.labels().get("sweep") == Some(&"ignored".to_owned())
                {
                    continue;
                }
                let namespace = object.namespace().unwrap_or_default();
                let place = namespaces.iter().position(|known| *known == namespace).unwrap_or_default();
                all.insert(format!("{kind} in namespace {place}: {name}"), of_object(&kind, &object));
            }
        }
        for (number, server) in servers.iter().enumerate() {
            all.insert(format!("coderd {number}"), of_server(server));
        }
        if let Some(tokens) = tokens {
            all.insert("tokens of the operator in the database".to_owned(), json!(tokens));
        }
        Ok(Self(symbolic(all, namespaces)))
    }

    /// What differs, one line each. Empty: nothing.
    pub fn difference(&self, expected: &Self) -> Vec<String> {
        let mut lines = Vec::new();
        for key in self.0.keys().chain(expected.0.keys().filter(|key| !self.0.contains_key(*key))) {
            match (expected.0.get(key), self.0.get(key)) {
                (Some(expected), Some(found)) => differ(key, expected, found, &mut lines),
                (Some(_), None) => lines.push(format!("{key} is missing")),
                (None, _) => lines.push(format!("{key} is left")),
            }
        }
        lines
    }
}

fn differ(path: &str, expected: &Value, found: &Value, lines: &mut Vec<String>) {
    match (expected, found) {
        (Value::Object(a), Value::Object(b)) => {
            for key in a.keys().chain(b.keys().filter(|key| !a.contains_key(*key))) {
                let (a, b) = (a.get(key).unwrap_or(&Value::Null), b.get(key).unwrap_or(&Value::Null));
                differ(&format!("{path}.{key}"), a, b, lines);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (number, (a, b)) in a.iter().zip(b).enumerate() {
                differ(&format!("{path}[{number}]"), a, b, lines);
            }
        }
        _ if expected == found => {}
        _ => lines.push(format!("{path}: {found} instead of {expected}")),
    }
}

fn of_object(kind: &str, object: &DynamicObject) -> Value {
    let mut value = serde_json::to_value(object).unwrap_or_default();
    let generation = object.metadata.generation;
    let references: Vec<_> = object
        .owner_references()
        .iter()
        .map(|owner| json!({"kind": owner.kind, "name": owner.name, "controller": owner.controller}))
        .collect();
    let mut annotations = object.annotations().clone();
    // Counted by the controllers of the cluster.
    annotations.remove("deployment.kubernetes.io/revision");
    // A hash of the object with its owner's uid: what was hashed is compared itself.
    annotations.remove("coder.com/applied-hash");
    value["metadata"] = json!({"labels": object.labels(), "annotations": annotations, "owners": references,
        "finalizers": object.finalizers(), "deleted": object.metadata.deletion_timestamp.is_some()});
    if let Some(top) = value.as_object_mut() {
        top.remove("apiVersion");
        top.remove("kind");
        if !kind.starts_with("Coder") {
            top.remove("status");
        }
    }
    if let Some(spec) = value["spec"].as_object_mut().filter(|_| kind == "Service") {
        for given in ["clusterIP", "clusterIPs", "healthCheckNodePort"] {
            spec.remove(given);
        }
        for port in spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
            port.as_object_mut().map(|port| port.remove("nodePort"));
        }
    }
    current(&mut value["status"], generation);
    // A map by type, which keeps the order in which conditions came.
    if let Some(conditions) = value["status"]["conditions"].as_array_mut() {
        conditions.sort_by_key(|condition| condition["type"].to_string());
        // What coderd reported when it was last asked, which an edit is no reason for.
        let reported = conditions.iter_mut().filter(|condition| condition["type"] == "Healthy");
        reported.filter_map(Value::as_object_mut).for_each(|said| drop(said.remove("observedGeneration")));
    }
    if value["status"].is_null() {
        value.as_object_mut().map(|top| top.remove("status"));
    }
    value
}

/// Says of each generation whether it is the present one, and leaves times out.
fn current(value: &mut Value, generation: Option<i64>) {
    match value {
        Value::Object(fields) => {
            // Daemons bear the names of their pods.
            fields.retain(|name, _| !name.ends_with("Time") && name != "asOf" && name != "list");
            for (name, value) in fields.iter_mut() {
                if name == "observedGeneration" {
                    *value = json!(value.as_i64() == generation);
                } else {
                    current(value, generation);
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|value| current(value, generation)),
        _ => {}
    }
}

fn of_server(server: &CoderSim) -> Value {
    let mut keys: Vec<_> = server
        .keys()
        .into_iter()
        .map(|key| {
            json!({"id": key.id, "name": key.name, "organization": key.organization, "tags": key.tags,
                "material": symbol_of_secret(key.material.expose_secret())})
        })
        .collect();
    keys.sort_by_key(|key| key["name"].to_string());
    let proxies: Vec<_> = server
        .proxies()
        .into_iter()
        .filter(|proxy| !proxy.deleted)
        .map(|proxy| {
            json!({"id": proxy.id, "name": proxy.name, "displayName": proxy.display_name,
            "token": symbol_of_secret(proxy.token.expose_secret())})
        })
        .collect();
    let mut licenses: Vec<_> = server.licenses().into_iter().map(|license| license.uuid).collect();
    licenses.sort();
    let tokens = server.token_names().iter().filter(|name| name.starts_with("coder-k8s-operator-")).count();
    json!({"keys": keys, "proxies": proxies, "licenses": licenses.len(), "tokens": tokens})
}

/// The data of Secrets is in base64, also where it comes from coderd.
fn symbol_of_secret(text: &str) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(text)
}

/// Replaces what differs in each run by symbols.
fn symbolic(all: BTreeMap<String, Value>, namespaces: &[String]) -> BTreeMap<String, Value> {
    let mut symbols = Symbols { known: BTreeMap::new(), namespaces };
    all.into_iter().map(|(key, value)| (symbols.text(&key), symbols.value(value, false))).collect()
}

struct Symbols<'a> {
    known: BTreeMap<String, String>,
    namespaces: &'a [String],
}

impl Symbols<'_> {
    fn value(&mut self, value: Value, is_secret: bool) -> Value {
        match value {
            Value::String(text) if is_secret => Value::String(self.symbol("SECRET", &text)),
            Value::String(text) => Value::String(self.text(&text)),
            Value::Array(values) => {
                Value::Array(values.into_iter().map(|value| self.value(value, is_secret)).collect())
            }
            Value::Object(fields) => {
                let fields = fields.into_iter().map(|(name, value)| {
                    let is_secret = is_secret || ["data", "material", "token"].contains(&name.as_str());
                    (self.text(&name), self.value(value, is_secret))
                });
                Value::Object(fields.collect::<Map<_, _>>())
            }
            other => other,
        }
    }

    fn symbol(&mut self, kind: &str, text: &str) -> String {
        let next = self.known.len();
        self.known.entry(text.to_owned()).or_insert_with(|| format!("{kind}-{next}")).clone()
    }

    /// A text whose ids, hashes, times and addresses are symbols.
    fn text(&mut self, text: &str) -> String {
        let mut text = text.to_owned();
        for (number, namespace) in self.namespaces.iter().enumerate() {
            text = text.replace(namespace.as_str(), &format!("NS{number}"));
        }
        if text.starts_with("postgres://") {
            return "DATABASE".to_owned();
        }
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == ':' || c == '.';
        let (mut made, mut word) = (String::new(), String::new());
        for c in text.chars().chain(['\0']) {
            if is_part(c) {
                word.push(c);
                continue;
            }
            if !word.is_empty() {
                made.push_str(&self.word(&word));
                word.clear();
            }
            if c != '\0' {
                made.push(c);
            }
        }
        made
    }

    fn word(&mut self, word: &str) -> String {
        let bytes = word.as_bytes();
        let is_hex = |part: &str| part.bytes().all(|byte| byte.is_ascii_hexdigit());
        let is_uuid = bytes.len() == 36 && word.split('-').count() == 5 && word.split('-').all(is_hex);
        if is_uuid {
            return self.symbol("ID", word);
        }
        let is_time = bytes.len() >= 19
            && bytes.get(4) == Some(&b'-')
            && bytes.get(10) == Some(&b'T')
            && bytes.iter().take(4).all(u8::is_ascii_digit);
        if is_time {
            return "TIME".to_owned();
        }
        if word.starts_with("127.") {
            return "ADDRESS".to_owned();
        }
        let parts = word.split('-').map(|part| {
            let is_random = part.len() >= 6
                && is_hex(part)
                && (part.len() == 8 || part.bytes().any(|byte| byte.is_ascii_digit()));
            if is_random { self.symbol("HASH", part) } else { part.to_owned() }
        });
        parts.collect::<Vec<_>>().join("-")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[(&str, Value)], namespace: &str) -> BTreeMap<String, Value> {
        let all = values.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        symbolic(all, &[namespace.to_owned()])
    }

    #[test]
    fn snapshots_are_equal_if_the_same_values_are_in_the_same_places() {
        let id = "3e2f1a00-0000-4000-8000-00000000000";
        let made = |ns: &str, first: &str, second: &str| {
            of(
                &[
                    ("coderd", json!({"keys": [{"id": format!("{id}{first}"), "material": "YWJj"}]})),
                    (
                        "status",
                        json!({"id": format!("{id}{second}"), "url": format!("http://coder.{ns}.svc")}),
                    ),
                ],
                ns,
            )
        };
        assert_eq!(made("one-1", "1", "1"), made("two-2", "7", "7"));
        assert_ne!(made("one-1", "1", "1"), made("two-2", "7", "8"));
    }

    #[test]
    fn a_difference_names_the_place() {
        let mut lines = Vec::new();
        differ("pool", &json!({"a": [1, {"b": 2}]}), &json!({"a": [1, {"b": 3}], "c": 1}), &mut lines);
        assert_eq!(lines, ["pool.a[1].b: 3 instead of 2", "pool.c: 1 instead of null"]);
    }
}
