//! A namespace of one test in the shared cluster, and what tests do and ask there.

use std::{collections::BTreeMap, fmt::Debug, time::Duration};

use coder_k8s::manifests::Install;
use coder_k8s_api::{CoderControlPlane, CoderControlPlaneStatus, crds};
use coder_k8s_testbed::{AuditEvent, Shared, eventually, shared_with};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Container, EnvVar, Namespace, PodSpec};
use k8s_openapi::api::{apps::v1::Deployment, events::v1::Event};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::support::{Operator, PATIENCE, grant, requests};

/// Kinds that tests look at: all in a namespace.
pub trait Kind:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + Serialize + DeserializeOwned
{
}

impl<K> Kind for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + Serialize
        + DeserializeOwned
{
}

/// A namespace of one test, looked after by the operator that all tests share.
pub struct Scene {
    pub shared: &'static Shared,
    pub client: Client,
    pub namespace: String,
    pub operator: &'static Operator,
}

impl Scene {
    /// A new namespace.
    pub async fn new(prefix: &str) -> Self {
        static OPERATOR: OnceCell<Operator> = OnceCell::const_new();
        let shared = shared_with(crds).await;
        let client = shared.cluster.client();
        let operator = OPERATOR.get_or_init(|| async {
            grant(&shared.cluster.client(), &Install::default()).await;
            let operator = Operator::start(&shared.cluster, crate::OPERATOR);
            operator.leads().await;
            operator
        });
        let operator = operator.await;
        let namespace = shared.namespace(prefix).await.name().to_owned();
        Self { shared, client, namespace, operator }
    }

    /// The default namespace of a cluster of the test's own. What belongs to the shared cluster is of no use there.
    pub async fn alone(client: Client, operator: Operator) -> Self {
        let shared = shared_with(crds).await;
        Self { shared, client, namespace: "default".to_owned(), operator: Box::leak(Box::new(operator)) }
    }

    /// Another namespace of this test.
    pub async fn another(&self, prefix: &str, labels: Value) -> String {
        let name = self.shared.namespace(prefix).await.name().to_owned();
        self.label(&name, labels).await;
        name
    }

    /// The label with which a namespace consents to workspaces of this one.
    pub fn consent(&self) -> Value {
        json!({format!("workspaces.coder.com/{}", self.namespace): "allow"})
    }

