//! A credential that was sent or received shows nowhere, whatever the server answers.

use std::{collections::BTreeMap, fmt::Debug, time::Duration};

use coder_k8s_coderd::{
    BoundToken, Client, CoderdError, Connector, Endpoint, NewFirstUser, NewUser, ProxySettings,
    license::Claims,
};
use coder_k8s_testbed::codersim::{Mode, SimFault};
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;

use super::{hasty, sim};

const TOKEN: &str = "canarytokn-CANARYTOKENSECRETPART1";
const LICENSE: &str = "eyJjYW5hcnkiOiJoIn0.eyJqdGkiOiJDQU5BUllMSUNFTlNFIn0.CANARYSIGNATURE";
const PASSWORD: &str = "CANARY-password-0123456789";
const KEY: &str = "CANARYKEYCANARYKEYCANARYKEYCANARYKEYCANARYK";

const PARTS: [&str; 6] = [
    "CANARY",
    "canarytokn",
    "eyJjYW5hcnkiOiJoIn0",
    "eyJqdGkiOiJDQU5BUllMSUNFTlNFIn0",
    "0123456789",
    "password-0",
];

fn check(what: &str, shown: &str) {
    for part in PARTS {
        assert!(!shown.contains(part), "{part} shows in {what}: {shown}");
    }
}

fn text(error: &CoderdError) -> String {
    format!("{error} {error:?} {:?}", error.kind)
}

/// Every call that sends a secret. Only the errors are of interest. Each has a client of its own, so that none is
/// held back by the one before.
async fn errors(client: impl Fn() -> Client) -> Vec<CoderdError> {
    let login = Some(("a@example.com".to_owned(), SecretString::from(PASSWORD)));
    let user = NewUser { username: "a".to_owned(), login, roles: vec![], organization_ids: vec![] };
    let first = NewFirstUser {
        email: "a@example.com".to_owned(),
        username: "a".to_owned(),
        password: PASSWORD.into(),
    };
    check("users", &format!("{user:?} {first:?} {:?}", client()));
    let settings =
        ProxySettings { name: "p".to_owned(), display_name: "P".to_owned(), icon: "/i".to_owned() };
    let results = [
        client().add_license(&LICENSE.into()).await.err(),
        client().create_first_user(&first).await.err(),
        client().log_in("a@example.com", &PASSWORD.into()).await.err(),
        client().create_user(&user).await.err(),
        client().me().await.err(),
        client().create_token("me", "n", None).await.err(),
        client().provisioner_key_details(&KEY.into()).await.err(),
        client().create_provisioner_key("default", "k", &BTreeMap::new()).await.err(),
        client().create_proxy(&settings).await.err(),
        client().update_proxy("id", &settings, true).await.err(),
    ];
    results.into_iter().flatten().collect()
}

#[tokio::test]
async fn no_error_quotes_what_was_sent() {
    let echo = format!("{TOKEN} {LICENSE} {PASSWORD} {KEY}");
    let detail =
        json!({ "message": echo, "detail": echo, "validations": [{ "field": "f", "detail": echo }] });
    let answer = |status: u16, kind: &str, body: &str| SimFault::Answer {
        status,
        headers: vec![
            ("Content-Type".to_owned(), kind.to_owned()),
            ("Location".to_owned(), format!("http://user:{PASSWORD}@elsewhere/?token={TOKEN}")),
        ],
        body: body.to_owned(),
    };
    let json = "application/json";
    let mut faults: Vec<_> = [307, 400, 401, 403, 404, 409, 418, 428, 429, 500, 503]
        .into_iter()
        .map(|status| answer(status, json, &detail.to_string()))
        .collect();
    faults.extend([
        answer(200, json, &format!("{{\"{echo}\": broken")),
        answer(200, json, &json!([echo]).to_string()),
        answer(201, json, &json!(echo).to_string()),
        answer(200, "text/html", &echo),
        answer(400, "text/plain", &echo),
        SimFault::Reset,
        SimFault::Latency(Duration::from_mins(1)),
    ]);
    for fault in faults {
        let sim = sim(Mode::Licensed).await;
        sim.fault("*", "/**", fault.clone(), None);
        let target = Endpoint::new(sim.url());
        check("the target", &format!("{target:?}"));
        let found = errors(|| Connector::new(hasty()).client(&target, Some(&TOKEN.into())).unwrap()).await;
        assert_eq!(found.len(), 10, "{fault:?}");
        for error in found {
            // Only what this very call sent can be taken out of a message; the others were never here.
            let own = match error.call {
                "add license" => vec![TOKEN, LICENSE],
                "create first user" | "log in" => vec![PASSWORD],
                "create user" => vec![TOKEN, PASSWORD],
                "get provisionerkey details" => vec![KEY],
                _ => vec![TOKEN],
            };
            for secret in own {
                let shown = text(&error);
                assert!(!shown.contains(secret), "{secret} shows in {shown}");
                for part in secret.split(['.', '-']).filter(|part| part.len() >= 8) {
                    assert!(!shown.contains(part), "{part} shows in {shown}");
                }
            }
        }
    }
}

#[tokio::test]
async fn nothing_that_was_received_shows_in_debug_output() {
    let sim = sim(Mode::Licensed).await;
    let client = super::owner(&sim);
    let hidden = |secret: &SecretString, shown: &dyn Debug| {
        let shown = format!("{shown:?}");
        assert!(!shown.contains(secret.expose_secret()), "{shown}");
    };
    let token = client.create_token("me", "n", None).await.unwrap();
    hidden(&token.secret, &token);
    let key = client.create_provisioner_key("default", "k", &BTreeMap::new()).await.unwrap();
    hidden(&key, &key);
    hidden(&key, &client.provisioner_key_details(&key).await.unwrap());
    let settings =
        ProxySettings { name: "p".to_owned(), display_name: "P".to_owned(), icon: "/i".to_owned() };
    let proxy = client.create_proxy(&settings).await.unwrap();
    hidden(proxy.token.as_ref().unwrap(), &proxy);
    let license = coder_k8s_testbed::CoderSim::license().build();
    hidden(&license, &client.add_license(&license).await.unwrap());
    hidden(&license, &Claims::read(&license).unwrap());
    hidden(&client.with_any_token(&token.secret).map(|_| token.secret.clone()).unwrap(), &client);
    hidden(&token.secret, &BoundToken::new(token.secret.clone(), "deployment"));
}
