//! The chart installed in a namespace with restricted Pod Security, and the operator at work under exactly its RBAC.
//!
//! The pod of the Deployment is admitted by the API server and reported by the testbed's node. The operator itself is a process
//! with the arguments of that pod and with a token of its ServiceAccount.

use coder_k8s_api::{CoderControlPlane, CoderProvisioner, CoderWorkspaceProxy};
use coder_k8s_scenes::{
    Operator, PATIENCE, apply,
    coderd::{license, uuid},
    control_plane,
    plane::observed,
    planes,
    pool::{PoolScene, status as pool_status},
    proxy::{ProxyScene, SECRET},
    scene::Scene,
    writes,
};
use coder_k8s_testbed::{AuditEvent, Cluster, Node, codersim::Mode, eventually};
use k8s_openapi::api::{
    apps::v1::Deployment,
    authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
    core::v1::{Pod, Secret},
};
use kube::{
    Api, Client,
    api::{ListParams, PostParams},
};
use serde_json::{Value, json};

use crate::helm::{Helm, NAMESPACE, RELEASE, shell};

/// Scaled intervals: one by its value, and two that have none by `extraArgs`.
pub(crate) fn quick(mut values: Value) -> Value {
    values["operator"]["daemonsInterval"] = json!("5s");
    values["extraArgs"] = json!(["--entitlements-interval=2s", "--verify-interval=8s"]);
    values
}

/// A cluster with a node, and the namespace of the operator with restricted Pod Security.
pub(crate) struct Site {
    pub(crate) cluster: Cluster,
    pub(crate) client: Client,
    pub(crate) helm: Helm,
    _node: Node,
}

impl Site {
    pub(crate) async fn new() -> Self {
        let cluster = Cluster::builder().start().await.unwrap();
        let node = cluster.node("testbed").await.unwrap();
        let client = cluster.client();
        let labels = json!({"pod-security.kubernetes.io/enforce": "restricted"});
        let metadata = json!({"name": NAMESPACE, "labels": labels});
        apply(&client, json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})).await;
        let helm = Helm::of(&cluster);
        Self { cluster, client, helm, _node: node }
    }

    pub(crate) async fn deployment(&self) -> Deployment {
        Api::namespaced(self.client.clone(), NAMESPACE).get(RELEASE).await.unwrap()
    }

    /// The operator with the arguments and the ServiceAccount of the Deployment.
    pub(crate) async fn operator(&self) -> Operator {
        let pod = self.deployment().await.spec.unwrap().template.spec.unwrap();
        let args = pod.containers[0].args.clone().unwrap();
        assert_eq!(args[0], "controller");
        let args: Vec<_> = args[1..].iter().map(String::as_str).collect();
        let account = pod.service_account_name.unwrap();
        let kubeconfig = self.cluster.kubeconfig_for_account(NAMESPACE, &account).await.unwrap();
        let output = self.cluster.run_dir().join("output-of-the-chart");
        let operator = Operator::start_with(account_user(&account), &kubeconfig, output, &args);
        operator.until_leading().await;
        operator.until_ready().await;
        operator
    }

    /// What the operator asked of the API server so far.
    pub(crate) fn asked(&self) -> Vec<AuditEvent> {
        let user = account_user(RELEASE);
        self.cluster.audit_where(|event| event.user == user).unwrap()
    }

    /// Asserts that the operator did much and was refused nothing.
    fn assert_nothing_forbidden(&self) {
        let all = self.asked();
        let refused: Vec<_> = all.iter().filter(|event| event.code == 403).collect();
        assert!(refused.is_empty(), "{refused:?}");
        println!(
            "{} requests under the chart's RBAC, {} writes, none forbidden",
            all.len(),
            writes(&all).len()
        );
        assert!(writes(&all).len() > 30, "{}", writes(&all).len());
    }

    /// Whether the operator's ServiceAccount may do something.
    async fn may(&self, verb: &str, resource: &str, namespace: Option<&str>) -> bool {
        let attributes = ResourceAttributes {
            verb: Some(verb.to_owned()),
            resource: Some(resource.to_owned()),
            namespace: namespace.map(str::to_owned),
            ..ResourceAttributes::default()
        };
        let spec = SubjectAccessReviewSpec {
            user: Some(account_user(RELEASE)),
            resource_attributes: Some(attributes),
            ..SubjectAccessReviewSpec::default()
        };
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let api = Api::<SubjectAccessReview>::all(self.client.clone());
        api.create(&PostParams::default(), &review).await.unwrap().status.unwrap().allowed
    }
}

fn account_user(account: &str) -> String {
    format!("system:serviceaccount:{NAMESPACE}:{account}")
}

