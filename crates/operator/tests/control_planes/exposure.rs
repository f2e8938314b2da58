//! Exposure to the outside: an Ingress, or a route of the Gateway API in a cluster that may lack it.

use std::time::Duration;

use coder_k8s::manifests::Install;
use coder_k8s_api::{CoderControlPlane, CoderWorkspaceProxy, crds};
use coder_k8s_core::exposure::route::HTTPRoute;
use coder_k8s_testbed::{AuditEvent, Cluster, eventually};
use k8s_openapi::{
    api::{apps::v1::Deployment, core::v1::Service, networking::v1::Ingress},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api,
    api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use coder_k8s_scenes::{
    Operator, PATIENCE, apply, bare_cluster, grant, requests,
    scene::{Scene, belongs, condition, message, status},
    writes,
};

use crate::OPERATOR;

/// The spec of the Ingress as JSON, once the present generation was observed.
async fn ingress(scene: &Scene) -> Value {
    scene.until_observed("coder").await;
    serde_json::to_value(scene.until_exists::<Ingress>("coder").await.spec.unwrap()).unwrap()
}

/// The ports that the rules of an Ingress lead to.
fn backends(ingress: &Value) -> Vec<i64> {
    let rules = ingress["rules"].as_array().unwrap().iter();
    rules
        .map(|rule| {
            let path = &rule["http"]["paths"][0];
            assert_eq!((&path["path"], &path["pathType"]), (&json!("/"), &json!("Prefix")));
            assert_eq!(path["backend"]["service"]["name"], "coder");
            path["backend"]["service"]["port"]["number"].as_i64().unwrap()
        })
        .collect()
}

#[tokio::test]
async fn an_ingress_leads_to_the_service() {
    let scene = Scene::new(&OPERATOR, "exposure").await;
    let expose = json!({"className": "nginx", "host": "coder.example.com", "annotations": {"note": "x"}});
    scene.plane("coder", json!({"expose": {"ingress": expose}})).await;
    let plane = scene.until_condition("coder", "Exposed", "True", Some("Exposed")).await;
    let made: Ingress = scene.until_exists("coder").await;
    assert!(belongs(&made, &plane));
    assert_eq!(made.metadata.annotations.unwrap()["note"], "x");
    let spec = ingress(&scene).await;
    assert_eq!(
        (&spec["ingressClassName"], &spec["rules"][0]["host"]),
        (&json!("nginx"), &json!("coder.example.com"))
    );
    assert_eq!((backends(&spec), &spec["tls"]), (vec![80], &Value::Null));

    scene.spec("coder", json!({"service": {"port": 8080}})).await;
    assert_eq!(backends(&ingress(&scene).await), [8080]);
    scene
        .spec(
            "coder",
            json!({"service": {"port": 443}, "tls": {"secretNames": ["cert"]},
        "expose": {"ingress": {"wildcardHost": "*.example.com"}}}),
        )
        .await;
    assert_eq!(backends(&ingress(&scene).await), [80, 80], "always the port that speaks http");
}

#[tokio::test]
async fn hosts_and_certificates_are_paired() {
    let scene = Scene::new(&OPERATOR, "exposure").await;
    let expose = json!({"host": "coder.example.com", "wildcardHost": "*-apps.example.com",
        "tls": {"secretName": "cert", "wildcardSecretName": "wild"}});
    scene.plane("coder", json!({"expose": {"ingress": expose}})).await;
    let spec = ingress(&scene).await;
    let hosts: Vec<_> = spec["rules"].as_array().unwrap().iter().map(|rule| rule["host"].clone()).collect();
    assert_eq!(hosts, ["coder.example.com", "*.example.com"], "an Ingress knows whole labels only");
    assert_eq!(
        spec["tls"],
        json!([{"hosts": ["coder.example.com"], "secretName": "cert"}, {"hosts": ["*.example.com"], "secretName": "wild"}])
    );
    let env = scene.env("coder").await;
    assert_eq!(env["CODER_ACCESS_URL"].value.as_deref(), Some("https://coder.example.com"));
    assert_eq!(env["CODER_WILDCARD_ACCESS_URL"].value.as_deref(), Some("*-apps.example.com"));
}

#[tokio::test]
async fn the_access_url_follows_the_exposure_unless_told_otherwise() {
    let scene = Scene::new(&OPERATOR, "exposure").await;
    scene.plane("coder", json!({})).await;
    let own = format!("http://coder.{}.svc.cluster.local", scene.namespace);
    for (expose, url) in [
        (json!({"ingress": {"host": "a.example.com"}}), "http://a.example.com"),
        (json!({"ingress": {"tls": {"secretName": "cert"}}}), "https://a.example.com"),
        (json!({"ingress": {"scheme": "http"}}), "http://a.example.com"),
        (json!({"ingress": {"scheme": "https", "tls": null}}), "https://a.example.com"),
        (json!({"setAccessURL": false}), &*own),
        (
            json!({"setAccessURL": true, "ingress": null, "gateway": {"host": "b.example.com", "parentRefs": [{"name": "gw"}]}}),
            "https://b.example.com",
        ),
        (json!({"gateway": {"scheme": "http"}}), "http://b.example.com"),
        (Value::Null, &*own),
    ] {
        scene.spec("coder", json!({"expose": expose})).await;
        assert_eq!(scene.env_value("coder", "CODER_ACCESS_URL").await.as_deref(), Some(url), "{expose}");
        assert_eq!(status(&scene.until_observed("coder").await).access_url.as_deref(), Some(url), "{expose}");
    }
}

#[tokio::test]
async fn an_ingress_goes_with_the_exposure_and_others_stay() {
    let scene = Scene::new(&OPERATOR, "exposure").await;
    let backend = json!({"service": {"name": "x", "port": {"number": 80}}});
    scene.create::<Ingress>(json!({"metadata": {"name": "mine"}, "spec": {"defaultBackend": backend}})).await;
    scene.plane("coder", json!({"expose": {"ingress": {"host": "coder.example.com"}}})).await;
    scene.until_condition("coder", "Exposed", "True", None).await;
    scene.until_exists::<Ingress>("coder").await;
    scene.spec("coder", json!({"expose": null})).await;
    scene.until_gone::<Ingress>("coder").await;
    let plane = scene.until_ready("coder").await;
    assert_eq!(condition(&plane, "Exposed"), None);

    scene.plane("mine", json!({"expose": {"ingress": {"host": "mine.example.com"}}})).await;
    scene.until_condition("mine", "Conflict", "True", None).await;
    scene.spec("mine", json!({"expose": null})).await;
    scene.until_ready("mine").await;
    assert!(!scene.absent::<Ingress>("mine").await, "an Ingress of others of the same name is left alone");
}

/// The operator may decide that an Ingress is to go before the watch has shown it.
#[tokio::test]
async fn an_exposure_that_is_dropped_at_once_leaves_no_ingress() {
    let scene = Scene::new(&OPERATOR, "exposure").await;
    let names: Vec<_> = (0..10).map(|number| format!("coder-{number}")).collect();
    for name in &names {
        scene.plane(name, json!({"expose": {"ingress": {"host": "coder.example.com"}}})).await;
        scene.until_exists::<Ingress>(name).await;
        scene.spec(name, json!({"expose": null})).await;
    }
    for name in &names {
        scene.until_observed(name).await;
        scene.until_gone::<Ingress>(name).await;
    }
}

#[tokio::test]
async fn exposures_that_could_never_work_are_refused_at_admission() {
    let scene = Scene::new(&OPERATOR, "exposure").await;
    let resource = ApiResource::erase::<CoderControlPlane>(&());
    let api: Api<DynamicObject> = Api::namespaced_with(scene.client.clone(), &scene.namespace, &resource);
    let gateway = json!({"host": "a.example.com", "parentRefs": [{"name": "gw"}]});
    for (expose, said) in [
        (json!({"gateway": {"host": "a.example.com"}}), "parentRefs"),
        (json!({"gateway": {"host": "a.example.com", "parentRefs": []}}), "parentRefs"),
        (json!({"gateway": {"host": "a.example.com", "parentRefs": [{"name": ""}]}}), "parentRefs"),
        (json!({"gateway": gateway, "ingress": {"host": "a.example.com"}}), "only one of"),
        (json!({"ingress": {"host": ""}}), "host"),
        (json!({"ingress": {"host": "a.example.com", "tls": {"wildcardSecretName": "w"}}}), "wildcardHost"),
    ] {
        // Without a type of our own, which would not even serialize some of these.
        let object = DynamicObject::new("coder", &resource).data(json!({"spec": {"expose": expose}}));
        let error = api.create(&PostParams::default(), &object).await.unwrap_err();
        let kube::Error::Api(status) = error else { panic!("{error:?}") };
        assert!(status.reason == "Invalid" && status.message.contains(said), "{expose}: {status:?}");
    }
}

/// An operator for a cluster of the test's own.
async fn operate(cluster: &Cluster) -> Operator {
    grant(&cluster.client(), &Install::default()).await;
    let operator = Operator::start(cluster, &["--log-level=info,coder_k8s=debug"]);
    operator.until_leading().await;
    operator
}

#[tokio::test]
async fn the_default_class_of_the_cluster_stays_on_the_ingress() {
    let (cluster, client) = bare_cluster(crds()).await;
    let class = json!({"apiVersion": "networking.k8s.io/v1", "kind": "IngressClass",
        "metadata": {"name": "house", "annotations": {"ingressclass.kubernetes.io/is-default-class": "true"}},
        "spec": {"controller": "example.com/house"}});
    apply(&client, class).await;
    let operator = operate(&cluster).await;
    let scene = Scene::alone(&cluster, &operator);
    scene.plane("coder", json!({"expose": {"ingress": {"host": "one.example.com"}}})).await;
    assert_eq!(ingress(&scene).await["ingressClassName"], "house");
    scene.spec("coder", json!({"expose": {"ingress": {"host": "two.example.com"}}})).await;
    let spec = ingress(&scene).await;
    assert_eq!(
        (&spec["rules"][0]["host"], &spec["ingressClassName"]),
        (&json!("two.example.com"), &json!("house"))
    );
}

const HTTP_ROUTES: &str = "httproutes.gateway.networking.k8s.io";

/// HTTPRoute, with the defaults that the real definition sets.
async fn install_gateway_api(scene: &Scene) {
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let with = |defaults: Value| {
        let mut schema = open.clone();
        schema["properties"] = defaults;
        json!({"type": "array", "items": schema})
    };
    let text = |default: &str| json!({"type": "string", "default": default});
    let parents = with(json!({"group": text("gateway.networking.k8s.io"), "kind": text("Gateway")}));
    let backends = with(json!({"weight": {"type": "integer", "default": 1}}));
    let spec = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true,
        "properties": {"parentRefs": parents, "rules": with(json!({"backendRefs": backends}))}});
    let schema = json!({"type": "object", "properties": {"spec": spec, "status": open}});
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": HTTP_ROUTES, "annotations": {"api-approved.kubernetes.io": "unapproved, a test"}},
        "spec": {
            "group": "gateway.networking.k8s.io", "scope": "Namespaced",
            "names": {"kind": "HTTPRoute", "plural": "httproutes", "singular": "httproute", "listKind": "HTTPRouteList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
                "subresources": {"status": {}}}],
        },
    });
    apply(&scene.client, definition).await;
}

