//! Installing the operator: its rights in a cluster, and clusters that the tests of a program share.

use std::{collections::BTreeMap, sync::Mutex};

use coder_k8s::manifests::{self, Install};
use coder_k8s_api::crds;
use coder_k8s_testbed::{Cluster, Shared, SharedCluster};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams},
    discovery,
};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::{Operator, truth::Intervals};

/// The group that all operators of a test program belong to. Each has a user name of its own, so that the audit log can
/// tell them apart.
pub(crate) const GROUP: &str = "operators";

/// The group of the operators that watch a namespace alone.
pub(crate) fn group_of(namespace: &str) -> String {
    format!("{GROUP}-{namespace}")
}

/// A cluster with an operator that watches all namespaces. A `static` of a test program, started by its first test.
pub struct Installation {
    cluster: SharedCluster,
    operator: OnceCell<Operator>,
    args: &'static [&'static str],
}

impl Installation {
    /// An installation whose operator runs with these flags.
    pub const fn new(args: &'static [&'static str]) -> Self {
        Self { cluster: SharedCluster::new(crds), operator: OnceCell::const_new(), args }
    }

    pub(crate) fn intervals(&self) -> Intervals {
        Intervals::of(self.args)
    }

    /// The cluster, and its operator once it works.
    pub async fn get(&'static self) -> (&'static Shared, &'static Operator) {
        let shared = self.cluster.get().await;
        let operator = self.operator.get_or_init(|| async {
            grant(&shared.cluster.client(), &Install::default()).await;
            // Without a lease, which an overloaded machine would have it lose, and all tests with it.
            let args: Vec<_> = ["--leader-elect=false"].iter().chain(self.args).copied().collect();
            let operator = Operator::start(&shared.cluster, &args);
            operator.until_leading().await;
            operator
        });
        (shared, operator.await)
    }
}

/// Grants what the manifests grant, to every operator of the program.
pub async fn grant(client: &Client, install: &Install) {
    grant_to(client, install, GROUP).await;
}

/// Grants what the manifests grant for the first of these namespaces and those that it watches besides, to the operators
/// of that namespace alone.
pub(crate) async fn grant_scoped(client: &Client, namespaces: &[&str]) {
    let watch_namespaces = namespaces.iter().map(|&name| name.to_owned()).collect();
    let install = Install { namespace: namespaces[0].to_owned(), watch_namespaces, ..Install::default() };
    grant_to(client, &install, &group_of(namespaces[0])).await;
}

async fn grant_to(client: &Client, install: &Install, group: &str) {
    apply(client, json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": install.namespace}}))
        .await;
    for mut object in manifests::access(install) {
        if object.get("subjects").is_some() {
            // Bindings of the cluster have one name, whatever is watched: they are for all.
            let group = if object["kind"] == "ClusterRoleBinding" { GROUP } else { group };
            object["subjects"] =
                json!([{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": group}]);
        }
        apply(client, object).await;
    }
}

/// Applies any object, as an administrator would.
pub async fn apply(client: &Client, object: Value) {
    let object: DynamicObject = serde_json::from_value(object).unwrap();
    let kind = (&object.types.clone().unwrap()).try_into().unwrap();
    let resource = resource_of(client, kind).await;
    let api: Api<DynamicObject> = match &object.metadata.namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let params = PatchParams::apply("tests").force();
    api.patch(object.metadata.name.as_deref().unwrap(), &params, &Patch::Apply(&object)).await.unwrap();
}

/// The resource of a kind. The same on every cluster, so that each is asked for once.
async fn resource_of(client: &Client, kind: GroupVersionKind) -> ApiResource {
    static KNOWN: Mutex<BTreeMap<String, ApiResource>> = Mutex::new(BTreeMap::new());
    let name = format!("{}/{} {}", kind.group, kind.version, kind.kind);
    if let Some(known) = KNOWN.lock().unwrap().get(&name) {
        return known.clone();
    }
    let (resource, _) = discovery::pinned_kind(client, &kind).await.unwrap();
    KNOWN.lock().unwrap().insert(name, resource.clone());
    resource
}

/// A cluster of one test's own, with these kinds and without a controller-manager.
pub async fn bare_cluster(crds: Vec<CustomResourceDefinition>) -> (Cluster, Client) {
    let cluster = Cluster::builder().controller_manager(false).crds(crds).start().await.unwrap();
    let client = cluster.client();
    (cluster, client)
}
