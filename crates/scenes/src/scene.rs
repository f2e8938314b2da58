//! A namespace of one test, and what tests do and ask there.

mod reading;

use std::{
    collections::BTreeMap,
    fmt::Debug,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Mutex, OnceLock},
    time::Duration,
};

use coder_k8s_api::{CoderControlPlane, CoderControlPlaneStatus, crds};
use coder_k8s_testbed::{AuditEvent, Cluster, Node, Shared, SharedCluster, eventually};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Container, EnvVar, Namespace, PodSpec};
use k8s_openapi::api::{apps::v1::Deployment, events::v1::Event};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{
    Installation, Operator, PATIENCE,
    install::{GROUP, grant_scoped, group_of},
    operator::Hosts,
    truth::TruthMonitor,
    writes,
};

pub use reading::Told;

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

/// The namespace of one test.
///
/// Objects in it belong to the operator of an [`Installation`], or to operators that the test starts with
/// [`Scene::start`] and that watch nothing else.
pub struct Scene {
    shared: Option<&'static Shared>,
    managed: Option<&'static Operator>,
    /// As an administrator.
    pub client: Client,
    /// Unique in its cluster.
    pub namespace: String,
    /// Others that operators of the test watch too.
    beside: Vec<String>,
    hosts: Hosts,
    /// User name and output of each operator so far.
    operators: Mutex<Vec<(String, PathBuf)>>,
    truth: TruthMonitor,
}

/// The cluster of namespaces that only operators of tests watch.
static UNMANAGED: SharedCluster = SharedCluster::new(definitions);
/// The same without a controller-manager: no pod ever runs.
static BARE: SharedCluster = SharedCluster::without_controllers(crds);

static CRDS_OF_ANOTHER: OnceLock<PathBuf> = OnceLock::new();

/// Has clusters that start from now on serve the CRDs of this folder, of another operator that is put in place of this one.
pub fn use_crds_of_another(folder: PathBuf) {
    let _ = CRDS_OF_ANOTHER.set(folder);
}

fn definitions() -> Vec<CustomResourceDefinition> {
    let Some(folder) = CRDS_OF_ANOTHER.get() else { return crds() };
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    files.map(|file| serde_saphyr::from_str(&fs::read_to_string(file).unwrap()).unwrap()).collect()
}

impl Scene {
    /// A new namespace of an installation.
    pub async fn new(installation: &'static Installation, prefix: &str) -> Self {
        let (shared, operator) = installation.get().await;
        let namespace = shared.namespace(prefix).await.name().to_owned();
        let truth = TruthMonitor::start(&shared.cluster.client(), &namespace, Some(installation.intervals()));
        Self {
            managed: Some(operator),
            operators: Mutex::new(vec![trace(operator)]),
            hosts: operator.hosts().clone(),
            ..Self::of(shared, namespace, truth)
        }
    }

    /// A new namespace for operators of the test, beside those of other tests on one cluster.
    pub async fn unmanaged(prefix: &str) -> Self {
        Self::unmanaged_with(prefix, &[]).await
    }

    /// The same with more namespaces, one for each prefix, that the operators watch.
    pub async fn unmanaged_with(prefix: &str, beside: &[&str]) -> Self {
        Self::scoped(UNMANAGED.get().await, prefix, beside).await
    }

    /// A new namespace for operators of the test, where no pod ever runs.
    pub async fn bare(prefix: &str) -> Self {
        Self::bare_with(prefix, &[]).await
    }

    /// The same with more namespaces, one for each prefix, that the operators watch.
    pub async fn bare_with(prefix: &str, beside: &[&str]) -> Self {
        Self::scoped(BARE.get().await, prefix, beside).await
    }

    async fn scoped(shared: &'static Shared, prefix: &str, beside: &[&str]) -> Self {
        let namespace = shared.namespace(prefix).await.name().to_owned();
        let truth = TruthMonitor::start(&shared.cluster.client(), &namespace, None);
        let mut scene = Self::of(shared, namespace, truth);
        for prefix in beside {
            scene.beside.push(shared.namespace(prefix).await.name().to_owned());
        }
        grant_scoped(&scene.client, &scene.watched()).await;
        scene
    }

    /// The default namespace of a cluster of the test's own.
    pub fn alone(cluster: &Cluster, operator: &Operator) -> Self {
        Self {
            shared: None,
            managed: None,
            client: cluster.client(),
            namespace: "default".to_owned(),
            beside: Vec::new(),
            hosts: operator.hosts().clone(),
            operators: Mutex::new(vec![trace(operator)]),
            truth: TruthMonitor::start(&cluster.client(), "default", None),
        }
    }

