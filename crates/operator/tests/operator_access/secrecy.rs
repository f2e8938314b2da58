//! Tokens and licenses reach nothing that the operator writes, on no path and at no level of the log.

use std::time::Duration;

use coder_k8s_testbed::codersim::SimFault;
use k8s_openapi::api::{core::v1::Event as CoreEvent, events::v1::Event};
use kube::{Api, api::ListParams};
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;

use coder_k8s_scenes::{Operator, coderd::license, scoped::ScopedScene};

/// Base64 without padding, of which only the beginning counts.
fn encoded(text: &str) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let sextets = |three: &[u8]| {
        let bits = three.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte));
        [18, 12, 6, 0].map(|shift| char::from(LETTERS[(bits >> shift & 63) as usize]))
    };
    text.as_bytes().chunks_exact(3).flat_map(sextets).collect()
}

/// What follows the first part of a secret: the sections of a license after its header, which is the same for all, or the
/// secret of a token after its id.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    text.split(if text.contains('.') { '.' } else { '-' }).skip(1)
}

/// A secret, its telling parts, and all of them as a Secret carries them.
fn canaries(secrets: &[SecretString]) -> Vec<String> {
    let mut all = Vec::new();
    for secret in secrets {
        let text = secret.expose_secret();
        all.push(text.to_owned());
        all.push(encoded(text));
        all.extend(parts(text).filter(|part| part.len() >= 12).map(str::to_owned));
    }
    all
}

async fn assert_silent(own: &ScopedScene, operator: &Operator, canaries: &[String], path: &str) {
    let list = ListParams::default();
    let events: Api<Event> = own.scene.api();
    let core: Api<CoreEvent> = own.scene.api();
    let planes = own.planes();
    let written = [
        ("log", operator.output()),
        ("events", serde_json::to_string(&events.list(&list).await.unwrap().items).unwrap()),
        ("core events", serde_json::to_string(&core.list(&list).await.unwrap().items).unwrap()),
        ("objects", serde_json::to_string(&planes.list(&list).await.unwrap().items).unwrap()),
        ("metrics", operator.get("--metrics-addr", "/metrics").await.1),
        ("readyz", operator.get("--health-addr", "/readyz?verbose").await.1),
    ];
    for (what, text) in written {
        for canary in canaries {
            let line = text.lines().find(|line| line.contains(canary.as_str()));
            assert_eq!(line, None, "{path}: {what}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn neither_token_nor_license_is_in_log_events_status_or_metrics() {
    let own = ScopedScene::new("secrecy").await;
    let operator = own.operator(&["--log-level=trace", "--entitlements-interval=2s", "--verify-interval=6s"]);
    operator.until_leading().await;
    let token = own.sim.owner_token();
    let wrong = SecretString::from("canarytok1-5up3r53cr37canary0123456789");
    let refused =
        SecretString::from("eyJhbGciOiJFZERTQSJ9.Y2FuYXJ5LWNsYWltcw.cmVmdXNlZC1jYW5hcnktc2lnbmF0dXJl");
    let unsendable = SecretString::from("canary\u{1}tok-5up3r53cr37unsendable");
    let all = [
        token.clone(),
        wrong.clone(),
        refused.clone(),
        unsendable.clone(),
        license(1),
        license(2),
        license(3),
    ];
    let canaries = canaries(&all);
    assert!(canaries.len() >= 3 * all.len());
    let silent = async |path: &str| assert_silent(&own, &operator, &canaries, path).await;

    own.secret("token", "token", &token).await;
    own.license(&license(1)).await;
    own.plane(json!({})).await;
    own.until_condition("Ready", "True", None).await;
    own.until_condition("OperatorAccessReady", "True", Some("TokenAccepted")).await;
    silent("applied").await;

    own.secret("token", "token", &wrong).await;
    own.until_condition("OperatorAccessReady", "False", Some("Unauthenticated")).await;
    silent("wrong token").await;
    own.secret("token", "token", &unsendable).await;
    own.until_condition("OperatorAccessReady", "False", Some("BadToken")).await;
    silent("a token that cannot be sent").await;
    own.secret("token", "token", &token).await;
    own.until_condition("OperatorAccessReady", "True", None).await;

    own.license(&refused).await;
    own.until_condition("LicenseApplied", "False", Some("InvalidLicense")).await;
    silent("refused license").await;

    // Answers that quote what was sent.
    let quoting = |secret: &SecretString, code| {
        let text = secret.expose_secret();
        let parts: Vec<_> = parts(text).collect();
        SimFault::status(code, &format!("{text} is no good: {}", parts.join(" and ")), text)
    };
    for (n, code, reason) in [(2, 400, "InvalidLicense"), (3, 500, "ServerError")] {
        let fault = own.sim.fault("POST", "/api/v2/licenses", quoting(&license(n), code), None);
        own.license(&license(n)).await;
        own.until_condition("LicenseApplied", "False", Some(reason)).await;
        silent(&format!("{code} that quotes the license")).await;
        own.sim.clear(fault);
    }
    own.until_condition("LicenseApplied", "True", None).await;
    for (code, reason) in [(401, "Unauthenticated"), (403, "Forbidden"), (500, "ServerError")] {
        let fault = own.sim.fault("GET", "/api/v2/users/me", quoting(&token, code), None);
        own.until_condition("OperatorAccessReady", "False", Some(reason)).await;
        silent(&format!("{code} that quotes the token")).await;
        own.sim.clear(fault);
        own.until_condition("OperatorAccessReady", "True", None).await;
    }
    let quoted = format!("http://elsewhere.example.com/{0}?token={0}#{0}", token.expose_secret());
    let page = SimFault::Answer {
        status: 200,
        headers: vec![("Content-Type".into(), "text/html".into())],
        body: format!("<html>{}</html>", token.expose_secret()),
    };
    for (fault, reason) in [
        (page, "UnexpectedAnswer"),
        (SimFault::Reset, "Unreachable"),
        (SimFault::redirect(&quoted), "Redirected"),
    ] {
        let fault = own.sim.fault("GET", "/api/v2/users/me", fault, None);
        own.until_condition("OperatorAccessReady", "False", Some(reason)).await;
        silent(reason).await;
        own.sim.clear(fault);
        if reason != "Redirected" {
            own.until_condition("OperatorAccessReady", "True", None).await;
        }
    }
    // Whatever comes last is written by now.
    tokio::time::sleep(Duration::from_secs(1)).await;
    silent("the end").await;
    assert!(operator.output().contains(r#""level":"DEBUG""#), "the log is verbose");
}
