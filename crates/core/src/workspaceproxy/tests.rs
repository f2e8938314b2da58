use serde_json::{Value, json};

use super::*;
use crate::{sources::SourceContents, target::SecretDataRef, workload::PodCredential};

fn observed(spec: Value) -> Observed {
    let mut object = CoderWorkspaceProxy::new("eu", serde_json::from_value(spec).unwrap());
    object.metadata.namespace = Some("ns".into());
    Observed {
        object: Arc::new(object),
        control_plane: None,
        children: Children::default(),
        sources: Ok(SourceContents::new()),
        gateway_api: false,
        gate: None,
        credentials: None,
    }
}

fn direct(more: &Value) -> Observed {
    let mut spec =
        json!({"primaryAccessURL": "https://coder.example.com", "proxySessionTokenSecretRef": {"name": "t"}});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    observed(spec)
}

fn run() -> PodCredential {
    let secret = SecretDataRef { name: "t".into(), key: "token".into() };
    PodCredential { secret, checksum: "sum".into(), url: "https://coder.example.com".into() }
}

fn container(observed: &Observed) -> Value {
    let made = build_deployment(observed, &SourceContents::new(), &run(), false).unwrap();
    serde_json::to_value(made).unwrap()["spec"]["template"]["spec"]["containers"][0].clone()
}

fn variable(container: &Value, name: &str) -> Value {
    let all = container["env"].as_array().unwrap();
    all.iter().find(|entry| entry["name"] == name).cloned().unwrap_or_default()
}

#[test]
fn the_container_starts_a_proxy_on_the_official_image() {
    let made = container(&direct(&json!({"derpOnly": true, "extraArgs": ["--verbose"]})));
    assert_eq!(made["name"], "workspace-proxy");
    assert_eq!(made["image"], DEFAULT_IMAGE);
    assert_eq!(made["command"], json!(["coder"]));
    let args = ["wsproxy", "server", "--http-address=0.0.0.0:3001", "--derp-only", "--verbose"];
    assert_eq!(made["args"], json!(args));
    assert_eq!(
        made["env"][0],
        json!({"name": "CODER_PRIMARY_ACCESS_URL", "value": "https://coder.example.com"})
    );
    let from = &made["env"][1]["valueFrom"]["secretKeyRef"];
    assert_eq!(
        (&made["env"][1]["name"], from),
        (&json!("CODER_PROXY_SESSION_TOKEN"), &json!({"name": "t", "key": "token"}))
    );
    assert_eq!(made["ports"], json!([{"name": "http", "containerPort": 3001, "protocol": "TCP"}]));
    assert_eq!(made["readinessProbe"]["httpGet"]["path"], "/healthz");
    assert_eq!(made["livenessProbe"], Value::Null);
}

#[test]
fn replicas_relay_for_each_other_unless_the_relay_is_off() {
    let made = container(&direct(&json!({})));
    assert_eq!(variable(&made, "CODER_DERP_SERVER_RELAY_URL")["value"], "http://$(KUBE_POD_IP):3001");
    let off = json!({"extraEnv": [{"name": "CODER_DERP_SERVER_ENABLE", "value": "false"}]});
    assert_eq!(variable(&container(&direct(&off)), "CODER_DERP_SERVER_RELAY_URL"), Value::Null);
}

#[test]
fn the_address_is_given_or_exposed_or_that_of_the_service() {
    let url = |spec: &Value| {
        let made = container(&direct(spec));
        let value = |name| variable(&made, name)["value"].as_str().map(str::to_owned);
        (value("CODER_ACCESS_URL").unwrap(), value("CODER_WILDCARD_ACCESS_URL"))
    };
    assert_eq!(url(&json!({})), ("http://wsproxy-eu.ns.svc.cluster.local".into(), None));
    let exposed =
        json!({"host": "eu.example.com", "wildcardHost": "*.eu.example.com", "tls": {"secretName": "s"}});
    let exposed = json!({"expose": {"ingress": exposed}});
    assert_eq!(url(&exposed), ("https://eu.example.com".into(), Some("*.eu.example.com".into())));
    let mut given = exposed;
    given["accessURL"] = json!("https://own.example.com");
    given["wildcardAccessURL"] = json!("*.own.example.com");
    assert_eq!(url(&given), ("https://own.example.com".into(), Some("*.own.example.com".into())));
}

#[test]
fn certificates_make_the_proxy_and_its_service_speak_https() {
    let observed = direct(&json!({"tls": {"secretNames": ["cert"]}}));
    let made = container(&observed);
    assert_eq!(variable(&made, "CODER_TLS_ADDRESS")["value"], "0.0.0.0:8443");
    assert_eq!(made["ports"][1]["containerPort"], 8443);
    let service = serde_json::to_value(decide(&observed).unwrap().service).unwrap();
    let ports: Vec<_> =
        service["spec"]["ports"].as_array().unwrap().iter().map(|port| port["targetPort"].clone()).collect();
    assert_eq!(ports, [json!(3001), json!(8443)]);
}

#[test]
fn the_checksum_of_the_token_is_on_the_pods_and_read_back() {
    let made = build_deployment(&direct(&json!({})), &SourceContents::new(), &run(), false).unwrap();
    let template = made.spec.unwrap().template;
    assert_eq!(pod_credential_of(&template), Some(run()));
    let all = template.metadata.unwrap().annotations.unwrap();
    assert_eq!(all["checksum/proxy-token"], "sum");
}

#[test]
fn with_a_control_plane_the_image_and_the_address_follow_it() {
    let mut observed = observed(json!({"controlPlaneRef": {"name": "coder"}}));
    assert_eq!(observed.image(), None, "until it has rolled out");
    let mut plane = CoderControlPlane::new("coder", serde_json::from_value(json!({})).unwrap());
    plane.metadata.namespace = Some("ns".into());
    assert_eq!(primary_url(&observed.object, Some(&plane)).unwrap(), "http://coder.ns.svc.cluster.local:80");
    let status = json!({"image": "i:1", "accessURL": "https://coder.example.com"});
    plane.status = Some(serde_json::from_value(status).unwrap());
    assert_eq!(primary_url(&observed.object, Some(&plane)).unwrap(), "https://coder.example.com");
    observed.control_plane = Some(Arc::new(plane));
    assert_eq!(observed.image().unwrap(), "i:1");
}
