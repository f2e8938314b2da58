//! Pools of a namespace.

use coder_k8s_api::{CoderProvisioner, CoderProvisionerStatus};
use coder_k8s_testbed::{AuditEvent, eventually};
use k8s_openapi::{api::apps::v1::Deployment, apimachinery::pkg::apis::meta::v1::Condition};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::support::{Operator, PATIENCE};

/// The pools of a namespace, and the operator that looks after them.
#[derive(Clone, Copy)]
pub struct Pools<'a> {
    pub client: &'a Client,
    pub namespace: &'a str,
    pub operator: &'a Operator,
}

impl Pools<'_> {
    fn api(&self) -> Api<CoderProvisioner> {
        Api::namespaced(self.client.clone(), self.namespace)
    }

    /// Makes a pool.
    pub async fn make(&self, name: &str, plane: &str, more: Value) {
        let mut spec = json!({"controlPlaneRef": {"name": plane}});
        for (field, value) in more.as_object().unwrap() {
            spec[field] = value.clone();
        }
        let object = json!({"apiVersion": "coder.com/v1alpha1", "kind": "CoderProvisioner",
            "metadata": {"name": name}, "spec": spec});
        let object = serde_json::from_value(object).unwrap();
        self.api().create(&PostParams::default(), &object).await.unwrap();
    }

    /// Edits the spec of a pool.
    pub async fn edit(&self, name: &str, spec: Value) -> CoderProvisioner {
        let patch = json!({"spec": spec});
        self.api().patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap()
    }

    /// Waits until something holds of a pool, and returns it.
    pub async fn until(&self, name: &str, holds: impl Fn(&CoderProvisioner) -> bool) -> CoderProvisioner {
        let api = self.api();
        let found = eventually(3 * PATIENCE, || async {
            let pool = api.get(name).await.map_err(|error| error.to_string())?;
            if holds(&pool) { Ok(pool) } else { Err(serde_json::to_string(&pool).unwrap()) }
        });
        found.await.unwrap_or_else(|error| panic!("{error}\n{}", self.log(name)))
    }

    /// Waits until a pool is ready in its present generation and nothing is left to be done about its key.
    pub async fn settles(&self, name: &str) -> CoderProvisioner {
        self.until(name, |pool| {
            let status = status(pool);
            is(pool, "Ready", "True", None) && status.pending_key.is_none() && status.stale_keys.is_empty()
        })
        .await
    }

    /// The Deployment of a pool.
    pub async fn deployment(&self, name: &str) -> Deployment {
        let api: Api<Deployment> = Api::namespaced(self.client.clone(), self.namespace);
        api.get(&format!("provisioner-{name}")).await.unwrap()
    }

    fn log(&self, name: &str) -> String {
        let output = self.operator.output();
        let ours = output.lines().filter(|line| line.contains(self.namespace) && line.contains(name));
        ours.collect::<Vec<_>>().join("\n")
    }
}

/// The status of a pool.
pub fn status(pool: &CoderProvisioner) -> CoderProvisionerStatus {
    pool.status.clone().unwrap_or_default()
}

/// A condition of a pool.
pub fn condition(pool: &CoderProvisioner, type_: &str) -> Option<Condition> {
    pool.status.as_ref()?.workload.conditions.iter().find(|c| c.type_ == type_).cloned()
}

/// Whether a condition of the present generation has this status and, if given, this reason.
pub fn is(pool: &CoderProvisioner, type_: &str, status: &str, reason: Option<&str>) -> bool {
    condition(pool, type_).is_some_and(|said| {
        said.observed_generation == pool.metadata.generation
            && said.status == status
            && reason.is_none_or(|reason| reason == said.reason)
    })
}

/// The writes of the status of pools among some requests.
pub fn status_writes(events: &[AuditEvent]) -> Vec<&AuditEvent> {
    let ours = |event: &&AuditEvent| event.resource == "coderprovisioners" && event.subresource == "status";
    crate::support::writes(events).into_iter().filter(ours).collect()
}

/// Requests as lines to read.
pub fn listed<'a>(events: impl IntoIterator<Item = &'a AuditEvent>) -> Vec<String> {
    let line = |event: &AuditEvent| {
        let AuditEvent { verb, resource, subresource, name, code, .. } = event;
        let slash = if subresource.is_empty() { "" } else { "/" };
        format!("{verb} {resource}{slash}{subresource} {name} {code}")
    };
    events.into_iter().map(line).collect()
}
