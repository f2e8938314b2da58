//! Certificates of coderd itself and those that it trusts.

use k8s_openapi::api::core::v1::{PodSpec, Service};
use serde_json::{Value, json};

use coder_k8s_scenes::scene::{Scene, status};

use crate::OPERATOR;

/// The volumes with their Secrets.
fn volumes(pod: &PodSpec) -> Vec<(String, String)> {
    let all = pod.volumes.iter().flatten();
    all.map(|volume| (volume.name.clone(), volume.secret.clone().unwrap().secret_name.unwrap())).collect()
}

/// The mounts: volume, path and the one file, all of them read-only.
fn mounts(pod: &PodSpec) -> Vec<(String, String, Option<String>)> {
    let all = pod.containers[0].volume_mounts.iter().flatten();
    all.map(|mount| {
        assert_eq!(mount.read_only, Some(true), "{mount:?}");
        (mount.name.clone(), mount.mount_path.clone(), mount.sub_path.clone())
    })
    .collect()
}

/// The ports of the Service: name, port and target.
async fn ports(scene: &Scene) -> Vec<(String, i32, Value)> {
    scene.until_observed("coder").await;
    let ports = scene.until_exists::<Service>("coder").await.spec.unwrap().ports.unwrap();
    ports
        .into_iter()
        .map(|port| (port.name.unwrap(), port.port, serde_json::to_value(port.target_port).unwrap()))
        .collect()
}

fn port(name: &str, port: i32, target: i32) -> (String, i32, Value) {
    (name.to_owned(), port, json!(target))
}

#[tokio::test]
async fn a_certificate_makes_coderd_serve_https() {
    let scene = Scene::new(&OPERATOR, "tls").await;
    scene.plane("coder", json!({"tls": {"secretNames": ["my-tls"]}})).await;
    let env = scene.env("coder").await;
    let host = format!("https://coder.{}.svc.cluster.local", scene.namespace);
    for (name, value) in [
        ("CODER_TLS_ENABLE", "true"),
        ("CODER_TLS_ADDRESS", "0.0.0.0:8443"),
        ("CODER_TLS_CERT_FILE", "/etc/ssl/certs/coder/my-tls/tls.crt"),
        ("CODER_TLS_KEY_FILE", "/etc/ssl/certs/coder/my-tls/tls.key"),
        ("CODER_ACCESS_URL", &host),
    ] {
        assert_eq!(env[name].value.as_deref(), Some(value), "{name}");
    }
    let pod = scene.pod("coder").await;
    let listens = pod.containers[0].ports.as_ref().unwrap();
    let listens: Vec<_> = listens.iter().map(|p| (p.name.as_deref().unwrap(), p.container_port)).collect();
    assert_eq!(listens, [("http", 8080), ("https", 8443)]);
    assert_eq!(volumes(&pod), [("tls-my-tls".into(), "my-tls".into())]);
    assert_eq!(mounts(&pod), [("tls-my-tls".into(), "/etc/ssl/certs/coder/my-tls".into(), None)]);
    assert_eq!(ports(&scene).await, [port("http", 80, 8080), port("https", 443, 8443)]);
    let probe = pod.containers[0].readiness_probe.clone().unwrap().http_get.unwrap();
    assert_eq!(serde_json::to_value(probe.port).unwrap(), "http", "certificates do not break the probe");
    let plane = scene.until_observed("coder").await;
    assert_eq!(status(&plane).url, Some(format!("{host}:443")));

    scene.spec("coder", json!({"tls": null})).await;
    let pod = scene.pod("coder").await;
    assert!(volumes(&pod).is_empty() && mounts(&pod).is_empty());
    assert!(!scene.env("coder").await.keys().any(|name| name.starts_with("CODER_TLS_")));
    assert_eq!(ports(&scene).await, [port("http", 80, 8080)]);
}

