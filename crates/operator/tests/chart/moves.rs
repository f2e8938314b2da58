//! Upgrades, adoption of what `coder-k8s manifests` installed, removal, and what is left.

use coder_k8s_api::{CoderControlPlane, crds};
use coder_k8s_scenes::{control_plane, plane::observed, planes};
use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        core::v1::{ConfigMap, Namespace, Secret, ServiceAccount},
        networking::v1::NetworkPolicy,
        rbac::v1::{ClusterRole, ClusterRoleBinding, Role},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, ResourceExt,
    api::{ListParams, PostParams},
};
use serde_json::{Value, json};

use crate::{
    helm::{Helm, NAMESPACE, RELEASE, chart, shell},
    life::{Site, quick},
};

impl Site {
    async fn crd(&self, name: &str) -> Option<CustomResourceDefinition> {
        Api::all(self.client.clone()).get_opt(name).await.unwrap()
    }

    /// Asserts that all CRDs are those of this build.
    async fn assert_current_crds(&self) {
        for expected in crds() {
            let found = self.crd(&expected.name_any()).await.unwrap();
            let schema =
                |crd: &CustomResourceDefinition| serde_json::to_value(&crd.spec.versions[0].schema).unwrap();
            assert_eq!(schema(&found), schema(&expected), "{}", expected.name_any());
        }
    }

