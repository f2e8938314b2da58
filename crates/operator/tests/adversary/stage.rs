//! The cluster, the operator that everybody shares, and namespaces of tenants.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::Mutex,
    time::Duration,
};

use coder_k8s::manifests::Install;
use coder_k8s_api::crds;
use coder_k8s_scenes::{Operator, grant};
use coder_k8s_testbed::{
    AuditEvent, Shared, SharedCluster,
    codersim::{CoderSim, Mode},
    eventually,
};
use futures::StreamExt;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{
    Api, Client, ResourceExt,
    api::{
        ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
        PostParams,
    },
};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};

use crate::{Verdict, hostile::text_of, tenant};

/// How long the operator may take to say something about an object, beside all attacks.
pub(crate) const SOON: Duration = Duration::from_secs(40);

/// Time is scaled, so that every interval ends several times.
const ARGS: &[&str] = &[
    "--entitlements-interval=4s",
    "--verify-interval=8s",
    "--daemons-interval=2s",
    "--coderd-timeout=2s",
    "--database-timeout=2s",
    "--cleanup-timeout=6s",
    "--request-timeout=5s",
    "--allowed-coder-urls=https://shared.adversary.test,http://slow.adversary.test,http://plain.adversary.test",
];

/// Without a controller-manager: most of the work would be that of its pods. [`roll_out`] takes the place of those.
static CLUSTER: SharedCluster = SharedCluster::without_controllers(relaxed_crds);

/// The definitions without rules for text: what an earlier release may have let in.
fn relaxed_crds() -> Vec<CustomResourceDefinition> {
    let relaxed = crds().into_iter().map(|crd| {
        let mut value = serde_json::to_value(crd).unwrap();
        relax(&mut value["spec"]["versions"]);
        serde_json::from_value(value).unwrap()
    });
    relaxed.collect()
}

fn relax(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            // A property of such a name is a schema, and not a text, a number or a list.
            fields.retain(|name, value| {
                !matches!(name.as_str(), "pattern" | "maxLength" | "minLength" | "x-kubernetes-validations")
                    || value.is_object()
            });
            fields.values_mut().for_each(relax);
        }
        Value::Array(items) => items.iter_mut().for_each(relax),
        _ => {}
    }
}

/// Everything that attacks share.
pub(crate) struct Stage {
    pub(crate) shared: &'static Shared,
    pub(crate) operator: &'static Operator,
    /// As an administrator.
    pub(crate) client: Client,
    /// The namespaces of objects that were stored before the operator began, by the name of the row.
    pub(crate) stored: BTreeMap<&'static str, String>,
    /// Every secret value that was used, and whose it is.
    secrets: Mutex<BTreeMap<String, String>>,
    running: Mutex<BTreeSet<&'static str>>,
    /// A coderd that answers properly, for those who attack with something else.
    coderd: CoderSim,
}

/// Ends with the attack.
pub(crate) struct Running(&'static Stage, &'static str);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.lock().unwrap().remove(self.1);
    }
}

impl Stage {
    /// Starts the cluster, stores what only an earlier release let in, and starts the operator.
    pub(crate) async fn start() -> &'static Self {
        let shared = CLUSTER.get().await;
        let client = shared.cluster.client();
        grant(&client, &Install::default()).await;
        let stored = tenant::store(shared, &client).await;
        restore_crds(&client).await;
        tokio::spawn(roll_out(client.clone()));
        let operator: &'static Operator = Box::leak(Box::new(Operator::start(&shared.cluster, ARGS)));
        operator.until_leading().await;
        let (secrets, running) = (Mutex::default(), Mutex::default());
        let coderd = CoderSim::start(Mode::Unlicensed).await.unwrap();
        // Many rows share it, from one address.
        coderd.set_rate_limit(None);
        Box::leak(Box::new(Self { shared, operator, client, stored, secrets, running, coderd }))
    }

    /// Notes that an attack is under way.
    pub(crate) fn running(&'static self, id: &'static str) -> Running {
        self.running.lock().unwrap().insert(id);
        Running(self, id)
    }

    /// The attacks that are under way.
    pub(crate) fn under_way(&self) -> Vec<&'static str> {
        self.running.lock().unwrap().iter().copied().collect()
    }

    /// A value that nobody may ever read in what the operator writes.
    pub(crate) fn never_shown(&self, value: &str, whose: &str) {
        self.secrets.lock().unwrap().insert(value.to_owned(), whose.to_owned());
    }

    /// All of them, with whose they are.
    pub(crate) fn secrets(&self) -> BTreeMap<String, String> {
        self.secrets.lock().unwrap().clone()
    }

    /// The requests of the operator so far for which something holds.
    pub(crate) fn requests(&self, holds: impl Fn(&AuditEvent) -> bool) -> Vec<AuditEvent> {
        let ours =
            |event: &AuditEvent| event.impersonated.as_ref() == Some(&self.operator.user) && holds(event);
        self.shared.cluster.audit_where(ours).unwrap()
    }

    /// A metric of the operator: the sum over its labels.
    pub(crate) async fn metrics(&self) -> String {
        self.operator.get("--metrics-addr", "/metrics").await.1
    }
}

