//! The environment of a container, as the kubelet builds it. Pure.
//!
//! `envFrom` comes first, then `env` in order. `$(NAME)` in a value stands for an earlier variable, and `$$(NAME)`
//! for itself. A missing reference that is not optional is an error in the words of the kubelet. The variables of
//! Services are left out, because no program here needs them.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{ConfigMap, Container, EnvVar, EnvVarSource, Pod, Secret};
use kube::ResourceExt as _;

/// Variables by name, in order of definition.
pub(super) type Environment = Vec<(String, String)>;

/// Secrets and ConfigMaps by name. `None` for one that does not exist.
#[derive(Default)]
pub(super) struct Found {
    pub(super) secrets: BTreeMap<String, Option<Secret>>,
    pub(super) config_maps: BTreeMap<String, Option<ConfigMap>>,
}

/// Names of the Secrets and of the ConfigMaps that a container reads.
pub(super) fn needs(container: &Container) -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut secrets, mut config_maps) = (BTreeSet::new(), BTreeSet::new());
    for source in container.env_from.iter().flatten() {
        secrets.extend(source.secret_ref.iter().map(|it| it.name.clone()));
        config_maps.extend(source.config_map_ref.iter().map(|it| it.name.clone()));
    }
    for source in container.env.iter().flatten().filter_map(|entry| entry.value_from.as_ref()) {
        secrets.extend(source.secret_key_ref.iter().map(|it| it.name.clone()));
        config_maps.extend(source.config_map_key_ref.iter().map(|it| it.name.clone()));
    }
    (secrets, config_maps)
}

/// Variables of a container in a pod with this address.
pub(super) fn resolve(
    container: &Container,
    pod: &Pod,
    address: &str,
    found: &Found,
) -> Result<Environment, String> {
    let mut all = Environment::new();
    for source in container.env_from.iter().flatten() {
        let prefix = source.prefix.as_deref().unwrap_or_default();
        if let Some(it) = &source.config_map_ref {
            match found.config_map(&it.name) {
                Some(map) => {
                    for (key, value) in map.data.iter().flatten() {
                        set(&mut all, format!("{prefix}{key}"), value.clone());
                    }
                }
                None if it.optional == Some(true) => {}
                None => return Err(format!("configmap \"{}\" not found", it.name)),
            }
        }
        if let Some(it) = &source.secret_ref {
            match found.secret(&it.name) {
                Some(secret) => {
                    for (key, value) in secret.data.iter().flatten() {
                        set(&mut all, format!("{prefix}{key}"), text(&it.name, key, &value.0)?);
                    }
                }
                None if it.optional == Some(true) => {}
                None => return Err(format!("secret \"{}\" not found", it.name)),
            }
        }
    }
    for EnvVar { name, value, value_from } in container.env.iter().flatten() {
        let value = match value_from {
            None => Some(expand(value.as_deref().unwrap_or_default(), &all)),
            Some(source) => from_source(source, pod, address, found)?,
        };
        if let Some(value) = value {
            set(&mut all, name.clone(), value);
        }
    }
    Ok(all)
}

/// Replaces references to variables. An unknown reference stays as written.
pub(super) fn expand(literal: &str, known: &Environment) -> String {
    let mut expanded = String::new();
    let mut rest = literal;
    while let Some((before, after)) = rest.split_once('$') {
        expanded.push_str(before);
        let (written, value, left) = if let Some(after) = after.strip_prefix('$') {
            ("$", None, after)
        } else if let Some((name, after)) = after.strip_prefix('(').and_then(|inside| inside.split_once(')'))
        {
            let value = known.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str());
            let written = rest.get(before.len()..rest.len() - after.len()).unwrap_or_default();
            (written, value, after)
        } else {
            ("$", None, after)
        };
        expanded.push_str(value.unwrap_or(written));
        rest = left;
    }
    expanded + rest
}

impl Found {
    fn secret(&self, name: &str) -> Option<&Secret> {
        self.secrets.get(name)?.as_ref()
    }

    fn config_map(&self, name: &str) -> Option<&ConfigMap> {
        self.config_maps.get(name)?.as_ref()
    }
}

fn set(all: &mut Environment, name: String, value: String) {
    match all.iter_mut().find(|(other, _)| *other == name) {
        Some(entry) => entry.1 = value,
        None => all.push((name, value)),
    }
}

fn from_source(
    source: &EnvVarSource,
    pod: &Pod,
    address: &str,
    found: &Found,
) -> Result<Option<String>, String> {
    let EnvVarSource { config_map_key_ref, field_ref, secret_key_ref, .. } = source;
    if let Some(it) = field_ref {
        return match field(pod, address, &it.field_path) {
            Some(value) => Ok(Some(value)),
            None => Err(format!("the testbed's node does not know the field {}", it.field_path)),
        };
    }
    if let Some(it) = secret_key_ref {
        let namespace = pod.namespace().unwrap_or_default();
        let secret = found.secret(&it.name);
        let value = secret.and_then(|secret| secret.data.as_ref()?.get(&it.key));
        return match (secret, value) {
            (_, Some(value)) => text(&it.name, &it.key, &value.0).map(Some),
            _ if it.optional == Some(true) => Ok(None),
            (None, None) => Err(format!("secret \"{}\" not found", it.name)),
            (Some(_), None) => Err(format!("couldn't find key {} in Secret {namespace}/{}", it.key, it.name)),
        };
    }
    if let Some(it) = config_map_key_ref {
        let namespace = pod.namespace().unwrap_or_default();
        let map = found.config_map(&it.name);
        let value = map.and_then(|map| map.data.as_ref()?.get(&it.key));
        return match (map, value) {
            (_, Some(value)) => Ok(Some(value.clone())),
            _ if it.optional == Some(true) => Ok(None),
            (None, None) => Err(format!("configmap \"{}\" not found", it.name)),
            (Some(_), None) => {
                Err(format!("couldn't find key {} in ConfigMap {namespace}/{}", it.key, it.name))
            }
        };
    }
    Err("the testbed's node does not know this source of an environment variable".to_owned())
}