    async fn is_there<K>(&self, name: &str) -> bool
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + serde::de::DeserializeOwned,
    {
        Api::<K>::namespaced(self.client.clone(), NAMESPACE).get_opt(name).await.unwrap().is_some()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_early_release_is_upgraded_with_its_crds_and_keeps_its_objects() {
    let site = Site::new().await;
    let early = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/chart/fixtures/coder-k8s-0.0.9");
    site.helm.must(&["install", RELEASE, early, "--namespace", NAMESPACE, "--wait", "--timeout", "2m"]).await;
    let before = site.deployment().await;
    assert!(site.crd("coderworkspaceproxies.coder.com").await.is_none());
    let plane: CoderControlPlane = serde_json::from_value(json!({"apiVersion": "coder.com/v1alpha1",
        "kind": "CoderControlPlane", "metadata": {"name": "coder"}, "spec": {"image": "example.test/coder:v2.36.1"}}))
    .unwrap();
    let made = planes(&site.client, "default").create(&PostParams::default(), &plane).await.unwrap();

    site.helm.apply("upgrade", &quick(json!({})), &[]).await;
    site.assert_current_crds().await;
    assert!(site.crd("coderworkspaceproxies.coder.com").await.is_some());
    let after = site.deployment().await;
    assert_eq!(before.uid(), after.uid(), "the Deployment was made anew");
    assert!(!site.is_there::<ConfigMap>("coder-k8s-settings").await);
    let container = &after.spec.unwrap().template.spec.unwrap().containers[0];
    assert_eq!(
        (&container.env_from, container.image.as_deref().map(|image| image.ends_with("v0.0.9"))),
        (&None, Some(false))
    );
    let role: ClusterRole = Api::all(site.client.clone()).get(RELEASE).await.unwrap();
    assert!(
        !serde_json::to_string(&role).unwrap().contains(r#""*""#),
        "the rights of the early release are gone"
    );

    // The object of the early release is looked after by the operator of this one, under the new rights.
    let _operator = site.operator().await;
    let kept = observed(&site.client, "default", "coder").await;
    assert_eq!(kept.uid(), made.uid());
    let refused: Vec<_> = site.asked().into_iter().filter(|event| event.code == 403).collect();
    assert!(refused.is_empty(), "{refused:?}");

    // An upgrade that changes nothing makes no pods.
    let generation = site.deployment().await.metadata.generation;
    site.helm.apply("upgrade", &quick(json!({})), &[]).await;
    assert_eq!(site.deployment().await.metadata.generation, generation);
    assert_stored_size(&site).await;
}

/// Kubernetes refuses Secrets of more than 1 MiB, and Helm keeps a release in one.
async fn assert_stored_size(site: &Site) {
    let all =
        Api::<Secret>::namespaced(site.client.clone(), NAMESPACE).list(&ListParams::default()).await.unwrap();
    let releases = all.items.iter().filter(|secret| secret.type_.as_deref() == Some("helm.sh/release.v1"));
    let sizes: Vec<_> = releases.map(|secret| secret.data.as_ref().unwrap()["release"].0.len()).collect();
    println!("stored releases: {sizes:?} bytes");
    assert!(!sizes.is_empty() && sizes.iter().all(|size| *size < 700_000), "{sizes:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_manifests_installed_is_adopted_in_place() {
    let site = Site::new().await;
    let program = env!("CARGO_BIN_EXE_coder-k8s");
    let apply = format!("{program} manifests --with-crds | kubectl apply --server-side --filename -");
    shell(&site.cluster, &apply).await;
    // Somebody changed something since.
    shell(&site.cluster, "kubectl patch clusterrole coder-k8s-viewer --type=merge --patch '{\"rules\":[]}'")
        .await;
    let (before, account) = (site.deployment().await, account(&site).await);

    let values = site.helm.values(&quick(json!({})));
    let chart = chart();
    let install =
        ["install", RELEASE, chart.to_str().unwrap(), "--namespace", NAMESPACE, "--values", &values];
    let said = site.helm.refused(&install).await;
    assert!(said.contains("exists and cannot be imported into the current release"), "{said}");
    assert!(!site.is_there::<Secret>("sh.helm.release.v1.coder-k8s.v1").await, "nothing was begun");

    site.helm.apply("install", &quick(json!({})), &["--take-ownership", "--force-conflicts"]).await;
    assert_eq!(site.deployment().await.uid(), before.uid());
    assert_eq!(self::account(&site).await, account);
    let role: ClusterRole = Api::all(site.client.clone()).get("coder-k8s-viewer").await.unwrap();
    assert_eq!(role.rules.as_ref().map(Vec::len), Some(3));
    site.assert_current_crds().await;
    let crd = site.crd("codercontrolplanes.coder.com").await.unwrap();
    assert_eq!(crd.annotations()["helm.sh/resource-policy"], "keep");

    let _operator = site.operator().await;
    planes(&site.client, "default").create(&PostParams::default(), &control_plane("coder")).await.unwrap();
    observed(&site.client, "default", "coder").await;

    // From here on it is a release like any other, but for fields that kubectl owns too.
    let file = site.helm.values(&quick(json!({"replicas": 2})));
    let upgrade = ["upgrade", RELEASE, chart.to_str().unwrap(), "--namespace", NAMESPACE, "--values", &file];
    let said = site.helm.refused(&upgrade).await;
    assert!(said.contains(r#"conflict with "kubectl": .spec.replicas"#), "{said}");
    site.helm.apply("upgrade", &quick(json!({"replicas": 2})), &["--force-conflicts"]).await;
    assert_eq!(site.deployment().await.spec.unwrap().replicas, Some(2));
    site.helm.must(&["uninstall", RELEASE, "--namespace", NAMESPACE]).await;
    assert!(!site.is_there::<Deployment>(RELEASE).await);
    let namespaces = Api::<Namespace>::all(site.client.clone());
    assert_eq!(namespaces.get(NAMESPACE).await.unwrap().metadata.deletion_timestamp, None);
}

async fn account(site: &Site) -> Option<String> {
    let accounts = Api::<ServiceAccount>::namespaced(site.client.clone(), NAMESPACE);
    accounts.get(RELEASE).await.unwrap().uid()
}

#[tokio::test(flavor = "multi_thread")]
async fn uninstalling_leaves_crds_and_objects_and_an_installation_continues_with_them() {
    let site = Site::new().await;
    let values = json!({"watchNamespaces": ["default"]});
    site.helm.apply("install", &quick(values.clone()), &[]).await;
    let operator = site.operator().await;
    planes(&site.client, "default").create(&PostParams::default(), &control_plane("coder")).await.unwrap();
    let plane = observed(&site.client, "default", "coder").await;
    drop(operator);

    let said =
        site.helm.must(&["uninstall", RELEASE, "--namespace", NAMESPACE, "--wait", "--timeout", "2m"]).await;
    assert!(
        said.contains("kept due to the resource policy") && said.contains("codercontrolplanes.coder.com"),
        "{said}"
    );
    site.assert_current_crds().await;
    let kept = planes(&site.client, "default").get("coder").await.unwrap();
    assert_eq!((kept.uid(), kept.metadata.deletion_timestamp), (plane.uid(), None));
    let child: Deployment = Api::namespaced(site.client.clone(), "default").get("coder").await.unwrap();
    assert_eq!(child.metadata.deletion_timestamp, None, "what runs for it stays");
    let gone = [
        site.is_there::<Deployment>(RELEASE).await,
        site.is_there::<ServiceAccount>(RELEASE).await,
        site.is_there::<NetworkPolicy>(RELEASE).await,
        site.is_there::<Role>("coder-k8s-leader-election").await,
        Api::<Role>::namespaced(site.client.clone(), "default").get_opt(RELEASE).await.unwrap().is_some(),
        Api::<ClusterRole>::all(site.client.clone()).get_opt(RELEASE).await.unwrap().is_some(),
        Api::<ClusterRole>::all(site.client.clone()).get_opt("coder-k8s-viewer").await.unwrap().is_some(),
        Api::<ClusterRoleBinding>::all(site.client.clone()).get_opt(RELEASE).await.unwrap().is_some(),
    ];
    assert_eq!(gone, [false; 8]);

    // The same name takes its CRDs back without a flag, and the object is looked after again.
    site.helm.apply("install", &quick(values), &[]).await;
    let operator = site.operator().await;
    let edited = json!({"spec": {"replicas": 2}});
    shell(&site.cluster, &format!("kubectl patch codercontrolplane coder --type=merge --patch '{edited}'"))
        .await;
    let held = observed(&site.client, "default", "coder").await;
    assert_eq!(held.uid(), plane.uid());

    // Removing everything, as the README says.
    shell(&site.cluster, "kubectl delete coder --all --all-namespaces --timeout=60s").await;
    drop(operator);
    site.helm.must(&["uninstall", RELEASE, "--namespace", NAMESPACE]).await;
    let every = "kubectl delete crd codercontrolplanes.coder.com coderprovisioners.coder.com coderworkspaceproxies.coder.com";
    shell(&site.cluster, every).await;
    assert!(site.crd("codercontrolplanes.coder.com").await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn two_releases_share_the_crds_of_one() {
    let site = Site::new().await;
    shell(&site.cluster, "kubectl create namespace team-b").await;
    site.helm.apply("install", &quick(json!({"watchNamespaces": ["default"]})), &[]).await;
    let values = site.helm.values(&json!({"watchNamespaces": ["team-b"], "crds": {"install": false}}));
    let (chart, helm): (_, &Helm) = (chart(), &site.helm);
    let second = ["install", "team-b", chart.to_str().unwrap(), "--namespace", "team-b", "--values", &values];
    helm.must(&[&second[..], &["--wait", "--timeout", "2m"]].concat()).await;
    // A second one that wants the CRDs is refused with the name of the first.
    let greedy = helm.values(&json!({"watchNamespaces": ["team-b"]}));
    let other = ["install", "greedy", chart.to_str().unwrap(), "--namespace", "team-b", "--values", &greedy];
    let said = helm.refused(&other).await;
    assert!(said.contains(r#"current value is "coder-k8s""#), "{said}");

    helm.must(&["uninstall", "team-b", "--namespace", "team-b"]).await;
    site.assert_current_crds().await;
    let release: Value =
        serde_json::from_str(&helm.must(&["list", "--namespace", NAMESPACE, "--output", "json"]).await)
            .unwrap();
    assert_eq!(release[0]["status"], "deployed");
}
