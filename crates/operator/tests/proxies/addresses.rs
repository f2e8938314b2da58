//! An address in an object gets a credential only if somebody with the right to has allowed it.

use coder_k8s_testbed::codersim::{CoderSim, Mode, SimFault};
use serde_json::{Value, json};

use crate::proxy::{Site, is, message, names};

fn spec(url: &str) -> Value {
    json!({"image": "i", "bootstrap": {"coderURL": url, "credentialsSecretRef": {"name": "creds"}}})
}

async fn with_credentials(prefix: &str) -> (Site, CoderSim) {
    let site = Site::plane(prefix, Mode::Licensed).await;
    let other = CoderSim::start(Mode::Licensed).await.unwrap();
    site.coder.secret("creds", "token", &other.owner_token()).await;
    (site, other)
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_sent_to_an_address_that_nobody_allowed() {
    let (site, evil) = with_credentials("refused").await;
    let namespace = site.scene().namespace.clone();
    for (n, url) in [
        "http://evil.test".to_owned(),
        // Of an allowed name, but not of the allowed scheme or port.
        "https://one.allowed.test".to_owned(),
        "http://one.allowed.test:81".to_owned(),
        "http://one.allowed.test.evil.test".to_owned(),
        // The control plane of another namespace, and another port of the own one.
        format!("http://coder.another-{namespace}.svc.cluster.local:80"),
        format!("http://coder.{namespace}.svc.cluster.local:81"),
        format!("http://coder.{namespace}.svc.cluster.local.evil.test:80"),
    ]
    .iter()
    .enumerate()
    {
        let host = url.split('/').nth(2).unwrap().split(':').next().unwrap();
        if !host.starts_with("one.") && !host.ends_with("cluster.local") {
            site.scene().operator.host(host, evil.address());
        }
        let name = format!("p{n}");
        site.make_as(&name, spec(url)).await;
        let proxy = site
            .scene()
            .until(&name, |proxy| is(proxy, "CredentialsReady", "False", Some("URLNotAllowed")))
            .await;
        assert!(message(&proxy, "CredentialsReady").contains("--allowed-coder-urls"));
        assert!(is(&proxy, "Ready", "False", Some("URLNotAllowed")), "{:?}", proxy.status);
        assert!(is(&proxy, "Stalled", "True", None));
    }
    assert_eq!(evil.requests(), [], "nothing was sent");
    assert_eq!(site.asked("*"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_allowed_address_is_used_and_an_edit_to_another_one_is_not() {
    let (site, other) = with_credentials("allowed").await;
    let operator = site.scene().operator;
    operator.host("one.allowed.test", other.address());
    site.make_as("eu", spec("http://one.allowed.test/")).await;
    site.settles().await;
    assert_eq!(names(&other), ["eu"]);
    let evil = CoderSim::start(Mode::Licensed).await.unwrap();
    operator.host("elsewhere.test", evil.address());
    site.edit(json!({"bootstrap": {"coderURL": "http://elsewhere.test"}})).await;
    let proxy = site.says("Registered", "False", "URLNotAllowed").await;
    assert!(is(&proxy, "Stalled", "True", None));
    assert_eq!(evil.requests(), [], "nothing was sent");
    // What runs goes on with the address that it has.
    let env = site.deployment().await.spec.unwrap().template.spec.unwrap().containers.remove(0).env.unwrap();
    assert_eq!(env[0].value.as_deref(), Some("http://one.allowed.test/"));
    site.edit(json!({"bootstrap": {"coderURL": "http://one.allowed.test/"}})).await;
    site.settles().await;
    assert_eq!(names(&other), ["eu"]);
    // A redirect is not followed with a credential.
    let redirect = SimFault::redirect("http://elsewhere.test/api/v2/workspaceproxies");
    let fault = other.fault("GET", "/api/v2/workspaceproxies", redirect, None);
    site.edit(json!({"bootstrap": {"displayName": "New"}})).await;
    let proxy = site.until(|proxy| {
        proxy.status.as_ref().and_then(|s| s.workload.observed_generation) == proxy.metadata.generation
    });
    proxy.await;
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    assert_eq!(evil.requests(), [], "nothing was sent");
    other.clear(fault);
    site.settles().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_are_sent_to_no_other_deployment() {
    let (site, other) = with_credentials("deployment").await;
    site.scene().operator.host("two.allowed.test", other.address());
    site.make_as("eu", spec("http://two.allowed.test:8080")).await;
    site.settles().await;
    other.set_deployment_id("00000000-0000-0000-0000-00000000beef");
    let proxy = site.says("Registered", "False", "DeploymentChanged").await;
    assert!(message(&proxy, "Registered").contains("bootstrap.credentialsSecretRef"));
    let mark = other.mark();
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    assert!(other.since(mark).iter().all(|entry| entry.credential.is_none()), "{:?}", other.since(mark));
    // Somebody gives a token of this deployment.
    site.coder.secret("creds-2", "token", &other.owner_token()).await;
    site.edit(json!({"bootstrap": {"credentialsSecretRef": {"name": "creds-2"}}})).await;
    site.until(|proxy| {
        let status = crate::proxy::status(proxy);
        crate::proxy::is_settled(proxy)
            && status.deployment_id.as_deref() == Some("00000000-0000-0000-0000-00000000beef")
    })
    .await;
}
