//! Containers that are processes: what the node makes of a pod's own words.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use coder_k8s_testbed::{Cluster, Namespace, Program, Resolver, Shared, eventually};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, ContainerStatus, Pod, Secret, Service};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::{SOON, shared};

const IMAGE: &str = "registry.example/program:1";
const NEXT_IMAGE: &str = "registry.example/program:2";

/// A namespace with a Service `web`, port 80, in front of the pods of a Deployment `web`.
struct Web {
    shared: &'static Shared,
    client: Client,
    namespace: Namespace,
    resolver: Resolver,
}

impl Web {
    async fn new(prefix: &str) -> Self {
        let shared = shared().await;
        for image in [IMAGE, NEXT_IMAGE] {
            let program = Program::new(env!("CARGO_BIN_EXE_testbed-web")).args(&["from-image"]);
            shared.node.run_image(image, program).unwrap();
        }
        let (client, namespace) = (shared.cluster.client(), shared.namespace(prefix).await);
        let resolver = shared.node.resolver(client.clone());
        let web = Self { shared, client, namespace, resolver };
        let service = json!({"metadata": {"name": "web"},
            "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": "http"}]}});
        let service: Service = serde_json::from_value(service).unwrap();
        web.api::<Service>().create(&PostParams::default(), &service).await.unwrap();
        web
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), self.namespace.name())
    }

    fn host(&self) -> String {
        format!("web.{}.svc.cluster.local", self.namespace.name())
    }

    /// Runs the program; `container` and `pod` are added to the container and the pod.
    async fn deploy(&self, replicas: u32, container: Value, pod: Value) {
        let mut main = json!({"name": "main", "image": IMAGE, "args": ["--listen=0.0.0.0:8080"],
            "ports": [{"name": "http", "containerPort": 8080}],
            "readinessProbe": {"httpGet": {"path": "/healthz", "port": "http"}, "periodSeconds": 1, "failureThreshold": 1},
            "env": []});
        merge(&mut main, &container);
        main["env"].as_array_mut().unwrap().push(json!({"name": "WEB_ADDRESS", "value": "0.0.0.0:8080"}));
        let mut spec = json!({"containers": [main], "terminationGracePeriodSeconds": 10});
        merge(&mut spec, &pod);
        let deployment = json!({"metadata": {"name": "web"}, "spec": {
            "replicas": replicas, "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": spec},
        }});
        let deployment: Deployment = serde_json::from_value(deployment).unwrap();
        self.api::<Deployment>().create(&PostParams::default(), &deployment).await.unwrap();
    }

    async fn pods(&self) -> Vec<Pod> {
        self.api::<Pod>().list(&ListParams::default()).await.unwrap().items
    }

    /// Waits until something holds of the main container of the only pod.
    async fn until(&self, holds: impl Fn(&ContainerStatus) -> bool) -> ContainerStatus {
        let seen = eventually(SOON, || async {
            let pods = self.pods().await;
            let status = pods
                .first()
                .and_then(|pod| pod.status.as_ref()?.container_statuses.as_ref()?.first().cloned());
            status.filter(&holds).ok_or_else(|| format!("{pods:?}"))
        });
        seen.await
            .unwrap_or_else(|error| panic!("{error}\n{:?}", self.shared.node.logs(self.namespace.name())))
    }

    /// Waits until so many pods answer for the Service.
    async fn ready(&self, count: usize) -> Vec<SocketAddr> {
        let found = eventually(SOON, || async {
            match (self.resolver.find(&self.host(), 80).await, count) {
                (Ok(found), count) if found.len() == count => Ok(found),
                (Err(_), 0) => Ok(Vec::new()),
                other => Err(format!("{other:?}")),
            }
        });
        found
            .await
            .unwrap_or_else(|error| panic!("{error}\n{:?}", self.shared.node.logs(self.namespace.name())))
    }

    /// Asks a pod for something.
    async fn ask(&self, path: &str) -> String {
        let address = *self.ready(1).await.first().unwrap();
        get(address, path).await.unwrap()
    }

    fn log(&self) -> String {
        let logs = self.shared.node.logs(self.namespace.name());
        logs.into_iter().map(|(name, text)| format!("{name}: {text}")).collect::<Vec<_>>().join("\n")
    }
}