/// What a Gateway says of the route as it is now.
async fn answer(scene: &Scene, name: &str, accepted: bool) {
    let api = scene.api::<HTTPRoute>();
    let generation = api.get(name).await.unwrap().metadata.generation;
    let (status, reason) = if accepted { ("True", "Accepted") } else { ("False", "NotAllowedByListeners") };
    let condition = json!({"type": "Accepted", "status": status, "reason": reason, "message": "by the listener",
        "observedGeneration": generation, "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let parent =
        json!({"parentRef": {"name": "gw"}, "controllerName": "example.com/gw", "conditions": [condition]});
    let patch = json!({"status": {"parents": [parent]}});
    api.patch_status(name, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
}

#[tokio::test]
async fn a_route_lives_with_the_gateway_api_and_the_answers_of_gateways() {
    let cluster = Cluster::builder().crds(crds()).start().await.unwrap();
    let operator = operate(&cluster).await;
    let scene = Scene::alone(&cluster, &operator);
    let gateway = json!({"host": "coder.example.com", "wildcardHost": "*-apps.example.com",
        "parentRefs": [{"name": "gw", "namespace": "infra", "sectionName": "https"}]});
    let routed = json!({"replicas": 0, "service": {"port": 8080}, "expose": {"gateway": gateway}});

    // The cluster lacks the Gateway API: told, and everything else is made.
    scene.plane("coder", routed).await;
    scene.until_condition("coder", "Exposed", "False", Some("GatewayAPIMissing")).await;
    scene.until_condition("coder", "Ready", "False", Some("GatewayAPIMissing")).await;
    scene.until_exists::<Deployment>("coder").await;
    let hosted = json!({"replicas": 0, "expose": {"ingress": {"host": "moved.example.com"}}});
    scene.plane("moved", hosted).await;
    scene.until_ready("moved").await;
    let moved = json!({"expose": {"ingress": null, "gateway": {"host": "moved.example.com", "parentRefs": [{"name": "gw"}]}}});
    scene.spec("moved", moved).await;
    scene.until_condition("moved", "Exposed", "False", Some("GatewayAPIMissing")).await;
    assert!(!scene.absent::<Ingress>("moved").await, "what works stays while nothing replaces it");

    // It comes: routes are made without a restart, and others are not waited for.
    install_gateway_api(&scene).await;
    let route: HTTPRoute = scene.until_exists("coder").await;
    let plane = scene.until_condition("coder", "Exposed", "Unknown", Some("Pending")).await;
    assert!(belongs(&route, &plane));
    let made = serde_json::to_value(&route.spec).unwrap();
    assert_eq!(made["hostnames"], json!(["coder.example.com", "*.example.com"]));
    assert_eq!(made["parentRefs"], json!([{"name": "gw", "namespace": "infra", "sectionName": "https"}]));
    assert_eq!(made["rules"].as_array().unwrap().len(), 1);
    assert_eq!(made["rules"][0]["matches"], json!([{"path": {"type": "PathPrefix", "value": "/"}}]));
    let backend = json!([{"group": "", "kind": "Service", "name": "coder", "port": 8080, "weight": 1}]);
    assert_eq!(made["rules"][0]["backendRefs"], backend);
    scene.until_ready("coder").await;
    answer(&scene, "coder", false).await;
    let plane = scene.until_condition("coder", "Exposed", "False", Some("RouteNotAccepted")).await;
    assert!(message(&plane, "Exposed").contains("by the listener"));
    answer(&scene, "coder", true).await;
    scene.until_condition("coder", "Exposed", "True", Some("Exposed")).await;

    // The route of a workspace proxy, which needs nothing but a token that somebody supplies.
    let supplied = json!({"image": "i", "replicas": 0, "primaryAccessURL": "https://coder.example.com",
        "proxySessionTokenSecretRef": {"name": "mine"},
        "expose": {"gateway": {"host": "eu.example.com", "parentRefs": [{"name": "gw"}]}}});
    let proxy = json!({"apiVersion": "coder.com/v1alpha1", "kind": "CoderWorkspaceProxy",
        "metadata": {"name": "eu"}, "spec": supplied});
    scene.create::<CoderWorkspaceProxy>(proxy).await;
    let route: HTTPRoute = scene.until_exists("wsproxy-eu").await;
    assert_eq!(route.spec.rules[0].backend_refs[0].name, "wsproxy-eu");
    let exposed = |status: &'static str| {
        move |proxy: &CoderWorkspaceProxy| {
            let all = proxy.status.iter().flat_map(|status| &status.workload.conditions);
            all.into_iter().any(|c| c.type_ == "Exposed" && c.status == status)
        }
    };
    scene.until("eu", exposed("Unknown")).await;
    answer(&scene, "wsproxy-eu", false).await;
    scene.until("eu", exposed("False")).await;
    answer(&scene, "wsproxy-eu", true).await;
    scene.until("eu", exposed("True")).await;
    scene.delete::<CoderWorkspaceProxy>("eu").await;
    scene.until_gone::<HTTPRoute>("wsproxy-eu").await;

    // With TLS on 443 the route still leads to http; what was said of the earlier route no longer counts.
    scene.spec("coder", json!({"service": {"port": 443}, "tls": {"secretNames": ["cert"]}})).await;
    scene.until_condition("coder", "Exposed", "Unknown", Some("Pending")).await;
    let ports = scene.until_exists::<Service>("coder").await.spec.unwrap().ports.unwrap();
    assert_eq!(ports.iter().map(|port| port.port).collect::<Vec<_>>(), [443, 80]);
    assert_eq!(scene.until_exists::<HTTPRoute>("coder").await.spec.rules[0].backend_refs[0].port, 80);

    // From an Ingress to a route: the one goes when the other is accepted.
    scene.until_exists::<HTTPRoute>("moved").await;
    scene.until_condition("moved", "Exposed", "Unknown", Some("Pending")).await;
    scene.until_ready("moved").await;
    scene.until_ready("coder").await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let before = written(&cluster, &operator).len();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let later = written(&cluster, &operator).split_off(before);
    assert!(later.is_empty(), "defaults of the API server are no reason to write: {later:?}");
    assert!(!scene.absent::<Ingress>("moved").await);
    answer(&scene, "moved", true).await;
    scene.until_gone::<Ingress>("moved").await;
    scene.until_condition("moved", "Exposed", "True", Some("Exposed")).await;

    // And back.
    let back = json!({"expose": {"gateway": null, "ingress": {"host": "moved.example.com"}}});
    scene.spec("moved", back).await;
    scene.until_exists::<Ingress>("moved").await;
    scene.until_gone::<HTTPRoute>("moved").await;
    scene.spec("moved", json!({"expose": null})).await;
    scene.until_gone::<Ingress>("moved").await;

    // The Gateway API goes, and comes again.
    let definitions: Api<CustomResourceDefinition> = Api::all(scene.client.clone());
    definitions.delete(HTTP_ROUTES, &DeleteParams::default()).await.unwrap();
    scene.until_condition("coder", "Exposed", "False", Some("GatewayAPIMissing")).await;
    scene.until_condition("coder", "Ready", "False", Some("GatewayAPIMissing")).await;
    let gone = eventually(PATIENCE, || async {
        let left = definitions.get_opt(HTTP_ROUTES).await.map_err(|error| error.to_string())?;
        if left.is_none() { Ok(()) } else { Err("the definition is still going".to_owned()) }
    });
    gone.await.unwrap();
    install_gateway_api(&scene).await;
    scene.until_exists::<HTTPRoute>("coder").await;
    scene.until_ready("coder").await;
    scene.spec("coder", json!({"expose": null})).await;
    scene.until_gone::<HTTPRoute>("coder").await;
    let plane: CoderControlPlane = scene.until_ready("coder").await;
    assert_eq!(condition(&plane, "Exposed"), None);
}

/// What the operator has written in the default namespace.
fn written(cluster: &Cluster, operator: &Operator) -> Vec<AuditEvent> {
    let all = requests(cluster, |user| user == operator.user);
    let here = writes(&all).into_iter().filter(|event| event.namespace == "default");
    here.cloned().collect()
}
