//! The pods: their environment, what they read, and what users set about them.

use std::time::Duration;

use coder_k8s_api::CoderControlPlane;
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Secret},
    policy::v1::PodDisruptionBudget,
};
use kube::api::PostParams;
use serde_json::{Value, json};

use coder_k8s_scenes::scene::{Scene, status};

use crate::OPERATOR;

const URL: &str = "CODER_ACCESS_URL";

/// The pods' template as JSON, once the present generation was observed.
async fn template(scene: &Scene) -> Value {
    scene.until_observed("coder").await;
    serde_json::to_value(scene.until_exists::<Deployment>("coder").await.spec.unwrap().template).unwrap()
}

fn checksum(template: &Value) -> &str {
    template["metadata"]["annotations"]["coder.com/config-checksum"].as_str().unwrap_or_default()
}

/// Waits until the checksum on the pods is another one.
async fn rolled(scene: &Scene, before: &str) -> String {
    let of = |held: &Deployment| {
        let template = serde_json::to_value(&held.spec.as_ref().unwrap().template).unwrap();
        checksum(&template).to_owned()
    };
    of(&scene.until("coder", |held: &Deployment| of(held) != before).await)
}

/// A ConfigMap with this data.
async fn map(scene: &Scene, name: &str, data: Value) {
    scene.create::<ConfigMap>(json!({"metadata": {"name": name}, "data": data})).await;
}

/// A Secret with this data.
async fn secret(scene: &Scene, name: &str, data: Value) {
    scene.create::<Secret>(json!({"metadata": {"name": name}, "stringData": data})).await;
}

/// The address of the Service, which is the default access URL.
fn cluster_url(scene: &Scene) -> String {
    format!("http://coder.{}.svc.cluster.local", scene.namespace)
}

