//! Taking over proxies that the Go operator left: the same registration, the same token, at most one rollout.

use coder_k8s::manifests::Install;
use coder_k8s_api::{CoderWorkspaceProxy, crds};
use coder_k8s_testbed::{
    Cluster,
    codersim::{CoderSim, Mode, ProxySeen},
    eventually,
};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Secret, Service},
};
use kube::{Api, ResourceExt};
use rustix::process::Signal;
use secrecy::SecretString;
use serde_json::Value;

use coder_k8s_scenes::{
    Operator, PATIENCE, grant,
    proxy::{is, registrations, status},
    recorded, requests, writes,
};

fn of_proxies(object: &Value) -> bool {
    let name = object["metadata"]["name"].as_str().unwrap();
    object["metadata"]["namespace"] == "takeover" && (name.contains("proxy") || name.contains("bootstrap"))
        || name == "coder" && object["kind"] == "CoderControlPlane"
}

async fn coderd(objects: &[recorded::Written]) -> CoderSim {
    let sim = CoderSim::start(Mode::Licensed).await.unwrap();
    let recorded = &recorded::outside()["coderd"];
    sim.set_deployment_id(recorded["deployment_id"].as_str().unwrap());
    for proxy in recorded["workspace_proxies"].as_array().unwrap() {
        let text = |field: &str| proxy[field].as_str().unwrap().to_owned();
        sim.restore_proxy(&ProxySeen {
            id: text("id"),
            name: text("name"),
            display_name: text("display_name"),
            icon: text("icon_url"),
            deleted: false,
            token: format!("{}:{}", text("id"), text("secret")).into(),
            status: String::new(),
            url: String::new(),
            version: String::new(),
        });
    }
    let creds = objects.iter().find(|o| o.object.name_any() == "coder-bootstrap").unwrap();
    let secret: Secret = serde_json::from_value(serde_json::to_value(&creds.object).unwrap()).unwrap();
    let token = String::from_utf8(secret.data.unwrap()["token"].0.clone()).unwrap();
    sim.restore_token(&SecretString::from(token));
    sim
}

#[tokio::test(flavor = "multi_thread")]
async fn proxies_are_taken_over_with_registration_and_token() {
    let cluster = Cluster::builder().controller_manager(false).crds(crds()).start().await.unwrap();
    let client = cluster.client();
    grant(&client, &Install::default()).await;
    let before = recorded::replay(&client, of_proxies).await;
    let sim = coderd(&before).await;
    let held = registrations(&sim);
    let api: Api<CoderWorkspaceProxy> = Api::namespaced(client.clone(), "takeover");
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), "takeover");
    let secrets: Api<Secret> = Api::namespaced(client.clone(), "takeover");
    let token = secrets.get("proxy-eu-proxy-token").await.unwrap();
    let start = || {
        let operator = Operator::start(&cluster, &["--coderd-timeout=3s", "--database-timeout=1s"]);
        operator.host("coder.takeover.svc.cluster.local", sim.address());
        operator
    };
    let mut first = start();
    // Without a controller-manager the rollout does not end; the registration does.
    let taken = eventually(PATIENCE, || async {
        let [eu, direct] = [api.get("proxy-eu").await.unwrap(), api.get("proxy-direct").await.unwrap()];
        let state = format!("{:?} {:?}", eu.status, direct.status);
        let done = is(&eu, "Registered", "True", None)
            && status(&eu).proxy_id.is_some()
            && eu.finalizers() == ["coder.com/workspace-proxy-cleanup"]
            && is(&direct, "TokenSecretReady", "True", None);
        if done { Ok(eu) } else { Err(state) }
    });
    let eu = taken.await.unwrap_or_else(|error| panic!("{error}\n{}", first.output()));
    assert_eq!(status(&eu).proxy_id.as_deref(), Some("e4755be6-a3dd-410a-9877-511dd78b69eb"));
    assert_eq!(status(&eu).registered, Some(true));
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    let after = secrets.get("proxy-eu-proxy-token").await.unwrap();
    assert_eq!((after.uid(), &after.data), (token.uid(), &token.data), "the same token");
    assert_eq!(format!("{held:?}"), format!("{:?}", registrations(&sim)), "the same registrations");
    let written = |entry: &&coder_k8s_testbed::codersim::Entry| entry.method != "GET";
    assert_eq!(sim.requests().iter().filter(written).count(), 0, "{:?}", sim.requests());
    for name in ["wsproxy-proxy-eu", "wsproxy-proxy-direct"] {
        let live = deployments.get(name).await.unwrap();
        assert!(live.metadata.generation.unwrap() <= 2, "{name}: at most one rollout");
        let old =
            before.iter().find(|o| o.object.name_any() == name && o.resource.kind == "Deployment").unwrap();
        assert_eq!(live.uid(), old.object.uid(), "{name}: nothing is made anew");
        let container = live.spec.unwrap().template.spec.unwrap().containers.remove(0);
        assert_eq!(container.command.unwrap(), ["coder"], "{name}: which the official image needs");
        let services: Api<Service> = Api::namespaced(client.clone(), "takeover");
        assert!(services.get(name).await.is_ok());
    }

    first.signal(Signal::TERM);
    first.exit_code().await;
    let second = start();
    second.until_leading().await;
    second.until_reconciled("CoderWorkspaceProxy", 2).await;
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    let all = requests(&cluster, |user| user == second.user);
    let written: Vec<_> =
        writes(&all).into_iter().filter(|event| event.resource != "codercontrolplanes").collect();
    assert!(written.is_empty(), "after a restart: {written:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_works_is_used_without_credentials() {
    let cluster = Cluster::builder().controller_manager(false).crds(crds()).start().await.unwrap();
    let client = cluster.client();
    grant(&client, &Install::default()).await;
    let before = recorded::replay(&client, of_proxies).await;
    let sim = coderd(&before).await;
    let secrets: Api<Secret> = Api::namespaced(client.clone(), "takeover");
    secrets.delete("coder-bootstrap", &kube::api::DeleteParams::default()).await.unwrap();
    let operator = Operator::start(&cluster, &["--coderd-timeout=3s", "--database-timeout=1s"]);
    operator.host("coder.takeover.svc.cluster.local", sim.address());
    let api: Api<CoderWorkspaceProxy> = Api::namespaced(client.clone(), "takeover");
    let taken = eventually(PATIENCE, || async {
        let eu = api.get("proxy-eu").await.unwrap();
        let done = is(&eu, "Registered", "True", None)
            && is(&eu, "CredentialsReady", "False", Some("CredentialsSecretUnavailable"));
        if done { Ok(eu) } else { Err(format!("{:?}", eu.status)) }
    });
    let eu = taken.await.unwrap_or_else(|error| panic!("{error}\n{}", operator.output()));
    assert_eq!(status(&eu).proxy_token_secret_ref.unwrap().name, "proxy-eu-proxy-token");
    assert_eq!(sim.count("*", "/api/v2/workspaceproxies"), sim.count("GET", "/api/v2/workspaceproxies/me/"));
}
