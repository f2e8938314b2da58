//! What the real API server accepts and refuses of our kinds, and the sentence with which it refuses.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::large_futures,
    reason = "a test that cannot go on says so and stops"
)]

use std::path::Path;

use coder_k8s_api::{
    CoderControlPlane, CoderProvisioner, CoderWorkspaceProxy, crds, names, samples::SAMPLES,
};
use coder_k8s_book::Manifest;
use coder_k8s_testbed::shared_with;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, PostParams},
};
use serde::Deserialize;
use serde_json::{Value, json};

/// A table of manifests for one kind. Every entry is laid over `base`; a null takes a field of it away.
#[derive(Deserialize)]
struct Table {
    base: Value,
    refused: Vec<Case>,
    accepted: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    title: String,
    name: Option<String>,
    spec: Value,
    #[serde(default)]
    says: String,
}

#[tokio::test]
async fn bad_control_planes_are_refused_with_a_sentence() {
    check("CoderControlPlane", include_str!("manifests/controlplane.yaml")).await;
}

#[tokio::test]
async fn bad_provisioners_are_refused_with_a_sentence() {
    check("CoderProvisioner", include_str!("manifests/provisioner.yaml")).await;
}

#[tokio::test]
async fn bad_workspace_proxies_are_refused_with_a_sentence() {
    check("CoderWorkspaceProxy", include_str!("manifests/workspaceproxy.yaml")).await;
}

#[tokio::test]
async fn every_sample_is_accepted() {
    let shared = shared_with(crds).await;
    let namespace = shared.namespace("samples").await;
    for sample in SAMPLES {
        let mut object: DynamicObject = serde_saphyr::from_str(sample.yaml).unwrap();
        object.metadata.namespace = None;
        let kind = object.types.clone().unwrap().kind;
        let said = object.data["spec"].clone();
        let stored = api(shared.cluster.client(), &kind, namespace.name())
            .create(&dry_run(), &object)
            .await
            .unwrap_or_else(|error| panic!("{}: {error}", sample.file));
        assert_contains(sample.file, &said, &stored.data["spec"]);
    }
}