fn merge(into: &mut Value, more: &Value) {
    for (key, value) in more.as_object().unwrap() {
        into[key] = value.clone();
    }
}

async fn get(address: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nConnection: close\r\n\r\n").as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (_, body) = answer.split_once("\r\n\r\n").ok_or_else(|| std::io::Error::other("no answer"))?;
    Ok(body.to_owned())
}

#[tokio::test]
async fn a_container_gets_its_words_and_its_environment_as_from_the_kubelet() {
    let web = Web::new("process-env").await;
    let secret = json!({"metadata": {"name": "db"}, "stringData": {"uri": "postgres://$(X)"}});
    let secret: Secret = serde_json::from_value(secret).unwrap();
    web.api::<Secret>().create(&PostParams::default(), &secret).await.unwrap();
    let map = json!({"metadata": {"name": "settings"}, "data": {"COLOUR": "blue"}});
    let map: ConfigMap = serde_json::from_value(map).unwrap();
    web.api::<ConfigMap>().create(&PostParams::default(), &map).await.unwrap();
    let from = |source: Value| json!({"valueFrom": source});
    let mut env = vec![
        json!({"name": "SELF", "value": format!("http://{}/x", web.host())}),
        json!({"name": "NOBODY", "value": "http://absent.nowhere.svc"}),
    ];
    for (name, source) in [
        ("IP", from(json!({"fieldRef": {"fieldPath": "status.podIP"}}))),
        ("POD", from(json!({"fieldRef": {"fieldPath": "metadata.name"}}))),
        ("DB", from(json!({"secretKeyRef": {"name": "db", "key": "uri"}}))),
        ("ABSENT", from(json!({"secretKeyRef": {"name": "none", "key": "x", "optional": true}}))),
        ("RELAY", json!({"value": "http://$(IP):8080"})),
    ] {
        let mut entry = source;
        entry["name"] = json!(name);
        env.push(entry);
    }
    let container =
        json!({"env": env, "envFrom": [{"prefix": "MAP_", "configMapRef": {"name": "settings"}}]});
    web.deploy(1, container, json!({})).await;

    let address = web.ready(1).await[0];
    assert_eq!(address.port(), 8080);
    assert!(address.ip().is_loopback() && address.ip().to_string() != "127.0.0.1", "{address}");
    let pod = web.pods().await.remove(0);
    assert_ne!(
        pod.status.as_ref().unwrap().pod_ip,
        Some(address.ip().to_string()),
        "the API has another address"
    );
    for (path, expected) in [
        ("/args", format!("from-image --listen={address}")),
        ("/env/WEB_ADDRESS", address.to_string()),
        ("/env/SELF", format!("http://{address}/x")),
        ("/env/NOBODY", "http://absent.nowhere.svc".to_owned()),
        ("/env/IP", address.ip().to_string()),
        ("/env/RELAY", format!("http://{address}")),
        ("/env/POD", pod.name_any()),
        ("/env/DB", "postgres://$(X)".to_owned()),
        ("/env/MAP_COLOUR", "blue".to_owned()),
        ("/env/ABSENT", String::new()),
        ("/env/CARGO_MANIFEST_DIR", String::new()),
    ] {
        assert_eq!(web.ask(path).await, expected, "{path}");
    }
    let home = web.ask("/env/HOME").await;
    assert!(std::path::Path::new(&home).is_dir() && home.contains(&pod.uid().unwrap()), "{home}");
    assert!(web.log().contains(&format!("/main: listening on {address}")), "{}", web.log());
}

#[tokio::test]
async fn what_is_missing_keeps_a_container_waiting_until_it_is_there() {
    let web = Web::new("process-missing").await;
    let env = json!({"env": [{"name": "DB", "valueFrom": {"secretKeyRef": {"name": "late", "key": "uri"}}}]});
    web.deploy(1, env, json!({})).await;
    let waiting = |status: &ContainerStatus| status.state.clone().and_then(|state| state.waiting);
    let missing = Some("secret \"late\" not found");
    let status = web.until(|status| waiting(status).is_some_and(|it| it.message.as_deref() == missing)).await;
    assert_eq!(waiting(&status).unwrap().reason.as_deref(), Some("CreateContainerConfigError"));
    let secret = json!({"metadata": {"name": "late"}, "stringData": {"uri": "here"}});
    let secret: Secret = serde_json::from_value(secret).unwrap();
    web.api::<Secret>().create(&PostParams::default(), &secret).await.unwrap();
    assert_eq!(web.ask("/env/DB").await, "here");
}

