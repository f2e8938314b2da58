//! What others write to our children is neither lost nor fought over.

use std::time::Duration;

use coder_k8s_api::CoderControlPlane;
use k8s_openapi::api::{
    apps::v1::Deployment,
    autoscaling::v1::Scale,
    core::v1::{Service, ServiceAccount},
    networking::v1::Ingress,
    policy::v1::PodDisruptionBudget,
    rbac::v1::{Role, RoleBinding},
};
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use coder_k8s_scenes::scene::{Kind, Scene, condition, message};

use crate::OPERATOR;

/// How long the operator must leave others alone.
const PEACE: Duration = Duration::from_secs(30);

/// Marks an object as others do: a label, an annotation, and more. Strategic, so that lists merge by key.
async fn mark<K: Kind>(scene: &Scene, name: &str, more: Value) {
    let params = PatchParams { field_manager: Some("somebody".into()), ..PatchParams::default() };
    let labels = json!({"metadata": {"labels": {"theirs": "1"}, "annotations": {"example.com/theirs": "1"}}});
    for patch in [labels, more] {
        scene.api::<K>().patch(name, &params, &Patch::Strategic(&patch)).await.unwrap();
    }
}

async fn is_marked<K: Kind>(scene: &Scene, name: &str) {
    let object = scene.until_exists::<K>(name).await;
    assert_eq!(object.labels().get("theirs").map(String::as_str), Some("1"), "{object:?}");
    assert_eq!(object.annotations().get("example.com/theirs").map(String::as_str), Some("1"), "{object:?}");
}

async fn named<K: Kind>(scene: &Scene) -> String {
    let ours = ListParams::default().labels("app.kubernetes.io/managed-by=coder-k8s");
    scene.api::<K>().list(&ours).await.unwrap().items.remove(0).name_any()
}

#[tokio::test]
async fn labels_annotations_sidecars_and_a_restart_survive() {
    let scene = Scene::new(&OPERATOR, "ownership").await;
    let spec = json!({"image": "coder:v1", "replicas": 2, "scaling": "External",
        "service": {"annotations": {"mine": "1"}},
        "expose": {"ingress": {"host": "coder.example.com", "annotations": {"mine": "1"}}}});
    scene.plane("coder", spec).await;
    scene.until_ready("coder").await;
    scene.edit::<Deployment>("coder", json!({"spec": {"replicas": 3}})).await;
    scene.until("coder", |d: &Deployment| d.status.as_ref().and_then(|s| s.ready_replicas) == Some(3)).await;
    scene.until_exists::<PodDisruptionBudget>("coder").await;
    let (role, binding) = (named::<Role>(&scene).await, named::<RoleBinding>(&scene).await);
    let injected = json!({"spec": {"template": {
        "metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": "now", "sidecar.example.com/injected": "yes"},
            "labels": {"mesh": "on"}},
        "spec": {"containers": [{"name": "mesh", "image": "mesh:1", "volumeMounts": [{"name": "mesh", "mountPath": "/mesh"}]}],
            "volumes": [{"name": "mesh", "emptyDir": {}}]}}}});
    mark::<Deployment>(&scene, "coder", injected).await;
    mark::<Service>(&scene, "coder", json!({"spec": {"externalIPs": ["192.0.2.1"]}})).await;
    mark::<ServiceAccount>(&scene, "coder", json!({"imagePullSecrets": [{"name": "cloud"}]})).await;
    mark::<Ingress>(&scene, "coder", json!({})).await;
    mark::<PodDisruptionBudget>(&scene, "coder", json!({})).await;
    mark::<Role>(&scene, &role, json!({})).await;
    mark::<RoleBinding>(&scene, &binding, json!({})).await;
    scene.until_ready("coder").await;
    // Status follows the restart; then nothing.
    scene
        .until("coder", |d: &Deployment| {
            let status = d.status.clone().unwrap_or_default();
            (status.updated_replicas, status.replicas, status.ready_replicas) == (Some(3), Some(3), Some(3))
        })
        .await;
    scene.until_ready("coder").await;
    scene.until_idle().await;
    scene.assert_no_writes(PEACE).await;

    // Also not lost when the operator itself writes next.
    scene.spec("coder", json!({"image": "coder:v2"})).await;
    scene.until_ready("coder").await;
    is_marked::<Deployment>(&scene, "coder").await;
    is_marked::<Service>(&scene, "coder").await;
    is_marked::<ServiceAccount>(&scene, "coder").await;
    is_marked::<Ingress>(&scene, "coder").await;
    is_marked::<PodDisruptionBudget>(&scene, "coder").await;
    is_marked::<Role>(&scene, &role).await;
    is_marked::<RoleBinding>(&scene, &binding).await;
    let deployment = scene.until_exists::<Deployment>("coder").await.spec.unwrap();
    assert_eq!(deployment.replicas, Some(3));
    let template = deployment.template;
    let annotations = template.metadata.unwrap().annotations.unwrap();
    assert_eq!(annotations["kubectl.kubernetes.io/restartedAt"], "now");
    let pod = template.spec.unwrap();
    let images: Vec<_> = pod.containers.iter().filter_map(|c| c.image.as_deref()).collect();
    assert!(images.contains(&"mesh:1") && images.contains(&"coder:v2"), "{images:?}");
    assert!(pod.volumes.unwrap().iter().any(|volume| volume.name == "mesh"));
}

