//! The operator runs from the released image: in its root folder, as its user, with nothing else of this machine, against a
//! real cluster that the released manifests were applied to.
//!
//! Run by `cargo xtask dist --check`, which has umoci unpack the image. Names are resolved as in a pod: that of the API
//! server by the hosts file, that of coderd by DNS.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::large_futures,
    reason = "everything here is a test, its helper functions too"
)]

mod container;
mod dns;

use std::{
    fs,
    net::IpAddr,
    path::PathBuf,
    time::{Duration, Instant},
};

use coder_k8s_api::CoderControlPlane;
use coder_k8s_scenes::{
    PATIENCE, apply,
    scene::{belongs, condition},
};
use coder_k8s_testbed::{
    Cluster,
    codersim::{CoderSim, Mode},
    eventually,
};
use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        core::v1::{Service, ServiceAccount},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams},
};
use rustix::process::Signal;
use secrecy::ExposeSecret;
use serde_json::{Value, json};

use container::Container;
use dns::Dns;

/// The namespace of the manifests.
const NAMESPACE: &str = "coder-system";

fn folder(variable: &str) -> PathBuf {
    let folder = std::env::var_os(variable).map(PathBuf::from);
    folder.unwrap_or_else(|| panic!("{variable} is not set: run `cargo xtask dist --check`"))
}

/// The objects of the released manifests.
fn manifests() -> Vec<Value> {
    let file = folder("CODER_K8S_DIST").join("coder-k8s-install.yaml");
    let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let documents = text.split("\n---\n").filter(|document| document.contains("kind:"));
    documents.map(|document| serde_saphyr::from_str(document).unwrap()).collect()
}

/// Applies the released manifests, and returns the arguments of the operator in them.
async fn install(client: &Client) -> Vec<String> {
    let objects = manifests();
    for object in &objects {
        apply(client, object.clone()).await;
    }
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let established = eventually(PATIENCE, || async {
        let all = crds.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
        let is_established = |crd: &CustomResourceDefinition| {
            let conditions = crd.status.iter().flat_map(|status| status.conditions.iter().flatten());
            conditions.filter(|c| c.type_ == "Established" && c.status == "True").count() == 1
        };
        if all.items.len() == 3 && all.items.iter().all(is_established) {
            Ok(())
        } else {
            Err("not yet".to_owned())
        }
    });
    established.await.unwrap();
    let deployment = objects.iter().find(|object| object["kind"] == "Deployment").unwrap();
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    serde_json::from_value(container["args"].clone()).unwrap()
}

async fn until(planes: &Api<CoderControlPlane>, type_: &str, log: impl Fn() -> String) -> CoderControlPlane {
    let found = eventually(PATIENCE, || async {
        let plane = planes.get("coder").await.map_err(|error| error.to_string())?;
        let is_current = plane.status.as_ref().and_then(|status| status.workload.observed_generation)
            == plane.metadata.generation;
        match condition(&plane, type_) {
            Some(condition) if condition.status == "True" && is_current => Ok(plane),
            _ => Err(format!("{type_} is not True: {:?}", plane.status)),
        }
    });
    found.await.unwrap_or_else(|error| panic!("{error}\n{}", log()))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operator_works_from_the_image_with_and_without_its_ca_bundle() {
    let image = folder("CODER_K8S_IMAGE_ROOT");
    let cluster = Cluster::builder().ready_within(Duration::from_mins(3)).start().await.unwrap();
    let _node = cluster.node("image").await.unwrap();
    let client = cluster.client();
    let args = install(&client).await;
    let sim = CoderSim::start(Mode::Unlicensed).await.unwrap();
    let IpAddr::V4(host) = sim.address().ip() else { panic!("the simulator has an IPv4 address") };
    let dns = Dns::start("coder.default.svc.cluster.local".to_owned(), host).await;
    let container = Container::new(&image, &cluster).await;
    let files = container.files();

    let began = Instant::now();
    let mut operator = container.start(&cluster, &args);
    operator.until_leading().await;
    println!("leads after {:.1} s", began.elapsed().as_secs_f64());
    assert_eq!(container::users_of(operator.pid()), ["65532"; 4]);
    operator.until_ready().await;

    apply(
        &client,
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "token", "namespace": "default"},
            "stringData": {"token": sim.owner_token().expose_secret()}}),
    )
    .await;
    apply(
        &client,
        json!({"apiVersion": "coder.com/v1alpha1", "kind": "CoderControlPlane",
        "metadata": {"name": "coder", "namespace": "default"},
        "spec": {
            // The Service has no address outside of pods. The server is where DNS says, at this port.
            "service": {"port": sim.address().port()},
            "operatorAccess": {"method": "TokenSecret", "tokenSecretRef": {"name": "token"}},
        }}),
    )
    .await;
    let planes: Api<CoderControlPlane> = Api::default_namespaced(client.clone());
    let plane = until(&planes, "Ready", || operator.output()).await;
    let deployments: Api<Deployment> = Api::default_namespaced(client.clone());
    let services: Api<Service> = Api::default_namespaced(client.clone());
    let accounts: Api<ServiceAccount> = Api::default_namespaced(client.clone());
    assert!(belongs(&deployments.get("coder").await.unwrap(), &plane));
    assert!(belongs(&services.get("coder").await.unwrap(), &plane));
    assert!(belongs(&accounts.get("coder").await.unwrap(), &plane));
    let plane = until(&planes, "OperatorAccessReady", || operator.output()).await;
    assert!(plane.status.unwrap().version.is_some(), "coderd told its version");
    let asked = dns.asked();
    assert!(asked.iter().any(|name| name == "coder.default.svc.cluster.local"), "{asked:?}");
    println!("a control plane has its children and its status after {:.1} s", began.elapsed().as_secs_f64());

    operator.signal(Signal::TERM);
    assert_eq!(operator.exit_code().await, Some(0), "{}", operator.output());
    assert_eq!(container.files(), files, "it writes nothing into its root folder");

    // The cluster's own CA is all that it needs here.
    fs::remove_dir_all(container.root.join("etc/ssl")).unwrap();
    let operator = container.start(&cluster, &args);
    operator.until_leading().await;
    let more = json!({"spec": {"replicas": 2}});
    planes.patch("coder", &PatchParams::default(), &Patch::Merge(&more)).await.unwrap();
    let scaled = eventually(PATIENCE, || async {
        let deployment = deployments.get("coder").await.map_err(|error| error.to_string())?;
        let replicas = deployment.spec.and_then(|spec| spec.replicas);
        if replicas == Some(2) { Ok(()) } else { Err(format!("{replicas:?} replicas")) }
    });
    scaled.await.unwrap_or_else(|error| panic!("{error}\n{}", operator.output()));
    println!("works without a CA bundle too");
}