    /// Sets labels of a namespace.
    pub async fn label(&self, namespace: &str, labels: Value) {
        let api: Api<Namespace> = Api::all(self.client.clone());
        let patch = json!({"metadata": {"labels": labels}});
        api.patch(namespace, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
    }

    /// Objects of a kind in the namespace of the test.
    pub fn api<K: Kind>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Objects of a kind in any namespace.
    pub fn api_in<K: Kind>(&self, namespace: &str) -> Api<K> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Makes an object of any kind.
    pub async fn create<K: Kind>(&self, object: Value) -> K {
        let object: K = serde_json::from_value(object).unwrap();
        self.api().create(&PostParams::default(), &object).await.unwrap()
    }

    /// Makes a control plane.
    pub async fn plane(&self, name: &str, spec: Value) -> CoderControlPlane {
        self.create(json!({
            "apiVersion": "coder.com/v1alpha1", "kind": "CoderControlPlane",
            "metadata": {"name": name}, "spec": spec,
        }))
        .await
    }

    /// Edits an object by a merge patch.
    pub async fn edit<K: Kind>(&self, name: &str, patch: Value) -> K {
        self.api().patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap()
    }

    /// Edits the spec of a control plane.
    pub async fn spec(&self, name: &str, patch: Value) {
        self.edit::<CoderControlPlane>(name, json!({"spec": patch})).await;
    }

    /// Deletes an object.
    pub async fn delete<K: Kind>(&self, name: &str) {
        self.api::<K>().delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// Waits until something holds of an object, and returns it.
    pub async fn until<K: Kind>(&self, name: &str, holds: impl Fn(&K) -> bool) -> K {
        self.until_in(&self.namespace, name, holds).await
    }

    /// Waits until something holds of an object in any namespace, and returns it.
    pub async fn until_in<K: Kind>(&self, namespace: &str, name: &str, holds: impl Fn(&K) -> bool) -> K {
        let api = self.api_in::<K>(namespace);
        let found = eventually(PATIENCE, || async {
            let object = api.get(name).await.map_err(|error| error.to_string())?;
            if holds(&object) { Ok(object) } else { Err(serde_json::to_string(&object).unwrap()) }
        });
        found.await.unwrap_or_else(|error| panic!("{error}\n{}", self.log()))
    }

    /// Waits until an object is there.
    pub async fn there<K: Kind>(&self, name: &str) -> K {
        self.until(name, |_| true).await
    }

    /// Waits until an object is gone.
    pub async fn gone<K: Kind>(&self, name: &str) {
        self.gone_in::<K>(&self.namespace, name).await;
    }

    /// Waits until an object of any namespace is gone.
    pub async fn gone_in<K: Kind>(&self, namespace: &str, name: &str) {
        let api = self.api_in::<K>(namespace);
        let gone = eventually(PATIENCE, || async {
            match api.get_opt(name).await.map_err(|error| error.to_string())? {
                None => Ok(()),
                Some(object) => Err(serde_json::to_string(&object).unwrap()),
            }
        });
        gone.await.unwrap_or_else(|error| panic!("still there: {error}\n{}", self.log()));
    }

    /// Whether there is no such object now.
    pub async fn absent<K: Kind>(&self, name: &str) -> bool {
        self.api::<K>().get_opt(name).await.unwrap().is_none()
    }

    /// Waits until a control plane is ready in its present generation.
    pub async fn ready(&self, name: &str) -> CoderControlPlane {
        self.says(name, "Ready", "True", None).await
    }

    /// Waits until the present generation of a control plane was observed.
    pub async fn observed(&self, name: &str) -> CoderControlPlane {
        self.until(name, |plane: &CoderControlPlane| {
            let observed = plane.status.as_ref().and_then(|s| s.workload.observed_generation);
            observed == plane.metadata.generation
        })
        .await
    }

    /// Waits until a condition of the present generation has this status and, if given, this reason.
    pub async fn says(
        &self,
        name: &str,
        type_: &str,
        status: &str,
        reason: Option<&str>,
    ) -> CoderControlPlane {
        self.until(name, |plane: &CoderControlPlane| {
            let said = condition(plane, type_);
            let current = said.as_ref().is_some_and(|c| c.observed_generation == plane.metadata.generation);
            current && said.is_some_and(|c| c.status == status && reason.is_none_or(|r| r == c.reason))
        })
        .await
    }

    /// The pods' template of a control plane, once its present generation was observed.
    pub async fn pod(&self, name: &str) -> PodSpec {
        self.observed(name).await;
        self.there::<Deployment>(name).await.spec.unwrap().template.spec.unwrap()
    }

    /// The main container.
    pub async fn container(&self, name: &str) -> Container {
        self.pod(name).await.containers.remove(0)
    }

    /// The image that the Deployment asks for now, observed or not.
    pub async fn container_image(&self, name: &str) -> String {
        let pod = self.there::<Deployment>(name).await.spec.unwrap().template.spec.unwrap();
        pod.containers[0].image.clone().unwrap()
    }

    /// The environment of the main container by name.
    pub async fn env(&self, name: &str) -> BTreeMap<String, EnvVar> {
        let env = self.container(name).await.env.unwrap_or_default();
        let count = env.len();
        let by_name: BTreeMap<_, _> = env.into_iter().map(|entry| (entry.name.clone(), entry)).collect();
        assert_eq!(by_name.len(), count, "a name occurs twice");
        by_name
    }

    /// The plain value of an environment entry.
    pub async fn env_value(&self, name: &str, variable: &str) -> Option<String> {
        self.env(name).await.remove(variable).and_then(|entry| entry.value)
    }

    /// The operator's events about an object, as (type, reason), oldest first.
    pub async fn events(&self, name: &str) -> Vec<(String, String)> {
        let mut all = self.api::<Event>().list(&ListParams::default()).await.unwrap().items;
        all.retain(|event| event.reporting_controller.as_deref() == Some("coder-k8s"));
        all.retain(|event| event.regarding.as_ref().is_some_and(|r| r.name.as_deref() == Some(name)));
        all.sort_by_key(|event| event.event_time.as_ref().map(|time| time.0));
        all.into_iter()
            .map(|event| (event.type_.unwrap_or_default(), event.reason.unwrap_or_default()))
            .collect()
    }

    /// The requests of the operator so far that concern a namespace.
    pub fn requests_in(&self, namespace: &str) -> Vec<AuditEvent> {
        let all = requests(&self.shared.cluster, |user| user == self.operator.user);
        all.into_iter().filter(|event| event.namespace == namespace).collect()
    }

    /// Waits until the operator has written nothing in the namespace of the test for a while.
    pub async fn rests(&self) {
        let count = || crate::support::writes(&self.requests_in(&self.namespace)).len();
        let mut last = count();
        for _ in 0..30 {
            tokio::time::sleep(Duration::from_secs(2)).await;
            let now = count();
            if now == last {
                return;
            }
            last = now;
        }
        panic!("the operator does not come to rest:\n{}", self.log());
    }

    /// Asserts that the operator writes nothing in the namespace of the test for a while.
    pub async fn quiet(&self, time: Duration) {
        let before = self.requests_in(&self.namespace).len();
        tokio::time::sleep(time).await;
        let all = self.requests_in(&self.namespace);
        let written = crate::support::writes(&all[before..]);
        assert!(written.is_empty(), "{written:?}");
    }

    /// What the operator has said about the namespace of the test.
    pub fn log(&self) -> String {
        let output = self.operator.output();
        output.lines().filter(|line| line.contains(&self.namespace)).collect::<Vec<_>>().join("\n")
    }
}

/// A condition of a control plane.
pub fn condition(
    plane: &CoderControlPlane,
    type_: &str,
) -> Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition> {
    plane.status.as_ref()?.workload.conditions.iter().find(|c| c.type_ == type_).cloned()
}

/// The message of a condition.
pub fn message(plane: &CoderControlPlane, type_: &str) -> String {
    condition(plane, type_).unwrap_or_else(|| panic!("no {type_}: {:?}", plane.status)).message
}

/// The status of a control plane.
pub fn status(plane: &CoderControlPlane) -> CoderControlPlaneStatus {
    plane.status.clone().unwrap_or_default()
}

/// Whether a child belongs to a control plane and to nobody else.
pub fn belongs<K: Kind>(child: &K, plane: &CoderControlPlane) -> bool {
    matches!(child.owner_references(), [owner] if owner.kind == "CoderControlPlane"
        && owner.controller == Some(true) && Some(&owner.uid) == plane.uid().as_ref())
}