#[tokio::test]
async fn what_the_operator_sets_is_set_again_when_others_change_it() {
    let scene = Scene::new(&OPERATOR, "ownership").await;
    scene.plane("coder", json!({"image": "coder:v1", "replicas": 2})).await;
    scene.until_ready("coder").await;
    scene.edit::<Deployment>("coder", json!({"spec": {"replicas": 5}})).await;
    scene.until("coder", |d: &Deployment| d.spec.as_ref().unwrap().replicas == Some(2)).await;
    scene
        .edit::<Service>("coder", json!({"spec": {"selector": {"app.kubernetes.io/instance": "other"}}}))
        .await;
    scene
        .until("coder", |s: &Service| {
            s.spec.as_ref().unwrap().selector.as_ref().unwrap()["app.kubernetes.io/instance"] == "coder"
        })
        .await;
}

/// What an autoscaler does: it writes the scale of our object.
#[tokio::test]
async fn an_autoscaler_scales_the_object_itself() {
    let scene = Scene::new(&OPERATOR, "ownership").await;
    scene.plane("coder", json!({})).await;
    scene.until_ready("coder").await;
    let api: Api<CoderControlPlane> = scene.api();
    let scale: Scale =
        serde_json::from_value(serde_json::to_value(api.get_scale("coder").await.unwrap()).unwrap()).unwrap();
    let selector = scale.status.unwrap().selector.unwrap();
    assert!(selector.contains("app.kubernetes.io/name=coder-control-plane"), "{selector}");
    let three = json!({"spec": {"replicas": 3}});
    api.patch_scale("coder", &PatchParams::default(), &Patch::Merge(&three)).await.unwrap();
    scene.until("coder", |d: &Deployment| d.spec.as_ref().unwrap().replicas == Some(3)).await;
    let plane = scene.until_ready("coder").await;
    assert_eq!(plane.status.unwrap().workload.replicas, Some(3));
}

#[tokio::test]
async fn handing_the_scale_to_somebody_else_keeps_the_pods_that_there_are() {
    let scene = Scene::new(&OPERATOR, "ownership").await;
    scene.plane("coder", json!({"replicas": 4})).await;
    scene.until_ready("coder").await;
    scene.spec("coder", json!({"scaling": "External"})).await;
    scene.until_ready("coder").await;
    assert_eq!(scene.until_exists::<Deployment>("coder").await.spec.unwrap().replicas, Some(4));
    scene.edit::<Deployment>("coder", json!({"spec": {"replicas": 6}})).await;
    scene.spec("coder", json!({"image": "coder:v2"})).await;
    scene.until_ready("coder").await;
    assert_eq!(scene.until_exists::<Deployment>("coder").await.spec.unwrap().replicas, Some(6));
    // And back.
    scene.spec("coder", json!({"scaling": "Managed"})).await;
    scene.until("coder", |d: &Deployment| d.spec.as_ref().unwrap().replicas == Some(4)).await;
}

/// A Service cannot select our pods while the Deployment of its own pods cannot be taken over.
#[tokio::test]
async fn objects_are_handed_over_together_or_not_at_all() {
    let scene = Scene::new(&OPERATOR, "ownership").await;
    let given = json!({"coder.com/adopt-by": "CoderControlPlane/coder"});
    let labels = json!({"app": "theirs"});
    let service = json!({"metadata": {"name": "coder", "annotations": given},
        "spec": {"selector": labels, "ports": [{"name": "http", "port": 80}]}});
    let service = scene.create::<Service>(service).await;
    let account = json!({"metadata": {"name": "coder", "annotations": given}});
    let account = scene.create::<ServiceAccount>(account).await;
    let deployment = json!({"metadata": {"name": "coder"}, "spec": {"selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "coder", "image": "coder:v1"}]}}}});
    scene.create::<Deployment>(deployment).await;
    scene.plane("coder", json!({"image": "coder:v1"})).await;

    let untouched = |plane: CoderControlPlane, why: &'static str| {
        let said = message(&plane, "Conflict");
        assert!(said.contains("Service coder is handed over and was not touched"), "{said}");
        assert!(said.contains("Deployment coder") && said.contains(why), "{said}");
        let (service, account, scene) = (&service, &account, &scene);
        async move {
            let now: Service = scene.until_exists("coder").await;
            assert_eq!(now.resource_version(), service.resource_version());
            let now: ServiceAccount = scene.until_exists("coder").await;
            assert_eq!(now.resource_version(), account.resource_version());
        }
    };
    let plane = scene.until_condition("coder", "Conflict", "True", Some("ForeignObject")).await;
    untouched(plane, "belongs to somebody else").await;

    // Handed over as well, its selector still cannot be changed.
    scene.edit::<Deployment>("coder", json!({"metadata": {"annotations": given}})).await;
    let plane = scene
        .until("coder", |plane: &CoderControlPlane| {
            condition(plane, "Conflict").is_some_and(|found| found.message.contains("has another selector"))
        })
        .await;
    untouched(plane, "has another selector").await;

    scene.delete::<Deployment>("coder").await;
    scene.until_ready("coder").await;
    let service: Service = scene.until_exists("coder").await;
    assert_eq!(service.spec.unwrap().selector.unwrap()["app.kubernetes.io/instance"], "coder");
}
