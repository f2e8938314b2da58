//! Taking over what the Go operator left, and going back.

use std::time::Duration;

use coder_k8s::manifests::Install;
use coder_k8s_api::{CoderControlPlane, crds};
use coder_k8s_testbed::Cluster;
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::Service,
    rbac::v1::{Role, RoleBinding},
};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
};
use rustix::process::Signal;
use serde_json::{Value, json};

use coder_k8s_scenes::{
    Operator, grant,
    plane::observed,
    planes, recorded, requests,
    scene::{condition, message},
    writes,
};

/// Control planes and what belongs to them. Pools and proxies are other kinds' business.
fn of_control_planes(object: &Value) -> bool {
    let name = object["metadata"]["name"].as_str().unwrap();
    let others = ["pool", "proxy"];
    !others.iter().any(|other| name.contains(other))
}

async fn generation(client: &Client, name: &str) -> i64 {
    let api: Api<Deployment> = Api::namespaced(client.clone(), "takeover");
    api.get(name).await.unwrap().metadata.generation.unwrap()
}

/// Waits until the operator has been over both objects.
async fn taken_over(client: &Client) {
    for name in ["coder", "bare"] {
        observed(client, "takeover", name).await;
        let done = coder_k8s_testbed::eventually(coder_k8s_scenes::PATIENCE, || async {
            let plane = planes(client, "takeover").get(name).await.unwrap();
            if condition(&plane, "Ready").is_some() { Ok(()) } else { Err(format!("{:?}", plane.status)) }
        });
        done.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_deleted_made_again_or_renamed_and_pods_roll_at_most_once() {
    let cluster = Cluster::builder().controller_manager(false).crds(crds()).start().await.unwrap();
    let client = cluster.client();
    grant(&client, &Install::default()).await;
    let before = recorded::replay(&client, of_control_planes).await;
    assert_eq!(before.len(), 19);
    // Something that the Go operator once set and that nobody asks for any more.
    let services: Api<Service> = Api::namespaced(client.clone(), "takeover");
    let old = json!({"metadata": {"annotations": {"dropped": "1"}}});
    let by_them = PatchParams { field_manager: Some("coder-k8s".into()), ..PatchParams::default() };
    services.patch("coder", &by_them, &Patch::Merge(&old)).await.unwrap();
    let theirs = json!({"metadata": {"annotations": {"cloud": "1"}}});
    services.patch("coder", &PatchParams::default(), &Patch::Merge(&theirs)).await.unwrap();

    let mut first = Operator::start(&cluster, &[]);
    taken_over(&client).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    for object in &before {
        let now = object.now(&client).await.unwrap_or_else(|| panic!("{} is gone", object.name()));
        assert_eq!(now.uid(), object.object.uid(), "{} was made again", object.name());
    }
    for name in ["coder", "bare"] {
        assert_eq!(
            generation(&client, name).await,
            2,
            "one rollout of {name}, for what docs/differences.md says"
        );
    }
    let service = services.get("coder").await.unwrap();
    assert_eq!(service.annotations().get("dropped"), None, "a field that nobody asks for");
    assert_eq!(service.annotations()["cloud"], "1", "a field of others");
    assert!(service.managed_fields().iter().all(|entry| {
        entry.manager.as_deref() != Some("coder-k8s") || entry.operation.as_deref() == Some("Apply")
    }));

    // The status that others read is still there.
    let plane = planes(&client, "takeover").get("coder").await.unwrap();
    let status = plane.status.clone().unwrap();
    assert_eq!(status.operator_access_ready, Some(true));
    assert_eq!(status.license_tier.as_deref(), Some("premium"));
    assert_eq!(status.license_last_applied_hash.as_deref().map(str::len), Some(64));
    assert_eq!(status.operator_token_secret_ref.unwrap().name, "coder-operator-token");
    assert_eq!(status.url.as_deref(), Some("http://coder.takeover.svc.cluster.local:80"));
    assert_eq!(condition(&plane, "LicenseApplied").unwrap().status, "True");

    // Grants elsewhere that nobody consented to are kept for this release, and told.
    assert_eq!(condition(&plane, "WorkspaceAccess").unwrap().reason, "ConsentMissing");
    assert!(message(&plane, "WorkspaceAccess").contains("is kept for this release"));
    assert_eq!(plane.finalizers(), ["coder.com/workspace-rbac-cleanup"]);
    let bare = planes(&client, "takeover").get("bare").await.unwrap();
    assert!(bare.finalizers().is_empty(), "nothing of it is outside");

    first.signal(Signal::TERM);
    first.exit_code().await;
    let second = Operator::start(&cluster, &[]);
    second.until_leading().await;
    second.until_reconciled("CoderControlPlane", 2).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let all = requests(&cluster, |user| user == second.user);
    assert!(writes(&all).is_empty(), "after a restart: {:?}", writes(&all));

    // With consent they become ours; without, later, they go.
    let consent = |value: Value| json!({"metadata": {"labels": {"workspaces.coder.com/takeover": value}}});
    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(client.clone());
    let label = async |value: Value| {
        namespaces
            .patch("takeover-workspaces", &PatchParams::default(), &Patch::Merge(&consent(value)))
            .await
            .unwrap();
    };
    label(json!("allow")).await;
    says(&client, "Granted").await;
    label(json!(null)).await;
    says(&client, "ConsentMissing").await;
    let bindings: Api<RoleBinding> = Api::namespaced(client.clone(), "takeover-workspaces");
    let roles: Api<Role> = Api::namespaced(client.clone(), "takeover-workspaces");
    let gone = coder_k8s_testbed::eventually(coder_k8s_scenes::PATIENCE, || async {
        let left = bindings.list(&kube::api::ListParams::default()).await.unwrap().items.len()
            + roles.list(&kube::api::ListParams::default()).await.unwrap().items.len();
        if left == 0 { Ok(()) } else { Err(format!("{left} left")) }
    });
    gone.await.unwrap();
}

async fn says(client: &Client, reason: &str) {
    let said = coder_k8s_testbed::eventually(coder_k8s_scenes::PATIENCE, || async {
        let plane: CoderControlPlane = planes(client, "takeover").get("coder").await.unwrap();
        let found = condition(&plane, "WorkspaceAccess").unwrap();
        if found.reason == reason { Ok(()) } else { Err(format!("{found:?}")) }
    });
    said.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_way_back_and_forth_again_loses_nothing() {
    let cluster = Cluster::builder().controller_manager(false).crds(crds()).start().await.unwrap();
    let client = cluster.client();
    grant(&client, &Install::default()).await;
    let before = recorded::replay(&client, of_control_planes).await;
    let mut ours = Operator::start(&cluster, &[]);
    taken_over(&client).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    ours.signal(Signal::TERM);
    ours.exit_code().await;

    // The Go operator puts its own form back into every child, by plain update.
    let children = ["Deployment", "Service", "Role", "RoleBinding", "Ingress", "ServiceAccount"];
    for written in before.iter().filter(|written| children.contains(&written.resource.kind.as_str())) {
        recorded::put_back(&client, written).await;
    }
    for name in ["coder", "bare"] {
        let api: Api<Deployment> = Api::namespaced(client.clone(), "takeover");
        let spec = api.get(name).await.unwrap().spec.unwrap();
        let pod = spec.template.spec.unwrap();
        assert_eq!(pod.containers.len(), 1);
        assert!(pod.containers[0].security_context.is_none(), "its form, not ours");
        assert_eq!(generation(&client, name).await, 3);
    }
    // And ours again.
    let again = Operator::start(&cluster, &[]);
    again.until_leading().await;
    again.until_reconciled("CoderControlPlane", 2).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    for object in &before {
        let now = object.now(&client).await.unwrap_or_else(|| panic!("{} is gone", object.name()));
        assert_eq!(now.uid(), object.object.uid(), "{} was made again", object.name());
    }
    for name in ["coder", "bare"] {
        assert_eq!(generation(&client, name).await, 4, "one rollout");
    }
}