/// Says of every Deployment that all its pods are ready.
async fn roll_out(client: Client) {
    let all: Api<Deployment> = Api::all(client.clone());
    let written = watcher(all, watcher::Config::default()).applied_objects().for_each_concurrent(8, |deployment| {
        let client = client.clone();
        async move {
            let Ok(deployment) = deployment else { return };
            let (generation, spec) = (deployment.metadata.generation, deployment.spec.clone().unwrap_or_default());
            if deployment.status.as_ref().and_then(|status| status.observed_generation) == generation {
                return;
            }
            let count = spec.replicas.unwrap_or(1);
            let status = json!({"observedGeneration": generation, "replicas": count, "readyReplicas": count,
                "updatedReplicas": count, "availableReplicas": count});
            let api: Api<Deployment> = Api::namespaced(client, &deployment.namespace().unwrap_or_default());
            let patch = Patch::Merge(json!({"status": status}));
            // Written again when it changes again, or gone.
            let _ = api.patch_status(&deployment.name_any(), &PatchParams::default(), &patch).await;
        }
    });
    written.await;
}

/// Puts the rules of the definitions back, and waits until they hold.
async fn restore_crds(client: &Client) {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    for crd in crds() {
        let name = crd.metadata.name.clone().unwrap();
        let mut stored = api.get(&name).await.unwrap();
        stored.spec = crd.spec;
        api.replace(&name, &PostParams::default(), &stored).await.unwrap();
    }
    let bad = json!({"licenseSecretRef": {"name": ".."}});
    let restored = eventually(SOON, || async {
        match try_out(client, "default", object("CoderControlPlane", "restored", bad.clone())).await {
            Err(error) if error.contains("licenseSecretRef") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    restored.await.unwrap();
}

/// An object of one of our kinds.
pub(crate) fn object(kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": "coder.com/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec})
}

fn resource_of(object: &Value) -> ApiResource {
    let (group, version) =
        text_of(&object["apiVersion"]).split_once('/').unwrap_or(("", text_of(&object["apiVersion"])));
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, text_of(&object["kind"])))
}

fn api_of(client: &Client, namespace: &str, object: &Value) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), namespace, &resource_of(object))
}

/// Makes an object of any kind in a namespace.
pub(crate) async fn make(client: &Client, namespace: &str, object: Value) -> Result<Value, String> {
    create(client, namespace, object, &PostParams::default()).await
}

/// Asks whether an object would be made.
pub(crate) async fn try_out(client: &Client, namespace: &str, object: Value) -> Result<Value, String> {
    create(client, namespace, object, &PostParams { dry_run: true, ..PostParams::default() }).await
}

async fn create(
    client: &Client,
    namespace: &str,
    object: Value,
    params: &PostParams,
) -> Result<Value, String> {
    let api = api_of(client, namespace, &object);
    let object: DynamicObject = serde_json::from_value(object).unwrap();
    let made = api.create(params, &object).await.map_err(|error| error.to_string())?;
    Ok(serde_json::to_value(made).unwrap())
}

/// The namespace of one attacker, or of a bystander.
pub(crate) struct Tenant {
    pub(crate) stage: &'static Stage,
    pub(crate) namespace: String,
}

impl Tenant {
    /// A new namespace.
    pub(crate) async fn new(stage: &'static Stage, prefix: &str) -> Self {
        let namespace = stage.shared.namespace(prefix).await.name().to_owned();
        Self { stage, namespace }
    }

    /// The same, with a server that answers at the Service `coder`.
    pub(crate) async fn with_coderd(stage: &'static Stage, prefix: &str, mode: Mode) -> (Self, CoderSim) {
        let tenant = Self::new(stage, prefix).await;
        let sim = CoderSim::start(mode).await.unwrap();
        tenant.service("coder", sim.address());
        (tenant, sim)
    }

