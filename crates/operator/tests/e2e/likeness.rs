//! The simulator beside the real server: the same requests, and answers that nobody could tell apart.
//!
//! The contract asks what the operator relies on, in the terms of its client. This compares the answers themselves:
//! status, kind of content, every message, and each field that the simulator gives.

use std::{collections::BTreeMap, net::SocketAddr};

use coder_k8s_coderd::Endpoint;
use coder_k8s_testbed::{CoderSim, codersim::Mode, contract};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::real::Real;

/// The requests, a line each.
const REQUESTS: &str = include_str!("likeness/requests.txt");
const PASSWORD: &str = "Likeness-4f6d2a90-passphrase";

/// A server with the people that ask it.
struct Server {
    address: SocketAddr,
    people: BTreeMap<&'static str, Option<SecretString>>,
}

impl Server {
    async fn new(address: SocketAddr) -> Self {
        let target = Endpoint::new(format!("http://{address}"));
        let owner = contract::set_up(&target).await.unwrap();
        let (id, _) = owner.expose_secret().split_once('-').unwrap();
        let forged = format!("{id}-{}", "x".repeat(22));
        let mut server = Self {
            address,
            people: [
                ("nobody", None),
                ("unknown", Some("abcdefghij-klmnopqrstuvwxyzabcdef".into())),
                ("malformed", Some("malformed".into())),
                ("short", Some("a-b".into())),
                ("halfway", Some("abcdefghij-short".into())),
                ("forged", Some(forged.into())),
                ("owner", Some(owner)),
            ]
            .into(),
        };
        let member = json!({"username": "member", "email": "member@example.com", "password": PASSWORD,
            "login_type": "password", "user_status": "active",
            "organization_ids": ["00000000-0000-0000-0000-000000000000"]});
        let made = server.ask(&format!("owner POST /api/v2/users {member}")).await;
        assert_eq!(made.status, 201, "{made:?}");
        let login = json!({"email": "member@example.com", "password": PASSWORD});
        let session = server.ask(&format!("nobody POST /api/v2/users/login {login}")).await;
        let token = session.body["session_token"].as_str().unwrap().to_owned();
        server.people.insert("member", Some(token.into()));
        server
    }

    /// Sends the request of a line.
    async fn ask(&self, line: &str) -> Answer {
        let mut words = line.splitn(4, ' ');
        let [who, method, path] = [(); 3].map(|()| words.next().unwrap());
        let body = words.next().unwrap_or_default();
        let token = self.people[who].as_ref();
        let credential = token
            .map(|token| format!("Coder-Session-Token: {}\r\n", token.expose_secret()))
            .unwrap_or_default();
        // The oldest version of the protocol, in which every answer ends with the connection.
        let request = format!(
            "{method} {path} HTTP/1.0\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n{credential}\r\n{body}",
            self.address,
            body.len()
        );
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let mut headers: BTreeMap<String, String> = BTreeMap::new();
        for line in head.lines().skip(1) {
            let (name, value) = line.split_once(": ").unwrap_or((line, ""));
            headers.insert(name.to_lowercase(), value.to_owned());
        }
        Answer {
            status,
            kind: headers.get("content-type").cloned(),
            challenged: headers.contains_key("www-authenticate"),
            versioned: headers.contains_key("x-coder-build-version"),
            retry: headers.contains_key("retry-after"),
            body: serde_json::from_str(body).unwrap_or_else(|_| json!(body)),
        }
    }
}

#[derive(Debug)]
struct Answer {
    status: u16,
    kind: Option<String>,
    challenged: bool,
    versioned: bool,
    retry: bool,
    body: Value,
}

impl Answer {
    /// What a client could tell apart.
    fn differences(&self, real: &Self) -> Vec<String> {
        let Self { status, kind, challenged, versioned, retry, body } = self;
        let heads = (status, kind, challenged, versioned, retry);
        let real_heads = (&real.status, &real.kind, &real.challenged, &real.versioned, &real.retry);
        if heads != real_heads {
            return vec![format!("{heads:?} {body}, the real one {real_heads:?} {}", real.body)];
        }
        differences("", body, &real.body)
    }
}

/// Words are compared where they are messages; elsewhere the fields that the simulator gives, and their types.
fn differences(at: &str, simulated: &Value, real: &Value) -> Vec<String> {
    let unless = |same: bool| {
        if same { Vec::new() } else { vec![format!("{at}: {simulated}, the real one {real}")] }
    };
    match (simulated, real) {
        (Value::Object(ours), Value::Object(theirs)) if theirs.contains_key("message") => {
            // What a parser says about a body is its own affair.
            let unread = ours.get("message") == Some(&json!("Request body must be valid JSON."));
            unless(if unread { ours.get("message") == theirs.get("message") } else { ours == theirs })
        }
        (Value::Object(ours), Value::Object(theirs)) => ours
            .iter()
            .flat_map(|(name, ours)| {
                let at = format!("{at}/{name}");
                match theirs.get(name) {
                    Some(theirs) => differences(&at, ours, theirs),
                    None => vec![format!("{at}: the real one has no such field")],
                }
            })
            .collect(),
        (Value::Array(ours), Value::Array(theirs)) => match (ours.first(), theirs.first()) {
            (Some(ours), Some(theirs)) => differences(&format!("{at}/0"), ours, theirs),
            _ => unless(ours.is_empty() == theirs.is_empty()),
        },
        (Value::String(ours), Value::String(theirs)) if at.is_empty() => unless(ours == theirs),
        (ours, theirs) => unless(std::mem::discriminant(ours) == std::mem::discriminant(theirs)),
    }
}

#[tokio::test]
async fn the_simulator_answers_as_the_real_coderd_does() {
    let real = Real::serving("likeness", json!({"operatorAccess": {"disabled": true}})).await;
    let sim = CoderSim::start(Mode::Unlicensed).await.unwrap();
    sim.reset_backend();
    let (simulated, real_one) = (Server::new(sim.address()).await, Server::new(real.address().await).await);
    let mut differences = Vec::new();
    let all: Vec<_> = REQUESTS.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    for line in &all {
        let (ours, theirs) = (simulated.ask(line).await, real_one.ask(line).await);
        let found = ours.differences(&theirs).into_iter();
        differences.extend(found.map(|difference| format!("{line}\n    {difference}")));
    }
    println!("{} requests compared, {} differences", all.len(), differences.len());
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