#[tokio::test]
async fn a_certificate_named_twice_is_mounted_once() {
    let scene = Scene::new(&OPERATOR, "tls").await;
    scene.plane("coder", json!({"tls": {"secretNames": ["my-tls", "other", "my-tls"]}})).await;
    let pod = scene.pod("coder").await;
    assert_eq!((volumes(&pod).len(), mounts(&pod).len()), (2, 2));
    let files = "/etc/ssl/certs/coder/my-tls/tls.crt,/etc/ssl/certs/coder/other/tls.crt";
    assert_eq!(scene.env_value("coder", "CODER_TLS_CERT_FILE").await.as_deref(), Some(files));
}

#[tokio::test]
async fn https_on_443_leaves_http_on_80() {
    let scene = Scene::new(&OPERATOR, "tls").await;
    scene.plane("coder", json!({"tls": {"secretNames": ["my-tls"]}, "service": {"port": 443}})).await;
    assert_eq!(ports(&scene).await, [port("https", 443, 8443), port("http", 80, 8080)]);
    scene.spec("coder", json!({"service": {"port": 8080}})).await;
    assert_eq!(ports(&scene).await, [port("http", 8080, 8080), port("https", 443, 8443)]);
    scene.spec("coder", json!({"tls": null, "service": {"port": 443}})).await;
    assert_eq!(ports(&scene).await, [port("http", 443, 8080)]);
}

#[tokio::test]
async fn dots_in_names_of_secrets_stay_in_paths_and_leave_names_of_volumes() {
    let scene = Scene::new(&OPERATOR, "tls").await;
    let certs = json!({"secrets": [{"name": "extra.ca.secret", "key": "ca.crt"}]});
    scene.plane("coder", json!({"tls": {"secretNames": ["my.tls.secret"]}, "certs": certs})).await;
    let pod = scene.pod("coder").await;
    let (tls, ca) = ("tls-my-tls-secret-6a72c9df".to_owned(), "ca-cert-extra-ca-secret-207a1924".to_owned());
    assert_eq!(
        volumes(&pod),
        [(tls.clone(), "my.tls.secret".into()), (ca.clone(), "extra.ca.secret".into())]
    );
    assert_eq!(
        mounts(&pod),
        [
            (tls, "/etc/ssl/certs/coder/my.tls.secret".into(), None),
            (ca, "/etc/ssl/certs/extra.ca.secret.crt".into(), Some("ca.crt".into())),
        ]
    );
}

#[tokio::test]
async fn two_keys_of_one_secret_share_its_volume() {
    let scene = Scene::new(&OPERATOR, "tls").await;
    let certs = json!({"secrets": [{"name": "shared.ca.secret", "key": "ca.crt"}, {"name": "shared.ca.secret", "key": "alt.crt"}]});
    scene.plane("coder", json!({"certs": certs})).await;
    let pod = scene.pod("coder").await;
    assert_eq!(volumes(&pod).len(), 1);
    let volume = volumes(&pod).remove(0).0;
    let at =
        |key: &str| (volume.clone(), format!("/etc/ssl/certs/shared.ca.secret-{key}"), Some(key.to_owned()));
    assert_eq!(mounts(&pod), [at("ca.crt"), at("alt.crt")]);
}

#[tokio::test]
async fn no_two_certificates_meet_at_one_path() {
    let scene = Scene::new(&OPERATOR, "tls").await;
    let certs = json!({"secrets": [{"name": "foo", "key": "ca.crt"}, {"name": "foo.crt", "key": "ca.crt"}]});
    scene.plane("coder", json!({"certs": certs})).await;
    let pod = scene.pod("coder").await;
    assert_eq!(volumes(&pod).len(), 2);
    let paths: Vec<_> = mounts(&pod).into_iter().map(|(_, path, _)| path).collect();
    assert_eq!(paths, ["/etc/ssl/certs/foo.crt", "/etc/ssl/certs/foo-2.crt"]);
}