    /// Tells the operator where the Service of a control plane is.
    pub(crate) fn service(&self, name: &str, address: SocketAddr) {
        let host = format!("{name}.{}.svc.cluster.local", self.namespace);
        self.stage.operator.host(&host, address);
    }

    /// Lets a coderd answer there that does nothing wrong.
    pub(crate) fn proper_service(&self, name: &str) {
        self.service(name, self.stage.coderd.address());
    }

    /// Makes an object, which must be accepted.
    pub(crate) async fn make(&self, object: Value) -> Result<Value, String> {
        make(&self.stage.client, &self.namespace, object).await
    }

    /// Makes a control plane. coderd and its database are asked for nothing before a pod is ready.
    pub(crate) async fn plane(&self, name: &str, spec: Value) -> Result<Value, String> {
        self.make(object("CoderControlPlane", name, spec)).await
    }

    /// Makes a control plane with the token in the Secret `token`.
    pub(crate) async fn plane_with_token(&self, token: &SecretString, more: Value) -> Result<Value, String> {
        self.secret("token", "token", token.expose_secret()).await;
        self.plane("coder", with(token_access(), more)).await
    }

    /// Makes a control plane with a proper server, that gets its token from this database.
    pub(crate) async fn plane_with_database(&self, url: &str) -> Result<Value, String> {
        self.secret("database", "url", url).await;
        self.proper_service("coder");
        let from = json!({"secretKeyRef": {"name": "database", "key": "url"}});
        self.plane("coder", json!({"extraEnv": [{"name": "CODER_PG_CONNECTION_URL", "valueFrom": from}]}))
            .await
    }