#[tokio::test]
async fn a_pod_is_ready_as_long_as_its_probe_succeeds() {
    let web = Web::new("process-ready").await;
    web.deploy(1, json!({}), json!({})).await;
    web.ask("/unready").await;
    web.until(|status| !status.ready && status.state.as_ref().is_some_and(|state| state.running.is_some()))
        .await;
    web.ready(0).await;
}

#[tokio::test]
async fn a_process_that_ends_is_started_again_and_said_to_crash() {
    let web = Web::new("process-crash").await;
    web.deploy(1, json!({}), json!({})).await;
    let address = web.ready(1).await[0];
    let _ = get(address, "/exit/7").await;
    let status = web.until(|status| status.restart_count == 1 && status.ready).await;
    let last = status.last_state.unwrap().terminated.unwrap();
    assert_eq!((last.exit_code, last.reason.as_deref()), (7, Some("Error")));
    assert_eq!(web.ready(1).await[0], address, "a pod keeps its address");
    let [exit] = &web.shared.node.exits(web.namespace.name())[..] else { panic!("one exit") };
    assert_eq!((exit.code, exit.told), (7, None));

    let _ = get(address, "/exit/0").await;
    let waiting = |status: &ContainerStatus| status.state.clone().and_then(|state| state.waiting?.reason);
    let status = web.until(|status| waiting(status).as_deref() == Some("CrashLoopBackOff")).await;
    assert_eq!(status.restart_count, 2);
    web.until(|status| status.ready).await;
}

#[tokio::test]
async fn a_process_whose_liveness_probe_fails_is_replaced() {
    let web = Web::new("process-live").await;
    let probe =
        json!({"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 1, "failureThreshold": 2});
    web.deploy(1, json!({"livenessProbe": probe}), json!({})).await;
    web.ask("/unready").await;
    web.until(|status| status.restart_count == 1 && status.ready).await;
    assert!(web.log().contains("asked to end"), "{}", web.log());
}

#[tokio::test]
async fn a_deleted_pod_pauses_is_asked_to_end_and_then_killed() {
    let web = Web::new("process-end").await;
    let container = json!({"env": [{"name": "WEB_STUBBORN", "value": "yes"}],
        "lifecycle": {"preStop": {"sleep": {"seconds": 4}}}});
    web.deploy(1, container, json!({"terminationGracePeriodSeconds": 6})).await;
    let address = web.ready(1).await[0];
    let began = Instant::now();
    web.api::<Deployment>().delete("web", &DeleteParams::background()).await.unwrap();
    web.ready(0).await;
    get(address, "/").await.expect("it goes on serving during the pause");
    eventually(SOON, || async {
        if web.pods().await.is_empty() { Ok(()) } else { Err("the pod is still there") }
    })
    .await
    .unwrap();
    assert!(
        began.elapsed() >= Duration::from_secs(6),
        "the grace period was cut short: {:?}",
        began.elapsed()
    );
    assert!(web.log().contains("asked to end"), "{}", web.log());
    assert!(get(address, "/").await.is_err(), "the process outlived its pod");
    let [exit] = &web.shared.node.exits(web.namespace.name())[..] else { panic!("one exit") };
    assert_eq!(exit.code, 137, "killed");
    assert!(exit.finished.duration_since(exit.told.unwrap()).as_secs() >= 2, "{exit:?}");
}

#[tokio::test]
async fn a_service_can_lead_out_of_the_cluster() {
    let web = Web::new("process-out").await;
    let name = format!("outside.{}.svc.cluster.local", web.namespace.name());
    let service = json!({"metadata": {"name": "outside"}, "spec": {"ports": [{"port": 80}]}});
    let service: Service = serde_json::from_value(service).unwrap();
    web.api::<Service>().create(&PostParams::default(), &service).await.unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], 4321));
    web.shared.node.host(&name, address);
    let env =
        json!([{"name": "OUT", "value": format!("http://{name}/x")}, {"name": "SELF", "value": web.host()}]);
    web.deploy(1, json!({ "env": env }), json!({})).await;
    assert_eq!(web.ask("/env/OUT").await, "http://127.0.0.1:4321/x");
    assert_eq!(web.resolver.find(&name, 80).await.unwrap(), [address]);
    let own = web.ready(1).await[0].ip().to_string();
    assert_eq!(web.ask("/env/SELF").await, own, "a pod of the Service comes first");
}