    fn of(shared: &'static Shared, namespace: String, truth: TruthMonitor) -> Self {
        let hosts = Hosts::new(shared.cluster.run_dir().join(format!("hosts-{namespace}")));
        let client = shared.cluster.client();
        let (managed, operators) = (None, Mutex::default());
        Self { shared: Some(shared), managed, client, namespace, beside: Vec::new(), hosts, operators, truth }
    }

    fn watched(&self) -> Vec<&str> {
        [&self.namespace].into_iter().chain(&self.beside).map(String::as_str).collect()
    }

    /// Further namespaces that the operators of the test watch.
    pub fn beside(&self) -> &[String] {
        &self.beside
    }

    /// Starts an operator that watches the namespaces of the test alone. It may not lead yet.
    pub fn start(&self, args: &[&str]) -> Operator {
        self.start_failing(args, &[])
    }

    /// Starts one whose calls fail from the first on, one line for each fault.
    pub fn start_failing(&self, args: &[&str], faults: &[String]) -> Operator {
        let watched = format!("--watch-namespaces={}", self.watched().join(","));
        self.start_watching(&watched, args, faults)
    }

    /// Starts one with a flag of its own for what it watches. Its rights are those for the namespaces of the test.
    pub fn start_watching(&self, watched: &str, args: &[&str], faults: &[String]) -> Operator {
        assert!(self.managed.is_none(), "the namespace has an operator");
        let place = format!("--leader-elect-namespace={}", self.namespace);
        // A lease is for tests that say how long it lasts: on an overloaded machine others would lose it.
        let elects =
            args.iter().any(|arg| arg.starts_with("--lease-duration") || arg.starts_with("--leader-elect"));
        let elect = Some("--leader-elect=false").filter(|_| !elects);
        let args: Vec<_> = [watched, &place].into_iter().chain(elect).chain(args.iter().copied()).collect();
        let groups = [GROUP, &group_of(&self.namespace)];
        let operator = Operator::start_as(self.cluster(), &groups, Some(&self.hosts), &args, faults);
        self.operators.lock().unwrap().push(trace(&operator));
        operator
    }

    /// Starts one that watches the namespaces of the test alone and finds no root certificates on the system.
    pub fn start_without_roots(&self, args: &[&str]) -> Operator {
        let watched = format!("--watch-namespaces={}", self.watched().join(","));
        let args: Vec<_> =
            [&*watched, "--leader-elect=false"].into_iter().chain(args.iter().copied()).collect();
        let groups = [GROUP, &group_of(&self.namespace)];
        let operator = Operator::start_without_roots(self.cluster(), &groups, &self.hosts, &args);
        self.operators.lock().unwrap().push(trace(&operator));
        operator
    }

    /// Starts another build of the operator, which watches the namespaces of the test alone.
    pub fn start_program(&self, program: &Path, args: &[&str]) -> Operator {
        let watched = format!("--watch-namespaces={}", self.watched().join(","));
        let args: Vec<_> =
            [&*watched, "--leader-elect=false"].into_iter().chain(args.iter().copied()).collect();
        let groups = [GROUP, &group_of(&self.namespace)];
        let operator = Operator::start_program(program, self.cluster(), &groups, &self.hosts, &args);
        self.operators.lock().unwrap().push(trace(&operator));
        operator
    }

    /// Starts an operator that watches the namespaces of the test alone and reaches the API server at an address of plain HTTP,
    /// where a proxy acts for [`Self::operator_groups`].
    pub fn start_through(&self, server: &str, args: &[&str]) -> Operator {
        let watched = format!("--watch-namespaces={}", self.watched().join(","));
        let place = format!("--leader-elect-namespace={}", self.namespace);
        let args: Vec<_> = [&*watched, &*place].into_iter().chain(args.iter().copied()).collect();
        let operator = Operator::start_at(self.cluster(), server, &self.hosts, &args);
        self.operators.lock().unwrap().push(trace(&operator));
        operator
    }

    /// The groups whose rights the operators of the test have.
    pub fn operator_groups(&self) -> Vec<String> {
        vec![GROUP.to_owned(), group_of(&self.namespace), "system:authenticated".to_owned()]
    }

