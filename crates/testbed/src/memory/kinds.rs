//! Resources that the server in memory serves.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Value, json};

use super::store::now;

/// A resource.
#[derive(Clone, Debug)]
pub(super) struct Kind {
    pub(super) api_version: String,
    pub(super) called: String,
    /// Whether the status is a subresource.
    pub(super) has_status: bool,
    /// Schema for defaults. `None` for built-in resources.
    pub(super) schema: Option<Value>,
}

const OWN: [(&str, &str, &str, bool); 16] = [
    ("v1", "namespaces", "Namespace", false),
    ("v1", "nodes", "Node", false),
    ("v1", "pods", "Pod", true),
    ("v1", "secrets", "Secret", false),
    ("v1", "configmaps", "ConfigMap", false),
    ("v1", "services", "Service", false),
    ("v1", "serviceaccounts", "ServiceAccount", false),
    ("apps/v1", "deployments", "Deployment", true),
    ("apps/v1", "replicasets", "ReplicaSet", true),
    ("coordination.k8s.io/v1", "leases", "Lease", false),
    ("events.k8s.io/v1", "events", "Event", false),
    ("rbac.authorization.k8s.io/v1", "roles", "Role", false),
    ("rbac.authorization.k8s.io/v1", "rolebindings", "RoleBinding", false),
    ("networking.k8s.io/v1", "ingresses", "Ingress", false),
    ("policy/v1", "poddisruptionbudgets", "PodDisruptionBudget", true),
    ("apiextensions.k8s.io/v1", "customresourcedefinitions", "CustomResourceDefinition", false),
];

/// Resources that servers in memory serve. Building them is slow, so they are built once for many servers.
#[derive(Clone, Debug)]
pub struct Kinds {
    /// By API version and plural.
    all: Arc<BTreeMap<(String, String), Kind>>,
    /// The definitions as objects, by name.
    pub(super) crds: Arc<Vec<(String, Value)>>,
}

impl Kinds {
    /// The resources of Kubernetes that the operator uses, and those of these definitions.
    pub fn new(crds: &[CustomResourceDefinition]) -> serde_json::Result<Self> {
        let own = OWN.iter().map(|(api_version, plural, kind, has_status)| {
            let (api_version, kind) = ((*api_version).to_owned(), (*kind).to_owned());
            let place = (api_version.clone(), (*plural).to_owned());
            (place, Kind { api_version, called: kind, has_status: *has_status, schema: None })
        });
        let mut all: BTreeMap<_, _> = own.collect();
        for crd in crds {
            for version in &crd.spec.versions {
                let api_version = format!("{}/{}", crd.spec.group, version.name);
                let schema = version.schema.as_ref().and_then(|schema| schema.open_api_v3_schema.as_ref());
                let kind = Kind {
                    api_version: api_version.clone(),
                    called: crd.spec.names.kind.clone(),
                    has_status: true,
                    schema: schema.map(serde_json::to_value).transpose()?,
                };
                all.insert((api_version, crd.spec.names.plural.clone()), kind);
            }
        }
        let crds = crds.iter().map(established).collect::<Result<_, _>>()?;
        Ok(Self { all: Arc::new(all), crds: Arc::new(crds) })
    }

    pub(super) fn get(&self, api_version: &str, plural: &str) -> Option<&Kind> {
        self.all.get(&(api_version.to_owned(), plural.to_owned()))
    }
}

/// A definition as an object with the condition `Established`.
fn established(crd: &CustomResourceDefinition) -> serde_json::Result<(String, Value)> {
    let mut object = serde_json::to_value(crd)?;
    let conditions = json!([{"type": "Established", "status": "True", "reason": "InitialNamesAccepted",
        "message": "", "lastTransitionTime": now()}]);
    let names = object.pointer("/spec/names").cloned().unwrap_or_default();
    if let Some(map) = object.as_object_mut() {
        let status = json!({"conditions": conditions, "acceptedNames": names, "storedVersions": []});
        map.insert("status".to_owned(), status);
    }
    Ok((crd.metadata.name.clone().unwrap_or_default(), object))
}
