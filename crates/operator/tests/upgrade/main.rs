//! This build takes over from an earlier one: no child is written, each status at most once, and no transition time moves.
//!
//! Run by `cargo xtask upgrade BINARY`, where BINARY is the earlier build of `coder-k8s`, with its feature `dev`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    reason = "everything here is a test, its helper functions too"
)]

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use coder_k8s_api::{CoderControlPlane, CoderProvisioner, CoderWorkspaceProxy};
use coder_k8s_scenes::{
    audit::{listed, writes},
    coderd::license,
    pool::PoolScene,
    proxy::ProxyScene,
    scene::Scene,
};
use coder_k8s_testbed::codersim::Mode;
use kube::{
    Api, ResourceExt,
    api::{DynamicObject, GroupVersionKind, ListParams},
    discovery,
};
use serde_json::{Value, json};

const EARLIER: &str = "CODER_K8S_EARLIER_BINARY";
/// Nothing is asked of coderd at its interval while the test counts writes, but for the daemons.
const FLAGS: &[&str] = &["--daemons-interval=5s", "--entitlements-interval=1h", "--verify-interval=1h"];
/// Long enough for several polls of daemons and for every object to be reconciled.
const SETTLED: Duration = Duration::from_secs(20);

/// Kinds of children, with their API versions.
const CHILDREN: [(&str, &str, &str); 9] = [
    ("apps", "v1", "Deployment"),
    ("", "v1", "Service"),
    ("", "v1", "ServiceAccount"),
    ("", "v1", "Secret"),
    ("policy", "v1", "PodDisruptionBudget"),
    ("networking.k8s.io", "v1", "Ingress"),
    ("rbac.authorization.k8s.io", "v1", "Role"),
    ("rbac.authorization.k8s.io", "v1", "RoleBinding"),
    ("", "v1", "ConfigMap"),
];

/// Every child of a namespace, whole but for its status, by kind and name.
async fn children(scene: &Scene) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    for (group, version, kind) in CHILDREN {
        let kind_of = GroupVersionKind::gvk(group, version, kind);
        let (resource, _) = discovery::pinned_kind(&scene.client, &kind_of).await.unwrap();
        let api: Api<DynamicObject> = Api::namespaced_with(scene.client.clone(), &scene.namespace, &resource);
        for object in api.list(&ListParams::default()).await.unwrap() {
            let name = format!("{kind} {}", object.name_any());
            let mut object = serde_json::to_value(&object).unwrap();
            object.as_object_mut().unwrap().remove("status");
            // Written by the controllers of the cluster as pods come and go.
            for field in ["resourceVersion", "managedFields"] {
                object["metadata"].as_object_mut().unwrap().remove(field);
            }
            all.insert(name, object);
        }
    }
    all
}

/// The transition times of all conditions, by object and type.
async fn transitions(scene: &Scene) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut add = |kind: &str, name: String, status: Value| {
        for condition in status["conditions"].as_array().into_iter().flatten() {
            let key = format!("{kind} {name} {}", condition["type"].as_str().unwrap());
            all.insert(key, format!("{} {}", condition["status"], condition["lastTransitionTime"]));
        }
    };
    for plane in scene.api::<CoderControlPlane>().list(&ListParams::default()).await.unwrap() {
        add("CoderControlPlane", plane.name_any(), serde_json::to_value(&plane.status).unwrap());
    }
    for pool in scene.api::<CoderProvisioner>().list(&ListParams::default()).await.unwrap() {
        add("CoderProvisioner", pool.name_any(), serde_json::to_value(&pool.status).unwrap());
    }
    for proxy in scene.api::<CoderWorkspaceProxy>().list(&ListParams::default()).await.unwrap() {
        add("CoderWorkspaceProxy", proxy.name_any(), serde_json::to_value(&proxy.status).unwrap());
    }
    all
}

#[tokio::test]
async fn a_later_build_takes_over_without_a_write_to_a_child() {
    let earlier = std::env::var_os(EARLIER).map(PathBuf::from);
    let earlier = earlier.unwrap_or_else(|| panic!("{EARLIER} is not set: run `cargo xtask upgrade BINARY`"));
    let coder = PoolScene::within(Scene::unmanaged("upgrade").await, Mode::Licensed).await;
    let scene = &coder.scene;
    let old = scene.start_program(&earlier, FLAGS);
    old.until_leading().await;

    coder.secret("license", "license", &license(1)).await;
    coder.make_plane(json!({"licenseSecretRef": {"name": "license"}})).await;
    coder.until_answered().await;
    let image = json!({"image": "example.test/coder:v2.36.1"});
    scene.plane("plain", image.clone()).await;
    let mut more = image;
    more["replicas"] = json!(2);
    more["expose"] = json!({"ingress": {"host": "coder.example.test", "tls": {"secretName": "tls"}}});
    more["extraEnv"] = json!([{"name": "CODER_VERBOSE", "value": "true"}]);
    scene.plane("exposed", more).await;
    coder.make(json!({"controlPlaneRef": {"name": "coder"}, "tags": {"region": "eu"}})).await;
    coder.until_ready().await;
    let site = ProxyScene { coder };
    site.make(json!({})).await;
    site.until_ready().await;
    let scene = site.scene();
    for name in ["coder", "plain", "exposed"] {
        scene.until_ready(name).await;
    }
    scene.until_idle().await;
    tokio::time::sleep(SETTLED).await;
    let (before, times) = (children(scene).await, transitions(scene).await);
    let (keys, proxies) = (site.sim().keys().len(), site.registrations().len());
    drop(old);

    let seen = scene.requests_in(&scene.namespace).len();
    let new = scene.start(FLAGS);
    new.until_leading().await;
    tokio::time::sleep(SETTLED).await;
    let all = scene.requests_in(&scene.namespace);
    let written = writes(&all[seen..]);
    println!(
        "{} children, {} conditions; written by this build: {:?}",
        before.len(),
        times.len(),
        listed(written.iter().copied())
    );
    let (statuses, others): (Vec<_>, Vec<_>) =
        written.into_iter().partition(|event| event.subresource == "status");
    assert!(others.is_empty(), "{:?}", listed(others));
    let mut count: BTreeMap<_, usize> = BTreeMap::new();
    for event in &statuses {
        *count.entry((&event.resource, &event.name)).or_default() += 1;
    }
    // Where the earlier build recorded no inputs, coderd is asked at once, and its answer is a second write.
    let most = |resource: &str| if resource == "codercontrolplanes" { 2 } else { 1 };
    assert!(count.iter().all(|((resource, _), count)| *count <= most(resource)), "{count:?}");
    let after = children(scene).await;
    for (name, child) in &before {
        assert_eq!(after.get(name), Some(child), "{name}");
    }
    assert_eq!(after.len(), before.len(), "nothing was added");
    assert_eq!(transitions(scene).await, times);
    assert_eq!(
        (site.sim().keys().len(), site.registrations().len()),
        (keys, proxies),
        "nothing is made again"
    );
}