    /// Puts a value into a Secret, which may be new. It must never be shown.
    pub(crate) async fn secret(&self, name: &str, key: &str, value: &str) {
        self.stage.never_shown(value, &format!("{} in {}", name, self.namespace));
        self.put(json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": {key: value}}))
            .await;
    }

    /// Writes an object of any kind, which may be new.
    pub(crate) async fn put(&self, object: Value) {
        let params = PatchParams::apply("tenant").force();
        let name = text_of(&object["metadata"]["name"]).to_owned();
        api_of(&self.stage.client, &self.namespace, &object)
            .patch(&name, &params, &Patch::Apply(&object))
            .await
            .unwrap();
    }

    /// Edits an object by a merge patch.
    pub(crate) async fn edit(&self, kind: &str, name: &str, patch: Value) -> Result<Value, String> {
        let edited = self.api(kind).patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await;
        Ok(serde_json::to_value(edited.map_err(|error| error.to_string())?).unwrap())
    }

    /// Writes the status of an object, as who may do that.
    pub(crate) async fn write_status(&self, kind: &str, name: &str, status: Value) -> Result<(), String> {
        let (patch, params) = (json!({"status": status}), PatchParams::default());
        let written = self.api(kind).patch_status(name, &params, &Patch::Merge(&patch)).await;
        written.map(drop).map_err(|error| error.to_string())
    }

    /// Deletes an object.
    pub(crate) async fn delete(&self, kind: &str, name: &str) -> Result<(), String> {
        let deleted = self.api(kind).delete(name, &DeleteParams::default()).await;
        deleted.map(drop).map_err(|error| error.to_string())
    }

    /// The objects of a kind in this namespace.
    pub(crate) fn api(&self, kind: &str) -> Api<DynamicObject> {
        self.api_in(&self.namespace, kind)
    }

    /// The objects of a kind in any namespace.
    pub(crate) fn api_in(&self, namespace: &str, kind: &str) -> Api<DynamicObject> {
        let version = match kind {
            "CoderControlPlane" | "CoderProvisioner" | "CoderWorkspaceProxy" => "coder.com/v1alpha1",
            "Deployment" => "apps/v1",
            "Role" | "RoleBinding" => "rbac.authorization.k8s.io/v1",
            _ => "v1",
        };
        api_of(&self.stage.client, namespace, &json!({"apiVersion": version, "kind": kind}))
    }

    /// Waits until something holds of an object, and returns it.
    pub(crate) async fn until(
        &self,
        within: Duration,
        kind: &str,
        name: &str,
        holds: impl Fn(&Value) -> bool,
    ) -> Result<Value, String> {
        let api = self.api(kind);
        let found = eventually(within, || async {
            let object = api.get(name).await.map_err(|error| error.to_string())?;
            let object = serde_json::to_value(object).unwrap();
            if holds(&object) { Ok(object) } else { Err(object["status"]["conditions"].to_string()) }
        });
        found.await.map_err(|error| format!("{kind} {name}: {error}"))
    }

    /// Waits until the operator has seen the present generation of an object.
    pub(crate) async fn until_observed(&self, kind: &str, name: &str) -> Result<Value, String> {
        self.until(SOON, kind, name, is_observed).await
    }

    /// Waits until a condition of the present generation has one of these reasons, and returns the condition. Without
    /// any, every reason will do that says more than that something has not begun.
    pub(crate) async fn until_reason(
        &self,
        kind: &str,
        name: &str,
        condition: &str,
        reasons: &[&str],
    ) -> Result<Value, String> {
        let said = |object: &Value| {
            let said = condition_of(object, condition)?;
            let reason = text_of(&said["reason"]);
            let known = if reasons.is_empty() { has_begun(reason) } else { reasons.contains(&reason) };
            (said["observedGeneration"] == object["metadata"]["generation"] && known).then_some(said)
        };
        let object = self.until(SOON, kind, name, |object| said(object).is_some()).await?;
        Ok(said(&object).unwrap())
    }

    /// Waits until an object is gone.
    pub(crate) async fn until_gone(
        &self,
        within: Duration,
        kind: &str,
        namespace: &str,
        name: &str,
    ) -> Result<(), String> {
        let api = self.api_in(namespace, kind);
        let gone = eventually(within, || async {
            match api.get_opt(name).await.map_err(|error| error.to_string())? {
                None => Ok(()),
                Some(object) => Err(format!("{:?}", object.metadata)),
            }
        });
        gone.await.map_err(|error| format!("{kind} {name} is still there: {error}"))
    }

    /// How many objects of a kind there are.
    pub(crate) async fn count(&self, kind: &str) -> usize {
        self.api(kind).list(&ListParams::default()).await.unwrap().items.len()
    }

    /// The requests of the operator so far in this namespace.
    pub(crate) fn requests(&self) -> Vec<AuditEvent> {
        self.stage.requests(|event| event.namespace == self.namespace && event.stage != "ResponseStarted")
    }

    /// The requests of the operator here within a time from now. A busy loop would show.
    pub(crate) async fn requests_within(&self, time: Duration) -> usize {
        let before = self.requests().len();
        tokio::time::sleep(time).await;
        self.requests().len() - before
    }

    /// Fails if the operator goes on asking more often than so many times within three seconds: it must not spin. What it still
    /// has to do on a busy machine, it may.
    pub(crate) async fn at_most(&self, requests: usize) -> Verdict {
        let mut count = usize::MAX;
        for _ in 0..5 {
            count = self.requests_within(Duration::from_secs(3)).await;
            if count <= requests {
                return Ok(format!("{count} requests within 3 s"));
            }
        }
        Err(format!("{count} requests within 3 s"))
    }
}

/// Where a control plane finds its token.
pub(crate) fn token_access() -> Value {
    json!({"operatorAccess": {"method": "TokenSecret", "tokenSecretRef": {"name": "token"}}})
}

/// One spec with the fields of another.
pub(crate) fn with(mut spec: Value, more: Value) -> Value {
    for (field, value) in more.as_object().unwrap() {
        spec[field] = value.clone();
    }
    spec
}

/// A condition of an object.
pub(crate) fn condition_of(object: &Value, type_: &str) -> Option<Value> {
    let all = object["status"]["conditions"].as_array()?;
    all.iter().find(|condition| condition["type"] == type_).cloned()
}

/// Whether a reason says more than that something has not begun.
pub(crate) fn has_begun(reason: &str) -> bool {
    !["Pending", "Progressing", "Creating", "AwaitingControlPlane", "AwaitingEntitlements"].contains(&reason)
}

/// Whether the present generation of an object was seen.
pub(crate) fn is_observed(object: &Value) -> bool {
    object["status"]["observedGeneration"] == object["metadata"]["generation"]
}

/// Whether an object is ready in its present generation.
pub(crate) fn is_ready(object: &Value) -> bool {
    condition_of(object, "Ready").is_some_and(|ready| {
        ready["status"] == "True" && ready["observedGeneration"] == object["metadata"]["generation"]
    })
}