    /// The operator that all tests of the installation share.
    pub fn operator(&self) -> &'static Operator {
        self.managed.expect("the test starts its own operators")
    }

    /// The cluster, shared with other tests.
    pub fn cluster(&self) -> &'static Cluster {
        &self.shared.expect("the cluster is the test's own").cluster
    }

    /// The node of the cluster.
    pub fn node(&self) -> &'static Node {
        &self.shared.expect("the cluster is the test's own").node
    }

    /// Tells operators where a host is.
    pub fn host(&self, name: &str, address: SocketAddr) {
        self.hosts.add(name, address);
        self.truth.host(name, address);
    }

    /// Declares that the monitor of conditions cannot judge anything in this test: the operator is another one.
    pub fn judge_nothing(&self) {
        self.truth.except_all();
    }

    /// Declares that the monitor of conditions cannot judge a condition in this test, with the reason.
    pub fn not_judged(&self, condition: &'static str, reason: &'static str) {
        self.truth.except(condition, reason);
    }

    /// Tells operators where the Service of a control plane is.
    pub fn service(&self, name: &str, address: SocketAddr) {
        self.host(&format!("{name}.{}.svc.cluster.local", self.namespace), address);
    }

    /// Another namespace of this test.
    pub async fn another(&self, prefix: &str, labels: Value) -> String {
        let name = self.shared.expect("a shared cluster").namespace(prefix).await.name().to_owned();
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
    pub async fn until_exists<K: Kind>(&self, name: &str) -> K {
        self.until(name, |_| true).await
    }

    /// Waits until an object is gone.
    pub async fn until_gone<K: Kind>(&self, name: &str) {
        self.until_gone_in::<K>(&self.namespace, name).await;
    }

    /// Waits until an object of any namespace is gone.
    pub async fn until_gone_in<K: Kind>(&self, namespace: &str, name: &str) {
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
    pub async fn until_ready(&self, name: &str) -> CoderControlPlane {
        self.until_condition(name, "Ready", "True", None).await
    }

    /// Waits until the present generation of a control plane was observed.
    pub async fn until_observed(&self, name: &str) -> CoderControlPlane {
        self.until(name, |plane: &CoderControlPlane| {
            let observed = plane.status.as_ref().and_then(|s| s.workload.observed_generation);
            observed == plane.metadata.generation
        })
        .await
    }

    /// Waits until a condition of the present generation has this status and, if given, this reason.
    pub async fn until_condition(
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
        self.until_observed(name).await;
        self.until_exists::<Deployment>(name).await.spec.unwrap().template.spec.unwrap()
    }

    /// The main container.
    pub async fn container(&self, name: &str) -> Container {
        self.pod(name).await.containers.remove(0)
    }

    /// The image that the Deployment asks for now, observed or not.
    pub async fn container_image(&self, name: &str) -> String {
        let pod = self.until_exists::<Deployment>(name).await.spec.unwrap().template.spec.unwrap();
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

    /// The requests of the test's operators so far that concern a namespace.
    pub fn requests_in(&self, namespace: &str) -> Vec<AuditEvent> {
        let users: Vec<_> = self.operators.lock().unwrap().iter().map(|(user, _)| user.clone()).collect();
        let ours = |event: &AuditEvent| {
            event.namespace == namespace
                && event.stage != "ResponseStarted"
                && event.impersonated.as_ref().is_some_and(|user| users.contains(user))
        };
        self.cluster().audit_where(ours).unwrap()
    }

    /// Waits until the operator has written nothing in the namespace of the test for a while.
    pub async fn until_idle(&self) {
        let count = || writes(&self.requests_in(&self.namespace)).len();
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
    pub async fn assert_no_writes(&self, time: Duration) {
        let before = self.requests_in(&self.namespace).len();
        tokio::time::sleep(time).await;
        let all = self.requests_in(&self.namespace);
        let written = writes(&all[before..]);
        assert!(written.is_empty(), "{written:?}");
    }

    /// What the last operator of the test has logged about the namespace.
    pub fn log(&self) -> String {
        let last = self.operators.lock().unwrap().last().cloned();
        let output = last.map(|(_, file)| fs::read_to_string(file).unwrap_or_default()).unwrap_or_default();
        output.lines().filter(|line| line.contains(&self.namespace)).collect::<Vec<_>>().join("\n")
    }
}

fn trace(operator: &Operator) -> (String, PathBuf) {
    (operator.user.clone(), operator.output_file().to_owned())
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