/// The error does not quote the value, which may be secret.
fn text(name: &str, key: &str, value: &[u8]) -> Result<String, String> {
    String::from_utf8(value.to_vec()).map_err(|_| format!("key {key} of Secret {name} is not text"))
}

fn field(pod: &Pod, address: &str, path: &str) -> Option<String> {
    let spec = pod.spec.as_ref();
    let in_map = |map: &BTreeMap<String, String>, key: &str| map.get(key).cloned().unwrap_or_default();
    if let Some((map, key)) = path.strip_suffix("']").and_then(|path| path.split_once("['")) {
        return match map {
            "metadata.labels" => Some(in_map(pod.labels(), key)),
            "metadata.annotations" => Some(in_map(pod.annotations(), key)),
            _ => None,
        };
    }
    match path {
        "metadata.name" => Some(pod.name_any()),
        "metadata.namespace" => pod.namespace(),
        "metadata.uid" => pod.uid(),
        "spec.nodeName" => spec?.node_name.clone(),
        "spec.serviceAccountName" => spec?.service_account_name.clone(),
        "status.hostIP" | "status.hostIPs" => Some("127.0.0.1".to_owned()),
        // The listen address: no process can listen on the address in the API.
        "status.podIP" | "status.podIPs" => Some(address.to_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn found() -> Found {
        let secret =
            json!({"metadata": {"name": "db"}, "data": {"uri": "cG9zdGdyZXM6Ly8kKEEp", "raw": "/w=="}});
        let map = json!({"metadata": {"name": "settings"}, "data": {"A": "map", "B": "2"}});
        Found {
            secrets: [("db".to_owned(), Some(serde_json::from_value(secret).unwrap()))].into(),
            config_maps: [("settings".to_owned(), Some(serde_json::from_value(map).unwrap()))].into(),
        }
    }

    fn resolved(container: Value) -> Result<Vec<String>, String> {
        let mut container = container;
        container["name"] = json!("main");
        let container: Container = serde_json::from_value(container).unwrap();
        let pod = json!({"metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": {"app": "web"}},
            "spec": {"containers": [], "nodeName": "node"}});
        let all = resolve(&container, &serde_json::from_value(pod).unwrap(), "127.9.0.1", &found())?;
        Ok(all.into_iter().map(|(name, value)| format!("{name}={value}")).collect())
    }

    fn key(kind: &str, name: &str, key: &str, optional: bool) -> Value {
        json!({"env": [{"name": "X", "valueFrom": {kind: {"name": name, "key": key, "optional": optional}}}]})
    }

    #[test]
    fn literals_refer_to_what_is_before_them() {
        let all = json!({"env": [
            {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "URL", "value": "http://$(IP):80/$(LATER)$$(IP)$"},
            {"name": "LATER", "value": "x"},
            {"name": "IP", "value": "$(IP)!"},
        ]});
        assert_eq!(
            resolved(all).unwrap(),
            ["IP=127.9.0.1!", "URL=http://127.9.0.1:80/$(LATER)$(IP)$", "LATER=x"]
        );
    }

    #[test]
    fn whole_sources_come_first_with_their_prefix_and_are_not_expanded() {
        let all = json!({
            "envFrom": [{"configMapRef": {"name": "settings"}},
                {"prefix": "P_", "configMapRef": {"name": "settings"}},
                {"secretRef": {"name": "absent", "optional": true}}],
            "env": [{"name": "A", "value": "own"},
                {"name": "C", "valueFrom": {"secretKeyRef": {"name": "db", "key": "uri"}}}],
        });
        assert_eq!(resolved(all).unwrap(), ["A=own", "B=2", "P_A=map", "P_B=2", "C=postgres://$(A)"]);
    }

    #[test]
    fn what_is_missing_is_said_unless_it_is_optional() {
        for (container, problem) in [
            (key("secretKeyRef", "absent", "k", false), "secret \"absent\" not found"),
            (key("secretKeyRef", "db", "k", false), "couldn't find key k in Secret n/db"),
            (key("secretKeyRef", "db", "raw", false), "key raw of Secret db is not text"),
            (key("configMapKeyRef", "absent", "k", false), "configmap \"absent\" not found"),
            (key("configMapKeyRef", "settings", "k", false), "couldn't find key k in ConfigMap n/settings"),
            (json!({"envFrom": [{"secretRef": {"name": "absent"}}]}), "secret \"absent\" not found"),
        ] {
            assert_eq!(resolved(container).unwrap_err(), problem);
        }
        for kind in ["secretKeyRef", "configMapKeyRef"] {
            assert_eq!(resolved(key(kind, "absent", "k", true)).unwrap(), Vec::<String>::new());
        }
    }

    #[test]
    fn fields_of_the_pod_are_known() {
        for (path, value) in [
            ("metadata.name", "p"),
            ("metadata.namespace", "n"),
            ("metadata.labels['app']", "web"),
            ("metadata.annotations['none']", ""),
            ("spec.nodeName", "node"),
        ] {
            let all = json!({"env": [{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": path}}}]});
            assert_eq!(resolved(all).unwrap(), [format!("X={value}")]);
        }
        let odd = json!({"env": [{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "spec.odd"}}}]});
        assert!(resolved(odd).unwrap_err().contains("spec.odd"));
    }
}
