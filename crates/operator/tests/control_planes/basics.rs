//! From an object to a running, observable server.

use coder_k8s_api::CoderControlPlane;
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Service};
use kube::api::DeleteParams;
use serde_json::json;

use coder_k8s_scenes::{
    apply,
    scene::{Scene, belongs, condition, status},
};

use crate::OPERATOR;

#[tokio::test]
async fn children_follow_the_spec() {
    let scene = Scene::new(&OPERATOR, "basics").await;
    let spec =
        json!({"image": "coder:v1", "replicas": 2, "extraArgs": ["--verbose"], "service": {"port": 8080}});
    scene.plane("coder", spec).await;
    scene.until_observed("coder").await;
    let deployment: Deployment = scene.until_exists("coder").await;
    let spec = deployment.spec.unwrap();
    assert_eq!(spec.replicas, Some(2));
    let containers = spec.template.spec.unwrap().containers;
    assert_eq!(containers.len(), 1);
    assert_eq!(containers[0].args.as_ref().unwrap(), &["--http-address=0.0.0.0:8080", "--verbose"]);
    let ports = scene.until_exists::<Service>("coder").await.spec.unwrap().ports.unwrap();
    assert_eq!(ports.iter().map(|port| port.port).collect::<Vec<_>>(), [8080]);

    scene.spec("coder", json!({"image": "coder:v2", "replicas": 3, "service": {"port": 9090}})).await;
    scene.until_observed("coder").await;
    let spec = scene.until_exists::<Deployment>("coder").await.spec.unwrap();
    assert_eq!(spec.replicas, Some(3));
    assert_eq!(spec.template.spec.unwrap().containers[0].image.as_deref(), Some("coder:v2"));
    let ports = scene.until_exists::<Service>("coder").await.spec.unwrap().ports.unwrap();
    assert_eq!(ports.iter().map(|port| port.port).collect::<Vec<_>>(), [9090]);
}

#[tokio::test]
async fn an_empty_spec_gets_every_default() {
    let scene = Scene::new(&OPERATOR, "basics").await;
    let object = json!({"apiVersion": "coder.com/v1alpha1", "kind": "CoderControlPlane",
        "metadata": {"name": "coder", "namespace": scene.namespace}});
    apply(&scene.client, object).await;
    let plane = scene.until_observed("coder").await;
    let deployment: Deployment = scene.until_exists("coder").await;
    assert!(belongs(&deployment, &plane));
    let spec = deployment.spec.unwrap();
    assert_eq!(spec.replicas, Some(1));
    let image = spec.template.spec.unwrap().containers[0].image.clone();
    assert_eq!(image.as_deref(), Some("ghcr.io/coder/coder:latest"));
    let service: Service = scene.until_exists("coder").await;
    assert!(belongs(&service, &plane));
    let spec = service.spec.unwrap();
    assert_eq!((spec.type_.as_deref(), spec.ports.unwrap()[0].port), (Some("ClusterIP"), 80));
}

#[tokio::test]
async fn the_status_tells_address_pods_and_phase_from_start_to_ready() {
    let scene = Scene::new(&OPERATOR, "basics").await;
    scene
        .node()
        .behave(coder_k8s_testbed::Rule::namespace(&scene.namespace), coder_k8s_testbed::Behaviour::Unready);
    scene.plane("coder", json!({"image": "coder:v1", "service": {"port": 8080}})).await;
    let plane = scene.until_observed("coder").await;
    let said = status(&plane);
    assert_eq!(said.url, Some(format!("http://coder.{}.svc.cluster.local:8080", scene.namespace)));
    assert_eq!((said.workload.ready_replicas, said.workload.phase.as_deref()), (Some(0), Some("Pending")));
    assert_eq!(condition(&plane, "Ready").unwrap().reason, "Progressing");
    assert_eq!(said.workload.image, None, "nothing has rolled out yet");

    scene
        .node()
        .behave(coder_k8s_testbed::Rule::namespace(&scene.namespace), coder_k8s_testbed::Behaviour::Ready);
    let plane = scene.until_ready("coder").await;
    let said = status(&plane);
    assert_eq!((said.workload.ready_replicas, said.workload.phase.as_deref()), (Some(1), Some("Ready")));
    assert_eq!((said.workload.replicas, said.workload.image.as_deref()), (Some(1), Some("coder:v1")));
    let selector = said.workload.selector.unwrap();
    assert!(selector.contains("app.kubernetes.io/instance=coder"), "{selector}");
}

#[tokio::test]
async fn no_pods_are_a_settled_state() {
    let scene = Scene::new(&OPERATOR, "basics").await;
    scene.plane("coder", json!({"replicas": 0})).await;
    let plane = scene.until_ready("coder").await;
    assert_eq!(condition(&plane, "Ready").unwrap().reason, "ScaledToZero");
    assert_eq!(condition(&plane, "Reconciling").unwrap().status, "False");
    assert_eq!(status(&plane).workload.phase.as_deref(), Some("Pending"), "the word of the Go operator");
}

#[tokio::test]
async fn an_object_that_is_gone_is_no_trouble() {
    let scene = Scene::new(&OPERATOR, "basics").await;
    scene.plane("coder", json!({})).await;
    scene.api::<CoderControlPlane>().delete("coder", &DeleteParams::default()).await.unwrap();
    scene.until_gone::<Deployment>("coder").await;
    scene.until_gone::<Service>("coder").await;
    let bad = scene.log().lines().filter(|line| line.contains(r#""level":"ERROR""#)).count();
    assert_eq!(bad, 0, "{}", scene.log());
}
