//! Taking over a pool that the Go operator left: the same key, the same Secret, at most one rollout.

use std::time::Duration;

use coder_k8s::manifests::Install;
use coder_k8s_api::{CoderProvisioner, crds};
use coder_k8s_testbed::{
    Cluster,
    codersim::{CoderSim, KeySeen, Mode},
    eventually,
};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Secret};
use kube::{Api, Client, ResourceExt};
use rustix::process::Signal;
use secrecy::SecretString;
use serde_json::{Value, json};

use coder_k8s_scenes::{
    Operator, PATIENCE, grant,
    pool::{is, status, tags},
    recorded, requests, writes,
};

const ARGS: &[&str] = &["--entitlements-interval=100s", "--coderd-timeout=3s", "--database-timeout=1s"];

/// The pool, its control plane, and what belongs to them.
fn of_pool(object: &Value) -> bool {
    let name = object["metadata"]["name"].as_str().unwrap();
    !["proxy", "bare"].iter().any(|other| name.contains(other))
}

fn value(objects: &[recorded::Written], name: &str, key: &str) -> SecretString {
    let found = objects.iter().find(|o| o.resource.kind == "Secret" && o.object.name_any() == name).unwrap();
    let secret: Secret = found.object.clone().try_parse().unwrap();
    String::from_utf8(secret.data.unwrap()[key].0.clone()).unwrap().into()
}

/// coderd as it was: with the recorded key, its organization and the operator's token.
async fn coderd(before: &[recorded::Written]) -> CoderSim {
    let sim = CoderSim::start(Mode::Licensed).await.unwrap();
    let pool = before.iter().find(|o| o.resource.kind == "CoderProvisioner").unwrap();
    let said = &pool.object.data["status"];
    let text = |field: &str| said[field].as_str().unwrap().to_owned();
    sim.set_default_organization(&text("organizationID"));
    sim.restore_key(&KeySeen {
        id: text("provisionerKeyID"),
        organization: text("organizationID"),
        name: text("provisionerKeyName"),
        tags: tags(&[("region", "eu")]),
        material: value(before, "pool-provisioner-key", "key"),
    });
    sim.restore_token(&value(before, "coder-operator-token", "token"));
    sim
}

async fn taken_over(client: &Client, operator: &Operator) -> CoderProvisioner {
    let api: Api<CoderProvisioner> = Api::namespaced(client.clone(), "takeover");
    let done = eventually(PATIENCE, || async {
        let pool = api.get("pool").await.unwrap();
        let known = status(&pool).deployment_id.is_some() && is(&pool, "ProvisionerKeyReady", "True", None);
        if known { Ok(pool) } else { Err(format!("{:?}", pool.status)) }
    });
    done.await.unwrap_or_else(|error| panic!("{error}\n{}", operator.output()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_keeps_its_key_and_its_secret_and_rolls_at_most_once() {
    let cluster = Cluster::builder().controller_manager(false).crds(crds()).start().await.unwrap();
    let client = cluster.client();
    grant(&client, &Install::default()).await;
    let before = recorded::replay(&client, of_pool).await;
    let sim = coderd(&before).await;
    let operator = || {
        let operator = Operator::start(&cluster, ARGS);
        operator.host("coder.takeover.svc.cluster.local", sim.address());
        operator
    };
    let mut first = operator();
    let pool = taken_over(&client, &first).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    for object in &before {
        let now = object.now(&client).await.unwrap_or_else(|| panic!("{} is gone", object.name()));
        assert_eq!(now.uid(), object.object.uid(), "{} was made again", object.name());
    }
    // What others read is as it was: the Go operator would find no reason for a new key either.
    let was = &before.iter().find(|o| o.resource.kind == "CoderProvisioner").unwrap().object.data["status"];
    let now = serde_json::to_value(status(&pool)).unwrap();
    for field in [
        "provisionerKeyID",
        "provisionerKeyName",
        "organizationID",
        "organizationName",
        "tagsHash",
        "controlPlaneRefName",
        "controlPlaneURL",
        "secretRef",
        "phase",
    ] {
        assert_eq!(now[field], was[field], "{field}");
    }
    assert_eq!(now["deploymentID"], json!(sim.deployment_id()));
    assert_eq!(now["credentialsSource"]["type"], json!("Operator"));
    assert_eq!(pool.finalizers(), ["coder.com/provisioner-key-cleanup"]);
    let secrets: Api<Secret> = Api::namespaced(client.clone(), "takeover");
    let secret = secrets.get("pool-provisioner-key").await.unwrap();
    let recorded_value = before.iter().find(|o| o.object.name_any() == "pool-provisioner-key").unwrap();
    let old: Secret = recorded_value.object.clone().try_parse().unwrap();
    assert!(secret.data == old.data, "the material is the same");
    assert_eq!(
        secret.annotations()["coder.com/provisioner-key-id"],
        was["provisionerKeyID"].as_str().unwrap()
    );
    let writes_of_keys = |entry: &&coder_k8s_testbed::codersim::Entry| {
        entry.path.contains("provisionerkeys") && entry.method != "GET"
    };
    assert_eq!(sim.requests().iter().filter(writes_of_keys).count(), 0, "nothing is made or deleted");
    assert_eq!(sim.keys().len(), 1);
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), "takeover");
    let deployment = deployments.get("provisioner-pool").await.unwrap();
    assert!(deployment.metadata.generation.unwrap() <= 2, "at most one rollout");
    let annotations = deployment.spec.unwrap().template.metadata.unwrap().annotations.unwrap();
    assert_eq!(annotations["checksum/provisioner-key"], "4978c5c2", "the checksum says the same");

    first.signal(Signal::TERM);
    first.exit_code().await;
    let second = operator();
    second.until_leading().await;
    second.until_reconciled("CoderProvisioner", 1).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let all = requests(&cluster, |user| user == second.user);
    let written: Vec<_> =
        writes(&all).into_iter().filter(|event| event.resource != "codercontrolplanes").collect();
    assert!(written.is_empty(), "after a restart: {written:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_whose_recorded_status_is_in_parts_is_taken_over_all_the_same() {
    let cluster = Cluster::builder().controller_manager(false).crds(crds()).start().await.unwrap();
    let client = cluster.client();
    grant(&client, &Install::default()).await;
    let before = recorded::replay(&client, of_pool).await;
    let sim = coderd(&before).await;
    let api: Api<CoderProvisioner> = Api::namespaced(client.clone(), "takeover");
    let lost =
        json!({"status": {"provisionerKeyID": null, "organizationName": null, "controlPlaneURL": null}});
    api.patch_status("pool", &kube::api::PatchParams::default(), &kube::api::Patch::Merge(&lost))
        .await
        .unwrap();
    let operator = Operator::start(&cluster, ARGS);
    operator.host("coder.takeover.svc.cluster.local", sim.address());
    let pool = taken_over(&client, &operator).await;
    assert_eq!(status(&pool).provisioner_key_id, Some(sim.keys()[0].id.clone()));
    assert_eq!(sim.keys().len(), 1);
    assert_eq!(
        sim.requests().iter().filter(|entry| entry.method == "POST" && entry.path.contains("keys")).count(),
        0
    );
}
