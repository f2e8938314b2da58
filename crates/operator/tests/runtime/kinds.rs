//! Kinds that are missing, old, deleted or lax, and objects that cannot be read.

use std::time::Duration;

use coder_k8s::manifests::Install;
use coder_k8s_api::{CoderControlPlane, CoderKind, crds};
use coder_k8s_testbed::{AuditEvent, Cluster, eventually};
use k8s_openapi::{
    api::core::v1::ServiceAccount,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;

use coder_k8s_scenes::{
    Operator, PATIENCE, apply, bare_cluster, control_plane, grant, plane::observed, planes, requests,
};

#[tokio::test(flavor = "multi_thread")]
async fn missing_crds_are_waited_for_and_readiness_names_the_command() {
    let (cluster, client) = bare_cluster(Vec::new()).await;
    grant(&client, &Install::default()).await;
    let mut operator = Operator::start(&cluster, &[]);
    operator.until_readyz( 503, "[-] crd codercontrolplanes.coder.com: not installed; run `coder-k8s crds | kubectl apply --server-side -f -`").await;
    operator.until_readyz(503, "[-] watch codercontrolplanes: waiting for its CRD").await;
    assert_eq!(operator.get("--health-addr", "/livez").await.0, 200);

    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    for crd in crds() {
        definitions.create(&PostParams::default(), &crd).await.unwrap();
    }
    operator.until_ready().await;
    planes(&client, "default").create(&PostParams::default(), &control_plane("coder")).await.unwrap();
    observed(&client, "default", "coder").await;

    // And away again, at run time: it is said, the process stays, and all is well when they are back.
    definitions.delete("codercontrolplanes.coder.com", &DeleteParams::default()).await.unwrap();
    operator.until_readyz(503, "[-] crd codercontrolplanes.coder.com: not installed").await;
    assert!(operator.runs());
    definitions.create(&PostParams::default(), &crds()[0]).await.unwrap();
    operator.until_ready().await;
    planes(&client, "default").create(&PostParams::default(), &control_plane("again")).await.unwrap();
    observed(&client, "default", "again").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_crd_holds_up_its_own_kind_alone_and_nothing_is_half_written() {
    let mut old = crds();
    let root = old[0].spec.versions[0].schema.as_mut().unwrap().open_api_v3_schema.as_mut().unwrap();
    let properties = root.properties.as_mut().unwrap();
    properties.get_mut("spec").unwrap().properties.as_mut().unwrap().remove("scaling");
    properties.get_mut("spec").unwrap().default = None;
    let (cluster, client) = bare_cluster(old).await;
    grant(&client, &Install::default()).await;
    planes(&client, "default").create(&PostParams::default(), &control_plane("coder")).await.unwrap();
    let pool = json!({"apiVersion": "coder.com/v1alpha1", "kind": "CoderProvisioner",
        "metadata": {"name": "pool", "namespace": "default"}, "spec": {"controlPlaneRef": {"name": "coder"}}});
    apply(&client, pool).await;
    let operator = Operator::start(&cluster, &[]);
    operator
        .until_readyz(
            503,
            "[-] crd codercontrolplanes.coder.com: older than this operator: it lacks spec.scaling;",
        )
        .await;
    let pools: Api<coder_k8s_api::CoderProvisioner> = Api::namespaced(client.clone(), "default");
    eventually(PATIENCE, || async {
        let status = pools.get("pool").await.unwrap().status;
        status.and_then(|status| status.workload.observed_generation).ok_or("the other kinds go on")
    })
    .await
    .unwrap();
    assert_eq!(planes(&client, "default").get("coder").await.unwrap().status, None);

    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let update = PatchParams::apply("tests").force();
    definitions.patch("codercontrolplanes.coder.com", &update, &Patch::Apply(&crds()[0])).await.unwrap();
    operator.until_ready().await;
    observed(&client, "default", "coder").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_does_not_parse_is_named_and_blinds_nobody() {
    let mut lax = crds();
    let root = lax[0].spec.versions[0].schema.as_mut().unwrap().open_api_v3_schema.as_mut().unwrap();
    let spec = root.properties.as_mut().unwrap().get_mut("spec").unwrap();
    let anything = json!({"x-kubernetes-preserve-unknown-fields": true});
    spec.properties.as_mut().unwrap().insert("replicas".into(), serde_json::from_value(anything).unwrap());
    lax[0].spec.versions[0].subresources.as_mut().unwrap().scale = None;
    let (cluster, client) = bare_cluster(lax).await;
    grant(&client, &Install::default()).await;
    let bad = json!({"apiVersion": "coder.com/v1alpha1", "kind": "CoderControlPlane",
        "metadata": {"name": "bad", "namespace": "default"}, "spec": {"replicas": {"many": true}}});
    apply(&client, bad).await;
    let operator = Operator::start(&cluster, &[]);
    operator.until_ready().await;
    planes(&client, "default").create(&PostParams::default(), &control_plane("good")).await.unwrap();
    observed(&client, "default", "good").await;
    operator
        .until(|lines| {
            let named = |line: &&serde_json::Value| {
                line["level"] == "ERROR"
                    && line["message"].as_str().is_some_and(|text| {
                        text.starts_with("CoderControlPlane default/bad cannot be parsed")
                    })
            };
            lines.iter().find(named).map(|_| ())
        })
        .await;
    let (_, metrics) = operator.get("--metrics-addr", "/metrics").await;
    assert!(metrics.contains(r#"coder_k8s_unparsable_objects{kind="CoderControlPlane"} 1"#), "{metrics}");

    let mended = json!({"spec": {"replicas": 1}});
    let resource = kube::api::ApiResource::erase::<CoderControlPlane>(&());
    let raw: Api<DynamicObject> = Api::namespaced_with(client.clone(), "default", &resource);
    raw.patch("bad", &PatchParams::default(), &Patch::Merge(&mended)).await.unwrap();
    observed(&client, "default", "bad").await;
}

/// As that of Kubernetes 1.33 is by default.
#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_streams_no_lists_is_asked_for_pages() {
    let routes = json!({
        "metadata": {"name": "httproutes.gateway.networking.k8s.io",
            "annotations": {"api-approved.kubernetes.io": "unapproved, a stand-in"}},
        "spec": {
            "group": "gateway.networking.k8s.io", "scope": "Namespaced",
            "names": {"kind": "HTTPRoute", "plural": "httproutes", "singular": "httproute"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}],
        },
    });
    let kinds = crds().into_iter().chain([serde_json::from_value(routes).unwrap()]).collect();
    let cluster = Cluster::builder()
        .controller_manager(false)
        .streaming_lists(false)
        .crds(kinds)
        .start()
        .await
        .unwrap();
    let client = cluster.client();
    grant(&client, &Install::default()).await;
    planes(&client, "default").create(&PostParams::default(), &control_plane("before")).await.unwrap();
    let operator = Operator::start(&cluster, &[]);
    operator.until_ready().await;
    observed(&client, "default", "before").await;
    planes(&client, "default").create(&PostParams::default(), &control_plane("after")).await.unwrap();
    observed(&client, "default", "after").await;

    let asked = requests(&cluster, |user| user == operator.user);
    for resource in CoderKind::RESOURCES.iter().copied().chain([
        "serviceaccounts",
        "services",
        "deployments",
        "poddisruptionbudgets",
        "ingresses",
        "roles",
        "rolebindings",
        "httproutes",
    ]) {
        // A new CRD has no cache for a moment, in which the API server refuses lists too.
        let is_list =
            |event: &&AuditEvent| event.verb == "list" && event.resource == resource && event.code != 429;
        let lists = asked.iter().filter(is_list);
        let lists: Vec<_> = lists.map(|event| (&*event.uri, event.code, event.received)).collect();
        assert_eq!(lists.len(), 1, "{lists:?}");
    }

    // Its cache answers the reads of CRDs, for a part of what etcd would cost.
    let reads =
        asked.iter().filter(|event| event.verb == "get" && event.resource == "customresourcedefinitions");
    let reads: Vec<_> = reads.map(|event| event.uri.as_str()).collect();
    assert!(reads.len() > CoderKind::RESOURCES.len(), "{reads:?}");
    assert!(reads.iter().all(|uri| uri.contains("resourceVersion=")), "{reads:?}");
}

/// With the real garbage collector, which removes the children of what goes with its kind.
#[tokio::test(flavor = "multi_thread")]
async fn what_goes_with_its_kind_is_not_made_again() {
    let cluster = Cluster::builder().crds(crds()).start().await.unwrap();
    let client = cluster.client();
    grant(&client, &Install::default()).await;
    let operator = Operator::start(&cluster, &[]);
    operator.until_leading().await;
    for n in 0..5 {
        planes(&client, "default")
            .create(&PostParams::default(), &control_plane(&format!("coder-{n}")))
            .await
            .unwrap();
    }
    for n in 0..5 {
        observed(&client, "default", &format!("coder-{n}")).await;
    }
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
    let ours = ListParams::default().labels("app.kubernetes.io/managed-by=coder-k8s");
    let before: Vec<_> =
        accounts.list(&ours).await.unwrap().into_iter().filter_map(|account| account.uid()).collect();
    assert_eq!(before.len(), 5);
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    definitions.delete("codercontrolplanes.coder.com", &DeleteParams::default()).await.unwrap();
    eventually(PATIENCE, || async {
        let left = definitions.get_opt("codercontrolplanes.coder.com").await.unwrap();
        if left.is_none() { Ok(()) } else { Err("the kind is still there") }
    })
    .await
    .unwrap();
    // Whatever the collector has got to by then: nothing is new.
    tokio::time::sleep(Duration::from_secs(3)).await;
    for account in accounts.list(&ours).await.unwrap() {
        assert!(
            account.uid().is_some_and(|uid| before.contains(&uid)),
            "{} was made again",
            account.name_any()
        );
    }
}
