//! Names in a spec that are no names: structure of a path, a query, or a label.

use std::collections::BTreeMap;

use coder_k8s_testbed::Shared;
use kube::Client;
use serde_json::{Value, json};

use crate::{
    Row, Verdict, ensure, is_asked_for, row,
    stage::{Stage, Tenant, make, object, try_out},
};

/// What is no name of an object.
const BAD: [(&str, &str, &str); 8] = [
    ("T1 name-query", "?watch=true&timeoutSeconds=60", "a query that opens a stream"),
    ("T1 name-slash", "a/status", "a slash"),
    ("T1 name-parent", "..", "the parent of the path"),
    ("T1 name-encoded", "a%2f..%2f..%2fsecrets", "an encoded slash"),
    ("T1 name-capitals", "Token", "upper-case letters"),
    ("T1 name-long", "", "254 characters"),
    ("T1 name-fragment", "a#b", "a fragment"),
    ("T1 name-break", "a\nb", "a line break"),
];

/// Where a reference by name can stand: the kind, and the path to the field.
const FIELDS: &[(&str, &str)] = &[
    ("CoderControlPlane", "extraEnv/[]/valueFrom/secretKeyRef/name"),
    ("CoderControlPlane", "extraEnv/[]/valueFrom/configMapKeyRef/name"),
    ("CoderControlPlane", "envFrom/[]/secretRef/name"),
    ("CoderControlPlane", "envFrom/[]/configMapRef/name"),
    ("CoderControlPlane", "volumes/[]/secret/secretName"),
    ("CoderControlPlane", "volumes/[]/configMap/name"),
    ("CoderControlPlane", "volumes/[]/projected/sources/[]/secret/name"),
    ("CoderControlPlane", "volumes/[]/projected/sources/[]/configMap/name"),
    ("CoderControlPlane", "imagePullSecrets/[]/name"),
    ("CoderControlPlane", "certs/secrets/[]/name"),
    ("CoderControlPlane", "licenseSecretRef/name"),
    ("CoderControlPlane", "operatorAccess/tokenSecretRef/name"),
    ("CoderControlPlane", "operatorAccess/firstUserSecretRef/name"),
    ("CoderControlPlane", "operatorAccess/caSecretRef/name"),
    ("CoderControlPlane", "operatorAccess/databaseCASecretRef/name"),
    ("CoderControlPlane", "operatorAccess/generatedTokenSecretName"),
    ("CoderControlPlane", "tls/secretNames/[]"),
    ("CoderControlPlane", "serviceAccount/name"),
    ("CoderControlPlane", "rbac/workspaceNamespaces/[]"),
    ("CoderProvisioner", "controlPlaneRef/name"),
    ("CoderProvisioner", "bootstrap/credentialsSecretRef/name"),
    ("CoderProvisioner", "key/secretName"),
    ("CoderProvisioner", "extraEnv/[]/valueFrom/secretKeyRef/name"),
    ("CoderProvisioner", "envFrom/[]/secretRef/name"),
    ("CoderProvisioner", "volumes/[]/secret/secretName"),
    ("CoderProvisioner", "imagePullSecrets/[]/name"),
    ("CoderWorkspaceProxy", "controlPlaneRef/name"),
    ("CoderWorkspaceProxy", "bootstrap/credentialsSecretRef/name"),
    ("CoderWorkspaceProxy", "bootstrap/caSecretRef/name"),
    ("CoderWorkspaceProxy", "registration/generatedTokenSecretName"),
    ("CoderWorkspaceProxy", "proxySessionTokenSecretRef/name"),
    ("CoderWorkspaceProxy", "extraEnv/[]/valueFrom/configMapKeyRef/name"),
    ("CoderWorkspaceProxy", "envFrom/[]/configMapRef/name"),
    ("CoderWorkspaceProxy", "tls/secretNames/[]"),
];

/// Rows of objects that were stored before the schema refused them: the name, and where it stands.
const STORED: [(&str, &str, &str); 8] = [
    ("T1 stored-query-env", "?watch=true&timeoutSeconds=60", "extraEnv/[]/valueFrom/secretKeyRef/name"),
    ("T1 stored-query-map", "?watch=true&timeoutSeconds=60", "extraEnv/[]/valueFrom/configMapKeyRef/name"),
    ("T1 stored-list-env", "?limit=500", "extraEnv/[]/valueFrom/secretKeyRef/name"),
    ("T1 stored-query-env-from", "?watch=true&timeoutSeconds=60", "envFrom/[]/secretRef/name"),
    ("T1 stored-query-license", "?watch=true&timeoutSeconds=60", "licenseSecretRef/name"),
    ("T1 stored-query-token", "?watch=true&timeoutSeconds=60", "operatorAccess/tokenSecretRef/name"),
    ("T1 stored-parent", "..", "extraEnv/[]/valueFrom/secretKeyRef/name"),
    ("T1 stored-encoded", "..%2f..%2fkube-system%2fsecrets", "licenseSecretRef/name"),
];

/// So many objects of each such row: of the first as many as there are workers, because each may hold one.
fn count(id: &str) -> usize {
    if id == STORED[0].0 { 16 } else { 3 }
}