#[tokio::test]
async fn a_process_ends_with_a_pod_that_was_deleted_by_force() {
    let web = Web::new("process-force").await;
    web.deploy(1, json!({}), json!({})).await;
    let address = web.ready(1).await[0];
    let pod = web.pods().await.remove(0).name_any();
    web.api::<Deployment>().delete("web", &DeleteParams::background()).await.unwrap();
    web.api::<Pod>().delete(&pod, &DeleteParams::default().grace_period(0)).await.unwrap();
    eventually(SOON, || async {
        if get(address, "/").await.is_err() { Ok(()) } else { Err("it still answers") }
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_rollout_is_followed_without_a_failed_request() {
    let web = Web::new("process-roll").await;
    let container = json!({"lifecycle": {"preStop": {"sleep": {"seconds": 5}}}});
    web.deploy(1, container, json!({})).await;
    let first = web.ready(1).await[0];
    let image =
        json!({"spec": {"template": {"spec": {"containers": [{"name": "main", "image": NEXT_IMAGE}]}}}});
    web.api::<Deployment>().patch("web", &PatchParams::default(), &Patch::Strategic(&image)).await.unwrap();
    let mut seen = vec![];
    let deadline = Instant::now() + SOON;
    loop {
        let found = web.resolver.find(&web.host(), 80).await.expect("somebody is always ready");
        for address in &found {
            assert_eq!(get(*address, "/").await.expect("whoever is ready answers"), "web");
        }
        if found.len() == 1 && found != [first] {
            break;
        }
        seen.extend(found);
        assert!(Instant::now() < deadline, "the rollout does not end: {}", web.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(seen.contains(&first), "the old pod served until the new one was ready");
}

#[tokio::test]
async fn processes_end_with_their_node() {
    // A cluster of its own: a node takes every pod that has none, and this one goes.
    let cluster = Cluster::builder().start().await.unwrap();
    let (client, node) = (cluster.client(), cluster.node("short-lived").await.unwrap());
    node.run_image(IMAGE, Program::new(env!("CARGO_BIN_EXE_testbed-web"))).unwrap();
    let service = json!({"metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": "http"}]}});
    let service: Service = serde_json::from_value(service).unwrap();
    let services = Api::<Service>::default_namespaced(client.clone());
    services.create(&PostParams::default(), &service).await.unwrap();
    let pod = json!({"metadata": {"name": "web", "labels": {"app": "web"}}, "spec": {"containers": [
        {"name": "main", "image": IMAGE, "env": [{"name": "WEB_ADDRESS", "value": "0.0.0.0:8080"}],
            "ports": [{"name": "http", "containerPort": 8080}]}]}});
    let pod: Pod = serde_json::from_value(pod).unwrap();
    let (pods, params) = (Api::<Pod>::default_namespaced(client.clone()), PostParams::default());
    // Not before the namespace has its service account.
    eventually(SOON, || pods.create(&params, &pod)).await.unwrap();
    let (resolver, host) = (node.resolver(client), "web.default.svc.cluster.local");
    let answered = eventually(SOON, || async {
        let address =
            *resolver.find(host, 80).await.map_err(|error| error.to_string())?.first().ok_or("nobody")?;
        get(address, "/").await.map_err(|error| error.to_string()).map(|_| address)
    });
    let address = answered.await.unwrap();
    drop(node);
    assert!(get(address, "/").await.is_err(), "the process outlived its node");
}
