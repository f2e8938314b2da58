//! A table of values. Each row is rendered, looked at, and its objects are applied by a dry run with strict validation; its pod
//! is created by a dry run in a namespace that enforces the Pod Security level `restricted`.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use coder_k8s_scenes::{apply, bare_cluster};
use coder_k8s_testbed::binaries;
use k8s_openapi::{
    api::core::v1::Pod, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client,
    api::{DynamicObject, Patch, PatchParams, PostParams, ValidationDirective},
    discovery,
};
use serde_json::{Value, json};

use crate::{
    helm::{Helm, NAMESPACE, RELEASE, chart, observed_chart, only},
    rows::table,
};

#[tokio::test]
async fn every_row_of_the_table_is_accepted_by_the_api_server_and_by_pod_security() {
    let (_cluster, client) = bare_cluster(monitoring()).await;
    for (name, level) in
        [(NAMESPACE, "restricted"), ("team-a", "privileged"), ("team-b", "privileged"), ("123", "privileged")]
    {
        let labels = json!({"pod-security.kubernetes.io/enforce": level});
        let metadata = json!({"name": name, "labels": labels});
        apply(&client, json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})).await;
    }
    let (helm, with_files) = (Helm::new(), observed_chart());
    let mut accepted = BTreeSet::new();
    for (about, release, values, holds) in table() {
        let objects = helm.render(&chart_for(about, &with_files), release, &values).await;
        holds(&objects);
        for object in &objects {
            // Most objects are the same in many rows.
            if accepted.insert(object.to_string()) {
                dry_run(&client, object).await.unwrap_or_else(|error| panic!("{about}: {error}\n{object}"));
            }
        }
        let admitted = pod_dry_run(&client, &objects).await;
        admitted.unwrap_or_else(|error| panic!("{about}: {error}"));
        let mut kinds = BTreeMap::<_, usize>::new();
        for object in &objects {
            *kinds.entry(object["kind"].as_str().unwrap()).or_default() += 1;
        }
        let kinds: Vec<_> = kinds.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        println!("| {about} | {} | {} |", objects.len(), kinds.join(", "));
    }
    println!("{} different objects were accepted", accepted.len());

    // The checks can fail.
    let root = json!({"podSecurityContext": {"runAsNonRoot": false}});
    let objects = helm.render(&chart(), RELEASE, &root).await;
    let refused = pod_dry_run(&client, &objects).await.unwrap_err();
    assert!(refused.contains("restricted") && refused.contains("runAsNonRoot"), "{refused}");
    let misspelt = json!({"livenessProbe": {"periodSecond": 3}});
    let objects = helm.render(&chart(), RELEASE, &misspelt).await;
    let refused = dry_run(&client, only(&objects, "Deployment")).await.unwrap_err();
    assert!(refused.contains("periodSecond"), "{refused}");
}

/// The chart of this work tree, or a copy with alerts and dashboard of the test as long as it has none of its own.
fn chart_for(about: &str, with_files: &Path) -> PathBuf {
    let chart = chart();
    let has_own = chart.join("files/observability/alerts.yaml").exists();
    if about == "alerts and dashboard" && !has_own { with_files.to_owned() } else { chart }
}

/// The CRDs of the Prometheus Operator that the chart has objects of.
fn monitoring() -> Vec<CustomResourceDefinition> {
    let files = binaries::prometheus_operator_crds().unwrap();
    let all = files.iter().map(|file| std::fs::read_to_string(file).unwrap());
    let ours = all.filter(|text| {
        ["ServiceMonitor", "PodMonitor", "PrometheusRule"]
            .iter()
            .any(|kind| text.contains(&format!("\n    kind: {kind}\n")))
    });
    let found: Vec<_> = ours.map(|text| serde_saphyr::from_str(&text).unwrap()).collect();
    assert_eq!(found.len(), 3);
    found
}

async fn dry_run(client: &Client, object: &Value) -> Result<(), String> {
    let object: DynamicObject = serde_json::from_value(object.clone()).unwrap();
    let kind = (&object.types.clone().unwrap()).try_into().unwrap();
    let (resource, _) = discovery::pinned_kind(client, &kind).await.map_err(|error| error.to_string())?;
    let api: Api<DynamicObject> = match &object.metadata.namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let mut params = PatchParams::apply("helm").force();
    params.dry_run = true;
    params.field_validation = Some(ValidationDirective::Strict);
    let name = object.metadata.name.clone().unwrap();
    api.patch(&name, &params, &Patch::Apply(&object)).await.map(drop).map_err(|error| error.to_string())
}

async fn pod_dry_run(client: &Client, objects: &[Value]) -> Result<(), String> {
    let template = only(objects, "Deployment")["spec"]["template"].clone();
    let mut pod: Pod = serde_json::from_value(template).unwrap();
    pod.metadata.name = Some("tried".to_owned());
    let params = PostParams { dry_run: true, ..PostParams::default() };
    let pods = Api::<Pod>::namespaced(client.clone(), NAMESPACE);
    pods.create(&params, &pod).await.map(drop).map_err(|error| error.to_string())
}