/// The rows.
pub(crate) fn rows() -> Vec<Row> {
    let refused = BAD.map(|(id, name, what)| {
        let name = if name.is_empty() { "a".repeat(254) } else { name.to_owned() };
        row(id, what, "every reference by name refuses it", move |stage| {
            refused_everywhere(stage, name.clone())
        })
    });
    let harmless = STORED.map(|(id, _, _)| {
        let does = "stored objects of an earlier release have such a name";
        row(id, does, "no request carries it", move |stage| harmless(stage, id))
    });
    refused.into_iter().chain(harmless).collect()
}

/// Stores the objects of the rows.
pub(crate) async fn store(shared: &Shared, client: &Client) -> BTreeMap<&'static str, String> {
    let mut stored = BTreeMap::new();
    for (id, name, field) in STORED.into_iter().filter(|(id, ..)| is_asked_for(id)) {
        let namespace = shared.namespace("stored").await.name().to_owned();
        for number in 0..count(id) {
            let plane = object("CoderControlPlane", &format!("coder-{number}"), spec_with(field, name));
            make(client, &namespace, plane).await.unwrap();
        }
        stored.insert(id, namespace);
    }
    stored
}

/// A spec with a name at a place, and what else is required there.
fn spec_with(field: &str, name: &str) -> Value {
    let mut value = json!(name);
    for part in field.split('/').rev() {
        value = if part == "[]" { json!([value]) } else { json!({part: value}) };
    }
    let mut spec = value;
    if field.contains("KeyRef") {
        let kind = if field.contains("secretKeyRef") { "secretKeyRef" } else { "configMapKeyRef" };
        spec["extraEnv"][0]["name"] = json!("CODER_PG_CONNECTION_URL");
        spec["extraEnv"][0]["valueFrom"][kind]["key"] = json!("url");
    }
    if field.starts_with("volumes") {
        spec["volumes"][0]["name"] = json!("data");
    }
    if field.starts_with("certs") {
        spec["certs"]["secrets"][0]["key"] = json!("ca.crt");
    }
    if field.starts_with("operatorAccess/tokenSecretRef") {
        spec["operatorAccess"]["method"] = json!("TokenSecret");
    }
    if field.starts_with("operatorAccess/firstUserSecretRef") {
        spec["operatorAccess"]["method"] = json!("FirstUser");
    }
    spec
}

/// An object of a kind with a name at a place, complete but for that.
fn object_with(kind: &str, field: &str, name: &str) -> Value {
    let mut spec = spec_with(field, name);
    let proxy = kind == "CoderWorkspaceProxy";
    if proxy && field.starts_with("bootstrap") {
        spec["bootstrap"]["coderURL"] = json!("https://coder.example.test");
        if !field.contains("credentialsSecretRef") {
            spec["bootstrap"]["credentialsSecretRef"] = json!({"name": "token"});
        }
        if !field.contains("registration") {
            spec["bootstrap"]["registration"] = json!({});
        }
    } else if field.starts_with("proxySessionTokenSecretRef") {
        spec["primaryAccessURL"] = json!("https://coder.example.test");
    } else if kind != "CoderControlPlane" && !field.starts_with("controlPlaneRef") {
        spec["controlPlaneRef"] = json!({"name": "coder"});
    }
    if proxy {
        spec["accessURL"] = json!("https://eu.example.test");
    }
    object(kind, "named", spec)
}

/// Every field takes a good name, or the row would prove nothing, and refuses the bad one.
async fn refused_everywhere(stage: &'static Stage, name: String) -> Verdict {
    let mut accepted = Vec::new();
    for (kind, field) in FIELDS {
        let bad = try_out(&stage.client, "default", object_with(kind, field, &name)).await;
        if bad.is_ok() {
            accepted.push(format!("{kind} {field}"));
        }
        if name == ".." {
            let good = try_out(&stage.client, "default", object_with(kind, field, "good")).await;
            good.map_err(|error| format!("{kind} {field} refuses a good name: {error}"))?;
        }
    }
    ensure(accepted.is_empty(), || {
        format!("{} of {} accept it: {}", accepted.len(), FIELDS.len(), accepted.join(", "))
    })?;
    Ok(format!("refused at {} places", FIELDS.len()))
}

/// The objects are looked at, and no request leaves the path of a single object.
async fn harmless(stage: &'static Stage, id: &'static str) -> Verdict {
    let tenant = Tenant { stage, namespace: stage.stored[id].clone() };
    for number in 0..count(id) {
        tenant.until_observed("CoderControlPlane", &format!("coder-{number}")).await?;
    }
    let odd = |uri: &str| {
        uri.contains("watch=") || uri.contains("limit=") || uri.contains("..") || uri.contains('%')
    };
    let within = format!("/namespaces/{}/", tenant.namespace);
    let all = stage.requests(|event| event.uri.contains(&within) && odd(&event.uri));
    let of_secrets = stage.requests(|event| {
        event.uri.contains(&within)
            && event.resource == "secrets"
            && event.name.is_empty()
            && event.verb != "create"
    });
    ensure(all.is_empty() && of_secrets.is_empty(), || {
        let first = all.iter().chain(&of_secrets).next().unwrap();
        format!("{} such requests: {} {}", all.len().max(of_secrets.len()), first.verb, first.uri)
    })?;
    Ok(format!("{} requests", tenant.requests().len()))
}