/// What the API server says to a spec that it refuses.
async fn refused(scene: &Scene, spec: Value) -> String {
    let object = json!({"apiVersion": "coder.com/v1alpha1", "kind": "CoderControlPlane",
        "metadata": {"name": "coder"}, "spec": spec});
    let object: CoderControlPlane = serde_json::from_value(object).unwrap();
    match scene.api().create(&PostParams::default(), &object).await.unwrap_err() {
        kube::Error::Api(status) if status.reason == "Invalid" => status.message,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn coderd_listens_and_knows_its_addresses() {
    let scene = Scene::new(&OPERATOR, "pods").await;
    scene.plane("coder", json!({})).await;
    let container = scene.container("coder").await;
    assert_eq!(container.args.as_ref().unwrap()[0], "--http-address=0.0.0.0:8080");
    let ports = container.ports.unwrap();
    assert_eq!((ports.len(), ports[0].name.as_deref(), ports[0].container_port), (1, Some("http"), 8080));
    let names: Vec<_> = container.env.iter().flatten().map(|entry| &*entry.name).collect();
    assert_eq!(names, ["KUBE_POD_IP", "CODER_DERP_SERVER_RELAY_URL", URL]);
    let env = scene.env("coder").await;
    let field = env["KUBE_POD_IP"].value_from.clone().unwrap().field_ref.unwrap().field_path;
    assert_eq!(field, "status.podIP");
    assert_eq!(env["CODER_DERP_SERVER_RELAY_URL"].value.as_deref(), Some("http://$(KUBE_POD_IP):8080"));
    assert_eq!(env[URL].value, Some(cluster_url(&scene)), "the port of http is not spelled out");
    let pod = scene.pod("coder").await;
    assert_eq!(pod.service_account_name.as_deref(), Some("coder"));
}

#[tokio::test]
async fn the_default_access_url_has_the_port_and_domain_of_the_service() {
    let scene = Scene::new(&OPERATOR, "pods").await;
    scene.plane("coder", json!({"service": {"port": 8080}, "clusterDomain": "corp.test"})).await;
    let url = format!("http://coder.{}.svc.corp.test:8080", scene.namespace);
    assert_eq!(scene.env_value("coder", URL).await, Some(url.clone()));
    let plane = scene.until_observed("coder").await;
    assert_eq!((status(&plane).url, status(&plane).access_url), (Some(url.clone()), Some(url)));
}

#[tokio::test]
async fn the_default_access_url_can_be_left_out() {
    let scene = Scene::new(&OPERATOR, "pods").await;
    scene.plane("coder", json!({"envUseClusterAccessURL": false})).await;
    assert!(!scene.env("coder").await.contains_key(URL));
    assert_eq!(status(&scene.until_observed("coder").await).access_url, None);
}

#[tokio::test]
async fn an_entry_of_users_takes_the_place_of_the_operators() {
    let scene = Scene::new(&OPERATOR, "pods").await;
    let env = json!([{"name": "MINE", "value": "$(CODER_ACCESS_URL)/x"}, {"name": URL, "value": "https://coder.test"},
        {"name": "KUBE_POD_IP", "value": "10.0.0.1"}]);
    scene.plane("coder", json!({"extraEnv": env})).await;
    let plane = scene.until_observed("coder").await;
    assert_eq!(status(&plane).access_url.as_deref(), Some("https://coder.test"));
    let found = template(&scene).await["spec"]["containers"][0]["env"].clone();
    assert_eq!(found[0], json!({"name": "KUBE_POD_IP", "value": "10.0.0.1"}), "where others refer to it");
    let names: Vec<_> =
        found.as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap()).collect();
    let once = |name: &str| names.iter().filter(|found| **found == name).count();
    assert_eq!((once(URL), once("KUBE_POD_IP"), once("MINE"), names.len()), (1, 1, 1, 4));
    assert_eq!(scene.env_value("coder", URL).await.as_deref(), Some("https://coder.test"));
}

#[tokio::test]
async fn an_access_url_from_a_config_map_or_secret_takes_precedence() {
    let scene = Scene::new(&OPERATOR, "pods").await;
    map(&scene, "settings", json!({URL: "https://map.test"})).await;
    secret(&scene, "hidden", json!({"ACCESS_URL": ""})).await;
    scene.plane("coder", json!({"envFrom": [{"configMapRef": {"name": "settings"}}]})).await;
    assert!(!scene.env("coder").await.contains_key(URL));
    assert_eq!(status(&scene.until_observed("coder").await).access_url.as_deref(), Some("https://map.test"));

    let from = json!([{"prefix": "CODER_", "secretRef": {"name": "hidden"}}]);
    scene.spec("coder", json!({"envFrom": from})).await;
    assert!(
        !scene.env("coder").await.contains_key(URL),
        "a prefix completes the name, an empty value counts"
    );
    assert_eq!(
        status(&scene.until_observed("coder").await).access_url,
        None,
        "no value of a Secret is shown"
    );
}

#[tokio::test]
async fn sources_that_define_no_access_url_keep_the_default() {
    let scene = Scene::new(&OPERATOR, "pods").await;
    map(&scene, "settings", json!({"OTHER": "x", URL: "https://map.test"})).await;
    map(&scene, "unrelated", json!({"CODER_OTHER": "x"})).await;
    let binary = json!({"metadata": {"name": "binary"}, "binaryData": {URL: "aHR0cDovL3g="}});
    scene.create::<ConfigMap>(binary).await;
    scene.plane("coder", json!({})).await;
    for (from, why) in [
        (json!({"configMapRef": {"name": "unrelated"}}), "another key"),
        (json!({"configMapRef": {"name": "nowhere", "optional": true}}), "nothing there"),
        (json!({"configMapRef": {"name": "settings"}, "prefix": URL}), "the prefix is the whole name"),
        (json!({"configMapRef": {"name": "settings"}, "prefix": "OTHER_"}), "another prefix"),
        (json!({"configMapRef": {"name": "binary"}}), "binary data never becomes environment"),
    ] {
        scene.spec("coder", json!({"envFrom": [from]})).await;
        assert_eq!(scene.env_value("coder", URL).await, Some(cluster_url(&scene)), "{why}");
    }
}

#[tokio::test]
async fn an_access_url_that_a_config_map_gains_later_is_noticed() {
    let scene = Scene::new(&OPERATOR, "pods").await;
    map(&scene, "settings", json!({"OTHER": "x"})).await;
    let spec = json!({"restartOnConfigChange": false, "envFrom": [{"configMapRef": {"name": "settings"}}]});
    scene.plane("coder", spec).await;
    assert_eq!(scene.env_value("coder", URL).await, Some(cluster_url(&scene)));
    let has =
        |held: &Deployment| serde_json::to_string(held).unwrap().contains(r#""name":"CODER_ACCESS_URL""#);
    scene.edit::<ConfigMap>("settings", json!({"data": {URL: "https://late.test"}})).await;
    scene.until("coder", |held: &Deployment| !has(held)).await;
    scene.edit::<ConfigMap>("settings", json!({"data": {URL: null}})).await;
    scene.until("coder", has).await;
}

#[tokio::test]
async fn what_could_never_work_is_refused_at_admission() {
    let scene = Scene::new(&OPERATOR, "pods").await;
    let both = json!([{"configMapRef": {"name": "a"}, "secretRef": {"name": "b"}}]);
    assert!(refused(&scene, json!({"envFrom": both})).await.contains("envFrom"));
    let twice = json!([{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]);
    assert!(refused(&scene, json!({"extraEnv": twice})).await.contains("extraEnv"));
}

#[tokio::test]
async fn resources_and_security_contexts_are_taken_as_they_are() {
    let scene = Scene::new(&OPERATOR, "pods").await;
    let resources =
        json!({"limits": {"cpu": "2", "memory": "4Gi"}, "requests": {"cpu": "250m", "memory": "512Mi"}});
    let own = json!({"runAsUser": 4000, "allowPrivilegeEscalation": true});
    let pods = json!({"fsGroup": 2000, "runAsNonRoot": true});
    let spec = json!({"resources": resources, "securityContext": own, "podSecurityContext": pods});
    scene.plane("coder", spec).await;
    let template = template(&scene).await;
    let container = &template["spec"]["containers"][0];
    assert_eq!((&container["resources"], &container["securityContext"]), (&resources, &own));
    assert_eq!(template["spec"]["securityContext"], pods);
}

#[tokio::test]
async fn pods_are_confined_spread_and_drained_by_default() {
    let scene = Scene::new(&OPERATOR, "pods").await;
    scene.plane("coder", json!({})).await;
    let pod = template(&scene).await["spec"].clone();
    let container = &pod["containers"][0];
    assert_eq!(
        container["securityContext"],
        json!({"runAsNonRoot": true, "runAsUser": 1000, "runAsGroup": 1000, "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"}})
    );
    assert_eq!(container["lifecycle"]["preStop"]["sleep"]["seconds"], 10);
    assert_eq!(pod["terminationGracePeriodSeconds"], 70);
    let apart = &pod["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"][0];
    assert_eq!(apart["podAffinityTerm"]["topologyKey"], "kubernetes.io/hostname");
    let labels = &apart["podAffinityTerm"]["labelSelector"]["matchLabels"];
    assert_eq!(labels["app.kubernetes.io/instance"], "coder");

    scene.spec("coder", json!({"terminationGracePeriodSeconds": 5})).await;
    let pod = template(&scene).await["spec"].clone();
    let sleep = pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"].as_i64().unwrap();
    assert!(sleep < 5, "the API server would refuse a longer one: {sleep}");
}

#[tokio::test]
async fn settings_of_the_pods_are_passed_on() {
    let scene = Scene::new(&OPERATOR, "pods").await;
    let from = json!([{"configMapRef": {"name": "nowhere"}}]);
    let (volumes, mounts) =
        (json!([{"name": "scratch", "emptyDir": {}}]), json!([{"name": "scratch", "mountPath": "/s"}]));
    let tolerations =
        json!([{"key": "dedicated", "operator": "Equal", "value": "coder", "effect": "NoSchedule"}]);
    let term = json!({"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]});
    let affinity = json!({"nodeAffinity":
        {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}});
    let spread = json!([{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}]);
    let spec = json!({"envFrom": from, "volumes": volumes, "volumeMounts": mounts, "tolerations": tolerations,
        "nodeSelector": {"pool": "coder"}, "affinity": affinity, "topologySpreadConstraints": spread,
        "imagePullSecrets": [{"name": "registry"}], "podLabels": {"team": "a"}, "podAnnotations": {"note": "b"}});
    scene.plane("coder", spec).await;
    let template = template(&scene).await;
    let (pod, container) = (&template["spec"], &template["spec"]["containers"][0]);
    assert_eq!((&container["envFrom"], &container["volumeMounts"]), (&from, &mounts));
    assert_eq!((&pod["volumes"], &pod["tolerations"]), (&volumes, &tolerations));
    assert_eq!((&pod["affinity"], &pod["nodeSelector"]), (&affinity, &json!({"pool": "coder"})));
    assert_eq!(pod["topologySpreadConstraints"], spread);
    assert_eq!(pod["imagePullSecrets"], json!([{"name": "registry"}]));
    assert_eq!(
        (&template["metadata"]["labels"]["team"], &template["metadata"]["annotations"]["note"]),
        (&json!("a"), &json!("b"))
    );
}

#[tokio::test]
async fn a_change_of_what_the_pods_read_rolls_them() {
    let scene = Scene::new(&OPERATOR, "pods").await;
    map(&scene, "settings", json!({"A": "1"})).await;
    secret(&scene, "env", json!({"B": "1"})).await;
    secret(&scene, "database", json!({"url": "postgres://one", "unused": "1"})).await;
    secret(&scene, "cert", json!({"tls.crt": "1", "tls.key": "1"})).await;
    secret(&scene, "authority", json!({"ca.crt": "1"})).await;
    let url = json!({"name": "CODER_PG_CONNECTION_URL", "valueFrom": {"secretKeyRef": {"name": "database", "key": "url"}}});
    let spec = json!({"extraEnv": [url], "tls": {"secretNames": ["cert"]},
        "envFrom": [{"configMapRef": {"name": "settings"}}, {"secretRef": {"name": "env"}}],
        "certs": {"secrets": [{"name": "authority", "key": "ca.crt"}]}});
    scene.plane("coder", spec).await;
    let mut sum = checksum(&template(&scene).await).to_owned();
    assert_eq!(sum.len(), 64, "{sum}");
    scene.edit::<ConfigMap>("settings", json!({"data": {"A": "2"}})).await;
    sum = rolled(&scene, &sum).await;
    for (name, key) in [("env", "B"), ("database", "url"), ("cert", "tls.crt"), ("authority", "ca.crt")] {
        scene.edit::<Secret>(name, json!({"stringData": {key: "2"}})).await;
        sum = rolled(&scene, &sum).await;
    }
    scene.until_ready("coder").await;
    scene.until_idle().await;
    scene.edit::<Secret>("database", json!({"stringData": {"unused": "2"}})).await;
    scene.edit::<Secret>("env", json!({"metadata": {"labels": {"touched": "yes"}}})).await;
    secret(&scene, "nobodys", json!({"A": "1"})).await;
    scene.edit::<Secret>("nobodys", json!({"stringData": {"A": "2"}})).await;
    scene.assert_no_writes(Duration::from_secs(2)).await;
    assert_eq!(checksum(&template(&scene).await), sum);
    scene.delete::<ConfigMap>("settings").await;
    rolled(&scene, &sum).await;
}

#[tokio::test]
async fn pods_can_be_kept_from_rolling_with_what_they_read() {
    let scene = Scene::new(&OPERATOR, "pods").await;
    map(&scene, "settings", json!({"A": "1"})).await;
    let spec = json!({"restartOnConfigChange": false, "envFrom": [{"configMapRef": {"name": "settings"}}]});
    scene.plane("coder", spec).await;
    scene.until_ready("coder").await;
    scene.until_idle().await;
    let before = template(&scene).await;
    assert_eq!(checksum(&before), "");
    scene.edit::<ConfigMap>("settings", json!({"data": {"A": "2"}})).await;
    scene.assert_no_writes(Duration::from_secs(2)).await;
    assert_eq!(template(&scene).await, before);
}

#[tokio::test]
async fn readiness_is_probed_by_default_and_liveness_only_on_request() {
    let scene = Scene::new(&OPERATOR, "pods").await;
    scene.plane("coder", json!({})).await;
    let probe = |delay: i32, period: i32, timeout: i32, success: i32, failure: i32| {
        json!({"httpGet": {"path": "/healthz", "port": "http", "scheme": "HTTP"}, "periodSeconds": period,
            "timeoutSeconds": timeout, "successThreshold": success, "failureThreshold": failure,
            "initialDelaySeconds": delay})
    };
    let probes = async || {
        let container = template(&scene).await["spec"]["containers"][0].clone();
        let mut readiness = container["readinessProbe"].clone();
        if let Some(fields) = readiness.as_object_mut() {
            fields.entry("initialDelaySeconds").or_insert(json!(0));
        }
        (readiness, container["livenessProbe"].clone())
    };
    let default = probe(0, 10, 1, 1, 3);
    assert_eq!(probes().await, (default.clone(), Value::Null));
    for liveness in [json!({"enabled": false}), json!({})] {
        // A merge would keep what is not mentioned.
        scene.spec("coder", json!({"livenessProbe": null})).await;
        scene.spec("coder", json!({"livenessProbe": liveness})).await;
        assert_eq!(probes().await, (default.clone(), Value::Null));
    }
    let timing = |delay: i32, period: i32, timeout: i32, success: i32, failure: i32| {
        json!({"enabled": true, "initialDelaySeconds": delay, "periodSeconds": period, "timeoutSeconds": timeout,
            "successThreshold": success, "failureThreshold": failure})
    };
    let both = json!({"readinessProbe": timing(3, 7, 2, 2, 5), "livenessProbe": timing(11, 13, 4, 1, 6)});
    scene.spec("coder", both).await;
    assert_eq!(probes().await, (probe(3, 7, 2, 2, 5), probe(11, 13, 4, 1, 6)));
    scene
        .spec("coder", json!({"readinessProbe": {"enabled": false}, "livenessProbe": {"enabled": false}}))
        .await;
    assert_eq!(probes().await, (Value::Null, Value::Null));
}

#[tokio::test]
async fn metrics_are_served_and_announced_on_request() {
    let scene = Scene::new(&OPERATOR, "pods").await;
    scene.plane("coder", json!({})).await;
    let before = template(&scene).await;
    assert!(!before.to_string().contains("rometheus"), "{before}");
    scene.spec("coder", json!({"prometheus": {"enabled": true, "port": 2113}})).await;
    let after = template(&scene).await;
    let port = json!({"name": "prometheus-http", "containerPort": 2113, "protocol": "TCP"});
    assert_eq!(after["spec"]["containers"][0]["ports"][1], port);
    let told = &after["metadata"]["annotations"];
    assert_eq!(
        (&told["prometheus.io/scrape"], &told["prometheus.io/port"]),
        (&json!("true"), &json!("2113"))
    );
    let env = scene.env("coder").await;
    assert_eq!(env["CODER_PROMETHEUS_ENABLE"].value.as_deref(), Some("true"));
    assert_eq!(env["CODER_PROMETHEUS_ADDRESS"].value.as_deref(), Some("0.0.0.0:2113"));
    scene.spec("coder", json!({"prometheus": {"scrapeAnnotations": false}})).await;
    assert_eq!(template(&scene).await["metadata"]["annotations"]["prometheus.io/scrape"], Value::Null);
}

#[tokio::test]
async fn several_pods_have_a_disruption_budget_and_one_has_none() {
    let scene = Scene::new(&OPERATOR, "pods").await;
    scene.plane("coder", json!({})).await;
    scene.until_ready("coder").await;
    assert!(scene.absent::<PodDisruptionBudget>("coder").await);
    scene.spec("coder", json!({"replicas": 3})).await;
    scene.until_ready("coder").await;
    let budget =
        serde_json::to_value(scene.until_exists::<PodDisruptionBudget>("coder").await.spec.unwrap()).unwrap();
    assert_eq!((&budget["maxUnavailable"], &budget["minAvailable"]), (&json!(1), &Value::Null));
    assert_eq!(budget["selector"]["matchLabels"]["app.kubernetes.io/instance"], "coder");
    scene.spec("coder", json!({"podDisruptionBudget": {"minAvailable": "50%"}})).await;
    let asked = |budget: &PodDisruptionBudget| {
        let spec = serde_json::to_value(&budget.spec).unwrap();
        spec["minAvailable"] == "50%" && spec["maxUnavailable"].is_null()
    };
    scene.until("coder", asked).await;
    scene.spec("coder", json!({"replicas": 1})).await;
    scene.until_gone::<PodDisruptionBudget>("coder").await;
    scene.until_ready("coder").await;
}