/// What readers copy from the book works: nothing is refused, and no field is misspelt and dropped.
#[tokio::test]
async fn every_manifest_of_the_book_is_accepted() {
    let pages = coder_k8s_book::pages(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")).unwrap();
    let shared = shared_with(crds).await;
    let namespace = shared.namespace("book").await;
    let (mut whole, mut parts, mut foreign, mut wrong) = (0, 0, 0, Vec::new());
    for page in pages.iter().filter(|page| page.is_in_book()) {
        for block in &page.blocks {
            let place = format!("{}:{}", page.path.display(), block.line);
            let manifests: Vec<Value> = match block.manifest().map(|manifest| manifest.expect(&place)) {
                None | Some(Manifest::NotChecked(_)) => continue,
                Some(Manifest::Whole { .. }) => {
                    block.documents().iter().map(|yaml| serde_saphyr::from_str(yaml).expect(&place)).collect()
                }
                Some(Manifest::Part(kind)) => {
                    parts += 1;
                    let part: Value = serde_saphyr::from_str(&block.text).expect(&place);
                    vec![completed(&kind, &part)]
                }
            };
            for manifest in manifests {
                assert!(
                    manifest["kind"].is_string() && manifest["apiVersion"].is_string(),
                    "{place}: no kind"
                );
                if manifest["apiVersion"] != format!("{}/{}", names::GROUP, names::VERSION) {
                    foreign += 1;
                    continue;
                }
                whole += 1;
                let mut object: DynamicObject = serde_json::from_value(manifest).expect(&place);
                object.metadata.namespace = None;
                let kind = object.types.clone().unwrap().kind;
                match api(shared.cluster.client(), &kind, namespace.name()).create(&dry_run(), &object).await
                {
                    Ok(stored) => assert_contains(&place, &object.data["spec"], &stored.data["spec"]),
                    Err(error) => wrong.push(format!("{place}: {error}")),
                }
            }
        }
    }
    whole -= parts;
    println!("the book: {whole} manifests and {parts} parts of manifests accepted, {foreign} of other kinds");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(whole >= 10 && parts >= 15, "are the blocks of the book still found?");
}

/// A manifest with what a reader changes, and the least that it needs besides.
fn completed(kind: &str, part: &Value) -> Value {
    let mut spec = match kind {
        "CoderControlPlane" => json!({}),
        _ => json!({"controlPlaneRef": {"name": "coder"}}),
    };
    lay_over(&mut spec, &part["spec"]);
    json!({
        "apiVersion": format!("{}/{}", names::GROUP, names::VERSION),
        "kind": kind,
        "metadata": {"name": "part"},
        "spec": spec,
    })
}

#[tokio::test]
async fn the_defaults_that_matter_most_are_visible_in_the_stored_object() {
    let shared = shared_with(crds).await;
    let namespace = shared.namespace("defaults").await;
    for manifest in [
        json!({"metadata": {"name": "without-spec"}}),
        json!({"metadata": {"name": "with-empty-spec"}, "spec": {}}),
        json!({"metadata": {"name": "with-nulls"}, "spec": {"service": null, "replicas": null, "readinessProbe": null}}),
    ] {
        let object = object(names::GROUP, "CoderControlPlane", manifest);
        let stored = api(shared.cluster.client(), "CoderControlPlane", namespace.name())
            .create(&dry_run(), &object)
            .await
            .unwrap();
        let expected = json!({"image": coder_k8s_api::DEFAULT_IMAGE, "replicas": 1,
            "service": {"type": "ClusterIP", "port": 80}});
        assert_eq!(stored.data["spec"], expected);
    }
    let pool = json!({"metadata": {"name": "pool"}, "spec": {"controlPlaneRef": {"name": "coder"}}});
    let stored = api(shared.cluster.client(), "CoderProvisioner", namespace.name())
        .create(&dry_run(), &object(names::GROUP, "CoderProvisioner", pool))
        .await
        .unwrap();
    assert_eq!(stored.data["spec"]["replicas"], 1);
    assert_eq!(stored.data["spec"].get("rbac"), None, "a default that only the operator knows");
    assert_eq!(stored.data["spec"].get("image"), None, "the effective image is on status");
}

#[tokio::test]
async fn the_service_of_a_proxy_has_visible_defaults() {
    let shared = shared_with(crds).await;
    let namespace = shared.namespace("defaults").await;
    let api = api(shared.cluster.client(), "CoderWorkspaceProxy", namespace.name());
    for (service, expected) in [
        (json!(null), json!({"type": "ClusterIP", "port": 80})),
        (json!({}), json!({"type": "ClusterIP", "port": 80})),
        (json!({"port": 8080}), json!({"type": "ClusterIP", "port": 8080})),
        (json!({"type": "NodePort"}), json!({"type": "NodePort", "port": 80})),
    ] {
        let mut proxy =
            json!({"metadata": {"name": "proxy"}, "spec": {"controlPlaneRef": {"name": "coder"}}});
        if !service.is_null() {
            proxy["spec"]["service"] = service.clone();
        }
        let proxy = object(names::GROUP, "CoderWorkspaceProxy", proxy);
        let stored = api.create(&dry_run(), &proxy).await.unwrap();
        assert_eq!(stored.data["spec"]["service"], expected, "of {service}");
    }
}

/// A rule that came later must not lock an object that is already stored: its finalizers must still come off.
#[tokio::test]
async fn an_object_that_breaks_a_new_rule_can_still_be_edited_and_deleted() {
    let shared = shared_with(crds).await;
    let namespace = shared.namespace("ratchet").await;
    let client = shared.cluster.client();
    let lax = lax_copy_of_control_planes();
    let crd_api: Api<CustomResourceDefinition> = Api::all(client.clone());
    crd_api.create(&PostParams::default(), &lax).await.unwrap();
    let resource = ApiResource::from_gvk_with_plural(
        &GroupVersionKind::gvk("lax.coder.com", "v1alpha1", "CoderControlPlane"),
        "codercontrolplanes",
    );
    let objects: Api<DynamicObject> = Api::namespaced_with(client, namespace.name(), &resource);
    let old = json!({
        "metadata": {"name": "1-coder", "finalizers": ["coder.com/workspace-rbac-cleanup"]},
        "spec": {"service": {"port": 0}, "licenseSecretRef": {"name": ""}},
    });
    let old = object("lax.coder.com", "CoderControlPlane", old);
    coder_k8s_testbed::eventually(std::time::Duration::from_secs(20), || async {
        objects.create(&PostParams::default(), &old).await.map(|_| ())
    })
    .await
    .unwrap();

    let mut strict = crd_api.get("codercontrolplanes.lax.coder.com").await.unwrap();
    strict.spec.versions[0].schema = crds()[0].spec.versions[0].schema.clone();
    crd_api.replace("codercontrolplanes.lax.coder.com", &PostParams::default(), &strict).await.unwrap();
    // The new schema is in force once a fresh object of that kind is refused.
    coder_k8s_testbed::eventually(std::time::Duration::from_secs(20), || async {
        let fresh = json!({"metadata": {"name": "2-coder"}, "spec": {}});
        let fresh = object("lax.coder.com", "CoderControlPlane", fresh);
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        match objects.create(&dry, &fresh).await {
            Err(error) if error.to_string().contains("name of a Service") => Ok(()),
            other => Err(format!("{:?}", other.map(|o| o.metadata.name))),
        }
    })
    .await
    .unwrap();

    let label = json!({"metadata": {"labels": {"touched": "yes"}}});
    let merge = kube::api::Patch::Merge(&label);
    objects
        .patch("1-coder", &kube::api::PatchParams::default(), &merge)
        .await
        .expect("an edit elsewhere is accepted");
    objects.delete("1-coder", &kube::api::DeleteParams::default()).await.unwrap();
    let free = json!({"metadata": {"finalizers": null}});
    objects
        .patch("1-coder", &kube::api::PatchParams::default(), &kube::api::Patch::Merge(&free))
        .await
        .expect("the finalizer comes off");
    assert!(objects.get_opt("1-coder").await.unwrap().is_none());
}

#[test]
fn each_crd_fits_into_the_annotation_of_kubectl_apply() {
    for crd in crds() {
        let size = serde_json::to_string(&crd).unwrap().len();
        println!("{}: {size} bytes of JSON", crd.metadata.name.clone().unwrap());
        assert!(size < 200 * 1024);
    }
}

async fn check(kind: &str, table: &str) {
    let table: Table = serde_saphyr::from_str(table).unwrap();
    assert!(table.refused.len() >= 20, "{kind}: {} bad manifests are too few", table.refused.len());
    let shared = shared_with(crds).await;
    let namespace = shared.namespace("validation").await;
    let api = api(shared.cluster.client(), kind, namespace.name());
    let mut wrong = Vec::new();
    for case in &table.refused {
        assert!(!case.says.is_empty(), "{}: what does it say?", case.title);
        match api.create(&dry_run(), &manifest(kind, &table.base, case)).await {
            Ok(_) => wrong.push(format!("{}: was accepted", case.title)),
            Err(kube::Error::Api(status)) if status.code == 422 && status.message.contains(&case.says) => {}
            Err(error) => wrong.push(format!("{}: {error}\n    expected: {}", case.title, case.says)),
        }
    }
    for case in &table.accepted {
        match api.create(&dry_run(), &manifest(kind, &table.base, case)).await {
            Ok(stored) => {
                wrong.extend(unparsable(kind, &stored).map(|error| format!("{}: {error}", case.title)));
            }
            Err(error) => wrong.push(format!("{}: should be accepted: {error}", case.title)),
        }
    }
    println!("{kind}: {} refused, {} accepted", table.refused.len(), table.accepted.len());
    assert!(wrong.is_empty(), "{kind}:\n{}", wrong.join("\n"));
}

/// Why the operator could not parse what the API server would store.
fn unparsable(kind: &str, stored: &DynamicObject) -> Option<serde_json::Error> {
    let stored = serde_json::to_value(stored).unwrap();
    match kind {
        "CoderControlPlane" => serde_json::from_value::<CoderControlPlane>(stored).err(),
        "CoderProvisioner" => serde_json::from_value::<CoderProvisioner>(stored).err(),
        _ => serde_json::from_value::<CoderWorkspaceProxy>(stored).err(),
    }
}

fn dry_run() -> PostParams {
    PostParams { dry_run: true, ..PostParams::default() }
}

fn api(client: Client, kind: &str, namespace: &str) -> Api<DynamicObject> {
    let plural = crds().into_iter().find(|crd| crd.spec.names.kind == kind).unwrap().spec.names.plural;
    let resource = ApiResource::from_gvk_with_plural(
        &GroupVersionKind::gvk(names::GROUP, names::VERSION, kind),
        &plural,
    );
    Api::namespaced_with(client, namespace, &resource)
}

fn manifest(kind: &str, base: &Value, case: &Case) -> DynamicObject {
    let mut spec = base.clone();
    lay_over(&mut spec, &case.spec);
    let name = case.name.as_deref().unwrap_or("case");
    object(names::GROUP, kind, json!({"metadata": {"name": name}, "spec": spec}))
}

fn object(group: &str, kind: &str, mut manifest: Value) -> DynamicObject {
    manifest["apiVersion"] = json!(format!("{group}/{}", names::VERSION));
    manifest["kind"] = json!(kind);
    serde_json::from_value(manifest).unwrap()
}

fn lay_over(base: &mut Value, patch: &Value) {
    let (Value::Object(base), Value::Object(patch)) = (base, patch) else { return };
    for (key, value) in patch {
        match (base.get_mut(key), value) {
            (Some(_), Value::Null) => {
                base.remove(key);
            }
            (Some(inner @ Value::Object(_)), Value::Object(_)) => lay_over(inner, value),
            _ => {
                base.insert(key.clone(), value.clone());
            }
        }
    }
}

fn assert_contains(what: &str, said: &Value, stored: &Value) {
    match (said, stored) {
        (Value::Object(said), Value::Object(stored)) => {
            for (key, value) in said {
                assert_contains(&format!("{what}.{key}"), value, stored.get(key).unwrap_or(&Value::Null));
            }
        }
        (said, stored) => assert_eq!(said, stored, "{what}"),
    }
}

/// The CRD of control planes in a group of its own, with a schema that lets everything pass.
fn lax_copy_of_control_planes() -> CustomResourceDefinition {
    let mut crd = crds().remove(0);
    crd.metadata.name = Some("codercontrolplanes.lax.coder.com".into());
    crd.spec.group = "lax.coder.com".into();
    let lax = json!({
        "type": "object",
        "properties": {
            "spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        },
    });
    crd.spec.versions[0].schema.as_mut().unwrap().open_api_v3_schema =
        Some(serde_json::from_value(lax).unwrap());
    crd.spec.versions[0].subresources.as_mut().unwrap().scale = None;
    crd
}