/// Creates, edits, rotates and deletes each kind in the namespace `default`.
async fn live(site: &Site, operator: &Operator) {
    let coder = PoolScene::within(Scene::alone(&site.cluster, operator), Mode::Licensed).await;
    let scene = &coder.scene;

    // Create.
    coder.secret("license", "license", &license(1)).await;
    coder
        .make_plane(json!({"licenseSecretRef": {"name": "license"},
        "expose": {"ingress": {"host": "coder.example.test"}}}))
        .await;
    coder.until_answered().await;
    scene.until_ready("coder").await;
    coder.make(json!({"tags": {"region": "eu"}})).await;
    coder.until_ready().await;
    let proxy = ProxyScene { coder };
    proxy.make(json!({})).await;
    proxy.until_ready().await;
    let coder = &proxy.coder;
    let scene = &coder.scene;

    // Edit.
    scene.spec("coder", json!({"replicas": 2})).await;
    coder.edit(json!({"replicas": 2})).await;
    proxy.edit(json!({"replicas": 2})).await;
    scene.until_ready("coder").await;
    coder.until_settled().await;
    proxy.until_settled().await;
    for name in ["coder", "provisioner-pool", "wsproxy-eu"] {
        let found: Deployment = scene.until_exists(name).await;
        assert_eq!(found.spec.unwrap().replicas, Some(2), "{name}");
    }

    // Rotate: the license by its Secret, the key by the tags, the token by its loss.
    coder.secret("license", "license", &license(2)).await;
    let replaced = eventually(PATIENCE, || async {
        let held: Vec<_> = coder.sim.licenses().into_iter().map(|license| license.uuid).collect();
        if held.contains(&uuid(2)) { Ok(()) } else { Err(format!("{held:?}")) }
    });
    replaced.await.unwrap();
    let before = pool_status(&coder.now().await).provisioner_key_id;
    coder.edit(json!({"tags": {"region": "us"}})).await;
    let key = coder.assert_consistent(&[("region", "us")]).await;
    assert_ne!(Some(&key.id), before.as_ref());
    let held = proxy.only().token;
    scene.delete::<Secret>(SECRET).await;
    scene.until_exists::<Secret>(SECRET).await;
    let only = proxy.assert_consistent().await;
    assert!(secrecy_differs(&held, &only.token), "the token is a new one");

    // Delete.
    scene.delete::<CoderWorkspaceProxy>("eu").await;
    scene.until_gone::<CoderWorkspaceProxy>("eu").await;
    proxy.until_holds(&[]).await;
    scene.delete::<CoderProvisioner>("pool").await;
    scene.until_gone::<CoderProvisioner>("pool").await;
    coder.until_holds(&[]).await;
    scene.delete::<CoderControlPlane>("coder").await;
    scene.until_gone::<CoderControlPlane>("coder").await;
    for name in ["coder", "provisioner-pool", "wsproxy-eu"] {
        scene.until_gone::<Deployment>(name).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_for_the_cluster_lives_under_the_rights_of_the_chart() {
    let site = Site::new().await;
    let notes = site.helm.apply("install", &quick(json!({})), &[]).await;
    // Restricted Pod Security admitted the pod, and the node reported it.
    let pods: Api<Pod> = Api::namespaced(site.client.clone(), NAMESPACE);
    assert_eq!(pods.list(&ListParams::default()).await.unwrap().items.len(), 1);
    let operator = site.operator().await;
    live(&site, &operator).await;
    site.assert_nothing_forbidden();

    // The commands that the notes tell do what they say.
    let commands = commands(&notes);
    assert_eq!(commands.len(), 3, "{notes}");
    let rolled = shell(&site.cluster, &commands[0]).await;
    assert!(rolled.contains("successfully rolled out"), "{rolled}");
    let url = "export CODER_PG_CONNECTION_URL=postgres://coder@db.example.test/coder\n";
    let made = shell(&site.cluster, &format!("{url}{}", commands[1])).await;
    assert!(made.contains("codercontrolplane.coder.com/coder serverside-applied"), "{made}");
    observed(&site.client, "coder", "coder").await;
    let shown = shell(&site.cluster, &commands[2]).await;
    assert!(shown.contains("codercontrolplane.coder.com/coder"), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_for_some_namespaces_lives_under_the_rights_of_the_chart() {
    let site = Site::new().await;
    for name in ["team-b", "team-c"] {
        apply(&site.client, json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}))
            .await;
    }
    let notes =
        site.helm.apply("install", &quick(json!({"watchNamespaces": ["default", "team-b"]})), &[]).await;
    assert!(notes.contains("watches default, team-b."), "{notes}");
    let operator = site.operator().await;
    live(&site, &operator).await;

    for name in ["team-b", "team-c"] {
        planes(&site.client, name).create(&PostParams::default(), &control_plane("coder")).await.unwrap();
    }
    observed(&site.client, "team-b", "coder").await;
    assert_eq!(planes(&site.client, "team-c").get("coder").await.unwrap().status, None);
    site.assert_nothing_forbidden();
    assert!(site.may("get", "secrets", Some("team-b")).await);
    for (namespace, place) in
        [(Some("team-c"), "another namespace"), (Some(NAMESPACE), "its own"), (None, "the cluster")]
    {
        for verb in ["get", "list", "create"] {
            assert!(!site.may(verb, "secrets", namespace).await, "{verb} secrets in {place}");
        }
    }
}

/// The commands in the notes: what follows a line with a number, up to the next one.
fn commands(notes: &str) -> Vec<String> {
    let mut found = Vec::<String>::new();
    let mut within = false;
    for line in notes.lines() {
        if line.starts_with("kubectl ") {
            found.push(String::new());
            within = true;
        } else if line.is_empty() {
            within = false;
        }
        if within && let Some(command) = found.last_mut() {
            command.push_str(line);
            command.push('\n');
        }
    }
    found
}

fn secrecy_differs(a: &secrecy::SecretString, b: &secrecy::SecretString) -> bool {
    use secrecy::ExposeSecret;
    a.expose_secret() != b.expose_secret()
}
