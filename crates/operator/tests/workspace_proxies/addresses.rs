//! An address in an object gets a credential only if somebody with the right to has allowed it.

use coder_k8s_testbed::codersim::{CoderSim, Mode, SimFault};
use serde_json::{Value, json};

use coder_k8s_scenes::proxy::{ProxyScene, is, message, names};

use crate::OPERATOR;

fn spec(url: &str) -> Value {
    json!({"image": "i", "bootstrap": {"coderURL": url, "credentialsSecretRef": {"name": "creds"}}})
}

async fn with_credentials(prefix: &str) -> (ProxyScene, CoderSim) {
    let site = ProxyScene::plane(&OPERATOR, prefix, Mode::Licensed).await;
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
            site.scene().host(host, evil.address());
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
    let operator = site.scene().operator();
    operator.host("one.allowed.test", other.address());
    site.make_as("eu", spec("http://one.allowed.test/")).await;
    site.until_settled().await;
    assert_eq!(names(&other), ["eu"]);
    let evil = CoderSim::start(Mode::Licensed).await.unwrap();
    operator.host("elsewhere.test", evil.address());
    site.edit(json!({"bootstrap": {"coderURL": "http://elsewhere.test"}})).await;
    let proxy = site.until_condition("Registered", "False", "URLNotAllowed").await;
    assert!(is(&proxy, "Stalled", "True", None));
    assert_eq!(evil.requests(), [], "nothing was sent");
    // What runs goes on with the address that it has.
    let env = site.deployment().await.spec.unwrap().template.spec.unwrap().containers.remove(0).env.unwrap();
    assert_eq!(env[0].value.as_deref(), Some("http://one.allowed.test/"));
    site.edit(json!({"bootstrap": {"coderURL": "http://one.allowed.test/"}})).await;
    site.until_settled().await;
    assert_eq!(names(&other), ["eu"]);
    // A redirect is not followed with a credential.
    let redirect = SimFault::redirect("http://elsewhere.test/api/v2/workspaceproxies");
    let fault = other.fault("GET", "/api/v2/workspaceproxies", redirect, None);
    site.edit(json!({"bootstrap": {"displayName": "New"}})).await;
    let proxy = site.until_condition("Reconciling", "True", "Redirected").await;
    assert!(message(&proxy, "Reconciling").contains("set bootstrap.coderURL"), "{:?}", proxy.status);
    assert!(is(&proxy, "Ready", "True", None), "what works stays: {:?}", proxy.status);
    assert_eq!(evil.requests(), [], "nothing was sent");
    other.clear(fault);
    site.until_condition("Reconciling", "False", "Reconciled").await;
    let shown = coder_k8s_scenes::proxy::registrations(&other);
    assert_eq!(shown.iter().map(|proxy| &*proxy.display_name).collect::<Vec<_>>(), ["New"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_a_certificate_of_its_own_is_called_by_https() {
    let site = ProxyScene::plane(&OPERATOR, "https", Mode::Licensed).await;
    let issued = rcgen::generate_simple_self_signed(vec!["three.allowed.test".to_owned()]).unwrap();
    let other = CoderSim::builder(Mode::Licensed)
        .tls(issued.cert.pem(), issued.signing_key.serialize_pem())
        .start()
        .await
        .unwrap();
    site.scene().host("three.allowed.test", other.address());
    site.coder.secret("creds", "token", &other.owner_token()).await;
    let mut with_ca = spec("https://three.allowed.test");
    with_ca["bootstrap"]["caSecretRef"] = json!({"name": "ca"});
    site.make_as("eu", with_ca).await;
    let proxy = site.until_condition("Ready", "False", "CoderdUnavailable").await;
    assert!(message(&proxy, "Ready").contains("Secret ca of bootstrap.caSecretRef"), "{:?}", proxy.status);
    assert_eq!(other.requests(), [], "nothing is sent before the certificate can be checked");
    site.coder.secret_text("ca", "ca.crt", &issued.cert.pem()).await;
    site.until_settled().await;
    assert_eq!(names(&other), ["eu"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_are_sent_to_no_other_deployment() {
    let (site, other) = with_credentials("deployment").await;
    site.scene().host("two.allowed.test", other.address());
    site.make_as("eu", spec("http://two.allowed.test:8080")).await;
    site.until_settled().await;
    other.set_deployment_id("00000000-0000-0000-0000-00000000beef");
    let proxy = site.until_condition("Registered", "False", "DeploymentChanged").await;
    assert!(message(&proxy, "Registered").contains("the token in Secret creds"), "{:?}", proxy.status);
    assert!(is(&proxy, "Stalled", "True", None), "only a person can help");
    let mark = other.mark();
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    assert!(other.since(mark).iter().all(|entry| entry.credential.is_none()), "{:?}", other.since(mark));
    // Somebody gives a token of this deployment, which lists the registration under its new identity.
    other.accept_held_credentials();
    site.coder.secret("creds", "token", &other.owner_token()).await;
    site.until(|proxy| {
        let status = coder_k8s_scenes::proxy::status(proxy);
        coder_k8s_scenes::proxy::is_settled(proxy)
            && status.deployment_id.as_deref() == Some("00000000-0000-0000-0000-00000000beef")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_one_deployment_accepted_does_not_follow_an_edited_address() {
    let (site, one) = with_credentials("moved").await;
    let two = CoderSim::start(Mode::Licensed).await.unwrap();
    site.scene().host("four.allowed.test", one.address());
    site.scene().host("five.allowed.test", two.address());
    site.make_as("eu", spec("http://four.allowed.test")).await;
    site.until_settled().await;
    site.edit(json!({"bootstrap": {"coderURL": "http://five.allowed.test"}})).await;
    site.until_condition("Registered", "False", "DeploymentChanged").await;
    assert!(two.requests().iter().all(|entry| entry.credential.is_none()), "{:?}", two.requests());
    site.coder.secret("creds", "token", &two.owner_token()).await;
    // The old registration stays on the list: nothing is left to delete it with.
    site.until_ready().await;
    assert_eq!(names(&two), ["eu"]);
}
