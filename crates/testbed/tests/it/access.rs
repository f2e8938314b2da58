//! Clients, kubectl, RBAC and the audit log.

use std::process::Command;

use coder_k8s_testbed::{binaries, eventually};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::Client;
use kube::api::{Api, ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};

use crate::{SOON, shared};

#[tokio::test]
async fn a_client_sees_the_version_that_the_modules_pin() {
    let shared = shared().await;
    let version = shared.cluster.client().apiserver_version().await.unwrap();
    assert!(version.git_version.starts_with(binaries::KUBERNETES_VERSION), "{version:?}");
}

#[tokio::test]
async fn kubectl_works_with_the_kubeconfig_file() {
    let cluster = &shared().await.cluster;
    let output = Command::new(cluster.binaries().kubectl().unwrap())
        .arg("--kubeconfig")
        .arg(cluster.kubeconfig_path())
        .args(["auth", "whoami", "--output=jsonpath={.status.userInfo.username}"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text, "admin", "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test]
async fn the_kubeconfig_text_is_enough_for_a_client() {
    let cluster = &shared().await.cluster;
    let kubeconfig = Kubeconfig::from_yaml(&cluster.kubeconfig_yaml()).unwrap();
    let config =
        kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    assert_eq!(config.cluster_url, cluster.config().cluster_url);
    let client = Client::try_from(config).unwrap();
    Api::<Namespace>::all(client).get("default").await.unwrap();
}

#[tokio::test]
async fn a_user_without_rights_is_refused_and_the_audit_log_tells() {
    let shared = shared().await;
    let namespace = shared.namespace("rbac").await;
    let secrets = Api::<Secret>::namespaced(shared.cluster.client_as("jane", &["guests"]), namespace.name());
    let error = secrets.list(&ListParams::default()).await.unwrap_err();
    assert!(matches!(&error, kube::Error::Api(status) if status.code == 403), "{error}");

    let event = eventually(SOON, || async {
        let events = shared.cluster.audit().map_err(|error| error.to_string())?;
        let found =
            events.iter().find(|event| event.namespace == namespace.name() && event.resource == "secrets");
        found.cloned().ok_or_else(|| format!("{} other events", events.len()))
    })
    .await
    .unwrap();
    assert_eq!((event.user.as_str(), event.impersonated.as_deref()), ("admin", Some("jane")));
    assert_eq!((event.verb.as_str(), event.code), ("list", 403));
}

#[tokio::test]
async fn the_audit_log_holds_the_callers_requests_and_not_the_clusters_own() {
    let shared = shared().await;
    let namespace = shared.namespace("audit").await;
    let maps = Api::<ConfigMap>::namespaced(shared.cluster.client(), namespace.name());
    let mut map = ConfigMap::default();
    map.metadata.name = Some("probe".into());
    maps.create(&PostParams::default(), &map).await.unwrap();

    let events = eventually(SOON, || async {
        let events = shared.cluster.audit().map_err(|error| error.to_string())?;
        let created =
            events.iter().any(|event| event.namespace == namespace.name() && event.verb == "create");
        if created { Ok(events) } else { Err("the request is not in the log") }.map_err(String::from)
    })
    .await
    .unwrap();
    let users: Vec<_> =
        events.iter().map(|event| event.user.as_str()).filter(|user| *user != "admin").collect();
    assert!(users.is_empty(), "{users:?}");
}
